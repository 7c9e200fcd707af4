"""Puts faults into a process that knows nothing of it.

Python imports a module of this name, if it finds one, before anything else. A test that wants a fault starts its script
with this folder in PYTHONPATH; worker processes inherit that. Modules of the product are then wrapped when they are
imported, at the places of `WRAPPED`: each passing of one is counted, by process, and the passing that `FAULTS` names
does what it says. A fault is counted from when the one before it in the list has happened::

    FAULTS='[{"who": "worker-1", "at": "answer", "nth": 3, "do": "SIGKILL"}]'    FAULTS_MARKS=/a/folder

A place has two points: its name, before it is done, and its name with "done". A fault leaves a mark, durably, before it
acts: a file of which there can be one, so that it happens once however often processes are started, and so that the
test knows that it did. With `FAULTS_STEADY` the head waits for each checkpoint to be written, so that there is one for
each round however slow the disk: else nobody could say that there is a ninth.
"""

import ctypes
import functools
import importlib.abc
import importlib.util
import json
import os
import re
import resource
import signal
import sys
import threading

FAULTS = json.loads(os.environ.get("FAULTS", "[]"))
MARKS = os.environ.get("FAULTS_MARKS", "")

KINDS = [
    (r"checkpoint-\d+\.json", "manifest"), (r"state-.*", "state"), (r"rows-.*", "rows"), (r"part-.*", "part"),
    (r"\.lineage-.*", "lineage"), (r"\.staging-.*", "staging"), (r"lock|shown|told", None),
]  # fmt: skip


def kind_of(path):
    """Say what a file is, by its name."""
    name = os.path.basename(str(path)).removesuffix(".tmp")
    return next((kind or name for pattern, kind in KINDS if re.fullmatch(pattern, name)), "folder")


def plain(name):
    return lambda *_, **__: name


def on_path(what):
    return lambda _, path, *__, **___: f"{what} {kind_of(path)}"


def on_target(what):
    return lambda _, old, new, *__: f"{what} {kind_of(new)}"


def last_checkpoint(_, *, finished=False, **__):
    return "last checkpoint" if finished else "checkpoint"


def sent(_, kind, *__):
    return {5: "hello", 6: "tell error", 7: "send stop"}.get(kind)


def taken(_, message):
    if message.kind != 0:
        return None
    return "store again" if message.meta["again"] else "step"


def told_to_stop(_, message):
    return "told to stop" if message is not None and message.kind == 7 else None


WRAPPED = {
    "disk": [
        *(("Disk", name, on_path(name)) for name in ("create", "sync", "sync_folder", "remove", "read")),
        ("Disk", "measure", on_path("read")),
        ("Disk", "remove_folder", on_path("remove_folder")), ("Disk", "rename", on_target("rename")),
    ],
    "engine.tasks": [
        ("ReadTask", "read", plain("read")), ("SinkTask", "announce", plain("announce")),
        ("SinkTask", "prepare", plain("prepare")), ("JoinTask", "restore", plain("restore")),
        ("SinkTask", "go_on", plain("go on")),
    ],
    "engine.cells": [
        ("Workers", "deal", plain("deal")), ("Workers", "start", plain("start workers")),
        ("ParallelJoin", "open", plain("open join")),
    ],
    "engine.processes": [("Processes", "start", plain("start")), ("Processes", "stop", plain("stop"))],
    "engine.keeper": [("Keeper", "load", plain("load"))],
    "engine.coordinator": [("Coordinator", "begin", plain("begin")), ("Coordinator", "durable", plain("durable"))],
    "engine.checkpoints": [
        ("", "write_whole", on_path("write")), ("Checkpoints", "open", plain("take folder")),
        ("Checkpoints", "close", plain("leave folder")), ("Checkpoints", "_sweep", plain("sweep")),
    ],
    "engine.run": [
        ("Runner", "open", plain("open")), ("Runner", "close", plain("close")),
        ("Runner", "checkpoint", last_checkpoint),
    ],
    "ingest.folder": [
        ("FolderWriter", "_resume", plain("resume")), ("FolderWriter", "stage", plain("stage")),
        ("_Part", "complete", plain("complete part")), ("FolderWriter", "close", plain("close sink")),
    ],
    "transport.channel": [("Channel", "send", sent)],
    "engine.supervisor": [
        ("", "detach", plain("detach")), ("_Supervisor", "_attempt", plain("attempt")),
        ("", "_last_checkpoint", plain("look")),
    ],
    "engine.jobs": [
        ("JobFolder", "claim", plain("claim")), ("JobFolder", "forget", plain("forget")),
        ("JobFolder", "end", plain("end job")), ("JobFolder", "release", plain("release job")),
        ("", "_serve", plain("serve")),
    ],
    "engine.trail": [("Trail", "_make", plain("trail"))],
    "engine.worker": [
        ("", "die_with", plain("up")), ("", "_board", plain("board")), ("_Edge", "next", plain("answer")),
        ("Loop", "_take", taken), ("Loop", "turn", told_to_stop),
    ],
}  # fmt: skip
"""By module: class, function, and what the passing of it with some arguments is called, if anything."""

