"""Two data centres, through Spark: when does one draw less power for its racks, and more for cooling, than the other?

Their meters write a file of readings now and then. Spark picks the files up; Dovetail compares each reading with the
last thousand of the other centre, on two inequalities at once and no common key, which Spark refuses to do:

    l.rack < r.rack AND l.cooling > r.cooling

Run it:    python examples/spark_power.py
"""

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import dovetail as dt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

FILES, READINGS = 48, 2_000  # half an hour of readings in a file, which comes twice a second
START = np.datetime64("2026-01-05T00:00:00", "us")
PLACE = Path(tempfile.mkdtemp(prefix="dovetail-demo-"))
COLUMNS = "ts timestamp, rack double, cooling double"


def write_readings(centre: str, seed: int, racks: float, cooling: float) -> None:
    """Write a centre's readings (kilowatts), file by file; each appears whole."""
    rng = np.random.default_rng(seed)
    for number in range(FILES):
        seconds = number * 1800 + np.sort(rng.random(READINGS)) * 1800
        day = np.sin(2 * np.pi * (seconds / 86400 - 0.25))
        rack = racks + 60 * day + rng.normal(0, 12, READINGS)
        stuck = np.repeat(rng.gamma(0.5, 9, READINGS // 50), 50)  # cooling units that fail to modulate
        table = pa.table({
            "ts": pa.array(START + (seconds * 1e6).astype("m8[us]"), pa.timestamp("us", "UTC")),
            "rack": rack.round(1),
            "cooling": (cooling + 0.35 * (rack - racks) + stuck + rng.normal(0, 5, READINGS)).round(1),
        })  # fmt: skip
        pq.write_table(table, PLACE / centre / ".arriving")
        os.replace(PLACE / centre / ".arriving", PLACE / centre / f"{number:05d}.parquet")
        time.sleep(0.5)


def files_of(centre: str):
    (PLACE / centre).mkdir()
    return dt.spark(lambda session: session.readStream.schema(COLUMNS).parquet(f"{PLACE}/{centre}"))


print("Starting Spark …\n", flush=True)
flow = dt.Flow("power")
dc1 = flow.read(files_of("dc1"), name="dc1", time="ts")
dc2 = flow.read(files_of("dc2"), name="dc2", time="ts")
hotter = dc1.join(
    dc2,
    on="l.rack < r.rack AND l.cooling > r.cooling",
    window=dt.last(1_000, slide=100),
    suffix="_dc2",
    name="hotter",
)
hotter.write(dt.parquet(PLACE / "hotter"))


def show(status) -> None:
    if status.rows_in == 0:
        return
    line = f"  {status.rows_in:,} readings in, {status.rows_out:,} pairs out, up to {status.watermark}"
    print(line, end="\r" if sys.stdout.isatty() else "\n", flush=True)


def main() -> None:
    print(f"{flow.explain(workers=2)}\n")
    for meter in (("dc1", 1, 480, 190), ("dc2", 2, 540, 230)):
        threading.Thread(target=write_readings, args=meter, daemon=True).start()
    job = flow.start(workers=2, checkpoint=PLACE / "state", every="1s", progress=show)
    while job.status().rows_in < 2 * FILES * READINGS:
        time.sleep(0.2)
    print(f"\n\nAll readings are in: it is stopped, as files could come for ever.\n\n{job.stop()}\n")

    found = pq.read_table(PLACE / "hotter")
    print(f"{found.num_rows:,} pairs of readings in which dc1 works less and is cooled harder, as Spark reads them:\n")
    SparkSession.active().read.parquet(f"{PLACE}/hotter").orderBy("ts", "ts_dc2").show(5, truncate=False)
    hours = np.maximum(found["ts"].to_numpy(), found["ts_dc2"].to_numpy()).astype("M8[h]")
    counts = np.bincount((hours - START.astype("M8[h]")).astype(int), minlength=24)
    print("\nby the hour:\n")
    for hour, count in enumerate(counts):
        print(f"  {hour:02d}:00  {count:>8,}  {'█' * round(40 * count / counts.max())}".rstrip())
    print(f"\nThey are in {PLACE}/hotter, for Spark, DuckDB, Polars and whatever else reads Parquet.")


if __name__ == "__main__":
    main()
