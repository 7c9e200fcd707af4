"""Jobs by name: where a running flow can be found from another terminal, and how it is asked for things.

Problem: whoever wants to look at a job, or to stop it, knows its name and nothing else; and what is left of a job that
was killed must not look alive. Idea: each job has a folder of its own, beside those of runs (transport/rundir.py), with

- `lock`: held as long as the job lives, however it ends; so that nobody need trust a number in a file;
- `job.json`: what runs, where, since when, with which checkpoint folder; `end.json`: how it ended;
- `control.sock`: where it answers. A socket in a folder that only this user can enter: nobody else can reach it, from
  this machine or another. Questions are JSON, of bounded length; nothing is unpickled;
- `log`, `trail`: of a job that runs detached, what it would write on a terminal, and how far it has come.

An answer that never comes, since the job died meanwhile, is noticed by the lock, or by another process answering.
"""

__all__ = ["TRAIL", "JobFolder", "ask", "clean", "known_jobs", "serving"]

import contextlib
import fcntl
import functools
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any

import zmq

from ..errors import DovetailError, FlowError, JobError
from ..transport import sweep
from ..transport.rundir import root
from .control import Mailbox

MOST_BYTES = 1 << 16
"""Bytes of a question or an answer: more is not one."""

TRAIL = "trail"
"""The file in a job's folder that says how far the run has come (trail.py)."""

LOST = "it was lost while it was asked, and goes on from its last checkpoint; ask again"

