"""What checkpoints cost, and how fast a run goes on after a kill: `make bench-recovery`.

A band join of two matches a row whose windows hold `DOVETAIL_BENCH_MB` (256) megabytes of rows, 24 bytes each. Rates
count rows of both inputs. Runs that are compared take turns; figures are medians of `DOVETAIL_ROUNDS` (5), each with
its aim and the load of the machine. Results are compared with those of an undisturbed run: rows, values and order.

Checkpoints are written below `DOVETAIL_BENCH_FOLDER` (the folder for temporary files), whose speed is printed first:
with /dev/shm there the disk costs nothing. `python -m tests.bench.recovery cost size` runs some of it; `kill` makes
docs/recovery.svg.
"""

import contextlib
import functools
import mmap
import os
import queue
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import dovetail as dt
import numpy as np
import pyarrow as pa
from dovetail.disk import Disk
from dovetail.engine.run import Runner

from . import plots
from .engine import ROUNDS, clocked, joined, kept, row, run, waited

FOLDER = os.environ.get("DOVETAIL_BENCH_FOLDER", tempfile.gettempdir())
PLOT = Path(__file__).parents[2] / "docs" / "recovery.svg"
STATE = int(os.environ.get("DOVETAIL_BENCH_MB", "256")) << 20
ROW_BYTES = 24  # x, id, at: what the windows must keep
AT_ONCE = 1e12  # rows a second: all of them are there
COLUMNS = ("id", "at", "id_right", "at_right")
PLACES = {0: "in one process", 2: "two workers"}
OPTIONS = dt.Options(arena_bytes=4 << 30)
TELLING = pa.schema([("made", pa.float64()), ("latest", pa.float64()), ("rows", pa.int64()), ("sum", pa.int64()),
                     ("placed", pa.int64())])  # fmt: skip


def rows_of(nbytes):
    """Rows of each window, if both hold so many bytes."""
    return nbytes // ROW_BYTES // 2


def figure(what, *figures):
    row(what, *figures, f"load {os.getloadavg()[0]:.1f}")


def folder():
    return tempfile.TemporaryDirectory(dir=FOLDER, prefix="bench-")


# What all of it runs on --------------------------------------------------------------------------------------------


@dt.operator
class Told:
    """One row for a batch of results: when it was made, its latest row's arrival, and what tells its results."""

    def __init__(self, say=None):
        self.say = say

    def output(self, schema):
        return TELLING

    def on_batch(self, batch, context):
        now, rows = time.perf_counter(), batch.num_rows
        one, at, two, at_right = (np.asarray(batch.column(name)) for name in COLUMNS)
        values = one * 0x9E3779B1 + two * 0x85EBCA77  # what overflows, overflows alike in every run
        placed = int((np.arange(rows) * values).sum())
        latest = float(max(at.max(), at_right.max()))
        if self.say is not None:
            self.say("made", now, latest, rows)
        return pa.record_batch([[now], [latest], [rows], [int(values.sum())], [placed]], schema=TELLING), [rows - 1]

    def snapshot(self):
        return pa.table({})

    def restore(self, table):
        pass


def digest(parts):
    """Return the number of results, and a sum over their values and places, of (rows, sum, placed) of all batches.

    However the results were cut into batches, it is the same.
    """
    at = total = 0
    for rows, values, placed in parts:
        total = (total + at * values + placed) % 2**64
        at += rows
    return at, total


def digest_of(sink):
    table = sink.table()
    return digest(zip(*(table[name].to_pylist() for name in ("rows", "sum", "placed")), strict=True))


def telling(sink, rows, *, nbytes=STATE, rate=AT_ONCE, say=None, layout="auto", **clock):
    """The flow: so many rows a side, and one row in the sink for each batch of results."""
    sources = [clocked(side, rate, rows, **clock) for side in (0, 1)]
    flow, results = joined(sources, *COLUMNS, w=rows_of(nbytes), layout=layout)
    results.process(Told(say), name="told").write(sink)
    return flow


def undisturbed(rows):
    """Return the digest of all results, as one process makes them without checkpoints."""
    sink = dt.collect()
    telling(sink, rows).run()
    return digest_of(sink)


@contextlib.contextmanager
def opened(flow, workers, place, every, disk=None, options=None):
    """Lend a run that is open, and kill it."""
    with kept(flow, place, every, disk) as keeper:
        runner = Runner(flow.name, flow._sinks(), options or dt.Options(), every, workers=workers, keeper=keeper)
        try:
            runner.open()
            yield runner
        finally:
            runner.close(failed=True)


