"""A folder for each run, in memory: arenas, sockets, and what workers write to stderr. Nothing of it outlives the run.

Problem: a run that is killed, with all its processes, leaves files in /dev/shm, which is the machine's memory. Idea: a
run's folder has a file that the run keeps locked. The kernel lets go of the lock when the process is gone, however it
went; so whoever starts next takes each lock that can be had and removes that folder.
"""

__all__ = ["RunFolder", "free_bytes", "remove_segment", "reserve", "sweep"]

import fcntl
import os
import shutil
import tempfile
import uuid
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

from ..errors import TransportError

BOARDS = "boards"


def root() -> Path:
    """Return where the folders of this user's runs stand.

    `DOVETAIL_RUNS` names another place; a short path, as sockets stand there.
    """
    if place := os.environ.get("DOVETAIL_RUNS"):
        return Path(place)
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    return base / f"dovetail-{os.getuid()}"


def free_bytes() -> int:
    """Return how many bytes are free where the folders of runs stand."""
    where = root()
    found = os.statvfs(where if where.is_dir() else where.parent)
    return found.f_bavail * found.f_frsize


class RunFolder:
    """The folder of one run; a context manager that makes and removes it."""

    def __init__(self, where: Path | None = None) -> None:
        self.where = where or root()
        self.path = self.where / uuid.uuid4().hex[:12]
        self.lock: Any = None

    def __enter__(self) -> "RunFolder":
        self.where.mkdir(mode=0o700, exist_ok=True)
        if self.where.stat().st_uid != os.getuid():
            raise TransportError(f"{self.where} belongs to another user; remove it, or run as that user")
        sweep(self.where)
        self.path.mkdir(mode=0o700)
        # Under another name until it is locked: whoever sweeps now would take the lock, and remove the folder.
        self.lock = open(self.path / "lock.new", "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        os.rename(self.path / "lock.new", self.path / "lock")
        return self

    def note_board(self, name: str) -> None:
        """Remember a segment that the board's library made elsewhere, so that it is removed with the folder."""
        with open(self.path / BOARDS, "a") as file:
            file.write(name + "\n")

    def __exit__(self, *_: object) -> None:
        _remove(self.path)
        self.lock.close()


def sweep(where: Path | None = None) -> list[Path]:
    """Remove the folders of runs that are no more; return them."""
    where = where or root()
    gone = []
    for path in sorted(where.iterdir()) if where.is_dir() else []:
        try:
            with open(path / "lock", "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
                gone.append(path)
        except (BlockingIOError, FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue  # it runs, or is only just being made or removed, or is the folder of jobs, one of which is `lock`
    return gone


def _remove(path: Path) -> None:
    boards = path / BOARDS
    for name in boards.read_text().split() if boards.exists() else []:
        try:
            left = shared_memory.SharedMemory(name)
        except FileNotFoundError:
            continue
        remove_segment(left)
    shutil.rmtree(path, ignore_errors=True)


def reserve(path: Path, nbytes: int) -> None:
    """Make a file in memory that is there in full: where one only has a length, touching it on a full machine kills."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def remove_segment(segment: shared_memory.SharedMemory) -> None:
    """Remove a segment that was opened here, also if it is gone.

    Python starts a process that removes what a killed one had open (a worker that was only just coming up, or the run
    that is cleaned up after), and it may be first.
    """
    segment.close()
    try:
        segment.unlink()
    except FileNotFoundError:
        resource_tracker.unregister(f"/{segment.name}", "shared_memory")
