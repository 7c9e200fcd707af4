"""A run: read a batch, hand it through the graph, again, until the sources end.

What is read next is decided in reading.py, when a checkpoint is due and whether a failed attempt is followed by another
in coordinator.py; here it is carried out. A *run* may take several *attempts*: each begins where the last checkpoint
stands, with tasks made anew (`Runner`); one that is to go on with another number of workers ends as if it had failed.

Everything that surrounds a run is in `Around` (clock, workers), so that tests can run the same code in a world of their
own, in which time is virtual and anything may be lost.
"""

__all__ = ["Around", "Runner", "run"]

import contextlib
import gc
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pyarrow as pa

from ..batch import END, START, Batch
from ..config import Options
from ..errors import CheckpointError, DovetailError, FlowError, TransportError, WorkerError
from ..monitoring import Status
from ..operators.spread import Load
from ..transport import free_bytes
from .cells import ParallelJoin, Workers
from .control import Mailbox, Question
from .graph import JoinNode, LateNode, MapNode, Node, WriteNode, reachable
from .keeper import Keeper, new_lineage
from .physical import check_count, check_memory, layout_of
from .plan import needed_columns, source_groups
from .processes import Processes
from .reading import SourceState, due_in, idle_floor, next_source
from .result import Result, StepReport
from .tasks import EPOCH_BYTES, JoinTask, ReadTask, SinkTask, Task, make_task, say_where
from .trail import ALL, Trail

PROGRESS_SECONDS = 0.5

FEW_ROWS, FEW_SECONDS = 4096, 0.002
"""Where a round of all sources brings fewer rows than that, and the workers have something to do, more had better come
until one of them says something, or so long: to read a few rows costs as much as to read many, and the core that it
takes may be a worker's."""


class Around:
    """What a run has around it."""

    clock: Callable[[], float] = staticmethod(time.monotonic)
    pause: Callable[[float], None] = staticmethod(time.sleep)
    launch: Callable[[int, Options], Any] = Processes

    def settle(self) -> None:
        """An attempt is over: what it held goes before the next one asks for as much.

        Tasks and arenas refer to one another, so that only the collector finds that nobody else does.
        """
        gc.collect()


class _Stopped(Exception):
    """Somebody asked the run to stop: no error, but the way out of the middle of a step."""


class _Rescaled(Exception):
    """The run is to go on with another number of workers."""

    def __init__(self, workers: int, answer: "Future[Any]") -> None:
        self.workers, self.answer = workers, answer


class _Interrupt:
    """Ctrl-C, or SIGTERM, asks the run to stop between two batches; a second one stops it wherever it is."""

    def __init__(self, tell: bool) -> None:
        self.asked, self.tell = False, tell
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "_Interrupt":
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self.tell:
            sys.stderr.write("\nstopping after this batch; Ctrl-C again to stop at once\n")


class _Told:
    """Makes every error of a step's own say which step it was. A class, as it is entered for every batch."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        if isinstance(error, DovetailError):
            say_where(error, self.node)
        elif isinstance(error, pa.ArrowException | MemoryError | OverflowError):
            raise DovetailError(f"{self.node.label}: {type(error).__name__}: {error}") from error


@dataclass
class _Graph:
    """Tasks, and where each one's batches go."""

    tasks: list[Task]
    consumers: dict[int, list[tuple[Task, int]]] = field(default_factory=dict)
    late: dict[int, list[tuple[Task, int]]] = field(default_factory=dict)
    tick: Callable[[], None] = lambda: None  # called between any two batches, also in the middle of a step

    @classmethod
    def of(cls, sinks: Sequence[WriteNode], options: Options, workers: int, met: Mapping[str, Load]) -> "_Graph":
        needed = needed_columns(sinks)
        nodes = reachable(list(sinks))

        def task_of(node: Node) -> Task:
            if workers and isinstance(node, JoinNode) and node.on_workers:
                layout = layout_of(node, workers, met.get(node.name))
                return ParallelJoin(node, needed[id(node)], options, layout)
            return make_task(node, needed[id(node)], options)

        by_node = {id(node): task_of(node) for node in nodes}
        graph = cls(list(by_node.values()))
        for node in nodes:
            for port, before in enumerate(node.inputs):
                table = graph.late if isinstance(node, LateNode) else graph.consumers
                table.setdefault(id(by_node[id(before)]), []).append((by_node[id(node)], port))
        return graph

    def push(self, task: Task, batch: Batch) -> None:
        """Hand a batch to everything behind a task, depth first: each result goes on before the next is made."""
        for consumer, port in self.consumers.get(id(task), ()):
            for out in self._take(consumer, port, batch):
                self.push(consumer, out)
                self.tick()

    def push_late(self, task: ReadTask, batch: Batch) -> None:
        """Hand on late rows (and the end) of a source to who asked for them."""
        for consumer, port in self.late.get(id(task), ()):
            for out in self._take(consumer, port, batch):
                self.push(consumer, out)

    @staticmethod
    def _take(task: Task, port: int, batch: Batch) -> Iterator[Batch]:
        with _Told(task.node):
            yield from task.take(port, batch)


