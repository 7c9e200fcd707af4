"""The running half of each node: batches in, batches out, counted. No clock, and no I/O but that of sources and sinks.

A task has one method for a batch on one of its inputs, `take`, which yields what leaves. Batches carry the watermark,
and the end of a stream is the watermark `END`; so there is no other signal, and a task is done when what it has
yielded says so. The run pulls what a task yields one batch at a time and hands it on before it pulls the next: a
join with a million results for a step never holds more than a slice of them.
"""

__all__ = ["SMALL_STEP", "JoinTask", "ReadTask", "SinkTask", "Task", "make_task"]

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ..batch import END, START, Batch, Watermark, concat, empty_batch, record_batch, take_rows
from ..config import Options
from ..errors import DovetailError
from ..operators.access import SIDES
from ..operators.contracts import END_OF_SOURCE, Reader, Rows, Writer
from ..operators.join import JoinDriver
from ..operators.numbering import Numbering, Step
from ..operators.sequencer import Merger, SourceOrder
from ..operators.spread import Load
from ..operators.steps import Compute, Filter, Map
from ..operators.windowed import Windowed
from .graph import (
    ComputeNode,
    FilterNode,
    JoinNode,
    LateNode,
    MapNode,
    Node,
    ProcessNode,
    ReadNode,
    UnionNode,
    WindowNode,
    WriteNode,
)
from .plan import asked_of_input
from .snapshots import replaced


class Task:
    """What all tasks have: a node, counts, a watermark."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.rows_in = self.rows_out = self.late = 0
        self.watermark: Watermark = START

    @property
    def null_keys(self) -> int:
        """Rows with a null or NaN in a key of a join."""
        return 0

    @property
    def found_by(self) -> dict[str, str]:
        """How a join has found the rows of each side."""
        return {}

    @property
    def spread(self) -> str:
        """How a join is spread over workers, if it is."""
        return ""

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept between batches."""
        return 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes of these that wait for another input."""
        return 0

    def snapshot(self) -> dict[str, Any]:
        """Return what it remembers, as a tree (snapshots.py) that nothing changes any more."""
        return {"rows_in": self.rows_in, "rows_out": self.rows_out, "late": self.late, "watermark": self.watermark}

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from there, before anything is taken."""
        self.rows_in, self.rows_out, self.late = known["rows_in"], known["rows_out"], known["late"]
        self.watermark = known["watermark"]

    def take(self, port: int, batch: Batch) -> Iterator[Batch]:
        """Take a batch of an input; yield what leaves."""
        self.rows_in += batch.num_rows
        yield from self.counted(self.process(port, batch))

    def counted(self, outs: Iterable[Batch]) -> Iterator[Batch]:
        """Yield what leaves, counted."""
        for out in outs:
            self.rows_out += out.num_rows
            assert out.watermark >= self.watermark, (self.node.name, self.watermark, out.watermark)
            self.watermark = out.watermark
            yield out

    def process(self, port: int, batch: Batch) -> Iterator[Batch]:
        """Do the work; by default hand on what came."""
        yield batch


