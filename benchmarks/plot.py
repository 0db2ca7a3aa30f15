"""results.svg: how far above its floor each measure is, and the speeds side by side. Plain SVG, written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import log2
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.model import Measure
from benchmarks.summary import amount, rows

WIDTH, LEFT, RIGHT, LINE = 1000, 400, 130, 22
INK, FAINT, OURS, THEIRS, GOOD, BAD = "#1f2937", "#9ca3af", "#2563eb", "#cbd5e1", "#16a34a", "#dc2626"
BOLD = 600
LEAST, MOST = -2, 5  # powers of two on the axis of the floors
SPEEDS = (
    "drain-full",
    "drain-normal",
    "drain-memory",
    "enqueue-single-full",
    "enqueue-single-normal",
    "enqueue-concurrent-full",
    "enqueue-bulk-full",
    "drain-postgres-100",
    "drain-postgres-200",
    "enqueue-single-postgres",
    "enqueue-concurrent-postgres",
    "enqueue-bulk-postgres",
    "drain-redis-100",
    "enqueue-single-redis",
    "enqueue-bulk-redis",
    "drain-nats-100",
    "enqueue-concurrent-nats",
    "enqueue-bulk-nats",
)


class Drawing:
    """Shapes, from the top down."""

    def __init__(self) -> None:
        self.y = 20.0
        self.shapes: list[str] = []

    def text(
        self, x: float, text: str, anchor: str = "start", colour: str = INK, size: int = 13, weight: int = 400
    ) -> None:
        """A text on the current line."""
        place = f'x="{x:.0f}" y="{self.y + 15:.0f}" text-anchor="{anchor}"'
        style = f'fill="{colour}" font-size="{size}" font-weight="{weight}"'
        self.shapes.append(f"<text {place} {style}>{escape(text)}</text>")

    def bar(self, x: float, width: float, colour: str) -> None:
        """A bar on the current line."""
        place = f'x="{x:.1f}" y="{self.y + 3:.0f}" width="{max(1.0, width):.1f}" height="{LINE - 6}"'
        self.shapes.append(f'<rect {place} rx="2" fill="{colour}"/>')

    def rule(self, x: float, top: float, colour: str, width: float = 1) -> None:
        """A line from `top` down to the current line."""
        place = f'x1="{x:.1f}" y1="{top:.0f}" x2="{x:.1f}" y2="{self.y:.0f}"'
        self.shapes.insert(0, f'<line {place} stroke="{colour}" stroke-width="{width}"/>')  # below all else

    def heading(self, text: str) -> None:
        """A title."""
        self.text(20, text, size=16, weight=BOLD)
        self.y += LINE + 10

    def svg(self) -> str:
        """The file."""
        height = self.y + 20
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
            f'height="{height:.0f}" font-family="system-ui, sans-serif">\n'
            f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(self.shapes) + "\n</svg>\n"
        )


def write(file: Path, measures: Sequence[Measure], results: dict[str, Any]) -> None:
    """Draw the results of all engines."""
    results = {"measures": {key: found for it in results.values() for key, found in it["measures"].items()}}
    known = [measure for measure in measures if measure.key in results["measures"]]
    drawing = Drawing()
    _floors(drawing, known, results)
    drawing.y += 20
    drawing.heading("Jobs per second, medians (longer is faster; each group has its own scale)")
    for measure in known:
        if measure.key in SPEEDS:
            _speeds(drawing, measure, results["measures"][measure.key])
    file.write_text(drawing.svg(), encoding="utf-8")


def _floors(drawing: Drawing, known: Sequence[Measure], results: dict[str, Any]) -> None:
    drawing.heading("How many times its floor each measure reaches (1 × = just met)")
    room = WIDTH - LEFT - RIGHT
    top = drawing.y
    for measure in known:
        for row in rows(measure, results["measures"][measure.key]):
            if row.margin is None:
                continue
            against = f" / {row.label}" if row.label else ""
            drawing.text(LEFT - 10, _cut(f"{measure.key}{against}, {row.floor}", 58), anchor="end", size=12)
            place = (min(max(log2(max(row.margin, 1e-6)), LEAST), MOST) - LEAST) / (MOST - LEAST)
            drawing.bar(LEFT, room * place, GOOD if row.met else BAD)
            shown = f"{row.margin:.2f} ×" if row.margin < 100 else "> 100 ×"
            drawing.text(LEFT + room * place + 8, shown, size=12)
            drawing.y += LINE
    for power in range(LEAST, MOST + 1):
        x = LEFT + room * (power - LEAST) / (MOST - LEAST)
        drawing.rule(x, top, INK if power == 0 else "#e5e7eb", 1.5 if power == 0 else 1)
        drawing.text(x, f"{2.0**power:g} ×", anchor="middle", colour=FAINT, size=11)
    drawing.y += LINE


def _speeds(drawing: Drawing, measure: Measure, result: dict[str, Any]) -> None:
    drawing.text(20, measure.title, weight=BOLD)
    drawing.y += LINE
    speeds = dict(_medians(measure, result))
    fastest = max(speeds.values(), default=1.0)
    for name, speed in sorted(speeds.items(), key=lambda entry: -entry[1]):
        ours = name == "ours"
        drawing.text(LEFT - 10, measure.sides[name].label, anchor="end", size=12, weight=BOLD if ours else 400)
        width = (WIDTH - LEFT - RIGHT) * speed / fastest
        drawing.bar(LEFT, width, OURS if ours else THEIRS)
        drawing.text(LEFT + width + 8, amount(speed, "/s"), size=12, weight=BOLD if ours else 400)
        drawing.y += LINE
    drawing.y += 8


def _medians(measure: Measure, result: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, samples in result["samples"].items():
        if samples:
            yield name, median(sample[measure.value] for sample in samples)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