def read_until(runner, rows):
    """Run until each source has brought so many rows."""
    while min(state.task.rows_in for group in runner.groups for state in group) < rows:
        if not runner.round():
            runner.rest()


@functools.cache
def greatest(workers):
    """Rows a second at most, of both inputs, once the windows are full."""
    rows = 2 * rows_of(STATE)
    sources = [clocked(side, AT_ONCE, rows) for side in (0, 1)]
    flow, results = joined(sources, *COLUMNS, w=rows_of(STATE))
    results.write(dt.null())
    return 2 * rows / run(flow, workers)[0]


# What checkpoints cost ---------------------------------------------------------------------------------------------


def cost(rows=1 << 25):
    """Rows a second with a checkpoint each second, over those without; with all results staged, and with few rows."""
    print(f"cost of a checkpoint each second; {STATE >> 20} MB of windows, all results into null, {rows:,} rows a side")
    row("", "M rows/s without", "M rows/s with", "with / without", "CPU with / without", "checkpoints", "seconds")
    for workers, few in ((0, False), (2, False), (0, True), (2, True)):
        plain, with_them, made, outs = [], [], [], set()
        for _ in range(ROUNDS):
            for runs in (plain, with_them):
                sink = dt.null()
                if few:
                    flow = telling(sink, rows)
                else:
                    flow, results = joined([clocked(side, AT_ONCE, rows) for side in (0, 1)], *COLUMNS,
                                           w=rows_of(STATE))  # fmt: skip
                    results.write(sink)
                with folder() as place:
                    runs.append(run(flow, workers, None, place if runs is with_them else None))
                    if runs is with_them:
                        made.append(newest(place) - 1)  # but for those of the beginning and the end
                outs.add(runs[-1][3])
        assert len(outs) == 1, outs
        rates = [2 * rows / statistics.median(r[0] for r in runs) / 1e6 for runs in (plain, with_them)]
        ratio = statistics.median(a[0] / b[0] for a, b in zip(plain, with_them, strict=True))
        cpu = statistics.median((b[1] + b[2]) / (a[1] + a[2]) for a, b in zip(plain, with_them, strict=True))
        figure(PLACES[workers] + (", a row a batch is staged" if few else ""), *(f"{r:.2f}" for r in rates),
               f"{ratio:.2f} (aim 0.90)", f"{cpu:.2f}", statistics.median(made),
               f"{statistics.median(r[0] for r in with_them):.1f}")  # fmt: skip


def newest(place):
    """Return the number of the last checkpoint in a folder."""
    return max(int(found[1]) for name in os.listdir(place) if (found := re.fullmatch(r"checkpoint-(\d+)\.json", name)))


# How large a checkpoint is -----------------------------------------------------------------------------------------


class Noting(Disk):
    """A disk that notes how large the files are that are put into place."""

    def __init__(self):
        self.sizes = {}

    def rename(self, old, new):
        self.sizes[os.path.basename(new)] = os.path.getsize(old)
        super().rename(old, new)


def size(rows=1 << 20):
    """Bytes of the files of one checkpoint, over those of the rows that came since the one before."""
    print(f"size of a checkpoint over that of its new rows ({ROW_BYTES} bytes each), {rows:,} rows a side")
    row("", "new rows", "rows-*", "state-*", "files / new rows")
    for workers in (0, 2):
        disk, found = Noting(), []
        with folder() as place:
            flow = telling(dt.null(), 1 << 40)
            with opened(flow, workers, place, 1e9, disk) as runner:
                for number in range(1, ROUNDS + 1):
                    before = sum(runner.trail.kept(number - 1).values())
                    read_until(runner, number * rows)
                    disk.sizes.clear()
                    runner.checkpoint()
                    new = (sum(runner.trail.kept(number).values()) - before) * ROW_BYTES
                    kinds = [sum(n for name, n in disk.sizes.items() if name.startswith(kind))
                             for kind in ("rows-", "state-")]  # fmt: skip
                    found.append((new, *kinds))
        new, of_rows, of_state = (statistics.median(f[i] for f in found) for i in range(3))
        ratio = statistics.median((f[1] + f[2]) / f[0] for f in found)
        figure(PLACES[workers], f"{new / 1e6:.1f} MB", f"{of_rows / 1e6:.1f} MB", f"{of_state / 1e3:.1f} kB",
               f"{ratio:.2f} (aim 1.20)")  # fmt: skip


