"""Recurring tasks of every kind under every fault, and what must be true of their slots afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from taskharbor import Harbor
from taskharbor.core.filter import Filter
from taskharbor.driver import Driver, Inspect, capability
from taskharbor.testing import simulation
from taskharbor.testing.clock import EPOCH
from taskharbor.testing.simulation.recurring_workload import silence, slots

clockwork = Harbor("memory://", store_timeout=20)
EVERY, DELAY = timedelta(seconds=30), timedelta(seconds=20)


@clockwork.recurring(name="each", every=EVERY, catch_up="all", max_catch_up=1000, overlap="allow")
@clockwork.recurring(name="few", every=EVERY, catch_up="all", max_catch_up=3)
@clockwork.recurring(name="last", every=EVERY, jitter=5)
@clockwork.recurring(name="after", every=DELAY, mode="fixed_delay")
@clockwork.task
async def strike() -> None:
    """A slow task."""
    await asyncio.sleep(2)


async def recurring(cluster: simulation.Cluster) -> None:
    """N2, N3, N4: with faults that end after some time: no slot has two jobs, and no needed one none."""
    cluster.workers(clockwork, count=3)
    await asyncio.sleep(240)
    await cluster.calm_down()
    await asyncio.sleep(100)
    now = cluster.clock() + timedelta(hours=cluster.faults.clocks not in ("one", "engine"))
    await cluster.undisturbed(silence)
    found = await cluster.undisturbed(lambda driver: slots(driver, now))
    each = found["each"]
    assert each == [each[0] + number * EVERY for number in range(len(each))], each
    assert now - EVERY - timedelta(seconds=5) <= each[-1] <= now, (each[-1], now)
    assert {*found["few"], *found["last"]} <= {*each, each[-1] + EVERY, each[0] - EVERY}
    assert found["last"][-1] == found["few"][-1] == each[-1]
    ends = {None if end is None else end + DELAY for end in await cluster.undisturbed(ends_of("after"))}
    assert len([slot for slot in found["after"] if slot not in ends]) == 1, "only the first follows no other"
    assert len(found["after"]) > 1


def ends_of(name: str) -> Callable[[Driver], Awaitable[list[datetime | None]]]:
    """When the runs of a recurring task ended."""

    async def read(driver: Driver) -> list[datetime | None]:
        jobs = await capability(driver, Inspect).query(Filter(), EPOCH, 100_000)
        return [job.completed_at for job in jobs if job.headers.get("schedule") == name]

    return read
