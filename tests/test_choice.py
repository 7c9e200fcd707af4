"""Which way of finding rows is taken: what is seen, what it costs, when another one is worth it; that none matters."""

import json
import random

import dovetail as dt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dovetail import left, right
from dovetail.operators import access, choice
from dovetail.operators.choice import FIRST_LOOK, Seen, Watch, expected, look, price, ways
from dovetail.operators.spread import choose_layout
from dovetail.state import costs
from flows import collected
from hypothesis import assume, given
from running import can_be_written, expected_steps, ids, push_arguments, steps, window_join
from streams import cases, examples
from test_layouts import Spread

SCHEMA = pa.schema({"k": pa.int64(), "s": pa.string(), "x": pa.float64(), "y": pa.float64(), "id": pa.int64()})


def spec_of(on, window=None, index="auto", alone=False):
    return dt.WindowJoin(
        SCHEMA, None if alone else SCHEMA, on=on, window=window or dt.last(10_000), index=index
    ).spec  # fmt: skip


def named(found):
    return [way.describe() for way in found]


BAND = (left.x - right.x).abs() <= 0.5


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ([left.k == right.k, BAND], ["carousel left.k", "hash left.k", "carousel left.x", "zone_map left.k, left.x"]),
        ([BAND, left.y < right.y], ["carousel left.x", "carousel left.y", "zone_map left.x, left.y"]),
        (
            [left.k == right.k, left.s == right.s],
            ["hash left.k, left.s", "carousel left.k", "zone_map left.k, left.s"],
        ),
        ([left.x < right.x, left.y > right.y], ["zone_map left.x, left.y", "carousel left.x", "carousel left.y"]),
        (BAND, ["carousel left.x"]),
        (left.k == right.k, ["carousel left.k"]),
        (left.s == right.s, ["hash left.s"]),
        ([left.k == right.k, (left.x < right.x - 1) | (left.x > right.x + 1)], ["carousel left.k"]),
        ([BAND, left.k != right.k], ["carousel left.x"]),
    ],
    ids=str,
)
def test_the_ways_there_are(on, expected):
    assert [how.replace(" index on", "") for how in named(ways(spec_of(on), "left"))] == expected


def test_there_is_no_choice_for_an_index_that_was_asked_for_nor_in_a_small_window():
    on = [left.k == right.k, BAND]
    assert len(ways(spec_of(on, index="hash"), "left")) == 1
    assert named(ways(spec_of(on, dt.last(100)), "left")) == ["scan (nested)"]
    assert named(ways(spec_of(BAND, dt.last(4096)), "left")) == ["carousel index on left.x", "scan (nested)"]


# What is seen


def both_tests(on):
    spec = spec_of(on)
    return spec, spec.predicate.sides["left"].tests


def test_a_look_counts_what_each_test_lets_through_and_all_together():
    """Against a loop, on rows few enough that all are looked at."""
    spec, (first, second) = both_tests([BAND, left.y < right.y])
    rng = np.random.default_rng(1)
    keys = {first: rng.integers(0, 100, 500, np.uint64), second: rng.integers(0, 100, 500, np.uint64)}
    low = rng.integers(0, 100, 30, np.uint64)
    ends = {first: (low, low + np.uint64(20)), second: (np.zeros(30, np.uint64), rng.integers(0, 100, 30, np.uint64))}
    seen = look(keys, ends, 1000, 50, ways(spec, "left"))

    def inside(test, row, probe):
        return ends[test][0][probe] <= keys[test][row] <= ends[test][1][probe]

    for tests in ([first], [second], [first, second]):
        counted = sum(all(inside(t, row, probe) for t in tests) for row in range(500) for probe in range(30))
        assert seen.part(tests) == pytest.approx(counted / 15_000), tests
    assert (seen.rows, seen.newer) == (1000, 50)


def test_what_nothing_passes_is_not_taken_to_be_impossible():
    spec, (first, second) = both_tests([BAND, left.y < right.y])
    keys = dict.fromkeys((first, second), np.full(100, 7, np.uint64))
    nothing = np.ones(10, np.uint64), np.zeros(10, np.uint64)
    whole = np.zeros(10, np.uint64), np.full(10, 9, np.uint64)
    seen = look(keys, {first: nothing, second: whole}, 100, 0, ways(spec, "left"))
    assert seen.part([first]) == 0.5 / 1000 and seen.part([second]) == 1
    assert 0 < seen.part([first, second]) <= 0.5 / 1000


