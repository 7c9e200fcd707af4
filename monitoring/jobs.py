"""Jobs on a terminal: a table of all of them, and what there is to know of one.

Both are given what is known of a job as a dict, with whatever of it there is: one that was killed has no counts.
"""

__all__ = ["job_details", "job_table"]

import time
from collections.abc import Mapping, Sequence
from typing import Any

from .progress import short


def job_table(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each job.

    >>> fares = {"name": "fares", "state": "running", "seconds": 10.0, "rows_in": 5_000_000, "rows_out": 12, "late": 0,
    ...     "watermark": "1700", "checkpoint": 4, "workers": 2, "attempt": 1, "rows_before": 0}
    >>> print(job_table([fares, {"name": "old", "state": "killed"}]))
    job    state    rows in  a second  rows out  late  watermark  checkpoint  workers  attempt
    fares  running      5 M     500 k        12     0       1700           4        2        1
    old    killed
    >>> print(job_table([]))
    there are no jobs
    """
    if not jobs:
        return "there are no jobs"
    head = ["job", "state", "rows in", "a second", "rows out", "late", "watermark", "checkpoint", "workers", "attempt"]
    rows = [head]
    for job in jobs:
        row = [job["name"], job["state"]]
        if "rows_in" in job:
            checkpoint = "none" if job["checkpoint"] is None else str(job["checkpoint"])
            row += [short(job["rows_in"]), short(_rate(job)), short(job["rows_out"]), short(job["late"])]
            row += [job["watermark"], checkpoint, str(job["workers"]), str(job["attempt"])]
        rows.append(row + [""] * (len(head) - len(row)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths)))
        .rstrip()
        for row in rows
    )


def job_details(job: Mapping[str, Any]) -> str:
    """Return what is known of a job, a line for each thing."""
    lines = [("job", job["name"]), ("state", job["state"])]
    if "since" in job:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job["since"]))
        lines.append(("since", f"{since}, process {job['pid']}"))
        lines.append(("started by", f"{job['command']} (in {job['folder']})"))
    if "rows_in" in job:
        lines += [
            ("rows in", f"{job['rows_in']:,}, {short(_rate(job))} a second; {job['late']:,} late"),
            ("rows out", f"{job['rows_out']:,}"),
            ("watermark", job["watermark"]),
            ("memory", f"{short(job['held_bytes'])}B in windows"),
            ("workers", str(job["workers"])),
            ("attempt", f"{job['attempt']}, for {job['seconds']:.0f} s"),
        ]
        if job["checkpoint"] is not None:
            lines.append(("checkpoint", str(job["checkpoint"])))
    if job.get("checkpoints"):
        lines.append(("kept in", job["checkpoints"]))
    if job.get("detached"):
        lines.append(("log", job["log"]))
    if job["state"] == "killed":
        lines.append(("to go on", job.get("command", "run it again")))
    if "message" in job:
        lines.append(("", ""))
        lines.append(("", job["message"]))
    return "\n".join(f"{what:<11} {text}" if what else text for what, text in lines)


def _rate(job: Mapping[str, Any]) -> float:
    return float(job["rows_in"] - job["rows_before"]) / max(float(job["seconds"]), 1e-9)
