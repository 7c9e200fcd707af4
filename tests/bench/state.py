"""The window indexes, measured as the papers measure them: `make bench-state`.

A window join of two streams on one core, in CPU time, in millions of tuples a second of both streams. Beside each
figure stands its ratio to Abseil's `btree_multimap` with one insert and one delete a tuple, run in the same minute on
the same tuples; pairs are counted and compared, so that nothing wrong can be fast.

`python -m tests.bench.state` runs all tables and draws the plots of docs/; `… windows keys` runs some tables;
`… --stores carousel,bi_sort:buffer=4096 --w 1048576 --keys gaussian` looks at one case.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import time

import numpy as np
from dovetail import state
from dovetail.state import _native

from .compiled import compiled

STRETCHES = 4 * int(os.environ.get("DOVETAIL_ROUNDS", "3"))
KEYS = ("uniform", "gaussian", "gamma", "zipf", "100 keys", "dense", "sorted", "drift 0.2", "drift 1")


class Work(ctypes.Structure):
    _fields_ = [
        ("keys", ctypes.c_void_p * 2), ("lo", ctypes.c_void_p * 2), ("hi", ctypes.c_void_p * 2),
        ("from_", ctypes.c_void_p * 2), ("to", ctypes.c_void_p * 2), ("side", ctypes.c_void_p),
        ("self_join", ctypes.c_int64),
    ]  # fmt: skip


class Outcome(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_double) for name in ("seconds", "insert", "probe", "expire")],
        *[(name, ctypes.c_int64) for name in ("pairs", "checksum", "bytes")],
    ]


def library():
    """Compile the reference beside the stores, with the compiler's flags of the package."""
    links = ["-labsl_throw_delegate", "-labsl_raw_logging_internal"]
    found = compiled("reference", *links, needs="The benchmark needs Abseil: apt-get install libabsl-dev")
    found.open_join.restype = ctypes.c_void_p
    found.open_join.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    found.run_join.restype = Outcome
    found.run_join.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_int]
    found.close_join.argtypes = [ctypes.c_void_p]
    found.open_store.restype = ctypes.c_void_p
    found.open_store.argtypes = found.open_join.argtypes
    found.close_store.argtypes = [ctypes.c_void_p]
    found.insert_rows.restype = found.expire_rows.restype = ctypes.c_double
    found.look_up.restype = found.look_up_left.restype = ctypes.c_double
    found.insert_rows.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3]
    found.expire_rows.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 3]
    found.probe_rows.restype = Outcome
    found.probe_rows.argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 4]
    found.look_up.argtypes = found.look_up_left.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return found


# Streams ----------------------------------------------------------------------------------------------------------


def keys_of(kind, n, rng, dtype):
    """Keys of one distribution, as the papers draw them."""
    if kind == "uniform":
        values = rng.random(n)
    elif kind == "gaussian":
        values = rng.normal(0.5, 0.125, n)
    elif kind == "gamma":
        values = rng.gamma(1, 1 / 5, n)
    elif kind.startswith("gamma"):  # gamma k θ
        values = rng.gamma(*map(float, kind.split()[1:]), n)
    elif kind == "zipf":
        values = np.minimum(rng.zipf(1.2, n).astype(float), 2.0**52) / 2.0**52
    elif kind == "100 keys":
        values = rng.integers(0, 100, n) / 100
    elif kind == "dense":  # such as prices in cents: ends of bands are stored keys
        values = rng.integers(0, 1 << 20, n) / 2.0**52
    elif kind == "sorted":
        values = np.arange(n) / n
    elif kind.startswith("drift"):
        values = rng.normal(0, 0.125, n) + np.linspace(0.5, 0.5 + float(kind.split()[1]), n)
    else:
        raise ValueError(kind)
    return (values * 2.0**52).astype(np.int64) if dtype == "int64" else values


