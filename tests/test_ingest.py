"""Sources: what they read does not depend on how it is cut; what does not fit is an error that says so."""

import gzip
import json
import pickle
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dovetail.errors import (
    FlowError,
    SchemaError,
    SourceError,
    UnsupportedError,
    UserFunctionError,
)
from dovetail.ingest import csv, files, memory, parquet, sink, source, synthetic
from dovetail.ingest._common import check_unique, difference, empty_batch, recut
from dovetail.operators.contracts import END_OF_SOURCE, Source
from dovetail.operators.own import origin
from flows import X, raises, x_batch
from hypothesis import given, settings
from hypothesis import strategies as st


def drain(spec, columns=None):
    """Read to the end; every batch must have the schema that was promised. Returns the batches."""
    reader = spec.reader(columns)
    batches = []
    try:
        while (batch := reader.read()) is not END_OF_SOURCE:
            batches.append(batch)
        assert reader.read() is END_OF_SOURCE
    finally:
        reader.close()
    wanted = spec.schema if columns is None else pa.schema([spec.schema.field(c) for c in columns])
    assert all(batch.schema.equals(wanted) for batch in batches)
    return batches


def rows(spec, columns=None):
    return [row for batch in drain(spec, columns) for row in batch.to_pylist()]


def sizes(spec):
    return [batch.num_rows for batch in drain(spec)]


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_rows", [3, 7])
def test_many_files_are_gone_on_with_behind_any_batch(tmp_path, monkeypatch, batch_rows):
    """Of files that were read long ago a position holds one number for many; files may be empty."""
    monkeypatch.setattr(files, "BLOCK_FILES", 4)
    lengths, first = [5, 0, 3, 1, 8, 0, 0, 2, 2, 6, 0, 4, 1], 0
    for number, length in enumerate(lengths):
        pq.write_table(pa.table({"x": np.arange(first, first + length)}), tmp_path / f"{number:03d}.parquet")
        first += length
    spec = parquet(tmp_path, batch_rows=batch_rows)
    reader, read, positions = spec.reader(None), 0, [(0, None)]
    while (batch := reader.read()) is not END_OF_SOURCE:
        read += batch.num_rows
        positions.append((read, json.loads(json.dumps(reader.position()))))
    assert read == sum(lengths)
    for read, position in positions:
        again = spec.reader(None, position)
        rest = []
        while (batch := again.read()) is not END_OF_SOURCE:
            rest += batch["x"].to_pylist()
        assert rest == list(range(read, sum(lengths)))
    assert len(positions[-1][1]["blocks"]) == 3 and len(positions[-1][1]["done"]) < 4
    (tmp_path / "002.parquet").unlink()
    with raises(SourceError, "of files 1 to 4 one is gone, new, or has changed since they were read"):
        spec.reader(None, positions[-1][1])


# --- memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        {"x": [1, 2, 3]},
        pa.table({"x": [1, 2, 3]}),
        pa.record_batch({"x": [1, 2, 3]}),
        [x_batch(1), x_batch(), x_batch(2, 3)],
        (batch for batch in [x_batch(1, 2), x_batch(3)]),
        pa.RecordBatchReader.from_batches(X, [x_batch(1, 2), x_batch(3)]),
    ],
    ids=["dict", "table", "batch", "list", "generator", "stream"],
)
def test_memory_reads_the_same_rows_again_and_again(data):
    spec = memory(data)
    assert isinstance(spec, Source)
    assert rows(spec) == rows(spec) == [{"x": 1}, {"x": 2}, {"x": 3}]


def test_memory_keeps_the_cuts_it_was_given_and_cuts_what_is_longer():
    spec = memory([x_batch(1, 2, 3, 4, 5), x_batch(), x_batch(6)], batch_rows=2)
    assert sizes(spec) == [2, 2, 1, 1]
    assert spec.describe() == "memory (4 batches, 6 rows)"
    assert memory({"x": [1]}).describe() == "memory (1 batch, 1 row)"


def test_memory_copies_nothing():
    batch = x_batch(*range(100))
    last = drain(memory(batch, batch_rows=10))[-1]
    assert last["x"].buffers()[1].address == batch["x"].buffers()[1].address


def test_memory_without_rows_still_has_its_schema():
    for spec in (memory([x_batch()]), memory([], schema=X), memory(X.empty_table())):
        assert spec.schema == X
        assert drain(spec) == []


