"""Two data centres: when does one draw less power for its racks, and more for cooling them, than the other?

A support engineer moves jobs to where they are cooled cheaply. She compares each new reading of one centre with the
recent readings of the other, on two inequalities at once and no common key:

    left.rack < right.rack   and   left.cooling > right.cooling

Run it:    python examples/power.py          or    dovetail run examples/power.py
"""

import datetime

import dovetail as dt
import numpy as np
import pyarrow as pa
from dovetail import left, right

READINGS = 60_000
WINDOW, SLIDE = 600, 60
START = np.datetime64("2026-01-05T00:00:00", "s")


def readings(seed: int, racks: float, cooling: float) -> pa.Table:
    """Simulate a centre's power meters (kilowatts): one reading in about a second, with a day's rise and fall."""
    rng = np.random.default_rng(seed)
    ts = START + np.cumsum(rng.integers(0, 3, READINGS)).astype("timedelta64[s]")
    day = np.sin(2 * np.pi * (np.arange(READINGS) / READINGS - 0.25))
    rack = racks + 60 * day + rng.normal(0, 12, READINGS)
    # Now and then a cooling unit fails to modulate for some minutes.
    stuck = np.repeat(rng.random(READINGS // 300) < 0.04, 300) * 45
    return pa.table({
        "ts": ts,
        "rack": rack.round(1),
        "cooling": (cooling + 0.35 * (rack - racks) + stuck + rng.normal(0, 5, READINGS)).round(1),
    })  # fmt: skip


flow = dt.Flow("power")
dc1 = flow.read(dt.memory(readings(1, racks=480, cooling=190)), name="dc1", time="ts")
dc2 = flow.read(dt.memory(readings(2, racks=540, cooling=230)), name="dc2", time="ts")

hotter = dc1.join(
    dc2,
    on=[left.rack < right.rack, left.cooling > right.cooling],
    window=dt.last(WINDOW, slide=SLIDE),
    suffix="_dc2",
    name="hotter",
).select("ts", "rack", "cooling", "ts_dc2", "rack_dc2", "cooling_dc2")
hotter.write(dt.show(5))
alarms = hotter.write(dt.collect())


def main() -> None:
    print(flow.explain(), end="\n\n")
    result = flow.run()  # shows the first five pairs
    print(f"\n{result}\n")
    found = alarms.table()
    print(f"{found.num_rows:,} pairs of readings in which dc1 works less and is cooled harder, by the hour:\n")
    hours = np.maximum(found["ts"].to_numpy(), found["ts_dc2"].to_numpy()).astype("datetime64[h]")
    counts = {hour: int((hours == hour).sum()) for hour in np.arange(START, hours.max() + 1, dtype="datetime64[h]")}
    most = max(counts.values())
    for hour, count in counts.items():
        clock = hour.astype(datetime.datetime)
        print(f"  {clock:%a %H:%M}  {count:>8,}  {'█' * round(40 * count / most)}".rstrip())


if __name__ == "__main__":
    main()
