"""The plan of a flow, for people: as text, as a Mermaid drawing, in a notebook."""

__all__ = ["Explanation", "explain"]

import os
from collections.abc import Sequence

import pyarrow as pa

from ..config import Options
from ..operators.access import SIDES, JoinSpec, choose_access
from ..operators.choice import ASSUMED_ROWS, prices, ways
from ..operators.spread import PAIRS, possible
from ..operators.windows import WindowSpec
from .graph import (
    ComputeNode,
    FilterNode,
    JoinNode,
    LateNode,
    MapNode,
    Node,
    ProcessNode,
    ReadNode,
    UnionNode,
    WindowNode,
    WriteNode,
    reachable,
)
from .physical import describe, layout_of, load_of
from .plan import needed_columns


class Explanation(str):
    """A plan as text that notebooks show as a drawing as well."""

    drawing: str = ""

    def mermaid(self) -> str:
        """Return the drawing, in Mermaid's language."""
        return self.drawing

    def _repr_markdown_(self) -> str:
        return f"```mermaid\n{self.drawing}\n```\n\n```text\n{self}\n```"


def explain(
    name: str, nodes: Sequence[Node], workers: int = 1, *, physical: bool = False, rate: float | None = None,
    options: Options | None = None,
) -> Explanation:  # fmt: skip
    """Describe each step, as it runs on so many workers; steps that no sink needs are named as such."""
    sinks = [node for node in nodes if isinstance(node, WriteNode)]
    used = {id(node) for node in reachable(sinks)}
    needed = needed_columns(sinks)
    several = workers > 1 and any(isinstance(node, JoinNode) and node.on_workers for node in nodes)
    where = f"joins on {workers} worker processes, the rest in this one" if several else "in one process"
    lines = [f"flow {name!r}, {where}"]
    for node in nodes:
        lines.append("")
        unused = "" if id(node) in used else "   (no sink needs it, so it does not run)"
        came = f" ← {', '.join(n.name for n in node.inputs)}" if node.inputs else ""
        lines.append(f"{node.kind} {node.name}{came}{unused}")
        lines += [f"    {line}" for line in _details(node, needed.get(id(node)), workers)]
    if physical or rate is not None:
        joins = [node for node in reachable(sinks) if isinstance(node, JoinNode) and node.on_workers]
        cores = sorted(os.sched_getaffinity(0))
        lines += ["", *describe(joins, needed, workers, cores, rate, options or Options.from_environment())]
    text = Explanation("\n".join(lines))
    text.drawing = _mermaid(nodes)
    return text


def _details(node: Node, needed: set[str] | None, workers: int) -> list[str]:
    if isinstance(node, ReadNode):
        return _read_details(node, needed)
    if isinstance(node, LateNode):
        return [f"rows of {node.inputs[0].name} that came too late, in the order in which they came"]
    if isinstance(node, FilterNode):
        return [f"keeps rows with {node.predicate}"]
    if isinstance(node, ComputeNode):
        kept = [key for key, made in node.columns.items() if isinstance(made, str)]
        made = [f"{key} = {how}" for key, how in node.columns.items() if not isinstance(how, str)]
        return [*([f"columns: {', '.join(kept)}"] if kept and node.verb == "select" else []), *made]
    if isinstance(node, MapNode):
        if not node.known:
            return ["your function, batch by batch; schema taken from its first result"]
        how = "given" if node.promised else "taken from its answer to an empty batch"
        return [f"your function, batch by batch; schema {how}: {', '.join(node.schema.names)}"]
    if isinstance(node, UnionNode):
        return ["by time, then in the order of the streams named"] if node.domain else ["in the order of arrival"]
    if isinstance(node, JoinNode):
        return _join_details(node, needed, workers)
    if isinstance(node, WindowNode):
        return _window_details(node, needed)
    if isinstance(node, ProcessNode):
        by = f", its memory by {', '.join(node.keys)}" if node.keys else ""
        return [f"your {node.operator.describe()}{by}; columns: {', '.join(node.schema.names)}"]
    assert isinstance(node, WriteNode)
    times = "each result once" if node.sink.transactional else "each result at least once"
    return [f"to {node.sink.describe()}; {times}"]


