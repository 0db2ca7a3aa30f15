"""Shutting down (X6): let handlers finish, cancel the rest, abandon those that ignore it, and give their jobs back."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from taskharbor.client.blocks import abandoned
from taskharbor.core.outcome import Interrupted, Outcome
from taskharbor.worker import outcomes
from taskharbor.worker.job_log import log_job
from taskharbor.worker.pipeline import Pipeline
from taskharbor.worker.running import JobRun

logger = logging.getLogger("taskharbor.worker")
CANCEL_PATIENCE = 2.0
# A thread goes on until its process has ended. Normally that is before its job is due again; hooks and closing may take
# longer.
PROCESS_END = 1.0


class Shutdown:
    """Ends the runs of a worker. `hurry` ends the wait for handlers."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.hurry = asyncio.Event()
        self._pipeline = pipeline
        self._tasks = pipeline.client.tasks
        self._abandoned: list[JobRun] = []
        self._loop = asyncio.get_running_loop()

    @property
    def holds_leases(self) -> bool:
        """Whether leases of abandoned runs are kept until `give_back_abandoned`."""
        return bool(self._abandoned)

    async def end_runs(self, grace: float | None, *, keep_leases: bool = False) -> None:
        """Wait for the grace period, if any, then cancel what still runs; abandon what ignores that."""
        running = self._pipeline.running
        if grace is not None:
            await self._let_finish(grace)
        for run in list(running.values()):
            self._pipeline.end_run(run, "shutdown")
        await self._let_finish(CANCEL_PATIENCE, even_in_a_hurry=True)
        for run in list(running.values()):
            self._abandon(run, keep_leases)

    async def _let_finish(self, patience: float, even_in_a_hurry: bool = False) -> None:
        if not self._pipeline.running:
            return
        hurried = self._loop.create_task(self.hurry.wait())
        finished = self._loop.create_task(self._all_ended())
        waiting: set[asyncio.Task[Any]] = {finished} if even_in_a_hurry else {finished, hurried}
        await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        finished.cancel()
        await asyncio.sleep(0)

    async def _all_ended(self) -> None:
        while self._pipeline.running:
            self._pipeline.freed.clear()
            await self._pipeline.freed.wait()

    def _abandon(self, run: JobRun, keep_lease: bool) -> None:
        if not run.begun or (run.task is not None and run.task.done()):  # no thread has taken it, or see `reap`
            self._pipeline.conclude(run, Interrupted())
            return
        log_job(logger, logging.WARNING, "worker.abandoned", run.job, "ignores its cancellation")
        run.abandoned = True
        if keep_lease:
            self._abandoned.append(run)
        elif outcomes.is_late(
            run, self._loop.time()
        ):  # it still runs here: no retry before its lease would have expired
            self._pipeline.submit(run, self._outcome(run), not_before=run.lease.deadline - self._loop.time())
        else:
            self._pipeline.let_go(run)
        if run.task is not None:
            abandoned.add(run.task)
            run.task.cancel()
        else:  # its thread goes on, but further effects are refused
            run.ended = True
            self._pipeline.conclude(run, Interrupted())

    def _outcome(self, run: JobRun) -> Outcome:
        return outcomes.abandoned(run, self._tasks.get(run.job.type), self._loop.time())

    def give_back_abandoned(self) -> None:
        """Give back the jobs of abandoned runs whose leases were kept: due when this process should be gone."""
        for run in self._abandoned:
            if run.effects.settled is None:
                self._pipeline.submit(run, self._outcome(run), not_before=PROCESS_END)
