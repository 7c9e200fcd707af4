"""What users write: `left.rack < right.rack`, `(left.x - right.x).abs() <= 5`, `dt.col("x") > 3`.

An expression is a small immutable tree. Building one computes nothing and knows no types; `binding.bind` gives it
a schema, and says what is wrong with it. Each comparison remembers the line on which it was written, so that an
error found later can point there.

`left` and `right` stand for the two rows of a pair, `dt.col` for the one row of a stream.
"""

__all__ = ["Aggregate", "Expression", "col", "count", "group_udf", "left", "lit", "right", "udf"]

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyarrow as pa

from ..errors import FlowError, PredicateError
from .own import name_of, origin

FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


_HERE = __name__.rpartition(".")[0].rpartition(".")[0] + "."  # every module of this package starts with it


def caller() -> str:
    """Return 'file:line' of the nearest frame that is not this package's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Expression:
    """A value, or a truth, computed from one row or from a pair of rows."""

    # Comparisons build trees, so trees compare by identity.
    __hash__ = object.__hash__

    def __lt__(self, other: object) -> "Expression":
        return Compare("<", self, _expression(other))

    def __le__(self, other: object) -> "Expression":
        return Compare("<=", self, _expression(other))

    def __gt__(self, other: object) -> "Expression":
        return Compare(">", self, _expression(other))

    def __ge__(self, other: object) -> "Expression":
        return Compare(">=", self, _expression(other))

    def __eq__(self, other: object) -> "Expression":  # type: ignore[override]
        return Compare("==", self, _expression(other))

    def __ne__(self, other: object) -> "Expression":  # type: ignore[override]
        return Compare("!=", self, _expression(other))

    def __add__(self, other: object) -> "Expression":
        return Arithmetic("+", self, _expression(other))

    def __radd__(self, other: object) -> "Expression":
        return Arithmetic("+", _expression(other), self)

    def __sub__(self, other: object) -> "Expression":
        return Arithmetic("-", self, _expression(other))

    def __rsub__(self, other: object) -> "Expression":
        return Arithmetic("-", _expression(other), self)

    def __mul__(self, other: object) -> "Expression":
        return Arithmetic("*", self, _expression(other))

    def __rmul__(self, other: object) -> "Expression":
        return Arithmetic("*", _expression(other), self)

    def __neg__(self) -> "Expression":
        return Arithmetic("-", Literal(0), self)

    def __and__(self, other: object) -> "Expression":
        return Logic("&", self, _expression(other))

    def __rand__(self, other: object) -> "Expression":
        return Logic("&", _expression(other), self)

    def __or__(self, other: object) -> "Expression":
        return Logic("|", self, _expression(other))

    def __ror__(self, other: object) -> "Expression":
        return Logic("|", _expression(other), self)

    def abs(self) -> "Expression":
        """Return the distance from zero."""
        return Absolute(self)

    __abs__ = abs

    def between(self, low: object, high: object) -> "Expression":
        """Return `low <= self <= high`: both ends are in, and nothing is if low > high."""
        return Between(self, _expression(low), _expression(high))

    def cast(self, kind: "str | pa.DataType") -> "Expression":
        """Return the value in another type, given as Arrow's or by its name."""
        try:
            target = pa.type_for_alias(kind) if isinstance(kind, str) else kind
        except ValueError:
            raise PredicateError(f'cast({kind!r}): there is no such type; try "float64" or "int64"') from None
        if not isinstance(target, pa.DataType):
            raise PredicateError(f'cast({kind!r}): give a type, such as "float64" or pyarrow.float64()')
        return Cast(self, target)

    def sum(self) -> "Aggregate":
        """Return the sum in a window: `.window(…).agg(total=dt.col("amount").sum())`."""
        return Aggregate("sum", self)

    def count(self) -> "Aggregate":
        """Return how many values in a window are not null; `dt.count()` counts rows."""
        return Aggregate("count", self)

    def min(self) -> "Aggregate":
        """Return the least value in a window."""
        return Aggregate("min", self)

    def max(self) -> "Aggregate":
        """Return the greatest value in a window."""
        return Aggregate("max", self)

    def mean(self) -> "Aggregate":
        """Return the mean of the values in a window, as float64."""
        return Aggregate("mean", self)

    def __bool__(self) -> NoReturn:
        raise PredicateError(
            f"the truth of `{self}` is not known while a flow is written ({caller()}). Write `a & b` or a list "
            "for `and`, `a | b` for `or`, the opposite comparison for `not`, and `x.between(low, high)` or "
            "[low < x, x < high] for `low < x < high`; put each comparison in parentheses"
        )

    def __invert__(self) -> NoReturn:
        raise PredicateError(f"there is no negation: write the opposite comparison of `{self}` ({caller()})")

    def __iter__(self) -> NoReturn:
        raise PredicateError(f"`{self}` is one value, not a sequence ({caller()})")

    def __truediv__(self, other: object) -> NoReturn:
        raise PredicateError(f"there is no division: multiply the other side of the comparison instead ({caller()})")

    __rtruediv__ = __floordiv__ = __truediv__

    def __mod__(self, other: object) -> NoReturn:
        raise PredicateError(f"there are + - * and abs(), and dt.udf for everything else ({caller()})")

    __pow__ = __rmod__ = __rpow__ = __mod__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def children(self) -> "tuple[Expression, ...]":
        """Return the expressions this one is built from."""
        return ()


