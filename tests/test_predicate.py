"""Predicates as written: how they print, what they become, and what is refused, with the user's own line."""

import datetime
import re
from decimal import Decimal
from fractions import Fraction

import dovetail as dt
import numpy as np
import pyarrow as pa
import pytest
from dovetail import left, right
from dovetail.operators.access import JoinSpec, choose_access
from dovetail.operators.evaluate import Columns, truth
from dovetail.operators.predicate import plan_predicate

SCHEMA = pa.schema(
    [
        ("i", pa.int64()), ("small", pa.uint8()), ("big", pa.uint64()), ("x", pa.float64()), ("y", pa.float64()),
        ("s", pa.string()), ("raw", pa.binary()), ("ok", pa.bool_()), ("ts", pa.timestamp("us")),
        ("zoned", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("took", pa.duration("ms")),
        ("price", pa.decimal128(9, 2)), ("wide", pa.decimal128(30, 2)), ("odd name", pa.int32()),
        ("list", pa.list_(pa.int8())), ("null", pa.null()),
    ]
)  # fmt: skip


def join(on, index="auto", window=None):
    return JoinSpec.check("join 'j'", {"left": SCHEMA, "right": SCHEMA}, on, window or dt.last(10**6),
                          {"left": None, "right": None}, index=index)  # fmt: skip


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (left.x < right.x, "left.x < right.x"),
        (5 <= left.i, "left.i >= 5"),
        ((left.x - right.x).abs() <= 0.5, "(left.x - right.x).abs() <= 0.5"),
        (left["odd name"] == right.i, "left['odd name'] == right.i"),
        ((left.i + 1) * 2 - right.i > -left.i, "(left.i + 1) * 2 - right.i > -left.i"),
        (left.i - (right.i - 1) != 0, "left.i - (right.i - 1) != 0"),
        (left.x.between(right.x, right.y), "left.x.between(right.x, right.y)"),
        ((left.i < 3) | (left.s == right.s) & (right.ok == left.ok),
         "(left.i < 3) | ((left.s == right.s) & (right.ok == left.ok))"),
        (left.i.cast("float64") < right.x, 'left.i.cast("double") < right.x'),
        (dt.udf(max, ["i"], ["i"]), "max(left.i, right.i)"),
        (dt.lit(3) > left.i, "3 > left.i"),
    ],
)  # fmt: skip
def test_predicates_print_as_they_were_written(written, text):
    assert str(written) == text
    assert text in repr(written)


def shapes(on, side="right"):
    plan = plan_predicate(on, {"left": SCHEMA, "right": SCHEMA}, "j").sides[side]
    return [(test.shape, test.key.text, test.exact) for test in plan.tests], [str(c) for c in plan.remainder]


@pytest.mark.parametrize(
    ("on", "tests", "remainder"),
    [
        (left.i == right.i, [("equality", "right.i", True)], []),
        (left.i + 5 < 2 * right.i, [("comparison", "right.i", True)], []),
        (left.s == right.s, [("equality", "right.s", False)], []),
        ((left.i - right.i).abs() <= 5, [("band", "right.i", True)], []),
        ((left.x - right.x).abs() <= 5, [("band", "right.x", False)], []),
        ([left.i <= right.i, left.i >= right.i - 3], [("band", "right.i", True)], []),
        (left.x.between(right.x - 1, right.x + 1), [("band", "right.x", False)], []),
        (left.x.between(right.x, right.y), [("comparison", "right.x", True), ("comparison", "right.y", True)], []),
        ((left.i < right.i) | (left.i > right.i + 9), [("union", "right.i", True)], []),
        ((left.i - right.i).abs() > 5, [("union", "right.i", True)], []),
        (left.i != right.i, [("unequal", "right.i", True)], []),
        (left.i * right.i > 5, [], ["left.i * right.i > 5"]),
        ((left.i < right.i) | (left.x < right.y), [], ["(left.i < right.i) | (left.x < right.y)"]),
        (left.i < right.x, [("comparison", "right.x", True)], []),
        (left.x < right.i, [("comparison", "right.i", True)], []),
        (left.ts - right.ts <= "5s", [("comparison", "right.ts", True)], []),
        (left.price > right.price + Decimal("0.5"), [("comparison", "right.price", True)], []),
        (left.i - left.i + right.i > 2 + left.small, [("comparison", "right.i", False)], []),
    ],
)  # fmt: skip
def test_a_conjunct_becomes_a_range_of_one_key_where_it_can(on, tests, remainder):
    assert shapes(on) == (tests, remainder)


