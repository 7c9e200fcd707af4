"""The command line: flows are run and explained here, and running ones looked at, stopped and changed.

A flow is named by a module (`jobs.power:flow`) or a file (`examples/power.py:flow`); what stands behind the colon is
a `Flow`, or a function without arguments that returns one, and is `flow` if left out. Results go to standard output;
the live line, the report and errors go to standard error. A running flow is a job, and has a name: its flow's, or what
`--name` says.

Exit codes: 0 done, 1 failed while running, 2 cannot run as written, 130 stopped by Ctrl-C.
"""

__all__ = ["main"]

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .engine import Flow
from .engine.control import Mailbox
from .engine.jobs import JobFolder, ask, clean, known_jobs, serving
from .engine.physical import check_count
from .engine.supervisor import detach, supervise, under_supervision
from .errors import DovetailError, FlowError, JobError, nearest
from .monitoring import Progress, job_details, job_table
from .operators.times import parse_duration

STATUS_PATIENCE = 3.0
"""Seconds that `status` waits for a job: it answers between two batches."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(arguments)
    try:
        return int(given.do(given, arguments))
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
        print(f"error: {_said(error)}", file=sys.stderr)
        return 2 if isinstance(error, FlowError) else 1


def _said(error: DovetailError) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dovetail", description="Join streams on any comparison.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    def command(name: str, do: Any, what: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=what, description=what, allow_abbrev=False)
        made.add_argument("--traceback", action="store_true", help="show where an error was raised")
        made.set_defaults(do=do)
        return made

    run = command("run", _run, "run a flow until its sources end")
    explain = command("explain", _explain, "print a flow's plan")
    for each in (run, explain):
        each.add_argument("flow", help="module:name or file.py:name; the name is `flow` if left out")
        each.add_argument("--workers", type=int, default=1, help="processes that joins are spread over (1: none)")
    explain.add_argument("--physical", action="store_true", help="also processes, cores, edges and memory")
    explain.add_argument("--rate", type=float, help="rows a second: say how many workers they need, about")
    explain.add_argument("--mermaid", action="store_true", help="as a drawing, in Mermaid's language")
    run.add_argument("--quiet", action="store_true", help="no live line and no report")
    run.add_argument("--checkpoint", metavar="FOLDER", help="go on from here, and keep here what is needed to go on")
    run.add_argument("--savepoint", metavar="FOLDER", help="begin a new checkpoint folder with this savepoint")
    run.add_argument("--fresh", action="store_true", help="refuse a checkpoint folder that holds something")
    run.add_argument("--every", default="1s", help="how often results are shown and checkpoints made (1s)")
    run.add_argument("--name", help="of the job; by default the flow's")
    run.add_argument("--detach", action="store_true", help="run in the background, and start again after a crash")
    run.add_argument("--under", help=argparse.SUPPRESS)  # the job whose supervisor has started this

    status = command("status", _status, "show jobs, or one of them")
    status.add_argument("job", nargs="?", help="its name; all of them if left out")
    status.add_argument("--json", action="store_true", help="for programs")
    savepoint = command("savepoint", _savepoint, "make a savepoint of a job that runs on")
    savepoint.add_argument("job")
    savepoint.add_argument("folder", help="a folder that is new or empty")
    stop = command("stop", _stop, "stop a job: a last checkpoint, and the end")
    stop.add_argument("job")
    stop.add_argument("--savepoint", metavar="FOLDER", help="leave a savepoint")
    rescale = command("rescale", _rescale, "have a job go on with another number of workers")
    rescale.add_argument("job")
    rescale.add_argument("workers", type=int)
    command("clean", _clean, "remove what killed runs and ended jobs have left in memory")

    keeps = commands.add_parser("supervise")  # what --detach starts
    keeps.add_argument("name")
    keeps.add_argument("rest", nargs=argparse.REMAINDER)
    keeps.set_defaults(do=_supervise, traceback=False)
    return parser


def _explain(given: argparse.Namespace, _: Sequence[str]) -> int:
    plan = load(given.flow).explain(workers=given.workers, physical=given.physical, rate=given.rate)
    print(plan.mermaid() if given.mermaid else plan, flush=True)
    return 0


def _run(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    trail = None if given.under is None else under_supervision(JobFolder(given.under))
    progress = None if given.quiet or given.under else Progress(sys.stderr)
    try:
        flow = load(given.flow)
        rescaled = JobFolder(given.under).read("rescaled") if given.under else None
        workers = given.workers if rescaled is None else rescaled["workers"]
        # What can be found to be wrong is found here.
        go = flow._ready(workers, given.checkpoint, given.fresh, given.savepoint, given.every, None, progress)
    except Exception as error:
        if given.under:  # whatever the user's file raises, it would raise it again
            text = _said(error) if isinstance(error, DovetailError) else f"{type(error).__name__}: {error}"
            JobFolder(given.under).end("failed", text)
        raise
    if given.detach:
        return _detach(flow, given)
    folder = JobFolder(given.under) if given.under else _claimed(flow, given, arguments)
    mailbox = Mailbox()
    try:
        with serving(folder, mailbox):
            result = go(mailbox, trail)
        folder.end(result.outcome, str(result))
    except DovetailError as error:
        folder.end("failed", _said(error))
        raise
    except KeyboardInterrupt:
        folder.end("stopped", "stopped at once")
        raise
    finally:
        folder.release()
        if progress is not None:
            progress.close()
    if not given.quiet:
        print(result, file=sys.stderr)
    return 130 if result.outcome == "stopped" else 0


def _about(given: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    checkpoint = None if given.checkpoint is None else os.path.abspath(given.checkpoint)
    return {
        "flow": given.flow, "command": f"dovetail {shlex.join(arguments)}", "folder": os.getcwd(),
        "checkpoints": checkpoint, "detached": given.detach,
    }  # fmt: skip


def _claimed(flow: Flow, given: argparse.Namespace, arguments: Sequence[str]) -> JobFolder:
    """Become a job: of the name that was asked for, or of the flow's, with a number behind it if that is taken."""
    about = _about(given, arguments)
    if given.name is not None:
        folder = JobFolder(given.name)
        if not folder.claim(about):
            raise JobError(f"job {given.name!r} runs already; stop it first, or give another --name")
        return folder
    number = 1
    while not (folder := JobFolder(flow.name if number == 1 else f"{flow.name[:60]}-{number}")).claim(about):
        number += 1
    return folder


