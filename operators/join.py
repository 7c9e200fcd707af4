"""The join of two streams over windows in one process: one step at a time, each pair once, in order.

Problem: each tuple must meet the tuples of the other stream that came before it and are in their window, however
finely the two interleave, without handling tuples one by one. Idea: bounds on row numbers (state/__init__). A step is
numbered (numbering.py), stored and answered by a cell to which everything belongs (cell.py), and forgotten when its
time has come. Joins on several cores consist of the same parts (engine/).

Invariants: rows are numbered by the stream, from 0, and never by what a cell happens to hold; both sides' bounds come
from those numbers; expiry happens after the probes of a step and its bound never falls.

`JoinDriver` is that operator, for a flow or anything else that brings tuples in order; `WindowJoin` (window_join.py)
puts a public face on it.
"""

__all__ = ["JoinDriver"]

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ..errors import DovetailError
from .access import SIDES, JoinSpec
from .cell import Cell
from .numbering import NO_TIMES, Numbered, Numbering, Step

Slice = tuple[pa.RecordBatch, "np.ndarray | None"]


class JoinDriver:
    """Joins tuples that arrive in the total order. See the top of this file."""

    def __init__(self, spec: JoinSpec, columns: Sequence[str] | None = None, out_rows: int = 65_536) -> None:
        """`columns`: the output columns that are asked for (None: all)."""
        self.spec = spec
        self.cell = Cell(spec, columns, out_rows)
        self.numbering = Numbering(spec)
        self.schema = self.cell.schema
        self.pairs = 0
        self.broken: str | None = None

    @property
    def out_rows(self) -> int:
        """Rows, at most, of a slice of results."""
        return self.cell.out_rows

    @out_rows.setter
    def out_rows(self, rows: int) -> None:
        self.cell.out_rows = rows

    @property
    def nbytes(self) -> int:
        """Bytes that the windows hold: rows, times, keys and indexes."""
        return self.cell.nbytes + self.numbering.nbytes

    def null_keys(self) -> dict[str, int]:
        """Return how many rows of each side had a null or NaN in a key, so that nothing could match them."""
        sides = SIDES[:1] if self.spec.self_join else SIDES
        return {side: self.cell.stored[side].null_keys for side in sides}

    def held_rows(self) -> dict[str, int]:
        """Return how many rows each window's log holds."""
        return {side: len(self.cell.logs[side]) for side in SIDES}

    def check(self) -> None:
        """Assert the invariants."""
        self.cell.check()
        for side in SIDES:
            assert self.cell.stored[side].bound <= self.numbering.rows[side]

    def step(self, left: Step, right: Step | None = None) -> Iterator[Slice]:
        """Join new tuples; yield the results in slices of at most `out_rows`, in order.

        Tuples must come after those of every earlier step. A self-join gets its one stream as `left`. The iterator
        must be used up before the next step.
        """
        if self.broken:
            raise DovetailError(f"{self.spec.name}: this join failed earlier and cannot go on: {self.broken}")
        steps = {"left": left, "right": left if self.spec.self_join else (right or Step((), NO_TIMES))}
        batches = {side: steps[side].batches for side in SIDES}
        # Infinities and NaN are values here, and what they mean is decided where they are used.
        with np.errstate(all="ignore"):
            prepared = self.cell.prepare(batches)
            self.broken = "a step was stored only in part"
            numbered = self.numbering.number(steps)
            turns = self.cell.store(batches, prepared, numbered)
        self.broken = "the results of a step were not all taken"
        return self._answer(turns, numbered)

    def _answer(self, turns: Iterator[list], numbered: Numbered) -> Iterator[Slice]:
        try:
            for answer in self.cell.answers(turns):
                self.pairs += len(answer.later)
                for data, part in self.cell.gather(answer):
                    yield data, None if self.spec.time is None else numbered.times[part.later]
        except Exception as error:
            self.broken = str(error)
            raise
        self.broken = None
        self.cell.expire(numbered.bounds)

    def advance(self, time: int) -> None:
        """No later tuple has a time below this: expire what they cannot reach, also when no tuple comes."""
        bounds = self.numbering.advance(time)
        if bounds is not None:
            self.cell.expire(bounds)
