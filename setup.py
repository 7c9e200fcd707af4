"""Only the native extension: everything else about the package stands in setup.cfg."""

import os

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

# DOVETAIL_DEBUG=1 builds with bounds checks, C++ assertions and the sanitizers (`make sanitize`).
DEBUG = os.environ.get("DOVETAIL_DEBUG") == "1"

compile_args = ["-std=c++17", "-Wall", "-Wextra", "-Wno-unused-function", "-fvisibility=hidden", "-pthread"]
link_args = ["-pthread"]
if DEBUG:
    # CPython's flags bring -fwrapv, which hides signed overflow from UBSan: -fno-wrapv takes it back.
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-wrapv"]
    compile_args += [*checks, "-O1", "-g", "-D_GLIBCXX_ASSERTIONS", "-UNDEBUG"]
    link_args += checks
else:
    compile_args += ["-O3"]

extension = Extension(
    "dovetail.state._native",
    ["state/_native.pyx", *sorted(f"state/{name}" for name in os.listdir("state") if name.endswith(".cc"))],
    include_dirs=[numpy.get_include(), "state"],
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
    extra_compile_args=compile_args,
    extra_link_args=link_args,
    depends=[f"state/{name}" for name in sorted(os.listdir("state")) if name.endswith(".hpp")],
    language="c++",
)

setup(
    # Without a name of its own this file would be packed into the wheel as dovetail/setup.py.
    script_name="setup.py",
    # Objects of both kinds must not meet.
    options={"build": {"build_base": "build/debug" if DEBUG else "build/release"}},
    ext_modules=cythonize(
        [extension],
        compiler_directives={
            "language_level": 3,
            "boundscheck": DEBUG,
            "wraparound": False,
            "initializedcheck": DEBUG,
            "nonecheck": DEBUG,
            "cdivision": True,
        },
    ),
)
