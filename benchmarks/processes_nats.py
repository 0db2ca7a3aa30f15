"""Measures on NATS that take several processes or a large line: workers side by side, the start beside a million jobs.

`python -m benchmarks.processes_nats URL` is one of several workers. It ends when there are no more jobs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.app import Port, ready, url_of
from benchmarks.clock import Sample, rate
from benchmarks.ours import LOOK_EVERY, SLOTS, fill, finished
from benchmarks.processes import resident, running
from taskharbor.drivers.nats import enqueue
from taskharbor.drivers.nats.driver import NatsDriver

IDLE = 0.5
PATIENCE = 60.0
BITE = 1000


def drain_singles(folder: Path, engine: str, jobs: int) -> Sample:
    """As `ours.drain`, of jobs each of which has a page of its own."""

    async def main() -> Sample:
        port = Port(url_of(engine, folder))
        async with port.harbor.open():
            await _singles(port, jobs)
            begun = time.perf_counter()
            async with port.harbor.worker(concurrency=SLOTS) as worker:
                await finished(worker, jobs)
                return rate(worker.finished, time.perf_counter() - begun)

    return asyncio.run(main())


async def _singles(port: Port, jobs: int) -> None:
    """Put jobs in line as if each had been enqueued alone."""
    page, enqueue.PAGE = enqueue.PAGE, 1
    try:
        for first in range(0, jobs, BITE):
            steps = [port.noop.step(number) for number in range(first, min(first + BITE, jobs))]
            await port.harbor.aenqueue_many(steps)
    finally:
        enqueue.PAGE = page


def make(folder: Path, engine: str, jobs: int, page: int) -> Sample:
    """A line of so many jobs, in pages of this size: 1 or 100."""

    async def main() -> Sample:
        port = Port(url_of(engine, folder))
        begun = time.perf_counter()
        async with port.harbor.open():
            await (_singles(port, jobs) if page == 1 else fill(port, jobs))
        return rate(jobs, time.perf_counter() - begun)

    return asyncio.run(main())


def start(folder: Path, engine: str) -> Sample:
    """A worker beside a line that is there already: the time until its first job has ended, and its memory."""

    async def main() -> Sample:
        port = Port(url_of(engine, folder))
        before, begun = resident(os.getpid()), time.perf_counter()
        async with port.harbor.open(), port.harbor.worker(concurrency=SLOTS) as worker:
            while not worker.finished and time.perf_counter() < begun + PATIENCE:  # noqa: ASYNC110  as in `finished`
                await asyncio.sleep(LOOK_EVERY)
            seconds = time.perf_counter() - begun
            return {"seconds": seconds, "mib": resident(os.getpid()) - before}

    return asyncio.run(main())


def crowd(folder: Path, engine: str, jobs: int, workers: int) -> Sample:
    """Worker processes on one queue, from the moment it is opened until the last job has ended.

    `conflicts` is the share of swaps for claims that were refused because another worker was faster, in per cent.
    """
    url = url_of(engine, folder)

    async def main() -> Sample:
        port = Port(url)
        async with port.harbor.open():
            await fill(port, jobs)
            await port.harbor.admin.queues.apause("default")
            with ExitStack() as stack:
                processes = [stack.enter_context(running("processes_nats", url)) for _ in range(workers)]
                begun = time.monotonic()
                await port.harbor.admin.queues.aresume("default")
                lines = [await asyncio.to_thread(process.stdout.readline) for process in processes if process.stdout]
        found: list[dict[str, float]] = [json.loads(line) for line in lines]
        done = sum(it["done"] for it in found)
        if done != jobs:
            raise RuntimeError(f"{done} jobs were run, and there were {jobs}")
        conflicts, swaps = sum(it["conflicts"] for it in found), sum(it["swaps"] for it in found)
        return {**rate(jobs, max(it["last"] for it in found) - begun), "conflicts": 100 * conflicts / swaps}

    return asyncio.run(main())


async def _one_of_them(url: str) -> None:
    port = Port(url)
    async with port.harbor.open(), port.harbor.worker(concurrency=SLOTS) as worker:
        driver = await port.harbor.adriver()
        assert isinstance(driver, NatsDriver)
        ready()
        done, last = 0, time.monotonic()
        while not done or time.monotonic() - last < IDLE:
            await asyncio.sleep(LOOK_EVERY)
            if worker.finished != done:
                done, last = worker.finished, time.monotonic()
        told = {"done": done, "last": last, "swaps": driver.reserving.swaps, "conflicts": driver.reserving.conflicts}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_one_of_them(sys.argv[1]))
