"""Leases: renewed from the claim to the durable settle, given up in time, and never needed for a second write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from taskharbor import Job, current
from taskharbor.driver import Driver
from taskharbor.testing import LostReply, Outage, Slow, Wrapper, script
from world import World, time, until, virtual

LEASE = 30.0


class Hanging(Wrapper):
    """A store that does not even refuse: while `hanging`, calls never come back."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.hanging = False

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Any]) -> Any:
        if self.hanging:
            await asyncio.Event().wait()
        return await call()


class Stuck(Wrapper):
    """A store that confirms claims late, by `late` seconds; if `stuck`, the next renewal never comes back."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.late = 0.0
        self.stuck = False

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Any]) -> Any:
        if verb == "extend_lease" and self.stuck:
            self.stuck = False
            await asyncio.Event().wait()
        result = await call()
        if verb == "reserve" and result:
            await asyncio.sleep(self.late)
        return result


class Extends(Wrapper):
    """Calls `before` when leases are about to be renewed."""

    def __init__(self, inner: Driver, before: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super().__init__(inner)
        self._before = before

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Any]) -> Any:
        if verb == "extend_lease":
            await self._before()
        return await call()


@virtual
async def test_a_lease_is_renewed_three_times_per_lease_for_as_long_as_the_handler_runs() -> None:
    """L1, L2: lease 30 s, heartbeat every 10 s; a run of ten leases is one run."""
    world = World()
    runs = 0

    @world.harbor.task
    async def long() -> None:
        nonlocal runs
        runs += 1
        await asyncio.sleep(10 * LEASE)

    job = await long.aenqueue()
    async with world.worker(), world.worker():
        await job.aresult()
    assert runs == 1
    assert (await world.record(job)).version == 1
    extends = [call["now"] for call in world.log.calls("extend_lease")]
    assert all(later - earlier <= timedelta(seconds=10, milliseconds=1) for earlier, later in pairwise(extends))
    assert len(extends) == pytest.approx(30, abs=1)


@virtual
async def test_heartbeats_go_on_until_the_settle_is_durable() -> None:
    """L2: a settle that takes three leases is still accepted, because the lease is renewed beside it."""
    world = World(lambda inner: Slow(inner, 14, lambda verb: verb == "settle"), store_timeout=1000)

    @world.harbor.task
    async def quick() -> str:
        return "done"

    job = await quick.aenqueue()
    async with world.worker(lease=9):
        # Each trip outlasts the settler's patience of one lease, so its first settle never arrives.
        await asyncio.sleep(8)
        assert len(world.log.calls("extend_lease")) == 2
        assert await world.state(job) == "inflight"
    job = await quick.aenqueue()
    slow = World(lambda inner: Slow(inner, 14, lambda verb: verb == "settle"))

    @slow.harbor.task
    async def other() -> str:
        return "done"

    job = await other.aenqueue()
    async with slow.worker(lease=LEASE) as worker, slow.worker():
        assert await job.aresult() == "done"
        await until(lambda: worker.finished == 1)
        assert time() >= 28
        assert slow.log.calls("extend_lease")
    assert (await slow.record(job)).version == 1


@virtual
async def test_the_keeper_drops_a_lease_once_it_is_settled() -> None:
    """L2: nothing is renewed that is settled."""
    world = World()

    @world.harbor.task
    async def quick() -> None: ...

    async with world.worker():
        await (await quick.aenqueue()).aresult()
        await asyncio.sleep(100)
    assert world.log.calls("extend_lease") == []


@virtual
async def test_a_refused_renewal_cancels_the_handler_and_writes_nothing() -> None:
    """L4, L5: the run that lost the lease is stopped, and the newer claim stays as it is."""
    world = World()
    ends: list[str] = []

    @world.harbor.task
    async def long() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            ends.append(f"cancelled at {time():g}")
            assert current().cancelled
            raise

    job = await long.aenqueue()
    async with world.worker() as worker:
        await until(lambda: worker.busy == 1)
        record = await world.record(job)
        assert record.lease is not None
        # The store forgets the lease: as if it had lapsed and another worker had come.
        (stolen,) = await world.memory.reserve(
            ["default"], world.clock() + timedelta(hours=1), timedelta(hours=2), 1, "thief"
        )
        await until(lambda: worker.busy == 0)
        assert ends == ["cancelled at 0.9"]
        assert await world.record(job) == stolen
        await asyncio.sleep(60)
        assert await world.record(job) == stolen
    assert world.settled() == []


@pytest.mark.parametrize("fault", [Outage, Hanging])
@virtual
async def test_in_an_outage_the_handler_ends_when_its_lease_must_be_taken_for_lost(
    fault: type[Outage] | type[Hanging],
) -> None:
    """L4, X2: by the monotonic clock, at the moment when another worker might claim the job, and not later."""
    world = World(fault)
    store: Any = world.store
    ends: list[float] = []

    @world.harbor.task
    async def long() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ends.append(time())

    job = await long.aenqueue()
    async with world.worker() as worker:
        await until(lambda: worker.busy == 1)
        await asyncio.sleep(12 - time())  # renewed at 10
        setattr(store, "down" if fault is Outage else "hanging", True)
        await until(lambda: ends)
        record = await world.record(job)
        assert record.lease is not None
        lapses = (record.lease.expires_at - world.clock()).total_seconds() + time()
        assert lapses - 1 <= ends[0] <= lapses + 0.001
        assert record.state == "inflight"
        assert world.settled() == []
        setattr(store, "down" if fault is Outage else "hanging", False)
        await until(lambda: worker.busy == 1)
        assert (await world.record(job)).version == 2


@virtual
async def test_an_outcome_that_comes_too_late_is_not_written() -> None:
    """L4, L5: the outcome of a run whose lease was lost meanwhile is dropped, not sent."""
    world = World(Outage)
    store = world.store

    @world.harbor.task
    async def work() -> int:
        store.down = current().lease_version == 1
        return current().lease_version

    job = await work.aenqueue()
    async with world.worker() as worker:
        await until(lambda: store.down)
        await asyncio.sleep(LEASE + 20)
        assert worker.busy == 0
        store.down = False
        assert await job.aresult() == 2
    assert [len(batch) for batch in world.settled()] == [1]


@virtual
async def test_a_handler_that_ignores_a_lost_lease_keeps_its_slot_and_writes_nothing() -> None:
    """L4: the slot stays taken until the handler really ends."""
    world = World()
    ended = False

    @world.harbor.task
    async def stubborn() -> None:
        nonlocal ended
        until_then = time() + 60
        while time() < until_then:
            try:
                await asyncio.sleep(until_then - time())
            except asyncio.CancelledError:
                continue
        ended = True

    await stubborn.aenqueue()
    async with world.worker(concurrency=1) as worker:
        await until(lambda: worker.busy == 1)
        await world.memory.reserve(["default"], world.clock() + timedelta(hours=1), timedelta(hours=2), 1, "thief")
        await asyncio.sleep(30)
        assert worker.busy == 1
        await until(lambda: ended)
        await asyncio.sleep(0.1)
        assert worker.busy == 0
    assert world.settled() == []


@virtual
async def test_lease_and_timeout_are_independent() -> None:
    """L7: a timeout longer than the lease, and a lease longer than the timeout."""
    world = World()
    ends: list[float] = []

    @world.harbor.task(max_attempts=1)
    async def long() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ends.append(time())

    async with world.worker(lease=3):
        job = await long.using(timeout=50).aenqueue()
        await until(lambda: ends)
        assert ends == [pytest.approx(50)]
    assert (await world.record(job)).version == 1
    ends.clear()
    start = time()
    async with world.worker(lease=300):
        await long.using(timeout=2).aenqueue()
        await until(lambda: ends)
    assert ends == [pytest.approx(start + 2)]


@virtual
async def test_a_late_settle_never_overwrites_a_newer_claim() -> None:
    """L5, D7: a lost reply, a lapsed lease and a second run: the first run's outcome stays out."""
    world = World()
    versions: list[int] = []

    @world.harbor.task
    async def fenced() -> int:
        versions.append(current().lease_version)
        return current().lease_version

    job = await fenced.aenqueue()
    (old,) = await world.memory.reserve(["default"], world.clock(), timedelta(seconds=5), 1, "gone")
    async with world.worker():
        assert await job.aresult() == 2
    assert versions == [2]
    assert old.lease is not None
    assert (await world.record(job)).crashes == 0  # counted since the last recorded outcome


