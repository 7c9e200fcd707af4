"""From a flow as written to a run.

`flow` is what users write, `graph` what it becomes, `explain` shows it, `plan` works out which columns are needed,
`tasks` are the running halves of the steps, `run` moves batches between them, `result` says what was done. Several
processes: `parallel` is what is decided, `cells` and `worker` are the two sides, `processes` starts them and `watch`
sees whether they are well. Crashes: `checkpoints` is the folder, `snapshots` the format, `coordinator` decides and
`keeper` does. Asking a run for things: `control`, and `job`, who asks.
"""

__all__ = ["Flow", "Job", "Result", "Stream"]

from .flow import Flow, Stream
from .job import Job
from .result import Result
