"""Sinks: nothing is seen before its commit, nothing half, nothing twice, and nobody's files are deleted."""

import datetime
import io
import os
import pickle
import re
import subprocess
import sys
import textwrap
from decimal import Decimal

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from dovetail.disk import Disk
from dovetail.errors import DovetailError, FlowError, SchemaError, SinkError, UserFunctionError
from dovetail.ingest import call, collect, csv, folder, null, parquet, show, sink
from dovetail.operators.contracts import END_OF_SOURCE, Delivery, Sink
from flows import X, raises, x_batch
from hypothesis import given, settings
from hypothesis import strategies as st

KINDS = {"parquet": parquet, "csv": csv}


def visible(path, kind="parquet"):
    """What a reader that takes `*.parquet` sees."""
    return sorted(file.name for file in path.glob(f"*.{kind}"))


def values(spec, **options):
    """Read a folder back."""
    reader, got = spec.reader(None), []
    while (batch := reader.read()) is not END_OF_SOURCE:
        got += batch["x"].to_pylist()
    return got


def write_all(spec, *batches, schema=X, lineage="run"):
    """Write each batch as an epoch of its own."""
    spec.check(schema)
    writer = spec.writer(schema, lineage)
    for epoch, batch in enumerate(batches):
        writer.stage(batch, epoch, 0)
        writer.commit(epoch)
    if not batches:
        writer.commit(0)
    writer.close()


@pytest.fixture(params=["parquet", "csv"])
def kind(request):
    return request.param


# --- folders of parts --------------------------------------------------------------------------------------


def test_a_folder_shows_an_epoch_when_it_commits_and_not_before(tmp_path, kind):
    out = tmp_path / "out"
    spec = KINDS[kind](out)
    assert isinstance(spec, Sink)
    assert spec.transactional
    spec.check(X)
    assert not out.exists()  # writing the flow changes nothing
    writer = spec.writer(X, "run-1")
    writer.stage(x_batch(1, 2), 0, 0)
    writer.stage(x_batch(), 0, 1)
    writer.stage(x_batch(3), 0, 2)
    assert visible(out, kind) == []
    writer.stage(x_batch(4), 1, 0)
    assert visible(out, kind) == []
    assert [path.name for path in out.iterdir()] == [".staging-run-1"]
    writer.commit(0)
    assert visible(out, kind) == [f"part-000000-0000.{kind}"]
    writer.commit(0)
    assert values(KINDS[kind](out)) == [1, 2, 3]
    writer.commit(1)
    writer.close()
    assert sorted(os.listdir(out)) == [f"part-000000-0000.{kind}", f"part-000001-0000.{kind}"]
    assert values(KINDS[kind](out)) == [1, 2, 3, 4]


def test_a_commit_shows_all_epochs_up_to_its_own(tmp_path, kind):
    writer = KINDS[kind](tmp_path).writer(X, "run")
    for epoch in range(4):
        writer.stage(x_batch(epoch), epoch, 0)
    writer.commit(1)
    assert values(KINDS[kind](tmp_path)) == [0, 1]
    writer.abort()
    writer.close()
    assert values(KINDS[kind](tmp_path)) == [0, 1]
    assert len(os.listdir(tmp_path)) == 2


def test_abort_leaves_nothing_and_may_come_twice(tmp_path, kind):
    writer = KINDS[kind](tmp_path / "out").writer(X, "run")
    writer.stage(x_batch(1), 0, 0)
    writer.abort()
    writer.abort()
    writer.close()
    assert os.listdir(tmp_path / "out") == []


def test_what_was_staged_and_never_committed_is_gone_after_close(tmp_path, kind):
    writer = KINDS[kind](tmp_path).writer(X, "run")
    writer.stage(x_batch(1), 0, 0)
    writer.close()
    assert os.listdir(tmp_path) == []


def test_a_run_without_rows_leaves_its_schema(tmp_path, kind):
    write_all(KINDS[kind](tmp_path), x_batch(), x_batch())
    assert os.listdir(tmp_path) == [f"part-000001-0000.{kind}"]
    again = KINDS[kind](tmp_path)
    assert again.schema.names == ["x"]
    assert values(again) == []
    if kind == "parquet":
        assert again.schema == X


