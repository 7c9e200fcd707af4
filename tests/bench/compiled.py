"""C++ that is measured beside the stores: compiled with them, when either has changed."""

import ctypes
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def compiled(name, *links, needs=""):
    """Return tests/bench/`name`.cc and the stores as a library; `links`: others, which it `needs`."""
    to = ROOT / "build" / f"{name}.so"
    to.parent.mkdir(exist_ok=True)
    sources = [HERE / f"{name}.cc", *sorted((ROOT / "state").glob("*.cc"))]
    newest = max(path.stat().st_mtime for path in [*sources, *(ROOT / "state").glob("*.hpp")])
    if not to.exists() or to.stat().st_mtime < newest:
        command = ["g++", "-std=c++17", "-O3", "-DNDEBUG", "-shared", "-fPIC", f"-I{ROOT / 'state'}"]
        command += [*map(str, sources), *links, "-o", str(to)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{done.stderr}\n{needs}")
    return ctypes.CDLL(str(to))
