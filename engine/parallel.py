"""A join on several cells: what the side that deals out work does, and what a cell does, as pure machines.

Problem: the rows of a step must reach all cells, their results must come back in order, and nothing may depend on how
fast each of them is. Idea: the *head* numbers a step (operators/numbering.py) and gives the same message to every cell;
a *cell* answers it in slices and then says that it is done; the head puts the slices of a step in order
(operators/collecting.py) and moves on. What may be asked of which cell follows from the layout, which changes only
between two steps.

Neither half reads a clock, a socket or a process: messages are values, and a test hands them over itself. The shell
that does is cells.py.

Invariants: steps are dealt out and answered in order; at most `credit` steps are under way, so that the memory of what
waits is bound; a cell forgets rows by the bounds that travel with a step, after its answers.
"""

__all__ = ["CellMachine", "Done", "Head", "Slice", "StepMessage"]

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from ..batch import START, Watermark, empty_batch
from ..operators.access import SIDES, JoinSpec, choose_access
from ..operators.cell import Cell
from ..operators.collecting import Collector, Ties
from ..operators.evaluate import Columns
from ..operators.layouts import Balance, Layout, Pieces
from ..operators.numbering import NO_TIMES, Half, Numbered, Numbering, Step, rank_of
from ..operators.ranges import OTHER

TURN_SLICES = 4
"""Slices of results, about, that a cell of `copies` makes in a turn: half of what it may have under way (worker.py), so
that it has begun with the next when the cell before it is done."""

REMEMBERED_ROWS = 1 << 17
"""Rows, about, by which it is judged how many pairs a row finds."""

SAMPLE = 1024
"""Keys of a step, and side, by which the head learns where keys lie: each of eight cells sees some hundred of them, so
that chance alone does not make one look a tenth fuller than another."""


@dataclass(frozen=True)
class StepMessage:
    """New tuples for a cell, with their numbers."""

    number: int
    batches: dict[str, Sequence[pa.RecordBatch]]  # of a self-join only the left
    first: dict[str, int]
    row_lo: dict[str, np.ndarray]
    row_hi: dict[str, np.ndarray]
    bounds: dict[str, int]
    pieces: dict[str, list[Pieces]] | None = None  # of `range`: from this step on
    again: bool = False  # rows that were stored before a restore, to be stored again; with none, that was all
    turns: int = 1  # of `copies`: in which cells answer their parts


@dataclass(frozen=True)
class Slice:
    """Some results of a step. `later` and `tie` put them in order; without `tie`, no other cell has these ranks."""

    step: int
    upto: int
    data: pa.RecordBatch
    later: np.ndarray
    tie: np.ndarray | None


@dataclass(frozen=True)
class Done:
    """A cell has answered a step."""

    step: int
    load: int = 0
    sample: dict[str, np.ndarray] = field(default_factory=dict)
    null_keys: int = 0
    nbytes: int = 0
    found_by: dict[str, str] = field(default_factory=dict)  # of the first cell, when it has changed


