"""The micro-batches of a Spark source, on disk before Spark is told that they were taken.

Problem: Spark repeats its last micro-batch after a crash, if it had not noted its end, and none before that; a
checkpoint of a flow may be older than that, or newer. Idea: a micro-batch is written here, durably, before Spark may go
on. So what comes between a checkpoint and a crash is read from here; what Spark repeats is recognised by its number,
and refused if its rows differ.

Layout: `batch-<number>.arrow` for each micro-batch, an Arrow stream with its checksum in eight digits behind it, and
beside them `query/`, Spark's own checkpoint, which nobody but Spark touches. A file appears whole, under its name, when
it is durable.

Invariants: the numbers are consecutive; every number that Spark has noted as ended was here; the last one stays, as it
may be repeated; a batch goes only when all checkpoints that are kept lie behind it.
Cost: each row is written once, in pieces of a batch, and read back once for its checksum; read again only after a
restore. A micro-batch is never in memory a second time.
"""

__all__ = ["Ledger"]

import contextlib
import io
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from isal.isal_zlib import crc32

from ...disk import Disk, write_whole
from ...errors import SourceError

_BATCH = re.compile(r"batch-(\d{9,})\.arrow")
_SUM = 8
"""Digits of a checksum."""


class Ledger:
    """The folder of one source."""

    def __init__(self, folder: str, where: str, disk: Disk | None = None) -> None:
        self.folder, self.where, self.disk = folder, where, disk or Disk()
        self.query = os.path.join(folder, "query")
        self.disk.make_folder(folder)
        self.files: dict[int, str] = {}
        for name in self.disk.names(folder):
            if found := _BATCH.fullmatch(name):
                self.files[int(found[1])] = name
        numbers = sorted(self.files)
        if numbers and numbers != list(range(numbers[0], numbers[-1] + 1)):
            gone = next(n for n in range(numbers[0], numbers[-1]) if n not in self.files)
            raise SourceError(
                f"{where}: micro-batch {gone} is missing in {folder!r}; restore it, or begin in another "
                "checkpoint folder"
            )

    @property
    def first(self) -> int | None:
        """The number of the oldest micro-batch that is there."""
        return min(self.files, default=None)

    @property
    def last(self) -> int | None:
        """The number of the newest micro-batch."""
        return max(self.files, default=None)

    def check(self, position: int, *, streaming: bool) -> None:
        """Raise unless reading can go on with this micro-batch, and Spark behind the last one."""
        begun, ended = self._noted("offsets"), self._noted("commits")
        if begun is None and ended is None and self.last is None and position == 0:
            # Spark may have been killed while it noted its first: it refuses to begin in a folder with half a file.
            self.disk.remove_folder(self.query)
        again = "restore the folder as it was, or begin in another checkpoint folder"
        first, last = self.first, self.last
        if position > 0 or last is not None:
            if last is None or position > last + 1 or (first is not None and position < first):
                raise SourceError(f"{self.where}: micro-batch {position} is missing in {self.folder!r}; {again}")
            if streaming and (begun is None or begun < last):
                has = "is gone" if begun is None else f"knows of micro-batches up to {begun}"
                raise SourceError(
                    f"{self.where}: micro-batches up to {last} were taken, and Spark's own checkpoint in "
                    f"{self.query!r} {has}; {again}"
                )
        if ended is not None and ended > (-1 if last is None else last):
            raise SourceError(
                f"{self.where}: Spark has ended micro-batch {ended}, which is missing in {self.folder!r}; {again}"
            )

    def _noted(self, kind: str) -> int | None:
        names = self.disk.names(os.path.join(self.query, kind))
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def has(self, number: int, table: pa.Table) -> bool:
        """Tell whether a micro-batch is here already; raise if it is another, or older than those that are here."""
        if self.last is None or number > self.last:
            return False
        if number not in self.files:
            raise SourceError(
                f"{self.where}: Spark repeats micro-batch {number}, which was taken long ago: its own checkpoint in "
                f"{self.query!r} was lost or is an older copy; begin in another checkpoint folder"
            )
        before = self.read(number)
        if not before.equals(table):
            raise SourceError(
                f"{self.where}: Spark repeats micro-batch {number} with other rows ({table.num_rows:,}; it had "
                f"{before.num_rows:,}): its input was changed; put it back as it was, or begin in another "
                "checkpoint folder"
            )
        return True

    def append(self, number: int, table: pa.Table) -> None:
        """Write the next micro-batch."""
        expected = 0 if self.last is None else self.last + 1
        if number != expected:
            raise SourceError(
                f"{self.where}: Spark brings micro-batch {number} where {expected} is due; its own checkpoint in "
                f"{self.query!r} is of another run: begin in another checkpoint folder"
            )
        try:
            self._sync_query(number)
            name = f"batch-{number:09d}.arrow"
            write_whole(self.disk, os.path.join(self.folder, name), _summed(_streamed(table)))
            self.disk.sync_folder(self.folder)
        except OSError as error:
            raise SourceError(
                f"{self.where}: micro-batch {number} cannot be written to {self.folder!r}: {error.strerror or error}; "
                "make room there, or give another checkpoint folder"
            ) from error
        self.files[number] = name

    def _sync_query(self, number: int) -> None:
        """Make durable what Spark has noted of a micro-batch: it does not do so itself."""
        for kind in ("offsets", *(f"sources/{name}" for name in self.disk.names(f"{self.query}/sources"))):
            path = f"{self.query}/{kind}/{number}"
            if self.disk.exists(path):
                self.disk.sync(path)
                self.disk.sync_folder(f"{self.query}/{kind}")

    def read(self, number: int) -> pa.Table:
        """Return a micro-batch."""
        name = self.files[number]
        path = os.path.join(self.folder, name)
        try:
            data = self.disk.read(path)
        except OSError as error:
            raise SourceError(
                f"{self.where}: micro-batch {number} cannot be read: {error.strerror or error}: {path!r}"
            ) from error
        rows = memoryview(data)[:-_SUM]
        if data[-_SUM:] != b"%08x" % crc32(rows):
            raise SourceError(
                f"{self.where}: {path!r} is damaged (its checksum differs); restore it, or begin in another folder"
            )
        return pa.ipc.open_stream(pa.py_buffer(rows)).read_all()

    def forget(self, before: int) -> None:
        """Remove micro-batches that no checkpoint needs; the last one stays."""
        for number in sorted(self.files):
            if number >= before or number == self.last:
                return
            with contextlib.suppress(OSError):  # it takes room, and nothing else
                self.disk.remove(os.path.join(self.folder, self.files[number]))
                del self.files[number]


class _Pieces(io.RawIOBase):
    """What was written since it was last asked."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.pieces.append(bytes(data))
        return len(data)

    def take(self) -> list[bytes]:
        pieces, self.pieces = self.pieces, []
        return pieces


def _streamed(table: pa.Table) -> Iterator[bytes]:
    """Return a table as an Arrow stream, some of it at a time."""
    sink = _Pieces()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)
            yield from sink.take()
    yield from sink.take()


def _summed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Put the checksum of all parts behind them."""
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
        yield part
    yield b"%08x" % crc
