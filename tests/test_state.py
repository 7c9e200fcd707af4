"""The log of a window, and the native scan. Indexes are tested in test_stores.py."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from dovetail.batch import take_rows
from dovetail.state import WindowLog, _native
from dovetail.state.log import FAN_IN, SMALL


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_the_scan_is_the_same_with_and_without_vector_code(portable, columns):
    rng = np.random.default_rng(columns)
    values = rng.integers(0, 20, (columns, 500)).astype(np.uint64)
    keys = [_native.RowKeys() for _ in range(columns)]
    for key, column in zip(keys, values, strict=True):
        key.append(column)
    before = _native.force_portable(portable)
    try:
        if portable:
            assert _native.instructions() == "portable"
        q = 200
        row_lo, row_hi = rng.integers(0, 501, (2, q))
        lo, hi = rng.integers(0, 20, (2, columns, q)).astype(np.uint64)
        probe, row, upto = _native.scan_rows(keys, list(lo), list(hi), row_lo, row_hi, 0, q, 2**40)
    finally:
        _native.force_portable(before)
    inside = [
        (p, r)
        for p in range(q)
        for r in range(row_lo[p], row_hi[p])
        if all(lo[c][p] <= values[c][r] <= hi[c][p] for c in range(columns))
    ]
    assert upto == q
    assert list(zip(probe.tolist(), row.tolist(), strict=True)) == inside


@pytest.mark.parametrize(
    "sizes",
    [[1], [5000], [7] * 200, [7] * 200 + [1], [5000, *[1] * 300], [*[1] * 300, 5000], [1, 3000, 1, 1, 1, 3000, 2]],
    ids=["one row", "one", "even", "even but for the last", "a long one first", "a long one last", "both"],
)
def test_rows_are_found_in_batches_of_any_sizes(sizes):
    """Also where many batches begin in one stretch of the table of hints, and where none does."""
    values = np.arange(sum(sizes)) * 3 + 100
    ends = np.cumsum(sizes)
    chunks, batches = _native.Chunks([(0, 8)]), []
    for begin, end in zip(ends - sizes, ends, strict=True):
        batches.append(np.append(values[begin:end], np.zeros(max(sizes), np.int64)))  # behind a batch is something else
        chunks.add(10 + begin, end - begin, [(0, batches[-1].ctypes.data, 0, 0)])
    for dropped in (0, 1, len(sizes) // 2):
        if dropped:
            chunks.drop_front(dropped)
        first = int(ends[len(ends) - len(chunks) - 1]) if len(chunks) < len(sizes) else 0
        rows = np.random.default_rng(1).permutation(np.arange(first, len(values)))
        out = np.zeros(len(rows), np.int64)
        if len(rows):
            chunks.gather_fixed(0, chunks.locate(rows + 10), out.ctypes.data)
        assert np.array_equal(out, values[rows])
        for outside in (9 + first, 10 + len(values)):
            with pytest.raises(RuntimeError, match="the log does not hold|of an empty log"):
                chunks.locate(np.array([outside]))


# The log ----------------------------------------------------------------------------------------------------------

EVERY = {
    "i8": pa.array([1, None, 3, 4], pa.int8()),
    "u64": pa.array([1, 2**64 - 1, None, 0], pa.uint64()),
    "f32": pa.array([1.5, None, float("nan"), -0.0], pa.float32()),
    "bool": pa.array([True, None, False, True]),
    "text": pa.array(["a", None, "", "longer than twelve bytes"]),
    "large": pa.array(["a", None, "", "ü"], pa.large_string()),
    "bytes": pa.array([b"a", None, b"", b"\0"], pa.binary()),
    "fixed": pa.array([b"abc", None, b"def", b"xyz"], pa.binary(3)),
    "wide": pa.array([b"a" * 20, None, b"b" * 20, b"c" * 20], pa.binary(20)),
    "decimal": pa.array([1, None, 3, 4], pa.decimal128(30, 2)),
    "decimal256": pa.array([1, None, 3, 4], pa.decimal256(60, 2)),
    "ts": pa.array([1, None, 3, 4], pa.timestamp("us", "Europe/Berlin")),
    "date": pa.array([1, None, 3, 4], pa.date32()),
    "time": pa.array([1, None, 3, 4], pa.time64("us")),
    "span": pa.array([1, None, 3, 4], pa.duration("ms")),
    "list": pa.array([[1, 2], None, [], [None]], pa.list_(pa.int16())),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 4, "b": "y"}]),
    "map": pa.array([[("a", 1)], None, [], [("b", 2)]], pa.map_(pa.string(), pa.int8())),
    "dictionary": pa.array(["a", None, "b", "a"]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
    "null": pa.nulls(4),
    "view": pa.array(["a", None, "", "longer than twelve bytes"]).cast(pa.string_view()),
    "runs": pc.run_end_encode(pa.array([1, 1, None, 2])),
    "lists": pa.array([[1], None, [], [2, 3]], pa.list_view(pa.int8())),
    "union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1], pa.int8()), [pa.array([1, 2, 3, 4]), pa.array(list("abcd"))]
    ),
}


def test_a_log_hands_out_rows_of_every_type_from_whole_and_sliced_batches():
    whole = pa.record_batch(EVERY)
    log, rows = WindowLog(whole.schema), []
    for batch in (
        whole,
        whole.slice(1, 2),
        whole.slice(3),
        whole.slice(0, 0),
        whole.slice(1),
        take_rows(whole, np.array([2, 2])),
    ):
        log.append(batch)
        rows += batch.to_pylist()
        log.check()
    rng = np.random.default_rng(5)
    for wanted in (np.arange(len(rows)), rng.integers(0, len(rows), 100), np.array([3]), np.empty(0, np.int64)):
        out = log.gather(range(len(EVERY)), wanted)
        for name, column in zip(EVERY, out, strict=True):
            column.validate(full=True)
            assert repr(column.to_pylist()) == repr([rows[r][name] for r in wanted]), name
    assert log.gather([18], np.array([0]))[0].type == pa.dictionary(pa.int32(), pa.string())


def test_dictionaries_of_several_batches_are_unified_also_past_small_indices():
    kind = pa.dictionary(pa.int8(), pa.string())
    log, rows = WindowLog(pa.schema([("d", kind)])), []
    for start in range(0, 300, 100):
        names = [f"v{i}" for i in range(start, start + 100)]
        log.append(pa.record_batch({"d": pa.array(names).dictionary_encode().cast(kind)}))
        rows += names
    wanted = np.arange(299, -1, -1)
    assert log.gather([0], wanted)[0].to_pylist() == [rows[i] for i in wanted]


def test_small_batches_are_joined_and_rows_stay_where_they_are():
    schema = pa.schema([("x", pa.int64()), ("s", pa.string())])
    log, rng, most = WindowLog(schema), np.random.default_rng(6), 0
    for step in range(3000):
        n = int(rng.choice([1, 1, 1, 5, 40, 5000 if step % 500 == 7 else 2]))
        first = log.end_row
        log.append(
            pa.record_batch([np.arange(first, first + n), [str(i) for i in range(first, first + n)]], schema=schema)
        )
        log.expire(log.end_row - 6000)
        most = max(most, len(log._batches))
        if step % 7 == 0:
            rows = rng.integers(max(0, log.end_row - 6000), log.end_row, 20)
            x, s = log.gather([0, 1], rows)
            assert x.to_pylist() == rows.tolist()
            assert s.to_pylist() == [str(r) for r in rows]
            log.check()
    assert most < 200
    assert len(log) <= 6000 + 5000 + FAN_IN * SMALL


def test_a_log_without_columns_still_counts_rows():
    log = WindowLog(pa.schema([]))
    for _ in range(40):
        log.append(pa.record_batch({"x": [1]}).select([]))
    log.check()
    assert (len(log), log.gather([], np.array([1, 2]))) == (40, [])


def test_a_log_refuses_rows_that_it_does_not_hold():
    log = WindowLog(pa.schema([("x", pa.int64())]))
    with pytest.raises(RuntimeError, match="rows were asked for of an empty log"):
        log.gather([0], np.array([0]))
    log.append(pa.record_batch({"x": [1, 2]}))
    with pytest.raises(RuntimeError, match="a row was asked for that the log does not hold"):
        log.gather([0], np.array([2]))


def test_strings_past_two_gigabytes_are_refused_before_they_wrap():
    log = WindowLog(pa.schema([("s", pa.string())]))
    log.append(pa.record_batch({"s": ["x" * 1_000_000]}))
    with pytest.raises(OverflowError, match="column 's': strings of 3,000 rows exceed 2 GB"):
        log.gather([0], np.zeros(3000, np.int64))
