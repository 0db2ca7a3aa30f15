"""R1, T2: the worker and times of the last run stay readable, and a lapsed lease is shown as lapsed."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor.core.job import JobRecord
from taskharbor.core.states import Shown
from taskharbor.driver import QueueCounts, Report
from taskharbor.testing.kit.jobs import SETTLES, ack, at, each_kind, job, put_back, token_of
from taskharbor.testing.kit.scene import Cases, Scene


def trace(record: JobRecord) -> tuple[Any, ...]:
    """The trace of the last run."""
    ran = record.worker, record.claimed_at, record.started_at
    return *ran, record.settled_token, record.settled_kind, record.settled_at


class TraceCases(Cases):
    """R1, T2."""

    @each_kind
    @pytest.mark.parametrize("reported", [False, True])
    async def test_R1_every_settle_leaves_the_trace_of_its_run(self, s: Scene, kind: str, reported: bool) -> None:
        """R1, T2: worker, claim, start and end, also of a run that ended before its first heartbeat."""
        await s.add(job("a"))
        s.tick(1)
        held = await s.claim("a", worker="host:1")
        assert (held.worker, held.claimed_at, held.started_at) == ("host:1", at(1), None)
        if reported:
            await s.extend(Report("a", token_of(held), at(1.25)))
        s.tick(1)
        await s.end(SETTLES[kind](held, started_at=at(1.25)))
        record = await s.get()
        assert trace(record) == ("host:1", at(1), at(1.25), token_of(held), kind, at(2))
        assert record.lease is None

    @pytest.mark.parametrize("apart", [False, True])
    async def test_R1_plain_successes_of_one_claim_have_each_its_own_start(self, s: Scene, apart: bool) -> None:
        """R1, D9: also if a driver writes them all by one statement, and whatever was stored between them."""
        await s.add(*(job(f"{queue}{n}", queue=queue) for n in range(30) for queue in ("q", "other")[: 1 + apart]))
        held = await s.reserve(30, lease=99)
        s.tick(60)
        starts = [None if n % 7 == 0 else at(n + n / 1000) for n in range(30)]
        await s.end(*(ack(each, started_at=start) for each, start in zip(held, starts, strict=True)))
        assert [(await s.get(each.id)).started_at for each in held] == starts
        assert {(await s.get(each.id)).settled_at for each in held} == {at(60)}

    async def test_R1_the_next_claim_begins_a_new_trace(self, s: Scene) -> None:
        """R1, T2: the worker is stored with the claim; the start is unknown, and the last settle stays recorded."""
        held = await s.held()
        await s.end(put_back(held, started_at=at(0)))
        s.tick(5)
        await s.claim("a", worker="another")
        assert trace(await s.get()) == ("another", at(5), None, token_of(held), "put_back", at(0))

    async def test_R1_a_reclaim_names_the_new_worker(self, s: Scene) -> None:
        """R1, D5: the one before left only a crash."""
        await s.held(lease=5)
        s.tick(5)
        record = await s.claim("a", worker="another")
        assert (record.worker, record.claimed_at, record.crashes) == ("another", at(5), 1)

    @pytest.mark.parametrize("how", ["cancelled", "dead", "lapsed and cancelled", "lapsed and dead"])
    async def test_R1_the_trace_survives_a_cancel_or_dead_letter_by_hand(self, s: Scene, how: str) -> None:
        """R1: a cancel or a dead letter by hand is not a run, and the last run can still be read."""
        held = await s.held(lease=5)
        if "lapsed" not in how:
            await s.end(put_back(held, started_at=at(0)))
        before = await s.get()
        s.tick(1)
        await s.request("cancel" if "cancelled" in how else "dead_letter")
        s.tick(10)
        await s.sweep()
        record = await s.get()
        assert record.state == ("cancelled" if "cancelled" in how else "dlq")
        assert trace(record) == trace(before)

    async def test_T2_a_lapsed_lease_shows_as_lapsed(self, s: Scene) -> None:
        """T2: from expiry until the job is taken over, whether or not it had started."""
        await s.held("claimed", lease=5)
        held = await s.held("running", lease=5)
        await s.extend(Report("running", token_of(held), at(0)), lease=5)
        s.tick(4.999999)
        assert await s.shown() == {Shown.CLAIMED: ["claimed"], Shown.RUNNING: ["running"]}
        s.tick(0.000001)
        assert await s.shown() == {Shown.LAPSED: ["claimed", "running"]}
        await s.claim("claimed", worker="another")
        assert await s.shown() == {Shown.CLAIMED: ["claimed"], Shown.LAPSED: ["running"]}

    @pytest.mark.parametrize("paused", [False, True])
    async def test_T2_lapsed_jobs_are_counted_as_due(self, s: Scene, paused: bool) -> None:
        """T2: since their lease ran out, in a paused queue too, without any write."""
        await s.held("a", lease=5)
        await s.held("b", lease=9)
        await s.add(job("c", run_at=at(7)))
        await s.manage.pause("q", paused)
        s.tick(4)
        assert await s.look.counts(s.now) == [QueueCounts(queue="q", paused=paused, claimed=2, scheduled=1)]
        s.tick(6)
        expected = QueueCounts(queue="q", paused=paused, lapsed=2, ready=1, oldest_due=at(5))
        assert await s.look.counts(s.now) == [expected]
        await s.reserve(0)
        assert await s.look.counts(s.now) == [expected]
