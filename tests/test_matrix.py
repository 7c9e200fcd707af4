"""The matrix over several processes: no number of workers, layout, transport, index or size changes a result.

Problem: there are far too many ways to run a join to try them all, each start of workers takes a while, and two runs of
the library could be wrong alike. Idea: a *question* is a part of a flow whose answer the oracle knows. A *setting* says
how a flow is run; it is run once, with a dozen questions in it, each with a layout and an index of its own. Settings
and questions are put together such that any two things that can meet do meet (`plan`). That they do is computed, and
each run looks whether what was meant to happen did happen.

What the oracle is too slow for, streams in which splitters really have to follow their keys, is compared with NumPy.
"""

import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, cached_property, partial
from itertools import combinations, product
from random import Random

import dovetail as dt
import numpy as np
import oracle
import pyarrow as pa
import pytest
from dovetail import left, right
from dovetail.engine import parallel, run, tasks
from dovetail.engine.cells import Workers
from dovetail.engine.processes import Processes
from dovetail.engine.worker import CREDIT
from dovetail.operators.access import SIDES
from dovetail.operators.collecting import Collector
from dovetail.operators.layouts import LAYOUTS, Balance, fitted_pieces
from dovetail.operators.spread import choose_layout
from dovetail.transport import INLINE, Block
from dovetail.transport.rundir import root
from hypothesis import HealthCheck, Phase, given, seed, settings
from oracle import Window
from predicates import Absolute, Arithmetic, AsFloat, Column, Compare, Constant, Either
from running import (
    batches,
    can_be_written,
    check_payload,
    expected_flow,
    ids,
    ids_of,
    read,
    read_options,
    window_join,
)
from streams import FLOAT64, INT64, TEXTS, Case, Side
from streams import cases as drawn_cases

CHECKS = list(HealthCheck)
INDEXES = ("auto", *sorted(dt.state.names()))
BOXED = dt.state.OF_SEVERAL_KEYS
ROWS = 80
"""Rows of a side of a question: the oracle looks at every pair."""


@pytest.fixture(autouse=True)
def runs(monkeypatch):
    """A place of its own for the folders of runs: other tests run beside this one."""
    place = tempfile.mkdtemp(dir="/dev/shm", prefix="dvt-")
    monkeypatch.setenv("DOVETAIL_RUNS", place)
    yield
    shutil.rmtree(place)


# Questions


@dt.source
class Cut:
    """Batches as they are, those without rows too, and now and then nothing."""

    def __init__(self, parts):
        self.schema = parts[0].schema
        self.parts = iter([item for part in parts for item in (part, None)])

    def read(self):
        return next(self.parts, dt.END_OF_SOURCE)


