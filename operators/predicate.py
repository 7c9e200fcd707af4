"""From a predicate as written to what a join does with it: keys, ranges, filters, and a remainder.

Problem: any comparison may be written, and an index finds rows by the range of one key. Idea: each conjunct that
compares a part of the left row with a part of the right row is turned around twice, once for each side that can be
*stored*: `key(stored row) in [lo(probing row), hi(probing row)]`. Such a conjunct is a `RangeTest`. Keys and ends
are 64-bit numbers in the order of the values (state/keys.hpp), so that one native loop serves every type.

Normal form, for each stored side:

- *row conditions*, on one side only: they decide which rows are stored and which probe (never which are counted);
- *range tests*: tests with the same key are one test, so that `a <= x` and `x <= b` become a band. One of them may
  be the access path of an index, the others filter what it finds;
- *a union of bands*, if the conjunct is `|` of tests on one key; it serves as an access path, or not at all;
- *the remainder*: conjuncts that no test decides exactly, evaluated on pairs as written.

Invariant: a test never excludes a pair for which its conjunct is true. A test is `exact` if it also excludes all the
others; a conjunct without an exact test is in the remainder. Exact kinds are moved across the comparison freely, as
their arithmetic is exact. Float arithmetic rounds, so that a rearranged float test widens its range by a bound on
the rounding (`_Sum`) and leaves the decision to the conjunct as written.
"""

