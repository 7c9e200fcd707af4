"""A folder of checkpoints: what a flow remembers, made durable so that a crash at any point leaves a whole one.

Problem: a window of gigabytes cannot be written anew each second, what is half written must never be taken for whole,
and a folder may be of another flow, in use, damaged or half deleted. Idea: rows are written once, into files that are
never changed (`rows-*`); what else there is to remember is one small file (`state-*`); and a *manifest*, written last,
says which files a checkpoint consists of, how long they are and what their checksums are. A checkpoint is there when
its manifest is. The last two are kept; files that neither needs are removed.

A *savepoint* is a checkpoint in a folder of its own, whose files are second names of the same ones. It is never
changed, and any number of runs can begin with it, each in a folder of its own.

Invariants: every file that a manifest names is whole and durable, and its name too, before the manifest is; files are
read back and compared before that; nothing is removed that one of the two last manifests names, and nothing at all
before a checkpoint was made. Whoever uses a folder holds its lock.
Cost: a checkpoint writes the rows that came since the last one and are still wanted, and the small state.
"""

__all__ = ["Checkpoints", "FlowMark", "Manifest"]

import contextlib
import errno
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from ..batch import has_dictionary
from ..disk import Disk, LockedError, Place, write_whole
from ..errors import CheckpointError
from ..operators.contracts import Rows
from .snapshots import Group, decode, encode, replaced

FORMAT = 2
KEPT = 2
"""Checkpoints that are kept: the last one, and the one before, if the disk should lose a bit of the last."""

_MANIFEST = re.compile(r"checkpoint-(\d{6,})\.json")
_OURS = re.compile(r"(checkpoint|state|rows)-\d{6,}(-\d+)?\.(json|part)(\.tmp)?|(shown|told)(\.tmp)?|lock|sources")
_NUMBERED = re.compile(r"(?:checkpoint|state|rows)-(\d{6,})")
_SHOWN = "shown"
"""The file that says up to which checkpoint sinks may have shown their rows: more than the last one's number, if that
was deleted by hand since."""

_TOLD = "told"
"""The file that says up to which checkpoint sinks have shown their rows, of a run that has come to its end: one that
goes on from there need not show them again to who cannot tell."""

_SAVEPOINT = "savepoint"
"""An empty file that tells a savepoint from a folder that runs go on in."""

_SOURCES = "sources"
"""The folder of what sources keep for themselves, a folder each: they know what of it is wanted."""

_ROWS = "\0rows"

JOINED_ROWS, PIECE_BYTES = 1 << 14, 1 << 20
"""Rows, and bytes, up to which batches are joined before they are written: longer ones are written as they are, which
needs no copy."""

_NOT_THE_FILE = {
    errno.EMFILE: "allow this process more open files (ulimit -n), and start it again",
    errno.ENFILE: "allow this machine more open files (fs.file-max), and start again",
    errno.ENOMEM: "give more memory, or allow more mappings (vm.max_map_count), and start again",
}
"""What to do where the checkpoint is well, and the machine has no room for reading it."""


@dataclass(frozen=True)
class FlowMark:
    """What tells a flow from others: its name, and what each step does, in words."""

    name: str
    steps: dict[str, str]


