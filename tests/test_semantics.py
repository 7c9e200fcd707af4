"""The meaning of a join, sentence by sentence: docs/semantics.md, sections 1 to 6, and 7 in one process.

Each test's docstring says which sentence it proves, in short. Expected values are small enough to be
checked by eye (pairs.py says how they are written); random streams against the oracle are in test_invariance.py.

Not here, as one process without checkpoints cannot show it: what an idle time-out does to the order, and
all of section 7 that is about continuing.
"""

import math
import random
import re
from decimal import Decimal
from fractions import Fraction

import dovetail as dt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from dovetail import left, right
from flows import collected
from pairs import EQUAL, held, met, names, rows, timed_join, values
from running import cells
from streams import BINARY, BOOL, DATE, DECIMALS, DURATIONS, FLOATS, INTS, STAMPS, TEXTS, ZONED

ALL_INDEXES = ["nested", "hash", "carousel", "zone_map"]


def everywhere(xs, ys, on, expected, indexes, x_type=None, y_type=None):
    """The predicate holds for exactly the expected pairs, with each of the indexes."""
    for index in indexes:
        assert held(xs, ys, on, index, x_type, y_type) == expected, index


class Run:
    """A flow on batches in memory, for tests that need more than `push`."""

    def __init__(self):
        self.flow = dt.Flow("test")

    def read(self, name, data, batch_rows=2, **options):
        data = data if isinstance(data, list) else pa.Table.from_batches([data])
        return self.flow.read(dt.memory(data, batch_rows=batch_rows), name=name, **options)

    def table(self, stream):
        return collected(stream)


# Section 1: order


def test_1_left_stands_before_right_at_equal_times():
    """Order is time, then left before right."""
    a, b = rows("a", [5, 5]), rows("b", [5])
    # b0 is later than both: the left's window, of one row, decides. Were it first, the right's would.
    assert met(a, b, (dt.last(1), dt.last(None))) == ["a1b0"]


def test_1_equal_times_keep_their_position():
    """Then position in their source."""
    assert met(rows("a", [5, 5, 5]), rows("b", [6]), dt.last(2)) == ["a1b0", "a2b0"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(),
        pa.uint8(),
        pa.int32(),
        pa.uint64(),
        pa.date32(),
        pa.timestamp("s"),
        pa.timestamp("ns", "UTC"),
    ],
    ids=str,
)
def test_1_time_is_a_timestamp_a_date_or_an_integer(kind):
    """With a time column: timestamp, date or integer."""
    a, b = rows("a", [3, 1], time_type=kind), rows("b", [2], time_type=kind)
    assert met(a, b) == ["a1b0", "a0b0"]


def test_1_a_time_column_of_another_type_is_refused():
    """Times are timestamps, dates or integers: a float or a string is an error when written."""
    for kind, times in ((pa.float64(), [1.0]), (pa.string(), ["1"])):
        a = rows("a", times, time_type=kind)
        with pytest.raises(dt.FlowError, match="ts"):
            timed_join(a, a, dt.last(1))


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_1_late_is_decided_tuple_by_tuple(batch_rows):
    """Late is before the greatest time that the source showed before it, minus delay, for any batches."""
    run = Run()
    # greatest before each: -, 10, 10, 10, 12; so late are times below -, 7, 7, 7, 9
    s = run.read("a", rows("a", [10, 7, 6, 12, 8]), batch_rows, time="ts", delay=3)
    late = dt.collect()
    s.late.write(late)
    assert run.table(s).column("id").to_pylist() == ["a1", "a0", "a3"]
    assert late.table().column("id").to_pylist() == ["a2", "a4"]


def test_1_only_tuples_that_are_not_late_are_numbered():
    """A tuple's row is its number among those that are not late."""
    run = Run()
    a = run.read("a", rows("a", [10, 1, 11]), time="ts", delay=0)
    b = run.read("b", rows("b", [12]), time="ts", delay=0)
    assert names(run.table(a.join(b, on=EQUAL, window=dt.last(2)))) == ["a0b0", "a2b0"]


def test_1_a_null_time_is_an_error_that_names_source_and_row():
    """A null time is an error that names source and row."""
    run = Run()
    s = run.read("meters", rows("a", [1, 2, 3, None, 5]), time="ts", delay=0)
    with pytest.raises(dt.TimeError, match=r"(?s)meters.*\b3\b"):
        run.table(s)


def test_1_a_null_time_in_push_names_the_side():
    """A null time is an error that names source and row: the source is a side here."""
    a, b = rows("a", [1]), rows("b", [4, None])
    with pytest.raises(dt.TimeError, match=r"(?s)right.*\b1\b"):
        timed_join(a, b, dt.last(1)).push(left=a, right=b)


def test_1_event_time_survives_select():
    """Event time is settled at `read`: the column can be dropped."""
    run = Run()
    a = run.read("a", rows("a", [3, 1, 2]), time="ts", delay=5).select("id", "x")
    b = run.read("b", rows("b", [2]), time="ts", delay=5).select("id", "x")
    assert names(run.table(a.join(b, on=EQUAL, window=dt.last(time=1)))) == ["a1b0", "a2b0", "a0b0"]


def test_1_changing_the_column_does_not_change_event_time():
    """Event time survives `with_columns`, also of its own column."""
    run = Run()
    a = run.read("a", rows("a", [1, 2]), time="ts", delay=0).with_columns(ts=dt.col("ts") + 100)
    b = run.read("b", rows("b", [2]), time="ts", delay=0)
    out = run.table(a.join(b, on=EQUAL, window=dt.last(time=0)))
    assert names(out) == ["a1b0"]
    assert out.column("ts").to_pylist() == [102]


def test_1_event_time_survives_map():
    """Event time survives `map`, also where the function drops the column."""
    run = Run()
    a = run.read("a", rows("a", [1, 2]), time="ts", delay=0).map(lambda batch: batch.select(["id", "x"]))
    b = run.read("b", rows("b", [2]), time="ts", delay=0)
    assert names(run.table(a.join(b, on=EQUAL, window=dt.last(time=0)))) == ["a1b0"]


def test_1_union_is_by_time_then_input_then_position():
    """`union` orders by (time, input, position)."""
    run = Run()
    a = run.read("a", rows("a", [2, 1, 2]), time="ts", delay=9)
    b = run.read("b", rows("b", [1, 2, 2]), time="ts", delay=9)
    assert run.table(a.union(b)).column("id").to_pylist() == ["a1", "b0", "a0", "a2", "b1", "b2"]


def test_1_a_joins_result_has_the_greater_time_in_the_finer_unit():
    """A join's result has time = the greater of both, in the finer unit."""
    run = Run()
    a = run.read("a", rows("a", [1], time_type=pa.timestamp("s")), time="ts")
    b = run.read("b", rows("b", [1500], time_type=pa.timestamp("ms")), time="ts")
    c = run.read("c", rows("c", [1499, 1500, 1501], time_type=pa.timestamp("ms")), time="ts")
    pairs = a.join(b, on=EQUAL, window=dt.last("1s"), name="first")
    third = pairs.join(c, on=EQUAL, window=dt.last("0s"), suffix="_third", name="second")
    assert run.table(third).column("id_third").to_pylist() == ["c1"]


