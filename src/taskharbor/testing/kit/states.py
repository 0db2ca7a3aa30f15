"""T: every verb against every state. The legal moves happen; every other one is refused and changes nothing (T1)."""
# ruff: noqa: N802 (clause ids are written as in the contract)

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from taskharbor.core.filter import Filter
from taskharbor.core.job import Progress
from taskharbor.core.states import Shown
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack
from taskharbor.driver import Report, Reschedule
from taskharbor.testing.kit.scene import (
    KEEP,
    SETTLES,
    Cases,
    Scene,
    ack,
    at,
    child,
    fail,
    group,
    job,
    put_back,
    token_of,
)

STRANGER = "no such token"


async def _missing(s: Scene) -> str:
    return STRANGER


async def _scheduled(s: Scene) -> str:
    await s.add(job("a", run_at=at(60)))
    return STRANGER


async def _ready(s: Scene) -> str:
    await s.add(job("a"))
    return STRANGER


async def _waiting(s: Scene) -> str:
    await s.add(job("p", queue="elsewhere"), child("a", "p"))
    return STRANGER


async def _inflight(s: Scene) -> str:
    return token_of(await s.held("a"))


async def _lapsed(s: Scene) -> str:
    held = await s.held("a", lease=5)
    s.tick(5)
    return token_of(held)


async def _done(s: Scene) -> str:
    await s.end(ack(await s.held("a")))
    return STRANGER


async def _dlq(s: Scene) -> str:
    await s.end(fail(await s.held("a")))
    return STRANGER


async def _cancelled(s: Scene) -> str:
    await s.add(job("a"))
    await s.withdraw("a")
    return STRANGER


STATES: dict[str, Callable[[Scene], Awaitable[str]]] = {
    "missing": _missing,
    "scheduled": _scheduled,
    "ready": _ready,
    "waiting": _waiting,
    "inflight": _inflight,
    "lapsed": _lapsed,
    "done": _done,
    "dlq": _dlq,
    "cancelled": _cancelled,
}


async def _enqueue(s: Scene, token: str) -> Any:
    [answer] = await s.enqueue(group(job("a", payload=b"again")))
    return "stored" if isinstance(answer, tuple) else answer


async def _reserve(s: Scene, token: str) -> Any:
    return len(await s.reserve(9))


async def _reserve_by_id(s: Scene, token: str) -> Any:
    return len(await s.reserve(9, ids=["a"]))


async def _extend(s: Scene, token: str) -> Any:
    [answer] = await s.extend(Report("a", token, at(1), Progress(0.5)), lease=60)
    return "extended" if not isinstance(answer, Exception) else answer


async def _ack(s: Scene, token: str) -> Any:
    return (await s.settle(Ack(id="a", token=token, keep_until=KEEP, result=b"r", attempts=3)))[0]


async def _put_back(s: Scene, token: str) -> Any:
    return (await s.settle(PutBack(id="a", token=token, keep_until=KEEP, run_at=at(1), attempts=3)))[0]


async def _fail(s: Scene, token: str) -> Any:
    return (await s.settle(Fail(id="a", token=token, keep_until=KEEP, reason="r", attempts=3)))[0]


async def _cancel(s: Scene, token: str) -> Any:
    return (await s.settle(Cancel(id="a", token=token, keep_until=KEEP, attempts=3)))[0]


async def _withdraw(s: Scene, token: str) -> Any:
    return (await s.withdraw("a"))[0]


async def _dead_letter(s: Scene, token: str) -> Any:
    return (await s.dead_letter("a"))[0]


async def _delete(s: Scene, token: str) -> Any:
    return (await s.manage.delete(["a"]))[0]


async def _replay(s: Scene, token: str) -> Any:
    return await s.replay("a", payload=b"edited")


async def _reschedule(s: Scene, token: str) -> Any:
    return (await s.manage.reschedule([Reschedule(id="a", run_at=at(90), priority=3)], s.now))[0]


async def _sweep(s: Scene, token: str) -> Any:
    return await s.sweep()


async def _prune(s: Scene, token: str) -> Any:
    return await s.prune()


VERBS: dict[str, Callable[[Scene, str], Awaitable[Any]]] = {
    "enqueue": _enqueue,
    "reserve": _reserve,
    "reserve by id": _reserve_by_id,
    "extend": _extend,
    "ack": _ack,
    "put_back": _put_back,
    "fail": _fail,
    "cancel": _cancel,
    "withdraw": _withdraw,
    "dead_letter": _dead_letter,
    "delete": _delete,
    "replay": _replay,
    "reschedule": _reschedule,
    "sweep": _sweep,
    "prune": _prune,
}

