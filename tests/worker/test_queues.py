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
from world import World, time, until, virtual


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
    await world.harbor.aenqueue_many(work.using(queue="busy").step() for _ in range(9))
    async with world.worker("busy", "empty", concurrency=8) as worker:
        await until(lambda: worker.busy == 7)
        assert time() < 0.1
    assert len(seen) == 7


def hanging(world: World) -> Any:
    """A task that goes on until the worker ends it."""

    @world.harbor.task
    async def hang() -> None:
        await asyncio.sleep(10_000)

    return hang


@virtual
async def test_a_queue_whose_jobs_hang_leaves_a_slot_to_each_other() -> None:
    """D11: however many there are and whatever the weights say; a job of another queue starts at once."""
    for queues in ({"fast": 10, "slow": 1}, {"fast": 1, "slow": 10}, {"fast": 1, "other": 1, "slow": 100}):
        world = World()
        work, seen = named(world)
        hang = hanging(world)
        await world.harbor.aenqueue_many(hang.using(queue="slow").step() for _ in range(50))
        async with world.harbor.worker(queues, concurrency=4, grace=0, threads=False) as worker:
            await asyncio.sleep(60)
            assert worker.busy == 4 - (len(queues) - 1)
            for number in range(5):
                for queue in [name for name in queues if name != "slow"]:
                    enqueued = time()
                    await (await work.using(queue=queue).aenqueue()).aresult()
                    assert time() == pytest.approx(enqueued + 1, abs=0.01), number
        assert len(seen) == 5 * (len(queues) - 1)


@virtual
async def test_kept_slots_take_jobs_that_become_due_later() -> None:
    """D11, N1: a scheduled job of an idle queue starts on time beside a queue that hangs."""
    world = World()
    work, _ = named(world)
    hang = hanging(world)
    await world.harbor.aenqueue_many(hang.using(queue="slow").step() for _ in range(9))
    async with world.worker("fast", "slow", concurrency=3, grace=0):
        job = await work.using(queue="fast", delay=33).aenqueue()
        await job.aresult()
        assert time() == pytest.approx(34, abs=0.3)


@virtual
async def test_a_queue_never_takes_the_last_slot_of_another() -> None:
    """D11, L6: at every moment each queue runs something, or a slot is free for it."""
    world = World()
    running: Counter[str] = Counter()

    @world.harbor.task
    async def work(seconds: float) -> None:
        running[current().queue] += 1
        assert sum(running.values()) + sum(1 for name in "abc" if not running[name]) <= 5
        await asyncio.sleep(seconds)
        running[current().queue] -= 1

    for number in range(120):
        queue = "abbccc"[number % 6]
        await work.using(queue=queue, delay=number % 40).aenqueue((number * 7) % 11 / 2)
    async with world.worker("a", "b", "c", concurrency=5) as worker:
        await until(lambda: worker.finished == 120)
    done = {counts.queue: counts.done for counts in await world.memory.counts(world.clock())}
    assert done == {"a": 20, "b": 40, "c": 60}


@virtual
@pytest.mark.parametrize(("queues", "slots", "at_once"), [(16, 16, 8), (4, 4, 2), (2, 2, 1), (2, 16, 15), (8, 16, 9)])
async def test_many_idle_queues_keep_half_of_the_slots_at_most(queues: int, slots: int, at_once: int) -> None:
    """D11: one busy queue among as many queues as slots does not run its jobs one by one."""
    world = World()
    hang = hanging(world)
    await world.harbor.aenqueue_many(hang.using(queue="q0").step() for _ in range(50))
    async with world.worker(*(f"q{n}" for n in range(queues)), concurrency=slots, grace=0) as worker:
        await asyncio.sleep(60)
        assert worker.busy == at_once
        await hang.using(queue="q1").aenqueue()
        await until(lambda: worker.busy == at_once + 1)


@virtual
async def test_with_fewer_slots_than_queues_none_is_kept() -> None:
    """D11: the docs say so; shares still give every queue a turn."""
    world = World()
    work, seen = named(world)
    await world.harbor.aenqueue_many(work.using(queue="a").step() for _ in range(9))
    async with world.worker("a", "b", "c", concurrency=2) as worker:
        await until(lambda: worker.busy == 2)
        await until(lambda: len(seen) == 9)
    assert set(seen) == {"a"}


@virtual
async def test_idle_queues_cost_a_busy_worker_no_further_looks() -> None:
    """L6: while slots become free all the time, one reserve for all queues is all there is."""
    world = World()

    @world.harbor.task
    async def quick() -> None:
        await asyncio.sleep(0.01)

    await world.harbor.aenqueue_many(quick.using(queue="a").step() for _ in range(700))
    async with world.worker("a", "b", concurrency=8) as worker:
        await until(lambda: worker.finished == 700)
    assert len(world.log.calls("reserve")) < 110


@virtual
async def test_a_paused_queue_stands_still_and_goes_on() -> None:
    """D3: what runs goes on, what waits waits; a worker notices the resume at once."""
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