def test_a_test_that_excludes_is_seen_the_other_way_round():
    _, tests = both_tests([left.k == right.k, left.y != right.y, BAND])
    unequal = next(test for test in tests if test.negated)
    keys = {unequal: np.arange(100, dtype=np.uint64)}
    point = np.full(10, 5, np.uint64)
    assert look(keys, {unequal: (point, point)}, 100, 0, []).part([unequal]) == pytest.approx(0.99)


# What it costs, and when it is worth it

COSTS = costs.Costs(
    (1024, 1 << 20),
    keep={"hash": (10, 10), "carousel": (20, 20), "zone_map": (30, 30)},
    find={"hash": (10, 10), "carousel": (40, 40), "zone_map": (100, 300)},
    pair={"hash": (5, 25), "carousel": (5, 5), "zone_map": (4, 4)},
    check=(2, 4),
)


def test_a_price_is_for_storing_asking_and_each_row_that_is_found():
    found = ways(spec_of([left.k == right.k, BAND]), "left")
    priced = [price(way, COSTS, 1024) for way in found[1:]]
    assert [(round(way.fixed), round(way.each)) for way in priced] == [(20, 7), (60, 7), (130, 4)]
    hashed = next(way for way in found if way.index == "hash")
    assert price(hashed, COSTS, 1 << 20, found=10).nanoseconds == pytest.approx(20 + 10 * (25 + 4))
    # Several equalities share a hash, so that each is checked again.
    several = ways(spec_of([left.k == right.k, left.s == right.s]), "left")
    assert price(several[0], COSTS, 1024).each == pytest.approx(5 + 2 * 2)


def watch_of(on=(left.k == right.k, BAND)):
    found = [way for way in ways(spec_of(list(on)), "left") if way.describe() != "carousel index on left.k"]
    assert [way.index for way in found] == ["hash", "carousel", "zone_map"]
    tests = {way.index: way.probe for way in found}
    return Watch([found], COSTS), tests


def seen_of(tests, equal, band, rows=1024):
    parts = {tests["hash"][0]: equal, tests["carousel"][0]: band}
    return Seen(rows, 0, parts, {frozenset(tests["zone_map"]): equal * band})


def test_the_rule_stands_until_another_way_costs_much_less():
    watch, tests = watch_of()
    assert not watch.due(FIRST_LOOK - 1) and watch.due(FIRST_LOOK)
    # 20 + 6.5 × 7 is less than 1.1 times 60 + 7 × 0.1.
    assert not watch.looked(300, [seen_of(tests, 6.5 / 1024, 0.1 / 1024)])
    assert watch.now == 0 and not watch.taken
    assert watch.looked(600, [seen_of(tests, 20 / 1024, 0.1 / 1024)])
    assert watch.ways[0][watch.now].index == "carousel" and list(watch.taken) == [(600, 1)]
    # And on to the one of both keys, and back.
    assert not watch.looked(1200, [seen_of(tests, 20 / 1024, 12 / 1024)])
    assert watch.looked(2400, [seen_of(tests, 0.1, 0.1)]) and watch.ways[0][watch.now].index == "zone_map"
    assert watch.looked(4800, [seen_of(tests, 1 / 1024, 0.1)]) and watch.ways[0][watch.now].index == "hash"


def test_only_the_last_changes_are_remembered():
    watch, tests = watch_of()
    seen = {"hash": seen_of(tests, 1 / 1024, 0.1), "carousel": seen_of(tests, 0.5, 0.1 / 1024)}
    for at in range(20):
        assert watch.looked(1000 + at, [seen["carousel" if at % 2 == 0 else "hash"]])
    assert watch.changes == 20 and [row for row, _ in watch.taken] == [1016, 1017, 1018, 1019]


def test_looks_come_after_as_many_rows_again_and_at_most_a_window_apart(monkeypatch):
    monkeypatch.setattr(choice, "SELDOM", 1000)
    watch, tests = watch_of()
    at = []
    for rows in range(0, 10_000, 100):
        if watch.due(rows):
            at.append(rows)
            watch.looked(rows, [seen_of(tests, 0, 0, rows=2000)])
    assert at == [300, 600, 1200, 2400, 4400, 6400, 8400]


