"""A Spark session that is started when it is needed, shared by all sources of a process, and quiet.

Problem: a session takes seconds to start and there is one in a process; what Spark logs goes to the terminal, page
after page; and an error of its own is a Java stack trace. Idea: the first source starts the session, with its output
into a file; later ones share it, and say so if they ask for another; an error is told in Spark's own sentence, with the
file where the rest is.

A virtual machine that has died takes its session along. Then everything that refers to it is dropped, and the next
attempt at the flow starts another. The file with Spark's output goes when Python ends, unless an error has named it.
"""

__all__ = ["Wanted", "check_installed", "failure", "is_lost", "lost", "py4j_error", "session_of", "told"]

import atexit
import contextlib
import importlib.util
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...errors import DovetailError, FlowError, SourceError, TransportError
from .java import find_java

CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.driver.maxResultSize": "0",  # a micro-batch is as large as its trigger makes it
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",  # of the driver's way; a tenth of it by default
    "spark.sql.session.timeZone": "UTC",
}
"""What a session of ours is started with; `conf=` overrides it."""


_PORT = 15002
"""Where a server of Spark Connect listens, if nobody says otherwise."""


@dataclass(frozen=True)
class Wanted:
    """The session that a source asks for; all empty: any."""

    master: str | None = None
    remote: str | None = None
    conf: tuple[tuple[str, str], ...] = ()
    session: Any = field(default=None, compare=False)

    @classmethod
    def of(cls, master: str | None, remote: str | None, conf: Mapping[str, Any] | None, session: Any) -> "Wanted":
        """Check what was asked for."""
        if session is not None and (master or remote or conf):
            raise FlowError("spark: session= is a session that runs; master=, remote= and conf= are for starting one")
        if master is not None and remote is not None:
            raise FlowError("spark: give master= (Spark in this process) or remote= (Spark Connect), not both")
        if session is not None and not hasattr(session, "readStream"):
            raise FlowError(f"spark: session={session!r} is no SparkSession")
        if conf is not None and not isinstance(conf, Mapping):
            raise FlowError(f"spark: conf={conf!r} is no dict of settings, such as {{'spark.driver.memory': '4g'}}")
        for key, value in (conf or {}).items():
            if not isinstance(key, str) or not isinstance(value, str | int | float | bool):
                raise FlowError(f"spark: conf={{{key!r}: {value!r}}} is no setting; give texts, such as 'spark.x': '1'")
        return cls(master, remote, tuple(sorted((k, _text(v)) for k, v in (conf or {}).items())), session)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Ours:
    """The session that was started here, if one was."""

    session: Any = None
    wanted = Wanted()
    log: str | None = None
    log_named = False  # in an error: somebody may want to read it
    folder: str | None = None


def session_of(wanted: Wanted) -> Any:
    """Return the session that a source asks for; start it if there is none."""
    if wanted.session is not None:
        if _is_stopped(wanted.session):
            raise FlowError("spark: session= has been stopped; give one that runs, or none")
        return wanted.session
    check_installed()
    if _Ours.session is not None and not _is_alive(_Ours.session):
        _drop()
    if _Ours.session is not None:
        if wanted != _Ours.wanted and wanted != Wanted():
            raise FlowError(
                f"spark: a session runs already, {_said(_Ours.wanted)}, and this source asks for {_said(wanted)}; "
                "sources of one process share a session: give all the same, or hand one over with session="
            )
        return _Ours.session
    if wanted.remote is not None:
        session = _connected(wanted)
    else:
        theirs = _running()
        if theirs is not None and wanted == Wanted():
            return theirs
        if theirs is not None:
            raise FlowError(
                f"spark: a session runs already that was not started here, and this source asks for {_said(wanted)}; "
                "hand it over with session=, or stop it first"
            )
        session = _started(wanted)
    _Ours.session, _Ours.wanted = session, wanted
    return session


