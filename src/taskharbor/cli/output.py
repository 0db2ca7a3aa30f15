"""Output of commands: JSON, or lines and facts drawn by rich in a terminal and printed as plain text elsewhere.

Values from the store are printed as text: without markup, and with control characters escaped.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from taskharbor.cli.wrapping import has_command, wrapped
from taskharbor.core.durations import ago

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

STATE_STYLES = {
    "scheduled": "cyan",
    "ready": "blue",
    "waiting": "cyan",
    "claimed": "yellow",
    "running": "yellow",
    "lapsed": "bold magenta",
    "done": "green",
    "dlq": "bold red",
    "cancelled": "dim",
}


class Cell(NamedTuple):
    """A text with a style, and a shorter text for narrow columns."""

    text: str
    style: str = ""
    short: str = ""


def as_cell(value: str | Cell, style: str = "") -> Cell:
    """The value as a cell."""
    return value if isinstance(value, Cell) else Cell(value, style)


def state_cell(state: str) -> Cell:
    """A state in its colour."""
    return Cell(state, STATE_STYLES.get(state, ""))


def print_json(value: Any) -> None:
    """One JSON document; times are ISO 8601 in UTC."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def picked(record: object, *names: str) -> dict[str, Any]:
    """These fields of a record, for JSON."""
    return {name: getattr(record, name) for name in names}


def safe(text: str) -> str:
    """The text with control characters made visible."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def one_line(text: str | None) -> str:
    """The first line of a text."""
    lines = (text or "").strip().splitlines()
    return safe(lines[0]).replace("\t", " ") if lines else ""


def console() -> Console | None:
    """The rich console; None if plain text is printed."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console(highlight=False)


def say(text: str, style: str = "", *, wrap: bool = False) -> None:
    """Print a line for people. Unless `wrap`, a long one is not broken, so that it can be copied as one line.

    With `wrap`, only the commands in it are not.
    """
    screen = console()
    if screen is None:
        click.echo(safe(text))
        return
    from rich.text import Text

    for line in _lines(screen, as_cell(text, style), screen.width) if wrap else [Text(safe(text), style)]:
        screen.print(line, soft_wrap=True)


def answer(as_json: bool, value: Any, text: str) -> None:
    """Print the value as JSON, or the text for people."""
    if as_json:
        print_json(value)
    else:
        say(text)


def confirm(would: str, question: Callable[[], str], also: str = "") -> None:
    """Ask before an act in a terminal; elsewhere, refuse to act without --yes."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{would}: add --yes to do it{also}")
    click.confirm(question(), abort=True, err=True)


def heading(text: str) -> None:
    """Print a heading."""
    say(f"\n{text}", "bold")


def facts(pairs: Iterable[tuple[str | Cell, str | Cell | None]]) -> None:
    """Print names and values, one per line; those that are None are left out."""
    known = [(as_cell(name, "dim"), as_cell(value)) for name, value in pairs if value is not None]
    if not known:
        return
    screen = console()
    width = max(len(name.text) for name, _ in known)
    if screen is None:
        for name, value in known:
            text = safe(value.text).replace("\n", "\n" + " " * (width + 2))
            click.echo(f"{name.text.ljust(width)}  {text}")
        return
    from rich.text import Text

    for name, value in known:
        title = Text().append(f"{name.text.ljust(width)}  ", name.style)  # its style must not reach the value
        for line in _lines(screen, value, max(1, screen.width - width - 2)):
            screen.print(title + line, soft_wrap=True)
            title = Text(" " * (width + 2))


def _lines(screen: Console, value: Cell, width: int) -> list[Text]:
    """The value in lines of at most this width; a command in it is not broken."""
    from rich.text import Text

    text = safe(value.text)
    if has_command(text):
        return [Text(line, value.style) for line in wrapped(text, width).split("\n")]
    lines = Text(text).wrap(screen, width, overflow="fold")
    return [Text(line.plain.rstrip(), value.style) for line in lines] or [Text("")]


def json_block(raw: bytes) -> None:
    """A stored JSON value, indented."""
    pretty = safe(msgspec.json.format(raw, indent=2).decode())
    screen = console()
    if screen is None:
        click.echo(pretty)
        return
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    screen.print(JSONHighlighter()(Text(pretty)), soft_wrap=True)


def exact(moment: datetime | None, now: datetime) -> str | None:
    """A moment in ISO 8601, and how long ago it was."""
    return None if moment is None else f"{iso(moment)}  ({ago(moment, now)})"


def iso(moment: datetime) -> str:
    """A moment in ISO 8601, UTC."""
    return moment.isoformat().replace("+00:00", "Z")


def since(moment: datetime | None, now: datetime) -> str:
    """How long ago; empty for None."""
    return "" if moment is None else ago(moment, now)