def test_memory_puts_columns_into_the_order_of_the_first_batch():
    spec = memory([pa.record_batch({"x": [1], "y": ["a"]}), pa.record_batch({"y": ["b"], "x": [2]})])
    assert rows(spec) == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]


def test_memory_gives_only_the_columns_that_are_asked_for_and_never_none():
    spec = memory({"x": [1, 2], "y": ["a", "b"]})
    assert rows(spec, ["y"]) == [{"y": "a"}, {"y": "b"}]
    assert spec.reader([]).read().num_rows == 2
    with raises(SchemaError, "memory has no column 'z'; there are: x, y"):
        spec.reader(["z"])


@pytest.mark.parametrize(
    ("data", "options", "kind", "text"),
    [
        ([], {}, SchemaError, "no batch to take the schema from; pass schema="),
        (5, {}, FlowError, "not 5 of type int"),
        ("dc1/", {}, FlowError, "not 'dc1/' of type str"),
        ([{"x": 1}], {}, FlowError, "item 0 is {'x': 1} of type dict, not a pyarrow.RecordBatch"),
        (
            {"x": [1], "y": [1, 2]},
            {},
            SchemaError,
            "['x', 'y'] makes no table: Column 1 named y expected length 1",
        ),
        ({"x": 5}, {}, SchemaError, "makes no table: 'int' object is not iterable"),
        ({"x": [2**70]}, {}, SchemaError, "makes no table: Python int too large"),
        ({"x": ["\ud800"]}, {}, SchemaError, "makes no table: 'utf-8' codec can't encode character"),
        ({"y": [5]}, {"schema": X}, SchemaError, "makes no table: The passed mapping doesn't contain"),
        (
            [x_batch(1)],
            {"batch_rows": 0},
            FlowError,
            "memory: batch_rows=0 must be a whole number of at least 1",
        ),
        ([x_batch(1)], {"batch_rows": True}, FlowError, "batch_rows=True"),
        (pa.table({"y": [1]}), {"schema": X}, SchemaError, "the table differs from the schema: column 'x'"),
        (
            [x_batch(1), pa.record_batch({"x": ["a"]})],
            {},
            SchemaError,
            "memory: batch 1 differs from the schema: column 'x' is string and should be int64",
        ),
        (
            [x_batch(1), pa.record_batch({"x": [1], "y": [2]})],
            {},
            SchemaError,
            "batch 1 differs from the schema: column 'y' (int64) is one too many",
        ),
        (
            [pa.record_batch({"x": [1, None]})],
            {"schema": pa.schema([pa.field("x", pa.int64(), nullable=False)])},
            SchemaError,
            "batch 0: column 'x' is declared as not null and holds 1 nulls",
        ),
        (
            pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]),
            {},
            SchemaError,
            "the column name 'x' occurs more than once",
        ),
    ],
)
def test_memory_refuses(data, options, kind, text):
    with raises(kind, text):
        memory(data, **options)


@given(
    st.lists(st.integers(0, 5), max_size=6),
    st.integers(1, 7),
)
def test_recut_keeps_every_row_in_order(lengths, size):
    numbers = iter(range(1000))
    batches = [x_batch(*[next(numbers) for _ in range(length)]) for length in lengths]
    cut = list(recut(batches, size))
    assert [v for b in cut for v in b["x"].to_pylist()] == list(range(sum(lengths)))
    assert all(b.num_rows == size for b in cut[:-1])
    assert all(b.num_rows for b in cut)


def test_recut_joins_different_dictionaries_by_value():
    parts = [pa.record_batch({"d": pa.array(values).dictionary_encode()}) for values in (["a"], ["b", "a"])]
    assert [b["d"].to_pylist() for b in recut(parts, 5)] == [["a", "b", "a"]]


def test_an_empty_batch_can_be_made_of_any_common_type():
    kinds = [pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.int8()), pa.struct([("a", pa.int8())])]
    schema = pa.schema([(str(at), kind) for at, kind in enumerate(kinds)])
    assert empty_batch(schema).schema == schema


def test_a_column_that_is_there_twice_fits_nothing():
    twice = pa.schema([("x", pa.int64()), ("x", pa.int64())])
    assert difference(twice, X) == "column 'x' occurs 2 times"


