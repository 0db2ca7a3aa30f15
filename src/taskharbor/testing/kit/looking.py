"""D13, Inspect and Manage: reading jobs, and changing them by hand."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor.core.filter import Filter
from taskharbor.core.states import Shown
from taskharbor.driver import QueueCounts, Report, Reschedule
from taskharbor.testing.kit.jobs import ack, at, child, fail, job, token_of
from taskharbor.testing.kit.scene import Cases, Scene

FILTERS: dict[str, tuple[dict[str, Any], str]] = {
    "everything": ({}, "gfedcba"),
    "queue": ({"queue": "mail"}, "da"),
    "queue pattern": ({"queue": "m*l"}, "da"),
    "queue is case-sensitive": ({"queue": "MAIL"}, "e"),
    "task": ({"task": "shop.send"}, "ba"),
    "task pattern": ({"task": "shop.*"}, "cba"),
    "task pattern in the middle": ({"task": "*h_p*"}, "d"),
    "percent is not a wildcard": ({"task": "sh%"}, ""),
    "underscore is not a wildcard": ({"task": "shop_send"}, ""),
    "question mark is not a wildcard": ({"task": "shop?send"}, ""),
    "brackets are no wildcard": ({"task": "[s]hop.send"}, ""),
    "star alone": ({"task": "*"}, "gfedcba"),
    "error": ({"error": "refused"}, "f"),
    "error part with percent": ({"error": "100%"}, "f"),
    "error has no wildcard": ({"error": "10*"}, ""),
    "reason": ({"reason": "max_*"}, "f"),
    "tag": ({"tag": "vip"}, "ca"),
    "part of a tag is not a tag": ({"tag": "vi"}, ""),
    "workflow": ({"workflow_id": "w1"}, "g"),
    "worker": ({"worker": "host:7:abc"}, "f"),
    "worker pattern": ({"worker": "host:7:*"}, "fe"),
    "held by a worker": ({"worker": "host:7:abd", "states": (Shown.CLAIMED, Shown.RUNNING)}, "e"),
    "held by another worker": ({"worker": "other", "states": (Shown.CLAIMED, Shown.RUNNING)}, ""),
    "no longer held": ({"worker": "host:7:abc", "states": (Shown.CLAIMED, Shown.RUNNING)}, ""),
    "since": ({"since": at(2)}, "gfedc"),
    "until": ({"until": at(2)}, "ba"),
    "since and until": ({"since": at(1), "until": at(3)}, "cb"),
    "scheduled": ({"states": (Shown.SCHEDULED,)}, "b"),
    "ready": ({"states": (Shown.READY,)}, "gdca"),
    "claimed": ({"states": (Shown.CLAIMED,)}, "e"),
    "dead": ({"states": (Shown.DLQ,)}, "f"),
    "several states": ({"states": (Shown.DLQ, Shown.CLAIMED)}, "fe"),
    "no such state": ({"states": (Shown.DONE,)}, ""),
    "two conditions": ({"task": "shop.*", "tag": "vip"}, "ca"),
}


class ReadingCases(Cases):
    """D13: Inspect and Manage."""

    async def test_D13_get_answers_each_id_in_its_place(self, s: Scene) -> None:
        """D13: None for an unknown id; an empty answer for no ids; duplicates for duplicates."""
        await s.add(job("a"), job("b"))
        found = await s.look.get(["b", "nobody", "a", "b"])
        assert [None if each is None else each.id for each in found] == ["b", None, "a", "b"]
        assert await s.look.get([]) == []

    @pytest.mark.parametrize("name", list(FILTERS))
    async def test_D13_query_chooses_what_the_filter_says(self, s: Scene, name: str) -> None:
        """D13: exactly the records that `Filter.matches` accepts, the newest first."""
        options, wanted = FILTERS[name]
        await _shop(s)
        where = Filter(**options)
        found = await s.look.query(where, s.now, 99)
        assert "".join(record.id for record in found) == wanted
        assert all(where.matches(record, s.now) for record in found)

    async def test_D13_query_returns_whole_records(self, s: Scene) -> None:
        """D13: the same as get."""
        await _shop(s)
        records = await s.look.query(Filter(), s.now, 99)
        assert records == await s.look.get([record.id for record in records])

    async def test_D13_query_can_be_read_in_pages(self, s: Scene) -> None:
        """D13: starting after `after`, with and without a filter."""
        await s.add(*(job(f"j{n}", tags=("odd",) if n % 2 else ()) for n in range(9)))
        for where, wanted in ((Filter(), 9), (Filter(tag="odd"), 4)):
            await _read_in_pages(s, where, wanted)

    @pytest.mark.parametrize("kind", ["dead", "workflow"])
    async def test_D13_pages_of_the_dead_and_of_a_workflow(self, s: Scene, kind: str) -> None:
        """D13: each job once, whichever index finds them."""
        ids = [f"j{n}" for n in range(5)]
        await s.add(*(job(id, workflow_id="w") for id in ids))
        await s.dead_letter(*ids)
        await _read_in_pages(s, Filter(states=(Shown.DLQ,)) if kind == "dead" else Filter(workflow_id="w"), 5)

    async def test_D13_query_follows_time(self, s: Scene) -> None:
        """D13, T: scheduled becomes ready without a write."""
        await s.add(job("a", run_at=at(10)))
        scheduled, ready = Filter(states=(Shown.SCHEDULED,)), Filter(states=(Shown.READY,))
        assert [len(await s.look.query(where, at(9.999999), 9)) for where in (scheduled, ready)] == [1, 0]
        assert [len(await s.look.query(where, at(10), 9)) for where in (scheduled, ready)] == [0, 1]

    async def test_D13_counts_show_every_state_of_every_queue(self, s: Scene) -> None:
        """D13: by queue name, with the oldest due time."""
        await _shop(s)
        await s.manage.pause("empty", True)
        await s.manage.pause("mail", True)
        assert await s.look.counts(s.now) == [
            QueueCounts(queue="MAIL", claimed=1),
            QueueCounts(queue="empty", paused=True),
            QueueCounts(queue="mail", paused=True, ready=2, oldest_due=at(0)),
            QueueCounts(queue="q", scheduled=1, ready=2, dlq=1, oldest_due=at(2)),
        ]

    async def test_D13_counts_of_an_empty_store_are_empty(self, s: Scene) -> None:
        """D13: a queue exists if it has jobs or is paused."""
        assert await s.look.counts(s.now) == []
        await s.manage.pause("q", True)
        await s.manage.pause("q", False)
        assert await s.look.counts(s.now) == []

    async def test_D13_counts_follow_jobs_through_their_lives(self, s: Scene) -> None:
        """D13: each move changes two numbers."""
        await s.add(job("a"), job("p"), child("c", "p"))
        held = await s.claim("a")
        assert await s.look.counts(s.now) == [QueueCounts(queue="q", ready=1, waiting=1, claimed=1, oldest_due=s.now)]
        await s.extend(Report("a", token_of(held), started_at=s.now))
        await s.withdraw("p")
        assert await s.look.counts(s.now) == [QueueCounts(queue="q", running=1, waiting=1, cancelled=1)]
        await s.end(ack(held))
        await s.manage.delete(["p"])
        assert await s.look.counts(s.now) == [QueueCounts(queue="q", done=1, waiting=1, cancelled=1)]

    async def test_D13_pausing_twice_is_pausing_once(self, s: Scene) -> None:
        """D13: and a pause is seen by every handle."""
        await s.add(job("a"))
        await s.manage.pause("q", True)
        await s.manage.pause("q", True)
        other = await s.another()
        assert await other.reserve(9) == []
        await other.manage.pause("q", False)
        assert await s.order() == ["a"]

    async def test_D13_reschedule_changes_only_what_it_is_given(self, s: Scene) -> None:
        """D13: None leaves the time or priority unchanged."""
        await s.add(job("a", run_at=at(50), priority=2), job("b"))
        changes = [Reschedule(id="a", priority=9), Reschedule(id="b", run_at=at(70)), Reschedule(id="nobody")]
        assert await s.manage.reschedule(changes, s.now) == [True, True, False]
        first, second = await s.get("a"), await s.get("b")
        assert (first.run_at, first.due_at, first.priority) == (at(50), at(50), 9)
        assert (second.run_at, second.due_at, second.priority) == (at(70), at(70), 0)

    async def test_D13_reading_changes_nothing(self, s: Scene) -> None:
        """D13: by every way to read."""
        await _shop(s)
        async with s.nothing_changes():
            await s.look.get(["a"])
            await s.look.find_key("k", s.now)
            await s.look.query(Filter(), at(9999), 9)
            await s.look.counts(at(9999))
            await s.parents("a")
            await s.flows.workflows(9)
            await s.look.dead_groups(Filter(), at(9999), 9)


async def _read_in_pages(s: Scene, where: Filter, wanted: int) -> None:
    """Read this many matching jobs two at a time, each once, the newest first."""
    seen: list[str] = []
    for _ in range(wanted // 2 + 1):
        page = await s.look.query(where, s.now, 2, seen[-1] if seen else None)
        assert len(page) <= 2
        seen += [record.id for record in page]
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == wanted


async def _shop(s: Scene) -> None:
    """Seven jobs, one per second, of different kinds."""
    options: dict[str, dict[str, Any]] = {
        "a": {"queue": "mail", "type": "shop.send", "tags": ("vip", "x")},
        "b": {"type": "shop.send", "run_at": at(3600)},
        "c": {"type": "shop.bill", "tags": ("vip",)},
        "d": {"queue": "mail", "type": "sh_p"},
        "e": {"queue": "MAIL"},
        "f": {},
        "g": {"workflow_id": "w1"},
    }
    for id, given in options.items():
        await s.add(job(id, **given))
        s.tick(1)
    await s.claim("e", lease=9999, worker="host:7:abd")
    await s.end(fail(await s.claim("f", worker="host:7:abc"), last_error="card refused: 100% sure"))