class ReadTask(Task):
    """Rows of a source, in order; the late ones aside."""

    node: ReadNode

    def __init__(self, node: ReadNode, columns: set[str], options: Options) -> None:
        super().__init__(node)
        self.columns = [name for name in node.schema.names if name in columns]
        self.schema = pa.schema([node.schema.field(name) for name in self.columns])
        self.options = options
        self.reader: Reader | None = None
        self.order: SourceOrder | None = None
        if node.time is not None and node.domain is not None:
            self.order = SourceOrder(node.name, node.time, node.domain, node.delay, node.max_ahead)
        self.pending: pa.RecordBatch | None = None  # of a source whose batches are longer than `batch_rows`
        self.keeps_place = False  # where the next row stands in the source
        self.folder: str | None = None  # of a source that keeps files for itself
        self.places: list[tuple[int, Any]] = []  # where it stood at the checkpoints that may be gone on from
        self.place: Any = None  # a position in the source
        self.past = 0  # rows behind it that have been taken
        self.skip = 0  # rows that were taken before a restore, and are read again
        self.ended = False
        self.late_rows: pa.RecordBatch | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that wait for their turn in the source's own order."""
        return self.order.held_bytes if self.order else 0

    def open(self) -> None:
        """Begin to read, or go on at the place that was restored."""
        if not self.ended:
            where = () if self.place is None else (self.place,)  # who cannot go on need not know the word
            source = self.node.source
            more = {"folder": self.folder, "time": self.node.time} if getattr(source, "keeps_files", False) else {}
            self.reader = source.reader(self.columns, *where, **more)
            if self.keeps_place and self.place is None:
                self.place = self.reader.position()

    def snapshot(self) -> dict[str, Any]:
        """Also where it stands in the source, and rows that wait for their turn."""
        known = {**super().snapshot(), "ended": self.ended, "order": self.order.snapshot() if self.order else None}
        if not self.ended:
            assert self.reader is not None
            between = self.pending is None and self.skip == 0
            known["place"], known["past"] = (self.reader.position(), 0) if between else (self.place, self.past)
        return known

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from there; `open` comes later."""
        super().restore(known)
        self.ended, self.place = known["ended"], known.get("place")
        self.past = self.skip = known.get("past", 0)
        if self.order is not None:
            self.order.restore(known["order"])

    def announce(self, number: int) -> None:
        """A checkpoint is durable: those before the one before it will not be gone on from any more."""
        while len(self.places) > 1 and self.places[1][0] < number:
            del self.places[0]
        number_before, place = self.places[0] if self.places else (number, None)
        forget = getattr(self.reader, "forget", None)
        if forget is not None and number_before < number and place is not None:
            forget(place)

    def read(self) -> Batch | None:
        """Return the next batch, or None if the source has nothing now. Late rows are left in `late_rows`."""
        assert self.reader is not None and not self.ended
        while self.pending is None:
            if self.keeps_place and self.skip == 0:
                self.place, self.past = self.reader.position(), 0
            got = self.reader.read()
            if got is None:
                return None
            if got is END_OF_SOURCE:
                self.ended = True
                return self._count(self.order.end() if self.order else Batch(empty_batch(self.schema), None, END))
            assert isinstance(got, pa.RecordBatch)
            if got.num_rows == 0:
                return None  # as good as nothing: it neither ends a silence nor is worth another look at once
            again = min(self.skip, got.num_rows)
            self.skip -= again
            self.pending = self._wanted(got).slice(again) if again < got.num_rows else None
        data = self.pending.slice(0, self.options.batch_rows)
        rest = self.pending.num_rows - data.num_rows
        self.pending = self.pending.slice(data.num_rows) if rest else None
        self.past += data.num_rows
        self.rows_in += data.num_rows
        if self.order is None:
            return self._count(Batch(data, None, START))
        batch, late = self.order.take(data)
        if late is not None:
            self.late += late.num_rows
            self.late_rows = late
        return self._count(batch)

    def _wanted(self, got: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that are asked for; dictionaries with indices that a union of several fits."""
        if got.schema.names == self.columns and got.schema.types == self.schema.types:
            return got
        columns = [got.column(name).cast(self.schema.field(name).type) for name in self.columns]
        return record_batch(columns, self.schema, got.num_rows)

    def advance(self, floor: Watermark) -> Batch | None:
        """Let a silent source stop holding others back; see `SourceOrder.advance`."""
        assert self.order is not None
        batch = self.order.advance(floor)
        return self._count(batch) if batch is not None else None

    def _count(self, batch: Batch) -> Batch:
        if batch.data is None:
            batch = Batch(empty_batch(self.schema), batch.times, batch.watermark)
        self.rows_out += batch.num_rows
        self.watermark = batch.watermark
        return batch


class _Stateless(Task):
    def __init__(self, node: Node, step: "Filter | Compute | Map") -> None:
        super().__init__(node)
        self.step = step

    def process(self, port: int, batch: Batch) -> Iterator[Batch]:
        """Apply the step."""
        yield self.step(batch)


