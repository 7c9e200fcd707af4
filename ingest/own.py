"""Sources and sinks of the user's own: a class with a few methods becomes a specification.

A flow needs something that can be opened again and again and says its schema beforehand; a user has a class
that connects, reads and closes. `source(cls)` and `sink(cls)` stand between the two: calling the result with
the class's arguments connects nothing, and a fresh instance is made for each run.

Invariants
----------
- What can be wrong is found as early as it can be: a missing method when the class is decorated, wrong
  arguments when they are given, another schema at the batch that has it.
- Whatever the user's code raises comes out as a `UserFunctionError` that names the class, the method and its
  line, with the original as its cause.
"""

__all__ = ["sink", "source"]

import contextlib
import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ..errors import FlowError, SchemaError, SinkError, SourceError, UserFunctionError
from ..operators.contracts import END_OF_SOURCE, EndOfSource, Reader, Writer
from ..operators.own import Factory, Own, call_user, origin
from ._common import check_unique, difference, empty_batch, fit


def source(cls: type) -> "Factory":
    """Make a source of a class; also as a decorator.

    The class has

    - `schema`: a `pyarrow.Schema`, on the class or set in `__init__` (then an instance is made, and closed,
      to see it);
    - `read(self)`: the next `RecordBatch` or `Table`; None (or one without rows) when there is nothing now;
      `dt.END_OF_SOURCE` after the last row. It should return soon: while it waits everything waits.
    - `close(self)`, if there is something to give back;
    - `position(self)` and `seek(self, position)`, if a flow is to go on after a stop (`run(checkpoint=…)`): where the
      next `read` goes on, in values that JSON can say; and to go on there, with the same rows as before.

    >>> import pyarrow as pa, dovetail as dt
    >>> @dt.source
    ... class Countdown:
    ...     schema = pa.schema([("left", pa.int64())])
    ...     def __init__(self, start):
    ...         self.now = start
    ...     def read(self):
    ...         self.now -= 1
    ...         return pa.record_batch({"left": [self.now]}) if self.now >= 0 else dt.END_OF_SOURCE
    >>> countdown = Countdown(2)
    >>> countdown.describe()
    'source Countdown'
    >>> countdown.reader(None).read().to_pydict()
    {'left': [1]}
    """
    has = [name for name in ("position", "seek") if callable(getattr(cls, name, None))]
    if len(has) == 1:
        raise FlowError(f"source: {cls.__qualname__} has {has[0]}, and needs position and seek, or neither")
    return Factory(cls, OwnSource, source, ("read",))


def sink(cls: type) -> "Factory":
    """Make a sink of a class; also as a decorator.

    The class has

    - `stage(self, batch, epoch, part)`: take rows that nobody may see yet;
    - `commit(self, epoch)`: show what was staged for this epoch and those before it; bears being repeated;
    - `abort(self)`: drop what was staged and not committed;
    - if it likes, `open(self, schema, lineage)`, called once before the rest, and `close(self)`, after it. What a
      process that died had staged and not committed comes again, in the same epoch and perhaps in other batches: who
      stages somewhere that outlives it drops in `open` what is there;
    - `transactional = True` on the class, if each result is to count as shown once. Then it remembers, wherever it
      shows results, the last epoch that it has committed, and shows none of those before again;
    - `committed(self)`, which returns that epoch (None: none yet), and `rewind(self, epoch)`, which takes back what was
      shown after an epoch, if a flow is to go on from a savepoint, or from a checkpoint before the last one.

    >>> import dovetail as dt
    >>> @dt.sink
    ... class Log:
    ...     def stage(self, batch, epoch, part): ...
    ...     def commit(self, epoch): print("committed", epoch)
    ...     def abort(self): ...
    >>> Log().writer(pa.schema([]), "run-1").commit(0)
    committed 0
    """
    return Factory(cls, OwnSink, sink, ("stage", "commit", "abort"))


