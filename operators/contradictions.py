"""What can be seen to never hold when it is written: sums that exclude each other, or every value of their types."""

__all__ = ["refuse_contradictions"]

import math
from fractions import Fraction
from typing import Any

from ..errors import PredicateError
from .binding import Bound
from .expressions import FLIPPED
from .linear import Linear, comparisons, linear


def refuse_contradictions(conjuncts: list[Bound], where: str) -> None:
    """Raise if exact comparisons exclude each other, or exclude every value that the types allow."""
    allowed: dict[str, tuple[Fraction, Fraction, list[Bound]]] = {}
    for conjunct in conjuncts:
        for a, op, b in comparisons(conjunct) or []:
            if a.kind.family != "exact" or b.kind.family != "exact" or op == "!=":
                _refuse_opposites(conjuncts, conjunct, where)
                continue
            whole, minus = linear(a), linear(b)
            if whole is None or minus is None:
                continue
            _narrow(allowed, whole.plus(minus, -1), op, conjunct, where)


def _narrow(allowed: dict[str, Any], form: Linear, op: str, conjunct: Bound, where: str) -> None:
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