class Merging(Task):
    """What a union and a join share: inputs that wait for each other."""

    def __init__(self, node: Node, inputs: int) -> None:
        super().__init__(node)
        self.ended = [False] * inputs
        self.merger: Merger | None = None
        domains = [before.domain for before in node.inputs]
        if node.domain is not None and inputs > 1:
            self.merger = Merger([d for d in domains if d is not None], node.domain, node.label)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of rows that wait for another input."""
        return self.merger.held_bytes if self.merger else 0

    @property
    def held_bytes(self) -> int:
        """The same."""
        return self.waiting_bytes

    def snapshot(self) -> dict[str, Any]:
        """Also the rows that wait for another input."""
        return {**super().snapshot(), "ended": self.ended[:], "merger": self.merger.snapshot() if self.merger else None}

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from there."""
        super().restore(known)
        self.ended = list(known["ended"])
        if self.merger is not None:
            self.merger.restore(known["merger"])

    def mark(self, port: int, batch: Batch) -> Watermark:
        """Return the watermark of the output once this batch is done."""
        if self.merger is not None:
            return self.merger.watermark
        self.ended[port] = batch.watermark == END
        if self.node.domain is not None:
            return batch.watermark  # one input alone
        return END if all(self.ended) else START


class _Union(Merging):
    def __init__(self, node: UnionNode, columns: set[str]) -> None:
        super().__init__(node, len(node.inputs))
        self.schema = pa.schema([field for field in node.schema if field.name in columns])

    def process(self, port: int, batch: Batch) -> Iterator[Batch]:
        """Yield the rows whose turn has come."""
        columns = [batch.data.column(name) for name in self.schema.names]
        data = record_batch(columns, self.schema, batch.num_rows)
        if self.merger is None:
            yield Batch(data, None, self.mark(port, batch))
            return
        self.merger.put(port, Batch(data, batch.times, batch.watermark))
        steps = self.merger.release()
        mark = self.merger.watermark
        batches = [b for step in steps for b in step.batches]
        if not batches:
            yield Batch(data.slice(0, 0), np.empty(0, np.int64), mark)
            return
        times = np.concatenate([step.times for step in steps if step.times is not None])
        data = concat(batches)
        # Inputs stand in order behind one another, so that a stable sort keeps (input, position) among equal times.
        if np.any(times[1:] < times[:-1]):
            order = np.argsort(times, kind="stable")
            data, times = take_rows(data, order), times[order]
        yield Batch(data, times, mark)


class Fresh:
    """Rows of one side of a join that no checkpoint has yet."""

    def __init__(self, name: str, *, timed: bool) -> None:
        self.name, self.timed = name, timed
        self.end = 0  # the row behind the last one
        self.batches: deque[tuple[int, pa.RecordBatch, np.ndarray | None]] = deque()

    def add(self, step: Step, bound: int) -> None:
        """Add rows; those below a bound are wanted no more."""
        at = 0
        for batch in step.batches:
            if batch.num_rows:
                times = step.times[at : at + batch.num_rows] if self.timed and step.times is not None else None
                self.batches.append((self.end, batch, times))
                self.end += batch.num_rows
                at += batch.num_rows
        while self.batches and self.batches[0][0] + self.batches[0][1].num_rows <= bound:
            self.batches.popleft()

    def take(self, keep: int) -> Rows:
        """Hand them over."""
        self.add(Step((), None), keep)
        taken, self.batches = self.batches, deque()
        first = taken[0][0] if taken else self.end
        times = [times for _, _, times in taken if times is not None]
        return Rows(self.name, first, keep, [batch for _, batch, _ in taken], np.concatenate(times) if times else None)


SMALL_STEP = 1 << 15
"""Rows below which a step of a join costs more for being a step than for its rows: it waits for more of them."""

MET_ROWS = 1024
"""Rows of each side, at least, by which a join tells what it has to do."""


