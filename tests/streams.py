"""Random streams, predicates and windows, drawn so that edges are hit often; and how many to draw.

Three things are here. *Kinds* of columns: an Arrow type, the raw values that fill it, and what such a
value means to the oracle (temporal values are Fractions of a second, decimals are Fractions, so that no
width or unit gets in the way). *Conditions*: a writer of random predicates, in the language of
predicates.py. *Cases*: two streams or one, a predicate, windows.

Values are drawn from a few, so that ties are the rule: the same small numbers on both sides, and the
extremes of every width, neighbours of 2^53, NaN, both zeros and the infinities among them. Every row has
an `id` that is its own, left from 0 and right from 1000, so that a result is a list of pairs of ids.

This module does not import the library, so what it expects cannot come from there.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from oracle import Clock, Window
from predicates import (
    Absolute,
    Arithmetic,
    AsFloat,
    Between,
    Both,
    Column,
    Compare,
    Condition,
    Constant,
    Either,
    Expression,
    Udf,
    nearer_zero,
    rest_or_more,
    same_rest,
    sides,
)

EXAMPLES = int(os.environ.get("DOVETAIL_EXAMPLES", "500"))
"""How many cases the matrix draws for each of its tests (rarer ones draw a share of it)."""


def examples(share: float = 1.0):
    """Settings for a test of the matrix: no deadline, and in CI the same cases every time."""
    return settings(
        max_examples=max(1, round(EXAMPLES * share)),
        deadline=None,
        derandomize="CI" in os.environ,
        print_blob=True,  # the seed of a failure, to be run again
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


# Kinds of columns


@dataclass(frozen=True)
class Kind:
    """An Arrow type, how its raw values look to pyarrow, and what they mean."""

    name: str
    family: str
    type: pa.DataType
    low: int = 0
    high: int = 0
    tick: Fraction | None = None  # seconds, for temporal kinds

    def __repr__(self) -> str:
        return self.name

    @property
    def ordered(self) -> bool:
        """Whether `<` knows it; the others are only equal or not."""
        return self.family not in ("text", "binary", "bool")

    def meaning(self, raw: Any) -> Any:
        if raw is None:
            return None
        if self.tick is not None:
            return raw * self.tick
        return Fraction(raw) if isinstance(raw, Decimal) else raw

    def array(self, raws: Sequence[Any]) -> pa.Array:
        if pa.types.is_dictionary(self.type):
            # the newest value first: no two batches need have the same dictionary
            values = [raw for raw in dict.fromkeys(reversed(raws)) if raw is not None]
            indices = [None if raw is None else values.index(raw) for raw in raws]
            values = pa.array(values, self.type.value_type)
            return pa.DictionaryArray.from_arrays(pa.array(indices, self.type.index_type), values)
        if self.tick is not None:
            storage = pa.int32() if pa.types.is_date32(self.type) else pa.int64()
            return pa.array(raws, storage).view(self.type)
        return pa.array(raws, self.type)


UNITS = {"s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)}
DAY = Fraction(86400)
TIMES_LOW, TIMES_HIGH = -(2**63), 2**63 - 1


def _temporal(family: str, types: dict[str, pa.DataType]) -> list[Kind]:
    return [Kind(f"{family}[{u}]", family, t, TIMES_LOW, TIMES_HIGH, UNITS[u]) for u, t in types.items()]


SIGNED = [Kind(f"int{b}", "int", getattr(pa, f"int{b}")(), -(2 ** (b - 1)), 2 ** (b - 1) - 1) for b in (8, 16, 32, 64)]
UNSIGNED = [Kind(f"uint{b}", "int", getattr(pa, f"uint{b}")(), 0, 2**b - 1) for b in (8, 16, 32, 64)]
INTS = SIGNED + UNSIGNED
INT64, FLOAT32, FLOAT64 = (
    SIGNED[3],
    Kind("float32", "float", pa.float32()),
    Kind("float64", "float", pa.float64()),
)
FLOATS = [FLOAT32, FLOAT64]
DECIMALS = [Kind(f"decimal({p}, {s})", "decimal", pa.decimal128(p, s)) for p, s in [(5, 2), (9, 2), (18, 4), (18, 0)]]
STAMPS = _temporal("timestamp", {u: pa.timestamp(u) for u in UNITS})
ZONED = _temporal(
    "zoned",
    {u: pa.timestamp(u, zone) for u, zone in zip(UNITS, ["UTC", "Europe/Berlin", "UTC", "Asia/Kolkata"])},
)
DURATIONS = _temporal("duration", {u: pa.duration(u) for u in UNITS})
DATE = Kind("date32", "date", pa.date32(), -(2**31), 2**31 - 1, DAY)
TEXTS = [
    Kind("string", "text", pa.string()),
    Kind("large_string", "text", pa.large_string()),
    Kind("dictionary", "text", pa.dictionary(pa.int8(), pa.string())),
]
BINARY = Kind("binary", "binary", pa.binary())
BOOL = Kind("bool", "bool", pa.bool_())

NUMBERS = [*INTS, *[INT64, UNSIGNED[3]] * 4, *FLOATS * 2]  # the widest are where exactness is lost
ORDERED_FAMILIES = [NUMBERS, NUMBERS, NUMBERS, DECIMALS, STAMPS, ZONED, DURATIONS, [DATE]]
EQUAL_FAMILIES = [TEXTS, TEXTS, [BINARY], [BOOL], NUMBERS]

_EDGES = sorted({edge for kind in INTS for edge in (kind.low, kind.high + 1)}) + [2**24] + [2**53, -(2**53), 2**63] * 4
"""Where a type ends, or where a float no longer tells integers apart: these and their neighbours."""
_SPECIAL_FLOATS = [
    *[math.nan, math.inf, -math.inf, -0.0, 0.1, 0.3, 0.1 + 0.2] * 3,
    *[0.5, 1.5, -2.5, 5e-324, 1e308, -1e308, 3.4028234663852886e38],
    *[1.0 + 2.0**-52, 2.0**53, 2.0**63, -(2.0**63), 2.0**64],
]


def _raws(kind: Kind, numbers: list[int], floats: list[float]) -> list[Any]:
    """Everything that a column of this kind is filled from; `numbers` are shared by all columns of a case."""
    if kind.family == "int":
        return [n for n in (0, 1, 2, 3, *numbers) if kind.low <= n <= kind.high]
    if kind.family == "float":
        values = [0.0, -0.0, 1.0, 2.0, math.nan, *map(float, numbers), *floats]
        if kind is FLOAT64:
            return values
        with np.errstate(over="ignore"):
            return [float(np.float32(value)) for value in values]
    if kind.family == "decimal":
        exponent = Decimal(1).scaleb(-kind.type.scale)
        top = Decimal(10**kind.type.precision - 1).scaleb(-kind.type.scale)
        few = [Decimal(text) for text in ("0", "1", "-1", "2")]
        fine = [Decimal(text) for text in ("0.25", "0.5", "1.5")] if kind.type.scale else []
        return [d.quantize(exponent) for d in few + fine] + [top, -top]
    if kind.tick is not None:
        second = max(1, int(1 / kind.tick))
        few = [-second, 0, second, 2 * second, *([1, second + 1] if second > 1 else [])]
        wide = any(abs(number) > 100 for number in numbers)
        return few + ([kind.low, kind.low + 1, kind.high] if wide else [])
    if kind.family == "binary":
        return [b"", b"a", b"a\0", b"\xff"]
    return [False, True] if kind.family == "bool" else ["", "a", "b", "ab", "é", "a\0"]


# Strategies for predicates


@dataclass(frozen=True)
class Columns:
    """The columns of both sides that predicates may name: two of the same name are of one family."""

    left: dict[str, Kind]
    right: dict[str, Kind]

    def of(self, side: str) -> dict[str, Kind]:
        return self.left if side == "left" else self.right

    def named(self, side: str, *families: str) -> list[str]:
        return [name for name, kind in self.of(side).items() if kind.family in families]


_SPANS = [timedelta(0), timedelta(seconds=1), timedelta(seconds=2), timedelta(milliseconds=1500)]
_DISTANCES = {
    "int": [0, 1, 1, 2, 3, 3, 10, 2**63],
    "float": [0, 1, 0.0, 0.1, 0.2, 0.5, 1.5, float("inf")],
    "decimal": [Decimal("0"), Decimal("0.25"), Decimal("1.5"), Decimal("2")],
    "timestamp": _SPANS,
    "zoned": _SPANS,
    "duration": _SPANS,
    "date": [timedelta(0), timedelta(days=1)],
}
_RANGE = ("<", "<=", ">", ">=")
_OTHER = {"int": "float", "float": "int"}  # what may be compared with it, but not added to it


class Conditions:
    """Writes conditions on given columns, one method for each thing that they look like."""

    def __init__(self, columns: Columns, rng: Random) -> None:
        self.columns, self.rng = columns, rng
        self.pick = rng.choice
        self.families = [f for f in _DISTANCES if self._leaves("left", f) and self._leaves("right", f)]

    def _leaves(self, side: str, family: str) -> list[Expression]:
        leaves = [Column(side, name) for name in self.columns.named(side, family)]
        if family == "float":
            leaves += [AsFloat(Column(side, name)) for name in self.columns.named(side, "int")]
        return leaves

    def expression(self, side: str, family: str) -> Expression:
        """Anything that one can write of one side's columns, mostly a column alone."""
        leaf, other = (self.pick(self._leaves(side, family)) for _ in range(2))
        if self.rng.random() < 0.65 or family == "decimal":
            return leaf
        if family not in ("int", "float"):
            return Arithmetic(self.pick("+-"), leaf, Constant(self.pick(_DISTANCES[family])))
        few = [0, 1, 2, -1, -2, 0.5, 0.1, -1.5]
        if family == "int":
            few = [-3, -2, -1, -1, 0, 1, 1, 2, 2, 3, self.pick([1, 2**63, -(10**20)])]
        constant = Constant(self.pick(few))
        written = self.pick(
            [
                Arithmetic(self.pick("+-*"), leaf, constant),
                Arithmetic(self.pick("+-*"), constant, leaf),
                Arithmetic(self.pick("+-*"), leaf, other),
                Arithmetic(self.pick("+-"), Arithmetic("*", constant, leaf), other),
            ]
        )
        return Absolute(written) if self.rng.random() < 0.2 else written

    def _both(self, family: str) -> list[Expression]:
        """An expression of each side, in any order."""
        both = [self.expression("left", family), self.expression("right", family)]
        return both if self.rng.random() < 0.6 else both[::-1]

    def comparison(self, signs: Sequence[str] = (*_RANGE, "==", "!=")) -> Condition:
        family = self.pick(self.families)
        left, right = self.expression("left", family), self.expression("right", family)
        other = _OTHER.get(family)
        if self.rng.random() < 0.3 and other and self._leaves("right", other):
            right = self.expression("right", other)
        return Compare(self.pick(signs), *((left, right) if self.rng.random() < 0.6 else (right, left)))

    def inequality(self) -> Condition:
        return self.comparison(_RANGE)

    def equality(self) -> Condition:
        """Two columns of one name, or the one that only equality knows against a constant."""
        if self.rng.random() < 0.2:
            constants = {"text": ["a", ""], "binary": [b"a"], "bool": [True]}
            constant = self.pick(constants.get(self.columns.left["odd name"].family, [1]))
            return Compare("==", Column(self.pick(["left", "right"]), "odd name"), Constant(constant))
        name = self.pick(list(self.columns.left))
        return Compare("==" if self.rng.random() < 0.8 else "!=", Column("left", name), Column("right", name))

    def band(self) -> Condition:
        family = self.pick(self.families)
        distance = Constant(self.pick(_DISTANCES[family]))
        return Compare(self.pick(["<=", "<=", "<=", "<"]), Absolute(Arithmetic("-", *self._both(family))), distance)

    def between(self) -> Condition:
        family = self.pick(self.families)
        (inside, low), high = self._both(family), None
        if self.rng.random() < 0.5 and family != "decimal":
            distance = Constant(self.pick(_DISTANCES[family]))
            return Between(inside, Arithmetic("-", low, distance), Arithmetic("+", low, distance))
        high = self.expression(min(sides(low)), family)
        return Between(inside, low, high)

    def one_sided(self) -> Condition:
        side, family = self.pick(["left", "right"]), self.pick(self.families)
        operand = self.expression(side, family)
        if family in ("int", "float") and self.rng.random() < 0.7:
            return Compare(self.pick((*_RANGE, "==", "!=")), operand, Constant(self.pick([0, 1, 2, 3])))
        return Compare(self.pick((*_RANGE, "==")), operand, self.expression(side, family))

    def mixed(self) -> Condition:
        """Both sides in one operand."""
        numeric = [family for family in self.families if family in ("int", "float")]
        total = Arithmetic(self.pick("+-*"), *self._both(self.pick(numeric)))
        return Compare(self.pick((*_RANGE, "==")), total, Constant(self.pick([0, 1, 2, 3])))

    def udf(self) -> Condition:
        for family in self.rng.sample(["int", "float"], 2):
            left, right = self.columns.named("left", family), self.columns.named("right", family)
            if left and right and family == "float":
                return Udf("nearer_zero", nearer_zero, nearer_zero, (self.pick(left),), (self.pick(right),))
            if left and len(right) > 1 and self.rng.random() < 0.5:
                return Udf("rest_or_more", rest_or_more, rest_or_more, (self.pick(left),), tuple(right[:2]))
            if left and right:
                return Udf("same_rest", same_rest, same_rest, (self.pick(left),), (self.pick(right),))
        return self.equality()

    def range(self) -> Condition:
        return self.pick([self.inequality, self.band, self.between])()

    def single(self) -> Condition:
        return self.pick(
            [self.range, self.range, self.comparison, self.equality, self.one_sided, self.mixed, self.udf]
        )()

    def any(self) -> Condition:
        return self.pick(
            [
                self.single,
                self.range,
                self.between,
                self.udf,
                lambda: Both(self.udf(), self.single()),
                lambda: Both(self.equality(), self.range()),
                lambda: Both(self.range(), self.range()),
                lambda: Either(self.band(), self.band()),
                lambda: Either(self.single(), Both(self.single(), self.single())),
            ]
        )()

    def predicate(self) -> tuple[Condition, ...]:
        """What `on=` takes: one condition or a list of them."""
        shape = self.rng.random()
        if shape < 0.6:
            return (self.any(),)
        if shape < 0.85:
            return tuple(self.inequality() for _ in range(self.pick([2, 2, 3])))
        return self.any(), self.any()


