"""`taskharbor workers`: the workers that reported recently."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import click
from msgspec.structs import asdict

from taskharbor.admin.health import LATELY, START, overruns_of
from taskharbor.cli.output import Cell
from taskharbor.cli.tables import Column, list_options, listing
from taskharbor.cli.target import ask, filled_in, here
from taskharbor.client.liveness import MISSED, REPORT_EVERY, silent
from taskharbor.core.durations import ago, length
from taskharbor.driver import WorkerRecord

NO_WORKERS = f"No workers were seen {LATELY}: run `{START}`."


@click.command(
    help=f"""List the workers seen {LATELY}.

    A worker reports every {length(REPORT_EVERY.total_seconds())}. One that has not reported for
    {length(MISSED.total_seconds())} is silent: it may be gone, and its last report about its runs is not shown.
    One that is stopping waits for its runs and claims no more jobs.
    """
)
@list_options
def workers(**options: Any) -> None:
    found, now = ask(lambda admin: admin.workers.alist()), here().now()
    listing(found, worker_columns(now), filled_in(NO_WORKERS), partial(facts_of, now=now), **options)


def worker_columns(now: datetime) -> list[Column[WorkerRecord]]:
    """The columns of workers."""

    def busy(worker: WorkerRecord) -> str:
        return f"{'-' if silent(worker, now) else worker.busy}/{worker.slots}"

    def overruns(worker: WorkerRecord) -> Cell:
        number = overruns_of(worker, now)
        return Cell("-" if silent(worker, now) else f"{number:,}", "bold red" if number else "dim")

    def seen(worker: WorkerRecord) -> Cell:
        note = ", silent" if silent(worker, now) else ", stopping" if worker.stopping else ""
        return Cell(f"{ago(worker.seen_at, now)}{note}", "yellow" if note else "")

    return [
        Column("WORKER", lambda worker: Cell(worker.id, "bold"), least=36, keep_end=True),
        Column("HOST", lambda worker: worker.host, least=6, drop=1),
        Column("PID", lambda worker: str(worker.pid), right=True, drop=2),
        Column("QUEUES", lambda worker: ", ".join(worker.queues), least=10, drop=5),
        Column("BUSY", busy, right=True),
        Column("OVERRUNS", overruns, right=True, drop=4),
        Column("SINCE", lambda worker: ago(worker.started_at, now), drop=3),
        Column("SEEN", seen),
    ]


def facts_of(worker: WorkerRecord, now: datetime) -> dict[str, Any]:
    """The fields of a worker in JSON."""
    return {**asdict(worker), "silent": silent(worker, now)}
