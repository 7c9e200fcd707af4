"""Window indexes of several keys: one contract, compared with a loop over a list, with limits made tiny.

With one key they are held to what every store must do by test_stores.py; here are two and more, in all the ways in
which keys of a row can have to do with each other.
"""

import itertools

import numpy as np
import pytest
from dovetail import state
from dovetail.state import _native
from test_stores import TINY, same

STORES = [(name, settings) for name, _, _ in _native.box_kinds() for settings in TINY[name]]
IDS = [f"{name}-{'-'.join(f'{k}{v}' for k, v in settings.items()) or 'standard'}" for name, settings in STORES]

every_store = pytest.mark.parametrize(("name", "settings"), STORES, ids=IDS)


def independent(rng, at, keys):
    return rng.integers(-500, 500, (keys, len(at)))


def alike(rng, at, keys):
    return rng.integers(-500, 500, len(at)) + rng.integers(-5, 6, (keys, len(at)))


def opposed(rng, at, keys):
    sign = np.where(np.arange(keys) % 2, -1, 1)[:, None]
    return rng.integers(-500, 500, len(at)) * sign + rng.integers(-5, 6, (keys, len(at)))


def tied(rng, at, keys):
    return rng.integers(0, 3, (keys, len(at)))


def one_is_constant(rng, at, keys):
    return np.where(np.arange(keys)[:, None] == rng.integers(keys), 7, rng.integers(-99, 99, (keys, len(at))))


def rising(rng, at, keys):
    return at + rng.integers(-20, 20, (keys, len(at))) * np.arange(keys)[:, None]


def clusters(rng, at, keys):
    return rng.integers(0, 4, len(at)) * 10**12 + rng.integers(0, 30, (keys, len(at)))


def extremes(rng, at, keys):
    ends = np.array([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1])
    return rng.choice(ends, (keys, len(at)))


SHAPES = [independent, alike, opposed, tied, one_is_constant, rising, clusters, extremes]


class Obvious:
    """The slow store: all rows, and a comparison of each."""

    def __init__(self, keys):
        self.columns, self.rows = np.empty((keys, 0), np.int64), np.empty(0, np.int64)

    def insert(self, columns, rows):
        self.columns, self.rows = np.concatenate([self.columns, columns], 1), np.concatenate([self.rows, rows])

    def expire(self, before):
        kept = self.rows >= before
        self.columns, self.rows = self.columns[:, kept], self.rows[kept]

    def probe(self, lo, hi, row_lo, row_hi):
        found = []
        for p in range(len(row_lo)):
            inside = (self.rows >= row_lo[p]) & (self.rows < row_hi[p])
            for column, low, high in zip(self.columns, lo, hi, strict=True):
                inside &= (column >= low[p]) & (column <= high[p])
            found += [(p, row) for row in self.rows[inside].tolist()]
        return found


def asked(rng, recent, count):
    """Ranges as joins ask for them: bands, inequalities, points, everything, nothing."""
    lo = rng.choice(recent, count)
    width = rng.choice([0, 1, 40, 10**6, 2**62], count).astype(np.int64)
    hi = np.where(lo > 2**63 - 1 - width, 2**63 - 1, lo + width)
    kind = rng.integers(0, 6, count)
    lo, hi = np.where(kind == 0, -(2**63), lo), np.where(kind == 1, 2**63 - 1, hi)
    none = rng.random(count) < 0.03
    return np.where(none & (hi < 2**63 - 1), hi + 1, lo), hi


