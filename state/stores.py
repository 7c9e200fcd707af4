"""Window indexes by name, for keys of ordinary types: `make("nested", "int64")`.

The joins inside this package speak to the native indexes in 64-bit keys; this is the same thing for people, and
for the tests that hold every index to one contract.
"""

__all__ = ["Store", "make", "names", "parameters"]

from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

from . import _native
from ._native import keys_of

_ROWS = np.dtype(np.int64)
_KINDS = {
    name: (summary, ranges, {parameter[0]: parameter[1:] for parameter in parameters})
    for name, summary, ranges, parameters in _native.kinds()
}


def names() -> dict[str, str]:
    """Return the indexes that there are, each with a line about it.

    >>> names()["hash"]
    'equality: chains from the newest row to the oldest'
    """
    return {name: summary for name, (summary, _, _) in _KINDS.items()}


def parameters(name: str) -> dict[str, str]:
    """Return what a store lets one choose, each with its meaning, standard value and limits.

    >>> parameters("hash")
    {'smallest': 'entries of the smallest table (64; from 1 to 1073741824)'}
    """
    _, _, known = _kind(name)
    return {
        key: f"{meaning} ({standard:.10g}; from {least:.10g} to {most:.10g})"
        for key, (standard, least, most, meaning) in known.items()
    }


def _kind(name: str) -> tuple[str, bool, dict[str, tuple[float, float, float, str]]]:
    if name not in _KINDS:
        raise ValueError(f"there is no store named {name!r}; there are: {', '.join(sorted(_KINDS))}")
    return _KINDS[name]


def make(name: str, dtype: Any, **params: float) -> "Store":
    """Make an empty store.

    Parameters
    ----------
    name
        One of `names()`.
    dtype
        The keys' NumPy type: any integer, float32 or float64, or a `datetime64` with its unit.
    params
        Those that `parameters(name)` tells.

    Examples
    --------
    >>> store = make("nested", "float64")
    >>> store.insert([1.0, 2.0, 2.0], 100)
    >>> store.probe([1.5], [2.0], [0], [200])
    (array([0, 0]), array([101, 102]))
    """
    _, _, known = _kind(name)
    for key, value in params.items():
        if key not in known:
            raise ValueError(f"store {name!r} has no parameter {key!r}; it has: {', '.join(known) or 'none'}")
        standard, least, most, meaning = known[key]
        whole = standard == int(standard)
        if isinstance(value, bool) or not isinstance(value, Real) or not least <= value <= most:
            raise ValueError(f"store {name!r}: {key}={value!r} ({meaning}) must be from {least:.10g} to {most:.10g}")
        if whole and value != int(value):
            raise ValueError(f"store {name!r}: {key}={value!r} ({meaning}) must be a whole number")
    return Store(_native.Index(name, params), np.dtype(dtype))


def _wide(dtype: np.dtype) -> np.dtype:
    """Return the type in which keys of a type are compared; a probe may ask for any value of it."""
    if dtype.kind == "M":
        return dtype
    wide = {"i": np.int64, "u": np.uint64, "f": np.float64}.get(dtype.kind)
    if wide is None or (dtype.kind == "f" and dtype.itemsize not in (4, 8)):
        raise ValueError(f"keys are integers, float32, float64 or datetime64, not {dtype}")
    return np.dtype(wide)


def _fitting(values: object, dtype: np.dtype) -> np.ndarray:
    """Return values as an array of a type; refuse those that would become others in it."""
    given = np.asarray(values)
    if given.dtype == dtype:
        return np.ascontiguousarray(given)
    try:
        with np.errstate(all="ignore"):
            out = np.ascontiguousarray(given.astype(dtype))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{given.dtype} values are not {dtype}: {error}") from error
    if len(given) and given.dtype.kind in "iufb" and dtype.kind in "iu":
        changed = np.flatnonzero(~(out.astype(object) == given.astype(object)))
        if len(changed):
            raise ValueError(f"{given[changed[0]]} is not a value of {dtype}; make a store of a type that has it")
    return out


