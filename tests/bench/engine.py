"""What the engine costs when a join runs on several processes: `make bench-engine`.

Rates count rows of both inputs, from the first row read to the last result in the sink; starting processes is not in
them. Every comparison is of runs that take turns in one go; the median of `DOVETAIL_ROUNDS` (5). CPU time is that of
all processes together. `python -m tests.bench.engine join hop` runs some of it.
"""

import contextlib
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path

import dovetail as dt
import numpy as np
import pyarrow as pa
import zmq
from dovetail import left, right
from dovetail.engine import codec
from dovetail.engine.keeper import keeping
from dovetail.engine.parallel import CellMachine, Done, Head, Slice
from dovetail.engine.run import Runner
from dovetail.operators.access import SIDES, output_fields
from dovetail.operators.layouts import LAYOUTS, Layout
from dovetail.operators.numbering import Step
from dovetail.operators.sequencer import Merger, SourceOrder
from dovetail.operators.spread import best_shape, choose_layout, price
from dovetail.operators.times import TimeDomain
from dovetail.transport import Arena, Block, Channel, Reader, RunFolder

ROUNDS = int(os.environ.get("DOVETAIL_ROUNDS", "5"))
ROWS = 1 << 23
W = 1 << 20
SPAN = 1 << 40
KEYS = [np.random.default_rng(seed).integers(0, SPAN, ROWS) for seed in (1, 2)]


def row(what, *figures):
    print(f"  {what:<44}" + "".join(f"{figure:>22}" for figure in figures), flush=True)


# A band join, source to sink --------------------------------------------------------------------------------------


def band(matches=2.0, w=W, rows=ROWS, layout="auto", empty=False, batch_rows=1 << 16, sink=None):
    """A flow that joins two streams on a band; `empty`: a window of one row and keys that never meet."""
    flow = dt.Flow("bench")
    streams = []
    for side, keys in enumerate(KEYS):
        x = keys[:rows] if not empty else keys[:rows] + side * 4 * SPAN
        table = pa.table({"t": np.arange(rows), "x": x, "id": np.arange(rows)})
        streams.append(flow.read(dt.memory(table, batch_rows=batch_rows), name=f"s{side}", time="t"))
    on = (left.x - right.x).abs() <= int(matches / w * SPAN / 2)
    joined = streams[0].join(streams[1], on=on, window=dt.last(1 if empty else w), layout=layout, name="j")
    joined.select("id", "id_right").write(sink or dt.null())
    return flow


def run(flow, workers, options=None, checkpoint=None, every=1.0):
    """Run a flow; return (seconds, CPU seconds of this process, of the workers, rows out).

    `checkpoint`: a folder for one each `every` seconds; the last one is not in the times.
    """
    with kept(flow, checkpoint, every) as keeper:
        runner = Runner(flow.name, flow._sinks(), options or dt.Options(), 1.0, workers=workers, keeper=keeper)
        runner.open()
        pids = [each.process.pid for each in runner.workers.launcher.workers] if runner.workers else []
        before = [cpu_of(pid) for pid in pids]
        start, mine = time.perf_counter(), time.process_time()
        while not runner.finished():
            if not runner.round():
                runner.rest()
        taken, mine = time.perf_counter() - start, time.process_time() - mine
        theirs = sum(cpu_of(pid) for pid in pids) - sum(before)
        if keeper is None:
            runner.commit(last=True)
        else:
            runner.checkpoint(finished=True)
        out = runner.result("finished").steps["j"].rows_out
        runner.close(failed=False)
    return taken, mine, theirs, out


def kept(flow, checkpoint, every, disk=None):
    """Return what holds a folder of checkpoints for a run; without a folder, nothing."""
    if checkpoint is None:
        return contextlib.nullcontext()
    return keeping(flow.name, flow._sinks(), str(checkpoint), every, disk=disk)


