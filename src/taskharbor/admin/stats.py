"""Queues, workers and totals at a glance: `harbor.admin.stats`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from msgspec import Struct

from taskharbor.client.client import Client
from taskharbor.client.liveness import ALIVE
from taskharbor.client.options import Duration, seconds
from taskharbor.driver import Counters, QueueCounts, Registry, Tally, WorkerRecord, capability
from taskharbor.worker.tallies import totals


class Stats(Struct, frozen=True):
    """The whole at a glance: queues, workers, and the totals per minute since the asked time.

    `unstarted` is the part of `tallies` whose handlers never started: put back or dead because of an unknown task, for
    example.
    """

    queues: list[QueueCounts]
    workers: list[WorkerRecord]
    tallies: list[Tally]
    unstarted: Sequence[Tally] = ()


async def stats(client: Client, queues: list[QueueCounts], since: Duration) -> Stats:
    """These queues, the workers, and the totals since that long ago."""
    async with client.store() as driver:
        now = client.session.now()
        start = (now - timedelta(seconds=seconds(since))).replace(second=0, microsecond=0)
        alive = await capability(driver, Registry).workers(now - ALIVE)
        every, unstarted = totals(await capability(driver, Counters).tallies(start))
    return Stats(queues, alive, every, unstarted)
