"""Output that changes hands, is taken back, or is gone on with: by whom, when, and what is never done to another run.

Jobs here read what the test says that there is, and are looked at in between: nothing waits for a time to pass.
"""

import os
import shutil

import dovetail as dt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dovetail.disk import Disk
from dovetail.engine.checkpoints import Checkpoints
from dovetail.ingest.folder import FolderWriter, part_name


class Crash(BaseException):
    """Nobody catches it, as nobody catches a kill."""


class Given:
    """Rows that there are, and whether these are all: of a source that each attempt opens anew."""

    def __init__(self, rows):
        self.rows, self.all = rows, False


class PlainRows:
    schema = pa.schema({"x": pa.int64()})

    def __init__(self, given):
        self.given, self.at = given, 0

    def position(self):
        return self.at

    def seek(self, at):
        self.at = at

    def read(self):
        if self.at >= self.given.rows:
            return dt.END_OF_SOURCE if self.given.all else None
        self.at += 1
        return pa.record_batch({"x": [self.at - 1]})


Rows = dt.source(PlainRows)


def shown(folder="out"):
    """The rows that a reader of the folder sees, in the order of its files' names."""
    names = sorted(name for name in os.listdir(folder) if name.startswith("part-")) if os.path.isdir(folder) else []
    return [x for name in names for x in pq.read_table(f"{folder}/{name}")["x"].to_pylist()]


def flow(given, *sinks):
    made = dt.Flow("f")
    rows = made.read(Rows(given), name="rows")
    for sink in [dt.parquet("out"), *sinks]:
        rows.write(sink)
    return made


def started(given, checkpoint="a", **more):
    return flow(given).start(checkpoint=checkpoint, every="0s", **more)


def wait_until_shown(n):
    while len(shown()) < n:
        os.sched_yield()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def saved_at_twenty(given):
    """A job that has left a savepoint, and gone on to row 60."""
    job = started(given)
    wait_until_shown(20)
    job.savepoint("saved")
    given.rows = 60
    wait_until_shown(60)
    return job


def test_a_run_that_is_refused_leaves_the_output_of_the_run_that_writes_it(here):
    given = Given(20)
    job = saved_at_twenty(given)
    with pytest.raises(dt.SinkError, match=r"is being written by another run \(process [0-9]+\); stop that one first"):
        flow(given).run(checkpoint="b", savepoint="saved")
    shutil.copytree("saved", "copy")
    os.remove("copy/savepoint")  # now it is what a copy of the first one's folder would be
    with pytest.raises(dt.SinkError, match=r"is being written by another run \(process [0-9]+\); stop that one first"):
        flow(given).run(checkpoint="copy")
    assert shown() == list(range(60))
    given.rows, given.all = 80, True
    assert job.wait().outcome == "finished"
    assert shown() == list(range(80))


@pytest.mark.parametrize("at", ["sign", "signed"])
def test_who_had_the_output_knows_when_it_was_taken_back(here, monkeypatch, at):
    """The run that takes it over is killed before it has said so, or after it; then the first one goes on."""
    given = Given(20)
    saved_at_twenty(given).stop()
    real = FolderWriter._sign

    def sign(self):
        if at == "signed":
            real(self)
            self._unlock()
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(FolderWriter, "_sign", sign)
        with pytest.raises(Crash):
            flow(given).run(checkpoint="b", savepoint="saved")
    assert shown() == list(range(60))
    given.rows, given.all = 80, True
    if at == "signed":
        with pytest.raises(dt.SinkError, match="was taken back to epoch [0-9]+ by a run that began with an earlier"):
            flow(given).run(checkpoint="a")
        flow(given).run(checkpoint="b", savepoint="saved")
    else:
        flow(given).run(checkpoint="a")
    assert shown() == list(range(80))


def test_no_sink_is_taken_back_if_one_of_them_cannot_be(here):
    @dt.sink
    class Forgets:
        transactional = True

        def stage(self, batch, epoch, part):
            pass

        def commit(self, epoch):
            pass

        def abort(self):
            pass

    given = Given(20)
    job = flow(given, Forgets()).start(checkpoint="a", every="0s")
    wait_until_shown(20)
    job.savepoint("saved")
    given.rows = 60
    wait_until_shown(60)
    job.stop()
    with pytest.raises(dt.SinkError, match="Forgets: the flow goes on behind epoch .* committed\\(\\) and rewind"):
        flow(given, Forgets()).run(checkpoint="b", savepoint="saved")
    assert shown() == list(range(60))
    given.rows, given.all = 80, True
    flow(given, Forgets()).run(checkpoint="a")
    assert shown() == list(range(80))


