"""A source over rows that are already in memory.

For notebooks, tests and tables that are small: the rows are settled when the source is made, so that every
run reads the same. Arrow data are not copied; batches are slices of what was given.
"""

__all__ = ["memory"]

import zlib
from collections.abc import Generator, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ..batch import take_rows
from ..errors import FlowError, SchemaError, SourceError
from ..operators.contracts import Reader
from ._common import BatchReader, check_positive, check_unique, difference, fit, pick

DIGEST_ROWS = 256
"""Rows that a checksum is made of: to make it of all would cost more than to read them."""


def memory(data: Any, batch_rows: int = 65_536, *, schema: pa.Schema | None = None) -> "MemorySource":
    """Read rows that are in memory.

    Parameters
    ----------
    data
        A `pyarrow.Table` or `RecordBatch`, a dict of columns, anything that offers itself as an Arrow
        stream (a polars or pandas data frame does), or an iterable of record batches, which is read to its
        end here and now. Batches keep their own cuts, and lose those without rows.
    batch_rows
        Longer batches are cut to this many rows. No result depends on it.
    schema
        The schema that the data must have. Needed where there are no batches to take it from.

    >>> import dovetail as dt
    >>> source = dt.memory({"x": [1, 2, 3]}, batch_rows=2)
    >>> source.describe()
    'memory (2 batches, 3 rows)'
    >>> source.schema.names
    ['x']
    """
    check_positive("memory", "batch_rows", batch_rows)
    found, batches = _batches(data, schema)
    return MemorySource(found, [piece for batch in batches for piece in _cut(batch, batch_rows)])


class MemorySource:
    """Record batches of one schema; made by `memory`."""

    def __init__(self, schema: pa.Schema, batches: list[pa.RecordBatch]) -> None:
        self._schema = schema
        self._batches = batches

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._schema

    @property
    def replayable(self) -> bool:
        """True: rows stay where they are."""
        return True

    def describe(self) -> str:
        """Name it in a plan."""
        rows = sum(batch.num_rows for batch in self._batches)
        return f"memory ({_count(len(self._batches), 'batch', 'batches')}, {_count(rows, 'row', 'rows')})"

    def reader(self, columns: Sequence[str] | None, position: Any = None) -> Reader:
        """Start at the first row, or a later one; only these columns come."""
        names = pick(self._schema, columns, "memory").names
        if position is not None and position != self._position(position["row"]):
            raise SourceError(
                f"memory: {self._rows:,} rows, and the checkpoint that is gone on from was made over "
                f"{position['of']:,} others; give the same data again, or begin in another folder"
            )
        start = 0 if position is None else position["row"]
        return BatchReader(self._read(names, start), "memory", start, self._position)

    def _read(self, names: list[str], start: int) -> Generator[tuple[pa.RecordBatch, int], None, None]:
        at = 0
        for batch in self._batches:
            skip, at = max(0, start - at), at + batch.num_rows
            if skip < batch.num_rows:
                yield batch.select(names).slice(skip), at

    def _position(self, row: int) -> dict[str, int]:
        return {"row": row, "of": self._rows, "digest": self._digest}

    @cached_property
    def _rows(self) -> int:
        return sum(batch.num_rows for batch in self._batches)

    @cached_property
    def _digest(self) -> int:
        """A checksum of some rows, from the first to the last: enough to tell other data."""
        some = np.unique(np.linspace(0, max(0, self._rows - 1), DIGEST_ROWS).astype(np.int64))
        pieces, at = [], 0
        for batch in self._batches:
            mine = some[(some >= at) & (some < at + batch.num_rows)] - at
            at += batch.num_rows
            pieces.append(take_rows(batch, mine))
        crc = zlib.crc32(str(self._schema).encode())
        for i, field in enumerate(self._schema):
            columns = [piece.column(i) for piece in pieces]
            if pa.types.is_dictionary(field.type):
                columns = [column.dictionary_decode() for column in columns]
            for column in columns:
                # Value by value, so that it does not depend on how the rows are cut into batches.
                for value in column:
                    crc = zlib.crc32(str(value).encode(errors="surrogatepass"), crc)
        return crc


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _cut(batch: pa.RecordBatch, rows: int) -> list[pa.RecordBatch]:
    """Slice a batch, without a copy; one without rows gives no slice."""
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]


def _batches(data: Any, schema: pa.Schema | None) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Settle the rows and their schema."""
    if isinstance(data, pa.RecordBatch):
        data = [data]
    elif isinstance(data, dict):
        data = _table(data, schema)
    elif hasattr(data, "__arrow_c_stream__"):
        data = pa.table(data)
    if isinstance(data, pa.Table):
        schema = data.schema if schema is None else schema
        _compare("memory: the table", data.schema, schema)
        return schema, [fit(batch, schema, "memory", SchemaError) for batch in data.to_batches()]
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise FlowError(
            f"memory takes a table, a record batch, a dict of columns or an iterable of record batches, "
            f"not {data!r} of type {type(data).__name__}"
        )
    return _listed(data, schema)


def _listed(data: Iterable[Any], schema: pa.Schema | None) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Settle an iterable of batches; the first one says the schema if nobody did."""
    batches = []
    for at, batch in enumerate(data):
        if not isinstance(batch, pa.RecordBatch):
            raise FlowError(
                f"memory: item {at} is {batch!r} of type {type(batch).__name__}, not a pyarrow.RecordBatch; "
                f"a dict of columns or a table is given alone, not in a list"
            )
        schema = batch.schema if schema is None else schema
        _compare(f"memory: batch {at}", batch.schema, schema)
        batches.append(fit(batch, schema, f"memory: batch {at}", SchemaError))
    if schema is None:
        raise SchemaError("memory: there is no batch to take the schema from; pass schema=pa.schema([...])")
    return schema, batches


def _compare(where: str, found: pa.Schema, schema: pa.Schema) -> None:
    check_unique(where, found)
    how = difference(found, schema)
    if how:
        raise SchemaError(f"{where} differs from the schema: {how}; all batches of a source have one schema")


def _table(columns: dict[str, Any], schema: pa.Schema | None) -> pa.Table:
    """Make a table of a dict of columns."""
    try:
        return pa.table(columns, schema=schema)
    except (pa.ArrowException, TypeError, KeyError, OverflowError, UnicodeError) as failure:
        # A KeyError's text is its key in quotes: take the argument itself.
        reason = failure.args[0] if isinstance(failure, KeyError) else failure
        raise SchemaError(
            f"memory: the dict of columns {sorted(map(str, columns))} makes no table: {reason}; "
            f"give each column as a list or array of one type, all of one length"
        ) from failure
