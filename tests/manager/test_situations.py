"""Every call in every situation that a task can be in: what becomes of it, or which error; and errors change nothing.

`TABLE` is the whole of it, `SEED` the rows of S4's own tables in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from taskharbor import Harbor
from taskharbor.errors import (
    MaxAttemptsReached,
    TaskAlreadyClaimed,
    TaskCompleted,
    TaskError,
    TaskFailed,
    TaskNotClaimed,
    TaskNotFound,
    TaskNotTerminal,
    WrongWorker,
)
from taskharbor.manager import TaskManager

from .stage import LEASE, World, played

Situation = Callable[[World], Awaitable[str]]
Outcome = str | type[TaskError]

# How it is shown (`get`), and what the calls of worker `w1` in manager `me` lead to. "same": fine, and nothing changes.
Row = dict[str, Outcome]
CALLS: dict[str, Callable[[TaskManager, str], Awaitable[object]]] = {
    "claim": lambda me, id: me.aclaim(id, "w1"),
    "heartbeat": lambda me, id: me.aheartbeat(id, "w1", 0.5),
    "complete": lambda me, id: me.acomplete(id, "w1", b"well"),
    "fail": lambda me, id: me.afail(id, "w1", "badly"),
    "retry": lambda me, id: me.aretry(id),
    "delete": lambda me, id: me.adelete(id),
}


async def pending(w: World) -> str:
    """Submitted and not claimed."""
    return await w.me.asubmit(b"work")


async def mine(w: World) -> str:
    """Claimed by the very worker and manager that calls."""
    id = await w.me.asubmit(b"work")
    await w.me.aclaim(id, "w1")
    return id


async def mine_for_the_last_time(w: World) -> str:
    """The same, with no attempts left."""
    id = await w.me.asubmit(b"work", max_attempts=1)
    await w.me.aclaim(id, "w1")
    return id


async def another_workers(w: World) -> str:
    """Claimed by another worker in another process."""
    id = await w.me.asubmit(b"work")
    await w.other.aclaim(id, "w2")
    return id


async def a_colleagues(w: World) -> str:
    """Claimed by another worker id, in the same manager."""
    id = await w.me.asubmit(b"work")
    await w.me.aclaim(id, "w2")
    return id


async def a_namesakes(w: World) -> str:
    """Claimed under the same worker id, by a manager that is gone or elsewhere."""
    id = await w.me.asubmit(b"work")
    await w.other.aclaim(id, "w1")
    return id


async def lapsed(w: World) -> str:
    """Claimed by the caller, whose lease has just run out."""
    id = await mine(w)
    w.tick(LEASE)
    return id


async def lapsed_elsewhere(w: World) -> str:
    """Claimed by a worker that is gone."""
    id = await another_workers(w)
    w.tick(LEASE)
    return id


async def lapsed_for_the_last_time(w: World) -> str:
    """Gone, with no attempts left."""
    id = await mine_for_the_last_time(w)
    w.tick(LEASE)
    return id


async def lapsed_and_taken_over(w: World) -> str:
    """The caller's claim ran out, and another worker has the task by now."""
    id = await lapsed(w)
    await w.other.aclaim(id, "w2")
    return id


async def put_back_by_an_outsider(w: World) -> str:
    """Another caller retried the task as stuck."""
    id = await mine(w)
    await w.other.aretry(id)
    return id


async def put_back_and_taken(w: World) -> str:
    """And another worker has claimed it since."""
    id = await put_back_by_an_outsider(w)
    await w.other.aclaim(id, "w2")
    return id


async def completed(w: World) -> str:
    """Ended well by the caller, with this very result."""
    id = await mine(w)
    await w.me.acomplete(id, "w1", b"well")
    return id


async def completed_by_another(w: World) -> str:
    """Ended well by another worker, with the same result."""
    id = await another_workers(w)
    await w.other.acomplete(id, "w2", b"well")
    return id


async def completed_otherwise(w: World) -> str:
    """Ended well by the caller, with another result."""
    id = await mine(w)
    await w.me.acomplete(id, "w1", b"first")
    return id


async def failed(w: World) -> str:
    """Failed for good by the caller, with this very error."""
    id = await mine_for_the_last_time(w)
    await w.me.afail(id, "w1", "badly")
    return id


async def failed_by_another(w: World) -> str:
    """Failed for good by another worker, with the same error."""
    id = await w.me.asubmit(b"work", max_attempts=1)
    await w.other.aclaim(id, "w2")
    await w.other.afail(id, "w2", "badly")
    return id


async def failed_otherwise(w: World) -> str:
    """Failed for good by the caller, with another error."""
    id = await mine_for_the_last_time(w)
    await w.me.afail(id, "w1", "first")
    return id


