"""Several processes: the same results for every number of workers and every layout, and what happens when one dies.

Each test here starts real processes, so there are few of them; what layouts and messages mean is tested without any in
test_layouts.py and test_transport.py.
"""

import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from functools import partial
from types import SimpleNamespace

import dovetail as dt
import numpy as np
import pyarrow as pa
import pytest
import zmq
from dovetail import left, right
from dovetail.batch import Batch
from dovetail.engine.cells import ParallelJoin, Workers
from dovetail.engine.parallel import Done
from dovetail.engine.processes import ADDRESSES, Processes, _without_main
from dovetail.engine.run import FEW_SECONDS, Around, Runner
from dovetail.engine.tasks import SMALL_STEP
from dovetail.operators.layouts import Layout
from dovetail.transport.rundir import root


@pytest.fixture(autouse=True)
def runs(monkeypatch):
    """A place of its own for the folders of runs: other tests run beside this one."""
    place = tempfile.mkdtemp(dir="/dev/shm", prefix="dvt-")
    monkeypatch.setenv("DOVETAIL_RUNS", place)
    yield
    shutil.rmtree(place)


def table(seed, rows=4000, drift=0):
    rng = np.random.default_rng(seed)
    return pa.table({
        "t": np.sort(rng.integers(0, rows // 2, rows)),
        "x": rng.integers(0, 500, rows) + np.arange(rows) * drift // rows,
        "s": pa.array(rng.choice(["a", "bb", "", None], rows)).dictionary_encode(),
        "id": np.arange(rows),
    })  # fmt: skip


def joined(workers, layout="auto", on=None, *, itself=False, ordered=True, drift=0, window=None, **options):
    flow = dt.Flow("f")
    one = flow.read(dt.memory(table(1, drift=drift), batch_rows=700), name="one", time="t")
    two = one if itself else flow.read(dt.memory(table(2, drift=drift), batch_rows=900), name="two", time="t")
    on = (left.x - right.x).abs() <= 2 if on is None else on
    out = one.join(two, on=on, window=window or dt.last(600), layout=layout, ordered=ordered).write(dt.collect())
    result = flow.run(workers=workers, options=dt.Options(**options))
    assert list(root().iterdir() if root().is_dir() else []) == [], "a run leaves nothing in memory"
    return out.table(), result


CASES = {
    "band, range": ("range", None, {}),
    "drifting band, range": ("range", None, {"drift": 5000, "batch_rows": 512}),
    "band, matrix": ("matrix", None, {"out_rows": 100}),
    "band, chain": ("chain", None, {"window": dt.last(time=40)}),
    "equality, hash": ("hash", left.x == right.x, {}),
    "equality of texts, hash": ("hash", [left.s == right.s, left.x < right.x - 460], {}),
    "two inequalities, matrix": ("auto", [left.x < right.x - 400, left.id > right.id - 300], {}),
    "self-join, range": ("range", None, {"itself": True}),
    "self-join, matrix": ("matrix", left.x < right.x - 450, {"itself": True}),
}


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_any_number_of_workers_gives_the_same_results(case, workers):
    layout, on, options = CASES[case]
    expected, before = joined(1, layout, on, **options)
    found, after = joined(workers, layout, on, **options)
    assert expected.num_rows > 1000
    assert found.equals(expected)
    assert [(s.rows_in, s.rows_out, s.null_keys) for s in after.steps.values()] == [
        (s.rows_in, s.rows_out, s.null_keys) for s in before.steps.values()
    ]


@pytest.mark.parametrize("layout", ["auto", "copies", "range", "matrix", "chain"])
@pytest.mark.parametrize("reach", [2, 200])
def test_without_order_the_results_are_the_same_set(layout, reach):
    """Also where a row finds more than a slice of results holds, in each of several cells."""
    near = (left.x - right.x).abs() <= reach
    expected, _ = joined(1, on=near)
    found, _ = joined(2, layout, near, ordered=False, out_rows=100)
    by = [("id", "ascending"), ("id_right", "ascending")]
    assert found.sort_by(by).equals(expected.sort_by(by))


def test_a_join_of_a_join():
    outs = []
    for workers in (1, 2):
        flow = dt.Flow("f")
        one, two, three = (flow.read(dt.memory(table(i), batch_rows=300), name=f"s{i}", time="t") for i in (1, 2, 3))
        pairs = one.join(two, on=left.x == right.x, window=dt.last(200), name="first")
        more = pairs.join(three, on=(left.x - right.x).abs() <= 1, window=dt.last(300), suffix="_3", name="second")
        outs.append(more.write(dt.collect()))
        flow.run(workers=workers)
    assert outs[0].table().num_rows > 1000
    assert outs[1].table().equals(outs[0].table())


def test_results_without_any_column_keep_their_rows():
    outs = []
    for workers in (1, 2):
        flow = dt.Flow("f")
        one, two = (flow.read(dt.memory(table(i), batch_rows=300), name=f"s{i}", time="t") for i in (1, 2))
        pairs = one.join(two, on=(left.x - right.x).abs() <= 2, window=dt.last(200))
        outs.append(pairs.select(one=dt.lit(1)).write(dt.collect()))
        flow.run(workers=workers)
    assert outs[0].table().num_rows > 1000
    assert outs[1].table().equals(outs[0].table())


def test_a_join_without_time_and_what_leads_to_no_join():
    outs = []
    for workers in (1, 2):
        flow = dt.Flow("f")
        one, two = (flow.read(dt.memory(table(i), batch_rows=300), name=f"s{i}") for i in (1, 2))
        outs.append(one.join(two, on=left.x == right.x, window=dt.last(200)).write(dt.collect()))
        outs.append(one.filter(dt.col("x") > 250).write(dt.collect()))
        flow.run(workers=workers)
    assert outs[0].table().num_rows > 1000
    assert [out.table() for out in outs[2:]] == [out.table() for out in outs[:2]]


def test_without_time_results_are_taken_where_one_process_takes_them():
    """The order is the one in which batches are taken, so what a join hands on may not come when it likes."""
    outs = []
    for workers in (1, 2, 3):
        flow = dt.Flow("f")
        one, two = (flow.read(dt.memory(table(i), batch_rows=100 - i), name=f"s{i}") for i in (1, 2))
        pairs = one.join(two, on=left.x == right.x, window=dt.last(100))
        outs.append(pairs.join(one, on=left.x > right.x + 400, window=dt.last(50), suffix="_3").write(dt.collect()))
        outs.append(pairs.select("id").union(two.select("id")).write(dt.collect()))
        flow.run(workers=workers)
    assert min(out.table().num_rows for out in outs) > 1000
    assert [out.table() for out in outs] == [out.table() for out in outs[:2]] * 3


def test_a_tuple_with_more_matches_than_may_be_under_way_is_answered():
    """Every cell has more slices of one tuple than it may send at once: they are put in order as they come."""
    flow = dt.Flow("f")
    rows = pa.table({"t": [0] * 3000 + [1], "x": [1] * 3000 + [2]})
    s = flow.read(dt.memory(rows), name="s", time="t")
    out = s.join(s, on=left.x > right.x, window=dt.last(None), layout="chain").write(dt.collect())
    flow.run(workers=2, options=dt.Options(out_rows=10))
    assert out.table().num_rows == 3000


def test_functions_of_the_users_travel():
    limit = 3

    def both(a, b):
        return (a * b) % limit == 0

    on = [(left.x - right.x).abs() <= 5, dt.udf(both, ["x"], ["x"])]
    found, _ = joined(2, on=on)
    expected, _ = joined(1, on=on)
    assert found.equals(expected)


def test_an_error_in_a_worker_arrives_with_its_own_traceback():
    def fails(a, b):
        raise RuntimeError("no luck today")

    with pytest.raises(dt.UserFunctionError, match=r"join 'join-1'.*no luck today") as caught:
        joined(2, on=[(left.x - right.x).abs() <= 5, dt.udf(fails, ["x"], ["x"])])
    assert any("in fails" in note and "worker" in note for note in caught.value.__notes__)


def test_a_function_that_cannot_travel_is_told_before_anything_runs():
    running = (x for x in (1, 2))
    with pytest.raises(dt.FlowError, match="cannot be sent to another process.*workers=1"):
        joined(2, on=[left.x == right.x, dt.udf(lambda a, b: running and a, ["x"], ["x"])])
    assert list(root().iterdir()) == []


def test_small_steps_are_dealt_out_one_at_a_time():
    """While the cells have one before them the rows of both inputs gather; many rows do not wait for that."""
    join = ParallelJoin(banded(dt.last(600))._sinks()[0].inputs[0], {"id"}, dt.Options(), Layout("copies", "", 2))
    dealt = []
    join.workers = SimpleNamespace(deal=lambda _, message: dealt.append(message), acknowledge=lambda _: None)
    inputs = [table(n, rows=2 * SMALL_STEP).select(["x", "id", "t"]).to_batches()[0] for n in (1, 2)]

    def take(rows, at):
        """Let some rows of both inputs come."""
        for port, data in enumerate(inputs):
            batch = Batch(data.slice(0, rows), np.full(rows, at), at + 1)
            assert list(join.process(port, batch)) == []

    def rows():
        return [sum(b.num_rows for side in each.batches.values() for b in side) for each in dealt]

    take(10, at=0)
    busy = partial(Workers.busy.fget, SimpleNamespace(joins=[join]))
    assert rows() == [] and not join.full and not join.idle and not busy()
    assert list(join.settle()) == []
    assert rows() == [20] and busy()
    take(30, at=1)
    take(5, at=2)
    for cell in (0, 1):
        assert list(join.settle()) == []
        assert rows() == [20] and join.full
        join.head.take(cell, Done(0))
    assert not join.full
    assert [batch.num_rows for batch in join.collect()] == [0], "nothing but a watermark"
    assert list(join.settle()) == []
    assert rows() == [20, 70]
    for cell in (0, 1):
        join.head.take(cell, Done(1))
    assert len(list(join.collect())) == 1
    take(SMALL_STEP, at=3)
    assert len(rows()) == 4, "one for each batch"
    assert join.full, "a longer one waits for one alone"
    for cell in (0, 1):
        join.head.take(cell, Done(2))
    assert sum(batch.num_rows for batch in join.collect()) == 0 and not join.full
    take(2 * SMALL_STEP, at=4)
    assert len(rows()) == 6 and join.head.unanswered == 3 and not join.full


@pytest.mark.parametrize(("busy", "few", "gather"), [(True, 4096, True), (False, 4096, False), (True, 1, False)])
def test_while_workers_are_busy_rows_gather_in_their_sources(busy, few, gather, monkeypatch):
    """To read them a few at a time takes a core that may be a worker's."""
    expected, _ = joined(1)
    waits, real = [], Workers.wait

    def wait(self, seconds):
        waits.append(seconds)
        return real(self, seconds)

    monkeypatch.setattr(Workers, "wait", wait)
    monkeypatch.setattr(Workers, "busy", busy)
    monkeypatch.setattr("dovetail.engine.run.FEW_ROWS", few)
    assert joined(2)[0].equals(expected)
    assert (FEW_SECONDS in waits) == gather


def test_rows_that_must_wait_for_the_other_input_make_no_step():
    """Two inputs in turn: with each batch of the first a row of the second is set free, but no more."""
    join = ParallelJoin(banded(dt.last(600))._sinks()[0].inputs[0], {"id"}, dt.Options(), Layout("copies", "", 2))
    dealt = []
    join.workers = SimpleNamespace(deal=lambda _, message: dealt.append(message), acknowledge=lambda _: None)
    inputs = [table(n, rows=3 * SMALL_STEP).select(["x", "id", "t"]).to_batches()[0] for n in (1, 2)]
    for turn in range(3):
        times = np.arange(turn * SMALL_STEP, (turn + 1) * SMALL_STEP)
        for port, data in enumerate(inputs):
            batch = Batch(data.slice(turn * SMALL_STEP, SMALL_STEP), times, int(times[-1]))
            assert list(join.process(port, batch)) == []
            assert len(dealt) == turn + port
    assert all(len(each.batches["left"]) == 1 for each in dealt)


def test_windows_that_do_not_fit_say_what_to_do():
    said = r"join 'join-1': its windows and a step of rows do not fit.*batch_rows="
    with pytest.raises(dt.TransportError, match=said):
        joined(2, window=dt.last(None), arena_bytes=20_000)


# The sanitizer turns a segfault into an exit of its own.
CRASHES = [signal.SIGKILL] if "libasan" in os.environ.get("LD_PRELOAD", "") else [signal.SIGKILL, signal.SIGSEGV]


@pytest.mark.parametrize("how", CRASHES)
def test_a_death_is_an_end(how, monkeypatch):
    """Whenever a worker dies, the run ends with one error that says which and how, and leaves nothing."""
    fired = []
    real = Runner.round

    def kills(self):
        if self.graph.tasks[0].rows_in > 1000 and not fired:
            fired.append(self.workers.launcher.workers[1].process.pid)
            os.kill(fired[0], how)
        return real(self)

    monkeypatch.setattr(Runner, "round", kills)
    said = rf"worker 1 \(process \d+, core \d+\) died of signal {how.value} .* while it was running"
    with pytest.raises(dt.WorkerError, match=said):
        joined(2)
    assert fired
    with pytest.raises(ProcessLookupError):
        os.kill(fired[0], 0)
    assert list(root().iterdir()) == []


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_death_is_told_by_whoever_sends(transport, monkeypatch):
    """Where nobody is connected any more a message would wait for ever."""
    fired = []
    real = Workers.deal

    def kills(self, join, message):
        if message.number == 3:
            fired.append(self.launcher.workers[1])
            os.kill(fired[0].process.pid, signal.SIGKILL)
            while self.launcher.channels[1].socket.poll(10, zmq.POLLOUT):
                pass
        real(self, join, message)

    monkeypatch.setattr(Workers, "deal", kills)
    monkeypatch.setattr(Around, "launch", partial(Processes, transport=transport))
    with pytest.raises(dt.WorkerError, match=r"join 'join-1': worker 1 .* died of signal 9 .* while it was running"):
        joined(2)
    assert fired
    assert list(root().iterdir()) == []


def test_a_place_that_cannot_be_had_is_told(monkeypatch):
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.bind("tcp://127.0.0.1:*")
        taken = socket.getsockopt(zmq.LAST_ENDPOINT).decode()
        monkeypatch.setitem(ADDRESSES, "tcp", taken)
        monkeypatch.setattr(Around, "launch", partial(Processes, transport="tcp"))
        with pytest.raises(
            dt.TransportError,
            match=f"worker 0 cannot be awaited at {taken}: Address already in use; free a port, or run with workers=1",
        ):
            joined(2)
    assert list(root().iterdir()) == []


def test_a_path_that_is_too_long_for_a_socket_is_told(monkeypatch):
    long = root() / ("x" * 100)
    monkeypatch.setenv("DOVETAIL_RUNS", str(long))
    said = "worker 0 cannot be awaited at ipc://.*: File name too long; give a shorter path in DOVETAIL_RUNS"
    with pytest.raises(dt.TransportError, match=said):
        joined(2)
    assert list(long.iterdir()) == []


def test_flows_of_several_threads_hide_the_script_one_after_the_other():
    main, inside, go_on, seen = sys.modules["__main__"], threading.Event(), threading.Event(), []

    def other():
        with _without_main():
            inside.set()
            go_on.wait()
            seen.append(main.__spec__)

    spec, main.__spec__ = main.__spec__, "the script"
    try:
        thread = threading.Thread(target=other)
        with _without_main():
            thread.start()
            assert not inside.wait(0.2)
        go_on.set()
        thread.join()
        assert (seen, main.__spec__) == ([None], "the script")
    finally:
        main.__spec__ = spec


SCRIPT = """
    import dovetail as dt
    from dovetail import left, right

    told = []

    def tell(batch):
        if not told:
            told.append(print("running", flush=True))

    flow = dt.Flow("f")
    s = flow.read(dt.synthetic(rows=10**7, seed=1), name="s", time="ts", rate=20_000)
    s.join(s, on=(left.key - right.key).abs() <= 0.01, window=dt.last(1000)).write(dt.call(tell))
    flow.run(workers=2, every="0.1s", options=dt.Options(batch_rows=1000))
    print("stopped cleanly", flush=True)
"""  # without `if __name__ == "__main__"`: a script must not be run again by its workers


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(SCRIPT))
    pipe, command = subprocess.PIPE, [sys.executable, path]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout.readline() == "running\n", process.stderr.read()
        yield process
        process.kill()


def workers_of(pid):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


GLOBALS = """
    import math
    import numpy as np
    import dovetail as dt
    from dovetail import left, right

    LIMIT = 3

    class Scale:
        by = 2

    def helper(x):
        return np.floor(x * math.pi * Scale.by) % LIMIT == 0

    def both(a, b):
        return helper(a * b)

    flow = dt.Flow("f")
    s = flow.read(dt.memory({"t": range(1000), "x": range(1000)}), name="s", time="t")
    on = [(left.x - right.x).abs() <= 3, dt.udf(both, ["x"], ["x"])]
    out = s.join(s, on=on, window=dt.last(1000)).write(dt.collect())
    counts = [flow.run(workers=n) and out.table().num_rows for n in (1, 2)]
    print(counts[0] > 100 and counts[0] == counts[1])
"""


def test_functions_of_a_script_find_what_they_refer_to(tmp_path):
    """What a script defines goes to the workers by value, with its helpers, and nothing of it is run there again."""
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(GLOBALS))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_workers_too(script, how):
    children = workers_of(script.pid)
    assert len(children) >= 2
    os.killpg(script.pid, how) if how == signal.SIGINT else script.send_signal(how)
    out, err = script.communicate(timeout=60)
    assert "stopped cleanly" in out, err
    assert list(root().iterdir()) == []


