"""Going on after a stop or a crash: the same results once, whatever was lost; and folders that cannot be gone on with.

Here an attempt ends where a function raises, and the next one begins as another process would: with a flow written
anew, from what is on disk.
"""

import contextlib
import errno
import json
import os
import random
import re
import resource
import shutil
import threading
import zlib
from functools import partial
from types import SimpleNamespace

import dovetail as dt
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from dovetail import left, right
from dovetail.disk import Disk
from dovetail.engine import trail as trail_of
from dovetail.engine.checkpoints import JOINED_ROWS, PIECE_BYTES, Checkpoints, FlowMark, _grouped, _packed, _unpacked
from dovetail.engine.coordinator import CALM_SECONDS, LONGEST_PAUSE, MOST_ATTEMPTS, MOST_OWN, Coordinator
from dovetail.engine.keeper import Saver
from dovetail.engine.run import Runner
from dovetail.engine.snapshots import decode, encode
from dovetail.engine.tasks import EPOCH_BYTES
from dovetail.engine.trail import ALL, Trail
from dovetail.operators.contracts import Rows

ROWS = 1500


class Crash(BaseException):
    """Nobody catches it, as nobody catches a kill."""


@dt.operator
class Running:
    """How many rows of each key there were, and a timer for each tenth row."""

    timer_delay = 5

    def __init__(self):
        self.seen = {}

    def output(self, schema):
        return pa.schema([("s", pa.string()), ("n", pa.int64())])

    def on_batch(self, batch, context):
        names, counts = batch.column("s").to_pylist(), []
        for name in names:
            self.seen[name] = self.seen.get(name, 0) + 1
            counts.append(self.seen[name])
        out = pa.record_batch([pa.array(names, pa.string()), counts], names=["s", "n"])
        tenth = np.flatnonzero(np.array(counts) % 10 == 0)
        context.set_timers(context.times[tenth] + 5, out.take(pa.array(tenth)))
        return out

    def on_timer(self, timers, context):
        return pa.record_batch([timers.column("s"), pa.array([-n for n in timers.column("n").to_pylist()])], ["s", "n"])

    def snapshot(self):
        return pa.table({"s": pa.array(self.seen, pa.string()), "n": pa.array(self.seen.values(), pa.int64())})

    def restore(self, table):
        self.seen = dict(zip(table["s"].to_pylist(), table["n"].to_pylist()))