def _expression(value: object) -> "Expression":
    if isinstance(value, Side):
        raise PredicateError(f"`{value}` stands for a whole row; name a column, as in `{value}.x` ({caller()})")
    return value if isinstance(value, Expression) else Literal(value)


@dataclass(frozen=True, eq=False, repr=False)
class Column(Expression):
    """A column of one side; of the only one if `side` is ''."""

    side: str
    name: str
    where: str = field(default_factory=caller)

    def __str__(self) -> str:
        if not self.side:
            return self.name if self.name.isidentifier() else f"col({self.name!r})"
        return f"{self.side}.{self.name}" if self.name.isidentifier() else f"{self.side}[{self.name!r}]"


@dataclass(frozen=True, eq=False, repr=False)
class Literal(Expression):
    """A constant."""

    value: Any

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, eq=False, repr=False)
class Arithmetic(Expression):
    """`+`, `-` or `*`."""

    op: str
    a: Expression
    b: Expression

    def children(self) -> tuple[Expression, ...]:
        """Return both operands."""
        return self.a, self.b

    def __str__(self) -> str:
        if self.op == "-" and isinstance(self.a, Literal) and self.a.value == 0:
            return f"-{_inner(self.b)}"
        loose = self.op == "*"
        a = _inner(self.a) if loose else str(self.a)
        return f"{a} {self.op} {_inner(self.b) if self.op != '+' else self.b}"


def _inner(expression: Expression) -> str:
    return f"({expression})" if isinstance(expression, Arithmetic | Compare | Logic) else str(expression)


@dataclass(frozen=True, eq=False, repr=False)
class Absolute(Expression):
    """`abs()`."""

    a: Expression

    def children(self) -> tuple[Expression, ...]:
        """Return the operand."""
        return (self.a,)

    def __str__(self) -> str:
        return f"{_inner(self.a)}.abs()"


@dataclass(frozen=True, eq=False, repr=False)
class Cast(Expression):
    """`cast(type)`."""

    a: Expression
    kind: pa.DataType

    def children(self) -> tuple[Expression, ...]:
        """Return the operand."""
        return (self.a,)

    def __str__(self) -> str:
        return f'{_inner(self.a)}.cast("{self.kind}")'


@dataclass(frozen=True, eq=False, repr=False)
class Compare(Expression):
    """`<`, `<=`, `>`, `>=`, `==` or `!=`."""

    op: str
    a: Expression
    b: Expression
    where: str = field(default_factory=caller)

    def children(self) -> tuple[Expression, ...]:
        """Return both operands."""
        return self.a, self.b

    def __str__(self) -> str:
        return f"{self.a} {self.op} {self.b}"


@dataclass(frozen=True, eq=False, repr=False)
class Between(Expression):
    """`a.between(low, high)`."""

    a: Expression
    low: Expression
    high: Expression
    where: str = field(default_factory=caller)

    def children(self) -> tuple[Expression, ...]:
        """Return the value and both ends."""
        return self.a, self.low, self.high

    def __str__(self) -> str:
        return f"{_inner(self.a)}.between({self.low}, {self.high})"


@dataclass(frozen=True, eq=False, repr=False)
class Logic(Expression):
    """`&` or `|`."""

    op: str
    a: Expression
    b: Expression
    where: str = field(default_factory=caller)

    def children(self) -> tuple[Expression, ...]:
        """Return both operands."""
        return self.a, self.b

    def __str__(self) -> str:
        parts = [f"({p})" if isinstance(p, Compare | Logic) else str(p) for p in (self.a, self.b)]
        return f" {self.op} ".join(parts)


@dataclass(frozen=True, eq=False, repr=False)
class UserFunction(Expression):
    """`udf(fn, left_columns, right_columns)`."""

    fn: Callable[..., Any]
    columns: tuple[Column, ...]
    where: str = field(default_factory=caller)

    def children(self) -> tuple[Expression, ...]:
        """Return the columns that the function is given."""
        return self.columns

    def __str__(self) -> str:
        return f"{name_of(self.fn)}({', '.join(map(str, self.columns))})"


