"""Real trips of New York's taxis, joined here and by DuckDB, give the same pairs.

An oracle in another language, on data that nobody drew: distances and fares with their own ties, times in
whole seconds that often tie, and pick-up times out of order, as the trips are in order of drop-off. DuckDB
has no sliding windows for joins, so a window is written there as a condition on row numbers or times, and
the order of results as an ORDER BY.

The file is nyc_taxi_2018_2019.parquet in the folder that DOVETAIL_DATA names, or beside the repository in
shared/data; without it these tests are skipped.
"""

import os
from itertools import pairwise
from pathlib import Path

import dovetail as dt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from dovetail import left, right

duckdb = pytest.importorskip("duckdb")

FOLDER = Path(os.environ.get("DOVETAIL_DATA") or Path(__file__).parents[2] / "shared" / "data")
FILE = FOLDER / "nyc_taxi_2018_2019.parquet"
TRIPS = 3000
COLUMNS = ["trip_id", "pickup_at", "dropoff_at", "trip_distance", "fare_amount", "pickup_zone"]

pytestmark = pytest.mark.skipif(not FILE.exists(), reason=f"{FILE.name} is not in {FOLDER}")


@pytest.fixture(scope="module")
def trips():
    """The first trips of the file, in its order, with their position."""
    table = next(pq.ParquetFile(FILE).iter_batches(TRIPS, columns=COLUMNS))
    assert table.num_rows == TRIPS
    return pa.Table.from_batches([table]).append_column("position", pa.array(range(TRIPS)))


@pytest.fixture
def ask(trips):
    """Ask DuckDB about the trips: a function from SQL to rows."""
    connection = duckdb.connect(config={"threads": 2})
    connection.register("trips", trips)
    yield lambda sql: connection.execute(sql).fetchall()
    connection.close()


def ids(*outs):
    return [
        pair
        for out in outs
        for pair in zip(out.column("trip_id").to_pylist(), out.column("trip_id_right").to_pylist(), strict=True)
    ]


def in_steps(table, rows):
    return [table.slice(at, rows).combine_chunks().to_batches()[0] for at in range(0, len(table), rows)]


ON_TWO = [left.trip_distance > right.trip_distance, left.fare_amount < right.fare_amount]
SELF_JOIN = """
    WITH n AS (SELECT *, row_number() OVER (ORDER BY dropoff_at, position) - 1 AS row FROM trips)
    SELECT l.trip_id, r.trip_id
    FROM n AS l JOIN n AS r ON l.row <> r.row
        AND l.trip_distance > r.trip_distance AND l.fare_amount < r.fare_amount
        AND least(l.row, r.row) >= {bound}
    ORDER BY greatest(l.row, r.row), least(l.row, r.row), l.row DESC
"""  # within a later tuple and an older one: first the pair in which the later is left


@pytest.mark.parametrize("index", ["auto", "nested", "carousel"])
@pytest.mark.parametrize(
    ("window", "bound"),
    [
        (dt.last(100), "greatest(l.row, r.row) - 100"),
        (dt.last(1000), "greatest(l.row, r.row) - 1000"),
        (dt.last(500, slide=70), "70 * ceil((greatest(l.row, r.row) - 500) / 70.0)"),
    ],
    ids=["last 100", "last 1000", "last 500 by 70"],
)
def test_longer_and_cheaper_among_the_last(trips, ask, window, bound, index):
    """Trips that were longer and yet cheaper than another of the last n."""
    expected = ask(SELF_JOIN.format(bound=bound))
    assert len(expected) > 1000
    join = dt.WindowJoin(trips.schema, None, on=ON_TWO, window=window, left_time="dropoff_at", index=index)
    outs = [join.push(left=batch) for batch in in_steps(trips.sort_by("dropoff_at"), 700)]
    assert ids(*outs) == expected


def test_longer_and_cheaper_through_a_flow_in_any_batches(trips, ask):
    """The same through a Flow, whose batches end where they like."""
    expected = ask(SELF_JOIN.format(bound="greatest(l.row, r.row) - 100"))
    for batch_rows in (130, 100_000):
        flow, out = dt.Flow("taxi"), dt.collect()
        s = flow.read(dt.memory(trips, batch_rows=batch_rows), name="trips", time="dropoff_at")
        s.join(s, on=ON_TWO, window=dt.last(100)).write(out)
        flow.run()
        assert ids(out.table()) == expected, batch_rows


