"""`taskharbor workers`: the workers that reported recently."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from msgspec.structs import asdict

from taskharbor.cli import output
from taskharbor.cli.output import Cell
from taskharbor.cli.tables import Column, table
from taskharbor.cli.target import APPLICATION, ask, filled_in, here, target_options
from taskharbor.cli.types import json_option, wide_option
from taskharbor.client.liveness import ALIVE, MISSED, REPORT_EVERY, silent
from taskharbor.core.durations import ago, length
from taskharbor.driver import WorkerRecord

LATELY = f"within the last {length(ALIVE.total_seconds())}"
NO_WORKERS = f"No workers were seen {LATELY}: run `taskharbor worker {APPLICATION}`."
COLUMNS = (
    Column("WORKER", least=40),
    Column("HOST", least=6, drop=1),
    Column("PID", right=True, drop=2),
    Column("QUEUES", least=10),
    Column("BUSY", right=True),
    Column("OVERRUNS", right=True, drop=4),
    Column("SINCE", drop=3),
    Column("SEEN"),
)


@click.command(
    help=f"""List the workers seen {LATELY}.

    A worker reports every {length(REPORT_EVERY.total_seconds())}. One that has not reported for
    {length(MISSED.total_seconds())} is silent: it may be gone, and its last report about its runs is not shown.
    One that is stopping waits for its runs and claims no more jobs.
    """
)
@json_option
@wide_option
@target_options
def workers(as_json: bool, wide: bool) -> None:
    harbor = here().store()
    found = ask(harbor, lambda harbor: harbor.admin.workers.alist())
    now = harbor.admin.now()
    if as_json:
        output.print_json([facts_of(worker, now) for worker in found])
    elif not found:
        output.say(filled_in(NO_WORKERS), "dim", wrap=True)
    else:
        worker_table(COLUMNS, found, now, wide=wide)


def facts_of(worker: WorkerRecord, now: datetime) -> dict[str, Any]:
    """The fields of a worker in JSON."""
    return {**asdict(worker), "silent": silent(worker, now)}


def overruns_of(worker: WorkerRecord, now: datetime) -> int:
    """The number of the worker's runs past their timeout; zero if it is silent, because its leases lapse."""
    return 0 if silent(worker, now) else worker.overruns


def worker_table(columns: Sequence[Column], found: Sequence[WorkerRecord], now: datetime, *, wide: bool) -> None:
    """Workers as a table."""
    rows = [_row(worker, now) for worker in found]
    table(columns, [[row[column.title] for column in columns] for row in rows], wide=wide)


def _row(worker: WorkerRecord, now: datetime) -> dict[str, str | Cell]:
    quiet, overruns = silent(worker, now), overruns_of(worker, now)
    note = ", silent" if quiet else ", stopping" if worker.stopping else ""
    return {
        "WORKER": Cell(worker.id, "bold"),
        "HOST": worker.host,
        "PID": str(worker.pid),
        "QUEUES": ", ".join(worker.queues),
        "BUSY": f"{'-' if quiet else worker.busy}/{worker.slots}",
        "OVERRUNS": Cell("-" if quiet else f"{overruns:,}", "bold red" if overruns else "dim"),
        "SINCE": ago(worker.started_at, now),
        "SEEN": Cell(f"{ago(worker.seen_at, now)}{note}", "yellow" if note else ""),
    }