def _window_details(node: WindowNode, needed: set[str] | None) -> list[str]:
    made = [f"{name} = {each.aggregate}" for name, each in node.made.items() if needed is None or name in needed]
    pieces = "one row for each window and key" if node.keys else "one row for each window"
    pieces_held = node.stretch.size // node.stretch.pane if node.stretch.pane else 1
    held = "each open window" if pieces_held == 1 else f"each of the {pieces_held:,} pieces of open windows"
    return [
        *([f"keys   {', '.join(node.keys)}"] if node.keys else []),
        f"window {node.window}; {pieces}, when the watermark has reached its end",
        *(f"makes  {line}" if i == 0 else f"       {line}" for i, line in enumerate(made)),
        f"memory for each key in {held}",
    ]


def _read_details(node: ReadNode, needed: set[str] | None) -> list[str]:
    lines = [f"from {node.source.describe()}"]
    if node.time is None or node.domain is None:
        lines.append("order: as read (no time column)")
    else:
        behind = f"late if more than {_ticks(node)} behind" if node.delay else "late if behind the greatest time so far"
        lines.append(f"order: by {node.time}, {node.domain.describe()}; {behind}")
    if node.idle is not None:
        lines.append(f"holds others back for at most {node.idle:g} s of silence")
    if needed is not None and len(needed) < len(node.schema.names):
        lines.append(f"columns read: {', '.join(n for n in node.schema.names if n in needed)}")
    return lines


def _ticks(node: ReadNode) -> str:
    assert node.domain is not None
    return str(node.delay) if node.domain.ticks is None else f"{float(node.delay):g} s"


def _join_details(node: JoinNode, needed: set[str] | None, workers: int) -> list[str]:
    spec = node.spec
    lines = [f"on     {line}" if i == 0 else f"       {line}" for i, line in enumerate(spec.predicate.normal_form())]
    for side in SIDES:
        if spec.self_join and spec.windows["left"] == spec.windows["right"] and side == "right":
            continue
        kept = "own rows" if spec.self_join else f"{side} rows"
        lines.append(f"window {kept}: {spec.windows[side]}")
    if spec.threads:
        lines.append(f"spread shared: {spec.threads} threads of this process work on one index, as asked for")
    elif workers > 1:
        layout = layout_of(node, workers)
        lines.append(f"spread {layout.describe()}: {layout.why}")
        if node.layout == "auto":
            lines += [f"       {line}" for line in _spreads(node, workers)]
    for side in SIDES:
        access = choose_access(spec, side)
        lines.append(f"find   {side} rows by {access.describe()}: {access.why}")
        lines += [f"       {line}" for line in _ways(spec, side)]
        remainder = spec.predicate.sides[side].remainder_with(access.applied)
        if remainder.always:
            written = "; ".join(dict.fromkeys(map(str, remainder.always)))
            lines.append(f"       then decided on pairs as written: {written}")
        if remainder.unsure:
            written = "; ".join(dict.fromkeys(map(str, remainder.unsure)))
            lines.append(f"       then decided as written on pairs within rounding: {written}")
    order = "by event time, then left before right" if spec.time else "as taken (no time column)"
    lines.append(f"order  {order}" + ("" if spec.ordered else "; ordered=False: followers may not rely on it"))
    if needed is not None and len(needed) < len(node.schema.names):
        lines.append(f"output {', '.join(n for n in node.schema.names if n in needed)} (nothing else is asked for)")
    lines += [f"memory {line}" for line in memory_bound(spec)]
    return lines


def _ways(spec: JoinSpec, side: str) -> list[str]:
    """Say what else could find the rows, and what each way costs on this machine."""
    found = ways(spec, side)
    if len(found) == 1:
        return []
    rows, given = spec.windows[side].rows, ""
    if rows is None:
        rows, given = ASSUMED_ROWS, ", if there are so many"
    priced = [(way.access.describe(), way) for way in prices(found, rows)]
    wide = max(len(said) for said, _ in priced)
    return [
        "to begin with; while it runs by what costs least, from what is seen of the rows",
        f"(nanoseconds a tuple on this machine, over {rows:,} rows{given}):",
        *(f"  {said:<{wide}}  {way.fixed:,.0f} + {way.each:,.1f} for each row that it finds" for said, way in priced),
    ]


