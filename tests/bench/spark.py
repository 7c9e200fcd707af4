"""What it costs to bring rows through Spark, and to leave a join to it: `make bench-spark`.

Rows (a time, a number, two doubles) come from Parquet files through Spark's file source. Rates count rows, from the
start of the query to the last row in the sink; the session is warm. Runs that are compared take turns; figures are
medians of `DOVETAIL_ROUNDS` (5). `python -m tests.bench.spark ways join` runs some of it.
"""

import contextlib
import importlib.util
import os
import statistics
import tempfile
import time
from pathlib import Path

import dovetail as dt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from dovetail import left, right
from dovetail.ingest.spark import session
from dovetail.ingest.spark.handover import way_of

from .engine import ROUNDS, main, row

ROWS = 10_000_000
FILES = 10
SCHEMA = "t timestamp, id long, x double, y double"
NOW = {"availableNow": True}
SPAN = 1e6


def table_of(start, rows, seed, step=10):
    """Rows, one each `step` microseconds."""
    rng = np.random.default_rng([seed, start])
    t = np.arange(start, start + rows) * step
    return pa.table({
        "t": pa.array(t.astype("M8[us]"), pa.timestamp("us", "UTC")), "id": np.arange(start, start + rows),
        "x": rng.random(rows) * SPAN, "y": rng.random(rows),
    })  # fmt: skip


def files(folder, rows, seed, count=FILES, step=10):
    """Write rows into so many files, which Spark takes in this order."""
    folder.mkdir()
    each = rows // count
    for i in range(count):
        path = folder / f"{i:04d}.parquet"
        pq.write_table(table_of(i * each, each, seed, step), path, row_group_size=250_000)
        os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))
    return folder


def reading(folder, per):
    return lambda s: s.readStream.schema(SCHEMA).option("maxFilesPerTrigger", per).parquet(str(folder))


@contextlib.contextmanager
def place():
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as name:
        yield Path(name)


def spark():
    return session.session_of(session.Wanted())


# Ways from Spark to another process ---------------------------------------------------------------------------------


def queried(frame, write):
    """Seconds that a query takes which does this with each micro-batch; without: Spark's own sink for nothing."""
    with place() as folder:
        writer = frame.writeStream.option("checkpointLocation", str(folder / "query")).trigger(**NOW)
        start = time.perf_counter()
        (writer.foreachBatch(write) if write else writer.format("noop")).start().awaitTermination()
        return time.perf_counter() - start


def to_arrow(frame, number):
    assert frame.toArrow().num_rows


def from_tasks(frame, number):
    assert way_of(frame)(frame).num_rows


def through_parquet(folder):
    """Spark writes files, which are read again."""

    def write(frame, number):
        target = str(folder / str(number))
        frame.write.option("compression", "none").option("parquet.enable.dictionary", "false").parquet(target)
        assert pq.read_table(target).num_rows

    return write


def from_executors(folder):
    """Python workers of Spark's write Arrow files, which are mapped here."""

    def write(frame, number):
        def save(batches):
            import uuid

            import pyarrow as arrow

            path, writer = f"{folder}/{number}-{uuid.uuid4().hex}.arrow", None
            for batch in batches:
                writer = writer or arrow.ipc.new_file(path, batch.schema)
                writer.write_batch(batch)
            if writer is not None:
                writer.close()
                yield arrow.RecordBatch.from_pydict({"path": [path]})

        paths = [found.path for found in frame.mapInArrow(save, "path string").collect()]
        assert sum(pa.ipc.open_file(pa.memory_map(path)).read_all().num_rows for path in paths)

    return write


def flow_of(folder, per, checkpoint=None):
    """Seconds that a flow takes which hands all rows from Spark to a sink that drops them."""
    flow = dt.Flow("bench")
    flow.read(dt.spark(reading(folder, per), trigger=NOW), name="s", time="t").write(dt.null())
    start = time.perf_counter()
    result = flow.run(checkpoint=checkpoint)
    taken = time.perf_counter() - start
    assert result.steps["s"].rows_in == ROWS and result.steps["s"].late == 0
    return taken