def bands(kind, keys, window, stored, matches, rng):
    """What each tuple looks for in a window of the other stream, so that it finds so many rows on average.

    Of heavy keys no band holds two rows: there, rare keys are looked for, and what follows them up to so many percent
    more (zipf), or all rows of a key by so few tuples that there are two rows a tuple (100 keys).
    """
    sample = np.sort(stored[: min(len(stored), window)])
    if kind == "100 keys":
        asks = rng.random(len(keys)) < matches * 100 / window
        return np.where(asks, keys, keys.dtype.type(1)), np.where(asks, keys, keys.dtype.type(0))
    if kind == "zipf":
        values, counts = np.unique(keys, return_counts=True)
        centres = rng.choice(values[counts == 1], len(keys))
        ends, high = lambda x, share: (x, x + (x * share).astype(x.dtype)), 1.0
    else:
        centres = keys
        ends, high = lambda x, width: (x - x.dtype.type(width), x + x.dtype.type(width)), float(sample[-1] - sample[0])
    asked, low = centres[rng.integers(0, min(len(keys), window), 4000)], 0.0
    for _ in range(60):
        lo, hi = ends(asked, (low + high) / 2)
        hits = np.searchsorted(sample, hi, "right") - np.searchsorted(sample, lo, "left")
        if hits.mean() * (window / len(sample)) > matches:
            high = (low + high) / 2
        else:
            low = (low + high) / 2
    return ends(centres, (low + high) / 2)


