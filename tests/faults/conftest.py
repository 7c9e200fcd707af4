"""Prints, at the end of the whole matrix, what each fault came to."""

import os
from collections import Counter


def pytest_terminal_summary(terminalreporter):
    if os.environ.get("DOVETAIL_FAULTS") != "all":
        return
    runs, attempts, starts = Counter(), Counter(), Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "fault" and getattr(report, "when", "") == "teardown":
                    what, how = value
                    runs[what] += 1
                    attempts[what] += how["attempts"]
                    starts[what] += how["starts"]
    if not runs:
        return
    terminalreporter.section("faults")
    terminalreporter.line(f"{'fault':<52} {'runs':>5} {'other attempts':>15} {'other starts':>13}")
    for what in sorted(runs):
        terminalreporter.line(f"{what:<52} {runs[what]:>5} {attempts[what]:>15} {starts[what]:>13}")
    sums = [sum(counts.values()) for counts in (runs, attempts, starts)]
    terminalreporter.line(f"{'all':<52} {sums[0]:>5} {sums[1]:>15} {sums[2]:>13}")
