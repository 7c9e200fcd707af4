"""Sinks that keep or show results where the flow runs: `collect`, `show`, `call`, `null`.

All four hold staged batches in a queue and deal with them at `commit`, in order. `collect` is transactional:
its table is made anew by each run. The others act on the world outside, where nothing can be taken back, so
after a crash they may be given a batch again; `call` is told which one it is.
"""

__all__ = ["call", "collect", "null", "show"]

import abc
import inspect
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any, TextIO

import pyarrow as pa

from ..errors import DovetailError, FlowError, SinkError
from ..operators.contracts import Delivery, Rows, Writer
from ..operators.own import call_user, origin
from ._common import Pending, check_positive


class _Queue(abc.ABC):
    """A writer that holds staged batches back, and deals with them one by one at `commit`."""

    def __init__(self) -> None:
        self._pending = Pending()

    def stage(self, batch: pa.RecordBatch, epoch: int, part: int) -> None:
        """Hold rows back."""
        self._pending.add(batch, epoch, part)

    def commit(self, epoch: int) -> None:
        """Deal with what was held back for this epoch and those before it."""
        self._pending.deal(epoch, self._deal)

    def abort(self) -> None:
        """Drop what is held back."""
        self._pending.drop()

    def close(self) -> None:
        """Drop what was never committed."""
        self._pending.drop()

    @abc.abstractmethod
    def _deal(self, batch: pa.RecordBatch, epoch: int, part: int) -> None:
        """Show one batch."""


class _Sink:
    """A specification that takes any rows and promises nothing after a crash."""

    transactional = False

    def describe(self) -> str:
        """Name it in a plan: by its class."""
        return type(self).__name__.lower()

    def check(self, schema: pa.Schema) -> None:
        """Raise nothing: any rows will do."""


# --- collect -----------------------------------------------------------------------------------------------


def collect() -> "Collect":
    """Keep all results in memory, as one table.

    >>> import dovetail as dt
    >>> results = dt.collect()
    >>> writer = results.writer(pa.schema([("x", pa.int64())]), "run-1")
    >>> writer.stage(pa.record_batch({"x": [1, 2]}), 0, 0)
    >>> results.table().num_rows
    0
    >>> writer.commit(0); writer.close()
    >>> results.table().to_pydict()
    {'x': [1, 2]}
    """
    return Collect()


class Collect(_Sink):
    """The results of the latest run; made by `collect`."""

    transactional = True

    def __init__(self) -> None:
        self._run: _CollectWriter | None = None

    def writer(self, schema: pa.Schema, lineage: str, known: Any = None) -> Writer:
        """Start anew, or with what was committed before the checkpoint that is gone on from."""
        self._run = _CollectWriter(schema)
        if known:
            self._run.batches = list(known.batches)
            self._run.prepared = known.end
        return self._run

    def table(self, *, partial: bool = False) -> pa.Table:
        """Return everything that was committed.

        Raises if the run failed, as the table would look like a result and not be one; `partial=True`
        returns what was committed until then.
        """
        if self._run is None:
            raise FlowError("collect: there is no table before a run; run the flow first")
        if self._run.aborted and not partial:
            raise DovetailError(
                f"collect: the run failed and its output is incomplete; the {self._run.rows:,} rows that "
                f"were committed before are in .table(partial=True)"
            )
        return pa.Table.from_batches(self._run.batches, self._run.schema)