@virtual
async def test_a_renewal_that_meets_its_own_settle_is_not_a_lost_lease() -> None:
    """X3, D8: the store has settled, the reply is lost, the heartbeat is refused: the repeat gets the right answer."""
    gate = asyncio.Event()

    async def settled_first() -> None:
        await gate.wait()

    world = World(lambda inner: Extends(LostReply(inner, script("settle")), settled_first))

    @world.harbor.task
    async def work() -> str:
        await asyncio.sleep(10)  # ends when the heartbeat is on its way
        return "done"

    job: Job[str] = await work.aenqueue()
    async with world.worker() as worker:
        await until(lambda: world.settled())
        gate.set()
        assert await job.aresult() == "done"
        await until(lambda: worker.finished == 1)
        await asyncio.sleep(5)
        assert worker._keeper._held == {}
    assert len(world.settled()) == 2


@virtual
async def test_a_slow_reserve_leaves_its_jobs_enough_lease_to_be_renewed() -> None:
    """L2: the heartbeat of a claim that took most of its lease to arrive does not wait for the next round."""
    world = World(lambda inner: Slow(inner, 12, lambda verb: verb == "reserve"))
    runs: list[int] = []

    @world.harbor.task
    async def work() -> None:
        runs.append(current().lease_version)
        await asyncio.sleep(20)

    job = await work.aenqueue()
    async with world.worker():
        await job.aresult()
    assert runs == [1]


