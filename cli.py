"""The command line: `dovetail run module:flow`, `dovetail explain module:flow`.

A flow is named by a module (`jobs.power:flow`) or a file (`examples/power.py:flow`); what stands behind the colon is
a `Flow`, or a function without arguments that returns one, and is `flow` if left out. Results go to standard output;
the live line, the report and errors go to standard error.

Exit codes: 0 done, 1 failed while running, 2 cannot run as written, 130 stopped by Ctrl-C.
"""

__all__ = ["main"]

import argparse
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .engine import Flow
from .errors import DovetailError, FlowError, nearest
from .monitoring import Progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        flow = load(given.flow)
        return _explain(flow, given) if given.command == "explain" else _run(flow, given)
    except BrokenPipeError:
        # The reader of the output (a `head`, a pager) has seen enough. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("stopped at once", file=sys.stderr)
        return 130
    except DovetailError as error:
        if given.traceback:
            raise
        if isinstance(error.__cause__, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 2 if isinstance(error, FlowError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dovetail", description="Join streams on any comparison.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, what in (("run", "run a flow until its sources end"), ("explain", "print a flow's plan")):
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("flow", help="module:name or file.py:name; the name is `flow` if left out")
        command.add_argument("--traceback", action="store_true", help="show where an error was raised")
        command.add_argument("--workers", type=int, default=1, help="processes that joins are spread over (1: none)")
        if name == "explain":
            command.add_argument("--physical", action="store_true", help="also processes, cores, edges and memory")
            command.add_argument("--rate", type=float, help="rows a second: say how many workers they need, about")
            command.add_argument("--mermaid", action="store_true", help="as a drawing, in Mermaid's language")
        else:
            command.add_argument("--quiet", action="store_true", help="no live line and no report")
    return parser


def _explain(flow: Flow, given: argparse.Namespace) -> int:
    plan = flow.explain(workers=given.workers, physical=given.physical, rate=given.rate)
    print(plan.mermaid() if given.mermaid else plan, flush=True)
    return 0


def _run(flow: Flow, given: argparse.Namespace) -> int:
    progress = None if given.quiet else Progress(sys.stderr)
    try:
        result = flow.run(progress=progress, workers=given.workers)
    finally:
        if progress is not None:
            progress.close()
    if not given.quiet:
        print(result, file=sys.stderr)
    return 130 if result.outcome == "stopped" else 0


def load(target: str) -> Flow:
    """Find the flow that `module:name` or `file.py:name` means."""
    place, _, name = target.partition(":")
    name = name or "flow"
    if not place.endswith(".py") and not all(part.isidentifier() for part in place.split(".")):
        raise FlowError(f"{target}: there is no module {place!r}; name a file as path/to/file.py:{name}")
    module = _import(place, target)
    if not hasattr(module, name):
        flows = [key for key, value in vars(module).items() if isinstance(value, Flow)]
        raise FlowError(f"{target}: {place} has no {name!r}; of flows, {nearest(name, flows)}")
    found = getattr(module, name)
    if callable(found) and not isinstance(found, Flow):
        needed = [p.name for p in inspect.signature(found).parameters.values()
                  if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]  # fmt: skip
        if needed:
            raise FlowError(f"{target}: {name!r} asks for {needed[0]!r}; name a function without arguments")
        found = found()
    if not isinstance(found, Flow):
        raise FlowError(f"{target}: {name!r} is a {type(found).__name__}, not a dt.Flow or a function that returns one")
    return found


def _import(place: str, target: str) -> Any:
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise FlowError(f"{target}: there is no file {place!r} (looked in {Path.cwd()})")
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and not (place == error.name or place.startswith(error.name + ".")):
            raise  # the module is there, and something that it imports is not
        name = target.partition(":")[2] or "flow"
        raise FlowError(f"{target}: there is no module {place!r}; name a file as path/to/file.py:{name}") from None
