"""D9, D13: totals of runs, written with the settle that they belong to."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from taskharbor.core.job import JobRecord
from taskharbor.core.tally import Tally
from taskharbor.core.transition import Increment
from taskharbor.testing.kit.jobs import SETTLES, ack, at, child, each_kind, fail, job, put_back
from taskharbor.testing.kit.scene import Cases, Scene

MINUTE = at(0).replace(second=0, microsecond=0)
AGO = at(-9999)
# A plain success is what drivers have a shorter way for.
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with a result": {"result": b"1"},
    "with new jobs": {"new_jobs": (job("new"),)},
}


def increment(held: JobRecord, outcome: str = "done") -> Increment:
    """The increment of the run of a claimed job."""
    return Increment(held.queue, held.type, outcome, held.due_at)


async def counted(s: Scene, since: datetime = AGO) -> list[tuple[str, str, str, int, float, float]]:
    """The totals without their minutes; times to the microsecond."""
    return [
        (it.queue, it.task, it.outcome, it.count, round(it.seconds, 6), round(it.waited, 6))
        for it in await s.counters.tallies(since)
    ]


class TotalCases(Cases):
    """D9, D13: Counters."""

    @each_kind
    async def test_D9_a_settle_counts_its_run(self, s: Scene, kind: str) -> None:
        """D9, D13: by minute, queue, task and the outcome that is given, with the time it waited and ran."""
        await s.add(job("a", queue="mail", type="send"))
        s.tick(2)
        held = await s.claim("a")
        s.tick(5)
        await s.end(SETTLES[kind](held, started_at=at(2.5), increment=increment(held, "any")))
        assert await s.counters.tallies(AGO) == [Tally(MINUTE, "mail", "send", "any", 1, 4.5, 2.5)]

    @pytest.mark.parametrize("way", list(WAYS))
    async def test_D9_a_success_counts_once_whatever_it_brings(self, s: Scene, way: str) -> None:
        """D9: also if a dependant waits for it."""
        await s.add(job("a"), child("b", "a"), job("c"))
        for id in "ac":
            held = await s.claim(id)
            await s.end(ack(held, started_at=at(0), increment=increment(held), **WAYS[way]))
        assert await counted(s) == [("q", "t", "done", 2, 0, 0)]
        assert await s.states("b") == ["ready"]

    async def test_D9_a_batch_adds_up(self, s: Scene) -> None:
        """D9: per task and outcome, one by one or all at once."""
        await s.add(*(job(f"j{n}", type="odd" if n % 2 else "even") for n in range(40)))
        held = await s.reserve(40, lease=99)
        s.tick(10)
        await s.end(*(ack(it, started_at=at(n / 8), increment=increment(it)) for n, it in enumerate(held[:30])))
        await s.end(*(put_back(it, started_at=at(1), increment=increment(it, "retried")) for it in held[30:]))
        odd, even = sum(10 - n / 8 for n in range(1, 30, 2)), sum(10 - n / 8 for n in range(0, 30, 2))
        assert await counted(s) == [
            ("q", "even", "done", 15, even, 150 - even),
            ("q", "even", "retried", 5, 45, 5),
            ("q", "odd", "done", 15, odd, 150 - odd),
            ("q", "odd", "retried", 5, 45, 5),
        ]

    async def test_D9_outcomes_of_every_kind_in_one_batch_add_up(self, s: Scene) -> None:
        """D9: and with those that are there already."""
        for number in range(2):
            held = [await s.held(f"{kind}{number}") for kind in SETTLES]
            s.tick(1)
            runs = zip(held, SETTLES.items(), strict=True)
            await s.end(*(settle(it, started_at=s.now, increment=increment(it, kind)) for it, (kind, settle) in runs))
        assert await counted(s) == [("q", "t", kind, 2, 0, 2) for kind in sorted(SETTLES)]

    async def test_D9_jobs_that_did_not_start_are_counted_apart(self, s: Scene) -> None:
        """D9, D13: it has no times."""
        first, second = await s.held("a"), await s.held("b")
        s.tick(3)
        await s.end(ack(first, increment=increment(first)))
        await s.end(put_back(second, increment=increment(second, "released")))
        outcomes = ("not_started:done", "not_started:released")
        assert await counted(s) == [("q", "t", outcome, 1, 0, 0) for outcome in outcomes]

    async def test_D9_a_start_before_its_time_has_waited_nothing(self, s: Scene) -> None:
        """D9: clocks differ; no total goes down."""
        held = await s.held()
        await s.end(ack(held, started_at=at(-1), increment=increment(held)))
        assert await counted(s) == [("q", "t", "done", 1, 1, 0)]

    @each_kind
    async def test_D9_without_an_increment_nothing_is_counted(self, s: Scene, kind: str) -> None:
        """D9: such as the claims of agents."""
        held = await s.held()
        await s.end(SETTLES[kind](held, started_at=at(0)))
        assert await s.counters.tallies(AGO) == []

    @each_kind
    async def test_D7_a_refused_settle_counts_nothing(self, s: Scene, kind: str) -> None:
        """D7, D9: expired, under another lease or not inflight; those beside it in the batch are counted."""
        late, good = await s.held("late", lease=5), await s.held("good")
        s.tick(5)
        settle = SETTLES[kind]
        refused = [
            settle(late, started_at=at(0), increment=increment(late)),
            settle(late, id="nobody", started_at=at(0), increment=increment(late)),
            settle(good, token="bogus", started_at=at(0), increment=increment(good)),
        ]
        verdicts = await s.settle(*refused, settle(good, started_at=at(0), increment=increment(good)))
        assert verdicts == ["LeaseExpired", "JobNotInflight", "LeaseMismatch", "ok"]
        assert await counted(s) == [("q", "t", "done", 1, 5, 0)]

    @each_kind
    async def test_D8_a_repeated_settle_is_not_counted_again(self, s: Scene, kind: str) -> None:
        """D8, X3: in the same batch, later, and by another handle."""
        held = await s.held()
        to = SETTLES[kind](held, started_at=at(0), increment=increment(held))
        assert await s.settle(to, to) == ["ok", "replayed"]
        s.tick(99)
        for scene in (s, await s.another()):
            scene.now = s.now
            assert await scene.settle(to) == ["replayed"]
        assert await counted(s) == [("q", "t", "done", 1, 0, 0)]

    async def test_D8_another_kind_of_settle_is_not_counted(self, s: Scene) -> None:
        """D8: it is refused, because the caller must not take a stored Ack for its Fail."""
        held = await s.held()
        await s.end(ack(held, started_at=at(0), increment=increment(held)))
        assert await s.settle(fail(held, increment=increment(held, "dlq"))) == ["JobNotInflight"]
        assert await counted(s) == [("q", "t", "done", 1, 0, 0)]

    async def test_D13_settles_at_once_lose_no_count(self, s: Scene) -> None:
        """D13: of several handles, all for the same total."""
        scenes = [s, *[await s.another() for _ in range(3)]]
        await s.add(*(job(f"j{n}") for n in range(40)))
        held = await s.reserve(40)

        async def settle(scene: Scene, jobs: list[JobRecord]) -> None:
            for it in jobs:
                await scene.end(ack(it, started_at=at(0), increment=increment(it)))

        await asyncio.gather(*(settle(scene, held[number::4]) for number, scene in enumerate(scenes)))
        assert await counted(s) == [("q", "t", "done", 40, 0, 0)]

    async def test_D13_totals_come_in_order_of_time_and_names(self, s: Scene) -> None:
        """D13: whatever order they were counted in; the minute is that of the settle."""
        for tick, queue, task in ((60, "a", "t"), (-60, "b", "t"), (0, "a", "u"), (0, "a", "t")):
            s.tick(tick)
            held = await s.held(f"{queue}{task}{tick}", queue=queue, type=task)
            await s.end(ack(held, started_at=s.now, increment=increment(held)))
        later = MINUTE + timedelta(minutes=1)
        names = [(MINUTE, "a", "t"), (MINUTE, "a", "u"), (MINUTE, "b", "t"), (later, "a", "t")]
        assert await s.counters.tallies(MINUTE) == [Tally(*name, "done", 1) for name in names]
        assert await s.counters.tallies(later) == [Tally(*names[-1], "done", 1)]

    async def test_D13_totals_are_bounded_in_time(self, s: Scene) -> None:
        """D13: minutes before the given time are forgotten, that very minute stays."""
        for _ in range(2):
            held = await s.held(f"at {s.now}")
            await s.end(ack(held, started_at=s.now, increment=increment(held)))
            s.tick(60)
        later = MINUTE + timedelta(minutes=1)
        await s.counters.forget_tallies(later)
        assert await s.counters.tallies(AGO) == [Tally(later, "q", "t", "done", 1)]
