"""Which columns a flow asks for: sources read, windows keep and joins gather only what ends up somewhere."""

import dovetail as dt
from dovetail import col, left, right
from flows import ALWAYS, Asked, Clock, collected, finish, memory, started

WIDE = {"t": [1, 2, 3], "k": [1, 1, 2], "x": [5, 6, 7], "y": [1, 2, 3], "z": ["a", "b", "c"]}


def test_a_source_is_asked_only_for_the_columns_that_end_up_somewhere():
    source = Asked(WIDE)
    stream = dt.Flow("f").read(source).filter(col("x") > 5).with_columns(s=col("y") + 1, u=col("k") * 2)
    assert collected(stream.select("s")).to_pydict() == {"s": [3, 4]}
    assert source.columns == [["x", "y"]]


def test_a_source_with_time_is_asked_for_its_time_too():
    source = Asked(WIDE)
    collected(dt.Flow("f").read(source, time="t").select("y"))
    assert source.columns == [["t", "y"]]


def test_a_source_of_which_only_the_number_of_rows_counts_is_asked_for_nothing():
    source = Asked(WIDE)
    assert collected(dt.Flow("f").read(source).select(one=dt.lit(1)))["one"].to_pylist() == [1, 1, 1]
    assert source.columns == [[]]


def test_sinks_functions_and_late_rows_show_all_columns():
    for show in (lambda s: s, lambda s: s.map(lambda batch: batch).select("x"), lambda s: s.late):
        source = Asked(WIDE)
        stream = dt.Flow("f").read(source, name="a", time="t")
        collected(show(stream))
        assert source.columns == [list(WIDE)]


def test_a_join_asks_for_its_keys_and_gathers_what_is_shown():
    flow = dt.Flow("f")
    one, other = Asked(WIDE), Asked(WIDE)
    joined = flow.read(one).join(flow.read(other), on=left.x < right.y, window=ALWAYS)
    joined = joined.select("z", "k_right")
    assert "output z, k_right (nothing else is asked for)" not in flow.explain()
    joined.write(dt.collect())
    assert "output z, k_right (nothing else is asked for)" in flow.explain()
    runner = started(flow, Clock())
    driver = next(task.driver for task in runner.graph.tasks if task.node.kind == "join")
    assert driver.schema.names == ["z", "k_right"]
    assert (driver.cell.logs["left"].schema.names, driver.cell.logs["right"].schema.names) == (["z"], ["k"])
    finish(runner)
    assert (one.columns, other.columns) == ([["x", "z"]], [["k", "y"]])


def test_a_union_hands_on_only_what_is_asked_for():
    flow = dt.Flow("f")
    one, other = Asked(WIDE), Asked(WIDE)
    both = flow.read(one, time="t").union(flow.read(other, time="t")).select("z")
    assert collected(both)["z"].to_pylist() == ["a", "a", "b", "b", "c", "c"]
    assert one.columns == other.columns == [["t", "z"]]


def test_a_step_that_no_sink_needs_does_not_run():
    source, flow = Asked(WIDE), dt.Flow("f")
    flow.read(source).map(lambda batch: 1 / 0)
    memory(flow=flow).write(dt.null())
    assert flow.run().rows_in == 3
    assert source.columns == []


def test_two_uses_of_a_source_read_it_once_with_the_columns_of_both():
    source = Asked(WIDE)
    stream = dt.Flow("f").read(source)
    stream.select("x").write(dt.null())
    collected(stream.select("y"))
    assert source.columns == [["x", "y"]]
