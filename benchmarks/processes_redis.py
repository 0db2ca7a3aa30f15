"""Measures that take two processes on Redis: latency of others, the server's CPU, its memory for each job."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks import raw_redis, rivals_redis
from benchmarks.app import Port, url_of
from benchmarks.backlog import MANY_SLOTS
from benchmarks.clock import Sample
from benchmarks.ours import fill
from benchmarks.processes import cpu_seconds, pause, resident, running, taken
from benchmarks.server_redis import client

# latency: from the call that enqueues to the first line that has the job in an idle worker


def raw_latency(url: str, jobs: int) -> Sample:
    """Enqueue and publish here; subscribe, claim and acknowledge there."""
    with running("raw_redis", url) as process:
        asyncio.run(raw_redis.send(url, (pause() for _ in range(jobs))))
        return taken(process, jobs)


def rival_latency(url: str, rival: str, jobs: int) -> Sample:
    """The same for a rival."""
    it = rivals_redis.contender(rival, url)

    async def send() -> None:
        await it.open()
        for _ in range(jobs):
            await asyncio.sleep(pause())
            await it.enqueue(time.monotonic())
        await it.close()

    with running("rivals_redis", rival, url) as process:
        asyncio.run(send())
        return taken(process, jobs)


# idle: per cent of one core that a worker without work takes, here and in the server


def idle(folder: Path, engine: str, seconds: float) -> Sample:
    """`run_worker`, and the server."""
    with running("worker", url_of(engine, folder)) as process:
        return _idle(process.pid, engine, seconds)


def rival_idle(url: str, rival: str, seconds: float) -> Sample:
    """The same for a rival."""
    with running("rivals_redis", rival, url) as process:
        return _idle(process.pid, url, seconds)


def _idle(pid: int, url: str, seconds: float) -> Sample:
    with client(url) as asked:
        server = int(asked.info("server")["process_id"])
    before, there = cpu_seconds(pid), cpu_seconds(server)
    time.sleep(seconds)
    return {
        "percent": 100 * (cpu_seconds(pid) - before) / seconds,
        "server": 100 * (cpu_seconds(server) - there) / seconds,
        "seconds": seconds,
        "mib": resident(pid),
    }


# memory: bytes of the server for each job that waits, and for each that has ended and is kept


def memory(folder: Path, engine: str, jobs: int) -> Sample:
    """The growth of the server's memory."""

    async def main() -> Sample:
        port = Port(url_of(engine, folder))
        async with port.harbor.open():
            before = raw_redis.used(engine)
            await fill(port, jobs)
            waiting = raw_redis.used(engine) - before
            await port.harbor.adrain(concurrency=MANY_SLOTS)
            ended = raw_redis.used(engine) - before
        return {"bytes": waiting / jobs, "ended": ended / jobs, "jobs": jobs}

    return asyncio.run(main())
