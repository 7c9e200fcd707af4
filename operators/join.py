"""The join of two streams over windows: one step at a time, each pair once, in order.

Problem: each tuple must meet the tuples of the other stream that came before it and are in their window, however
finely the two interleave, without handling tuples one by one. Idea: bounds on row numbers (state/__init__). A step

1. finds, for every new tuple, the rows of the other stream that it may meet (`row_bounds`, one sweep);
2. computes keys, and the ranges of keys that each new tuple looks for;
3. stores the new tuples of *both* sides;
4. probes each side with the new tuples of the other, a slice at a time; further tests filter the pairs, and what is
   left of the predicate decides them as written;
5. merges both halves into the order of results and gathers the columns that are asked for;
6. expires what no later tuple can reach.

Steps 1 and 2 can fail (a cast, a user's data) and change nothing; from step 3 on only a user's function or a lack of
memory can, and then the join refuses to go on, as half of a step has been stored.

Invariants: rows are numbered by the stream, from 0, and never by what a cell happens to hold; both sides' bounds come
from those numbers; expiry happens after the probes of a step and its bound never falls.

`JoinDriver` is that operator, for a flow or anything else that brings tuples in order; `WindowJoin` (window_join.py)
puts a public face on it.
"""

__all__ = ["JoinDriver", "JoinSpec", "Step", "choose_access", "output_fields"]

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import DovetailError, FlowError, PredicateError, SchemaError
from ..state import WindowLog, _native, names
from ..state.log import storable_type
from .binding import Bound
from .evaluate import Columns, truth
from .predicate import JoinPredicate, RangeTest, SidePlan, plan_predicate
from .ranges import OTHER, Ends
from .times import INT64_MAX, INT64_MIN, TimeDomain
from .windows import WindowSpec

SIDES = ("left", "right")
INDEXES = ("auto", *names())
TINY_WINDOW = 256
"""Up to this many rows a scan costs no more than looking into an index does (docs/indexes.md has the crossing)."""

UNION_PROBES = 4096
"""Rows that a union of bands is probed for at once: their ranges are laid out anew for each call."""

_NO_TIMES = np.empty(0, np.int64)
_NO_KEYS = np.empty(0, np.uint64)


@dataclass(frozen=True)
class JoinSpec:
    """A join, checked and planned: everything that can be known before there is a row."""

    name: str
    schemas: dict[str, pa.Schema]
    predicate: JoinPredicate
    windows: dict[str, WindowSpec]
    domains: dict[str, TimeDomain | None]
    time: TimeDomain | None
    index: str
    suffix: str
    self_join: bool
    ordered: bool = True

    @classmethod
    def check(
        cls, name: str, schemas: dict[str, pa.Schema], on: Any, window: Any, domains: dict[str, TimeDomain | None],
        *, index: str = "auto", suffix: str = "_right", self_join: bool = False, ordered: bool = True,
    ) -> "JoinSpec":  # fmt: skip
        """Check a join as it was written; raise a `FlowError` that says what is wrong with it."""
        if on is None:
            raise PredicateError(f"{name}: a join needs on=…, such as on=left.x < right.y")
        windows = _both_windows(window, name)
        if not isinstance(suffix, str):
            raise FlowError(f"{name}: suffix={suffix!r} is not a text; write suffix='_right'")
        if index not in INDEXES:
            raise FlowError(f"{name}: there is no index {index!r}; there are: {', '.join(INDEXES)}")
        if (domains["left"] is None) != (domains["right"] is None):
            without = "left" if domains["left"] is None else "right"
            raise SchemaError(
                f"{name}: the {without} side has no time column and the other has one; "
                "read both with time=…, or neither"
            )
        time = domains["left"].finer(domains["right"], name) if domains["left"] and domains["right"] else None
        predicate = plan_predicate(on, schemas, name)
        for side in SIDES:
            windows[side].resolve(time, domains[side], f"{name}: the {side} window")
        spec = cls(name, schemas, predicate, windows, domains, time, index, suffix, self_join, ordered)
        output_fields(spec)
        for side in SIDES:
            choose_access(spec, side)
        return spec


def _both_windows(window: Any, name: str) -> dict[str, WindowSpec]:
    if window is None:
        raise FlowError(
            f"{name}: a join needs window=…, as streams have no end: dt.last(100_000) rows, "
            'dt.last("10min"), or dt.last(None) to keep everything'
        )
    pair = window if isinstance(window, tuple | list) else (window, window)
    if len(pair) != 2 or not all(isinstance(w, WindowSpec) for w in pair):
        raise FlowError(
            f"{name}: window={window!r} is not a window; write dt.last(100_000), or a pair "
            "(window of the left rows, window of the right rows)"
        )
    return {"left": pair[0], "right": pair[1]}


