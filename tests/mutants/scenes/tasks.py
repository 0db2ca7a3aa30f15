"""TaskManagers: what agents are promised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from taskharbor import Harbor
from taskharbor.core.evolve import DeadLetter
from taskharbor.driver import Driver
from taskharbor.errors import (
    DriverUnavailable,
    MaxAttemptsReached,
    TaskCompleted,
    TaskFailed,
    TaskNotClaimed,
    TaskNotFound,
    WrongWorker,
)
from taskharbor.manager import TaskManager
from taskharbor.testing import LostRequest, SkewedClock, Slow, script
from world import World

from .stage import HOUR, LEASE, scene


def managers(wrap: Callable[[Driver], Driver] | None = None) -> tuple[World, TaskManager, TaskManager]:
    """Two of them on one store, the first behind a faulty driver if one is given."""
    world = World(wrap)
    second = Harbor(driver=world.log, clock=world.clock)
    return world, TaskManager(world.harbor, lease=LEASE), TaskManager(second, lease=LEASE)


@scene
async def a_namesake_owns_nothing() -> None:
    """M4: the same worker id in another manager is not the same worker."""
    _, me, other = managers()
    id = await me.asubmit(b"x")
    await me.aclaim(id, "w1")
    with pytest.raises(WrongWorker):
        await other.acomplete(id, "w1", b"stolen")
    assert (await me.acomplete(id, "w1", b"mine")).result == b"mine"


@scene
async def attempts_are_claims() -> None:
    """M2: counted when a task is claimed."""
    _, me, _ = managers()
    id = await me.asubmit(b"x")
    assert (await me.aclaim(id, "w1")).attempts == 1
    await me.aretry(id)
    assert (await me.aclaim(id, "w1")).attempts == 2
    assert (await me.aget(id)).attempts == 2


@scene
async def lapsed_claims_use_attempts_up() -> None:
    """M2: a claim that ran out was an attempt, whether a failure or the next claim follows."""
    _, me, other = managers()
    id, left = await me.asubmit(b"x", max_attempts=2), await me.asubmit(b"x", max_attempts=1)
    await me.aclaim(id, "w1")
    await me.aclaim(left, "w1")
    await asyncio.sleep(LEASE)
    await other.aclaim(id, "w2")
    assert (await other.afail(id, "w2", "no")).status == "failed"
    with pytest.raises(MaxAttemptsReached):
        await other.aclaim(left, "w2")
    assert (await me.aget(left)).status == "failed"


@scene
async def no_retry_beyond_the_last_attempt() -> None:
    """M2: neither of a claimed task nor of a failed one."""
    _, me, other = managers()
    id = await me.asubmit(b"x", max_attempts=1)
    await me.aclaim(id, "w1")
    with pytest.raises(MaxAttemptsReached):
        await other.aretry(id)
    await me.afail(id, "w1", "no")
    with pytest.raises(MaxAttemptsReached):
        await other.aretry(id)


@scene
async def ended_tasks_are_kept() -> None:
    """M1: until they are deleted."""
    world, me, _ = managers()
    done, dead = [await me.asubmit(b"x", max_attempts=1) for _ in range(2)]
    for id in (done, dead):
        await me.aclaim(id, "w1")
    await me.acomplete(done, "w1")
    await me.afail(dead, "w1", "no")
    assert await world.memory.prune(world.clock() + timedelta(days=10_000), 10) == 0


@scene
async def keys_of_tasks_and_jobs_do_not_meet() -> None:
    """M1, I2: a job under the same key is another matter."""
    world, me, _ = managers()
    (job,) = await world.harbor.aenqueue_many([world.harbor.step("work", {}, idempotency_key="k")])
    id = await me.asubmit(b"x", idempotency_key="k")
    assert id != job.id
    assert (await me.aget_by_idempotency_key("k")).idempotency_key == "k"


@scene
async def a_lapsed_claim_is_pending() -> None:
    """M4: and is listed so."""
    _, me, other = managers()
    id = await me.asubmit(b"x")
    await me.aclaim(id, "w1")
    await asyncio.sleep(LEASE)
    assert (await other.aget(id)).status == "pending"
    assert [task.id for task in await other.alist("pending")] == [id]
    assert (await other.aclaim(id, "w2")).claimed_by == "w2"


@scene
async def a_claim_again_extends() -> None:
    """M1: by the same worker it is fine, and no attempt."""
    _, me, _ = managers()
    id = await me.asubmit(b"x", max_attempts=1)
    await me.aclaim(id, "w1")
    await asyncio.sleep(LEASE / 2)
    assert (await me.aclaim(id, "w1")).attempts == 1
    await asyncio.sleep(LEASE - 1)
    assert (await me.acomplete(id, "w1")).status == "completed"


@scene
async def a_complete_without_an_answer_can_be_repeated() -> None:
    """D8, X3: the claim is not forgotten before its end is known."""
    _, me, _ = managers(lambda inner: LostRequest(inner, script("settle")))
    id = await me.asubmit(b"x")
    await me.aclaim(id, "w1")
    with pytest.raises(DriverUnavailable):
        await me.acomplete(id, "w1", b"done")
    assert (await me.acomplete(id, "w1", b"done")).result == b"done"


@scene
async def an_outsiders_retry_ends_the_claim() -> None:
    """M2: the former holder can neither complete nor fail it, although the store knows its token."""
    _, me, other = managers()
    id = await me.asubmit(b"x")
    token = (await me.aclaim(id, "w1")).claim_token
    await other.aretry(id)
    with pytest.raises(TaskNotClaimed):
        await me.acomplete(id, "w1", b"late")
    with pytest.raises(TaskNotClaimed):
        await me.afail(id, "w1", "late", token=token)
    assert (await other.aget(id)).status == "pending"


@scene
async def an_ordinary_job_is_not_a_task() -> None:
    """M1: a manager touches nothing but tasks."""
    world, me, _ = managers()
    (job,) = await world.harbor.aenqueue_many([world.harbor.step("work", {})])
    with pytest.raises(TaskNotFound):
        await me.aclaim(job.id, "w1")
    assert await world.state(job) == "ready"


@scene
async def a_wrong_clock_hides_no_task() -> None:
    """X4: one host is an hour behind the other."""
    world, me, _ = managers()
    behind = TaskManager(world.memory, clock=SkewedClock(world.clock, -HOUR))
    id = await me.asubmit(b"x")
    assert (await behind.aclaim(id, "w1")).claimed_by == "w1"


@scene
async def many_submitters_of_one_key_make_one_task() -> None:
    """M4, I1: at the same moment, over a store that takes its time."""
    _, me, _ = managers(lambda inner: Slow(inner, 1))
    assert len(set(await asyncio.gather(*(me.asubmit(b"x", idempotency_key="k") for _ in range(8))))) == 1


@scene
async def a_drain_ends_beside_tasks() -> None:
    """M1: and leaves them alone."""
    world, me, _ = managers()
    id = await me.asubmit(b"x")
    assert await world.drain() == 0
    assert (await me.aclaim(id, "w1")).attempts == 1


async def taken_over(me: TaskManager, other: TaskManager) -> tuple[str, str | None, str | None]:
    """A task whose claim in one manager lapsed before the same worker id claimed it in the other; both tokens."""
    id = await me.asubmit(b"x")
    stale = (await me.aclaim(id, "w1")).claim_token
    await asyncio.sleep(LEASE)
    return id, stale, (await other.aclaim(id, "w1")).claim_token


@scene
async def a_claim_goes_on_elsewhere() -> None:
    """M1: by its token, for the same attempt; after a claim without it."""
    _, me, other = managers()
    id = await me.asubmit(b"x", max_attempts=1)
    token = (await me.aclaim(id, "w1")).claim_token
    assert (await other.aheartbeat(id, "w1", token=token)).status == "claimed"
    assert (await other.aclaim(id, "w1", token=token)).attempts == 1
    assert (await other.acomplete(id, "w1", b"done")).result == b"done"


@scene
async def a_wrong_token_is_wrong_in_its_own_manager() -> None:
    """M1: a token that is passed decides alone."""
    _, me, _ = managers()
    id = await me.asubmit(b"x")
    await me.aclaim(id, "w1")
    with pytest.raises(WrongWorker):
        await me.acomplete(id, "w1", token="wrong")
    assert (await me.aget(id)).status == "claimed"


@scene
async def a_stale_token_is_void() -> None:
    """M1, L5: also under the worker id that has the task now."""
    _, me, other = managers()
    id, stale, _ = await taken_over(me, other)
    with pytest.raises(WrongWorker):
        await other.acomplete(id, "w1", b"late", token=stale)
    assert (await other.acomplete(id, "w1", b"in time")).result == b"in time"


@scene
async def a_token_needs_its_worker_id() -> None:
    """M1: complete and fail name the worker."""
    _, me, other = managers()
    id = await me.asubmit(b"x")
    token = (await me.aclaim(id, "w1")).claim_token
    with pytest.raises(WrongWorker):
        await other.acomplete(id, "w2", b"done", token=token)


@scene
async def a_void_token_claims_nothing() -> None:
    """M1: its holder gets the error that the claim is over."""
    _, me, other = managers()
    id = await me.asubmit(b"x")
    token = (await me.aclaim(id, "w1")).claim_token
    await asyncio.sleep(LEASE)
    with pytest.raises(TaskNotClaimed):
        await other.aclaim(id, "w1", token=token)
    assert (await me.aget(id)).attempts == 1


@scene
async def another_caller_gets_the_error_that_a_task_has_ended() -> None:
    """M3: by another worker id, by another result, by a token that did not end it."""
    _, me, other = managers()
    id, stale, _ = await taken_over(me, other)
    await other.acomplete(id, "w1", b"done")
    for worker, result, token in (("w2", b"done", None), ("w1", b"other", None), ("w1", b"done", stale)):
        with pytest.raises(TaskCompleted):
            await me.acomplete(id, worker, result, token=token)
    dead = await me.asubmit(b"x", max_attempts=1)
    await me.aclaim(dead, "w1")
    await me.afail(dead, "w1", "no")
    with pytest.raises(TaskFailed):
        await other.afail(dead, "w2", "no")
    assert (await other.afail(dead, "w1", "no")).status == "failed"


@scene
async def an_end_can_be_repeated_by_its_token() -> None:
    """M3, X3: whatever the result is the second time."""
    _, me, other = managers()
    id = await me.asubmit(b"x")
    token = (await me.aclaim(id, "w1")).claim_token
    assert (await me.afail(id, "w1", "no")).status == "pending"
    assert (await other.afail(id, "w1", "no, never", token=token)).error == "no"
    token = (await me.aclaim(id, "w1")).claim_token
    await me.acomplete(id, "w1", b"done")
    assert (await other.acomplete(id, "w1", token=token)).result == b"done"


@scene
async def a_cancelled_task_keeps_its_key() -> None:
    """M1: and its record, until it is deleted."""
    world, me, other = managers()
    id = await me.asubmit(b"x", idempotency_key="k")
    await world.harbor.admin.jobs.acancel(id)
    assert await world.memory.prune(world.clock() + timedelta(days=10_000), 10) == 0
    assert (await other.aget_by_idempotency_key("k")).status == "failed"
    assert await me.asubmit(b"x", idempotency_key="k") == id
    assert (await me.aretry(id)).idempotency_key == "k"


@scene
async def only_claim_returns_the_token() -> None:
    """M1: neither get nor list, nor a task that is printed."""
    _, me, other = managers()
    id = await me.asubmit(b"x")
    claimed = await me.aclaim(id, "w1")
    assert claimed.claim_token is not None
    assert claimed.claim_token not in repr(claimed)
    seen = (await me.aget(id), await other.aget(id), *await me.alist(), await me.aheartbeat(id, "w1"))
    assert {task.claim_token for task in seen} == {None}


@scene
async def the_last_claim_leaves_its_trace() -> None:
    """M1, R1: who had it last, also when it is over."""
    _, me, other = managers()
    id = await me.asubmit(b"x")
    await me.aclaim(id, "w1")
    await me.afail(id, "w1", "no")
    assert (await other.aget(id)).claimed_by == "w1"
    await other.aclaim(id, "w2")
    assert (await other.acomplete(id, "w2")).claimed_by == "w2"


@scene
async def a_heartbeat_returns_an_operators_request() -> None:
    """T3, Q4: who wants a dead letter; the task has failed for that reason then."""
    world, me, _ = managers()
    id = await me.asubmit(b"x")
    await me.aclaim(id, "w1")
    death = DeadLetter(id=id, reason="bad order", fingerprint="f", keep_until=world.clock())
    assert await world.memory.dead_letter([death], world.clock()) == ["requested"]
    assert (await me.aheartbeat(id, "w1")).cancel_requested
    failed = await me.afail(id, "w1", "stopped")
    assert (failed.status, failed.error) == ("failed", "dead-lettered: bad order; before that: stopped")
