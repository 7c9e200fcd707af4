"""One comparison, turned around for the side that is stored: `key(stored row) in [lo(probing row), hi(probing row)]`.

A comparison of each kind of value has its own way to get there, and each is a `Half`: one end of a range, or both
for an equality. Exact kinds are sums (`linear`) whose parts change sides freely. Floats round, so that a rearranged
sum widens its range by a bound on the rounding (`_Sum`), and the comparison as written decides. Integers meet floats
by turning the one into the bound among the other that means the same. Texts and binaries are hashed.

Invariant: a half never excludes a pair for which its comparison is true; it is `exact` if it also excludes all others.
One that is not may know a narrower range in which the comparison is `sure`: what the range of its negation excludes.
Pairs between both, a few in 10^15 of a float band, are decided as written.
Null, NaN and what cannot be represented become ranges that hold nothing.
"""

__all__ = ["OTHER", "Ends", "Half", "KeyArray", "Mask", "StoredKey", "halves", "with_nothing"]

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from ..state import _native
from .binding import Bound
from .evaluate import UINT64_MAX, Columns, evaluate, exact_add, exact_divide, exact_scale, fitted, floats_as_bounds
from .expressions import FLIPPED
from .linear import comparisons, linear
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
    compute: Callable[[Columns, int], tuple[KeyArray, Mask]]
    domain: str  # int64, uint64, float64, hash


@dataclass(frozen=True)
class Half:
    """`key op bound`, for one stored side: half of a band, or a whole comparison."""

    key: StoredKey
    op: str
    # (probing columns) -> ends of the range of keys; the lower or the upper one is the key domain's own end
    ends: Callable[[Columns, int], Ends]
    exact: bool
    sure: Callable[[Columns, int], Ends] | None = None  # keys for which the comparison certainly holds


def halves(conjunct: Bound, stored: str) -> list[Half] | None:
    """Return a conjunct's comparisons turned around for one stored side; None if it has no such form."""
    compared = comparisons(conjunct)
    if compared is None:
        return None
    found = []
    distance = len(compared) == 2
    for a, op, b in compared:
        half = _half(a, op, b, stored, rearranged=distance)
        if half is None:
            return None
        found.append(half)
    return found


def _half(a: Bound, op: str, b: Bound, stored: str, *, rearranged: bool) -> Half | None:
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


def _exact_half(a: Bound, op: str, b: Bound, stored: str) -> Half | None:
    whole, minus = linear(a), linear(b)
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
    small = max(*(abs(c) for _, c in others), abs(constant), by) < 2**62

    def ends(columns: Columns, rows: int) -> Ends:
        if len(others) == 1 and small:
            term, coefficient = others[0]
            values = evaluate(term, columns, rows)
            if values.data.dtype != object:
                lo, hi = _native.exact_ends(
                    values.data, op, coefficient, constant, by, is_unsigned=key.domain == "uint64", saturated=not exact
                )
                return _with_nulls(lo, hi, values.valid, op)
        total = np.full(rows, constant, np.int64 if abs(constant) <= INT64_MAX else object)
        known: Mask = None
        for term, coefficient in others:
            values = evaluate(term, columns, rows)
            total = exact_add(total, _scaled(values.data, coefficient))
            known = values.valid if known is None else (known if values.valid is None else known & values.valid)
        return _exact_ends(op, fitted(total), by, key.domain, known, saturated=not exact)

    return Half(key, op, ends, exact and not form.cancelled)


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

    def compute(columns: Columns, rows: int) -> tuple[KeyArray, Mask]:
        total, known = None, None
        for term, coefficient in parts:
            values = evaluate(term, columns, rows)
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
    if bound.dtype != object and by <= INT64_MAX:
        lo, hi = _native.exact_ends(bound, op, 1, 0, by, is_unsigned=domain == "uint64", saturated=saturated)
        return _with_nulls(lo, hi, known, op)
    bound = bound.astype(object)
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


def with_nothing(lo: KeyArray, hi: KeyArray, nothing: np.ndarray) -> Ends:
    """Give the empty range, (1, 0), to the probes that can match nothing."""
    if nothing.any():
        lo, hi = lo.copy(), hi.copy()
        lo[nothing], hi[nothing] = 1, 0
    return lo, hi


