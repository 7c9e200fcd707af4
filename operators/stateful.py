"""Operators of the user's own that remember something, and can be woken by event time.

A class with `on_batch` gets the rows of a stream in order, whole batches at a time. If it sets *timers*, its `on_timer`
is called when event time has reached them.

Problem: what an operator makes must not depend on how the stream was cut, but a timer that a row sets may be due before
the next row of the same batch, and nobody can know that before the row was shown. Idea: the class says by how much, at
least, a timer lies behind the row that sets it (`timer_delay`). Then a batch may be shown as far as that reaches, and
not beyond the next timer.

Invariants: a timer at T is called after every row before T and before any row at or after T; timers in the order of
(time, setting). Rows that a call returns have the event time of the row or timer that they belong to.
Cost: a call for each batch, or for each `timer_delay` of event time and each time that a timer is due, if those are
more.
"""

__all__ = ["Context", "OwnOperator", "Stateful", "operator"]

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ..batch import END, START, Batch, Watermark, concat, record_batch, take_rows
from ..errors import FlowError, UserFunctionError
from .own import Factory, Own, call_user, origin
from .times import INT64_MAX, INT64_MIN, TimeDomain

MOST_AFTER_THE_END = 1_000_000
"""Calls of `on_timer` behind the last row, after which an operator is taken to set itself timers forever."""


def operator(cls: type) -> Factory:
    """Make an operator of a class, for `stream.process(…)`; also as a decorator.

    The class has

    - `on_batch(self, batch, context)`: the next rows. It returns None, or a RecordBatch with one row for each row that
      it was given, or `(batch, rows)` with any number of rows, and for each of them, ascending, which of the given rows
      it belongs to.
    - `on_timer(self, timers, context)`, if it sets timers with `context.set_timers(times, data)`: the rows of `data` of
      those that are due. It returns the like.
    - `timer_delay`, with `on_timer`: by how much, at least, a timer lies behind the row or timer that sets it. A
      duration, or a number of units of an integer time column.
    - `timer_reach`, if it likes: how far behind the last row a timer may still be called; one beyond waits for a row.
      An operator that sets itself a new timer each time must have it, or it would never come to an end.
    - `output(self, schema)`, if results have other columns than the rows: their schema.
    - `snapshot(self)` and `restore(self, table)`, if it is to go on after a stop: everything that it remembers, as a
      `pyarrow.Table`, with the columns of its key first.

    `context.times` has the event times of the rows or timers, as integers.

    >>> import pyarrow as pa, dovetail as dt
    >>> @dt.operator
    ... class Numbered:
    ...     def __init__(self):
    ...         self.seen = 0
    ...     def output(self, schema):
    ...         return schema.append(pa.field("number", pa.int64()))
    ...     def on_batch(self, batch, context):
    ...         self.seen += batch.num_rows
    ...         return batch.append_column("number", pa.array(range(self.seen - batch.num_rows, self.seen)))
    >>> flow = dt.Flow("f")
    >>> rows = flow.read(dt.memory({"x": ["a", "b"]})).process(Numbered()).write(dt.collect())
    >>> flow.run().steps["process-1"].rows_out
    2
    >>> rows.table().to_pydict()
    {'x': ['a', 'b'], 'number': [0, 1]}
    """
    return Factory(cls, OwnOperator, operator, ("on_batch",))


class OwnOperator(Own):
    """An operator of the user's own; made by what `operator` returns."""

    def describe(self) -> str:
        """Name it in a plan."""
        return f"operator {self._name}"

    @property
    def can_go_on(self) -> bool:
        """Whether the class can say what it remembers."""
        return callable(getattr(self.cls, "snapshot", None))

    def check(self, domain: TimeDomain | None, where: str) -> None:
        """Raise if the class cannot be what it says."""
        cls = self.cls
        if callable(getattr(cls, "on_timer", None)):
            if domain is None:
                raise FlowError(
                    f"{where}: {self._name} has on_timer, and this stream has no event time; read its source with "
                    "time=…"
                )
            if getattr(cls, "timer_delay", None) is None:
                raise FlowError(
                    f"{where}: {self._name} has on_timer, and does not say how far behind a row its timers lie; set "
                    'timer_delay = "10s" on the class (the least of them)'
                )
        has = [name for name in ("snapshot", "restore") if callable(getattr(cls, name, None))]
        if len(has) == 1:
            raise FlowError(f"{where}: {self._name} has {has[0]}, and needs snapshot and restore, or neither")

    def output(self, schema: pa.Schema, where: str) -> pa.Schema:
        """Return the schema of its results."""
        instance = self._instance()
        if not hasattr(instance, "output"):
            return schema
        made = call_user(instance.output, schema, name=f"{self._name}.output")
        if not isinstance(made, pa.Schema):
            raise UserFunctionError(f"{where}: {origin(instance.output)} returned {made!r}; return a pyarrow.Schema")
        return made

    def machine(self, schema: pa.Schema, domain: TimeDomain | None, where: str) -> "Stateful":
        """Make a fresh instance, and what drives it."""
        cls, delay, reach = self.cls, None, None
        if callable(getattr(cls, "on_timer", None)):
            assert domain is not None
            delay = _units(domain, cls.timer_delay, f"{where}: {self._name}.timer_delay")  # type: ignore[attr-defined]
            if getattr(cls, "timer_reach", None) is not None:
                reach = _units(domain, cls.timer_reach, f"{where}: {self._name}.timer_reach")  # type: ignore[attr-defined]
        return Stateful(self._instance(), schema, delay, reach, domain, where)


