"""`harbor.admin`: jobs, dead letters, queues, workers, recurring tasks, workflows, statistics and the store itself."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from taskharbor.admin.base import AdminPart
from taskharbor.admin.dead_letters import DeadLetters
from taskharbor.admin.jobs import Jobs
from taskharbor.admin.queues import Queues
from taskharbor.admin.stats import Stats, Workers, stats
from taskharbor.admin.workflows import Workflows
from taskharbor.client.client import Client
from taskharbor.client.options import Duration
from taskharbor.client.portal import blocking
from taskharbor.driver import Durability, RepairReport, Repairs, StoreSetting, offered

if TYPE_CHECKING:
    from taskharbor.admin.recurring import Recurring


class Admin(AdminPart):
    """The operator's view of a harbor."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.jobs = Jobs(client)
        self.dlq = DeadLetters(client)
        self.queues = Queues(client)
        self.workers = Workers(client)
        self.workflows = Workflows(client)

    @cached_property
    def recurring(self) -> Recurring:
        """Recurring tasks."""
        from taskharbor.admin.recurring import Recurring  # most harbors have no cron to read

        return Recurring(self._client)

    def now(self) -> datetime:
        """The time by the store's clock if it has one; it is known after the first call."""
        return self._now()

    async def astats(self, since: Duration = 3600) -> Stats:
        """Counts, workers, and totals since so many seconds ago."""
        return await stats(self._client, await self.queues.alist(), since)

    stats = blocking(astats)

    async def adurability(self) -> list[StoreSetting] | None:
        """The settings of the store that decide what may be lost; None if its driver cannot read them."""
        async with self._client.store() as driver:
            found = offered(driver, Durability)
            return None if found is None else await found.durability()

    durability = blocking(adurability)

    async def arepair(self, *, dry: bool = False) -> RepairReport | None:
        """Mend indexes that do not fit the records; with `dry`, only count them. None if the engine keeps them.

        It takes as long as the store is large, whatever `store_timeout` is; a store that does not answer ends it.
        """
        async with self._client.store() as driver:
            found = offered(driver, Repairs)
        return None if found is None else await found.repair(dry=dry)

    repair = blocking(arepair)