def _closed(lo: KeyArray, hi: KeyArray, nothing: np.ndarray, known: Mask, op: str) -> Ends:
    """Give probes the empty range where no key fits, and the range that fails where the probe is null.

    A null makes every comparison false; for `!=`, which wants the key *outside* of the range, that is the full one.
    """
    return _with_nulls(*with_nothing(lo, hi, nothing), known, op)


def _with_nulls(lo: KeyArray, hi: KeyArray, known: Mask, op: str) -> Ends:
    if known is not None and not known.all():
        lo, hi = lo.copy(), hi.copy()
        lo[~known], hi[~known] = (0, UINT64_MAX) if op == "!=" else (1, 0)
    return lo, hi


# Float ----------------------------------------------------------------------------------------------------------


def _float_half(a: Bound, op: str, b: Bound, stored: str, *, pure: bool) -> Half | None:
    terms = [(e, s) for e, s in _float_terms(a, 1)] + [(e, s) for e, s in _float_terms(b, -1)]
    if any(len(e.sides) > 1 for e, _ in terms):
        return None
    mine = [(e, s) for e, s in terms if e.sides == {stored}]
    theirs = [(e, s) for e, s in terms if e.sides != {stored}]
    if not mine or all(not e.sides for e, _ in theirs):
        return None
    if pure and (op in ("==", "!=") or len(mine) > 1 or len(_float_terms(a, 1)) == 1):
        return Half(_float_key(a), op, _float_ends(op, b), exact=True)
    if op in ("==", "!="):
        return None
    sign = mine[0][1]
    if len(mine) > 1:
        return _directed_half(mine, theirs, op)
    way = op if sign > 0 else FLIPPED[op]
    bounds = [(e, -s * sign) for e, s in theirs]
    total = _Sum(bounds, len(terms))
    return Half(
        _float_key(mine[0][0]), way, _rounded_ends(way, total), exact=False, sure=_rounded_ends(way, total, sure=True)
    )


def _float_terms(e: Bound, sign: int) -> list[tuple[Bound, int]]:
    """Flatten sums and differences that are not of one side into signed terms."""
    if e.op in ("+", "-") and e.kind.family == "float" and (len(e.sides) > 1 or _has_constant(e)):
        second = sign if e.op == "+" else -sign
        return _float_terms(e.args[0], sign) + _float_terms(e.args[1], second)
    return [(e, sign)]


def _has_constant(e: Bound) -> bool:
    return e.op in ("+", "-") and any(arg.op == "literal" or _has_constant(arg) for arg in e.args)


def _float_key(e: Bound) -> StoredKey:
    def compute(columns: Columns, rows: int) -> tuple[KeyArray, Mask]:
        values = evaluate(e, columns, rows)
        return _float_keys(values.data, values.valid)

    return StoredKey(f"float {e.key}", f"float {e.transposed().key}", str(e), compute, "float64")


def _float_keys(data: np.ndarray, valid: Mask) -> tuple[KeyArray, Mask]:
    missing = np.isnan(data)
    if missing.any():
        data = np.where(missing, 0.0, data)
        valid = ~missing if valid is None else valid & ~missing
    return _native.keys_of(data), valid


def _float_ends(op: str, bound: Bound) -> Callable[[Columns, int], Ends]:
    def ends(columns: Columns, rows: int) -> Ends:
        values = evaluate(bound, columns, rows)
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

    def added(self, columns: Columns, rows: int) -> tuple[np.ndarray, np.ndarray, Mask]:
        """Return the sum, the sum of absolute values, and where both are known."""
        return columns.once(self, lambda: self._added(columns, rows))

    def _added(self, columns: Columns, rows: int) -> tuple[Any, Any, Mask]:
        total: Any = self.constant
        size: Any = self.constant_size
        known: Mask = None
        for term, sign in self.parts:
            values = evaluate(term, columns, rows)
            if values.valid is not None:
                known = values.valid if known is None else known & values.valid
            total = total + values.data if sign > 0 else total - values.data
            size = size + np.abs(values.data)
        missing = np.isnan(size)
        if missing.any():
            known = ~missing if known is None else known & ~missing
        return total, size, known