@virtual
async def test_a_claim_that_arrives_after_its_lease_is_not_run() -> None:
    """L4: by the monotonic clock the lease is lost before the handler begins, so it does not begin."""
    world = World(lambda log: Slow(log, 8, script("reserve")))
    versions: list[int] = []

    @world.harbor.task
    async def work() -> None:
        versions.append(current().lease_version)

    job = await work.aenqueue()
    async with world.worker(lease=6):
        await job.aresult()
    assert versions == [2]
    assert (await world.record(job)).version == 2


def reports(world: World) -> list[list[Any]]:
    """The reports of every extend_lease that reached the store."""
    return [list(call["reports"]) for call in world.log.calls("extend_lease")]


@virtual
async def test_runs_that_are_over_within_a_moment_are_not_reported() -> None:
    """T2: no write per job, however many there are."""
    world = World()

    @world.harbor.task
    async def quick(number: int) -> None:
        current().progress(0.5)
        await asyncio.sleep(number % 40 / 100)

    jobs = await world.harbor.aenqueue_many(quick.step(number) for number in range(300))
    async with world.worker(concurrency=10):
        await asyncio.gather(*(job.aresult() for job in jobs))
    assert reports(world) == []


@virtual
async def test_news_of_all_runs_are_reported_together_once_a_second_at_most() -> None:
    """T2: every start and every progress is in the store within a second, by one call a second and worker."""
    world = World()
    calls: list[float] = []
    said: dict[str, list[tuple[float, float]]] = {}
    seen: dict[str, list[tuple[float, float]]] = {}

    class Noted(Wrapper):
        async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Any]) -> Any:
            if verb == "extend_lease":
                calls.append(time())
                for report in arguments["reports"]:
                    assert report.started_at is not None
                    seen.setdefault(report.id, []).append((time(), report.progress.fraction))
            return await call()

    other = World.over(world, Noted(world.memory))

    @other.harbor.task
    async def work(pause: float) -> None:
        for number in range(int(30 / pause)):
            current().progress(number * pause / 100)
            said.setdefault(current().id, []).append((time(), number * pause / 100))
            await asyncio.sleep(pause)

    jobs = [await work.aenqueue(pause) for pause in (0.07, 0.3, 1.3, 4.1)]
    async with other.worker(lease=300):
        await asyncio.gather(*(job.aresult() for job in jobs))
    assert all(later - earlier >= 1 - 1e-9 for earlier, later in pairwise(calls))
    for id, told in said.items():
        for (at, fraction), then in zip(told, [*told[1:], (time(), 1.0)], strict=True):
            if then[0] - at > 1:
                assert any(at <= when <= at + 1 + 1e-9 and it == fraction for when, it in seen[id])


@virtual
async def test_news_whose_reply_is_lost_are_reported_again() -> None:
    """T2, X3: and the lease is kept meanwhile."""
    lost = 0

    def lose(verb: str) -> bool:
        nonlocal lost
        lost += verb == "extend_lease"
        return verb == "extend_lease" and lost <= 3

    world = World(lambda inner: LostReply(inner, lose))

    @world.harbor.task
    async def long() -> None:
        await asyncio.sleep(50)

    job = await long.aenqueue()
    async with world.worker():
        await job.aresult()
    times = [call["now"] for call in world.log.calls("extend_lease")]
    assert [(at - times[0]).total_seconds() for at in times[:4]] == pytest.approx([0, 1, 2, 3])
    assert (await world.record(job)).version == 1


def run_in_a_process() -> None:
    """Mark the run as one whose process can be killed, as the executor does."""
    current()._run.in_process = True


@virtual
async def test_a_cancellation_reaches_a_run_in_a_process_within_half_a_second() -> None:
    """T3, F5: whenever it is asked for; other runs learn it with the heartbeat."""
    world = World()
    took: dict[str, list[float]] = {"process": [], "loop": []}

    @world.harbor.task
    async def hang(kind: str) -> None:
        if kind == "process":
            run_in_a_process()
        try:
            await asyncio.sleep(1000)
        finally:
            took[kind].append(time())

    async def cancelled(kind: str, after: float) -> None:
        job = await hang.aenqueue(kind)
        await until(lambda: world.memory._store.jobs[job.id].lease is not None, 0.01)
        await asyncio.sleep(after)
        await job.acancel()
        asked_at = time()
        await until(lambda: world.memory._store.jobs[job.id].state == "cancelled", 0.01)
        took[kind][-1] -= asked_at

    async with world.worker(concurrency=1):
        for number in range(20):
            await cancelled("process", 2 + 0.13 * number)
        await cancelled("loop", 2)
    assert max(took["process"]) <= 0.5
    assert took["loop"][0] > 5


