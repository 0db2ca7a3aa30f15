"""Tables: whole where stdout is not a terminal or `--wide` is given, else fitted to the terminal.

To fit, soft columns are cut, the widest first and none below its `least` width; if that is not enough, columns are
left out by their `drop` rank, the lowest first. If even that is not enough, soft columns are cut down to their titles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
from msgspec import Struct

from taskharbor.cli import output
from taskharbor.cli.output import Cell, as_cell, console, one_line
from taskharbor.cli.target import target_options
from taskharbor.cli.types import json_option
from taskharbor.core.short_ids import endings

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])
GAP = 2
NEVER = 0


class Column(Struct, Generic[T], frozen=True):
    """A column: its title, and a function from a record to its cell.

    The rest is how it gives way where the table is fitted to a terminal. With `ids`, ids are shown by their endings.
    With a `least` width the column is soft: it may be cut to that width, at the beginning of its texts if `keep_end`;
    one of weight 2 is cut only while it is more than twice as wide as the other soft ones. Columns with a `drop` rank
    may be left out. The others always stay, so in every list they must fit a narrow terminal: see
    tests/cli/test_terminal.py.
    """

    title: str
    cell: Callable[[T], str | Cell]
    ids: bool = False
    right: bool = False
    least: int = 0
    drop: int = NEVER
    keep_end: bool = False
    weight: int = 1


def list_options(command: C) -> C:
    """The options of a command that prints a table: `--json`, `--wide` and the target."""
    wide = click.option("--wide", is_flag=True, help="Show all columns and whole ids, however wide.")
    return json_option(wide(target_options(command)))


def listing(
    found: Sequence[T],
    columns: Sequence[Column[T]],
    nothing: str,
    fields: Callable[[T], Any],
    *,
    as_json: bool,
    wide: bool,
    limit: int | None = None,
    after: Callable[[T], str] | None = None,
) -> None:
    """Print the first `limit` records as a table, or their `fields` as JSON, and how to see the others."""
    shown = found[:limit]
    if as_json:
        output.print_json([fields(record) for record in shown])
    elif not found:
        output.say(nothing, "dim", wrap=True)
    else:
        table(columns, shown, wide=wide)
        if len(found) > len(shown):
            behind = "" if after is None else f"--after {after(shown[-1])}, or "
            click.echo(f"The first {limit}. More: {behind}--limit.", err=True)


def table(columns: Sequence[Column[T]], records: Sequence[T], *, wide: bool = False) -> None:
    """Print a row for each record."""
    screen = console()
    room = None if wide or screen is None else screen.width
    cells = [[Cell(column.title, "bold"), *_cells(column, records, whole=room is None)] for column in columns]
    widths = [max(cells_of(cell.text) for cell in column) for column in cells]
    shown = dict(enumerate(widths)) if room is None else fitted(columns, widths, room)
    for number, row in enumerate(zip(*cells, strict=True)):
        line = [_padded(row[index], columns[index], width) for index, width in shown.items()]
        _print(screen, line, underlined=number == 0)


def _cells(column: Column[T], records: Iterable[T], *, whole: bool) -> list[Cell]:
    cells = [as_cell(column.cell(record), "bold" if column.ids else "") for record in records]
    short = endings([cell.text for cell in cells]) if column.ids else [cell.short or cell.text for cell in cells]
    return [Cell(one_line(cell.text if whole else text), cell.style) for cell, text in zip(cells, short, strict=True)]


def _padded(cell: Cell, column: Column[T], width: int) -> Cell:
    text = shortened(cell.text, width, keep_end=column.keep_end)
    space = " " * (width - cells_of(text))
    return Cell(space + text if column.right else text + space, cell.style)


def _print(screen: Console | None, line: Sequence[Cell], *, underlined: bool) -> None:
    if screen is None:
        click.echo((" " * GAP).join(cell.text for cell in line).rstrip())
        return
    from rich.text import Text

    drawn = Text(" " * GAP).join(Text(cell.text, cell.style) for cell in line)
    drawn.rstrip()  # one long text at the end should not widen the other rows
    screen.print(drawn, soft_wrap=True)
    if underlined:
        rule = "─" if screen.encoding.startswith("utf") else "-"
        screen.print(Text(rule * cells_of(drawn.plain), "dim"), soft_wrap=True)


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


def fitted(columns: Sequence[Column[Any]], widths: Sequence[int], room: int) -> dict[int, int]:
    """The indexes of the columns to show, each with its width."""
    shown = dict(enumerate(widths))
    least = [
        min(width, max(column.least, len(column.title))) if column.least else width
        for column, width in zip(columns, widths, strict=True)
    ]
    while _total([least[index] for index in shown]) > room:
        droppable = [index for index in shown if columns[index].drop]
        if not droppable:
            least = [
                min(width, len(column.title)) if column.least else width
                for column, width in zip(columns, least, strict=True)
            ]
            break
        del shown[min(droppable, key=lambda index: columns[index].drop)]
    soft = [index for index in shown if shown[index] > least[index]]
    while soft and _total([*shown.values()]) > room:
        widest = max(soft, key=lambda index: shown[index] / columns[index].weight)
        shown[widest] -= 1
        if shown[widest] == least[widest]:
            soft.remove(widest)
    return shown