def _units(domain: TimeDomain, value: Any, what: str) -> int:
    units = domain.whole(domain.duration(value, what))
    if units < 1:
        raise FlowError(f"{what}: {value!r} is less than one unit of {domain.describe()}; give at least that")
    return units


class Context:
    """What an operator is told besides the rows, and what it can ask for."""

    def __init__(self, times: np.ndarray | None, machine: "Stateful") -> None:
        self.times = times
        self._machine = machine

    def set_timers(self, times: Any, data: pa.RecordBatch) -> None:
        """Have `on_timer` called when event time reaches these times (integers), with the rows of `data`.

        Each row of `data` belongs to one of the times.
        """
        self._machine.set(times, data)


class Stateful:
    """Drives one instance. A pure machine but for what the user's code does."""

    def __init__(
        self, instance: Any, schema: pa.Schema, delay: int | None, reach: int | None, domain: TimeDomain | None,
        where: str,
    ) -> None:  # fmt: skip
        self.instance, self.schema, self.delay, self.reach = instance, schema, delay, reach
        self.domain, self.where = domain, where
        self.name = type(instance).__name__
        self.due = np.empty(0, np.int64)  # of the timers that are set, ascending
        self.data: pa.RecordBatch | None = None  # of these
        self.now: int | None = None  # no timer may be set at or before this
        self.last_row: int | None = None
        self.late_calls = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the timers; what the operator itself remembers, nobody knows."""
        return self.due.nbytes + (self.data.nbytes if self.data is not None else 0)

    def take(self, batch: Batch) -> Iterator[tuple[pa.RecordBatch, np.ndarray | None]]:
        """Show rows, and call timers that are due by the watermark; yield results with their times."""
        data, times = batch.data, batch.times
        if self.delay is None or times is None:
            if batch.num_rows:
                yield from self._results("on_batch", data, times)
            return
        at = 0
        while at < len(times):
            yield from self._call(int(times[at]))
            until = min(int(times[at]) + self.delay, int(self.due[0]) if len(self.due) else INT64_MAX + 1)
            end = len(times) if until > INT64_MAX else int(np.searchsorted(times, until))
            self.last_row = self.now = int(times[end - 1])
            yield from self._results("on_batch", data.slice(at, end - at), times[at:end])
            at = end
        yield from self._call_by_watermark(batch.watermark)

    def set(self, times: Any, data: pa.RecordBatch) -> None:
        """Set timers."""
        who = f"{self.where}: {self.name}"
        if self.delay is None:
            raise UserFunctionError(f"{who} sets timers, and has no on_timer and timer_delay")
        given = np.asarray(times)
        if given.dtype.kind not in "iu" and given.size:
            raise UserFunctionError(f"{who}: set_timers was given times of type {given.dtype}; give integers")
        when = np.ascontiguousarray(given, np.int64)
        if not isinstance(data, pa.RecordBatch) or data.num_rows != len(when):
            raise UserFunctionError(f"{who}: set_timers wants a RecordBatch with a row for each of {len(when)} times")
        if len(when) == 0:
            return
        if self.now is not None and int(when.min()) <= self.now:
            assert self.domain is not None
            raise UserFunctionError(
                f"{who} sets a timer at {self.domain.show(int(when.min()))} when rows up to "
                f"{self.domain.show(self.now)} were seen; timers lie at least timer_delay behind what sets them"
            )
        if self.data is not None and data.schema != self.data.schema:
            raise UserFunctionError(
                f"{who}: set_timers was given {data.schema.names} after {self.data.schema.names}; give the same columns"
            )
        joined = data if self.data is None else concat([self.data, data])
        due = np.concatenate([self.due, when])
        order = np.argsort(due, kind="stable")
        self.due, self.data = due[order], take_rows(joined, order)

    def snapshot(self) -> dict[str, Any]:
        """Return what the operator remembers, and its timers."""
        table = call_user(self.instance.snapshot, name=f"{self.name}.snapshot")
        if not isinstance(table, pa.Table):
            raise UserFunctionError(f"{self.where}: {origin(self.instance.snapshot)} returned no pyarrow.Table")
        return {"own": table, "due": self.due, "timers": self.data, "last_row": self.last_row, "now": self.now}

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        call_user(self.instance.restore, known["own"], name=f"{self.name}.restore")
        self.due, self.data = known["due"], known["timers"]
        self.last_row, self.now = known["last_row"], known["now"]

    def _call_by_watermark(self, watermark: Watermark) -> Iterator[tuple[pa.RecordBatch, np.ndarray | None]]:
        if watermark == START:
            return
        until = INT64_MAX if watermark == END else min(max(int(watermark), INT64_MIN), INT64_MAX)
        if self.reach is not None:
            until = min(until, INT64_MIN if self.last_row is None else self.last_row + self.reach)
        yield from self._call(until)

    def _call(self, until: int) -> Iterator[tuple[pa.RecordBatch, np.ndarray | None]]:
        """Call the timers up to a time; not in one call those that a timer among them may still be set before."""
        assert self.delay is not None
        while len(self.due) and self.due[0] <= until:
            assert self.data is not None
            most = min(until, int(self.due[0]) + self.delay - 1)
            n = int(np.searchsorted(self.due, most, side="right"))
            due, data = self.due[:n], self.data.slice(0, n)
            self.due, self.data = self.due[n:], self.data.slice(n)
            self.now = int(due[-1])
            self._count_calls()
            yield from self._results("on_timer", data, due)

    def _count_calls(self) -> None:
        """Notice an operator that would never come to an end."""
        if self.last_row is None or self.now is None or self.now <= self.last_row:
            self.late_calls = 0
            return
        self.late_calls += 1
        if self.late_calls > MOST_AFTER_THE_END:
            raise UserFunctionError(
                f"{self.where}: {self.name} was called for timers {MOST_AFTER_THE_END:,} times since the last row, and "
                "has set more; set timer_reach on the class to say how far behind the last row they go on"
            )

    def _results(
        self, name: str, data: pa.RecordBatch, times: np.ndarray | None
    ) -> Iterator[tuple[pa.RecordBatch, np.ndarray | None]]:
        method = getattr(self.instance, name)
        made = call_user(method, data, Context(times, self), name=f"{self.name}.{name}")
        if made is None:
            return
        who = f"{self.where}: {origin(method)}"
        rows = None
        if isinstance(made, tuple) and len(made) == 2:
            made, rows = made[0], np.ascontiguousarray(made[1], np.int64)
        if not isinstance(made, pa.RecordBatch):
            raise UserFunctionError(
                f"{who} returned a {type(made).__name__}; return None, a RecordBatch, or (batch, rows)"
            )
        if rows is None and made.num_rows != data.num_rows:
            raise UserFunctionError(
                f"{who} returned {made.num_rows:,} rows for {data.num_rows:,}; return (batch, rows) to say which row "
                "each of them belongs to"
            )
        if rows is not None:
            right = len(rows) == made.num_rows and (len(rows) == 0 or (rows[0] >= 0 and rows[-1] < data.num_rows))
            if not right or np.any(rows[1:] < rows[:-1]):
                raise UserFunctionError(
                    f"{who} returned {made.num_rows:,} rows that belong to {rows[:5].tolist()}…; give for each a row "
                    f"from 0 to {data.num_rows - 1:,}, ascending"
                )
        if made.num_rows == 0:
            return
        yield self._held_to(made, who), times if rows is None or times is None else times[rows]

    def _held_to(self, made: pa.RecordBatch, who: str) -> pa.RecordBatch:
        if made.schema.names != self.schema.names:
            raise UserFunctionError(f"{who} returned columns {made.schema.names}; its schema has {self.schema.names}")
        for field, column in zip(self.schema, made.columns, strict=True):
            if column.type != field.type:
                raise UserFunctionError(
                    f"{who} returned column {field.name!r} as {column.type} where {field.type} was expected"
                )
        return record_batch(made.columns, self.schema, made.num_rows)
