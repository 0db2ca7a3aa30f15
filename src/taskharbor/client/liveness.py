"""Which workers are alive, by their reports, and what is missing where no worker claims the jobs of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from taskharbor.core.durations import ago
from taskharbor.core.job import JobRecord
from taskharbor.core.shown import shown
from taskharbor.core.states import Shown
from taskharbor.driver import Driver, Registry, WorkerRecord, offered

REPORT_EVERY = timedelta(seconds=10)
MISSED = 2 * REPORT_EVERY
ALIVE = 4 * REPORT_EVERY


def silent(worker: WorkerRecord, now: datetime) -> bool:
    """Whether the worker has missed two reports: its last report about its runs no longer holds."""
    return worker.seen_at < now - MISSED


def listening(workers: Sequence[WorkerRecord], queue: str, now: datetime) -> list[WorkerRecord]:
    """The workers that claim jobs of the queue: neither silent nor stopping."""
    return [worker for worker in workers if queue in worker.queues and not (worker.stopping or silent(worker, now))]


def absence(
    workers: Sequence[WorkerRecord], queue: str, now: datetime, name: str | None = None
) -> tuple[str, str] | None:
    """Why no worker claims jobs of the queue, as a stable code and a text that calls it `name`; None if one does."""
    called = name or f"queue {queue}"
    if listening(workers, queue, now):
        return None
    known = [worker for worker in workers if queue in worker.queues]
    if not known:
        others = f" ({len(workers):,} worker{'' if len(workers) == 1 else 's'} on other queues)" if workers else ""
        return "queue_without_worker", f"no worker listens to {called}{others}"
    last = max(known, key=lambda worker: (worker.seen_at, worker.id))
    if silent(last, now):
        return "silent", f"the last worker on {called}, {last.id}, was seen {ago(last.seen_at, now)}"
    return "stopping", f"the last worker on {called}, {last.id}, is stopping"


async def missing_worker(driver: Driver, job: JobRecord, now: datetime) -> str | None:
    """Why no worker will claim the job, or the jobs it waits for; None if one may, or that is not known."""
    registry, state = offered(driver, Registry), shown(job, now)
    if registry is None or state not in (Shown.READY, Shown.LAPSED, Shown.WAITING):
        return None
    workers = await registry.workers(now - ALIVE)
    if state is Shown.WAITING:
        alive = any(not (worker.stopping or silent(worker, now)) for worker in workers)
        return None if alive else "no worker is running"
    found = absence(workers, job.queue, now)
    return None if found is None else found[1]
