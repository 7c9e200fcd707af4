"""The public face of a flow: `Flow` and `Stream`. Writing a flow checks everything and runs nothing.

Each method adds a frozen node to the graph after checking what can be checked now: names, types, predicates,
windows, sources that are there, sinks that can be written. `Flow.run` hands the graph to `plan` and `run`.
"""

__all__ = ["Flow", "KeyedStream", "Stream", "WindowedStream"]

import glob
import os
import re
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pyarrow as pa

from ..batch import empty_batch
from ..config import Options
from ..errors import DovetailError, FlowError, SchemaError, UnsupportedError, UserFunctionError, WindowError, nearest
from ..operators.access import JoinSpec, output_fields, storable_type
from ..operators.binding import bind, bind_predicate
from ..operators.contracts import Sink, Source
from ..operators.event_windows import EventWindow
from ..operators.expressions import Aggregate, Column, Expression, caller
from ..operators.grouping import check_key
from ..operators.layouts import LAYOUTS
from ..operators.spread import choose_layout
from ..operators.stateful import OwnOperator
from ..operators.steps import Map, computed_type
from ..operators.times import Duration, TimeDomain, parse_duration, time_domain
from ..operators.windowed import Made, window_schema
from ..operators.windows import WindowSpec
from .control import Mailbox
from .explain import Explanation, explain
from .graph import (
    ComputeNode,
    FilterNode,
    JoinNode,
    LateNode,
    MapNode,
    Node,
    ProcessNode,
    Rate,
    ReadNode,
    UnionNode,
    WindowNode,
    WriteNode,
)
from .job import Job
from .keeper import keeping
from .physical import check_count
from .result import Result
from .run import Status, run
from .trail import Trail

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Flow:
    """A dataflow: sources, steps and sinks, written down and then run.

    Examples
    --------
    >>> import dovetail as dt
    >>> from dovetail import left, right
    >>> flow = dt.Flow("fares")
    >>> asks = flow.read(dt.memory({"t": [1, 2, 4], "ask": [10, 30, 20]}), name="asks", time="t")
    >>> bids = flow.read(dt.memory({"t": [2, 3, 5], "bid": [11, 29, 25]}), name="bids", time="t")
    >>> deals = asks.join(bids, on=left.ask <= right.bid, window=dt.last(time=3), name="deals")
    >>> found = deals.write(dt.collect())
    >>> result = flow.run()
    >>> found.table().select(["ask", "bid"]).to_pydict()
    {'ask': [10, 10, 20, 20], 'bid': [11, 29, 29, 25]}
    >>> result.late
    0
    """

    def __init__(self, name: str) -> None:
        self.name = _checked_name(name, "Flow")
        self._nodes: dict[str, Node] = {}

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, {len(self._nodes)} steps)"

    def read(
        self, source: Source, *, name: str | None = None, time: str | None = None, delay: Any = None,
        idle: Any = None, max_ahead: Any = None, rate: Any = None,
    ) -> "Stream":  # fmt: skip
        """Read a source.

        Parameters
        ----------
        source
            Such as `dt.parquet("trips/")`, `dt.memory(table)`, or one of your own (`dt.source`).
        name
            For plans, counts and messages.
        time
            The column with the event time: a timestamp, a date or an integer. Without, rows stand in the order
            in which they are read.
        delay
            How far a row may lie behind the greatest time before it; one further behind is late. A duration, or a
            number in the unit of an integer time column.
        idle
            After this long a silent source no longer holds the others back; what it brings then may be late.
        max_ahead
            A row further than this past the greatest time before it is an error.
        rate
            Pace a replay: rows a second, or `"2x"` for twice the speed of its event time.
        """
        what = f"read {name!r}" if name else "read"
        if not hasattr(type(source), "reader"):
            hint = f"; write dt.parquet({source!r})" if isinstance(source, str | os.PathLike) else ""
            hint = _hint(source, "source", ("read",)) or hint
            raise FlowError(f"{what}: {_brief(source)} is not a source{hint} ({caller()})")
        step = self._name(name, "read")
        try:
            found = source.schema
        except DovetailError as error:  # what there is cannot be read
            error.args = (f"read {step!r}: {error}", *error.args[1:])
            raise
        schema = pa.schema([field.with_type(storable_type(field.type)) for field in found])
        if doubled := _doubled(schema):
            raise SchemaError(f"read {step!r}: the source has two columns named {doubled!r}; rename one")
        domain = time_domain(schema, time, f"read {step!r}")
        for write in self._nodes.values():
            if isinstance(write, WriteNode) and (path := _shared_path(source, write.sink)):
                raise FlowError(f"read {step!r}: {path!r} is also where {write.label} writes; read something else")
        pace = _rate(rate, domain, f"read {step!r}")
        if domain is None:
            for option, value in (("delay", delay), ("max_ahead", max_ahead), ("idle", idle)):
                if value is not None:
                    raise FlowError(f"read {step!r}: {option}={value!r} means nothing without time=…")
        node = ReadNode(
            name=step, inputs=(), schema=schema, domain=domain, where=caller(), source=source, time=time,
            delay=_duration(domain, delay, f"read {step!r}: delay") or 0,
            max_ahead=_duration(domain, max_ahead, f"read {step!r}: max_ahead"),
            idle=None if idle is None else float(_positive(parse_duration(idle, f"read {step!r}: idle"), idle, step)),
            rate=pace,
        )  # fmt: skip
        return self._add(node)

    def run(
        self, *, workers: int = 1, checkpoint: str | os.PathLike[str] | None = None, fresh: bool = False,
        savepoint: str | os.PathLike[str] | None = None, every: Any = "1s", options: Options | None = None,
        progress: Callable[[Status], None] | None = None,
    ) -> Result:  # fmt: skip
        """Run the flow until its sources end, or until Ctrl-C; return what was done.

        Parameters
        ----------
        workers
            Processes that joins are spread over. With 1 everything happens in this process; with more, sources,
            other steps and sinks still do. Results are the same.
        checkpoint
            A folder in which the run keeps what it needs to go on after a crash, or after a stop: with it results are
            exactly once, whatever dies. If there is a checkpoint of this flow in it, the run goes on from there. None:
            a crash ends the job.
        fresh
            Begin anew: a checkpoint in the folder is an error.
        savepoint
            A folder that `Job.savepoint` or `Job.stop` has made: begin with it, in a checkpoint folder of its own.
        every
            How often a checkpoint is made, and sinks show what they have been given (they also do so at the end).
        options
            Limits on batch sizes and memory; by default from the environment.
        progress
            Called about twice a second with a `Status`.
        """
        return self._ready(workers, checkpoint, fresh, savepoint, every, options, progress)(Mailbox())

    def start(
        self, *, workers: int = 1, checkpoint: str | os.PathLike[str] | None = None, fresh: bool = False,
        savepoint: str | os.PathLike[str] | None = None, every: Any = "1s", options: Options | None = None,
        progress: Callable[[Status], None] | None = None,
    ) -> Job:  # fmt: skip
        """Run the flow beside what the caller does next; the arguments are those of `run`."""
        return Job(self.name, self._ready(workers, checkpoint, fresh, savepoint, every, options, progress))

    def _ready(
        self, workers: int, checkpoint: str | os.PathLike[str] | None, fresh: bool,
        savepoint: str | os.PathLike[str] | None, every: Any, options: Options | None,
        progress: Callable[[Status], None] | None,
    ) -> Callable[..., Result]:  # fmt: skip
        """Check everything that can be checked before the start; return what starts."""
        self._checked(workers)
        if options is not None and not isinstance(options, Options):
            raise FlowError(f"flow {self.name!r}: options={options!r}; write dt.Options(batch_rows=…)")
        if progress is not None and not callable(progress):
            raise FlowError(f"flow {self.name!r}: progress={progress!r} is not a function of a Status")
        cores = len(os.sched_getaffinity(0))
        if workers > cores:
            warnings.warn(
                f"flow {self.name!r}: {workers} workers share {cores} cores, which is slower than workers={cores}",
                stacklevel=3,
            )
        seconds = float(parse_duration(every, f"flow {self.name!r}: every"))
        if seconds < 0:
            raise WindowError(f"flow {self.name!r}: every={every!r} is negative")
        for word, path in (("checkpoint", checkpoint), ("savepoint", savepoint)):
            if path is not None and not isinstance(path, str | os.PathLike):
                raise FlowError(f"flow {self.name!r}: {word}={path!r} is no path of a folder")
        for word, value in (("fresh", fresh), ("savepoint", savepoint)):
            if value and checkpoint is None:
                raise FlowError(f"flow {self.name!r}: {word}={value!r} means nothing without checkpoint=…")
        processes = 0 if workers == 1 else workers
        sinks, chosen = self._sinks(), options or Options.from_environment()

        def go(mailbox: Mailbox, trail: Trail | None = None) -> Result:
            if checkpoint is None:
                return run(self.name, sinks, chosen, seconds, progress, processes, None, mailbox)
            begin = None if savepoint is None else os.fspath(savepoint)
            folder = os.fspath(checkpoint)
            with keeping(self.name, sinks, folder, seconds, fresh=fresh, savepoint=begin, trail=trail) as keeper:
                return run(self.name, sinks, chosen, seconds, progress, processes, keeper, mailbox)

        return go

    def explain(
        self, *, workers: int = 1, physical: bool = False, rate: float | None = None, options: Options | None = None
    ) -> Explanation:
        """Return the plan as text; `.mermaid()` draws it, and notebooks show the drawing.

        Parameters
        ----------
        workers
            As it runs on so many.
        physical
            Also processes and their cores, what goes between them, and memory.
        rate
            Rows a second of both inputs of each join: say how many workers they need, about.
        options
            As for `run`.
        """
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0):
            raise FlowError(f"flow {self.name!r}: rate={rate!r}; give rows a second, such as 5_000_000")
        nodes = list(self._nodes.values())
        return explain(self.name, nodes, self._checked(workers), physical=physical, rate=rate, options=options)

    def _checked(self, workers: int) -> int:
        check_count(self.name, workers)
        return workers

    def _repr_markdown_(self) -> str:
        return self.explain()._repr_markdown_()

    def _sinks(self) -> list[WriteNode]:
        sinks = [node for node in self._nodes.values() if isinstance(node, WriteNode)]
        if not sinks:
            raise FlowError(f"flow {self.name!r} writes nothing, so there is nothing to run; add .write(dt.show())")
        return sinks

    def _name(self, name: str | None, kind: str) -> str:
        if name is None:
            number = 1
            while f"{kind}-{number}" in self._nodes:
                number += 1
            return f"{kind}-{number}"
        _checked_name(name, kind)
        if name in self._nodes:
            raise FlowError(f"{kind} {name!r}: there is a step of this name already ({self._nodes[name].where})")
        return name

    def _add(self, node: Node) -> "Stream":
        self._nodes[node.name] = node
        return Stream(self, node)


