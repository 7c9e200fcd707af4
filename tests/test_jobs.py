"""Jobs: a flow that runs beside its owner, and what can be asked of it: status, savepoints, other workers, to stop."""

import os
import re
import shutil
import threading

import dovetail as dt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dovetail import left, right
from dovetail.engine import tasks
from dovetail.engine.cells import ParallelJoin
from dovetail.engine.control import Mailbox
from dovetail.engine.keeper import keeping
from dovetail.engine.parallel import CellMachine, Head, Slice
from dovetail.engine.run import Runner
from dovetail.engine.watch import Beat, Watch
from dovetail.operators.layouts import Layout
from dovetail.operators.numbering import Step

ROWS = 3000


def table(seed):
    rng = np.random.default_rng(seed)
    return pa.table({"t": np.arange(ROWS) // 3, "x": rng.integers(0, 60, ROWS), "id": np.arange(ROWS)})


TABLES = table(1), table(2)


class Gate:
    """A function that holds a batch back until the job is asked for something; once for each of some counts of rows."""

    def __init__(self, *stops):
        self.stops, self.rows = list(stops), 0
        self.started, self.reached = threading.Event(), threading.Semaphore(0)

    def __call__(self, batch):
        self.rows += batch.num_rows
        if self.stops and self.rows >= self.stops[0]:
            self.stops.pop(0)
            self.started.wait()
            self.reached.release()
            while not self.job.mailbox.wait(1.0):
                pass
        return batch

    def start(self, flow, **options):
        self.job = flow.start(**options)
        self.started.set()
        return self.job

    def ask(self, question, *arguments, **more):
        """Ask when the flow has come to the next stop."""
        self.reached.acquire()
        return question(*arguments, **more)


def written(gate=lambda batch: batch, out=None, layout="auto", batch_rows=100):
    """A flow that joins two streams; return it and its sink."""
    flow = dt.Flow("f")
    inputs = [dt.memory(rows, batch_rows=batch_rows) for rows in TABLES]
    one, two = (flow.read(rows, name=f"s{n}", time="t") for n, rows in enumerate(inputs))
    one = one.map(gate, one.schema, name="gate")
    pairs = one.join(two, on=(left.x - right.x).abs() <= 1, window=dt.last(400), layout=layout, name="pairs")
    return flow, pairs.select("id", "id_right").write(dt.collect() if out is None else out)


@pytest.fixture(scope="module")
def expected():
    flow, sink = written()
    flow.run()
    return sink.table()


def test_a_job_runs_beside_its_owner_and_ends_by_itself(expected):
    gate = Gate(1000)
    flow, sink = written(gate)
    job = gate.start(flow)
    assert job.running and "running" in repr(job)
    with pytest.raises(TimeoutError, match="flow 'f' still runs after 0 s"):
        job.wait(timeout=0)
    status = gate.ask(job.status)
    assert (status.flow, status.workers, status.checkpoint, status.attempt) == ("f", 1, None, 1)
    assert 900 <= status.rows_in < 2 * ROWS
    assert job.wait().outcome == "finished"
    assert not job.running
    assert sink.table().equals(expected)
    assert job.stop().outcome == "finished", "to stop what has ended is no matter"
    with pytest.raises(dt.DovetailError, match="flow 'f' has finished: there is nothing to ask of it any more"):
        job.status()


def test_what_ends_a_job_is_told_when_nobody_waits_for_it(capfd):
    def fails(batch):
        raise ValueError("no luck")

    job = written(fails)[0].start()
    while job.running:
        os.sched_yield()
    said = capfd.readouterr().err
    assert said.startswith("dovetail: flow 'f' has failed: ") and "no luck" in said
    with pytest.raises(dt.FlowError, match="savepoint=5 is no path"):
        written()[0].start().savepoint(5)
    with pytest.raises(dt.FlowError, match="checkpoint=5 is no path"):
        written()[0].run(checkpoint=5)


def test_what_ends_a_job_is_raised_where_it_is_waited_for():
    def fails(batch):
        if batch.num_rows:
            raise ValueError("no luck")
        return batch

    job = written(fails)[0].start()
    with pytest.raises(dt.UserFunctionError, match="no luck"):
        job.wait()
    with pytest.raises(dt.DovetailError, match="flow 'f' has failed: .*no luck"):
        job.savepoint("anywhere")


@pytest.mark.parametrize("path", [(1, 2, 1), (2, 3, 2)])
def test_another_number_of_workers_changes_no_result(tmp_path, expected, path):
    gate = Gate(600, 900, 1500, 2000)
    flow, sink = written(gate)
    job = gate.start(flow, checkpoint=tmp_path / "state", every="0s", workers=path[0])
    for workers in path[1:]:
        gate.ask(job.rescale, workers)
        assert gate.ask(job.status).workers == workers
    job.wait()
    assert sink.table().equals(expected)


def test_another_attempt_is_spread_by_what_the_last_one_has_met(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "MET_ROWS", 500)

    def flow_of(gate):
        flow, sink = dt.Flow("f"), dt.collect()
        one, two = (flow.read(dt.memory(t, batch_rows=100), name=f"s{n}", time="t") for n, t in enumerate(TABLES))
        near = (left.x - right.x).abs() <= 1
        one = one.map(gate, one.schema, name="gate")
        one.join(two, on=near, window=dt.last(time=100), name="j").write(sink)
        return flow, sink

    flow, expected = flow_of(lambda batch: batch)
    flow.run()
    gate = Gate(2500)
    flow, sink = flow_of(gate)
    job = gate.start(flow, checkpoint=tmp_path / "state", every="0s", workers=2)
    gate.ask(job.rescale, 5)
    spread = job.wait().steps["j"].spread
    assert spread.startswith("copies on 5 cells: costs least as it was met: a row finds "), spread
    assert re.search("windows held [23]0[0-9] and [23]0[0-9]", spread), spread  # three rows have one time
    assert sink.table().equals(expected.table())


def test_what_was_met_is_told_of_what_was_answered():
    flow, _ = written()
    join = ParallelJoin(flow._sinks()[0].inputs[0].inputs[0], {"id"}, dt.Options(), Layout("copies", "", 1))
    cell = CellMachine(join.node.spec, join.columns, 1 << 16, join.layout, 0)
    steps = {}
    for side, rows in zip(("left", "right"), TABLES, strict=True):
        batch = rows.combine_chunks().to_batches()[0]
        steps[side] = Step([batch.select(join.inputs[side].names)], batch["t"].to_numpy())
    message = join.head.deal(steps, 1000)
    assert join.met() is None  # nobody knows what these have found
    pairs = 0
    for answer in cell.handle(message):
        pairs += answer.data.num_rows if isinstance(answer, Slice) else 0
        join.head.take(0, answer)
    assert list(join.head.results())
    met = join.met()
    assert met.rates == (ROWS, ROWS) and met.pairs == pytest.approx(pairs / (2 * ROWS)) and pairs > 1000
    # A window is as large as it has been, also when it is empty now.
    before = met.rows
    nothing = {side: Step([], np.empty(0, np.int64)) for side in steps}
    join.head.deal(nothing, 10**6)
    assert join.met().rows == before and min(before) > 0


@pytest.mark.parametrize("layout", ["copies", "range", "matrix"])
def test_rows_of_a_checkpoint_are_not_written_again_for_workers(tmp_path, expected, layout):
    def runner_of(flow, keeper):
        return Runner("f", flow._sinks(), dt.Options(), 1e9, workers=2, keeper=keeper)

    state = str(tmp_path / "state")
    flow, _ = written(layout=layout, batch_rows=1000)  # smaller ones travel inside messages
    with keeping("f", flow._sinks(), state, 1e9) as keeper:
        runner = runner_of(flow, keeper)
        runner.open()
        runner.round()
        runner.checkpoint()
        runner.close(failed=True)
    flow, _ = written(layout=layout, batch_rows=1000)
    with keeping("f", flow._sinks(), state, 1e9) as keeper:
        runner = runner_of(flow, keeper)
        runner.open()
        assert runner.status().rows_in > 0  # it goes on, with windows that are not empty
        assert runner.workers.arena.held == 0  # they stand in files, which workers read in place
        runner.close(failed=True)
    flow, sink = written(layout=layout, batch_rows=1000)
    flow.run(checkpoint=state, workers=2)
    assert sink.table().equals(expected)


@pytest.mark.parametrize("layout", ["auto", "range"])
def test_windows_of_all_kinds_come_back_on_workers(tmp_path, layout):
    """By rows and by time, of one stream and of two, with columns that are more than numbers."""

    def flow_of(gate):
        flow, streams = dt.Flow("f"), []
        for n, rows in enumerate(TABLES):
            texts = pa.array([None if k % 7 == 0 else "é" * (k % 9) for k in range(ROWS)])
            rows = rows.append_column("text", texts).append_column("kind", texts.dictionary_encode())
            streams.append(flow.read(dt.memory(rows, batch_rows=600), name=f"s{n}", time="t"))
        one, two = streams[0].map(gate, streams[0].schema, name="gate"), streams[1]
        near = (left.x - right.x).abs() <= 1
        joins = [
            one.join(one, on=near, window=dt.last(time=150), layout=layout, name="itself"),
            one.join(two, on=near, window=(dt.last(400), dt.last(time=150)), layout=layout, name="both"),
        ]
        return flow, [join.write(dt.collect()) for join in joins]

    flow, expected = flow_of(lambda batch: batch)
    flow.run()
    gate = Gate(600, 1800, 2400)
    flow, sinks = flow_of(gate)
    job = gate.start(flow, checkpoint=tmp_path / "state", every="0s", workers=2)
    for workers in (3, 1, 2):
        gate.ask(job.rescale, workers)
    job.wait()
    for before, after in zip(expected, sinks, strict=True):
        assert before.table().num_rows > 1000
        assert before.table().to_pylist() == after.table().to_pylist()


def test_a_savepoint_begins_any_number_of_runs_with_any_layout(tmp_path, expected):
    gate = Gate(1500)
    flow, sink = written(gate)
    job = gate.start(flow, checkpoint=tmp_path / "state", every="0s")
    number = gate.ask(job.savepoint, tmp_path / "saved")
    job.wait()
    assert sink.table().equals(expected)
    shutil.rmtree(tmp_path / "state")
    for n, (workers, layout) in enumerate([(1, "auto"), (2, "matrix"), (3, "range")]):
        flow, sink = written(layout=layout)
        flow.run(checkpoint=tmp_path / f"again-{n}", savepoint=tmp_path / "saved", workers=workers)
        assert sink.table().equals(expected)
    assert (tmp_path / "saved" / f"checkpoint-{number:06d}.json").exists()
    flow, sink = written()  # the same command again goes on with what it has made
    flow.run(checkpoint=tmp_path / "again-0", savepoint=tmp_path / "saved")
    assert sink.table().equals(expected)


def test_ranges_are_cut_after_a_restore_as_they_were_before():
    """Keys lie close together: even pieces of all numbers would leave everything to one cell."""
    spec = written(layout="range")[0]._sinks()[0].inputs[0].inputs[0].spec
    heads = [Head(spec, pa.schema([]), 1, Layout("range", "", cells), 4) for cells in (2, 3)]
    keys = np.arange(2**63, 2**63 + 300, dtype=np.uint64)
    heads[0].balance.fit({"left": keys, "right": keys})
    heads[1].cut(heads[0].sample(), {})
    again = heads[1].deal_again("left", 0, [])
    lows = [cell[0].low - 2**63 for cell in again.pieces["left"][1:]]
    assert lows == [100, 200], "also with another number of cells"


def test_ranges_are_cut_by_rows_that_come_back_if_nobody_has_noted_by_which():
    """One process alone has no ranges."""
    spec = written(layout="range")[0]._sinks()[0].inputs[0].inputs[0].spec
    head = Head(spec, pa.schema([]), 1, Layout("range", "", 3), 4)
    x = pa.array([None if n % 10 == 0 else n % 300 for n in range(6000)], pa.int64())
    batches = pa.table({"x": x, "id": x}).to_batches(max_chunksize=700)
    head.cut(None, {"left": batches, "right": batches[:0]})
    pieces = head.deal_again("left", 0, []).pieces
    assert [round(cell[0].low - 2**63, -1) for cell in pieces["left"][1:]] == [100, 200]
    assert len(pieces["right"]) == 3  # of which nothing is known


def test_what_was_written_since_a_savepoint_is_taken_back(tmp_path, expected):
    gate = Gate(1500)
    job = gate.start(written(gate, dt.parquet(tmp_path / "out"))[0], checkpoint=tmp_path / "state", every="0s")
    gate.ask(job.savepoint, tmp_path / "saved")
    job.wait()
    assert pq.read_table(tmp_path / "out").equals(expected)
    written(out=dt.parquet(tmp_path / "out"))[0].run(checkpoint=tmp_path / "new", savepoint=tmp_path / "saved")
    assert pq.read_table(tmp_path / "out").equals(expected)


def stopped_with_savepoint(tmp_path, sink=None):
    gate = Gate(1500)
    job = gate.start(written(gate, sink)[0], checkpoint=tmp_path / "state")
    assert gate.ask(job.stop, savepoint=tmp_path / "saved").outcome == "stopped"


def test_stopping_leaves_a_savepoint(tmp_path, expected):
    stopped_with_savepoint(tmp_path)
    flow, sink = written()
    flow.run(checkpoint=tmp_path / "new", savepoint=tmp_path / "saved", workers=2)
    assert sink.table().equals(expected)
    flow, sink = written()
    flow.run(checkpoint=tmp_path / "state")
    assert sink.table().equals(expected)


def test_what_cannot_be_done_is_told_and_the_job_runs_on(tmp_path, expected):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    (tmp_path / "file").touch()
    gate = Gate(600, 900, 1200, 1500, 1800)
    flow, sink = written(gate)
    job = gate.start(flow, checkpoint=tmp_path / "state")
    for ask, says in [
        (lambda: job.savepoint(tmp_path / "full"), "savepoint '.*full' holds 'notes.txt'; give a folder that is new"),
        (lambda: job.stop(savepoint=tmp_path / "full"), "holds 'notes.txt'; give a folder that is new or empty"),
        (lambda: job.savepoint(tmp_path / "file" / "x"), "savepoint '.*x': Not a directory; give a folder that is new"),
        (lambda: job.mailbox.ask("status") and job.rescale(0), "workers=0; give a number of processes, at least"),
    ]:
        with pytest.raises(dt.DovetailError, match=says):
            gate.ask(ask)
    assert gate.ask(job.status).checkpoint >= 0
    job.wait()
    assert sink.table().equals(expected)


def test_without_checkpoints_there_are_no_savepoints_and_no_other_workers(tmp_path):
    gate = Gate(500, 1000, 1500)
    job = gate.start(written(gate)[0])
    for ask in (
        lambda: job.savepoint(tmp_path / "saved"),
        lambda: job.rescale(2),
        lambda: job.stop(savepoint=tmp_path / "saved"),
    ):
        with pytest.raises(dt.FlowError, match=r"needs a run with checkpoint=…"):
            gate.ask(ask)
    job.wait()
    for more in ({"savepoint": "there"}, {"fresh": True}):
        with pytest.raises(dt.FlowError, match="means nothing without checkpoint=…"):
            written()[0].run(**more)


def test_folders_that_a_run_cannot_begin_with(tmp_path):
    stopped_with_savepoint(tmp_path)
    written()[0].run(checkpoint=tmp_path / "other")
    for options, says in [
        ({"checkpoint": tmp_path / "saved"}, r"is a savepoint, .*: checkpoint='…', savepoint='.*saved'"),
        ({"checkpoint": tmp_path / "n", "savepoint": tmp_path / "other"}, "savepoint='.*other' is no savepoint; give"),
        ({"checkpoint": tmp_path / "n", "savepoint": tmp_path / "none"}, "savepoint='.*none' is no savepoint; give"),
        ({"checkpoint": tmp_path / "other", "savepoint": tmp_path / "saved"},
         "other' holds checkpoint [0-9]+, which did not begin with savepoint='.*saved'; give a folder that is new"),
    ]:  # fmt: skip
        with pytest.raises(dt.CheckpointError, match=says):
            written()[0].run(**options)
    assert not list((tmp_path / "n").glob("*.json"))


class Shop:
    """A sink of one's own that remembers, outside of it, what it has shown."""

    transactional = True
    shown: "list[tuple[int, int]]" = []

    def open(self, schema, lineage):
        self.staged = []

    def stage(self, batch, epoch, part):
        self.staged.append((epoch, batch.num_rows))

    def commit(self, epoch):
        last = max((e for e, _ in self.shown), default=-1)
        self.shown += [(e, n) for e, n in self.staged if last < e <= epoch]
        self.staged = [(e, n) for e, n in self.staged if e > epoch]

    def abort(self):
        self.staged = []


class Knowing(Shop):
    def committed(self):
        return max((e for e, _ in self.shown), default=None)


class Rewinding(Knowing):
    def rewind(self, epoch):
        self.shown[:] = [(e, n) for e, n in self.shown if e <= epoch]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Shop, "Shop: the flow goes on behind epoch [0-9]+, and it has shown perhaps more than that; give the class"),
        (Knowing, "Knowing: the flow goes on behind epoch [0-9]+, and it has shown epochs up to [0-9]+; give the"),
        (Rewinding, None),
    ],
)
def test_an_own_sink_is_rewound_to_a_savepoint_or_says_that_it_cannot_be(tmp_path, expected, kind, says):
    kind.shown = []
    stopped_with_savepoint(tmp_path, dt.sink(kind)())
    written(out=dt.sink(kind)())[0].run(checkpoint=tmp_path / "state")
    assert sum(n for _, n in kind.shown) == expected.num_rows
    again = written(out=dt.sink(kind)())[0]
    if says is None:
        again.run(checkpoint=tmp_path / "new", savepoint=tmp_path / "saved")
        assert sum(n for _, n in kind.shown) == expected.num_rows
    else:
        with pytest.raises(dt.SinkError, match=says):
            again.run(checkpoint=tmp_path / "new", savepoint=tmp_path / "saved")


