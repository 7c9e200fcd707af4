"""A run between its start and its end: commits, progress, pauses, Ctrl-C, and what is said about it afterwards."""

import datetime
import itertools
import signal
import threading
from collections import Counter

import dovetail as dt
import pyarrow as pa
import pytest
from dovetail import col, left, right
from dovetail.batch import END
from dovetail.config import Options
from dovetail.engine import tasks
from dovetail.engine.result import Result, StepReport
from dovetail.engine.run import PROGRESS_SECONDS
from dovetail.operators.join import JoinDriver
from flows import ALWAYS, ANY, Clock, Epochs, Feed, finish, memory, raises, rounds, started, two

# --- epochs and progress ---------------------------------------------------------------------------------


def test_sinks_show_what_they_have_every_so_often_and_at_the_end():
    clock, log = Clock(), []
    flow = dt.Flow("f")
    flow.read(Feed([[1], [2, 3], [4], None, [5]])).write(Epochs(log))
    runner = started(flow, clock, every=2)
    for _ in range(3):
        runner.round()
        clock.pass_by(1)
    assert log == [(1, 0, 0), (2, 0, 1), (1, 0, 2), "commit 0"]
    clock.pass_by(5)
    finish(runner)
    assert log[4:] == [(1, 1, 0), "commit 1", "close"]


def test_an_epoch_without_rows_is_not_committed_but_the_last_one_is():
    clock, log = Clock(), []
    flow = dt.Flow("f")
    flow.read(Feed([None] * 9)).write(Epochs(log))
    runner = started(flow, clock, every=0)
    rounds(runner, 5)
    assert log == []
    finish(runner)
    assert log == ["commit 0", "close"]


def test_progress_is_shown_about_twice_a_second():
    clock, seen = Clock(), []
    flow = dt.Flow("f")
    flow.read(Feed([[n] for n in range(8)]), time="t").write(dt.null())
    runner = started(flow, clock, progress=seen.append)
    for _ in range(8):
        runner.round()
        clock.pass_by(PROGRESS_SECONDS / 2)
    assert [status.seconds for status in seen] == [0.5, 1.0, 1.5]
    assert [(status.rows_in, status.rows_out, status.watermark) for status in seen] == [
        (3, 3, "2"), (5, 5, "4"), (7, 7, "6")
    ]  # fmt: skip


def test_progress_is_shown_at_the_end_of_a_run():
    seen = []
    stream = memory(time="t")
    stream.write(dt.null())
    stream._flow.run(progress=seen.append)
    assert (seen[-1].flow, seen[-1].rows_in, seen[-1].watermark) == ("f", 3, "end")


def test_a_watermark_before_all_times_is_shown_as_none():
    flow = dt.Flow("f")
    stream = flow.read(Feed([[5], [7]], kind=pa.timestamp("ns")), time="t", delay="100000w")
    stream.write(dt.null())
    runner = started(flow, Clock())
    rounds(runner, 1)
    assert runner.status().watermark == runner.result("stopped").steps["read-1"].watermark == "none"


def test_every_is_a_duration():
    stream = memory()
    stream.write(dt.null())
    with raises(dt.WindowError, "flow 'f': every: 'often' is not a duration"):
        stream._flow.run(every="often")
    with raises(dt.WindowError, "flow 'f': every=datetime.timedelta(days=-1) is negative"):
        stream._flow.run(every=datetime.timedelta(days=-1))
    assert stream._flow.run(every=datetime.timedelta(seconds=2)).outcome == "finished"


# --- Ctrl-C ----------------------------------------------------------------------------------------------


def interrupts(times=1):
    def item():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return [3]

    return item


def test_ctrl_c_stops_between_two_batches_and_shows_what_was_done():
    before = signal.getsignal(signal.SIGINT)
    flow, log, epochs = dt.Flow("f"), [], []
    stream = flow.read(Feed(itertools.chain([[1], [2], interrupts()], itertools.repeat([9])), log))
    out = stream.write(dt.collect())
    stream.write(Epochs(epochs))
    result = flow.run()
    assert (result.outcome, result.rows_in, len(log)) == ("stopped", 3, 3)
    assert out.table()["t"].to_pylist() == [1, 2, 3]
    assert epochs[-2:] == ["commit 0", "close"]
    assert str(result).startswith("flow 'f' stopped in ")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_the_middle_of_the_last_step_stops_before_the_end():
    """All sources have ended, and still there are results that no sink was given."""
    given = []

    @dt.sink
    class Impatient:
        def stage(self, batch, epoch, part):
            given.append(batch.num_rows)
            if len(given) == 1:
                signal.raise_signal(signal.SIGINT)

        def commit(self, epoch): ...
        def abort(self): ...

    flow = dt.Flow("f")
    a, b = (flow.read(Feed([[1, 2, 3]]), name=name, time="t", delay=100) for name in "ab")
    a.join(b, on=ANY, window=ALWAYS).write(Impatient())
    result = flow.run(options=Options(out_rows=1))
    assert (result.outcome, given) == ("stopped", [1])