class Runner:
    """One run. `round` reads a batch of each source whose turn it is, so that tests can look between two of them."""

    def __init__(
        self, name: str, sinks: Sequence[WriteNode], options: Options, every: float,
        progress: Callable[[Status], None] | None = None, workers: int = 0, keeper: Keeper | None = None,
        mailbox: Mailbox | None = None, around: Around | None = None, met: Mapping[str, Load] | None = None,
    ) -> None:  # fmt: skip
        """`workers`: worker processes; 0: joins are done here. `keeper`: makes checkpoints, if there are to be any.

        `met`: what joins had to do in the attempt before, by name.
        """
        self.around = around = Around() if around is None else around
        self.name, self.sink_nodes, self.options, self.every, self.progress = name, sinks, options, every, progress
        self.clock, self.mailbox, self.keeper = around.clock, mailbox or Mailbox(), keeper
        self.lineage = keeper.lineage if keeper is not None else new_lineage(name)
        self.graph = _Graph.of(sinks, options, workers, met or {})
        self.joins = [task for task in self.graph.tasks if isinstance(task, JoinTask)]
        self.parallel = [task for task in self.joins if isinstance(task, ParallelJoin)]
        self.check_workers(workers)
        self.workers: Workers | None = None
        if self.parallel:
            self.workers = Workers(
                workers, options, around.launch(workers, options), clock=self.clock,
                job=zlib.crc32(self.lineage.encode()) if keeper is None else keeper.incarnation,
                generation=0 if keeper is None else keeper.coordinator.generation,
            )  # fmt: skip
        self.graph.tick = self.tick
        self.interrupted: Callable[[], bool] = lambda: False
        self.opened = False
        self.moved = False  # off where it began: before that there is nothing to make a checkpoint of
        self.stopping: Question | None = None
        reads = {id(task.node): SourceState(task) for task in self.graph.tasks if isinstance(task, ReadTask)}
        self.groups = [[reads[id(node)] for node in group] for group in source_groups(sinks)]
        self.sinks = [task for task in self.graph.tasks if isinstance(task, SinkTask)]
        self.trail = Trail() if keeper is None else keeper.trail
        if keeper is not None:
            self._remember(keeper)
        self.started = self.committed = self.shown = self.clock()

    def _remember(self, keeper: Keeper) -> None:
        """Have all steps keep what a checkpoint wants to know."""
        for task in self.graph.tasks:
            if isinstance(task, JoinTask):
                task.keep_rows()
            elif isinstance(task, ReadTask):
                task.keeps_place = True
                if getattr(task.node.source, "keeps_files", False):
                    task.folder = keeper.checkpoints.folder_of(task.node.name)
            elif isinstance(task, SinkTask):
                task.outlives, task.known = True, {}

    def check_workers(self, workers: int) -> None:
        """Raise if the joins cannot be spread over so many workers."""
        nodes = [task.node for task in self.graph.tasks if isinstance(task.node, JoinNode) and task.node.on_workers]
        if workers and nodes:
            for node in nodes:
                layout_of(node, workers)
            check_memory(nodes, needed_columns(self.sink_nodes), free_bytes(), self.options)

    def open(self) -> None:
        """Open every source and sink, and start the workers; go on from the last checkpoint, if there is one."""
        if self.workers is not None:
            self.workers.start(self.parallel)  # they come up while the checkpoint is read
        number, known = self.keeper.load() if self.keeper is not None else (None, {})
        if self.workers is not None:
            self.workers.greet()
        for task in self.graph.tasks:
            with _Told(task.node):
                if known:
                    task.restore(known[task.node.name])
                if isinstance(task, ReadTask):
                    task.open()
                elif isinstance(task, SinkTask):
                    self._open_sink(task)
        for at, join in enumerate(self.parallel):
            with _Told(join.node):
                assert self.workers is not None
                join.open(self.workers, at)
        for state in self._sources():
            state.begin(self.clock())
        self._go_on(number)
        self.trail.begin(number, self._rows_of_sources())
        if self.keeper is not None and number is None:
            self.checkpoint()
        self.opened = True

    def _open_sink(self, task: SinkTask) -> None:
        if self.keeper is not None and self.keeper.checkpoints.told:
            task.pending.clear()
        before = task.node.inputs[0]
        has_schema = not isinstance(before, MapNode) or before.known
        task.open(task.node.schema if has_schema else None, self.lineage)

    def _go_on(self, number: int | None) -> None:
        """Have the sinks go on behind a checkpoint: all of them, or none if one cannot."""
        if self.keeper is None or number is None:
            return
        for task in self.sinks:
            with _Told(task.node):
                task.check_go_on(number, shown=self.keeper.shown)
        for task in self.sinks:
            with _Told(task.node):
                task.go_on(number, self.keeper.coordinator.next, shown=self.keeper.shown)

    def finished(self) -> bool:
        """Tell whether every source has ended, and nothing is under way."""
        return all(state.task.ended for state in self._sources()) and all(join.idle for join in self.joins)

    def delivered(self) -> bool:
        """Tell whether every sink was given all there is: sources may have ended in the middle of a last long step."""
        return all(task.watermark == END for task in self.sinks)

    def round(self) -> bool:
        """Read one batch from each group; return False if there was nothing anywhere."""
        while (question := self.mailbox.next()) is not None:
            self._answer(question)
        if self.workers is not None:
            self._collect()
            if self.workers.short or any(join.full for join in self.parallel):
                self.workers.wait(self.options.poll_seconds)
                self.tick()
                return True
        before = self._rows_in()
        worked = [self._read_turn(group) for group in self.groups]
        self._settle()
        self.tick()
        if self.keeper is not None:
            self._keep(self.keeper)
        if self.workers is not None and self.workers.busy and 0 < self._rows_in() - before < FEW_ROWS:
            self.workers.wait(FEW_SECONDS)
        return any(worked)

    def _answer(self, question: Question) -> None:
        """Do what somebody asks. What cannot be done is told to who asked, and the run goes on."""
        verb, argument, answer = question.verb, question.argument, question.answer
        try:
            if verb == "status":
                answer.set_result(self.status())
                return
            try:
                self._check(verb, argument)
            except DovetailError as error:
                answer.set_exception(error)
                return
            if verb == "stop":
                self.stopping = question
                raise _Stopped
            self.checkpoint()
            if verb == "rescale":
                raise _Rescaled(argument, answer)
            self.leave_savepoint(question)
        except (_Stopped, _Rescaled):
            raise
        except BaseException as error:
            answer.set_exception(error)  # nobody else will answer
            raise

    def _check(self, verb: str, argument: Any) -> None:
        """Raise if something cannot be done."""
        if self.keeper is None and (verb != "stop" or argument is not None):
            what = "rescale" if verb == "rescale" else "a savepoint"
            raise FlowError(f"flow {self.name!r}: {what} needs a run with checkpoint=…")
        if verb == "rescale":
            check_count(self.name, argument)
            self.check_workers(argument)
        elif argument is not None:
            assert self.keeper is not None
            outputs = [path for node in self.sink_nodes if (path := getattr(node.sink, "path", None)) is not None]
            self.keeper.checkpoints.check_savepoint(argument, outputs)

    def leave_savepoint(self, question: Question) -> None:
        """Copy the checkpoint that was just made to where somebody asked for it, and tell so."""
        assert self.keeper is not None
        try:
            self.keeper.checkpoints.copy_to(question.argument)
        except CheckpointError as error:
            question.answer.set_exception(error)
        else:
            question.answer.set_result(self.keeper.number)

    def _keep(self, keeper: Keeper) -> None:
        """Begin a checkpoint if it is due, commit what one has made durable, and stop if that is asked for."""
        if (number := keeper.poll()) is not None:
            self._announce(number)
        if self.interrupted():
            raise _Stopped
        full = sum(task.staged_bytes for task in self.sinks) >= EPOCH_BYTES
        if full:
            keeper.hurry()
        if self.moved and keeper.due(self.clock(), at_once=full):
            self.checkpoint(wait=False)

    def checkpoint(self, *, finished: bool = False, wait: bool = True) -> None:
        """Make a checkpoint: let everything that was read reach the sinks, and note what all steps remember.

        It is written while the flow goes on, unless `wait`.
        """
        keeper = self.keeper
        assert keeper is not None
        if wait and (number := keeper.wait()) is not None:
            self._announce(number)
        self._settle()
        while not all(join.idle for join in self.joins):
            self._collect()
            if not all(join.idle for join in self.joins):
                assert self.workers is not None
                self.workers.wait(self.options.poll_seconds)
        number, known, files = keeper.begin(self.clock(), self._rows_of_sources()), {}, []
        for task in self.graph.tasks:
            with _Told(task.node):
                if isinstance(task, SinkTask):
                    known[task.node.name], more = task.prepare(number)
                    files += more
                else:
                    known[task.node.name] = task.snapshot()
                    if isinstance(task, ReadTask):
                        task.places.append((number, known[task.node.name].get("place")))
        keeper.save(number, known, files, finished=finished)
        if wait and (number := keeper.wait()) is not None:
            self._announce(number)

    def _rows_of_sources(self) -> dict[str, int]:
        tasks = [state.task for state in self._sources()]
        return {task.node.label: ALL if task.ended else task.rows_in for task in tasks}

    def _announce(self, number: int) -> None:
        for task in self.graph.tasks:
            if isinstance(task, SinkTask | ReadTask):
                with _Told(task.node):
                    task.announce(number)

    def rest(self) -> None:
        """Wait a little: for the workers, or where there are none, for the sources."""
        if self.workers is not None:  # also when they have nothing to do: one that dies is noticed
            self.workers.wait(self.options.poll_seconds)
        else:
            self.around.pause(self.options.poll_seconds)

    def _collect(self) -> None:
        """Hand on what the workers have answered: that of the last joins first, so that there is room behind them."""
        assert self.workers is not None
        self.workers.pump()
        for join in reversed(self.parallel):
            with _Told(join.node):
                for batch in join.collect():
                    self.graph.push(join, batch)
                    self.tick()
        self._settle()

    def _settle(self) -> None:
        """Have the joins join what they were given meanwhile, each before those behind it."""
        for join in self.joins:
            with _Told(join.node):
                for batch in join.settle():
                    self.graph.push(join, batch)
                    self.tick()

    def tick(self) -> None:
        """Do what is due: commit, show progress, or stop."""
        if self.keeper is None:  # else checkpoints commit, and are where a run stops
            if self.interrupted():
                raise _Stopped
            now = self.clock()
            if now - self.committed >= self.every:
                self.commit()
                self.committed = now
        if self.progress is not None and self.clock() - self.shown >= PROGRESS_SECONDS:
            self.progress(self.status())
            self.shown = self.clock()

    def commit(self, *, last: bool = False) -> None:
        """Let every sink show what it was given."""
        for task in self.sinks:
            with _Told(task.node):
                task.commit(last=last)

    def close(self, *, failed: bool) -> list[DovetailError]:
        """Close everything; after a failure drop what no one has seen. Return what went wrong in that."""
        problems: list[DovetailError] = []
        if self.workers is not None:
            self.workers.stop(kill=failed)
        for task in self.graph.tasks:
            end: Any = task.reader if isinstance(task, ReadTask) else getattr(task, "writer", None)
            if end is None:
                continue
            for action in [end.abort, end.close] if failed and isinstance(task, SinkTask) else [end.close]:
                try:
                    with _Told(task.node):
                        action()
                except DovetailError as error:
                    problems.append(error)
        return problems

    def status(self) -> Status:
        """Look at the run."""
        reads = [state.task for state in self._sources()]
        behind = min((s for s in self._sources() if s.task.order), key=lambda s: s.mark, default=None)
        return Status(
            self.name, self.clock() - self.started, sum(t.rows_in for t in reads),
            sum(t.rows_in for t in self.sinks), sum(t.late for t in reads),
            _shown(behind.task) if behind else "none", sum(t.held_bytes for t in self.graph.tasks),
            workers=self.workers.count if self.workers else 1,
            checkpoint=self.keeper.number if self.keeper else None,
            attempt=self.keeper.coordinator.generation + 1 if self.keeper else 1,
            rows_before=self._rows_before(),
        )  # fmt: skip

    def met(self) -> dict[str, Load]:
        """Return what each join has had to do, if it has seen enough rows to tell."""
        return {join.node.name: load for join in self.joins if (load := join.met()) is not None}

    def result(self, outcome: str) -> Result:
        """Report what was done."""
        steps = {
            task.node.name: StepReport(
                task.node.name, task.node.kind, task.rows_in, task.rows_out, task.late, _shown(task), task.held_bytes,
                task.null_keys, task.found_by, task.spread,
            )
            for task in self.graph.tasks
        }  # fmt: skip
        return Result(self.name, outcome, self.clock() - self.started, steps, self._rows_before())

    def _rows_before(self) -> int:
        return sum(state.rows_before for state in self._sources())

    def _rows_in(self) -> int:
        return sum(state.task.rows_in for state in self._sources())

    def _sources(self) -> list[SourceState]:
        return [state for group in self.groups for state in group]

    def _read_turn(self, group: list[SourceState]) -> bool:
        """Read from the sources of a group, the one furthest behind first, until that would be one that was read.

        So that a join takes a little of each input at once, and not a little of one twice as often.
        """
        read: set[int] = set()
        silent: set[int] = set()

        def waits(state: SourceState) -> bool:
            if sum(t.waiting_bytes for t in self.graph.tasks) > self.options.hold_bytes:
                lowest = min((s.mark for s in group if not s.task.ended), default=END)
                if state.mark > lowest:
                    return True  # what is ahead of the slowest source is held in its source, not in memory
            return self._paced(state) > 0

        while (state := next_source(group, silent, waits)) is not None and id(state) not in read:
            (read if self._read(state, group) else silent).add(id(state))
        for state in group:
            if id(state) not in read | silent:
                state.silent_since = None  # who is not asked is not silent
        return bool(read)

    def _paced(self, state: SourceState) -> float:
        rate, domain = state.task.node.rate, state.task.node.domain
        if rate is None:
            return 0.0
        event = 0.0
        order = state.task.order
        if order is not None and order.first is not None and order.greatest is not None and domain and domain.ticks:
            first = order.first if state.shown_before is None else state.shown_before
            event = float(Fraction(order.greatest - first) / domain.ticks)
        return due_in(rate, state.rows_read - state.rows_before, self.clock() - state.opened, event)

    def _read(self, state: SourceState, group: list[SourceState]) -> bool:
        task = state.task
        place, rows, label = task.place, task.rows_in, task.node.label
        try:
            with _Told(task.node):
                batch = task.read()
        except DovetailError:
            self.trail.read(label, task.rows_in + (task.rows_in == rows))  # it is past that when it brings another row
            raise
        self.trail.read(label, task.rows_in)
        self.moved |= batch is not None or task.place != place
        if batch is None:
            return self._silent(state, group)
        state.silent_since = None
        state.rows_read = task.rows_in
        if task.late_rows is not None:
            self.graph.push_late(task, Batch(task.late_rows, None, START))
            task.late_rows = None
        if batch.watermark == END:
            self.graph.push_late(task, Batch(batch.data.slice(0, 0), None, END))
        self.graph.push(task, batch)
        return True

    def _silent(self, state: SourceState, group: list[SourceState]) -> bool:
        """A source had nothing when it was asked; after `idle` seconds of that it no longer holds others back."""
        now = self.clock()
        if state.silent_since is None:
            state.silent_since = now
        if not state.is_idle(now) or state.task.order is None:
            return False
        batch = state.task.advance(idle_floor(group, state, now))
        if batch is None:
            return False
        self.moved = True
        self.graph.push(state.task, batch)
        return True


