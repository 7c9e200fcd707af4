"""Rows from Spark's tasks into this process's memory, without the driver between them.

Problem: `toArrow` collects what tasks have made of their rows in the driver, which sends it through a socket, one
partition after the other, when all cores could be at work: a third of a micro-batch's time. Idea: where tasks run on
this machine (`master="local[…]"`), each writes its rows itself, as Arrow, into memory of this process, which then has
them in place. What a task does is a page of Java (`Handover.java`); Spark brings a compiler for its own queries along,
so that no Java kit is needed, and hands the class to its tasks as a jar.

The memory is a file in no folder for each partition (`memfd_create`), which the virtual machine opens by way of
`/proc`: whatever is killed, nothing is left behind. It goes when the last batch of its partition does.

Where it cannot be had, rows come through the driver: from a cluster, from Spark Connect, of a frame of very many
partitions, and from a Spark whose insides are not those that the Java is written for, which is said in a warning.

Cost: rows are written once, where they stay. `tests/bench/spark.py` compares it with the other ways.
"""

__all__ = ["MOST_PARTITIONS", "Handover", "way_of"]

import os
import secrets
import tempfile
import warnings
import weakref
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...disk import Disk
from .remote import is_remote
from .session import told

MOST_PARTITIONS = 256
"""Of a frame: each is a file that this process has open while rows come."""

BATCH_ROWS = 1 << 16
BATCH_BYTES = 1 << 26
"""Where a batch is cut, so that texts do not outgrow its 32-bit offsets."""

_SOURCE = Path(__file__).with_name("Handover.java")
_CLASS = "dovetail.Handover"

_known: "weakref.WeakKeyDictionary[Any, Handover | None]" = weakref.WeakKeyDictionary()
"""Of each virtual machine's Spark, what was compiled for it; None if that failed."""


def way_of(frame: Any) -> Callable[[Any], pa.Table]:
    """Return what brings the rows of frames here that are of the same Spark as this one."""
    from py4j.protocol import Py4JJavaError

    if is_remote(frame):
        return _through_the_driver
    context = frame.sparkSession.sparkContext
    if not _is_here(context.master):
        return _through_the_driver
    if context not in _known:
        try:
            _known[context] = Handover(context)
        except Py4JJavaError as error:
            _known[context] = None
            warnings.warn(
                f"spark: rows come through Spark's driver, which is slower: version {context.version} has other "
                f"insides than Dovetail knows: {told(error)}",
                RuntimeWarning,
                stacklevel=2,
            )
    found = _known[context]
    return _through_the_driver if found is None else found.table


def _is_here(master: str) -> bool:
    """Tell whether tasks run in the virtual machine that this process talks to."""
    return master == "local" or master.startswith("local[")


def _through_the_driver(frame: Any) -> pa.Table:
    return frame.toArrow()


class Handover:
    """The way from one Spark's tasks into this process."""

    def __init__(self, context: Any) -> None:
        self._gateway, self._java = context._gateway, context._jvm
        compiler = self._java.org.codehaus.janino.SimpleCompiler()
        compiler.cook(_SOURCE.read_text())
        self._jar = tempfile.NamedTemporaryFile(prefix="dovetail-spark-", suffix=".jar")  # noqa: SIM115 - Spark reads it
        with zipfile.ZipFile(self._jar, "w") as jar:
            for name, code in dict(compiler.getBytecodes()).items():
                jar.writestr(name.replace(".", "/") + ".class", bytes(code))
        self._jar.flush()
        context._jsc.addJar(self._jar.name)
        self._class = compiler.getClassLoader().loadClass(_CLASS)

    def table(self, frame: Any) -> pa.Table:
        """Return a frame's rows, partition by partition, as `toArrow` does."""
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
        rows = frame._jdf.queryExecution().toRdd().toJavaRDD()
        count = rows.getNumPartitions()
        if count > MOST_PARTITIONS:
            return _through_the_driver(frame)
        name = f"dovetail-spark-{secrets.token_hex(8)}"
        with ExitStack() as opened:
            files = []
            for _ in range(count):
                files.append(os.memfd_create(name))
                opened.callback(os.close, files[-1])
            rows.mapPartitionsWithIndex(self._task(files, name, frame._jdf.schema()), False).count()
            batches = [batch for file in files for batch in _read(file, schema)]
        return pa.Table.from_batches(batches, schema)

    def _task(self, files: list[int], name: str, kind: Any) -> Any:
        """Return what tasks are to do: write rows of this type into memory of this name."""
        lang = self._java.java.lang
        paths = self._gateway.new_array(lang.String, len(files))
        for number, file in enumerate(files):
            paths[number] = f"/proc/{os.getpid()}/fd/{file}"
        given = self._gateway.new_array(lang.Object, 5)
        for at, value in enumerate((paths, f"/memfd:{name} (deleted)", kind, BATCH_ROWS, lang.Long(BATCH_BYTES))):
            given[at] = value
        return self._class.getConstructors()[0].newInstance(given)


def _read(file: int, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return the batches of a partition, in place."""
    messages = pa.py_buffer(Disk().map(f"/proc/self/fd/{file}"))
    source, batches = pa.BufferReader(messages), []
    while source.tell() < messages.size:
        batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(source), schema))
    return batches
