"""Clients and clocks."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

from msgspec.structs import replace

from taskharbor import Harbor
from taskharbor.client import clock as clocks
from taskharbor.client.job_builder import JobBuilder, current_run
from taskharbor.core.job import NewJob
from taskharbor.driver import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing import LoopClock, SkewedClock, Slow, Wrapper
from world import World, time, until

from .stage import HOUR, scene


@scene
async def many_submitters_of_one_key_create_one_job() -> None:
    """I1: at the same time, over a store that takes its time."""
    world = World(lambda inner: Slow(inner, 1))

    @world.harbor.task
    async def work() -> None: ...

    jobs = await asyncio.gather(*(work.using(idempotency_key="k").aenqueue() for _ in range(8)))
    assert sum(job.created for job in jobs) == 1
    assert len({job.id for job in jobs}) == 1


@scene
async def every_job_has_an_id_of_its_own() -> None:
    """R2."""
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    jobs = await world.harbor.aenqueue_many(work.step() for _ in range(50))
    jobs += [await work.aenqueue() for _ in range(50)]
    assert len({job.id for job in jobs}) == 100


class WithClock(Wrapper):
    """A driver whose engine has a clock."""

    def __init__(self, inner: Driver, clock: SkewedClock) -> None:
        super().__init__(inner)
        self._clock = clock

    async def server_now(self) -> datetime:
        return self._clock()


@scene
async def the_engines_clock_rules() -> None:
    """L8, X4: a host that is an hour ahead runs nothing early."""
    true = SkewedClock(LoopClock(), 0)
    store = MemoryDriver()
    harbor = Harbor(driver=WithClock(store, true))
    other = Harbor(driver=WithClock(store, true))
    starts: list[float] = []

    @harbor.task(name="work")
    async def work() -> None:
        starts.append(time())

    with mock.patch.object(clocks, "host_clock", true):
        await other.aenqueue_many([other.step("work", {}, delay=60)])
    with mock.patch.object(clocks, "host_clock", SkewedClock(true, HOUR)):
        async with harbor.worker(["default"], threads=False):
            await until(lambda: starts, 0.05, 120)
    assert round(starts[0]) == 60


@scene
async def a_change_of_the_engines_clock_is_followed() -> None:
    """L8: it is asked again, once a minute."""
    engine = SkewedClock(LoopClock(), 0)
    harbor = Harbor(driver=WithClock(MemoryDriver(), engine))
    async with harbor.worker(["default"], threads=False):
        await asyncio.sleep(5)
        engine.offset = timedelta(seconds=500)
        await asyncio.sleep(70)
        assert abs(harbor.admin.now() - engine()) < timedelta(seconds=1)


@scene
async def jobs_share_only_what_their_task_says() -> None:
    """R5: settings are the harbor's of the moment, options and lineage those of each job."""
    world = World()
    session = world.harbor.client.session

    @world.harbor.task(queue="mail")
    async def work(number: int) -> None: ...

    def built(step: Any, workflow_id: str | None = None) -> NewJob:
        (job,) = JobBuilder(session).jobs([step], workflow_id)
        return job

    first = built(work.step(1))
    special = built(work.using(queue="other", id="mine", delay=5).step(2))
    assert (special.id, special.queue, special.run_at is None) == ("mine", "other", False)
    assert built(work.step(3), "flow").workflow_id == "flow"
    parent = current_run.set(SimpleNamespace(job=first))
    assert built(work.step(4)).headers.get("parent_id") == first.id
    current_run.reset(parent)
    after = built(work.step(5))
    assert (after.queue, after.run_at, after.workflow_id, after.headers) == ("mail", None, None, {})
    assert len({job.id for job in (first, special, after)}) == 3
    session.settings = replace(session.settings, timeout=7.0)
    assert built(work.step(6)).timeout == 7.0
