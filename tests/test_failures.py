"""What goes wrong while a flow runs: the error names the step and has its cause, and everything is closed."""

import dovetail as dt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dovetail import col, left, right
from flows import ALWAYS, Asked, Clock, Epochs, Feed, collected, memory, raises, started, timed


class Broken:
    """A sink that fails in one of its calls."""

    transactional = False

    def __init__(self, at, error):
        self.at, self.error = at, error

    def describe(self):
        return "broken"

    def check(self, schema):
        pass

    def writer(self, schema, lineage):
        return self

    def _maybe(self, call):
        if call == self.at:
            raise self.error

    def stage(self, batch, epoch, part):
        self._maybe("stage")

    def commit(self, epoch):
        self._maybe("commit")

    def abort(self):
        self._maybe("abort")

    def close(self):
        self._maybe("close")


HALF = pa.table({"t": [1, 2], "x": [0.5, 2.0]})

LARGE = pa.table({"t": [1, 2], "x": [2**62, 2**62]})


def failing():
    """Streams that fail while they run: (stream, error, text)."""

    def later(*schemas):
        """A function that returns other columns for each batch."""
        made = iter(schemas)
        return lambda batch: 1 / 0 if batch.num_rows == 0 else pa.record_batch(dict.fromkeys(next(made), batch["x"]))

    two_batches = {"batch_rows": 1}
    return {
        "a sum that does not fit": (
            memory(LARGE).with_columns(y=col("x") + col("x"), name="w"), dt.DataError,
            "with_columns 'w': column 'y', `x + x`: 9223372036854775808 does not fit int64"),
        "an unsigned sum that does not fit": (
            memory(pa.table({"x": pa.array([2**64 - 1], pa.uint64())})).select(y=col("x") + 1, name="w"), dt.DataError,
            "select 'w': column 'y', `x + 1`: 18446744073709551616 does not fit uint64"),
        "a decimal that does not fit": (
            memory(pa.table({"x": pa.array([10**9], pa.decimal128(18, 2))})).select(y=col("x") * col("x"), name="w"),
            dt.DataError, "does not fit decimal128(18, 4)"),
        "a cast of a fraction": (
            memory(HALF).with_columns(y=col("x").cast("int64"), name="w"), dt.DataError,
            "with_columns 'w': `x.cast(\"int64\")`: 0.5 is not a whole number; round it when it is read"),
        "a cast past the type": (
            memory(LARGE).filter(col("x").cast("int32") > 5, name="w"), dt.DataError,
            'filter \'w\': `x.cast("int32")`: 4611686018427387904 does not fit'),
        "a cast in a join": (
            (s := memory(LARGE)).join(s, on=left.x.cast("int32") < right.x, window=ALWAYS, name="w"), dt.DataError,
            "join 'w': `left.x.cast(\"int32\")`:"),
        "a function that raises": (
            memory(name="a").map(lambda batch: 1 // 0, pa.schema([]), name="w"), dt.UserFunctionError,
            "raised ZeroDivisionError: integer division or modulo by zero"),
        "a function that returns something else": (
            memory().map(lambda batch: batch.to_pydict(), name="w"), dt.UserFunctionError,
            "returned a dict; return a pyarrow.RecordBatch"),
        "another type": (
            memory().map(lambda batch: batch, pa.schema([("t", pa.int64()), ("x", pa.int8())]), name="w"),
            dt.UserFunctionError, "returned column 'x' as int64 where int8 was expected; return the same schema each"),
        "two columns of one name": (
            memory().map(lambda batch: pa.record_batch([batch["x"].slice(0, 3 // batch.num_rows)] * 2, ["x"] * 2),
                         name="w"), dt.UserFunctionError, "returned two columns named 'x'; rename one"),
        "a missing column": (
            memory(**two_batches).map(later(["t", "x"], ["t"]), name="w"), dt.UserFunctionError,
            "returned column 'x' as nothing where int64 was expected"),
        "one column more": (
            memory(**two_batches).map(later(["x"], ["x", "y"]), name="w"), dt.UserFunctionError,
            "returned a column 'y' that was not there before; return the same schema each time, or pass schema=…"),
        "fewer rows without the time": (
            timed().map(lambda batch: batch.slice(1).select(["x"]), name="w"), dt.UserFunctionError,
            "returned 2 rows for 3 without the time column"),
        "fewer rows in another order": (
            timed().map(lambda batch: batch.take(pa.array([2, 0])), pa.schema(memory().schema), name="w"),
            dt.UserFunctionError,
            "returned 2 rows for 3, whose times in 't' are out of order; keep the order of the rows"),
        "more rows with a time of their own": (
            timed().map(lambda batch: pa.record_batch({"t": [0, 1, 2, 3], "x": [0] * 4}), name="w"),
            dt.UserFunctionError, "returned 4 rows for 3, whose times in 't' are out of order"),
        "more rows past the time of the last": (
            timed().map(lambda batch: pa.record_batch({"t": [1, 2, 3, 4], "x": [0] * 4}), name="w"),
            dt.UserFunctionError, "returned 4 rows for 3, whose times in 't' are out of order"),
        "a time that is null": (
            memory({"t": [1, None]}, name="w", time="t"), dt.TimeError,
            "source 'w', time column 't': the time of row 1 is null"),
        "a time that runs away": (
            timed(name="w", max_ahead=0), dt.TimeError, "source 'w', time column 't': row 1 has the time 2, further"),
        "a source that raises": (
            dt.Flow("f").read(Feed([[1], lambda: 1 // 0]), name="w"), dt.UserFunctionError, "read 'w': Feed.read ("),
    }  # fmt: skip


@pytest.mark.parametrize("case", failing())
def test_what_only_data_show_is_an_error_that_names_the_step(case):
    stream, kind, text = failing()[case]
    out = stream.write(dt.collect())
    with raises(kind, text) as caught:
        stream._flow.run()
    assert "'w'" in str(caught.value)
    assert caught.value.__notes__ == ["The output of flow 'f' is incomplete; files that were written are whole."]
    with raises(dt.DovetailError, "collect: "):
        out.table()


def test_fewer_rows_without_the_time_say_which_column_that_is():
    stream = timed().map(lambda batch: batch.slice(1).select(["x"]), name="m")
    with raises(dt.UserFunctionError, "returned 2 rows for 3 without the time column 't', so that nothing tells"):
        collected(stream)


@pytest.mark.parametrize("where", ["map", "source", "unnamed"])
def test_what_a_function_raised_is_the_cause(where):
    def fail(*_):
        raise ZeroDivisionError("by hand")

    flow = dt.Flow("f")
    if where == "map":
        stream = memory(flow=flow).map(fail, pa.schema([]))
    else:
        stream = flow.read(Feed([fail]), name="Feed" if where == "source" else None)
    with pytest.raises(dt.UserFunctionError) as caught:
        collected(stream)
    chain, error = [], caught.value
    while error is not None and len(chain) < 9:
        chain.append(type(error))
        error = error.__cause__
    assert chain[-1] is ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (pa.ArrowInvalid("no such cast"), "write 'out': ArrowInvalid: no such cast"),
        (MemoryError("too much"), "write 'out': MemoryError: too much"),
        (OverflowError("too long"), "write 'out': OverflowError: too long"),
        (dt.SinkError("disk full"), "write 'out': disk full"),
    ],
)
def test_errors_below_a_step_are_told_as_its_own(error, text):
    stream = memory()
    stream.write(Broken("stage", error), name="out")
    with raises(dt.DovetailError, text) as caught:
        stream._flow.run()
    assert error in (caught.value, caught.value.__cause__)
    assert caught.value.__notes__


@pytest.mark.parametrize("at", ["commit", "close"])
def test_a_sink_that_cannot_finish_is_an_error_of_the_run(at):
    stream = memory()
    stream.write(Broken(at, dt.SinkError("disk full")), name="out")
    with raises(dt.SinkError, "write 'out': disk full"):
        stream._flow.run()


def test_every_sink_that_cannot_be_closed_is_told():
    stream = memory()
    for name in ("a", "b"):
        stream.write(Broken("close", dt.SinkError(f"{name} is stuck")), name=name)
    with raises(dt.SinkError, "write 'a': a is stuck") as caught:
        stream._flow.run()
    assert caught.value.__notes__ == [
        "While closing, after that: write 'b': b is stuck", "The output of flow 'f' may be incomplete."
    ]  # fmt: skip


@pytest.mark.parametrize("at", ["abort", "close"])
def test_an_error_while_closing_does_not_hide_the_one_before(at):
    stream = memory().map(lambda batch: 1 // 0, pa.schema([]), name="m")
    stream.write(Broken(at, dt.SinkError("disk full")), name="out")
    with pytest.raises(dt.DovetailError) as caught:
        stream._flow.run()
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "ZeroDivisionError" in told
    assert "incomplete" in told


def test_everything_is_closed_when_something_cannot_be_opened():
    closed = []

    class Opened(Asked):
        def reader(self, columns):
            reader = super().reader(columns)
            inner, reader.close = reader.close, lambda: (closed.append("source"), inner())
            return reader

    class Shut(Broken):
        def writer(self, schema, lineage):
            raise dt.SinkError("no room")

    flow, log = dt.Flow("f"), []
    flow.read(Opened({"x": [1]}), name="a").write(Epochs(log))
    memory(flow=flow, name="b").write(Shut("", None), name="out")
    with raises(dt.SinkError, "write 'out': no room") as caught:
        flow.run()
    assert (closed, log) == (["source"], ["abort", "close"])
    assert caught.value.__notes__


def test_after_a_failure_files_are_whole_and_hold_what_was_committed(tmp_path):
    folder = str(tmp_path / "out")
    clock = Clock()
    flow = dt.Flow("f")
    stream = flow.read(Feed([[1], [2], [3], lambda: 1 // 0]), name="a")
    out = stream.write(dt.collect())
    stream.write(dt.parquet(folder))
    runner = started(flow, clock, every=1)
    for _ in range(2):
        clock.pass_by(1)
        runner.round()
    runner.round()
    with raises(dt.UserFunctionError, "ZeroDivisionError"):
        runner.round()
    runner.close(failed=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [
        path.name for path in sorted((tmp_path / "out").glob("part-*.parquet"))
    ]
    assert sorted(pq.read_table(folder)["t"].to_pylist()) == [1, 2]
    with raises(dt.DovetailError, "the 2 rows that were committed before are in .table(partial=True)"):
        out.table()
    assert out.table(partial=True)["t"].to_pylist() == [1, 2]
