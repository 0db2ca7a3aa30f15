"""The verbs that a manager needs, for one task at a time and at the store's time."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from taskharbor.client.session import Session
from taskharbor.core.decide import later
from taskharbor.core.evolve import Replay
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord, Progress
from taskharbor.core.lease import Verdict
from taskharbor.core.reserved import TASKS
from taskharbor.core.states import READY, Shown
from taskharbor.core.transition import Transition
from taskharbor.driver import Deletion, Driver, Extended, Inspect, Maintain, Manage, Report, Reschedule, capability
from taskharbor.errors import LeaseError, TaskNotFound
from taskharbor.manager.task import is_stopping

PAGE = 200  # payloads come along


class TaskStore:
    """Reads and writes the jobs that are tasks, and no others."""

    def __init__(self, driver: Driver, session: Session) -> None:
        self._driver = driver
        self._inspect = capability(driver, Inspect)
        self._manage = capability(driver, Manage)
        self._session = session

    @property
    def now(self) -> datetime:
        return self._session.now()

    @property
    def limit(self) -> int:
        return self._session.payload_limit

    async def find(self, id: str) -> JobRecord:
        """The job of a task. If an operator has stopped it, it is ended first."""
        job = await self._get(id)
        if is_stopping(job, self.now):  # without a worker, nothing else does this upkeep
            now, upkeep = self.now, capability(self._driver, Maintain)
            keep_until = later(now, self._session.settings.retention.done)
            while await upkeep.sweep(now, keep_until, PAGE) == PAGE:
                pass
            job = await self._get(id)
        return job

    async def _get(self, id: str) -> JobRecord:
        (job,) = await self._inspect.get([id])
        if job is None or job.queue != TASKS:
            raise TaskNotFound(f"there is no task {id}: the id is wrong, or it was deleted")
        return job

    async def find_key(self, key: str) -> str | None:
        return await self._inspect.find_key(key, self.now)

    async def claim(self, job: JobRecord, worker: str, lease: timedelta) -> JobRecord | None:
        """The task under a new lease; None if another worker was faster.

        Tasks have no schedule: if one is not due yet, a host's clock was ahead, or an operator has moved it.
        """
        if job.state is READY and job.due_at > (now := self.now):
            await self._manage.reschedule([Reschedule(id=job.id, run_at=now)], now)
        claimed = await self._driver.reserve([], self.now, lease, 1, worker, [job.id])
        return claimed[0] if claimed else None

    async def extend(self, job: JobRecord, lease: timedelta, progress: Progress | None) -> Extended | LeaseError:
        token = "" if job.lease is None else job.lease.token
        return (await self._driver.extend_lease([Report(job.id, token, progress=progress)], self.now, lease))[0]

    async def settle(self, to: Transition, now: datetime) -> Verdict:
        """Write an outcome at the time it was decided, so that a failure has the time of its settle.

        Claims of agents are not runs of a worker: the totals leave them out.
        """
        return (await self._driver.settle([replace(to, increment=None)], now))[0]

    async def replay(self, job: JobRecord) -> bool:
        """Put a failed task back in its old place with its key; False if it has changed."""
        (answer,) = await self._manage.replay([Replay(id=job.id, run_at=job.due_at)], self.now)
        return answer in ("replayed", "replayed_without_key")

    async def delete(self, id: str) -> Deletion:
        return (await self._manage.delete([id]))[0]

    async def page(self, states: tuple[Shown, ...], after: str | None) -> list[JobRecord]:
        """The newest tasks in these states, behind the one that is named; if there are less than `PAGE`, the last."""
        return await self._inspect.query(Filter(queue=TASKS, states=states), self.now, PAGE, after)
