"""The oracle itself, on cases worked out by hand from docs/semantics.md, sections 1 to 3 and 6.

Every expected value here was written down from the text, with a pencil, and not by running anything:
whoever doubts a result of the other tests ends here.

The last part looks at what streams.py draws: a matrix over cases without ties would prove little.
"""

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from oracle import (
    LEFT,
    RIGHT,
    Clock,
    Event,
    Late,
    Window,
    as_stream,
    join,
    push,
    push_itself,
    read,
    self_join,
    total_order,
    union,
)
from predicates import Column, Compare
from streams import cases, said_duration

TS = Clock("ts")
ALL = Window()


def always(left, right):
    return True


def rows(prefix, *times):
    return [{"id": f"{prefix}{number}", "ts": time} for number, time in enumerate(times)]


def stream(prefix, *times, clock=TS, delay=Fraction(0)):
    return read(rows(prefix, *times), clock, delay)[0]


def ids(pairs):
    return [pair.left.row["id"] + pair.right.row["id"] for pair in pairs]


def met(left, right, window):
    """Join everything inside one window on both sides."""
    return ids(join(left, right, (window, window), always))


# Section 1: order


def test_order_is_time_then_left_then_position():
    order = total_order(stream("a", 5, 5, 7), stream("b", 5, 6))
    assert [event.row["id"] for _, event in order] == ["a0", "a1", "b0", "b1", "a2"]
    assert [side for side, _ in order] == [LEFT, LEFT, RIGHT, RIGHT, LEFT]


def test_reading_sorts_and_equal_times_keep_their_position():
    events, late = read(rows("a", 3, 1, 3, 1), TS, delay=Fraction(2))
    assert [event.row["id"] for event in events] == ["a1", "a3", "a0", "a2"]
    assert late == []


def test_late_is_strictly_before_the_greatest_time_minus_delay():
    # greatest before each: -, 10, 10, 10, 12; bounds: -, 7, 7, 7, 9
    events, late = read(rows("a", 10, 7, 6, 12, 8), TS, delay=Fraction(3))
    assert [row["id"] for row in late] == ["a2", "a4"]
    assert [event.time for event in events] == [7, 10, 12]


def test_without_delay_only_a_step_back_is_late():
    assert [row["id"] for row in read(rows("a", 1, 1, 0, 2), TS)[1]] == ["a2"]


def test_a_late_row_takes_no_row_number():
    left = stream("a", 10, 1, 11)  # a1 is late, so a2 has row 1
    assert met(left, stream("b", 12), Window(rows=1)) == ["a2b0"]
    assert met(left, stream("b", 12), Window(rows=2)) == ["a0b0", "a2b0"]


def test_union_is_by_time_then_input_then_position():
    assert [event.row["id"] for event in union(stream("b", 1, 2, 2), stream("c", 1, 2))] == [
        "b0",
        "c0",
        "b1",
        "b2",
        "c1",
    ]


def test_units_meet_as_fractions():
    seconds = Clock("ts", Fraction(1))
    millis = Clock("ts", Fraction(1, 1000))
    left, right = stream("a", 1, 2, clock=seconds), stream("b", 999, 1000, 1001, clock=millis)
    assert [event.row["id"] for _, event in total_order(left, right)] == ["b0", "a0", "b1", "b2", "a1"]


def test_a_joins_result_has_the_greater_time():
    pairs = join(stream("a", 1, 5), stream("b", 3), (ALL, ALL), always)
    joined = as_stream(pairs, lambda left, right: {"id": left["id"] + right["id"]})
    assert joined == [Event(3, {"id": "a0b0"}), Event(5, {"id": "a1b0"})]


# Section 2: windows


def test_count_window_keeps_the_last_n_of_the_other_stream():
    # b0 comes after a0..a3: k = 4, so rows 2 and 3
    assert met(stream("a", 1, 2, 3, 4), stream("b", 5), Window(rows=2)) == ["a2b0", "a3b0"]


def test_count_window_with_slide_moves_in_steps():
    # n = 4, c = 3. k: bound = 3 * ceil((k - 4) / 3):  4 -> 0, 5 -> 3, 6 -> 3, 7 -> 3, 8 -> 6
    expected = {4: 0, 5: 3, 6: 3, 7: 3, 8: 6}
    for k, bound in expected.items():
        left, right = stream("a", *range(k)), stream("b", 100)
        assert met(left, right, Window(rows=4, slide=3)) == [f"a{row}b0" for row in range(bound, k)], k
        assert 4 - 3 + 1 <= k - bound <= 4


def test_count_window_with_slide_has_a_bound_below_zero_at_first():
    # k = 1: 2 * ceil((1 - 5) / 2) = -4; nothing is lost
    assert met(stream("a", 0), stream("b", 100), Window(rows=5, slide=2)) == ["a0b0"]


def test_time_window_is_closed():
    assert met(stream("a", 1, 2, 3), stream("b", 12), Window(span=Fraction(10))) == ["a1b0", "a2b0"]


