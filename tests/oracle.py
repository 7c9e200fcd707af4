"""What a join over sliding windows means, written as loops over lists and nothing else.

This is the oracle: every other test that computes an expected result computes it here. It shares no
code with the library, knows no Arrow and no NumPy, and is slow on purpose. A reader should be able to
hold it beside docs/semantics.md, sections 1 to 3, and see that they say the same.

Words
-----
- A *row* is a dict of Python values. Times in it are ints, in ticks; a `Clock` says which column they
  are in and how much one tick is worth (seconds for timestamps and dates; 1 for integer columns, whose
  durations are in the column's own unit). Inside, a time is a Fraction, so no unit is ever too coarse.
- An *event* is a row with its time. A list of events is a stream in order: index is row number.
- `holds(left_row, right_row)` is the predicate, any Python function to a bool.

The functions compose: `read` makes a stream of rows, `union` and `join` make a stream of streams.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

LEFT, RIGHT = 0, 1
Row = dict
Holds = Callable[[Row, Row], bool]


@dataclass(frozen=True)
class Clock:
    """Where a stream's times stand, and what one tick of that column is worth."""

    column: str
    tick: Fraction = Fraction(1)

    def time(self, row: Row) -> Fraction:
        return row[self.column] * self.tick


@dataclass(frozen=True)
class Window:
    """Which earlier tuples q a tuple p may meet. Neither `rows` nor `span`: all of them."""

    rows: int | None = None
    span: Fraction | None = None
    slide: Fraction | int | None = None

    def holds(self, k: int, time_p: Fraction | None, row_q: int, time_q: Fraction | None) -> bool:
        """k tuples of q's stream came before p; is q, the one with number row_q, still inside?"""
        if self.rows is not None:
            return row_q >= self._stepped(k - self.rows)
        if self.span is not None:
            return time_q >= self._stepped(time_p - self.span)
        return True

    def _stepped(self, bound):
        return bound if self.slide is None else self.slide * math.ceil(Fraction(bound) / self.slide)


@dataclass(frozen=True)
class Event:
    """A row and the time that its stream gave it (None in a stream without time)."""

    time: Fraction | None
    row: Row


@dataclass(frozen=True)
class Pair:
    """One result: its time is the greater of both."""

    left: Event
    right: Event

    @property
    def time(self) -> Fraction | None:
        return None if self.left.time is None else max(self.left.time, self.right.time)


class Late(Exception):
    """A pushed row comes before a row of an earlier step."""

    def __init__(self, side: int, row: int, time: Fraction, before: Fraction) -> None:
        super().__init__(f"{('left', 'right')[side]} row {row}: {time} comes before {before}")
        self.side, self.row, self.time, self.before = side, row, time, before


def read(rows: Sequence[Row], clock: Clock | None = None, delay: Fraction | None = Fraction(0)):
    """Give (events in order, late rows in arrival order). With `delay=None` nothing is late."""
    if clock is None:
        return [Event(None, row) for row in rows], []
    events, late, greatest = [], [], None
    for row in rows:
        time = clock.time(row)
        if delay is not None and greatest is not None and time < greatest - delay:
            late.append(row)
        else:
            events.append(Event(time, row))
        greatest = time if greatest is None else max(greatest, time)
    return by_time(events), late


def by_time(events: Iterable[Event]) -> list[Event]:
    """Sort by time; equal times keep their position."""
    return sorted(events, key=lambda event: event.time)  # Python's sort is stable


def union(*streams: Sequence[Event]) -> list[Event]:
    """Order by time, then input, then position."""
    return by_time(event for stream in streams for event in stream)


def total_order(left: Sequence[Event], right: Sequence[Event]) -> list[tuple[int, Event]]:
    """Order both streams by time, then left before right, then position."""
    both = [(LEFT, event) for event in left] + [(RIGHT, event) for event in right]
    return sorted(both, key=lambda item: item[1].time)


def join(left: Sequence[Event], right: Sequence[Event], windows, holds: Holds) -> list[Pair]:
    """Join two streams with times. `windows` is (what is kept of the left, what is kept of the right)."""
    return [pair for _, pairs in _meet(total_order(left, right), windows, holds) for pair in pairs]


def self_join(stream: Sequence[Event], windows, holds: Holds) -> list[Pair]:
    """Join a stream with itself: (a, b) and (b, a) where each holds, never (a, a)."""
    return [pair for pairs in _meet_itself(stream, windows, holds) for pair in pairs]


def as_stream(pairs: Iterable[Pair], merge: Callable[[Row, Row], Row]) -> list[Event]:
    """Make a stream of a join's results, to be joined again: in the order in which they came."""
    return [Event(pair.time, merge(pair.left.row, pair.right.row)) for pair in pairs]


def push(steps, clocks, windows, holds: Holds) -> list[list[Pair]]:
    """Give the pairs of each step of two streams; `steps` is a list of (left rows, right rows).

    Raises `Late` where a row comes before a row of an earlier step.
    """
    order, lengths, last = [], [], None
    for step in steps:
        merged, last = _one_step(step, clocks, last)
        order += merged
        lengths.append(len(merged))
    met = _meet(order, windows, holds)
    return [[pair for _ in range(n) for pair in next(met)[1]] for n in lengths]


def push_itself(steps, clock: Clock | None, windows, holds: Holds) -> list[list[Pair]]:
    """Give the pairs of each step of a self-join; `steps` is a list of lists of rows."""
    order, lengths, last = [], [], None
    for rows in steps:
        merged, last = _one_step((rows, []), (clock, clock), last)
        order += [event for _, event in merged]
        lengths.append(len(merged))
    met = _meet_itself(order, windows, holds)
    return [[pair for _ in range(n) for pair in next(met)] for n in lengths]


def _one_step(step, clocks, last):
    """Order one step's rows; `last` is the greatest (time, side) of the steps before it."""
    left, right = (read(rows, clock, delay=None)[0] for rows, clock in zip(step, clocks, strict=True))
    if clocks[LEFT] is None:
        return [(LEFT, event) for event in left] + [(RIGHT, event) for event in right], None
    merged = total_order(left, right)
    for side, event in merged:
        if last is not None and (event.time, side) < last:
            raise Late(side, step[side].index(event.row), event.time, last[0])
    if merged:
        last = (merged[-1][1].time, merged[-1][0])
    return merged, last


def _meet(order, windows, holds):
    """For each tuple p in the order: (p, its pairs), in the order of the other tuple's row."""
    seen = ([], [])
    for side, p in order:
        other = 1 - side
        k, pairs = len(seen[other]), []
        for row_q, q in enumerate(seen[other]):
            if windows[other].holds(k, p.time, row_q, q.time):
                left, right = (p, q) if side == LEFT else (q, p)
                if holds(left.row, right.row):
                    pairs.append(Pair(left, right))
        seen[side].append(p)
        yield p, pairs


def _meet_itself(stream, windows, holds):
    """For each tuple p: its pairs with older ones, by the older one's row, p as the left first."""
    for k, p in enumerate(stream):
        pairs = []
        for row_q, q in enumerate(stream[:k]):
            if windows[RIGHT].holds(k, p.time, row_q, q.time) and holds(p.row, q.row):
                pairs.append(Pair(p, q))  # the older one stands on the right: the right's window keeps it
            if windows[LEFT].holds(k, p.time, row_q, q.time) and holds(q.row, p.row):
                pairs.append(Pair(q, p))
        yield pairs
