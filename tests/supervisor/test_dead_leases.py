"""Leases of a dead worker: what becomes of each kind of job, and of a supervisor whose store is away."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from taskharbor.core.job import JobRecord
from taskharbor.core.transition import Ack
from taskharbor.driver import WorkerRecord
from taskharbor.errors import ConfigError
from taskharbor.supervisor.dead_leases import DeadLeases, DeadWorker
from taskharbor.testing.faults import VerbCall, Wrapper
from world import World, time, virtual

LEASE = 30.0
DEAD = "host:1:aa"


async def claimed(world: World, worker: str = DEAD, **options: Any) -> JobRecord:
    """A job in the hands of a worker."""
    job = await world.harbor.aenqueue("shop.job", **options)
    [held] = await world.memory.reserve(["default"], world.clock(), timedelta(seconds=LEASE), 1, worker)
    assert held.id == job.id
    return held


async def put_back(world: World, lease: float = LEASE, **given: Any) -> DeadLeases:
    """Look for the leases of the dead worker until none can be left."""
    leases = DeadLeases(world.harbor.client.session, DeadWorker(worker=DEAD, lease=lease, **given))
    await leases.put_back()
    return leases


@virtual
async def test_a_stop_request_is_honoured() -> None:
    """L9, T3, Q4: a job that was asked to stop does not run again."""
    world = World()
    cancelled, buried = await claimed(world), await claimed(world)
    await world.harbor.admin.jobs.acancel(cancelled.id)
    await world.harbor.admin.jobs.adead_letter(buried.id, reason="wrong")
    await put_back(world, keep_done=60.0)
    found = [await world.record(job.id) for job in (cancelled, buried)]
    assert [(job.state, job.crashes, job.dlq_reason) for job in found] == [("cancelled", 1, None), ("dlq", 1, "wrong")]
    assert found[0].keep_until == found[0].completed_at + timedelta(seconds=60)  # type: ignore[operator]


@virtual
async def test_the_last_crash_is_left_to_a_worker() -> None:
    """L9, F6: which ends the job as a crash loop, and calls the application's hooks for dead jobs."""
    world = World(max_crashes=1)
    dead: list[str] = []
    world.harbor.on_dead(lambda job: dead.append(str(job.dlq_reason)))
    held = await claimed(world)
    await put_back(world)
    assert (await world.record(held.id)).state == "ready"
    await world.drain()
    assert (await world.record(held.id)).dlq_reason == "crash_loop"
    assert dead == ["crash_loop"]


@virtual
async def test_what_was_settled_stays_settled() -> None:
    """L9, G3: the last outcome of the worker may arrive before the supervisor looks."""
    world = World()
    held = await claimed(world)
    assert held.lease is not None
    await world.memory.settle([Ack(id=held.id, token=held.lease.token, keep_until=world.clock())], world.clock())
    done = await world.record(held.id)
    await put_back(world)
    assert await world.record(held.id) == done
    assert world.settled() == []


@virtual
async def test_a_worker_whose_name_is_a_pattern_loses_only_its_own() -> None:
    """L9: a star in a host's name means nothing here."""
    world = World()
    other = await claimed(world, "host:1:aab")
    leases = DeadLeases(world.harbor.client.session, DeadWorker(worker="host:1:aa*", lease=LEASE))
    await leases.put_back()
    assert await world.record(other.id) == other


@virtual
async def test_the_dead_worker_is_no_longer_listed() -> None:
    """C: `taskharbor workers` and `health` do not wait for it to be forgotten."""
    world = World()
    now = world.clock()
    record = WorkerRecord(id=DEAD, host="host", pid=1, queues=("q",), slots=1, busy=0, started_at=now, seen_at=now)
    await world.memory.beat(record)
    await put_back(world)
    assert await world.memory.workers(now) == []


@virtual
async def test_looks_end_when_no_lease_of_the_worker_can_be_valid() -> None:
    """L9: after a lease, or after the time that any of its requests can take."""
    for lease, store_timeout, end in ((1.0, 30.0, 1.0), (3600.0, 30.0, 30.0)):
        began = time()
        leases = await put_back(World(), lease, store_timeout=store_timeout)
        assert leases.looked.is_set()
        assert end / 2 < time() - began <= end


class Broken(Wrapper):
    """A store that answers with an error."""

    error: Exception = ConnectionError("away")

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "warnings"), [(ConnectionError("away"), True), (ConfigError("no rights"), False)], ids=["away", "refused"]
)
def test_leases_that_cannot_be_given_up_expire(
    error: Exception, warnings: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """L9, X2: the supervisor tries until they have expired, says so, and goes on; a refusal is final at once."""

    @virtual
    async def play() -> None:
        world = World(Broken)
        world.store.error = error
        held = await claimed(World.over(world, world.memory))
        began = time()
        await put_back(world)
        assert (time() - began > LEASE - 3) is warnings
        assert await world.record(held.id) == held

    with caplog.at_level(logging.WARNING, "taskharbor.supervisor"):
        play()
    *tries, last = [record.message for record in caplog.records]
    assert f"leases: the leases of {DEAD} expire by themselves: {type(error).__name__}" in last
    assert bool(tries) is warnings
    assert all(
        f"store.unavailable: jobs of {DEAD} not put back, trying again: ConnectionError" in each for each in tries
    )
