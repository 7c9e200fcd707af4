"""What a source and a sink must be: the two edges of a flow, and all that a flow knows of them.

A flow holds *specifications*: plain objects that say what to read or write, that do no I/O beyond
looking at a schema, and that can be used again. At the start of a run each gives a reader or
a writer, and from then on the run talks to that.

Calling order
-------------
A source: `schema` and `describe` at any time; `reader` once a run; then `read` until it returns `END_OF_SOURCE`;
`close` exactly once, also after an error. `read` should return soon: a source that waits inside `read`
holds up everything else (being slow is not being idle), so one that has nothing now returns None.

A sink: `check` when the flow is written; `writer` once a run; then any number of `stage`, in order, and
`commit`; at the end `commit` and `close`, or after an error `abort` and `close`.

- `stage(batch, epoch, part)` may write, but must not let anyone see it yet. Parts count from 0 within
  an epoch.
- `commit(epoch)` makes visible all that was staged for this epoch *and for every one before it*. It
  bears being repeated.
- `abort()` drops all that was staged and not committed.

Errors of the outside world (a missing file, a full disk) leave as `SourceError` or `SinkError` with the
path in them; the run adds which step it was.
"""

__all__ = ["END_OF_SOURCE", "Delivery", "EndOfSource", "Reader", "Sink", "Source", "Writer"]

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa


class EndOfSource(enum.Enum):
    """The type of `END_OF_SOURCE`, which has one value."""

    END = "end"


END_OF_SOURCE: Final = EndOfSource.END
"""What `read` returns after the last row."""


class Delivery(NamedTuple):
    """Which batch a sink was given: the same three values name the same rows if it comes again."""

    lineage: str
    epoch: int
    part: int


class Reader(Protocol):
    """An opened source."""

    def read(self) -> pa.RecordBatch | EndOfSource | None:
        """Return the next rows, None (or a batch without rows) if there are none now, or `END_OF_SOURCE`."""
        ...

    def close(self) -> None:
        """Give back what was opened."""
        ...


@runtime_checkable
class Source(Protocol):
    """Says what to read. `schema` is known before anything is read."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        ...

    def describe(self) -> str:
        """Name it in a plan, in a few words: `parquet dc1/ (12 files)`."""
        ...

    def reader(self, columns: Sequence[str] | None) -> Reader:
        """Start reading from the beginning; only these columns are needed (None: all of them).

        The reader may return more columns than were asked for.
        """
        ...


class Writer(Protocol):
    """An opened sink."""

    def stage(self, batch: pa.RecordBatch, epoch: int, part: int) -> None:
        """Take rows; nobody may see them before `commit`."""
        ...

    def commit(self, epoch: int) -> None:
        """Show everything staged for this epoch and those before it."""
        ...

    def abort(self) -> None:
        """Drop everything that is staged and not committed."""
        ...

    def close(self) -> None:
        """Give back what was opened; after `commit` or `abort`."""
        ...


@runtime_checkable
class Sink(Protocol):
    """Says where to write."""

    @property
    def transactional(self) -> bool:
        """True: each result once, also after a crash. False: at least once."""
        ...

    def describe(self) -> str:
        """Name it in a plan, in a few words."""
        ...

    def check(self, schema: pa.Schema) -> None:
        """Raise a `FlowError` if rows of this schema, or anything known now, can never be written."""
        ...

    def writer(self, schema: pa.Schema, lineage: str) -> Writer:
        """Start writing; `lineage` names this run's output and is the same after it continues."""
        ...
