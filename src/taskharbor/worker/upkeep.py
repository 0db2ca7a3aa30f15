"""Upkeep: what every worker does for the store beside its jobs: sweep, report, prune, forget old totals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from taskharbor.client.liveness import REPORT_EVERY
from taskharbor.client.session import Session
from taskharbor.core.backoff import jitter
from taskharbor.core.decide import later
from taskharbor.core.text import described
from taskharbor.driver import Counters, Maintain, Registry, WorkerRecord, offered
from taskharbor.errors import DriverClosed
from taskharbor.worker.outcome_log import OutcomeLog

logger = logging.getLogger("taskharbor.upkeep")
TICK = 1.0
TICKS_PER_ROUND = round(REPORT_EVERY.total_seconds() / TICK)
BITE = 500
AIR = 0.02
KEEP_TALLIES = timedelta(days=2)
GONE = timedelta(hours=1)


class Upkeep:
    """A loop of small duties; a duty that fails is tried again in the next round."""

    def __init__(self, session: Session, outcome_log: OutcomeLog, describe: Callable[[], WorkerRecord]) -> None:
        self._session = session
        self._outcome_log = outcome_log
        self._describe = describe
        self._failing: set[str] = set()
        self._counted = 0  # outcomes at the last time that old totals were forgotten

    async def run(self) -> None:
        """Sweep every second; report, prune and forget old totals every ten. Report the stop at the next second."""
        ticks = 0
        stopping = False
        while True:
            await self._safely("sweep", self.sweep())
            due = ticks % TICKS_PER_ROUND == 0
            if due or self._describe().stopping > stopping:
                stopping = self._describe().stopping
                await self._safely("report", self.report())
            if due:
                await self._safely("prune", self.prune())
                await self._safely("forget_tallies", self.forget_tallies())
            ticks += 1
            await asyncio.sleep(TICK * jitter(self._session.rng))

    async def sweep(self) -> None:
        """Cancel jobs that expired or cannot run any more."""
        jobs = offered(await self._session.driver(), Maintain)
        if jobs is not None:
            now = self._session.now()
            keep_until = later(now, self._session.settings.retention.done)
            while await jobs.sweep(now, keep_until, BITE) == BITE:
                pass

    async def prune(self) -> None:
        """Delete records past their retention, batch after batch, with a pause between."""
        jobs = offered(await self._session.driver(), Maintain)
        if jobs is not None:
            while True:
                if await jobs.prune(self._session.now(), BITE) < BITE:
                    return
                await asyncio.sleep(AIR)

    async def report(self) -> None:
        """Report that this worker is alive, from any thread, and forget workers that were killed."""
        registry = offered(await self._session.driver(), Registry)
        if registry is not None:
            await registry.beat(self._describe())
            now = self._session.now()
            for worker in await registry.workers(now - timedelta(days=3650)):
                if worker.seen_at < now - GONE:  # killed: a worker that stops forgets itself
                    await registry.forget_worker(worker.id)

    async def forget_tallies(self) -> None:
        """Forget old totals, if this worker has added new ones since the last time."""
        counters, outcomes = offered(await self._session.driver(), Counters), self._outcome_log.outcomes
        if counters is not None and outcomes != self._counted:
            await counters.forget_tallies(self._session.now() - KEEP_TALLIES)
            self._counted = outcomes

    async def farewell(self, worker_id: str) -> None:
        """The last duties of a worker that stops."""
        await self._safely("forget_tallies", self.forget_tallies(), again=False)

        async def forget() -> None:
            if (registry := offered(await self._session.driver(), Registry)) is not None:
                await registry.forget_worker(worker_id)

        await self._safely("farewell", forget(), again=False)

    async def _safely(self, name: str, duty: Coroutine[Any, Any, None], *, again: bool = True) -> None:
        """Do a duty; log the first of several failures in a row."""
        try:
            async with asyncio.timeout(self._session.settings.store_timeout):
                await duty
        except Exception as error:
            if name not in self._failing:
                self._failing.add(name)
                level = (
                    logging.ERROR if isinstance(error, DriverClosed) else logging.WARNING
                )  # such as an outage: try again in the next round
                logger.log(level, "upkeep.failed: %s%s: %s", name, ", trying again" if again else "", described(error))
        else:
            self._failing.discard(name)