class OwnSource(Own):
    """A source of the user's own; made by what `source` returns."""

    _known: pa.Schema | None = None

    @property
    def schema(self) -> pa.Schema:
        """The class's schema, or that of an instance which is made for it and closed."""
        if self._known is None:
            schema = getattr(self._factory.cls, "schema", None)
            if not isinstance(schema, pa.Schema):
                instance = self._instance()
                with _closed_after_failure(instance, self._name):
                    schema = call_user(lambda: getattr(instance, "schema", None), name=f"{self._name}.schema")
                _close(instance, self._name)
            if not isinstance(schema, pa.Schema):
                raise FlowError(
                    f"source {self._name}: schema is {schema!r}, not a pyarrow.Schema; set "
                    f"schema = pa.schema([...]) on the class or in __init__"
                )
            check_unique(f"source {self._name}", schema)
            self._known = schema
        return self._known

    def describe(self) -> str:
        """Name it in a plan."""
        return f"source {self._name}"

    @property
    def replayable(self) -> bool:
        """Whether the class has `position` and `seek`."""
        return callable(getattr(self._factory.cls, "seek", None))

    def reader(self, columns: Sequence[str] | None, position: Any = None) -> Reader:
        """Make a fresh instance; it is not told the columns, and gives all of them."""
        schema, instance = self.schema, self._instance()
        if position is None:
            return _OwnReader(instance, schema, self._name)
        with _closed_after_failure(instance, self._name):
            call_user(instance.seek, position["own"], name=f"{self._name}.seek")
        return _OwnReader(instance, schema, self._name, position["skip"])


class _OwnReader:
    """Reads from one of the user's objects, and holds it to its schema.

    After an error, `read` raises it again; after the end, it says so again and asks the object no more.
    """

    def __init__(self, instance: Any, schema: pa.Schema, name: str, skip: int = 0) -> None:
        self._instance, self._schema, self._name = instance, schema, name
        self._replayable = hasattr(instance, "seek")
        self._skip = skip  # rows that are read again, and were handed on before
        self._before: Any = None  # the object's position before the rows in `_rest` and those of them handed on
        self._given = 0  # how many these are
        self._rest: deque[pa.RecordBatch] = deque()  # of a table of several chunks
        self._over: EndOfSource | Exception | None = None

    def read(self) -> pa.RecordBatch | EndOfSource | None:
        """Return the next rows, None if there are none now, or `END_OF_SOURCE`."""
        while (batch := self._read()) is not None and batch is not END_OF_SOURCE and self._skip:
            assert isinstance(batch, pa.RecordBatch)
            self._skip, batch = max(0, self._skip - batch.num_rows), batch.slice(self._skip)
            if batch.num_rows:
                return batch
        if batch is END_OF_SOURCE and self._skip:
            raise SourceError(
                f"source {self._name}: it ends {self._skip:,} rows before the place that the checkpoint has noted; "
                "give the same rows again, or begin in another folder"
            )
        return batch

    def position(self) -> Any:
        """Say where the next `read` goes on."""
        if self._rest:
            return {"own": self._before, "skip": self._given}
        return {"own": self._own_position(), "skip": self._skip}

    def _own_position(self) -> Any:
        found = call_user(self._instance.position, name=f"{self._name}.position")
        try:
            return json.loads(json.dumps(found))
        except (TypeError, ValueError) as error:
            raise UserFunctionError(
                f"source {origin(self._instance.position)} returned {found!r}, which JSON cannot say ({error}); return "
                "numbers, texts, lists and dicts of them"
            ) from error

    def _read(self) -> pa.RecordBatch | EndOfSource | None:
        if self._rest:
            self._given += self._rest[0].num_rows
            return self._rest.popleft()
        if isinstance(self._over, Exception):
            raise self._over
        if self._over is not None:
            return self._over
        try:
            if self._replayable:
                self._before = self._own_position()
            given = call_user(self._instance.read, name=f"{self._name}.read")
            if given is END_OF_SOURCE:
                self._over = END_OF_SOURCE
            return given if given is None or given is END_OF_SOURCE else self._checked(given)
        except (SourceError, UserFunctionError) as failure:
            self._over = failure
            raise

    def _checked(self, given: Any) -> pa.RecordBatch:
        where = f"source {origin(self._instance.read, f'{self._name}.read')}"
        if not isinstance(given, pa.RecordBatch | pa.Table):
            raise SourceError(
                f"{where} returned {given!r} of type {type(given).__name__}; return a pyarrow.RecordBatch or "
                f"Table, None when there is nothing now, or dt.END_OF_SOURCE after the last row"
            )
        how = difference(given.schema, self._schema)
        if how:
            raise SourceError(f"{where} returned rows unlike its schema: {how}; cast them, or declare it so")
        batches = given.to_batches() if isinstance(given, pa.Table) else [given]
        self._rest.extend(fit(batch, self._schema, where, SourceError) for batch in batches)
        if not self._rest:
            return empty_batch(self._schema)
        self._given = self._rest[0].num_rows
        return self._rest.popleft()

    def close(self) -> None:
        """Close the object, if it can be closed."""
        self._rest.clear()
        self._over = SourceError(f"source {self._name}: the reader is closed; open the source again")
        _close(self._instance, self._name)


