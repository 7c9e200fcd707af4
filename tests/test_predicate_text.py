"""Predicates as text: the same tree as the expressions, and an error that points at the place."""

import dovetail as dt
import pyarrow as pa
import pytest
from dovetail import left, lit, right
from dovetail.operators.predicate_text import predicate_of

SAME = {
    "l.a < r.b": left.a < right.b,
    "left.a=right.b": left.a == right.b,
    "L.a <> r.b and R.c != l.d": (left.a != right.b) & (right.c != left.d),
    "l.a >= 1 OR r.b <= -2.5e3 AND l.c > .5": (left.a >= 1) | ((right.b <= (0 - lit(2500.0))) & (left.c > 0.5)),
    "(l.a > 1 or r.b > 2) and l.c == 3": ((left.a > 1) | (right.b > 2)) & (left.c == 3),
    "abs(l.x - r.x) <= 2 * r.w + 1": (left.x - right.x).abs() <= (lit(2) * right.w) + 1,
    "l.x BETWEEN r.lo AND r.hi AND l.k = r.k": left.x.between(right.lo, right.hi) & (left.k == right.k),
    "l.x - r.x - 1 < 0": ((left.x - right.x) - 1) < 0,
    "cast(l.x as double) < cast(r.x AS float64)": left.x.cast("float64") < right.x.cast("float64"),
    'l.`odd name` < r."o""r"': left["odd name"] < right['o"r'],
    "l.name = 'it''s'": left.name == "it's",
    "l.übung < r.x1": left["übung"] < right.x1,
}


@pytest.mark.parametrize("text", SAME)
def test_text_and_expression_are_the_same(text):
    assert str(predicate_of(text)) == str(SAME[text])


WRONG = {
    "": "a column, a number or a text should come",
    "l.a <": "at 'its end' (character 6): a column",
    "l.a < r.b r.c": "at 'r.c' (character 11): AND, OR or the end should come",
    "a < r.b": "say of which side a column is: l.name or r.name",
    "`a` < r.b": "say of which side a column is",
    "l. < r.b": "a column's name should come",
    "l.a < (r.b": ") should come",
    "not l.a < r.b": "there is no NOT; write the opposite comparison",
    "l.a / 2 < r.b": "there is no division",
    "sqrt(l.a) < r.b": "there are two functions",
    "l.a BETWEEN 1 r.b": "AND should come",
    "l.a ? r.b": "'?' cannot stand there",
    "l.a < 'open": '"\'" cannot stand there',
}


@pytest.mark.parametrize("text", WRONG)
def test_an_error_points_at_the_place(text):
    with pytest.raises(dt.DovetailError) as caught:
        predicate_of(text)
    assert str(caught.value).startswith(f"on={text!r}: at ")
    assert WRONG[text] in str(caught.value)


def test_a_join_takes_text():
    def joined(on):
        flow, sink = dt.Flow("f"), dt.collect()
        a, b = (flow.read(dt.memory(pa.table({"x": [3, 1, 2], "y": [1, 2, 3]})), name=name) for name in "ab")
        a.join(b, on=on, window=dt.last(10)).write(sink)
        flow.run()
        return sink.table()

    text = joined("l.x < r.x AND l.y >= r.y")
    assert text.equals(joined([left.x < right.x, left.y >= right.y])) and text.num_rows
    assert joined(["l.x < r.x", left.y >= right.y]).equals(text)
    with pytest.raises(dt.DovetailError, match="no column 'z'"):
        joined("l.x < r.z")
    with pytest.raises(dt.DovetailError, match="join 'join-1': on='l.x IN .*predicates compare with"):
        joined("l.x IN (1, 2)")
    for deep in ("(" * 5000 + "l.x < r.x" + ")" * 5000, " OR ".join(["l.x < r.x"] * 5000)):
        with pytest.raises(dt.DovetailError):
            joined(deep)
