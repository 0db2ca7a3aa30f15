"""Tasks and ordinary jobs in one store: workers, operators and drains leave tasks alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskharbor.core.reserved import TASKS
from taskharbor.driver import WaitForWork
from taskharbor.errors import IllegalMove, InvalidJob
from taskharbor.manager import TaskManager
from world import World as Runtime
from world import time, virtual

from .stage import LEASE, World, played


@virtual
async def test_no_worker_is_served_from_the_queue_of_tasks() -> None:
    """M1, D2: twenty minutes of working beside it, pending and lapsed tasks alike; jobs go on."""
    world = Runtime()

    @world.harbor.task
    async def work(number: int) -> int:
        return number

    tasks = TaskManager(world.harbor, lease=LEASE)
    pending, lapsed = await tasks.asubmit(b"x"), await tasks.asubmit(b"x")
    await tasks.aclaim(lapsed, "w1")
    async with world.worker():
        await asyncio.sleep(1200)
        assert await (await work.aenqueue(7)).aresult(timeout=5) == 7
    for id in (pending, lapsed):
        task = await tasks.aget(id)
        assert (task.status, task.attempts) == ("pending", int(id == lapsed))
    assert all(TASKS not in call["queues"] for call in world.log.calls("reserve"))


@virtual
async def test_a_drain_leaves_tasks_alone_and_ends() -> None:
    """M1: it runs everything that is due, but no tasks of agents."""
    world = Runtime()

    @world.harbor.task(queue="mail")
    async def work() -> None: ...

    tasks = TaskManager(world.harbor)
    id = await tasks.asubmit(b"x")
    await work.aenqueue()
    assert await world.drain() == 1
    assert await world.drain() == 0
    assert (await tasks.aget(id)).status == "pending"


@virtual
async def test_upkeep_leaves_ended_tasks_alone() -> None:
    """M1, X8: a worker that prunes for ten minutes, with a harbor that keeps nothing."""
    world = Runtime(keep_done=0, keep_dead=0)
    tasks = TaskManager(world.harbor)
    id = await tasks.asubmit(b"x", idempotency_key="k")
    await tasks.aclaim(id, "w1")
    await tasks.acomplete(id, "w1", b"done")
    async with world.worker():
        await asyncio.sleep(600)
    assert (await tasks.aget_by_idempotency_key("k")).result == b"done"


@virtual
async def test_a_new_task_wakes_no_worker() -> None:
    """M1: hints are for jobs."""
    world = Runtime()
    tasks = TaskManager(world.harbor)
    await tasks.asubmit(b"first")
    waiting = asyncio.ensure_future(world.memory.wait_for_work(["default"], 100))
    await asyncio.sleep(1)
    await tasks.asubmit(b"x")
    await waiting
    assert time() == 100
    waiting = asyncio.ensure_future(world.memory.wait_for_work(["default"], 100))
    await asyncio.sleep(1)
    await world.harbor.aenqueue_many([world.harbor.step("work", {})])
    await waiting
    assert time() == 101


@played
async def test_users_cannot_reach_the_queue_of_tasks(w: World) -> None:
    """M1, X5: neither by enqueueing into it, nor by working on it, nor by pausing it; each error says why."""
    harbor = w.harbor()
    id = await w.me.asubmit(b"x")
    before = await w.job(id)

    with pytest.raises(InvalidJob, match="a TaskManager keeps its tasks there"):
        harbor.step("work", {}, queue=TASKS)
    with pytest.raises(InvalidJob, match="a TaskManager keeps its tasks there"):
        harbor.task(queue=TASKS)
    with pytest.raises(InvalidJob, match="a queue's name must not be"):
        async with harbor.worker([TASKS]):
            pass
    with pytest.raises(InvalidJob, match="a queue's name must not be"):
        async with harbor.worker({"default": 1, TASKS: 3}):
            pass
    with pytest.raises(InvalidJob, match="a queue's name must not be"):
        await harbor.adrain([TASKS])
    with pytest.raises(InvalidJob, match="a queue to pause must not be"):
        await harbor.admin.queues.apause(TASKS)
    assert await w.job(id) == before
    assert (await w.me.aclaim(id, "w1")).status == "claimed"


@played
async def test_operators_see_tasks_as_jobs(w: World) -> None:
    """M1: in the counts and lists, with their state and their worker."""
    done, held = await w.me.asubmit(b"x"), await w.me.asubmit(b"x")
    for id in (done, held):
        await w.me.aclaim(id, "agent 7")
    await w.me.acomplete(done, "agent 7")
    admin = w.harbor().admin
    (counts,) = await admin.queues.alist()
    assert (counts.queue, counts.done, counts.claimed) == (TASKS, 1, 1)
    job = await admin.jobs.aget(held)
    assert job.lease is not None
    assert (job.lease.worker, job.type) == ("agent 7", TASKS)


@played
async def test_operators_do_not_see_the_tokens_of_claims(w: World) -> None:
    """M1: a token is given by claim alone; records, lists and what is logged of them have none."""
    harbor, id = w.harbor(), await w.me.asubmit(b"x", max_attempts=1)
    token = (await w.me.aclaim(id, "w1")).claim_token
    assert token
    for _ in range(2):
        seen = [await harbor.admin.jobs.aget(id), *await harbor.admin.jobs.alist(f"queue:{TASKS}")]
        assert len(seen) == 2
        assert token not in repr(seen)
        await w.me.afail(id, "w1", "no", token=token)
    assert token not in repr(await harbor.admin.dlq.alist())


@played
async def test_operators_replay_no_tasks(w: World) -> None:
    """M2, Q2: attempts are claims, and a replay would give none back: each way is refused or leaves them out."""
    harbor = w.harbor()
    dead, cancelled = await w.me.asubmit(b"x", idempotency_key="k", max_attempts=1), await w.me.asubmit(b"x")
    await w.me.aclaim(dead, "w1")
    await w.me.afail(dead, "w1", "no")
    await harbor.admin.jobs.acancel(cancelled)
    before = [await w.job(dead), await w.job(cancelled)]
    changes: list[dict[str, Any]] = [{}, {"arguments": {"a": 1}}, {"idempotency_key": "plain"}]
    for id in (dead, cancelled):
        for change in changes:
            with pytest.raises(IllegalMove, match=r"TaskManager\.retry .* or delete it and submit"):
                await harbor.admin.dlq.areplay(id, **change)
    for dry_run in (True, False):
        assert (await harbor.admin.dlq.areplay_all(dry_run=dry_run)).replayed == []
        assert (await harbor.admin.dlq.areplay_all(f"queue:{TASKS}", limit=1, dry_run=dry_run)).replayed == []
    assert (await harbor.admin.dlq.areplay_ids([dead, cancelled])).replayed == []
    assert [await w.job(dead), await w.job(cancelled)] == before
    assert [job.id for job in await harbor.admin.dlq.alist()] == [dead]
    assert (await harbor.admin.dlq.apurge()).deleted == [dead]
    assert await w.me.asubmit(b"x", idempotency_key="k") != dead


@virtual
async def test_a_bulk_replay_finds_the_jobs_between_tasks() -> None:
    """Q2, M2: its limit counts jobs."""
    world = Runtime()

    @world.harbor.task(max_attempts=1)
    async def die() -> None:
        raise ValueError

    tasks = TaskManager(world.harbor)
    jobs: list[str] = []
    for _ in range(2):
        jobs.append((await die.aenqueue()).id)
        await world.drain()
        id = await tasks.asubmit(b"x", max_attempts=1)
        await tasks.aclaim(id, "w1")
        await tasks.afail(id, "w1", "no")
        await asyncio.sleep(1)
    dlq = world.harbor.admin.dlq
    assert (await dlq.areplay_all(limit=1, dry_run=True)).replayed == jobs[1:]
    assert (await dlq.areplay_all()).replayed == jobs


@played
async def test_tasks_have_no_next_due_time(w: World) -> None:
    """M1: an idle worker does not wake for what it cannot have."""
    await w.me.asubmit(b"x")
    assert isinstance(w.store, WaitForWork)
    assert await w.store.next_due([TASKS]) is None
    assert await w.store.next_due(["default", TASKS]) is None
