"""The matrix: the same input gives the same results in the same order, however it is run.

Three families, all on cases drawn by streams.py and all compared with the oracle, never with another run
of the library alone (two runs could be wrong alike):

- `test_push_*`: `WindowJoin.push` in any steps, with each index that the predicate allows.
- `test_flow_*`: the same through a `Flow`: any batches, sources out of order, late rows, joins of joins.
- `test_moved_*`: what may be done to the input itself: shifting all times by whole slides, or all keys, and swapping
  the sides where no time of one is a time of the other.

DOVETAIL_EXAMPLES says how many cases each test draws; with CI set they are the same ones every time.
"""

import math
from collections import Counter
from dataclasses import replace

import dovetail as dt
import oracle
import pyarrow as pa
import pytest
from dovetail import left, right
from hypothesis import assume, given
from hypothesis import strategies as st
from running import (
    INDEXES,
    batches,
    can_be_written,
    check_payload,
    check_schema,
    expected_flow,
    expected_steps,
    flowed,
    ids,
    ids_of,
    in_one_step,
    joins,
    merged,
    must_allow,
    push_arguments,
    read,
    read_options,
    steps,
    window_join,
)
from streams import Columns, Conditions, Side, a_window, cases, examples, said_window

# Through WindowJoin.push


@examples(2)
@given(cases())
def test_push_in_any_steps_with_any_index(case):
    """Each step's pairs, their order and their payload; untimed joins too."""
    cut = steps(case)
    expected = expected_steps(case, cut)
    for index, join in joins(case).items():
        outs = [join.push(**push_arguments(case, step)) for step in cut]
        assert [ids(out) for out in outs] == expected, index
        for out in outs:
            assert isinstance(out, pa.RecordBatch)
            check_payload(case, out)


@examples()
@given(cases(timed=True))
def test_push_at_once_or_row_by_row(case):
    """With times, neither one step for all nor one step for each row changes anything."""
    [expected] = expected_steps(case, in_one_step(case))
    for index, join in joins(case).items():
        assert ids(join.push(**push_arguments(case, in_one_step(case)[0]))) == expected, index
    join, out = window_join(case), []
    for side, _, row in merged(case):
        out += ids(join.push(**{("left", "right")[side]: case.both[side].batch([row])}))
    assert out == expected


@examples()
@given(cases())
def test_push_in_slices(case):
    """`max_rows` cuts a step's results into slices of at most so many, and nothing else."""
    cut, most = steps(case), case.rng("slices").choice([1, 2, 7, 1000])
    for index, join in joins(case).items():
        for step, expected in zip(cut, expected_steps(case, cut)):
            slices = list(join.push(**push_arguments(case, step), max_rows=most))
            assert [pair for out in slices for pair in ids(out)] == expected, index
            assert all(out.num_rows <= most for out in slices)
            for out in slices:
                check_payload(case, out)


@examples(0.5)
@given(cases())
def test_push_without_order(case):
    """`ordered=False` gives each step the same pairs, in any order."""
    cut = steps(case)
    for index, join in joins(case, ordered=False).items():
        outs = [join.push(**push_arguments(case, step)) for step in cut]
        assert [Counter(ids(out)) for out in outs] == [Counter(pairs) for pairs in expected_steps(case, cut)], index


