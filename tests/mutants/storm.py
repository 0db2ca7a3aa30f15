"""A scenario for the simulation: few jobs, short leases, foul weather. It costs a tenth of the standard one, and what a
mutant breaks shows within a few seeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from taskharbor import Harbor, Job, Retry, Snooze, current
from taskharbor.errors import DriverError
from taskharbor.testing.simulation import Cluster, Faults, crash
from taskharbor.testing.simulation.flows import RandomFlows
from taskharbor.testing.simulation.recurring_workload import silence
from taskharbor.workflows.step import Step

QUEUES = ("default", "mail")
SPAN = 20.0
LEASE = 3.0


def weather(seed: int) -> Faults:
    """Faults that short leases feel: each seed has most of them."""
    rng = Random(f"{seed} weather")

    def mostly(value: float) -> float:
        return value if rng.random() < 0.7 else 0.0

    return Faults(
        delay=0.02,
        stalls=rng.choice([0.05, 0.15, 0.3]),
        stall=4 * LEASE,
        lost_requests=mostly(0.1),
        lost_replies=mostly(0.1),
        outages=mostly(12),
        outage=2 * LEASE,
        kills=mostly(8),
        pauses=mostly(15),
        pause=3 * LEASE,
        deploys=mostly(15),
        downtime=1.0,
        clocks=rng.choice(["one", "one", "engine", "jumping"]),
    )


async def storm(cluster: Cluster) -> None:
    """Two workers, two clients that submit the same keys, jobs of every temper, a recurring task."""
    rng = cluster.rng
    harbor = Harbor("memory://", store_timeout=10, max_crashes=4, retry=Retry(base=1, cap=3))
    steps, flows = _tasks(harbor, rng), RandomFlows(harbor, cluster, rng)
    harbor.recurring(name="beat", every=4, catch_up="all", max_catch_up=3, overlap="allow")(_beat)
    cluster.workers(harbor, count=2, queues=QUEUES, concurrency=3, lease=LEASE, grace=1.0)

    async def visit() -> None:
        for _ in range(8):
            await asyncio.sleep(rng.uniform(0, SPAN / 8))
            with suppress(DriverError):
                await _act(harbor, flows, rng.choice(steps)(), rng)

    clients = [cluster.client(harbor, visit, f"client{number}") for number in (1, 2)]
    for client in clients:
        await client.ended.wait()
    await asyncio.sleep(SPAN / 2)
    await cluster.undisturbed(silence)


async def _beat() -> None: ...


async def _act(harbor: Harbor, flows: RandomFlows, step: Step[Any], rng: Random) -> None:
    deed = rng.randrange(8)
    if deed == 0:
        await (flows.starter.aenqueue() if rng.random() < 0.3 else flows.drawn()[0].aenqueue())
    elif deed == 1:
        await harbor.admin.dlq.areplay_all(limit=2)
    elif deed <= 3:
        await _enqueue(harbor, step, idempotency_key=f"key{rng.randrange(2)}")
    elif deed == 4:
        await _enqueue(harbor, step, delay=rng.uniform(1, 5))
    else:
        job = await _enqueue(harbor, step, priority=rng.choice([-5, 0, 5]))
        if deed == 7:
            await asyncio.sleep(rng.uniform(0, 2))
            await job.acancel()


async def _enqueue(harbor: Harbor, step: Step[Any], **options: Any) -> Job[Any]:
    given: Any = {**step.options, **options}
    (job,) = await harbor.aenqueue_many([Step[Any](step.client, step.task, step.payload, given)])
    return job


Steps = list[Callable[[], Step[Any]]]


def _tasks(harbor: Harbor, rng: Random) -> Steps:
    @harbor.task(name="quick")
    async def quick() -> None: ...

    @harbor.task(name="parent", max_attempts=2)
    async def parent() -> None:
        current().enqueue(quick.step())
        await asyncio.sleep(rng.uniform(0, 1))
        if rng.random() < 0.3:
            raise RuntimeError("its child must not be born")

    @harbor.task(name="failing", max_attempts=3)
    async def failing() -> None:
        raise ValueError("no")

    @harbor.task(name="snoozing")
    async def snoozing() -> None:
        if current().lease_version % 3:
            raise Snooze(1)

    return [quick.step, quick.step, parent.step, failing.step, snoozing.step, *_long_tasks(harbor, rng)]


def _long_tasks(harbor: Harbor, rng: Random) -> Steps:
    @harbor.task(name="slow")
    async def slow() -> None:
        await asyncio.sleep(rng.choice([1, 2, 3, 4]) * LEASE)

    @harbor.task(name="stubborn", timeout=1, max_attempts=2)
    async def stubborn() -> None:
        end = asyncio.get_running_loop().time() + 2 * LEASE
        while (left := end - asyncio.get_running_loop().time()) > 0:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(left)

    @harbor.task(name="unlucky")
    async def unlucky() -> None:
        if rng.random() < 0.7:
            await crash()

    return [slow.step, slow.step, stubborn.step, unlucky.step]