def check_installed() -> None:
    """Raise unless there is a PySpark."""
    if importlib.util.find_spec("pyspark") is None:
        raise SourceError("spark: PySpark is not installed; pip install 'dovetail[spark]'")


def _said(wanted: Wanted) -> str:
    parts = [f"master={wanted.master!r}"] if wanted.master else []
    parts += [f"remote={wanted.remote!r}"] if wanted.remote else []
    parts += [f"conf={dict(wanted.conf)}"] if wanted.conf else []
    return " and ".join(parts) or "the standard one"


def _running() -> Any:
    """Return a session of this process that somebody else has started."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate() if SparkContext._active_spark_context is not None else None


def _started(wanted: Wanted) -> Any:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    _find_java()
    # What goes wrong between here and there is told by who notices; py4j would write pages of it.
    for name in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_py4j)
    if _Ours.log is None:
        _Ours.log = os.path.join(tempfile.gettempdir(), f"dovetail-spark-{os.getpid()}.log")
        atexit.register(_remove_log, _Ours.log)
    settings = {**CONF, "spark.master": wanted.master or "local[*]", "spark.app.name": "dovetail", **dict(wanted.conf)}
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    # As `SparkSession.builder` does it, but for where the output of the virtual machine goes.
    with open(_Ours.log, "ab") as log:
        began = log.tell()
        try:
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})
            return SparkSession(SparkContext(conf=conf, gateway=gateway))
        except (PySparkException, OSError, py4j_error()) as error:
            why = _last_words(_Ours.log, began) or _sentence(error)  # an error cannot be read without its machine
            _drop()
            raise SourceError(f"spark: Spark does not start, with {_said(wanted)}: {why}{_see_log()}") from None


def _last_words(log: str, began: int) -> str:
    """Return why a virtual machine has ended before anybody could ask it, as it has written since."""
    with open(log, errors="replace") as file:
        file.seek(began)
        lines = [line.strip() for line in file if re.match(r"Error: |Exception in thread \"main\" |Caused by: ", line)]
    if not lines or lines[0].startswith("Error: "):
        return lines[0].removeprefix("Error: ") if lines else ""
    return _JAVA_NAME.sub("", lines[-1].removeprefix('Exception in thread "main" '))


def _find_java() -> None:
    """Tell PySpark which Java to take, and which Python."""
    if _Ours.folder is None:
        _Ours.folder = tempfile.mkdtemp(prefix="dovetail-spark-")
        atexit.register(shutil.rmtree, _Ours.folder, ignore_errors=True)
    os.environ["JAVA_HOME"] = find_java(Path(_Ours.folder))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else executors take the python3 of PATH


def _not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _connected(wanted: Wanted) -> Any:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if re.fullmatch(r"local(\[.*\])?", str(wanted.remote)):  # a server of this process's own
        _find_java()
    else:
        _check_there(str(wanted.remote))
    try:
        builder = SparkSession.builder.remote(str(wanted.remote))
        for key, value in wanted.conf:
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        _ = session.version
        _give_up_soon(session)
        return session
    except (PySparkException, ImportError, py4j_error()) as error:
        way = "; pip install 'pyspark[connect]'" if isinstance(error, ImportError) else ""
        raise SourceError(f"spark: remote={wanted.remote!r} cannot be used: {_sentence(error)}{way}") from None


def _check_there(remote: str) -> None:
    """Raise unless somebody listens: PySpark would try for ten minutes, and say nothing."""
    place = urlsplit(remote.partition(";")[0])
    try:
        host, port = place.hostname, place.port or _PORT
        if place.scheme != "sc" or host is None:
            raise ValueError("it is no address such as sc://host or sc://host:15002")
        socket.create_connection((host, port), timeout=10.0).close()
    except (OSError, ValueError) as error:
        raise SourceError(
            f"spark: remote={remote!r} cannot be used: {error}; start a server there, or give its address"
        ) from error


def _give_up_soon(session: Any) -> None:
    """Have a server that is gone noticed in some twenty seconds, and not in ten minutes."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session.client.set_retry_policies([DefaultPolicy(max_retries=5)])


