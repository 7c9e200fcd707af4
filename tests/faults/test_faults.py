"""Faults in real processes: killed, stopped, stuck, crashed, without room; results come once, and nothing is left.

The job is a script that knows nothing of the tests. Faults are put into its processes from outside (injection/), at
named points of the protocol, so that each comes where it is to come, every time. After each the script is started again
until it finishes, as a user would, or a service manager. A few cases run always; the whole matrix (`make faults`) puts
a kill at every point.
"""

import os
import re
import signal
from pathlib import Path

import pytest
from faults.harness import Detached, Run, World, fault

WHOLE = os.environ.get("DOVETAIL_FAULTS") == "all"
pytestmark = pytest.mark.slow

DISK = [
    *(f"{what} {kind}{done}" for kind in ("rows", "state", "manifest") for what in ("create", "sync", "rename")
      for done in ("", " done")),
    "sync part", "sync_folder folder", "sync_folder folder done", "write shown", "write shown done", "read rows",
    "read state", "sweep", "sweep done", "remove rows", "remove state", "remove manifest", "remove manifest done",
]  # fmt: skip
SINK = ["create part", "complete part", "complete part done", "stage", "prepare", "prepare done", "rename part",
        "rename part done", "announce", "announce done"]  # fmt: skip
STEPS = ["read", "deal", "deal done", "begin", "checkpoint", "checkpoint done", "durable", "durable done"]
BEGIN = ["open", "take folder", "take folder done", "start", "start done", "start workers done", "create lineage",
         "create lineage done", "open done"]  # fmt: skip
END = ["last checkpoint", "last checkpoint done", "close", "stop", "send stop", "send stop done", "stop done",
       "close sink", "remove_folder staging", "close sink done", "close done", "leave folder", "leave folder done"]
RESTORE = ["load", "load done", "restore", "restore done", "resume", "resume done", "go on", "go on done", "open join",
           "open join done", "open done", "deal"]  # fmt: skip
WORKER = ["up", "up done", "board", "unregister board", "unregister board done", "board done", "hello", "hello done",
          "step", "step done", "answer", "answer done", "told to stop", "told to stop done"]  # fmt: skip

EARLY = ["create state done", "rename manifest", "create lineage done", "deal done"]
"""Points before the first checkpoint is made, but for the last."""

KILLS = [
    *(fault("head", at, nth) for at in DISK + SINK + STEPS for nth in (1, 4, 9)),
    *(fault("head", at) for at in BEGIN),
    *(fault("head", at, nth) for at in END for nth in (1, 2, 3, 4)
      if nth == 1 or at == "remove_folder staging"
      or (nth == 2 and at in ("send stop", "close sink", "close sink done"))),
    *(fault(f"worker-{n}", at, nth) for n in (0, 1) for at in WORKER for nth in (1, 3, 8)
      if nth == 1 or at.split()[0] in ("step", "answer")),
]  # fmt: skip
AGAIN = [
    [before, fault(who, at, nth)]
    for before in (fault("head", "begin", 7), fault("worker-1", "step", 14))
    for who, at, nth in [
        *(("head", at, nth) for at in RESTORE for nth in (1, 2)
          if nth == 1 or at in ("restore", "resume", "go on", "open join", "deal")),
        *(("worker-0", at, nth) for at in ("store again", "store again done") for nth in (1, 2)),
        ("worker-1", "hello", 1), ("worker-1", "up", 1), ("head", "read", 3), ("worker-0", "answer", 2),
    ]
] + [[fault("head", at), fault("head", "begin", 7)] for at in EARLY]  # fmt: skip
"""A second fault, while a run goes on in another process, or by another attempt in the same one."""

