"""Event time: the columns it can come from, durations, and exact conversion between units.

Problem: times of two streams must be compared exactly, whatever their units; a window or delay may be finer than
the unit of the column; and 64 bits overflow at the ends. Idea: a time is an int64 in the *domain* of its stream
(a unit, or an integer column's own count). Two streams that meet are brought to the finer unit once, with a check,
and everything after that is integer arithmetic. A duration is an exact fraction of seconds until it meets a domain.

Rounding a duration down to whole units loses nothing: for integers t and q and a fraction 0 <= f < 1,
q >= t - (T + f) holds exactly when q >= t - T, and so it is for lateness.
"""

__all__ = ["Duration", "TimeDomain", "domain_of", "parse_duration", "rescale", "time_domain", "times_of"]

import datetime
import math
import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa

from ..errors import SchemaError, TimeError, WindowError, nearest

TICKS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_UNITS = {
    "ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6), "ms": Fraction(1, 10**3),
    "s": Fraction(1), "sec": Fraction(1), "second": Fraction(1), "seconds": Fraction(1),
    "min": Fraction(60), "minute": Fraction(60), "minutes": Fraction(60),
    "h": Fraction(3600), "hour": Fraction(3600), "hours": Fraction(3600),
    "d": Fraction(86400), "day": Fraction(86400), "days": Fraction(86400),
    "w": Fraction(604800), "week": Fraction(604800), "weeks": Fraction(604800),
}  # fmt: skip

Duration = Fraction | int
"""Seconds as an exact fraction; or, of an integer time column, a count in its own unit."""


