"""Windows with keys: what they mean, what they refuse, and that nothing but the input decides about a result.

First a matrix as in test_invariance.py: random streams, windows, keys and aggregates, run in random pieces, and
compared with the loops in windowed.py. Then each sentence about windows on its own, with results that are written
out by hand, so that the oracle and the library cannot be wrong alike.
"""

import datetime
import math
import shutil
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter
from random import Random
from typing import Any

import dovetail as dt
import numpy as np
import oracle
import pyarrow as pa
import pytest
import windowed
from dovetail import END_OF_SOURCE, col, left, right
from flows import Clock, Feed, collected, finish, memory, started
from hypothesis import given
from hypothesis import strategies as st
from running import batches, read_options, value_type
from streams import (
    BINARY,
    BOOL,
    DATE,
    DECIMALS,
    DURATIONS,
    FLOAT64,
    FLOATS,
    INT64,
    INTS,
    SIGNED,
    STAMPS,
    TEXTS,
    ZONED,
    Kind,
    Side,
    examples,
    said_duration,
)
from windowed import Session, Sliding, Tumbling

# Drawing streams


CLOCKS = [Kind("time32", "clock", pa.time32("s")), Kind("time64", "clock", pa.time64("us"))]
PAIR = Kind("fixed_size_binary", "pair", pa.binary(2))
CODED = Kind("dictionary of ints", "int", pa.dictionary(pa.int16(), pa.int64()), -(2**63), 2**63 - 1)
KEY_FAMILIES = [INTS, [INT64], FLOATS, FLOATS, [BOOL], [BINARY, PAIR], TEXTS, STAMPS, ZONED, [DATE], DURATIONS,
                DECIMALS, CLOCKS, [CODED]]  # fmt: skip
VALUE_FAMILIES = [INTS, INTS, FLOATS, FLOATS, DECIMALS, STAMPS, ZONED, [DATE], DURATIONS, TEXTS, [BOOL]]
TIME_FAMILIES = [INTS, [INT64], STAMPS, ZONED, [DATE]]
NUMBERS = ("int", "float", "decimal")
ORDERED = (*NUMBERS, "timestamp", "zoned", "date", "duration")

LENGTHS = (0, 1, 2, 3, 5, 8, 13, 20, 30, 45)


def values_of(kind: Kind, rng: Random) -> list[Any]:
    """A few raw values, so that rows meet in groups; the ends of the type among them now and then."""
    if kind.family == "float":
        values = [0.0, -0.0, 1.5, 0.1, 0.2, 0.3, -2.5, math.nan, math.nan, math.inf, -math.inf, 1e308, 5e-324]
        if kind is not FLOAT64:
            values = [float(np.float32(value)) for value in values if abs(value) != 1e308]
    elif kind.family == "decimal":
        top = Decimal(10**kind.type.precision - 1).scaleb(-kind.type.scale)
        values = [Decimal(text) for text in ("0", "1", "-1", "2")] + [top, -top]
    elif kind.family == "clock":
        values = [datetime.time(0), datetime.time(12, 30), datetime.time(23, 59, 59)]
    elif kind.family in ("text", "binary", "bool", "pair"):
        texts = ["", "a", "b", "ab", "é", "a\0"]
        values = {"text": texts, "binary": [b"", b"a", b"a\0"], "bool": [True, False], "pair": [b"ab", b"a\0"]}[
            kind.family
        ]
    else:
        values = [n for n in (0, 1, 2, 3, -1, -2) if kind.low <= n]
        if rng.random() < 0.25:
            values = [kind.low, kind.high, kind.high - 1, 0, 1]
    return rng.sample(values, rng.randint(1, min(5, len(values))))


@dataclass(frozen=True)
class Written:
    """An aggregate as it is written, what the oracle makes of a group's rows, and the type that it should have."""

    said: Any
    meant: windowed.Aggregate
    type: pa.DataType
    close: bool = False  # not determined to its last place


@dataclass(frozen=True, repr=False)
class Case:
    """A stream, and what is asked of it."""

    side: Side
    window: windowed.Window
    keys: tuple[str, ...]
    seed: int

    def __repr__(self) -> str:
        said = f"{self.window} of {self.keys}: {self.side.columns} delay={self.side.delay}"
        return "\n".join([f"Case of seed {self.seed}", said, *(f"    {row}" for row in self.side.rows)])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def rng(self, purpose: str) -> Random:
        return Random(f"{self.seed} {purpose}")

    @property
    def events(self) -> list[oracle.Event]:
        return read(self.side)

    @property
    def time(self) -> Kind:
        return self.side.columns["ts"]

    def aggregates(self) -> dict[str, Written]:
        """Some aggregates, in any order."""
        rng, every = self.rng("aggregates"), catalog(self.side.columns)
        return {name: every[name] for name in rng.sample(list(every), rng.randint(1, 6))}


def read(side: Side) -> list[oracle.Event]:
    """The stream as it stands in order, with times in units; without the late rows."""
    return oracle.read(side.rows, oracle.Clock("ts", 1), side.delay)[0]


def listed(batch: pa.RecordBatch) -> str:
    assert batch.schema.names == ["id"]
    return joined(batch["id"].to_pylist())


def joined(ids) -> str:
    return " ".join(map(str, ids))


IDS = dt.group_udf(listed, ["id"], pa.string())
"""Which rows a group has, in their order."""


def catalog(columns: dict[str, Kind]) -> dict[str, Written]:
    """Every aggregate that can be asked of these columns."""
    made = {
        "rows": Written(dt.count(), windowed.count, pa.int64()),
        "ids": Written(IDS, lambda rows: joined(row["id"] for row in rows), pa.string()),
        "both": Written(dt.group_udf(last_of_two, ["n", "id"], pa.int64()), lambda rows: rows[-1]["n"], pa.int64()),
        "none": Written(dt.group_udf(lambda batch: None, ["v"], pa.date32()), lambda rows: None, pa.date32()),
    }
    for name in ("v", "w", "k0"):
        made |= of_column(name, columns[name])
    for name, (said, of, kind) in COMPUTED.items():
        made |= of_expression(name, said, of, kind)
    return made


def last_of_two(batch: pa.RecordBatch) -> int | None:
    assert batch.schema.names == ["n", "id"]
    return batch["n"][-1].as_py()


def of_column(name: str, kind: Kind) -> dict[str, Written]:
    def of(row):
        return exact(row[name])

    said = col(name)
    made = {}
    if kind.family not in ("clock", "pair"):
        made[f"{name}_seen"] = Written(said.count(), windowed.counted(of), pa.int64())
    if kind.family in ORDERED and not pa.types.is_dictionary(kind.type):
        made[f"{name}_low"] = Written(said.min(), windowed.least(of), kind.type)
        made[f"{name}_top"] = Written(said.max(), windowed.greatest(of), kind.type)
    if kind.family in (*NUMBERS, "duration") and not pa.types.is_dictionary(kind.type):
        made[f"{name}_total"] = Written(said.sum(), windowed.total(of), sum_type(kind))
    if kind.family in NUMBERS and not pa.types.is_dictionary(kind.type):
        made[f"{name}_mean"] = Written(said.mean(), windowed.mean(of), pa.float64(), close=kind.family == "decimal")
    return made


def sum_type(kind: Kind) -> pa.DataType:
    if kind.family == "int":
        return pa.uint64() if kind.low == 0 else pa.int64()
    if kind.family == "decimal":
        return pa.decimal128(38, kind.type.scale)
    return kind.type if kind.family == "duration" else pa.float64()


def of_expression(name: str, said: Any, of: windowed.Of, kind: pa.DataType):
    return {
        f"{name}_seen": Written(said.count(), windowed.counted(of), pa.int64()),
        f"{name}_total": Written(said.sum(), windowed.total(of), kind),
        f"{name}_mean": Written(said.mean(), windowed.mean(of), pa.float64()),
        f"{name}_low": Written(said.min(), windowed.least(of), kind),
        f"{name}_top": Written(said.max(), windowed.greatest(of), kind),
    }


def of_present(names: str, of: Callable[..., Any]) -> windowed.Of:
    """A function of columns as one of a row: null if one of them is."""

    def value(row):
        values = [row[name] for name in names]
        return None if None in values else of(*values)

    return value


COMPUTED = {
    "twice": (col("n") * 2, of_present("n", lambda n: n * 2), pa.int64()),
    "apart": (col("n") - col("m"), of_present("nm", lambda n, m: n - m), pa.int64()),
    "far": ((col("n") - 1).abs(), of_present("n", lambda n: abs(n - 1)), pa.int64()),
    "half": (col("f") * 0.5, of_present("f", lambda f: f * 0.5), pa.float64()),
    "as_float": (col("m").cast("float64"), of_present("m", float), pa.float64()),
}


def exact(value: Any) -> Any:
    return Fraction(value) if isinstance(value, Decimal) else value


def times_of(rng: Random, kind: Kind, size: int, step: int) -> list[int]:
    """Times mostly at multiples of a step, many of them equal, some out of order."""
    per_second = 1 if kind.tick is None or kind is DATE else int(1 / kind.tick)
    zero = rng.choice([0, 0, -5 * step, -5 * step - 1, (19_000 if kind is DATE else 1_700_000_000) * per_second])
    if kind.tick is None:
        zero = rng.choice([0, 0, -5 * step, kind.low if kind.high < 2**31 else 0, 10**6])
    low, high = max(kind.low, -(2**62)), min(kind.high, 2**62)
    seed, spread = rng.random(), rng.choice([0, 3, 8, 20, 60])
    grid = [Random(f"{seed} {n}").randint(0, spread) for n in range(size)]
    if rng.random() < 0.6:
        grid.sort()
    off = [0, 0, -1, 1] if step > 1 else [0]
    times = [zero + step * n + Random(f"{seed} off {at}").choice(off) for at, n in enumerate(grid)]
    return [min(max(time, low), high) for time in times]