def test_a_name_twice_is_refused_with_the_error_that_fits():
    with raises(SourceError, "here: the column name 'a' occurs more than once; rename"):
        check_unique("here", pa.schema([("a", pa.int8()), ("a", pa.int8())]), SourceError)


# --- parquet -----------------------------------------------------------------------------------------------


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_reads_a_file_a_folder_a_glob_and_a_list(tmp_path):
    second = write(tmp_path / "b.parquet", x=[3])
    first = write(tmp_path / "a.parquet", x=[1, 2])
    for hidden in ("_tmp.parquet", ".a.parquet"):
        write(tmp_path / hidden, y=["not ours"])
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / "folder.parquet").mkdir()
    both = [{"x": 1}, {"x": 2}, {"x": 3}]
    assert rows(parquet(str(first))) == both[:2]
    assert rows(parquet(tmp_path)) == both
    assert rows(parquet(f"{tmp_path}/")) == both
    assert rows(parquet(tmp_path / "*.parquet")) == both
    assert rows(parquet([second, first])) == both[2:] + both[:2]


def test_parquet_says_how_many_files_there_are_once_it_has_looked(tmp_path):
    write(tmp_path / "a.parquet", x=[1])
    spec = parquet(tmp_path)
    assert spec.describe() == f"parquet {tmp_path}"
    assert spec.schema == X
    assert spec.describe() == f"parquet {tmp_path} (1 file)"
    two = parquet([tmp_path, tmp_path / "a.parquet"])
    assert len(rows(two)) == 2
    assert two.describe() == f"parquet {tmp_path} and 1 more (2 files)"
    assert isinstance(spec, Source)


def test_parquet_cuts_and_prunes(tmp_path):
    file = write(tmp_path / "a.parquet", **{"x": [1, 2, 3], "y": ["a", "b", "c"], "x.y": [7, 8, 9]})
    spec = parquet(file, batch_rows=2)
    assert sizes(spec) == [2, 1]
    assert rows(spec, ["x.y", "x"]) == [{"x.y": 7, "x": 1}, {"x.y": 8, "x": 2}, {"x.y": 9, "x": 3}]
    assert sum(b.num_rows for b in [spec.reader([]).read()]) == 2
    with raises(SchemaError, "has no column 'yy'; did you mean 'y'"):
        spec.reader(["yy"])


def test_parquet_takes_another_order_of_columns(tmp_path):
    write(tmp_path / "a.parquet", x=[1], y=["a"])
    write(tmp_path / "b.parquet", y=["b"], x=[2])
    assert rows(parquet(tmp_path)) == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"y": [1]}, "does not fit the first file: column 'x' (int64) is missing; it has: y"),
        (
            {"x": pa.array([1], pa.int32())},
            "column 'x' is int32 and should be int64. Types must be the same, also",
        ),
        ({"x": [1], "z": [1]}, "column 'z' (int64) is one too many"),
    ],
)
def test_parquet_files_that_differ_are_named_and_the_error_stays(tmp_path, columns, text):
    write(tmp_path / "a.parquet", x=[1])
    other = write(tmp_path / "b.parquet", **columns)
    reader = parquet(tmp_path).reader(None)
    assert reader.read().num_rows == 1
    for _ in range(2):
        with raises(SourceError, text) as caught:
            reader.read()
        assert str(other) in str(caught.value)
    reader.close()


def test_parquet_with_a_schema_takes_these_columns_of_every_file(tmp_path):
    write(tmp_path / "a.parquet", x=[1], y=["a"])
    write(tmp_path / "b.parquet", z=[1.5], x=[2])
    assert rows(parquet(tmp_path, schema=X)) == [{"x": 1}, {"x": 2}]
    write(tmp_path / "c.parquet", x=["c"])
    with raises(SourceError, "does not fit schema=: column 'x' is string and should be int64"):
        rows(parquet(tmp_path, schema=X))


def test_parquet_nulls_where_none_may_be(tmp_path):
    write(tmp_path / "a.parquet", x=[1, None])
    spec = parquet(tmp_path, schema=pa.schema([pa.field("x", pa.int64(), nullable=False)]))
    with raises(SourceError, "a.parquet': column 'x' is declared as not null and holds 1 nulls"):
        rows(spec)