def ways():
    """Rows a second by each way, with micro-batches of two files and of ten."""
    print(f"{ROWS:,} rows of 32 bytes through Spark; load {os.getloadavg()[0]:.1f}")
    with place() as folder:
        source = files(folder / "in", ROWS, 1)
        for per in (2, 10):
            frame, found = reading(source, per)(spark()), {}
            for turn in range(ROUNDS + 1):  # the first one warms up
                cases = {
                    "Spark alone, to its noop sink": lambda f=frame: queried(f, None),
                    "dt.spark to a null sink": lambda p=per: flow_of(source, p),
                    "the same, with a checkpoint each second": lambda p=per, t=turn: flow_of(
                        source, p, folder / f"state-{p}-{t}"
                    ),
                    "tasks write into memory, and that alone": lambda f=frame: queried(f, from_tasks),
                    "rejected: toArrow, and that alone": lambda f=frame: queried(f, to_arrow),
                    "rejected: Arrow files by mapInArrow": lambda f=frame: queried(f, from_executors(folder)),
                    "rejected: Parquet, written and read": lambda f=frame, p=per, t=turn: queried(
                        f, through_parquet(folder / f"out-{p}-{t}")
                    ),
                }
                if importlib.util.find_spec("pandas") is None:  # which mapInArrow asks for, and does not use
                    del cases["rejected: Arrow files by mapInArrow"]
                for name, case in cases.items():
                    taken = case()
                    if turn:
                        found.setdefault(name, []).append(taken)
            print(f"micro-batches of {per * ROWS // FILES:,} rows")
            row("", "M rows/s", "of Spark alone")
            alone = found["Spark alone, to its noop sink"]
            for name, taken in found.items():
                ratio = statistics.median(a / b for a, b in zip(alone, taken, strict=True))
                row(name, f"{ROWS / statistics.median(taken) / 1e6:.2f}", f"{ratio:.2f}")


# Joins ---------------------------------------------------------------------------------------------------------------


def join():
    """Rows a second of a band join of two streams, from Spark's file source to a sink; both inputs count."""
    rows, w = ROWS // 2, 1 << 18
    print(f"a band join, w = 2^18, two matches a row, of 2 × {rows:,} rows; load {os.getloadavg()[0]:.1f}")
    with place() as folder:
        sides = [files(folder / name, rows, seed) for seed, name in enumerate("ab")]
        row("", "M rows/s", "aim", "results")
        for name, workers, read in (
            ("from Spark, in one process", 1, lambda side: dt.spark(reading(side, 2), trigger=NOW)),
            ("from Spark, two workers", 2, lambda side: dt.spark(reading(side, 2), trigger=NOW)),
            ("from the same files, in one process", 1, lambda side: dt.parquet(str(side))),
        ):
            found, out = [], 0
            for turn in range(ROUNDS + 1):
                flow = dt.Flow("bench")
                one, two = (flow.read(read(side), name=side.name, time="t") for side in sides)
                on = (left.x - right.x).abs() <= SPAN / w
                one.join(two, on=on, window=dt.last(w), name="j").select("id", "id_right").write(dt.null())
                start = time.perf_counter()
                out = flow.run(workers=workers).steps["j"].rows_out
                found += [time.perf_counter() - start] if turn else []
            row(name, f"{2 * rows / statistics.median(found) / 1e6:.2f}", "1" if "Spark" in name else "", f"{out:,}")


def bucketed(one, two, eps, seconds):
    """The same join as Spark can do it: by an equality of buckets, of which each right row is in three."""
    from pyspark.sql import functions as F

    one = one.withWatermark("t", "1 second").withColumn("bucket", F.floor(F.col("x") / eps))
    two = two.withWatermark("t", "1 second").select(*(F.col(name).alias(f"{name}2") for name in ("t", "id", "x", "y")))
    near = F.array(*(F.floor(F.col("x2") / eps) + F.lit(step) for step in (-1, 0, 1)))
    two = two.withColumn("bucket2", F.explode(near))
    reach = F.expr(f"INTERVAL {seconds} SECONDS")
    in_time = F.col("t2").between(F.col("t") - reach, F.col("t") + reach)
    return one.join(two, (F.col("bucket") == F.col("bucket2")) & in_time & (F.abs(F.col("x") - F.col("x2")) <= eps))


