"""What can be tuned, in one place: each option with its unit, its default and the reason for it.

An option comes from the environment (`DOVETAIL_BATCH_ROWS=4096`) or from an argument
(`flow.run(options=dt.Options(batch_rows=4096))`); the argument wins. No option changes a result.
"""

__all__ = ["Options"]

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .errors import FlowError, nearest


@dataclass(frozen=True, kw_only=True)
class Options:
    """Limits on batch sizes and memory. Docs: `docs/architecture.md`, "Options".

    >>> Options(batch_rows=10).batch_rows
    10
    >>> Options(batch_rows=0)
    Traceback (most recent call last):
        ...
    dovetail.errors.FlowError: option batch_rows must be at least 1, not 0
    """

    batch_rows: int = 65_536
    """Rows, at most, that a step takes at once. 64k rows of a few columns stay inside a core's L2 cache
    while the cost of a batch in Python (some 50 µs) falls below a nanosecond a row."""

    out_rows: int = 65_536
    """Rows, at most, in a batch that a join emits. A step with many matches answers in slices, so that
    memory is bound by this and not by the number of matches."""

    hold_bytes: int = 1 << 30
    """Bytes that may wait for a slower source before the ones ahead of it are no longer read. Large
    enough for a source that stutters, small beside the memory of a machine."""

    arena_bytes: int = 1 << 30
    """Bytes of shared memory, at most, for the windows and steps of a run with several workers, and as many for
    the results of each worker. Taken piece by piece, when needed."""

    poll_seconds: float = 0.01
    """Seconds between two looks at sources that have nothing now. Short beside what a person notices,
    long beside the cost of a look."""

    silence_seconds: float = 10.0
    """Seconds after which a worker, or a run with `--detach`, that shows no sign of life is killed: one that is
    stopped, or stuck in native code that holds the interpreter. Long beside any pause of a busy machine; one that
    computes shows that it does."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "poll_seconds" else 1
            whole = field.type is int or field.type == "int"
            if not isinstance(value, int if whole else int | float) or isinstance(value, bool):
                raise FlowError(f"option {field.name} must be a {'whole ' if whole else ''}number, not {value!r}")
            if not least <= value < math.inf:
                raise FlowError(f"option {field.name} must be at least {least}, not {value!r}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Options":
        """Read `DOVETAIL_<NAME>` for each option.

        >>> Options.from_environment({"DOVETAIL_OUT_ROWS": "100"}).out_rows
        100
        """
        environment = os.environ if environment is None else environment
        known = {f"DOVETAIL_{field.name.upper()}" for field in fields(cls)}
        for name in environment:
            if (
                name.startswith("DOVETAIL_")
                and difflib.get_close_matches(name, known, n=1, cutoff=0.9)
                and name not in known
            ):
                raise FlowError(f"{name} is not an option; {nearest(name, known)}")
        given: dict[str, Any] = {}
        for field in fields(cls):
            text = environment.get(f"DOVETAIL_{field.name.upper()}")
            if text is None:
                continue
            kind = float if field.type is float else int
            try:
                given[field.name] = kind(text.replace("_", ""))
            except ValueError:
                raise FlowError(
                    f"DOVETAIL_{field.name.upper()}={text!r} is not a number; the default is {field.default!r}"
                ) from None
        return cls(**given)