def test_1_joins_of_joins_are_in_order_by_themselves():
    """A result of the first join is never late for the second, and counts there in its order."""
    run = Run()
    a = run.read("a", rows("a", [4, 1, 3]), time="ts", delay=10)
    b = run.read("b", rows("b", [2, 5]), time="ts", delay=10)
    c = run.read("c", rows("c", [9]), time="ts", delay=10)
    pairs = a.join(b, on=EQUAL, window=dt.last(None), name="first")
    # the first join's results: a1b0 (2), a2b0 (3), a0b0 (4), a1b1, a2b1, a0b1 (5)
    last = pairs.join(c, on=EQUAL, window=dt.last(4), suffix="_third", name="second")
    assert names(run.table(last)) == ["a0b0", "a1b1", "a2b1", "a0b1"]


def test_1_batches_without_rows_carry_the_watermark_through_filters():
    """A side whose rows are all dropped holds nothing back, and everything of the others comes out."""
    run = Run()
    a = run.read("a", rows("a", [1, 2, 3, 4], [1, 2, 3, 4]), batch_rows=1, time="ts")
    b = run.read("b", rows("b", [1, 2, 3, 4], [1, 2, 3, 4]), batch_rows=1, time="ts")
    none = b.filter(dt.col("x") > 4)
    assert run.table(a.union(none)).column("id").to_pylist() == ["a0", "a1", "a2", "a3"]
    again = Run()
    a = again.read("a", rows("a", [1, 2]), time="ts")
    b = again.read("b", rows("b", [1, 2]), time="ts").filter(dt.col("x") > 4)
    assert names(again.table(a.join(b, on=EQUAL, window=dt.last(None)))) == []


def test_1_a_right_tuple_waits_for_the_left_at_its_time():
    """Right is released when its time is before the left's watermark: a left one of that time comes first."""
    run = Run()
    # a1 has the time of b0 and arrives in a later batch: still before it
    a = run.read("a", rows("a", [1, 5]), batch_rows=1, time="ts")
    b = run.read("b", rows("b", [5, 6]), batch_rows=1, time="ts")
    out = run.table(a.join(b, on=EQUAL, window=(dt.last(1), dt.last(1))))
    assert names(out) == ["a1b0", "a1b1"]


def test_1_one_side_with_time_and_the_other_without_is_an_error():
    """One side with a time column and the other without is an error."""
    a = rows("a", [1])
    with pytest.raises(dt.FlowError, match=r"(?i)time"):
        dt.WindowJoin(a.schema, a.schema, on=EQUAL, window=dt.last(1), left_time="ts", right_time=None)
    run = Run()
    timed, untimed = run.read("a", a, time="ts"), run.read("b", a)
    with pytest.raises(dt.FlowError, match=r"(?i)time"):
        timed.join(untimed, on=EQUAL, window=dt.last(1))
        run.flow.run()


def test_1_without_time_one_stream_has_the_order_of_its_rows():
    """Without a time column the order is that in which batches were taken: for one source, its own."""
    run = Run()
    s = run.read("a", values("a", [0, 0, 0]), batch_rows=1)
    assert names(run.table(s.join(s, on=EQUAL, window=dt.last(1)))) == ["a1a0", "a0a1", "a2a1", "a1a2"]


# Section 2: results


def test_2_each_pair_is_emitted_once_when_the_later_is_processed():
    """Each pair is emitted once, when the later of the two is processed."""
    a, b = rows("a", [1, 3]), rows("b", [2, 4])
    join = timed_join(a, b, dt.last(None))
    steps = [
        {"left": a.slice(0, 1)},
        {"right": b.slice(0, 1)},
        {"left": a.slice(1, 1)},
        {"right": b.slice(1, 1)},
    ]
    assert [names(join.push(**step)) for step in steps] == [[], ["a0b0"], ["a1b0"], ["a0b1", "a1b1"]]


def test_2_count_window():
    """`last(n)`: the n newest of the other stream."""
    assert met(rows("a", [1, 2, 3, 4]), rows("b", [5]), dt.last(2)) == ["a2b0", "a3b0"]


@pytest.mark.parametrize(("k", "bound"), [(1, 0), (4, 0), (5, 3), (6, 3), (7, 3), (8, 6), (9, 6), (10, 6), (11, 9)])
def test_2_count_window_with_slide(k, bound):
    """`last(n, slide=c)`: row ≥ c·ceil((k − n)/c); between n − c + 1 and n rows."""
    a, b = rows("a", range(k)), rows("b", [100])
    assert met(a, b, dt.last(4, slide=3)) == [f"a{row}b0" for row in range(bound, k)]


def test_2_time_window_is_closed():
    """`last("10min")`: a tuple at distance exactly 10 min is in."""
    a = rows("a", [599, 600, 601], time_type=pa.timestamp("s"))
    b = rows("b", [1200], time_type=pa.timestamp("s"))
    assert met(a, b, dt.last("10min")) == ["a1b0", "a2b0"]


@pytest.mark.parametrize(
    ("time", "bound"),
    [(14, 4), (15, 8), (17, 8), (18, 8), (19, 12), (0, -8), (-1, -8), (-2, -12), (-3, -12), (2, -8), (3, -4)],
)
def test_2_time_window_with_slide(time, bound):
    """time(q) ≥ s·ceil((time(p) − T)/s), counted from 0, ceil as in mathematics below zero too."""
    assert bound == 4 * math.ceil((time - 10) / 4)
    a = rows("a", range(time - 15, time + 1))
    out = met(a, rows("b", [time]), dt.last(time=10, slide=4))
    assert out == [f"a{n}b0" for n, t in enumerate(range(time - 15, time + 1)) if t >= bound]


def test_2_time_slides_are_counted_from_1970_in_utc():
    """Slides are counted from 1970-01-01 UTC, whatever the zone of the column (+05:30 here)."""
    zone = pa.timestamp("s", "Asia/Kolkata")
    a, b = rows("a", [3599, 3600, 5400], time_type=zone), rows("b", [7000], time_type=zone)
    # 7000 - 7200 = -200: the next whole hour is 0, so all; 7201 - 7200 = 1: 3600
    assert met(a, b, dt.last("2h", slide="1h")) == ["a0b0", "a1b0", "a2b0"]
    assert met(a, rows("b", [7201], time_type=zone), dt.last("2h", slide="1h")) == ["a1b0", "a2b0"]


def test_2_integer_times_have_durations_in_their_own_unit():
    """`last(time=300)` for an integer time column."""
    assert met(rows("a", [0, 1, 2]), rows("b", [301]), dt.last(time=300)) == ["a1b0", "a2b0"]


def test_2_last_none_keeps_everything_and_explain_warns():
    """`last(None)` keeps everything; `explain()` warns that memory has no bound."""
    run = Run()
    a, b = run.read("a", rows("a", [1, 2]), time="ts"), run.read("b", rows("b", [10**9]), time="ts")
    pairs = a.join(b, on=EQUAL, window=dt.last(None))
    assert names(run.table(pairs)) == ["a0b0", "a1b0"]
    assert re.search(r"(?i)no bound|unbounded|without bound|not bounded", run.flow.explain())


@pytest.mark.parametrize(
    "window",
    [
        lambda: dt.last(0),
        lambda: dt.last(-1),
        lambda: dt.last(5, slide=0),
        lambda: dt.last(5, slide=6),
        lambda: dt.last(5, slide=-1),
        lambda: dt.last(time=-1),
        lambda: dt.last(time=5, slide=0),
        lambda: dt.last(time=5, slide=6),
        lambda: dt.last("10min", slide="11min"),
        lambda: dt.last("10min", slide="0s"),
        lambda: dt.last("10 parsecs"),
        lambda: dt.last("-1s"),
        lambda: dt.last("10min", slide=3),
        lambda: dt.last(10, slide="1s"),
        lambda: dt.last(10, time=10),
        lambda: dt.last(1.5),
    ],
)
def test_2_a_window_that_cannot_be_is_an_error(window):
    """1 ≤ slide ≤ size; `last(0)` is an error."""
    with pytest.raises(dt.WindowError):
        window()


