"""Flows as written, and as they run: what is refused, what is read when, and what is said about it.

Time is a `Clock` that stands still unless a test moves it. Sources are lists: a list of times is a batch, None is
"nothing now", and a function is called when the source is read.
"""

import datetime
import itertools
import re
import signal
import threading
from decimal import Decimal
from fractions import Fraction

import dovetail as dt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from dovetail import END_OF_SOURCE, col, left, right
from dovetail.batch import END
from dovetail.config import Options
from dovetail.engine.graph import Rate
from dovetail.engine.result import Result, StepReport
from dovetail.engine.run import PROGRESS_SECONDS, Runner, due_in

SCHEMA = pa.schema([("t", pa.int64()), ("id", pa.int64())])
ANY = left.id >= right.id - 10**9  # holds for every pair here
ALWAYS = dt.last(None)


def raises(kind, text):
    """An error with this text; `@here` is a line of this file."""
    return pytest.raises(kind, match=re.escape(text).replace("@here", r"\(\S*test_engine\.py:\d+\)"))


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def pass_by(self, seconds):
        self.now += seconds


@dt.source
class Feed:
    """What a list holds, one item at each read; `id` counts the rows."""

    schema = SCHEMA

    def __init__(self, items, log=None, name=""):
        self.items, self.log, self.name = iter(items), log, name
        self.rows = 0

    def read(self):
        if self.log is not None:
            self.log.append(self.name)
        item = next(self.items, END_OF_SOURCE)
        while callable(item):
            item = item()
        if not isinstance(item, list):
            return item
        ids = range(self.rows, self.rows + len(item))
        self.rows += len(item)
        return pa.record_batch([pa.array(item, pa.int64()), pa.array(ids, pa.int64())], schema=SCHEMA)


class Asked:
    """A source that remembers for which columns it was asked."""

    def __init__(self, data, schema=None):
        self.inner = dt.memory(data)
        self.schema = schema or self.inner.schema
        self.columns = []

    def describe(self):
        return "asked"

    def reader(self, columns):
        self.columns.append(columns)
        return self.inner.reader(columns)


class Broken:
    """A sink that fails in one of its calls."""

    transactional = False

    def __init__(self, at, error):
        self.at, self.error = at, error

    def describe(self):
        return "broken"

    def check(self, schema):
        pass

    def writer(self, schema, lineage):
        return self

    def _maybe(self, call):
        if call == self.at:
            raise self.error

    def stage(self, batch, epoch, part):
        self._maybe("stage")

    def commit(self, epoch):
        self._maybe("commit")

    def abort(self):
        self._maybe("abort")

    def close(self):
        self._maybe("close")


def waking(items):
    """Whatever has been put into a list since the last look; if there is nothing, nothing."""
    return (items.pop(0) if items else None for _ in itertools.repeat(None))


def without(name, value):
    """A function that drops rows."""
    return lambda batch: batch.filter(pc.not_equal(batch[name], value))


def silent(*items):
    """These items, and then nothing, for ever."""
    return itertools.chain(items, itertools.repeat(None))


def started(flow, clock, every=1e9, progress=None, **options):
    runner = Runner(flow.name, flow._sinks(), Options(**options), every, progress, clock, clock.pass_by)
    runner.open()
    return runner


def rounds(runner, n):
    return [runner.round() for _ in range(n)]


def finish(runner):
    while not runner.finished():
        if not runner.round():
            runner.pause(runner.options.poll_seconds)
    runner.commit(last=True)
    runner.close(failed=False)
    return runner.result("finished")


def two(a, b, log=None, a_options=None, b_options=None):
    """A flow with two sources that meet in a union; the sink's table is the ids of b plus 1000 in order."""
    flow = dt.Flow("f")
    first = flow.read(Feed(a, log, "a"), name="a", time="t", **(a_options or {}))
    second = flow.read(Feed(b, log, "b"), name="b", time="t", **(b_options or {}))
    seen = []
    both = first.union(second.with_columns(id=col("id") + 1000))
    both.write(dt.call(lambda batch: seen.extend(batch["id"].to_pylist())))
    return flow, first, seen


def shown(runner, seen):
    runner.commit()
    return list(seen)


def told(fn):
    """What a function returns, or the error that it raises, as text."""
    try:
        return fn()
    except dt.DovetailError as error:
        return str(error)


def collected(stream):
    out = stream.write(dt.collect())
    stream._flow.run()
    return out.table()


def memory(data=None, flow=None, name=None, time=None, **options):
    """A stream over rows in memory, by default t = 1, 2, 3 and x = 10, 20, 30."""
    flow = flow or dt.Flow("f")
    data = {"t": [1, 2, 3], "x": [10, 20, 30]} if data is None else data
    return flow.read(dt.memory(data, batch_rows=options.pop("batch_rows", 65_536)), name=name, time=time, **options)


# --- which source is read ----------------------------------------------------------------------------------


def test_the_source_that_is_furthest_behind_is_read_first():
    log = []
    flow, _, seen = two([[1], [2], [11], [20]], [[10], [12]], log)
    finish(started(flow, Clock()))
    # a 1, b 10, a 2, a 11: b is behind; b 12: a is behind; a 20: b is behind, and ends; a ends
    assert "".join(log) == "abaababa"
    assert seen == [0, 1, 1000, 2, 1001, 3]


def test_a_source_that_has_nothing_is_passed_over():
    log = []
    flow, _, _ = two(silent(), [[1], [2], [3]], log)
    runner = started(flow, Clock())
    assert rounds(runner, 5) == [True, True, True, True, False]
    assert log == ["a", "b", "a", "b", "a", "b", "a", "b", "a"]


def test_without_time_the_source_that_has_brought_fewest_rows_is_read_first():
    log = []
    flow = dt.Flow("f")
    a = flow.read(Feed([[1, 2, 3], [4]], log, "a"), name="a")
    b = flow.read(Feed([[1], [2], [3], [4]], log, "b"), name="b")
    a.union(b).write(dt.null())
    finish(started(flow, Clock()))
    assert "".join(log) == "abbbabab"


def test_sources_that_never_meet_are_read_in_turn():
    log = []
    flow = dt.Flow("f")
    for name in "ab":
        flow.read(Feed([[100 if name == "b" else 1], [200]], log, name), name=name, time="t").write(dt.null())
    finish(started(flow, Clock()))
    assert "".join(log) == "ababab"


def test_different_units_are_compared_as_times():
    log = []

    @dt.source
    class Stamped:
        def __init__(self, unit, times):
            self.schema = pa.schema([("t", pa.timestamp(unit))])
            self.times, self.unit = iter(times), unit

        def read(self):
            log.append(self.unit)
            time = next(self.times, None)
            return END_OF_SOURCE if time is None else pa.record_batch([pa.array([time], self.schema[0].type)], ["t"])

    flow = dt.Flow("f")
    a = flow.read(Stamped("s", [5, 6]), name="a", time="t")
    b = flow.read(Stamped("ms", [1000, 5500, 7000]), name="b", time="t")
    a.join(b, on=left.t <= right.t, window=ALWAYS).write(dt.null())
    finish(started(flow, Clock()))
    assert log == ["s", "ms", "ms", "s", "ms", "s", "ms"]


def test_a_source_that_is_ahead_is_paused_when_too_much_waits():
    log = []
    late_start = [None] * 20
    flow, _, seen = two([*late_start, [1], [5]], [[n] for n in range(2, 50)], log)
    runner = started(flow, Clock(), hold_bytes=100)
    rounds(runner, 20)
    assert runner.status().held_bytes > 100
    assert log.count("b") == 5, "five rows of 24 bytes are more than 100"
    rounds(runner, 2)
    assert log[-1] == "a"
    finish(runner)
    assert seen == [0, 1000, 1001, 1002, 1, *range(1003, 1048)]
    assert log.count("b") == 49


def test_the_source_that_is_behind_is_read_however_much_waits():
    flow, _, seen = two([[n] for n in range(9)], [[100] * 50], log := [])
    finish(started(flow, Clock(), hold_bytes=1))
    assert seen == [*range(9), *range(1000, 1050)]
    assert log.count("b") == 2


def test_long_batches_are_taken_in_parts():
    log = []
    flow, _, seen = two([list(range(10))], [[4, 4]], log)
    runner = started(flow, Clock(), batch_rows=4)
    finish(runner)
    assert seen == [0, 1, 2, 3, 4, 1000, 1001, 5, 6, 7, 8, 9]
    assert log.count("a") == 2


# --- idle sources ------------------------------------------------------------------------------------------


def test_a_silent_source_holds_others_back_until_idle_has_passed():
    clock = Clock()
    flow, _, seen = two(silent(), silent([5], [6]), a_options={"idle": "10s"})
    runner = started(flow, clock)
    for _ in range(10):
        runner.round()
        assert shown(runner, seen) == []
        clock.pass_by(1)
    assert runner.round() is True
    assert shown(runner, seen) == [1000, 1001]
    assert rounds(runner, 1) == [False]


