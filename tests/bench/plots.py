"""Line plots as SVG, without a library: what docs/ shows of benchmarks."""

import itertools
import math

COLOURS = ("#d1495b", "#00798c", "#edae49", "#30638e", "#6a4c93", "#66a182", "#8d6a4f", "#3d405b", "#b56576", "#7f7f7f",
           "#457b9d", "#a7c957", "#bc6c25")  # fmt: skip


def ticks(low, high, base):
    """Powers of a base that lie in a range."""
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    every = max(1, (last - first) // 8)
    return [base**e for e in range(first, last + 1, every)]


def short(x):
    """Write 1048576 as 2^20, and 0.5 as it is."""
    power = math.log2(x)
    return f"2^{round(power)}" if abs(power - round(power)) < 1e-9 and not 0.2 < x < 65 else f"{x:g}"


def lines(title, x_label, y_label, series, *, names=(), log_x=True, log_y=True, bold=(), short=short):
    """Draw `series`, a dict of name → [(x, y), …]; return the text of an SVG file.

    `names`: all that may occur in plots that belong together, so that each has its colour in all of them.
    `short`: how to write a value of x on a logarithmic axis.
    """
    colours = dict(zip(names or series, COLOURS * 2, strict=False))
    width, height, left, right, top, bottom = 860, 460, 70, 190, 46, 56
    points = [p for values in series.values() for p in values]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low_x, high_x = min(xs), max(xs)
    low_y, high_y = (min(ys) / 1.2, max(ys) * 1.2) if log_y else (0.0, max(ys) * 1.08)

    def at_x(x):
        share = math.log(x / low_x) / math.log(high_x / low_x) if log_x else (x - low_x) / (high_x - low_x)
        return left + share * (width - left - right)

    def at_y(y):
        share = math.log(y / low_y) / math.log(high_y / low_y) if log_y else (y - low_y) / (high_y - low_y)
        return height - bottom - share * (height - top - bottom)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="26" font-size="16" font-weight="bold">{title}</text>',
        f'<text x="{(left + width - right) / 2}" y="{height - 12}" text-anchor="middle">{x_label}</text>',
        f'<text x="18" y="{(top + height - bottom) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 18 {(top + height - bottom) / 2})">{y_label}</text>',
    ]
    for x in ticks(low_x, high_x, 2) if log_x else range(math.ceil(low_x), math.floor(high_x) + 1):
        out.append(f'<line x1="{at_x(x):.1f}" y1="{top}" x2="{at_x(x):.1f}" y2="{height - bottom}" stroke="#eee"/>')
        name = short(x) if log_x else x
        out.append(f'<text x="{at_x(x):.1f}" y="{height - bottom + 18}" text-anchor="middle">{name}</text>')
    marks = ticks(low_y, high_y, 2) if log_y else [high_y * i / 5 for i in range(6)]
    for y in marks:
        out.append(f'<line x1="{left}" y1="{at_y(y):.1f}" x2="{width - right}" y2="{at_y(y):.1f}" stroke="#eee"/>')
        out.append(f'<text x="{left - 8}" y="{at_y(y) + 4:.1f}" text-anchor="end">{y:.3g}</text>')
    ends = []
    for name, values in series.items():
        colour = colours[name]
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in sorted(values))
        thick = 3.5 if name in bold else 1.8
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{thick}"/>')
        out += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="{thick}" fill="{colour}"/>' for x, y in values]
        ends.append([at_y(max(values)[1]), name, colour])
    ends.sort()
    for before, after in itertools.pairwise(ends):  # names must not lie on each other
        after[0] = max(after[0], before[0] + 15)
    ends[-1][0] = min(ends[-1][0], height - bottom)
    for after, before in itertools.pairwise(reversed(ends)):  # nor below the plot
        before[0] = min(before[0], after[0] - 15)
    for y, name, colour in ends:
        weight = "bold" if name in bold else "normal"
        out.append(
            f'<text x="{width - right + 10}" y="{y + 4:.1f}" fill="{colour}" font-weight="{weight}">{name}</text>'
        )
    return "\n".join([*out, "</svg>", ""])
