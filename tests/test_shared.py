"""Several threads on one index: the C++ under ThreadSanitizer against a loop, and joins against the oracle."""

import pathlib
import subprocess
import sysconfig
import threading

import dovetail as dt
import numpy as np
import pyarrow as pa
import pytest
from dovetail import left, right
from dovetail.state import _native
from flows import collected
from hypothesis import assume, given
from running import can_be_written, expected_steps, ids, push_arguments, steps, window_join
from streams import cases, examples
from test_choice import table

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ["state/memory.cc", "state/scan.cc", "state/row_sorter.cc", "state/cpu.cc"]


@pytest.fixture(scope="module", params=["shared_pim", "po_join"])
def checked(request, tmp_path_factory):
    """A harness, built with ThreadSanitizer, and how to run it: that does not like every layout of memory."""
    program = tmp_path_factory.mktemp("native") / request.param
    compiler = sysconfig.get_config_var("CXX").split()[0]
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-Istate", "-pthread"]
    sources = [f"tests/native/{request.param}.cc", *SOURCES]
    subprocess.run([compiler, *flags, *sources, "-o", program], cwd=ROOT, check=True, timeout=300)
    # No other sanitizer may be loaded first.
    for command in (["env", "-u", "LD_PRELOAD", program], ["env", "-u", "LD_PRELOAD", "setarch", "-R", program]):
        tried = subprocess.run([*command, "1", "0"], capture_output=True, text=True, timeout=60)
        if "unexpected memory mapping" not in tried.stderr:
            return command
    pytest.skip("ThreadSanitizer cannot run here: this kernel places memory where it does not expect any")


