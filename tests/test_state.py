"""Windows and their indexes: one contract that every store keeps, against a list; the log; the native helpers.

Limits are made tiny, so that tables of four entries grow and shrink and buffers of two are merged.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from dovetail import state
from dovetail.batch import take_rows
from dovetail.state import WindowLog, _native
from dovetail.state.log import FAN_IN, SMALL

STORES = [(name, limit) for name in state.names() for limit in (0, 4)]
DTYPES = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "M8[us]",
    "M8[D]",
]


class Obvious:
    """The slow store: a list, and loops over it."""

    def __init__(self):
        self.entries = []

    def insert(self, keys, rows):
        self.entries += zip(keys, rows, strict=True)

    def expire(self, before):
        self.entries = [(key, row) for key, row in self.entries if row >= before]

    def probe(self, lo, hi, row_lo, row_hi):
        return [
            (p, row)
            for p, (a, b, c, d) in enumerate(zip(lo, hi, row_lo, row_hi, strict=True))
            for key, row in self.entries
            if a <= key <= b and c <= row < d
        ]


def some_keys(rng, dtype, n, spread):
    values = rng.integers(0, spread, n)
    if np.dtype(dtype).kind == "f":
        return np.array([-np.inf, -0.0, 0.0, np.inf, 1.5, *range(spread)])[values % (spread + 5)].astype(dtype)
    if np.dtype(dtype).kind == "M":
        return (values - spread // 2).astype("i8").view(dtype)
    info = np.iinfo(dtype)
    edges = np.array([info.min, info.min + 1, info.max - 1, info.max], dtype)
    return np.where(rng.random(n) < 0.1, edges[values % 4], values.astype(dtype))


@pytest.mark.parametrize(("name", "limit"), STORES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_store_answers_as_a_list_does(name, limit, dtype):
    rng = np.random.default_rng([len(name), limit, len(dtype)])
    store, obvious = state.make(name, dtype, **({"limit": limit} if limit else {})), Obvious()
    bound = newest = 0
    for step in range(60):
        spread = 6 if step % 3 else 60
        n = int(rng.choice([0, 1, 2, 7, 40, 300 if step == 30 else 3]))
        rows = newest + np.cumsum(rng.integers(1, 3, n))
        keys = some_keys(rng, dtype, n, spread)
        newest = int(rows[-1]) if n else newest
        store.insert(keys, rows)
        obvious.insert(keys, rows)
        store.check()
        q = 12
        lo = some_keys(rng, dtype, q, spread)
        hi = lo if name == "hash" else some_keys(rng, dtype, q, spread)
        row_lo, row_hi = rng.integers(bound, newest + 3, (2, q))
        probe, row = store.probe(lo, hi, row_lo, row_hi)
        assert list(zip(probe.tolist(), row.tolist(), strict=True)) == obvious.probe(lo, hi, row_lo, row_hi)
        if rng.random() < 0.5:
            bound = max(bound, newest - int(rng.choice([0, 5, 50])))
            store.expire(bound)
            obvious.expire(bound)
            store.check()
        assert len(store) == len(obvious.entries)


@pytest.mark.parametrize(("name", "limit"), STORES)
def test_memory_follows_the_window_down(name, limit):
    store = state.make(name, "int64", **({"limit": limit} if limit else {}))
    rng, row = np.random.default_rng(1), 0
    for width in (100_000, 100, 100_000, 100):
        for _ in range(12):
            store.insert(rng.integers(0, 10**9, width), row)
            row += width
            store.expire(row - width)
        assert len(store) == width
        assert store.nbytes < 150 * width + 64_000, (width, store.nbytes)
    store.check()


@pytest.mark.parametrize("name", state.names())
def test_a_probe_that_reaches_its_limit_says_where_to_go_on(name):
    index = _native.Index(name, 0)
    index.insert(_native.keys_of(np.zeros(10, np.int64)), np.arange(10))
    key = _native.keys_of(np.zeros(5, np.int64))
    lo, hi = np.zeros(5, np.int64), np.full(5, 10)
    at, found = 0, []
    while at < 5:
        probe, row, upto = index.probe(key, key, lo, hi, at, 5, 15)
        assert len(row) == 10 * (upto - at) <= 20
        found, at = found + probe.tolist(), upto
    assert found == [p for p in range(5) for _ in range(10)]


def test_dense_finds_of_a_sorted_store_come_in_the_order_of_rows():
    rng = np.random.default_rng(3)
    store = state.make("sorted", "int64", limit=16)
    keys = rng.integers(0, 1000, 5000)
    store.insert(keys, 0)
    for low, high in ((0, 999), (0, 500), (100, 130), (7, 7)):
        _, row = store.probe([low], [high], [0], [5000])
        assert row.tolist() == np.flatnonzero((keys >= low) & (keys <= high)).tolist()


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_the_scan_is_the_same_with_and_without_vector_code(portable, columns):
    rng = np.random.default_rng(columns)
    values = rng.integers(0, 20, (columns, 500)).astype(np.uint64)
    keys = [_native.RowKeys() for _ in range(columns)]
    for key, column in zip(keys, values, strict=True):
        key.append(column)
    before = _native.force_portable_scan(portable)
    try:
        if portable:
            assert _native.scan_instructions() == "portable"
        q = 200
        row_lo, row_hi = rng.integers(0, 501, (2, q))
        lo, hi = rng.integers(0, 20, (2, columns, q)).astype(np.uint64)
        probe, row, upto = _native.scan_rows(keys, list(lo), list(hi), row_lo, row_hi, 0, q, 2**40)
    finally:
        _native.force_portable_scan(before)
    inside = [
        (p, r)
        for p in range(q)
        for r in range(row_lo[p], row_hi[p])
        if all(lo[c][p] <= values[c][r] <= hi[c][p] for c in range(columns))
    ]
    assert upto == q
    assert list(zip(probe.tolist(), row.tolist(), strict=True)) == inside


def test_keys_keep_the_order_of_values():
    for values in (
        np.array([-(2**63), -1, 0, 1, 2**63 - 1]),
        np.array([0, 1, 2**63, 2**64 - 1], np.uint64),
        np.array([-np.inf, -1e308, -5e-324, 0.0, 5e-324, 1.0, np.inf]),
    ):
        keys = _native.keys_of(values)
        assert (keys[1:] > keys[:-1]).all()
    zeros = _native.keys_of(np.array([-0.0, 0.0]))
    assert zeros[0] == zeros[1]
    with pytest.raises(TypeError, match="keys are int64, uint64 or float64, not int32"):
        _native.keys_of(np.zeros(1, np.int32))


def test_what_a_store_refuses():
    with pytest.raises(ValueError, match="there is no store named 'tree'; there are: hash, nested, sorted"):
        state.make("tree", "int64")
    with pytest.raises(ValueError, match="store 'hash' has no parameter 'size'; it has: limit"):
        state.make("hash", "int64", size=3)
    with pytest.raises(ValueError, match="keys are integers, float32, float64 or datetime64, not <U3"):
        state.make("hash", "U3")
    with pytest.raises(ValueError, match="there is no index named 'tree'"):
        _native.Index("tree")
    store = state.make("nested", "float64")
    with pytest.raises(ValueError, match="NaN and NaT cannot be stored"):
        store.insert([1.0, np.nan], 0)
    with pytest.raises(ValueError, match="1 keys for 2 rows"):
        store.insert([1.0], [1, 2])
    with pytest.raises(ValueError, match="rows must ascend"):
        store.insert([1.0, 2.0], [2, 1])
    store.insert([1.0, 2.0], 5)
    with pytest.raises(ValueError, match="row 6 is not above row 6, which was inserted before"):
        store.insert([3.0], 6)
    assert store.probe([np.nan, 2.0, 0.0], [9.0, 1.0, 9.0], [0] * 3, [9] * 3)[1].tolist() == [5, 6]
    store.expire(6)
    assert store.probe([0.0], [9.0], [0], [9])[1].tolist() == [6]
    with pytest.raises(ValueError, match="the bound cannot fall from 6 to 5"):
        store.expire(5)
    assert store.statistics() == {"name": "nested", "rows": 1, "bytes": store.nbytes}
    with pytest.raises(ValueError, match="NaN and NaT cannot be stored"):
        state.make("nested", "M8[us]").insert(np.array(["NaT"], "M8[us]"), 0)
    index = _native.Index("hash", 0)
    index.insert(np.zeros(1, np.uint64), np.zeros(1, np.int64))
    with pytest.raises(RuntimeError, match="hash: a probe is one key, not a range"):
        index.probe(np.zeros(1, np.uint64), np.ones(1, np.uint64), np.zeros(1, np.int64), np.ones(1, np.int64), 0, 1, 9)
    with pytest.raises(ValueError, match="insert: lengths 1 and 2 differ"):
        index.insert(np.zeros(1, np.uint64), np.zeros(2, np.int64))


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
