"""What is remembered, as bytes: trees of plain values whose leaves may be arrays and batches.

A task says what it remembers as dicts, lists, texts and numbers, with NumPy arrays, Arrow batches and tables in them
wherever they belong. Nothing is pickled: what is read decides what is made, never what is run. Arrays are read in
place. Of batches it is their own memory that is written, one batch after the other: to lay them out elsewhere first,
all the more in fresh memory, cost more than all the rest. So how long each is comes last, and the tree with it:

    magic, to 64 bytes │ leaves, each to a multiple of 64 │ {"tree": …, "sizes": […]} │ its length, 8 bytes │ magic

`Rows` (operators/contracts.py), a stream that only grows at its end, is not written here but by checkpoints.py, once.
"""

__all__ = ["Group", "decode", "encode", "replaced"]

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..batch import concat

MAGIC = b"DVTSNAP2"
_ALIGNMENT = 64
_TAIL = 8 + len(MAGIC)
_LEAF = "\0leaf"
_SEQUENCES = (list, tuple)  # made once, as it is asked of every value


@dataclass
class Group:
    """Batches of one schema that are written as one. The list is emptied when they are: nobody else needs them."""

    batches: list[pa.RecordBatch]


def replaced(tree: Any, leaf: type, by: Callable[[Any], Any]) -> Any:
    """Return a tree with something else in place of each leaf of a kind.

    >>> replaced({"a": [1, "x"]}, str, str.upper)
    {'a': [1, 'X']}
    """
    if isinstance(tree, leaf):
        return by(tree)
    if isinstance(tree, dict):
        return {name: replaced(value, leaf, by) for name, value in tree.items()}
    if isinstance(tree, _SEQUENCES):
        return [replaced(value, leaf, by) for value in tree]
    return tree


def encode(tree: Any) -> Iterator[Any]:
    """Yield a tree as parts of bytes, to be written one behind the other; each is good until the next is asked for.

    >>> tree = {"n": 1, "rows": pa.record_batch({"x": [1]}), "a": [np.arange(3)], "end": float("inf")}
    >>> back = decode(b"".join(map(bytes, encode(tree))))
    >>> back["n"], back["rows"].to_pydict(), back["a"][0].tolist(), back["end"]
    (1, {'x': [1]}, [0, 1, 2], inf)
    """
    blobs: list[Any] = []

    def leaf(value: Any) -> Any:
        """Say where it is found; or what it is, if JSON can say that."""
        said: dict[str, Any]
        if isinstance(value, np.ndarray):
            said = {_LEAF: "array", "dtype": value.dtype.str}
        elif isinstance(value, pa.RecordBatch | Group):
            said = {_LEAF: "batch"}
        elif isinstance(value, pa.Table):
            said = {_LEAF: "table"}
        elif isinstance(value, np.integer | np.floating | np.bool_):
            return value.item()
        else:
            raise TypeError(f"a snapshot cannot hold {value!r}, which is a {type(value).__name__}")
        blobs.append(value)
        return {**said, "at": len(blobs) - 1}

    said = json.dumps(tree, default=leaf)
    yield MAGIC + bytes(_ALIGNMENT - len(MAGIC))
    sizes = []
    for blob in blobs:
        parts = _parts_of(blob)
        sizes.append(sum(memoryview(part).nbytes for part in parts))
        yield from parts
        yield bytes(-sizes[-1] % _ALIGNMENT)
    head = f'{{"tree": {said}, "sizes": {sizes}}}'.encode()
    yield head + len(head).to_bytes(8, "little") + MAGIC


def _parts_of(blob: Any) -> list[Any]:
    """Return an array, a batch or a table as bytes, in several parts."""
    if isinstance(blob, np.ndarray):
        return [np.ascontiguousarray(blob).view(np.uint8).data] if blob.size else []
    if isinstance(blob, Group):
        batches = [concat(blob.batches)]
        blob.batches.clear()
    else:
        batches = [blob] if isinstance(blob, pa.RecordBatch) else blob.to_batches()
    sink = _Parts()
    with pa.ipc.new_stream(sink, batches[0].schema if batches else blob.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.parts


class _Parts:
    """A file to Arrow: takes what it writes, without a copy of what is large."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def write(self, part: Any) -> None:
        """Take the next part."""
        self.parts.append(part)


def decode(data: bytes | memoryview, stretches: list[tuple[int, int]] | None = None) -> Any:
    """Read a tree. Arrays and batches refer to the bytes.

    `stretches`: where it is noted of each batch, in the order of the tree, from where on it stands in how many bytes.
    """
    data = memoryview(data)
    if bytes(data[: len(MAGIC)]) != MAGIC or bytes(data[-len(MAGIC) :]) != MAGIC:
        raise ValueError("it does not begin and end as a snapshot does")
    length = int.from_bytes(data[-_TAIL : -len(MAGIC)], "little")
    head = json.loads(bytes(data[-_TAIL - length : -_TAIL]))
    at = _ALIGNMENT
    places = []
    for size in head["sizes"]:
        places.append((at, size))
        at += size + -size % _ALIGNMENT

    def loaded(value: Any) -> Any:
        if isinstance(value, list):
            return [loaded(each) for each in value]
        if not isinstance(value, dict):
            return value
        kind = value.get(_LEAF)
        if kind is None:
            return {name: loaded(each) for name, each in value.items()}
        at, size = places[value["at"]]
        blob = data[at : at + size]
        if kind == "batch" and stretches is not None:
            stretches.append((at, size))
        if kind == "array":
            return np.frombuffer(blob, np.dtype(value["dtype"]))
        with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
            return reader.read_next_batch() if kind == "batch" else reader.read_all()

    return loaded(head["tree"])