def test_without_idle_a_silent_source_holds_others_back_for_ever():
    clock = Clock()
    flow, _, seen = two(silent(), silent([5], [6]))
    runner = started(flow, clock)
    for _ in range(5):
        rounds(runner, 3)
        clock.pass_by(1e6)
    assert shown(runner, seen) == []


def test_a_source_is_not_idle_because_another_is_slow():
    """The first read of b takes a minute; a was not asked meanwhile, and has something when it is."""
    clock = Clock()

    def slow():
        clock.pass_by(60)
        return [7]

    flow, first, seen = two([[1], [2]], [slow, [8]], a_options={"idle": "10s"}, b_options={})
    first.late.write(dt.null())
    result = finish(started(flow, clock))
    assert result.late == 0
    assert seen == [0, 1, 1000, 1001]


def test_silence_counts_from_when_a_source_was_first_asked():
    clock = Clock()
    flow, _, seen = two(silent(), silent([5]), a_options={"idle": "10s"})
    runner = started(flow, clock)
    clock.pass_by(60)
    rounds(runner, 2)
    assert shown(runner, seen) == []
    clock.pass_by(9)
    rounds(runner, 1)
    assert shown(runner, seen) == []
    clock.pass_by(1)
    rounds(runner, 1)
    assert shown(runner, seen) == [1000]


def test_silence_ends_with_each_row():
    clock = Clock()
    flow, _, seen = two(silent([1], None, [2], None), silent([5]), a_options={"idle": "10s"})
    runner = started(flow, clock)
    for _ in range(5):
        runner.round()
        clock.pass_by(6)
    assert shown(runner, seen) == [0, 1]


def test_a_source_that_is_held_back_is_not_idle():
    """a is far ahead, and not asked as too much waits; when it is asked it must be given its time."""
    clock = Clock()
    log = []
    flow, _, seen = two(silent([100] * 9, None), silent(), log, a_options={"idle": "10s"})
    runner = started(flow, clock, hold_bytes=1)
    for _ in range(5):
        rounds(runner, 2)
        clock.pass_by(60)
    assert log.count("a") == 1
    assert shown(runner, seen) == []
    assert runner.graph.tasks[0].watermark == 100


def test_the_time_in_which_a_source_was_held_back_does_not_count_as_silence():
    """a says once that it has nothing, is then held back for a minute, and is asked again."""
    clock = Clock()
    flow = dt.Flow("f")
    wakes = []
    low = flow.read(Feed(waking(wakes)), name="low", time="t")
    a = flow.read(Feed(silent([10])), name="a", time="t", idle="10s")
    b = flow.read(Feed([[20], [100] * 9]), name="b", time="t")
    low.union(a, b).write(dt.null())
    runner = started(flow, clock, hold_bytes=100)
    rounds(runner, 3)
    state = next(s for s in runner._sources() if s.task.node.name == "a")
    assert state.silent_since == 0, "a was asked, and had nothing"
    clock.pass_by(60)
    rounds(runner, 2)
    wakes.append([50])
    rounds(runner, 2)
    assert state.task.watermark == 10, "it could have been read for no longer than an instant"
    clock.pass_by(10)
    rounds(runner, 2)
    assert state.task.watermark > 10


def test_a_paced_source_is_not_idle():
    clock = Clock()
    flow, _, seen = two(silent([1] * 100, [2]), silent([1], [5]), a_options={"idle": "2s", "rate": 10})
    runner = started(flow, clock)
    for _ in range(9):
        rounds(runner, 3)
        clock.pass_by(1)
    assert shown(runner, seen) == list(range(100))
    clock.pass_by(2)
    rounds(runner, 2)
    assert shown(runner, seen)[100:] == [1000, 100]


def test_a_source_that_resumes_is_read_again_and_rows_below_its_promise_are_late():
    clock = Clock()
    woken = []
    flow, first, seen = two(waking(woken), waking(others := [[5], [9]]), a_options={"idle": "10s"})
    late = []
    first.late.write(dt.call(lambda batch: late.extend(batch["t"].to_pylist())))
    runner = started(flow, clock)
    rounds(runner, 4)
    clock.pass_by(10)
    rounds(runner, 1)
    assert shown(runner, seen) == [1000, 1001]
    woken.append([3, 9, 10, 4, 12])
    rounds(runner, 2)
    assert shown(runner, seen) == [1000, 1001]
    assert late == [3, 9, 4]
    assert runner.status().late == 3
    others.append([20])
    rounds(runner, 2)
    assert shown(runner, seen) == [1000, 1001, 2, 4], "and b's 20 waits, as a brings rows again"
    assert runner.result("stopped").steps["a"].late == 3


def test_rows_that_come_after_idleness_and_above_the_promise_are_joined():
    clock = Clock()
    flow = dt.Flow("f")
    woken = []
    a = flow.read(Feed(waking(woken)), name="a", time="t", idle="1s")
    b = flow.read(Feed(waking(others := [[5], [9]])), name="b", time="t")
    pairs = []
    joined = a.join(b, on=ANY, window=ALWAYS).select("t", "t_right")
    joined.write(dt.call(lambda batch: pairs.extend(map(tuple, zip(*batch.to_pydict().values())))))
    runner = started(flow, clock)
    rounds(runner, 3)
    clock.pass_by(1)
    rounds(runner, 1)
    woken.append([4, 11])
    others.append([12])
    rounds(runner, 4)
    assert shown(runner, pairs) == [(11, 5), (11, 9)]
    assert runner.status().late == 1


def test_an_idle_source_passes_what_ended_sources_have_shown():
    clock = Clock()
    flow, _, seen = two(silent(), [[5, 9, 7]], a_options={"idle": "1s"}, b_options={"delay": 4})
    runner = started(flow, clock)
    rounds(runner, 3)
    clock.pass_by(1)
    rounds(runner, 1)
    assert shown(runner, seen) == [1000, 1002, 1001]
    assert runner.graph.tasks[0].watermark == 10


def test_two_idle_sources_do_not_wait_for_each_other():
    clock = Clock()
    both = {"idle": "1s"}
    flow, _, seen = two(silent([3]), silent([5, 9]), a_options=both, b_options=both)
    runner = started(flow, clock)
    rounds(runner, 4)
    clock.pass_by(1)
    rounds(runner, 4)
    assert shown(runner, seen) == [0, 1000, 1001]


def test_an_idle_source_alone_has_nobody_to_let_pass():
    clock = Clock()
    flow = dt.Flow("f")
    flow.read(Feed(silent([5])), name="a", time="t", idle="1s", delay=3).write(dt.null())
    runner = started(flow, clock)
    rounds(runner, 2)
    clock.pass_by(5)
    assert rounds(runner, 2) == [False, False]
    assert runner.graph.tasks[0].watermark == 2


def test_an_idle_source_of_a_coarser_unit_passes_what_the_others_have_reached():
    clock = Clock()
    flow = dt.Flow("f")

    @dt.source
    class Stamps:
        def __init__(self, unit, times):
            self.schema = pa.schema([("t", pa.timestamp(unit))])
            self.times = iter(times)

        def read(self):
            time = next(self.times, None)
            return None if time is None else pa.record_batch([pa.array([time], self.schema[0].type)], ["t"])

    a = flow.read(Stamps("s", []), name="a", time="t", idle="1s")
    b = flow.read(Stamps("ms", [1500]), name="b", time="t")
    a.join(b, on=left.t <= right.t, window=ALWAYS).write(dt.null())
    runner = started(flow, clock)
    rounds(runner, 2)
    clock.pass_by(1)
    rounds(runner, 1)
    assert runner.result("stopped").steps["a"].watermark == "1970-01-01T00:00:02"
    assert runner.result("stopped").steps["join-1"].watermark == "1970-01-01T00:00:01.500"


# --- pace --------------------------------------------------------------------------------------------------


def test_a_pace_in_rows_is_rows_over_seconds():
    assert due_in(Rate(rows=10_000.0), 5_000, 0.2, 0.0) == pytest.approx(0.3)
    assert due_in(Rate(rows=10_000.0), 5_000, 1.0, 0.0) < 0


def test_a_pace_of_event_time_is_its_span_over_the_speed():
    assert due_in(Rate(speed=Fraction(2)), 0, 1.0, 10.0) == pytest.approx(4.0)
    assert due_in(Rate(speed=Fraction(1, 2)), 0, 1.0, 10.0) == pytest.approx(19.0)