def test_a_missing_path_is_found_when_the_schema_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "dc1").mkdir()
    monkeypatch.chdir(tmp_path)
    spec = parquet("dc2/")
    with raises(SourceError, f"parquet: 'dc2/' does not exist ({tmp_path}/dc2); in '{tmp_path}': did you mean 'dc1'"):
        _ = spec.schema
    with raises(SourceError, f"in '{tmp_path}': did you mean 'dc1'"):
        _ = parquet("dc11/data/x.parquet").schema


def test_a_folder_or_pattern_without_files(tmp_path):
    with raises(SourceError, f"the folder '{tmp_path}' ({tmp_path}) holds no *.parquet; it is empty. Without a file"):
        _ = parquet(tmp_path).schema
    with raises(SourceError, f"nothing matches the pattern '{tmp_path}/*.parquet'"):
        _ = parquet(tmp_path / "*.parquet").schema
    (tmp_path / "day=1").mkdir()
    with raises(SourceError, "it holds day=1 (a glob such as 'folder/**/*' enters subfolders)"):
        _ = parquet(tmp_path).schema
    assert drain(parquet(tmp_path, schema=X)) == []


def test_a_file_that_is_damaged_is_named(tmp_path):
    write(tmp_path / "a.parquet", x=list(range(10_000)))
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole[:500])
    with raises(SourceError, f"parquet file '{tmp_path}/b.parquet' cannot be read: ") as caught:
        _ = parquet(tmp_path / "b.parquet").schema
    assert "the file is damaged, was written only in part" in str(caught.value)
    assert caught.value.__cause__ is not None
    with raises(SourceError, "b.parquet' cannot be read"):
        rows(parquet(tmp_path))
    (tmp_path / "b.parquet").write_bytes(whole[:4] + b"\xff" * 300 + whole[304:])  # its data, not its footer
    with raises(SourceError, "b.parquet' cannot be read"):
        rows(parquet(tmp_path))


def test_a_file_that_vanishes_after_the_schema_was_seen(tmp_path):
    file = write(tmp_path / "a.parquet", x=[1])
    spec = parquet(file)
    assert spec.schema == X
    file.unlink()
    with raises(SourceError, "does not exist"):
        spec.reader(None)


def test_a_parquet_file_with_a_name_twice(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    pq.write_table(table, tmp_path / "a.parquet")
    with raises(SourceError, "the column name 'x' occurs more than once"):
        _ = parquet(tmp_path).schema


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: parquet("a", batch_rows=-1), FlowError, "parquet: batch_rows=-1"),
        (lambda: parquet([]), FlowError, "parquet: the list of paths is empty"),
        (lambda: parquet([7]), FlowError, "parquet: 7 is no path; give a str or a pathlib.Path"),
        (lambda: parquet(""), FlowError, "parquet: '' is no path"),
        (lambda: parquet("s3://bucket/x"), UnsupportedError, "'s3://bucket/x' is an address"),
        (lambda: parquet("a", schema={"x": "int64"}), FlowError, "is not a pyarrow.Schema"),
        (lambda: csv("a", delimiter=", "), FlowError, "csv: delimiter=', ' must be one ASCII character"),
        (lambda: csv("a", delimiter="é"), FlowError, "csv: delimiter='é' must be one ASCII character"),
        (lambda: csv("a", schema=X, column_types={}), FlowError, "leave column_types= out"),
    ],
)
def test_files_refuse(make, kind, text):
    with raises(kind, text):
        make()


def test_reading_on_after_close_is_an_error(tmp_path):
    reader = parquet(write(tmp_path / "a.parquet", x=[1])).reader(None)
    reader.close()
    with raises(SourceError, "the reader is closed; open the source again"):
        reader.read()


# --- csv ---------------------------------------------------------------------------------------------------


def test_csv_infers_types_and_takes_the_first_files_for_all(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n")
    (tmp_path / "b.csv").write_text("y,x\n7,3\n")
    spec = csv(tmp_path, batch_rows=2)
    assert spec.schema == pa.schema([("x", pa.int64()), ("y", pa.string())])
    assert rows(spec) == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}, {"x": 3, "y": "7"}]
    assert sizes(spec) == [2, 1]
    assert rows(spec, ["y"]) == [{"y": "a"}, {"y": "b"}, {"y": "7"}]


