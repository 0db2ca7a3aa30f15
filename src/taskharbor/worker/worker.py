"""The worker: its parts, and its life from start to stop.

The reserver claims jobs, the pipeline runs and settles them; keeper, upkeep and scheduler run beside them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.client.client import Client
from taskharbor.core.job import JobRecord
from taskharbor.driver import WorkerRecord
from taskharbor.worker import shutdown
from taskharbor.worker.application import AppRegistry
from taskharbor.worker.background import InTask, InThread
from taskharbor.worker.crew import Crew, lent
from taskharbor.worker.dead_hooks import DeadHooks
from taskharbor.worker.decider import Decider
from taskharbor.worker.drain_failures import FailedRun, FailedRuns
from taskharbor.worker.executor import Executor
from taskharbor.worker.handler_exits import contain_exits
from taskharbor.worker.keeper import Keeper
from taskharbor.worker.outcome_log import OutcomeLog
from taskharbor.worker.pipeline import Pipeline
from taskharbor.worker.quarantine import Quarantine
from taskharbor.worker.queue_weights import QueueWeights
from taskharbor.worker.reserver import Reserver
from taskharbor.worker.scheduler import Scheduler
from taskharbor.worker.settler import Settler
from taskharbor.worker.shutdown import Shutdown
from taskharbor.worker.signals import draining
from taskharbor.worker.startup_log import log_start
from taskharbor.worker.upkeep import Upkeep
from taskharbor.worker.worker_options import WorkerOptions

if TYPE_CHECKING:
    from taskharbor.worker.processes.pool import ProcessPool

logger = logging.getLogger("taskharbor.worker")
FLUSH_PATIENCE = 10.0


class Worker:
    """One worker on one event loop. `start`, then `stop`; or `drain` for what is due now."""

    def __init__(self, client: Client, app: AppRegistry, options: WorkerOptions) -> None:
        session = client.session
        now, rng = session.now, session.rng
        self._client, self._app = client, app
        self._session = session
        self._options = options
        self._tasks = tasks = app.tasks
        self._queues = QueueWeights(options.queues, options.concurrency, rng)
        self._started_at = now()
        self.id = f"{socket.gethostname()}:{os.getpid()}:{rng.getrandbits(32):08x}"
        self._hosted: list[InTask | InThread] = []
        threads = lent.get() if options.threads else None
        self._crew = Crew(options.concurrency) if options.threads and threads is None else None
        self._outcome_log = OutcomeLog()
        self._dead_hooks = DeadHooks(app.on_dead, now, options.threads)
        self._scheduler = Scheduler(client, app)
        self._upkeep = Upkeep(session, self._outcome_log, self._describe)
        self._has_processes = options.threads and options.processes
        self._processes: ProcessPool | None = None
        pool = self._process_pool if self._has_processes else None
        self._executor = Executor(client, app, self._crew or threads, pool)
        lease, unstick = timedelta(seconds=options.lease), None if self._crew is None else self._crew.unstick
        self._keeper = keeper = Keeper(session, lease, self._upkeep.report, unstick)
        decider = Decider(session, tasks)
        self._settler = settler = Settler(session, keeper, decider, self._outcome_log.refused, options.lease)
        for subscriber in (self._outcome_log, self._dead_hooks, self._scheduler):
            settler.subscribe(subscriber.settled)
        quarantine = Quarantine(asyncio.get_running_loop().time, rng, self._is_isolated)
        stopping = self._stopping = asyncio.Event()
        self._pipeline = pipeline = Pipeline(
            client, self._executor, self._crew, keeper, decider, settler, quarantine, stopping
        )
        self._reserver = Reserver(self.id, options, self._queues, pipeline)
        self._shutdown = Shutdown(pipeline)
        self._reserving: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def busy(self) -> int:
        return len(self._pipeline.running)

    @property
    def finished(self) -> int:
        return self._outcome_log.finished

    def _describe(self) -> WorkerRecord:
        overruns = [run.job.queue for run in list(self._pipeline.running.values()) if run.lease.overrun]
        return WorkerRecord(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self._queues.names,
            slots=self._options.concurrency,
            busy=self.busy,
            overruns=len(overruns),
            stuck=self._queues.stuck(overruns),
            started_at=self._started_at,
            seen_at=self._session.now(),
            stopping=self._stopping.is_set(),
        )

    def _is_isolated(self, job: JobRecord) -> bool:
        """Whether a crash of the job can only hit itself, because it runs in a process of its own."""
        task = self._tasks.get(job.type)
        return self._has_processes and task is not None and task.process

    async def warm_up(self) -> None:
        """Start the first processes of `process=True` tasks; an error says why they cannot start."""
        if self._has_processes and any(task.process for task in self._tasks.values()):
            await self._process_pool().warm_up(self._stopping)

    def _process_pool(self) -> ProcessPool:
        if self._processes is None:
            from taskharbor.worker.processes.pool import ProcessPool  # slow to import, and few applications need it

            options = self._options
            self._processes = ProcessPool(self._client, self._app, options.concurrency, options.lease)
        return self._processes

    def start(self) -> None:
        """Work until `stop`."""
        log_start(self.id, self._session, self._queues.names, self._options.concurrency, self._tasks)
        self._begin()
        self._hosted += [InTask(self._upkeep.run, "upkeep")]
        self._ticking = InTask(self._scheduler.run, "scheduler")
        self._reserving = asyncio.get_running_loop().create_task(self._reserver.run(), name="reserve")

    async def ready(self) -> None:
        """Return when the recurring tasks of the code are stored (N5)."""
        await self._scheduler.ready()

    def _begin(self) -> None:
        contain_exits(asyncio.get_running_loop())
        self._hosted = [
            (InThread if self._options.threads else InTask)(self._keeper.run, "taskharbor-keeper"),
            InTask(self._settler.run, "settler"),
            InTask(self._pipeline.reap, "reaper"),
        ]

    async def wait(self) -> None:
        """Return when the worker was asked to stop, or cannot go on."""
        await asyncio.wait({self._reserving})
        if not self._stopping.is_set():
            self._reserving.result()

    def begin_stop(self) -> None:
        """Stop reserving; on a second call, stop waiting for handlers and for a store that does not answer."""
        if self._stopping.is_set():
            self._shutdown.hurry.set()
            self._reserving.cancel()
        else:
            logger.info("worker.draining: %s", draining(self.busy, self._options.grace))
        self._stop_reserving()

    def _stop_reserving(self) -> None:
        self._stopping.set()
        self._pipeline.freed.set()

    async def stop(self, *, hold_abandoned: bool = False) -> None:
        """Let handlers finish for the grace period, cancel the rest, and give their jobs back (X6).

        A run that ignores its cancellation is abandoned: its lease expires by itself. With `hold_abandoned` the lease
        is kept until `give_back_abandoned`, which is for a process that ends right after it.
        """
        self._stop_reserving()
        await self._ticking.stop()
        await asyncio.gather(self._reserving, return_exceptions=True)
        await self._shutdown.end_runs(self._options.grace, keep_leases=hold_abandoned)
        if not self._shutdown.holds_leases:
            await self._end()

    async def give_back_abandoned(self) -> None:
        """Give back the jobs of abandoned runs: the last act of a process that ends now."""
        if self._shutdown.holds_leases:
            self._shutdown.give_back_abandoned()
            await self._end()

    async def drain(self, failures: list[FailedRun] | None = None) -> int:
        """Run everything that is due, and what that makes due, then return the number of runs.

        `failures`, if given, is filled with the runs that failed.
        """
        if failures is not None:
            self._executor.failures = FailedRuns(failures)
        self._begin()
        try:
            await self._upkeep.sweep()
            await self._reserver.run_due(self._dead_hooks)
            return self.finished
        finally:
            await self._shutdown.end_runs(None)
            await self._end()

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_PATIENCE):
                await self._settler.flushed()
        except TimeoutError:
            logger.warning("store.unavailable: some outcomes could not be written; their jobs will run again")
        for hosted in reversed(self._hosted):
            await hosted.stop()
        await self._dead_hooks.close(0 if self._shutdown.hurry.is_set() else shutdown.CANCEL_PATIENCE)
        if self._processes is not None:
            await self._processes.close(0 if self._shutdown.hurry.is_set() else shutdown.CANCEL_PATIENCE)
        if self._crew is not None:
            self._crew.close()
        await self._upkeep.farewell(self.id)
        logger.info("worker.stopped: %s after %d %s", self.id, self.finished, "run" if self.finished == 1 else "runs")
