"""What a group of rows is folded into: sums, counts, ends, means, and functions of the user's.

Problem: results must not depend on how a stream was cut, integers must be exact, and nothing may be done row by row in
Python. Idea: a *fold* is a set of arrays with one place for each group; rows come with the number of their group and
are folded in by one native call (state/folds.hpp). Windows that overlap are put together from folds of smaller pieces
by the same calls (`merged`), in the order of time.

Floats are added in the order of rows (in a window of several pieces, piece by piece), integers in 128 bits. Nulls are
passed over, NaN by `min` and `max` too: it is neither the least nor the greatest; it makes a sum NaN. What was nothing
but nulls gives null.
"""

__all__ = ["Fold", "States", "make_fold", "result_type"]

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..batch import record_batch
from ..errors import DataError, PredicateError, UserFunctionError
from ..state import WindowLog, _native
from .expressions import Aggregate
from .own import origin

INT64_MAX = 2**63 - 1
SIGN = np.uint64(1 << 63)

SLACK = 4096
"""Rows that may be kept for nothing before it is worth a look."""


def result_type(aggregate: Aggregate, given: pa.DataType | None, where: str) -> pa.DataType:
    """Return the type of the result, for an expression of this type; or say why there is none."""
    if aggregate.op == "count":
        return pa.int64()
    if aggregate.type is not None:
        return aggregate.type
    assert given is not None
    floating, integer = pa.types.is_floating(given), pa.types.is_integer(given)
    if aggregate.op == "sum":
        if integer:
            return pa.uint64() if pa.types.is_unsigned_integer(given) else pa.int64()
        if floating:
            return pa.float64()
        if pa.types.is_decimal128(given):
            return pa.decimal128(38, given.scale)
        if pa.types.is_duration(given):
            return given
    if aggregate.op == "mean" and (integer or floating or pa.types.is_decimal128(given)):
        return pa.float64()
    if aggregate.op in ("min", "max") and (integer or floating or pa.types.is_decimal128(given) or _is_temporal(given)):
        return given
    hint = "; cast it, as in .cast(pyarrow.decimal128(18, 2))" if pa.types.is_decimal(given) else ""
    hint = '; cast it, as in .cast("int64")' if pa.types.is_boolean(given) else hint
    raise PredicateError(f"{where}: there is no {aggregate.op} of `{aggregate.of}`, which is {given}{hint}")


class States:
    """An array with a place for each group, and room for more."""

    def __init__(self, dtype: Any, start: int = 0) -> None:
        self.array = np.full(64, start, dtype)
        self.start = start

    def extend(self, n: int) -> None:
        """Have places for n groups."""
        if n > len(self.array):
            larger = np.full(max(n, 2 * len(self.array)), self.start, self.array.dtype)
            larger[: len(self.array)] = self.array
            self.array = larger

    def restore(self, values: np.ndarray) -> None:
        """Go on with these."""
        self.extend(len(values))
        self.array[: len(values)] = values

    def keep(self, groups: np.ndarray) -> None:
        """Keep these groups, in this order."""
        kept = self.array[groups]
        self.array = np.full(max(64, len(groups)), self.start, self.array.dtype)
        self.array[: len(groups)] = kept


class Fold:
    """One aggregate of all groups. `states`: its arrays."""

    def __init__(self, name: str, result: pa.DataType, where: str) -> None:
        self.name, self.result, self.where = name, result, where
        self.states: list[States] = []

    def extend(self, n: int) -> None:
        """Have places for n groups."""
        for state in self.states:
            state.extend(n)

    def keep(self, groups: np.ndarray) -> None:
        """Keep these groups, in this order."""
        for state in self.states:
            state.keep(groups)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(state.array.nbytes for state in self.states)

    def forget(self, over: np.ndarray) -> None:
        """Let go of what is kept for groups that are over, if it is much."""

    def snapshot(self, n: int) -> Any:
        """Return what it remembers of n groups."""
        return [state.array[:n].copy() for state in self.states]

    def restore(self, known: Any) -> None:
        """Go on from there."""
        for state, values in zip(self.states, known, strict=True):
            state.restore(values)

    def take(self, groups: np.ndarray, column: Any) -> None:
        """Fold rows in: the group of each, and its value."""
        raise NotImplementedError

    def merged(self, groups: np.ndarray, into: np.ndarray, n: int) -> "Fold":
        """Return a fold of n groups, into which some of these are put together, in this order."""
        raise NotImplementedError

    def finish(self, groups: np.ndarray) -> pa.Array:
        """Return the results of these groups."""
        raise NotImplementedError


