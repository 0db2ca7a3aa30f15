"""Claims, attempts, heartbeats, ends and retries; and calls whose answer was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from taskharbor.core.job import LAST_MOMENT, Progress
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import (
    DriverUnavailable,
    MaxAttemptsReached,
    TaskAlreadyClaimed,
    TaskCompleted,
    TaskError,
    TaskFailed,
    TaskNotClaimed,
    WrongWorker,
)
from taskharbor.manager import Task, TaskManager
from taskharbor.manager.claims import FEW, REMEMBERED
from taskharbor.manager.task_store import PAGE
from taskharbor.testing import LostReply, LostRequest, ManualClock, SkewedClock, Wrapper, script
from world import time, virtual

from .stage import LEASE, World, played


@played
async def test_from_pending_to_completed(w: World) -> None:
    """M1: the whole life of a task that goes well."""
    id = await w.other.asubmit(b"work")
    (pending,) = await w.me.alist("pending")
    w.tick(1)
    claimed = await w.me.aclaim(pending.id, "w1")
    at = w.clock()
    assert (claimed.status, claimed.attempts, claimed.payload) == ("claimed", 1, b"work")
    assert (claimed.claimed_by, claimed.claimed_at) == ("w1", at)
    assert claimed.claim_expires_at == at + timedelta(seconds=LEASE)
    w.tick(1)
    done = await w.me.acomplete(id, "w1", b"result")
    assert done == await w.other.aget(id)
    assert (done.status, done.result, done.completed_at, done.error) == ("completed", b"result", w.clock(), None)
    assert (done.claimed_by, done.claimed_at, done.claim_expires_at) == ("w1", at, None)
    assert (done.took, done.attempts) == (timedelta(seconds=1), 1)


@played
async def test_from_a_failure_to_completed_by_another_worker(w: World) -> None:
    """M2: fail puts the task back at once; the next claim is the second attempt."""
    id = await w.me.asubmit(b"work", max_attempts=3)
    await w.me.aclaim(id, "w1")
    back = await w.me.afail(id, "w1", ValueError("not yet"))
    assert (back.status, back.attempts, back.claimed_by, back.completed_at) == ("pending", 1, "w1", None)
    assert back.error == "ValueError: not yet"
    again = await w.other.aclaim(id, "w2")
    assert (again.attempts, again.claimed_by) == (2, "w2")
    done = await w.other.acomplete(id, "w2")
    assert (done.status, done.error, done.attempts) == ("completed", None, 2)


@played
async def test_attempts_count_claims(w: World) -> None:
    """M2: at each claim, whatever ended the one before: a failure, a retry, its lease. A renewed claim counts none."""
    id = await w.me.asubmit(b"work", max_attempts=4)
    assert (await w.me.aclaim(id, "w1")).attempts == 1
    assert (await w.me.aclaim(id, "w1")).attempts == 1
    await w.me.afail(id, "w1", "no")
    assert (await w.me.aclaim(id, "w1")).attempts == 2
    await w.other.aretry(id)
    assert (await w.me.aclaim(id, "w1")).attempts == 3
    w.tick(LEASE)
    assert (await w.me.aget(id)).attempts == 3
    assert (await w.other.aclaim(id, "w2")).attempts == 4
    last = await w.other.afail(id, "w2", "never")
    assert (last.status, last.attempts, last.error) == ("failed", 4, "never")


@pytest.mark.parametrize("most", [1, 2, 3])
@played
async def test_as_many_attempts_as_there_are(w: World, most: int) -> None:
    """M2: max_attempts = 3 means three claims; the failure of the last is for good."""
    id = await w.me.asubmit(b"work", max_attempts=most)
    for attempt in range(1, most + 1):
        assert (await w.me.aclaim(id, "w1")).attempts == attempt
        failed = await w.me.afail(id, "w1", f"attempt {attempt}")
        assert failed.status == ("failed" if attempt == most else "pending")
    task = await w.me.aget(id)
    assert (task.error, task.completed_at) == (f"attempt {most}", w.clock())
    with pytest.raises(TaskFailed, match=f"attempt {most}"):
        await w.me.aclaim(id, "w1")
    job = await w.job(id)
    assert [failure.message for failure in job.failures] == [f"attempt {n}" for n in range(1, most + 1)]
    assert {failure.worker for failure in job.failures} == {"w1"}


@played
async def test_zero_is_not_a_limit(w: World) -> None:
    """M2: such a task never fails for good."""
    id = await w.me.asubmit(b"work")
    for attempt in range(1, 31):
        assert (await w.me.aclaim(id, "w1")).attempts == attempt
        await w.me.afail(id, "w1", "again")
    task = await w.me.aget(id)
    assert (task.status, task.attempts, task.max_attempts) == ("pending", 30, 0)


@played
async def test_lapsed_claims_use_attempts_up(w: World) -> None:
    """M2, M4: the claim after the last one finds out: the task has failed then, and says so."""
    id = await w.me.asubmit(b"work", max_attempts=2, idempotency_key="k")
    for worker in ("w1", "w2"):
        await w.me.aclaim(id, worker)
        w.tick(LEASE)
    assert (await w.me.aget(id)).status == "pending"
    for call in (w.me.aretry(id), w.other.aclaim(id, "w3")):
        with pytest.raises(MaxAttemptsReached, match="claimed 2 times, as often as it may be"):
            await call
    task = await w.me.aget_by_idempotency_key("k")
    assert (task.status, task.attempts, task.completed_at) == ("failed", 2, w.clock())
    assert task.error == "claimed 2 times, as often as it may be"
    assert (await w.job(id)).dlq_reason == "max_attempts"
    with pytest.raises(TaskFailed):
        await w.other.aclaim(id, "w3")
    with pytest.raises(TaskFailed):
        await w.me.acomplete(id, "w2", b"late")


@played
async def test_a_process_that_dies_on_an_exhausted_task_leaves_it_to_the_next(w: World) -> None:
    """M2: between the claim and the end of it, nothing is lost: the next claimer ends it, and says the same."""
    dying = await w.manager(lambda inner: LostRequest(inner, script("settle")))
    id = await w.me.asubmit(b"work", max_attempts=1)
    await w.me.aclaim(id, "w1")
    w.tick(LEASE)
    with pytest.raises(DriverUnavailable):
        await dying.aclaim(id, "w2")
    assert (await w.me.aget(id)).attempts == 1
    w.tick(LEASE)
    with pytest.raises(MaxAttemptsReached):
        await w.other.aclaim(id, "w3")
    assert (await w.me.aget(id)).status == "failed"


@played
async def test_a_claim_again_extends_and_a_heartbeat_does(w: World) -> None:
    """M1, D6: by the full lease from now, never backwards."""
    id = await w.me.asubmit(b"work")
    first = await w.me.aclaim(id, "w1")
    w.tick(LEASE - 1)
    again = await w.me.aclaim(id, "w1")
    assert again.claim_expires_at == w.clock() + timedelta(seconds=LEASE)
    assert (again.claimed_at, again.attempts) == (first.claimed_at, 1)
    w.tick(LEASE - 1)
    beat = await w.me.aheartbeat(id, "w1")
    assert (beat.claim_expires_at, beat) == (w.clock() + timedelta(seconds=LEASE), await w.other.aget(id))
    w.tick(LEASE - 0.000001)
    assert (await w.me.acomplete(id, "w1")).status == "completed"


@played
async def test_progress_is_for_everybody_to_see(w: World) -> None:
    """M1, D6: it stays until the next news, and goes with the claim."""
    id = await w.me.asubmit(b"work")
    await w.me.aclaim(id, "w1")
    assert (await w.other.aget(id)).progress is None
    await w.me.aheartbeat(id, "w1", 0.25, "reading")
    await w.me.aheartbeat(id, "w1")
    assert (await w.other.aget(id)).progress == Progress(0.25, "reading")
    await w.me.aheartbeat(id, "w1", note="writing")
    assert (await w.other.aget(id)).progress == Progress(0.25, "writing")
    assert (await w.me.aclaim(id, "w1")).progress == Progress(0.25, "writing")
    assert (await w.me.afail(id, "w1", "no")).progress is None


@played
async def test_a_claim_is_over_exactly_at_its_expiry(w: World) -> None:
    """M4, D3: not a microsecond before."""
    id = await w.me.asubmit(b"work")
    await w.me.aclaim(id, "w1")
    w.tick(LEASE - 0.000001)
    with pytest.raises(TaskAlreadyClaimed, match="claimed by 'w1' until"):
        await w.other.aclaim(id, "w2")
    w.tick(0.000001)
    assert (await w.other.aget(id)).status == "pending"
    assert (await w.other.aclaim(id, "w2")).claimed_by == "w2"


@played
async def test_a_late_call_is_refused_with_the_time_of_the_loss(w: World) -> None:
    """M4, L5: nothing that it says counts any more, before and after the next claim."""
    id = await w.me.asubmit(b"work")
    claimed = await w.me.aclaim(id, "w1")
    assert claimed.claim_expires_at is not None
    w.tick(LEASE)
    with pytest.raises(TaskNotClaimed, match="'w1' ran out at") as late:
        await w.me.acomplete(id, "w1", b"late")
    assert claimed.claim_expires_at.isoformat() in str(late.value)
    await w.other.aclaim(id, "w2")
    for call in (w.me.acomplete(id, "w1", b"late"), w.me.afail(id, "w1", "late"), w.me.aheartbeat(id, "w1")):
        with pytest.raises(WrongWorker, match="claimed by 'w2': only that worker"):
            await call
    assert (await w.other.acomplete(id, "w2", b"in time")).result == b"in time"


@played
async def test_a_restarted_agent_owns_nothing(w: World) -> None:
    """M4: the same worker id in a new process is not the same worker."""
    id = await w.me.asubmit(b"work")
    await w.me.aclaim(id, "w1")
    restarted = await w.manager()
    with pytest.raises(TaskAlreadyClaimed, match="this worker id in another manager"):
        await restarted.aclaim(id, "w1")
    with pytest.raises(WrongWorker, match="'w1' in another manager"):
        await restarted.acomplete(id, "w1", b"mine")
    w.tick(LEASE)
    assert (await restarted.aclaim(id, "w1")).attempts == 2
    with pytest.raises(WrongWorker):
        await w.me.acomplete(id, "w1", b"no, mine")
    assert (await restarted.acomplete(id, "w1")).status == "completed"


@pytest.mark.parametrize("among", ["managers", "workers"])
@played
async def test_one_of_many_concurrent_claims_wins(w: World, among: str) -> None:
    """M1, M4, D12: sixteen at the same moment, through four managers or through one."""
    managers = [w.me] if among == "workers" else [w.me, w.other, await w.manager(), await w.manager()]
    for _ in range(5):
        id = await w.me.asubmit(b"work")
        claims = [managers[n % len(managers)].aclaim(id, f"w{n}") for n in range(16)]
        answers = await asyncio.gather(*claims, return_exceptions=True)
        (winner,) = [answer for answer in answers if isinstance(answer, Task)]
        assert [type(it) for it in answers if it is not winner] == [TaskAlreadyClaimed] * 15
        assert (await w.me.aget(id)).claimed_by == winner.claimed_by
        assert winner.attempts == 1


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("boom", "boom"),
        (ValueError("boom"), "ValueError: boom"),
        (ValueError(), "ValueError"),
        (SystemExit(3), "SystemExit: 3"),
        ("x" * 10_000, None),
        ("", ""),
        ("\ud800 \x00", None),
    ],
)
@played
async def test_whatever_went_wrong_is_kept(w: World, given: Any, shown: str | None) -> None:
    """F10, R4: text as it is, exceptions with their kind; bounded, and safe to store."""
    id = await w.me.asubmit(b"x", max_attempts=1)
    await w.me.aclaim(id, "w1")
    task = await w.me.afail(id, "w1", given)
    assert task == await w.other.aget(id)
    assert task.error is not None
    assert len(task.error) <= 8192
    if shown is not None:
        assert task.error == shown


# retries


@played
async def test_an_outsider_frees_a_stuck_task(w: World) -> None:
    """M2: retry needs no worker id; the former holder gets an error, and its calls are refused."""
    id = await w.me.asubmit(b"x", idempotency_key="k")
    await w.me.aclaim(id, "w1")
    assert (await w.other.aretry(id)).status == "pending"
    before = await w.job(id)
    for call in (w.me.acomplete(id, "w1", b"x"), w.me.afail(id, "w1", "x"), w.me.aheartbeat(id, "w1")):
        with pytest.raises(TaskNotClaimed):
            await call
    assert await w.job(id) == before
    await w.other.aclaim(id, "w2")
    for call in (w.me.acomplete(id, "w1", b"x"), w.me.afail(id, "w1", "x"), w.me.aheartbeat(id, "w1")):
        with pytest.raises(WrongWorker):
            await call
    assert (await w.me.aget_by_idempotency_key("k")).claimed_by == "w2"


@played
async def test_the_holder_may_put_its_task_back_itself(w: World) -> None:
    """M2: and claim it again."""
    id = await w.me.asubmit(b"x")
    await w.me.aclaim(id, "w1")
    assert (await w.me.aretry(id)).status == "pending"
    assert (await w.me.aretry(id)).status == "pending"
    assert (await w.me.aclaim(id, "w1")).attempts == 2
    assert (await w.me.acomplete(id, "w1")).status == "completed"


@played
async def test_a_failed_task_with_attempts_left_can_be_retried(w: World) -> None:
    """M2: such as one that an operator cancelled; what it was stays, and the count of its claims goes on."""
    id = await w.me.asubmit(b"x", max_attempts=2)
    await w.me.aclaim(id, "w1")
    await w.me.afail(id, "w1", "no")
    await w.harbor().admin.jobs.acancel(id)
    shown = await w.me.aget(id)
    assert (shown.status, shown.error) == ("failed", "cancelled by an operator; before that: no")
    assert (await w.me.aretry(id)).status == "pending"
    assert (await w.other.aclaim(id, "w2")).attempts == 2
    assert (await w.other.afail(id, "w2", "no")).status == "failed"


@pytest.mark.parametrize(
    "ended", ["claimed", "cancelled", "dead_lettered", "cancel requested", "dead letter requested"]
)
@played
async def test_a_retry_keeps_the_key(w: World, ended: str) -> None:
    """M1, M2, I2: whatever an operator did before; the key is the task's until it is deleted."""
    id = await w.me.asubmit(b"x", idempotency_key="k", max_attempts=2)
    if ended == "claimed" or "requested" in ended:
        await w.me.aclaim(id, "w1")
    if "cancel" in ended:
        await w.harbor().admin.jobs.acancel(id)
    elif "dead" in ended:
        await w.dead_letter(id)
    back = await w.other.aretry(id)
    assert (back.status, back.idempotency_key, back.error) == ("pending", "k", None)
    assert await w.me.asubmit(b"y", idempotency_key="k") == id
    assert (await w.me.aget_by_idempotency_key("k")).payload == b"x"