def test_threads_race_for_nothing_and_find_what_a_loop_finds(checked):
    """They come and go, merges block or not, and tasks are of one tuple or of many."""
    done = subprocess.run([*checked, "1", "8"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pairs of 8 joins are right" in done.stdout


@pytest.mark.parametrize("index", ["pim_tree", "po_join"])
@pytest.mark.parametrize("threads", [1, 2, 3])
@examples(0.3)
@given(case=cases())
def test_joins_find_the_same_with_any_number_of_threads(threads, index, case):
    assume(can_be_written(case))
    cut = steps(case)
    try:
        join = window_join(case, index=index, threads=threads)
    except (dt.PredicateError, dt.FlowError):
        assume(False)
    found = []
    for step in cut:
        found.append(ids(join.push(**push_arguments(case, step))))
        join.check()
    assert found == expected_steps(case, cut)


def flow_of(layout="shared", alone=False, **options):
    flow = dt.Flow("sharing")
    one, two = (
        flow.read(dt.memory(table(seed, 8000, 40), batch_rows=900), name=f"s{seed}", time="t") for seed in (1, 2)
    )
    on = [(left.x - right.x).abs() <= 0.002, left.k != right.k]
    join = one.join(one if alone else two, on=on, window=dt.last(3000), layout=layout, name="j", **options)
    return flow, join.select("id", "id_right")


@pytest.mark.parametrize("index", ["pim_tree", "po_join"])
@pytest.mark.parametrize("alone", [False, True], ids=["two streams", "itself"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_flow_shares_an_index_whatever_its_workers(workers, alone, index):
    _, expected = flow_of("auto", alone)
    flow, pairs = flow_of(alone=alone, threads=2, index=index)
    rows = []
    pairs.write(dt.call(lambda batch: rows.extend(batch.to_pylist())))
    result = flow.run(workers=workers, options=dt.Options(out_rows=500))
    assert rows == collected(expected).to_pylist() and rows
    assert result.steps["j"].found_by["left"] == f"{index} index on left.x"


def test_it_goes_on_from_a_checkpoint(tmp_path):
    failed = []

    def fails_once(batch):
        if not failed and batch.num_rows and batch.column("id")[0].as_py() > 5000:
            failed.append(1)
            raise ValueError("once")
        return batch

    _, expected = flow_of("auto")
    flow, pairs = flow_of(threads=2)
    rows = pairs.map(fails_once, pairs.schema).write(dt.collect())
    flow.run(checkpoint=tmp_path / "state", every="0s")
    assert failed and rows.table().equals(collected(expected))


def test_explain_says_who_works():
    flow, pairs = flow_of(threads=3)
    pairs.write(dt.null())
    said = str(flow.explain(physical=True))
    assert "spread shared: 3 threads of this process work on one index, as asked for" in said
    assert "find   left rows by pim_tree index on left.x: as asked for" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "join 'j': threads=0 must be a whole number from 1 to 256"),
        ({"threads": True}, "join 'j': threads=True must be"),
        ({"layout": "auto", "threads": 2}, "join 'j': threads=2 is for layout=\"shared\""),
        ({"threads": 2, "index": "carousel"}, "is for index='pim_tree' or 'po_join', and not for 'carousel'"),
    ],
)
def test_what_cannot_be_shared_is_said(options, message):
    with pytest.raises(dt.FlowError) as caught:
        flow_of(**{"layout": "shared", **options})
    assert message in str(caught.value)


@pytest.mark.parametrize("on", [left.s != right.s, (left.x > right.x + 1) | (left.x < right.x - 1)], ids=str)
def test_nor_a_predicate_without_a_range_of_one_key(on):
    schema = table(1, 1, 1).schema
    with pytest.raises((dt.PredicateError, dt.FlowError)):
        dt.WindowJoin(schema, schema, on=on, window=dt.last(10), threads=2)


def test_threads_come_and_go_while_a_join_runs():
    """A step is advanced by one thread, while another says how many are to help."""
    rng = np.random.default_rng(1)
    join, over, found = _native.SharedPim(2, 1, least=64, task=16), threading.Event(), []

    def changes():
        while not over.is_set():
            join.set_threads(int(rng.integers(1, 5)))

    other = threading.Thread(target=changes)
    other.start()
    try:
        keys = [rng.integers(0, 1000, 20_000, np.uint64) for _ in range(2)]
        rows = np.arange(20_000)
        roles = [
            (1 - s, s, keys[s], keys[s], np.maximum(0, rows + s - 500), rows + s, 2 * rows + s) for s in (0, 1)
        ]  # fmt: skip
        join.start(keys, [0, 0], roles, 40_000)
        answered = 0
        while answered < 40_000:
            each = join.advance(1000)
            answered = sum(upto for _, _, upto in each)
            found.append([(probe, row) for probe, row, _ in each])
    finally:
        over.set()
        other.join()
    join.check()
    assert join.merges > 10
    for side in (0, 1):
        probe, row = (np.concatenate([each[side][i] for each in found]) for i in (0, 1))
        expected = [
            (p, first + int(r))
            for p in range(20_000)
            for first in (max(0, p + side - 500),)
            for r in np.flatnonzero(keys[1 - side][first : p + side] == keys[side][p])
        ]
        assert list(zip(probe.tolist(), row.tolist(), strict=True)) == expected


def test_a_step_must_be_over_before_the_next():
    join = _native.SharedPim(1, 1)
    key, row = np.array([5], np.uint64), np.zeros(1, np.int64)
    join.start([key], [0], [(0, 0, key, key, row, row, row)], 1)
    with pytest.raises(RuntimeError, match="the step before is not over"):
        join.start([key], [1], [(0, 0, key, key, row, row, row)], 1)


def test_several_threads_need_the_locks():
    with pytest.raises(RuntimeError, match="need its locks"):
        _native.SharedPim(2, 2, locks=False)


def test_no_memory_in_a_thread_is_an_error_of_the_join():
    schema = pa.schema({"x": pa.int64()})
    join = dt.WindowJoin(schema, schema, on=(left.x - right.x).abs() <= 1, window=dt.last(50_000), threads=3)
    rows = pa.record_batch({"x": np.arange(30_000) % 100})
    _native.fail_allocation(40)
    try:
        with pytest.raises(MemoryError):
            join.push(rows, rows)
    finally:
        _native.fail_allocation(-1)
    with pytest.raises(dt.DovetailError, match="this join failed earlier"):
        join.push(rows, rows)
