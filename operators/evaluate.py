"""The values of a bound expression, for whole columns at once, exactly as docs/semantics.md section 4 says.

Problem: integer arithmetic must neither wrap nor saturate, integers must compare exactly with floats, and nulls and
NaN make every comparison false; and it must cost no more than NumPy does. Idea: exact values stand in int64 arrays,
or uint64, as long as the least and the greatest value show that the result fits; only where they do not are the same
operations done on Python's integers (`object` arrays). The result never depends on which it was.

The rows come as `Columns`, which remembers what was taken into arithmetic: one column serves keys, both ends of a
band and the decision on a pair.
"""

__all__ = ["Columns", "Values", "evaluate", "truth", "values_of"]

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..batch import take_column
from ..errors import DataError, UserFunctionError
from .binding import Bound, Kind, common_ticks
from .expressions import FLIPPED
from .own import origin
from .times import INT64_MAX, INT64_MIN

UINT64_MAX = 2**64 - 1
_BEYOND = 1 << 4096
_FLOATS: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}


@dataclass(frozen=True, slots=True)
class Values:
    """One value a row; rows where `valid` is False are null (None: no row is).

    `data` is int64, uint64 or object for exact kinds, float64, bool, or an Arrow array for text and bytes.
    """

    data: Any
    valid: np.ndarray | None = None


class Columns:
    """The columns of some rows, by side and name, and what was computed from them so far."""

    __slots__ = ("_known", "_load")

    def __init__(self, load: Callable[[str, str], pa.Array]) -> None:
        self._load = load
        self._known: dict[Any, Any] = {}

    def array(self, side: str, name: str) -> pa.Array:
        """Return a column as it is."""
        return self.once((side, name, "array"), lambda: self._load(side, name))

    def values(self, column: Bound) -> Values:
        """Return a column taken into arithmetic."""
        values = self._known.get(column.value)
        if values is None:
            values = self._known[column.value] = values_of(self.array(*column.value), column.kind)
        return values

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Compute something for these rows the first time that it is asked for."""
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]


def values_of(column: pa.Array, kind: Kind) -> Values:
    """Take an Arrow column into arithmetic. Null slots hold 0, so that they cannot push a result out of 64 bits."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    valid = ~np.asarray(column.is_null()) if column.null_count else None
    if kind.family in ("text", "bytes"):
        return Values(column, valid)
    if kind.family == "null":
        return Values(np.zeros(len(column), np.int64), np.zeros(len(column), bool))
    data = _numbers(column, kind)
    if valid is not None and kind.family == "exact":
        data = np.where(valid, data, 0).astype(data.dtype, copy=False)
    return Values(data, valid)


def _numbers(column: pa.Array, kind: Kind) -> np.ndarray:
    held = column.type
    if kind.family == "bool":
        return column.fill_null(False).to_numpy(zero_copy_only=False)
    if pa.types.is_decimal(held):
        if held.bit_width != 128:
            column = column.cast(pa.decimal128(held.precision, held.scale))
        words = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset : 2 * (column.offset + len(column))]
        return np.ascontiguousarray(words[::2])  # 18 digits fit the low word
    if held.num_buffers != 2 or not pa.types.is_primitive(held):
        raise TypeError(f"no numbers in a column of {held}")
    letter = "u" if pa.types.is_unsigned_integer(held) else "i"
    dtype = _FLOATS[held.bit_width] if kind.family == "float" else np.dtype(f"{letter}{held.bit_width // 8}")
    buffer = column.buffers()[1]
    if buffer is None or len(column) == 0:
        return np.empty(0, np.float64 if kind.family == "float" else np.int64)
    raw = np.frombuffer(buffer, dtype, count=column.offset + len(column))[column.offset :]
    if kind.family == "float":
        return raw.astype(np.float64, copy=False)
    return raw if raw.dtype == np.uint64 else raw.astype(np.int64, copy=False)


def span(data: np.ndarray) -> tuple[int, int]:
    """Return the least and the greatest of exact values as Python integers; (0, 0) of none."""
    if len(data) == 0:
        return 0, 0
    return int(data.min()), int(data.max())


