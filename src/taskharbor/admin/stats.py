"""Queues, workers and totals at a glance: `harbor.admin.stats`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from msgspec import Struct

from taskharbor.admin.base import ALIVE
from taskharbor.client.client import Client
from taskharbor.client.options import Duration, seconds
from taskharbor.driver import Counters, QueueCounts, Registry, Tally, WorkerRecord, capability
from taskharbor.worker.tallies import MISSED, partial, totals


class Stats(Struct, frozen=True):
    """The whole at a glance: queues, workers, and the totals per minute since the asked time.

    `partial` says why totals are missing, such as those of a worker that was killed; None if none are. `unstarted` is
    the part of `tallies` whose handlers never started: put back or dead because of an unknown task, for example.
    """

    queues: list[QueueCounts]
    workers: list[WorkerRecord]
    tallies: list[Tally]
    partial: str | None = None
    unstarted: Sequence[Tally] = ()


async def stats(client: Client, queues: list[QueueCounts], since: Duration) -> Stats:
    """These queues, the workers, and the totals since that long ago."""
    async with client.store() as driver:
        now = client.session.now()
        start = (now - timedelta(seconds=seconds(since))).replace(second=0, microsecond=0)
        known = await capability(driver, Registry).workers(min(start - MISSED, now - ALIVE))
        tallies = await capability(driver, Counters).tallies(start - timedelta(minutes=1))
    alive = [worker for worker in known if worker.seen_at >= now - ALIVE]
    every, unstarted = totals(tallies, start)
    return Stats(queues, alive, every, partial(known, tallies, start, now), unstarted)
