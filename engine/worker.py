"""A worker process: one cell of each join, and a loop that moves bytes.

What a cell does is parallel.py; here messages are read, machines are asked for the next piece of their answers, and
what they say is sent. A join may have `CREDIT` slices under way that the other side has not taken; beyond that its
answer waits, and the other joins go on, so that no join can hold up another.

What a worker does with what it is told is `Loop`, which touches nothing but its channel. Around it: a thread that beats
(watch.py), so that a worker which is stopped or stuck can be told from one that computes.

A worker does not outlive the process that started it: the kernel kills it then (PR_SET_PDEATHSIG), and it looks whether
that had happened before it asked for it.
"""

__all__ = ["BOARD_BYTES", "CREDIT", "JoinPart", "Loop", "Pulse", "Start", "die_with", "main", "tell"]

import ctypes
import faulthandler
import gc
import mmap
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import zmq

from ..errors import DovetailError
from ..operators.access import JoinSpec
from ..operators.layouts import Layout
from ..transport import Arena, Channel, Message, Reader, reserve
from . import codec
from .parallel import CellMachine, Done, Slice
from .watch import Beat

CREDIT = 8
"""Slices of results that a cell may have under way."""

BEAT_SECONDS = 0.1
"""Seconds between two beats: some dozens of them before anybody is taken to be stuck."""

BOARD_BYTES = 4096
"""Bytes of a worker's board: a page, for a few words."""

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_OF_HEAP, _KEPT_BYTES = 32 << 20, 1 << 30  # the former is as much as glibc allows


@dataclass(frozen=True)
class JoinPart:
    """What a worker must know of one join."""

    spec: JoinSpec
    columns: Sequence[str]
    layout: Layout
    inputs: dict[str, pa.Schema]  # of the rows that it is given


@dataclass(frozen=True)
class Start:
    """What a worker is started with."""

    number: int
    count: int
    job: int
    generation: int
    folder: Path
    address: str
    parent: int
    core: int | None
    arena_bytes: int | None  # None: no memory is shared, all parts travel inside messages
    out_rows: int
    joins: tuple[JoinPart, ...]
    board: str


class Pulse:
    """The beats of all workers of a run: numbers in a file of the run's folder, of which each writes its own two."""

    def __init__(self, folder: Path, count: int) -> None:
        path = folder / "beats"
        if not path.exists():  # here is who starts the workers
            reserve(path, 16 * count)
        fd = os.open(path, os.O_RDWR)
        try:
            self.numbers = np.frombuffer(mmap.mmap(fd, 16 * count), np.int64).reshape(count, 2)
        finally:
            os.close(fd)

    def beat(self, number: int) -> Beat:
        """Return what a worker shows."""
        return Beat(int(self.numbers[number, 0]), bool(self.numbers[number, 1]))

    def go_on(self, number: int) -> None:
        """Beat for ever, in a thread of its own."""

        def beats() -> None:
            while True:
                self.numbers[number, 0] += 1
                time.sleep(BEAT_SECONDS)

        threading.Thread(target=beats, name="dovetail-pulse", daemon=True).start()

    def computing(self, number: int, busy: bool) -> None:
        """Show that a worker computes, or waits."""
        self.numbers[number, 1] = busy


class _Edge:
    """One join of a worker: steps to answer, and the answer that is being made."""

    def __init__(self, part: JoinPart, out_rows: int, number: int) -> None:
        self.machine = CellMachine(part.spec, part.columns, out_rows, part.layout, number)
        self.codec = codec.Codec(part.inputs, self.machine.cell.schema)
        self.steps: deque[Any] = deque()
        self.answer: Iterator[Slice | Done] | None = None
        self.under_way = 0

    @property
    def can_go_on(self) -> bool:
        """Tell whether there is something to compute that may be sent."""
        return (self.answer is not None or bool(self.steps)) and self.under_way < CREDIT

    def next(self) -> Slice | Done:
        """Compute the next piece of the answer to the oldest step."""
        if self.answer is None:
            self.answer = self.machine.handle(self.steps.popleft())
        piece = next(self.answer)
        if isinstance(piece, Done):
            self.answer = None
        else:
            self.under_way += 1
        return piece


