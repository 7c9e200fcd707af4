"""A running flow on a terminal: one line that is written over, or plain lines where there is no terminal.

The line tells what a person looks for first: how fast rows come in and go out, how far event time is, how many rows
were late, how much memory is held. Rates are of the time since the line before, so that a stall shows at once.
"""

__all__ = ["Progress", "Status"]

import shutil
from dataclasses import dataclass
from typing import TextIO

PLAIN_SECONDS = 5.0
"""Seconds between two plain lines: a log should not be flooded."""


@dataclass(frozen=True)
class Status:
    """A look at a running flow."""

    flow: str
    seconds: float
    rows_in: int
    rows_out: int
    late: int
    watermark: str
    held_bytes: int
    workers: int = 1
    checkpoint: int | None = None  # the last one that is durable
    attempt: int = 1  # it has begun so many times: anew after a failure, or with other workers
    rows_before: int = 0  # of `rows_in`, those that earlier attempts have read


def short(n: float) -> str:
    """Write a count for a narrow place.

    >>> short(999), short(1_234), short(56_700_000)
    ('999', '1.23 k', '56.7 M')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size * 0.9995:  # what rounds to a whole unit is written in it
            return f"{n / size:.3g} {unit}"
    return f"{n:.0f}"


class Progress:
    """Shows each `Status` that it is called with.

    >>> import sys
    >>> show = Progress(sys.stdout)
    >>> show(Status("fares", 6.0, 1_200_000, 345, 2, "2024-01-01T00:00:00", 5_000_000))
    fares 6.0 s  in 200 k/s  out 58/s  late 2  watermark 2024-01-01T00:00:00  memory 5 MB
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.terminal = stream.isatty()
        self.before = Status("", 0.0, 0, 0, 0, "none", 0)
        self.wrote = False

    def __call__(self, status: Status) -> None:
        """Show it; on a terminal over the line before, elsewhere at most every few seconds."""
        if not self.terminal and status.seconds - self.before.seconds < PLAIN_SECONDS:
            return
        line = self.line(status)
        if self.terminal:
            width = shutil.get_terminal_size().columns
            self.stream.write(f"\r\x1b[2K{line[: width - 1]}")
        else:
            self.stream.write(line + "\n")
        self.stream.flush()
        self.before, self.wrote = status, True

    def line(self, status: Status) -> str:
        """Return the line for a status."""
        took = max(status.seconds - self.before.seconds, 1e-9)
        came = (status.rows_in - self.before.rows_in) / took
        went = (status.rows_out - self.before.rows_out) / took
        return (
            f"{status.flow} {status.seconds:.1f} s  in {short(came)}/s  out {short(went)}/s  "
            f"late {short(status.late)}  watermark {status.watermark}  memory {short(status.held_bytes)}B"
        )

    def close(self) -> None:
        """Leave the line."""
        if self.terminal and self.wrote:
            self.stream.write("\r\x1b[2K")
            self.stream.flush()
