"""Order: which rows of a source are late, and when rows of several streams may go on.

Two pure machines. Neither reads a clock.

`SourceOrder` turns what one source brings into a stream in time order. A tuple is late if its time is before the
greatest time that its source showed before it, minus the delay; that is decided tuple by tuple, so that it does not
depend on how the source cuts its batches. Within the delay rows are put in order (stable: equal times keep their
position). The stream's watermark is the greatest time minus the delay.

`Merger` holds rows of several ordered streams until nothing can come any more that would stand before them. The
total order is (time, input, position): a row of input i goes on when its time is at most the watermark of i and of
every later input, and *below* the watermark of every earlier one, which may still bring a row of that very time.

Invariants: rows leave in order; no row leaves before one that is to come could stand before it; watermarks never
fall; held rows are exactly those above the bound.
"""

__all__ = ["Merger", "SourceOrder"]

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ..batch import END, START, Batch, Watermark, concat, keep_rows, take_rows
from ..errors import TimeError
from ..state import _native
from .numbering import Step
from .times import INT64_MAX, INT64_MIN, Duration, TimeDomain, rescale, times_of


@dataclass
class _Held:
    """Rows in time order of which the first `taken` have gone on."""

    data: pa.RecordBatch
    times: np.ndarray
    taken: int = 0

    def until(self, bound: Watermark) -> int:
        """Return the place behind the last row with a time at most `bound`."""
        if bound > INT64_MAX:
            return len(self.times)
        if bound < INT64_MIN:
            return self.taken
        return int(np.searchsorted(self.times, bound, side="right"))

    def release(self, bound: Watermark) -> "tuple[pa.RecordBatch, np.ndarray] | None":
        """Hand out the rows with a time at most `bound`."""
        until = self.until(bound)
        if until <= self.taken:
            return None
        part = slice(self.taken, until)
        data = self.data.slice(self.taken, until - self.taken)
        self.taken = until
        return data, self.times[part]

    @property
    def done(self) -> bool:
        return self.taken == len(self.times)

    @property
    def nbytes(self) -> int:
        rows = len(self.times)
        return self.size * (rows - self.taken) // max(1, rows)

    def snapshot(self) -> dict[str, Any]:
        """Return the rows that have not gone on."""
        return {"data": self.data.slice(self.taken), "times": self.times[self.taken :]}

    @cached_property
    def size(self) -> int:
        """Bytes of all its rows, also those that have gone on."""
        return self.data.nbytes + 8 * len(self.times)