def output_fields(spec: JoinSpec) -> list[tuple[str, str, pa.Field]]:
    """Return (side, column, output field) of each result column: the left's, then the right's."""
    fields = [("left", f.name, f.with_type(storable_type(f.type))) for f in spec.schemas["left"]]
    taken = set(spec.schemas["left"].names)
    out = [name for _, name, _ in fields]
    for f in spec.schemas["right"]:
        name = f.name + spec.suffix if f.name in taken else f.name
        fields.append(("right", f.name, f.with_type(storable_type(f.type)).with_name(name)))
        out.append(name)
    doubled = sorted({name for name in out if out.count(name) > 1})
    if doubled:
        raise SchemaError(
            f"{spec.name}: the result would have two columns named {doubled[0]!r}; "
            f"pass another suffix than {spec.suffix!r}, such as suffix='_2', or rename the column"
        )
    return fields


@dataclass(frozen=True)
class Access:
    """How the rows of one side are found: an index on one test, or a scan that applies several."""

    index: str
    why: str
    probe: tuple[RangeTest, ...]  # hash: equalities; nested: all that a scan applies; else one test
    filters: tuple[RangeTest, ...]  # applied to what was found, pair by pair
    applied: tuple[RangeTest, ...]  # everything above, for the remainder

    def describe(self) -> str:
        """Say it in a line."""
        on = ", ".join(test.key.text for test in self.probe)
        return f"{self.index} index on {on}" if self.probe and self.index != "nested" else "scan (nested)"


def choose_access(spec: JoinSpec, stored: str) -> Access:
    """Choose the access path to one side's rows; `explain()` shows the reason."""
    plan, window = spec.predicate.sides[stored], spec.windows[stored]
    equalities = tuple(t for t in plan.tests if t.shape == "equality")
    ordered = tuple(t for t in equalities if t.key.domain != "hash")
    ranges = sorted((t for t in plan.tests if t.shape in _SELECTIVITY), key=lambda t: _SELECTIVITY.index(t.shape))
    one_ended = [t for t in ranges if t.shape == "comparison"]
    tiny = window.rows is not None and window.rows <= TINY_WINDOW
    index, why = spec.index, "as asked for"
    if index == "auto":
        if tiny:
            index, why = "nested", f"a window of at most {TINY_WINDOW:,} rows is scanned faster than an index is kept"
        elif equalities:
            index, why = "hash", "the predicate has an equality key"
        elif not ranges:
            index, why = "nested", "no part of the predicate is a range of one key"
        elif ranges[0].shape == "comparison" and len(one_ended) > 1:
            index, why = "nested", "several inequalities without a band: one scan tests them all at once"
        else:
            index, why = "carousel", f"the predicate has a {ranges[0].shape} on one key"
    if index == "hash" and not equalities:
        raise PredicateError(
            f'{spec.name}: index="hash" needs an equality such as left.x == right.x; use "auto" or "nested"'
        )
    if index not in ("nested", "hash") and not ranges and not ordered:
        raise PredicateError(
            f'{spec.name}: index="{index}" needs a comparison between a left and a right value; use "auto" or "nested"'
        )
    usable = tuple(t for t in plan.tests if t.shape not in ("union", "unequal"))
    unequal = tuple(t for t in plan.tests if t.shape == "unequal")
    if index == "nested":
        return Access("nested", why, usable, unequal, (*usable, *unequal))
    if index == "hash":
        # One exact equality is decided by the table itself; several share a hash, so that each is checked again.
        checked = equalities if len(equalities) > 1 else ()
        rest = tuple(t for t in usable if t not in equalities)
        filters = (*checked, *rest, *unequal)
        return Access("hash", why, equalities, filters, (*equalities, *filters))
    chosen = ordered[0] if ordered else ranges[0]
    filters = (*(t for t in usable if t is not chosen), *unequal)
    return Access(index, why, (chosen,), filters, (chosen, *filters))


_SELECTIVITY = ("band", "union", "comparison")  # what narrows most comes first


@dataclass(frozen=True, slots=True)
class _NewRows:
    """What is computed of new rows before any is stored: keys, which can match at all (None: all), nulls in keys."""

    keys: "dict[RangeTest, np.ndarray]"
    can: np.ndarray | None = None
    null_keys: int = 0