def test_an_index_finds_newer_rows_as_well_and_a_scan_does_not():
    scan = {"keep": (1, 1), "find": (50, 5000), "pair": (5, 5)}
    tables = ({**getattr(COSTS, what), "nested": each} for what, each in scan.items())
    costs_too = costs.Costs(COSTS.rows, *tables, COSTS.check)
    carousel, nested = ways(spec_of(BAND, dt.last(1024)), "left")
    seen = Seen(1024, 1024, {carousel.probe[0]: 0.1}, {})
    assert expected(carousel, costs_too, seen).rows == 2 * expected(nested, costs_too, seen).rows
    assert expected(nested, costs_too, seen).fixed == pytest.approx(1 + 50 / 2)  # one test of two
    watch = Watch([[carousel, nested]], costs_too)
    assert watch.looked(5000, [seen]) and watch.now == 1


def test_sides_that_share_an_index_go_together():
    """The sum of both decides."""
    watch, tests = watch_of()
    both = Watch([watch.ways[0], watch.ways[0]], COSTS)
    assert not both.looked(300, [seen_of(tests, 20 / 1024, 0.1 / 1024), seen_of(tests, 0, 200 / 1024)])
    assert both.looked(600, [seen_of(tests, 20 / 1024, 0.1 / 1024), seen_of(tests, 20 / 1024, 0.1 / 1024)])


# The machine's costs


def test_costs_are_measured_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = []

    def measure():
        measured.append(1)
        return costs.Costs(
            costs._ROWS, *(dict.fromkeys(costs.MEASURED, (1.0, 2.0, 3.0)) for _ in range(3)), check=(1.0, 1.0, 1.0)
        )  # fmt: skip

    monkeypatch.setattr(costs, "measured", measure)
    again = costs.known.__wrapped__
    first = again()
    assert again() == first and len(measured) == 1
    [path] = (tmp_path / "dovetail").iterdir()
    assert json.loads(path.read_text())["rows"] == list(costs._ROWS)
    whole = path.read_text()
    changes = (("hash", "tree"), ("2.0", "0.0"), ("3.0", "NaN"), ('"check": [', '"check": [7.0, '))
    broken = ["", "{}", "[1]", "5", '{"rows": 1, "keep": 5}', whole[:-20], *(whole.replace(*each) for each in changes)]
    for text in broken:
        path.write_text(text)
        assert again() == first, text
    assert len(measured) == 1 + len(broken)


