"""The verbs of the SQLite store. Each is a request: awaited ones run in the batch thread, `enqueue_blocking` in the
thread of its caller or of another that has the turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import TypeVar, cast

from apsw import Connection

from taskharbor.core.dependency import Parent
from taskharbor.core.evolve import Cancellation, DeadLetter, DeadLettering, Deletion, Replay, Replaying, Reschedule
from taskharbor.core.filter import Filter
from taskharbor.core.group import Group, GroupResult
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Extended, Report, Verdict, check_duration
from taskharbor.core.reserved import TASKS, is_news
from taskharbor.core.schedule import Schedule, Swap
from taskharbor.core.steps import forget, replay, reschedule, stop
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
from taskharbor.drivers.shared.claims import claim
from taskharbor.drivers.sqlite import durability as durable
from taskharbor.drivers.sqlite import enqueue, inspection, manage, records, reserve, settle
from taskharbor.drivers.sqlite.batch import Awaited, Work
from taskharbor.drivers.sqlite.drafts import run
from taskharbor.drivers.sqlite.rows import micros
from taskharbor.drivers.sqlite.thread import BatchThread
from taskharbor.drivers.sqlite.turns import Blocked
from taskharbor.drivers.sqlite.within import joined
from taskharbor.drivers.wakeup import Wakeup
from taskharbor.errors import CapabilityMissing, JobExists, LeaseError

R = TypeVar("R")
Enqueueing = Callable[[Connection], list[GroupResult]]


class SqliteDriver:
    """A store in one file, shared by any number of processes of one machine."""

    name = "sqlite"
    ephemeral = False
    # A row of SQLite holds at most 10^9 bytes: payload, result and failures together.
    max_payload: int | None = 256 * 1024 * 1024

    def __init__(self, thread: BatchThread) -> None:
        self._thread = thread
        self._work = (thread.work,)
        self._work_and_ends = thread.work, thread.ends

    @classmethod
    async def open(cls, path: Path, synchronous: str = "full") -> SqliteDriver:
        """Open the file; create it if it does not exist."""
        thread = BatchThread(path, synchronous)
        await thread.open()
        return cls(thread)

    async def _read(self, work: Callable[[Connection], R]) -> R:
        return await self._ask(work, Awaited(work=work))

    async def _write(
        self, work: Callable[[Connection], R], *, peek: Work | None = None, wakes: Sequence[Wakeup] = ()
    ) -> R:
        return await self._ask(work, Awaited(work=work, writes=True, peek=peek, wakes=wakes))

    async def _ask(self, work: Callable[[Connection], R], request: Awaited) -> R:
        self._thread.submit(request)
        return cast(R, await request.future)

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        work, single, wakes = self._enqueueing(groups, now)
        return await self._ask(work, Awaited(work=work, writes=True, single=single, wakes=wakes))

    # EnqueueBlocking

    def enqueues_blocking(self, groups: Sequence[Group]) -> bool:
        return True

    def enqueue_blocking(self, groups: Sequence[Group], now: datetime, timeout: float) -> list[GroupResult]:
        work, single, wakes = self._enqueueing(groups, now)
        request = Blocked(work=work, writes=True, single=single, wakes=wakes, deadline=monotonic() + timeout)
        results: list[GroupResult] = self._thread.run_blocking(request)
        return results

    def _enqueueing(self, groups: Sequence[Group], now: datetime) -> tuple[Enqueueing, bool, Sequence[Wakeup]]:
        """The work of an enqueue, whether it is one statement, and what it wakes."""
        if (job := enqueue.plain(groups)) is not None:
            at = micros(now)
            return lambda db: enqueue.enqueue_one(db, job, at), True, self._work if job.queue != TASKS else ()
        wakes = self._work if any(is_news(group.jobs) for group in groups) else ()
        return lambda db: enqueue.enqueue(db, groups, now), False, wakes

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
        damaged = list[int]()
        jobs = await self._write(
            # The terms are made in the thread of the store: reading random bytes lets that thread go on, and it would
            # commit the outcomes that came before this request without waiting for it.
            lambda db: reserve.reserve(db, claim(now, lease_for, worker), queues, limit, ids, damaged),
            peek=None if ids is not None else lambda db: reserve.peek(db, queues, now, limit),
        )
        if damaged:  # they have ended, and a caller or a dependant may have waited for that
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
        return await self._write(lambda db: settle.settle(db, transitions, now), wakes=self._work_and_ends)

    async def close(self) -> None:
        await self._thread.close()

    # Within

    def within(self, tx: object) -> Transaction:
        self._thread.check_files()
        return joined(tx, self._thread.path, self._thread.file)

    def transaction(self) -> AbstractAsyncContextManager[OwnTransaction]:
        raise CapabilityMissing(
            "SQLite has one writer at a time: a handler's transaction would block all others, and the renewal of its "
            "own lease. Make the handler idempotent, or use PostgreSQL"
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
        return await self._read(lambda db: inspection.dead_groups(db, where, limit))

    # Manage

    async def cancel(self, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
        return await self._write(lambda db: run(db, stop.cancel, ids, now, keep_until), wakes=self._work_and_ends)

    async def dead_letter(self, deaths: Sequence[DeadLetter], now: datetime) -> list[DeadLettering]:
        return await self._write(lambda db: run(db, stop.dead_letter, deaths, now), wakes=self._work_and_ends)

    async def delete(self, ids: Sequence[str]) -> list[Deletion]:
        return await self._write(lambda db: run(db, forget.delete, ids))

    async def replay(self, replays: Sequence[Replay], now: datetime) -> list[Replaying]:
        return await self._write(lambda db: run(db, replay.replay, replays, now), wakes=self._work)

    async def reschedule(self, changes: Sequence[Reschedule], now: datetime) -> list[bool]:
        return await self._write(lambda db: run(db, reschedule.reschedule, changes), wakes=self._work)

    async def pause(self, queue: str, paused: bool) -> None:
        await self._write(lambda db: manage.pause(db, queue, paused), wakes=self._work)

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
        return await self._read(lambda db: inspection.workflows(db, limit, after, ids))

    async def free_workflow_key(self, workflow_id: str) -> bool:
        return await self._write(lambda db: run(db, forget.free_workflow_key, workflow_id))

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
        wakes = self._work if any(swap.job is not None for swap in swaps) else ()
        return await self._write(lambda db: records.swap_schedules(db, swaps, now), wakes=wakes)

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

    # Durability

    async def durability(self) -> list[StoreSetting]:
        return await self._read(durable.durability)
