"""`WindowJoin`: the join operator in the caller's own process, fed by hand.

For notebooks, tests and other engines: no flow, no threads, no files. One `push` is one step: it sorts what it is
given, holds nothing back, and returns every pair whose later tuple was in it.
"""

__all__ = ["WindowJoin"]

from typing import Any

import numpy as np
import pyarrow as pa

from ..batch import empty_batch, record_batch, take_rows
from ..errors import DataError, FlowError, LateError, nearest
from .access import SIDES, JoinSpec
from .join import JoinDriver
from .numbering import Step
from .times import TimeDomain, rescale, time_domain, times_of


class WindowJoin:
    """Join two streams, a step at a time.

    Parameters
    ----------
    left_schema, right_schema
        Of every batch that will be pushed. `right_schema=None` is a self-join: push its one stream as `left`.
    on
        A predicate, or a list of predicates that must all hold.
    window
        `last(…)`, or a pair: what is kept of the left, what is kept of the right.
    index
        How rows are found: "auto", or one of `dt.state.names()`. It never changes a result.
    left_time, right_time
        Names of the time columns; without, rows stand in the order in which they are pushed.
    suffix
        Put behind a right column's name that the left has too.
    threads
        If not 0, so many work on one index: `layout="shared"` of a flow.

    Examples
    --------
    >>> import pyarrow as pa, dovetail as dt
    >>> from dovetail import left, right
    >>> schema = pa.schema([("ts", pa.int64()), ("x", pa.int64())])
    >>> join = dt.WindowJoin(schema, schema, on=(left.x - right.x).abs() <= 1, window=dt.last(100),
    ...                      left_time="ts", right_time="ts")
    >>> a = pa.record_batch({"ts": [1, 2, 3], "x": [10, 20, 30]}, schema=schema)
    >>> b = pa.record_batch({"ts": [2, 3, 3], "x": [11, 20, 99]}, schema=schema)
    >>> join.push(left=a, right=b).to_pydict()
    {'ts': [1, 2], 'x': [10, 20], 'ts_right': [2, 3], 'x_right': [11, 20]}
    >>> join.push().num_rows
    0
    """

    def __init__(
        self, left_schema: pa.Schema, right_schema: pa.Schema | None, *, on: Any, window: Any, index: str = "auto",
        left_time: str | None = None, right_time: str | None = None, suffix: str = "_right", ordered: bool = True,
        threads: int = 0, name: str = "WindowJoin",
    ) -> None:  # fmt: skip
        self_join = right_schema is None
        if self_join:
            right_schema, right_time = left_schema, left_time
        self._schemas = {"left": left_schema, "right": right_schema}
        self._columns = {"left": left_time, "right": right_time}
        for side, schema in self._schemas.items():
            if not isinstance(schema, pa.Schema):
                raise FlowError(f"{name}: {side}_schema must be a pyarrow.Schema, not {schema!r}")
        domains = {
            side: time_domain(self._schemas[side], self._columns[side], f"{name}: {side}_time") for side in SIDES
        }
        self._domains = domains
        self.spec = JoinSpec.check(name, self._schemas, on, window, domains, index=index, suffix=suffix,
                                   self_join=self_join, ordered=ordered, threads=threads)  # fmt: skip
        self._driver = JoinDriver(self.spec)
        self._nothing = empty_batch(self._driver.schema)
        self._last: dict[str, int | None] = {"left": None, "right": None}

    @property
    def schema(self) -> pa.Schema:
        """The schema of the results."""
        return self._driver.schema

    @property
    def nbytes(self) -> int:
        """Bytes that the windows hold."""
        return self._driver.nbytes

    def held_rows(self) -> dict[str, int]:
        """Return how many rows are held for each window; batches are let go of whole."""
        return self._driver.held_rows()

    def null_keys(self) -> dict[str, int]:
        """Return how many rows of each side had a null or NaN in a key: a comparison with one is false."""
        return self._driver.null_keys()

    def check(self) -> None:
        """Assert the invariants of everything inside."""
        self._driver.check()

    def push(
        self, left: pa.RecordBatch | None = None, right: pa.RecordBatch | None = None, *, max_rows: int | None = None
    ) -> Any:
        """Join one step; return all pairs whose later row is in it, in order.

        With `max_rows`, return an iterator of batches of at most so many rows; use it up before the next push.

        Raises
        ------
        LateError
            A row comes before a row of an earlier step in the total order. Nothing of the step is applied.
        DataError
            A batch does not have the schema that was promised, or a time is null.
        """
        if self.spec.self_join and right is not None:
            raise FlowError(f"{self.spec.name}: a self-join has one stream and no right; push it as left")
        if max_rows is not None and (not isinstance(max_rows, int) or max_rows < 1):
            raise FlowError(f"{self.spec.name}: max_rows={max_rows!r}; give at least 1")
        steps, newest = {}, dict(self._last)
        for side, batch in (("left", left), ("right", right)):
            steps[side], most = self._step(side, batch)
            newest[side] = most if most is not None else newest[side]
        self._driver.out_rows = max_rows or 65_536
        slices = self._driver.step(steps["left"], steps["right"])
        self._last = newest
        if max_rows is not None:
            return (data for data, _ in slices)
        found = [data for data, _ in slices]
        if not found:
            return self._nothing
        return found[0] if len(found) == 1 else _one(found, self.schema)

    def _step(self, side: str, batch: pa.RecordBatch | None) -> tuple[Step, int | None]:
        time = self.spec.time
        data = None
        if batch is not None:
            data = conform(batch, self._schemas[side], f"{self.spec.name}: the {side} batch")
        if data is None or data.num_rows == 0:
            return Step((), np.empty(0, np.int64) if time else None), None
        column, domain = self._columns[side], self._domains[side]
        if time is None or column is None or domain is None:
            return Step((data,), None), None
        where = f"{self.spec.name}: the {side} batch"
        times = rescale(times_of(data.column(column), where, 0), domain, time, where)
        self._refuse_late(side, times, time)
        if len(times) > 1 and (times[1:] < times[:-1]).any():
            order = np.argsort(times, kind="stable")
            data, times = take_rows(data, order), times[order]
        return Step((data,), times), int(times[-1])

    def _refuse_late(self, side: str, times: np.ndarray, time: TimeDomain) -> None:
        """A row is late if it stands before one that was already joined; at equal times left stands before right."""
        least = int(times.min())
        for other in SIDES:
            last = self._last[other]
            if last is None:
                continue
            if least < last or (least == last and side == "left" and other == "right"):
                row = int(np.argmin(times))
                raise LateError(
                    f"{self.spec.name}: row {row:,} of the {side} batch has the time {time.show(least)}, which comes "
                    f"before a {other} row of an earlier push with the time {time.show(last)}; "
                    "push rows of both sides up to a time together, or read them in a flow with delay=…"
                )