def test_a_user_without_a_home_has_costs_too(monkeypatch):
    def nowhere(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(costs.Path, "expanduser", nowhere)
    assert set(costs.known.__wrapped__().keep) == set(costs.MEASURED)


def test_without_a_folder_costs_are_measured_by_each_process(tmp_path, monkeypatch):
    (tmp_path / "dovetail").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert set(costs.known.__wrapped__().keep) == set(costs.MEASURED)


def test_measured_costs_are_numbers_that_can_be_compared():
    found = costs.measured()
    for table in (found.keep, found.find, found.pair):
        assert all(0 < each < 1e7 for name in costs.MEASURED for each in table[name])
    assert all(0 < each < 1e5 for each in found.check)


# That no choice matters


class _Anyhow:
    """Goes another way at every look, and looks at every step."""

    def __init__(self, monkeypatch, seed):
        self.rng, self.went = random.Random(seed), 0
        monkeypatch.setattr(access, "TINY_WINDOW", 0)
        monkeypatch.setattr(choice, "FIRST_LOOK", 1)

        def looked(watch, rows, seen):
            watch.next, watch.now = rows, self.rng.randrange(len(watch.ways[0]))
            watch.taken.append((rows, watch.now))
            watch.changes += 1
            self.went += 1
            return True

        monkeypatch.setattr(Watch, "looked", looked)


@examples(1)
@given(case=cases())
def test_results_do_not_depend_on_the_way_nor_on_changing_it(case):
    assume(can_be_written(case))
    with pytest.MonkeyPatch.context() as monkeypatch:
        _Anyhow(monkeypatch, case.seed)
        join, cut = window_join(case), steps(case)
        found = []
        for step in cut:
            found.append(ids(join.push(**push_arguments(case, step))))
            join._driver.check()
        assert found == expected_steps(case, cut)


@examples(0.3)
@given(case=cases())
def test_nor_on_it_in_any_layout(case):
    assume(can_be_written(case))
    with pytest.MonkeyPatch.context() as monkeypatch:
        _Anyhow(monkeypatch, case.seed)
        cut = steps(case)
        expected = expected_steps(case, cut)
        rng, spec = case.rng("layout"), window_join(case).spec
        for name in ("hash", "range", "matrix", "chain", "copies"):
            try:
                layout = choose_layout(spec, 3, name)
            except dt.FlowError:
                continue
            join = window_join(case)
            join._driver = Spread(spec, layout, rng, moves=rng.random() < 0.5)
            assert [ids(join.push(**push_arguments(case, step))) for step in cut] == expected, layout


def table(seed, rows, groups, nulls=0.05):
    rng = np.random.default_rng(seed)
    return pa.table({
        "k": pa.array(rng.integers(0, groups, rows), mask=rng.random(rows) < nulls),
        "s": pa.array([f"s{each}" for each in rng.integers(0, 3, rows)]),
        "x": rng.random(rows).round(4), "y": rng.random(rows), "id": np.arange(rows), "t": np.arange(rows) // 3,
    })  # fmt: skip


def flow_of(on, index="auto", layout="auto", alone=False, rows=6000):
    flow = dt.Flow("choosing")
    one, two = (
        flow.read(dt.memory(table(seed, rows, 4), batch_rows=500), name=f"s{seed}", time="t") for seed in (1, 2)
    )
    join = one.join(one if alone else two, on=on, window=dt.last(2000), index=index, layout=layout, name="j")
    return flow, join.select("id", "id_right")


CASES = {
    "a text and a narrow band": [left.s == right.s, (left.x - right.x).abs() <= 0.0005],
    "a band and an inequality": [(left.x - right.x).abs() <= 0.4, left.y < right.y - 0.98],
    "two bands": [(left.x - right.x).abs() <= 0.3, (left.y - right.y).abs() <= 0.001],
    "two keys": [left.k == right.k, left.s == right.s, left.x < right.x - 0.99],
    "and another that excludes": [left.k == right.k, (left.x - right.x).abs() <= 0.0005, left.y != right.y],
}


@pytest.mark.parametrize("alone", [False, True], ids=["two streams", "itself"])
@pytest.mark.parametrize("case", CASES)
def test_a_join_leaves_the_rule_where_the_data_say_so(case, alone):
    """And finds what a scan finds."""
    _, expected = flow_of(CASES[case], index="nested", alone=alone)
    flow, pairs = flow_of(CASES[case], alone=alone)
    found = collected(pairs)
    assert found == collected(expected) and found.num_rows
    told = flow.run().steps["j"].found_by
    assert all("from row" in told[side] for side in ("left", "right")), told


@pytest.mark.parametrize("layout", ["auto", "matrix", "chain", "range"])
def test_workers_choose_too(layout):
    on = CASES["a band and an inequality"]
    _, expected = flow_of(on)
    flow, pairs = flow_of(on, layout=layout)
    rows = []
    pairs.write(dt.call(lambda batch: rows.extend(batch.to_pylist())))
    result = flow.run(workers=2)
    assert rows == collected(expected).to_pylist()
    assert "from row" in result.steps["j"].found_by["left"]
    assert "join j: left rows were found by carousel index on left.x, from row" in str(result)


def test_a_step_that_would_find_far_too_much_is_looked_at_before_it_asks():
    """The first step of all may be the whole stream."""
    one, two = (table(seed, 4000, 1, nulls=0).to_batches()[0] for seed in (1, 2))
    on = [left.k == right.k, (left.x - right.x).abs() <= 0.001]
    join = dt.WindowJoin(one.schema, two.schema, on=on, window=dt.last(5000))
    join.push(one, two)
    assert join._driver.cell.changes == 2


def test_a_run_that_goes_on_from_a_checkpoint_chooses_again(tmp_path):
    failed = []

    def fails_once(batch):
        if not failed and batch.num_rows and batch.column("id")[0].as_py() > 4000:
            failed.append(1)
            raise ValueError("once")
        return batch

    on = CASES["a text and a narrow band"]
    _, expected = flow_of(on)
    flow, pairs = flow_of(on)
    pairs.map(fails_once, schema=pairs.schema).write(dt.parquet(str(tmp_path / "out")))
    told = flow.run(checkpoint=tmp_path / "state", every="0s").steps["j"].found_by
    assert failed and "from row" in told["left"]
    assert pq.read_table(tmp_path / "out").equals(collected(expected))
