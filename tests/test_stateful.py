"""Operators of the user's own with memory and timers (`dt.operator`), beside loops over rows.

The same rows cut in any way, with watermarks that come as late as they like, must give the same results in the same
order: that is what timers make hard.
"""

import heapq
import random
from itertools import pairwise

import dovetail as dt
import numpy as np
import pyarrow as pa
import pytest
from dovetail.batch import END, Batch
from dovetail.operators.stateful import Stateful
from dovetail.operators.times import TimeDomain
from hypothesis import given
from hypothesis import strategies as st
from streams import examples

SCHEMA = pa.schema([("t", pa.int64()), ("key", pa.int64())])
SILENT = pa.schema([("key", pa.int64()), ("since", pa.int64())])
GAP = 5


@dt.operator
class Silence:
    """Says of each key when it has been silent for `GAP`."""

    timer_delay = GAP

    def __init__(self):
        self.last = {}

    def output(self, schema):
        return SILENT

    def on_batch(self, batch, context):
        keys = batch.column("key").to_pylist()
        for key, time in zip(keys, context.times.tolist()):
            self.last[key] = time
        context.set_timers(context.times + GAP, batch.select(["key"]))

    def on_timer(self, timers, context):
        found = []
        for at, (key, time) in enumerate(zip(timers.column("key").to_pylist(), context.times.tolist())):
            if self.last.get(key) == time - GAP:
                del self.last[key]
                found.append((at, key, time - GAP))
        rows = pa.record_batch([[key for _, key, _ in found], [since for *_, since in found]], schema=SILENT)
        return rows, [at for at, *_ in found]

    def snapshot(self):
        return pa.table({"key": list(self.last), "last": list(self.last.values())})

    def restore(self, table):
        self.last = dict(zip(table.column("key").to_pylist(), table.column("last").to_pylist()))


def silences(rows):
    """The same, row by row: [(key, since)] in the order of (time, setting)."""
    out, timers, last = [], [], {}

    def call(until):
        while timers and timers[0][0] <= until:
            time, _, key = heapq.heappop(timers)
            if last.get(key) == time - GAP:
                del last[key]
                out.append((key, time - GAP))

    for number, (time, key) in enumerate(rows):
        call(time)
        last[key] = time
        heapq.heappush(timers, (time + GAP, number, key))
    call(float("inf"))
    return out


