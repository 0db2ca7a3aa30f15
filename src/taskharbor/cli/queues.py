"""`taskharbor queues`: look at queues, pause and resume them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any

import click
from msgspec.structs import asdict

from taskharbor.cli import output
from taskharbor.cli.output import Cell, since
from taskharbor.cli.tables import Column, table
from taskharbor.cli.target import ask, here, target_options
from taskharbor.cli.types import json_option, wide_option
from taskharbor.client.liveness import listening
from taskharbor.core.reserved import TASKS
from taskharbor.core.states import Shown
from taskharbor.driver import QueueCounts, WorkerRecord
from taskharbor.harbor import Harbor

STATES = tuple(state.value for state in Shown)
DROPS = {"cancelled": 1, "done": 2, "claimed": 3, "scheduled": 4, "waiting": 5, "running": 6}


@click.group()
def queues() -> None:
    """Look at queues, pause and resume them."""


@queues.command("ls")
@json_option
@wide_option
@target_options
def list_queues(as_json: bool, wide: bool) -> None:
    """List queues: jobs by state, the oldest due one, and how many workers listen."""

    async def look(harbor: Harbor) -> tuple[list[QueueCounts], list[WorkerRecord]]:
        return await harbor.admin.queues.alist(), await harbor.admin.workers.alist()

    harbor = here().store()
    found, workers = ask(harbor, look)
    now = harbor.admin.now()
    if as_json:
        output.print_json([{**asdict(counts), "workers": _listeners(counts, workers, now)} for counts in found])
    elif not found:
        output.say("No queues yet.", "dim")
    else:
        queue_table(found, now, workers, wide=wide)


def _listeners(counts: QueueCounts, workers: Sequence[WorkerRecord], now: datetime) -> int | None:
    """The number of workers that listen to the queue; None for the TaskManager's queue, which has none."""
    return None if counts.queue == TASKS else len(listening(workers, counts.queue, now))


def queue_table(
    found: Sequence[QueueCounts], now: datetime, workers: Sequence[WorkerRecord] | None = None, *, wide: bool = False
) -> None:
    """Queues as a table, with the states that occur."""
    numbers = [asdict(counts) for counts in found]
    used = [state for state in STATES if any(number[state] for number in numbers)]
    paused = any(counts.paused for counts in found)
    columns = [
        Column("QUEUE", least=10),
        *([Column("PAUSED")] if paused else []),
        *(Column(state.upper(), right=True, drop=DROPS.get(state, 0)) for state in used),
        Column("OLDEST DUE"),
        *([] if workers is None else [Column("WORKERS", right=True)]),
    ]
    rows: list[list[str | Cell]] = []
    for counts, number in zip(found, numbers, strict=True):
        row: list[str | Cell] = [Cell(counts.queue, "bold")]
        row += [Cell("paused" if counts.paused else "", "yellow")] if paused else []
        row += [number_cell(number[state], output.STATE_STYLES[state]) for state in used]
        row += [since(counts.oldest_due, now)]
        row += [] if workers is None else [_listening(counts, workers, now)]
        rows.append(row)
    table(columns, rows, wide=wide)


def number_cell(number: int, style: str) -> Cell:
    """A number, dim if it is zero."""
    return Cell(f"{number:,}", style if number else "dim")


def _listening(counts: QueueCounts, workers: Sequence[WorkerRecord], now: datetime) -> Cell:
    listeners = _listeners(counts, workers, now)
    if listeners is None:
        return Cell("-", "dim")
    return Cell(str(listeners), "bold red" if not listeners and counts.due and not counts.paused else "")


@queues.command("pause")
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@json_option
@target_options
def pause(names: tuple[str, ...], as_json: bool) -> None:
    """Stop starting jobs of a queue until it is resumed. Running jobs go on."""
    _set_paused(names, as_json, paused=True)


@queues.command("resume")
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@json_option
@target_options
def resume(names: tuple[str, ...], as_json: bool) -> None:
    """Start jobs of a paused queue again."""
    _set_paused(names, as_json, paused=False)


def _set_paused(names: Sequence[str], as_json: bool, *, paused: bool) -> None:
    async def act(harbor: Harbor) -> list[dict[str, Any]]:
        before = {counts.queue: counts for counts in await harbor.admin.queues.alist()}
        listened = {queue for worker in await harbor.admin.workers.alist() for queue in worker.queues}
        for name in dict.fromkeys(names):
            await (harbor.admin.queues.apause(name) if paused else harbor.admin.queues.aresume(name))
        due = {counts.queue: counts.due for counts in await harbor.admin.queues.alist()}
        known = {*before, *listened, *(task.options.get("queue") or "default" for task in harbor.tasks.values())}
        return [
            {
                "queue": name,
                "paused": paused,
                "changed": (name in before and before[name].paused) != paused,
                "due": due.get(name, 0),
                "known": name in known,
                "similar": [] if name in known else get_close_matches(name, sorted(known)),
            }
            for name in dict.fromkeys(names)
        ]

    answers = ask(here().store(), act)
    if as_json:
        output.print_json(answers)
        return
    for answer in answers:
        output.say(_said(answer["queue"], output.count(answer["due"], "due job"), answer["changed"], paused))
        if not answer["known"]:
            similar = f": did you mean {' or '.join(answer['similar'])}?" if answer["similar"] else "."
            output.say(f"No job or worker knows a queue {answer['queue']}{similar}", "yellow")


def _said(name: str, due: str, changed: bool, paused: bool) -> str:
    if paused:
        return f"{name} {'is paused' if changed else 'was paused already'}, with {due}."
    return f"{name} is resumed, with {due}." if changed else f"{name} was not paused."
