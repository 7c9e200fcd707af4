"""Layouts: each pair is found by one cell, whatever the layout, also while splitters move."""

import itertools
import random
import re
from collections import deque

import dovetail as dt
import numpy as np
import pyarrow as pa
import pytest
from dovetail import left, right
from dovetail.engine.parallel import CellMachine, Head, Slice
from dovetail.engine.worker import CREDIT
from dovetail.errors import FlowError
from dovetail.operators import spread
from dovetail.operators.access import SIDES, output_fields
from dovetail.operators.layouts import PARTS, Balance, Layout, fitted_pieces
from dovetail.operators.numbering import NO_TIMES, Step
from dovetail.operators.spread import Load, choose_layout, price
from dovetail.state.costs import Costs
from hypothesis import given
from hypothesis import strategies as st
from running import expected_steps, ids, push_arguments, steps, window_join
from streams import cases, examples


class Spread:
    """A join on several cells in this process, in place of a `JoinDriver`: messages are handed over in any order."""

    def __init__(self, spec, layout, rng, moves=False):
        columns = [field.name for _, _, field in output_fields(spec)]
        self.spec, self.rng, self.moves = spec, rng, moves
        self.machines = [CellMachine(spec, columns, 3, layout, i) for i in range(layout.cells)]
        self.schema = self.machines[0].cell.schema
        self.head = Head(spec, self.schema, 4, layout, credit=10)
        self.out_rows = 3

    def step(self, one, two=None):
        sides = {"left": one, "right": one if self.spec.self_join else (two or Step((), NO_TIMES))}
        if self.moves and self.head.layout.name == "range":
            self.head.pieces = {side: self.any_pieces() for side in SIDES}
        self.head.matches = self.rng.choice([0, 1, 9, 200])  # what is expected decides in how many turns cells answer
        message = self.head.deal(sides, -(2**70))
        answers = deque(machine.handle(message) for machine in self.machines)
        numbers = deque(range(len(self.machines)))
        while answers:
            turn = self.rng.randint(0, len(answers))
            answers.rotate(turn)
            numbers.rotate(turn)
            answer = next(answers[0], None)
            if answer is None:
                answers.popleft()
                numbers.popleft()
            else:
                self.head.take(numbers[0], answer)
                yield from ((data, times) for data, times, _ in self.head.results())
        for machine in self.machines:
            machine.cell.check()
        assert self.head.idle

    def any_pieces(self):
        keys = np.array(
            [self.rng.choice([2**63, 2**63 + 1, 2**63 + 5]) + self.rng.randint(-9, 9) for _ in range(20)], np.uint64
        )
        return fitted_pieces(keys, len(self.machines))


def layouts_of(spec, cells):
    for name in ("hash", "range", "matrix", "chain", "copies"):
        try:
            yield choose_layout(spec, cells, name)
        except FlowError:
            assert name in ("hash", "range")
    if cells == 4:
        yield Layout("matrix", "", 4, 1, 4)
        yield Layout("matrix", "", 4, 4, 1)


@pytest.mark.parametrize("cells", [2, 3, 4])
@examples(0.2)
@given(case=cases())
def test_any_layout_finds_what_one_cell_finds(cells, case):
    cut = steps(case)
    expected = expected_steps(case, cut)
    rng = case.rng("layout")
    for index in ("auto", "bplus", "nested", "po_join", "zone_map"):
        try:
            spec = window_join(case, index=index).spec
        except dt.PredicateError:
            continue
        for layout in layouts_of(spec, cells):
            join = window_join(case, index=index)
            join._driver = Spread(spec, layout, rng, moves=rng.random() < 0.5)
            assert [ids(join.push(**push_arguments(case, step))) for step in cut] == expected, (index, layout)