def read_at(flow, clock, log):
    """The times at which a source was read until it ended."""
    runner = started(flow, clock, poll_seconds=0.25)
    while not runner.finished():
        before = len(log)
        worked = runner.round()
        log[before:] = [clock.now] * (len(log) - before)
        if not worked:
            runner.pause(0.25)
    return log


def test_a_replay_is_paced_in_rows_a_second():
    log, clock = [], Clock()
    flow = dt.Flow("f")
    flow.read(Feed([[1] * 10_000, [2] * 5_000, [3] * 10], log), name="a", rate=10_000).write(dt.null())
    assert read_at(flow, clock, log) == [0.0, 1.0, 1.5, 1.75]


def stamped(*batches):
    kind = pa.timestamp("s")
    return [pa.record_batch({"at": pa.array(batch, kind)}) for batch in batches]


@dt.source
class Stamped:
    schema = pa.schema([("at", pa.timestamp("s"))])

    def __init__(self, batches, log):
        self.batches, self.log = iter(batches), log

    def read(self):
        self.log.append("read")
        return next(self.batches, END_OF_SOURCE)


def test_a_replay_is_paced_by_event_time():
    log, clock = [], Clock()
    flow = dt.Flow("f")
    source = Stamped(stamped([1000], [1010], [1020], [1021]), log)
    flow.read(source, name="a", time="at", rate="2x").write(dt.null())
    assert read_at(flow, clock, log) == [0.0, 0.0, 5.0, 10.0, 10.5]


def test_a_replay_by_event_time_starts_at_its_first_row_however_batches_are_cut():
    log, clock = [], Clock()
    flow = dt.Flow("f")
    flow.read(Stamped(stamped([1000, 1010], [1020], [1021]), log), name="a", time="at", rate="2x").write(dt.null())
    assert read_at(flow, clock, log) == [0.0, 5.0, 10.0, 10.5]


def test_only_the_paced_source_waits():
    log, clock = [], Clock()
    flow = dt.Flow("f")
    flow.read(Feed([[1], [2]], log, "slow"), name="a", rate=0.5).write(dt.null())
    flow.read(Feed([[1], [2], [3]], log, "fast"), name="b").write(dt.null())
    finish(started(flow, clock, poll_seconds=1))
    assert log == ["slow", "fast", "fast", "fast", "fast", "slow", "slow"]
    assert clock.now == 4.0


# --- epochs and progress -----------------------------------------------------------------------------------


@dt.sink
class Epochs:
    """Says what was staged and committed."""

    def __init__(self, log):
        self.log = log

    def stage(self, batch, epoch, part):
        self.log.append((batch.num_rows, epoch, part))

    def commit(self, epoch):
        self.log.append(f"commit {epoch}")

    def abort(self):
        self.log.append("abort")

    def close(self):
        self.log.append("close")


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


def test_every_is_a_duration():
    stream = memory()
    stream.write(dt.null())
    with raises(dt.WindowError, "flow 'f': every: 'often' is not a duration"):
        stream._flow.run(every="often")
    assert stream._flow.run(every=datetime.timedelta(seconds=2)).outcome == "finished"


# --- Ctrl-C ------------------------------------------------------------------------------------------------


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


# --- what is refused where it is written -------------------------------------------------------------------


def timed(**options):
    return memory(time="t", **options)


def stamps(**options):
    return memory({"t": pa.array([1, 2], pa.timestamp("s"))}, time="t", **options)


def test_reading_what_is_no_source():
    flow = dt.Flow("f")
    with raises(dt.FlowError, "read: 'trips/' is not a source; write dt.parquet('trips/') @here"):
        flow.read("trips/")
    with raises(dt.FlowError, "read 'a': 5 is not a source @here"):
        flow.read(5, name="a")


def test_a_source_with_two_columns_of_one_name():
    doubled = Asked({"x": [1]}, pa.schema([("x", pa.int64()), ("x", pa.int64())]))
    with raises(dt.SchemaError, "read 'a': the source has two columns named 'x'; rename one"):
        dt.Flow("f").read(doubled, name="a")


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"time": "tt"}, dt.SchemaError, "read 'a': there is no column 'tt' for the time; did you mean 't'"),
        ({"time": "s"}, dt.SchemaError, "column 's' is string; a time is a timestamp, a date or an integer"),
        ({"delay": 5}, dt.FlowError, "read 'a': delay=5 means nothing without time=…"),
        ({"max_ahead": 5}, dt.FlowError, "read 'a': max_ahead=5 means nothing without time=…"),
        ({"idle": "5s"}, dt.FlowError, "read 'a': idle='5s' means nothing without time=…"),
        ({"time": "t", "delay": "5s"}, dt.WindowError, "read 'a': delay: '5s' beside an integer time column"),
        ({"time": "t", "delay": -1}, dt.WindowError, "read 'a': delay: -1 is negative"),
        ({"time": "t", "max_ahead": True}, dt.WindowError, "read 'a': max_ahead: True beside an integer"),
        ({"time": "at", "delay": 5}, dt.WindowError, "read 'a': delay: 5 is not a duration"),
        ({"time": "at", "delay": "5 parsecs"}, dt.WindowError, "delay: '5 parsecs' is not a duration; write a number"),
        ({"time": "t", "idle": "soon"}, dt.WindowError, "read 'a': idle: 'soon' is not a duration"),
        ({"time": "t", "idle": 5}, dt.WindowError, "read 'a': idle: 5 is not a duration"),
        ({"time": "t", "idle": "0s"}, dt.FlowError, "read 'a': idle='0s' must be longer than nothing"),
        ({"rate": "fast"}, dt.FlowError, "rate='fast' is not a pace; write 10_000 for rows a second, or \"2x\""),
        ({"rate": 0}, dt.FlowError, "rate=0 is not a pace"),
        ({"rate": True}, dt.FlowError, "rate=True is not a pace"),
        ({"rate": float("inf")}, dt.FlowError, "rate=inf is not a pace"),
        ({"rate": float("nan")}, dt.FlowError, "rate=nan is not a pace"),
        ({"rate": "0x", "time": "at"}, dt.FlowError, "rate='0x' is not a pace"),
        ({"rate": "2x"}, dt.FlowError, "read 'a': rate='2x' needs a timestamp as time=…; give rows a second"),
        ({"rate": "2x", "time": "t"}, dt.FlowError, "read 'a': rate='2x' needs a timestamp as time=…"),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, dict) else "",
)
def test_options_of_a_source_that_cannot_be(options, kind, text):
    data = {"t": [1], "s": ["x"], "at": pa.array([1], pa.timestamp("s"))}
    with raises(kind, text):
        dt.Flow("f").read(dt.memory(data), name="a", **options)


@pytest.mark.parametrize("delay", [datetime.timedelta(seconds=-5), np.timedelta64(-5, "s")])
@pytest.mark.parametrize("option", ["delay", "max_ahead"])
def test_a_negative_length_of_time_is_refused(option, delay):
    with raises(dt.FlowError, "negative"):
        stamps(**{option: delay})


@pytest.mark.parametrize(("kind", "delay"), [(pa.int64(), 2**70), (pa.timestamp("ns"), "100000w")])
def test_with_a_delay_longer_than_all_times_nothing_is_late(kind, delay):
    stream = memory({"t": pa.array([5, 3, 9, 1], kind)}, time="t", delay=delay)
    assert collected(stream)["t"].cast(pa.int64()).to_pylist() == [1, 3, 5, 9]


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 65, 5, "a/b"])
def test_names_that_cannot_be(name):
    text = f"{name!r} is not a name; use up to 64 letters, digits, '.', '_' and '-', a letter or digit first"
    with raises(dt.FlowError, f"Flow: {text}"):
        dt.Flow(name)
    with raises(dt.FlowError, f"filter: {text}"):
        memory().filter(col("x") > 1, name=name)


def test_two_steps_of_one_name():
    stream = memory(name="a")
    with raises(dt.FlowError, "select 'a': there is a step of this name already @here"):
        stream.select("x", name="a")


def test_steps_without_a_name_are_numbered():
    stream = memory(name="filter-1")
    assert [stream.filter(col("x") > 1).name, stream.filter(col("x") > 2).name] == ["filter-2", "filter-3"]


