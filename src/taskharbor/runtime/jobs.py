"""All jobs as an operator sees them: `harbor.admin.jobs`."""

from __future__ import annotations

from datetime import datetime

from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.states import shown
from taskharbor.driver import Cancellation, Deletion, Inspect, Reschedule, capability
from taskharbor.runtime.endings import resolve
from taskharbor.runtime.options import checked, moment
from taskharbor.runtime.part import LIMIT, Ids, Part, Words, each
from taskharbor.runtime.portal import blocking


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

    async def aresolve(self, texts: Ids) -> list[str]:
        """The id that each text is, or is the ending of (8 characters are enough); a text that is neither stays.

        Searches the newest 50,000 jobs. `ConfigError` if a text is the ending of several ids.
        """
        asked = each(texts)
        async with self._client.store() as driver:
            records = await capability(driver, Inspect).get(asked)
        unknown = [text for text, record in zip(asked, records, strict=True) if record is None]
        pages = ([job.id for job in page] async for page in self._pages(Filter()))
        found = await resolve(unknown, pages, "job")
        return [found.get(text, text) for text in asked]

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
    resolve = blocking(aresolve)
    find = blocking(afind)
    cancel = blocking(acancel)
    delete = blocking(adelete)
    reschedule = blocking(areschedule)