@dataclass(frozen=True)
class Question:
    """A join of two streams or of one with itself, or that and a third stream joined to what it gives; and the answer.

    Between the two joins there is a filter.
    """

    keys: str
    case: Case
    third: Side | None = None

    @property
    def shape(self) -> str:
        return "join of a join" if self.third else "self-join" if self.case.right is None else "two streams"

    @cached_property
    def ways(self) -> list[tuple[str, str]]:
        """The layouts and indexes that the predicate allows by name, or both predicates."""
        found = []
        for index in INDEXES:
            try:
                spec = window_join(self.case, index).spec
            except dt.PredicateError:
                continue
            for layout in LAYOUTS:
                try:
                    if layout == "shared":
                        window_join(self.case, index, threads=2)
                    else:
                        choose_layout(spec, 2, layout)
                except dt.FlowError:
                    continue
                found.append((layout, index))
        if self.third is not None:
            last = replace(self.case, on=(EQUAL,), windows=(Window(span=5),) * 2)
            found = [way for way in found if way in Question(self.keys, last).ways]
        return found

    @property
    def least(self) -> int:
        """What the filter goes by: of the right's rows the first few are left out."""
        return self.case.both[-1].rows[0]["id"] + 3

    @cached_property
    def answer(self) -> list:
        if self.third is None:
            return expected_flow(self.case)
        events = [read(one)[0] for one in self.case.both]
        met = (oracle.join if len(events) > 1 else oracle.self_join)(*events, self.case.windows, self.case.holds)
        kept = [pair for pair in met if pair.right.row["id"] >= self.least]
        joined = oracle.as_stream(kept, lambda a, b: {**a, "id": (a["id"], b["id"])})
        return ids_of(oracle.join(joined, read(self.third)[0], (Window(span=5),) * 2, EQUAL.holds))

    def ask(self, flow, streams, name, layout, index, ordered):
        """Write it into a flow; return the sink. Streams that it has in common with others are read once."""
        for side in (*self.case.both, *([self.third] if self.third else [])):
            if id(side) not in streams:
                cut = Cut(batches(self.case, side))
                streams[id(side)] = flow.read(cut, name=f"s{len(streams)}", **read_options(side))
        one, two = streams[id(self.case.left)], streams[id(self.case.both[-1])]
        how = {"layout": layout, "index": index}
        on, window = self.case.said_on(dt), self.case.said_window(dt)
        if self.third is None:
            out = one.join(two, on=on, window=window, name=name, ordered=ordered, **how)
        else:
            out = one.join(two, on=on, window=window, **how)
            on, window, kept = EQUAL.said(dt), dt.last(time=5), out.filter(dt.col("id_right") >= self.least)
            last = streams[id(self.third)]
            out = kept.join(last, on=on, window=window, suffix="_third", name=name, ordered=ordered, **how)
        return out.write(dt.collect())

    def check(self, table, ordered):
        if self.third is None:
            found = ids(table)
            check_payload(self.case, table)
        else:
            columns = (table.column(name).to_pylist() for name in ("id", "id_right", "id_third"))
            found = [((a, b), c) for a, b, c in zip(*columns, strict=True)]
        if ordered:
            assert found == self.answer, self.case
        else:
            assert Counter(found) == Counter(self.answer), self.case


KEYS = {
    "ties": lambda rng: rng.integers(0, 4, ROWS),
    "uniform": lambda rng: rng.integers(0, 60, ROWS),
    "drifting": lambda rng: np.arange(ROWS) * 3 + rng.integers(0, 12, ROWS),
    "zipf": lambda rng: np.minimum(rng.zipf(1.3, ROWS), 2**40),
}

X, OTHER_X = Column("left", "x"), Column("right", "x")
BAND = Compare("<=", Absolute(Arithmetic("-", X, OTHER_X)), Constant(1))
EQUAL = Compare("==", X, OTHER_X)
ON = {
    "band": (BAND,),
    "band of floats": (Compare("<=", Absolute(Arithmetic("-", Column("left", "y"), AsFloat(OTHER_X))), Constant(0.5)),),
    "equality": (EQUAL,),
    "equality of texts": (Compare("==", Column("left", "s"), Column("right", "s")), Compare("<", X, OTHER_X)),
    "union": (Either(BAND, Compare("==", Arithmetic("-", X, Constant(9)), OTHER_X)),),
    "comparison": (Compare("<", X, Arithmetic("-", OTHER_X, Constant(2))),),
    "two inequalities": (Compare("<", X, OTHER_X), Compare(">", Column("left", "y"), Column("right", "y"))),
}  # fmt: skip
WINDOWS = [Window(), Window(rows=300), Window(rows=20), Window(rows=20, slide=3), Window(span=9)]
WINDOWS += [Window(span=9, slide=4)]
COLUMNS = {"id": INT64, "ts": INT64, "x": INT64, "y": FLOAT64, "s": TEXTS[2], "long": TEXTS[0]}


