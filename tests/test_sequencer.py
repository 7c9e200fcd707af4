"""Which rows are late and whose turn it is: two machines without a clock, beside plain loops over lists."""

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from dovetail.batch import END, START, Batch
from dovetail.errors import TimeError
from dovetail.operators.sequencer import Merger, SourceOrder, concat
from dovetail.operators.times import INT64_MAX, INT64_MIN, TimeDomain
from flows import raises
from hypothesis import given, settings
from hypothesis import strategies as st

COUNT = TimeDomain(None)
SECONDS, MILLIS = TimeDomain(Fraction(1)), TimeDomain(Fraction(1000))

random_input = settings(max_examples=200, deadline=None, derandomize=True, database=None)


def rows(times, first=0):
    """Rows that can be told apart: their number in the source, and their time."""
    numbers = range(first, first + len(times))
    return pa.record_batch({"id": pa.array(numbers, pa.int64()), "t": pa.array(times, pa.int64())})


class Source:
    """A SourceOrder that is looked at after each step."""

    def __init__(self, **options):
        self.order = SourceOrder("s", "t", options.pop("domain", COUNT), **options)
        self.out, self.late, self.marks = [], [], []
        self.count = 0

    def take(self, times):
        ready, late = self.order.take(rows(times, self.count))
        self.count += len(times)
        if late is not None:
            assert late.num_rows
            self.late += late["id"].to_pylist()
        self.see(ready)
        return ready.data["id"].to_pylist()

    def see(self, batch):
        self.order.check()
        assert batch.watermark == self.order.watermark
        self.marks.append(batch.watermark)
        if batch.data is not None:
            batch.check()
            assert batch.data["t"].to_pylist() == batch.times.tolist()
            self.out += batch.data["id"].to_pylist()
        assert self.marks == sorted(self.marks)

    def advance(self, floor):
        batch = self.order.advance(floor)
        if batch is not None:
            self.see(batch)
        return batch

    def end(self):
        self.see(self.order.end())
        assert self.marks[-1] == END
        assert self.order.held_bytes == 0
        return self.out


def plainly(events, delay):
    """The definition: (ids in order, late ids, watermark after each event)."""
    greatest, floor, kept, late, marks, number = None, START, [], [], [], 0
    for event in events:
        if isinstance(event, list):
            for time in event:
                if time < floor or (greatest is not None and time < greatest - delay):
                    late.append(number)
                else:
                    kept.append((time, number))
                greatest = time if greatest is None else max(greatest, time)
                number += 1
        elif event > (mark := max(floor, START if greatest is None else greatest - delay)):
            floor = event
        mark = max(floor, START if greatest is None else greatest - delay)
        marks.append(mark)
    return [number for _, number in sorted(kept)], late, marks


# --- lateness ----------------------------------------------------------------------------------------------

near = st.integers(-6, 6)
extreme = st.sampled_from([INT64_MIN, INT64_MIN + 1, INT64_MAX - 1, INT64_MAX])


@random_input
@given(batches=st.lists(st.lists(near | extreme, max_size=6), max_size=6), delay=st.integers(0, 5))
def test_lateness_is_that_of_a_plain_loop_however_batches_are_cut(batches, delay):
    flat = [time for batch in batches for time in batch]
    expected, late, marks = plainly(batches, delay)
    for cut in (batches, [flat], [[time] for time in flat]):
        source = Source(delay=delay)
        for batch in cut:
            source.take(batch)
        if cut is batches:
            assert source.marks == marks
        assert (source.end(), source.late) == (expected, late)


@random_input
@given(events=st.lists(st.lists(near, max_size=4) | st.integers(-8, 8), max_size=12), delay=st.integers(0, 5))
def test_promises_of_an_idle_source_count_like_rows_that_it_brought(events, delay):
    source = Source(delay=delay)
    for event in events:
        if isinstance(event, list):
            source.take(event)
        else:
            before = source.order.watermark
            assert (source.advance(event) is None) == (event <= before)
    expected, late, marks = plainly(events, delay)
    assert source.order.watermark == (marks[-1] if marks else START)
    assert (source.end(), source.late) == (expected, late)


@random_input
@given(times=st.lists(near, max_size=30), delay=st.integers(0, 5))
def test_a_row_goes_on_as_soon_as_nothing_can_come_before_it(times, delay):
    source = Source(delay=delay)
    for at, time in enumerate(times):
        source.take([time])
        expected, _, marks = plainly([[t] for t in times[: at + 1]], delay)
        assert source.out == [n for n in expected if times[n] <= marks[-1]]


