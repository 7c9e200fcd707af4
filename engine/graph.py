"""The logical flow: frozen nodes, each with the schema of what leaves it. Nothing here runs.

Each kind of step is a dataclass; `Stream` (flow.py) is a handle on one. A node knows its inputs, so that the graph
is the nodes that the sinks reach. Names are unique in a flow: a step's state, counts and errors go by them.
"""

__all__ = [
    "ComputeNode",
    "FilterNode",
    "JoinNode",
    "LateNode",
    "MapNode",
    "Node",
    "ProcessNode",
    "Rate",
    "ReadNode",
    "UnionNode",
    "WindowNode",
    "WriteNode",
    "reachable",
]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pyarrow as pa

from ..operators.access import JoinSpec
from ..operators.binding import Bound
from ..operators.contracts import Sink, Source
from ..operators.event_windows import EventWindow, Stretch
from ..operators.stateful import OwnOperator
from ..operators.times import Duration, TimeDomain
from ..operators.windowed import Made


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """A step of a flow.

    `domain` is that of the event time beside the rows (None: there is none); `ordered` is False where the order of
    rows means nothing; `where` is the line on which the step was written.
    """

    name: str
    inputs: "tuple[Node, ...]"
    schema: pa.Schema
    domain: TimeDomain | None
    ordered: bool = True
    where: str = ""

    @property
    def kind(self) -> str:
        """What it does, in a word."""
        return type(self).__name__.removesuffix("Node").lower()

    @property
    def label(self) -> str:
        """Name it in a message: "join 'hotter'"."""
        return f"{self.kind} {self.name!r}"


@dataclass(frozen=True, eq=False, kw_only=True)
class ReadNode(Node):
    """Rows from a source, in time order if it has a time column."""

    source: Source
    time: str | None
    delay: Duration
    max_ahead: Duration | None
    idle: float | None
    rate: "Rate | None"


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How a replay is paced: `rows` a second, or `speed` times the pace of its event time."""

    rows: float | None = None
    speed: Fraction | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class LateNode(Node):
    """The late rows of a source, as they came."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FilterNode(Node):
    """Rows for which a predicate holds."""

    predicate: Bound


@dataclass(frozen=True, eq=False, kw_only=True)
class ComputeNode(Node):
    """Columns: of the input by name, or computed. Serves `select` and `with_columns`."""

    columns: dict[str, Bound | str]
    verb: str

    @property
    def kind(self) -> str:
        """The method that made it."""
        return self.verb


@dataclass(frozen=True, eq=False, kw_only=True)
class MapNode(Node):
    """What a function of the user's makes of each batch."""

    fn: Callable[[pa.RecordBatch], Any]
    promised: bool  # the schema was given, not taken from what the function returns
    known: bool  # False: only its first result will tell (and `schema` is empty until then)
    time: str | None  # the column of what goes in that has the event time, if there still is one


@dataclass(frozen=True, eq=False, kw_only=True)
class ProcessNode(Node):
    """What an operator of the user's makes of the rows; `keys` are what its memory goes by."""

    operator: OwnOperator
    keys: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class UnionNode(Node):
    """Rows of several streams of one schema, by (time, input, position)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class JoinNode(Node):
    """Pairs of two streams. `layout`: how it is spread over several workers, if there are."""

    spec: JoinSpec
    layout: str = "auto"

    @property
    def on_workers(self) -> bool:
        """Tell whether workers take part in it: not where threads of this process share one index."""
        return not self.spec.threads


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowNode(Node):
    """Aggregates over windows of event time, for each key."""

    keys: tuple[str, ...]
    window: EventWindow
    stretch: Stretch
    made: dict[str, Made]


@dataclass(frozen=True, eq=False, kw_only=True)
class WriteNode(Node):
    """Rows into a sink."""

    sink: Sink


def reachable(ends: Sequence[Node]) -> list[Node]:
    """Return the nodes that these depend on, and these, each after its inputs."""
    order: dict[int, Node] = {}

    def visit(node: Node) -> None:
        if id(node) in order:
            return
        for before in node.inputs:
            visit(before)
        order[id(node)] = node

    for end in ends:
        visit(end)
    return list(order.values())
