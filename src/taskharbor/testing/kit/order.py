"""D11: the exact order of jobs, without concurrency."""

from __future__ import annotations

from datetime import datetime
from random import Random

import pytest

from taskharbor.core.job import NewJob
from taskharbor.driver import Reschedule
from taskharbor.testing.kit.jobs import ack, at, job, put_back
from taskharbor.testing.kit.scene import Cases, Scene


class OrderCases(Cases):
    """D11."""

    async def test_D11_equal_jobs_are_first_in_first_out(self, s: Scene) -> None:
        """D11: in the order of enqueue, within a group and across calls, whatever their ids."""
        await s.add(job("m"), job("z"), job("a"))
        await s.add(job("k"))
        await s.add(job("b"))
        assert await s.order() == ["m", "z", "a", "k", "b"]

    @pytest.mark.parametrize("limit", [1, 2, 100])
    async def test_D11_higher_priority_first(self, s: Scene, limit: int) -> None:
        """D11: whatever was enqueued first or is due longer."""
        ranks = [0, -100, 7, 100, 7, -1, 0]
        await s.add(*(job(f"j{n}", priority=rank, run_at=at(-n)) for n, rank in enumerate(ranks)))
        got: list[str] = []
        for _ in ranks:
            got += await s.order(limit)
        assert got == ["j3", "j4", "j2", "j6", "j0", "j5", "j1"]

    async def test_D11_earlier_due_first(self, s: Scene) -> None:
        """D11: within a priority, the job that has been due longest."""
        await s.add(job("now"), job("long", run_at=at(-100)), job("short", run_at=at(-50)))
        assert await s.order() == ["long", "short", "now"]

    async def test_D11_without_run_at_the_enqueues_now_counts(self, s: Scene) -> None:
        """D11: a job that became due between two enqueues comes between them."""
        await s.add(job("first"), job("third", run_at=at(20)))
        s.tick(10)
        await s.add(job("second"))
        s.tick(20)
        await s.add(job("fourth"))
        assert await s.order() == ["first", "second", "third", "fourth"]

    async def test_D11_scheduled_jobs_do_not_starve_behind_immediate_ones(self, s: Scene) -> None:
        """D11: a due job goes before jobs enqueued after its time."""
        await s.add(job("planned", run_at=at(5)))
        s.tick(10)
        await s.add(*(job(f"j{n}") for n in range(20)))
        assert (await s.order(1)) == ["planned"]

    async def test_D11_a_microsecond_makes_an_order(self, s: Scene) -> None:
        """D11, R3: due times are compared exactly, unless a coarser resolution was declared."""
        if s.harness.due_resolution:
            pytest.skip("the driver declares a coarser due resolution (D11)")
        await s.add(job("b", run_at=at(-0.000001)), job("c"), job("a", run_at=at(-0.000002)))
        assert await s.order() == ["a", "b", "c"]

    async def test_D11_a_retry_is_in_line_by_its_new_time(self, s: Scene) -> None:
        """D11: run_at of the PutBack, then enqueue order."""
        await s.add(job("retried"), job("x", run_at=at(30)), job("y", run_at=at(50)))
        await s.end(put_back(await s.claim("retried"), run_at=at(40)))
        s.tick(60)
        assert await s.order() == ["x", "retried", "y"]

    async def test_D11_a_retry_at_the_same_time_keeps_its_enqueue_order(self, s: Scene) -> None:
        """D11: ties are broken by the first enqueue, not by the last write."""
        await s.add(job("a"), job("b"), job("c"))
        for held in await s.reserve(2):
            await s.end(put_back(held, run_at=s.now))
        assert await s.order() == ["a", "b", "c"]

    @pytest.mark.parametrize("priority", [0, 1])
    async def test_D11_a_first_reclaim_goes_to_the_front(self, s: Scene, priority: int) -> None:
        """D11: a job that crashed once counts as due since the beginning of time, within its priority."""
        await s.add(job("old", run_at=at(-9999), priority=priority), job("crashed"))
        await s.claim("crashed", lease=5)
        s.tick(5)
        assert await s.order() == (["old", "crashed"] if priority else ["crashed", "old"])

    async def test_D11_a_second_reclaim_queues_by_its_last_expiry(self, s: Scene) -> None:
        """D11: so that a poison job does not stay at the front of the line."""
        await s.add(job("poison"))
        await s.claim("poison", lease=10)
        s.tick(10)
        await s.claim("poison", lease=10)
        s.tick(5)
        await s.add(job("before"))
        s.tick(5)
        await s.add(job("tie"))
        s.tick(1)
        await s.add(job("after"))
        assert await s.order() == ["before", "poison", "tie", "after"]

    async def test_D11_several_first_reclaims_keep_their_enqueue_order(self, s: Scene) -> None:
        """D11: all count as due since the beginning of time, so enqueue order decides."""
        await s.add(job("a"), job("b"), job("c"))
        await s.claim("c", lease=1)
        await s.claim("a", lease=3)
        await s.claim("b", lease=2)
        s.tick(10)
        assert await s.order() == ["a", "b", "c"]

    async def test_D11_rescheduling_moves_a_job_in_line(self, s: Scene) -> None:
        """D11: priority and time may change while a job is ready."""
        await s.add(job("a"), job("b"), job("c"))
        changes = [Reschedule(id="c", priority=1), Reschedule(id="a", run_at=at(5))]
        assert await s.manage.reschedule(changes, s.now) == [True, True]
        assert await s.order() == ["c", "b"]
        s.tick(5)
        assert await s.order() == ["a"]

    async def test_D11_a_reschedule_to_an_earlier_time_makes_due(self, s: Scene) -> None:
        """D11: a future job can be pulled forward."""
        await s.add(job("a", run_at=at(3600)))
        await s.manage.reschedule([Reschedule(id="a", run_at=at(0))], s.now)
        assert await s.order() == ["a"]

    @pytest.mark.parametrize("option", [{"run_at": at(3600)}, {"expires_at": at(5)}], ids=["future", "expired"])
    async def test_D11_a_future_or_expired_job_of_high_priority_blocks_no_other(
        self, s: Scene, option: dict[str, datetime]
    ) -> None:
        """D11, F7: only jobs that may run now stand in line, however many others there are."""
        await s.add(*(job(f"j{n}", priority=100, **option) for n in range(50)), job("a"))
        s.tick(5)
        assert await s.order(1) == ["a"]
        assert await s.order() == []

    async def test_D11_a_long_random_line_is_handed_out_in_order(self, s: Scene) -> None:
        """D11: priority, due time, enqueue order, over 300 jobs in batches."""
        rng = Random(11)
        places: list[tuple[int, int, int]] = []
        jobs: list[NewJob] = []
        for number in range(300):
            rank, due = rng.randint(-3, 3), -5 * rng.randint(0, 20)
            places.append((-rank, due, number))
            jobs.append(job(f"j{number}", priority=rank, run_at=at(due)))
        await s.add(*jobs)
        got: list[str] = []
        for _ in range(100):
            got += await s.order(rng.randint(1, 40))
        assert got == [f"j{number}" for _, _, number in sorted(places)]

    async def test_D11_several_queues_share_the_limit(self, s: Scene) -> None:
        """D11: a full queue does not starve the others."""
        await s.add(*(job(f"a{n:02}", queue="a", priority=100) for n in range(30)))
        await s.add(*(job(f"{queue}{n:02}", queue=queue) for queue in "bc" for n in range(2)))
        got = await s.order(9, queues=["a", "b", "c"])
        assert [sum(id.startswith(queue) for id in got) for queue in "abc"] == [5, 2, 2]
        assert [id for id in got if id.startswith("a")] == [f"a{n:02}" for n in range(5)]

    async def test_D11_unused_shares_go_to_the_other_queues(self, s: Scene) -> None:
        """D11: the limit is used up while anything is due."""
        await s.add(*(job(f"j{n}", queue="b") for n in range(9)))
        assert len(await s.order(8, queues=["a", "b", "c"])) == 8

    async def test_D11_a_queue_named_more_often_has_more_shares(self, s: Scene) -> None:
        """D11: weights are repetition."""
        await s.add(*(job(f"{queue}{n}", queue=queue) for queue in "ab" for n in range(9)))
        got = await s.order(8, queues=["a", "b", "a", "a"])
        assert [sum(id.startswith(queue) for id in got) for queue in "ab"] == [6, 2]
        assert len(set(got)) == 8

    async def test_D11_order_holds_within_each_of_several_queues(self, s: Scene) -> None:
        """D11: no order is promised across queues, a strict one within each."""
        await s.add(*(job(f"{queue}{n}", queue=queue, priority=n) for n in range(4) for queue in "ab"))
        got = await s.order(99, queues=["a", "b"])
        for queue in "ab":
            assert [id for id in got if id.startswith(queue)] == [f"{queue}{n}" for n in (3, 2, 1, 0)]

    async def test_D11_finished_jobs_leave_no_gap(self, s: Scene) -> None:
        """D11: jobs that were done, cancelled or deleted leave no gaps in the line."""
        await s.add(*(job(f"j{n}") for n in range(6)))
        first, second = await s.reserve(2)
        await s.end(ack(first), ack(second))
        await s.withdraw("j2")
        await s.manage.delete(["j0", "j2"])
        assert await s.order(2) == ["j3", "j4"]
        assert await s.order(2) == ["j5"]
