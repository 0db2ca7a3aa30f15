"""Getting jobs into the store, and looking after them from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from taskharbor.core.codec import checked_size
from taskharbor.core.decide import later
from taskharbor.core.job import JobRecord, NewJob
from taskharbor.core.states import TERMINAL
from taskharbor.driver import Cancellation, Driver, Enqueued, Group, Inspect, WaitForWork, capability
from taskharbor.errors import CapabilityMissing, DriverError, DriverUnavailable, InvalidJob
from taskharbor.runtime.context import JobContext, lineage
from taskharbor.runtime.doze import discard
from taskharbor.runtime.handle import Job
from taskharbor.runtime.portal import Portal
from taskharbor.runtime.session import Session
from taskharbor.runtime.step import Step, prepare

R = TypeVar("R")
LONGEST_WAIT = 5.0
BREATH = 0.0005


class Client:
    """What tasks, handles and the harbor share to reach the store."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._waiting = 0

    @property
    def portal(self) -> Portal:
        """Where blocking twins run."""
        return self.session.portal

    @asynccontextmanager
    async def store(self) -> AsyncGenerator[Driver]:
        """The driver, with a bound on how long an operation may take (X2)."""
        limit = self.session.settings.store_timeout
        try:
            async with asyncio.timeout(limit):
                yield await self.session.driver()
        except TimeoutError as error:
            raise DriverUnavailable(
                f"the store did not answer within {limit:g} s; the operation may still take effect"
            ) from error

    async def enqueue(self, steps: Sequence[Step[Any]]) -> list[Job[Any]]:
        """Store the steps as one group: all of them or none (D1)."""
        if not steps:
            return []
        for step in steps:
            _check(step)
        async with self.store() as driver:
            group = self._group(steps)
            (result,) = await driver.enqueue([group], self.session.now())
        if isinstance(result, Exception):
            raise result
        return [self._handle(step, stored) for step, stored in zip(steps, result, strict=True)]

    async def enqueue_one(self, step: Step[R]) -> Job[R]:
        """Store one step."""
        return (await self.enqueue([step]))[0]

    def enqueue_with(self, context: JobContext, step: Step[R]) -> Job[R]:
        """Keep the step back until the running job succeeds."""
        _check(step)
        self._check_size(step)
        job = prepare(step, self.session.settings, self.session.now(), self.session.chance, lineage())
        context.new_jobs.append(job)
        return Job(self, job.id, step.task.signature.returns)

    def _check_size(self, step: Step[Any]) -> None:
        """Against the engine's own limit, which is known once it is open."""
        checked_size(step.payload, self.session.payload_limit, f"the arguments of {step.task.name}")

    def _group(self, steps: Iterable[Step[Any]]) -> Group:
        settings, chance, now, ties = self.session.settings, self.session.chance, self.session.now(), lineage()
        jobs: list[NewJob] = []
        for step in steps:
            self._check_size(step)
            jobs.append(prepare(step, settings, now, chance, ties))
        return Group(jobs=tuple(jobs))

    def _handle(self, step: Step[R], stored: Enqueued) -> Job[R]:
        return Job(self, stored.id, step.task.signature.returns, stored.created, stored.same_payload)

    async def record(self, id: str) -> JobRecord | None:
        """The job as stored."""
        async with self.store() as driver:
            return (await capability(driver, Inspect).get([id]))[0]

    async def cancel(self, ids: Sequence[str]) -> list[Cancellation]:
        """Cancel jobs in line at once; ask the holders of running ones to stop."""
        async with self.store() as driver:
            now = self.session.now()
            keep_until = later(now, self.session.settings.retention.done)
            return await capability(driver, Inspect).cancel(ids, now, keep_until)

    async def finished(self, id: str, timeout: float | None) -> JobRecord | None:
        """The job once it has ended, None if it is gone; `TimeoutError` if it takes longer."""
        self._waiting += 1
        try:
            return await self._until_ended(id, timeout)
        finally:
            self._waiting -= 1

    async def _until_ended(self, id: str, timeout: float | None) -> JobRecord | None:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        pause = 0.01
        while True:
            left = LONGEST_WAIT if deadline is None else deadline - loop.time()
            hint = asyncio.ensure_future(self._end_hint(id, left, pause))
            await asyncio.sleep(0)  # the hint listens before the look, so that no end falls between the two
            try:
                job = await self.record(id)
                if job is None or job.state in TERMINAL:
                    return job
                if deadline is not None and loop.time() >= deadline:
                    raise TimeoutError(f"job {id} is {job.state} and has no result after {timeout:g} s")
                await hint
            finally:
                discard(hint)
            # Any end wakes everybody who waits: the more there are, the longer each leaves the store to the workers.
            await asyncio.sleep(min((self._waiting - 1) * BREATH, max(0.0, left)))
            pause = min(pause * 1.5, LONGEST_WAIT)

    async def _end_hint(self, id: str, left: float, pause: float) -> None:
        wait = max(0.0, min(left, LONGEST_WAIT))
        with suppress(DriverError):  # without hints there is still the look
            driver = await self.session.driver()
            if isinstance(driver, WaitForWork):
                await driver.wait_for_end(id, wait)
                return
        await asyncio.sleep(min(wait, pause))


def _check(step: Step[Any]) -> None:
    if not isinstance(step, Step):
        raise InvalidJob(f"only steps can be enqueued, such as task.step(…), not {step!r}")
    if "tx" in step.options:
        raise CapabilityMissing("this engine cannot enqueue inside your own transaction (tx=); PostgreSQL will")
