"""Spark as a source: its micro-batches, exactly once; and joins for those who work in Spark.

`source.py` is what a flow sees, `session.py` starts Spark and says what went wrong in it, `java.py` finds a Java for
it, `handover.py` and `Handover.java` bring rows from Spark's tasks, `remote.py` those of Spark Connect, and `ledger.py`
keeps the micro-batches of a run with checkpoints. Nothing outside of this folder imports pyspark, and nothing here does
before it is needed.
"""

__all__ = ["spark"]

from .source import spark
