"""Bugs that one might have written, put in place of the right code for as long as a test runs.

They keep the simulator honest: one that finds none of them would find none of ours. Each is a function that patches;
its name and its docstring say what was believed.
"""

from collections import deque

from dovetail.batch import START
from dovetail.engine import checkpoints, run, tasks
from dovetail.engine.watch import Watch
from dovetail.ingest import folder
from dovetail.operators import numbering
from dovetail.operators.collecting import Collector
from dovetail.operators.sequencer import Merger, SourceOrder
from dovetail.operators.stateful import Stateful
from dovetail.transport import channel

from simulation.world import Disk

PLANTED = {}


def planted(function):
    PLANTED[function.__name__] = function
    return function


@planted
def sinks_are_told_before_the_checkpoint_is_durable(patch):
    """It will be, in a moment."""
    real = run.Runner.checkpoint

    def checkpoint(self, *, finished=False, wait=True):
        number = self.keeper.coordinator.next
        real(self, finished=finished, wait=wait)
        self._announce(number)

    patch.setattr(run.Runner, "checkpoint", checkpoint)


@planted
def contents_are_not_synced(patch):
    """What is written is written."""

    def write(disk, path, parts):
        data = b"".join(bytes(part) for part in parts)
        disk.remove(path + ".tmp")
        with disk.create(path + ".tmp") as file:
            file.write(data)
        disk.rename(path + ".tmp", path)
        return len(data), checkpoints.zlib.crc32(data)

    patch.setattr(checkpoints, "write_whole", write)


@planted
def names_are_not_synced(patch):
    """A file that was synced is there."""
    real = Disk.sync_folder
    patch.setattr(Disk, "sync_folder", lambda self, path: None if "state" in path else real(self, path))


@planted
def staged_files_are_not_synced(patch):
    """The sink will do that when it commits."""
    real = checkpoints.Checkpoints.save

    def save(self, *arguments, sync, **more):
        return real(self, *arguments, sync=[], **more)

    patch.setattr(checkpoints.Checkpoints, "save", save)


@planted
def a_gap_between_messages_is_nothing(patch):
    """ZeroMQ delivers in order."""
    patch.setattr(channel, "next_in_order", lambda *_: True)


@planted
def a_source_stands_where_it_has_read_to(patch):
    """What was read is on its way."""
    real = tasks.ReadTask.snapshot

    def snapshot(self):
        known = real(self)
        if not self.ended:
            known["place"], known["past"] = self.reader.position(), 0
        return known

    patch.setattr(tasks.ReadTask, "snapshot", snapshot)


@planted
def rows_that_wait_for_another_input_are_forgotten(patch):
    """The source will bring them again."""

    def restore(self, known):
        self.watermarks = list(known["watermarks"])

    patch.setattr(Merger, "restore", restore)


@planted
def rows_that_wait_for_their_turn_are_forgotten(patch):
    """The source will bring them again."""
    real = SourceOrder.restore
    patch.setattr(SourceOrder, "restore", lambda self, known: real(self, {**known, "held": []}))


@planted
def what_is_late_is_decided_anew(patch):
    """A source begins with its first row."""
    patch.setattr(
        SourceOrder, "restore", lambda self, known: setattr(self, "held", []) or setattr(self, "rows", known["rows"])
    )


@planted
def output_is_taken_back_before_it_changes_hands(patch):
    """It will be signed in a moment."""
    real = folder.FolderWriter._resume

    def resume(self, known):
        last = max([known["epoch"], *(epoch for epoch, _ in known["staged"])])
        parts = [name for name in self._disk.names(self._path) if folder._is_part(name, self._extension)]
        for name in reversed([name for name in parts if folder._epoch_of(name) > last]):
            self._disk.remove(f"{self._path}/{name}")
        real(self, known)

    patch.setattr(folder.FolderWriter, "_resume", resume)


@planted
def what_was_shown_later_stays(patch):
    """There is nothing later: the last checkpoint is the last."""
    real = Disk.remove
    patch.setattr(Disk, "remove", lambda self, path: None if "/part-" in path else real(self, path))


@planted
def a_checkpoint_does_not_wait_for_the_cells(patch):
    """Results that are on their way will come."""
    real = run.Runner.checkpoint

    def checkpoint(self, **more):
        joins, self.joins = self.joins, []
        try:
            real(self, **more)
        finally:
            self.joins = joins

    patch.setattr(run.Runner, "checkpoint", checkpoint)


@planted
def files_that_are_needed_are_removed(patch):
    """A checkpoint needs what was written for it."""

    def sweep(self):
        wanted = {file.name for file in self.latest.files() if f"-{self.latest.number:06d}" in file.name}
        wanted |= {checkpoints._name(manifest.number) for manifest in self._kept} | {"lock", "shown"}
        for name in sorted(set(self.disk.names(self.folder)) - wanted):
            self.disk.remove(self._path(name))

    patch.setattr(checkpoints.Checkpoints, "_sweep", sweep)


@planted
def timers_are_forgotten(patch):
    """An operator restores what it knows."""
    real = Stateful.restore
    patch.setattr(Stateful, "restore", lambda self, known: real(self, {**known, "due": known["due"][:0]}))


@planted
def the_fastest_cell_decides(patch):
    """What has come can go on."""
    real = Collector.ready

    def ready(self, step):
        for cell in self.steps[step][1]:
            cell.frontier = max(other.frontier for other in self.steps[step][1])
        return real(self, step)

    patch.setattr(Collector, "ready", ready)


@planted
def staged_files_are_not_in_the_checkpoint(patch):
    """They are in their folder."""
    real = folder.FolderWriter.prepare

    def prepare(self, epoch):
        known, files = real(self, epoch)
        return {**known, "staged": []}, files

    patch.setattr(folder.FolderWriter, "prepare", prepare)


@planted
def rows_that_were_not_called_for_are_forgotten(patch):
    """A call is made at once."""
    real = tasks.SinkTask.restore

    def restore(self, known):
        real(self, known)
        self.pending = deque()

    patch.setattr(tasks.SinkTask, "restore", restore)


@planted
def silence_is_patience(patch):
    """Who is alive will answer."""
    patch.setattr(Watch, "look", lambda self, now, beats: ([], []))


@planted
def an_answer_is_never_lost(patch):
    """Who beats will answer."""
    real = Watch.look

    def look(self, now, beats):
        _, silent = real(self, now, beats)
        return [], [each for each in silent if "not moved" in each[1]]

    patch.setattr(Watch, "look", look)


@planted
def the_watermark_is_not_kept(patch):
    """It follows from the rows."""
    real = tasks.Task.restore

    def restore(self, known):
        real(self, {**known, "watermark": START})

    patch.setattr(tasks.Task, "restore", restore)


@planted
def one_role_of_a_self_join_forgets_times(patch):
    """The stream is one, so one of its sides says all."""
    real = numbering.Numbering.restore

    def restore(self, known, times):
        real(self, known, times)
        if self.spec.self_join:
            self.times["right"] = type(self.times["right"])()

    patch.setattr(numbering.Numbering, "restore", restore)
