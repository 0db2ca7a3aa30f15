"""Between two steps of one call others may do anything, and the answer must still be true."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from core.make import NOW, claimed, lease
from taskharbor.errors import (
    JobExists,
    TaskAlreadyClaimed,
    TaskCompleted,
    TaskError,
    TaskFailed,
    TaskNotFound,
    TaskNotTerminal,
)
from taskharbor.manager import TaskManager, rules

from .stage import World, beset, played


@played
async def test_the_holder_completes_while_an_outsider_retries(w: World) -> None:
    """M2: the retry is refused by the store, looks again, and says so."""
    hasty, line = await beset(w)
    id = await w.me.asubmit(b"x")
    await w.me.aclaim(id, "w1")
    line.acts["settle"] = (lambda: w.me.acomplete(id, "w1", b"done"), 1)
    with pytest.raises(TaskCompleted):
        await hasty.aretry(id)
    assert (await w.me.aget(id)).result == b"done"


@played
async def test_the_holder_fails_while_an_outsider_retries(w: World) -> None:
    """M2: then it is pending already."""
    hasty, line = await beset(w)
    id = await w.me.asubmit(b"x")
    await w.me.aclaim(id, "w1")
    line.acts["settle"] = (lambda: w.me.afail(id, "w1", "no"), 1)
    assert (await hasty.aretry(id)).error == "no"
    assert (await w.me.aget(id)).attempts == 1


@played
async def test_two_outsiders_retry_a_cancelled_task(w: World) -> None:
    """M2: the second finds it pending."""
    hasty, line = await beset(w)
    id = await w.me.asubmit(b"x")
    await w.harbor().admin.jobs.acancel(id)
    line.acts["replay"] = (lambda: w.other.aretry(id), 1)
    assert (await hasty.aretry(id)).status == "pending"
    assert (await w.job(id)).replays == 1


@played
async def test_a_retry_gives_up_on_a_task_that_never_stands_still(w: World) -> None:
    """M2: bounded, with an error that says so."""
    hasty, line = await beset(w)
    id = await w.me.asubmit(b"x")
    await w.me.aclaim(id, "w1")

    async def move() -> None:
        await w.me.afail(id, "w1", "no")
        await w.me.aclaim(id, "w1")

    line.acts["settle"] = (move, 1000)
    with pytest.raises(TaskError, match="under contention"):
        await hasty.aretry(id)


@played
async def test_another_worker_claims_while_one_looks(w: World) -> None:
    """M1, M4: looking decides nothing: only one has it."""
    hasty, line = await beset(w)
    id = await w.me.asubmit(b"x")
    line.acts["reserve"] = (lambda: w.other.aclaim(id, "w2"), 1)
    with pytest.raises(TaskAlreadyClaimed, match="'w2'"):
        await hasty.aclaim(id, "w1")
    assert (await w.me.aget(id)).attempts == 1


@played
async def test_a_task_that_comes_free_while_one_looks_is_claimed(w: World) -> None:
    """M1: claimed when it was reserved, and put back before the second look."""
    hasty, line = await beset(w)
    id = await w.me.asubmit(b"x")

    async def take() -> None:
        await w.other.aclaim(id, "w2")
        line.acts["get"] = (lambda: w.other.aretry(id), 1)

    line.acts["reserve"] = (take, 1)
    assert (await hasty.aclaim(id, "w1")).attempts == 2


@played
async def test_a_claim_gives_up_on_a_task_that_others_toss_about(w: World) -> None:
    """M1: bounded."""
    hasty, line = await beset(w)
    id = await w.me.asubmit(b"x")

    async def free() -> None:
        if (await w.other.aget(id)).status == "claimed":
            await w.other.aretry(id)

    line.acts = {"reserve": (lambda: w.other.aclaim(id, "w2"), 1000), "get": (free, 1000)}
    with pytest.raises(TaskAlreadyClaimed, match="others are claiming"):
        await hasty.aclaim(id, "w1")


@played
async def test_a_task_is_deleted_while_one_deletes_or_fails_it(w: World) -> None:
    """M1: one gets the error, the other its result."""
    hasty, line = await beset(w)
    id, dead = await w.me.asubmit(b"x"), await w.me.asubmit(b"x", max_attempts=1)
    await w.me.aclaim(id, "w1")
    await w.me.acomplete(id, "w1")
    line.acts["delete"] = (lambda: w.other.adelete(id), 1)
    with pytest.raises(TaskNotFound, match="deleted meanwhile"):
        await hasty.adelete(id)
    await hasty.aclaim(dead, "w1")
    line.acts["get"] = (lambda: w.other.adelete(dead), 1)
    failed = await hasty.afail(dead, "w1", "no")
    assert (failed.status, failed.error) == ("failed", "no")


@played
async def test_a_task_moves_while_one_deletes_it(w: World) -> None:
    """M1: a refusal names the current state, and a task that has ended by now is deleted."""
    hasty, line = await beset(w)
    back, done = await w.me.asubmit(b"x"), await w.me.asubmit(b"x")
    await w.harbor().admin.jobs.acancel(back)
    line.acts["delete"] = (lambda: w.other.aretry(back), 1)
    with pytest.raises(TaskNotTerminal, match="is pending"):
        await hasty.adelete(back)
    await w.me.aclaim(done, "w1")

    async def later() -> None:
        line.acts["get"] = (lambda: w.me.acomplete(done, "w1"), 1)

    line.acts["delete"] = (later, 1)
    await hasty.adelete(done)
    with pytest.raises(TaskNotFound):
        await w.me.aget(done)


@played
async def test_a_delete_gives_up_on_a_task_that_never_stands_still(w: World) -> None:
    """M1: bounded."""
    hasty, line = await beset(w)
    id = await w.me.asubmit(b"x")
    jobs = w.harbor().admin.jobs
    line.acts = {"get": (lambda: jobs.acancel(id), 1000), "delete": (lambda: w.other.aretry(id), 1000)}
    with pytest.raises(TaskError, match="under contention"):
        await hasty.adelete(id)


@played
async def test_the_same_worker_claims_while_one_claims(w: World) -> None:
    """M4: both have it, for one attempt."""
    hasty, line = await beset(w)
    id = await w.me.asubmit(b"x", max_attempts=1)
    line.acts["reserve"] = (lambda: hasty.aclaim(id, "w1"), 1)
    assert (await hasty.aclaim(id, "w1")).attempts == 1


@played
async def test_an_outsider_puts_a_task_back_while_its_holder_claims_it_again(w: World) -> None:
    """M2: the holder's claim is a new one then."""
    hasty, line = await beset(w)
    id = await w.me.asubmit(b"x")
    await hasty.aclaim(id, "w1")
    line.acts["get"] = (lambda: w.other.aretry(id), 1)
    assert (await hasty.aclaim(id, "w1")).attempts == 2


