"""Which index finds the rows of one side, when several could: by what each would cost, seen from the data.

Problem: a predicate of several comparisons can be answered in several ways, `k == k and |x - y| < 1` by a table of `k`,
by an index on `x`, or by one that goes by both; which is best depends on how many rows each comparison leaves, and may
differ by a factor of a thousand. Nobody knows that before there are rows. Idea: begin by a rule (access.py); while the
join runs, hold some new tuples against some rows of the window, now and then, and count what each test lets through.
That, the rows of the window and what an index costs on this machine (state/costs.py) give the nanoseconds of each way:

    storing a row + asking once + rows found × (handing one out + each test that is left)

If another way costs a tenth less, the index is built anew for that one, from the keys of the window, between two
steps. Results do not depend on it. Here are the decisions; cell.py carries them out.

Cost: the keys of all tests are kept for each row of the window, 8 bytes each, as any way may need them; a look takes
a third of a millisecond, and comes at each doubling of the rows, until they are a window's length or `SELDOM` apart.
"""

__all__ = ["ASSUMED_ROWS", "LOOKED_ROWS", "Seen", "Watch", "Way", "look", "price", "prices", "ways"]

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..state.costs import MEASURED, SCANNED, Costs, known
from .access import Access, JoinSpec, access_by, choose_access
from .predicate import RangeTest
from .ranges import Ends

FIRST_LOOK = 256
"""Rows of a window before which there is nothing to see."""

SMALL_WINDOW = 4096
"""Rows up to which a scan may cost least: where many are found, or batches are longer than the window."""

SELDOM = 1 << 18
"""Rows between two looks at a small window: they cost some nanoseconds a row so."""

ASSUMED_ROWS = 1 << 17
"""Rows of a window by time, to speak of costs before there are any."""

WORTH = 1.1
"""How many times as much the present way must cost as another one, to build the index anew for that."""

REMEMBERED = 4
"""Changes that a join can tell of."""

LOOKED_ROWS, _PROBES = 2048, 256
"""Rows, and tuples that ask, at most, that are held against each other for each test."""

_LIKE = {"po_join": "zone_map"}
"""Which index's costs speak for one that was asked for by name; for all others the carousel's."""

_ROWS_TOGETHER, _PROBES_TOGETHER = 1024, 32  # for several tests at once, pair by pair


def ways(spec: JoinSpec, stored: str) -> list[Access]:
    """Return how rows of a side could be found, first as the rule has it; one way alone if there is no choice.

    The rule stands for a union of bands, which is decided by its index or on pairs as written; and where it scans.
    """
    rule, rows = choose_access(spec, stored), spec.windows[stored].rows
    tests = spec.predicate.sides[stored].tests
    usable = [test for test in tests if test.shape in ("equality", "band", "comparison")]
    if spec.index != "auto" or rule.index == "nested" or any(test.shape == "union" for test in tests):
        return [rule]
    found = [rule]
    if len(usable) > 1 and any(test.shape == "equality" for test in usable):
        found.append(access_by("hash", spec, stored))
    found += [access_by("carousel", spec, stored, test) for test in usable if test.key.domain != "hash"]
    if len({test.key.name for test in usable}) > 1:
        found.append(access_by("zone_map", spec, stored))
    if rows is not None and rows <= SMALL_WINDOW:
        found.append(access_by("nested", spec, stored))
    return list({(way.index, way.probe): way for way in found}.values())


@dataclass(frozen=True)
class Seen:
    """What some tuples would find in a window of so many rows."""

    rows: float
    newer: float
    """Rows besides that an index holds by then, as they came in one step with the tuples, but after them."""
    parts: Mapping[RangeTest, float]
    """Of the rows, that each test lets through."""
    together: Mapping[frozenset[RangeTest], float]
    """The same of several tests at once."""

    def part(self, tests: Sequence[RangeTest]) -> float:
        """Return which part of the rows all of these tests let through."""
        return self.parts[tests[0]] if len(tests) == 1 else self.together[frozenset(tests)]


