"""Queues for operators: `harbor.admin.queues`."""

from __future__ import annotations

from taskharbor.admin.base import AdminPart
from taskharbor.client.portal import blocking
from taskharbor.core.names import check_name
from taskharbor.core.reserved import check_queue
from taskharbor.driver import Inspect, Manage, QueueCounts, capability


class Queues(AdminPart):
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
