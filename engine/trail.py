"""How far a run has come, for whoever must tell whether the next attempt came any further.

Problem: that a checkpoint was made proves nothing by itself, as one input may go on for ever beside another that makes
the run fail; and where the whole process dies, nobody is left to say what it had read. Idea: numbers in memory that
outlives the process: of each source, how many rows were read, and how many the last two checkpoints have, by their
numbers. Two, as a run may die between a checkpoint's manifest and the moment at which it learns of it.

Invariant: `kept` never says more than a checkpoint has, whenever the run dies.
Cost: a store into memory for each batch that is read.
"""

__all__ = ["ALL", "Trail"]

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import TransportError
from ..transport import reserve

_NUMBER = 8
"""Bytes of a number."""

_BEGINNING, _NONE = -1, -2
"""In place of a checkpoint's number."""

ALL = 1 << 62
"""Rows that a checkpoint has of a source that has ended: as many as anybody can ask for."""


class Trail:
    """Written by a run; in a file, if another process is to read it when the run is dead.

    >>> trail = Trail()
    >>> trail.begin(None, {"read 'one'": 0, "read 'two'": 0})
    >>> trail.read("read 'one'", 500); trail.checkpoint(1, {"read 'one'": 500, "read 'two'": 0})
    >>> trail.read("read 'one'", 750)
    >>> trail.to_pass, trail.kept(1)
    ({"read 'one'": 750, "read 'two'": 0}, {"read 'one'": 500, "read 'two'": 0})
    >>> trail.since(1), trail.since(None)
    ("rows 500 to 750 of read 'one'", "rows 0 to 750 of read 'one'")
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.sources: dict[str, int] = {}
        # What was read of each source; and twice, of a checkpoint: its number, and the rows that it has of each.
        self._numbers = memoryview(bytearray(2 * _NUMBER)).cast("q")
        self._last = 0  # which of the two was written last

    def begin(self, number: int | None, rows: Mapping[str, int]) -> None:
        """An attempt begins at a checkpoint (None: at the beginning), with so many rows of each source."""
        if list(self.sources) != list(rows):
            self._make(list(rows))
        for source in rows:
            self.read(source, rows[source])
        self.checkpoint(_BEGINNING if number is None else number, rows)

    def read(self, source: str, rows: int) -> None:
        """So many rows of a source have been read."""
        self._numbers[self.sources[source]] = rows

    def checkpoint(self, number: int, rows: Mapping[str, int]) -> None:
        """A checkpoint begins, which has so many rows of each source; the one before may be the last that is made."""
        if self._numbers[self._at(self._last)] != number:
            self._last = 1 - self._last
        at = self._at(self._last)
        self._numbers[at] = _NONE
        for source, place in self.sources.items():
            self._numbers[at + 1 + place] = rows[source]
        self._numbers[at] = number

    @property
    def to_pass(self) -> dict[str, int]:
        """How many rows of each source a checkpoint must have, to prove that the flow has got past where it was."""
        return {source: self._numbers[at] for source, at in self.sources.items()}

    def kept(self, number: int | None) -> dict[str, int]:
        """How many rows of each source a checkpoint has (None: the beginning); none, if nobody knows."""
        for at in (self._at(0), self._at(1)):
            if self._numbers[at] == (_BEGINNING if number is None else number):
                return {source: self._numbers[at + 1 + place] for source, place in self.sources.items()}
        return {}

    def since(self, number: int | None) -> str:
        """Say which rows were read since a checkpoint."""
        kept = self.kept(number)
        read = {source: (kept.get(source, 0), rows) for source, rows in self.to_pass.items() if rows < ALL}
        parts = [f"rows {first:,} to {rows:,} of {source}" for source, (first, rows) in read.items() if rows > first]
        return ", ".join(parts) or "no rows"

    def _at(self, which: int) -> int:
        return len(self.sources) + which * (1 + len(self.sources))

    def _make(self, sources: list[str]) -> None:
        self.sources = {source: at for at, source in enumerate(sources)}
        self._last = 0
        nbytes = _NUMBER * (3 * len(sources) + 2)
        if self.path is None:
            self._numbers = memoryview(bytearray(nbytes)).cast("q")
        else:
            self._numbers = self._made(self.path, json.dumps(sources).encode(), nbytes)
        self._numbers[self._at(0)] = self._numbers[self._at(1)] = _NONE

    @staticmethod
    def _made(path: Path, head: bytes, nbytes: int) -> "memoryview[int]":
        head += b" " * (-(len(head) + 1) % _NUMBER) + b"\n"
        new = path.with_name(f".{path.name}.tmp")
        new.unlink(missing_ok=True)
        try:
            reserve(new, len(head) + nbytes)
        except OSError as error:
            raise TransportError(
                f"{str(path)!r} cannot be made: {error.strerror or error}; make room there, or set DOVETAIL_RUNS to a "
                "folder where there is some"
            ) from error
        with open(new, "r+b") as file:
            file.write(head)
            file.flush()
            numbers = memoryview(mmap.mmap(file.fileno(), 0))[len(head) :].cast("q")
        os.replace(new, path)
        return numbers

    @classmethod
    def left(cls, path: Path) -> "Trail":
        """Read what a run has left; one that died before its first attempt has left nothing."""
        trail = cls()
        if path.exists():
            head, numbers = path.read_bytes().split(b"\n", 1)
            trail._make(json.loads(head))
            memoryview(trail._numbers).cast("B")[:] = numbers
        return trail