# How long a result takes -------------------------------------------------------------------------------------------


def latency(seconds=5.0):
    """How long a result takes to the sink at half of the greatest rate, with a checkpoint each second and without."""
    print(f"latency of results at half of the greatest rate, {STATE >> 20} MB of windows; a checkpoint each second")
    row("", "M rows/s", "p50 without, with", "p99 without, with", "p50 ratio", "p99 ratio", "sleeper p99, max")
    w = rows_of(STATE)
    for workers in (0, 2):
        rate = greatest(workers) / 4  # of each side
        found = []
        for _ in range(ROUNDS):
            for with_them in (False, True):
                with folder() as place:
                    settle = w / rate
                    waits, pauses = waited(rate, settle + seconds, workers, w=w, settle=settle,
                                           checkpoint=place if with_them else None)  # fmt: skip
                found.append([*np.percentile(waits, [50, 99]), np.percentile(pauses, 99), pauses.max()])
        found = np.array(found).reshape(ROUNDS, 2, 4) * 1e3
        half, tail, sleeper, pause = np.moveaxis(np.median(found, axis=0), -1, 0)
        ratios = np.median(found[:, 1, :2] / found[:, 0, :2], axis=0)
        figure(PLACES[workers], f"{2 * rate / 1e6:.1f}", f"{half[0]:.1f}, {half[1]:.1f} ms",
               f"{tail[0]:.0f}, {tail[1]:.0f} ms", f"{ratios[0]:.2f}", f"{ratios[1]:.2f} (aim 2)",
               f"{sleeper.max():.1f}, {pause.max():.0f} ms")  # fmt: skip


# How long it takes to go on after a kill ---------------------------------------------------------------------------


class WithoutPandas:
    """Hides pandas, which pyarrow imports for the first array that is made of NumPy's numbers, as the source here does.

    That takes a third of a second, which is not what is measured.
    """

    @staticmethod
    def find_spec(name, *_):
        if name == "pandas":
            raise ModuleNotFoundError(name)


def child(place, rate, start):
    """A run in a process of its own, which says when results are made, and when they are shown."""
    place = Path(place)
    sys.meta_path.insert(0, WithoutPandas)
    say("begun", time.perf_counter())

    def shown(batch, delivery):
        say("shown", time.perf_counter(), delivery.epoch, delivery.part, *(c[0].as_py() for c in batch.columns))

    flow = telling(dt.call(shown), 1 << 40, rate=float(rate), say=say, start=float(start), end=place / "end")
    flow.run(workers=2, checkpoint=place / "state", every="1s")


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Supervised:
    """A run in a process of its own, started again when it is killed, and what it has said."""

    def __init__(self, place, rate):
        self.place, self.rate, self.start = Path(place), rate, time.perf_counter()
        self.said = queue.Queue()
        self.made, self.shown, self.begun = [], {}, 0.0
        self.launch()

    def launch(self):
        words = [sys.executable, "-m", "tests.bench.recovery", "child", self.place, self.rate, self.start]
        self.process = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.stderr, self.readers = [], []
        for lines, put in ((self.process.stdout, self.said.put), (self.process.stderr, self.stderr.append)):
            reader = threading.Thread(target=lambda lines=lines, put=put: [put(line) for line in lines], daemon=True)
            reader.start()
            self.readers.append(reader)

    def hear(self, timeout=60.0):
        """Take the next line; return its kind and its numbers. What is shown twice is the same."""
        try:
            kind, *words = self.said.get(timeout=timeout).split()
        except queue.Empty:
            raise AssertionError(f"nothing was heard for {timeout} s: {''.join(self.stderr)}") from None
        numbers = [float(word) if "." in word else int(word) for word in words]
        if kind == "made":
            self.made.append(numbers)
        elif kind == "shown":
            _, epoch, part, *values = numbers
            assert self.shown.setdefault((epoch, part), values) == values, "it was shown twice, and is not the same"
        else:
            self.begun = numbers[0]
        return kind, numbers

    def settle(self, seconds=2.0):
        """Wait until the windows are full, and results are shown as their rows come, for so long."""
        since, begun = None, time.perf_counter()
        while since is None or time.perf_counter() - since < seconds:
            kind, numbers = self.hear()
            assert time.perf_counter() - begun < 120, f"{2 * self.rate:,.0f} rows/s are too many for this machine now"
            full = (time.perf_counter() - self.start) * self.rate > 1.2 * rows_of(STATE)
            if kind == "made":
                late = numbers[0] - numbers[1] > 0.5
                since = None if late or not full else since or time.perf_counter()

    def first_shown(self, killed):
        """Return when the first results were shown that were made after a time."""
        while True:
            kind, numbers = self.hear()
            if kind == "shown" and numbers[3] > killed:
                return numbers[0]

    def workers(self):
        """Return the ids of its worker processes."""
        pid = self.process.pid
        children = [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children")
                    for word in path.read_text().split()]  # fmt: skip
        found = [each for each in children if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]
        assert len(found) == 2, found
        return found

    def finish(self):
        """Have it end soon, and wait for it; return how many rows a side it has read, and what it has shown."""
        rows = int((time.perf_counter() - self.start + 1.0) * self.rate)
        (self.place / "end.tmp").write_text(str(rows))
        (self.place / "end.tmp").rename(self.place / "end")
        self.process.wait()
        for reader in self.readers:
            reader.join()
        while not self.said.empty():
            self.hear()
        assert self.process.returncode == 0, "".join(self.stderr)
        return rows, digest(values[2:] for _, values in sorted(self.shown.items()))


