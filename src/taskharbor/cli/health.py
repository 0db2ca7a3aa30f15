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
from taskharbor.cli.workers import overruns_of
from taskharbor.core.durations import length
from taskharbor.core.reserved import TASKS
from taskharbor.driver import QueueCounts, WorkerRecord
from taskharbor.errors import HarborError
from taskharbor.harbor import Harbor
from taskharbor.worker.tallies import silent

NO_WORKER = f"no worker was seen within the last 40 seconds: run `taskharbor worker {APPLICATION}`"
Problem = tuple[str, str]
State = tuple[list[QueueCounts], list[WorkerRecord]]


@click.command()
@time_option("--max-wait", "Also unhealthy if a due job has waited longer than this.")
@click.option("--store-only", is_flag=True, help="Only check whether the store answers.")
@json_option
@target_options
def health(max_wait: float | None, store_only: bool, as_json: bool) -> None:
    """Check whether jobs are being processed.

    Exit 0: the store answers, a worker was seen within the last 40 seconds, and every queue with due jobs has a worker
    that listens to it and is not stuck (except paused queues). Exit 1: one of these fails. Exit 3: the store does
    not answer.

    Dead jobs do not make it unhealthy, nor do runs past their timeout unless they hold every slot; they are counted.
    Tasks of a TaskManager are not counted as due: workers do not run them.
    """
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
    problems: list[Problem] = []
    listened = {name for worker in workers for name in worker.queues}
    for counts in queues:
        if counts.paused or not counts.due:
            continue
        if counts.queue not in listened:
            message = (
                f"queue {counts.queue} has {output.count(counts.due, 'due job')} and no worker listens to it: "
                f"run `taskharbor worker {APPLICATION} -Q {counts.queue}`"
            )
            problems.append(("queue_without_worker", filled_in(message)))
        elif stuck := _stuck(counts.queue, workers, now):
            message = (
                f"queue {counts.queue} has {output.count(counts.due, 'due job')}, and every slot of its workers runs "
                f"past a timeout: restart {', '.join(stuck)}; `taskharbor jobs ls state:running` shows what hangs"
            )
            problems.append(("stuck", message))
        elif max_wait is not None and counts.oldest_due and now - counts.oldest_due > timedelta(seconds=max_wait):
            waited = length((now - counts.oldest_due).total_seconds())
            problems.append(
                (
                    "late",
                    f"queue {counts.queue}: a due job has waited {waited}: start more workers or raise concurrency",
                )
            )
    return problems


def _stuck(queue: str, workers: Sequence[WorkerRecord], now: datetime) -> list[str]:
    """The workers of a queue if all are stuck: every slot is taken by a run past its timeout."""
    listening = [worker for worker in workers if queue in worker.queues and not silent(worker, now)]
    if all(overruns_of(worker, now) >= worker.slots for worker in listening):
        return [worker.id for worker in listening]
    return []


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
        "overruns": sum(overruns_of(worker, now) for worker in workers),
        "overrunning": {worker.id: runs for worker in workers if (runs := overruns_of(worker, now))},
        "paused": [counts.queue for counts in queues if counts.paused],
        "oldest_due_seconds": None if oldest is None else max(0.0, (now - oldest).total_seconds()),
    }


def _show(
    queues: Sequence[QueueCounts], workers: Sequence[WorkerRecord], problems: list[Problem], now: datetime
) -> None:
    dead = sum(counts.dlq for counts in queues)
    quiet = sum(silent(worker, now) for worker in workers)
    seen = output.count(len(workers), "worker") + (f" ({quiet:,} silent)" if quiet else "")
    numbers = f"{seen}, {_due(queues)}, {output.count(dead, 'dead job')}"
    output.say(f"unhealthy: {numbers}" if problems else f"healthy: {numbers}", "bold red" if problems else "green")
    for worker in workers:
        if overruns := overruns_of(worker, now):
            runs = output.count(overruns, "run")
            output.say(
                f"worker {worker.id} has {runs} past the timeout: taskharbor jobs ls state:running", "yellow", wrap=True
            )
    for _, message in problems:
        complain(message)


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
