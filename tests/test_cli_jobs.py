"""Jobs from another terminal: detached, looked at, saved, rescaled, killed, stopped; and what is said when that fails.

Real processes, started and ended by what a person would type. Nothing here waits for a time to pass: a job's sources
have no more rows until the test makes a file.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import dovetail as dt
import pyarrow.parquet as pq
import pytest
from dovetail.engine.jobs import JobFolder, ask

JOB = """
    import os
    import dovetail as dt
    import numpy as np
    import pyarrow as pa
    from dovetail import left, right

    def table(seed):
        rng = np.random.default_rng(seed)
        return pa.table({"t": np.arange(4000) // 3, "x": rng.integers(0, 60, 4000), "id": np.arange(4000)})

    @dt.source
    class Rows:
        "Rows from the 2,000th on wait until there is a file `go`."
        schema = table(0).schema

        def __init__(self, seed):
            self.table, self.at = table(seed), 0

        def position(self):
            return self.at

        def seek(self, at):
            self.at = at

        def read(self):
            if self.at >= 2000 and not os.path.exists("go"):
                return None
            self.at += 100
            return self.table.slice(self.at - 100, 100) if self.at <= 4000 else dt.END_OF_SOURCE

    def dies(batch):
        if DIES and batch.num_rows:
            os.abort()
        return batch

    DIES = False

    flow = dt.Flow("pairs")
    one, two = (flow.read(Rows(n), name=f"s{n}", time="t") for n in (1, 2))
    one = one.map(dies, one.schema, name="dies")
    pairs = one.join(two, on=(left.x - right.x).abs() <= 1, window=dt.last(400), name="pairs")
    pairs.select("id", "id_right").write(dt.parquet("out"))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, and a place of its own for what jobs keep in memory; in the end nothing is left there."""
    monkeypatch.chdir(tmp_path)
    runs = tempfile.mkdtemp(dir="/dev/shm", prefix="dvt-")
    monkeypatch.setenv("DOVETAIL_RUNS", runs)
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB))
    yield tmp_path
    for about in Path(runs).glob("jobs/*/job.json"):
        pid = json.loads(about.read_text())["pid"]
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(runs)


def says(*arguments, code=0):
    """Run a command; return what it wrote, and assert how it ended."""
    done = subprocess.run([sys.executable, "-m", "dovetail", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def status(name="pairs"):
    return json.loads(says("status", name, "--json"))


def head(name="pairs"):
    """Return the process that runs a job, or None between two attempts."""
    try:
        return json.loads((Path(os.environ["DOVETAIL_RUNS"]) / "jobs" / name / "head").read_text())["pid"]
    except FileNotFoundError:
        return None


def wait_for(what):
    while not (found := what()):
        os.sched_yield()
    return found


def ended(name="pairs"):
    folder = Path(os.environ["DOVETAIL_RUNS"]) / "jobs" / name
    return wait_for(lambda: folder.joinpath("end.json").exists() and json.loads((folder / "end.json").read_text()))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    place = tmp_path_factory.mktemp("expected")
    (place / "job.py").write_text(textwrap.dedent(JOB))
    (place / "go").touch()
    subprocess.run([sys.executable, "-m", "dovetail", "run", "job.py", "--quiet"], cwd=place, check=True)
    return pq.read_table(place / "out")


def detached(*more):
    return says("run", "job.py", "--detach", "--checkpoint", "state", "--every", "0s", *more)


def test_a_job_lives_on_without_its_terminal_and_is_changed_and_saved_on_its_way(place, expected):
    assert "job 'pairs' runs; look with `dovetail status pairs`" in detached()
    assert "pairs  running" in says("status")
    assert "goes on with 2 workers" in says("rescale", "pairs", "2")
    assert status()["workers"] == 2
    assert "savepoint of job 'pairs' in" in says("savepoint", "pairs", "saved")
    said = says("status", "pairs")
    for word in ("state       running", "started by  dovetail run job.py --detach", "workers     2", "attempt     2,"):
        assert word in said
    assert "runs already; stop it first, or give another --name" in says(
        "run", "job.py", "--detach", "--checkpoint", "other", code=1
    )
    assert "is in use by a job that runs" in says("run", "job.py", "--checkpoint", "state", code=1)
    assert "job 'pairs' has stopped; savepoint in" in says("stop", "pairs", "--savepoint", "last")
    assert "flow 'pairs' stopped in" in says("status", "pairs")

    (place / "go").touch()
    says("run", "job.py", "--checkpoint", "state", "--workers", "2", "--quiet")
    assert pq.read_table("out").equals(expected)
    for savepoint in ("last", "saved", "saved"):  # each takes the output back to where it was
        shutil.rmtree("new", ignore_errors=True)
        says("run", "job.py", "--checkpoint", "new", "--savepoint", savepoint, "--quiet")
        assert pq.read_table("out").equals(expected)
    assert "was taken back to epoch" in says(
        "run", "job.py", "--checkpoint", "newer", "--savepoint", "last", "--quiet", code=1
    )
    assert "removed" in says("clean")
    assert says("status") == "there are no jobs\n"
    assert says("clean") == "nothing was left\n"


def test_a_killed_run_is_started_again_and_a_killed_supervisor_takes_everything_along(place, expected):
    detached()
    says("rescale", "pairs", "2")
    wait_for(lambda: status().get("rows_in") == 4000)  # there are no more for now
    killed = head()
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: head() not in (None, killed))
    log = Path(os.environ["DOVETAIL_RUNS"]) / "jobs" / "pairs" / "log"
    assert "the run died of signal 9 (SIGKILL); going on from the last checkpoint" in log.read_text()
    assert wait_for(lambda: status().get("workers")) == 2, "as many as it was told to have"

    pids = [head(), json.loads((log.parent / "job.json").read_text())["pid"]]
    os.kill(pids[1], signal.SIGKILL)
    for pid in pids:
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists())
    assert "pairs  killed" in says("status")
    assert "to go on    dovetail run job.py --detach --checkpoint state" in says("status", "pairs")
    assert "has ended" in says("stop", "pairs", code=1)

    (place / "go").touch()
    detached("--workers", "2")
    assert ended()["outcome"] == "finished"
    assert pq.read_table("out").equals(expected)


def test_a_run_that_is_stopped_dead_is_killed_and_started_again(place, expected, monkeypatch):
    monkeypatch.setenv("DOVETAIL_SILENCE_SECONDS", "3")
    detached()
    first = wait_for(head)  # a busy machine may have been silent for so long by itself
    os.kill(first, signal.SIGSTOP)
    wait_for(lambda: head() not in (None, first))
    (place / "go").touch()
    assert ended()["outcome"] == "finished"
    assert pq.read_table("out").equals(expected)


def test_a_run_that_always_dies_is_given_up(place):
    (place / "job.py").write_text(textwrap.dedent(JOB).replace("DIES = False", "DIES = True"))
    (place / "go").touch()
    detached()
    end = ended()
    assert end["outcome"] == "died"
    assert "died of signal 6 (SIGABRT). This was the 4th attempt that came no further, from" in end["message"]
    assert "(rows 0 to 100 of read 's1'" in end["message"]
    log = Path(os.environ["DOVETAIL_RUNS"], "jobs", "pairs", "log").read_text()
    assert log.count("Fatal Python error: Aborted") == 4 and "in dies" in log
    assert "the 4th attempt" in says("status", "pairs")


BESIDE = """
    import os
    import re
    import dovetail as dt
    import pyarrow as pa

    def newest():
        names = [name for name in os.listdir("state") if re.fullmatch("checkpoint-[0-9]+.json", name)]
        return int(max(names)[len("checkpoint-") : -len(".json")])

    @dt.source
    class Rows:
        schema = pa.schema({"x": pa.int64()})

        def __init__(self, dies_at=None):
            self.at, self.dies_at, self.before = 0, dies_at, 0

        def position(self):
            return self.at

        def seek(self, at):
            self.at, self.before = at, newest()

        def read(self):
            if os.path.getsize("deaths") > 6:
                return dt.END_OF_SOURCE  # or it would be tried for ever
            if self.at == self.dies_at:
                if newest() < self.before + 2:
                    return None  # until there has been a checkpoint, as the other goes on
                with open("deaths", "a") as deaths:
                    deaths.write("x")
            self.at += 1
            return pa.record_batch({"x": [self.at]})

    def step(batch, deep=30):
        if deep:
            return step(batch, deep - 1)
        if batch.column("x").to_pylist() == [8]:
            careless()
        return batch

    def careless():
        os.abort()

    flow = dt.Flow("beside")
    flow.read(Rows(), name="well").write(dt.null())
    ill = flow.read(Rows(dies_at=7), name="ill")
    ill.map(step, ill.schema).write(dt.null())
"""


def test_an_input_that_goes_on_does_not_make_up_for_one_that_kills_the_run(place):
    (place / "job.py").write_text(textwrap.dedent(BESIDE))
    (place / "deaths").touch()
    says("run", "job.py", "--detach", "--checkpoint", "state", "--every", "0s")
    end = ended("beside")
    assert end["outcome"] == "died"
    assert "This was the 4th attempt that came no further, from checkpoint" in end["message"]
    assert "rows 7 to 8 of read 'ill'" in end["message"]
    assert "Fatal Python error: Aborted" in end["message"] and "in careless" in end["message"], "where it was"
    assert (place / "deaths").read_text() == "xxxx"


def test_a_job_that_is_to_begin_anew_does_so_once(place, expected):
    detached("--fresh", "--name", "lock")  # which is a name like any other
    first = wait_for(lambda: head("lock"))
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: head("lock") not in (None, first))
    (place / "go").touch()
    assert ended("lock")["outcome"] == "finished"
    assert pq.read_table("out").equals(expected)
    assert "holds checkpoint" in says("run", "job.py", "--checkpoint", "state", "--fresh", code=1)
    assert "removed" in says("clean")


def test_a_stop_between_two_attempts_is_a_stop(place):
    (place / "job.py").write_text(textwrap.dedent(JOB).replace("if DIES", "if os.path.exists('ill')"))
    detached()
    (place / "ill").touch()
    (place / "go").touch()
    folder = Path(os.environ["DOVETAIL_RUNS"]) / "jobs" / "pairs"
    wait_for(lambda: (folder / "log").exists() and "in 0.4 s" in (folder / "log").read_text())
    (place / "ill").unlink()  # it would go on now
    os.kill(json.loads((folder / "job.json").read_text())["pid"], signal.SIGTERM)
    assert ended()["outcome"] == "stopped"
    assert "stopped before it went on from its last checkpoint" in says("status", "pairs")


def test_what_cannot_go_on_is_not_tried_again(place):
    detached()
    (place / "job.py").unlink()
    os.kill(wait_for(head), signal.SIGKILL)
    end = ended()
    assert end["outcome"] == "failed" and "there is no file 'job.py'" in end["message"]


def test_a_job_is_not_asked_for_what_would_break_it(place):
    detached()
    assert "workers=257; a run has 256 at most" in says("rescale", "pairs", "257", code=2)
    for wrong in (257, 0, -5):  # as another program might ask it
        with pytest.raises(dt.DovetailError, match=f"workers={wrong}; "):
            ask(JobFolder("pairs"), "rescale", wrong)
    for inside in ("state/saved", "out/deep/saved"):
        assert "which holds what this flow writes, and nothing else" in says("savepoint", "pairs", inside, code=1)
    says("stop", "pairs")


def test_words_of_a_command_may_stand_in_any_order_and_are_not_guessed(place):
    said = says("run", "--every", "0s", "--detach", "--checkpoint", "state", "--", "job.py")
    assert "job 'pairs' runs" in said and "pairs  running" in says("status")
    says("stop", "pairs")
    assert "unrecognized arguments: --det" in says("run", "job.py", "--det", "--checkpoint", "state", code=2)
    assert "job '' is not a name" in says("run", "job.py", "--detach", "--name", "", code=2)


def test_a_question_is_answered_by_who_was_asked_alone(place):
    detached()
    folder = JobFolder("pairs")
    real = folder.read("head")
    folder.write("head", {"pid": 1})  # as if it had been asked before another one took its place
    with pytest.raises(dt.DovetailError, match="was lost while it was asked, and goes on .*; ask again"):
        ask(folder, "stop")
    folder.write("head", real)
    assert "pairs  running" in says("status"), "and it goes on"


def test_what_cannot_start_is_told_at_once(place):
    assert "checkpoint='job.py' cannot be used" in says("run", "job.py", "--detach", "--checkpoint", "job.py", code=1)
    assert "there is no file 'none.py'" in says("run", "none.py", "--detach", code=2)
    assert "job '../x' is not a name; use up to 64" in says("run", "job.py", "--detach", "--name", "../x", code=2)
    assert "savepoint='s' means nothing without checkpoint" in says("run", "job.py", "--savepoint", "s", code=2)


@pytest.mark.parametrize("command", [["status", "x"], ["stop", "x"], ["savepoint", "x", "y"], ["rescale", "x", "2"]])
def test_a_job_that_is_not_there_is_told(place, command):
    assert "there is no job 'x'; there are none" in says(*command, code=1)


def test_strangers_questions_are_answered_with_what_can_be_asked(place):
    import zmq

    detached()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(f"ipc://{os.environ['DOVETAIL_RUNS']}/jobs/pairs/control.sock")
        typed = [("stop", 5), ("stop", [1]), ("savepoint", None), ("rescale", "2"), ("rescale", True), ("eval", "1")]
        wrong = [json.dumps({"verb": verb, "argument": argument}) for verb, argument in [*typed, ([], 1)]]
        for question in ["", "{}", "[1]", *wrong]:
            socket.send_string(question)
            assert "a job can be asked for status, savepoint, stop, rescale" in json.loads(socket.recv())["error"]
    folder = Path(os.environ["DOVETAIL_RUNS"], "jobs", "pairs")
    assert folder.stat().st_mode & 0o077 == 0 and folder.parent.stat().st_mode & 0o077 == 0
    says("stop", "pairs")


def test_a_place_that_is_too_long_for_a_socket_is_told(place, monkeypatch):
    (place / "go").touch()
    monkeypatch.setenv("DOVETAIL_RUNS", os.environ["DOVETAIL_RUNS"] + "/" + "x" * 100)
    assert "File name too long; give a shorter path in DOVETAIL_RUNS" in says("run", "job.py", code=1)