def test_an_epoch_goes_on_in_its_next_file_when_one_is_large(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(folder, "GROUP_ROWS", 2)
    monkeypatch.setattr(folder, "FILE_ROWS", 4)
    writer = KINDS[kind](tmp_path).writer(X, "run")
    for at in range(5):
        writer.stage(x_batch(2 * at, 2 * at + 1), 7, at)
    writer.stage(x_batch(10), 8, 0)
    writer.commit(8)
    writer.close()
    assert visible(tmp_path, kind) == [
        f"part-{name}.{kind}" for name in ("000007-0000", "000007-0001", "000007-0002", "000008-0000")
    ]
    assert values(KINDS[kind](tmp_path)) == list(range(11))


def test_bytes_count_too(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "GROUP_BYTES", 1)
    monkeypatch.setattr(folder, "FILE_BYTES", 1)
    writer = parquet(tmp_path).writer(X, "run")
    for at in range(3):
        writer.stage(x_batch(at), 0, at)
    writer.commit(0)
    assert len(visible(tmp_path)) == 3


def test_small_batches_share_a_row_group(tmp_path):
    writer = parquet(tmp_path).writer(X, "run")
    for at in range(50):
        writer.stage(x_batch(at), 0, at)
    writer.commit(0)
    assert pq.ParquetFile(tmp_path / "part-000000-0000.parquet").num_row_groups == 1


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(st.integers(0, 3) | st.just("commit"), max_size=25))
def test_readers_see_exactly_what_was_committed(steps, tmp_path_factory):
    """Any order of stages and commits: the folder holds the committed rows, in order, each once."""
    out = tmp_path_factory.mktemp("out")
    writer = parquet(out).writer(X, "run")
    epoch, part, number, staged, committed = 0, 0, 0, [], []
    for step in steps:
        if step == "commit":
            writer.commit(epoch)
            committed, epoch, part = committed + staged, epoch + 1, 0
            staged = []
        else:
            rows = list(range(number, number + step))
            number += step
            writer.stage(x_batch(*rows), epoch, part)
            staged, part = staged + rows, part + 1
        assert values(parquet(out, schema=X)) == committed
    writer.close()
    assert values(parquet(out, schema=X)) == committed


def test_output_of_another_run_is_refused_when_written_and_when_opened(tmp_path, kind):
    spec = KINDS[kind](tmp_path)
    write_all(spec, x_batch(1), x_batch(2))
    told = f"holds the output of another run ('part-000000-0000.{kind}' and 1 more); pass overwrite=True"
    with raises(FlowError, told):
        spec.check(X)
    with raises(SinkError, told):
        spec.writer(X, "run-2")
    assert values(spec) == [1, 2]


def test_overwrite_removes_our_parts_when_the_run_opens(tmp_path, kind):
    write_all(KINDS[kind](tmp_path), x_batch(1), x_batch(2))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".staging-killed").mkdir()
    (tmp_path / ".staging-killed" / f"part-000002-0000.{kind}").touch()
    spec = KINDS[kind](tmp_path, overwrite=True)
    assert values(spec) == [1, 2]
    spec.check(X)
    assert len(visible(tmp_path, kind)) == 2
    writer = spec.writer(X, "run-2")
    assert visible(tmp_path, kind) == []
    writer.stage(x_batch(3), 0, 0)
    writer.commit(0)
    writer.close()
    assert sorted(os.listdir(tmp_path)) == ["_SUCCESS", f"part-000000-0000.{kind}"]
    assert values(spec) == [3]


def test_one_object_written_anew_is_read_anew(tmp_path):
    spec = parquet(tmp_path, overwrite=True)
    write_all(spec, x_batch(1))
    assert spec.schema == X
    other = pa.record_batch({"x": ["a"]})
    write_all(spec, other, schema=other.schema)
    assert values(spec) == ["a"]


@pytest.mark.parametrize("name", ["notes.txt", "data.parquet", "part-1.parquet", "part-000000-0000.csv", "sub/"])
def test_foreign_files_are_refused_by_name_also_with_overwrite(tmp_path, name):
    write_all(parquet(tmp_path), x_batch(1))
    (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).write_text("dear")
    for spec in (parquet(tmp_path), parquet(tmp_path, overwrite=True)):
        with raises(FlowError, f"holds '{name.strip('/')}', which this sink did not write and will not delete"):
            spec.check(X)
        with raises(SinkError, f"holds '{name.strip('/')}'"):
            spec.writer(X, "run")
    assert values(parquet(tmp_path / "part-000000-0000.parquet")) == [1]
    (tmp_path / "also.txt").touch()
    with raises(FlowError, "' and 1 more, which this sink did not write"):
        parquet(tmp_path).check(X)


def test_staging_that_a_killed_run_of_this_lineage_left_is_removed(tmp_path):
    (tmp_path / ".staging-run").mkdir()
    (tmp_path / ".staging-run" / "part-000000-0000.parquet").write_text("half a file")
    write_all(parquet(tmp_path), x_batch(1))
    assert os.listdir(tmp_path) == ["part-000000-0000.parquet"]


