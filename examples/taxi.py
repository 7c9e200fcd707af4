"""Taxi trips that went further and cost less: a self-join on two inequalities over the last trips.

    left.trip_distance > right.trip_distance   and   left.fare_amount < right.fare_amount

Run it:    python examples/taxi.py [trips.parquet]

The file is one of the yellow-cab trip records that New York City publishes, with columns `dropoff_at`,
`trip_distance` and `fare_amount`, in the order of `dropoff_at`. Without a file some trips are made up.
"""

import sys

import dovetail as dt
import numpy as np
import pyarrow as pa
from dovetail import left, right

TRIPS = 20_000
WINDOW = 1_000


def made_up(rows: int = TRIPS) -> pa.Table:
    """Make trips whose fares follow their distances, as fares do, but for flat rates and mistakes."""
    rng = np.random.default_rng(7)
    distance = rng.gamma(1.2, 2.5, rows).round(2)
    fare = 2.5 + 2.5 * distance + rng.gamma(1.0, 3.0, rows)
    fare = np.where(rng.random(rows) < 0.02, 52.0, fare)  # the flat rate to the airport
    fare = np.where(rng.random(rows) < 0.002, 0.0, fare)  # a meter that was not started
    ts = np.datetime64("2018-01-01", "us") + np.cumsum(rng.integers(0, 20_000_000, rows)).astype("timedelta64[us]")
    return pa.table({"trip_id": np.arange(rows), "dropoff_at": ts, "trip_distance": distance,
                     "fare_amount": fare.round(2)})  # fmt: skip


def build(source: object) -> tuple[dt.Flow, object]:
    """Write the flow for a source of trips; return it and its results."""
    flow = dt.Flow("taxi")
    trips = flow.read(source, name="trips", time="dropoff_at").filter(dt.col("trip_distance") > 0)
    cheaper = trips.join(
        trips,
        on=[left.trip_distance > right.trip_distance, left.fare_amount < right.fare_amount],
        window=dt.last(WINDOW),
        suffix="_2",
        name="cheaper",
    )
    found = cheaper.select("trip_distance", "fare_amount", "trip_distance_2", "fare_amount_2")
    found.write(dt.show(5))
    return flow, found.write(dt.collect())


flow, pairs = build(dt.memory(made_up()))


def main() -> None:
    ours, found = build(dt.parquet(sys.argv[1])) if len(sys.argv) > 1 else (flow, pairs)
    print(ours.explain(), end="\n\n")
    result = ours.run()  # shows the first five pairs
    print(f"\n{result}\n")
    table = found.table()
    saved = np.asarray(table["fare_amount_2"]) - np.asarray(table["fare_amount"])
    print(f"{table.num_rows:,} pairs of trips. The five with the largest difference:\n")
    best = table.take(pa.array(np.argsort(-saved, kind="stable")[:5]))
    top = dt.Flow("top")
    top.read(dt.memory(best)).write(dt.show(5))
    top.run()


if __name__ == "__main__":
    main()
