"""Rows that are made up as they are read, the same ones every time: for tests, benchmarks and first steps.

The idea: rows come in blocks of `BLOCK` whose every column has a random generator of its own, seeded by
(seed, column, block). So row 1,000,000 is what it is however rows are cut into batches, whichever columns are
asked for, and (except where a distribution stretches over all rows) however many rows there are.

A key distribution draws floats x; 0 falls on `low` and 1 on `high`, and an integer key is rounded down:

=========  ==================================================================================================
uniform    0 ≤ x < 1
gaussian   N(mean, deviation): a few keys fall outside of low … high if they are more than 1/2 from the mean
gamma      Γ(shape, scale), whose mean is shape·scale: with the defaults keys lie around low + 9·(high − low)
zipf       the r-th key from `low` is drawn with a probability in proportion to r^−exponent; high − low keys
drift      N(μ, deviation) where μ stays at `mean` for 4/18 of the rows, then moves by `drift` in all,
           linearly over 10/18 of them, and stays there for the last 4/18
sorted     x rises evenly from 0 towards 1 over all rows
=========  ==================================================================================================

`drift` is the drifting load on which PIM-Tree was measured; `sorted` is the worst case for a tree.
"""

__all__ = ["synthetic"]

import datetime
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import FlowError, SourceError, nearest
from ..operators.contracts import Reader
from ._common import BatchReader, check_positive, pick, recut

BLOCK = 65_536
"""Rows that are drawn at once. Part of what a seed means: another value would be other rows."""

KEYS = ("uniform", "gaussian", "gamma", "zipf", "drift", "sorted")

DRIFT_START, DRIFT_LENGTH = 4 / 18, 10 / 18
"""Where the drift begins, and how long it takes, as shares of all rows."""


def synthetic(
    rows: int | None,
    *,
    key: str = "uniform",
    low: float = 0,
    high: float = 1_000_000,
    seed: int = 0,
    batch_rows: int = 65_536,
    dtype: str = "int64",
    rate: float = 1000,
    start: str | datetime.datetime = "2024-01-01",
    columns: Sequence[str] = ("ts", "key", "value"),
    mean: float = 0.5,
    deviation: float = 0.125,
    drift: float = 0.2,
    shape: float = 3.0,
    scale: float = 3.0,
    exponent: float = 1.2,
) -> "SyntheticSource":
    """Make up rows with a time, a key and a value.

    Parameters
    ----------
    rows
        How many; None means that they never end.
    key
        The distribution of the keys: uniform, gaussian, gamma, zipf, drift or sorted.
    low, high
        Where 0 and 1 of the distribution fall. Uniform and sorted keys are below `high`.
    seed
        Another one gives other rows.
    batch_rows
        Rows in a batch. No row depends on it.
    dtype
        The type of the key: an integer or a float type of numpy.
    rate
        Rows per second of event time. Nothing waits: how fast they are read is up to the flow.
    start
        The first row's time, without a time zone.
    columns
        The names of the time (`timestamp[us]`, never falling), the key and the value (a float in [0, 1)).
    mean, deviation
        Of `gaussian` and `drift`, as shares of low … high.
    drift
        How far the mean of `drift` moves, as a share of low … high.
    shape, scale
        Of `gamma`.
    exponent
        Of `zipf`; above 1.

    >>> import dovetail as dt
    >>> batch = dt.synthetic(3, key="sorted", high=30, rate=1).reader(None).read()
    >>> batch["key"].to_pylist()
    [0, 10, 20]
    >>> [str(time.time()) for time in batch["ts"].to_pylist()]
    ['00:00:00', '00:00:01', '00:00:02']
    """
    if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 0):
        raise FlowError(f"synthetic: rows={rows!r} must be a whole number from 0 on, or None for no end")
    if key not in KEYS:
        raise FlowError(f"synthetic: key={key!r} is no distribution; {nearest(str(key), KEYS)}")
    if rows is None and key in ("drift", "sorted"):
        raise FlowError(f"synthetic: key={key!r} stretches over all rows; say how many with rows=")
    if not isinstance(seed, int) or seed < 0:
        raise FlowError(f"synthetic: seed={seed!r} must be a whole number from 0 on")
    check_positive("synthetic", "batch_rows", batch_rows)
    above_zero = {"rate": rate, "deviation": deviation, "shape": shape, "scale": scale}
    finite = {"mean": mean, "drift": drift, "exponent": exponent}
    for name, value in {"low": low, "high": high, **above_zero, **finite}.items():
        if not isinstance(value, int | float | np.number):
            raise FlowError(f"synthetic: {name}={value!r} is not a number")
    if _dtype(dtype).kind != "f" and not (float(low).is_integer() and float(high).is_integer()):
        raise FlowError(f"synthetic: low={low!r} and high={high!r} must be whole numbers for a key of {dtype}")
    _check_numbers(low, high, above_zero, finite)
    if exponent < 1.01:
        raise FlowError(f"synthetic: exponent={exponent!r} must be at least 1.01")
    named = not isinstance(columns, str) and all(isinstance(name, str) for name in columns)
    if not named or len(columns) != 3 or len(set(columns)) != 3:
        raise FlowError(f"synthetic: columns={columns!r} must be three different names: time, key, value")
    return SyntheticSource(
        rows=rows, key=key, low=low, high=high, seed=seed, batch_rows=batch_rows, dtype=_dtype(dtype),
        rate=rate, start=_microseconds(start), columns=tuple(columns), mean=mean, deviation=deviation,
        drift=drift, shape=shape, scale=scale, exponent=exponent,
    )  # fmt: skip