def a_side(number, xs, late=0, text=3, nulls=0.05, key=7):
    """A stream of given keys; `late`: by how much its times are later; `text`: the length of one of its columns."""
    rng = Random(f"{number} {key}")
    times = sorted(rng.randint(late, late + 40) for _ in xs)
    rows = [
        {"id": 1000 * number + n, "ts": t, "x": None if rng.random() < nulls else int(x),
         "y": rng.choice([x + 0.5, x - 0.25, None, float("nan")]), "s": f"v{x % 5}", "long": f"{n:03}" * (text // 3)}
        for n, (t, x) in enumerate(zip(times, xs))
    ]  # fmt: skip
    return Side(COLUMNS, rows, "ts")


@cache
def questions() -> list[Question]:
    """Drawn ones, ones of each kind of keys with each predicate, and some that are odd in other ways."""
    drawn, found = [], []

    @seed(1)
    @settings(max_examples=80, database=None, phases=[Phase.generate], deadline=None, suppress_health_check=CHECKS)
    @given(drawn_cases(timed=True))
    def draw(case):
        drawn.extend([Question("ties", case)] if can_be_written(case) else [])

    draw()
    found += [question for question in drawn if question.answer][:24]
    rng, numpy = Random(5), np.random.default_rng(5)
    for keys in KEYS:
        sides = [a_side(number % 3, KEYS[keys](numpy), key=number) for number in range(6)]
        for number, on in enumerate(ON):  # several share a stream
            one, two, three = sides[number % 2 * 3 :][:3]
            case = Case(one, None if number % 4 == 2 else two, ON[on], tuple(rng.sample(WINDOWS, 2)), False, number)
            found.append(Question(keys, case, three if number % 3 == 0 else None))
    uniform, one_key = KEYS["uniform"](numpy), [3] * ROWS
    odd = [
        (a_side(0, []), a_side(1, uniform)),  # nothing on the left
        (a_side(0, uniform), a_side(1, uniform, late=45)),  # the left has ended before the right begins
        (a_side(0, uniform), a_side(1, uniform, nulls=1.0)),  # nothing but nulls
        (a_side(0, one_key), a_side(1, one_key)),  # too much for one cell
    ]
    for (one, two), on in product(odd, ("band", "equality")):
        found.append(Question("uniform", Case(one, two, ON[on], (WINDOWS[0], WINDOWS[1]), False, 0)))
    return found


@cache
def heavy() -> Question:
    """Each row is longer than what travels inside a message: whatever the batches are, some go through an arena."""
    sides = [a_side(i, np.arange(ROWS) * 3 + i, text=6000) for i in (0, 1)]
    return Question("uniform", Case(*sides, ON["band"], (WINDOWS[0], WINDOWS[4]), False, 0))


# Settings


SETTINGS = {
    "workers": (1, 2, 3, 4),
    "transport": ("none", "ipc", "tcp"),
    "arena": ("none", "ample", "tight"),
    "splitters": ("none", "follow loads", "move at every step"),
    "steps": ("none", "one at a time", "several under way"),
    "batch_rows": (1, 7, 1000, 65_536),
    "out_rows": (3, 65_536),
}
ASKED = 12
"""Questions in a run."""
RUNS = 19


def can_be(workers, transport, arena, splitters, steps, batch_rows, out_rows):
    """Whether a setting means something: one process has no transport, and only ipc has an arena."""
    known = {transport != "none", splitters != "none", steps != "none"}
    return known == {workers > 1} and (arena != "none") == (transport == "ipc")


def pairs(levels: dict) -> set:
    """Each two things that meet."""
    return set(combinations(sorted((name, level) for name, level in levels.items()), 2))


@cache
def possible() -> tuple[list, list]:
    """All settings, and all (question, layout, index, ordered)."""
    runs = [dict(zip(SETTINGS, levels)) for levels in product(*SETTINGS.values()) if can_be(*levels)]
    asked = [(q, {"layout": layout, "index": index, "keys": q.keys, "shape": q.shape, "ordered": ordered})
             for q in questions() for layout, index in q.ways for ordered in (True, False)]  # fmt: skip
    return runs, asked


def wanted() -> set:
    """Each two things that can meet."""
    runs, asked = possible()
    found = set().union(*map(pairs, runs), *(pairs(how) for _, how in asked))
    levels = [{item for how in side for item in how.items()} for side in (runs, [how for _, how in asked])]
    return found | {tuple(sorted(two)) for two in product(*levels)}


@cache
def plan() -> list[tuple[dict, list]]:
    """Settings, each with what is asked under it: whatever brings most new pairs is taken next."""
    rng, left, out = Random(3), wanted(), []
    runs, asked = possible()
    times_asked = Counter()
    for _ in range(RUNS):
        setting = max(rng.sample(runs, len(runs)), key=lambda levels: len(pairs(levels) & left))
        left -= pairs(setting)
        chosen = []
        for _ in range(ASKED):
            some = rng.sample(asked, 300)
            question, how = max(some, key=lambda one: (len(pairs(setting | one[1]) & left), -times_asked[id(one[0])]))
            left -= pairs(setting | how)
            times_asked[id(question)] += 1
            chosen.append((question, how))
        out.append((setting, chosen))
    return out


class Watched(Workers):
    """Workers over a transport, that count how often they waited for room. A part of the arena may be taken already."""

    def __init__(self, taken, *arguments, **more):
        super().__init__(*arguments, **more)
        self.taken, self.waited = taken, 0

    def start(self, joins):
        super().start(joins)
        if self.taken:
            assert self.arena.take(int(self.taken * self.options.arena_bytes)) is not None

    @property
    def short(self):
        found = super().short
        self.waited += found
        return found


@pytest.fixture
def watched(monkeypatch):
    """Let runs have `Watched`; the list that is returned has those of the last runs."""
    made = []

    def let(transport="ipc", taken=0.0):
        def make(*arguments, **more):
            made.append(Watched(taken, *arguments, **more))
            return made[-1]

        monkeypatch.setattr(run, "Workers", make)
        monkeypatch.setattr(run.Around, "launch", partial(Processes, transport=transport))
        return made

    return let


def move_at_every_step(monkeypatch, rng):
    """Let splitters go anywhere near the keys of questions, with each step."""
    real = parallel.Head.deal

    def deal(self, steps, mark):
        if self.layout.name == "range":
            keys = [2**63 + rng.choice([0, 0, 5]) + rng.randint(-90, 90) for _ in range(20)]
            self.pieces = dict.fromkeys(SIDES, fitted_pieces(np.array(keys, np.uint64), self.layout.cells))
        return real(self, steps, mark)

    monkeypatch.setattr(parallel.Head, "deal", deal)


def test_any_two_things_meet():
    met = set().union(*(pairs(setting | how) for setting, chosen in plan() for _, how in chosen))
    assert met == wanted(), "let there be more RUNS"
    layouts = [dict(two) for two in met if [name for name, _ in two] == ["index", "layout"]]
    assert {(two["layout"], two["index"]) for two in layouts} == {
        (layout, index) for layout in LAYOUTS for index in INDEXES
        if not (layout == "range" and index in ("nested", "hash", *BOXED))
        and not (layout == "hash" and index in ("nested", *BOXED))
        and not (layout == "shared" and index not in ("auto", "pim_tree", "po_join"))
    }  # fmt: skip


@pytest.mark.parametrize("number", range(RUNS))
def test_nothing_changes_a_result(number, watched, monkeypatch):
    setting, chosen = plan()[number]
    made = watched(setting["transport"], taken=0.81 if setting["arena"] == "tight" else 0.0)
    monkeypatch.setattr(parallel, "Balance", lambda cells, memory: Balance(cells, memory=200))
    if setting["steps"] == "several under way":
        monkeypatch.setattr(tasks, "SMALL_STEP", 1)  # no step of a question is large
    if setting["splitters"] == "move at every step":
        move_at_every_step(monkeypatch, Random(number))
    chosen = [(heavy(), {"layout": "range", "index": "auto", "ordered": True}), *chosen]
    flow, streams, sinks = dt.Flow(f"matrix-{number}"), {}, []
    for at, (question, how) in enumerate(chosen):
        sinks.append(question.ask(flow, streams, f"q{at}", how["layout"], how["index"], how["ordered"]))
    flow.run(
        workers=setting["workers"],
        options=dt.Options(
            batch_rows=setting["batch_rows"], out_rows=setting["out_rows"], arena_bytes=1 << 24, poll_seconds=0.001
        ),
    )
    for sink, (question, how) in zip(sinks, chosen, strict=True):
        question.check(sink.table(), how["ordered"])
    assert list(root().iterdir() if root().is_dir() else []) == [], "a run leaves nothing in memory"

    # That what was meant to happen did happen.
    assert len(made) == (setting["workers"] > 1)
    for workers in made:
        assert (workers.waited > 0) == (setting["arena"] == "tight")
        assert (workers.arena is None) == (setting["transport"] == "tcp")
        joins = {join.node.name: join for join in workers.joins}
        for at, (_, how) in enumerate(chosen):
            if how["layout"] == "shared":
                assert f"q{at}" not in joins, "its threads are in the process of the run"
                continue
            layout, spec = joins[f"q{at}"].head.layout, joins[f"q{at}"].node.spec
            assert (layout.cells, spec.index, spec.ordered) == (setting["workers"], how["index"], how["ordered"])
            assert how["layout"] in ("auto", layout.name)
        if setting["batch_rows"] <= 7 and setting["splitters"] == "follow loads":
            assert joins["q0"].head.balance.moves > 1


# Larger streams

N = 20_000


@cache
def large(number, keys) -> pa.Table:
    """A stream with times; drifting keys go far beyond those that cells had in mind before."""
    rng = np.random.default_rng(number)
    xs = {
        "drifting": np.arange(N) * 3 + rng.integers(0, 3000, N),
        "zipf": np.minimum(rng.zipf(1.5, N), 2**40),
        "one": np.full(N, 7),
    }
    return pa.table({"t": np.sort(rng.integers(0, N // 2, N)), "x": xs[keys], "id": np.arange(N)})


def by_numpy(one, two, rows, holds) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all pairs, in order: each tuple is compared with the last `rows` of the other stream before it."""
    itself = one is two
    times, xs = ([table[name].to_numpy() for table in (one, two)] for name in "tx")
    sides = np.zeros(N, int) if itself else np.repeat([0, 1], N)
    places = np.concatenate([np.arange(N)] * (1 if itself else 2))
    order = np.lexsort((sides, np.concatenate(times)[: len(sides)]))
    found = []
    for side, row in zip(sides[order].tolist(), places[order].tolist()):
        until = row if itself else int(np.searchsorted(times[1 - side], times[side][row], "right" if side else "left"))
        older = np.arange(max(0, until - rows), until)
        older = older[holds(xs[side][row], xs[1 - side][older])]
        newer = np.full(len(older), row)
        if itself:  # (newer, older), then the other way round
            newer, older = np.stack([newer, older], 1).ravel(), np.stack([older, newer], 1).ravel()
        found.append((older, newer) if side else (newer, older))
    return tuple(np.concatenate(ids) for ids in zip(*found))


def near(a, b):
    return np.abs(a - b) <= 3


BAND_3 = (left.x - right.x).abs() <= 3
LARGE = {  # keys, whether with another stream, predicate, the same with NumPy, rows of the windows, index
    "band": ("drifting", True, BAND_3, near, 1500, "auto"),
    "band-bplus": ("drifting", True, BAND_3, near, 400, "bplus"),
    "equality": ("drifting", True, left.x == right.x, np.equal, 3000, "pim_tree"),
    "self-join": ("drifting", False, BAND_3, near, 900, "auto"),
    "heavy-keys": ("zipf", True, (left.x - right.x).abs() <= 0, np.equal, 30, "carousel"),
    "one-key": ("one", True, BAND_3, near, 5, "carousel"),
}


def large_joins(workers, **options) -> dict[str, pa.Table]:
    """All of them in one flow, in the layout `range`; joins of the same keys read the same streams."""
    flow, streams, sinks = dt.Flow("large"), {}, {}
    for keys, number in product(("drifting", "zipf", "one"), (0, 1)):
        source = dt.memory(large(number, keys), batch_rows=700 + 200 * number)
        streams[keys, number] = flow.read(source, name=f"{keys}-{number}", time="t")
    for name, (keys, other, on, _, rows, index) in LARGE.items():
        one, two = streams[keys, 0], streams[keys, int(other)]
        joined = one.join(two, on=on, window=dt.last(rows), index=index, layout="range", name=name)
        sinks[name] = joined.write(dt.collect())
    flow.run(workers=workers, options=dt.Options(**options))
    return {name: sink.table() for name, sink in sinks.items()}


@cache
def large_answers() -> dict[str, pa.Table]:
    found = large_joins(1)
    for name, (keys, other, _, holds, rows, _) in LARGE.items():
        expected = by_numpy(large(0, keys), large(int(other), keys), rows, holds)
        assert len(expected[0]) > N / 4
        for column, ids_of_side in zip(("id", "id_right"), expected):
            assert np.array_equal(found[name][column].to_numpy(), ids_of_side), name
    return found


@pytest.mark.parametrize(("workers", "transport"), [(2, "tcp"), (3, "ipc"), (4, "ipc"), (4, "tcp")])
def test_splitters_follow_their_keys_and_change_nothing(workers, transport, watched, monkeypatch):
    made = watched(transport)
    monkeypatch.setattr(parallel, "Balance", lambda cells, memory: Balance(cells, memory=8000))
    monkeypatch.setattr(tasks, "SMALL_STEP", 1 if workers == 4 else 2000)
    found = large_joins(workers)
    for name, table in large_answers().items():
        assert found[name].equals(table), name
    balances = {join.node.name: join.head.balance for join in made[0].joins}
    assert all(balances[name].moves >= 3 for name in ("band", "band-bplus", "equality", "self-join"))
    assert balances["one-key"].moves >= 1
    assert balances["one-key"].imbalance() < 1.15, "rows of one key are shared by all cells"


# Other things that could go wrong between processes


def odd_types(rows) -> pa.Table:
    """Columns that are more than numbers one after the other; dictionaries on their own and inside of others."""
    names = pa.array([["a", "bb", None, "é"][n % 4] for n in range(rows)]).dictionary_encode()
    offsets = pa.array(range(rows + 1), pa.int32())
    return pa.table({
        "t": np.arange(rows) // 3,
        "x": np.arange(rows) % 40,
        "text": pa.array([None if n % 7 == 0 else "é" * (n % 9) for n in range(rows)]),
        "view": pa.array([f"longer than twelve {n}" for n in range(rows)], pa.string_view()),
        "bytes": pa.array([b"\0" * (n % 5) for n in range(rows)], pa.large_binary()),
        "name": names.cast(pa.dictionary(pa.int8(), pa.string())),
        "names": pa.ListArray.from_arrays(offsets, names),
        "struct": pa.StructArray.from_arrays([names, pa.array([n % 2 == 0 for n in range(rows)])], ["name", "even"]),
        "map": pa.array([[("k", n)] * (n % 3) for n in range(rows)], pa.map_(pa.string(), pa.int64())),
        "money": pa.array([None if n % 5 == 0 else Decimal(n) / 4 for n in range(rows)], pa.decimal128(20, 2)),
        "bool": pa.array([[True, False, None][n % 3] for n in range(rows)]),
        "none": pa.nulls(rows),
        "id of sixteen bytes": pa.array([n.to_bytes(16, "big") for n in range(rows)], pa.binary(16)).cast(pa.uuid()),
    })  # fmt: skip


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_columns_of_any_type_ride_along(transport, watched):
    watched(transport)
    table = odd_types(700)
    outs = []
    for workers in (1, 3):
        flow = dt.Flow("types")
        one, two = (flow.read(dt.memory(table, batch_rows=rows), name=f"s{rows}", time="t") for rows in (170, 90))
        for layout in ("hash", "matrix", "chain"):
            outs.append(one.join(two, on=left.x == right.x, window=dt.last(300), layout=layout).write(dt.collect()))
        outs.append(one.join(two, on=left.name == right.name, window=dt.last(9), index="hash").write(dt.collect()))
        flow.run(workers=workers)
    for before, after in zip(outs[:4], outs[4:]):
        before, after = before.table(), after.table()
        after.validate(full=True)
        assert before.num_rows > 1000
        assert after.schema == before.schema
        assert [column.to_pylist() for column in after.columns] == [column.to_pylist() for column in before.columns]


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_slow_sink_holds_back_more_workers_than_cores(transport, watched, monkeypatch):
    """No cell ever has more than `CREDIT` slices under way, and nothing is lost by that."""
    watched(transport)
    take, handed_on, under_way, most = parallel.Head.take, Collector.handed_on, Counter(), []

    def counted(self, cell, message):
        under_way[cell] += isinstance(message, parallel.Slice)
        most.append(under_way[cell])
        take(self, cell, message)

    def uncounted(self):
        counts = handed_on(self)
        under_way.subtract(dict(enumerate(counts)))
        return counts

    monkeypatch.setattr(parallel.Head, "take", counted)
    monkeypatch.setattr(Collector, "handed_on", uncounted)
    outs, rows = [], [large(number, "one").slice(0, 2000) for number in (0, 1)]
    for workers in (1, 4):
        got = []
        flow = dt.Flow("slow")
        one, two = (flow.read(dt.memory(table), name=f"s{n}", time="t") for n, table in enumerate(rows))
        joined = one.join(two, on=left.x == right.x, window=dt.last(30), layout="chain")
        joined.write(dt.call(lambda batch, got=got: (time.sleep(0.002), got.append(batch))))
        flow.run(workers=workers, options=dt.Options(out_rows=500))
        outs.append(pa.Table.from_batches(got))
    assert outs[0].num_rows > 100_000
    assert outs[1].equals(outs[0])
    assert max(most) == CREDIT


def test_what_finds_no_room_travels_inside_its_message(watched, monkeypatch):
    """A batch goes to eight joins at once, and the arena has room for their windows and for one step more."""
    real, held, inside = Workers._store, [], []

    def store(self, part, join, alone):
        stored = real(self, part, join, alone)
        held.append(self.arena.held if alone else 0)
        inside.append(part.nbytes > INLINE and not isinstance(stored, Block))
        return stored

    monkeypatch.setattr(Workers, "_store", store)
    long = pa.array([f"{n:0100}" for n in range(N)])
    rows = [large(number, "drifting").append_column("long", long) for number in (0, 1)]

    def joined(workers, arena_bytes):
        flow, outs = dt.Flow("full"), []
        one, two = (
            flow.read(dt.memory(table, batch_rows=1000), name=f"s{n}", time="t") for n, table in enumerate(rows)
        )
        for band in range(8):
            on = (left.x - right.x).abs() <= band
            outs.append(one.join(two, on=on, window=dt.last(100)).write(dt.collect()))
        flow.run(workers=workers, options=dt.Options(arena_bytes=arena_bytes))
        return [out.table() for out in outs]

    # First in an arena that lets only one step go at a time: that tells what the windows and a step need.
    arena_bytes, taken = 1 << 26, 0.81
    watched(taken=taken)
    expected = joined(2, arena_bytes)
    needed = max(held) - int(taken * arena_bytes)
    assert not any(inside)
    watched()
    found = joined(2, needed * 11 // 10)
    assert any(inside)
    assert [table.num_rows > 100 for table in expected] == [True] * 8
    assert all(a.equals(b) and a.equals(c) for a, b, c in zip(found, expected, joined(1, 1), strict=True))