def test_a_condition_on_one_side_is_kept_apart():
    plan = plan_predicate([left.s == "a", left.i < right.i, right.x > 0], {"left": SCHEMA, "right": SCHEMA}, "j")
    assert {side: [str(c) for c in found] for side, found in plan.conditions.items()} == {
        "left": ["left.s == 'a'"], "right": ["right.x > 0"]}  # fmt: skip
    assert plan.normal_form() == [
        "condition on left rows: left.s == 'a'",
        "inequality: left.i < right.i",
        "condition on right rows: right.x > 0",
    ]


@pytest.mark.parametrize(
    ("on", "window", "index"),
    [
        (left.i == right.i, None, "carousel"),
        (left.s == right.s, None, "hash"),
        ([left.i == right.i, left.s == right.s], None, "hash"),
        ((left.x - right.x).abs() <= 5, None, "carousel"),
        (left.x < right.x, None, "carousel"),
        ([left.x < right.x, left.y > right.y], None, "zone_map"),
        ((left.i < right.i) | (left.i > right.i + 9), None, "carousel"),
        (left.i != right.i, None, "nested"),
        (left.i == right.i, dt.last(256), "nested"),
        (left.i == right.i, dt.last(257), "carousel"),
    ],
)
def test_auto_chooses_by_the_stated_rule(on, window, index):
    access = choose_access(join(on, window=window), "left")
    assert access.index == index
    assert access.why


