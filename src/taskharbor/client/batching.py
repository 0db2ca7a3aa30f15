"""Single enqueues on their way to the store: those of one turn of an event loop go together.

A web server's requests enqueue at the same time but know nothing of each other. Nobody waits for the others: a turn
ends at once, and where nobody else was met the last time and nothing is under way, an enqueue goes straight away. Each
keeps its own answer.
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
    """Groups for `Driver.enqueue`, gathered."""

    def __init__(self, driver: Callable[[], Awaitable[Driver]], now: Callable[[], datetime], timeout: float) -> None:
        self._driver = driver
        self._now = now
        self._timeout = timeout
        self._waiting: dict[asyncio.AbstractEventLoop, Waiting] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._lonely: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._alone: WeakSet[asyncio.AbstractEventLoop] = WeakSet()

    async def store(self, group: Group) -> GroupResult:
        """Store a group with whatever else comes now."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            if loop in self._lonely and loop not in self._alone:
                return await self._go_alone(loop, group)
            return await self._lead(loop, group)
        future: asyncio.Future[GroupResult] = loop.create_future()
        waiting.append((group, future))
        return await future

    async def _go_alone(self, loop: asyncio.AbstractEventLoop, group: Group) -> GroupResult:
        self._alone.add(loop)
        try:
            return (await self._stored([group]))[0]
        finally:
            self._alone.discard(loop)

    async def _lead(self, loop: asyncio.AbstractEventLoop, group: Group) -> GroupResult:
        """Let others join until the turn is over. In company the call belongs to none of them: one may be cancelled."""
        waiting = self._waiting[loop] = []
        try:
            await asyncio.sleep(0)
        except BaseException:  # cancelled, or closed by hand: the others go without this one
            self._send(self._waiting.pop(loop))
            raise
        del self._waiting[loop]
        if not waiting:
            self._lonely.add(loop)
            return await self._go_alone(loop, group)
        self._lonely.discard(loop)
        future: asyncio.Future[GroupResult] = loop.create_future()
        company = [(group, future), *waiting]
        if (
            len(company) >= MANY and not self._sending
        ):  # in two halves: while the store has one, the other's callers go on
            half = len(company) // 2
            self._send(company[:half])
            company = company[half:]
        self._send(company)
        return await future

    def _send(self, waiting: Waiting) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver(waiting))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, waiting: Waiting) -> None:
        waiting = [entry for entry in waiting if not entry[1].done()]  # without those who gave up in the meantime
        try:
            results = await self._stored([group for group, _ in waiting])
        except (DriverUnavailable, DriverClosed, DriverForked) as error:
            _refuse(waiting, error)
        except Exception as error:
            if len(waiting) == 1:
                _refuse(waiting, error)
            else:  # one of them the store cannot take: the others must not suffer for it
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
            future.set_exception(error if len(waiting) == 1 else _copy(error))


def _copy(error: Exception) -> Exception:
    """An error of one's own, for a traceback grows wherever an error is raised."""
    own = type(error)(*error.args)
    own.__cause__ = error
    return own


def no_answer(limit: float) -> DriverUnavailable:
    """What a caller hears when the store is silent."""
    return DriverUnavailable(f"the store did not answer within {limit:g} s; the operation may still take effect")
