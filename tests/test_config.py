"""Options: where they come from, and which values are refused."""

import dovetail as dt
import pytest
from dovetail.config import Options
from flows import memory, raises


def test_options_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("DOVETAIL_BATCH_ROWS", "1_0")
    monkeypatch.setenv("DOVETAIL_POLL_SECONDS", "0.5")
    assert Options.from_environment() == Options(batch_rows=10, poll_seconds=0.5)
    monkeypatch.setenv("DOVETAIL_BATCH_ROWS", "2")
    sizes = []
    stream = memory()
    stream.write(dt.call(lambda batch: sizes.append(batch.num_rows)))
    stream._flow.run()
    assert sizes == [2, 1]
    stream._flow.run(options=Options(batch_rows=1))
    assert sizes == [2, 1, 1, 1, 1]


def test_options_that_cannot_be(monkeypatch):
    with raises(dt.FlowError, "option batch_rows must be at least 1, not 0"):
        Options(batch_rows=0)
    with raises(dt.FlowError, "option poll_seconds must be at least 0, not -1"):
        Options(poll_seconds=-1)
    with raises(dt.FlowError, "option out_rows must be a whole number, not '7'"):
        Options(out_rows="7")
    with raises(dt.FlowError, "option hold_bytes must be a whole number, not True"):
        Options(hold_bytes=True)
    monkeypatch.setenv("DOVETAIL_OUT_ROWS", "many")
    stream = memory()
    stream.write(dt.null())
    with raises(dt.FlowError, "DOVETAIL_OUT_ROWS='many' is not a number; the default is 65536"):
        stream._flow.run()


@pytest.mark.parametrize(
    "option", [{"batch_rows": 2.5}, {"out_rows": float("inf")}, {"poll_seconds": float("nan")}], ids=str
)
def test_options_that_no_run_could_work_with_are_refused(option):
    with raises(dt.FlowError, f"option {next(iter(option))} must be"):
        Options(**option)