# Streams


@dataclass(frozen=True)
class Side:
    """One stream as it arrives: kinds of its columns and raw values, row by row."""

    columns: dict[str, Kind]
    rows: list[dict]
    time: str | None
    delay: Fraction = Fraction(0)  # in ticks

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, kind.type) for name, kind in self.columns.items()])

    @property
    def tick(self) -> Fraction:
        """What a tick is worth: 1 for integers, whose durations are in their own unit."""
        return self.columns[self.time].tick or Fraction(1)

    @property
    def clock(self) -> Clock | None:
        """The oracle's clock, for rows as `meanings` gives them: times are worth themselves there."""
        return None if self.time is None else Clock(self.time)

    def batch(self, rows: Sequence[dict] | None = None) -> pa.RecordBatch:
        rows = self.rows if rows is None else rows
        arrays = [kind.array([row[name] for row in rows]) for name, kind in self.columns.items()]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def meanings(self, rows: Sequence[dict] | None = None) -> list[dict]:
        rows = self.rows if rows is None else rows
        return [{name: kind.meaning(row[name]) for name, kind in self.columns.items()} for row in rows]


@dataclass(frozen=True, repr=False)
class Case:
    """A join: `right` is None for a self-join. `windows` are what is kept of the left and of the right."""

    left: Side
    right: Side | None
    on: tuple[Condition, ...]
    windows: tuple[Window, Window]
    alone: bool  # written as one window, not as a pair of two
    seed: int  # for whatever else a test wants to draw: cuts, indexes

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        said = [f"on={list(self.on)}", f"windows={self.windows if not self.alone else self.windows[0]}"]
        for name, side in zip(("left", "right"), self.both):
            said.append(f"{name}: {side.columns} delay={side.delay}")
            said += [f"    {row}" for row in side.rows]
        return "\n".join([f"Case of seed {self.seed}", *said])

    def rng(self, purpose: str) -> Random:
        return Random(f"{self.seed} {purpose}")

    def holds(self, left: dict, right: dict) -> bool:
        return all(condition.holds(left, right) for condition in self.on)

    @cached_property
    def both(self) -> tuple[Side, ...]:
        return (self.left,) if self.right is None else (self.left, self.right)

    @property
    def timed(self) -> bool:
        return self.left.time is not None

    def said_on(self, dt: ModuleType) -> Any:
        said = [condition.said(dt) for condition in self.on]
        return said[0] if len(said) == 1 else said

    def said_window(self, dt: ModuleType) -> Any:
        in_units = self.timed and self.left.columns[self.left.time].tick is None
        if self.alone:
            return said_window(dt, self.windows[0], in_units)
        return tuple(said_window(dt, window, in_units) for window in self.windows)


