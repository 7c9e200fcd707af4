"""Parquet and CSV files, to read and to write. One object plays both roles: `dt.parquet("dc1/")`.

As a source it is a file, a folder, a glob or a list of these, read one file after another in the order of
their paths. The schema is the first file's, or the one that is given, and every other file must have it. As
a sink it is a folder of parts; `folder.py` tells how they appear.

Invariants
----------
- Which files there are is looked up when the schema is asked for, so that a missing path is an error where
  the flow is written, and once more when a run opens the source.
- A file that does not fit is an error with its name in it. No value is cast, no column filled in or left out
  (except those that nothing asked for).

Rejected: making equal what Arrow could cast without a loss. Which file came first would then decide the type
of every row after it, and a flow would change its meaning when a file is added.
"""

__all__ = ["csv", "parquet"]

import abc
import contextlib
import glob
import hashlib
import io
import json
import os
import time
import zlib
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ..errors import FlowError, SchemaError, SourceError, UnsupportedError, nearest
from ..operators.contracts import Reader, Writer
from ._common import BatchReader, check_positive, check_unique, difference, fit, pick, recut
from .folder import FolderWriter, RowFile, folder_problem

PathLike = str | os.PathLike[str]


def parquet(
    path: PathLike | Sequence[PathLike],
    *,
    batch_rows: int = 65_536,
    schema: pa.Schema | None = None,
    overwrite: bool = False,
    follow: bool = False,
) -> "Files":
    """Read Parquet files, or write a folder of them.

    Parameters
    ----------
    path
        To read: a file, a folder (its `*.parquet` in the order of their names, without its subfolders),
        a glob, or a list of these. Names that start with `_` or `.` are passed over. To write: a folder
        that does not exist or holds no other output.
    batch_rows
        Rows, at most, in a batch that is read. No result depends on it.
    schema
        To read: the columns to take, and their types; without, all of the first file's. To write: what
        the rows must have.
    overwrite
        To write: remove the parts of an earlier output when the run starts. Other files are never removed.
    follow
        To read: wait for files to come, whose names come after those that were read, instead of ending. A file must be
        there whole when it gets its name: write it under one that begins with `.` or `_`, and rename it.

    Notes
    -----
    Parquet knows neither `timestamp[s]` nor `date64`: they come back as `timestamp[ms]` and `date32`.

    >>> import tempfile, dovetail as dt
    >>> folder = tempfile.mkdtemp()
    >>> writer = dt.parquet(folder).writer(pa.schema([("x", pa.int64())]), "first")
    >>> writer.stage(pa.record_batch({"x": [1, 2]}), 0, 0)
    >>> os.listdir(folder)
    ['.staging-first']
    >>> writer.commit(0); writer.close()
    >>> os.listdir(folder)
    ['part-000000-0000.parquet']
    >>> dt.parquet(folder).reader(None).read().to_pydict()
    {'x': [1, 2]}
    """
    return ParquetFiles(path, batch_rows, schema, overwrite, follow)


def csv(
    path: PathLike | Sequence[PathLike],
    *,
    batch_rows: int = 65_536,
    schema: pa.Schema | None = None,
    overwrite: bool = False,
    delimiter: str = ",",
    column_types: Mapping[str, pa.DataType] | None = None,
    follow: bool = False,
) -> "Files":
    """Read CSV files with a header, or write a folder of them.

    Parameters
    ----------
    path, batch_rows, overwrite, follow
        As for `parquet`. A file to read may be compressed (`.gz`, `.bz2`, `.zst`).
    schema
        To read: the columns to take, and their types. Without it the types are inferred from the first
        megabyte of the first file, and what later does not fit them is an error.
    delimiter
        One ASCII character; to write, one that cannot stand inside a number or a time.
    column_types
        The types of some columns, where the rest may be inferred.

    Notes
    -----
    A field that is empty and not quoted is null, and nothing else is: "NA" is two letters, `nan` a number.
    In a file of one column an empty line is a null. So what this sink wrote reads back as it was, as far as
    text can tell its types.
    """
    return CsvFiles(path, batch_rows, schema, overwrite, follow, delimiter, column_types)


FOLLOW_SECONDS = 0.1
"""Between two looks for new files: a folder of thousands takes some milliseconds to list."""

MARK_BYTES = 1 << 16
"""Bytes at both ends of a file by which it is told from others: a Parquet file's end says what is in all of it."""


BLOCK_FILES = 256
"""So many files that were read are remembered by one number: a folder may be followed for months."""