@dataclass(frozen=True)
class _File:
    """A file of a checkpoint; of rows also which ones."""

    name: str
    nbytes: int
    crc: int
    first: int = 0
    end: int = 0


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of."""

    number: int
    flow: str
    steps: dict[str, str]
    lineage: str
    generation: int
    finished: bool
    state: _File
    rows: dict[str, list[_File]] = field(default_factory=dict)
    begun: str = ""  # the savepoint with which the folder was begun

    @property
    def title(self) -> str:
        """Name it, as no other checkpoint of any run is named."""
        return f"{self.lineage}/{self.number}"

    def files(self) -> list[_File]:
        """Return all its files."""
        return [self.state, *(file for files in self.rows.values() for file in files)]

    def encoded(self) -> bytes:
        """Return it as text, its checksum in the last line."""
        text = json.dumps({"format": FORMAT, **vars(self)}, default=vars)
        return f"{text}\n{zlib.crc32(text.encode()):08x}\n".encode()


class Checkpoints:
    """The folder of one running flow."""

    def __init__(self, folder: str, mark: FlowMark, disk: Disk) -> None:
        self.folder, self.mark, self.disk = folder, mark, disk
        self.latest: Manifest | None = None
        self.next = 0  # the number of the next checkpoint: one that no file bears, whatever became of that
        self.shown: int | None = None  # the last epoch that sinks may have shown; None: nobody knows
        self._kept: list[Manifest] = []
        self._unlock: Any = None

    def open(self, *, fresh: bool = False, savepoint: str | None = None) -> None:
        """Take the folder, and find the last checkpoint in it; raise if the flow cannot go on from there.

        `savepoint`: what a folder without a checkpoint begins with.
        """
        where = f"checkpoint={self.folder!r}"
        try:
            self.disk.make_folder(self.folder)
            self._unlock = self.disk.lock(self._path("lock"))
        except LockedError as error:
            raise CheckpointError(
                f"{where} is in use by a job that runs{error.holder}; stop it first, or give another folder"
            ) from None
        except OSError as error:
            raise CheckpointError(f"{where} cannot be used: {error.strerror or error}; give another folder") from error
        try:
            self._look(where, fresh, savepoint is not None)
            if savepoint is not None:
                self._begin_with(savepoint, where)
            self.shown = self._last_shown()
        except OSError as error:
            self.close()
            raise CheckpointError(
                f"{where} cannot be used: {error.strerror or error}; make room there, or give another folder"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the folder."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def load(self) -> Any:
        """Return what the last checkpoint remembers, with `Rows` as they are wanted."""
        manifest = self.latest
        assert manifest is not None
        try:
            self.disk.sync_folder(self.folder)  # who made it may have come no further than to its name
            with contextlib.suppress(ValueError):  # one that is damaged tells that nobody knows
                if (noted := self._noted(_SHOWN)) is None or noted < manifest.number:
                    self._note(_SHOWN, manifest.number)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint={self.folder!r} cannot be made durable: {error.strerror or error}; give another disk"
            ) from error
        tree = decode(self._checked(manifest, manifest.state))

        def filled(value: dict[str, Any]) -> Any:
            if _ROWS not in value:
                return {name: restore(each) for name, each in value.items()}
            return self._rows(manifest, value[_ROWS], value["keep"], value["end"])

        def restore(value: Any) -> Any:
            if isinstance(value, dict):
                return filled(value)
            return [restore(each) for each in value] if isinstance(value, list) else value

        return restore(tree)

    def save(
        self, number: int, tree: Any, *, lineage: str, generation: int, finished: bool, sync: list[str],
        rest: Callable[[], None] = lambda: None,
    ) -> Iterator[None]:  # fmt: skip
        """Make a checkpoint, a step at a time: when the iterator is used up, it is there.

        `sync`: files of sinks that must be durable before it is. `rest` is called between pieces of long steps.
        """
        rows: dict[str, list[_File]] = {}
        before = self.latest.rows if self.latest is not None else {}
        leaves: list[Rows] = []

        def noted(leaf: Rows) -> dict[str, Any]:
            leaves.append(leaf)
            return {_ROWS: leaf.name, "keep": leaf.keep, "end": leaf.end}

        tree = replaced(tree, Rows, noted)
        for at, leaf in enumerate(leaves):
            kept = [file for file in before.get(leaf.name, []) if file.end > leaf.keep]
            first, end = leaf.first, leaf.end
            if end > first:
                times = None if leaf.times is None else _packed(leaf.times)
                content = {"batches": _grouped(leaf.batches), "times": times}
                file = self._write(f"rows-{number:06d}-{at}.part", _resting(encode(content), rest))
                kept.append(replace(file, first=first, end=end))
                yield
            rows[leaf.name] = kept
        state = self._write(f"state-{number:06d}.part", _resting(encode(tree), rest))
        yield
        for path in sync:
            self.disk.sync(path)
            yield
        for folder in sorted({os.path.dirname(path) for path in sync}):
            self.disk.sync_folder(folder)
            yield
        self.disk.sync_folder(self.folder)
        yield
        begun = "" if self.latest is None else self.latest.begun
        manifest = Manifest(number, self.mark.name, self.mark.steps, lineage, generation, finished, state, rows, begun)
        try:
            write_whole(self.disk, self._path(_name(number)), [manifest.encoded()])
        except OSError:
            if self.disk.exists(self._path(_name(number))):
                self._made(manifest)
            raise
        self._made(manifest)
        self.disk.sync_folder(self.folder)
        yield
        self._note(_SHOWN, number)
        self.shown = number
        yield
        self._sweep()

    def _made(self, manifest: Manifest) -> None:
        """Go on from a checkpoint from now on, as its manifest is there.

        Whatever fails after that: an attempt that went on from the one before would write this one's files anew, and
        take back output that it needs; killed in the middle it would leave a manifest that does not fit its files.
        """
        self.latest = manifest
        self._kept = [*self._kept, manifest][-KEPT:]

    @property
    def told(self) -> bool:
        """Tell whether sinks have certainly shown all that the last checkpoint has."""
        try:
            return self.latest is not None and self._noted(_TOLD) == self.latest.number
        except (OSError, ValueError):  # damaged
            return False

    def tell(self) -> None:
        """Note durably that they have."""
        if self.latest is not None and not self.told:
            self._note(_TOLD, self.latest.number)
            self._sweep()

    def _note(self, name: str, number: int) -> None:
        text = str(number).encode()
        write_whole(self.disk, self._path(name), [b"%s %08x\n" % (text, zlib.crc32(text))])
        self.disk.sync_folder(self.folder)

    def _noted(self, name: str) -> int | None:
        """Return what was noted, None if nothing was; raise if it cannot be told."""
        try:
            text, _, crc = self.disk.read(self._path(name)).partition(b" ")
        except FileNotFoundError:
            return None
        if crc != b"%08x\n" % zlib.crc32(text):
            raise ValueError(f"{name!r} is damaged")
        return int(text)

    def folder_of(self, step: str) -> str:
        """Name the folder that a source may keep files in."""
        return f"{self.folder}/{_SOURCES}/{quote(step, safe='')}"

    def check_savepoint(self, folder: str, others: Iterable[str] = ()) -> None:
        """Raise if there can be no savepoint in a folder; `others`: that are not to hold one either."""
        for other in (self.folder, *others):
            if os.path.realpath(folder).startswith(os.path.realpath(other) + os.sep):
                raise CheckpointError(
                    f"savepoint {folder!r} is inside {other!r}, which holds what this flow writes, and nothing else; "
                    "give a folder of its own"
                )
        try:
            names = self.disk.names(folder)
        except OSError as error:
            raise CheckpointError(f"savepoint {folder!r}: {error.strerror}; give a folder that is new") from error
        if names:
            raise CheckpointError(f"savepoint {folder!r} holds {names[0]!r}; give a folder that is new or empty")

    def copy_to(self, folder: str) -> None:
        """Make the last checkpoint anew in another folder: a savepoint."""
        assert self.latest is not None
        self.check_savepoint(folder)
        try:
            self.disk.make_folder(folder)
            self._link(self.folder, folder, replace(self.latest, begun=""))
            self.disk.create(f"{folder}/{_SAVEPOINT}").close()
            self.disk.sync_folder(folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.disk.remove_folder(folder)
            raise CheckpointError(
                f"savepoint {folder!r} cannot be written: {error.strerror or error}; give another folder"
            ) from error

    def _link(self, old: str, new: str, manifest: Manifest) -> None:
        """Give the files of a checkpoint second names in another folder, and then its manifest."""
        disk = self.disk
        for file in manifest.files():
            disk.remove(f"{new}/{file.name}")  # of a beginning that was cut off
            disk.link(f"{old}/{file.name}", f"{new}/{file.name}")
            disk.sync(f"{new}/{file.name}")
        if disk.exists(f"{old}/{_SOURCES}"):
            self._link_all(f"{old}/{_SOURCES}", f"{new}/{_SOURCES}")
        disk.sync_folder(new)
        write_whole(disk, f"{new}/{_name(manifest.number)}", [manifest.encoded()])
        disk.sync_folder(new)

    def _link_all(self, old: str, new: str) -> None:
        """Give all files below a folder second names: first what is in its folders, in order, and then its own.

        They may be in use. What is noted first is then missing rather than what it refers to.
        """
        disk = self.disk
        disk.make_folder(new)
        names = [name for name in disk.names(old) if not name.startswith(".")]
        for name in sorted(names, key=lambda name: (not disk.is_folder(f"{old}/{name}"), name)):
            if disk.is_folder(f"{old}/{name}"):
                self._link_all(f"{old}/{name}", f"{new}/{name}")
                continue
            disk.remove(f"{new}/{name}")
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile, so it is not needed
                disk.link(f"{old}/{name}", f"{new}/{name}")
                disk.sync(f"{new}/{name}")
        disk.sync_folder(new)

    def _begin_with(self, savepoint: str, where: str) -> None:
        """Begin this folder with a savepoint, unless that was done before."""
        other = Checkpoints(savepoint, self.mark, self.disk)
        what = f"savepoint={savepoint!r}"
        names = self.disk.names(savepoint)
        numbers = [int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name))]
        if _SAVEPOINT not in names or not numbers:
            raise CheckpointError(f"{what} is no savepoint; give a folder that `dovetail savepoint` or stop() has made")
        manifest = replace(other._read_manifest(what, numbers[-1]), begun="")
        other._compare(what, manifest)
        if self.latest is not None:
            if self.latest.begun != manifest.title:
                raise CheckpointError(
                    f"{where} holds checkpoint {self.latest.number}, which did not begin with {what}; give a folder "
                    "that is new, or leave savepoint= out to go on from there"
                )
            return
        for file in manifest.files():
            other._checked(manifest, file)
        manifest = replace(manifest, begun=manifest.title)
        self._link(savepoint, self.folder, manifest)
        self.latest, self._kept, self.next = manifest, [manifest], max(self.next, manifest.number + 1)

    def _last_shown(self) -> int | None:
        if self.latest is None or self.latest.begun == self.latest.title:
            return None
        try:
            noted = self._noted(_SHOWN)
        except (OSError, ValueError):  # damaged
            return None
        # There is none if a crash came between the first checkpoint and this.
        return self.latest.number if noted is None else max(self.latest.number, noted)

    def _look(self, where: str, fresh: bool, begins: bool) -> None:
        names = self.disk.names(self.folder)
        if _SAVEPOINT in names:
            raise CheckpointError(
                f"{where} is a savepoint, which is not changed; begin with it in a folder of its own: "
                f"checkpoint='…', savepoint={self.folder!r}"
            )
        if foreign := [name for name in names if not _OURS.fullmatch(name)]:
            raise CheckpointError(f"{where} holds {foreign[0]!r}, which is no checkpoint; give a folder of its own")
        self.next = max((int(found[1]) + 1 for name in names if (found := _NUMBERED.match(name))), default=0)
        numbers = sorted(int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name)))
        if fresh and (held := [name for name in names if name != "lock"]):
            what = f"checkpoint {numbers[-1]}" if numbers else repr(held[0])
            raise CheckpointError(
                f"{where} holds {what}, and fresh=True asks for a new beginning; delete the folder, or give another one"
            )
        if not numbers:
            if _SHOWN in names and not begins:  # there was one; before that a crash may leave anything
                raise CheckpointError(
                    f"{where} holds {names[-1]!r} and no checkpoint-*.json: the files that say what belongs together "
                    "were deleted; restore them, or delete the folder to begin anew"
                )
            return
        self.latest = self._read_manifest(where, numbers[-1])
        self._kept = [self.latest]
        with contextlib.suppress(CheckpointError):  # one that is damaged is as good as none
            self._kept = [*(self._read_manifest(where, number) for number in numbers[-KEPT:-1]), self.latest]
        self._compare(where, self.latest)
        for file in self.latest.files():
            if file.name not in names:
                raise CheckpointError(
                    f"{where}: checkpoint {self.latest.number} needs {file.name!r}, which is gone; "
                    f"{self._way_out(self.latest)}"
                )
        if self.latest.finished:
            self._sweep()  # nothing will be made any more, after which that is done

    def _read_manifest(self, where: str, number: int) -> Manifest:
        name = _name(number)
        try:
            text = self.disk.read(self._path(name))
        except OSError as error:
            raise CheckpointError(
                f"{where}: {name!r} cannot be read ({error.strerror or error}); delete {name!r} to go on from the one "
                "before, or the folder to begin anew"
            ) from error
        body, _, crc = text.rstrip(b"\n").rpartition(b"\n")
        # Before the format is believed, which may be what has changed: all formats have this last line.
        if crc != b"%08x" % zlib.crc32(body):
            raise CheckpointError(
                f"{where}: {name!r} is damaged (its checksum differs); delete {name!r} to go on from the one before, "
                "or the folder to begin anew"
            )
        known = json.loads(body)
        version = known.pop("format")
        if version != FORMAT:
            raise CheckpointError(
                f"{where}: {name!r} has format {version}, and this version of Dovetail reads {FORMAT}; "
                "use the version that wrote it, or begin in another folder"
            )
        known["state"] = _File(**known["state"])
        known["rows"] = {log: [_File(**file) for file in files] for log, files in known["rows"].items()}
        return Manifest(**known)

    def _compare(self, where: str, manifest: Manifest) -> None:
        if manifest.flow != self.mark.name:
            raise CheckpointError(
                f"{where} is of flow {manifest.flow!r}, and this is flow {self.mark.name!r}; give each a folder of "
                "its own"
            )
        old, new = manifest.steps, self.mark.steps
        changes = [f"{name!r} is gone (it was: {old[name]})" for name in old if name not in new]
        changes += [f"{name!r} is new ({new[name]})" for name in new if name not in old]
        both = [name for name in old if name in new and old[name] != new[name]]
        changes += [f"{name!r} was: {old[name]}; now it is: {new[name]}" for name in both]
        if changes:
            # A step that comes in between gives those behind it other names: the first ones say what happened.
            told = "; step ".join(changes[:3]) + (f"; and {len(changes) - 3} more" if len(changes) > 3 else "")
            raise CheckpointError(
                f"{where}: flow {manifest.flow!r} has changed since checkpoint {manifest.number}: step "
                f"{told}. Run the flow as it was, or begin in another folder"
            )

    def _rows(self, manifest: Manifest, log: str, keep: int, end: int) -> Rows:
        """Read the rows of a stream that are still wanted."""
        files = [file for file in manifest.rows.get(log, []) if file.end > keep]
        batches, times, at = [], [], files[0].first if files else end
        found = Rows(log, at, keep)
        stretches: list[tuple[int, int]] = []
        for file in files:
            assert file.first == at, f"rows {at} to {file.first} of {log} are in no file"
            content = decode(self._checked(manifest, file), stretches)
            batches += content["batches"]
            if self.disk.is_shared:
                path = os.path.abspath(self._path(file.name))
                found.places += [Place(path, *stretch) for stretch in stretches]
            stretches.clear()
            if content["times"] is not None:
                times.append(_unpacked(content["times"]))
            at = file.end
        assert at == end and found.first <= max(keep, end), (log, found.first, keep, at, end)
        found.batches, found.times = batches, np.concatenate(times) if times else None
        return found

    def _checked(self, manifest: Manifest, file: _File) -> Any:
        """Return a file's contents, which stay on disk; batches that come back go on referring to them."""
        try:
            nbytes, crc = self.disk.measure(self._path(file.name))
            if (nbytes, crc) == (file.nbytes, file.crc):
                return self.disk.map(self._path(file.name))
        except OSError as error:
            way = _NOT_THE_FILE.get(error.errno or 0) or self._way_out(manifest)
            raise CheckpointError(
                f"checkpoint={self.folder!r}: {file.name!r} cannot be read ({error.strerror or error}); {way}"
            ) from error
        how = f"is {nbytes:,} bytes long instead of {file.nbytes:,}" if nbytes != file.nbytes else "has changed"
        raise CheckpointError(
            f"checkpoint={self.folder!r}: {file.name!r} of checkpoint {manifest.number} {how}: it is damaged; "
            f"{self._way_out(manifest)}"
        )

    def _way_out(self, manifest: Manifest) -> str:
        if len(self._kept) < KEPT:
            return "delete the folder to begin anew"
        return (
            f"delete {_name(manifest.number)!r} to go on from checkpoint {self._kept[0].number} (what sinks have shown "
            "since is then taken back, where they can)"
        )

    def _write(self, name: str, parts: Iterable[Any]) -> _File:
        return _File(name, *write_whole(self.disk, self._path(name), parts))

    def _sweep(self) -> None:
        """Remove what no checkpoint that is kept needs."""
        wanted = {file.name for manifest in self._kept for file in manifest.files()}
        wanted |= {_name(manifest.number) for manifest in self._kept} | {"lock", _SHOWN, _TOLD, _SOURCES}
        # Manifests first: one without its files would look damaged.
        for name in sorted(set(self.disk.names(self.folder)) - wanted):
            if _OURS.fullmatch(name):
                self.disk.remove(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"


def _name(number: int) -> str:
    return f"checkpoint-{number:06d}.json"


def _resting(parts: Iterable[Any], rest: Callable[[], None]) -> Iterator[Any]:
    for part in parts:
        yield part
        rest()


def _grouped(batches: list[pa.RecordBatch]) -> list[Group]:
    """Put small batches with their neighbours, and empty the list: each group is let go of when it is written.

    To write a batch takes the interpreter from the flow that goes on meanwhile, whatever is in it, and at half of its
    greatest rate a run brings a thousand in a second; joining needs no interpreter. To free so many takes it, too: a
    few at a time, and not all at the end, which kept results waiting for five milliseconds.
    """
    found: list[Group] = []
    if not batches:
        return found
    schema = batches[0].schema
    alone, width = has_dictionary(schema), _width(schema)  # dictionaries would have to be made one
    rows, total = 0, 0.0
    for batch in batches:
        nbytes = batch.nbytes if width is None else batch.num_rows * width
        rows, total = rows + batch.num_rows, total + nbytes
        if not found or alone or rows > JOINED_ROWS or total > PIECE_BYTES:
            found.append(Group([]))
            rows, total = batch.num_rows, nbytes
        found[-1].batches.append(batch)
    batches.clear()
    return found


def _width(schema: pa.Schema) -> float | None:
    """Return the bytes of a row, if all rows have as many: to ask each batch for its bytes was half of joining them."""
    try:
        return sum(kind.bit_width for kind in schema.types) / 8
    except ValueError:
        return None


def _packed(times: np.ndarray) -> dict[str, Any]:
    """Return ascending numbers in as few bytes as their steps need."""
    if len(times) == 0:
        return {"first": 0, "steps": np.empty(0, np.uint8), "n": 0}
    steps = times[1:].view(np.uint64) - times[:-1].view(np.uint64)
    most = int(steps.max()) if len(steps) else 0
    kind = next(kind for kind in (np.uint8, np.uint16, np.uint32, np.uint64) if most <= np.iinfo(kind).max)
    return {"first": int(times[0]), "steps": steps.astype(kind), "n": len(times)}


def _unpacked(packed: dict[str, Any]) -> np.ndarray:
    if packed["n"] == 0:
        return np.empty(0, np.int64)
    out = np.empty(packed["n"], np.uint64)
    out[0] = packed["first"] % 2**64
    out[1:] = packed["steps"]
    return np.cumsum(out, dtype=np.uint64).view(np.int64)
