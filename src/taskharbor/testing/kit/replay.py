"""Q2, Q3: dead and cancelled jobs back in line."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor.core.evolve import Replay
from taskharbor.core.job import Failure, Progress
from taskharbor.driver import Report
from taskharbor.testing.kit.jobs import SETTLES, ack, at, cancel, child, fail, job, token_of
from taskharbor.testing.kit.scene import Cases, Scene

FAILURE = Failure(4, "ValueError", "no", "…", at(1))
dead = pytest.mark.parametrize("kind", ["fail", "cancel"])


async def end_without_success(s: Scene, kind: str = "fail", **options: Any) -> None:
    """A dead or cancelled job, with a value in every field that a replay must handle."""
    held = await s.held(**options)
    await s.extend(Report("a", token_of(held), at(0), Progress(0.5)))
    facts = {"attempts": 4, "crashes": 2, "unknown_put_backs": 3, "last_error": "x", "failures": (FAILURE,)}
    await s.end(SETTLES[kind](held, failed_at=at(1), **facts))


class ReplayCases(Cases):
    """Q2, Q3."""

    @dead
    async def test_Q2_counters_go_back_to_zero_and_the_version_goes_on(self, s: Scene, kind: str) -> None:
        """Q2: the version continues after a replay."""
        await end_without_success(s, kind)
        s.tick(10)
        assert await s.replay("a") == "replayed"
        await s.expect(attempts=0, crashes=0, unknown_put_backs=0, state="ready", version=1, due_at=s.now, run_at=None)
        assert (await s.claim("a")).version == 2

    @dead
    async def test_Q2_fields_of_the_end_are_cleared(self, s: Scene, kind: str) -> None:
        """Q2: no trace of completion, a stop request, progress or an old deadline keeps it from running."""
        held = await s.held(expires_at=at(60))
        await s.extend(Report("a", token_of(held), at(0), Progress(0.5)))
        await s.withdraw("a")
        await s.end(SETTLES[kind](held))
        s.tick(3600)
        await s.replay("a")
        record = await s.get()
        assert (record.completed_at, record.keep_until, record.dlq_reason, record.result) == (None,) * 4
        assert (record.stop_requested_at, record.stop_reason, record.progress, record.lease) == (None,) * 4
        assert (record.stop_fingerprint, record.stop_keep_until) == (None, None)
        assert record.expires_at is None
        await s.sweep()
        assert await s.order() == ["a"]

    async def test_Q2_history_stays(self, s: Scene) -> None:
        """Q1, Q2: earlier failures can still be read."""
        await end_without_success(s)
        await s.replay("a")
        await s.expect(failures=(FAILURE,), last_error="x", failed_at=at(1))

    async def test_R1_a_replay_leaves_the_trace_of_the_last_run(self, s: Scene) -> None:
        """R1, Q2: the last worker with start and end, until the next claim."""
        held = await s.held()
        s.tick(2)
        await s.end(fail(held, started_at=at(1)))
        before = await s.get()
        s.tick(60)
        await s.replay("a")
        after = await s.get()
        for name in ("worker", "claimed_at", "started_at", "settled_token", "settled_kind", "settled_at", "version"):
            assert getattr(after, name) == getattr(before, name)
        assert (after.worker, after.claimed_at, after.started_at, after.settled_at) == ("w", at(0), at(1), at(2))

    async def test_Q2_lineage_is_kept(self, s: Scene) -> None:
        """Q2: the original id and the number of replays."""
        await end_without_success(s)
        for count in (1, 2, 3):
            await s.replay("a")
            await s.expect(original_id="a", replays=count)
            await s.end(fail(await s.claim("a")))

    async def test_Q2_the_payload_may_be_edited(self, s: Scene) -> None:
        """Q2: None keeps it, b"" is a payload."""
        await end_without_success(s, payload=b"first")
        await s.replay("a")
        assert (await s.get()).payload == b"first"
        for edited in (b"second", b""):
            await s.end(fail(await s.claim("a")))
            await s.replay("a", payload=edited)
            assert (await s.claim("a")).payload == edited
            await s.end(fail(await s.get()))
            await s.replay("a")

    async def test_Q2_a_replay_may_be_scheduled(self, s: Scene) -> None:
        """Q2, N1: and does not run early."""
        await end_without_success(s)
        await s.replay("a", run_at=at(60))
        await s.expect(run_at=at(60), due_at=at(60))
        assert await s.reserve() == []
        s.tick(60 + s.harness.due_resolution.total_seconds())
        assert await s.order() == ["a"]

    async def test_Q2_a_living_key_stays_with_its_job(self, s: Scene) -> None:
        """Q2, I2: the key survived the DLQ, and survives the replay."""
        await end_without_success(s, idempotency_key="k", key_expires_at=at(3600))
        await s.replay("a")
        await s.expect(idempotency_key="k", key_expires_at=at(3600))
        assert await s.look.find_key("k", s.now) == "a"

    async def test_Q2_a_key_past_its_ttl_lives_again(self, s: Scene) -> None:
        """Q2, I2: a replayed job is not enqueued a second time."""
        await end_without_success(s, idempotency_key="k", key_expires_at=at(60))
        s.tick(3600)
        await s.prune()
        assert await s.look.find_key("k", s.now) is None
        assert await s.replay("a") == "replayed"
        await s.expect(idempotency_key="k", key_expires_at=at(60))
        assert await s.look.find_key("k", s.now) == "a"
        assert (await s.add(job("b", idempotency_key="k")))[0].id == "a"
        await s.end(ack(await s.claim("a")))
        assert await s.look.find_key("k", s.now) is None

    async def test_Q2_a_key_meanwhile_taken_is_dropped_and_the_answer_says_so(self, s: Scene) -> None:
        """Q2: the new owner keeps it."""
        await end_without_success(s, idempotency_key="k", key_expires_at=at(60))
        s.tick(60)
        await s.add(job("b", idempotency_key="k"))
        assert await s.replay("a") == "replayed_without_key"
        await s.expect(state="ready", idempotency_key=None, key_expires_at=None)
        assert await s.look.find_key("k", s.now) == "b"

    @pytest.mark.parametrize("owner", ["job", "workflow"])
    async def test_Q2_I2_an_expired_key_stays_with_an_owner_that_has_not_ended(self, s: Scene, owner: str) -> None:
        """Q2, I2: the replay happens, without a key."""
        await end_without_success(s, idempotency_key="k", key_expires_at=at(60))
        s.tick(60)
        if owner == "job":
            await s.add(job("b", idempotency_key="k", key_expires_at=at(61)))
        else:
            await s.add(job("b", workflow_id="w"), key="k", key_expires_at=at(61), workflow_id="w")
        s.tick(60)
        assert await s.replay("a") == "replayed_without_key"
        assert await s.look.find_key("k", s.now) == ("b" if owner == "job" else "w")

    async def test_Q2_of_two_that_had_one_key_the_first_replayed_has_it(self, s: Scene) -> None:
        """Q2: in one call as in two; the second answer says so."""
        await end_without_success(s, idempotency_key="k", key_expires_at=at(60))
        s.tick(60)
        await s.end(fail(await s.held("b", idempotency_key="k", key_expires_at=at(61))))
        s.tick(60)
        replays = [Replay(id=id) for id in "ab"]
        assert await s.manage.replay(replays, s.now) == ["replayed", "replayed_without_key"]
        assert [(await s.get(id)).idempotency_key for id in "ab"] == ["k", None]
        assert await s.look.find_key("k", s.now) == "a"

    async def test_Q2_a_new_key_can_be_given(self, s: Scene) -> None:
        """Q2: and is taken from then on; the old one is free."""
        await end_without_success(s, idempotency_key="old")
        assert await s.replay("a", idempotency_key="new", key_expires_at=at(90)) == "replayed"
        await s.expect(idempotency_key="new", key_expires_at=at(90))
        assert [await s.look.find_key(key, s.now) for key in ("new", "old")] == ["a", None]
        assert (await s.add(job("b", idempotency_key="new")))[0].id == "a"

    async def test_Q2_a_new_key_that_is_taken_is_dropped(self, s: Scene) -> None:
        """Q2: the replay happens, without a key."""
        await end_without_success(s)
        await s.add(job("b", idempotency_key="k"))
        assert await s.replay("a", idempotency_key="k") == "replayed_without_key"
        assert (await s.get()).idempotency_key is None
        assert await s.look.find_key("k", s.now) == "b"

    async def test_Q2_a_new_key_leaves_the_old_one_to_its_new_owner(self, s: Scene) -> None:
        """Q2, I2: a key that expired and was taken since is not freed by its former owner."""
        await end_without_success(s, idempotency_key="k", key_expires_at=at(60))
        s.tick(60)
        await s.add(job("b", idempotency_key="k"))
        assert await s.replay("a", idempotency_key="new") == "replayed"
        assert [await s.look.find_key(key, s.now) for key in ("new", "k")] == ["a", "b"]

    async def test_Q2_the_same_key_can_be_renewed(self, s: Scene) -> None:
        """Q2: a job does not conflict with its own key."""
        await end_without_success(s, idempotency_key="k", key_expires_at=at(60))
        await s.replay("a", idempotency_key="k", key_expires_at=at(600))
        assert (await s.get()).key_expires_at == at(600)
        s.tick(599)
        assert await s.look.find_key("k", s.now) == "a"

    async def test_Q2_a_cancelled_job_gets_a_key_only_if_given(self, s: Scene) -> None:
        """Q2, T3: its own was freed on entering cancelled."""
        await s.end(cancel(await s.held(idempotency_key="k")))
        await s.replay("a")
        assert (await s.get()).idempotency_key is None
        assert await s.look.find_key("k", s.now) is None

    async def test_Q2_several_replays_are_answered_one_by_one(self, s: Scene) -> None:
        """Q2: each is judged alone."""
        await end_without_success(s)
        await s.end(ack(await s.held("done")))
        replays = [Replay(id=id) for id in ("done", "a", "nobody", "a")]
        assert await s.manage.replay(replays, s.now) == ["not_dead", "replayed", "missing", "not_dead"]

    async def test_Q2_a_replayed_job_is_in_line_by_its_new_time(self, s: Scene) -> None:
        """Q2, D11: due since the replay, not since its first enqueue."""
        await end_without_success(s)
        s.tick(5)
        await s.add(job("b"))
        s.tick(5)
        await s.replay("a")
        assert await s.order() == ["b", "a"]

    async def test_Q2_a_replayed_job_is_not_pruned(self, s: Scene) -> None:
        """Q2, X8: the retention of its first end no longer applies."""
        await s.end(fail(await s.held(), keep_until=at(10)))
        await s.replay("a")
        s.tick(11)
        assert await s.prune() == 0
        await s.end(ack(await s.claim("a"), keep_until=at(100)))
        s.tick(11)
        assert await s.prune() == 0
        s.tick(100)
        assert await s.prune() == 1

    @pytest.mark.parametrize("order", ["abz", "zba"])
    async def test_Q3_a_collector_waits_for_parents_that_are_replayed_with_it(self, s: Scene, order: str) -> None:
        """Q3, K4: of a cancelled workflow that is replayed, the finalizer gets results and not the cancellation."""
        await s.add(job("a"), job("b"), child("z", "a", "b", policy="collect"))
        assert await s.withdraw(*order) == ["cancelled"] * 3
        assert await s.manage.replay([Replay(id=id) for id in order], s.now) == ["replayed"] * 3
        await s.expect("z", state="waiting", unmet=2)
        await s.end(*(ack(held, result=b"1") for held in await s.reserve(9)))
        assert await s.order() == ["z"]
        assert [(parent.satisfied, parent.result) for parent in await s.parents("z")] == [(True, b"1")] * 2

    @dead
    async def test_Q3_a_collector_waits_for_a_parent_that_runs_again(self, s: Scene, kind: str) -> None:
        """Q3, K2: one that had run, and is replayed after its parent was; nothing else is waited for again."""
        await s.add(job("a"), job("b"), job("c"), child("z", "a", "b", "c", policy="collect"))
        await s.end(fail(await s.claim("a")), fail(await s.claim("b")), ack(await s.claim("c")))
        await s.end(SETTLES[kind](await s.claim("z")))
        before = await s.get("z")
        assert await s.replay("a") == "replayed"
        assert await s.get("z") == before
        assert await s.replay("z") == "replayed"
        await s.expect("z", state="waiting", unmet=1)
        assert [parent.satisfied for parent in await s.parents("z")] == [False, True, True]
        await s.end(ack(await s.claim("a")))
        assert await s.order() == ["z"]

    async def test_Q3_a_collector_alone_runs_with_the_failures_again(self, s: Scene) -> None:
        """Q3, K4: parents that stay dead are not waited for."""
        await s.add(job("a"), child("z", "a", policy="collect"))
        await s.withdraw("z", "a")
        assert await s.replay("z") == "replayed"
        assert await s.order() == ["z"]