def cpu_of(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def join():
    """Throughput, what part of it is the engine, and what workers gain."""
    cases = {
        "in one process": ({}, 0),
        "one worker process": ({}, 1),
        "two workers (copies)": ({}, 2),
        "two workers, layout range": ({"layout": "range"}, 2),
        "empty join, in one process": ({"empty": True}, 0),
        "empty join, two workers": ({"empty": True}, 2),
    }
    found = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, (settings, workers) in cases.items():
            found[name].append(run(band(**settings), workers))
    n = 2 * ROWS
    print(f"band join, w = 2^20, two matches a row, ids out; load {os.getloadavg()[0]:.1f}")
    row("", "M rows/s", "head, ns a row", "workers, ns a row")
    rate, total = {}, {}
    for name, runs in found.items():
        taken, head, workers = (statistics.median(r[i] for r in runs) for i in range(3))
        rate[name], total[name] = n / taken / 1e6, (head + workers) / n * 1e9
        row(name, f"{rate[name]:.2f}", f"{head / n * 1e9:.0f}", f"{workers / n * 1e9:.0f}")
    outs = {r[3] for name, runs in found.items() if not name.startswith("empty") for r in runs}
    assert len(outs) == 1, outs
    pairs = zip(found["one worker process"], found["two workers (copies)"], strict=True)
    ratio = [one[0] / two[0] for one, two in pairs]
    row("two workers / one worker process", f"{statistics.median(ratio):.2f}")
    with multiprocessing.get_context("spawn").Pool(2) as both:  # at once, as they are in a flow
        useful = sum(both.map(inside, range(2), chunksize=1))
    row(
        "insert, probe and gather, of all CPU time", f"{useful:.0f} ns", f"{useful / total['two workers (copies)']:.0%}"
    )


def found():
    """What one worker and two are worth when a row finds more."""
    print(f"band join, w = 2^20, ids out, by rows that a row finds; load {os.getloadavg()[0]:.1f}")
    row("", "in one process", "one worker process", "two workers", "two / one", "two: head, ns a row", "two: workers")
    for matches, rows in ((2, ROWS // 2), (8, ROWS // 2), (32, ROWS // 4)):
        runs = {workers: [] for workers in (0, 1, 2)}
        for _ in range(ROUNDS):
            for workers, each in runs.items():
                each.append(run(band(matches=matches, rows=rows), workers))
        rates = (f"{2 * rows / statistics.median(r[0] for r in each) / 1e6:.2f} M/s" for each in runs.values())
        ratio = statistics.median(one[0] / two[0] for one, two in zip(runs[1], runs[2], strict=True))
        spent = (f"{statistics.median(r[i] for r in runs[2]) / rows / 2 * 1e9:.0f}" for i in (1, 2))
        row(f"{matches} rows found", *rates, f"{ratio:.2f}", *spent)


def spec_of(matches=2.0, w=W, windows=None, on=None):
    schema = pa.schema([("t", pa.int64()), ("x", pa.int64()), ("id", pa.int64())])
    on = on if on is not None else (left.x - right.x).abs() <= int(matches / w * SPAN / 2)
    windows = windows or dt.last(w)
    return dt.WindowJoin(schema, schema, on=on, window=windows, left_time="t", right_time="t").spec


def inside(cell):
    """CPU nanoseconds a row that one of two cells spends in its index and in gathering."""
    spec = spec_of()
    layout = choose_layout(spec, 2, "auto")
    columns = [f.name for _, _, f in output_fields(spec) if f.name in ("id", "id_right")]
    machine = CellMachine(spec, columns, 65_536, layout, cell)
    spent = Counter()

    def timed(name, method):
        def call(*args):
            start = time.thread_time()
            try:
                return method(*args)
            finally:
                spent[name] += time.thread_time() - start

        return call

    class Index:
        def __init__(self, index):
            self.index = index
            self.insert, self.probe = timed("insert", index.insert), timed("probe", index.probe)

        def __getattr__(self, name):
            return getattr(self.index, name)

    for side in SIDES:
        machine.cell.stored[side].index = Index(machine.cell.stored[side].index)
        machine.cell.logs[side].gather = timed("gather", machine.cell.logs[side].gather)
    head = Head(spec, machine.cell.schema, 65_536, Layout("copies", "", 1), 4)  # it waits for this cell alone
    half, done = 1 << 15, 0
    for at in range(0, 3 * W, half):
        message = head.deal({side: step_of(i, at, half) for i, side in enumerate(SIDES)}, at)
        if at == W:
            spent.clear()
        done += 2 * half * (at >= W)
        for answer in machine.handle(message):
            if isinstance(answer, Done):
                head.take(0, answer)
        list(head.results())
    return sum(spent.values()) / done * 1e9


def step_of(side, at, rows):
    t = np.arange(at, at + rows)
    return Step([pa.record_batch({"t": t, "x": KEYS[side][at : at + rows], "id": t})], t)


def where():
    """Where the time of a batch goes, from the source's order to what the sink is given; two cells, each in turn."""
    spec = spec_of()
    layout = choose_layout(spec, 2, "auto")
    columns = [f.name for _, _, f in output_fields(spec) if f.name in ("id", "id_right")]
    machines = [CellMachine(spec, columns, 65_536, layout, i) for i in range(2)]
    head = Head(spec, machines[0].cell.schema, 65_536, layout, 4)
    encoding = codec.Codec(spec.schemas, machines[0].cell.schema)
    domain = TimeDomain(None)
    orders = [SourceOrder(side, "t", domain, 0, None) for side in SIDES]
    merger = Merger([domain, domain], domain, "bench")
    spent = Counter()

    @contextlib.contextmanager
    def taking(what):
        start = time.thread_time()
        yield
        spent[what] += time.thread_time() - start

    def sent(message):
        """Through the arena, as bytes."""
        with taking("written into shared memory"):
            kind, meta, parts = encoding.encode(message)
            parts = [channel.store(part, 1) for part in parts]
            places = [np.frombuffer(arena.view(p), np.uint8) if isinstance(p, Block) else np.asarray(p) for p in parts]
        with taking("read there"):
            return encoding.decode(kind, meta, places), parts

    with RunFolder() as folder:
        arena = Arena(folder.path, "near", 1 << 30)
        channel = Channel(zmq.Context.instance().socket(zmq.DEALER), job=1, generation=0, edge=0, arena=arena)
        windows, results, done, half = deque(), [], 0, 1 << 15
        for at in range(0, 3 * W, half):
            if at == W:
                spent.clear()
            done += 2 * half * (at >= W)
            with taking("put in order, and both inputs merged"):
                for side, order in enumerate(orders):
                    data = step_of(side, at, half).batches[0]
                    merger.put(side, order.take(data)[0])
                steps = dict(zip(SIDES, merger.release(), strict=True))
            with taking("numbered, windows as row bounds"):
                message = head.deal(steps, at)
            message, parts = sent(message)
            windows.append(parts)
            for number, machine in enumerate(machines):
                cell = machine.cell
                numbered = machine._numbered(message)
                with taking("cells: keys and ranges of keys"):
                    prepared = cell.prepare(message.batches, numbered)
                with taking("cells: stored in both indexes"):
                    turns = cell.store(message.batches, prepared, numbered)
                with taking("cells: found, and in the order of results"):
                    answers = list(cell.answers(turns))
                for answer in answers:
                    with taking("cells: columns gathered"):
                        [(data, part)] = cell.gather(answer)
                    back, parts = sent(Slice(message.number, part.upto, data, part.later, None))
                    with taking("collected"):
                        head.take(number, back)
                    results.append(parts)
                with taking("cells: forgotten"):
                    cell.expire(message.bounds)
                head.take(number, Done(message.number))
            with taking("collected"):
                list(head.results())
            over = [*results, *([windows.popleft()] if at >= W else [])]
            for part in (part for parts in over for part in parts if isinstance(part, Block)):
                arena.drop(part.segment, part.offset)
            results = []
    print("where the time of a batch goes, two workers; nanoseconds of CPU for each row of both inputs")
    for what, seconds in spent.items():
        row(what, f"{seconds / done * 1e9:.1f}")
    row("all", f"{sum(spent.values()) / done * 1e9:.1f}")


# A hop between two processes ---------------------------------------------------------------------------------------


def _far_end(address, folder, mode):
    """Receive messages: "take" them all and say so at the end, or "echo" each one."""
    socket = zmq.Context().socket(zmq.DEALER)
    socket.set_hwm(0)
    socket.connect(address)
    far = Channel(
        socket, job=1, generation=0, edge=0, arena=Arena(folder, "far", 1 << 26), reader=Reader(folder, "near")
    )
    far.send(1, {})
    while True:
        message = far.receive(None)
        if message.kind == 8:  # all before it have come
            far.send(8, {})
            continue
        if message.kind == 9:
            return
        if mode == "echo":
            far.send(2, {"rows": 1}, [np.asarray(part) for part in message.parts])
        else:
            total = sum(int(part[::4096].sum()) for part in message.parts)  # every page is looked at
            assert total >= 0
            del message
            far.give_back(3)


def hop():
    """Bytes and messages a second, and the time of one message, through a channel and an arena."""
    print(f"a hop between two processes; load {os.getloadavg()[0]:.1f}")
    large = pa.record_batch({f"c{i}": np.arange(65_536) + i for i in range(8)})
    rates, messages, times, bare = [], [], [], []
    for _ in range(ROUNDS):
        rates.append(_pump(large, 400))
        messages.append(_pump(pa.record_batch({"x": np.arange(4), "y": np.arange(4)}), 40_000))
        times += _ping(2000)
        bare += _bare_ping(2000)
    batch = large.nbytes
    row("batches of 65,536 rows", f"{statistics.median(rates) * batch / 1e9:.2f} GB/s", "aim 1.5")
    row("batches of 4 rows", f"{statistics.median(messages):,.0f} /s", "aim 30,000")
    for what, found, aim in (
        ("one way, one row", times, "aim p50 100"),
        ("the same, of ZeroMQ alone", bare, "control"),
    ):
        row(what, *(f"p{p} {np.percentile(found, p) * 1e6:.0f} µs" for p in (50, 99)), aim)


class _Ends:
    def __init__(self, mode):
        self.mode = mode

    def __enter__(self):
        self.folder = RunFolder()
        self.folder.__enter__()
        self.context = zmq.Context()
        socket = self.context.socket(zmq.DEALER)
        socket.set_hwm(0)
        address = f"ipc://{self.folder.path}/hop.sock"
        socket.bind(address)
        path = self.folder.path
        self.arena = Arena(path, "near", 1 << 28)
        self.near = Channel(socket, job=1, generation=0, edge=0, arena=self.arena, reader=Reader(path, "far"))
        spawn = multiprocessing.get_context("spawn")
        self.process = spawn.Process(target=_far_end, args=(address, path, self.mode))
        self.process.start()
        self.near.receive(30.0)
        return self.near

    def __exit__(self, *_):
        self.near.send(9, {})
        self.process.join()
        self.near.socket.close(0)
        self.context.destroy(0)
        self.folder.__exit__(None, None, None)


def _pump(batch, count):
    """Messages a second of one batch each, written into the arena like any other."""
    form = codec.Form(batch.schema)
    with _Ends("take") as near:
        start = None
        for number in range(count + count // 10):
            if number == count // 10:
                start = time.perf_counter()
            part = near.store(form.bytes_of(batch), 1)
            while near.arena.held > near.arena.limit * 0.7:
                near.receive(0.01)
            near.send(2, {"n": number}, [part])
            if number % 16 == 0:
                near.receive(0.0)
        near.send(8, {})
        while near.receive(30.0).kind != 8:
            pass
        taken = time.perf_counter() - start
    return count / taken


def _ping(count):
    """One-way times of a batch of one row: half of there and back."""
    one = pa.record_batch({"x": [1], "y": [2]})
    form, times = codec.Form(one.schema), []
    with _Ends("echo") as near:
        for _ in range(count):
            start = time.perf_counter()
            near.send(2, {"rows": 1}, [near.store(form.bytes_of(one), 1)])
            near.receive(30.0)
            times.append((time.perf_counter() - start) / 2)
    return times


def _bare_echo(address):
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(address)
    while data := socket.recv():
        socket.send(data)


def _bare_ping(count):
    """The same of 64 bytes through a ZeroMQ socket, without anything of ours: what this machine takes for a hop."""
    with RunFolder() as folder, zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        address = f"ipc://{folder.path}/bare.sock"
        socket.bind(address)
        process = multiprocessing.get_context("spawn").Process(target=_bare_echo, args=(address,))
        process.start()
        times = []
        for number in range(count + 100):
            start = time.perf_counter()
            socket.send(bytes(64))
            socket.recv()
            if number >= 100:
                times.append((time.perf_counter() - start) / 2)
        socket.send(b"")
        process.join()
    return times


# Latency of results ------------------------------------------------------------------------------------------------


def clocked(side, rate, rows, start=None, end=None):
    """A source whose rows are there when the clock says so; `at` is when. It can go on where it was.

    `start`: when the clock began; by default with the first read. `end`: a file that says after how many rows it ends,
    once there is such a file.
    """

    @dt.source
    class Clocked:
        schema = pa.schema([("t", pa.int64()), ("x", pa.int64()), ("id", pa.int64()), ("at", pa.float64())])

        def __init__(self):
            self.start, self.done = start, 0

        def position(self):
            return self.done

        def seek(self, position):
            self.done = position

        def read(self):
            now = time.perf_counter()
            self.start = now if self.start is None else self.start
            most = int(end.read_text()) if end is not None and end.exists() else rows
            there = min(int((now - self.start) * rate), most)
            if there <= self.done:
                return dt.END_OF_SOURCE if self.done >= most else None
            again, first = divmod(self.done, ROWS)  # keys come again, each time moved elsewhere
            count = min(there - self.done, 1 << 16, ROWS - first)
            t = np.arange(self.done, self.done + count)
            self.done += count
            keys = KEYS[side][first : first + count]
            if again:
                keys = (keys + again * (SPAN // 7 + 1)) % SPAN
            columns = [t, keys, t, self.start + (t + 1) / rate]
            return pa.record_batch(columns, schema=self.schema)

    return Clocked()


def joined(sources, *columns, w=W, layout="auto"):
    """Join two sources on a band, with two matches a row; return the flow, and these columns of the results."""
    flow = dt.Flow("bench")
    one, two = (flow.read(source, name=f"s{side}", time="t") for side, source in enumerate(sources))
    on = (left.x - right.x).abs() <= int(2 / w * SPAN / 2)
    return flow, one.join(two, on=on, window=dt.last(w), layout=layout, name="j").select(*columns)


def latency():
    """From the arrival of the row that made a result possible to the sink, at half of the greatest rate.

    Once windows are full: until then the kernel hands out memory for them, which stops a run for up to 0.1 s at a time.
    """
    print(f"latency of results; load {os.getloadavg()[0]:.1f}")
    row("", "M rows/s", "p50", "p99", "a sleeper's p99")
    for workers in (0, 2):
        most = 2 * (ROWS // 4) / min(run(band(rows=ROWS // 4), workers)[0] for _ in range(2))
        rate = most / 4  # of each side: half of the greatest in all
        waits, pauses = waited(rate, W / rate + 3.5, workers, settle=W / rate + 0.5)
        row(f"{workers} workers" if workers else "in one process", f"{2 * rate / 1e6:.1f}",
            f"{np.percentile(waits, 50) * 1e3:.1f} ms", f"{np.percentile(waits, 99) * 1e3:.1f} ms",
            f"{np.percentile(pauses, 99) * 1e3:.1f} ms")  # fmt: skip


def waited(rate, seconds, workers, *, w=W, settle=0.0, checkpoint=None):
    """Return how long each result took to the sink, and by how much a process that only sleeps overslept meanwhile.

    Results of rows that came in the first `settle` seconds are left out.
    """
    waits, first = [], []

    def seen(batch):
        now = time.perf_counter()  # of each eighth result, as to measure is no work of the engine's
        later = np.maximum(*(np.asarray(batch.column(name))[::8] for name in ("at", "at_right")))
        if len(later):
            first[:] = first or [later[0]]
            waits.append(now - later[later >= first[0] + settle])
        return batch

    flow, results = joined([clocked(side, rate, int(rate * seconds)) for side in (0, 1)], "at", "at_right", w=w)
    results.map(seen, results.schema).write(dt.null())
    with tempfile.NamedTemporaryFile() as told:
        sleeper = multiprocessing.get_context("spawn").Process(target=_sleeper, args=(seconds, told.name))
        sleeper.start()
        run(flow, workers, dt.Options(poll_seconds=0.0005), checkpoint)
        sleeper.join()
        pauses = np.fromfile(told.name)
    return np.concatenate(waits), pauses


def _sleeper(seconds, told):
    """Sleep for a millisecond, again and again; note how much longer it took."""
    pauses, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        time.sleep(0.001)
        pauses.append(time.perf_counter() - start - 0.001)
    np.array(pauses).tofile(told)


# A slow sink -------------------------------------------------------------------------------------------------------


def slow():
    """Memory of all processes while a sink takes what comes slowly, for 20 s."""
    print("a slow sink, 20 s")
    seen = []

    def sampled():
        pids = [os.getpid(), *(each.process.pid for each in runner.workers.launcher.workers)]
        return sum(rss(pid) for pid in pids) / 1e6, runner.workers.arena.held / 1e6

    def slowly(batch):
        time.sleep(0.05)
        seen.append((time.perf_counter(), *sampled()))

    flow = dt.Flow("bench")
    one, two = (
        flow.read(dt.memory(pa.table({"t": np.arange(ROWS // 2), "x": keys[: ROWS // 2]})), name=f"s{side}", time="t")
        for side, keys in enumerate(KEYS)
    )
    on = (left.x - right.x).abs() <= int(20 / W * SPAN / 2)
    joined = one.join(two, on=on, window=dt.last(W), name="j").select("x", "x_right")
    joined.map(lambda batch: slowly(batch) or batch, joined.schema).write(dt.null())
    runner = Runner(flow.name, flow._sinks(), dt.Options(), 1.0, workers=2)
    runner.open()
    start = time.perf_counter()
    while not runner.finished() and time.perf_counter() - start < 20:
        if not runner.round():
            runner.rest()
    runner.close(failed=True)
    full = [s for s in seen if s[0] - start > 8]  # windows are full
    row("results handed on", f"{len(seen) * 65_536 / 1e6:.0f} M")
    row("memory of all processes", f"{min(s[1] for s in full):.0f} MB", f"{max(s[1] for s in full):.0f} MB")
    row("shared memory held", f"{min(s[2] for s in full):.0f} MB", f"{max(s[2] for s in full):.0f} MB")


def rss(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


# Layouts, by what they do ------------------------------------------------------------------------------------------


def drive(spec, layout, steps, *, answers=True):
    """Run all cells of a layout; return what each stored, was asked and looked through, and their loads by step.

    Without `answers` nothing is looked up: on tied keys that would be billions of pairs.
    """
    columns = [f.name for _, _, f in output_fields(spec) if f.name in ("id", "id_right")]
    machines = [CellMachine(spec, columns, 65_536, layout, i) for i in range(layout.cells)]
    if not answers:
        for machine in machines:
            machine.cell.answers = lambda turns: iter(())
    head = Head(spec, machines[0].cell.schema, 65_536, layout, 4)
    stored, asked, looked = (np.zeros(layout.cells) for _ in range(3))
    loads = []
    for left_step, right_step in steps:
        message = head.deal({"left": left_step, "right": right_step}, -(2**62))
        load = np.zeros(layout.cells)
        for i, machine in enumerate(machines):
            store = machine.cell.store

            def counted(*args, i=i, store=store):
                turns = list(store(*args))
                halves = [half for probes in turns for half in probes]
                asks = sum(half.count for half in halves)
                asked[i] += asks
                stored[i] += machines[i].cell.load - asks
                looked[i] += sum(int((half.row_hi - half.row_lo).sum()) for half in halves)
                return turns

            machine.cell.store = counted
            for answer in machine.handle(message):
                if isinstance(answer, Done):
                    load[i] = answer.load
                head.take(i, answer)
            machine.cell.store = store
        list(head.results())
        loads.append(load)
    return stored, asked, looked, np.array(loads), head


def steps_of(keys, rates=(1, 1), rows=4096):
    """Steps of both streams, which come at these rates; times by which they interleave evenly."""
    at = [0, 0]
    while all(at[s] + rows * rates[s] <= len(keys[s]) for s in (0, 1)):
        step = []
        for s in (0, 1):
            n = rows * rates[s]
            number = np.arange(at[s], at[s] + n)
            t = number * (12 // rates[s])
            step.append(Step([pa.record_batch({"t": t, "x": keys[s][at[s] : at[s] + n], "id": number})], t))
            at[s] += n
        yield step


def shapes():
    """Eight cells: what each layout stores, asks and looks through, beside the model that chooses the shape."""
    n, w = 1 << 17, 1 << 14
    for title, rates, windows in (
        ("rates 1 : 1, windows 1 : 1", (1, 1), (w, w)),
        ("rates 1 : 3, windows 1 : 1", (1, 3), (w, w)),
        ("rates 1 : 3, windows 1 : 2", (1, 3), (w, 2 * w)),
    ):
        for matches in (1, 1000):
            keys = [KEYS[s][: n * rates[s] // 2] for s in (0, 1)]
            on = (left.x - right.x).abs() <= int(matches / w * SPAN / 2)
            spec = spec_of(on=on, windows=(dt.last(windows[0]), dt.last(windows[1])))
            chosen = best_shape(8, rates, windows)
            print(f"8 cells, {title}, about {matches:,} matches a row; the model chooses {chosen[0]} × {chosen[1]}")
            row("", "stored + asked", "model", "rows seen by an ask", "fullest / mean")
            layouts = [Layout("matrix", "", 8, m, 8 // m) for m in (1, 2, 4, 8)]
            layouts += [choose_layout(spec, 8, name) for name in ("range", "chain", "copies")]
            for layout in layouts:
                stored, asked, looked, loads, _ = drive(spec, layout, steps_of(keys, rates))
                total = sum(len(k) for k in keys)
                model = ""
                if layout.name == "matrix":
                    parts = [len(keys[0]) * layout.columns, len(keys[1]) * layout.rows]
                    model = f"{2 * sum(parts) / total:.2f}"
                settled = loads[len(loads) // 2 :].sum(axis=0)
                row(layout.describe(), f"{(stored.sum() + asked.sum()) / total:.2f}", model,
                    f"{looked.sum() / asked.sum():,.0f}", f"{settled.max() / settled.mean():.2f}")  # fmt: skip


def balance():
    """The fuller cell of `range` on keys that pile up, and on keys that drift."""
    rng = np.random.default_rng(3)
    n, w = 1 << 21, 1 << 16
    kinds = {
        "uniform": lambda: rng.random(n),
        "zipf 1.5": lambda: np.minimum(rng.zipf(1.5, n), 2**40) / 2**40,
        "gaussian, drifting by 8 deviations": lambda: rng.normal(0, 0.125, n) + np.linspace(0, 1, n),
    }
    print("layout range: rows stored and asks of the fullest cell over the mean, after the first tenth")
    row("", "2 cells", "4 cells", "8 cells", "moves of splitters")
    for kind, draw in kinds.items():
        keys = [(draw() * SPAN).astype(np.int64) for _ in range(2)]
        spec = spec_of(on=(left.x - right.x).abs() <= 3, w=w)
        found, moves = [], 0
        for cells in (2, 4, 8):
            *_, loads, head = drive(
                spec, choose_layout(spec, cells, "range"), steps_of(keys, rows=1 << 15), answers=False
            )
            settled = loads[len(loads) // 10 :].sum(axis=0)
            found.append(f"{settled.max() / settled.mean():.2f}")
            moves = head.balance.moves
        row(kind, *found, moves)


# What each layout costs ---------------------------------------------------------------------------------------------


def kinds():
    """Yield (name, predicate, index, window, rows of each side) of joins that find about two rows a row."""
    w, rows = 1 << 16, 1 << 20
    part = (2 / w) ** 0.5  # of the rows, for each of two inequalities; x - y of two even numbers is above it so often:
    side = int((1 - (2 * part) ** 0.5) * SPAN)
    yield "a band", (left.x - right.x).abs() <= SPAN // w, "auto", w, rows
    yield "keys of two rows", left.k == right.k, "auto", w, rows
    both = [left.group == right.group, (left.x - right.x).abs() <= SPAN // 64]
    yield "keys of 64 rows, a band", both, "auto", w, rows
    yield "two inequalities", [left.x > right.x + side, left.y < right.y - side], "auto", w, rows // 4
    yield "a band, scanned", (left.x - right.x).abs() <= SPAN // 4096, "nested", 4096, rows // 4


def spread():
    """Two workers: what each layout costs beside what the model says, and which one `auto` takes."""
    print(f"two workers, two matches a row; ns a row of both inputs, by the clock; load {os.getloadavg()[0]:.1f}")
    row("", "layout", "ns", "the model", "this process, CPU", "the model", "workers, CPU", "the model")
    cores = len(os.sched_getaffinity(0))
    rng = np.random.default_rng(5)
    for name, on, index, w, rows in kinds():
        tables = [
            pa.table({"t": np.arange(rows), "k": rng.integers(0, w // 2, rows), "id": np.arange(rows),
                      "group": rng.integers(0, 1024, rows),
                      **{key: rng.integers(0, SPAN, rows) for key in "xy"}})
            for _ in SIDES
        ]  # fmt: skip

        def flow_of(layout, on=on, index=index, w=w, tables=tables):
            flow = dt.Flow("bench")
            sources = [dt.memory(table, batch_rows=1 << 16) for table in tables]
            one, two = (flow.read(source, name=f"s{i}", time="t") for i, source in enumerate(sources))
            joined = one.join(two, on=on, window=dt.last(w), index=index, layout=layout, name="j")
            joined.select("id", "id_right").write(dt.null())
            return flow

        layouts = []
        for layout in LAYOUTS:
            with contextlib.suppress(dt.FlowError):
                flow_of(layout)
                layouts.append(layout)
        found = {layout: [] for layout in layouts if layout not in ("auto", "shared")}
        for _ in range(ROUNDS):
            for layout, runs in found.items():
                runs.append(run(flow_of(layout), 2))
        assert len({each[3] for runs in found.values() for each in runs}) == 1
        for layout, runs in found.items():
            taken, head, workers = (statistics.median(r[i] for r in runs) / rows / 2 * 1e9 for i in range(3))
            spec = flow_of(layout)._sinks()[0].inputs[0].inputs[0].spec
            model = price(spec, choose_layout(spec, 2, layout))
            row(name, layout, f"{taken:.0f}", f"{model.nanoseconds(cores):.0f}", f"{head:.0f}", f"{model.head:.0f}",
                f"{workers:.0f}", f"{2 * model.cell:.0f}")  # fmt: skip


TABLES = {
    "join": join,
    "found": found,
    "where": where,
    "hop": hop,
    "latency": latency,
    "slow": slow,
    "shapes": shapes,
    "balance": balance,
    "spread": spread,
}


def main(tables):
    """Run the tables that the command names, or all."""
    print(f"dovetail {dt.__version__}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.2f}")
    for name in sys.argv[1:] or tables:
        tables[name]()


if __name__ == "__main__":
    main(TABLES)
