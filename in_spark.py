"""For those who work in Spark: a join of two of its DataFrames that Spark itself refuses, and a DataFrame again.

The flow that does it is an ordinary one: two `dt.spark` sources, a join, and a folder of Parquet, which Spark reads.
Two streams make a stream: the flow runs beside it, until somebody stops it or Python ends.
"""

__all__ = ["spark_join"]

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

from .config import Options
from .engine import Flow, Job
from .errors import DovetailError, FlowError
from .ingest import parquet, spark


def spark_join(
    left_df: Any, right_df: Any, *, on: Any, window: Any, time: Any = None, delay: Any = None, how: str = "inner",
    suffix: str = "_right", output: str | os.PathLike[str] | None = None, overwrite: bool = False,
    checkpoint: str | os.PathLike[str] | None = None, workers: int = 1, trigger: Mapping[str, Any] | None = None,
    every: Any = "1s", options: Options | None = None,
) -> Any:  # fmt: skip
    """Join two DataFrames of Spark on any comparison, over sliding windows; return a DataFrame.

    Parameters
    ----------
    left_df, right_df
        Both streams, or both settled.
    on
        A condition, or a list of them that must all hold: in Spark's columns (`left_df.rack < right_df.rack`, or
        `F.col("l.rack") < F.col("r.rack")`), as text (`"l.rack < r.rack AND l.cooling > r.cooling"`), or with
        `dovetail.left` and `dovetail.right`.
    window, how, suffix
        As for `Stream.join`.
    time
        The column of the event time; a pair of them, if they are called differently.
    delay
        How far out of order rows may come.
    output
        The folder for the results; without, one that goes when Python ends.
    overwrite
        Whether results that are in it may be removed.
    checkpoint, workers, every, options
        As for `Flow.run`. With `checkpoint` and `output` a stream goes on after a crash, each result once.
    trigger
        Of the streams, in Spark's words: `{"availableNow": True}` for what is there now, and no more.

    Returns
    -------
    A DataFrame. Of two streams it is a stream, which grows while the flow runs, and its `job` is that flow:
    `.status()`, `.stop()`. Else it is complete.
    """
    streams = [_is_stream(frame, name) for frame, name in ((left_df, "left_df"), (right_df, "right_df"))]
    if streams[0] != streams[1]:
        raise FlowError("spark_join: one DataFrame is a stream, and the other is not; read both with readStream")
    if checkpoint is not None and output is None:
        raise FlowError("spark_join: checkpoint= without output=: results must be somewhere after a crash, too")
    session = left_df.sparkSession
    if trigger is not None and not streams[0]:
        raise FlowError(f"spark_join: trigger={trigger!r}, and the DataFrames are no streams; leave it out")
    if output is not None and not isinstance(output, str | os.PathLike):
        raise FlowError(f"spark_join: output={output!r} is no path; give a folder for the results")
    out = _temporary() if output is None else os.fspath(output)
    times = time if isinstance(time, tuple | list) else (time, time)
    if len(times) != 2 or not all(isinstance(column, str | None) for column in times):
        raise FlowError(f"spark_join: time={time!r}; give a column's name, or two: (of the left, of the right)")
    flow = Flow("spark_join")
    sides = []
    for frame, side, column in ((left_df, "left", times[0]), (right_df, "right", times[1])):
        source = spark(functools.partial(_given, frame), trigger=trigger, session=session)
        more = {name: value for name, value in (("time", column), ("delay", delay)) if value is not None}
        sides.append(flow.read(source, name=side, **more))
    conditions = list(on) if isinstance(on, list | tuple) else [on]
    conditions = [_condition(each, left_df, right_df) for each in conditions]
    joined = sides[0].join(sides[1], on=conditions, window=window, how=how, suffix=suffix, name="join")
    joined.write(parquet(out, overwrite=overwrite))
    arguments: dict[str, Any] = {"checkpoint": checkpoint, "workers": workers, "every": every, "options": options}
    if not streams[0]:
        flow.run(**arguments)
        return session.read.schema(_spark_schema(joined.schema)).parquet(out)
    try:
        os.makedirs(out, exist_ok=True)
    except OSError as error:
        raise FlowError(f"spark_join: output={out!r} cannot be made: {error.strerror}; give another folder") from None
    results = session.readStream.schema(_spark_schema(joined.schema)).parquet(out)
    results.job = flow.start(**arguments)
    atexit.register(_stop, results.job)  # before its folder goes
    return results


def _given(frame: Any, _: Any) -> Any:
    return frame


def _is_stream(frame: Any, name: str) -> bool:
    found = getattr(type(frame), "isStreaming", None)
    if found is None or not hasattr(frame, "_jdf"):
        kind = f"{type(frame).__module__}.{type(frame).__qualname__}"
        raise FlowError(f"spark_join: {name} is a {kind}, and no DataFrame of a Spark that runs in this process")
    if frame.sparkSession.sparkContext._jsc is None:
        raise FlowError(f"spark_join: {name} is of a Spark session that has been stopped; make it with one that runs")
    return bool(frame.isStreaming)


def _condition(on: Any, left_df: Any, right_df: Any) -> Any:
    if not hasattr(on, "_jc"):
        return on
    from .ingest.spark.columns import expression_of

    return expression_of(on, left_df, right_df)


def _spark_schema(schema: Any) -> Any:
    from .ingest.spark.source import spark_schema

    return spark_schema(schema)


def _temporary() -> str:
    folder = tempfile.mkdtemp(prefix="dovetail-spark-join-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return os.path.join(folder, "results")


def _stop(job: Job) -> None:
    with contextlib.suppress(DovetailError):  # it was told already
        job.stop()
