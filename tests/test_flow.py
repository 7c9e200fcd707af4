"""Flows as they are written: what is refused, where, and in which words; what is allowed is run to show it."""

import datetime
from decimal import Decimal

import dovetail as dt
import numpy as np
import pyarrow as pa
import pytest
from dovetail import col, left, right
from flows import ALWAYS, ANY, Asked, collected, memory, raises, stamps, timed


def test_reading_what_is_no_source():
    flow = dt.Flow("f")
    with raises(dt.FlowError, "read: 'trips/' is not a source; write dt.parquet('trips/') @here"):
        flow.read("trips/")
    with raises(dt.FlowError, "read 'a': 5 is not a source @here"):
        flow.read(5, name="a")


def test_a_source_with_two_columns_of_one_name():
    doubled = Asked({"x": [1]}, pa.schema([("x", pa.int64()), ("x", pa.int64())]))
    with raises(dt.SchemaError, "read 'a': the source has two columns named 'x'; rename one"):
        dt.Flow("f").read(doubled, name="a")


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"time": "tt"}, dt.SchemaError, "read 'a': there is no column 'tt' for the time; did you mean 't'"),
        ({"time": "s"}, dt.SchemaError, "column 's' is string; a time is a timestamp, a date or an integer"),
        ({"delay": 5}, dt.FlowError, "read 'a': delay=5 means nothing without time=…"),
        ({"max_ahead": 5}, dt.FlowError, "read 'a': max_ahead=5 means nothing without time=…"),
        ({"idle": "5s"}, dt.FlowError, "read 'a': idle='5s' means nothing without time=…"),
        ({"time": "t", "delay": "5s"}, dt.WindowError, "read 'a': delay: '5s' beside an integer time column"),
        ({"time": "t", "delay": -1}, dt.WindowError, "read 'a': delay: -1 is negative"),
        ({"time": "t", "max_ahead": True}, dt.WindowError, "read 'a': max_ahead: True beside an integer"),
        ({"time": "at", "delay": 5}, dt.WindowError, "read 'a': delay: 5 is not a duration"),
        ({"time": "at", "delay": "5 parsecs"}, dt.WindowError, "delay: '5 parsecs' is not a duration; write a number"),
        ({"time": "t", "idle": "soon"}, dt.WindowError, "read 'a': idle: 'soon' is not a duration"),
        ({"time": "t", "idle": 5}, dt.WindowError, "read 'a': idle: 5 is not a duration"),
        ({"time": "t", "idle": "0s"}, dt.FlowError, "read 'a': idle='0s' must be longer than nothing"),
        ({"rate": "fast"}, dt.FlowError, "rate='fast' is not a pace; write 10_000 for rows a second, or \"2x\""),
        ({"rate": 0}, dt.FlowError, "rate=0 is not a pace"),
        ({"rate": True}, dt.FlowError, "rate=True is not a pace"),
        ({"rate": 10**400}, dt.FlowError, "0 is not a pace"),
        ({"rate": float("inf")}, dt.FlowError, "rate=inf is not a pace"),
        ({"rate": float("nan")}, dt.FlowError, "rate=nan is not a pace"),
        ({"rate": "0x", "time": "at"}, dt.FlowError, "rate='0x' is not a pace"),
        ({"rate": "2x"}, dt.FlowError, "read 'a': rate='2x' needs a timestamp as time=…; give rows a second"),
        ({"rate": "2x", "time": "t"}, dt.FlowError, "read 'a': rate='2x' needs a timestamp as time=…"),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, dict) else "",
)
def test_options_of_a_source_that_cannot_be(options, kind, text):
    data = {"t": [1], "s": ["x"], "at": pa.array([1], pa.timestamp("s"))}
    with raises(kind, text):
        dt.Flow("f").read(dt.memory(data), name="a", **options)