def test_csv_is_cut_to_batch_rows_across_blocks_and_files(tmp_path):
    lines = "".join(f"{n},{'t' * 100}\n" for n in range(20_000))  # 2 MB: more than one block
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("x,text\n" + lines)
    spec = csv(tmp_path, batch_rows=7_000)
    assert sizes(spec) == [7_000] * 5 + [5_000]
    assert [row["x"] for row in rows(spec, ["x"])] == list(range(20_000)) * 2


def test_csv_null_is_an_empty_field_and_nothing_else(tmp_path):
    (tmp_path / "a.csv").write_text('x,s\n,NA\nnan,""\n1.5,\n2,"two\nlines"\n')
    got = rows(csv(tmp_path / "a.csv"))
    assert [row["s"] for row in got] == ["NA", "", None, "two\nlines"]
    assert got[0]["x"] is None
    assert np.isnan(got[1]["x"])


def test_csv_values_may_hold_line_ends_also_where_a_block_ends(tmp_path):
    text = "line\n" * 30_000  # 150 kB, so that some of these lie across the megabyte of a block
    (tmp_path / "a.csv").write_text("x,s\n" + f'1,"{text}"\n' * 20)
    assert [row["s"] for row in rows(csv(tmp_path))] == [text] * 20


def test_csv_of_one_column_reads_an_empty_line_as_null(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n\n2\n")
    assert rows(csv(tmp_path)) == [{"x": 1}, {"x": None}, {"x": 2}]
    (tmp_path / "a.csv").write_text("x,y\n1,1\n\n2,2\n")
    assert rows(csv(tmp_path), ["x"]) == [{"x": 1}, {"x": 2}]


def test_csv_with_schema_types_and_delimiter(tmp_path):
    (tmp_path / "a.csv").write_text("x;y;z\n1;2;3\n")
    kinds = pa.schema([("y", pa.string()), ("x", pa.float32())])
    assert rows(csv(tmp_path, schema=kinds, delimiter=";")) == [{"y": "2", "x": 1.0}]
    spec = csv(tmp_path, column_types={"z": pa.int8()}, delimiter=";")
    assert spec.schema == pa.schema([("x", pa.int64()), ("y", pa.int64()), ("z", pa.int8())])
    with raises(SchemaError, "column_types= names 'zz'; did you mean 'z'"):
        _ = csv(tmp_path, column_types={"zz": pa.int8()}, delimiter=";").schema
    with raises(SourceError, "does not fit schema=: column 'q' (int64) is missing; it has: x, y, z"):
        rows(csv(tmp_path, schema=pa.schema([("q", pa.int64())]), delimiter=";"))


def test_csv_may_be_compressed(tmp_path):
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("x\n5\n")
    assert rows(csv(tmp_path / "a.csv.gz")) == [{"x": 5}]


def test_csv_value_that_does_not_parse_names_the_file_and_says_what_to_do(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,y\n1,2\nfive,2\n")
    with raises(SourceError, f"csv file '{tmp_path}/b.csv' cannot be read: ") as caught:
        rows(csv(tmp_path))
    assert "invalid value 'five'" in str(caught.value)
    assert "give schema=" in str(caught.value)


def test_csv_that_is_no_table(tmp_path):
    (tmp_path / "a.csv").write_text("")
    with raises(SourceError, "a.csv' cannot be read: Empty CSV file"):
        _ = csv(tmp_path).schema
    (tmp_path / "a.csv").write_text("x,x\n1,2\n")
    with raises(SourceError, "the column name 'x' occurs more than once"):
        _ = csv(tmp_path).schema
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3\n")
    with raises(SourceError, "Expected 2 columns, got 1"):
        rows(csv(tmp_path, schema=pa.schema([("x", pa.int64()), ("y", pa.int64())])))
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,z\n1,2\n")
    with raises(SourceError, "b.csv' does not fit the first file: column 'y' (int64) is missing; it has: x, z"):
        rows(csv(tmp_path))


# --- synthetic ---------------------------------------------------------------------------------------------

KEYS = ["uniform", "gaussian", "gamma", "zipf", "drift", "sorted"]


@pytest.mark.parametrize("key", KEYS)
def test_synthetic_rows_do_not_depend_on_batches_or_columns(key):
    def table(batch_rows, columns=None):
        spec = synthetic(70_001, key=key, seed=3, batch_rows=batch_rows)
        return pa.Table.from_batches(drain(spec, columns)).combine_chunks()

    whole = table(1 << 20)
    assert whole.num_rows == 70_001
    assert table(65_536).equals(whole)
    assert table(9_973).equals(whole)
    assert table(50_000, ["key"]).equals(whole.select(["key"]))
    assert table(50_000, ["value"]).equals(whole.select(["value"]))


def keys_of(rows=200_000, **options):
    batches = drain(synthetic(rows, **options), ["key"])
    return np.concatenate([batch["key"].to_numpy() for batch in batches])


def test_synthetic_distributions_are_what_they_are_called():
    uniform = keys_of(key="uniform", low=-50, high=50)
    assert (uniform.min(), uniform.max()) == (-50, 49)
    assert abs(uniform.mean() + 0.5) < 0.5
    gaussian = keys_of(key="gaussian")
    assert abs(gaussian.mean() / 1e6 - 0.5) < 0.002
    assert abs(gaussian.std() / 1e6 - 0.125) < 0.002
    gamma = keys_of(key="gamma", dtype="float64", high=1)
    assert abs(gamma.mean() - 9) < 0.1
    assert abs(gamma.var() - 27) < 1
    ascending = keys_of(key="sorted")
    assert (np.diff(ascending) >= 0).all()
    assert (ascending[0], ascending[-1]) == (0, 999_995)
    zipf = keys_of(key="zipf", high=1000, exponent=2)
    assert (zipf.min() >= 0) & (zipf.max() < 1000)
    shares = np.bincount(zipf)[:3] / len(zipf)
    assert abs(shares[0] / shares[1] - 4) < 0.3
    assert abs(shares[0] / shares[2] - 9) < 0.8


def test_synthetic_drift_stays_moves_and_stays():
    keys = keys_of(180_000, key="drift", drift=0.4, dtype="float64", low=0, high=1)
    means = keys.reshape(18, 10_000).mean(axis=1)
    assert np.allclose(means[:4], 0.5, atol=0.01)
    assert np.allclose(means[4:14], 0.5 + 0.4 * (np.arange(10) + 0.5) / 10, atol=0.01)
    assert np.allclose(means[14:], 0.9, atol=0.01)


def test_synthetic_keys_and_values_are_independent():
    batch = synthetic(1000, low=0, high=1, dtype="float64").reader(None).read()
    assert abs(np.corrcoef(batch["key"], batch["value"])[0, 1]) < 0.1


def test_synthetic_seed_prefix_and_no_end():
    assert (keys_of(1000, seed=1) != keys_of(1000, seed=2)).any()
    assert (keys_of(70_000)[:1000] == keys_of(1000)).all()
    endless = synthetic(None, batch_rows=70_000)
    assert endless.describe() == "synthetic uniform (endless)"
    assert (endless.reader(None).read()["key"].to_numpy() == keys_of(70_000)).all()
    assert drain(synthetic(0)) == []
    assert synthetic(1234567, key="zipf").describe() == "synthetic zipf (1,234,567 rows)"


def test_synthetic_times_and_names():
    spec = synthetic(3, rate=3, start="2024-01-01T12:00:00", columns=("t", "k", "v"), dtype="float32")
    assert spec.schema == pa.schema([("t", pa.timestamp("us")), ("k", pa.float32()), ("v", pa.float64())])
    assert [str(row["t"].time()) for row in rows(spec)] == ["12:00:00", "12:00:00.333333", "12:00:00.666666"]
    half = rows(synthetic(3, rate=0.5, start="1969-12-31"), ["ts"])
    assert [row["ts"].second for row in half] == [0, 2, 4]


@pytest.mark.parametrize(
    ("given", "options", "text"),
    [
        (-1, {}, "rows=-1 must be a whole number from 0 on"),
        (True, {}, "rows=True"),
        (5, {"key": "gauss"}, "key='gauss' is no distribution; did you mean 'gaussian'"),
        (None, {"key": "drift"}, "key='drift' stretches over all rows"),
        (5, {"seed": -1}, "seed=-1 must be a whole number"),
        (5, {"batch_rows": 0}, "batch_rows=0"),
        (5, {"low": 5, "high": 5}, "low=5 must be less than high=5"),
        (5, {"low": 0.5}, "low=0.5 and high=1000000 must be whole numbers for a key of int64"),
        (5, {"high": float("inf")}, "must be whole numbers"),
        (5, {"high": float("inf"), "dtype": "float64"}, "and both finite"),
        (5, {"rate": 0}, "rate=0 must be above 0"),
        (5, {"exponent": 1}, "exponent=1 must be at least 1.01"),
        (5, {"columns": ("a", "b")}, "columns=('a', 'b') must be three different names"),
        (5, {"columns": ("a", "b", "a")}, "must be three different names"),
        (5, {"columns": (1, 2, 3)}, "columns=(1, 2, 3) must be three different names"),
        (5, {"low": "few"}, "low='few' is not a number"),
        (5, {"rate": "fast"}, "rate='fast' is not a number"),
        (5, {"mean": float("nan"), "key": "gaussian"}, "mean=nan must be finite"),
        (5, {"exponent": float("nan"), "key": "zipf"}, "exponent=nan must be finite"),
        (5, {"drift": float("inf"), "key": "drift"}, "drift=inf must be finite"),
        (5, {"dtype": "string?"}, "dtype='string?' is no integer or float type"),
        (5, {"dtype": "bool"}, "dtype='bool' is no integer or float type"),
        (5, {"start": "soon"}, "start='soon' is no ISO date or time"),
        (5, {"start": "2024-01-01T00:00:00+01:00"}, "has a time zone; give it without"),
    ],
)
def test_synthetic_refuses(given, options, text):
    with raises(FlowError, text):
        synthetic(given, **options)


def test_synthetic_key_that_does_not_fit_its_type():
    with raises(SourceError, "do not fit int16; low=0 and high=30000 are only where"):
        drain(synthetic(5, key="gamma", dtype="int16", high=30_000))
    with raises(SourceError, "do not fit uint8; low=-1"):
        drain(synthetic(5, low=-1, high=5, dtype="uint8"))
    with raises(SourceError, "do not fit int64; low="):
        drain(synthetic(5, low=2**63, high=2**63 + 5, dtype="uint64"))


def test_synthetic_integer_keys_are_exact_beside_a_large_low():
    keys = keys_of(1000, low=2**62 - 1, high=2**62 + 1)
    assert sorted(set(keys)) == [2**62 - 1, 2**62]


# --- the user's own ----------------------------------------------------------------------------------------


@source
class Listed:
    """Reads what it is given, one by one."""

    schema = pa.schema([("x", pa.int64()), ("y", pa.string())])
    closed = 0

    def __init__(self, *given):
        self.given = list(given)

    def read(self):
        if not self.given:
            return END_OF_SOURCE
        item = self.given.pop(0)
        if isinstance(item, Exception):
            raise item
        return item

    def close(self):
        type(self).closed += 1


ROW = pa.record_batch({"x": [1], "y": ["a"]})


def test_own_source_reads_batches_tables_and_nothing():
    swapped = pa.table({"y": ["b", "c"], "x": [2, 3]})
    chunks = pa.concat_tables([swapped, swapped])
    reader = Listed(ROW, None, chunks, chunks.slice(0, 0)).reader(None)
    read = [reader.read() for _ in range(6)]
    assert read[1] is None
    assert read[-1] is reader.read() is END_OF_SOURCE
    assert [read[at].num_rows for at in (0, 2, 3, 4)] == [1, 2, 2, 0]
    assert all(read[at].schema == Listed(ROW).schema for at in (0, 2, 3, 4))
    before = Listed.cls.closed
    reader.close()
    assert Listed.cls.closed == before + 1
    with raises(SourceError, "source Listed: the reader is closed"):
        reader.read()


def test_own_source_is_asked_no_more_after_its_end():
    reader = Listed(END_OF_SOURCE, ROW).reader(None)
    assert [reader.read(), reader.read()] == [END_OF_SOURCE, END_OF_SOURCE]


def test_own_source_is_opened_anew_each_time():
    spec = Listed(ROW)
    assert isinstance(spec, Source)
    assert rows(spec) == rows(spec) == [{"x": 1, "y": "a"}]
    assert spec.describe() == "source Listed"
    assert Listed.__doc__ == "Reads what it is given, one by one."


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ([1, 2], SourceError, "returned [1, 2] of type list; return a pyarrow.RecordBatch or Table"),
        (
            pa.record_batch({"x": [1]}),
            SourceError,
            "unlike its schema: column 'y' (string) is missing; it has: x",
        ),
        (pa.record_batch({"x": [1.5], "y": ["a"]}), SourceError, "column 'x' is double and should be int64"),
        (OSError("line is dead"), UserFunctionError, "raised OSError: line is dead"),
    ],
)
def test_own_source_that_goes_wrong_is_named_with_its_line_and_stays_wrong(given, kind, text):
    reader = Listed(ROW, given, ROW).reader(None)
    reader.read()
    for _ in range(2):
        with raises(kind, text) as caught:
            reader.read()
        assert re.search(r"Listed\.read \(.*test_ingest\.py:\d+\)", str(caught.value))
    if kind is UserFunctionError:
        assert isinstance(caught.value.__cause__, OSError)


