"""A Spark DataFrame as a source: micro-batches come as Arrow, each exactly once.

Problem: Spark pushes, and a flow pulls; Spark counts micro-batches and a flow counts rows; and each of them goes on
from a place of its own after a crash. Idea: one function, which Spark calls with each micro-batch (`foreachBatch`),
brings its rows here as Arrow, writes them into the ledger (ledger.py) if the run has checkpoints, and puts them where
the flow takes them. It returns when there is room for the next one: that is how Spark is held back. A position is the
number of a micro-batch and of a row in it; what lies between a position and the ledger's end is read from there, and
Spark goes on behind it.

To Spark a micro-batch is a set: it packs files into partitions by their size. So that no row is late because of another
that came along with it, the rows of a micro-batch are put in the order of their times here.

A DataFrame that is not a stream is one micro-batch. Those of Spark Connect come over a socket (remote.py).

Cost: the rows of a stream stay where Spark's tasks have written them (handover.py), and are copied once, into the
ledger; and once more where their times are out of order. The other ways are compared with it in `tests/bench/spark.py`.
"""

__all__ = ["SparkSource", "spark", "spark_schema"]

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DovetailError, FlowError, SchemaError, SourceError, UnsupportedError, UserFunctionError
from ...operators.contracts import Reader
from ...operators.own import origin
from ...operators.times import times_of
from .._common import BatchReader, check_unique, difference, pick
from .handover import way_of
from .ledger import Ledger
from .remote import Line, is_remote
from .session import Wanted, failure, py4j_error, session_of, told

AHEAD = 2
"""Micro-batches that wait for the flow, at most: one that it takes from, and one behind it."""

LOOK_SECONDS = 0.05
"""Between two looks at whether a query still runs: each is a call into the virtual machine."""

STOP_SECONDS = 5.0
"""How long a micro-batch that comes to a flow that has ended waits for Spark to know, at most."""

_TRIGGERS = ("processingTime", "availableNow", "once")


def spark(
    build: Callable[[Any], Any], *, trigger: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None,
    master: str | None = None, remote: str | None = None, conf: Mapping[str, Any] | None = None, session: Any = None,
) -> "SparkSource":  # fmt: skip
    """Read a Spark DataFrame: a stream, micro-batch by micro-batch, or one that is settled.

    Parameters
    ----------
    build
        A function that gets a `SparkSession` and returns the DataFrame.
    trigger
        When there is a micro-batch, in Spark's words: `{"processingTime": "200 milliseconds"}`, or
        `{"availableNow": True}` for what is there now, and no more. Without: as soon as the last one is done.
    options
        Options of the streaming query, as for `writeStream.options(...)`.
    master, conf
        What Spark is started with, if none runs: by default on all cores of this machine. All sources of a process
        share one session.
    remote
        The address of a Spark Connect server, instead, such as `sc://host`. For a stream it must be able to reach this
        process, as it brings the micro-batches here; its own checkpoint is under the name of the flow's on its side.
    session
        A session that runs, instead of one that is started here.

    Notes
    -----
    Times of Spark's type `timestamp` come as `timestamp[us, tz=UTC]`; those without a zone as `timestamp[us]`. With
    `run(checkpoint=…)` each micro-batch counts exactly once, whatever Spark reads from: Spark's own checkpoint is kept
    in the flow's. The rows of a micro-batch come in the order of their times, as Spark knows none; what is out of order
    between micro-batches wants a `delay=`, as from any source.
    """
    if not callable(build):
        raise FlowError(f"spark: {build!r} is no function; give one that gets a SparkSession and returns a DataFrame")
    if trigger is not None:
        _check_trigger(trigger)
    if options is not None and not isinstance(options, Mapping):
        raise FlowError(f"spark: options={options!r} is no dict of settings of a query, as for writeStream.options(…)")
    for name in options or {}:
        if not isinstance(name, str) or name.lower() == "checkpointlocation":
            raise FlowError(
                f"spark: options={{{name!r}: …}}: Spark's checkpoint is kept in the flow's own; give run(checkpoint=…)"
            )
    return SparkSource(build, dict(trigger or {}), dict(options or {}), Wanted.of(master, remote, conf, session))


def _check_trigger(trigger: Mapping[str, Any]) -> None:
    if not isinstance(trigger, Mapping) or len(trigger) != 1 or next(iter(trigger)) not in _TRIGGERS:
        raise FlowError(
            f'spark: trigger={trigger!r}; give one of {{"processingTime": "200 milliseconds"}} and '
            '{"availableNow": True}: a continuous one has no micro-batches'
        )
    ((name, value),) = trigger.items()
    if not isinstance(value, str) if name == "processingTime" else value is not True:
        right = '"200 milliseconds"' if name == "processingTime" else "True"
        raise FlowError(f"spark: trigger={trigger!r}: {name} is {value!r}, and should be such as {right}")


