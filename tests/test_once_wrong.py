"""Cases that were wrong once: found by reading and by fuzzing, kept so that they stay right."""

import subprocess
import sys
from decimal import Decimal

import dovetail as dt
import numpy as np
import pyarrow as pa
import pytest
from dovetail import left, right
from dovetail.operators.access import JoinSpec
from dovetail.operators.join import JoinDriver
from dovetail.operators.numbering import Step
from dovetail.state import WindowLog

INDEXES = ("nested", "carousel", "hash", "auto")


def pairs(on, a, b=None, index="auto"):
    """All pairs of one push, as rows; None where the predicate cannot use the index."""
    try:
        join = dt.WindowJoin(a.schema, None if b is None else b.schema, on=on(), window=dt.last(5000), index=index)
    except dt.PredicateError as error:
        if f'index="{index}" needs' not in str(error):
            raise
        return None
    out = join.push(left=a) if b is None else join.push(left=a, right=b)
    join.check()
    return list(zip(*(column.to_pylist() for column in out.columns), strict=True))


def batch(**columns):
    return pa.record_batch(columns)


CROSSED = batch(a=[1, 2], b=[2, 1])
TEXTS = batch(s=["right['a", "left['a"], x=[1, 1])
WIDE = batch(d=pa.array([Decimal("0.5"), Decimal("5.0")], pa.decimal128(5, 1)), x=[1, 1])
NARROW = batch(
    x=[1], e=pa.array([Decimal("0.0")], pa.decimal128(5, 1)), g=pa.array([Decimal("4.5")], pa.decimal128(5, 1))
)
LOWEST = batch(z=pa.array([-(2**63)]), d=pa.array([0], pa.uint8()))

CASES = {
    "crossed equalities of a self-join": (
        lambda: [left.a == right.b, left.b == right.a], CROSSED, None, [(2, 1, 1, 2), (1, 2, 2, 1)]),
    "constants that look like columns": (
        lambda: [left.x == right.x, left.s == "left['a", right.s == "right['a"],
        TEXTS, None, [("left['a", 1, "right['a", 1)]),
    "a decimal and an integer of the same digits": (
        lambda: [left.x == right.x, left.d != 5, left.d == Decimal("0.5")], WIDE, NARROW, 1),
    "distances from a decimal and from an integer": (
        lambda: [(left.d - 5).abs() >= right.g, (left.d - Decimal("0.5")).abs() <= right.e], WIDE, NARROW, 1),
    "a product beyond 64 bits equals a float": (
        lambda: left.x * 10**20 == right.f, batch(x=[100]), batch(f=[1e22]), 1),
    "a product beyond 64 bits below a float": (
        lambda: left.x * 10**20 < right.f, batch(x=[100]), batch(f=[1e30]), 1),
    "a product beyond 64 bits and infinity": (
        lambda: left.x * 10**20 < right.f, batch(x=[100]), batch(f=[float("inf"), float("-inf"), float("nan")]), 1),
    "one half exact and the other saturated": (
        lambda: ((left.z.abs() - right.y).abs() <= left.d), LOWEST, batch(y=pa.array([2**63 - 1], pa.uint64())), []),
    "a float plus a constant is equal": (
        lambda: left.f == right.g + 1.0, batch(f=[2.0, 3.0]), batch(g=[1.0, 5.0]), [(2.0, 1.0)]),
}  # fmt: skip


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("case", CASES)
def test_pairs_are_right_with_every_index(case, index):
    on, a, b, expected = CASES[case]
    found = pairs(on, a, b, index)
    if found is not None:
        assert (len(found) if isinstance(expected, int) else found) == expected


@pytest.mark.parametrize(
    "constant",
    [
        lambda: dt.lit(1.5) > dt.lit(2.5),
        lambda: dt.lit(False) | dt.lit(False),
        lambda: dt.lit("a") == dt.lit("b"),
    ],
)
def test_a_constant_that_is_false_is_not_taken_for_true(constant):
    with pytest.raises(dt.PredicateError, match="can never hold"):
        pairs(lambda: [left.a == right.a, constant()], CROSSED, CROSSED)
    assert len(pairs(lambda: [left.a == right.a, dt.lit(1) < dt.lit(2)], CROSSED, CROSSED)) == 2


def test_a_decimal_becomes_the_same_float_whatever_stands_beside_it():
    left_schema = pa.schema([("d", pa.decimal128(18, 4))])
    other = batch(f=[1778764533.861604])

    def found(*steps):
        join = dt.WindowJoin(
            left_schema, other.schema, on=(left.d * left.d).cast("float64") == right.f, window=dt.last(None)
        )
        join.push(right=other)
        rows = [
            pa.record_batch([pa.array(map(Decimal, step), pa.decimal128(18, 4))], schema=left_schema) for step in steps
        ]
        return sum(join.push(left=row).num_rows for row in rows)

    small, large = "42175.4020", "99999999999999.9999"
    assert found([small, large]) == found([small], [large]) == found([large], [small])


