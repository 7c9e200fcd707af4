"""A world in which a run lives: one seed decides when anything happens, and what goes wrong.

The code that runs is the product's own: sources, order, joins, cells, channels, checkpoints, sinks. Of the world around
it everything is made here: time, disk, network, worker processes, and the thread that writes checkpoints. Whenever the
run looks at the clock, waits, sends, or touches the disk, the world moves on: messages arrive, workers do a piece of
their work, a checkpoint is written a step further, and sometimes a fault happens.

What may go wrong
-----------------
- the process of the run dies, at any such point; or the whole machine does, and what was not made durable is lost, in
  part or whole, contents and names apart;
- a worker dies, stands still for a while or for good;
- a message is lost, comes twice, late, or before an earlier one, or one of an earlier attempt comes now; a worker is
  cut off;
- the disk is full; a file is torn while it is written; a bit of a durable file flips.

A fault is only a fault once: a world has a budget of them, and when it is used up everything goes well, so that every
run must end.
"""

import contextlib
import errno
import random
import zlib
from collections import deque
from dataclasses import dataclass, field

import zmq
from dovetail.disk import LockedError
from dovetail.engine import codec, worker
from dovetail.engine.watch import Beat
from dovetail.transport import Channel


class Crash(BaseException):
    """The process is gone. Whoever catches it and goes on meets it again at the next thing it touches."""


FAULTS = (
    "crash", "crash", "power", "worker", "freeze", "drop", "twice", "late", "swap", "cut", "ghost", "full", "torn",
)  # fmt: skip


class Hang(AssertionError):
    """Nothing happens any more."""


MOST_SECONDS = 2000.0
"""Of virtual time, for one start: more is a hang."""

MOST_POINTS = 200_000
"""At which something could happen, for one start."""


class World:
    """Time, chance, and what there is."""

    def __init__(self, seed, *, faults=FAULTS, most=6):
        self.rng = random.Random(seed)
        self.now = 0.0
        self.faults = faults
        self.budget = self.rng.randint(1, most) if faults else 0
        self.every = self.rng.choice([25, 80, 240, 800])  # points between two faults, about
        self.happened = []  # (time, fault, where)
        self.since_start = 0  # faults
        self.dead = False
        self.ghosts = {}  # (edge, direction): messages of earlier attempts
        self.next_message = deque()  # what happens to the next messages that are sent
        self.machinery = []  # what else moves: worker processes, the thread that writes checkpoints
        self.disk = Disk(self)

    def note(self, fault, where):
        self.happened.append((round(self.now, 4), fault, where))
        self.since_start += 1

    def start(self):
        """A process begins."""
        self.dead, self.since_start, self.machinery = False, 0, []
        self.ends, self.points = self.now + MOST_SECONDS, 0
        self.next_message.clear()
        self.disk.locked.clear()

    def clock(self):
        self.move("clock")
        return self.now

    def pause(self, seconds):
        until = self.now + seconds
        while self.now < until:
            self.move("pause", until)

    def move(self, where, until=None):
        """Let something happen. If nothing can, time passes until something does."""
        self.point(where)
        chance = self.rng.random
        self.now += chance() * 0.002
        for each in list(self.machinery):
            if chance() < 0.7:
                each.move()
        if until is None:
            return
        for each in self.machinery:
            if each.busy:
                return
            time = each.next_time
            if time is not None and time < until:
                until = time
        self.now = max(self.now, until)

    def point(self, where):
        """Here the process may die, and here faults are decided."""
        if self.dead:
            raise Crash
        self.points += 1
        if self.now > self.ends or self.points > MOST_POINTS:
            self.dead = True
            raise Hang(f"after {self.points} points, {self.now:.0f} s")
        if self.budget and self.rng.random() < 1 / self.every:
            self.budget -= 1
            self.fault(self.rng.choice(self.faults), where)

    def fault(self, kind, where):
        if kind in ("crash", "power"):
            self.note(kind, where)
            self.die(power=kind == "power")
        if kind in ("worker", "freeze", "cut"):
            workers = [each for each in self.machinery if isinstance(each, Worker) and each.alive]
            if workers:
                self.note(kind, where)
                self.rng.choice(workers).harm(kind)
        elif kind in ("full", "torn"):
            self.disk.next_write = kind
        else:
            self.next_message.append(kind)

    def die(self, *, power):
        self.dead = True
        if power:
            self.disk.lose_power()
        raise Crash


