"""`taskharbor stats`: the whole at a glance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from msgspec.structs import asdict

from taskharbor.cli import output
from taskharbor.cli.output import Cell, Column, ago
from taskharbor.cli.place import ask, here, place_options
from taskharbor.cli.types import json_option, time_option
from taskharbor.core.states import Shown
from taskharbor.driver import QueueCounts, Tally, WorkerRecord

OUTCOMES = ("done", "retried", "dlq", "cancelled", "released")
STATES = tuple(state.value for state in Shown)


@click.command()
@time_option("--since", "Sum up the runs of this time.", "1h")
@json_option
@place_options
def stats(since: float, as_json: bool) -> None:
    """Queues with their jobs, live workers, and what was run lately."""
    harbor = here().store()
    found = ask(harbor, lambda harbor: harbor.admin.astats(since))
    now = harbor.admin.now()
    totals = _totals(found.tallies)
    if as_json:
        output.print_json(
            {
                "at": now,
                "queues": [asdict(counts) for counts in found.queues],
                "workers": [asdict(worker) for worker in found.workers],
                "since_seconds": since,
                "totals": totals,
            }
        )
        return
    _show_queues(found.queues, now)
    _show_workers(found.workers, now)
    _show_totals(totals, since)


def _totals(tallies: Sequence[Tally]) -> list[dict[str, Any]]:
    sums: dict[tuple[str, str], dict[str, Any]] = defaultdict(lambda: {**dict.fromkeys(OUTCOMES, 0), "seconds": 0.0})
    for tally in tallies:
        total = sums[(tally.queue, tally.task)]
        total[tally.outcome] += tally.count
        total["seconds"] += tally.seconds
    return [{"queue": queue, "task": task, **total} for (queue, task), total in sorted(sums.items())]


def _show_queues(queues: Sequence[QueueCounts], now: datetime) -> None:
    output.heading("Queues")
    if not queues:
        output.say("no jobs yet", "dim")
        return
    numbers = [asdict(counts) for counts in queues]
    used = [state for state in STATES if any(number[state] for number in numbers)]
    columns = [Column("QUEUE"), *(Column(state.upper(), right=True) for state in used), Column("OLDEST DUE", least=90)]
    output.table(
        columns,
        [
            [
                f"{number['queue']}{' (paused)' if number['paused'] else ''}",
                *(_number(number[state], output.STATE_STYLES[state]) for state in used),
                ago(number["oldest_due"], now),
            ]
            for number in numbers
        ],
    )


def _number(count: int, style: str) -> Cell:
    return Cell(f"{count:,}", style if count else "dim")


def _show_workers(workers: Sequence[WorkerRecord], now: datetime) -> None:
    output.heading("Workers")
    if not workers:
        output.say("none seen within the last 40 seconds", "dim")
        return
    columns = (
        Column("WORKER"),
        Column("BUSY", right=True),
        Column("QUEUES", soft=True),
        Column("UP SINCE", least=80),
        Column("SEEN", least=90),
    )
    output.table(
        columns,
        [
            [
                worker.id,
                f"{worker.busy}/{worker.slots}",
                ", ".join(worker.queues),
                ago(worker.started_at, now),
                ago(worker.seen_at, now),
            ]
            for worker in workers
        ],
    )


def _show_totals(totals: list[dict[str, Any]], since: float) -> None:
    output.heading(f"Runs of the last {output.length(since)}")
    if not totals:
        output.say("none (workers report every ten seconds)", "dim")
        return
    columns = [
        Column("TASK", soft=True),
        Column("QUEUE", least=80),
        *(Column(outcome.upper(), right=True, least=0 if outcome in ("done", "dlq") else 70) for outcome in OUTCOMES),
        Column("MEAN", right=True, least=60),
    ]
    output.table(
        columns,
        [
            [
                total["task"],
                total["queue"],
                *(_number(total[outcome], _STYLES.get(outcome, "")) for outcome in OUTCOMES),
                f"{total['seconds'] / max(1, sum(total[outcome] for outcome in OUTCOMES)) * 1000:,.0f} ms",
            ]
            for total in totals
        ],
    )


_STYLES = {**output.STATE_STYLES, "retried": "yellow"}
