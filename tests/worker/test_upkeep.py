"""The upkeep of the store by workers, beside their jobs."""

from __future__ import annotations

import asyncio
import os
import socket
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from taskharbor import Retry, Snooze, current
from taskharbor.admin.stats import totals
from taskharbor.driver import Tally
from taskharbor.errors import JobCancelled
from taskharbor.manager import TaskManager
from taskharbor.worker import upkeep
from world import World, time, until, virtual


@virtual
async def test_an_expired_job_is_cancelled_and_not_run() -> None:
    """N1: within a second or so of its time, whether it waits, is scheduled, or was put back."""
    world = World(retry=Retry.fixed(100))
    runs = 0

    @world.harbor.task
    async def work() -> None:
        nonlocal runs
        runs += 1
        raise ValueError

    late = await work.using(delay=50, expires=20).aenqueue()
    at = await work.using(queue="nobody", expires=world.clock() + timedelta(seconds=10)).aenqueue()
    failed = await work.using(expires=timedelta(seconds=30)).aenqueue()
    ends = {}
    async with world.worker("default"):
        for job in (at, late, failed):
            with pytest.raises(JobCancelled):
                await job.aresult()
            ends[job.id] = time()
    assert runs == 1
    assert 10 <= ends[at.id] <= 11.3
    assert 20 <= ends[late.id] <= 21.3
    assert 30 <= ends[failed.id] <= 31.3


@virtual
async def test_a_job_that_expires_while_it_runs_may_finish() -> None:
    """N1: "not run after that time" is about the start."""
    world = World()

    @world.harbor.task
    async def work() -> str:
        await asyncio.sleep(50)
        return "done"

    job = await work.using(expires=10).aenqueue()
    async with world.worker():
        assert await job.aresult() == "done"


@virtual
async def test_finished_jobs_are_pruned_after_their_retention_in_small_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    """X8: done and dead apart."""
    monkeypatch.setattr(upkeep, "BITE", 10)
    world = World(keep_done=100, keep_dead=300, max_attempts=1)

    @world.harbor.task
    async def work(fails: bool) -> None:
        if fails:
            raise ValueError

    await world.harbor.aenqueue_many(work.step(number % 2 == 0) for number in range(60))
    async with world.worker():
        await asyncio.sleep(95)
        assert len(world.memory._store.jobs) == 60
        await asyncio.sleep(25)
        assert len(world.memory._store.jobs) == 30
        await asyncio.sleep(200)
        assert len(world.memory._store.jobs) == 0
    assert {call["limit"] for call in world.log.calls("prune")} == {10}
    bites = [operation.value for operation in world.log.log if operation.verb == "prune" and operation.value]
    assert bites == [10] * 6


@virtual
async def test_a_retention_of_zero_forgets_at_once() -> None:
    """X8, I3: but a key that lives keeps its record."""
    world = World(keep_done=0)

    @world.harbor.task
    async def work() -> None: ...

    job = await work.aenqueue()
    keyed = await work.using(idempotency_key="k", idempotency_ttl=100).aenqueue()
    async with world.worker():
        await asyncio.sleep(15)
        assert await world.memory.get([job.id]) == [None]
        assert await world.state(keyed) == "done"
        await asyncio.sleep(100)
        assert await world.memory.get([keyed.id]) == [None]


@virtual
async def test_a_worker_reports_itself_and_says_goodbye() -> None:
    """D13: Registry."""
    world = World()

    @world.harbor.task
    async def work() -> None:
        await asyncio.sleep(100)

    async with world.worker("default", "mail", concurrency=7) as worker:
        await asyncio.sleep(1)
        await work.aenqueue()
        await asyncio.sleep(30)
        (seen,) = await world.harbor.admin.workers.alist()
        assert (seen.id, seen.host, seen.pid) == (worker.id, socket.gethostname(), os.getpid())
        assert (seen.queues, seen.slots, seen.busy) == (("default", "mail"), 7, 1)
        assert world.clock() - seen.seen_at < timedelta(seconds=15)
    assert await world.harbor.admin.workers.alist() == []


@virtual
async def test_totals_per_minute_distinguish_retries_from_releases() -> None:
    """D13: Counters; a snooze after a failure is not a retry."""
    world = World(retry=Retry.fixed(1))

    @world.harbor.task(name="t", queue="q")
    async def work() -> None:
        version = current().lease_version
        await asyncio.sleep(2)
        if version == 1:
            raise ValueError
        if version == 2:
            raise Snooze(1)

    async with world.worker():
        await (await work.aenqueue()).aresult()
    tallies = (await world.harbor.admin.astats()).tallies
    assert {(tally.queue, tally.task, tally.outcome, tally.count) for tally in tallies} == {
        ("q", "t", "retried", 1),
        ("q", "t", "released", 1),
        ("q", "t", "done", 1),
    }
    assert [round(tally.seconds) for tally in tallies] == [2, 2, 2]
    assert all(tally.minute.second == 0 for tally in tallies)