def _is_stopped(session: Any) -> bool:
    """Tell whether somebody has stopped a session that was given."""
    if hasattr(type(session), "is_stopped"):
        return bool(session.is_stopped)
    return session.sparkContext._jsc is None


def _is_alive(session: Any) -> bool:
    """Tell whether a session that was started here still runs."""
    if _Ours.wanted.remote is not None:
        return not session.is_stopped
    from py4j.protocol import Py4JError

    try:
        return session._jsc is not None and not session.sparkContext._jsc.sc().isStopped()
    except (Py4JError, AttributeError, OSError):
        return False


def _drop() -> None:
    """Forget a session whose virtual machine is gone, with all that PySpark remembers of it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if context is not None:
        with contextlib.suppress(Exception):  # nobody is there to be told
            context.stop()
    if gateway is not None:
        process = getattr(gateway, "proc", None)
        with contextlib.suppress(Exception):
            gateway.shutdown()
        if process is not None:
            process.kill()
            process.wait()
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    _Ours.session = None


def is_lost(error: BaseException) -> bool:
    """Tell whether an error says that the virtual machine is gone."""
    from py4j.protocol import Py4JError, Py4JJavaError

    if isinstance(error, Py4JError):  # what comes from over there has a trace, or is Java's
        return not isinstance(error, Py4JJavaError) and "Trace:" not in str(error)
    return isinstance(error, ConnectionError)


_EMPTY = ("An error occurred while calling ", "Exception thrown in awaitResult", "Job aborted due to stage failure")
"""How lines begin that only say that there was an error."""


def told(error: BaseException) -> str:
    """Say what Spark says, in a sentence, and where there is more."""
    return _sentence(error) + _see_log()


def _see_log() -> str:
    _Ours.log_named = True
    return f" (Spark's own log: {_Ours.log})" if _Ours.log else ""


def _remove_log(log: str) -> None:
    if not _Ours.log_named:
        Path(log).unlink(missing_ok=True)


def py4j_error() -> type[Exception]:
    """Return what is raised when something goes wrong on the way to the virtual machine."""
    from py4j.protocol import Py4JError

    return Py4JError


def failure(error: BaseException, where: str = "") -> DovetailError:
    """Return what is to be raised for an error of Spark's: in place of it, as its own text is pages of Java."""
    if isinstance(error, DovetailError):
        return error
    return lost() if is_lost(error) else SourceError(f"spark: {where}{told(error)}")


def lost() -> TransportError:
    """Return what is to be raised when the virtual machine is gone: a flow goes on, with another one."""
    return TransportError(f"spark: the Java virtual machine of Spark is gone{_see_log()}")


_JAVA_NAME = re.compile(r"^(?:Caused by)?:? ?(?:[\w$]+\.)*[\w$]*(?:Exception|Error): ")


def _sentence(error: BaseException) -> str:
    """Find what an error says to people: what Spark itself says of the cause, without Java's classes and its stack."""
    lines = [line.strip() for line in str(error).splitlines() if not line.startswith(("\tat ", "JVM stacktrace"))]
    said = [_JAVA_NAME.sub("", line) for line in lines if line]
    said = [line for line in said if not line.startswith(_EMPTY)] or [type(error).__name__]
    trace = str(error).partition("Traceback (most recent call last)")[2]  # of a Python function within Spark
    if python := re.findall(r"^(?:\w+\.)*(\w*(?:Error|Exception): .+)$", trace, re.MULTILINE):
        return f"{said[0].rstrip(': ')}: {python[-1]}"
    named = [line for line in said if re.match(r"\[[A-Z_.0-9]+\]", line) and not line.startswith("[STREAM_FAILED]")]
    if named:
        return named[0]
    causes = [line for line in lines if line.startswith("Caused by")]
    return f"{said[0]}: {said[-1]}" if causes and said[-1] != said[0] else said[0]