@played
async def test_an_operator_cancels_while_one_fails(w: World) -> None:
    """M2, T3: the answer is what became of it."""
    hasty, line = await beset(w)
    id = await w.me.asubmit(b"x")
    await hasty.aclaim(id, "w1")
    line.acts["settle"] = (lambda: w.harbor().admin.jobs.acancel(id), 1)
    failed = await hasty.afail(id, "w1", "no")
    assert (failed.status, failed.error) == ("failed", "cancelled by an operator; before that: no")


@played
async def test_a_task_is_completed_although_an_operator_cancels(w: World) -> None:
    """T3: the holder may still complete it."""
    id = await w.me.asubmit(b"x", idempotency_key="k")
    await w.me.aclaim(id, "w1")
    await w.harbor().admin.jobs.acancel(id)
    assert (await w.me.aheartbeat(id, "w1")) is not None
    assert (await w.me.acomplete(id, "w1", b"done")).status == "completed"
    assert (await w.me.aget_by_idempotency_key("k")).result == b"done"


@played
async def test_an_id_that_is_taken_is_an_error(w: World) -> None:
    """R2: two managers with the same dice, at the same moment."""
    twins = [TaskManager(w.store, clock=w.clock, rng=Random(1)) for _ in range(2)]
    await twins[0].asubmit(b"x")
    with pytest.raises(JobExists):
        await twins[1].asubmit(b"y")
    assert len(await w.me.alist()) == 1


@played
async def test_deletes_while_one_lists_lose_and_double_nothing(w: World) -> None:
    """M1: a list is read page by page; what stays is in it once."""
    hasty, line = await beset(w)
    ids = await asyncio.gather(*(w.me.asubmit(b"%d" % n) for n in range(450)))
    order = [task.id for task in await w.me.alist()]
    gone: list[str] = []

    async def clean() -> None:
        for id in order[250:260]:
            await w.other.aclaim(id, "w2")
            await w.other.acomplete(id, "w2")
            await w.other.adelete(id)
            gone.append(id)
        line.acts.clear()

    async def later() -> None:
        line.acts["query"] = (clean, 1)

    line.acts["query"] = (later, 1)
    listed = [task.id for task in await hasty.alist()]
    assert len(gone) == 10
    assert len(set(listed)) == len(listed)
    assert set(listed) >= set(ids) - set(gone)


def test_a_stopped_task_that_has_not_ended_yet_has_failed() -> None:
    """M3, T3: also while its end is not written."""
    job = claimed(lease=lease(expires_at=NOW), stop_requested_at=NOW)
    refused = rules.ended(job, NOW)
    assert isinstance(refused, TaskFailed)
    assert "cancelled by an operator" in str(refused)


def test_the_traceback_of_an_exception_is_kept() -> None:
    """F10: if it was raised."""
    try:
        raise ValueError("boom")
    except ValueError as error:
        raised = rules.failure_of(error)
    assert "test_races.py" in raised.traceback
    assert raised.traceback.endswith("ValueError: boom\n")
    assert rules.failure_of(ValueError("boom")).traceback == ""
