"""`taskharbor queues`: look at queues, pause and resume them."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any

import click
from msgspec.structs import asdict

from taskharbor.admin.admin import Admin
from taskharbor.cli import output
from taskharbor.cli.output import Cell, since
from taskharbor.cli.tables import Column, list_options, listing
from taskharbor.cli.target import ask, here
from taskharbor.cli.types import answer_options
from taskharbor.client.liveness import listening
from taskharbor.core.durations import count
from taskharbor.core.reserved import TASKS
from taskharbor.core.states import Shown
from taskharbor.driver import QueueCounts

STATES = tuple(state.value for state in Shown)
DROPS = {"cancelled": 1, "done": 2, "claimed": 3, "scheduled": 4, "waiting": 5, "running": 6, "lapsed": 7}


@click.group()
def queues() -> None:
    """Look at queues, pause and resume them."""


@queues.command("ls")
@list_options
def list_queues(**options: Any) -> None:
    """List queues with their jobs, oldest due job and workers.

    Jobs are counted by state. WORKERS is the number of workers that listen to the queue.
    """
    found, workers = ask(lambda admin: gather(admin.queues.alist(), admin.workers.alist()))
    now = here().now()

    def listeners(counts: QueueCounts) -> int | None:
        """The number of workers that listen to the queue; None for the TaskManager's queue, which has none."""
        return None if counts.queue == TASKS else len(listening(workers, counts.queue, now))

    def listeners_cell(counts: QueueCounts) -> Cell:
        if (number := listeners(counts)) is None:
            return Cell("-", "dim")
        return Cell(str(number), "bold red" if not number and counts.due and not counts.paused else "")

    columns = [*queue_columns(found, now), Column("WORKERS", listeners_cell, right=True, drop=8)]
    listing(found, columns, "No queues yet.", lambda counts: asdict(counts) | {"workers": listeners(counts)}, **options)


def queue_columns(found: Sequence[QueueCounts], now: datetime) -> list[Column[QueueCounts]]:
    """The columns of these queues, with the states that occur."""
    used = [state for state in STATES if any(getattr(counts, state) for counts in found)]
    paused: Column[QueueCounts] = Column("PAUSED", lambda counts: Cell("paused" if counts.paused else "", "yellow"))
    return [
        Column("QUEUE", lambda counts: Cell(counts.queue, "bold"), least=20),
        *([paused] if any(counts.paused for counts in found) else []),
        *map(_state_column, used),
        Column("OLDEST DUE", lambda counts: since(counts.oldest_due, now), drop=9),
    ]


def _state_column(state: str) -> Column[QueueCounts]:
    style = output.STATE_STYLES[state]
    return Column(
        state.upper(), lambda counts: number_cell(getattr(counts, state), style), right=True, drop=DROPS.get(state, 0)
    )


def number_cell(number: int, style: str) -> Cell:
    """A number, dim if it is zero."""
    return Cell(f"{number:,}", style if number else "dim")


@queues.command("pause")
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@answer_options
def pause(names: tuple[str, ...], as_json: bool) -> None:
    """Stop starting jobs of a queue until it is resumed. Running jobs go on."""
    _set_paused(names, as_json, paused=True)


@queues.command("resume")
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@answer_options
def resume(names: tuple[str, ...], as_json: bool) -> None:
    """Start jobs of a paused queue again."""
    _set_paused(names, as_json, paused=False)


def _set_paused(names: Sequence[str], as_json: bool, *, paused: bool) -> None:
    tasks = here().store.tasks.values()

    async def act(admin: Admin) -> list[dict[str, Any]]:
        before = {counts.queue: counts for counts in await admin.queues.alist()}
        listened = {queue for worker in await admin.workers.alist() for queue in worker.queues}
        for name in dict.fromkeys(names):
            await (admin.queues.apause(name) if paused else admin.queues.aresume(name))
        due = {counts.queue: counts.due for counts in await admin.queues.alist()}
        known = {*before, *listened, *(task.options.get("queue") or "default" for task in tasks)}
        return [
            {
                "queue": name,
                "paused": paused,
                "changed": (name in before and before[name].paused) != paused,
                "due": due.get(name, 0),
                "known": name in known,
                "similar": [] if name in known else _similar(name, sorted(known)),
            }
            for name in dict.fromkeys(names)
        ]

    answers = ask(act)
    if as_json:
        output.print_json(answers)
        return
    for answer in answers:
        output.say(_answer(answer["queue"], count(answer["due"], "due job"), answer["changed"], paused))
        if not answer["known"]:
            similar = f": did you mean {' or '.join(answer['similar'])}?" if answer["similar"] else "."
            output.say(f"No job or worker knows a queue {answer['queue']}{similar}", "yellow")


def _similar(name: str, known: Sequence[str]) -> list[str]:
    """The names that resemble this one, or else begin with it."""
    return get_close_matches(name, known) or [queue for queue in known if queue.startswith(name)]


def _answer(name: str, due: str, changed: bool, paused: bool) -> str:
    if paused:
        return f"{name} {'is paused' if changed else 'was paused already'}, with {due}."
    return f"{name} is resumed, with {due}." if changed else f"{name} was not paused."
