"""How results become files in a folder: staged aside, moved into place whole, one commit at a time.

The problem: somebody reads the folder while it is written, and the writer may die at any moment. Nobody may
ever see half a file, or a result that a failed run took back.

The idea: an epoch's rows are written under `.staging-<lineage>/`, which no reader of `*.parquet` or `*.csv`
enters. `commit` makes the files durable (fsync), renames them to `part-<epoch>-<number>.<extension>` in the
folder, and makes the renames durable (fsync of the folder). A rename within a file system is atomic, so a
file is there whole or not at all.

Invariants
----------
- Every file `part-*` in the folder is complete, and its rows are committed.
- A file lies in the staging folder or in the folder, never in both: committing again moves nothing twice.
- All files of a commit are complete and durable before the first of them is renamed.
- Only files that bear our name for a part are ever deleted, and only with `overwrite=True`, when the run
  opens the sink. A folder with anything else in it, except names that start with `.` or `_`, is refused.
- With checkpoints one `.lineage-*` says whose output it is, and is locked as long as that run lives. Output changes
  hands, durably, before the first part of it is taken back: who had it before would not know of the hole.
- The names of parts, sorted as texts, are in the order in which they were shown.
- A run that committed and had no rows leaves one file without rows, so that its schema can be read.

An epoch is one file, unless it passes `FILE_BYTES` or `FILE_ROWS`; the renames of an epoch of several files
follow each other at once, but a reader that lists the folder between two of them sees the first alone.
"""

__all__ = ["FolderWriter", "RowFile", "folder_problem"]

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from ..disk import TEMPORARY, Disk, LockedError, write_whole
from ..errors import SinkError

GROUP_ROWS = 1 << 20
"""Rows that are gathered before they are written: the size of a Parquet row group, Arrow's own default."""

GROUP_BYTES = 64 << 20
"""Bytes that are gathered at most, so that wide rows do not hold memory until there are `GROUP_ROWS`."""

FILE_ROWS = 4_000_000
"""Rows after which an epoch goes on in its next file: several readers can then share the work."""

FILE_BYTES = 128 << 20
"""Bytes after which it does; the block size that distributed file systems and Spark are tuned to."""

STAGING = ".staging-"

LINEAGE = ".lineage-"
"""A file that says whose output a folder holds, of a run that can be gone on with. A run that begins with a savepoint
has a lineage of its own, and the file says from which one it was taken over, up to which epoch: so that another
savepoint cannot go on in what was taken back meanwhile."""


class RowFile(Protocol):
    """What writes rows into an open file: a `ParquetWriter` or a `CSVWriter`."""

    def write_table(self, table: pa.Table) -> None:
        """Append rows."""

    def close(self) -> None:
        """Write what stands at the end of a file; the file itself stays open."""


def folder_problem(path: str, extension: str, overwrite: bool, *, may_go_on: bool = False) -> str:
    """Say why a new output cannot go into this folder, or return "". Looks, and changes nothing.

    `may_go_on`: the output of a run with checkpoints is no problem, as this run may go on with it.
    """
    if os.path.lexists(path) and not os.path.isdir(path):
        return f"{path!r} is a file, and the output is a folder of parts; give another path"
    if not os.path.isdir(path):
        return _parent_problem(path)
    if not os.access(path, os.W_OK | os.X_OK):
        return f"the folder {path!r} may not be written by this user; change its mode, or give another path"
    names = [name for name in sorted(os.listdir(path)) if name[0] not in "._"]
    foreign = [name for name in names if not _is_part(name, extension)]
    if foreign:
        return (
            f"the folder {path!r} holds {foreign[0]!r}"
            + (f" and {len(foreign) - 1} more" if foreign[1:] else "")
            + ", which this sink did not write and will not delete; give a folder of its own"
        )
    if may_go_on and any(name.startswith(LINEAGE) for name in os.listdir(path)):
        return ""
    if names and not overwrite:
        return (
            f"the folder {path!r} holds the output of another run ({names[0]!r}"
            + (f" and {len(names) - 1} more" if names[1:] else "")
            + "); pass overwrite=True or another folder"
        )
    return ""


