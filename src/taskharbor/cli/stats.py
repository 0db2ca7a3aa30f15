"""`taskharbor stats`: an overview of queues, workers and runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from msgspec.structs import asdict

from taskharbor.cli import output
from taskharbor.cli.queues import number_cell, queue_table
from taskharbor.cli.tables import Column, table
from taskharbor.cli.target import ask, here, target_options
from taskharbor.cli.types import json_option, time_option, wide_option
from taskharbor.cli.workers import LATELY, facts_of, overruns_of, worker_table
from taskharbor.core.durations import length
from taskharbor.driver import QueueCounts, Tally, WorkerRecord

OUTCOMES = ("done", "retried", "dlq", "cancelled", "released")
DROPS = {"released": 1, "cancelled": 2, "retried": 3}


@click.command()
@time_option("--since", "Sum up the runs of this period.", "1h")
@json_option
@wide_option
@target_options
def stats(since: float, as_json: bool, wide: bool) -> None:
    """Show queues with their jobs, live workers, and recent runs."""
    harbor = here().store()
    found = ask(harbor, lambda harbor: harbor.admin.astats(since))
    now = harbor.admin.now()
    totals = _totals(found.tallies, found.unstarted)
    if as_json:
        output.print_json(
            {
                "at": now,
                "queues": [asdict(counts) for counts in found.queues],
                "workers": [facts_of(worker, now) for worker in found.workers],
                "since_seconds": since,
                "totals": totals,
            }
        )
        return
    _show_queues(found.queues, now, wide)
    _show_workers(found.workers, now, wide)
    _show_totals(totals, since, wide)


def _totals(tallies: Sequence[Tally], unstarted: Sequence[Tally]) -> list[dict[str, Any]]:
    """The sums per task; `runs` counts those that started, and `seconds` is their duration."""
    sums: dict[tuple[str, str], dict[str, Any]] = defaultdict(
        lambda: {**dict.fromkeys((*OUTCOMES, "runs"), 0), "seconds": 0.0}
    )
    for tally in tallies:
        total = sums[(tally.queue, tally.task)]
        total[tally.outcome] += tally.count
        total["runs"] += tally.count
        total["seconds"] += tally.seconds
    for tally in unstarted:
        sums[(tally.queue, tally.task)]["runs"] -= tally.count
    return [{"queue": queue, "task": task, **total} for (queue, task), total in sorted(sums.items())]


def _show_queues(queues: Sequence[QueueCounts], now: datetime, wide: bool) -> None:
    output.heading("Queues")
    if queues:
        queue_table(queues, now, wide=wide)
    else:
        output.say("no jobs yet", "dim")


def _show_workers(workers: Sequence[WorkerRecord], now: datetime, wide: bool) -> None:
    output.heading("Workers")
    if not workers:
        output.say(f"none seen {LATELY}", "dim")
        return
    overruns = any(overruns_of(worker, now) for worker in workers)
    columns = (
        Column("WORKER", least=40),
        Column("BUSY", right=True),
        Column("QUEUES", least=10),
        Column("SINCE", drop=2),
        Column("SEEN", drop=1),
        *([Column("OVERRUNS", right=True)] if overruns else []),
    )
    worker_table(columns, workers, now, wide=wide)


def _show_totals(totals: list[dict[str, Any]], since: float, wide: bool) -> None:
    output.heading(f"Runs of the last {length(since)}")
    if not totals:
        output.say("none", "dim")
        return
    columns = [
        Column("TASK", least=16, keep_end=True),
        Column("QUEUE", least=8, drop=4),
        *(Column(outcome.upper(), right=True, drop=DROPS.get(outcome, 0)) for outcome in OUTCOMES),
        Column("MEAN", right=True, drop=5),
    ]
    table(
        columns,
        [
            [
                total["task"],
                total["queue"],
                *(number_cell(total[outcome], _STYLES.get(outcome, "")) for outcome in OUTCOMES),
                length(total["seconds"] / total["runs"]) if total["runs"] else "-",
            ]
            for total in totals
        ],
        wide=wide,
    )


_STYLES = {**output.STATE_STYLES, "retried": "yellow"}
