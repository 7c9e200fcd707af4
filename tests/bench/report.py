"""From figures that were saved to the tables and plots of docs/: `python -m tests.bench.report`.

Those of `tests.bench.state` here, those of `tests.bench.claims` in `claims_report`.
"""

import json
import pathlib

from . import plots

DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"
FIGURES = DOCS / "index-figures.json"


def figures():
    """Return {(table, case, store): {how: {rate, ratio, bytes, matches}}}."""
    return {tuple(key.split(" | ")): value for key, value in json.loads(FIGURES.read_text()).items()}


def table(head, rows):
    """Return Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def cell(measured, how):
    """Return a rate and its ratio to Abseil's tree."""
    if how not in measured:
        return ""
    return f"{measured[how]['rate']:.1f} ({measured[how]['ratio']:.1f} ×)"


def by_window(found):
    """Return a table for each window, all stores and batches."""
    out = []
    windows = sorted({int(case) for kind, case, _ in found if kind == "windows"})
    for w in windows:
        rows = []
        mine = {store: value for (kind, case, store), value in found.items() if (kind, case) == ("windows", str(w))}
        absl = [value["tuple by tuple"]["rate"] for value in mine.values()]
        for store, value in mine.items():
            size = max(v["bytes"] for how, v in value.items() if how != "tuple by tuple")
            one = cell(value, "native 1")
            batches = [cell(value, f"python {n}") for n in (64, 1024, 32768)]
            rows.append([store, one, *batches, f"{size:.0f}" if size else ""])
        rows.sort(key=lambda row: row[0] != "carousel")
        head = ["index", "one at a time", "batches of 64", "1,024", "32,768", "bytes a row"]
        out.append(
            f"### {w:,} rows a window\n\nAbseil's tree: {sorted(absl)[len(absl) // 2]:.2f}.\n\n{table(head, rows)}"
        )
    return "\n\n".join(out)


def by_case(found, kind, how="python 32768", other="python 1024"):
    """Return one table: cases down, stores across."""
    cases = list(dict.fromkeys(case for k, case, _ in found if k == kind))
    stores = list(dict.fromkeys(store for k, _, store in found if k == kind))
    rows = []
    for case in cases:
        values = {store: found[kind, case, store] for store in stores if (kind, case, store) in found}
        absl = sorted(v["tuple by tuple"]["rate"] for v in values.values())
        pairs = next(iter(values.values()))["tuple by tuple"]["matches"]
        cells = [
            f"{values[store].get(how, values[store].get(other))['rate']:.1f}" if store in values else ""
            for store in stores
        ]
        rows.append([case, f"{pairs:.2g}", f"{absl[len(absl) // 2]:.2f}", *cells])
    return table(["", "pairs a tuple", "Abseil", *stores], rows)


def by_grid(found):
    """Return one table: distributions and windows down, batches across, and what is left without AVX-512."""
    rows = []
    for (kind, case, w), value in found.items():
        if kind != "grid":
            continue
        portable = found["grid portable", case, w]
        shares = [portable[f"native {n}"]["rate"] / value[f"native {n}"]["rate"] for n in (1, 64, 1024, 32768)]
        rows.append([case, f"{int(w):,}", *(cell(value, f"native {n}") for n in (1, 64, 1024, 32768)),
                     f"{min(shares):.0%} – {max(shares):.0%}"])  # fmt: skip
    head = ["keys", "rows a window", "one at a time", "batches of 64", "1,024", "32,768", "without AVX-512"]
    return table(head, rows)


def draw(found):
    """Write the plots."""
    by_w, sizes, matches = {}, {}, {}
    for (kind, case, store), value in found.items():
        if kind == "windows":
            by_w.setdefault("absl", {})[int(case)] = value["tuple by tuple"]["rate"]
            best = value.get("python 32768", value["native 1"])
            by_w.setdefault(store, {})[int(case)] = best["rate"]
            if best["bytes"]:
                sizes.setdefault(store, {})[int(case)] = best["bytes"]
        elif kind == "matches":
            matches.setdefault("absl", {})[float(case)] = value["tuple by tuple"]["rate"]
            best = max(figure["rate"] for how, figure in value.items() if how.startswith("python"))
            matches.setdefault(store, {})[float(case)] = best

    names = ["carousel", *sorted({*by_w, *matches} - {"carousel"})]

    def series(data):
        return {name: list(points.items()) for name, points in data.items()}

    if by_w:
        text = plots.lines("Throughput by window, batches of 32,768", "rows a window", "M tuples/s", series(by_w),
                           names=names, bold=("carousel",))  # fmt: skip
        (DOCS / "index-throughput.svg").write_text(text)
        text = plots.lines("Memory by window", "rows a window", "bytes a row", series(sizes), log_y=False,
                           names=names, bold=("carousel",))  # fmt: skip
        (DOCS / "index-memory.svg").write_text(text)
    if matches:
        text = plots.lines("Throughput by pairs found, 131,072 rows a window", "pairs a tuple", "M tuples/s",
                           series(matches), names=names, bold=("carousel",))  # fmt: skip
        (DOCS / "index-matches.svg").write_text(text)


def main():
    """Write docs/index-figures.md, docs/claims.md and the plots."""
    from . import claims_report

    claims_report.write()
    found = figures()
    draw(found)
    parts = [
        """# Figures of the window indexes

Made by `make bench-state`: millions of tuples a second of both streams on one core, and in brackets the ratio to
Abseil's `btree_multimap` with one insertion and one deletion a tuple, run beside it on the same tuples. A band join
over count windows, two pairs a tuple, `int64` keys drawn evenly, unless said otherwise. Batches go through the stores
as Python sees them; one at a time is inside one native call. What they mean is told in [indexes](indexes.md).""",
        "## By window\n\n" + by_window(found),
    ]
    names = {"keys": "By distribution of keys, 1,048,576 rows, batches of 32,768",
             "matches": "By pairs found, 131,072 rows, batches of 32,768",
             "small": "Tiny windows, batches of 1,024",
             "shapes": "The carousel on other shapes", "portable": "The carousel without AVX-512"}  # fmt: skip
    for kind, title in names.items():
        if any(k == kind for k, _, _ in found):
            parts.append(f"## {title}\n\n{by_case(found, kind)}")
    parts.append(f"## The carousel on all keys, windows and batches, inside one call\n\n{by_grid(found)}")
    (large,) = found["largest", "w = 2^26", "carousel"].values()
    parts.append(
        f"""## A window of 2^26 rows

One `carousel` of 67,108,864 rows that is full and goes on, through Python in batches of 65,536: {large["rate"]:.1f} M
rows a second, each inserted, looked up ({large["matches"]:.2f} found) and expired; {large["bytes"]:.1f} bytes a row;
its invariants hold at the end."""
    )
    (DOCS / "index-figures.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
