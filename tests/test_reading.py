"""Which source is read next, which wait, how long a silent one holds the others back, and how a replay is paced.

Time is a `Clock` that stands still unless a test moves it (see flows.py).
"""

import itertools
from fractions import Fraction

import dovetail as dt
import pyarrow as pa
import pytest
from dovetail import left, right
from dovetail.engine.graph import Rate
from dovetail.engine.reading import due_in
from flows import ALWAYS, ANY, Clock, Feed, finish, rounds, started, two


def waking(items):
    """Whatever has been put into a list since the last look; if there is nothing, nothing."""
    return (items.pop(0) if items else None for _ in itertools.repeat(None))


def silent(*items):
    """These items, and then nothing, for ever."""
    return itertools.chain(items, itertools.repeat(None))


def shown(runner, seen):
    runner.commit()
    return list(seen)


# --- which source is read --------------------------------------------------------------------------------


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
    flow = dt.Flow("f")
    a = flow.read(Feed([[5], [6]], log, "s", pa.timestamp("s")), name="a", time="t")
    b = flow.read(Feed([[1000], [5500], [7000]], log, "ms", pa.timestamp("ms")), name="b", time="t")
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


# --- idle sources ----------------------------------------------------------------------------------------


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


def test_a_batch_without_rows_is_nothing():
    clock = Clock()
    flow, _, seen = two(itertools.repeat([]), silent([5], [6]), a_options={"idle": "10s"})
    runner = started(flow, clock)
    assert rounds(runner, 4) == [True, True, False, False], "b, twice"
    clock.pass_by(10)
    rounds(runner, 1)
    assert shown(runner, seen) == [1000, 1001]


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
    rounds(runner, 2)
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


def test_an_idle_source_promises_no_more_than_a_slow_one_has_reached():
    """b has nothing for an instant, and holds everybody back all the same; c is far ahead."""
    clock, woken, late = Clock(), [], []
    flow = dt.Flow("f")
    a = flow.read(Feed(waking(woken)), name="a", time="t", idle="10s")
    b = flow.read(Feed(silent([5])), name="b", time="t", delay=3)
    c = flow.read(Feed(silent([1000], [2000])), name="c", time="t", idle="1h")
    a.late.write(dt.call(lambda batch: late.extend(batch["t"].to_pylist())))
    a.union(b, c).write(dt.null())
    runner = started(flow, clock)
    rounds(runner, 3)
    clock.pass_by(10)
    rounds(runner, 3)
    assert runner.result("stopped").steps["a"].watermark == "3", "just past what b has reached"
    woken.append([2, 7])
    rounds(runner, 2)
    assert shown(runner, late) == [2]


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
    a = flow.read(Feed(silent(), kind=pa.timestamp("s")), name="a", time="t", idle="1s")
    b = flow.read(Feed(silent([1500]), kind=pa.timestamp("ms")), name="b", time="t")
    a.join(b, on=left.t <= right.t, window=ALWAYS).write(dt.null())
    runner = started(flow, clock)
    rounds(runner, 2)
    clock.pass_by(1)
    rounds(runner, 1)
    assert runner.result("stopped").steps["a"].watermark == "1970-01-01T00:00:02"
    assert runner.result("stopped").steps["join-1"].watermark == "1970-01-01T00:00:01.500"


# --- pace ------------------------------------------------------------------------------------------------


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
            runner.around.pause(0.25)
    return log


def test_a_replay_is_paced_in_rows_a_second():
    log, clock = [], Clock()
    flow = dt.Flow("f")
    flow.read(Feed([[1] * 10_000, [2] * 5_000, [3] * 10], log), name="a", rate=10_000).write(dt.null())
    assert read_at(flow, clock, log) == [0.0, 1.0, 1.5, 1.75]


def test_a_replay_is_paced_by_event_time():
    log, clock = [], Clock()
    flow = dt.Flow("f")
    source = Feed([[1000], [1010], [1020], [1021]], log, kind=pa.timestamp("s"))
    flow.read(source, name="a", time="t", rate="2x").write(dt.null())
    assert read_at(flow, clock, log) == [0.0, 0.0, 5.0, 10.0, 10.5]


def test_a_replay_by_event_time_starts_at_its_first_row_however_batches_are_cut():
    log, clock = [], Clock()
    flow = dt.Flow("f")
    source = Feed([[1000, 1010], [1020], [1021]], log, kind=pa.timestamp("s"))
    flow.read(source, name="a", time="t", rate="2x").write(dt.null())
    assert read_at(flow, clock, log) == [0.0, 5.0, 10.0, 10.5]


def test_only_the_paced_source_waits():
    log, clock = [], Clock()
    flow = dt.Flow("f")
    flow.read(Feed([[1], [2]], log, "slow"), name="a", rate=0.5).write(dt.null())
    flow.read(Feed([[1], [2], [3]], log, "fast"), name="b").write(dt.null())
    finish(started(flow, clock, poll_seconds=1))
    assert log == ["slow", "fast", "fast", "fast", "fast", "slow", "slow"]
    assert clock.now == 4.0
