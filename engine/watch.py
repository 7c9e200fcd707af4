"""Who has fallen silent: telling a process that is stopped, stuck or cut off from one that has much to do.

Problem: a process that dies is seen at once (its file descriptor says so), but one that is stopped, or whose
interpreter is stuck, or whose messages are lost, would keep everybody waiting for ever; and one that computes for a
minute must not be taken for it. Idea: a thread of each process counts up a number that all can see, which it cannot
when the process is stopped or its interpreter stuck; and a process that is not computing answers when it is asked.

- No beat for `limit` seconds: it is stopped or stuck.
- Beats, is not computing, and has not said anything for `limit` seconds although it was asked: what was sent is lost.

Whoever watches may be stopped itself (Ctrl-Z, a debugger, a long read of a source): the time between two looks counts
as a second at most, so that it judges only what it has seen.

A pure machine: the clock and the numbers are arguments.
"""

__all__ = ["Beat", "Watch"]

from dataclasses import dataclass

ASK_SECONDS = 1.0
"""A process that has said nothing for so long is asked, or for a third of the limit if that is shorter: it must have
time to answer."""

LONGEST_LOOK = 1.0
"""Seconds that may lie between two looks, or a third of the limit; the rest of a longer time was not watched."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a process shows of itself: a number that counts up, and whether it is computing."""

    count: int
    busy: bool


@dataclass(slots=True)
class _Watched:
    count: int = -1
    since_beat: float = 0.0
    since_word: float = 0.0
    since_asked: float = 0.0


class Watch:
    """Watches some processes.

    >>> watch = Watch(1, limit=3.0)
    >>> for now in range(3):
    ...     print(watch.look(float(now), [Beat(now, False)]))
    ([], [])
    ([0], [])
    ([0], [])
    >>> watch.look(3.0, [Beat(3, False)])
    ([0], [(0, 'has not answered for 3 s, and is not computing: what was sent to it, or by it, is lost')])
    """

    def __init__(self, count: int, limit: float) -> None:
        self.limit = limit
        self.ask_after, self.longest = min(ASK_SECONDS, limit / 3), min(LONGEST_LOOK, limit / 3)
        self.watched = [_Watched() for _ in range(count)]
        self.looked: float | None = None

    def heard(self, who: int) -> None:
        """A process has said something."""
        self.watched[who].since_word = self.watched[who].since_asked = 0.0

    def look(self, now: float, beats: list[Beat]) -> tuple[list[int], list[tuple[int, str]]]:
        """Return whom to ask for an answer, and who has fallen silent, with how."""
        passed = 0.0 if self.looked is None else min(now - self.looked, self.longest)
        self.looked = now
        ask, silent = [], []
        for who, (each, beat) in enumerate(zip(self.watched, beats, strict=True)):
            each.since_beat = 0.0 if beat.count != each.count else each.since_beat + passed
            each.count = beat.count
            each.since_word = 0.0 if beat.busy else each.since_word + passed
            each.since_asked += passed
            if each.since_asked >= self.ask_after:
                each.since_asked = 0.0
                ask.append(who)
            if each.since_beat >= self.limit:
                silent.append((who, f"has not moved for {self.limit:g} s: it is stopped, or its interpreter is stuck"))
            elif each.since_word >= self.limit:
                silent.append(
                    (
                        who,
                        f"has not answered for {self.limit:g} s, and is not computing: what was sent to it, or by it, "
                        "is lost",
                    )
                )
        return ask, silent
