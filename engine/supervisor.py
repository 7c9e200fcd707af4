"""Keeping a detached job alive: whoever starts it again when its process dies.

Problem: a run goes on by itself when a worker dies, but when the process dies that reads, orders and writes, somebody
else must begin it anew. Idea: a process that does nothing but that. It starts the run, waits, and starts it again from
the last checkpoint: a little later each time, and not for ever if it gets no further (`Coordinator`), by what the run
has left of its way (trail.py). A run that is stopped or stuck, so that it does not beat, is killed first (watch.py).

The run dies with its supervisor (PR_SET_PDEATHSIG), and workers with the run; so the whole job is gone when any of them
is killed and nobody is left to go on, and whoever starts it again finds everything in the checkpoint folder.
"""

__all__ = ["detach", "supervise", "under_supervision"]

import contextlib
import faulthandler
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ..config import Options
from ..errors import JobError
from .coordinator import Coordinator
from .jobs import TRAIL, JobFolder, ask
from .trail import Trail
from .watch import Watch
from .worker import Pulse, die_with

LOOK_SECONDS = 0.25


def detach(folder: JobFolder, command: list[str]) -> None:
    """Start a supervisor for a job, which outlives the caller; return when the job runs, or has ended."""
    folder.make()
    folder.forget()
    command = [sys.executable, "-m", "dovetail", "supervise", folder.name, *command]
    with open(os.devnull) as nothing, open(folder.path / "log.new", "w") as log:
        process = subprocess.Popen(command, stdin=nothing, stdout=log, stderr=log, start_new_session=True)
    while process.poll() is None and not (folder.lives and folder.read("head")):
        time.sleep(0.02)
    while process.poll() is None and folder.read("end.json") is None:
        with contextlib.suppress(JobError):
            ask(folder, "status")  # it answers when it has read its first rows
            break
    if process.returncode not in (None, 0) and folder.read("end.json") is None:
        said = "".join(f"; it said:\n{last}" for name in ("log.new", "log") if (last := _tail(folder.path / name)))
        raise JobError(f"job {folder.name!r} did not start: its supervisor {_ending(process.returncode)}{said}")


def supervise(name: str, command: list[str], about: dict[str, Any], checkpoint: str | None, every: float) -> int:
    """Be the supervisor of a job: run a command until it has said how it ended. Return the exit code.

    `checkpoint`: the folder of its checkpoints; `every`: seconds between two of them.
    """
    folder = JobFolder(name)
    if not folder.claim(about):
        raise JobError(f"job {name!r} runs already; stop it first, or give another --name")
    new = folder.path / "log.new"
    if new.exists():
        os.replace(new, folder.path / "log")  # this process writes to it already
    try:
        return _Supervisor(folder, command, checkpoint, every).run()
    finally:
        folder.release()


class _Supervisor:
    def __init__(self, folder: JobFolder, command: list[str], checkpoint: str | None, every: float) -> None:
        self.folder, self.command, self.checkpoint, self.every = folder, command, checkpoint, every
        self.child: subprocess.Popen[bytes] | None = None
        self.told = False  # to stop
        self.pulse = Pulse(folder.path, 1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, _: object) -> None:
        self.told = True
        if self.child is not None:
            self.child.send_signal(signal.SIGTERM)  # one that is gone has been waited for: it goes nowhere

    def run(self) -> int:
        decides = Coordinator(self.every, _last_checkpoint(self.checkpoint))
        while True:
            how, code = self._attempt()
            if (end := self.folder.read("end.json")) is not None:
                return 0 if end["outcome"] in ("finished", "stopped") else 1
            if self.told and code == -signal.SIGTERM:  # it had not begun yet, and did not know how to stop
                return self._stopped_between(how)
            trail, number = Trail.left(self.folder.path / TRAIL), _last_checkpoint(self.checkpoint)
            decides.reached(number, trail.kept(number))
            can_go_on = self.checkpoint is not None and not self.told
            killed = code == -signal.SIGKILL
            pause = decides.failed(time.monotonic(), trail.to_pass, killed=killed) if can_go_on else None
            if pause is None:
                self.folder.end("died", self._epitaph(how, decides, trail))
                return 1
            with contextlib.suppress(OSError):  # no room for the log is no reason not to go on
                print(f"dovetail: the run {how}; going on from the last checkpoint in {pause:g} s", flush=True)
            if self._waits(pause):
                return self._stopped_between(how)
            self.command = [word for word in self.command if word != "--fresh"]  # it has begun

    def _stopped_between(self, how: str) -> int:
        self.folder.end("stopped", f"the run {how}, and was stopped before it went on from its last checkpoint")
        return 0

    def _waits(self, seconds: float) -> bool:
        """Wait; return whether it is to stop. No lock: a signal may come to who holds it."""
        until = time.monotonic() + seconds
        while not self.told and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS / 10))
        return self.told

    def _attempt(self) -> tuple[str, int | None]:
        """Start the run, and wait until it is gone; return how it ended, and its exit code; None if it was stuck."""
        self.child = subprocess.Popen(self.command)
        if self.told:  # only just now
            self.child.send_signal(signal.SIGTERM)
        watch = Watch(1, Options.from_environment().silence_seconds)
        silent: list[tuple[int, str]] = []
        while True:
            try:
                code = self.child.wait(LOOK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                _, silent = watch.look(time.monotonic(), [self.pulse.beat(0)])
                if silent:
                    self.child.kill()
                    code = self.child.wait()
                    break
        if silent:
            return f"{silent[0][1]}; it was killed", None
        return _ending(code), code

    def _epitaph(self, how: str, decides: Coordinator, trail: Trail) -> str:
        last = _tail(self.folder.path / "log")
        if self.checkpoint is None:
            return f"the run {how}, and without --checkpoint nothing is known to go on from; the last it wrote:\n{last}"
        if self.told:
            return f"the run {how} while it was being stopped; start it again to go on from its last checkpoint"
        return (
            f"the run {how}. {decides.why} ({trail.since(decides.number)}), so it is not started again; the last it "
            f"wrote:\n{last}"
        )


def under_supervision(folder: JobFolder) -> Trail:
    """Make this process one that dies with its supervisor, and beats for it; return where it is to leave its trail."""
    about = folder.read("job.json")
    assert about is not None
    die_with(about["pid"])
    faulthandler.enable()  # into the log, where the supervisor finds the last words
    pulse = Pulse(folder.path, 1)
    pulse.computing(0, True)  # it is not asked; that it beats is enough
    pulse.go_on(0)
    return Trail(folder.path / TRAIL)


def _last_checkpoint(folder: str | None) -> int | None:
    if folder is None or not os.path.isdir(folder):
        return None
    found = [int(m[1]) for name in os.listdir(folder) if (m := re.fullmatch(r"checkpoint-(\d+)\.json", name))]
    return max(found, default=None)


def _ending(code: int) -> str:
    return f"died of signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"


def _tail(path: Path) -> str:
    """Return the last lines that were written; of a crash, what it was, and where, the innermost function first."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    crash = max((at for at, line in enumerate(lines) if line.startswith("Fatal Python error")), default=len(lines))
    current = next((at for at in range(crash, len(lines)) if lines[at].startswith("Current thread")), None)
    return "\n".join(lines[-20:] if current is None else [lines[crash], *lines[current : current + 19]])
