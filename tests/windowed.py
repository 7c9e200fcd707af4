"""What windows with keys mean, written as loops over lists and nothing else.

This is the oracle of windowed aggregates, beside oracle.py, which is that of joins. It shares no code with the
library, knows no Arrow and no NumPy, and is slow on purpose.

Words
-----
- An *event* is a row with its time (oracle.Event). Here a time is an int: a count of units of the stream's event
  time. A list of events is a stream in order, late rows already set aside (oracle.read does that).
- A *group* is what one result comes from: the rows of one key in one window.
- An aggregate is any function from the rows of a group, in order, to a value. `counted`, `total` and the others make
  such functions from a function of one row, which gives None for null.

Decimals are Fractions in here, so that sums of them are exact.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from oracle import Event, Row

PIECE = "the piece of its window"
"""Beside the columns of a row in a window: which piece of time it is in, where windows overlap."""

Of = Callable[[Row], Any]
Aggregate = Callable[[list[Row]], Any]


# Windows


@dataclass(frozen=True)
class Tumbling:
    """[k * size, (k + 1) * size), for every integer k."""

    size: int

    @property
    def piece(self) -> int:
        return self.size

    def around(self, time: int) -> list[tuple[int, int]]:
        start = time // self.size * self.size  # rounds down, below zero too
        return [(start, start + self.size)]


@dataclass(frozen=True)
class Sliding:
    """[k * every, k * every + size), for every integer k."""

    size: int
    every: int

    @property
    def piece(self) -> int:
        """The longest stretch of time that no window's end cuts."""
        return math.gcd(self.size, self.every)

    def around(self, time: int) -> list[tuple[int, int]]:
        windows, start = [], time // self.every * self.every  # the last one that begins at the time or before it
        while start + self.size > time:
            windows.append((start, start + self.size))
            start -= self.every
        return windows


@dataclass(frozen=True)
class Session:
    """From a key's row to `gap` after the last one of those that follow it, each less than `gap` after the other."""

    gap: int


Window = Tumbling | Sliding | Session


# Groups


@dataclass
class Group:
    """The rows of one key in one window; `place` is where in the stream the first of them stands."""

    start: int
    end: int
    place: int
    rows: list[Row] = field(default_factory=list)


def results(
    events: Sequence[Event], window: Window, keys: Sequence[str], aggregates: dict[str, Aggregate]
) -> list[Event]:
    """Give one result for each group, in order; a result's time is the last unit of its window."""
    groups = _sessions(events, window, keys) if isinstance(window, Session) else _by_clock(events, window, keys)
    groups.sort(key=lambda group: (group.end, group.start, group.place))
    return [Event(group.end - 1, _result(group, keys, aggregates)) for group in groups]


def _by_clock(events: Sequence[Event], window: Tumbling | Sliding, keys: Sequence[str]) -> list[Group]:
    groups: dict[tuple, Group] = {}
    for place, event in enumerate(events):
        for start, end in window.around(event.time):
            group = groups.setdefault((start, end, _key(event.row, keys)), Group(start, end, place))
            group.rows.append({**event.row, PIECE: event.time // window.piece})
    return list(groups.values())


def _sessions(events: Sequence[Event], window: Session, keys: Sequence[str]) -> list[Group]:
    groups: list[Group] = []
    latest: dict[tuple, Group] = {}  # of each key
    for place, event in enumerate(events):
        key = _key(event.row, keys)
        if key not in latest or event.time >= latest[key].end:  # the end is `gap` after the row before it
            latest[key] = Group(event.time, event.time, place)
            groups.append(latest[key])
        latest[key].rows.append(event.row)
        latest[key].end = event.time + window.gap
    return groups


def _key(row: Row, keys: Sequence[str]) -> tuple:
    """What tells groups apart: null is a key of its own, every NaN is the same one, and -0.0 equals 0.0."""
    return tuple("NaN" if isinstance(row[key], float) and math.isnan(row[key]) else row[key] for key in keys)


def _result(group: Group, keys: Sequence[str], aggregates: dict[str, Aggregate]) -> Row:
    first = {key: group.rows[0][key] for key in keys}
    made = {name: aggregate(group.rows) for name, aggregate in aggregates.items()}
    return {**first, "window_start": group.start, "window_end": group.end, **made}


# Aggregates


def count(rows: list[Row]) -> int:
    return len(rows)


def counted(of: Of) -> Aggregate:
    return lambda rows: len(_present(rows, of))


def total(of: Of) -> Aggregate:
    """Add in the order of rows, piece by piece: exact for ints and Fractions, and for floats what that order gives."""

    def aggregate(rows: list[Row]) -> Any:
        pieces = [_added(_present(list(piece), of)) for _, piece in groupby(rows, lambda row: row.get(PIECE))]
        return _added([piece for piece in pieces if piece is not None])

    return aggregate


def mean(of: Of) -> Aggregate:
    def aggregate(rows: list[Row]) -> float | None:
        count = len(_present(rows, of))
        return float(total(of)(rows) / count) if count else None  # Python divides ints to the nearest float

    return aggregate


def least(of: Of) -> Aggregate:
    return lambda rows: min(_numbers(rows, of), default=None)


def greatest(of: Of) -> Aggregate:
    return lambda rows: max(_numbers(rows, of), default=None)


def _present(rows: list[Row], of: Of) -> list:
    return [value for value in map(of, rows) if value is not None]


def _numbers(rows: list[Row], of: Of) -> list:
    return [value for value in _present(rows, of) if value == value]  # NaN is not itself


def _added(values: list) -> Any:
    if not values:
        return None
    sum_so_far = values[0]
    for value in values[1:]:
        sum_so_far = sum_so_far + value
    return sum_so_far
