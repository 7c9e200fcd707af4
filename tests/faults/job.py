"""The job that faults are put into: two sources, two joins, windows of time, and two folders of results.

Run as a script with a folder and settings (JSON), as a user would run it: without a main guard, starting again goes on
from the checkpoint. What each setting changes is no part of the results, but for `poison`, which ends the run. The
command line finds the same flow as `flow`.
"""

import ctypes
import json
import os
import sys
import zlib
from pathlib import Path

import dovetail as dt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from dovetail import left, right

ROWS = 1200
POISON = 777


def table(seed):
    rng = np.random.default_rng(seed)
    return pa.table({
        "t": np.sort(rng.integers(0, ROWS // 2, ROWS)) + rng.integers(-3, 1, ROWS),
        "x": rng.integers(0, 400, ROWS),
        "s": pa.array(rng.choice(["a", "bb", "", None], ROWS)),
        "id": np.arange(ROWS),
    })  # fmt: skip


def prepare(place):
    """Write what one of the sources reads."""
    pq.write_table(table(1), Path(place) / "one.parquet", row_group_size=250)


def build(place, *, layout="auto", poison=None, slow=0):
    """Return the flow."""

    def careful(batch):
        if poison == "map" and POISON in batch.column("id").to_pylist():
            raise ValueError(f"{POISON} is poison")
        for _ in range(slow):
            zlib.crc32(bytes(1 << 22))
        return batch

    def both(a, b):
        if poison == "udf" and POISON in a:
            ctypes.string_at(0)
        return (a + b) % 5 != 0

    place = Path(place)
    flow = dt.Flow("faulty")
    one = flow.read(dt.parquet(place / "one.parquet", batch_rows=70), name="one", time="t", delay=3)
    two = flow.read(dt.memory(table(2), batch_rows=60), name="two", time="t", delay=3)
    one = one.map(careful, one.schema, name="careful")
    on = [(left.x - right.x).abs() <= 3, dt.udf(both, ["id"], ["id"])]
    pairs = one.join(two, on=on, window=dt.last(300), layout=layout, name="pairs")
    third = pairs.join(two, on=left.x == right.x, window=dt.last(time=60), suffix="_third", name="third")
    counts = third.key_by("s").window(dt.sliding(time=40, every=20)).agg(n=dt.count(), most=dt.col("x").max())
    pairs.map(careful if slow else lambda batch: batch, pairs.schema, name="slowly").write(
        dt.parquet(place / "out" / "pairs"), name="pairs-out"
    )
    counts.write(dt.parquet(place / "out" / "counts"), name="counts-out")
    return flow


def flow():
    """Return the flow, for the command line."""
    return build(os.environ["FAULTS_PLACE"], **json.loads(os.environ["FAULTS_SETTINGS"]))


def main(place, *, workers=2, every="0s", checkpoint=None, options=None, **more):
    options = dt.Options(batch_rows=65, out_rows=30, **(options or {}))
    flow = build(place, **more)
    result = flow.run(workers=workers, checkpoint=checkpoint or Path(place) / "state", every=every, options=options)
    print(result.outcome, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2]))
