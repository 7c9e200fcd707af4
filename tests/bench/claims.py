"""What the papers claim of their structures, measured on one thread: `make bench-claims`.

Each table here belongs to one figure of a paper, or to a few; docs/papers.md says which, and what came of it. Times are
CPU times of the thread and medians of several runs; what is compared runs in turn, on the same rows, and finds the
same pairs. Sizes are scaled down to what one core does in a few minutes; ratios of sizes are kept.

`python -m tests.bench.claims` runs all tables; `… chain ratio` some of them; `--small` all in a minute or two, to see
that they run: its figures mean nothing.
"""

import argparse
import contextlib
import ctypes
import functools
import itertools
import json
import os
import pathlib
import statistics
import time

import numpy as np
from dovetail.state import _native

from . import state
from .state import Native, Work, label

SHIFT = 0  # by how many powers of two all sizes are smaller
REPEATS = 3
ABSL, BPLUS, IM, PIM, CAROUSEL = [(name, {}) for name in ("absl", "bplus", "im_tree", "pim_tree", "carousel")]
# What BI-Sort is in its paper: each full buffer, and each batch that is larger, is merged into one array.
PAPERS_BI = {"buffer": 1024, "fan": 2**30, "waste": 1000}


def two(power):
    """Return a size, 2^power."""
    return 1 << max(7, power - SHIFT)


def named(n):
    """Write a size as people read it."""
    power = n.bit_length() - 1
    return f"2^{power}" if n == 1 << power and power >= 7 else f"{n:,}"


def median(values):
    return statistics.median(values)


class Results:
    """Figures by (table, case, store), printed as they come."""

    def __init__(self):
        self.found = {}

    def __call__(self, table, case, store, **figures):
        self.found[table, case, store] = figures
        shown = "  ".join(f"{name.replace('_', ' ')} {x:.4g}" for name, x in figures.items() if not isinstance(x, list))
        print(f"{table:<14} {case:<26} {store:<34} {shown}", flush=True)


# Joins ------------------------------------------------------------------------------------------------------------


def race(native, load, stores, **how):
    """The figures of `races` for one load."""
    return races(native, {"": load}, stores, **how)[""]


def races(native, loads, stores, *, ones=None, batches=None, batch=1024, n=None):
    """Medians of stretches that all stores run in turn, tuple by tuple and in batches; their pairs must agree.

    With small sizes Abseil's tree always takes part, for its pairs.
    Several loads are run in turn as well, so that they can be compared. Returns, by load and store,
    {rate, batch_rate: M tuples/s, insert, probe, expire: ns a tuple in batches, bytes, pairs}.
    """
    steps = [1] * (ones or REPEATS) + [batch] * (batches or REPEATS)
    witness = [ABSL] if SHIFT and ABSL not in stores else []
    joins = {}
    for case, load in loads.items():
        assert load.warm + (n or load.measured) * len(steps) <= load.total, "the streams are long enough"
        joins[case] = {label(*store): Native(native, *store, load) for store in [*stores, *witness]}
    taken = {case: {name: {} for name in both} for case, both in joins.items()}
    for step in steps:
        for case, load in loads.items():
            expected, some = None, n or load.measured
            for name, join in joins[case].items():
                done = join.run(some, step)
                expected = expected or (done.pairs, done.checksum)
                assert (done.pairs, done.checksum) == expected, (case, name, step, done.pairs, expected)
                held = sum(getattr(load, "held", (load.w, load.w)))
                figures = {"rate" if step == 1 else "batch_rate": some / done.seconds / 1e6}
                if step > 1 and name != "absl":
                    figures |= {part: getattr(done, part) / some * 1e9 for part in ("insert", "probe", "expire")}
                figures |= {"bytes": done.bytes / held, "pairs": done.pairs / some}
                for figure, x in figures.items():
                    taken[case][name].setdefault(figure, []).append(x)
    for case, both in joins.items():
        for join in both.values():
            join.close()
        for name, _ in witness:
            del taken[case][name]
    return {case: {name: {figure: median(values) for figure, values in mine.items()} for name, mine in all_of.items()}
            for case, all_of in taken.items()}  # fmt: skip


def show(results, table, case, raced, base=None):
    """Take in what a race found, with the ratios to one of the stores."""
    for store, figures in raced.items():
        ratios = {}
        if base:
            ratios = {f"{how}_ratio": figures[how] / raced[base][how] for how in ("rate", "batch_rate")
                      if how in figures and how in raced[base]}  # fmt: skip
        results(table, case, store, **figures, **ratios)


def stream(w, tuples, **more):
    """A load of two streams for one race."""
    return state.Load(w=w, tuples=tuples, stretches=2 * REPEATS, **more)


@functools.lru_cache(maxsize=1)
def large():
    """The largest windows, whose streams take a while to draw: for all tables that want them."""
    return state.Load(w=two(23), tuples=two(22), stretches=4)


