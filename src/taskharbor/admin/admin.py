"""What an operator can see and do: `harbor.admin` with `.jobs`, `.dlq`, `.queues`, `.recurring`, `.workflows` and more.

Thin: every rule is the driver's or the core's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from taskharbor.admin.base import ALIVE, Part
from taskharbor.admin.dead_letters import DeadLetters
from taskharbor.admin.jobs import Jobs
from taskharbor.admin.workflows import Workflows
from taskharbor.client.client import Client
from taskharbor.client.options import Duration, seconds
from taskharbor.client.portal import blocking
from taskharbor.client.registered_task import Registered
from taskharbor.core.names import check_name
from taskharbor.core.reserved import check_queue
from taskharbor.driver import Counters, Inspect, Manage, QueueCounts, Registry, Tally, WorkerRecord, capability
from taskharbor.worker.tallies import MISSED, partial, totals

if TYPE_CHECKING:
    from taskharbor.admin.recurring import Recurring


class Queues(Part):
    """Queues: counts, pause and resume."""

    async def alist(self) -> list[QueueCounts]:
        """Every queue that has jobs or is paused."""
        async with self._client.store() as driver:
            return await capability(driver, Inspect).counts(self._now())

    async def apause(self, queue: str) -> None:
        """Stop handing out the queue's jobs; what runs goes on."""
        check_queue("a queue to pause", queue)
        await self._pause(queue, True)

    async def aresume(self, queue: str) -> None:
        """Hand out the queue's jobs again."""
        await self._pause(queue, False)

    async def _pause(self, queue: str, paused: bool) -> None:
        check_name("a queue's name", queue)
        async with self._client.store() as driver:
            await capability(driver, Manage).pause(queue, paused)

    list = blocking(alist)
    pause = blocking(apause)
    resume = blocking(aresume)


class Workers(Part):
    """Workers that reported themselves lately."""

    async def alist(self) -> list[WorkerRecord]:
        """Workers seen within the last 40 seconds."""
        async with self._client.store() as driver:
            return await capability(driver, Registry).workers(self._now() - ALIVE)

    list = blocking(alist)


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


class Admin(Part):
    """The operator's view of a harbor."""

    def __init__(self, client: Client, tasks: Mapping[str, Registered]) -> None:
        super().__init__(client)
        self.jobs = Jobs(client)
        self.dlq = DeadLetters(client, tasks)
        self.queues = Queues(client)
        self.workers = Workers(client)
        self.workflows = Workflows(client)
        self._tasks = tasks

    @cached_property
    def recurring(self) -> Recurring:
        """Recurring tasks."""
        from taskharbor.admin.recurring import Recurring  # most harbors have no cron to read

        return Recurring(self._client, self._tasks)

    def now(self) -> datetime:
        """The time by the store's clock, where it has one; known once something was asked of it."""
        return self._now()

    async def astats(self, since: Duration = 3600) -> Stats:
        """Counts, workers, and totals of the last hour or so."""
        queues = await self.queues.alist()
        async with self._client.store() as driver:
            now = self._now()
            start = (now - timedelta(seconds=seconds(since))).replace(second=0, microsecond=0)
            known = await capability(driver, Registry).workers(min(start - MISSED, now - ALIVE))
            tallies = await capability(driver, Counters).tallies(start - timedelta(minutes=1))
        alive = [worker for worker in known if worker.seen_at >= now - ALIVE]
        every, unstarted = totals(tallies, start)
        return Stats(queues, alive, every, partial(known, tallies, start, now), unstarted)

    stats = blocking(astats)
