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
- *the remainder*: conjuncts that no test decides, evaluated on pairs as written. Of a conjunct that rounds, a test
  knows the pairs that are sure; only the others are evaluated.

Invariant: a test never excludes a pair for which its conjunct is true. A test is `exact` if it also excludes all the
others; a conjunct of which some test is not exact, or not applied, is in the remainder. How one comparison becomes a
range is told in `ranges`.
"""

__all__ = ["JoinPredicate", "RangeTest", "SidePlan", "plan_predicate"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import PredicateError
from .binding import BOOL, Bound, bind_predicate
from .contradictions import refuse_contradictions
from .evaluate import UINT64_MAX, Columns, truth
from .expressions import FLIPPED, Expression
from .linear import negated
from .predicate_text import predicate_of
from .ranges import OTHER, Ends, Half, KeyArray, StoredKey, halves


@dataclass(frozen=True, eq=False)
class RangeTest:
    """`key(stored row) in [lo, hi]`, or not in it if `negated`; ends come from the probing row.

    `ends` returns ranges and the mask of probing rows for which the conjunct can hold at all (None: all of them).
    A union of bands has several disjoint ranges a probe: `ends` then returns two-dimensional arrays, one row a band.
    """

    key: StoredKey
    ends: Callable[[Columns, int], tuple[KeyArray, KeyArray]]
    shape: str  # equality, band, comparison, union, unequal
    conjuncts: tuple[Bound, ...]
    exact: bool
    # A narrower range in which the conjuncts hold for sure, in so far as this key decides them.
    sure: Callable[[Columns, int], Ends] | None = None

    @property
    def negated(self) -> bool:
        """True for `!=`."""
        return self.shape == "unequal"


@dataclass(frozen=True)
class Remainder:
    """What is left to decide of the pairs that some tests have let through."""

    always: tuple[Bound, ...]  # of every pair
    unsure: tuple[Bound, ...]  # of the pairs that are not sure by all of `tests`
    tests: tuple[RangeTest, ...]

    @property
    def conjuncts(self) -> tuple[Bound, ...]:
        """Both kinds."""
        return (*self.always, *self.unsure)


@dataclass(frozen=True, eq=False)
class SidePlan:
    """How rows of one side are stored, and found by the rows of the other."""

    stored: str
    tests: tuple[RangeTest, ...]
    remainder: tuple[Bound, ...]

    def remainder_with(self, used: Sequence[RangeTest]) -> Remainder:
        """Return the conjuncts that are left to decide when these tests are applied."""
        unsure = tuple(test for test in used if not test.exact and test.sure is not None)
        undecided = [test for test in self.tests if not (test in used and test.exact)]
        always = {id(c): c for test in undecided if test not in unsure for c in test.conjuncts}
        always |= {id(c): c for c in self.remainder}
        rounded = {id(c): c for test in unsure for c in test.conjuncts if id(c) not in always}
        tests = tuple(test for test in unsure if any(id(c) in rounded for c in test.conjuncts))
        return Remainder(tuple(always.values()), tuple(rounded.values()), tests)


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
        A predicate, or a list of them that must all hold; each as an expression or as a text.
    schemas
        Under 'left' and 'right'.
    where
        Which step it is, for messages.
    """
    predicates = list(on) if isinstance(on, list | tuple) else [on]
    conjuncts: list[Bound] = []
    for given in predicates:
        predicate = predicate_of(given, f"{where}: ") if isinstance(given, str) else given
        if isinstance(predicate, bool) or not isinstance(predicate, Expression):
            hint = " (was it written with `and`, or compared with ==?)" if isinstance(predicate, bool) else ""
            raise PredicateError(
                f"{where}: on={predicate!r} is not a predicate{hint}; write one such as `left.x < right.y`, or a list"
            )
        conjuncts += _conjuncts(bind_predicate(predicate, schemas, where))
    for conjunct in conjuncts:
        if not conjunct.sides and not truth(conjunct, Columns(_no_columns), 1)[0]:
            raise PredicateError(f"{where}: a predicate that is always False can never hold: `{conjunct}`")
    conjuncts = [c for c in conjuncts if c.sides]
    refuse_contradictions(conjuncts, where)
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


def _plan_side(conjuncts: list[Bound], stored: str) -> SidePlan:
    tests: dict[str, list[tuple[Half, Bound]]] = {}
    others: list[RangeTest] = []
    remainder: list[Bound] = []
    for conjunct in conjuncts:
        found = halves(conjunct, stored)
        if found is None:
            union = _union(conjunct, stored)
            others += [union] if union else []
            remainder += [conjunct] if not union else []
        elif found[0].op == "!=":
            if found[0].exact:
                others.append(RangeTest(found[0].key, found[0].ends, "unequal", (conjunct,), True))
            else:
                remainder.append(conjunct)
        else:
            for half in found:
                tests.setdefault(half.key.name, []).append((half, conjunct))
    merged = [_merged(group) for group in tests.values()]
    return SidePlan(stored, (*merged, *others), tuple(remainder))


def _merged(group: list[tuple[Half, Bound]]) -> RangeTest:
    """Make one test of all halves on the same key: the intersection of their ranges."""
    parts = [half for half, _ in group]
    conjuncts = tuple({id(c): c for _, c in group}.values())
    ways = {half.op for half in parts}
    if "==" in ways:
        shape = "equality"
    else:
        shape = "band" if ways & {"<", "<="} and ways & {">", ">="} else "comparison"

    exact = all(half.exact for half in parts)
    certain = [half.ends if half.exact else half.sure for half in parts]
    sure = _intersection([c for c in certain if c is not None]) if not exact and None not in certain else None
    return RangeTest(parts[0].key, _intersection([half.ends for half in parts]), shape, conjuncts, exact, sure)


def _intersection(parts: list[Callable[[Columns, int], Ends]]) -> Callable[[Columns, int], Ends]:
    def ends(columns: Columns, rows: int) -> Ends:
        lo, hi = parts[0](columns, rows)
        # An empty range, lo > hi, stays empty whatever it is intersected with.
        for part in parts[1:]:
            more_lo, more_hi = part(columns, rows)
            lo, hi = np.maximum(lo, more_lo), np.minimum(hi, more_hi)
        return lo, hi

    return ends


def _union(conjunct: Bound, stored: str) -> RangeTest | None:
    """Return `|` of tests on one key as a union of bands; None if there is no key that every part tests."""
    parts = _alternatives(conjunct)
    if parts is None:
        return None
    tests = []
    for part in parts:
        grouped: dict[str, list[tuple[Half, Bound]]] = {}
        whole = True
        for piece in part:
            found = halves(piece, stored) if len(piece.sides) == 2 else None
            if found is None or found[0].op == "!=":
                whole = False
                continue
            for half in found:
                grouped.setdefault(half.key.name, []).append((half, conjunct))
        tests.append(({name: _merged(group) for name, group in grouped.items()}, whole))
    shared = set.intersection(*(set(group) for group, _ in tests))
    if not shared:
        return None
    name = min(shared)
    bands = [group[name] for group, _ in tests]
    exact = all(whole and len(group) == 1 and group[name].exact for group, whole in tests)

    def ends(columns: Columns, rows: int) -> Ends:
        each = [band.ends(columns, rows) for band in bands]
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
                    [Bound(FLIPPED[op], BOOL, (inner, negated(limit)), sides=conjunct.sides, source=conjunct.source)],
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
