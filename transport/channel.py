"""Messages between two processes, over ZeroMQ: numbered, checked, and with large parts in shared memory.

Problem: ZeroMQ loses messages when a peer dies and can reorder them when it reconnects, and copying a batch through a
socket costs more than joining it. Idea: every message has (job, generation, edge, sequence) and a checksum, and whoever
receives one that is not the next of its job and generation says so instead of guessing. A part of a message is either
in it or a block of the sender's arena, of which only the place travels; blocks come back with the next message the
other way. What stands in a file already is not written again: its place travels, where both ends see the same files.

A message is: a kind (a number of the caller's), a dict of what JSON can say, and parts, which are bytes. Nothing is
unpickled. The same class speaks `ipc://`, `tcp://` and `inproc://`.

Cost: a small message is one frame (header, text, parts, each beginning at a multiple of eight bytes), since a frame
costs as much as all else that is done for it. What is there is read without asking first whether it is.
"""

__all__ = ["Channel", "Header", "Message", "next_in_order"]

import json
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import zmq
from isal.isal_zlib import crc32

from ..disk import Place
from ..errors import TransportError
from .arena import Arena, Block, Reader

MAGIC = b"DvT1"
MOST_BYTES = 1 << 31
"""Bytes, at most, of the parts that travel inside a message: what is longer has gone wrong."""

INLINE = 4096
"""Parts up to this many bytes travel in the message's first frame: a block would cost more to keep track of."""

_LAYOUT = struct.Struct("<4sHHIIIQII4x")
_EIGHT = 8
_PADDING = [bytes(-size % _EIGHT) for size in range(_EIGHT)]
_DONTWAIT, _SNDMORE = int(zmq.DONTWAIT), int(zmq.SNDMORE)  # numbers: putting the library's enums together is slow


class Header(NamedTuple):
    """What every message begins with."""

    kind: int
    job: int
    generation: int
    edge: int
    sequence: int
    crc: int = 0
    text: int = 0
    """Bytes of the text, which stands behind the header."""

    def pack(self) -> bytes:
        """Return it as bytes."""
        return _LAYOUT.pack(MAGIC, 1, *self)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> "Header":
        """Read it from the bytes that a message begins with."""
        if len(data) < _LAYOUT.size or data[:4] != MAGIC:
            raise TransportError(f"a message begins with {bytes(data[:8])!r}: it is not one of Dovetail's")
        _, version, *fields = _LAYOUT.unpack_from(data)
        if version != 1:
            raise TransportError(
                f"a message has format {version}, and this version reads 1; run one version everywhere"
            )
        return cls(*fields)


def next_in_order(header: Header, job: int, generation: int, edge: int, expected: int) -> bool:
    """Tell whether a message is to be taken (True) or belongs to the past (False); raise where one is missing."""
    if (header.job, header.edge) != (job, edge) or header.generation < generation:
        return False
    if header.generation > generation or header.sequence != expected:
        raise TransportError(
            f"edge {edge}: message {header.sequence} of generation {header.generation} came where {expected} of "
            f"generation {generation} was due; one was lost, and the job must go on from its last checkpoint"
        )
    return True


class Message(NamedTuple):
    """What was received. Parts are arrays of bytes; those of an arena are given back when nothing refers to them."""

    kind: int
    meta: dict[str, Any]
    parts: list[np.ndarray]


