"""Files that outlive a crash: the few things that Dovetail does with a disk, in one place.

Problem: what was written may be gone after a crash, or be there in part, unless it was made durable in the right order;
and that the order is right can only be shown if crashes can be tried at each step. Idea: everything that must survive
goes through a `Disk`, whose operations are as small as the promises of a file system: contents are durable after
`sync`, names after `sync_folder`, `rename` is all or nothing. The tests have a disk that loses whatever it may.
"""

__all__ = ["TEMPORARY", "Disk", "LockedError", "Place", "write_whole"]

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
from isal.isal_zlib import crc32

TEMPORARY = ".tmp"
"""How a file ends that is not whole yet."""


_PIECE = 1 << 20
"""Bytes that are read at once: memory that is used again stays in a cache, and need not be asked of the system."""


class LockedError(OSError):
    """Somebody else has a lock; `holder` says which process, in brackets, where the system tells."""

    def __init__(self, path: str, holder: str = "") -> None:
        super().__init__(errno.EWOULDBLOCK, "somebody else has the lock", path)
        self.holder = holder


class Place(NamedTuple):
    """A stretch of a file that does not change any more, as one process can name it to another."""

    path: str
    offset: int
    size: int


class Disk:
    """The file system."""

    is_shared = True
    """Other processes of this machine find its files by the same paths."""

    def create(self, path: str) -> BinaryIO:
        """Open a new file for writing."""
        return open(path, "xb")

    def sync(self, path: str) -> None:
        """Make a file's contents durable."""
        with open(path, "rb") as file:
            os.fsync(file.fileno())

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in place of whatever had it."""
        os.replace(old, new)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name, or copy it where there can be none."""
        try:
            os.link(old, new)
        except OSError:
            shutil.copyfile(old, new)

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is no matter."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def remove_folder(self, path: str) -> None:
        """Remove a folder with all that is in it; one that is not there is no matter."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it, durably: also where somebody who made it came no further."""
        above = path = os.path.abspath(path)
        new: list[str] = []
        while not new or not os.path.lexists(above):
            new.append(above := os.path.dirname(above))
        os.makedirs(path, exist_ok=True)
        for above in reversed(new):
            with contextlib.suppress(PermissionError):  # a folder that may be passed and not read; somebody else's
                self.sync_folder(above)

    def names(self, path: str) -> list[str]:
        """List a folder, in order; one that is not there is empty."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file or folder."""
        return os.path.lexists(path)

    def is_folder(self, path: str) -> bool:
        """Tell whether a name is a folder's."""
        return os.path.isdir(path)

    def read(self, path: str) -> bytes:
        """Return a file's contents."""
        with open(path, "rb") as file:
            return file.read()

    def measure(self, path: str) -> tuple[int, int]:
        """Return a file's length and checksum, reading it piece by piece."""
        piece = memoryview(bytearray(_PIECE))
        nbytes = crc = 0
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(piece):
                nbytes, crc = nbytes + count, crc32(piece[:count], crc)
        return nbytes, crc

    def map(self, path: str) -> Any:
        """Return a file's contents without a copy, as the system's own memory of it.

        It must not change any more: who cuts it short kills who reads it. To remove it does no harm. The file does not
        stay open, as Python's own `mmap` would have it: a window may lie in more files than a process may open.
        """
        if os.path.getsize(path) == 0:
            return memoryview(b"")
        with pa.memory_map(path) as file:
            return memoryview(file.read_buffer()).cast("B")

    def lock(self, path: str) -> Callable[[], None]:
        """Take a lock that goes when its holder does, however it goes; return what gives it back."""
        file: Any = open(path, "a+b")  # noqa: SIM115 - it is open as long as the lock is held
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(os.fstat(file.fileno()).st_ino)
            file.close()
            raise LockedError(path, holder) from error
        return lambda: file.close()


def _holder(inode: int) -> str:
    """Return " (process 123)" for who has a file locked, as Linux tells, or nothing."""
    try:
        locks = Path("/proc/locks").read_text()
    except OSError:
        return ""
    found = re.search(rf"FLOCK +ADVISORY +WRITE (\d+) [0-9a-f]+:[0-9a-f]+:{inode} ", locks)
    return f" (process {found[1]})" if found else ""


def write_whole(disk: Disk, path: str, parts: Iterable[Any]) -> tuple[int, int]:
    """Write a file that is there whole, and durably, or not at all; return its length and checksum.

    It is read back before it gets its name. Its folder is synced by the caller.
    """
    temporary = path + TEMPORARY
    disk.remove(temporary)
    crc = nbytes = 0
    with disk.create(temporary) as file:
        for part in parts:
            file.write(part)
            crc = crc32(part, crc)
            nbytes += memoryview(part).nbytes
    disk.sync(temporary)
    if disk.measure(temporary) != (nbytes, crc):
        raise OSError(errno.EIO, "what was written is read back otherwise", temporary)
    disk.rename(temporary, path)
    return nbytes, crc
