"""Several queues on one worker, pauses, and `drain`."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest

from taskharbor import Retry, current
from taskharbor.errors import ConfigError, DriverUnavailable
from taskharbor.testing import Outage, Slow

from .world import World, time, until, virtual


def named(world: World) -> tuple[Any, list[str]]:
    """A task that writes down the queue of its job."""
    seen: list[str] = []

    @world.harbor.task
    async def work() -> None:
        seen.append(current().queue)
        await asyncio.sleep(1)

    return work, seen


def _enough(seen: list[str]) -> bool:
    return seen.count("quiet") == 10


@virtual
async def test_a_worker_listens_to_the_queues_of_the_tasks_and_to_default() -> None:
    """P."""
    world = World()

    @world.harbor.task(queue="mail")
    async def mail() -> None: ...

    @world.harbor.task
    async def other() -> None: ...

    jobs = [await mail.aenqueue(), await other.aenqueue()]
    strange = await other.using(queue="strange").aenqueue()
    async with world.worker():
        await asyncio.sleep(10)
    assert [await world.state(job) for job in [*jobs, strange]] == ["done", "done", "ready"]


@virtual
async def test_a_busy_queue_does_not_starve_its_neighbour() -> None:
    """D11: with one slot as with several."""
    for concurrency in (1, 4):
        world = World()
        work, seen = named(world)
        await world.harbor.aenqueue_many(work.using(queue="busy", priority=100).step() for _ in range(200))
        await world.harbor.aenqueue_many(work.using(queue="quiet").step() for _ in range(10))
        async with world.worker("busy", "quiet", concurrency=concurrency):
            await until(partial(_enough, seen))
        assert len(seen) < 60


@virtual
async def test_weights_share_the_slots() -> None:
    """D11: a weight of 3 is three shares."""
    world = World()
    work, seen = named(world)
    for queue in ("mail", "default"):
        await world.harbor.aenqueue_many(work.using(queue=queue).step() for _ in range(400))
    async with world.harbor.worker({"mail": 3, "default": 1}, concurrency=1, threads=False):
        await until(lambda: len(seen) == 200)
    share = Counter(seen)["mail"] / 200
    assert 0.65 <= share <= 0.85


@virtual
async def test_an_empty_queue_leaves_its_share_to_the_others() -> None:
    """D11."""
    world = World()
    work, seen = named(world)
    await world.harbor.aenqueue_many(work.using(queue="busy").step() for _ in range(8))
    async with world.worker("busy", "empty", concurrency=8) as worker:
        await until(lambda: worker.busy == 8)
        assert time() < 0.1
    assert len(seen) == 8


@virtual
async def test_a_paused_queue_stands_still_and_goes_on() -> None:
    """D3: what runs goes on, what waits waits; a worker hears of the resume at once."""
    world = World()
    work, seen = named(world)
    running = await work.aenqueue()
    async with world.worker("default", "other"):
        await asyncio.sleep(0.5)
        await world.harbor.admin.queues.apause("default")
        job = await work.aenqueue()
        await (await work.using(queue="other").aenqueue()).aresult()
        await running.aresult()
        await asyncio.sleep(60)
        assert await world.state(job) == "ready"
        await world.harbor.admin.queues.aresume("default")
        resumed = time()
        await job.aresult()
        assert time() == pytest.approx(resumed + 1)
    assert seen == ["default", "other", "default"]


@pytest.mark.parametrize(
    ("queues", "rule"),
    [
        ("mail", "not the text 'mail'"),
        ([], "at least one queue"),
        ({}, "at least one queue"),
        ({"mail": 0}, "from 1 to 100"),
        ({"mail": 101}, "from 1 to 100"),
        ({"mail": 1.5}, "from 1 to 100"),
        ({"mail": True}, "from 1 to 100"),
        ([""], "1 to 255 characters"),
        ([3], "must be text"),
        (["a\nb"], "control characters"),
    ],
)
@virtual
async def test_queues_of_a_worker_are_checked(queues: Any, rule: str) -> None:
    """X5."""
    world = World()
    with pytest.raises((ConfigError, ValueError), match=rule):
        async with world.harbor.worker(queues, threads=False):
            raise AssertionError


@virtual
async def test_drain_runs_what_is_due_and_what_that_makes_due_but_not_the_future() -> None:
    """P: all queues, follow-ups and immediate retries included."""
    world = World(retry=Retry.fixed(0))
    seen: list[str] = []

    @world.harbor.task
    async def leaf(name: str) -> None:
        seen.append(name)
        if current().attempt == 1:
            raise ValueError

    @world.harbor.task(queue="mail")
    async def parent() -> None:
        seen.append("parent")
        current().enqueue(leaf.using(queue="brand new").step("atomic"))
        await leaf.aenqueue("plain")

    await parent.aenqueue()
    later = await leaf.using(delay=60).aenqueue("future")
    assert await world.drain() == 5
    assert sorted(seen) == ["atomic", "atomic", "parent", "plain", "plain"]
    assert await world.state(later) == "ready"
    assert await world.drain() == 0
    await asyncio.sleep(60)
    assert await world.drain() == 2


@virtual
async def test_drain_of_some_queues_leaves_the_others() -> None:
    world = World()
    work, seen = named(world)
    await work.using(queue="a").aenqueue()
    other = await work.using(queue="b").aenqueue()
    assert await world.drain("a") == 1
    assert seen == ["a"]
    assert await world.state(other) == "ready"


@virtual
async def test_drain_works_with_one_slot_and_long_jobs() -> None:
    world = World()
    work, _seen = named(world)
    await world.harbor.aenqueue_many(work.step() for _ in range(30))
    assert await world.drain(concurrency=1) == 30
    assert time() == pytest.approx(30)
    await world.harbor.aenqueue_many(work.step() for _ in range(30))
    assert await world.drain(concurrency=30) == 30
    assert time() == pytest.approx(31)


@virtual
async def test_drain_sees_what_was_put_back_behind_its_last_look() -> None:
    """A run that ends while drain waits for an answer may have made work that the answer knows nothing of."""
    world = World(lambda inner: Slow(inner, 5, lambda verb: verb == "reserve"), retry=Retry.fixed(0))

    @world.harbor.task
    async def work() -> None:
        await asyncio.sleep(7)
        if current().attempt == 1:
            raise ValueError("again")

    job = await work.aenqueue()
    assert await world.drain("default") == 2
    assert await world.state(job) == "done"


@virtual
async def test_drain_reports_a_store_that_is_away() -> None:
    """X2: it is for tests; nothing is hidden there."""
    world = World(Outage)
    work, _ = named(world)
    await work.aenqueue()
    world.store.down = True
    with pytest.raises(DriverUnavailable):
        await world.drain("default")


@virtual
async def test_priorities_go_first() -> None:
    """D11."""
    world = World()
    order: list[int] = []

    @world.harbor.task
    async def work(priority: int) -> None:
        order.append(priority)

    await world.harbor.aenqueue_many(work.using(priority=priority).step(priority) for priority in (0, -100, 50, 100, 0))
    await world.drain(concurrency=1)
    assert order == [100, 50, 0, 0, -100]
