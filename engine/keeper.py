"""Keeping a run alive: checkpoints are written beside it, and a failed attempt is followed by another.

The shell around `Coordinator` (what is decided) and `Checkpoints` (what is on disk): a thread writes while the flow
goes on. There is one keeper for a run, whatever the number of its attempts.
"""

__all__ = ["Keeper", "Saver", "keeping", "mark_of", "new_lineage"]

import contextlib
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..disk import Disk
from ..errors import CheckpointError, DovetailError, FlowError, WorkerError
from ..operators.access import SIDES
from .checkpoints import Checkpoints, FlowMark
from .coordinator import Coordinator, Pace
from .graph import (
    ComputeNode,
    FilterNode,
    JoinNode,
    Node,
    ProcessNode,
    ReadNode,
    WindowNode,
    WriteNode,
    reachable,
)
from .trail import Trail

_LINE = re.compile(r" \([^()]*:\d+\)")
"""Where a function of the user's stands, as `origin` says it. It says nothing of what the function does: a line that is
added above it must not make a flow another one."""


def new_lineage(name: str, draw: Callable[[], uuid.UUID] = uuid.uuid4) -> str:
    """Return a name for the output of a run, unlike any other."""
    return f"{name}-{draw().hex[:12]}"


class Saver:
    """Does the steps of saving in a thread of its own, with rests in between."""

    def __init__(self, every: float) -> None:
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.pace = Pace(every / 2)
        self.begun = self.worked = 0.0
        self.waited_for = threading.Event()

    def start(self, steps: Iterator[None]) -> None:
        """Begin."""
        self.error = None
        self.waited_for.clear()
        self.thread = threading.Thread(target=self._run, args=(steps,), name="dovetail-saver", daemon=True)
        self.thread.start()

    def rest(self) -> None:
        """Leave the cores to the flow, as long as is due after what was done since the last rest."""
        worked = time.thread_time()
        if pause := self.pace.rest(worked - self.worked, time.monotonic() - self.begun):
            self.worked = worked
            self.waited_for.wait(pause)

    def hurry(self) -> None:
        """Do the rest without rests: somebody waits for it."""
        self.waited_for.set()

    def done(self, *, wait: bool) -> bool:
        """Tell whether all steps are done; raise what they raised."""
        assert self.thread is not None
        if wait:
            self.hurry()
            self.thread.join()
        if self.thread.is_alive():
            return False
        if self.error is not None:
            raise self.error
        return True

    def abandon(self) -> None:
        """Let it come to its end, whatever that is: the next attempt must not meet it."""
        if self.thread is not None:
            self.hurry()
            self.thread.join()

    def _run(self, steps: Iterator[None]) -> None:
        self.begun, self.worked = time.monotonic(), 0.0
        try:
            for _ in steps:
                self.rest()
            self.pace.made(time.thread_time())
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for it
            self.error = error


@contextlib.contextmanager
def keeping(
    name: str, sinks: Sequence[WriteNode], folder: str, every: float, *, fresh: bool = False,
    savepoint: str | None = None, disk: Disk | None = None, saver: Any = None,
    draw: Callable[[], uuid.UUID] = uuid.uuid4, trail: Trail | None = None,
) -> Iterator["Keeper"]:  # fmt: skip
    """Hold a folder of checkpoints for a run; a new one can begin with a savepoint."""
    nodes = reachable(list(sinks))
    for node in nodes:
        if isinstance(node, ReadNode) and not node.source.replayable:
            raise FlowError(
                f"{node.label}: its {node.source.describe()} cannot be read again from where a checkpoint has noted; "
                "give the class position() and seek(position), or run without checkpoint=…"
            )
        if isinstance(node, ProcessNode) and not node.operator.can_go_on:
            raise FlowError(
                f"{node.label}: its {node.operator.describe()} cannot go on from a checkpoint; give the class "
                "snapshot() and restore(table), or run without checkpoint=…"
            )
    checkpoints = Checkpoints(folder, mark_of(name, nodes), Disk() if disk is None else disk)
    checkpoints.open(fresh=fresh, savepoint=savepoint)
    try:
        if checkpoints.latest is not None:
            how = "is finished" if checkpoints.latest.finished else "goes on"
            begun = f", begun from savepoint {savepoint}" if savepoint else ""
            sys.stderr.write(
                f"dovetail: flow {name!r} {how}, by checkpoint {checkpoints.latest.number} in {folder}{begun}\n"
            )
        keeper = Keeper(checkpoints, every, saver, name, draw, Trail() if trail is None else trail)
        try:
            yield keeper
        finally:
            keeper.saver.abandon()  # nobody else may have the folder before it has come to its end
    finally:
        checkpoints.close()


def mark_of(name: str, nodes: Sequence[Node]) -> FlowMark:
    """Return what tells this flow from others: all that results depend on, and nothing else."""
    return FlowMark(name, {node.name: _said(node) for node in nodes})