@pytest.mark.parametrize("end", ["cancel", "dead letter"])
@pytest.mark.parametrize("how", ["pending", "lapsed", "failed"])
@played
async def test_what_an_operator_ended_stays_readable(w: World, end: str, how: str) -> None:
    """M1: no retention, and by its key, also years later; delete takes both."""
    id = await w.me.asubmit(b"x", idempotency_key="k")
    if how != "pending":
        await w.me.aclaim(id, "w1")
    await (w.harbor(keep_done=0, keep_dead=0).admin.jobs.acancel(id) if end == "cancel" else w.dead_letter(id))
    if how == "failed":
        await w.me.afail(id, "w1", "no")
    elif how == "lapsed":
        w.tick(LEASE)
    why = "cancelled by an operator" if end == "cancel" else "dead-lettered: bad order"
    task = await w.me.aget(id)
    assert (task.status, task.error) == ("failed", f"{why}; before that: no" if how == "failed" else why)
    assert task.claimed_by == (None if how == "pending" else "w1")
    w.tick(100 * 365 * 86400)
    assert await w.upkeep.prune(w.clock(), 100) == 0
    assert await w.me.aget_by_idempotency_key("k") == task
    assert await w.me.asubmit(b"x", idempotency_key="k") == id
    await w.me.adelete(id)
    assert await w.me.asubmit(b"x", idempotency_key="k") != id


