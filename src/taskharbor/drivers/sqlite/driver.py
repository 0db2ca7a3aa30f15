"""The async face of the SQLite store: every verb is a request to the thread that owns the connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from apsw import Connection

from taskharbor.core.evolve import DeadLetter, Replay
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Verdict, check_duration
from taskharbor.core.reserved import is_news
from taskharbor.core.schedule import Schedule
from taskharbor.core.transition import Transition
from taskharbor.driver import (
    Cancellation,
    DeadGroup,
    DeadLettering,
    Deletion,
    Extended,
    Group,
    GroupResult,
    OwnTransaction,
    Parent,
    QueueCounts,
    Replaying,
    Report,
    Reschedule,
    Swap,
    Tally,
    Transaction,
    WorkerRecord,
    WorkflowCounts,
)
from taskharbor.drivers.sqlite import enqueue, inspection, manage, overview, records, reserve, settle
from taskharbor.drivers.sqlite.batch import Request, Work
from taskharbor.drivers.sqlite.thread import BatchThread
from taskharbor.drivers.sqlite.within import joined
from taskharbor.errors import CapabilityMissing, JobExists, LeaseError

R = TypeVar("R")


class SqliteDriver:
    """A store in one file, shared by any number of processes of one machine."""

    name = "sqlite"
    ephemeral = False
    # A row of SQLite holds at most 10^9 bytes: payload, result and failures together.
    max_payload: int | None = 256 * 1024 * 1024

    def __init__(self, thread: BatchThread) -> None:
        self._thread = thread

    @classmethod
    async def open(cls, path: Path, synchronous: str = "full") -> SqliteDriver:
        """Open the file, and make it first if need be."""
        thread = BatchThread(path, synchronous)
        await thread.open()
        return cls(thread)

    async def _read(self, work: Callable[[Connection], R]) -> R:
        return await self._ask(work, Request(work))

    async def _write(
        self,
        work: Callable[[Connection], R],
        *,
        peek: Work | None = None,
        tells_work: bool = False,
        tells_end: bool = False,
    ) -> R:
        request = Request(work, writes=True, peek=peek, tells_work=tells_work, tells_end=tells_end)
        return await self._ask(work, request)

    async def _ask(self, work: Callable[[Connection], R], request: Request) -> R:
        self._thread.submit(request)
        return cast(R, await request.future)

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        news = any(is_news(group.jobs) for group in groups)
        return await self._write(lambda db: enqueue.enqueue(db, groups, now), tells_work=news)

    async def reserve(
        self,
        queues: Sequence[str],
        now: datetime,
        lease_for: timedelta,
        limit: int,
        worker: str,
        ids: Sequence[str] | None = None,
    ) -> list[JobRecord]:
        self._thread.check()
        check_duration(lease_for)
        buried: list[int] = []
        jobs = await self._write(
            lambda db: reserve.reserve(db, queues, now, lease_for, limit, worker, ids, buried),
            peek=None if ids is not None else lambda db: reserve.peek(db, queues, now, limit),
        )
        if buried:  # damaged jobs have ended, and somebody may have waited for them
            self._thread.work.wake()
            self._thread.ends.wake()
        return jobs

    async def extend_lease(
        self, reports: Sequence[Report], now: datetime, lease_for: timedelta
    ) -> list[Extended | LeaseError]:
        self._thread.check()
        check_duration(lease_for)
        return await self._write(lambda db: reserve.extend(db, reports, now, lease_for))

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        return await self._write(lambda db: settle.settle(db, transitions, now), tells_work=True, tells_end=True)

    async def close(self) -> None:
        await self._thread.close()

    # Within

    def within(self, tx: object) -> Transaction:
        self._thread.check_files()
        return joined(tx, self._thread.path, self._thread.file)

    def transaction(self) -> AbstractAsyncContextManager[OwnTransaction]:
        raise CapabilityMissing(
            "SQLite has one writer at a time: a handler's transaction would keep everybody else out, and its own lease "
            "from being renewed. Make the handler idempotent, or use PostgreSQL"
        )

    def transaction_blocking(self) -> AbstractContextManager[OwnTransaction]:
        self.transaction()
        raise AssertionError("unreachable")

    # Inspect

    async def get(self, ids: Sequence[str]) -> list[JobRecord | None]:
        return await self._read(lambda db: inspection.get(db, ids))

    async def find_key(self, key: str, now: datetime) -> str | None:
        return await self._read(lambda db: inspection.find_key(db, key, now))

    async def query(self, where: Filter, now: datetime, limit: int, after: str | None = None) -> list[JobRecord]:
        return await self._read(lambda db: inspection.query(db, where, now, limit, after))

    async def counts(self, now: datetime) -> list[QueueCounts]:
        return await self._read(lambda db: inspection.counts(db, now))

    async def dead_groups(self, where: Filter, now: datetime, limit: int) -> list[DeadGroup]:
        return await self._read(lambda db: overview.dead_groups(db, where, limit))

    # Manage

    async def cancel(self, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
        work = partial(manage.cancel, ids=ids, now=now, keep_until=keep_until)
        return await self._write(work, tells_work=True, tells_end=True)

    async def dead_letter(self, deaths: Sequence[DeadLetter], now: datetime) -> list[DeadLettering]:
        return await self._write(lambda db: manage.dead_letter(db, deaths, now), tells_work=True, tells_end=True)

    async def delete(self, ids: Sequence[str]) -> list[Deletion]:
        return await self._write(lambda db: manage.delete(db, ids))

    async def replay(self, replays: Sequence[Replay], now: datetime) -> list[Replaying]:
        return await self._write(lambda db: manage.replay(db, replays, now), tells_work=True)

    async def reschedule(self, changes: Sequence[Reschedule], now: datetime) -> list[bool]:
        return await self._write(lambda db: manage.reschedule(db, changes), tells_work=True)

    async def pause(self, queue: str, paused: bool) -> None:
        await self._write(lambda db: manage.pause(db, queue, paused), tells_work=True)

    # Maintain

    async def sweep(self, now: datetime, keep_until: datetime, limit: int) -> int:
        swept = await self._write(lambda db: manage.sweep(db, now, keep_until, limit))
        if swept:  # every worker sweeps every second, mostly for nothing
            self._thread.work.wake()
            self._thread.ends.wake()
        return swept

    async def prune(self, now: datetime, limit: int) -> int:
        return await self._write(lambda db: manage.prune(db, now, limit))

    # WorkflowStore

    async def parents(self, ids: Sequence[str], most: int) -> list[list[Parent]]:
        return await self._read(lambda db: inspection.parents(db, ids, most))

    async def workflows(
        self, limit: int, after: str | None = None, ids: Sequence[str] | None = None
    ) -> list[WorkflowCounts]:
        return await self._read(lambda db: overview.workflows(db, limit, after, ids))

    async def free_workflow_key(self, workflow_id: str) -> bool:
        return await self._write(lambda db: manage.free_workflow_key(db, workflow_id))

    # WaitForWork

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        await self._thread.listen(self._thread.work, timeout)

    async def wait_for_end(self, id: str, timeout: float) -> None:
        await self._thread.listen(self._thread.ends, timeout)

    async def next_due(self, queues: Sequence[str]) -> datetime | None:
        return await self._read(lambda db: inspection.next_due(db, queues))

    # Schedules

    async def schedules(self) -> list[Schedule]:
        return await self._read(records.schedules)

    async def swap_schedules(self, swaps: Sequence[Swap], now: datetime) -> list[bool | JobExists]:
        tells_work = any(swap.job is not None for swap in swaps)
        return await self._write(lambda db: records.swap_schedules(db, swaps, now), tells_work=tells_work)

    # Registry

    async def beat(self, worker: WorkerRecord) -> None:
        await self._write(lambda db: records.beat(db, worker))

    async def workers(self, seen_since: datetime) -> list[WorkerRecord]:
        return await self._read(lambda db: records.workers(db, seen_since))

    async def forget_worker(self, id: str) -> None:
        await self._write(lambda db: records.forget_worker(db, id))

    # Counters

    async def tallies(self, since: datetime) -> list[Tally]:
        return await self._read(lambda db: records.tallies(db, since))

    async def forget_tallies(self, before: datetime) -> None:
        await self._write(lambda db: records.forget_tallies(db, before))