def test_two_runs_into_one_folder_do_not_overwrite_each_other(tmp_path):
    spec = parquet(tmp_path)
    one, two = spec.writer(X, "one"), spec.writer(X, "two")
    for writer, value in ((one, 1), (two, 2)):
        writer.stage(x_batch(value), 0, 0)
    one.commit(0)
    with raises(SinkError, "'part-000000-0000.parquet' has appeared in the folder since the run began; another run"):
        two.commit(0)
    two.abort()
    assert values(spec) == [1]


def test_output_that_a_live_run_writes_is_not_overwritten(tmp_path):
    one = parquet(tmp_path).writer(X, "one", {})
    one.stage(x_batch(1), 1, 0)
    with raises(SinkError, f"is being written by another run (process {os.getpid()}); stop that one first"):
        parquet(tmp_path, overwrite=True).writer(X, "two", {})
    one.prepare(1)
    one.commit(1)
    one.close()
    assert values(parquet(tmp_path)) == [1]
    parquet(tmp_path, overwrite=True).writer(X, "two", {}).close()
    assert values(parquet(tmp_path, schema=X)) == []


def test_places_that_cannot_be_written_are_found_beforehand(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("dear")
    with raises(FlowError, f"'{tmp_path}/file' is a file, and the output is a folder of parts"):
        parquet(tmp_path / "file").check(X)
    with raises(FlowError, f"'{tmp_path}/file/a/b' cannot be made, because '{tmp_path}/file' is not a folder"):
        parquet(tmp_path / "file/a/b").check(X)
    with raises(SinkError, "is not a folder"):
        parquet(tmp_path / "file/a").writer(X, "run")
    with raises(FlowError, "parquet sink: the list ['a', 'b'] can only be read; give one folder"):
        parquet(["a", "b"]).check(X)
    with raises(FlowError, "the pattern 'out/*' can only be read; give one folder"):
        parquet("out/*").check(X)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with raises(FlowError, f"the folder '{tmp_path}' may not be written by this user"):
        parquet(tmp_path).check(X)
    with raises(FlowError, f"'{tmp_path}/a/b' cannot be made, because this user may not write in '{tmp_path}'"):
        parquet(tmp_path / "a/b").check(X)


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", refuse)
    with raises(FlowError, f"'{tmp_path}' cannot be looked at: Permission denied; give another path"):
        parquet(tmp_path).check(X)
    with raises(SinkError, f"parquet sink '{tmp_path}': Permission denied (EACCES), while preparing"):
        parquet(tmp_path).writer(X, "run")


@pytest.mark.parametrize("lineage", ["", "../up", "a/b", "x" * 65])
def test_a_lineage_that_is_no_file_name(tmp_path, lineage):
    with raises(SinkError, f"the lineage {lineage!r} cannot be part of a file name"):
        parquet(tmp_path / "out").writer(X, lineage)
    assert os.listdir(tmp_path) == []


def test_accounting_that_cannot_be_ends_at_once(tmp_path):
    writer = parquet(tmp_path).writer(X, "run")
    writer.stage(x_batch(1), 2, 0)
    with pytest.raises(AssertionError, match="epoch 1 staged after 2"):
        writer.stage(x_batch(1), 1, 0)
    writer.commit(2)
    with pytest.raises(AssertionError, match=r"\(2, 2\)"):
        writer.stage(x_batch(1), 2, 0)
    writer.abort()
    with pytest.raises(AssertionError, match="staged into a sink that has ended: epoch 3"):
        writer.stage(x_batch(1), 3, 0)


# --- what a format can hold --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        ("csv", pa.list_(pa.int64())),
        ("csv", pa.struct([("a", pa.int8())])),
        ("csv", pa.map_(pa.string(), pa.int8())),
        ("csv", pa.dictionary(pa.int8(), pa.list_(pa.int8()))),
        ("csv", pa.month_day_nano_interval()),
        ("parquet", pa.month_day_nano_interval()),
        ("parquet", pa.struct([])),
        ("parquet", pa.dense_union([pa.field("a", pa.int8())])),
    ],
)
def test_a_column_that_the_format_cannot_hold_is_named_beforehand(tmp_path, kind, type_):
    schema = pa.schema([("fine", pa.int64()), ("odd", type_)])
    with raises(SchemaError, f"column 'odd' is {type_}, which {kind} cannot hold (") as caught:
        KINDS[kind](tmp_path).check(schema)
    assert "leave it out with .select(...), or cast it before" in str(caught.value)