class Stream:
    """A sequence of rows: what leaves a step. Methods give new streams; nothing is changed in place."""

    def __init__(self, flow: Flow, node: Node) -> None:
        self._flow, self._node = flow, node

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        if not self._schema_known:
            raise SchemaError(
                f"{self._node.label} has no schema until its first result, since its function cannot answer for an "
                f"empty batch; only .write can follow it so. Pass schema=… to .map ({caller()})"
            )
        return self._node.schema

    @property
    def _schema_known(self) -> bool:
        return not isinstance(self._node, MapNode) or self._node.known

    @property
    def name(self) -> str:
        """The step that it leaves."""
        return self._node.name

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}: {', '.join(f'{f.name} {f.type}' for f in self._node.schema)}>"

    @property
    def late(self) -> "Stream":
        """The rows of this source that came too late, in the order in which they came, without event time."""
        node = self._node
        if not isinstance(node, ReadNode) or node.time is None:
            what = "has no time column, so nothing is late" if isinstance(node, ReadNode) else "is not a source"
            raise FlowError(f".late of {node.label}: it {what}; take it from the stream that flow.read(time=…) returns")
        name = f"{node.name}.late"
        known = self._flow._nodes.get(name)
        if isinstance(known, LateNode):
            return Stream(self._flow, known)
        if known is not None:
            raise FlowError(
                f".late of {node.label} is named {name!r}, as another step is ({known.where}); rename that one"
            )
        return self._flow._add(LateNode(name=name, inputs=(node,), schema=node.schema, domain=None, where=caller()))

    def filter(self, predicate: Expression, *, name: str | None = None) -> "Stream":
        """Keep the rows for which a predicate on `dt.col` holds."""
        step = self._flow._name(name, "filter")
        if not isinstance(predicate, Expression):
            raise FlowError(f'filter {step!r}: {predicate!r} is not a predicate; write dt.col("x") > 3 ({caller()})')
        bound = bind_predicate(predicate, {"": self.schema}, f"filter {step!r}")
        return self._next(FilterNode, step, self.schema, predicate=bound)

    def select(self, *columns: Any, name: str | None = None, **computed: Any) -> "Stream":
        """Keep these columns, in this order; `new=expression` computes one."""
        step = self._flow._name(name, "select")
        wanted = list(columns[0]) if len(columns) == 1 and isinstance(columns[0], list | tuple) else list(columns)
        made: dict[str, Any] = {}
        for column in wanted:
            key = column.name if isinstance(column, Column) else column
            if not isinstance(key, str):
                raise FlowError(
                    f"select {step!r}: {column!r} is not a column's name; compute one as new=… ({caller()})"
                )
            if key not in self.schema.names:
                raise SchemaError(f"select {step!r}: there is no column {key!r}; {nearest(key, self.schema.names)}")
            if key in made:
                raise SchemaError(f"select {step!r}: column {key!r} is named twice")
            made[key] = key
        if not made and not computed:
            raise FlowError(f"select {step!r}: name at least one column ({caller()})")
        return self._compute(step, "select", {**made, **self._bound(computed, f"select {step!r}")})

    def with_columns(self, *, name: str | None = None, **computed: Any) -> "Stream":
        """Add columns, or replace those of the same name: `with_columns(net=dt.col("gross") - dt.col("tax"))`."""
        step = self._flow._name(name, "with_columns")
        if not computed:
            raise FlowError(f"with_columns {step!r}: name at least one column, as in total=… ({caller()})")
        kept: dict[str, Any] = {n: n for n in self.schema.names}
        return self._compute(step, "with_columns", {**kept, **self._bound(computed, f"with_columns {step!r}")})

    def map(
        self, fn: Callable[[pa.RecordBatch], Any], schema: pa.Schema | None = None, *, name: str | None = None
    ) -> "Stream":
        """Hand each batch to a function that returns a RecordBatch, with the same or another number of rows.

        Without `schema` it is taken from what the function makes of an empty batch, now, or if it cannot do that,
        of its first batch; then only `write` can follow. It is held to it. If the stream has event time and the
        function returns another number of rows, the result must keep the time column.
        """
        step = self._flow._name(name, "map")
        if not callable(fn):
            raise FlowError(f"map {step!r}: {fn!r} is not a function ({caller()})")
        if schema is not None and not isinstance(schema, pa.Schema):
            raise FlowError(f"map {step!r}: schema={schema!r} is not a pyarrow.Schema ({caller()})")
        promised = schema is not None
        if schema is None:
            schema = _schema_of(fn, self.schema, f"map {step!r}")
        known = schema is not None
        schema = schema if schema is not None else pa.schema([])
        if doubled := _doubled(schema):
            raise SchemaError(f"map {step!r}: the result has two columns named {doubled!r}; rename one ({caller()})")
        schema = pa.schema([field.with_type(storable_type(field.type)) for field in schema])
        time = self._time_column()
        return self._next(MapNode, step, schema, fn=fn, promised=promised, known=known, time=time)

    def key_by(self, *columns: str) -> "KeyedStream":
        """Group the rows by one or more columns, for `.window(…)`. Null is a key of its own."""
        names = list(columns[0]) if len(columns) == 1 and isinstance(columns[0], list | tuple) else list(columns)
        if not names:
            raise FlowError(f"key_by of {self._node.label}: name at least one column ({caller()})")
        for name in names:
            if not isinstance(name, str):
                raise FlowError(f"key_by of {self._node.label}: {name!r} is not a column's name ({caller()})")
            if name not in self.schema.names:
                raise SchemaError(
                    f"key_by of {self._node.label}: there is no column {name!r}; {nearest(name, self.schema.names)}"
                )
            if names.count(name) > 1:
                raise SchemaError(f"key_by of {self._node.label}: column {name!r} is named twice")
            check_key(name, self.schema.field(name).type, f"key_by of {self._node.label}")
        return KeyedStream(self, tuple(names))

    def window(self, window: EventWindow) -> "WindowedStream":
        """Cut the rows into windows of event time, for `.agg(…)`: all of a window are one group.

        `window` is `dt.tumbling("1min")`, `dt.sliding("10min", every="1min")` or `dt.session("30s")`.
        """
        return KeyedStream(self, ()).window(window)

    def process(self, operator: Any, *, name: str | None = None) -> "Stream":
        """Hand the rows, in order, to an operator of your own that remembers something (`dt.operator`)."""
        return KeyedStream(self, ()).process(operator, name=name)

    def union(self, *others: "Stream", name: str | None = None) -> "Stream":
        """Put streams of one schema together, by time; at equal times this one's rows come first."""
        step = self._flow._name(name, "union")
        if not others:
            raise FlowError(f"union {step!r}: give at least one other stream ({caller()})")
        domain = self._node.domain
        for other in others:
            self._same_flow(other, f"union {step!r}")
            if other.schema.names != self.schema.names or other.schema.types != self.schema.types:
                raise SchemaError(f"union {step!r}: {_schema_difference(self, other)}")
            if (other._node.domain is None) != (domain is None):
                raise SchemaError(
                    f"union {step!r}: one stream has a time column and another has none; read all with time=…"
                )
            if domain is not None and other._node.domain is not None:
                domain = domain.finer(other._node.domain, f"union {step!r}")
        streams = (self, *others)
        for stream in streams:
            stream._needs_order(f"union {step!r}")
        inputs = tuple(stream._node for stream in streams)
        schema = pa.schema([pa.field(field.name, field.type) for field in self.schema])
        node = UnionNode(name=step, inputs=inputs, schema=schema, domain=domain, where=caller())
        return self._flow._add(node)

    def join(
        self, other: "Stream", *, on: Any = None, window: Any = None, how: str = "inner", suffix: str = "_right",
        index: str = "auto", layout: str = "auto", threads: int | None = None, ordered: bool = True,
        name: str | None = None,
    ) -> "Stream":  # fmt: skip
        """Join with another stream: `on` any comparison of `left` and `right`, inside a sliding window.

        Parameters
        ----------
        other
            The right side. The same `Stream` object is a self-join: (a, b) and (b, a), never (a, a).
        on
            A predicate, or a list of them that must all hold: expressions, or texts in SQL's words, such as
            `"l.rack < r.rack AND abs(l.x - r.x) <= 5"`.
        window
            `dt.last(…)` for both sides, or a pair: what is kept of the left, what is kept of the right.
        how
            "inner"; the only one in this version.
        suffix
            Put behind a right column's name that the left has too.
        index
            "auto", or one of `dt.state.names()`. It never changes a result.
        layout
            How the join is spread over several workers: "auto", "copies", "hash", "range", "matrix" or "chain". It
            never changes a result; `explain()` says what was chosen and why. "shared": over threads of this process,
            which work on one index: `pim_tree`, or if you ask for it `po_join`, which they search.
        threads
            With `layout="shared"`, how many; as many as there are cores.
        ordered
            False allows results in any order, which is faster where rows find many; only sinks and steps without
            state may follow.
        """
        step = self._flow._name(name, "join")
        where = f"join {step!r}"
        self._same_flow(other, where)
        if how != "inner":
            raise UnsupportedError(f'{where}: how={how!r} is not in this version; use how="inner"')
        if layout not in LAYOUTS:
            raise FlowError(f"{where}: there is no layout {layout!r}; {nearest(str(layout), LAYOUTS)}")
        schemas = {"left": self.schema, "right": other.schema}
        domains = {"left": self._node.domain, "right": other._node.domain}
        for stream in (self, other):
            stream._needs_order(where)
        itself = other is self or other._node is self._node
        spec = JoinSpec.check(where, schemas, on, window, domains, index=index, suffix=suffix, self_join=itself,
                              ordered=bool(ordered), threads=_threads_of(layout, threads, where))  # fmt: skip
        schema = pa.schema([field for _, _, field in output_fields(spec)])
        inputs = (self._node,) if itself else (self._node, other._node)
        node = JoinNode(name=step, inputs=inputs, schema=schema, domain=spec.time, where=caller(), spec=spec,
                        ordered=spec.ordered, layout=layout)  # fmt: skip
        if layout not in ("auto", "shared"):
            choose_layout(spec, 2, layout)  # one that this predicate does not allow is told now
        return self._flow._add(node)

    def write(self, sink: Sink, *, name: str | None = None) -> Any:
        """Send the rows to a sink; return the sink."""
        step = self._flow._name(name, "write")
        if not hasattr(type(sink), "writer"):
            hint = _hint(sink, "sink", ("stage", "commit")) or "; write dt.parquet(…), dt.show() or dt.collect()"
            raise FlowError(f"write {step!r}: {_brief(sink)} is not a sink{hint} ({caller()})")
        if self._schema_known:
            sink.check(self.schema)
        self._not_its_own_input(sink, step)
        path = getattr(sink, "path", None)
        for node in self._flow._nodes.values():
            other = getattr(node.sink, "path", None) if isinstance(node, WriteNode) else None
            same = path is not None and other is not None and os.path.realpath(path) == os.path.realpath(other)
            if isinstance(node, WriteNode) and (node.sink is sink or same):
                raise FlowError(
                    f"write {step!r}: this {sink.describe()} is written already, by {node.label}; "
                    f"make another one ({caller()})"
                )
        self._next(WriteNode, step, self._node.schema, sink=sink)
        return sink

    def _not_its_own_input(self, sink: Any, step: str) -> None:
        """Refuse to write into a folder that the flow reads: it would be emptied, or read its own results."""
        for node in self._flow._nodes.values():
            if isinstance(node, ReadNode) and (path := _shared_path(node.source, sink)):
                raise FlowError(f"write {step!r}: {path!r} is also what {node.label} reads; write somewhere else")

    def _bound(self, computed: dict[str, Any], where: str) -> dict[str, Any]:
        bound = {}
        for key, value in computed.items():
            expression = value if isinstance(value, Expression) else None
            if expression is None:
                raise FlowError(f'{where}: {key}={value!r} is not an expression; write dt.col("x") + 1 or dt.lit(1)')
            bound[key] = bind(expression, {"": self.schema}, where)
        return bound

    def _compute(self, step: str, verb: str, columns: dict[str, Any]) -> "Stream":
        fields = []
        for key, made in columns.items():
            if isinstance(made, str):
                fields.append(pa.field(key, self.schema.field(made).type))
            else:
                fields.append(pa.field(key, computed_type(made, self.schema, f"{verb} {step!r}: column {key!r}")))
        return self._next(ComputeNode, step, pa.schema(fields), columns=columns, verb=verb)

    def _next(self, kind: type, step: str, schema: pa.Schema, **more: Any) -> "Stream":
        node = self._node
        return self._flow._add(kind(name=step, inputs=(node,), schema=schema, domain=node.domain,
                                    ordered=node.ordered, where=caller(), **more))  # fmt: skip

    def _time_column(self) -> str | None:
        """Return the column that still has the event time, as far as it can be known."""
        node = self._node
        while not isinstance(node, ReadNode):
            if isinstance(node, ComputeNode):
                read = Stream(self._flow, node.inputs[0])._time_column()
                return next((k for k, made in node.columns.items() if made == read or _is_column(made, read)), None)
            if isinstance(node, MapNode):
                return node.time if node.time in node.schema.names else None
            if isinstance(node, JoinNode | LateNode | WindowNode | ProcessNode):
                return None
            if isinstance(node, UnionNode):
                columns = {Stream(self._flow, before)._time_column() for before in node.inputs}
                return columns.pop() if len(columns) == 1 else None
            node = node.inputs[0]
        return node.time

    def _same_flow(self, other: Any, where: str) -> None:
        if not isinstance(other, Stream):
            raise FlowError(f"{where}: {_brief(other)} is not a stream; read it first, with flow.read(…) ({caller()})")
        if other._flow is not self._flow:
            raise FlowError(f"{where}: the streams belong to two flows, {self._flow.name!r} and {other._flow.name!r}")

    def _needs_order(self, where: str) -> None:
        if not self._node.ordered:
            raise FlowError(
                f"{where}: {self._node.label} comes from a join with ordered=False, whose results have no order to "
                "go by; leave ordered=False out there"
            )