class JoinTask(Merging):
    """What a join here and one on several cells share: steps out of what comes in.

    A step costs about a millisecond, whatever is in it, so what comes is only taken, and is joined when as much can go
    on, or when every source has been read once: then `settle` is called. Without time, what comes is joined at once.
    """

    node: JoinNode

    def __init__(self, node: JoinNode) -> None:
        super().__init__(node, len(node.inputs))
        self.unmerged: list[list[Batch]] = [[], []]  # where nothing waits for another input
        self.fresh: dict[str, Fresh] | None = None  # with checkpoints: rows that none of these has
        self.nulls_before = 0  # of null keys, in rows before a restore
        self.taken = 0  # rows, since the last step
        self.due: Watermark = START  # what the next step promises

    @property
    def numbering(self) -> Numbering:
        """What numbers its rows."""
        raise NotImplementedError

    def keep_rows(self) -> None:
        """Keep new rows until a checkpoint has them."""
        timed = {side for side in SIDES if self.numbering.windows[side].kind == "time"}
        if timed and self.node.spec.self_join:
            timed.add("left")  # in which both sides are kept
        self.fresh = {side: Fresh(f"{self.node.name}: {side}", timed=side in timed) for side in self.sides}

    @property
    def sides(self) -> Sequence[str]:
        """The streams that it stores: one, if it is joined to itself."""
        return SIDES[:1] if self.node.spec.self_join else SIDES

    def note(self, steps: dict[str, Step]) -> None:
        """Remember new rows for the next checkpoint, before they are numbered."""
        if self.fresh is not None:
            for side, fresh in self.fresh.items():
                fresh.add(steps[side], self.numbering.bounds[side])

    def snapshot(self) -> dict[str, Any]:
        """Also the windows. Nothing may be under way."""
        assert self.fresh is not None
        numbering = self.numbering.snapshot()
        rows = {side: fresh.take(numbering["bounds"][side]) for side, fresh in self.fresh.items()}
        return {**super().snapshot(), "numbering": numbering, "rows": rows, "nulls": self.null_keys}

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from there: rows are numbered on, and indexes built anew from them."""
        super().restore(known)
        self.due = self.watermark
        rows: dict[str, Rows] = known["rows"]
        self.numbering.restore(known["numbering"], {side: (each.first, each.times) for side, each in rows.items()})
        self.nulls_before = known["nulls"]
        if self.fresh is not None:
            for side, fresh in self.fresh.items():
                fresh.end = rows[side].end
        self.rebuild(rows)

    def rebuild(self, rows: dict[str, Rows]) -> None:
        """Store rows again."""
        raise NotImplementedError

    def put(self, port: int, batch: Batch) -> None:
        """Take a batch of an input."""
        if self.merger is not None:
            self.merger.put(port, batch)
        elif batch.num_rows:
            self.unmerged[port].append(batch)
        self.taken += batch.num_rows
        self.due = max(self.due, self.mark(port, batch))

    @property
    def enough(self) -> bool:
        """Tell whether what was taken makes a step by itself, now: rows may have to wait for those of the other input.

        (When both bring a batch in turn, the first sets free a row of what had to wait. As a step of its own that cost
        as much as the next one with all of both batches.)
        """
        if self.taken < SMALL_STEP or self.merger is None:
            return self.taken >= SMALL_STEP or self.node.domain is None
        return self.merger.can_release(SMALL_STEP)

    @property
    def idle(self) -> bool:
        """Tell whether nothing is under way."""
        return not self.taken and self.due <= self.watermark

    def met(self) -> Load | None:
        """Return what it has had to do; None if too few rows have been answered to tell."""
        left, right = (self.numbering.rows[side] for side in SIDES)
        answered, pairs = self.answered()
        if min(left, right, answered) < MET_ROWS:
            return None
        held = self.numbering.most_held
        # A window that has forgotten nothing yet may grow to any size.
        return Load((left, right), pairs, (held["left"] or None, held["right"] or None), met=True)

    def answered(self) -> tuple[int, float]:
        """Return how many rows have found what they were to find, and how many pairs each."""
        raise NotImplementedError

    def settle(self) -> Iterator[Batch]:
        """Join what was taken, if it may be now; yield what leaves."""
        raise NotImplementedError

    def steps(self) -> list[Step]:
        """Return the new tuples of both sides whose turn has come."""
        if self.merger is not None:
            return self.merger.release()
        steps = [Step([b.data for b in side], self._times(side)) for side in self.unmerged]
        self.unmerged = [[], []]
        return steps

    def _times(self, batches: list[Batch]) -> np.ndarray | None:
        if self.node.domain is None:
            return None
        return np.concatenate([np.empty(0, np.int64), *(b.times for b in batches if b.times is not None)])


def wanted_of(node: JoinNode, columns: set[str]) -> dict[str, pa.Schema]:
    """Return what a join stores of each side, when these columns of its results are asked for."""
    found = {}
    for i, side in enumerate(SIDES[: len(node.inputs)]):
        wanted = asked_of_input(node, i, columns)
        found[side] = pa.schema([f for f in node.spec.schemas[side] if f.name in wanted])
    return {"left": found["left"], "right": found.get("right", found["left"])}


def narrowed(step: Step, schema: pa.Schema) -> Step:
    """Return a step with these columns alone."""
    names = schema.names
    return Step([b if b.schema.names == names else b.select(names) for b in step.batches], step.times)


REBUILD_ROWS = 1 << 18
"""Rows that are stored again at once: few enough that what is computed of them stays in a cache."""


def in_chunks(stored: Rows) -> Iterator[Rows]:
    """Yield rows, some at a time; at least once, if only to say that there are none."""
    begin, at, first = 0, stored.first, stored.first
    for end, batch in enumerate(stored.batches, 1):
        at += batch.num_rows
        if at - first >= REBUILD_ROWS or end == len(stored.batches):
            yield replace(stored, first=first, batches=stored.batches[begin:end], places=stored.places[begin:end])
            begin, first = end, at
    if not stored.batches:
        yield stored


class _Join(JoinTask):
    def __init__(self, node: JoinNode, columns: set[str], options: Options) -> None:
        super().__init__(node)
        self.driver = JoinDriver(node.spec, sorted(columns), options.out_rows)
        self.wanted = wanted_of(node, columns)

    @property
    def numbering(self) -> Numbering:
        """The driver's."""
        return self.driver.numbering

    @property
    def null_keys(self) -> int:
        """Of both sides."""
        return self.nulls_before + sum(self.driver.null_keys().values())

    @property
    def found_by(self) -> dict[str, str]:
        """The driver's."""
        return self.driver.cell.found_by()

    @property
    def held_bytes(self) -> int:
        """Bytes of the windows and of rows that wait."""
        return self.driver.nbytes + self.waiting_bytes

    def answered(self) -> tuple[int, float]:
        """All but those of a step that failed in its midst."""
        rows = sum(self.numbering.rows[side] for side in SIDES[: len(self.node.inputs)])
        return rows, self.rows_out / max(1, rows)

    def process(self, port: int, batch: Batch) -> Iterator[Batch]:
        """Take rows in; join them, if they are many."""
        self.put(port, batch)
        if self.enough:
            yield from self._step()

    def settle(self) -> Iterator[Batch]:
        """Join the rows whose turn has come."""
        return self.counted(self._step()) if not self.idle else iter(())

    def _step(self) -> Iterator[Batch]:
        left, right = self.steps()
        mark, self.taken = self.due, 0
        self.note({"left": narrowed(left, self.wanted["left"]), "right": narrowed(right, self.wanted["right"])})
        if left.rows or right.rows:
            for data, times in self.driver.step(left, right):
                yield Batch(data, times, self.watermark)
        if isinstance(mark, int):
            self.driver.advance(mark)
        if mark > self.watermark:
            times = None if self.node.domain is None else np.empty(0, np.int64)
            yield Batch(empty_batch(self.driver.schema), times, mark)

    def rebuild(self, rows: dict[str, Rows]) -> None:
        """Store rows again: both sides at once, as most of it is building their indexes, which needs no interpreter."""
        with ThreadPoolExecutor(len(rows)) as threads:
            list(threads.map(self._rebuild, rows.items()))
        self.driver.cell.expire(self.numbering.bounds)

    def _rebuild(self, of: tuple[str, Rows]) -> None:
        side, rows = of
        for some in in_chunks(rows):
            self.driver.cell.rebuild(side, some.first, some.batches)
        self.driver.cell.rebuilt(side)


