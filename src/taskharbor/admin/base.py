"""A part of the operator's view: what `harbor.admin` is made of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from taskharbor.client.client import Client
from taskharbor.client.portal import Portal
from taskharbor.core.filter import Filter, parse
from taskharbor.errors import JobNotFound

LIMIT = 50
BULK_LIMIT = 10_000
ALIVE = timedelta(seconds=40)  # a worker reports every ten
Words = str | Sequence[str] | Filter
Ids = str | Sequence[str]


class Part:
    """Asks the store through the client, at the store's time."""

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

    async def _why_gone(self, id: str) -> JobNotFound:
        if await self._client.workflow(id) is not None:
            return JobNotFound(f"{id} is a workflow, not a job: see `taskharbor workflows show {id}`")
        return JobNotFound(f"there is no job {id}: the id is wrong, or its retention has run out")


def each(ids: Ids) -> Sequence[str]:
    """The ids; one may come alone."""
    return [ids] if isinstance(ids, str) else ids
