"""Expressions meet schemas: names are found, types are checked, meanings are settled.

A bound expression (`Bound`) knows its `Kind`. There are few kinds, because comparisons mean few things:

- *exact*: integers, decimals, instants and durations are all whole numbers of some unit (`ticks` of it make one:
  1 for integers, 100 for decimal(…, 2), 10^6 for microseconds). Arithmetic on them is Python's: it neither wraps
  nor saturates. `low` and `high` bound what the columns' types allow, so that most code can see that 64 bits do.
- *float*: computed and compared in float64, whatever the width of the column.
- *text*, *bytes*, *bool*: equality only.

What the values of an expression are is `evaluate`'s business; which index serves it, `predicate`'s.
"""

__all__ = ["Bound", "Kind", "bind", "bind_predicate"]

import datetime
import decimal
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import PredicateError, SchemaError, nearest
from .expressions import (
    FLIPPED,
    Absolute,
    Arithmetic,
    Between,
    Cast,
    Column,
    Compare,
    Expression,
    Literal,
    Logic,
    UserFunction,
)
from .times import TICKS_PER_SECOND, parse_duration

DAY = Fraction(1, 86400)


@dataclass(frozen=True)
class Kind:
    """What an expression's values are. See the top of this file."""

    family: str  # exact, float, text, bytes, bool, null
    role: str = ""  # of exact: number, instant, duration
    ticks: Fraction = Fraction(1)
    zoned: bool = False
    low: int = 0
    high: int = 0

    def describe(self) -> str:
        """Name it for a person."""
        if self.family == "exact":
            number = "integer" if self.ticks == 1 else "decimal"
            return {"number": number, "instant": "timestamp", "duration": "duration"}[self.role]
        return {"text": "string", "bytes": "binary", "bool": "boolean", "null": "null"}.get(self.family, self.family)

    def named(self) -> str:
        """Name one of them: 'a string', 'an integer'."""
        word = self.describe()
        return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


FLOAT, TEXT, BYTES, BOOL, NULL = Kind("float"), Kind("text"), Kind("bytes"), Kind("bool"), Kind("null")


@dataclass(frozen=True, eq=False)
class Bound:
    """An expression with its kind. `op` names what it does; `sides` are the rows that it looks at.

    Two bound expressions with the same `key` compute the same thing.
    """

    op: str
    kind: Kind
    args: "tuple[Bound, ...]" = ()
    value: Any = None
    sides: frozenset[str] = frozenset()
    source: Expression | None = None

    @property
    def key(self) -> str:
        """A text that is equal for equal computations."""
        if self.op == "column":
            return f"{self.value[0]}[{self.value[1]!r}]"
        if self.op == "literal":
            return f"literal({self.value!r} {self.kind.family} {self.kind.role} {self.kind.ticks} {self.kind.zoned})"
        inner = ", ".join(arg.key for arg in self.args)
        return f"{self.op}({self.value!r}{'; ' + inner if inner else ''})"

    def __str__(self) -> str:
        return str(self.source)

    def columns(self) -> set[tuple[str, str]]:
        """Return the (side, column) pairs that it reads."""
        if self.op == "column":
            return {self.value}
        return set().union(*(arg.columns() for arg in self.args)) if self.args else set()

    def transposed(self) -> "Bound":
        """Return the same with left and right exchanged."""
        other = {"left": "right", "right": "left"}
        args = tuple(arg.transposed() for arg in self.args)
        value = (other[self.value[0]], self.value[1]) if self.op == "column" else self.value
        return replace(self, args=args, value=value, sides=frozenset(other[s] for s in self.sides))


def column_kind(kind: pa.DataType) -> Kind | None:
    """Return the kind of a column of this type; None if it cannot stand in an expression."""
    t = pa.types
    if t.is_dictionary(kind):
        return column_kind(kind.value_type)
    if t.is_integer(kind):
        bits = kind.bit_width
        low, high = (0, 2**bits - 1) if t.is_unsigned_integer(kind) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return Kind("exact", "number", low=low, high=high)
    if t.is_floating(kind):
        return FLOAT
    if t.is_decimal(kind):
        if kind.precision > 18 or kind.scale < 0:
            return None
        most = 10**kind.precision - 1
        return Kind("exact", "number", Fraction(10) ** kind.scale, low=-most, high=most)
    low, high = -(2**63), 2**63 - 1
    if t.is_timestamp(kind):
        return Kind("exact", "instant", Fraction(TICKS_PER_SECOND[kind.unit]), kind.tz is not None, low, high)
    if t.is_date32(kind):
        return Kind("exact", "instant", DAY, low=-(2**31), high=2**31 - 1)
    if t.is_date64(kind):
        return Kind("exact", "instant", Fraction(1000), low=low, high=high)
    if t.is_duration(kind):
        return Kind("exact", "duration", Fraction(TICKS_PER_SECOND[kind.unit]), low=low, high=high)
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return TEXT
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind):
        return BYTES
    if t.is_boolean(kind):
        return BOOL
    return NULL if t.is_null(kind) else None


