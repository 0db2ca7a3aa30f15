"""What an operator can see and do: `harbor.admin` with `.jobs`, `.dlq`, `.queues`, `.recurring`, `.workflows` and more.

Thin: every rule is the driver's or the core's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from taskharbor.core.job import JobRecord
from taskharbor.core.names import check_name
from taskharbor.core.reserved import check_queue
from taskharbor.core.states import shown
from taskharbor.driver import (
    Cancellation,
    Counters,
    Deletion,
    Inspect,
    QueueCounts,
    Registry,
    Reschedule,
    Tally,
    WorkerRecord,
    capability,
)
from taskharbor.runtime.client import Client
from taskharbor.runtime.dead_letters import DeadLetters
from taskharbor.runtime.options import Duration, checked, moment, seconds
from taskharbor.runtime.part import LIMIT, Ids, Part, Words, each
from taskharbor.runtime.portal import blocking
from taskharbor.runtime.registered import Registered
from taskharbor.runtime.workflows import Workflows

if TYPE_CHECKING:
    from taskharbor.runtime.recurring import Recurring

ALIVE = timedelta(seconds=40)


class Jobs(Part):
    """All jobs."""

    async def alist(self, words: Words = "", *, limit: int = LIMIT, after: str | None = None) -> list[JobRecord]:
        """Matching jobs, the newest first. Words: `state:dlq,ready queue:mail task:mail.* tag:x error:… since:1h`."""
        async with self._client.store() as driver:
            return await capability(driver, Inspect).query(self._filter(words), self._now(), limit, after)

    async def aget(self, id: str) -> JobRecord:
        """One job, or `JobNotFound`."""
        record = await self._client.record(id)
        if record is None:
            raise await self._why_gone(id)
        return record

    async def afind(self, key: str) -> JobRecord | None:
        """The job that a living idempotency key stands for (I3)."""
        async with self._client.store() as driver:
            inspect = capability(driver, Inspect)
            id = await inspect.find_key(key, self._now())
            return None if id is None else (await inspect.get([id]))[0]

    async def acancel(self, ids: Ids) -> list[Cancellation]:
        """Cancel jobs: `cancelled`, `requested` (running), `finished` or `missing` for each."""
        return await self._client.cancel(each(ids))

    async def adelete(self, ids: Ids) -> list[Deletion]:
        """Remove finished jobs: `deleted`, `missing`, `live` or `needed` (by waiting dependants) for each.

        One that is `live` has to be cancelled first.
        """
        async with self._client.store() as driver:
            return await capability(driver, Inspect).delete(each(ids))

    async def areschedule(self, id: str, *, run_at: datetime | None = None, priority: int | None = None) -> bool:
        """Move a job that waits in line; False if it does not."""
        given = {"run_at": run_at, "priority": priority}
        checked({name: value for name, value in given.items() if value is not None})
        change = Reschedule(id=id, run_at=None if run_at is None else moment(run_at), priority=priority)
        async with self._client.store() as driver:
            return (await capability(driver, Inspect).reschedule([change], self._now()))[0]

    def shown(self, record: JobRecord) -> str:
        """The state to show for a record."""
        return shown(record, self._now()).value

    list = blocking(alist)
    get = blocking(aget)
    find = blocking(afind)
    cancel = blocking(acancel)
    delete = blocking(adelete)
    reschedule = blocking(areschedule)


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
            await capability(driver, Inspect).pause(queue, paused)

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
    """The whole at a glance: queues, workers, and the totals per minute since the asked time."""

    queues: list[QueueCounts]
    workers: list[WorkerRecord]
    tallies: list[Tally]


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
        from taskharbor.runtime.recurring import Recurring  # most harbors have no cron to read

        return Recurring(self._client, self._tasks)

    def now(self) -> datetime:
        """The time by the store's clock, where it has one; known once something was asked of it."""
        return self._now()

    async def astats(self, since: Duration = 3600) -> Stats:
        """Counts, workers, and totals of the last hour or so."""
        queues, workers = await self.queues.alist(), await self.workers.alist()
        async with self._client.store() as driver:
            from_minute = (self._now() - timedelta(seconds=seconds(since))).replace(second=0, microsecond=0)
            return Stats(queues, workers, await capability(driver, Counters).tallies(from_minute))

    stats = blocking(astats)