class _Window(Task):
    def __init__(self, node: WindowNode, columns: set[str]) -> None:
        super().__init__(node)
        assert node.domain is not None
        made = {name: each for name, each in node.made.items() if name in columns}
        before = node.inputs[0].schema
        self.windowed = Windowed(node.keys, node.stretch, made, before, node.domain, node.label)
        self.kept = [name for name in self.windowed.schema.names if name in columns]
        self.schema = pa.schema([self.windowed.schema.field(name) for name in self.kept])

    @property
    def held_bytes(self) -> int:
        """Bytes of the windows that are open."""
        return self.windowed.nbytes

    def snapshot(self) -> dict[str, Any]:
        """Also the windows that are open."""
        return {**super().snapshot(), "windowed": self.windowed.snapshot()}

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from there."""
        super().restore(known)
        self.windowed.restore(known["windowed"])

    def process(self, port: int, batch: Batch) -> Iterator[Batch]:
        """Yield the windows that are complete."""
        found = self.windowed.take(batch)
        if found is not None:
            data, times = found
            columns = [data.column(name) for name in self.kept]
            yield Batch(record_batch(columns, self.schema, len(times)), times, batch.watermark)
        elif batch.watermark > self.watermark:
            yield Batch(empty_batch(self.schema), np.empty(0, np.int64), batch.watermark)


class _Process(Task):
    def __init__(self, node: ProcessNode) -> None:
        super().__init__(node)
        self.machine = node.operator.machine(node.schema, node.domain, node.label)

    @property
    def held_bytes(self) -> int:
        """Bytes of the timers."""
        return self.machine.nbytes

    def snapshot(self) -> dict[str, Any]:
        """Also what the operator says that it remembers."""
        return {**super().snapshot(), "machine": self.machine.snapshot()}

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from there."""
        super().restore(known)
        self.machine.restore(known["machine"])

    def process(self, port: int, batch: Batch) -> Iterator[Batch]:
        """Yield what the operator makes of the rows, and of timers that are due."""
        for data, times in self.machine.take(batch):
            yield Batch(data, times, self.watermark)
        if batch.watermark > self.watermark:
            times = None if batch.times is None else np.empty(0, np.int64)
            yield Batch(empty_batch(self.machine.schema), times, batch.watermark)