def _said(node: Node) -> str:
    """Say what a step does, in one line; a step that does something else says something else."""
    parts = [node.kind]
    if isinstance(node, ReadNode):
        options = {"time": node.time, "delay": node.delay, "idle": node.idle, "max_ahead": node.max_ahead}
        parts = [type(node.source).__name__, *(f"{name}={value}" for name, value in options.items() if value)]
    elif isinstance(node, FilterNode):
        parts.append(str(node.predicate))
    elif isinstance(node, ComputeNode):
        parts += [f"{name}={how}" for name, how in node.columns.items()]
    elif isinstance(node, JoinNode):
        spec = node.spec
        parts += [*map(str, spec.predicate.conjuncts), *(f"{side} {spec.windows[side]}" for side in SIDES)]
    elif isinstance(node, WindowNode):
        parts += [f"by {', '.join(node.keys)}", str(node.window), *(f"{n}={m.aggregate}" for n, m in node.made.items())]
    elif isinstance(node, ProcessNode):
        parts += [node.operator.describe(), f"by {', '.join(node.keys)}"]
    elif isinstance(node, WriteNode):
        parts.append(node.sink.describe())
    columns = ", ".join(f"{field.name} {field.type}" for field in node.schema)
    came = f" of {', '.join(before.name for before in node.inputs)}" if node.inputs else ""
    return _LINE.sub("", f"{', '.join(parts)}{came}; columns {columns}")


class Keeper:
    """Makes checkpoints of a run, and says whether a failed attempt is followed by another."""

    def __init__(
        self, checkpoints: Checkpoints, every: float, saver: Any, name: str, draw: Callable[[], uuid.UUID],
        trail: Trail,
    ) -> None:  # fmt: skip
        self.checkpoints, self.saver, self.trail = checkpoints, Saver(every) if saver is None else saver, trail
        latest = checkpoints.latest
        begins = latest is None or latest.begun == latest.title  # anew, or with a savepoint
        self.lineage = new_lineage(name, draw) if latest is None or begins else latest.lineage
        self.incarnation = draw().int & 0xFFFFFFFF  # of this process: tells its messages from those of others
        number, generation = (None, 0) if latest is None else (latest.number, latest.generation + 1)
        self.coordinator = Coordinator(every, number, generation, checkpoints.next)

    @property
    def is_finished(self) -> bool:
        """Tell whether the last checkpoint is that of the end."""
        latest = self.checkpoints.latest
        return latest is not None and latest.finished

    def load(self) -> tuple[int | None, dict[str, Any]]:
        """Return the last checkpoint's number, and what it remembers by the name of each step."""
        latest = self.checkpoints.latest
        return (None, {}) if latest is None else (latest.number, self.checkpoints.load())

    def due(self, now: float, *, at_once: bool) -> bool:
        """Tell whether a checkpoint should begin."""
        return self.coordinator.due(now) or (at_once and self.coordinator.under_way is None)

    def begin(self, now: float, read: Mapping[str, int]) -> int:
        """Begin a checkpoint, which has so many rows of each source; return its number."""
        number = self.coordinator.begin(now, read)
        self.trail.checkpoint(number, read)
        return number

    def tell(self) -> None:
        """Note durably that sinks have shown all that the last checkpoint has: the run is over."""
        try:
            self.checkpoints.tell()
        except OSError as error:
            raise self._unwritable(self.number, error) from error

    def save(self, number: int, known: dict[str, Any], files: list[str], *, finished: bool) -> None:
        """Have it written."""
        steps = self.checkpoints.save(
            number, known, lineage=self.lineage, generation=self.coordinator.generation, finished=finished, sync=files,
            rest=self.saver.rest,
        )
        self.saver.start(steps)

    def hurry(self) -> None:
        """Have one that is being written done soon, as what it lets sinks show is in memory until then."""
        self.saver.hurry()

    def poll(self) -> int | None:
        """Return the number of a checkpoint that has become durable."""
        return self._settled(wait=False)

    def wait(self) -> int | None:
        """The same, but wait for one that is being written."""
        return self._settled(wait=True)

    def _settled(self, *, wait: bool) -> int | None:
        number = self.coordinator.under_way
        if number is None:
            return None
        try:
            if not self.saver.done(wait=wait):
                return None
        except OSError as error:
            raise self._unwritable(number, error) from error
        except MemoryError as error:
            raise CheckpointError(
                f"checkpoint {number}: there is no memory to write it ({error}); give more, or smaller windows"
            ) from error
        self.coordinator.durable(number)
        return number

    def _unwritable(self, number: int | None, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"checkpoint {number} cannot be written to {self.checkpoints.folder!r}: {error.strerror or error}; "
            "make room there, or give another folder"
        )

    @property
    def number(self) -> int | None:
        """The number of the last checkpoint."""
        latest = self.checkpoints.latest
        return None if latest is None else latest.number

    @property
    def shown(self) -> int | None:
        """The last epoch that sinks may have shown; None if nobody knows."""
        return self.checkpoints.shown

    def rescaled(self, now: float) -> None:
        """The next attempt has another number of workers; this one did not fail."""
        self.saver.abandon()
        self.coordinator.begin_again(now)

    def failed(self, now: float, error: DovetailError) -> float | None:
        """An attempt has failed: return after how many seconds to try again, or None to give up."""
        self.saver.abandon()
        self.coordinator.reached(self.number, self.coordinator.read)  # one may have become durable meanwhile
        killed = isinstance(error, WorkerError) and error.killed
        pause = self.coordinator.failed(now, self.trail.to_pass, killed=killed)
        if pause is None:
            error.add_note(
                f"{self.coordinator.why} ({self.trail.since(self.number)}), so it is "
                "not tried again. What sinks have shown is right and stays; run again with "
                f"checkpoint={self.checkpoints.folder!r} to go on from there."
            )
        else:
            sys.stderr.write(f"dovetail: {error}\ndovetail: going on from the last checkpoint in {pause:g} s\n")
        return pause
