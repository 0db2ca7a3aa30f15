"""Whether a drain keeps its speed on PostgreSQL while rows die by the hundred thousand, even if none can be removed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.app import Port, url_of
from benchmarks.clock import Sample, rate

LOOK_EVERY = 0.005
STALLED_AFTER = 40.0


def drain(folder: Path, engine: str, jobs: int, span: int, snapshot: bool) -> Sample:
    """As `ours.drain` over many jobs: the speed of the last `span` against that of the first."""

    async def main() -> Sample:
        port = Port(url_of(engine, folder))
        async with port.harbor.open():
            await ours.fill(port, jobs)
            async with hold_snapshot(engine, snapshot), port.harbor.worker(concurrency=ours.SLOTS) as worker:
                return pace(await _watched(worker, jobs), span)

    return asyncio.run(main())


async def _watched(worker: Any, jobs: int) -> list[tuple[int, float]]:
    seen = [(0, time.perf_counter())]
    while seen[-1][0] < jobs:
        await asyncio.sleep(LOOK_EVERY)
        if worker.finished > seen[-1][0]:
            seen.append((worker.finished, time.perf_counter()))
        elif time.perf_counter() > seen[-1][1] + STALLED_AFTER:
            raise RuntimeError(f"the worker got stuck after {seen[-1][0]} jobs")
    return seen


@asynccontextmanager
async def hold_snapshot(url: str, held: bool = True) -> AsyncGenerator[None]:
    """A transaction elsewhere that has looked at the database and stays open, as a long report or a backup does."""
    if not held:
        yield
        return
    import asyncpg

    other: Any = await asyncpg.connect(url)
    try:
        async with other.transaction(isolation="repeatable_read", readonly=True):
            await other.fetchval("SELECT count(*) FROM pg_class")
            yield
    finally:
        await other.close()


def pace(seen: Sequence[tuple[int, float]], span: int) -> Sample:
    """From counts and when they were reached: the speed of the first and of the last `span` jobs, and their ratio."""
    jobs, begun, ended = seen[-1][0], seen[0][1], seen[-1][1]
    first = next(it for it in seen if it[0] >= min(span, jobs))
    last = next(it for it in reversed(seen) if it[0] <= max(jobs - span, 0))
    early, late = first[0] / (first[1] - begun), (jobs - last[0]) / (ended - last[1])
    return {**rate(jobs, ended - begun), "first": early, "last": late, "kept": late / early}