class SourceOrder:
    """Puts one source's rows in order, and sets the late ones aside.

    Parameters
    ----------
    name, column, domain
        Of the source and its time column.
    delay
        How far behind the greatest time a row may come.
    max_ahead
        How far before the greatest time so far a row may come: one beyond it is an error, as it would hold up (or
        make late) everything that is to come. None: any distance.

    Examples
    --------
    >>> order = SourceOrder("s", "t", TimeDomain(None), delay=2)
    >>> ready, late = order.take(pa.record_batch({"t": [5, 3, 1, 9]}))
    >>> ready.data.to_pydict(), ready.watermark, late.to_pydict()
    ({'t': [3, 5]}, 7, {'t': [1]})
    >>> order.end().data.to_pydict()
    {'t': [9]}
    """

    def __init__(
        self, name: str, column: str, domain: TimeDomain, delay: Duration = 0, max_ahead: Duration | None = None
    ) -> None:
        self.name, self.column, self.domain = name, column, domain
        self.delay = domain.whole(delay)
        self.max_ahead = None if max_ahead is None else domain.whole(max_ahead)
        self.first: int | None = None  # the time of the first row
        self.greatest: int | None = None
        self.floor: Watermark = START  # what an idle source has promised; rows below it are late
        self.rows = 0
        self.held: list[_Held] = []

    @property
    def watermark(self) -> Watermark:
        """No later row that is not late has a time below this."""
        own = START if self.greatest is None else self.greatest - self.delay
        return max(own, self.floor)

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that wait for their turn."""
        return sum(held.nbytes for held in self.held)

    def advance(self, floor: Watermark) -> Batch | None:
        """Promise, on behalf of a source that is silent, that nothing below `floor` will come in time."""
        if floor <= self.watermark:
            return None
        self.floor = floor
        return self._release(None)

    def take(self, data: pa.RecordBatch) -> tuple[Batch, pa.RecordBatch | None]:
        """Return the rows whose turn has come, with the watermark; and the late ones, if any."""
        where = f"source {self.name!r}, time column {self.column!r}"
        times = times_of(data.column(self.column), where, self.rows)
        self._refuse_ahead(times, where)
        if self.first is None and len(times):
            self.first = int(times[0])
        # No two times are further apart than 64 bits can say: a longer delay makes nothing late.
        late, ascending, self.greatest = _native.find_late(times, min(self.delay, 2**64 - 1), self.greatest)
        if self.floor >= INT64_MIN and len(times):
            # Past all times there are, a bound of 64 bits would let the greatest one through.
            below = times < self.floor if self.floor <= INT64_MAX else np.ones(len(times), bool)
            late = below if late is None else late | below
            late = late if late.any() else None
        self.rows += len(times)
        aside = None
        if late is not None:
            aside = keep_rows(data, late)
            data, times = keep_rows(data, ~late), times[~late]
        if not ascending:
            order = np.argsort(times, kind="stable")
            data, times = take_rows(data, order), times[order]
        return self._release(_Held(data, times)), aside

    def end(self) -> Batch:
        """Return what is left, with a watermark past everything."""
        self.floor = END
        return self._release(None)

    def snapshot(self) -> dict[str, Any]:
        """Return what it remembers."""
        return {
            "first": self.first, "greatest": self.greatest, "floor": self.floor, "rows": self.rows,
            "held": [held.snapshot() for held in self.held],
        }  # fmt: skip

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from there."""
        self.first, self.greatest, self.floor = known["first"], known["greatest"], known["floor"]
        self.rows, self.held = known["rows"], [_Held(**held) for held in known["held"]]

    def check(self) -> None:
        """Assert the invariants."""
        for held in self.held:
            assert not held.done
            assert held.times[held.taken] > self.watermark, "a row was held that should have gone on"

    def _refuse_ahead(self, times: np.ndarray, where: str) -> None:
        if self.max_ahead is None or len(times) == 0:
            return
        before = np.maximum.accumulate(times)
        known = self.greatest if self.greatest is not None else int(times[0])
        clock = np.maximum(np.concatenate([[known], before[:-1]]), known)
        # In Python's integers where 64 bits would not hold the sum.
        if int(clock.max()) > 2**63 - 1 - self.max_ahead:
            clock = clock.astype(object)
        ahead = np.flatnonzero(np.asarray(times > clock + self.max_ahead, bool))
        if len(ahead):
            row = int(ahead[0])
            raise TimeError(
                f"{where}: row {self.rows + row:,} has the time {self.domain.show(int(times[row]))}, further than "
                f"max_ahead past {self.domain.show(int(clock[row]))}, the greatest before it; "
                "mend the row, or allow a larger max_ahead"
            )

    def _release(self, fresh: _Held | None) -> Batch:
        mark = self.watermark
        if fresh is not None and not self.held and (not len(fresh.times) or fresh.times[-1] <= mark):
            return Batch(fresh.data, fresh.times, mark)
        if fresh is not None and len(fresh.times):
            self.held.append(fresh)
        parts = [part for part in (held.release(mark) for held in self.held) if part is not None]
        self.held = [held for held in self.held if not held.done]
        if len(self.held) > 64:
            self._join_held()
        if not parts:
            nothing = fresh.data.slice(0, 0) if fresh is not None else None
            return Batch(nothing, np.empty(0, np.int64), mark)
        data, times = _merged(parts)
        return Batch(data, times, mark)

    def _join_held(self) -> None:
        """Keep the number of held pieces small, so that a release does not look at thousands."""
        data, times = _merged([(h.data.slice(h.taken), h.times[h.taken :]) for h in self.held])
        self.held = [_Held(data, times)]