def test_a_name_twice_or_another_schema_is_refused(tmp_path):
    with raises(SchemaError, "the column name 'x' occurs more than once"):
        parquet(tmp_path).check(pa.schema([("x", pa.int8()), ("x", pa.int8())]))
    with raises(SchemaError, "the rows differ from schema=: column 'x' is string and should be int64"):
        parquet(tmp_path, schema=X).check(pa.schema([("x", pa.string())]))
    parquet(tmp_path, schema=X).check(X)


EVERY = pa.table(
    {
        "i": pa.array([1, None, -(2**63)], pa.int64()),
        "u": pa.array([0, 2**64 - 1, None], pa.uint64()),
        "f": [1.1, None, float("inf")],
        "s": ['he said "no", and left', "", None],
        "lines": ["a\nb", "NA", "null"],
        "b": [True, None, False],
        "t": pa.array([0, None, 1_700_000_000_123_456], pa.timestamp("us")),
        "z": pa.array([0, None, 1_700_000_000_123_456], pa.timestamp("us", "UTC")),
        "day": pa.array([0, None, 20_000], pa.date32()),
        "dec": [Decimal("1.50"), None, Decimal("-3.25")],
        "dict": pa.array(["a", None, "b"]).dictionary_encode(),
        "null": pa.nulls(3),
    }
)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_values_of_every_type_come_back_as_they_were(tmp_path, kind):
    write_all(KINDS[kind](tmp_path), *EVERY.to_batches(max_chunksize=2), schema=EVERY.schema)
    reader = KINDS[kind](tmp_path, schema=EVERY.schema).reader(None)
    batches = list(iter(reader.read, END_OF_SOURCE))
    assert pa.Table.from_batches(batches, EVERY.schema).to_pydict() == EVERY.to_pydict()


def test_parquet_takes_a_different_dictionary_in_every_batch(tmp_path):
    writer = parquet(tmp_path).writer(pa.schema([("x", pa.dictionary(pa.int32(), pa.string()))]), "run")
    for at, texts in enumerate((["a", "b"], ["c", "b"], ["b"])):
        writer.stage(pa.record_batch({"x": pa.array(texts).dictionary_encode()}), 0, at)
    writer.commit(0)
    assert values(parquet(tmp_path)) == ["a", "b", "c", "b", "b"]


def test_csv_is_written_with_its_delimiter(tmp_path):
    batch = pa.record_batch({"x": [1], "y": ["a;b"]})
    write_all(csv(tmp_path, delimiter=";"), batch, schema=batch.schema)
    assert (tmp_path / "part-000000-0000.csv").read_text() == '"x";"y"\n1;"a;b"\n'


@pytest.mark.parametrize("delimiter", [":", " ", "-", ".", "1", "e"])
def test_csv_is_not_written_with_a_delimiter_that_stands_inside_of_values(tmp_path, delimiter):
    """Such files could not be read back: only texts are quoted."""
    spec = csv(tmp_path, delimiter=delimiter)
    with raises(FlowError, f"delimiter={delimiter!r} can stand inside a value of column 'at', timestamp[us]"):
        spec.check(pa.schema([("s", pa.string()), ("at", pa.timestamp("us"))]))
    batch = pa.record_batch({"x": [f"a{delimiter}b"], "y": ["c"]})
    write_all(spec, batch, schema=batch.schema)
    assert values(csv(tmp_path, delimiter=delimiter)) == [f"a{delimiter}b"]


def test_a_value_that_the_format_cannot_hold_is_a_sink_error(tmp_path):
    batch = pa.record_batch({"raw": [b"text", b"\xff\xfe"]})
    spec = csv(tmp_path)
    spec.check(batch.schema)  # bytes can be text
    writer = spec.writer(batch.schema, "run")
    writer.stage(batch.slice(0, 1), 0, 0)
    writer.commit(0)
    writer.stage(batch, 1, 0)
    with raises(SinkError, f"csv sink '{tmp_path}': Invalid UTF8 payload, while writing 'part-000001-0000.csv'"):
        writer.commit(1)
    writer.abort()
    assert os.listdir(tmp_path) == ["part-000000-0000.csv"]


