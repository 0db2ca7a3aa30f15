"""K3: the results of parents, for many jobs at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from taskharbor.core.states import State
from taskharbor.driver import Parent
from taskharbor.testing.kit.jobs import ALL, MUCH, ack, at, child, fail, job
from taskharbor.testing.kit.scene import Cases, Scene

DONE, READY, DLQ = State.DONE, State.READY, State.DLQ
FLUSH = 333


async def finish(s: Scene, ids: Iterable[str]) -> None:
    """Run these jobs, which must be the only ones in line; the result of each is its own id."""
    left = set(ids)
    while left:
        held = await s.reserve(FLUSH)
        assert {each.id for each in held} <= left
        assert held, f"{len(left)} jobs were never claimed"
        await s.end(*(ack(each, result=each.id.encode()) for each in held))
        left -= {each.id for each in held}


def summary(parents: Sequence[Parent]) -> list[tuple[str, bytes | None, int]]:
    """The parents' ids, results and sizes."""
    return [(parent.id, parent.result, parent.size) for parent in parents]


class ResultCases(Cases):
    """K3, and D9 with K1."""

    async def test_K3_parents_of_many_jobs_come_in_the_order_requested(self, s: Scene) -> None:
        """K3: empty for an unknown job or one without edges; duplicates for duplicates."""
        await s.add(job("a"), job("b"), child("x", "b", "a"), child("y", "a"))
        await s.end(ack(await s.claim("a"), result=b"1"))
        first = [Parent("b", "hold", False, READY, None, None), Parent("a", "hold", True, DONE, b"1", None, 1)]
        second = [Parent("a", "hold", True, DONE, b"1", None, 1)]
        asked = ["y", "a", "nobody", "x", "y"]
        assert await s.flows.parents(asked, MUCH) == [second, [], [], first, second]
        assert await s.flows.parents([], MUCH) == []

    async def test_K3_a_size_is_that_of_the_result_and_0_without_one(self, s: Scene) -> None:
        """K3: an empty result is a result of no size."""
        await s.add(*(job(id) for id in "abcd"), child("z", *"abcd", policy="collect"))
        results = {"a": b"four", "b": b"", "c": None}
        for id, result in results.items():
            await s.end(ack(await s.claim(id), result=result))
        await s.end(fail(await s.claim("d"), last_error="long enough an error"))
        assert summary(await s.parents("z")) == [("a", b"four", 4), ("b", b"", 0), ("c", None, 0), ("d", None, 0)]

    @pytest.mark.parametrize("most", [8, 7, 0])
    async def test_K3_results_are_given_up_to_so_many_bytes_in_all(self, s: Scene, most: int) -> None:
        """K3: at exactly the limit all of them, beyond it none, but always their sizes, states and errors."""
        await s.add(job("a"), job("b"), job("c"), child("z", "a", "b", "c", policy="collect"))
        await s.end(ack(await s.claim("a"), result=b"12345"), ack(await s.claim("b"), result=b"678"))
        await s.end(fail(await s.claim("c"), last_error="boom"))
        given = most >= 8
        assert await s.parents("z", most) == [
            Parent("a", "collect", True, DONE, b"12345" if given else None, None, 5),
            Parent("b", "collect", True, DONE, b"678" if given else None, None, 3),
            Parent("c", "collect", True, DLQ, None, "boom", 0),
        ]

    async def test_K3_the_limit_is_each_jobs_own(self, s: Scene) -> None:
        """K3: one job over the limit does not affect the results of others."""
        await s.add(job("big"), job("small"), child("x", "big"), child("y", "small"), child("z", "big", "small"))
        await s.end(ack(await s.claim("big"), result=b"0123456789"), ack(await s.claim("small"), result=b"01234"))
        found = await s.flows.parents(["x", "y", "z", "y"], 9)
        assert [summary(parents) for parents in found] == [
            [("big", None, 10)],
            [("small", b"01234", 5)],
            [("big", None, 10), ("small", None, 5)],
            [("small", b"01234", 5)],
        ]

    async def test_K3_a_result_counts_once_for_every_edge(self, s: Scene) -> None:
        """K3: a parent named twice is returned twice, and counted twice."""
        await s.add(job("p"), child("c", "p", "p"))
        await s.end(ack(await s.claim("p"), result=b"12345"))
        assert summary(await s.parents("c", 10)) == [("p", b"12345", 5)] * 2
        assert summary(await s.parents("c", 9)) == [("p", None, 5)] * 2

    async def test_K2_two_edges_to_one_parent_are_satisfied_at_once(self, s: Scene) -> None:
        """K2, K3: a child may name a parent twice; it is released once, by its one end."""
        await s.add(job("p"), job("q1"), child("c", "p", "q1", "p"))
        assert (await s.get("c")).unmet == 3
        settle = ack(await s.claim("p"), result=b"r")
        await s.end(settle)
        await s.expect("c", unmet=1, state="waiting")
        assert await s.without_effect(s.settle(settle)) == ["replayed"]
        await s.end(ack(await s.claim("q1")))
        parents = [(parent.id, parent.satisfied) for parent in await s.parents("c")]
        assert parents == [("p", True), ("q1", True), ("p", True)]
        assert await s.order() == ["c"]
        await s.expect("c", unmet=0, version=1)

    async def test_K4_two_edges_to_one_parent_have_each_a_policy(self, s: Scene) -> None:
        """K2, K4: a failure satisfies the one that collects; the other holds until a replay."""
        await s.add(job("p"), child("c", ("p", "collect"), ("p", "hold")), child("d", ("p", "hold"), ("p", "cancel")))
        await s.end(fail(await s.claim("p")))
        assert [parent.satisfied for parent in await s.parents("c")] == [True, False]
        await s.expect("c", unmet=1, state="waiting")
        assert await s.states("d") == ["cancelled"]
        await s.replay("p")
        await s.end(ack(await s.claim("p")))
        await s.expect("c", unmet=0, state="ready")

    async def test_K3_edges_that_only_order_are_returned_too(self, s: Scene) -> None:
        """K3: all are returned, in the order given, each with its own policy."""
        edges = ("gives", "hold"), ("orders", "collect"), ("also", "cancel")
        await s.add(*(job(id) for id, _ in edges), child("c", *edges))
        await s.end(fail(await s.claim("orders"), last_error="no matter"))
        for id in ("also", "gives"):
            await s.end(ack(await s.claim(id), result=id.encode()))
        assert await s.parents("c") == [
            Parent("gives", "hold", True, DONE, b"gives", None, 5),
            Parent("orders", "collect", True, DLQ, None, "no matter", 0),
            Parent("also", "cancel", True, DONE, b"also", None, 4),
        ]
        assert await s.states("c") == ["ready"]

    async def test_K3_a_replayed_parent_is_returned_in_its_new_state(self, s: Scene) -> None:
        """K2, K3: a collected failure that succeeds after a replay gives its result, and its edge does not change."""
        await s.add(job("p"), child("c", "p", policy="collect"))
        await s.end(fail(await s.claim("p"), last_error="boom"))
        await s.replay("p")
        [again] = await s.parents("c")
        assert (again.satisfied, again.state, again.result) == (True, READY, None)
        await s.end(ack(await s.claim("p"), result=b"well"))
        assert await s.parents("c") == [Parent("p", "collect", True, DONE, b"well", None, 4)]

    async def test_K3_many_jobs_are_asked_for_at_once(self, s: Scene) -> None:
        """K3: 500 children, in arbitrary order."""
        ids = [f"c{n:03}" for n in range(500)]
        await s.add(*(job(f"p{n}") for n in range(5)), *(child(id, f"p{n % 5}") for n, id in enumerate(ids)))
        await s.end(*(ack(each, result=each.id.encode()) for each in await s.reserve(5)))
        asked = [ids[(n * 7) % 500] for n in range(500)]
        found = await s.flows.parents(asked, MUCH)
        assert [parent.result for [parent] in found] == [f"p{(n * 7) % 500 % 5}".encode() for n in range(500)]

    async def test_K2_a_group_of_1000_a_join_and_a_second_stage(self, s: Scene) -> None:
        """K1, K2, K3: members, a finalizer, then as many members again after one join; each stage runs once."""
        first = [f"m{n:04}" for n in range(1000)]
        second = [f"n{n:04}" for n in range(500)]
        stages = [*map(job, first), child("join", *first), *(child(id, "join") for id in second), child("end", *second)]
        await s.add(*stages, workflow_id="w")
        await finish(s, first)
        await s.expect("join", unmet=0, state="ready")
        await s.expect("end", unmet=500, state="waiting")
        assert [parent.result for parent in await s.parents("join")] == [id.encode() for id in first]
        for stage in (["join"], second, ["end"]):
            await finish(s, stage)
        assert [parent.result for parent in await s.parents("end")] == [id.encode() for id in second]
        assert {record.version for record in await s.all()} == {1}
        assert await s.reserve(ALL) == []

    async def test_D9_a_flow_is_stored_with_a_settle(self, s: Scene) -> None:
        """D9, K1, K3, K5: a workflow stored in one step with an Ack."""
        s.tick(1)
        held = await s.held("starter")
        start = job("l", workflow_id="w"), job("r", workflow_id="w")
        join = child("z", ("r", "collect"), ("l", "hold"), workflow_id="w")
        after = child("after", "z", policy="cancel", workflow_id="w", run_at=at(60))
        s.tick(1)
        settle = ack(held, new_jobs=(*start, join, after))
        await s.end(settle)
        assert await s.states("l", "r", "z", "after") == ["ready", "ready", "waiting", "waiting"]
        assert [(await s.get(id)).unmet for id in ("z", "after")] == [2, 1]
        [counts] = await s.flows.workflows(9)
        assert (counts.id, counts.created_at, counts.states) == ("w", s.now, {READY: 2, State.WAITING: 2})
        assert await s.without_effect(s.settle(settle)) == ["replayed"]
        await s.end(fail(await s.claim("r"), last_error="boom"))
        await s.end(ack(await s.claim("l"), result=b"l"))
        assert await s.parents("z") == [
            Parent("r", "collect", True, DLQ, None, "boom", 0),
            Parent("l", "hold", True, DONE, b"l", None, 1),
        ]
        await s.end(fail(await s.claim("z")))
        assert await s.states("after") == ["cancelled"]

    async def test_D9_flows_of_one_flush_stay_apart(self, s: Scene) -> None:
        """D9, D7: each settle stores its own; that of a refused one is not stored."""
        held = {id: await s.held(id, lease=5 if id == "late" else 60) for id in ("a", "b", "late")}
        s.tick(5)
        acks = [
            ack(each, new_jobs=(job(f"{id}.p", workflow_id=id), child(f"{id}.c", f"{id}.p", workflow_id=id)))
            for id, each in held.items()
        ]
        assert await s.settle(*acks) == ["ok", "ok", "LeaseExpired"]
        assert [counts.id for counts in await s.flows.workflows(9)] == ["b", "a"]
        found = await s.flows.parents(["a.c", "b.c", "late.c"], MUCH)
        assert [summary(parents) for parents in found] == [[("a.p", None, 0)], [("b.p", None, 0)], []]
        await s.end(ack(await s.claim("b.p")))
        assert await s.states("a.c", "b.c") == ["waiting", "ready"]
