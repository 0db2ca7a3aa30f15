"""I: one creation per idempotency key and lifetime."""

from __future__ import annotations

import pytest

from taskharbor.core.job import LAST_MOMENT
from taskharbor.driver import Enqueued
from taskharbor.testing.kit.jobs import SETTLES, MakeTransition, ack, at, child, fail, group, job, put_back
from taskharbor.testing.kit.scene import Cases, Scene


async def end_cancelled(s: Scene, how: str) -> None:
    """Bring job `a`, which has the key `k`, from ready to cancelled; until then the key is its own."""
    held = await s.claim("a", lease=5) if how in ("put_back", "cancel", "left behind") else None
    if how == "expired":
        s.tick(600)
        assert await s.sweep() == 1
    else:
        await s.withdraw("a")
    if held is not None:
        assert await s.look.find_key("k", s.now) == "a"
        await s.stop(held, how)


class KeyCases(Cases):
    """I1-I3."""

    async def test_I1_a_known_key_returns_the_existing_id_and_stores_nothing(self, s: Scene) -> None:
        """I1: created is False, the whole store is as before."""
        await s.add(job("a", idempotency_key="k"))
        assert await s.without_effect(s.add(job("b", idempotency_key="k"))) == (Enqueued("a", False, True),)

    @pytest.mark.parametrize("groups", [1, 5])
    async def test_I1_duplicates_inside_one_call_are_one_job(self, s: Scene, groups: int) -> None:
        """I1: a batch is checked against itself, and groups that share a commit see each other's keys."""
        jobs = [job(f"j{n}", idempotency_key="k") for n in range(5)]
        results = await s.enqueue(*([group(*jobs)] if groups == 1 else map(group, jobs)))
        assert [each for result in results for each in result] == [Enqueued("j0", True)] + [Enqueued("j0", False)] * 4
        assert [found.id for found in await s.all()] == ["j0"]

    async def test_I1_other_keys_and_no_keys_do_not_collide(self, s: Scene) -> None:
        """I1: similar keys are different, and a job without a key matches none."""
        keys = ["k", "K", "k ", None, None, "ķ"]
        answers = await s.add(*(job(f"j{n}", idempotency_key=key) for n, key in enumerate(keys)))
        assert all(answer.created for answer in answers)

    async def test_I2_the_scope_of_a_key_is_the_whole_harbor(self, s: Scene) -> None:
        """I2: another queue or task does not make it another key."""
        await s.add(job("a", idempotency_key="k"))
        [answer] = await s.add(job("b", idempotency_key="k", queue="other", type="another"))
        assert (answer.id, answer.created) == ("a", False)

    @pytest.mark.parametrize("kind", ["ack", "fail", "put_back"])
    async def test_I2_the_key_survives_ack_dlq_and_retry(self, s: Scene, kind: str) -> None:
        """I2: a finished job still holds its key."""
        held = await s.held(idempotency_key="k", key_expires_at=at(3600))
        await s.end(SETTLES[kind](held))
        s.tick(3599.999999)
        assert await s.add(job("b", idempotency_key="k")) == (Enqueued("a", False, True),)
        assert await s.look.find_key("k", s.now) == "a"

    @pytest.mark.parametrize("kind", ["ack", "fail"])
    async def test_I2_the_key_of_an_ended_job_is_alive_before_its_expiry_and_free_at_it(
        self, s: Scene, kind: str
    ) -> None:
        """I2: the boundary is exact."""
        await s.end(SETTLES[kind](await s.held(idempotency_key="k", key_expires_at=at(60))))
        s.tick(59.999999)
        assert await s.look.find_key("k", s.now) == "a"
        assert (await s.add(job("b", idempotency_key="k")))[0].created is False
        s.tick(0.000001)
        assert await s.look.find_key("k", s.now) is None
        assert await s.add(job("b", idempotency_key="k", key_expires_at=at(120))) == (Enqueued("b", True),)
        assert await s.look.find_key("k", s.now) == "b"
        assert (await s.add(job("c", idempotency_key="k")))[0] == Enqueued("b", False, True)

    @pytest.mark.parametrize("state", ["scheduled", "ready", "inflight", "lapsed", "put back", "replayed"])
    async def test_I2_a_key_lives_until_its_job_has_ended(self, s: Scene, state: str) -> None:
        """I2: delayed, backlogged or retried for longer than the ttl, a job is not enqueued a second time."""
        run_at = at(9999) if state == "scheduled" else None
        await s.add(job("a", idempotency_key="k", key_expires_at=at(60), run_at=run_at))
        if state in ("inflight", "lapsed", "put back", "replayed"):
            held = await s.claim("a", lease=10 if state == "lapsed" else 9999)
            ends: dict[str, MakeTransition] = {"put back": put_back, "replayed": fail}
            await s.end(*([ends[state](held)] if state in ends else []))
        s.tick(3600)
        if state == "replayed":
            assert await s.replay("a") == "replayed"
        await s.prune()
        assert await s.look.find_key("k", s.now) == "a"
        assert await s.without_effect(s.add(job("b", idempotency_key="k"))) == (Enqueued("a", False, True),)

    @pytest.mark.parametrize("kind", ["ack", "fail"])
    async def test_I2_with_the_end_of_its_job_a_key_past_its_ttl_is_free(self, s: Scene, kind: str) -> None:
        """I2: in the same step as the end, not before."""
        held = await s.held(idempotency_key="k", key_expires_at=at(60), lease=9999)
        s.tick(3600)
        assert (await s.add(job("b", idempotency_key="k")))[0].id == "a"
        await s.end(SETTLES[kind](held))
        assert await s.look.find_key("k", s.now) is None
        assert await s.add(job("b", idempotency_key="k")) == (Enqueued("b", True),)

    async def test_I2_the_key_of_a_flow_lives_until_its_last_job_has_ended(self, s: Scene) -> None:
        """I2, D1: whatever its ttl; a second flow of it comes only then."""
        flow = [job("p", workflow_id="w"), child("c", "p", workflow_id="w")]
        await s.add(*flow, key="k", key_expires_at=at(60), workflow_id="w")
        for id in "pc":
            s.tick(3600)
            await s.prune()
            assert await s.look.find_key("k", s.now) == "w"
            assert (await s.add(job("x", workflow_id="v"), key="k", workflow_id="v"))[0].id == "w"
            assert (await s.add(job("y", idempotency_key="k")))[0].id == "w"
            await s.end(ack(await s.claim(id)))
        assert await s.look.find_key("k", s.now) is None
        assert (await s.add(job("x", workflow_id="v"), key="k", workflow_id="v"))[0] == Enqueued("x", True)
        assert await s.look.find_key("k", s.now) == "v"

    async def test_I2_a_new_job_of_a_settle_finds_the_key_of_an_unfinished_one(self, s: Scene) -> None:
        """I2, D9: past its ttl, but not ended: skipped."""
        await s.add(job("old", idempotency_key="k", key_expires_at=at(1)))
        s.tick(60)
        await s.end(ack(await s.held(), new_jobs=(job("new", idempotency_key="k"),)))
        assert await s.states("new") == [None]
        assert await s.look.find_key("k", s.now) == "old"

    async def test_I2_a_key_without_end_lives_as_long_as_the_record(self, s: Scene) -> None:
        """I2: `None` holds until the record is deleted."""
        await s.end(ack(await s.held(idempotency_key="k")))
        s.tick(10 * 365 * 86400)
        assert await s.look.find_key("k", s.now) == "a"
        assert await s.manage.delete(["a"]) == ["deleted"]
        assert await s.look.find_key("k", s.now) is None
        assert (await s.add(job("b", idempotency_key="k")))[0] == Enqueued("b", True)

    @pytest.mark.parametrize("state", ["unfinished", "done"])
    async def test_I2_a_key_without_end_still_counts_after_years(self, s: Scene, state: str) -> None:
        """I2: not only for look-ups: no second job is created either."""
        held = await s.held(idempotency_key="k", lease=5)
        await s.end(*([ack(held)] if state == "done" else []))
        s.tick(10 * 365 * 86400)
        assert await s.without_effect(s.add(job("b", idempotency_key="k"))) == (Enqueued("a", False, True),)

    @pytest.mark.parametrize("how", ["ready", "put_back", "cancel", "left behind", "expired"])
    async def test_I2_entering_cancelled_frees_the_key(self, s: Scene, how: str) -> None:
        """I2, T3: however a job gets there."""
        await s.add(job("a", idempotency_key="k", key_expires_at=at(86400), expires_at=at(600)))
        await end_cancelled(s, how)
        await s.expect(state="cancelled", idempotency_key=None, key_expires_at=None)
        assert await s.look.find_key("k", s.now) is None
        assert (await s.add(job("b", idempotency_key="k")))[0] == Enqueued("b", True)

    async def test_I2_a_request_to_cancel_frees_nothing_yet(self, s: Scene) -> None:
        """I2, T3: the job may still be acked, so its key still holds."""
        held = await s.held(idempotency_key="k")
        await s.withdraw("a")
        assert (await s.add(job("b", idempotency_key="k")))[0].id == "a"
        await s.end(ack(held))
        assert await s.look.find_key("k", s.now) == "a"

    async def test_I2_an_old_owner_cannot_free_the_key_of_a_new_one(self, s: Scene) -> None:
        """I2: cancelling or deleting a job whose key ran out leaves the key to its new owner."""
        for number, kind in enumerate(("ack", "fail", "replayed")):
            key = f"k{number}"
            old = job(f"old{number}", idempotency_key=key, key_expires_at=s.now)
            await s.add(old)
            await s.end(SETTLES["ack" if kind == "ack" else "fail"](await s.claim(old.id)))
            [answer] = await s.add(job(f"new{number}", idempotency_key=key))
            assert answer.created
            if kind == "replayed":
                assert await s.replay(old.id) == "replayed_without_key"
                await s.withdraw(old.id)
            assert await s.manage.delete([old.id]) == ["deleted"]
            assert await s.look.find_key(key, s.now) == f"new{number}"

    @pytest.mark.parametrize("how", ["ready", "put_back", "cancel", "left behind"])
    async def test_T3_a_kept_job_keeps_its_key_and_its_record_when_cancelled(self, s: Scene, how: str) -> None:
        """T3, I2, M1: a TaskManager's task can be read by its key until it is deleted."""
        await s.add(job("a", idempotency_key="k", kept=True))
        await end_cancelled(s, how)
        await s.expect(state="cancelled", idempotency_key="k", keep_until=LAST_MOMENT)
        s.tick(100 * 365 * 86400)
        assert await s.prune() == 0
        assert await s.look.find_key("k", s.now) == "a"
        assert (await s.add(job("b", idempotency_key="k")))[0].id == "a"
        assert await s.replay("a") == "replayed"
        assert (await s.get()).idempotency_key == "k"
        await s.withdraw("a")
        assert await s.manage.delete(["a"]) == ["deleted"]
        assert await s.look.find_key("k", s.now) is None

    async def test_I3_look_up_by_key_finds_the_job_and_its_result(self, s: Scene) -> None:
        """I3: as long as the key is in force."""
        await s.end(ack(await s.held(idempotency_key="k", key_expires_at=at(60)), result=b"42"))
        found = await s.look.find_key("k", s.now)
        assert found == "a"
        assert (await s.get(found)).result == b"42"
        assert await s.look.find_key("nobody's", s.now) is None

    @pytest.mark.parametrize("other", [{"payload": b"{ }"}, {"type": "other"}], ids=["payload", "task"])
    async def test_I3_the_same_key_for_something_else_is_flagged(self, s: Scene, other: dict[str, object]) -> None:
        """I3: same_payload is False when task or payload differ, in a batch too."""
        await s.add(job("a", idempotency_key="k"))
        answers = await s.add(job("b", idempotency_key="k", **other), job("c", idempotency_key="k", priority=9))
        assert answers == (Enqueued("a", False, False), Enqueued("a", False, True))
        answers = await s.add(job("d", idempotency_key="n"), job("e", idempotency_key="n", **other))
        assert answers == (Enqueued("d", True, True), Enqueued("d", False, False))

    async def test_I4_a_key_stops_a_second_job_but_not_a_second_run(self, s: Scene) -> None:
        """I4: after a crash the one job of the key runs again."""
        await s.held(idempotency_key="k", lease=30)
        s.tick(30)
        [again] = await s.add(job("b", idempotency_key="k"))
        assert (again.id, again.created) == ("a", False)
        assert (await s.claim("a")).version == 2

    async def test_I2_the_key_of_a_workflow_can_be_freed(self, s: Scene) -> None:
        """I2: its jobs and other keys stay, and the next flow gets the key."""
        both = [job(id, workflow_id="w") for id in "ab"]
        await s.add(*both, key="k", key_expires_at=at(60), workflow_id="w")
        await s.add(job("c", idempotency_key="other"), job("d", workflow_id="x"), workflow_id="x")
        assert [await s.flows.free_workflow_key(id) for id in ("w", "w", "x", "nobody")] == [True, False, False, False]
        assert [await s.look.find_key(key, s.now) for key in ("k", "other")] == [None, "c"]
        assert await s.states("a", "b") == ["ready", "ready"]
        assert (await s.add(job("e", workflow_id="v"), key="k", workflow_id="v"))[0].created
        assert await s.look.find_key("k", s.now) == "v"
