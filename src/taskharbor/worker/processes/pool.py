"""The pool of child processes of a worker: hands jobs to free ones, starts more when needed, replaces old ones.

One child per core is started with the worker and kept warm. More are started when jobs have to wait for a free one. If
no child can start, jobs are given back, and the next start is tried after a backoff.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from taskharbor.client.client import Client
from taskharbor.client.registered_task import Registered
from taskharbor.core.backoff import STORE_BACKOFF
from taskharbor.core.outcome import Deferred, Failed, Outcome
from taskharbor.core.sizes import shown_size
from taskharbor.core.text import described
from taskharbor.errors import ConfigError
from taskharbor.worker.application import AppRegistry
from taskharbor.worker.processes.enforcer import Enforcer
from taskharbor.worker.processes.messages import ChildReady, Perform, RunEnded, StartChild
from taskharbor.worker.processes.slot import ProcessSlot
from taskharbor.worker.processes.starting import check_system, start_message
from taskharbor.worker.processes.turn import Turn
from taskharbor.worker.running import JobRun
from taskharbor.worker.transaction import is_settled

logger = logging.getLogger("taskharbor.worker")
LOOK_EVERY = 1.0
GROW_AFTER = 0.02  # seconds that a job waits for a free child before one is started for it
IDLE_FOR = 60.0  # seconds, after which a child beyond the warm ones is retired
AGE_SPREAD = 0.1  # so that children of one age are not replaced together


class NoChild(Exception):
    """No child can be started now; the message says why."""


class ProcessPool:
    """At most `limit` children, one job each. It starts none before `warm_up` or the first job."""

    def __init__(self, client: Client, app: AppRegistry, limit: int, lease: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._app = app
        self._limit = limit
        self._lease = lease
        self._enforcer: Enforcer | None = None
        self._warm = min(limit, os.cpu_count() or 1)
        self._recycle = client.session.settings.recycle
        self._start: StartChild | None = None
        self._slots: set[ProcessSlot] = set()
        self._starting: set[ProcessSlot] = set()
        self._leaving: set[ProcessSlot] = set()
        self._idle: list[ProcessSlot] = []
        self._waiting: deque[asyncio.Future[ProcessSlot]] = deque()
        self._late: set[asyncio.Future[ProcessSlot]] = set()
        self._growing: asyncio.TimerHandle | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._refusal: str | None = None
        self._closed = False
        self._warming = False
        self._looking: asyncio.TimerHandle | None = None

    # jobs

    async def run(self, run: JobRun, task: Registered, payload: bytes, begin: Callable[[], None]) -> Outcome:
        """The outcome of a job, run in a free child as soon as there is one; `begin` is called when it starts."""
        if self._start is not None and task.name not in self._start.tasks:
            return Failed("UnknownTask", f"{task.name} is newer than the processes of this worker: restart the worker")
        try:
            slot = await self._free_slot()
        except NoChild as error:
            return Deferred(self._pause(str(error)))
        begin()
        own = None if payload is run.job.payload else payload
        until = slot.on_host(run.lease.deadline)
        message = Perform(run.job, own, self._client.session.now(), task.memory, until)
        turn = slot.start(run, task, message)
        outcome = await turn.outcome()
        if turn.in_doubt is not None:  # it died while its transaction was being committed
            await self._resolve(turn, run)
        return outcome

    async def _resolve(self, turn: Turn, run: JobRun) -> None:
        """Ask the store whether the transaction of a dead child was committed."""
        with suppress(Exception):  # if the store is away and has the Ack after all, it refuses the next outcome
            if await is_settled(await self._client.session.driver(), run):
                run.own_effects().settled = turn.in_doubt
                return
        run.host.hold(run)

    async def _free_slot(self) -> ProcessSlot:
        while True:
            slot = self._idle.pop() if self._idle else await self._next_slot()
            if slot.usable:
                return slot

    async def _next_slot(self) -> ProcessSlot:
        waiter: asyncio.Future[ProcessSlot] = self._loop.create_future()
        self._waiting.append(waiter)
        self._replenish()
        if self._growing is None:
            self._growing = self._loop.call_later(GROW_AFTER, self._grow)
        if not self._slots and not waiter.done():
            waiter.set_exception(NoChild(self._refusal or "the worker is stopping"))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._offer(waiter.result())
            raise

    def _pause(self, why: str) -> float:
        left = max(self._retry_at - self._loop.time(), 0.0)
        logger.warning("process.unavailable: a job is given back: %s", why, extra={"event": "process.unavailable"})
        return left + 1.0

    # children

    async def warm_up(self, stopping: asyncio.Event) -> None:
        """Start the first children, if there are tasks for them; return when one is ready. An error names the fix."""
        if not any(task.process for task in self._app.tasks.values()):
            return
        check_system()
        self._warming = True
        first: asyncio.Future[ProcessSlot] = self._loop.create_future()
        self._waiting.append(first)
        self._replenish()
        stopped = asyncio.ensure_future(stopping.wait())
        either: set[asyncio.Future[Any]] = {first, stopped}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if first.done():
                self._offer(first.result())
        except NoChild as error:
            await self.close(0)
            raise ConfigError(f"a process for process=True tasks cannot start: {error}") from None
        except BaseException:
            await self.close(0)
            raise
        finally:
            self._warming = False
            first.cancel()
            stopped.cancel()

    def _replenish(self) -> None:
        """Start children until there are as many as are kept warm."""
        for _ in range(self._warm - len(self._slots)):
            self._spawn()

    def _grow(self) -> None:
        """Start a child for each job that has waited since the last call, within the limit."""
        waiting = [waiter for waiter in self._waiting if not waiter.done()]
        late = sum(waiter in self._late for waiter in waiting)
        for _ in range(min(late - len(self._starting), self._limit - len(self._slots))):
            self._spawn()
        self._late = set(waiting)
        self._growing = self._loop.call_later(GROW_AFTER, self._grow) if waiting and not self._closed else None

    def _spawn(self) -> None:
        if self._closed or self._loop.time() < self._retry_at:
            return
        if self._start is None:
            self._start = start_message(self._client, self._app)
        try:
            if self._enforcer is None:
                self._enforcer = Enforcer(min(LOOK_EVERY, self._lease / 4))
            slot = ProcessSlot(self._start, self, self._enforcer)
        except (OSError, RuntimeError) as error:  # such as no more processes, files or threads
            self._failed(described(error))
            return
        slot.age_factor += AGE_SPREAD * self._client.session.rng.random()
        self._slots.add(slot)
        self._starting.add(slot)
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_EVERY, self._look)

    def ready(self, slot: ProcessSlot, ready: ChildReady) -> None:
        """Offer jobs to a child that has started; kill it if a fresh process already exceeds a limit."""
        if (why := self._why_too_small(ready)) is not None:
            self._refuse(slot, why)
            return
        self._failures = 0
        self._starting.discard(slot)
        self._offer(slot)

    def _why_too_small(self, ready: ChildReady) -> str | None:
        recycle = self._recycle.memory
        if isinstance(recycle, int) and ready.resident >= recycle:
            fresh = shown_size(ready.resident)
            return f"Recycle(memory=…) is {shown_size(recycle)}, but a fresh process has {fresh}: raise it"
        for task in self._app.tasks.values():
            if task.process and task.memory is not None and ready.data >= task.memory:
                fresh = shown_size(ready.data)
                return f"memory= of {task.name} is {shown_size(task.memory)}, but a fresh process has {fresh}: raise it"
        return None

    def _refuse(self, slot: ProcessSlot, why: str) -> None:
        slot.trouble = why
        slot.kill()

    def free(self, slot: ProcessSlot, ended: RunEnded) -> None:
        """Give a child that has ended its job the next one, or replace it if that is due."""
        if slot not in self._slots:
            return
        age = (self._loop.time() - slot.born) * slot.age_factor
        if ended.spent or self._recycle.is_due(slot.jobs, age, ended.resident):
            self._retire(slot)
        else:
            self._offer(slot)

    def _offer(self, slot: ProcessSlot) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(slot)
                return
        if slot.alive and not self._closed:
            self._idle.append(slot)

    def _retire(self, slot: ProcessSlot) -> None:
        self._slots.discard(slot)
        self._leaving.add(slot)
        if slot in self._idle:
            self._idle.remove(slot)
        slot.retire()
        self._replenish()

    def gone(self, slot: ProcessSlot, why: str) -> None:
        """Forget a child that has ended: during a job, when retired, or before its first job."""
        started = slot not in self._starting
        self._slots.discard(slot)
        self._starting.discard(slot)
        self._leaving.discard(slot)
        if slot in self._idle:
            self._idle.remove(slot)
        if not started and not self._closed:
            self._failed(why)
        self._replenish()

    def _failed(self, why: str) -> None:
        """Note that a child could not start. If there is no other, give back the jobs that wait for one."""
        self._failures += 1
        self._refusal = why
        self._retry_at = self._loop.time() + STORE_BACKOFF.delay(self._failures, self._client.session.rng)
        if not self._warming:  # else the error is raised
            logger.error("process.broken: a process cannot start: %s", why, extra={"event": "process.broken"})
        if not self._slots:
            while self._waiting:
                waiter = self._waiting.popleft()
                if not waiter.done():
                    waiter.set_exception(NoChild(why))

    def _look(self) -> None:
        """Retire idle children that are due for replacement or no longer needed."""
        self._looking = None
        time = self._loop.time()
        for slot in list(self._idle):
            idle = time - slot.idle_since > IDLE_FOR and len(self._slots) > self._warm
            if idle or self._recycle.is_due(slot.jobs, (time - slot.born) * slot.age_factor, -1):
                self._retire(slot)
        if self._slots and not self._closed:
            self._looking = self._loop.call_later(LOOK_EVERY, self._look)

    async def close(self, patience: float) -> None:
        """End all children: those without a job have `patience` seconds to leave their lifespans, others are killed."""
        self._closed = True
        for timer in (self._looking, self._growing):
            if timer is not None:
                timer.cancel()
        for slot in [*self._slots]:
            if not slot.busy and slot not in self._starting and patience > 0:
                self._retire(slot)
            else:
                slot.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._all_gone()
        for slot in self._slots | self._leaving:
            slot.kill()
        await self._all_gone()
        if self._enforcer is not None:
            self._enforcer.close()

    async def _all_gone(self) -> None:
        while left := self._slots | self._leaving:
            await next(iter(left)).ended.wait()
