"""Jobs that crashed twice in a row run alone, and their neighbours are not punished."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from taskharbor.client.handle import Job
from taskharbor.core.job import JobRecord
from taskharbor.testing import Slow
from taskharbor.worker.quarantine import PATIENCE, REST
from world import World, time, until, virtual


async def crash(world: World, *jobs: Job[Any], times: int = 2) -> None:
    """Let workers die that had claimed these jobs, so many times in a row."""
    for _ in range(times):
        held = await world.memory.reserve(
            [], world.clock(), timedelta(seconds=1), 100, "gone", [job.id for job in jobs]
        )
        assert len(held) == len(jobs)
        await asyncio.sleep(1)


class Guests:
    """The jobs that run at the same time."""

    def __init__(self, world: World) -> None:
        self.running: set[str] = set()
        self.beside: dict[str, set[str]] = {}
        self.order: list[str] = []
        self._world = world

        @world.harbor.task
        async def work(name: str, seconds: float = 1) -> None:
            self.running.add(name)
            self.order.append(name)
            for each in self.running:
                self.beside.setdefault(each, set()).update(self.running - {each})
            self.beside[name] |= self.running - {name}
            await asyncio.sleep(seconds)
            self.running.discard(name)

        self.work = work

    async def enqueue(self, *names: str, seconds: float = 1) -> list[Job[None]]:
        return await self._world.harbor.aenqueue_many([self.work.step(name, seconds) for name in names])


@virtual
async def test_a_job_that_crashed_twice_in_a_row_runs_alone(caplog: pytest.LogCaptureFixture) -> None:
    """F6b: its worker runs nothing beside it, and holds no other lease; the log says why it gave the job back."""
    caplog.set_level(logging.INFO)
    world = World()
    guests = Guests(world)
    [suspect] = await guests.enqueue("suspect")
    await crash(world, suspect)
    others = await guests.enqueue(*"abcdef")
    async with world.worker(concurrency=4):
        await asyncio.gather(*(job.aresult() for job in [suspect, *others]))
    assert guests.beside["suspect"] == set()
    assert any(guests.beside[name] for name in "abcdef")
    assert (await world.record(suspect)).crashes == 0
    assert "job.released" in caplog.text
    assert all("2 crashes in a row" in line for line in caplog.messages if "job.released" in line)


@virtual
async def test_a_single_crash_may_be_the_hosts() -> None:
    """F6b: after one crash a job runs beside others."""
    world = World()
    guests = Guests(world)
    jobs = await guests.enqueue("once", "other")
    await crash(world, jobs[0], times=1)
    async with world.worker(concurrency=4):
        await asyncio.gather(*(job.aresult() for job in jobs))
    assert guests.beside["once"] == {"other"}


@virtual
async def test_suspects_run_one_after_another_and_none_is_held_beside_another() -> None:
    """F6b: while one suspect runs, its worker holds no lease on the others."""
    world = World()
    guests = Guests(world)
    suspects = await guests.enqueue(*(f"s{n}" for n in range(8)))
    await crash(world, *suspects)
    held_beside: list[int] = []

    async def watch() -> None:
        while True:
            if guests.running:
                records: list[JobRecord] = [await world.record(job) for job in suspects]
                held_beside.append(
                    sum(record.lease is not None and record.lease.worker != "gone" for record in records)
                )
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    async with world.worker(concurrency=4):
        await asyncio.gather(*(job.aresult() for job in suspects))
    watching.cancel()
    assert all(beside == set() for beside in guests.beside.values())
    assert set(held_beside) == {1}


@virtual
async def test_nothing_starts_beside_a_suspect_however_long_it_runs() -> None:
    """F6b: new work waits until the suspect has ended."""
    world = World()
    guests = Guests(world)
    [suspect] = await guests.enqueue("suspect", seconds=PATIENCE + REST + 60)
    await crash(world, suspect)
    async with world.worker(concurrency=4):
        await until(lambda: guests.running)
        [other] = await guests.enqueue("other")
        await other.aresult()
    assert guests.beside["suspect"] == set()
    assert guests.order == ["suspect", "other"]


@virtual
async def test_a_suspect_does_not_keep_slots_empty_for_long() -> None:
    """F7: behind a neighbour that runs for twenty minutes, fresh work goes on, and the suspect still gets its turn."""
    world = World()
    guests = Guests(world)
    [long] = await guests.enqueue("long", seconds=1200)
    async with world.worker(concurrency=2):
        await until(lambda: guests.running)
        [suspect] = await guests.enqueue("suspect")
        await crash(world, suspect)
        before = time()
        for number in range(5):
            [job] = await guests.enqueue(f"fresh{number}")
            await job.aresult()
        assert time() - before < PATIENCE + 10
        await long.aresult()
        await suspect.aresult()
    assert guests.beside["suspect"] == set()


@virtual
async def test_a_suspect_is_not_starved_by_a_steady_stream() -> None:
    """F6b: slots run empty for it, although there is always something else to do."""
    world = World()
    guests = Guests(world)
    [suspect] = await guests.enqueue("suspect")
    await crash(world, suspect)
    stream = await guests.enqueue(*(f"n{number}" for number in range(400)))
    async with world.worker(concurrency=4):
        await suspect.aresult()
        ended = [job for job in stream if await job.astate() == "done"]
        assert len(ended) < 40
    assert guests.beside["suspect"] == set()


@virtual
async def test_drain_isolates_too() -> None:
    """F6b: `harbor.drain` keeps the rule."""
    world = World()
    guests = Guests(world)
    jobs = await guests.enqueue("s1", "s2", "a", "b")
    await crash(world, *jobs[:2])
    await world.drain(concurrency=4)
    assert guests.beside["s1"] == guests.beside["s2"] == set()
    assert guests.beside["a"] == {"b"}


@virtual
async def test_suspects_are_back_before_anything_else_of_their_batch_starts() -> None:
    """F6b: a neighbour that dies at once does not count against a suspect that was claimed together with it."""
    world = World(lambda log: Slow(log, 0.2))
    guests = Guests(world)
    suspects = await guests.enqueue("s1", "s2")
    await crash(world, *suspects)
    held: list[bool] = []

    @world.harbor.task
    async def neighbour() -> None:
        records = [world.memory._store.jobs[job.id] for job in suspects]
        held.append(any(record.lease is not None and record.lease.worker != "gone" for record in records))

    jobs = await world.harbor.aenqueue_many([neighbour.step() for _ in range(6)])
    async with world.worker(concurrency=8):
        await asyncio.gather(*(job.aresult() for job in [*jobs, *suspects]))
    assert held == [False] * 6


@virtual
async def test_a_suspect_gets_its_turn_among_jobs_that_take_longer_than_the_patience() -> None:
    """G1, F6b: the worker waits longer each time, until its slots have run empty once."""
    world = World()
    guests = Guests(world)
    [suspect] = await guests.enqueue("suspect")
    await crash(world, suspect)

    async def stream() -> None:
        for number in range(400):
            await guests.enqueue(f"n{number}", seconds=2.5 * PATIENCE)
            await asyncio.sleep(PATIENCE / 2)

    streaming = asyncio.create_task(stream())
    async with world.worker(concurrency=4):
        await suspect.aresult(timeout=900)
        streaming.cancel()
    assert guests.beside["suspect"] == set()


@virtual
async def test_many_workers_share_many_suspects_without_taking_turns_for_ever() -> None:
    """F6b, F7: they are done, although all workers claim them all the time."""
    world = World()
    guests = Guests(world)
    suspects = await guests.enqueue(*(f"s{number}" for number in range(24)))
    await crash(world, *suspects)
    others = await guests.enqueue(*(f"n{number}" for number in range(40)))
    async with AsyncExitStack() as stack:
        for _ in range(6):
            await stack.enter_async_context(world.worker(concurrency=4))
        await asyncio.gather(*(job.aresult(timeout=600) for job in [*suspects, *others]))
    reserves = len(world.log.calls("reserve"))
    assert reserves < 3000


@virtual
async def test_drain_goes_on_when_a_suspect_is_not_to_be_had() -> None:
    """F6b: an empty answer to a claim by id does not mean that nothing is due."""
    world = World()
    guests = Guests(world)
    [suspect] = await guests.enqueue("suspect")
    await crash(world, suspect)
    others = await guests.enqueue(*(f"n{number}" for number in range(20)))

    @world.harbor.middleware
    async def cancel(job: Any, call_next: Any) -> Any:
        await suspect.acancel()
        return await call_next()

    await world.drain(concurrency=4)
    assert [await world.state(job) for job in others] == ["done"] * 20
