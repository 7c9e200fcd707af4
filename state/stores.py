"""Window indexes by name, for keys of ordinary types: `make("nested", "int64")`.

Some go by several keys at once: `make("zone_map", ["float64", "int64"])`. To these keys, and the bounds of a probe, are
lists with an array for each.

The joins inside this package speak to the native indexes in 64-bit keys; this is the same thing for people, and
for the tests that hold every index to one contract.
"""

__all__ = ["MOST_KEYS", "OF_SEVERAL_KEYS", "Store", "make", "names", "parameters"]

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from . import _native
from ._native import keys_of

_ROWS = np.dtype(np.int64)
_KINDS = {
    name: (summary, {parameter[0]: parameter[1:] for parameter in parameters})
    for name, summary, parameters in (
        *((name, summary, parameters) for name, summary, _, parameters in _native.kinds()), *_native.box_kinds()
    )
}  # fmt: skip
OF_SEVERAL_KEYS = frozenset(name for name, _, _ in _native.box_kinds())
"""Indexes that go by several keys at once."""

MOST_KEYS = _native.MOST_KEYS
"""Keys, at most, that these go by."""


def names() -> dict[str, str]:
    """Return the indexes that there are, each with a line about it.

    >>> names()["hash"]
    'equality: chains from the newest row to the oldest'
    """
    return {name: summary for name, (summary, _) in _KINDS.items()}


def parameters(name: str) -> dict[str, str]:
    """Return what a store lets one choose, each with its meaning, standard value and limits.

    >>> parameters("hash")
    {'smallest': 'entries of the smallest table (64; from 1 to 1073741824)'}
    """
    _, known = _kind(name)
    return {
        key: f"{meaning} ({standard:.10g}; from {least:.10g} to {most:.10g})"
        for key, (standard, least, most, meaning) in known.items()
    }