REFUSED = [
    (lambda: left.rak < right.i, dt.SchemaError, r"join 'j': there is no column 'rak' on the left; did you mean 'raw'"),
    (lambda: left.X < right.x, dt.SchemaError, "did you mean 'x'"),
    (lambda: left.i < right.s, dt.PredicateError, "compares an integer with a string"),
    (lambda: left.s < right.s, dt.PredicateError, "string columns can be compared with == and != only"),
    (lambda: left.i + right.x > 1, dt.PredicateError, r"mixes integer and float.*`left.i.cast\(\"float64\"\)`"),
    (lambda: left.i + 1.5 > right.i, dt.PredicateError, "mixes integer and float"),
    (lambda: left.s + right.s == "a", dt.PredicateError, "there is no arithmetic on a string"),
    (lambda: left.ts + right.ts > left.ts, dt.PredicateError, "a timestamp plus a timestamp has no meaning"),
    (lambda: left.took - right.ts < left.took, dt.PredicateError, "a duration minus a timestamp has no meaning"),
    (lambda: left.ts * 2 > right.ts, dt.PredicateError, "a timestamp times an integer has no meaning"),
    (lambda: left.ts < right.zoned, dt.PredicateError, "a time that has a time zone with one that has none"),
    (lambda: left.ts < right.took, dt.PredicateError, "compares a timestamp with a duration"),
    (lambda: left.ts.abs() < right.ts, dt.PredicateError, r"abs\(\) of a timestamp has no meaning"),
    (lambda: left.price < right.x, dt.PredicateError, r'a decimal with a float; write `left.price.cast\("float64"\)`'),
    (lambda: left.price < 0.1, dt.PredicateError, r'compares a decimal with a float; write Decimal\("…"\)'),
    (lambda: left.wide < right.wide, dt.PredicateError, "decimals of up to 18 digits and a scale of at least 0 can"),
    (lambda: left.list == right.list, dt.PredicateError, "list<item: int8>, which cannot be compared"),
    (lambda: left.null == right.i, dt.PredicateError, "can never hold: a comparison with null or NaN is false"),
    (lambda: left.null + 1 == right.i, dt.PredicateError, "is always null"),
    (lambda: left.x == None, dt.PredicateError, "can never hold: a comparison with null or NaN is false"),  # noqa: E711
    (lambda: left.x < float("nan"), dt.PredicateError, "can never hold: a comparison with null or NaN is false"),
    (lambda: (left.x - right.x).abs() <= -1, dt.PredicateError, "a negative band, so it can never hold"),
    (lambda: (left.x - right.x).abs() < 0, dt.PredicateError, "no distance is below 0; write <="),
    (lambda: left.x.between(5, 3), dt.PredicateError, "the low end is above the high one"),
    (lambda: left.i.between(5, 3), dt.PredicateError, "the low end is above the high one"),
    (lambda: left.i == 2.5, dt.PredicateError, "2.5 is not a whole number"),
    (lambda: left.small > 300, dt.PredicateError, "can never hold: no value of these columns' types can"),
    (lambda: [left.i < right.i, left.i > right.i], dt.PredicateError, "together with `left.i < right.i`"),
    (lambda: [left.i < right.i, left.i == right.i + 4], dt.PredicateError, "together with `left.i < right.i`"),
    (lambda: [left.x < right.x, right.x <= left.x], dt.PredicateError, "can never hold together with"),
    (lambda: left.x < left.x, dt.PredicateError, "`left.x < left.x` can never hold"),
    (lambda: left.i - left.i > 0, dt.PredicateError, "`left.i - left.i > 0` can never hold"),
    (lambda: dt.lit(False), dt.PredicateError, "a predicate that is always False can never hold"),
    (lambda: True, dt.PredicateError, "on=True is not a predicate .was it written with `and`"),
    (lambda: 3, dt.PredicateError, "on=3 is not a predicate"),
    (lambda: left.x + 1, dt.PredicateError, "is not a comparison; write one"),
    (lambda: dt.col("x") < right.x, dt.PredicateError, "`x` does not belong here; write left.… or right.…"),
    (lambda: left.s.cast("int64") < right.i, dt.PredicateError, "a string cannot be cast to int64 here"),
    (lambda: left.ts.cast(pa.timestamp("s", "UTC")) < right.ts, dt.PredicateError, "cannot add or drop a time zone"),
    (lambda: left.ts.cast(pa.duration("s")) < right.took, dt.PredicateError, "a timestamp cannot become a duration"),
    (lambda: left.ts < "noon", dt.PredicateError, "'noon' is not a time; write it as"),
    (lambda: left.zoned < "2024-01-01", dt.PredicateError, "has no time zone and the column has"),
    (lambda: left.took < "soon", dt.WindowError, "'soon' is not a duration"),
    (lambda: left.ts < np.datetime64("2024-01", "M"), dt.PredicateError, "use a unit of s, ms, us, ns or D"),
    (lambda: left.i < {}, dt.PredicateError, "the constant {} of type dict cannot be compared"),
    (lambda: None, dt.PredicateError, "a join needs on=…"),
]  # fmt: skip


@pytest.mark.parametrize(("on", "error", "text"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_cannot_be_meant_is_refused_when_it_is_written(on, error, text):
    with pytest.raises(error, match=text):
        join(on())


def test_the_error_points_at_the_line_of_the_comparison():
    ours = left.rack < right.rack
    line = test_the_error_points_at_the_line_of_the_comparison.__code__.co_firstlineno + 1
    with pytest.raises(dt.SchemaError) as caught:
        join([left.i < right.i, ours])
    assert f"{__file__}:{line}" in str(caught.value)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (lambda: left.x < right.x and left.i < right.i, "Write `a & b` or a list for `and`"),
        (lambda: left.x < right.x < 5, r"`x.between\(low, high\)` or"),
        (lambda: not left.ok, "the opposite comparison for `not`"),
        (lambda: ~(left.x < right.x), "there is no negation: write the opposite comparison"),
        (lambda: list(left.x), "is one value, not a sequence"),
        (lambda: left.x / 2, "there is no division: multiply the other side"),
        (lambda: left < right.x, "stands for a whole row; name a column, as in `left.x`"),
        (lambda: right.x < left, "stands for a whole row; name a column, as in `left.x`"),
        (lambda: left[3], r"left\[3\]: a column is named by a string"),
        (lambda: dt.col(3), r"col\(3\): a column is named by a string"),
        (lambda: left.x.cast("number"), r"cast\('number'\): there is no such type"),
        (lambda: left.x.cast(5), r"cast\(5\): give a type"),
        (lambda: dt.udf(5, ["x"], ["x"]), r"udf\(5\): give a function"),
        (lambda: dt.udf(max, "x", ["x"]), "give a list of column names"),
        (lambda: dt.udf(max, [], []), "name at least one column"),
        (lambda: left._x, r"write left\['_x'\]"),
    ],
)
def test_python_that_a_library_cannot_see_raises_with_the_right_spelling(written, text):
    with pytest.raises((dt.PredicateError, TypeError, AttributeError), match=text) as caught:
        written()
    if isinstance(caught.value, dt.PredicateError):
        assert re.search(r"test_predicate\.py:\d+|there is no such type|give a type", str(caught.value))