class Channel:
    """One end of an edge.

    Parameters
    ----------
    socket
        A ZeroMQ DEALER that is connected to the other end, and to nothing else.
    job, generation, edge
        What both ends agree on.
    arena, reader
        Where large parts are written, and where the other end's are read. None: all parts travel inside messages.
    """

    def __init__(
        self, socket: "zmq.Socket[bytes]", *, job: int, generation: int, edge: int, arena: Arena | None = None,
        reader: Reader | None = None,
    ) -> None:  # fmt: skip
        self.socket, self.job, self.generation, self.edge = socket, job, generation, edge
        self.arena, self.reader = arena, reader
        self.sent = self.received = 0

    def send(self, kind: int, meta: dict[str, Any], parts: Sequence[Any] = ()) -> None:
        """Send a message. A part is bytes, a place in a file, or a block of the arena with one holder more for this.

        It is never waited for: what cannot go now, as nobody is at the other end, is an error.
        """
        places: list[Any] = []
        inside: list[Any] = []
        apart: list[Any] = []
        for part in parts:
            if isinstance(part, Block):
                places.append([part.segment, part.offset, part.size])
                continue
            if isinstance(part, Place):
                places.append(part)
                continue
            size = memoryview(part).nbytes
            if size > INLINE:
                places.append(None)
                apart.append(part)
            else:
                places.append(size)
                inside += (part, _PADDING[size % _EIGHT])
        said = {**meta, "parts": places} if places else meta
        freed = self._freed()
        if freed:
            said = {**said, "freed": freed}
        text = json.dumps(said).encode()
        body = b"".join((text, _PADDING[len(text) % _EIGHT], *inside))
        nbytes = len(body) + (sum(memoryview(part).nbytes for part in apart) if apart else 0)
        if nbytes > MOST_BYTES - _LAYOUT.size:
            raise TransportError(
                f"edge {self.edge}: a message of {nbytes:,} bytes is longer than the {MOST_BYTES:,} that may travel at "
                "once; take fewer rows at a time, with dt.Options(batch_rows=…, out_rows=…)"
            )
        crc = crc32(body)
        for part in apart:
            crc = crc32(part, crc)
        header = Header(kind, self.job, self.generation, self.edge, self.sent, crc, len(text))
        frames = [header.pack() + body, *apart]
        try:
            for frame in frames[:-1]:
                self.socket.send(frame, _DONTWAIT | _SNDMORE, copy=nbytes < 65536)
            self.socket.send(frames[-1], _DONTWAIT, copy=nbytes < 65536)
        except zmq.Again:
            raise TransportError(
                f"edge {self.edge}: nobody is there to take message {self.sent}; the other end is gone, and the job "
                "must go on from its last checkpoint"
            ) from None
        self.sent += 1

    def store(self, data: Any, holders: int) -> Any:
        """Write a part for `holders` messages: into the arena if it is large and there is room; else leave it.

        A part is an array, or something that knows its `nbytes` and can `write_into` a place of that length.
        """
        arena, block = self.arena, None
        if arena is not None and data.nbytes > INLINE:
            block = arena.take(data.nbytes, holders)
        if hasattr(data, "write_into"):
            place = memoryview(bytearray(data.nbytes)) if arena is None or block is None else arena.view(block)
            data.write_into(place)
            return place if block is None else block
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        if arena is None or block is None:
            return view
        arena.view(block)[:] = view
        return block

    def receive(self, timeout: float | None = 0.0) -> Message | None:
        """Return the next message, or None if none came in `timeout` seconds (None: wait for it)."""
        until = time.monotonic() + timeout if timeout else timeout
        while True:
            while (frames := self._frames()) is not None:
                if (message := self._read(frames)) is not None:
                    return message
            left = max(0.0, until - time.monotonic()) if until else until
            if left == 0.0 or not self.socket.poll(None if left is None else max(1, int(left * 1000))):
                return None

    def give_back(self, kind: int) -> None:
        """Tell the other end, in a message of its own, which of its blocks are finished with, if any."""
        if self.owes:
            self.send(kind, {})

    @property
    def owes(self) -> bool:
        """Tell whether there are blocks of the other end's to give back."""
        return self.reader is not None and bool(self.reader.finished)

    def _freed(self) -> list[tuple[int, int]]:
        if self.reader is None or not self.reader.finished:
            return []
        finished = self.reader.finished
        return [finished.popleft() for _ in range(len(finished))]

    def _frames(self) -> "list[zmq.Frame] | None":
        """Return what has come, if anything."""
        try:
            frames = [self.socket.recv(_DONTWAIT, copy=False)]
        except zmq.Again:
            return None
        while frames[-1].more:
            frames.append(self.socket.recv(copy=False))
        return frames

    def _read(self, frames: "list[zmq.Frame]") -> Message | None:
        first = frames[0].buffer
        header = Header.unpack(first)
        if not next_in_order(header, self.job, self.generation, self.edge, self.received):
            return None
        body = first[_LAYOUT.size :]
        apart = [frame.buffer for frame in frames[1:]]
        if header.text > len(body) or len(body) + sum(map(len, apart)) > MOST_BYTES:
            raise TransportError(f"edge {self.edge}: message {header.sequence} has no valid length")
        crc = crc32(body)
        for frame in apart:
            crc = crc32(frame, crc)
        if crc != header.crc:
            raise TransportError(f"edge {self.edge}: message {header.sequence} came damaged (its checksum differs)")
        self.received += 1
        meta = json.loads(str(body[: header.text], "utf-8"))
        if self.arena is not None:
            for segment, offset in meta.get("freed", ()):
                self.arena.drop(segment, offset)
        parts = self._parts(meta["parts"], body, header.text, apart) if "parts" in meta else []
        return Message(header.kind, meta, parts)

    def _parts(self, places: list[Any], body: memoryview, text: int, apart: list[memoryview]) -> list[np.ndarray]:
        inside = _aligned(np.frombuffer(body, np.uint8))
        at = _padded(text)
        parts = []
        for place in places:
            if place is None:
                parts.append(_aligned(np.frombuffer(apart.pop(0), np.uint8)))
            elif isinstance(place, int):
                parts.append(inside[at : at + place])
                at += _padded(place)
            else:
                assert self.reader is not None
                in_file = isinstance(place[0], str)
                parts.append(self.reader.read_file(Place(*place)) if in_file else self.reader.read(Block(*place)))
        return parts


def _padded(size: int) -> int:
    return size + -size % _EIGHT


def _aligned(part: np.ndarray) -> np.ndarray:
    """Return bytes that begin where numbers may: a message stands wherever it came to stand."""
    return part if part.__array_interface__["data"][0] % _EIGHT == 0 else part.copy()