def make_fold(name: str, aggregate: Aggregate, given: pa.DataType | None, schema: pa.Schema, where: str) -> Fold:
    """Return the fold of an aggregate over an expression of a type."""
    result = result_type(aggregate, given, where)
    if aggregate.fn is not None:
        return _Rows(name, result, aggregate.fn, pa.schema([schema.field(c) for c in aggregate.columns]), where)
    if aggregate.op == "count":
        return _Count(name, result, where)
    assert given is not None
    if aggregate.op in ("min", "max"):
        return _End(name, result, given, aggregate.op == "max", where)
    if pa.types.is_floating(given):
        return _FloatSum(name, result, aggregate.op == "mean", where)
    return _IntegerSum(name, result, given, aggregate.op == "mean", where)


class _Count(Fold):
    def __init__(self, name: str, result: pa.DataType, where: str) -> None:
        super().__init__(name, result, where)
        self.count = States(np.int64)
        self.states = [self.count]

    def take(self, groups: np.ndarray, column: Any) -> None:
        _native.fold_counts(groups, None if column is None else valid_of(column), self.count.array)

    def merged(self, groups: np.ndarray, into: np.ndarray, n: int) -> Fold:
        fold = _Count(self.name, self.result, self.where)
        fold.extend(n)
        np.add.at(fold.count.array, into, self.count.array[groups])
        return fold

    def finish(self, groups: np.ndarray) -> pa.Array:
        return pa.array(self.count.array[groups])


class _FloatSum(Fold):
    def __init__(self, name: str, result: pa.DataType, mean: bool, where: str) -> None:
        super().__init__(name, result, where)
        self.mean = mean
        self.sum, self.count = States(np.float64), States(np.int64)
        self.states = [self.sum, self.count]

    def take(self, groups: np.ndarray, column: Any) -> None:
        valid, values = valid_of(column), numbers_of(column)
        _native.fold_floats(groups, values, valid, self.sum.array)
        _native.fold_counts(groups, valid, self.count.array)

    def merged(self, groups: np.ndarray, into: np.ndarray, n: int) -> Fold:
        fold = _FloatSum(self.name, self.result, self.mean, self.where)
        fold.extend(n)
        with np.errstate(all="ignore"):
            _native.fold_floats(into, self.sum.array[groups], None, fold.sum.array)
        np.add.at(fold.count.array, into, self.count.array[groups])
        return fold

    def finish(self, groups: np.ndarray) -> pa.Array:
        total, n = self.sum.array[groups], self.count.array[groups]
        if self.mean:
            with np.errstate(all="ignore"):
                total = total / n
        return pa.array(total, mask=n == 0)


