"""What a flow is made of when it runs on several workers: processes, cores, edges, memory, and what rate they bear.

All of it follows from the plan, before anything is started: `explain(physical=True)` shows it, and `run` refuses what
cannot fit. Sizes of texts are guesses and said to be; a bound that is used to refuse counts only what is certain.

Rates are estimates from costs that were measured on one machine (`make bench-engine`): good for whether two workers or
eight are needed, not for the last tenth.
"""

__all__ = ["check_memory", "describe", "join_rate", "layout_of", "needed_bytes", "workers_for"]

from collections.abc import Sequence

import pyarrow as pa

from ..config import Options
from ..errors import FlowError
from ..operators.access import SIDES, JoinSpec, choose_access
from ..operators.layouts import INDEX_BYTES, Layout, choose_layout
from .cells import STEPS_UNDER_WAY
from .graph import JoinNode, ReadNode, reachable
from .plan import asked_of_input
from .worker import CREDIT

HEAD_NS = 30.0
"""Nanoseconds of the process that deals out, for each row of both inputs, where results need no merging."""

MERGE_NS = 20.0
"""And where those of several cells interleave."""

LOOK_NS = 15.0
"""Of a cell, for each row of both inputs: to see whether it is its own, and what it looks for."""

STORE_NS = 20.0
"""For each row that it stores."""

ASK_NS = 85.0
"""For each row that looks for others there: to find and write down two of them."""

SCAN_NS = 0.1
"""For each row that is scanned, where there is no index."""

BUSY = 0.8
"""Of a core's time, at most, in an estimate of what is needed."""

MOST_WORKERS = 256
"""Of a run."""


def join_rate(spec: JoinSpec, layout: Layout) -> float:
    """Return about how many rows a second of both inputs a join bears, each worker on a core of its own."""
    stores, asks = _shares(layout)
    nested = any(choose_access(spec, side).index == "nested" for side in SIDES)
    ask = ASK_NS
    if nested:
        ask += SCAN_NS * max(_rows(spec, side) or 0 for side in SIDES) / (layout.rows if layout.name == "matrix" else 1)
    cell = LOOK_NS + STORE_NS * stores + ask * asks
    head = HEAD_NS + (0 if layout.name == "copies" else MERGE_NS)
    return 1e9 / max(cell, head)


def _shares(layout: Layout) -> tuple[float, float]:
    """Return the part of all rows that a cell stores, and the part that asks it."""
    n = layout.cells
    if layout.name == "copies":
        return 1.0, 1 / n
    if layout.name == "chain":
        return 1 / n, 1.0
    if layout.name == "matrix":
        each = (1 / layout.rows + 1 / layout.columns) / 2
        return each, each
    return 1 / n, 1 / n


def workers_for(node: JoinNode, rate: float) -> int | None:
    """Return about how many workers bear a rate; None if no number does."""
    for workers in range(1, MOST_WORKERS + 1):
        if join_rate(node.spec, layout_of(node, workers)) * BUSY >= rate:
            return workers
    return None


def layout_of(node: JoinNode, workers: int) -> Layout:
    """Return the layout of a join on so many workers; where its sources are paced, for their rates."""
    rates = []
    for before in node.inputs:
        paces = [read.rate for read in reachable([before]) if isinstance(read, ReadNode)]
        rates.append(sum(pace.rows for pace in paces if pace is not None and pace.rows is not None))
        if len(rates) == 1 and len(node.inputs) == 1:
            rates.append(rates[0])
    known = all(rates) and len(rates) == 2
    return choose_layout(node.spec, workers, node.layout, rates=(rates[0], rates[1]) if known else (1.0, 1.0))


def needed_bytes(joins: Sequence[JoinNode], needed: dict[int, set[str]]) -> int:
    """Return how many bytes of shared memory the full windows of these joins need at least."""
    total = 0
    for node in joins:
        for i, side in enumerate(SIDES[: len(node.inputs)]):
            rows = _rows(node.spec, side)
            total += (rows or 0) * sum(_certain_bytes(field.type) for field in _sent(node, i, needed[id(node)]))
    return total


