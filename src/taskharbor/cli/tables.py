"""Tables: whole where stdout is not a terminal or `--wide` is given, else fitted to the terminal.

To fit, soft columns are cut, the widest first and none below its `least` width; if that is not enough, columns are
left out by their `drop` rank, the lowest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from taskharbor.cli.output import Cell, as_cell, console, one_line
from taskharbor.core.short_ids import endings

if TYPE_CHECKING:
    from rich.console import Console

GAP = 2
NEVER = 0


class Column(NamedTuple):
    """A column. One with a `least` width is soft: it may be cut to that width, at its beginning if `keep_end`.

    One of weight 2 is cut only where it is more than twice as wide as the others.
    """

    title: str
    right: bool = False
    least: int = 0
    drop: int = NEVER
    keep_end: bool = False
    weight: int = 1


Row = Sequence[str | Cell]


def short_ids(ids: Iterable[str], style: str = "bold") -> list[Cell]:
    """Ids as cells: their endings where the table is fitted to a terminal, whole elsewhere."""
    listed = list(ids)
    return [Cell(id, style, short) for id, short in zip(listed, endings(listed), strict=True)]


def table(columns: Sequence[Column], rows: Iterable[Row], *, wide: bool = False) -> None:
    """Print rows in columns."""
    cells = [[as_cell(cell) for cell in row] for row in rows]
    screen = console()
    if screen is None:
        click.echo(_plain(columns, [[one_line(cell.text) for cell in row] for row in cells]))
        return
    texts = [[one_line(cell.text if wide else cell.short or cell.text) for cell in row] for row in cells]
    styles = [[cell.style for cell in row] for row in cells]
    widths = _natural(columns, texts)
    _draw(screen, columns, texts, styles, fitted(columns, widths, _total(widths) if wide else screen.width))


def _plain(columns: Sequence[Column], rows: list[list[str]]) -> str:
    lines = [[column.title for column in columns], *rows]
    widths = _natural(columns, rows)
    return "\n".join(
        (" " * GAP)
        .join(
            _padded(text, width, right=column.right) for text, width, column in zip(line, widths, columns, strict=True)
        )
        .rstrip()
        for line in lines
    )


def _padded(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - cells_of(text))
    return space + text if right else text + space


def _natural(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> list[int]:
    widths = [len(column.title) for column in columns]
    for row in rows:
        widths = [max(width, cells_of(text)) for width, text in zip(widths, row, strict=True)]
    return widths


def cells_of(text: str) -> int:
    """The number of terminal cells a text takes: East Asian characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shortened(text: str, width: int, *, keep_end: bool = False) -> str:
    """The text in at most `width` cells, with an ellipsis where something was cut."""
    if cells_of(text) <= width:
        return text
    kept = ""
    for letter in reversed(text) if keep_end else text:
        longer = letter + kept if keep_end else kept + letter
        if cells_of(longer) > width - 1:
            break
        kept = longer
    return f"…{kept.lstrip()}" if keep_end else f"{kept.rstrip()}…"


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def fitted(columns: Sequence[Column], widths: Sequence[int], room: int) -> dict[int, int]:
    """The indexes of the columns to show, each with its width."""
    shown = dict(enumerate(widths))
    least = [
        min(width, max(column.least, len(column.title))) if column.least else width
        for column, width in zip(columns, widths, strict=True)
    ]
    while _total([least[place] for place in shown]) > room:
        droppable = [place for place in shown if columns[place].drop]
        if not droppable:
            break
        del shown[min(droppable, key=lambda place: columns[place].drop)]
    soft = [place for place in shown if shown[place] > least[place]]
    while soft and _total([*shown.values()]) > room:
        widest = max(soft, key=lambda place: shown[place] / columns[place].weight)
        shown[widest] -= 1
        if shown[widest] == least[widest]:
            soft.remove(widest)
    return shown


def _draw(
    screen: Console, columns: Sequence[Column], texts: list[list[str]], styles: list[list[str]], widths: dict[int, int]
) -> None:
    from rich.text import Text

    last = len(widths) - 1
    cut = [
        [shortened(row[place], widths[place], keep_end=columns[place].keep_end) for place in widths] for row in texts
    ]
    paint = [[style[place] for place in widths] for style in styles]
    titles = [columns[place].title for place in widths]
    for line, style in zip([titles, *cut], [["bold"] * len(titles), *paint], strict=True):
        drawn = Text()
        for number, (place, text) in enumerate(zip(widths, line, strict=True)):
            right = columns[place].right
            # The last column is not padded: one long text there should not widen the other rows.
            padded = text if number == last and not right else _padded(text, widths[place], right=right)
            drawn.append(padded, style[number]).append(" " * GAP if number < last else "")
        screen.print(drawn, soft_wrap=True)
        if line is titles:
            rule = "─" if screen.encoding.startswith("utf") else "-"
            screen.print(Text(rule * cells_of(drawn.plain), "dim"), soft_wrap=True)