def test_dictionaries_of_small_indices_meet_in_every_step():
    def codes(start):
        names = pa.array([f"v{start + i}" for i in range(100)])
        return pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), names)

    batches = [batch(t=list(range(k * 100, k * 100 + 100)), s=codes(k * 100)) for k in range(3)]
    flow = dt.Flow("f")
    one = flow.read(dt.memory(batches), name="one", time="t", delay=1000)
    two = flow.read(dt.memory(batches), name="two", time="t", delay=150)
    out = one.union(two).join(two, on=left.s == right.s, window=dt.last(500)).select("s").write(dt.collect())
    flow.run()
    expected = [f"v{i}" for i in range(300) for _ in range(2)]
    assert sorted(out.table()["s"].to_pylist()) == sorted(expected)
    spec = JoinSpec.check(
        "j",
        dict.fromkeys(("left", "right"), one.schema),
        left.s == right.s,
        dt.last(9),
        dict.fromkeys(("left", "right")),
    )
    wide = [b.set_column(1, "s", b.column(1).cast(one.schema.field("s").type)) for b in batches]
    assert not list(JoinDriver(spec).step(Step(wide, None)))


def test_an_empty_log_and_an_empty_table_are_in_order():
    WindowLog(pa.schema([])).check()
    join = dt.WindowJoin(CROSSED.schema, CROSSED.schema, on=left.a == right.a, window=dt.last(5), left_time="a",
                         right_time="a")  # fmt: skip
    join.check()
    assert join.push(left=pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.int64())})).num_rows == 0


def test_a_length_of_numpy_is_a_length_of_time():
    assert dt.last(np.timedelta64(5, "s")).seconds == 5
    assert dt.last(np.timedelta64(5, "m"), slide=np.timedelta64(1, "m")).seconds == 300
    for odd in (np.timedelta64(5, "M"), np.timedelta64("NaT", "s")):
        with pytest.raises(dt.WindowError, match="is not a duration"):
            dt.last(odd)
    with pytest.raises(dt.WindowError, match="is not a whole number"):
        dt.last(time=np.timedelta64(5, "s"))


def test_null_keys_are_counted_the_same_with_every_index():
    a = batch(x=[1.0, None], y=[1, 2])
    counts = set()
    for index in ("nested", "carousel"):
        join = dt.WindowJoin(
            a.schema, a.schema, on=(left.x < right.x) | (left.x > right.x + 5), window=dt.last(5), index=index
        )
        join.push(left=a, right=a)
        counts.add(tuple(join.null_keys().values()))
    assert counts == {(1, 1)}


def test_a_step_with_a_hundred_million_pairs_stays_small(tmp_path):
    """Memory is bound by slices, also of what a sink was given and has not shown yet."""
    code = """
import resource, numpy as np, dovetail as dt
from dovetail import left, right
n = 6000
flow = dt.Flow("f")
a, b = (flow.read(dt.memory({"t": np.arange(n), "x": np.arange(n)}), time="t") for _ in range(2))
sink = a.join(b, on=left.x != right.x, window=dt.last(None)).write(dt.null())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
flow.run()
print(sink.rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows, megabytes = map(int, done.stdout.split())
    assert rows == 6000 * 5999
    assert megabytes < 400  # all pairs at once would be more than a gigabyte


def test_a_class_of_ones_own_that_is_handed_over_as_it_is_gets_a_hint():
    class Plain:
        schema = pa.schema([("x", pa.int64())])

        def read(self):
            return dt.END_OF_SOURCE

    class Into:
        def stage(self, batch, epoch, part): ...
        def commit(self, epoch): ...
        def abort(self): ...

    flow = dt.Flow("f")
    with pytest.raises(dt.FlowError, match="is not a source; call it: Plain"):
        flow.read(dt.source(Plain))
    with pytest.raises(dt.FlowError, match="is not a source; put @dt.source above its class"):
        flow.read(Plain())
    stream = flow.read(dt.source(Plain)())
    with pytest.raises(dt.FlowError, match="is not a sink; call it: Into"):
        stream.write(dt.sink(Into))
    with pytest.raises(dt.FlowError, match="is not a sink; put @dt.sink above its class"):
        stream.write(Into())
    with pytest.raises(dt.FlowError, match="a Table is not a stream; read it first"):
        stream.join(pa.table({"x": [1, 2]}), on=left.x == right.x, window=dt.last(1))


def test_small_slips_are_told():
    schema = pa.schema([("x", pa.int64())])
    with pytest.raises(dt.FlowError, match="DOVETAIL_BATCHROWS is not an option; did you mean 'DOVETAIL_BATCH_ROWS'"):
        dt.Options.from_environment({"DOVETAIL_BATCHROWS": "10"})
    assert dt.Options.from_environment({"DOVETAIL_DATA": "/data"}) == dt.Options()
    with pytest.raises(dt.FlowError, match="suffix=None is not a text"):
        dt.WindowJoin(schema, schema, on=left.x == right.x, window=dt.last(1), suffix=None)
    with pytest.raises(dt.PredicateError, match=r"there are \+ - \* and abs\(\), and dt.udf for everything else"):
        _ = left.x % 2 == right.x
    flow = dt.Flow("f")
    stream = flow.read(dt.memory({"x": [1]}))
    stream.write(dt.null())
    with pytest.raises(dt.FlowError, match="write dt.Options"):
        flow.run(options={"batch_rows": 3})
    with pytest.raises(dt.FlowError, match="progress=True is not a function of a Status"):
        flow.run(progress=True)
    folder = dt.parquet("somewhere-new")
    stream.write(folder)
    with pytest.raises(dt.FlowError, match="is written already, by write 'write-2'"):
        stream.write(dt.parquet("./somewhere-new"))
    assert repr(dt.last(3, slide=1)) == "last(3, slide=1)"
    nothing = dt.Flow("g").read(dt.memory({"x": [1, 2]})).with_columns(z=dt.lit(None))
    out = nothing.write(dt.collect())
    nothing._flow.run()
    assert out.table()["z"].to_pylist() == [None, None]
