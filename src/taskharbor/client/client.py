"""The client: stores groups of jobs (`Submission`, which tasks and flows implement) and reads jobs."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from taskharbor.client.batching import no_answer
from taskharbor.client.liveness import WorkerWatch, missing_worker, retrying
from taskharbor.client.portal import Portal, refuse_on_a_loop
from taskharbor.client.registered_task import Registered
from taskharbor.client.session import Session
from taskharbor.core.arguments import known
from taskharbor.core.backoff import STORE_BACKOFF
from taskharbor.core.decide import later
from taskharbor.core.durations import ago
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.reserved import TASKS
from taskharbor.core.shown import shown
from taskharbor.core.states import TERMINAL, Shown
from taskharbor.driver import (
    Cancellation,
    Driver,
    Enqueued,
    Group,
    Inspect,
    Manage,
    Transaction,
    WaitForWork,
    Within,
    WorkflowCounts,
    WorkflowStore,
    at_once,
    capability,
    offered,
)
from taskharbor.errors import CapabilityMissing, ConfigError, DriverError, DriverUnavailable, InvalidJob

logger = logging.getLogger("taskharbor.client")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
LONGEST_WAIT = 5.0
WARN_AFTER, WARN_EVERY = 3.0, 60.0
MISSING = "the id is wrong, its retention has run out, or its tx= has not committed"
BREATH = 0.0005
PAGE = 1000


class Submission(Protocol[T_co]):
    """Jobs that are stored as one group, and the handle that the caller gets.

    `tx` is the caller's transaction, if any. If `batched`, they may share a commit with others.
    """

    @property
    def tx(self) -> object | None: ...
    @property
    def batched(self) -> bool: ...
    def group(self, session: Session, now: datetime) -> Group:
        """The group, built when the store is open."""
        ...

    def handle(self, group: Group, stored: Sequence[Enqueued]) -> T_co: ...


closed_world: ContextVar[bool] = ContextVar("taskharbor_closed_world", default=False)
_stand_ins: ContextVar[Mapping[Client, Session] | None] = ContextVar("taskharbor_stand_ins", default=None)


class Client:
    """Reaches the store for tasks, handles and the harbor."""

    def __init__(self, session: Session, tasks: Mapping[str, Registered]) -> None:
        self.tasks = tasks
        self._sessions = [session]
        self._waiting = 0
        self._warned: dict[str, float] = {}

    @property
    def session(self) -> Session:
        """The harbor's own session, unless another replaces it here."""
        if (here := _stand_ins.get()) is not None and (found := here.get(self)) is not None:
            return found
        if closed_world.get():
            raise ConfigError("this harbor is not part of the simulation: give it to cluster.workers or cluster.client")
        return self._sessions[-1]

    @contextmanager
    def stand_in(self, session: Session) -> Generator[None]:
        """Use this session inside the block, in all threads and tasks."""
        self._sessions.append(session)
        try:
            yield
        finally:
            self._sessions.remove(session)

    @contextmanager
    def stand_in_here(self, session: Session) -> Generator[None]:
        """Use this session inside the block, and in the tasks that start there."""
        before = _stand_ins.set({**(_stand_ins.get() or {}), self: session})
        try:
            yield
        finally:
            _stand_ins.reset(before)

    def seen(self, record: JobRecord) -> JobRecord:
        """The record for applications: `arguments` are decoded by the task's signature, a claim's token is left out."""
        if record.queue == TASKS:  # with the token of a claim, any process may complete the task (M1)
            lease = None if record.lease is None else replace(record.lease, token="")
            return replace(record, lease=lease, settled_token=None)
        task = self.tasks.get(record.type)
        return record if task is None else replace(record, payload=known(record.payload, task.named))

    @property
    def portal(self) -> Portal:
        return self.session.portal

    @asynccontextmanager
    async def store(self) -> AsyncGenerator[Driver]:
        """The driver, with a bound on how long an operation may take (X2)."""
        limit = self.session.settings.store_timeout
        try:
            async with asyncio.timeout(limit):
                yield await self.session.driver()
        except TimeoutError as error:
            raise no_answer(limit) from error

    async def submit(self, what: Submission[T]) -> T:
        """Store a group: all of its jobs or none (D1). With `tx=`, in the caller's transaction."""
        session = self.session
        if what.batched and what.tx is None:
            if not session.is_open:  # the engine's clock and its limits are known once it is
                async with self.store():
                    pass
            group = what.group(session, session.now())
            result = await session.batcher.store(group)
        else:
            async with self.store() as driver:
                target = driver if what.tx is None else _joined(driver, what.tx, blocks=False)
                now = session.now()
                group = what.group(session, now)
                (result,) = await target.enqueue([group], now)
        if isinstance(result, Exception):
            raise result
        return what.handle(group, result)

    def submit_blocking(self, twin: str, what: Submission[T]) -> T:
        """The blocking twin of `submit`: in this thread if the driver can, and always with a transaction."""
        session = self.session
        if what.tx is not None:
            tx = _joined(session.portal.run(self._opened), what.tx, blocks=True)
            now = session.now()
            group = what.group(session, now)
            (result,) = at_once(tx.enqueue([group], now))
        else:
            refuse_on_a_loop(twin)
            if not session.is_ready:
                session.portal.run(self._opened)
            here, now = session.blocking, session.now()
            group = what.group(session, now)
            groups = [group]
            if here is None or not here.enqueues_blocking(groups):
                return session.portal.run(partial(self.submit, what))
            (result,) = here.enqueue_blocking(groups, now, session.settings.store_timeout)
        if isinstance(result, Exception):
            raise result
        return what.handle(group, result)

    async def _opened(self) -> Driver:
        async with self.store() as driver:
            return driver

    async def records(self, ids: Sequence[str]) -> list[JobRecord | None]:
        async with self.store() as driver:
            return await capability(driver, Inspect).get(ids)

    async def record(self, id: str) -> JobRecord | None:
        return (await self.records([id]))[0]

    async def query(self, where: Filter, limit: int, after: str | None = None) -> list[JobRecord]:
        """Matching jobs, the newest first, starting after the id `after`."""
        async with self.store() as driver:
            return await capability(driver, Inspect).query(where, self.session.now(), limit, after)

    async def workflow(self, id: str) -> WorkflowCounts | None:
        """The states of a workflow's jobs as stored."""
        async with self.store() as driver:
            found = await capability(driver, WorkflowStore).workflows(1, None, [id])
        return found[0] if found else None

    async def pages(self, where: Filter) -> AsyncIterator[list[JobRecord]]:
        """Matching jobs, the newest first, page by page.

        Handling a page may change what matches: the next one begins after its last job.
        """
        after = None
        while True:
            page = await self.query(where, PAGE, after)
            if page:
                yield page
            if len(page) < PAGE:
                return
            after = page[-1].id

    async def cancel(self, ids: Sequence[str]) -> list[Cancellation]:
        """Cancel ready and waiting jobs at once; ask the workers of running ones to stop."""
        async with self.store() as driver:
            now = self.session.now()
            keep_until = later(now, self.session.settings.retention.done)
            return await capability(driver, Manage).cancel(ids, now, keep_until)

    async def finished(self, id: str, timeout: float | None) -> JobRecord | None:
        """The job once it has ended, None if it is gone; `TimeoutError` if it takes longer."""
        job = await self.wait_for_end(id, timeout, asyncio.get_running_loop().time() + WARN_AFTER)
        if timeout is None or job is None or job.state in TERMINAL:
            return job
        now = self.session.now()
        state, why = shown(job, now), await self.why_unclaimed(job)
        if not why and state is Shown.SCHEDULED and (failed := retrying(job, ago(job.due_at, now))) is not None:
            why = f": {failed}"
        raise TimeoutError(f"job {id} is {state} and has no result after {timeout:g} s{why}")

    async def wait_for_end(self, id: str, timeout: float | None, warn_at: float = math.inf) -> JobRecord | None:
        """The job once it has ended, or as it is after `timeout` seconds; None if it is gone."""
        self._waiting += 1
        try:
            return await self._until_ended(id, timeout, warn_at)
        finally:
            self._waiting -= 1

    async def _until_ended(self, id: str, timeout: float | None, warn_at: float) -> JobRecord | None:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        watch = None if timeout is not None else self.watch()
        pause = 0.01
        while True:
            left = deadline - loop.time() if deadline is not None else LONGEST_WAIT if watch is None else watch.longest
            left = min(left, warn_at - loop.time())
            hint = asyncio.ensure_future(self._end_hint(id, left, pause))
            await asyncio.sleep(0)  # the hint listens before the look, so that no end is missed
            try:
                job = await self._record_despite_outage(id, deadline)
                if job is None or job.state in TERMINAL:
                    return job
                if deadline is not None and loop.time() >= deadline:
                    return job
                if loop.time() >= warn_at:
                    warn_at = math.inf
                    await self.warn_if_unclaimed(job)
                if watch is not None:
                    await watch.look(f"job {id}")
                await hint
            finally:
                discard(hint)
            # Any end wakes up all waiting calls: the more there are, the longer each waits before the next look.
            await asyncio.sleep(min((self._waiting - 1) * BREATH, max(0.0, left)))
            pause = min(pause * 1.5, LONGEST_WAIT)

    async def _record_despite_outage(self, id: str, deadline: float | None) -> JobRecord | None:
        """A record. A store that is away is asked again, for `store_timeout` seconds and not past the deadline (X2)."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.session.settings.store_timeout
        until = until if deadline is None else min(until, deadline)
        for failures in count(1):
            try:
                return await self.record(id)
            except DriverUnavailable:
                if loop.time() >= until:
                    raise
            pause = STORE_BACKOFF.delay(failures, self.session.rng)
            await asyncio.sleep(min(pause, max(0.0, until - loop.time())))
        raise AssertionError("unreachable")

    async def why_unclaimed(self, job: JobRecord) -> str:
        """Why no worker will run the job, to be added to a message; empty if one may.

        It names the store, because the worker may be on another: a relative SQLite path is one file in each folder.
        """
        session = self.session
        with suppress(DriverError):  # only an explanation
            async with self.store() as driver:
                if (missing := await missing_worker(driver, job, session.now())) is None:
                    return ""
                if session.attendance is not None and not await session.attendance.has_worker(session):
                    return f": {missing}; in a test, call taskharbor.drain() first"
                where = "" if session.shown_url is None else f"; the store is {session.shown_url}"
                return f": {missing}{where}"
        return ""

    async def warn_if_unclaimed(self, job: JobRecord) -> None:
        """Warn a caller that waits in vain, once per queue and minute."""
        why, time = await self.why_unclaimed(job), asyncio.get_running_loop().time()
        if why and time >= self._warned.get(job.queue, -math.inf) + WARN_EVERY:
            self._warned[job.queue] = time
            logger.warning("result.waiting: job %s (%s) has no result yet%s", job.id, job.type, why)

    def watch(self) -> WorkerWatch | None:
        """For a wait without a timeout in a test: notices that no worker runs; None outside of tests."""
        attendance = self.session.attendance
        return None if attendance is None else WorkerWatch(attendance, self.session)

    async def _end_hint(self, id: str, left: float, pause: float) -> None:
        wait = max(0.0, min(left, LONGEST_WAIT))
        with suppress(DriverError):  # without hints there is still the look
            hints = offered(await self.session.driver(), WaitForWork)
            if hints is not None:
                await hints.wait_for_end(id, wait)
                return
        await asyncio.sleep(min(wait, pause))


def discard(hint: asyncio.Future[Any]) -> None:
    """Cancel a wake-up hint and ignore how it ended: the next real operation meets the same error and reports it."""
    if not hint.cancel() and not hint.cancelled():
        hint.exception()


def _joined(driver: Driver, handle: object, *, blocks: bool) -> Transaction:
    found = offered(driver, Within)
    if found is None:
        raise CapabilityMissing(
            f"the {driver.name} driver cannot enqueue inside your own transaction: tx= works on PostgreSQL and SQLite "
            "only. Elsewhere enqueue after the commit; a test of tx= needs a store in its database"
        )
    tx = found.within(handle)
    if tx.blocks and not blocks:
        raise InvalidJob("tx= is used by blocking calls, which would block the event loop: use enqueue, not aenqueue")
    if blocks and not tx.blocks:
        raise InvalidJob("tx= has to be awaited: use `await ….aenqueue(…)`, not enqueue")
    return tx