TWO_STREAMS = """
    WITH side AS (SELECT *, trip_id % 2 AS side, epoch_us({time}) AS moment FROM trips WHERE {which}),
    n AS (SELECT *, row_number() OVER (ORDER BY moment, side, position) AS place FROM side)
    SELECT l.trip_id, r.trip_id
    FROM (FROM n WHERE side = 0) AS l JOIN (FROM n WHERE side = 1) AS r ON {on}
        AND CASE WHEN l.place < r.place THEN l.moment >= {bound_left} ELSE r.moment >= {bound_right} END
    ORDER BY greatest(l.place, r.place), least(l.place, r.place)
"""  # side 0 is left; within one later tuple, the other's row is the other's place


def even_and_odd(trips):
    odd = pc.bit_wise_and(trips["trip_id"], 1)
    return trips.filter(pc.equal(odd, 0)), trips.filter(pc.equal(odd, 1))


@pytest.mark.parametrize("index", ["auto", "nested", "carousel"])
def test_a_band_over_windows_of_time(trips, ask, index):
    """Trips of nearly the same length, the left's kept for 2 hours and the right's for 3 by ten minutes."""
    hour, slide = 3_600_000_000, 600_000_000  # microseconds
    expected = ask(
        TWO_STREAMS.format(
            time="dropoff_at",
            which="true",
            on="abs(l.trip_distance - r.trip_distance) <= 0.1",
            bound_left=f"r.moment - {2 * hour}",
            bound_right=f"{slide} * ceil((l.moment - {3 * hour}) / {slide}.0)",
        )
    )
    assert len(expected) > 500
    evens, odds = (side.sort_by("dropoff_at") for side in even_and_odd(trips))
    join = dt.WindowJoin(
        evens.schema,
        odds.schema,
        on=(left.trip_distance - right.trip_distance).abs() <= 0.1,
        window=(dt.last("2h"), dt.last("3h", slide="10min")),
        left_time="dropoff_at",
        right_time="dropoff_at",
        index=index,
    )
    # a step is what was dropped off by a moment, on both sides
    moments = [None, *trips["dropoff_at"].to_pylist()[400::400], None]
    outs = []
    for start, end in pairwise(moments):
        step = [between(side, "dropoff_at", start, end) for side in (evens, odds)]
        outs.append(join.push(left=step[0], right=step[1]))
    assert ids(*outs) == expected


def between(table, column, start, end):
    """Rows with start < time <= end, as one batch, or None."""
    times = table[column].to_pylist()
    keep = [(start is None or time > start) and (end is None or time <= end) for time in times]
    batches = table.filter(pa.array(keep)).combine_chunks().to_batches()
    return batches[0] if batches else None


@pytest.mark.parametrize("batch_rows", [50, 1000])
def test_trips_out_of_order_with_late_ones_set_aside(trips, ask, batch_rows):
    """By time of pick-up the trips are out of order: those over ten minutes behind are late."""
    late_sql = """
        SELECT trip_id FROM (
            SELECT *, max(pickup_at) OVER (
                PARTITION BY trip_id % 2 ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS greatest_before FROM trips
        ) WHERE pickup_at < greatest_before - INTERVAL 10 MINUTE
    """
    expected = ask(
        TWO_STREAMS.format(
            time="pickup_at",
            which=f"trip_id NOT IN ({late_sql})",
            on="l.pickup_zone = r.pickup_zone"
            " AND l.fare_amount >= r.fare_amount - 1 AND l.fare_amount <= r.fare_amount + 1",
            bound_left="r.moment - 43200000000",
            bound_right="l.moment - 43200000000",
        )
    )
    late = sorted(row[0] for row in ask(late_sql))
    assert len(expected) > 500
    assert 50 < len(late) < TRIPS / 2

    flow, streams, aside, out = dt.Flow("taxi"), [], [], dt.collect()
    for name, side in zip(("evens", "odds"), even_and_odd(trips)):
        source = dt.memory(side, batch_rows=batch_rows)
        streams.append(flow.read(source, name=name, time="pickup_at", delay="10min"))
        aside.append(dt.collect())
        streams[-1].late.write(aside[-1])
    on = [
        left.pickup_zone == right.pickup_zone,
        left.fare_amount.between(right.fare_amount - 1, right.fare_amount + 1),
    ]
    streams[0].join(streams[1], on=on, window=dt.last("12h")).write(out)
    flow.run()
    assert ids(out.table()) == expected
    assert sorted(trip for sink in aside for trip in sink.table()["trip_id"].to_pylist()) == late