def bind(expression: Expression, schemas: Mapping[str, pa.Schema], where: str) -> Bound:
    """Bind an expression to the schemas of its sides ('left' and 'right', or '' for a single stream)."""
    return _Binder(schemas, where).value(expression)


def bind_predicate(expression: Expression, schemas: Mapping[str, pa.Schema], where: str) -> Bound:
    """Bind an expression that must be a truth."""
    return _Binder(schemas, where).truth(expression)


def _exact(role: str, ticks: Fraction, value: int, **more: Any) -> Kind:
    return Kind("exact", role, ticks, low=value, high=value, **more)


def _literal_of(value: Any, source: Literal) -> Bound:
    """Bind a constant by its own type; `beside` may reinterpret it."""
    if isinstance(value, pa.TimestampScalar | pa.DurationScalar) and value.is_valid:
        # Not through Python, which has no nanoseconds.
        role = "instant" if isinstance(value, pa.TimestampScalar) else "duration"
        zoned = role == "instant" and value.type.tz is not None
        kind = _exact(role, Fraction(TICKS_PER_SECOND[value.type.unit]), value.value, zoned=zoned)
        return Bound("literal", kind, value=value.value, source=source)
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, np.datetime64 | np.timedelta64):
        return _numpy_time(value, source)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return Bound("literal", NULL, value=None, source=source)
    if isinstance(value, bool):
        return Bound("literal", BOOL, value=value, source=source)
    if isinstance(value, int):
        return Bound("literal", _exact("number", Fraction(1), value), value=value, source=source)
    if isinstance(value, float):
        return Bound("literal", FLOAT, value=value, source=source)
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            return Bound("literal", FLOAT, value=math.nan if value.is_nan() else float(value), source=source)
        scale = max(0, -int(value.as_tuple().exponent))
        ticks = Fraction(10) ** scale
        whole = int(Fraction(value) * ticks)
        return Bound("literal", _exact("number", ticks, whole), value=whole, source=source)
    if isinstance(value, str | bytes):
        return Bound("literal", TEXT if isinstance(value, str) else BYTES, value=value, source=source)
    if isinstance(value, datetime.timedelta):
        micro = value // datetime.timedelta(microseconds=1)
        return _python_time("duration", micro, _nanoseconds(value, "nanoseconds"), source)
    if isinstance(value, datetime.datetime):
        return _python_instant(value, _nanoseconds(value, "nanosecond"), source)
    if isinstance(value, datetime.date):
        days = (value - datetime.date(1970, 1, 1)).days
        return Bound("literal", _exact("instant", DAY, days), value=days, source=source)
    raise PredicateError(f"the constant {value!r} of type {type(value).__name__} cannot be compared with a column")


def _python_time(role: str, micro: int, digits: str, source: Literal, **more: Any) -> Bound:
    """Bind a time of Python's, in microseconds, with the digits of a second behind them that Python does not have."""
    ticks, whole = 10 ** (6 + len(digits)), micro * 10 ** len(digits) + int(digits or 0)
    return Bound("literal", _exact(role, Fraction(ticks), whole, **more), value=whole, source=source)


def _python_instant(value: datetime.datetime, digits: str, source: Literal) -> Bound:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=None if value.tzinfo is None else datetime.UTC)
    micro = (value - epoch) // datetime.timedelta(microseconds=1)
    return _python_time("instant", micro, digits, source, zoned=value.tzinfo is not None)


def _nanoseconds(value: Any, name: str) -> str:
    """Return the digits behind the microseconds of pandas' times, which are subclasses of Python's."""
    nanoseconds = getattr(value, name, 0)
    return f"{nanoseconds:03d}" if nanoseconds else ""


def _numpy_time(value: np.datetime64 | np.timedelta64, source: Literal) -> Bound:
    if np.isnat(value):
        return Bound("literal", NULL, value=None, source=source)
    role = "instant" if isinstance(value, np.datetime64) else "duration"
    unit, count = np.datetime_data(value.dtype)
    known = {**{name: Fraction(ticks) for name, ticks in TICKS_PER_SECOND.items()}, "D": DAY}
    if unit not in known:
        raise PredicateError(f"the constant {value!r}: use a unit of s, ms, us, ns or D")
    whole = int(value.astype(np.int64)) * count
    return Bound("literal", _exact(role, known[unit], whole), value=whole, source=source)


