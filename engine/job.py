"""A flow that runs beside the one who started it: a thread, and the box through which it is asked for things."""

__all__ = ["Job"]

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from typing import Any

from ..errors import FlowError
from .control import Mailbox
from .physical import check_count
from .result import Result
from .run import Status


class Job:
    """A running flow; made by `Flow.start`.

    Everything here waits for the run, which answers between two batches.
    """

    def __init__(self, name: str, go: Callable[[Mailbox], Result]) -> None:
        self.name = name
        self.mailbox = Mailbox()
        self._result: Future[Result] = Future()
        self._waited = False  # somebody waits for its end
        self._thread = threading.Thread(target=self._run, args=(go,), name=f"dovetail-{name}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Job {self.name!r}: {'running' if self.running else 'ended'}>"

    @property
    def running(self) -> bool:
        """Tell whether it has not ended."""
        return not self._result.done()

    def wait(self, timeout: float | None = None) -> Result:
        """Wait until it ends; return what was done, or raise what ended it. Ctrl-C stops it.

        After `timeout` seconds: a TimeoutError, and the flow runs on.
        """
        self._waited = True
        try:
            return self._result.result(timeout)
        except KeyboardInterrupt:
            self.mailbox.ask("stop")
            return self._result.result()
        except TimeoutError:
            self._waited = False
            if not self._result.done():
                raise TimeoutError(f"flow {self.name!r} still runs after {timeout:g} s") from None
            raise

    def status(self) -> Status:
        """Look at it."""
        status: Status = self._ask("status")
        return status

    def savepoint(self, folder: str | os.PathLike[str]) -> int:
        """Make a savepoint, and run on; return the number of the checkpoint that it is."""
        number: int = self._ask("savepoint", self._path(folder))
        return number

    def rescale(self, workers: int) -> None:
        """Go on with another number of workers, from a checkpoint that is made for it."""
        check_count(self.name, workers)
        self._ask("rescale", workers)

    def stop(self, *, savepoint: str | os.PathLike[str] | None = None) -> Result:
        """Stop it: a last checkpoint, if it makes any, a savepoint if one is asked for, and the end."""
        if self.running:
            self._ask("stop", None if savepoint is None else self._path(savepoint))
        return self.wait()

    def _path(self, folder: Any) -> str:
        if not isinstance(folder, str | os.PathLike):
            raise FlowError(f"flow {self.name!r}: savepoint={folder!r} is no path of a folder")
        return os.path.abspath(folder)

    def _ask(self, verb: str, argument: Any = None) -> Any:
        return self.mailbox.ask(verb, argument).result()

    def _run(self, go: Callable[[Mailbox], Result]) -> None:
        try:
            result = go(self.mailbox)
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for it
            self.mailbox.close(f"flow {self.name!r} has failed: {error}")
            if not self._waited:  # nobody would know
                sys.stderr.write(f"dovetail: flow {self.name!r} has failed: {error}\n")
            self._result.set_exception(error)
        else:
            self.mailbox.close(f"flow {self.name!r} has {result.outcome}: there is nothing to ask of it any more")
            self._result.set_result(result)