@virtual
async def test_totals_show_what_did_not_start() -> None:
    """D13, C: a job of an unknown task is put back without a run, and takes no part in the mean."""
    world = World()
    await world.harbor.aenqueue("t", {}, queue="q")
    async with world.worker("q"):
        await asyncio.sleep(2)

    @world.harbor.task(name="t", queue="q")
    async def work() -> None:
        await asyncio.sleep(4)

    await work.aenqueue()
    async with world.worker("q"):
        await asyncio.sleep(30)
    found = await world.harbor.admin.astats()
    totals = {(tally.outcome, tally.count, round(tally.seconds)) for tally in found.tallies}
    (put_back,) = found.unstarted
    assert (put_back.outcome, put_back.seconds) == ("released", 0)
    assert totals == {("released", put_back.count, 0), ("done", 2, 8)}


def test_totals_of_one_outcome_are_one_row_whether_they_started_or_not() -> None:
    """D13: jobs that a worker returned at its stop, beside those that never started."""
    minute = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [Tally(minute, "q", "t", "not_started:released", 3), Tally(minute, "q", "t", "released", 2, 10.0, 4.0)]
    assert totals(rows) == (
        [Tally(minute, "q", "t", "released", 5, 10.0, 4.0)],
        [Tally(minute, "q", "t", "released", 3)],
    )


@virtual
async def test_drain_adds_its_totals_up() -> None:
    """D13."""
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    await world.harbor.aenqueue_many(work.step() for _ in range(4))
    await world.drain()
    assert [tally.count for tally in (await world.harbor.admin.astats()).tallies] == [4]


@virtual
async def test_upkeep_does_not_hold_up_the_jobs() -> None:
    world = World()

    @world.harbor.task
    async def work() -> float:
        return time()

    async with world.worker() as worker:
        await until(lambda: time() > 5)
        asked = time()
        assert await (await work.aenqueue()).aresult() == asked
        assert worker.finished == 1


@virtual
async def test_totals_are_there_with_the_outcome() -> None:
    """D9: while the worker runs on; a kill takes none along."""
    world = World()

    @world.harbor.task
    async def work() -> None:
        await asyncio.sleep(3)

    async with world.worker():
        await (await work.aenqueue()).aresult()
        (total,) = (await world.harbor.admin.astats()).tallies
        assert (total.outcome, total.count, total.seconds, total.waited) == ("done", 1, 3, 0)


@virtual
async def test_a_killed_worker_is_forgotten_after_an_hour() -> None:
    """D13: its last report stays readable so long."""
    world = World()

    async with world.worker():
        await asyncio.sleep(5)
        (seen,) = await world.memory.workers(world.clock() - timedelta(minutes=1))
    for minutes in (59, 61):
        await world.memory.beat(replace(seen, id=f"{minutes}", seen_at=world.clock() - timedelta(minutes=minutes)))
    async with world.worker() as last:
        await asyncio.sleep(15)
        known = await world.memory.workers(world.clock() - timedelta(days=1))
        assert {worker.id for worker in known} == {"59", last.id}


@virtual
async def test_old_totals_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """D13: by workers that count new ones."""
    monkeypatch.setattr(upkeep, "KEEP_TALLIES", timedelta(minutes=2))
    world, kept = World(), list[int]()

    @world.harbor.task
    async def work() -> None: ...

    async with world.worker():
        for _ in range(8):
            await (await work.aenqueue()).aresult()
            await asyncio.sleep(60)
            kept.append(len(await world.memory.tallies(world.clock() - timedelta(days=1))))
    assert kept[:2] == [1, 2]
    assert max(kept) <= 3


@virtual
async def test_a_run_that_is_stopped_for_a_dead_letter_counts_as_dead() -> None:
    """D9, Q4: the worker puts it back, and the store ends it."""
    world = World()

    @world.harbor.task
    async def work() -> None:
        await asyncio.sleep(600)

    async with world.worker():
        job = await work.aenqueue()
        await asyncio.sleep(5)
        await world.harbor.admin.jobs.adead_letter([job.id], reason="wrong customer")
        await asyncio.sleep(30)
    (total,) = (await world.harbor.admin.astats()).tallies
    assert (total.outcome, total.count) == ("dlq", 1)


@virtual
async def test_tasks_of_agents_are_not_in_the_totals() -> None:
    """D9, M1: their claims are not runs of a worker."""
    world = World()
    manager = TaskManager(world.memory, clock=world.clock)
    task = await manager.asubmit(b"x")
    await manager.aclaim(task, "agent")
    await manager.acomplete(task, "agent", b"1")
    assert (await world.harbor.admin.astats()).tallies == []
