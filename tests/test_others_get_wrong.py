"""What other systems are known to get wrong in stream joins, each as a named test.

The names of the tests are the mistakes. Where one was reported, the docstring says by whom, so that the
story can be read there. Left out is what a join in one process cannot get wrong: notices of checkpoints
that overtake each other, torn files, and back-pressure that shares a knob with the checkpoint cadence.
"""

import gc
import math
import tracemalloc
from itertools import combinations, pairwise

import dovetail as dt
import oracle
import pyarrow as pa
import pytest
from dovetail import left, right
from flows import collected
from pairs import held, names, rows, timed_join

RANGES = ["nested", "carousel"]
EQUALITIES = ["nested", "hash", "carousel"]
LOW, HIGH = -(2**63), 2**63 - 1


def always(a, b):
    return True


def read(flow, name, data, batch_rows=1, **options):
    return flow.read(dt.memory(pa.Table.from_batches([data]), batch_rows=batch_rows), name=name, time="ts", **options)


# Time and watermarks


@pytest.mark.parametrize("delay", [0, 1, 7])
def test_a_time_equal_to_the_watermark_is_late(delay):
    """FLINK-33524: a tuple exactly at the watermark is not late; one tick before it is."""
    flow = dt.Flow("edge")
    s = read(flow, "a", rows("a", [100, 100 - delay, 99 - delay]), delay=delay)
    late = dt.collect()
    s.late.write(late)
    assert collected(s).column("id").to_pylist() == (["a0", "a1"] if delay == 0 else ["a1", "a0"])
    assert late.table().column("id").to_pylist() == ["a2"]


def test_time_plus_bound_overflows():
    """Flink adds a bound to a time without saturating: at both ends of int64 nothing may wrap."""
    a, b = rows("a", [LOW, 0, HIGH]), rows("b", [LOW, 0, HIGH])
    near = timed_join(a, b, dt.last(time=1)).push(left=a, right=b)
    assert names(near) == ["a0b0", "a1b1", "a2b2"]
    far = timed_join(a, b, dt.last(time=HIGH)).push(left=a, right=b)
    # 0 - HIGH is LOW + 1: what is at LOW is just out of reach of 0; HIGH reaches back to 0
    assert names(far) == ["a0b0", "a1b1", "a2b1", "a1b2", "a2b2"]


def test_a_delay_at_the_least_time_overflows():
    """The watermark is the greatest time minus the delay: below int64 it must not wrap to the far future."""
    flow = dt.Flow("least")
    s = read(flow, "a", rows("a", [LOW + 1, LOW, LOW + 2]), delay=HIGH)
    late = dt.collect()
    s.late.write(late)
    assert collected(s).column("id").to_pylist() == ["a1", "a0", "a2"]
    assert late.table().num_rows == 0


@pytest.mark.parametrize("window", [dt.last(3), dt.last(time=5), dt.last(time=8, slide=6), dt.last(None)])
def test_a_watermark_below_the_least_time_overflows_in_a_join(window):
    """The same where two watermarks meet: a join compares them exactly, also far below int64."""
    for delay in (1, 30, HIGH):
        flow = dt.Flow("below")
        a = read(flow, "a", rows("a", [LOW + 1, LOW]), delay=delay)
        b = read(flow, "b", rows("b", [LOW + 2]), delay=delay)
        out = collected(a.join(b, on=left.x == right.x, window=window))
        assert names(out) == ["a1b0", "a0b0"], delay


def test_results_come_behind_the_output_watermark():
    """FLINK-8158, SPARK-49829: what one join gives is never late for the next, however late it was found."""
    flow = dt.Flow("chain")
    data = {
        "a": rows("a", [5, 1, 9, 3, 7]),
        "b": rows("b", [2, 8, 4, 6, 10]),
        "c": rows("c", [1, 11, 6, 3, 9]),
    }
    s = {name: read(flow, name, batch, delay=100) for name, batch in data.items()}
    first = s["a"].join(s["b"], on=left.x == right.x, window=dt.last(time=3), name="first")
    both = first.join(s["c"], on=left.x == right.x, window=dt.last(time=2), suffix="_c", name="both")
    out = collected(both)

    events = [oracle.read(batch.to_pylist(), oracle.Clock("ts"), 100)[0] for batch in data.values()]
    three, two = (oracle.Window(span=3),) * 2, (oracle.Window(span=2),) * 2
    pairs = oracle.join(events[0], events[1], three, always)
    joined = oracle.as_stream(pairs, lambda a, b: {"id": a["id"] + b["id"]})
    expected = [p.left.row["id"] + p.right.row["id"] for p in oracle.join(joined, events[2], two, always)]
    got = [a + b + c for a, b, c in zip(*(out.column(n).to_pylist() for n in ("id", "id_right", "id_c")))]
    assert len(expected) > 10
    assert got == expected