def test_2_zero_duration_means_equal_times():
    """`last("0s")` means equal times."""
    stamp = pa.timestamp("s")
    a, b = rows("a", [1, 2, 2], time_type=stamp), rows("b", [2, 3], time_type=stamp)
    assert met(a, b, dt.last("0s")) == ["a1b0", "a2b0"]
    assert met(rows("a", [1, 2, 2]), rows("b", [2, 3]), dt.last(time=0)) == ["a1b0", "a2b0"]


@pytest.mark.parametrize(
    ("kind", "window", "expected"),
    [
        (pa.timestamp("s"), "1500ms", ["a1b0", "a2b0"]),
        (pa.timestamp("s"), "999999999ns", ["a2b0"]),
        (pa.timestamp("s"), "1000000000ns", ["a1b0", "a2b0"]),
        (pa.date32(), "36h", ["a1b0", "a2b0"]),
        (pa.date32(), "23h", ["a2b0"]),
    ],
)
def test_2_a_duration_finer_than_the_unit_is_compared_exactly(kind, window, expected):
    """A duration finer than the column's unit is compared exactly, neither rounded up nor down."""
    a, b = rows("a", [1, 2, 3], time_type=kind), rows("b", [3], time_type=kind)
    assert met(a, b, dt.last(window)) == expected


def test_2_a_slide_must_be_a_whole_multiple_of_the_unit():
    """A slide must be a whole multiple of the unit."""
    a = rows("a", [1], time_type=pa.timestamp("s"))
    for slide in ("500ms", "1500ms", "1ns"):
        with pytest.raises(dt.WindowError, match=slide):
            timed_join(a, a, dt.last("10s", slide=slide))


@pytest.mark.parametrize("fine", ["ms", "us", "ns"])
def test_2_units_of_the_two_sides_may_differ(fine):
    """Units of the two sides may differ: order and windows are exact."""
    per = {"ms": 10**3, "us": 10**6, "ns": 10**9}[fine]
    a = rows("a", [1, 2, 3], time_type=pa.timestamp("s"))
    b = rows("b", [2 * per - 1, 2 * per, 3 * per + 1], time_type=pa.timestamp(fine))
    # b0 is just before a1, b1 at a1's time, b2 just after a2: a1 is too old for it
    assert met(a, b, dt.last("1s")) == ["a0b0", "a1b0", "a0b1", "a1b1", "a2b1", "a2b2"]


def test_2_a_zone_against_none_is_an_error():
    """A column with a time zone against one without is an error; two zones are two spellings of instants."""
    plain, utc, india = (rows("a", [1], time_type=pa.timestamp("s", z)) for z in (None, "UTC", "Asia/Kolkata"))
    for a, b in ((plain, utc), (utc, plain)):
        with pytest.raises(dt.FlowError, match=r"(?i)zone"):
            timed_join(a, b, dt.last(1))
    assert met(utc, india) == ["a0a0"]


def test_2_time_windows_need_times_and_their_own_kind_of_duration():
    """Integer columns take integers, timestamps take durations; without time there are neither."""
    number, stamp = rows("a", [1]), rows("a", [1], time_type=pa.timestamp("s"))
    with pytest.raises(dt.WindowError):
        timed_join(number, number, dt.last("10min"))
    with pytest.raises(dt.WindowError):
        timed_join(stamp, stamp, dt.last(time=10))
    for window in (dt.last("10min"), dt.last(time=10)):
        with pytest.raises(dt.WindowError):
            timed_join(number, number, window, left_time=None, right_time=None)


def test_2_a_window_belongs_to_the_side_that_it_keeps():
    """`window=(w_left, w_right)` keeps left tuples in the first."""
    a, b = rows("a", [1, 2, 5]), rows("b", [3, 4])
    assert met(a, b, (dt.last(1), dt.last(2))) == ["a1b0", "a1b1", "a2b0", "a2b1"]
    assert met(a, b, (dt.last(2), dt.last(1))) == ["a0b0", "a1b0", "a0b1", "a1b1", "a2b1"]


def test_2_self_join_has_both_ways_and_never_itself():
    """A self-join emits (a, b) and (b, a) where each holds, never (a, a)."""
    a = rows("a", [1, 1, 2])
    assert met(a, None) == ["a1a0", "a0a1", "a2a0", "a0a2", "a2a1", "a1a2"]
    assert met(rows("a", [1, 2], [5, 7]), None, on=left.x < right.x) == ["a0a1"]
    run = Run()
    s = run.read("a", a, time="ts")
    assert names(run.table(s.join(s, on=EQUAL, window=dt.last(1)))) == ["a1a0", "a0a1", "a2a1", "a1a2"]


def test_2_self_join_with_two_windows_takes_the_older_tuples_role():
    """With two windows, the older tuple's role picks one."""
    a = rows("a", [1, 2, 3])
    assert met(a, None, (dt.last(1), dt.last(None))) == ["a1a0", "a0a1", "a2a0", "a2a1", "a1a2"]
    assert met(a, None, (dt.last(None), dt.last(1))) == ["a1a0", "a0a1", "a0a2", "a2a1", "a1a2"]


def test_2_anything_but_the_same_stream_joins_two_streams():
    """A stream against a step made of it is two streams: a tuple meets itself there."""
    run = Run()
    s = run.read("a", rows("a", [1, 2]), time="ts")
    other = s.filter(dt.col("x") >= 0)
    assert names(run.table(s.join(other, on=EQUAL, window=dt.last(None)))) == ["a0a0", "a1a0", "a0a1", "a1a1"]


@pytest.mark.parametrize("index", ["auto", *ALL_INDEXES])
def test_2_a_predicate_on_one_side_does_not_change_what_a_count_window_counts(index):
    """A predicate on one side decides which rows are indexed, after rows were numbered."""
    a, b = rows("a", [1, 2, 3], [0, 7, 0]), rows("b", [4], [0])
    out = met(a, b, dt.last(2), on=[EQUAL, left.x < 5], index=index)
    assert out == ["a2b0"]  # a0 would be a second one, if only rows that pass were counted
    assert met(a, b, dt.last(2), on=[left.x <= right.x, right.x > 5], index="carousel") == []


# Section 3: order of results


def test_3_results_are_in_order_of_the_later_tuple_then_of_the_other():
    """Results come in the total order of their later tuple; within one, in the order of the other's row."""
    a, b = rows("a", [1, 4, 2]), rows("b", [3, 1])
    for index in ("auto", *ALL_INDEXES):
        assert met(a, b, index=index) == ["a0b1", "a2b1", "a0b0", "a2b0", "a1b1", "a1b0"], index


def test_3_order_does_not_follow_the_keys():
    """An index that finds by key gives its results in the order of rows all the same."""
    a, b = rows("a", [1, 2, 3, 4], [9, 3, 7, 1]), rows("b", [5, 6], [10, 0])
    for index in ("nested", "carousel"):
        assert met(a, b, on=left.x < right.x, index=index) == ["a0b0", "a1b0", "a2b0", "a3b0"], index