def _shown(task: Task) -> str:
    domain = task.node.domain
    return domain.show(task.watermark) if domain else ("end" if task.watermark == END else "none")


def run(
    name: str, sinks: Sequence[WriteNode], options: Options, every: float, progress: Callable[[Status], None] | None,
    workers: int = 0, keeper: Keeper | None = None, mailbox: Mailbox | None = None, around: Around | None = None,
) -> Result:  # fmt: skip
    """Run a flow to its end, or until somebody stops it, with so many worker processes.

    With a keeper an attempt that fails is followed by another, from the last checkpoint, as long as the keeper says.
    """
    around = Around() if around is None else around
    rescaled: Future[Any] | None = None
    before: str | None = None  # why there is another attempt
    met: dict[str, Load] = {}  # in the one before
    ran = False
    with _Interrupt(tell=progress is not None) as interrupt:
        while True:
            runner: Runner | None = None
            try:
                runner = Runner(name, sinks, options, every, progress, workers, keeper, mailbox, around, met)
                runner.interrupted = lambda: interrupt.asked
                return _attempt(runner, rescaled)
            except _Rescaled as change:
                workers, rescaled, before = 0 if change.workers == 1 else change.workers, change.answer, None
                assert keeper is not None
                keeper.rescaled(around.clock())
            except DovetailError as error:
                if before not in (None, str(error)):
                    error.add_note(f"It was another attempt, after this: {before}")
                # What cannot begin at all is not tried again, unless it was a worker that was lost.
                ran = ran or (runner is not None and runner.opened)
                if keeper is None or runner is None or not (ran or isinstance(error, WorkerError | TransportError)):
                    raise
                pause = keeper.failed(around.clock(), error)
                before = str(error)
                if pause is None:
                    raise
                around.pause(pause)
            assert runner is not None
            met = {**met, **runner.met()}
            del runner
            around.settle()


