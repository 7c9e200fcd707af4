"""How far a run has come, for whoever must tell whether the next attempt came any further.

Problem: that a checkpoint was made proves nothing by itself, as one input may go on for ever beside another that makes
the run fail; and where the whole process dies, nobody is left to say what it had read. Idea: two numbers for each
source, in memory that outlives the process: how many rows the last checkpoint has, and how many one would need so that
the flow had got past where it is now. That is what was read; while a source is being asked, one more.

Cost: two stores into memory for each batch that is read.
"""

__all__ = ["Trail"]

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path

from ..transport import reserve

_NUMBER = 8
"""Bytes of a number."""


class Trail:
    """Written by a run; in a file, if another process is to read it when the run is dead.

    >>> trail = Trail()
    >>> trail.begin({"read 'one'": 0, "read 'two'": 0})
    >>> trail.needs("read 'one'", 500); trail.durable({"read 'one'": 500, "read 'two'": 0})
    >>> trail.needs("read 'one'", 750); trail.needs("read 'two'", 1)
    >>> trail.to_pass
    {"read 'one'": 750, "read 'two'": 1}
    >>> trail.since_checkpoint()
    "rows 500 to 750 of read 'one', rows 0 to 1 of read 'two'"
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.sources: dict[str, int] = {}
        self._numbers = memoryview(b"").cast("q")  # of each source: needed, and durable

    def begin(self, rows: Mapping[str, int]) -> None:
        """An attempt begins, where so many rows of each source have been read."""
        if list(self.sources) != list(rows):
            self._make(list(rows))
        for source in rows:
            self.needs(source, rows[source])
        self.durable(rows)

    def needs(self, source: str, rows: int) -> None:
        """From now on a checkpoint would need so many rows of a source to have got past this place."""
        self._numbers[2 * self.sources[source]] = rows

    def durable(self, rows: Mapping[str, int]) -> None:
        """The last checkpoint has so many rows of each source."""
        for source, at in self.sources.items():
            self._numbers[2 * at + 1] = rows[source]

    @property
    def to_pass(self) -> dict[str, int]:
        """How many rows of each source prove that the flow has got past where it was last."""
        return {source: self._numbers[2 * at] for source, at in self.sources.items()}

    @property
    def kept(self) -> dict[str, int]:
        """How many rows of each source the last checkpoint has."""
        return {source: self._numbers[2 * at + 1] for source, at in self.sources.items()}

    def since_checkpoint(self) -> str:
        """Say which rows were read, or asked for, since the last checkpoint."""
        kept = self.kept
        parts = [f"rows {kept[s]:,} to {rows:,} of {s}" for s, rows in self.to_pass.items() if rows > kept[s]]
        return ", ".join(parts) or "no rows"

    def _make(self, sources: list[str]) -> None:
        self.sources = {source: at for at, source in enumerate(sources)}
        nbytes = 2 * _NUMBER * len(sources)
        if self.path is None:
            self._numbers = memoryview(bytearray(nbytes)).cast("q")
            return
        head = json.dumps(sources).encode()
        head += b" " * (-(len(head) + 1) % _NUMBER) + b"\n"
        new = self.path.with_name(f".{self.path.name}.tmp")
        new.unlink(missing_ok=True)
        reserve(new, len(head) + nbytes)
        with open(new, "r+b") as file:
            file.write(head)
            file.flush()
            self._numbers = memoryview(mmap.mmap(file.fileno(), 0))[len(head) :].cast("q")
        os.replace(new, self.path)

    @classmethod
    def left(cls, path: Path) -> "Trail":
        """Read what a run has left; one that died before its first attempt has left nothing."""
        trail = cls()
        if path.exists():
            head, numbers = path.read_bytes().split(b"\n", 1)
            trail._make(json.loads(head))
            memoryview(trail._numbers).cast("B")[:] = numbers
        return trail