def test_constants_of_every_kind():
    day, moment, span = datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2, 3), datetime.timedelta(seconds=1)
    zoned = moment.replace(tzinfo=datetime.UTC)
    for on in (
        left.ts > moment, left.zoned > zoned, left.day >= day, left.took < span, left.took < "1500ms",
        left.ts > "2024-01-02T03:00:00", left.zoned > "2024-01-02T03:00:00+00:00",
        left.ts > np.datetime64("2024-01-02"), left.took < np.timedelta64(5, "s"),
        left.i < np.int32(4), left.x < pa.scalar(3), left.price < Decimal("3.5"),
        left.raw == b"x", left.ok, left.day - right.day < "36h", left.x < 10**400,
    ):  # fmt: skip
        join([on, left.i < right.i])


class Stamp(datetime.datetime):
    """As pandas has them: nanoseconds beside the microseconds."""

    nanosecond = 7


class Span(datetime.timedelta):
    nanoseconds = 7


@pytest.mark.parametrize(
    ("kind", "constant", "expected"),
    [
        (pa.timestamp("ns"), pa.scalar(1007, pa.timestamp("ns")), 1007),
        (pa.timestamp("ns", "UTC"), pa.scalar(1, pa.timestamp("us", "Europe/Paris")), 1000),
        (pa.timestamp("ns"), Stamp(1970, 1, 1, microsecond=1), 1007),
        (pa.timestamp("ns", "UTC"), Stamp(1970, 1, 1, microsecond=1, tzinfo=datetime.UTC), 1007),
        (pa.duration("ns"), pa.scalar(1007, pa.duration("ns")), 1007),
        (pa.duration("ns"), Span(microseconds=1), 1007),
        (pa.timestamp("ns"), "1970-01-01T00:00:00.000001007", 1007),
        (pa.timestamp("ns"), "1970-01-01 00:00:00,0000010070000", 1007),
        (pa.timestamp("ns"), "1969-12-31T23:59:59.999998993", -1007),
        (pa.timestamp("ns", "UTC"), "1970-01-01T01:00:00.000001007+01:00", 1007),
        (pa.duration("ns"), "1.007us", 1007),
    ],
)
def test_constants_keep_their_nanoseconds(kind, constant, expected):
    around = pa.array(range(expected - 2, expected + 3), pa.int64()).view(kind)
    flow = dt.Flow("f")
    out = flow.read(dt.memory({"x": around})).filter(dt.col("x") == constant).write(dt.collect())
    flow.run()
    assert out.table()["x"].cast(pa.int64()).to_pylist() == [expected]


def test_constants_between_two_nanoseconds_equal_none():
    flow = dt.Flow("f")
    stream = flow.read(
        dt.memory({"x": pa.array([0, 1, 2], pa.duration("ns")), "t": pa.array([0, 1, 2], pa.timestamp("ns"))})
    )
    kept = {}
    for name, constant in (("x", "1.5ns"), ("t", "1970-01-01T00:00:00.0000000015")):
        for sign in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__"):
            kept[name, sign] = stream.filter(getattr(dt.col(name), sign)(constant)).select("x").write(dt.collect())
    flow.run()
    for (_, sign), out in kept.items():
        expected = {"__lt__": [0, 1], "__le__": [0, 1], "__gt__": [2], "__ge__": [2], "__eq__": []}[sign]
        assert out.table()["x"].cast(pa.int64()).to_pylist() == expected, sign


