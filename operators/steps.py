"""Steps without state: `filter`, `select`, `with_columns`, `map`. A batch in, a batch out.

Event time stays beside the rows: changing or dropping the column that it came from does not change it.
"""

__all__ = ["Compute", "Filter", "Map", "computed_type"]

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..batch import Batch, empty_batch, keep_rows, record_batch
from ..errors import DataError, PredicateError, UserFunctionError
from ..state.log import storable_type
from .binding import Bound
from .evaluate import Columns, Values, evaluate, exact_scale, fitted, span, truth
from .own import origin
from .times import INT64_MAX, INT64_MIN, TICKS_PER_SECOND, TimeDomain, domain_of, times_of


class Filter:
    """Keeps the rows for which a predicate is true."""

    def __init__(self, predicate: Bound) -> None:
        self.predicate = predicate

    def __call__(self, batch: Batch) -> Batch:
        """Return the rows that remain, with the same watermark."""
        if batch.num_rows == 0:
            return batch
        data = batch.data
        mask = truth(self.predicate, Columns(lambda _, name: data.column(name)), batch.num_rows)
        if mask.all():
            return batch
        kept = keep_rows(data, mask)
        return Batch(kept, None if batch.times is None else batch.times[mask], batch.watermark)


class Compute:
    """Makes columns: each of the output is a column of the input, or an expression.

    >>> from .binding import bind
    >>> from .expressions import col
    >>> schema = pa.schema([("x", pa.int32())])
    >>> double = bind(col("x") * 2, {"": schema}, "step")
    >>> step = Compute(pa.schema([("y", computed_type(double, schema, "step"))]), {"y": double}, "step")
    >>> step(Batch(pa.record_batch({"x": [1, None]}, schema=schema), None, 0)).data.to_pydict()
    {'y': [2, None]}
    """

    def __init__(self, schema: pa.Schema, columns: Mapping[str, Bound | str], where: str) -> None:
        self.schema, self.columns, self.where = schema, dict(columns), where

    def __call__(self, batch: Batch) -> Batch:
        """Return the computed columns, with the same rows and times."""
        data = batch.data
        columns = Columns(lambda _, name: data.column(name))
        arrays = []
        for field in self.schema:
            made = self.columns[field.name]
            if isinstance(made, str):
                arrays.append(data.column(made))
            elif made.op == "column":
                arrays.append(data.column(made.value[1]))
            else:
                values = evaluate(made, columns, batch.num_rows)
                arrays.append(_to_arrow(values, made, field, self.where))
        return Batch(record_batch(arrays, self.schema, batch.num_rows), batch.times, batch.watermark)


def computed_type(bound: Bound, schema: pa.Schema, where: str) -> pa.DataType:
    """Return the Arrow type of a computed column, or say why no type holds it.

    Integers are int64 (uint64 where only that holds what the columns allow), floats float64, and decimals and times
    keep their scale, unit and zone.
    """
    kind = bound.kind
    if bound.op == "column":
        return schema.field(bound.value[1]).type
    if bound.op == "cast":
        return bound.value
    if kind.family != "exact":
        plain = {"float": pa.float64(), "bool": pa.bool_(), "text": pa.string(), "bytes": pa.binary()}
        return plain.get(kind.family, pa.null())
    if kind.role == "number":
        if kind.ticks != 1:
            return pa.decimal128(18, len(str(kind.ticks)) - 1)
        return pa.uint64() if kind.low >= 0 and kind.high > INT64_MAX else pa.int64()
    unit = _unit_of(kind.ticks)
    if unit is None:
        raise PredicateError(
            f"{where}: `{bound}` is finer than nanoseconds, which no column can hold; "
            "cast it, as in .cast(pyarrow.duration('ns'))"
        )
    return pa.duration(unit) if kind.role == "duration" else pa.timestamp(unit, _zone_of(bound, schema))


def _unit_of(ticks: Fraction) -> str | None:
    """Return the coarsest unit of which these ticks are whole multiples."""
    units = (unit for unit, per_second in TICKS_PER_SECOND.items() if (per_second / ticks).denominator == 1)
    return next(units, None)


def _zone_of(bound: Bound, schema: pa.Schema) -> str | None:
    if bound.op in ("column", "cast"):
        kind = schema.field(bound.value[1]).type if bound.op == "column" else bound.value
        return getattr(kind.value_type if pa.types.is_dictionary(kind) else kind, "tz", None)
    if bound.op == "literal":
        return "UTC" if bound.kind.zoned else None
    return next((zone for zone in (_zone_of(arg, schema) for arg in bound.args) if zone), None)


def _to_arrow(values: Values, bound: Bound, field: pa.Field, where: str) -> pa.Array:
    if isinstance(values.data, pa.Array):
        return values.data.cast(field.type)
    if bound.kind.family == "null":
        return pa.nulls(len(values.data), field.type)
    missing = None if values.valid is None else ~values.valid
    data = values.data
    if bound.kind.family != "exact":
        return pa.array(data, mask=missing).cast(field.type, safe=False)
    days = pa.types.is_date32(field.type)
    if bound.kind.role != "number" and not days and bound.kind.ticks not in TICKS_PER_SECOND.values():
        data = fitted(exact_scale(data, int(TICKS_PER_SECOND[field.type.unit] / bound.kind.ticks)))
    low, high = span(data)
    least, most = (0, 2**64 - 1) if pa.types.is_uint64(field.type) else (INT64_MIN, INT64_MAX)
    if pa.types.is_decimal(field.type):
        most = 10**field.type.precision - 1
        least = -most
    if low < least or high > most:
        far = low if low < least else high
        raise DataError(f"{where}: column {field.name!r}, `{bound}`: {far} does not fit {field.type}")
    if pa.types.is_decimal(field.type):
        words = np.empty((len(data), 2), np.int64)
        words[:, 0], words[:, 1] = data, np.where(data < 0, -1, 0)
        wide = pa.decimal128(field.type.precision, field.type.scale)
        whole = pa.Array.from_buffers(wide, len(data), [None, pa.py_buffer(words)])
        if missing is not None:
            whole = pc.if_else(pa.array(missing), pa.scalar(None, wide), whole)
        return whole.cast(field.type)
    kind = pa.uint64() if pa.types.is_uint64(field.type) else pa.int64()
    array = pa.array(data.astype(np.uint64 if kind == pa.uint64() else np.int64), kind, mask=missing)
    if bound.kind.role == "number":
        return array.cast(field.type)
    return array.cast(pa.int32()).view(field.type) if days else array.view(field.type)


