"""The window indexes, measured as the papers measure them: `make bench-state`.

A band join of two streams over count windows with two matches a tuple, in millions of tuples a second of both
streams, on one core, in CPU time. Beside each figure stands its ratio to Abseil's `btree_multimap` with one insert and
one delete a tuple, run in the same minute. `python -m tests.bench.state carousel bi_sort` measures some of them.
"""

import argparse
import ctypes
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from dovetail import state
from dovetail.state import _native

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
TARGET_MATCHES = 2.0


class Work(ctypes.Structure):
    _fields_ = [
        ("keys", ctypes.c_void_p * 2), ("lo", ctypes.c_void_p * 2), ("hi", ctypes.c_void_p * 2),
        ("n", ctypes.c_int64), ("warm", ctypes.c_int64), ("w", ctypes.c_int64),
    ]  # fmt: skip


class Outcome(ctypes.Structure):
    _fields_ = [
        ("seconds", ctypes.c_double), ("pairs", ctypes.c_int64), ("checksum", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
    ]  # fmt: skip


def library():
    """Compile the reference beside the stores, with the compiler's flags of the package."""
    to = pathlib.Path(tempfile.gettempdir()) / f"dovetail-reference-{os.getuid()}.so"
    sources = [HERE / "reference.cc", *sorted((ROOT / "state").glob("*.cc"))]
    newest = max(p.stat().st_mtime for p in [*sources, *(ROOT / "state").glob("*.hpp")])
    if not to.exists() or to.stat().st_mtime < newest:
        command = [
            "g++",
            "-std=c++17",
            "-O3",
            "-DNDEBUG",
            "-shared",
            "-fPIC",
            f"-I{ROOT / 'state'}",
            *map(str, sources),
        ]
        command += ["-labsl_throw_delegate", "-labsl_raw_logging_internal", "-o", str(to)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{done.stderr}\nThe benchmark needs Abseil: apt-get install libabsl-dev")
    found = ctypes.CDLL(str(to))
    for name in ("run_absl", "run_multimap", "run_store"):
        getattr(found, name).restype = Outcome
    return found


def keys_of(kind, n, rng, dtype):
    """Keys of one distribution, both streams alike."""
    if kind == "uniform":
        values = rng.random(n)
    elif kind == "gaussian":
        values = rng.normal(0.5, 0.125, n)
    elif kind == "gamma":
        values = rng.gamma(1, 1 / 5, n)
    elif kind == "zipf":
        values = np.minimum(rng.zipf(1.2, n).astype(float), 2.0**52) / 2.0**52
    elif kind == "100 keys":
        values = rng.integers(0, 100, n) / 100
    elif kind == "sorted":
        values = np.arange(n) / n
    elif kind.startswith("drift"):
        r = float(kind.split()[1])
        middle = np.linspace(0.5, 0.5 + r, n)
        values = rng.normal(0, 0.125, n) + middle
    else:
        raise ValueError(kind)
    return (values * 2.0**52).astype(np.int64) if dtype == "int64" else values


def probes_of(kind, keys, w, rng):
    """What each tuple looks for: a band around its own key that holds two rows of a window on average.

    Of heavily tied keys no band holds two rows: there the probes are pairs of neighbouring rare keys.
    """
    sample = np.sort(keys[: min(len(keys), w)])
    if kind in ("zipf", "100 keys"):
        values, counts = np.unique(sample, return_counts=True)
        rare = values[counts <= max(1, np.quantile(counts, 0.2))]
        at = rng.integers(0, max(1, len(rare) - 1), len(keys))
        return rare[at], rare[at]
    low, high = 0.0, float(sample[-1] - sample[0])
    asked = sample[rng.integers(0, len(sample), 2000)]
    for _ in range(60):
        width = (low + high) / 2
        d = np.array(width).astype(keys.dtype)
        hits = np.searchsorted(sample, asked + d, "right") - np.searchsorted(sample, asked - d, "left")
        if hits.mean() * (w / len(sample)) > TARGET_MATCHES + 1:  # its own row is among them
            high = width
        else:
            low = width
    d = np.array((low + high) / 2).astype(keys.dtype)
    return keys - d, keys + d


class Load:
    """Both streams of one experiment."""

    def __init__(self, kind, w, dtype="int64", tuples=None, seed=1):
        rng = np.random.default_rng(seed)
        self.kind, self.w, self.dtype = kind, w, dtype
        self.warm = w + 4096
        self.n = self.warm + (tuples or max(2 * 32768, min(w, 1 << 20)))
        self.keys, self.lo, self.hi = [], [], []
        for _ in range(2):
            keys = keys_of(kind, self.n, rng, dtype)
            lo, hi = probes_of(kind, keys, w, rng)
            self.keys.append(keys), self.lo.append(lo), self.hi.append(hi)
        self.native = [[_native.keys_of(a) for a in side] for side in (self.keys, self.lo, self.hi)]
        self.work = Work(*[(ctypes.c_void_p * 2)(*[a.ctypes.data for a in side]) for side in self.native],
                         self.n, self.warm, w)  # fmt: skip

    @property
    def tuples(self):
        return 2 * (self.n - self.warm)


def through_python(name, settings, load, batch):
    """The store as Python sees it: an insert, a probe and an expire a batch and stream."""
    stores = [state.make(name, load.dtype, **settings) for _ in range(2)]
    for at in range(0, load.warm, 32768):
        for store, keys in zip(stores, load.keys, strict=True):
            store.insert(keys[at : min(load.warm, at + 32768)], at)
    numbers = np.arange(load.n)
    froms = [np.maximum(0, numbers + side - load.w) for side in range(2)]
    tos = [numbers + side for side in range(2)]
    pairs, most = 0, max(stores[0].nbytes, 1)
    start = time.thread_time()
    for at in range(load.warm, load.n, batch):
        part = slice(at, min(load.n, at + batch))
        for store, keys in zip(stores, load.keys, strict=True):
            store.insert(keys[part], at)
        for side in range(2):
            _, row = stores[1 - side].probe(
                load.lo[side][part], load.hi[side][part], froms[side][part], tos[side][part]
            )
            pairs += len(row)
        for store in stores:
            store.expire(part.stop - load.w)
    seconds = time.thread_time() - start
    most = max(stores[0].nbytes, stores[1].nbytes)
    return load.tuples / seconds / 1e6, pairs, most / load.w


def in_one_call(native, name, settings, load, step):
    """The same inside one native call, `step` tuples of each stream at a time."""
    keys = (ctypes.c_char_p * len(settings))(*[k.encode() for k in settings])
    values = (ctypes.c_double * len(settings))(*settings.values())
    outcome = native.run_store(
        name.encode(), keys, values, ctypes.c_size_t(len(settings)), ctypes.byref(load.work), ctypes.c_int64(step), None
    )
    return load.tuples / outcome.seconds / 1e6, outcome.pairs, outcome.checksum


def reference(native, which, load):
    outcome = getattr(native, f"run_{which}")(ctypes.byref(load.work))
    return load.tuples / outcome.seconds / 1e6, outcome.pairs, outcome.checksum


def quick(names, w, kind, dtype, rounds):
    """One window, one distribution: each store at several batch sizes, beside the trees."""
    native, load = library(), Load(kind, w, dtype)
    print(f"w = {w:,}, {kind}, {dtype}, load {os.getloadavg()[0]:.2f}")
    rates = {}
    for _ in range(rounds):
        rates.setdefault("absl", []).append(reference(native, "absl", load)[0])
        _, expected, checksum = reference(native, "absl", load)
        for name, settings in names:
            for step in (1, 64, 1024, 32768):
                rate, pairs, mine = in_one_call(native, name, settings, load, step)
                assert (pairs, mine) == (expected, checksum), (name, pairs, expected)
                rates.setdefault((name, f"step {step}"), []).append(rate)
            for batch in (1024, 32768):
                rate, pairs, size = through_python(name, settings, load, batch)
                assert pairs == expected, (name, pairs, expected)
                rates.setdefault((name, f"python {batch}"), []).append(rate)
    unit = statistics.median(rates["absl"])
    print(f"  {'absl':<32} {unit:8.2f} M tuples/s   {expected / load.tuples:.2f} matches")
    for key, values in rates.items():
        if key != "absl":
            rate = statistics.median(values)
            print(f"  {' '.join(key):<32} {rate:8.2f} M tuples/s   {rate / unit:6.2f} × absl")
    print(f"  bytes a tuple: {size:.1f}")


def main():
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("stores", nargs="*", default=["carousel"])
    parse.add_argument("--w", type=int, default=1 << 20)
    parse.add_argument("--keys", default="uniform")
    parse.add_argument("--dtype", default="int64")
    parse.add_argument("--rounds", type=int, default=1)
    given = parse.parse_args()
    names = []
    for text in given.stores:
        name, *settings = text.split(",")
        names.append((name, {k: float(v) for k, v in (s.split("=") for s in settings)}))
    quick(names, given.w, given.keys, given.dtype, given.rounds)


if __name__ == "__main__":
    main()