ROLES = {"supervise": "supervisor", "--detach": "caller"}
"""By a word in its command: what keeps a detached run alive, and who has asked for that."""

passed = [0] * len(FAULTS)
lock = threading.Lock()


def who():
    """Name this process."""
    process = sys.modules.get("multiprocess.process")
    name = process.current_process().name if process is not None else "MainProcess"
    if name != "MainProcess":
        return name.removeprefix("dovetail-")
    return next((role for word, role in ROLES.items() if word in sys.orig_argv), "head")


def passing(point, path=None):
    """Count that a point is passed; do what is to happen there. Return what takes it back, if anything does."""
    due = []
    with lock:
        for at, fault in enumerate(FAULTS):
            if fault["at"] == point and fault["who"] == who() and (at == 0 or happened(at - 1)):
                passed[at] += 1
                if passed[at] == fault["nth"] and marked(str(at)):
                    due.append(DO[fault["do"]])
    undo = None
    for do in due:
        undo = do(path)
    return undo


def happened(at):
    return os.path.exists(os.path.join(MARKS, str(at)))


def marked(name):
    """Leave a mark; return whether it is the first."""
    try:
        fd = os.open(os.path.join(MARKS, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    os.write(fd, f"{os.getpid()}\n".encode())
    os.fsync(fd)
    os.close(fd)
    return True


def send(number):
    def to_myself(_):
        os.kill(os.getpid(), number)

    return to_myself


def kill_parent(_):
    """Kill who has started this process: where a run is detached, its supervisor, and this process with it."""
    parent = os.getppid()
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        os.sched_yield()


def cut(path):
    """Lose the second half of a file."""
    os.truncate(path, os.path.getsize(path) // 2)


def flip(path):
    """Change one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 8]))


def no_room(_):
    """Let no file grow beyond some bytes, until the function that was to be called is left."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


def raises(_):
    raise OSError(5, "Input/output error")


DO = {
    "SIGKILL": send(signal.SIGKILL),
    "SIGSTOP": send(signal.SIGSTOP),
    "SIGINT": send(signal.SIGINT),
    "SIGTERM": send(signal.SIGTERM),
    "kill parent": kill_parent,
    "segfault": lambda _: ctypes.string_at(0),
    "stuck": lambda _: ctypes.PyDLL(None).sleep(30),  # with the interpreter's lock
    "cut": cut,
    "flip": flip,
    "no room": no_room,
    "EIO": raises,
}


def wrapped(real, name_of):
    @functools.wraps(real)
    def call(*args, **kwargs):
        point = name_of(*args, **kwargs) if real.__name__ != "write_whole" else name_of(*args[:2])
        if point is None:
            return real(*args, **kwargs)
        paths = [a for a in args if isinstance(a, str) and "/" in a]
        undo = passing(point, paths[-1] if paths else None)
        try:
            result = real(*args, **kwargs)
        finally:
            if undo is not None:
                undo()
        passing(f"{point} done", paths[-1] if paths else None)
        return result

    return call


def install(module, places):
    for owner, name, name_of in places:
        where = getattr(module, owner) if owner else module
        setattr(where, name, wrapped(getattr(where, name), name_of))
    if module.__name__.endswith("engine.processes"):
        real = module.Processes._board

        def board(self, name):
            with open(os.path.join(MARKS, "boards"), "a") as file:
                file.write(f"sm_{name}\n")
            return real(self, name)

        module.Processes._board = board
    if module.__name__.endswith("engine.keeper") and os.environ.get("FAULTS_STEADY"):
        module.Keeper.poll = module.Keeper.wait
    if module.__name__.endswith("engine.worker"):
        from multiprocessing import resource_tracker

        resource_tracker.unregister = wrapped(resource_tracker.unregister, plain("unregister board"))


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules as they would be found without it, and wraps what is in them."""

    def find_spec(self, fullname, path, target=None):
        room = fullname.removeprefix("dovetail.")
        if room == fullname or room not in WRAPPED:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None and finder is not self else None
            if spec is not None:
                spec.loader = Loader(spec.loader, WRAPPED[room])
                return spec
        return None


class Loader(importlib.abc.Loader):
    """Loads a module as another loader does, and wraps what is in it."""

    def __init__(self, real, places):
        self.real, self.places = real, places

    def create_module(self, spec):
        return self.real.create_module(spec)

    def exec_module(self, module):
        self.real.exec_module(module)
        install(module, self.places)


if MARKS:
    import faulthandler

    faulthandler.register(signal.SIGUSR2, all_threads=True)  # a test that waits in vain asks where everybody is
    sys.meta_path.insert(0, Finder())