class OwnSink(Own):
    """A sink of the user's own; made by what `sink` returns."""

    @property
    def transactional(self) -> bool:
        """What the class says; False if it says nothing."""
        says = getattr(self._factory.cls, "transactional", False)
        if not isinstance(says, bool):
            raise FlowError(f"sink {self._name}: transactional is {says!r}; set True or False on the class")
        return says

    def describe(self) -> str:
        """Name it in a plan."""
        return f"sink {self._name}"

    def check(self, schema: pa.Schema) -> None:
        """Raise if the class cannot be what it says; any schema will do."""
        check_unique(f"sink {self._name}", schema, SchemaError)
        _ = self.transactional

    def writer(self, schema: pa.Schema, lineage: str, known: Any = None) -> Writer:
        """Make a fresh instance, and open it if it can be opened."""
        instance = self._instance()
        if hasattr(instance, "open"):
            with _closed_after_failure(instance, self._name):
                call_user(instance.open, schema, lineage, name=f"{self._name}.open")
        return _OwnWriter(instance, self._name, self.transactional)


class _OwnWriter:
    """Hands everything on to one of the user's objects."""

    def __init__(self, instance: Any, name: str, transactional: bool) -> None:
        self._instance, self._name, self._transactional = instance, name, transactional

    def check_rewind(self, epoch: int, shown: int | None) -> bool:
        """Tell whether something was shown after an epoch; raise if that cannot be taken back."""
        if not self._transactional:
            return False
        if hasattr(self._instance, "committed"):
            shown = call_user(self._instance.committed, name=f"{self._name}.committed")
            if shown is None:
                return False
        if shown is not None and shown <= epoch:
            return False
        if not hasattr(self._instance, "rewind"):
            more = "perhaps more than that" if shown is None else f"epochs up to {shown}"
            raise SinkError(
                f"sink {self._name}: the flow goes on behind epoch {epoch}, and it has shown {more}; give the class "
                "committed() and rewind(epoch) so that it can take that back, or begin anew in other folders"
            )
        return True

    def rewind(self, epoch: int, shown: int | None) -> None:
        """Have what was shown after an epoch taken back."""
        if self.check_rewind(epoch, shown):
            call_user(self._instance.rewind, epoch, name=f"{self._name}.rewind")

    def stage(self, batch: pa.RecordBatch, epoch: int, part: int) -> None:
        """Hand on rows."""
        call_user(self._instance.stage, batch, epoch, part, name=f"{self._name}.stage")

    def commit(self, epoch: int) -> None:
        """Hand on the commit."""
        call_user(self._instance.commit, epoch, name=f"{self._name}.commit")

    def abort(self) -> None:
        """Hand on the abort."""
        call_user(self._instance.abort, name=f"{self._name}.abort")

    def close(self) -> None:
        """Close the object, if it can be closed."""
        _close(self._instance, self._name)


@contextlib.contextmanager
def _closed_after_failure(instance: Any, name: str) -> Iterator[None]:
    """Close an object that fails before anyone else has it; the first failure is the one that is told."""
    try:
        yield
    except UserFunctionError:
        with contextlib.suppress(UserFunctionError):
            _close(instance, name)
        raise


def _close(instance: Any, name: str) -> None:
    if hasattr(instance, "close"):
        call_user(instance.close, name=f"{name}.close")