class _IntegerSum(Fold):
    """Sums of integers, durations and decimals (by their unscaled value), exactly."""

    def __init__(self, name: str, result: pa.DataType, given: pa.DataType, mean: bool, where: str) -> None:
        super().__init__(name, result, where)
        self.given, self.mean = given, mean
        self.low, self.high, self.count = States(np.uint64), States(np.int64), States(np.int64)
        self.states = [self.low, self.high, self.count]

    def take(self, groups: np.ndarray, column: Any) -> None:
        valid, high = valid_of(column), None
        if pa.types.is_decimal128(self.given):
            low, high = _words_of(column)
        else:
            low = numbers_of(column).view(np.uint64)
        is_signed = not pa.types.is_unsigned_integer(self.given)
        _native.fold_integers(groups, low, high, is_signed, valid, self.low.array, self.high.array)
        _native.fold_counts(groups, valid, self.count.array)

    def merged(self, groups: np.ndarray, into: np.ndarray, n: int) -> Fold:
        fold = _IntegerSum(self.name, self.result, self.given, self.mean, self.where)
        fold.extend(n)
        low, high = self.low.array[groups], self.high.array[groups]
        _native.fold_integers(into, low, high, True, None, fold.low.array, fold.high.array)
        np.add.at(fold.count.array, into, self.count.array[groups])
        return fold

    def finish(self, groups: np.ndarray) -> pa.Array:
        low, high, n = (state.array[groups] for state in self.states)
        if self.mean:
            return self._means(low, high, n)
        if pa.types.is_decimal128(self.result):
            return self._checked_decimals(low, high, n)
        if pa.types.is_uint64(self.result):
            far, values = high != 0, low
        else:
            values = low.view(np.int64)
            far = high != values >> 63
        if far.any():
            at = int(np.flatnonzero(far)[0])
            total = (int(high[at]) << 64) + int(low[at])
            raise DataError(
                f"{self.where}: column {self.name!r}: a sum is {total}, which does not fit {self.result}; sum "
                'floats, as in .cast("float64").sum(), or decimals'
            )
        kind = pa.uint64() if pa.types.is_uint64(self.result) else pa.int64()
        return pa.array(values, kind, mask=n == 0).view(self.result)

    def _means(self, low: np.ndarray, high: np.ndarray, n: np.ndarray) -> pa.Array:
        whole = low.view(np.int64)
        scale = 10**self.given.scale if pa.types.is_decimal128(self.given) else 1
        with np.errstate(all="ignore"):
            means = whole / (n * scale)
        # Where the sum has no float of its own, Python's division, which is exact, decides.
        far = (high != whole >> 63) | (whole > 2**53) | (whole < -(2**53)) | (n > 2**53 // scale)
        for at in np.flatnonzero(far & (n > 0)):
            means[at] = ((int(high[at]) << 64) + int(low[at])) / (int(n[at]) * scale)
        return pa.array(means, mask=n == 0)

    def _checked_decimals(self, low: np.ndarray, high: np.ndarray, n: np.ndarray) -> pa.Array:
        most = 10**38 >> 64
        near = np.flatnonzero((high >= most) | (high < -most))
        for at in near:
            total = (int(high[at]) << 64) + int(low[at])
            if abs(total) >= 10**38:
                raise DataError(f"{self.where}: column {self.name!r}: a sum of {total} does not fit {self.result}")
        return _decimals(low, high, n == 0, self.result)


class _End(Fold):
    """The least or the greatest value."""

    def __init__(self, name: str, result: pa.DataType, given: pa.DataType, greatest: bool, where: str) -> None:
        super().__init__(name, result, where)
        self.given, self.greatest = given, greatest
        start = 0 if greatest else 2**64 - 1
        self.end, self.below, self.some = States(np.uint64, start), States(np.uint64, start), States(np.uint8)
        self.states = [self.end, self.below, self.some]  # `below`: the lower half of decimals

    def take(self, groups: np.ndarray, column: Any) -> None:
        valid, below = valid_of(column), None
        if pa.types.is_decimal128(self.given):
            below, high = _words_of(column)
            keys = _native.keys_of(high)
        else:
            values = numbers_of(column)
            if values.dtype == np.float64 and (nan := np.isnan(values)).any():
                valid = ~nan if valid is None else valid.view(bool) & ~nan
                valid = valid.view(np.uint8)
            keys = _native.keys_of(values)
        self._fold(groups, keys, below, valid)

    def _fold(self, groups: np.ndarray, keys: np.ndarray, below: np.ndarray | None, valid: np.ndarray | None) -> None:
        _native.fold_ends(groups, keys, below, valid, self.greatest, self.end.array, self.below.array, self.some.array)

    def merged(self, groups: np.ndarray, into: np.ndarray, n: int) -> Fold:
        fold = _End(self.name, self.result, self.given, self.greatest, self.where)
        fold.extend(n)
        end, below, some = (state.array[groups] for state in self.states)
        fold._fold(into, end, below, np.ascontiguousarray(some))
        return fold

    def finish(self, groups: np.ndarray) -> pa.Array:
        keys, below, some = (state.array[groups] for state in self.states)
        kind, none = self.given, some == 0
        keys[none] = SIGN
        if pa.types.is_floating(kind):
            bits = np.where(keys >= SIGN, keys ^ SIGN, ~keys)
            return pa.array(bits.view(np.float64), mask=none).cast(kind)
        if pa.types.is_unsigned_integer(kind):
            keys[none] = 0
            return pa.array(keys, pa.uint64(), mask=none).cast(kind)
        if pa.types.is_decimal128(kind):
            return _decimals(below, (keys ^ SIGN).view(np.int64), none, kind)
        whole = pa.array((keys ^ SIGN).view(np.int64), pa.int64(), mask=none)
        if pa.types.is_integer(kind):
            return whole.cast(kind)
        return whole.cast(pa.int32()).view(kind) if kind.bit_width == 32 else whole.view(kind)


class _Rows(Fold):
    """The rows themselves, for a function of the user's."""

    def __init__(
        self, name: str, result: pa.DataType, fn: Callable[[pa.RecordBatch], Any], schema: pa.Schema, where: str
    ) -> None:
        super().__init__(name, result, where)
        self.fn, self.schema = fn, schema
        self.log = WindowLog(schema)
        self.group, self.row = np.empty(0, np.int64), np.empty(0, np.int64)  # of each row that is kept
        self.waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self.looked_at = 0  # rows, when those of groups that are over were let go of

    @property
    def nbytes(self) -> int:
        return self.log.nbytes + self.group.nbytes + self.row.nbytes + sum(2 * g.nbytes for g, _ in self.waiting)

    def take(self, groups: np.ndarray, column: Any) -> None:
        rows = np.arange(self.log.end_row, self.log.end_row + len(groups), dtype=np.int64)
        self.log.append(column)
        self.waiting.append((groups, rows))

    def _settle(self) -> None:
        if self.waiting:
            self.group = np.concatenate([self.group, *(groups for groups, _ in self.waiting)])
            self.row = np.concatenate([self.row, *(rows for _, rows in self.waiting)])
            self.waiting = []

    def forget(self, over: np.ndarray) -> None:
        self._settle()
        if len(self.row) < 2 * self.looked_at + SLACK:
            return
        alive = ~over[self.group]
        self.group, self.row = self.group[alive], self.row[alive]
        self.looked_at = len(self.row)
        self._expire()

    def snapshot(self, n: int) -> Any:
        self._settle()
        columns = self.log.gather(list(range(len(self.schema))), self.row)
        return {"group": self.group, "rows": record_batch(columns, self.log.schema, len(self.row))}

    def restore(self, known: Any) -> None:
        self.log.append(known["rows"])
        self.group, self.row = known["group"], np.arange(len(known["group"]), dtype=np.int64)

    def _expire(self) -> None:
        self.log.expire(int(self.row[0]) if len(self.row) else self.log.end_row)

    def keep(self, groups: np.ndarray) -> None:
        self._settle()
        order = np.argsort(groups)
        at = np.minimum(np.searchsorted(groups[order], self.group), max(len(groups) - 1, 0))
        mine = groups[order][at] == self.group if len(groups) else np.zeros(len(self.group), bool)
        self.group, self.row = order[at[mine]] if len(groups) else self.group[:0], self.row[mine]
        self._expire()

    def merged(self, groups: np.ndarray, into: np.ndarray, n: int) -> Fold:
        fold = _Rows(self.name, self.result, self.fn, self.schema, self.where)
        order, begin, end = self._by_group(groups)
        counts = end - begin
        places = np.repeat(begin - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        fold.log, fold.group, fold.row = self.log, np.repeat(into, counts), self.row[order[places]]
        return fold

    def _by_group(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows in the order of (group, row), and where in it each of these groups begins and ends."""
        self._settle()
        order = np.lexsort((self.row, self.group))
        ordered = self.group[order]
        return order, np.searchsorted(ordered, groups, "left"), np.searchsorted(ordered, groups, "right")

    def finish(self, groups: np.ndarray) -> pa.Array:
        order, begins, ends = self._by_group(groups)
        values = []
        for begin, end in zip(begins, ends, strict=True):
            columns = self.log.gather(list(range(len(self.schema))), self.row[order[begin:end]])
            values.append(self._call(record_batch(columns, self.schema, int(end - begin))))
        try:
            if pa.types.is_integer(self.result) and (odd := [v for v in values if isinstance(v, float) and v % 1]):
                raise ValueError(f"{odd[0]!r} is not whole")
            return pa.array(values, self.result)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise UserFunctionError(
                f"{self.where}: {origin(self.fn)} returned values that are not {self.result}: {error}"
            ) from error

    def _call(self, rows: pa.RecordBatch) -> Any:
        try:
            return self.fn(rows)
        except Exception as error:
            raise UserFunctionError(
                f"{self.where}: {origin(self.fn)} raised {type(error).__name__}: {error}"
            ) from error


def _is_temporal(kind: pa.DataType) -> bool:
    return pa.types.is_temporal(kind) and not pa.types.is_interval(kind)


def valid_of(column: pa.Array) -> np.ndarray | None:
    """Return which values are not null, as bytes; None: all."""
    return np.asarray(column.is_valid()).view(np.uint8) if column.null_count else None


def numbers_of(column: pa.Array) -> np.ndarray:
    """Return numbers and times as int64, uint64 or float64; anything where there is null."""
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if column.null_count:
        column = column.fill_null(0)
    if pa.types.is_float16(kind):
        column = column.cast(pa.float32())
    wide = pa.float64() if pa.types.is_floating(kind) else pa.int64()
    wide = pa.uint64() if pa.types.is_unsigned_integer(kind) else wide
    return np.asarray(column.cast(wide))


def _words_of(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the low and the high words of decimals."""
    words = np.frombuffer(column.buffers()[1], np.uint64, count=2 * (column.offset + len(column)))
    words = words[2 * column.offset :].reshape(-1, 2)
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1]).view(np.int64)


def _decimals(low: np.ndarray, high: np.ndarray, none: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return decimals of these words, null where there is none."""
    words = np.empty((len(low), 2), np.uint64)
    words[:, 0], words[:, 1] = low, high.view(np.uint64)
    whole = pa.Array.from_buffers(kind, len(low), [None, pa.py_buffer(words)])
    return pc.if_else(pa.array(~none), whole, pa.scalar(None, kind))
