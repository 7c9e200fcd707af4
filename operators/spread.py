"""Which layout a join on several workers is given: by what each would cost.

Problem: any predicate can be spread over cells in several ways (layouts.py). The best takes half of the time of the
worst, and which it is depends on the index, the windows, how many workers there are and what this machine is good at.
Idea: what a row of either input costs is a sum. The process that deals out takes some time for each row, and for each
pair whose place among those of other cells it must find. A cell takes some to look at a row and to see whether it is
its own, and then what its index takes to store it and to answer (state/costs.py, measured on this machine). How many
cells store a row, and how many it asks, follows from the layout. Of the layouts that fit memory the cheapest is taken,
on as many cores as there are; `explain()` shows them all. Before there are rows, it is assumed how many a row finds and
a window by time holds; another attempt of a run, and one with another number of workers, goes by what was met.

What comes of it: as a rule `copies`, as results of cells that answer whole tuples need no merging, and storing a row
once more costs less than that. Where copies of the index are too large, what stores each row once: `hash`, `range`.

The engine's own share is measured by `make bench-engine` (`spread`), which shows the model beside what was measured.
Results never depend on the layout.
"""

__all__ = ["INDEX_BYTES", "Kept", "Load", "Price", "best_shape", "choose_layout", "possible", "price", "shares"]

import os
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import FlowError
from ..state.costs import Costs, known
from .access import SIDES, Access, JoinSpec, choose_access
from .choice import ASSUMED_ROWS
from .choice import price as price_of_way
from .layouts import Layout
from .ranges import OTHER

HEAD_NS = 55.0
"""Nanoseconds of the process that deals out, for each row of both inputs."""

MERGE_NS = 32.0
"""And for each pair, where those of several cells interleave."""

LOOK_NS = 15.0
"""Of a cell, for each row of both inputs: to read it, and its keys."""

PICK_NS = 40.0
"""And where a cell keeps, or is asked by, some of them only: to pick these, and to note where their pairs belong."""

GATHER_NS = 20.0
"""For each pair, besides what its index takes: its columns."""

WRITTEN_NS = 20.0
"""For each pair of which the predicate must be decided as it is written, as no test narrows it."""

PAIRS = 2.0
"""Pairs that a row finds, to speak of costs before there are any."""

COPIES_BYTES = 1 << 30
"""Bytes that the copies of an index may take in all, for `layout="auto"`."""

MOST_COPIES = 4
"""Copies, at most, of windows of which nobody knows how many rows they will hold."""

INDEX_BYTES = 24
"""Bytes that a row takes in an index, about."""


@dataclass(frozen=True)
class Load:
    """What a join has to do, as it is assumed before it runs, or as a run has met it.

    `rates` of both inputs, in any unit; `pairs` that a row of either finds; `rows` that the window of each side has
    held, if that was counted.
    """

    rates: tuple[float, float] = (1.0, 1.0)
    pairs: float = PAIRS
    rows: tuple[int | None, int | None] = (None, None)
    met: bool = False

    def window(self, spec: JoinSpec, side: str) -> int | None:
        """Return how many rows the window of a side holds when it is full, as far as anybody knows."""
        declared = spec.windows[side].rows
        return self.rows[SIDES.index(side)] if declared is None else declared


@dataclass(frozen=True)
class Price:
    """What a row of either input costs under a layout, in nanoseconds of the process that deals out and of a cell."""

    layout: Layout
    head: float
    cell: float

    @property
    def busiest(self) -> float:
        """With a core for each process: of the one that has most to do."""
        return max(self.head, self.cell)

    def nanoseconds(self, cores: int) -> float:
        """On so many cores."""
        return max(self.busiest, (self.head + self.layout.cells * self.cell) / cores)


def price(spec: JoinSpec, layout: Layout, costs: Costs | None = None, load: Load = Load()) -> Price:
    """Say what a layout costs; `costs`: this machine's, if no others are given."""
    costs = costs or known()
    kept, pairs = shares(layout), load.pairs
    of_all = {side: rate / sum(load.rates) for side, rate in zip(SIDES, load.rates, strict=True)}
    cell = LOOK_NS
    for side in SIDES:
        access, other = choose_access(spec, side), OTHER[side]
        rows = (load.window(spec, side) or ASSUMED_ROWS) * kept[side].stores
        way = price_of_way(access, costs, rows)
        find = way.find if access.probe else rows * WRITTEN_NS
        cell += of_all[side] * kept[side].stores * way.keep + of_all[other] * kept[other].asks * find
        cell += of_all[other] * pairs / layout.cells * (way.each + GATHER_NS)
    if layout.name == "copies":
        return Price(layout, HEAD_NS, cell)
    return Price(layout, HEAD_NS + pairs * MERGE_NS, cell + PICK_NS)


class Kept(NamedTuple):
    """Of the rows of a side, the part that a cell stores, and the part that asks it."""

    stores: float
    asks: float