def _kind(name: str) -> tuple[str, dict[str, tuple[float, float, float, str]]]:
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
        The keys' NumPy type: any integer, float32 or float64, or a `datetime64` with its unit. A list of types for
        an index of several keys.
    params
        Those that `parameters(name)` tells.

    Examples
    --------
    >>> store = make("nested", "float64")
    >>> store.insert([1.0, 2.0, 2.0], 100)
    >>> store.probe([1.5], [2.0], [0], [200])
    (array([0, 0]), array([101, 102]))
    """
    _, known = _kind(name)
    for key, value in params.items():
        if key not in known:
            raise ValueError(f"store {name!r} has no parameter {key!r}; it has: {', '.join(known) or 'none'}")
        standard, least, most, meaning = known[key]
        whole = standard == int(standard)
        if isinstance(value, bool) or not isinstance(value, Real) or not least <= value <= most:
            raise ValueError(f"store {name!r}: {key}={value!r} ({meaning}) must be from {least:.10g} to {most:.10g}")
        if whole and value != int(value):
            raise ValueError(f"store {name!r}: {key}={value!r} ({meaning}) must be a whole number")
    several = isinstance(dtype, list | tuple)
    try:
        dtypes = [np.dtype(each) for each in (dtype if several else [dtype])]
    except TypeError:
        raise ValueError(f"store {name!r}: {dtype!r} is no type of keys; give NumPy's, such as 'int64'") from None
    if name in OF_SEVERAL_KEYS:
        return Store(_native.BoxIndex(name, len(dtypes), params), dtypes, several)
    if several:
        raise ValueError(f"store {name!r} goes by one key; of several: {', '.join(sorted(OF_SEVERAL_KEYS))}")
    return Store(_native.Index(name, params), dtypes, several)


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

    def __init__(self, index: "_native.Index | _native.BoxIndex", dtypes: Sequence[np.dtype], several: bool) -> None:
        self.name = index.name
        self.dtypes = dtypes
        self._index = index
        self._several = several
        self._wide = [_wide(dtype) for dtype in dtypes]
        self._next_row: int | None = None
        self._bound: int | None = None

    def insert(self, keys: object, rows: object) -> None:
        """Add keys with their rows: an ascending array, or the first of consecutive rows.

        All must be above every row inserted before; NaN (and NaT) has no place in an order and is refused.
        """
        self._add(self._index.insert, keys, rows)

    def _add(self, how: Callable[[Any, np.ndarray], None], keys: object, rows: object) -> None:
        values = [
            _compared(_fitting(each, dtype), dtype, wide)
            for each, dtype, wide in zip(self._columns(keys), self.dtypes, self._wide, strict=True)
        ]
        first = int(rows) if isinstance(rows, int | np.integer) else None
        count = len(values[0])
        where = _fitting(rows, _ROWS) if first is None else np.arange(first, first + count, dtype=np.int64)
        for each, dtype in zip(values, self.dtypes, strict=True):
            missing = _missing(each, dtype)
            if missing is not None and missing.any():
                raise ValueError("NaN and NaT cannot be stored: nothing compares with them")
            if len(where) != len(each):
                raise ValueError(f"{len(each)} keys for {len(where)} rows")
        if len(where) == 0:
            return
        if first is None and np.any(where[1:] <= where[:-1]):
            raise ValueError("rows must ascend")
        if self._next_row is not None and where[0] < self._next_row:
            raise ValueError(f"row {where[0]} is not above row {self._next_row - 1}, which was inserted before")
        how(self._given([keys_of(each) for each in values]), where)
        self._next_row = int(where[-1]) + 1

    def build(self, keys: object, rows: object) -> None:
        """Add all rows of a window at once, to an empty store."""
        if self._next_row is not None:
            raise ValueError("build needs an empty store; insert adds to one")
        self._add(self._index.build, keys, rows)

    def probe(
        self, lo: object, hi: object, row_lo: object, row_hi: object, *, ordered: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find, for each probe, the rows in [row_lo, row_hi) with a key in [lo, hi]; of several keys, with all of them.

        Returns (probe, row), ascending by both; with `ordered=False` the rows of a probe come as they are found, which
        is faster where there are many. An empty range, and one with NaN, matches nothing.
        """
        from_row, to_row = _fitting(row_lo, _ROWS), _fitting(row_hi, _ROWS)
        if self._bound is not None:
            from_row = np.maximum(from_row, self._bound)
        los, his = [], []
        for a, b, dtype, wide in zip(self._columns(lo), self._columns(hi), self.dtypes, self._wide, strict=True):
            low, high = (_compared(_fitting(bound, wide), dtype, wide) for bound in (a, b))
            lo_keys, hi_keys = keys_of(low), keys_of(high)
            missing = _missing(low, dtype), _missing(high, dtype)
            if missing[0] is not None and missing[1] is not None:
                nothing = missing[0] | missing[1]
                if nothing.any():
                    lo_keys[nothing], hi_keys[nothing] = 1, 0
            los.append(lo_keys)
            his.append(hi_keys)
        bounds = self._given(los), self._given(his), from_row, to_row
        probe, row, _ = self._index.probe(*bounds, 0, len(los[0]), 2**62, ordered)
        return probe, row

    def _columns(self, keys: Any) -> list[Any]:
        """Return an array for each key."""
        if not self._several:
            return [keys]
        if not isinstance(keys, list | tuple) or len(keys) != len(self.dtypes):
            raise ValueError(f"store {self.name!r} goes by {len(self.dtypes)} keys; give a list with an array for each")
        return list(keys)

    def _given(self, columns: list[np.ndarray]) -> Any:
        """Return keys as the native index takes them."""
        return columns if self.name in OF_SEVERAL_KEYS else columns[0]

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


def _compared(values: np.ndarray, dtype: np.dtype, wide: np.dtype) -> np.ndarray:
    return values.view(np.int64) if dtype.kind == "M" else values.astype(wide, copy=False)


def _missing(values: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Return which keys are NaN or NaT; None for types that have none."""
    if values.dtype == np.float64:
        return np.isnan(values)
    if dtype.kind == "M":
        return values == np.iinfo(np.int64).min
    return None
