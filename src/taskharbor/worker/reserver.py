"""The reserver: claims as many jobs as there are free slots (L6), waits if nothing is due or the store is away (X2)."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from taskharbor.core.job import JobRecord
from taskharbor.core.text import described
from taskharbor.errors import ConfigError, DriverClosed, DriverForked
from taskharbor.worker.dead_hooks import DeadHooks
from taskharbor.worker.idle import Idle, set_within
from taskharbor.worker.pipeline import Pipeline
from taskharbor.worker.queue_weights import QueueWeights, ToReserve
from taskharbor.worker.worker_options import WorkerOptions

logger = logging.getLogger("taskharbor.worker")
SOON = 0.05


class Reserver:
    """Fills the free slots of one worker until `stopping` is set."""

    def __init__(self, worker_id: str, options: WorkerOptions, queues: QueueWeights, pipeline: Pipeline) -> None:
        self._worker_id = worker_id
        self._session = pipeline.client.session
        self._slots = options.concurrency
        self._lease = options.lease
        self._lease_for = timedelta(seconds=options.lease)
        self._queues = queues
        self._pipeline = pipeline
        self._quarantine = pipeline.quarantine
        self._settler = pipeline.settler
        self._stopping = pipeline.stopping
        self._freed = pipeline.freed
        self._loop = asyncio.get_running_loop()
        self._idle = Idle(self._session, self._stopping)
        self._failures = 0  # in a row
        self._has_reserved = False

    async def run(self) -> None:
        more = False
        while not self._stopping.is_set():
            claim, ids = self._room()
            if claim.limit == 0:
                await self._slot_or_stop()
                continue
            if claim.only_own:
                self._freed.clear()
                if more and await set_within(self._freed, SOON):
                    continue  # the next reserve serves all queues, not only the idle ones
            jobs = await self._try_to_reserve(claim, ids)
            if jobs is None:
                continue
            more = len(jobs) == claim.limit and not claim.only_own
            if len(jobs) < claim.limit and ids is None:
                freed = self._freed if claim.only_own else None
                await self._idle.until_work(found=bool(jobs), queues=claim.queues, freed=freed)
            elif not self._settler.idle:  # outcomes go first, into the same transaction as the next reserve
                await asyncio.sleep(0)

    async def run_due(self, hooks: DeadHooks) -> None:
        """Reserve until nothing is due any more, not even what the runs and the dead hooks made due."""
        self._quarantine.alone = True
        self._queues.keep_slots = False
        while True:
            claim, ids = self._room()
            empty = self._pipeline.is_empty  # before the look: what ends during it may be due again and unseen
            jobs = await self._reserve(claim, ids)
            if claim.limit and ids is None and not jobs and empty:
                if hooks.idle:
                    return
                await hooks.finished()  # they may have enqueued something
            elif not jobs:
                self._freed.clear()
                if self._pipeline.running:
                    await self._freed.wait()
                await self._settler.flushed()

    async def _try_to_reserve(self, claim: ToReserve, ids: list[str] | None) -> list[JobRecord] | None:
        """The claimed jobs; None after a failure and its backoff. A failure that waiting cannot fix is raised."""
        try:
            jobs = await self._reserve(claim, ids)
        except (DriverClosed, DriverForked) as error:
            logger.error("worker.stopped: %s", error)
            raise
        except Exception as error:
            if (
                isinstance(error, ConfigError) and not self._has_reserved
            ):  # such as missing rights: waiting does not fix them
                raise
            self._failures += 1
            logger.warning("store.unavailable: cannot reserve, trying again: %s", described(error))
            await self._idle.back_off(self._failures)
            return None
        self._failures, self._has_reserved = 0, True
        return jobs

    def _room(self) -> tuple[ToReserve, list[str] | None]:
        """The number of jobs to reserve now, their queues, and their ids if only certain ones."""
        running = self._pipeline.running
        free, ids = self._quarantine.ask(self._slots - len(running), self._pipeline.is_empty)
        if ids is not None:
            return ToReserve(self._queues.shares(), free), ids
        return self._queues.claim(free, (run.job.queue for run in running.values())), None

    async def _reserve(self, claim: ToReserve, ids: list[str] | None) -> list[JobRecord]:
        if claim.limit < 1:
            return []
        asked, now = self._loop.time(), self._session.now
        async with asyncio.timeout(self._session.settings.store_timeout):
            driver = await self._session.driver()
            jobs = await driver.reserve(claim.queues, now(), self._lease_for, claim.limit, self._worker_id, ids)
        if ids is not None and not jobs:
            self._quarantine.missed()
        await self._pipeline.take(jobs, asked + self._lease)
        if jobs and self._loop.time() - asked > self._lease / 3:
            self._pipeline.keeper.hurry()
        return jobs

    async def _slot_or_stop(self) -> None:
        self._freed.clear()
        busy = bool(self._pipeline.running)
        if busy and self._quarantine.patience is None:
            # Without a task between, so that the next reserve and the outcomes that freed its slots share a commit.
            await self._freed.wait()
            return
        waiting = (self._stopping.wait(), self._freed.wait() if busy else self._settler.flushed())
        tasks = [asyncio.ensure_future(each) for each in waiting]
        await asyncio.wait(tasks, timeout=self._quarantine.patience, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
