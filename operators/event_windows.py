"""Windows for aggregates: stretches of event time that begin, end and are then done.

`tumbling("1min")` cuts time into pieces, `sliding("10min", every="1min")` lets them overlap, `session("30s")` ends a
piece where a key has been silent. All are half-open, [start, end), so that a row at the end belongs to what follows.

These are not the windows of a join (windows.py), which belong to a tuple and end with it.
"""

__all__ = ["EventWindow", "Stretch", "session", "sliding", "tumbling"]

from dataclasses import dataclass
from fractions import Fraction
from math import gcd

import numpy as np

from ..errors import WindowError
from .expressions import caller
from .times import TimeDomain, parse_duration


@dataclass(frozen=True)
class Stretch:
    """A window in units of a stream's time: windows begin every `every`, and last `size`; or `gap` ends a session.

    A *pane* is the longest piece of time that no window's end cuts: what all windows are put together of.
    """

    size: int = 0
    every: int = 0
    gap: int = 0

    @property
    def pane(self) -> int:
        """Units of a pane."""
        return gcd(self.size, self.every)

    @property
    def reach(self) -> int:
        """How far from a row's time the ends of its windows may lie."""
        return self.gap + self.size + self.every


@dataclass(frozen=True, repr=False)
class EventWindow:
    """A window as it was written; `resolve` fits it to a stream's time. Durations are seconds, or units."""

    kind: str
    size: Fraction | int
    every: Fraction | int
    in_units: bool
    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def resolve(self, domain: TimeDomain | None, where: str) -> Stretch:
        """Return it in units of a stream's event time."""
        if domain is None:
            raise WindowError(
                f"{where}: {self} measures event time, and this stream has none; read its source with time=…"
            )
        if self.in_units != (domain.ticks is None):
            hint = (
                f"write dt.{self.kind}(time=…), in that column's unit"
                if domain.ticks is None
                else f'write a duration, as in dt.{self.kind}("10min")'
            )
            raise WindowError(f"{where}: {self} does not fit an event time of {domain.describe()}; {hint}")
        size, every = (length * (domain.ticks or 1) for length in (self.size, self.every))
        if size.denominator != 1 or every.denominator != 1:
            raise WindowError(
                f"{where}: {self} is not a whole number of units of {domain.describe()}; give one that is"
            )
        if max(size, every) >= 2**62:
            raise WindowError(f"{where}: {self} is longer than {domain.describe()} can count")
        if self.kind == "session":
            return Stretch(gap=int(size))
        return Stretch(int(size), int(every))


def tumbling(size: object = None, *, time: object = None) -> EventWindow:
    """Return windows that follow one another, counted from 1970-01-01 UTC, or from 0.

    >>> tumbling("1min"), tumbling(time=60)
    (tumbling('1min'), tumbling(time=60))
    >>> tumbling(60)
    Traceback (most recent call last):
        ...
    dovetail.errors.WindowError: tumbling(60): 60 of what? Write a duration as in "10min", or time=60 in the unit of \
an integer time column
    """
    text = _text("tumbling", size, time)
    length = _length(size, time, text)
    return EventWindow("tumbling", length, length, time is not None, text)


def sliding(size: object = None, *, every: object, time: object = None) -> EventWindow:
    """Return windows of one size that begin every so often, counted from 1970-01-01 UTC, or from 0.

    >>> sliding("10min", every="1min"), sliding(time=600, every=60)
    (sliding('10min', every='1min'), sliding(time=600, every=60))
    """
    text = _text("sliding", size, time)[:-1] + f", every={every!r})"
    length = _length(size, time, text)
    step = _length(None, every, text) if time is not None else _length(every, None, text)
    if step > length:
        raise WindowError(f"{text}: rows between two windows would be in none; every is at most the size ({caller()})")
    return EventWindow("sliding", length, step, time is not None, text)


def session(gap: object = None, *, time: object = None) -> EventWindow:
    """Return windows that last as long as each row of a key comes less than `gap` after the one before.

    >>> session("30s"), session(time=30)
    (session('30s'), session(time=30))
    """
    text = _text("session", gap, time)
    length = _length(gap, time, text)
    return EventWindow("session", length, length, time is not None, text)


def _text(kind: str, size: object, time: object) -> str:
    if (size is None) == (time is None):
        raise WindowError(f'{kind}: give one length, as in {kind}("10min") or {kind}(time=600) ({caller()})')
    return f"{kind}({size!r})" if time is None else f"{kind}(time={time!r})"


def _length(size: object, time: object, text: str) -> Fraction | int:
    if time is None:
        if isinstance(size, int | float | np.number) and not isinstance(size, np.timedelta64):
            raise WindowError(
                f'{text}: {size!r} of what? Write a duration as in "10min", or time={size!r} in the unit of an '
                "integer time column"
            )
        length: Fraction | int = parse_duration(size, text)
    elif isinstance(time, bool | np.timedelta64) or not isinstance(time, int | np.integer):
        raise WindowError(f"{text}: {time!r} is not a whole number of units of an integer time column ({caller()})")
    else:
        length = int(time)
    if length <= 0:
        raise WindowError(f"{text}: a window must be longer than nothing ({caller()})")
    return length
