"""Window indexes: one contract that every store keeps, compared with a list, with limits made tiny.

What a store does depends on keys and on how its rows come and go, so each is run on streams of several kinds; each
step ends with its own check of its invariants.
"""

import os

import numpy as np
import pytest
from dovetail import state
from dovetail.state import _native
from dovetail.state.stores import keys_of

TINY = {
    "carousel": [{}, {"segment": 24, "run": 12}, {"segment": 200, "run": 100}],
    "nested": [{}],
    "hash": [{}, {"smallest": 4}],
    "bi_sort": [
        {},
        {"buffer": 4, "fan": 2, "partition": 2, "presort": 4},
        {"buffer": 8, "fan": 2**30, "partition": 3, "subwindows": 3, "waste": 0.1},
    ],
    "llat": [{}, {"least": 12, "partitions": 3, "sigma": 1}, {"least": 40, "parts": 4}],
    "wib_tree": [{}, {"least": 60, "leaf": 2}, {"least": 40, "leaf": 3, "parts": 4}],
    "rap_table": [{}, {"least": 12, "partitions": 5, "sigma": 1}, {"least": 40, "parts": 4}],
    "bplus": [{}, {"fanout": 4}, {"fanout": 7}],
    "chained": [{}, {"length": 2, "fanout": 4, "least": 1}, {"length": 5, "fanout": 5, "least": 16}],
    "ib_chained": [{}, {"length": 2, "fanout": 4, "least": 1}, {"length": 5, "fanout": 5, "least": 16}],
    "im_tree": [{}, {"fanout": 4, "least": 16, "merge_ratio": 1}, {"fanout": 8, "least": 1, "merge_ratio": 2**-10}],
    "pim_tree": [
        {},
        {"fanout": 4, "least": 40, "merge_ratio": 1, "insertion_depth": 1},
        {"fanout": 7, "least": 12, "merge_ratio": 0.25, "insertion_depth": 0},
    ],
    "zone_map": [
        {},
        {"seal": 4, "run": 3, "fan": 2},
        {"seal": 1, "run": 1, "fan": 3},
        {"seal": 50, "run": 8, "fan": 2},
    ],
    "po_join": [
        {},
        {"slides": 3, "least": 4, "fanout": 4},
        {"slides": 7, "least": 1, "fanout": 5, "threads": 3},
        {"slides": 1, "least": 10_000, "hash": 1},
        {"slides": 4, "least": 20, "hash": 1, "threads": 2},
    ],
}
"""The settings with which each store is tested: the standard ones, and some that make everything happen often."""

STORES = [(name, settings) for name in state.names() for settings in TINY[name]]
IDS = [f"{name}-{'-'.join(f'{k}{v}' for k, v in settings.items()) or 'standard'}" for name, settings in STORES]
POINTS = {name for name, _, ranges, _ in _native.kinds() if not ranges}
DTYPES = [
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "M8[us]", "M8[D]",
]  # fmt: skip
STEPS = int(os.environ.get("DOVETAIL_STEPS", "120"))

every_store = pytest.mark.parametrize(("name", "settings"), STORES, ids=IDS)


class Obvious:
    """The slow store: a list, and loops over it."""

    def __init__(self):
        self.entries = []

    def insert(self, keys, rows):
        self.entries += zip(keys.tolist(), rows.tolist(), strict=True)

    def expire(self, before):
        self.entries = [(key, row) for key, row in self.entries if row >= before]

    def probe(self, lo, hi, row_lo, row_hi):
        """Pairs in order."""
        ranges = zip(lo.tolist(), hi.tolist(), row_lo.tolist(), row_hi.tolist(), strict=True)
        return [
            (p, row)
            for p, (a, b, c, d) in enumerate(ranges)
            for key, row in self.entries
            if a <= key <= b and c <= row < d
        ]  # fmt: skip


