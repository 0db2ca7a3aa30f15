"""The measurements of `taskharbor bench`: jobs that do nothing, so that all the time is the queue's own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from statistics import median

from msgspec import Struct

from taskharbor.cli.bench_store import Ground
from taskharbor.errors import DriverUnavailable
from taskharbor.harbor import Harbor
from taskharbor.workflows.step import Step

LINE, DRAIN, PING = "bench-line", "bench-drain", "bench-ping"
PRODUCERS, SLOTS = 50, 100
BULK, MOST_JOBS, PILOT = 10_000, 200_000, 300
LEAST_PINGS, MOST_PINGS, PAUSE = 3, 200, 0.03
STUCK_AFTER = 60.0

# The share of each part in the whole time.
SHARES = {
    "the engine": 0.04,
    "enqueue, one after another": 0.2,
    f"enqueue, {PRODUCERS} at a time": 0.15,
    "enqueue_many": 0.15,
    f"drain, {SLOTS} slots": 0.3,
    "latency": 0.16,
}

Stage = Callable[[str], None]


class Figures(Struct, frozen=True, kw_only=True):
    """The results, in jobs per second and milliseconds."""

    single: float
    concurrent: float
    bulk: float
    drain: float
    latency_p50: float
    latency_p99: float
    two_processes: bool
    fsync: float | None = None
    commit: float | None = None
    round_trip: float | None = None


class Bench:
    """A harbor with the measured tasks; without a URL, on the store of the environment."""

    def __init__(self, url: str | None) -> None:
        self.harbor = Harbor(url)

        @self.harbor.task(name="bench.nothing", queue=LINE)
        async def nothing(n: int) -> None: ...

        @self.harbor.task(name="bench.ping", queue=PING)
        async def ping() -> float:
            return time.monotonic()

        self.nothing, self.ping = nothing, ping

    # enqueueing

    async def single(self, seconds: float) -> float:
        """Enqueue one job after another."""
        return await _rate(seconds, self._produce)

    async def concurrent(self, seconds: float) -> float:
        """Enqueue from many tasks at once, so that they share commits."""

        async def all_of_them(until: float) -> int:
            return sum(await asyncio.gather(*(self._produce(until) for _ in range(PRODUCERS))))

        return await _rate(seconds, all_of_them)

    async def _produce(self, until: float) -> int:
        done = 0
        while not done or time.perf_counter() < until:
            await self.nothing.aenqueue(done)
            done += 1
        return done

    async def bulk(self, seconds: float, size: int) -> float:
        """Enqueue prepared steps, many in one commit."""
        spent, done = 0.0, 0
        give_up = time.perf_counter() + seconds
        while not done or (time.perf_counter() < give_up and done < MOST_JOBS):
            steps = self._steps(LINE, size)
            begun = time.perf_counter()
            await self.harbor.aenqueue_many(steps)
            spent += time.perf_counter() - begun
            done += size
        return done / spent

    def _steps(self, queue: str, jobs: int) -> list[Step[None]]:
        task = self.nothing.using(queue=queue)
        return [task.step(number) for number in range(jobs)]

    # working

    async def drain(self, seconds: float) -> float:
        """Drain jobs with a whole worker: a few to learn the speed, then as many as the time allows."""
        speed = await self._drained(PILOT)
        jobs = int(min(speed * seconds / 1.5, MOST_JOBS))
        return await self._drained(jobs) if jobs > PILOT else speed

    async def _drained(self, jobs: int) -> float:
        for first in range(0, jobs, BULK):
            await self.harbor.aenqueue_many(self._steps(DRAIN, min(BULK, jobs - first)))
        begun = time.perf_counter()
        async with self.harbor.worker([DRAIN], concurrency=SLOTS) as worker:
            while worker.finished < jobs:
                await asyncio.sleep(0.005)
                if time.perf_counter() - begun > STUCK_AFTER + jobs / 100:
                    raise DriverUnavailable(f"the worker got stuck after {worker.finished} of {jobs} jobs")
            return jobs / (time.perf_counter() - begun)

    async def latencies(self, seconds: float) -> list[float]:
        """Measure the milliseconds from an enqueue here to the start of the handler in an idle worker."""
        taken: list[float] = []
        give_up = time.perf_counter() + seconds
        while len(taken) <= LEAST_PINGS or (len(taken) <= MOST_PINGS and time.perf_counter() < give_up):
            sent = time.monotonic()
            job = await self.ping.aenqueue()
            taken.append((await job.aresult(timeout=STUCK_AFTER) - sent) * 1000)
            await asyncio.sleep(PAUSE)
        return taken[1:]  # the first one warms up


async def _rate(seconds: float, produce: Callable[[float], Awaitable[int]]) -> float:
    begun = time.perf_counter()
    done = await produce(begun + seconds)
    return done / (time.perf_counter() - begun)


async def run(ground: Ground, seconds: float, stage: Stage) -> Figures:
    """Measure everything in about this many seconds; `stage` is called with the name of each stage."""
    parts = iter(SHARES.items())

    def begin() -> float:
        name, share = next(parts)
        stage(name)
        return share * seconds

    bench = Bench(ground.url)
    async with bench.harbor.open():
        room = begin()
        before = None if ground.limit is None else await ground.limit(room / 2)
        single = await bench.single(begin())
        # Disk speed varies: the cost of one enqueue is compared with the engine's own cost before and after it.
        limit = None if ground.limit is None or before is None else (before + await ground.limit(room / 2)) / 2
        concurrent = await bench.concurrent(begin())
        room = begin()
        bulk = await bench.bulk(room, BULK if room >= 1 else BULK // 10)
        drain = await bench.drain(begin())
        async with _second_worker(bench, ground):
            taken = sorted(await bench.latencies(begin()))
    return Figures(
        single=single,
        concurrent=concurrent,
        bulk=bulk,
        drain=drain,
        latency_p50=median(taken),
        latency_p99=taken[min(len(taken) - 1, len(taken) * 99 // 100)],
        two_processes=ground.engine != "memory",
        fsync=limit if ground.engine == "sqlite" else None,
        commit=limit if ground.engine == "postgresql" else None,
        round_trip=limit if ground.engine in ("redis", "nats") else None,
    )


@asynccontextmanager
async def _second_worker(bench: Bench, ground: Ground) -> AsyncGenerator[None]:
    """An idle worker: in a process of its own, except on a store that lives in this one."""
    if ground.engine == "memory":
        async with bench.harbor.worker([PING]):
            yield
        return
    # A process group of its own, so that a Ctrl-C in the terminal reaches this process only.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "taskharbor.cli.bench_worker"),
        env={**os.environ, "TASKHARBOR_URL": ground.url},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        give_up = time.perf_counter() + STUCK_AFTER
        while not any(PING in worker.queues for worker in await bench.harbor.admin.workers.alist()):
            await asyncio.sleep(PAUSE)
            if time.perf_counter() > give_up:
                raise DriverUnavailable("the second process of the bench did not start its worker")
        yield
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