def _parent_problem(path: str) -> str:
    """Say why a folder that does not exist cannot be made."""
    above = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        return f"{path!r} cannot be made, because {above!r} is not a folder; give another path"
    if not os.access(above, os.W_OK | os.X_OK):
        return f"{path!r} cannot be made, because this user may not write in {above!r}; give another path"
    return ""


def _is_part(name: str, extension: str) -> bool:
    return re.fullmatch(rf"part-[a-z]?\d{{6,}}-[a-z]?\d{{4,}}\.{extension}", name) is not None


def part_name(epoch: int, number: int, extension: str) -> str:
    """Name a part, so that names sorted as texts are in the order of their numbers: a letter tells how many digits.

    >>> part_name(7, 0, "csv"), part_name(1_000_000, 0, "csv"), part_name(70_000_000, 12_345, "csv")
    ('part-000007-0000.csv', 'part-a1000000-0000.csv', 'part-b70000000-a12345.csv')
    """

    def ordered(n: int, digits: int) -> str:
        more = len(str(n)) - digits
        return f"{n:0{digits}d}" if more <= 0 else f"{chr(ord('a') + more - 1)}{n}"

    return f"part-{ordered(epoch, 6)}-{ordered(number, 4)}.{extension}"


def _epoch_of(name: str) -> int:
    return int(name.split("-")[1].lstrip("abcdefghijklmnopqrstuvwxyz"))