class SelfLoad:
    """One stream that is joined with itself: what each tuple looks for among the w before it."""

    def __init__(self, keys, w, warm, measured, matches=2.0):
        self.w, self.warm, self.measured, self.held = w, warm, measured, (w,)
        rng = np.random.default_rng(2)
        sample = keys[:warm]
        low, high = state.bands("", sample, w, sample, matches + 1, rng)  # a sampled tuple finds itself, too
        d = (high[0] - low[0]) // 2
        rows = np.arange(len(keys) + 1)
        self.total = len(keys)
        self.arrays = [_native.keys_of(a) for a in (keys, keys - d, keys + d)]
        self.arrays += [np.maximum(0, rows - w), rows, np.zeros(len(keys), np.uint8)]
        pointers = [(ctypes.c_void_p * 2)(a.ctypes.data, a.ctypes.data) for a in self.arrays[:5]]
        self.work = Work(*pointers, self.arrays[5].ctypes.data, 1)


# One store alone --------------------------------------------------------------------------------------------------


class Alone:
    """A store inside native calls: rows in, probes of all rows, rows out; CPU seconds of each."""

    def __init__(self, native, name, settings):
        keys = (ctypes.c_char_p * len(settings))(*[k.encode() for k in settings])
        self.native = native
        self.store = native.open_store(name.encode(), keys, (ctypes.c_double * len(settings))(*settings.values()),
                                       len(settings))  # fmt: skip

    def insert(self, keys, first, step):
        return self.native.insert_rows(self.store, keys.ctypes.data, first, len(keys), step)

    def build(self, keys, first):
        return self.insert(keys, first, 0)

    def probe(self, lo, hi, step, rows=(0, 2**62)):
        return self.native.probe_rows(self.store, lo.ctypes.data, hi.ctypes.data, *rows, len(lo), step)

    def expire(self, first, before, step=None):
        return self.native.expire_rows(self.store, first, before, step or max(1, before - first))

    def __getitem__(self, name):
        return self.native.look_up(self.store, name.encode())

    def close(self):
        self.native.close_store(self.store)


@contextlib.contextmanager
def alone(native, name, settings):
    store = Alone(native, name, settings)
    try:
        yield store
    finally:
        store.close()