VERBS: dict[str, tuple[type, ...]] = {
    "status": (NoneType,), "savepoint": (str,), "stop": (str, NoneType), "rescale": (int,)
}  # fmt: skip
"""What can be asked, and of which type the argument of each is."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class JobFolder:
    """The folder of one job."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise FlowError(
                f"job {name!r} is not a name; use up to 64 letters, digits, '.', '_' and '-', a letter or digit first"
            )
        self.name = name
        self.path = root() / "jobs" / name
        self._lock: Any = None

    def make(self) -> None:
        """Make the folder; nobody else may enter it, nor those above it."""
        for path in (self.path.parent.parent, self.path.parent, self.path):
            path.mkdir(mode=0o700, exist_ok=True)

    def forget(self) -> None:
        """Remove what is known of the one that had this name before."""
        for name in ("end.json", "control.sock", "head", "log", "rescaled", TRAIL):
            (self.path / name).unlink(missing_ok=True)

    def claim(self, about: dict[str, Any]) -> bool:
        """Become this job; return False if there is one that lives."""
        self.make()
        lock = open(self.path / "lock", "w")  # noqa: SIM115 - it is open as long as the job lives
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        self._lock = lock
        self.forget()
        self.write("job.json", {"name": self.name, "pid": os.getpid(), "since": time.time(), **about})
        return True

    def release(self) -> None:
        """Be this job no more. What it was stays to be read."""
        if self._lock is not None:
            (self.path / "control.sock").unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    @property
    def lives(self) -> bool:
        """Tell whether somebody is this job."""
        try:
            with open(self.path / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Write a file whole: who reads it meanwhile sees the one before."""
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(json.dumps(value, indent=1))
        os.replace(temporary, self.path / name)

    def read(self, name: str) -> dict[str, Any] | None:
        """Read a file; None if there is none."""
        try:
            found: dict[str, Any] = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        return found

    def end(self, outcome: str, message: str) -> None:
        """Say how it ended."""
        self.write("end.json", {"outcome": outcome, "message": message, "at": time.time()})


def known_jobs() -> list[JobFolder]:
    """Return the jobs of this user, also those that have ended."""
    place = root() / "jobs"
    names = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    return [JobFolder(name) for name in names if _NAME.fullmatch(name)]


def clean() -> list[Path]:
    """Remove what killed runs and ended jobs have left; return what was removed."""
    gone = sweep()
    for job in known_jobs():
        if not job.lives:
            shutil.rmtree(job.path)
            gone.append(job.path)
    return gone


@contextlib.contextmanager
def serving(folder: JobFolder, mailbox: Mailbox) -> Iterator[None]:
    """Answer questions from other processes, in a thread of its own."""
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 500)
    socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
    address = f"ipc://{folder.path / 'control.sock'}"
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        context.destroy(linger=0)
        raise JobError(
            f"job {folder.name!r} cannot be asked at {address}: {zmq.strerror(error.errno or 0)}; give a shorter path "
            "in DOVETAIL_RUNS, or a shorter --name"
        ) from error
    folder.write("head", {"pid": os.getpid()})
    over = threading.Event()
    serve = functools.partial(_serve, socket, mailbox, over, folder)
    thread = threading.Thread(target=serve, name="dovetail-control", daemon=True)
    thread.start()
    try:
        yield
    finally:
        mailbox.close(f"job {folder.name!r} has ended")
        over.set()
        thread.join()
        context.term()


def _serve(socket: "zmq.Socket[bytes]", mailbox: Mailbox, over: threading.Event, folder: JobFolder) -> None:
    waiting: list[tuple[bytes, Future[Any]]] = []
    with socket:
        while not over.is_set() or waiting:
            if socket.poll(20 if waiting else 100):
                sender, *frames = socket.recv_multipart()
                waiting.append((sender, _asked(frames, mailbox, folder)))
            for each in [each for each in waiting if each[1].done()]:
                waiting.remove(each)
                # Who asked may be gone; then nobody takes the answer, and that is no matter.
                socket.send_multipart([each[0], _answer(each[1])])


def _asked(frames: list[bytes], mailbox: Mailbox, folder: JobFolder) -> "Future[Any]":
    wrong: Future[Any] = Future()
    try:
        question = json.loads(b"".join(frames))
        verb, argument = question["verb"], question.get("argument")
        if question.get("of", os.getpid()) != os.getpid():  # what it meant was said to another process
            wrong.set_exception(DovetailError(LOST))
            return wrong
        if type(argument) not in VERBS[verb]:
            raise ValueError(f"{verb} with {argument!r}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        wrong.set_exception(DovetailError(f"a job can be asked for {', '.join(VERBS)}, not: {error}"))
        return wrong
    answer = mailbox.ask(verb, argument)
    if verb == "rescale":  # who starts the run again starts it with as many
        answer.add_done_callback(functools.partial(_note_workers, folder, argument))
    return answer


def _note_workers(folder: JobFolder, workers: Any, done: "Future[Any]") -> None:
    if done.exception() is None:
        folder.write("rescaled", {"workers": workers})


def _answer(answered: "Future[Any]") -> bytes:
    error = answered.exception()
    if error is not None:
        return json.dumps({"error": str(error)[: MOST_BYTES // 8]}).encode()
    value = answered.result()
    return json.dumps({"value": asdict(value) if is_dataclass(value) else value}).encode()  # type: ignore[arg-type]


def ask(folder: JobFolder, verb: str, argument: Any = None, *, patience: float | None = None) -> Any:
    """Ask a job from another process; return its answer, or raise what it says.

    `patience`: seconds; None: as long as the job lives.
    """
    head = folder.read("head")
    until = None if patience is None else time.monotonic() + patience
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"ipc://{folder.path / 'control.sock'}")
        asked = {} if head is None else {"of": head["pid"]}
        socket.send(json.dumps({"verb": verb, "argument": argument, **asked}).encode())
        while not socket.poll(100):
            if not folder.lives:
                raise JobError(f"job {folder.name!r} has ended; `dovetail status {folder.name}` says how")
            if head is not None and folder.read("head") != head:
                raise JobError(f"job {folder.name!r}: {LOST}")
            if until is not None and time.monotonic() > until:
                raise JobError(f"job {folder.name!r} has not answered in {patience:g} s; it may be in a long step")
        answer = json.loads(socket.recv())
    if "error" in answer:
        raise JobError(f"job {folder.name!r}: {answer['error']}")
    return answer["value"]