# The disk ----------------------------------------------------------------------------------------------------------


@dataclass
class File:
    """Contents, as they are and as they would be after a loss of power."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


class Disk:
    """The file system, as `dovetail.disk.Disk`: names that are not synced may be lost one by one."""

    is_shared = False

    def __init__(self, world):
        self.world = world
        self.files = {}  # path: File
        self.durable = {}  # as it is after a loss of power
        self.folders = set()
        self.pending = []  # (new path or None, old path or None, File): changes of names that are not durable
        self.locked = set()
        self.next_write = None  # what happens to it

    def create(self, path):
        self.world.point(f"create {path}")
        if path in self.files:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self.files[path] = File()
        self.pending.append((path, None, self.files[path]))
        return Open(self, path)

    def put(self, path, data):
        """Append to a file; whatever is to happen to a write happens here."""
        self.world.point(f"append {path}")
        file, wrong = self.files[path], None
        if self.next_write is not None and len(data) > 1:
            wrong, self.next_write = self.next_write, None
            self.world.note(wrong, path)
        if wrong == "full":
            file.data += bytes(data)[: len(data) // 2]
            raise OSError(errno.ENOSPC, "No space left on device", path)
        if wrong == "torn" and path.startswith("/sim/state"):  # what is read back is not what was written
            damaged = bytearray(data)
            damaged[self.world.rng.randrange(len(damaged))] ^= 1 << self.world.rng.randrange(8)
            data = damaged
        file.data += bytes(data)

    def sync(self, path):
        self.world.point(f"sync {path}")
        self.files[path].durable = bytes(self.files[path].data)

    def sync_folder(self, path):
        self.world.point(f"sync folder {path}")
        mine = [change for change in self.pending if any(name and parent(name) == path for name in change[:2])]
        self.pending = [change for change in self.pending if change not in mine]
        for change in mine:
            self.settle(change)

    def settle(self, change):
        new, old, file = change
        if old is not None:
            self.durable.pop(old, None)
        if new is not None:
            self.durable[new] = file

    def rename(self, old, new):
        self.world.point(f"rename {old} to {new}")
        self.files[new] = self.files.pop(old)
        self.pending.append((new, old, self.files[new]))

    def link(self, old, new):
        self.world.point(f"link {old} to {new}")
        self.files[new] = self.files[old]
        self.pending.append((new, None, self.files[new]))

    def remove(self, path):
        self.world.point(f"remove {path}")
        if path in self.files:
            self.pending.append((None, path, self.files.pop(path)))

    def remove_folder(self, path):
        for each in [name for name in self.files if name.startswith(path + "/")]:
            self.remove(each)
        self.folders.discard(path)

    def make_folder(self, path):
        self.folders.add(path)

    def names(self, path):
        self.world.point(f"list {path}")
        inside = [name.removeprefix(path + "/") for name in [*self.files, *self.folders] if name.startswith(path + "/")]
        return sorted({name.partition("/")[0] for name in inside})

    def exists(self, path):
        return path in self.files or path in self.folders or any(name.startswith(path + "/") for name in self.files)

    def read(self, path):
        self.world.point(f"read {path}")
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return bytes(self.files[path].data)

    def measure(self, path):
        data = self.read(path)
        return len(data), zlib.crc32(data)

    def map(self, path):
        return memoryview(self.read(path))

    def lock(self, path):
        if path in self.locked:
            raise LockedError(path)
        self.locked.add(path)
        return lambda: self.locked.discard(path)

    def lose_power(self):
        """Keep what is durable; of the rest, whatever chance leaves."""
        rng = self.world.rng
        for change in self.pending:
            if rng.random() < 0.5:
                self.settle(change)
        self.pending, self.next_write = [], None
        self.files = dict(self.durable)
        for file in {id(file): file for file in self.files.values()}.values():
            if bytes(file.data) != file.durable:
                cut = rng.randint(0, len(file.data))
                left = [file.durable, file.data[:cut], bytes(file.data), file.data[:cut] + bytes(len(file.data) - cut)]
                file.data = bytearray(rng.choice(left))
            file.durable = bytes(file.data)

    def flip(self, path):
        """Flip a bit of a file."""
        file = self.files[path]
        file.data[self.world.rng.randrange(len(file.data))] ^= 1 << self.world.rng.randrange(8)
        file.durable = bytes(file.data)


def parent(path):
    return path.rpartition("/")[0]


class Open:
    """A file that is open for writing."""

    def __init__(self, disk, path):
        self.disk, self.path = disk, path

    def write(self, data):
        self.disk.put(self.path, memoryview(data).cast("B"))

    def tell(self):
        return len(self.disk.files[self.path].data)

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Saver:
    """The thread that writes checkpoints, as `keeper.Saver`: it moves when the world does."""

    next_time = None

    def __init__(self, world):
        self.world, self.steps, self.error = world, None, None

    def rest(self):
        pass

    def hurry(self):
        pass

    def start(self, steps):
        self.steps, self.error = steps, None
        if self not in self.world.machinery:
            self.world.machinery.append(self)

    @property
    def busy(self):
        return self.steps is not None

    def move(self):
        if self.steps is None:
            return
        try:
            next(self.steps)
        except StopIteration:
            self.steps = None
        except Crash:
            raise
        except Exception as error:  # noqa: BLE001 - it is raised where somebody waits for it
            self.steps, self.error = None, error

    def done(self, *, wait):
        while wait and self.steps is not None:
            self.world.move("saving")
        if self.steps is not None:
            return False
        if self.error is not None:
            raise self.error
        return True

    def abandon(self):
        while self.steps is not None and not self.world.dead:
            self.move()


# The network -------------------------------------------------------------------------------------------------------


@dataclass(order=True)
class Letter:
    at: float
    frames: list = field(compare=False)


@dataclass
class Frame:
    bytes: bytes
    more: bool

    @property
    def buffer(self):
        return self.bytes


class Line:
    """One direction of an edge: in order and without loss, but for faults."""

    def __init__(self, world, name):
        self.world, self.name, self.letters, self.cut_until = world, name, deque(), 0.0
        self.sent = deque(maxlen=20)
        self.broken = False  # nobody is at the other end

    def send(self, frames):
        world = self.world
        if self.broken:
            if world.rng.random() < 0.5:
                raise AGAIN.with_traceback(None)
            return
        kind = world.next_message.popleft() if world.next_message else None
        at = max([world.now + world.rng.random() * 0.003, *(letter.at for letter in self.letters), self.cut_until])
        if kind is not None:
            world.note(kind, "message")
        if kind == "drop":
            return
        if kind == "ghost" and world.ghosts.get(self.name):
            self.letters.append(Letter(at, world.rng.choice(world.ghosts[self.name])))
        self.sent.append(frames)
        if kind == "late":
            at += world.rng.choice([0.5, 3.0])
        self.letters.append(Letter(at, frames))
        if kind == "twice":
            self.letters.append(Letter(at, frames))
        if kind == "swap" and len(self.letters) > 1:
            self.letters[-1], self.letters[-2] = self.letters[-2], self.letters[-1]

    @property
    def ready(self):
        letters = self.letters
        return bool(letters) and letters[0].at <= self.world.now

    @property
    def next_time(self):
        return self.letters[0].at if self.letters else None


AGAIN = zmq.Again()
"""Made once: the library looks for its words each time."""

SNDMORE = int(zmq.SNDMORE)


class Socket:
    """What a channel has of ZeroMQ."""

    def __init__(self, sends, receives):
        self.sends, self.receives = sends, receives
        self.coming = deque()  # frames of a message that is being read
        self.going = []  # of one that is being sent

    def send(self, frame, flags=0, copy=True):
        self.going.append(bytes(frame))
        if not flags & SNDMORE:
            frames, self.going = self.going, []
            self.sends.send(frames)

    def recv(self, flags=0, copy=False):
        if not self.coming:
            if not self.receives.ready:
                raise AGAIN.with_traceback(None)
            self.coming += self.receives.letters.popleft().frames
        return Frame(self.coming.popleft(), bool(self.coming))

    def close(self):
        pass


# Workers -----------------------------------------------------------------------------------------------------------


class Worker:
    """A worker process: the product's loop over a line each way."""

    def __init__(self, world, number, parts, out_rows, job, generation):
        self.world = world
        self.inbox, self.outbox = Line(world, (number, "in")), Line(world, (number, "out"))
        self.head = Channel(Socket(self.inbox, self.outbox), job=job, generation=generation, edge=number)
        self.channel = Channel(Socket(self.outbox, self.inbox), job=job, generation=generation, edge=number)
        self.loop = worker.Loop(self.channel, parts, out_rows, number)
        self.alive, self.frozen_until, self.failed = True, 0.0, False
        self.channel.send(codec.HELLO, {"pid": number})

    @property
    def can_move(self):
        """There is something to do, and it is able to."""
        if not self.alive or self.failed or self.world.now < self.frozen_until:
            return False
        return self.inbox.ready or self.loop.can_go_on

    @property
    def busy(self):
        return self.outbox.ready or self.can_move

    @property
    def next_time(self):
        times = [self.outbox.next_time]
        if self.alive and not self.failed:
            times += [self.inbox.next_time, self.frozen_until if self.frozen_until > self.world.now else None]
        return min((time for time in times if time is not None), default=None)

    def move(self):
        if not self.can_move:
            return
        try:
            if not self.loop.turn(self.channel.receive()):
                self.end()
        except Crash:
            raise
        except Exception as error:  # noqa: BLE001 - the other side is told, as by a real worker
            self.failed = True
            with contextlib.suppress(Exception):
                worker.tell(self.channel, error)

    def harm(self, kind):
        rng = self.world.rng
        if kind == "worker":
            self.end()
        elif kind == "freeze":
            self.frozen_until = self.world.now + rng.choice([0.5, 5.0, 1e9])
        else:
            until = self.world.now + rng.choice([0.5, 1e9])
            rng.choice([self.inbox, self.outbox]).cut_until = until

    def end(self):
        self.alive = False
        self.inbox.broken = True

    def beat(self):
        return Beat(int(self.world.now * 10) if self.alive and self.world.now >= self.frozen_until else -1, False)


