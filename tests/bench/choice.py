"""Joins on several inequalities, and which index serves them: `make bench-choice`.

`several`: one window of a million rows, of which every index has the same ones; what a probe takes with the pairs in
order, and without its mutable part where there is one to leave out. `joins`: whole joins over windows of 100,000 and of
a million rows that move on by tenths, fed as users feed them. `python -m tests.bench.choice several` runs one of them.

What is compared must find the same pairs: each round counts them.
"""

import argparse
import ctypes
import os
import pathlib
import statistics
import time

import dovetail as dt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from dovetail import left, right
from dovetail.state import _native

from . import plots
from .compiled import ROOT, compiled

ROUNDS = int(os.environ.get("DOVETAIL_ROUNDS", "5"))
W = 1_000_000
HALF = W // 20  # of a slide of po_join's: its mutable part is half full when it is probed
TAXI = pathlib.Path(os.environ.get("DOVETAIL_TAXI", "nyc_taxi_2018_2019.parquet"))


def row(*cells):
    print("  " + "  ".join(f"{cell:<28}" if i == 0 else f"{cell:>16}" for i, cell in enumerate(cells)), flush=True)


def draw(name, title, x, y, curves, bold):
    """Save a plot for docs/."""
    path = ROOT / "docs" / f"{name}.svg"
    path.write_text(plots.lines(title, x, y, curves, bold=(bold,)))
    print(f"  docs/{path.name} shows it")


# One window -------------------------------------------------------------------------------------------------------


def window(kind, rng):
    """Two keys of each row of a window, and of what is asked: a < x and b > y."""
    a = rng.random(W + HALF)
    b = rng.random(W + HALF) if kind == "independent" else np.clip(a + rng.normal(0, 0.0005, W + HALF), 0, 1)
    return a, b


CASES = [
    ("independent", 9e-6), ("independent", 1e-3), ("independent", 0.02), ("independent", 0.25), ("opposed", None),
]  # fmt: skip
"""Keys, and the part of all rows that is found. Opposed: each comparison holds for half of the rows, both for few."""


def questions(kind, part, rng, count):
    if part is None:
        x = rng.uniform(0.45, 0.55, count)
        return x, x
    x = np.sqrt(part) * rng.uniform(0.9, 1.1, count)
    return x, 1 - np.sqrt(part) * rng.uniform(0.9, 1.1, count)


class Scan:
    """All rows, eight at a time."""

    def __init__(self):
        self.columns = [_native.RowKeys(), _native.RowKeys()]

    def insert(self, keys, rows):
        for column, values in zip(self.columns, keys, strict=True):
            column.append(values)

    def expire(self, before):
        for column in self.columns:
            column.expire(before)

    def probe(self, lo, hi, *rest):
        return _native.scan_rows(self.columns, lo, hi, *rest)


STRUCTURES = {
    "scan": Scan,
    "B+-trees, bits": lambda: _native.BoxIndex("po_join", 2, {"least": 2**31}),
    "B+-trees, set": lambda: _native.BoxIndex("po_join", 2, {"least": 2**31, "hash": 1}),
    "po_join": lambda: _native.BoxIndex("po_join", 2),
    "po_join, all sealed": lambda: _native.BoxIndex("po_join", 2, {"least": 1024, "slides": 1000}),
    "zone_map": lambda: _native.BoxIndex("zone_map", 2),
}
LOOSE = ", any order"
"""Behind the name of a structure: what it finds need not be in the order of rows (`ordered=False`)."""
SLOW = {"scan": 8, "B+-trees, bits": 2, "B+-trees, set": 40}
"""How much fewer probes are asked of what takes so much longer."""


def filled(make, keys):
    index = make()
    for at in range(0, W + HALF, 10_000):
        some = slice(at, at + 10_000)
        index.insert([key[some] for key in keys], np.arange(at, at + len(keys[0][some])))
    index.expire(HALF)
    return index


def ask(index, lo, hi, count, clock=time.process_time, *more):
    """Probe, as a join does: so many pairs at a time. Return seconds a probe, and how many pairs there were."""
    row_lo, row_hi = np.full(count, HALF), np.full(count, W + HALF)
    lo, hi = ([bound[:count] for bound in bounds] for bounds in (lo, hi))
    at = pairs = 0
    start = clock()
    while at < count:
        _, rows, at = index.probe(lo, hi, row_lo, row_hi, at, count, 32_768, *more)
        pairs += len(rows)
    return (clock() - start) / count, pairs / count


