"""Runs the job with faults put into it until it finishes, and looks whether the output is right and nothing is left.

Nothing here waits for a time to pass: for the end of a process, or for a state of one that it must come to. Limits are
only there for what would never end, and then it is a failure that says where everybody was.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from faults import job

HERE = Path(__file__).parent
LIMIT = 60.0
MOST_STARTS = 4


def fault(who, at, nth=1, do="SIGKILL"):
    return {"who": who, "at": at, "nth": nth, "do": do}


@cache
def expected():
    """The results of an undisturbed run in one process."""
    with tempfile.TemporaryDirectory() as place:
        job.prepare(place)
        job.build(place).run()
        return rows_of(place)


def rows_of(place):
    """The rows of each output, file by file in the order of their names."""
    found = {}
    for folder in sorted((Path(place) / "out").iterdir()):
        parts = [pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))]
        found[folder.name] = pa.concat_tables(parts).combine_chunks() if parts else None
    return found


class Run:
    """One job, with all its starts."""

    def __init__(self, place, faults=(), **settings):
        self.place, self.faults, self.settings = Path(place), list(faults), settings
        self.marks = self.place / "marks"
        self.marks.mkdir()
        self.runs = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="dvf-"))
        self.starts = self.attempts = 0
        self.finished = False
        self.world = None
        self.errors = []
        self.processes = []
        job.prepare(self.place)

    def start(self, **settings):
        """Start the script, in the world that was made for it, if one was."""
        self.starts += 1
        said = json.dumps({**self.settings, **settings})
        return self.run([*(self.world.enter if self.world else ()), sys.executable, HERE / "job.py", self.place, said])

    def run(self, command, settings=None):
        """Start a command with the faults in it."""
        environment = {
            **os.environ, "FAULTS": json.dumps(self.faults), "FAULTS_MARKS": str(self.marks),
            "FAULTS_STEADY": "1" if any(each["who"] == "head" and each["nth"] > 2 for each in self.faults) else "",
            "DOVETAIL_RUNS": str(self.runs), "PYTHONPATH": str(HERE / "injection"), "PYTHONWARNINGS": "ignore",
            **(settings or {}),
        }  # fmt: skip
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
        self.processes.append(process)
        return process

    def ended(self, process):
        """Wait for the end of a start; return its exit code."""
        try:
            out, error = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR2)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
            try:
                _, error = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                _, error = process.communicate()
            raise AssertionError(f"a start did not end in {LIMIT:.0f} s; it said\n{error}") from None
        self.errors.append(error)
        self.attempts += 1 + error.count("going on from the last checkpoint in")
        self.finished = out.endswith("finished\n")
        return process.returncode

    def finish(self, *, starts=MOST_STARTS, errors=(), **settings):
        """Start it until it finishes; unless it is killed it goes well, without tracebacks or complaints of others.

        `errors`: with which of these a start may end.
        """
        while not self.finished:
            assert self.starts < starts, f"it has not finished after {self.starts} starts\n{''.join(self.errors)}"
            code = self.ended(self.start(**settings))
            if code == 0:
                check_plain(self.errors[-1])
            else:
                said = re.findall(r"^dovetail\.errors\.(\w+): ", self.errors[-1], re.M)
                assert code < 0 or (said and said[-1] in errors), self.errors[-1]

    def fails(self, **settings):
        """Start it, and return what it says of the error that ends it."""
        process = self.start(**settings)
        assert self.ended(process) == 1, self.errors[-1]
        return self.errors[-1]

    def fired(self):
        """Tell whether all faults were put in."""
        return [at for at in range(len(self.faults)) if not (self.marks / str(at)).exists()] == []

    def wait_for_stop(self, at=0):
        """Wait until the process that a fault stops is stopped; return its number."""
        mark, until = self.marks / str(at), time.monotonic() + LIMIT
        while time.monotonic() < until:
            text = mark.read_text() if mark.exists() else ""
            if text.endswith("\n") and state_of(int(text)) == "T":
                return int(text)
            assert self.processes[-1].poll() is None, f"it ended before\n{self.processes[-1].stderr.read()}"
            os.sched_yield()
        raise AssertionError("the fault has not stopped anybody")

    def check(self):
        """Assert that the faults were put in, that the output is right, and that nothing is left."""
        assert self.fired(), f"faults that did not happen: {self.faults}\n{''.join(self.errors)}"
        wait_for_end(str(self.marks))
        found = rows_of(self.place if self.world is None else self.world.seen(self.place))
        assert found.keys() == expected().keys()
        for name, table in expected().items():
            assert found[name].equals(table), (name, found[name].num_rows, table.num_rows)
        left = [path for path in self.place.rglob("*") if path.name.startswith(".staging-") or path.suffix == ".tmp"]
        left += list(self.runs.iterdir())
        boards = self.marks / "boards"
        left += [Path("/dev/shm", name) for name in set(boards.read_text().split() if boards.exists() else ())]
        assert [str(path) for path in left if path.exists()] == [], "left behind"

    def close(self):
        """Remove what a failed test may have left."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
        for number in processes_of(str(self.marks)):
            os.kill(number, signal.SIGKILL)
        shutil.rmtree(self.runs, ignore_errors=True)

    def how(self):
        """Say what has brought it to its end: how many attempts more than starts, and how many starts more than one."""
        return {"attempts": self.attempts - self.starts, "starts": self.starts - 1}