class Store:
    """A window index: keys with ascending rows in, (probe, row) pairs out."""

    def __init__(self, index: _native.Index, dtype: np.dtype) -> None:
        self.name = index.name
        self.dtype = dtype
        self._index = index
        self._wide = _wide(dtype)
        self._next_row: int | None = None
        self._bound: int | None = None

    def insert(self, keys: object, rows: object) -> None:
        """Add keys with their rows: an ascending array, or the first of consecutive rows.

        All must be above every row inserted before; NaN (and NaT) has no place in an order and is refused.
        """
        self._add(self._index.insert, keys, rows)

    def _add(self, how: Callable[[np.ndarray, np.ndarray], None], keys: object, rows: object) -> None:
        values = self._compared(_fitting(keys, self.dtype))
        first = int(rows) if isinstance(rows, int | np.integer) else None
        where = _fitting(rows, _ROWS) if first is None else np.arange(first, first + len(values), dtype=np.int64)
        missing = self._missing(values)
        if missing is not None and missing.any():
            raise ValueError("NaN and NaT cannot be stored: nothing compares with them")
        if len(where) != len(values):
            raise ValueError(f"{len(values)} keys for {len(where)} rows")
        if len(where) == 0:
            return
        if first is None and np.any(where[1:] <= where[:-1]):
            raise ValueError("rows must ascend")
        if self._next_row is not None and where[0] < self._next_row:
            raise ValueError(f"row {where[0]} is not above row {self._next_row - 1}, which was inserted before")
        how(keys_of(values), where)
        self._next_row = int(where[-1]) + 1

    def build(self, keys: object, rows: object) -> None:
        """Add all rows of a window at once, to an empty store."""
        if self._next_row is not None:
            raise ValueError("build needs an empty store; insert adds to one")
        self._add(self._index.build, keys, rows)

    def probe(self, lo: object, hi: object, row_lo: object, row_hi: object) -> tuple[np.ndarray, np.ndarray]:
        """Find, for each probe, the rows in [row_lo, row_hi) with a key in [lo, hi].

        Returns (probe, row), ascending by both. An empty range, and one with NaN, matches nothing.
        """
        low, high = (self._compared(_fitting(bound, self._wide)) for bound in (lo, hi))
        from_row, to_row = _fitting(row_lo, _ROWS), _fitting(row_hi, _ROWS)
        if self._bound is not None:
            from_row = np.maximum(from_row, self._bound)
        lo_keys, hi_keys = keys_of(low), keys_of(high)
        missing = self._missing(low), self._missing(high)
        if missing[0] is not None and missing[1] is not None:
            nothing = missing[0] | missing[1]
            if nothing.any():
                lo_keys[nothing], hi_keys[nothing] = 1, 0
        probe, row, _ = self._index.probe(lo_keys, hi_keys, from_row, to_row, 0, len(low), 2**62)
        return probe, row

    def expire(self, before_row: int) -> None:
        """Forget the rows below a bound; they never come back."""
        if self._bound is not None and before_row < self._bound:
            raise ValueError(f"the bound cannot fall from {self._bound} to {before_row}")
        self._bound = int(before_row)
        self._index.expire(self._bound)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Bytes that the store holds."""
        return self._index.nbytes

    def check(self) -> None:
        """Raise RuntimeError if an invariant does not hold."""
        self._index.check()

    def statistics(self) -> dict[str, object]:
        """Return what there is to know: name, rows, bytes, and counts of the structure's own."""
        return {"name": self.name, "rows": len(self), "bytes": self.nbytes, **self._index.statistics()}

    def _compared(self, values: np.ndarray) -> np.ndarray:
        return values.view(np.int64) if self.dtype.kind == "M" else values.astype(self._wide, copy=False)

    def _missing(self, values: np.ndarray) -> np.ndarray | None:
        """Return which keys are NaN or NaT; None for types that have none."""
        if values.dtype == np.float64:
            return np.isnan(values)
        if self.dtype.kind == "M":
            return values == np.iinfo(np.int64).min
        return None