class Loop:
    """What a worker does with what it is told. It goes round: messages in, then a piece of each join's answer out."""

    def __init__(self, channel: Channel, parts: Sequence[JoinPart], out_rows: int, number: int) -> None:
        self.channel = channel
        self.edges = [_Edge(part, out_rows, number) for part in parts]

    @property
    def can_go_on(self) -> bool:
        """Tell whether there is something to compute."""
        return any(edge.can_go_on for edge in self.edges)

    def turn(self, message: Message | None) -> bool:
        """Take a message, and those behind it; compute, and send. Return False when it is told to stop."""
        while message is not None:
            if message.kind == codec.STOP:
                return False
            self._take(message)
            message = self.channel.receive()
        runnable = [(number, edge) for number, edge in enumerate(self.edges) if edge.can_go_on]
        for number, edge in runnable:
            try:
                piece = edge.next()
            except BaseException as error:
                error._join = number  # type: ignore[attr-defined]
                raise
            kind, meta, parts = edge.codec.encode(piece)
            self.channel.send(kind, {**meta, "join": number}, [self.channel.store(part, 1) for part in parts])
        if not runnable:
            self.channel.give_back(codec.FREED)
        return True

    def _take(self, message: Message) -> None:
        if message.kind == codec.FLUSH:
            self.channel.send(codec.FREED, {"flushed": True})
        elif message.kind == codec.ASK:
            self.channel.send(codec.HERE, {})
        elif message.kind == codec.ACK:
            for number, count in message.meta["slices"]:
                self.edges[number].under_way -= count
        elif message.kind == codec.STEP:
            edge = self.edges[message.meta["join"]]
            edge.steps.append(edge.codec.decode(message.kind, message.meta, message.parts))


def tell(channel: Channel, error: BaseException) -> None:
    """Tell the other side what went wrong; it is raised there."""
    channel.send(codec.ERROR, {
        "type": type(error).__name__, "text": str(error), "notes": list(getattr(error, "__notes__", ())),
        "traceback": _where(error), "join": getattr(error, "_join", None),
    })  # fmt: skip


def _where(error: BaseException) -> str:
    """Say where it was raised: of an error of ours in the user's own lines alone, as it says the rest itself."""
    if not isinstance(error, DovetailError):
        return traceback.format_exc()
    package = __name__.partition(".")[0] + "."
    raised = (error.__cause__ or error).__traceback__
    pairs = traceback.walk_tb(raised)
    mine = ((at, line) for at, line in pairs if not at.f_globals.get("__name__", "").startswith(package))
    found = traceback.StackSummary.extract(mine)
    return "".join(found.format())


def main(told: bytes) -> None:
    """Run a worker until it is told to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the one who started us decides
    start: Start = cloudpickle.loads(told)
    die_with(start.parent)
    errors = os.open(start.folder / f"worker-{start.number}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(errors, 2)
    faulthandler.enable()
    if start.core is not None:
        os.sched_setaffinity(0, {start.core})
    _keep_memory()
    board = _board(start)
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 1000)
    socket.set_hwm(0)
    socket.connect(start.address)
    arena = reader = None
    if start.arena_bytes is not None:
        arena, reader = Arena(start.folder, f"worker-{start.number}", start.arena_bytes), Reader(start.folder, "head")
    channel = Channel(socket, job=start.job, generation=start.generation, edge=start.number, arena=arena, reader=reader)
    pulse = Pulse(start.folder, start.count)
    pulse.go_on(start.number)
    try:
        loop = Loop(channel, start.joins, start.out_rows, start.number)
        gc.collect()
        gc.freeze()  # what is here now stays: to look through it again and again was a tenth of a small step
        board["state"] = "running"
        channel.send(codec.HELLO, {"pid": os.getpid()})
        going = True
        while going:
            busy = loop.can_go_on
            message = channel.receive(timeout=0.0 if busy else None)
            pulse.computing(start.number, True)
            going = loop.turn(message)
            pulse.computing(start.number, False)
        board["state"] = "stopped"
    except BaseException as error:  # noqa: BLE001 - whatever it is, the other side is told, and raises it there
        board["state"], board["error"] = "failed", str(error)[:500]
        tell(channel, error)
        channel.receive(timeout=10.0)
    finally:
        socket.close()
        context.term()


def _keep_memory() -> None:
    """Keep what is freed: the arrays of a step are as large as those of the last one.

    By default large arrays go back to the kernel when they are freed, and each page of the next one costs a fault,
    which was a tenth of a worker's time.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_OF_HEAP)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        pa.set_memory_pool(pa.system_memory_pool())


def _board(start: Start) -> Any:
    # The library's segment would be unlinked when this process ends: it only attaches, and says so to the tracker.
    from multiprocessing import resource_tracker

    from shared_memory_dict import SharedMemoryDict

    board = SharedMemoryDict(start.board, BOARD_BYTES)
    resource_tracker.unregister(f"/sm_{start.board}", "shared_memory")
    for name, value in (("state", "starting"), ("pid", os.getpid()), ("core", start.core), ("error", "")):
        board[name] = value
    return board


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent goes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
