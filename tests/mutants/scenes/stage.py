"""The stage of the scenes, and the programme that lists them.

Handlers of tasks that may be retried for ever give up after `ENOUGH` runs, so that no mutant plays for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from taskharbor import Job, current
from taskharbor.core.job import JobRecord
from world import World, time, until, virtual

SCENES: dict[str, Callable[[], None]] = {}
LEASE = 30.0
HOUR = timedelta(hours=1)
ENOUGH = 50


def scene(play: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Put a play on the programme."""
    SCENES[play.__name__] = virtual(play)
    return SCENES[play.__name__]


def only(*verbs: str, until: float = float("inf")) -> Callable[[str], bool]:
    """Strike at these verbs, up to a time."""
    return lambda verb: verb in verbs and time() < until


async def ended(world: World, *jobs: Job[Any], limit: float = 1000) -> list[JobRecord]:
    """The records of the jobs once all of them have ended."""
    await until(lambda: all(world.memory._store.jobs[job.id].completed_at for job in jobs), 0.05, limit)
    return [await world.record(job) for job in jobs]


class Stage:
    """Counts who is on: no two runs of one job may be on at the same time."""

    def __init__(self) -> None:
        self.on: list[str] = []
        self.starts: list[float] = []
        self.met: list[str] = []

    async def play(self, seconds: float) -> None:
        """Be on for so long."""
        id = current().id
        if id in self.on:
            self.met.append(id)
        self.on.append(id)
        self.starts.append(time())
        try:
            await asyncio.sleep(seconds)
        finally:
            self.on.remove(id)