def test_3_unordered_results_may_feed_sinks_and_stateless_steps():
    """`ordered=False` gives the same pairs, and filters and selections may follow."""
    run = Run()
    a, b = run.read("a", rows("a", [1, 2]), time="ts"), run.read("b", rows("b", [2, 3]), time="ts")
    pairs = a.join(b, on=EQUAL, window=dt.last(None), ordered=False)
    out = run.table(pairs.filter(dt.col("x") == 0).select("id", "id_right"))
    assert sorted(names(out)) == ["a0b0", "a0b1", "a1b0", "a1b1"]


def test_3_an_ordered_step_behind_an_unordered_join_is_an_error_when_written():
    """A join or a window behind `ordered=False` is an error when the flow is written."""
    run = Run()
    a, b, c = (run.read(name, rows(name, [1]), time="ts") for name in "abc")
    pairs = a.join(b, on=EQUAL, window=dt.last(1), ordered=False)
    for unordered in (pairs, pairs.filter(dt.col("x") == 0), pairs.select("id", "x")):
        with pytest.raises(dt.FlowError, match="ordered"):
            unordered.join(c, on=EQUAL, window=dt.last(1), suffix="_third")
        with pytest.raises(dt.FlowError, match="ordered"):
            c.join(unordered, on=EQUAL, window=dt.last(1), suffix="_third")


# Section 4: values


def _band_that_differs():
    """Find a, b, d such that abs(a - b) <= d and b - d <= a <= b + d disagree in the last place."""
    rng = random.Random(0)
    while True:
        a, b = (round(rng.uniform(0, 2), 1) for _ in range(2))
        d = round(rng.uniform(0, 1), 1)
        if (abs(a - b) <= d) != (b - d <= a <= b + d):
            return a, b, d


@pytest.mark.parametrize("index", ["nested", "carousel"])
def test_4_a_predicate_means_what_is_written(index):
    """`abs(a − b) <= d` and `b − d <= a <= b + d` differ in a float's last place and for infinities."""
    a, b, d = _band_that_differs()
    for x, y in ((a, b), (math.inf, math.inf), (-math.inf, -math.inf), (math.inf, 1.0)):
        written = held([x], [y], (left.x - right.x).abs() <= d, index)
        assert bool(written) == (abs(x - y) <= d), (x, y, d)
        written = held([x], [y], left.x.between(right.x - d, right.x + d), index)
        assert bool(written) == (y - d <= x <= y + d), (x, y, d)


@pytest.mark.parametrize("kind", INTS, ids=repr)
def test_4_integer_arithmetic_neither_wraps_nor_saturates(kind):
    """Integer arithmetic is exact, as Python's, whatever the columns' width and sign."""
    xs, t = [kind.low, kind.low + 1, 0, 1, kind.high - 1, kind.high], kind.type
    predicates = {
        "x + 1 > y": (left.x + 1 > right.x, lambda x, y: x + 1 > y),
        "x - 1 < y": (left.x - 1 < right.x, lambda x, y: x - 1 < y),
        "2x >= y + y": (2 * left.x >= right.x + right.x, lambda x, y: 2 * x >= y + y),
        "-1x < y": (-1 * left.x < right.x, lambda x, y: -x < y),
        "|x - y| <= 1": ((left.x - right.x).abs() <= 1, lambda x, y: abs(x - y) <= 1),
        "x * x == y * y": (left.x * left.x == right.x * right.x, lambda x, y: x * x == y * y),
        "|x| >= y": (left.x.abs() >= right.x, lambda x, y: abs(x) >= y),
        "x * y > max": (left.x * right.x > kind.high, lambda x, y: x * y > kind.high),
        "between": (left.x.between(right.x - 1, right.x + 1), lambda x, y: y - 1 <= x <= y + 1),
        "x + 2**64 > y + 2**64": (left.x + 2**64 > right.x + 2**64, lambda x, y: x > y),
    }
    for name, (on, truth) in predicates.items():
        expected = [(i, j) for i, x in enumerate(xs) for j, y in enumerate(xs) if truth(x, y)]
        for index in ("nested", "carousel"):
            try:
                assert held(xs, xs, on, index, t, t) == expected, (name, index)
            except dt.PredicateError:
                assert index == "carousel", name


def test_4_widths_and_signs_are_compared_by_value():
    """Integers of any width and sign are compared by value."""
    signed, unsigned = [-1, 0, 2**63 - 1], [0, 2**63 - 1, 2**63, 2**64 - 1]
    kinds = {"x_type": pa.int64(), "y_type": pa.uint64()}
    everywhere(signed, unsigned, EQUAL, [(1, 0), (2, 1)], ALL_INDEXES, **kinds)
    less = [(i, j) for i, x in enumerate(signed) for j, y in enumerate(unsigned) if x < y]
    everywhere(signed, unsigned, left.x < right.x, less, ["nested", "carousel"], **kinds)


def test_4_time_minus_span_is_exact():
    """time(p) − T neither wraps nor saturates, at the ends of int64 too."""
    low, high = -(2**63), 2**63 - 1
    a = rows("a", [low, low + 1, 0, high - 1, high])
    assert met(a, rows("b", [low + 1]), dt.last(time=10)) == ["a0b0", "a1b0"]
    assert met(a, rows("b", [high]), dt.last(time=1)) == ["a3b0", "a4b0"]
    assert met(a, rows("b", [high]), dt.last(time=high)) == ["a2b0", "a3b0", "a4b0"]
    assert met(a, rows("b", [-2]), dt.last(time=high)) == ["a0b0", "a1b0", "a2b0"]


NEAR = [2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1]


@pytest.mark.parametrize("index", ALL_INDEXES)
def test_4_integers_and_floats_are_compared_exactly(index):
    """2^53 + 1 ≠ 2.0^53."""
    floats = [2.0**53, -(2.0**53), 0.5]
    for sign in ("==", "!=", "<", "<=", ">", ">="):
        on = {
            "==": left.x == right.x,
            "!=": left.x != right.x,
            "<": left.x < right.x,
            "<=": left.x <= right.x,
            ">": left.x > right.x,
            ">=": left.x >= right.x,
        }[sign]
        truth = {
            "==": int.__eq__,
            "!=": int.__ne__,
            "<": int.__lt__,
            "<=": int.__le__,
            ">": int.__gt__,
            ">=": int.__ge__,
        }
        expected = [(i, j) for i, x in enumerate(NEAR) for j, y in enumerate(floats) if truth[sign](2 * x, int(2 * y))]
        try:
            assert held(NEAR, floats, on, index) == expected, sign
        except dt.PredicateError:
            # no index for equality finds a range, and none at all finds what is unequal
            assert index != "nested", sign
            assert not (sign in ("<", "<=", ">", ">=") and index == "carousel"), sign


@pytest.mark.parametrize(
    "on",
    [
        lambda: left.i + 0.5 < right.i,
        lambda: left.i + left.f < right.f,
        lambda: (left.i - right.f).abs() <= 1,
        lambda: left.f < right.i * 1.5,
        lambda: left.f < right.f * right.i,
    ],
)
def test_4_arithmetic_between_an_integer_column_and_a_float_is_an_error(on):
    """Arithmetic between an integer column and a float is an error that proposes `.cast("float64")`."""
    schema = pa.schema([("i", pa.int64()), ("f", pa.float64())])
    with pytest.raises(dt.PredicateError, match=r"cast\(['\"]float64['\"]\)"):
        dt.WindowJoin(schema, schema, on=on(), window=dt.last(1))


