"""Worker processes as those see them who start them: spawned, pinned, each with a socket, a board and a heartbeat.

The shell below `Workers` (cells.py), which knows what is said to workers and nothing of how they came to be. Everything
that belongs to a process stands here: how it is started and killed, how one is seen to have died (its file descriptor
becomes readable), what it wrote to stderr, and its `Beat`.
"""

__all__ = ["Launcher", "Processes"]

import contextlib
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import multiprocess
import zmq

from ..config import Options
from ..errors import FlowError, TransportError
from ..transport import Arena, Channel, Reader, RunFolder, remove_segment, reserve
from . import worker
from .watch import Beat

ADDRESSES = {"ipc": "ipc://{folder}/worker-{number}.sock", "tcp": "tcp://127.0.0.1:*"}
"""Transports, and where a worker is awaited. Over `tcp` the system chooses the port, and nothing is in shared memory:
all parts travel inside messages, as they must to another machine."""


class Launcher(Protocol):
    """What starts workers, and sees how they are. The tests have one without processes."""

    channels: list[Channel]
    arena: Arena | None

    def start(self, parts: Sequence[worker.JoinPart], *, job: int, generation: int) -> None:
        """Start all of them; they say HELLO when they are there."""

    def wait(self, seconds: float) -> bool:
        """Wait until a message has come, or one of them has died; return whether there is a message."""

    def dead(self) -> int | None:
        """Return one that has died, if `wait` has seen one."""

    def gone(self, number: int) -> bool:
        """Tell whether one is dead; whoever asks thinks so."""

    def beats(self) -> list[Beat]:
        """Return what each shows of itself."""

    def kill(self, number: int) -> None:
        """Kill one."""

    def name(self, number: int) -> str:
        """Name one in a message."""

    def obituary(self, number: int) -> str:
        """Say what one died of, what it did, and what it said last."""

    def was_killed(self, number: int) -> bool:
        """Tell whether somebody has killed one that is dead: a person, or a system that is short of memory."""

    def stop(self, *, kill: bool) -> list[str]:
        """End all of them, and remove what they left; return what they wrote."""


@dataclass
class _Worker:
    process: Any
    core: int | None


