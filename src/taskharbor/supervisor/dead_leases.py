"""Leases of a worker process that has died: its jobs are put back at once, with the crash counted (L9).

The caller has reaped the process, so none of its handlers is running. Leases are found by the worker's name, and each
put-back is fenced by the lease's own token, so that a run which was settled, or taken over, is left alone.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from msgspec import Struct

from taskharbor.client.session import Session
from taskharbor.core.backoff import STORE_BACKOFF
from taskharbor.core.decide import Retention, crashed
from taskharbor.core.durations import count
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.states import Shown
from taskharbor.core.text import described
from taskharbor.driver import Driver, Inspect, Registry, capability, offered
from taskharbor.errors import ConfigError

logger = logging.getLogger("taskharbor.supervisor")
HELD = (Shown.CLAIMED, Shown.RUNNING)
PAGE = 500
SHORTEST_LOOK = 1.0
# A reserve that the process had sent may be committed after its death. The leases of one that comes even later expire
# by themselves.
LATE_LOOKS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class DeadWorker(Struct, frozen=True, kw_only=True):
    """A worker whose process has ended: its name, the length of its leases and its harbor's settings."""

    worker: str
    lease: float
    store_timeout: float = 30.0
    keep_done: float = 24 * 3600.0


class DeadLeases:
    """Puts back what one dead worker held. `looked` is set after the first complete look."""

    def __init__(self, session: Session, dead: DeadWorker) -> None:
        self.looked = asyncio.Event()
        self._session = session
        self._dead = dead
        self._retention = Retention(done=timedelta(seconds=dead.keep_done))
        self._loop = asyncio.get_running_loop()
        # Its claims and renewals last no longer, and its last request is committed or lost by then.
        self._until = self._loop.time() + min(dead.lease, dead.store_timeout)
        self._failures = 0

    async def put_back(self) -> None:
        """Put back its jobs, and look again for claims that were under way; return when none can be left."""
        for delay in (0.0, *LATE_LOOKS):
            if delay and self._loop.time() + delay >= self._until:
                return
            await asyncio.sleep(delay)
            if not await self._insist():
                return
            self.looked.set()

    async def _insist(self) -> bool:
        """Look once, with retries while the store is away; False if the leases will have expired by then."""
        while True:
            try:
                async with asyncio.timeout(max(self._until - self._loop.time(), SHORTEST_LOOK)):
                    await self._look()
                return True
            except Exception as error:
                delay = STORE_BACKOFF.delay(self._failures + 1, self._session.rng)
                if isinstance(error, ConfigError) or self._loop.time() + delay >= self._until:
                    logger.error(
                        "supervisor.leases: the leases of %s expire by themselves: %s",
                        self._dead.worker,
                        described(error),
                    )
                    return False
                self._failures += 1
                logger.warning(
                    "store.unavailable: jobs of %s not put back, trying again: %s", self._dead.worker, described(error)
                )
                await asyncio.sleep(delay)

    async def _look(self) -> None:
        driver = await self._session.driver()
        if (registry := offered(driver, Registry)) is not None:
            await registry.forget_worker(self._dead.worker)
        found = await self._found(driver)
        while found and await self._settle(driver, found) and len(found) == PAGE:
            found = await self._found(driver)

    async def _found(self, driver: Driver) -> list[JobRecord]:
        where = Filter(worker=self._dead.worker, states=HELD)
        jobs = await capability(driver, Inspect).query(where, self._session.now(), PAGE)
        # The filter reads a star in a name as a pattern.
        return [job for job in jobs if job.lease is not None and job.lease.worker == self._dead.worker]

    async def _settle(self, driver: Driver, jobs: list[JobRecord]) -> bool:
        """Return whether any job was put back; a refused one has been settled, or claimed by another worker."""
        now = self._session.now()
        verdicts = await driver.settle([crashed(job, self._retention, now) for job in jobs], now)
        number = sum(verdict == "ok" for verdict in verdicts)
        if number:
            logger.warning("supervisor.put_back: %s of %s", count(number, "job"), self._dead.worker)
        return number > 0
