"""Leases: renewed from the claim to the durable settle, and given up in time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from taskharbor import current
from taskharbor.testing import LoopClock, LostRequest, Outage, SkewedClock, Slow, script
from world import World, time, until

from .stage import HOUR, LEASE, Stage, ended, only, scene


@scene
async def a_long_run_is_one_run() -> None:
    """L1, L2: a handler that runs for three leases keeps its job, beside a second worker."""
    world, stage = World(), Stage()

    @world.harbor.task
    async def long() -> None:
        await stage.play(3 * LEASE)

    job = await long.aenqueue()
    async with world.worker(), world.worker():
        (record,) = await ended(world, job)
    assert (len(stage.starts), record.version, record.state) == (1, 1, "done")


@scene
async def a_settle_that_does_not_get_through_keeps_its_lease() -> None:
    """L2, X2: outcomes are lost for two leases, and no second worker gets the job meanwhile."""
    world = World(lambda inner: LostRequest(inner, only("settle", until=2 * LEASE)))
    runs: list[int] = []

    @world.harbor.task
    async def quick() -> None:
        runs.append(current().lease_version)

    job = await quick.aenqueue()
    async with world.worker(), world.worker():
        (record,) = await ended(world, job)
    assert (runs, record.state, record.crashes) == ([1], "done", 0)


@scene
async def a_put_back_that_does_not_get_through_keeps_its_lease() -> None:
    """L2: heartbeats begin with the claim, also for a job whose handler never starts."""
    world = World(lambda inner: LostRequest(inner, only("settle", until=2 * LEASE)))
    await world.harbor.aenqueue_many([world.harbor.step("shop.later", {})])
    (id,) = world.memory._store.jobs
    async with world.worker():
        await until(lambda: world.memory._store.jobs[id].unknown_put_backs)
    assert (await world.record(id)).crashes == 0


@scene
async def a_claim_that_took_long_to_arrive_is_renewed_at_once() -> None:
    """L2: what is left of its lease would not last until the next round."""
    world, stage = World(lambda inner: Slow(inner, 14.8, only("reserve"))), Stage()

    @world.harbor.task
    async def work() -> None:
        await stage.play(20)

    job = await work.aenqueue()
    async with world.worker():
        (record,) = await ended(world, job)
    assert (len(stage.starts), record.version) == (1, 1)


@scene
async def a_claim_that_arrives_after_its_lease_is_not_run() -> None:
    """L4: by the local clock it is lost before the handler begins."""
    world, stage = World(lambda inner: Slow(inner, 20, script("reserve")), store_timeout=60), Stage()

    @world.harbor.task
    async def work() -> None:
        await stage.play(1)

    job = await work.aenqueue()
    async with world.worker():
        (record,) = await ended(world, job)
    assert (len(stage.starts), record.version) == (1, 2)


@scene
async def a_stolen_lease_ends_the_run() -> None:
    """L4, L5: a run that lost its lease is stopped at the next heartbeat and writes nothing."""
    world = World()
    ends: list[float] = []

    @world.harbor.task
    async def long() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ends.append(time())

    job = await long.aenqueue()
    async with world.worker() as worker:
        await until(lambda: worker.busy == 1)
        (stolen,) = await world.memory.reserve(["default"], world.clock() + HOUR, 2 * HOUR, 1, "thief")
        await asyncio.sleep(120)
        assert ends == [0.9]
        assert await world.record(job) == stolen
    assert world.settled() == []


async def cut_off(at: float, slow: str) -> None:
    """One worker loses the store at a time, another takes its job over: they must not meet.

    `slow` names the verb whose replies take long to reach the first one, so that its leases are older than they seem.
    """
    world, stage = World(), Stage()
    first = World.over(world, Outage(Slow(world.log, 3, only(slow))))
    second = World.over(world, Slow(world.log, 0.01, only("reserve")))
    for each in (first, second):

        @each.harbor.task(name="long")
        async def long() -> None:
            await stage.play(60)

    await world.harbor.aenqueue_many([world.harbor.step("long", {})])
    async with first.worker(grace=0):
        await asyncio.sleep(at)
        first.store.down = True
        async with second.worker():
            await asyncio.sleep(60)
        assert len(stage.starts) == 2
        assert stage.met == []


@scene
async def a_worker_cut_off_before_its_first_heartbeat_stops_in_time() -> None:
    """L4: the lease counts from the request of the reserve, not from its reply."""
    await cut_off(6.2, "reserve")  # before the first report of the run, which renews its lease


@scene
async def a_worker_cut_off_after_a_heartbeat_stops_in_time() -> None:
    """L4: the lease counts from the request of the renewal, not from its reply."""
    await cut_off(17, "extend_lease")


@scene
async def an_outcome_that_comes_too_late_is_not_sent() -> None:
    """L4: a worker that must assume its lease lost writes nothing, also when the store is back."""
    world = World(Outage)

    @world.harbor.task
    async def work() -> int:
        world.store.down = current().lease_version == 1
        return current().lease_version

    job = await work.aenqueue()
    async with world.worker():
        await asyncio.sleep(LEASE + 20)
        world.store.down = False
        assert await job.aresult() == 2
    assert [len(batch) for batch in world.settled()] == [1]


@scene
async def a_clock_that_jumps_does_not_make_two_runs_meet() -> None:
    """L4, F5: a worker that takes its own job over lets the first run end."""
    clock = SkewedClock(LoopClock(), 0)
    world, stage = World(clock=clock), Stage()

    @world.harbor.task
    async def long() -> None:
        await stage.play(12)

    job = await long.aenqueue()
    async with world.worker():
        await asyncio.sleep(1)
        clock.offset = HOUR
        (record,) = await ended(world, job)
    assert stage.met == []
    assert record.state == "done"


@scene
async def a_run_is_shown_within_a_second() -> None:
    """T2: as running, and with its progress."""
    world = World()

    @world.harbor.task
    async def long() -> None:
        await asyncio.sleep(5)
        current().progress(0.5)
        await asyncio.sleep(5)

    job = await long.aenqueue()
    async with world.worker():
        await asyncio.sleep(1)
        assert (await world.record(job)).started_at is not None
        await asyncio.sleep(5)
        assert (await world.record(job)).progress is not None


@scene
async def the_heartbeat_reports_that_the_handler_runs() -> None:
    """T2, D6: start and progress reach the store."""
    world = World()

    @world.harbor.task
    async def long() -> None:
        current().progress(0.5, "half")
        await asyncio.sleep(25)

    job = await long.aenqueue()
    async with world.worker():
        await asyncio.sleep(15)
        record = await world.record(job)
        assert record.started_at is not None
        assert record.progress is not None
        assert record.progress.fraction == 0.5


@scene
async def the_fencing_number_grows_with_every_claim() -> None:
    """L5: also after a crash, which counts no attempt."""
    world = World()
    seen: list[int] = []

    @world.harbor.task
    async def work() -> None:
        seen.append(current().lease_version)
        if len(seen) == 1:
            raise ValueError

    job = await work.aenqueue()
    await world.memory.reserve(["default"], world.clock(), timedelta(seconds=5), 1, "victim")
    await asyncio.sleep(6)
    async with world.worker():
        await ended(world, job)
    assert seen == [2, 3]


@scene
async def a_cancelled_run_in_a_process_ends_before_the_heartbeat() -> None:
    """T3, F5: it is asked about again and again; a short run is not, nor one that nothing can kill."""
    world = World()
    ends: list[float] = []

    @world.harbor.task
    async def run(seconds: float, in_process: bool) -> None:
        current()._run.in_process = in_process
        try:
            await asyncio.sleep(seconds)
        finally:
            ends.append(time())

    async with world.worker(concurrency=2):
        await run.aenqueue(1000.0, False)
        await asyncio.sleep(3)
        before = len(world.log.calls("extend_lease"))
        for _ in range(10):
            await (await run.aenqueue(0.2, True)).aresult()
        await asyncio.sleep(1)
        assert len(world.log.calls("extend_lease")) == before
        job = await run.aenqueue(1000.0, True)
        await asyncio.sleep(3)  # its start is reported
        await job.acancel()
        asked_at = time()
        await until(lambda: world.memory._store.jobs[job.id].state == "cancelled")
        assert ends[-1] - asked_at <= 0.5
