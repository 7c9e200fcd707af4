"""The side of a run that has workers: it hands steps out, takes answers, and notices who is gone or silent.

The shell around `Head` (parallel.py): what is said to workers is here, decisions are there, and how workers come to be
is in processes.py. One `Workers` serves all joins of a run; worker i has cell i of each.

A death is an end: every wait of this side also waits for the workers' processes, so that a worker that is gone is seen
at once, whatever was going on; and one that is stopped, stuck or cut off is noticed by its silence (watch.py).
"""

__all__ = ["ParallelJoin", "Workers"]

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import zmq

from .. import errors
from ..batch import START, Batch, Watermark
from ..config import Options
from ..disk import Place
from ..errors import DovetailError, TransportError, WorkerError
from ..operators.access import output_fields
from ..operators.contracts import Rows
from ..operators.layouts import Layout
from ..operators.numbering import Numbering
from ..transport import INLINE, Block, Channel
from . import codec, worker
from .graph import JoinNode
from .parallel import Done, Head, Slice, StepMessage
from .processes import Launcher
from .tasks import SMALL_STEP, JoinTask, in_chunks, narrowed, wanted_of
from .watch import Watch

STEPS_UNDER_WAY = 4
"""Steps that the cells of a join may have before them: enough that none waits for the head, few enough that what waits
to be put in order stays small."""

LOOK_SECONDS = 0.25
"""Seconds between two looks at how the workers are."""

START_SECONDS = 60.0
"""How long a worker may take to come up: long enough for a machine that starts many at once from a cold disk."""


def steps_before(rows: int, batch_rows: int) -> int:
    """Return how many steps the cells should have before them, at most, if the last one has so many rows.

    >>> steps_before(1000, 1 << 16), steps_before(SMALL_STEP, 1 << 16), steps_before(1 << 16, 1 << 16)
    (1, 2, 4)
    """
    if rows < SMALL_STEP:
        return 1
    return 2 if rows < batch_rows else STEPS_UNDER_WAY


