"""Slots, waiting for work, upkeep, and the graceful stop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

from taskharbor import Unrecoverable, current
from taskharbor.core.decide import succeed, token_of
from taskharbor.core.outcome import Succeeded
from taskharbor.testing import Outage, Slow
from world import World, time

from .stage import Stage, ended, only, scene


@scene
async def a_worker_takes_no_more_than_it_can_run() -> None:
    """L6: never more jobs than free slots, and a slot is free when its run is over."""
    world = World()
    running = most = 0

    @world.harbor.task
    async def work(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1 + number % 3)
        running -= 1

    jobs = await world.harbor.aenqueue_many(work.step(number) for number in range(12))
    async with world.worker(concurrency=4) as worker:
        await ended(world, *jobs)
        assert worker.busy == 0
    assert most == 4
    assert max(call["limit"] for call in world.log.calls("reserve")) == 4


@scene
async def a_queue_that_hangs_leaves_a_slot_to_the_others() -> None:
    """D11: a job of the other queue starts at once, and what ends makes room for the next of its own queue."""
    world = World()
    starts: list[float] = []

    @world.harbor.task
    async def work(seconds: float) -> None:
        starts.append(time())
        await asyncio.sleep(seconds)

    await world.harbor.aenqueue_many(work.using(queue="slow").step(50 + number) for number in range(4))
    async with world.worker("fast", "slow", concurrency=3):
        await asyncio.sleep(10)
        await work.using(queue="fast").aenqueue(1)
        await asyncio.sleep(110)
    assert [round(start) for start in starts] == [0, 0, 10, 50, 51]


@scene
async def a_full_worker_goes_on_when_a_slot_is_free() -> None:
    """L6: at once, whatever became of the run."""
    world = World()
    starts: list[float] = []

    @world.harbor.task(max_attempts=1)
    async def work(good: bool) -> None:
        starts.append(round(time(), 3))
        await asyncio.sleep(7)
        if not good:
            raise ValueError

    jobs = await world.harbor.aenqueue_many(work.step(number % 2 == 0) for number in range(6))
    async with world.worker(concurrency=2):
        await ended(world, *jobs, limit=60)
    assert starts == [0, 0, 7, 7, 14, 14]


@scene
async def a_delayed_job_runs_on_time() -> None:
    """N1: not early, and without a poll in between that would find it."""
    world = World()
    starts: list[float] = []

    @world.harbor.task
    async def work() -> None:
        starts.append(time())

    job = await work.using(delay=61.3).aenqueue()
    async with world.worker():
        await ended(world, job)
    assert [round(start, 3) for start in starts] == [61.3]


@scene
async def an_expired_job_is_cancelled() -> None:
    """N1, T1: by the workers, without a request."""
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    job = await work.using(expires=5, delay=60).aenqueue()
    async with world.worker():
        await asyncio.sleep(10)
    assert await world.state(job) == "cancelled"


@scene
async def a_record_outlives_its_key() -> None:
    """I3: pruned after both its retention and its key have run out."""
    world = World(keep_done=10, idempotency_ttl=100)

    @world.harbor.task
    async def work() -> str:
        return "done"

    job = await work.using(idempotency_key="k").aenqueue()
    async with world.worker():
        await asyncio.sleep(90)
        again = await work.using(idempotency_key="k").aenqueue()
        assert (again.id, again.created, await again.aresult()) == (job.id, False, "done")
        await asyncio.sleep(60)
    assert world.is_empty()


@scene
async def a_store_that_was_away_finds_its_workers_again() -> None:
    """X2: whatever the length of the outage."""
    world = World(Outage)

    @world.harbor.task
    async def work() -> None: ...

    async with world.worker():
        await asyncio.sleep(1)
        world.store.down = True
        await asyncio.sleep(100)
        world.store.down = False
        job = await work.aenqueue()
        await ended(world, job, limit=7)


@scene
async def a_cancelled_job_stops_at_the_next_heartbeat() -> None:
    """T3: and counts no attempt."""
    world, stage = World(), Stage()

    @world.harbor.task
    async def long() -> None:
        await stage.play(100)

    job = await long.aenqueue()
    async with world.worker():
        await asyncio.sleep(5)
        await job.acancel()
        (record,) = await ended(world, job)
        assert round(time()) == 10
    assert (record.state, record.attempts, record.failures) == ("cancelled", 0, ())


@scene
async def a_job_dead_lettered_by_hand_stops_at_the_next_heartbeat() -> None:
    """T3, Q4: and counts no attempt."""
    world, stage = World(), Stage()

    @world.harbor.task
    async def long() -> None:
        await stage.play(100)

    job = await long.aenqueue()
    async with world.worker():
        await asyncio.sleep(5)
        await world.harbor.admin.jobs.adead_letter(job.id, reason="wrong customer")
        (record,) = await ended(world, job)
        assert round(time()) == 10
    assert (record.state, record.dlq_reason, record.attempts) == ("dlq", "wrong customer", 0)


@scene
async def a_result_that_comes_after_the_timeout_is_discarded() -> None:
    """F5: also when the handler blocked the loop, so that nothing could stop it."""
    world = World()

    @world.harbor.task(timeout=5, max_attempts=1)
    async def blocks() -> str:
        loop: Any = asyncio.get_running_loop()
        loop._now += 6
        return "late"

    job = await blocks.aenqueue()
    async with world.worker():
        (record,) = await ended(world, job)
    assert (record.state, record.last_error) == ("dlq", "TimeoutError: timed out after 5 s")


@scene
async def a_stop_counts_the_timeout_of_a_run_that_ignores_it() -> None:
    """F5, X6: otherwise deploys would hand it on for ever."""
    world = World()

    @world.harbor.task(timeout=5)
    async def stubborn() -> None:
        while time() < 60:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    job = await stubborn.aenqueue()
    async with world.worker(grace=0):
        await asyncio.sleep(9)
    assert (await world.record(job)).attempts == 1


@scene
async def a_failure_after_the_ack_is_not_believed() -> None:
    """D8: the job is done, so no hook for a dead one is called."""
    world = World()
    deaths: list[str] = []

    @world.harbor.on_dead
    async def on_dead(job: Any) -> None:
        deaths.append(job.id)

    @world.harbor.task
    async def commits() -> None:
        record = current().record
        ack = succeed(record, token_of(record), Succeeded(None), world.clock() + timedelta(days=1), world.clock())
        assert await world.memory.settle([ack], world.clock()) == ["ok"]  # as a commit whose reply is lost
        raise Unrecoverable("the reply was lost")

    job = await commits.aenqueue()
    async with world.worker():
        await asyncio.sleep(1)
    assert (await world.state(job), deaths) == ("done", [])


@scene
async def a_stop_lets_handlers_finish() -> None:
    """X6: within the grace period."""
    world = World()

    @world.harbor.task
    async def work() -> None:
        await asyncio.sleep(20)

    job = await work.aenqueue()
    async with world.worker(grace=25):
        await asyncio.sleep(1)
    assert await world.state(job) == "done"


@scene
async def a_stop_gives_back_what_it_interrupts() -> None:
    """X6, F6: at once, in its old place, counting neither attempt nor crash."""
    world = World()

    @world.harbor.task
    async def long() -> None:
        await asyncio.sleep(1000 if current().lease_version == 1 else 0)

    job = await long.aenqueue()
    before = await world.record(job)
    async with world.worker(grace=5):
        await asyncio.sleep(1)
    record = await world.record(job)
    assert (record.state, record.attempts, record.crashes, record.failures) == ("ready", 0, 0, ())
    assert record.due_at == before.due_at
    async with world.worker():
        (done,) = await ended(world, job)
    assert done.version == 2


@scene
async def jobs_that_arrive_during_a_stop_are_given_back_unrun() -> None:
    """X6: the reply of a reserve may come after the order to stop."""
    world, stage = World(lambda inner: Slow(inner, 5, only("reserve"))), Stage()

    @world.harbor.task
    async def work() -> None:
        await stage.play(1)

    job = await work.aenqueue()
    async with world.worker() as worker:
        await asyncio.sleep(7)
        worker.begin_stop()
    record = await world.record(job)
    assert (stage.starts, record.state, record.version) == ([], "ready", 1)


@scene
async def an_abandoned_run_is_not_given_back() -> None:
    """X6, F5: a handler that ignores its cancellation keeps its lease until that has run out."""
    world, stage = World(), Stage()
    gate = asyncio.Event()

    @world.harbor.task
    async def stubborn() -> None:
        stage.starts.append(time())
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()

    job = await stubborn.aenqueue()
    async with world.worker(grace=5):
        await asyncio.sleep(1)
    state = await world.state(job)
    gate.set()
    await asyncio.sleep(1)
    assert state == "inflight"
    assert world.settled() == []
