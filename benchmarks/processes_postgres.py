"""Measures that take two processes on PostgreSQL: latency of others, the server's CPU, a worker's connections."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from benchmarks import raw_postgres, rivals_postgres
from benchmarks.app import Port, url_of
from benchmarks.clock import Sample
from benchmarks.ours import fill
from benchmarks.processes import cpu_seconds, pause, resident, running, taken

LOOK_EVERY = 0.02
COUNTED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


# latency: from the call that enqueues to the first line that has the job in an idle worker


def raw_latency(url: str, jobs: int) -> Sample:
    """Insert and NOTIFY here; LISTEN, claim and acknowledge there."""

    async def open_raw() -> Any:
        return await raw_postgres.sender(url)

    with asyncio.Runner() as runner:
        send = runner.run(open_raw())
        with running("raw_postgres", url) as process:
            runner.run(_send(send, jobs))
            return taken(process, jobs)


def rival_latency(url: str, rival: str, jobs: int) -> Sample:
    """The same for a rival."""
    it = rivals_postgres.contender(rival, url)
    with asyncio.Runner() as runner:
        runner.run(it.open())
        with running("rivals_postgres", rival, url) as process:
            runner.run(_send(it.enqueue, jobs))
            return taken(process, jobs)


async def _send(send: Any, jobs: int) -> None:
    for _ in range(jobs):
        await asyncio.sleep(pause())
        await send(time.monotonic())


# idle: per cent of one core that a worker without work takes, here and in the server


def idle(folder: Path, engine: str, seconds: float) -> Sample:
    """`run_worker`, and all processes of the server."""
    with running("worker", url_of(engine, folder)) as process:
        return _idle(process.pid, engine, seconds)


def rival_idle(url: str, rival: str, seconds: float) -> Sample:
    """The same for a rival."""
    it = rivals_postgres.contender(rival, url)
    with asyncio.Runner() as runner:
        runner.run(it.open())
        with running("rivals_postgres", rival, url) as process:
            return _idle(process.pid, url, seconds)


def _idle(pid: int, url: str, seconds: float) -> Sample:
    server = int(str(asyncio.run(_ask(url, "SELECT pg_read_file('postmaster.pid')"))).split()[0])
    before, there = cpu_seconds(pid), _family(server)
    time.sleep(seconds)
    used = sum(now - there.get(process, 0.0) for process, now in _family(server).items())
    return {
        "percent": 100 * (cpu_seconds(pid) - before) / seconds,
        "server": 100 * used / seconds,
        "seconds": seconds,
        "mib": resident(pid),
    }


def _family(server: int) -> dict[int, float]:
    """The CPU seconds of the server and of each process that it has started."""
    found = {server: cpu_seconds(server)}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == server:
                    found[int(entry.name)] = cpu_seconds(int(entry.name))
            except (OSError, ValueError):
                continue  # it has just ended
    return found


async def _ask(url: str, question: str) -> object:
    import asyncpg

    connection: Any = await asyncpg.connect(url)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


# connections


def connections(folder: Path, engine: str, jobs: int, seconds: float) -> Sample:
    """The most that `run_worker` has open while it drains and then waits, as the server counts them."""
    url = url_of(engine, folder)

    async def prepare() -> None:
        port = Port(url)
        async with port.harbor.open():
            await fill(port, jobs)

    async def watch() -> int:
        import asyncpg

        connection: Any = await asyncpg.connect(engine)
        most, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            most = max(most, await connection.fetchval(COUNTED))
            await asyncio.sleep(LOOK_EVERY)
        await connection.close()
        return most

    asyncio.run(prepare())
    with running("worker", url):
        return {"connections": float(asyncio.run(watch())), "seconds": seconds}
