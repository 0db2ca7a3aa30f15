"""What an operator can see and do: `harbor.admin.jobs`, `.dlq`, `.queues`, `.workers`, `.stats`, with a-twins.

Thin: every rule is the driver's or the core's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.core.codec import encode_named
from taskharbor.core.decide import later
from taskharbor.core.evolve import Replay
from taskharbor.core.filter import Filter, parse
from taskharbor.core.job import JobRecord
from taskharbor.core.names import KEY_LIMIT, check_name
from taskharbor.core.states import Shown, shown
from taskharbor.driver import (
    Cancellation,
    Counters,
    Deletion,
    Inspect,
    QueueCounts,
    Registry,
    Replaying,
    Reschedule,
    Tally,
    WorkerRecord,
    capability,
)
from taskharbor.errors import InvalidJob, JobNotFound
from taskharbor.runtime.client import Client
from taskharbor.runtime.options import Duration, checked, moment, seconds
from taskharbor.runtime.portal import Portal, blocking

LIMIT = 50
BULK_LIMIT = 10_000
ALIVE = timedelta(seconds=40)
Words = str | Sequence[str] | Filter


class _Part:
    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def portal(self) -> Portal:
        """Where blocking twins run."""
        return self._client.portal

    def _now(self) -> datetime:
        return self._client.session.now()

    def _filter(self, words: Words) -> Filter:
        if isinstance(words, Filter):
            return words
        return parse(tuple(words.split() if isinstance(words, str) else words), self._now())


class Jobs(_Part):
    """All jobs."""

    async def alist(self, words: Words = "", *, limit: int = LIMIT, after: str | None = None) -> list[JobRecord]:
        """Matching jobs, the newest first. Words: `state:dlq,ready queue:mail task:mail.* tag:x error:… since:1h`."""
        async with self._client.store() as driver:
            return await capability(driver, Inspect).query(self._filter(words), self._now(), limit, after)

    async def aget(self, id: str) -> JobRecord:
        """One job, or `JobNotFound`."""
        record = await self._client.record(id)
        if record is None:
            raise JobNotFound(f"there is no job {id}: the id is wrong, or its retention has run out")
        return record

    async def afind(self, key: str) -> JobRecord | None:
        """The job that a living idempotency key stands for (I3)."""
        async with self._client.store() as driver:
            inspect = capability(driver, Inspect)
            id = await inspect.find_key(key, self._now())
            return None if id is None else (await inspect.get([id]))[0]

    async def acancel(self, ids: Sequence[str]) -> list[Cancellation]:
        """Cancel jobs: `cancelled`, `requested` (running), `finished` or `missing` for each."""
        return await self._client.cancel(ids)

    async def adelete(self, ids: Sequence[str]) -> list[Deletion]:
        """Remove finished jobs: `deleted`, `missing`, `live` or `needed` (by waiting dependants) for each."""
        async with self._client.store() as driver:
            return await capability(driver, Inspect).delete(ids)

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


class DeadLetters(_Part):
    """Jobs in the dead-letter queue."""

    async def alist(self, words: Words = "", *, limit: int = LIMIT, after: str | None = None) -> list[JobRecord]:
        """Matching dead jobs, the newest first."""
        async with self._client.store() as driver:
            return await capability(driver, Inspect).query(self._dead(words), self._now(), limit, after)

    async def areplay(
        self,
        id: str,
        *,
        arguments: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
        idempotency_ttl: Duration | None = None,
    ) -> Replaying:
        """Run a dead or cancelled job again, perhaps with other arguments or under a new key (Q2)."""
        settings = self._client.session.settings
        if idempotency_key is not None:
            check_name("idempotency_key", idempotency_key, KEY_LIMIT)
        ttl = settings.idempotency_ttl if idempotency_ttl is None else seconds(idempotency_ttl)
        payload = None if arguments is None else encode_named(arguments, settings.payload_limit)
        async with self._client.store() as driver:
            now = self._now()
            replay = Replay(
                id=id,
                payload=payload,
                idempotency_key=idempotency_key,
                key_expires_at=None if idempotency_key is None or ttl is None else later(now, ttl),
            )
            return (await capability(driver, Inspect).replay([replay], now))[0]

    async def areplay_all(self, words: Words = "", *, limit: int = BULK_LIMIT, dry_run: bool = False) -> list[str]:
        """Run all matching dead jobs again, at most `limit`; returns their ids. `dry_run` only looks."""
        if not 1 <= limit <= BULK_LIMIT:
            raise InvalidJob(f"limit must be from 1 to {BULK_LIMIT:,}, not {limit!r}")
        ids = [job.id for job in await self.alist(words, limit=limit)]
        return ids if dry_run or not ids else await self.areplay_ids(ids)

    async def areplay_ids(self, ids: Sequence[str]) -> list[str]:
        """Run these dead or cancelled jobs again; returns the ids of those that were."""
        async with self._client.store() as driver:
            answers = await capability(driver, Inspect).replay([Replay(id=id) for id in ids], self._now())
        return [id for id, answer in zip(ids, answers, strict=True) if answer == "replayed"]

    def _dead(self, words: Words) -> Filter:
        return replace(self._filter(words), states=(Shown.DLQ,))

    list = blocking(alist)
    replay = blocking(areplay)
    replay_all = blocking(areplay_all)
    replay_ids = blocking(areplay_ids)


class Queues(_Part):
    """Queues: counts, pause and resume."""

    async def alist(self) -> list[QueueCounts]:
        """Every queue that has jobs or is paused."""
        async with self._client.store() as driver:
            return await capability(driver, Inspect).counts(self._now())

    async def apause(self, queue: str) -> None:
        """Stop handing out the queue's jobs; what runs goes on."""
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


class Workers(_Part):
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


class Admin(_Part):
    """The operator's view of a harbor."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.jobs = Jobs(client)
        self.dlq = DeadLetters(client)
        self.queues = Queues(client)
        self.workers = Workers(client)

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
