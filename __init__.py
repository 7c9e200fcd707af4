"""Dovetail joins unbounded streams on any comparison, over sliding windows, in order.

This module is the front door: everything public is here, and nothing inside the package imports it.
"""

__all__ = [
    "END_OF_SOURCE",
    "DataError",
    "Delivery",
    "DovetailError",
    "Flow",
    "FlowError",
    "Job",
    "JobError",
    "LateError",
    "Options",
    "PredicateError",
    "Result",
    "SchemaError",
    "SinkError",
    "SourceError",
    "Stream",
    "TimeError",
    "TransportError",
    "UnsupportedError",
    "UserFunctionError",
    "WindowError",
    "WorkerError",
    "CheckpointError",
    "WindowJoin",
    "__version__",
    "call",
    "col",
    "collect",
    "count",
    "csv",
    "group_udf",
    "last",
    "left",
    "lit",
    "memory",
    "null",
    "operator",
    "parquet",
    "right",
    "session",
    "show",
    "sink",
    "sliding",
    "source",
    "spark",
    "spark_join",
    "state",
    "synthetic",
    "tumbling",
    "udf",
]

from . import state
from .config import Options
from .engine import Flow, Job, Result, Stream
from .errors import (
    CheckpointError,
    DataError,
    DovetailError,
    FlowError,
    JobError,
    LateError,
    PredicateError,
    SchemaError,
    SinkError,
    SourceError,
    TimeError,
    TransportError,
    UnsupportedError,
    UserFunctionError,
    WindowError,
    WorkerError,
)
from .in_spark import spark_join
from .ingest import call, collect, csv, memory, null, parquet, show, sink, source, spark, synthetic
from .operators.contracts import END_OF_SOURCE, Delivery
from .operators.event_windows import session, sliding, tumbling
from .operators.expressions import col, count, group_udf, left, lit, right, udf
from .operators.stateful import operator
from .operators.window_join import WindowJoin
from .operators.windows import last

__version__ = "0.1.0"