@pytest.mark.parametrize("delay", [datetime.timedelta(seconds=-5), np.timedelta64(-5, "s")])
@pytest.mark.parametrize("option", ["delay", "max_ahead"])
def test_a_negative_length_of_time_is_refused(option, delay):
    with raises(dt.FlowError, "negative"):
        stamps(**{option: delay})


@pytest.mark.parametrize(("kind", "delay"), [(pa.int64(), 2**70), (pa.timestamp("ns"), "100000w")])
def test_with_a_delay_longer_than_all_times_nothing_is_late(kind, delay):
    stream = memory({"t": pa.array([5, 3, 9, 1], kind)}, time="t", delay=delay)
    assert collected(stream)["t"].cast(pa.int64()).to_pylist() == [1, 3, 5, 9]


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 65, 5, "a/b"])
def test_names_that_cannot_be(name):
    text = f"{name!r} is not a name; use up to 64 letters, digits, '.', '_' and '-', a letter or digit first"
    with raises(dt.FlowError, f"Flow: {text}"):
        dt.Flow(name)
    with raises(dt.FlowError, f"filter: {text}"):
        memory().filter(col("x") > 1, name=name)


def test_two_steps_of_one_name():
    stream = dt.Flow("f").read(dt.memory({"x": [1]}), name="a")
    with raises(dt.FlowError, "select 'a': there is a step of this name already @here"):
        stream.select("x", name="a")


def test_steps_without_a_name_are_numbered():
    stream = memory(name="filter-1")
    assert [stream.filter(col("x") > 1).name, stream.filter(col("x") > 2).name] == ["filter-2", "filter-3"]


