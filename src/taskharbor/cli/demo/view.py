"""The demo on the screen: a live picture in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from taskharbor.cli.demo.cargo import Cargo, Kind
from taskharbor.cli.demo.crew import CONCURRENCY, Ship
from taskharbor.cli.demo.story import Story, StoryEvent
from taskharbor.core.states import State

MOST_EVENTS = 9
OTHER_LINES = 18


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
            self.tell(StoryEvent(story.elapsed, f"{cargo.ended} of {cargo.expected} jobs have ended"))

    def tell(self, event: StoryEvent) -> None:
        if not event.minor:
            click.echo(f"{event.at:5.1f} s  {event.text}")


class LiveView:
    """Progress per kind, workers, and the last events, drawn ten times a second."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._events: deque[StoryEvent] = deque(maxlen=MOST_EVENTS)
        self._aside: StoryEvent | None = None

    def on_screen(self) -> AbstractContextManager[object]:
        return self._live

    def tell(self, event: StoryEvent) -> None:
        if event.minor:
            self._aside = event  # only the latest: many failures must not push out the story
        else:
            self._events.append(event)

    def frame(self, story: Story) -> None:
        width, gap = self._console.width, Text()
        picture = Group(_title(story), gap, _kinds(story, width), gap, _ships(story, width), gap, self._newest())
        self._live.update(picture, refresh=True)

    def _newest(self) -> RenderableType:
        room = max(3, min(MOST_EVENTS + 1, self._console.height - OTHER_LINES))
        events = list(self._events)[1 - room :]
        if self._aside is not None:
            events = sorted([*events, self._aside], key=lambda event: event.at)
        lines = [Text.assemble((f"{event.at:5.1f} s  ", "dim"), (event.text, event.style)) for event in events]
        text = Text("\n").join([*lines, *[Text()] * (room - len(lines))])
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


def view() -> LiveView | PlainView:
    """The view for stdout: live in a terminal, else lines. `frame` shows the current numbers, `tell` an event."""
    return LiveView() if sys.stdout.isatty() else PlainView()


def _title(story: Story) -> RenderableType:
    return Text.assemble(
        ("TaskHarbor demo", "bold cyan"),
        ("  three worker processes, one SQLite file  ", "dim"),
        (f"{story.cargo.ended} of {story.cargo.expected} jobs  {story.elapsed:.1f} s", "bold"),
        no_wrap=True,
        overflow="ellipsis",
    )


def _kinds(story: Story, width: int) -> RenderableType:
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
        style, finished = ("red", "red") if kind is story.cargo.poison else ("cyan", "green")
        grid.add_row(
            kind.title,
            ProgressBar(total=whole, completed=part, width=bar, complete_style=style, finished_style=finished),
            f"{kind.ended}/{kind.expected}",
            Text(_note(kind, story)),
        )
    return grid


def _note(kind: Kind, story: Story) -> str:
    cargo, pair = story.cargo, story.cargo.pair
    left = kind.expected - kind.ended
    if kind is cargo.flaky:
        return f"{kind.failures} failures so far" if left else f"after {kind.failures} failures"
    if kind is cargo.keyed:
        return f"enqueued {len(pair)} times, stored {sum(job.created for job in pair)}" if pair else ""
    if kind is cargo.scheduled:
        return f"{left} wait for their time" if left else ""
    if kind in (special := {cargo.poison: _poison, cargo.voyage: _voyage, cargo.bell: _bell}):
        return special[kind](kind, story)
    return f"{kind.running} running" if kind.running else ""


def _poison(kind: Kind, story: Story) -> str:
    for job in kind.seen:
        state = "dead" if job.state is State.DLQ else "failing"
        return f"{state} after {job.attempts} of {job.max_attempts} attempts" if job.attempts else ""
    return ""


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