def test_zero_span_means_equal_times():
    assert met(stream("a", 1, 2), stream("b", 1, 2), Window(span=Fraction(0))) == ["a0b0", "a1b1"]


def test_time_window_with_slide():
    # T = 10, s = 4. p = 15: 4 * ceil(5 / 4) = 8; p = 14: 4 * ceil(4 / 4) = 4; p = 17: 4 * ceil(7 / 4) = 8
    left = stream("a", 3, 4, 7, 8, 9)
    window = Window(span=Fraction(10), slide=Fraction(4))
    assert met(left, stream("b", 14), window) == ["a1b0", "a2b0", "a3b0", "a4b0"]
    assert met(left, stream("b", 15), window) == ["a3b0", "a4b0"]
    assert met(left, stream("b", 17), window) == ["a3b0", "a4b0"]
    assert met(left, stream("b", 19), window) == []  # 4 * ceil(9 / 4) = 12


def test_time_window_with_slide_rounds_up_below_zero_too():
    # T = 4, s = 3. p = -1: 3 * ceil(-5 / 3) = -3; p = -2: 3 * ceil(-6 / 3) = -6; p = 1: 3 * ceil(-3 / 3) = -3
    left, window = stream("a", -6, -5, -4, -3, -2), Window(span=Fraction(4), slide=Fraction(3))
    assert met(left, stream("b", -1), window) == ["a3b0", "a4b0"]
    assert met(left, stream("b", -2), window) == ["a0b0", "a1b0", "a2b0", "a3b0", "a4b0"]
    assert met(left, stream("b", 1), window) == ["a3b0", "a4b0"]
    assert met(left, stream("b", 2), window) == []  # 3 * ceil(-2 / 3) = 0


def test_a_span_finer_than_the_unit_is_exact():
    clock = Clock("ts", Fraction(1))  # seconds, and a window of 1.5 s
    left, right = stream("a", 1, 2, clock=clock), stream("b", 3, clock=clock)
    assert met(left, right, Window(span=Fraction(3, 2))) == ["a1b0"]


def test_everything_is_kept_without_rows_or_span():
    assert met(stream("a", 0, 1), stream("b", 10**30), ALL) == ["a0b0", "a1b0"]


def test_a_window_belongs_to_the_side_that_it_keeps():
    left, right = stream("a", 1, 2, 5), stream("b", 3, 4)
    # b0 and b1 look into what is kept of the left (1 row), a2 into what is kept of the right (2 rows)
    pairs = join(left, right, (Window(rows=1), Window(rows=2)), always)
    assert ids(pairs) == ["a1b0", "a1b1", "a2b0", "a2b1"]


def test_results_are_in_order_of_the_later_tuple_then_of_the_others_row():
    left, right = stream("a", 1, 2, 4), stream("b", 1, 3)
    assert met(left, right, ALL) == ["a0b0", "a1b0", "a0b1", "a1b1", "a2b0", "a2b1"]


def test_only_pairs_for_which_the_predicate_holds():
    pairs = join(stream("a", 1, 2), stream("b", 3), (ALL, ALL), lambda left, right: left["ts"] == 2)
    assert ids(pairs) == ["a1b0"]


def test_a_predicate_on_one_side_does_not_change_what_a_count_window_counts():
    window = Window(rows=2)
    pairs = join(stream("a", 1, 2, 3), stream("b", 4), (window, window), lambda left, right: left["ts"] != 3)
    assert ids(pairs) == ["a1b0"]  # a0 would be a second one, if only rows that pass were counted


def test_self_join_has_both_ways_and_never_itself_with_the_later_first_on_the_left():
    s = stream("a", 1, 1, 2)
    assert ids(self_join(s, (ALL, ALL), always)) == ["a1a0", "a0a1", "a2a0", "a0a2", "a2a1", "a1a2"]


def test_self_join_counts_its_own_rows():
    s = stream("a", 1, 2, 3)
    one = Window(rows=1)
    assert ids(self_join(s, (one, one), always)) == ["a1a0", "a0a1", "a2a1", "a1a2"]


def test_self_join_with_two_windows_takes_the_older_tuples_role():
    s = stream("a", 1, 2, 3)
    # kept of the left: the last 1; of the right: all. So (a0, a2), a0 older and left, is out; (a2, a0) is in.
    assert ids(self_join(s, (Window(rows=1), ALL), always)) == ["a1a0", "a0a1", "a2a0", "a2a1", "a1a2"]


# Section 6: push


def test_push_gives_each_pair_in_the_step_of_its_later_tuple():
    steps = [(rows("a", 2, 1), []), ([], rows("b", 2)), ([], []), ([{"id": "c0", "ts": 3}], [])]
    out = push(steps, (TS, TS), (ALL, ALL), always)
    assert [ids(pairs) for pairs in out] == [[], ["a1b0", "a0b0"], [], ["c0b0"]]


