"""`WindowJoin` as an operator: slices, memory, what it refuses, and that a failed step is not half applied."""

import dovetail as dt
import numpy as np
import pyarrow as pa
import pytest
from dovetail import left, right

SCHEMA = pa.schema([("t", pa.int64()), ("x", pa.float64()), ("k", pa.int64())])
PREDICATES = {
    "nested": left.x < right.x - 0.999,
    "carousel": (left.x - right.x).abs() <= 1e-4,
    "hash": left.k == right.k,
}


def rows(start, n, rng):
    return pa.record_batch([np.arange(start, start + n), rng.random(n), rng.integers(0, 1000, n)], schema=SCHEMA)


def join(on, window, **options):
    return dt.WindowJoin(SCHEMA, SCHEMA, on=on, window=window, left_time="t", right_time="t", **options)


@pytest.mark.parametrize("window", [dt.last(2000), dt.last(2000, slide=500), dt.last(time=2000)], ids=str)
@pytest.mark.parametrize("index", PREDICATES)
def test_memory_is_flat_while_a_window_moves_fifty_times(index, window):
    ours, rng, held = join(PREDICATES[index], window, index=index), np.random.default_rng(1), []
    for start in range(0, 50 * 2000, 400):
        ours.push(rows(start, 400, rng), rows(start, 400, rng))
        held.append(ours.nbytes)
        assert max(ours.held_rows().values()) <= 2000 + 2 * 400 + 500
    assert max(held[20:]) <= 1.7 * min(held[20:])
    ours.check()


@pytest.mark.parametrize("window", [dt.last(100), dt.last(time=100)], ids=str)
def test_a_silent_side_does_not_keep_the_other_ones_rows(window):
    ours, rng = join(left.x < right.x, window), np.random.default_rng(2)
    for start in range(0, 10_000, 100):
        ours.push(left=rows(start, 100, rng))
    assert ours.held_rows()["left"] <= 200


def test_slices_are_the_whole_in_pieces_also_for_one_row_with_more_than_a_slice():
    rng = np.random.default_rng(3)
    steps = [(rows(start, 300, rng), rows(start, 300, rng)) for start in range(0, 900, 300)]
    for on in (*PREDICATES.values(), left.x < right.x, (left.x < right.x - 0.5) | (left.x > right.x + 0.5)):
        whole = join(on, dt.last(500))
        for a, b in steps:
            expected = whole.push(a, b)
            for most in (7, 1000) if expected.num_rows > 1000 else (1, 50):
                sliced = join(on, dt.last(500))
                for before in steps[: steps.index((a, b))]:
                    list(sliced.push(*before, max_rows=most))
                pieces = list(sliced.push(a, b, max_rows=most))
                assert all(0 < piece.num_rows <= most for piece in pieces)
                together = pa.Table.from_batches(pieces, sliced.schema)
                assert together.equals(pa.Table.from_batches([expected], whole.schema))
            sliced.check()


def test_a_push_whose_slices_were_not_all_taken_ends_the_join():
    ours, rng = join(left.x < right.x, dt.last(50)), np.random.default_rng(4)
    next(ours.push(rows(0, 50, rng), rows(0, 50, rng), max_rows=3))
    with pytest.raises(dt.DovetailError, match="cannot go on: the results of a step were not all taken"):
        ours.push()


def test_an_error_before_anything_is_stored_changes_nothing():
    schema = pa.schema([("t", pa.int64()), ("x", pa.float64())])
    ours = dt.WindowJoin(schema, schema, on=left.x.cast("int64") == right.x.cast("int64"), window=dt.last(9),
                         left_time="t", right_time="t")  # fmt: skip
    good = pa.record_batch({"t": [1], "x": [2.0]}, schema=schema)
    with pytest.raises(dt.DataError, match=r"`left.x.cast\(\"int64\"\)`: .*2.5.* is not a whole number"):
        ours.push(left=pa.record_batch({"t": [1], "x": [2.5]}, schema=schema))
    with pytest.raises(dt.DataError, match="does not fit"):
        ours.push(left=pa.record_batch({"t": [1], "x": [1e300]}, schema=schema))
    assert ours.push(left=good).num_rows == 0
    with pytest.raises(dt.LateError, match=r"row 1 of the left batch has the time 0, which comes before a left row"):
        ours.push(left=pa.record_batch({"t": [5, 0], "x": [2.0, 2.0]}, schema=schema))
    assert ours.push(right=good).num_rows == 1