def test_4_cast_makes_a_float_of_an_integer():
    """`.cast("float64")` is the way to mix them, with a float's precision."""
    everywhere([1, 3], [1.25, 2.0], left.x.cast("float64") + 0.25 == right.x, [(0, 0)], ["nested"])
    everywhere([2**53 + 1], [2.0**53], left.x.cast("float64") == right.x, [(0, 0)], ["nested"])


def test_4_an_integer_constant_beside_a_float_column_is_a_float():
    """An integer constant beside a float column is a float, in arithmetic and in comparison."""
    everywhere([0.5, 1.5], [1.0, 3.0], left.x * 2 >= right.x, [(0, 0), (1, 0), (1, 1)], ["nested", "carousel"])
    everywhere([0.5, 1.5], [0.0], [left.x > 1, right.x <= left.x], [(1, 0)], ["nested", "carousel"])
    everywhere([1.5], [0.5], (left.x - right.x).abs() <= 1, [(0, 0)], ["nested", "carousel"])


SIGNS = {
    "<": left.x < right.x,
    "<=": left.x <= right.x,
    ">": left.x > right.x,
    ">=": left.x >= right.x,
    "==": left.x == right.x,
    "!=": left.x != right.x,
}


@pytest.mark.parametrize("sign", SIGNS)
def test_4_a_comparison_with_null_or_nan_is_false(sign):
    """A comparison with a null or NaN operand is false, `!=` too."""
    truth = {(0, 0): sign in ("<=", ">=", "=="), (0, 1): sign in ("<", "<=", "!=")}
    expected = [pair for pair, holds in truth.items() if holds]
    for index in ALL_INDEXES:
        if (index == "hash" and sign != "==") or (index in ("carousel", "zone_map") and sign == "!="):
            continue
        assert held([1.0, None, math.nan], [1.0, 2.0, None, math.nan], SIGNS[sign], index) == expected, index
        assert held([1, None], [1, 2, None], SIGNS[sign], index) == expected, index


def test_4_a_computed_nan_is_false():
    """Stored or computed: inf − inf is NaN, and so is 0 · inf."""
    inf = math.inf
    everywhere([inf], [inf], left.x - right.x == 0, [], ["nested"])
    everywhere([inf], [inf], left.x - right.x != 0, [], ["nested"])
    everywhere([inf], [inf], (left.x - right.x).abs() <= inf, [], ["nested", "carousel"])
    everywhere([inf], [1.0], left.x * 0 <= right.x, [], ["nested", "carousel"])
    everywhere([inf], [inf], left.x == right.x, [(0, 0)], ALL_INDEXES)


def test_4_a_null_or_nan_is_not_cancelled_away():
    """A null or NaN in an operand makes it so, also where algebra would make the column vanish."""
    schema = pa.schema([("id", pa.string()), ("x", pa.int64()), ("n", pa.int64()), ("f", pa.float64())])
    a = pa.record_batch({"id": ["a0"], "x": [1], "n": [1], "f": [1.0]}, schema=schema)
    b = pa.record_batch({"id": ["b0", "b1"], "x": [1, 1], "n": [1, None], "f": [1.0, math.inf]}, schema=schema)
    for on in (
        left.x <= 0 * right.n + right.x,
        left.x == right.x + right.n - right.n,
        left.x.between(0 * right.n + right.x, right.x),
        (left.x - (right.x + 0 * right.n)).abs() <= 0,
        left.x + right.n == right.x + right.n,
        right.n == right.n,
        right.n - right.n == 0,
        left.f >= 0 * right.f,
        left.f == right.f - right.f + 1,
        0 * right.f == 0,
    ):
        for index in ("nested", "carousel", "hash"):
            try:
                join = dt.WindowJoin(schema, schema, on=on, window=dt.last(None), index=index)
            except dt.PredicateError:
                assert index != "nested", on
                continue
            assert names(join.push(left=a, right=b)) == ["a0b0"], (on, index)


def test_4_and_and_or_work_on_plain_truth_values():
    """`&` and `|` then work on plain truth values: a null on one side of `|` does not spoil the other."""
    either, both = (left.x < right.x) | (left.x.abs() >= 0), (left.x < right.x) & (left.x.abs() >= 0)
    assert held([None, 1], [None, 2], either) == [(1, 0), (1, 1)]
    assert held([None, 1], [None, 2], both) == [(1, 1)]


def test_4_a_list_means_and():
    """Lists mean *and*."""
    everywhere([1, 2, 3], [2], [left.x <= right.x, left.x >= right.x], [(1, 0)], ["nested", "carousel"])


def test_4_negative_zero_equals_zero():
    """−0.0 equals 0.0, by every path, as float32, as float64, and against the integer 0."""
    for kind in (pa.float32(), pa.float64()):
        everywhere([-0.0, 0.0], [0.0, -0.0], EQUAL, [(0, 0), (0, 1), (1, 0), (1, 1)], ALL_INDEXES, kind, kind)
        everywhere([-0.0, 0.0], [0.0, -0.0], left.x < right.x, [], ["nested", "carousel"], kind, kind)
        everywhere([-0.0], [0], left.x >= right.x, [(0, 0)], ["nested", "carousel"], kind, pa.int64())
    a, b = values("a", [-0.0]), values("b", [0.0])
    out = dt.WindowJoin(a.schema, b.schema, on=EQUAL, window=dt.last(1)).push(left=a, right=b)
    assert cells(out["x"]) == ["-0.0"]
    assert cells(out["x_right"]) == ["0.0"]


def _three(kind):
    """Three ascending raw values of a kind, a second (or a day, or 1) apart."""
    if kind.family == "decimal":
        return [Decimal(n).quantize(Decimal(1).scaleb(-kind.type.scale)) for n in (1, 2, 3)]
    step = 1 if kind.tick is None else max(1, int(Fraction(1) / kind.tick))
    return [n * step if kind.family != "float" else float(n) for n in (1, 2, 3)]


ORDERED = [*INTS, *FLOATS, *STAMPS, *ZONED, DATE, *DURATIONS, *DECIMALS]


@pytest.mark.parametrize("kind", ORDERED, ids=repr)
def test_4_keys_for_ranges(kind):
    """`<` knows integers, floats, timestamps, dates, durations and decimals up to 18 digits; `==` too."""
    a, b = kind.array(_three(kind)), kind.array(_three(kind)[1:])
    everywhere(a, b, left.x < right.x, [(0, 0), (0, 1), (1, 1)], ["nested", "carousel"])
    everywhere(a, b, EQUAL, [(1, 0), (2, 1)], ALL_INDEXES)
    everywhere(a, b, left.x.between(right.x, right.x), [(1, 0), (2, 1)], ["nested", "carousel"])


@pytest.mark.parametrize("kind", [*TEXTS, BINARY, BOOL], ids=repr)
def test_4_keys_for_equality(kind):
    """For `==` and `!=` also strings, binaries, booleans, dictionaries of them, by value."""
    raws = {"text": ["b", None, "a"], "binary": [b"b", None, b"a"], "bool": [True, None, False]}[kind.family]
    a, b = kind.array(raws), kind.array(raws[::-1])
    everywhere(a, b, EQUAL, [(0, 2), (2, 0)], ["nested", "hash"])
    everywhere(a, b, left.x != right.x, [(0, 0), (2, 2)], ["nested"])