class SparkSource:
    """A DataFrame; made by `spark`."""

    replayable = True
    keeps_files = True  # in a folder of its own, if the run has checkpoints

    def __init__(
        self, build: Callable[[Any], Any], trigger: dict[str, Any], options: dict[str, Any], wanted: Wanted
    ) -> None:
        self._build, self._trigger, self._options, self._wanted = build, trigger, options, wanted
        self._known: pa.Schema | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch; asked of Spark once."""
        if self._known is None:
            self._known = _schema_of(self._frame())
        return self._known

    def describe(self) -> str:
        """Name it in a plan."""
        return f"spark {origin(self._build)}"

    def reader(
        self, columns: Sequence[str] | None, position: Any = None, folder: str | None = None, time: str | None = None
    ) -> Reader:
        """Start the query, or let it go on; `folder`: where micro-batches are kept; `time`: what they are sorted by."""
        wanted = pick(self.schema, columns, "spark")
        frame = self._frame()
        if how := difference(_schema_of(frame), self.schema):
            raise SchemaError(f"spark: the DataFrame has changed since the flow was made: {how}")
        feed = _Feed(frame, wanted, self._trigger, self._options, folder, time)
        start = {"batch": 0, "row": 0} if position is None else position
        try:
            feed.start(start)
        except BaseException:
            feed.close()
            raise
        return _SparkReader(feed, start)

    def _frame(self) -> Any:
        session = session_of(self._wanted)
        from pyspark.errors import PySparkException

        try:
            frame = self._build(session)
            streaming = frame.isStreaming if hasattr(type(frame), "isStreaming") else None
        except (PySparkException, py4j_error()) as error:
            raise failure(error, f"{origin(self._build)}: ") from None
        except DovetailError:
            raise
        except Exception as error:  # the user's function may raise anything
            raise UserFunctionError(f"{origin(self._build)} raised {type(error).__name__}: {error}") from error
        if streaming is None:
            raise FlowError(
                f"spark: {origin(self._build)} returned {frame!r} of type {type(frame).__name__}; return a DataFrame"
            )
        if not streaming and self._trigger:
            raise FlowError(
                f"spark: trigger={self._trigger}, and the DataFrame of {origin(self._build)} is no stream; leave it "
                "out, or read with session.readStream"
            )
        return frame


def _schema_of(frame: Any) -> pa.Schema:
    """Return what Arrow calls a DataFrame's columns."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    try:
        spark_fields = list(frame.schema)
    except (PySparkException, OSError, py4j_error()) as error:
        raise failure(error) from None
    for field in spark_fields:
        try:
            kind = to_arrow_type(field.dataType, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
        except (PySparkException, ValueError):  # the latter of a list of nothing, which is of no type
            raise UnsupportedError(
                f"spark: column {field.name!r} is {field.dataType.simpleString()}, which Arrow has no type for; "
                "leave it out with .drop(...), or cast it"
            ) from None
        fields.append(pa.field(field.name, kind))
    schema = _all_nullable(pa.schema(fields))
    check_unique("spark", schema)
    return schema


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return a type whose parts may be null, as all columns may: not every sink takes others."""
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _nullable(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    return kind


def _all_nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(column.name, _nullable(column.type)) for column in schema])


def spark_schema(schema: pa.Schema) -> Any:
    """Return what Spark calls the columns of Arrow's."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        return from_arrow_schema(schema)
    except PySparkException as error:
        raise UnsupportedError(f"spark: {told(error)}") from None


class _RefusedError(Exception):
    """Tells Spark that a micro-batch was not taken; what went wrong is kept here. Its text is short, as Spark puts it
    through a regular expression that does not end well with long ones."""


class _StoppedError(Exception):
    """Tells Spark that its micro-batch is not wanted any more, as it is being stopped."""


# So Spark knows what comes of its own interruption through Python, which it does not write to anybody's terminal.
_StoppedError.__module__, _StoppedError.__qualname__ = "py4j.protocol", "Py4JJavaError"
_INTERRUPTED = "An error occurred while calling the flow: java.lang.InterruptedException: it was stopped"


class _Feed:
    """What Spark brings, in order. Spark's thread puts in, the flow's takes out."""

    def __init__(
        self, frame: Any, wanted: pa.Schema, trigger: dict[str, Any], options: dict[str, Any], folder: str | None,
        time: str | None,
    ) -> None:  # fmt: skip
        from pyspark.errors import PySparkException

        try:
            self.frame = frame.select(*(_quoted(name) for name in wanted.names))
        except PySparkException as error:
            raise failure(error) from None
        self.wanted, self.trigger, self.options, self.time = wanted, trigger, options, time
        self.ledger = None if folder is None else Ledger(folder, "spark")
        self.remote = is_remote(frame)
        temporary = folder is None and not self.remote  # a server far away makes one by itself
        self.temporary = tempfile.mkdtemp(prefix="dovetail-spark-query-") if temporary else None
        self.line: Line | None = None
        self.waiting: deque[tuple[int, pa.Table]] = deque()
        self.changed = threading.Condition()
        self.closed = self.taking = False
        self.failure: BaseException | None = None
        self.query: Any = None  # of a stream
        self.thread: threading.Thread | None = None  # that reads what is no stream
        self.next = 0  # the micro-batch that the flow takes next
        self.looked = 0.0

    def start(self, position: Mapping[str, int]) -> None:
        """Have Spark begin, or go on."""
        from pyspark.errors import PySparkException

        self.next = position["batch"]
        streaming = bool(self.frame.isStreaming)
        if self.ledger is not None:
            # What a server has noted may be far away. Then it is its micro-batches that tell whether they go on.
            here = not self.remote or os.path.exists(self.ledger.query)
            self.ledger.check(self.next, streaming=streaming and here)
        if not streaming:
            if self.next == 0 and (self.ledger is None or self.ledger.last is None):
                self.thread = threading.Thread(target=self._read_all, name="dovetail-spark", daemon=True)
                self.thread.start()
            return
        place = self.ledger.query if self.ledger is not None else self.temporary
        try:
            writer = self.frame.writeStream.options(**self.options)
            if place is not None:
                writer = writer.option("checkpointLocation", place)
            if self.trigger:
                writer = writer.trigger(**self.trigger)
            if self.remote:
                self.line = Line(self.frame, lambda table, number: self._keep(lambda: table, number))
                take = self.line.sender()
            else:
                take = self._taking(way_of(self.frame))
            self.query = writer.foreachBatch(take).start()
        except (PySparkException, OSError, py4j_error()) as error:
            raise failure(error, "the query does not start: ") from None

    def _read_all(self) -> None:
        with contextlib.suppress(Exception):  # it is kept, and raised where somebody reads
            self._keep(self.frame.toArrow, 0)

    def _taking(self, bring: Callable[[Any], pa.Table]) -> Callable[[Any, int], None]:
        """Return what Spark is to call with each micro-batch, in a thread of its own."""
        return lambda frame, number: self._keep(lambda: bring(frame), number)

    def _keep(self, rows: Callable[[], pa.Table], number: int) -> None:
        """Take a micro-batch; return when there is room for another."""
        with self.changed:
            over = self.closed
            self.taking = self.taking or not over
        if over:
            raise self._stopped()
        try:
            table = rows()
            if how := difference(_all_nullable(table.schema), self.wanted):
                raise SourceError(f"spark: micro-batch {number} differs from the DataFrame that was begun with: {how}")
            table = _sorted(table.select(self.wanted.names).cast(self.wanted), self.time)
            if self.ledger is not None:
                if self.ledger.has(number, table):
                    return
                self.ledger.append(number, table)
            with self.changed:
                self.waiting.append((number, table))
                self.changed.wait_for(lambda: self.closed or len(self.waiting) < AHEAD)
        except BaseException as error:  # noqa: BLE001 - it is kept, and raised where somebody reads
            if self.closed:
                raise self._stopped() from None
            self.failure = self.failure or error
            raise _RefusedError(f"{type(error).__name__}: {str(error)[:200]}") from None
        finally:
            with self.changed:
                self.taking = False
                self.changed.notify_all()

    def _stopped(self) -> Exception:
        """Return what Spark is told where it brings a micro-batch to a flow that has ended; when it knows that itself.

        A micro-batch that was not kept must not be noted as done.
        """
        began = time.monotonic()
        with contextlib.suppress(Exception):  # it is over
            while self.query is not None and self.query.isActive and time.monotonic() - began < STOP_SECONDS:
                time.sleep(LOOK_SECONDS / 5)
        return _StoppedError(_INTERRUPTED)

    def batches(self, position: Mapping[str, int]) -> Generator[tuple[pa.RecordBatch | None, Any], None, None]:
        """Yield batches, each with the position behind it; None where nothing is there yet."""
        skip, behind = position["row"], dict(position)
        while True:
            found = self._next()
            if found is None:
                if self._ended():
                    return
                yield None, behind
                continue
            rows = found.num_rows
            if skip > rows:
                raise SourceError(f"spark: micro-batch {self.next} has {rows:,} rows, and {skip:,} were taken of it")
            at = skip
            for batch in found.slice(skip).to_batches():
                at += batch.num_rows
                behind = {"batch": self.next, "row": at}
                if at == rows:
                    self._taken()
                    behind = {"batch": self.next, "row": 0}
                yield batch, behind
            if at == skip:  # no rows, or none that were not taken before
                self._taken()
                behind = {"batch": self.next, "row": 0}
            skip = 0

    def _next(self) -> pa.Table | None:
        """Return the micro-batch that is next, if it is there."""
        with self.changed:
            while self.waiting and self.waiting[0][0] < self.next:
                self.waiting.popleft()
            if self.waiting and self.waiting[0][0] == self.next:
                return self.waiting[0][1]
        if self.ledger is not None and self.next in self.ledger.files:
            table = self.ledger.read(self.next)
            if how := difference(table.schema, self.wanted):
                raise SourceError(f"spark: micro-batch {self.next} was kept with other columns: {how}")
            return table
        return None

    def _taken(self) -> None:
        with self.changed:
            if self.waiting and self.waiting[0][0] == self.next:
                self.waiting.popleft()
            self.next += 1
            self.changed.notify_all()

    def _ended(self) -> bool:
        """Tell whether nothing will come; raise what went wrong."""
        from pyspark.errors import PySparkException

        now = time.monotonic()
        if self.failure is None and now - self.looked < LOOK_SECONDS:
            return False
        self.looked = now
        if self.failure is not None:
            raise failure(self.failure)
        if self.query is None:
            over = self.thread is None or not self.thread.is_alive()
        else:
            try:
                over = not self.query.isActive
                failed = self.query.exception() if over else None
            except (PySparkException, OSError, py4j_error()) as error:
                raise failure(error) from None
            if failed is not None:
                raise failure(self.failure or failed)
        if self.failure is not None:  # it came meanwhile
            raise failure(self.failure)
        with self.changed:
            there = any(number >= self.next for number, _ in self.waiting)
        return over and not there and (self.ledger is None or self.next not in self.ledger.files)

    def close(self) -> None:
        """Stop the query."""
        from pyspark.errors import PySparkException

        with self.changed:
            self.closed = True
            self.changed.notify_all()
        if self.query is not None:
            with contextlib.suppress(PySparkException, OSError, py4j_error()):  # it is over, whatever it says
                self.query.stop()
        if self.line is not None:
            self.line.close()
        with self.changed:
            self.changed.wait_for(lambda: not self.taking)  # the ledger is somebody else's from now on
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)


