"""K5 and Q1: summaries of many jobs, workflows by state and dead letters by cause."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.states import Shown, State
from taskharbor.driver import WorkflowCounts
from taskharbor.testing.kit.jobs import ack, at, child, fail, job
from taskharbor.testing.kit.scene import Cases, Scene

READY, WAITING, INFLIGHT = State.READY, State.WAITING, State.INFLIGHT
DONE, DLQ, CANCELLED = State.DONE, State.DLQ, State.CANCELLED
DEAD = (Shown.DLQ,)
# Filters, and how many dead jobs of the fingerprints aa, bb and of none at all each of them finds.
DEAD_FILTERS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "everything": ({}, {"aa": 3, "bb": 2, "": 1}),
    "task": ({"task": "mail.*"}, {"aa": 2, "bb": 1}),
    "queue": ({"queue": "x"}, {"": 1, "aa": 1}),
    "error": ({"error": "refused"}, {"aa": 2}),
    "reason": ({"reason": "gave_up"}, {"bb": 1}),
    "tag": ({"tag": "vip"}, {"bb": 1}),
    "workflow": ({"workflow_id": "w"}, {"aa": 1}),
    "since": ({"since": at(3)}, {"": 1, "aa": 1, "bb": 1}),
    "until": ({"until": at(1)}, {"aa": 1}),
    "fingerprint": ({"fingerprint": "aa"}, {"aa": 3}),
    "a fingerprint that no job has": ({"fingerprint": "cc"}, {}),
    "no fingerprint is not an empty one": ({"fingerprint": ""}, {}),
    "part of a fingerprint is none": ({"fingerprint": "a"}, {}),
    "a fingerprint has no wildcard": ({"fingerprint": "a*"}, {}),
    "dead ones": ({"states": DEAD}, {"aa": 3, "bb": 2, "": 1}),
    "other states are not among the dead": ({"states": (Shown.READY, Shown.DONE)}, {}),
    "two conditions": ({"task": "mail.*", "fingerprint": "bb"}, {"bb": 1}),
}


def member(id: str, workflow: str, *parents: str, **options: Any) -> Any:
    """A job of a workflow."""
    return child(id, *parents, workflow_id=workflow, **options)


async def dead_letter(s: Scene, id: str, fingerprint: str | None, **options: Any) -> JobRecord:
    """A dead job with a given cause."""
    fields = {name: options.pop(name) for name in ("last_error", "reason") if name in options}
    await s.add(job(id, **options))
    await s.end(fail(await s.claim(id), fingerprint=fingerprint, **fields))
    return await s.get(id)


class OverviewCases(Cases):
    """K5, Q1."""

    async def test_K5_a_workflow_is_counted_by_stored_states(self, s: Scene) -> None:
        """K5: every state that any of its jobs is in, and no other; jobs that are scheduled are ready."""
        await s.add(
            *(member(id, "w") for id in ("done", "dead", "held", "gone", "due")),
            member("later", "w", run_at=at(3600)),
            member("waits", "w", "due"),
        )
        await s.end(ack(await s.claim("done")), fail(await s.claim("dead")))
        await s.claim("held", lease=999)
        await s.withdraw("gone")
        states = {DONE: 1, DLQ: 1, INFLIGHT: 1, CANCELLED: 1, READY: 2, WAITING: 1}
        assert await s.flows.workflows(9) == [WorkflowCounts(id="w", created_at=at(0), states=states)]

    async def test_K5_workflows_come_with_the_greatest_id_first(self, s: Scene) -> None:
        """K5: ids are ordered by time; the time of the first job is returned."""
        names = ["w2", "w10", "w1"]
        for number, id in enumerate(names):
            await s.add(member(f"{id}.p", id), member(f"{id}.c", id, f"{id}.p"))
            assert s.now == at(number)
            s.tick(1)
        states = {READY: 1, WAITING: 1}
        expected = [WorkflowCounts(id=id, created_at=at(number), states=states) for number, id in enumerate(names)]
        assert await s.flows.workflows(9) == expected

    async def test_K5_a_workflow_is_as_old_as_its_oldest_job(self, s: Scene) -> None:
        """K5: of the existing ones."""
        await s.add(member("a", "w"))
        s.tick(5)
        await s.add(member("b", "w"))
        assert [counts.created_at for counts in await s.flows.workflows(9)] == [at(0)]
        await s.withdraw("a")
        await s.manage.delete(["a"])
        assert await s.flows.workflows(9) == [WorkflowCounts(id="w", created_at=at(5), states={READY: 1})]

    async def test_K5_workflows_can_be_read_in_pages(self, s: Scene) -> None:
        """K5: starting after `after`, whether or not that one still exists."""
        for number in range(7):
            await s.add(member(f"a{number}", f"w{number}"), member(f"b{number}", f"w{number}"))
        seen: list[str] = []
        for size in (3, 3, 1, 0):
            page = await s.flows.workflows(3, seen[-1] if seen else None)
            assert len(page) == size
            seen += [counts.id for counts in page]
        assert seen == [f"w{number}" for number in reversed(range(7))]
        assert [counts.id for counts in await s.flows.workflows(2, "w3x")] == ["w3", "w2"]
        assert await s.flows.workflows(0) == []

    async def test_K5_workflows_are_found_by_their_ids(self, s: Scene) -> None:
        """K5: those that exist, greatest id first, within the limit; none for no ids."""
        await s.add(*(member(f"j{number}", f"w{number}") for number in range(5)))

        async def found(ids: list[str], limit: int = 9, after: str | None = None) -> list[str]:
            return [counts.id for counts in await s.flows.workflows(limit, after, ids)]

        assert await found(["w1", "nobody", "w3", "j2", "w1"]) == ["w3", "w1"]
        assert await found(["nobody"]) == []
        assert await found([]) == []
        assert await found(["w0", "w1", "w4"], limit=2) == ["w4", "w1"]
        assert await found(["w0", "w1", "w4"], after="w4") == ["w1", "w0"]

    async def test_K5_jobs_without_a_workflow_are_not_counted(self, s: Scene) -> None:
        """K5: a job may wait for others without belonging to a workflow."""
        await s.add(job("a"), child("b", "a"), member("c", "w"))
        assert await s.flows.workflows(9) == [WorkflowCounts(id="w", created_at=s.now, states={READY: 1})]

    async def test_K5_a_workflow_of_1000_jobs_is_one_line(self, s: Scene) -> None:
        """K5, K2: counted, not listed."""
        ids = [f"m{n:04}" for n in range(1000)]
        await s.add(*(member(id, "w") for id in ids), member("z", "w", *ids), workflow_id="w")
        await s.end(*(ack(held) for held in await s.reserve(300)))
        assert [counts.states for counts in await s.flows.workflows(9)] == [{DONE: 300, READY: 700, WAITING: 1}]

    async def test_K5_a_pruned_workflow_is_gone(self, s: Scene) -> None:
        """K5, X8: with its last record; other workflows stay."""
        await s.add(member("a", "old"), member("b", "old", "a"))
        await s.add(member("c", "new"))
        for id in "ab":
            await s.end(ack(await s.claim(id), keep_until=at(10)))
        assert [counts.id for counts in await s.flows.workflows(9)] == ["old", "new"]
        s.tick(10)
        assert await s.prune() == 2
        assert [counts.id for counts in await s.flows.workflows(9)] == ["new"]
        assert await s.flows.workflows(9, None, ["old"]) == []

    async def test_K5_counts_follow_a_replay(self, s: Scene) -> None:
        """K5, Q3: what was dead is in line again."""
        await s.add(member("p", "w"), member("c", "w", "p", policy="cancel"))
        await s.end(fail(await s.claim("p")))
        assert [counts.states for counts in await s.flows.workflows(9)] == [{DLQ: 1, CANCELLED: 1}]
        for id in "cp":
            assert await s.replay(id) == "replayed"
        assert [counts.states for counts in await s.flows.workflows(9)] == [{WAITING: 1, READY: 1}]

    # Q1

    async def test_Q1_a_dead_job_keeps_its_fingerprint(self, s: Scene) -> None:
        """Q1, D9: as given with the Fail, None if none was; in every record that is read."""
        known, unknown = await dead_letter(s, "a", "0123456789ab"), await dead_letter(s, "b", None)
        assert (known.fingerprint, unknown.fingerprint) == ("0123456789ab", None)
        found = await s.look.query(Filter(states=DEAD), s.now, 9)
        assert [(record.id, record.fingerprint) for record in found] == [("b", None), ("a", "0123456789ab")]

    async def test_Q1_only_the_dead_have_a_fingerprint(self, s: Scene) -> None:
        """Q1, Q2: a replay clears it; the next failure sets its own."""
        await dead_letter(s, "a", "aa")
        assert await s.replay("a") == "replayed"
        assert (await s.get("a")).fingerprint is None
        assert await s.look.query(Filter(fingerprint="aa"), s.now, 9) == []
        assert await s.look.dead_groups(Filter(), s.now, 9) == []
        held = await s.claim("a")
        assert held.fingerprint is None
        await s.end(fail(held, fingerprint="bb"))
        assert (await s.get("a")).fingerprint == "bb"
        await s.replay("a")
        await s.end(ack(await s.claim("a")))
        assert (await s.get("a")).fingerprint is None

    async def test_Q1_a_refused_or_repeated_fail_changes_no_fingerprint(self, s: Scene) -> None:
        """Q1, D7, D8: the first one stands."""
        held = await s.held()
        await s.end(fail(held, fingerprint="aa"))
        async with s.nothing_changes():
            assert await s.settle(fail(held, fingerprint="bb")) == ["replayed"]
            await s.settle(fail(held, fingerprint="cc", token="stranger"))
        assert (await s.get()).fingerprint == "aa"

    async def test_Q1_each_death_of_a_flush_has_its_own_fingerprint(self, s: Scene) -> None:
        """Q1, D7: beside plain successes."""
        await s.add(*(job(f"j{n}") for n in range(6)))
        held = await s.reserve(6)
        await s.end(*(fail(each, fingerprint=f"f{n}") if n % 3 else ack(each) for n, each in enumerate(held)))
        assert [(await s.get(f"j{n}")).fingerprint for n in range(6)] == [None, "f1", "f2", None, "f4", "f5"]

    @pytest.mark.parametrize("name", list(DEAD_FILTERS))
    async def test_Q1_dead_groups_choose_what_the_filter_says(self, s: Scene, name: str) -> None:
        """Q1: the dead that match, as `query` finds them too."""
        options, wanted = DEAD_FILTERS[name]
        await _graveyard(s)
        where = Filter(**options)
        groups = await s.look.dead_groups(where, s.now, 9)
        assert {group.fingerprint: group.count for group in groups} == wanted
        found = [record for record in await s.look.query(where, s.now, 99) if record.state is DLQ]
        assert all(where.matches(record, s.now) for record in found)
        assert sorted(record.fingerprint or "" for record in found) == sorted(
            fingerprint for fingerprint, count in wanted.items() for _ in range(count)
        )

    async def test_Q1_dead_groups_show_the_last_death(self, s: Scene) -> None:
        """Q1: how many, the first and the last time, and the task, error and id of the last; most frequent first."""
        await _graveyard(s)
        groups = await s.look.dead_groups(Filter(), s.now, 9)
        assert [(group.fingerprint, group.task, group.error, group.count) for group in groups] == [
            ("aa", "shop.pay", "card 4 refused", 3),
            ("bb", "shop.bill", None, 2),
            ("", "t", "who knows", 1),
        ]
        assert [(group.first_at, group.last_at, group.last_id) for group in groups] == [
            (at(0), at(4), "a3"),
            (at(1), at(5), "b2"),
            (at(3), at(3), "none"),
        ]

    async def test_Q1_the_last_death_is_by_its_time_not_by_its_age(self, s: Scene) -> None:
        """Q1: the oldest job may die last; of two that die at the same moment, the greatest id is the last."""
        await s.add(job("old"), job("young"), job("b"), job("a"))
        for number, id in enumerate(["young", "old"]):
            s.tick(1)
            await s.end(fail(await s.claim(id), fingerprint="f", last_error=f"error {number}"))
        await s.end(*[fail(await s.claim(id), fingerprint="g", last_error=id) for id in "ba"])
        first, second = await s.look.dead_groups(Filter(), s.now, 9)
        assert (first.last_id, first.error, first.first_at, first.last_at) == ("old", "error 1", at(1), at(2))
        assert (second.last_id, second.error, second.first_at, second.last_at) == ("b", "b", at(2), at(2))

    async def test_Q1_dead_groups_are_limited_and_in_order(self, s: Scene) -> None:
        """Q1: by how many, then by fingerprint; the empty one is the first of its equals."""
        deaths = {"c": 1, "b": 3, "a": 1, None: 1, "d": 3}
        for fingerprint, count in deaths.items():
            for number in range(count):
                await dead_letter(s, f"{fingerprint}{number}", fingerprint)
        groups = await s.look.dead_groups(Filter(), s.now, 9)
        counted = [(group.fingerprint, group.count) for group in groups]
        assert counted == [("b", 3), ("d", 3), ("", 1), ("a", 1), ("c", 1)]
        assert [group.fingerprint for group in await s.look.dead_groups(Filter(), s.now, 3)] == ["b", "d", ""]
        assert await s.look.dead_groups(Filter(), s.now, 0) == []

    async def test_Q1_only_dead_jobs_are_in_a_group(self, s: Scene) -> None:
        """Q1: nor replayed or deleted ones."""
        await s.add(job("ready"), job("gone"), job("done"))
        await s.withdraw("gone")
        await s.end(ack(await s.claim("done"), last_error="an earlier one"))
        assert await s.look.dead_groups(Filter(), s.now, 9) == []
        await dead_letter(s, "a", "f")
        await dead_letter(s, "b", "f")
        await s.replay("a")
        assert [(group.count, group.last_id) for group in await s.look.dead_groups(Filter(), s.now, 9)] == [(1, "b")]
        await s.manage.delete(["b"])
        assert await s.look.dead_groups(Filter(), s.now, 9) == []


async def _graveyard(s: Scene) -> None:
    """Six dead jobs, one per second, and some that are alive."""
    deaths: list[tuple[str, str | None, dict[str, Any]]] = [
        ("a1", "aa", {"type": "mail.send", "last_error": "refused 1"}),
        ("b1", "bb", {"type": "mail.read", "last_error": "timed out", "reason": "gave_up"}),
        ("a2", "aa", {"type": "mail.send", "queue": "x", "last_error": "host away", "workflow_id": "w"}),
        ("none", None, {"queue": "x", "last_error": "who knows"}),
        ("a3", "aa", {"type": "shop.pay", "last_error": "card 4 refused"}),
        ("b2", "bb", {"type": "shop.bill", "tags": ("vip",)}),
    ]
    for id, fingerprint, options in deaths:
        await dead_letter(s, id, fingerprint, **options)
        s.tick(1)
    await s.add(job("alive", type="mail.send", tags=("vip",)), job("done", queue="x"))
    await s.end(ack(await s.claim("done")))