def _spreads(node: JoinNode, workers: int) -> list[str]:
    """Say how else the join could be spread over workers, and what each layout costs on this machine."""
    found = possible(node.spec, workers, load_of(node))
    if len(found) == 1:
        return []
    cores = len(os.sched_getaffinity(0))
    wide = max(len(each.layout.describe()) for each in found)
    return [
        f"(nanoseconds a row of both inputs on {cores} cores of this machine, if it finds {PAIRS:g} rows):",
        *(f"  {each.layout.describe():<{wide}}  {each.nanoseconds(cores):,.0f}" for each in found),
    ]


def memory_bound(spec: JoinSpec) -> list[str]:
    """Say how much the windows can hold."""
    lines = []
    for side in SIDES[:1] if spec.self_join else SIDES:
        window, size = spec.windows[side], _row_bytes(spec, side)
        if spec.self_join:
            window = max(spec.windows.values(), key=lambda w: (w.keeps_everything, w.is_time, w.rows or 0))
        lines.append(f"{side if not spec.self_join else 'window'}: {_bound(window, size)}")
    return lines


def _bound(window: WindowSpec, size: int) -> str:
    if window.keeps_everything:
        return f"NO BOUND: last(None) keeps every row, about {size} bytes each"
    if window.rows is not None:
        return f"{window.rows:,} rows and one batch, about {_bytes(window.rows * size)} ({size} bytes a row)"
    return f"the rows of {window}, about {size} bytes each; a time window has no bound of its own"


def _row_bytes(spec: JoinSpec, side: str) -> int:
    """About what a row of a window costs: its columns, its keys, its entry in an index."""
    columns = sum(_type_bytes(field.type) for field in spec.schemas[side])
    access = choose_access(spec, side)
    index = {"nested": 0, "hash": 28}.get(access.index, 24)
    if access.boxed:
        index = 4 + 8 * len({test.key.name for test in access.probe})
    rounding = spec.predicate.sides[side].remainder_with(access.applied).tests
    whole = access.index == "nested" or len(ways(spec, side)) > 1  # all keys are kept
    tests = (*access.probe, *access.filters) if whole else (*access.filters, *rounding)
    return columns + 8 * len(dict.fromkeys(tests)) + index + (8 if spec.windows[side].is_time else 0)


def _type_bytes(kind: pa.DataType) -> int:
    try:
        return max(1, kind.bit_width // 8)
    except ValueError:
        return 32  # of variable length: a guess, and said to be "about"


def _bytes(n: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:,.0f} {unit}"
        n /= 1000
    return f"{n:,.1f} TB"


_SHAPES = {"read": ("[(", ")]"), "write": ("[/", "/]"), "join": ("{{", "}}"), "union": ("(", ")"), "late": ("(", ")")}


def _mermaid(nodes: Sequence[Node]) -> str:
    names = {id(node): f"n{i}" for i, node in enumerate(nodes)}
    lines = ["flowchart LR"]
    for node in nodes:
        opening, closing = _SHAPES.get(node.kind, ("[", "]"))
        # A name that was not chosen says the kind already.
        title = node.name if node.name.startswith(f"{node.kind}-") else f"{node.kind} {node.name}"
        text = "<br/>".join(map(_escaped, [title, *_short(node)]))
        lines.append(f'    {names[id(node)]}{opening}"{text}"{closing}')
    for node in nodes:
        both = len(node.inputs) == 2 and isinstance(node, JoinNode)
        for i, before in enumerate(node.inputs):
            label = f'|"{("left", "right")[i]}"|' if both else ""
            lines.append(f"    {names[id(before)]} -->{label} {names[id(node)]}")
    return "\n".join(lines)


def _short(node: Node) -> list[str]:
    if isinstance(node, JoinNode):
        windows = dict.fromkeys(str(w) for w in node.spec.windows.values())
        return [*(str(c) for c in node.spec.predicate.conjuncts), " / ".join(windows)]
    if isinstance(node, FilterNode):
        return [str(node.predicate)]
    if isinstance(node, ReadNode):
        return [node.source.describe()]
    return [node.sink.describe()] if isinstance(node, WriteNode) else []


def _escaped(text: str) -> str:
    for mark, entity in (("&", "&amp;"), ('"', "&quot;"), ("<", "&lt;"), (">", "&gt;"), ("\n", " ")):
        text = text.replace(mark, entity)
    return text