class Load:
    """Two streams, the order in which they come, what each tuple looks for and the rows that it may meet."""

    def __init__(self, kind="uniform", w=1 << 20, dtype="int64", *, tuples=None, matches=2.0, windows=None, every=1,
                 burst=None, seed=1, stretches=STRETCHES):  # fmt: skip
        """`windows`: rows of the left's and the right's; `every`: one left tuple for so many right ones.

        `burst`: windows by time, of w tuples while tuples come fast; then, for a while, they come so much slower.
        """
        rng = np.random.default_rng(seed)
        self.kind, self.w, self.dtype = kind, w, dtype
        windows = windows or (w, w)
        self.measured = tuples or max(1 << 17, min(w, 1 << 19))
        total = (max(windows) * (every + 1) + 8192) if burst is None else 4 * w
        self.warm = total
        total += self.measured * stretches
        self.total = total
        self.side = (np.arange(total) % (every + 1) > 0).astype(np.uint8)
        counts = np.stack([np.cumsum(self.side == s) for s in (0, 1)])
        n = counts[:, -1].tolist()
        self.counts = np.concatenate([[[0], [0]], counts], axis=1)
        self.keys = [keys_of(kind, n[s], rng, dtype) for s in (0, 1)]
        found = [bands(kind, self.keys[s], windows[1 - s], self.keys[1 - s], matches, rng) for s in (0, 1)]
        self.lo, self.hi = [f[0] for f in found], [f[1] for f in found]
        self.to, self.from_ = [], []
        if burst is not None:
            quiet = max(256, 20 * w // burst)
            times = np.cumsum(np.where(np.arange(total) % (3 * w + quiet) < 3 * w, 1.0, float(burst)))
        for s in (0, 1):
            mine = np.flatnonzero(self.side == s)
            before = np.append(self.counts[1 - s][mine], n[1 - s])
            self.to.append(before.astype(np.int64))
            if burst is None:
                self.from_.append(np.maximum(0, before - windows[1 - s]).astype(np.int64))
            else:
                theirs = times[self.side != s]
                now = np.append(times[mine], times[-1])
                self.from_.append(np.searchsorted(theirs, now - w).astype(np.int64))
        self.native = [[_native.keys_of(a) for a in side] for side in (self.keys, self.lo, self.hi)]
        arrays = [*self.native, self.from_, self.to]
        self.work = Work(*[(ctypes.c_void_p * 2)(*[a.ctypes.data for a in side]) for side in arrays],
                         self.side.ctypes.data)  # fmt: skip


class Native:
    """A join inside native calls; the windows are filled once."""

    def __init__(self, library, name, settings, load):
        keys = (ctypes.c_char_p * len(settings))(*[k.encode() for k in settings])
        values = (ctypes.c_double * len(settings))(*settings.values())
        self.library, self.load = library, load
        self.running = library.open_join(name.encode(), keys, values, len(settings))
        self.at = 0
        self.run(load.warm, 65536, join=False)

    def run(self, n, step, *, join=True):
        done = self.library.run_join(self.running, ctypes.byref(self.load.work), self.at, n, step, join)
        self.at += n
        return done

    def close(self):
        self.library.close_join(self.running)


class Python:
    """The same through the stores as Python sees them: an insert, a probe and an expire a step and stream."""

    def __init__(self, name, settings, load):
        self.load, self.at = load, 0
        self.stores = [state.make(name, load.dtype, **settings) for _ in range(2)]
        self.run(load.warm, 65536, join=False)

    def run(self, n, step, *, join=True):
        load, stores = self.load, self.stores
        outcome = Outcome()
        start = time.thread_time()
        for at in range(self.at, self.at + n, step):
            until = min(self.at + n, at + step)
            parts = [slice(int(load.counts[s][at]), int(load.counts[s][until])) for s in (0, 1)]
            for s in (0, 1):
                stores[s].insert(load.keys[s][parts[s]], parts[s].start)
            if join:
                for s in (0, 1):
                    asked = [column[s][parts[s]] for column in (load.lo, load.hi, load.from_, load.to)]
                    outcome.pairs += len(stores[1 - s].probe(*asked)[1])
            for s in (0, 1):
                stores[s].expire(int(load.from_[1 - s][parts[1 - s].stop]))
        outcome.seconds = time.thread_time() - start
        outcome.bytes = sum(store.nbytes for store in stores)
        self.at += n
        return outcome

    def close(self):
        self.stores = []


def rates(library, stores, load, steps, python_steps=(), portable=False):
    """M tuples/s of each (store, step), medians of some rounds, in turn beside Abseil's tree; and other figures.

    All run through the same stretches of the streams, so that the pairs of each stretch can be compared.
    """
    joins = {label(*store): Native(library, *store, load) for store in [("absl", {}), *stores]}
    if python_steps:
        joins |= {("python", label(*store)): Python(*store, load) for store in stores}
    found, other, expected = {}, {}, {}
    n = load.measured
    library.force_portable(portable)
    _native.force_portable(portable)
    for stretch in range(STRETCHES):
        for key, join in joins.items():
            python = isinstance(key, tuple)
            choice = (1,) if key == "absl" else python_steps if python else steps
            step = choice[stretch % len(choice)]
            some = n if step >= 64 or not python else min(n, 8192)
            outcome = join.run(some, step)
            pairs = outcome.pairs + (join.run(n - some, 32768).pairs if some < n else 0)
            if key == "absl":
                expected[stretch] = pairs, outcome.checksum
            assert pairs == expected[stretch][0], (key, step, pairs, expected[stretch])
            assert python or outcome.checksum == expected[stretch][1], (key, step)
            found.setdefault((key, step), []).append(some / outcome.seconds / 1e6)
            ns = [x / some * 1e9 for x in (outcome.insert, outcome.probe, outcome.expire)]
            other[key, step] = {"bytes": outcome.bytes / 2 / load.w, "matches": outcome.pairs / some, "ns": ns}
    library.force_portable(False)
    _native.force_portable(False)
    for join in joins.values():
        join.close()
    return {key: statistics.median(values) for key, values in found.items()}, other


def label(name, settings):
    return name + "".join(f" {k}={v:g}" for k, v in settings.items())


# What is shown ----------------------------------------------------------------------------------------------------


def one_case(library, stores, load):
    """Print all that there is to say of one case."""
    print(f"w = {load.w:,}, {load.kind}, {load.dtype}; {_native.instructions()}; load {os.getloadavg()[0]:.2f}")
    steps, python_steps = (1, 64, 1024, 32768), (1, 64, 1024, 32768)
    found, other = rates(library, stores, load, steps, python_steps)
    unit = found["absl", 1]
    print(f"  absl, tuple by tuple: {unit:.2f} M tuples/s; {other['absl', 1]['matches']:.2f} pairs a tuple")
    for (key, step), rate in found.items():
        if key == "absl":
            continue
        facts = other[key, step]
        name, how = (key[1], "through Python") if isinstance(key, tuple) else (key, "in one call")
        ns = (
            ""
            if isinstance(key, tuple) or step < 64
            else "insert {:.0f}, probe {:.0f}, expire {:.0f} ns".format(*facts["ns"])
        )
        print(f"  {name:<24} step {step:>6} {how:<15}{rate:8.2f} M/s {rate / unit:6.2f} × absl", end="")
        print(f"  {facts['bytes']:5.1f} B  {ns}")


STORES = [(name, {}) for name, _, ranges, _ in _native.kinds() if ranges and name != "nested"]
# These put most rows into one partition, which a probe reads whole: a hundred times slower than a tree.
HOPELESS = {(s, k) for s in ("llat", "rap_table") for k in ("sorted", "drift 1")} | {
    ("llat", "zipf"),
    ("llat", "100 keys"),
}
WINDOWS = (1 << 14, 1 << 17, 1 << 20, 1 << 23)
BATCHES = (1, 64, 1024, 32768)


def measure(library, store, load, steps, python_steps, portable=False):
    """One store beside Abseil's tree: {"in one call 64": (M/s, ratio, bytes, matches), …}."""
    stores = [] if store[0] == "absl" else [store]
    found, other = rates(library, stores, load, steps, python_steps, portable)
    unit = found["absl", 1]
    out = {}
    for (key, step), rate in found.items():
        how = "tuple by tuple" if key == "absl" else f"{'python' if isinstance(key, tuple) else 'native'} {step}"
        facts = other[key, step]
        out[how] = {"rate": rate, "ratio": rate / unit, "bytes": facts["bytes"], "matches": facts["matches"]}
    return out


def windows(library, results):
    """Each store at several windows and batches: one tuple a time in one call, the others through Python."""
    for w in WINDOWS:
        load = Load("uniform", w)
        for store in [("multimap", {}), *STORES]:
            plain = store[0] == "multimap"
            results["windows", w, label(*store)] = measure(library, store, load, (1,), () if plain else BATCHES[1:])
            tell(results, ("windows", w, label(*store)))


def distributions(library, results):
    """Each store on keys of each distribution, and on floats."""
    floats = [(kind, "float64") for kind in ("uniform", "gaussian", "dense")]
    for kind, dtype in [*((kind, "int64") for kind in KEYS), *floats]:
        load = Load(kind, 1 << 20, dtype, tuples=1 << 18)
        for store in STORES:
            if (store[0], kind) in HOPELESS:
                continue
            results["keys", f"{kind}, {dtype}", label(*store)] = measure(library, store, load, (1,), (1024, 32768))
            tell(results, ("keys", f"{kind}, {dtype}", label(*store)))


def match_rates(library, results):
    """Pairs a tuple from 2^-4 to 2^10, at w = 2^17."""
    for power in range(-4, 11, 2):
        load = Load("uniform", 1 << 17, matches=2.0**power, tuples=1 << 17 if power < 4 else 1 << 14)
        for store in STORES:
            # Few probes a call where each finds many: nobody keeps a gigabyte of pairs.
            batch = 32768 if power < 6 else 1024
            results["matches", 2.0**power, label(*store)] = measure(library, store, load, (1,), (batch,))
            tell(results, ("matches", 2.0**power, label(*store)))


def shapes(library, results):
    """The carousel on windows that are tiny (beside a scan), uneven or of time, and without vector instructions."""
    carousel = ("carousel", {})
    for w in (64, 128, 256, 512, 1024, 4096):
        for store in (carousel, ("nested", {})):
            results["small", w, store[0]] = measure(library, store, Load(w=w), (1, 1024), (1024,))
            tell(results, ("small", w, store[0]))
    cases = {
        **{f"w = 2^{p}": Load(w=1 << p) for p in range(10, 24, 2)},
        "rates 1 : 100": Load(every=100, w=1 << 17),
        "windows 1 : 8": Load(windows=(1 << 17, 1 << 20)),
        "time windows, rate varies 10 times": Load(w=1 << 16, burst=10),
        "time windows, rate varies 1,000 times": Load(w=1 << 16, burst=1000),
    }
    for name, load in cases.items():
        results["shapes", name, "carousel"] = measure(library, carousel, load, (1, 32768), (32768,))
        tell(results, ("shapes", name, "carousel"))
    for w in WINDOWS:
        results["portable", w, "carousel"] = measure(library, carousel, Load(w=w), (1, 32768), (32768,), portable=True)
        tell(results, ("portable", w, "carousel"))


def grid(library, results):
    """The carousel on all keys, windows and batches, with vector instructions and without."""
    carousel = ("carousel", {})
    for w in WINDOWS:
        for kind, dtype in [(kind, dtype) for kind in KEYS for dtype in ("int64", "float64")]:
            load = Load(kind, w, dtype, tuples=1 << 17)
            for table, portable in (("grid", False), ("grid portable", True)):
                results[table, f"{kind}, {dtype}", w] = measure(library, carousel, load, BATCHES, (), portable)
                tell(results, (table, f"{kind}, {dtype}", w))


def largest(_, results):
    """The carousel on a window of 2^26 rows: too large for a `Load`, so its keys are drawn as they come."""
    w, batch, measured = 1 << 26, 1 << 16, 1 << 23
    rng = np.random.default_rng(1)
    store = state.make("carousel", "int64")
    width, seconds, pairs, asked = (1 << 62) // w, 0.0, 0, 0
    for at in range(0, w + measured, batch):
        keys = rng.integers(0, 1 << 62, batch)
        row_lo, row_hi = np.full(batch, max(0, at - w)), np.full(batch, at)
        start = time.thread_time()
        store.insert(keys, at)
        if at >= w:
            pairs += len(store.probe(keys - width, keys + width, row_lo, row_hi)[1])
            store.expire(at + batch - w)
            seconds += time.thread_time() - start
            asked += batch
    store.check()
    assert len(store) == w
    # Each row is found by its own key.
    some = rng.integers(0, len(keys), 1000)
    found = store.probe(keys[some], keys[some], np.full(1000, at), np.full(1000, at + batch))[1]
    assert set(found - at) == set(np.flatnonzero(np.isin(keys, keys[some])))
    rate, size = asked / seconds / 1e6, store.nbytes / w
    facts = {"rate": rate, "ratio": 0.0, "bytes": size, "matches": pairs / asked}
    results["largest", "w = 2^26", "carousel"] = {f"python {batch}": facts}
    tell(results, ("largest", "w = 2^26", "carousel"))


TABLES = {
    "windows": windows, "shapes": shapes, "matches": match_rates, "keys": distributions, "grid": grid,
    "largest": largest,
}  # fmt: skip


def rounded(figures):
    """Keep three digits, which is more than they are worth."""
    return {how: {name: float(f"{x:.3g}") for name, x in facts.items()} for how, facts in figures.items()}


def tell(results, key):
    """Print a line of a table as soon as it is known."""
    figures = "  ".join(f"{how} {f['rate']:.2f} ({f['ratio']:.1f} ×)" for how, f in results[key].items())
    size = max(f["bytes"] for f in results[key].values())
    print(f"{key[0]} {key[1]!s:<24} {key[2]:<14} {figures}  {size:.0f} B", flush=True)


def stores_of(texts):
    """Read `name:parameter=value:…`."""
    found = []
    for text in texts:
        name, *settings = text.split(":")
        found.append((name, {k: float(v) for k, v in (s.split("=") for s in settings)}))
    return found


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("tables", nargs="*", help=f"some of {', '.join(TABLES)}; none of them and no --stores: all")
    parse.add_argument("--stores", help="name:parameter=value, separated by commas: look at one case")
    parse.add_argument("--w", type=int, default=1 << 20)
    parse.add_argument("--keys", default="uniform", choices=KEYS)
    parse.add_argument("--dtype", default="int64", choices=("int64", "float64"))
    parse.add_argument("--matches", type=float, default=2.0)
    parse.add_argument("--save", type=pathlib.Path, help="add the figures to this JSON file, for tests.bench.report")
    given = parse.parse_args()
    if given.stores:
        load = Load(given.keys, given.w, given.dtype, matches=given.matches)
        one_case(library(), stores_of(given.stores.split(",")), load)
        return
    print(f"{_native.instructions()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    native, results = library(), {}
    for table in given.tables or TABLES:
        TABLES[table](native, results)
        if given.save:
            old = json.loads(given.save.read_text()) if given.save.exists() else {}
            new = {" | ".join(map(str, key)): rounded(value) for key, value in results.items()}
            given.save.write_text(json.dumps(old | new, indent=1) + "\n")


if __name__ == "__main__":
    main()