def test_4_dictionaries_are_compared_by_value():
    """Dictionaries are compared by value, against other dictionaries and plain strings, batch by batch."""
    coded, plain = TEXTS[2].array(["a", "b"]), pa.array(["b", "c", "a"])
    everywhere(coded, plain, EQUAL, [(0, 2), (1, 0)], ["nested", "hash"])
    a = [pa.record_batch({"id": [f"a{n}"], "x": TEXTS[2].array([text])}) for n, text in enumerate(["u", "v"])]
    b = pa.record_batch({"id": ["b0"], "x": TEXTS[2].array(["v"])})
    for index in ("nested", "hash"):
        join = dt.WindowJoin(a[0].schema, b.schema, on=EQUAL, window=dt.last(None), index=index)
        out = [join.push(left=a[0]), join.push(left=a[1]), join.push(right=b)]
        assert [names(batch) for batch in out] == [[], [], ["a1b0"]]  # each has code 0 in its own dictionary
        assert cells(out[2]["x"]) == ["v"]


@pytest.mark.parametrize("kind", [*TEXTS, BINARY, BOOL], ids=repr)
def test_4_what_has_no_order_is_refused_for_ranges(kind):
    """Strings, binaries, booleans and dictionaries are no keys for `<` and bands."""
    schema = pa.schema([("x", kind.type)])
    for on in (left.x < right.x, left.x >= right.x, left.x.between(right.x, right.x)):
        with pytest.raises(dt.PredicateError, match="x"):
            dt.WindowJoin(schema, schema, on=on, window=dt.last(1))


def test_4_types_that_cannot_be_compared_are_refused():
    """A number against a string means nothing."""
    a, b = pa.schema([("x", pa.int64())]), pa.schema([("x", pa.string())])
    with pytest.raises(dt.PredicateError, match="x"):
        dt.WindowJoin(a, b, on=EQUAL, window=dt.last(1))


def test_4_an_unknown_column_is_an_error_with_the_nearest_name():
    """A predicate that names a column that is not there says which are."""
    schema = pa.schema([("rack", pa.int64())])
    with pytest.raises(dt.SchemaError, match="rack"):
        dt.WindowJoin(schema, schema, on=left.rak < right.rack, window=dt.last(1))


def test_4_between_is_closed_and_an_empty_range_is_false():
    """`between` is closed; low > high is false."""
    a = pa.record_batch({"id": ["a0", "a1", "a2", "a3"], "x": [1, 2, 4, 5]})
    b = pa.record_batch({"id": ["b0", "b1"], "lo": [2, 4], "hi": [4, 2]})
    for index in ("nested", "carousel"):
        join = dt.WindowJoin(
            a.schema, b.schema, on=left.x.between(right.lo, right.hi), window=dt.last(None), index=index
        )
        assert names(join.push(left=a, right=b)) == ["a1b0", "a2b0"], index


@pytest.mark.parametrize(
    "write",
    [
        lambda: right.lo < left.x < right.hi,
        lambda: (left.x < right.x) and (left.x > right.y),
        lambda: (left.x < right.x) or (left.x > right.y),
        lambda: not (left.x < right.x),
    ],
)
def test_4_python_words_on_expressions_raise_with_the_right_spelling(write):
    """`a < x < b`, `and`, `or`, `not` on expressions raise with the right spelling."""
    with pytest.raises(dt.PredicateError) as caught:
        write()
    assert "&" in str(caught.value)
    assert "between" in str(caught.value) or "|" in str(caught.value)


def test_4_any_column_can_be_named():
    """`left["odd name"]` for any column, also one that is called like a method."""
    a = pa.record_batch({"id": ["a0", "a1"], "odd name": [1, 2], "abs": [1, 1], "between": [0, 1], "_x": [1, 1]})
    on = [left["odd name"] == right["odd name"], left["abs"] == right["abs"], left["between"] < right["_x"]]
    join = dt.WindowJoin(a.schema, a.schema, on=on, window=dt.last(None))
    assert names(join.push(left=a, right=a)) == ["a0a0"]


def test_4_any_arrow_column_may_ride_along():
    """Any Arrow column may ride along, nulls and nesting included."""
    riders = {
        "list": pa.array([[1, 2], None, []], pa.list_(pa.int32())),
        "struct": pa.array([{"u": 1}, None, {"u": None}], pa.struct([("u", pa.int8())])),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "none": pa.nulls(3),
        "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
        "large": pa.array(["x", None, ""], pa.large_string()),
        "decimal256": pa.array([Decimal("1.5"), None, Decimal("-1")], pa.decimal256(40, 1)),
        "time": pa.array([1, None, 3], pa.time64("us")),
        "half": pa.array([1.5, None, -0.0], pa.float16()),
        "nested": pa.array([[{"v": "s"}], None, [None]], pa.list_(pa.struct([("v", pa.string())]))),
        "dictionary": pa.array(["p", None, "q"]).dictionary_encode(),
        "date64": pa.array([86400000, None, 0], pa.date64()),
    }
    a = pa.record_batch({"id": ["a0", "a1", "a2"], "x": [1, 2, 3], **riders})
    b = pa.record_batch({"id": ["b0", "b1"], "x": [3, 2]})
    out = dt.WindowJoin(a.schema, b.schema, on=EQUAL, window=dt.last(None)).push(left=a, right=b)
    assert names(out) == ["a2b0", "a1b1"]
    for name, rider in riders.items():
        assert out[name].to_pylist() == rider.take(pa.array([2, 1])).to_pylist(), name
        if name != "dictionary":  # whose indices may have become wider
            assert out.schema.field(name).type == rider.type


def test_4_decimals_of_two_scales_are_compared_by_value():
    """Decimals are compared as scaled integers: 1.5 is 1.50."""
    a, b = (
        pa.array([Decimal("1.5"), Decimal("2.0")], pa.decimal128(5, 1)),
        pa.array([Decimal("1.50")], pa.decimal128(9, 2)),
    )
    everywhere(a, b, EQUAL, [(0, 0)], ALL_INDEXES)
    everywhere(a, b, left.x > right.x, [(1, 0)], ["nested", "carousel"])


def test_4_a_function_of_ones_own_sees_pairs_without_nulls():
    """`dt.udf(fn, ["a"], ["b"])` is shown the pairs' columns, left then right, but for those with a null."""
    shown = []

    def fn(x, y, z):
        shown.extend(zip(x.tolist(), y.tolist(), z.tolist()))
        return x + y == z

    a = pa.record_batch({"id": ["a0", "a1"], "x": pa.array([1, None]), "y": [1, 1]})
    b = pa.record_batch({"id": ["b0", "b1", "b2"], "z": pa.array([2, None, 3])})
    join = dt.WindowJoin(a.schema, b.schema, on=dt.udf(fn, ["x", "y"], ["z"]), window=dt.last(None))
    assert names(join.push(left=a, right=b)) == ["a0b0"]
    assert sorted(set(shown)) == [(1, 1, 2), (1, 1, 3)]


@pytest.mark.parametrize("fn", [lambda x, y: 1 / 0, lambda x, y: [True] * (len(x) + 1), lambda x, y: "yes"])
def test_4_a_function_that_fails_or_answers_wrongly_is_an_error(fn):
    """What a user's function raises or wrongly returns is a UserFunctionError."""
    a = values("a", [1, 2])
    join = dt.WindowJoin(a.schema, a.schema, on=dt.udf(fn, ["x"], ["x"]), window=dt.last(None))
    with pytest.raises(dt.UserFunctionError):
        join.push(left=a, right=a)


