"""The pipeline: what happens to a claimed job, top to bottom.

reserve (`reserver`) → take → start (`starter`) → run (`executor`) → conclude → decide (`decider`) → settle (`settler`)
→ after, by the settler's subscribers. The lease is kept from `take` until the outcome is stored (L2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from taskharbor.client.client import Client
from taskharbor.core.decide import token_of
from taskharbor.core.durations import count
from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import Deferred, Failed, Interrupted, Outcome, Snoozed, Succeeded
from taskharbor.core.transition import Ack
from taskharbor.worker.crew import Crew
from taskharbor.worker.decider import Decider
from taskharbor.worker.executor import Executor
from taskharbor.worker.keeper import Keeper
from taskharbor.worker.outcome_log import log_too_late
from taskharbor.worker.quarantine import Quarantine
from taskharbor.worker.running import NO_EFFECTS, HeldLease, JobRun, Stop
from taskharbor.worker.settler import Settler
from taskharbor.worker.starter import Starter

logger = logging.getLogger("taskharbor.worker")
STOLEN_FOR = 1.0
REAP_EVERY = 1.0


class Pipeline:
    """Takes claimed jobs and brings each to its end: the `Host` of its runs.

    `running` are the runs by the ids of their jobs, `freed` is set when one has ended. While `stopping` is set, claimed
    jobs are given back instead of started.
    """

    def __init__(
        self,
        client: Client,
        executor: Executor,
        crew: Crew | None,
        keeper: Keeper,
        decider: Decider,
        settler: Settler,
        quarantine: Quarantine,
        stopping: asyncio.Event,
    ) -> None:
        self.client = client
        self.running: dict[str, JobRun] = {}
        self.freed = asyncio.Event()
        self._now = client.session.now
        self._executor = executor
        self.keeper = keeper
        self._decider = decider
        self.settler = settler
        self.quarantine = quarantine
        self.stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._starter = Starter(self, executor, crew, self.conclude)

    @property
    def is_empty(self) -> bool:
        """Whether no lease is held."""
        return not self.running and self.settler.idle

    # start

    async def take(self, jobs: Sequence[JobRecord], deadline: float) -> None:
        """Start the jobs that may run. Give back the others first, so that a crash does not involve them."""
        if deadline <= self._loop.time():  # the reply took longer than the lease: it has already expired (L4)
            logger.warning("lease.lost: too late to run %s that this worker claimed", count(len(jobs), "job"))
            return
        runs = [JobRun(job, HeldLease(token_of(job), deadline), self, NO_EFFECTS) for job in jobs]
        self.keeper.hold(runs)
        suspects = self.quarantine.sort(jobs, self.is_empty)
        try:
            if suspects:
                given_back = [run for run in runs if run.job.id in suspects]
                runs = [run for run in runs if run.job.id not in suspects]
                await self._give_back(given_back, suspects)
        finally:  # also when a stop interrupts the wait: `_admit` then gives them back
            stopping = self.stopping.is_set()
            self._starter.start([run for run in runs if self._admit(run, stopping)])

    async def _give_back(self, runs: Sequence[JobRun], delays: Mapping[str, float]) -> None:
        for run in runs:
            self._end_older_run(run.job)
            self.submit(run, Deferred(delays[run.job.id]))
        await self.settler.flushed()

    def _admit(self, run: JobRun, stopping: bool) -> bool:
        """Whether the job may run here and now; if not, its outcome is on the way."""
        job = run.job
        if job.id in self.running:
            self._end_older_run(job)
            self.submit(run, Snoozed(STOLEN_FOR))
        elif stopping:
            self.submit(run, Interrupted())
        elif job.crashes and (refused := self._decider.admit(job)) is not None:
            self.settler.submit(run, refused)
        else:
            self.running[job.id] = run
            return True
        return False

    # run

    def request_stop(self, run: JobRun, stop: Stop) -> None:
        """Ask a run to end, from any thread. Its process, if it has one, does not wait for this loop."""
        if (process := run.process) is not None:
            process.stop(stop)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.end_run, run, stop)

    def end_run(self, run: JobRun, stop: Stop) -> None:
        """Ask a run to end and cancel its task, if it has one; its outcome follows from `stop`."""
        if self.running.get(run.job.id) is not run or (stop == "timeout" and run.returned_at < run.ends_by):
            return
        if run.stop is None or stop == "lost":
            run.stop_request = stop
        if run.task is not None and run.begun:  # one that has not begun looks at `stop` first
            run.task.cancel()

    def _end_older_run(self, job: JobRecord) -> None:
        """The clock has jumped and this worker claimed its own job again: the first run ends before the next begins."""
        if job.id in self.running:
            run = self.running[job.id]
            run.lease.lose()
            self.end_run(run, "lost")

    async def reap(self) -> None:
        """Conclude runs whose task was cancelled by other code before its first step: they cannot do it themselves."""
        while True:
            await asyncio.sleep(REAP_EVERY)
            for run in list(self.running.values()):
                if run.task is not None and run.task.done():
                    self.conclude(run, Interrupted())

    def hold(self, run: JobRun) -> None:
        self.keeper.hold([run])

    def let_go(self, run: JobRun) -> None:
        self.keeper.drop(run)

    def noted(self, run: JobRun) -> None:
        """No-op: the keeper looks at the effects by itself."""

    # outcome, decide, settle

    def conclude(self, run: JobRun, outcome: Outcome) -> None:
        """A run has ended: free its slot, and settle unless its lease is lost or the outcome already stored (L4)."""
        if self.running.get(run.job.id) is not run:  # concluded by the shutdown, while a thread had it
            return
        del self.running[run.job.id]
        run.task = None  # a lease outlasts its run, but the task and its frames need not
        try:
            settled = run.effects.settled
            if run.abandoned:  # the shutdown has already dealt with its lease
                pass
            elif settled is not None:  # by the handler's own transaction
                self.settler.publish([(run, settled)], self._now())
                log_too_late(run.job, settled, outcome)
            elif run.lease.lost:
                self.keeper.drop(run)
            elif type(outcome) is Succeeded:  # decided with the others of its flush
                self.settler.submit(run, outcome)
            else:
                self.submit(run, outcome)
        finally:
            self.freed.set()  # last, so that the outcome goes to the store before the next reserve

    def submit(self, run: JobRun, outcome: Outcome, not_before: float = 0.0) -> None:
        """Decide an outcome and have it settled."""
        failures = self._executor.failures
        if failures is not None and isinstance(outcome, Failed):
            failures.add(run, outcome)
        self.settler.submit(run, self._decider.decide(run, outcome, not_before))

    def acknowledge(self, run: JobRun) -> Ack:
        return self._decider.acknowledge(run)