def test_rows_that_are_not_shown_yet_are_not_removed_by_another_run(here, monkeypatch):
    def killed(self, name):
        raise Crash

    given = Given(50)
    given.all = True
    with monkeypatch.context() as patch:
        patch.setattr(FolderWriter, "_show", killed)
        with pytest.raises(Crash):
            flow(given).run(checkpoint="a", every="0s")
    assert shown() == []
    with pytest.raises(dt.SinkError, match="holds rows of another run, .* pass overwrite=True or another folder"):
        flow(given).run(checkpoint="b")
    flow(given).run(checkpoint="a")
    assert shown() == list(range(50))


@pytest.mark.parametrize("begun", [True, False])
def test_new_folders_are_durable_with_those_above_them(tmp_path, monkeypatch, begun):
    synced, real = [], Disk.sync_folder
    monkeypatch.setattr(Disk, "sync_folder", lambda self, path: (synced.append(path), real(self, path)))
    if begun:  # by somebody who was killed before they were durable
        os.makedirs(tmp_path / "new" / "deep")
    Disk().make_folder(str(tmp_path / "new" / "deep"))
    assert synced == ([] if begun else [str(tmp_path)]) + [str(tmp_path / "new")]


def test_parts_sorted_by_name_are_in_the_order_of_their_epochs():
    numbers = [0, 9, 10, 999, 1000, 9999, 10_000, 999_999, 1_000_000, 9_999_999, 10_000_000, 123_456_789]
    names = [part_name(epoch, number, "csv") for epoch in numbers for number in numbers]
    assert sorted(names) == names


def test_a_run_goes_on_behind_its_millionth_checkpoint(here, monkeypatch):
    real = Checkpoints._look

    def look(self, *arguments):
        real(self, *arguments)
        self.next = max(self.next, 999_998)

    monkeypatch.setattr(Checkpoints, "_look", look)
    given = Given(20)
    job = saved_at_twenty(given)
    assert any(name.startswith("part-a1000") for name in os.listdir("out"))
    job.stop()
    given.rows, given.all = 80, True
    flow(given).run(checkpoint="b", savepoint="saved", every="0s")
    assert shown() == list(range(80))
    assert dt.parquet("out").schema.names == ["x"]


def test_what_was_called_is_not_called_again_after_a_stop_or_the_end(here):
    given, called = Given(6), []

    def run(checkpoint="a"):
        called.clear()
        sink = dt.call(lambda batch: called.extend(batch["x"].to_pylist()))
        return flow(given, sink).start(checkpoint=checkpoint, every="1h")

    job = run()
    while job.status().rows_in < 6:
        os.sched_yield()
    job.stop(savepoint="saved")
    assert called == list(range(6))
    given.rows, given.all = 8, True
    run().wait()
    assert called == [6, 7]
    run().wait()
    assert called == []
    os.remove("a/told")  # as it is if the run was killed just before its end
    run().wait()
    assert called in ([6, 7], [7]), "at least once"
    run().wait()
    assert called == []


def test_a_table_of_an_own_source_may_begin_with_an_empty_piece(here):
    @dt.source
    class Pieces(PlainRows):
        def read(self):
            if self.at >= self.given.rows:
                return dt.END_OF_SOURCE
            self.at += 3
            rows = [pa.record_batch({"x": [self.at - n]}) for n in (3, 2, 1)]
            return pa.Table.from_batches([rows[0].slice(1), *rows])

    source = Pieces(Given(9))
    reader = source.reader(None)
    got, positions = [], []
    while (batch := reader.read()) is not dt.END_OF_SOURCE:
        got += batch["x"].to_pylist()
        positions.append((len(got), reader.position()))
    assert got == list(range(9))
    for n, place in positions:
        for reads in range(4):  # and then it goes on once more from where it is
            first, rest = source.reader(None, place), []
            for _ in range(reads):
                rest += rows_of(first.read())
            second = source.reader(None, first.position())
            while (batch := second.read()) is not dt.END_OF_SOURCE:
                rest += rows_of(batch)
            assert rest == got[n:], (n, reads)


def rows_of(batch):
    return [] if batch is dt.END_OF_SOURCE else batch["x"].to_pylist()