def refused():
    """Steps that cannot be: (what to write on a stream `s` with columns t and x, error, text)."""
    return {
        "filter of nothing known": (
            lambda s: s.filter(col("y") > 1, name="w"), dt.SchemaError, "filter 'w': there is no column 'y'; there"),
        "filter by a text": (
            lambda s: s.filter("x > 3", name="w"), dt.FlowError,
            "filter 'w': 'x > 3' is not a predicate; write dt.col(\"x\") > 3 @here"),
        "filter by a number": (
            lambda s: s.filter(col("x") + 1, name="w"), dt.PredicateError, "filter 'w': `x + 1` is not a comparison"),
        "filter on a side": (lambda s: s.filter(left.x > 1), dt.PredicateError, "does not belong here"),
        "select of an unknown column": (
            lambda s: s.select("xx", name="w"), dt.SchemaError,
            "select 'w': there is no column 'xx'; did you mean 'x'? There are: t, x"),
        "select twice": (lambda s: s.select("x", col("x")), dt.SchemaError, "column 'x' is named twice"),
        "select of nothing": (lambda s: s.select(), dt.FlowError, "select 'select-1': name at least one column @here"),
        "select by number": (
            lambda s: s.select(5), dt.FlowError, "select 'select-1': 5 is not a column's name; compute one as new=…"),
        "select of an unnamed expression": (
            lambda s: s.select(col("x") + 1), dt.FlowError, "is not a column's name; compute one as new=… @here"),
        "a value that is no expression": (
            lambda s: s.with_columns(y=5, name="w"), dt.FlowError,
            "with_columns 'w': y=5 is not an expression; write dt.col(\"x\") + 1 or dt.lit(1)"),
        "with_columns of nothing": (
            lambda s: s.with_columns(name="w"), dt.FlowError, "with_columns 'w': name at least one column, as in"),
        "with_columns of an unknown column": (
            lambda s: s.with_columns(y=col("z") + 1, name="w"), dt.SchemaError, "with_columns 'w': there is no column"),
        "map by a text": (lambda s: s.map("f", name="w"), dt.FlowError, "map 'w': 'f' is not a function @here"),
        "map to no schema": (
            lambda s: s.map(len, schema={"x": 1}, name="w"), dt.FlowError,
            "map 'w': schema={'x': 1} is not a pyarrow.Schema @here"),
        "map to two columns of one name": (
            lambda s: s.map(lambda b: pa.record_batch([b["x"], b["x"]], ["x", "x"]), name="w"), dt.SchemaError,
            "map 'w': the result has two columns named 'x'; rename one @here"),
        "finer than nanoseconds": (
            lambda s: s.select(y=col("x").cast(pa.duration("ns")) * Decimal("1.5"), name="w"), dt.PredicateError,
            "select 'w': column 'y': `x.cast(\"duration[ns]\") * Decimal('1.5')` is finer than nanoseconds, which"),
        "a cast to a dictionary": (
            lambda s: s.select(y=col("x").cast(pa.dictionary(pa.int32(), pa.int64())), name="w"), dt.PredicateError,
            "an integer cannot be cast to dictionary<values=int64"),
        "union with nothing": (
            lambda s: s.union(name="w"), dt.FlowError, "union 'w': give at least one other stream @here"),
        "union with no stream": (
            lambda s: s.union(5, name="w"), dt.FlowError, "union 'w': 5 is not a stream; read it first, with flow"),
        "join with no stream": (
            lambda s: s.join("b", on=ANY, window=ALWAYS), dt.FlowError, "join 'join-1': 'b' is not a stream; read it"),
        "how": (
            lambda s: s.join(s, on=left.x < right.x, window=ALWAYS, how="left", name="w"), dt.UnsupportedError,
            "join 'w': how='left' is not in this version; use how=\"inner\""),
        "layout": (
            lambda s: s.join(s, on=left.x < right.x, window=ALWAYS, layout="hash", name="w"), dt.FlowError,
            "join 'w': layout=\"hash\" needs an equality such as left.x == right.x that the index uses; use "
            "layout=\"matrix\", which serves any predicate"),
        "no such layout": (
            lambda s: s.join(s, on=left.x < right.x, window=ALWAYS, layout="matrx", name="w"), dt.FlowError,
            "join 'w': there is no layout 'matrx'; did you mean 'matrix'?"),
        "join on nothing": (lambda s: s.join(s, window=ALWAYS), dt.PredicateError, "a join needs on=…, such as"),
        "join without a window": (
            lambda s: s.join(s, on=left.x < right.x), dt.FlowError, "a join needs window=…, as streams have no end"),
        "a window that is none": (
            lambda s: s.join(s, on=left.x < right.x, window=5), dt.FlowError, "window=5 is not a window; write dt."),
        "an index that is none": (
            lambda s: s.join(s, on=left.x < right.x, window=ALWAYS, index="tree"), dt.FlowError,
            "there is no index 'tree'; there are: auto, "),
        "late of a step": (
            lambda s: s.select("x", name="w").late, dt.FlowError,
            ".late of select 'w': it is not a source; take it from the stream that flow.read(time=…) returns"),
        "late without time": (
            lambda s: s.late, dt.FlowError, ".late of read 'a': it has no time column, so nothing is late"),
        "writing to no sink": (
            lambda s: s.write("out/", name="w"), dt.FlowError,
            "write 'w': 'out/' is not a sink; write dt.parquet(…), dt.show() or dt.collect() @here"),
    }  # fmt: skip


@pytest.mark.parametrize("case", refused())
def test_steps_that_cannot_be_are_refused_where_they_are_written(case):
    write, kind, text = refused()[case]
    with raises(kind, text):
        write(memory(name="a"))


def test_a_flow_that_writes_nothing_has_nothing_to_run():
    with raises(dt.FlowError, "flow 'f' writes nothing, so there is nothing to run; add .write(dt.show())"):
        memory()._flow.run()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fresh": True}, "flow 'f': fresh=True means nothing without checkpoint=…"),
        ({"workers": 0}, "flow 'f': workers=0; give a number of processes, at least 1"),
        ({"workers": True}, "flow 'f': workers=True; give a number of processes, at least 1"),
        ({"workers": 257}, "flow 'f': workers=257; a run has 256 at most"),
        ({"workers": "2"}, "flow 'f': workers='2'; give a number of processes, at least 1"),
    ],
)
def test_what_this_version_does_not_do_is_said_before_the_start(options, text):
    source = Asked({"x": [1]})
    flow = dt.Flow("f")
    flow.read(source).write(dt.null())
    with raises(dt.FlowError, text):
        flow.run(**options)
    assert source.columns == []