class Side:
    """One row of a pair: `left.x`, or `left["odd name"]` for any column."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Column:
        # Names with an underscore in front are what Python and notebooks ask any object for.
        if name.startswith("_"):
            raise AttributeError(f"for a column of this name write {self._name}[{name!r}]")
        return Column(self._name, name)

    def __getitem__(self, name: str) -> Column:
        if not isinstance(name, str):
            raise PredicateError(f"{self._name}[{name!r}]: a column is named by a string ({caller()})")
        return Column(self._name, name)

    def __repr__(self) -> str:
        return self._name


left = Side("left")
right = Side("right")


def col(name: str) -> Column:
    """Return a column of a stream, for `filter` and `with_columns`.

    >>> print((col("x") + 1) * 2 > col("odd name"))
    (x + 1) * 2 > col('odd name')
    """
    if not isinstance(name, str):
        raise PredicateError(f"col({name!r}): a column is named by a string ({caller()})")
    return Column("", name)


def lit(value: object) -> Literal:
    """Return a constant, where Python would not see that an expression is meant."""
    return Literal(value)


def udf(fn: Callable[..., Any], left_columns: Sequence[str], right_columns: Sequence[str] = ()) -> UserFunction:
    """Return a predicate that a function of yours decides, for many pairs at once.

    `fn` gets one array for each named column, the left ones first, all of the same length, and returns as many
    booleans. Numbers, booleans and times come as NumPy arrays, everything else as Arrow arrays. Pairs with a null
    in a named column are false, and are not shown to it. It must give the same answer for the same pair.

    >>> print(udf(lambda a, b: a % 7 == b % 7, ["id"], ["id"]))
    lambda(left.id, right.id)
    """
    if not callable(fn):
        raise PredicateError(f"udf({fn!r}): give a function ({caller()})")
    for names in (left_columns, right_columns):
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise PredicateError(f"udf(…, {names!r}): give a list of column names ({caller()})")
    columns = (*(Column("left", n) for n in left_columns), *(Column("right", n) for n in right_columns))
    if not columns:
        raise PredicateError(f"udf({origin(fn)}): name at least one column ({caller()})")
    return UserFunction(fn, columns)


@dataclass(frozen=True, eq=False, repr=False)
class Aggregate:
    """An aggregate as it was written: `dt.col("x").sum()`."""

    op: str
    of: "Expression | None" = None
    fn: Callable[[pa.RecordBatch], Any] | None = None
    columns: tuple[str, ...] = ()
    type: pa.DataType | None = None
    where: str = field(default_factory=caller)

    def __str__(self) -> str:
        if self.fn is not None:
            return f"{origin(self.fn)} of {', '.join(self.columns)}"
        return "count()" if self.of is None else f"{_inner(self.of)}.{self.op}()"

    __repr__ = __str__

    def _unknown(self, *_: object) -> NoReturn:
        raise PredicateError(
            f"`{self}` is known only when a window is complete: give it a name in .window(…).agg(x={self}), and go on "
            f'with dt.col("x") behind that ({caller()})'
        )

    __hash__ = object.__hash__
    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __rsub__ = _unknown
    sum = count = min = max = mean = abs = between = cast = _unknown
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = __and__ = __or__ = _unknown


def count() -> Aggregate:
    """Return the number of rows of a group; `dt.col("x").count()` counts where x is not null.

    >>> count()
    count()
    """
    return Aggregate("count")


def group_udf(fn: Callable[[pa.RecordBatch], Any], columns: Sequence[str], type: pa.DataType) -> Aggregate:
    """Return an aggregate that a function of yours computes, from these columns of the rows of a group.

    `fn` gets a RecordBatch with the group's rows in order, once for each result, and returns one value, or None. The
    rows are kept until then.

    >>> group_udf(lambda rows: rows.num_rows, ["x"], pa.int64())  # doctest: +ELLIPSIS
    lambda (...) of x
    """
    if not callable(fn):
        raise FlowError(f"group_udf({fn!r}): give a function ({caller()})")
    if isinstance(columns, str) or not columns or not all(isinstance(name, str) for name in columns):
        raise FlowError(f"group_udf({origin(fn)}): {columns!r} is not a list of column names ({caller()})")
    if not isinstance(type, pa.DataType):
        raise FlowError(f"group_udf({origin(fn)}): {type!r} is not a type; give one such as pyarrow.float64()")
    return Aggregate("udf", None, fn, tuple(columns), type)