def test_cells_do_not_stand_still_while_another_answers_its_half():
    """A cell may have eight slices under way. In one turn its half waited for the whole of the half before it."""
    schema = pa.schema([("t", pa.int64()), ("x", pa.int64()), ("id", pa.int64())])
    on, window = left.x == right.x, dt.last(100)
    spec = dt.WindowJoin(schema, schema, on=on, window=window, left_time="t", right_time="t").spec
    layout = Layout("copies", "", 2)
    cells = [CellMachine(spec, ["id", "id_right"], 10, layout, number) for number in range(2)]
    head = Head(spec, cells[0].cell.schema, 10, layout, credit=1)
    turns, waited = [], []
    for at in range(0, 400, 100):
        rows = Step([pa.record_batch({"t": range(at, at + 100), "x": [7] * 100, "id": range(at, at + 100)})],
                    np.arange(at, at + 100))  # fmt: skip
        message = head.deal({"left": rows, "right": rows}, at)
        turns.append(message.turns)
        answers, under_way, slices = [cell.handle(message) for cell in cells], [0, 0], [0, 0]
        going, rounds = {0, 1}, 0
        while going:
            rounds += 1
            for number in sorted(going):
                if under_way[number] >= CREDIT:
                    continue
                piece = next(answers[number], None)
                going -= {number} if piece is None else set()
                if piece is not None:
                    head.take(number, piece)
                if isinstance(piece, Slice):
                    under_way[number] += 1
                    slices[number] += 1
            list(head.results())
            under_way = [before - gone for before, gone in zip(under_way, head.collector.handed_on(), strict=True)]
        waited.append(rounds / max(slices))
    assert turns[0] == 1 and min(turns[1:]) > 20
    assert max(waited[2:]) < 1.1 < 1.3 < waited[0]


def whose(pieces, key, row):
    """The cells that keep a row."""
    return [
        i for i, mine in enumerate(pieces) for p in mine if p.low <= key <= p.high and p.begin <= row % PARTS < p.end
    ]


@examples(1)
@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 7, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1), min_size=1, max_size=60),
    st.integers(1, 9),
)
def test_every_row_has_one_cell(keys, cells):
    pieces = fitted_pieces(np.array(keys, np.uint64), cells)
    assert len(pieces) == cells
    looked = {0, 2**64 - 1, *keys, *(k + 1 for k in keys if k < 2**64 - 1), *(k - 1 for k in keys if k)}
    for key, row in itertools.product(looked, range(70)):
        assert len(whose(pieces, key, row)) == 1, (key, row, pieces)


