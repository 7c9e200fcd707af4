"""What a run did: counts, rates, watermarks and late rows, step by step."""

__all__ = ["Result", "StepReport"]

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepReport:
    """One step.

    `watermark` is written for people; `held_bytes` is what the step kept at its end; `null_keys` counts rows of a
    join that a null or NaN in a key kept from ever matching; `found_by` says how a join found the rows of each side,
    and `spread` how it was spread over workers, and why so.
    """

    name: str
    kind: str
    rows_in: int
    rows_out: int
    late: int = 0
    watermark: str = "none"
    held_bytes: int = 0
    null_keys: int = 0
    found_by: dict[str, str] = field(default_factory=dict)
    spread: str = ""


@dataclass(frozen=True)
class Result:
    """What a run did. Print it for a table.

    `outcome` is "finished" when the sources ended, "stopped" after Ctrl-C (what had been done by then is kept).
    """

    flow: str
    outcome: str
    seconds: float
    steps: dict[str, StepReport] = field(default_factory=dict)
    rows_before: int = 0  # of `rows_in`, those that earlier attempts or runs have read

    @property
    def rows_in(self) -> int:
        """Rows that sources brought, late ones included."""
        return sum(step.rows_in for step in self.steps.values() if step.kind == "read")

    @property
    def rows_out(self) -> int:
        """Rows that sinks were given."""
        return sum(step.rows_in for step in self.steps.values() if step.kind == "write")

    @property
    def late(self) -> int:
        """Rows that came too late."""
        return sum(step.late for step in self.steps.values())

    @property
    def rate(self) -> float:
        """Rows read in a second, by this run alone."""
        return (self.rows_in - self.rows_before) / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        head = ("step", "kind", "rows in", "rows out", "late", "watermark")
        rows = [
            (
                s.name,
                s.kind,
                f"{s.rows_in:,}",
                f"{s.rows_out:,}",
                f"{s.late:,}" if s.kind == "read" else "",
                s.watermark,
            )
            for s in self.steps.values()
        ]
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        right = {2, 3, 4}
        lines = [
            "  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip()
            for row in (head, tuple("-" * w for w in widths), *rows)
        ]
        done = f"flow {self.flow!r} {self.outcome} in {self.seconds:.2f} s: {self.rows_in:,} rows in "
        done += f"({self.rate:,.0f} a second), {self.rows_out:,} out, {self.late:,} late"
        nulls = [
            f"{s.kind} {s.name}: {s.null_keys:,} rows have a null or NaN in a key, which matches nothing"
            for s in self.steps.values()
            if s.null_keys
        ]
        changed = [
            f"{s.kind} {s.name}: {side} rows were found by {how}"
            for s in self.steps.values()
            for side, how in s.found_by.items()
            if "from row" in how
        ]
        return "\n".join([done, *lines, *nulls, *changed])