def test_own_source_may_set_its_schema_in_init():
    closed = []

    class Sensor:
        def __init__(self, unit):
            self.schema = pa.schema([("t", pa.timestamp(unit))])

        def read(self):
            return END_OF_SOURCE

        def close(self):
            closed.append(self)

    spec = source(Sensor)("ms")
    assert spec.schema == spec.schema == pa.schema([("t", pa.timestamp("ms"))])
    assert len(closed) == 1
    assert drain(spec) == []
    assert len(closed) == 2
    with raises(UserFunctionError, "Sensor(...) ("):
        _ = source(Sensor)("parsec").schema


def test_own_source_that_cannot_say_its_schema_is_closed():
    closed = []

    class Shy:
        @property
        def schema(self):
            raise ValueError("not yet")

        def read(self):
            return END_OF_SOURCE

        def close(self):
            closed.append(self)
            raise OSError("nor this")

    with raises(UserFunctionError, "raised ValueError: not yet"):
        _ = source(Shy)().schema
    assert len(closed) == 1


def test_own_source_is_checked_when_it_is_made():
    class Nothing:
        pass

    class NoSchema:
        def read(self): ...

    class Twice(NoSchema):
        schema = pa.schema([("a", pa.int8()), ("a", pa.int8())])

    with raises(FlowError, "dt.source takes a class, not 5; write @dt.source above a class"):
        source(5)
    with raises(FlowError, "Nothing has no method 'read'; it needs read"):
        source(Nothing)
    with raises(FlowError, "Nothing has no method 'stage'; it needs stage, commit, abort"):
        sink(Nothing)
    with raises(FlowError, "source NoSchema: schema is None, not a pyarrow.Schema"):
        _ = source(NoSchema)().schema
    with raises(SchemaError, "source Twice: the column name 'a' occurs more than once"):
        _ = source(Twice)().schema
    with raises(FlowError, "too many positional arguments; it was given (5,) and {}"):
        source(NoSchema)(5)