def _rounded_ends(op: str, total: _Sum, *, sure: bool = False) -> Callable[[Columns, int], Ends]:
    """Ends of the keys g for which `g op total` may hold, in whatever order it was added up.

    The rounding is bounded by the sizes of the terms other than g: where g is so much larger that its own rounding
    counts, the comparison is decided by far. `sure`: ends of the keys for which it holds, whatever the rounding,
    since its negation may not.
    """
    below = op in ("<", "<=")

    def ends(columns: Columns, rows: int) -> Ends:
        value, size, known = total.added(columns, rows)
        lo, hi = _native.rounded_ends(value, size, total.slack, below, sure)
        return _with_nulls(lo, hi, known, op)

    return ends


def _directed_half(mine: list[tuple[Bound, int]], theirs: list[tuple[Bound, int]], op: str) -> Half:
    """`sum(mine) op -sum(theirs)` where the stored side has several terms, so that its rounding is its own.

    The key is moved by its rounding in the direction that lets more through, so that it serves this direction only.
    """
    below = op in ("<", "<=")
    terms = len(mine) + len(theirs)
    total = _Sum(mine, terms)

    def compute(columns: Columns, rows: int) -> tuple[KeyArray, Mask]:
        value, size, known = total.added(columns, rows)
        return _native.moved_keys(value, size, total.slack, not below), known

    text = " + ".join(str(e) if s > 0 else f"-({e})" for e, s in mine)
    way = f"{'below' if below else 'above'} {terms} "
    name = way + " ".join(f"{s}*{e.key}" for e, s in mine)
    mirrored = way + " ".join(f"{s}*{e.transposed().key}" for e, s in mine)
    key = StoredKey(name, mirrored, text, compute, "float64")
    bounds = [(e, -s) for e, s in theirs]
    return Half(key, op, _rounded_ends(op, _Sum(bounds, terms)), exact=False)


# Other kinds ----------------------------------------------------------------------------------------------------


def _hash_half(a: Bound, op: str, b: Bound) -> Half:
    def keys(e: Bound, columns: Columns, rows: int) -> tuple[KeyArray, Mask]:
        return hash_column(evaluate(e, columns, rows).data)

    def ends(columns: Columns, rows: int) -> Ends:
        hashed, known = keys(b, columns, rows)
        return _closed(hashed, hashed, np.zeros(rows, bool), known, op)

    mirrored = f"hash {a.transposed().key}"
    key = StoredKey(f"hash {a.key}", mirrored, str(a), lambda columns, rows: keys(a, columns, rows), "hash")
    return Half(key, op, ends, exact=False)


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


def _bool_half(a: Bound, op: str, b: Bound) -> Half:
    def keys(e: Bound, columns: Columns, rows: int) -> tuple[KeyArray, Mask]:
        values = evaluate(e, columns, rows)
        return values.data.astype(np.uint64), values.valid

    def ends(columns: Columns, rows: int) -> Ends:
        same, known = keys(b, columns, rows)
        return _closed(same, same, np.zeros(rows, bool), known, op)

    mirrored = f"bool {a.transposed().key}"
    key = StoredKey(f"bool {a.key}", mirrored, str(a), lambda columns, rows: keys(a, columns, rows), "uint64")
    return Half(key, op, ends, exact=True)


def _mixed_half(a: Bound, op: str, b: Bound) -> Half:
    """Integers against floats, exactly: the float becomes the integer bound that means the same, or the reverse."""
    if a.kind.family == "exact":
        key, exact = _exact_key({a.key: (a, 1)}, a.kind.ticks)

        def ends_of_whole(columns: Columns, rows: int) -> Ends:
            values = evaluate(b, columns, rows)
            missing = np.isnan(values.data)
            known = ~missing if values.valid is None else values.valid & ~missing
            if op in ("==", "!="):
                known = known & np.isfinite(values.data) & (np.floor(values.data) == values.data)
            way, bound = floats_as_bounds(op, values.data)
            return _exact_ends(way, fitted(bound), 1, key.domain, known, saturated=not exact)

        # `!=` with a fraction holds for every number, which an empty range says only when it is not the null one.
        return Half(key, op, ends_of_whole, exact) if op != "!=" else Half(key, op, ends_of_whole, exact=False)

    def ends_of_floats(columns: Columns, rows: int) -> Ends:
        values = evaluate(b, columns, rows)
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
        return with_nothing(lo, hi, above | below) if op in ("==", "!=") else (lo, hi)

    return Half(_float_key(a), op, ends_of_floats, exact=op != "!=")
