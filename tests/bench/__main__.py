"""What the first version promises to be fast, measured: `make bench`.

Each figure is a ratio to a reference that runs beside it, in turn, in this process; the median of several rounds.
Absolute rates are printed too, and mean little on a machine that others use. `python -m tests.bench gather push`
runs some of them.
"""

import os
import statistics
import sys
import time

import dovetail as dt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from dovetail import left, right
from dovetail.operators.access import JoinSpec
from dovetail.operators.join import JoinDriver
from dovetail.operators.numbering import Step
from dovetail.operators.sequencer import Merger
from dovetail.operators.times import TimeDomain
from dovetail.state import WindowLog, _native

ROUNDS = int(os.environ.get("DOVETAIL_ROUNDS", "7"))
rng = np.random.default_rng(20260)


def seconds(*functions, rounds=ROUNDS):
    """Run the functions in turn, several times; return the median seconds of each (the first round warms up)."""
    taken = [[] for _ in functions]
    for _ in range(rounds + 1):
        for mine, function in zip(taken, functions, strict=True):
            start = time.perf_counter()
            function()
            mine.append(time.perf_counter() - start)
    return [statistics.median(mine[1:]) for mine in taken]


def row(what, figure, aim, against=""):
    print(f"  {what:<62} {figure:>16}   {aim:<24} {against}")


def sequencer():
    """Merging two time-ordered inputs and computing both sides' row bounds, as it stands before every join."""
    from dovetail.batch import Batch

    rows, batch = 4_000_000, 65_536
    times = [np.sort(rng.integers(0, 10**10, rows)) for _ in range(2)]
    data = pa.record_batch({"x": np.zeros(batch)})
    domain = TimeDomain(None)
    for name, windows in (
        ("count", [_native.Window("count", 1_000_000)] * 2),
        ("count, slides", [_native.Window("count", 1_000_000, 100_000)] * 2),
        ("time", [_native.Window("time", 10**9)] * 2),
        ("time, slides", [_native.Window("time", 10**9, 10**8)] * 2),
    ):

        def ours(windows=windows):
            merger = Merger([domain, domain], domain, "bench")
            retained = [_native.RowTimes(), _native.RowTimes()]
            first = [0, 0]
            for at in range(0, rows, batch):
                for side in (0, 1):
                    piece = times[side][at : at + batch]
                    merger.put(side, Batch(data.slice(0, len(piece)), piece, int(piece[-1])))
                a, b = (step.times for step in merger.release())
                if windows[0].kind == "time":
                    retained[0].append(a)
                    retained[1].append(b)
                _native.row_bounds(a, b, first[1], False, windows[1], retained[1])
                _native.row_bounds(b, a, first[0], True, windows[0], retained[0])
                first = [first[0] + len(a), first[1] + len(b)]
                for side, own in ((0, a), (1, b)):
                    last = int(own[-1]) if len(own) else None
                    retained[side].expire(_native.expiry_bound(windows[side], first[side], last, retained[side]))

        def reference():
            np.argsort(np.concatenate(times), kind="stable")

        mine, sort = seconds(ours, reference, rounds=3)
        rate = 2 * rows / mine / 1e6
        row(
            f"sequencer, {name} window",
            f"{rate:,.0f} M rows/s",
            "aim 40 M rows/s",
            f"{sort / mine:.1f} × numpy's merge by argsort",
        )


def filter_select():
    """A flow of filter and select over three columns."""
    rows = 8_000_000
    table = pa.table({"a": rng.integers(0, 100, rows), "b": rng.random(rows), "c": rng.integers(0, 10**6, rows)})

    def ours():
        flow = dt.Flow("bench")
        s = flow.read(dt.memory(table, batch_rows=65_536)).filter(dt.col("a") < 50).select("a", "b", "c")
        s.write(dt.null())
        flow.run()

    def reference():
        for batch in table.to_batches(65_536):
            batch.filter(pc.less(batch.column(0), 50)).select(["a", "b", "c"])

    mine, arrow = seconds(ours, reference)
    row(
        "filter + select of 3 columns, 64k-row batches",
        f"{rows / mine / 1e6:,.0f} M rows/s",
        "aim 30 M rows/s",
        f"{arrow / mine:.2f} × pyarrow by hand",
    )


def nested():
    """The scan against the loop that one writes in numpy, a probe at a time."""
    w, probes = 1024, 4096
    schema = pa.schema([("x", pa.int64())])
    kept = rng.integers(0, 10**6, w)
    asked = rng.integers(0, 10**6, probes)
    stored, new = pa.record_batch({"x": kept}, schema=schema), pa.record_batch({"x": asked}, schema=schema)

    def ours():
        join = dt.WindowJoin(
            schema, schema, on=(left.x - right.x).abs() <= 1000, window=(dt.last(1), dt.last(w)), index="nested"
        )
        join.push(right=stored)
        start = time.perf_counter()
        found = join.push(left=new)
        ours.took = time.perf_counter() - start
        return found.num_rows

    def reference():
        found = 0
        for x in asked:
            found += len(np.flatnonzero(np.abs(kept - x) <= 1000))
        return found

    assert ours() == reference()
    mine, loops = [], []
    for _ in range(ROUNDS):
        ours()
        mine.append(ours.took)
        loops += seconds(reference, rounds=1)
    a, b = statistics.median(mine), statistics.median(loops)
    row(
        f"nested, w = {w:,}, a push of {probes:,} rows, results included",
        f"{a / probes * 1e9:,.0f} ns a probe",
        "aim 10 × numpy",
        f"{b / a:.1f} × numpy's {b / probes * 1e9:,.0f} ns",
    )


