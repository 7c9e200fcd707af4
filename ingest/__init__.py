"""Where rows come from and where results go: the sources and sinks that come with Dovetail.

Everything here obeys `operators.contracts`, and nothing here knows of flows, joins or time: a *specification*
says what to read or write and may be used again and again; opening it gives a reader or a writer that lives
for one run.

======================  ==============================  ======================================================
source                  sink                            file
======================  ==============================  ======================================================
`memory`                `collect`                       `memory.py`, `sinks.py`
`parquet`, `csv`        `parquet`, `csv`                `files.py` (both roles), `folder.py` (the parts)
`synthetic`                                             `synthetic.py`
`spark`                                                 `spark/`
`source(cls)`           `sink(cls)`                     `own.py`
..                      `show`, `call`, `null`          `sinks.py`
======================  ==============================  ======================================================

What holds for all of them:

- A source says its schema before a row is read, and every batch has exactly that schema (or the columns of it
  that were asked for). Data that differ are an error that names the column, never a cast and never a gap.
- The rows of a source, and their order, do not depend on `batch_rows`.
- A sink shows nothing before `commit`. After `abort` nothing more appears, and what is visible is whole.
- An error ends the reader for good: reading on gives the same error, never an early end.

`_common.py` holds what they share: comparing schemas, cutting batches, calling the user's functions.
"""

__all__ = [
    "call",
    "collect",
    "csv",
    "memory",
    "null",
    "parquet",
    "show",
    "sink",
    "source",
    "spark",
    "synthetic",
]

from .files import csv, parquet
from .memory import memory
from .own import sink, source
from .sinks import call, collect, null, show
from .spark import spark
from .synthetic import synthetic
