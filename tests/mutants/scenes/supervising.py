"""Supervisors: which leases they give up, when, and which processes they start, stop and kill (L9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random
from socket import socketpair
from typing import Any

from taskharbor.core.job import JobRecord
from taskharbor.driver import Driver
from taskharbor.supervisor.actions import Action, EndSupervision, KillWorker, StartWorker, StopWorker
from taskharbor.supervisor.dead_leases import DeadLeases, DeadWorker
from taskharbor.supervisor.fleet import FAILED_STARTS, Fleet
from taskharbor.supervisor.messages import Beat, WorkerMessage, WorkerReady
from taskharbor.supervisor.options import Limits, SupervisorOptions
from taskharbor.supervisor.supervisor import Supervisor
from taskharbor.testing.faults import VerbCall, Wrapper
from world import World, time

from .stage import LEASE, scene

DEAD, OTHER = "host:1:aa", "host:2:bb"
READY = WorkerReady(worker=DEAD, lease=LEASE, memory=1, store="memory://", store_timeout=30, keep_done=60)


async def claimed(world: World, worker: str, number: int = 1) -> list[JobRecord]:
    """Jobs in the hands of a worker."""
    await world.harbor.aenqueue_many([world.harbor.step("shop.job", {})] * number)
    return await world.memory.reserve(["default"], world.clock(), timedelta(seconds=LEASE), number, worker)


async def put_back(world: World) -> None:
    """Give up what the dead worker holds."""
    await DeadLeases(world.harbor.client.session, DeadWorker(worker=DEAD, lease=LEASE)).put_back()


@scene
async def jobs_of_a_dead_worker_are_due_with_a_crash() -> None:
    """L9, F6: at once and all of them, without an attempt; those of another worker stay where they are."""
    world = World()
    lost, kept = await claimed(world, DEAD, 600), await claimed(world, OTHER)
    task = asyncio.create_task(put_back(world))
    await asyncio.sleep(0.1)
    for job in [await world.record(job.id) for job in lost]:
        assert (job.state, job.crashes, job.attempts, job.lease) == ("ready", 1, 0, None)
        assert job.due_at <= world.clock()
    assert await world.record(kept[0].id) == kept[0]
    await task


class TakenOver(Wrapper):
    """Another worker takes a job over between a supervisor's look and its put back."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.taken: list[JobRecord] = []

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        if verb == "settle" and not self.taken:
            later = arguments["now"] + timedelta(seconds=2 * LEASE)
            self.taken = await self.inner.reserve(["default"], later, timedelta(seconds=LEASE), 1, OTHER)
        return await call()


@scene
async def a_job_taken_over_by_another_worker_is_left_alone() -> None:
    """L9, G3: each put back is fenced by the token that the dead worker had."""
    world = World(TakenOver)
    await claimed(world, DEAD)
    await put_back(world)
    [taken] = world.store.taken
    assert await world.record(taken.id) == taken


@scene
async def a_claim_that_is_committed_after_the_death_is_found() -> None:
    """L9: a reserve was on its way when the process died."""
    world = World()
    task = asyncio.create_task(put_back(world))
    await asyncio.sleep(1)
    [late] = await claimed(world, DEAD)
    await asyncio.sleep(2)
    assert (await world.record(late.id)).crashes == 1
    await task


class Unreachable(Wrapper):
    """A store that is away for the first ten seconds."""

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        if time() < 10:
            raise ConnectionError("away")
        return await call()


@scene
async def a_store_that_is_away_is_asked_again() -> None:
    """L9, X2: as long as the leases last."""
    world = World(Unreachable)
    [job] = await claimed(World.over(world, world.memory), DEAD)
    task = asyncio.create_task(put_back(world))
    await asyncio.sleep(15)
    assert (await world.record(job.id)).crashes == 1
    await task


class FakeProcess:
    """A child that ends when the scene says so."""

    pid = 7
    silent = False

    def __init__(self) -> None:
        self.ready = READY
        self.code: int | None = None
        self.kills = 0
        self.socket, self._other = socketpair()

    def kill(self) -> None:
        self.kills += 1

    def end_group(self) -> None:
        pass

    def received(self) -> list[WorkerMessage]:
        return []

    def exit_code(self) -> int | None:
        return self.code

    def close(self) -> None:
        self.socket.close()
        self._other.close()