class _CollectWriter(_Queue):
    """The batches of one run."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__()
        self.schema = schema
        self.batches: list[pa.RecordBatch] = []
        self.prepared = 0  # rows that a checkpoint has
        self.aborted = False

    @property
    def rows(self) -> int:
        """How many rows were committed."""
        return sum(batch.num_rows for batch in self.batches)

    def prepare(self, epoch: int) -> tuple[Any, list[str]]:
        """Have a checkpoint keep the rows: those of this epoch too."""
        batches, at = [], 0
        for batch in [*self.batches, *self._pending.batches()]:
            if at >= self.prepared:
                batches.append(batch)
            at += batch.num_rows
        rows = Rows("collected", self.prepared, 0, batches)
        self.prepared = at
        return rows, []

    def abort(self) -> None:
        """Mark the run as failed."""
        super().abort()
        self.aborted = True

    def _deal(self, batch: pa.RecordBatch, epoch: int, part: int) -> None:
        self.batches.append(batch)


# --- null --------------------------------------------------------------------------------------------------


def null() -> "Null":
    """Count the results and keep none: to measure everything but the sink.

    >>> import dovetail as dt
    >>> dt.null().rows
    0
    """
    return Null()


class Null(_Sink):
    """Counts the rows of the latest run; made by `null`."""

    def __init__(self) -> None:
        self.rows = 0

    def writer(self, schema: pa.Schema, lineage: str, known: Any = None) -> Writer:
        """Count from 0 on, or from where a checkpoint has counted to."""
        self.rows = known["rows"] if known else 0
        return _NullWriter(self)


class _NullWriter:
    """Counts the rows of each epoch, and keeps none of them."""

    stages_elsewhere = True

    def __init__(self, spec: Null) -> None:
        self._spec = spec
        self._staged: dict[int, int] = {}  # rows by epoch

    def stage(self, batch: pa.RecordBatch, epoch: int, part: int) -> None:
        """Count rows."""
        self._staged[epoch] = self._staged.get(epoch, 0) + batch.num_rows

    def commit(self, epoch: int) -> None:
        """Add what was counted for this epoch and those before it."""
        for each in [each for each in self._staged if each <= epoch]:
            self._spec.rows += self._staged.pop(each)

    def prepare(self, epoch: int) -> tuple[Any, list[str]]:
        """Have a checkpoint keep the count."""
        return {"rows": self._spec.rows + sum(self._staged.values())}, []

    def abort(self) -> None:
        """Forget what was not committed."""
        self._staged.clear()

    def close(self) -> None:
        """Forget what was not committed."""
        self._staged.clear()


# --- call --------------------------------------------------------------------------------------------------


def call(fn: Callable[..., Any]) -> "Call":
    """Call a function with each batch of results, when its epoch commits.

    Parameters
    ----------
    fn
        Takes the batch; if it has a second parameter without a default, also the `Delivery`: (lineage,
        epoch, part), the same three values if after a crash the batch comes again.

    >>> import dovetail as dt
    >>> dt.call(print).describe()
    'call print'
    """
    if not callable(fn):
        raise FlowError(f"call: {fn!r} of type {type(fn).__name__} is no function; give one of a batch")
    return Call(fn, _takes(fn))


def _takes(fn: Callable[..., Any]) -> int:
    """Count what `fn` is to be given: 1, or 2."""
    try:
        signature = inspect.signature(fn)
    except ValueError:  # some builtins do not say
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes = [p for p in signature.parameters.values() if p.kind in kinds and p.default is p.empty]
    number = 2 if len(takes) == 2 else 1
    try:
        signature.bind(*[None] * number)
    except TypeError as failure:
        raise FlowError(
            f"call: {origin(fn)} takes {signature}; it is called with (batch) or with (batch, delivery)"
        ) from failure
    return number


class Call(_Sink):
    """Calls a function; made by `call`."""

    def __init__(self, fn: Callable[..., Any], takes: int) -> None:
        self._fn, self._takes = fn, takes

    def describe(self) -> str:
        """Name it in a plan."""
        return f"call {origin(self._fn)}"

    def writer(self, schema: pa.Schema, lineage: str, known: Any = None) -> Writer:
        """Call for the batches of this run."""
        return _CallWriter(self._fn, self._takes, lineage)


class _CallWriter(_Queue):
    def __init__(self, fn: Callable[..., Any], takes: int, lineage: str) -> None:
        super().__init__()
        self._fn, self._takes, self._lineage = fn, takes, lineage

    def _deal(self, batch: pa.RecordBatch, epoch: int, part: int) -> None:
        given = (batch, Delivery(self._lineage, epoch, part))
        call_user(self._fn, *given[: self._takes])


# --- show --------------------------------------------------------------------------------------------------


def show(n: int = 20, file: TextIO | None = None) -> "Show":
    """Print the first `n` rows, as they are committed, and at the end how many more there were.

    Parameters
    ----------
    n
        Rows, at most, that are printed.
    file
        Where to; standard output if it is None.

    >>> import dovetail as dt
    >>> writer = dt.show(2).writer(pa.schema([("x", pa.int64()), ("name", pa.string())]), "run-1")
    >>> writer.stage(pa.record_batch({"x": [8, 150, 3], "name": ["a", None, "c"]}), 0, 0)
    >>> writer.commit(0); writer.close()
      x  name
      8  a
    150  null
    … and 1 more row
    """
    check_positive("show", "n", n)
    if file is not None and not hasattr(file, "write"):
        raise FlowError(f"show: file={file!r} cannot be written to; give an open text file")
    return Show(n, file)


class Show(_Sink):
    """Prints rows; made by `show`."""

    def __init__(self, n: int, file: TextIO | None) -> None:
        self._n, self._file = n, file

    def describe(self) -> str:
        """Name it in a plan."""
        return f"show {self._n}"

    def writer(self, schema: pa.Schema, lineage: str, known: Any = None) -> Writer:
        """Print the rows of this run."""
        return _ShowWriter(schema, self._n, sys.stdout if self._file is None else self._file)


MOST_CHARACTERS = 32
"""Characters of one value: longer texts rarely tell more, and push the other columns off the screen."""

LEAST_CHARACTERS = 8
"""Characters that a column of text is cut down to before whole columns are left out."""


class _ShowWriter(_Queue):
    """Prints the rows of each commit, so that a slow stream shows its rows at once.

    A column is as wide as what it has shown so far needs, and the header says which columns there are: one
    that found no room then stays left out.
    """

    def __init__(self, schema: pa.Schema, n: int, file: TextIO) -> None:
        super().__init__()
        self._schema, self._left, self._file = schema, n, file
        self._more = 0  # rows beyond the first n
        self._lengths = [0] * len(schema)  # of the longest text that each column was to show so far
        self._columns: int | None = None  # how many of them fit; None until the header is printed
        self._over = False
        self._texts: list[list[str]] = []  # rows of this commit that are not printed yet

    def commit(self, epoch: int) -> None:
        """Print what the epoch brought."""
        super().commit(epoch)
        if self._texts:
            self._print()

    def abort(self) -> None:
        """Print no more."""
        super().abort()
        self._over = True

    def close(self) -> None:
        """Say how many rows were not printed."""
        super().close()
        if self._over:
            return
        self._over = True
        if self._columns is None:
            self._print()
            self._out("(no rows)\n")
        if self._more:
            self._out(f"… and {self._more:,} more {'row' if self._more == 1 else 'rows'}\n")

    def _deal(self, batch: pa.RecordBatch, epoch: int, part: int) -> None:
        shown = batch.slice(0, self._left)
        self._left -= shown.num_rows
        self._more += batch.num_rows - shown.num_rows
        self._texts.extend(map(list, zip(*(_texts(column) for column in shown.columns))))

    def _print(self) -> None:
        rows, self._texts = self._texts, []
        names = [_printable(name) for name in self._schema.names]
        right = [_is_number(field.type) for field in self._schema]
        self._lengths = [max(before, *map(len, column)) for before, *column in zip(self._lengths, names, *rows)]
        widths = _widths(self._lengths, right, shutil.get_terminal_size().columns)[: self._columns]
        header = [names] if self._columns is None else []
        self._columns = len(widths)
        lines = [_line(row, widths, right) for row in header + rows]
        if header and names[len(widths) :]:
            lines.append(f"(the screen has no room for: {', '.join(names[len(widths) :])})")
        self._out("".join(line + "\n" for line in lines))

    def _out(self, text: str) -> None:
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        try:
            self._file.write(text)
            self._file.flush()
        except BrokenPipeError as failure:
            raise SinkError("show: the reader of the output went away; give file=, or read on") from failure
        except (OSError, ValueError) as failure:  # a closed file is a ValueError
            raise SinkError(f"show: the output cannot be written: {failure}; give another file=") from failure


def _widths(wanted: list[int], right: list[bool], room: int) -> list[int]:
    """Fit columns into `room`: cut texts down from the longest, then leave out columns from the right.

    Numbers are never cut. The first column always stays.

    >>> _widths([5, 60], [True, False], 40)
    [5, 32]
    >>> _widths([5, 60], [True, False], 20)
    [5, 13]
    >>> _widths([5, 60, 3], [True, False, True], 15)
    [5, 8]
    """
    widths = [width if number else min(width, MOST_CHARACTERS) for width, number in zip(wanted, right)]
    texts = [at for at, (_, number) in enumerate(zip(widths, right)) if not number]
    while sum(widths) + 2 * (len(widths) - 1) > room:
        longest = max(texts, key=lambda at: widths[at], default=None)
        if longest is None or widths[longest] <= LEAST_CHARACTERS:
            break
        widths[longest] -= 1
    while len(widths) > 1 and sum(widths) + 2 * (len(widths) - 1) > room:
        widths.pop()
    return widths


def _line(row: list[str], widths: list[int], right: list[bool]) -> str:
    cells = []
    for text, width, number in zip(row, widths, right):
        text = text if len(text) <= width else text[: width - 1] + "…"
        cells.append(text.rjust(width) if number else text.ljust(width))
    return "  ".join(cells).rstrip()


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _texts(column: pa.Array) -> list[str]:
    """Write out the values of a column.

    Times go through Arrow and not through Python, which has no nanoseconds and no year 10,000.
    """
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kind = column.type
    if pa.types.is_floating(kind):
        return ["null" if value is None else f"{value:.6g}" for value in column.to_pylist()]
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        unit = f" {kind.unit}" if pa.types.is_duration(kind) else ""
        texts = column.cast(pa.int64() if unit else pa.string()).to_pylist()
        return ["null" if text is None else _iso(str(text)) + unit for text in texts]
    readable = _with_texts(kind)
    written = column if readable == kind else column.cast(readable)
    return ["null" if value is None else _printable(str(value)) for value in written.to_pylist()]


def _with_texts(kind: pa.DataType) -> pa.DataType:
    """Put texts in place of the times inside of a nested type; durations become numbers of their unit."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_texts(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_texts(kind.key_type), _with_texts(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_with_texts(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return (pa.list_ if pa.types.is_list(kind) else pa.large_list)(_with_texts(kind.value_type))
    return kind


def _iso(text: str) -> str:
    """Write a date and time with a T between, and without a fraction that is 0.

    >>> _iso("2024-01-01 10:00:00.000000Z"), _iso("2024-01-01 10:00:00.5")
    ('2024-01-01T10:00:00Z', '2024-01-01T10:00:00.5')
    """
    return re.sub(r"\.0+(?!\d)", "", re.sub(r"^([-+]?\d+-\d\d-\d\d) ", r"\1T", text))


def _printable(text: str) -> str:
    """Write out line ends and other characters that would break the table."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
