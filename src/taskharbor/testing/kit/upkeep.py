"""N1 and X8: expired jobs are cancelled, records past their retention are deleted, both in small batches."""

from __future__ import annotations

import pytest

from taskharbor.driver import PRUNE_AGAIN
from taskharbor.testing.kit.jobs import AFTER, SETTLES, ack, at, child, job
from taskharbor.testing.kit.scene import Cases, Scene


class UpkeepCases(Cases):
    """N1, X8."""

    async def test_N1_an_expired_job_ends_cancelled(self, s: Scene) -> None:
        """N1: exactly at its expires_at, with completed_at and keep_until."""
        await s.add(job("a", expires_at=at(10)))
        s.tick(9.999999)
        assert await s.sweep() == 0
        s.tick(0.000001)
        assert await s.upkeep.sweep(s.now, at(500), 10) == 1
        await s.expect(state="cancelled", completed_at=s.now, keep_until=at(500))

    async def test_N1_a_scheduled_or_waiting_job_expires_too(self, s: Scene) -> None:
        """N1: not only jobs in line."""
        await s.add(job("a", run_at=at(60), expires_at=at(10)), job("p", queue="x"), child("c", "p", expires_at=at(10)))
        s.tick(10)
        assert await s.sweep() == 2
        assert await s.states("a", "c", "p") == ["cancelled", "cancelled", "ready"]

    async def test_N1_a_running_job_may_finish_after_its_expiry(self, s: Scene) -> None:
        """N1: `expires` is about starting; a valid lease is left alone."""
        held = await s.held(lease=60, expires_at=at(10))
        s.tick(20)
        assert await s.sweep() == 0
        await s.end(ack(held))

    async def test_N1_a_lapsed_job_that_expired_ends_cancelled(self, s: Scene) -> None:
        """N1, T1: it may not be taken over."""
        await s.held(lease=15, expires_at=at(10))
        s.tick(14.999999)
        assert await s.sweep() == 0
        s.tick(0.000001)
        assert await s.reserve() == []
        await s.sweep()
        await s.expect(state="cancelled", lease=None)

    async def test_N1_a_retry_after_the_expiry_is_not_run(self, s: Scene) -> None:
        """N1: it ends cancelled like any expired job."""
        await s.end(SETTLES["put_back"](await s.held(expires_at=at(10)), run_at=at(20)))
        s.tick(20)
        assert await s.reserve() == []
        assert await s.sweep() == 1

    async def test_N1_jobs_without_expiry_are_never_swept(self, s: Scene) -> None:
        """N1: whatever their state."""
        await s.add(job("a"), job("b", run_at=at(60)))
        await s.held("c", lease=5)
        await s.end(ack(await s.held("d", expires_at=at(10))))
        s.tick(10 * 365 * 86400)
        assert await s.without_effect(s.sweep()) == 0

    @pytest.mark.parametrize("limit", [0, 1, 3, 100])
    async def test_N1_a_sweep_is_limited(self, s: Scene, limit: int) -> None:
        """N1: at most `limit` at a time, until nothing is left."""
        await s.add(*(job(f"j{n}", expires_at=at(n)) for n in range(7)))
        s.tick(100)
        assert await s.sweep(limit) == min(limit, 7)
        assert sum(record.state == "cancelled" for record in await s.all()) == min(limit, 7)
        for _ in range(4):
            await s.sweep(2)
        assert {record.state for record in await s.all()} == {"cancelled"}

    async def test_N1_a_sweep_with_an_early_clock_forgets_nothing(self, s: Scene) -> None:
        """N1, X4: a `now` that goes back has no lasting effect."""
        await s.add(job("a", expires_at=at(10)), job("b", expires_at=at(10)))
        await s.claim("a", lease=20)
        s.tick(15)
        assert await s.sweep() == 1
        s.tick(-10)
        assert await s.sweep() == 0
        s.tick(20)
        assert await s.sweep() == 1
        assert await s.states("a", "b") == ["cancelled", "cancelled"]

    @pytest.mark.parametrize("kind", ["ack", "fail", "cancel"])
    async def test_X8_a_record_is_kept_until_its_time_and_then_forgotten(self, s: Scene, kind: str) -> None:
        """X8: keep_until as given by the settle; a retention of 0 ends at once."""
        await s.end(SETTLES[kind](await s.held("a"), keep_until=at(60)))
        await s.end(SETTLES[kind](await s.held("b"), keep_until=s.now))
        assert await s.prune() == 1
        assert await s.states("a", "b") == [AFTER[kind], None]
        s.tick(59.999999)
        assert await s.prune() == 0
        s.tick(0.000001)
        assert await s.prune() == 1
        assert await s.all() == []

    async def test_X8_live_jobs_are_never_pruned(self, s: Scene) -> None:
        """X8: retention begins with the end."""
        await s.add(job("a"), job("b", run_at=at(60)), job("p", queue="x"), child("c", "p"))
        await s.held("d", lease=5)
        s.tick(10 * 365 * 86400)
        assert await s.without_effect(s.prune()) == 0

    async def test_X8_pruning_frees_the_key(self, s: Scene) -> None:
        """X8, I2: a key without expiry is deleted with its record."""
        await s.end(ack(await s.held(idempotency_key="k"), keep_until=s.now))
        assert await s.prune() == 1
        assert await s.look.find_key("k", s.now) is None
        assert (await s.add(job("b", idempotency_key="k")))[0].created

    async def test_X8_pruning_an_old_owner_leaves_the_key_of_a_new_one(self, s: Scene) -> None:
        """X8, I2: the key that was taken over stays."""
        await s.end(ack(await s.held(idempotency_key="k", key_expires_at=at(10)), keep_until=at(20)))
        s.tick(15)
        await s.add(job("b", idempotency_key="k", key_expires_at=at(100)))
        s.tick(10)
        assert await s.prune() == 1
        assert await s.look.find_key("k", s.now) == "b"

    async def test_X8_members_of_an_unfinished_workflow_are_kept(self, s: Scene) -> None:
        """X8: until its last job has ended, with or without edges; they are checked again later."""
        await s.add(*(job(id, workflow_id="w") for id in "ab"), job("c"), workflow_id="w")
        for id in "ac":
            await s.end(ack(await s.claim(id), keep_until=s.now))
        assert await s.prune() == 1
        assert await s.states("a", "b", "c") == ["done", "ready", None]
        assert (await s.get("a")).keep_until == s.now + PRUNE_AGAIN
        s.tick(PRUNE_AGAIN.total_seconds())
        assert await s.prune() == 0
        await s.end(ack(await s.claim("b"), keep_until=s.now))
        s.tick(PRUNE_AGAIN.total_seconds())
        assert await s.prune() == 2

    async def test_X8_members_of_a_workflow_are_kept_as_long_as_its_last(self, s: Scene) -> None:
        """X8: its result is a whole, though it is stored in many records."""
        await s.add(*(job(id, workflow_id="w") for id in "abc"), workflow_id="w")
        keeps = {"a": s.now, "b": at(60), "c": at(30)}
        await s.end(*(ack(held, keep_until=keeps[held.id]) for held in await s.reserve(3)))
        assert await s.prune() == 0
        assert [(await s.get(id)).keep_until for id in "abc"] == [at(60)] * 3
        s.tick(60)
        assert await s.prune() == 3

    async def test_X8_a_cancelled_chain_is_pruned_at_once(self, s: Scene) -> None:
        """X8: within a workflow, records may be deleted in any order."""
        links = [child(f"n{number}", f"n{number - 1}", workflow_id="w") for number in range(1, 9)]
        await s.add(job("n0", workflow_id="w"), *links, workflow_id="w")
        await s.manage.cancel([f"n{number}" for number in range(9)], s.now, s.now)
        assert await s.prune(4) == 4
        # No job is left without its parents.
        assert await s.states("n4", "n5") == ["cancelled", None]
        assert [await s.prune(4), await s.prune(4)] == [4, 1]

    async def test_I3_the_records_of_a_workflow_stay_while_its_key_lives(self, s: Scene) -> None:
        """I3, X8: all of them, past their retention."""
        both = [job(id, workflow_id="w") for id in "ab"]
        await s.add(*both, key="k", key_expires_at=at(60), workflow_id="w")
        await s.end(*(ack(held, keep_until=s.now) for held in await s.reserve(2)))
        s.tick(59)
        assert await s.prune() == 0
        assert await s.look.find_key("k", s.now) == "w"
        s.tick(1)
        assert await s.prune() == 2
        assert await s.look.find_key("k", s.now) is None

    async def test_X8_workflows_are_pruned_one_by_one(self, s: Scene) -> None:
        """X8: one that is kept does not block others, whatever the reason."""
        for id in ("running", "keyed", "over"):
            key = {"key": "k", "key_expires_at": at(60)} if id == "keyed" else {}
            await s.add(job(f"{id}-1", workflow_id=id), job(f"{id}-2", workflow_id=id), workflow_id=id, **key)
        ended = await s.reserve(9, ids=["running-1", "keyed-1", "keyed-2", "over-1", "over-2"])
        await s.end(*(ack(held, keep_until=s.now) for held in ended))
        assert [await s.prune(1), await s.prune(1), await s.prune(1)] == [1, 1, 0]
        assert sorted(record.workflow_id or "" for record in await s.all()) == ["keyed"] * 2 + ["running"] * 2

    async def test_X8_the_key_of_a_workflow_is_freed_with_its_last_record(self, s: Scene) -> None:
        """X8, I2: a flow's key without expiry is kept as long as any of its jobs."""
        await s.add(job("a", workflow_id="w"), job("b", workflow_id="w"), key="k", workflow_id="w")
        await s.end(ack(await s.claim("a"), keep_until=s.now), ack(await s.claim("b"), keep_until=at(60)))
        assert await s.manage.delete(["a"]) == ["deleted"]
        assert await s.look.find_key("k", s.now) == "w"
        s.tick(60)
        assert await s.prune() == 1
        assert await s.look.find_key("k", s.now) is None

    async def test_X8_a_prune_is_limited(self, s: Scene) -> None:
        """X8: at most `limit` at a time; kept ones do not block others."""
        await s.add(job("p", workflow_id="w"), job("open", workflow_id="w", queue="x"), workflow_id="w")
        await s.add(*(job(f"j{n}") for n in range(9)))
        await s.end(*(ack(held, keep_until=s.now) for held in await s.reserve(10)))
        bites = [await s.prune(4) for _ in range(4)]
        assert bites == [4, 4, 1, 0]
        assert sorted(record.id for record in await s.all()) == ["open", "p"]

    async def test_X8_a_pruned_job_is_gone_for_every_verb(self, s: Scene) -> None:
        """X8: its id may be used again."""
        held = await s.held()
        await s.end(ack(held, keep_until=s.now))
        await s.prune()
        assert await s.look.get(["a"]) == [None]
        assert await s.withdraw("a") == ["missing"]
        assert await s.replay("a") == "missing"
        assert await s.settle(ack(held)) == ["JobNotInflight"]
        assert (await s.add(job("a")))[0].created
        assert (await s.get()).version == 0

    async def test_X8_delete_answers_one_by_one(self, s: Scene) -> None:
        """X8, Q2: ended jobs that no dependant needs, and only those."""
        await s.end(ack(await s.held("done")))
        await s.add(job("p"), child("c", "p"), job("ready"))
        await s.end(ack(await s.claim("p")))
        answers = await s.manage.delete(["ready", "done", "nobody", "p", "done"])
        assert answers == ["live", "deleted", "missing", "needed", "missing"]
        assert await s.states("done", "ready", "p") == [None, "ready", "done"]

    async def test_X8_a_child_and_its_parent_can_be_deleted_together(self, s: Scene) -> None:
        """X8: a finished flow leaves no edges behind; its ids are free again."""
        flow = [job("p"), child("c", "p")]
        await s.add(*flow)
        for id in "pc":
            await s.end(ack(await s.claim(id)))
        assert await s.manage.delete(["p", "c"]) == ["deleted", "deleted"]
        await s.add(*flow)
        assert [parent.satisfied for parent in await s.parents("c")] == [False]
        assert (await s.get("c")).unmet == 1
