"""When a run makes a checkpoint, at what pace, and what it does when something fails: decisions alone.

Problem: a run must go on by itself after a crash, but not for ever with an input that makes it crash. Idea: a failure
is answered by going back to the last checkpoint, a little later each time.

- A checkpoint behind the rows that had been read when it came shows that the flow came further, and the failure is
  forgiven; some failures without one, and it is given up. To have made a checkpoint is not enough: one input may go on
  for ever beside another that fails.
- Rows are not all that may make a step fail: also the end of an input, or that it is silent. So of failures that are
  the flow's own (an exception, a segfault; not a `kill -9`) there may be more, but not for ever, whatever else goes on.
- An attempt that went on for long is past all that was before it: a quiet input may bring no row for months.

A pure machine: it reads no clock and touches nothing.
"""

__all__ = ["MOST_ATTEMPTS", "Coordinator", "Pace"]

from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_ATTEMPTS = 4
"""Attempts at the same place before a failure is taken to be the input's, and to come again for ever."""

MOST_OWN = 20
"""Attempts that end by the flow's own doing before it is given up though it came further each time."""

CALM_SECONDS = 600.0
"""Seconds that an attempt has gone on (or twice `every`, if that is longer) after which a failure is taken for a new
one: what is done again after a checkpoint is no more than what was done in `every`."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds before the second attempt; each later one waits twice as long, up to the latter."""

MOST_REST = 4.0
"""Times as long as it has worked that what writes a checkpoint rests: it has a fifth of a core then."""

LEAST_WORK = 0.0005
"""Seconds of work that are worth a rest: to fall asleep and to wake takes a tenth of that."""


@dataclass
class Coordinator:
    """Decides for one run.

    >>> run = Coordinator(every=1.0, number=7, next=8)
    >>> run.due(10.0), run.begin(10.0), run.due(12.0)
    (True, 8, False)
    >>> run.durable(8); run.due(10.5), run.due(11.0)
    (False, True)
    >>> [run.failed(now, {"fares": 61}) for now in (12.0, 13.0, 14.0, 15.0)]
    [0.1, 0.2, 0.4, None]
    """

    every: float
    number: int | None = None  # of the last checkpoint that is durable; None: there is none yet
    generation: int = 0  # counts attempts
    next: int = 0  # the number of the next one; no number is used twice, whatever became of the first
    under_way: int | None = None  # a checkpoint that is being written
    last_begun: float = float("-inf")
    attempt_begun: float = float("inf")  # when this attempt has begun; the first has no failure to get past
    read: Mapping[str, int] = field(default_factory=dict)  # rows of each source that are in the one being written
    failures: int = 0  # that the flow has not got past
    to_pass: dict[str, int] = field(default_factory=dict)  # rows of each source with which it would have
    own: int = 0  # failures since the last long attempt that nobody else has brought about

    @property
    def place(self) -> str:
        """Say from where on attempts are made."""
        return "from the beginning" if self.number is None else f"from checkpoint {self.number} on"

    def due(self, now: float) -> bool:
        """Tell whether a checkpoint should begin: `every` seconds after the last one began, if that is durable."""
        return self.under_way is None and now - self.last_begun >= self.every

    def begin(self, now: float, read: Mapping[str, int] | None = None) -> int:
        """A checkpoint begins, which has so many rows of each source; return its number."""
        assert self.under_way is None, "one checkpoint at a time"
        self.under_way, self.next, self.read = self.next, self.next + 1, read or {}
        self.last_begun = now
        return self.under_way

    def durable(self, number: int) -> None:
        """A checkpoint is durable."""
        assert number == self.under_way, (number, self.under_way)
        self.under_way = None
        self.reached(number, self.read)

    def reached(self, number: int | None, read: Mapping[str, int]) -> None:
        """The last checkpoint is this one, whoever has made it, and has so many rows of each source."""
        if number != self.number:
            self.number = number
            if all(read.get(source, 0) >= rows for source, rows in self.to_pass.items()):
                self._forgive()

    def _forgive(self) -> None:
        self.failures, self.to_pass = 0, {}

    def begin_again(self, now: float) -> None:
        """Another attempt begins, at the last checkpoint."""
        self.under_way, self.last_begun, self.attempt_begun = None, float("-inf"), now
        self.generation += 1

    def failed(self, now: float, to_pass: Mapping[str, int] | None = None, *, killed: bool = False) -> float | None:
        """An attempt has failed: return after how many seconds to begin the next one, or None to give up.

        `to_pass`: of how many rows of each source a checkpoint would prove that the flow has come further. `killed`: by
        somebody else.
        """
        if now - self.attempt_begun >= max(CALM_SECONDS, 2 * self.every):
            self._forgive()
            self.own = 0
        self.begin_again(now)
        self.failures += 1
        self.own += not killed
        for source, rows in (to_pass or {}).items():
            self.to_pass[source] = max(rows, self.to_pass.get(source, 0))
        if self.why is not None:
            return None
        waited = self.failures if killed else max(self.failures, self.own)
        return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (waited - 1)))

    @property
    def why(self) -> str | None:
        """Say why there is no other attempt; None if there is."""
        if self.failures >= MOST_ATTEMPTS:
            return f"This was the {self.failures}th attempt that came no further, {self.place}"
        if self.own >= MOST_OWN:
            return f"This was the {self.own}th attempt that failed, and none went on for long; the last, {self.place}"
        return None


@dataclass
class Pace:
    """How much of the time a checkpoint's writing works, so that the flow beside it does not feel it.

    What is written in one go takes a core for some tenth of a second, and where there are as many processes as cores
    results queue up behind that. So it rests after each piece: as long as would spread the work that the last
    checkpoint took over half of the interval, and four times as long as it has worked at most, so that small
    checkpoints are not drawn out.

    >>> pace = Pace(within=0.5)
    >>> pace.rest(0.01, since=0.1)  # nothing is known yet
    0.04
    >>> pace.made(0.25); pace.rest(0.01, since=0.1), pace.rest(0.25, since=0.375), pace.rest(0.01, since=0.5)
    (0.01, 0.125, 0.0)
    """

    within: float  # seconds
    ratio: float = MOST_REST  # of rest to work

    def rest(self, worked: float, since: float) -> float:
        """Return how long to rest after so much work, where the checkpoint began so long ago; 0: not now."""
        return 0.0 if worked < LEAST_WORK else max(0.0, min(worked * self.ratio, self.within - since))

    def made(self, worked: float) -> None:
        """A checkpoint has taken so much work in all."""
        self.ratio = min(MOST_REST, max(0.0, self.within / max(worked, LEAST_WORK) - 1.0))
