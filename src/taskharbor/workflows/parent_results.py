"""How a step gets the results of the steps before it (K3): read when it starts, in one call for several jobs."""

from __future__ import annotations

import asyncio

from taskharbor.client.session import Session
from taskharbor.core.wiring import LIMIT
from taskharbor.driver import Parent, WorkflowStore, capability
from taskharbor.errors import DriverClosed, DriverUnavailable

MOST_AT_ONCE = 100
AWAY = (DriverUnavailable, DriverClosed, TimeoutError, OSError)


class ParentResults:
    """Sends one call for all requests that came in during the last one.

    A call carries LIMIT bytes in all: a share for each job. A job that needs more than its share is read alone.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[str, asyncio.Future[list[Parent]]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def of(self, id: str) -> list[Parent]:
        """The parents of a job, in order."""
        future = self._waiting.get(id)
        if future is None or future.cancelled():
            future = self._waiting[id] = asyncio.get_running_loop().create_future()
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return await future

    async def _ask(self) -> None:
        try:
            while self._waiting:
                asked = {id: self._waiting.pop(id) for id in list(self._waiting)[:MOST_AT_ONCE]}
                await self._read(asked)
        finally:
            self._asking = None

    async def _read(self, asked: dict[str, asyncio.Future[list[Parent]]]) -> None:
        share = LIMIT // len(asked)
        try:
            async with asyncio.timeout(self._session.settings.store_timeout):
                store = capability(await self._session.driver(), WorkflowStore)
                answers = await store.parents(list(asked), share)
        except Exception as error:
            if len(asked) > 1 and not isinstance(error, AWAY):  # one of them cannot be read: read each alone
                for id, future in asked.items():
                    await self._read({id: future})
                return
            for future in asked.values():
                if not future.done():
                    future.set_exception(error)
            return
        large: list[str] = []
        for (id, future), answer in zip(asked.items(), answers, strict=True):
            if share < sum(parent.size for parent in answer) <= LIMIT:
                large.append(id)
            elif not future.done():
                future.set_result(answer)
        for id in large:
            await self._read({id: asked[id]})
