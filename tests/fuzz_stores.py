"""Window indexes under random streams and settings, for as long as one likes: `make fuzz`.

Each round draws a store, its settings, a kind of stream (or a sequence of kinds), sizes of batches and windows, and
sometimes lets an allocation fail; a list says what is right. A seed that fails is printed and runs alone with
`python tests/fuzz_stores.py --seed N`.
"""

import argparse
import sys
import time

import numpy as np
from dovetail import state
from dovetail.state import _native
from test_stores import POINTS, Obvious, Stream, run


class Unreliable:
    """A store of which insertions fail now and then for lack of memory, and are then tried again."""

    def __init__(self, store, rng):
        self.store, self.rng = store, rng

    def insert(self, keys, rows):
        if self.rng.random() < 0.3:
            before = len(self.store)
            _native.fail_allocation(int(self.rng.integers(0, 12)))
            try:
                self.store.insert(keys, rows)
                return
            except MemoryError:
                _native.fail_allocation(-1)
                assert len(self.store) == before
                self.store.check()
            finally:
                _native.fail_allocation(-1)
        self.store.insert(keys, rows)

    def expire(self, before):
        if self.rng.random() < 0.3:
            _native.fail_allocation(0)
        try:
            self.store.expire(before)
        finally:
            _native.fail_allocation(-1)

    def __len__(self):
        return len(self.store)

    def __getattr__(self, name):
        return getattr(self.store, name)


def settings_of(name, rng):
    """Values of some parameters: small ones mostly, as large ones make little happen in a short stream."""
    for *_, parameters in [kind for kind in (*_native.kinds(), *_native.box_kinds()) if kind[0] == name]:
        chosen = {}
        for key, standard, least, most, _ in parameters:
            if rng.random() < 0.6:
                low = max(least, 1e-3)
                value = low * (min(most, max(standard, low * 64)) / low) ** (rng.random() ** 2)
                chosen[key] = float(value) if standard != int(standard) or most <= 1 else float(int(value))
        return chosen
    raise AssertionError(name)


def one(seed, names):
    """Run one seed; raise if anything is wrong."""
    rng = np.random.default_rng(seed)
    name = str(rng.choice(names))
    settings = settings_of(name, rng)
    kind = str(rng.choice(Stream.KINDS))
    store = state.make(name, "int64", **settings)
    sizes = [0, *rng.integers(1, int(rng.choice([3, 40, 900])), 4).tolist()]
    windows = rng.integers(0, int(rng.choice([5, 200, 3000])), 3).tolist()
    what = f"{name} {settings} {kind} sizes {sizes} windows {windows}"
    portable = _native.force_portable(bool(rng.random() < 0.3))
    try:
        checked = Unreliable(store, rng) if rng.random() < 0.4 else store
        run(checked, Obvious(), Stream(kind, rng), rng, int(rng.integers(5, 60)), sizes, windows,
            consecutive=bool(rng.random() < 0.5), points=name in POINTS)  # fmt: skip
    except BaseException:
        print(f"seed {seed}: {what}", file=sys.stderr)
        raise
    finally:
        _native.force_portable(portable)


def main():
    """Run seeds one after the other."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--seed", type=int, help="run this one alone")
    parse.add_argument("--first", type=int, default=0)
    parse.add_argument("--verbose", action="store_true", help="print each seed, for crashes that end the process")
    parse.add_argument("--minutes", type=float, default=5)
    parse.add_argument("stores", nargs="*", default=sorted(state.names()))
    given = parse.parse_args()
    if given.seed is not None:
        one(given.seed, given.stores)
        return
    until, seed = time.monotonic() + 60 * given.minutes, given.first
    while time.monotonic() < until:
        if given.verbose:
            print("seed", seed, flush=True)
        one(seed, given.stores)
        seed += 1
    print(f"{seed - given.first:,} streams, all right")


if __name__ == "__main__":
    main()