@asynccontextmanager
async def supervised(world: World) -> AsyncGenerator[tuple[Supervisor, FakeProcess]]:
    """A supervisor with one child, which is at work."""
    options = SupervisorOptions(processes=1)
    supervisor = Supervisor([], options, lambda url, timeout: world.harbor.client.session, Random(1))
    [start] = supervisor._fleet.decide(time())
    assert isinstance(start, StartWorker)
    child: Any = FakeProcess()
    supervisor._running[start.number] = child
    supervisor._fleet.ready(start.number, READY, time())
    yield supervisor, child
    await supervisor._last_looks()


@scene
async def nothing_is_given_up_before_the_process_has_ended() -> None:
    """L9, G3: a kill takes effect when the system says so; until then the handler may be running."""
    world = World()
    [held] = await claimed(world, DEAD)
    async with supervised(world) as (supervisor, child):
        supervisor._perform(KillWorker(1, "the scene wants it"))
        supervisor._reap()
        await asyncio.sleep(1)
        assert child.kills == 1
        assert await world.record(held.id) == held
        child.code = -9
        supervisor._reap()
        await asyncio.sleep(1)
        assert (await world.record(held.id)).crashes == 1


@scene
async def a_worker_that_stopped_as_asked_has_not_crashed() -> None:
    """X6, F6: deploys count as nothing; what it could not settle is left to its lease."""
    world = World()
    [held] = await claimed(world, DEAD)
    async with supervised(world) as (supervisor, child):
        supervisor._fleet.stop()
        [stop] = supervisor._fleet.decide(time())
        assert isinstance(stop, StopWorker)
        supervisor._fleet.ended(stop.number, 0)
        child.code = 0
        supervisor._reap()
        await asyncio.sleep(1)
    assert await world.record(held.id) == held


class Ground:
    """A fleet whose workers do what the scene says."""

    def __init__(self, processes: int = 2, **limits: int) -> None:
        self.fleet = Fleet(SupervisorOptions(processes=processes, limits=Limits(**limits)), Random(1))
        self.now = 0.0

    def decide(self, after: float = 0.0) -> list[Action]:
        self.now += after
        return self.fleet.decide(self.now)

    def work(self) -> None:
        """All workers are ready, and beat."""
        for number, child in self.fleet.children.items():
            if child.ready_at is None:
                self.fleet.ready(number, READY, self.now)
            self.fleet.beat(number, Beat(finished=0, memory=1), self.now)


@scene
async def a_worker_without_beats_is_killed_after_its_lease() -> None:
    """L3, L9: and not before; a stall of the supervisor itself is not held against it."""
    ground = Ground(1)
    ground.decide()
    ground.work()
    assert ground.decide(5 * LEASE) == []
    actions = [action for _ in range(60) for action in ground.decide(1)]
    [kill] = actions
    assert isinstance(kill, KillWorker)


@scene
async def a_worker_that_hangs_before_it_is_ready_is_killed() -> None:
    """X5: in an import, say; not one that waits for its store."""
    ground = Ground(1)
    ground.decide()
    for _ in range(300):
        ground.fleet.waits(1, ground.now)
        assert not [action for action in ground.decide(1.9) if isinstance(action, KillWorker)]
    ground.fleet.waits(1, ground.now)
    for _ in range(600):
        if [action for action in ground.decide(1) if isinstance(action, KillWorker)]:
            return
    raise AssertionError("it hangs for ever")


@scene
async def workers_are_replaced_one_by_one_successors_first() -> None:
    """X6: at any time, as many as were asked for are at work."""
    ground = Ground(3)
    ground.decide()
    ground.work()
    ground.fleet.roll()
    replaced = 0
    while actions := ground.decide():
        [start] = actions
        assert isinstance(start, StartWorker)
        assert start.instead is not None
        assert ground.decide() == []
        ground.work()
        [stop] = ground.decide()
        assert stop == StopWorker(start.instead, "its successor is ready")
        assert ground.decide() == []
        ground.fleet.exited(start.instead, 0, ground.now)
        replaced += 1
    assert replaced == 3


@scene
async def workers_that_do_not_start_are_not_started_for_ever() -> None:
    """X5: the end comes after a few tries, each later than the one before."""
    ground = Ground(1)
    starts = 0
    for _ in range(1000):
        for action in ground.decide(0.1):
            if isinstance(action, EndSupervision):
                assert action.code == 1
                assert starts == FAILED_STARTS
                return
            assert isinstance(action, StartWorker)
            starts += 1
            ground.fleet.exited(action.number, 1, ground.now)
    raise AssertionError(f"no end after {starts} starts")