class Launcher:
    """What `processes.Processes` is for real workers."""

    arena = None

    def __init__(self, world, count, options):
        self.world, self.count, self.options = world, count, options
        self.workers, self.channels = [], []

    def start(self, parts, *, job, generation):
        for number in range(self.count):
            self.workers.append(Worker(self.world, number, parts, self.options.out_rows, job, generation))
        self.channels = [each.head for each in self.workers]
        self.world.machinery += self.workers

    def wait(self, seconds):
        until = self.world.now + max(0.001, seconds)
        while True:
            self.world.move("wait", until)
            if any(each.outbox.ready for each in self.workers):
                return True
            if self.world.now >= until or self.dead() is not None:
                return False

    def dead(self):
        return next((number for number, each in enumerate(self.workers) if not each.alive), None)

    def gone(self, number):
        return not self.workers[number].alive

    def beats(self):
        return [each.beat() for each in self.workers]

    def kill(self, number):
        self.workers[number].end()

    def name(self, number):
        return f"worker {number}"

    def was_killed(self, number):
        return True

    def obituary(self, number):
        return "died in a simulation"

    def stop(self, *, kill):
        for each in self.workers:
            if each in self.world.machinery:
                self.world.machinery.remove(each)
            each.end()
            for line in (each.inbox, each.outbox):
                self.world.ghosts.setdefault(line.name, []).extend(line.sent)
        return []