def equality():
    """The same band join over a window of ten seconds, by Dovetail and by Spark with buckets."""
    rows, seconds, eps = 300_000, 10, 25.0
    print(f"a band join over ten seconds of 2 × {rows:,} rows, both from Spark; load {os.getloadavg()[0]:.1f}")
    with place() as folder:
        sides = [files(folder / name, rows, seed, count=6, step=500) for seed, name in enumerate("ab")]
        found = {"Dovetail": [], "Spark, by buckets": []}
        for turn in range(3):
            flow, sink = dt.Flow("bench"), dt.collect()
            one, two = (flow.read(dt.spark(reading(side, 1), trigger=NOW), name=side.name, time="t") for side in sides)
            joined = one.join(two, on=(left.x - right.x).abs() <= eps, window=dt.last(f"{seconds}s"))
            joined.select("id", "id_right").write(sink)
            start = time.perf_counter()
            flow.run()
            ours, pairs = time.perf_counter() - start, sink.table().num_rows
            counted = []
            frames = (reading(side, 1)(spark()) for side in sides)
            joined = bucketed(*frames, eps, seconds)
            theirs = queried(joined, lambda frame, number, counted=counted: counted.append(frame.count()))
            if turn:
                found["Dovetail"].append(ours)
                found["Spark, by buckets"].append(theirs)
        row("", "rows/s", "lines of code", "results", "compared by hand")
        exact = by_hand(rows, eps, seconds)
        for name, lines, results in (("Dovetail", 1, pairs), ("Spark, by buckets", 7, sum(counted))):
            row(name, f"{2 * rows / statistics.median(found[name]):,.0f}", lines, f"{results:,}", f"{exact:,}")


def by_hand(rows, eps, seconds):
    """How many pairs there are, found without either of them."""
    each = rows // 6
    one, two = (pa.concat_tables([table_of(i * each, each, seed, 500) for i in range(6)]) for seed in (0, 1))
    two = two.sort_by("x")
    x, near = (np.asarray(table["x"]) for table in (one, two))
    t, then = (table["t"].cast(pa.int64()).to_numpy() for table in (one, two))
    begin, end = np.searchsorted(near, x - eps - 1e-3), np.searchsorted(near, x + eps + 1e-3)
    count = 0
    for i in range(rows):
        some = slice(begin[i], end[i])
        count += int(((np.abs(x[i] - near[some]) <= eps) & (np.abs(t[i] - then[some]) <= seconds * 10**6)).sum())
    return count


# Latency -------------------------------------------------------------------------------------------------------------


def latency():
    """From the arrival of two files, one of each side, to their results at the sink; beside Spark's own micro-batch.

    Of all pairs of all files: the few of a file's last row wait for what the next file may have of the same moment.
    """
    count = 40
    print(f"from a file's arrival to its results at the sink; load {os.getloadavg()[0]:.1f}")

    def feeding(folders, arrived):
        for i in range(count):
            for seed, folder in enumerate(folders):
                pq.write_table(table_of(i * 1000, 1000, seed), folder / ".coming")
            for folder in folders:
                os.replace(folder / ".coming", folder / f"{i:04d}.parquet")
            arrived.append(time.perf_counter())
            time.sleep(1.0)

    with place() as folder:
        alone = folder / "alone"
        alone.mkdir()
        seen, arrived = [], []
        frame = spark().readStream.schema(SCHEMA).parquet(str(alone))
        query = (
            frame.writeStream.option("checkpointLocation", str(folder / "query"))
            .foreachBatch(lambda frame, number: seen.append(time.perf_counter()))
            .start()
        )
        time.sleep(2)
        feeding([alone], arrived)
        time.sleep(1)
        query.stop()
        own = [done - came for came, done in zip(arrived, seen, strict=True)]

        sides = [folder / name for name in "ab"]
        for side in sides:
            side.mkdir()
        flow, came, arrived = dt.Flow("bench"), [], []

        def noted(batch):
            now = time.perf_counter()
            came.append((now, np.maximum(np.asarray(batch["id"]), np.asarray(batch["id_right"])) // 1000))
            return batch

        read = (dt.spark(lambda s, at=side: s.readStream.schema(SCHEMA).parquet(str(at))) for side in sides)
        one, two = (flow.read(source, name=side.name, time="t") for source, side in zip(read, sides, strict=True))
        joined = one.join(two, on=(left.x - right.x).abs() <= SPAN / 500, window=dt.last(2000)).select("id", "id_right")
        joined.map(noted, joined.schema).write(dt.null())
        job = flow.start(options=dt.Options(poll_seconds=0.0005))
        time.sleep(3)
        feeding(sides, arrived)
        time.sleep(1)
        job.stop()
        ours = np.concatenate([now - np.take(arrived, numbers[numbers >= 5]) for now, numbers in came])
    row("", "p50", "p90")
    for name, found in (("Spark alone, a micro-batch that does nothing", own[5:]), ("results of a join", ours)):
        row(name, *(f"{np.percentile(found, p) * 1e3:.0f} ms" for p in (50, 90)))
    row("over Spark alone (aim: 150 ms)", f"{(np.median(ours) - np.median(own[5:])) * 1e3:.0f} ms")


TABLES = {"ways": ways, "join": join, "latency": latency, "equality": equality}


if __name__ == "__main__":
    main(TABLES)