def rows_of(rng: Random, kinds: dict[str, Kind], size: int, first: int = 0) -> list[dict]:
    """Rows whose values come from a few. Row n is drawn from (seed, n), so that a shorter stream is a prefix."""
    seed, nulls = rng.random(), rng.choice([0.0, 0.15])
    pools = {name: values_of(kind, rng) for name, kind in kinds.items()}
    rows = []
    for n in range(size):
        one = Random(f"{seed} {n}")
        row = {name: None if one.random() < nulls else one.choice(pool) for name, pool in pools.items()}
        rows.append({"id": first + n, **row, "n": one.choice([-3, 0, 1, 2, None]), "m": one.choice([-100, 0, 7])})
    return rows


def a_window(rng: Random, step: int) -> windowed.Window:
    """From much smaller than the distance of rows to much larger."""
    size = rng.choice([1, max(1, step // 3), step, step, step + 1, 3 * step, 7 * step - 1, 10 * step, 1000 * step])
    kind = rng.choice(["tumbling", "sliding", "session"])
    if kind == "sliding":
        whole = size // rng.randint(1, 5) or 1
        return Sliding(size, rng.choice([whole, whole, rng.randint(-(-size // 12), size)]))
    return Tumbling(size) if kind == "tumbling" else Session(size)


def a_side(rng: Random, size: int, kinds: dict[str, Kind], clock: Kind, step: int, first: int = 0) -> Side:
    rows, times = rows_of(rng, kinds, size, first), times_of(rng, clock, size, step)
    columns = {"id": INT64, **kinds, "n": SIGNED[1], "m": INT64, "ts": clock}
    names = list(columns)
    rng.shuffle(names)
    delay = Fraction(rng.choice([0, 0, step, 3 * step, 30 * step]))
    rows = [{**row, "ts": time} for row, time in zip(rows, times, strict=True)]
    return Side({name: columns[name] for name in names}, rows, "ts", delay)


@st.composite
def cases(draw) -> Case:
    """Any stream, window and keys. All but the size is drawn from one seed, as in streams.cases."""
    size, seed = draw(st.tuples(st.sampled_from(LENGTHS), st.integers(0, 2**64 - 1)))
    rng = Random(seed)
    kinds = {name: rng.choice(rng.choice(KEY_FAMILIES)) for name in ("k0", "k1", "k2")}
    kinds |= {name: rng.choice(rng.choice(VALUE_FAMILIES)) for name in ("v", "w")} | {"f": FLOAT64}
    clock = rng.choice(rng.choice(TIME_FAMILIES))
    per_second = 1 if clock.tick is None or clock is DATE else int(1 / clock.tick)
    step = 1 if clock.high < 2**15 else rng.choice([1, 3, 10, per_second, 60 * per_second])
    keys = tuple(rng.sample(["k0", "k1", "k2", "k0", "k1", "v", "ts"], rng.choice([0, 1, 1, 1, 2, 3])))
    side = a_side(rng, size, kinds, clock, step)
    return Case(side, a_window(rng, step), tuple(dict.fromkeys(keys)), seed)


# Running


def said(window: windowed.Window, clock: Kind, rng: Random | None = None) -> Any:
    """A window as it is written for this kind of time column."""

    def length(units: int) -> Any:
        exactly = units * clock.tick
        if rng is not None and exactly >= 1 and exactly.denominator == 1 and rng.random() < 0.3:
            return datetime.timedelta(seconds=int(exactly))
        return said_duration(exactly)

    if clock.tick is None:
        if isinstance(window, Sliding):
            return dt.sliding(time=window.size, every=window.every)
        return dt.tumbling(time=window.size) if isinstance(window, Tumbling) else dt.session(time=window.gap)
    if isinstance(window, Sliding):
        return dt.sliding(length(window.size), every=length(window.every))
    return dt.tumbling(length(window.size)) if isinstance(window, Tumbling) else dt.session(length(window.gap))


def windows_of(stream: Any, window: Any, keys: Sequence[str], aggregates: dict[str, Written], **name: str) -> Any:
    keyed = stream.key_by(*keys) if keys else stream
    return keyed.window(window).agg(**{key: one.said for key, one in aggregates.items()}, **name)


@dt.source
class Pieces:
    """Batches one by one, empty ones too; None is "nothing now"."""

    def __init__(self, schema, items):
        self.schema, self.items = schema, list(items)

    def read(self):
        return self.items.pop(0) if self.items else END_OF_SOURCE


@dt.sink
class Staged:
    """Hands on what a sink is given, at once, and not first when it is shown."""

    def __init__(self, into):
        self.into = into

    def stage(self, batch, epoch, part):
        self.into.append(batch)

    def commit(self, epoch): ...
    def abort(self): ...


def source_of(case: Case, side: Side | None = None) -> Any:
    """Any way to bring the rows: cut anywhere, with empty batches and with nothing at times."""
    side, rng = side or case.side, case.rng("source")
    schema, cut = side.schema, batches(case, side, most=8)
    if rng.random() < 0.5:
        return dt.memory(cut, rng.choice([1, 3, 1000]), schema=schema)
    for _ in range(rng.randint(0, 3)):
        cut.insert(rng.randint(0, len(cut)), rng.choice([None, side.batch([])]))
    return Pieces(schema, cut)


def options(case: Case) -> dt.Options:
    rng = case.rng("options")
    return dt.Options(batch_rows=rng.choice([1, 2, 7, 10**5]), out_rows=rng.choice([1, 3, 10**5]), poll_seconds=0)


# Comparing


class Float(str):
    """A float as text, so that NaN equals NaN and the zeros differ."""

    @property
    def number(self) -> float:
        return float(self)


def plain(column: pa.ChunkedArray | pa.Array) -> list:
    """A column's values such that equal means identical: times as counts of units, floats as text."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in plain(chunk)]
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        column = column.view(pa.int64())
    return [cell(value) for value in column.to_pylist()]


def cell(value: Any) -> Any:
    return Float(repr(value)) if isinstance(value, float) else exact(value)


def bound_type(clock: pa.DataType) -> pa.DataType:
    """The type of window_start and window_end."""
    if pa.types.is_timestamp(clock):
        return pa.timestamp(clock.unit, "UTC" if clock.tz else None)
    return clock if pa.types.is_date32(clock) else pa.int64()


def check(case: Case, table: pa.Table, expected: list[oracle.Event], aggregates: dict[str, Written]) -> None:
    """The schema and every cell of the results."""
    bound = bound_type(case.time.type)
    types = {
        **{key: value_type(case.side.columns[key].type) for key in case.keys},
        "window_start": bound,
        "window_end": bound,
        **{name: one.type for name, one in aggregates.items()},
    }
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == types
    assert table.schema.names == list(types), "columns are in order"
    for name in types:
        close = name in aggregates and aggregates[name].close
        found = [shown(value, close) for value in plain(table.column(name))]
        assert found == [shown(cell(event.row[name]), close) for event in expected], name


def shown(value: Any, close: bool) -> Any:
    """A cell as it is compared: any zero is the same here; which one is shown has tests of its own."""
    if not isinstance(value, Float):
        return value
    return Float(f"{value.number + 0.0:.13g}" if close else repr(value.number + 0.0))


def meant_by(case: Case, aggregates: dict[str, Written]) -> list[oracle.Event]:
    meant = {name: one.meant for name, one in aggregates.items()}
    return windowed.results(case.events, case.window, case.keys, meant)


def too_large(expected: list[oracle.Event], aggregates: dict[str, Written]) -> bool:
    """Whether some sum does not fit its type."""
    ends = {pa.int64(): (-(2**63), 2**63 - 1), pa.uint64(): (0, 2**64 - 1)}
    for name, one in aggregates.items():
        kind = pa.int64() if pa.types.is_duration(one.type) else one.type
        low, high = ends.get(kind, (None, None))
        for value in (event.row[name] for event in expected):
            if low is not None and value is not None and not low <= value <= high:
                return True
    return False


# The matrix


@examples(2)
@given(cases())
def test_windows_in_any_batches(case):
    """Every kind of window, key and aggregate: cells, types and order, however the rows come."""
    aggregates = case.aggregates()
    expected = meant_by(case, aggregates)
    flow = dt.Flow("f")
    events = flow.read(source_of(case), **read_options(case.side))
    stream = windows_of(events, said(case.window, case.time, case.rng("window")), case.keys, aggregates, name="win")
    out = stream.write(dt.collect())
    if too_large(expected, aggregates):
        with pytest.raises(dt.DataError, match="win"):
            flow.run(options=options(case))
        return
    result = flow.run(options=options(case))
    check(case, out.table(), expected, aggregates)
    assert stream.schema == out.table().schema
    report = result.steps["win"]
    assert (report.rows_in, report.rows_out) == (len(case.events), len(expected))
    assert result.late == len(case.side.rows) - len(case.events)


@examples()
@given(cases())
def test_windows_are_emitted_when_the_watermark_reaches_their_end(case):
    """After each batch: all results whose window is over by then, and no other."""
    aggregates = {"ids": catalog(case.side.columns)["ids"]}
    expected = meant_by(case, aggregates)
    flow, seen, shown = dt.Flow("f"), [], 0
    cut = [batch for batch in batches(case, case.side, most=8) if batch.num_rows]
    events = flow.read(Pieces(case.side.schema, cut), **read_options(case.side))
    windows_of(events, said(case.window, case.time), case.keys, aggregates).write(Staged(seen))
    runner = started(flow, Clock())
    for batch in cut:
        runner.round()
        shown += batch.num_rows
        mark = max(row["ts"] for row in case.side.rows[:shown]) - case.side.delay
        over = [event.row["ids"] for event in expected if event.row["window_end"] <= mark]
        assert [ids for out in seen for ids in out["ids"].to_pylist()] == over
    finish(runner)
    assert [ids for out in seen for ids in out["ids"].to_pylist()] == [event.row["ids"] for event in expected]


@examples(0.5)
@given(cases())
def test_windows_of_windows(case):
    """Results are a stream in order whose times are the last unit of their windows."""
    rng = case.rng("second")
    first = {"rows": catalog(case.side.columns)["rows"], "ids": catalog(case.side.columns)["ids"]}
    keys = rng.sample(case.keys, rng.randint(0, len(case.keys)))
    length = getattr(case.window, "size", getattr(case.window, "gap", 1))
    second = rng.choice([Tumbling(length), Tumbling(length * 3), Sliding(length * 4, length), Session(length)])
    of_rows = Written(col("rows").sum(), windowed.total(lambda row: row["rows"]), pa.int64())
    of_ids = Written(
        dt.group_udf(lambda batch: "|".join(batch["ids"].to_pylist()), ["ids"], pa.string()),
        lambda rows: "|".join(row["ids"] for row in rows),
        pa.string(),
    )
    again = {"total": of_rows, "all": of_ids}

    flow = dt.Flow("f")
    events = flow.read(source_of(case), **read_options(case.side))
    one = windows_of(events, said(case.window, case.time), case.keys, first, name="one")
    out = windows_of(one, said(second, case.time), keys, again, name="two").write(dt.collect())
    flow.run(options=options(case))

    met = meant_by(case, first)
    expected = windowed.results(met, second, keys, {name: a.meant for name, a in again.items()})
    check(Case(case.side, second, tuple(keys), case.seed), out.table(), expected, again)


@examples(0.5)
@given(cases(), st.integers(0, 2**32))
def test_results_join_and_unite_like_any_stream(case, seed):
    """Results of two windows in one union, and joined with the rows of another stream."""
    rng = Random(seed)
    kinds = {name: kind for name, kind in case.side.columns.items() if name not in ("id", "n", "m", "ts")}
    other = a_side(rng, rng.choice(LENGTHS), kinds, case.time, 1, first=1000)
    counted = {"rows": catalog(case.side.columns)["rows"], "ids": catalog(case.side.columns)["ids"]}
    meant = {name: one.meant for name, one in counted.items()}
    another = rng.choice([case.window, Tumbling(3), Session(2)])
    span = rng.choice([None, 0, 1, 5, 10**6])

    flow = dt.Flow("f")
    a = flow.read(source_of(case), name="a", **read_options(case.side))
    b = flow.read(source_of(case, other), name="b", **read_options(other))
    one = windows_of(a, said(case.window, case.time), (), counted)
    two = windows_of(b, said(another, case.time), (), counted)
    united, pairs = dt.collect(), dt.collect()
    one.union(two).write(united)
    length = span if case.time.tick is None or span is None else said_duration(span * case.time.tick)
    window = dt.last(time=span) if case.time.tick is None and span is not None else dt.last(length)
    one.join(b.select("id"), on=left.rows <= right.id, window=window).write(pairs)
    flow.run(options=options(case))

    first = windowed.results(case.events, case.window, (), meant)
    second = windowed.results(read(other), another, (), meant)
    expected = [(event.row["window_end"], event.row["ids"]) for event in oracle.union(first, second)]
    found = united.table()
    assert list(zip(plain(found["window_end"]), plain(found["ids"]), strict=True)) == expected

    kept = oracle.Window(span=None if span is None else Fraction(span))
    met = oracle.join(first, read(other), (kept, kept), lambda p, q: p["rows"] <= q["id"])
    found = pairs.table()
    assert list(zip(plain(found["ids"]), plain(found["id"]), strict=True)) == [
        (pair.left.row["ids"], pair.right.row["id"]) for pair in met
    ]


# What is in a window


INT = pa.int64()


def rows(table: pa.Table) -> list[tuple]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def over(times: Sequence[Any], window: Any, kind: pa.DataType = INT, keys: str | None = None) -> list[tuple]:
    """(start, end, rows) of the windows of a stream that has these times, or (key, start, end, rows)."""
    data = {"t": pa.array(times, kind)}
    if keys is not None:
        data["k"] = pa.array(list(keys))
    stream = memory(data, time="t")
    return rows(collected((stream.key_by("k") if keys else stream).window(window).agg(n=dt.count())))


def test_tumbling_windows_are_half_open_and_counted_from_zero():
    assert over([0, 9, 10, 25], dt.tumbling(time=10)) == [(0, 10, 2), (10, 20, 1), (20, 30, 1)]


def test_windows_before_zero_are_like_those_after_it():
    assert over([-11, -10, -1, 0], dt.tumbling(time=10)) == [(-20, -10, 1), (-10, 0, 2), (0, 10, 1)]
    assert over([-1], dt.sliding(time=10, every=5)) == [(-10, 0, 1), (-5, 5, 1)]
    assert over([-7, -5, -2], dt.session(time=3)) == [(-7, -2, 2), (-2, 1, 1)]


def test_a_row_is_in_every_sliding_window_that_covers_it():
    assert over([10], dt.sliding(time=10, every=5)) == [(5, 15, 1), (10, 20, 1)]
    assert over([14], dt.sliding(time=10, every=5)) == [(5, 15, 1), (10, 20, 1)]
    assert over([15], dt.sliding(time=10, every=5)) == [(10, 20, 1), (15, 25, 1)]


def test_a_sliding_window_need_not_be_a_multiple_of_its_step():
    assert over([12], dt.sliding(time=10, every=4)) == [(4, 14, 1), (8, 18, 1), (12, 22, 1)]
    assert over([14], dt.sliding(time=10, every=4)) == [(8, 18, 1), (12, 22, 1)], "[4, 14) does not cover 14"


def test_a_sliding_window_that_moves_by_its_size_tumbles():
    times = [0, 3, 9, 10, 31]
    assert over(times, dt.sliding(time=10, every=10)) == over(times, dt.tumbling(time=10))


def test_a_row_exactly_a_gap_later_begins_a_session():
    assert over([0, 9, 18, 28, 29], dt.session(time=10)) == [(0, 28, 3), (28, 39, 2)]


def test_sessions_are_of_a_key():
    assert over([0, 5, 9, 14, 30], dt.session(time=10), keys="abaab") == [
        ("b", 5, 15, 1), ("a", 0, 24, 3), ("b", 30, 40, 1)
    ]  # fmt: skip


def test_windows_of_timestamps_are_counted_from_1970_in_utc():
    stamps = pa.array([-1, 0, 59_999, 60_000], pa.timestamp("ms"))
    table = collected(memory({"t": stamps}, time="t").window(dt.tumbling("1min")).agg(n=dt.count()))
    assert table.schema.field("window_start").type == table.schema.field("window_end").type == pa.timestamp("ms")
    assert plain(table["window_start"]) == [-60_000, 0, 60_000]
    assert plain(table["window_end"]) == [0, 60_000, 120_000]
    assert plain(table["n"]) == [1, 2, 1]


def test_a_zone_moves_no_window_and_results_are_in_utc():
    """A day of Kolkata begins at 18:30 UTC; windows of a day do not."""
    noon = datetime.datetime(2024, 7, 1, 20, tzinfo=datetime.UTC)
    stamps = pa.array([noon], pa.timestamp("us", "Asia/Kolkata"))
    table = collected(memory({"t": stamps}, time="t").window(dt.tumbling("1d")).agg(n=dt.count()))
    assert table.schema.field("window_start").type == pa.timestamp("us", "UTC")
    assert table["window_start"].to_pylist() == [datetime.datetime(2024, 7, 1, tzinfo=datetime.UTC)]


def test_windows_of_dates_are_dates():
    day = datetime.date(2024, 2, 28)
    found = over([day, day + datetime.timedelta(1)], dt.sliding("2d", every="1d"), pa.date32())
    days = [day + datetime.timedelta(n) for n in range(-1, 4)]
    assert found == [(days[0], days[2], 1), (days[1], days[3], 2), (days[2], days[4], 1)]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int32(), pa.uint64()])
def test_windows_of_integers_are_int64_and_reach_beyond_the_columns_type(kind):
    stream = memory({"t": pa.array([100, 127], kind)}, time="t")
    table = collected(stream.window(dt.tumbling(time=1000)).agg(n=dt.count()))
    assert table.schema.types == [INT, INT, INT]
    assert rows(table) == [(0, 1000, 2)]


@pytest.mark.parametrize("length", [datetime.timedelta(minutes=1), np.timedelta64(60, "s"), "60s", "1min", "1.0 min"])
def test_a_length_of_time_is_anything_that_means_one(length):
    for window in (dt.tumbling(length), dt.sliding(length, every=length)):
        assert [row[2] for row in over([0, 59, 60], window, pa.timestamp("s"))] == [2, 1]
    assert [row[2] for row in over([0, 59, 119], dt.session(length), pa.timestamp("s"))] == [2, 1]


@pytest.mark.parametrize("kind", [INT64, STAMPS[3], ZONED[0], DATE], ids=str)
def test_a_window_that_reaches_beyond_all_times_is_an_error(kind):
    """And not one that ends before it begins."""
    around = [Tumbling(10**6 + 1), Sliding(10**6 + 1, 10**5)]
    for time, windows in ((kind.high - 3, [*around, Session(10**6)]), (kind.low + 3, around)):
        for window in windows:
            stream = memory({"t": kind.array([time])}, time="t").window(said(window, kind)).agg(n=dt.count())
            with pytest.raises(dt.DataError):
                collected(stream)


def test_late_rows_count_nowhere():
    flow = dt.Flow("f")
    stream = flow.read(Feed([[5, 12, 9, 30, 19]]), name="a", time="t", delay=3)
    out = stream.window(dt.tumbling(time=10)).agg(n=dt.count(), ids=IDS).write(dt.collect())
    assert flow.run().late == 1
    assert rows(out.table()) == [(0, 10, 2, "0 2"), (10, 20, 1, "1"), (30, 40, 1, "3")]


def test_rows_reach_windows_in_order_of_time_and_equal_times_keep_theirs():
    stream = memory({"t": [3, 1, 3, 2, 1], "id": [0, 1, 2, 3, 4]}, time="t", delay=10, batch_rows=2)
    out = collected(stream.window(dt.tumbling(time=10)).agg(ids=IDS))
    assert out["ids"].to_pylist() == ["1 4 3 0 2"]


def test_windows_without_rows_have_no_result():
    assert over([], dt.tumbling(time=10)) == []
    assert over([0, 10**15], dt.tumbling(time=10)) == [(0, 10, 1), (10**15, 10**15 + 10, 1)]
    assert over([0, 10**15], dt.sliding(time=10, every=10)) == [(0, 10, 1), (10**15, 10**15 + 10, 1)]
    stream = memory(time="t").filter(col("x") > 100)
    assert rows(collected(stream.window(dt.tumbling(time=10)).agg(n=dt.count()))) == []


def test_a_stream_without_rows_gives_a_table_with_all_columns():
    kinds = {"t": pa.timestamp("ms", "UTC"), "k": pa.date32(), "x": pa.float32()}
    data = {name: pa.array([], kind) for name, kind in kinds.items()}
    stream = memory(data, time="t").key_by("k").window(dt.session("1s")).agg(low=col("x").min(), n=dt.count())
    assert collected(stream).schema == pa.schema(
        [("k", pa.date32()), ("window_start", pa.timestamp("ms", "UTC")), ("window_end", pa.timestamp("ms", "UTC")),
         ("low", pa.float32()), ("n", INT)]
    )  # fmt: skip


# Order and event time of results


def test_results_come_by_end_then_start_then_place_of_the_first_row():
    found = over([0, 1, 2, 3, 11], dt.tumbling(time=10), keys="cabca")
    assert [(row[0], row[1]) for row in found] == [("c", 0), ("a", 0), ("b", 0), ("a", 10)]
    found = over([0, 1, 2, 5, 6], dt.sliding(time=10, every=5), keys="cabba")
    assert [(row[0], row[1]) for row in found] == [
        ("c", -5), ("a", -5), ("b", -5), ("c", 0), ("a", 0), ("b", 0), ("b", 5), ("a", 5)
    ], "the first row in that window counts: of [5, 15) it is b's"  # fmt: skip
    found = over([0, 3, 5, 5], dt.session(time=10), keys="abba")
    assert found == [("a", 0, 15, 2), ("b", 3, 15, 2)]
    found = over([0, 3, 5, 5], dt.session(time=10), keys="baba")
    assert found == [("b", 0, 15, 2), ("a", 3, 15, 2)]


def test_the_time_of_a_result_is_the_last_unit_of_its_window():
    """A minute that ends with the hour belongs to that hour."""
    flow = dt.Flow("f")
    seconds = [0, 30, 60, 3_599, 3_600, 3_601, 7_199]
    data = {"t": pa.array(seconds, pa.timestamp("s")), "user": list("abababa"), "x": range(7)}
    events = memory(data, flow, time="t")
    minutes = events.key_by("user").window(dt.tumbling("1min")).agg(total=col("x").sum(), n=dt.count())
    rolled = minutes.key_by("user").window(dt.tumbling("1h")).agg(total=col("total").sum(), n=col("n").sum())
    direct = events.key_by("user").window(dt.tumbling("1h")).agg(total=col("x").sum(), n=dt.count())
    outs = [stream.write(dt.collect()) for stream in (rolled, direct)]
    flow.run()
    assert rows(outs[0].table()) == rows(outs[1].table())
    assert [row[3:] for row in rows(outs[0].table())] == [(2, 2), (4, 2), (10, 2), (5, 1)]


def test_results_join_by_their_event_time():
    """The result of [0, 10) has time 9: a row of time 9 on the right stands after it, one of 8 before."""
    flow = dt.Flow("f")
    a = memory({"t": [0, 9, 10, 12]}, flow, "a", "t").window(dt.tumbling(time=10)).agg(n=dt.count())
    b = memory({"t": [8, 9, 10, 19, 20], "id": [8, 9, 10, 19, 20]}, flow, "b", "t")
    out = a.join(b, on=left.n <= right.id, window=dt.last(time=0)).write(dt.collect())
    before = a.join(b, on=left.n <= right.id, window=(dt.last(time=0), dt.last(1))).write(dt.collect())
    flow.run()
    assert list(zip(plain(out.table()["window_end"]), plain(out.table()["id"]), strict=True)) == [(10, 9), (20, 19)]
    found = list(zip(plain(before.table()["window_end"]), plain(before.table()["id"]), strict=True))
    assert found == [(10, 8), (10, 9), (20, 10), (20, 19)]


def test_results_are_filtered_computed_united_and_joined_again():
    flow = dt.Flow("f")
    events = memory({"t": [0, 1, 12, 13, 25], "k": list("aabba"), "x": [1, 2, 3, 4, 5]}, flow, time="t")
    sums = events.key_by("k").window(dt.tumbling(time=10)).agg(x=col("x").sum(), n=dt.count())
    large = sums.filter(col("n") > 1).select("k", x=col("x") * 10)
    out = large.union(sums.select("k", "x")).write(dt.collect())
    itself = sums.join(sums, on=left.x < right.x, window=dt.last(5)).select("x", "x_right").write(dt.collect())
    flow.run()
    assert rows(out.table()) == [("a", 30), ("a", 3), ("b", 70), ("b", 7), ("a", 5)]
    assert rows(itself.table()) == [(3, 7), (3, 5), (5, 7)]


def test_windows_of_a_union_and_of_a_join():
    flow = dt.Flow("f")
    a = memory({"t": [0, 4, 11], "x": [1, 2, 3]}, flow, "a", "t")
    b = memory({"t": [2, 4, 15], "x": [10, 20, 30]}, flow, "b", "t")
    in_order = dt.group_udf(lambda batch: joined(batch["x"].to_pylist()), ["x"], pa.string())
    both = a.union(b).window(dt.tumbling(time=10)).agg(x=in_order)
    pairs = a.join(b, on=left.x < right.x, window=dt.last(None))
    sums = pairs.window(dt.tumbling(time=5)).agg(n=dt.count(), x=col("x").sum(), y=col("x_right").sum())
    outs = [stream.write(dt.collect()) for stream in (both, sums)]
    flow.run()
    assert rows(outs[0].table()) == [(0, 10, "1 10 2 20"), (10, 20, "3 30")]
    # Pairs, by the time of the later row: at 2 that of 1 and 10; at 4 those of 2 and 10, 1 and 20, 2 and 20; at 11
    # those of 3 with 10 and 20; at 15 those of 30 with 1, 2 and 3.
    assert rows(outs[1].table()) == [(0, 5, 4, 6, 60), (10, 15, 2, 6, 30), (15, 20, 3, 6, 90)]


def test_a_stream_with_several_units_has_windows_in_the_finer_one():
    flow = dt.Flow("f")
    a = memory({"t": pa.array([0, 61], pa.timestamp("s")), "x": [1, 2]}, flow, "a", "t").select("x")
    b = memory({"t": pa.array([59_999, 60_000], pa.timestamp("ms")), "x": [3, 4]}, flow, "b", "t").select("x")
    table = collected(a.union(b).window(dt.tumbling("1min")).agg(x=col("x").sum()))
    assert table.schema.field("window_end").type == pa.timestamp("ms")
    assert (plain(table["window_end"]), plain(table["x"])) == ([60_000, 120_000], [4, 6])


def test_windows_go_by_the_event_time_and_not_by_a_column():
    stream = memory({"t": [1, 9, 11], "x": [1, 2, 4]}, time="t")
    for changed in (stream.with_columns(t=col("t") * -100), stream.select("x")):
        assert rows(collected(changed.window(dt.tumbling(time=10)).agg(x=col("x").sum()))) == [(0, 10, 3), (10, 20, 4)]


def test_the_time_column_may_be_a_key_and_an_aggregate():
    stream = memory({"t": pa.array([1, 1, 2], pa.timestamp("s"))}, time="t")
    table = collected(stream.key_by("t").window(dt.tumbling("10s")).agg(n=dt.count(), last=col("t").max()))
    assert (plain(table["t"]), plain(table["n"]), plain(table["last"])) == ([1, 2], [2, 1], [1, 2])


def test_two_windows_of_one_stream_and_two_runs_of_one_flow():
    flow = dt.Flow("f")
    events = memory({"t": [1, 2, 11], "x": [1, 2, 3]}, flow, time="t")
    keyed = events.key_by("x")
    outs = [keyed.window(dt.tumbling(time=10)).agg(n=dt.count()).write(dt.collect()),
            keyed.window(dt.session(time=3)).agg(n=dt.count()).write(dt.collect()),
            events.window(dt.tumbling(time=10)).agg(n=dt.count()).write(dt.collect())]  # fmt: skip
    for _ in range(2):
        flow.run()
        assert rows(outs[0].table()) == [(1, 0, 10, 1), (2, 0, 10, 1), (3, 10, 20, 1)]
        assert rows(outs[1].table()) == [(1, 1, 4, 1), (2, 2, 5, 1), (3, 11, 14, 1)]
        assert rows(outs[2].table()) == [(0, 10, 2), (10, 20, 1)]


# Keys


def grouped(array: pa.Array, **more: Any) -> tuple[list, list]:
    """(keys, rows of each) in one window over all."""
    stream = memory({"t": [0] * len(array), "k": array}, time="t", **more)
    out = collected(stream.key_by("k").window(dt.tumbling(time=10)).agg(n=dt.count()))
    assert value_type(array.type) == out.schema.field("k").type
    return plain(out["k"]), plain(out["n"])


def test_a_null_key_is_a_key_of_its_own():
    assert grouped(pa.array([None, 0, None, 1], INT)) == ([None, 0, 1], [2, 1, 1])
    assert grouped(pa.array(["", None, ""])) == (["", None], [2, 1])
    assert grouped(pa.array([math.nan, None, math.nan, None])) == (["nan", None], [2, 2])


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_every_nan_is_one_key(kind):
    """Of any sign and payload: Arrow and NumPy let all of them through."""
    if kind == pa.float64():
        bits, code = [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001, 0x7FF0000000000001], "<Q"
    else:
        bits, code = [0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7F800001], "<I"
    buffer = pa.py_buffer(b"".join(struct.pack(code, n) for n in bits))
    array = pa.Array.from_buffers(kind, len(bits), [None, buffer])
    assert grouped(array) == (["nan"], [4])


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_both_zeros_are_one_key_shown_as_positive(kind):
    assert grouped(pa.array([-0.0, 0.0, 1.0], kind)) == (["0.0", "1.0"], [2, 1])
    assert grouped(pa.array([0.0, -0.0, 1.0], kind)) == (["0.0", "1.0"], [2, 1])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.bool_(), [True, False, None]),
        (pa.int8(), [-128, 127, None]),
        (pa.uint64(), [2**64 - 1, 2**63, 0]),
        (pa.int64(), [-(2**63), 2**63 - 1, 2**53, 2**53 + 1]),
        (pa.string(), ["", "a", "a\0", "é", "e\u0301", None]),
        (pa.large_string(), ["", "a", None]),
        (pa.binary(), [b"", b"\0", b"\0\0", None]),
        (pa.large_binary(), [b"", b"\0"]),
        (pa.binary(3), [b"abc", b"ab\0", None]),
        (pa.timestamp("ns"), [-1, 0, None]),
        (pa.timestamp("us", "Europe/Berlin"), [0, 1]),
        (pa.date32(), [-1, 0, 2**31 - 1, None]),
        (pa.date64(), [-86_400_000, 0, None]),
        (pa.time32("ms"), [0, 1, None]),
        (pa.time64("ns"), [0, 1, 86_399_999_999_999]),
        (pa.duration("ns"), [-(2**63) + 1, 0, 1, None]),
        (pa.decimal128(38, 3), [Decimal("0.001"), Decimal("-0.001"), Decimal("9" * 35 + ".999"), None]),
        (pa.decimal256(60, 1), [Decimal("0.1"), Decimal("9" * 59 + ".9"), Decimal("9" * 59 + ".8"), None]),
    ],
    ids=str,
)  # fmt: skip
def test_keys_of_any_plain_type(kind, values):
    """Each value is a key, in the order in which they first come, with all its rows and its type."""
    array = pa.array([*values, *reversed(values), values[0]], kind)
    stream = memory({"t": [0] * len(array), "k": array}, time="t", batch_rows=2)
    out = collected(stream.key_by("k").window(dt.tumbling(time=10)).agg(n=dt.count()))
    assert out["k"].combine_chunks().equals(pa.array(values, kind))
    assert out["n"].to_pylist() == [3] + [2] * (len(values) - 1)


def test_dictionaries_are_keys_by_value():
    """Of several dictionaries, with a value twice, and with null as a value."""

    def coded(indices, values):
        return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), pa.array(values, pa.string()))

    arrays = [coded([0, 1, None], ["a", "b"]), coded([0, 1, 2], ["b", "a", "b"]), coded([1, 0], ["a", None])]
    pieces = [pa.record_batch({"t": [0] * len(array), "k": array}) for array in arrays]
    stream = dt.Flow("f").read(dt.memory(pieces), time="t")
    out = collected(stream.key_by("k").window(dt.tumbling(time=10)).agg(n=dt.count()))
    assert rows(out) == [("a", 0, 10, 3), ("b", 0, 10, 3), (None, 0, 10, 2)]
    assert out.schema.field("k").type == pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize("values", [[0.0, -0.0, math.nan, math.nan], [1, 2, 2, 1]])
def test_dictionaries_of_numbers_are_keys_by_value(values):
    kind = pa.array(values).type
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array(values, kind))
    assert grouped(array) == ([cell(values[0]), cell(values[2])], [2, 2])


def test_several_keys_make_one():
    flow = dt.Flow("f")
    data = {"t": [0] * 6, "a": ["x", "xy", "x", None, None, "x"], "b": ["yz", "z", "yz", "x", None, None]}
    out = collected(memory(data, flow, time="t").key_by("b", "a").window(dt.tumbling(time=5)).agg(n=dt.count()))
    assert out.schema.names == ["b", "a", "window_start", "window_end", "n"]
    assert [(row[1], row[0], row[4]) for row in rows(out)] == [
        ("x", "yz", 2), ("xy", "z", 1), (None, "x", 1), (None, None, 1), ("x", None, 1)
    ]  # fmt: skip


WORDS = [pa.string(), pa.binary(), pa.bool_()]
NESTED = [pa.list_(INT), pa.struct([("a", INT)]), pa.map_(INT, INT)]


@pytest.mark.parametrize("kind", NESTED, ids=str)
def test_a_nested_key_is_refused(kind):
    stream = memory({"t": [1], "nested": pa.nulls(1, kind)}, time="t")
    with pytest.raises(dt.SchemaError, match="nested"):
        stream.key_by("nested").window(dt.tumbling(time=1)).agg(n=dt.count())


def test_a_nested_column_may_stand_beside_and_be_counted():
    stream = memory({"t": [1, 2], "nested": pa.array([[1], None], pa.list_(INT))}, time="t")
    lengths = dt.group_udf(lambda batch: sum(len(v or []) for v in batch["nested"].to_pylist()), ["nested"], INT)
    assert rows(collected(stream.window(dt.tumbling(time=5)).agg(n=dt.count(), m=lengths))) == [(0, 5, 2, 1)]


# Aggregates


def one(array: pa.Array | Sequence, made: Callable[[Any], Any], step: str = "per-user") -> pa.Scalar:
    """The aggregate of a whole column."""
    stream = memory({"t": [0] * len(array), "amount": array}, time="t", batch_rows=3)
    table = collected(stream.window(dt.tumbling(time=1)).agg(made=made(col("amount")), name=step))
    assert table.num_rows == 1
    return table["made"][0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.string(), "a"), (pa.binary(), b"a"), (pa.bool_(), False), (pa.time32("s"), datetime.time(1)),
        (pa.list_(INT), [1]),
        (pa.decimal256(60, 1), Decimal("9" * 59)), (pa.struct([("a", INT)]), {"a": None}), (pa.binary(1), b"a"),
        (pa.dictionary(pa.int32(), pa.string()), "a"), (pa.large_string(), "a"),
    ],
    ids=str,
)  # fmt: skip
def test_rows_with_a_value_of_any_type_are_counted(kind, value):
    """That a value is there has nothing to do with what it is."""
    array = pa.array([value, None, value], kind)
    stream = memory({"t": [1, 2, 11], "x": array}, time="t").window(dt.tumbling(time=10))
    assert rows(collected(stream.agg(n=col("x").count()))) == [(0, 10, 1), (10, 20, 1)]


def summed(x):
    return x.sum()


def averaged(x):
    return x.mean()


def lowest(x):
    return x.min()


def highest(x):
    return x.max()


def seen(x):
    return x.count()


EVERY = [seen, summed, averaged, lowest, highest]


def test_counts():
    stream = memory({"t": [1, 2, 3], "s": ["a", None, "b"]}, time="t")
    table = collected(stream.window(dt.tumbling(time=5)).agg(n=dt.count(), m=col("s").count()))
    assert rows(table) == [(0, 5, 3, 2)]
    assert table.schema.types[2:] == [INT, INT]


@pytest.mark.parametrize(
    ("kind", "values", "total"),
    [
        (pa.int64(), [2**63 - 1], 2**63 - 1),
        (pa.int64(), [2**63 - 2, 1], 2**63 - 1),
        (pa.int64(), [2**63 - 1, 1, -1], 2**63 - 1),  # what is on the way need not fit
        (pa.int64(), [2**63 - 1, 2**63 - 1, -(2**63), -(2**63)], -2),
        (pa.int64(), [-(2**63)], -(2**63)),
        (pa.int64(), [-(2**63), -1, 1], -(2**63)),
        (pa.int64(), [2**53, 1, None], 2**53 + 1),
        (pa.int8(), [127] * 1000, 127_000),
        (pa.int32(), [-(2**31)] * 5, -5 * 2**31),
        (pa.uint64(), [2**64 - 1], 2**64 - 1),
        (pa.uint64(), [2**63, 2**63 - 1], 2**64 - 1),
        (pa.uint8(), [255] * 1000, 255_000),
    ],
)
def test_sums_of_integers_are_exact(kind, values, total):
    found = one(pa.array(values, kind), summed)
    assert found.type == (pa.uint64() if pa.types.is_unsigned_integer(kind) else pa.int64())
    assert found.as_py() == total


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [2**63 - 1, 1]),
        (pa.int64(), [-(2**63), -1]),
        (pa.int64(), [2**63 - 1] * 4),  # twice around would be right again, nearly
        (pa.int64(), [-(2**63)] * 2),  # once around is 0
        (pa.uint64(), [2**64 - 1, 1]),
        (pa.uint64(), [2**63] * 4),
        (pa.duration("s"), [2**63 - 1, 1]),
    ],
)
def test_a_sum_that_does_not_fit_is_an_error(kind, values):
    array = pa.array(values, pa.int64() if pa.types.is_duration(kind) else kind)
    with pytest.raises(dt.DataError, match=r"(?s)per-user.*(made|amount)|(made|amount).*per-user"):
        one(array.view(kind) if pa.types.is_duration(kind) else array, summed)


def test_sums_of_floats_are_added_in_the_order_of_rows():
    values = [1e16, 1.0, -1e16, 0.1, 0.2, 0.3]
    total = 0.0
    for value in values:
        total += value
    assert one(values, summed).as_py() == total != math.fsum(values)
    many = [0.1] * 1000  # added in pairs, as NumPy does it, it would be another one
    total = 0.0
    for value in many:
        total += value
    assert one(many, summed).as_py() == total
    assert one(pa.array([0.1, 0.2], pa.float32()), summed).as_py() == float(np.float32(0.1)) + float(np.float32(0.2))
    assert one(pa.array([0.1], pa.float32()), summed).type == pa.float64()


def test_a_sum_of_floats_forgets_nothing_of_other_windows():
    """A sliding window is added anew, and is not what was there less what left it."""
    stream = memory({"t": [0, 5, 10], "x": [1e300, 0.1, 0.2]}, time="t")
    table = collected(stream.window(dt.sliding(time=10, every=5)).agg(x=col("x").sum()))
    assert table["x"].to_pylist() == [1e300, 1e300 + 0.1, 0.1 + 0.2, 0.2]


def test_sums_of_floats_in_windows_that_overlap_are_added_piece_by_piece():
    """In pieces that no window's end cuts, and those in order: the same however the stream is cut."""
    found = set()
    for batch_rows in (1, 2, 3):
        flow = dt.Flow("f")
        table = {"t": [0, 6, 7], "x": [0.1, 0.2, 0.3]}
        stream = flow.read(dt.memory(table, batch_rows=batch_rows), time="t")
        made = stream.window(dt.sliding(time=10, every=5)).agg(x=col("x").sum(), y=col("x").mean()).write(dt.collect())
        flow.run()
        found |= {row[2:] for row in rows(made.table()) if row[:2] == (0, 10)}
    assert found == {(0.1 + (0.2 + 0.3), (0.1 + (0.2 + 0.3)) / 3)}


def test_sums_of_durations_and_decimals():
    second = datetime.timedelta(seconds=1)
    found = one(pa.array([second, None, second * -3], pa.duration("ms")), summed)
    assert (found.type, found.as_py()) == (pa.duration("ms"), second * -2)
    found = one(pa.array([Decimal("99999.99"), Decimal("0.01"), None], pa.decimal128(7, 2)), summed)
    assert (found.type, found.as_py()) == (pa.decimal128(38, 2), Decimal("100000.00"))


def test_decimals_of_any_width_are_added_and_compared():
    """Also the sums of a window before, which are as wide as decimals go."""
    large = Decimal("1" * 30 + ".1")
    least = Decimal(f"-{large}")  # unary minus would round it
    array = pa.array([large, None, large, least], pa.decimal128(31, 1))
    assert one(array, summed).as_py() == large
    assert (one(array, lowest).as_py(), one(array, highest).as_py(), one(array, seen).as_py()) == (least, large, 3)
    data = {"t": [0, 1, 60], "x": pa.array([Decimal("0.01"), Decimal("0.02"), Decimal("0.04")], pa.decimal128(5, 2))}
    small = memory(data, time="t").window(dt.tumbling(time=60)).agg(x=col("x").sum())
    table = collected(small.window(dt.tumbling(time=3600)).agg(x=col("x").sum(), top=col("x").max()))
    assert rows(table) == [(0, 3600, Decimal("0.07"), Decimal("0.04"))]


def test_a_sum_of_decimals_that_does_not_fit_is_an_error():
    top = Decimal("9" * 38)
    with pytest.raises(dt.DataError, match=r"per-user"):
        one(pa.array([top, Decimal(1)], pa.decimal128(38, 0)), summed)
    assert one(pa.array([top, Decimal(1), Decimal(-1)], pa.decimal128(38, 0)), summed).as_py() == top


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [2**53 + 1, 2**53 + 3, 2**53 + 3]),
        (pa.int64(), [2**63 - 1, 2**63 - 1]),  # whose sum would not fit
        (pa.int64(), [2**63 - 1, -(2**63)]),
        (pa.int64(), [9007199254740993, 0, 0]),
        (pa.int64(), [1, 1, 2**53 + 1, 1, 1, 1, 1]),
        (pa.uint64(), [2**64 - 1, 2**64 - 1, 2**64 - 3]),
        (pa.int8(), [1, 2, 2]),
    ],
)
def test_means_of_integers_are_the_nearest_float(kind, values):
    found = one(pa.array(values, kind), averaged)
    assert (found.type, found.as_py()) == (pa.float64(), float(Fraction(sum(values), len(values))))


def test_means_of_many_integers_are_the_nearest_float():
    rng = Random(5)
    for n in range(1, 40):
        values = [rng.randint(-(2**63), 2**63 - 1) for _ in range(n)]
        assert one(values, averaged).as_py() == float(Fraction(sum(values), n))


def test_means_of_floats_and_decimals():
    assert one([1.0, 2.0, None], averaged).as_py() == 1.5
    assert one(pa.array([1.5, 2.0], pa.float32()), averaged).type == pa.float64()
    found = one(pa.array([Decimal("0.1"), Decimal("0.2"), Decimal("0.3")], pa.decimal128(3, 1)), averaged)
    assert (found.type, found.as_py()) == (pa.float64(), pytest.approx(0.2, rel=1e-15))


def test_least_and_greatest_have_the_columns_type():
    day = datetime.date(2024, 2, 29)
    hour = datetime.datetime(2024, 2, 29, 5, tzinfo=datetime.UTC)
    for kind, low, high in [
        (pa.int8(), -128, 127), (pa.uint64(), 0, 2**64 - 1), (pa.int64(), -(2**63), 2**63 - 1),
        (pa.float32(), -0.5, 2.0), (pa.float64(), -math.inf, 5e-324), (pa.date32(), day, day.replace(year=2032)),
        (pa.timestamp("us", "Europe/Berlin"), hour, hour + datetime.timedelta(microseconds=1)),
        (pa.timestamp("s"), hour.replace(tzinfo=None), hour.replace(tzinfo=None, year=2028)),
        (pa.duration("ms"), datetime.timedelta(-1), datetime.timedelta(1)),
        (pa.decimal128(9, 2), Decimal("-0.02"), Decimal("0.01")),
    ]:  # fmt: skip
        array = pa.array([high, None, low, high, low], kind)
        assert one(array, lowest).equals(pa.scalar(low, kind)), kind
        assert one(array, highest).equals(pa.scalar(high, kind)), kind


def test_least_and_greatest_skip_nan_and_sums_and_means_do_not():
    values = [math.nan, 2.0, None, 1.0, math.nan]
    assert (one(values, lowest).as_py(), one(values, highest).as_py(), one(values, seen).as_py()) == (1.0, 2.0, 4)
    assert math.isnan(one(values, summed).as_py())
    assert math.isnan(one(values, averaged).as_py())
    assert math.isnan(one([math.inf, -math.inf], summed).as_py())


@pytest.mark.parametrize("kind", [pa.int16(), pa.float64(), pa.decimal128(5, 2)], ids=str)
def test_over_nothing_there_is_null_and_counts_are_zero(kind):
    """Also beside other groups of the same batch, and of a group that has values in another window."""
    flow = dt.Flow("f")
    value = Decimal(1) if pa.types.is_decimal(kind) else 1
    data = {"t": [0, 0, 1, 10], "k": list("abab"), "x": pa.array([None, value, None, None], kind)}
    stream = memory(data, flow, time="t", batch_rows=1)
    made = {made.__name__: made(col("x")) for made in EVERY}
    out = rows(collected(stream.key_by("k").window(dt.tumbling(time=10)).agg(**made)))
    assert [row[:1] + row[3:] for row in out] == [
        ("a", 0, None, None, None, None), ("b", 1, value, 1.0, value, value), ("b", 0, None, None, None, None)
    ]  # fmt: skip


def test_least_and_greatest_of_nothing_but_nan_are_null():
    for values in ([math.nan], [math.nan, None]):
        assert (one(values, lowest).as_py(), one(values, highest).as_py(), one(values, seen).as_py()) == (None, None, 1)


def test_aggregates_take_expressions():
    data = {"t": [0, 1, 2], "a": [5, None, 7], "b": [1, 2, 10]}
    table = collected(memory(data, time="t").window(dt.tumbling(time=5)).agg(
        apart=(col("a") - col("b")).sum(), far=(col("a") - col("b")).abs().max(), top=(col("a") * 2).max(),
        seen=(col("a") + col("b")).count(), mean=(col("b").cast("float64") * 0.5).mean(),
    ))  # fmt: skip
    assert rows(table) == [(0, 5, 1, 4, 14, 2, 6.5 / 3)]


def test_a_row_counts_for_its_own_groups_alone():
    """Many groups, which come and go while others stay."""
    n = 3000
    data = {"t": np.arange(n), "k": np.arange(n) % 7, "x": np.arange(n) ** 2}
    found = rows(collected(memory(data, time="t", batch_rows=64).key_by("k").window(dt.tumbling(time=100)).agg(
        total=col("x").sum(), low=col("x").min(), n=dt.count()
    )))  # fmt: skip
    assert len(found) == 30 * 7
    for key, start, end, total, low, count in found:
        squares = [t * t for t in range(start, end) if t % 7 == key]
        assert (total, low, count) == (sum(squares), min(squares), len(squares))


def test_aggregates_stand_in_the_order_in_which_they_were_written():
    stream = memory(time="t").key_by("x").window(dt.tumbling(time=5))
    names = ["z", "a", "m", "t", "b"]
    made = stream.agg(**{name: dt.count() for name in names})
    assert made.schema.names == ["x", "window_start", "window_end", *names]


# Functions over groups


def test_a_function_is_given_the_rows_of_its_group_in_order():
    calls = []

    def spread(batch):
        assert isinstance(batch, pa.RecordBatch)
        calls.append(batch.to_pydict())
        return batch["x"][-1].as_py() - batch["x"][0].as_py() if batch.num_rows > 1 else None

    data = {"t": [2, 1, 3, 11], "k": list("abaa"), "x": [1.0, 5.0, 4.0, 7.0], "y": [1, 2, 3, 4]}
    stream = memory(data, time="t", delay=5, batch_rows=1)
    own = dt.group_udf(spread, ["y", "x"], pa.float64())
    table = collected(stream.key_by("k").window(dt.tumbling(time=10)).agg(own=own, n=dt.count()))
    assert table.schema.field("own").type == pa.float64()
    assert rows(table) == [("b", 0, 10, None, 1), ("a", 0, 10, 3.0, 2), ("a", 10, 20, None, 1)]
    assert calls == [{"y": [2], "x": [5.0]}, {"y": [1, 3], "x": [1.0, 4.0]}, {"y": [4], "x": [7.0]}], "once for each"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.float64(), 1.5), (pa.float64(), np.float64(1.5)), (pa.int8(), -128), (pa.int64(), np.int64(7)),
        (pa.string(), "é"), (pa.bool_(), False), (pa.list_(INT), [1, 2]), (pa.decimal128(5, 2), Decimal("1.25")),
        (pa.timestamp("us"), datetime.datetime(2024, 2, 29)), (pa.float64(), None),
    ],
    ids=str,
)  # fmt: skip
def test_a_function_may_return_a_value_of_any_type(kind, value):
    stream = memory(time="t").window(dt.tumbling(time=10)).agg(own=dt.group_udf(lambda batch: value, ["x"], kind))
    table = collected(stream)
    assert (table.schema.field("own").type, table["own"].to_pylist()) == (kind, [value])


def failing(batch):
    raise KeyError("no such thing")


def odd(batch):
    return "three"


def wide(batch):
    return 300


def broken(batch):
    return 3.7


@pytest.mark.parametrize(
    ("fn", "kind"), [(failing, INT), (odd, pa.float64()), (odd, INT), (wide, pa.int8()), (broken, INT)]
)
def test_a_function_that_fails_is_named(fn, kind):
    stream = memory(time="t").window(dt.tumbling(time=10)).agg(own=dt.group_udf(fn, ["x"], kind), name="per-user")
    stream.write(dt.null())
    with pytest.raises(dt.UserFunctionError, match=rf"(?s){fn.__name__}.*per-user|per-user.*{fn.__name__}"):
        stream._flow.run()


def test_group_udf_says_what_it_needs():
    keyed = memory(time="t").window(dt.tumbling(time=10))
    for arguments in [
        (None, ["x"], INT), (odd, "x", INT), (odd, [3], INT), (odd, ["x"], "no such type"), (odd, ["x"], 3)
    ]:  # fmt: skip
        with pytest.raises(dt.FlowError):
            keyed.agg(own=dt.group_udf(*arguments))
    with pytest.raises(dt.SchemaError, match="did you mean 'x'"):
        keyed.agg(own=dt.group_udf(odd, ["xx"], INT))


# What is refused when it is written


def test_lengths_that_cannot_be():
    """Wherever it is found, when the window is made or when it meets the stream, before anything runs."""
    streams = {
        "ints": memory(time="t"),
        "seconds": memory({"t": pa.array([1], pa.timestamp("s"))}, time="t"),
        "days": memory({"t": pa.array([1], pa.date32())}, time="t"),
    }
    for name, windows in CANNOT_BE.items():
        for at, window in enumerate(windows):
            with pytest.raises(dt.WindowError):
                streams[name].window(window()).agg(n=dt.count())
                pytest.fail(f"{name}, {at} was taken")


CANNOT_BE: dict[str, list[Callable[[], Any]]] = {
    "ints": [
        lambda: dt.tumbling(60),
        lambda: dt.sliding(60, every=10),
        lambda: dt.session(60),
        lambda: dt.tumbling("1min"),
        lambda: dt.sliding("1min", every="1s"),
        lambda: dt.session("1s"),
        lambda: dt.tumbling(time=0),
        lambda: dt.tumbling(time=-1),
        lambda: dt.session(time=0),
        lambda: dt.session(time=-5),
        lambda: dt.sliding(time=0, every=1),
        lambda: dt.sliding(time=10, every=0),
        lambda: dt.sliding(time=10, every=-1),
        lambda: dt.sliding(time=10, every=11),
        lambda: dt.sliding(time=10, every="1s"),
        lambda: dt.tumbling(time=1.5),
        lambda: dt.tumbling(time=True),
        lambda: dt.tumbling(time="5"),
    ],
    "seconds": [
        lambda: dt.tumbling(60),
        lambda: dt.sliding(60, every=10),
        lambda: dt.session(60),
        lambda: dt.tumbling(time=60),
        lambda: dt.sliding(time=60, every=6),
        lambda: dt.session(time=60),
        lambda: dt.tumbling("0s"),
        lambda: dt.session("0s"),
        lambda: dt.tumbling(datetime.timedelta(0)),
        lambda: dt.tumbling(datetime.timedelta(-1)),
        lambda: dt.sliding("1min", every="0s"),
        lambda: dt.sliding("10s", every="11s"),
        lambda: dt.sliding("10s", every=5),
        lambda: dt.tumbling("1ms"),
        lambda: dt.tumbling("1500ms"),
        lambda: dt.session("1500ms"),
        lambda: dt.sliding("10s", every="2500ms"),
        lambda: dt.sliding("2500ms", every="1s"),
        lambda: dt.tumbling("often"),
        lambda: dt.tumbling(None),
        lambda: dt.tumbling(),
        lambda: dt.tumbling("1s", time=1),
        lambda: dt.session(),
        lambda: dt.session(["1s"]),
    ],
    "days": [
        lambda: dt.tumbling(time=1),
        lambda: dt.tumbling("12h"),
        lambda: dt.session("36h"),
        lambda: dt.sliding("2d", every="36h"),
    ],
}


def test_a_bare_number_is_told_how_to_say_what_it_is():
    with pytest.raises(dt.WindowError, match=r"time=60"):
        memory(time="t").window(dt.tumbling(60)).agg(n=dt.count())


def test_only_windows_of_time_are_windows_here():
    for window in (dt.last(5), dt.last(time=5), "1min", 5, None):
        with pytest.raises(dt.FlowError):
            memory(time="t").window(window).agg(n=dt.count())


def test_a_stream_without_event_time_has_no_windows():
    stream, timed = memory(), memory(time="t", name="a")
    for bare in (stream, stream.key_by("x"), timed.late, timed.late.key_by("x")):
        with pytest.raises(dt.WindowError, match="time"):
            bare.window(dt.tumbling(time=10)).agg(n=dt.count())


def test_results_without_order_have_no_windows():
    flow = dt.Flow("f")
    a, b = (memory(flow=flow, name=name, time="t") for name in "ab")
    pairs = a.join(b, on=left.x < right.x, window=dt.last(5), ordered=False)
    with pytest.raises(dt.FlowError, match="ordered=False"):
        pairs.window(dt.tumbling(time=10)).agg(n=dt.count())


def test_an_aggregate_must_be_one():
    window = memory(time="t").key_by("x").window(dt.tumbling(time=10))
    with pytest.raises(dt.FlowError):
        window.agg()
    with pytest.raises(dt.FlowError):
        window.agg(name="per-user")
    with pytest.raises(dt.FlowError, match=r"\.sum\(\)"):
        window.agg(y=col("x"))
    for not_one in (5, "x", None, dt.count, col("x") > 3, lambda batch: 3, dt.lit(3)):
        with pytest.raises(dt.FlowError):
            window.agg(y=not_one)
    for computed in (lambda: col("x").sum() + 1, lambda: 1 + dt.count(), lambda: (col("x") + dt.count()).sum()):
        with pytest.raises(dt.FlowError):
            window.agg(y=computed())


def test_names_must_differ():
    data = {"t": [1], "x": [1], "window_start": [1], "window_end": [1]}
    stream = memory(data, time="t")
    with pytest.raises(dt.SchemaError, match="'x'"):
        stream.key_by("x").window(dt.tumbling(time=1)).agg(x=dt.count())
    for taken in ("window_start", "window_end"):
        with pytest.raises(dt.SchemaError, match=taken):
            stream.window(dt.tumbling(time=1)).agg(**{taken: dt.count()})
        with pytest.raises(dt.SchemaError, match=taken):
            stream.key_by(taken).window(dt.tumbling(time=1)).agg(n=dt.count())
    made = stream.window(dt.tumbling(time=1)).agg(x=col("window_start").sum(), t=dt.count())
    assert made.schema.names == ["window_start", "window_end", "x", "t"], "columns that are not keys are gone"


def test_steps_have_names():
    stream = memory(time="t", name="events")
    assert stream.window(dt.tumbling(time=1)).agg(n=dt.count(), name="per-user").name == "per-user"
    with pytest.raises(dt.FlowError, match="per-user"):
        stream.window(dt.tumbling(time=1)).agg(n=dt.count(), name="per-user")
    with pytest.raises(dt.FlowError, match="not a name"):
        stream.window(dt.tumbling(time=1)).agg(n=dt.count(), name="per user")
    stream.window(dt.tumbling(time=1)).agg(n=dt.count(), name="w").write(dt.null())
    assert "per-user" in str(stream._flow.explain())
    assert stream._flow.run().steps["w"].rows_out == 3


def test_keys_must_be_columns():
    stream = memory({"t": [1], "user": ["a"], "city": ["b"]}, time="t")
    with pytest.raises(dt.SchemaError, match="did you mean 'user'"):
        stream.key_by("usr").window(dt.tumbling(time=1)).agg(n=dt.count())
    for keys in ((), ("user", "user"), ("user", 3), (None,)):
        with pytest.raises(dt.FlowError):
            stream.key_by(*keys).window(dt.tumbling(time=1)).agg(n=dt.count())


def test_columns_of_aggregates_must_be_there():
    window = memory({"t": [1], "amount": [2]}, time="t").window(dt.tumbling(time=1))
    for made in (lambda: col("amout").sum(), lambda: (col("amout") + 1).max(), lambda: col("amout").count()):
        with pytest.raises(dt.SchemaError, match="did you mean 'amount'"):
            window.agg(y=made())


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        *[(summed, kind) for kind in (*WORDS, *NESTED, pa.timestamp("s"), pa.date32(), pa.time32("s"))],
        *[(averaged, kind) for kind in (*WORDS, *NESTED, pa.timestamp("s"), pa.date32(), pa.duration("s"))],
        *[(made, kind) for made in (lowest, highest) for kind in (*WORDS, *NESTED)],
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_an_aggregate_without_a_meaning_for_its_type_is_refused(made, kind):
    stream = memory({"t": [1], "amount": pa.nulls(1, kind)}, time="t")
    with pytest.raises((dt.PredicateError, dt.SchemaError)) as error:
        stream.window(dt.tumbling(time=1)).agg(y=made(col("amount")), name="per-user")
    for part in ("per-user", "amount", str(kind)):
        assert part in str(error.value)


def test_aggregates_belong_into_agg():
    stream = memory(time="t")
    other = memory(flow=stream._flow, name="other", time="t")
    for misplaced in (
        lambda: stream.filter(col("x").sum() > 3),
        lambda: stream.filter(dt.count() > 3),
        lambda: stream.filter(col("x") > col("x").mean()),
        lambda: stream.filter(col("x").sum()),
        lambda: stream.select(y=col("x").sum()),
        lambda: stream.select(y=col("x") - col("x").min()),
        lambda: stream.with_columns(y=dt.count()),
        lambda: stream.with_columns(y=dt.group_udf(odd, ["x"], INT)),
        lambda: stream.join(other, on=left.x.sum() > right.x, window=dt.last(5)),
    ):
        with pytest.raises(dt.FlowError):
            misplaced()


# While it runs


def watched(items: list, build: Callable[[Any], Any], **read: Any):
    """A run that can be looked at after each batch: (runner, times of window ends that a sink was given)."""
    flow, seen = dt.Flow("f"), []
    build(flow.read(Feed(items), name="a", time="t", **read)).write(Staged(seen))
    runner = started(flow, Clock())

    def after_a_round():
        before = sum(batch.num_rows for batch in seen)
        runner.round()
        ends = [end for batch in seen for end in batch["window_end"].to_pylist()]
        return ends[before:]

    return runner, after_a_round


def test_a_window_is_emitted_by_the_batch_that_passes_its_end():
    runner, ends = watched([[1], [9], None, [10], [13, 25]], lambda s: s.window(dt.tumbling(time=10)).agg(n=dt.count()))
    assert [ends() for _ in range(5)] == [[], [], [], [10], [20]]
    finish(runner)


def test_a_window_waits_for_the_delay():
    runner, ends = watched([[1], [10], [12], [13]], lambda s: s.window(dt.tumbling(time=10)).agg(n=dt.count()), delay=3)
    assert [ends() for _ in range(4)] == [[], [], [], [10]]
    finish(runner)


def test_a_session_is_emitted_when_no_row_can_prolong_it():
    runner, ends = watched([[1], [4], [8], [9]], lambda s: s.window(dt.session(time=5)).agg(n=dt.count()))
    assert [ends() for _ in range(4)] == [[], [], [], []], "9 prolonged it until 14"
    finish(runner)
    runner, ends = watched([[1, 4], [9]], lambda s: s.window(dt.session(time=5)).agg(n=dt.count()))
    assert [ends() for _ in range(2)] == [[], [9]]
    finish(runner)


def test_a_filter_that_drops_everything_holds_no_window_up():
    def few(stream):
        return stream.filter(col("id") < 1).window(dt.tumbling(time=10)).agg(n=dt.count())

    runner, ends = watched([[1], [9], [10]], few)
    assert [ends() for _ in range(3)] == [[], [], [10]]
    finish(runner)


def test_windows_of_windows_are_emitted_at_once():
    def twice(stream):
        small = stream.window(dt.tumbling(time=5)).agg(n=dt.count())
        return small.window(dt.tumbling(time=10)).agg(n=col("n").sum())

    runner, ends = watched([[1], [7], [10], [12, 20]], twice)
    assert [ends() for _ in range(4)] == [[], [], [10], [20]]
    finish(runner)


def test_results_do_not_hold_others_back_until_the_end():
    """In a union with the stream that they come from: its rows go on when no result can come before them."""
    flow, seen = dt.Flow("f"), []
    events = flow.read(Feed([[1], [11], [21], [31]]), name="a", time="t")
    counted = events.window(dt.tumbling(time=10)).agg(n=dt.count()).select("n")
    counted.union(events.select(n=col("t") * 100)).write(Staged(seen))
    runner = started(flow, Clock())
    for _ in range(4):
        runner.round()
    assert [n for batch in seen for n in batch["n"].to_pylist()][:5] == [100, 1, 1100, 1, 2100]
    finish(runner)
    assert [n for batch in seen for n in batch["n"].to_pylist()] == [100, 1, 1100, 1, 2100, 1, 3100, 1]


@pytest.mark.parametrize(
    "window",
    [lambda: dt.tumbling(time=100), lambda: dt.sliding(time=200, every=100), lambda: dt.session(time=50)],
    ids=["tumbling", "sliding", "session"],
)
@pytest.mark.parametrize("kind", ["int", "text"])
def test_closed_windows_are_forgotten(window, kind):
    """200,000 rows, nearly each with a key of its own: what the step holds is what its open windows need."""
    n, step = 200_000, 2_000
    numbers = np.arange(n) * 7919
    keys = numbers if kind == "int" else pa.array([f"user {number}" for number in numbers])
    flow = dt.Flow("f")
    data = {"t": np.arange(n) // 10, "k": keys, "x": np.arange(n)}
    events = flow.read(dt.memory(data, batch_rows=step), time="t")
    made = events.key_by("k").window(window()).agg(n=dt.count(), x=col("x").sum(), low=col("x").min(), name="win")
    made.write(dt.null())
    runner, held = started(flow, Clock(), every=0), []
    for _ in range(n // step):
        runner.round()
        held.append(runner.result("stopped").steps["win"].held_bytes)
    early, late = max(held[10:30]), max(held[-20:])
    assert 0 < early < 2_000_000, "some thousand groups are open"
    assert late <= early * 1.25
    result = finish(runner)
    assert result.steps["win"].rows_in == n
    assert result.steps["win"].held_bytes <= early * 1.25


def test_rows_for_functions_are_forgotten_with_their_window():
    n, step = 100_000, 2_000
    flow = dt.Flow("f")
    events = flow.read(dt.memory({"t": np.arange(n) // 10, "x": np.arange(n)}, batch_rows=step), time="t")
    length = dt.group_udf(lambda batch: batch.num_rows, ["x"], INT)
    out = events.window(dt.tumbling(time=500)).agg(n=length, name="win").write(dt.collect())
    runner, held = started(flow, Clock()), []
    for _ in range(n // step):
        runner.round()
        held.append(runner.result("stopped").steps["win"].held_bytes)
    assert max(held[-10:]) <= max(held[5:15]) * 1.25
    finish(runner)
    assert out.table()["n"].to_pylist() == [5000] * 20


# Workers


@pytest.fixture
def runs(monkeypatch):
    """A place of its own for the folders of runs: other tests run beside this one."""
    place = tempfile.mkdtemp(dir="/dev/shm", prefix="dvt-")
    monkeypatch.setenv("DOVETAIL_RUNS", place)
    yield
    shutil.rmtree(place)


def test_any_number_of_workers_gives_the_same_results(runs):
    """Windows before a join, and after one: joins are spread over workers, whose answers come when they come."""
    n, outs = 3000, []
    rng = np.random.default_rng(3)
    tables = [
        {"t": np.sort(rng.integers(0, n, n)), "k": rng.integers(0, 5, n), "x": rng.integers(0, 90, n)} for _ in "ab"
    ]
    for workers, batch_rows in ((1, 10**6), (1, 7), (2, 400)):
        flow = dt.Flow("f")
        a, b = (flow.read(dt.memory(data, batch_rows=500), name=name, time="t") for name, data in zip("ab", tables))
        keyed = a.key_by("k").window(dt.sliding(time=60, every=25))
        counted = keyed.agg(n=dt.count(), total=col("x").sum(), name="first")
        pairs = counted.join(b, on=[left.k == right.k, left.n < right.x - 60], window=dt.last(40))
        after = pairs.key_by("x").window(dt.session(time=20)).agg(n=dt.count(), top=col("total").max())
        outs.append((counted.write(dt.collect()), pairs.write(dt.collect()), after.write(dt.collect())))
        flow.run(workers=workers, options=dt.Options(batch_rows=batch_rows, out_rows=batch_rows))
    for found in outs[1:]:
        for expected, again in zip(outs[0], found):
            assert expected.table().num_rows > 100
            assert again.table().equals(expected.table())
    read_in_order = [oracle.Event(int(t), {"k": int(k), "x": int(x)}) for t, k, x in zip(*tables[0].values())]
    expected = windowed.results(
        read_in_order, Sliding(60, 25), ["k"], {"n": windowed.count, "total": windowed.total(lambda row: row["x"])}
    )
    assert outs[0][0].table().to_pylist() == [event.row for event in expected]
    assert sorted(expected, key=attrgetter("time")) == expected


def test_aggregates_without_a_name_of_their_own_are_errors():
    windows = memory({"t": [1]}, time="t").window(dt.tumbling(time=1))
    with pytest.raises(dt.FlowError, match=r"agg of read .*: name each result, as in n=count\(\)"):
        windows.agg(dt.count())
    with pytest.raises(dt.FlowError, match=r"name= is what the step is called; call count\(\) otherwise"):
        windows.agg(name=dt.count())
