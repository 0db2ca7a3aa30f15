"""Small scenarios: one that holds, and one whose store forgets a job."""

from __future__ import annotations

import asyncio
from typing import Any

from taskharbor import Harbor
from taskharbor.testing import simulation

harbor = Harbor("memory://")
seen: list[int] = []


@harbor.task
async def note(number: int) -> int:
    """Remember that it ran."""
    await asyncio.sleep(1)
    seen.append(number)
    return number


async def enqueue() -> None:
    """Ten jobs, one a second."""
    for number in range(10):
        await note.aenqueue(number)
        await asyncio.sleep(1)


async def notes(cluster: simulation.Cluster) -> None:
    """A harbor at module level, as applications have it."""
    cluster.workers(harbor, count=2)
    await cluster.client(harbor, enqueue).ended.wait()


async def forgetful(cluster: simulation.Cluster) -> None:
    """Somebody has acknowledged a job and lost it."""
    await cluster.client(harbor, enqueue).ended.wait()

    async def forget(driver: Any) -> None:
        store = driver._store
        store.jobs.pop(next(iter(store.jobs)))

    await cluster.undisturbed(forget)
    cluster.workers(harbor)
