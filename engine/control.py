"""What others may ask of a running flow: where it is, a savepoint, to stop, another number of workers.

Problem: a run is a loop in one thread, and whoever asks is in another thread or another process. Idea: a `Mailbox`.
Whoever asks leaves a question and waits for its answer; the run looks into the box between two batches, where all that
can be asked is simple, and answers. A question that nobody will answer any more is answered by `close`.

The questions are: `status`, `savepoint` (folder), `stop` (folder or None), `rescale` (workers).
"""

__all__ = ["Mailbox", "Question"]

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ..errors import DovetailError


@dataclass(frozen=True)
class Question:
    """Something that is asked of a run; `answer` is set by the run."""

    verb: str
    argument: Any = None
    answer: "Future[Any]" = field(default_factory=Future)


class Mailbox:
    """Questions for a run, in the order in which they came.

    >>> box = Mailbox()
    >>> asked = box.ask("rescale", 3)
    >>> box.next().argument
    3
    >>> box.next() is None
    True
    """

    def __init__(self) -> None:
        self._questions: deque[Question] = deque()
        self._lock = threading.Condition()
        self._closed: str | None = None

    def ask(self, verb: str, argument: Any = None) -> "Future[Any]":
        """Leave a question; return what will hold the answer."""
        question = Question(verb, argument)
        with self._lock:
            if self._closed is not None:
                question.answer.set_exception(DovetailError(self._closed))
            else:
                self._questions.append(question)
                self._lock.notify_all()
        return question.answer

    def next(self) -> Question | None:
        """Take the oldest question, if there is one."""
        if not self._questions:  # looked at between any two batches: without the lock
            return None
        with self._lock:
            return self._questions.popleft()

    def put_back(self, question: Question) -> None:
        """Have the next attempt answer a question, before all others: this one has failed."""
        with self._lock:
            self._questions.appendleft(question)

    def wait(self, seconds: float) -> bool:
        """Wait for a question; return whether there is one."""
        with self._lock:
            return self._lock.wait_for(lambda: bool(self._questions), seconds)

    def close(self, why: str) -> None:
        """Nobody answers any more."""
        with self._lock:
            self._closed = why
            left, self._questions = list(self._questions), deque()
        for question in left:
            if not question.answer.done():
                question.answer.set_exception(DovetailError(why))