# --- when the disk is full ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_disk_that_is_full_ends_in_an_error_and_leaves_whole_files(tmp_path, kind):
    """The limit on the size of files stands in for the disk: the write itself fails, half way."""
    program = f"""
        import os, resource, sys
        import numpy as np, pyarrow as pa
        from dovetail.errors import SinkError
        from dovetail.ingest import csv, parquet
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        schema = pa.schema([("x", pa.int64())])
        writer = {kind}(sys.argv[1]).writer(schema, "run")
        random = np.random.default_rng(0)
        batch = lambda rows: pa.record_batch({{"x": random.integers(0, 2**62, rows)}})
        writer.stage(batch(100), 0, 0)
        writer.commit(0)
        writer.stage(batch(100_000), 1, 0)
        try:
            writer.commit(1)
        except SinkError as failure:
            print(failure)
        writer.abort()
        writer.close()
    """
    out = tmp_path / "out"
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(out)], capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
    assert run.stdout == (
        f"{kind} sink '{out}': File too large (EFBIG), while writing 'part-000001-0000.{kind}'; whole files "
        f"that were written before stay. Put it right, or give another folder, and run again\n"
    )
    assert os.listdir(out) == [f"part-000000-0000.{kind}"]
    assert len(values(KINDS[kind](out))) == 100


