"""The command line: what it runs, what it says on which stream, and with which code it ends."""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from dovetail import cli
from dovetail.monitoring.progress import Progress, Status, short

HEAD = "import dovetail as dt\nimport pyarrow as pa\nfrom dovetail import col, left, right\n"

SMALL = """
flow = dt.Flow("small")
flow.read(dt.memory({"x": [1, 2, 3]}), name="a").filter(col("x") > 1).write(dt.show())
"""

ENDLESS = """
import itertools

@dt.source
class Endless:
    schema = pa.schema([("x", pa.int64())])
    def __init__(self):
        self.numbers = itertools.count()
    def read(self):
        return pa.record_batch({"x": [next(self.numbers)]})
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder of its own to work in; nothing that was imported there stays."""
    monkeypatch.chdir(tmp_path)
    runs = tempfile.mkdtemp(dir="/dev/shm", prefix="dvt-")  # jobs keep something there; sockets need a short path
    monkeypatch.setenv("DOVETAIL_RUNS", runs)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if not name.startswith(("dovetail", "pyarrow")):
            del sys.modules[name]
    shutil.rmtree(runs)


def write(name, text=SMALL):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(HEAD + textwrap.dedent(text))
    return name


def ran(capsys, *arguments):
    """(exit code, standard output, standard error)"""
    code = cli.main(arguments)
    return code, *capsys.readouterr()


def command(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "dovetail", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options,
    )  # fmt: skip


