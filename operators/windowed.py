"""Aggregates over windows of event time, for each key: rows in, one row for each window and key out.

Problem: windows overlap, sessions end where a key falls silent, many keys are open at once, and a result must not
depend on how the stream was cut. Idea: rows come in the order of event time (late ones were set aside where they were
read), so a window is complete when the watermark has reached its end, and nothing is ever taken back. A row belongs to
one *piece*: a tumbling window is one, a sliding window is put together from the pieces (panes) that no window's end
cuts, a session is one that grows. A group (grouping.py) is a piece and a key.

Results come in the order of (end, start, first row of the group). The event time of a result is the last unit of its
window: so an hour's window over the results of minutes has each minute in its own hour.

Invariants: the watermark of results is that of the rows: a window that is not complete ends behind it. Nothing here is
done row by row in Python; what is done window by window is done for all that are complete at once.
Cost: O(1) a row and aggregate; a result of a sliding window O(panes that it covers); memory for each open piece and
key.
"""

__all__ = ["WINDOW_END", "WINDOW_START", "Windowed", "time_type", "window_schema"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..batch import END, START, Batch, Watermark, record_batch
from ..errors import SchemaError, TimeError
from ..state import _native
from .aggregates import Fold, make_fold, result_type
from .binding import Bound
from .event_windows import Stretch
from .expressions import Aggregate
from .grouping import Groups
from .steps import Compute
from .times import INT64_MAX, INT64_MIN, TICKS_PER_SECOND, TimeDomain

WINDOW_START, WINDOW_END = "window_start", "window_end"


@dataclass(frozen=True)
class Made:
    """One aggregate of the output: how it was written, and its column or expression with its type."""

    aggregate: Aggregate
    of: Bound | str | None
    given: pa.DataType | None


def time_type(domain: TimeDomain) -> pa.DataType:
    """Return the type in which a stream's event time is shown."""
    if domain.ticks is None:
        return pa.int64()
    if domain.ticks < 1:
        return pa.date32()
    unit = next(name for name, ticks in TICKS_PER_SECOND.items() if ticks == domain.ticks)
    return pa.timestamp(unit, "UTC" if domain.zoned else None)


def window_schema(keys: pa.Schema, made: dict[str, Made], domain: TimeDomain, where: str) -> pa.Schema:
    """Return the schema of results."""
    kind = time_type(domain)
    fields = [*keys, pa.field(WINDOW_START, kind), pa.field(WINDOW_END, kind)]
    for name, each in made.items():
        fields.append(pa.field(name, result_type(each.aggregate, each.given, where)))
    names = [field.name for field in fields]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise SchemaError(f"{where}: two columns of the result are named {doubled!r}; rename a key or an aggregate")
    return pa.schema(fields)


class Windowed:
    """Takes batches in order; hands out the windows that are complete."""

    def __init__(
        self, keys: Sequence[str], stretch: Stretch, made: dict[str, Made], given: pa.Schema, domain: TimeDomain,
        where: str,
    ) -> None:  # fmt: skip
        self.stretch, self.domain, self.where = stretch, domain, where
        self.key_names = list(keys)
        self.schema = window_schema(pa.schema([given.field(name) for name in keys]), made, domain, where)
        self.made = made
        computed = {name: each for name, each in made.items() if each.of is not None}
        self.compute = Compute(
            pa.schema([pa.field(name, each.given) for name, each in computed.items()]),
            {name: each.of for name, each in computed.items() if each.of is not None},
            where,
        )
        folds = [make_fold(name, each.aggregate, each.given, given, where) for name, each in made.items()]
        self.folds: list[Fold] = folds
        self.groups = Groups(pa.schema([given.field(name) for name in keys]), folds)
        self.over = np.empty(0, bool)  # which groups are; of the newest ones nothing is known yet
        self.complete: int | None = None  # windows that end up to here are
        self.sessions = _Sessions(stretch.gap) if stretch.gap else None

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self.groups.nbytes + self.over.nbytes + (self.sessions.nbytes if self.sessions else 0)

    def take(self, batch: Batch) -> tuple[pa.RecordBatch, np.ndarray] | None:
        """Take rows; return the results that are complete with their times, in order."""
        if batch.num_rows:
            assert batch.times is not None
            self._fold(batch.data, batch.times)
        return self._results(batch.watermark)

    def snapshot(self) -> dict[str, Any]:
        """Return what it remembers."""
        known: dict[str, Any] = {"groups": self.groups.snapshot(), "over": self.over.copy(), "complete": self.complete}
        if self.sessions is not None:
            known["sessions"] = self.sessions.snapshot()
        return known

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from there."""
        self.groups.restore(known["groups"])
        self.over, self.complete = known["over"].copy(), known["complete"]
        if self.sessions is not None:
            self.sessions.restore(known["sessions"])

    def _fold(self, data: pa.RecordBatch, times: np.ndarray) -> None:
        self._check_room(times)
        keys = self.groups.number_keys(data.select(self.key_names))
        computed = self.compute(Batch(data, None, START)).data
        columns = [
            computed.column(name) if each.of is not None
            else data.select(list(each.aggregate.columns)) if each.aggregate.fn is not None
            else None
            for name, each in self.made.items()
        ]  # fmt: skip
        if self.sessions is None:
            pane = self.stretch.pane
            self.groups.take(times // pane * pane, keys, columns)
        else:
            groups = self.groups.take(self.sessions.starts(times, keys, len(self.groups.keys)), keys, columns)
            self.sessions.seen(groups, times, len(self.groups))

    def _check_room(self, times: np.ndarray) -> None:
        """Refuse a time so near the end of all times that its window's end is behind that."""
        first, last, reach = int(times[0]), int(times[-1]), self.stretch.reach
        most = 2**31 - 1 if time_type(self.domain) == pa.date32() else INT64_MAX
        if first - reach >= -most - 1 and last + reach <= most:
            return
        far = last if last + reach > most else first
        raise TimeError(f"{self.where}: the window of a row at {self.domain.show(far)} reaches beyond all times")

    def _results(self, watermark: Watermark) -> tuple[pa.RecordBatch, np.ndarray] | None:
        if watermark == START or len(self.groups) == 0:
            return None
        reach = self.stretch.reach
        until = INT64_MAX if watermark == END else min(max(int(watermark), INT64_MIN + reach), INT64_MAX)
        found = self._sliding(until) if self.stretch.size != self.stretch.every else self._whole(until)
        if found is None:
            return None
        start, end, key, aggregates = found
        kind = time_type(self.domain)
        columns = [*self.groups.key_columns(key), _times(start, kind), _times(end, kind), *aggregates]
        data = record_batch(columns, self.schema, len(start))
        self._forget()
        return data, end - 1

    def _whole(self, until: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[pa.Array]] | None:
        """Windows that are one piece each: tumbling ones and sessions."""
        groups = self.groups
        self.over = np.concatenate([self.over, np.zeros(len(groups) - len(self.over), bool)])
        ends = groups.start + self.stretch.size if self.sessions is None else self.sessions.ends()
        done = np.flatnonzero(~self.over & (ends <= until))
        if len(done) == 0:
            return None
        self.over[done] = True
        # Groups come into being in the order of their first rows; pieces of equal length end in that order too.
        if self.sessions is not None:
            done = done[np.lexsort((groups.first_row[done], groups.start[done], ends[done]))]
        return groups.start[done], ends[done], groups.key[done], [fold.finish(done) for fold in self.folds]

    def _sliding(self, until: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[pa.Array]] | None:
        """Windows of several panes: those that became complete, from the groups of their panes."""
        groups, (size, every, pane) = self.groups, (self.stretch.size, self.stretch.every, self.stretch.pane)
        # Window w begins at w · every. A pane is in those that have begun, from the first that ends behind it.
        first = -((size - groups.start - pane) // every)
        if self.complete is not None:
            first = np.maximum(first, (self.complete - size) // every + 1)
        last = np.minimum(groups.start // every, (until - size) // every)
        self.complete = until if self.complete is None else max(until, self.complete)
        counts = np.maximum(last - first + 1, 0)
        self.over = (groups.start // every) * every + size <= self.complete
        total = int(counts.sum())
        if total == 0:
            return None
        group = np.repeat(np.arange(len(groups)), counts)
        window = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(total)
        # In the order of (window, group), so that results and what they are put together of are in order.
        order = np.argsort(window, kind="stable")
        group, window = group[order], window[order]
        key = groups.key[group]
        result, new = _native.KeyNumbers().of_words(np.stack([window, key], axis=1).view(np.uint64))
        n = len(new)
        folds = [fold.merged(group, result, n) for fold in self.folds]
        start = window[new] * every
        return start, start + size, key[new], [fold.finish(np.arange(n)) for fold in folds]

    def _forget(self) -> None:
        for fold in self.folds:
            fold.forget(self.over)
        alive = ~self.over
        used = self.groups.keep(alive)
        if used is None:
            return
        if self.sessions is not None:
            self.sessions.keep(np.flatnonzero(alive), used)
        self.over = np.zeros(len(self.groups), bool)


class _Sessions:
    """Where the session of each key stands."""

    def __init__(self, gap: int) -> None:
        self.gap = gap
        self.start = self.last = np.empty(0, np.int64)  # by key: of the session that came last
        self.known = np.empty(0, bool)
        self.newest = np.empty(0, np.int64)  # by group: the time of its last row

    @property
    def nbytes(self) -> int:
        return self.start.nbytes + self.last.nbytes + self.known.nbytes + self.newest.nbytes

    def snapshot(self) -> list[np.ndarray]:
        return [array.copy() for array in (self.start, self.last, self.known, self.newest)]

    def restore(self, known: list[np.ndarray]) -> None:
        self.start, self.last, self.known, self.newest = (array.copy() for array in known)

    def starts(self, times: np.ndarray, keys: np.ndarray, count: int) -> np.ndarray:
        """Return for each row where its session began."""
        count = max(count, 1)
        if count > len(self.start):
            more = max(count, 2 * len(self.start)) - len(self.start)
            self.start, self.last = (np.append(x, np.zeros(more, np.int64)) for x in (self.start, self.last))
            self.known = np.append(self.known, np.zeros(more, bool))
        order = np.argsort(keys, kind="stable")
        key, time = keys[order], times[order]
        first = np.ones(len(key), bool)  # of its key, in this batch
        first[1:] = key[1:] != key[:-1]
        before = np.empty_like(time)
        before[1:] = time[:-1]
        before[first] = self.last[key[first]]
        begins = (time.view(np.uint64) - before.view(np.uint64)) >= np.uint64(self.gap)
        begins[first] |= ~self.known[key[first]]
        began = np.where(begins, time, self.start[key])
        at = np.maximum.accumulate(np.where(begins | first, np.arange(len(key)), 0))
        start = began[at]
        last = np.append(first[1:], True)
        self.start[key[last]], self.last[key[last]], self.known[key[last]] = start[last], time[last], True
        out = np.empty_like(start)
        out[order] = start
        return out

    def seen(self, groups: np.ndarray, times: np.ndarray, count: int) -> None:
        """Note when the groups' last rows were."""
        self.newest = np.append(self.newest, np.zeros(count - len(self.newest), np.int64))
        self.newest[groups] = times  # of several rows the last one stays

    def ends(self) -> np.ndarray:
        return self.newest + self.gap

    def keep(self, groups: np.ndarray, keys: np.ndarray) -> None:
        """Forget all but these groups and keys."""
        self.newest = self.newest[groups]
        self.start, self.last, self.known = self.start[keys], self.last[keys], self.known[keys]


def _times(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    if kind == pa.date32():
        return pa.array(values.astype(np.int32), pa.int32()).view(kind)
    return pa.array(values, pa.int64()).view(kind)