def test_an_error_in_the_middle_of_a_step_ends_the_join():
    def fails(a, b):
        raise RuntimeError("no")

    ours, rng = join(dt.udf(fails, ["x"], ["x"]), dt.last(9)), np.random.default_rng(5)
    with pytest.raises(dt.UserFunctionError, match="raised RuntimeError: no"):
        ours.push(rows(0, 3, rng), rows(0, 3, rng))
    with pytest.raises(dt.DovetailError, match="this join failed earlier and cannot go on: udf fails"):
        ours.push()


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ({"t": [1], "x": [1.0]}, "the left batch has no column 'k'; there are: t, x. It must have: t, x, k"),
        ({"t": [1], "x": [1], "k": [1]}, "the left batch: column 'x' is int64 where double was promised; cast it"),
        ({"t": [1], "x": [1.0], "k": [1], "z": [1]}, "has a column 'z' that its schema does not have; drop it"),
    ],
)
def test_batches_of_another_schema_are_refused(batch, text):
    with pytest.raises(dt.DataError, match=text):
        join(left.x < right.x, dt.last(9)).push(left=pa.record_batch(batch))


def test_what_push_refuses():
    ours = join(left.x < right.x, dt.last(9))
    with pytest.raises(dt.DataError, match="the left batch is a dict; give a pyarrow.RecordBatch"):
        ours.push(left={"t": [1]})
    with pytest.raises(dt.DataError, match="the left batch has two columns named 'x'; drop or rename one"):
        ours.push(left=pa.record_batch([[1], [1.0], [2.0], [1]], names=["t", "x", "x", "k"]))
    with pytest.raises(dt.TimeError, match="the left batch: the time of row 1 is null"):
        ours.push(left=pa.record_batch([[1, None], [1.0, 2.0], [1, 2]], schema=SCHEMA))
    with pytest.raises(dt.FlowError, match="max_rows=0; give at least 1"):
        ours.push(max_rows=0)
    big = pa.schema([("t", pa.uint64())])
    with pytest.raises(dt.TimeError, match=r"the time of row 0 is \d+; integer times end at 2\^63 - 1"):
        dt.WindowJoin(big, None, on=left.t < right.t, window=dt.last(3), left_time="t").push(
            left=pa.record_batch({"t": [2**64 - 1]}, schema=big))  # fmt: skip


def test_columns_may_come_in_another_order_and_tables_will_do():
    ours = join(left.x < right.x, dt.last(9))
    ours.push(left=pa.record_batch({"k": [1], "x": [1.0], "t": [1]}))
    assert ours.push(right=pa.table({"t": [1, 2], "x": [2.0, 0.0], "k": [5, 5]})).num_rows == 1


def test_a_time_that_the_finer_unit_cannot_say_is_an_error():
    seconds, nanos = pa.schema([("t", pa.timestamp("s"))]), pa.schema([("t", pa.timestamp("ns"))])
    ours = dt.WindowJoin(seconds, nanos, on=left.t <= right.t, window=dt.last(3), left_time="t", right_time="t")
    with pytest.raises(dt.TimeError, match=r"the time 9999-01-01T00:00:00 cannot be represented in timestamp\[ns\]"):
        ours.push(left=pa.record_batch({"t": pa.array([np.datetime64("9999-01-01", "s")])}, schema=seconds))


def test_only_columns_that_are_asked_for_are_kept_and_gathered():
    from dovetail.operators.join import JoinDriver

    spec = join((left.x - right.x).abs() < 1, dt.last(9)).spec
    driver = JoinDriver(spec, ["k_right"])
    assert driver.schema.names == ["k_right"]
    assert driver.cell.logs["left"].schema.names == ["x"]  # the predicate decides on pairs as written
    assert driver.cell.logs["right"].schema.names == ["x", "k"]


@pytest.mark.parametrize("index", ["nested", "carousel", "hash"])
def test_rows_with_a_null_or_nan_in_a_key_are_counted(index):
    schema = pa.schema([("x", pa.float64())])
    ours = dt.WindowJoin(schema, schema, on=left.x == right.x, window=dt.last(9), index=index)
    batch = pa.record_batch({"x": [1.0, None, float("nan"), 2.0]}, schema=schema)
    assert ours.push(left=batch, right=batch.slice(1, 1)).num_rows == 0
    assert ours.push(right=batch).num_rows == 2
    assert ours.null_keys() == {"left": 2, "right": 3}
    itself = dt.WindowJoin(schema, None, on=left.x == right.x, window=dt.last(9), index=index)
    itself.push(left=batch)
    assert itself.null_keys() == {"left": 2}
    flow = dt.Flow("nulls")
    a, b = (flow.read(dt.memory(pa.table([batch.column(0)], schema=schema))) for _ in range(2))
    a.join(b, on=left.x == right.x, window=dt.last(9), name="same").write(dt.null())
    assert "join same: 4 rows have a null or NaN in a key, which matches nothing" in str(flow.run())
