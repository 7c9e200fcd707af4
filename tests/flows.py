"""Flows for tests: a clock that stands still, sources that are lists, sinks that say what they were told.

A list of times is a batch of a `Feed`, None is "nothing now", and a function is called when the source is read.
"""

import re
import sys

import dovetail as dt
import pyarrow as pa
import pytest
from dovetail import END_OF_SOURCE, col, left, right
from dovetail.config import Options
from dovetail.engine.run import Around, Runner

X = pa.schema([("x", pa.int64())])
ANY = left.id >= right.id - 10**9  # holds for every pair here
ALWAYS = dt.last(None)


def x_batch(*values):
    return pa.record_batch({"x": pa.array(values, pa.int64())})


def raises(kind, text):
    """An error with this text; `@here` is a line of the file that expects it."""
    here = re.escape(sys._getframe(1).f_code.co_filename)
    return pytest.raises(kind, match=re.escape(text).replace("@here", rf"\({here}:\d+\)"))


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def pass_by(self, seconds):
        self.now += seconds


@dt.source
class Feed:
    """What a list holds, one item at each read; `t` is of the type `kind`, and `id` counts the rows."""

    def __init__(self, items, log=None, name="", kind=None):
        self.items, self.log, self.name = iter(items), log, name
        self.schema = pa.schema([("t", kind or pa.int64()), ("id", pa.int64())])
        self.rows = 0

    def read(self):
        if self.log is not None:
            self.log.append(self.name)
        item = next(self.items, END_OF_SOURCE)
        while callable(item):
            item = item()
        if not isinstance(item, list):
            return item
        ids = range(self.rows, self.rows + len(item))
        self.rows += len(item)
        columns = [pa.array(values, field.type) for values, field in zip((item, ids), self.schema)]
        return pa.record_batch(columns, schema=self.schema)


class Asked:
    """A source that remembers for which columns it was asked."""

    def __init__(self, data, schema=None):
        self.inner = dt.memory(data)
        self.schema = schema or self.inner.schema
        self.columns = []

    def describe(self):
        return "asked"

    def reader(self, columns):
        self.columns.append(columns)
        return self.inner.reader(columns)


@dt.sink
class Epochs:
    """Says what was staged and committed."""

    def __init__(self, log):
        self.log = log

    def stage(self, batch, epoch, part):
        self.log.append((batch.num_rows, epoch, part))

    def commit(self, epoch):
        self.log.append(f"commit {epoch}")

    def abort(self):
        self.log.append("abort")

    def close(self):
        self.log.append("close")


def memory(data=None, flow=None, name=None, time=None, **options):
    """A stream over rows in memory, by default t = 1, 2, 3 and x = 10, 20, 30."""
    flow = flow or dt.Flow("f")
    data = {"t": [1, 2, 3], "x": [10, 20, 30]} if data is None else data
    return flow.read(dt.memory(data, batch_rows=options.pop("batch_rows", 65_536)), name=name, time=time, **options)


def timed(**options):
    return memory(time="t", **options)


def stamps(**options):
    return memory({"t": pa.array([1, 2], pa.timestamp("s"))}, time="t", **options)


def two(a, b, log=None, a_options=None, b_options=None):
    """A flow with two sources that meet in a union; the sink's table is the ids of b plus 1000 in order."""
    flow = dt.Flow("f")
    first = flow.read(Feed(a, log, "a"), name="a", time="t", **(a_options or {}))
    second = flow.read(Feed(b, log, "b"), name="b", time="t", **(b_options or {}))
    seen = []
    both = first.union(second.with_columns(id=col("id") + 1000))
    both.write(dt.call(lambda batch: seen.extend(batch["id"].to_pylist())))
    return flow, first, seen


def collected(stream):
    out = stream.write(dt.collect())
    stream._flow.run()
    return out.table()


def started(flow, clock, every=1e9, progress=None, **options):
    around = Around()
    around.clock, around.pause = clock, clock.pass_by
    runner = Runner(flow.name, flow._sinks(), Options(**options), every, progress, around=around)
    runner.open()
    return runner


def rounds(runner, n):
    return [runner.round() for _ in range(n)]


def finish(runner):
    while not runner.finished():
        if not runner.round():
            runner.around.pause(runner.options.poll_seconds)
    runner.commit(last=True)
    runner.close(failed=False)
    return runner.result("finished")
