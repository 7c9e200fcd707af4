"""A window as a log: immutable batches with consecutive rows, appended at one end and dropped at the other.

Problem: a window of rows must grow by batches of any size, give back the memory of what has left it, and hand
out single rows by number, in any order, for payload columns of every Arrow type.
Idea: keep the batches as they came. A row is found through the table of first rows, and its values are copied
straight out of the batch's own buffers (see gather.hpp); nothing is ever copied into one large array. Types whose
layout is not a plain buffer (nested, dictionary, view and extension types) go through Arrow's own `take`, batch
by batch and then back into order.

Invariants: rows [first_row, end_row) are held; batch i holds [starts[i], starts[i + 1]); no batch is empty; the
log refers to a batch as long as one of its rows is above the bound of `expire`.
Cost: append O(1), gather O(rows asked for), expire O(batches dropped). Batches of a few rows would cost a kilobyte
each, so that sixteen small neighbours are joined into one, and sixteen of those again, up to `SMALL` rows: a row
is copied at most three times for that.
"""

__all__ = ["WindowLog"]

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..batch import take_column
from . import _native

SMALL = 4096
"""Batches below this many rows are joined with their neighbours: above it, what a batch costs besides its rows is
under one percent of them."""

FAN_IN = 16
"""How many neighbours are joined at once: with 16, three rounds lead from one row to `SMALL`."""

_FIXED, _BITS, _BYTES32, _BYTES64, _OTHER = range(5)
_MOST_BYTES32 = 2**31 - 1


