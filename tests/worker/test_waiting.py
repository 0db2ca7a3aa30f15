"""An idle worker: hints, due times and polling, without spinning and without missing anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from taskharbor import Harbor, current
from taskharbor.driver import WaitForWork
from taskharbor.testing import LostRequest, SkewedClock, Slow, Wrapper
from taskharbor.testing.faults import verbs
from world import World, time, virtual


class NoHints(Wrapper):
    """A driver without WaitForWork."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        for verb in verbs(WaitForWork):
            delattr(self, verb)

    def __getattr__(self, name: str) -> Any:
        if name in verbs(WaitForWork):
            raise AttributeError(name)
        return super().__getattr__(name)


def reserves(world: World) -> list[float]:
    """When the store was asked for jobs."""
    first: datetime | None = None
    times = []
    for call in world.log.calls("reserve"):
        first = first or call["now"]
        times.append((call["now"] - first).total_seconds())
    return times


@virtual
async def test_without_hints_polling_grows_from_200_ms_to_5_s_with_jitter() -> None:
    """X2: the safety net of every driver."""
    world = World(NoHints)
    assert not isinstance(world.store, WaitForWork)

    @world.harbor.task
    async def work() -> None: ...

    await work.aenqueue()
    async with world.worker():
        await asyncio.sleep(120)
    gaps = [later - earlier for earlier, later in pairwise(reserves(world))]
    expected = [0.2, 0.4, 0.8, 1.6, 3.2, *[5.0] * len(gaps)]
    for gap, middle in zip(gaps, expected, strict=False):
        assert 0.75 * middle - 0.001 <= gap <= 1.25 * middle + 0.001
    assert len({round(gap, 3) for gap in gaps[5:]}) > 5


@virtual
async def test_work_makes_polling_quick_again() -> None:
    world = World(NoHints)

    @world.harbor.task
    async def work() -> None: ...

    async with world.worker():
        await asyncio.sleep(60)
        job = await work.aenqueue()
        asked = time()
        await job.aresult()
        assert time() - asked <= 6.3
        done = len(world.log.calls("reserve"))
        await asyncio.sleep(1)
        assert len(world.log.calls("reserve")) >= done + 1


@virtual
async def test_a_commit_wakes_an_idle_worker_at_once() -> None:
    """D13: WaitForWork."""
    world = World()

    @world.harbor.task
    async def work() -> float:
        return time()

    async with world.worker():
        for _ in range(5):
            await asyncio.sleep(59)
            asked = time()
            assert await (await work.aenqueue()).aresult() == asked


@pytest.mark.parametrize("idle", [0, 1, 100])
@pytest.mark.parametrize("delay", [0.003, 0.05, 0.3, 4.9, 5.1, 61])
@virtual
async def test_a_scheduled_job_runs_at_its_time_and_not_at_the_next_poll(delay: float, idle: float) -> None:
    """N1: never early, and after that as soon as can be."""
    world = World()

    @world.harbor.task
    async def work() -> float:
        return time()

    async with world.worker():
        await asyncio.sleep(idle)
        due = time() + delay
        ran = await (await work.using(delay=delay).aenqueue()).aresult()
        assert due - 1e-6 <= ran <= due + 0.001


@virtual
async def test_a_lapsed_lease_is_taken_over_when_it_lapses() -> None:
    """X1, D5: the job of a dead worker runs again when its lease has ended, without a sweeper."""
    world = World()

    @world.harbor.task
    async def work() -> tuple[float, int]:
        return time(), current().lease_version

    job = await work.aenqueue()
    await world.memory.reserve(["default"], world.clock(), timedelta(seconds=47), 1, "dead")
    async with world.worker():
        at, version = await job.aresult()
    assert version == 2
    assert 46.999 <= at <= 47.3


@virtual
async def test_an_idle_worker_asks_seldom_even_after_hours() -> None:
    """A worker that was idle for long does not begin to spin."""
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    async with world.worker(concurrency=1) as worker:
        worker._upkeep._session.rng.seed(3)
        for _ in range(1100):  # as many empty rounds as an hour and a half of idling has
            await world.memory.pause("default", False)
            await asyncio.sleep(0.001)
        before = len(world.log.calls("reserve"))
        await asyncio.sleep(600)
        assert len(world.log.calls("reserve")) - before < 600 / 3
        asked = time()
        await (await work.aenqueue()).aresult()
        assert time() == asked


@pytest.mark.parametrize("verb", verbs(WaitForWork))
@virtual
async def test_hints_that_fail_leave_the_poll_and_do_not_spin(verb: str) -> None:
    """X2: a broken LISTEN costs latency and nothing else."""
    world = World(lambda inner: LostRequest(inner, lambda called: called == verb))

    @world.harbor.task
    async def work() -> float:
        return time()

    async with world.worker():
        await asyncio.sleep(60)
        assert len(world.log.calls("reserve")) < 40
        asked = time()
        assert await (await work.aenqueue()).aresult() - asked < 6.3


@virtual
async def test_a_due_job_that_is_never_given_out_does_not_make_the_worker_spin() -> None:
    """X2: another worker may always be faster."""

    class Stingy(Wrapper):
        async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Any]) -> Any:
            return [] if verb == "reserve" else await call()

    inner = World()
    world = World.over(inner, Stingy(inner.log))

    @world.harbor.task
    async def work() -> None: ...

    await work.aenqueue()
    looks = inner.log
    async with world.worker():
        await asyncio.sleep(60)
    assert len(looks.calls("next_due")) <= 60 / 0.2 + 20


@virtual
async def test_a_job_by_a_clock_ahead_of_the_workers_is_found_as_soon_as_it_is_due() -> None:
    """L8: the clocks of two hosts differ by a little, so the hint comes before the job is due here, the look after."""
    world = World(lambda inner: Slow(inner, 0.001, lambda verb: verb == "next_due"))
    client = Harbor(driver=world.memory, clock=SkewedClock(world.clock, timedelta(milliseconds=1)))

    @world.harbor.task
    async def work(asked: float) -> float:
        return time() - asked

    async with world.worker():
        await asyncio.sleep(600)  # so long that an empty look makes the worker wait
        job = await client.aenqueue(work.name, {"asked": time()})
        assert await world.harbor.job(job.id).aresult() < 0.005


@virtual
async def test_no_wake_up_is_lost_however_slow_the_store_is() -> None:
    """D13: jobs that are stored while the worker is about to doze off."""
    world = World(lambda inner: Slow(inner, 0.013, lambda verb: verb in ("reserve", "next_due")))
    ran: list[float] = []

    @world.harbor.task
    async def work(asked: float) -> None:
        ran.append(time() - asked)

    async with world.worker():
        for number in range(200):
            await asyncio.sleep(number % 17 / 500)
            await world.harbor.aenqueue_many([work.step(time())])
        await asyncio.sleep(1)
    assert len(ran) == 200
    assert max(ran) < 0.2