async def cancelled(w: World) -> str:
    """An operator has cancelled it while it was pending."""
    id = await pending(w)
    assert await w.harbor().admin.jobs.acancel(id) == ["cancelled"]
    return id


async def stopped(w: World) -> str:
    """An operator has cancelled it while it was claimed, and the claim ran out; no worker does any upkeep."""
    id = await mine(w)
    assert await w.harbor().admin.jobs.acancel(id) == ["requested"]
    w.tick(LEASE)
    return id


async def asked_to_stop(w: World) -> str:
    """An operator has cancelled it while it was claimed, and it still is."""
    id = await mine(w)
    assert await w.harbor().admin.jobs.acancel(id) == ["requested"]
    return id


async def dead_lettered(w: World) -> str:
    """An operator has dead-lettered it while it was pending."""
    id = await pending(w)
    assert await w.dead_letter(id) == ["dead"]
    return id


async def died(w: World) -> str:
    """An operator has dead-lettered it while it was claimed, and the claim ran out."""
    id = await asked_to_die(w)
    w.tick(LEASE)
    return id


async def asked_to_die(w: World) -> str:
    """An operator has dead-lettered it while it was claimed, and it still is."""
    id = await mine(w)
    assert await w.dead_letter(id) == ["requested"]
    return id


async def deleted(w: World) -> str:
    """There was one."""
    id = await completed(w)
    await w.me.adelete(id)
    return id


async def never_submitted(w: World) -> str:
    """Never submitted."""
    return "0190aaaa-0000-7000-8000-000000000000"


async def an_ordinary_job(w: World) -> str:
    """A job that is not the manager's business."""
    harbor: Harbor = w.harbor()
    (job,) = await harbor.aenqueue_many([harbor.step("work", {})])
    return job.id


NOT_FOUND: Row = dict.fromkeys(("get", *CALLS), TaskNotFound)
NOT_MINE: Row = {
    "get": "claimed",
    "claim": TaskAlreadyClaimed,
    "heartbeat": WrongWorker,
    "complete": WrongWorker,
    "fail": WrongWorker,
    "retry": "pending",
    "delete": TaskNotTerminal,
}
NOBODYS: Row = {
    "get": "pending",
    "claim": "claimed",
    "heartbeat": TaskNotClaimed,
    "complete": TaskNotClaimed,
    "fail": TaskNotClaimed,
    "retry": "same",
    "delete": TaskNotTerminal,
}
DONE: Row = {
    "get": "completed",
    "claim": TaskCompleted,
    "heartbeat": TaskCompleted,
    "complete": TaskCompleted,
    "fail": TaskCompleted,
    "retry": TaskCompleted,
    "delete": "gone",
}
DEAD: Row = {
    "get": "failed",
    "claim": TaskFailed,
    "heartbeat": TaskFailed,
    "complete": TaskFailed,
    "fail": TaskFailed,
    "retry": MaxAttemptsReached,
    "delete": "gone",
}
MINE: Row = {
    "get": "claimed",
    "claim": "claimed",
    "heartbeat": "claimed",
    "complete": "completed",
    "fail": "pending",
    "retry": "pending",
    "delete": TaskNotTerminal,
}
TABLE: dict[Situation, Row] = {
    pending: NOBODYS,
    mine: MINE,
    mine_for_the_last_time: {**MINE, "fail": "failed", "retry": MaxAttemptsReached},
    another_workers: NOT_MINE,
    a_colleagues: NOT_MINE,
    a_namesakes: NOT_MINE,
    lapsed: NOBODYS,
    lapsed_elsewhere: NOBODYS,
    # The one error that changes something: the task has failed by then (M2).
    lapsed_for_the_last_time: {**NOBODYS, "claim": MaxAttemptsReached, "retry": MaxAttemptsReached},
    lapsed_and_taken_over: NOT_MINE,
    put_back_by_an_outsider: NOBODYS,
    put_back_and_taken: NOT_MINE,
    completed: {**DONE, "complete": "same"},
    completed_by_another: DONE,
    completed_otherwise: DONE,
    failed: {**DEAD, "fail": "same"},
    failed_by_another: DEAD,
    failed_otherwise: DEAD,
    cancelled: {**DEAD, "retry": "pending"},
    stopped: {**DEAD, "retry": "pending"},
    asked_to_stop: {**MINE, "fail": "failed"},
    dead_lettered: {**DEAD, "retry": "pending"},
    died: {**DEAD, "retry": "pending"},
    asked_to_die: {**MINE, "fail": "failed"},
    deleted: NOT_FOUND,
    never_submitted: NOT_FOUND,
    an_ordinary_job: NOT_FOUND,
}

