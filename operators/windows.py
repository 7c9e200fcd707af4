"""Windows of a join: which earlier rows of a stream a newer tuple of the other stream may meet.

`last(n)` counts rows, `last("10min")` and `last(time=300)` measure time, `last(None)` keeps everything. A `slide`
moves the bound in steps. A window belongs to the side whose rows it keeps. What each means, to the row, is in
docs/semantics.md; how it becomes a bound on row numbers, in state/sequence.hpp.
"""

__all__ = ["WindowSpec", "last"]

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..errors import WindowError
from .expressions import caller
from .times import INT64_MAX, TimeDomain, parse_duration


@dataclass(frozen=True, repr=False)
class WindowSpec:
    """A window as it was written; `resolve` fits it to a stream's time.

    Exactly one of `rows`, `seconds`, `units` is set; none for a window that keeps everything.
    """

    rows: int | None = None
    seconds: Fraction | None = None
    units: int | None = None
    slide: Fraction | int | None = None
    text: str = "last(None)"

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    @property
    def keeps_everything(self) -> bool:
        """True for `last(None)`."""
        return self.rows is None and self.seconds is None and self.units is None

    @property
    def is_time(self) -> bool:
        """True when it measures time."""
        return self.seconds is not None or self.units is not None

    def resolve(self, time: TimeDomain | None, column: TimeDomain | None, where: str) -> tuple[str, int, int]:
        """Return (kind, size, slide) in rows, or in units of `time`, the domain that both sides share.

        `column` is the domain of the stream that the window keeps: a slide is a whole number of *its* units.
        """
        if self.keeps_everything:
            return "all", 0, 0
        if self.rows is not None:
            return "count", self.rows, int(self.slide or 0)
        if time is None or column is None:
            raise WindowError(
                f"{where}: {self} measures time, but the streams have no time column; read them with "
                "time=…, or count rows as in last(1000)"
            )
        if (self.units is None) == (time.ticks is None):
            raise WindowError(
                f"{where}: {self} does not fit an event time of {time.describe()}; write "
                + ("last(time=300), in that column's unit" if time.ticks is None else 'a duration, as in last("10min")')
            )
        if self.units is not None:
            return "time", min(self.units, INT64_MAX), int(self.slide or 0)
        assert time.ticks is not None and column.ticks is not None and self.seconds is not None
        slide = (self.slide or 0) * column.ticks
        if slide != int(slide):
            raise WindowError(
                f"{where}: the slide of {self} is not a whole number of units of {column.describe()}; "
                "give a slide that is"
            )
        size = time.whole(self.seconds)
        if size > INT64_MAX:
            raise WindowError(f"{where}: {self} is longer than {time.describe()} can count; use last(None)")
        return "time", size, int((self.slide or 0) * time.ticks)


def last(size: object = ..., *, slide: object = None, time: object = ...) -> WindowSpec:
    """Return a window of the last rows, or of the last stretch of time.

    Parameters
    ----------
    size
        A number of rows; a duration such as `"10min"` or a timedelta; or None to keep everything.
    slide
        The window moves in steps of this size. Of the same kind as `size`, and no larger.
    time
        In place of `size`: a length in the unit of an integer time column.

    Examples
    --------
    >>> print(last(1_000_000, slide=100_000))
    last(1000000, slide=100000)
    >>> print(last("10min"), last(time=300), last(None))
    last('10min') last(time=300) last(None)
    >>> last(0)
    Traceback (most recent call last):
        ...
    dovetail.errors.WindowError: last(0) keeps no row, so nothing could ever match; use at least last(1)
    """
    if (size is ...) == (time is ...):
        raise WindowError(f'give one size: last(1000) rows, last("10min") or last(time=300) ({caller()})')
    shown = repr(size) if time is ... else f"time={time!r}"
    text = f"last({shown})" if slide is None else f"last({shown}, slide={slide!r})"
    if time is not ...:
        units = _count(time, text)
        return WindowSpec(units=units, slide=_slide(slide, units, text, units=True), text=text)
    if size is None:
        if slide is not None:
            raise WindowError(f"{text}: a window that keeps everything does not slide ({caller()})")
        return WindowSpec(text=text)
    if isinstance(size, int | np.integer) and not isinstance(size, bool | np.timedelta64):
        rows = _count(size, text)
        if rows == 0:
            raise WindowError("last(0) keeps no row, so nothing could ever match; use at least last(1)")
        return WindowSpec(rows=rows, slide=_slide(slide, rows, text, units=True), text=text)
    seconds = parse_duration(size, text)
    if seconds < 0:
        raise WindowError(f"{text}: a window cannot be negative ({caller()})")
    return WindowSpec(seconds=seconds, slide=_slide(slide, seconds, text, units=False), text=text)


def _count(value: object, text: str) -> int:
    if isinstance(value, bool | np.timedelta64) or not isinstance(value, int | np.integer):
        raise WindowError(f"{text}: {value!r} is not a whole number ({caller()})")
    if value < 0:
        raise WindowError(f"{text}: a window cannot be negative ({caller()})")
    if value > INT64_MAX:
        raise WindowError(f"{text}: more than 2^63 - 1; use last(None) to keep everything ({caller()})")
    return int(value)


def _slide(slide: object, size: Fraction | int, text: str, *, units: bool) -> Fraction | int | None:
    if slide is None:
        return None
    value = _count(slide, text) if units else parse_duration(slide, text)
    if value < 1 if units else value <= 0:
        raise WindowError(f"{text}: a slide is at least 1; leave it out for a window that moves with each row")
    if value > size:
        raise WindowError(f"{text}: the slide is larger than the window, so that rows would be lost")
    return value