class KeyedStream:
    """A stream whose rows are grouped by a key; `window` says by what else."""

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self._stream, self._keys = stream, keys

    def __repr__(self) -> str:
        return f"<KeyedStream {self._stream.name!r} by {', '.join(self._keys)}>"

    def window(self, window: EventWindow) -> "WindowedStream":
        """Cut the rows of each key into windows of event time, for `.agg(…)`.

        `window` is `dt.tumbling("1min")`, `dt.sliding("10min", every="1min")` or `dt.session("30s")`.
        """
        if not isinstance(window, EventWindow):
            hint = "; dt.last(…) is the window of a join" if isinstance(window, WindowSpec) else ""
            raise WindowError(
                f'window of {self._stream._node.label}: {window!r} is not one; write dt.tumbling("1min"), '
                f'dt.sliding("10min", every="1min") or dt.session("30s"){hint} ({caller()})'
            )
        return WindowedStream(self._stream, self._keys, window)

    def process(self, operator: Any, *, name: str | None = None) -> Stream:
        """Hand the rows, in order, to an operator of your own (`dt.operator`) whose memory goes by the key.

        All rows of a key come to the same instance; an instance has many keys.
        """
        stream = self._stream
        step = stream._flow._name(name, "process")
        where = f"process {step!r}"
        stream._needs_order(where)
        if not isinstance(operator, OwnOperator):
            hint = _hint(operator, "operator", ("on_batch",)) or "; make one of a class with @dt.operator"
            raise FlowError(f"{where}: {_brief(operator)} is not an operator{hint} ({caller()})")
        operator.check(stream._node.domain, where)
        schema = operator.output(stream.schema, where)
        if doubled := _doubled(schema):
            raise SchemaError(f"{where}: the result has two columns named {doubled!r}; rename one ({caller()})")
        schema = pa.schema([field.with_type(storable_type(field.type)) for field in schema])
        operator.machine(schema, stream._node.domain, where)  # what is wrong with its timers is found now
        return stream._next(ProcessNode, step, schema, operator=operator, keys=self._keys)