class CellMachine:
    """One cell: answers steps."""

    def __init__(self, spec: JoinSpec, columns: Sequence[str], out_rows: int, layout: Layout, number: int) -> None:
        self.spec, self.layout, self.number = spec, layout, number
        self.cell = Cell(spec, columns, out_rows, layout.shares()[number])
        self.told = -1  # how many times it had changed how rows are found when that was last said

    def handle(self, message: StepMessage) -> Iterator[Slice | Done]:
        """Answer a step. The iterator must be used up before the next one."""
        spec, cell = self.spec, self.cell
        if message.pieces is not None:
            cell.take_over(self.layout.shares(message.pieces)[self.number])
        if message.again:
            for side, stored in message.batches.items():
                cell.rebuild(side, message.first[side], stored)
            if not message.batches:
                for side in SIDES[:1] if spec.self_join else SIDES:
                    cell.rebuilt(side)
                cell.expire(message.bounds)
            yield Done(message.number, nbytes=cell.nbytes)
            return
        batches = message.batches if not spec.self_join else dict.fromkeys(SIDES, message.batches["left"])
        numbered = self._numbered(message)
        with np.errstate(all="ignore"):
            prepared = cell.prepare(batches, numbered)
            turns = cell.store(batches, prepared, numbered)
        ties = None if self.layout.name == "copies" else Ties(numbered.halves, numbered.total, spec.self_join)
        for answer in cell.answers(turns):
            for data, part in cell.gather(answer):
                tie = None if ties is None else ties.of(part.left, part.right, part.later)
                yield Slice(message.number, part.upto, data, part.later, tie)
        cell.expire(message.bounds)
        sample = {}
        if self.layout.name == "range" and self.number == 0:
            keys = {side: cell.stored[side].key_of(prepared.new[side]) for side in SIDES}
            sample = {side: found[:: max(1, len(found) // SAMPLE)].copy() for side, found in keys.items()}
        sides = SIDES[:1] if spec.self_join else SIDES
        nulls = sum(cell.stored[side].null_keys for side in sides)
        yield Done(message.number, cell.load, sample, nulls, cell.nbytes, self._news())

    def _news(self) -> dict[str, str]:
        """Say how rows are found, if that has changed. Cells may differ in it; the first speaks for all."""
        if self.number != 0 or self.cell.changes == self.told:
            return {}
        self.told = self.cell.changes
        return self.cell.found_by()

    def _numbered(self, message: StepMessage) -> Numbered:
        halves, total = {}, 0
        for side in SIDES:
            row_hi = message.row_hi[side]
            if self.spec.self_join:
                rank, total = np.arange(len(row_hi), dtype=np.int64), len(row_hi)
            else:
                rank, total = rank_of(row_hi, message.first[OTHER[side]]), total + len(row_hi)
            halves[side] = Half(message.first[side], message.row_lo[side], row_hi, rank)
        return Numbered(halves, total, np.empty(0, np.int64), message.bounds, message.turns)


def _some_keys(spec: JoinSpec, side: str, batches: Sequence[pa.RecordBatch]) -> np.ndarray:
    """Return the keys, by which cells share rows, of some rows, evenly from all of them."""
    key = choose_access(spec, side).probe[0].key
    every, at = max(1, sum(batch.num_rows for batch in batches) // SAMPLE), 0
    found = [np.empty(0, np.uint64)]
    for batch in batches:
        rows = pa.array(range(-at % every, batch.num_rows, every), pa.int64())
        columns = Columns(partial(_taken, batch, rows))  # those of the key alone
        keys, known = key.compute(columns, len(rows))
        found.append(keys if known is None else keys[known])
        at += batch.num_rows
    return np.concatenate(found)


def _taken(batch: pa.RecordBatch, rows: pa.Array, _: str, name: str) -> pa.Array:
    return batch.column(name).take(rows)


@dataclass
class _UnderWay:
    number: int
    times: np.ndarray
    mark: Watermark
    open: set[int]
    pairs: int = 0


class Head:
    """Deals out the steps of one join and puts the answers in order."""

    def __init__(self, spec: JoinSpec, schema: pa.Schema, out_rows: int, layout: Layout, credit: int) -> None:
        self.spec, self.layout, self.credit = spec, layout, credit
        self.numbering = Numbering(spec)
        self.collector = Collector(schema, layout.cells, out_rows)
        self.balance: Balance | None = None
        if layout.name == "range" and layout.cells > 1:
            # Cells build their indexes anew when splitters move: not more often than a window is replaced.
            rows = sum(spec.windows[side].rows or 0 for side in SIDES)
            self.balance = Balance(layout.cells, memory=max(1 << 16, rows))
        self.pieces: dict[str, list[Pieces]] | None = None  # for the next step
        self.steps: deque[_UnderWay] = deque()
        self.dealt = 0
        self.matches, self.matches_rows = 0.0, 0  # pairs a row, of the last steps
        self.watermark: Watermark = START
        self.cell_bytes = [0] * layout.cells
        self.cell_nulls = [0] * layout.cells
        self.found_by: dict[str, str] = {}
        self.loads: dict[int, np.ndarray] = {}
        self.samples: dict[int, dict[str, np.ndarray]] = {}

    def sample(self) -> dict[str, np.ndarray] | None:
        """Return the keys by which a `range` layout was cut last, to cut it so again after a restore."""
        return None if self.balance is None else self.balance.fitted

    def cut(self, sample: dict[str, np.ndarray] | None, stored: dict[str, Sequence[pa.RecordBatch]]) -> None:
        """Cut the ranges as before a restore, before anything is dealt out.

        If nobody has noted by which keys (one process alone does not), by those of some of the rows that come back.
        """
        if self.balance is None:
            return
        if sample is None:
            sample = {side: _some_keys(self.spec, side, stored.get(side, stored["left"])) for side in SIDES}
            if max(map(len, sample.values())) < self.layout.cells:
                return  # too few to say anything: it is seen soon how they lie
        self.pieces = self.balance.fit(sample)

    @property
    def full(self) -> bool:
        """Tell whether no other step may be dealt out now."""
        return len(self.steps) >= self.credit

    @property
    def idle(self) -> bool:
        """Tell whether every step has been answered and handed on."""
        return not self.steps

    @property
    def unanswered(self) -> int:
        """Steps that some cell has not answered."""
        return sum(bool(step.open) for step in self.steps)

    def answered(self, besides: int | None = None) -> bool:
        """Tell whether the cells have nothing before them, besides one step."""
        return all(not step.open for step in self.steps if step.number != besides)

    @property
    def null_keys(self) -> int:
        """Rows with a null or NaN in a key. Every cell looks at every row."""
        return max(self.cell_nulls)

    def deal(self, steps: dict[str, Step], mark: Watermark) -> StepMessage:
        """Number the next step. Its results, and then the watermark `mark`, come out of `results`."""
        numbered = self.numbering.number(steps)
        bounds = numbered.bounds
        if isinstance(mark, int):
            bounds = self.numbering.advance(mark) or bounds
        sides = SIDES[:1] if self.spec.self_join else SIDES
        message = StepMessage(
            self.dealt,
            {side: [b for b in steps[side].batches if b.num_rows] for side in sides},
            {side: numbered.halves[side].first for side in SIDES},
            {side: numbered.halves[side].row_lo for side in SIDES},
            {side: numbered.halves[side].row_hi for side in SIDES},
            bounds,
            self.pieces,
            turns=self._turns(numbered.total),
        )
        self.pieces = None
        self._begin(numbered.times, mark)
        return message

    def _turns(self, total: int) -> int:
        """Return in how many turns the cells of `copies` should answer so many tuples.

        The results of a cell wait for those of the cell before it, and only some slices may wait. With one turn, where
        tuples find many rows, the second cell would stand still while the first answers its half.
        """
        if self.layout.name != "copies" or self.layout.cells == 1:
            return 1
        slices = self.matches * total / self.layout.cells / self.collector.out_rows
        return max(1, min(math.ceil(slices / TURN_SLICES), total // self.layout.cells))

    def deal_again(self, side: str, first: int, batches: Sequence[pa.RecordBatch]) -> StepMessage:
        """Deal out rows of one side that were stored before a restore; they have their numbers."""
        return self._again({side: batches}, {side: first})

    def dealt_again(self) -> StepMessage:
        """Say that these were all."""
        return self._again({}, {})

    def _again(self, batches: dict[str, Sequence[pa.RecordBatch]], first: dict[str, int]) -> StepMessage:
        nothing = dict.fromkeys(SIDES, NO_TIMES)
        message = StepMessage(
            self.dealt, batches, first, nothing, nothing, self.numbering.bounds, self.pieces, again=True
        )
        self.pieces = None
        self._begin(NO_TIMES, START)
        return message

    def _begin(self, times: np.ndarray, mark: Watermark) -> None:
        self.steps.append(_UnderWay(self.dealt, times, mark, set(range(self.layout.cells))))
        self.collector.begin(self.dealt, len(times))
        self.dealt += 1

    def take(self, cell: int, message: Slice | Done) -> None:
        """Take what a cell has sent."""
        if isinstance(message, Slice):
            self.collector.take(message.step, cell, message.upto, message.data, message.later, message.tie)
            self._step(message.step).pairs += message.data.num_rows
            return
        self.collector.done(message.step, cell)
        step = self._step(message.step)
        step.open.discard(cell)
        self.cell_bytes[cell], self.cell_nulls[cell] = message.nbytes, message.null_keys
        self.found_by = message.found_by or self.found_by
        if self.balance is not None and len(step.times):
            self._weigh(cell, message, step)

    def _step(self, number: int) -> _UnderWay:
        return next(step for step in self.steps if step.number == number)

    def results(self) -> Iterator[tuple[pa.RecordBatch, "np.ndarray | None", Watermark]]:
        """Hand out what may go on: results with their times, and after each step its watermark."""
        while self.steps:
            step = self.steps[0]
            for data, later in self.collector.ready(step.number):
                yield data, None if self.spec.time is None else step.times[later], self.watermark
            if not self.collector.finished(step.number):
                return
            self.steps.popleft()
            rows = self.matches_rows = min(self.matches_rows, REMEMBERED_ROWS) + len(step.times)
            if rows:
                self.matches += (step.pairs - self.matches * len(step.times)) / rows
            if step.mark > self.watermark:
                self.watermark = step.mark
                times = None if self.spec.time is None else np.empty(0, np.int64)
                yield empty_batch(self.collector.schema), times, self.watermark

    def _weigh(self, cell: int, message: Done, step: _UnderWay) -> None:
        assert self.balance is not None
        loads = self.loads.setdefault(message.step, np.zeros(self.layout.cells, np.int64))
        loads[cell] = message.load
        if message.sample:
            self.samples[message.step] = message.sample
        if not step.open:
            found = self.balance.observe(self.loads.pop(message.step), self.samples.pop(message.step, {}))
            self.pieces = found or self.pieces
