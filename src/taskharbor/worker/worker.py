"""The worker: free slots → reserve → executor → decide → settler, with the keeper beside it.

It reserves exactly what it has slots for (L6), rides out a store that is away (X2), and stops gracefully (X6). Every
job runs in an asyncio task of its own; when that task ends, `_conclude` turns its outcome into a transition.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import cast

from msgspec.structs import replace

from taskharbor.client.blocks import abandoned
from taskharbor.client.client import Client
from taskharbor.client.declaration import Declared
from taskharbor.client.idle import Idle
from taskharbor.client.registered_task import Registered
from taskharbor.core.decide import admit, decide, later, token_of
from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import Deferred, Failed, Interrupted, Outcome, Snoozed, Succeeded, timed_out
from taskharbor.core.transition import PutBack
from taskharbor.driver import WorkerRecord
from taskharbor.errors import ConfigError, DriverClosed, DriverForked
from taskharbor.worker.announcing import announce
from taskharbor.worker.contain import contain_exits
from taskharbor.worker.dead_hooks import DeadHooks, Hook
from taskharbor.worker.events import tell
from taskharbor.worker.executor import Executor, Middleware
from taskharbor.worker.failures import Failure
from taskharbor.worker.hosting import Hosted, InTask, InThread
from taskharbor.worker.keeper import Held, Keeper, Stop
from taskharbor.worker.observe import Observer, tell_too_late
from taskharbor.worker.quarantine import Quarantine
from taskharbor.worker.queue_weights import Claim, QueueWeights
from taskharbor.worker.scheduler import Scheduler
from taskharbor.worker.settler import Entry, Settler
from taskharbor.worker.signals import draining
from taskharbor.worker.threads import Threads, lent
from taskharbor.worker.upkeep import Upkeep
from taskharbor.worker.worker_options import WorkerOptions

logger = logging.getLogger("taskharbor.worker")
CANCEL_PATIENCE = 2.0
FLUSH_PATIENCE = 10.0
STOLEN_FOR = 1.0
REAP_EVERY = 1.0
SOON = 0.05
# Not by create_task: a task factory is for tasks of handlers, and this is once per job. Where Python can, a job runs
# until it first waits before its task is put in line, which spares the loop half of its work with short ones.
new_task = cast("Callable[..., asyncio.Task[None]]", asyncio.Task)
if sys.version_info >= (3, 12):
    new_task = partial(new_task, eager_start=True)


class Worker:
    """One worker on one event loop. `start`, then `stop`; or `drain` for what is due now."""

    def __init__(
        self,
        client: Client,
        tasks: Mapping[str, Registered],
        middleware: Sequence[Middleware],
        options: WorkerOptions,
        on_dead: Sequence[Hook] = (),
        recurring: Sequence[Declared] = (),
    ) -> None:
        session = client.session
        self._client = client
        self._session = session
        self._options = options
        self._tasks = tasks
        self._lease_for = timedelta(seconds=options.lease)
        self._lines = QueueWeights(options.queues, options.concurrency, session.chance)
        self._started_at = session.now()
        self.id = f"{socket.gethostname()}:{os.getpid()}:{session.chance.getrandbits(32):08x}"
        self._threads = (lent.get() or Threads(options.concurrency)) if options.threads else None
        self._executor = Executor(tasks, middleware, client, self._threads)
        self._observer = Observer(session.now)
        self._mourners = DeadHooks(on_dead, session.now, options.threads)
        self._keeper = Keeper(session.driver, session.now, self._lease_for)
        self._settler = Settler(
            session.driver,
            session.now,
            self._keeper,
            session.chance,
            session.settings.retention.done,
            self._settled,
            self._observer.refused,
            options.lease,
        )
        self._upkeep = Upkeep(session, self._observer, self._describe)
        self._scheduler = Scheduler(client, tasks, recurring)
        self._quarantine = Quarantine(asyncio.get_running_loop().time, session.chance)
        self._running: dict[str, Held] = {}
        self._freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._hosted: list[Hosted] = []
        self._abandoned: list[Held] = []
        self._failures: list[Failure] | None = None
        self._told, self._concluded = self._tell, self._conclude  # bound once, for all jobs

    @property
    def busy(self) -> int:
        """How many handlers are running."""
        return len(self._running)

    @property
    def finished(self) -> int:
        """How many runs were settled."""
        return self._observer.finished

    def _describe(self) -> WorkerRecord:
        return WorkerRecord(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self._lines.names,
            slots=self._options.concurrency,
            busy=self.busy,
            overruns=sum(held.overrun for held in self._running.values()),
            started_at=self._started_at,
            seen_at=self._session.now(),
        )

    # life

    def start(self) -> None:
        """Begin to work, until `stop`."""
        announce(self.id, self._session, self._lines.names, self._options.concurrency, self._tasks)
        self._begin()
        self._hosted += [InTask(self._upkeep.run, "upkeep")]
        self._ticking = InTask(self._scheduler.run, "scheduler")
        self._reserving = self._loop.create_task(self._work(), name="reserve")

    async def ready(self) -> None:
        """Return when the recurring tasks of the code are written down (N5)."""
        await self._scheduler.ready()

    def _begin(self) -> None:
        contain_exits(self._loop)
        self._hosted = [
            (InThread if self._options.threads else InTask)(self._keeper.run, "taskharbor-keeper"),
            InTask(self._settler.run, "settler"),
            InTask(self._reap, "reaper"),
        ]

    async def wait(self) -> None:
        """Return when the worker was told to stop, or cannot go on."""
        await asyncio.wait({self._reserving})
        if not self._stopping.is_set():
            self._reserving.result()

    def tell_to_stop(self) -> None:
        """Stop to reserve; told a second time, stop to wait for handlers, and for a store that does not answer."""
        if self._stopping.is_set():
            self._hurry.set()
            self._reserving.cancel()
        else:
            logger.info("worker.draining: %s", draining(self.busy, self._options.grace))
        self._stop_reserving()

    async def stop(self, *, hold_abandoned: bool = False) -> None:
        """Let handlers finish for the grace period, cancel the rest, and give their jobs back (X6).

        A run that ignores its cancellation is abandoned: its lease runs out by itself. With `hold_abandoned` the lease
        is kept until `release`, which is for a process that ends right after it.
        """
        self._stop_reserving()
        await self._ticking.stop()
        await asyncio.gather(self._reserving, return_exceptions=True)
        await self._let_finish(self._options.grace)
        for held in list(self._running.values()):
            self._end_run(held, "shutdown")
        await self._let_finish(CANCEL_PATIENCE, even_in_a_hurry=True)
        for held in list(self._running.values()):
            self._abandon(held, hold_abandoned)
        if not self._abandoned:
            await self._end()

    def _stop_reserving(self) -> None:
        self._stopping.set()
        self._freed.set()

    def _abandon(self, held: Held, keep_lease: bool) -> None:
        if held.task is None or held.task.done():  # cancelled by somebody else before its first step
            self._conclude(held, Interrupted())
            return
        tell(logger, logging.WARNING, "worker.abandoned", held.job, "ignores its cancellation")
        held.abandoned = True
        abandoned.add(held.task)
        if keep_lease:
            self._abandoned.append(held)
        elif self._is_late(held):  # it goes on here: no retry before its lease would have run out
            self._submit(held, self._given_up(held), not_before=held.deadline - self._loop.time())
        else:
            self._keeper.drop(held)
        held.task.cancel()

    def _is_late(self, held: Held) -> bool:
        return held.settled is None and held.stop != "lost" and held.ends_by <= self._loop.time()

    def _given_up(self, held: Held) -> Outcome:
        """The outcome of a run that a stop does not wait for: past its timeout it is one (F5), else not a failure."""
        task = self._tasks.get(held.job.type)
        if self._is_late(held) and held.job.timeout is not None:
            return timed_out(held.job.timeout, task.retry if task else None)
        return Interrupted(started=held.begun)

    async def release(self) -> None:
        """Give the jobs of abandoned runs back: the last act of a process that ends now."""
        if self._abandoned:
            for held in self._abandoned:
                if held.settled is None:
                    self._submit(held, self._given_up(held))
            await self._end()

    async def _let_finish(self, patience: float, even_in_a_hurry: bool = False) -> None:
        if not self._running:
            return
        hurried = self._loop.create_task(self._hurry.wait())
        finished = self._loop.create_task(_all_of([held.task for held in self._running.values() if held.task]))
        waiting = {finished} if even_in_a_hurry else {finished, hurried}
        await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        finished.cancel()
        await asyncio.sleep(0)

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_PATIENCE):
                await self._settler.flushed()
        except TimeoutError:
            logger.warning("store.unavailable: some outcomes could not be written; their jobs will run again")
        for hosted in reversed(self._hosted):
            await hosted.stop()
        await self._mourners.close(0 if self._hurry.is_set() else CANCEL_PATIENCE)
        if self._threads is not None:
            self._threads.close()
        await self._upkeep.farewell(self.id)
        logger.info("worker.stopped: %s after %d %s", self.id, self.finished, "run" if self.finished == 1 else "runs")

    async def drain(self, failures: list[Failure] | None = None) -> int:
        """Run everything that is due, and what that makes due, then return how many runs that were.

        `failures`, if given, is filled with the runs that failed.
        """
        self._failures = failures
        self._executor.raised = None if failures is None else {}
        self._begin()
        self._quarantine.alone = True
        self._lines.keep_slots = False
        try:
            await self._upkeep.sweep()
            while True:
                claim, ids = self._room()
                idle = self._empty  # what ends while we look may be back in line behind the look
                jobs = await self._reserve(claim, ids)
                if claim.limit and ids is None and not jobs and idle:
                    if self._mourners.idle:
                        return self.finished
                    await self._mourners.told()  # who may have enqueued something
                elif not jobs:
                    await self._something_ends()
        finally:
            for held in list(self._running.values()):
                self._end_run(held, "shutdown")
            await self._let_finish(CANCEL_PATIENCE, even_in_a_hurry=True)
            for held in list(self._running.values()):
                self._abandon(held, keep_lease=False)
            await self._end()

    async def _something_ends(self) -> None:
        self._freed.clear()
        if self.busy:
            await self._freed.wait()
        await self._settler.flushed()

    # work

    async def _work(self) -> None:
        doze = Idle(self._session, self._stopping)
        failures, welcome, more = 0, False, False
        while not self._stopping.is_set():
            claim, ids = self._room()
            if claim.limit == 0:
                await self._slot_or_stop()
                continue
            if claim.kept:
                self._freed.clear()
                if more and await self._slot_soon():
                    continue
            try:
                jobs = await self._reserve(claim, ids)
                failures, welcome, more = 0, True, len(jobs) == claim.limit and not claim.kept
            except (DriverClosed, DriverForked) as error:
                logger.error("worker.stopped: %s", error)
                raise
            except Exception as error:
                if isinstance(error, ConfigError) and not welcome:  # such as a user who may not work here: it stays so
                    raise
                failures += 1
                logger.warning("store.unavailable: cannot reserve, trying again: %s: %s", type(error).__name__, error)
                await doze.back_off(failures)
                continue
            if len(jobs) < claim.limit and ids is None:
                freed = self._freed if claim.kept else None
                await doze.until_work(found=bool(jobs), queues=claim.queues, freed=freed)
            elif not self._settler.idle:  # outcomes go first, into the same transaction as the next reserve
                await asyncio.sleep(0)

    def _room(self) -> tuple[Claim, list[str] | None]:
        """How many jobs of which queues to reserve now, and their ids if only certain ones."""
        free, ids = self._quarantine.ask(self._options.concurrency - self.busy, self._empty)
        if ids is not None:
            return Claim(self._lines.shares(), free), ids
        return self._lines.claim(free, (held.job.queue for held in self._running.values())), None

    async def _slot_soon(self) -> bool:
        """Whether a slot becomes free at once: then the next reserve serves all queues, and idle ones need no look."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON):
                await self._freed.wait()
        return self._freed.is_set()

    @property
    def _empty(self) -> bool:
        """Whether no lease is held."""
        return not self._running and self._settler.idle

    async def _slot_or_stop(self) -> None:
        self._freed.clear()
        if self.busy and self._quarantine.patience is None:
            # Straight, so that the next reserve and the outcomes that made room for it reach the store together.
            await self._freed.wait()
            return
        waiting = (self._stopping.wait(), self._freed.wait() if self.busy else self._settler.flushed())
        tasks = [asyncio.ensure_future(each) for each in waiting]
        await asyncio.wait(tasks, timeout=self._quarantine.patience, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    async def _reserve(self, claim: Claim, ids: list[str] | None) -> list[JobRecord]:
        if claim.limit < 1:
            return []
        asked = self._loop.time()
        async with asyncio.timeout(self._session.settings.store_timeout):
            driver = await self._session.driver()
            jobs = await driver.reserve(claim.queues, self._session.now(), self._lease_for, claim.limit, self.id, ids)
        if ids is not None and not jobs:
            self._quarantine.missed()
        await self._take(jobs, asked + self._options.lease)
        if jobs and self._loop.time() - asked > self._options.lease / 3:
            self._keeper.hurry()
        return jobs

    async def _take(self, jobs: list[JobRecord], deadline: float) -> None:
        """Start what may run, and give back what may not, which comes first: it must not crash with the others."""
        if deadline <= self._loop.time():  # the reply took longer than the lease: nobody's any more (L4)
            logger.warning("lease.lost: %d jobs were claimed too late to be run", len(jobs))
            return
        told, client, keeper = self._told, self._client, self._keeper
        leases = [Held(job, token_of(job), deadline, told, client, keeper) for job in jobs]
        self._keeper.hold(leases)
        suspects = self._quarantine.sort(jobs, self._empty)
        try:
            if suspects:
                await self._give_back([held for held in leases if held.job.id in suspects], suspects)
        finally:  # also when a stop interrupts the waiting: then they are given back
            for held in leases:
                if held.job.id not in suspects:
                    self._start(held)

    async def _give_back(self, leases: list[Held], delays: Mapping[str, float]) -> None:
        for held in leases:
            self._end_run_of(held.job)
            self._submit(held, Deferred(delays[held.job.id]))
        await self._settler.flushed()

    def _start(self, held: Held) -> None:
        job = held.job
        if job.id in self._running:
            self._end_run_of(job)
            self._submit(held, Snoozed(STOLEN_FOR))
        elif self._stopping.is_set():
            self._submit(held, Interrupted())
        elif job.crashes and (refused := admit(job, self._session.settings.retention, self._session.now())) is not None:
            self._settler.submit(held, refused)
        else:
            self._running[job.id] = held
            task = new_task(self._executor.run(held, self._concluded), loop=self._loop, name=job.id)
            if not held.ended:
                held.task = task

    def _end_run_of(self, job: JobRecord) -> None:
        """The clock has jumped and this worker took its own job over: let the first run end before the next."""
        if job.id in self._running:
            self._end_run(self._running[job.id], "lost")

    async def _reap(self) -> None:
        """Conclude for tasks that somebody else cancelled before their first step: they cannot do it themselves."""
        while True:
            await asyncio.sleep(REAP_EVERY)
            for held in list(self._running.values()):
                if held.task is not None and held.task.done():
                    self._conclude(held, Interrupted())

    def _tell(self, held: Held, stop: Stop) -> None:
        """May be called from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_run, held, stop)

    def _end_run(self, held: Held, stop: Stop) -> None:
        if self._running.get(held.job.id) is not held or (stop == "timeout" and held.returned_at < held.ends_by):
            return
        if held.stop is None or stop == "lost":
            held.stop = stop
        if held.task is not None and held.begun:  # one that has not begun looks at `stop` first
            held.task.cancel()

    def _conclude(self, held: Held, outcome: Outcome) -> None:
        """A run has ended: free its slot, and settle unless the lease is lost or somebody else did (L4)."""
        del self._running[held.job.id]
        held.task = None  # a lease outlasts its run, and what a run was made of should not
        try:
            if held.abandoned:  # `stop` or `release` has seen to its lease
                pass
            elif held.settled is not None:  # by the handler's own transaction
                self._observer.settled([(held, held.settled)], self._session.now())
                tell_too_late(held.job, held.settled, outcome)
            elif held.stop == "lost":
                self._keeper.drop(held)
            elif type(outcome) is Succeeded:  # the settler decides about these, many at a time
                self._settler.submit(held, outcome)
            else:
                self._submit(held, outcome)
        finally:
            self._freed.set()  # last, so that the outcome goes to the store before the next reserve

    def _settled(self, entries: Sequence[Entry], now: datetime) -> None:
        """The store has accepted these outcomes, settled at `now`."""
        self._observer.settled(entries, now)
        self._mourners.settled(entries)
        if self._scheduler.awaits:
            self._scheduler.settled(held.job.id for held, _ in entries)

    def _submit(self, held: Held, outcome: Outcome, not_before: float = 0.0) -> None:
        job = held.job
        if held.started_at is not None:
            job = replace(job, started_at=held.started_at)
        if isinstance(outcome, Failed) and self._failures is not None:
            self._failures.append(Failure(job, outcome, (self._executor.raised or {}).pop(job.id, None)))
        task = self._tasks.get(job.type)
        settings = self._session.settings
        retry = task.retry if task else settings.retry
        now = self._session.now()
        transition = decide(job, outcome, retry, settings.retention, now, self._session.chance)
        if not_before and isinstance(transition, PutBack):
            transition = replace(transition, run_at=max(transition.run_at, later(now, not_before)))
        self._settler.submit(held, transition)


async def _all_of(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
