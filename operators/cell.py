"""A cell of a join: the rows of both windows that are its own, and the work of finding pairs among them.

Problem: a join must be able to run on one core or on many, with the same results in the same order. Idea: a cell is
told everything that depends on the rest of the stream, as numbers (numbering.py), and which rows are its own, as a
share (layouts.py). It then

1. computes keys, and the ranges of keys that each new tuple looks for (`prepare`: this can fail, and changes nothing);
2. stores the new tuples of *both* sides that it keeps (`store`; from here on only a user's function or a lack of memory
   can fail, and then the join cannot go on, as half of a step has been stored);
3. probes each side with the new tuples of the other, in as many turns as the step has, a slice at a time; further
   tests filter the pairs, and what is left of the predicate decides them as written (`answers`);
4. gathers the columns that are asked for (`gather`);
5. forgets what no later tuple can reach (`expire`).

The batches themselves are kept whole by every cell: on one machine they are one copy in shared memory. A share decides
which rows stand in the index, so that a pair is found by the one cell that has the older of its rows there.
"""

__all__ = ["Answer", "Cell", "Prepared"]

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ..batch import record_batch
from ..state import WindowLog, _native
from .access import SHARED_INDEX, SIDES, Access, JoinSpec, output_fields
from .binding import Bound
from .choice import LOOKED_ROWS, Seen, Watch, look, ways
from .evaluate import Columns, truth
from .layouts import Copies, Range, Share
from .numbering import NO_TIMES, Half, Numbered
from .predicate import RangeTest, SidePlan
from .ranges import OTHER, Ends

UNION_PROBES = 4096
"""Rows that a union of bands is probed for at once: their ranges are laid out anew for each call."""

_NO_KEYS = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class _NewRows:
    """What is computed of new rows before any is stored: keys, which can match at all (None: all), nulls in keys."""

    keys: "dict[RangeTest, np.ndarray]"
    can: np.ndarray | None = None
    null_keys: int = 0