def _merged(parts: Sequence[tuple[pa.RecordBatch, np.ndarray]]) -> tuple[pa.RecordBatch, np.ndarray]:
    """Merge pieces that are each in order; among equal times earlier pieces come first."""
    if len(parts) == 1:
        return parts[0]
    data = concat([data for data, _ in parts])
    times = np.concatenate([times for _, times in parts])
    if np.all(times[1:] >= times[:-1]):
        return data, times
    order = np.argsort(times, kind="stable")
    return take_rows(data, order), times[order]


class Merger:
    """Holds rows of several ordered streams back until their turn in the total order.

    Parameters
    ----------
    domains
        The time domain of each input.
    time
        The domain in which they are compared, at least as fine as each.
    where
        For messages.

    Examples
    --------
    >>> merger = Merger([TimeDomain(None)] * 2, TimeDomain(None), "join 'j'")
    >>> rows = pa.record_batch({"t": [1, 2]})
    >>> merger.put(0, Batch(rows, np.array([1, 2]), 2))
    >>> [step.rows for step in merger.release()]
    [0, 0]
    >>> merger.put(1, Batch(rows, np.array([1, 2]), 2))
    >>> [step.rows for step in merger.release()]  # the right 2 waits: a left 2 may still come
    [2, 1]
    """

    def __init__(self, domains: Sequence[TimeDomain], time: TimeDomain, where: str) -> None:
        self.domains, self.time, self.where = list(domains), time, where
        self.watermarks: list[Watermark] = [START] * len(domains)
        self.held: list[deque[_Held]] = [deque() for _ in domains]
        self._size = 0  # of all that is held, with what has gone on of the first of each input

    @property
    def watermark(self) -> Watermark:
        """No row that is still to leave has a time below this."""
        return min(self.watermarks)

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that wait for another input."""
        gone = sum(queue[0].size - queue[0].nbytes for queue in self.held if queue)
        return self._size - gone

    def put(self, i: int, batch: Batch) -> None:
        """Take a batch of input i."""
        mark = self._in_time(i, batch.watermark)
        if mark < self.watermarks[i]:
            raise AssertionError(f"{self.where}: the watermark of input {i} fell from {self.watermarks[i]} to {mark}")
        self.watermarks[i] = mark
        if batch.num_rows:
            assert batch.times is not None
            times = rescale(batch.times, self.domains[i], self.time, self.where)
            self.held[i].append(_Held(batch.data, times))
            self._size += self.held[i][-1].size

    def can_release(self, rows: int) -> bool:
        """Tell whether the turn of so many rows has come."""
        for i, queue in enumerate(self.held):
            bound = self._bound(i)
            for held in queue:
                rows -= max(0, held.until(bound) - held.taken)
                if rows <= 0:
                    return True
                if held.times[-1] > bound:
                    break
        return rows <= 0

    def release(self) -> list[Step]:
        """Return, for each input, the rows whose turn has come."""
        steps = []
        for i, queue in enumerate(self.held):
            bound = self._bound(i)
            batches, times = [], []
            while queue:
                part = queue[0].release(bound)
                if part is not None:
                    batches.append(part[0])
                    times.append(part[1])
                if not queue[0].done:
                    break
                self._size -= queue.popleft().size
            joined = times[0] if len(times) == 1 else np.concatenate(times) if times else np.empty(0, np.int64)
            steps.append(Step(batches, joined))
        return steps

    def snapshot(self) -> dict[str, Any]:
        """Return what it remembers."""
        return {
            "watermarks": list(self.watermarks),
            "held": [[held.snapshot() for held in queue] for queue in self.held],
        }

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from there."""
        self.watermarks = list(known["watermarks"])
        self.held = [deque(_Held(**held) for held in queue) for queue in known["held"]]
        self._size = sum(held.size for queue in self.held for held in queue)

    def _bound(self, i: int) -> Watermark:
        """The greatest time with which a row of input i may go on."""
        earlier = min(self.watermarks[:i], default=END)
        return min(*self.watermarks[i:], earlier - 1, END)

    def _in_time(self, i: int, mark: Watermark) -> Watermark:
        source, target = self.domains[i].ticks, self.time.ticks
        if source is None or target is None or math.isinf(mark):
            return mark
        return int(mark) * int(target / source)