class Map:
    """Hands batches to a function of the user's.

    A result with as many rows as went in takes their times, one by one. One with another number must still have the
    time column (`time`), ascending and within the times of the batch, since nothing else tells where its rows stand.
    """

    def __init__(
        self, fn: Callable[[pa.RecordBatch], Any], schema: pa.Schema | None, time: str | None,
        domain: TimeDomain | None, where: str,
    ) -> None:  # fmt: skip
        self.fn, self.schema, self.time, self.domain, self.where = fn, schema, time, domain, where

    def __call__(self, batch: Batch) -> Batch:
        """Return what the function makes of the rows; a batch without rows is not shown to it."""
        if batch.num_rows == 0:
            return Batch(empty_batch(self.schema or pa.schema([])), batch.times, batch.watermark)
        made = self.call(self.fn, batch.data, self.where)
        data = self._held_to(made)
        times = batch.times
        if times is not None and data.num_rows != batch.num_rows:
            times = self._times_of(data, times, batch.data)
        return Batch(data, times, batch.watermark)

    @staticmethod
    def call(fn: Callable[[pa.RecordBatch], Any], data: pa.RecordBatch, where: str) -> pa.RecordBatch:
        """Call the function; what goes wrong in it is the user's to see."""
        try:
            made = fn(data)
        except Exception as error:
            raise UserFunctionError(f"{where}: {origin(fn)} raised {type(error).__name__}: {error}") from error
        if isinstance(made, pa.Table):
            made = made.combine_chunks()
            made = made.to_batches()[0] if made.num_rows else empty_batch(made.schema)
        if not isinstance(made, pa.RecordBatch):
            raise UserFunctionError(
                f"{where}: {origin(fn)} returned a {type(made).__name__}; return a pyarrow.RecordBatch"
            )
        return _storable(made)

    def _held_to(self, made: pa.RecordBatch) -> pa.RecordBatch:
        doubled = [name for name in made.schema.names if made.schema.names.count(name) > 1]
        if doubled:
            raise UserFunctionError(
                f"{self.where}: {origin(self.fn)} returned two columns named {doubled[0]!r}; rename one"
            )
        if self.schema is None:
            self.schema = made.schema
        if made.schema.equals(self.schema):
            return made
        for field in self.schema:
            at = made.schema.get_field_index(field.name)
            got = made.schema.field(at).type if at >= 0 else None
            if got != field.type:
                raise UserFunctionError(
                    f"{self.where}: {origin(self.fn)} returned column {field.name!r} as {got or 'nothing'} where "
                    f"{field.type} was expected; return the same schema each time, or pass schema=…"
                )
        if made.num_columns != len(self.schema):
            extra = next(name for name in made.schema.names if name not in self.schema.names)
            raise UserFunctionError(
                f"{self.where}: {origin(self.fn)} returned a column {extra!r} that was not there before; "
                "return the same schema each time, or pass schema=…"
            )
        return pa.RecordBatch.from_arrays([made.column(n) for n in self.schema.names], schema=self.schema)

    def _has_times(self, given: pa.RecordBatch, times: np.ndarray) -> bool:
        """Tell whether the time column still has the times: another function may have changed it before."""
        column = given.column(self.time)
        return not column.null_count and np.array_equal(times_of(column, self.where, 0), times)

    def _times_of(self, data: pa.RecordBatch, before: np.ndarray, given: pa.RecordBatch) -> np.ndarray:
        who = f"{self.where}: {origin(self.fn)} returned {data.num_rows:,} rows for {len(before):,}"
        at = data.schema.get_field_index(self.time) if self.time else -1
        kept = at >= 0 and domain_of(data.schema.field(at).type) == self.domain and self._has_times(given, before)
        if not kept:
            column = f"the time column {self.time!r}" if self.time else "a column that still has their event time"
            raise UserFunctionError(f"{who} without {column}, so that nothing tells which time they have; keep it")
        times = times_of(data.column(at), self.where, 0)
        if len(times) and (np.any(times[1:] < times[:-1]) or times[0] < before[0] or times[-1] > before[-1]):
            raise UserFunctionError(f"{who}, whose times in {self.time!r} are out of order; keep the order of the rows")
        return times


def _storable(made: pa.RecordBatch) -> pa.RecordBatch:
    """Widen the indices of dictionaries: those of several batches are put together where rows of them meet."""
    schema = pa.schema([field.with_type(storable_type(field.type)) for field in made.schema])
    if schema.equals(made.schema):
        return made
    columns = [column.cast(field.type) for column, field in zip(made.columns, schema)]
    return record_batch(columns, schema, made.num_rows)