@played
async def test_the_last_claim_leaves_its_trace(w: World) -> None:
    """M1, R1: who, when and for how long, whatever ended the claim; the next claim replaces it."""
    id = await w.me.asubmit(b"x")

    async def trace() -> tuple[str | None, float | None]:
        task = await w.other.aget(id)
        assert task.claimed_at in (None, began)
        return task.claimed_by, None if task.took is None else task.took.total_seconds()

    began = w.clock()
    assert await trace() == (None, None)
    for worker, end, lasted in (("w1", "fail", 1), ("w2", "retry", 2), ("w3", "lapse", LEASE), ("w4", "complete", 4)):
        w.tick(1)
        began = w.clock()
        await w.me.aclaim(id, worker)
        assert await trace() == (worker, None)
        w.tick(lasted)
        if end == "fail":
            await w.me.afail(id, worker, "no")
        elif end == "complete":
            await w.me.acomplete(id, worker)
        elif end == "retry":
            await w.other.aretry(id)
        assert await trace() == (worker, None if end == "lapse" else lasted)
    job = await w.job(id)
    assert (job.worker, job.claimed_at, job.started_at, job.settled_at) == ("w4", began, began, w.clock())
    assert [(failure.worker, failure.started_at is not None) for failure in job.failures] == [("w1", True)]