def test_workers_do_not_outlive_a_killed_run_and_the_next_one_cleans_up(script):
    children = workers_of(script.pid)
    script.send_signal(signal.SIGKILL)
    script.wait()
    for pid in children:
        while os.path.exists(f"/proc/{pid}"):  # the kernel kills them; the test hangs if it does not
            os.sched_yield()
    (left_behind,) = root().iterdir()
    boards = [pathlib.Path("/dev/shm") / name for name in (left_behind / "boards").read_text().split()]
    assert len(boards) == 2
    joined(2)  # and that leaves nothing
    assert not any(board.exists() for board in boards)


def test_explain_says_how_a_join_is_spread():
    flow = dt.Flow("f")
    one, two = (flow.read(dt.memory(table(i)), name=f"s{i}", time="t") for i in (1, 2))
    one.join(two, on=(left.x - right.x).abs() <= 2, window=dt.last(600)).write(dt.null())
    said = str(flow.explain(workers=2))
    assert "flow 'f', joins on 2 worker processes, the rest in this one" in said
    assert "spread copies on 2 cells: costs least; all copies of the index take 0.1 MB" in said
    assert "spread" not in str(flow.explain())
    with pytest.raises(dt.FlowError, match="workers=0; give a number of processes, at least 1"):
        flow.explain(workers=0)