def refused():
    """Steps that cannot be: (what to write on a stream `s` with columns t and x, error, text)."""
    return {
        "filter of nothing known": (
            lambda s: s.filter(col("y") > 1, name="w"), dt.SchemaError, "filter 'w': there is no column 'y'; there"),
        "filter by a text": (
            lambda s: s.filter("x > 3", name="w"), dt.FlowError,
            "filter 'w': 'x > 3' is not a predicate; write dt.col(\"x\") > 3 @here"),
        "filter by a number": (
            lambda s: s.filter(col("x") + 1, name="w"), dt.PredicateError, "filter 'w': `x + 1` is not a comparison"),
        "filter on a side": (lambda s: s.filter(left.x > 1), dt.PredicateError, "does not belong here"),
        "select of an unknown column": (
            lambda s: s.select("xx", name="w"), dt.SchemaError,
            "select 'w': there is no column 'xx'; did you mean 'x'? There are: t, x"),
        "select twice": (lambda s: s.select("x", col("x")), dt.SchemaError, "column 'x' is named twice"),
        "select of nothing": (lambda s: s.select(), dt.FlowError, "select 'select-1': name at least one column @here"),
        "select by number": (
            lambda s: s.select(5), dt.FlowError, "select 'select-1': 5 is not a column's name; compute one as new=…"),
        "select of an unnamed expression": (
            lambda s: s.select(col("x") + 1), dt.FlowError, "is not a column's name; compute one as new=… @here"),
        "a value that is no expression": (
            lambda s: s.with_columns(y=5, name="w"), dt.FlowError,
            "with_columns 'w': y=5 is not an expression; write dt.col(\"x\") + 1 or dt.lit(1)"),
        "with_columns of nothing": (
            lambda s: s.with_columns(name="w"), dt.FlowError, "with_columns 'w': name at least one column, as in"),
        "with_columns of an unknown column": (
            lambda s: s.with_columns(y=col("z") + 1, name="w"), dt.SchemaError, "with_columns 'w': there is no column"),
        "map by a text": (lambda s: s.map("f", name="w"), dt.FlowError, "map 'w': 'f' is not a function @here"),
        "map to no schema": (
            lambda s: s.map(len, schema={"x": 1}, name="w"), dt.FlowError,
            "map 'w': schema={'x': 1} is not a pyarrow.Schema @here"),
        "union with nothing": (
            lambda s: s.union(name="w"), dt.FlowError, "union 'w': give at least one other stream @here"),
        "union with no stream": (
            lambda s: s.union(5, name="w"), dt.FlowError, "union 'w': 5 is not a stream; read it first, with flow"),
        "join with no stream": (
            lambda s: s.join("b", on=ANY, window=ALWAYS), dt.FlowError, "join 'join-1': 'b' is not a stream; read it"),
        "how": (
            lambda s: s.join(s, on=left.x < right.x, window=ALWAYS, how="left", name="w"), dt.UnsupportedError,
            "join 'w': how='left' is not in this version; use how=\"inner\""),
        "layout": (
            lambda s: s.join(s, on=left.x < right.x, window=ALWAYS, layout="hash", name="w"), dt.UnsupportedError,
            "join 'w': layout='hash' is not in this version; use layout=\"auto\""),
        "join on nothing": (lambda s: s.join(s, window=ALWAYS), dt.PredicateError, "a join needs on=…, such as"),
        "join without a window": (
            lambda s: s.join(s, on=left.x < right.x), dt.FlowError, "a join needs window=…, as streams have no end"),
        "a window that is none": (
            lambda s: s.join(s, on=left.x < right.x, window=5), dt.FlowError, "window=5 is not a window; write dt."),
        "an index that is none": (
            lambda s: s.join(s, on=left.x < right.x, window=ALWAYS, index="tree"), dt.FlowError,
            "there is no index 'tree'; there are: auto, "),
        "late of a step": (
            lambda s: s.select("x", name="w").late, dt.FlowError,
            ".late of select 'w': it is not a source; take it from the stream that flow.read(time=…) returns"),
        "late without time": (
            lambda s: s.late, dt.FlowError, ".late of read 'a': it has no time column, so nothing is late"),
        "writing to no sink": (
            lambda s: s.write("out/", name="w"), dt.FlowError,
            "write 'w': 'out/' is not a sink; write dt.parquet(…), dt.show() or dt.collect() @here"),
    }  # fmt: skip


@pytest.mark.parametrize("case", refused())
def test_steps_that_cannot_be_are_refused_where_they_are_written(case):
    write, kind, text = refused()[case]
    with raises(kind, text):
        write(memory(name="a"))


def test_a_flow_that_writes_nothing_has_nothing_to_run():
    with raises(dt.FlowError, "flow 'f' writes nothing, so there is nothing to run; add .write(dt.show())"):
        memory()._flow.run()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"checkpoint": "cp"}, "flow 'f': checkpoint='cp' is not in this version; leave it out, and a crash ends the"),
        ({"workers": 2}, "flow 'f': workers=2; this version runs in one process"),
        ({"workers": True}, "flow 'f': workers=True; this version runs in one process"),
    ],
)
def test_what_this_version_does_not_do_is_said_before_the_start(options, text):
    source = Asked({"x": [1]})
    flow = dt.Flow("f")
    flow.read(source).write(dt.null())
    with raises(dt.UnsupportedError, text):
        flow.run(**options)
    assert source.columns == []


def union_with(data, other, **options):
    flow = dt.Flow("f")
    return memory(data, flow, "a").union(memory(other, flow, "b", **options), name="u")


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"x": [1]}, "union 'u': 'b' has no column 'y', which 'a' has; select the same columns of both"),
        ({"x": [1], "y": [1]}, "union 'u': column 'y' is string in 'a' and int64 in 'b'; cast one of them"),
        ({"x": [1], "y": ["a"], "z": [1]}, "union 'u': 'a' has no column 'z', which 'b' has; select the same"),
        ({"y": ["a"], "x": [1]}, "'a' and 'b' have the same columns in another order; use .select(['x', 'y'])"),
    ],
)
def test_a_union_of_different_schemas_says_how_they_differ(other, text):
    with raises(dt.SchemaError, text):
        union_with({"x": [1], "y": ["a"]}, other)


def test_a_union_does_not_blame_the_order_of_columns_for_their_nulls():
    strict = pa.table({"x": [1]}, schema=pa.schema([pa.field("x", pa.int64(), nullable=False)]))
    got = told(lambda: collected(union_with({"x": [1]}, strict))["x"].to_pylist())
    assert got == [1, 1] or ("null" in got and "order" not in got)


def test_a_union_of_a_stream_with_time_and_one_without():
    with raises(dt.SchemaError, "union 'u': one stream has a time column and another has none; read all with time=…"):
        union_with({"t": [1]}, {"t": [1]}, time="t")


def test_streams_of_two_flows_do_not_meet():
    here, there = memory(name="a"), memory(flow=dt.Flow("g"), name="b")
    text = "the streams belong to two flows, 'f' and 'g'"
    with raises(dt.FlowError, f"join 'j': {text}"):
        here.join(there, on=left.x < right.x, window=ALWAYS, name="j")
    with raises(dt.FlowError, f"union 'u': {text}"):
        here.union(there, name="u")


def test_one_side_with_time_and_the_other_without():
    stream = timed(name="a")
    other = memory(flow=stream._flow, name="b")
    with raises(dt.SchemaError, "join 'j': the right side has no time column and the other has one"):
        stream.join(other, on=left.x < right.x, window=ALWAYS, name="j")


def test_behind_an_unordered_join_nothing_that_needs_order_may_stand():
    stream = memory(name="a")
    loose = stream.join(stream, on=left.x < right.x, window=ALWAYS, ordered=False, name="loose")
    loose = loose.filter(col("x") > 1, name="still")
    text = "filter 'still' comes from a join with ordered=False, whose results have no order to go by; leave ordered"
    with raises(dt.FlowError, f"join 'j': {text}"):
        loose.join(stream, on=left.x < right.x, window=ALWAYS, name="j")
    with raises(dt.FlowError, f"join 'k': {text}"):
        stream.join(loose, on=left.x < right.x, window=ALWAYS, name="k")
    with raises(dt.FlowError, f"union 'u': {text}"):
        loose.union(loose, name="u")
    assert collected(loose.map(lambda batch: batch)).num_rows > 0


def test_a_sink_is_written_once():
    stream = memory()
    out = stream.write(dt.collect())
    text = "write 'write-2': this collect is written already, by write 'write-1'; make another one @here"
    with raises(dt.FlowError, text):
        stream.select("x").write(out)


def test_a_folder_is_not_read_and_written_by_one_flow(tmp_path):
    folder = parts(tmp_path / "out")
    stream = dt.Flow("f").read(dt.parquet(folder), name="a")
    with raises(dt.FlowError, f"write 'w': {f'{folder}/.'!r} is also what read 'a' reads; write somewhere else"):
        stream.write(dt.parquet(f"{folder}/.", overwrite=True), name="w")


def parts(folder):
    """A folder that a flow wrote."""
    flow = dt.Flow("before")
    memory(flow=flow).write(dt.parquet(str(folder)))
    flow.run()
    return str(folder)


def test_a_folder_that_a_flow_writes_is_not_read_by_it_either(tmp_path):
    folder = parts(tmp_path / "out")
    flow = dt.Flow("f")
    memory(flow=flow).write(dt.parquet(folder, overwrite=True))
    with raises(dt.FlowError, folder):
        flow.read(dt.parquet(folder), name="b")