@pytest.mark.parametrize("ahead", [3600, -3600])
@played
async def test_how_long_it_took_is_never_negative(w: World, ahead: int) -> None:
    """X4: another host ended the claim, by a clock of its own."""
    id = await w.me.asubmit(b"x")
    claimed = await w.me.aclaim(id, "w1")
    skewed = await w.manager(clock=SkewedClock(w.clock, ahead), lease=2 * 86400)
    await w.me.aheartbeat(id, "w1")
    if ahead > 0:
        await (await w.manager(lease=86400)).aheartbeat(id, "w1", token=claimed.claim_token)
    done = await skewed.acomplete(id, "w1", token=claimed.claim_token)
    assert done.took == timedelta(seconds=max(ahead, 0))


@pytest.mark.parametrize("asked", ["cancel", "dead letter", "both"])
@played
async def test_a_heartbeat_returns_an_operators_stop_request(w: World, asked: str) -> None:
    """T3, Q4, M1: claim and get tell it too; a cancel goes before a dead letter; a retry undoes it in one call."""
    id = await w.me.asubmit(b"x")
    assert not (await w.me.aclaim(id, "w1")).cancel_requested
    beat = await w.me.aheartbeat(id, "w1")
    assert (beat.cancel_requested, beat.dead_letter_reason) == (False, None)
    if asked != "cancel":
        assert await w.dead_letter(id) == ["requested"]
    if asked != "dead letter":
        await w.harbor().admin.jobs.acancel(id)
    for task in (await w.me.aheartbeat(id, "w1"), await w.me.aget(id), await w.me.aclaim(id, "w1")):
        assert (task.status, task.cancel_requested) == ("claimed", True)
        assert task.dead_letter_reason == ("bad order" if asked == "dead letter" else None)
    back = await w.other.aretry(id)
    assert (back.status, back.cancel_requested, back) == ("pending", False, await w.me.aget(id))
    assert (await w.other.aclaim(id, "w2")).attempts == 2