class WindowedStream:
    """A stream that is cut into windows; `agg` says what is wanted of each."""

    def __init__(self, stream: Stream, keys: tuple[str, ...], window: EventWindow) -> None:
        self._stream, self._keys, self._window = stream, keys, window

    def __repr__(self) -> str:
        return f"<WindowedStream {self._stream.name!r}, {self._window}>"

    def agg(self, *unnamed: Any, name: str | None = None, **aggregates: Aggregate) -> Stream:
        """Return one row for each window and key that has rows, when the window is complete.

        Its columns are the keys, `window_start`, `window_end` (which is not in the window any more) and the aggregates:
        `.agg(total=dt.col("amount").sum(), n=dt.count())`. Its event time is the last unit of the window.
        """
        stream = self._stream
        if unnamed:
            raise FlowError(f"agg of {stream._node.label}: name each result, as in n={unnamed[0]} ({caller()})")
        if isinstance(name, Aggregate):
            raise FlowError(
                f"agg of {stream._node.label}: name= is what the step is called; call {name} otherwise ({caller()})"
            )
        step = stream._flow._name(name, "window")
        where = f"window {step!r}"
        stream._needs_order(where)
        stretch = self._window.resolve(stream._node.domain, where)
        if not aggregates:
            raise FlowError(f'{where}: name at least one aggregate, as in total=dt.col("x").sum() ({caller()})')
        made = {key: self._made(key, aggregate, where) for key, aggregate in aggregates.items()}
        assert stream._node.domain is not None
        keys = pa.schema([stream.schema.field(key) for key in self._keys])
        schema = window_schema(keys, made, stream._node.domain, where)
        return stream._next(WindowNode, step, schema, keys=self._keys, window=self._window, stretch=stretch, made=made)

    def _made(self, name: str, aggregate: Any, where: str) -> Made:
        if not isinstance(aggregate, Aggregate):
            name_of_column = aggregate.name if isinstance(aggregate, Column) else "x"
            hint = f'dt.col("{name_of_column}").sum()'
            raise FlowError(f"{where}: {name}={aggregate!r} is not an aggregate; write {hint} or dt.count()")
        schema = self._stream.schema
        plain = aggregate.of.name if isinstance(aggregate.of, Column) and not aggregate.of.side else None
        for column in (*aggregate.columns, *([plain] if plain is not None else [])):
            if column not in schema.names:
                raise SchemaError(f"{where}: there is no column {column!r}; {nearest(column, schema.names)}")
        if aggregate.of is None:
            return Made(aggregate, None, None)
        if plain is not None:
            return Made(aggregate, plain, schema.field(plain).type)
        bound = bind(aggregate.of, {"": schema}, where)
        return Made(aggregate, bound, computed_type(bound, schema, f"{where}: column {name!r}"))