class _StoredSide:
    """The rows of one side that a window holds: for each test its keys, and perhaps an index."""

    def __init__(self, spec: JoinSpec, side: str, share: Share | None) -> None:
        self.side, self.share, self.threads = side, share, spec.threads
        self.plan: SidePlan = spec.predicate.sides[side]
        # Ways to find rows, of which the present one is `access`; cells share rows by the first, whatever is taken.
        self.ways = ways(spec, side)
        self.access = self.ways[0]
        self.conditions = spec.predicate.conditions[side]
        self.remainder = self.plan.remainder_with(self.access.applied)
        self.tests = tuple(dict.fromkeys((*self.access.probe, *self.access.filters)))
        scanned = self.access.index == "nested"
        # By row: tests that are looked at again once pairs are found; or all of them, to build another index from.
        again = self.access.filters if len(self.ways) == 1 else self.tests
        self.keys = {test: _native.RowKeys() for test in (*again, *self.remainder.tests)}
        # The rows that can be found have places, one after the other: an index, or what a scan reads, goes by these.
        # Places are rows until one is left out.
        self.places: Any = None  # then RowTimes: the row at each place
        self.scanned = {test: _native.RowKeys() for test in self.access.probe} if scanned else {}
        # Of an index of several keys: the tests of each key.
        self.boxed: list[list[RangeTest]] = _by_key(self.access.probe) if self.access.boxed else []
        self.index: Any = None if scanned else self._new_index()
        self.lender: _StoredSide | None = None  # the other role of a self-join, if it keeps the index for both
        self.seen: deque[tuple[int, np.ndarray, np.ndarray | None]] = deque()  # keys of a share that can change
        self.bound = 0
        self.null_keys = 0
        self.started = False

    def _new_index(self) -> Any:
        name = self.access.index
        if not self.boxed:
            return _native.Index(name)
        return _native.BoxIndex(name, len(self.boxed), {"threads": self.threads} if self.threads else None)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and index."""
        parts = [*self.keys.values(), *self.scanned.values(), self.places, self.index]
        seen = sum(keys.nbytes + (0 if can is None else can.nbytes) for _, keys, can in self.seen)
        return sum(part.nbytes for part in parts if part is not None) + seen

    def prepare(self, columns: Columns, rows: int) -> _NewRows:
        """Compute the new rows' keys, and which of them can match at all. Changes nothing."""
        if rows == 0:
            return _NewRows(dict.fromkeys(self.tests, _NO_KEYS))
        can: np.ndarray | None = None
        for condition in self.conditions:
            can = _and(can, truth(condition, columns, rows))
        has_keys: np.ndarray | None = None
        computed: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}
        # Of all tests, also those that this access path does not use: a null in a key is counted whatever the index.
        for test in self.plan.tests:
            if test.key.name not in computed:
                computed[test.key.name] = test.key.compute(columns, rows)
                has_keys = _and(has_keys, computed[test.key.name][1])
        keys = {test: computed[test.key.name][0] for test in self.tests}
        can = _and(can, has_keys)
        null_keys = 0 if has_keys is None else rows - int(has_keys.sum())
        return _NewRows(keys, None if can is None or can.all() else can, null_keys)

    def key_of(self, new: _NewRows) -> np.ndarray:
        """Return the keys by which cells share rows; any of the right length where there are none."""
        probed = [new.keys[test] for test in self.ways[0].probe]
        if not probed:
            return next(iter(new.keys.values()), _NO_KEYS)
        return _one_key(self.ways[0], probed)

    def store(self, new: _NewRows, first: int, rows: int, *, again: bool = False) -> int:
        """Take the new rows in; return how many are this cell's. `again`: they come back, until `restored`."""
        keys, can = new.keys, new.can
        self.started = True
        self.null_keys += new.null_keys
        for test, column in self.keys.items():
            column.append(keys[test])
        if self.lender is not None:
            return 0
        key = self.key_of(new)
        if self.share is not None and rows:
            if isinstance(self.share, Range):  # the one that can change
                self.seen.append((first, key, can))
            can = _and(can, self.share.keeps(self.side, first, key if len(key) == rows else np.empty(rows, np.uint64)))
        if can is not None and self.places is None:
            self.places = _native.RowTimes()
            self.places.start_at(self.bound)
            self.places.append(np.arange(self.bound, first))
        numbers = np.arange(first, first + rows, dtype=np.int64)
        boxed = [keys[tests[0]] if can is None else keys[tests[0]][can] for tests in self.boxed]
        if self.access is not self.ways[0] and self.index is not None and not boxed:
            key = _one_key(self.access, [keys[test] for test in self.access.probe])
        if can is not None:
            key, numbers = _native.keep_rows(key if len(key) else np.empty(rows, np.uint64), can, first)
        place = first
        if self.places is not None:
            place = self.places.end_row
            self.places.append(numbers)
        for test, column in self.scanned.items():
            column.append(keys[test] if can is None else keys[test][can])
        if self.index is not None:
            take = self.index.restore if again else self.index.insert
            take(boxed or key, np.arange(place, place + len(numbers), dtype=np.int64))
        return len(numbers)

    def restored(self) -> None:
        """All rows that were stored before are back."""
        if self.index is not None:
            self.index.restored()

    def start_at(self, first: int) -> None:
        """Begin with this row; of no matter if there are rows already."""
        if self.started:
            return
        self.started, self.bound = True, first
        for column in (*self.keys.values(), *self.scanned.values()):
            column.start_at(first)

    def places_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the first place that is at or after each row."""
        places = (self.lender or self).places
        return rows if places is None else places.places_of(rows)

    def rows_at(self, places: np.ndarray) -> np.ndarray:
        """Return the row at each place."""
        known = (self.lender or self).places
        return places if known is None else known.at(places)

    def take_over(self, share: Share) -> None:
        """Keep the rows of another share from now on: the index is built anew, of all rows that can still be met."""
        self.share = share
        if self.index is None and len(self.ways) == 1:
            return
        parts = []
        for first, keys, can in self.seen:
            mine = _and(can, share.keeps(self.side, first, keys))
            rows = np.arange(first, first + len(keys), dtype=np.int64)
            mine = _and(mine, rows >= self.bound)
            parts.append((keys[mine], rows[mine]))
        self.places = _native.RowTimes()
        if parts:
            self.places.append(np.concatenate([rows for _, rows in parts]))
        if len(self.ways) > 1:
            self._build()
            return
        index = self._new_index()
        if parts:
            index.build(np.concatenate([keys for keys, _ in parts]), np.arange(len(self.places), dtype=np.int64))
        self.index = index

    def go_by(self, access: Access) -> None:
        """Find rows in another way from now on."""
        self.access = access
        self.boxed = _by_key(access.probe) if access.boxed else []
        if self.lender is None:
            self._build()

    def some_rows(self, most: int) -> np.ndarray:
        """Return some of the rows that are held, evenly from all of them."""
        first, end = self.bound, next(iter(self.keys.values())).end_row
        return np.arange(first, end, max(1, -(-(end - first) // most)), dtype=np.int64)

    @property
    def part_kept(self) -> float:
        """Which part of the window's rows can be found here."""
        places = (self.lender or self).places
        held = next(iter(self.keys.values())).end_row - self.bound
        return 1.0 if places is None else len(places) / max(1, held)

    def _build(self) -> None:
        """Build the index anew, from the keys of the window."""
        if self.places is None:
            first, rows = self.bound, np.arange(self.bound, next(iter(self.keys.values())).end_row, dtype=np.int64)
        else:
            first = self.places.first_row
            rows = self.places.at(np.arange(first, self.places.end_row, dtype=np.int64))
        self.index, self.scanned = None, {}
        if self.access.index == "nested":
            for test in self.access.probe:
                self.scanned[test] = _native.RowKeys()
                self.scanned[test].start_at(first)
                self.scanned[test].append(self.keys[test].at(rows))
            return
        index = self._new_index()
        if len(rows):
            if self.boxed:
                keys: Any = [self.keys[tests[0]].at(rows) for tests in self.boxed]
            else:
                keys = _one_key(self.access, [self.keys[test].at(rows) for test in self.access.probe])
            index.build(keys, np.arange(first, first + len(rows), dtype=np.int64))
            index.expire(first)
        self.index = index

    def expire(self, bound: int) -> None:
        """Forget rows below a bound."""
        if bound <= self.bound:
            return
        self.bound = bound
        place = int(self.places_of(np.array([bound]))[0])
        for column in self.keys.values():
            column.expire(bound)
        for column in (*self.scanned.values(), *([self.places] if self.places is not None else [])):
            column.expire(place)
        while self.seen and self.seen[0][0] + len(self.seen[0][1]) <= bound:
            self.seen.popleft()
        if self.index is not None:
            self.index.expire(place)

    def check(self) -> None:
        """Assert the invariants."""
        for part in (*self.keys.values(), *self.scanned.values(), self.places, self.index):
            if part is not None:
                part.check()