def _check_numbers(low: float, high: float, above_zero: dict[str, float], finite: dict[str, float]) -> None:
    if not -np.inf < low < high < np.inf:
        raise FlowError(f"synthetic: low={low!r} must be less than high={high!r}, and both finite")
    for name, value in above_zero.items():
        if not 0 < value < np.inf:
            raise FlowError(f"synthetic: {name}={value!r} must be above 0, and finite")
    for name, value in finite.items():
        if not -np.inf < value < np.inf:
            raise FlowError(f"synthetic: {name}={value!r} must be finite")


def _dtype(name: str) -> np.dtype:
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "iuf":
        raise FlowError(f"synthetic: dtype={name!r} is no integer or float type; take 'int64' or 'float64'")
    return dtype


def _microseconds(start: str | datetime.datetime) -> int:
    """Count the microseconds from 1970-01-01."""
    try:
        time = start if isinstance(start, datetime.datetime) else datetime.datetime.fromisoformat(start)
    except (TypeError, ValueError) as failure:
        raise FlowError(f"synthetic: start={start!r} is no ISO date or time, like '2024-01-01'") from failure
    if time.tzinfo is not None:
        raise FlowError(f"synthetic: start={start!r} has a time zone; give it without")
    return (time - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class SyntheticSource:
    """Rows that are made up; made by `synthetic`, which says what the fields mean."""

    rows: int | None
    key: str
    low: float
    high: float
    seed: int
    batch_rows: int
    dtype: np.dtype
    rate: float
    start: int
    columns: tuple[str, ...]
    mean: float
    deviation: float
    drift: float
    shape: float
    scale: float
    exponent: float

    @property
    def schema(self) -> pa.Schema:
        """The time, the key and the value."""
        types = (pa.timestamp("us"), pa.from_numpy_dtype(self.dtype), pa.float64())
        return pa.schema(list(zip(self.columns, types)))

    def describe(self) -> str:
        """Name it in a plan."""
        return f"synthetic {self.key} ({'endless' if self.rows is None else f'{self.rows:,} rows'})"

    @property
    def replayable(self) -> bool:
        """True: the same seed makes the same rows."""
        return True

    def reader(self, columns: Sequence[str] | None, position: Any = None) -> Reader:
        """Start at the first row, or a later one; only these columns are made."""
        wanted = pick(self.schema, columns, "synthetic")
        made_of = {name: str(value) for name, value in vars(self).items() if name != "batch_rows"}
        start = {"row": 0, "made_of": made_of}
        if position is not None:
            if other := [name for name, value in made_of.items() if position["made_of"].get(name) != value]:
                raise SourceError(
                    f"synthetic: {other[0]}={made_of[other[0]]}, and the checkpoint that is gone on from was made with "
                    f"{position['made_of'].get(other[0])}; make the same rows again, or begin in another folder"
                )
            start = position
        return BatchReader(self._read(wanted, start), "synthetic", start)

    def _read(self, wanted: pa.Schema, start: Any) -> Generator[tuple[pa.RecordBatch, Any], None, None]:
        row = start["row"]
        for batch in recut(self._blocks(wanted, row), self.batch_rows):
            row += batch.num_rows
            yield batch, {**start, "row": row}

    def _blocks(self, wanted: pa.Schema, start: int) -> Generator[pa.RecordBatch, None, None]:
        block = start // BLOCK
        while self.rows is None or block * BLOCK < self.rows:
            numbers = block * BLOCK + np.arange(BLOCK)
            made = [self._column(self.columns.index(name), block, numbers) for name in wanted.names]
            whole = pa.RecordBatch.from_arrays(
                [pa.array(values, field.type) for values, field in zip(made, wanted)], schema=wanted
            )
            whole = whole if self.rows is None else whole.slice(0, self.rows - block * BLOCK)
            yield whole.slice(max(0, start - block * BLOCK))
            block += 1

    def _column(self, column: int, block: int, numbers: np.ndarray) -> np.ndarray:
        """Make one column of a block; always a whole block, so that its end does not change its rows."""
        if column == 0:
            return self.start + _floor_divide(numbers * 1_000_000, self.rate)
        random = np.random.default_rng([self.seed, column, block])
        return self._keys(random, numbers) if column == 1 else random.random(BLOCK)

    def _keys(self, random: np.random.Generator, numbers: np.ndarray) -> np.ndarray:
        span = self.high - self.low
        if self.key == "zipf":
            offsets = _zipf(random, self.exponent, max(1, int(span))) - 1
        else:
            offsets = self._positions(random, numbers) * span
        if self.dtype.kind == "f":
            return (self.low + offsets).astype(self.dtype)
        # Rounded before `low` is added: beside a large `low` a float has no room for the rest.
        offsets = np.floor(offsets)
        least, most = (int(self.low) + int(offset) for offset in (offsets.min(), offsets.max()))
        for limits in (np.iinfo(self.dtype), np.iinfo(np.int64)):
            if least < limits.min or most > limits.max:
                raise SourceError(
                    f"synthetic {self.key}: keys from {least} to {most} do not fit {limits.dtype}; "
                    f"low={self.low!r} and high={self.high!r} are only where 0 and 1 of the distribution "
                    f"fall: take a wider dtype, or narrower limits"
                )
        return (offsets.astype(np.int64) + int(self.low)).astype(self.dtype)

    def _positions(self, random: np.random.Generator, numbers: np.ndarray) -> np.ndarray:
        """Draw x: 0 is `low` and 1 is `high`."""
        if self.key == "uniform":
            return random.random(BLOCK)
        if self.key == "gamma":
            return random.gamma(self.shape, self.scale, BLOCK)
        if self.key == "gaussian":
            return random.normal(self.mean, self.deviation, BLOCK)
        assert self.rows is not None
        share = numbers / self.rows
        if self.key == "sorted":
            return share
        moved = np.clip((share - DRIFT_START) / DRIFT_LENGTH, 0, 1)
        return random.normal(self.mean + self.drift * moved, self.deviation)


def _floor_divide(numbers: np.ndarray, by: float) -> np.ndarray:
    """Divide and round down: exactly by a whole number, else as floats do."""
    if float(by).is_integer():
        return numbers // int(by)
    return np.floor(numbers / by).astype(np.int64)


def _zipf(random: np.random.Generator, exponent: float, ranks: int) -> np.ndarray:
    """Draw ranks from 1 to `ranks`: numpy's have no end, so what lies beyond is drawn again."""
    drawn = random.zipf(exponent, BLOCK)
    while (beyond := drawn > ranks).any():
        drawn[beyond] = random.zipf(exponent, int(beyond.sum()))
    return drawn
