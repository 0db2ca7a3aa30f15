"""D2-D5: which jobs reserve returns, which never, and how lapsed jobs are taken over."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor.core.job import Progress
from taskharbor.core.reserved import TASKS
from taskharbor.driver import Extended, Report, Reschedule
from taskharbor.errors import InvalidLeaseDuration
from taskharbor.testing.kit.jobs import SETTLES, ack, at, child, each_kind, fail, job, lease_of, put_back, token_of
from taskharbor.testing.kit.scene import Cases, Scene


class ReserveCases(Cases):
    """D2-D5."""

    async def test_D2_an_empty_store_gives_an_empty_list(self, s: Scene) -> None:
        """D2: an empty or unknown queue is not an error."""
        assert await s.reserve(10) == []
        assert await s.reserve(10, queues=["never", "heard", "of"]) == []
        assert await s.reserve(10, queues=[]) == []

    @pytest.mark.parametrize("limit", [0, 1, 3, 5, 50])
    async def test_D2_never_more_than_the_limit(self, s: Scene, limit: int) -> None:
        """D2: up to `limit` jobs, the rest stays ready."""
        await s.add(*(job(f"j{n}") for n in range(5)))
        claimed = await s.reserve(limit)
        assert len(claimed) == min(limit, 5)
        states = await s.states(*(f"j{n}" for n in range(5)))
        assert states.count("inflight") == len(claimed)

    async def test_D2_a_claim_moves_the_job_to_inflight_under_a_lease(self, s: Scene) -> None:
        """D2: the record returned is the one stored, and nothing else of it changed."""
        await s.add(job("a", priority=3))
        before = await s.get()
        [claimed] = await s.reserve(worker="host-1")
        assert await s.get() == claimed
        lease = lease_of(claimed)
        assert (claimed.state, claimed.version, lease.worker) == ("inflight", 1, "host-1")
        assert (lease.claimed_at, lease.expires_at) == (s.now, at(30))
        assert (claimed.due_at, claimed.payload, claimed.priority) == (before.due_at, before.payload, 3)
        assert (claimed.crashes, claimed.attempts, claimed.settled_token) == (0, 0, None)

    async def test_D2_only_the_queues_asked_for(self, s: Scene) -> None:
        """D2: other queues are left alone."""
        await s.add(job("a", queue="mail"), job("b", queue="Mail"), job("c", queue="mail2"))
        assert await s.order(queues=["mail"]) == ["a"]
        assert await s.order(queues=["mail"]) == []

    async def test_D2_with_ids_exactly_those_are_claimed(self, s: Scene) -> None:
        """D2: whatever is before them in line."""
        await s.add(*(job(f"j{n}", priority=n) for n in range(5)))
        claimed = await s.reserve(9, ids=["j1", "nobody", "j3"])
        assert [job.id for job in claimed] == ["j1", "j3"]
        assert await s.states("j0", "j2", "j4") == ["ready"] * 3

    async def test_D2_ids_choose_only_among_claimable_jobs(self, s: Scene) -> None:
        """D2, D3: ids choose among claimable jobs."""
        await s.held("held")
        await s.end(ack(await s.held("done")))
        await s.add(job("later", run_at=at(60)), job("p", queue="x"), child("waits", "p"))
        assert await s.without_effect(s.reserve(9, ids=["held", "done", "later", "waits", "nobody"])) == []

    async def test_D2_ids_named_twice_are_claimed_once(self, s: Scene) -> None:
        """D2: one job, one lease."""
        await s.add(job("a"))
        assert [job.id for job in await s.reserve(9, ids=["a", "a"])] == ["a"]
        assert (await s.get()).version == 1

    async def test_D2_ids_reclaim_a_lapsed_job(self, s: Scene) -> None:
        """D2, D5: claim by id is a claim like any other."""
        await s.held(lease=5)
        s.tick(5)
        assert (await s.claim("a")).crashes == 1

    async def test_D2_M1_tasks_are_handed_out_by_id_only(self, s: Scene) -> None:
        """D2, M1: a TaskManager's queue is never searched, even if named; its jobs are claimed by id."""
        await s.add(job("t", queue=TASKS, priority=100), job("a"))
        assert await s.without_effect(s.reserve(9, queues=[TASKS])) == []
        assert await s.order(queues=["q", TASKS]) == ["a"]
        assert [job.id for job in await s.reserve(9, queues=[], ids=["t"])] == ["t"]

    async def test_D2_M1_a_lapsed_task_is_taken_over_by_id_only(self, s: Scene) -> None:
        """D2, D5, M1: neither are lapsed, put-back or replayed ones."""
        await s.add(job("t", queue=TASKS))
        await s.claim("t", lease=5)
        s.tick(5)
        assert await s.reserve(9, queues=[TASKS, "q"]) == []
        again = await s.claim("t", lease=5)
        assert (again.version, again.crashes) == (2, 1)
        await s.end(put_back(again))
        assert await s.reserve(9, queues=[TASKS, "q"]) == []
        await s.end(fail(await s.claim("t")))
        await s.replay("t")
        assert await s.reserve(9, queues=[TASKS, "q"]) == []
        assert (await s.claim("t")).version == 4

    async def test_D2_M1_the_queue_of_tasks_takes_no_share(self, s: Scene) -> None:
        """D2, D11, M1: naming it does not reduce the jobs of the other queues."""
        await s.add(*(job(f"t{n}", queue=TASKS) for n in range(4)), *(job(f"j{n}") for n in range(4)))
        assert await s.order(4, queues=[TASKS, "q"]) == ["j0", "j1", "j2", "j3"]

    async def test_D13_M1_a_worker_is_not_woken_for_tasks(self, s: Scene) -> None:
        """D13, M1: their queue never has a next due time."""
        await s.add(job("t", queue=TASKS), job("a", run_at=at(60)))
        assert await s.waits.next_due([TASKS]) is None
        assert await s.waits.next_due([TASKS, "q"]) == at(60)

    async def test_D2_every_claim_has_a_token_of_its_own(self, s: Scene) -> None:
        """D2: tokens are new for every claim, in a batch too."""
        await s.add(*(job(f"j{n}") for n in range(50)))
        tokens = {token_of(job) for job in await s.reserve(50)}
        await s.end(*(put_back(record) for record in await s.all()))
        tokens |= {token_of(job) for job in await s.reserve(50)}
        assert len(tokens) == 100

    async def test_D3_never_a_job_under_a_valid_lease(self, s: Scene) -> None:
        """D3: not even one microsecond early."""
        await s.held(lease=30)
        s.tick(29.999999)
        assert await s.reserve(9) == []
        assert await s.reserve(9, ids=["a"]) == []

    async def test_D3_never_a_job_that_is_not_due(self, s: Scene) -> None:
        """D3, N1: it is due exactly at run_at."""
        await s.add(job("a", run_at=at(10)), job("b", run_at=at(11), priority=100))
        s.tick(9.999999)
        assert await s.reserve(9) == []
        s.tick(0.000001 + s.harness.due_resolution.total_seconds())
        assert "a" in await s.order()

    async def test_D3_a_retry_is_not_handed_out_before_its_time(self, s: Scene) -> None:
        """D3: PutBack's run_at holds like an enqueue's."""
        await s.end(put_back(await s.held(), run_at=at(10)))
        s.tick(9.999999)
        assert await s.reserve(9) == []
        s.tick(0.000001 + s.harness.due_resolution.total_seconds())
        assert await s.order() == ["a"]

    @each_kind
    async def test_D3_never_a_job_that_has_ended(self, s: Scene, kind: str) -> None:
        """D3: done, dlq and cancelled are final."""
        if kind == "put_back":
            held = await s.held()
            await s.withdraw("a")
            await s.end(put_back(held))
        else:
            await s.end(SETTLES[kind](await s.held()))
        s.tick(365 * 86400)
        assert await s.reserve(9) == []
        assert await s.reserve(9, ids=["a"]) == []

    async def test_D3_never_a_waiting_job(self, s: Scene) -> None:
        """D3: nor after its run_at."""
        await s.add(job("p", queue="x"), child("c", "p", run_at=at(1)))
        s.tick(2)
        assert await s.reserve(9) == []

    async def test_D3_never_an_expired_job(self, s: Scene) -> None:
        """D3, N1: at its expires_at it is too late, ready or lapsed."""
        await s.add(job("a", expires_at=at(10)), job("b", expires_at=at(10)), job("c"))
        await s.claim("b", lease=5)
        s.tick(10)
        assert await s.order() == ["c"]
        assert await s.reserve(9, ids=["a", "b"]) == []

    async def test_D3_an_unexpired_job_is_handed_out_to_the_last_microsecond(self, s: Scene) -> None:
        """D3, N1: the boundary is exact."""
        await s.add(job("a", expires_at=at(10)))
        s.tick(9.999999)
        assert await s.order() == ["a"]

    async def test_D3_never_from_a_paused_queue(self, s: Scene) -> None:
        """D3: neither by queue nor by id, neither ready nor lapsed; other jobs are not affected."""
        await s.add(job("a"), job("b"), job("c", queue="other"))
        await s.claim("b", lease=5)
        await s.manage.pause("q", True)
        s.tick(5)
        assert await s.order(queues=["q", "other"]) == ["c"]
        assert await s.reserve(9, ids=["a", "b"]) == []
        await s.manage.pause("q", False)
        assert sorted(await s.order()) == ["a", "b"]

    async def test_D3_pausing_keeps_held_jobs_alive(self, s: Scene) -> None:
        """D3: a pause stops claims; leases continue and may be settled."""
        held = await s.held()
        await s.manage.pause("q", True)
        assert await s.extend(Report("a", token_of(held))) == [Extended(at(30), False)]
        await s.end(ack(held))

    @pytest.mark.parametrize("seconds", [0, -1, -0.000001])
    async def test_D4_a_lease_must_last(self, s: Scene, seconds: float) -> None:
        """D4: for reserve and extend alike, and nothing is touched."""
        held = await s.held("held")
        await s.add(job("a"))
        extension = s.extend(Report("held", token_of(held)), lease=seconds)
        async with s.nothing_changes():
            for call in (s.reserve(lease=seconds), s.reserve(lease=seconds, ids=["a"]), extension):
                with pytest.raises(InvalidLeaseDuration):
                    await call

    async def test_D4_it_is_refused_even_when_nothing_is_due(self, s: Scene) -> None:
        """D4: a bad argument is an error on an empty store too."""
        for call in (s.reserve(lease=0), s.extend(lease=0)):
            with pytest.raises(InvalidLeaseDuration):
                await call

    async def test_D4_a_microsecond_is_a_lease(self, s: Scene) -> None:
        """D4: any positive duration is valid."""
        await s.add(job("a"))
        [claimed] = await s.reserve(lease=0.000001)
        assert lease_of(claimed).expires_at == s.now + timedelta(microseconds=1)

    async def test_D5_reserve_itself_reclaims_at_the_expiry(self, s: Scene) -> None:
        """D5: no sweeper is needed, and the boundary is exact."""
        await s.held(lease=10)
        s.tick(9.999999)
        assert await s.reserve(9) == []
        s.tick(0.000001)
        assert await s.order() == ["a"]

    async def test_D5_a_reclaim_has_a_new_token_the_next_version_and_one_more_crash(self, s: Scene) -> None:
        """D5: and attempts stay as they were."""
        first = await s.held(lease=10)
        for count in (1, 2, 3):
            s.tick(10)
            again = await s.claim("a", lease=10)
            lease = lease_of(again)
            assert lease.token != token_of(first)
            assert (again.version, lease.version) == (count + 1, count + 1)
            assert (again.crashes, again.attempts) == (count, 0)
            assert (lease.claimed_at, lease.expires_at) == (s.now, s.now + timedelta(seconds=10))
            assert again.settled_token is None
            first = again

    async def test_D5_T2_a_reclaim_in_line_changes_what_one_by_id_does(self, s: Scene) -> None:
        """D5, T2: token, version and crashes; `run_at`, start and progress are cleared."""
        await s.add(job("a", run_at=at(-5)))
        [first] = await s.reserve(lease=10)
        assert first.run_at == at(-5)
        for count in (1, 2, 3):
            await s.extend(Report("a", token_of(first), s.now, Progress(0.9, "nearly")), lease=10)
            s.tick(10)
            [again] = await s.reserve(lease=10)
            assert token_of(again) != token_of(first)
            assert (again.version, again.crashes, again.attempts) == (count + 1, count, 0)
            assert (again.run_at, again.started_at, again.progress) == (None, None, None)
            assert await s.get() == again
            first = again

    async def test_D5_a_reclaim_is_stored(self, s: Scene) -> None:
        """D5: reserve returns the stored record."""
        await s.held(lease=5)
        s.tick(5)
        [again] = await s.reserve(worker="second")
        assert await s.get() == again

    async def test_D5_a_reclaimed_job_is_runnable_now(self, s: Scene) -> None:
        """D5: its run_at is cleared; a first claim keeps it."""
        await s.add(job("a", run_at=at(-5)))
        assert (await s.claim("a", lease=5)).run_at == at(-5)
        s.tick(5)
        assert (await s.claim("a")).run_at is None

    async def test_D5_identity_is_the_token_not_the_worker(self, s: Scene) -> None:
        """D5: a restarted worker with the same name holds nothing that it did not claim."""
        old = await s.held(lease=5)
        s.tick(5)
        new = await s.claim("a", worker="w")
        assert await s.settle(ack(old)) == ["LeaseMismatch"]
        await s.end(ack(new))

    async def test_D5_a_put_back_or_release_is_not_a_crash(self, s: Scene) -> None:
        """D5: only a lapsed lease counts."""
        await s.end(put_back(await s.held()))
        again = await s.claim("a")
        assert (again.version, again.crashes) == (2, 0)

    async def test_D5_crashes_are_copied_from_the_settle(self, s: Scene) -> None:
        """D5, D9: drivers count the lapse and copy the rest; a fresh claim adds nothing."""
        await s.held(lease=5)
        s.tick(5)
        await s.end(put_back(await s.claim("a"), crashes=1, run_at=s.now))
        assert (await s.claim("a", lease=5)).crashes == 1
        s.tick(5)
        assert (await s.claim("a")).crashes == 2

    async def test_D5_an_extended_lease_is_reclaimed_at_its_new_end_only(self, s: Scene) -> None:
        """D5, D6: the extension counts, not the first expiry."""
        held = await s.held(lease=10)
        s.tick(9)
        await s.extend(Report("a", token_of(held)), lease=10)
        s.tick(9.999999)
        assert await s.reserve(9) == []
        s.tick(0.000001)
        assert await s.order() == ["a"]

    async def test_D5_many_leases_lapsing_at_once_are_all_reclaimed(self, s: Scene) -> None:
        """D5: each exactly once."""
        ids = [f"j{n:03}" for n in range(200)]
        await s.add(*(job(id) for id in ids))
        await s.reserve(200, lease=5)
        s.tick(5)
        got = await s.order(150) + await s.order(150)
        assert sorted(got) == ids
        assert {job.version for job in await s.all()} == {2}

    async def test_D5_a_dead_job_replayed_is_claimed_with_the_next_version(self, s: Scene) -> None:
        """D5, Q2: versions never start over."""
        await s.end(fail(await s.held()))
        await s.replay("a")
        assert (await s.claim("a")).version == 2

    async def test_D5_a_reclaim_keeps_a_jobs_rank(self, s: Scene) -> None:
        """D5: rescheduling a held job is refused, so its priority stays what it was."""
        await s.held(lease=5, priority=4)
        assert await s.manage.reschedule([Reschedule(id="a", priority=9)], s.now) == [False]
        s.tick(5)
        assert (await s.claim("a")).priority == 4