class Files(abc.ABC):
    """What files of both kinds have in common; the kinds say how one file is read and written.

    A position is: a number for each `BLOCK_FILES` files that were read, then for each further one what tells it from
    others, then the same of the file that was begun, and how many of its rows were read.
    """

    kind = ""
    transactional = True

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        batch_rows: int,
        schema: pa.Schema | None,
        overwrite: bool,
        follow: bool,
    ) -> None:
        check_positive(self.kind, "batch_rows", batch_rows)
        if schema is not None and not isinstance(schema, pa.Schema):
            raise FlowError(f"{self.kind}: schema={schema!r} is not a pyarrow.Schema; give pa.schema([...])")
        if schema is not None:
            check_unique(f"{self.kind}: schema=", schema)
        self._paths = _texts(self.kind, path)
        self._listed = not isinstance(path, str | os.PathLike)
        self._batch_rows = batch_rows
        self._given = schema
        self._overwrite = overwrite
        self._follow = follow
        self._known: pa.Schema | None = None
        self._count = 0
        self._looked = 0.0  # for new files

    @property
    def path(self) -> str:
        """The path as it was given; the first one of a list."""
        return self._paths[0]

    @property
    def paths(self) -> list[str]:
        """All paths, files, folders and patterns, as they were given."""
        return list(self._paths)

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch that is read; looked up once."""
        if self._known is None:
            files = self._files()
            self._known, self._count = self._first_schema(files), len(files)
        return self._known

    def describe(self) -> str:
        """Name it in a plan, with the number of files if they were looked up."""
        name = f"{self.kind} {self.path}" + (f" and {len(self._paths) - 1} more" if self._paths[1:] else "")
        if self._known is None:
            return name
        return f"{name} ({self._count:,} {'file' if self._count == 1 else 'files'})"

    @property
    def replayable(self) -> bool:
        """True: files stay as they are."""
        return True

    def reader(self, columns: Sequence[str] | None, position: Any = None) -> Reader:
        """Start reading the files from the first, or from a position."""
        where = f"{self.kind} {self.path!r}"
        wanted, files = pick(self.schema, columns, where), self._files()
        start = {"blocks": [], "done": [], "current": None, "row": 0} if position is None else position
        self._check_position(files, start)
        return BatchReader(self._read(files, wanted, start), where, start)

    def writer(self, schema: pa.Schema, lineage: str, known: Any = None) -> Writer:
        """Start writing files into the folder."""
        self._known = None  # what lies in the folder is about to change
        return FolderWriter(
            self.path, self.kind, lambda file: self._new_file(file, schema), schema, lineage, self._overwrite, known
        )

    def _check_position(self, files: list[str], position: Any) -> None:
        """Raise if the files that were read, or begun, are not those that there are now."""
        for block, number in enumerate(position["blocks"]):
            first = block * BLOCK_FILES
            some = [_mark(self.kind, path) for path in files[first : first + BLOCK_FILES]]
            if _number_of(some) != number:
                raise SourceError(
                    f"{self.kind} {self.path!r}: of files {first + 1:,} to {first + BLOCK_FILES:,} one is gone, new, "
                    "or has changed since they were read; put the files back, or begin in another checkpoint folder"
                )
        read = len(position["blocks"]) * BLOCK_FILES
        begun = [*position["done"], *[position["current"]] * bool(position["row"])]
        for at, (name, size, crc) in enumerate(begun, read):
            found = _mark(self.kind, files[at]) if at < len(files) else None
            if found != [name, size, crc]:
                now = "there is none" if found is None else f"there is {found[0]!r} of {found[1]:,} bytes"
                now = "its contents have changed" if found is not None and found[:2] == [name, size] else now
                raise SourceError(
                    f"{self.kind} {self.path!r}: file {at + 1} was {name!r} of {size:,} bytes when it was read before, "
                    f"and now {now}; put the files back, or begin in another checkpoint folder"
                )

    def _read(
        self, files: list[str], wanted: pa.Schema, start: Any
    ) -> Generator[tuple[pa.RecordBatch | None, Any], None, None]:
        """Read these columns of the files, one file after another, each batch with the position behind it.

        Where there is nothing now, but something may come, None comes in place of a batch.
        """
        position = start
        while True:
            passed = len(position["blocks"]) * BLOCK_FILES + len(position["done"])
            begun, ends, before, row = passed, deque[tuple[list[Any], int]](), 0, position["row"]
            marks: dict[str, list[Any]] = {}
            for batch in self._in_cuts(self._batches(files[passed:], wanted, row, marks, ends)):
                row += batch.num_rows
                while ends and ends[0][1] <= row:
                    mark, before = ends.popleft()
                    position, begun = _behind(position, mark), begun + 1
                left = row - before
                position = {**position, "current": marks[files[begun]] if left else None, "row": left}
                yield batch, position
            for mark, _ in ends:  # files without rows
                position = _behind(position, mark)
            position = {**position, "current": None, "row": 0}
            if not self._follow:
                return
            while (more := self._new_files(files)) == files:
                yield None, position
            files = more

    def _batches(
        self, files: list[str], wanted: pa.Schema, skip: int, marks: dict[str, Any], ends: deque[tuple[list[Any], int]]
    ) -> Iterator[pa.RecordBatch]:
        """Read files; note what tells them from others, and behind which row each ends."""
        until = 0
        for path in files:
            marks[path] = _mark(self.kind, path)
            until += skip
            for batch in self._read_file(path, wanted, skip):
                until += batch.num_rows
                yield batch
            ends.append((marks[path], until))
            skip = 0

    def _new_files(self, before: list[str]) -> list[str]:
        """List the files anew, not too often; the ones that were there must be the first of them."""
        now = time.monotonic()
        if now - self._looked < FOLLOW_SECONDS:
            return before
        self._looked = now
        files = self._files()
        for at, path in enumerate(before):
            if at >= len(files) or files[at] != path:
                what = f"{path!r} is gone" if path not in files else f"{files[at]!r} has come before {path!r}"
                raise SourceError(
                    f"{self.kind} {self.path!r}: {what}, which was read already; give new files names that come after "
                    "those that are there, and leave these until the run has ended"
                )
        return files

    def _in_cuts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    def check(self, schema: pa.Schema) -> None:
        """Raise a FlowError if rows of this schema can never be written there."""
        if self._listed:
            raise FlowError(f"{self.kind} sink: the list {self._paths} can only be read; give one folder")
        if glob.has_magic(self.path) and not os.path.lexists(self.path):
            raise FlowError(f"{self.kind} sink: the pattern {self.path!r} can only be read; give one folder")
        check_unique(f"{self.kind} sink {self.path!r}", schema)
        how = difference(schema, self._given) if self._given is not None else ""
        if how:
            raise SchemaError(f"{self.kind} sink {self.path!r}: the rows differ from schema=: {how}")
        for field in schema:
            self._check_column(field)
        try:
            problem = folder_problem(self.path, self.kind, self._overwrite, may_go_on=True)
        except OSError as failure:
            problem = f"{self.path!r} cannot be looked at: {failure.strerror}; give another path"
        if problem:
            raise FlowError(f"{self.kind} sink: {problem}")

    def _check_column(self, field: pa.Field) -> None:
        """Try a row with a null in this column alone: the format itself knows best what it can hold."""
        schema = pa.schema([field.with_nullable(True)])
        try:
            writer = self._new_file(io.BytesIO(), schema)
            writer.write_table(pa.table([pa.nulls(1, field.type)], schema=schema))
            writer.close()
        except pa.ArrowException as failure:
            raise SchemaError(
                f"{self.kind} sink {self.path!r}: column {field.name!r} is {field.type}, which {self.kind} "
                f"cannot hold ({failure}); leave it out with .select(...), or cast it before"
            ) from failure

    def _files(self) -> list[str]:
        """List the files that there are now."""
        return [file for path in self._paths for file in _expand(self.kind, path, self._given is not None)]

    @abc.abstractmethod
    def _first_schema(self, files: list[str]) -> pa.Schema:
        """Say the schema of every file; `files` may be empty only if it was given."""

    @abc.abstractmethod
    def _read_file(self, path: str, wanted: pa.Schema, skip: int) -> Iterator[pa.RecordBatch]:
        """Read these columns of a file, but for some rows at its beginning."""

    @abc.abstractmethod
    def _new_file(self, file: BinaryIO, schema: pa.Schema) -> RowFile:
        """Begin a file of this kind."""

    def _compare(self, file: str, found: pa.Schema) -> None:
        """Raise unless this file has the schema of the source."""
        how = difference(found, self.schema, extra=self._given is not None)
        if how:
            whose = "schema=" if self._given is not None else "the first file"
            raise SourceError(
                f"{self.kind} file {file!r} does not fit {whose}: {how}. Types must be the same, also where "
                f"one could be cast without a loss: write the file anew, or read it as a source of its own"
            )


def _behind(position: Any, mark: list[Any]) -> Any:
    """Return the position behind one more file."""
    blocks, done = position["blocks"], [*position["done"], mark]
    if len(done) == BLOCK_FILES:
        blocks, done = [*blocks, _number_of(done)], []
    return {**position, "blocks": blocks, "done": done}


def _number_of(marks: list[list[Any]]) -> str:
    return hashlib.blake2b(json.dumps(marks).encode(), digest_size=8).hexdigest()


class ParquetFiles(Files):
    """Parquet files; made by `parquet`."""

    kind = "parquet"

    def _first_schema(self, files: list[str]) -> pa.Schema:
        if self._given is not None:
            return self._given
        with _reading("parquet", files[0]):
            schema = pq.read_schema(files[0])
        check_unique(f"parquet file {files[0]!r}", schema, SourceError)
        return schema

    def _read_file(self, path: str, wanted: pa.Schema, skip: int) -> Iterator[pa.RecordBatch]:
        with _reading("parquet", path), pq.ParquetFile(path) as file:
            self._compare(path, file.schema_arrow)
            group = 0
            while group < file.num_row_groups and skip >= file.metadata.row_group(group).num_rows:
                skip -= file.metadata.row_group(group).num_rows
                group += 1
            groups = range(group, file.num_row_groups)
            for batch in file.iter_batches(self._batch_rows, row_groups=groups, columns=wanted.names):
                skip, rest = max(0, skip - batch.num_rows), batch.slice(skip)
                if rest.num_rows:
                    yield fit(rest, wanted, f"parquet file {path!r}", SourceError)

    def _new_file(self, file: BinaryIO, schema: pa.Schema) -> RowFile:
        return pq.ParquetWriter(file, schema)


class CsvFiles(Files):
    """CSV files; made by `csv`."""

    kind = "csv"

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        batch_rows: int,
        schema: pa.Schema | None,
        overwrite: bool,
        follow: bool,
        delimiter: str,
        column_types: Mapping[str, pa.DataType] | None,
    ) -> None:
        super().__init__(path, batch_rows, schema, overwrite, follow)
        if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise FlowError(f"csv: delimiter={delimiter!r} must be one ASCII character, such as ',' or '\\t'")
        if schema is not None and column_types is not None:
            raise FlowError("csv: schema= already says every type; leave column_types= out")
        self._delimiter = delimiter
        self._types = dict(column_types or {})

    def _first_schema(self, files: list[str]) -> pa.Schema:
        if self._given is not None:
            return self._given
        with self._opened(files[0], self._types) as reader:
            schema = reader.schema
        check_unique(f"csv file {files[0]!r}", schema, SourceError)
        for name in self._types:
            if name not in schema.names:
                raise SchemaError(f"csv: column_types= names {name!r}; {nearest(name, schema.names)}")
        return schema

    def _in_cuts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return recut(batches, self._batch_rows)

    def _read_file(self, path: str, wanted: pa.Schema, skip: int) -> Iterator[pa.RecordBatch]:
        types = {field.name: field.type for field in self.schema}
        # First with every column, to see the header; then with those that are wanted, which are parsed alone.
        with self._opened(path, types) as reader:
            self._compare(path, reader.schema)
            columns = len(reader.schema)
        with self._opened(path, types, wanted.names, columns) as reader, _reading("csv", path):
            for batch in reader:
                skip, rest = max(0, skip - batch.num_rows), batch.slice(skip)
                if rest.num_rows:
                    yield fit(rest, wanted, f"csv file {path!r}", SourceError)

    @contextlib.contextmanager
    def _opened(
        self, path: str, types: dict[str, pa.DataType], names: Sequence[str] = (), columns: int = 0
    ) -> Iterator[pacsv.CSVStreamingReader]:
        """Open one file; `columns` is how many it has, where that is known."""
        with _reading("csv", path):
            reader = pacsv.open_csv(
                path,
                parse_options=pacsv.ParseOptions(
                    delimiter=self._delimiter,
                    newlines_in_values=True,
                    ignore_empty_lines=columns != 1,  # in a single column an empty line is a null
                ),
                convert_options=pacsv.ConvertOptions(
                    column_types=types,
                    include_columns=list(names),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        with reader:
            yield reader

    def _check_column(self, field: pa.Field) -> None:
        super()._check_column(field)
        # Only texts are quoted.
        text = pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary
        quoted = any(is_text(_plain(field.type)) for is_text in text)
        if not quoted and (self._delimiter.isalnum() or self._delimiter in "+-.: "):
            raise FlowError(
                f"csv sink {self.path!r}: delimiter={self._delimiter!r} can stand inside a value of column "
                f"{field.name!r}, {field.type}, so that nobody could read it back; take another one"
            )

    def _new_file(self, file: BinaryIO, schema: pa.Schema) -> RowFile:
        return _CsvWriter(file, schema, self._delimiter)


class _CsvWriter:
    """A `CSVWriter` that writes dictionary columns as their values."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, delimiter: str) -> None:
        self._schema = pa.schema([field.with_type(_plain(field.type)) for field in schema])
        self._writer = pacsv.CSVWriter(file, self._schema, write_options=pacsv.WriteOptions(delimiter=delimiter))

    def write_table(self, table: pa.Table) -> None:
        """Append rows."""
        self._writer.write_table(table if table.schema.equals(self._schema) else table.cast(self._schema))

    def close(self) -> None:
        """End the file."""
        self._writer.close()


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _mark(kind: str, path: str) -> list[Any]:
    """Return what tells a file from others: its name, its length, and a checksum of its ends."""
    with _reading(kind, path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        crc = zlib.crc32(file.read(MARK_BYTES))
        file.seek(max(0, size - MARK_BYTES))
        return [os.path.basename(path), size, zlib.crc32(file.read(MARK_BYTES), crc)]


@contextlib.contextmanager
def _reading(kind: str, path: str) -> Iterator[None]:
    """Turn what Arrow or the file system says into a SourceError that names the file."""
    try:
        yield
    except (OSError, pa.ArrowException) as failure:
        advice = {
            "parquet": "the file is damaged, was written only in part, or is no Parquet file",
            "csv": "types are inferred from the first block: if one is wrong, give schema= or column_types=",
        }[kind]
        raise SourceError(f"{kind} file {path!r} cannot be read: {failure}; {advice}") from failure


def _texts(kind: str, path: PathLike | Sequence[PathLike]) -> list[str]:
    """Settle the paths as text."""
    given = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not given:
        raise FlowError(f"{kind}: the list of paths is empty; give at least one")
    for one in given:
        text = os.fspath(one) if isinstance(one, str | os.PathLike) else None
        if not isinstance(text, str) or not text:
            raise FlowError(f"{kind}: {one!r} is no path; give a str or a pathlib.Path")
        if "://" in text:
            raise UnsupportedError(f"{kind}: {text!r} is an address; only paths on this machine can be used")
    return [os.fspath(one) for one in given]


def _expand(kind: str, path: str, may_be_empty: bool) -> list[str]:
    """List the files that one path stands for."""
    if os.path.isdir(path):
        found = sorted(name for name in os.listdir(path) if name.endswith(f".{kind}"))
        files = [os.path.join(path, name) for name in found]
        nothing = f"the folder {path!r} ({os.path.abspath(path)}) holds no *.{kind}; {_contents(path)}"
    elif os.path.exists(path):
        return [path]
    elif glob.has_magic(path):
        files = sorted(glob.glob(path, recursive=True))
        nothing = f"nothing matches the pattern {path!r} ({os.path.abspath(path)})"
    else:
        raise SourceError(_missing(kind, path))
    files = [file for file in files if os.path.isfile(file) and os.path.basename(file)[0] not in "._"]
    if not files and not may_be_empty:
        raise SourceError(f"{kind}: {nothing}. Without a file there is no schema: pass schema= if it may be empty")
    return files


def _missing(kind: str, path: str) -> str:
    """Say that a path does not exist, and what there is in its place."""
    full = os.path.abspath(path)
    above, name = os.path.split(full)
    if not os.path.isdir(above):
        while not os.path.isdir(above):
            above, name = os.path.split(above)
    return f"{kind}: {path!r} does not exist ({full}); in {above!r}: {nearest(name, os.listdir(above))}"


def _contents(path: str) -> str:
    """Say what a folder holds, where that is not what was looked for."""
    names = sorted(os.listdir(path))
    if not names:
        return "it is empty"
    inside = any(os.path.isdir(os.path.join(path, name)) for name in names)
    listed = ", ".join(names[:5]) + (", …" if names[5:] else "")
    return f"it holds {listed}" + (" (a glob such as 'folder/**/*' enters subfolders)" if inside else "")