class _StoredSide:
    """The rows of one side that a window holds: for each test its keys, and perhaps an index."""

    def __init__(self, spec: JoinSpec, side: str) -> None:
        self.plan: SidePlan = spec.predicate.sides[side]
        self.access = choose_access(spec, side)
        self.conditions = spec.predicate.conditions[side]
        self.remainder = self.plan.remainder_with(self.access.applied)
        self.tests = tuple(dict.fromkeys((*self.access.probe, *self.access.filters)))
        scanned = self.access.index == "nested"
        # By key: tests of the remainder look at it again.
        kept = self.tests if scanned else dict.fromkeys((*self.access.filters, *self.remainder.tests))
        self.keys = {test: _native.RowKeys() for test in kept}
        self.index: Any = None if scanned else _native.Index(self.access.index)
        self.borrows_index = False  # the other role of a self-join keeps the index for both
        self.alive: Any = None  # RowKeys of 1 and 0, once a row that cannot match has been seen (scans only)
        self.bound = 0
        self.null_keys = 0

    @property
    def nbytes(self) -> int:
        """Bytes of keys and index."""
        parts = [*self.keys.values(), *([self.alive] if self.alive else []), *([self.index] if self.index else [])]
        return sum(part.nbytes for part in parts)

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

    def store(self, new: _NewRows, first: int, rows: int) -> None:
        """Take the new rows in."""
        keys, can = new.keys, new.can
        self.null_keys += new.null_keys
        for test, column in self.keys.items():
            column.append(keys[test])
        if self.index is None:
            if can is not None and self.alive is None:
                self.alive = _native.RowKeys()
                self.alive.start_at(self.bound)
                self.alive.append(np.ones(first - self.bound, np.uint64))
            if self.alive is not None:
                self.alive.append(np.ones(rows, np.uint64) if can is None else can.astype(np.uint64))
            return
        if self.borrows_index:
            return
        probed = [keys[test] for test in self.access.probe]
        key = probed[0] if len(probed) == 1 else _native.combine_keys(probed)
        numbers = np.arange(first, first + rows, dtype=np.int64)
        if can is None:
            self.index.insert(key, numbers)
        else:
            self.index.insert(key[can], numbers[can])

    def expire(self, bound: int) -> None:
        """Forget rows below a bound."""
        if bound <= self.bound:
            return
        self.bound = bound
        for column in (*self.keys.values(), *([self.alive] if self.alive else [])):
            column.expire(bound)
        if self.index is not None:
            self.index.expire(bound)

    def check(self) -> None:
        """Assert the invariants."""
        for part in (*self.keys.values(), *([self.alive] if self.alive else []), *([self.index] if self.index else [])):
            part.check()


