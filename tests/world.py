"""A small world to test in: a harbor over a recorded memory store, one loop of virtual time, one seed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from random import Random
from typing import Any, ParamSpec

from taskharbor import Harbor, Job
from taskharbor.core.job import JobRecord
from taskharbor.driver import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing import LoopClock, Recording, run
from taskharbor.worker.worker import Worker

P = ParamSpec("P")
LONGEST = 1800.0


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """An async test, run in virtual time; one that waits for what never comes fails instead of hanging."""

    @wraps(test)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LONGEST):
                await test(*args, **kwargs)

        run(bounded())

    return wrapped


class World:
    """`harbor` reaches `memory` through the faults of `wrap`; `log` writes down what arrives at the store."""

    def __init__(self, wrap: Callable[[Driver], Driver] | None = None, *, seed: int = 1, **settings: Any) -> None:
        self.memory = MemoryDriver(Random(seed))
        self.log = Recording(self.memory)
        self.clock = settings.pop("clock", None) or LoopClock()
        self.store: Any = wrap(self.log) if wrap else self.log
        self.harbor = Harbor(driver=self.store, clock=self.clock, rng=Random(seed), **settings)

    @classmethod
    def over(cls, world: World, driver: Driver) -> World:
        """Another harbor on the same store, reached in another way."""
        other = cls(clock=world.clock, seed=11)
        other.memory, other.log, other.store = world.memory, world.log, driver
        other.harbor = Harbor(driver=driver, clock=world.clock, rng=Random(11))
        return other

    @asynccontextmanager
    async def worker(self, *queues: str, **options: Any) -> AsyncGenerator[Worker]:
        """A worker on this loop alone, with all that is inside it."""
        async with self.harbor.worker(list(queues) or None, threads=False, **options) as running:
            yield running._worker

    async def drain(self, *queues: str, **options: Any) -> int:
        """`harbor.adrain` on this loop alone."""
        return await self.harbor.adrain(list(queues) or None, threads=False, **options)

    async def record(self, job: Job[Any] | str) -> JobRecord:
        """The job as it is stored, by a way that no fault is in."""
        (found,) = await self.memory.get([job if isinstance(job, str) else job.id])
        assert found is not None
        return found

    async def state(self, job: Job[Any] | str) -> str:
        """The stored state."""
        return (await self.record(job)).state.value

    def settled(self) -> list[list[Any]]:
        """The transitions of every settle that reached the store."""
        return [list(call["transitions"]) for call in self.log.calls("settle")]

    def is_empty(self) -> bool:
        """Whether nothing was ever stored."""
        return not self.memory._store.jobs


def time() -> float:
    """The loop's time."""
    return asyncio.get_running_loop().time()


async def until(condition: Callable[[], object], step: float = 0.05, limit: float = 300) -> None:
    """Let virtual time pass until the condition holds."""
    last = time() + limit
    while not condition():
        assert time() < last, "it never happened"
        await asyncio.sleep(step)