def storable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column leaves a log: dictionary indices are widened to 32 bits.

    Dictionaries of several batches are unified when rows of them meet, and the union may not fit small indices.
    """
    if pa.types.is_dictionary(kind) and kind.index_type != pa.int32():
        return pa.dictionary(pa.int32(), kind.value_type, kind.ordered)
    return kind


def _layout(kind: pa.DataType) -> tuple[int, int]:
    """Return (layout, bytes a value) as gather.hpp wants it."""
    if pa.types.is_boolean(kind):
        return _BITS, 0
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _BYTES32, 4
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _BYTES64, 8
    fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    if fixed and kind.bit_width >= 8:
        return _FIXED, kind.bit_width // 8
    return _OTHER, 0


def _addresses(column: pa.Array, layout: int) -> tuple[int, int, int, int]:
    """Return the addresses of (validity, values, bytes) and the offset of a column; 0 for what is not there."""
    if layout == _OTHER:
        return 0, 0, 0, 0
    buffers = [0 if buffer is None else buffer.address for buffer in column.buffers()]
    validity = buffers[0] if column.null_count else 0
    return validity, buffers[1], buffers[2] if len(buffers) > 2 else 0, column.offset


class WindowLog:
    """The rows of one stream that a window still holds.

    >>> log = WindowLog(pa.schema([("x", pa.int64()), ("s", pa.string())]))
    >>> log.append(pa.record_batch({"x": [10, 11], "s": ["a", None]}, schema=log.schema))
    >>> log.append(pa.record_batch({"x": [12], "s": ["c"]}, schema=log.schema))
    >>> [column.to_pylist() for column in log.gather([0, 1], np.array([2, 0, 1]))]
    [[12, 10, 11], ['c', 'a', None]]
    >>> log.expire(2)
    >>> log.first_row, log.end_row, len(log)
    (2, 3, 1)
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = pa.schema([field.with_type(storable_type(field.type)) for field in schema])
        self._types = self.schema.types
        self._layouts = [_layout(kind) for kind in self._types]
        self._batches: list[pa.RecordBatch] = []
        self._levels: list[int] = []
        self._starts: list[int] = []
        self._sizes: list[int] = []  # bytes of each batch
        self._bytes = 0  # of all
        self._chunks = _native.Chunks(self._layouts)
        self._known = 0  # how many of the batches, from the front, _chunks has been told of
        self.end_row = 0

    @property
    def first_row(self) -> int:
        """The first row of the first batch that is held."""
        return self._starts[0] if self._starts else self.end_row

    def __len__(self) -> int:
        return self.end_row - self.first_row

    @property
    def nbytes(self) -> int:
        """Bytes of the held batches' rows (a slice counts for its rows, not for what it was cut from)."""
        return self._bytes + self._chunks.nbytes

    def append(self, data: pa.RecordBatch) -> None:
        """Add rows behind the last one. The batch is kept, not copied."""
        if data.num_rows == 0:
            return
        if data.schema.types != self._types:
            columns = [c.cast(f.type) if c.type != f.type else c for c, f in zip(data.columns, self.schema)]
            data = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        self._add(data, self.end_row, _level(data.num_rows))
        self.end_row += data.num_rows
        self._join_small()

    def start_at(self, row: int) -> None:
        """Begin with this row; only while nothing is held."""
        assert not self._batches
        self.end_row = row

    def expire(self, before_row: int) -> None:
        """Let go of batches that lie wholly below the bound."""
        gone = 0
        while gone < len(self._batches) and self._starts[gone] + self._batches[gone].num_rows <= before_row:
            gone += 1
        if not gone:
            return
        self._bytes -= sum(self._sizes[:gone])
        del self._batches[:gone], self._starts[:gone], self._levels[:gone], self._sizes[:gone]
        known = min(gone, self._known)
        self._chunks.drop_front(known)
        self._known -= known

    def gather(self, columns: Sequence[int], rows: np.ndarray) -> list[pa.Array]:
        """Copy out the values of these columns at these rows, in the order given.

        Raises OverflowError if the strings of a 32-bit string column come to more than 2 GB: ask for fewer rows.
        """
        if not columns:
            return []
        if len(rows) == 0:
            return [pa.nulls(0, self._types[i]) for i in columns]
        self._tell_chunks()
        places = self._chunks.locate(rows)
        return [self._gather_one(i, places) for i in columns]

    def check(self) -> None:
        """Assert the invariants."""
        ends = [*self._starts, self.end_row][1:]
        for start, end, batch in zip(self._starts, ends, self._batches, strict=True):
            assert batch.num_rows == end - start > 0, (start, end, batch.num_rows)
        assert self._bytes == sum(self._sizes) == sum(batch.nbytes for batch in self._batches)
        assert len(self._chunks) == self._known <= len(self._batches)

    def _join_small(self) -> None:
        while self._levels[-1] < _level(SMALL):
            level, run = self._levels[-1], 1
            while run < FAN_IN and run < len(self._levels) and self._levels[-run - 1] <= level:
                run += 1
            if run < FAN_IN:
                return
            parts = self._batches[-run:]
            joined = (
                pa.RecordBatch.from_arrays(
                    [pa.concat_arrays([part.column(i) for part in parts]) for i in range(len(self.schema))],
                    schema=self.schema,
                )
                if len(self.schema)
                else _without_columns(sum(part.num_rows for part in parts))
            )
            start = self._starts[-run]
            known = max(0, self._known - (len(self._batches) - run))
            self._chunks.drop_back(known)
            self._known -= known
            self._bytes -= sum(self._sizes[-run:])
            del self._batches[-run:], self._starts[-run:], self._levels[-run:], self._sizes[-run:]
            self._add(joined, start, max(level + 1, _level(joined.num_rows)))

    def _add(self, data: pa.RecordBatch, start: int, level: int) -> None:
        self._batches.append(data)
        self._starts.append(start)
        self._levels.append(level)
        self._sizes.append(data.nbytes)
        self._bytes += self._sizes[-1]

    def _tell_chunks(self) -> None:
        for batch, start in zip(self._batches[self._known :], self._starts[self._known :]):
            parts = [_addresses(column, layout) for column, (layout, _) in zip(batch.columns, self._layouts)]
            self._chunks.add(start, batch.num_rows, parts)
        self._known = len(self._batches)

    def _gather_one(self, i: int, places: _native.Places) -> pa.Array:
        layout, width = self._layouts[i]
        kind = self._types[i]
        if layout == _OTHER:
            return self._gather_other(i, places)
        n = len(places)
        validity, nulls = self._gather_validity(i, places) if self._chunks.has_nulls(i) else (None, 0)
        if layout == _FIXED:
            values = pa.allocate_buffer(n * width)
            self._chunks.gather_fixed(i, places, values.address)
            return pa.Array.from_buffers(kind, n, [validity, values], nulls)
        if layout == _BITS:
            values = pa.py_buffer(np.zeros((n + 7) // 8, np.uint8))
            self._chunks.gather_bits(i, places, values.address)
            return pa.Array.from_buffers(kind, n, [validity, values], nulls)
        wide = layout == _BYTES64
        offsets = pa.allocate_buffer((n + 1) * width)
        limit = 2**62 if wide else _MOST_BYTES32
        total = self._chunks.gather_offsets(i, places, offsets.address, wide, limit)
        if total < 0:
            raise OverflowError(f"column {self.schema.field(i).name!r}: strings of {n:,} rows exceed 2 GB")
        data = pa.allocate_buffer(total)
        self._chunks.gather_bytes(i, places, offsets.address, wide, data.address)
        return pa.Array.from_buffers(kind, n, [validity, offsets, data], nulls)

    def _gather_validity(self, i: int, places: _native.Places) -> tuple[pa.Buffer | None, int]:
        bitmap = pa.py_buffer(np.zeros((len(places) + 7) // 8, np.uint8))
        nulls = self._chunks.gather_validity(i, places, bitmap.address)
        return (bitmap, nulls) if nulls else (None, 0)

    def _gather_other(self, i: int, places: _native.Places) -> pa.Array:
        chunk, at = places.numpy()
        used = np.unique(chunk)
        if len(used) == 1:
            return take_column(self._batches[used[0]].column(i), at)
        by_chunk = np.argsort(chunk, kind="stable")
        cuts = np.searchsorted(chunk[by_chunk], used, side="right")[:-1]
        parts = [
            take_column(self._batches[c].column(i), at[mine])
            for c, mine in zip(used, np.split(by_chunk, cuts), strict=True)
        ]
        back = np.empty(len(chunk), np.int64)
        back[by_chunk] = np.arange(len(chunk))
        return take_column(pa.concat_arrays(parts), back)


def _level(rows: int) -> int:
    """Return how many rounds of joining `rows` rows stand for."""
    return max(0, (rows.bit_length() - 1) // 4)


def _without_columns(rows: int) -> pa.RecordBatch:
    """Return a batch of rows that has no columns (Arrow counts rows by a column, so there must be one to slice)."""
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["_"]).select([])
