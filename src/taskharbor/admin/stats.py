"""Queues, workers and totals: `harbor.admin.stats()`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.client.client import Client
from taskharbor.client.liveness import ALIVE
from taskharbor.client.options import Duration, seconds
from taskharbor.core.tally import NOT_STARTED, added
from taskharbor.driver import Counters, QueueCounts, Registry, Tally, WorkerRecord, capability


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
    unstarted = [
        replace(tally, outcome=tally.outcome.removeprefix(NOT_STARTED))
        for tally in tallies
        if tally.outcome.startswith(NOT_STARTED)
    ]
    sums: dict[tuple[datetime, str, str, str], Tally] = {}
    for tally in [*(tally for tally in tallies if not tally.outcome.startswith(NOT_STARTED)), *unstarted]:
        key = tally.minute, tally.queue, tally.task, tally.outcome
        known = sums.get(key)
        sums[key] = tally if known is None else added(known, tally)
    return [sums[key] for key in sorted(sums)], unstarted
