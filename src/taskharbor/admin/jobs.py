"""All jobs for operators: `harbor.admin.jobs`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Literal, TypedDict, Unpack, cast

from taskharbor.admin import bulk
from taskharbor.admin.base import BULK_LIMIT, LIMIT, AdminPart, IdOrIds, Words, each
from taskharbor.admin.bulk import Act, Bulk, OnProgress
from taskharbor.admin.endings import resolve
from taskharbor.admin.why import Facts, Why, why
from taskharbor.client.liveness import ALIVE
from taskharbor.client.options import checked, moment
from taskharbor.client.portal import blocking
from taskharbor.core.decide import dead_letter
from taskharbor.core.evolve import Cancellation, DeadLettering, Deletion, Replaying, Reschedule
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.reserved import TASKS
from taskharbor.core.shown import shown
from taskharbor.core.states import INFLIGHT, READY, WAITING
from taskharbor.core.text import bounded
from taskharbor.driver import Inspect, Manage, Registry, WorkflowStore, capability, offered
from taskharbor.errors import InvalidJob


class BulkOptions(TypedDict, total=False):
    """The options of an act on matching jobs."""

    limit: int
    dry_run: bool
    among: IdOrIds | None
    progress: OnProgress | None


class Jobs(AdminPart):
    """All jobs."""

    async def alist(self, words: Words = "", *, limit: int = LIMIT, after: str | None = None) -> list[JobRecord]:
        """Matching jobs, the newest first. Words: `state:dlq,ready queue:mail task:mail.* tag:x error:… since:1h`."""
        return await self._matching(await self._filter(words), limit, after)

    async def aget(self, id: str) -> JobRecord:
        """One job, or `JobNotFound`."""
        return await self._get(id)

    async def awhy(self, job: JobRecord | str) -> Why:
        """Why a job is in its state, in one sentence: `code`, `text`, and `fix` if a command helps."""
        record = job if isinstance(job, JobRecord) else await self.aget(job)
        async with self._client.store() as driver:
            registry, now = offered(driver, Registry), self._now()
            counts = await capability(driver, Inspect).counts(now) if record.state in (READY, INFLIGHT) else []
            paused = any(count.paused for count in counts if count.queue == record.queue)
            workers = await registry.workers(now - ALIVE) if registry is not None else ()
            waits = record.state is WAITING
            parents = (await capability(driver, WorkflowStore).parents([record.id], 0))[0] if waits else ()
        return why(Facts(job=record, now=now, paused=paused, workers=workers, parents=parents))

    async def aresolve(self, texts: IdOrIds) -> list[str]:
        """The id that each text is, or the UUID that it is the ending of (8 characters or more); else the text itself.

        Endings are searched among the newest 50,000 jobs. `ConfigError` if a text is the ending of several ids.
        """
        asked = each(texts)
        records = await self._client.records(asked)
        unknown = [text for text, record in zip(asked, records, strict=True) if record is None]
        pages = ([job.id for job in page] async for page in self._client.pages(Filter()))
        found = await resolve(unknown, pages, "job")
        return [found.get(text, text) for text in asked]

    async def afind(self, key: str) -> JobRecord | None:
        """The job of a living idempotency key (I3)."""
        async with self._client.store() as driver:
            id = await capability(driver, Inspect).find_key(key, self._now())
        record = None if id is None else await self._client.record(id)
        return None if record is None else self._client.seen(record)

    async def acancel(self, ids: IdOrIds, *, progress: OnProgress | None = None) -> list[Cancellation]:
        """Cancel jobs: `cancelled`, `requested` (running), `finished` or `missing` for each.

        `progress` is called with the number of jobs done so far.
        """
        return await bulk.in_bites(each(ids), self._client.cancel, progress)

    async def adead_letter(
        self, ids: IdOrIds, *, reason: str, progress: OnProgress | None = None
    ) -> list[DeadLettering]:
        """Dead-letter jobs by hand (Q4): `dead`, `requested` (running), `finished` or `missing` for each.

        A running job is asked to stop, as by a cancel; if it finishes first, it is done.
        """
        checked_reason, retention = _reason(reason), self._client.session.settings.retention

        async def act(bite: Sequence[str]) -> list[DeadLettering]:
            async with self._client.store() as driver:
                now, found = self._now(), await capability(driver, Inspect).get(bite)
                jobs = {job.id: job for job in found if job is not None}
                deaths = [dead_letter(jobs[id], checked_reason, retention, now) for id in bite if id in jobs]
                answers = iter(await capability(driver, Manage).dead_letter(deaths, now))
            return [next(answers) if id in jobs else "missing" for id in bite]

        return await bulk.in_bites(each(ids), act, progress)

    async def adelete(self, ids: IdOrIds, *, progress: OnProgress | None = None) -> list[Deletion]:
        """Remove finished jobs: `deleted`, `missing`, `live` or `needed` (by waiting dependants) for each.

        One that is `live` has to be cancelled first.
        """
        return await bulk.in_bites(each(ids), self._delete, progress)

    async def areplay(self, ids: IdOrIds, *, progress: OnProgress | None = None) -> list[Replaying | Literal["task"]]:
        """Run dead or cancelled jobs again: `replayed`, `missing`, `not_dead` or `task` (a TaskManager's) for each.

        `harbor.admin.dlq.replay` can change a job's arguments and key as well.
        """

        def look(job: JobRecord | None, _: datetime) -> str:
            return "task" if job is not None and job.queue == TASKS else bulk.WOULD

        answers = await bulk.look_and_act(self._client, each(ids), look, self._replay, progress)
        return cast('list[Replaying | Literal["task"]]', answers)

    async def apreview(self, act: Act, ids: IdOrIds) -> list[str]:
        """The answers that an act (`cancel`, `delete`, `replay`, `dead_letter`) would give: `would`, or why not."""
        return await bulk.look_and_act(self._client, each(ids), partial(bulk.preview, act))

    async def acancel_all(self, words: Words, **options: Unpack[BulkOptions]) -> Bulk:
        """Cancel matching jobs that have not ended, at most `limit` (by default 10,000). `dry_run` only looks.

        `among`: only these jobs, such as those of a dry run before. Each is looked at again right before the act; one
        that does not match any more is left alone, and its answer is `changed`. Tasks of a TaskManager are left out
        unless the words name their queue.
        """
        return await self._all("cancel", words, self.acancel, **options)

    async def adelete_all(self, words: Words, **options: Unpack[BulkOptions]) -> Bulk:
        """Delete matching jobs that have ended, likewise."""
        return await self._all("delete", words, self.adelete, **options)

    async def areplay_all(self, words: Words, **options: Unpack[BulkOptions]) -> Bulk:
        """Run matching dead and cancelled jobs again, likewise."""
        return await self._all("replay", words, self.areplay, **options)

    async def adead_letter_all(self, words: Words, *, reason: str, **options: Unpack[BulkOptions]) -> Bulk:
        """Dead-letter matching jobs that have not ended, likewise."""
        return await self._all("dead_letter", words, partial(self.adead_letter, reason=_reason(reason)), **options)

    async def _all(
        self,
        act: Act,
        words: Words,
        do: Callable[[IdOrIds], Awaitable[Sequence[str]]],
        *,
        limit: int = BULK_LIMIT,
        dry_run: bool = False,
        among: IdOrIds | None = None,
        progress: OnProgress | None = None,
    ) -> Bulk:
        where = bulk.applicable(act, await self._filter(words))
        look = partial(bulk.still, act, where)
        if among is None:
            pages = self._client.pages(where)
            ids = await bulk.matching(partial(bulk.includes, act, where), pages, limit, bulk.MOST)
        else:
            bulk.check_limit(limit, bulk.MOST)
            ids = [*dict.fromkeys(each(among))]
        if dry_run:
            return Bulk(ids if among is None else await bulk.would(self._client, ids, look), {})
        # Dependants go first, except in a replay: there they have to wait for the jobs before them.
        order = ids[::-1] if act == "replay" else ids
        answers = await bulk.look_and_act(self._client, order, look, do, progress)
        return Bulk(ids, bulk.by_answer(order, answers))

    async def areschedule(self, id: str, *, run_at: datetime | None = None, priority: int | None = None) -> bool:
        """Change when a job is due, or its priority; False if it is not in line."""
        given = {"run_at": run_at, "priority": priority}
        checked({name: value for name, value in given.items() if value is not None})
        change = Reschedule(id=id, run_at=None if run_at is None else moment(run_at), priority=priority)
        async with self._client.store() as driver:
            return (await capability(driver, Manage).reschedule([change], self._now()))[0]

    def shown(self, record: JobRecord) -> str:
        """The state to show for a record."""
        return shown(record, self._now()).value

    list = blocking(alist)
    get = blocking(aget)
    why = blocking(awhy)
    resolve = blocking(aresolve)
    find = blocking(afind)
    cancel = blocking(acancel)
    cancel_all = blocking(acancel_all)
    dead_letter = blocking(adead_letter)
    dead_letter_all = blocking(adead_letter_all)
    delete = blocking(adelete)
    delete_all = blocking(adelete_all)
    replay = blocking(areplay)
    replay_all = blocking(areplay_all)
    preview = blocking(apreview)
    reschedule = blocking(areschedule)


def _reason(text: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise InvalidJob("a dead letter needs a reason: the text that people will find it by")
    return bounded(text.strip())