class Detached(Run):
    """The same job, kept alive by a supervisor; a start is over when no process of it is left."""

    def start(self):
        self.starts += 1
        command = [sys.executable, "-m", "dovetail", "run", f"{HERE / 'job.py'}:flow", "--detach", "--name", "faulty"]
        command += ["--checkpoint", self.place / "state", "--every", "0s", "--workers", "2"]
        settings = {
            "FAULTS_PLACE": str(self.place), "FAULTS_SETTINGS": json.dumps(self.settings),
            "DOVETAIL_BATCH_ROWS": "65", "DOVETAIL_OUT_ROWS": "30", "DOVETAIL_SILENCE_SECONDS": "3",
        }  # fmt: skip
        return self.run(command, settings)

    def ended(self, process):
        out, error = process.communicate(timeout=LIMIT)
        wait_for_end(str(self.marks), LIMIT)
        job = self.runs / "jobs" / "faulty"
        log = "".join(path.read_text() for path in (job / "log", job / "log.new") if path.exists())
        end = json.loads((job / "end.json").read_text()) if (job / "end.json").exists() else {"outcome": "killed"}
        self.errors.append(f"{out}{error}{log}{end}")
        self.attempts += 1 + log.count("going on from the last checkpoint in")
        self.finished = end["outcome"] == "finished"
        return {"finished": 0, "killed": -signal.SIGKILL}.get(end["outcome"], 1)

    def check(self):
        """The same; and that what is known of the job goes when it is asked to."""
        command = [sys.executable, "-m", "dovetail", "clean"]
        subprocess.run(command, env={**os.environ, "DOVETAIL_RUNS": str(self.runs)}, check=True, capture_output=True)
        self.runs.joinpath("jobs").rmdir()
        super().check()


class World:
    """A mount namespace with a small file system of its own somewhere: a disk, or /dev/shm, that can be full."""

    def __init__(self, where, size):
        user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
        words = ["unshare", *user, "--mount", "sh", "-c", 'mount -t tmpfs -o size="$1" none "$0" && echo && exec cat']
        pipe = subprocess.PIPE
        self.where = str(where)
        self.holder = subprocess.Popen([*words, self.where, size], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.problem = "" if self.holder.stdout.readline() else self.holder.stderr.read().strip() or "no reason"
        user = user and ["--user", "--preserve-credentials"]
        self.enter = ["nsenter", "--target", str(self.holder.pid), *user, "--mount"]

    def resize(self, size):
        subprocess.run([*self.enter, "mount", "-o", f"remount,size={size}", self.where], check=True)

    def seen(self, path):
        return Path(f"/proc/{self.holder.pid}/root{path}")

    def close(self):
        self.holder.communicate()


def check_plain(error):
    """Assert that a run which went well says what it must, and nothing else."""
    for word in ("resource_tracker", "leaked", "Exception ignored", "Traceback", "Error in"):
        assert word not in error, error


def state_of(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def processes_of(token):
    """Processes that have the token in their environment; the job's, its workers, and what those have started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"FAULTS_MARKS={token}\0".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_for_end(token, limit=15.0):
    """Wait until no process of a job is left: some end a moment after the job has, and some start others."""
    while numbers := processes_of(token):
        for number in numbers:
            try:
                fd = os.pidfd_open(number)
            except ProcessLookupError:
                continue
            try:
                ended, _, _ = select.select([fd], [], [], limit)
            finally:
                os.close(fd)
            if not ended:
                words = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                raise AssertionError(f"process {number} is left: {words}")
