"""The unit of everything: an Arrow batch, and where it stands in its stream.

A `Batch` is immutable. Steps hand batches on, and never single tuples, so that nothing on the path of
the data is paid per tuple in Python.

Invariants
----------
- With event time, `times` has one int64 for each row, ascending, in the unit of the stream; without,
  it is None. Event time belongs to the stream, not to a column: it is settled when a stream is read,
  and stays when the column it came from is changed or dropped.
- `watermark` is a promise about the *rest* of the stream: no later row has a time below it. It is an
  int in the stream's unit, `START` before anything is known and `END` after the last row. It never
  falls from one batch to the next.
- A batch without rows is an ordinary batch: it carries a watermark past whatever dropped its rows.
"""

__all__ = [
    "END", "START", "Batch", "Watermark", "concat", "empty_batch", "has_dictionary", "keep_rows", "record_batch",
    "take_column", "take_rows",
]  # fmt: skip

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Watermark = int | float
"""An exact int, or one of the two infinities (the only floats that a watermark can be)."""

START: float = -math.inf
END: float = math.inf


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one stream, in order.

    >>> batch = Batch(pa.record_batch({"x": [1, 2]}), np.array([10, 20]), watermark=20)
    >>> batch.num_rows
    2
    >>> batch.check()
    """

    data: pa.RecordBatch
    times: np.ndarray | None
    watermark: Watermark

    @property
    def num_rows(self) -> int:
        """How many rows there are; may be 0."""
        return self.data.num_rows

    def check(self) -> None:
        """Assert the invariants that can be seen in one batch."""
        if self.times is None:
            return
        assert self.times.dtype == np.int64, self.times.dtype
        assert len(self.times) == self.num_rows, (len(self.times), self.num_rows)
        assert bool(np.all(self.times[1:] >= self.times[:-1])), "times fall within a batch"


def take_column(column: pa.Array, rows: np.ndarray) -> pa.Array:
    """Return a column's values at these rows; also of the few types for which Arrow itself cannot.

    >>> take_column(pa.array(["a", "b"]).cast(pa.string_view()), np.array([1, 1])).to_pylist()
    ['b', 'b']
    """
    kind, indices = column.type, pa.array(rows)
    if pa.types.is_string_view(kind):
        return column.cast(pa.large_string()).take(indices).cast(kind)
    if pa.types.is_binary_view(kind):
        return column.cast(pa.large_binary()).take(indices).cast(kind)
    if pa.types.is_run_end_encoded(kind):
        taken = pc.run_end_decode(column).take(indices)
        return pc.run_end_encode(taken, run_end_type=kind.run_end_type)
    return column.take(indices)


def take_rows(data: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    """Return these rows of a batch, in this order."""
    if not data.num_columns:
        return data.slice(0, len(rows))
    return pa.RecordBatch.from_arrays([take_column(column, rows) for column in data.columns], schema=data.schema)


def keep_rows(data: pa.RecordBatch, mask: np.ndarray) -> pa.RecordBatch:
    """Return the rows where the mask is true."""
    if any(_by_taking(field.type) for field in data.schema):
        return take_rows(data, np.flatnonzero(mask))
    return data.filter(pa.array(mask))


def _by_taking(kind: pa.DataType) -> bool:
    return pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) or pa.types.is_run_end_encoded(kind)


def has_dictionary(schema: pa.Schema) -> bool:
    """Tell whether there is a dictionary anywhere in it, of which each batch may have another."""
    return any(_is_dictionary(field.type) for field in schema)


def _is_dictionary(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) or any(_is_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def record_batch(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Make a batch; also one that has rows and no columns."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["_"]).select([])


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return one batch with the rows of all."""
    if len(batches) == 1:
        return batches[0]
    columns = [pa.concat_arrays([b.column(i) for b in batches]) for i in range(batches[0].num_columns)]
    if not columns:
        rows = sum(b.num_rows for b in batches)
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["_"]).select([])
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)
