"""Small scenarios: some that hold, and one whose store forgets a job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from taskharbor import Harbor
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.driver import Driver, Inspect, capability
from taskharbor.errors import DriverUnavailable, TaskError
from taskharbor.manager import Task, TaskManager
from taskharbor.testing import simulation
from taskharbor.testing.clock import EPOCH

T = TypeVar("T")
TASKS = 20
harbor = Harbor("memory://")
desk = Harbor("memory://")
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


async def long_leases(cluster: simulation.Cluster) -> None:
    """Leases that outlast the whole run."""
    cluster.workers(harbor, count=2, lease=3600.0)
    await cluster.client(harbor, enqueue).ended.wait()


async def forgetful(cluster: simulation.Cluster) -> None:
    """A job was acknowledged and lost."""
    await cluster.client(harbor, enqueue).ended.wait()

    async def forget(driver: Any) -> None:
        store = driver._store
        store.jobs.pop(next(iter(store.jobs)))

    await cluster.undisturbed(forget)
    cluster.workers(harbor)


async def nothing(cluster: simulation.Cluster) -> None:
    """Nothing happens."""


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


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Again until the store answers."""
    while True:
        try:
            return await call()
        except DriverUnavailable:
            await asyncio.sleep(1)


async def agents(cluster: simulation.Cluster) -> None:
    """Three agents share tasks that they claim by id, and are killed again and again, in the middle of everything.

    What they write down outlives them: the next agent in the same place goes on with the claim, by its token.
    """
    notes: list[list[Task]] = [[], [], []]

    def start(number: int) -> Any:
        return cluster.client(desk, lambda: agent(cluster.rng, notes[number]), f"agent{number}")

    async def submit() -> None:
        manager = TaskManager(desk)
        for number in range(TASKS):
            key, most = f"task {number}", (0, 0, 3)[number % 3]
            payload = b"%d" % number
            await insist(lambda: manager.asubmit(payload, idempotency_key=key, max_attempts=most))  # noqa: B023
            await asyncio.sleep(cluster.rng.uniform(0, 3))

    submitter = cluster.client(desk, submit, "submitter")
    posts = [start(number) for number in range(3)]
    kills = [cluster.rng.uniform(2, 20) for _ in range(8)] if cluster.faults.kills else []
    for pause in kills:
        await asyncio.sleep(pause)
        victim = cluster.rng.randrange(3)
        cluster.kill(posts[victim])
        posts[victim] = start(victim)
    await submitter.ended.wait()
    await until_all_have_ended(cluster)
    for post in posts:
        cluster.kill(post)
    tasks = await cluster.undisturbed(stored)
    assert len(tasks) == TASKS
    assert all(job.result == job.payload for job in tasks if job.state == "done")
    assert all(job.max_attempts for job in tasks if job.state != "done")


async def until_all_have_ended(cluster: simulation.Cluster) -> None:
    """Look now and then."""
    while True:
        if all(job.completed_at for job in await cluster.undisturbed(stored)):
            return
        await asyncio.sleep(5)


async def stored(store: Driver) -> list[JobRecord]:
    """Every task."""
    return await capability(store, Inspect).query(Filter(), EPOCH, 2 * TASKS)


async def agent(rng: Random, notes: list[Task]) -> None:
    """Claims what it finds, works on it and ends it one way or the other, for ever."""
    manager, second = TaskManager(desk, lease=10), TaskManager(desk, lease=10)
    worker = f"agent {rng.random()}"
    for task in notes:
        try:
            again = await manager.aclaim(task.id, str(task.claimed_by), token=task.claim_token)
            await end(manager, again, rng)
        except (TaskError, DriverUnavailable):
            continue
    while True:
        for task in await insist(lambda: manager.alist("pending")):
            try:
                claimed = await manager.aclaim(task.id, worker)
                notes[:] = [claimed]
                await asyncio.sleep(rng.uniform(0, 6))
                await manager.aheartbeat(task.id, worker, 0.5)
                await asyncio.sleep(rng.uniform(0, 6))
                await end(rng.choice((manager, second)), claimed, rng)
            except (TaskError, DriverUnavailable):
                continue
        if rng.random() < 0.05:
            await meddle(manager)
        await asyncio.sleep(1)


async def end(manager: TaskManager, task: Task, rng: Random) -> None:
    """Fail or complete a task by the token of its claim."""
    worker, token = str(task.claimed_by), task.claim_token
    if rng.random() < 0.3:
        await insist(lambda: manager.afail(task.id, worker, "a bad day", token=token))
    else:
        await insist(lambda: manager.acomplete(task.id, worker, task.payload, token=token))


async def meddle(manager: TaskManager) -> None:
    """Retry a claimed task as if it were stuck."""
    try:
        for task in await manager.alist("claimed", limit=1):
            await manager.aretry(task.id)
    except (TaskError, DriverUnavailable):
        return
