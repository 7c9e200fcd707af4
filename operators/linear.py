"""Exact comparisons as sums: what is on which side, and what is constant.

`2 * left.x - right.y + 3 <= 5` is the sum `2·left.x - right.y - 2`, compared with 0. As exact arithmetic never
rounds, terms may be moved across the comparison freely: a stored row's part of the sum becomes its key, the probing
row's part the end of a range (`ranges`), and sums that only differ in their constant can be seen to exclude each
other (`contradictions`).
"""

__all__ = ["Linear", "comparisons", "linear", "negated"]

from dataclasses import dataclass, replace
from fractions import Fraction

from .binding import Bound, common_ticks
from .expressions import FLIPPED


@dataclass(frozen=True)
class Linear:
    """A sum: coefficients of one-sided exact terms, and a constant, all in the same ticks.

    `cancelled`: a term fell out (`x - x`, `0 * x`), whose null still makes the comparison false.
    """

    terms: dict[str, tuple[Bound, int]]
    constant: int
    ticks: Fraction
    cancelled: bool = False

    def scaled(self, ticks: Fraction) -> "Linear":
        """Return the same sum in finer ticks."""
        factor = int(ticks / self.ticks)
        return self.times(factor, ticks)

    def times(self, factor: int, ticks: Fraction) -> "Linear":
        """Return a multiple, in these ticks."""
        return self.of({k: (b, c * factor) for k, (b, c) in self.terms.items()}, self.constant * factor, ticks)

    def of(self, terms: dict[str, tuple[Bound, int]], constant: int, ticks: Fraction) -> "Linear":
        """Make a sum out of this one, without the terms that fall out."""
        left_over = {k: v for k, v in terms.items() if v[1]}
        return Linear(left_over, constant, ticks, self.cancelled or len(left_over) < len(terms))

    def plus(self, other: "Linear", sign: int) -> "Linear":
        """Return this and another sum together, or their difference."""
        ticks = common_ticks(self.ticks, other.ticks)
        a, b = self.scaled(ticks), other.scaled(ticks)
        terms = dict(a.terms)
        for key, (bound, coefficient) in b.terms.items():
            total = terms.get(key, (bound, 0))[1] + sign * coefficient
            terms[key] = (bound, total)
        both = replace(a, cancelled=a.cancelled or b.cancelled)
        return both.of(terms, a.constant + sign * b.constant, ticks)

    def side(self, side: str) -> dict[str, tuple[Bound, int]]:
        """Return the terms of one side."""
        return {k: v for k, v in self.terms.items() if v[0].sides == {side}}


def linear(e: Bound) -> Linear | None:
    """Return an exact expression as a sum of one-sided terms; None if a term looks at both sides."""
    if e.op == "literal":
        return Linear({}, e.value, e.kind.ticks)
    if e.op in "+-":
        a, b = linear(e.args[0]), linear(e.args[1])
        return a.plus(b, 1 if e.op == "+" else -1) if a and b else None
    if e.op == "*":
        for constant, rest in (e.args, e.args[::-1]):
            if constant.op == "literal":
                inner = linear(rest)
                return inner.times(constant.value, inner.ticks * constant.kind.ticks) if inner else None
    return Linear({e.key: (e, 1)}, 0, e.kind.ticks) if len(e.sides) == 1 else None


def comparisons(conjunct: Bound) -> list[tuple[Bound, str, Bound]] | None:
    """Return a conjunct as comparisons that must all hold; None for anything else. Distances are taken apart."""
    if conjunct.op not in FLIPPED:
        return None
    a, b = conjunct.args
    for band, limit, op in ((a, b, conjunct.op), (b, a, FLIPPED[conjunct.op])):
        if band.op == "abs" and len(band.sides) == 2 and op in ("<", "<="):
            inner = band.args[0]
            zero_minus = negated(limit)
            return [(inner, op, limit), (inner, FLIPPED[op], zero_minus)]
    return [(a, conjunct.op, b)]


def negated(e: Bound) -> Bound:
    """Return minus an expression."""
    if e.op == "literal":
        kind = e.kind
        return replace(e, value=-e.value, kind=replace(kind, low=-kind.high, high=-kind.low))
    zero = Bound("literal", e.kind, value=0.0 if e.kind.family == "float" else 0, source=None)
    kind = replace(e.kind, low=-e.kind.high, high=-e.kind.low)
    return Bound("-", kind, (zero, e), sides=e.sides, source=e.source)
