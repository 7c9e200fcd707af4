"""Numbers for the tuples of a join: which row each is, which rows of the other stream it may meet, what may be
forgotten.

Problem: a join may be cut into batches and spread over cells in any way, and every pair must still be found once,
inside the windows as they were meant. Idea: all that order and windows mean is settled in one place, before any work
is dealt out, as bounds on *row numbers*: a tuple may meet rows [row_lo, row_hi) of the other stream, and stands at
`rank` among the new tuples of its step. A cell only looks up what it was told; it never counts rows of its own.

Invariants: rows are numbered by the stream from 0; bounds never fall; what `bounds` says may be forgotten can be met by
no later tuple, also where one side is silent.
Cost: O(1) a tuple, and 8 bytes for each retained tuple of a time window.
"""

__all__ = ["Half", "Numbered", "Numbering", "Step"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..state import _native
from .access import SIDES, JoinSpec
from .ranges import OTHER
from .times import INT64_MAX, INT64_MIN


@dataclass
class Step:
    """New tuples of one side: batches in order, and their times in the join's domain (None without time)."""

    batches: Sequence[pa.RecordBatch]
    times: np.ndarray | None

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(batch.num_rows for batch in self.batches)


NO_TIMES = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Half:
    """The new tuples of one side: the row of the first; for each the rows of the other side that it may meet."""

    first: int
    row_lo: np.ndarray
    row_hi: np.ndarray
    rank: np.ndarray


@dataclass(frozen=True, slots=True)
class Numbered:
    """A step with its numbers."""

    halves: dict[str, Half]
    total: int  # ranks go from 0 to here
    times: np.ndarray  # by rank
    bounds: dict[str, int]  # once the step is done: rows of each side below these can be met by nobody
    turns: int = 1  # in which the cells of `copies` are asked for their parts


class Numbering:
    """Numbers the tuples of a join, step by step. A pure machine."""

    def __init__(self, spec: JoinSpec) -> None:
        self.spec = spec
        self.windows = {
            side: _native.Window(*spec.windows[side].resolve(spec.time, spec.domains[side], spec.name))
            for side in SIDES
        }
        self.times = {side: _native.RowTimes() for side in SIDES}
        self.rows = dict.fromkeys(SIDES, 0)
        self.last_time: int | None = None
        self.bounds = dict.fromkeys(SIDES, 0)  # rows below these can be met by nobody any more
        self.most_held = dict.fromkeys(SIDES, 0)  # rows of a window since it has begun to forget; not in a snapshot

    @property
    def nbytes(self) -> int:
        """Bytes of the times that are kept."""
        return sum(times.nbytes for times in self.times.values())

    def number(self, steps: dict[str, Step]) -> Numbered:
        """Number new tuples; they come after those of every earlier step."""
        first = dict(self.rows)
        # Without times all tuples of a step are as if at one time: the left ones first, then the right ones.
        times = {
            side: np.zeros(steps[side].rows, np.int64) if (given := steps[side].times) is None else given
            for side in SIDES
        }
        for side in SIDES:
            if self.windows[side].kind == "time":
                self.times[side].append(times[side])
            self.rows[side] += len(times[side])
            if len(times[side]) and self.spec.time is not None:
                newest = int(times[side][-1])
                self.last_time = newest if self.last_time is None else max(self.last_time, newest)
        total = len(times["left"]) if self.spec.self_join else len(times["left"]) + len(times["right"])
        by_rank = np.empty(total, np.int64)
        halves = {}
        for side in SIDES:
            halves[side] = half = self._half(side, times, first)
            by_rank[half.rank] = times[side]
        return Numbered(halves, total, by_rank, self._bounds())

    def advance(self, time: int) -> dict[str, int] | None:
        """No later tuple has a time below this: return what may be forgotten, also when no tuple comes."""
        time = min(max(time, INT64_MIN), INT64_MAX)  # a watermark may lie beyond every time there is
        if self.last_time is not None and time <= self.last_time:
            return None
        self.last_time = time
        return self._bounds()

    def snapshot(self) -> dict[str, Any]:
        """Return what it remembers, but for the times of rows that are retained."""
        return {"rows": dict(self.rows), "last_time": self.last_time, "bounds": dict(self.bounds)}

    def restore(self, known: dict[str, Any], times: dict[str, tuple[int, np.ndarray | None]]) -> None:
        """Go on from there; `times`: of each side's retained rows, and which is the first of these.

        In a self-join both sides are one stream, of which only the left is given.
        """
        self.rows, self.last_time, self.bounds = dict(known["rows"]), known["last_time"], dict(known["bounds"])
        for side in SIDES:
            first, values = times["left" if self.spec.self_join else side]
            if self.windows[side].kind == "time":
                self.times[side].start_at(first)
                if values is not None:
                    self.times[side].append(values)

    def _half(self, side: str, times: dict[str, np.ndarray], first: dict[str, int]) -> Half:
        other = OTHER[side]
        window, retained = self.windows[other], self.times[other]
        if self.spec.self_join:
            row_lo, row_hi = _native.own_bounds(times[side], first[side], window, retained)
            return Half(first[side], row_lo, row_hi, np.arange(len(row_lo), dtype=np.int64))
        row_lo, row_hi = _native.row_bounds(times[side], times[other], first[other], side == "right", window, retained)
        return Half(first[side], row_lo, row_hi, rank_of(row_hi, first[other]))

    def _bounds(self) -> dict[str, int]:
        bounds = {
            side: _native.expiry_bound(self.windows[side], self.rows[side], self.last_time, self.times[side])
            for side in SIDES
        }
        if self.spec.self_join:  # both roles read one log, and may share an index
            bounds = dict.fromkeys(SIDES, min(bounds.values()))
        for side in SIDES:
            self.times[side].expire(bounds[side])
            if bounds[side]:
                self.most_held[side] = max(self.most_held[side], self.rows[side] - bounds[side])
        self.bounds = bounds
        return bounds


def rank_of(row_hi: np.ndarray, other_first: int) -> np.ndarray:
    """Return the place of each new tuple of one side among all of its step: after the other's that came before it."""
    return _native.ranks_of(row_hi, other_first)
