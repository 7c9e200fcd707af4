"""What an index costs on this machine: measured once, in a fraction of a second, and kept in a file.

A join that may be answered by several indexes takes the one that costs least (operators/choice.py). What storing a row,
asking, and each row that is found cost depends on the machine, above all on its caches and its memory, and on how many
rows are held; so it is measured at some sizes, and read between them.

The file is `dovetail/costs-….json` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`), one for each kind of
processor and version; it may be deleted at any time. Where it cannot be written, each process measures for itself.
A cost that is off by a half makes a join slower, never wrong.
"""

__all__ = ["MEASURED", "Costs", "known", "measured"]

import contextlib
import functools
import hashlib
import json
import math
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import _native

MEASURED = ("hash", "carousel", "zone_map", "nested")
"""The indexes that `auto` chooses among."""

SCANNED = 2
"""Tests of a scan that is measured: it costs so much more with more of them."""

_ROWS = (1 << 10, 1 << 14, 1 << 18)
_MANY = 128  # pairs a probe, where the price of a pair is measured
_ROUNDS = 4
_FORMAT = 5


@dataclass(frozen=True)
class Costs:
    """Nanoseconds, at each of some numbers of rows held."""

    rows: tuple[int, ...]
    keep: dict[str, tuple[float, ...]]
    """To store a row, and to forget one."""
    find: dict[str, tuple[float, ...]]
    """To ask once, for next to nothing."""
    pair: dict[str, tuple[float, ...]]
    """For each row that is found."""
    check: tuple[float, ...]
    """To hold a found row against one more test."""

    def at(self, prices: tuple[float, ...], rows: float) -> float:
        """Return a price at a number of rows: between two that were measured as a power of them, beyond them level.

        >>> costs = Costs((1024, 4096), {}, {}, {}, ())
        >>> [round(costs.at((10.0, 40.0), rows)) for rows in (1, 1024, 2048, 4096, 2**30)]
        [10, 10, 20, 40, 40]
        """
        return float(np.exp2(np.interp(math.log2(max(rows, 1)), np.log2(self.rows), np.log2(prices))))


@functools.cache
def known() -> Costs:
    """Return this machine's costs: from the file, or measured and written there."""
    name = f"{_FORMAT} {_native.instructions()} {_processor()}"
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dovetail"
    except RuntimeError:  # a user without a home
        return measured()
    path = folder / f"costs-{hashlib.sha256(name.encode()).hexdigest()[:12]}.json"
    with contextlib.suppress(OSError, ValueError):  # there is none, or it is no text of JSON's
        found = _read(json.loads(path.read_text()))
        if found is not None:
            return found
    found = measured()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        whole = path.with_suffix(f".{os.getpid()}.tmp")
        whole.write_text(json.dumps(asdict(found), indent=1))
        whole.replace(path)
    return found


def _read(said: Any) -> Costs | None:
    """Return costs as a file has them; None if they are not ours, or no prices."""
    try:
        keep, find, pair = ({n: tuple(said[what][n]) for n in MEASURED} for what in ("keep", "find", "pair"))
        found = Costs(tuple(said["rows"]), keep, find, pair, tuple(said["check"]))
        prices = np.array([*keep.values(), *find.values(), *pair.values(), found.check], np.float64)
    except (KeyError, TypeError, ValueError):
        return None
    right = found.rows == _ROWS and prices.shape[1:] == (len(_ROWS),)
    return found if right and bool(np.isfinite(prices).all()) and bool((prices > 0).all()) else None


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def measured() -> Costs:
    """Measure, on random keys."""
    rng = np.random.default_rng(1)
    found = {name: [_measure(name, rows, rng) for rows in _ROWS] for name in MEASURED}
    keep, find, pair = ({name: tuple(each[i] for each in found[name]) for name in MEASURED} for i in range(3))
    return Costs(_ROWS, keep, find, pair, tuple(_check(rows, rng) for rows in _ROWS))


