"""What `make demo` shows, as a picture: `make picture` runs it and writes docs/demo.svg."""

import html
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
COLUMN, LINE, MARGIN = 7.85, 18, 18
PROGRESS = re.compile(r" +[1-9][0-9,]* readings in, ")


def shortened(said):
    """Leave out what stands there in many lines: the plan, and all but a few lines of progress."""
    begin = next(i for i, line in enumerate(said) if PROGRESS.match(line))
    progress = [line for line in said if PROGRESS.match(line)]
    shown = [progress[len(progress) * i // 4] for i in range(4)] + progress[-1:]
    rest = [line for line in said[begin:] if " readings in, " not in line]
    end = next(i for i, line in enumerate(rest) if line.startswith("They are in"))
    return ["$ make demo", "", *shown, *rest[:end]]


def picture(said):
    """Draw lines of text as a terminal has them."""
    width = max(map(len, said)) * COLUMN + 2 * MARGIN
    height = len(said) * LINE + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13">',
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#16191f"/>',
    ]
    for number, line in enumerate(said):
        text, bar = re.fullmatch(r"([^█]*)(█*)", line).groups()
        y = MARGIN + LINE * number
        colour = "#8bd5a0" if line.startswith("$") else "#d8dee9"
        if text.strip():
            place = f'x="{MARGIN}" y="{y + 13}" fill="{colour}" xml:space="preserve"'
            out.append(f"<text {place}>{html.escape(text.rstrip())}</text>")
        if bar:
            at, long = MARGIN + len(text) * COLUMN, len(bar) * COLUMN
            out.append(f'<rect x="{at:.1f}" y="{y + 3}" width="{long:.1f}" height="12" fill="#5fa8d3"/>')
    return "\n".join([*out, "</svg>"]) + "\n"


if __name__ == "__main__":
    demo = [sys.executable, ROOT / "examples" / "spark_power.py"]
    done = subprocess.run(demo, stdout=subprocess.PIPE, text=True, check=True)
    (ROOT / "docs" / "demo.svg").write_text(picture(shortened(done.stdout.splitlines())))