def table(seed, rows=ROWS):
    rng = np.random.default_rng(seed)
    t = np.sort(rng.integers(0, rows // 2, rows)) + rng.integers(-4, 1, rows)
    return pa.table({
        "t": t, "x": rng.integers(0, 300, rows), "y": rng.random(rows), "id": np.arange(rows),
        "s": pa.array(rng.choice(["a", "bb", "", None], rows)).dictionary_encode(),
    })  # fmt: skip


TABLES = [table(seed) for seed in (1, 2, 3)]


@pytest.fixture
def place(tmp_path):
    """Three inputs, of three kinds, and room for outputs."""
    pq.write_table(TABLES[1], tmp_path / "two.parquet", row_group_size=400)
    (tmp_path / "three").mkdir()
    for n in range(3):
        part = TABLES[2].slice(n * 500, 500).drop(["s"])
        pacsv.write_csv(part, tmp_path / "three" / f"{n}.csv")
    return tmp_path


def written(place, window, boom=lambda batch: batch):
    """A flow with one of everything; return it and its sinks that collect."""
    flow = dt.Flow("f")
    one = flow.read(dt.memory(TABLES[0], batch_rows=90), name="one", time="t", delay=3)
    two = flow.read(dt.parquet(place / "two.parquet", batch_rows=170), name="two", time="t", delay=4)
    three = flow.read(dt.csv(place / "three", batch_rows=110), name="three", time="t", delay=9)
    pairs = one.join(two, on=(left.x - right.x).abs() <= 2, window=window, name="pairs").map(boom)
    third = pairs.join(three, on=left.x == right.x, window=dt.last(50), suffix="_third", name="third")
    itself = one.join(one, on=[left.x < right.x, left.y > right.y], window=dt.last(5), name="itself")
    near = (left.x - right.x).abs() <= 2
    timed = one.join(one, on=near, window=dt.last(time=30), name="timed")
    mixed = one.join(one, on=near, window=(dt.last(40), dt.last(time=60)), name="mixed")
    counted = two.key_by("s").window(dt.sliding(time=40, every=10)).agg(n=dt.count(), most=dt.col("y").max())
    quiet = (
        three.key_by("x")
        .window(dt.session(time=30))
        .agg(total=dt.col("x").sum(), all=dt.group_udf(len_of, ["x"], pa.int64()))
    )
    ends = [
        pairs,
        third,
        itself,
        timed,
        mixed,
        counted,
        quiet,
        one.process(Running()),
        one.late,
        one.select("t", "id").union(two.select("t", "id")),
    ]
    sinks = [end.write(dt.collect()) for end in ends]
    pairs.write(dt.parquet(place / "out"))
    return flow, sinks


def len_of(batch):
    return batch.num_rows


def expected(place, window):
    flow, sinks = written(place, window)
    flow.run()
    shutil.rmtree(place / "out")
    return [sink.table() for sink in sinks]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_was_lost_results_come_once(place, seed, capsys):
    rng = random.Random(seed)
    window = [dt.last(400), dt.last(time=60), dt.last(400, slide=100), (dt.last(50), dt.last(None))][seed % 4]
    answers = expected(place, window)
    crashes, attempts = rng.randint(3, 7), 0
    there = False  # a checkpoint, at one of the crashes: a slow disk may have made none before all of them
    while True:
        left_over = [rng.randint(1, 25) if attempts < crashes else 10**9]

        def boom(batch, left_over=left_over):
            left_over[0] -= 1
            if left_over[0] <= 0:
                raise Crash
            return batch

        flow, sinks = written(place, window, boom)
        attempts += 1
        options = dt.Options(batch_rows=rng.choice([7, 60, 65_536]), out_rows=rng.choice([40, 65_536]))
        every = rng.choice(["0s", "5ms", "20ms"])
        try:
            flow.run(checkpoint=place / "state", every=every, workers=rng.choice([1, 1, 2]), options=options)
            break
        except Crash:
            there |= any((place / "state").glob("checkpoint-*.json"))
    for sink, answer in zip(sinks, answers, strict=True):
        assert sink.table().equals(answer)
    assert pq.read_table(place / "out").equals(answers[0])
    assert ("goes on, by checkpoint" in capsys.readouterr().err) == there

    again, sinks = written(place, window)  # it is finished: nothing is added
    result = again.run(checkpoint=place / "state")
    assert result.outcome == "finished"
    assert [sink.table() for sink in sinks] == answers
    assert pq.read_table(place / "out").equals(answers[0])
    assert "is finished, by checkpoint" in capsys.readouterr().err


# Attempts


def counting(place, fails, **options):
    """A flow whose function fails some times; return what it was given in all, and the collected rows."""
    calls = []

    def sometimes(batch):
        calls.append(batch.num_rows)
        if len(calls) in fails:
            raise ValueError("not now")
        return batch

    flow = dt.Flow("f")
    rows = flow.read(dt.memory({"x": range(100)}, batch_rows=10), name="rows")
    out = rows.map(sometimes, rows.schema, name="sometimes").write(dt.collect())
    result = flow.run(checkpoint=place / "state", every="0s", **options)
    return calls, out.table()["x"].to_pylist(), result


@pytest.fixture
def at_once(monkeypatch):
    """No pauses between attempts."""
    monkeypatch.setattr("dovetail.engine.coordinator.FIRST_PAUSE", 0.0)


def test_a_failure_that_passes_is_got_over(tmp_path, at_once, capsys):
    _, rows, result = counting(tmp_path, fails={3, 4, 9})
    assert rows == list(range(100))
    assert result.outcome == "finished"
    assert "going on from the last checkpoint" in capsys.readouterr().err


def test_a_record_that_always_fails_is_given_up_and_named(tmp_path, at_once):
    def poison(batch):
        if 57 in batch.column("x").to_pylist():
            raise ValueError("57")
        return batch

    flow = dt.Flow("f")
    rows = flow.read(dt.memory({"x": range(100)}, batch_rows=10), name="rows")
    out = rows.map(poison, rows.schema, name="poison").write(dt.collect())
    with pytest.raises(dt.UserFunctionError) as caught:
        flow.run(checkpoint=tmp_path / "state", every="0s")
    said = str(caught.value) + "".join(caught.value.__notes__)
    assert "map 'poison'" in said
    assert f"This was the {MOST_ATTEMPTS}th attempt that came no further, from checkpoint" in said
    assert re.search("rows [0-9]+ to 60 of read 'rows'", said)
    kept = out.table(partial=True)["x"].to_pylist()
    assert kept == list(range(len(kept))) and len(kept) <= 50


def test_the_coordinator_forgives_whoever_gets_past_the_place():
    run = Coordinator(every=1.0)
    assert run.begin(0.0, {"one": 0}) == 0
    run.durable(0)
    for n in range(1, 10):
        pause = run.failed(0.0, {"one": 10 * n}, killed=True)
        assert pause == 0.1, "each attempt got past where the one before it had failed"
        assert run.due(0.0)
        assert run.begin(0.0, {"one": 10 * n}) == n
        run.durable(n)
    assert [run.failed(0.0) for _ in range(MOST_ATTEMPTS)][-1] is None
    assert run.generation == 9 + MOST_ATTEMPTS


def test_the_coordinator_does_not_forgive_who_only_goes_on_elsewhere():
    run = Coordinator(every=1.0)
    for n in range(MOST_ATTEMPTS):
        pause = run.failed(0.0, {"one": 100 * n, "two": 61})
        run.begin(0.0, {"one": 100 * n + 50, "two": 60})
        run.durable(n)
    assert pause is None, "one goes on for ever, and two does not"
    run.begin(0.0, {"one": 0, "two": 61})
    run.durable(MOST_ATTEMPTS)
    assert run.failures == MOST_ATTEMPTS, "one had come further when it failed"


@pytest.mark.parametrize(("every", "calm"), [(1.0, CALM_SECONDS), (CALM_SECONDS, 2 * CALM_SECONDS)])
def test_the_coordinator_forgives_whoever_has_gone_on_for_long(every, calm):
    """A quiet source's line may break each night, and never bring the row that would prove that all is well."""
    run, now = Coordinator(every), 0.0
    for _ in range(3 * MOST_ATTEMPTS):
        now += calm
        assert run.failed(now, {"quiet": 1}) == 0.1
    for n in range(1, MOST_ATTEMPTS):
        assert run.failures == n
        now += 0.99 * calm
        pause = run.failed(now, {"quiet": 1})
    assert pause is None


def test_the_coordinator_gives_up_what_comes_further_and_fails_by_itself_for_ever():
    """What fails may be the end of an input, or that it is silent: rows prove nothing then."""
    run, pauses = Coordinator(every=1.0), []
    for n in range(0, 2 * MOST_OWN, 2):
        run.reached(n, {"one": 100 * n})
        assert run.failed(0.0, {"one": 100 * n + 50}, killed=True) == 0.1, "beside it somebody kills it"
        run.reached(n + 1, {"one": 100 * n + 50})
        pauses.append(run.failed(0.0, {"one": 100 * n + 99}))
        assert run.failures == 1
    assert pauses[:3] == [0.1, 0.2, 0.4] and pauses[-2:] == [LONGEST_PAUSE, None]
    assert run.why is not None and "the 20th attempt that failed, and none went on for long; the last, from" in run.why


def test_the_coordinator_does_not_give_up_what_is_killed_and_comes_further():
    run = Coordinator(every=1.0, number=0)
    for n in range(5 * MOST_OWN):
        run.reached(n, {"one": 100 * n})
        assert run.failed(0.0, {"one": 100 * n + 50}, killed=True) == 0.1


def test_the_coordinator_takes_a_checkpoint_that_somebody_else_has_made_for_what_it_has():
    run = Coordinator(every=1.0, number=4)
    for n in range(1, MOST_ATTEMPTS):
        run.reached(4, {"one": 500, "two": 60})
        run.failed(0.0, {"one": 500, "two": 60})
        assert run.failures == n, "no new one"
    run.reached(5, {"one": 900, "two": 59})
    assert run.failures == MOST_ATTEMPTS - 1, "one without the rows of two"
    run.reached(6, {"one": 900, "two": 60})
    assert run.failures == 0 and run.to_pass == {}


def test_what_a_dead_run_has_left_of_its_way_can_be_read(tmp_path):
    path, one, two = tmp_path / "trail", "read 'größer'", "read 'b'"
    assert Trail.left(path).to_pass == {}, "it has died before it began"
    assert Trail.left(path).kept(None) == Trail.left(path).kept(0) == {}
    for _ in range(2):  # the second one begins anew in the same place
        trail = Trail(path)
        trail.begin(4, {one: 5, two: 2**40})
        left = Trail.left(path)
        assert left.to_pass == left.kept(4) == {one: 5, two: 2**40}
        assert left.since(4) == "no rows" and left.kept(3) == left.kept(None) == {}
        trail.read(one, 7)
        trail.checkpoint(5, {one: 6, two: 2**41})
        trail.read(two, 2**41 + 1)
        assert left.since(4) == "no rows", "it was read before that"
        left = Trail.left(path)
        assert left.kept(4) == {one: 5, two: 2**40}, "nobody knows whether 5 was made"
        assert left.since(5) == "rows 6 to 7 of read 'größer', rows 2,199,023,255,552 to 2,199,023,255,553 of read 'b'"
        trail.checkpoint(6, {one: 7, two: 2**41})
        assert Trail.left(path).kept(4) == {} and Trail.left(path).kept(5) == {one: 6, two: 2**41}
        trail.begin(5, {one: 6, two: 2**41})  # another attempt
        trail.checkpoint(7, {one: 7, two: ALL})
        left = Trail.left(path)
        assert left.kept(5)[one] == 6 and left.kept(7) == {one: 7, two: ALL}


def test_a_trail_that_has_no_room_says_so(tmp_path, monkeypatch):
    def full(path, nbytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trail_of, "reserve", full)
    with pytest.raises(dt.DovetailError, match="trail' cannot be made: No space left on device; make room there"):
        Trail(tmp_path / "trail").begin(None, {"read 'a'": 0})


@pytest.mark.parametrize("fails", ["source", "step"])
def test_an_input_that_goes_on_does_not_make_up_for_one_that_fails(tmp_path, at_once, fails):
    failed = []

    def newest():
        names = [path.name for path in (tmp_path / "state").glob("checkpoint-*.json")]
        return int(max(names)[len("checkpoint-") : -len(".json")])

    def boom():
        failed.append(fails)
        raise OSError("the line is dead")

    @dt.source
    class Endless:
        schema = pa.schema({"x": pa.int64()})

        def __init__(self, slow, dies_at=None):
            self.at, self.slow, self.dies_at, self.before = 0, slow, dies_at, 0

        def position(self):
            return self.at

        def seek(self, position):
            self.at, self.before = position, newest()

        def read(self):
            if len(failed) > MOST_ATTEMPTS:
                return dt.END_OF_SOURCE  # or it would be tried for ever
            if self.slow and self.at == 7 and newest() < self.before + 2:
                return None  # until there has been a checkpoint, as the other goes on
            if self.at == self.dies_at:
                boom()
            self.at += 1
            return pa.record_batch({"x": [self.at]})

    def step(batch):
        if fails == "step" and batch.column("x").to_pylist() == [8]:
            boom()
        return batch

    flow = dt.Flow("f")
    flow.read(Endless(slow=False), name="well").write(dt.null())
    ill = flow.read(Endless(slow=True, dies_at=7 if fails == "source" else None), name="ill")
    ill.map(step, ill.schema).write(dt.null())
    with pytest.raises(dt.DovetailError, match="the line is dead"):
        flow.run(checkpoint=tmp_path / "state", every="0s")
    assert len(failed) == MOST_ATTEMPTS


def test_an_attempt_that_reads_nothing_makes_no_checkpoint(tmp_path, at_once):
    """There is nothing new in it, and it would look like a step forward."""
    reads = []

    @dt.source
    class Silent:
        schema = pa.schema({"x": pa.int64()})

        def position(self):
            return 0

        def seek(self, position):
            pass

        def read(self):
            reads.append(1)
            if len(reads) > 20:
                raise OSError("the line is dead")

    flow = dt.Flow("f")
    flow.read(Silent(), name="rows").write(dt.null())
    with pytest.raises(dt.UserFunctionError, match="the line is dead"):
        flow.run(checkpoint=tmp_path / "state", every="0s")
    assert [path.name for path in state_files(tmp_path, "checkpoint")] == ["checkpoint-000000.json"]


# Folders that cannot be gone on with


def simple(tmp_path, data=range(100), name="f", keep=None, sink=None):
    flow = dt.Flow(name)
    flow.read(dt.memory({"x": data}, batch_rows=10), name="rows").filter(
        dt.col("x") >= 0 if keep is None else keep, name="kept"
    ).write(sink or dt.null(), name="out")
    return partial(flow.run, checkpoint=tmp_path / "state", every="0s")


def state_files(tmp_path, kind):
    return sorted((tmp_path / "state").glob(f"{kind}-*"))


def rewrite(path, change):
    body, _ = path.read_text().rstrip("\n").rsplit("\n", 1)
    known = json.loads(body)
    change(known)
    text = json.dumps(known)
    path.write_text(f"{text}\n{zlib.crc32(text.encode()):08x}\n")


def damage(path, at=None):
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else data.index(at)] ^= 1
    path.write_bytes(data)


def test_a_flow_whose_functions_stand_in_other_lines_is_the_same(tmp_path, at_once):
    code = """
def told(batch): pass
def largest(rows): return max(rows["x"].to_pylist())
flow = dt.Flow("f")
rows = flow.read(dt.memory({"t": range(100), "x": range(100)}, batch_rows=10), name="rows", time="t")
rows.map(stops).write(dt.call(told))
windows = rows.window(dt.tumbling(time=30)).agg(x=dt.group_udf(largest, columns=["x"], type=pa.int64()))
windows.write(dt.call(lambda batch: None))
"""
    stopped = []

    def stops(batch):
        if 50 in batch.column("x").to_pylist() and not stopped:
            stopped.append(True)
            raise Crash
        return batch

    for above, outcome in (("", None), ("\n\n", "finished")):
        around = {"dt": dt, "pa": pa, "stops": stops}
        exec(compile(above + code, "job.py", "exec"), around)
        run = partial(around["flow"].run, checkpoint=tmp_path / "state", every="0s")
        if outcome is None:
            with pytest.raises(Crash):
                run()
        else:
            result = run()
            assert result.outcome == outcome and result.rows_before > 0, "it has gone on"


@pytest.mark.parametrize(
    ("spoil", "run", "text"),
    [
        (None, {"name": "g"}, "is of flow 'f', and this is flow 'g'; give each a folder of its own"),
        (None, {"keep": dt.col("x") > 5}, r"has changed since checkpoint \d+: step 'kept' was: filter, x >= 0"),
        (lambda p: rewrite(state_files(p, "checkpoint")[-1], lambda k: k["steps"].update(dict.fromkeys("abcde"))), {},
         "step 'a' is gone .*; step 'b' .*; step 'c' is gone [^;]*; and 2 more. Run the flow"),
        (None, {"data": range(101)}, "memory: 101 rows, and the checkpoint that is gone on from was made over 100 o"),
        (None, {"data": [*range(99), 7]}, "memory: 100 rows, and the checkpoint that is gone on from was made"),
        (lambda p: rewrite(state_files(p, "checkpoint")[-1], lambda known: known.update(format=1)), {},
         "has format 1, and this version of Dovetail reads 2; use the version that wrote it"),
        (lambda p: damage(state_files(p, "checkpoint")[-1]), {}, "is damaged .*to go on from the one before, or"),
        (lambda p: damage(state_files(p, "checkpoint")[-1], at=b"2,"), {}, "is damaged .*to go on"),  # the format's
        (lambda p: damage(state_files(p, "state")[-1]), {}, "has changed: it is damaged; delete 'checkpoint-0"),
        (lambda p: state_files(p, "state")[-1].write_bytes(b"x"), {}, "is 1 bytes long instead of [0-9,]+: it is"),
        (lambda p: state_files(p, "state")[-1].unlink(), {}, "needs 'state-.*', which is gone; delete 'checkpoint-0"),
        (lambda p: [path.unlink() for path in state_files(p, "checkpoint")], {}, "and no checkpoint-.*.json: the"),
        (lambda p: (p / "state" / "notes.txt").write_text("x"), {}, "holds 'notes.txt', which is no checkpoint"),
        (None, {"fresh": True}, "and fresh=True asks for a new beginning; delete the folder"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_gone_on_with_says_why(tmp_path, at_once, spoil, run, text):
    def stops(batch):
        if batch.num_rows and batch.column("x")[0].as_py() == 70:
            raise Crash
        return batch

    flow = dt.Flow("f")
    rows = flow.read(dt.memory({"x": range(100)}, batch_rows=10), name="rows").filter(dt.col("x") >= 0, name="kept")
    rows.write(dt.null(), name="out")
    rows.map(stops).write(dt.null(), name="stops")
    # The same flow but for the step that stops it, so that its checkpoint is one of `simple`.
    with pytest.raises(Crash):
        flow.run(checkpoint=tmp_path / "state", every="0s")
    for path in state_files(tmp_path, "checkpoint"):
        rewrite(
            path,
            lambda known: [known["steps"].pop(name) for name in list(known["steps"]) if name in ("stops", "map-1")],
        )
    if spoil is not None:
        spoil(tmp_path)
    fresh = run.pop("fresh", False)
    with pytest.raises((dt.CheckpointError, dt.SourceError), match=text):
        simple(tmp_path, **run)(fresh=fresh)


def test_the_same_rows_may_be_cut_otherwise(tmp_path):
    stopped_at = [60]

    def run(batch_rows, kind):
        def stops(batch):
            if batch.num_rows and batch.column("x")[-1].as_py() > stopped_at[0]:
                raise Crash
            return batch

        rows = pa.table({"x": range(100), "s": pa.array(["a", None] * 50).cast(kind)})
        flow = dt.Flow("f")
        stream = flow.read(dt.memory(rows, batch_rows=batch_rows), name="rows")
        out = stream.map(stops, stream.schema).write(dt.collect())
        flow.run(checkpoint=tmp_path / str(kind), every="0s")
        return out.table()["x"].to_pylist()

    for kind in (pa.string(), pa.dictionary(pa.int8(), pa.string())):
        stopped_at[0] = 60
        with pytest.raises(Crash):
            run(7, kind)
        stopped_at[0] = 200
        assert run(13, kind) == list(range(100))


def test_a_folder_in_use_is_refused(tmp_path):
    entered, leave = threading.Event(), threading.Event()

    def waits(batch):
        entered.set()
        leave.wait()

    thread = threading.Thread(target=simple(tmp_path, sink=dt.call(waits)))
    thread.start()
    entered.wait()
    who = rf"in use by a job that runs \(process {os.getpid()}\); stop it first, or give another folder"
    with pytest.raises(dt.CheckpointError, match=who):
        simple(tmp_path, sink=dt.call(waits))()
    leave.set()
    thread.join()


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(dt.CheckpointError, match="cannot be used: .*; give another folder"):
        simple(tmp_path)()


def test_what_cannot_go_on_is_refused_before_the_start(tmp_path):
    @dt.source
    class Once:
        schema = pa.schema([("x", pa.int64())])

        def read(self):
            raise AssertionError("nothing is read")

    @dt.operator
    class Forgetful:
        def on_batch(self, batch, context):
            return batch

    flow = dt.Flow("f")
    flow.read(Once(), name="once").write(dt.null())
    with pytest.raises(
        dt.FlowError, match=r"read 'once': its source .*Once cannot be read again .* position\(\) and seek"
    ):
        flow.run(checkpoint=tmp_path / "state")
    flow = dt.Flow("f")
    flow.read(dt.memory({"x": [1]})).process(Forgetful(), name="p").write(dt.null())
    with pytest.raises(
        dt.FlowError, match=r"process 'p': its operator .*Forgetful cannot go on .* snapshot\(\) and restore"
    ):
        flow.run(checkpoint=tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_an_output_of_another_run_is_refused_and_one_that_is_gone_too(tmp_path, at_once):
    run = simple(tmp_path, sink=dt.parquet(tmp_path / "out"))
    run()
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(dt.SinkError, match="'.*out' is gone, and the checkpoint wants to go on in what this run has"):
        simple(tmp_path, sink=dt.parquet(tmp_path / "out"))()
    shutil.rmtree(tmp_path / "state")
    simple(tmp_path, sink=dt.parquet(tmp_path / "out"))()
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(dt.SinkError, match="holds the output of another run"):
        simple(tmp_path, sink=dt.parquet(tmp_path / "out"))()


# Own sources and sinks


def test_an_own_source_and_sink_go_on(tmp_path):
    shown = []

    @dt.source
    class Lines:
        schema = pa.schema([("n", pa.int64())])

        def __init__(self):
            self.at = 0

        def position(self):
            return {"at": self.at}

        def seek(self, position):
            self.at = position["at"]

        def read(self):
            if self.at >= 60:
                return dt.END_OF_SOURCE
            numbers = list(range(self.at, self.at + 6))
            self.at += 6
            return pa.Table.from_batches([pa.record_batch({"n": numbers[:4]}), pa.record_batch({"n": numbers[4:]})])

    @dt.sink
    class Log:
        transactional = True

        def open(self, schema, lineage):
            self.staged = []

        def stage(self, batch, epoch, part):
            self.staged.append((epoch, batch.column("n").to_pylist()))

        def commit(self, epoch):
            fresh = [(at, n) for at, numbers in self.staged if at <= epoch for n in numbers]
            known = {at for at, _ in shown}
            shown.extend((at, n) for at, n in fresh if at not in known)
            self.staged = [(at, numbers) for at, numbers in self.staged if at > epoch]

        def abort(self):
            self.staged = []

    for stop in (13, 20, 41, None):

        def boom(batch, stop=stop):
            if stop in batch.column("n").to_pylist():
                raise Crash
            return batch

        flow = dt.Flow("f")
        flow.read(Lines(), name="lines").map(boom).write(Log())
        with pytest.raises(Crash) if stop is not None else contextlib.nullcontext():
            flow.run(checkpoint=tmp_path / "state", every="0s", options=dt.Options(batch_rows=3))
    assert [n for _, n in shown] == list(range(60))


# The parts


def test_ascending_numbers_are_packed_and_come_back():
    for times in ([], [5], [-(2**63), 2**63 - 1], [3, 3, 4, 300, 70_000], [0, 2**40]):
        given = np.array(times, np.int64)
        assert _unpacked(decode(b"".join(map(bytes, encode(_packed(given)))))).tolist() == times
    assert _packed(np.arange(1000) * 3)["steps"].nbytes == 999


def test_small_batches_are_written_as_few_and_let_go_of():
    schema = pa.schema([("x", pa.int64()), ("s", pa.string())])
    batches = [pa.record_batch([[n] * (n % 4), [str(n)] * (n % 4)], schema=schema) for n in range(1000)]
    rows = pa.Table.from_batches(batches)
    batches.insert(700, pa.record_batch([range(JOINED_ROWS), ["long"] * JOINED_ROWS], schema=schema))
    groups = _grouped(batches)
    assert batches == []
    joined = decode(b"".join(map(bytes, encode(groups))))
    assert [batch.num_rows for batch in joined] == [1050, JOINED_ROWS, 450]
    assert [group.batches for group in groups] == [[], [], []]
    without = pa.Table.from_batches([joined[0], joined[2]])
    assert without.equals(rows)
    wide = [pa.record_batch({"s": ["x" * (PIECE_BYTES // 5)] * 2}) for _ in range(5)]
    assert [len(group.batches) for group in _grouped(wide)] == [2, 2, 1]


@pytest.mark.parametrize("asked", ["wait", "hurry", "abandon"])
def test_what_writes_rests_until_somebody_waits(tmp_path, asked):
    """The rests asked for here are of days."""
    folder = Checkpoints(str(tmp_path / "state"), FlowMark("f", {}), Disk())
    folder.open()
    saver, rests, resting = Saver(every=1.0), [], threading.Event()

    def rest(worked, since):
        rests.append((worked, since))
        resting.set()
        return 1e6

    saver.pace = SimpleNamespace(rest=rest, made=rests.append)
    rows = Rows("a: left", 0, 0, [pa.record_batch({"x": np.arange(JOINED_ROWS)}) for _ in range(5)])
    known = {"rows": rows, "table": pa.table({"x": np.arange(1000)})}
    saver.start(folder.save(0, known, lineage="f-1", generation=0, finished=False, sync=[], rest=saver.rest))
    assert resting.wait(60)
    assert not saver.done(wait=False)
    if asked == "hurry":
        saver.hurry()
    if asked == "abandon":
        saver.abandon()
    assert saver.done(wait=asked != "abandon")
    *pieces, whole = rests
    assert len(pieces) > 5 + 1, "after each piece of rows, and of the rest"
    assert all(worked >= 0 and since >= 0 for worked, since in pieces) and whole > 0
    assert folder.latest.number == 0
    folder.close()


def test_sinks_that_hold_much_in_memory_have_a_checkpoint_hurry():
    """They must hold what was staged before it until it is durable."""
    asked = []
    keeper = SimpleNamespace(poll=lambda: None, hurry=lambda: asked.append(True), due=lambda now, at_once: False)
    for nbytes in (EPOCH_BYTES - 1, EPOCH_BYTES):
        sinks = [SimpleNamespace(staged_bytes=nbytes)]
        Runner._keep(SimpleNamespace(sinks=sinks, interrupted=bool, clock=float, moved=True), keeper)
        assert asked == [True] * (nbytes == EPOCH_BYTES)


def test_dictionaries_are_written_as_they_are():
    """They differ from batch to batch."""
    batches = [pa.record_batch({"s": pa.array([name], pa.dictionary(pa.int32(), pa.string()))}) for name in "abc"]
    back = decode(b"".join(map(bytes, encode(_grouped(list(batches))))))
    assert back == batches


def test_rows_are_written_once_and_files_that_nobody_needs_go(tmp_path):
    folder = Checkpoints(str(tmp_path / "state"), FlowMark("f", {}), Disk())
    folder.open()
    at = 0
    for number in range(8):
        batch = pa.record_batch({"x": np.arange(at, at + 100)})
        rows = Rows("a: left", at, max(0, at - 150), [batch], np.arange(at, at + 100))
        for _ in folder.save(number, {"rows": rows}, lineage="f-1", generation=0, finished=False, sync=[]):
            pass
        at += 100
        back = folder.load()["rows"]
        assert back.first <= back.keep
        assert (
            pa.Table.from_batches(back.batches)["x"].to_pylist() == back.times.tolist() == list(range(back.first, at))
        )
    assert len(list((tmp_path / "state").iterdir())) == 2 + 2 + 4 + 2, (
        "manifests, states, rows of the last four, the lock, what was shown"
    )
    sizes = [path.stat().st_size for path in (tmp_path / "state").glob("rows-*")]
    assert max(sizes) < 100 * 8 + 1200
    folder.close()


@pytest.mark.parametrize("where", ["rename", "sync_folder", "create"])
def test_a_checkpoint_is_there_when_its_manifest_is_whatever_fails_then(tmp_path, monkeypatch, where):
    """An attempt that went on from the one before would spoil it, and a kill in the middle leave it damaged."""
    folder = Checkpoints(str(tmp_path / "state"), FlowMark("f", {}), Disk())
    folder.open()
    real = getattr(Disk, where)

    def done_and_then_fails(self, *arguments):
        result = real(self, *arguments)
        if (tmp_path / "state" / "checkpoint-000003.json").exists():
            if result is not None:
                result.close()
            raise OSError(5, "Input/output error")
        return result

    monkeypatch.setattr(Disk, where, done_and_then_fails)
    with pytest.raises(OSError, match="Input/output error"):
        for number in range(9):
            for _ in folder.save(number, {"n": number}, lineage="f-1", generation=0, finished=False, sync=[]):
                pass
    assert folder.latest.number == 3
    monkeypatch.undo()
    assert folder.load() == {"n": 3}
    folder.close()


def test_what_sinks_may_have_shown_is_known_also_when_the_last_checkpoint_is_gone(tmp_path, monkeypatch):
    def opened():
        folder = Checkpoints(str(tmp_path / "state"), FlowMark("f", {}), Disk())
        folder.open()
        folder.close()
        return folder

    folder, synced, real = opened(), [], Disk.sync_folder
    monkeypatch.setattr(Disk, "sync_folder", lambda self, path: (synced.append(os.listdir(path)), real(self, path)))
    for number in range(4):
        list(folder.save(number, {}, lineage="f-1", generation=0, finished=False, sync=[]))
        assert "shown" in synced[-1], "durably, before sinks are told"
    folder.tell()
    assert opened().shown == 3 and opened().told
    (tmp_path / "state" / "checkpoint-000003.json").unlink()
    assert opened().latest.number == 2 and opened().shown == 3 and not opened().told
    for name in ("shown", "told"):
        damage(tmp_path / "state" / name)
    assert opened().shown is None and not opened().told
    (tmp_path / "state" / "shown").unlink()
    assert opened().shown == 2, "a crash came between the first checkpoint and what notes it"
    opened().load()
    assert (tmp_path / "state" / "shown").exists(), "sinks are told next"


def test_what_is_read_back_otherwise_makes_no_checkpoint(tmp_path, monkeypatch):
    folder = Checkpoints(str(tmp_path / "state"), FlowMark("f", {}), Disk())
    folder.open()
    monkeypatch.setattr(Disk, "measure", lambda *_: (0, 0))
    with pytest.raises(OSError, match="what was written is read back otherwise"):
        list(folder.save(0, {"n": 1}, lineage="f-1", generation=0, finished=False, sync=[]))
    assert folder.latest is None
    assert not list((tmp_path / "state").glob("*.json"))
    folder.close()


def test_a_damaged_checkpoint_can_be_passed_over_by_hand(tmp_path, at_once):
    """What the sink had shown since the one before is taken back, and comes again."""
    stop = [70]

    def stops(batch):
        if batch.num_rows and batch.column("x")[0].as_py() == stop[0]:
            raise Crash
        return batch

    def run():
        flow = dt.Flow("f")
        rows = flow.read(dt.memory({"x": range(100)}, batch_rows=10), name="rows")
        rows.map(stops, rows.schema).write(dt.parquet(tmp_path / "out"))
        flow.run(checkpoint=tmp_path / "state", every="0s")

    with pytest.raises(Crash):
        run()
    stop[0] = None
    damage(state_files(tmp_path, "state")[-1])
    with pytest.raises(dt.CheckpointError, match="delete 'checkpoint-(.*).json' to go on from checkpoint") as caught:
        run()
    name = str(caught.value).partition("delete '")[2].partition("'")[0]
    (tmp_path / "state" / name).unlink()
    run()
    assert sorted(pq.read_table(tmp_path / "out")["x"].to_pylist()) == list(range(100))


# Files that keep coming


def part(folder, number, rows):
    """Have a file come, whole."""
    pq.write_table(pa.table({"x": pa.array(rows, pa.int64())}), folder / f".{number}")
    (folder / f".{number}").rename(folder / f"{number:03d}.parquet")


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_files_that_come_are_read_also_by_the_next_run(tmp_path, kind):
    folder = tmp_path / "in"
    folder.mkdir()

    def come(number, rows):
        if kind == "parquet":
            part(folder, number, rows)
        else:
            pacsv.write_csv(pa.table({"x": pa.array(rows, pa.int64())}), folder / f".{number}")
            (folder / f".{number}").rename(folder / f"{number:03d}.csv")

    made = {"parquet": dt.parquet, "csv": dt.csv}[kind]
    come(0, range(10))
    numbers = iter(range(1, 7))

    def run(until):
        def seen(batch):
            rows = batch.column("x").to_pylist()
            if rows and rows[-1] % 10 == 9 and rows[-1] != until:
                number = next(numbers)
                come(number, range(number * 10, number * 10 + 10) if number != 4 else [])
                if number == 4:
                    come(next(numbers), range(50, 60))
            if rows and rows[-1] == until:
                job.mailbox.ask("stop")
            return batch

        flow = dt.Flow("f")
        schema = pa.schema([("x", pa.int64())])
        rows = flow.read(made(folder, follow=True, batch_rows=4, schema=schema), name="rows").map(seen, schema)
        out = rows.write(dt.collect())
        job = flow.start(checkpoint=tmp_path / "state", every="0s")
        assert job.wait().outcome == "stopped"
        return out.table()["x"].to_pylist()

    assert run(until=29) == list(range(30))
    come(next(numbers), range(30, 40))
    assert run(until=59) == [*range(40), *range(50, 60)]


def test_a_file_that_comes_before_others_is_refused(tmp_path):
    part(tmp_path, 5, range(10))

    def seen(batch):
        if batch.num_rows:
            part(tmp_path, 4, range(10))
        return batch

    flow = dt.Flow("f")
    rows = flow.read(dt.parquet(tmp_path, follow=True))
    rows.map(seen, rows.schema).write(dt.null())
    with pytest.raises(dt.SourceError, match=r"004.parquet' has come before '.*005.parquet', which was read already"):
        flow.run()


@pytest.mark.parametrize("kind", [dt.parquet, dt.csv])
def test_a_finished_flow_whose_output_is_empty_can_be_run_again(tmp_path, kind):
    def flow():
        made = dt.Flow("none")
        rows = made.read(dt.memory({"t": [1, 2, 3]}), name="s", time="t")
        rows.late.write(kind(str(tmp_path / "out")))
        return made

    for _ in range(3):
        assert flow().run(checkpoint=str(tmp_path / "state")).outcome == "finished"
        assert len([name for name in os.listdir(tmp_path / "out") if name.startswith("part-")]) == 1


def test_a_window_may_lie_in_more_files_than_a_process_may_open(tmp_path):
    """As each checkpoint adds some, and nothing makes one of them."""
    folder = Checkpoints(str(tmp_path / "state"), FlowMark("f", {}), Disk())
    folder.open()
    for number in range(200):
        batch = pa.record_batch({"x": np.arange(number * 10, number * 10 + 10)})
        rows = Rows("a: left", number * 10, 0, [batch], None)
        for _ in folder.save(number, {"rows": rows}, lineage="f-1", generation=0, finished=False, sync=[]):
            pass
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, before[1]))
    try:
        back = folder.load()["rows"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert pa.Table.from_batches(back.batches)["x"].to_pylist() == list(range(2000))
    folder.close()


def test_a_file_that_cannot_be_read_now_is_not_to_be_deleted(tmp_path, monkeypatch):
    folder = Checkpoints(str(tmp_path / "state"), FlowMark("f", {}), Disk())
    folder.open()
    for _ in folder.save(0, {}, lineage="f-1", generation=0, finished=False, sync=[]):
        pass

    def measure(self, path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Disk, "measure", measure)
    with pytest.raises(dt.CheckpointError, match="cannot be read \\(Too many open files\\); allow this process more"):
        folder.load()
    folder.close()
