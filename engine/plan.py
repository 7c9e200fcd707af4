"""What the run of a flow needs to know beyond its graph: which columns are asked for, and who waits for whom.

Columns are asked for from the sinks backwards: a step asks its input for what it reads itself and what it must hand
on. So a source reads, a window keeps and a join gathers only what ends up somewhere.
"""

__all__ = ["asked_of_input", "needed_columns", "source_groups"]

from collections.abc import Sequence

from ..operators.access import output_fields
from ..operators.binding import Bound
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


def needed_columns(sinks: Sequence[WriteNode]) -> dict[int, set[str]]:
    """Return, by the id of each node that runs, the columns that leave it and are used.

    Where rows themselves are shown (sinks, a function of the user's), that is all of them.
    """
    nodes = reachable(list(sinks))
    needed: dict[int, set[str]] = {id(node): set() for node in nodes}
    for node in reversed(nodes):
        mine = needed[id(node)]
        if isinstance(node, ReadNode) and node.time is not None:
            mine.add(node.time)
        for i, before in enumerate(node.inputs):
            needed[id(before)] |= asked_of_input(node, i, mine)
    return needed


def asked_of_input(node: Node, i: int, mine: set[str]) -> set[str]:
    """Return the columns of its input i that a step reads or hands on, when these of its own are asked for."""
    if isinstance(node, FilterNode):
        return mine | {name for _, name in node.predicate.columns()}
    if isinstance(node, ComputeNode):
        return {
            name
            for key, made in node.columns.items()
            if key in mine
            for name in ([made] if isinstance(made, str) else [c for _, c in made.columns()])
        }
    if isinstance(node, UnionNode):
        return mine
    if isinstance(node, JoinNode):
        asked: set[str] = set()
        for side in ("left", "right") if node.spec.self_join else (("left", "right")[i],):
            asked |= node.spec.predicate.columns(side)
            asked |= {column for s, column, field in output_fields(node.spec) if s == side and field.name in mine}
        return asked
    if isinstance(node, WindowNode):
        made = [each for name, each in node.made.items() if name in mine]
        computed = {name for each in made if isinstance(each.of, Bound) for _, name in each.of.columns()}
        plain = {each.of for each in made if isinstance(each.of, str)}
        return {*node.keys, *computed, *plain, *(name for each in made for name in each.aggregate.columns)}
    assert isinstance(node, WriteNode | MapNode | LateNode | ProcessNode), node
    return set(node.inputs[0].schema.names)


def source_groups(sinks: Sequence[WriteNode]) -> list[list[ReadNode]]:
    """Group the sources that can hold each other back: those whose rows meet in a join or a union."""
    nodes = reachable(list(sinks))
    reads = [node for node in nodes if isinstance(node, ReadNode)]
    group = {id(read): i for i, read in enumerate(reads)}
    for node in nodes:
        if not isinstance(node, JoinNode | UnionNode):
            continue
        met = {group[id(before)] for before in reachable(list(node.inputs)) if isinstance(before, ReadNode)}
        for read, number in group.items():
            if number in met:
                group[read] = min(met)
    return [[r for r in reads if group[id(r)] == g] for g in sorted(set(group.values()))]
