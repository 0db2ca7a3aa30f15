"""`taskharbor health`: checks whether jobs are being processed, for people, containers and monitors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta

import click
from msgspec.structs import replace

from taskharbor.cli import output
from taskharbor.cli.exits import BAD, FINE, UNREACHABLE, complain, exit_code
from taskharbor.cli.target import APPLICATION, ask, filled_in, here, target_options
from taskharbor.cli.types import json_option, time_option
from taskharbor.cli.workers import LATELY, overruns_of
from taskharbor.client.liveness import absence, listening, silent
from taskharbor.core.durations import ago, length
from taskharbor.core.reserved import TASKS
from taskharbor.driver import QueueCounts, WorkerRecord
from taskharbor.errors import HarborError
from taskharbor.harbor import Harbor

NO_WORKER = f"no worker was seen {LATELY}: run `taskharbor worker {APPLICATION}`"
Problem = tuple[str, str]
State = tuple[list[QueueCounts], list[WorkerRecord]]


@click.command(
    help=f"""Check whether jobs are being processed.

    Exit 0: the store answers, a worker was seen {LATELY}, and every queue with due jobs has a worker that listens to
    it, reports, and is neither stopping nor stuck (except paused queues). Exit 1: one of these fails. Exit 3: the store
    does not answer.

    Dead jobs do not make it unhealthy, nor do runs past their timeout unless they hold every slot; they are counted.
    Tasks of a TaskManager are not counted as due: workers do not run them.
    """
)
@time_option("--max-wait", "Also unhealthy if a due job has waited longer than this.")
@click.option("--store-only", is_flag=True, help="Only check whether the store answers.")
@json_option
@target_options
def health(max_wait: float | None, store_only: bool, as_json: bool) -> None:
    try:
        harbor = here().store()
        queues, workers = ask(harbor, _look)
    except HarborError as error:
        if exit_code(error) != UNREACHABLE:
            raise
        if as_json:
            output.print_json({"healthy": False, "problems": [_named(("store_unreachable", str(error)))]})
        complain(str(error))
        sys.exit(UNREACHABLE)
    now = harbor.admin.now()
    queues = [_without_tasks(counts) for counts in queues]
    problems = [] if store_only else _problems(queues, workers, max_wait, now)
    if as_json:
        output.print_json(_answer(queues, workers, problems, now))
    else:
        _show(queues, workers, problems, now)
    sys.exit(BAD if problems else FINE)


def _without_tasks(counts: QueueCounts) -> QueueCounts:
    """Leave out a TaskManager's tasks, which workers do not run."""
    return counts if counts.queue != TASKS else replace(counts, ready=0, lapsed=0, oldest_due=None)


async def _look(harbor: Harbor) -> State:
    return await harbor.admin.queues.alist(), await harbor.admin.workers.alist()


def _problems(
    queues: Sequence[QueueCounts], workers: Sequence[WorkerRecord], max_wait: float | None, now: datetime
) -> list[Problem]:
    if not workers:
        return [("no_worker", filled_in(NO_WORKER))]
    waiting = [counts for counts in queues if counts.due and not counts.paused]
    return [found for counts in waiting if (found := _problem(counts, workers, max_wait, now))]


def _problem(
    counts: QueueCounts, workers: Sequence[WorkerRecord], max_wait: float | None, now: datetime
) -> Problem | None:
    """What keeps the due jobs of a queue from being run."""
    queue, jobs = counts.queue, output.count(counts.due, "due job")
    if (missing := absence(workers, queue, now, "it")) is not None:
        code, text = missing
        start = filled_in(f"taskharbor worker {APPLICATION} -Q {queue}")
        return code, f"queue {queue} has {jobs}, but {text}: run `{start}`"
    listeners = listening(workers, queue, now)
    if all(queue in worker.stuck for worker in listeners):
        stuck = ", ".join(worker.id for worker in listeners)
        return "stuck", (
            f"queue {queue} has {jobs}, and every slot that it may take runs past a timeout: restart {stuck}; "
            "`taskharbor jobs ls state:running` shows what hangs"
        )
    if max_wait is not None and counts.oldest_due and now - counts.oldest_due > timedelta(seconds=max_wait):
        waited = length((now - counts.oldest_due).total_seconds())
        return "late", f"queue {queue}: a due job has waited {waited}: start more workers or raise concurrency"
    return None


def _named(problem: Problem) -> dict[str, str]:
    return {"code": problem[0], "message": problem[1]}


def _answer(
    queues: Sequence[QueueCounts], workers: Sequence[WorkerRecord], problems: list[Problem], now: datetime
) -> dict[str, object]:
    oldest = min((counts.oldest_due for counts in queues if counts.oldest_due), default=None)
    return {
        "healthy": not problems,
        "problems": [_named(problem) for problem in problems],
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


def _show(
    queues: Sequence[QueueCounts], workers: Sequence[WorkerRecord], problems: list[Problem], now: datetime
) -> None:
    dead = sum(counts.dlq for counts in queues)
    numbers = f"{output.count(len(workers), 'worker')}, {_due(queues)}, {output.count(dead, 'dead job')}"
    output.say(f"unhealthy: {numbers}" if problems else f"healthy: {numbers}", "bold red" if problems else "green")
    for worker in workers:
        if note := _note(worker, now):
            output.say(f"worker {worker.id} {note}", "yellow", wrap=True)
    for _, message in problems:
        complain(message)


def _note(worker: WorkerRecord, now: datetime) -> str:
    """What is unusual about a worker."""
    if silent(worker, now):
        return f"is silent: it was last seen {ago(worker.seen_at, now)}"
    notes = [f"is stopping: {output.count(worker.busy, 'run')} to end"] if worker.stopping else []
    if worker.overruns:
        notes.append(f"has {output.count(worker.overruns, 'run')} past the timeout: taskharbor jobs ls state:running")
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
        notes.append(output.count(lapsed, "lapsed job"))
    due = output.count(sum(counts.due for counts in queues), "due job")
    return f"{due} ({'; '.join(notes)})" if notes else due
