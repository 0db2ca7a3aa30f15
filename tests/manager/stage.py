"""The stage of the manager's tests: one store, a clock that stands still, and two managers that share both.

A test is an `async def test_…(w: World)`. It runs on an event loop of its own, on every engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

from taskharbor import Harbor
from taskharbor.core.evolve import DeadLetter
from taskharbor.core.job import JobRecord
from taskharbor.driver import DeadLettering, Driver, Inspect, Maintain, Manage, capability
from taskharbor.manager import TaskManager
from taskharbor.testing import ManualClock, Wrapper

P = ParamSpec("P")
Opener = Callable[[], Awaitable[Driver]]
LEASE = 30.0
Act = Callable[[], Awaitable[object]]


class World:
    """`me` and `other` are managers on connections of their own; `store` is a third, to look past them."""

    def __init__(
        self,
        opener: Opener,
        leave: Callable[[Driver], Awaitable[None]] = lambda driver: driver.close(),
        run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    ) -> None:
        self.clock = ManualClock()
        self.run = run
        self._opener = opener
        self._leave = leave
        self._opened: list[Driver] = []

    async def open(self) -> Driver:
        """A new connection to the store."""
        driver = await self._opener()
        self._opened.append(driver)
        return driver

    async def manager(self, wrap: Callable[[Driver], Driver] | None = None, **options: Any) -> TaskManager:
        """A manager of another process, behind a faulty driver if one is given."""
        driver = await self.open()
        given: dict[str, Any] = {"clock": self.clock, "lease": LEASE, **options}
        return TaskManager(driver if wrap is None else wrap(driver), **given)

    @asynccontextmanager
    async def begun(self) -> AsyncGenerator[World]:
        """With all managers on stage."""
        self.store = await self.open()
        self.look, self.manage = capability(self.store, Inspect), capability(self.store, Manage)
        self.upkeep = capability(self.store, Maintain)
        self.me, self.other = await self.manager(), await self.manager()
        try:
            yield self
        finally:
            for driver in self._opened:
                await self._leave(driver)

    def harbor(self, **options: Any) -> Harbor:
        """A harbor for ordinary jobs in the same store."""
        return Harbor(driver=self.store, clock=self.clock, **options)

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)

    async def job(self, id: str) -> JobRecord:
        """The job of a task in the store."""
        (job,) = await self.look.get([id])
        assert job is not None
        return job

    async def dead_letter(self, id: str, reason: str = "bad order") -> list[DeadLettering]:
        """Dead-letter a task as an operator does."""
        death = DeadLetter(id=id, reason=reason, fingerprint="by hand", keep_until=self.clock())
        return await self.manage.dead_letter([death], self.clock())

    async def count(self) -> int:
        """How many jobs there are in all."""
        return sum(
            it.ready + it.scheduled + it.claimed + it.running + it.lapsed + it.done + it.dlq + it.cancelled
            for it in await self.look.counts(self.clock())
        )


class Meanwhile(Wrapper):
    """Lets another caller act right before calls of a verb reach the store, `times` times."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.acts: dict[str, tuple[Act, int]] = {}

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Awaitable[Any]]) -> Any:
        act, times = self.acts.get(verb, (None, 0))
        if act is not None and times:
            self.acts[verb] = (act, times - 1)
            await act()
        return await call()


async def beset(w: World) -> tuple[TaskManager, Meanwhile]:
    """A manager that others act in the way of."""
    line = Meanwhile(await w.open())
    return TaskManager(line, clock=w.clock), line


def played(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """An async test of a world, as one that pytest can call."""

    @wraps(test)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        world = kwargs["w"]
        assert isinstance(world, World)

        async def play() -> None:
            async with asyncio.timeout(60), world.begun():
                await test(*args, **kwargs)

        world.run(play())

    return wrapped
