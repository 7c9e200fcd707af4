"""Collecting: the results of several cells, back in the order of one.

Problem: the cells of a join answer a step each at its own pace, and results must leave in the order of their later
tuple, then of the older one's row. Idea: each cell's results are in that order, and each slice says up to which rank
nothing of that cell is missing; up to its own last result nothing is missing either, also where one tuple has a million
of them. So what lies below the least of these places can be merged and go on, while the rest waits.

Invariants: steps leave one after the other; what waits is above the least frontier of its step. What waits is bound by
what cells may send before it is acknowledged, not by the number of matches.
Cost: where the results of cells do not interleave they are handed on as they came; otherwise each is copied once.
"""

__all__ = ["Collector", "Ties"]

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ..batch import record_batch
from ..state import WindowLog, _native
from .numbering import Half

_LEAST = -(2**63)

Slice = tuple[pa.RecordBatch, np.ndarray]
"""Some results, and the rank of each one's later tuple."""


class Ties:
    """What orders results with the same later tuple: the older one's row; in a self-join then the role."""

    def __init__(self, halves: dict[str, Half], total: int, self_join: bool) -> None:
        self.first, self.self_join = halves["left"].first, self_join
        self.from_left = np.zeros(total, bool)
        self.from_left[halves["left"].rank] = True

    def of(self, left: np.ndarray, right: np.ndarray, later: np.ndarray) -> np.ndarray:
        """Return it for some results."""
        if self.self_join:
            own = self.first + later
            return (left + right - own) * 2 + (left != own)
        return np.where(self.from_left[later], right, left)


@dataclass
class _Waiting:
    """Results of one cell: slices of which the first `taken` rows have gone on."""

    slices: deque[tuple[pa.RecordBatch, np.ndarray, np.ndarray]] = field(default_factory=deque)
    taken: int = 0
    frontier: tuple[int, int] = (0, _LEAST)  # below this (rank, tie) nothing is missing
    done: bool = False
    handed_on: int = 0  # slices, since somebody asked

    def below(self, frontier: tuple[int, int]) -> Iterator[tuple[pa.RecordBatch, np.ndarray, np.ndarray]]:
        """Hand out what stands before a place in the order."""
        while self.slices:
            data, later, tie = self.slices[0]
            first, last = np.searchsorted(later, frontier[0], "left"), np.searchsorted(later, frontier[0], "right")
            until = int(first + np.searchsorted(tie[first:last], frontier[1]))
            if until > self.taken:
                part = slice(self.taken, until)
                yield data.slice(self.taken, until - self.taken), later[part], tie[part]
            if until < len(later):
                self.taken = max(until, self.taken)
                return
            self.slices.popleft()
            self.taken = 0
            self.handed_on += 1


class _Part:
    """Some results of one cell, and the places of the first and of the last in the order."""

    def __init__(self, cell: int, data: pa.RecordBatch, later: np.ndarray, tie: np.ndarray) -> None:
        self.cell, self.data, self.later = cell, data, later
        self.first, self.last = (int(later[0]), int(tie[0])), (int(later[-1]), int(tie[-1]))


class Collector:
    """Puts results in order. A pure machine: `take` and `done` tell what came, `ready` hands out what may go on."""

    def __init__(self, schema: pa.Schema, cells: int, out_rows: int) -> None:
        self.schema, self.cells, self.out_rows = schema, cells, out_rows
        self.steps: dict[int, tuple[int, list[_Waiting]]] = {}
        self._of_finished = [0] * cells

    def begin(self, step: int, total: int) -> None:
        """A step was dealt out to all cells."""
        self.steps[step] = total, [_Waiting() for _ in range(self.cells)]

    def take(
        self, step: int, cell: int, upto: int, data: pa.RecordBatch, later: np.ndarray, tie: np.ndarray | None
    ) -> None:
        """Take results of a cell."""
        if tie is None:
            tie = np.broadcast_to(np.int64(0), len(later))
        waiting = self.steps[step][1][cell]
        waiting.slices.append((data, later, tie))
        own = (int(later[-1]), int(tie[-1]) + 1) if len(later) else (0, _LEAST)
        assert max((upto, _LEAST), own) >= waiting.frontier, "a cell's answers come in order"
        waiting.frontier = max((upto, _LEAST), own)

    def done(self, step: int, cell: int) -> None:
        """A cell has answered a step."""
        total, cells = self.steps[step]
        cells[cell].frontier, cells[cell].done = (total, _LEAST), True

    def handed_on(self) -> list[int]:
        """Return how many slices of each cell have gone on since this was asked last."""
        counts = [0] * self.cells
        for _, cells in self.steps.values():
            for i, cell in enumerate(cells):
                counts[i] += cell.handed_on
                cell.handed_on = 0
        for i, count in enumerate(self._of_finished):
            counts[i] += count
        self._of_finished = [0] * self.cells
        return counts

    def finished(self, step: int) -> bool:
        """Tell whether all cells have answered a step and its results have gone on; then it is forgotten."""
        if all(cell.done and not cell.slices for cell in self.steps[step][1]):
            for i, cell in enumerate(self.steps.pop(step)[1]):
                self._of_finished[i] += cell.handed_on
            return True
        return False

    def ready(self, step: int) -> Iterator[Slice]:
        """Hand out the results of a step that nothing can come before any more."""
        cells = self.steps[step][1]
        cut = min(cell.frontier for cell in cells)
        runs = [list(cell.below(cut)) for cell in cells]
        runs = [run for run in runs if run]
        # As a rule (`copies`) no slice reaches behind the beginning of another cell's: then they go on as they came.
        parts = sorted((_Part(cell, *each) for cell, run in enumerate(runs) for each in run), key=lambda p: p.first)
        if all(a.cell == b.cell or a.last < b.first for a, b in pairwise(parts)):
            yield from ((each.data, each.later) for each in parts)
            return
        log = WindowLog(self.schema)
        merging = []
        for run in runs:
            rows = []
            for data, _, _ in run:
                rows.append(np.arange(log.end_row, log.end_row + data.num_rows, dtype=np.int64))
                log.append(data)
            merging.append(tuple(np.concatenate(parts) for parts in (
                [later for _, later, _ in run], [tie for _, _, tie in run], rows)))  # fmt: skip
        row, later = _native.merge_runs(merging)
        for at in range(0, len(row), self.out_rows):
            part = slice(at, at + self.out_rows)
            columns = log.gather(list(range(len(self.schema))), row[part])
            yield record_batch(columns, self.schema, len(row[part])), later[part]