def test_abort_while_a_file_is_open_leaves_nothing(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(folder, "GROUP_ROWS", 1)
    writer = KINDS[kind](tmp_path).writer(X, "run")
    writer.stage(x_batch(1, 2), 0, 0)
    assert len(os.listdir(tmp_path / ".staging-run")) == 1
    writer.abort()
    assert os.listdir(tmp_path) == []


def test_a_format_that_refuses_the_schema_after_all_is_a_sink_error(tmp_path):
    schema = pa.schema([("odd", pa.month_day_nano_interval())])
    writer = parquet(tmp_path).writer(schema, "run")
    writer.stage(pa.record_batch([pa.nulls(1, schema.field(0).type)], schema=schema), 0, 0)
    with raises(SinkError, "Unhandled type for Arrow to Parquet schema conversion: month_day_nano_interval, while"):
        writer.commit(0)
    writer.abort()
    assert os.listdir(tmp_path) == []


def test_a_staged_file_that_vanished_is_an_error(tmp_path):
    writer = parquet(tmp_path).writer(X, "run")
    writer.stage(x_batch(1), 0, 0)
    writer.stage(x_batch(2), 1, 0)
    (tmp_path / ".staging-run" / "part-000000-0000.parquet").unlink()
    with raises(SinkError, "No such file or directory (ENOENT), while moving into place 'part-000000-0000.parquet'"):
        writer.commit(1)
    writer.abort()
    assert os.listdir(tmp_path) == []


def test_a_file_that_cannot_be_begun_is_an_error(tmp_path):
    writer = parquet(tmp_path).writer(X, "run")
    (tmp_path / ".staging-run").rmdir()
    writer.stage(x_batch(1), 0, 0)
    with raises(SinkError, "No such file or directory (ENOENT), while writing 'part-000000-0000.parquet'"):
        writer.commit(0)
    writer.abort()


# --- collect and null --------------------------------------------------------------------------------------


def test_collect_keeps_what_was_committed():
    results = collect()
    assert isinstance(results, Sink)
    assert results.transactional
    assert results.describe() == "collect"
    results.check(X)
    with raises(FlowError, "collect: there is no table before a run; run the flow first"):
        results.table()
    writer = results.writer(X, "run")
    assert results.table() == X.empty_table()
    for epoch in range(3):
        writer.stage(x_batch(epoch), epoch, 0)
    writer.commit(1)
    writer.commit(1)
    assert results.table()["x"].to_pylist() == [0, 1]
    writer.close()
    assert results.table()["x"].to_pylist() == [0, 1]


def test_collect_starts_anew_with_each_run():
    results = collect()
    first = results.writer(X, "one")
    first.stage(x_batch(1), 0, 0)
    first.commit(0)
    second = results.writer(pa.schema([("y", pa.string())]), "two")
    first.stage(x_batch(2), 1, 0)
    first.commit(1)
    assert results.table().schema.names == ["y"]
    second.close()
    assert results.table().num_rows == 0


def test_collect_of_a_run_that_failed_offers_what_there_is_only_on_request():
    results = collect()
    writer = results.writer(X, "run")
    writer.stage(x_batch(1), 0, 0)
    writer.commit(0)
    writer.stage(x_batch(2), 1, 0)
    writer.abort()
    writer.close()
    with raises(DovetailError, "the run failed and its output is incomplete; the 1 rows that were committed before"):
        results.table()
    assert results.table(partial=True)["x"].to_pylist() == [1]


def test_null_counts_what_was_committed():
    counter = null()
    assert isinstance(counter, Sink)
    assert not counter.transactional
    assert counter.describe() == "null"
    for _ in range(2):
        writer = counter.writer(X, "run")
        writer.stage(x_batch(1, 2), 0, 0)
        writer.stage(x_batch(3), 1, 0)
        assert counter.rows == 0
        writer.commit(0)
        assert counter.rows == 2
        writer.close()


# --- call --------------------------------------------------------------------------------------------------


def run(spec, *epochs, schema=X, lineage="run"):
    spec.check(schema)
    writer = spec.writer(schema, lineage)
    for epoch, batches in enumerate(epochs):
        for part, batch in enumerate(batches):
            writer.stage(batch, epoch, part)
        writer.commit(epoch)
    writer.close()


def test_call_is_given_each_batch_at_its_commit_and_who_it_is():
    got, told = [], []
    epochs = [[x_batch(1), x_batch(), x_batch(2)], [], [x_batch(3)]]
    run(call(got.append), *epochs)
    assert [batch["x"].to_pylist() for batch in got] == [[1], [2], [3]]
    run(call(lambda batch, delivery: told.append(delivery)), *epochs, lineage="l")
    assert told == [Delivery("l", 0, 0), Delivery("l", 0, 2), Delivery("l", 2, 0)]
    assert not call(print).transactional
    assert isinstance(call(print), Sink)


def test_call_gives_a_parameter_with_a_default_nothing():
    got = []

    def keep(batch, note="mine"):
        got.append(note)

    def keep_all(*args):
        got.append(len(args))

    run(call(keep), [x_batch(1)])
    run(call(keep_all), [x_batch(1)])
    assert got == ["mine", 1]


def test_call_asks_nothing_of_a_function_that_does_not_say_what_it_takes():
    spec = call(max)
    run(spec, [x_batch(1)])
    assert spec.describe() == "call max"


def fails(batch):
    raise KeyError("no such rack")


def test_call_of_a_function_that_raises_names_it_and_its_line():
    writer = call(fails).writer(X, "run")
    writer.stage(x_batch(1), 0, 0)
    with pytest.raises(UserFunctionError, match=r"^fails \(.*test_ingest_sinks\.py:\d+\) raised KeyError: ") as caught:
        writer.commit(0)
    assert isinstance(caught.value.__cause__, KeyError)
    writer.abort()
    writer.commit(0)  # nothing is left


def test_call_goes_on_where_a_commit_failed():
    got = []

    def second_fails_once(batch):
        got.append(batch["x"].to_pylist())
        if got == [[1], [2]]:
            raise OSError("line is dead")

    writer = call(second_fails_once).writer(X, "run")
    for part in range(3):
        writer.stage(x_batch(part + 1), 0, part)
    with raises(UserFunctionError, "line is dead"):
        writer.commit(0)
    writer.commit(0)
    assert got == [[1], [2], [2], [3]]


def test_call_refuses_what_it_cannot_call():
    with raises(FlowError, "call: 5 of type int is no function; give one of a batch"):
        call(5)
    with raises(FlowError, "takes (); it is called with (batch) or with (batch, delivery)"):
        call(lambda: None)
    with raises(FlowError, "takes (a, b, c); it is called with"):
        call(lambda a, b, c: None)


# --- show --------------------------------------------------------------------------------------------------


def shown(*epochs, n=20, schema=X, width=80, monkeypatch=None):
    out = io.StringIO()
    if monkeypatch is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    run(show(n, out), *epochs, schema=schema)
    return out.getvalue()


def test_show_prints_the_first_rows_and_counts_the_rest():
    epochs = [[x_batch(*range(9, 12))], [x_batch(*range(12_345))]]
    assert shown(*epochs, n=4) == " x\n 9\n10\n11\n 0\n… and 12,344 more rows\n"
    assert shown([x_batch(1, 2)], n=1) == "x\n1\n… and 1 more row\n"
    assert shown([x_batch(1)]) == "x\n1\n"
    assert shown([x_batch()]) == "x\n(no rows)\n"
    assert show(5).describe() == "show 5"
    assert isinstance(show(), Sink)
    assert not show().transactional


def test_show_writes_out_values_of_every_type(monkeypatch):
    table = pa.table(
        {
            "int": [1, None],
            "float": [1234567.891, 1 / 3],
            "text": ["line\nend", None],
            "us": pa.array([0, 1_500_000], pa.timestamp("us")),
            "ns": pa.array([1, 1_500_000_000], pa.timestamp("ns", "UTC")),
            "day": pa.array([datetime.date(2024, 2, 29), None]),
            "took": pa.array([1500, None], pa.duration("ns")),
            "list": [[1, 2], None],
            "dict": pa.array(["a", "b"]).dictionary_encode(),
        }
    )
    text = shown(table.to_batches(), schema=table.schema, width=200, monkeypatch=monkeypatch)
    head, first, second = (re.split(r"\s{2,}", line.strip()) for line in text.splitlines())
    assert head == table.schema.names
    assert first == [
        "1", "1.23457e+06", "line\\nend", "1970-01-01T00:00:00", "1970-01-01T00:00:00.000000001Z",
        "2024-02-29", "1500 ns", "[1, 2]", "a",
    ]  # fmt: skip
    assert second == [
        "null", "0.333333", "null", "1970-01-01T00:00:01.500000", "1970-01-01T00:00:01.500000000Z", "null",
        "null", "null", "b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.list_(pa.timestamp("ns")), [1], "['1970-01-01 00:00:00.000000001']"),
        (pa.struct([("a", pa.duration("ns"))]), {"a": 1}, "{'a': 1}"),
        (pa.map_(pa.string(), pa.timestamp("us")), [("k", 2**59)], "[('k', '20237-04-25 10:45:03.423488')]"),
        (pa.large_list(pa.list_(pa.date32(), 1)), [[2**30]], "[['<value out of range: 1073741824>']]"),
        (pa.month_day_nano_interval(), (1, 2, 3), "MonthDayNano(months=1, days=2, nanoseconds=3)"),
        (pa.timestamp("s"), 2**62, "<value out of range: 4611686018427387904>"),
    ],
    ids=str,
)
def test_show_writes_out_times_that_python_does_not_have(monkeypatch, kind, value, text):
    monkeypatch.setattr("dovetail.ingest.sinks.MOST_CHARACTERS", 80)
    batch = pa.record_batch({"x": pa.array([value, None], kind)})
    shown_as = shown([batch], schema=batch.schema, monkeypatch=monkeypatch).splitlines()
    assert shown_as[1:] == [text, "null"]


