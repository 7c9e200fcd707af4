"""When a run makes a checkpoint, and what it does when something fails: decisions, apart from what carries them out.

Problem: a run must go on by itself after a crash, but not for ever with an input that makes it crash. Idea: a failure
is answered by going back to the last checkpoint, a little later each time; a checkpoint that is made after it proves
that the flow got past the place, and all is forgiven; some failures without one, and it is given up.

A pure machine: it reads no clock and touches nothing.
"""

__all__ = ["MOST_ATTEMPTS", "Coordinator"]

from dataclasses import dataclass

MOST_ATTEMPTS = 4
"""Attempts at the same checkpoint before a failure is taken to be the input's, and to come again for ever."""

FIRST_PAUSE = 0.1
"""Seconds before the second attempt; each later one waits twice as long."""


@dataclass
class Coordinator:
    """Decides for one run.

    >>> run = Coordinator(every=1.0, number=7, next=8)
    >>> run.due(10.0), run.begin(10.0), run.due(12.0)
    (True, 8, False)
    >>> run.durable(8); run.due(10.5), run.due(11.0)
    (False, True)
    >>> [run.failed() for _ in range(4)]
    [0.1, 0.2, 0.4, None]
    """

    every: float
    number: int | None = None  # of the last checkpoint that is durable; None: there is none yet
    generation: int = 0  # counts attempts
    next: int = 0  # the number of the next one; no number is used twice, whatever became of the first
    under_way: int | None = None  # a checkpoint that is being written
    last_begun: float = float("-inf")
    failures: int = 0  # since a checkpoint became durable

    def due(self, now: float) -> bool:
        """Tell whether a checkpoint should begin: `every` seconds after the last one began, if that is durable."""
        return self.under_way is None and now - self.last_begun >= self.every

    def begin(self, now: float) -> int:
        """A checkpoint begins; return its number."""
        assert self.under_way is None, "one checkpoint at a time"
        self.under_way, self.next = self.next, self.next + 1
        self.last_begun = now
        return self.under_way

    def durable(self, number: int) -> None:
        """A checkpoint is durable."""
        assert number == self.under_way, (number, self.under_way)
        self.number, self.under_way = number, None
        self.failures = 0

    def reached(self, number: int | None) -> None:
        """Somebody else has made checkpoints up to this one."""
        if number != self.number:
            self.number, self.failures = number, 0

    def begin_again(self) -> None:
        """Another attempt begins, at the last checkpoint."""
        self.under_way, self.last_begun = None, float("-inf")
        self.generation += 1

    def failed(self) -> float | None:
        """An attempt has failed: return after how many seconds to begin the next one, or None to give up."""
        self.begin_again()
        self.failures += 1
        return None if self.failures >= MOST_ATTEMPTS else FIRST_PAUSE * 2 ** (self.failures - 1)