def conform(batch: Any, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Return a batch with exactly the columns of a schema, in its order; raise a `DataError` that says what differs."""
    if isinstance(batch, pa.Table):
        batch = batch.combine_chunks().to_batches()[0] if batch.num_rows else empty_batch(batch.schema)
    if not isinstance(batch, pa.RecordBatch):
        raise DataError(f"{where} is a {type(batch).__name__}; give a pyarrow.RecordBatch")
    if batch.schema.equals(schema):
        return batch
    doubled = [name for name in batch.schema.names if batch.schema.names.count(name) > 1]
    if doubled:
        raise DataError(f"{where} has two columns named {doubled[0]!r}; drop or rename one")
    for field in schema:
        if field.name not in batch.schema.names:
            raise DataError(
                f"{where} has no column {field.name!r}; {nearest(field.name, batch.schema.names)}. "
                f"It must have: {', '.join(schema.names)}"
            )
        got = batch.schema.field(field.name).type
        if got != field.type:
            raise DataError(f"{where}: column {field.name!r} is {got} where {field.type} was promised; cast it")
    extra = [name for name in batch.schema.names if name not in schema.names]
    if extra:
        raise DataError(f"{where} has a column {extra[0]!r} that its schema does not have; drop it")
    return pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)


def _one(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.concat_arrays([b.column(i) for b in batches]) for i in range(len(schema))]
    return record_batch(columns, schema, sum(b.num_rows for b in batches))