def _attempt(runner: Runner, rescaled: "Future[Any] | None") -> Result:
    keeper, name = runner.keeper, runner.name
    try:
        runner.open()
        if rescaled is not None and not rescaled.done():
            rescaled.set_result(None)
        outcome = "finished"
        with contextlib.suppress(_Stopped):
            while not runner.finished():
                if not runner.round():
                    runner.rest()
        if not runner.delivered():
            outcome = "stopped"
        if keeper is None:
            runner.commit(last=True)
        else:
            if not keeper.is_finished:
                runner.checkpoint(finished=outcome == "finished")
            keeper.tell()
        if runner.stopping is not None and runner.stopping.argument is not None:
            runner.leave_savepoint(runner.stopping)
    except BaseException as error:
        if keeper is not None:
            keeper.saver.abandon()  # before sinks let go of their folders: a checkpoint may still become durable
        for problem in runner.close(failed=True):
            error.add_note(f"While closing, after that: {problem}")
        if runner.stopping is not None and not runner.stopping.answer.done():
            runner.mailbox.put_back(runner.stopping)
        if rescaled is not None and not rescaled.done():
            rescaled.set_exception(error)
        if keeper is None:
            error.add_note(f"The output of flow {name!r} is incomplete; files that were written are whole.")
        raise
    if problems := runner.close(failed=False):
        first, *others = problems
        for other in others:
            first.add_note(f"While closing, after that: {other}")
        first.add_note(f"The output of flow {name!r} may be incomplete.")
        raise first
    if runner.progress is not None:
        runner.progress(runner.status())
    if runner.stopping is not None and not runner.stopping.answer.done():
        runner.stopping.answer.set_result(None)
    return runner.result(outcome)
