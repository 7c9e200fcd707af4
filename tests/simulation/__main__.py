"""Many seeds, or one of them again: `python -m tests.simulation --seeds 50000`, `--seed 1234`."""

import argparse
import collections
import faulthandler
import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simulation.cases import Life, simulate


def one(seed):
    """Run a seed; return (seed, faults, starts, what was wrong)."""
    life = Life(seed)
    try:
        life = simulate(seed)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this seed's
        return seed, [], 0, f"{type(error).__name__}: {error}"
    return seed, [fault for _, fault, _ in life.world.happened], life.starts, None


def replay(seed):
    life = Life(seed)
    print(f"seed {seed}: window {life.window!r}, inputs {life.kind}, besides the join: {sorted(life.parts)}")
    try:
        life.live()
        print("it ends as it should")
    except Exception:  # noqa: BLE001
        traceback.print_exc()
    for now, fault, where in life.world.happened:
        print(f"  {now:10.4f} s  {fault:8} {where}")
    print(f"{life.starts} starts")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--seeds", type=int, default=50_000, help="how many")
    parser.add_argument("--first", type=int, default=1_000_000, help="of them; the tests begin with 0")
    given = parser.parse_args()
    if given.seed is not None:
        return replay(given.seed)
    begun, faults, starts, wrong, seed = time.monotonic(), collections.Counter(), 0, [], given.first
    # A seed that crashes the interpreter is an error, and says where it was.
    try:
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), initializer=faulthandler.enable) as pool:
            for done, (seed, happened, begins, problem) in enumerate(
                pool.map(one, range(given.first, given.first + given.seeds), chunksize=20), 1
            ):
                faults.update(happened)
                starts += begins
                if problem is not None:
                    wrong.append(seed)
                    print(
                        f"seed {seed}: {problem[:500]}\n  replay: python -m tests.simulation --seed {seed}", flush=True
                    )
                if done % 5000 == 0:
                    print(f"{done:,} seeds, {done / (time.monotonic() - begun) * 60:,.0f} a minute", flush=True)
    except BrokenProcessPool:
        sys.exit(
            f"a seed of the next hundred or so crashed its process: run --first {seed} --seeds 20, and on from there"
        )
    took = time.monotonic() - begun
    print(f"{given.seeds:,} seeds in {took:.0f} s ({given.seeds / took * 60:,.0f} a minute), {starts:,} starts")
    print("faults: " + ", ".join(f"{name} {count:,}" for name, count in faults.most_common()))
    sys.exit(f"{len(wrong)} seeds failed: {wrong}" if wrong else 0)


if __name__ == "__main__":
    main()
