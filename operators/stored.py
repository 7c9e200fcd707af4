"""The rows of one side of a join that a cell keeps, and how they are found: keys by row, and perhaps an index.

Problem: rows of a window are found by an index, by a scan, or by several threads; a cell may keep all of them or a
share that changes; and which way is the cheapest turns out while the join runs. Idea: what the tests need is kept by
*row*, and what finds rows goes by *place*, the number of a row among those that can be found here. So an index can be
built anew at any time, for another way or another share, of the keys that are here.

Invariants: places ascend as their rows do; until a row is left out (by a condition, a null, a share) they are the same,
and there is no table. Nothing below `bound` is found. The second role of a self-join keeps no index if the first one's
serves for both (`lender`).
"""

__all__ = ["NO_KEYS", "NewRows", "SharedSide", "StoredSide", "joint", "mirrored", "same_storage"]

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..state import _native
from .access import Access, JoinSpec
from .choice import ways
from .evaluate import Columns, truth
from .layouts import Range, Share
from .predicate import RangeTest, SidePlan

NO_KEYS = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class NewRows:
    """What is computed of new rows before any is stored: keys, which can match at all (None: all), nulls in keys."""

    keys: "dict[RangeTest, np.ndarray]"
    can: np.ndarray | None = None
    null_keys: int = 0


class StoredSide:
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
        self.lender: StoredSide | None = None  # the other role of a self-join, if it keeps the index for both
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

    def prepare(self, columns: Columns, rows: int) -> NewRows:
        """Compute the new rows' keys, and which of them can match at all. Changes nothing."""
        if rows == 0:
            return NewRows(dict.fromkeys(self.tests, NO_KEYS))
        can: np.ndarray | None = None
        for condition in self.conditions:
            can = joint(can, truth(condition, columns, rows))
        has_keys: np.ndarray | None = None
        computed: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}
        # Of all tests, also those that this access path does not use: a null in a key is counted whatever the index.
        for test in self.plan.tests:
            if test.key.name not in computed:
                computed[test.key.name] = test.key.compute(columns, rows)
                has_keys = joint(has_keys, computed[test.key.name][1])
        keys = {test: computed[test.key.name][0] for test in self.tests}
        can = joint(can, has_keys)
        null_keys = 0 if has_keys is None else rows - int(has_keys.sum())
        return NewRows(keys, None if can is None or can.all() else can, null_keys)

    def key_of(self, new: NewRows) -> np.ndarray:
        """Return the keys by which cells share rows; any of the right length where there are none."""
        probed = [new.keys[test] for test in self.ways[0].probe]
        if not probed:
            return next(iter(new.keys.values()), NO_KEYS)
        return _one_key(self.ways[0], probed)

    def store(self, new: NewRows, first: int, rows: int, *, again: bool = False) -> int:
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
            can = joint(can, self.share.keeps(self.side, first, key if len(key) == rows else np.empty(rows, np.uint64)))
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
            mine = joint(can, share.keeps(self.side, first, keys))
            rows = np.arange(first, first + len(keys), dtype=np.int64)
            mine = joint(mine, rows >= self.bound)
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


def mirrored(left: Access, right: Access) -> bool:
    """Tell whether both roles of a self-join look for rows in the same way, so that one index serves both."""
    keys = [test.key.name for test in left.probe], [test.key.mirrored for test in right.probe]
    return left.index == right.index and keys[0] == keys[1]


def _by_key(tests: Iterable[RangeTest]) -> list[list[RangeTest]]:
    found: dict[str, list[RangeTest]] = {}
    for test in tests:
        found.setdefault(test.key.name, []).append(test)
    return list(found.values())


def joint(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    """Return which rows both masks let through; None is all of them."""
    return b if a is None else a if b is None else a & b


class SharedSide:
    """One side of what several threads work on, in an index's place: what it is given waits until they are started."""

    def __init__(self, shared: Any, number: int) -> None:
        self.shared, self.number = shared, number
        self.keys, self.first = NO_KEYS, 0

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


def same_storage(left: StoredSide, right: StoredSide) -> bool:
    """Tell whether both roles of a self-join would keep the same rows under the same keys."""

    # In order: the key of an index on several equalities depends on it.
    if left.index is None or not mirrored(left.access, right.access):
        return False
    # Rows with a null in any key, or that fail a condition, are not stored: the same ones must be missing.
    keys = {test.key.name for test in left.plan.tests}, {test.key.mirrored for test in right.plan.tests}
    conditions = {c.key for c in left.conditions}, {c.transposed().key for c in right.conditions}
    return keys[0] == keys[1] and conditions[0] == conditions[1]
