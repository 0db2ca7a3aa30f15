"""The parts of a test bed: its clock, its stores, and each harbor in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count

from taskharbor.client.registered_task import BUILT_IN
from taskharbor.client.session import Session
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.states import INFLIGHT, READY, Shown
from taskharbor.driver import Schedules, offered
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.harbor import Harbor
from taskharbor.worker.application import HarborParts
from taskharbor.worker.drain_failures import FailedRun
from taskharbor.worker.scheduler import Scheduler

PAGE = 1000
LOOK = timedelta(microseconds=1)
ENDED = (Shown.DONE, Shown.DLQ, Shown.CANCELLED)
ALIVE = Filter(states=tuple(state for state in Shown if state not in ENDED))


class BedClock:
    """Starts at the host's time and stands still, except for a microsecond at every read, which keeps jobs in order.

    `advance` moves it on; `catch_up` moves it to the host's time plus all advances.
    """

    def __init__(self) -> None:
        self._looks = count(1)
        self._ahead = timedelta()
        self._base = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self._base + next(self._looks) * LOOK

    def advance(self, by: timedelta) -> None:
        """Advance by a time."""
        self._base += by
        self._ahead += by

    def catch_up(self) -> None:
        """Advance to the host's time."""
        self._base = max(self._base, datetime.now(UTC) + self._ahead)

    @contextmanager
    def back_at(self, time: datetime) -> Generator[None]:
        """Show an earlier time inside the block."""
        base, self._base = self._base, time
        try:
            yield
        finally:
            self._base = base


class KeptMemory(MemoryDriver):
    """A memory store for one test: an application that closes its harbor and opens it again finds its jobs."""

    async def close(self) -> None:
        """No-op: the bed closes the store."""

    async def end(self) -> None:
        """Close the store."""
        await super().close()


class Place:
    """A harbor in the bed, since a certain time."""

    def __init__(self, parts: HarborParts, harbor: Harbor, session: Session, since: datetime) -> None:
        self.parts = parts
        self.harbor = harbor
        self.session = session
        self.since = since
        self._scheduler: Scheduler | None = None
        self._declared: frozenset[str] = frozenset()

    def knows(self, job: JobRecord) -> bool:
        return job.type in self.parts.app.tasks or job.type in BUILT_IN

    async def jobs(self, where: Filter) -> AsyncGenerator[JobRecord]:
        """All jobs that match."""
        after: str | None = None
        while True:
            page = await self.harbor.admin.jobs.alist(where, limit=PAGE, after=after)
            for job in page:
                yield job
            if len(page) < PAGE:
                return
            after = page[-1].id

    async def _due_queues(self, now: datetime) -> set[str]:
        """The queues with a due job, or a lapsed one."""
        return {
            job.queue
            async for job in self.jobs(ALIVE)
            if self.knows(job) and (moment := _moment(job)) is not None and moment <= now
        }

    async def drain(self, failures: list[FailedRun], clock: BedClock) -> int:
        """Run what is due in all queues; return the number of runs."""
        total, done = 0, set[str]()
        while not (due := await self._due_queues(clock())) <= done:  # a run that crashed may have added a queue
            total += await self.parts.drain(failures, sorted(due))
            done |= due
        return total

    async def schedules(self) -> Schedules | None:
        return offered(await self.session.driver(), Schedules) if self.parts.app.tasks else None

    async def tick(self, clock: BedClock) -> None:
        """Do the work of a worker's scheduler: store what the code declares, and enqueue due ticks."""
        if await self.schedules() is None:
            return
        declared = frozenset(self.parts.app.recurring)
        if self._scheduler is None or self._declared != declared:
            self._scheduler = Scheduler(self.parts.client, self.parts.app)
            self._declared = declared
            with clock.back_at(self.since):
                await self._scheduler.declare()
        await self._scheduler.look()

    async def moments(self) -> AsyncGenerator[datetime]:
        """When the next job or tick is due, as far as known now."""
        async for job in self.jobs(ALIVE):
            if self.knows(job) and (moment := _moment(job)) is not None:
                yield moment
        store = await self.schedules()
        for schedule in [] if store is None else await store.schedules():
            if schedule.slot is not None and not schedule.paused:
                yield schedule.slot


def _moment(job: JobRecord) -> datetime | None:
    """When a worker can take the job."""
    if job.state is READY:
        return job.due_at
    return job.lease.expires_at if job.state is INFLIGHT and job.lease is not None else None