def _one_key(access: Access, keys: list[np.ndarray]) -> np.ndarray:
    """Return the keys by which an index of one key goes: of several equalities one is made."""
    several = access.index == "hash" and len(keys) > 1
    return _native.combine_keys(keys) if several else keys[0]


def _mirrored(left: Access, right: Access) -> bool:
    """Tell whether both roles of a self-join look for rows in the same way, so that one index serves both."""
    keys = [test.key.name for test in left.probe], [test.key.mirrored for test in right.probe]
    return left.index == right.index and keys[0] == keys[1]


def _by_key(tests: Iterable[RangeTest]) -> list[list[RangeTest]]:
    found: dict[str, list[RangeTest]] = {}
    for test in tests:
        found.setdefault(test.key.name, []).append(test)
    return list(found.values())


def _and(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    return b if a is None else a if b is None else a & b


def _common(ends: list[Ends]) -> Ends:
    """Return what is in all of these ranges of one key."""
    lo, hi = ends[0]
    for low, high in ends[1:]:
        lo, hi = np.maximum(lo, low), np.minimum(hi, high)
    return lo, hi


class _SharedSide:
    """One side of what several threads work on, in an index's place: what it is given waits until they are started."""

    def __init__(self, shared: Any, number: int) -> None:
        self.shared, self.number = shared, number
        self.keys, self.first = _NO_KEYS, 0

    def insert(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Hold keys until the step is started; their rows are consecutive."""
        self.keys, self.first = keys, int(rows[0]) if len(rows) else 0

    def restore(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Take rows that were stored before."""
        if len(rows):
            self.shared.restore(self.number, keys, int(rows[0]))

    def restored(self) -> None:
        """All of them are back."""
        self.shared.restored(self.number)

    def expire(self, before: int) -> None:
        """Forget rows below a bound."""
        self.shared.expire(self.number, before)

    def check(self) -> None:
        """Assert the invariants."""
        self.shared.check()

    @property
    def nbytes(self) -> int:
        """Bytes of both sides, said by the first."""
        return int(self.shared.nbytes) if self.number == 0 else 0


class _Probes:
    """The new tuples of one side looking for rows of the other: pairs of a few at a time, in order."""

    def __init__(
        self, side: str, target: _StoredSide, share: Share | None, columns: Columns, ends: dict[RangeTest, Ends],
        half: Half, can: np.ndarray | None, total: int,
    ) -> None:  # fmt: skip
        self.target, self.columns, self.ends = target, columns, ends
        self.rank, self.first = half.rank, half.first
        self.until = share.until(total) if isinstance(share, Copies) else total  # no rank from here on is looked at
        self.index = (target.lender or target).index
        self.probe = self.row = NO_TIMES
        mine: np.ndarray | slice | None = None
        part = slice(0, len(self.rank))  # of the tuples, those of which the index's ends are laid out
        if isinstance(share, Copies):
            part = mine = share.asks(side, half, total, _NO_KEYS, _NO_KEYS)
        probe_ends = self._index_ends(target.access, part)
        if share is not None and mine is None and len(self.rank):
            shared = probe_ends if target.access is target.ways[0] else self._index_ends(target.ways[0], part)
            lo, hi = shared or (np.empty(len(self.rank), np.uint64),) * 2
            mine = share.asks(side, half, total, lo, hi)
        # Only tuples that may find something here go on: `asked` says which (a slice, if they are next to each other),
        # and `next` counts among them.
        self.asked: np.ndarray | slice
        if isinstance(mine, slice):
            self.asked = mine if can is None else np.flatnonzero(can[mine]) + mine.start
        else:
            can = _and(can, mine)
            self.asked = slice(0, len(self.rank)) if can is None else np.flatnonzero(can)
        self.count = self.asked.stop - self.asked.start if isinstance(self.asked, slice) else len(self.asked)
        self.next = 0
        self.row_lo, self.row_hi = (target.places_of(self._asked(rows)) for rows in (half.row_lo, half.row_hi))
        self.probe_ends = probe_ends and self._both(probe_ends, part.start)
        self.scan_ends = [self._both(ends[test]) for test in target.scanned]
        self.box_ends = [_common([self._both(ends[test]) for test in tests]) for tests in target.boxed]

    def _asked(self, values: np.ndarray, first: int = 0) -> np.ndarray:
        """Return the values of the tuples that are asked; `first`: whose the first value is."""
        if isinstance(self.asked, slice):
            return np.ascontiguousarray(values[..., self.asked.start - first : self.asked.stop - first])
        return np.ascontiguousarray(np.take(values, self.asked - first, axis=-1))

    def _both(self, ends: Ends, first: int = 0) -> Ends:
        return self._asked(ends[0], first), self._asked(ends[1], first)

    @property
    def asked_ranks(self) -> np.ndarray:
        """The places in the order of the tuples that are asked."""
        return self._asked(self.rank)

    @property
    def frontier(self) -> int:
        """The rank below which every pair that is to be found here has been found."""
        if self.next >= self.count:
            return self.until
        at = self.next + self.asked.start if isinstance(self.asked, slice) else self.asked[self.next]
        return int(self.rank[at])

    @property
    def done(self) -> bool:
        """True when nothing is left to find or to hand out."""
        return self.next >= self.count and len(self.row) == 0

    def _index_ends(self, access: Access, part: slice) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the ranges of the one key that an index goes by, of a part of the tuples; None if there is no one."""
        if access.index == "nested" or access.boxed:
            return None
        ends = [(lo[..., part], hi[..., part]) for lo, hi in (self.ends[test] for test in access.probe)]
        if len(ends) == 1:
            return ends[0]
        los, his = zip(*ends, strict=True)
        nothing = np.logical_or.reduce([lo > hi for lo, hi in zip(los, his, strict=True)])
        key = _native.combine_keys(list(los))
        low, high = key.copy(), key
        low[nothing], high[nothing] = 1, 0
        return low, high

    def find(self, limit: int) -> None:
        """Find the pairs of the next probes, until there are about `limit` candidates."""
        target, begin, count = self.target, self.next, self.count
        if self.box_ends:
            los, his = ([ends[i] for ends in self.box_ends] for i in (0, 1))
            found = self.index.probe(los, his, self.row_lo, self.row_hi, begin, count, limit)
        elif self.probe_ends is None:
            los, his = ([ends[i] for ends in self.scan_ends] for i in (0, 1))
            scanned = list(target.scanned.values())
            found = _native.scan_rows(scanned, los, his, self.row_lo, self.row_hi, begin, count, limit)
        elif self.probe_ends[0].ndim == 2:
            found = self._find_union(*self.probe_ends, limit)
        else:
            found = self.index.probe(*self.probe_ends, self.row_lo, self.row_hi, begin, count, limit)
        self.took(*found)

    def took(self, probe: np.ndarray, place: np.ndarray, upto: int) -> None:
        """Take pairs of those that are asked, up to one of them, with the places that were found for them."""
        target = self.target
        self.probe, self.row, self.next = probe, target.rows_at(place), upto
        if not isinstance(self.asked, slice):
            self.probe = np.take(self.asked, self.probe)
        elif self.asked.start:
            self.probe += self.asked.start
        for test in target.access.filters:
            lo, hi = self.ends[test]
            kept = _native.filter_pairs(self.probe, self.row, target.keys[test], lo, hi, test.negated)
            self.probe, self.row = self.probe[:kept], self.row[:kept]

    def _find_union(self, lo: np.ndarray, hi: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Probe once for each band, some thousand rows at a time; bring each row's finds into order."""
        bands, until = len(lo), min(self.next + UNION_PROBES, self.count)
        mine = slice(self.next, until)
        low, high = (np.ascontiguousarray(x[:, mine].T).ravel() for x in (lo, hi))
        row_lo, row_hi = np.repeat(self.row_lo[mine], bands), np.repeat(self.row_hi[mine], bands)
        probe, row, upto = self.index.probe(low, high, row_lo, row_hi, 0, len(low), limit)
        answered = until - self.next if upto == len(low) else upto // bands
        if answered == 0:  # one row has more than `limit`: it is answered whole
            probe, row, upto = self.index.probe(low, high, row_lo, row_hi, 0, bands, 2**62)
            answered = 1
        probe = probe // bands + self.next
        whole = probe < self.next + answered
        probe, row = probe[whole], row[whole]
        order = np.lexsort((row, probe))
        return np.ascontiguousarray(probe[order]), np.ascontiguousarray(row[order]), self.next + answered

    def unsure(self) -> np.ndarray:
        """Return the places of the pairs that rounding may have let through."""
        mask = np.zeros(len(self.row), bool)
        for test in self.target.remainder.tests:
            assert test.sure is not None
            with np.errstate(all="ignore"):  # infinities and NaN are values here
                lo, hi = self.columns.once(test, partial(test.sure, self.columns, len(self.rank)))
            _native.mark_outside(self.probe, self.row, self.target.keys[test], lo, hi, mask)
        return np.flatnonzero(mask)

    def keep(self, mask: np.ndarray) -> None:
        """Keep the pairs that the remainder of the predicate allows."""
        self.probe, self.row = self.probe[mask], self.row[mask]

    def take(self, before_rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Hand out the pairs whose probe stands before a place in the order."""
        if before_rank >= self.until:
            taken, self.probe, self.row = (self.probe, self.row), NO_TIMES, NO_TIMES
            return taken
        until = int(np.searchsorted(self.rank, before_rank))
        cut = int(np.searchsorted(self.probe, until))
        taken = self.probe[:cut], self.row[:cut]
        self.probe, self.row = self.probe[cut:], self.row[cut:]
        return taken


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step before it is stored: what is computed of the new tuples of both sides."""

    rows: dict[str, int]
    columns: dict[str, Columns]
    new: dict[str, _NewRows]
    ends: dict[str, dict[RangeTest, Ends]]


@dataclass(frozen=True, slots=True)
class Answer:
    """Some pairs, in order: their rows, and the rank of the later tuple of each. Before rank `upto` none is missing."""

    left: np.ndarray
    right: np.ndarray
    later: np.ndarray
    upto: int


class Cell:
    """A join of the rows that are its own. See the top of this file."""

    def __init__(
        self, spec: JoinSpec, columns: Sequence[str] | None = None, out_rows: int = 65_536, share: Share | None = None
    ) -> None:
        """`columns`: the output columns that are asked for (None: all); `share`: what is its own (None: all)."""
        self.spec, self.out_rows = spec, out_rows
        self.outputs = [f for f in output_fields(spec) if columns is None or f[2].name in set(columns)]
        self.schema = pa.schema([field for _, _, field in self.outputs])
        self.stored = {side: _StoredSide(spec, side, share) for side in SIDES}
        self.logs = self._make_logs()
        keeps_all = share is None or isinstance(share, Copies)
        if keeps_all and spec.self_join and _same_storage(self.stored["left"], self.stored["right"]):
            self.stored["right"].index, self.stored["right"].lender = None, self.stored["left"]
        self.shared: Any = self._make_shared() if spec.threads and spec.index == SHARED_INDEX else None
        self.watches = self._make_watches()
        self._columns = {side: {name: i for i, name in enumerate(self.logs[side].schema.names)} for side in SIDES}
        self._wanted = {side: [self._columns[side][c] for s, c, _ in self.outputs if s == side] for side in SIDES}
        self.load = 0  # rows of the last step that it stored, and that asked it

    def _make_logs(self) -> dict[str, WindowLog]:
        """Keep the columns that results or the remainder of the predicate ask for, and no others."""
        needed: dict[str, set[str]] = {side: {c for s, c, _ in self.outputs if s == side} for side in SIDES}
        for stored in self.stored.values():
            for conjunct in stored.remainder.conjuncts:
                for side, name in conjunct.columns():
                    needed[side].add(name)
        if self.spec.self_join:
            needed["left"] = needed["right"] = needed["left"] | needed["right"]
        logs = {}
        for side in SIDES:
            schema = self.spec.schemas[side]
            logs[side] = WindowLog(pa.schema([field for field in schema if field.name in needed[side]]))
        if self.spec.self_join:
            logs["right"] = logs["left"]
        return logs

    def _make_shared(self) -> Any:
        """Return what several threads work on, in place of an index for each side."""
        owners = [side for side in SIDES if self.stored[side].index is not None]
        shared = _native.SharedPim(len(owners), self.spec.threads)
        for number, side in enumerate(owners):
            self.stored[side].index = _SharedSide(shared, number)
        return shared

    def _make_watches(self) -> list[tuple[tuple[str, ...], Watch]]:
        """Return what watches the sides that can be found in several ways; those that share an index go together."""
        if all(len(stored.ways) == 1 for stored in self.stored.values()):
            return []
        left, right = (self.stored[side] for side in SIDES)
        if right.lender is None:
            return [((s,), Watch([self.stored[s].ways])) for s in SIDES if len(self.stored[s].ways) > 1]
        both = [(a, b) for a in left.ways for b in right.ways if _mirrored(a, b) and a.index != "nested"]
        left.ways, right.ways = [a for a, _ in both], [b for _, b in both]
        return [(SIDES, Watch([left.ways, right.ways]))] if len(both) > 1 else []

    @property
    def changes(self) -> int:
        """How many times another way to find rows was taken."""
        return sum(watch.changes for _, watch in self.watches)

    def found_by(self) -> dict[str, str]:
        """Say how the rows of each side were found, and are now."""
        told = {side: self.stored[side].ways[0].describe() for side in SIDES}
        for sides, watch in self.watches:
            for side, each in zip(sides, watch.ways, strict=True):
                told[side] += ", then by others" if watch.changes > len(watch.taken) else ""
                told[side] += "".join(f", from row {row:,} on {each[way].describe()}" for row, way in watch.taken)
        return told

    @property
    def nbytes(self) -> int:
        """Bytes that the windows hold: rows, keys and indexes."""
        logs = {id(log): log.nbytes for log in self.logs.values()}
        return sum(logs.values()) + sum(s.nbytes for s in self.stored.values())

    def check(self) -> None:
        """Assert the invariants."""
        for side in SIDES:
            self.logs[side].check()
            self.stored[side].check()

    def prepare(self, batches: dict[str, Sequence[pa.RecordBatch]], numbered: Numbered | None = None) -> Prepared:
        """Compute what is needed of new tuples; where it is known, only of those that are asked. Changes nothing."""
        rows = {side: sum(batch.num_rows for batch in batches[side]) for side in SIDES}
        columns = {side: _columns_of(batches[side]) for side in SIDES}
        new = {side: self.stored[side].prepare(columns[side], rows[side]) for side in SIDES}
        ends: dict[str, dict[RangeTest, Ends]] = {}
        for side in SIDES:
            tests, share = self.stored[OTHER[side]].tests, self.stored[side].share
            if isinstance(share, Copies) and numbered is not None:
                ends[side] = _ends_of_parts(tests, columns[side], _parts(share, side, numbered), rows[side])
            elif rows[side]:
                ends[side] = {test: test.ends(columns[side], rows[side]) for test in tests}
            else:
                ends[side] = dict.fromkeys(tests, (_NO_KEYS, _NO_KEYS))
        return Prepared(rows, columns, new, ends)

    def store(
        self, batches: dict[str, Sequence[pa.RecordBatch]], prepared: Prepared, numbered: Numbered
    ) -> "Iterator[list[_Probes]]":
        """Take new tuples in; return what is to be found for them, in turns, for each side.

        It is laid out turn by turn, as there may be many. `load` is known when all turns are over.
        """
        self.load = 0
        for side in SIDES:
            self.load += self.stored[side].store(prepared.new[side], numbered.halves[side].first, prepared.rows[side])
        for side in SIDES[:1] if self.spec.self_join else SIDES:
            log = self.logs[side]
            for batch in batches[side]:
                log.append(batch if batch.schema.names == log.schema.names else batch.select(log.schema.names))
        for sides, watch in self.watches:
            self._watch(sides, watch, prepared, numbered)
        return self._turns(prepared, numbered)

    def _turns(self, prepared: Prepared, numbered: Numbered) -> "Iterator[list[_Probes]]":
        share = self.stored["left"].share
        for turn in range(numbered.turns if isinstance(share, Copies) else 1):
            probes = []
            for side in SIDES:
                target = self.stored[OTHER[side]]
                share = target.share
                if isinstance(share, Copies):
                    share = share.at(turn, numbered.turns)
                with np.errstate(all="ignore"):
                    probes.append(_Probes(
                        side, target, share, prepared.columns[side], prepared.ends[side], numbered.halves[side],
                        prepared.new[side].can, numbered.total,
                    ))  # fmt: skip
            self.load += sum(half.count for half in probes)
            if self.shared is not None and any(half.count for half in probes):
                self._start_shared(probes)
            yield probes

    def _start_shared(self, probes: "list[_Probes]") -> None:
        """Give the threads a step: what each tuple looks for, and where its own key is to be stored."""
        owners = [self.stored[side].index for side in SIDES if self.stored[side].index is not None]
        roles, total = [], 0
        for side, half in zip(SIDES, probes, strict=True):
            rank = half.asked_ranks
            total = max(total, int(rank[-1]) + 1 if len(rank) else 0)
            own = self.stored[side].index
            assert half.probe_ends is not None
            roles.append((
                half.index.number, -1 if own is None else own.number, *half.probe_ends, half.row_lo, half.row_hi, rank,
            ))  # fmt: skip
        self.shared.start([index.keys for index in owners], [index.first for index in owners], roles, total)

    def _find_shared(self, probes: "list[_Probes]") -> None:
        """Have the threads find the pairs of the next tuples of both sides."""
        for side, half, found in zip(SIDES, probes, self.shared.advance(self.out_rows), strict=True):
            half.took(*found)
            self._decide(side, half)

    def _watch(self, sides: tuple[str, ...], watch: Watch, prepared: Prepared, numbered: Numbered) -> None:
        """Look at what new tuples would find, if it is time to, and find rows in another way if that is cheaper."""
        come = min(numbered.halves[side].first + prepared.rows[side] for side in sides)
        if not watch.due(come):
            return
        seen = [self._look(side, prepared, numbered) for side in sides]
        if None not in seen and watch.looked(come, [each for each in seen if each]):
            for side, each in zip(sides, watch.ways, strict=True):
                self.stored[side].go_by(each[watch.now])

    def _look(self, side: str, prepared: Prepared, numbered: Numbered) -> Seen | None:
        """Hold some new tuples of the other side against some rows of this one; None if there are none."""
        stored, asking, half = self.stored[side], OTHER[side], numbered.halves[OTHER[side]]
        asked = slice(0, prepared.rows[asking])
        if isinstance(stored.share, Copies):  # of the others it was not computed what they look for
            asked = max(_parts(stored.share, asking, numbered), key=lambda part: part.stop - part.start)
        rows = stored.some_rows(LOOKED_ROWS)
        if asked.start >= asked.stop or not len(rows):
            return None
        ends = {test: (lo[asked], hi[asked]) for test, (lo, hi) in prepared.ends[asking].items()}
        keys = {test: stored.keys[test].at(rows) for test in stored.tests}
        window = self.spec.windows[side].rows or float(np.mean(half.row_hi[asked] - half.row_lo[asked]))
        newer = prepared.rows[side] / 4  # half of the step, which is passed over at half the price, about
        return look(keys, ends, window * stored.part_kept, newer * stored.part_kept, stored.ways)

    def rebuild(self, side: str, first: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Take in rows that were stored before: nothing is looked for. In order; the first ones say where rows begin.

        Of a self-join there is only the left side. When all are there: `rebuilt`.
        """
        log = self.logs[side]
        if len(log) == 0:
            log.start_at(first)
        for batch in batches:
            log.append(batch if batch.schema.names == log.schema.names else batch.select(log.schema.names))
        rows = sum(batch.num_rows for batch in batches)
        columns = _columns_of(batches)
        for stored in self._stored_of(side):
            counted = stored.null_keys
            stored.start_at(first)
            with np.errstate(all="ignore"):
                stored.store(stored.prepare(columns, rows), first, rows, again=True)
            stored.null_keys = counted

    def rebuilt(self, side: str) -> None:
        """All rows of a side that were stored before are there again."""
        for stored in self._stored_of(side):
            stored.restored()

    def _stored_of(self, side: str) -> Iterable[_StoredSide]:
        return self.stored.values() if self.spec.self_join else [self.stored[side]]

    def answers(self, turns: "Iterable[list[_Probes]]") -> Iterator[Answer]:
        """Find the pairs of the new tuples, in order, at most `out_rows` at a time."""
        for probes in turns:
            yield from self._answers(probes)

    def _answers(self, probes: "list[_Probes]") -> Iterator[Answer]:
        left, right = probes
        while not (left.done and right.done):
            if self.shared is not None:  # of both sides up to one tuple, so that nothing is left from before
                self._find_shared(probes)
            else:
                for side, half in zip(SIDES, probes, strict=True):
                    if len(half.row) == 0 and half.next < half.count:
                        half.find(self.out_rows)
                        self._decide(side, half)
            cut = min(left.frontier, right.frontier)
            left_probe, left_row = left.take(cut)
            right_probe, right_row = right.take(cut)
            if len(left_row) + len(right_row) == 0:
                continue
            left_rows, right_rows, later = _native.merge_halves(
                left_probe, left_row, left.rank, left.first, right_probe, right_row, right.rank, right.first
            )
            for at in range(0, len(later), self.out_rows):
                part = slice(at, at + self.out_rows)
                more = at + self.out_rows < len(later)
                upto = int(later[at + self.out_rows]) if more else cut
                yield Answer(left_rows[part], right_rows[part], later[part], upto)

    def gather(self, answer: Answer) -> Iterator[tuple[pa.RecordBatch, Answer]]:
        """Fetch the columns of some pairs: at once, or in parts where texts would be longer than Arrow allows."""
        try:
            columns = {
                side: self.logs[side].gather(self._wanted[side], rows)
                for side, rows in zip(SIDES, (answer.left, answer.right), strict=True)
            }
        except OverflowError:
            if len(answer.later) == 1:
                raise
            half = len(answer.later) // 2
            for part, upto in ((slice(None, half), int(answer.later[half])), (slice(half, None), answer.upto)):
                yield from self.gather(Answer(answer.left[part], answer.right[part], answer.later[part], upto))
            return
        arrays = [*columns["left"], *columns["right"]]
        yield record_batch(arrays, self.schema, len(answer.later)), answer

    def expire(self, bounds: dict[str, int]) -> None:
        """Forget rows of each side below a bound."""
        for side in SIDES:
            self.stored[side].expire(bounds[side])
            self.logs[side].expire(bounds[side])

    def take_over(self, share: Share) -> None:
        """Keep the rows of another share from now on."""
        for stored in self.stored.values():
            stored.take_over(share)

    def _decide(self, side: str, half: "_Probes") -> None:
        """Apply what is left of the predicate to the pairs that were found."""
        remainder = half.target.remainder
        if len(half.row) and remainder.always:
            mask = self._truth_of(remainder.always, side, half.probe, half.row, half.first)
            if not mask.all():
                half.keep(mask)
        if len(half.row) and remainder.unsure:
            unsure = half.unsure()
            if len(unsure):
                mask = np.ones(len(half.row), bool)
                mask[unsure] = self._truth_of(remainder.unsure, side, half.probe[unsure], half.row[unsure], half.first)
                half.keep(mask)

    def _truth_of(
        self, conjuncts: tuple[Bound, ...], side: str, probe: np.ndarray, row: np.ndarray, first: int
    ) -> np.ndarray:
        rows = {side: probe + first, OTHER[side]: row}
        columns = Columns(lambda which, name: self.logs[which].gather([self._columns[which][name]], rows[which])[0])
        mask: np.ndarray | None = None
        for conjunct in conjuncts:
            mask = _and(mask, truth(conjunct, columns, len(row)))
        assert mask is not None
        return mask


def _same_storage(left: _StoredSide, right: _StoredSide) -> bool:
    """Tell whether both roles of a self-join would keep the same rows under the same keys."""

    # In order: the key of an index on several equalities depends on it.
    if left.index is None or not _mirrored(left.access, right.access):
        return False
    # Rows with a null in any key, or that fail a condition, are not stored: the same ones must be missing.
    keys = {test.key.name for test in left.plan.tests}, {test.key.mirrored for test in right.plan.tests}
    conditions = {c.key for c in left.conditions}, {c.transposed().key for c in right.conditions}
    return keys[0] == keys[1] and conditions[0] == conditions[1]


def _parts(share: Copies, side: str, numbered: Numbered) -> list[slice]:
    """Return the new tuples of a side that a cell is asked for in each turn."""
    half, turns = numbered.halves[side], [share.at(turn, numbered.turns) for turn in range(numbered.turns)]
    return [each.asks(side, half, numbered.total, _NO_KEYS, _NO_KEYS) for each in turns]


def _ends_of_parts(
    tests: tuple[RangeTest, ...], columns: Columns, parts: list[slice], rows: int
) -> dict[RangeTest, Ends]:
    """Return what parts of some tuples look for, at their places; anything for the others."""
    found: dict[RangeTest, Ends] = {}
    for part in parts:
        if part.start >= part.stop:
            continue
        mine = Columns(partial(_cut, columns, part))
        for test in tests:
            ends = test.ends(mine, part.stop - part.start)
            if test not in found:
                low, high = (np.empty((*end.shape[:-1], rows), np.uint64) for end in ends)
                found[test] = low, high
            for all_of_them, end in zip(found[test], ends, strict=True):
                all_of_them[..., part] = end
    return found or {test: (np.empty(rows, np.uint64), np.empty(rows, np.uint64)) for test in tests}


def _cut(columns: Columns, part: slice, side: str, name: str) -> pa.Array:
    return columns.array(side, name).slice(part.start, part.stop - part.start)


def _columns_of(batches: Sequence[pa.RecordBatch]) -> Columns:
    def load(_side: str, name: str) -> pa.Array:
        if len(batches) == 1:
            return batches[0].column(name)
        return pa.concat_arrays([batch.column(name) for batch in batches])

    return Columns(load)