@pytest.mark.parametrize("what", ["*.parquet", "part-000000-0000.parquet"])
def test_files_of_a_folder_are_not_read_by_the_flow_that_writes_it(what, tmp_path):
    folder = parts(tmp_path / "out")
    stream = dt.Flow("f").read(dt.parquet(f"{folder}/{what}"), name="a")
    with raises(dt.FlowError, "read 'a'"):
        stream.write(dt.parquet(folder, overwrite=True))


def test_a_folder_that_cannot_be_written_is_found_where_it_is_written(tmp_path):
    folder = parts(tmp_path / "out")
    with raises(dt.FlowError, "pass overwrite=True or another folder"):
        memory().write(dt.parquet(folder))


def test_behind_a_map_whose_schema_only_data_tell_nothing_but_write_can_follow():
    def fn(batch):
        assert batch.num_rows
        return batch

    mapped = memory(name="a").map(fn, name="m")
    text = "map 'm' has no schema until its first result, since its function cannot answer for an empty batch; only"
    for follow in (
        lambda: mapped.schema,
        lambda: mapped.filter(col("x") > 1),
        lambda: mapped.select("x"),
        lambda: mapped.with_columns(y=col("x") + 1),
        lambda: mapped.map(fn),
        lambda: mapped.union(mapped),
        lambda: mapped.join(mapped, on=left.x < right.x, window=ALWAYS),
    ):
        with raises(dt.SchemaError, text):
            follow()
    assert collected(mapped)["x"].to_pylist() == [10, 20, 30]


def test_the_late_rows_of_a_source_are_one_stream():
    stream = timed(name="a")
    assert stream.late.name == stream.late.name == "a.late"
    assert len(stream._flow._nodes) == 2


def test_the_late_rows_of_a_source_are_never_those_of_another_step():
    stream = timed(name="a")
    other = memory(flow=stream._flow, name="a.late")
    with raises(dt.FlowError, "a.late"):
        assert stream.late._node is not other._node


# --- options -----------------------------------------------------------------------------------------------


def test_options_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("DOVETAIL_BATCH_ROWS", "1_0")
    monkeypatch.setenv("DOVETAIL_POLL_SECONDS", "0.5")
    assert Options.from_environment() == Options(batch_rows=10, poll_seconds=0.5)
    monkeypatch.setenv("DOVETAIL_BATCH_ROWS", "2")
    sizes = []
    stream = memory()
    stream.write(dt.call(lambda batch: sizes.append(batch.num_rows)))
    stream._flow.run()
    assert sizes == [2, 1]
    stream._flow.run(options=Options(batch_rows=1))
    assert sizes == [2, 1, 1, 1, 1]


def test_options_that_cannot_be(monkeypatch):
    with raises(dt.FlowError, "option batch_rows must be at least 1, not 0"):
        Options(batch_rows=0)
    with raises(dt.FlowError, "option poll_seconds must be at least 0, not -1"):
        Options(poll_seconds=-1)
    with raises(dt.FlowError, "option out_rows must be a whole number, not '7'"):
        Options(out_rows="7")
    with raises(dt.FlowError, "option hold_bytes must be a whole number, not True"):
        Options(hold_bytes=True)
    monkeypatch.setenv("DOVETAIL_OUT_ROWS", "many")
    stream = memory()
    stream.write(dt.null())
    with raises(dt.FlowError, "DOVETAIL_OUT_ROWS='many' is not a number; the default is 65536"):
        stream._flow.run()


@pytest.mark.parametrize(
    "option", [{"batch_rows": 2.5}, {"out_rows": float("inf")}, {"poll_seconds": float("nan")}], ids=str
)
def test_options_that_no_run_could_work_with_are_refused(option):
    with raises(dt.FlowError, f"option {next(iter(option))} must be"):
        Options(**option)


# --- columns -----------------------------------------------------------------------------------------------

WIDE = {"t": [1, 2, 3], "k": [1, 1, 2], "x": [5, 6, 7], "y": [1, 2, 3], "z": ["a", "b", "c"]}


def test_a_source_is_asked_only_for_the_columns_that_end_up_somewhere():
    source = Asked(WIDE)
    stream = dt.Flow("f").read(source).filter(col("x") > 5).with_columns(s=col("y") + 1, u=col("k") * 2)
    assert collected(stream.select("s")).to_pydict() == {"s": [3, 4]}
    assert source.columns == [["x", "y"]]


def test_a_source_with_time_is_asked_for_its_time_too():
    source = Asked(WIDE)
    collected(dt.Flow("f").read(source, time="t").select("y"))
    assert source.columns == [["t", "y"]]


def test_a_source_of_which_only_the_number_of_rows_counts_is_asked_for_nothing():
    source = Asked(WIDE)
    assert collected(dt.Flow("f").read(source).select(one=dt.lit(1)))["one"].to_pylist() == [1, 1, 1]
    assert source.columns == [[]]


def test_sinks_functions_and_late_rows_show_all_columns():
    for show in (lambda s: s, lambda s: s.map(lambda batch: batch).select("x"), lambda s: s.late):
        source = Asked(WIDE)
        stream = dt.Flow("f").read(source, name="a", time="t")
        collected(show(stream))
        assert source.columns == [list(WIDE)]


def test_a_join_asks_for_its_keys_and_gathers_what_is_shown():
    flow = dt.Flow("f")
    one, other = Asked(WIDE), Asked(WIDE)
    joined = flow.read(one).join(flow.read(other), on=left.x < right.y, window=ALWAYS)
    joined = joined.select("z", "k_right")
    assert "output z, k_right (nothing else is asked for)" not in flow.explain()
    joined.write(dt.collect())
    assert "output z, k_right (nothing else is asked for)" in flow.explain()
    runner = started(flow, Clock())
    driver = next(task.driver for task in runner.graph.tasks if task.node.kind == "join")
    assert driver.schema.names == ["z", "k_right"]
    assert (driver.logs["left"].schema.names, driver.logs["right"].schema.names) == (["z"], ["k"])
    finish(runner)
    assert (one.columns, other.columns) == ([["x", "z"]], [["k", "y"]])


def test_a_union_hands_on_only_what_is_asked_for():
    flow = dt.Flow("f")
    one, other = Asked(WIDE), Asked(WIDE)
    both = flow.read(one, time="t").union(flow.read(other, time="t")).select("z")
    assert collected(both)["z"].to_pylist() == ["a", "a", "b", "b", "c", "c"]
    assert one.columns == other.columns == [["t", "z"]]


def test_a_step_that_no_sink_needs_does_not_run():
    source, flow = Asked(WIDE), dt.Flow("f")
    flow.read(source).map(lambda batch: 1 / 0)
    memory(flow=flow).write(dt.null())
    assert flow.run().rows_in == 3
    assert source.columns == []


def test_two_uses_of_a_source_read_it_once_with_the_columns_of_both():
    source = Asked(WIDE)
    stream = dt.Flow("f").read(source)
    stream.select("x").write(dt.null())
    collected(stream.select("y"))
    assert source.columns == [["x", "y"]]


# --- steps -------------------------------------------------------------------------------------------------


DAY = datetime.date(2024, 2, 1)
NOON = datetime.datetime(2024, 2, 1, 12)
HOUR = datetime.timedelta(hours=1)


@pytest.mark.parametrize(
    ("kind", "given", "make", "made", "expected"),
    [
        (pa.float32(), [0.5, None], lambda x: x * 2.0, pa.float64(), [1.0, None]),
        (pa.int8(), [100, None], lambda x: x + 100, pa.int64(), [200, None]),
        (pa.uint64(), [2**64 - 2], lambda x: x + 1, pa.uint64(), [2**64 - 1]),
        (pa.int64(), [1, 2, None], lambda x: x > 1, pa.bool_(), [False, True, False]),
        (pa.int64(), [1], lambda x: dt.lit("a"), pa.string(), ["a"]),
        (pa.int64(), [-7, None], lambda x: x.cast("int8"), pa.int8(), [-7, None]),
        (pa.int64(), [3, None], lambda x: x.cast("float64"), pa.float64(), [3.0, None]),
        (pa.timestamp("ms"), [NOON, None], lambda x: x + HOUR, pa.timestamp("us"), [NOON + HOUR, None]),
        (pa.timestamp("s"), [NOON, None], lambda x: x - x, pa.duration("s"), [HOUR * 0, None]),
        (pa.date32(), [DAY, None], lambda x: x - DAY, pa.duration("s"), [HOUR * 0, None]),
        (pa.duration("us"), [HOUR, None], lambda x: x * 2, pa.duration("us"), [HOUR * 2, None]),
        (
            pa.decimal128(9, 2), [Decimal("-1.50"), None], lambda x: x + x, pa.decimal128(18, 2),
            [Decimal("-3.00"), None],
        ),
    ],
)  # fmt: skip
def test_computed_columns_have_the_type_that_holds_them(kind, given, make, made, expected):
    stream = memory({"x": pa.array(given, kind)}).select(y=make(col("x")))
    assert stream.schema.field("y").type == made
    out = collected(stream)["y"]
    assert (out.type, out.to_pylist()) == (made, expected)


