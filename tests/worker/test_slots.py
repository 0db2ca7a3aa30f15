"""Slots: how many jobs a worker takes, runs side by side, and settles together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from taskharbor.core.transition import Ack
from taskharbor.testing import Slow, Wrapper
from world import World, time, until, virtual


@virtual
async def test_a_worker_never_reserves_more_than_it_has_free_slots() -> None:
    """L6: the limit of every reserve is the number of slots that are free at that moment."""
    world = World()
    running = 0
    most = 0

    @world.harbor.task
    async def work(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1 + number % 3)
        running -= 1

    jobs = await world.harbor.aenqueue_many(work.step(number) for number in range(20))
    held: set[str] = set()
    async with world.worker(concurrency=4) as worker:
        await asyncio.gather(*(job.aresult() for job in jobs))
        assert worker.finished == 20
    for operation in world.log.log:
        if operation.verb == "reserve" and operation.phase == "called":
            assert operation.arguments["limit"] <= 4 - len(held)
        elif operation.verb == "reserve" and operation.phase == "returned":
            held |= {job.id for job in operation.value}
            assert len(held) <= 4 + 4  # what ended and is about to be settled is in no slot any more
        elif operation.verb == "settle" and operation.phase == "called":
            held -= {transition.id for transition in operation.arguments["transitions"]}
    assert most == 4


@virtual
async def test_async_handlers_run_side_by_side() -> None:
    """L6: sixteen sleepers take as long as one."""
    world = World()

    @world.harbor.task
    async def sleep() -> float:
        await asyncio.sleep(10)
        return time()

    jobs = await world.harbor.aenqueue_many(sleep.step() for _ in range(16))
    async with world.worker(concurrency=16):
        assert set(await asyncio.gather(*(job.aresult() for job in jobs))) == {10.0}


@virtual
async def test_a_full_worker_takes_the_next_job_as_soon_as_a_slot_is_free() -> None:
    world = World()

    @world.harbor.task
    async def sleep() -> float:
        started = time()
        await asyncio.sleep(7)
        return started

    jobs = await world.harbor.aenqueue_many(sleep.step() for _ in range(6))
    async with world.worker(concurrency=2):
        assert [await job.aresult() for job in jobs] == [0, 0, 7, 7, 14, 14]


@virtual
async def test_def_handlers_run_on_the_loop_without_threads() -> None:
    world = World()

    @world.harbor.task
    def add(a: int, b: int) -> int:
        return a + b

    async with world.worker():
        assert await (await add.aenqueue(1, b=2)).aresult() == 3


@virtual
async def test_a_lone_job_is_settled_at_once() -> None:
    """The settler has no timer: an idle worker writes an outcome the moment it is there."""
    world = World()

    @world.harbor.task
    async def quick() -> None: ...

    async with world.worker():
        await asyncio.sleep(3)
        job = await quick.aenqueue()
        await job.aresult()
        assert time() == pytest.approx(3)
    assert [len(batch) for batch in world.settled()] == [1]


@virtual
async def test_a_burst_is_settled_in_few_calls() -> None:
    """The settler commits in groups: what ended while a flush was under way goes into the next."""
    world = World(lambda inner: Slow(inner, 0.5, lambda verb: verb == "settle"))

    @world.harbor.task
    async def quick(number: int) -> None:
        await asyncio.sleep(number / 100)

    jobs = await world.harbor.aenqueue_many(quick.step(number) for number in range(60))
    async with world.worker(concurrency=60):
        await asyncio.gather(*(job.aresult() for job in jobs))
    batches = [len(batch) for batch in world.settled()]
    assert sum(batches) == 60
    assert batches[0] <= 2
    assert len(batches) == 2  # the first, and all that ended during its second


@virtual
async def test_every_job_is_settled_exactly_once() -> None:
    world = World()
    runs: list[int] = []

    @world.harbor.task
    async def once(number: int) -> None:
        runs.append(number)
        await asyncio.sleep(number % 5 / 10)

    await world.harbor.aenqueue_many(once.step(number) for number in range(300))
    async with world.worker(concurrency=7), world.worker(concurrency=5):
        await until(lambda: len(runs) == 300, 0.5)
        await asyncio.sleep(1)
    settled = [transition for batch in world.settled() for transition in batch]
    assert sorted(runs) == list(range(300))
    assert len({transition.id for transition in settled}) == len(settled) == 300
    assert all(isinstance(transition, Ack) for transition in settled)


@virtual
async def test_a_slot_is_free_again_whatever_became_of_the_run() -> None:
    """F7: failures, snoozes, unknown tasks, broken payloads and cancelled runs leave no slot behind."""
    world = World()
    done: list[int] = []

    @world.harbor.task(max_attempts=1)
    async def bad(number: int) -> None:
        raise (ValueError, SystemExit, asyncio.CancelledError, KeyboardInterrupt)[number % 4]

    @world.harbor.task
    async def good(number: int) -> None:
        done.append(number)

    @world.harbor.task(timeout=1, max_attempts=1)
    async def slow() -> None:
        await asyncio.sleep(100)

    steps = [step for number in range(40) for step in (bad.step(number), good.step(number), slow.step())]
    await world.harbor.aenqueue_many(steps)
    async with world.worker(concurrency=3) as worker:
        await until(lambda: worker.finished == 120)
        assert worker.busy == 0
        assert worker._keeper._held == {}
    assert sorted(done) == list(range(40))


@virtual
async def test_outcomes_and_the_next_reserve_reach_the_store_together() -> None:
    """L6: in one turn of the loop, outcomes first, so that a store can put both into one transaction."""
    calls: list[tuple[float, str]] = []

    class Noted(Wrapper):
        async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Any]) -> Any:
            if verb in ("reserve", "settle"):
                calls.append((time(), verb))
                await asyncio.sleep(0.5)
            return await call()

    world = World(Noted)

    @world.harbor.task
    async def work() -> None:
        await asyncio.sleep(1)

    jobs = await world.harbor.aenqueue_many(work.step() for _ in range(12))
    async with world.worker(concurrency=4):
        await asyncio.gather(*(job.aresult() for job in jobs))
    assert calls[:5] == [(0, "reserve"), (1.5, "settle"), (1.5, "reserve"), (3.0, "settle"), (3.0, "reserve")]