def test_own_source_travels_by_name():
    assert rows(pickle.loads(pickle.dumps(Listed(ROW)))) == [{"x": 1, "y": "a"}]
    assert pickle.loads(pickle.dumps(source(PlainClass)))().schema == X


class PlainClass:
    schema = X

    def read(self):
        return END_OF_SOURCE


def test_origin_names_functions_of_every_kind():
    class Callable:
        def __call__(self, batch): ...

    assert re.fullmatch(r".*rows \(.*test_ingest\.py:\d+\)", origin(rows))
    assert re.fullmatch(r".*Callable \(.*test_ingest\.py:\d+\)", origin(Callable()))
    assert origin(print) == "print"


# --- all of them -------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), max_size=20), size=st.integers(1, 6))
def test_every_source_reads_the_same_rows_whatever_the_size_of_batches(values, size, tmp_path_factory):
    folder = tmp_path_factory.mktemp("same")
    table = pa.table({"x": pa.array(values, pa.int64())})
    pq.write_table(table, folder / "a.parquet", row_group_size=3)
    (folder / "a.csv").write_text("x\n" + "".join(f"{'' if v is None else v}\n" for v in values))
    for spec in (
        memory(table, size),
        parquet(folder / "a.parquet", batch_rows=size),
        csv(folder / "a.csv", schema=X, batch_rows=size),
    ):
        assert [row["x"] for row in rows(spec)] == values
        assert all(length <= size for length in sizes(spec))