class Processes:
    """Processes on this machine."""

    def __init__(self, count: int, options: Options, transport: str = "ipc") -> None:
        self.count, self.options, self.transport = count, options, transport
        self.folder = RunFolder()
        self.context: zmq.Context[Any] = zmq.Context()
        self.workers: list[_Worker] = []
        self.channels: list[Channel] = []
        self.arena: Arena | None = None
        self.boards: list[Any] = []
        self.pulse: worker.Pulse | None = None
        self.poller = zmq.Poller()
        self.died: int | None = None
        self.stack = contextlib.ExitStack()

    def start(self, parts: Sequence[worker.JoinPart], *, job: int, generation: int) -> None:
        """Start the processes."""
        with self._room():
            self.stack.enter_context(self.folder)
            self.pulse = worker.Pulse(self.folder.path, self.count)
            boards = [self._board(f"{self.folder.path.name}-{number}") for number in range(self.count)]
        path = self.folder.path
        arena_bytes = self.options.arena_bytes if self.transport == "ipc" else None
        self.arena = None if arena_bytes is None else Arena(path, "head", arena_bytes)
        spawn = multiprocess.get_context("spawn")
        cores = sorted(os.sched_getaffinity(0))
        for number in range(self.count):
            core = cores[number % len(cores)] if self.count > 1 else None
            socket, address = self._bound(number)
            reader = None if self.arena is None else Reader(path, f"worker-{number}")
            channel = Channel(socket, job=job, generation=generation, edge=number, arena=self.arena, reader=reader)
            self.channels.append(channel)
            start = worker.Start(
                number, self.count, job, generation, path, address, os.getpid(), core, arena_bytes,
                self.options.out_rows, tuple(parts), boards[number],
            )  # fmt: skip
            try:
                # By value what a script defines, with what that refers to: the script is not run again over there.
                told = cloudpickle.dumps(start)
                process = spawn.Process(target=worker.main, args=(told,), name=f"dovetail-worker-{number}", daemon=True)
                with _without_main(), _without_interrupts():
                    process.start()
            except (TypeError, AttributeError, ImportError, ValueError, pickle.PicklingError) as error:
                raise FlowError(
                    f"a step of this flow cannot be sent to another process: {error}; "
                    "use functions that hold no open files, locks or connections, or run with workers=1"
                ) from error
            self.workers.append(_Worker(process, core))
        for each, channel in zip(self.workers, self.channels, strict=True):
            self.poller.register(channel.socket, zmq.POLLIN)
            self.poller.register(each.process.sentinel, zmq.POLLIN)

    def _bound(self, number: int) -> "tuple[zmq.Socket[bytes], str]":
        """Return a socket for a worker to connect to, and its address."""
        address = ADDRESSES[self.transport].format(folder=self.folder.path, number=number)
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.set_hwm(0)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            hint = "give a shorter path in DOVETAIL_RUNS" if self.transport == "ipc" else "free a port"
            raise TransportError(
                f"worker {number} cannot be awaited at {address}: {zmq.strerror(error.errno or 0)}; "
                f"{hint}, or run with workers=1"
            ) from error
        return socket, socket.getsockopt(zmq.LAST_ENDPOINT).decode()

    def _board(self, name: str) -> str:
        from shared_memory_dict import SharedMemoryDict

        self.folder.note_board(f"sm_{name}")
        reserve(Path("/dev/shm", f"sm_{name}"), worker.BOARD_BYTES)
        self.boards.append(SharedMemoryDict(name, worker.BOARD_BYTES))
        return name

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Say what to do if there is no room for what every run needs."""
        try:
            yield
        except OSError as error:
            raise TransportError(
                f"the folder of this run, {str(self.folder.path)!r}, cannot be made: {error.strerror or error}; make "
                "/dev/shm larger (mount -o remount,size=…, or --shm-size of a container), or run with workers=1"
            ) from error

    def wait(self, seconds: float) -> bool:
        """Wait until a message has come, or a process has ended."""
        ready = dict(self.poller.poll(max(1, round(seconds * 1000))))
        if any(channel.socket in ready for channel in self.channels):
            return True
        for number, each in enumerate(self.workers):
            if each.process.sentinel in ready:
                self.died = number
        return False

    def dead(self) -> int | None:
        """Return one that has died, if `wait` has seen one."""
        return self.died

    def gone(self, number: int) -> bool:
        """Tell whether one is dead; give it a moment, as its socket may have been closed first."""
        self.workers[number].process.join(1.0)
        return not self.workers[number].process.is_alive()

    def beats(self) -> list[Beat]:
        """Return what each shows of itself."""
        assert self.pulse is not None
        return [self.pulse.beat(number) for number in range(self.count)]

    def kill(self, number: int) -> None:
        """Kill one."""
        self.workers[number].process.kill()

    def name(self, number: int) -> str:
        """Name one in a message."""
        each = self.workers[number]
        return f"worker {number} (process {each.process.pid}, core {each.core})"

    def obituary(self, number: int) -> str:
        """Say what one died of, what it did, and what it said last."""
        process = self.workers[number].process
        process.join(1.0)
        code = process.exitcode
        how = f"signal {-code} ({signal.Signals(-code).name})" if code is not None and code < 0 else f"exit code {code}"
        return f"died of {how} while it was {self._state_of(number)}; {self._last_words(number)}"

    def was_killed(self, number: int) -> bool:
        """Tell whether somebody has killed one that is dead."""
        return bool(self.workers[number].process.exitcode == -signal.SIGKILL)

    def stop(self, *, kill: bool) -> list[str]:
        """End the processes, which have been told to stop or are to be killed; remove what the run left in memory."""
        for each in self.workers:
            if kill:
                each.process.kill()
        for each in self.workers:
            each.process.join(None if kill else 5.0)
            if each.process.is_alive():
                each.process.kill()
                each.process.join()
            each.process.close()
        said = [f"worker {number}: {line}" for number in range(len(self.workers)) for line in self._words_of(number)]
        self.workers = []
        for channel in self.channels:
            channel.socket.close()
        self.context.destroy(linger=0)
        for board in self.boards:
            remove_segment(board.shm)
        self.boards = []
        self.stack.close()
        return said

    def _state_of(self, number: int) -> str:
        """Return what a worker has said of its state. It may have died in the middle of saying it."""
        for _ in range(3):
            try:
                return str(self.boards[number].get("state", "starting"))
            except (pickle.UnpicklingError, EOFError, ValueError):
                continue
        return "saying something"

    def _last_words(self, number: int) -> str:
        if self._state_of(number) == "starting":
            return "what it wrote, if anything, is above"
        lines = self._words_of(number)[-20:]
        return "the last it wrote:\n" + "\n".join(lines) if lines else "it wrote nothing to stderr"

    def _words_of(self, number: int) -> list[str]:
        path = self.folder.path / f"worker-{number}.err"
        return path.read_text(errors="replace").splitlines() if path.exists() else []


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes to which Ctrl-C means nothing from the first moment on; here it waits until they are started."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_MAIN = threading.Lock()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Start processes that do not run the user's script again: what they need of it is sent to them by value.

    One thread at a time: another one's end would bring back in the middle what is hidden.
    """
    with _MAIN:
        main = sys.modules["__main__"]
        names = ("__file__", "__spec__")
        hidden = {name: getattr(main, name) for name in names if getattr(main, name, None) is not None}
        try:
            for name in hidden:
                setattr(main, name, None)
            yield
        finally:
            for name, value in hidden.items():
                setattr(main, name, value)