def _brief(value: Any) -> str:
    """Write a value for a message: a table would fill the screen."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"


def _hint(value: Any, word: str, methods: tuple[str, ...]) -> str:
    """Help with a class of the user's own that was handed over as it is."""
    if hasattr(value, "instance") and hasattr(value, "cls"):  # what dt.source and dt.sink make of a class
        return f"; call it: {value.cls.__name__}()"
    if all(hasattr(value, name) for name in methods):
        return f"; put @dt.{word} above its class"
    return ""


def _shared_path(source: Any, sink: Any) -> str | None:
    """Return the folder that a sink writes if a source reads it, or something in it."""
    path = getattr(sink, "path", None)
    if path is None:
        return None
    folder = os.path.realpath(path)
    for read in map(os.fspath, getattr(source, "paths", ())):
        # A pattern can lead there without beginning with the folder's name.
        matched = glob.glob(read, recursive=True) if glob.has_magic(read) else []
        for place in map(os.path.realpath, [read, *matched]):
            if place == folder or place.startswith(folder + os.sep):
                return str(path)
    return None


def _doubled(schema: pa.Schema) -> str | None:
    """Return a column's name that occurs twice."""
    return min((name for name in schema.names if schema.names.count(name) > 1), default=None)


def _schema_of(fn: Callable[[pa.RecordBatch], Any], given: pa.Schema, where: str) -> pa.Schema | None:
    """Ask a function what it makes of no rows; None if it cannot say, or says it only in part."""
    try:
        schema = Map.call(fn, empty_batch(given), where).schema
    except UserFunctionError:
        return None
    return None if any(pa.types.is_null(field.type) for field in schema) else schema


