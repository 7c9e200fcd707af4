"""Micro-batches of Spark Connect, which come over a socket: its server hands them to a function there, and not here.

Problem: what `foreachBatch` is given runs in a process beside the server, perhaps on another machine. Idea: we listen;
the function that is sent there connects to us for each micro-batch, says a secret that only it was told, sends number
and rows as an Arrow stream, and waits for a word: that they were taken, or why not. It needs Python's own library and
PyArrow, which PySpark brings along, and nothing of ours.

So the server must be able to reach this process, at the address from which this one reaches the server. Rows travel as
they are, without encryption.
"""

__all__ = ["Line", "is_remote"]

import contextlib
import hmac
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa

TAKEN = b"taken"
SILENCE_SECONDS = 60.0
"""Before who has called and says nothing is listened to no more."""

_COUNT = 8
"""Bytes of a micro-batch's number, and of that of its rows."""


def is_remote(frame: Any) -> bool:
    """Tell whether a DataFrame is Spark Connect's."""
    return type(frame).__module__.startswith("pyspark.sql.connect.")


class Line:
    """Where micro-batches come. `take` is called for each, in a thread of its own; what it raises is told to Spark."""

    def __init__(self, frame: Any, take: Callable[[pa.Table, int], None]) -> None:
        self._take = take
        self._secret = secrets.token_bytes(32)
        self._socket = socket.create_server((_here(frame.sparkSession.client.host), 0))
        threading.Thread(target=self._listen, name="dovetail-connect", daemon=True).start()

    def sender(self) -> Callable[[Any, int], None]:
        """Return what Spark is to call with each micro-batch, wherever that is."""
        (host, port, *_), secret, taken = self._socket.getsockname(), self._secret, TAKEN

        # Defined here, so that it is sent by value; and with its own imports, as nothing of this module is there.
        def send(frame: Any, number: int) -> None:
            import socket

            import pyarrow as pa

            table = frame.toArrow()
            with socket.create_connection((host, port)) as line, line.makefile("rwb") as file:
                file.write(secret + number.to_bytes(8, "little") + table.num_rows.to_bytes(8, "little"))
                with pa.ipc.new_stream(file, table.schema) as writer:
                    writer.write_table(table)
                file.flush()
                line.shutdown(socket.SHUT_WR)
                said = file.read()
            if said != taken:
                raise RuntimeError(said.decode() or "the flow that reads this stream is gone")

        return send

    def close(self) -> None:
        """Listen no more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # else the thread would go on waiting
        self._socket.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                line, _ = self._socket.accept()
                threading.Thread(target=self._hear, args=(line,), name="dovetail-connect", daemon=True).start()

    def _hear(self, line: socket.socket) -> None:
        line.settimeout(SILENCE_SECONDS)
        with line, line.makefile("rwb") as file, contextlib.suppress(OSError, pa.ArrowInvalid):  # it broke off
            if not hmac.compare_digest(file.read(len(self._secret)), self._secret):
                return
            number, rows = (int.from_bytes(file.read(_COUNT), "little") for _ in range(2))
            table = pa.ipc.open_stream(file).read_all()
            if table.num_rows != rows:
                return  # a stream of Arrow's may break off between two batches and look whole
            try:
                self._take(table, number)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is Spark's to end its query for
                file.write(str(error).encode() or type(error).__name__.encode())
            else:
                file.write(TAKEN)


def _here(host: str) -> str:
    """Return the address from which this machine reaches another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.connect((host, 1))  # sends nothing
        return str(line.getsockname()[0])