def _measure(name: str, rows: int, rng: np.random.Generator) -> tuple[float, float, float]:
    """Return (keep, find, pair) of one index that holds so many rows."""
    asked = _ROUNDS * min(rows, 4096 if name != "nested" else 1 << 22 >> rows.bit_length())
    part = min(_MANY, rows // 4) / rows  # of the rows, that the second kind of probe finds
    if name == "hash":
        pairs, groups = rows // 2, max(1, int(1 / part))  # chains of two, whose ends nobody can guess, and of many
        one, several = (rng.integers(0, most, asked, np.uint64) for most in (pairs, groups))
        few, many = _filled(name, rows, rng, pairs), _filled(name, rows, rng, groups)
        return _prices(few, (one, one), many, (several, several), rows, rng, pairs)
    index = _filled(name, rows, rng, 1 << 62)
    if name == "carousel":
        low = rng.integers(0, 1 << 61, asked, np.uint64)
        narrow, wide = ((low, low + np.uint64(int(share * (1 << 62)))) for share in (1 / rows, part))
        return _prices(index, narrow, index, wide, rows, rng, 1 << 62)
    # Two inequalities, which find the same part of the rows on each key.
    ends = []
    for share in (1 / rows, part):
        middle = (np.sqrt(share) * rng.uniform(0.9, 1.1, asked) * (1 << 62)).astype(np.uint64)
        nothing = np.zeros(asked, np.uint64)
        ends.append(([nothing, np.uint64(1 << 62) - middle], [middle, np.full(asked, (1 << 64) - 1, np.uint64)]))
    return _prices(index, ends[0], index, ends[1], rows, rng, 1 << 62)


def _keys(index: Any, rng: np.random.Generator, rows: int, groups: int) -> Any:
    several = index.name in _BOXED or index.name == "nested"
    columns = [rng.integers(0, groups, rows, np.uint64) for _ in range(2 if several else 1)]
    return columns if several else columns[0]


def _filled(name: str, rows: int, rng: np.random.Generator, groups: int) -> Any:
    """Return an index as it is in the midst of a join: its window has moved on by its whole length."""
    index = _Scan() if name == "nested" else _native.BoxIndex(name, 2) if name in _BOXED else _native.Index(name)
    chunk = min(rows, 4096)
    for at in range(0, 2 * rows, chunk):
        index.insert(_keys(index, rng, chunk, groups), np.arange(at, at + chunk))
        index.expire(at + chunk - rows)
    return index


class _Scan:
    """Two columns of keys, as an index has them."""

    name = "nested"

    def __init__(self) -> None:
        self.columns = [_native.RowKeys() for _ in range(SCANNED)]

    def insert(self, keys: list[np.ndarray], rows: np.ndarray) -> None:
        for column, each in zip(self.columns, keys, strict=True):
            column.append(each)

    def expire(self, before: int) -> None:
        for column in self.columns:
            column.expire(before)

    def probe(self, lo: list[np.ndarray], hi: list[np.ndarray], *rest: Any) -> Any:
        return _native.scan_rows(self.columns, lo, hi, *rest)


def _prices(
    few: Any, narrow: Any, many: Any, wide: Any, rows: int, rng: np.random.Generator, groups: int
) -> tuple[float, float, float]:
    count = (len(narrow[0]) if isinstance(narrow[0], np.ndarray) else len(narrow[0][0])) // _ROUNDS
    find, found = _asking(few, narrow, rows, count)
    all_of_many, found_more = _asking(many, wide, rows, min(count, 256))
    pair = max(0.5, (all_of_many - find) / max(1.0, found_more - found))
    find = max(5.0, find - found * pair)
    chunk, at, keep = min(rows, 4096), 2 * rows, math.inf
    for _ in range(4):
        keys, numbers = _keys(few, rng, chunk, groups), np.arange(at, at + chunk)
        start = time.perf_counter()
        few.insert(keys, numbers)
        few.expire(at + chunk - rows)
        keep, at = min(keep, (time.perf_counter() - start) / chunk * 1e9), at + chunk
    return keep, find, pair


def _asking(index: Any, ends: Any, rows: int, count: int) -> tuple[float, float]:
    """Return nanoseconds a probe, and what each found: the least of some rounds, each with other probes.

    The same again would be cheaper than any that come in a join: a processor learns how they branch.
    """
    row_lo, row_hi = np.full(count, rows), np.full(count, 2 * rows)
    least, found = math.inf, 0.0
    for part in range(_ROUNDS):
        some = slice(part * count, (part + 1) * count)
        lo, hi = ([bound[some] for bound in side] if isinstance(side, list) else side[some] for side in ends)
        start = time.perf_counter()
        pairs = len(index.probe(lo, hi, row_lo, row_hi, 0, count, 1 << 60)[1])
        seconds = time.perf_counter() - start
        if seconds < least:
            least, found = seconds, pairs / count
    return least / count * 1e9, found


def _check(rows: int, rng: np.random.Generator) -> float:
    keys = _native.RowKeys()
    keys.append(rng.integers(0, 1 << 62, rows, np.uint64))
    pairs, least = 1 << 14, math.inf
    for _ in range(_ROUNDS):
        probe, row = np.sort(rng.integers(0, 64, pairs)), rng.integers(0, rows, pairs)
        lo, hi = np.zeros(64, np.uint64), np.full(64, 1 << 61, np.uint64)
        start = time.perf_counter()
        _native.filter_pairs(probe, row, keys, lo, hi, False)
        least = min(least, (time.perf_counter() - start) / pairs * 1e9)
    return least


_BOXED = frozenset(name for name, *_ in _native.box_kinds())
