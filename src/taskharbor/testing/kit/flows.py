"""K: dependencies in drivers: each edge is satisfied at most once, and none is lost."""

from __future__ import annotations

from itertools import pairwise

import pytest

from taskharbor.core.states import State
from taskharbor.driver import Parent
from taskharbor.testing.kit.jobs import ALL, KEEP, SETTLES, ack, at, child, fail, job
from taskharbor.testing.kit.scene import Cases, Scene

every_policy = pytest.mark.parametrize("policy", ["hold", "cancel", "collect"])
every_dead_end = pytest.mark.parametrize("how", ["fail", "cancel", "withdraw", "expire"])


async def bring_down(s: Scene, id: str, how: str) -> None:
    """Let a ready job end without success."""
    if how in SETTLES:
        await s.end(SETTLES[how](await s.claim(id)))
    elif how == "withdraw":
        assert await s.withdraw(id) == ["cancelled"]
    else:
        s.tick(600)
        assert await s.sweep(1) == 1


class FlowCases(Cases):
    """K1-K5."""

    async def test_K1_a_chain_runs_one_after_the_other(self, s: Scene) -> None:
        """K1: each step is released by the one before it."""
        await s.add(job("a"), child("b", "a"), child("c", "b"), child("d", "c"))
        for id in "abcd":
            assert await s.order() == [id]
            record = await s.get(id)
            await s.end(ack(record))

    async def test_K1_a_waiting_job_counts_its_unmet_dependencies(self, s: Scene) -> None:
        """K1, R1: one fewer for each parent that is done."""
        await s.add(job("a"), job("b"), child("c", "a", "b"))
        assert (await s.get("c")).unmet == 2
        await s.end(ack(await s.claim("b")))
        await s.expect("c", unmet=1, state="waiting")
        await s.end(ack(await s.claim("a")))
        await s.expect("c", unmet=0, state="ready")

    async def test_K1_a_diamond_joins_once(self, s: Scene) -> None:
        """K1, K2: any DAG; the join waits for both arms."""
        await s.add(job("a"), child("l", "a"), child("r", "a"), child("z", "l", "r"))
        await s.end(ack(await s.claim("a")))
        assert await s.states("l", "r", "z") == ["ready", "ready", "waiting"]
        await s.end(ack(await s.claim("l")), ack(await s.claim("r")))
        assert await s.order() == ["z"]
        assert (await s.get("z")).version == 1

    async def test_K2_a_released_job_is_due_now_or_at_its_own_time(self, s: Scene) -> None:
        """K2, N1: a run_at in the future still holds."""
        await s.add(job("p"), child("now", "p"), child("past", "p", run_at=at(1)), child("later", "p", run_at=at(100)))
        s.tick(10)
        await s.end(ack(await s.claim("p")))
        due = [(await s.get(id)).due_at for id in ("now", "past", "later")]
        assert due == [at(10), at(10), at(100)]
        assert sorted(await s.order()) == ["now", "past"]

    @pytest.mark.parametrize("kind", ["put_back", "ack"])
    async def test_K2_only_a_terminal_move_releases(self, s: Scene, kind: str) -> None:
        """K2: a retry of the parent releases nothing."""
        await s.add(job("p"), child("c", "p"))
        await s.end(SETTLES[kind](await s.claim("p")))
        assert await s.states("c") == ["ready" if kind == "ack" else "waiting"]

    async def test_K2_parents_settled_in_one_flush_release_once(self, s: Scene) -> None:
        """K2: the last of a batch releases the child, exactly once."""
        await s.add(job("a"), job("b"), job("c"), child("z", "a", "b", "c"))
        await s.end(*(ack(held) for held in await s.reserve(3)))
        await s.expect("z", state="ready", unmet=0)
        assert await s.order() == ["z"]
        assert await s.reserve(9) == []

    async def test_K2_a_repeated_settle_satisfies_no_edge_twice(self, s: Scene) -> None:
        """K2, D8: a repeated Ack does not count again."""
        await s.add(job("a"), job("b"), child("z", "a", "b"))
        first = ack(await s.claim("a"))
        await s.end(first)
        assert await s.without_effect(s.settle(first, first)) == ["replayed"] * 2
        assert (await s.get("z")).unmet == 1

    @pytest.mark.parametrize("members", [2, 1000])
    async def test_K2_a_chords_finalizer_becomes_ready_exactly_once(self, s: Scene, members: int) -> None:
        """K2: with many members as with two, acked in flushes of odd sizes."""
        ids = [f"m{n:04}" for n in range(members)]
        await s.add(*(job(id) for id in ids), child("z", *ids))
        assert (await s.get("z")).unmet == members
        for _ in range(0, members, 77):
            await s.end(*(ack(each, result=each.id.encode()) for each in await s.reserve(77)))
        held = await s.reserve(77)
        assert [each.id for each in held] == ["z"]
        assert (held[0].version, held[0].unmet) == (1, 0)
        assert [parent.id for parent in await s.parents("z")] == ids

    async def test_K2_a_group_of_one_and_an_edge_to_each(self, s: Scene) -> None:
        """K2: children of one parent are all released by it."""
        await s.add(job("p"), *(child(f"c{n}", "p") for n in range(30)))
        await s.end(ack(await s.claim("p")))
        assert len(await s.order()) == 30

    async def test_K3_parents_come_in_the_order_given_with_their_results(self, s: Scene) -> None:
        """K3: not in the order of ids, enqueues or ends."""
        names = ["m", "z", "a", "k"]
        await s.add(job("a"), job("k"), job("m"), job("z"), child("c", *names, policy="collect"))
        for id in ("k", "z", "a"):
            await s.end(ack(await s.claim(id), result=id.encode()))
        await s.end(fail(await s.claim("m"), last_error="boom"))
        done = [Parent(id, "collect", True, State.DONE, id.encode(), None, 1) for id in "zak"]
        assert await s.parents("c") == [Parent("m", "collect", True, State.DLQ, None, "boom"), *done]

    async def test_K3_parents_show_which_edges_are_open(self, s: Scene) -> None:
        """K3, K5: the graph with states can be read at any time; jobs without edges have no parents."""
        await s.add(job("a"), job("b"), child("c", "a", "b"))
        await s.end(ack(await s.claim("a"), result=b"1"))
        open_now = [(p.id, p.satisfied, str(p.state), p.policy) for p in await s.parents("c")]
        assert open_now == [("a", True, "done", "hold"), ("b", False, "ready", "hold")]
        assert await s.parents("a") == []
        assert await s.parents("nobody") == []

    @pytest.mark.parametrize("state", ["waiting", "ready", "inflight"])
    async def test_K3_needed_parents_can_be_neither_deleted_nor_pruned(self, s: Scene, state: str) -> None:
        """K3, X8: while a dependant is unfinished."""
        await s.add(job("p"), job("other", queue="x"), child("c", "p", *(["other"] if state == "waiting" else [])))
        await s.end(ack(await s.claim("p"), keep_until=s.now, result=b"needed"))
        if state == "inflight":
            await s.claim("c", lease=9999)
        async with s.nothing_changes():
            assert await s.manage.delete(["p"]) == ["needed"]
            s.tick(1)
            assert await s.prune() == 0
        assert await s.states("c") == [state]

    async def test_K3_a_parent_that_a_cancelled_child_still_lacks_is_kept(self, s: Scene) -> None:
        """K3, Q2: a replay of the child must find it, so the child goes first."""
        await s.add(job("p"), child("c", "p"))
        await s.withdraw("c")
        await s.withdraw("p")
        assert await s.manage.delete(["p"]) == ["needed"]
        assert await s.manage.delete(["c", "p"]) == ["deleted", "deleted"]

    @pytest.mark.parametrize("how", ["fail", "cancel"])
    async def test_K3_a_dead_child_keeps_the_results_for_its_replay(self, s: Scene, how: str) -> None:
        """K3, X8, Q3: past their own retention, until it is gone itself."""
        await s.add(job("p"), child("c", "p"))
        await s.end(ack(await s.claim("p"), keep_until=s.now, result=b"needed"))
        await s.end(SETTLES[how](await s.claim("c"), keep_until=at(100)))
        assert await s.prune() == 0
        assert await s.replay("c") == "replayed"
        await s.end(SETTLES[how](await s.claim("c"), keep_until=at(100)))
        assert [parent.result for parent in await s.parents("c")] == [b"needed"]
        s.tick(100)
        assert [await s.prune(), await s.prune()] == [1, 1]
        assert await s.states("p", "c") == [None, None]

    @pytest.mark.parametrize("how", ["fail", "cancel"])
    async def test_K3_a_parent_of_a_dead_child_is_deleted_after_it(self, s: Scene, how: str) -> None:
        """K3, Q3: by hand too, because a replay of the child needs its result."""
        await s.add(job("p"), child("c", "p"))
        await s.end(ack(await s.claim("p"), result=b"needed"))
        await s.end(SETTLES[how](await s.claim("c")))
        assert await s.without_effect(s.manage.delete(["p"])) == ["needed"]
        assert await s.manage.delete(["c", "p"]) == ["deleted", "deleted"]

    async def test_K3_once_the_dependants_are_done_parents_may_go(self, s: Scene) -> None:
        """K3: by delete and by prune."""
        for how in ("delete", "prune"):
            parent, waits = f"p-{how}", f"c-{how}"
            await s.add(job(parent), child(waits, parent))
            await s.end(ack(await s.claim(parent), keep_until=s.now))
            await s.end(ack(await s.claim(waits)))
            if how == "delete":
                assert await s.manage.delete([parent]) == ["deleted"]
            else:
                assert await s.prune() == 1
            assert await s.states(parent, waits) == [None, "done"]
            assert await s.parents(waits) == []

    @every_dead_end
    async def test_K4_hold_waits_for_a_replay(self, s: Scene, how: str) -> None:
        """K4: dependants of a dead parent wait; replaying it resumes them."""
        await s.add(job("p", expires_at=at(600)), child("c", "p"), child("d", "c"))
        await bring_down(s, "p", how)
        assert await s.states("c", "d") == ["waiting", "waiting"]
        assert await s.replay("p") == "replayed"
        await s.end(ack(await s.claim("p")))
        assert await s.states("c", "d") == ["ready", "waiting"]

    @every_dead_end
    async def test_K4_cancel_cancels_the_rest(self, s: Scene, how: str) -> None:
        """K4: at once, in cascades, with completed_at and keep_until set."""
        line = child("c", "p", policy="cancel"), child("d", "c", policy="cancel"), child("held", "d", policy="hold")
        await s.add(job("p", expires_at=at(600)), *line)
        await bring_down(s, "p", how)
        assert await s.states("c", "d", "held") == ["cancelled", "cancelled", "waiting"]
        records = [await s.get(id) for id in "cd"]
        assert {(record.completed_at, record.keep_until) for record in records} == {(s.now, KEEP)}

    async def test_K4_cancel_takes_a_very_long_line_along(self, s: Scene) -> None:
        """K4: longer than the recursion limit."""
        ids = [f"n{number:04}" for number in range(1200)]
        line = [child(id, before, policy="cancel") for before, id in pairwise(ids)]
        await s.add(job(ids[0]), *line)
        await s.end(fail(await s.claim(ids[0])))
        assert set(await s.states(ids[1], ids[600], ids[-1])) == {"cancelled"}

    @every_dead_end
    async def test_K4_collect_runs_with_the_failures(self, s: Scene, how: str) -> None:
        """K4: the finalizer becomes ready although a member died."""
        await s.add(job("a", expires_at=at(600)), job("b"), child("z", "a", "b", policy="collect"))
        await bring_down(s, "a", how)
        await s.expect("z", state="waiting", unmet=1)
        await s.end(ack(await s.claim("b")))
        assert await s.states("z") == ["ready"]

    async def test_K4_a_mixed_family_follows_each_edge(self, s: Scene) -> None:
        """K4: the policy belongs to the edge, not to the parent."""
        family = [child(policy, "p", policy=policy) for policy in ("hold", "cancel", "collect")]
        await s.add(job("p"), *family)
        await s.end(fail(await s.claim("p")))
        assert await s.states("hold", "cancel", "collect") == ["waiting", "cancelled", "ready"]

    async def test_K4_a_cascade_collects_further_down(self, s: Scene) -> None:
        """K4: a child that is cancelled by its parent counts as failed for its own children."""
        await s.add(job("p"), child("c", "p", policy="cancel"), child("z", "c", policy="collect"))
        await s.end(fail(await s.claim("p")))
        assert await s.states("c", "z") == ["cancelled", "ready"]

    async def test_K4_a_child_is_cancelled_although_another_parent_still_runs(self, s: Scene) -> None:
        """K4: one dead edge with `cancel` is enough, and the late parent disturbs nothing."""
        await s.add(job("a"), job("b"), child("c", "a", "b", policy="cancel"))
        late = await s.claim("b")
        await s.end(fail(await s.claim("a")))
        assert await s.states("c") == ["cancelled"]
        await s.end(ack(late))
        assert await s.states("c") == ["cancelled"]
        assert await s.reserve(9) == []

    async def test_K2_replaying_a_collected_parent_leaves_the_child_alone(self, s: Scene) -> None:
        """K2: each edge is satisfied at most once."""
        await s.add(job("a"), job("b"), child("z", "a", "b", policy="collect"))
        await s.end(fail(await s.claim("a")))
        await s.replay("a")
        await s.end(ack(await s.claim("a")))
        await s.expect("z", unmet=1, state="waiting")
        await s.end(ack(await s.claim("b")))
        await s.end(ack(await s.claim("z"), result=b"once"))
        await s.expect("z", version=1, result=b"once")

    @pytest.mark.parametrize("state", ["ready", "inflight", "done"])
    async def test_K2_a_child_that_went_on_is_left_alone(self, s: Scene, state: str) -> None:
        """K2: whatever happens to a collected parent later, the child's record does not change."""
        await s.add(job("p"), child("z", "p", policy="collect"))
        await s.end(fail(await s.claim("p")))
        if state != "ready":
            held = await s.claim("z", lease=999)
            await s.end(*([ack(held, result=b"once")] if state == "done" else []))
        before = await s.get("z")
        await s.replay("p")
        await s.end(ack(await s.claim("p")))
        assert await s.get("z") == before

    async def test_K2_a_second_end_counts_only_where_the_first_did_not(self, s: Scene) -> None:
        """K2, K4: of one parent's children, those that collected its failure stay, those that held are released."""
        both = child("collects", "p", "other", policy="collect"), child("holds", "p", "other")
        await s.add(job("p"), job("other"), *both)
        await s.end(fail(await s.claim("p")))
        await s.replay("p")
        await s.end(ack(await s.claim("p")))
        assert [(await s.get(id)).unmet for id in ("collects", "holds")] == [1, 1]
        assert await s.states("collects", "holds") == ["waiting", "waiting"]
        await s.end(ack(await s.claim("other")))
        assert sorted(await s.order()) == ["collects", "holds"]

    async def test_K2_a_collected_parent_that_dies_again_counts_nothing(self, s: Scene) -> None:
        """K2: nor does a second failure count a second time."""
        await s.add(job("a"), job("b"), child("z", "a", "b", policy="collect"))
        for _ in range(2):
            await s.end(fail(await s.claim("a")))
            assert (await s.get("z")).unmet == 1
            await s.replay("a")

    async def test_K2_an_edge_is_met_while_the_child_is_cancelled(self, s: Scene) -> None:
        """K2, Q3: a cancelled child that is replayed waits only for what is still open."""
        await s.add(job("a"), job("b"), child("c", "a", "b"))
        await s.withdraw("c")
        await s.end(ack(await s.claim("a")))
        assert await s.states("c") == ["cancelled"]
        assert await s.replay("c") == "replayed"
        await s.expect("c", state="waiting", unmet=1)
        await s.end(ack(await s.claim("b")))
        assert await s.states("c") == ["ready"]

    async def test_Q3_replaying_a_cancelled_child_waits_for_its_parent(self, s: Scene) -> None:
        """Q3, T1: cancelled → waiting while a dependency is unmet; the workflow goes on."""
        await s.add(job("p"), child("c", "p", policy="cancel"))
        await s.end(fail(await s.claim("p")))
        assert await s.replay("c") == "replayed"
        assert await s.states("c") == ["waiting"]
        assert await s.replay("p") == "replayed"
        await s.end(ack(await s.claim("p")))
        assert await s.states("c") == ["ready"]

    async def test_K5_a_whole_workflow_can_be_cancelled(self, s: Scene) -> None:
        """K5: job by job in one call; inflight ones get a stop request."""
        await s.add(job("a"), job("b"), child("c", "a", "b"), child("d", "c"))
        await s.claim("a")
        assert await s.withdraw("a", "b", "c", "d") == ["requested", "cancelled", "cancelled", "cancelled"]

    @every_policy
    async def test_K5_a_cancel_of_several_is_one_step(self, s: Scene, policy: str) -> None:
        """K2, K5: in any order, each is cancelled by name; and those not named are cancelled by the cascade."""
        for names in (("a", "z"), ("y", "b")):
            first, last = sorted(names)
            await s.add(job(first), child(last, first, policy=policy), child(f"{last}-next", last, policy="collect"))
            assert await s.withdraw(*names, *names, "nobody") == ["cancelled"] * 2 + ["finished"] * 2 + ["missing"]
            assert await s.states(first, last, f"{last}-next") == ["cancelled", "cancelled", "ready"]

    async def test_K2_a_released_child_is_in_line_like_any_job(self, s: Scene) -> None:
        """K2, D11: by priority and due time."""
        await s.add(job("p"), child("c", "p"), child("high", "p", priority=5))
        s.tick(1)
        await s.add(job("between"))
        s.tick(1)
        await s.end(ack(await s.claim("p")))
        assert await s.order(ALL) == ["high", "between", "c"]
