"""Which source is read next, when, and how far a silent one may be passed: decisions, without a clock of their own.

Which source is read next decides how much is held: of the sources that can hold each other back (a *group*) the one
whose watermark is lowest goes first, so that what is ahead waits in its source and not in memory. A source that has
nothing now is passed over; then the others may run ahead of it by `hold_bytes` and no further. A silent source with
`idle=` that could have been read, and was not held back, for so long stops counting.
"""

__all__ = ["SourceState", "due_in", "idle_floor", "next_source"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from ..batch import START, Watermark
from ..operators.times import TimeDomain
from .graph import Rate
from .tasks import ReadTask


@dataclass
class SourceState:
    """What deciding needs to know about a source."""

    task: ReadTask
    silent_since: float | None = None
    opened: float = 0.0
    rows_read: int = 0

    rows_before: int = 0  # a restore; and how far its event time had come
    shown_before: int | None = None

    def begin(self, now: float) -> None:
        """Reading begins, perhaps not with the first row: a replay is paced from here on."""
        self.opened, self.rows_read = now, self.task.rows_in
        self.rows_before = self.task.rows_in
        self.shown_before = self.task.order.greatest if self.task.order is not None else None

    @property
    def mark(self) -> Watermark:
        """How far the source is, in nanoseconds, or in the unit of an integer time column."""
        return self.task.watermark * self.unit  # what is infinite stays so

    @cached_property
    def unit(self) -> int:
        """One unit of the time column in that of `mark`: a number of nanoseconds, whichever unit of Arrow's it is."""
        domain = self.task.node.domain
        return 1 if domain is None or domain.ticks is None else int(10**9 / domain.ticks)

    def is_idle(self, now: float) -> bool:
        """Tell whether it has been silent for so long that it no longer holds the others back."""
        idle = self.task.node.idle
        return idle is not None and self.silent_since is not None and now - self.silent_since >= idle


def next_source(
    group: Sequence[SourceState], tried: set[int], waits: Callable[[SourceState], bool]
) -> SourceState | None:
    """Choose which source of a group to read: the one furthest behind that may be read now.

    Without event time every mark is the same; the one that has brought fewest rows goes first.
    """
    able = [s for s in group if not s.task.ended and id(s) not in tried and not waits(s)]
    return min(able, key=lambda s: (s.mark, s.rows_read), default=None)


def idle_floor(group: Sequence[SourceState], silent: SourceState, now: float) -> Watermark:
    """Up to where a silent source promises that nothing will come: just past what the others wait for.

    One unit past the least watermark of those that hold others back, so that rows at that very time go on as well;
    when none does, past the greatest time that any of them has shown. One that has nothing now and is not idle (yet)
    still holds others back: to promise more than it has reached would make rows late and let none go on.
    """
    others = [s for s in group if s is not silent and s.task.order is not None]
    active = [s for s in others if not s.task.ended and not s.is_idle(now)]
    domain = silent.task.node.domain
    assert domain is not None
    if active:
        marks = [_in_domain(s.task.watermark, s.task.node.domain, domain) for s in active]
    else:
        shown = [(s.task.order.greatest, s.task.node.domain) for s in others if s.task.order]
        marks = [max((_in_domain(m, d, domain) for m, d in shown if m is not None), default=START)]
    least = min(marks)
    return least + 1 if isinstance(least, int) else least


def _in_domain(mark: Watermark, source: TimeDomain | None, target: TimeDomain) -> Watermark:
    if not isinstance(mark, int) or source is None or source.ticks is None or target.ticks is None:
        return mark
    return int(Fraction(mark) / source.ticks * target.ticks // 1)


def due_in(rate: Rate, rows: int, elapsed: float, event_seconds: float) -> float:
    """Return for how long a paced source must still wait before its next batch."""
    if rate.rows is not None:
        return rows / rate.rows - elapsed
    assert rate.speed is not None
    return event_seconds / float(rate.speed) - elapsed
