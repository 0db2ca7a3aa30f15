"""`taskharbor health`: checks whether jobs are being processed, for people, containers and monitors."""

from __future__ import annotations

import sys
from asyncio import gather
from collections.abc import Sequence
from datetime import datetime
from shlex import quote
from typing import NoReturn

import click
from msgspec.structs import asdict

from taskharbor.admin.health import LATELY, Problem, overruns_of, problems, without_tasks
from taskharbor.cli import output
from taskharbor.cli.deep import asked, damaged, show, unsafe
from taskharbor.cli.exits import BAD, FINE, UNREACHABLE, complain, exit_code
from taskharbor.cli.target import ask, filled_in, here
from taskharbor.cli.types import answer_options, time_option
from taskharbor.client.liveness import silent
from taskharbor.core.durations import ago, count
from taskharbor.driver import QueueCounts, WorkerRecord
from taskharbor.errors import HarborError, UnsafeStore


@click.command(
    help=f"""Check whether jobs are being processed.

    Exit 0: the store answers, a worker was seen {LATELY}, and every queue with due jobs has a worker that listens to
    it, reports, and is neither stopping nor stuck (except paused queues). Exit 1: one of these fails. Exit 3: the store
    does not answer.

    --deep also reads back the settings that decide what the store may lose, and on Redis compares all indexes with the
    jobs, which reads every job. A setting that deletes jobs, or an index that does not fit, is exit 1; a setting that
    may lose jobs in a power cut is a warning. --repair also mends the indexes; workers may be running.

    Dead jobs do not make it unhealthy, nor do runs past their timeout unless they hold every slot; they are counted.
    Tasks of a TaskManager are not counted as due: workers do not run them.
    """
)
@time_option("--max-wait", help="Also unhealthy if a due job has waited longer than this.")
@click.option("--store-only", is_flag=True, help="Only check whether the store answers.")
@click.option("--deep", is_flag=True, help="Also check the store itself: what it may lose, and its indexes.")
@click.option("--repair", is_flag=True, help="Like --deep, and mend indexes that do not fit the jobs.")
@answer_options
def health(max_wait: float | None, store_only: bool, deep: bool, repair: bool, as_json: bool) -> None:
    try:
        report = ask(lambda admin: asked(admin, repair)) if deep or repair else None
        queues, workers = ask(lambda admin: gather(admin.queues.alist(), admin.workers.alist()))
    except UnsafeStore as error:
        _refused("store_unsafe", error, as_json, BAD)
    except HarborError as error:
        exit = exit_code(error)
        _refused("store_unreachable" if exit == UNREACHABLE else "wrong_settings", error, as_json, exit)
    now = here().now()
    queues = [without_tasks(counts) for counts in queues]
    found = [] if store_only else problems(queues, workers, max_wait, now)
    found = [Problem(problem.code, filled_in(problem.message)) for problem in found]
    if report is not None:
        found += [*unsafe(report.settings), *damaged(report)]
    if as_json:
        output.print_json(_answer(queues, workers, found, now) | (asdict(report) if report is not None else {}))
    else:
        _show(queues, workers, found, now)
        if report is not None:
            show(report, repair=repair)
    for problem in () if as_json else found:
        complain(problem.message)
    sys.exit(BAD if found else FINE)


def _refused(code: str, error: HarborError, as_json: bool, exit: int) -> NoReturn:
    if as_json:
        output.print_json({"healthy": False, "problems": [Problem(code, str(error))]})
    complain(str(error))
    sys.exit(exit)


def _answer(
    queues: Sequence[QueueCounts], workers: Sequence[WorkerRecord], found: list[Problem], now: datetime
) -> dict[str, object]:
    oldest = min((counts.oldest_due for counts in queues if counts.oldest_due), default=None)
    return {
        "healthy": not found,
        "problems": found,
        "workers": len(workers),
        "due": sum(counts.due for counts in queues),
        "lapsed": sum(counts.lapsed for counts in queues),
        "running": sum(counts.claimed + counts.running for counts in queues),
        "dlq": sum(counts.dlq for counts in queues),
        "silent": sum(silent(worker, now) for worker in workers),
        "stopping": sum(worker.stopping for worker in workers),
        "overruns": sum(overruns_of(worker, now) for worker in workers),
        "overrunning": {worker.id: runs for worker in workers if (runs := overruns_of(worker, now))},
        "paused": [counts.queue for counts in queues if counts.paused],
        "oldest_due_seconds": None if oldest is None else max(0.0, (now - oldest).total_seconds()),
    }


def _show(queues: Sequence[QueueCounts], workers: Sequence[WorkerRecord], found: list[Problem], now: datetime) -> None:
    dead = sum(counts.dlq for counts in queues)
    gone = sum(silent(worker, now) for worker in workers)
    quiet = "silent" if gone == len(workers) else f"{gone:,} of them silent"
    listed = count(len(workers), "worker") + (f" ({quiet})" if gone else "")
    numbers = f"{listed}, {_due(queues)}, {count(dead, 'dead job')}"
    line, style = (f"unhealthy: {numbers}", "bold red") if found else (f"healthy: {numbers}", "green")
    output.say(line, style, wrap=True)
    for worker in workers:
        if note := _note(worker, now):
            output.say(f"worker {worker.id} {note}", "yellow", wrap=True)
    for counts in queues:
        if counts.paused and counts.due:
            jobs = f"{count(counts.due, 'due job')}, the oldest {output.since(counts.oldest_due, now)}"
            resume = f"`taskharbor queues resume {quote(counts.queue)}`"
            output.say(f"queue {counts.queue} is paused, with {jobs}: {resume}", "yellow", wrap=True)


def _note(worker: WorkerRecord, now: datetime) -> str:
    """A note on a worker that is unusual."""
    if silent(worker, now):
        late = f", with {count(worker.overruns, 'run')} past the timeout" if worker.overruns else ""
        return f"is silent: it was last seen {ago(worker.seen_at, now)}{late}"
    notes = [f"is stopping: {count(worker.busy, 'run')} to end"] if worker.stopping else []
    if worker.overruns:
        notes.append(f"has {count(worker.overruns, 'run')} past the timeout: `taskharbor jobs ls state:running`")
    return ", and ".join(notes)


def _due(queues: Sequence[QueueCounts]) -> str:
    """`35 due jobs (30 of them in paused queues: mail; 5 lapsed jobs)`."""
    paused = [counts for counts in queues if counts.paused and counts.due]
    lapsed = sum(counts.lapsed for counts in queues)
    notes: list[str] = []
    if paused:
        names = ", ".join(counts.queue for counts in paused)
        notes.append(f"{sum(counts.due for counts in paused):,} of them in paused queues: {names}")
    if lapsed:
        notes.append(count(lapsed, "lapsed job"))
    due = count(sum(counts.due for counts in queues), "due job")
    return f"{due} ({'; '.join(notes)})" if notes else due