def _is_column(made: Any, name: str | None) -> bool:
    return not isinstance(made, str) and made.op == "column" and made.value[1] == name


MOST_THREADS = 256
"""On one index."""


def _threads_of(layout: str, threads: int | None, where: str) -> int:
    """Return how many threads work on one index; 0 if each index has one."""
    if layout != "shared":
        if threads is not None:
            raise FlowError(f'{where}: threads={threads!r} is for layout="shared"; other layouts have workers (run)')
        return 0
    if threads is None:
        return len(os.sched_getaffinity(0))
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= MOST_THREADS:
        raise FlowError(f"{where}: threads={threads!r} must be a whole number from 1 to {MOST_THREADS}")
    return threads


def _checked_name(name: Any, kind: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FlowError(
            f"{kind}: {name!r} is not a name; use up to 64 letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return name


def _duration(domain: TimeDomain | None, value: Any, what: str) -> Duration | None:
    return None if value is None or domain is None else domain.duration(value, what)


def _positive(seconds: Fraction, value: Any, step: str) -> Fraction:
    if seconds <= 0:
        raise FlowError(f"read {step!r}: idle={value!r} must be longer than nothing")
    return seconds


def _rate(rate: Any, domain: TimeDomain | None, where: str) -> Rate | None:
    if rate is None:
        return None
    if isinstance(rate, str) and (match := re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*x\s*", rate)):
        if domain is None or domain.ticks is None:
            raise FlowError(f"{where}: rate={rate!r} needs a timestamp as time=…; give rows a second")
        if Fraction(match[1]) > 0:
            return Rate(speed=Fraction(match[1]))
    elif isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate <= sys.float_info.max:
        return Rate(rows=float(rate))
    raise FlowError(f'{where}: rate={rate!r} is not a pace; write 10_000 for rows a second, or "2x"')


def _schema_difference(a: Stream, b: Stream) -> str:
    for field in a.schema:
        if field.name not in b.schema.names:
            return f"{b.name!r} has no column {field.name!r}, which {a.name!r} has; select the same columns of both"
        got = b.schema.field(field.name).type
        if got != field.type:
            return f"column {field.name!r} is {field.type} in {a.name!r} and {got} in {b.name!r}; cast one of them"
    extra = [name for name in b.schema.names if name not in a.schema.names]
    if extra:
        return f"{a.name!r} has no column {extra[0]!r}, which {b.name!r} has; select the same columns of both"
    return f"{a.name!r} and {b.name!r} have the same columns in another order; use .select({a.schema.names})"
