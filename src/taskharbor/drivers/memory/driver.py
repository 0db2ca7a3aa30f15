"""The async face of the memory store: one lock makes each verb a single step for any number of threads and loops."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count
from random import Random, SystemRandom

from msgspec.structs import replace

from taskharbor.core.dependency import Parent
from taskharbor.core.evolve import Cancellation, DeadLetter, DeadLettering, Deletion, Replay, Replaying, Reschedule
from taskharbor.core.filter import Filter
from taskharbor.core.group import Group, GroupResult
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Extended, Report, Verdict, check_duration
from taskharbor.core.reserved import is_news
from taskharbor.core.schedule import Schedule, Swap
from taskharbor.core.shown import due_since, shown
from taskharbor.core.states import Shown
from taskharbor.core.tally import Tally, added, tallies
from taskharbor.core.transition import Transition
from taskharbor.driver import DeadGroup, QueueCounts, StoreSetting, WorkerRecord, WorkflowCounts
from taskharbor.drivers.memory import overview
from taskharbor.drivers.memory.store import Store
from taskharbor.drivers.wakeup import Wakeup
from taskharbor.errors import DriverClosed, DriverForked, DriverUnavailable, JobExists, LeaseError, UnknownDependency

TallyKey = tuple[datetime, str, str, str]
INSIDE = (
    "this thread is inside the store already, which a signal handler or a finalizer interrupted: nothing was stored. "
    "Set a flag there, and enqueue where the flag is checked"
)
LOST = "every job ends with the process: use it for tests only"
ENDED = frozenset({Shown.DONE, Shown.DLQ, Shown.CANCELLED})


class MemoryDriver:
    """A store that lives as long as its process. `rng` generates the tokens, for seeded runs."""

    name = "memory"
    ephemeral = True
    max_payload: int | None = None

    def __init__(self, rng: Random | None = None) -> None:
        own, numbers = f"{(rng or SystemRandom()).getrandbits(128):032x}", count(1)
        self._store = Store(lambda: f"{own}-{next(numbers)}")
        self._schedules: dict[str, Schedule] = {}
        self._workers: dict[str, WorkerRecord] = {}
        self._tallies: dict[TallyKey, Tally] = {}
        self._lock = threading.RLock()
        self._inside: int | None = None
        self._closed = False
        self._pid = os.getpid()
        self._work = Wakeup()
        self._ends = Wakeup()

    @contextmanager
    def _step(self, *wakeups: Wakeup) -> Generator[Store]:
        """The store for one atomic step, after which waiters are woken."""
        if self._pid != os.getpid():  # before taking the lock, which a parent thread may have held at the fork
            raise DriverForked("a memory store belongs to the process that opened it; a child has only a copy")
        me, held = threading.get_ident(), False
        if self._inside == me:
            raise DriverUnavailable(INSIDE)
        try:
            try:  # as `locked` does it
                held = self._lock.acquire()
                self._inside = me
                if self._closed:
                    raise DriverClosed("this memory driver was closed")
                yield self._store
            finally:
                if self._inside == me:
                    self._inside = None
                self._lock.release()
        except RuntimeError as error:
            if held or error.__context__ is None:
                raise
            raise error.__context__ from None
        for wakeup in wakeups:
            wakeup.wake()

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        return self.enqueue_blocking(groups, now, 0.0)

    # EnqueueBlocking

    def enqueues_blocking(self, groups: Sequence[Group]) -> bool:
        """Not in the main thread: there Ctrl-C may come between any two changes to the store, and none is undone."""
        return threading.get_ident() != threading.main_thread().ident

    def enqueue_blocking(self, groups: Sequence[Group], now: datetime, timeout: float) -> list[GroupResult]:
        wakeups = [self._work] if any(is_news(group.jobs) for group in groups) else []
        with self._step(*wakeups) as store:
            return [store.enqueue(group, now) for group in groups]

    async def reserve(
        self,
        queues: Sequence[str],
        now: datetime,
        lease_for: timedelta,
        limit: int,
        worker: str,
        ids: Sequence[str] | None = None,
    ) -> list[JobRecord]:
        with self._step() as store:
            return store.reserve(queues, now, lease_for, limit, worker, ids)

    async def extend_lease(
        self, reports: Sequence[Report], now: datetime, lease_for: timedelta
    ) -> list[Extended | LeaseError]:
        check_duration(lease_for)
        with self._step() as store:
            return [store.extend(report, now, lease_for) for report in reports]

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        with self._step(self._work, self._ends) as store:
            verdicts: list[Verdict] = [store.settle(to, now) for to in transitions]
            self._count([to for to, verdict in zip(transitions, verdicts, strict=True) if verdict == "ok"], now)
            return verdicts

    async def close(self) -> None:
        with self._lock:
            self._closed = True
        self._work.wake()
        self._ends.wake()

    # Inspect

    async def get(self, ids: Sequence[str]) -> list[JobRecord | None]:
        with self._step() as store:
            return [store.jobs.get(id) for id in ids]

    async def find_key(self, key: str, now: datetime) -> str | None:
        with self._step() as store:
            return store.find_key(key, now)

    async def query(self, where: Filter, now: datetime, limit: int, after: str | None = None) -> list[JobRecord]:
        with self._step() as store:
            newest_first = store.newest_first(after, unfinished=bool(where.states) and ENDED.isdisjoint(where.states))
            matching = (job for id in newest_first if where.matches(job := store.jobs[id], now))
            return [job for _, job in zip(range(limit), matching, strict=False)]

    async def counts(self, now: datetime) -> list[QueueCounts]:
        with self._step() as store:
            found = {queue: QueueCounts(queue=queue, paused=True) for queue in store.paused}
            for job in store.jobs.values():
                counts = found.get(job.queue) or QueueCounts(queue=job.queue)
                state = shown(job, now)
                changes: dict[str, object] = {state: getattr(counts, state) + 1}
                if (due := due_since(job, now)) is not None:
                    changes["oldest_due"] = min(counts.oldest_due or due, due)
                found[job.queue] = replace(counts, **changes)
            return [found[queue] for queue in sorted(found)]

    async def dead_groups(self, where: Filter, now: datetime, limit: int) -> list[DeadGroup]:
        with self._step() as store:
            return overview.dead_groups(store.jobs.values(), where, now, limit)

    # Manage

    async def cancel(self, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
        with self._step(self._work, self._ends) as store:
            return store.cancel(ids, now, keep_until)

    async def dead_letter(self, deaths: Sequence[DeadLetter], now: datetime) -> list[DeadLettering]:
        with self._step(self._work, self._ends) as store:
            return store.dead_letter(deaths, now)

    async def delete(self, ids: Sequence[str]) -> list[Deletion]:
        with self._step() as store:
            return [store.delete(id) for id in ids]

    async def replay(self, replays: Sequence[Replay], now: datetime) -> list[Replaying]:
        with self._step(self._work) as store:
            return store.replay(replays, now)

    async def reschedule(self, changes: Sequence[Reschedule], now: datetime) -> list[bool]:
        with self._step(self._work) as store:
            return [store.reschedule(change) for change in changes]

    async def pause(self, queue: str, paused: bool) -> None:
        with self._step(self._work) as store:
            (store.paused.add if paused else store.paused.discard)(queue)

    # Maintain

    async def sweep(self, now: datetime, keep_until: datetime, limit: int) -> int:
        with self._step() as store:
            swept = store.sweep(now, keep_until, limit)
        if swept:
            self._work.wake()
            self._ends.wake()
        return swept

    async def prune(self, now: datetime, limit: int) -> int:
        with self._step() as store:
            return store.prune(now, limit)

    # WorkflowStore

    async def parents(self, ids: Sequence[str], most: int) -> list[list[Parent]]:
        with self._step() as store:
            return [store.parents_of(id, most) for id in ids]

    async def workflows(
        self, limit: int, after: str | None = None, ids: Sequence[str] | None = None
    ) -> list[WorkflowCounts]:
        with self._step() as store:
            return overview.workflows(store.jobs.values(), limit, after, ids)

    async def free_workflow_key(self, workflow_id: str) -> bool:
        with self._step() as store:
            return store.free_workflow_key(workflow_id)

    # WaitForWork

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        with self._step():
            pass
        await self._work.wait(timeout)

    async def wait_for_end(self, id: str, timeout: float) -> None:
        with self._step():
            pass
        await self._ends.wait(timeout)

    async def next_due(self, queues: Sequence[str]) -> datetime | None:
        with self._step() as store:
            return store.next_due(queues)

    # Schedules

    async def schedules(self) -> list[Schedule]:
        with self._step():
            return [self._schedules[name] for name in sorted(self._schedules)]

    async def swap_schedules(self, swaps: Sequence[Swap], now: datetime) -> list[bool | JobExists]:
        wakeups = [self._work] if any(swap.job is not None for swap in swaps) else []
        with self._step(*wakeups) as store:
            return [self._swap(store, swap, now) for swap in swaps]

    def _swap(self, store: Store, swap: Swap, now: datetime) -> bool | JobExists:
        if self._schedules.get(swap.name) != swap.seen:
            return False
        if swap.job is not None:
            stored = store.enqueue(Group(jobs=(swap.job,)), now)
            if isinstance(stored, JobExists):
                return stored
            if isinstance(stored, UnknownDependency):
                raise stored
        if swap.then is None:
            self._schedules.pop(swap.name, None)
        else:
            self._schedules[swap.name] = swap.then
        return True

    # Registry

    async def beat(self, worker: WorkerRecord) -> None:
        with self._step():
            self._workers[worker.id] = worker

    async def workers(self, seen_since: datetime) -> list[WorkerRecord]:
        with self._step():
            return [self._workers[id] for id in sorted(self._workers) if self._workers[id].seen_at >= seen_since]

    async def forget_worker(self, id: str) -> None:
        with self._step():
            self._workers.pop(id, None)

    # Counters

    def _count(self, settled: Sequence[Transition], now: datetime) -> None:
        for tally in tallies(settled, now):
            key = tally.minute, tally.queue, tally.task, tally.outcome
            known = self._tallies.get(key)
            self._tallies[key] = tally if known is None else added(known, tally)

    async def tallies(self, since: datetime) -> list[Tally]:
        with self._step():
            return [self._tallies[key] for key in sorted(self._tallies) if key[0] >= since]

    async def forget_tallies(self, before: datetime) -> None:
        with self._step():
            self._tallies = {key: tally for key, tally in self._tallies.items() if key[0] >= before}

    # Durability

    async def durability(self) -> list[StoreSetting]:
        with self._step():
            return [StoreSetting("ephemeral", "yes", "warning", LOST)]