@st.composite
def streams(draw):
    """Rows in order, and some way to cut them into batches with watermarks."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    n, step = rng.choice([0, 1, 5, 40]), rng.choice([1, 3, 12])
    times = np.cumsum([rng.randrange(step) for _ in range(n)]).tolist()
    rows = [(time, rng.randrange(4)) for time in times]
    cuts = sorted({0, n, *(rng.randrange(n + 1) for _ in range(rng.choice([0, 2, 10])))})
    return rows, cuts, rng


def batches(rows, cuts, rng):
    """Cut rows into batches; a watermark promises something between what was and what comes."""
    mark = -100
    for begin, end in [*pairwise(cuts), (len(rows), len(rows))]:
        part = rows[begin:end]
        least = rows[end][0] if end < len(rows) else (rows[-1][0] if rows else 0) + 50
        mark = rng.randint(mark, max(mark, least))
        data = pa.record_batch([[t for t, _ in part], [k for _, k in part]], schema=SCHEMA)
        yield Batch(data, np.array([t for t, _ in part], np.int64), mark)
    yield Batch(data.slice(0, 0), np.empty(0, np.int64), END)


def machine(factory, schema=SILENT):
    return factory().machine(schema, TimeDomain(None), "process 'p'")


def drive(driven: Stateful, given_batches):
    """All results of a machine with their times, which are in order and behind the watermark before."""
    out, mark = [], -1000
    for batch in given_batches:
        for data, times in driven.take(batch):
            assert len(times) == data.num_rows
            assert (np.diff(times) >= 0).all()
            assert times[0] >= mark
            out += [tuple(row.values()) for row in data.to_pylist()]
        mark = batch.watermark
    return out


@examples()
@given(streams())
def test_timers_are_called_between_the_rows_that_they_stand_between(case):
    rows, cuts, rng = case
    assert drive(machine(Silence), batches(rows, cuts, rng)) == silences(rows)


@examples(0.3)
@given(streams())
def test_a_restored_operator_goes_on_as_if_nothing_had_happened(case):
    rows, cuts, rng = case
    given_batches = list(batches(rows, cuts, rng))
    at = rng.randrange(len(given_batches))
    first, second = machine(Silence), machine(Silence)
    out = []
    for batch in given_batches[:at]:
        out += [tuple(row.values()) for data, _ in first.take(batch) for row in data.to_pylist()]
    second.restore(first.snapshot())
    out += drive(second, given_batches[at:])
    assert out == silences(rows)


@dt.operator
class Ticks:
    """Says every 4 units that time has passed, and how many rows it has seen."""

    timer_delay, timer_reach = 4, 10

    def __init__(self):
        self.seen, self.running = 0, False

    def output(self, schema):
        return pa.schema([("at", pa.int64()), ("seen", pa.int64())])

    def on_batch(self, batch, context):
        if not self.running and batch.num_rows:
            self.running = True
            self._again(context.times[0], context)
        self.seen += batch.num_rows

    def on_timer(self, timers, context):
        assert len(context.times) == 1
        self._again(context.times[0], context)
        return pa.record_batch([context.times, [self.seen]], schema=self.output(None))

    def _again(self, time, context):
        context.set_timers([time + 4], pa.record_batch({"_": [0]}))


@examples(0.3)
@given(streams())
def test_an_operator_that_winds_itself_up_ends_so_far_behind_the_last_row(case):
    rows, cuts, rng = case
    out = drive(machine(Ticks, Ticks().output(SCHEMA, "")), batches(rows, cuts, rng))
    if not rows:
        assert out == []
        return
    first, last = rows[0][0], rows[-1][0]
    expected = [(at, sum(t < at for t, _ in rows)) for at in range(first + 4, last + 11, 4)]
    assert out == expected


def test_one_without_an_end_is_an_error(monkeypatch):
    monkeypatch.setattr("dovetail.operators.stateful.MOST_AFTER_THE_END", 100)
    monkeypatch.setattr(Ticks.cls, "timer_reach", None)
    with pytest.raises(dt.UserFunctionError, match=r"process 'p': Ticks was called .* set timer_reach"):
        drive(machine(Ticks, Ticks().output(SCHEMA, "")), batches([(1, 1)], [0, 1], random.Random(0)))


def source(flow, n=100, batch_rows=7, time="t"):
    rng = np.random.default_rng(0)
    table = pa.table({"t": np.sort(rng.integers(0, 200, n)), "key": rng.integers(0, 5, n)})
    return flow.read(dt.memory(table, batch_rows=batch_rows), name="s", time=time), table


def test_in_a_flow_its_results_have_event_time_and_go_on():
    outs = []
    for batch_rows in (1, 13, 1000):
        flow = dt.Flow("f")
        stream, table = source(flow, batch_rows=batch_rows)
        quiet = stream.key_by("key").process(Silence(), name="quiet")
        pairs = quiet.join(stream, on=dt.left.key == dt.right.key, window=dt.last(time=30))
        outs.append((quiet.write(dt.collect()), pairs.write(dt.collect())))
        flow.run()
    rows = list(zip(table.column("t").to_pylist(), table.column("key").to_pylist()))
    assert [tuple(r.values()) for r in outs[0][0].table().to_pylist()] == silences(rows)
    assert outs[0][1].table().num_rows > 50
    for quiet, pairs in outs[1:]:
        assert quiet.table().equals(outs[0][0].table())
        assert pairs.table().equals(outs[0][1].table())


def test_explain_says_what_it_is():
    flow = dt.Flow("f")
    source(flow)[0].key_by("key").process(Silence()).write(dt.null())
    assert "your operator Silence, its memory by key; columns: key, since" in flow.explain()


def own(**methods):
    return dt.operator(type("Own", (), {"on_batch": lambda self, batch, context: batch, **methods}))


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        ({"on_timer": lambda *_: None}, "does not say how far behind a row its timers lie; set timer_delay"),
        ({"on_timer": lambda *_: None, "timer_delay": "5s"}, "timer_delay: '5s' beside an integer time column"),
        ({"on_timer": lambda *_: None, "timer_delay": 0}, "timer_delay: 0 is less than one unit of integer"),
        ({"snapshot": lambda *_: None}, "has snapshot, and needs snapshot and restore, or neither"),
        ({"output": lambda *_: 3}, "returned 3; return a pyarrow.Schema"),
    ],
)
def test_what_is_wrong_with_a_class_is_found_when_the_flow_is_written(methods, says):
    stream, _ = source(dt.Flow("f"))
    with pytest.raises(dt.DovetailError, match=says) as raised:
        stream.process(own(**methods)(), name="p")
    assert "process 'p'" in str(raised.value) or "Own" in str(raised.value)


def test_what_is_not_an_operator_is_refused():
    stream, _ = source(dt.Flow("f"))
    with pytest.raises(dt.FlowError, match=r"is not an operator; call it: Silence\(\)"):
        stream.process(Silence)
    with pytest.raises(dt.FlowError, match=r"is not an operator; put @dt\.operator above its class"):
        stream.process(Silence.cls())
    with pytest.raises(dt.FlowError, match=r"3 is not an operator; make one of a class with @dt\.operator"):
        stream.process(3)
    with pytest.raises(dt.FlowError, match="has on_timer, and this stream has no event time"):
        source(dt.Flow("g"), time=None)[0].process(Silence())
    with pytest.raises(dt.FlowError, match="has no method 'on_batch'"):
        dt.operator(int)


@pytest.mark.parametrize(
    ("on_batch", "says"),
    [
        (lambda s, b, c: 3, r"returned a int; return None, a RecordBatch, or \(batch, rows\)"),
        (lambda s, b, c: b.slice(1), r"returned 6 rows for 7; return \(batch, rows\)"),
        (lambda s, b, c: (b, [0] * 6 + [9]), r"give for each a row from 0 to 6, ascending"),
        (lambda s, b, c: (b, list(range(6, -1, -1))), r"give for each a row from 0 to 6, ascending"),
        (lambda s, b, c: b.select(["t"]), r"returned columns \['t'\]; its schema has"),
        (lambda s, b, c: b.set_column(0, "t", b["t"].cast("float64")), "returned column 't' as double where int64"),
        (lambda s, b, c: 1 / 0, r"Own.on_batch \(.*test_stateful.py:\d+\) raised ZeroDivisionError"),
        (lambda s, b, c: c.set_timers([1], b), "sets timers, and has no on_timer and timer_delay"),
    ],
)
def test_what_it_returns_is_held_to_its_word(on_batch, says):
    flow = dt.Flow("f")
    source(flow)[0].process(own(on_batch=on_batch)(), name="p").write(dt.null())
    with pytest.raises(dt.UserFunctionError, match=says) as raised:
        flow.run()
    assert "process 'p'" in str(raised.value)


@pytest.mark.parametrize(
    ("set_timers", "says"),
    [
        (lambda b, c: c.set_timers(c.times, b), "sets a timer at .* when rows up to .* were seen"),
        (lambda b, c: c.set_timers(c.times + 9.5, b), "was given times of type float64; give integers"),
        (lambda b, c: c.set_timers(c.times + 9, b.slice(1)), "wants a RecordBatch with a row for each of 1 times"),
        (
            lambda b, c: (c.set_timers(c.times + 9, b), c.set_timers(c.times + 9, b.select(["t"]))),
            r"was given \['t'\] after \['t', 'key'\]",
        ),
    ],
)
def test_wrong_timers_are_errors(set_timers, says):
    made = own(on_batch=lambda s, b, c: set_timers(b, c) and None, on_timer=lambda *_: None, timer_delay=1)
    with pytest.raises(dt.UserFunctionError, match=says):
        drive(machine(made, SCHEMA), batches([(1, 1)], [0, 1], random.Random(0)))
