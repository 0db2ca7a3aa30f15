"""Workers for operators: `harbor.admin.workers`."""

from __future__ import annotations

from taskharbor.admin.base import AdminPart
from taskharbor.client.liveness import ALIVE
from taskharbor.client.portal import blocking
from taskharbor.driver import Registry, WorkerRecord, capability


class Workers(AdminPart):
    """Workers that reported themselves lately."""

    async def alist(self) -> list[WorkerRecord]:
        """Workers seen within the last 40 seconds."""
        async with self._client.store() as driver:
            return await capability(driver, Registry).workers(self._now() - ALIVE)

    list = blocking(alist)
