"""Joins that are small enough to be checked by eye.

Rows are called a0, a1, … on the left and b0, b1, … on the right, and a result is written as the two names together:
"a0b0".
"""

import dovetail as dt
import pyarrow as pa
from dovetail import left, right

EQUAL = left.x == right.x


def rows(name, times, xs=None, time_type=None, x_type=None):
    """A batch of (id, ts, x): ids by position, x 0 unless given."""
    xs = [0] * len(times) if xs is None else xs
    return pa.record_batch(
        {
            "id": pa.array([f"{name}{n}" for n in range(len(times))], pa.string()),
            "ts": pa.array(times, time_type or pa.int64()),
            "x": pa.array(xs, x_type or pa.int64()),
        }
    )


def values(name, xs, x_type=None):
    """A batch of (id, x), for joins without time."""
    return pa.record_batch(
        {
            "id": [f"{name}{n}" for n in range(len(xs))],
            "x": xs if isinstance(xs, pa.Array) else pa.array(xs, x_type),
        }
    )


def names(out):
    """A result, pair by pair."""
    both = out.column("id").to_pylist(), out.column("id_right").to_pylist()
    return [a + b for a, b in zip(*both, strict=True)]


def timed_join(a, b, window, on=EQUAL, **options):
    """A `WindowJoin` for two batches with times, or a self-join of one."""
    times = {"left_time": "ts", "right_time": None if b is None else "ts"}
    return dt.WindowJoin(a.schema, None if b is None else b.schema, on=on, window=window, **times | options)


def met(a, b, window=None, on=EQUAL, **options):
    """All pairs of two batches with times, pushed at once."""
    join = timed_join(a, b, dt.last(None) if window is None else window, on, **options)
    return names(join.push(left=a) if b is None else join.push(left=a, right=b))


def held(xs, ys, on, index="nested", x_type=None, y_type=None):
    """Which pairs a predicate holds for, whatever the order: (position, position)."""
    a, b = values("a", xs, x_type), values("b", ys, y_type)
    join = dt.WindowJoin(a.schema, b.schema, on=on, window=dt.last(None), index=index)
    out = join.push(left=a, right=b)
    return sorted(
        (int(i[1:]), int(j[1:])) for i, j in zip(out["id"].to_pylist(), out["id_right"].to_pylist(), strict=True)
    )