def said_window(dt: ModuleType, window: Window, in_units: bool) -> Any:
    """Say a window as a user does; `in_units`: the time column is an integer."""
    if window.rows is not None:
        return dt.last(window.rows) if window.slide is None else dt.last(window.rows, slide=int(window.slide))
    if window.span is None:
        return dt.last(None)
    slide = {}
    if window.slide is not None:
        slide["slide"] = int(window.slide) if in_units else said_duration(window.slide)
    return dt.last(time=int(window.span), **slide) if in_units else dt.last(said_duration(window.span), **slide)


_SAID_UNITS = {"h": Fraction(3600), "min": Fraction(60), **UNITS}


def said_duration(seconds: Fraction) -> str:
    """Say a duration in the coarsest unit in which it is whole.

    >>> said_duration(Fraction(3, 2)), said_duration(Fraction(600)), said_duration(Fraction(0))
    ('1500ms', '10min', '0s')
    """
    if seconds == 0:
        return "0s"
    return next(f"{seconds / unit}{name}" for name, unit in _SAID_UNITS.items() if (seconds / unit).denominator == 1)


# Strategies for streams and cases

_LENGTHS = (0, 1, 2, 5, 8, 12, 18, 24, 30, 40)
_SIZES = [(m, n) for m in _LENGTHS for n in _LENGTHS]
_SIZES.sort(key=lambda sizes: (sum(sizes), sizes))  # so that Hypothesis shrinks towards short streams
_TIME_FAMILIES = [INTS, STAMPS, ZONED, [DATE], [STAMPS[2]], [INT64]]


