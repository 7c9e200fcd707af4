"""What is said about a flow before it runs: `explain()`, its drawing, and what a notebook shows."""

import re

import dovetail as dt
import numpy as np
import pytest
from dovetail import col, left, right
from flows import memory, stamps


def paragraph(flow, name):
    """What is said about a step, without its first line."""
    for text in flow.explain().split("\n\n"):
        head, *lines = text.splitlines()
        if head.split()[1].strip() == name:
            return [line.strip() for line in lines]
    raise KeyError(name)


def test_explain_tells_of_each_kind_of_step():
    flow = dt.Flow("plan")
    a = memory({"t": [1], "x": [1], "y": [2]}, flow, "a", "t", delay=5, idle="90s")
    b = memory({"t": [1], "x": [1], "y": [2]}, flow, "b", "t")
    u = a.union(b, name="u").filter(col("x") > 0, name="keep").select("t", "x", twice=col("x") * 2, name="pick")
    w = u.with_columns(more=col("x") + 1, name="add")
    w.map(lambda batch: batch, w.schema, name="given").write(dt.null(), name="n")
    w.map(lambda batch: batch, name="told").write(dt.collect(), name="c")
    w.map(lambda batch: 1 / 0, name="later").write(dt.show(3), name="s")
    a.late.write(dt.null(), name="l")
    plan = flow.explain()
    assert plan.splitlines()[0] == "flow 'plan', in one process"
    assert "union u ← a, b\n" in plan
    assert paragraph(flow, "a") == [
        "from memory (1 batch, 1 row)",
        "order: by t, integer; late if more than 5 behind",
        "holds others back for at most 90 s of silence",
    ]
    assert paragraph(flow, "b") == [
        "from memory (1 batch, 1 row)",
        "order: by t, integer; late if behind the greatest time so far",
        "columns read: t, x",
    ]
    assert paragraph(flow, "u") == ["by time, then in the order of the streams named"]
    assert paragraph(flow, "keep") == ["keeps rows with x > 0"]
    assert paragraph(flow, "pick") == ["columns: t, x", "twice = x * 2"]
    assert paragraph(flow, "add") == ["more = x + 1"]
    names = "t, x, twice, more"
    assert paragraph(flow, "given") == [f"your function, batch by batch; schema given: {names}"]
    assert paragraph(flow, "told") == [
        f"your function, batch by batch; schema taken from its answer to an empty batch: {names}"
    ]
    assert paragraph(flow, "later") == ["your function, batch by batch; schema taken from its first result"]
    assert paragraph(flow, "a.late") == ["rows of a that came too late, in the order in which they came"]
    assert paragraph(flow, "n") == ["to null; each result at least once"]
    assert paragraph(flow, "c") == ["to collect; each result once"]
    assert paragraph(flow, "s") == ["to show 3; each result at least once"]
    assert "so it does not run" not in plan


def test_explain_without_time():
    flow = dt.Flow("plan")
    a, b = memory(flow=flow, name="a"), memory(flow=flow, name="b")
    a.union(b, name="u").join(b, on=left.x == right.x, window=dt.last(5), ordered=False, name="j")
    assert paragraph(flow, "a")[1] == "order: as read (no time column)"
    assert paragraph(flow, "u") == ["in the order of arrival"]
    assert "order  as taken (no time column); ordered=False: followers may not rely on it" in paragraph(flow, "j")


def test_explain_shows_a_delay_of_a_timestamp_in_seconds():
    flow = stamps(name="a", delay="1.5min")._flow
    assert paragraph(flow, "a")[1] == "order: by t, timestamp[s]; late if more than 90 s behind"


def test_explain_names_what_no_sink_needs():
    stream = memory(name="a")
    stream.filter(col("x") > 1, name="unused")
    stream.write(dt.null(), name="out")
    plan = stream._flow.explain()
    assert "filter unused ← a   (no sink needs it, so it does not run)" in plan
    assert plan.count("so it does not run") == 1


def joined(window, on=None, itself=False, time="t", **options):
    flow = dt.Flow("plan")
    data = {"t": [1], "x": [1], "s": ["abc"]}
    a, b = memory(data, flow, "a", time), memory(data, flow, "b", time)
    return a.join(a if itself else b, on=on if on is not None else left.x < right.x, window=window, name="j",
                  **options)._flow  # fmt: skip


def test_explain_says_how_a_join_finds_rows_and_what_its_windows_may_hold():
    flow = joined((dt.last(2_000_000), dt.last(None)), [left.x < right.x, left.s == right.s])
    lines = paragraph(flow, "j")
    assert lines[:2] == ["on     inequality: left.x < right.x", "equality key: left.s == right.s"]
    assert "window left rows: last(2000000)" in lines
    assert "window right rows: last(None)" in lines
    assert "find   left rows by hash index on left.s: the predicate has an equality key" in lines
    assert "order  by event time, then left before right" in lines
    [first, second] = [line for line in lines if line.startswith("memory")]
    assert re.fullmatch(r"memory left: 2,000,000 rows and one batch, about \d+ MB \(\d+ bytes a row\)", first)
    assert re.fullmatch(r"memory right: NO BOUND: last\(None\) keeps every row, about \d+ bytes each", second)