def test_a_run_pauses_while_sources_have_nothing():
    stream = dt.Flow("f").read(Feed([None, [1], None, [2]]))
    out = stream.write(dt.collect())
    stream._flow.run(options=Options(poll_seconds=0))
    assert out.table()["t"].to_pylist() == [1, 2]


def test_a_self_join_hands_on_its_time():
    stream = timed(name="a", batch_rows=1)
    later = stream.join(stream, on=left.x < right.x, window=ALWAYS).select(x=col("x_right"))
    assert collected(stream.select("x").union(later))["x"].to_pylist() == [10, 20, 20, 30, 30, 30]


def test_event_time_survives_steps_that_change_or_drop_its_column():
    flow = dt.Flow("f")
    a = memory({"t": [1, 4], "id": [0, 1]}, flow, "a", "t").select("id")
    b = memory({"t": [2, 3], "id": [2, 3]}, flow, "b", "t").with_columns(t=col("t") * -1).select("id")
    c = memory({"t": [5, 0], "id": [4, 5]}, flow, "c", "t", delay=9)
    c = c.map(lambda batch: batch.select(["id"]).rename_columns(["id"]))
    assert collected(a.union(b, c))["id"].to_pylist() == [5, 0, 2, 3, 1, 4]


def test_a_map_that_drops_rows_keeps_their_times_through_a_renamed_column():
    flow = dt.Flow("f")
    a = memory({"t": [1, 2, 3, 4]}, flow, "a", "t").select(when=col("t"))
    odd = a.map(without("when", 2)).map(without("when", 4))
    b = memory({"when": [2, 3]}, flow, "b", "when").with_columns(when=col("when") * 10)
    assert collected(odd.union(b))["when"].to_pylist() == [1, 20, 3, 30]


def test_a_map_behind_a_union_does_not_take_a_changed_column_for_event_time():
    """b's times are 2 and 4, whatever became of its column: a map that drops a row must not read 1 and 3 there."""
    flow = dt.Flow("f")
    a = memory({"t": [1, 5], "id": [0, 1]}, flow, "a", "t")
    b = memory({"t": [2, 4], "id": [2, 3]}, flow, "b", "t").with_columns(t=col("t") - 1)
    kept = a.union(b).map(without("id", 0), name="m")
    c = memory({"t": [1, 3], "id": [4, 5]}, flow, "c", "t")
    got = told(lambda: collected(kept.union(c))["id"].to_pylist())
    assert got == [4, 2, 5, 3, 1] or "map 'm'" in got


def test_a_map_takes_its_schema_from_an_empty_batch_or_from_its_first_result():
    known = memory().map(lambda batch: batch.append_column("y", batch["x"]))
    assert known.schema.names == ["t", "x", "y"]
    assert known.filter(col("y") > 10).schema.names == ["t", "x", "y"]

    def first(batch):
        return pa.record_batch({"least": [min(batch["x"].to_pylist())]})

    assert collected(memory(batch_rows=2).map(first)).to_pydict() == {"least": [10, 30]}


def test_a_map_may_give_a_table_or_nothing():
    assert collected(memory().map(lambda batch: pa.table({"y": batch["x"]})))["y"].to_pylist() == [10, 20, 30]
    assert collected(memory().map(lambda batch: pa.table({"y": batch["x"]}).slice(0, 0))).num_rows == 0


def test_a_map_with_a_schema_is_put_into_its_order():
    schema = pa.schema([("x", pa.int64()), ("t", pa.int64())])
    assert collected(memory().map(lambda batch: batch, schema=schema)).schema.names == ["x", "t"]


def test_a_map_without_rows_gives_none():
    def fn(batch):
        raise ValueError

    empty = memory({"x": pa.array([], pa.int64())})
    assert collected(empty.map(fn, schema=pa.schema([("y", pa.int8())]))).num_rows == 0


def test_a_run_without_results_does_not_show_those_of_the_run_before():
    def fn(batch):
        assert batch.num_rows
        return batch

    runs = iter([[[1, 2]], []])

    @dt.source
    class Once:
        schema = SCHEMA

        def __init__(self):
            self.batches = iter(next(runs))

        def read(self):
            times = next(self.batches, None)
            return END_OF_SOURCE if times is None else pa.record_batch({"t": times, "id": times})

    flow = dt.Flow("f")
    out = flow.read(Once()).map(fn).write(dt.collect())
    flow.run()
    assert out.table().num_rows == 2
    assert flow.run().rows_out == 0
    assert told(lambda: out.table().num_rows) != 2


def test_joins_of_joins_are_in_order():
    flow = dt.Flow("f")
    a, b, c = (memory({"t": times, "x": times}, flow, name, "t", batch_rows=1) for name, times in
               (("a", [1, 5, 7]), ("b", [2, 5, 6]), ("c", [3, 4, 8])))  # fmt: skip
    on = left.x >= right.x - 100
    ab = a.join(b, on=on, window=ALWAYS, suffix="_b")
    out = collected(ab.join(c, on=on, window=ALWAYS, suffix="_c"))
    greatest = [max(row["t"], row["t_b"], row["t_c"]) for row in out.to_pylist()]
    assert greatest == sorted(greatest)
    assert out.num_rows == 27


def test_one_stream_may_be_used_twice():
    stream = timed(name="a", batch_rows=1)
    low, high = stream.filter(col("x") < 25), stream.filter(col("x") > 15)
    assert collected(low.union(high))["x"].to_pylist() == [10, 20, 20, 30]
    stream = timed(name="a", batch_rows=1)
    assert collected(stream.union(stream))["x"].to_pylist() == [10, 10, 20, 20, 30, 30]
    stream = timed(name="a", batch_rows=2)
    pairs = collected(stream.select("x").join(stream.select("x"), on=left.x == right.x, window=ALWAYS))
    assert pairs["x"].to_pylist() == [10, 20, 30], "two streams, so that each row meets itself"


def test_one_stream_without_time_may_be_used_twice():
    stream = memory()
    assert sorted(collected(stream.union(stream))["x"].to_pylist()) == [10, 10, 20, 20, 30, 30]


def test_rows_that_come_too_late_are_a_stream_of_their_own():
    flow = dt.Flow("f")
    stream = flow.read(Feed([[5, 3], [9, 5, 4]]), name="a", time="t")
    late = stream.late.filter(col("t") > 3, name="seen").write(dt.collect())
    out = stream.write(dt.collect())
    result = flow.run()
    assert (out.table()["t"].to_pylist(), late.table().to_pydict()) == ([5, 9], {"t": [5, 4], "id": [3, 4]})
    assert (result.late, result.steps["a"].late, result.steps["a.late"].rows_in) == (3, 3, 3)


# --- errors while it runs ----------------------------------------------------------------------------------

HALF = pa.table({"t": [1, 2], "x": [0.5, 2.0]})
LARGE = pa.table({"t": [1, 2], "x": [2**62, 2**62]})


