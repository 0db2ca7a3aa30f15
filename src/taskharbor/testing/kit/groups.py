"""D1: groups are stored all or none, independently of each other."""

from __future__ import annotations

import pytest

from taskharbor.core.job import NewJob
from taskharbor.driver import Enqueued
from taskharbor.testing.kit.jobs import ack, at, child, group, job
from taskharbor.testing.kit.scene import Cases, Scene


class GroupCases(Cases):
    """D1."""

    async def test_D1_nothing_to_enqueue_is_fine(self, s: Scene) -> None:
        """D1: no groups, no results, nothing stored."""
        assert await s.enqueue() == []
        assert await s.all() == []

    async def test_D1_each_group_answers_in_its_place(self, s: Scene) -> None:
        """D1: results are in the order of groups and jobs."""
        results = await s.enqueue(group(job("a"), job("b")), group(job("c")))
        assert results == [(Enqueued("a", True), Enqueued("b", True)), (Enqueued("c", True),)]

    async def test_D1_a_refused_group_leaves_its_neighbours_alone(self, s: Scene) -> None:
        """D1: groups are independent, so that unrelated callers can share a commit."""
        await s.add(job("old"))
        results = await s.enqueue(group(job("a")), group(job("b"), job("old")), group(job("c")))
        assert results == [(Enqueued("a", True),), "JobExists", (Enqueued("c", True),)]
        assert await s.states("a", "b", "c") == ["ready", None, "ready"]

    async def test_D1_a_group_meets_the_groups_before_it_in_the_same_call(self, s: Scene) -> None:
        """D1, R2: an id stored by an earlier group of the call is taken for a later one."""
        results = await s.enqueue(group(job("a")), group(job("x"), job("a")), group(job("x")))
        assert results == [(Enqueued("a", True),), "JobExists", (Enqueued("x", True),)]

    async def test_D1_half_a_group_is_never_stored(self, s: Scene) -> None:
        """D1: a long group whose very last member is refused leaves no trace, keys and edges included."""
        await s.add(job("old"))
        members = [job(f"j{n}", idempotency_key=f"k{n}") for n in range(50)]
        async with s.nothing_changes():
            assert await s.enqueue(group(*members, job("p"), child("c", "p"), job("old"))) == ["JobExists"]
        for key in ("k0", "k49"):
            assert await s.look.find_key(key, s.now) is None
        assert await s.add(*members) == tuple(Enqueued(new.id, True) for new in members)

    async def test_D1_a_dependency_that_is_not_in_the_group_is_refused_whole(self, s: Scene) -> None:
        """D1, K1: an edge to an unknown job stores nothing."""
        assert await s.without_effect(s.enqueue(group(job("a"), child("b", "a", "nobody")))) == ["UnknownDependency"]

    @pytest.mark.parametrize("key", [None, "flow"])
    @pytest.mark.parametrize(
        "members",
        [(child("c", "p"), job("p")), (child("c", "c"),), (job("a"), child("b", "a", "c"), child("c", "b"))],
        ids=["before its parent", "itself", "a circle"],
    )
    async def test_D1_a_child_comes_after_its_parents(
        self, s: Scene, members: tuple[NewJob, ...], key: str | None
    ) -> None:
        """D1, K1: so cycles are impossible, and the last job is never a parent."""
        assert await s.without_effect(s.enqueue(group(*members, key=key, workflow_id=key))) == ["UnknownDependency"]
        assert await s.look.find_key("flow", s.now) is None

    async def test_D1_a_known_group_key_stores_nothing_and_names_the_workflow(self, s: Scene) -> None:
        """D1, I1: the second flow of a key is the first one."""
        flow = {"key": "order-7", "key_expires_at": at(3600)}
        jobs = [job("p", workflow_id="w1"), child("c", "p", workflow_id="w1")]
        assert await s.add(*jobs, workflow_id="w1", **flow) == (Enqueued("p", True), Enqueued("c", True))
        async with s.nothing_changes():
            again = [job("p2", workflow_id="w2"), child("c2", "p2", workflow_id="w2")]
            answers = await s.add(*again, workflow_id="w2", **flow)
        assert answers == (Enqueued("w1", False, True), Enqueued("w1", False, True))
        assert await s.look.find_key("order-7", s.now) == "w1"

    async def test_D1_a_group_key_with_other_payloads_is_flagged(self, s: Scene) -> None:
        """D1, I3: same key, other content."""
        await s.add(job("p", workflow_id="w"), key="k", workflow_id="w")
        [answer] = await s.add(job("x", payload=b"other", workflow_id="v"), key="k", workflow_id="v")
        assert answer == Enqueued("w", False, False)

    async def test_D1_a_group_key_ends_with_its_time(self, s: Scene) -> None:
        """D1, I2: the key of a flow that has ended is alive before its expiry and free at it."""
        await s.add(job("p", workflow_id="w"), key="k", key_expires_at=at(10), workflow_id="w")
        await s.end(ack(await s.claim("p")))
        s.tick(9.999999)
        assert (await s.add(job("x", workflow_id="v"), key="k", workflow_id="v"))[0].id == "w"
        s.tick(0.000001)
        assert await s.look.find_key("k", s.now) is None
        assert (await s.add(job("x", workflow_id="v"), key="k", workflow_id="v"))[0] == Enqueued("x", True)
        assert await s.look.find_key("k", s.now) == "v"

    async def test_D1_a_refused_group_takes_no_group_key(self, s: Scene) -> None:
        """D1: the key of a flow that was not stored is free."""
        await s.add(job("old"))
        assert await s.enqueue(group(job("old", workflow_id="w"), key="k", workflow_id="w")) == ["JobExists"]
        assert await s.look.find_key("k", s.now) is None

    async def test_D1_known_job_keys_resolve_and_the_rest_is_stored(self, s: Scene) -> None:
        """D1, I1: one known key in a group does not exclude the others."""
        await s.add(job("old", idempotency_key="k"))
        answers = await s.add(job("a"), job("b", idempotency_key="k"), job("c", idempotency_key="fresh"))
        assert answers == (Enqueued("a", True), Enqueued("old", False, True), Enqueued("c", True))
        assert await s.states("a", "b", "c") == ["ready", None, "ready"]

    @pytest.mark.parametrize("owner", ["job", "group"])
    async def test_D1_a_known_key_wins_over_JobExists(self, s: Scene, owner: str) -> None:
        """D1, I1: repeating the very same keyed job or group (an unknown outcome) finds the first."""
        flow = group(job("a", workflow_id="w"), key="k", key_expires_at=at(3600), workflow_id="w")
        same = group(job("a", idempotency_key="k")) if owner == "job" else flow
        assert await s.enqueue(same) == [(Enqueued("a", True),)]
        assert await s.without_effect(s.enqueue(same)) == [(Enqueued("a" if owner == "job" else "w", False, True),)]

    async def test_D1_an_enqueued_job_is_ready_at_once(self, s: Scene) -> None:
        """D1, T1: without dependencies a job is ready, due now."""
        await s.add(job("a"))
        await s.expect(state="ready", due_at=s.now, run_at=None, created_at=s.now, version=0, attempts=0, crashes=0)
        await s.expect(unmet=0)