def _sorted(table: pa.Table, time: str | None) -> pa.Table:
    """Put rows in the order of their times; those of one time keep theirs."""
    if time is None or table.num_rows < 2:
        return table
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    if (order := _order([batch.column(time) for batch in batches])) is None:
        return table.take(pc.sort_indices(table.column(time)))
    return pa.Table.from_batches([batches[at] for at in order], table.schema)


def _order(parts: list[pa.Array]) -> list[int] | None:
    """Return in which order parts follow each other, if each is in order and they do not overlap; mostly, as files do.

    >>> _order([pa.array([7, 9]), pa.array([1, 7])]), _order([pa.array([1, 3]), pa.array([3])])
    (None, [0, 1])
    """
    if any(part.null_count for part in parts):
        return None
    times = [times_of(part, "spark", 0) for part in parts]
    if any((each[:-1] > each[1:]).any() for each in times):
        return None
    first, last = ([int(each[at]) for each in times] for at in (0, -1))
    order = sorted(range(len(parts)), key=first.__getitem__)
    follows = all((last[a], a) < (first[b], b) for a, b in pairwise(order))
    return order if follows else None


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class _SparkReader(BatchReader):
    """Reads what a feed brings."""

    def __init__(self, feed: _Feed, position: Mapping[str, int]) -> None:
        super().__init__(feed.batches(position), "spark", dict(position))
        self._feed = feed

    def forget(self, position: Any) -> None:
        """Rows before a position will not be asked for again."""
        if self._feed.ledger is not None:
            self._feed.ledger.forget(position["batch"])

    def close(self) -> None:
        """Stop the query."""
        super().close()
        self._feed.close()
