"""Workers and totals: `harbor.admin.workers` and `harbor.admin.stats()`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.admin.base import AdminPart
from taskharbor.client.client import Client
from taskharbor.client.liveness import ALIVE
from taskharbor.client.options import Duration, seconds
from taskharbor.client.portal import blocking
from taskharbor.core.tally import NOT_STARTED, added
from taskharbor.driver import Counters, QueueCounts, Registry, Tally, WorkerRecord, capability

OUTCOMES = ("done", "retried", "dlq", "cancelled", "released")


class Workers(AdminPart):
    """Workers that reported themselves lately."""

    async def alist(self) -> list[WorkerRecord]:
        """Workers seen within the last 40 seconds."""
        async with self._client.store() as driver:
            return await capability(driver, Registry).workers(self._now() - ALIVE)

    list = blocking(alist)


class Stats(Struct, frozen=True):
    """Queues, workers, and totals per minute. `unstarted` is the part of `tallies` whose handlers never started."""

    queues: list[QueueCounts]
    workers: list[WorkerRecord]
    tallies: list[Tally]
    unstarted: Sequence[Tally] = ()


async def stats(client: Client, queues: list[QueueCounts], since: Duration) -> Stats:
    async with client.store() as driver:
        now = client.session.now()
        start = (now - timedelta(seconds=seconds(since))).replace(second=0, microsecond=0)
        alive = await capability(driver, Registry).workers(now - ALIVE)
        every, unstarted = totals(await capability(driver, Counters).tallies(start))
    return Stats(queues, alive, every, unstarted)


def totals(tallies: Sequence[Tally]) -> tuple[list[Tally], list[Tally]]:
    """The totals by outcome, and the part of them whose runs did not start."""
    unstarted: list[Tally] = []
    sums: dict[tuple[datetime, str, str, str], Tally] = {}
    for tally in tallies:
        outcome = tally.outcome.removeprefix(NOT_STARTED)
        found = replace(tally, outcome=outcome)
        if outcome != tally.outcome:
            unstarted.append(found)
        key = tally.minute, tally.queue, tally.task, outcome
        sums[key] = added(sums[key], found) if key in sums else found
    return [sums[key] for key in sorted(sums)], unstarted


def by_task(found: Stats) -> list[dict[str, Any]]:
    """The sums per task; `runs` counts those that started, and `seconds` is their duration."""
    sums: dict[tuple[str, str], dict[str, Any]] = defaultdict(
        lambda: {**dict.fromkeys((*OUTCOMES, "runs"), 0), "seconds": 0.0}
    )
    for tally in found.tallies:
        total = sums[(tally.queue, tally.task)]
        total[tally.outcome] += tally.count
        total["runs"] += tally.count
        total["seconds"] += tally.seconds
    for tally in found.unstarted:
        sums[(tally.queue, tally.task)]["runs"] -= tally.count
    return [{"queue": queue, "task": task, **total} for (queue, task), total in sorted(sums.items())]