@virtual
async def test_a_lost_lease_ends_a_run_in_a_process_within_half_a_second() -> None:
    """L4, F5: the store answers so to the next question."""
    world = World()
    ends: list[float] = []

    @world.harbor.task
    async def hang() -> None:
        run_in_a_process()
        try:
            await asyncio.sleep(1000)
        finally:
            ends.append(time())

    await hang.aenqueue()
    async with world.worker() as worker:
        await asyncio.sleep(5.3)
        await world.memory.reserve(["default"], world.clock() + timedelta(hours=1), timedelta(hours=2), 1, "thief")
        await until(lambda: worker.busy == 0)
    assert ends[0] - 5.3 <= 0.5


@virtual
async def test_runs_in_processes_are_asked_about_together_and_others_are_left_alone() -> None:
    """T2, T3: one call for all of them, however they began; none for short runs, nor for runs elsewhere."""
    world = World()

    @world.harbor.task
    async def work(seconds: float, in_process: bool) -> None:
        if in_process:
            run_in_a_process()
        await asyncio.sleep(seconds)

    async with world.worker(concurrency=10):
        for _ in range(20):
            await (await work.aenqueue(0.4, True)).aresult()
        assert world.log.calls("extend_lease") == []
        await work.aenqueue(20.0, False)
        await asyncio.sleep(3)
        started, before = time(), len(world.log.calls("extend_lease"))
        jobs: list[Job[None]] = []
        for _ in range(4):
            await asyncio.sleep(0.17)
            jobs.append(await work.aenqueue(6.0, True))
        await asyncio.sleep(5)
        calls = world.log.calls("extend_lease")[before:]
        ids = {job.id for job in jobs}
        assert len(calls) <= (time() - started) / 0.45 + 1
        assert {report.id for call in calls for report in call["reports"]} == ids
        assert all({report.id for report in call["reports"]} == ids for call in calls[-5:])


@virtual
async def test_a_store_that_is_away_is_not_asked_more_often() -> None:
    """X2: the next question comes at its time, and the lease is given up when it ends."""
    world = World(Outage)

    @world.harbor.task
    async def hang() -> None:
        run_in_a_process()
        await asyncio.sleep(1000)

    job = await hang.aenqueue()
    async with world.worker() as worker:
        await asyncio.sleep(2)
        before = len(world.log.calls("extend_lease"))
        world.store.down = True
        await until(lambda: worker.busy == 0)
        assert len(world.log.calls("extend_lease")) - before <= (LEASE / 0.45) + 10
        assert time() == pytest.approx(2 + LEASE, abs=0.6)
        world.store.down = False
    assert (await world.record(job)).attempts == 0


async def ends_with_a_late_lease(in_process: bool, stuck_from: float) -> list[float]:
    """When a handler is ended whose claim came 29 s late, at 31, while a renewal from before never comes back."""
    world, ends = World(Stuck, store_timeout=100), list[float]()

    @world.harbor.task
    async def beside() -> None:
        current()._run.in_process = in_process
        await asyncio.sleep(100)

    @world.harbor.task
    async def hurried() -> None:
        try:
            await asyncio.sleep(14)
        except asyncio.CancelledError:
            ends.append(time())
            raise

    await beside.aenqueue()
    async with world.worker(lease=LEASE):
        await asyncio.sleep(2)
        world.store.late = 29.0
        job = await hurried.aenqueue()
        await asyncio.sleep(stuck_from - time())
        world.store.stuck = True
        await asyncio.sleep(40 + 8 - time())
        world.store.late = 0.0
        assert (await world.record(job)).state == ("inflight" if ends else "done")
    return ends


@virtual
async def test_a_question_about_processes_gives_way_to_a_lease_with_little_time_left() -> None:
    """L2: the lease is renewed at once, not when the store has answered or the next heartbeat is due."""
    assert await ends_with_a_late_lease(in_process=True, stuck_from=30.2) == []


@virtual
async def test_a_heartbeat_does_not_outlast_a_lease_that_came_after_it() -> None:
    """L4: the run ends with its lease, though the heartbeat for others waits for its answer until 40."""
    assert await ends_with_a_late_lease(in_process=False, stuck_from=29.0) == [pytest.approx(32, abs=0.1)]
