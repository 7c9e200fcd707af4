"""From the figures of `tests.bench.claims --save` to the tables and plots of docs/: part of `tests.bench.report`."""

import json

from . import plots
from .report import DOCS, table

FIGURES = DOCS / "claims.json"
RATE, BATCH = ("rate", "M tuples/s, tuple by tuple"), ("batch_rate", "M tuples/s, batches of 1,024")
PARTS = (("insert", "ns a tuple for insertion, in batches"), ("probe", "ns a tuple for the probe, in batches"))
RATIOS = (("rate_ratio", "× `bplus`, tuple by tuple"), ("batch_rate_ratio", "× `bplus`, in batches"))

# Of each table: its title, and for "across" (stores beside one another) the figures that have a table each; for "down"
# (a line for each case and store) the columns.
LAYOUT = {
    "nested_loop": ("8a: a scan against trees", "across", [RATE, RATIOS[0]]),
    "chain": ("8b: length of a chain, against `bplus`", "down",
              [RATE, RATIOS[0], BATCH, RATIOS[1], *PARTS, ("bytes", "bytes a row")]),
    "depth": ("8c: depth of the sub-indexes (`pim_tree` alone has it at 3)", "down",
              [RATE, ("rate_ratio", "× depth 3"), BATCH, ("batch_rate_ratio", "× depth 3, batches"), *PARTS]),
    "ratio": ("9c, 9d: merge ratio", "down",
              [RATE, ("against_a_16th", "× m = 1/16"), BATCH, ("batch_against_a_16th", "× m = 1/16, batches"), *PARTS]),
    "steps": ("9b: ns a tuple by step", "down",
              [(x, x) for x in ("search", "scan", "insert", "delete", "merge", "total")] +
              [("merge_share", "merge, share of total"), ("insert_to_bplus", "insert, times as fast as `bplus`"),
               ("search_to_bplus", "search"), ("scan_to_bplus", "scan")]),
    "single": ("10a: the trees on one thread", "across", [RATE, *RATIOS, *PARTS]),
    "matches": ("10b: pairs a tuple", "across", [RATE, RATIOS[0]]),
    "memory": ("11a: memory", "down",
               [("bytes", "bytes a row"), ("to_bplus", "× `bplus`"),
                ("inserted_share", "in the insertion part, of a window"),
                ("merge_bytes", "more during a merge"), ("all_to_bplus", "both, × `bplus`")]),
    "rates": ("11b: rates of the two streams", "across", [RATE, RATIOS[0], BATCH]),
    "windows": ("11c: windows of the two streams", "across", [RATE, RATIOS[0]]),
    "keys": ("12b: skewed keys", "across",
             [RATE, ("to_uniform", "× its rate on even keys"), ("batch_to_uniform", "the same in batches")]),
    "self_join": ("12c: self-join", "across", [RATE, RATIOS[0], BATCH, RATIOS[1]]),
    "drift": ("13b: keys that drift, shares of the rate on keys that do not", "down",
              [("rate", "M tuples/s before"), ("first", "share before"), ("shifting", "while they drift"),
               ("last", "after"), ("slowest", "in the slowest window"),
               ("recovered", "from a window after the drift on, × before")]),
    "drift_inserts": ("13a: insertions by sub-index while keys drift", "down",
                      [("sub_indexes", "sub-indexes"), ("fullest", "share of the fullest"),
                       ("fullest_by_share", "× an even share"), ("empty", "share of those without any")]),
    "merges": ("14: time of a merge", "down", [("ms", "ms"), ("ns_a_row", "ns a row of the window")]),
    "insert_batch": ("PanJoin 10a, 11a, 12a, 13a: insertion by batch", "across", [("rate", "M rows/s")]),
    "insert_size": ("PanJoin 10b, 11b, 12b: insertion by sub-window", "across", [("rate", "M rows/s")]),
    "equi_partition": ("PanJoin 10c, 11c, 12c: equality by partition and batch", "across", [("rate", "M probes/s")]),
    "equi_matches": ("PanJoin 10d, 11d, 12d: equality by matches", "across",
                     [("rate", "M probes/s"), ("ns_a_match", "ns a match")]),
    "band_matches": ("PanJoin 10e, 11e, 12e, 13b: bands by matches", "across",
                     [("rate", "M probes/s"), ("ns_a_match", "ns a match")]),
    "balance": ("PanJoin 10f: imbalance of partitions by adjustment", "down",
                [*((f"after_{i}", f"after {i}") for i in range(5)), ("by_chance", "what chance leaves")]),
    "speedup": ("PanJoin 11f: the wide tree against Abseil's", "down",
                [("rate", "M/s"), ("absl", "Abseil"), ("ratio", "ratio")]),
    "buffer": ("PanJoin 12f: insertion buffer", "down",
               [("rate", "M rows/s in, one by one"), ("sixteen_rate", "sixteen at a time"),
                ("probe_rate", "M probes/s, one by one"), ("batch_probe_rate", "batches of 1,024")]),
    "calls": ("The price of a call from Python", "down",
              [("python", "M tuples/s through Python"), ("native", "in one native call"), ("us_a_call", "µs a call"),
               ("ns_a_tuple", "ns a tuple")]),
    "restore": ("Restoring a window", "down",
                [("build", "ns a row, built at once"), ("insert", "inserted one by one"),
                 ("absl_by_build", "Abseil's insertions, by building")]),
    "ties": ("Equality on tied keys", "across",
             [("ns_a_match", "ns a match"), ("ratio", "times as fast as Abseil"), ("matches", "matches a probe")]),
}  # fmt: skip


