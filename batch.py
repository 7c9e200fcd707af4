"""The unit of everything: an Arrow batch, and where it stands in its stream.

A `Batch` is immutable. Steps hand batches on, and never single tuples, so that nothing on the path of
the data is paid per tuple in Python.

Invariants
----------
- With event time, `times` has one int64 for each row, ascending, in the unit of the stream; without,
  it is None. Event time belongs to the stream, not to a column: it is settled when a stream is read,
  and stays when the column it came from is changed or dropped.
- `watermark` is a promise about the *rest* of the stream: no later row has a time below it. It is an
  int in the stream's unit, `START` before anything is known and `END` after the last row. It never
  falls from one batch to the next.
- A batch without rows is an ordinary batch: it carries a watermark past whatever dropped its rows.
"""

__all__ = ["END", "START", "Batch", "Watermark"]

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

Watermark = int | float
"""An exact int, or one of the two infinities (the only floats that a watermark can be)."""

START: float = -math.inf
END: float = math.inf


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one stream, in order.

    >>> batch = Batch(pa.record_batch({"x": [1, 2]}), np.array([10, 20]), watermark=20)
    >>> batch.num_rows
    2
    >>> batch.check()
    """

    data: pa.RecordBatch
    times: np.ndarray | None
    watermark: Watermark

    @property
    def num_rows(self) -> int:
        """How many rows there are; may be 0."""
        return self.data.num_rows

    def check(self) -> None:
        """Assert the invariants that can be seen in one batch."""
        if self.times is None:
            return
        assert self.times.dtype == np.int64, self.times.dtype
        assert len(self.times) == self.num_rows, (len(self.times), self.num_rows)
        assert bool(np.all(self.times[1:] >= self.times[:-1])), "times fall within a batch"
