"""A join as it was written, checked; and how the rows of each side are found: by which index, on which test, or a scan.

What `index="auto"` begins with is decided here, by a rule that `explain()` states; `docs/indexes.md` has the
measurements behind it. What it takes once there are rows is decided in choice.py. Nothing here runs.
"""

__all__ = ["INDEXES", "SIDES", "Access", "JoinSpec", "access_by", "choose_access", "output_fields", "storable_type"]

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..errors import FlowError, PredicateError, SchemaError
from ..state import MOST_KEYS, OF_SEVERAL_KEYS, names
from ..state.log import storable_type
from .predicate import JoinPredicate, RangeTest, plan_predicate
from .times import TimeDomain
from .windows import WindowSpec

SIDES = ("left", "right")
INDEXES = ("auto", *names())
SHARED_INDEX = "pim_tree"
"""The index that several threads store in and search, of one key."""

SHARED_BOXES = "po_join"
"""The index that several threads search, of several keys; one stores."""

TINY_WINDOW = 256
"""Up to this many rows a scan costs little more than an index, and takes a tenth of its memory (docs/indexes.md)."""


@dataclass(frozen=True)
class JoinSpec:
    """A join, checked and planned: everything that can be known before there is a row."""

    name: str
    schemas: dict[str, pa.Schema]
    predicate: JoinPredicate
    windows: dict[str, WindowSpec]
    domains: dict[str, TimeDomain | None]
    time: TimeDomain | None
    index: str
    suffix: str
    self_join: bool
    ordered: bool = True
    threads: int = 0  # that work on one index; 0: one works on each

    @classmethod
    def check(
        cls, name: str, schemas: dict[str, pa.Schema], on: Any, window: Any, domains: dict[str, TimeDomain | None],
        *, index: str = "auto", suffix: str = "_right", self_join: bool = False, ordered: bool = True, threads: int = 0,
    ) -> "JoinSpec":  # fmt: skip
        """Check a join as it was written; raise a `FlowError` that says what is wrong with it."""
        if on is None:
            raise PredicateError(f"{name}: a join needs on=…, such as on=left.x < right.y")
        windows = _both_windows(window, name)
        if not isinstance(suffix, str):
            raise FlowError(f"{name}: suffix={suffix!r} is not a text; write suffix='_right'")
        if index not in INDEXES:
            raise FlowError(f"{name}: there is no index {index!r}; there are: {', '.join(INDEXES)}")
        if threads and index not in ("auto", SHARED_INDEX, SHARED_BOXES):
            raise FlowError(
                f'{name}: layout="shared" is for index={SHARED_INDEX!r} or {SHARED_BOXES!r}, and not for {index!r}: no '
                "other lets several threads work at once; leave index out, or the layout"
            )
        index = SHARED_INDEX if threads and index == "auto" else index
        if (domains["left"] is None) != (domains["right"] is None):
            without = "left" if domains["left"] is None else "right"
            raise SchemaError(
                f"{name}: the {without} side has no time column and the other has one; "
                "read both with time=…, or neither"
            )
        time = domains["left"].finer(domains["right"], name) if domains["left"] and domains["right"] else None
        predicate = plan_predicate(on, schemas, name)
        for side in SIDES:
            windows[side].resolve(time, domains[side], f"{name}: the {side} window")
        spec = cls(name, schemas, predicate, windows, domains, time, index, suffix, self_join, ordered, threads)
        output_fields(spec)
        for side in SIDES:
            access = choose_access(spec, side)
            if threads and access.probe[0].shape == "union":
                raise FlowError(f'{name}: layout="shared" cannot serve a union of bands (`|`); leave the layout out')
        return spec


def _both_windows(window: Any, name: str) -> dict[str, WindowSpec]:
    if window is None:
        raise FlowError(
            f"{name}: a join needs window=…, as streams have no end: dt.last(100_000) rows, "
            'dt.last("10min"), or dt.last(None) to keep everything'
        )
    pair = window if isinstance(window, tuple | list) else (window, window)
    if len(pair) != 2 or not all(isinstance(w, WindowSpec) for w in pair):
        raise FlowError(
            f"{name}: window={window!r} is not a window; write dt.last(100_000), or a pair "
            "(window of the left rows, window of the right rows)"
        )
    return {"left": pair[0], "right": pair[1]}


def output_fields(spec: JoinSpec) -> list[tuple[str, str, pa.Field]]:
    """Return (side, column, output field) of each result column: the left's, then the right's."""
    fields = [("left", f.name, f.with_type(storable_type(f.type))) for f in spec.schemas["left"]]
    taken = set(spec.schemas["left"].names)
    out = [name for _, name, _ in fields]
    for f in spec.schemas["right"]:
        name = f.name + spec.suffix if f.name in taken else f.name
        fields.append(("right", f.name, f.with_type(storable_type(f.type)).with_name(name)))
        out.append(name)
    doubled = sorted({name for name in out if out.count(name) > 1})
    if doubled:
        raise SchemaError(
            f"{spec.name}: the result would have two columns named {doubled[0]!r}; "
            f"pass another suffix than {spec.suffix!r}, such as suffix='_2', or rename the column"
        )
    return fields