def kill():
    """Time from kill -9 to the first result that was made and committed after it; and what a kill does to results."""
    rate = greatest(2) / 4
    print(f"kill -9 at half of the greatest rate, {2 * rate / 1e6:.1f} M rows/s; {STATE >> 20} MB of windows, "
          "two workers, rows that come meanwhile wait")  # fmt: skip
    row("", "p50", "max", "of it, to start anew", "caught up, p50")
    curves = {}
    for victim in ("a worker", "the run itself"):
        taken, starting, caught, kills = [], [], [], []
        with folder() as place:
            job = Supervised(place, rate)
            try:
                for number in range(ROUNDS):
                    job.settle()
                    killed = time.perf_counter()
                    if victim == "a worker":
                        os.kill(job.workers()[number % 2], signal.SIGKILL)
                    else:
                        job.process.kill()
                        job.process.wait()
                        job.launch()
                    kills.append(killed)
                    taken.append(job.first_shown(killed) - killed)
                    starting.append(max(0.0, job.begun - killed))
                    job.settle(0.001)
                    caught.append(time.perf_counter() - killed)
                job.settle()
                rows, found = job.finish()
            finally:
                job.process.kill()
        expected = undisturbed(rows)
        assert found == expected, f"{rows:,} rows a side gave {found} instead of {expected}"
        figure(f"kill -9 of {victim}, {ROUNDS} times", f"{statistics.median(taken):.2f} s (aim 3)",
               f"{max(taken):.2f} s (aim 10)", f"{statistics.median(starting):.2f} s",
               f"{statistics.median(caught):.2f} s")  # fmt: skip
        middle = kills[taken.index(statistics.median_low(taken))]
        curves[f"kill -9 of {victim}"] = throughput(job.made, middle)
    draw(curves)


def throughput(made, killed, before=2.0, after=7.0, step=0.1):
    """Return millions of rows a second in steps around a kill, as (seconds since it, rate): two results are a row."""
    edges = np.arange(round(-before / step), round(after / step) + 1) * step
    at, rows = np.array([(m[0] - killed, m[2]) for m in made]).T
    counts, _ = np.histogram(at, edges, weights=rows)
    return [(float(edge), float(count)) for edge, count in zip(edges[:-1] + step / 2, counts / step / 2e6, strict=True)]


def draw(curves):
    """Save what a kill does to the rate."""
    title = f"Rows joined through a kill -9: {STATE >> 20} MB of windows, two workers"
    text = plots.lines(title, "seconds since the kill", "M rows/s, in steps of 100 ms", curves, log_x=False,
                       log_y=False)  # fmt: skip
    PLOT.write_text(text)
    print(f"  {PLOT.relative_to(PLOT.parents[1])} shows it")


# How fast a window is restored -------------------------------------------------------------------------------------