def parse_duration(value: object, what: str) -> Fraction:
    """Read a duration as exact seconds.

    >>> parse_duration("1.5min", "window")
    Fraction(90, 1)
    >>> parse_duration("200 milliseconds", "window")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    dovetail.errors.WindowError: window: '200 milliseconds' is not a duration; ...
    """
    if isinstance(value, datetime.timedelta):
        # Those of pandas are subclasses with nanoseconds beside.
        nanoseconds = getattr(value, "nanoseconds", 0)
        return Fraction(value // datetime.timedelta(microseconds=1), 10**6) + Fraction(nanoseconds, 10**9)
    if isinstance(value, np.timedelta64) and not np.isnat(value):
        unit, count = np.datetime_data(value.dtype)
        known = {**_UNITS, "D": Fraction(86400), "m": Fraction(60)}
        if unit in known:
            return int(value.astype(np.int64)) * count * known[unit]
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zµ]+)\s*", value) if isinstance(value, str) else None
    if match is None or match[2] not in _UNITS:
        raise WindowError(
            f'{what}: {value!r} is not a duration; write a number and one of ns, us, ms, s, min, h, d, w, as in "10min"'
        )
    return Fraction(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class TimeDomain:
    """What an event time of a stream is counted in.

    `ticks` is how many there are in a second; None for an integer column, which has a unit of its own.
    """

    ticks: Fraction | None
    zoned: bool = False

    def describe(self) -> str:
        """Name it: 'timestamp[us]', 'date', 'integer'."""
        if self.ticks is None:
            return "integer"
        if self.ticks == Fraction(1, 86400):
            return "date"
        unit = next(name for name, ticks in TICKS_PER_SECOND.items() if ticks == self.ticks)
        return f"timestamp[{unit}{', with a zone' if self.zoned else ''}]"

    def finer(self, other: "TimeDomain", where: str) -> "TimeDomain":
        """Return the domain in which times of both can be compared, or say why there is none."""
        if (self.ticks is None) != (other.ticks is None):
            raise SchemaError(
                f"{where}: event times of {self.describe()} and of {other.describe()} cannot be compared; "
                "read both with an integer time column, or both with a timestamp"
            )
        if self.zoned != other.zoned:
            raise SchemaError(
                f"{where}: one event time has a time zone and the other has none; cast one of the columns "
                "before the flow reads it, so that both mean the same clock"
            )
        if self.ticks is None or other.ticks is None:
            return self
        return self if self.ticks >= other.ticks else other

    def whole(self, duration: Duration) -> int:
        """Express a duration in ticks, rounded down (which loses nothing: see the top of this file)."""
        return math.floor(duration * self.ticks) if self.ticks is not None else int(duration)

    def duration(self, value: object, what: str) -> Duration:
        """Read a duration that is meant for this domain.

        >>> TimeDomain(None).duration(20, "delay")
        20
        >>> TimeDomain(Fraction(1000)).duration("5s", "delay")
        Fraction(5, 1)
        """
        if self.ticks is not None:
            if isinstance(value, int) and not isinstance(value, bool) and value == 0:
                return Fraction(0)
            seconds = parse_duration(value, what)
            if seconds < 0:
                raise WindowError(f"{what}: {value!r} is negative")
            return seconds
        if isinstance(value, bool | np.timedelta64) or not isinstance(value, int | np.integer):
            raise WindowError(
                f"{what}: {value!r} beside an integer time column; give a whole number in that column's unit"
            )
        if value < 0:
            raise WindowError(f"{what}: {value!r} is negative")
        return int(value)

    def show(self, time: int | float | None) -> str:
        """Write a time for a person.

        >>> TimeDomain(Fraction(1)).show(0)
        '1970-01-01T00:00:00'
        >>> TimeDomain(Fraction(10**6)).show(1_500_000)
        '1970-01-01T00:00:01.500000'
        """
        if time is None or time == -math.inf:
            return "none"
        if time == math.inf:
            return "end"
        if self.ticks is None:
            return str(time)
        if not INT64_MIN <= time <= INT64_MAX:  # a watermark may lie beyond every time there is
            return "none" if time < 0 else "end"
        if self.ticks < 1:
            return str(np.datetime64(int(time), "D"))
        unit = next(name for name, ticks in TICKS_PER_SECOND.items() if ticks == self.ticks)
        return str(np.array(int(time), f"datetime64[{unit}]"))


def domain_of(kind: pa.DataType) -> TimeDomain | None:
    """Return the domain of a time column's type; None if it cannot be one."""
    if pa.types.is_timestamp(kind):
        return TimeDomain(Fraction(TICKS_PER_SECOND[kind.unit]), kind.tz is not None)
    if pa.types.is_date32(kind):
        return TimeDomain(Fraction(1, 86400))
    if pa.types.is_date64(kind):
        return TimeDomain(Fraction(1000))
    if pa.types.is_integer(kind):
        return TimeDomain(None)
    return None


def time_domain(schema: pa.Schema, column: object, where: str) -> TimeDomain | None:
    """Return the domain of a time column by name (None: there is none), or say why it cannot be one."""
    if column is None:
        return None
    if column not in schema.names:
        raise SchemaError(f"{where}: there is no column {column!r} for the time; {nearest(str(column), schema.names)}")
    domain = domain_of(schema.field(column).type)
    if domain is None:
        raise SchemaError(
            f"{where}: column {column!r} is {schema.field(column).type}; a time is a timestamp, a date or an integer"
        )
    return domain


def times_of(column: pa.Array, where: str, first_row: int) -> np.ndarray:
    """Return a time column as int64 in its own unit; `where` and the row stand in the error."""
    if column.null_count:
        row = first_row + int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise TimeError(
            f"{where}: the time of row {row:,} is null; a row without a time has no place in the order. "
            "Drop such rows before they are read, or give them a time"
        )
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date64(kind):
        return column.view(pa.int64()).to_numpy()
    if pa.types.is_date32(kind):
        return column.view(pa.int32()).to_numpy().astype(np.int64)
    values = column.to_numpy()
    if values.dtype == np.uint64 and len(values) and values.max() > np.uint64(INT64_MAX):
        at = int(np.flatnonzero(values > np.uint64(INT64_MAX))[0])
        raise TimeError(f"{where}: the time of row {first_row + at:,} is {values[at]}; integer times end at 2^63 - 1")
    return np.ascontiguousarray(values, np.int64)


def rescale(times: np.ndarray, source: TimeDomain, target: TimeDomain, where: str) -> np.ndarray:
    """Bring times into a finer domain, exactly."""
    if source.ticks is None or target.ticks is None or source.ticks == target.ticks or len(times) == 0:
        return times
    factor = int(target.ticks / source.ticks)
    least, most = int(times.min()), int(times.max())
    if least * factor < INT64_MIN or most * factor > INT64_MAX:
        far = most if most * factor > INT64_MAX else least
        raise TimeError(
            f"{where}: the time {source.show(far)} cannot be represented in {target.describe()}, the finer unit "
            "of the two sides; cast the other side's time column to a coarser unit"
        )
    return times * factor