def _key_columns(rng: Random) -> Columns:
    """Kinds for both sides. Columns of one name are of one family, so that they can be compared."""
    kinds = {}
    for name, families in {"x": ORDERED_FAMILIES, "y": [NUMBERS], "odd name": EQUAL_FAMILIES}.items():
        family = rng.choice(families)
        kinds[name] = rng.choice(family), rng.choice(family)
        if rng.random() < 0.3:
            kinds[name] = kinds[name][:1] * 2
    return Columns({name: kind for name, (kind, _) in kinds.items()}, {name: kind for name, (_, kind) in kinds.items()})


def _times(rng: Random, zero: int, step: int, size: int, low: int, high: int, parity: int | None) -> list[int]:
    """`size` times near `zero`, mostly multiples of `step`, out of order and with many ties."""
    seed, spread, ascending = rng.random(), rng.choice([0, 3, 5, 8, 20]), rng.random() < 0.4
    grid = [Random(f"{seed} {n}").randint(0, spread) for n in range(size)]
    if ascending:
        grid = sorted(grid)
    if parity is not None:  # no time of one side is ever one of the other
        return [zero + 2 * n + parity for n in grid]
    off = [0, 0, 0, -1, 1] if step > 1 else [0]
    times = [zero + step * n + Random(f"{seed} off {at}").choice(off) for at, n in enumerate(grid)]
    return [min(max(time, low), high) for time in times]


