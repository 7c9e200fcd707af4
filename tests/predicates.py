"""A small language of predicates that can be said in two ways, so that one checks the other.

`.said(dt)` writes it as an expression of the library; `.holds(left, right)` is plain Python on two rows,
by the rules of docs/semantics.md, section 4: ints are exact, ints and floats are compared as Python
compares them, a comparison with null or NaN is false, `!=` too, and what is left are plain truth values.
The `repr` is what a user would write, so that a failing case can be pasted.

The library is a parameter, never an import: nothing that is expected can come from it.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from types import ModuleType
from typing import Any

# Expressions


class Expression:
    """One expression. `value` is None for null, and never raises for a value of a column."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # Hypothesis would print the fields

    def said(self, dt: ModuleType) -> Any:
        raise NotImplementedError

    def value(self, left: dict, right: dict) -> Any:
        raise NotImplementedError

    def swapped(self) -> "Expression":
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Column(Expression):
    side: str
    name: str

    def said(self, dt):
        of = getattr(dt, self.side)
        return getattr(of, self.name) if self.name.isidentifier() else of[self.name]

    def value(self, left, right):
        return (left if self.side == "left" else right)[self.name]

    def swapped(self):
        return Column("right" if self.side == "left" else "left", self.name)

    def __repr__(self):
        return f"{self.side}.{self.name}" if self.name.isidentifier() else f"{self.side}[{self.name!r}]"


@dataclass(frozen=True, repr=False)
class Constant(Expression):
    raw: Any

    def said(self, dt):
        return self.raw

    def value(self, left, right):
        if isinstance(self.raw, timedelta):
            return Fraction(self.raw // timedelta(microseconds=1), 10**6)
        return Fraction(self.raw) if isinstance(self.raw, Decimal) else self.raw

    def swapped(self):
        return self

    def __repr__(self):
        return repr(self.raw)


_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@dataclass(frozen=True, repr=False)
class Arithmetic(Expression):
    sign: str
    a: Expression
    b: Expression

    def said(self, dt):
        return _ARITHMETIC[self.sign](self.a.said(dt), self.b.said(dt))

    def value(self, left, right):
        a, b = self.a.value(left, right), self.b.value(left, right)
        return None if a is None or b is None else _ARITHMETIC[self.sign](a, b)

    def swapped(self):
        return Arithmetic(self.sign, self.a.swapped(), self.b.swapped())

    def __repr__(self):
        return f"({self.a!r} {self.sign} {self.b!r})"


@dataclass(frozen=True, repr=False)
class Absolute(Expression):
    a: Expression

    def said(self, dt):
        return self.a.said(dt).abs()

    def value(self, left, right):
        a = self.a.value(left, right)
        return None if a is None else abs(a)

    def swapped(self):
        return Absolute(self.a.swapped())

    def __repr__(self):
        return f"{self.a!r}.abs()"


@dataclass(frozen=True, repr=False)
class AsFloat(Expression):
    a: Expression

    def said(self, dt):
        return self.a.said(dt).cast("float64")

    def value(self, left, right):
        a = self.a.value(left, right)
        return None if a is None else float(a)

    def swapped(self):
        return AsFloat(self.a.swapped())

    def __repr__(self):
        return f'{self.a!r}.cast("float64")'


# Conditions


class Condition:
    """One condition; null and NaN make a comparison false, and never anything but a plain truth value."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # Hypothesis would print the fields

    def said(self, dt: ModuleType) -> Any:
        raise NotImplementedError

    def holds(self, left: dict, right: dict) -> bool:
        raise NotImplementedError

    def swapped(self) -> "Condition":
        raise NotImplementedError

    def ways(self) -> list[tuple["Condition", ...]]:
        """How it can hold: one way for each choice at an `|`; in a way, all must."""
        return [(self,)]


_COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def _no_value(value: Any) -> bool:
    return value is None or value != value


@dataclass(frozen=True, repr=False)
class Compare(Condition):
    sign: str
    a: Expression
    b: Expression

    def said(self, dt):
        return _COMPARE[self.sign](self.a.said(dt), self.b.said(dt))

    def holds(self, left, right):
        a, b = self.a.value(left, right), self.b.value(left, right)
        return not _no_value(a) and not _no_value(b) and _COMPARE[self.sign](a, b)

    def swapped(self):
        return Compare(self.sign, self.a.swapped(), self.b.swapped())

    def __repr__(self):
        return f"({self.a!r} {self.sign} {self.b!r})"


@dataclass(frozen=True, repr=False)
class Between(Condition):
    a: Expression
    low: Expression
    high: Expression

    def said(self, dt):
        return self.a.said(dt).between(self.low.said(dt), self.high.said(dt))

    def holds(self, left, right):
        return Compare("<=", self.low, self.a).holds(left, right) and Compare("<=", self.a, self.high).holds(
            left, right
        )

    def swapped(self):
        return Between(self.a.swapped(), self.low.swapped(), self.high.swapped())

    def __repr__(self):
        return f"{self.a!r}.between({self.low!r}, {self.high!r})"


@dataclass(frozen=True, repr=False)
class Both(Condition):
    a: Condition
    b: Condition

    def said(self, dt):
        return self.a.said(dt) & self.b.said(dt)

    def holds(self, left, right):
        return self.a.holds(left, right) and self.b.holds(left, right)

    def ways(self):
        return [a + b for a in self.a.ways() for b in self.b.ways()]

    def swapped(self):
        return Both(self.a.swapped(), self.b.swapped())

    def __repr__(self):
        return f"({self.a!r} & {self.b!r})"


@dataclass(frozen=True, repr=False)
class Either(Condition):
    a: Condition
    b: Condition

    def said(self, dt):
        return self.a.said(dt) | self.b.said(dt)

    def holds(self, left, right):
        return self.a.holds(left, right) or self.b.holds(left, right)

    def ways(self):
        return self.a.ways() + self.b.ways()

    def swapped(self):
        return Either(self.a.swapped(), self.b.swapped())

    def __repr__(self):
        return f"({self.a!r} | {self.b!r})"


@dataclass(frozen=True, repr=False)
class Udf(Condition):
    """A function of arrays beside the same function of single values. A null is not shown to it; NaN is."""

    name: str
    arrays: Callable
    values: Callable
    left: tuple[str, ...]
    right: tuple[str, ...]
    turned: bool = False  # sides were swapped: the right's columns are the function's first ones

    def said(self, dt):
        n = len(self.left)

        def fn(*columns):
            return self.arrays(*columns[n:], *columns[:n]) if self.turned else self.arrays(*columns)

        return dt.udf(fn, list(self.left), list(self.right))

    def holds(self, left, right):
        lefts, rights = [left[name] for name in self.left], [right[name] for name in self.right]
        values = rights + lefts if self.turned else lefts + rights
        return None not in values and bool(self.values(*values))

    def swapped(self):
        return Udf(self.name, self.arrays, self.values, self.right, self.left, not self.turned)

    def __repr__(self):
        return f"dt.udf({self.name}, {list(self.left)}, {list(self.right)})"


def same_rest(a, b):
    return a % 3 == b % 3


def rest_or_more(a, b, c):
    return (a % 2 == 0) | (b <= c)


def nearer_zero(a, b):
    return abs(a) < abs(b)


def sides(expression: Expression) -> set[str]:
    """Which sides an expression speaks of."""
    if isinstance(expression, Column):
        return {expression.side}
    return set().union(*(sides(e) for e in vars(expression).values() if isinstance(e, Expression)))