def keys_of_type(rng, dtype, n, spread):
    values = rng.integers(0, spread, n)
    if np.dtype(dtype).kind == "f":
        return np.array([-np.inf, -0.0, 0.0, np.inf, 1.5, *range(spread)])[values % (spread + 5)].astype(dtype)
    if np.dtype(dtype).kind == "M":
        return (values - spread // 2).astype("i8").view(dtype)
    info = np.iinfo(dtype)
    edges = np.array([info.min, info.min + 1, info.max - 1, info.max], dtype)
    return np.where(rng.random(n) < 0.1, edges[values % 4], values.astype(dtype))


class Stream:
    """Keys of one kind, as they come: uniform, tied, drifting, sorted, clustered, and what is meant to hurt."""

    KINDS = (
        "uniform", "wide", "ties", "one key", "sorted", "nearly sorted", "descending", "drift", "zipf", "spikes",
        "exponents", "steps", "mixed",
    )  # fmt: skip

    def __init__(self, kind, rng):
        self.kind, self.rng, self.seen = kind, rng, 0

    def take(self, n):
        rng, at = self.rng, self.seen + np.arange(n)
        self.seen += n
        kind = self.kind
        if kind == "mixed":
            kind = rng.choice([k for k in self.KINDS if k != "mixed"])
        keys = {
            "uniform": lambda: rng.integers(-500, 500, n),
            "wide": lambda: rng.integers(-(2**63), 2**63 - 1, n, endpoint=True),
            "ties": lambda: rng.integers(0, 4, n) * 1000,
            "one key": lambda: np.full(n, 7),
            "sorted": lambda: at * 3,
            "nearly sorted": lambda: at * 3 + rng.integers(-20, 20, n),
            "descending": lambda: -at * 3,
            "drift": lambda: (rng.normal(0, 30, n) + at * 0.5).astype(np.int64),
            "zipf": lambda: np.minimum(rng.zipf(1.2, n), 2**40),
            "spikes": lambda: rng.integers(0, 5, n) * 10**15 + rng.integers(0, 12, n),
            "exponents": lambda: np.int64(1) << rng.integers(0, 62, n),
            "steps": lambda: at // 40 * 10**12 + rng.integers(0, 9, n),
        }[kind]()
        return keys.astype(np.int64)


def same(store, asked, expected):
    """Compare what a store finds, in order and without."""
    probe, row = store.probe(*asked)
    assert list(zip(probe.tolist(), row.tolist(), strict=True)) == expected
    probe, row = store.probe(*asked, ordered=False)
    assert (np.diff(probe) >= 0).all()
    assert sorted(zip(probe.tolist(), row.tolist(), strict=True)) == expected


def run(store, obvious, stream, rng, steps, sizes, windows, *, consecutive, points):
    """Insert, probe, expire and check, as a window does."""
    bound = newest = 0
    recent = np.zeros(1, np.int64)
    window = int(rng.choice(windows))
    for _step in range(steps):
        n = int(rng.choice(sizes))
        rows = newest + np.cumsum(np.ones(n, np.int64) if consecutive else rng.integers(1, 4, n))
        keys = stream.take(n)
        newest = int(rows[-1]) if n else newest
        store.insert(keys, rows)
        obvious.insert(keys, rows)
        store.check()
        recent = np.concatenate([recent, keys])[-200:]
        q = 10
        lo = rng.choice(recent, q) + rng.integers(-2, 3, q)
        width = rng.choice([0, 1, 5, 100, 10**6, 2**62], q).astype(np.int64)
        hi = lo if points else np.where(lo > 2**63 - 1 - width, 2**63 - 1, lo + width) - rng.choice([0, 0, 1], q)
        row_lo, row_hi = rng.integers(bound, newest + 3, (2, q))
        everything = rng.random(q) < 0.3
        row_lo[everything], row_hi[everything] = bound, newest + 1
        same(store, (lo, hi, row_lo, row_hi), obvious.probe(lo, hi, row_lo, row_hi))
        if rng.random() < 0.1:
            window = int(rng.choice(windows))
        if rng.random() < 0.6:
            bound = max(bound, newest + 1 - window)
            store.expire(bound)
            obvious.expire(bound)
            store.check()
        assert len(store) == len(obvious.entries)


@every_store
@pytest.mark.parametrize("kind", Stream.KINDS)
def test_every_store_answers_as_a_list_does(name, settings, kind):
    for consecutive in (True, False):
        rng = np.random.default_rng([len(name), len(kind), ord(kind[0]), consecutive])
        store = state.make(name, "int64", **settings)
        run(store, Obvious(), Stream(kind, rng), rng, STEPS, [0, 1, 2, 7, 40, 41, 300], [0, 10, 100, 600],
            consecutive=consecutive, points=name in POINTS)  # fmt: skip


@every_store
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_store_takes_every_type_of_key(name, settings, dtype):
    rng = np.random.default_rng([len(name), len(dtype)])
    store, obvious = state.make(name, dtype, **settings), Obvious()
    bound = newest = 0
    for step in range(40):
        spread = 6 if step % 3 else 60
        n = int(rng.choice([0, 1, 2, 7, 40]))
        rows = newest + np.cumsum(rng.integers(1, 3, n))
        keys = keys_of_type(rng, dtype, n, spread)
        newest = int(rows[-1]) if n else newest
        store.insert(keys, rows)
        obvious.insert(keys, rows)
        q = 12
        lo = keys_of_type(rng, dtype, q, spread)
        hi = lo if name in POINTS else keys_of_type(rng, dtype, q, spread)
        row_lo, row_hi = rng.integers(bound, newest + 3, (2, q))
        probe, row = store.probe(lo, hi, row_lo, row_hi)
        assert list(zip(probe.tolist(), row.tolist(), strict=True)) == obvious.probe(lo, hi, row_lo, row_hi)
        if step % 2:
            bound = max(bound, newest - 50)
            store.expire(bound)
            obvious.expire(bound)
        store.check()


@every_store
@pytest.mark.parametrize("kind", Stream.KINDS)
def test_a_store_built_at_once_is_the_same(name, settings, kind):
    rng = np.random.default_rng(len(name))
    keys, rows = Stream(kind, rng).take(700), 5 + np.cumsum(rng.integers(1, 3, 700))
    built, filled = state.make(name, "int64", **settings), state.make(name, "int64", **settings)
    back = state.make(name, "int64", **settings)
    built.build(keys, rows)
    built.check()
    for at in range(0, 700, 100):
        filled.insert(keys[at : at + 100], rows[at : at + 100])
        back._index.restore(back._given([keys_of(keys[at : at + 100])]), rows[at : at + 100])
    back._index.restored()
    more = Stream(kind, rng).take(300)
    for store in (built, filled, back):
        store.expire(int(rows[50]))
        store.insert(more, int(rows[-1]) + 1)
        store.check()
    lo = rng.choice(keys, 60)
    hi = lo if name in POINTS else np.where(lo < 2**62, lo + 100, lo)
    asked = lo, hi, rng.integers(int(rows[50]), 2000, 60), rng.integers(0, 2000, 60)
    for store in (built, back):
        assert np.array_equal(np.array(store.probe(*asked)), np.array(filled.probe(*asked)))
    assert len(built) == len(filled) == len(back) == 950


@pytest.mark.parametrize("kind", Stream.KINDS)
def test_a_carousel_that_is_built_part_by_part_has_every_row(kind):
    rng = np.random.default_rng(3)
    keys, store = Stream(kind, rng).take(150_000), state.make("carousel", "int64")
    for at in range(0, len(keys), 40_000):
        store._index.restore(keys_of(keys[at : at + 40_000]), np.arange(at, min(at + 40_000, len(keys))))
    failures = 0
    for after in [*range(30), *range(30, 100_000, 397)]:
        _native.fail_allocation(after)
        try:
            store._index.restored()
            break
        except MemoryError:
            failures += 1
        finally:
            _native.fail_allocation(-1)
    store.check()
    lo = rng.choice(keys, 100)
    hi = np.where(lo < 2**62, lo + 3, lo)
    probe, row = store.probe(lo, hi, np.zeros(100, np.int64), np.full(100, len(keys)))
    for i in range(100):
        assert np.array_equal(row[probe == i], np.flatnonzero((keys >= lo[i]) & (keys <= hi[i])))
    assert failures


def test_a_carousel_answers_nothing_in_the_midst_of_a_restore():
    index, one = _native.Index("carousel"), np.zeros(1, np.uint64)
    index.restore(one, np.zeros(1, np.int64))
    for question in (
        lambda: index.probe(one, one, np.zeros(1, np.int64), np.ones(1, np.int64), 0, 1, 10),
        lambda: index.insert(one, np.ones(1, np.int64)),
    ):
        with pytest.raises(RuntimeError, match="in the midst of a restore"):
            question()


@every_store
@pytest.mark.parametrize("kind", ["uniform", "sorted", "drift", "zipf"])
def test_memory_follows_the_window_down(name, settings, kind):
    rng = np.random.default_rng(1)
    store, stream, row = state.make(name, "int64", **settings), Stream(kind, rng), 0
    for width in (30_000, 100, 30_000, 100):
        for _ in range(12):
            store.insert(stream.take(width), row)
            row += width
            store.expire(row - width)
        assert len(store) == width
        assert store.nbytes < 200 * width + 100_000, (width, store.nbytes)
    store.check()


def test_a_carousel_is_not_built_anew_for_each_batch_that_is_longer_than_the_window():
    rng, store, row = np.random.default_rng(1), state.make("carousel", "int64"), 0
    renewals = []
    for _ in range(12):
        store.insert(rng.integers(0, 10**9, 8192), row)
        row += 8192
        store.expire(row - 1024)
        store.check()
        renewals.append(store.statistics()["renewals"])
    assert renewals[-1] == renewals[2], renewals
    full = store.nbytes
    for left in (512, 256, 128):  # when no more come, it gives back what they needed
        store.expire(row - left)
    assert store.nbytes < full / 2


@pytest.mark.parametrize("name", state.names())
@pytest.mark.parametrize("rows", [100, 5000])
def test_rows_that_come_below_the_bound_are_not_held(name, rows):
    for settings in TINY[name]:
        for fill in ("insert", "build"):
            store = state.make(name, "int64", **settings)
            store.expire(4 * rows // 3)
            getattr(store, fill)(np.arange(rows) % 97, 0)
            store.check()
            assert len(store) == 0
            store.insert(np.arange(rows) % 97, rows)
            store.check()
            assert len(store) == 2 * rows - 4 * rows // 3
            lo, hi = (np.arange(97), np.arange(97)) if name == "hash" else (np.array([0]), np.array([96]))
            _, row = store.probe(lo, hi, np.zeros_like(lo), np.full_like(lo, 2 * rows))
            assert sorted(row.tolist()) == list(range(4 * rows // 3, 2 * rows))


@every_store
def test_bytes_are_what_the_allocator_gave(name, settings):
    before = _native.allocated_bytes()
    store = state.make(name, "int64", **settings)
    rng, row = np.random.default_rng(2), 0
    for n in (1, 100, 5_000, 20_000, 20_000, 300_000, 5_000, 30_000, 100):
        store.insert(rng.integers(0, 10**9, n), row)
        row += n
        store.probe([0], [0], [0], [row])
        given = _native.allocated_bytes() - before
        assert 0.9 * given - 2048 <= store.nbytes <= 1.1 * given + 2048, (n, given, store.nbytes)
        store.expire(row - 30_000)
    del store
    assert _native.allocated_bytes() == before


@every_store
@pytest.mark.parametrize("kind", ["uniform", "one key", "drift", "sorted"])
def test_without_memory_an_insertion_changes_nothing(name, settings, kind):
    rng = np.random.default_rng(3)
    store, obvious, stream = state.make(name, "int64", **settings), Obvious(), Stream(kind, rng)
    row, failures = 0, 0
    for step in range(60):
        n = int(rng.choice([1, 20, 200]))
        keys, rows = stream.take(n), np.arange(row, row + n)
        for after in [*range(40), *range(40, 20_000, 97)]:
            _native.fail_allocation(after)
            try:
                store.insert(keys, rows)
                break
            except MemoryError:
                failures += 1
                _native.fail_allocation(-1)
                store.check()
                assert len(store) == len(obvious.entries)
            finally:
                _native.fail_allocation(-1)
        else:
            raise AssertionError("an insertion needs fewer than 20,000 allocations")
        obvious.insert(keys, rows)
        row += n
        lo = stream.take(5)
        ranges = lo, lo if name in POINTS else lo + 50, np.full(5, max(0, row - 300)), np.full(5, row)
        _native.fail_allocation(step % 3)
        try:
            found = store.probe(*ranges)
        except MemoryError:
            failures += 1
            _native.fail_allocation(-1)
            found = store.probe(*ranges)
        _native.fail_allocation(-1)
        assert list(zip(found[0].tolist(), found[1].tolist(), strict=True)) == obvious.probe(*map(np.asarray, ranges))
        _native.fail_allocation(0)
        store.expire(max(0, row - 300))
        _native.fail_allocation(-1)
        obvious.expire(max(0, row - 300))
        store.check()
    assert failures


def test_positions_of_a_carousel_come_round():
    for kind in ("uniform", "drift", "sorted"):
        rng = np.random.default_rng(4)
        store, obvious, stream = (
            state.make("carousel", "int64", renewal=65536, segment=64),
            Obvious(),
            Stream(kind, rng),
        )
        for at in range(0, 400_000, 1000):
            keys = stream.take(1000)
            store.insert(keys, at)
            store.expire(at + 200)
            if at % 20_000 == 0:
                store.check()
        obvious.insert(keys[200:], np.arange(at + 200, at + 1000))
        lo = rng.choice(keys, 50)
        ranges = lo, lo + 20, np.full(50, at + 200), np.full(50, at + 900)
        probe, row = store.probe(*ranges)
        assert list(zip(probe.tolist(), row.tolist(), strict=True)) == obvious.probe(*ranges)
        assert store.statistics()["renewals"] > 6


@every_store
def test_a_probe_that_reaches_its_limit_says_where_to_go_on(name, settings):
    store = state.make(name, "int64", **settings)
    store.insert(np.zeros(10, np.int64), 0)
    index, key = store._index, store._given([_native.keys_of(np.zeros(5, np.int64))])
    lo, hi = np.zeros(5, np.int64), np.full(5, 10)
    at, found = 0, []
    while at < 5:
        probe, row, upto = index.probe(key, key, lo, hi, at, 5, 15)
        assert len(row) == 10 * (upto - at) <= 20
        found, at = found + probe.tolist(), upto
    assert found == [p for p in range(5) for _ in range(10)]


@pytest.mark.parametrize(("name", "settings"), [s for s in STORES if s[0] not in POINTS], ids=[
    i for i, s in zip(IDS, STORES, strict=True) if s[0] not in POINTS])  # fmt: skip
def test_many_finds_come_in_the_order_of_rows(name, settings):
    rng = np.random.default_rng(3)
    store = state.make(name, "int64", **settings)
    keys = rng.integers(0, 1000, 5000)
    for at in range(0, 5000, 500):
        store.insert(keys[at : at + 500], at)
    for low, high in ((0, 999), (0, 500), (100, 130), (7, 7), (5, 6)):
        for first, last in ((0, 5000), (700, 701), (1234, 4321)):
            _, row = store.probe([low], [high], [first], [last])
            expected = np.flatnonzero((keys >= low) & (keys <= high))
            assert row.tolist() == expected[(expected >= first) & (expected < last)].tolist()


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
    with pytest.raises(ValueError, match="there is no store named 'tree'; there are: .*hash, .*nested"):
        state.make("tree", "int64")
    with pytest.raises(ValueError, match="store 'hash' has no parameter 'size'; it has: smallest"):
        state.make("hash", "int64", size=3)
    with pytest.raises(ValueError, match=r"store 'hash': smallest=0 \(entries of the smallest table\) must be from 1"):
        state.make("hash", "int64", smallest=0)
    with pytest.raises(ValueError, match="smallest=True"):
        state.make("hash", "int64", smallest=True)
    with pytest.raises(ValueError, match=r"buffer=2.5 \(rows that wait unsorted, .*\) must be a whole number"):
        state.make("bi_sort", "int64", buffer=2.5)
    assert state.make("bi_sort", "int64", buffer=np.int64(4), waste=0.5).name == "bi_sort"
    small = state.make("nested", "int8")
    with pytest.raises(ValueError, match="1000 is not a value of int8; make a store of a type that has it"):
        small.insert([1000], 0)
    small.insert([-128, 127], 0)
    assert small.probe([-1000, 128], [1000, 1000], [0, 0], [9, 9])[1].tolist() == [0, 1]
    with pytest.raises(ValueError, match="-1 is not a value of uint64"):
        state.make("nested", "uint8").probe([-1], [1], [0], [1])
    narrow = state.make("nested", "float32")
    narrow.insert([0.1], 0)  # 0.1 as float32 is a little more than 0.1
    assert narrow.probe([0.1, 0.0], [0.2, 0.1], [0, 0], [9, 9])[0].tolist() == [0]
    with pytest.raises(ValueError, match="2.5 is not a value of int64"):
        state.make("nested", "int64").insert([1.0, 2.5], 0)
    with pytest.raises(ValueError, match="0.5 is not a value of int64"):
        state.make("nested", "int64").insert([1], [0.5])
    with pytest.raises(ValueError, match="<U1 values are not int64: invalid literal"):
        state.make("nested", "int64").insert(["x"], 0)
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
    with pytest.raises(ValueError, match="build needs an empty store; insert adds to one"):
        store.build([3.0], 7)
    assert store.probe([np.nan, 2.0, 0.0], [9.0, 1.0, 9.0], [0] * 3, [9] * 3)[1].tolist() == [5, 6]
    store.expire(6)
    assert store.probe([0.0], [9.0], [0], [9])[1].tolist() == [6]
    with pytest.raises(ValueError, match="the bound cannot fall from 6 to 5"):
        store.expire(5)
    assert store.statistics() == {"name": "nested", "rows": 1, "bytes": store.nbytes}
    with pytest.raises(ValueError, match="NaN and NaT cannot be stored"):
        state.make("nested", "M8[us]").insert(np.array(["NaT"], "M8[us]"), 0)
    index = _native.Index("hash")
    index.insert(np.zeros(1, np.uint64), np.zeros(1, np.int64))
    with pytest.raises(RuntimeError, match="hash: a probe is one key, not a range"):
        index.probe(np.zeros(1, np.uint64), np.ones(1, np.uint64), np.zeros(1, np.int64), np.ones(1, np.int64), 0, 1, 9)
    with pytest.raises(ValueError, match="insert: lengths 1 and 2 differ"):
        index.insert(np.zeros(1, np.uint64), np.zeros(2, np.int64))


def test_every_store_is_described():
    assert set(state.names()) == set(TINY)
    for name, summary in state.names().items():
        assert summary
        for text in state.parameters(name).values():
            assert "; from " in text
