"""What sources and sinks share: comparing schemas, cutting batches, readers."""

__all__ = [
    "BatchReader",
    "Pending",
    "check_positive",
    "check_unique",
    "difference",
    "empty_batch",
    "fit",
    "pick",
    "recut",
]

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from ..errors import DovetailError, FlowError, SchemaError, SourceError, nearest
from ..operators.contracts import END_OF_SOURCE, EndOfSource

# --- arguments ---------------------------------------------------------------------------------------------


def check_positive(where: str, name: str, value: object) -> None:
    """Raise a FlowError unless `value` is an int of at least 1 (a bool is none)."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise FlowError(f"{where}: {name}={value!r} must be a whole number of at least 1")


# --- schemas -----------------------------------------------------------------------------------------------


def check_unique(where: str, schema: pa.Schema, error: type[DovetailError] = SchemaError) -> None:
    """Raise if two columns share a name: nobody could say which of them is meant."""
    twice = sorted(name for name, times in Counter(schema.names).items() if times > 1)
    if twice:
        raise error(f"{where}: the column name {twice[0]!r} occurs more than once; rename one of the columns")


def difference(found: pa.Schema, declared: pa.Schema, extra: bool = False) -> str:
    """Say how two schemas differ in names and types, or return "".

    Order, metadata and nullability do not count: `fit` puts the columns in order and checks the nulls.
    With `extra`, columns that were not declared are allowed.

    >>> declared = pa.schema([("x", pa.int64()), ("y", pa.string())])
    >>> difference(pa.schema([("y", pa.string()), ("x", pa.int64())]), declared)
    ''
    >>> difference(pa.schema([("x", pa.int32()), ("y", pa.string())]), declared)
    "column 'x' is int32 and should be int64"
    >>> difference(pa.schema([("x", pa.int64())]), declared)
    "column 'y' (string) is missing; it has: x"
    """
    for field in declared:
        at = found.get_all_field_indices(field.name)
        if not at:
            return f"column {field.name!r} ({field.type}) is missing; it has: {', '.join(found.names)}"
        if len(at) > 1:
            return f"column {field.name!r} occurs {len(at)} times"
        if not found.field(at[0]).type.equals(field.type):
            return f"column {field.name!r} is {found.field(at[0]).type} and should be {field.type}"
    too_many = [name for name in found.names if name not in declared.names]
    if too_many and not extra:
        return f"column {too_many[0]!r} ({found.field(too_many[0]).type}) is one too many"
    return ""


def fit(batch: pa.RecordBatch, schema: pa.Schema, where: str, error: type[DovetailError]) -> pa.RecordBatch:
    """Put a batch whose names and types are right into the order of `schema`; check what may not be null."""
    columns = [batch.column(name) for name in schema.names]
    for field, column in zip(schema, columns):
        if not field.nullable and column.null_count:
            raise error(
                f"{where}: column {field.name!r} is declared as not null and holds {column.null_count} "
                f"nulls; declare it as nullable, or fill the nulls"
            )
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def pick(schema: pa.Schema, columns: Sequence[str] | None, where: str) -> pa.Schema:
    """Return the part of `schema` that was asked for; without a column there is still the first one.

    A batch keeps its number of rows through its columns, so a reader never returns none of them.
    """
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            raise SchemaError(f"{where} has no column {name!r}; {nearest(name, schema.names)}")
    names = list(columns) or schema.names[:1]
    return pa.schema([schema.field(name) for name in names], metadata=schema.metadata)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of this schema without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


# --- batches -----------------------------------------------------------------------------------------------


def recut(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Cut the same rows into batches of exactly `rows`, the last of what is left; empty batches vanish.

    Only a batch that spans a cut of the input is copied.

    >>> [b.num_rows for b in recut([pa.record_batch({"x": range(5)}), pa.record_batch({"x": range(4)})], 3)]
    [3, 3, 3]
    """
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            piece = batch.slice(0, rows - count)
            batch = batch.slice(piece.num_rows)
            held.append(piece)
            count += piece.num_rows
            if count == rows:
                yield from _joined(held)
                held, count = [], 0
    if held:
        yield from _joined(held)


def _joined(pieces: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Join pieces into one batch; into several only where Arrow's 2 GB of characters a column force it."""
    if len(pieces) == 1:
        return pieces
    return pa.Table.from_batches(pieces).unify_dictionaries().combine_chunks().to_batches()


class BatchReader:
    """A reader over a generator of batches, each with the position behind it; `say` puts that into plain values.

    Invariant: after an error every `read` raises that error again. A generator that raised is exhausted, so
    that without this the next call would take the failure for the end of the data.
    """

    def __init__(
        self, batches: Generator[tuple[pa.RecordBatch | None, Any], None, None], where: str, position: Any,
        say: Callable[[Any], Any] = lambda position: position,
    ) -> None:  # fmt: skip
        self._batches, self._say = batches, say
        self._where = where
        self._position = position
        self._failure: DovetailError | None = None

    def read(self) -> pa.RecordBatch | EndOfSource | None:
        """Return the next batch, None if there is none now, or `END_OF_SOURCE`, again and again."""
        if self._failure is not None:
            raise self._failure
        try:
            found = next(self._batches, END_OF_SOURCE)
        except DovetailError as failure:
            self._failure = failure
            raise
        if found is END_OF_SOURCE:
            return END_OF_SOURCE
        batch, self._position = found
        return batch

    def position(self) -> Any:
        """Say where the next `read` goes on."""
        return self._say(self._position)

    def close(self) -> None:
        """Close whatever file the generator has open."""
        self._batches.close()
        self._failure = SourceError(f"{self._where}: the reader is closed; open the source again")


class Pending:
    """Batches that were staged and not yet committed, in order, with their epoch and part.

    A batch leaves the queue only when it was dealt with, so that a commit that failed half way and is
    repeated goes on where it stopped.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[int, int, pa.RecordBatch]] = deque()

    def add(self, batch: pa.RecordBatch, epoch: int, part: int) -> None:
        """Stage a batch. One without rows has nothing to show and is not kept."""
        if batch.num_rows:
            self._queue.append((epoch, part, batch))

    def deal(self, epoch: int, give: Callable[[pa.RecordBatch, int, int], object]) -> None:
        """Hand over every batch of this epoch and of those before it."""
        while self._queue and self._queue[0][0] <= epoch:
            its_epoch, part, batch = self._queue[0]
            give(batch, its_epoch, part)
            self._queue.popleft()

    def batches(self) -> list[pa.RecordBatch]:
        """Return what is staged."""
        return [batch for _, _, batch in self._queue]

    def drop(self) -> None:
        """Forget what is staged."""
        self._queue.clear()
