"""From a flow as written to a run.

`flow` is what users write, `graph` what it becomes, `explain` shows it, `plan` works out which columns are needed,
`tasks` are the running halves of the steps, `run` moves batches between them, `result` says what was done.
"""

__all__ = ["Flow", "Result", "Stream"]

from .flow import Flow, Stream
from .result import Result