def _and(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    return b if a is None else a if b is None else a & b


class _Probes:
    """The new tuples of one side looking for rows of the other: pairs of a few at a time, in order."""

    def __init__(
        self, target: _StoredSide, columns: Columns, ends: dict[RangeTest, Ends], row_lo: np.ndarray,
        row_hi: np.ndarray, rank: np.ndarray, first: int, total: int,
    ) -> None:  # fmt: skip
        self.target, self.columns, self.ends = target, columns, ends
        self.row_lo, self.row_hi = row_lo, row_hi
        self.rank, self.first, self.total = rank, first, total
        self.next = 0
        self.probe = self.row = _NO_TIMES
        self.probe_ends = self._index_ends()

    @property
    def frontier(self) -> int:
        """The rank below which every pair has been found."""
        return int(self.rank[self.next]) if self.next < len(self.rank) else self.total

    @property
    def done(self) -> bool:
        """True when nothing is left to find or to hand out."""
        return self.next >= len(self.rank) and len(self.row) == 0

    def _index_ends(self) -> tuple[np.ndarray, np.ndarray] | None:
        access = self.target.access
        if self.target.index is None:
            return None
        if len(access.probe) == 1:
            return self.ends[access.probe[0]]
        los, his = zip(*(self.ends[test] for test in access.probe), strict=True)
        nothing = np.logical_or.reduce([lo > hi for lo, hi in zip(los, his, strict=True)])
        key = _native.combine_keys(list(los))
        low, high = key.copy(), key
        low[nothing], high[nothing] = 1, 0
        return low, high

    def find(self, limit: int) -> None:
        """Find the pairs of the next probes, until there are about `limit` candidates."""
        target, begin, count = self.target, self.next, len(self.rank)
        if target.index is None:
            scanned = target.access.probe
            keys, los = [target.keys[t] for t in scanned], [self.ends[t][0] for t in scanned]
            his = [self.ends[t][1] for t in scanned]
            if target.alive is not None:
                ones = np.ones(count, np.uint64)
                keys, los, his = [*keys, target.alive], [*los, ones], [*his, ones]
            self.probe, self.row, self.next = _native.scan_rows(
                keys, los, his, self.row_lo, self.row_hi, begin, count, limit
            )
        else:
            assert self.probe_ends is not None
            lo, hi = self.probe_ends
            if lo.ndim == 2:
                self._find_union(lo, hi, limit)
            else:
                self.probe, self.row, self.next = target.index.probe(
                    lo, hi, self.row_lo, self.row_hi, begin, count, limit
                )
        for test in target.access.filters:
            lo, hi = self.ends[test]
            kept = _native.filter_pairs(self.probe, self.row, target.keys[test], lo, hi, test.negated)
            self.probe, self.row = self.probe[:kept], self.row[:kept]

    def _find_union(self, lo: np.ndarray, hi: np.ndarray, limit: int) -> None:
        """Probe once for each band, some thousand rows at a time; bring each row's finds into order."""
        bands, until = len(lo), min(self.next + UNION_PROBES, len(self.rank))
        mine = slice(self.next, until)
        low, high = (np.ascontiguousarray(x[:, mine].T).ravel() for x in (lo, hi))
        row_lo, row_hi = np.repeat(self.row_lo[mine], bands), np.repeat(self.row_hi[mine], bands)
        probe, row, upto = self.target.index.probe(low, high, row_lo, row_hi, 0, len(low), limit)
        answered = until - self.next if upto == len(low) else upto // bands
        if answered == 0:  # one row has more than `limit`: it is answered whole
            probe, row, upto = self.target.index.probe(low, high, row_lo, row_hi, 0, bands, 2**62)
            answered = 1
        probe = probe // bands + self.next
        whole = probe < self.next + answered
        probe, row = probe[whole], row[whole]
        order = np.lexsort((row, probe))
        self.probe, self.row = np.ascontiguousarray(probe[order]), np.ascontiguousarray(row[order])
        self.next += answered

    def unsure(self) -> np.ndarray:
        """Return the places of the pairs that rounding may have let through."""
        mask = np.zeros(len(self.row), bool)
        for test in self.target.remainder.tests:
            assert test.sure is not None
            lo, hi = self.columns.once(test, partial(test.sure, self.columns, len(self.rank)))
            _native.mark_outside(self.probe, self.row, self.target.keys[test], lo, hi, mask)
        return np.flatnonzero(mask)

    def keep(self, mask: np.ndarray) -> None:
        """Keep the pairs that the remainder of the predicate allows."""
        self.probe, self.row = self.probe[mask], self.row[mask]

    def take(self, before_rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Hand out the pairs whose probe stands before a place in the order."""
        if before_rank >= self.total:
            taken, self.probe, self.row = (self.probe, self.row), _NO_TIMES, _NO_TIMES
            return taken
        until = int(np.searchsorted(self.rank, before_rank))
        cut = int(np.searchsorted(self.probe, until))
        taken = self.probe[:cut], self.row[:cut]
        self.probe, self.row = self.probe[cut:], self.row[cut:]
        return taken


@dataclass
class Step:
    """New tuples of one side: batches in order, and their times in the join's domain (None without time)."""

    batches: Sequence[pa.RecordBatch]
    times: np.ndarray | None

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(batch.num_rows for batch in self.batches)


Slice = tuple[pa.RecordBatch, "np.ndarray | None"]


class JoinDriver:
    """Joins tuples that arrive in the total order. See the top of this file."""

    def __init__(self, spec: JoinSpec, columns: Sequence[str] | None = None, out_rows: int = 65_536) -> None:
        """`columns`: the output columns that are asked for (None: all)."""
        self.spec = spec
        self.out_rows = out_rows
        fields = output_fields(spec)
        self.outputs = [f for f in fields if columns is None or f[2].name in set(columns)]
        self.schema = pa.schema([field for _, _, field in self.outputs])
        self.stored = {side: _StoredSide(spec, side) for side in SIDES}
        self.logs = self._make_logs()
        self.windows = {side: _native.Window(*self._resolved(side)) for side in SIDES}
        self.times = {side: _native.RowTimes() for side in SIDES}
        self.rows = dict.fromkeys(SIDES, 0)
        self.last_time: int | None = None
        self.pairs = 0
        self.broken: str | None = None
        if spec.self_join and _same_storage(self.stored["left"], self.stored["right"]):
            self.stored["right"].index = self.stored["left"].index
            self.stored["right"].borrows_index = True
        self._columns = {side: {name: i for i, name in enumerate(self.logs[side].schema.names)} for side in SIDES}
        self._wanted = {side: [self._columns[side][c] for s, c, _ in self.outputs if s == side] for side in SIDES}

    def _resolved(self, side: str) -> tuple[str, int, int]:
        spec = self.spec
        return spec.windows[side].resolve(spec.time, spec.domains[side], spec.name)

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

    @property
    def nbytes(self) -> int:
        """Bytes that the windows hold: rows, times, keys and indexes."""
        logs = {id(log): log.nbytes for log in self.logs.values()}
        indexes = {id(s.index): s.index.nbytes for s in self.stored.values() if s.index}
        keys = sum(s.nbytes - (s.index.nbytes if s.index else 0) for s in self.stored.values())
        return sum(logs.values()) + sum(indexes.values()) + keys + sum(t.nbytes for t in self.times.values())

    def null_keys(self) -> dict[str, int]:
        """Return how many rows of each side had a null or NaN in a key, so that nothing could match them."""
        sides = SIDES[:1] if self.spec.self_join else SIDES
        return {side: self.stored[side].null_keys for side in sides}

    def held_rows(self) -> dict[str, int]:
        """Return how many rows each window's log holds."""
        return {side: len(self.logs[side]) for side in SIDES}

    def check(self) -> None:
        """Assert the invariants."""
        for side in SIDES:
            self.logs[side].check()
            self.stored[side].check()
            assert self.stored[side].bound <= self.rows[side]

    def step(self, left: Step, right: Step | None = None) -> Iterator[Slice]:
        """Join new tuples; yield the results in slices of at most `out_rows`, in order.

        Tuples must come after those of every earlier step. A self-join gets its one stream as `left`. The iterator
        must be used up before the next step.
        """
        if self.broken:
            raise DovetailError(f"{self.spec.name}: this join failed earlier and cannot go on: {self.broken}")
        steps = {"left": left, "right": left if self.spec.self_join else (right or Step((), _NO_TIMES))}
        # Infinities and NaN are values here, and what they mean is decided where they are used.
        with np.errstate(all="ignore"):
            probes = self._store(steps)
        self.broken = "the results of a step were not all taken"
        return self._answer(probes)

    def _answer(self, probes: "list[_Probes]") -> Iterator[Slice]:
        try:
            yield from self._results(probes)
        except Exception as error:
            self.broken = str(error)
            raise
        self.broken = None
        self._expire()

    def advance(self, time: int) -> None:
        """No later tuple has a time below this: expire what they cannot reach, also when no tuple comes."""
        time = min(max(time, INT64_MIN), INT64_MAX)  # a watermark may lie beyond every time there is
        if self.last_time is None or time > self.last_time:
            self.last_time = time
            self._expire()

    def _store(self, steps: dict[str, Step]) -> list[_Probes]:
        spec, rows = self.spec, {side: steps[side].rows for side in SIDES}
        columns = {side: _columns_of(steps[side].batches) for side in SIDES}
        prepared = {side: self.stored[side].prepare(columns[side], rows[side]) for side in SIDES}
        ends = {
            side: {
                test: test.ends(columns[side], rows[side]) if rows[side] else (_NO_KEYS, _NO_KEYS)
                for test in self.stored[OTHER[side]].tests
            }
            for side in SIDES
        }
        first = dict(self.rows)
        times = {side: self._times_of(steps[side], rows[side]) for side in SIDES}
        # From here on the step is being stored.
        self.broken = "a step was stored only in part"
        for side in SIDES:
            if self.windows[side].kind == "time":
                self.times[side].append(times[side])
            self.stored[side].store(prepared[side], first[side], rows[side])
            self.rows[side] += rows[side]
        for side in SIDES[:1] if spec.self_join else SIDES:
            log = self.logs[side]
            for batch in steps[side].batches:
                log.append(batch if batch.schema.names == log.schema.names else batch.select(log.schema.names))
        for side in SIDES:
            if rows[side] and spec.time is not None:
                newest = int(times[side][-1])
                self.last_time = newest if self.last_time is None else max(self.last_time, newest)
        total = rows["left"] if spec.self_join else rows["left"] + rows["right"]
        self._later_times = np.empty(total, np.int64)
        return [
            self._probes(side, columns[side], times, first, ends[side], prepared[side].can, total) for side in SIDES
        ]

    def _times_of(self, step: Step, rows: int) -> np.ndarray:
        # Without times all tuples of a step are as if at one time: the left ones first, then the right ones.
        return np.zeros(rows, np.int64) if step.times is None else step.times

    def _probes(
        self, side: str, columns: Columns, times: dict[str, np.ndarray], first: dict[str, int],
        ends: dict[RangeTest, Ends], can: np.ndarray | None, total: int,
    ) -> _Probes:  # fmt: skip
        other = OTHER[side]
        window, retained = self.windows[other], self.times[other]
        if self.spec.self_join:
            row_lo, row_hi = _native.own_bounds(times[side], first[side], window, retained)
            rank = np.arange(total, dtype=np.int64)
        else:
            row_lo, row_hi = _native.row_bounds(
                times[side], times[other], first[other], side == "right", window, retained
            )
            rank = row_hi - first[other]
            rank += np.arange(len(rank))
        self._later_times[rank] = times[side]
        if can is not None:
            row_hi = np.where(can, row_hi, row_lo)
        return _Probes(self.stored[other], columns, ends, row_lo, row_hi, rank, first[side], total)

    def _results(self, probes: list[_Probes]) -> Iterator[Slice]:
        left, right = probes
        if left.total == 0:
            return
        while not (left.done and right.done):
            for side, half in zip(SIDES, probes, strict=True):
                if len(half.row) == 0 and half.next < len(half.rank):
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
            self.pairs += len(later)
            if len(later) <= self.out_rows:
                yield from self._gather(left_rows, right_rows, later)
                continue
            for at in range(0, len(later), self.out_rows):
                part = slice(at, at + self.out_rows)
                yield from self._gather(left_rows[part], right_rows[part], later[part])

    def _decide(self, side: str, half: _Probes) -> None:
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

    def _gather(self, left_rows: np.ndarray, right_rows: np.ndarray, later: np.ndarray) -> Iterator[Slice]:
        rows = {"left": left_rows, "right": right_rows}
        columns: dict[str, list[pa.Array]] = {}
        try:
            for side in SIDES:
                columns[side] = self.logs[side].gather(self._wanted[side], rows[side])
        except OverflowError:
            if len(later) == 1:
                raise
            half = len(later) // 2
            for part in (slice(None, half), slice(half, None)):
                yield from self._gather(left_rows[part], right_rows[part], later[part])
            return
        arrays = [*columns["left"], *columns["right"]]
        times = self._later_times[later] if self.spec.time is not None else None
        yield record_batch(arrays, self.schema, len(later)), times

    def _expire(self) -> None:
        bounds = {
            side: _native.expiry_bound(self.windows[side], self.rows[side], self.last_time, self.times[side])
            for side in SIDES
        }
        shared = min(bounds.values())
        for side in SIDES:
            # In a self-join both roles read one log, and may share an index.
            bound = shared if self.spec.self_join else bounds[side]
            self.stored[side].expire(bound)
            self.times[side].expire(bound)
            self.logs[side].expire(bound)


def _same_storage(left: _StoredSide, right: _StoredSide) -> bool:
    """Tell whether both roles of a self-join would keep the same rows under the same keys."""

    if left.index is None or left.access.index != right.access.index:
        return False
    # In order: the key of an index on several equalities depends on it.
    if [test.key.name for test in left.access.probe] != [test.key.mirrored for test in right.access.probe]:
        return False
    # Rows with a null in any key, or that fail a condition, are not stored: the same ones must be missing.
    keys = {test.key.name for test in left.plan.tests}, {test.key.mirrored for test in right.plan.tests}
    conditions = {c.key for c in left.conditions}, {c.transposed().key for c in right.conditions}
    return keys[0] == keys[1] and conditions[0] == conditions[1]


def _columns_of(batches: Sequence[pa.RecordBatch]) -> Columns:
    def load(_side: str, name: str) -> pa.Array:
        if len(batches) == 1:
            return batches[0].column(name)
        return pa.concat_arrays([batch.column(name) for batch in batches])

    return Columns(load)


def record_batch(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Make a batch; also one that has rows and no columns."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["_"]).select([])


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