def shares(layout: Layout) -> dict[str, Kept]:
    """Return what is a cell's of the rows of each side."""
    n = layout.cells
    if layout.name == "matrix":
        return {"left": Kept(1 / layout.rows, 1 / layout.rows), "right": Kept(1 / layout.columns, 1 / layout.columns)}
    each = {"copies": Kept(1.0, 1 / n), "chain": Kept(1 / n, 1.0)}.get(layout.name, Kept(1 / n, 1 / n))
    return dict.fromkeys(SIDES, each)


def choose_layout(
    spec: JoinSpec, cells: int, name: str = "auto", shape: tuple[int, int] | None = None, load: Load = Load()
) -> Layout:
    """Choose the layout of a join, or make the one of a name; a matrix in the best shape for these rates of rows."""
    if name == "auto":
        cores = len(os.sched_getaffinity(0))
        return min(possible(spec, cells, load), key=lambda each: each.nanoseconds(cores)).layout
    access = [choose_access(spec, side) for side in SIDES]
    if name == "hash" and not all(map(_is_equality, access)):
        raise FlowError(
            f'{spec.name}: layout="hash" needs an equality such as left.x == right.x that the index uses; '
            'use layout="matrix", which serves any predicate'
        )
    if name == "range" and not all(map(_is_range, access)):
        raise FlowError(
            f'{spec.name}: layout="range" needs a range of one key that the index uses; '
            'use layout="matrix", which serves any predicate'
        )
    return _made(spec, cells, name, shape, load, "as asked for")


def _made(spec: JoinSpec, cells: int, name: str, shape: tuple[int, int] | None, load: Load, why: str) -> Layout:
    if name != "matrix":
        return Layout(name, why, cells)
    left, right = (load.window(spec, side) or 1 for side in SIDES)
    rows, columns = shape or best_shape(cells, load.rates, (left, right))
    if rows * columns != cells:
        raise FlowError(f"{spec.name}: a matrix of {rows} × {columns} has {rows * columns} cells, not {cells}")
    return Layout(name, why, cells, rows, columns)


def possible(spec: JoinSpec, cells: int, load: Load = Load()) -> list[Price]:
    """Return the layouts among which `auto` chooses, with what they cost."""
    access = [choose_access(spec, side) for side in SIDES]
    names, why = ["matrix"], "costs least"
    if load.met:
        why += f" as it was met: a row finds {load.pairs:.3g}"
        if None not in load.rows:
            why += f", and windows held {load.rows[0]:,} and {load.rows[1]:,}"
    if all(_is_range(each) and each.probe[0].shape != "comparison" for each in access):  # that asks most of the cells
        names.insert(0, "range")
    if all(map(_is_equality, access)):
        names.insert(0, "hash")
    sides = SIDES[:1] if spec.self_join else SIDES
    windows = [load.window(spec, side) for side in sides]
    size = cells * INDEX_BYTES * sum(rows or 0 for rows in windows)
    if any(spec.windows[side].keeps_everything for side in sides):
        why += "; windows that keep everything are not kept in each worker"
    elif None in windows:
        why += "; nobody knows how large a copy of the windows in each worker would be"
        if cells <= MOST_COPIES:
            names.insert(0, "copies")
    elif size > COPIES_BYTES:
        why += f"; copies of the index in each worker would take {size / 1e6:,.1f} MB"
    else:
        names.insert(0, "copies")
        why += f"; all copies of the index take {size / 1e6:,.1f} MB"
    return [price(spec, _made(spec, cells, name, None, load, why), load=load) for name in names]


def best_shape(cells: int, rates: tuple[float, float], windows: tuple[float, float]) -> tuple[int, int]:
    """Return how many rows (of left groups) and columns (of right groups) a matrix of so many cells should have.

    Every pair of rows is evaluated once, whatever the shape. What depends on it is how often a row is stored and asks:
    a left one in each column, a right one in each row. Of the shapes with the least of that, the one that keeps tuples
    waiting for the shortest time: a left tuple looks through the right rows of its column (windows in rows).

    >>> best_shape(8, (1, 1), (100, 100)), best_shape(8, (1, 1), (100, 200)), best_shape(16, (4, 1), (100, 100))
    ((2, 4), (2, 4), (8, 2))
    """
    (left, right), (left_rows, right_rows) = rates, windows
    shapes = [(rows, cells // rows) for rows in range(1, cells + 1) if cells % rows == 0]
    work = {shape: left * shape[1] + right * shape[0] for shape in shapes}
    waiting = {shape: left * right_rows / shape[1] + right * left_rows / shape[0] for shape in shapes}
    least = min(work.values())
    return min((shape for shape in shapes if work[shape] <= 1.01 * least), key=lambda shape: waiting[shape])


def _is_equality(access: Access) -> bool:
    several = access.index == "nested" or access.boxed
    return not several and bool(access.probe) and access.probe[0].shape == "equality"


def _is_range(access: Access) -> bool:
    several = access.index in ("nested", "hash") or access.boxed
    return not several and len(access.probe) == 1