def test_a_window_keeps_its_nanoseconds():
    assert dt.last(Span(microseconds=1)).seconds == Fraction(1007, 10**9)


def test_an_infinite_decimal_is_beyond_all_integers():
    assert truth_of(left.i < Decimal("Infinity"), i=[2**63 - 1]) == [True]
    assert truth_of(left.i < Decimal("-Infinity"), i=[-(2**63)]) == [False]


def truth_of(predicate, **columns):
    bound = plan_predicate(predicate, {"left": SCHEMA, "right": SCHEMA}, "j").conjuncts[0]
    rows = pa.record_batch(columns)
    return truth(bound, Columns(lambda _, name: rows[name]), rows.num_rows).tolist()


WINDOWS = [
    (lambda: dt.last(0), r"last\(0\) keeps no row"),
    (lambda: dt.last(-1), "a window cannot be negative"),
    (lambda: dt.last(time=-1), "a window cannot be negative"),
    (lambda: dt.last(True), "is not a duration"),
    (lambda: dt.last(time=1.5), "1.5 is not a whole number"),
    (lambda: dt.last(2**70), "use last.None. to keep everything"),
    (lambda: dt.last("soon"), "'soon' is not a duration; write a number and one of"),
    (lambda: dt.last(10, slide=11), "the slide is larger than the window"),
    (lambda: dt.last(10, slide=0), "a slide is at least 1"),
    (lambda: dt.last("1min", slide="0s"), "a slide is at least 1"),
    (lambda: dt.last(None, slide=1), "a window that keeps everything does not slide"),
    (lambda: dt.last(), "give one size"),
    (lambda: dt.last(5, time=5), "give one size"),
    (lambda: dt.last(datetime.timedelta(seconds=-1)), "a window cannot be negative"),
]


@pytest.mark.parametrize(("window", "text"), WINDOWS, ids=[str(i) for i in range(len(WINDOWS))])
def test_windows_that_cannot_be(window, text):
    with pytest.raises(dt.WindowError, match=text):
        window()


@pytest.mark.parametrize(
    ("window", "time", "text"),
    [
        (None, "ts", "a join needs window="),
        (5, "ts", "window=5 is not a window"),
        ((dt.last(1),), "ts", "is not a window; write"),
        (dt.last("1min"), None, "measures time, but the streams have no time column"),
        (dt.last("1min"), "i", r"does not fit an event time of integer; write last\(time=300\)"),
        (dt.last(time=5), "ts", r"does not fit an event time of timestamp\[us\]; write a duration"),
        (dt.last("1min", slide="1500ns"), "ts", "is not a whole number of units of timestamp"),
        (dt.last(10**6 * datetime.timedelta(days=365)), "ts", "longer than timestamp.us. can count"),
    ],
)  # fmt: skip
def test_windows_that_do_not_fit_the_time(window, time, text):
    with pytest.raises(dt.FlowError, match=text):
        dt.WindowJoin(SCHEMA, SCHEMA, on=left.i < right.i, window=window, left_time=time, right_time=time)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"left_time": "tz"}, r"WindowJoin: left_time: there is no column 'tz' for the time; did you mean 'ts'"),
        ({"left_time": "x"}, "column 'x' is double; a time is a timestamp, a date or an integer"),
        ({"left_time": "ts"}, "the right side has no time column and the other has one"),
        ({"left_time": "ts", "right_time": "i"}, "event times of timestamp.us. and of integer cannot be compared"),
        ({"left_time": "ts", "right_time": "zoned"}, "one event time has a time zone and the other has none"),
        ({"index": "tree"}, "there is no index 'tree'; there are: auto, .*carousel.*, nested"),
        ({"index": "hash"}, 'index="hash" needs an equality'),
        ({"suffix": ""}, "the result would have two columns named 'big'; pass another suffix than ''"),
    ],
)
def test_joins_that_cannot_be(options, text):
    with pytest.raises(dt.FlowError, match=text):
        dt.WindowJoin(SCHEMA, SCHEMA, on=left.i < right.i, window=dt.last(3), **options)
    with pytest.raises(dt.FlowError, match="left_schema must be a pyarrow.Schema"):
        dt.WindowJoin({"x": 1}, SCHEMA, on=left.x < right.i, window=dt.last(3))