def test_chained_joins_evict_by_the_wrong_watermark():
    """SPARK-46350: the state of a second join must not be dropped by the first one's inputs."""
    flow = dt.Flow("eviction")
    a, b = read(flow, "a", rows("a", range(0, 100, 10))), read(flow, "b", rows("b", range(0, 100, 10)))
    # c is old all the time, and must meet the first join's old results when its turn comes
    c = read(flow, "c", rows("c", range(5, 15)))
    pairs = a.join(b, on=left.x == right.x, window=dt.last(time=0), name="first")
    out = collected(pairs.join(c, on=left.x == right.x, window=dt.last(time=10), suffix="_c", name="second"))
    met = list(zip(out.column("id").to_pylist(), out.column("id_c").to_pylist()))
    # (a0, b0) at 0 is reached by c at 5..10; (a1, b1) at 10 meets all; (a2, b2) at 20 those from 10
    expected = {("a0", f"c{n}") for n in range(6)} | {("a1", f"c{n}") for n in range(10)}
    expected |= {("a2", f"c{n}") for n in range(5, 10)}
    assert len(met) == len(set(met))
    assert set(met) == expected


def test_a_slow_step_is_taken_for_an_idle_source():
    """FLINK-40234: a source that is read slowly, or held back, is not silent, and its rows are not late."""
    flow = dt.Flow("slow")

    def slow(batch):
        for _ in range(3):
            sum(n * n for n in range(20_000))  # work, not sleep
        return batch

    a = read(flow, "a", rows("a", range(20)), idle="1ms").map(slow)
    b = read(flow, "b", rows("b", range(20)), idle="1ms")
    late = dt.collect()
    b.late.write(late)
    assert names(collected(a.join(b, on=left.x == right.x, window=dt.last(time=0)))) == [f"a{n}b{n}" for n in range(20)]
    assert late.table().num_rows == 0


# State


@pytest.mark.parametrize("window", [dt.last(10), dt.last(time=10)], ids=["count", "time"])
@pytest.mark.parametrize("silent", ["left", "right", "none", "self"])
def test_state_is_not_cleaned_when_one_side_is_silent(window, silent):
    """RisingWave #16045, Proton #1157: what no later tuple can reach is dropped, though a side be silent."""
    wide = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("x", pa.int64()), ("payload", pa.string())])
    right_schema, times = (None, {}) if silent == "self" else (wide, {"right_time": "ts"})
    join = dt.WindowJoin(wide, right_schema, on=left.x < right.x, window=window, left_time="ts", **times)

    def step(n):
        batch = pa.record_batch(
            {"id": [f"{n}"], "ts": pa.array([n]), "x": [0], "payload": ["p" * 200_000 + str(n)]}, schema=wide
        )
        sides = {"left": ("right",), "right": ("left",), "none": ("left", "right"), "self": ("left",)}[silent]
        assert join.push(**dict.fromkeys(sides, batch)).num_rows == 0

    def held_bytes():
        gc.collect()
        return pa.total_allocated_bytes() + tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = held_bytes()
        for n in range(300):
            step(n)
        grown = held_bytes() - before
    finally:
        tracemalloc.stop()
    assert grown < 100 * 200_000, f"{grown} bytes are held of {300 * 200_000} that came"


def test_a_self_join_counts_twice_or_not_at_all():
    """Quix, Pathway and ksqlDB refuse or double a self-join: each ordered pair is there exactly once."""
    a = rows("a", [1, 2, 2, 3])
    expected = sorted(f"a{i}a{j}" for i in range(4) for j in range(4) if i != j)
    for index in EQUALITIES:
        assert sorted(names(timed_join(a, None, dt.last(None), index=index).push(left=a))) == expected, index
    flow = dt.Flow("self")
    s = read(flow, "a", a)
    assert sorted(names(collected(s.join(s, on=left.x == right.x, window=dt.last(None))))) == expected


def test_already_joined_is_inferred_from_a_shared_store():
    """differential-dataflow, 59dfd3df: what was joined is known by row numbers, not by what is stored.

    Every way to cut eight interleaved tuples, some at equal times, in three steps.
    """
    sides, times = "LRRLLRLR", [1, 1, 2, 2, 3, 3, 3, 4]
    order = sorted(range(8), key=lambda n: (times[n], sides[n], n))
    expected = None
    for cut in combinations(range(9), 2):
        a, b = rows("a", []), rows("b", [])
        join, out = timed_join(a, b, dt.last(None)), []
        for start, end in pairwise((0, *cut, 8)):
            step = {}
            for side, letter in (("left", "L"), ("right", "R")):
                chosen = [n for n in order[start:end] if sides[n] == letter]
                step[side] = pa.record_batch(
                    {
                        "id": [str(n) for n in chosen],
                        "ts": [times[n] for n in chosen],
                        "x": [0] * len(chosen),
                    },
                    schema=a.schema,
                )
            out += names(join.push(**step))
        assert len(out) == len(set(out)) == 16, cut
        expected = expected or out
        assert out == expected, cut


# Keys and values