@pytest.mark.parametrize(
    ("index", "on"),
    [
        ("hash", left.x < right.x),
        ("hash", left.x != right.x),
        ("carousel", left.x != right.x),
        ("carousel", left.s == right.s),
        ("carousel", dt.udf(lambda x, y: x == y, ["x"], ["x"])),
        ("hash", dt.udf(lambda x, y: x == y, ["x"], ["x"])),
    ],
)
def test_4_an_index_that_a_predicate_cannot_use_is_an_error(index, on):
    """An access path may only narrow: one that has nothing to narrow by is refused when written."""
    schema = pa.schema([("x", pa.int64()), ("s", pa.string())])
    with pytest.raises(dt.PredicateError, match=index):
        dt.WindowJoin(schema, schema, on=on, window=dt.last(1), index=index)


# Section 5: names and schemas


def test_5_columns_are_the_lefts_then_the_rights_with_a_suffix_where_taken():
    """The left's, then the right's; a right name that is taken gets `suffix`."""
    a = pa.schema([("x", pa.int64()), ("only", pa.string())])
    b = pa.schema([("y", pa.float32()), ("x", pa.int8())])
    out = dt.WindowJoin(a, b, on=left.x == right.x, window=dt.last(1)).push()
    assert out.schema == pa.schema(
        [("x", pa.int64()), ("only", pa.string()), ("y", pa.float32()), ("x_right", pa.int8())]
    )
    out = dt.WindowJoin(a, b, on=left.x == right.x, window=dt.last(1), suffix="_2").push()
    assert out.schema.names == ["x", "only", "y", "x_2"]


@pytest.mark.parametrize(
    ("a", "b"),
    [(["x", "x_right"], ["x"]), (["x"], ["x", "x_right"])],
)
def test_5_a_collision_that_remains_is_an_error_that_proposes_another_suffix(a, b):
    """A collision that remains is an error that proposes another suffix."""
    a, b = (pa.schema([(name, pa.int64()) for name in each]) for each in (a, b))
    with pytest.raises(dt.SchemaError, match=r"(?s)x_right.*suffix|suffix.*x_right"):
        dt.WindowJoin(a, b, on=left.x == right.x, window=dt.last(1))


def test_5_steps_that_hold_state_have_names_that_are_shown():
    """Steps that hold state have names, given or derived from the flow, and shown."""
    run = Run()
    a, b = run.read("first", rows("a", [1]), time="ts"), run.read("second", rows("b", [1]), time="ts")
    run.table(a.join(b, on=EQUAL, window=dt.last(1), name="hotter"))
    for name in ("first", "second", "hotter"):
        assert name in run.flow.explain()


def test_5_map_may_change_the_number_of_rows():
    """`map`: fn takes and returns a RecordBatch with the same or another number of rows."""
    run = Run()
    s = run.read("a", values("a", [1, 2, 3]), batch_rows=1).map(lambda batch: pa.concat_batches([batch, batch]))
    assert run.table(s).column("x").to_pylist() == [1, 1, 2, 2, 3, 3]


def test_5_map_is_held_to_the_schema_of_its_first_result():
    """Without `schema` it is taken from the first result and held to."""
    run, seen = Run(), []

    def fn(batch):
        seen.append(batch)
        return batch if batch.column("x")[0].as_py() < 3 else batch.rename_columns(["id", "y"])

    s = run.read("a", values("a", [1, 2, 3]), batch_rows=1).map(fn)
    with pytest.raises(dt.UserFunctionError, match="y"):
        run.table(s)


def test_5_map_with_a_schema_is_held_to_it():
    """`.map(fn, schema=…)` is held to what was said."""
    run = Run()
    said = pa.schema([("x", pa.int64())])
    s = run.read("a", values("a", [1, 2]))
    assert run.table(s.map(lambda batch: batch.select(["x"]), schema=said)).schema.names == ["x"]
    run = Run()
    s = run.read("a", values("a", [1, 2])).map(lambda batch: batch, schema=said)
    with pytest.raises(dt.UserFunctionError, match="id"):
        run.table(s)


# Section 6: push


def test_6_push_sorts_each_batch_and_keeps_ties():
    """One push sorts each batch, and the sort is stable."""
    assert met(rows("a", [3, 1, 3, 1]), rows("b", [4]), dt.last(3)) == ["a3b0", "a0b0", "a2b0"]


def test_6_push_returns_every_pair_whose_later_tuple_is_in_this_step():
    """Nothing is held back: also a pair at the greatest time of the step."""
    a, b = rows("a", [5]), rows("b", [5])
    assert met(a, b) == ["a0b0"]


def test_6_a_step_without_results_or_rows_is_an_empty_batch():
    """An empty batch if none; `push()` is allowed."""
    a = rows("a", [1])
    join = timed_join(a, a, dt.last(1))
    for out in (
        join.push(),
        join.push(left=a),
        join.push(right=a.slice(0, 0)),
        join.push(left=None, right=None),
    ):
        assert isinstance(out, pa.RecordBatch)
        assert out.num_rows == 0
        assert out.schema.names == ["id", "ts", "x", "id_right", "ts_right", "x_right"]


def test_6_a_late_row_is_an_error_that_names_side_row_and_both_times():
    """A row before a row of an earlier step is a LateError that names side, row and both times."""
    a, b = rows("a", [15]), rows("b", [12, 20])
    join = timed_join(a, b, dt.last(None))
    join.push(left=a)
    with pytest.raises(dt.LateError) as caught:
        join.push(right=b)
    message = str(caught.value)
    assert "right" in message
    assert re.search(r"\brow 0\b", message)
    assert "12" in message
    assert "15" in message


@pytest.mark.parametrize(
    ("first", "second", "late"),
    [
        ({"left": [5]}, {"left": [5]}, False),  # by position
        ({"left": [5]}, {"right": [5]}, False),  # right stands after left
        ({"right": [5]}, {"right": [5]}, False),
        ({"right": [5]}, {"left": [5]}, True),  # left stands before right
        ({"right": [5]}, {"left": [4]}, True),
        ({"left": [9], "right": [5]}, {"right": [6]}, True),
        ({"left": [9]}, {}, False),
    ],
)
def test_6_late_is_by_the_total_order(first, second, late):
    """Late is what the total order says: at equal times it looks at the side."""
    join = timed_join(rows("a", [0]), rows("b", [0]), dt.last(None))
    join.push(**{side: rows(side, times) for side, times in first.items()})
    if late:
        with pytest.raises(dt.LateError):
            join.push(**{side: rows(side, times) for side, times in second.items()})
    else:
        join.push(**{side: rows(side, times) for side, times in second.items()})


def test_6_nothing_of_a_refused_step_is_applied():
    """After a LateError the join is as it was: neither side of the refused step is in."""
    join = timed_join(rows("a", [0]), rows("b", [0]), dt.last(2))
    join.push(left=rows("a", [10, 11]))
    with pytest.raises(dt.LateError):
        join.push(left=rows("c", [12, 13, 20]), right=rows("d", [9]))
    assert names(join.push(right=rows("b", [12]))) == ["a0b0", "a1b0"]
    assert names(join.push(left=rows("e", [13]))) == ["e0b0"]


def test_6_nothing_of_a_step_with_a_null_time_is_applied():
    """A step that is refused for a null time leaves nothing behind either."""
    join = timed_join(rows("a", [0]), rows("b", [0]), dt.last(2))
    join.push(left=rows("a", [1]))
    with pytest.raises(dt.TimeError):
        join.push(left=rows("c", [2]), right=rows("d", [3, None]))
    assert names(join.push(right=rows("b", [2]))) == ["a0b0"]


