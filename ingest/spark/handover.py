"""Rows from Spark's tasks into this process's memory, without the driver between them.

Problem: `toArrow` collects what tasks have made of their rows in the driver, which sends it through a socket, one
partition after the other, when all cores could be at work: a third of a micro-batch's time. Idea: where tasks run on
this machine (`master="local[…]"`), each writes its rows itself, as Arrow, into memory of this process, which then has
them in place. What a task does is a page of Java (`Handover.java`); Spark brings a compiler for its own queries along,
so that no Java kit is needed, and hands the class to its tasks as a jar.

The memory is a file in no folder for each partition (`memfd_create`), which the virtual machine opens by way of
`/proc`: whatever is killed, no row is left behind. It is sealed when all tasks are done, so that none that comes late
can change it, and goes when the last batch of its partition does.

Only micro-batches of streams come so: these run within a query of Spark's, with its settings and listeners, which a
frame that is no stream gets from `toArrow` alone. Where the way cannot be had, rows come through the driver: from a
cluster, from Spark Connect, of a frame of very many partitions, and from a Spark whose insides are not those that the
Java is written for, which is said in a warning.

Cost: rows are written once, where they stay. `tests/bench/spark.py` compares it with the other ways.
"""

__all__ = ["MOST_PARTITIONS", "Handover", "way_of"]

import errno
import fcntl
import os
import secrets
import tempfile
import threading
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
_CLASS, _COMPILER = "dovetail.Handover", "org.codehaus.janino.SimpleCompiler"

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

_known: "weakref.WeakKeyDictionary[Any, Handover | None]" = weakref.WeakKeyDictionary()
"""Of each virtual machine's Spark, what was compiled for it; None if that failed."""

_knowing = threading.Lock()
"""Sources of several flows may begin at once."""


def way_of(frame: Any) -> Callable[[Any], pa.Table]:
    """Return what brings the rows of a stream's micro-batches here."""
    if is_remote(frame):
        return _through_the_driver
    context = frame.sparkSession.sparkContext
    if not _is_here(context.master):
        return _through_the_driver
    with _knowing:
        if context not in _known:
            _known[context] = _compiled(context)
        found = _known[context]
    return _through_the_driver if found is None else found.table


def _compiled(context: Any) -> "Handover | None":
    from py4j.protocol import Py4JJavaError

    try:
        return Handover(context)
    except Py4JJavaError as error:
        warnings.warn(
            f"spark: rows come through Spark's driver, which is slower: version {context.version} has other insides "
            f"than Dovetail knows: {told(error)}",
            RuntimeWarning,
            stacklevel=3,
        )
        return None


def _is_here(master: str) -> bool:
    """Tell whether tasks run in the virtual machine that this process talks to."""
    return master == "local" or master.startswith("local[")


def _through_the_driver(frame: Any) -> pa.Table:
    return frame.toArrow()


class Handover:
    """The way from one Spark's tasks into this process."""

    def __init__(self, context: Any) -> None:
        self._gateway, self._java = context._gateway, context._jvm
        compiler = self._java.java.lang.Class.forName(_COMPILER).getConstructor(self._array("Class")).newInstance(
            self._array("Object")
        )
        compiler.cook(_SOURCE.read_text())
        # Where Spark keeps what it is given for its tasks, which goes when it does.
        folder = tempfile.mkdtemp(prefix="dovetail-", dir=self._java.org.apache.spark.SparkFiles.getRootDirectory())
        path = os.path.join(folder, f"{os.path.basename(folder)}.jar")
        with zipfile.ZipFile(path, "w") as jar:
            for name, code in dict(compiler.getBytecodes()).items():
                jar.writestr(name.replace(".", "/") + ".class", bytes(code))
        context._jsc.addJar(path)
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
            files: list[int] = []
            try:
                while len(files) < count:
                    files.append(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
                    opened.callback(os.close, files[-1])
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                return _through_the_driver(frame)  # which takes no file for a partition
            rows.mapPartitionsWithIndex(self._task(files, name, frame._jdf.schema()), False).count()
            for file in files:
                fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            batches = [batch for file in files for batch in _read(file, schema)]
        return pa.Table.from_batches(batches, schema)

    def _task(self, files: list[int], name: str, kind: Any) -> Any:
        """Return what tasks are to do: write rows of this type into memory of this name."""
        paths = self._array("String", *(f"/proc/{os.getpid()}/fd/{file}" for file in files))
        most = BATCH_ROWS, self._java.java.lang.Long(BATCH_BYTES)
        given = self._array("Object", paths, f"/memfd:{name} (deleted)", kind, *most)
        return self._class.getConstructors()[0].newInstance(given)

    def _array(self, kind: str, *values: Any) -> Any:
        """Return an array of Java's."""
        array = self._gateway.new_array(getattr(self._java.java.lang, kind), len(values))
        for at, value in enumerate(values):
            array[at] = value
        return array


def _read(file: int, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return the batches of a partition, in place."""
    messages = pa.py_buffer(Disk().map(f"/proc/self/fd/{file}"))
    source, batches = pa.BufferReader(messages), []
    while source.tell() < messages.size:
        batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(source), schema))
    return batches