def _detach(flow: Flow, given: argparse.Namespace) -> int:
    folder = JobFolder(flow.name if given.name is None else given.name)
    if folder.lives:
        raise JobError(f"job {folder.name!r} runs already; stop it first, or give another --name")
    detach(folder, _words(given))
    end = folder.read("end.json")
    if end is not None and end["outcome"] == "failed":
        raise JobError(f"job {folder.name!r} has failed: {end['message']}")
    name = folder.name
    print(f"job {name!r} runs; look with `dovetail status {name}`, stop it with `dovetail stop {name}`")
    return 0


def _words(given: argparse.Namespace) -> list[str]:
    """Return the words after `run` that mean what was given, however that was written."""
    words, usual = [given.flow], _parser().parse_args(["run", given.flow])
    for name in ("detach", "checkpoint", "savepoint", "fresh", "every", "workers", "name", "quiet", "traceback"):
        value = getattr(given, name)
        if value != getattr(usual, name):
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def _supervise(given: argparse.Namespace, _: Sequence[str]) -> int:
    run = ["run", *given.rest]
    asked = _parser().parse_args(run)
    command = [sys.executable, "-m", "dovetail", *(word for word in run if word != "--detach"), "--under", given.name]
    about = _about(asked, run)
    every = float(parse_duration(asked.every, "--every"))  # is one, or there would be no supervisor
    return supervise(given.name, command, about, about["checkpoints"], every)


def _status(given: argparse.Namespace, _: Sequence[str]) -> int:
    jobs = known_jobs() if given.job is None else [_found(given.job)]
    looked = [_looked_at(job) for job in jobs]
    if given.json:
        print(json.dumps(looked if given.job is None else looked[0], indent=1))
    elif given.job is None:
        print(job_table(looked))
    else:
        print(job_details(looked[0]))
    return 0


def _looked_at(job: JobFolder) -> dict[str, Any]:
    """Return all that is known of a job."""
    about = {**(job.read("job.json") or {"name": job.name}), "log": str(job.path / "log")}
    if not job.lives:
        end = job.read("end.json")
        return {**about, **({"state": "killed"} if end is None else {"state": end["outcome"], **end})}
    try:
        return {**about, "state": "running", **ask(job, "status", patience=STATUS_PATIENCE)}
    except JobError as error:
        if not job.lives:  # it has ended meanwhile
            return _looked_at(job)
        return {**about, "state": "busy", "message": str(error)}


def _found(name: str) -> JobFolder:
    job = JobFolder(name)
    if not job.path.is_dir():
        raise JobError(f"there is no job {name!r}; {nearest(name, [each.name for each in known_jobs()])}")
    return job


def _savepoint(given: argparse.Namespace, _: Sequence[str]) -> int:
    folder = os.path.abspath(given.folder)
    number = ask(_found(given.job), "savepoint", folder)
    print(f"savepoint of job {given.job!r} in {folder}: checkpoint {number}")
    print(f"begin with it: dovetail run … --checkpoint NEW-FOLDER --savepoint {shlex.quote(folder)}")
    return 0


def _stop(given: argparse.Namespace, _: Sequence[str]) -> int:
    job = _found(given.job)
    folder = None if given.savepoint is None else os.path.abspath(given.savepoint)
    ask(job, "stop", folder)
    while job.lives:
        time.sleep(0.02)
    end = job.read("end.json")
    print(f"job {job.name!r} has {end['outcome'] if end else 'ended'}" + (f"; savepoint in {folder}" if folder else ""))
    return 0


def _rescale(given: argparse.Namespace, _: Sequence[str]) -> int:
    check_count(given.job, given.workers)
    ask(_found(given.job), "rescale", given.workers)
    print(f"job {given.job!r} goes on with {given.workers} worker{'s' if given.workers > 1 else ''}")
    return 0


def _clean(given: argparse.Namespace, _: Sequence[str]) -> int:
    gone = clean()
    for path in gone:
        print(f"removed {path}")
    if not gone:
        print("nothing was left")
    return 0


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
        with _syntax(target):
            spec.loader.exec_module(module)
        return module
    sys.path.insert(0, os.getcwd())
    try:
        with _syntax(target):
            return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and not (place == error.name or place.startswith(error.name + ".")):
            raise  # the module is there, and something that it imports is not
        name = target.partition(":")[2] or "flow"
        raise FlowError(f"{target}: there is no module {place!r}; name a file as path/to/file.py:{name}") from None


@contextlib.contextmanager
def _syntax(target: str) -> Iterator[None]:
    """Say where a file is not Python: how it came to be read is of no matter."""
    try:
        yield
    except SyntaxError as error:
        line = f"\n    {error.text.strip()}" if error.text else ""
        raise FlowError(f"{target}: {error.filename}, line {error.lineno}: {error.msg}{line}") from None