@every_store
@pytest.mark.parametrize("keys", [2, 3, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_every_store_answers_as_a_list_does(name, settings, keys, shape):
    for consecutive, portable in itertools.product((True, False), (True, False)):
        before = _native.force_portable(portable)
        try:
            rng = np.random.default_rng([keys, len(shape.__name__), consecutive, portable])
            store, obvious = state.make(name, ["int64"] * keys, **settings), Obvious(keys)
            bound = newest = 0
            window = 300
            for _ in range(50):
                n = int(rng.choice([0, 1, 2, 7, 40, 41, 300]))
                rows = newest + np.cumsum(np.ones(n, np.int64) if consecutive else rng.integers(1, 4, n))
                columns = shape(rng, rows, keys).astype(np.int64)
                store.insert(list(columns), rows)
                obvious.insert(columns, rows)
                newest = int(rows[-1]) if n else newest
                store.check()
                recent = obvious.columns if len(obvious.rows) else np.zeros((keys, 1), np.int64)
                lo, hi = zip(*[asked(rng, column, 10) for column in recent], strict=True)
                row_lo, row_hi = rng.integers(bound, newest + 3, (2, 10))
                everything = rng.random(10) < 0.4
                row_lo[everything], row_hi[everything] = bound, newest + 1
                same(store, (lo, hi, row_lo, row_hi), obvious.probe(lo, hi, row_lo, row_hi))
                if rng.random() < 0.1:
                    window = int(rng.choice([0, 10, 100, 600]))
                if rng.random() < 0.6:
                    bound = max(bound, newest + 1 - window)
                    store.expire(bound)
                    obvious.expire(bound)
                    store.check()
                assert len(store) == len(obvious.rows)
        finally:
            _native.force_portable(before)


@every_store
def test_keys_may_be_of_different_types(name, settings):
    rng = np.random.default_rng(5)
    store, n = state.make(name, ["float64", "uint8", "M8[us]"], **settings), 500
    x, y, t = rng.normal(size=n), rng.integers(0, 256, n).astype("u1"), np.arange(n).astype("M8[us]")
    x[::7] = np.inf
    store.insert([x, y, t], 0)
    lo = [0.0, np.nan], [0, 0], np.array([100, 100], "M8[us]")
    hi = [np.inf, 1.0], [200, 200], np.array([400, 400], "M8[us]")
    inside = (x >= 0) & (y <= 200) & (np.arange(n) >= 100) & (np.arange(n) <= 400)
    same(store, (lo, hi, [0, 0], [n, n]), [(0, row) for row in np.flatnonzero(inside).tolist()])


@every_store
def test_without_memory_an_insertion_changes_nothing(name, settings):
    rng = np.random.default_rng(3)
    store, obvious, row, failures = state.make(name, ["int64"] * 3, **settings), Obvious(3), 0, 0
    for step in range(40):
        n = int(rng.choice([1, 20, 200]))
        columns, rows = independent(rng, np.arange(n), 3), np.arange(row, row + n)
        for after in itertools.count():
            _native.fail_allocation(after)
            try:
                store.insert(list(columns), rows)
                break
            except MemoryError:
                failures += 1
                _native.fail_allocation(-1)
                store.check()
                assert len(store) == len(obvious.rows)
            finally:
                _native.fail_allocation(-1)
        obvious.insert(columns, rows)
        row += n
        lo = list(rng.integers(-500, 0, (3, 5)))
        ranges = lo, [low + 400 for low in lo], np.full(5, max(0, row - 300)), np.full(5, row)
        _native.fail_allocation(step % 3)
        try:
            found = store.probe(*ranges)
        except MemoryError:
            failures += 1
            _native.fail_allocation(-1)
            found = store.probe(*ranges)
        _native.fail_allocation(-1)
        assert list(zip(*(each.tolist() for each in found), strict=True)) == obvious.probe(*ranges)
        _native.fail_allocation(0)
        store.expire(max(0, row - 300))
        _native.fail_allocation(-1)
        obvious.expire(max(0, row - 300))
        store.check()
    assert failures


@every_store
def test_bytes_are_what_the_allocator_gave(name, settings):
    before = _native.allocated_bytes()
    store = state.make(name, ["int64", "int64"], **settings)
    rng, row = np.random.default_rng(2), 0
    for n in (1, 100, 5_000, 20_000, 20_000, 200_000, 5_000, 30_000, 100):
        store.insert(list(rng.integers(0, 10**9, (2, n))), row)
        row += n
        store.probe([[0], [0]], [[10**7], [10**9]], [0], [row])
        given = _native.allocated_bytes() - before
        assert 0.9 * given - 2048 <= store.nbytes <= 1.1 * given + 2048, (n, given, store.nbytes)
        store.expire(row - 30_000)
    del store
    assert _native.allocated_bytes() == before


def test_what_a_store_of_several_keys_refuses():
    store = state.make("zone_map", ["int64", "float64"])
    with pytest.raises(ValueError, match="store 'zone_map' goes by 2 keys; give a list with an array for each"):
        store.insert(np.zeros(3, np.int64), 0)
    with pytest.raises(ValueError, match="2 keys for 3 rows"):
        store.insert([np.zeros(3, np.int64), np.zeros(2)], 0)
    with pytest.raises(ValueError, match="NaN and NaT cannot be stored"):
        store.insert([np.zeros(2, np.int64), np.array([1.0, np.nan])], 0)
    with pytest.raises(ValueError, match="store 'carousel' goes by one key; of several: .*zone_map"):
        state.make("carousel", ["int64", "int64"])
    with pytest.raises(ValueError, match="zone_map: 17 keys; from 1 to 16 can be searched for at once"):
        state.make("zone_map", ["int64"] * 17)
    with pytest.raises(ValueError, match=r"store 'zone_map': \['int64', 'nope'\] is no type of keys"):
        state.make("zone_map", ["int64", "nope"])