CRASHES = [fault(who, at, nth, "segfault") for who, at, nth in [
    ("worker-1", "answer", 9), ("worker-0", "board done", 1), ("head", "deal", 6),
    ("head", "announce", 5),
]]  # fmt: skip
SILENCES = [fault("worker-1", at, nth, do) for at, nth, do in [
    ("answer", 5, "SIGSTOP"), ("step done", 4, "SIGSTOP"), ("answer", 9, "stuck"), ("step", 1, "stuck"),
    ("hello done", 1, "SIGSTOP"), ("told to stop", 1, "SIGSTOP"),
]]  # fmt: skip
PAUSES = [fault(who, at, nth, "SIGSTOP") for who, at, nth in [
    ("worker-0", "answer", 8), ("worker-1", "up", 1), ("worker-1", "told to stop", 1), ("head", "deal", 7),
    ("head", "durable", 3),
]]  # fmt: skip
ROOM = [
    *(fault("head", f"write {kind}", nth, "no room") for kind in ("rows", "state", "manifest") for nth in (1, 5)),
    *(fault("head", "complete part", nth, "no room") for nth in (1, 5)),
    *(fault("head", f"{what} {kind}{done}", 4, "EIO") for kind in ("rows", "state", "manifest")
      for done in ("", " done") for what in ("create", "sync", "rename")),
    *(fault("head", at, nth, "EIO") for nth in (1, 4) for at in (
        "sync part", "rename part", "rename part done", "sync_folder folder", "sync_folder folder done", "write shown",
        "write shown done", "read rows", "read state", "remove rows", "remove manifest", "sweep done")),
    *(fault("head", "remove_folder staging", nth, "EIO") for nth in (1, 2, 3, 4)),
]  # fmt: skip
"""Operations that fail once. What is there afterwards is as the operation left it: done, or not."""

HALF = [
    [fault("head", at, after, "EIO"), fault("head", then, nth)]
    for at, after in (("rename manifest done", 5), ("write shown", 5), ("sync_folder folder", 40))
    for then, nth in [("rename rows done", 1), ("rename state", 1), ("resume done", 1), ("resume done", 2),
                      ("rename state done", 1), ("create part", 1)]
]  # fmt: skip
"""A checkpoint that is there although making it failed, and then a kill while the next attempt goes on."""

TORN = [fault("head", f"sync {kind} done", nth, do) for kind in ("rows", "state", "manifest") for nth in (2, 3, 6)
        for do in ("cut", "flip")]  # fmt: skip
STOPS = [fault("head", at, nth, do) for do in ("SIGINT", "SIGTERM") for at, nth in [
    ("read", 15), ("deal", 9), ("begin", 4), ("checkpoint done", 3), ("announce", 6), ("last checkpoint", 1),
    ("open join", 1), ("start workers done", 1), ("rename part", 3),
]]  # fmt: skip
DETACHED = [
    *(fault("head", at, nth) for at, nth in [
        ("up", 1), ("up done", 1), ("serve", 1), ("take folder", 1), ("trail", 1), ("trail done", 1), ("open done", 1),
        ("deal", 5), ("begin", 4), ("rename manifest done", 4), ("write shown done", 3), ("rename part done", 3),
        ("last checkpoint", 1), ("last checkpoint done", 1), ("close done", 1), ("leave folder", 1), ("serve done", 1),
        ("end job", 1), ("end job done", 1), ("release job done", 1)]),
    *(fault("head", at, nth, "kill parent") for at, nth in [
        ("up", 1), ("up done", 1), ("trail done", 1), ("open done", 1), ("deal", 5), ("begin", 4), ("rename part", 3),
        ("durable", 3), ("last checkpoint done", 1), ("end job", 1), ("end job done", 1)]),
    *(fault("supervisor", at) for at in (
        "claim", "forget", "forget done", "claim done", "look", "look done", "attempt", "attempt done", "release job",
        "release job done")),
    *(fault("caller", at) for at in ("detach", "forget", "forget done", "detach done")),
    fault("worker-0", "answer", 9), fault("worker-1", "answer", 7, "kill parent"),
    fault("head", "deal", 6, "segfault"), fault("head", "announce", 5, "segfault"),
    fault("head", "open done", 1, "SIGSTOP"), fault("head", "deal", 7, "SIGSTOP"), fault("head", "read", 9, "stuck"),
    *([fault("head", "begin", 5), again] for again in (
        fault("supervisor", "attempt done"), fault("supervisor", "look"), fault("supervisor", "look done"),
        fault("supervisor", "attempt"), fault("head", "up"), fault("head", "trail"), fault("head", "trail done"),
        fault("head", "open done"), fault("head", "begin", 2), fault("head", "restore", 2, "kill parent"),
        fault("worker-1", "store again"))),
]  # fmt: skip
"""A run that a supervisor keeps alive; `kill parent` kills that, or where a worker does it, the run."""

