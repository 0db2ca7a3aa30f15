"""T3, Q4: jobs cancelled or dead-lettered by hand, at once in line and by a stop request under a lease (T1)."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from taskharbor.core.filter import Filter
from taskharbor.core.job import LAST_MOMENT
from taskharbor.core.states import Shown
from taskharbor.driver import Extended, Report
from taskharbor.testing.kit.jobs import AFTER, KEEP, SETTLES, ack, at, cancel, child, fail, job, put_back, token_of
from taskharbor.testing.kit.scene import Cases, Scene

LATER = at(9 * 86400)
REQUEST = ("stop_requested_at", "stop_reason", "stop_fingerprint", "stop_keep_until")
# The end of a job that was asked to stop; a dead letter brings its own retention.
STOPPED: dict[str, dict[str, Any]] = {
    "cancel": {"state": "cancelled", "dlq_reason": None, "fingerprint": None, "keep_until": KEEP},
    "dead_letter": {"state": "dlq", "dlq_reason": "by hand", "fingerprint": "f0", "keep_until": LATER},
}
each_stop = pytest.mark.parametrize("stop", list(STOPPED))


class DeadLetterCases(Cases):
    """T3, Q4."""

    @pytest.mark.parametrize("state", ["ready", "scheduled", "put back"])
    async def test_Q4_a_job_in_line_is_dead_at_once(self, s: Scene, state: str) -> None:
        """Q4, I2: with the reason given; payload, history and key are kept, and it is not claimed again."""
        run_at = at(3600) if state == "scheduled" else None
        await s.add(job("a", payload=b"p", idempotency_key="k", run_at=run_at))
        if state == "put back":
            await s.end(put_back(await s.claim("a"), attempts=2, last_error="E: old", failed_at=at(0)))
        before = await s.get()
        s.tick(3)
        assert await s.dead_letter("a", keep_until=LATER) == ["dead"]
        record = await s.get()
        assert (record.state, record.dlq_reason, record.fingerprint) == ("dlq", "by hand", "f0")
        assert (record.completed_at, record.keep_until, record.lease) == (at(3), LATER, None)
        for name in ("payload", "attempts", "last_error", "failed_at", "failures", "version", "worker", *REQUEST):
            assert getattr(record, name) == getattr(before, name)
        assert await s.look.find_key("k", s.now) == "a"
        assert await s.reserve() == []
        assert [found.id for found in await s.look.query(Filter(states=(Shown.DLQ,)), s.now, 9)] == ["a"]
        [group] = await s.look.dead_groups(Filter(), s.now, 9)
        assert (group.fingerprint, group.count) == ("f0", 1)

    @each_stop
    async def test_T3_Q4_several_are_answered_one_by_one(self, s: Scene, stop: str) -> None:
        """T3, Q4: one call, one answer per id, in order; a job named twice has ended the second time."""
        await s.end(ack(await s.held("done")))
        await s.held("held")
        await s.add(job("ready"))
        ids = ("ready", "nobody", "held", "done", "ready")
        answers = await (s.withdraw(*ids) if stop == "cancel" else s.dead_letter(*ids, keep_until=LATER))
        ended = "cancelled" if stop == "cancel" else "dead"
        assert answers == [ended, "missing", "requested", "finished", "finished"]
        await s.expect("ready", completed_at=s.now, **STOPPED[stop])

    @each_stop
    async def test_T3_Q4_under_a_lease_only_the_request_is_recorded(self, s: Scene, stop: str) -> None:
        """T3, Q4: state and lease stay; the first request counts, and the next heartbeat returns it."""
        held = await s.held()
        s.tick(1)
        assert await s.request(stop, reason="first", keep_until=LATER) == "requested"
        record = await s.get()
        stored = (None, None, None) if stop == "cancel" else ("first", "f0", LATER)
        assert tuple(getattr(record, name) for name in REQUEST) == (at(1), *stored)
        assert (record.state, record.lease) == ("inflight", held.lease)
        s.tick(1)
        assert await s.without_effect(s.request(stop, reason="second")) == "requested"
        [answer] = await s.extend(Report("a", token_of(held)), lease=60)
        assert answer == Extended(at(62), stop == "cancel", stop == "dead_letter")

    @pytest.mark.parametrize(
        ("stop", "kind"), [("cancel", "put_back"), ("cancel", "cancel"), ("dead_letter", "put_back")]
    )
    async def test_T3_Q4_a_put_back_after_the_request_ends_the_job(self, s: Scene, stop: str, kind: str) -> None:
        """T1, T3, Q4, I2: with the fields of the transition; it is complete, and is never claimed again."""
        held = await s.held(idempotency_key="k")
        await s.request(stop, keep_until=LATER)
        s.tick(3)
        await s.end(SETTLES[kind](held, attempts=2, last_error="x", keep_until=at(999)))
        await s.expect(attempts=2, last_error="x", settled_kind=kind, completed_at=at(3), lease=None)
        await s.expect(**STOPPED[stop] | ({"keep_until": at(999)} if stop == "cancel" else {}))
        assert await s.look.find_key("k", s.now) == (None if stop == "cancel" else "a")
        s.tick(9999)
        assert await s.reserve() == []

    @pytest.mark.parametrize(("stop", "kind"), [*product(STOPPED, ["ack", "fail"]), ("dead_letter", "cancel")])
    async def test_T3_Q4_the_settle_of_the_holder_wins(self, s: Scene, stop: str, kind: str) -> None:
        """T3, Q4: completed work stays completed; a Fail has its own reason; a Cancel is one, whatever was asked."""
        held = await s.held()
        await s.request(stop, keep_until=LATER)
        given = {"result": b"done anyway"} if kind == "ack" else {}
        await s.end(SETTLES[kind](held, **given))
        reason = "max_attempts" if kind == "fail" else None
        await s.expect(state=AFTER[kind], dlq_reason=reason, result=given.get("result"), keep_until=KEEP)

    @each_stop
    async def test_T3_Q4_left_behind_after_the_request_the_job_ends(self, s: Scene, stop: str) -> None:
        """T1, T3, Q4: once the lease has lapsed, upkeep ends the job; reserve never returns it."""
        await s.held(lease=5)
        await s.request(stop, keep_until=LATER)
        s.tick(4.999999)
        assert await s.sweep() == 0
        s.tick(0.000001)
        assert await s.reserve() == []
        assert await s.sweep() == 1
        await s.expect(completed_at=at(5), lease=None, **STOPPED[stop])
        assert await s.sweep() == 0

    async def test_Q4_a_lapsed_job_dies_by_the_next_sweep(self, s: Scene) -> None:
        """Q4, T1: the old holder has lost it, but may not know."""
        await s.held(lease=5, expires_at=at(6))
        s.tick(7)
        assert await s.dead_letter("a") == ["requested"]
        await s.sweep()
        assert (await s.get()).dlq_reason == "by hand"

    @pytest.mark.parametrize("first", list(STOPPED))
    @pytest.mark.parametrize("end", ["put_back", "left behind"])
    async def test_T3_if_both_were_asked_for_cancelled_wins(self, s: Scene, first: str, end: str) -> None:
        """T3: in either order, and the heartbeat returns the cancel."""
        held = await s.held(lease=5)
        await s.request(first)
        s.tick(1)
        assert await s.request("dead_letter" if first == "cancel" else "cancel") == "requested"
        record = await s.get()
        assert tuple(getattr(record, name) for name in REQUEST[1:]) == (None, None, None)
        assert record.stop_requested_at == at(0 if first == "cancel" else 1)
        [answer] = await s.extend(Report("a", token_of(held)), lease=4)
        assert answer == Extended(at(5), True, False)
        await s.stop(held, end)
        await s.expect(state="cancelled", dlq_reason=None, keep_until=KEEP)

    async def test_Q4_a_dead_waiting_job_keeps_its_unmet_edges(self, s: Scene) -> None:
        """Q4, Q3: parents that end in the meantime count; when replayed, it waits only for the others."""
        await s.add(job("p"), job("q"), child("a", "p", "q"))
        assert await s.dead_letter("a") == ["dead"]
        await s.expect(state="dlq", unmet=2)
        await s.end(ack(await s.claim("p")))
        await s.expect(state="dlq", unmet=1)
        assert await s.replay("a") == "replayed"
        assert await s.states("a") == ["waiting"]
        await s.end(ack(await s.claim("q")))
        assert await s.order() == ["a"]

    async def test_Q4_dependants_are_affected_as_by_any_failure(self, s: Scene) -> None:
        """Q4, K2, K4: hold waits, cancel is cancelled with its dependants, collect runs."""
        flow = [child(policy, "a", policy=policy) for policy in ("hold", "cancel", "collect")]
        await s.add(job("a"), *flow, child("last", "cancel", policy="cancel"))
        assert await s.dead_letter("a", keep_until=LATER) == ["dead"]
        assert await s.states("hold", "cancel", "collect", "last") == ["waiting", "cancelled", "ready", "cancelled"]
        assert {(await s.get(id)).keep_until for id in ("cancel", "last")} == {LATER}
        assert await s.replay("a") == "replayed"
        await s.end(ack(await s.claim("a")))
        assert await s.states("hold", "collect") == ["ready", "ready"]

    @each_stop
    @pytest.mark.parametrize("end", ["put_back", "left behind"])
    async def test_K4_Q4_dependants_of_a_held_job_are_affected_at_its_end(self, s: Scene, stop: str, end: str) -> None:
        """K2, K4, T3, Q4: in the same step, and not before."""
        await s.add(job("a"), child("b", "a", policy="cancel"), child("c", "a", policy="collect"))
        held = await s.claim("a", lease=5)
        await s.request(stop, keep_until=LATER)
        assert await s.states("b", "c") == ["waiting", "waiting"]
        await s.stop(held, end)
        stopped = STOPPED[stop]
        assert await s.states("a", "b", "c") == [stopped["state"], "cancelled", "ready"]
        assert (await s.get("b")).keep_until == stopped["keep_until"]

    async def test_Q4_parent_and_child_in_one_call(self, s: Scene) -> None:
        """Q4: dependants are affected once all of these are dead."""
        await s.add(job("a"), child("b", "a", policy="collect"), child("c", "b", policy="collect"))
        assert await s.dead_letter("a", "b") == ["dead", "dead"]
        assert await s.states("a", "b", "c") == ["dlq", "dlq", "ready"]

    async def test_Q2_a_first_claim_after_a_replay_shows_its_lineage(self, s: Scene) -> None:
        """Q2, D2: a job that was dead before it ever ran comes with its history, as the store has it."""
        await s.add(job("a"))
        await s.dead_letter("a")
        await s.replay("a")
        [claimed] = await s.reserve()
        assert (claimed.version, claimed.replays, claimed.original_id) == (1, 1, "a")
        assert claimed == await s.get()

    async def test_Q4_a_dead_letter_by_hand_can_be_replayed_and_deleted(self, s: Scene) -> None:
        """Q2, Q4: like any other."""
        await s.add(job("a"), job("b"))
        await s.dead_letter("a", "b")
        assert await s.replay("a") == "replayed"
        assert await s.manage.delete(["b"]) == ["deleted"]
        assert await s.order() == ["a"]

    async def test_Q4_a_kept_job_is_kept(self, s: Scene) -> None:
        """Q4, M1: whatever the retention."""
        await s.add(job("a", kept=True), job("b", kept=True))
        held = await s.claim("b")
        await s.dead_letter("a", "b")
        await s.end(put_back(held))
        assert [(await s.get(id)).keep_until for id in "ab"] == [LAST_MOMENT] * 2

    async def test_Q4_a_replay_forgets_the_request(self, s: Scene) -> None:
        """Q2, Q4: of a job that died for another reason in the meantime."""
        held = await s.held()
        await s.dead_letter("a")
        await s.end(fail(held))
        await s.replay("a")
        assert [getattr(await s.get(), name) for name in REQUEST] == [None] * 4
        await s.end(cancel(await s.claim("a")))
        assert await s.states("a") == ["cancelled"]