def written(x):
    """Three digits, and none for what is not there."""
    if x is None:
        return ""
    return f"{x:.3g}" if abs(x) < 1000 else f"{x:,.0f}"


def figures():
    """Return {table: {(case, store): {figure: value}}}."""
    found = {}
    for key, value in json.loads(FIGURES.read_text()).items():
        name, case, store = key.split(" | ")
        found.setdefault(name, {})[case, store] = value
    return found


def tables(name, mine):
    """Return the Markdown of one table's figures."""
    title, layout, shown = LAYOUT[name]
    parts = [f"## {title}"]
    if layout == "down":
        rows = [[case, store, *(written(value.get(figure)) for figure, _ in shown)]
                for (case, store), value in mine.items()]  # fmt: skip
        parts.append(table(["", "", *(caption for _, caption in shown)], rows))
        return "\n\n".join(parts)
    cases, stores = list(dict.fromkeys(case for case, _ in mine)), list(dict.fromkeys(store for _, store in mine))
    for figure, caption in shown:
        some = [store for store in stores if any(figure in mine.get((case, store), {}) for case in cases)]
        rows = [[case, *(written(mine.get((case, store), {}).get(figure)) for store in some)] for case in cases]
        parts.append(f"{caption[0].upper()}{caption[1:]}:\n\n{table(['', *some], rows)}")
    return "\n\n".join(parts)


def draw(found):
    """Write the plots: drift over time, merge ratio, insertion buffer."""
    if "drift" in found:
        series = {}
        for (case, store), value in found["drift"].items():
            if store in ("pim_tree", "carousel"):
                series[f"{store}, {case}"] = [(i + 1.5, share) for i, share in enumerate(value["course"])]
        names = sorted(series)
        bold = [name for name in names if name.startswith("pim")]
        text = plots.lines("Throughput while keys drift, from window 4 to 14", "windows since the start",
                           "share of that on keys that do not drift", series, names=names, log_x=False, log_y=False,
                           bold=bold)  # fmt: skip
        (DOCS / "claims-drift.svg").write_text(text)
    if "ratio" in found:
        series = {}
        for (case, store), value in found["ratio"].items():
            window, m = case.split(", m = 1/")
            series.setdefault(f"{store}, {window}", []).append((1 / float(m), value["against_a_16th"]))
        text = plots.lines("Throughput by merge ratio, tuple by tuple", "merge ratio",
                           "throughput, 1 at a ratio of 1/16", series, log_y=False,
                           short=lambda x: f"1/{round(1 / x)}" if x < 1 else "1",
                           bold=[name for name in series if name.startswith("pim")])  # fmt: skip
        (DOCS / "claims-ratio.svg").write_text(text)
    if "buffer" in found:
        series = {}
        for (case, store), value in found["buffer"].items():
            rows = int(case.split()[0].replace(",", ""))
            series.setdefault(f"insertion, {store}", []).append((rows, value["rate"]))
            if store.startswith("as"):
                series.setdefault("probes one by one", []).append((rows, value["probe_rate"]))
                series.setdefault("probes in batches", []).append((rows, value["batch_probe_rate"]))
        text = plots.lines("BI-Sort's insertion buffer, 65,536 rows", "rows of the buffer", "M rows/s and M probes/s",
                           series, bold=[name for name in series if name.startswith("insertion")])  # fmt: skip
        (DOCS / "claims-buffer.svg").write_text(text)


def write():
    """Write docs/claims.md and the plots, if there are figures."""
    if not FIGURES.exists():
        return
    found = figures()
    draw(found)
    head = """# Figures for the papers' claims

Made by `make bench-claims` on one thread, in CPU time; medians of several runs, and stores that are compared run in
turn on the same rows. What they say of each claim is told in [papers](papers.md). Rates are millions a second of tuples
(of both streams, each with its insertion, its probe and an expiry), of rows or of probes. Two pairs a tuple, `int64`
keys drawn evenly, unless said otherwise. `a merge_ratio=0.25` is store `a` with that parameter."""
    parts = [tables(name, found[name]) for name in LAYOUT if name in found]
    (DOCS / "claims.md").write_text("\n\n".join([head, *parts]) + "\n")