def push():
    """What a push costs besides its rows."""
    schema = pa.schema([("ts", pa.int64()), ("x", pa.float64()), ("k", pa.string())])
    count = 2000
    for index in ("nested", "carousel", "hash"):
        on = left.k == right.k if index == "hash" else on_band()
        join = dt.WindowJoin(
            schema, schema, on=on, window=dt.last(10_000), left_time="ts", right_time="ts", index=index
        )
        rows = [pa.record_batch([[i], [float(i)], [f"k{i}"]], schema=schema) for i in range(4 * count)]
        costs = []
        for at in range(0, len(rows), 2 * count // 2):
            start = time.perf_counter()
            for batch in rows[at : at + count]:
                join.push(left=batch)
            costs.append((time.perf_counter() - start) / count)
        empty = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(count):
                join.push()
            empty.append((time.perf_counter() - start) / count)
        start = time.perf_counter()
        for batch in rows[:count]:
            batch.filter(pc.greater(batch.column(1), -1.0))
        unit = (time.perf_counter() - start) / count
        row(
            f"a push of one row, {index}",
            f"{statistics.median(costs) * 1e6:,.0f} µs",
            "aim 100 µs",
            f"{statistics.median(costs) / unit:.1f} × one pyarrow filter",
        )
        row(f"a push of nothing, {index}", f"{statistics.median(empty) * 1e6:,.0f} µs", "aim 100 µs")

    matching = {
        "a float band": on_band(),
        "an integer band": (left.ts - right.ts).abs() <= 0,
        "an equality of texts": left.k == right.k,
    }
    for what, on in matching.items():
        join = dt.WindowJoin(schema, schema, on=on, window=dt.last(10_000), left_time="ts", right_time="ts")
        rows, costs = [pa.record_batch([[i], [float(i)], [f"k{i}"]], schema=schema) for i in range(4 * count)], []
        for at in range(0, len(rows), count):
            taken = 0.0
            for batch in rows[at : at + count]:
                join.push(left=batch)
                start = time.perf_counter()
                found = join.push(right=batch)
                taken += time.perf_counter() - start
                assert found.num_rows == 1
            costs.append(taken / count)
        row(
            f"a push of one row with one match of six columns, {what}",
            f"{statistics.median(costs) * 1e6:,.0f} µs",
            "aim 100 µs",
            f"{statistics.median(costs) / unit:.1f} × one pyarrow filter",
        )


def on_band():
    return (left.x - right.x).abs() <= 0.001


def gather():
    """Payload columns of results, out of a window of many batches, against `take` on one table."""
    window, results, columns = 1_000_000, 2_000_000, 8
    names = [f"c{i}" for i in range(columns)]
    table = pa.table({name: rng.random(window) for name in names})
    indices = np.sort(rng.integers(0, window, results)) + rng.integers(-500, 500, results)
    spread = np.clip(indices, 0, window - 1)
    uniform = rng.integers(0, window, results)
    log = WindowLog(table.schema)
    for batch in table.to_batches(65_536):
        log.append(batch)
    whole = table.combine_chunks().to_batches()[0]
    for name, rows in (("at random", uniform), ("near each other", spread)):
        taken = pa.array(rows)
        ours, arrow = seconds(lambda rows=rows: log.gather(range(columns), rows), lambda taken=taken: whole.take(taken))
        row(
            f"gather {columns} columns of {results / 1e6:.0f} M results, rows {name}",
            f"{results / ours / 1e6:,.0f} M rows/s",
            "aim 60 % of take",
            f"{100 * arrow / ours:.0f} % of pyarrow take",
        )

    schema = table.schema
    wanted = JoinSpec.check(
        "bench", {"left": schema, "right": schema}, left.c0 < right.c0, dt.last(10), {"left": None, "right": None}
    )
    driver = JoinDriver(wanted, ["c1"])
    held = sorted({name for log in driver.cell.logs.values() for name in log.schema.names})
    row("columns that a window keeps when `select` asks for one", ", ".join(held), "aim: the one")


def memory():
    """A window that moved fifty times its length holds what it held after the first."""
    schema = pa.schema([("ts", pa.int64()), ("x", pa.float64()), ("k", pa.int64())])
    w, batch = 100_000, 10_000
    for index, on in (
        ("nested", left.x < right.x - 2),
        ("carousel", (left.x - right.x).abs() <= 1e-7),
        ("hash", left.k == right.k),
    ):
        driver = JoinDriver(
            JoinSpec.check(
                "bench",
                {"left": schema, "right": schema},
                on,
                dt.last(w),
                dict.fromkeys(("left", "right"), TimeDomain(None)),
                index=index,
            )
        )
        held, resident = [], []
        for at in range(0, 50 * w, batch):
            sides = [
                Step(
                    (
                        pa.record_batch(
                            [np.arange(at, at + batch), rng.random(batch), rng.integers(0, 2**60, batch)], schema=schema
                        ),
                    ),
                    np.arange(at, at + batch),
                )
                for _ in range(2)
            ]
            if index == "nested":
                sides[1] = Step((sides[1].batches[0].slice(0, 50),), sides[1].times[:50])
            for _ in driver.step(*sides):
                pass
            if at >= 2 * w:
                held.append(driver.nbytes)
                resident.append(rss())
        row(
            f"memory while a window moves 50 times, {index}",
            f"{max(held) / min(held):.2f} × least",
            "aim: flat",
            f"{max(held) / 1e6:.1f} MB held; resident {max(resident) / resident[0]:.2f} × the first",
        )


def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


BENCHES = [sequencer, filter_select, nested, push, gather, memory]


def main(names):
    print(
        f"dovetail {dt.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, "
        f"scan on {_native.instructions()}"
    )
    for bench in BENCHES:
        if not names or bench.__name__ in names:
            print(f"{bench.__name__}: {bench.__doc__.splitlines()[0]}")
            bench()


main(sys.argv[1:])
