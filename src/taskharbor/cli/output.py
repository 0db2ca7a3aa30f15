"""What commands print: JSON, or tables and facts that rich draws in a terminal and that are plain text elsewhere.

Whatever comes from the store is printed as text: no markup, and no control characters that a terminal would obey.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

if TYPE_CHECKING:
    from rich.console import Console

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

GAP, NARROWEST = 3, 8

STATE_STYLES = {
    "scheduled": "cyan",
    "ready": "blue",
    "waiting": "cyan",
    "claimed": "yellow",
    "running": "yellow",
    "done": "green",
    "dlq": "bold red",
    "cancelled": "dim",
}


class Column(NamedTuple):
    """A column of a table. `least` is the width that a terminal needs to show it; `soft` ones give way to others."""

    title: str
    right: bool = False
    least: int = 0
    soft: bool = False


class Cell(NamedTuple):
    """A text with a style."""

    text: str
    style: str = ""


def _cell(value: str | Cell, style: str = "") -> Cell:
    return value if isinstance(value, Cell) else Cell(value, style)


def state_cell(state: str) -> Cell:
    """A state in its colour."""
    return Cell(state, STATE_STYLES.get(state, ""))


def print_json(value: Any) -> None:
    """One JSON document; times are ISO 8601 in UTC."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def safe(text: str) -> str:
    """The text with control characters made visible."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def one_line(text: str | None) -> str:
    """The first line of a text."""
    lines = (text or "").strip().splitlines()
    return safe(lines[0]).replace("\t", " ") if lines else ""


def console() -> Console | None:
    """Where rich draws; None where plain text is due."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console(highlight=False)


def say(text: str, style: str = "") -> None:
    """A line for people."""
    screen = console()
    if screen is None:
        click.echo(safe(text))
        return
    from rich.text import Text

    screen.print(Text(safe(text), style), soft_wrap=True)


def heading(text: str) -> None:
    """A title over what follows."""
    say(f"\n{text}", "bold")


def table(columns: Sequence[Column], rows: Iterable[Sequence[str | Cell]]) -> None:
    """Rows in columns."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    screen = console()
    if screen is None:
        click.echo(_plain_table(columns, [[one_line(cell.text) for cell in row] for row in cells]))
    else:
        _draw_table(screen, columns, cells)


def _plain_table(columns: Sequence[Column], rows: list[list[str]]) -> str:
    lines = [[column.title for column in columns], *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    )


def _draw_table(screen: Console, columns: Sequence[Column], rows: list[list[Cell]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown = [place for place, column in enumerate(columns) if column.least <= screen.width]
    texts = [[Text(one_line(row[place].text), row[place].style) for place in shown] for row in rows]
    chosen = [columns[place] for place in shown]
    widths = [max(len(title), *(line[place].cell_len for line in texts)) for place, (title, *_) in enumerate(chosen)]
    drawing = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", border_style="dim")
    for column, width in zip(chosen, _fitted(chosen, widths, screen.width), strict=True):
        drawing.add_column(
            column.title,
            justify="right" if column.right else "left",
            width=width,
            no_wrap=True,
            overflow="ellipsis",
        )
    for line in texts:
        drawing.add_row(*line)
    screen.print(drawing)


def _fitted(columns: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """The widths, with soft columns cut from the last to the first until the whole fits."""
    fitted = list(widths)
    for place in reversed(range(len(columns))):
        excess = sum(fitted) + GAP * (len(fitted) - 1) - room
        if columns[place].soft and excess > 0:
            fitted[place] = max(NARROWEST, fitted[place] - excess)
    return fitted


def facts(pairs: Iterable[tuple[str | Cell, str | Cell | None]]) -> None:
    """Names and values, one below the other; what is None is left out."""
    known = [(_cell(name, "dim"), _cell(value)) for name, value in pairs if value is not None]
    if not known:
        return
    screen = console()
    width = max(len(name.text) for name, _ in known)
    if screen is None:
        for name, value in known:
            click.echo(f"{name.text.ljust(width)}  {_indented(safe(value.text), width + 2)}")
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=screen.width >= 60)
    grid.add_column(overflow="fold")
    for name, value in known:
        grid.add_row(Text(name.text, name.style), Text(safe(value.text), value.style))
    screen.print(grid)


def _indented(text: str, by: int) -> str:
    return text.replace("\n", "\n" + " " * by)


def json_block(raw: bytes) -> None:
    """A stored JSON value, pretty."""
    pretty = safe(msgspec.json.format(raw, indent=2).decode())
    screen = console()
    if screen is None:
        click.echo(pretty)
        return
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    screen.print(JSONHighlighter()(Text(pretty)), soft_wrap=True)


def count(number: int, what: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def ago(moment: datetime | None, now: datetime) -> str:
    """How long ago, or in how long."""
    if moment is None:
        return ""
    seconds = (now - moment).total_seconds()
    return f"{length(seconds)} ago" if seconds >= 0 else f"in {length(-seconds)}"


def length(seconds: float) -> str:
    """A length of time, short."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.1f}s"


def exact(moment: datetime | None, now: datetime) -> str | None:
    """A moment in ISO 8601, and how long ago it was."""
    return None if moment is None else f"{moment.isoformat().replace('+00:00', 'Z')}  ({ago(moment, now)})"