@pytest.mark.parametrize("index", EQUALITIES)
def test_duplicate_keys_are_dropped(index):
    """An index that is a dict keeps one row for a key: all are kept, in order, equal rows too."""
    a, b = rows("a", [1, 1, 1, 2], [7, 7, 7, 8]), rows("b", [3, 3], [7, 7])
    out = timed_join(a, b, dt.last(None), index=index).push(left=a, right=b)
    assert names(out) == ["a0b0", "a1b0", "a2b0", "a0b1", "a1b1", "a2b1"]
    twin = pa.record_batch({"id": ["t", "t"], "ts": [1, 1], "x": [7, 7]})
    assert names(timed_join(twin, b, dt.last(None), index=index).push(left=twin, right=b)) == ["tb0"] * 2 + ["tb1"] * 2


@pytest.mark.parametrize("index", RANGES)
def test_nan_breaks_bisection(index):
    """A NaN among sorted keys must not hide its neighbours, wherever it stands, and never matches."""
    nan = math.nan
    for xs in (
        [nan, 1.0, 2.0, 3.0],
        [1.0, nan, 2.0, 3.0],
        [3.0, 2.0, nan, 1.0],
        [1.0, 2.0, 3.0, nan],
        [nan] * 4,
    ):
        for ys in ([0.0, nan, 2.5, 9.0], [nan, nan, nan], [math.inf, -math.inf]):
            less = [(i, j) for i, x in enumerate(xs) for j, y in enumerate(ys) if x < y]
            assert held(xs, ys, left.x < right.x, index) == less
            near = [(i, j) for i, x in enumerate(xs) for j, y in enumerate(ys) if abs(x - y) <= 1]
            assert held(xs, ys, (left.x - right.x).abs() <= 1, index) == near


@pytest.mark.parametrize("index", EQUALITIES)
def test_nan_equals_itself(index):
    """NaN is no key: not equal to itself, also where its bits are the same."""
    assert held([math.nan, 1.0], [math.nan, 1.0], left.x == right.x, index) == [(1, 1)]


@pytest.mark.parametrize("index", EQUALITIES)
def test_nulls_equal_each_other(index):
    """A null is no key either, and neither is what lies beneath it."""
    zeros = pa.array([0, 0], pa.int64())
    a = rows("a", [1, 1], pa.array([None, 0], pa.int64()))
    b = rows("b", [2, 2], zeros)
    assert names(timed_join(a, b, dt.last(None), index=index).push(left=a, right=b)) == ["a1b0", "a1b1"]
    assert held([None, 0], [None, 0], left.x == right.x, index, pa.int64(), pa.int64()) == [(1, 1)]


@pytest.mark.parametrize("index", EQUALITIES)
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_negative_zero_hashes_apart(index, kind):
    """−0.0 and 0.0 are one key."""
    both = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert held([0.0, -0.0], [-0.0, 0.0], left.x == right.x, index, kind, kind) == both


@pytest.mark.parametrize("index", RANGES)
def test_one_below_the_least_integer_wraps(index):
    """A strict bound is not a closed bound at a key minus one: at the least integer there is none."""
    ends = [LOW, LOW + 1, HIGH - 1, HIGH]
    for on, truth in (
        (left.x < right.x, lambda x, y: x < y),
        (left.x > right.x, lambda x, y: x > y),
        (left.x - 1 < right.x - 1, lambda x, y: x < y),
        (left.x + 1 > right.x, lambda x, y: x + 1 > y),
        (left.x - 1 >= right.x, lambda x, y: x - 1 >= y),
        ((left.x - right.x).abs() < 2, lambda x, y: abs(x - y) < 2),
        (left.x.between(right.x - 1, right.x + 1), lambda x, y: abs(x - y) <= 1),
    ):
        expected = [(i, j) for i, x in enumerate(ends) for j, y in enumerate(ends) if truth(x, y)]
        assert held(ends, ends, on, index) == expected, on


@pytest.mark.parametrize("index", RANGES)
def test_large_integers_go_through_a_float(index):
    """2^53 and 2^53 + 1 are two keys, and so are the largest unsigned ones."""
    near = [2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2]
    less = [(i, j) for i in range(4) for j in range(4) if i < j]
    assert held(near, near, left.x < right.x, index) == less
    top = [2**64 - 4 + n for n in range(4)]
    assert held(top, top, left.x < right.x, index, pa.uint64(), pa.uint64()) == less
    one = [(i, j) for i in range(4) for j in range(4) if abs(i - j) <= 1]
    assert held(top, top, (left.x - right.x).abs() <= 1, index, pa.uint64(), pa.uint64()) == one


@pytest.mark.parametrize("index", EQUALITIES)
def test_large_integers_are_equal_to_their_neighbours(index):
    """Equality is by value where one side is unsigned and the other is not."""
    signed, unsigned = [HIGH - 1, HIGH, -1], [HIGH, HIGH + 1, 2**64 - 1]
    assert held(signed, unsigned, left.x == right.x, index, pa.int64(), pa.uint64()) == [(1, 0)]
