"""The house itself: what is linted, which room may import which, what is built, and that the docs are true."""

import ast
import doctest
import importlib
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import dovetail as dt
import pytest

ROOT = Path(__file__).resolve().parent.parent
HALL = {"batch", "config", "disk", "errors"}
DOOR = {"__init__", "__main__", "cli", "in_spark"}

# Which room may import which; every room may import the hall.
ARROWS = {
    "state": set(),
    "transport": set(),
    "monitoring": set(),
    "operators": {"state"},
    "engine": {"operators", "transport", "monitoring"},
    "ingest": {"operators"},
}


def modules():
    """Every module of the package, as (room or '', its name in there, path)."""
    for path in sorted(ROOT.glob("*.py")):
        if path.name != "setup.py":
            yield "", path.stem, path
    for room in sorted(ARROWS):
        for path in sorted((ROOT / room).glob("**/*.py")):
            yield room, ".".join(path.relative_to(ROOT / room).with_suffix("").parts), path


def rooms_imported(path: Path):
    """The rooms (or modules of the hall) that a module of this package imports, and from which line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            here = path.relative_to(ROOT).parts[:-1]
            inside = here[: len(here) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            for name in names:
                yield (inside[0] if inside else name.partition(".")[0]), node.lineno
        else:
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not (name or "").startswith("dovetail"), f"{path}:{node.lineno} imports {name}: be relative"


@pytest.mark.parametrize(("room", "name", "path"), [pytest.param(*m, id=f"{m[0]}.{m[1]}") for m in modules()])
def test_arrows_run_one_way(room, name, path):
    allowed = ARROWS[room] | HALL | {room} if room else HALL if name in HALL else HALL | set(ARROWS) | DOOR
    for imported, line in rooms_imported(path):
        assert imported in allowed, f"{path}:{line}: {room or name} may not import {imported}"


def test_arrows_one_file_of_the_engine_knows_monitoring():
    files = [path.name for room, _, path in modules() if room == "engine"
             and any(to == "monitoring" for to, _ in rooms_imported(path))]  # fmt: skip
    assert files == ["run.py"]


def test_arrows_only_ingest_imports_pyspark_and_only_monitoring_prometheus():
    for room, _, path in modules():
        text = path.read_text()
        assert room == "ingest" or not re.search(r"^\s*(import|from) pyspark", text, re.M), path
        assert room == "monitoring" or not re.search(r"^\s*(import|from) prometheus_client", text, re.M), path


def test_every_room_is_packed():
    packages = re.search(r"^packages =\n((?:    .*\n)+)", (ROOT / "setup.cfg").read_text(), re.M)[1].split()
    folders = {path.parent.relative_to(ROOT).parts for _, _, path in modules()}
    assert packages == sorted(".".join(["dovetail", *folder]) for folder in folders)


def test_everything_public_is_named_once():
    assert sorted(dt.__all__, key=str) == sorted(set(dt.__all__), key=str)
    for name in dt.__all__:
        assert hasattr(dt, name), name
    assert f"version = {dt.__version__}\n" in (ROOT / "setup.cfg").read_text()


@pytest.mark.slow
def test_ruff_finds_nothing():
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "."], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_mypy_finds_nothing(tmp_path):
    # A link gives the checkout the package's name, whatever folder it stands in.
    (tmp_path / "dovetail").symlink_to(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "setup.cfg"), "--cache-dir", str(tmp_path / "cache"),
         *(str(tmp_path / "dovetail" / path.relative_to(ROOT)) for _, _, path in modules())],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def named(room, name):
    return ".".join(["dovetail", *([room] if room else []), name]).removesuffix(".__init__")


@pytest.mark.parametrize("module", [named(r, n) for r, n, _ in modules() if n != "__main__"])
def test_doctests(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failures = doctest.testmod(importlib.import_module(module))
    assert failures.failed == 0


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_code_on_the_page_runs(page, tmp_path, monkeypatch):
    """Python blocks of a page run one after another, as one program; a block in `text` behind one is its output."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.M | re.S)
    program, expected = [], []
    for language, text in blocks:
        if language == "python":
            program.append(text)
        elif language == "output":
            expected.append(text)
    if not program:
        return
    script = tmp_path / f"{page.stem}_page.py"
    script.write_text("\n".join(program))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for text in expected:
        assert text in done.stdout, f"{page.name} promises\n{text}\nand it printed\n{done.stdout}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_on_the_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(example, tmp_path):
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "PYTHONIOENCODING": "utf-8", "TMPDIR": str(tmp_path)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"(finished|stopped) in .*rows in", done.stdout)
    assert not done.stderr


def test_options_are_documented():
    page = (ROOT / "docs" / "architecture.md").read_text()
    for name, field in dt.Options.__dataclass_fields__.items():
        row = re.search(rf"^\| `{name}` \| ([0-9_.]+) \|", page, re.M)
        assert row, f"{name} is missing from the table of options"
        assert float(row[1]) == float(field.default), name


@pytest.mark.slow
def test_wheel_and_sdist_install_into_a_clean_environment(tmp_path):
    """What is published works on its own: built from the sdist, installed, run."""
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)], check=True, capture_output=True
    )
    [sdist], [wheel] = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    held = zipfile.ZipFile(wheel).namelist()
    assert "dovetail/setup.py" not in held and not [name for name in held if name.endswith((".cpp", ".pyc"))]
    assert not [name for name in held if name.startswith("dovetail/tests")]
    for name, package in (("from-wheel", wheel), ("from-sdist", sdist)):
        home = tmp_path / name
        venv.create(home, with_pip=True)
        python = home / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(package)], check=True)
        code = (
            "import dovetail as dt; from dovetail import left, right; f = dt.Flow('f');"
            "a = f.read(dt.memory({'x': [1, 2]})); b = f.read(dt.memory({'y': [2, 3]}));"
            "out = a.join(b, on=left.x < right.y, window=dt.last(9)).write(dt.collect()); f.run();"
            "print(out.table().num_rows, dt.__file__)"
        )
        done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.startswith("3 ") and str(home) in done.stdout, done.stdout + done.stderr
        done = subprocess.run([home / "bin" / "dovetail", "--help"], cwd=tmp_path, capture_output=True, text=True)
        assert "explain" in done.stdout