# verb -> (the default answer, {state: (answer, state afterwards)}); states that are not listed do not change.
NOT_INFLIGHT = "JobNotInflight"
TABLE: dict[str, tuple[Any, dict[str, tuple[Any, str | None]]]] = {
    "enqueue": ("JobExists", {"missing": ("stored", "ready")}),
    "reserve": (0, {"ready": (1, "inflight"), "lapsed": (1, "inflight")}),
    "reserve by id": (0, {"ready": (1, "inflight"), "lapsed": (1, "inflight")}),
    "extend": (NOT_INFLIGHT, {"inflight": ("extended", "inflight"), "lapsed": ("LeaseExpired", None)}),
    "ack": (NOT_INFLIGHT, {"inflight": ("ok", "done"), "lapsed": ("LeaseExpired", None)}),
    "put_back": (NOT_INFLIGHT, {"inflight": ("ok", "ready"), "lapsed": ("LeaseExpired", None)}),
    "fail": (NOT_INFLIGHT, {"inflight": ("ok", "dlq"), "lapsed": ("LeaseExpired", None)}),
    "cancel": (NOT_INFLIGHT, {"inflight": ("ok", "cancelled"), "lapsed": ("LeaseExpired", None)}),
    "withdraw": (
        "finished",
        {
            "missing": ("missing", None),
            "scheduled": ("cancelled", "cancelled"),
            "ready": ("cancelled", "cancelled"),
            "waiting": ("cancelled", "cancelled"),
            "inflight": ("requested", "inflight"),
            "lapsed": ("requested", "inflight"),
        },
    ),
    "dead_letter": (
        "finished",
        {
            "missing": ("missing", None),
            "scheduled": ("dead", "dlq"),
            "ready": ("dead", "dlq"),
            "waiting": ("dead", "dlq"),
            "inflight": ("requested", "inflight"),
            "lapsed": ("requested", "inflight"),
        },
    ),
    "delete": (
        "live",
        {
            "missing": ("missing", None),
            "done": ("deleted", "missing"),
            "dlq": ("deleted", "missing"),
            "cancelled": ("deleted", "missing"),
        },
    ),
    "replay": (
        "not_dead",
        {"missing": ("missing", None), "dlq": ("replayed", "ready"), "cancelled": ("replayed", "ready")},
    ),
    "reschedule": (False, {"scheduled": (True, "ready"), "ready": (True, "ready")}),
    "sweep": (0, {}),
    "prune": (0, {}),
}