@played
async def test_the_first_look_ends_all_that_was_stopped(w: World) -> None:
    """T3, M1: however many there are."""
    ids = await asyncio.gather(*(w.me.asubmit(b"x") for _ in range(2 * PAGE + 10)))
    await asyncio.gather(*(w.me.aclaim(id, "w1") for id in ids))
    await w.harbor().admin.jobs.acancel(ids)
    w.tick(LEASE)
    for id in (ids[0], ids[-1]):
        assert (await w.me.aget(id)).completed_at == w.clock()
    assert {(await w.job(id)).state for id in ids} == {"cancelled"}


# unknown outcomes


@played
async def test_complete_again_after_a_lost_reply_finds_out(w: World) -> None:
    """D8, X3: the token is kept until the outcome is known, also beyond the lease."""
    me = await w.manager(lambda inner: LostReply(inner, script("settle")))
    id = await me.asubmit(b"x")
    await me.aclaim(id, "w1")
    with pytest.raises(DriverUnavailable):
        await me.acomplete(id, "w1", b"first")
    w.tick(10 * LEASE)
    task = await me.acomplete(id, "w1", b"second")
    assert (task.status, task.result) == ("completed", b"first")
    assert len(me._claims) == 0


@played
async def test_fail_again_after_a_lost_reply_finds_out(w: World) -> None:
    """D8, X3, M2: recorded once, and no error although the task is pending by then."""
    me = await w.manager(lambda inner: LostReply(inner, script("settle")))
    id = await me.asubmit(b"x")
    await me.aclaim(id, "w1")
    with pytest.raises(DriverUnavailable):
        await me.afail(id, "w1", "no")
    assert (await me.afail(id, "w1", "no")).status == "pending"
    assert len((await w.job(id)).failures) == 1
    with pytest.raises(TaskNotClaimed):
        await me.afail(id, "w1", "no")