def even_keys(rng, n, values=1 << 61):
    """Keys drawn evenly from so many even values, which spread over the same range."""
    return rng.integers(0, values, n).astype(np.uint64) * np.uint64(2 * ((1 << 61) // values))


def slide(store, keys, w, rows, block=256, step=1):
    """Let a full window advance by `rows`: ns a row of insertion, merging and deletion, and seconds of each merge.

    Rows are taken in blocks; as many of the longest blocks as there were merges are those with a merge.
    """
    before, inserts, deletes = store["merges"], [], 0.0
    for at in range(w, w + rows, block):
        inserts.append(store.insert(keys[at : at + block], at, step))
        deletes += store.expire(at - w, at - w + block, step)
    merges = int(store["merges"] - before) if store["merges_put_off"] >= 0 else 0  # those of a B+-tree are of nodes
    inserts.sort()
    usual = median(inserts)
    long = [seconds - usual for seconds in inserts[len(inserts) - merges :]]
    plain = sum(inserts) - sum(long)
    return {"insert": plain / rows * 1e9, "merge": sum(long) / rows * 1e9, "delete": deletes / rows * 1e9}, long


# PIM-Tree ---------------------------------------------------------------------------------------------------------


def nested_loop(native, results):
    """8a: a scan of the window against a tree, by window."""
    for power in (8, 10, 12, 14, 16):
        load = stream(two(power), two(14))
        found = race(native, load, [BPLUS, ("nested", {}), ABSL])
        show(results, "nested_loop", f"w = {named(load.w)}", found, "bplus")


def chain(native, results):
    """8b: chains of two to eight trees."""
    w = two(20)
    stores = [BPLUS, *[(name, {"length": n}) for name in ("chained", "ib_chained") for n in (2, 3, 4, 6, 8)]]
    found = race(native, stream(w, 2 * w), stores, batches=2)
    show(results, "chain", f"w = {named(w)}", found, "bplus")


def depth(native, results):
    """8c: the depth of the sub-indexes, the root being 0."""
    stores = [PIM if d == 3 else ("pim_tree", {"insertion_depth": d}) for d in (3, 0, 1, 2)]
    for power in (16, 20, 23):
        w = two(power)
        load = large() if power == 23 else stream(w, max(two(17), w // 2))
        found = race(native, load, stores, n=max(two(17), w // 8), **({"ones": 2} if power == 23 else {}))
        show(results, "depth", f"w = {named(w)}", found, "pim_tree")


def ratio(native, results):
    """9c, 9d: the share of the window that is inserted before a merge; each run is a whole number of merges."""
    for power in (16, 17, 20, 23):
        w = two(power)
        load = large() if power == 23 else stream(w, 2 * w)
        for powers, n in (((6, 5, 3, 2), w // 2), ((1, 0), 2 * w)):
            if power == 23 and powers[-1] == 0:
                continue  # a whole window for each merge
            stores = []
            for name in ("im_tree", "pim_tree"):
                stores += [(name, {"merge_ratio": 2.0**-p}) for p in (4, *powers) if power < 23 or name == "pim_tree"]
            more = {"ones": 2, "batches": 2} if power >= 20 else {}
            found = race(native, load, stores, n=n, **more)
            for store, figures in found.items():
                name, m = store.split(" merge_ratio=")
                base = found[f"{name} merge_ratio=0.0625"]
                if float(m) == 1 / 16 and powers[-1] == 0:
                    continue
                results("ratio", f"w = {named(w)}, m = 1/{1 / float(m):g}", name, **figures,
                        against_a_16th=figures["rate"] / base["rate"],
                        batch_against_a_16th=figures["batch_rate"] / base["batch_rate"])  # fmt: skip


def steps(native, results):
    """9b: what a tuple's time goes to: the way down, the scan, insertion, deletion, merging. One row a call."""
    rng = np.random.default_rng(3)
    for power, rows in ((17, two(19)), (20, two(20)), (23, two(21))):
        w = two(power)
        rows += w // 32  # whole merges, and half of the way to the next
        keys = even_keys(rng, w + rows)
        odd, middle = (even_keys(rng, two(17)) + np.uint64(1) for _ in range(2))  # nothing equals the odd ones
        d = np.uint64(2 * ((1 << 61) // w))
        bounds = middle - np.minimum(middle, d), middle + d
        live = rows, w + rows
        stores = {name: Alone(native, name, settings) for name, settings in (BPLUS, IM, PIM)}
        taken, search, scan = {}, {name: [] for name in stores}, {name: [] for name in stores}
        for name, store in stores.items():
            store.build(keys[:w], 0)
            taken[name], _ = slide(store, keys, w, rows)
        for _ in range(2 * REPEATS):
            expected = None
            for name, store in stores.items():
                store.probe(odd, odd, 1, live)  # so that what stays in a cache is in it for both
                two_each, nothing = store.probe(*bounds, 1, live), store.probe(odd, odd, 1, live)
                expected = expected or (two_each.pairs, two_each.checksum)
                assert nothing.pairs == 0 and (two_each.pairs, two_each.checksum) == expected
                search[name].append(nothing.seconds / len(odd) * 1e9)
                scan[name].append((two_each.seconds - nothing.seconds) / len(odd) * 1e9)
        for name, store in stores.items():
            store.close()
            parts = taken[name]
            parts |= {"search": median(search[name]), "scan": median(scan[name])}
            total = sum(parts.values())
            against = {f"{x}_to_bplus": taken["bplus"][x] / parts[x] for x in ("insert", "search", "scan")}
            results(
                "steps", f"w = {named(w)}", name, **parts, total=total, merge_share=parts["merge"] / total, **against
            )


def single(native, results):
    """10a: the trees on one thread, by window."""
    for power in (14, 16, 18, 20, 22, 23):
        w = two(power)
        load = large() if power == 23 else stream(w, max(two(17), w // 2))
        more = {"n": w // 8, "ones": 2, "batches": 2} if power == 23 else {}
        found = race(native, load, [BPLUS, IM, PIM, CAROUSEL, ABSL], **more)
        show(results, "single", f"w = {named(w)}", found, "bplus")


def matches(native, results):
    """10b: pairs a tuple from 2^-4 to 2^10."""
    w = two(20)
    load = stream(w, two(17))
    for power in (-4, 0, 2, 4, 6, 8, 10):
        rng = np.random.default_rng(4)
        wanted = min(2.0**power, w / 8)
        kept = []
        for s in (0, 1):
            asked = state.bands("uniform", load.keys[s], w, load.keys[1 - s], wanted, rng)
            for place, bound in zip((load.work.lo, load.work.hi), asked):
                kept.append(_native.keys_of(bound))
                place[s] = kept[-1].ctypes.data
        n = two(17) if power < 6 else two(15)
        found = race(native, load, [BPLUS, IM, PIM, CAROUSEL, ABSL], n=n, ones=REPEATS if power < 10 else 2,
                     batches=1)  # fmt: skip
        show(results, "matches", f"2^{power} pairs a tuple", found, "bplus")


def peak(what):
    """Bytes that the process had at most while something ran, above what it has before; None where one cannot tell."""

    def kilobytes(name):
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))

    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        what()
        return None
    before = kilobytes("VmRSS")
    what()
    return (kilobytes("VmHWM") - before) * 1024


def memory(native, results):
    """11a: bytes a row with m = 1 just before a merge, and what the merge wants besides."""
    rng = np.random.default_rng(5)
    for power in (18, 20, 22):
        w = two(power)
        keys = even_keys(rng, 3 * w + 4096)
        unit = None
        for name, settings in (BPLUS, ("pim_tree", {"merge_ratio": 1}), PIM, CAROUSEL):
            with alone(native, name, settings) as store:
                store.build(keys[:w], 0)
                limit = max(1024, (w + 128) * settings.get("merge_ratio", 1 / 16))
                end = w
                # For half a window or more, so that what was built has been used; then up to the next merge.
                while end < w + w // 2 or (name == "pim_tree" and store["inserted"] + 128 < limit):
                    store.insert(keys[end : end + 128], end, 128)
                    end += 128
                    store.expire(end - 128 - w, end - w)
                held = store["bytes"] / w
                unit = unit or held
                facts = {"bytes": held, "to_bplus": held / unit}
                if name == "pim_tree":
                    facts["inserted_share"] = store["inserted"] / w
                    made, rest = store["merges"], keys[end : end + 128]
                    most = peak(lambda store=store, rest=rest, at=end: store.insert(rest, at, len(rest)))
                    assert store["merges"] == made + 1
                    if most is not None:
                        facts |= {"merge_bytes": most / w, "all_to_bplus": (held + most / w) / unit}
                results("memory", f"{named(w)} rows", label(name, settings), **facts)


def rates(native, results):
    """11b: one stream faster than the other."""
    for power in (17, 20):
        loads = {
            f"w = {named(two(power))}, 1 : {every}": stream(two(power), two(18), every=every) for every in (1, 2, 4, 8)
        }
        for case, found in races(native, loads, [PIM, BPLUS, CAROUSEL], batches=1).items():
            show(results, "rates", case, found, "bplus")


def windows(native, results):
    """11c: windows of different lengths."""
    loads = {}
    for one, other in itertools.combinations_with_replacement((14, 17, 20), 2):
        load = stream(two(other), two(18), windows=(two(one), two(other)))
        load.held = two(one), two(other)
        loads[f"{named(two(one))} × {named(two(other))}"] = load
    for case, found in races(native, loads, [PIM, BPLUS, CAROUSEL], batches=1).items():
        show(results, "windows", case, found, "bplus")


def keys(native, results):
    """12b: skewed keys, two pairs a tuple."""
    kinds = ("uniform", "gaussian", "gamma 3 3", "gamma 1 5")
    found = races(native, {kind: stream(two(20), two(19), kind=kind) for kind in kinds}, [PIM, BPLUS, CAROUSEL])
    for kind in kinds:
        for store, mine in found[kind].items():
            mine["to_uniform"] = mine["rate"] / found["uniform"][store]["rate"]
            mine["batch_to_uniform"] = mine["batch_rate"] / found["uniform"][store]["batch_rate"]
        show(results, "keys", kind, found[kind], "bplus")


def self_join(native, results):
    """12c: a stream joined with itself, by window."""
    for power in (10, 12, 14, 16, 18, 20, 22, 23):
        w = two(power)
        n = max(two(16), w // 8)
        warm = 2 * w + 4096
        values = np.random.default_rng(6).integers(0, 1 << 52, warm + 2 * REPEATS * n)
        load = SelfLoad(values, w, warm, n)
        more = {"ones": 2, "batches": 1} if power > 20 else {}
        found = race(native, load, [BPLUS, PIM, CAROUSEL, ABSL], **more)
        show(results, "self_join", f"w = {named(w)}", found, "bplus")


SHIFTS = (0, 0.2, 0.4, 0.6, 0.8, 1)


def drifting(w, r):
    """Keys of the three phases: 4 w from N(0.5, 0.125), 10 w while the mean goes to 0.5 + r, 4 w from there."""
    rng = np.random.default_rng(7)
    mean = 0.5 + r * np.clip((np.arange(18 * w) - 4 * w) / (10 * w), 0, 1)
    return ((mean + rng.normal(0, 0.125, 18 * w)) * 2.0**52).astype(np.int64)


def drift(native, results):
    """13b: throughput while keys drift, as shares of what it is on keys that do not, slice by slice in turn.

    A slice is a quarter of a window. Shares come from sums of time: with m = 1 only one slice of four has a merge.
    """
    w = two(20)
    part = w // 4
    still = SelfLoad(drifting(w, 0), w, w, part)
    for r in SHIFTS[1:]:
        loads = still, SelfLoad(drifting(w, r), w, w, part)
        stores = [
            PIM,
            CAROUSEL,
            *([("pim_tree", {"merge_ratio": 1})] if r in (0.4, 1) else []),
            *([ABSL] if SHIFT else []),
        ]
        joins = {label(*store): [Native(native, *store, load) for load in loads] for store in stores}
        seconds = {name: ([], []) for name in joins}
        for _ in range(4, 72):
            expected = [None, None]
            for name, both in joins.items():
                for i, join in enumerate(both):
                    done = join.run(part, 1)
                    expected[i] = expected[i] or (done.pairs, done.checksum)
                    assert (done.pairs, done.checksum) == expected[i], (name, r)
                    seconds[name][i].append(done.seconds)
        for name, both in joins.items():
            for join in both:
                join.close()
            calm, moved = seconds[name]

            def share(begin, end, calm=calm, moved=moved):
                return sum(calm[begin:end]) / sum(moved[begin:end])

            first, shifting, last, settled = share(0, 12), share(12, 52), share(52, 68), share(56, 68)
            # By whole windows, from the second to the eighteenth.
            course = [round(share(i, i + 4), 3) for i in range(0, 68, 4)]
            results("drift", f"r = {r}", name, rate=12 * part / sum(moved[:12]) / 1e6, first=first, shifting=shifting,
                    last=last, slowest=min(course[3:13]), recovered=settled / first, course=course)  # fmt: skip


def drift_inserts(native, results):
    """13a: how insertions fall on the sub-indexes while keys drift, seen before each merge.

    Depth 3 has the paper's thousand sub-indexes at this window. r = 10 is ours: the keys move by 1 in each window.
    """
    w = two(18)
    block = w // 128
    for r in (*SHIFTS, 10):
        drawn = _native.keys_of(drifting(w, r))
        for ratio, depth in ((1, 2), (1, 3), (1 / 16, 3)):
            settings = {"merge_ratio": ratio, "insertion_depth": depth}
            shares, empty, count = [], [], 0
            with alone(native, "pim_tree", settings) as store:
                store.build(drawn[3 * w : 4 * w], 3 * w)
                seen, merges = None, store["merges"]
                for at in range(4 * w, 14 * w, block):
                    store.insert(drawn[at : at + block], at, block)
                    store.expire(at - w, at + block - w)
                    now = store["merges"]
                    if now > merges and seen:
                        shares.append(seen[0])
                        empty.append(seen[1])
                    merges, count = now, store["sub_indexes"]
                    if ratio == 1 or store["inserted"] > ratio * w / 2:
                        seen = store["largest_share"], store["empty_sub_indexes"] / count
            results("drift_inserts", f"r = {r}", label("pim_tree", settings), sub_indexes=count,
                    fullest=statistics.mean(shares), fullest_by_share=statistics.mean(shares) * count,
                    empty=statistics.mean(empty))  # fmt: skip


def merges(native, results):
    """14: the time of a merge."""
    rng = np.random.default_rng(8)
    for power in (14, 16, 18, 20, 22, 23):
        w = two(power)
        rows = w // 2
        drawn = even_keys(rng, w + rows)
        for name, settings in (IM, PIM):
            with alone(native, name, settings) as store:
                store.build(drawn[:w], 0)
                _, long = slide(store, drawn, w, rows, block=256, step=256)
            if long:
                results("merges", f"w = {named(w)}", name, ms=median(long) * 1e3, ns_a_row=median(long) / w * 1e9)


# PanJoin ----------------------------------------------------------------------------------------------------------

CUT = ("llat", "rap_table", "wib_tree")


def cut(name, n, part):
    """The settings of a store for sub-windows of n rows with `part` rows a partition."""
    if name in ("llat", "rap_table"):
        return {"partitions": max(1, n // part), "least": n}
    if name == "wib_tree":  # leaves are filled to seven tenths
        return {"leaf": min(1 << 16, max(2, round(part / 0.7))), "least": n}
    return PAPERS_BI | {"partition": max(2, part)} if name == "bi_sort" else {}


def fill(native, name, settings, drawn, n, step):
    """Fill a sub-window of n rows, whose splitters are adjusted, in calls of `step`: the store, and CPU seconds.

    `drawn` are keys of two sub-windows and of the sample before them. Only the last sub-window stays.
    """
    store = Alone(native, name, settings)
    sample = len(drawn) - 2 * n
    first = sample + n
    if name in CUT:
        store.insert(drawn[:sample], 0, sample)
        store.insert(drawn[sample:first], sample, 4096)
        store.expire(0, first - 1)
    seconds = store.insert(drawn[first:], first, step)
    if name in CUT:
        store.expire(first - 1, first)
    return store, seconds


def insertion(native, stores, drawn, n, step):
    """M rows/s of each store, in turn; slow ones once."""
    taken = {key: [] for key in stores}
    for _ in range(2 * REPEATS - 1):
        for key, (name, settings) in stores.items():
            if sum(taken[key]) > 1:
                continue
            store, seconds = fill(native, name, settings, drawn, n, step)
            store.close()
            taken[key].append(seconds)
    return {key: n / median(seconds) / 1e6 for key, seconds in taken.items()}


def insert_batch(native, results):
    """10a, 11a, 12a, 13a: insertion by batch and rows a partition."""
    n = two(20)
    drawn = even_keys(np.random.default_rng(9), 2 * n + 1024)
    for step in (1, 64, 1024, two(15), two(17), n):
        stores = {}
        for name in (*CUT, "bi_sort"):
            for part in (16, 128, 1024):
                if name == "bi_sort" and part == 1024:
                    continue
                stores[f"{name}, {part} a partition"] = name, cut(name, n, part)
        stores |= {"bi_sort, ours": ("bi_sort", {}), "absl": ABSL}
        for key, rate in insertion(native, stores, drawn, n, step).items():
            results("insert_batch", f"batches of {named(step)}", key, rate=rate)


def insert_size(native, results):
    """10b, 11b, 12b: insertion by rows of a sub-window; 8,192 partitions."""
    for power in (14, 16, 18, 20, 21):
        n = two(power)
        drawn = even_keys(np.random.default_rng(10), 2 * n + 1024)
        for step in (1024, 1 << 14):
            stores = {name: (name, cut(name, n, max(1, n // 8192))) for name in (*CUT, "bi_sort")}
            stores |= {"bi_sort, ours": ("bi_sort", {}), "absl": ABSL}
            if power == 21 and step == 1024:
                del stores["bi_sort"]
            for key, rate in insertion(native, stores, drawn, n, step).items():
                results("insert_size", f"{named(n)} rows, batches of {named(step)}", key, rate=rate)


def probing(stores, lo, hi, step):
    """M probes/s of each store, in turn; their pairs must agree."""
    taken = {key: [] for key in stores}
    expected = None
    for _ in range(2 * REPEATS - 1):
        for key, store in stores.items():
            done = store.probe(lo, hi, step)
            expected = expected or (done.pairs, done.checksum)
            assert (done.pairs, done.checksum) == expected, (key, done.pairs, expected)
            taken[key].append(done.seconds)
    return {key: len(lo) / median(seconds) / 1e6 for key, seconds in taken.items()}, expected[0] / len(lo)


def filled(native, names, drawn, n, part):
    """Stores whose newest sub-window is full, in the same keys."""
    return {name: fill(native, name, cut(name, n, part), drawn, n, 4096)[0] for name in names}


def close(stores):
    for store in stores.values():
        store.close()


def equi_partition(native, results):
    """10c, 11c, 12c: equality, one match a probe, by rows a partition and batch."""
    n = two(20)
    rng = np.random.default_rng(11)
    drawn, asked = even_keys(rng, 2 * n + 1024, n), even_keys(rng, 1 << 15, n)
    for part in (16, 64, 256, 1024):
        stores = filled(native, (*CUT, "bi_sort"), drawn, n, part)
        for step in (1, 1024, 1 << 15):
            for key, rate in probing(stores, asked, asked, step)[0].items():
                results("equi_partition", f"{part} a partition, batches of {named(step)}", key, rate=rate)
        close(stores)


def probes_for(s):
    """Probes of one call: no more than some four million pairs at once."""
    return max(64, min(1 << 15, (1 << 22) // s))


def equi_matches(native, results):
    """10d, 11d, 12d: equality, by matches a probe and rows a partition."""
    n = two(20)
    rng = np.random.default_rng(12)
    for s in (1, 16, 256, 4096):
        s = min(s, n // 16)
        drawn, asked = even_keys(rng, 2 * n + 1024, n // s), even_keys(rng, probes_for(s), n // s)
        for part in (16, 128, 1024):
            names = [*CUT, "bi_sort", *(("absl",) if part == 128 else ())]
            stores = filled(native, names, drawn, n, part)
            rates_of, found = probing(stores, asked, asked, len(asked))
            close(stores)
            for key, rate in rates_of.items():
                results("equi_matches", f"{s} matches, {part} a partition", key, rate=rate, matches=found,
                        ns_a_match=1e3 / rate / found)  # fmt: skip


def band_matches(native, results):
    """10e, 11e, 12e, 13b: bands, by matches a probe and rows a partition; batches of 32,768 up to 128 matches."""
    n = two(20)
    rng = np.random.default_rng(13)
    drawn = even_keys(rng, 2 * n + 1024)
    for part in (16, 128, 1024):
        names = [*CUT, "bi_sort", *(("absl", "carousel") if part == 128 else ())]
        stores = filled(native, names, drawn, n, part)
        for s in (1, 4, 16, 64, 256, 1024, 4096):
            asked = even_keys(rng, probes_for(s))
            d = np.uint64(((1 << 61) // n) * s)
            rates_of, found = probing(stores, asked - np.minimum(asked, d), asked + d, len(asked))
            for key, rate in rates_of.items():
                results("band_matches", f"{s} matches, {part} a partition", key, rate=rate, matches=found,
                        ns_a_match=1e3 / rate / found)  # fmt: skip
        close(stores)


def balance(native, results):
    """10f: how even partitions are, by adjustment, from even splitters over 32 bits on."""
    n = two(20)
    rng = np.random.default_rng(14)
    span = 2.0**32

    def modes(draw, count):
        return (rng.integers(0, count, 6 * n) + 0.5 + draw) / count

    cases = {
        "N(0.125, 1)": modes(rng.normal(0, 0.125, 6 * n), 1),
        "N(0.01, 1)": modes(rng.normal(0, 0.01, 6 * n), 1),
        "N(0.01, 16)": modes(rng.normal(0, 0.01, 6 * n), 16),
        "U(0.1, 1)": modes(rng.random(6 * n) * 0.1, 1),
        "U(0.01, 16)": modes(rng.random(6 * n) * 0.01, 16),
        # 99 % in a hundredth of their range, which is a hundredth of the 32 bits.
        "99 % in 1 %": np.minimum(1e-4 * rng.pareto(2, 6 * n) / 9, 1e-2),
    }
    for case, values in cases.items():
        drawn = (np.clip(values, 0, 1) * (span - 1)).astype(np.uint64)
        even = rng.integers(0, 1 << 32, n + 1024).astype(np.uint64)
        for partitions in (two(10), two(16)):
            found, at = [], 0
            with alone(native, "rap_table", {"partitions": partitions, "least": n}) as store:
                for one in (even[:1024], even[1024:], *np.split(drawn, 6)):
                    if at > 0:
                        store.expire(0, at - 1)
                    # One row more opens the next sub-window, by which the last one is told.
                    for first in range(0, len(one), 1024):
                        store.insert(one[first : first + 1024], at + first, 1024)
                        if at > 1024 + n and first == 0:
                            found.append(store["imbalance"])
                    at += len(one)
            # What chance leaves: the rows of a partition vary, and so do those that its splitters were set by.
            least = (4 / np.pi * partitions / n) ** 0.5
            results("balance", case, f"P = {named(partitions)}", by_chance=least,
                    **{f"after_{i}": x for i, x in enumerate(found)})  # fmt: skip


def beside(results, case, found):
    one, other = found["wib_tree"], found["absl"]
    results("speedup", case, "wib_tree", rate=one, absl=other, ratio=one / other)


def speedup(native, results):
    """11f: the wide tree against Abseil's; 64 rows a leaf."""
    n = two(20)
    rng = np.random.default_rng(15)
    drawn = even_keys(rng, 2 * n + 1024)
    stores = {name: (name, cut(name, n, 64)) for name in ("wib_tree", "absl")}
    for step in (1, 1024, 1 << 15):
        found = insertion(native, stores, drawn, n, step)
        beside(results, f"insertion, batches of {named(step)}", found)
    for s in (1, 16, 256, 4096):
        s = min(s, n // 16)
        for kind in ("equality", "band"):
            values = n // s if kind == "equality" else 1 << 61
            some, asked = even_keys(rng, 2 * n + 1024, values), even_keys(rng, probes_for(s), values)
            d = np.uint64(0 if kind == "equality" else ((1 << 61) // n) * s)
            both = filled(native, stores, some, n, 64)
            for step in (1, 1 << 15):
                found, _ = probing(both, asked - np.minimum(asked, d), asked + d, step)
                beside(results, f"{kind}, {s} matches, batches of {named(min(step, len(asked)))}", found)
            close(both)


def buffer(native, results):
    """12f: the insertion buffer of BI-Sort, with rows that come one by one or sixteen at a time."""
    n = two(16)
    rng = np.random.default_rng(16)
    asked = even_keys(rng, 1 << 14)
    d = np.uint64(2 * ((1 << 61) // n))
    lo, hi = asked - np.minimum(asked, d), asked + d
    for rows in (1, 4, 16, 64, 256, 1024, 4096, 16384):
        drawn = even_keys(rng, n + rows)
        for name, fan in (("as in the paper", 2**30), ("ours, fan 32", 32)):
            settings = {"buffer": rows, "fan": fan, "waste": 1000}
            figures = {}
            for step in (1, 16):
                taken = []
                while len(taken) < REPEATS and sum(taken) < 1:
                    with alone(native, "bi_sort", settings) as store:
                        taken.append(store.insert(drawn[:n], 0, step))
                figures["rate" if step == 1 else "sixteen_rate"] = n / median(taken) / 1e6
            with alone(native, "bi_sort", settings) as store:
                store.build(drawn[:n], 0)
                store.insert(drawn[n : n + rows // 2], n, max(1, rows // 2))  # half full
                for step, figure in ((1, "probe_rate"), (1024, "batch_probe_rate")):
                    taken = [store.probe(lo, hi, step).seconds for _ in range(REPEATS)]
                    figures[figure] = len(lo) / median(taken) / 1e6
            results("buffer", f"{rows:,} rows", name, **figures)


# What no paper asks -----------------------------------------------------------------------------------------------


def calls(native, results):
    """What a call from Python costs: the same join through Python and inside one native call."""
    w = two(17)
    n = two(17)
    load = state.Load(w=w, tuples=n, stretches=4 * REPEATS)
    for name, settings in (CAROUSEL, PIM):
        both = Native(native, name, settings, load), state.Python(name, settings, load)
        for step in (1, 64, 1024, 32768):
            some = min(n, 4096 * step)
            taken = [], []
            for _ in range(REPEATS):
                done = [join.run(some, step) for join in both]
                assert done[0].pairs == done[1].pairs
                for mine, outcome in zip(taken, done):
                    mine.append(outcome.seconds / some * 1e9)
            inside, through = map(median, taken)
            results("calls", f"batches of {step:,}", name, python=1e3 / through, native=1e3 / inside,
                    us_a_call=(through - inside) * step / 6 / 1e3, ns_a_tuple=through - inside)  # fmt: skip
        for join in both:
            join.close()


def restore(native, results):
    """A window built at once, against insertions of all its rows and Abseil's tree one by one."""
    n = two(20)
    drawn = even_keys(np.random.default_rng(17), n)
    unit = None
    for name, settings in (ABSL, *state.STORES):
        built, inserted = [], []
        for _ in range(2 * REPEATS - 1):
            for taken, step in ((built, 0), (inserted, 1)):
                if name == "absl" and step == 0:
                    continue
                with alone(native, name, settings) as store:
                    taken.append(store.insert(drawn, 0, step) / n * 1e9)
        unit = unit or median(inserted)
        how = {"build": median(built), "absl_by_build": unit / median(built)} if built else {}
        results("restore", f"{named(n)} rows", name, **how, insert=median(inserted))


def ties(native, results):
    """Equality on heavily tied keys, where all matches are written down."""
    rng = np.random.default_rng(18)
    for power in (17, 20):
        w = two(power)
        for kind in ("100 keys", "zipf"):
            drawn = _native.keys_of(state.keys_of(kind, w + 400, rng, "int64"))
            asked = np.ascontiguousarray(drawn[w:])
            stores = {}
            for name in ("carousel", "bi_sort", "pim_tree", "absl"):
                stores[name] = Alone(native, name, {})
                stores[name].insert(drawn[:w], 0, 4096)
            for step in (1, len(asked)):
                found, pairs = probing(stores, asked, asked, step)
                for name, rate in found.items():
                    results("ties", f"w = {named(w)}, {kind}, {'one by one' if step == 1 else 'at once'}", name,
                            ns_a_match=1e3 / rate / pairs, matches=pairs, ratio=rate / found["absl"])  # fmt: skip
            close(stores)


TABLES = [nested_loop, chain, depth, ratio, steps, single, matches, memory, rates, windows, keys, self_join, drift,
          drift_inserts, merges, insert_batch, insert_size, equi_partition, equi_matches, band_matches, balance,
          speedup, buffer, calls, restore, ties]  # fmt: skip
TABLES = {table.__name__: table for table in TABLES}


def rounded(value):
    """Keep three digits, which is more than they are worth."""
    return value if isinstance(value, list) else float(f"{value:.3g}")


def main():
    global SHIFT, REPEATS
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("tables", nargs="*", help=f"some of {', '.join(TABLES)}; none: all")
    parse.add_argument("--save", type=pathlib.Path, help="add the figures to this JSON file, for tests.bench.report")
    parse.add_argument("--small", action="store_true", help="sizes 64 times smaller, to see that everything runs")
    given = parse.parse_args()
    if given.small:
        SHIFT, REPEATS = 6, 2
    for name in given.tables:
        if name not in TABLES:
            parse.error(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    print(f"{_native.instructions()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    native, results = state.library(), Results()
    for name in given.tables or TABLES:
        start = time.monotonic()
        TABLES[name](native, results)
        print(f"{name}: {time.monotonic() - start:.1f} s, load {os.getloadavg()[0]:.2f}\n", flush=True)
        if given.save:
            old = json.loads(given.save.read_text()) if given.save.exists() else {}
            old = {key: value for key, value in old.items() if key.split(" | ")[0] != name}
            new = {" | ".join(key): {how: rounded(x) for how, x in value.items()}
                   for key, value in results.found.items() if key[0] == name}  # fmt: skip
            given.save.write_text(json.dumps(old | new, indent=1) + "\n")


if __name__ == "__main__":
    main()
