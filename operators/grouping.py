"""Groups of rows: by the start of their window and by their key, each with a number and a fold of its rows.

Problem: keys are of any type and ever new ones come; a row must find its group without a look-up in Python; and what is
over must not be kept. Idea: native tables give keys dense numbers (state/key_numbers.hpp): strings first, column by
column; then all columns of a key together; then (start, key). A group is the last of these numbers, an index into
arrays. Groups that are over stay where they are until they are as many as the others; then those that are left are
numbered anew, and keys that nobody has any more are forgotten.

Nulls are a key of their own, all NaN are one, and so are 0.0 and −0.0, which is shown as 0.0.
"""

__all__ = ["Groups", "check_key"]

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..batch import record_batch, take_rows
from ..errors import SchemaError
from ..state import WindowLog, _native
from .aggregates import Fold, States

SLACK = 1024
"""Groups that may be over before it is worth a thought."""


def check_key(name: str, kind: pa.DataType, where: str) -> None:
    """Refuse a column that cannot be a key."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    plain = (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind) or _is_text(kind) or (pa.types.is_temporal(kind) and kind.bit_width <= 64)
    )  # fmt: skip
    if not plain:
        raise SchemaError(f"{where}: column {name!r} is {kind}, which cannot be a key; use one of its parts")


def _is_text(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (
            pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary,
            pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary,
        )
    )  # fmt: skip


class _Keys:
    """Numbers for the keys of rows: of some columns together."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = WindowLog(schema)  # row n: the key of number n, as it came first
        self.numbers = _native.KeyNumbers()
        self.texts = [_native.KeyNumbers() for _ in schema]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.numbers.nbytes + sum(table.nbytes for table in self.texts)

    def of(self, keys: pa.RecordBatch) -> np.ndarray:
        """Return the number of each row's key."""
        words = [word for i, column in enumerate(keys.columns) for word in self._words(i, column)]
        numbers, new = self.numbers.of_words(np.stack(words, axis=1))
        if len(new):
            fresh = take_rows(keys, new)
            self.rows.append(record_batch([_canonical(c) for c in fresh.columns], self.schema, len(new)))
        return numbers

    def _words(self, i: int, column: pa.Array) -> list[np.ndarray]:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        kind, nulls = column.type, None
        if column.null_count:
            nulls = np.asarray(column.is_null())
        if pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
            width = kind.bit_width // 8
            data = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :][: len(column) * width]
            wide = np.zeros((len(column), -(-width // 8) * 8), np.uint8)
            wide[:, :width] = data.reshape(-1, width)
            words = list(wide.view(np.uint64).T.copy())
        elif _is_text(kind):
            words = [self._numbers_of_texts(i, column).view(np.uint64)]
        else:
            words = [_word(column)]
        if nulls is None:
            return [*words, np.zeros(len(column), np.uint64)]
        return [*(np.where(nulls, np.uint64(0), word) for word in words), nulls.astype(np.uint64)]

    def _numbers_of_texts(self, i: int, column: pa.Array) -> np.ndarray:
        if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
            column = column.cast(pa.large_binary())
        if column.null_count:
            column = column.fill_null(b"" if "binary" in str(column.type) else "")
        _, offsets, data = column.buffers()
        wide = "large" in str(column.type)
        there = 0 if offsets is None else offsets.address
        bytes_at = 0 if data is None else data.address
        return self.texts[i].of_strings_at(there, bytes_at, column.offset, len(column), wide)[0]


def _canonical(column: pa.Array) -> pa.Array:
    """Return keys as they are shown: of zeros and of NaN the same one, whichever came first."""
    if pa.types.is_dictionary(column.type) and pa.types.is_floating(column.type.value_type):
        return pa.DictionaryArray.from_arrays(column.indices, _canonical(column.dictionary))
    if not pa.types.is_floating(column.type):
        return column
    values = np.asarray(column.fill_null(pa.scalar(0.0, column.type)))
    with np.errstate(invalid="ignore"):  # some NaN signal
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values + values.dtype.type(0))
    return pa.array(values, column.type, mask=np.asarray(column.is_null()))


def _word(column: pa.Array) -> np.ndarray:
    """Return values of up to 64 bits as words that are equal where they are."""
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if column.null_count:
        column = column.fill_null(pa.scalar(0, pa.int8()).cast(column.type))
    if pa.types.is_floating(kind):
        with np.errstate(invalid="ignore"):  # some NaN signal
            values = np.asarray(column).astype(np.float64) + 0.0
        values[np.isnan(values)] = np.nan
        return values.view(np.uint64)
    if pa.types.is_unsigned_integer(kind):
        return np.asarray(column).astype(np.uint64)
    return np.asarray(column).astype(np.int64).view(np.uint64)


class Groups:
    """The groups that are not over yet, and some that are. Group numbers hold until the next `forget`."""

    def __init__(self, keys: pa.Schema, folds: Sequence[Fold]) -> None:
        self.schema, self.folds = keys, folds
        self.keys = _Keys(keys)
        self._numbers = _native.KeyNumbers()
        self._start, self._key, self._first_row = self._arrays = [States(np.int64) for _ in range(3)]
        self.rows = 0  # that were taken

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def start(self) -> np.ndarray:
        """Where each group's window begins."""
        return self._start.array[: len(self)]

    @property
    def key(self) -> np.ndarray:
        """The number of each group's key."""
        return self._key.array[: len(self)]

    @property
    def first_row(self) -> np.ndarray:
        """Which row came first in each group."""
        return self._first_row.array[: len(self)]

    @property
    def nbytes(self) -> int:
        """Bytes of tables, arrays and folds."""
        arrays = sum(states.array.nbytes for states in self._arrays)
        return arrays + self.keys.nbytes + self._numbers.nbytes + sum(fold.nbytes for fold in self.folds)

    def number_keys(self, keys: pa.RecordBatch) -> np.ndarray:
        """Return the number of each row's key."""
        if not len(self.schema):
            return np.zeros(keys.num_rows, np.int64)
        return self.keys.of(keys)

    def take(self, start: np.ndarray, key: np.ndarray, columns: Sequence[object]) -> np.ndarray:
        """Fold rows in: for each the start of its window, the number of its key; for each fold its values.

        Return the group of each row.
        """
        words = np.stack([start, key], axis=1).view(np.uint64)
        group, new = self._numbers.of_words(words)
        fresh = slice(len(self) - len(new), len(self))
        for states, values in zip(self._arrays, (start[new], key[new], new + self.rows), strict=True):
            states.extend(len(self))
            states.array[fresh] = values
        self.rows += len(group)
        for fold, column in zip(self.folds, columns, strict=True):
            fold.extend(len(self))
            fold.take(group, column)
        return group

    def key_columns(self, key: np.ndarray) -> list[pa.Array]:
        """Return the columns of keys, by number."""
        return self.keys.rows.gather(list(range(len(self.schema))), key)

    def snapshot(self) -> dict[str, Any]:
        """Return what it remembers."""
        n = len(self)
        keys = self.key_columns(np.arange(len(self.keys))) if len(self.schema) else []
        return {
            "rows": self.rows, "arrays": [states.array[:n].copy() for states in self._arrays],
            "keys": pa.RecordBatch.from_arrays(keys, schema=self.schema) if keys else None,
            "folds": [fold.snapshot(n) for fold in self.folds],
        }  # fmt: skip

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from there."""
        self.rows = known["rows"]
        n = len(known["arrays"][0])
        for states, values in zip(self._arrays, known["arrays"], strict=True):
            states.restore(values)
        for fold, each in zip(self.folds, known["folds"], strict=True):
            fold.restore(each)
        # Numbers are given in the order in which keys and groups come: so they are the same again.
        if known["keys"] is not None and known["keys"].num_rows:
            self.keys.of(known["keys"])
        if n:
            start, key = known["arrays"][:2]
            self._numbers.of_words(np.stack([start, key], axis=1).view(np.uint64))

    def keep(self, alive: np.ndarray) -> np.ndarray | None:
        """Forget groups that are over, if they have become many; return which keys are left, by number, if so.

        Keys are then numbered by their place in that.
        """
        left = int(alive.sum())
        if len(self) - left < left + SLACK:
            return None
        groups = np.flatnonzero(alive)
        used = np.unique(self.key[groups])
        rows = pa.RecordBatch.from_arrays(self.key_columns(used), schema=self.schema) if len(self.schema) else None
        for states in self._arrays:
            states.keep(groups)
        for fold in self.folds:
            fold.keep(groups)
        self._key.array[:left] = np.searchsorted(used, self._key.array[:left])
        self._numbers = _native.KeyNumbers()
        if left:
            self._numbers.of_words(np.stack([self._start.array[:left], self._key.array[:left]], axis=1).view(np.uint64))
        if rows is not None:
            self.keys = _Keys(self.schema)
            if rows.num_rows:
                self.keys.of(rows)
        return used