@dataclass(frozen=True)
class Access:
    """How the rows of one side are found: an index on one test or on several, or a scan that applies several."""

    index: str
    why: str
    probe: tuple[RangeTest, ...]  # hash: equalities; nested: all that a scan applies; one test, or several
    filters: tuple[RangeTest, ...]  # applied to what was found, pair by pair
    applied: tuple[RangeTest, ...]  # everything above, for the remainder

    @property
    def boxed(self) -> bool:
        """True for an index that goes by several keys at once."""
        return self.index in OF_SEVERAL_KEYS

    def describe(self) -> str:
        """Say it in a line."""
        on = ", ".join(dict.fromkeys(test.key.text for test in self.probe))
        return f"{self.index} index on {on}" if self.probe and self.index != "nested" else "scan (nested)"


def choose_access(spec: JoinSpec, stored: str) -> Access:
    """Choose the access path to one side's rows; `explain()` shows the reason."""
    plan, window = spec.predicate.sides[stored], spec.windows[stored]
    equalities = tuple(t for t in plan.tests if t.shape == "equality")
    ordered = tuple(t for t in equalities if t.key.domain != "hash")
    ranges = sorted((t for t in plan.tests if t.shape in _SELECTIVITY), key=lambda t: _SELECTIVITY.index(t.shape))
    one_ended = [t for t in ranges if t.shape == "comparison"]
    tiny = window.rows is not None and window.rows <= TINY_WINDOW
    index, why = spec.index, "as asked for"
    if index == "auto":
        if tiny:
            index, why = "nested", f"a window of at most {TINY_WINDOW:,} rows is scanned faster than an index is kept"
        elif len(equalities) == len(ordered) == 1:  # as fast to a place as to a bucket, and its equals stand there
            index, why = "carousel", "the predicate has an equality key, which has an order"
        elif equalities:
            index, why = "hash", "the predicate has an equality key"
        elif not ranges:
            index, why = "nested", "no part of the predicate is a range of one key"
        elif ranges[0].shape == "comparison" and len(one_ended) > 1:
            index, why = "zone_map", "several inequalities without a band: only all together do they narrow"
        else:
            index, why = "carousel", f"the predicate has a {ranges[0].shape} on one key"
    if index == "hash" and not equalities:
        raise PredicateError(
            f'{spec.name}: index="hash" needs an equality such as left.x == right.x; use "auto" or "nested"'
        )
    several = index in OF_SEVERAL_KEYS
    served = [t for t in plan.tests if t.shape not in ("union", "unequal")] if several else [*ordered, *ranges]
    if index not in ("nested", "hash") and not served:
        raise PredicateError(
            f'{spec.name}: index="{index}" needs a comparison between a left and a right value; use "auto" or "nested"'
        )
    return access_by(index, spec, stored, served[0] if served else None, why)


def access_by(
    index: str, spec: JoinSpec, stored: str, chosen: RangeTest | None = None, why: str = "it costs least",
) -> Access:  # fmt: skip
    """Return the access path by an index that serves a predicate; if it goes by one key, by that of `chosen`."""
    plan = spec.predicate.sides[stored]
    equalities = tuple(t for t in plan.tests if t.shape == "equality")
    usable = tuple(t for t in plan.tests if t.shape not in ("union", "unequal"))
    unequal = tuple(t for t in plan.tests if t.shape == "unequal")
    if index == "nested":
        return Access("nested", why, usable, unequal, (*usable, *unequal))
    if index == "hash":
        # One exact equality is decided by the table itself; several share a hash, so that each is checked again.
        checked = equalities if len(equalities) > 1 else ()
        rest = tuple(t for t in usable if t not in equalities)
        filters = (*checked, *rest, *unequal)
        return Access("hash", why, equalities, filters, (*equalities, *filters))
    if index in OF_SEVERAL_KEYS:
        # The same order for both roles of a self-join, so that they may share an index.
        boxed = sorted(usable, key=lambda test: (_NARROWING.index(test.shape), test.key.name))
        keys = list(dict.fromkeys(test.key.name for test in boxed))[:MOST_KEYS]
        probe = tuple(test for test in boxed if test.key.name in keys)
        filters = (*(test for test in usable if test not in probe), *unequal)
        return Access(index, why, probe, filters, (*probe, *filters))
    assert chosen is not None
    filters = (*(t for t in usable if t is not chosen), *unequal)
    return Access(index, why, (chosen,), filters, (chosen, *filters))


_SELECTIVITY = ("band", "union", "comparison")  # what narrows most comes first
_NARROWING = ("equality", "band", "comparison")