def test_6_without_times_a_step_is_all_left_rows_then_all_right_rows():
    """Without time columns: all left rows of the step, then all right rows."""
    a, b = values("a", [0, 0]), values("b", [0])
    join = dt.WindowJoin(a.schema, b.schema, on=EQUAL, window=(dt.last(2), dt.last(1)))
    assert names(join.push(left=a, right=b)) == ["a0b0", "a1b0"]
    assert names(join.push(left=values("c", [0]), right=values("d", [0, 0]))) == [
        "c0b0",
        "a1d0",
        "c0d0",
        "a1d1",
        "c0d1",
    ]


def test_6_max_rows_makes_it_an_iterator_of_slices():
    """`max_rows=` makes it an iterator of slices."""
    a, b = rows("a", [1, 2, 3]), rows("b", [4, 5])
    slices = timed_join(a, b, dt.last(None)).push(left=a, right=b, max_rows=4)
    assert iter(slices) is slices
    slices = list(slices)
    assert all(isinstance(out, pa.RecordBatch) and 0 < out.num_rows <= 4 for out in slices)
    assert [pair for out in slices for pair in names(out)] == ["a0b0", "a1b0", "a2b0", "a0b1", "a1b1", "a2b1"]


def test_6_a_batch_of_another_schema_is_refused_and_not_applied():
    """What does not fit the schema is an error that names the side, and nothing is applied."""
    a, b = rows("a", [1]), rows("b", [2])
    join = timed_join(a, b, dt.last(None))
    with pytest.raises(dt.DovetailError, match="right"):
        join.push(left=a, right=b.select(["id", "ts"]))
    assert names(join.push(right=b)) == []


def test_6_a_self_join_has_no_right():
    """A self-join is pushed on the left only."""
    a = rows("a", [1])
    with pytest.raises(dt.DovetailError, match="right"):
        timed_join(a, None, dt.last(1)).push(left=a, right=a)


# Section 7: running, as far as one process without checkpoints goes


def test_7_collect_has_each_result_once():
    """`collect` is transactional: each result once, also with two sinks on one stream."""
    run = Run()
    a, b = run.read("a", rows("a", [1, 2]), time="ts"), run.read("b", rows("b", [3]), time="ts")
    pairs = a.join(b, on=EQUAL, window=dt.last(None))
    other = dt.collect()
    pairs.write(other)
    assert names(run.table(pairs)) == ["a0b0", "a1b0"]
    assert names(other.table()) == ["a0b0", "a1b0"]


def test_7_collect_without_results_has_the_schema():
    """A sink without rows still has its schema."""
    run = Run()
    a, b = run.read("a", rows("a", [1]), time="ts"), run.read("b", rows("b", [3]), time="ts")
    out = run.table(a.join(b, on=left.x < right.x, window=dt.last(None)))
    assert out.num_rows == 0
    assert out.schema.names == ["id", "ts", "x", "id_right", "ts_right", "x_right"]


def test_7_call_gets_the_batches():
    """`call` gets a batch when its epoch commits."""
    run, seen = Run(), []
    run.read("a", values("a", [1, 2, 3])).write(dt.call(lambda batch, *_: seen.append(batch)))
    run.flow.run()
    assert [x for batch in seen for x in batch.column("x").to_pylist()] == [1, 2, 3]


def _write(folder, xs, sink=None):
    run = Run()
    run.read("a", values("a", xs, pa.int64())).write(sink or dt.parquet(str(folder)))
    run.flow.run()


def _parts(folder, ending):
    return sorted(path for path in folder.rglob(f"*.{ending}"))


def test_7_a_parquet_folder_can_be_read_by_anything_that_takes_parquet_files(tmp_path):
    """A folder written by `dt.parquet` shows whole epochs only, to any reader that takes `*.parquet`."""
    _write(tmp_path / "out", [1, 2, 3])
    files = _parts(tmp_path / "out", "parquet")
    assert files
    read = pa.concat_tables([pyarrow.parquet.read_table(path) for path in files])
    assert read.column("x").to_pylist() == [1, 2, 3]


def test_7_a_finished_sink_without_rows_has_one_empty_file(tmp_path):
    """A finished sink without rows has one empty file with its schema."""
    _write(tmp_path / "out", [])
    [only] = _parts(tmp_path / "out", "parquet")
    table = pyarrow.parquet.read_table(only)
    assert (table.num_rows, table.schema.names) == (0, ["id", "x"])


def test_7_csv_writes_a_folder_of_parts(tmp_path):
    """`csv` is a transactional sink: a folder of parts."""
    _write(tmp_path / "out", [1, 2, 3], dt.csv(str(tmp_path / "out")))
    parts = [pyarrow.csv.read_csv(path) for path in _parts(tmp_path / "out", "csv")]
    assert pa.concat_tables(parts).column("x").to_pylist() == [1, 2, 3]


def test_7_output_of_another_lineage_is_refused_unless_overwritten(tmp_path):
    """Output of another lineage in the folder is refused; `overwrite=True`."""
    folder = tmp_path / "out"
    _write(folder, [1, 2])
    with pytest.raises(dt.DovetailError, match="overwrite"):
        _write(folder, [3])
    _write(folder, [3], dt.parquet(str(folder), overwrite=True))
    read = pa.concat_tables([pyarrow.parquet.read_table(path) for path in _parts(folder, "parquet")])
    assert read.column("x").to_pylist() == [3]


def test_7_a_folder_that_the_flow_reads_is_refused_by_whatever_path(tmp_path):
    """A folder is not read and written by one flow, also if a pattern or a link leads there."""
    _write(tmp_path / "out", [1])
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for path in (tmp_path / "out", tmp_path / "*" / "*.parquet", tmp_path / "link"):
        s = dt.Flow("test").read(dt.parquet(path))
        with pytest.raises(dt.FlowError, match="is also what read 'read-1' reads; write somewhere else"):
            s.write(dt.parquet(tmp_path / "out", overwrite=True))
    assert _parts(tmp_path / "out", "parquet")


def test_7_a_failure_ends_in_an_error_that_names_the_step_and_says_the_output_is_incomplete(tmp_path):
    """Without `checkpoint=` a failure ends the job; files are whole; the error says output is incomplete."""
    run = Run()

    def fn(batch):
        if 3 in batch.column("x").to_pylist():
            raise ValueError("three is out")
        return batch

    run.read("a", values("a", [1, 2, 3, 4]), batch_rows=1).map(fn).write(dt.parquet(str(tmp_path / "out")))
    with pytest.raises(dt.DovetailError, match="three is out") as caught:
        run.flow.run()
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "incomplete" in text
    for path in _parts(tmp_path / "out", "parquet"):
        assert set(pyarrow.parquet.read_table(path).column("x").to_pylist()) <= {1, 2}


def test_7_explain_says_which_sinks_are_transactional(tmp_path):
    """`explain()` says which sinks have each result once, and which at least once."""
    run = Run()
    s = run.read("a", values("a", [1]))
    s.write(dt.collect())
    s.write(dt.call(lambda *_: None))
    text = run.flow.explain()
    assert "to collect; each result once" in text
    assert re.search("to call .*; each result at least once", text)


def test_7_what_can_be_found_before_the_start_is_found_before_the_start():
    """A wrong step raises where it is written, and no source is read."""
    run = Run()
    s = run.read("a", rows("a", [1]), time="ts")
    with pytest.raises(dt.SchemaError, match="nope"):
        s.filter(dt.col("nope") > 1).write(dt.collect())
        run.flow.explain()
    with pytest.raises(dt.SchemaError, match="nope"):
        s.select("nope").write(dt.collect())
        run.flow.explain()
