"""Running a drawn case through the library, and comparing what comes out with the oracle.

A result is compared twice: as a list of (left id, right id), which says everything about order and
windows, and cell by cell with the input rows, which says that the payload rode along unchanged. Cells of
floats are compared by their `repr`: NaN equals NaN, and 0.0 is not -0.0.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise, product
from operator import itemgetter
from random import Random

import dovetail as dt
import oracle
import pyarrow as pa
from hypothesis import assume
from predicates import Column, Compare, sides
from streams import Case, Side, said_duration

INDEXES = ("auto", "nested", "hash", "carousel", "zone_map")
OTHERS = tuple(sorted(set(dt.state.names()) - set(INDEXES)))  # of the papers: one is drawn for each case
Steps = list[tuple[list[dict], list[dict]]]
Pairs = list[tuple[int, int]]


# What is expected


def ids_of(pairs: Iterable[oracle.Pair]) -> Pairs:
    return [(pair.left.row["id"], pair.right.row["id"]) for pair in pairs]


def expected_steps(case: Case, steps: Steps) -> list[Pairs]:
    """The pairs of each step, by the oracle."""
    if case.right is None:
        rows = [case.left.meanings(left) for left, _ in steps]
        out = oracle.push_itself(rows, case.left.clock, case.windows, case.holds)
    else:
        rows = [(case.left.meanings(left), case.right.meanings(right)) for left, right in steps]
        out = oracle.push(rows, (case.left.clock, case.right.clock), case.windows, case.holds)
    return [ids_of(pairs) for pairs in out]


def read(side: Side):
    """A source as the oracle reads it, with the side's delay: (events, late rows)."""
    return oracle.read(side.meanings(), side.clock, side.delay * side.tick)


def expected_flow(case: Case) -> Pairs:
    """The pairs of a whole run with times, by the oracle."""
    left, _ = read(case.left)
    if case.right is None:
        return ids_of(oracle.self_join(left, case.windows, case.holds))
    return ids_of(oracle.join(left, read(case.right)[0], case.windows, case.holds))


# Steps and batches


def in_one_step(case: Case) -> Steps:
    return [(case.left.rows, case.right.rows if case.right else [])]


def steps(case: Case, most: int = 6) -> Steps:
    """Some way to push a case in steps without a row that comes too late; some steps are empty.

    With times the merged order is cut anywhere, also between equal times; a step's rows keep the order
    in which they arrived, so they are out of order within the step.
    """
    rng, right = case.rng("steps"), case.right.rows if case.right else []
    n = rng.randint(1, most)
    if not case.timed:
        return list(zip(_pieces(rng, case.left.rows, n), _pieces(rng, right, n), strict=True))
    out = []
    for piece in _pieces(rng, merged(case), n):
        arrived = sorted(piece, key=itemgetter(0, 1))
        out.append(tuple([row for number, _, row in arrived if number == side] for side in (0, 1)))
    return out


def merged(case: Case) -> list[tuple[int, int, dict]]:
    """All rows in the total order: (side, position, row)."""
    order = []
    for number, side in enumerate(case.both):
        order += [(side.clock.time(side.meanings([row])[0]), number, at, row) for at, row in enumerate(side.rows)]
    return [item[1:] for item in sorted(order, key=itemgetter(0, 1, 2))]


def _pieces(rng: Random, items: Sequence, n: int) -> list[list]:
    at = [0, *sorted(rng.randint(0, len(items)) for _ in range(n - 1)), len(items)]
    return [list(items[a:b]) for a, b in pairwise(at)]


def batches(case: Case, side: Side, most: int = 5) -> list[pa.RecordBatch]:
    """Cut a stream into batches, empty ones too: either slices of one batch, or batches of their own."""
    rng = case.rng(f"batches of {side.rows[:1]}")
    pieces = _pieces(rng, side.rows, rng.randint(1, most))
    if rng.random() < 0.5:
        return [side.batch(piece) for piece in pieces]
    whole, out, at = side.batch(), [], 0
    for piece in pieces:
        out.append(whole.slice(at, len(piece)))
        at += len(piece)
    return out


# Running


def window_join(case: Case, index: str = "auto", **options) -> dt.WindowJoin:
    return dt.WindowJoin(
        case.left.schema,
        None if case.right is None else case.right.schema,
        on=case.said_on(dt),
        window=case.said_window(dt),
        index=index,
        left_time=case.left.time,
        right_time=None if case.right is None else case.right.time,
        **options,
    )


def push_arguments(case: Case, step: tuple[list[dict], list[dict]]) -> dict[str, pa.RecordBatch]:
    """A step as `push` takes it: a side without rows is now left out, now an empty batch."""
    out = {}
    for name, side, rows in zip(("left", "right"), case.both, step):
        if rows or side.rows:
            out[name] = side.batch(rows)
    return out