class Workers:
    """Workers, started and stopped together.

    `job` and `generation` tell the messages of this attempt from all others.
    """

    def __init__(
        self, count: int, options: Options, launcher: Launcher, *, job: int = 0, generation: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.count, self.options, self.launcher, self.clock = count, options, launcher, clock
        self.job, self.generation = job, generation
        self.joins: list[ParallelJoin] = []
        self.here: set[int] = set()  # workers that have come up
        self.flushed = 0  # workers that have answered the last `_flush`
        self.watch = Watch(count, options.silence_seconds)
        self.looked = 0.0

    def start(self, joins: "Sequence[ParallelJoin]") -> None:
        """Start the workers, which takes them some time; `greet` waits for them."""
        self.joins = list(joins)
        self.launcher.start([join.part() for join in joins], job=self.job, generation=self.generation)
        self.arena = self.launcher.arena

    def greet(self) -> None:
        """Return when all workers are there."""
        until = self.clock() + START_SECONDS
        while missing := set(range(self.count)) - self.here:
            if not self.wait(1.0) and self.clock() >= until:
                raise WorkerError(
                    f"{self.launcher.name(min(missing))} did not come up in {START_SECONDS:.0f} s; "
                    "the machine may be too busy: run with fewer workers"
                )
            self.pump()

    def wait(self, seconds: float) -> bool:
        """Wait for a message of any worker; raise if one has died. Return whether there is a message."""
        if self.launcher.wait(seconds):
            return True
        if (number := self.launcher.dead()) is not None:
            self._died(number)
        self._look()
        return False

    def _look(self) -> None:
        """Ask those that are silent whether they are there, and raise if one has been for too long."""
        now = self.clock()
        if now - self.looked < LOOK_SECONDS or len(self.here) < self.count:
            return
        self.looked = now
        ask, silent = self.watch.look(now, self.launcher.beats())
        for number, how in silent:
            self.launcher.kill(number)
            raise WorkerError(f"{self.launcher.name(number)} {how}; it was killed")
        for number in ask:
            with self._still_there(number) as channel:
                channel.send(codec.ASK, {})

    def deal(self, join: int, message: StepMessage, places: Sequence[Place] = ()) -> None:
        """Send a step to all cells; what it holds is written once.

        `places`: where its batches stand already, in files. Cells read them there, if they are on this machine.
        """
        there = [place if self.arena is not None and place.size > INLINE else None for place in places]
        kind, meta, parts = self.joins[join].codec.encode(message, there)
        # If no earlier step is before the cells, nothing that is under way will make room.
        alone = all(each.head.answered(message.number if each.number == join else None) for each in self.joins)
        stored = [part if isinstance(part, Place) else self._store(part, join, alone) for part in parts]
        for number in range(self.count):
            with self._still_there(number) as channel:
                channel.send(kind, {**meta, "join": join}, stored)

    @property
    def busy(self) -> bool:
        """Tell whether some cell has something before it."""
        return any(join.head.unanswered for join in self.joins)

    @property
    def short(self) -> bool:
        """Tell whether so much of the arena is in use that nothing should be read before the cells have gone on."""
        if self.arena is None or self.arena.held <= 0.8 * self.options.arena_bytes:
            return False
        return not all(join.idle for join in self.joins)

    def _store(self, part: Any, join: int, alone: bool) -> Any:
        channel = self.launcher.channels[0]
        stored = channel.store(part, self.count)
        if self.arena is None or not alone or isinstance(stored, Block) or len(stored) <= INLINE:
            return stored  # what finds no room now travels inside its message
        self._flush()  # nothing is before the cells, but word of what they have finished with may be on its way
        stored = channel.store(part, self.count)
        if isinstance(stored, Block):
            return stored
        label, limit, held = self.joins[join].node.label, self.options.arena_bytes, self.arena.held
        if self.arena.refused:
            raise TransportError(
                f"{label}: its windows and a step of rows do not fit the shared memory of this machine: "
                f"{self.arena.size:,} bytes could be had ({held:,} are held), and {self.arena.folder.parent} is full; "
                "make /dev/shm larger (mount -o remount,size=…, or --shm-size of a container), take less at a time "
                "(batch_rows=…), make the window smaller, or run with workers=1"
            )
        raise TransportError(
            f"{label}: its windows and a step of rows do not fit the {limit:,} bytes of shared memory that a run may "
            f"use ({held:,} are held); allow more with dt.Options(arena_bytes=…), take less at a time (batch_rows=…), "
            "make the window smaller, or run with workers=1"
        )

    def _flush(self) -> None:
        """Have every worker give back what it has finished with."""
        for number in range(self.count):
            with self._still_there(number) as channel:
                channel.send(codec.FLUSH, {})
        self.flushed = 0
        while self.flushed < self.count:
            self.wait(1.0)
            self.pump()

    def pump(self) -> bool:
        """Take every message that has come; return whether there was one."""
        some = False
        for number, channel in enumerate(self.launcher.channels):
            while (message := channel.receive()) is not None:
                some = True
                self.watch.heard(number)
                if message.kind == codec.ERROR:
                    self._raise(number, message.meta)
                if message.kind == codec.HELLO:
                    self.here.add(number)
                self.flushed += message.kind == codec.FREED and "flushed" in message.meta
                if message.kind not in (codec.SLICE, codec.DONE):
                    continue
                join = self.joins[message.meta["join"]]
                read = join.codec.decode(message.kind, message.meta, message.parts)
                assert isinstance(read, Slice | Done)
                join.head.take(number, read)
        return some

    def acknowledge(self, join: int) -> None:
        """Let the cells of a join go on: what they sent has been handed on."""
        for number, count in enumerate(self.joins[join].head.collector.handed_on()):
            if not count and not self.launcher.channels[number].owes:
                continue
            with self._still_there(number) as channel:
                if count:
                    channel.send(codec.ACK, {"slices": [(join, count)]})
                else:
                    channel.give_back(codec.FREED)

    @contextlib.contextmanager
    def _still_there(self, number: int) -> Iterator[Channel]:
        """Lend a worker's channel for sending. If nobody is there to receive, tell why."""
        try:
            yield self.launcher.channels[number]
        except TransportError:
            self._raise_what_it_said(number)
            if self.launcher.gone(number):
                self._died(number)
            raise

    def stop(self, *, kill: bool = False) -> None:
        """Stop the workers, and remove what the run left in memory."""
        if not kill:
            for channel in self.launcher.channels:
                with contextlib.suppress(zmq.ZMQError, TransportError):
                    channel.send(codec.STOP, {})
        said = self.launcher.stop(kill=kill)
        if not kill:
            sys.stderr.write("".join(line + "\n" for line in said))

    def _died(self, number: int) -> None:
        self._raise_what_it_said(number)
        error = WorkerError(f"{self.launcher.name(number)} {self.launcher.obituary(number)}")
        error.killed = self.launcher.was_killed(number)
        raise error

    def _raise_what_it_said(self, number: int) -> None:
        while (message := self.launcher.channels[number].receive()) is not None:
            if message.kind == codec.ERROR:
                self._raise(number, message.meta)

    def _raise(self, number: int, meta: dict[str, Any]) -> None:
        kind = getattr(errors, meta["type"], None)
        text = meta["text"] if kind is not None else f"{meta['type']}: {meta['text']}"
        if meta["join"] is not None and self.joins[meta["join"]].node.label not in text:
            text = f"{self.joins[meta['join']].node.label}: {text}"
        error: DovetailError = (kind or DovetailError)(text)
        for note in meta["notes"]:
            error.add_note(note)
        error.add_note(f"It happened in worker {number}" + (f":\n{meta['traceback']}" if meta["traceback"] else ""))
        raise error


class ParallelJoin(JoinTask):
    """A join whose cells are in other processes. What it takes is dealt out; `collect` yields what has come back."""

    def __init__(self, node: JoinNode, columns: set[str], options: Options, layout: Layout) -> None:
        super().__init__(node)
        self.columns, self.layout = sorted(columns), layout
        self.schema = pa.schema([f for _, _, f in output_fields(node.spec) if f.name in columns])
        self.inputs = wanted_of(node, columns)
        self.codec = codec.Codec(self.inputs, self.schema)
        self.head = Head(node.spec, self.schema, options.out_rows, layout, STEPS_UNDER_WAY)
        self.workers: Workers | None = None
        self.number = 0
        self.stored: dict[str, Rows] = {}  # before a restore, for the cells to store again
        self.last_rows, self.batch_rows = 0, options.batch_rows  # of the last step; of a batch, at most
        self.promised: Watermark = START

    @property
    def numbering(self) -> Numbering:
        """The head's."""
        return self.head.numbering

    def part(self) -> worker.JoinPart:
        """Return what a worker must know."""
        return worker.JoinPart(self.node.spec, self.columns, self.layout, self.inputs)

    @property
    def full(self) -> bool:
        """Tell whether it should not be given more now.

        While the cells have a small step before them, what comes meanwhile had better wait in its source, and be
        taken all at once when they have answered: steps are fewer, and their rows fresh. As much comes in the time of
        a long step, so that a run which was held up for a moment would go on in such steps, one behind the other, for
        ever; only those of a whole batch are all there at once.
        """
        return self.head.full or self.head.unanswered >= steps_before(self.last_rows, self.batch_rows)

    @property
    def idle(self) -> bool:
        """Tell whether nothing is under way."""
        return self.head.idle and not self.taken and self.due <= self.promised

    @property
    def null_keys(self) -> int:
        """Rows with a null or NaN in a key."""
        return self.nulls_before + self.head.null_keys

    @property
    def found_by(self) -> dict[str, str]:
        """What the first cell says; the others decide for themselves, by the same rule."""
        return self.head.found_by

    def answered(self) -> tuple[int, float]:
        """Of the last steps whose answers are all there."""
        return self.head.matches_rows, self.head.matches

    @property
    def spread(self) -> str:
        """The layout."""
        return f"{self.layout.describe()}: {self.layout.why}"

    def snapshot(self) -> dict[str, Any]:
        """Also the keys by which ranges were cut. Nothing may be under way."""
        return {**super().snapshot(), "sample": self.head.sample()}

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from there; `open` comes later, when there are workers."""
        super().restore(known)
        self.head.cut(known.get("sample"), {side: each.batches for side, each in self.stored.items()})
        self.promised = self.head.watermark = self.watermark

    def rebuild(self, rows: dict[str, Rows]) -> None:
        """Have the cells store rows again, once there are workers."""
        self.stored = rows

    def open(self, workers: Workers, number: int) -> None:
        """Begin, on workers that are there."""
        self.workers, self.number = workers, number
        stored, self.stored = self.stored, {}
        for side, each in stored.items():
            for some in in_chunks(each):
                for _ in self._results_until(lambda: not self.head.full):
                    raise AssertionError("there are no results in rows that were stored before")
                message = self.head.deal_again(side, some.first, some.batches)
                self.workers.deal(self.number, message, some.places)
        if stored:
            self.workers.deal(self.number, self.head.dealt_again())
        for _ in self._results_until(lambda: self.head.idle):
            raise AssertionError("there are no results in rows that were stored before")

    @property
    def held_bytes(self) -> int:
        """Bytes that the cells hold for themselves, and of rows that wait.

        The windows' rows are in the arena, or in the files of the checkpoint that the run went on from.
        """
        return sum(self.head.cell_bytes) + self.head.numbering.nbytes + self.waiting_bytes

    def process(self, port: int, batch: Batch) -> Iterator[Batch]:
        """Take rows in; deal them out if they are many.

        The run reads no sources while a join is full; but what another join hands on comes anyway. Then results go out
        first, until there is room: the cells of this join wait for nobody. Without time, what is taken first stands
        first, so that results go out before anything else can be taken: as in one process, whatever steps are behind.
        """
        assert self.workers is not None
        yield from self._results_until(lambda: not self.head.full)
        self.put(port, batch)
        if self.enough:
            self._deal()
        if self.node.domain is None:
            yield from self._results_until(lambda: self.head.idle)

    def settle(self) -> Iterator[Batch]:
        """Deal out what was taken, unless the cells have a step before them; what they find comes by `collect`."""
        if self.head.answered():
            self._deal()
        return iter(())

    def _deal(self) -> None:
        if not self.taken and self.due <= self.promised:
            return
        assert self.workers is not None
        self.taken = 0
        left, right = self.steps()
        if left.rows or right.rows or self.due > self.promised:
            self.promised, self.last_rows = self.due, left.rows + right.rows
            steps = {"left": narrowed(left, self.inputs["left"])}
            steps["right"] = steps["left"] if self.node.spec.self_join else narrowed(right, self.inputs["right"])
            self.note(steps)
            self.workers.deal(self.number, self.head.deal(steps, self.due))

    def collect(self) -> Iterator[Batch]:
        """Yield what may go on, and count it."""
        for batch in self._results():
            self.rows_out += batch.num_rows
            self.watermark = batch.watermark
            yield batch

    def _results_until(self, enough: Callable[[], bool]) -> Iterator[Batch]:
        assert self.workers is not None
        while not enough():
            yield from self._results()
            if not enough():
                self.workers.wait(1.0)
                self.workers.pump()

    def _results(self) -> Iterator[Batch]:
        assert self.workers is not None
        for data, times, mark in self.head.results():
            yield Batch(data, times, mark)
        self.workers.acknowledge(self.number)