def test_ctrl_c_in_the_last_batch_of_all_is_too_late_to_stop_anything():
    flow = dt.Flow("f")
    stream = flow.read(Feed([[1], [2]]), time="t", delay=100)
    interrupted = stream.map(lambda batch: signal.raise_signal(signal.SIGINT) or batch, stream.schema)
    out = interrupted.write(dt.collect())
    assert flow.run().outcome == "finished"
    assert out.table()["t"].to_pylist() == [1, 2]


def test_a_second_ctrl_c_stops_at_once():
    before = signal.getsignal(signal.SIGINT)
    flow, epochs = dt.Flow("f"), []
    stream = flow.read(Feed([[1], interrupts(2), [9]]))
    out = stream.write(dt.collect())
    stream.write(Epochs(epochs))
    with pytest.raises(KeyboardInterrupt):
        flow.run()
    assert epochs[-2:] == ["abort", "close"]
    with raises(dt.DovetailError, "the run failed and its output is incomplete"):
        out.table()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_flow_runs_outside_of_the_main_thread():
    stream, results = memory(), []
    stream.write(dt.null())
    thread = threading.Thread(target=lambda: results.append(stream._flow.run()))
    thread.start()
    thread.join(60)
    assert [result.outcome for result in results] == ["finished"]


def test_a_run_pauses_while_sources_have_nothing():
    stream = dt.Flow("f").read(Feed([None, [1], None, [2]]))
    out = stream.write(dt.collect())
    stream._flow.run(options=Options(poll_seconds=0))
    assert out.table()["t"].to_pylist() == [1, 2]


def test_a_run_without_results_does_not_show_those_of_the_run_before():
    def fn(batch):
        assert batch.num_rows
        return batch

    flow = dt.Flow("f")
    out = flow.read(Feed(iter([[1, 2]]))).map(fn).write(dt.collect())  # the second run finds nothing left
    flow.run()
    assert out.table().num_rows == 2
    assert flow.run().rows_out == 0
    assert out.table().num_rows == 0


# --- what is said about a run ----------------------------------------------------------------------------


def test_a_result_counts_steps_by_name_and_prints_as_a_table():
    flow = dt.Flow("f")
    stream = flow.read(Feed([[5, 3, 6]]), name="a", time="t")
    stream.filter(col("t") > 5, name="few").write(dt.null(), name="out")
    result = flow.run()
    assert (result.rows_in, result.rows_out, result.late, result.outcome) == (3, 1, 1, "finished")
    few = result.steps["few"]
    assert (few.kind, few.rows_in, few.rows_out, few.watermark) == ("filter", 2, 1, "end")
    assert result.rate == pytest.approx(3 / result.seconds)


def test_a_result_as_text():
    steps = {
        "a": StepReport("a", "read", 12_000, 11_999, late=1, watermark="end"),
        "out": StepReport("out", "write", 11_999, 0, watermark="end"),
    }
    assert str(Result("f", "finished", 2.0, steps)).splitlines() == [
        "flow 'f' finished in 2.00 s: 12,000 rows in (6,000 a second), 11,999 out, 1 late",
        "step  kind   rows in  rows out  late  watermark",
        "----  -----  -------  --------  ----  ---------",
        "a     read    12,000    11,999     1  end",
        "out   write   11,999         0        end",
    ]
    assert Result("f", "finished", 0.0).rate == 0.0
    assert Result("f", "finished", 2.0, steps, Result("f", "finished", 2.0, steps).rows_in).rate == 0.0


def test_a_status_has_the_watermark_of_the_source_that_is_furthest_behind():
    flow, _, _ = two([[7]], [[3]])
    runner = started(flow, Clock())
    assert runner.status().watermark == "none"
    rounds(runner, 1)
    assert runner.status().watermark == "3"
    assert runner.status().held_bytes > 0
    finish(runner)
    assert runner.status().watermark == "end"
    assert all(task.watermark == END for task in runner.graph.tasks)

@pytest.mark.parametrize(("small", "near", "again"), [(1 << 15, 6, 6), (16, 6, 6), (1, 10, 15)])
def test_what_a_round_brings_of_all_sources_is_one_step_of_a_join(small, near, again, monkeypatch):
    """Unless those that can go on are so many that they are a step by themselves.

    A join behind a join has its own step in the same round.
    """
    steps = {"join 'near'": near, "join 'again'": again}
    monkeypatch.setattr(tasks, "SMALL_STEP", small)
    done, step = Counter(), JoinDriver.step

    def counted(self, *sides):
        done[self.spec.name] += 1
        return step(self, *sides)

    monkeypatch.setattr(JoinDriver, "step", counted)
    flow = dt.Flow("f")
    times = list(range(80))
    a, b = (memory({"t": times, "x": times}, flow, name, time="t", batch_rows=16) for name in ("a", "b"))
    first = a.join(b, on=left.x == right.x, window=dt.last(4), name="near")
    both = first.join(b, on=left.x == right.x, window=dt.last(4), suffix="_b", name="again")
    sink = both.write(dt.collect())
    runner = started(flow, Clock())
    while not runner.finished():
        runner.round()
        assert all(join.idle for join in runner.joins)
    assert finish(runner).outcome == "finished"
    assert sink.table()["x"].to_pylist() == times
    assert done == steps