def test_a_row_at_the_watermark_is_not_late_and_one_below_is():
    source = Source(delay=3)
    assert source.take([10]) == []
    assert source.order.watermark == 7
    assert source.take([7, 6, 7]) == [1, 3]
    assert source.late == [2]
    assert source.end() == [1, 3, 0]


def test_without_a_delay_equal_times_are_not_late():
    source = Source()
    assert source.take([5, 5, 4, 5]) == [0, 1, 3]
    assert source.late == [2]


def test_a_late_row_does_not_set_the_clock_back():
    source = Source(delay=1)
    source.take([10, 3, 4, 9])
    assert source.late == [1, 2]
    assert source.order.greatest == 10


def test_a_delay_finer_than_the_unit_is_rounded_down():
    """At 10 s with a delay of 1.9 s the rows of 8 s are late (8 < 8.1), those of 9 s are not."""
    source = Source(domain=SECONDS, delay=Fraction(19, 10))
    source.take([10, 9, 8])
    assert source.late == [2]


def test_nothing_is_known_before_the_first_row_and_everything_at_the_end():
    source = Source(delay=2)
    assert source.order.watermark == START
    assert source.take([]) == []
    assert source.marks == [START]
    assert source.end() == []


def test_an_end_without_rows_has_no_data_to_hand_on():
    batch = SourceOrder("s", "t", COUNT).end()
    assert (batch.data, len(batch.times), batch.watermark) == (None, 0, END)


def test_rows_that_wait_are_counted_in_bytes_and_kept_in_few_pieces():
    source = Source(delay=1000)
    for time in range(100):
        source.take([time])
        assert len(source.order.held) <= 64
    assert source.out == []
    assert source.order.held_bytes == 100 * (8 + 8 + 8)
    assert source.take([1049]) == list(range(50))
    assert source.order.held_bytes == 51 * (8 + 8 + 8)
    assert source.end() == list(range(101))


def test_rows_out_of_order_across_many_pieces_keep_their_position_at_equal_times():
    source = Source(delay=100)
    times = [(n * 37) % 10 for n in range(150)]
    for time in times:
        source.take([time])
    assert source.end() == sorted(range(150), key=lambda n: (times[n], n))


def test_a_check_finds_a_row_that_was_held_too_long():
    source = Source(delay=5)
    source.take([10])
    source.order.floor = 11
    with pytest.raises(AssertionError, match="a row was held that should have gone on"):
        source.order.check()


# --- an idle source ----------------------------------------------------------------------------------------


def test_a_floor_lets_held_rows_go_and_makes_rows_below_it_late():
    source = Source(delay=10)
    source.take([20, 15])
    batch = source.advance(16)
    assert (batch.data["t"].to_pylist(), batch.watermark) == ([15], 16)
    assert source.take([15, 16, 14]) == [3]
    assert source.late == [2, 4]
    assert source.end() == [1, 3, 0]


def test_a_floor_below_the_watermark_changes_nothing():
    source = Source()
    source.take([20])
    assert source.advance(20) is None
    assert source.advance(START) is None
    assert source.order.watermark == 20


def test_a_floor_past_all_times_makes_everything_late():
    source = Source()
    source.advance(INT64_MAX + 1)
    source.take([INT64_MAX - 1])
    assert source.late == [0]


def test_a_floor_past_all_times_makes_the_greatest_time_late_too():
    source = Source()
    source.advance(INT64_MAX + 1)
    source.take([INT64_MAX])
    assert source.late == [0]


# --- times that cannot be ----------------------------------------------------------------------------------


def test_a_row_too_far_ahead_is_an_error_that_names_both_times():
    source = Source(max_ahead=10)
    source.take([5, 15])
    with raises(
        TimeError, "source 's', time column 't': row 3 has the time 26, further than max_ahead past 15, the greatest"
    ):
        source.take([2, 26, 99])
    assert source.order.greatest == 15


@pytest.mark.parametrize("cut", [[[0, 10, 21]], [[0, 10], [21]], [[0], [10], [21]]])
def test_how_far_ahead_does_not_depend_on_how_batches_are_cut(cut):
    source = Source(max_ahead=10)
    with raises(TimeError, "row 2 has the time 21, further than max_ahead past 10"):
        for batch in cut:
            source.take(batch)


def test_the_first_row_may_have_any_time_and_those_at_the_limit_are_allowed():
    source = Source(max_ahead=10)
    assert source.take([]) == []
    assert source.take([10**12, 10**12 + 10]) == [0, 1]