@pytest.mark.parametrize("lost", [LostRequest, LostReply])
@pytest.mark.parametrize(("first", "second"), [("acomplete", "afail"), ("afail", "acomplete")])
@played
async def test_another_outcome_after_a_lost_reply_returns_what_was_written(
    w: World, lost: Any, first: str, second: str
) -> None:
    """D8, M3: the first word counts if it arrived, and the second if not; never both."""
    me = await w.manager(lambda inner: lost(inner, script("settle")))
    id = await me.asubmit(b"x", max_attempts=1)
    await me.aclaim(id, "w1")
    given = {"acomplete": b"done", "afail": "no"}
    with pytest.raises(DriverUnavailable):
        await getattr(me, first)(id, "w1", given[first])
    wanted = {"acomplete": "completed", "afail": "failed"}
    if lost is LostRequest:
        await getattr(me, second)(id, "w1", given[second])
    else:
        with pytest.raises(TaskCompleted if first == "acomplete" else TaskFailed):
            await getattr(me, second)(id, "w1", given[second])
    assert (await w.me.aget(id)).status == wanted[second if lost is LostRequest else first]


@played
async def test_complete_after_an_unconfirmed_failure(w: World) -> None:
    """D8: a put-back under the same token is not a completion."""
    me = await w.manager(lambda inner: LostReply(inner, script("settle")))
    id = await me.asubmit(b"x")
    await me.aclaim(id, "w1")
    with pytest.raises(DriverUnavailable):
        await me.afail(id, "w1", "no")
    with pytest.raises(TaskNotClaimed):
        await me.acomplete(id, "w1", b"done")
    assert (await w.me.aget(id)).status == "pending"


@played
async def test_a_claim_whose_reply_was_lost_ends_with_its_lease(w: World) -> None:
    """M4: the attempt is used up, and nothing is stuck."""
    me = await w.manager(lambda inner: LostReply(inner, script("reserve")))
    id = await me.asubmit(b"x")
    with pytest.raises(DriverUnavailable):
        await me.aclaim(id, "w1")
    with pytest.raises(TaskAlreadyClaimed):
        await me.aclaim(id, "w1")
    w.tick(LEASE)
    assert (await me.aclaim(id, "w1")).attempts == 2