def test_explain_counts_the_keys_that_pairs_within_rounding_are_told_by():
    def bytes_a_row(value):
        a, b = (memory({"x": [value]}, flow, name) for name in ("a", "b"))
        a.join(b, on=(left.x - right.x).abs() <= value, window=dt.last(5000), name="j")
        [first, _] = [line for line in paragraph(flow, "j") if line.startswith("memory")]
        return int(re.search(r"(\d+) bytes a row", first)[1])

    flow = dt.Flow("whole")
    whole = bytes_a_row(1)
    flow = dt.Flow("float")
    assert bytes_a_row(1.0) == whole + 8


def test_explain_says_that_a_time_window_has_no_bound_of_its_own():
    memory_lines = [line for line in paragraph(joined(dt.last(time=5)), "j") if line.startswith("memory")]
    assert [line.partition(", about ")[0] for line in memory_lines] == [
        "memory left: the rows of last(time=5)", "memory right: the rows of last(time=5)"
    ]  # fmt: skip
    assert memory_lines[0].endswith("bytes each; a time window has no bound of its own")


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        (dt.last(7), "window: 7 rows and one batch"),
        ((dt.last(7), dt.last(9)), "window: 9 rows and one batch"),
        ((dt.last(7), dt.last(time=1)), "window: the rows of last(time=1)"),
        ((dt.last(None), dt.last(9)), "window: NO BOUND"),
    ],
)
def test_explain_of_a_self_join_tells_of_its_one_window(windows, said):
    lines = paragraph(joined(windows, itself=True), "j")
    [bound] = [line for line in lines if line.startswith("memory")]
    assert bound.startswith(f"memory {said}")
    kept = [line for line in lines if line.startswith("window")]
    assert len(kept) == (1 if not isinstance(windows, tuple) else 2)
    assert all(line.startswith("window own rows: ") for line in kept)


def test_explain_says_what_is_decided_on_pairs():
    flow = joined(dt.last(9), on=dt.udf(np.equal, ["x"], ["x"]))
    [line, *_] = [line for line in paragraph(flow, "j") if line.startswith("then")]
    assert line.startswith("then decided on pairs as written: ")


def test_a_bound_in_large_units():
    lines = paragraph(joined(dt.last(10**15)), "j")
    assert any(" TB (" in line for line in lines)


def test_a_plan_is_drawn():
    flow = dt.Flow("plan")
    a, b = memory(flow=flow, name="a", time="t"), memory(flow=flow, name="b", time="t")
    pairs = a.union(b, name="u").join(b, on=left.x < right.x, window=(dt.last(5), dt.last(6)), name="j")
    pairs.filter(col("x") > 1, name="f").write(dt.null())
    a.late
    assert flow.explain().mermaid().splitlines() == [
        "flowchart LR",
        '    n0[("read a<br/>memory (1 batch, 3 rows)")]',
        '    n1[("read b<br/>memory (1 batch, 3 rows)")]',
        '    n2("union u")',
        '    n3{{"join j<br/>left.x &lt; right.x<br/>last(5) / last(6)"}}',
        '    n4["filter f<br/>x &gt; 1"]',
        '    n5[/"write-1<br/>null"/]',
        '    n6("late a.late")',
        "    n0 --> n2",
        "    n1 --> n2",
        '    n2 -->|"left"| n3',
        '    n1 -->|"right"| n3',
        "    n3 --> n4",
        "    n4 --> n5",
        "    n0 --> n6",
    ]


@pytest.mark.parametrize("text", ['"', "&lt;", "<b>", "<br/>", "]", "\n"])
def test_a_drawing_shows_texts_of_the_flow_as_they_are(text):
    stream = memory({"s": ["a"]}, name="a").filter(col("s") == text, name="f")
    [line] = [line for line in stream._flow.explain().mermaid().splitlines() if line.startswith("    n1[")]
    label = re.fullmatch(r'    n1\["filter f<br/>(.*)"\]', line)[1]
    for mark, entity in (("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        assert mark not in label
        label = label.replace(entity, mark)
    assert label.replace("&amp;", "&") == str(stream._node.predicate)


def test_notebooks_show_a_drawing_and_the_text():
    flow = memory(name="a")._flow
    shown = flow._repr_markdown_()
    assert shown == flow.explain()._repr_markdown_()
    assert shown.startswith("```mermaid\nflowchart LR\n")
    assert shown.endswith(f"```\n\n```text\n{flow.explain()}\n```")
