"""The graceful stop: finish, cancel, give back, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from datetime import timedelta
from typing import Any

import pytest

from taskharbor import Harbor, current
from taskharbor.core.transition import PutBack
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing import Slow
from world import World, time, until, virtual


def sleeper(world: World) -> Any:
    @world.harbor.task
    async def sleep(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    return sleep


def stubborn(world: World, gate: asyncio.Event) -> Any:
    """A task that ignores cancellation until the gate opens."""

    @world.harbor.task
    async def wait() -> None:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()

    return wait


@virtual
async def test_handlers_may_finish_within_the_grace_period() -> None:
    """X6."""
    world = World()
    job = await sleeper(world).aenqueue(20)
    async with world.worker(grace=25):
        await asyncio.sleep(1)
    assert await world.state(job) == "done"
    assert time() == pytest.approx(20)


@virtual
async def test_no_job_is_reserved_while_the_worker_stops() -> None:
    """X6."""
    world = World()
    sleep = sleeper(world)
    await sleep.aenqueue(20)
    async with world.worker():
        await asyncio.sleep(1)
        late = await world.harbor.aenqueue_many([sleep.step(1) for _ in range(3)])
        reserves = len(world.log.calls("reserve"))
        # leaving the block stops it, before it notices the new jobs
    assert len(world.log.calls("reserve")) <= reserves + 1
    assert {await world.state(job) for job in late} == {"ready"}


@virtual
async def test_what_does_not_finish_is_cancelled_and_released_without_an_attempt() -> None:
    """X6, F6: a deploy counts as neither attempt nor crash."""
    world = World()
    ends: list[float] = []

    @world.harbor.task
    async def long() -> int:
        if current().lease_version == 2:
            return 2
        try:
            await asyncio.sleep(1000)
        finally:
            ends.append(time())
        return 1

    job = await long.aenqueue()
    async with world.worker(grace=25):
        await asyncio.sleep(5)
    assert ends == [pytest.approx(30)]
    record = await world.record(job)
    assert (record.state, record.attempts, record.crashes, record.failures) == ("ready", 0, 0, ())
    assert record.lease is None
    async with world.worker():
        assert await job.aresult() == 2


@virtual
async def test_a_worker_reports_within_seconds_that_it_is_stopping() -> None:
    """X6, D13: it waits for its run, and claims no more jobs."""
    world = World()
    await sleeper(world).aenqueue(1000)
    async with world.worker(grace=25) as worker:
        await asyncio.sleep(5)
        assert [seen.stopping for seen in await world.memory.workers(world.clock())] == []
        worker.begin_stop()
        await asyncio.sleep(2)
        (seen,) = await world.memory.workers(world.clock() - timedelta(seconds=2))
        assert (seen.stopping, seen.busy) == (True, 1)


@virtual
async def test_a_second_signal_stops_at_once() -> None:
    """X6."""
    world = World()
    job = await sleeper(world).aenqueue(1000)
    async with world.worker(grace=25) as worker:
        await asyncio.sleep(5)
        worker.begin_stop()
        await worker.wait()
        worker.begin_stop()
    assert time() == pytest.approx(5)
    assert await world.state(job) == "ready"


@virtual
async def test_a_second_signal_during_the_grace_period_ends_it() -> None:
    """X6."""
    world = World()
    job = await sleeper(world).aenqueue(1000)
    async with world.worker(grace=25) as worker:
        await asyncio.sleep(5)
        worker.begin_stop()
        asyncio.get_running_loop().call_later(3, worker.begin_stop)
    assert time() == pytest.approx(8)
    assert await world.state(job) == "ready"


@virtual
async def test_a_second_signal_does_not_wait_for_a_store_that_hangs() -> None:
    """X6, X2: the jobs of the unheard reserve run elsewhere, when their leases have run out."""
    world = World(lambda inner: Slow(inner, 20, lambda verb: verb == "reserve"))
    async with world.worker() as worker:
        await asyncio.sleep(1)
        worker.begin_stop()
        await asyncio.sleep(1)
        worker.begin_stop()
        await worker.wait()
    assert time() == pytest.approx(2)


@virtual
async def test_jobs_that_arrive_from_a_reserve_under_way_are_released_unrun() -> None:
    """X6: the reply of a reserve may come after the order to stop."""
    world = World(lambda inner: Slow(inner, 5, lambda verb: verb == "reserve"))
    ran = False

    @world.harbor.task
    async def work() -> None:
        nonlocal ran
        ran = True

    job = await work.aenqueue()
    async with world.worker() as worker:
        await asyncio.sleep(7)
        worker.begin_stop()
    record = await world.record(job)
    assert not ran
    assert (record.state, record.version, record.attempts) == ("ready", 1, 0)
    assert isinstance(world.settled()[0][0], PutBack)


@virtual
async def test_a_released_job_keeps_its_place_in_line() -> None:
    """X6, D11: it is due since it was due, not since the deploy."""
    world = World()
    sleep = sleeper(world)
    job = await sleep.aenqueue(1000)
    due = (await world.record(job)).due_at
    async with world.worker(grace=0):
        await asyncio.sleep(5)
        await sleep.aenqueue(1)
    assert (await world.record(job)).due_at == due


@virtual
async def test_a_handler_that_ignores_its_cancellation_is_abandoned_and_its_lease_runs_out() -> None:
    """X6: nothing is written for it, so that no second run starts beside it before its lease has ended."""
    world = World()
    gate = asyncio.Event()
    job = await stubborn(world, gate).aenqueue()
    async with world.worker(grace=5):
        await asyncio.sleep(1)
    assert time() == pytest.approx(6 + 2)
    assert await world.state(job) == "inflight"
    assert world.settled() == []
    gate.set()
    await asyncio.sleep(1)
    assert world.settled() == []


@virtual
async def test_a_cancelled_run_that_is_abandoned_ends_as_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """T3, X6: the log and the totals say what is stored."""
    caplog.set_level(logging.INFO, logger="taskharbor")
    world = World()
    gate = asyncio.Event()
    job = await stubborn(world, gate).aenqueue()
    async with world.harbor._launcher._lived() as worker_of:
        worker = worker_of(world.harbor._launcher._options(None, threads=False, grace=1))
        worker.start()
        await asyncio.sleep(2)
        await job.acancel()
        await asyncio.sleep(30)
        await worker.stop(hold_abandoned=True)
        await worker.give_back_abandoned()
    assert await world.state(job) == "cancelled"
    assert "job.cancelled" in caplog.text
    assert "job.released" not in caplog.text
    gate.set()
    await asyncio.sleep(1)


@virtual
async def test_a_process_that_ends_may_release_what_it_abandons() -> None:
    """X6, F5: the lease is kept until the last act, and the job is due a second later, when the process is gone."""
    world = World()
    gate = asyncio.Event()
    job = await stubborn(world, gate).aenqueue()
    context = world.worker(grace=5)
    worker = await context.__aenter__()
    await asyncio.sleep(1)
    await worker.stop(hold_abandoned=True)
    await asyncio.sleep(100)
    assert await world.memory.reserve(["default"], world.clock(), timedelta(seconds=9), 1, "other") == []
    await worker.give_back_abandoned()
    record = await world.record(job)
    assert (record.state, record.attempts, record.crashes) == ("ready", 0, 0)
    assert record.due_at - world.clock() == timedelta(seconds=1)
    gate.set()
    await asyncio.sleep(1)
    await context.__aexit__(None, None, None)
    assert len(world.settled()) == 1


@virtual
async def test_the_outcomes_of_the_last_moment_are_written() -> None:
    """X6, L2: a stop waits for the settles under way, and renews their leases meanwhile."""
    world = World(lambda inner: Slow(inner, 4, lambda verb: verb == "settle"))
    jobs = [await sleeper(world).aenqueue(2)]
    async with world.worker(lease=9):
        await asyncio.sleep(1)
    assert [await world.state(job) for job in jobs] == ["done"]
    assert world.log.calls("extend_lease")


@virtual
async def test_an_error_in_the_block_still_stops_gracefully() -> None:
    """X6."""
    world = World()
    job = await sleeper(world).aenqueue(3)

    async def fail() -> None:
        async with world.worker():
            await asyncio.sleep(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await world.state(job) == "done"


@virtual
async def test_cancelling_the_block_still_stops_gracefully() -> None:
    """X6."""
    world = World()
    job = await sleeper(world).aenqueue(3)

    async def serve() -> None:
        async with world.worker():
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await world.state(job) == "done"


@virtual
async def test_a_stopped_worker_leaves_no_task_behind() -> None:
    """X6: neither waiting nor sleeping."""
    world = World()
    await sleeper(world).aenqueue(3)
    before = asyncio.all_tasks()
    async with world.worker():
        await asyncio.sleep(100)
    await world.drain()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


@virtual
async def test_a_cancelled_drain_gives_its_jobs_back() -> None:
    """X6."""
    world = World()
    job = await sleeper(world).aenqueue(1000)
    drain = asyncio.create_task(world.drain())
    await asyncio.sleep(5)
    drain.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drain
    record = await world.record(job)
    assert (record.state, record.attempts) == ("ready", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_worker_stops_at_a_signal_and_restores_what_was_there(number: signal.Signals) -> None:
    """X6: SIGTERM and SIGINT."""
    before = signal.getsignal(number)
    harbor = Harbor(driver=MemoryDriver())

    @harbor.task
    async def work() -> str:
        await asyncio.sleep(0)
        signal.raise_signal(number)
        return "done"

    async def main() -> str:
        job = await work.aenqueue()
        await asyncio.wait_for(harbor.arun_worker(), 30)
        return await job.aresult(timeout=1)

    assert asyncio.run(main()) == "done"
    assert signal.getsignal(number) is before


@virtual
async def test_a_lease_that_was_lost_during_the_stop_is_left_alone() -> None:
    """X6, L4."""
    world = World()
    job = await sleeper(world).aenqueue(1000)
    async with world.worker(grace=25) as worker:
        await until(lambda: worker.busy)
        await world.memory.reserve(["default"], world.clock() + timedelta(hours=1), timedelta(hours=2), 1, "thief")
    assert (await world.record(job)).version == 2
    assert world.settled() == []