def failing():
    """Streams that fail while they run: (stream, error, text)."""

    def later(*schemas):
        """A function that returns other columns for each batch."""
        made = iter(schemas)
        return lambda batch: 1 / 0 if batch.num_rows == 0 else pa.record_batch(dict.fromkeys(next(made), batch["x"]))

    two_batches = {"batch_rows": 1}
    return {
        "a sum that does not fit": (
            memory(LARGE).with_columns(y=col("x") + col("x"), name="w"), dt.DataError,
            "with_columns 'w': column 'y', `x + x`: 9223372036854775808 does not fit int64"),
        "an unsigned sum that does not fit": (
            memory(pa.table({"x": pa.array([2**64 - 1], pa.uint64())})).select(y=col("x") + 1, name="w"), dt.DataError,
            "select 'w': column 'y', `x + 1`: 18446744073709551616 does not fit uint64"),
        "a decimal that does not fit": (
            memory(pa.table({"x": pa.array([10**9], pa.decimal128(18, 2))})).select(y=col("x") * col("x"), name="w"),
            dt.DataError, "does not fit decimal128(18, 4)"),
        "a cast of a fraction": (
            memory(HALF).with_columns(y=col("x").cast("int64"), name="w"), dt.DataError,
            "with_columns 'w': `x.cast(\"int64\")`: 0.5 is not a whole number; round it when it is read"),
        "a cast past the type": (
            memory(LARGE).filter(col("x").cast("int32") > 5, name="w"), dt.DataError,
            'filter \'w\': `x.cast("int32")`: 4611686018427387904 does not fit'),
        "a cast in a join": (
            (s := memory(LARGE)).join(s, on=left.x.cast("int32") < right.x, window=ALWAYS, name="w"), dt.DataError,
            "join 'w': `left.x.cast(\"int32\")`:"),
        "a function that raises": (
            memory(name="a").map(lambda batch: 1 // 0, pa.schema([]), name="w"), dt.UserFunctionError,
            "raised ZeroDivisionError: integer division or modulo by zero"),
        "a function that returns something else": (
            memory().map(lambda batch: batch.to_pydict(), name="w"), dt.UserFunctionError,
            "returned a dict; return a pyarrow.RecordBatch"),
        "another type": (
            memory().map(lambda batch: batch, pa.schema([("t", pa.int64()), ("x", pa.int8())]), name="w"),
            dt.UserFunctionError, "returned column 'x' as int64 where int8 was expected; return the same schema each"),
        "a missing column": (
            memory(**two_batches).map(later(["t", "x"], ["t"]), name="w"), dt.UserFunctionError,
            "returned column 'x' as nothing where int64 was expected"),
        "one column more": (
            memory(**two_batches).map(later(["x"], ["x", "y"]), name="w"), dt.UserFunctionError,
            "returned a column 'y' that was not there before; return the same schema each time, or pass schema=…"),
        "fewer rows without the time": (
            timed().map(lambda batch: batch.slice(1).select(["x"]), name="w"), dt.UserFunctionError,
            "returned 2 rows for 3 without the time column"),
        "fewer rows in another order": (
            timed().map(lambda batch: batch.take(pa.array([2, 0])), pa.schema(memory().schema), name="w"),
            dt.UserFunctionError,
            "returned 2 rows for 3, whose times in 't' are out of order; keep the order of the rows"),
        "more rows with a time of their own": (
            timed().map(lambda batch: pa.record_batch({"t": [0, 1, 2, 3], "x": [0] * 4}), name="w"),
            dt.UserFunctionError, "returned 4 rows for 3, whose times in 't' are out of order"),
        "more rows past the time of the last": (
            timed().map(lambda batch: pa.record_batch({"t": [1, 2, 3, 4], "x": [0] * 4}), name="w"),
            dt.UserFunctionError, "returned 4 rows for 3, whose times in 't' are out of order"),
        "a time that is null": (
            memory({"t": [1, None]}, name="w", time="t"), dt.TimeError,
            "source 'w', time column 't': the time of row 1 is null"),
        "a time that runs away": (
            timed(name="w", max_ahead=0), dt.TimeError, "source 'w', time column 't': row 1 has the time 2, further"),
        "a source that raises": (
            dt.Flow("f").read(Feed([[1], lambda: 1 // 0]), name="w"), dt.UserFunctionError, "read 'w': Feed.read ("),
    }  # fmt: skip


@pytest.mark.parametrize("case", failing())
def test_what_only_data_show_is_an_error_that_names_the_step(case):
    stream, kind, text = failing()[case]
    out = stream.write(dt.collect())
    with raises(kind, text) as caught:
        stream._flow.run()
    assert "'w'" in str(caught.value)
    assert caught.value.__notes__ == ["The output of flow 'f' is incomplete; files that were written are whole."]
    with raises(dt.DovetailError, "collect: "):
        out.table()


def test_fewer_rows_without_the_time_say_which_column_that_is():
    stream = timed().map(lambda batch: batch.slice(1).select(["x"]), name="m")
    with raises(dt.UserFunctionError, "returned 2 rows for 3 without the time column 't', so that nothing tells"):
        collected(stream)


@pytest.mark.parametrize("where", ["map", "source", "unnamed"])
def test_what_a_function_raised_is_the_cause(where):
    def fail(*_):
        raise ZeroDivisionError("by hand")

    flow = dt.Flow("f")
    if where == "map":
        stream = memory(flow=flow).map(fail, pa.schema([]))
    else:
        stream = flow.read(Feed([fail]), name="Feed" if where == "source" else None)
    with pytest.raises(dt.UserFunctionError) as caught:
        collected(stream)
    chain, error = [], caught.value
    while error is not None and len(chain) < 9:
        chain.append(type(error))
        error = error.__cause__
    assert chain[-1] is ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (pa.ArrowInvalid("no such cast"), "write 'out': ArrowInvalid: no such cast"),
        (MemoryError("too much"), "write 'out': MemoryError: too much"),
        (OverflowError("too long"), "write 'out': OverflowError: too long"),
        (dt.SinkError("disk full"), "write 'out': disk full"),
    ],
)
def test_errors_below_a_step_are_told_as_its_own(error, text):
    stream = memory()
    stream.write(Broken("stage", error), name="out")
    with raises(dt.DovetailError, text) as caught:
        stream._flow.run()
    assert error in (caught.value, caught.value.__cause__)
    assert caught.value.__notes__


@pytest.mark.parametrize("at", ["commit", "close"])
def test_a_sink_that_cannot_finish_is_an_error_of_the_run(at):
    stream = memory()
    stream.write(Broken(at, dt.SinkError("disk full")), name="out")
    with raises(dt.SinkError, "write 'out': disk full"):
        stream._flow.run()


@pytest.mark.parametrize("at", ["abort", "close"])
def test_an_error_while_closing_does_not_hide_the_one_before(at):
    stream = memory().map(lambda batch: 1 // 0, pa.schema([]), name="m")
    stream.write(Broken(at, dt.SinkError("disk full")), name="out")
    with pytest.raises(dt.DovetailError) as caught:
        stream._flow.run()
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "ZeroDivisionError" in told
    assert "incomplete" in told


def test_everything_is_closed_when_something_cannot_be_opened():
    closed = []

    class Opened(Asked):
        def reader(self, columns):
            reader = super().reader(columns)
            inner, reader.close = reader.close, lambda: (closed.append("source"), inner())
            return reader

    class Shut(Broken):
        def writer(self, schema, lineage):
            raise dt.SinkError("no room")

    flow, log = dt.Flow("f"), []
    flow.read(Opened({"x": [1]}), name="a").write(Epochs(log))
    memory(flow=flow, name="b").write(Shut("", None), name="out")
    with raises(dt.SinkError, "write 'out': no room") as caught:
        flow.run()
    assert (closed, log) == (["source"], ["abort", "close"])
    assert caught.value.__notes__


def test_after_a_failure_files_are_whole_and_hold_what_was_committed(tmp_path):
    folder = str(tmp_path / "out")
    clock = Clock()
    flow = dt.Flow("f")
    stream = flow.read(Feed([[1], [2], [3], lambda: 1 // 0]), name="a")
    out = stream.write(dt.collect())
    stream.write(dt.parquet(folder))
    runner = started(flow, clock, every=1)
    for _ in range(2):
        clock.pass_by(1)
        runner.round()
    runner.round()
    with raises(dt.UserFunctionError, "ZeroDivisionError"):
        runner.round()
    runner.close(failed=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [
        path.name for path in sorted((tmp_path / "out").glob("part-*.parquet"))
    ]
    assert sorted(pq.read_table(folder)["t"].to_pylist()) == [1, 2]
    with raises(dt.DovetailError, "the 2 rows that were committed before are in .table(partial=True)"):
        out.table()
    assert out.table(partial=True)["t"].to_pylist() == [1, 2]


# --- what is said about a run ------------------------------------------------------------------------------


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


def test_a_stream_and_a_flow_name_themselves():
    stream = memory(name="a")
    assert repr(stream) == "<Stream 'a': t int64, x int64>"
    assert repr(stream._flow) == "Flow('f', 1 steps)"


def test_a_status_has_the_watermark_of_the_source_that_is_furthest_behind():
    flow, _, _ = two([[7]], [[3]])
    runner = started(flow, Clock())
    assert runner.status().watermark == "none"
    rounds(runner, 2)
    assert runner.status().watermark == "3"
    assert runner.status().held_bytes > 0
    finish(runner)
    assert runner.status().watermark == "end"
    assert all(task.watermark == END for task in runner.graph.tasks)


# --- explain -----------------------------------------------------------------------------------------------


def paragraph(flow, name):
    """What is said about a step, without its first line."""
    for text in flow.explain().split("\n\n"):
        head, *lines = text.splitlines()
        if head.split()[1].strip() == name:
            return [line.strip() for line in lines]
    raise KeyError(name)


def test_explain_tells_of_each_kind_of_step():
    flow = dt.Flow("plan")
    a = memory({"t": [1], "x": [1], "y": [2]}, flow, "a", "t", delay=5, idle="90s")
    b = memory({"t": [1], "x": [1], "y": [2]}, flow, "b", "t")
    u = a.union(b, name="u").filter(col("x") > 0, name="keep").select("t", "x", twice=col("x") * 2, name="pick")
    w = u.with_columns(more=col("x") + 1, name="add")
    w.map(lambda batch: batch, w.schema, name="given").write(dt.null(), name="n")
    w.map(lambda batch: batch, name="told").write(dt.collect(), name="c")
    w.map(lambda batch: 1 / 0, name="later").write(dt.show(3), name="s")
    a.late.write(dt.null(), name="l")
    plan = flow.explain()
    assert plan.splitlines()[0] == "flow 'plan', in one process"
    assert "union u ← a, b\n" in plan
    assert paragraph(flow, "a") == [
        "from memory (1 batch, 1 row)",
        "order: by t, integer; late if more than 5 behind",
        "holds others back for at most 90 s of silence",
    ]
    assert paragraph(flow, "b") == [
        "from memory (1 batch, 1 row)",
        "order: by t, integer; late if behind the greatest time so far",
        "columns read: t, x",
    ]
    assert paragraph(flow, "u") == ["by time, then in the order of the streams named"]
    assert paragraph(flow, "keep") == ["keeps rows with x > 0"]
    assert paragraph(flow, "pick") == ["columns: t, x", "twice = x * 2"]
    assert paragraph(flow, "add") == ["more = x + 1"]
    names = "t, x, twice, more"
    assert paragraph(flow, "given") == [f"your function, batch by batch; schema given: {names}"]
    assert paragraph(flow, "told") == [
        f"your function, batch by batch; schema taken from its answer to an empty batch: {names}"
    ]
    assert paragraph(flow, "later") == ["your function, batch by batch; schema taken from its first result"]
    assert paragraph(flow, "a.late") == ["rows of a that came too late, in the order in which they came"]
    assert paragraph(flow, "n") == ["to null; each result at least once"]
    assert paragraph(flow, "c") == ["to collect; each result once"]
    assert paragraph(flow, "s") == ["to show 3; each result at least once"]
    assert "so it does not run" not in plan


def test_explain_without_time():
    flow = dt.Flow("plan")
    a, b = memory(flow=flow, name="a"), memory(flow=flow, name="b")
    a.union(b, name="u").join(b, on=left.x == right.x, window=dt.last(5), ordered=False, name="j")
    assert paragraph(flow, "a")[1] == "order: as read (no time column)"
    assert paragraph(flow, "u") == ["in the order of arrival"]
    assert "order  as taken (no time column); ordered=False: followers may not rely on it" in paragraph(flow, "j")


def test_explain_shows_a_delay_of_a_timestamp_in_seconds():
    flow = stamps(name="a", delay="1.5min")._flow
    assert paragraph(flow, "a")[1] == "order: by t, timestamp[s]; late if more than 90 s behind"


def test_explain_names_what_no_sink_needs():
    stream = memory(name="a")
    stream.filter(col("x") > 1, name="unused")
    stream.write(dt.null(), name="out")
    plan = stream._flow.explain()
    assert "filter unused ← a   (no sink needs it, so it does not run)" in plan
    assert plan.count("so it does not run") == 1


def joined(window, on=None, itself=False, time="t", **options):
    flow = dt.Flow("plan")
    data = {"t": [1], "x": [1], "s": ["abc"]}
    a, b = memory(data, flow, "a", time), memory(data, flow, "b", time)
    return a.join(a if itself else b, on=on if on is not None else left.x < right.x, window=window, name="j",
                  **options)._flow  # fmt: skip


def test_explain_says_how_a_join_finds_rows_and_what_its_windows_may_hold():
    flow = joined((dt.last(2_000_000), dt.last(None)), [left.x < right.x, left.s == right.s])
    lines = paragraph(flow, "j")
    assert lines[:2] == ["on     inequality: left.x < right.x", "equality key: left.s == right.s"]
    assert "window left rows: last(2000000)" in lines
    assert "window right rows: last(None)" in lines
    assert "find   left rows by hash index on left.s: the predicate has an equality key" in lines
    assert "order  by event time, then left before right" in lines
    [first, second] = [line for line in lines if line.startswith("memory")]
    assert re.fullmatch(r"memory left: 2,000,000 rows and one batch, about \d+ MB \(\d+ bytes a row\)", first)
    assert re.fullmatch(r"memory right: NO BOUND: last\(None\) keeps every row, about \d+ bytes each", second)


def test_explain_counts_the_keys_that_pairs_within_rounding_are_told_by():
    def bytes_a_row(value):
        a, b = (memory({"x": [value]}, flow, name) for name in ("a", "b"))
        a.join(b, on=(left.x - right.x).abs() <= value, window=dt.last(2000), name="j")
        [first, _] = [line for line in paragraph(flow, "j") if line.startswith("memory")]
        return int(re.search(r"(\d+) bytes a row", first)[1])

    flow = dt.Flow("whole")
    whole = bytes_a_row(1)
    flow = dt.Flow("float")
    assert bytes_a_row(1.0) == whole + 8


def test_explain_says_that_a_time_window_has_no_bound_of_its_own():
    memory_lines = [line for line in paragraph(joined(dt.last(time=5)), "j") if line.startswith("memory")]
    assert [line.partition(", about ")[0] for line in memory_lines] == [
        "memory left: the rows of last(time=5)", "memory right: the rows of last(time=5)"
    ]  # fmt: skip
    assert memory_lines[0].endswith("bytes each; a time window has no bound of its own")


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        (dt.last(7), "window: 7 rows and one batch"),
        ((dt.last(7), dt.last(9)), "window: 9 rows and one batch"),
        ((dt.last(7), dt.last(time=1)), "window: the rows of last(time=1)"),
        ((dt.last(None), dt.last(9)), "window: NO BOUND"),
    ],
)
def test_explain_of_a_self_join_tells_of_its_one_window(windows, said):
    lines = paragraph(joined(windows, itself=True), "j")
    [bound] = [line for line in lines if line.startswith("memory")]
    assert bound.startswith(f"memory {said}")
    kept = [line for line in lines if line.startswith("window")]
    assert len(kept) == (1 if not isinstance(windows, tuple) else 2)
    assert all(line.startswith("window own rows: ") for line in kept)


def test_explain_says_what_is_decided_on_pairs():
    flow = joined(dt.last(9), on=dt.udf(np.equal, ["x"], ["x"]))
    [line, *_] = [line for line in paragraph(flow, "j") if line.startswith("then")]
    assert line.startswith("then decided on pairs as written: ")


def test_a_bound_in_large_units():
    lines = paragraph(joined(dt.last(10**15)), "j")
    assert any(" TB (" in line for line in lines)


def test_a_plan_is_drawn():
    flow = dt.Flow("plan")
    a, b = memory(flow=flow, name="a", time="t"), memory(flow=flow, name="b", time="t")
    pairs = a.union(b, name="u").join(b, on=left.x < right.x, window=(dt.last(5), dt.last(6)), name="j")
    pairs.filter(col("x") > 1, name="f").write(dt.null())
    a.late
    assert flow.explain().mermaid().splitlines() == [
        "flowchart LR",
        '    n0[("read a<br/>memory (1 batch, 3 rows)")]',
        '    n1[("read b<br/>memory (1 batch, 3 rows)")]',
        '    n2("union u")',
        '    n3{{"join j<br/>left.x &lt; right.x<br/>last(5) / last(6)"}}',
        '    n4["filter f<br/>x &gt; 1"]',
        '    n5[/"write-1<br/>null"/]',
        '    n6("late a.late")',
        "    n0 --> n2",
        "    n1 --> n2",
        '    n2 -->|"left"| n3',
        '    n1 -->|"right"| n3',
        "    n3 --> n4",
        "    n4 --> n5",
        "    n0 --> n6",
    ]


@pytest.mark.parametrize("text", ['"', "&lt;", "<b>", "<br/>", "]", "\n"])
def test_a_drawing_shows_texts_of_the_flow_as_they_are(text):
    stream = memory({"s": ["a"]}, name="a").filter(col("s") == text, name="f")
    [line] = [line for line in stream._flow.explain().mermaid().splitlines() if line.startswith("    n1[")]
    label = re.fullmatch(r'    n1\["filter f<br/>(.*)"\]', line)[1]
    for mark, entity in (("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        assert mark not in label
        label = label.replace(entity, mark)
    assert label.replace("&amp;", "&") == str(stream._node.predicate)


def test_notebooks_show_a_drawing_and_the_text():
    flow = memory(name="a")._flow
    shown = flow._repr_markdown_()
    assert shown == flow.explain()._repr_markdown_()
    assert shown.startswith("```mermaid\nflowchart LR\n")
    assert shown.endswith(f"```\n\n```text\n{flow.explain()}\n```")
