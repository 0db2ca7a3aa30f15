"""The demo on the screen: a live picture in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import click
import msgspec

from taskharbor.cli.demo.cargo import Cargo, Kind
from taskharbor.cli.demo.crew import CONCURRENCY, Ship
from taskharbor.cli.demo.story import Event, Story
from taskharbor.core.states import State

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_EVENTS = 9
OTHER_LINES = 18


class View(Protocol):
    """The display of the demo."""

    def on_screen(self) -> AbstractContextManager[object]:
        """Show the display while the story runs."""
        ...

    def frame(self, story: Story) -> None:
        """Show the current numbers."""
        ...

    def tell(self, event: Event) -> None:
        """Show an event."""
        ...


def view() -> View:
    """The view for stdout: live in a terminal, else lines."""
    return LiveView() if sys.stdout.isatty() else PlainView()


class PlainView:
    """A line per event, and one per second for the numbers."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1

    def on_screen(self) -> AbstractContextManager[object]:
        return nullcontext()

    def frame(self, story: Story) -> None:
        if time.monotonic() >= self._next:
            self._next += 1
            cargo = story.cargo
            self.tell(Event(story.elapsed, f"{cargo.ended} of {cargo.expected} jobs have ended"))

    def tell(self, event: Event) -> None:
        if not event.minor:
            click.echo(f"{event.at:5.1f} s  {event.text}")


class LiveView:
    """Progress per kind, workers, and the last events, drawn ten times a second."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._aside: Event | None = None

    def on_screen(self) -> AbstractContextManager[object]:
        return self._live

    def tell(self, event: Event) -> None:
        if event.minor:
            self._aside = event  # only the latest: many failures must not push out the story
        else:
            self._events.append(event)

    def frame(self, story: Story) -> None:
        from rich.console import Group
        from rich.text import Text

        self._live.update(
            Group(
                _title(story),
                Text(),
                _kinds(story, self._console.width),
                Text(),
                _ships(story, self._console.width),
                Text(),
                self._told(),
            ),
            refresh=True,
        )

    def _told(self) -> RenderableType:
        from rich.text import Text

        room = max(3, min(MOST_EVENTS + 1, self._console.height - OTHER_LINES))
        events = list(self._events)[1 - room :]
        if self._aside is not None:
            events = sorted([*events, self._aside], key=lambda event: event.at)
        lines = [Text.assemble((f"{event.at:5.1f} s  ", "dim"), (event.text, event.style)) for event in events]
        text = Text("\n").join([*lines, *[Text()] * (room - len(lines))])
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


def _title(story: Story) -> RenderableType:
    from rich.text import Text

    return Text.assemble(
        ("TaskHarbor demo", "bold cyan"),
        ("  three worker processes, one SQLite file  ", "dim"),
        (f"{story.cargo.ended} of {story.cargo.expected} jobs  {story.elapsed:.1f} s", "bold"),
        no_wrap=True,
        overflow="ellipsis",
    )


def _kinds(story: Story, width: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = max(6, min(32, width - 58))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(width=bar)
    grid.add_column(justify="right", no_wrap=True, min_width=7)
    grid.add_column(no_wrap=True, overflow="ellipsis", style="dim")
    for kind in story.cargo.kinds:
        whole, part = float(max(kind.expected, 1)), float(kind.ended)
        if kind is story.cargo.voyage:
            part = max(part, *(job.progress.fraction for job in kind.seen if job.progress), 0.0)
        style = "red" if kind is story.cargo.poison else "cyan"
        finished = "red" if kind is story.cargo.poison else "green"
        grid.add_row(
            kind.title,
            ProgressBar(total=whole, completed=part, width=bar, complete_style=style, finished_style=finished),
            f"{kind.ended}/{kind.expected}",
            Text(_note(kind, story)),
        )
    return grid


def _note(kind: Kind, story: Story) -> str:
    cargo = story.cargo
    special = {
        cargo.flaky: _failures,
        cargo.poison: _poison,
        cargo.keyed: _pair,
        cargo.voyage: _voyage,
        cargo.scheduled: _scheduled,
        cargo.bell: _bell,
    }
    if kind in special:
        return special[kind](kind, story)
    return f"{kind.running} running" if kind.running else ""


def _failures(kind: Kind, story: Story) -> str:
    return f"{kind.failures} failures so far" if kind.ended < kind.expected else f"after {kind.failures} failures"


def _poison(kind: Kind, story: Story) -> str:
    for job in kind.seen:
        state = "dead" if job.state is State.DLQ else "failing"
        return f"{state} after {job.attempts} of {job.max_attempts} attempts" if job.attempts else ""
    return ""


def _pair(kind: Kind, story: Story) -> str:
    pair = story.cargo.pair
    return f"enqueued {len(pair)} times, stored {sum(job.created for job in pair)}" if pair else ""


def _scheduled(kind: Kind, story: Story) -> str:
    waiting = kind.expected - kind.ended
    return f"{waiting} wait for their time" if waiting else ""


def _bell(kind: Kind, story: Story) -> str:
    """The last second that it rang for, and where."""
    rung = [(job.headers["slot"], job.result) for job in kind.seen if job.result is not None]
    if not rung:
        return ""
    slot, pid = rung[-1]
    ship = story.crew.by_pid(msgspec.json.decode(pid, type=int))
    return f"rang for {slot[11:19]} on {ship.name if ship else '?'}"


def _voyage(kind: Kind, story: Story) -> str:
    for job in kind.seen:
        if job.state is State.DONE:
            return f"done, lease version {job.version}"
        if job.lease is not None:
            ship = story.crew.by_worker(job.lease.worker)
            if ship is not None and ship is story.victim:
                return "adrift until its lease ends"
            return f"on {ship.name if ship else '?'}, lease version {job.version}"
    return ""


def _ships(story: Story, width: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for _ in range(5 if width >= 70 else 4):
        grid.add_column(no_wrap=True, overflow="ellipsis")
    for ship in story.crew.ships:
        state, style = _ship_state(ship, story.cargo)
        slots = "■" * ship.running + "□" * (CONCURRENCY - ship.running)
        cells = [
            Text(ship.name, "bold" if ship.state != "killed" else "bold red"),
            Text(f"pid {ship.pid}", "dim"),
            Text(slots, style),
            Text(state, style),
            Text(f"{ship.finished} jobs done", "dim"),
        ]
        grid.add_row(*(cells if width >= 70 else [cells[0], *cells[2:]]))
    return grid


def _ship_state(ship: Ship, cargo: Cargo) -> tuple[str, str]:
    if ship.state == "killed":
        return ("killed with -9", "red") if not ship.running else (f"killed, {ship.running} adrift", "red")
    if ship.state == "working" and not ship.running:
        return "waiting", "green"
    return ship.state, {"working": "yellow", "stopped": "dim", "starting": "dim"}.get(ship.state, "cyan")