class States(Cases):
    """T1-T3."""

    @pytest.mark.parametrize("state", list(STATES))
    @pytest.mark.parametrize("verb", list(VERBS))
    async def test_T1_the_table_of_moves(self, s: Scene, verb: str, state: str) -> None:
        """T1: a legal move leads where the table says; any other is refused with a reason and changes nothing."""
        token = await STATES[state](s)
        otherwise, listed = TABLE[verb]
        answer, after = listed.get(state, (otherwise, None))
        before = await s.everything()
        got = await VERBS[verb](s, token)
        assert (type(got).__name__ if isinstance(got, Exception) else got) == answer
        if after is None:
            assert await s.everything() == before
        else:
            assert await s.states("a") == [None if after == "missing" else after]
            assert await s.everything() != before

    @pytest.mark.parametrize("kind", list(SETTLES))
    async def test_T1_a_settled_job_is_no_longer_held(self, s: Scene, kind: str) -> None:
        """T1: leaving inflight ends the lease; the version stays."""
        await s.end(SETTLES[kind](await s.held()))
        record = await s.get()
        assert (record.lease, record.version) == (None, 1)

    async def test_T1_a_job_is_in_exactly_one_state(self, s: Scene) -> None:
        """T1: the counts of all states add up to the jobs there are."""
        for kind in ("ack", "fail", "cancel"):
            await s.end(SETTLES[kind](await s.held(kind)))
        await s.held("lapsed", lease=1)
        s.tick(1)
        await s.held("held")
        await s.add(job("scheduled", run_at=at(60)), job("ready"), job("p", queue="elsewhere"), child("waits", "p"))
        [counts] = [found for found in await s.look.counts(s.now) if found.queue == "q"]
        shown = {state: getattr(counts, state) for state in Shown}
        assert shown == dict.fromkeys(Shown, 1) | {Shown.RUNNING: 0}

    async def test_T2_a_claimed_job_is_running_once_its_start_was_reported(self, s: Scene) -> None:
        """T2: the heartbeat carries started_at, which distinguishes claimed from running."""
        held = await s.held()
        assert [job.id for job in await s.look.query(Filter(states=(Shown.CLAIMED,)), s.now, 9)] == ["a"]
        await s.extend(Report("a", token_of(held), started_at=at(0)))
        assert await s.look.query(Filter(states=(Shown.CLAIMED,)), s.now, 9) == []
        assert [job.id for job in await s.look.query(Filter(states=(Shown.RUNNING,)), s.now, 9)] == ["a"]

    async def test_T2_a_job_claimed_again_has_not_started(self, s: Scene) -> None:
        """T2: started_at and progress belong to one run; a put-back clears the progress, the next claim the start."""
        for again in ("put back", "reclaimed"):
            held = await s.held(again, lease=10)
            await s.extend(Report(again, token_of(held), at(0), Progress(0.9, "nearly")), lease=10)
            if again == "put back":
                await s.end(put_back(held, started_at=at(0)))
                assert ((await s.get(again)).started_at, (await s.get(again)).progress) == (at(0), None)
            else:
                s.tick(10)
            record = await s.claim(again)
            assert (record.started_at, record.progress) == (None, None)

    async def test_T3_cancelling_an_inflight_job_only_records_the_request(self, s: Scene) -> None:
        """T3: lease, state and everything else stay; the first request's time is kept."""
        held = await s.held()
        s.tick(1)
        assert await s.withdraw("a") == ["requested"]
        record = await s.get()
        assert record.stop_requested_at == at(1)
        assert record.lease == held.lease
        assert record.state == "inflight"
        s.tick(1)
        async with s.nothing_changes():
            assert await s.withdraw("a") == ["requested"]

    async def test_T3_an_ack_after_the_request_wins(self, s: Scene) -> None:
        """T3: completed work stays completed."""
        held = await s.held()
        await s.withdraw("a")
        await s.end(ack(held, result=b"done anyway"))
        assert ((await s.get()).state, (await s.get()).result) == ("done", b"done anyway")

    async def test_T3_a_fail_after_the_request_is_dead_lettered(self, s: Scene) -> None:
        """T3: only PutBack and Cancel lead to cancelled."""
        held = await s.held()
        await s.withdraw("a")
        await s.end(fail(held))
        assert await s.states("a") == ["dlq"]

    @pytest.mark.parametrize("kind", ["put_back", "cancel"])
    async def test_T3_a_put_back_after_the_request_lands_in_cancelled(self, s: Scene, kind: str) -> None:
        """T3: it keeps the transition's fields, is complete, and is never claimed again."""
        held = await s.held()
        await s.withdraw("a")
        s.tick(3)
        await s.end(SETTLES[kind](held, attempts=2, last_error="x", keep_until=at(999)))
        record = await s.get()
        assert (record.state, record.attempts, record.last_error) == ("cancelled", 2, "x")
        assert (record.completed_at, record.keep_until, record.lease) == (at(3), at(999), None)
        s.tick(9999)
        assert await s.reserve() == []

    async def test_T3_cancelling_several_jobs_answers_each(self, s: Scene) -> None:
        """T3: one call, one answer per id, in order."""
        await s.end(ack(await s.held("done")))
        await s.held("held")
        await s.add(job("ready"))
        assert await s.withdraw("ready", "nobody", "held", "done") == ["cancelled", "missing", "requested", "finished"]
        record = await s.get("ready")
        assert (record.state, record.completed_at, record.keep_until) == ("cancelled", s.now, KEEP)

    async def test_T3_a_job_left_behind_after_the_request_ends_cancelled(self, s: Scene) -> None:
        """T1, T3: once the lease has lapsed, upkeep ends the job; reserve never returns it."""
        await s.held(lease=5)
        await s.withdraw("a")
        s.tick(4.999999)
        assert await s.sweep() == 0
        s.tick(0.000001)
        assert await s.reserve() == []
        await s.sweep()
        record = await s.get()
        assert (record.state, record.completed_at, record.lease) == ("cancelled", s.now, None)
        assert await s.sweep() == 0
