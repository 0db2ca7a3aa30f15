"""Recurring tasks for the standard scenario: every kind, generations that disagree, operators (N3, N4, N5)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from random import Random
from typing import Any

from taskharbor import Harbor, Retry, Unrecoverable, current
from taskharbor.core.filter import Filter
from taskharbor.core.schedule import Schedule
from taskharbor.driver import Driver, Inspect, Schedules, Swap, capability
from taskharbor.errors import ScheduleBusy, ScheduleNotFound
from taskharbor.testing.clock import EPOCH
from taskharbor.testing.simulation.cluster import Cluster

MUCH = 2**24
KINDS: dict[str, dict[str, Any]] = {
    "beat": {"every": 7},
    "crowd": {"every": 9, "catch_up": "all", "max_catch_up": 4, "overlap": "allow"},
    "patient": {"every": 6, "catch_up": "all", "max_catch_up": 3},
    "punctual": {"every": 8, "catch_up": "skip", "jitter": 3},
    "clockwork": {"cron": "*/10 * * * * *", "overlap": "allow"},
    "following": {"every": 4, "mode": "fixed_delay"},
}
OTHERWISE: dict[str, dict[str, Any]] = {
    "beat": {"every": 5, "overlap": "allow"},
    "crowd": {"every": 6, "catch_up": "all", "max_catch_up": 2, "overlap": "allow"},
    "patient": {"cron": "*/15 * * * * *", "catch_up": "all", "max_catch_up": 2},
    "punctual": {"every": 10},
    "clockwork": {"every": 6, "mode": "fixed_delay"},
    "following": {"every": 9, "jitter": 3},
}


class WrongSlot(AssertionError):
    """A slot of a recurring task has two jobs, or a job of one has no slot."""


def declare(harbor: Harbor, cluster: Cluster, kind: str, *, latest: bool) -> None:
    """Declare a recurring task in one generation of the code. A job without a slot is added to the errors."""
    rng = cluster.rng

    @harbor.recurring(**(OTHERWISE if latest else KINDS)[kind])
    @harbor.task(name=kind, max_attempts=2, retry=Retry(base=1, cap=2))
    async def live() -> None:
        if current().slot is None:
            cluster.errors.append(WrongSlot(f"job {current().id} of {kind} has no slot"))
        fate = rng.random()
        if fate < 0.15:
            await asyncio.sleep(rng.uniform(0, 12))
        elif fate < 0.25:
            raise ValueError("not this time") if fate < 0.2 else Unrecoverable("never")


class Operator:
    """An operator who changes recurring tasks."""

    def __init__(self, harbor: Harbor, rng: Random, kinds: Sequence[str], *, deletes: bool) -> None:
        self._recurring = harbor.admin.recurring
        self._rng = rng
        self._kinds = kinds
        self._deletes = deletes  # if clocks may go back, a new declaration could begin in the past

    async def act(self) -> None:
        """Perform a random action, which may be refused."""
        deeds: list[Callable[[str], Awaitable[Any]]] = [self._rest, self._change, self._run, self._make]
        if self._deletes:
            deeds.append(self._recurring.adelete)
        with suppress(ScheduleBusy, ScheduleNotFound):
            await self._rng.choice(deeds)(self._rng.choice(self._kinds))

    async def _run(self, kind: str) -> None:
        await self._recurring.arun(kind)

    async def _rest(self, kind: str) -> None:
        await self._recurring.apause(kind)
        await asyncio.sleep(self._rng.uniform(0, 15))
        await self._recurring.aresume(kind)

    async def _change(self, kind: str) -> None:
        await self._recurring.achange(kind, every=self._rng.uniform(3, 15))

    async def _make(self, kind: str) -> None:
        """Create one under a unique name, and remove it later."""
        name = f"made{self._rng.getrandbits(64)}"
        await self._recurring.acreate(name, kind, **self._rng.choice(list(KINDS.values())))
        await asyncio.sleep(self._rng.uniform(0, 20))
        await self._recurring.adelete(name)


async def silence(driver: Driver) -> None:
    """Stop all ticks, also of declarations that are still in the network."""
    store = capability(driver, Schedules)
    stored = {schedule.name: schedule for schedule in await store.schedules()}
    swaps = [
        Swap(name=name, seen=stored.get(name), then=Schedule(name=name, definition=b"over", slot=None, paused=True))
        for name in sorted({*stored, *KINDS})
    ]
    await store.swap_schedules(swaps, EPOCH)


async def slots(driver: Driver, now: datetime) -> dict[str, list[datetime]]:
    """The slots with jobs of every recurring task; `WrongSlot` if one has two (N3)."""
    jobs = await capability(driver, Inspect).query(Filter(), now, MUCH)
    taken = Counter((job.headers["schedule"], job.headers["slot"]) for job in jobs if "schedule" in job.headers)
    if twice := [slot for slot, count in taken.items() if count > 1]:
        raise WrongSlot(f"slots that have more than one job: {twice}")
    found: dict[str, list[datetime]] = {}
    for name, slot in sorted(taken):
        found.setdefault(name, []).append(datetime.fromisoformat(slot))
    return found
