"""Says by their reports which workers are alive, and why no worker claims the jobs of a queue.

In tests, `Attendance` also knows which workers run in this process, so that waiting for a result that no worker will
produce fails instead of lasting for ever.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Protocol

from taskharbor.core.decide import MAX_UNKNOWN_PUT_BACKS
from taskharbor.core.durations import ago, count
from taskharbor.core.job import JobRecord
from taskharbor.core.shown import shown
from taskharbor.core.states import Shown
from taskharbor.driver import Driver, Registry, WorkerRecord, offered
from taskharbor.errors import NoWorker

REPORT_EVERY = timedelta(seconds=10)
MISSED = 2 * REPORT_EVERY
ALIVE = 4 * REPORT_EVERY
QUEUES_SHOWN = 5


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
        return "queue_without_worker", f"no worker listens to {called}{_elsewhere(workers)}"
    last = max(known, key=lambda worker: (worker.seen_at, worker.id))
    if silent(last, now):
        return "silent", f"the last worker on {called}, {last.id}, was seen {ago(last.seen_at, now)}"
    return "stopping", f"the last worker on {called}, {last.id}, is stopping"


def _elsewhere(workers: Sequence[WorkerRecord]) -> str:
    """` (2 workers on other queues: default, mails)`: a misspelt queue shows."""
    if not workers:
        return ""
    names = sorted({queue for worker in workers for queue in worker.queues})
    shown = ", ".join(names[:QUEUES_SHOWN]) + (", …" if len(names) > QUEUES_SHOWN else "")
    return f" ({count(len(workers), 'worker')} on other queues: {shown})"


def tally(number: int, most: int | None) -> str:
    """`1 of 4 times`."""
    return count(number, "time") if most is None else f"{number:,} of {count(most, 'time')}"


def unknown_task(job: JobRecord) -> str | None:
    """That no worker knows the job's task, as far as it has been claimed; None if none has put it back for that."""
    if not job.unknown_put_backs:
        return None
    times = count(job.unknown_put_backs, "time")
    return f"no worker that claimed it knows the task {job.type} (put back {times}, dead after {MAX_UNKNOWN_PUT_BACKS})"


def retrying(job: JobRecord, then: str) -> str | None:
    """That a scheduled job failed and is tried again `then`; None if it is scheduled for another reason."""
    if job.failed_at is None or not job.attempts or job.run_at is None or job.run_at < job.failed_at:
        return None
    return f"failed {tally(job.attempts, job.max_attempts)}; the next try is {then}: {job.last_error}"


async def missing_worker(driver: Driver, job: JobRecord, now: datetime) -> str | None:
    """Why no worker will run the job, or the jobs it waits for; None if one may, or that is not known."""
    registry, state = offered(driver, Registry), shown(job, now)
    if state is Shown.SCHEDULED:
        return unknown_task(job)
    if registry is None or state not in (Shown.READY, Shown.LAPSED, Shown.WAITING):
        return None
    workers = await registry.workers(now - ALIVE)
    if state is Shown.WAITING:
        alive = any(not (worker.stopping or silent(worker, now)) for worker in workers)
        return None if alive else "no worker is running"
    found = absence(workers, job.queue, now)
    return unknown_task(job) if found is None else found[1]


class OpenStore(Protocol):
    """An open store and its time, as a session has them."""

    async def driver(self) -> Driver: ...
    def now(self) -> datetime: ...


class Attendance:
    """The workers of this process on one test's stores; `elsewhere` says that other processes can reach the store.

    A wait that finds none of them for `patience` seconds is refused.
    """

    def __init__(self, *, elsewhere: bool, patience: float = 1.0) -> None:
        self.elsewhere = elsewhere
        self.patience = patience
        self._working = 0
        self._lock = threading.Lock()

    @contextmanager
    def working(self) -> Generator[None]:
        """A worker runs inside the block."""
        with self._lock:
            self._working += 1
        try:
            yield
        finally:
            with self._lock:
                self._working -= 1

    async def has_worker(self, store: OpenStore) -> bool:
        """Whether a worker runs here, or reports from another process."""
        if self._working or not self.elsewhere:
            return self._working > 0
        registry = offered(await store.driver(), Registry)
        return registry is not None and bool(await registry.workers(store.now() - ALIVE))


class WorkerWatch:
    """Checks during a wait without a timeout that a worker runs."""

    def __init__(self, attendance: Attendance, store: OpenStore) -> None:
        self._attendance = attendance
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._last_seen = self._loop.time()

    @property
    def longest(self) -> float:
        """The longest wait between two looks."""
        return max(self._attendance.patience, 0.01)

    async def look(self, what: str) -> None:
        """`NoWorker` if there was no worker for some time."""
        now = self._loop.time()
        if await self._attendance.has_worker(self._store):
            self._last_seen = now
        elif now - self._last_seen >= self._attendance.patience:
            raise NoWorker(
                f"{what} has not ended, and nothing runs jobs in this test: call taskharbor.drain() first "
                "(for a later time, taskharbor.run_for()), or start a worker, with harbor.worker():"
            )
