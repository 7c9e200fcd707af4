"""Memory that one process writes and others read: files in /dev/shm, sized before they are touched.

Problem: a batch is to be written once and read by every cell, without a copy, and a full machine is to be an answer and
not a signal. Idea: an arena is a few segments, each allocated with `posix_fallocate` (a sparse file on a full tmpfs
kills whoever touches it), written by its owner alone. Readers map it and get arrays that say so when the last reference
to them is gone (`Leased`); what they say travels back to the owner, whose ledger frees the block.

Invariants: a block is not written again before every reader has let go of it; segments are never moved or cut, so that
addresses hold. Files are removed with the run's folder (rundir.py), whoever dies.
"""

__all__ = ["Arena", "Block", "Reader"]

import errno
import mmap
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ..disk import Disk, Place
from ..errors import TransportError
from .ledger import Ledger

SEGMENT = 64 << 20
"""Bytes of a segment, unless a block is longer: some 20 ms to allocate, and not too many to look through."""


@dataclass(frozen=True, slots=True)
class Block:
    """A place in an arena."""

    segment: int
    offset: int
    size: int


class Arena:
    """The owner's side. `limit`: bytes, at most, of all segments."""

    def __init__(self, folder: Path, name: str, limit: int) -> None:
        self.folder, self.name, self.limit = folder, name, limit // mmap.PAGESIZE * mmap.PAGESIZE
        self.ledgers: list[Ledger] = []
        self.maps: list[mmap.mmap] = []
        self.refused = False  # the machine had no room for what the limit allows

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(ledger.size for ledger in self.ledgers)

    @property
    def held(self) -> int:
        """Bytes that are in use."""
        return sum(ledger.held for ledger in self.ledgers)

    def take(self, size: int, holders: int = 1) -> Block | None:
        """Return a block for `holders` readers; None if the arena is full."""
        for segment, ledger in enumerate(self.ledgers):
            offset = ledger.take(size, holders)
            if offset is not None:
                return Block(segment, offset, size)
        if not self._grow(size):
            return None
        offset = self.ledgers[-1].take(size, holders)
        assert offset is not None
        return Block(len(self.ledgers) - 1, offset, size)

    def view(self, block: Block) -> memoryview:
        """Return a block's bytes, to be written."""
        return memoryview(self.maps[block.segment])[block.offset : block.offset + block.size]

    def drop(self, segment: int, offset: int) -> None:
        """A reader has finished with a block."""
        self.ledgers[segment].drop(offset)

    def check(self) -> None:
        """Assert the invariants."""
        for ledger in self.ledgers:
            ledger.check()

    def _grow(self, least: int) -> bool:
        """Add a segment: a small one, if the machine has no room for more."""
        left = self.limit - self.size
        least = -(-least // mmap.PAGESIZE) * mmap.PAGESIZE
        size = max(least, min(SEGMENT, left))
        if size > left or size == 0:
            return False
        path = self.folder / f"{self.name}-{len(self.maps)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            while not _allocated(fd, path, size):
                if size == least:
                    os.unlink(path)
                    self.refused = True
                    return False
                size = max(least, size // 2 // mmap.PAGESIZE * mmap.PAGESIZE)
            self.maps.append(mmap.mmap(fd, size))
        finally:
            os.close(fd)
        self.ledgers.append(Ledger(size))
        return True


def _allocated(fd: int, path: Path, size: int) -> bool:
    """Give a new file its memory; return False if the machine has no room for that."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            return False
        os.unlink(path)
        raise TransportError(f"{path}: shared memory cannot be had: {error}") from error
    return True


class Leased(np.ndarray):
    """Bytes of somebody else's arena. When the last reference is gone, `release` is called, once."""

    release: Callable[[], None] | None = None

    def __del__(self) -> None:
        release, self.release = self.release, None
        if release is not None:
            release()


class Reader:
    """A reader's side of one arena: maps its segments, and collects what is to be given back.

    What already stands in a file that does not change any more is read there, and is nobody's to give back.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.arrays: dict[int, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self.finished: deque[tuple[int, int]] = deque()  # (segment, offset): nobody here refers to it any more
        self.files: WeakValueDictionary[str, np.ndarray] = WeakValueDictionary()  # while something refers to them

    def read(self, block: Block) -> np.ndarray:
        """Return the bytes of a block; they are given back when nothing refers to them."""
        if block.segment not in self.arrays:
            with open(self.folder / f"{self.name}-{block.segment}", "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.arrays[block.segment] = np.frombuffer(mapped, np.uint8)
        leased = self.arrays[block.segment][block.offset : block.offset + block.size].view(Leased)
        finished, where = self.finished, (block.segment, block.offset)
        leased.release = lambda: finished.append(where)
        return leased

    def read_file(self, place: Place) -> np.ndarray:
        """Return the bytes of a stretch of a file."""
        whole = self.files.get(place.path)
        if whole is None:
            try:
                whole = self.files[place.path] = np.frombuffer(Disk().map(place.path), np.uint8)
            except OSError as error:
                raise TransportError(
                    f"{place.path!r} cannot be read by another process: {error.strerror or error}; leave the files of "
                    "a checkpoint where they are while a run goes on from it"
                ) from error
        return whole[place.offset : place.offset + place.size]