def union_with(data, other, **options):
    flow = dt.Flow("f")
    return memory(data, flow, "a").union(memory(other, flow, "b", **options), name="u")


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"x": [1]}, "union 'u': 'b' has no column 'y', which 'a' has; select the same columns of both"),
        ({"x": [1], "y": [1]}, "union 'u': column 'y' is string in 'a' and int64 in 'b'; cast one of them"),
        ({"x": [1], "y": ["a"], "z": [1]}, "union 'u': 'a' has no column 'z', which 'b' has; select the same"),
        ({"y": ["a"], "x": [1]}, "'a' and 'b' have the same columns in another order; use .select(['x', 'y'])"),
    ],
)
def test_a_union_of_different_schemas_says_how_they_differ(other, text):
    with raises(dt.SchemaError, text):
        union_with({"x": [1], "y": ["a"]}, other)


def test_a_union_does_not_blame_the_order_of_columns_for_their_nulls():
    strict = pa.table({"x": [1]}, schema=pa.schema([pa.field("x", pa.int64(), nullable=False)]))
    assert collected(union_with({"x": [1]}, strict))["x"].to_pylist() == [1, 1]


def test_a_union_of_a_stream_with_time_and_one_without():
    with raises(dt.SchemaError, "union 'u': one stream has a time column and another has none; read all with time=…"):
        union_with({"t": [1]}, {"t": [1]}, time="t")


def test_streams_of_two_flows_do_not_meet():
    here, there = memory(name="a"), memory(flow=dt.Flow("g"), name="b")
    text = "the streams belong to two flows, 'f' and 'g'"
    with raises(dt.FlowError, f"join 'j': {text}"):
        here.join(there, on=left.x < right.x, window=ALWAYS, name="j")
    with raises(dt.FlowError, f"union 'u': {text}"):
        here.union(there, name="u")


def test_one_side_with_time_and_the_other_without():
    stream = timed(name="a")
    other = memory(flow=stream._flow, name="b")
    with raises(dt.SchemaError, "join 'j': the right side has no time column and the other has one"):
        stream.join(other, on=left.x < right.x, window=ALWAYS, name="j")


def test_behind_an_unordered_join_nothing_that_needs_order_may_stand():
    stream = memory(name="a")
    loose = stream.join(stream, on=left.x < right.x, window=ALWAYS, ordered=False, name="loose")
    loose = loose.filter(col("x") > 1, name="still")
    text = "filter 'still' comes from a join with ordered=False, whose results have no order to go by; leave ordered"
    with raises(dt.FlowError, f"join 'j': {text}"):
        loose.join(stream, on=left.x < right.x, window=ALWAYS, name="j")
    with raises(dt.FlowError, f"join 'k': {text}"):
        stream.join(loose, on=left.x < right.x, window=ALWAYS, name="k")
    with raises(dt.FlowError, f"union 'u': {text}"):
        loose.union(loose, name="u")
    assert collected(loose.map(lambda batch: batch)).num_rows > 0


def test_a_sink_is_written_once():
    stream = memory()
    out = stream.write(dt.collect())
    text = "write 'write-2': this collect is written already, by write 'write-1'; make another one @here"
    with raises(dt.FlowError, text):
        stream.select("x").write(out)


def test_a_folder_is_not_read_and_written_by_one_flow(tmp_path):
    folder = parts(tmp_path / "out")
    stream = dt.Flow("f").read(dt.parquet(folder), name="a")
    with raises(dt.FlowError, f"write 'w': {f'{folder}/.'!r} is also what read 'a' reads; write somewhere else"):
        stream.write(dt.parquet(f"{folder}/.", overwrite=True), name="w")