def _rows(rng: Random, kinds: dict[str, Kind], size: int, first: int, numbers, floats) -> list[dict]:
    """Rows whose values come from a few, a null among them now and then."""
    seed, nulls = rng.random(), rng.choice([0.0, 0.1])
    pools = {name: rng.choices(_raws(kind, numbers, floats), k=rng.randint(2, 6)) for name, kind in kinds.items()}
    rows = []
    for n in range(size):
        one = Random(f"{seed} {n}")
        row = {name: None if one.random() < nulls else one.choice(pool) for name, pool in pools.items()}
        rows.append({"id": first + n, **row})
    return rows


def a_window(rng: Random, ticks: tuple[Fraction, Fraction] | None, in_units: bool) -> Window:
    """Any window; `ticks` are those of both time columns, None without time."""
    kind = rng.choice(["rows", "rows", "all", *(["time"] * 4 if ticks is not None else [])])
    if kind == "all":
        return Window()
    if kind == "rows":
        n = rng.choice([1, 2, 3, 5, 8, 20, 100])
        return Window(rows=n, slide=rng.choice([None, rng.randint(1, min(n, 7))]))
    coarse = max(ticks)
    span = rng.choice([0, 1, 2, 3, 5, 8, 8, 13]) * coarse
    if rng.random() < 0.1:  # time(p) - span lies far below what the column's type holds
        span = Fraction(2**63 - 1) if set(ticks) == {1} else Fraction(9 * 10**9)
    slide = rng.randint(1, min(int(span / coarse), 7)) * coarse if span and rng.random() < 0.5 else None
    if not in_units and coarse > UNITS["ns"] and rng.random() < 0.25:
        span += coarse / 2  # finer than the unit: compared exactly
    return Window(span=span, slide=slide)


