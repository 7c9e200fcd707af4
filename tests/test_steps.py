"""What the steps of a flow make of their rows: computed columns, maps, unions, self-joins, late rows, event time."""

import datetime
from decimal import Decimal

import dovetail as dt
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from dovetail import col, left, right
from flows import ALWAYS, Feed, collected, memory, raises, timed

DAY = datetime.date(2024, 2, 1)
NOON = datetime.datetime(2024, 2, 1, 12)
MIDNIGHT = datetime.datetime(2024, 2, 1)
HOUR = datetime.timedelta(hours=1)
UTC = pa.timestamp("us", "UTC")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NARROW = pa.decimal64(9, 2) if hasattr(pa, "decimal64") else pa.decimal128(9, 2)  # of 64 bits since Arrow 18


def without(name, value):
    """A function that drops rows."""
    return lambda batch: batch.filter(pc.not_equal(batch[name], value))


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
        (pa.timestamp("us"), [MIDNIGHT, None], lambda x: x.cast("date32"), pa.date32(), [DAY, None]),
        (pa.date32(), [DAY, None], lambda x: x.cast("date32"), pa.date32(), [DAY, None]),
        (pa.int64(), [19754, None], lambda x: x.cast("date32"), pa.date32(), [DAY, None]),
        (pa.date32(), [DAY, None], lambda x: x.cast("date64"), pa.date64(), [DAY, None]),
        (pa.int64(), [-2, None], lambda x: x.cast(pa.decimal256(9, 2)), pa.decimal256(9, 2), [Decimal("-2.00"), None]),
        (pa.int64(), [1, -2], lambda x: x.cast(NARROW), NARROW, [Decimal("1.00"), Decimal("-2.00")]),
        (pa.int64(), [5], lambda x: x.cast(UTC) + HOUR, UTC, [EPOCH + HOUR + datetime.timedelta(microseconds=5)]),
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


def test_times_computed_from_a_dictionary_keep_its_zone():
    stream = memory({"x": pa.array([0], UTC).dictionary_encode()}).select(y=col("x") + HOUR)
    assert stream.schema.field("y").type == UTC
    assert collected(stream)["y"].to_pylist() == [EPOCH + HOUR]


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
    with raises(dt.UserFunctionError, "returned 2 rows for 3 without a column that still has their event time"):
        collected(kept.union(c))


def test_a_map_that_drops_rows_does_not_take_what_another_map_made_of_the_column_for_event_time():
    """The times are 1, 2, 4 and 6, whatever the first function wrote over them."""

    def rounded(batch):
        made = pc.if_else(pc.equal(batch["t"], 4), 2, batch["t"])
        return batch.set_column(0, "t", made)

    stream = timed(data={"t": [1, 2, 4, 6], "x": [1, 2, 4, 6]}).map(rounded).map(without("x", 2))
    with raises(dt.UserFunctionError, "returned 3 rows for 4 without the time column 't', so that nothing tells which"):
        collected(stream)


def test_a_map_takes_its_schema_from_an_empty_batch_or_from_its_first_result():
    known = memory().map(lambda batch: batch.append_column("y", batch["x"]))
    assert known.schema.names == ["t", "x", "y"]
    assert known.filter(col("y") > 10).schema.names == ["t", "x", "y"]

    def first(batch):
        return pa.record_batch({"least": [min(batch["x"].to_pylist())]})

    assert collected(memory(batch_rows=2).map(first)).to_pydict() == {"least": [10, 30]}


def test_maps_may_give_dictionaries_with_small_indices():
    """Each of them fits its own index, and all of them together do not."""
    kind = pa.dictionary(pa.int8(), pa.string())
    flow = dt.Flow("f")

    def named(name):
        def fn(batch):
            return pa.record_batch({"s": pa.array([f"{name}{t}" for t in batch["t"].to_pylist()]).cast(kind)})

        return memory({"t": range(100)}, flow, name, "t").map(fn, pa.schema([("s", kind)]))

    a, b = named("a"), named("b")
    assert a.schema.field("s").type == pa.dictionary(pa.int32(), pa.string())
    out = collected(a.union(b))
    assert out["s"].to_pylist() == [f"{name}{t}" for t in range(100) for name in "ab"]


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
