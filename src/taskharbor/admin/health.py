"""Whether jobs are being processed, by what the store says about queues and workers. Pure, like `why`.

Commands and pages show the same answer; they put the name of the application in the place of MODULE:HARBOR.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.client.liveness import ALIVE, absence, listening, silent
from taskharbor.core.durations import count, length
from taskharbor.core.reserved import TASKS
from taskharbor.driver import QueueCounts, WorkerRecord

LATELY = f"within the last {length(ALIVE.total_seconds())}"
START = "taskharbor worker MODULE:HARBOR"


class Problem(Struct, frozen=True):
    """A reason why due jobs do not run: a stable code, and a sentence with the remedy."""

    code: str
    message: str


def without_tasks(counts: QueueCounts) -> QueueCounts:
    """Leave out a TaskManager's tasks, which workers do not run."""
    return counts if counts.queue != TASKS else replace(counts, ready=0, lapsed=0, oldest_due=None)


def overruns_of(worker: WorkerRecord, now: datetime) -> int:
    """The number of the worker's runs past their timeout; zero if it is silent, because its leases lapse."""
    return 0 if silent(worker, now) else worker.overruns


def problems(
    queues: Sequence[QueueCounts], workers: Sequence[WorkerRecord], max_wait: float | None, now: datetime
) -> list[Problem]:
    """The problems of all queues; with `max_wait`, also if a due job has waited for more seconds."""
    if not workers:
        return [Problem("no_worker", f"no worker was seen {LATELY}: run `{START}`")]
    waiting = [counts for counts in queues if counts.due and not counts.paused]
    return [found for counts in waiting if (found := _problem(counts, workers, max_wait, now))]


def _problem(
    counts: QueueCounts, workers: Sequence[WorkerRecord], max_wait: float | None, now: datetime
) -> Problem | None:
    queue, jobs = counts.queue, count(counts.due, "due job")
    if (missing := absence(workers, queue, now, "it")) is not None:
        code, text = missing
        return Problem(code, f"queue {queue} has {jobs}, but {text}: run `{START} -Q {quote(queue)}`")
    listeners = listening(workers, queue, now)
    if all(queue in worker.stuck for worker in listeners):
        stuck = ", ".join(worker.id for worker in listeners)
        return Problem(
            "stuck",
            f"queue {queue} has {jobs}, and every slot that it may take runs past a timeout: restart {stuck}; "
            "`taskharbor jobs ls state:running` shows what hangs",
        )
    if max_wait is not None and counts.oldest_due and now - counts.oldest_due > timedelta(seconds=max_wait):
        waited = length((now - counts.oldest_due).total_seconds())
        return Problem("late", f"queue {queue}: a due job has waited {waited}: start more workers or raise concurrency")
    return None