def test_functions_of_the_users_are_held_to_what_they_promise():
    schema = pa.schema([("x", pa.int64()), ("s", pa.string())])
    batch = pa.record_batch({"x": [1, None, 3], "s": ["a", "b", None]}, schema=schema)

    def push(fn, columns=("x",)):
        udf = dt.udf(fn, list(columns), list(columns))
        return dt.WindowJoin(schema, schema, on=udf, window=dt.last(9)).push(left=batch, right=batch)

    seen = []
    assert push(lambda a, b: seen.append((type(a), len(a))) or a <= b).num_rows == 3
    assert seen == [(np.ndarray, 4)]
    assert push(lambda a, b: pa.compute.equal(a, b), ["s"]).num_rows == 2
    assert push(lambda a, b: pa.chunked_array([[True, None], [False, True]])).num_rows == 2
    for fn, text in (
        (lambda a, b: 1 / 0, r"udf lambda .*test_predicate.py:\d+\) raised ZeroDivisionError"),
        (lambda a, b: [True], "returned 1 values for 4 pairs"),
        (lambda a, b: a + b, r"returned int64 of shape \(4,\); return booleans"),
        (lambda a, b: pa.array([1, 2, 3, 4]), "returned int64; return booleans"),
    ):
        with pytest.raises(dt.UserFunctionError, match=text):
            push(fn)


@pytest.mark.parametrize(
    "on",
    [
        (left.x - right.x).abs() <= 0.1,
        (left.x - right.x).abs() < right.y,
        left.x - right.x < right.y,
        left.x - right.y + 0.1 >= right.x,
        (left.x - right.x).between(-right.y, 0.1),
    ],
    ids=str,
)
def test_a_pair_within_rounding_is_neither_sure_nor_excluded(on):
    """Ranges of rounding comparisons: all that hold are inside, all that are sure hold, and little lies between."""
    with np.errstate(all="ignore"):
        _check_ranges_of_rounding(on)


def _check_ranges_of_rounding(on):
    rng = np.random.default_rng(5)
    n = 20_000
    base = rng.choice([0.0, 1e-8, 1.0, 3e5, 1e18, 1e301, np.inf, -np.inf, np.nan], n) * rng.choice([1, -1, 0.3], n)
    reach = rng.choice([0.1, 0.0, 1e-3, 7e5], n)
    moved = (
        base
        + rng.choice([-1, 1, 0], n) * np.where(rng.random(n) < 0.5, reach, 0.1)
        - rng.choice([0, 0, 0.1], n)
        + rng.choice([0, 1e-17, 1e-15, 1.0], n)
    )
    for _ in range(2):
        moved = np.nextafter(moved, rng.choice([np.inf, -np.inf], n))
    rows = {("left", "x"): moved, ("right", "x"): base, ("right", "y"): reach}
    columns = Columns(lambda side, name: pa.array(rows[side, name]))
    schema = pa.schema([("x", pa.float64()), ("y", pa.float64())])
    between = 0
    for stored in ("left", "right"):
        predicate = plan_predicate(on, {"left": schema, "right": schema}, "j")
        (test,) = predicate.sides[stored].tests[:1]
        if test.sure is None:
            continue
        key, known = test.key.compute(columns, n)
        known = np.ones(n, bool) if known is None else known
        holds = np.logical_and.reduce([truth(c, columns, n) for c in predicate.conjuncts])
        (lo, hi), (sure_lo, sure_hi) = test.ends(columns, n), test.sure(columns, n)
        may, sure = known & (lo <= key) & (key <= hi), known & (sure_lo <= key) & (key <= sure_hi)
        assert not (holds & ~may).any()
        assert not (sure & ~holds).any()
        assert sure.sum() > n / 20
        between += (may & ~sure).sum()
    assert between  # the cases were drawn to lie on the edge
