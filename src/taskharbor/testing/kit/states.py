"""T: every verb against every state. The legal moves happen; every other one is refused and changes nothing (T1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from taskharbor.core.job import JobRecord, Progress
from taskharbor.core.states import Shown
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack
from taskharbor.driver import Extended, Report, Reschedule
from taskharbor.testing.kit.jobs import KEEP, SETTLES, at, child, each_kind, group, job, put_back, token_of
from taskharbor.testing.kit.scene import Cases, Scene

STRANGER = "no such token"
STATES = ("missing", "scheduled", "ready", "waiting", "inflight", "lapsed", "done", "dlq", "cancelled")
LINE, HELD = ("scheduled", "ready", "waiting"), ("inflight", "lapsed")
ENDS = {"done": "ack", "dlq": "fail"}


async def arrange(s: Scene, state: str) -> str:
    """Bring job `a` into a state; return the token of its holder, or one that no job has."""
    if state == "waiting":
        await s.add(job("p", queue="elsewhere"), child("a", "p"))
    elif state != "missing":
        await s.add(job("a", run_at=at(60) if state == "scheduled" else None))
    if state == "cancelled":
        await s.withdraw("a")
    elif state in ENDS:
        await s.end(SETTLES[ENDS[state]](await s.claim("a")))
    if state not in HELD:
        return STRANGER
    held = await s.claim("a", lease=5)
    s.tick(5 if state == "lapsed" else 0)
    return token_of(held)


VERBS: dict[str, Callable[[Scene, str], Awaitable[Any]]] = {
    "enqueue": lambda s, token: s.enqueue(group(job("a", payload=b"again"))),
    "reserve": lambda s, token: s.reserve(9),
    "reserve by id": lambda s, token: s.reserve(9, ids=["a"]),
    "extend": lambda s, token: s.extend(Report("a", token, at(1), Progress(0.5)), lease=60),
    "ack": lambda s, token: s.settle(Ack(id="a", token=token, keep_until=KEEP, result=b"r", attempts=3)),
    "put_back": lambda s, token: s.settle(PutBack(id="a", token=token, keep_until=KEEP, run_at=at(1), attempts=3)),
    "fail": lambda s, token: s.settle(Fail(id="a", token=token, keep_until=KEEP, reason="r", attempts=3)),
    "cancel": lambda s, token: s.settle(Cancel(id="a", token=token, keep_until=KEEP, attempts=3)),
    "withdraw": lambda s, token: s.withdraw("a"),
    "dead_letter": lambda s, token: s.dead_letter("a"),
    "delete": lambda s, token: s.manage.delete(["a"]),
    "replay": lambda s, token: s.replay("a", payload=b"edited"),
    "reschedule": lambda s, token: s.manage.reschedule([Reschedule(id="a", run_at=at(90), priority=3)], s.now),
    "sweep": lambda s, token: s.sweep(),
    "prune": lambda s, token: s.prune(),
}
KINDS: dict[type, str] = {tuple: "stored", JobRecord: "claimed", Extended: "extended"}


def in_words(answer: list[Any] | int | str) -> Any:
    """An answer as the table has it: that for the one job, and values by their kind."""
    answers: list[object] = answer if isinstance(answer, list) else [answer]
    return KINDS.get(type(answers[0]), answers[0]) if answers else "none"


# verb -> (the default answer, {state: (answer, state afterwards)}); states that are not listed do not change.
AnswersByState = dict[str, tuple[Any, str | None]]
LAPSED: AnswersByState = {"lapsed": ("LeaseExpired", None)}
MISSING: AnswersByState = {"missing": ("missing", None)}
CLAIMED: AnswersByState = dict.fromkeys(("ready", "lapsed"), ("claimed", "inflight"))
REQUESTED: AnswersByState = dict.fromkeys(HELD, ("requested", "inflight"))
TABLE: dict[str, tuple[Any, AnswersByState]] = {
    "enqueue": ("JobExists", {"missing": ("stored", "ready")}),
    "reserve": ("none", CLAIMED),
    "reserve by id": ("none", CLAIMED),
    "extend": ("JobNotInflight", {"inflight": ("extended", "inflight")} | LAPSED),
    "ack": ("JobNotInflight", {"inflight": ("ok", "done")} | LAPSED),
    "put_back": ("JobNotInflight", {"inflight": ("ok", "ready")} | LAPSED),
    "fail": ("JobNotInflight", {"inflight": ("ok", "dlq")} | LAPSED),
    "cancel": ("JobNotInflight", {"inflight": ("ok", "cancelled")} | LAPSED),
    "withdraw": ("finished", MISSING | dict.fromkeys(LINE, ("cancelled", "cancelled")) | REQUESTED),
    "dead_letter": ("finished", MISSING | dict.fromkeys(LINE, ("dead", "dlq")) | REQUESTED),
    "delete": ("live", MISSING | dict.fromkeys(("done", "dlq", "cancelled"), ("deleted", "missing"))),
    "replay": ("not_dead", MISSING | dict.fromkeys(("dlq", "cancelled"), ("replayed", "ready"))),
    "reschedule": (False, dict.fromkeys(("scheduled", "ready"), (True, "ready"))),
    "sweep": (0, {}),
    "prune": (0, {}),
}


class StateCases(Cases):
    """T1, T2."""

    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize("verb", list(VERBS))
    async def test_T1_the_table_of_moves(self, s: Scene, verb: str, state: str) -> None:
        """T1: a legal move leads where the table says; any other is refused with a reason and changes nothing."""
        token = await arrange(s, state)
        otherwise, listed = TABLE[verb]
        answer, after = listed.get(state, (otherwise, None))
        before = await s.everything()
        assert in_words(await VERBS[verb](s, token)) == answer
        if after is None:
            assert await s.everything() == before
        else:
            assert await s.states("a") == [None if after == "missing" else after]
            assert await s.everything() != before

    @each_kind
    async def test_T1_a_settled_job_is_no_longer_held(self, s: Scene, kind: str) -> None:
        """T1: leaving inflight ends the lease; the version stays."""
        await s.end(SETTLES[kind](await s.held()))
        await s.expect(lease=None, version=1)

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
        assert await s.shown() == {Shown.CLAIMED: ["a"]}
        await s.extend(Report("a", token_of(held), started_at=at(0)))
        assert await s.shown() == {Shown.RUNNING: ["a"]}

    async def test_T2_a_job_claimed_again_has_not_started(self, s: Scene) -> None:
        """T2: started_at and progress belong to one run; a put-back clears the progress, the next claim the start."""
        for again in ("put back", "reclaimed"):
            held = await s.held(again, lease=10)
            await s.extend(Report(again, token_of(held), at(0), Progress(0.9, "nearly")), lease=10)
            if again == "put back":
                await s.end(put_back(held, started_at=at(0)))
                await s.expect(again, started_at=at(0), progress=None)
            else:
                s.tick(10)
            record = await s.claim(again)
            assert (record.started_at, record.progress) == (None, None)