def several():
    """µs of CPU a probe, pairs in order where nothing else is said."""
    print(f"a < x and b > y over {W:,} rows; µs a probe, pairs written in order; load {os.getloadavg()[0]:.1f}")
    row("", *[f"{kind[:4]} {part or ''}" for kind, part in CASES])
    rng = np.random.default_rng(7)
    windows = {kind: [_native.keys_of(key) for key in window(kind, rng)] for kind in ("independent", "opposed")}
    names = [*STRUCTURES, "po_join" + LOOSE, "zone_map" + LOOSE]
    spent = {name: [] for name in names}
    found = {}
    for kind, part in CASES:
        built = {name: filled(make, windows[kind]) for name, make in STRUCTURES.items()}
        results = W * (part or 1e-3)
        count = int(np.clip(4e6 / results, 24, 4000))
        x, y = questions(kind, part, rng, count)
        low, high = np.full(count, -np.inf), np.full(count, np.inf)
        lo, hi = ([_native.keys_of(v) for v in bounds] for bounds in ((low, y), (x, high)))
        times = {name: [] for name in names}
        for _ in range(ROUNDS):
            for name in names:
                index = built[name.removesuffix(LOOSE)]
                ask(index, lo, hi, 1)  # what the one before has left of the heap is not this one's
                slow = results < 2000 and not name.startswith("zone_map")
                few = max(12, count // SLOW.get(name, 1) // (20 if slow else 1))
                seconds, pairs = ask(index, lo, hi, min(few, count), time.process_time, *[False] * name.endswith(LOOSE))
                times[name].append(seconds)
                found.setdefault((kind, part, min(few, count)), pairs)
                assert found[kind, part, min(few, count)] == pairs, name
        for name, all_times in times.items():
            spent[name].append(statistics.median(all_times))
    for name, seconds in spent.items():
        row(name, *[f"{each * 1e6:,.2f}" for each in seconds])
    compared = (
        ("B+-trees, bits", "po_join"), ("B+-trees, set", "po_join"), ("po_join", "zone_map"),
        ("po_join, all sealed", "zone_map"), ("po_join" + LOOSE, "zone_map" + LOOSE),
    )  # fmt: skip
    for name, other in compared:
        row(f"{name} / {other}", *[f"{a / b:.1f}" for a, b in zip(spent[name], spent[other], strict=True)])
    pairs = [found[max(k for k in found if k[:2] == case)] for case in CASES]
    row("pairs a probe", *[f"{each:,.0f}" for each in pairs])
    curves = {
        name: [(n, each * 1e6) for n, each, (kind, _) in zip(pairs, seconds, CASES, strict=True) if kind != "opposed"]
        for name, seconds in spent.items()
    }
    draw("several-ranges", "a &lt; x and b &gt; y over a million rows", "pairs found", "µs a probe", curves, "zone_map")


# Whole joins ------------------------------------------------------------------------------------------------------


def trips():
    """Trips, real ones if there is the file."""
    if TAXI.exists():
        table = pq.read_table(TAXI, columns=["trip_distance", "fare_amount"])
        return table.filter(pa.compute.greater(table["trip_distance"], 0)), "trips of New York"
    rng = np.random.default_rng(7)
    distance = rng.gamma(1.2, 2.5, 400_000).round(2)
    fare = 2.5 + 2.5 * distance + rng.gamma(1.0, 3.0, 400_000)
    return pa.table({"trip_distance": distance, "fare_amount": fare.round(2)}), "made-up trips"


def racks(rows, seed):
    rng = np.random.default_rng(seed)
    load = rng.gamma(4.0, 25.0, rows)
    return pa.table({"rack": load, "cooling": load * 0.4 + rng.gamma(2.0, 6.0, rows)})


def joined(index, on, window, sides, warm, counted):
    """Rows a second of both inputs of a join whose window is full, and its pairs."""
    schema = sides[0].schema
    join = dt.WindowJoin(schema, sides[1].schema if len(sides) > 1 else None, on=on, window=window, index=index)
    cut = 10_000
    seconds = rows = pairs = 0
    for at in range(0, warm + counted, cut):
        batches = [side.slice(at, cut).combine_chunks().to_batches()[0] for side in sides]
        if at < warm:  # only stored: nothing is below any of these
            for _ in join.push(**dict(zip(("left", "right"), batches, strict=False)), max_rows=65_536):
                pass
            continue
        start = time.process_time()
        for found in join.push(**dict(zip(("left", "right"), batches, strict=False)), max_rows=65_536):
            pairs += found.num_rows
        seconds += time.process_time() - start
        rows += sum(batch.num_rows for batch in batches)
    return rows / seconds, pairs / rows


def joins():
    """Rows a second of CPU, and pairs a row."""
    print(f"whole joins; rows of both inputs a second of CPU; load {os.getloadavg()[0]:.1f}")
    table, what = trips()
    q2 = [left.trip_distance > right.trip_distance + 8, left.fare_amount < right.fare_amount - 3]
    q1 = [left.rack < right.rack - 60, left.cooling > right.cooling + 15]
    row("", "rows a window", "nested", "po_join", "zone_map", "pairs a row")
    for size in (100_000, 200_000):
        for name, on, sides in ((f"Q2, {what}", q2, [table]), ("Q1, racks", q1, [racks(400_000, s) for s in (1, 2)])):
            rates, each = [], set()
            for index in ("nested", "po_join", "zone_map"):
                rate, pairs = joined(index, on, dt.last(size, slide=size // 10), sides, size, 20_000)
                rates.append(rate)
                each.add(pairs)
            assert len(each) == 1
            row(name, f"{size:,}", *[f"{rate:,.0f}" for rate in rates], f"{each.pop():.1f}")


# The joins of SPO-Join's paper, and what it compares itself with ----------------------------------------------------

CUT = 1000  # rows that are stored, and then asked for, at once


class Css:
    """The paper's other structures (css.cc), as the index of one side."""

    def __init__(self, slide, by_hash):
        self.native = css()
        self.join = self.native.css_open(by_hash, slide)

    def __del__(self):
        self.native.css_close(self.join)

    def insert(self, keys, first, before):
        rows = np.arange(first, first + len(keys[0]))
        return self.native.css_insert(self.join, *(a.ctypes.data for a in (*keys, rows)), len(rows), before)

    def probe(self, lo, hi, row_lo, row_hi):
        found = np.zeros(2, np.int64)
        ends = [(ctypes.c_void_p * 2)(*(bound.ctypes.data for bound in bounds)) for bounds in (lo, hi)]
        seconds = self.native.css_probe(
            self.join, *ends, row_lo.ctypes.data, row_hi.ctypes.data, len(row_lo), found.ctypes.data
        )
        return seconds, *found.tolist()


class Ours:
    """An index of the package's, with the same methods."""

    def __init__(self, name, settings):
        self.index = _native.BoxIndex(name, 2, settings)

    def insert(self, keys, first, before):
        start = time.process_time()
        self.index.insert(keys, np.arange(first, first + len(keys[0])))
        self.index.expire(before)
        return time.process_time() - start

    def probe(self, lo, hi, row_lo, row_hi):
        at = pairs = total = 0
        seconds = 0.0
        while at < len(row_lo):
            start = time.process_time()
            _, rows, at = self.index.probe(lo, hi, row_lo, row_hi, at, len(row_lo), 1 << 20)
            seconds += time.process_time() - start
            pairs += len(rows)
            total += int(rows.sum())
        return seconds, pairs, total


def css():
    """Compile the paper's other structures beside the package's."""
    found = compiled("css")
    found.css_open.restype, found.css_open.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_int64]
    found.css_close.argtypes = [ctypes.c_void_p]
    found.css_insert.restype = found.css_probe.restype = ctypes.c_double
    found.css_insert.argtypes = [*[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64]
    found.css_probe.argtypes = [*[ctypes.c_void_p] * 5, ctypes.c_int64, ctypes.c_void_p]
    return found


def above(keys):
    """Ranges of what is greater than these."""
    return keys + np.uint64(1), np.full(len(keys), (1 << 64) - 1, np.uint64)


def below(keys):
    """Ranges of what is less than these."""
    return np.zeros(len(keys), np.uint64), keys - np.uint64(1)


QUESTIONS = {
    # Keys of a stored row; what a new tuple asks of them, once or, of a stream that is joined to itself, in both roles.
    "Q1": lambda keys: [(above(keys[0]), below(keys[1]))],
    "Q2": lambda keys: [(below(keys[0]), above(keys[1])), (above(keys[0]), below(keys[1]))],
}


def rate(index, asked, stored, asking, window, steps):
    """Tuples a second of CPU, each stored and asking once, in a window that is full; and what was found."""
    for first in range(0, window, 10_000):
        index.insert([key[first : first + 10_000] for key in stored], first, 0)
    seconds, found = 0.0, (0, 0)
    for first in range(window, window + steps * CUT, CUT):
        seconds += index.insert([key[first : first + CUT] for key in stored], first, first - window)
        row_hi = np.arange(first, first + CUT)  # those before it
        for ends in QUESTIONS[asked]([key[first : first + CUT] for key in asking]):
            lo, hi = ([end[i] for end in ends] for i in (0, 1))
            took, *more = index.probe(lo, hi, row_hi - window, row_hi)
            seconds += took
            found = tuple(map(sum, zip(found, more, strict=True)))
    return steps * CUT / seconds, found


def spo():
    """Tuples a second of CPU of the paper's two joins, on its structures and on those here."""
    table, what = trips()
    print(f"SPO-Join's Q1 (racks) and Q2 ({what}); tuples a second of CPU; load {os.getloadavg()[0]:.1f}")
    names = ("CSS, set", "CSS, bits", "po_join", "zone_map", "po / set", "po / bits", "zone / po", "pairs")
    row("", "rows a window", *names)
    rng = np.random.default_rng(11)
    for asked in QUESTIONS:
        for window in (100_000, 300_000, 1_000_000):
            steps = 3
            rows = window + steps * CUT
            if asked == "Q2":
                some = table.take(pa.array(rng.integers(0, len(table), rows)))
                stored = asking = [_native.keys_of(some[name].to_numpy()) for name in ("trip_distance", "fare_amount")]
            else:
                sides = [racks(rows, seed) for seed in (1, 2)]
                stored, asking = ([_native.keys_of(t[name].to_numpy()) for name in ("rack", "cooling")] for t in sides)
            slide = window // 10
            sealed = {"slides": 10, "least": slide}
            makers = {
                "set": lambda s=slide: Css(s, True), "bits": lambda s=slide: Css(s, False),
                "po": lambda s=sealed: Ours("po_join", s), "zone": lambda: Ours("zone_map", {}),
            }  # fmt: skip
            rates, found = {name: [] for name in makers}, set()
            for number in range(3):
                for name, make in makers.items():
                    if name == "set" and number:
                        continue  # it takes a hundred times as long, so it goes once, and fewer ask
                    each, pairs = rate(make(), asked, stored, asking, window, steps if name != "set" else 1)
                    rates[name].append(each)
                    if name != "set":
                        found.add(pairs)
            assert len(found) == 1
            middle = {name: statistics.median(each) for name, each in rates.items()}
            ratios = [middle[a] / middle[b] for a, b in (("po", "set"), ("po", "bits"), ("zone", "po"))]
            row(asked, f"{window:,}", *[f"{each:,.0f}" for each in middle.values()], *[f"{r:.1f}" for r in ratios],
                f"{found.pop()[0] / steps / CUT:,.0f}")  # fmt: skip


def slides():
    """What a second thread gains where it goes over slides, by the clock; and how long the newest rows take to seal."""
    print(f"po_join over {W:,} rows, a < x and b > y; µs a probe by the clock; load {os.getloadavg()[0]:.1f}")
    row("", "pairs", "1 thread", "2 threads", "1 / 2")
    rng = np.random.default_rng(7)
    keys = [_native.keys_of(key) for key in window("independent", rng)]
    built = [filled(lambda n=n: _native.BoxIndex("po_join", 2, {"threads": n}), keys) for n in (1, 2)]
    for part in (1e-3, 0.02, 0.25):
        count = int(np.clip(4e6 / (W * part), 24, 400))
        x, y = questions("independent", part, rng, count)
        low, high = np.full(count, -np.inf), np.full(count, np.inf)
        lo, hi = ([_native.keys_of(v) for v in bounds] for bounds in ((low, y), (x, high)))
        found = np.array([[ask(index, lo, hi, count, time.perf_counter) for index in built] for _ in range(ROUNDS)])
        one, two = np.median(found[..., 0], axis=0)
        assert np.ptp(found[..., 1]) == 0
        row(f"{part:.1%}", f"{found[0, 0, 1]:,.0f}", f"{one * 1e6:,.0f}", f"{two * 1e6:,.0f}", f"{one / two:.2f}")
    print("sealing a slide: sorted keys, permutation and rows, read off the trees of the newest rows")
    row("", "ms", "ns a row")
    for rows in (60_000, 80_000, 100_000):
        taken = []
        for _ in range(ROUNDS):
            index = _native.BoxIndex("po_join", 2, {"least": rows})
            index.insert([key[: rows - 1] for key in keys], np.arange(rows - 1))
            start = time.process_time()
            index.insert([key[rows - 1 : rows] for key in keys], np.arange(rows - 1, rows))
            taken.append(time.process_time() - start)
            assert index.statistics()["seals"] == 1
        row(f"{rows:,} rows", f"{statistics.median(taken) * 1e3:.1f}", f"{statistics.median(taken) / rows * 1e9:.0f}")


# What is chosen, and what would have been best ---------------------------------------------------------------------

CHOICES = ("auto", "carousel", "zone_map", "hash", "bi_sort", "pim_tree", "bplus", "po_join", "nested")
HOPELESS = 4.0
"""How many times as long as the best so far a choice may take before the rest of it is left out."""


def streams(rows, distribution, groups, seed):
    rng = np.random.default_rng(seed)
    x = {
        "uniform": lambda: rng.random(rows),
        "rising": lambda: np.arange(rows) / rows * 4 + rng.random(rows) * 0.1,
        "skewed": lambda: rng.lognormal(-2, 1.5, rows),
    }[distribution]()
    return pa.table({"k": rng.integers(0, max(1, groups), rows), "x": x, "y": rng.random(rows), "z": rng.random(rows)})


def near(column, found, window):
    """A band that about so many rows of a window pass, of evenly spread keys."""
    width = found / window / 2
    return (getattr(left, column) - getattr(right, column)).abs() <= width


def points():
    """Yield (name, predicate, distribution, groups, window, batch)."""
    windows = (1 << 10, 1 << 13, 1 << 16)
    for window in windows:
        for batch in (64, 8192):
            for distribution in ("uniform", "rising", "skewed"):
                yield "a band, 2 rows", near("x", 2, window), distribution, 1, window, batch
            yield "a band, 64 rows", near("x", 64, window), "uniform", 1, window, batch
            few = [left.k == right.k, near("x", 8, window)]
            yield "5 keys, band of 8 rows", few, "uniform", 5, window, batch
            many = [left.k == right.k, near("x", window / 10, window)]
            yield "keys of 4 rows, wide band", many, "uniform", window // 4, window, batch
            yield "band of 16, inequality", [near("x", 16, window), left.y < right.y], "uniform", 1, window, batch
            two = [near("x", window / 8, window), near("y", 4, window)]
            yield "wide band, narrow one", two, "uniform", 1, window, batch
        yield "keys of 2 rows", left.k == right.k, "uniform", window // 2, window, 8192
        yield "keys of 64 rows", left.k == right.k, "uniform", window // 64, window, 8192
        for part in (0.001, min(0.05, 200 / window)):
            side = 1 - np.sqrt(2 * np.sqrt(part))  # x - y of two even numbers is above it with the square root of part
            both = [left.x > right.x + float(side), left.y < right.y - float(side)]
            yield f"two inequalities, {part:.1%}", both, "uniform", 1, window, 8192
        part = min(0.015, 100 / window)
        side = float(1 - np.sqrt(2 * part ** (1 / 3)))
        third = [left.x > right.x + side, left.y < right.y - side, left.z > right.z + side]
        yield f"three inequalities, {part:.2%}", third, "uniform", 1, window, 8192
        wide = [near("x", window / 2, window), left.y < right.y - 0.97]
        yield "wide band, strict inequality", wide, "uniform", 1, window, 8192


class Contender:
    """A join with one choice of index, fed like all the others."""

    def __init__(self, index, on, window, schema):
        self.index, self.seconds, self.pairs, self.out = index, [], 0, False
        self.join = dt.WindowJoin(schema, schema, on=on, window=dt.last(window), index=index)

    def take(self, block, batch):
        pairs, start = 0, time.process_time()
        for at in range(0, block[0].num_rows, batch):
            for found in self.join.push(*(side.slice(at, batch) for side in block), max_rows=65_536):
                pairs += found.num_rows
        self.seconds.append(time.process_time() - start)
        self.pairs += pairs


CHOSEN, JUDGED = 4, 7
"""Rounds of the grid that tell which choice by name is the best, and others in which `auto` is held against that.

Of eight choices the luckiest of a round would be taken for the best of it.
"""


def grid():
    """`auto` beside every index by name, over many kinds of joins."""
    print(f"auto and what would have been best; ns of CPU a row of both inputs; load {os.getloadavg()[0]:.1f}")
    row("", "distribution", "window", "batch", "pairs a row", "auto", "best", "auto / best", "of", "took")
    ratios = []
    for name, on, distribution, groups, window, batch in points():
        counted = 16_384 if window < 1 << 16 else 32_768
        blocks, first = [], max(window, 1 << 16)  # a join looks often at first, and seldom later
        rounds = CHOSEN + JUDGED
        tables = [streams(first + rounds * counted, distribution, groups, seed) for seed in (1, 2)]
        for at, size in [(0, first), *((first + i * counted, counted) for i in range(rounds))]:
            blocks.append([t.slice(at, size).combine_chunks().to_batches()[0] for t in tables])
        contenders = []
        for index in CHOICES:
            try:
                contenders.append(Contender(index, on, window, tables[0].schema))
            except dt.PredicateError:
                continue
        for number, block in enumerate(blocks):
            best = np.inf
            for i in range(len(contenders)):  # in turn: the first to see a block finds it in no cache
                each = contenders[(i + number) % len(contenders)]
                if not each.out:
                    each.take(block, batch if number else min(batch, 1024))
                    best = min(best, each.seconds[-1])
                    each.out = each.index != "auto" and each.seconds[-1] > HOPELESS * best
        running = [each for each in contenders if not each.out]
        assert len({each.pairs for each in running}) == 1, name
        took = {each.index: np.array(each.seconds[1:]) / counted / 2 * 1e9 for each in running}
        auto = took.pop("auto")
        best = min(took, key=lambda index: np.median(took[index][:CHOSEN])) if took else "none"
        # Where all others took so much longer that they were left out, the least that any of them can have taken.
        took["none"] = HOPELESS * auto
        ratio = float(np.median(auto[CHOSEN:] / took[best][CHOSEN:]))
        ratios.append((ratio, name, distribution, window, batch, best))
        last = contenders[0].join._driver.cell.stored["left"].access.describe()
        pairs = running[0].pairs / 2 / sum(len(block[0]) for block in blocks)
        row(
            name, distribution, f"{window:,}", f"{batch:,}", f"{pairs:.1f}", f"{np.median(auto[CHOSEN:]):,.0f}",
            f"{np.median(took[best][CHOSEN:]):,.0f}", f"{ratio:.2f}", best, last,
        )  # fmt: skip
    within = sum(each[0] <= 1.15 for each in ratios)
    print(f"{len(ratios)} points; within 15 % of the best: {within} ({within / len(ratios):.0%}, aim 90 %)")
    print(f"worst {max(ratios)[0]:.2f} (aim 2); median {statistics.median(each[0] for each in ratios):.2f}")
    for ratio, *where, best in sorted(ratios, reverse=True):
        if ratio > 1.15:
            print(f"  {ratio:.2f}: {', '.join(map(str, where))}: {best} was best")


# Threads on one index ---------------------------------------------------------------------------------------------

SHARED_STEP = 1 << 15  # of one side in a step, at most
THREADS = {
    "pim_tree, in batches": None,
    "carousel, in batches": None,
    "shared, 1 thread, no locks": {"threads": 1, "locks": False},
    "shared, 1 thread": {"threads": 1},
    "shared, 2 threads": {"threads": 2},
    "shared, 2 threads, blocking merges": {"threads": 2, "blocking": True},
}
ONE, TWO, BLOCKING = "shared, 1 thread", "shared, 2 threads", "shared, 2 threads, blocking merges"


def steps(window, matches):
    """Steps of a band join of two streams: (first row, keys, roles as `SharedPim.start`); windows fill in the first."""
    span, step = 1 << 40, min(SHARED_STEP, window)
    width = np.uint64(matches * span / window / 2)
    rows = window + max(window, 1 << 18)
    keys = [np.random.default_rng(seed).integers(1 << 40, 2 << 40, rows, np.uint64) for seed in (1, 2)]
    for at in range(0, rows, step):
        some = [side[at : at + step] for side in keys]
        own, roles = np.arange(at, at + len(some[0])), []
        for side, each in enumerate(some):
            come = own + side  # of the other side, when a tuple comes: a left one stands before its right one
            ranks = np.arange(side, 2 * len(each), 2)
            roles.append((1 - side, side, each - width, each + width, np.maximum(0, come - window), come, ranks))
        yield at, some, roles


def shared_rate(given, window=1 << 20, matches=2.0, name=""):
    """Tuples a second of both sides over full windows, and pairs a tuple."""
    pairs, tuples, seconds = 0, 0, 0.0
    join = _native.SharedPim(2, **given) if given else [_native.Index(name) for _ in range(2)]
    for at, keys, roles in steps(window, matches):
        begun, count = time.perf_counter(), len(keys[0])
        some = 0
        if given:
            join.start(keys, [at, at], roles, 2 * count)
            answered = 0
            while answered < 2 * count:
                found = join.advance(65_536)
                answered = sum(upto for _, _, upto in found)
                some += sum(len(row) for _, row, _ in found)
            for side in (0, 1):
                join.expire(side, max(0, at + count - window))
        else:
            for side in (0, 1):
                join[side].insert(keys[side], np.arange(at, at + count))
            for target, _, *asked, _ in roles:
                upto = 0
                while upto < count:
                    _, row, upto = join[target].probe(*asked, upto, count, 65_536)
                    some += len(row)
            for side in (0, 1):
                join[side].expire(max(0, at + count - window))
        if at >= window:
            pairs, tuples, seconds = pairs + some, tuples + 2 * count, seconds + time.perf_counter() - begun
    return tuples / seconds, pairs / tuples


def rates_of(contenders, **how):
    """Medians of some rounds, one after the other in each; all must find the same."""
    rates, found = {name: [] for name in contenders}, set()
    for _ in range(ROUNDS):
        for name, given in contenders.items():
            rate, pairs = shared_rate(given, name=name.partition(",")[0], **how)
            rates[name].append(rate)
            found.add(pairs)
    assert len(found) == 1
    return {name: statistics.median(all_rates) for name, all_rates in rates.items()}, found.pop()


def shared():
    """Threads on one index, by the wall clock: everything else has to be quiet."""
    print(f"a band join, two windows of {1 << 20:,} rows, 2 pairs a tuple; load {os.getloadavg()[0]:.1f}")
    row("", "M tuples/s", "to 1 thread")
    rates, _ = rates_of(THREADS)
    for name, rate in rates.items():
        row(name, f"{rate / 1e6:.2f}", f"{rate / rates[ONE]:.2f}")
    print("two threads to one, and blocking merges to two threads' own")
    row("", "M tuples/s, 1", "2", "2 / 1", "blocking / 2")

    def line(what, ratio=1 / 16, task=256, **how):
        given = {name: {**THREADS[name], "merge_ratio": ratio, "task": task} for name in (ONE, TWO, BLOCKING)}
        found, pairs = rates_of(given, **how)
        one, two, blocking = (found[name] for name in (ONE, TWO, BLOCKING))
        row(what.format(pairs), f"{one / 1e6:.2f}", f"{two / 1e6:.2f}", f"{two / one:.2f}", f"{blocking / two:.2f}")
        return one, two, blocking

    curves = {ONE: [], TWO: [], BLOCKING: []}
    for bits in (12, 14, 16, 18, 20):
        for name, rate in zip(curves, line(f"window 2^{bits}", window=1 << bits), strict=True):
            curves[name].append((1 << bits, rate / 1e6))
    draw("threads", "Threads on one PIM-Tree, two pairs a tuple", "rows a window", "M tuples/s", curves, TWO)
    for matches in (1 / 16, 16, 256):
        line("window 2^18, {:.1f} pairs", window=1 << 18, matches=matches)
    for ratio in (1 / 64, 1 / 4, 1):
        line(f"window 2^18, merge ratio {ratio:.3g}", ratio, window=1 << 18)
    for task in (8, 64, 1024):
        line(f"window 2^18, tasks of {task:,}", task=task, window=1 << 18)


PARTS = {"several": several, "slides": slides, "joins": joins, "spo": spo, "shared": shared, "grid": grid}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to run (all)")
    print(f"dovetail {dt.__version__}, {len(os.sched_getaffinity(0))} cores, {_native.instructions()}, one thread")
    for part in parser.parse_args().parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
