"""What is run in a simulated world, and what is checked: one seed, one flow, one world, one verdict.

The expected rows come from the oracle (loops over lists), and for what has none from a run in which nothing goes wrong.
In the end the output must be exactly these, in order, however many starts it took; and whenever a process dies, what
the output folder shows must be the beginning of these.
"""

import contextlib
import functools
import io
import json
import random
import re
import uuid
from types import SimpleNamespace

import dovetail as dt
import numpy as np
import oracle
import pyarrow as pa
from dovetail import left, right
from dovetail.engine.control import Mailbox
from dovetail.engine.keeper import keeping
from dovetail.engine.run import Around, run
from dovetail.ingest.folder import FolderWriter
from dovetail.operators.contracts import END_OF_SOURCE

from simulation.world import FAULTS, Crash, Hang, Launcher, Saver, World

ROWS = 30
MOST_STARTS = 80
OUT, STATE, SECOND = "/sim/out", "/sim/state", "/sim/second"


class Failure(AssertionError):
    """What must not happen has happened."""


# Inputs and what is expected of them -------------------------------------------------------------------------------


@functools.cache
def inputs(kind):
    """Two streams with ties, disorder and late rows: as rows, and as tables."""
    rng = np.random.default_rng(kind)
    streams = []
    for side in range(2):
        t = np.sort(rng.integers(0, ROWS // 3, ROWS)) + rng.integers(-2, 1, ROWS)
        x = rng.integers(0, 12, ROWS)
        streams.append([{"t": int(a), "x": int(b), "id": side * 1000 + n} for n, (a, b) in enumerate(zip(t, x))])
    return streams, [pa.Table.from_pylist(rows) for rows in streams]


WINDOWS = {
    "rows": (dt.last(12), oracle.Window(rows=12)),
    "rows in steps": (dt.last(12, slide=4), oracle.Window(rows=12, slide=4)),
    "time": (dt.last(time=5), oracle.Window(span=5)),
    "all": (dt.last(None), oracle.Window()),
}


@functools.cache
def expected(kind, window):
    """The pairs of the band join, and the rows of the streams that are not late."""
    streams, _ = inputs(kind)
    clock = oracle.Clock("t")
    events = [oracle.read(rows, clock, 1) for rows in streams]
    windows = (WINDOWS[window][1],) * 2
    pairs = oracle.join(events[0][0], events[1][0], windows, lambda a, b: abs(a["x"] - b["x"]) <= 1)
    itself = oracle.self_join(events[0][0], windows, lambda a, b: abs(a["x"] - b["x"]) <= 1)
    merged = oracle.union(events[0][0], events[1][0])
    return {
        "pairs": [[pair.left.row["id"], pair.right.row["id"]] for pair in pairs],
        "itself": [[pair.left.row["id"], pair.right.row["id"]] for pair in itself],
        "merged": [[event.row["id"]] for event in merged],
        "late": [[row["id"]] for row in events[0][1]],
    }


class Source:
    """Rows in batches that the world cuts; now and then there are none."""

    replayable = True

    def __init__(self, world, table):
        self.world, self.table, self.schema = world, table, table.schema

    def describe(self):
        return "simulated rows"

    def reader(self, columns, position=None):
        at = [0 if position is None else position]

        def read():
            self.world.move("read")
            if at[0] >= len(self.table):
                return END_OF_SOURCE
            rows = self.world.rng.choice([0, 2, 6, 15])
            batch = self.table.slice(at[0], rows).combine_chunks()
            at[0] += rows
            return batch.to_batches()[0] if rows and batch.num_rows else None

        return SimpleNamespace(read=read, position=lambda: min(at[0], len(self.table)), close=lambda: None)


class Lines:
    """A file of rows, as text: what Parquet and CSV are elsewhere."""

    def __init__(self, file):
        self.file = file

    def write_table(self, table):
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        self.file.write("".join(f"{[*row]}\n" for row in rows).encode())

    def close(self):
        pass


class Folder:
    """A folder of parts, by the writer that Parquet and CSV have."""

    transactional = True

    def __init__(self, world, path):
        self.world, self.place = world, path

    def describe(self):
        return f"folder {self.place}"

    def check(self, schema):
        pass

    def writer(self, schema, lineage, known=None):
        return FolderWriter(self.place, "txt", Lines, schema, lineage, False, known, self.world.disk)

    def shown(self):
        """The rows that a reader sees."""
        files = self.world.disk.files
        parts = [p for p in sorted(files) if p.startswith(self.place + "/part-")]
        lines = [line for part in parts for line in bytes(files[part].data).splitlines()]
        try:
            return json.loads(b"[" + b",".join(lines) + b"]")
        except ValueError as error:
            raise Failure(f"{self.place} shows what is no row: {error}") from error


class Shop:
    """A sink of one's own, outside of the world: what it was shown is there for good, at once."""

    def __init__(self):
        self.epochs, self.rows, self.deliveries = {}, [], {}

    def call(self, batch, delivery):
        """As `dt.call`: the same batch may come again, under the same name."""
        rows = batch.column("id").to_pylist()
        before = self.deliveries.setdefault(tuple(delivery), rows)
        if before != rows:
            raise Failure(f"{delivery} was {before}, and came again as {rows}")


@dt.operator
class Count:
    """How many rows there were of each key; asks for a timer that says the last one."""

    timer_delay = 2

    def __init__(self):
        self.seen = {}

    def output(self, schema):
        return pa.schema([("id", pa.int64())])

    def on_batch(self, batch, context):
        keys, counts = batch.column("x").to_pylist(), []
        for key in keys:
            self.seen[key] = self.seen.get(key, 0) + 1
            counts.append(self.seen[key])
        context.set_timers(context.times + 2, batch.select(["x"]))
        return pa.record_batch({"id": pa.array(counts, pa.int64())})

    def on_timer(self, timers, context):
        return pa.record_batch({"id": timers.column("x")})

    def snapshot(self):
        return pa.table({"k": pa.array(self.seen, pa.int64()), "n": pa.array(self.seen.values(), pa.int64())})

    def restore(self, table):
        self.seen = dict(zip(table["k"].to_pylist(), table["n"].to_pylist()))


# One run -----------------------------------------------------------------------------------------------------------


class Life:
    """A flow that is started again until it has finished, in one world."""

    def __init__(self, seed, faults=FAULTS):
        self.seed, self.rng = seed, random.Random(seed * 7919 + 1)
        self.world = World(seed, faults=faults)
        rng = self.rng
        self.kind = rng.randrange(5)
        self.window = rng.choice(list(WINDOWS))
        # Steps besides the join, and what is behind it: few at a time, so that a seed is quick.
        self.parts = {name for name in ("again", "merged", "count", "late") if rng.random() < 0.3}
        if "again" in self.parts and rng.random() < 0.5:  # a second join of another kind
            self.parts = self.parts - {"again"} | {"itself"}
        self.shop = Shop()
        self.sinks = {}
        self.starts = 0
        self.flips = rng.random() < 0.15 and faults is FAULTS
        self.flipped = False
        self.questions = rng.random() < 0.4
        self.state, self.savepoint = STATE, None
        self.saved = None  # a savepoint that was made
        # Nothing happens to the first run; the second, which begins with a savepoint of the first, dies soon.
        self.rivals = rng.random() < 0.25 and faults is FAULTS
        if self.rivals:
            self.world.budget, self.flips = 0, False

    def flow(self, layout="auto", index="auto"):
        world = self.world
        flow = dt.Flow("f")
        one, two = (
            flow.read(Source(world, table), name=f"s{n}", time="t", delay=1)
            for n, table in enumerate(inputs(self.kind)[1])
        )
        window = WINDOWS[self.window][0]
        on = (left.x - right.x).abs() <= 1
        pairs = one.join(two, on=on, window=window, layout=layout, index=index, name="pairs")
        outs = {"pairs": pairs.select("id", "id_right")}
        if "again" in self.parts:
            again = pairs.join(two, on=left.id_right == right.id, window=dt.last(None), suffix="_2", name="again")
            outs["again"] = again.select("id", "id_right")
        if "itself" in self.parts:
            itself = one.join(one, on=on, window=window, layout=layout, index=index, name="itself")
            outs["itself"] = itself.select("id", "id_right")
        if "merged" in self.parts:
            outs["merged"] = one.union(two).select("id")
            shop = self.shop or Shop()
            outs["merged"].write(dt.call(shop.call), name="call")
        if "count" in self.parts:
            outs["count"] = one.process(Count(), name="count")
        if "late" in self.parts:
            outs["late"] = one.late.select("id")
        for name, stream in outs.items():
            self.sinks[name] = stream.write(Folder(world, f"{OUT}-{name}"), name=f"to-{name}")
        return flow

    def expected(self):
        return {**expected(self.kind, self.window), **calm(self.kind, self.window)}

    def live(self):
        """Start until it has finished, and perhaps again from a savepoint; raise where something is wrong."""
        self.finish()
        if self.saved is not None and not self.flipped:
            # In a checkpoint folder of its own, over the same output; the shop's calls cannot be taken back.
            self.state, self.savepoint, self.shop = SECOND, self.saved, None
            self.world.budget = self.rng.randint(0, 2)
            if self.rivals:
                self.world.faults = ("crash", "crash", "power")
                self.world.budget, self.world.every = self.rng.randint(1, 3), self.rng.choice([30, 60, 120])
            self.finish()

    def finish(self):
        refused = set()
        while True:
            self.starts += 1
            if self.starts > MOST_STARTS:
                raise Failure(f"it has not finished after {MOST_STARTS} starts")
            try:
                outcome = self.start()
            except Hang as error:
                raise Failure(f"it hangs: {error}") from error
            self.check_beginning()
            if outcome == "finished":
                break
            if self.shop is None:  # there are two runs
                refused |= {self.state} if outcome == "refused" else set()
                if refused == {STATE, SECOND}:
                    raise Failure("the output belongs to nobody: each run was refused")
                if outcome == "refused" or (not refused and self.rng.random() < 0.7):
                    self.change_over()
        self.check()

    def change_over(self):
        """Go on with the other run over the same output, the one that began with a savepoint or the one before it."""
        self.state = STATE if self.state == SECOND else SECOND
        self.savepoint = None if self.state == STATE else self.saved

    def start(self):
        world, rng = self.world, self.rng
        world.start()
        if self.flips and self.starts > 1 and not self.flipped and self.savepoint is None:
            self.flip()
        around = Around()
        around.clock, around.pause, around.settle = world.clock, world.pause, lambda: None
        around.launch = functools.partial(Launcher, world)
        mailbox = Mailbox()
        if self.rivals and self.starts == 1:
            self.ask(mailbox, "savepoint")
        elif self.questions and self.savepoint is None and rng.random() < 0.5:
            self.ask(mailbox, rng.choice(["rescale", "savepoint", "stop"]))
        layout, index = rng.choice([("auto", "auto"), ("range", "carousel"), ("copies", "bplus"), ("chain", "nested")])
        options = dt.Options(batch_rows=rng.choice([2, 9, 65536]), out_rows=rng.choice([3, 65536]), silence_seconds=2)
        workers = rng.choice([0, 2, 2, 3])
        try:
            flow = self.flow(layout, index)
            with keeping(
                "f", flow._sinks(), self.state, rng.choice([0.0, 0.02, 0.1]), savepoint=self.savepoint, disk=world.disk,
                saver=Saver(world), draw=lambda: uuid.UUID(int=rng.getrandbits(128)),
            ) as keeper:  # fmt: skip
                return run("f", flow._sinks(), options, 1.0, None, workers, keeper, mailbox, around).outcome
        except Crash:
            return "crashed"
        except dt.CheckpointError as error:
            return self.damaged(error)
        except dt.DovetailError as error:
            if self.shop is None and re.search("was taken back to epoch|holds the output of another run", str(error)):
                return "refused"
            if not world.since_start:
                raise Failure(f"an error without a fault: {type(error).__name__}: {error}") from error
            return "failed"
        finally:
            mailbox.close("over")

    def ask(self, mailbox, kind):
        argument = {"rescale": self.rng.choice([1, 2, 3]), "savepoint": f"/sim/saved-{self.starts}", "stop": None}[kind]
        answer = mailbox.ask(kind, argument)
        if kind == "savepoint":
            answer.add_done_callback(lambda done: self.note_saved(done, argument))

    def note_saved(self, done, place):
        if done.exception() is None:
            self.saved = place

    def flip(self):
        """Damage the last checkpoint, as a disk may."""
        files = [p for p in sorted(self.world.disk.files) if p.startswith(STATE + "/")]
        last = max((p for p in files if p.endswith(".json")), default=None)
        state = max((p for p in files if "/state-" in p and p.endswith(".part")), default=None)
        choice = self.rng.choice([last, state])
        if last is not None and choice is not None and len(self.world.disk.files[choice].data):
            self.flipped = True
            self.world.note("flip", choice)
            self.world.disk.flip(choice)

    def damaged(self, error):
        """Do what the message says, as a person would."""
        text = str(error)
        if "delete 'checkpoint-" in text and self.flipped:
            name = text.partition("delete '")[2].partition("'")[0]
            self.world.disk.files.pop(f"{STATE}/{name}")
            self.world.disk.durable.pop(f"{STATE}/{name}", None)
            return "deleted"
        if "to begin anew" in text and self.flipped:  # there was no other one
            for path in [p for p in self.world.disk.files if p.startswith("/sim/")]:
                self.world.disk.files.pop(path)
                self.world.disk.durable.pop(path, None)
            self.world.disk.pending = []
            self.shop = Shop()
            return "anew"
        if not self.world.since_start:
            raise Failure(f"a checkpoint is refused without a fault: {text}") from error
        return "failed"

    def check_beginning(self):
        """What is shown is the beginning of what is expected, unless the disk has lost names."""
        if any(fault == "power" for _, fault, _ in self.world.happened):
            return
        for name, rows in self.expected().items():
            if name in self.sinks:
                shown = self.sinks[name].shown()
                if shown != rows[: len(shown)]:
                    raise Failure(f"{name} shows {shown}, which is not the beginning of {rows}")

    def check(self):
        for name, rows in self.expected().items():
            if name not in self.sinks:
                continue
            shown = self.sinks[name].shown()
            if shown != rows:
                raise Failure(f"{name} is {shown} and should be {rows}")
        # A crash may leave half of a savepoint; and a loss of power brings back what was removed from a folder that
        # nobody uses any more.
        others = ("/sim/saved", f"{SECOND if self.state == STATE else STATE}/")
        mine = [p for p in self.world.disk.files if not p.startswith(others)]
        left_over = [p for p in mine if p.endswith(".tmp") or "/.staging" in p]
        if left_over:
            raise Failure(f"files are left over: {left_over}")
        if "merged" not in self.parts or self.shop is None:
            return
        called = [row for key in sorted(self.shop.deliveries) for row in self.shop.deliveries[key]]
        wanted = [row for row, in self.expected()["merged"]]
        # What was called for epochs of a checkpoint that was deleted by hand comes again: at least once.
        if called != wanted and not (self.flipped and set(called) == set(wanted)):
            raise Failure(f"call was given {called}")


@functools.cache
def calm(kind, window):
    """What comes of the flow where nothing goes wrong, in one process, of what the oracle has no loops for."""
    life = Life(0, faults=())
    life.kind, life.window, life.parts = kind, window, {"count", "again"}
    flow = life.flow()
    life.world.start()
    around = Around()
    around.clock, around.pause = life.world.clock, life.world.pause
    run("f", flow._sinks(), dt.Options(), 1.0, None, 0, None, None, around)
    return {name: life.sinks[name].shown() for name in ("count", "again")}


def simulate(seed, faults=FAULTS):
    """Run one seed; return its life. Raises `Failure` where something is wrong."""
    life = Life(seed, faults)
    with contextlib.redirect_stderr(io.StringIO()):
        life.live()
    return life