def test_a_question_that_nobody_answers_any_more_is_answered():
    box = Mailbox()
    before = box.ask("status")
    box.close("it has ended")
    for asked in (before, box.ask("status")):
        with pytest.raises(dt.DovetailError, match="it has ended"):
            asked.result(0)


# Silence


def test_whoever_watches_judges_only_what_it_has_seen():
    """A debugger, Ctrl-Z or a long read may stop the one who looks, and all the others with it."""
    watch = Watch(1, limit=5.0)
    watch.look(0.0, [Beat(1, False)])
    assert watch.look(100.0, [Beat(1, False)]) == ([0], []), "a second of it was watched"
    for now in range(101, 105):
        _, silent = watch.look(float(now), [Beat(1, False)])
    assert silent == [(0, "has not moved for 5 s: it is stopped, or its interpreter is stuck")]


@pytest.mark.parametrize("limit", [1.0, 1.5, 10.0])
def test_one_that_waits_for_work_has_time_to_answer(limit):
    """Whatever the limit, and however rarely anybody looks, it is asked before it is taken to be silent."""
    for between in (0.1, 0.25, 0.9, 5.0):
        watch = Watch(1, limit)
        for n in range(1, 100):
            ask, silent = watch.look(n * between, [Beat(n, False)])
            assert not silent
            if ask:
                watch.heard(0)


def test_one_that_computes_for_long_is_left_alone():
    watch = Watch(2, limit=3.0)
    for now in range(60):
        _, silent = watch.look(float(now), [Beat(now, True), Beat(now, False)])
        watch.heard(1)
        assert not silent
