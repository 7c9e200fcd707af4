"""What a source and a sink must be: the two edges of a flow, and all that a flow knows of them.

A flow holds *specifications*: plain objects that say what to read or write, that do no I/O beyond
looking at a schema, and that can be used again. At the start of a run each gives a reader or
a writer, and from then on the run talks to that.

Calling order
-------------
A source: `schema` and `describe` at any time; `reader` once a run; then `read` until it returns `END_OF_SOURCE`;
`close` exactly once, also after an error. `read` should return soon: a source that waits inside `read`
holds up everything else (being slow is not being idle), so one that has nothing now returns None.

A source that is `replayable` can be asked for the same rows again: `position` says, in plain values, where a reader
stands, and `reader(columns, position)` goes on from there. That other data stand there now is an error. One that says
`keeps_files = True` is given a folder of its own in that of the checkpoints (None: there are none) and the time column:
`reader(columns, position, folder=…, time=…)`. Its reader's `forget(position)` says what will not be asked for again.

A sink: `check` when the flow is written; `writer` once a run; then any number of `stage`, in order, and
`commit`; at the end `commit` and `close`, or after an error `abort` and `close`.

- `stage(batch, epoch, part)` may write, but must not let anyone see it yet. Parts count from 0 within
  an epoch.
- `commit(epoch)` makes visible all that was staged for this epoch *and for every one before it*. It
  bears being repeated.
- `abort()` drops all that was staged and not committed.

With checkpoints an epoch is what was staged between two of them, and is committed once the later one is durable. After
a crash a new writer is given the same lineage. What had been staged for epochs that the checkpoint has is staged again
for the same epoch and part, whether or not it was committed before, and committed; so a sink that shows each result
once remembers the last epoch that it has committed. A writer that holds nothing of what is staged in memory says so
with an attribute `stages_elsewhere = True`; for others checkpoints come sooner where results are many.

To open a sink for going on changes nothing that anybody sees: another sink of the flow may find that it cannot. A
writer can have `check_rewind(epoch, shown)`, which raises a `SinkError` if it cannot go on behind this epoch (`shown`:
the last one that may have been committed; None: nobody knows), and `rewind(epoch, shown)`, which takes back what was
shown after it. All are checked before the first is rewound. A `DurableWriter` keeps what is staged itself.

Errors of the outside world (a missing file, a full disk) leave as `SourceError` or `SinkError` with the
path in them; the run adds which step it was.
"""

__all__ = ["END_OF_SOURCE", "Delivery", "DurableWriter", "EndOfSource", "Reader", "Rows", "Sink", "Source", "Writer"]

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from ..disk import Place


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


@dataclass
class Rows:
    """Rows of a stream that only grows at its end; they are written once.

    In a snapshot: those that came since the last one, from row `first` on; rows below `keep` are wanted no more. Who
    writes them may empty the list, to let go of them a few at a time. When
    it is given back: all from `keep` on or from a little before. `times`: of these rows, ascending, if they have any
    beside their columns. `places`: of each batch, where they stand in files that other processes here can read, too.
    """

    name: str
    first: int
    keep: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    times: np.ndarray | None = None
    places: list[Place] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The row behind the last one."""
        return self.first + sum(batch.num_rows for batch in self.batches)


class Reader(Protocol):
    """An opened source."""

    def read(self) -> pa.RecordBatch | EndOfSource | None:
        """Return the next rows, None (or a batch without rows) if there are none now, or `END_OF_SOURCE`."""
        ...

    def position(self) -> Any:
        """Say, in plain values, where the next `read` goes on; only of a source that is replayable."""
        ...

    def close(self) -> None:
        """Give back what was opened."""
        ...


@runtime_checkable
class Source(Protocol):
    """Says what to read. `schema` is known before anything is read."""

    @property
    def replayable(self) -> bool:
        """True: the same rows can be read again from a position on."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        ...

    def describe(self) -> str:
        """Name it in a plan, in a few words: `parquet dc1/ (12 files)`."""
        ...

    def reader(self, columns: Sequence[str] | None, position: Any = None) -> Reader:
        """Start reading from the beginning, or a position; only these columns are needed (None: all of them).

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


class DurableWriter(Writer, Protocol):
    """A writer that can make durable what it was given, and go on from there."""

    def prepare(self, epoch: int) -> tuple[Any, list[str]]:
        """Return what `Sink.writer` needs to go on behind this epoch, and the files that must be durable for it.

        What was staged up to this epoch is not staged again.
        """
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

    def writer(self, schema: pa.Schema, lineage: str, known: Any = None) -> Writer:
        """Start writing; `lineage` names this run's output and is the same after it continues.

        With checkpoints `known` is what `prepare` returned, or {} at the beginning.
        """
        ...