@pytest.mark.parametrize("cells", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", ["uniform", "gaussian", "zipf 1.5", "one key", "two keys"])
def test_fitted_pieces_share_the_rows_evenly(kind, cells):
    rng = np.random.default_rng(3)
    keys = {
        "uniform": rng.integers(0, 2**62, 4000),
        "gaussian": (rng.normal(0.5, 0.1, 4000) * 2**62).astype(np.int64),
        "zipf 1.5": np.minimum(rng.zipf(1.5, 4000), 2**60),
        "one key": np.full(4000, 9),
        "two keys": rng.integers(5, 7, 4000),
    }[kind].astype(np.uint64)
    pieces = fitted_pieces(keys, cells)
    loads = np.zeros(cells)
    for row, key in enumerate(keys.tolist()):
        loads[whose(pieces, key, row)[0]] += 1
    assert loads.max() <= 1.3 * loads.mean(), loads


def test_splitters_follow_drifting_keys():
    """The load of the fuller cell settles near the mean, and does not swing."""
    rng, balance, pieces = np.random.default_rng(1), Balance(2, memory=4000), None
    worst = []
    for step in range(240):
        keys = ((rng.normal(0.2 + step / 400, 0.05, 1000)) * 2**60).astype(np.uint64)
        loads = np.zeros(2, np.int64)
        for i, mine in enumerate(pieces or fitted_pieces(np.array([2**63], np.uint64), 2)):
            loads[i] = sum(int(((keys >= p.low) & (keys <= p.high)).sum()) * (p.end - p.begin) // PARTS for p in mine)
        worst.append(loads.max() / loads.mean())
        found = balance.observe(loads, {"left": keys[::16], "right": keys[::16]})
        pieces = found["left"] if found else pieces
    assert balance.moves > 3
    assert np.mean(worst[10:]) < 1.3, worst


def spec_of(on, window=dt.last(1000), index="auto"):  # noqa: B008 - it is immutable
    schema = pa.schema([("k", pa.int64()), ("x", pa.float64())])
    times = {"left_time": "k", "right_time": "k"} if window.is_time else {}
    return dt.WindowJoin(schema, schema, on=on, window=window, index=index, **times).spec


def test_the_layouts_that_cost_least(monkeypatch):
    monkeypatch.setattr(spread, "known", lambda: costs_of(20.0))
    same = left.k == right.k
    assert choose_layout(spec_of(same), 3).describe() == "copies on 3 cells"
    assert choose_layout(spec_of(same, dt.last(10_000_000)), 3).describe() == "hash on 3 cells"
    assert choose_layout(spec_of((left.x - right.x).abs() <= 1), 2).describe() == "copies on 2 cells"
    large = spec_of((left.x - right.x).abs() <= 1, dt.last(10_000_000))
    assert choose_layout(large, 2).describe() == "copies on 2 cells"
    assert choose_layout(large, 3).describe() == "range on 3 cells"
    timed = spec_of((left.x - right.x).abs() <= 1, dt.last(time=5))
    assert choose_layout(timed, 4).describe() == "copies on 4 cells"
    assert choose_layout(timed, 5).describe() == "range on 5 cells"
    assert choose_layout(spec_of(left.x < right.x), 6).describe() == "copies on 6 cells"
    for on in (left.x < right.x, left.x != right.x):
        assert choose_layout(spec_of(on, dt.last(10_000_000)), 6).describe() == "matrix 2 × 3 on 6 cells"
    assert choose_layout(spec_of(same, dt.last(None)), 2).describe() == "hash on 2 cells"
    several = [left.x < right.x, left.k > right.k]
    assert choose_layout(spec_of(several), 4).describe() == "copies on 4 cells"
    assert choose_layout(spec_of(several, dt.last(10_000_000)), 4).describe() == "matrix 2 × 2 on 4 cells"
    assert choose_layout(spec_of((left.x - right.x).abs() <= 1), 4, "chain").describe() == "chain on 4 cells"


def costs_of(keep):
    names = ("hash", "carousel", "zone_map", "nested")
    level = {name: dict.fromkeys(names, (ns,)) for name, ns in (("keep", keep), ("find", 50.0), ("pair", 10.0))}
    return Costs((1 << 30,), **level, check=(1.0,))


def test_what_a_layout_costs_follows_from_what_its_cells_do(monkeypatch):
    spec = spec_of(left.k == right.k)
    copies, hashed = (price(spec, Layout(name, "", 4), costs_of(100.0), Load(pairs=8)) for name in ("copies", "hash"))
    assert copies.cell == pytest.approx(spread.LOOK_NS + 100 + 50 / 4 + 8 / 4 * (10 + spread.GATHER_NS))
    assert hashed.cell == pytest.approx(copies.cell - 100 + 100 / 4 + spread.PICK_NS)
    assert hashed.head - copies.head == 8 * spread.MERGE_NS
    matrix = price(spec, Layout("matrix", "", 4, 2, 2), costs_of(100.0), Load(pairs=0))
    assert matrix.cell == pytest.approx(spread.LOOK_NS + spread.PICK_NS + 100 / 2 + 50 / 2)
    assert copies.busiest == copies.nanoseconds(5) == copies.cell
    assert copies.nanoseconds(2) == (copies.head + 4 * copies.cell) / 2
    # Where storing is dear, it is not done several times.
    for keep, chosen in ((20.0, "copies"), (2000.0, "hash")):
        monkeypatch.setattr(spread, "known", lambda keep=keep: costs_of(keep))
        assert choose_layout(spec, 4).describe() == f"{chosen} on 4 cells"


def test_what_a_run_has_met_corrects_what_was_assumed(monkeypatch):
    monkeypatch.setattr(spread, "known", lambda: costs_of(20.0))
    timed = spec_of((left.x - right.x).abs() <= 1, dt.last(time=5))
    assert choose_layout(timed, 5).describe() == "range on 5 cells"  # copies may be too large
    small, large = (Load(pairs=2.5, rows=(n, n), met=True) for n in (50_000, 50_000_000))
    found = choose_layout(timed, 5, load=small)
    assert found.describe() == "copies on 5 cells"
    assert found.why == (
        "costs least as it was met: a row finds 2.5, and windows held 50,000 and 50,000; all copies of the index take "
        "12.0 MB"
    )
    assert choose_layout(timed, 4).describe() == "copies on 4 cells"
    assert choose_layout(timed, 4, load=large).describe() == "range on 4 cells"
    # Rows of a window that are declared are more than those that were there when somebody looked.
    assert choose_layout(spec_of(left.x < right.x, dt.last(10_000_000)), 6, load=small).name == "matrix"
    # Pairs are merged where cells interleave, which is dear where there are many.
    monkeypatch.setattr(spread, "known", lambda: costs_of(400.0))
    same = spec_of(left.k == right.k)
    for pairs, chosen in ((0.1, "hash"), (50.0, "copies")):
        assert choose_layout(same, 4, load=Load(pairs=pairs, met=True)).name == chosen
    # As much comes of one side as of the other, unless somebody has counted.
    shapes = [choose_layout(timed, 6, "matrix", load=load).describe() for load in (Load(), Load((8, 1), met=True))]
    assert shapes == ["matrix 2 × 3 on 6 cells", "matrix 6 × 1 on 6 cells"]


def test_the_plan_shows_what_each_layout_costs(monkeypatch):
    monkeypatch.setattr(spread, "known", lambda: costs_of(20.0))
    flow = dt.Flow("f")
    one, two = (flow.read(dt.memory({"t": [1], "x": [1]}), name=name, time="t") for name in ("a", "b"))
    one.join(two, on=left.x == right.x, window=dt.last(1000), name="j").write(dt.null())
    said = str(flow.explain(workers=2))
    assert "spread copies on 2 cells: costs least; all copies of the index take 0.1 MB" in said
    costs = [float(found) for found in re.findall(r" on 2 cells +([\d,]+)$", said, re.M)]
    assert len(costs) == 4 and min(costs) == costs[0] > 0


def test_a_matrix_takes_the_shape_that_its_paced_sources_ask_for():
    flow = dt.Flow("f")
    fast, slow = (
        flow.read(dt.memory({"t": [1], "x": [1]}), name=name, time="t", rate=rate)
        for name, rate in (("fast", 9000), ("slow", 1000))
    )
    for name, one, two in (("one", fast, slow), ("two", slow, fast)):
        one.join(two, on=left.x < right.x, window=dt.last(5), layout="matrix", name=name).write(dt.null())
    said = str(flow.explain(workers=9))
    assert "spread matrix 9 × 1 on 9 cells" in said
    spec = flow._sinks()[0].inputs[0].spec
    one, two = (price(spec, Layout("matrix", "", 9, m, 9 // m), costs_of(99.0), Load((9, 1))) for m in (9, 1))
    stores = {"one": 0.9 / 9 + 0.1, "two": 0.9 + 0.1 / 9}  # of all rows, and as many ask
    assert two.cell - one.cell == pytest.approx((stores["two"] - stores["one"]) * (99.0 + 50.0 / 2))
    # A scan of a window that is larger than any that was measured takes as much longer; one without a test, for ever.
    large, any_pair = (
        price(spec_of(on, dt.last(1 << 32), "nested"), Layout("copies", "", 1), costs_of(1.0), Load(pairs=0)).cell
        for on in (left.x < right.x, left.x * right.x > 1)
    )
    assert large == pytest.approx(spread.LOOK_NS + 1 + 4 * 50 / 2)
    assert any_pair == pytest.approx(spread.LOOK_NS + 1 + 2**32 * spread.WRITTEN_NS)
    assert "spread matrix 1 × 9 on 9 cells" in said


def test_a_layout_that_cannot_be_says_why():
    with pytest.raises(FlowError, match='layout="hash" needs an equality.*layout="matrix"'):
        choose_layout(spec_of(left.x < right.x), 2, "hash")
    with pytest.raises(FlowError, match='layout="range" needs a range of one key'):
        choose_layout(spec_of([left.x < right.x, left.k > right.k]), 2, "range")
    with pytest.raises(FlowError, match="2 × 2 has 4 cells, not 3"):
        choose_layout(spec_of(left.x < right.x), 3, "matrix", (2, 2))


def test_infinities_in_a_float_band_are_values_in_every_layout():
    """What of a band is unsure is computed after the ranges, by a cell that has computed only a part of those."""
    schema = pa.schema([("y", pa.float64())])
    on = (left.y - right.y).abs() <= float("inf")
    values = [float("inf"), -float("inf"), 0.0, float("inf"), 1e308, -1e308]
    batch = pa.record_batch({"y": values}, schema=schema)
    join = dt.WindowJoin(schema, schema, on=on, window=dt.last(9))
    expected = join.push(left=batch, right=batch)
    for layout in layouts_of(join.spec, 3):
        join = dt.WindowJoin(schema, schema, on=on, window=dt.last(9))
        join._driver = Spread(join.spec, layout, random.Random(1))
        assert join.push(left=batch, right=batch).equals(expected), layout