FEW = [
    fault("head", "rename rows", 5), fault("head", "rename manifest done", 4),
    fault("head", "rename part done", 3), fault("head", "remove_folder staging", 1),
    fault("worker-0", "unregister board"), fault("worker-1", "answer", 12),
]  # fmt: skip


def said(faults):
    faults = faults if isinstance(faults, list) else [faults]
    return ", then ".join(f"{each['who']} {each['do']} at {each['at']} {each['nth']}" for each in faults)


@pytest.fixture
def run(tmp_path, request, record_property):
    made = []

    def make(*faults, how=Run, **settings):
        made.append(how(tmp_path, faults, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
        what = ", then ".join(f"{f['do']} of {f['who'].partition('-')[0]} at {f['at']}" for f in each.faults)
        record_property("fault", (what or request.node.originalname.removeprefix("test_"), each.how()))


LAYOUTS = ["copies", "range", "auto"]


def cases(faults, few):
    """All cases, or a few of them; each with one of the layouts."""
    chosen = faults if WHOLE else few
    return pytest.mark.parametrize(
        ("faults", "layout"),
        [pytest.param(each if isinstance(each, list) else [each], LAYOUTS[at % 3], id=said(each))
         for at, each in enumerate(chosen)],
    )  # fmt: skip


@cases(KILLS, FEW)
def test_a_kill_anywhere(run, faults, layout):
    job = run(*faults, layout=layout)
    job.finish()
    job.check()


@cases(AGAIN, [AGAIN[4], AGAIN[-4]])
def test_a_kill_while_it_goes_on(run, faults, layout):
    job = run(*faults, layout=layout)
    job.finish()
    job.check()


@cases(CRASHES, CRASHES[:1])
def test_native_code_that_crashes(run, faults, layout):
    job = run(*faults, layout=layout)
    job.finish()
    job.check()


@cases(SILENCES, SILENCES[2:3])
def test_a_worker_that_falls_silent_is_replaced(run, faults, layout):
    job = run(*faults, layout=layout, options={"silence_seconds": 1.0})
    job.finish(starts=1)
    job.check()


@cases(PAUSES, PAUSES[:1])
def test_who_is_stopped_for_a_moment_goes_on(run, faults, layout):
    job = run(*faults, layout=layout)
    process = job.start()
    os.kill(job.wait_for_stop(), signal.SIGCONT)
    assert job.ended(process) == 0
    job.check()
    assert job.how() == {"attempts": 0, "starts": 0}


@cases(ROOM, [ROOM[1]])
def test_what_fails_once_is_got_over(run, faults, layout):
    """Within the run; or at its beginning, where an error says what to do, by starting again."""
    job = run(*faults, layout=layout)
    job.finish(starts=2, errors=("CheckpointError", "SinkError"))
    job.check()


@cases(HALF, [HALF[2]])
def test_a_checkpoint_that_is_there_though_making_it_failed(run, faults, layout):
    job = run(*faults, layout=layout)
    job.finish(starts=2)
    job.check()


@cases(TORN, [TORN[1]])
def test_a_torn_file_makes_no_checkpoint(run, faults, layout):
    job = run(*faults, layout=layout)
    job.finish(starts=1)
    job.check()
    assert job.how()["attempts"] == 1


@cases(STOPS, [STOPS[0]])
def test_a_stop_anywhere_can_be_gone_on_from(run, faults, layout):
    job = run(*faults, layout=layout)
    job.finish()
    job.check()


@cases(DETACHED, [DETACHED[8], DETACHED[24]])
def test_a_detached_job_that_loses_any_of_its_processes(run, faults, layout):
    """It goes on by itself, unless that was the supervisor, or who has asked for it."""
    job = run(*faults, layout=layout, how=Detached)
    job.finish()
    job.check()
    if all(each["who"] not in ("supervisor", "caller") and each["do"] != "kill parent" for each in faults):
        assert job.how()["starts"] == 0


@pytest.fixture
def world():
    """Makes a small file system somewhere, where that is permitted."""
    made = []

    def make(where, size):
        where.mkdir(parents=True, exist_ok=True)
        made.append(World(where, size))
        if made[-1].problem:
            pytest.skip(f"no file system of one's own: unshare says {made[-1].problem}")
        return made[-1]

    yield make
    for each in made:
        each.close()


FULL = [
    ("state", "90k", "CheckpointError: checkpoint [0-9]+ cannot be written to '.*state': No space left on device; "
                     "make room there, or give another folder"),
    ("out", "60k", r"SinkError: .* No space left on device \(ENOSPC\), while .* Put it right, or give another folder"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "size", "says"), FULL if WHOLE else FULL[:1])
def test_a_disk_that_is_full(run, world, where, size, says):
    job = run(layout="copies")
    job.world = world(job.place / where, size)
    said = job.fails()
    assert re.search(says, said), said
    assert "This was the 4th attempt that came no further, from checkpoint" in said
    job.world.resize("50m")
    job.finish(starts=2)
    job.check()


SMALL = [("8k", "FlowError: .*: full windows need at least .* and 8,192 are free; make /dev/shm larger"),
         ("20k", r"TransportError: join '.*do not fit the shared memory of this machine: [0-9,]+ bytes could be had"),
         ("1m", None)]  # fmt: skip


@pytest.mark.parametrize(("size", "says"), SMALL if WHOLE else SMALL[2:])
def test_shared_memory_that_is_full(run, world, size, says):
    """A little of it is enough; with less the error says what to make larger."""
    job = run(layout="range")
    job.world = world(Path("/dev/shm"), size)
    if says is not None:
        said = job.fails()
        assert re.search(says, said), said
        job.world.resize("50m")
    job.finish(starts=2)
    job.check()


POISONS = [
    ("map", r"UserFunctionError: map 'careful': .*777 is poison"),
    ("udf", r"WorkerError: .*worker [01] \(process [0-9]+, core [0-9]+\) died of signal 11 \(SIGSEGV\) while"),
]


@pytest.mark.parametrize(("poison", "says"), POISONS if WHOLE else POISONS[1:])
def test_a_poison_record_is_given_up_and_named(run, poison, says):
    """After four attempts; when it is harmless a start goes on from there, and needs no other."""
    job = run(layout="copies")
    said = job.fails(poison=poison)
    assert re.search(says, said), said
    assert re.search(r"4th attempt that came no further, from checkpoint [0-9]+ on \(rows [0-9,]+ to .* 'one'", said)
    assert job.attempts == 4
    job.finish(starts=2)
    job.check()
    assert job.attempts == 5


def test_an_arena_that_is_full_is_waited_for(run):
    """It has room for little more than the windows."""
    job = run(layout="copies", options={"arena_bytes": 16_384})
    job.finish(starts=1)
    job.check()
    assert job.attempts == 1


@pytest.mark.skipif(not WHOLE, reason="it takes its time")
def test_a_slow_sink_only_takes_longer(run):
    job = run(layout="range", slow=8)
    job.finish(starts=1)
    job.check()
    assert job.attempts == 1


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGED = ["checkpoint", "state", "rows"]


@pytest.mark.parametrize("what", DAMAGED if WHOLE else DAMAGED[1:2])
def test_a_damaged_checkpoint_is_refused_by_name_and_can_be_passed_over(run, what):
    """The newest checkpoint loses a bit; its manifest is deleted by hand, as the message says."""
    job = run(fault("head", "begin", 9), layout="copies")
    assert job.ended(job.start()) == -signal.SIGKILL
    newest = max((job.place / "state").glob("checkpoint-*.json"))
    number = newest.stem.partition("-")[2]
    damage(newest if what == "checkpoint" else max((job.place / "state").glob(f"{what}-{number}*.part")))
    said = job.fails()
    found = re.search(r"CheckpointError: checkpoint=.* delete '(checkpoint-[0-9]+.json)' to go on from", said)
    assert found is not None, said
    assert found[1] == newest.name
    newest.unlink()
    job.finish(starts=3)
    job.check()