class FolderWriter:
    """Writes the parts of one run.

    Parameters
    ----------
    path, extension
        The folder, and how the names of its parts end.
    new_file
        Makes a `RowFile` for this run's schema over a file that is open for writing.
    schema
        The schema of every batch.
    lineage
        Names the staging folder, so that two runs never stage into the same one.
    """

    stages_elsewhere = True

    def __init__(
        self,
        path: str,
        extension: str,
        new_file: Callable[[BinaryIO], RowFile],
        schema: pa.Schema,
        lineage: str,
        overwrite: bool,
        known: Any = None,
        disk: Disk | None = None,
    ) -> None:
        self._disk = Disk() if disk is None else disk
        self._lineage, self._outlives = lineage, known is not None
        self._path, self._extension, self._schema = path, extension, schema
        self._new_file = new_file
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", lineage):
            raise SinkError(
                f"{extension} sink {path!r}: the lineage {lineage!r} cannot be part of a file name; "
                f"use up to 64 letters, digits, '.', '_' and '-'"
            )
        self._staging = os.path.join(path, STAGING + lineage)
        self._waiting: list[pa.RecordBatch] = []  # rows of the open epoch that are in no file yet
        self._rows = self._bytes = 0  # of those
        self._epoch: int | None = None  # the open epoch; its file is `_part`, if it has one yet
        self._part: _Part | None = None
        self._number = 0  # of the open epoch's next file
        self._staged: list[tuple[int, str]] = []  # complete files that wait for their commit, in order
        self._committed: int | None = None
        self._files = 0  # that are in the folder
        self._unlock: Callable[[], None] | None = None  # lets go of the folder
        self._ancestors: list[Any] = []  # (lineage, epoch): whose output was taken over, up to where
        self._ended = False
        self._known = known
        if known:
            with self._errors("resuming", path):
                self._take_over(known)
                self._other_marks()
        else:
            self._begin(overwrite)

    def rewind(self, _epoch: int, _shown: int | None) -> None:
        """Go on from the checkpoint: what it has is shown, what came after it is taken back.

        Nothing was changed before: a run that cannot begin leaves what there is to whoever has it.
        """
        if self._known:
            self._resume(self._known)

    def _resume(self, known: Any) -> None:
        disk, folder = self._disk, self._path
        with self._errors("resuming", folder):
            self._files, self._committed = known["files"], known["committed"]
            wanted = {name: epoch for epoch, name in known["staged"]}
            last = max([known["epoch"], *wanted.values()])
            self._sign()
            taken = [n for n in disk.names(folder) if _is_part(n, self._extension) and _epoch_of(n) > last]
            for name in reversed(taken):  # the newest first: what is shown is always a beginning
                disk.remove(os.path.join(folder, name))
            if taken:
                disk.sync_folder(folder)  # else a loss of power could bring them back, and a later checkpoint own them
            shown = set(disk.names(folder))
            disk.make_folder(self._staging)
            before = os.path.join(folder, STAGING + known["lineage"])
            for name in sorted(set(disk.names(before)) & set(wanted)) if before != self._staging else ():
                disk.rename(os.path.join(before, name), os.path.join(self._staging, name))
            staged = set(disk.names(self._staging))
            for name in sorted(staged - set(wanted)):
                disk.remove(os.path.join(self._staging, name))
            for name, epoch in wanted.items():
                if name in shown:
                    self._files += 1
                elif name in staged:
                    self._staged.append((epoch, name))
                else:
                    raise SinkError(
                        f"{self._extension} sink {folder!r}: {name!r} was staged for epoch {epoch}, and is gone; the "
                        "output cannot be completed: begin anew in other folders"
                    )
            if shown & wanted.keys():
                disk.sync_folder(folder)  # whoever moved them there may have been killed before that
            self._remove_foreign_staging(self._lineage)

    def _take_over(self, known: Any) -> None:
        """Settle whose output this is; raise unless it holds what the checkpoint's run had written up to there."""
        disk, folder, origin, epoch = self._disk, self._path, known["lineage"], known["epoch"]
        marks = self._marks()
        if self._lineage in marks:
            self._ancestors = self._ancestors_of(self._lineage)
            return
        for mark in marks:
            line = [*self._ancestors_of(mark), [mark, None]]
            for at, (name, until) in enumerate(line):
                if name == origin and (until is None or until >= epoch):
                    self._ancestors = [*line[:at], [origin, epoch]]
                    return
                if name == origin:
                    raise SinkError(
                        f"{self._extension} sink: the folder {folder!r} was taken back to epoch {until} by a run that "
                        f"began with an earlier savepoint, and this one needs what came up to epoch {epoch}; begin "
                        "with that savepoint again, or anew in other folders"
                    )
        what = "is gone" if not disk.exists(folder) else "holds the output of another run"
        raise SinkError(
            f"{self._extension} sink: the folder {folder!r} {what}, and the checkpoint wants to go on in what "
            "this run has written there; put it back, or begin anew in another checkpoint folder"
        )

    def _marks(self) -> list[str]:
        names = [name for name in self._disk.names(self._path) if name.startswith(LINEAGE)]
        return [name.removeprefix(LINEAGE) for name in names if not name.endswith(TEMPORARY)]

    def _ancestors_of(self, lineage: str) -> list[Any]:
        text = self._disk.read(os.path.join(self._path, LINEAGE + lineage))
        return list(json.loads(text)) if text else []

    def _other_marks(self) -> list[str]:
        """Return the marks of runs that are no more; raise if one is still writing, a copy of this one perhaps."""
        for mark in self._marks():
            self._lock(mark)()
        return [os.path.join(self._path, LINEAGE + mark) for mark in self._marks() if mark != self._lineage]

    def _lock(self, mark: str) -> Callable[[], None]:
        try:
            return self._disk.lock(os.path.join(self._path, LINEAGE + mark))
        except LockedError as error:
            raise SinkError(
                f"{self._extension} sink: the folder {self._path!r} is being written by another run{error.holder}; "
                "stop that one first, or give each a folder of its own"
            ) from None

    def _sign(self) -> None:
        """Say durably whose output this is, and from whom it was taken over, up to which epoch; then nobody else's."""
        disk, mine = self._disk, os.path.join(self._path, LINEAGE + self._lineage)
        others = self._other_marks()
        if not disk.exists(mine):
            write_whole(disk, mine, [json.dumps(self._ancestors).encode()])
            disk.sync_folder(self._path)
        self._unlock = self._lock(self._lineage)
        # Also marks that were never whole.
        names = [name for name in disk.names(self._path) if name.startswith(LINEAGE) and name.endswith(TEMPORARY)]
        others += [os.path.join(self._path, name) for name in names]
        for other in others:
            disk.remove(other)
        if others:
            disk.sync_folder(self._path)

    def _remove_foreign_staging(self, *kept: str) -> None:
        """Remove what runs have staged that are no more: who has signed has its own."""
        for name in self._disk.names(self._path):
            if name.startswith(STAGING) and name.removeprefix(STAGING) not in kept:
                self._disk.remove_folder(os.path.join(self._path, name))

    def prepare(self, epoch: int) -> tuple[Any, list[str]]:
        """Complete what is staged; return what a checkpoint must know, and the files that must be durable for it."""
        with self._errors("writing", self._path):
            self._complete(sync=False)
        staged = [(at, name) for at, name in self._staged]
        known = {
            "lineage": self._lineage, "epoch": epoch, "staged": staged, "files": self._files,
            "committed": self._committed,
        }  # fmt: skip
        return known, [*(os.path.join(self._staging, name) for _, name in staged)]

    def _begin(self, overwrite: bool) -> None:
        with self._errors("preparing", self._path):
            problem = folder_problem(self._path, self._extension, overwrite)
            if problem:
                raise SinkError(f"{self._extension} sink: {problem}")
            disk = self._disk
            disk.make_folder(self._path)
            others = [os.path.basename(other).removeprefix(LINEAGE) for other in self._other_marks()]
            if not overwrite and any(disk.names(os.path.join(self._path, STAGING + other)) for other in others):
                raise SinkError(
                    f"{self._extension} sink: the folder {self._path!r} holds rows of another run, which can be gone "
                    "on with and has not shown them yet; pass overwrite=True or another folder"
                )
            for name in disk.names(self._path) if overwrite else ():
                old = os.path.join(self._path, name)
                if _is_part(name, self._extension) or name.startswith(LINEAGE):
                    disk.remove(old)
                elif name.startswith(STAGING):
                    disk.remove_folder(old)
            disk.remove_folder(self._staging)  # left by a run that was killed: no commit can name it any more
            disk.make_folder(self._staging)
            if self._outlives:
                self._sign()
                self._remove_foreign_staging(self._lineage)

    def stage(self, batch: pa.RecordBatch, epoch: int, part: int) -> None:
        """Write rows, or gather them; nobody sees them."""
        assert not self._ended, f"staged into a sink that has ended: epoch {epoch}, part {part}"
        assert self._committed is None or epoch > self._committed, (epoch, self._committed)
        if not batch.num_rows:
            return
        if epoch != self._epoch:
            assert self._epoch is None or epoch > self._epoch, f"epoch {epoch} staged after {self._epoch}"
            self._complete()
            self._epoch, self._number = epoch, 0
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write()

    def commit(self, epoch: int) -> None:
        """Move the files of this epoch, and of those before it, into the folder."""
        if self._epoch is not None and self._epoch <= epoch:
            self._complete()
        moved = 0
        while self._staged and self._staged[0][0] <= epoch:
            self._show(self._staged[0][1])
            self._staged.pop(0)
            moved += 1
        if moved:
            with self._errors("making durable", self._path):
                self._disk.sync_folder(self._path)
        self._files += moved
        self._committed = epoch if self._committed is None else max(epoch, self._committed)

    def abort(self) -> None:
        """Remove everything that was staged and not committed; what a checkpoint may have, `_resume` sees to."""
        self._ended = True
        self._forget()
        if not self._outlives:
            self._remove_staging()

    def _remove_staging(self) -> None:
        with self._errors("removing", self._staging):
            self._disk.remove_folder(self._staging)

    def close(self) -> None:
        """End the output: a run that committed without a row leaves its schema; then staging goes."""
        self._forget()  # what nobody committed
        if not self._ended and self._committed is not None and not self._files and not self._has_parts():
            self._epoch, self._number = self._committed, 0
            self._write()
            self.commit(self._committed)
        if not self._ended:
            self._remove_staging()
        self.abort()
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def _has_parts(self) -> bool:
        with self._errors("looking at", self._path):
            return any(_is_part(name, self._extension) for name in self._disk.names(self._path))

    def _forget(self) -> None:
        """Let go of everything that is staged; its files go with the staging folder."""
        self._waiting, self._rows, self._bytes = [], 0, 0
        self._staged.clear()
        if self._part is not None:
            self._part.give_up()
            self._part = None

    def _write(self) -> None:
        """Write the rows that wait into the open epoch's file; complete it when it is large."""
        assert self._epoch is not None
        name = part_name(self._epoch, self._number, self._extension)
        with self._errors("writing", name):
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._waiting, self._rows, self._bytes = [], 0, 0
            if self._part is None:
                self._part = _Part(os.path.join(self._staging, name), self._new_file, self._disk)
            self._part.write(table)
        if self._part.rows >= FILE_ROWS or self._part.file.tell() >= FILE_BYTES:
            self._complete()

    def _complete(self, *, sync: bool = True) -> None:
        """Complete the open file, so that it can be committed; durably, unless somebody else sees to that."""
        if self._waiting:
            self._write()
        if self._part is None:
            return
        assert self._epoch is not None
        name = os.path.basename(self._part.path)
        with self._errors("writing", name):
            self._part.complete(sync=sync)
        self._part = None
        self._staged.append((self._epoch, name))
        self._number += 1

    def _show(self, name: str) -> None:
        """Rename one complete file into the folder."""
        target = os.path.join(self._path, name)
        if self._disk.exists(target):
            raise SinkError(
                f"{self._extension} sink {self._path!r}: {name!r} has appeared in the folder since the run "
                f"began; another run writes there. Give each run a folder of its own"
            )
        with self._errors("moving into place", name):
            self._disk.rename(os.path.join(self._staging, name), target)

    @contextlib.contextmanager
    def _errors(self, doing: str, what: str) -> Iterator[None]:
        """Turn what the file system or Arrow says into a SinkError with the path in it."""
        try:
            yield
        except (OSError, pa.ArrowException) as failure:
            reason = str(failure)
            if isinstance(failure, OSError) and failure.errno:
                reason = f"{os.strerror(failure.errno)} ({errno.errorcode.get(failure.errno, failure.errno)})"
            raise SinkError(
                f"{self._extension} sink {self._path!r}: {reason}, while {doing} {what!r}; whole files that "
                f"were written before stay. Put it right, or give another folder, and run again"
            ) from failure


class _Part:
    """A file that is being written in the staging folder.

    Written through Python's buffered file and not by path: it writes on after a partial write, its errors
    keep their errno, and what was written can be made durable before it is renamed.
    """

    def __init__(self, path: str, new_file: Callable[[BinaryIO], RowFile], disk: Disk) -> None:
        self.path, self.disk = path, disk
        self.rows = 0
        self.file: BinaryIO = disk.create(path)
        try:
            self._writer = new_file(self.file)
        except BaseException:
            self.file.close()
            raise

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        self._writer.write_table(table)
        self.rows += table.num_rows

    def complete(self, *, sync: bool) -> None:
        """Write the end, and make the file durable, if that is asked for."""
        self._writer.close()
        self.file.close()
        if sync:
            self.disk.sync(self.path)

    def give_up(self) -> None:
        """Close without caring for the contents: the file is about to be removed."""
        for close in (self._writer.close, self.file.close):
            # The same full disk that brought us here may refuse the rest of the file too.
            with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                close()