def test_the_command_line_takes_workers(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(
        textwrap.dedent("""
        import dovetail as dt
        from dovetail import left, right

        flow = dt.Flow("small")
        s = flow.read(dt.memory({"x": [1, 2, 3]}), name="s")
        s.join(s, on=left.x < right.x, window=dt.last(10)).write(dt.show())
    """)
    )
    for command, said in (("run", "x  x_right"), ("explain", "spread copies on 2 cells")):
        done = subprocess.run(
            [sys.executable, "-m", "dovetail", command, path, "--workers", "2"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert said in done.stdout


def banded(window, rows=100):
    flow = dt.Flow("f")
    one, two = (flow.read(dt.memory(table(i).slice(0, rows)), name=f"s{i}", time="t") for i in (1, 2))
    one.join(two, on=(left.x - right.x).abs() <= 2, window=window, name="j").write(dt.null())
    return flow


def test_the_physical_plan_names_processes_edges_and_memory():
    said = str(banded(dt.last(600)).explain(workers=3, physical=True))
    cores = sorted(os.sched_getaffinity(0))
    for worker in range(3):
        assert f"worker {worker}    core {cores[worker % len(cores)]}; cell {worker} of j" in said
    assert "this one → workers    j: " in said
    assert "at most 4 steps under way" in said
    assert "at most 8 slices of 65,536 rows under way from each" in said
    assert "full windows by rows need at least" in said
    assert "j: about 29 kB of index" in said
    timed = str(banded(dt.last(time=9)).explain(workers=2, physical=True))
    assert "no window by rows; those of j depend on the rate" in timed
    assert "workers" not in str(banded(dt.last(5)).explain(physical=True)).split("processes\n")[1]


def test_explain_says_how_many_workers_a_rate_needs():
    flow = banded(dt.last(600))
    needs = [int(re.search(r"rows/s need (\d+) worker", str(flow.explain(rate=rate)))[1]) for rate in (1e3, 1e6, 12e6)]
    assert needs[0] == 1
    assert needs == sorted(needs)
    assert needs[2] > 1
    assert "no number of workers bears 1,000,000,000 rows/s" in str(flow.explain(rate=1e9))
    for wrong in (0, -1, "fast", True, float("nan")):
        with pytest.raises(dt.FlowError, match="give rows a second"):
            flow.explain(rate=wrong)


def test_windows_that_cannot_fit_are_refused_before_anything_starts(monkeypatch):
    before = set(multiprocessing.active_children())
    with pytest.raises(
        dt.FlowError, match=r"join j: full windows need at least [\d,]+ bytes .* a run may use 1,048,576;"
    ):
        banded(dt.last(10_000_000)).run(workers=2, options=dt.Options(arena_bytes=1 << 20))
    monkeypatch.setattr("dovetail.engine.run.free_bytes", lambda: 40960)
    with pytest.raises(dt.FlowError, match=r"and 40,960 are free; make /dev/shm larger \(mount -o remount"):
        banded(dt.last(1_000_000)).run(workers=2)
    assert set(multiprocessing.active_children()) == before


def test_another_attempt_begins_when_the_memory_of_the_last_one_is_free(tmp_path, monkeypatch):
    """Else windows that fit once would not fit twice, and the third attempt fail for another reason than the first."""
    monkeypatch.setattr("dovetail.engine.coordinator.FIRST_PAUSE", 0.0)
    mapped, place = [], str(root())

    def fails(batch):
        if batch.num_rows and batch.column("id")[0].as_py() > 2000:
            lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
            mapped.append([line for line in lines if place in line and line.endswith("(deleted)")])
            raise ValueError(f"no luck, {len(mapped)}")
        return batch

    flow = dt.Flow("f")
    one, two = (flow.read(dt.memory(table(n), batch_rows=700), name=f"s{n}", time="t") for n in (1, 2))
    one = one.map(fails, one.schema)
    one.join(two, on=(left.x - right.x).abs() <= 2, window=dt.last(600)).write(dt.null())
    with pytest.raises(dt.UserFunctionError, match="no luck, 4") as caught:
        flow.run(workers=2, checkpoint=tmp_path / "state", every="0s")
    assert mapped == [[]] * 4
    (note,) = (note for note in caught.value.__notes__ if note.startswith("It was another attempt, after this: "))
    assert note.endswith("no luck, 3")


def test_more_workers_than_cores_are_told():
    cores = len(os.sched_getaffinity(0))
    with pytest.warns(UserWarning, match=rf"{cores + 1} workers share {cores} cores, .* workers={cores}"):
        banded(dt.last(5)).run(workers=cores + 1)


def test_a_death_is_noticed_while_the_sources_are_silent(monkeypatch):
    silent = threading.Event()

    @dt.source
    class Silent:
        schema = table(1).schema

        def read(self):
            silent.set()

    def kills(self):
        if silent.is_set() and self.workers.launcher.workers[1].process.is_alive():
            os.kill(self.workers.launcher.workers[1].process.pid, signal.SIGKILL)
        return real(self)

    real = Runner.rest
    monkeypatch.setattr(Runner, "rest", kills)
    flow = dt.Flow("f")
    one, two = (flow.read(Silent(), name=f"s{i}", time="t") for i in (1, 2))
    one.join(two, on=(left.x - right.x).abs() <= 2, window=dt.last(5)).write(dt.null())
    with pytest.raises(dt.WorkerError, match=r"worker 1 .* died of signal 9"):
        flow.run(workers=2)