def test_show_writes_out_a_dictionary_of_nanoseconds():
    batch = pa.record_batch({"x": pa.array([1], pa.timestamp("ns")).dictionary_encode()})
    assert shown([batch], schema=batch.schema) == "x\n1970-01-01T00:00:00.000000001\n"


def test_show_fits_the_terminal(monkeypatch):
    batch = pa.record_batch({"number": [123456789], "text": ["t" * 50], "other": ["o" * 12], "last": [5]})
    wide = shown([batch], schema=batch.schema, width=100, monkeypatch=monkeypatch)
    assert wide.splitlines()[1] == "123456789  " + "t" * 31 + "…  " + "o" * 12 + "     5"
    tight = shown([batch], schema=batch.schema, width=40, monkeypatch=monkeypatch)
    assert tight.splitlines()[1] == "123456789  " + "t" * 9 + "…  " + "o" * 10 + "…     5"
    assert len(tight.splitlines()[1]) == 40
    tiny = shown([batch], [batch], schema=batch.schema, width=25, monkeypatch=monkeypatch)
    row = "123456789  ttttttt…"
    assert tiny == f"   number  text\n{row}\n(the screen has no room for: other, last)\n{row}\n"


def test_show_prints_at_each_commit_and_columns_only_grow():
    text = shown([x_batch(1)], [x_batch(1000)], [x_batch(1)])
    assert text == "x\n1\n1000\n   1\n"


def test_show_prints_no_more_after_an_error():
    out = io.StringIO()
    writer = show(1, out).writer(X, "run")
    writer.stage(x_batch(1, 2), 0, 0)
    writer.commit(0)
    writer.abort()
    writer.close()
    writer.close()
    assert out.getvalue() == "x\n1\n"


def test_show_writes_to_standard_output_whatever_it_can_encode(capsys):
    run(show(1), [x_batch(1, 2)])
    assert capsys.readouterr().out == "x\n1\n… and 1 more row\n"
    raw = io.BytesIO()
    ascii_only = io.TextIOWrapper(raw, encoding="ascii")
    run(show(1, ascii_only), [x_batch(1, 2)])
    assert raw.getvalue().endswith(b"\\u2026 and 1 more row\n")


def test_show_into_a_pipe_that_nobody_reads():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(os.dup(write), "w") as out:
        writer = show(5, out).writer(X, "run")
        writer.stage(x_batch(1), 0, 0)
        with raises(SinkError, "show: the reader of the output went away; give file=, or read on"):
            writer.commit(0)
        writer.abort()
        writer.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # so that closing it can empty its buffer
    os.close(write)