def describe(
    joins: Sequence[JoinNode], needed: dict[int, set[str]], workers: int, cores: Sequence[int], rate: float | None,
    options: Options,
) -> list[str]:  # fmt: skip
    """Return the physical plan as lines."""
    if workers == 1 or not joins:
        return ["processes", "    this one    sources, steps, joins, sinks; any core", *_rates(joins, 1, rate)]
    lines = ["processes"]
    names = ", ".join(node.name for node in joins)
    lines.append("    this one    sources, steps, order of results, sinks; any core")
    lines += [f"    worker {i:<4} core {cores[i % len(cores)]}; cell {i} of {names}" for i in range(workers)]
    if workers > len(cores):
        lines.append(
            f"    {workers} workers share {len(cores)} cores, which is slower than workers={len(cores)} would be"
        )
    lines.append("edges")
    for node in joins:
        sent = {f.name: f for i in range(len(node.inputs)) for f in _sent(node, i, needed[id(node)])}
        width = sum(_bytes(field.type) for field in sent.values())
        lines.append(
            f"    this one → workers    {node.name}: {', '.join(sent) or 'no columns'}, about {width + 16} bytes a row "
            f"written once; at most {STEPS_UNDER_WAY} steps under way"
        )
        out = sum(_bytes(field.type) for field in node.schema if field.name in needed[id(node)])
        lines.append(
            f"    workers → this one    {node.name}: results, about {out + 8} bytes each; at most {CREDIT} slices of "
            f"{options.out_rows:,} rows under way from each"
        )
    lines.append("memory")
    windows = needed_bytes(joins, needed)
    timed = [node.name for node in joins if any(_rows(node.spec, side) is None for side in SIDES)]
    known = f"full windows by rows need at least {_size(windows)}" if windows else "no window by rows"
    unknown = f"; those of {', '.join(timed)} depend on the rate" if timed else ""
    lines.append(
        f"    shared, rows and windows    at most {_size(options.arena_bytes)} (arena_bytes); {known}{unknown}"
    )
    lines.append(f"    shared, results             at most {_size(options.arena_bytes)} of each worker")
    for node in joins:
        layout = layout_of(node, workers)
        stores, _ = _shares(layout)
        rows = [_rows(node.spec, side) for side in SIDES[: len(node.inputs)]]
        if any(count is None for count in rows):
            lines.append(
                f"    in each worker              {node.name}: {INDEX_BYTES} bytes for each row that it stores"
            )
        else:
            size = int(sum(count or 0 for count in rows) * stores * INDEX_BYTES)
            lines.append(f"    in each worker              {node.name}: about {_size(size)} of index")
    return [*lines, *_rates(joins, workers, rate)]


def _rates(joins: Sequence[JoinNode], workers: int, rate: float | None) -> list[str]:
    if not joins:
        return []
    lines = ["rate, about, with a core for each process and two matches a row"]
    for node in joins:
        bears = join_rate(node.spec, layout_of(node, workers)) / 1e6
        line = f"    {node.name}: {bears:.2g} M rows/s of both inputs"
        if rate is not None:
            found = workers_for(node, rate)
            line += (
                f"; {rate:,.0f} rows/s need {found} worker{'s' if found != 1 else ''}"
                if found is not None
                else f"; no number of workers bears {rate:,.0f} rows/s: this process deals them out alone"
            )
        lines.append(line)
    return lines


def check_memory(joins: Sequence[JoinNode], needed: dict[int, set[str]], free: int, options: Options) -> None:
    """Refuse windows that cannot fit the shared memory that a run may use, or that there is."""
    windows = needed_bytes(joins, needed)
    names = ", ".join(node.name for node in joins)
    if windows > options.arena_bytes:
        raise FlowError(
            f"join {names}: full windows need at least {windows:,} bytes of shared memory, and a run may use "
            f"{options.arena_bytes:,}; allow more with dt.Options(arena_bytes=…), make the windows smaller, or run "
            "with workers=1"
        )
    if windows > free:
        raise FlowError(
            f"join {names}: full windows need at least {windows:,} bytes of shared memory, and {free:,} are free; "
            "make /dev/shm larger (mount -o remount,size=…, or --shm-size of a container), make the windows smaller, "
            "or run with workers=1"
        )


def _sent(node: JoinNode, i: int, needed: set[str]) -> list[pa.Field]:
    names = asked_of_input(node, i, needed)
    return [field for field in node.spec.schemas[SIDES[i]] if field.name in names]


def _rows(spec: JoinSpec, side: str) -> int | None:
    return spec.windows[side].rows


def _certain_bytes(kind: pa.DataType) -> int:
    try:
        return kind.bit_width // 8
    except ValueError:
        return 0


def _bytes(kind: pa.DataType) -> int:
    return max(1, _certain_bytes(kind)) if _certain_bytes(kind) else 32


def _size(n: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if n < 1000:
            return f"{n:,.0f} {unit}"
        n /= 1000
    return f"{n:,.1f} GB"