def restore(nbytes=1 << 30):
    """Bytes a second from the opening of a checkpoint until the run can go on, indexes and workers included."""
    print(f"restoring windows of {nbytes >> 20} MB, whose files the system has in memory")
    row("", "MB/s", "seconds", "files read", "workers started", "rows stored, indexed", "fresh memory alone")
    rows = rows_of(nbytes)
    for writer in (0, 2):
        with folder() as place:
            with opened(telling(dt.null(), 1 << 40, nbytes=nbytes), writer, place, 1.0, None, OPTIONS) as runner:
                read_until(runner, rows + (1 << 16))
                runner.checkpoint()
            number = newest(place)
            found = []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                flow = telling(dt.null(), 1 << 40, nbytes=nbytes)
                with timing(start) as spent, opened(flow, writer, place, 1e9, None, OPTIONS) as runner:
                    whole = time.perf_counter() - start
                    assert runner.keeper.number == number
                coming = spent["start"] + spent["greet"]
                rest = whole - spent["load"] - coming
                found.append((whole, spent["load"], coming, rest, touched(nbytes)))
        whole, *parts = (statistics.median(f[i] for f in found) for i in range(5))
        figure(PLACES[writer], f"{nbytes / whole / 1e6:.0f} (aim 300)", *(f"{part:.2f} s" for part in (whole, *parts)))


def touched(nbytes):
    """Seconds that it takes to be given so much memory, page by page: what anything that is restored must be put in."""
    start = time.perf_counter()
    with mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        np.frombuffer(memory, np.uint8)[::4096] = 1
        return time.perf_counter() - start


@contextlib.contextmanager
def timing(start):
    """Note how long reading a checkpoint takes, and waiting for workers before and after that."""
    from dovetail.engine.cells import Workers
    from dovetail.engine.keeper import Keeper

    methods = (Keeper, "load"), (Workers, "start"), (Workers, "greet")
    spent = {name: 0.0 for _, name in methods}
    before = {(kind, name): getattr(kind, name) for kind, name in methods}

    def timed(name, method):
        def call(*args):
            begun = time.perf_counter()
            try:
                return method(*args)
            finally:
                spent[name] += time.perf_counter() - begun

        return call

    try:
        for (kind, name), method in before.items():
            setattr(kind, name, timed(name, method))
        yield spent
    finally:
        for (kind, name), method in before.items():
            setattr(kind, name, method)


# Savepoints, and other numbers of workers --------------------------------------------------------------------------


def rescale():
    """A savepoint, 1 → 2 → 3 workers while it runs, and other layouts from the savepoint: the same results."""
    rows = 4 * rows_of(STATE)
    print(f"savepoints and other numbers of workers, {STATE >> 20} MB of windows")
    expected = undisturbed(rows)
    steps, options = {}, dt.Options(arena_bytes=2 << 30)
    for _ in range(ROUNDS):
        with folder() as place:

            def timed(what, act, *args, **more):
                start = time.perf_counter()
                found = act(*args, **more)
                steps.setdefault(what, []).append(time.perf_counter() - start)
                return found

            sink = dt.collect()
            job = telling(sink, rows).start(checkpoint=f"{place}/state", options=options)
            for share, what, act, asked in (
                (1.2, "a savepoint, while it runs", job.savepoint, f"{place}/saved"),
                (1.8, "from one worker to two", job.rescale, 2),
                (2.6, "from two to three", job.rescale, 3),
            ):
                while job.status().rows_in < 2 * share * rows_of(STATE):
                    time.sleep(0.02)
                timed(what, act, asked)
            assert job.wait().outcome == "finished"
            assert digest_of(sink) == expected, "results differ after other numbers of workers"
            for workers, layout in ((2, "range"), (3, "matrix")):
                sink = dt.collect()
                with warnings.catch_warnings(action="ignore", category=UserWarning):  # that cores are shared
                    again = telling(sink, rows, layout=layout)
                    begin = {"checkpoint": f"{place}/{layout}", "savepoint": f"{place}/saved"}
                    job = again.start(**begin, workers=workers, options=options)
                timed(f"begun with it, {workers} workers, {layout}", job.status)
                assert job.wait().outcome == "finished"
                assert digest_of(sink) == expected, f"results differ with layout {layout}"
    for what, taken in steps.items():
        figure(what, f"{statistics.median(taken):.2f} s", "results are the same")


TABLES = {"cost": cost, "size": size, "latency": latency, "kill": kill, "restore": restore, "rescale": rescale}


def speed(nbytes=STATE):
    """Bytes a second that the disk takes, made durable."""
    with tempfile.TemporaryFile(dir=FOLDER) as file:
        block = np.random.default_rng(0).bytes(1 << 24)
        start = time.perf_counter()
        for _ in range(nbytes >> 24):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return nbytes / (time.perf_counter() - start)


def main():
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
        return
    print(f"dovetail {dt.__version__}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.2f}; "
          f"the disk takes {speed() / 1e6:.0f} MB/s")  # fmt: skip
    for name in sys.argv[1:] or TABLES:
        TABLES[name]()


if __name__ == "__main__":
    main()
