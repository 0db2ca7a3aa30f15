"""TaskHarbor's side of each comparison, by its public interface only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.app import Port, url_of
from benchmarks.clock import LONGEST, Sample, arepeat, rate
from taskharbor import chord as chord_of
from taskharbor import group

SLOTS = 100
LOOK_EVERY = 0.005
LONG = 0.1  # seconds of a job that blocks its thread


def enqueue_single(folder: Path, engine: str, seconds: float) -> Sample:
    """`aenqueue` one after another."""

    async def main() -> Sample:
        port = Port(url_of(engine, folder))
        async with port.harbor.open():
            return await arepeat(seconds, port.noop.aenqueue)

    return asyncio.run(main())


def enqueue_concurrent(folder: Path, engine: str, seconds: float, producers: int = 50) -> Sample:
    """`aenqueue` from many tasks at once."""

    async def main() -> Sample:
        port = Port(url_of(engine, folder))
        async with port.harbor.open():
            begun = time.perf_counter()
            counts = await asyncio.gather(*(_produce(port, begun + seconds) for _ in range(producers)))
            return rate(sum(counts), time.perf_counter() - begun)

    return asyncio.run(main())


async def _produce(port: Port, until: float) -> int:
    done = 0
    while time.perf_counter() < until:
        await port.noop.aenqueue(done)
        done += 1
    return done


def enqueue_bulk(folder: Path, engine: str, jobs: int, times: int = 3) -> Sample:
    """`aenqueue_many` of steps that were prepared before the clock starts, a few times."""

    async def main() -> Sample:
        port = Port(url_of(engine, folder))
        async with port.harbor.open():
            seconds = 0.0
            for _ in range(times):
                steps = [port.noop.step(number) for number in range(jobs)]
                begun = time.perf_counter()
                await port.harbor.aenqueue_many(steps)
                seconds += time.perf_counter() - begun
            return rate(jobs * times, seconds)

    return asyncio.run(main())


def drain(folder: Path, engine: str, jobs: int, task: str = "noop", slots: int = SLOTS) -> Sample:
    """Run jobs that are in line through a whole worker, `harbor.worker(concurrency=100)`, until all are settled."""

    async def main() -> Sample:
        port = Port(url_of(engine, folder))
        async with port.harbor.open():
            await fill(port, jobs, task)
            begun = time.perf_counter()
            async with port.harbor.worker(concurrency=slots) as worker:
                await finished(worker, jobs)
                done, seconds = worker.finished, time.perf_counter() - begun
            return rate(done, seconds)

    return asyncio.run(main())


def behind_a_long_job(folder: Path, engine: str, times: int, slots: int = 20) -> Sample:
    """The longest time from the end of a short `def` job until its caller has the result, while long ones follow it."""

    async def main() -> Sample:
        port, worst = Port(url_of(engine, folder)), 0.0
        async with port.harbor.open(), port.harbor.worker(concurrency=slots):
            for _ in range(times):
                steps = [port.blocking.step(seconds) for seconds in (0.0, LONG, 0.0, LONG, 0.0)]
                jobs = await port.harbor.aenqueue_many(steps)
                waits = await asyncio.gather(*(_after_its_end(job) for job in jobs[::2]))
                worst = max(worst, *waits)
                await asyncio.gather(*(job.aresult() for job in jobs))
        return {"ms": worst * 1000}

    return asyncio.run(main())


async def _after_its_end(job: Any) -> float:
    ended = await job.aresult()
    return time.perf_counter() - ended


def all_blocking(folder: Path, engine: str, times: int, slots: int = 20) -> Sample:
    """The longest time from the first of as many blocking `def` jobs as there are slots until all of them run."""

    async def main() -> Sample:
        port, worst = Port(url_of(engine, folder)), 0.0
        async with port.harbor.open(), port.harbor.worker(concurrency=slots):
            for number in range(times + 1):
                short = await port.harbor.aenqueue_many([port.blocking.step(0.0) for _ in range(slots)])
                await asyncio.gather(*(job.aresult() for job in short))
                jobs = await port.harbor.aenqueue_many([port.blocking.step(LONG) for _ in range(slots)])
                begun = await asyncio.gather(*(job.aresult() for job in jobs))
                if number:  # the first time starts the threads
                    worst = max(worst, max(begun) - min(begun))
        return {"ms": worst * 1000}

    return asyncio.run(main())


def chord(folder: Path, engine: str, jobs: int, slots: int = SLOTS) -> Sample:
    """A chord of no-op members, from the enqueue until its last step is settled."""

    async def enqueue(port: Port) -> None:
        await chord_of(group(port.noop.step(number) for number in range(jobs)), port.gather).aenqueue()

    return asyncio.run(_whole(folder, engine, jobs + 1, slots, enqueue))


def plain(folder: Path, engine: str, jobs: int, slots: int = SLOTS) -> Sample:
    """As many jobs that know nothing of each other, from the enqueue until the last is settled."""

    async def enqueue(port: Port) -> None:
        await port.harbor.aenqueue_many([port.noop.step(number) for number in range(jobs + 1)])

    return asyncio.run(_whole(folder, engine, jobs + 1, slots, enqueue))


async def _whole(
    folder: Path, engine: str, jobs: int, slots: int, enqueue: Callable[[Port], Awaitable[None]]
) -> Sample:
    port = Port(url_of(engine, folder))
    async with port.harbor.open(), port.harbor.worker(concurrency=slots) as worker:
        await port.noop.aenqueue(0)  # everything is open and planned
        await finished(worker, 1)
        begun = time.perf_counter()
        await enqueue(port)
        await finished(worker, jobs + 1)
        return rate(worker.finished - 1, time.perf_counter() - begun)


async def finished(worker: Any, jobs: int) -> None:
    """Wait for the last of the jobs, or until the time is up."""
    give_up = time.perf_counter() + LONGEST
    while worker.finished < jobs and time.perf_counter() < give_up:  # noqa: ASYNC110  an event would cost each job
        await asyncio.sleep(LOOK_EVERY)
    if not worker.finished:
        raise RuntimeError(f"the worker has settled nothing within {LONGEST:g} s, {worker.busy} jobs are running")


async def fill(port: Port, jobs: int, task: str = "noop", **options: Any) -> None:
    """Put jobs in line."""
    made = getattr(port, task).using(**options)
    for first in range(0, jobs, 10_000):
        await port.harbor.aenqueue_many([made.step(number) for number in range(first, min(first + 10_000, jobs))])