def fitted(data: np.ndarray) -> np.ndarray:
    """Bring exact values back to 64 bits if they fit."""
    if data.dtype != object:
        return data
    low, high = span(data)
    if low >= INT64_MIN and high <= INT64_MAX:
        return data.astype(np.int64)
    return data.astype(np.uint64) if low >= 0 and high <= UINT64_MAX else data


def _room(low: int, high: int) -> Any:
    """Return the narrowest of int64, uint64, object that holds [low, high]."""
    if low >= INT64_MIN and high <= INT64_MAX:
        return np.int64
    return np.uint64 if low >= 0 and high <= UINT64_MAX else object


def exact_add(a: np.ndarray, b: np.ndarray, sign: int = 1) -> np.ndarray:
    """Return a + b or a - b."""
    (al, ah), (bl, bh) = span(a), span(b)
    low, high = (al + bl, ah + bh) if sign > 0 else (al - bh, ah - bl)
    room = _room(min(low, al, bl), max(high, ah, bh))
    x, y = a.astype(room, copy=False), b.astype(room, copy=False)
    return x + y if sign > 0 else x - y


def exact_multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a * b."""
    (al, ah), (bl, bh) = span(a), span(b)
    corners = [x * y for x in (al, ah) for y in (bl, bh)]
    room = _room(min(*corners, al, bl), max(*corners, ah, bh))
    return a.astype(room, copy=False) * b.astype(room, copy=False)


def exact_scale(a: np.ndarray, factor: int) -> np.ndarray:
    """Return a * factor."""
    if factor == 1:
        return a
    low, high = span(a)
    room = _room(min(low * factor, low), max(high * factor, high, factor))
    return a.astype(room, copy=False) * (room(factor) if room is not object else factor)


def exact_divide(a: np.ndarray, divisor: int, *, up: bool) -> np.ndarray:
    """Return a / divisor, rounded down or up to a whole number; the divisor is positive."""
    if divisor == 1:
        return a
    if a.dtype != object and divisor > INT64_MAX:
        a = a.astype(object)
    by = divisor if a.dtype == object else a.dtype.type(divisor)
    whole = a // by
    return exact_add(whole, (whole * by != a).astype(np.int64)) if up else whole


def _exact_compare(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if {a.dtype, b.dtype} == {np.dtype(np.int64), np.dtype(np.uint64)}:
        room = _room(min(span(a)[0], span(b)[0]), max(span(a)[1], span(b)[1]))
        a, b = a.astype(room, copy=False), b.astype(room, copy=False)
    return np.asarray(_NUMPY[op](a, b), bool)


_NUMPY: dict[str, Callable[[Any, Any], Any]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip


def floats_as_bounds(op: str, floats: np.ndarray) -> tuple[str, np.ndarray]:
    """Turn `whole op float` into `whole op' whole`, for whole numbers of any size. NaN is the caller's business.

    Infinities become numbers beyond every float and every exact value that columns can give.
    """
    finite = np.where(np.isfinite(floats), floats, 0.0)
    rounded = np.floor(finite) if op in ("<=", ">") else np.ceil(finite)
    if np.all(np.abs(rounded) < 2.0**63) and not np.isinf(floats).any():
        return op, rounded.astype(np.int64)
    beyond = {math.inf: _BEYOND, -math.inf: -_BEYOND}
    return op, np.array([beyond.get(x) or int(r) for x, r in zip(floats, rounded, strict=True)], object)


def _compare_mixed(op: str, whole: np.ndarray, floats: np.ndarray) -> np.ndarray:
    """Compare whole numbers with floats, exactly."""
    known = ~np.isnan(floats)
    if op in ("==", "!="):
        _, up = floats_as_bounds(">=", floats)
        integral = np.isfinite(floats) & (np.floor(floats) == floats)
        same = integral & _exact_compare("==", whole, fitted(up))
        return (same if op == "==" else ~same) & known
    _, bound = floats_as_bounds(op, floats)
    return _exact_compare(op, whole, fitted(bound)) & known


def evaluate(bound: Bound, columns: Columns, rows: int) -> Values:
    """Compute a value for each of `rows` rows."""
    if bound.op == "column":
        return columns.values(bound)
    if bound.op == "literal":
        return _constant(bound, rows)
    if bound.kind.family == "bool":
        return Values(truth(bound, columns, rows))
    parts = [evaluate(arg, columns, rows) for arg in bound.args]
    valid = _both(*[part.valid for part in parts])
    a = parts[0].data
    if bound.op == "cast":
        return Values(_cast(bound, a, parts[0].valid), valid)
    if bound.kind.family == "float":
        with np.errstate(all="ignore"):
            return Values(_float_arithmetic(bound.op, *[part.data for part in parts]), valid)
    if bound.op == "abs":
        low, _ = span(a)
        wide = a.astype(object) if low == INT64_MIN and a.dtype == np.int64 else a
        return Values(fitted(np.abs(wide)), valid)
    if bound.op == "*":
        return Values(fitted(exact_multiply(a, parts[1].data)), valid)
    ticks = bound.kind.ticks
    x, y = (exact_scale(p.data, int(ticks / arg.kind.ticks)) for p, arg in zip(parts, bound.args, strict=True))
    return Values(fitted(exact_add(x, y, 1 if bound.op == "+" else -1)), valid)


def _float_arithmetic(op: str, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
    if b is None:
        return np.abs(a)
    return a + b if op == "+" else a - b if op == "-" else a * b


def _constant(bound: Bound, rows: int) -> Values:
    value = bound.value
    if bound.kind.family == "exact":
        room = _room(value, value)
        return Values(np.full(rows, value, room))
    if bound.kind.family in ("text", "bytes"):
        kind = pa.large_string() if bound.kind.family == "text" else pa.large_binary()
        return Values(pa.repeat(pa.scalar(value, kind), rows))
    return Values(np.full(rows, value, np.float64 if bound.kind.family == "float" else bool))


def _both(*masks: np.ndarray | None) -> np.ndarray | None:
    known = [mask for mask in masks if mask is not None]
    if not known:
        return None
    return known[0] if len(known) == 1 else known[0] & known[1]


def _cast(bound: Bound, data: np.ndarray, valid: np.ndarray | None) -> np.ndarray:
    source, target = bound.args[0].kind, bound.kind
    if target.family == "float":
        if source.family == "exact" and source.ticks != 1:
            # One rounding: where the digits fit a float the division alone rounds, elsewhere Python's fractions do.
            low, high = span(data)
            if data.dtype != object and low >= -(2**53) and high <= 2**53 and source.ticks <= 10**22:
                return data.astype(np.float64) / float(source.ticks)
            return np.array([float(Fraction(int(x)) / source.ticks) for x in data], np.float64)
        data = np.array([float(x) for x in data]) if data.dtype == object else data.astype(np.float64)
        if pa.types.is_float64(bound.value):
            return data
        with np.errstate(all="ignore"):
            return data.astype(np.float32 if pa.types.is_float32(bound.value) else np.float16).astype(np.float64)
    looked_at = data if valid is None else data[valid]
    if source.family == "float":
        bad = ~np.isfinite(looked_at) | (np.floor(looked_at) != looked_at)
        if bad.any():
            raise DataError(f"`{bound}`: {float(looked_at[bad][0])!r} is not a whole number; round it when it is read")
        safe = data if valid is None else np.where(valid, data, 0.0)
        data = fitted(np.array([int(x) for x in safe], object)) if len(safe) else safe.astype(np.int64)
        data = exact_scale(data, int(target.ticks)) if target.ticks > 1 else data
    else:
        data = _change_ticks(bound, data, source, target)
    low, high = span(data)
    if low < target.low or high > target.high:
        raise DataError(f"`{bound}`: {low if low < target.low else high} does not fit")
    return data


def _change_ticks(bound: Bound, data: np.ndarray, source: Kind, target: Kind) -> np.ndarray:
    if source.role != target.role:  # a time as the number of its own units, or back
        return data
    common = common_ticks(source.ticks, target.ticks)
    data = fitted(exact_scale(data, int(common / source.ticks)))
    divisor = int(common / target.ticks)
    whole = exact_divide(data, divisor, up=False)
    if divisor > 1 and (exact_scale(whole, divisor) != data).any():
        raise DataError(f"`{bound}`: a value is not a whole number of the new unit; cast to a finer one")
    return whole


def truth(bound: Bound, columns: Columns, rows: int) -> np.ndarray:
    """Decide a predicate for each of `rows` rows. Null and NaN make a comparison false."""
    if bound.op == "literal":
        return np.full(rows, bound.value, bool)
    if bound.op in ("&", "|"):
        a, b = (truth(arg, columns, rows) for arg in bound.args)
        return a & b if bound.op == "&" else a | b
    if bound.op == "udf":
        return _ask(bound, columns, rows)
    if bound.op == "truth":
        values = evaluate(bound.args[0], columns, rows)
        return values.data if values.valid is None else values.data & values.valid
    one, other = (evaluate(arg, columns, rows) for arg in bound.args)
    result = _compare(bound, one.data, other.data)
    valid = _both(one.valid, other.valid)
    return result if valid is None else result & valid


def _compare(bound: Bound, a: Any, b: Any) -> np.ndarray:
    ka, kb = bound.args[0].kind, bound.args[1].kind
    if ka.family in ("text", "bytes"):
        if a.type != b.type:
            kind = pa.large_string() if ka.family == "text" else pa.large_binary()
            a, b = a.cast(kind), b.cast(kind)
        equal = pc.equal(a, b)
        if equal.null_count:
            equal = equal.fill_null(False)
        equal = equal.to_numpy(zero_copy_only=False)
        return equal if bound.op == "==" else ~equal
    if ka.family == kb.family == "exact":
        ticks = common_ticks(ka.ticks, kb.ticks)
        x, y = fitted(exact_scale(a, int(ticks / ka.ticks))), fitted(exact_scale(b, int(ticks / kb.ticks)))
        return _exact_compare(bound.op, x, y)
    if ka.family == "exact":
        return _compare_mixed(bound.op, a, b)
    if kb.family == "exact":
        return _compare_mixed(FLIPPED[bound.op], b, a)
    result = np.asarray(_NUMPY[bound.op](a, b), bool)
    if bound.op == "!=" and ka.family == "float":
        result &= ~(np.isnan(a) | np.isnan(b))
    return result


def _ask(bound: Bound, columns: Columns, rows: int) -> np.ndarray:
    """Let the user's function decide; pairs with a null are false without being shown to it."""
    asked_for = [columns.array(*arg.value) for arg in bound.args]
    known = np.ones(rows, bool)
    for column in asked_for:
        if column.null_count:
            known &= ~np.asarray(column.is_null())
    if not known.all():
        shown = np.flatnonzero(known)
        asked_for = [take_column(column, shown) for column in asked_for]
    asked = int(known.sum())
    if asked == 0:
        return known
    where = origin(bound.value)
    try:
        answer = bound.value(*[_for_user(column) for column in asked_for])
    except Exception as error:
        raise UserFunctionError(f"udf {where} raised {type(error).__name__}: {error}") from error
    decided = _booleans(answer, where)
    if len(decided) != asked:
        raise UserFunctionError(f"udf {where} returned {len(decided)} values for {asked} pairs")
    known[known] = decided
    return known


def _for_user(column: pa.Array) -> Any:
    kind = column.type
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    timely = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind)
    return column.to_numpy(zero_copy_only=False) if plain or timely else column


def _booleans(answer: Any, where: str) -> np.ndarray:
    if isinstance(answer, pa.ChunkedArray):
        answer = answer.combine_chunks()
    if isinstance(answer, pa.Array):
        if not pa.types.is_boolean(answer.type):
            raise UserFunctionError(f"udf {where} returned {answer.type}; return booleans")
        return answer.fill_null(False).to_numpy(zero_copy_only=False)
    decided = np.asarray(answer)
    if decided.dtype != bool or decided.ndim != 1:
        raise UserFunctionError(f"udf {where} returned {decided.dtype} of shape {decided.shape}; return booleans")
    return decided
