"""`taskharbor stats`: an overview of queues, workers and runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, TypeVar

import click
from msgspec.structs import asdict, replace

from taskharbor.admin.health import LATELY, overruns_of
from taskharbor.admin.stats import OUTCOMES, by_task
from taskharbor.cli import output
from taskharbor.cli.queues import number_cell, queue_columns
from taskharbor.cli.tables import NEVER, Column, list_options, table
from taskharbor.cli.target import ask, here
from taskharbor.cli.types import time_option
from taskharbor.cli.workers import facts_of, worker_columns
from taskharbor.core.durations import length
from taskharbor.driver import WorkerRecord

T = TypeVar("T")
DROPS = {"released": 1, "cancelled": 2, "retried": 3}


@click.command()
@time_option("--since", help="Sum up the runs of this period.", default="1h")
@list_options
def stats(since: float, as_json: bool, wide: bool) -> None:
    """Show queues with their jobs, live workers, and recent runs."""
    found, now = ask(lambda admin: admin.astats(since)), here().now()
    totals = by_task(found)
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
    _section("Queues", queue_columns(found.queues, now), found.queues, "no jobs yet", wide)
    _section("Workers", _worker_columns(found.workers, now), found.workers, f"none seen {LATELY}", wide)
    _section(f"Runs of the last {length(since)}", _total_columns(), totals, "none", wide)


def _section(title: str, columns: Sequence[Column[T]], found: Sequence[T], nothing: str, wide: bool) -> None:
    output.heading(title)
    if found:
        table(columns, found, wide=wide)
    else:
        output.say(nothing, "dim")


def _worker_columns(workers: Sequence[WorkerRecord], now: datetime) -> list[Column[WorkerRecord]]:
    known = {column.title: column for column in worker_columns(now)}
    overruns = any(overruns_of(worker, now) for worker in workers)
    return [
        known["WORKER"],
        known["BUSY"],
        known["QUEUES"],
        replace(known["SINCE"], drop=2),
        replace(known["SEEN"], drop=1),
        *([replace(known["OVERRUNS"], drop=NEVER)] if overruns else []),
    ]


def _total_columns() -> list[Column[dict[str, Any]]]:
    def outcome_column(outcome: str) -> Column[dict[str, Any]]:
        style = {**output.STATE_STYLES, "retried": "yellow"}.get(outcome, "")
        return Column(
            outcome.upper(), lambda total: number_cell(total[outcome], style), right=True, drop=DROPS.get(outcome, 0)
        )

    def mean(total: dict[str, Any]) -> str:
        return length(total["seconds"] / total["runs"]) if total["runs"] else "-"

    return [
        Column("TASK", itemgetter("task"), least=16, keep_end=True),
        Column("QUEUE", itemgetter("queue"), least=8, drop=4),
        *map(outcome_column, OUTCOMES),
        Column("MEAN", mean, right=True, drop=5),
    ]