def done(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


# --- finding the flow --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["one.py", "one.py:flow", "one", "one:flow", "jobs/two.py", "jobs.two:flow"])
def test_a_flow_is_named_by_a_file_or_a_module_and_is_called_flow_if_nothing_else_is_said(target, capsys):
    write("one.py")
    write("jobs/two.py")
    code, out, err = ran(capsys, "run", target)
    assert (code, out.split()) == (0, ["x", "2", "3"])
    assert err.startswith("flow 'small' finished in ")


def test_a_flow_may_have_another_name_or_be_made_by_a_function(capsys):
    write("named.py", SMALL.replace("flow", "other") + "\ndef make():\n    return other\n")
    assert ran(capsys, "run", "named.py:other")[0] == 0
    assert ran(capsys, "run", "named.py:make")[0] == 0


def test_a_file_may_import_its_neighbours(capsys):
    write("jobs/words.py", 'WORD = "beside"')
    write("jobs/near.py", "from words import WORD\n" + SMALL.replace('"small"', "WORD"))
    assert "flow 'beside' finished" in ran(capsys, "run", "jobs/near.py")[2]


WRONG = {
    "no file": ("none.py:flow", "none.py:flow: there is no file 'none.py' (looked in "),
    "no module": ("none.at.all", "none.at.all: there is no module 'none.at.all'; name a file as path/to/file.py:flow"),
    "no module, and a name": ("none:job", "none:job: there is no module 'none'; name a file as path/to/file.py:job"),
    "a name that is not there": ("wrong.py:floww", "wrong.py has no 'floww'; of flows, did you mean 'flow'?"),
    "something else": ("wrong.py:number", "wrong.py:number: 'number' is a int, not a dt.Flow or a function that"),
    "a function of something else": ("wrong.py:nothing", "'nothing' is a NoneType, not a dt.Flow"),
    "a function with arguments": ("wrong.py:needs", "'needs'"),
    "no place": (":flow", ":flow: "),
    "a path without .py": ("./wrong:flow", "./wrong:flow: there is no module './wrong'; name a file as"),
    "a path to a folder above": ("../wrong", "../wrong: there is no module '../wrong'; name a file as"),
    "a flow that writes nothing": ("wrong.py", "flow 'wrong' writes nothing, so there is nothing to run"),
    "no Python": ("open.py", "open.py, line 2: '(' was never closed\n    flow = dt.Flow("),
    "a flow that cannot be written": ("broken.py", "filter 'f': there is no column 'y'; there are: x"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_run_as_written_is_told_in_a_line_and_ends_with_2(case, capsys):
    write(
        "wrong.py",
        """
        flow, number, nothing = dt.Flow("wrong"), 5, lambda: None
        def needs(what):
            return flow
    """,
    )
    write("broken.py", 'dt.Flow("b").read(dt.memory({"x": [1]})).filter(col("y") > 1, name="f")')
    Path("open.py").write_text("import dovetail as dt\nflow = dt.Flow(")
    target, text = WRONG[case]
    code, out, err = ran(capsys, "run", target)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert text in err
    assert "Traceback" not in err


def test_a_module_that_cannot_import_what_it_needs_is_not_said_to_be_missing(capsys):
    write("needy.py", "import is_not_there")
    with pytest.raises(ModuleNotFoundError, match="is_not_there"):
        cli.main(["run", "needy"])


def test_a_flow_that_cannot_run_is_raised_with_traceback(capsys):
    with pytest.raises(ValueError, match="there is no file"):
        cli.main(["run", "none.py", "--traceback"])


@pytest.mark.parametrize("line", ["", "walk x", "run", "run x --mermaid", "explain x --quiet"])
def test_a_command_line_that_cannot_be_is_told_with_its_usage(line, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(line.split())
    assert ended.value.code == 2
    assert "usage: dovetail" in capsys.readouterr().err


# --- run and explain ---------------------------------------------------------------------------------------


def test_explain_prints_the_plan_and_runs_nothing(capsys):
    write("plan.py")
    code, out, err = ran(capsys, "explain", "plan.py")
    assert (code, err) == (0, "")
    assert out.startswith("flow 'small', in one process\n\nread a\n")
    code, out, _ = ran(capsys, "explain", "plan.py", "--mermaid")
    assert out.startswith("flowchart LR\n    n0[(")


def test_quiet_shows_results_and_nothing_else(capsys):
    write("hush.py")
    code, out, err = ran(capsys, "run", "hush.py", "--quiet")
    assert (code, out.split(), err) == (0, ["x", "2", "3"], "")


FAILS = """
def fn(batch):
    if 3 in batch["x"].to_pylist():
        raise ValueError("three is out")
    return batch

flow = dt.Flow("fails")
rows = flow.read(dt.memory({"x": [1, 2, 3, 4]}, batch_rows=1), name="a")
rows.map(fn, rows.schema, name="m").write(dt.parquet("out"))
"""


def test_an_error_while_running_is_told_with_what_it_means_for_the_output_and_ends_with_1(capsys):
    write("fails.py", FAILS)
    code, out, err = ran(capsys, "run", "fails.py", "--quiet")
    assert (code, out) == (1, "")
    first, second = err.splitlines()
    assert re.fullmatch(r"error: map 'm': fn \(\S*fails\.py:\d+\) raised ValueError: three is out", first)
    assert second == "The output of flow 'fails' is incomplete; files that were written are whole."
    assert not [path for path in Path("out").iterdir() if not path.name.startswith("part-")]
    with pytest.raises(Exception, match="three is out"):
        cli.main(["run", write("again.py", FAILS.replace('"out"', '"out2"')), "--traceback"])


def test_a_process_finds_modules_where_it_stands_and_ends_with_their_code():
    write("jobs/ok.py")
    processes = [command("run", "jobs.ok"), command("run", "jobs.none:flow"), command("explain", "jobs/ok.py:flow")]
    (code, out, err), wrong, plan = map(done, processes)
    assert (code, out.split()) == (0, ["x", "2", "3"])
    assert "flow 'small' finished in " in err
    assert wrong[:2] == (2, "")
    assert wrong[2] == "error: jobs.none:flow: there is no module 'jobs.none'; name a file as path/to/file.py:flow\n"
    assert (plan[0], plan[2]) == (0, "")
    assert plan[1].startswith("flow 'small', in one process\n")


# --- the live line -----------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def status(seconds, rows_in=0, **more):
    given = {"rows_out": 0, "late": 0, "watermark": "none", "held_bytes": 0} | more
    return Status("f", seconds, rows_in, **given)


def test_a_terminal_has_one_line_that_is_written_over(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    show = Progress(stream)
    show(status(0.5, 1_000, rows_out=5))
    show(status(1.0, 2_000, rows_out=5, late=1, watermark="7", held_bytes=5_000))
    assert stream.getvalue().split("\r\x1b[2K") == [
        "",
        "f 0.5 s  in 2 k/s  out 10/s  late 0  watermark none  memory 0B",
        "f 1.0 s  in 2 k/s  out 0/s  late 1  watermark 7  memory 5 kB",
    ]
    show.close()
    assert stream.getvalue().endswith("kB\r\x1b[2K")


def test_the_line_is_cut_to_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    Progress(stream)(status(1.0, 1_000))
    assert stream.getvalue() == "\r\x1b[2Kf 1.0 s  in 1 k/s  "


def test_a_terminal_on_which_nothing_was_shown_is_left_alone():
    stream = Terminal()
    Progress(stream).close()
    assert stream.getvalue() == ""


def test_a_log_has_a_plain_line_every_few_seconds():
    stream = io.StringIO()
    show = Progress(stream)
    for seconds in range(1, 13):
        show(status(float(seconds), 1_000 * seconds))
    show.close()
    assert stream.getvalue().splitlines() == [
        f"f {seconds} s  in 1 k/s  out 0/s  late 0  watermark none  memory 0B" for seconds in ("5.0", "10.0")
    ]


def test_counts_for_a_narrow_place():
    assert [short(n) for n in (0, 999, 1_000, 1_234_567, 5e9)] == ["0", "999", "1 k", "1.23 M", "5 G"]


@pytest.mark.parametrize("n", [999_999, 999_999_999])
def test_a_count_just_below_the_next_unit_is_still_a_short_one(n):
    assert re.fullmatch(r"\d{1,3}(\.\d+)?( [kMG])?", short(n))


def test_a_run_on_a_terminal_leaves_only_its_report(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    assert cli.main(["run", write("live.py")]) == 0
    _, line, rest = stream.getvalue().split("\r\x1b[2K")
    assert line.startswith("small 0.")
    assert rest.startswith("flow 'small' finished in ")


def test_a_terminal_is_cleaned_before_an_error_is_told(monkeypatch):
    monkeypatch.setattr("dovetail.engine.run.PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    code = cli.main(["run", "--every", "0s", write("dies.py", ENDLESS + """
flow = dt.Flow("dies")
rows = flow.read(Endless(), name="a")
rows.map(lambda batch: 1 // 0 if batch["x"][0].as_py() else batch, rows.schema, name="m").write(dt.null())
""")])  # fmt: skip
    assert code == 1
    assert "\r\x1b[2Kerror: map 'm': " in stream.getvalue()


# --- what the outside does ---------------------------------------------------------------------------------

SHOWN = (
    ENDLESS
    + """
flow = dt.Flow("endless")
flow.read(Endless(), name="a").write(dt.show(1))
"""
)


def read_a_row(process):
    assert process.stdout.readline().strip() == "x"
    assert process.stdout.readline().strip() == "0"


def test_ctrl_c_ends_a_run_with_its_report_and_130():
    process = command("run", write("endless.py", SHOWN))
    read_a_row(process)
    process.send_signal(signal.SIGINT)
    code, out, err = done(process)
    assert code == 130
    assert re.fullmatch(r"(… and [\d,]+ more rows?\n)?", out)
    assert re.search(r"flow 'endless' stopped in [\d.]+ s: [\d,]+ rows in ", err)
    assert "Traceback" not in err


def test_a_second_ctrl_c_is_told_and_ends_with_130(capsys):
    write(
        "twice.py",
        """
        import signal
        def fn(batch):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        flow = dt.Flow("twice")
        flow.read(dt.memory({"x": [1]})).map(fn, pa.schema([])).write(dt.show())
    """,
    )
    code, out, err = ran(capsys, "run", "twice.py")
    assert (code, out) == (130, "")
    assert err.endswith("stopped at once\n")


def test_a_reader_of_results_that_goes_away_ends_a_run_without_a_traceback():
    process = command("run", write("piped.py", SHOWN.replace("show(1)", "show(10**9)")), "--quiet")
    assert process.stdout.readline().strip() == "x"
    process.stdout.close()
    process.stdout = None
    code, _, err = done(process)
    assert code == 1
    assert "Traceback" not in err
    assert "Exception ignored" not in err


def test_a_reader_of_a_plan_that_goes_away_ends_without_a_word():
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail", "explain", write("plan.py")],
        stdout=writing, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(writing)
    assert done(process) == (1, None, "")


def test_a_full_disk_ends_a_run_with_1_and_whole_files():
    """Each batch has twice the rows of the one before and is a file; the fifth finds no room."""
    write("full.py", ENDLESS + """
import os
import resource

def big(batch):
    rows = sum(2**x for x in batch["x"].to_pylist())
    return pa.record_batch({"x": pa.array([os.urandom(1 << 16) for _ in range(rows)], pa.binary())})

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
flow = dt.Flow("full")
flow.read(Endless(), name="a").map(big, name="m").write(dt.parquet("out"), name="w")
""")  # fmt: skip
    code, out, err = done(command("run", "full.py", "--every", "0s"))
    assert (code, out) == (1, "")
    assert "error: write 'w': " in err
    assert "The output of flow 'full' is incomplete; files that were written are whole." in err
    assert "Traceback" not in err
    files = sorted(Path("out").iterdir())
    assert [pq.read_table(path).num_rows for path in files] == [1, 2, 4, 8]