@pytest.mark.parametrize("verb", ["settle", "replay"])
@played
async def test_retry_again_after_a_lost_reply_is_fine(w: World, verb: str) -> None:
    """M2: of a claimed task as of a failed one."""
    hasty = await w.manager(lambda inner: LostReply(inner, script(verb)))
    id = await w.me.asubmit(b"x")
    if verb == "settle":
        await w.me.aclaim(id, "w1")
    else:
        await w.harbor().admin.jobs.acancel(id)
    with pytest.raises(DriverUnavailable):
        await hasty.aretry(id)
    assert (await hasty.aretry(id)).status == "pending"
    assert (await w.job(id)).replays == (verb == "replay")


@played
async def test_submit_again_after_a_lost_reply_needs_a_key(w: World) -> None:
    """I1: with one, the repeat is the same task."""
    hasty = await w.manager(lambda inner: LostReply(inner, script("enqueue")))
    with pytest.raises(DriverUnavailable):
        await hasty.asubmit(b"x", idempotency_key="k")
    id = await hasty.asubmit(b"x", idempotency_key="k")
    assert [task.id for task in await w.me.alist()] == [id]


# clocks


@pytest.mark.parametrize("hour", [3600, -3600])
@played
async def test_a_wrong_clock_hides_no_task(w: World, hour: int) -> None:
    """X4, M1: a task has no schedule, so what is pending can be claimed, whatever the hosts think the time is."""
    skewed = await w.manager(clock=SkewedClock(w.clock, hour))
    for submitter, claimer in ((skewed, w.me), (w.me, skewed)):
        id = await submitter.asubmit(b"x", max_attempts=3)
        await claimer.aclaim(id, "w1")
        await claimer.afail(id, "w1", "no")
        assert (await submitter.aclaim(id, "w2")).attempts == 2
        await submitter.aretry(id)
        assert (await claimer.aclaim(id, "w1")).attempts == 3


@played
async def test_a_task_that_an_operator_moved_can_be_claimed(w: World) -> None:
    """M1: tasks have no schedule."""
    id = await w.me.asubmit(b"x")
    assert await w.harbor().admin.jobs.areschedule(id, run_at=w.clock() + timedelta(days=1))
    assert (await w.me.aget(id)).status == "pending"
    assert (await w.me.aclaim(id, "w1")).claim_expires_at == w.clock() + timedelta(seconds=LEASE)


# memory


@played
async def test_a_manager_remembers_only_what_it_holds(w: World) -> None:
    """M1: settled claims go at once, lapsed ones some time after, those that are held stay."""
    me = await w.manager(lambda inner: inner)
    for _ in range(5):
        id = await me.asubmit(b"x")
        await me.aclaim(id, "w1")
        await me.acomplete(id, "w1")
    assert len(me._claims) == 0


@played
async def test_a_manager_does_not_keep_payloads(w: World) -> None:
    """M1: not of what it claimed nor of what it claimed again; every caller gets it from the store."""
    id = await w.me.asubmit(b"x" * 1000)
    assert (await w.me.aclaim(id, "w1")).payload == b"x" * 1000
    assert (await w.me.aclaim(id, "w1")).payload == b"x" * 1000
    held = w.me._claims.of(id, "w1")
    assert held is not None
    assert (held.payload, held.result) == (b"", None)
    assert (await w.me.acomplete(id, "w1", b"done")).payload == b"x" * 1000


@played
async def test_a_call_that_comes_too_late_forgets_its_claim(w: World) -> None:
    """M1: the task was completed by another worker."""
    id = await w.me.asubmit(b"x")
    await w.me.aclaim(id, "w1")
    w.tick(LEASE)
    await w.other.aclaim(id, "w2")
    await w.other.acomplete(id, "w2", b"theirs")
    with pytest.raises(TaskCompleted):
        await w.me.acomplete(id, "w1", b"mine")
    assert len(w.me._claims) == 0


@played
async def test_an_answer_is_what_is_stored(w: World) -> None:
    """M1: to the microsecond, although time goes on during a call."""

    def clock() -> datetime:
        w.tick(0.000001)
        return w.clock()

    me = await w.manager(clock=clock)
    done, dead = await me.asubmit(b"x"), await me.asubmit(b"x", max_attempts=1)
    for id in (done, dead):
        await me.aclaim(id, "w1")
    assert (await me.acomplete(done, "w1")).completed_at == (await w.job(done)).completed_at
    assert (await me.afail(dead, "w1", "no")).completed_at == (await w.job(dead)).completed_at


