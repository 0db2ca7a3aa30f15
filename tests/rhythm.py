"""Weeks of recurring tasks in virtual time: schedulers alone, and a stand-in that works off what they enqueue.

A whole worker looks for work every few seconds. The stand-in looks when something is due, and takes as long for a run
as the test sets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import wraps
from random import Random
from typing import Any
from unittest import mock

from taskharbor import Harbor, Retry
from taskharbor.core.decide import Retention, decide
from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import Outcome, Succeeded
from taskharbor.core.schedule import Schedule
from taskharbor.testing import run
from taskharbor.testing.clock import EPOCH
from taskharbor.worker import scheduler as schedulers
from taskharbor.worker.scheduler import Scheduler
from world import World

MINUTE, HOUR, DAY, WEEK = 60.0, 3600.0, 86_400.0, 604_800.0
LEASE = timedelta(days=60)
RETENTION = Retention(done=timedelta(days=90), dead=timedelta(days=90))
RETRY = Retry.fixed(30)
Fate = Callable[[JobRecord], tuple[float, Outcome]]


def over_weeks(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """An async test that may take weeks of virtual time. Nothing interferes there, so nothing is checked for it."""

    @wraps(test)
    def wrapped() -> None:
        with mock.patch.object(schedulers, "LOOK", DAY):
            run(test())

    return wrapped


def at(seconds: float) -> datetime:
    """So many seconds after the loop began, which was at midnight."""
    return EPOCH + timedelta(seconds=seconds)


def scheduler(harbor: Harbor) -> Scheduler:
    """The scheduler that a worker of this harbor would have."""
    return Scheduler(harbor.client, harbor._application)


@asynccontextmanager
async def ticking(*harbors: Harbor) -> AsyncGenerator[None]:
    """Schedulers of these harbors, without their workers."""
    tasks = [asyncio.create_task(scheduler(harbor).run()) for harbor in harbors]
    await asyncio.sleep(1)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def succeeds(job: JobRecord) -> tuple[float, Outcome]:
    """Done at once."""
    return 0.0, Succeeded(b"null")


class StandIn:
    """Works off jobs through the driver: `fate` says for each how long it takes, and what it comes to."""

    def __init__(self, world: World, fate: Fate = succeeds) -> None:
        self._world = world
        self._fate = fate
        self.began: list[tuple[datetime, datetime]] = []
        self.ended: list[datetime] = []
        self.most = 0
        self._running: set[asyncio.Task[None]] = set()

    @property
    def slots(self) -> list[datetime]:
        """The slots that were run, in the order of their runs."""
        return [slot for slot, _ in self.began]

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        """Until left; what runs then is dropped."""
        work = asyncio.create_task(self._work())
        try:
            yield
        finally:
            tasks = [work, *self._running]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        memory, clock = self._world.memory, self._world.clock
        while True:
            for job in await memory.reserve(["default"], clock(), LEASE, 1000, "stand-in"):
                task = asyncio.create_task(self._run(job))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            due = await memory.next_due(["default"])
            wait = DAY if due is None else (due - clock()).total_seconds()
            await memory.wait_for_work(["default"], min(max(wait, 0.001), DAY))

    async def _run(self, job: JobRecord) -> None:
        clock = self._world.clock
        self.began.append((slot_of(job), clock()))
        self.most = max(self.most, len(self._running))
        seconds, outcome = self._fate(job)
        await asyncio.sleep(seconds)
        now = clock()
        self.ended.append(now)
        assert await self._world.memory.settle([decide(job, outcome, RETRY, RETENTION, now, Random(1))], now) == ["ok"]


def slot_of(job: JobRecord) -> datetime:
    """The slot of a recurring task's job."""
    return datetime.fromisoformat(job.headers["slot"])


def jobs_of(world: World, name: str | None = None) -> list[JobRecord]:
    """The jobs of recurring tasks, by slot; of one of them if it is named."""
    jobs = world.memory._store.jobs.values()
    found = [job for job in jobs if "schedule" in job.headers and name in (None, job.headers["schedule"])]
    return sorted(found, key=slot_of)


def slots_of(world: World, name: str | None = None) -> list[datetime]:
    """The slots that have jobs."""
    return [slot_of(job) for job in jobs_of(world, name)]


async def stored(world: World, name: str = "work") -> Schedule:
    """A schedule as it is stored, by a way that no fault is in."""
    (found,) = [schedule for schedule in await world.memory.schedules() if schedule.name == name]
    return found