# S4's tables, row by row: its transitions, its conflicts, its errors.
SEED: list[tuple[str, Situation, str, Outcome]] = [
    ("transition: pending, claim", pending, "claim", "claimed"),
    ("transition: claimed, complete by the same worker", mine, "complete", "completed"),
    ("transition: claimed, fail with no attempts left", mine_for_the_last_time, "fail", "failed"),
    ("transition: claimed, fail with attempts left", mine, "fail", "pending"),
    ("transition: claimed, retry with attempts left", mine, "retry", "pending"),
    ("transition: failed, retry with attempts left", cancelled, "retry", "pending"),
    ("transition: failed, retry with none left", failed, "retry", MaxAttemptsReached),
    ("terminal: completed, delete", completed, "delete", "gone"),
    ("terminal: failed, delete", failed, "delete", "gone"),
    ("conflict: pending", pending, "claim", "claimed"),
    ("conflict: claimed by the same worker", mine, "claim", "claimed"),
    ("conflict: claimed by a different worker", another_workers, "claim", TaskAlreadyClaimed),
    ("conflict: completed", completed, "claim", TaskCompleted),
    ("conflict: failed", failed, "claim", TaskFailed),
    ("error: not found", never_submitted, "claim", TaskNotFound),
    ("error: already claimed", another_workers, "claim", TaskAlreadyClaimed),
    ("error: complete before claim", pending, "complete", TaskNotClaimed),
    ("error: fail before claim", pending, "fail", TaskNotClaimed),
    ("error: completed", completed, "retry", TaskCompleted),
    ("error: failed", failed, "complete", TaskFailed),
    ("error: attempts used up", mine_for_the_last_time, "retry", MaxAttemptsReached),
    ("error: wrong worker", another_workers, "complete", WrongWorker),
    ("edge: claim again", mine, "claim", "claimed"),
    ("edge: complete twice", completed, "complete", "same"),
    ("edge: fail twice", failed, "fail", "same"),
    ("edge: a stale claim", lapsed_elsewhere, "claim", "claimed"),
    ("edge: delete before the end", mine, "delete", TaskNotTerminal),
]
CASES = [pytest.param(situation, row, id=situation.__name__) for situation, row in TABLE.items()]


@pytest.mark.parametrize(("situation", "row"), CASES)
@played
async def test_what_a_call_leads_to(w: World, situation: Situation, row: Row) -> None:
    """M1, M2, M3: every call has its answer; a refused one leaves the whole record as it was (D7)."""
    for call in CALLS:
        outcome, id = row[call], await situation(w)
        if situation in (stopped, died):
            await w.me.aget(id)  # the first look ends it
        (before,) = await w.look.get([id])
        if isinstance(outcome, str):
            await CALLS[call](w.me, id)
        else:
            with pytest.raises(outcome) as refused:
                await CALLS[call](w.me, id)
            assert type(refused.value) is outcome, call
            assert id in str(refused.value)
        (after,) = await w.look.get([id])
        if outcome == "gone":
            assert after is None
        elif isinstance(outcome, str) and outcome != "same":
            assert (await w.me.aget(id)).status == outcome, call
        elif (situation, call) == (lapsed_for_the_last_time, "claim"):
            assert (await w.me.aget(id)).status == "failed"
        else:
            assert after == before, call


@pytest.mark.parametrize(("situation", "row"), CASES)
@played
async def test_how_a_task_is_shown(w: World, situation: Situation, row: Row) -> None:
    """M1, M4: by id and in the lists of exactly one status; a lapsed claim is pending."""
    id = await situation(w)
    listed = [status for status in ("pending", "claimed", "completed", "failed") if await w.me.alist(status)]
    if row["get"] is TaskNotFound:
        with pytest.raises(TaskNotFound):
            await w.me.aget(id)
        assert listed == []
        assert await w.me.alist() == []
        return
    task = await w.me.aget(id)
    assert (task.status, listed) == (row["get"], [row["get"]])
    assert await w.me.alist() == [task] == await w.me.alist(task.status)
    assert (task.claim_expires_at is not None) == (task.status == "claimed")
    assert [it is not None for it in (task.claimed_by, task.claimed_at)] == [task.attempts > 0] * 2
    assert task.claim_token is None
    assert (task.completed_at is not None) == (task.status in ("completed", "failed"))


@pytest.mark.parametrize(("situation", "call", "outcome"), [pytest.param(*rest, id=row) for row, *rest in SEED])
def test_every_row_of_the_seeds_tables_is_in_the_table(situation: Situation, call: str, outcome: Outcome) -> None:
    """M1, M2, M3: what is played above is what was asked for. `test_submitting.py` has bad input,
    `test_lifecycle.py` the closed store."""
    assert TABLE[situation][call] == outcome