def test_show_into_a_full_disk_or_a_closed_file():
    with open("/dev/full", "w") as full:
        with raises(SinkError, "show: the output cannot be written: [Errno 28] No space left on device"):
            run(show(5, full), [x_batch(1)])
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    closed = io.StringIO()
    closed.close()
    with raises(SinkError, "I/O operation on closed file; give another file="):
        run(show(5, closed), [x_batch(1)])


def test_show_refuses():
    with raises(FlowError, "show: n=0 must be a whole number of at least 1"):
        show(0)
    with raises(FlowError, "show: file='out.txt' cannot be written to; give an open text file"):
        show(5, "out.txt")


# --- the user's own ----------------------------------------------------------------------------------------


@sink
class Log:
    """Writes down what it is told."""

    transactional = True
    told = []

    def __init__(self, name):
        self.name = name

    def open(self, schema, lineage):
        self.told.append((self.name, "open", schema.names, lineage))

    def stage(self, batch, epoch, part):
        self.told.append(("stage", batch["x"].to_pylist(), epoch, part))

    def commit(self, epoch):
        if epoch == 9:
            raise ValueError("nine")
        self.told.append(("commit", epoch))

    def abort(self):
        self.told.append("abort")

    def close(self):
        self.told.append("close")


def test_own_sink_is_told_everything_in_order():
    told = Log.cls.told
    told.clear()
    spec = Log("a")
    assert isinstance(spec, Sink)
    assert spec.transactional
    assert spec.describe() == "sink Log"
    run(spec, [x_batch(1)], lineage="l")
    assert told == [("a", "open", ["x"], "l"), ("stage", [1], 0, 0), ("commit", 0), "close"]
    told.clear()
    writer = pickle.loads(pickle.dumps(spec)).writer(X, "l")
    with pytest.raises(
        UserFunctionError, match=r"^Log\.commit \(.*test_ingest_sinks\.py:\d+\) raised ValueError: nine"
    ):
        writer.commit(9)
    writer.abort()
    writer.close()
    assert told[1:] == ["abort", "close"]


def test_own_sink_with_the_least_that_it_needs():
    class Least:
        def stage(self, batch, epoch, part): ...
        def commit(self, epoch): ...
        def abort(self): ...

    class Odd(Least):
        transactional = "yes"

    spec = sink(Least)()
    assert not spec.transactional
    run(spec, [x_batch(1)])
    with raises(FlowError, "sink Odd: transactional is 'yes'; set True or False on the class"):
        sink(Odd)().check(X)
    with raises(SchemaError, "sink Least: the column name 'x' occurs more than once"):
        spec.check(pa.schema([("x", pa.int8()), ("x", pa.int8())]))
    with raises(FlowError, "it was given () and {'port': 5}"):
        sink(Least)(port=5)


def test_csv_files_of_ours_can_be_read_by_others(tmp_path):
    write_all(csv(tmp_path), x_batch(1, 2))
    assert pacsv.read_csv(tmp_path / "part-000000-0000.csv").to_pydict() == {"x": [1, 2]}


def test_own_sink_that_cannot_be_opened_is_closed():
    told = []

    class Shut:
        def open(self, schema, lineage):
            raise ValueError("no room")

        def stage(self, batch, epoch, part): ...
        def commit(self, epoch): ...
        def abort(self): ...
        def close(self):
            told.append("close")

    with raises(UserFunctionError, "raised ValueError: no room"):
        sink(Shut)().writer(X, "l")
    assert told == ["close"]


def test_what_a_killed_run_has_moved_into_the_folder_is_made_durable_by_the_next(tmp_path, monkeypatch):
    """It is not moved again; and a loss of power after the next checkpoint would take its name away."""
    out, batch = str(tmp_path / "out"), x_batch(1)
    first = parquet(out).writer(batch.schema, "run-1", {})
    first.stage(batch, 1, 0)
    known, _ = first.prepare(1)
    synced, real = [], Disk.sync_folder

    def killed(self, path):
        raise KeyboardInterrupt

    monkeypatch.setattr(Disk, "sync_folder", killed)
    with pytest.raises(KeyboardInterrupt):
        first.commit(1)
    first._unlock()
    assert os.listdir(out).count("part-000001-0000.parquet") == 1
    monkeypatch.setattr(Disk, "sync_folder", lambda self, path: (synced.append(path), real(self, path)))
    second = parquet(out).writer(batch.schema, "run-1", known)
    assert synced == [], "it may be that another part of the flow cannot begin"
    second.rewind(1, 1)
    assert out in synced
    second.commit(1)
    second.close()
    assert pq.read_table(out)["x"].to_pylist() == batch["x"].to_pylist()
