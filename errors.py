"""Every error that Dovetail raises on purpose.

A message says four things: what is wrong, with which value, where (the step, the side, the user's own
line where there is one), and what to do about it. The tree tells *when* something is found::

    DovetailError
    ├── FlowError (ValueError)       as written, before anything runs
    │   ├── SchemaError              a column, a type or a name does not fit
    │   ├── PredicateError           a comparison that cannot mean anything, or can never hold
    │   ├── WindowError              a window, slide or duration that cannot be
    │   └── UnsupportedError         a named thing that this version does not do
    ├── DataError (ValueError)       while it runs: the data are not what the flow was told
    │   ├── TimeError                a time that is null, cannot be represented, or runs away
    │   └── LateError                `WindowJoin.push` was given a row from before an earlier step
    ├── SourceError                  a source could not be read
    ├── SinkError                    a sink could not be written
    ├── TransportError               a message or shared memory between processes went wrong
    ├── WorkerError                  a worker process died, or failed in a way of its own
    ├── CheckpointError              a folder of checkpoints cannot be used: it is busy, damaged, or of another flow
    ├── JobError                     a job, by its name, is not there, or cannot do what it was asked for
    └── UserFunctionError            a function of the user's raised, or returned what it must not

What is found before the start is a `FlowError`; what only the data can show is one of the others.
"""

__all__ = [
    "CheckpointError",
    "DataError",
    "DovetailError",
    "FlowError",
    "JobError",
    "LateError",
    "PredicateError",
    "SchemaError",
    "SinkError",
    "SourceError",
    "TimeError",
    "TransportError",
    "UnsupportedError",
    "UserFunctionError",
    "WindowError",
    "WorkerError",
    "nearest",
]

import difflib
from collections.abc import Iterable


class DovetailError(Exception):
    """The root: `except dt.DovetailError` catches everything that Dovetail raises on purpose."""


class FlowError(DovetailError, ValueError):
    """The flow, as written, cannot run. Found before anything starts."""


class SchemaError(FlowError):
    """A column is unknown, has the wrong type, or a name is taken."""


class PredicateError(FlowError):
    """A comparison has no meaning for its operands, or can never hold."""


class WindowError(FlowError):
    """A window, a slide or a duration that cannot be."""


class UnsupportedError(FlowError):
    """Something with a name in the design that this version does not do."""


class DataError(DovetailError, ValueError):
    """The data are not what the flow was told to expect."""


class TimeError(DataError):
    """A time is null, cannot be represented in the unit at hand, or runs away from its source."""


class LateError(DataError):
    """A pushed row comes before a row of an earlier step in the total order."""


class SourceError(DovetailError):
    """A source could not be read."""


class SinkError(DovetailError):
    """A sink could not be written."""


class TransportError(DovetailError):
    """A message between processes was lost or damaged, or shared memory cannot be had."""


class WorkerError(DovetailError):
    """A worker process died; `killed`: somebody has killed it, so that the flow itself may be well."""

    killed = False


class CheckpointError(DovetailError):
    """A folder of checkpoints cannot be used, read or written."""


class JobError(DovetailError):
    """A job is not there, or cannot do what it was asked for."""


class UserFunctionError(DovetailError):
    """A function of the user's raised, or returned something of the wrong type or length."""


def nearest(name: str, known: Iterable[str]) -> str:
    """End a sentence about an unknown name: the nearest known ones, or all of them if they are few.

    >>> nearest("rak", ["rack", "cooling", "ts"])
    "did you mean 'rack'? There are: cooling, rack, ts"
    >>> nearest("x", [])
    'there are none'
    """
    names = sorted(known)
    if not names:
        return "there are none"
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    near = near or [n for n in names if n.lower() == name.lower()]
    if not near:
        return f"there are: {listed}"
    return f"did you mean {' or '.join(map(repr, near))}? There are: {listed}"