def _time_kinds(rng: Random, alike: bool) -> tuple[Kind, Kind, int]:
    """Kinds for both time columns, and where time begins, in ticks."""
    family = rng.choice(_TIME_FAMILIES)
    left, right = rng.choice(family), rng.choice(family)
    if alike:
        right = left
    low, high = max(left.low, right.low), min(left.high, right.high, TIMES_HIGH)
    zeros = [0, 0, 0, -5] + ([low, high - 12] if left.tick == right.tick else [])
    return left, right, max(rng.choice(zeros), low)


@st.composite
def cases(draw, timed: bool | None = None, alone: bool | None = None, apart: bool = False) -> Case:
    """Any join. `alone`: a self-join or not; `apart`: no time of one side is one of the other.

    All but the sizes is drawn from one seed: value by value, Hypothesis runs out of data before a case is
    interesting, and repeats the simplest ones. Row n is drawn from (seed, n), so that a shorter stream is
    a prefix of a longer one, and a failing case shrinks in its rows.
    """
    sizes, seed = draw(st.tuples(st.sampled_from(_SIZES), st.integers(0, 2**64 - 1)))
    rng = Random(seed)
    timed = rng.random() < 0.75 if timed is None else timed
    alone = rng.random() < 0.3 if alone is None else alone
    columns = _key_columns(rng)
    if alone:
        columns = Columns(columns.left, columns.left)
    *clocks, zero = _time_kinds(rng, alike=alone or apart)
    zero = 0 if apart else zero  # far from the ends of every type, so that nothing is clamped into a tie
    edge = rng.choice(_EDGES)
    numbers = rng.choice([[-1, 4], [-2, -1], [edge - 1, edge, edge + 1] * 2, [edge, edge + 1] * 3])
    floats = rng.choices(_SPECIAL_FLOATS, k=4)
    ticks = tuple(kind.tick or Fraction(1) for kind in clocks)
    built = []
    for number, (keys, clock) in enumerate(zip((columns.left, columns.right), clocks)):
        # where units differ, half a tick of the coarser one, and a tick of the finer one more or less
        step = max(1, int(max(ticks) / ticks[number] / 2))
        rows, kinds = _rows(rng, keys, sizes[number], 1000 * number, numbers, floats), {"id": INT64, **keys}
        if timed:
            high = min(clock.high, TIMES_HIGH)
            times = _times(rng, zero, step, len(rows), clock.low, high, number if apart else None)
            rows = [{**row, "ts": time} for row, time in zip(rows, times)]
            at = rng.randint(0, len(kinds))
            kinds = dict([*list(kinds.items())[:at], ("ts", clock), *list(kinds.items())[at:]])
        delay = Fraction(rng.choice([0, 0, 1, 3, 30]) * step)
        built.append(Side(kinds, rows, "ts" if timed else None, delay))
    in_units, single = clocks[0].tick is None, rng.random() < 0.5
    left_window, right_window = (a_window(rng, ticks if timed else None, in_units) for _ in range(2))
    return Case(
        left=built[0],
        right=None if alone else built[1],
        on=Conditions(columns, rng).predicate(),
        windows=(left_window, left_window if single else right_window),
        alone=single,
        seed=seed,
    )