def test_how_far_ahead_is_compared_exactly_where_sums_leave_64_bits():
    source = Source(max_ahead=2**63 - 1)
    assert source.take([INT64_MIN, -1, INT64_MAX - 1]) == [0, 1, 2]
    assert source.take([INT64_MAX]) == [3]
    source = Source(max_ahead=2**63 - 1)
    with raises(TimeError, f"row 1 has the time 0, further than max_ahead past {INT64_MIN}"):
        source.take([INT64_MIN, 0])


def test_times_ahead_are_shown_as_people_write_them():
    order = SourceOrder("meters", "at", SECONDS, max_ahead=Fraction(60))
    stamps = pa.record_batch({"at": pa.array([0, 61], pa.timestamp("s"))})
    text = "row 1 has the time 1970-01-01T00:01:01, further than max_ahead past 1970-01-01T00:00:00, the greatest"
    with raises(TimeError, text):
        order.take(stamps)


def test_a_null_time_names_the_row_by_its_place_in_the_source():
    order = SourceOrder("s", "t", COUNT)
    order.take(rows([1, 2]))
    with raises(TimeError, "source 's', time column 't': the time of row 3 is null"):
        order.take(pa.record_batch({"t": pa.array([3, None], pa.int64())}))


def test_an_unsigned_time_past_64_bits_names_the_row():
    order = SourceOrder("s", "t", COUNT)
    with raises(TimeError, "the time of row 1 is 9223372036854775808; integer times end at 2^63 - 1"):
        order.take(pa.record_batch({"t": pa.array([1, 2**63, 2**63 + 5], pa.uint64())}))


# --- whose turn it is --------------------------------------------------------------------------------------