__all__ = ["JoinPredicate", "RangeTest", "SidePlan", "plan_predicate"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import PredicateError
from ..state import _native
from .binding import BOOL, Bound, bind_predicate, common_ticks
from .evaluate import UINT64_MAX, Load, evaluate, exact_add, exact_divide, exact_scale, fitted, floats_as_bounds, truth
from .expressions import FLIPPED, Expression
from .times import INT64_MAX, INT64_MIN

KeyArray = np.ndarray  # of uint64
Mask = np.ndarray | None
Ends = tuple[KeyArray, KeyArray]

OTHER = {"left": "right", "right": "left"}


@dataclass(frozen=True, eq=False)
class StoredKey:
    """A number of each stored row. Equal `name` means the same key.

    `mirrored` is the name of the same key of the other side's row, as the two roles of a self-join have it.
    """

    name: str
    mirrored: str
    text: str
    compute: Callable[[Load, int], tuple[KeyArray, Mask]]
    domain: str  # int64, uint64, float64, hash


@dataclass(frozen=True, eq=False)
class RangeTest:
    """`key(stored row) in [lo, hi]`, or not in it if `negated`; ends come from the probing row.

    `ends` returns ranges and the mask of probing rows for which the conjunct can hold at all (None: all of them).
    A union of bands has several disjoint ranges a probe: `ends` then returns two-dimensional arrays, one row a band.
    """

    key: StoredKey
    ends: Callable[[Load, int], tuple[KeyArray, KeyArray]]
    shape: str  # equality, band, comparison, union, unequal
    conjuncts: tuple[Bound, ...]
    exact: bool

    @property
    def negated(self) -> bool:
        """True for `!=`."""
        return self.shape == "unequal"


@dataclass(frozen=True, eq=False)
class SidePlan:
    """How rows of one side are stored, and found by the rows of the other."""

    stored: str
    tests: tuple[RangeTest, ...]
    remainder: tuple[Bound, ...]

    def remainder_with(self, used: Sequence[RangeTest]) -> tuple[Bound, ...]:
        """Return the conjuncts that are left to decide when these tests are applied."""
        trusted = {test for test in used if test.exact}
        undecided = [c for test in self.tests if test not in trusted for c in test.conjuncts]
        unique = {id(c): c for c in (*undecided, *self.remainder)}
        return tuple(unique.values())


@dataclass(frozen=True, eq=False)
class JoinPredicate:
    """A join's predicate, planned."""

    conjuncts: tuple[Bound, ...]
    conditions: dict[str, tuple[Bound, ...]]
    sides: dict[str, SidePlan]

    def columns(self, side: str) -> set[str]:
        """Return the columns of one side that the predicate reads."""
        return {name for c in self.conjuncts for s, name in c.columns() if s == side}

    def normal_form(self) -> list[str]:
        """Describe it, a line each: equality keys, ranges, conditions, the remainder."""
        lines = []
        plan = self.sides["left"]
        shapes: dict[int, str] = {}
        for test in plan.tests:
            for conjunct in test.conjuncts:
                shapes.setdefault(id(conjunct), test.shape)
        names = {"equality": "equality key", "band": "band", "comparison": "inequality", "union": "union of bands",
                 "unequal": "inequality"}  # fmt: skip
        for conjunct in {str(c): c for c in self.conjuncts}.values():
            sides = conjunct.sides
            if len(sides) == 1:
                what = f"condition on {next(iter(sides))} rows"
            else:
                what = names.get(
                    shapes.get(id(conjunct), ""), "user function" if conjunct.op == "udf" else "evaluated on pairs"
                )
            lines.append(f"{what}: {conjunct}")
        return lines or ["always true"]


def plan_predicate(on: Any, schemas: dict[str, pa.Schema], where: str) -> JoinPredicate:
    """Check a join's `on=` against both schemas and plan it.

    Parameters
    ----------
    on
        A predicate, or a list of them that must all hold.
    schemas
        Under 'left' and 'right'.
    where
        Which step it is, for messages.
    """
    predicates = list(on) if isinstance(on, list | tuple) else [on]
    conjuncts: list[Bound] = []
    for predicate in predicates:
        if isinstance(predicate, bool) or not isinstance(predicate, Expression):
            hint = " (was it written with `and`, or compared with ==?)" if isinstance(predicate, bool) else ""
            raise PredicateError(
                f"{where}: on={predicate!r} is not a predicate{hint}; write one such as `left.x < right.y`, or a list"
            )
        conjuncts += _conjuncts(bind_predicate(predicate, schemas, where))
    for conjunct in conjuncts:
        if not conjunct.sides and not truth(conjunct, _no_columns, 1)[0]:
            raise PredicateError(f"{where}: a predicate that is always False can never hold: `{conjunct}`")
    conjuncts = [c for c in conjuncts if c.sides]
    _refuse_contradictions(conjuncts, where)
    conditions = {side: tuple(c for c in conjuncts if c.sides == {side}) for side in OTHER}
    pairs = [c for c in conjuncts if len(c.sides) == 2]
    sides = {side: _plan_side(pairs, side) for side in OTHER}
    return JoinPredicate(tuple(conjuncts), conditions, sides)


def _no_columns(side: str, name: str) -> pa.Array:
    raise AssertionError(f"a constant predicate asked for {side}.{name}")


def _conjuncts(bound: Bound) -> list[Bound]:
    """Take `&` apart. `between` stays whole in print, but its two halves are conjuncts of their own."""
    if bound.op != "&":
        return [bound]
    return [part for arg in bound.args for part in _conjuncts(arg)]


# Linear forms ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Linear:
    """A sum: coefficients of one-sided exact terms, and a constant, all in the same ticks.

    `cancelled`: a term fell out (`x - x`, `0 * x`), whose null still makes the comparison false.
    """

    terms: dict[str, tuple[Bound, int]]
    constant: int
    ticks: Fraction
    cancelled: bool = False

    def scaled(self, ticks: Fraction) -> "_Linear":
        factor = int(ticks / self.ticks)
        return self.times(factor, ticks)

    def times(self, factor: int, ticks: Fraction) -> "_Linear":
        return self.of({k: (b, c * factor) for k, (b, c) in self.terms.items()}, self.constant * factor, ticks)

    def of(self, terms: dict[str, tuple[Bound, int]], constant: int, ticks: Fraction) -> "_Linear":
        """Make a sum out of this one, without the terms that fall out."""
        left_over = {k: v for k, v in terms.items() if v[1]}
        return _Linear(left_over, constant, ticks, self.cancelled or len(left_over) < len(terms))

    def plus(self, other: "_Linear", sign: int) -> "_Linear":
        ticks = common_ticks(self.ticks, other.ticks)
        a, b = self.scaled(ticks), other.scaled(ticks)
        terms = dict(a.terms)
        for key, (bound, coefficient) in b.terms.items():
            total = terms.get(key, (bound, 0))[1] + sign * coefficient
            terms[key] = (bound, total)
        both = replace(a, cancelled=a.cancelled or b.cancelled)
        return both.of(terms, a.constant + sign * b.constant, ticks)

    def side(self, side: str) -> dict[str, tuple[Bound, int]]:
        return {k: v for k, v in self.terms.items() if v[0].sides == {side}}


def _linear(e: Bound) -> _Linear | None:
    """Return an exact expression as a sum of one-sided terms; None if a term looks at both sides."""
    if e.op == "literal":
        return _Linear({}, e.value, e.kind.ticks)
    if e.op in "+-":
        a, b = _linear(e.args[0]), _linear(e.args[1])
        return a.plus(b, 1 if e.op == "+" else -1) if a and b else None
    if e.op == "*":
        for constant, rest in (e.args, e.args[::-1]):
            if constant.op == "literal":
                inner = _linear(rest)
                return inner.times(constant.value, inner.ticks * constant.kind.ticks) if inner else None
    return _Linear({e.key: (e, 1)}, 0, e.kind.ticks) if len(e.sides) == 1 else None


@dataclass(frozen=True)
class _Half:
    """`key op bound`, for one stored side: half of a band, or a whole comparison."""

    key: StoredKey
    op: str
    # (probing columns) -> ends of the range of keys; the lower or the upper one is the key domain's own end
    ends: Callable[[Load, int], Ends]
    exact: bool


def _comparisons(conjunct: Bound) -> list[tuple[Bound, str, Bound]] | None:
    """Return a conjunct as comparisons that must all hold; None for anything else. Distances are taken apart."""
    if conjunct.op not in FLIPPED:
        return None
    a, b = conjunct.args
    for band, limit, op in ((a, b, conjunct.op), (b, a, FLIPPED[conjunct.op])):
        if band.op == "abs" and len(band.sides) == 2 and op in ("<", "<="):
            inner = band.args[0]
            zero_minus = _negated(limit)
            return [(inner, op, limit), (inner, FLIPPED[op], zero_minus)]
    return [(a, conjunct.op, b)]


def _negated(e: Bound) -> Bound:
    if e.op == "literal":
        kind = e.kind
        return replace(e, value=-e.value, kind=replace(kind, low=-kind.high, high=-kind.low))
    zero = Bound("literal", e.kind, value=0.0 if e.kind.family == "float" else 0, source=None)
    kind = replace(e.kind, low=-e.kind.high, high=-e.kind.low)
    return Bound("-", kind, (zero, e), sides=e.sides, source=e.source)


def _halves(conjunct: Bound, stored: str) -> list[_Half] | None:
    """Return a conjunct's comparisons turned around for one stored side; None if it has no such form."""
    comparisons = _comparisons(conjunct)
    if comparisons is None:
        return None
    halves = []
    distance = len(comparisons) == 2
    for a, op, b in comparisons:
        half = _half(a, op, b, stored, rearranged=distance)
        if half is None:
            return None
        halves.append(half)
    return halves


def _half(a: Bound, op: str, b: Bound, stored: str, *, rearranged: bool) -> _Half | None:
    if a.kind.family == b.kind.family == "exact":
        return _exact_half(a, op, b, stored)
    pure = len(a.sides) == len(b.sides) == 1 and a.sides != b.sides
    if pure and a.sides != {stored}:
        a, op, b = b, FLIPPED[op], a
    if a.kind.family == b.kind.family == "float":
        return _float_half(a, op, b, stored, pure=pure and not rearranged)
    if not pure:
        return None
    if a.kind.family in ("text", "bytes"):
        return _hash_half(a, op, b) if op == "==" else None
    if a.kind.family == "bool":
        return _bool_half(a, op, b)
    return _mixed_half(a, op, b)


# Exact ----------------------------------------------------------------------------------------------------------


def _exact_half(a: Bound, op: str, b: Bound, stored: str) -> _Half | None:
    whole, minus = _linear(a), _linear(b)
    if whole is None or minus is None:
        return None
    form = whole.plus(minus, -1)  # form op 0
    mine, theirs = form.side(stored), form.side(OTHER[stored])
    if not mine or not theirs:
        return None
    divisor = math.gcd(*(abs(c) for _, c in mine.values()))
    first = mine[min(mine)][1]
    if first < 0:  # the key's first coefficient is positive, so that both halves of a band have the same key
        divisor, op = -divisor, FLIPPED[op]
    key, exact = _exact_key({k: (e, c // divisor) for k, (e, c) in mine.items()}, form.ticks)
    sign = -1 if divisor > 0 else 1
    others = [(e, sign * c) for e, c in theirs.values()]
    constant, by = sign * form.constant, abs(divisor)

    def ends(load: Load, rows: int) -> Ends:
        total = np.full(rows, constant, np.int64 if abs(constant) <= INT64_MAX else object)
        known: Mask = None
        for term, coefficient in others:
            values = evaluate(term, load, rows)
            total = exact_add(total, _scaled(values.data, coefficient))
            known = values.valid if known is None else (known if values.valid is None else known & values.valid)
        return _exact_ends(op, fitted(total), by, key.domain, known, saturated=not exact)

    return _Half(key, op, ends, exact and not form.cancelled)


def _scaled(data: np.ndarray, coefficient: int) -> np.ndarray:
    if coefficient >= 0:
        return exact_scale(data, coefficient)
    return exact_add(np.zeros(1, np.int64), exact_scale(data, -coefficient), -1)


def _exact_key(terms: dict[str, tuple[Bound, int]], ticks: Fraction) -> tuple[StoredKey, bool]:
    low = sum(min(c * e.kind.low, c * e.kind.high) for e, c in terms.values())
    high = sum(max(c * e.kind.low, c * e.kind.high) for e, c in terms.values())
    domain = "uint64" if low >= 0 and high > INT64_MAX else "int64"
    least, most = (0, UINT64_MAX) if domain == "uint64" else (INT64_MIN, INT64_MAX)
    exact = least <= low and high <= most
    parts = list(terms.values())

    def compute(load: Load, rows: int) -> tuple[KeyArray, Mask]:
        total, known = None, None
        for term, coefficient in parts:
            values = evaluate(term, load, rows)
            scaled = _scaled(values.data, coefficient)
            total = scaled if total is None else exact_add(total, scaled)
            known = values.valid if known is None else (known if values.valid is None else known & values.valid)
        assert total is not None
        return _native.keys_of(_clipped(fitted(total), domain)), known

    # The ticks do not matter for one term alone: the same key serves comparisons in any unit.
    unit = "" if len(terms) == 1 else f" / {ticks}"
    name = " + ".join(sorted(f"{c}*{e.key}" for e, c in parts)) + unit
    mirrored = " + ".join(sorted(f"{c}*{e.transposed().key}" for e, c in parts)) + unit
    text = " + ".join(str(e) if c == 1 else f"{c} * {e}" for e, c in parts)
    return StoredKey(name, mirrored, text, compute, domain), exact


def _clipped(data: np.ndarray, domain: str) -> np.ndarray:
    """Saturate into the domain of a key: monotone, so that it can only let more through."""
    least, most = (0, UINT64_MAX) if domain == "uint64" else (INT64_MIN, INT64_MAX)
    kind = np.uint64 if domain == "uint64" else np.int64
    if data.dtype == kind:
        return data
    if domain == "int64" and data.dtype == np.uint64:
        return np.minimum(data, np.uint64(INT64_MAX)).astype(np.int64)
    if domain == "uint64" and data.dtype == np.int64:
        return np.maximum(data, 0).astype(np.uint64)
    return np.array([min(max(x, least), most) for x in data], kind)


def _exact_ends(op: str, bound: np.ndarray, by: int, domain: str, known: Mask, *, saturated: bool) -> Ends:
    """Ends of the keys k with `k * by op bound`; a probe that can match nothing gets the empty range (1, 0).

    `saturated`: the end of the domain stands for all keys beyond it as well, so that a bound beyond it must too.
    """
    down, up = exact_divide(bound, by, up=False), exact_divide(bound, by, up=True)
    one = np.ones(1, np.int64)
    least, most = (0, UINT64_MAX) if domain == "uint64" else (INT64_MIN, INT64_MAX)
    kind = np.uint64 if domain == "uint64" else np.int64
    lo, hi = np.full(len(bound), least, kind), np.full(len(bound), most, kind)
    nothing = np.zeros(len(bound), bool)
    if op in ("<", "<=", "==", "!="):
        upper = exact_add(up, one, -1) if op == "<" else down
        nothing = nothing if saturated else nothing | _below(upper, least)
        hi = _clipped(fitted(upper), domain)
    if op in (">", ">=", "==", "!="):
        lower = exact_add(down, one) if op == ">" else up
        nothing = nothing if saturated else nothing | _above(lower, most)
        lo = _clipped(fitted(lower), domain)
    if op in ("==", "!="):
        nothing = nothing | (lo > hi)  # not a whole multiple: equal to nothing
    return _closed(_native.keys_of(lo), _native.keys_of(hi), nothing, known, op)


def _below(data: np.ndarray, least: int) -> np.ndarray:
    return np.asarray(data < least, bool) if len(data) and int(data.min()) < least else np.zeros(len(data), bool)


def _above(data: np.ndarray, most: int) -> np.ndarray:
    return np.asarray(data > most, bool) if len(data) and int(data.max()) > most else np.zeros(len(data), bool)


def _with_nothing(lo: KeyArray, hi: KeyArray, nothing: np.ndarray) -> Ends:
    if nothing.any():
        lo, hi = lo.copy(), hi.copy()
        lo[nothing], hi[nothing] = 1, 0
    return lo, hi


def _closed(lo: KeyArray, hi: KeyArray, nothing: np.ndarray, known: Mask, op: str) -> Ends:
    """Give probes the empty range where no key fits, and the range that fails where the probe is null.

    A null makes every comparison false; for `!=`, which wants the key *outside* of the range, that is the full one.
    """
    lo, hi = _with_nothing(lo, hi, nothing)
    if known is not None and not known.all():
        lo, hi = lo.copy(), hi.copy()
        lo[~known], hi[~known] = (0, UINT64_MAX) if op == "!=" else (1, 0)
    return lo, hi


# Float ----------------------------------------------------------------------------------------------------------


def _float_half(a: Bound, op: str, b: Bound, stored: str, *, pure: bool) -> _Half | None:
    terms = [(e, s) for e, s in _float_terms(a, 1)] + [(e, s) for e, s in _float_terms(b, -1)]
    if any(len(e.sides) > 1 for e, _ in terms):
        return None
    mine = [(e, s) for e, s in terms if e.sides == {stored}]
    theirs = [(e, s) for e, s in terms if e.sides != {stored}]
    if not mine or all(not e.sides for e, _ in theirs):
        return None
    if pure and (op in ("==", "!=") or len(mine) > 1 or len(_float_terms(a, 1)) == 1):
        return _Half(_float_key(a), op, _float_ends(op, b), exact=True)
    if op in ("==", "!="):
        return None
    sign = mine[0][1]
    if len(mine) > 1:
        return _directed_half(mine, theirs, op)
    way = op if sign > 0 else FLIPPED[op]
    bounds = [(e, -s * sign) for e, s in theirs]
    return _Half(_float_key(mine[0][0]), way, _rounded_ends(way, bounds, len(terms)), exact=False)


def _float_terms(e: Bound, sign: int) -> list[tuple[Bound, int]]:
    """Flatten sums and differences that are not of one side into signed terms."""
    if e.op in ("+", "-") and e.kind.family == "float" and (len(e.sides) > 1 or _has_constant(e)):
        second = sign if e.op == "+" else -sign
        return _float_terms(e.args[0], sign) + _float_terms(e.args[1], second)
    return [(e, sign)]


def _has_constant(e: Bound) -> bool:
    return e.op in ("+", "-") and any(arg.op == "literal" or _has_constant(arg) for arg in e.args)


def _float_key(e: Bound) -> StoredKey:
    def compute(load: Load, rows: int) -> tuple[KeyArray, Mask]:
        values = evaluate(e, load, rows)
        return _float_keys(values.data, values.valid)

    return StoredKey(f"float {e.key}", f"float {e.transposed().key}", str(e), compute, "float64")


def _float_keys(data: np.ndarray, valid: Mask) -> tuple[KeyArray, Mask]:
    missing = np.isnan(data)
    if missing.any():
        data = np.where(missing, 0.0, data)
        valid = ~missing if valid is None else valid & ~missing
    return _native.keys_of(data), valid


def _float_ends(op: str, bound: Bound) -> Callable[[Load, int], Ends]:
    def ends(load: Load, rows: int) -> Ends:
        values = evaluate(bound, load, rows)
        return _ends_of_floats(op, values.data, values.valid)

    return ends


_LOWEST, _HIGHEST = (int(_native.keys_of(np.array([x]))[0]) for x in (-math.inf, math.inf))


def _ends_of_floats(op: str, data: np.ndarray, valid: Mask) -> Ends:
    keys, known = _float_keys(data, valid)
    lo, hi = np.full(len(data), _LOWEST, np.uint64), np.full(len(data), _HIGHEST, np.uint64)
    if op in ("<", "<=", "==", "!="):
        hi = keys - np.uint64(1) if op == "<" else keys
    if op in (">", ">=", "==", "!="):
        lo = keys + np.uint64(1) if op == ">" else keys
    return _closed(lo, hi, lo > hi, known, op)


# Two roundings a term would do; the rest is for the roundings of this computation itself.
_EPSILON = 4.0 * 2.0**-53


class _Sum:
    """A sum of float terms as a bound: its value, and how far rounding may have moved it.

    Constants are added up once. `size`, the sum of absolute values, is NaN exactly where a term is, so that one look
    at it tells where the sum is not known; sums near overflow are not trusted at all.
    """

    def __init__(self, parts: list[tuple[Bound, int]], terms: int) -> None:
        constants = [sign * e.value for e, sign in parts if e.op == "literal"]
        self.parts = [(e, sign) for e, sign in parts if e.op != "literal"]
        self.constant, self.constant_size = sum(constants), sum(map(abs, constants))
        self.slack = _EPSILON * (terms + 2)

    def moved(self, load: Load, rows: int, *, up: bool) -> tuple[np.ndarray, Mask]:
        """Return the sum, moved up or down past its rounding (to infinity if it overflows), and where it is known."""
        total: Any = self.constant
        size: Any = self.constant_size
        known: Mask = None
        for term, sign in self.parts:
            values = evaluate(term, load, rows)
            if values.valid is not None:
                known = values.valid if known is None else known & values.valid
            total = total + values.data if sign > 0 else total - values.data
            size = size + np.abs(values.data)
        slack = size * self.slack
        end = np.nextafter(total + slack, np.inf) if up else np.nextafter(total - slack, -np.inf)
        trusted = size < 1e300
        if not trusted.all():
            end = np.where(trusted, end, np.inf if up else -np.inf)
            missing = np.isnan(size)
            if missing.any():
                known = ~missing if known is None else known & ~missing
        return end, known


def _rounded_ends(op: str, bounds: list[tuple[Bound, int]], terms: int) -> Callable[[Load, int], Ends]:
    """Ends of the keys g for which `g op sum(bounds)` may hold, in whatever order it was added up.

    The rounding is bounded by the sizes of the terms other than g: where g is so much larger that its own rounding
    counts, the comparison is decided by far.
    """
    total = _Sum(bounds, terms)
    below = op in ("<", "<=")

    def ends(load: Load, rows: int) -> Ends:
        end, known = total.moved(load, rows, up=below)
        keys, none = _native.keys_of(end), np.zeros(rows, bool)
        if below:
            return _closed(np.full(rows, _LOWEST, np.uint64), keys, none, known, op)
        return _closed(keys, np.full(rows, _HIGHEST, np.uint64), none, known, op)

    return ends


def _directed_half(mine: list[tuple[Bound, int]], theirs: list[tuple[Bound, int]], op: str) -> _Half:
    """`sum(mine) op -sum(theirs)` where the stored side has several terms, so that its rounding is its own.

    The key is moved by its rounding in the direction that lets more through, so that it serves this direction only.
    """
    below = op in ("<", "<=")
    terms = len(mine) + len(theirs)
    total = _Sum(mine, terms)

    def compute(load: Load, rows: int) -> tuple[KeyArray, Mask]:
        end, known = total.moved(load, rows, up=not below)
        return _native.keys_of(end), known

    text = " + ".join(str(e) if s > 0 else f"-({e})" for e, s in mine)
    way = f"{'below' if below else 'above'} {terms} "
    name = way + " ".join(f"{s}*{e.key}" for e, s in mine)
    mirrored = way + " ".join(f"{s}*{e.transposed().key}" for e, s in mine)
    key = StoredKey(name, mirrored, text, compute, "float64")
    bounds = [(e, -s) for e, s in theirs]
    return _Half(key, op, _rounded_ends(op, bounds, terms), exact=False)


# Other kinds ----------------------------------------------------------------------------------------------------


def _hash_half(a: Bound, op: str, b: Bound) -> _Half:
    def keys(e: Bound, load: Load, rows: int) -> tuple[KeyArray, Mask]:
        return hash_column(evaluate(e, load, rows).data)

    def ends(load: Load, rows: int) -> Ends:
        hashed, known = keys(b, load, rows)
        return _closed(hashed, hashed, np.zeros(rows, bool), known, op)

    mirrored = f"hash {a.transposed().key}"
    key = StoredKey(f"hash {a.key}", mirrored, str(a), lambda load, rows: keys(a, load, rows), "hash")
    return _Half(key, op, ends, exact=False)


def hash_column(column: pa.Array) -> tuple[KeyArray, Mask]:
    """Hash strings or binaries to 64 bits, by value; and say which are not null."""
    kind = column.type
    wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if not (wide or pa.types.is_string(kind) or pa.types.is_binary(kind)):
        text = pa.types.is_string_view(kind)
        column, wide = column.cast(pa.large_string() if text else pa.large_binary()), True
    known = ~np.asarray(column.is_null()) if column.null_count else None
    _, offsets, data = column.buffers()
    if len(column) == 0 or offsets is None:
        return np.empty(len(column), np.uint64), known
    address = data.address if data is not None else 0
    return _native.hash_strings_at(offsets.address, address, column.offset, len(column), wide), known


def _bool_half(a: Bound, op: str, b: Bound) -> _Half:
    def keys(e: Bound, load: Load, rows: int) -> tuple[KeyArray, Mask]:
        values = evaluate(e, load, rows)
        return values.data.astype(np.uint64), values.valid

    def ends(load: Load, rows: int) -> Ends:
        same, known = keys(b, load, rows)
        return _closed(same, same, np.zeros(rows, bool), known, op)

    mirrored = f"bool {a.transposed().key}"
    key = StoredKey(f"bool {a.key}", mirrored, str(a), lambda load, rows: keys(a, load, rows), "uint64")
    return _Half(key, op, ends, exact=True)


def _mixed_half(a: Bound, op: str, b: Bound) -> _Half:
    """Integers against floats, exactly: the float becomes the integer bound that means the same, or the reverse."""
    if a.kind.family == "exact":
        key, exact = _exact_key({a.key: (a, 1)}, a.kind.ticks)

        def ends_of_whole(load: Load, rows: int) -> Ends:
            values = evaluate(b, load, rows)
            missing = np.isnan(values.data)
            known = ~missing if values.valid is None else values.valid & ~missing
            if op in ("==", "!="):
                known = known & np.isfinite(values.data) & (np.floor(values.data) == values.data)
            way, bound = floats_as_bounds(op, values.data)
            return _exact_ends(way, fitted(bound), 1, key.domain, known, saturated=not exact)

        # `!=` with a fraction holds for every number, which an empty range says only when it is not the null one.
        return _Half(key, op, ends_of_whole, exact) if op != "!=" else _Half(key, op, ends_of_whole, exact=False)

    def ends_of_floats(load: Load, rows: int) -> Ends:
        values = evaluate(b, load, rows)
        whole = values.data
        near = np.array([float(x) for x in whole]) if whole.dtype == object else whole.astype(np.float64)
        back = np.array([int(x) for x in near], object)
        above = np.asarray(back > whole.astype(object), bool)  # rounded up: no float lies between
        below = np.asarray(back < whole.astype(object), bool)
        lo, hi = _ends_of_floats(op, near, values.valid)
        lo_or, hi_or = _ends_of_floats({"<=": "<", ">": ">="}.get(op, op), near, values.valid)
        if op in ("<=", ">"):  # near is above whole, so that near itself is not <= whole, and is > whole
            lo, hi = np.where(above, lo_or, lo), np.where(above, hi_or, hi)
        lo_or, hi_or = _ends_of_floats({"<": "<=", ">=": ">"}.get(op, op), near, values.valid)
        if op in ("<", ">="):
            lo, hi = np.where(below, lo_or, lo), np.where(below, hi_or, hi)
        return _with_nothing(lo, hi, above | below) if op in ("==", "!=") else (lo, hi)

    return _Half(_float_key(a), op, ends_of_floats, exact=op != "!=")


# Plans ----------------------------------------------------------------------------------------------------------


def _plan_side(conjuncts: list[Bound], stored: str) -> SidePlan:
    tests: dict[str, list[tuple[_Half, Bound]]] = {}
    others: list[RangeTest] = []
    remainder: list[Bound] = []
    for conjunct in conjuncts:
        halves = _halves(conjunct, stored)
        if halves is None:
            union = _union(conjunct, stored)
            others += [union] if union else []
            remainder += [conjunct] if not union else []
        elif halves[0].op == "!=":
            if halves[0].exact:
                others.append(RangeTest(halves[0].key, halves[0].ends, "unequal", (conjunct,), True))
            else:
                remainder.append(conjunct)
        else:
            for half in halves:
                tests.setdefault(half.key.name, []).append((half, conjunct))
    merged = [_merged(group) for group in tests.values()]
    return SidePlan(stored, (*merged, *others), tuple(remainder))


def _merged(group: list[tuple[_Half, Bound]]) -> RangeTest:
    """Make one test of all halves on the same key: the intersection of their ranges."""
    halves = [half for half, _ in group]
    conjuncts = tuple({id(c): c for _, c in group}.values())
    ways = {half.op for half in halves}
    if "==" in ways:
        shape = "equality"
    else:
        shape = "band" if ways & {"<", "<="} and ways & {">", ">="} else "comparison"

    def ends(load: Load, rows: int) -> Ends:
        lo, hi = halves[0].ends(load, rows)
        # An empty range is (1, 0), which stays empty whatever it is intersected with.
        for half in halves[1:]:
            more_lo, more_hi = half.ends(load, rows)
            lo, hi = np.maximum(lo, more_lo), np.minimum(hi, more_hi)
        return lo, hi

    return RangeTest(halves[0].key, ends, shape, conjuncts, all(half.exact for half in halves))


def _union(conjunct: Bound, stored: str) -> RangeTest | None:
    """Return `|` of tests on one key as a union of bands; None if there is no key that every part tests."""
    parts = _alternatives(conjunct)
    if parts is None:
        return None
    tests = []
    for part in parts:
        grouped: dict[str, list[tuple[_Half, Bound]]] = {}
        whole = True
        for piece in part:
            halves = _halves(piece, stored) if len(piece.sides) == 2 else None
            if halves is None or halves[0].op == "!=":
                whole = False
                continue
            for half in halves:
                grouped.setdefault(half.key.name, []).append((half, conjunct))
        tests.append(({name: _merged(group) for name, group in grouped.items()}, whole))
    shared = set.intersection(*(set(group) for group, _ in tests))
    if not shared:
        return None
    name = min(shared)
    bands = [group[name] for group, _ in tests]
    exact = all(whole and len(group) == 1 and group[name].exact for group, whole in tests)

    def ends(load: Load, rows: int) -> Ends:
        each = [band.ends(load, rows) for band in bands]
        return disjoint(np.stack([lo for lo, _ in each]), np.stack([hi for _, hi in each]))

    return RangeTest(bands[0].key, ends, "union", (conjunct,), exact)


def _alternatives(conjunct: Bound) -> list[list[Bound]] | None:
    """Return the parts of an `|`, each a list of what must all hold; a far distance is one too."""
    if conjunct.op == "|":
        return [[piece] if piece.op != "&" else _conjuncts(piece) for piece in _flat_or(conjunct)]
    if conjunct.op in FLIPPED:
        a, b = conjunct.args
        for band, limit, op in ((a, b, conjunct.op), (b, a, FLIPPED[conjunct.op])):
            if band.op == "abs" and len(band.sides) == 2 and op in (">", ">="):
                inner = band.args[0]
                return [
                    [Bound(op, BOOL, (inner, limit), sides=conjunct.sides, source=conjunct.source)],
                    [Bound(FLIPPED[op], BOOL, (inner, _negated(limit)), sides=conjunct.sides, source=conjunct.source)],
                ]
    return None


def _flat_or(bound: Bound) -> list[Bound]:
    return [p for arg in bound.args for p in _flat_or(arg)] if bound.op == "|" else [bound]


def disjoint(lo: KeyArray, hi: KeyArray) -> Ends:
    """Make each column's ranges (one a row of the arrays) disjoint, so that no key is found twice.

    >>> lo, hi = disjoint(np.array([[5], [1]], np.uint64), np.array([[9], [6]], np.uint64))
    >>> lo.ravel().tolist(), hi.ravel().tolist()
    ([1, 7], [6, 9])
    """
    lo, hi = lo.copy(), hi.copy()
    empty = lo > hi
    lo[empty], hi[empty] = UINT64_MAX, 0
    order = np.argsort(lo, axis=0, kind="stable")
    lo, hi = np.take_along_axis(lo, order, 0), np.take_along_axis(hi, order, 0)
    reach = hi[0].copy()
    some = lo[0] <= hi[0]
    for band in range(1, len(lo)):
        after = np.where(some & (reach < UINT64_MAX), reach + np.uint64(1), reach)
        covered = some & (hi[band] <= reach)
        lo[band] = np.where(some, np.maximum(lo[band], after), lo[band])
        lo[band][covered], hi[band][covered] = 1, 0
        real = lo[band] <= hi[band]
        reach = np.where(real, np.maximum(reach, hi[band]), reach)
        some |= real
    nothing = lo > hi
    lo[nothing], hi[nothing] = 1, 0
    return lo, hi


# What can never hold ----------------------------------------------------------------------------------------------


def _refuse_contradictions(conjuncts: list[Bound], where: str) -> None:
    """Raise if exact comparisons exclude each other, or exclude every value that the types allow."""
    allowed: dict[str, tuple[Fraction, Fraction, list[Bound]]] = {}
    for conjunct in conjuncts:
        for a, op, b in _comparisons(conjunct) or []:
            if a.kind.family != "exact" or b.kind.family != "exact" or op == "!=":
                _refuse_opposites(conjuncts, conjunct, where)
                continue
            whole, minus = _linear(a), _linear(b)
            if whole is None or minus is None:
                continue
            _narrow(allowed, whole.plus(minus, -1), op, conjunct, where)


def _narrow(allowed: dict[str, Any], form: _Linear, op: str, conjunct: Bound, where: str) -> None:
    if not form.terms:
        holds = {"<": form.constant < 0, "<=": form.constant <= 0, ">": form.constant > 0, ">=": form.constant >= 0,
                 "==": form.constant == 0}[op]  # fmt: skip
        if not holds:
            raise PredicateError(f"{where}: `{conjunct}` can never hold{_line(conjunct)}")
        return
    first = form.terms[min(form.terms)][1]
    if first < 0:
        form, op = form.times(-1, form.ticks), FLIPPED[op]
    divisor = math.gcd(*(c for _, c in form.terms.values()))
    name = " + ".join(f"{Fraction(c, divisor)}*{k}" for k, (_, c) in sorted(form.terms.items()))
    unit = Fraction(divisor) / form.ticks  # one step of the sum, in ones
    low = sum(min(c * e.kind.low, c * e.kind.high) for e, c in form.terms.values()) // divisor
    high = sum(max(c * e.kind.low, c * e.kind.high) for e, c in form.terms.values()) // divisor
    bound = Fraction(-form.constant, divisor)
    lo, hi, before = allowed.get(name, (low * unit, high * unit, []))
    if op in ("<", "<=", "=="):
        most = math.ceil(bound) - 1 if op == "<" else math.floor(bound)
        hi = min(hi, most * unit)
    if op in (">", ">=", "=="):
        least = math.floor(bound) + 1 if op == ">" else math.ceil(bound)
        lo = max(lo, least * unit)
    allowed[name] = (lo, hi, [*before, conjunct])
    if lo > hi:
        others = [f"`{c}`" for c in dict.fromkeys(map(str, before)) if c != str(conjunct)]
        together = f" together with {', '.join(others)}" if others else ": no value of these columns' types can"
        raise PredicateError(f"{where}: `{conjunct}` can never hold{together}{_line(conjunct)}")


_OPPOSITE = {("<", ">"), ("<", "=="), (">", "=="), ("<", ">="), ("<=", ">"), ("!=", "==")}


def _refuse_opposites(conjuncts: list[Bound], one: Bound, where: str) -> None:
    """Raise if another conjunct compares the same two values the opposite way."""
    if one.op in ("<", ">", "!=") and one.args[0].key == one.args[1].key:
        raise PredicateError(f"{where}: `{one}` can never hold{_line(one)}")
    for other in conjuncts:
        if other.op not in FLIPPED or other is one:
            continue
        if [x.key for x in other.args] == [x.key for x in one.args]:
            op = other.op
        elif [x.key for x in other.args[::-1]] == [x.key for x in one.args]:
            op = FLIPPED[other.op]
        else:
            continue
        if (one.op, op) in _OPPOSITE or (op, one.op) in _OPPOSITE:
            raise PredicateError(f"{where}: `{one}` can never hold together with `{other}`{_line(one)}")


def _line(bound: Bound) -> str:
    where = getattr(bound.source, "where", None)
    return f" (written at {where})" if where else ""