def joins(case: Case, **options) -> dict[str, dt.WindowJoin]:
    """One join for each index that the predicate can use; asserts that the obvious ones can be had."""
    assume(can_be_written(case))
    out = {}
    for index in (*INDEXES, str(case.rng("other index").choice(OTHERS))):
        try:
            out[index] = window_join(case, index, **options)
        except dt.PredicateError:
            assert not must_allow(case, index), f"index={index!r} was refused"
    return out


def can_be_written(case: Case) -> bool:
    """Whether the predicate is accepted; one that is refused because it can never hold must never hold."""
    try:
        window_join(case, "nested")
    except dt.PredicateError as error:
        refused = str(error)
    else:
        return True
    assert "can never hold" in refused
    a, b = (side.meanings() for side in (case.left, case.both[-1]))
    ways = [sum(way, ()) for way in product(*(condition.ways() for condition in case.on))]
    held = [any(all(c.holds(left, right) for c in way) for left in a for right in b) for way in ways]
    assert not all(held), f"refused, and yet each way in which it can hold does: {refused}"
    return False


def must_allow(case: Case, index: str) -> bool:
    """Whether the index can be had beyond doubt: one of the conditions is left column, sign, right column."""
    if index in ("auto", "nested"):
        return True
    signs = ("==",) if index == "hash" else ("<", "<=", ">", ">=", "==")
    for condition in case.on:
        if isinstance(condition, Compare) and condition.sign in signs:
            operands = condition.a, condition.b
            if all(isinstance(operand, Column) for operand in operands) and sides(condition.a) != sides(condition.b):
                kinds = [(case.left if e.side == "left" else case.both[-1]).columns[e.name] for e in operands]
                if kinds[0].type == kinds[1].type and (index == "hash" or kinds[0].ordered):
                    return True
    return False


def flowed(case: Case, left: list[pa.RecordBatch], right: list[pa.RecordBatch] | None, **options):
    """Run a case as a Flow: (the results, the late rows' ids of each source)."""
    flow = dt.Flow("matrix")
    streams, late = [], []
    for name, side, cut in zip(("a", "b"), case.both, (left, right)):
        stream = flow.read(dt.memory(cut), name=name, **read_options(side))
        streams.append(stream)
        if case.timed:
            late.append(dt.collect())
            stream.late.write(late[-1])
    out = dt.collect()
    streams[0].join(streams[-1], on=case.said_on(dt), window=case.said_window(dt), **options).write(out)
    flow.run()
    return out.table(), [sink.table().column("id").to_pylist() for sink in late]


def read_options(side: Side) -> dict:
    if side.time is None:
        return {}
    if side.columns[side.time].tick is None:
        return {"time": side.time, "delay": int(side.delay)}
    return {"time": side.time, "delay": said_duration(Fraction(side.delay * side.tick))}


# Comparing


def ids(out: pa.RecordBatch | pa.Table) -> Pairs:
    return list(zip(out.column("id").to_pylist(), out.column("id_right").to_pylist(), strict=True))


def cells(column: pa.Array | pa.ChunkedArray) -> list:
    """A column's values such that equal means identical, whatever their range."""
    if isinstance(column, pa.ChunkedArray):
        return [cell for chunk in column.chunks for cell in cells(chunk)]
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        return [None if value is None else repr(value) for value in column.to_pylist()]
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_temporal(column.type):
        column = column.view(pa.int64())
    return column.to_pylist()


def value_type(kind: pa.DataType) -> pa.DataType:
    """A dictionary's type, but for the width of its indices."""
    return pa.dictionary(pa.int32(), kind.value_type) if pa.types.is_dictionary(kind) else kind


def check_schema(case: Case, schema: pa.Schema) -> None:
    left, right = case.left, case.both[-1]
    assert schema.names == [*left.columns, *(f"{name}_right" for name in right.columns)]
    types = [kind.type for side in (left, right) for kind in side.columns.values()]
    assert [value_type(t) for t in schema.types] == [value_type(t) for t in types]


def check_payload(case: Case, out: pa.RecordBatch | pa.Table) -> None:
    """Every cell of every result is the cell of the row that its id names."""
    check_schema(case, out.schema)
    for side, suffix in ((case.left, ""), (case.both[-1], "_right")):
        at = {row["id"]: n for n, row in enumerate(side.rows)}
        take = pa.array([at[i] for i in out.column(f"id{suffix}").to_pylist()], pa.int64())
        whole = side.batch()
        for name in side.columns:
            column = whole.column(name)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            assert cells(out.column(f"{name}{suffix}")) == cells(column.take(take)), f"{name}{suffix}"