class Merged:
    """A Merger that is compared with the release rule, as a plain loop says it, after each batch."""

    def __init__(self, scales, finest):
        self.scales = [finest // scale for scale in scales]  # from an input's unit to the finest
        domains = [TimeDomain(Fraction(scale)) for scale in scales]
        self.merger = Merger(domains, TimeDomain(Fraction(finest)), "join 'j'")
        self.seen = [[] for _ in scales]  # (time in the finest unit, id) of each row of an input
        self.marks = [START] * len(scales)
        self.out = []  # (time, input, id), as they were released

    def put(self, i, times, mark):
        scale = self.scales[i]
        batch = rows(times, len(self.seen[i]))
        self.seen[i] += [(time * scale, n) for time, n in zip(times, batch["id"].to_pylist())]
        self.marks[i] = mark * scale
        self.merger.put(i, Batch(batch, np.array(times, np.int64), mark))
        before = len(self.out)
        can = [self.merger.can_release(n) for n in range(40)]
        step = []
        for j, released in enumerate(self.merger.release()):
            ids = [n for b in released.batches for n in b["id"].to_pylist()]
            assert len(ids) == released.rows == len(released.times)
            step += [(time, j, n) for time, n in zip(released.times.tolist(), ids)]
        assert can == [n <= len(step) for n in range(40)]
        self.out += sorted(step)
        self.look(before)

    def may_go(self, i, time):
        """Nothing can come any more that stands before it: (time, input, position)."""
        return all(time < m for m in self.marks[:i]) and all(time <= m for m in self.marks[i:])

    def look(self, before):
        due = {(t, i, n) for i, seen in enumerate(self.seen) for t, n in seen if self.may_go(i, t)}
        assert set(self.out) == due
        assert len(self.out) == len(due)
        assert self.out == sorted(self.out), f"out of order from {before} on"
        assert self.merger.watermark == min(self.marks)
        waits = sum(map(len, self.seen)) - len(self.out)
        assert (self.merger.held_bytes > 0) == (waits > 0)


@st.composite
def histories(draw, inputs):
    """Batches in order for each input, with watermarks that rise: (input, times, watermark)."""
    most, marks, out = [-20] * inputs, [START] * inputs, []
    for _ in range(draw(st.integers(0, 14))):
        i = draw(st.integers(0, inputs - 1))
        steps = draw(st.lists(st.integers(0, 3), max_size=4))
        times = np.add.accumulate([max(most[i], marks[i]), *steps])[1:].astype(int).tolist() if steps else []
        most[i] = max(most[i], *times) if times else most[i]
        least = max(marks[i], -20)
        marks[i] = draw(st.integers(int(least), int(least) + 8))
        out.append((i, times, marks[i]))
    return out


@pytest.mark.parametrize(
    ("scales", "finest"),
    [((1, 1), 1), ((1, 1, 1), 1), ((1, 1000), 1000), ((1000, 1, 1000), 1000)],
    ids=["two inputs", "three inputs", "two units", "three inputs of two units"],
)
def test_rows_are_released_when_the_rule_says_so_and_in_order(scales, finest):
    @random_input
    @given(histories(len(scales)))
    def look(history):
        merged = Merged(scales, finest)
        for i, times, mark in history:
            merged.put(i, times, mark)
        for i in range(len(scales)):
            merged.put(i, [], END)
        assert len(merged.out) == sum(len(times) for _, times, _ in history)
        assert merged.merger.watermark == END
        assert merged.merger.held_bytes == 0

    look()


def test_a_right_row_waits_for_a_left_one_of_its_time_and_a_left_one_for_none():
    merged = Merged((1, 1), 1)
    merged.put(0, [4], 4)
    assert merged.out == []
    merged.put(1, [4], 4)
    assert merged.out == [(4, 0, 0)]
    merged.put(0, [], 5)
    assert merged.out == [(4, 0, 0), (4, 1, 0)]


def test_a_batch_can_be_released_in_parts():
    merged = Merged((1, 1), 1)
    merged.put(0, [1, 2, 3, 4], 4)
    whole = merged.merger.held_bytes
    merged.put(1, [], 2)
    assert merged.out == [(1, 0, 0), (2, 0, 1)]
    assert merged.merger.held_bytes == whole // 2


def test_a_watermark_beyond_every_time_releases_everything():
    merged = Merged((1, 1), 1)
    merged.put(0, [INT64_MAX], INT64_MAX)
    merged.put(1, [INT64_MAX], INT64_MAX)
    assert merged.out == [(INT64_MAX, 0, 0)]
    merged.put(0, [], INT64_MAX + 1)
    assert merged.out == [(INT64_MAX, 0, 0), (INT64_MAX, 1, 0)]


def test_a_watermark_before_every_time_releases_nothing():
    merged = Merged((1, 1), 1)
    merged.put(0, [INT64_MIN], INT64_MIN)
    merged.put(1, [INT64_MIN], INT64_MIN - 5)
    assert merged.out == []


def test_a_falling_watermark_is_refused_with_both_values():
    merger = Merger([SECONDS, MILLIS], MILLIS, "join 'j'")
    merger.put(0, Batch(rows([]), np.empty(0, np.int64), 7))
    with raises(AssertionError, "join 'j': the watermark of input 0 fell from 7000 to 6000"):
        merger.put(0, Batch(rows([]), np.empty(0, np.int64), 6))
    merger.put(0, Batch(rows([]), np.empty(0, np.int64), END))
    with pytest.raises(AssertionError, match="fell from inf to 8000"):
        merger.put(0, Batch(rows([]), np.empty(0, np.int64), 8))


def test_a_time_that_the_finer_unit_cannot_hold_is_an_error():
    merger = Merger([SECONDS, MILLIS], MILLIS, "join 'j'")
    with raises(TimeError, "join 'j': the time 292278994-08-17T07:12:56 cannot be represented in timestamp[ms]"):
        merger.put(0, Batch(rows([0]), np.array([INT64_MAX // 1000 + 1]), 0))


def test_a_merger_starts_without_knowledge():
    merger = Merger([COUNT, COUNT], COUNT, "join 'j'")
    assert (merger.watermark, merger.held_bytes) == (-math.inf, 0)
    assert [step.rows for step in merger.release()] == [0, 0]


def test_rows_without_columns_are_still_counted_when_batches_are_put_together():
    assert concat([rows([1, 2]).select([]), rows([3]).select([])]).num_rows == 3
    assert concat([rows([1]), rows([2])])["t"].to_pylist() == [1, 2]


def test_a_merger_knows_what_it_holds_without_counting():
    rng = np.random.default_rng(1)
    merger = Merger([TimeDomain(None)] * 2, TimeDomain(None), "join 'j'")
    ends = [0, 0]
    for _ in range(200):
        side, rows = int(rng.integers(2)), int(rng.integers(0, 9))
        times = ends[side] + np.sort(rng.integers(0, 9, rows))
        ends[side] += 8
        merger.put(side, Batch(pa.record_batch({"t": times}), times, ends[side]))
        if rng.random() < 0.7:
            merger.release()
        assert merger.held_bytes == sum(held.nbytes for queue in merger.held for held in queue)
    assert merger.held_bytes > 0