EPOCH_ROWS = 1_000_000
"""Without checkpoints a sink shows what it was given at the latest after so many rows: what it has staged may stand in
memory."""

EPOCH_BYTES = 256 << 20
"""With checkpoints one begins at the latest when so much of what sinks have staged stands in memory."""


class SinkTask(Task):
    """Rows into a sink, in epochs.

    Without checkpoints an epoch ends when `commit` is called. With them it is what comes between two of them: `prepare`
    ends it, and `announce` commits it once the checkpoint is durable.
    """

    node: WriteNode

    def __init__(self, node: WriteNode) -> None:
        super().__init__(node)
        self.writer: Writer | None = None
        self.lineage = ""
        self.epoch = self.part = self.staged = self.staged_bytes = 0
        self.outlives = False  # with checkpoints
        self.known: Any = None  # what the writer is to go on from
        self.schema: pa.Schema | None = None
        # What is staged, and not committed, and not kept by the sink.
        self.pending: deque[tuple[int, int, pa.RecordBatch]] = deque()

    def open(self, schema: pa.Schema | None, lineage: str) -> None:
        """Open the sink; without a schema yet, with the first rows."""
        self.lineage = lineage
        self.schema = schema if schema is not None else self.schema
        if self.schema is not None:
            known = (self.known,) if self.outlives else ()
            self.writer = self.node.sink.writer(self.schema, lineage, *known)
            for epoch, part, batch in self.pending:
                self.writer.stage(batch, epoch, part)

    def check_go_on(self, number: int, *, shown: int | None) -> None:
        """Raise if the sink cannot go on behind a checkpoint; nothing is changed."""
        if self.writer is not None and hasattr(self.writer, "check_rewind"):
            self.writer.check_rewind(number, shown)

    def go_on(self, number: int, epoch: int, *, shown: int | None) -> None:
        """Go on behind a checkpoint, with an epoch: commit what it has; what was shown after it is taken back.

        `shown`: the last epoch that may have been shown; None: nobody knows.
        """
        self.epoch = epoch
        if self.writer is not None and hasattr(self.writer, "rewind"):
            self.writer.rewind(number, shown)
        self.announce(number)

    def process(self, port: int, batch: Batch) -> Iterator[Batch]:
        """Stage the rows. Nothing leaves a sink."""
        if batch.num_rows:
            if self.writer is None:
                self.node.sink.check(batch.data.schema)
                self.open(batch.data.schema, self.lineage)
            assert self.writer is not None
            self.writer.stage(batch.data, self.epoch, self.part)
            if not getattr(self.writer, "stages_elsewhere", False):
                self.staged_bytes += batch.data.nbytes
            if self.outlives and not hasattr(self.writer, "prepare"):
                self.pending.append((self.epoch, self.part, batch.data))
            self.part += 1
            self.staged += batch.num_rows
            if self.staged >= EPOCH_ROWS and not self.outlives:
                self.commit()
        self.watermark = batch.watermark
        return iter(())

    def commit(self, *, last: bool = False) -> None:
        """Show what was staged; the last time also if nothing was."""
        if last and self.writer is None:
            self.open(pa.schema([]), self.lineage)  # no row ever came to tell a schema
        if self.writer is not None and (self.part or last):
            self.writer.commit(self.epoch)
            self.epoch, self.part, self.staged = self.epoch + 1, 0, 0

    def prepare(self, number: int) -> tuple[dict[str, Any], list[str]]:
        """End the epoch of a checkpoint; return what that must know, and the files that must be durable for it."""
        known, files = self.known, []
        if self.writer is not None and hasattr(self.writer, "prepare"):
            known, files = self.writer.prepare(number)
            known = replaced(known, Rows, lambda rows: replace(rows, name=f"{self.node.name}: {rows.name}"))
        schema = None if self.schema is None else empty_batch(self.schema)
        self.epoch, self.part, self.staged, self.staged_bytes = number + 1, 0, 0, 0
        return {**self.snapshot(), "schema": schema, "writer": known, "pending": list(self.pending)}, files

    def announce(self, number: int) -> None:
        """A checkpoint is durable: show what was staged up to it."""
        if self.writer is not None:
            self.writer.commit(number)
        while self.pending and self.pending[0][0] <= number:
            self.pending.popleft()

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from there; `open` comes later."""
        super().restore(known)
        self.known = known["writer"]
        self.schema = None if known["schema"] is None else known["schema"].schema
        self.pending = deque((epoch, part, batch) for epoch, part, batch in known["pending"])


def make_task(node: Node, columns: set[str], options: Options) -> Task:
    """Make the running half of a node, in this process; `columns` of it are asked for."""
    if isinstance(node, ReadNode):
        return ReadTask(node, columns, options)
    if isinstance(node, FilterNode):
        return _Stateless(node, Filter(node.predicate))
    if isinstance(node, ComputeNode):
        schema = pa.schema([field for field in node.schema if field.name in columns])
        return _Stateless(node, Compute(schema, {f.name: node.columns[f.name] for f in schema}, node.label))
    if isinstance(node, MapNode):
        return _Stateless(node, _map_step(node))
    if isinstance(node, UnionNode):
        return _Union(node, columns)
    if isinstance(node, JoinNode):
        return _Join(node, columns, options)
    if isinstance(node, WindowNode):
        return _Window(node, columns)
    if isinstance(node, ProcessNode):
        return _Process(node)
    if isinstance(node, WriteNode):
        return SinkTask(node)
    assert isinstance(node, LateNode)
    return Task(node)  # late rows are handed on as they are


def _map_step(node: MapNode) -> Map:
    return Map(node.fn, node.schema if node.known else None, node.time, node.domain, node.label)


def say_where(error: DovetailError, node: Node) -> None:
    """Make an error say which step it was, if it does not yet."""
    text = str(error)
    if node.label not in text and f"{node.name!r}" not in text:
        error.args = (f"{node.label}: {text}", *error.args[1:])