@pytest.mark.parametrize("index", sorted(dt.state.names()))
@pytest.mark.parametrize("window", [dt.last(None), dt.last(3), dt.last(time=40), dt.last(time=40, slide=7)])
def test_push_in_hundreds_of_steps_of_one_row(index, window):
    """Far more and smaller steps than there are batches worth keeping: the same as one step for all."""
    schema = pa.schema([("id", pa.int64()), ("ts", pa.int64()), ("x", pa.int64())])
    rows = [
        pa.record_batch({"id": [n], "ts": [n // 3], "x": [n % 2]}, schema=schema) for n in range(400)
    ]  # three of one time: left, left, right

    def join():
        on = left.x == right.x
        return dt.WindowJoin(schema, schema, on=on, window=window, index=index, left_time="ts", right_time="ts")

    sides = [[row for n, row in enumerate(rows) if (n % 3 == 2) == (side == "right")] for side in ("left", "right")]
    once = join().push(left=pa.concat_batches(sides[0]), right=pa.concat_batches(sides[1]))
    small, out = join(), []
    for n, row in enumerate(rows):
        out += ids(small.push(**{"right" if n % 3 == 2 else "left": row}))
    assert len(out) > 400
    assert out == ids(once)


# Through a Flow


@examples()
@given(cases(timed=True))
def test_flow_in_any_batches(case):
    """Sources out of order, late rows set aside, batches cut anywhere, empty ones among them."""
    assume(can_be_written(case))
    cut = [batches(case, side) for side in case.both]
    index = case.rng("index").choice([name for name in INDEXES if must_allow(case, name)])
    table, late = flowed(case, cut[0], cut[-1], index=index)
    assert ids(table) == expected_flow(case)
    assert late == [[row["id"] for row in read(side)[1]] for side in case.both]
    check_payload(case, table)


@examples(0.5)
@given(cases(timed=True), st.sampled_from([1, 2, 7, 100]))
def test_flow_in_batches_of_a_size(case, n):
    """`dt.memory(table, batch_rows=n)` gives the same for every n."""
    assume(can_be_written(case))
    flow, streams = dt.Flow("sizes"), []
    for name, side in zip("ab", case.both):
        table = pa.Table.from_batches([side.batch()])
        streams.append(flow.read(dt.memory(table, batch_rows=n), name=name, **read_options(side)))
    out = dt.collect()
    streams[0].join(streams[-1], on=case.said_on(dt), window=case.said_window(dt)).write(out)
    flow.run()
    assert ids(out.table()) == expected_flow(case)


@examples(0.5)
@given(cases(timed=True))
def test_flow_without_order(case):
    """`ordered=False` into a sink: the same pairs, in any order."""
    assume(can_be_written(case))
    cut = [batches(case, side) for side in case.both]
    table, _ = flowed(case, cut[0], cut[-1], ordered=False)
    assert Counter(ids(table)) == Counter(expected_flow(case))


@examples(0.5)
@given(cases(timed=False))
def test_flow_without_times(case):
    """One stream without time has one order; two have one set of pairs where every tuple is kept."""
    assume(can_be_written(case))
    cut = [batches(case, side) for side in case.both]
    if case.right is None:
        [expected] = expected_steps(case, in_one_step(case))
        assert ids(flowed(case, cut[0], None)[0]) == expected
    else:
        case = replace(case, windows=(oracle.Window(), oracle.Window()), alone=True)
        [expected] = expected_steps(case, in_one_step(case))
        table, _ = flowed(case, cut[0], cut[-1])
        assert Counter(ids(table)) == Counter(expected)
        check_payload(case, table)


@examples(0.5)
@given(cases(timed=True, alone=False))
def test_flow_of_a_join_of_a_join(case):
    """A join's result has the greater time and is in order by itself: none is late for the next join."""
    assume(can_be_written(case))
    rng, (one, two) = case.rng("third"), case.both
    rows = [{**row, "id": row["id"] + 2000} for row in rng.sample(one.rows, len(one.rows))]
    third = replace(one, rows=rows, delay=rng.choice([one.delay, 10**6]))
    keys = {name: kind for name, kind in third.columns.items() if name not in ("id", "ts")}
    on = Conditions(Columns(keys, keys), rng).comparison()
    in_units = third.columns["ts"].tick is None
    window = a_window(rng, (third.tick, two.tick), in_units)
    assume(can_be_written(replace(case, right=one, on=(on,))))

    flow, streams = dt.Flow("chain"), []
    for name, side in zip("abc", (one, two, third)):
        streams.append(flow.read(dt.memory(batches(case, side)), name=name, **read_options(side)))
    pairs = streams[0].join(streams[1], on=case.said_on(dt), window=case.said_window(dt), name="one")
    out, said = dt.collect(), said_window(dt, window, in_units)
    pairs.join(streams[2], on=on.said(dt), window=said, suffix="_third", name="two").write(out)
    flow.run()

    events = [read(side)[0] for side in (one, two, third)]
    met = oracle.join(events[0], events[1], case.windows, case.holds)
    joined = oracle.as_stream(met, lambda a, b: {**a, "id": (a["id"], b["id"])})
    expected = ids_of(oracle.join(joined, events[2], (window, window), on.holds))
    columns = (out.table().column(name).to_pylist() for name in ("id", "id_right", "id_third"))
    assert [((a, b), c) for a, b, c in zip(*columns, strict=True)] == expected


# Moving the input


@examples()
@given(cases(timed=True))
def test_moved_by_whole_slides(case):
    """Adding a common multiple of the slides to all times changes no pair."""
    coarse = max(side.tick for side in case.both)
    whole = math.lcm(1, *(int(w.slide / coarse) for w in case.windows if w.span is not None and w.slide)) * coarse
    by = case.rng("move").choice([-3, -1, 1, 7]) * whole
    moved = [moved_by(side, by) for side in case.both]
    assume(None not in moved)
    [expected] = expected_steps(case, in_one_step(case))
    other = replace(case, left=moved[0], right=None if case.right is None else moved[1])
    for index, join in joins(other).items():
        assert ids(join.push(**push_arguments(other, in_one_step(other)[0]))) == expected, index


def moved_by(side: Side, seconds) -> Side | None:
    """The side with all times later by so much, or None if its type cannot hold them."""
    ticks, kind = int(seconds / side.tick), side.columns["ts"]
    rows = [{**row, "ts": row["ts"] + ticks} for row in side.rows]
    return replace(side, rows=rows) if all(kind.low <= row["ts"] <= min(kind.high, 2**63 - 1) for row in rows) else None


@examples()
@given(cases(timed=True, alone=False, apart=True))
def test_moved_to_the_other_side(case):
    """Where no times tie across the sides, swapping the sides swaps the pairs, and nothing else."""
    turned = replace(
        case,
        left=case.right,
        right=case.left,
        on=tuple(condition.swapped() for condition in case.on),
        windows=case.windows[::-1],
    )
    [expected] = expected_steps(case, in_one_step(case))
    for index, join in joins(turned).items():
        cut = steps(turned)
        outs = [join.push(**push_arguments(turned, step)) for step in cut]
        assert [(b, a) for out in outs for a, b in ids(out)] == expected, index
        check_schema(turned, outs[0].schema)


@examples()
@given(
    kind=st.sampled_from([pa.int16(), pa.int64(), pa.timestamp("us"), pa.decimal128(9, 2)]),
    keys=st.tuples(*[st.lists(st.none() | st.integers(-20, 20), max_size=12)] * 2),
    by=st.sampled_from([-(2**14), -7, 1, 2**14]),
    index=st.sampled_from(["nested", "carousel"]),
    shape=st.sampled_from(["band", "comparison", "union", "equality"]),
)
def test_moved_keys(kind, keys, by, index, shape):
    """Adding a constant to every key of both sides changes no pair of a predicate on their difference."""

    def found(shift):
        def rows(values):
            moved = pa.array([None if v is None else v + shift for v in values], pa.int64())
            number = moved.cast(kind) if not pa.types.is_decimal(kind) else moved.cast(pa.decimal128(19, 0)).cast(kind)
            return pa.record_batch({"id": pa.array(range(len(values)), pa.int64()), "k": number})

        unit = left.k - right.k
        near, far = (unit.abs() <= "3us", unit > "9us") if pa.types.is_timestamp(kind) else (unit.abs() <= 3, unit > 9)
        on = {"band": near, "comparison": left.k < right.k, "union": near | far, "equality": left.k == right.k}[shape]
        a, b = rows(keys[0]), rows(keys[1])
        out = dt.WindowJoin(a.schema, b.schema, on=on, window=dt.last(8), index=index).push(left=a, right=b)
        return list(zip(out["id"].to_pylist(), out["id_right"].to_pylist(), strict=True))

    assert found(by) == found(0)
    if shape == "comparison":
        pairs = [(i, j) for j, y in enumerate(keys[1]) for i, x in enumerate(keys[0]) if None not in (x, y) and x < y]
        assert found(by) == [(i, j) for i, j in pairs if i >= len(keys[0]) - 8]
