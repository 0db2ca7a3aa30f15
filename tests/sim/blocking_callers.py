"""Clients that enqueue by blocking calls under faults, and what must be true of the store afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

from taskharbor import Harbor, group
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.driver import Driver, Inspect, capability
from taskharbor.errors import DriverUnavailable
from taskharbor.testing import simulation
from taskharbor.testing.clock import EPOCH
from taskharbor.testing.simulation import Faults, Result

CALLS, TOGETHER = 24, 3
LOSSES = Faults(lost_requests=0.2, lost_replies=0.2, silence=0.3, stalls=0.1, stall=4.0)
callers = Harbor("memory://", store_timeout=5)


@callers.task
async def called(number: int) -> None:
    """A job of the call of this number."""


class Callers:
    """One client after another, each killed after some time; `confirmed` are the calls that returned."""

    def __init__(self) -> None:
        self.tried = 0
        self.confirmed: dict[int, list[str]] = {}
        self.jobs: list[JobRecord] = []

    async def scenario(self, cluster: simulation.Cluster) -> None:
        """P1, D1: every call stores all of its jobs once, or none if it raised or its process died."""
        while self.tried < CALLS:
            client = cluster.client(callers, self._call_on)
            with suppress(TimeoutError):
                await asyncio.wait_for(client.ended.wait(), cluster.rng.uniform(0, 10))
            cluster.kill(client)
        self.jobs = await cluster.undisturbed(stored)
        cluster.workers(callers)

    async def _call_on(self) -> None:
        while self.tried < CALLS:
            self.tried += 1
            with suppress(DriverUnavailable):
                await asyncio.to_thread(self._call, self.tried)

    def _call(self, number: int) -> None:
        steps = [called.step(number) for _ in range(TOGETHER)]
        if number % 3 == 0:
            self.confirmed[number] = [called.enqueue(number).id]
        elif number % 3 == 1:
            self.confirmed[number] = [job.id for job in callers.enqueue_many(steps)]
        else:
            self.confirmed[number] = [group(steps).enqueue().id]

    def check(self) -> None:
        """Compare the store with what callers know."""
        numbers = Counter(callers.client.seen(job).arguments["number"] for job in self.jobs)
        assert all(count == size(number) for number, count in numbers.items()), numbers
        assert numbers.keys() >= self.confirmed.keys()
        names = {job.id for job in self.jobs} | {job.workflow_id for job in self.jobs}
        assert all(id in names for ids in self.confirmed.values() for id in ids)


def size(number: int) -> int:
    """The jobs of a call."""
    return TOGETHER if number % 3 else 1


async def stored(store: Driver) -> list[JobRecord]:
    """Every job."""
    return await capability(store, Inspect).query(Filter(), EPOCH, 1000)


def judged(seed: int, driver: str = "memory") -> tuple[Result, Callers]:
    """Run it, with both judges: the checker and `check`."""
    them = Callers()
    result = simulation.assert_holds(them.scenario, seed, driver=driver, faults=LOSSES)
    them.check()
    return result, them
