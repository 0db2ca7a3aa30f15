"""The base of the parts of `harbor.admin`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from shlex import quote

from taskharbor.client.client import MISSING, Client
from taskharbor.client.portal import Portal
from taskharbor.core.evolve import Replay
from taskharbor.core.filter import Filter, parse
from taskharbor.core.job import JobRecord
from taskharbor.driver import Deletion, Manage, Replaying, capability
from taskharbor.errors import JobNotFound

LIMIT = 50
BULK_LIMIT = 10_000
Words = str | Sequence[str] | Filter
IdOrIds = str | Sequence[str]


class AdminPart:
    """Asks the store through the client, at the store's time."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def portal(self) -> Portal:
        return self._client.portal

    def _now(self) -> datetime:
        return self._client.session.now()

    async def _filter(self, words: Words) -> Filter:
        async with self._client.store():  # its clock is known once it is open
            if isinstance(words, Filter):
                return words
            return parse(tuple(words.split() if isinstance(words, str) else words), self._now())

    async def _matching(self, where: Filter, limit: int, after: str | None) -> list[JobRecord]:
        return [self._client.seen(job) for job in await self._client.query(where, limit, after)]

    async def _get(self, id: str) -> JobRecord:
        if (job := await self._client.record(id)) is not None:
            return self._client.seen(job)
        if await self._client.workflow(id) is not None:
            raise JobNotFound(f"{id} is a workflow, not a job: see `taskharbor workflows show {quote(id)}`")
        place = self._client.session.shown_url
        where = "" if place is None else f" in {place}"
        raise JobNotFound(f"there is no job {id}{where}: {MISSING}")

    async def _delete(self, ids: Sequence[str]) -> list[Deletion]:
        async with self._client.store() as driver:
            return await capability(driver, Manage).delete(ids)

    async def _replay(self, ids: Sequence[str]) -> list[Replaying]:
        async with self._client.store() as driver:
            return await capability(driver, Manage).replay([Replay(id=id) for id in ids], self._now())


def each(ids: IdOrIds) -> Sequence[str]:
    return [ids] if isinstance(ids, str) else ids