def test_claims_that_ran_out_long_ago_are_forgotten() -> None:
    """M1: whatever number of tasks a manager claims and leaves, its memory is bounded."""

    async def play() -> None:
        clock = ManualClock()
        async with TaskManager("memory://", clock=clock) as me:
            kept = await me.asubmit(b"x")
            for _ in range(3 * FEW):
                id = await me.asubmit(b"x")
                await me.aclaim(id, "w1")
                clock.advance(REMEMBERED / 100)
                await me.aclaim(kept, "w1")
            assert len(me._claims) < FEW
            assert (await me.acomplete(kept, "w1")).attempts <= 3 * FEW

    asyncio.run(play())


# lists


@played
async def test_lists_are_oldest_first_and_bounded(w: World) -> None:
    """M1: over several pages, by status, ordinary jobs left out."""
    ids = await asyncio.gather(*(w.me.asubmit(b"%d" % n) for n in range(450)))
    harbor = w.harbor()
    await harbor.aenqueue_many([harbor.step("work", {}) for _ in range(5)])
    submitted = [task.id for task in await w.me.alist()]
    assert sorted(submitted) == sorted(ids)
    for id in submitted[:3]:
        await w.other.aclaim(id, "w2")
    assert [task.id for task in await w.me.alist("pending")] == submitted[3:]
    assert [task.id for task in await w.me.alist(limit=7)] == submitted[:7]
    assert [task.id for task in await w.me.alist("pending", limit=2)] == submitted[3:5]
    w.tick(LEASE)
    assert [task.id for task in await w.me.alist("pending", limit=1)] == submitted[:1]


@virtual
async def test_a_list_takes_as_long_as_it_takes() -> None:
    """X2: each page has the time that a call has."""

    class SlowPages(Wrapper):
        async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Awaitable[Any]]) -> Any:
            await asyncio.sleep(20 if verb == "query" else 0)
            return await call()

    me = TaskManager(SlowPages(MemoryDriver()))
    ids = [await me.asubmit(b"x") for _ in range(2 * PAGE + 1)]
    assert {task.id for task in await me.alist()} == set(ids)
    assert time() == 60


@played
async def test_a_loop_over_the_list_shares_the_work(w: World) -> None:
    """M1: two agents that go through the same list do everything once."""
    for n in range(20):
        await w.me.asubmit(b"%d" % n)
    done: list[bytes] = []

    async def agent(manager: TaskManager, worker: str) -> None:
        for task in await manager.alist("pending"):
            try:
                await manager.aclaim(task.id, worker)
            except TaskError:
                continue
            done.append(task.payload)
            await manager.acomplete(task.id, worker)

    await asyncio.gather(agent(w.me, "w1"), agent(w.other, "w2"))
    assert sorted(map(int, done)) == list(range(20))
    assert len(await w.me.alist("completed")) == 20


@played
async def test_nothing_is_kept_for_a_time_only(w: World) -> None:
    """M1, X8: ended tasks have no retention, whatever the harbor's is; only delete removes them."""
    harbor = w.harbor(keep_done=0, keep_dead=0)
    me = TaskManager(harbor)
    done, dead, spent = [await me.asubmit(b"x", max_attempts=1) for _ in range(3)]
    for id in (done, dead, spent):
        await me.aclaim(id, "w1")
    await me.acomplete(done, "w1")
    await me.afail(dead, "w1", "no")
    w.tick(LEASE)
    with pytest.raises(MaxAttemptsReached):
        await me.aclaim(spent, "w1")
    assert {(await w.job(id)).keep_until for id in (done, dead, spent)} == {LAST_MOMENT}
    w.tick(100 * 365 * 86400)
    assert await w.upkeep.prune(w.clock(), 100) == 0
    assert len(await me.alist()) == 3
    for id in (done, dead, spent):
        await me.adelete(id)
    assert await me.alist() == []
