"""The messages of a parallel join as bytes: what JSON can say, and parts that are Arrow batches or numbers.

A large batch travels as a stream of Arrow's, which is written in the place where it is read: once. Reading it copies
nothing. A small one, which travels inside its message, goes without its schema: both ends know it, and to write and to
read it was more than half of what such a batch cost.
"""

__all__ = [
    "ACK", "ASK", "DONE", "ERROR", "FLUSH", "FREED", "HELLO", "HERE", "SLICE", "STEP", "STOP", "Codec", "Form",
]  # fmt: skip

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa

from ..batch import has_dictionary
from ..disk import Place
from ..operators.access import SIDES
from ..operators.layouts import Piece
from ..transport import INLINE
from .parallel import Done, Slice, StepMessage

STEP, SLICE, DONE, ACK, FREED, HELLO, ERROR, STOP, FLUSH, ASK, HERE = range(11)

Parts = list[Any]


class Codec:
    """The messages of one join. Both ends are told what its batches look like."""

    def __init__(self, inputs: dict[str, pa.Schema], results: pa.Schema) -> None:
        """`inputs`: of the rows that a cell is given, for each side; `results`: of what it answers."""
        self.forms = {side: Form(schema) for side, schema in inputs.items()}
        self.results = Form(results)

    def encode(
        self, message: StepMessage | Slice | Done, places: Sequence[Place | None] = ()
    ) -> tuple[int, dict[str, Any], Parts]:
        """Return (kind, meta, parts); `places`: of a step's batches, in files in which they stand already."""
        if isinstance(message, StepMessage):
            batches = [(self.forms[side], batch) for side in SIDES for batch in message.batches.get(side, ())]
            parts: Parts = [
                form.bytes_of(batch) if place is None else place
                for (form, batch), place in zip_longest(batches, places)
            ]
            parts += [part for side in SIDES for part in (message.row_lo[side], message.row_hi[side])]
            pieces: Any = message.pieces and {
                side: [[(p.low, p.high, p.begin, p.end) for p in cell] for cell in cells]
                for side, cells in message.pieces.items()
            }
            meta = {
                "n": message.number, "batches": {side: len(found) for side, found in message.batches.items()},
                "first": message.first, "bounds": message.bounds, "pieces": pieces, "again": message.again,
                "turns": message.turns,
            }  # fmt: skip
            return STEP, meta, parts
        if isinstance(message, Slice):
            order = [message.later] if message.tie is None else [message.later, message.tie]
            return SLICE, {"n": message.step, "upto": message.upto}, [self.results.bytes_of(message.data), *order]
        meta = {"n": message.step, "load": message.load, "nulls": message.null_keys, "bytes": message.nbytes,
                "sample": list(message.sample), "found": message.found_by}  # fmt: skip
        return DONE, meta, list(message.sample.values())

    def decode(self, kind: int, meta: dict[str, Any], parts: Sequence[np.ndarray]) -> StepMessage | Slice | Done:
        """Read a message. Batches and numbers refer to the parts."""
        if kind == STEP:
            left = iter(parts)
            batches: dict[str, Sequence[pa.RecordBatch]] = {
                side: [self.forms[side].batch_of(next(left)) for _ in range(count)]
                for side, count in meta["batches"].items()
            }
            row_lo, row_hi = {}, {}
            for side in SIDES:
                row_lo[side], row_hi[side] = _numbers_of(next(left)), _numbers_of(next(left))
            cut: Any = meta["pieces"] and {
                side: [tuple(Piece(*piece) for piece in cell) for cell in cells]
                for side, cells in meta["pieces"].items()
            }
            return StepMessage(
                meta["n"], batches, meta["first"], row_lo, row_hi, meta["bounds"], cut, meta["again"], meta["turns"]
            )
        if kind == SLICE:
            data, later, *ties = parts
            tie = _numbers_of(ties[0]) if ties else None
            return Slice(meta["n"], meta["upto"], self.results.batch_of(data), _numbers_of(later), tie)
        sample = {side: part.view(np.uint64) for side, part in zip(meta["sample"], parts, strict=True)}
        return Done(meta["n"], meta["load"], sample, meta["nulls"], meta["bytes"], meta["found"])


class Form:
    """How batches of one schema are written."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        # Of dictionaries, which travel in a message of Arrow's own, only writing tells the length.
        self.known = not has_dictionary(schema)

    def bytes_of(self, batch: pa.RecordBatch) -> Any:
        """Return a batch as bytes, or as what can write them."""
        if not self.known:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self.schema) as writer:
                writer.write_batch(batch)
            return memoryview(sink.getvalue())
        if pa.ipc.get_record_batch_size(batch) <= INLINE:
            return memoryview(batch.serialize())
        return _Streamed(batch)

    def batch_of(self, part: np.ndarray) -> pa.RecordBatch:
        """Read one."""
        if self.known and len(part) <= INLINE:
            return pa.ipc.read_record_batch(pa.py_buffer(part), self.schema)
        return pa.ipc.open_stream(pa.py_buffer(part)).read_next_batch()


def _numbers_of(part: np.ndarray) -> np.ndarray:
    return part.view(np.int64)


class _Streamed:
    """A batch as an Arrow stream, which is written only where it is to stand: so it is copied once."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.nbytes = batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch) + _END_OF_STREAM

    def write_into(self, place: memoryview) -> None:
        """Write it."""
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(place))
        with pa.ipc.new_stream(sink, self.batch.schema, options=_OPTIONS) as writer:
            writer.write_batch(self.batch)


_END_OF_STREAM = 8
"""Bytes that end a stream."""

_OPTIONS = pa.ipc.IpcWriteOptions()
"""Arrow's own, but made once: it would look into the environment for each batch."""