def test_push_without_time_takes_all_left_rows_then_all_right_rows():
    steps = [(rows("a", 9, 9), rows("b", 0)), (rows("c", 9), rows("d", 0))]
    out = push(steps, (None, None), (Window(rows=2), Window(rows=1)), always)
    assert [ids(pairs) for pairs in out] == [["a0b0", "a1b0"], ["c0b0", "a1d0", "c0d0"]]


def test_push_refuses_a_row_from_before_an_earlier_step():
    with pytest.raises(Late) as caught:
        push([(rows("a", 5), []), ([], rows("b", 9, 4))], (TS, TS), (ALL, ALL), always)
    late = caught.value
    assert (late.side, late.row, late.time, late.before) == (RIGHT, 1, 4, 5)


@pytest.mark.parametrize(
    ("first", "second", "is_late"),
    [
        ((rows("a", 5), []), (rows("c", 5), []), False),  # left after left: by position
        ((rows("a", 5), []), ([], rows("c", 5)), False),  # right after left
        (([], rows("a", 5)), ([], rows("c", 5)), False),  # right after right
        (([], rows("a", 5)), (rows("c", 5), []), True),  # left stands before right
    ],
)
def test_push_at_an_equal_time_looks_at_the_side(first, second, is_late):
    def run():
        return push([first, second], (TS, TS), (ALL, ALL), always)

    if is_late:
        with pytest.raises(Late):
            run()
    else:
        assert len(run()) == 2


def test_push_itself_is_the_self_join_step_by_step():
    out = push_itself([rows("a", 2, 1), rows("b", 2)], TS, (ALL, ALL), always)
    assert [ids(pairs) for pairs in out] == [["a0a1", "a1a0"], ["b0a1", "a1b0", "b0a0", "a0b0"]]


# What is drawn


def test_cases_are_full_of_edges():
    """Of 400 cases, each kind of edge is in a good share: what the matrix proves rests on it."""
    seen = Counter()

    @settings(max_examples=400, deadline=None, derandomize=True, database=None)
    @given(cases())
    def look(case):
        values = [value for side in case.both for row in side.meanings() for value in row.values()]
        floats = [value for value in values if isinstance(value, float)]
        seen["null"] += None in values
        seen["nan"] += any(math.isnan(value) for value in floats)
        seen["infinity"] += any(math.isinf(value) for value in floats)
        seen["negative zero"] += any(str(value) == "-0.0" for value in floats)
        seen["beyond 2^53"] += any(isinstance(value, int) and abs(value) > 2**53 for value in values)
        seen["empty"] += any(not side.rows for side in case.both)
        seen["self-join"] += case.right is None
        seen["untimed"] += not case.timed
        seen["several conditions"] += len(case.on) > 1
        seen["slide"] += any(window.slide is not None for window in case.windows)
        seen["two windows"] += case.windows[0] != case.windows[1]
        if case.timed:
            read_sides = [read(side.meanings(), side.clock, side.delay * side.tick) for side in case.both]
            seen["late"] += any(late for _, late in read_sides)
            times = [event.time for events, _ in read_sides for event in events]
            seen["ties"] += len(set(times)) < len(times)
            seen["units differ"] += len({side.tick for side in case.both}) > 1
            seen["extreme times"] += any(abs(row["ts"]) > 2**62 for side in case.both for row in side.rows)
            met = (
                self_join(read_sides[0][0], case.windows, case.holds)
                if case.right is None
                else join(read_sides[0][0], read_sides[1][0], case.windows, case.holds)
            )
            seen["results"] += len(met) > 0
            seen["many results"] += len(met) > 10

    look()
    rare = {"extreme times": 20, "infinity": 20, "nan": 20, "units differ": 30, "negative zero": 30}
    rare |= {"beyond 2^53": 30, "empty": 40}
    for edge, count in seen.items():
        assert count >= rare.get(edge, 60), (edge, seen)
    assert len(seen) == 17


def test_times_apart_never_tie_across_the_sides():
    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(cases(timed=True, alone=False, apart=True))
    def look(case):
        a, b = ({row["ts"] for row in side.meanings()} for side in case.both)
        assert not a & b

    look()


def test_a_comparison_with_null_or_nan_is_false_in_the_predicates_of_the_tests():
    for sign in ("<", "<=", ">", ">=", "==", "!="):
        condition = Compare(sign, Column("left", "x"), Column("right", "x"))
        for nothing in (None, math.nan):
            assert not condition.holds({"x": nothing}, {"x": 1})
            assert not condition.holds({"x": 1}, {"x": nothing})
            assert not condition.holds({"x": nothing}, {"x": nothing})


def test_durations_are_said_exactly():
    said = {"10min": 600, "1h": 3600, "1500ms": Fraction(3, 2), "7ns": Fraction(7, 10**9), "0s": 0}
    assert {said_duration(Fraction(seconds)): seconds for seconds in said.values()} == said
