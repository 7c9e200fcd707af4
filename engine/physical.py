"""What a flow is made of when it runs on several workers: processes, cores, edges, memory, and what rate they bear.

All of it follows from the plan, before anything is started: `explain(physical=True)` shows it, and `run` refuses what
cannot fit. Sizes of texts are guesses and said to be; a bound that is used to refuse counts only what is certain.

Rates are estimates from what a join costs under a layout (operators/spread.py): good for whether two workers or eight
are needed, not for the last tenth.
"""

__all__ = ["check_memory", "describe", "join_rate", "layout_of", "load_of", "needed_bytes", "workers_for"]

from collections.abc import Sequence

import pyarrow as pa

from ..config import Options
from ..errors import FlowError
from ..operators.access import SIDES, JoinSpec
from ..operators.layouts import Layout
from ..operators.spread import INDEX_BYTES, Load, choose_layout, price, shares
from .cells import STEPS_UNDER_WAY
from .graph import JoinNode, ReadNode, reachable
from .plan import asked_of_input
from .worker import CREDIT

BUSY = 0.8
"""Of a core's time, at most, in an estimate of what is needed."""

MOST_WORKERS = 256
"""Of a run."""


def check_count(flow: str, workers: object) -> None:
    """Raise unless a flow can be given so many workers."""
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise FlowError(f"flow {flow!r}: workers={workers!r}; give a number of processes, at least 1")
    if workers > MOST_WORKERS:
        raise FlowError(f"flow {flow!r}: workers={workers}; a run has {MOST_WORKERS} at most")


def join_rate(spec: JoinSpec, layout: Layout) -> float:
    """Return about how many rows a second of both inputs a join bears, each worker on a core of its own."""
    return 1e9 / price(spec, layout).busiest


def workers_for(node: JoinNode, rate: float) -> int | None:
    """Return about how many workers bear a rate; None if no number does."""
    for workers in range(1, MOST_WORKERS + 1):
        if join_rate(node.spec, layout_of(node, workers)) * BUSY >= rate:
            return workers
    return None


def layout_of(node: JoinNode, workers: int, met: Load | None = None) -> Layout:
    """Return the layout of a join on so many workers; `met`: what it had to do while it ran, if it did."""
    return choose_layout(node.spec, workers, node.layout, load=met or load_of(node))


def load_of(node: JoinNode) -> Load:
    """Return what a join should have to do: by the rates of its sources if they are paced, else at equal ones."""
    rates = []
    for before in node.inputs:
        paces = [read.rate for read in reachable([before]) if isinstance(read, ReadNode)]
        rates.append(sum(pace.rows for pace in paces if pace is not None and pace.rows is not None))
        if len(rates) == 1 and len(node.inputs) == 1:
            rates.append(rates[0])
    return Load((rates[0], rates[1])) if all(rates) and len(rates) == 2 else Load()


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
        kept = shares(layout)
        rows = [_rows(node.spec, side) for side in SIDES[: len(node.inputs)]]
        if any(count is None for count in rows):
            lines.append(
                f"    in each worker              {node.name}: {INDEX_BYTES} bytes for each row that it stores"
            )
        else:
            size = int(sum((count or 0) * kept[side].stores for side, count in zip(SIDES, rows)) * INDEX_BYTES)
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