def look(
    keys: Mapping[RangeTest, np.ndarray], ends: Mapping[RangeTest, Ends], rows: float, newer: float,
    groups: Sequence[Access],
) -> Seen:  # fmt: skip
    """Hold the ends of some tuples' ranges against the keys of some rows.

    `groups`: the ways of which the tests are to be looked at together. What too few pairs pass to be counted is taken
    to be as likely as if tests did not depend on each other, and at least half a pair.
    """
    parts = {}
    for test, each in keys.items():
        low, high = (_some(end, _PROBES) for end in ends[test])
        ordered = np.sort(each)
        inside = np.searchsorted(ordered, high, "right") - np.searchsorted(ordered, low, "left")
        pairs = max(1, len(ordered) * len(low))
        part = max(0.5, float(np.maximum(inside, 0).sum())) / pairs
        parts[test] = 1 - part if test.negated else part
    together: dict[frozenset[RangeTest], float] = {}
    for way in groups:
        tests = frozenset(way.probe)
        if len(tests) > 1 and tests not in together:
            passed: np.ndarray | np.bool_ = np.True_
            for test in tests:
                each = _some(keys[test], _ROWS_TOGETHER)
                low, high = (_some(end, _PROBES_TOGETHER)[:, None] for end in ends[test])
                passed = passed & (each >= low) & (each <= high)
            counted, pairs = int(np.sum(passed)), max(1, np.size(passed))
            apart = float(np.prod([parts[test] for test in tests]))
            together[tests] = counted / pairs if counted >= 8 else min(apart, 8 / pairs)
    return Seen(rows, newer, parts, together)


def _some(values: np.ndarray, most: int) -> np.ndarray:
    """Return some of the values, evenly from all of them."""
    return values[:: -(-len(values) // most)] if len(values) > most else values


@dataclass(frozen=True)
class Way:
    """A way and what it costs, in nanoseconds: to `keep` a tuple, to `find` with it, and for `each` row found."""

    access: Access
    keep: float
    find: float
    each: float
    rows: float = 0.0

    @property
    def fixed(self) -> float:
        """To store a tuple, and to ask with it, whatever it finds."""
        return self.keep + self.find

    @property
    def nanoseconds(self) -> float:
        """In all."""
        return self.fixed + self.each * self.rows


def price(access: Access, costs: Costs, rows: float, found: float = 0.0) -> Way:
    """Say what a way costs in a window of so many rows when a tuple finds so many of them."""
    name = access.index if access.index in MEASURED else _LIKE.get(access.index, "carousel")
    find = costs.at(costs.find[name], rows)
    if name == "nested":  # it looks at every row; with no test to look by, all are pairs
        find *= len(access.probe) / SCANNED * max(1.0, rows / costs.rows[-1])
    each = costs.at(costs.pair[name], rows) + len(access.filters) * costs.at(costs.check, rows)
    return Way(access, costs.at(costs.keep[name], rows), find, each, found)


def expected(access: Access, costs: Costs, seen: Seen) -> Way:
    """Say what a way costs with what was seen. An index finds newer rows, too, and passes over them."""
    rows = seen.rows + (0 if access.index == "nested" else seen.newer)
    return price(access, costs, rows, rows * seen.part(access.probe))


def prices(found: Sequence[Access], rows: float) -> list[Way]:
    """Say what some ways cost on this machine in a window of so many rows."""
    return [price(way, known(), rows) for way in found]


class Watch:
    """Decides when to look, and whether to go another way. Sides that share an index go together, as one."""

    def __init__(self, ways: Sequence[Sequence[Access]], costs: Costs | None = None) -> None:
        """`ways`: for each of the sides that go together, the same ways in the same order; `costs`: this machine's."""
        self.ways, self.costs = ways, costs or known()
        self.now = 0  # which of the ways is taken
        self.next = FIRST_LOOK  # rows of the stream at the next look
        self.changes = 0  # how many times another way was taken
        # Rows of the stream at that, and which: the last few times, as a join may run for months.
        self.taken: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)

    def due(self, rows: int) -> bool:
        """Tell whether to look, when so many rows have come."""
        return rows >= self.next

    def looked(self, rows: int, seen: Sequence[Seen]) -> bool:
        """Decide by what was seen on each of the sides; return whether to go another way from now on."""
        self.next = rows + max(FIRST_LOOK, min(rows, max(SELDOM, int(max(each.rows for each in seen)))))
        costs = []
        for numbered in zip(*self.ways, strict=True):
            priced = [expected(way, self.costs, each) for way, each in zip(numbered, seen, strict=True)]
            costs.append(sum(way.nanoseconds for way in priced))
        best = int(np.argmin(costs))
        if costs[self.now] <= WORTH * costs[best]:
            return False
        self.now = best
        self.changes += 1
        self.taken.append((rows, best))
        return True
