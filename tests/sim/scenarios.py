"""Small scenarios: one that holds, and one whose store forgets a job."""

from __future__ import annotations

import asyncio
from typing import Any

from taskharbor import Harbor
from taskharbor.errors import DriverUnavailable
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
    """Ten jobs, one a second, tried again while the store is away."""
    for number in range(10):
        for _ in range(100):
            try:
                await note.using(idempotency_key=str(number)).aenqueue(number)
                break
            except DriverUnavailable:
                await asyncio.sleep(1)
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


async def nothing(cluster: simulation.Cluster) -> None:
    """Nobody does anything."""


async def careless(cluster: simulation.Cluster) -> None:
    """A client that does not expect the store to be away."""

    async def once() -> None:
        for number in range(10):
            await note.aenqueue(number)

    await cluster.client(harbor, once).ended.wait()


async def stranger(cluster: simulation.Cluster) -> None:
    """A client that uses a harbor which is not part of the simulation."""
    await cluster.client(Harbor("memory://"), enqueue).ended.wait()


async def endless(cluster: simulation.Cluster) -> None:
    """Never returns."""
    cluster.workers(harbor)
    await asyncio.Event().wait()
