"""The async face of the PostgreSQL store: every verb is one step on a connection of the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import TypeVar

from taskharbor.core.dependency import Parent
from taskharbor.core.evolve import Cancellation, DeadLetter, DeadLettering, Deletion, Replay, Replaying, Reschedule
from taskharbor.core.filter import Filter
from taskharbor.core.group import Group, GroupResult
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Extended, Report, Verdict, check_duration
from taskharbor.core.reserved import in_line, is_news
from taskharbor.core.schedule import Schedule, Swap
from taskharbor.core.tally import Tally
from taskharbor.core.transition import Transition
from taskharbor.driver import (
    DeadGroup,
    OwnTransaction,
    QueueCounts,
    StoreSetting,
    Transaction,
    WorkerRecord,
    WorkflowCounts,
)
from taskharbor.driver.forking import after_fork
from taskharbor.drivers.postgres import durability as durable
from taskharbor.drivers.postgres import enqueue, inspection, manage, records, reserve, schema, settle, transactions
from taskharbor.drivers.postgres.blocking import BlockingEnqueue
from taskharbor.drivers.postgres.bookmarks import Bookmarks
from taskharbor.drivers.postgres.db import Db
from taskharbor.drivers.postgres.failure import failure
from taskharbor.drivers.postgres.listen import Listener, Notifier
from taskharbor.drivers.postgres.login import Login
from taskharbor.drivers.postgres.pool import Pool
from taskharbor.drivers.postgres.steps import DbWork, StepRunner
from taskharbor.drivers.postgres.within import Location, joined
from taskharbor.drivers.shared.claims import claim
from taskharbor.drivers.wakeup import Wakeup
from taskharbor.errors import JobExists, LeaseError

R = TypeVar("R")
FIRST_LOOK, LAST_LOOK = 0.01, 0.25


class PostgresDriver:
    """A store in a schema of a PostgreSQL database, shared by any number of machines."""

    name = "postgres"
    ephemeral = False
    max_payload: int | None = 256 * 1024 * 1024

    def __init__(self, login: Login) -> None:
        self._login = login
        self._pool, self._lent = Pool(login), Pool(login, transactions.PER_LOOP, lends=True)
        self._callers, self._workers = StepRunner(self._pool), StepRunner(self._pool, works=True)
        self._lent_blocking = transactions.BlockingPool(login)
        self._blocking = BlockingEnqueue(login, f"{login.schema}_work")
        self._bookmarks, self._settle_hint = Bookmarks(), settle.SettleHint()
        self._work_channel = f"{login.schema}_work"
        self._listener = None if login.pooled else Listener(login, self._work_channel, lambda: self._work.wake())
        self._begin()
        after_fork(self, PostgresDriver.renew)
        self._location = Location(login.database or "", login.schema, self._work_channel)

    def _begin(self) -> None:
        self._work, self._ends = Wakeup(), Wakeup()
        self._notifier = Notifier(lambda channel: self._callers.read(lambda db: db.rows("notify", channel)))

    def renew(self) -> None:
        """In a forked child: leave to the parent what its threads and loops hold (P1)."""
        self._pool.renew()
        self._lent.renew()
        self._blocking.renew()
        self._begin()

    @classmethod
    async def open(cls, login: Login, *, migrates: bool = False) -> PostgresDriver:
        """Open the schema; with `migrates`, create or migrate it first."""
        driver = cls(login)
        try:
            if migrates:
                await schema.migrate(login)
            async with driver._pool.connection() as db, db.transaction():
                await schema.check(db.connection, login)
                driver._location = await transactions.location(db, login, driver._work_channel)
        except BaseException as error:
            await driver.close()
            if isinstance(error, Exception) and (ours := failure(error, login)) is not error:
                raise ours from error
            raise
        return driver

    # Driver

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        whole = not enqueue.is_one_step(groups)
        if not any(is_news(group.jobs) for group in groups):
            return await self._callers.write(lambda db: enqueue.enqueue(db, groups, now, None), whole=whole)
        with self._notifier.about(self._work_channel) as channel:
            results = await self._callers.write(lambda db: enqueue.enqueue(db, groups, now, channel), whole=whole)
        self._work.wake()
        return results

    # EnqueueBlocking

    def enqueues_blocking(self, groups: Sequence[Group]) -> bool:
        return self._blocking.takes(groups)

    def enqueue_blocking(self, groups: Sequence[Group], now: datetime, timeout: float) -> list[GroupResult]:
        news = any(is_news(group.jobs) for group in groups)
        results = self._blocking.enqueue(groups, now, timeout, news=news)
        if news:
            self._work.wake()
        return results

    async def reserve(
        self,
        queues: Sequence[str],
        now: datetime,
        lease_for: timedelta,
        limit: int,
        worker: str,
        ids: Sequence[str] | None = None,
    ) -> list[JobRecord]:
        self._pool.check()
        check_duration(lease_for)
        queues = in_line(queues)
        if limit <= 0 or (not queues and ids is None):
            return []
        to = claim(now, lease_for, worker)
        if ids is not None:
            return await self._workers.write(lambda db: reserve.reserve_ids(db, to, ids, limit), whole=False)
        bookmarks = self._bookmarks
        if marks := bookmarks.going_on(queues):
            jobs = await self._workers.write(
                lambda db: reserve.reserve_on(db, to, queues, limit, bookmarks, marks), whole=False
            )
            if jobs:  # if they are too few, the next call searches everything; these are claimed already
                return jobs
        return await self._workers.write(lambda db: reserve.reserve(db, to, queues, limit, bookmarks), whole=False)

    async def extend_lease(
        self, reports: Sequence[Report], now: datetime, lease_for: timedelta
    ) -> list[Extended | LeaseError]:
        self._pool.check()
        check_duration(lease_for)
        return await self._workers.write(lambda db: reserve.extend(db, reports, now, lease_for), whole=False)

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        stirred: list[bool] = []
        verdicts = await self._workers.write(
            lambda db: settle.settle(db, transitions, now, lambda: stirred.append(True), self._settle_hint), whole=False
        )
        if stirred:
            self._notifier.defer(self._work_channel)
        self._wake_all()
        return verdicts

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await self._notifier.close()
        await self._pool.close()
        await self._lent.close()
        self._lent_blocking.close()
        self._blocking.close()
        self._wake_all()

    def _wake_all(self) -> None:
        self._work.wake()
        self._ends.wake()

    # Within

    def within(self, tx: object) -> Transaction:
        self._pool.check()
        return joined(tx, self._location)

    def transaction(self) -> AbstractAsyncContextManager[OwnTransaction]:
        return transactions.awaited(self._lent, self._location, self._wake_all)

    def transaction_blocking(self) -> AbstractContextManager[OwnTransaction]:
        return self._lent_blocking.transaction(self._location, self._wake_all)

    # Inspect

    async def get(self, ids: Sequence[str]) -> list[JobRecord | None]:
        return await self._callers.read(lambda db: inspection.get(db, ids))

    async def find_key(self, key: str, now: datetime) -> str | None:
        return await self._callers.read(lambda db: inspection.find_key(db, key, now))

    async def query(self, where: Filter, now: datetime, limit: int, after: str | None = None) -> list[JobRecord]:
        return await self._callers.read(lambda db: inspection.query(db, where, now, limit, after))

    async def counts(self, now: datetime) -> list[QueueCounts]:
        return await self._callers.read(lambda db: inspection.counts(db, now))

    async def dead_groups(self, where: Filter, now: datetime, limit: int) -> list[DeadGroup]:
        return await self._callers.read(lambda db: inspection.dead_groups(db, where, limit))

    # Manage

    async def cancel(self, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
        return await self._notifying(lambda db: manage.cancel(db, ids, now, keep_until), ends=True)

    async def dead_letter(self, deaths: Sequence[DeadLetter], now: datetime) -> list[DeadLettering]:
        return await self._notifying(lambda db: manage.dead_letter(db, deaths, now), ends=True)

    async def delete(self, ids: Sequence[str]) -> list[Deletion]:
        return await self._callers.write(lambda db: manage.delete(db, ids))

    async def replay(self, replays: Sequence[Replay], now: datetime) -> list[Replaying]:
        return await self._notifying(lambda db: manage.replay(db, replays, now))

    async def reschedule(self, changes: Sequence[Reschedule], now: datetime) -> list[bool]:
        return await self._notifying(lambda db: manage.reschedule(db, changes))

    async def pause(self, queue: str, paused: bool) -> None:
        await self._notifying(lambda db: manage.pause(db, queue, paused))

    async def _notifying(self, step: DbWork[R], *, ends: bool = False) -> R:
        """Run a step after which there may be work, and with `ends` jobs that have ended."""

        async def and_notify(db: Db) -> R:
            result = await step(db)
            if channel is not None:
                await db.rows("notify", channel)
            return result

        with self._notifier.about(self._work_channel) as channel:
            result = await self._callers.write(and_notify)
        self._work.wake()
        if ends:
            self._ends.wake()
        return result

    # Maintain

    async def sweep(self, now: datetime, keep_until: datetime, limit: int) -> int:
        swept = await self._workers.write(lambda db: manage.sweep(db, now, keep_until, limit))
        if swept:
            self._wake_all()
            self._notifier.defer(self._work_channel)
        return swept

    async def prune(self, now: datetime, limit: int) -> int:
        return await self._workers.write(lambda db: manage.prune(db, now, limit))

    # WorkflowStore

    async def parents(self, ids: Sequence[str], most: int) -> list[list[Parent]]:
        return await self._callers.read(lambda db: inspection.parents(db, ids, most))

    async def workflows(
        self, limit: int, after: str | None = None, ids: Sequence[str] | None = None
    ) -> list[WorkflowCounts]:
        return await self._callers.read(lambda db: inspection.workflows(db, limit, after, ids))

    async def free_workflow_key(self, workflow_id: str) -> bool:
        return await self._callers.write(lambda db: manage.free_workflow_key(db, workflow_id))

    # WaitForWork

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        self._pool.check()
        if self._listener is not None:
            self._listener.start()
        await self._work.wait(timeout)

    async def wait_for_end(self, id: str, timeout: float) -> None:
        """An end in this process wakes the caller; for others it polls, less and less often: to notify every process of
        every end would cost more than a few reads."""
        self._pool.check()
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + timeout, FIRST_LOOK
        while (left := until - loop.time()) > 0 and not await self._ends.wait(min(left, pause)):
            if await self._callers.read(lambda db: inspection.is_over(db, id)):
                return
            pause = min(pause * 1.5, LAST_LOOK)

    async def next_due(self, queues: Sequence[str]) -> datetime | None:
        return await self._workers.read(lambda db: inspection.next_due(db, queues))

    # Schedules

    async def schedules(self) -> list[Schedule]:
        return await self._callers.read(records.schedules)

    async def swap_schedules(self, swaps: Sequence[Swap], now: datetime) -> list[bool | JobExists]:
        take = self._notifying if any(swap.job is not None for swap in swaps) else self._callers.write
        return await take(lambda db: records.swap_schedules(db, swaps, now))

    # Registry

    async def beat(self, worker: WorkerRecord) -> None:
        await self._workers.write(lambda db: records.beat(db, worker), whole=False)

    async def workers(self, seen_since: datetime) -> list[WorkerRecord]:
        return await self._callers.read(lambda db: records.workers(db, seen_since))

    async def forget_worker(self, id: str) -> None:
        await self._workers.write(lambda db: records.forget_worker(db, id), whole=False)

    # Counters

    async def tallies(self, since: datetime) -> list[Tally]:
        return await self._callers.read(lambda db: records.tallies(db, since))

    async def forget_tallies(self, before: datetime) -> None:
        await self._workers.write(lambda db: records.forget_tallies(db, before), whole=False)

    # ServerClock

    async def server_now(self) -> datetime:
        async with self._pool.connection(works=True) as db, db.transaction() if self._login.pooled else nullcontext():
            now: datetime = await db.connection.fetchval("SELECT clock_timestamp()")
            return now

    # Durability

    async def durability(self) -> list[StoreSetting]:
        async with self._pool.connection(works=True) as db, db.transaction() if self._login.pooled else nullcontext():
            return durable.durability(await db.connection.fetchval(durable.READ, durable.NAMES))