def parts(folder):
    """A folder that a flow wrote."""
    flow = dt.Flow("before")
    memory(flow=flow).write(dt.parquet(str(folder)))
    flow.run()
    return str(folder)


def test_a_folder_that_a_flow_writes_is_not_read_by_it_either(tmp_path):
    folder = parts(tmp_path / "out")
    flow = dt.Flow("f")
    memory(flow=flow).write(dt.parquet(folder, overwrite=True))
    with raises(dt.FlowError, folder):
        flow.read(dt.parquet(folder), name="b")


@pytest.mark.parametrize("what", ["*.parquet", "part-000000-0000.parquet"])
def test_files_of_a_folder_are_not_read_by_the_flow_that_writes_it(what, tmp_path):
    folder = parts(tmp_path / "out")
    stream = dt.Flow("f").read(dt.parquet(f"{folder}/{what}"), name="a")
    with raises(dt.FlowError, "read 'a'"):
        stream.write(dt.parquet(folder, overwrite=True))


@pytest.mark.parametrize("way", ["*/out/*.parquet", "all/*/*.parquet", "**/*.parquet", "all/link"])
def test_a_folder_is_known_by_whatever_way_it_is_reached(way, tmp_path):
    """Else `overwrite` would remove what was about to be read."""
    folder = parts(tmp_path / "all" / "out")
    (tmp_path / "all" / "link").symlink_to(folder)
    stream = dt.Flow("f").read(dt.parquet(tmp_path / way), name="a")
    with raises(dt.FlowError, f"{folder!r} is also what read 'a' reads; write somewhere else"):
        stream.write(dt.parquet(folder, overwrite=True))
    stream = memory()
    stream.write(dt.parquet(str(tmp_path / "all" / "link"), overwrite=True))
    with raises(dt.FlowError, "is written already, by write 'write-1'"):
        stream.write(dt.parquet(folder, overwrite=True))


def test_a_folder_that_cannot_be_written_is_found_where_it_is_written(tmp_path):
    folder = parts(tmp_path / "out")
    with raises(dt.FlowError, "pass overwrite=True or another folder"):
        memory().write(dt.parquet(folder))


def test_behind_a_map_whose_schema_only_data_tell_nothing_but_write_can_follow():
    def fn(batch):
        assert batch.num_rows
        return batch

    mapped = memory(name="a").map(fn, name="m")
    text = "map 'm' has no schema until its first result, since its function cannot answer for an empty batch; only"
    for follow in (
        lambda: mapped.schema,
        lambda: mapped.filter(col("x") > 1),
        lambda: mapped.select("x"),
        lambda: mapped.with_columns(y=col("x") + 1),
        lambda: mapped.map(fn),
        lambda: mapped.union(mapped),
        lambda: mapped.join(mapped, on=left.x < right.x, window=ALWAYS),
    ):
        with raises(dt.SchemaError, text):
            follow()
    assert collected(mapped)["x"].to_pylist() == [10, 20, 30]


def test_the_late_rows_of_a_source_are_one_stream():
    stream = timed(name="a")
    assert stream.late.name == stream.late.name == "a.late"
    assert len(stream._flow._nodes) == 2


def test_the_late_rows_of_a_source_are_never_those_of_another_step():
    stream = timed(name="a")
    other = memory(flow=stream._flow, name="a.late")
    text = f".late of read 'a' is named 'a.late', as another step is ({other._node.where}); rename that one"
    with raises(dt.FlowError, text):
        stream.late


def test_a_stream_and_a_flow_name_themselves():
    stream = memory(name="a")
    assert repr(stream) == "<Stream 'a': t int64, x int64>"
    assert repr(stream._flow) == "Flow('f', 1 steps)"