class _Binder:
    def __init__(self, schemas: Mapping[str, pa.Schema], where: str) -> None:
        self.schemas = schemas
        self.where = where

    def fail(self, text: str, at: Expression, error: type[Exception] = PredicateError) -> Exception:
        line = getattr(at, "where", None)
        return error(f"{self.where}: {text}" + (f" (written at {line})" if line else ""))

    def truth(self, e: Expression) -> Bound:
        if isinstance(e, Compare):
            return self.compare(e.op, e.a, e.b, e)
        if isinstance(e, Between):
            low, high = self.compare("<=", e.low, e.a, e), self.compare("<=", e.a, e.high, e)
            if low.args[0].op == high.args[1].op == "literal" and _exceeds(low.args[0], high.args[1]):
                raise self.fail(f"`{e}` can never hold: the low end is above the high one", e)
            return Bound("&", BOOL, (low, high), sides=low.sides | high.sides, source=e)
        if isinstance(e, Logic):
            a, b = self.truth(e.a), self.truth(e.b)
            return Bound(e.op, BOOL, (a, b), sides=a.sides | b.sides, source=e)
        if isinstance(e, UserFunction):
            args = tuple(self.column(c, any_type=True) for c in e.columns)
            sides = frozenset(c.side for c in e.columns)
            return Bound("udf", BOOL, args, value=e.fn, sides=sides, source=e)
        if isinstance(e, Literal) and isinstance(e.value, bool):
            return Bound("literal", BOOL, value=e.value, source=e)
        if isinstance(e, Column):
            bound = self.column(e)
            if bound.kind == BOOL:
                return Bound("truth", BOOL, (bound,), sides=bound.sides, source=e)
        raise self.fail(f"`{e}` is not a comparison; write one, such as `left.x < right.y`", e)

    def value(self, e: Expression) -> Bound:
        if isinstance(e, Column):
            return self.column(e)
        if isinstance(e, Literal):
            return _literal_of(e.value, e)
        if isinstance(e, Absolute):
            return self.absolute(e)
        if isinstance(e, Cast):
            return self.cast(e)
        if isinstance(e, Arithmetic):
            return self.arithmetic(e)
        return self.truth(e)

    def column(self, e: Column, any_type: bool = False) -> Bound:
        schema = self.schemas.get(e.side)
        if schema is None:
            meant = "dt.col(…)" if "" in self.schemas else "left.… or right.…"
            raise self.fail(f"`{e}` does not belong here; write {meant}", e)
        side = f" on the {e.side}" if e.side else ""
        found = schema.get_all_field_indices(e.name)
        if not found:
            raise self.fail(f"there is no column {e.name!r}{side}; {nearest(e.name, schema.names)}", e, SchemaError)
        if len(found) > 1:
            raise self.fail(
                f"there are {len(found)} columns named {e.name!r}{side}; rename all but one", e, SchemaError
            )
        kind = column_kind(schema.field(e.name).type)
        if kind is None:
            if not any_type:
                raise self.fail(_no_kind(e, schema.field(e.name).type), e)
            kind = NULL
        return Bound("column", kind, value=(e.side, e.name), sides=frozenset([e.side]), source=e)

    def absolute(self, e: Absolute) -> Bound:
        a = self.value(e.a)
        if a.kind.family == "float":
            return Bound("abs", FLOAT, (a,), sides=a.sides, source=e)
        if a.kind.family != "exact" or a.kind.role == "instant":
            raise self.fail(f"abs() of {a.kind.named()} has no meaning in `{e}`", _placed(e))
        most = max(abs(a.kind.low), abs(a.kind.high))
        least = 0 if a.kind.low <= 0 <= a.kind.high else min(abs(a.kind.low), abs(a.kind.high))
        return Bound("abs", replace(a.kind, low=least, high=most), (a,), sides=a.sides, source=e)

    def cast(self, e: Cast) -> Bound:
        a = self.value(e.a)
        target = None if pa.types.is_dictionary(e.kind) else column_kind(e.kind)
        number = ("exact", "float")
        if target is None or a.kind.family not in number or target.family not in number:
            raise self.fail(
                f"`{e}`: {a.kind.named()} cannot be cast to {e.kind} here; numbers and times can", _placed(e)
            )
        if a.kind.role == "instant" and target.role == "instant" and a.kind.zoned != target.zoned:
            raise self.fail(f"`{e}`: a cast cannot add or drop a time zone", _placed(e))
        if target.role != a.kind.role and "number" not in (a.kind.role, target.role) and target.family == "exact":
            raise self.fail(f"`{e}`: {a.kind.named()} cannot become {target.named()}", _placed(e))
        return Bound("cast", target, (a,), value=e.kind, sides=a.sides, source=e)

    def arithmetic(self, e: Arithmetic) -> Bound:
        a, b = self.beside(self.value(e.a), self.value(e.b), e)
        sides = a.sides | b.sides
        families = {a.kind.family, b.kind.family}
        if "null" in families:
            raise self.fail(f"`{e}` is always null", _placed(e))
        if families == {"float"}:
            return Bound(e.op, FLOAT, (a, b), sides=sides, source=e)
        if families == {"exact"}:
            return Bound(e.op, self.exact_arithmetic(e, a.kind, b.kind), (a, b), sides=sides, source=e)
        if families == {"exact", "float"}:
            whole = a if a.kind.family == "exact" else b
            raise self.fail(
                f"`{e}` mixes {whole.kind.describe()} and float, which would round silently; write "
                f'`{whole}.cast("float64")` if that is meant',
                _placed(e),
            )
        text = a if a.kind.family not in ("exact", "float") else b
        raise self.fail(f"`{e}`: there is no arithmetic on {text.kind.named()}", _placed(e))

    def exact_arithmetic(self, e: Arithmetic, a: Kind, b: Kind) -> Kind:
        if e.op == "*":
            if "instant" in (a.role, b.role) or (a.role, b.role) == ("duration", "duration"):
                raise self.fail(f"`{e}`: {a.named()} times {b.named()} has no meaning", _placed(e))
            role = "duration" if "duration" in (a.role, b.role) else "number"
            corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
            return Kind("exact", role, a.ticks * b.ticks, low=min(corners), high=max(corners))
        roles = {
            ("number", "number"): "number",
            ("duration", "duration"): "duration",
            ("instant", "duration"): "instant",
        }
        if e.op == "+":
            roles["duration", "instant"] = "instant"
        else:
            roles["instant", "instant"] = "duration"
        found = roles.get((a.role, b.role))
        if found is None:
            verb = "plus" if e.op == "+" else "minus"
            raise self.fail(f"`{e}`: {a.named()} {verb} {b.named()} has no meaning", _placed(e))
        if (a.role, b.role) == ("instant", "instant"):
            self.same_zone(e, a, b)
        role, ticks = found, common_ticks(a.ticks, b.ticks)
        fa, fb = int(ticks / a.ticks), int(ticks / b.ticks)
        low, high = (b.low * fb, b.high * fb) if e.op == "+" else (-b.high * fb, -b.low * fb)
        zoned = role == "instant" and (a.zoned or b.zoned)
        return Kind("exact", role, ticks, zoned, a.low * fa + low, a.high * fa + high)

    def same_zone(self, e: Expression, a: Kind, b: Kind) -> None:
        if a.zoned != b.zoned:
            raise self.fail(f"`{e}` compares a time that has a time zone with one that has none", _placed(e))

    def compare(self, op: str, x: Expression, y: Expression, e: Expression) -> Bound:
        a, b = self.beside(self.value(x), self.value(y), e)
        for side in (a, b):
            never = side.kind.family == "null" or (side.op == "literal" and _is_nan(side.value))
            if never:
                raise self.fail(f"`{e}` can never hold: a comparison with null or NaN is false", e)
        op, a, b = self.whole_constant(op, a, b, e)
        bound = Bound(op, BOOL, (a, b), sides=a.sides | b.sides, source=e)
        pair = {a.kind.family, b.kind.family}
        if pair <= {"exact", "float"}:
            self.comparable_numbers(e, a, b)
            self.check_band(op, a, b, e)
            return bound
        if len(pair) > 1:
            raise self.fail(f"`{e}` compares {a.kind.named()} with {b.kind.named()}", e)
        if op not in ("==", "!="):
            raise self.fail(f"`{e}`: {a.kind.describe()} columns can be compared with == and != only", e)
        return bound

    def comparable_numbers(self, e: Expression, a: Bound, b: Bound) -> None:
        if a.kind.family == b.kind.family == "exact":
            if a.kind.role != b.kind.role:
                raise self.fail(f"`{e}` compares {a.kind.named()} with {b.kind.named()}", e)
            if a.kind.role == "instant":
                self.same_zone(e, a.kind, b.kind)
        elif a.kind.family != b.kind.family:
            whole = a if a.kind.family == "exact" else b
            if whole.kind.role != "number":
                raise self.fail(f"`{e}` compares {a.kind.named()} with {b.kind.named()}", e)
            if whole.kind.ticks != 1:
                fix = 'Decimal("…")' if (b if whole is a else a).op == "literal" else f'`{whole}.cast("float64")`'
                raise self.fail(f"`{e}` compares a decimal with a float; write {fix}", e)

    def whole_constant(self, op: str, a: Bound, b: Bound, e: Expression) -> tuple[str, Bound, Bound]:
        """Turn a float constant beside whole numbers into the whole number that means the same."""
        if a.op == "literal" and b.op != "literal":
            op, b, a = self.whole_constant(FLIPPED[op], b, a, e)
            return FLIPPED[op], a, b
        whole = a.kind.family == "exact" and a.kind.role == "number" and a.kind.ticks == 1
        if not (whole and b.op == "literal" and b.kind == FLOAT and math.isfinite(b.value)):
            return op, a, b
        if b.value != int(b.value):
            if op == "==":
                raise self.fail(f"`{e}` can never hold: {b.value!r} is not a whole number", e)
            if op == "!=":
                return op, a, b
            op = {"<": "<=", ">": ">="}.get(op, op)
        value = math.ceil(b.value) if op in (">", ">=") else math.floor(b.value)
        return op, a, replace(b, kind=_exact("number", Fraction(1), value), value=value)

    def check_band(self, op: str, a: Bound, b: Bound, e: Expression) -> None:
        for band, limit, way in ((a, b, op), (b, a, FLIPPED[op])):
            if band.op == "abs" and limit.op == "literal" and way in ("<", "<=", "=="):
                if limit.value < 0:
                    raise self.fail(f"`{e}`: a negative band, so it can never hold; a distance is at least 0", e)
                if limit.value == 0 and way == "<":
                    raise self.fail(f"`{e}` can never hold: no distance is below 0; write <= for equal values", e)

    def beside(self, a: Bound, b: Bound, e: Expression) -> tuple[Bound, Bound]:
        """Give a constant the meaning that the other operand asks for."""
        return self.adapt(a, b.kind, e), self.adapt(b, a.kind, e)

    def adapt(self, literal: Bound, other: Kind, e: Expression) -> Bound:
        if literal.op != "literal":
            return literal
        value, kind = literal.value, literal.kind
        if kind.family == "exact" and kind.role == "number" and kind.ticks == 1 and other.family == "float":
            try:
                return replace(literal, kind=FLOAT, value=float(value))
            except OverflowError:
                return replace(literal, kind=FLOAT, value=math.inf if value > 0 else -math.inf)
        if kind.family == "text" and other.role == "duration":
            seconds = parse_duration(value, f"{self.where}: `{e}`")
            units = (other.ticks, Fraction(10**9), Fraction(seconds.denominator))
            ticks = next(ticks for ticks in units if (seconds * ticks).denominator == 1)
            whole = int(seconds * ticks)
            return replace(literal, kind=_exact("duration", ticks, whole), value=whole)
        if kind.family == "text" and other.role == "instant":
            try:
                moment = datetime.datetime.fromisoformat(value)
            except ValueError:
                raise self.fail(
                    f"`{e}`: {value!r} is not a time; write it as 2026-01-31 or 2026-01-31T12:00:00", _placed(e)
                ) from None
            if other.zoned and moment.tzinfo is None:
                raise self.fail(f"`{e}`: {value!r} has no time zone and the column has; add +00:00", _placed(e))
            beyond = re.search(r"[.,][0-9]{6}([0-9]+)", value)  # which `fromisoformat` passes over
            return _python_instant(moment, beyond[1].rstrip("0") if beyond else "", Literal(moment))
        return literal


def common_ticks(a: Fraction, b: Fraction) -> Fraction:
    """Return the least number of ticks that is a whole multiple of both."""
    return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))


def _placed(e: Expression) -> Expression:
    """Return the nearest expression inside that remembers its line."""
    if hasattr(e, "where"):
        return e
    return next((p for p in map(_placed, e.children()) if hasattr(p, "where")), e)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _exceeds(low: Bound, high: Bound) -> bool:
    if low.kind.family != high.kind.family or low.kind.family not in ("exact", "float"):
        return False
    if low.kind.family == "float":
        return bool(low.value > high.value)
    return Fraction(low.value) / low.kind.ticks > Fraction(high.value) / high.kind.ticks


def _no_kind(e: Column, kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return (
            f"`{e}` is {kind}; decimals of up to 18 digits and a scale of at least 0 can be compared, "
            "so cast it when it is read"
        )
    return f"`{e}` is {kind}, which cannot be compared; numbers, times, strings, binaries and booleans can"
