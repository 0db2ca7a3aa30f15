"""Batching: enqueues of one turn of an event loop share a call to the store, and each keeps its own answer.

If the last call was not shared and none is under way, an enqueue is sent immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from weakref import WeakSet

from taskharbor.driver import Driver, Group, GroupResult
from taskharbor.errors import DriverClosed, DriverForked, DriverUnavailable

MANY = 20

Waiting = list[tuple[Group, "asyncio.Future[GroupResult]"]]


class Batcher:
    """Collects groups for `Driver.enqueue`."""

    def __init__(self, driver: Callable[[], Awaitable[Driver]], now: Callable[[], datetime], timeout: float) -> None:
        self._driver = driver
        self._now = now
        self._timeout = timeout
        self._waiting: dict[asyncio.AbstractEventLoop, Waiting] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._unshared: WeakSet[asyncio.AbstractEventLoop] = WeakSet()  # loops whose last call was not shared
        self._calling: WeakSet[asyncio.AbstractEventLoop] = WeakSet()  # loops with an unshared call under way

    async def store(self, group: Group) -> GroupResult:
        """Store a group, with those that other callers store now."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            if loop in self._unshared and loop not in self._calling:
                return await self._store_alone(loop, group)
            return await self._collect(loop, group)
        future: asyncio.Future[GroupResult] = loop.create_future()
        waiting.append((group, future))
        return await future

    async def _store_alone(self, loop: asyncio.AbstractEventLoop, group: Group) -> GroupResult:
        self._calling.add(loop)
        try:
            return (await self._stored([group]))[0]
        finally:
            self._calling.discard(loop)

    async def _collect(self, loop: asyncio.AbstractEventLoop, group: Group) -> GroupResult:
        """Let others join until the turn is over. A shared call has its own task, because a caller may be cancelled."""
        waiting = self._waiting[loop] = []
        try:
            await asyncio.sleep(0)
        except BaseException:  # cancelled: the others are sent without this one
            self._send(self._waiting.pop(loop))
            raise
        del self._waiting[loop]
        if not waiting:
            self._unshared.add(loop)
            return await self._store_alone(loop, group)
        self._unshared.discard(loop)
        future: asyncio.Future[GroupResult] = loop.create_future()
        batch = [(group, future), *waiting]
        if (
            len(batch) >= MANY and not self._sending
        ):  # in halves: while the store works on one, callers of the other go on
            half = len(batch) // 2
            self._send(batch[:half])
            batch = batch[half:]
        self._send(batch)
        return await future

    def _send(self, waiting: Waiting) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver(waiting))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, waiting: Waiting) -> None:
        waiting = [entry for entry in waiting if not entry[1].done()]  # without cancelled callers
        try:
            results = await self._stored([group for group, _ in waiting])
        except (DriverUnavailable, DriverClosed, DriverForked) as error:
            _refuse(waiting, error)
        except Exception as error:
            if len(waiting) == 1:
                _refuse(waiting, error)
            else:  # the store refuses the batch because of one of them: try each alone
                await asyncio.gather(*(self._deliver([entry]) for entry in waiting))
        except BaseException:
            for _, future in waiting:
                future.cancel()
            raise
        else:
            for (_, future), result in zip(waiting, results, strict=True):
                if not future.done():
                    future.set_result(result)

    async def _stored(self, groups: list[Group]) -> Sequence[GroupResult]:
        if not groups:
            return []
        try:
            async with asyncio.timeout(self._timeout):
                driver = await self._driver()
                return await driver.enqueue(groups, self._now())
        except TimeoutError as error:
            raise no_answer(self._timeout) from error


def _refuse(waiting: Waiting, error: Exception) -> None:
    for _, future in waiting:
        if not future.done():
            own = error
            if len(waiting) > 1:  # an error for each caller: a traceback grows wherever an error is raised
                own = type(error)(*error.args)
                own.__cause__ = error
            future.set_exception(own)


def no_answer(limit: float) -> DriverUnavailable:
    """The error for a caller whose call took too long."""
    return DriverUnavailable(f"the store did not answer within {limit:g} s; the operation may still take effect")
