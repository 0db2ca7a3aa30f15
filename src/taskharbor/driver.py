"""The seam between the rules and the stores: five verbs, and small protocols beside them.

Drivers store and move; they decide nothing. Every verb takes `now` and no driver reads a clock: an expiry is a stored
value compared with `now`. Verbs take sequences, so that a hot path never makes one round trip per job. A verb is one
atomic step per group, report or transition: it happened whole or not at all, and repeating it is safe.

A driver may be called from several threads and event loops at once.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar, cast, runtime_checkable
from weakref import WeakKeyDictionary

from msgspec import Struct

from taskharbor.core.answers import Cancellation, DeadLettering, Deletion, Replaying
from taskharbor.core.dependency import Parent
from taskharbor.core.evolve import DeadLetter, Replay, Reschedule
from taskharbor.core.filter import Filter
from taskharbor.core.group import Enqueued, Group, GroupResult
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Extended, Report, Verdict
from taskharbor.core.schedule import Schedule, Swap
from taskharbor.core.states import State
from taskharbor.core.steps.forget import PRUNE_AGAIN
from taskharbor.core.transition import Transition
from taskharbor.errors import CapabilityMissing, JobExists, LeaseError

__all__ = [
    "PRUNE_AGAIN",
    "Cancellation",
    "Counters",
    "DeadGroup",
    "DeadLetter",
    "DeadLettering",
    "Deletion",
    "Driver",
    "Enqueued",
    "Extended",
    "Group",
    "GroupResult",
    "Inspect",
    "Migration",
    "OwnTransaction",
    "Parent",
    "QueueCounts",
    "Registry",
    "Replay",
    "Replaying",
    "Report",
    "Reschedule",
    "Schedule",
    "Schedules",
    "ServerClock",
    "Swap",
    "Tally",
    "Transaction",
    "Verdict",
    "WaitForWork",
    "Within",
    "WorkerRecord",
    "WorkflowCounts",
    "at_once",
    "capability",
    "offered",
]


@runtime_checkable
class Driver(Protocol):
    """A store. `ephemeral` ones forget everything when the process ends; `max_payload` is the engine's own limit."""

    name: str
    ephemeral: bool
    max_payload: int | None

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        """Store each group all or none, independent of the others (D1). A group's error comes back as a value.

        An exception that is not about the store being away means that nothing of the call was stored.
        """
        ...

    async def reserve(
        self,
        queues: Sequence[str],
        now: datetime,
        lease_for: timedelta,
        limit: int,
        worker: str,
        ids: Sequence[str] | None = None,
    ) -> list[JobRecord]:
        """Claim up to `limit` due jobs of the queues, best first, or exactly `ids` (D2, D3, D5, D11).

        `core.line.shares` says how several queues share the limit, `core.reserved.in_line` which are not looked at.
        """
        ...

    async def extend_lease(
        self, reports: Sequence[Report], now: datetime, lease_for: timedelta
    ) -> list[Extended | LeaseError]:
        """Renew leases (D6). A refused report changes nothing."""
        ...

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        """Write outcomes, each fenced by its token (D7, D8), with new jobs and effects on dependants (D9, K2)."""
        ...

    async def close(self) -> None:
        """Let go of the store; any later verb is `DriverClosed` (D10)."""
        ...


class QueueCounts(Struct, frozen=True, kw_only=True):
    """How many jobs of one queue are in which shown state, and since when the oldest due one waits.

    Due are ready jobs and, since their lease ran out, lapsed ones; also in a paused queue.
    """

    queue: str
    paused: bool = False
    scheduled: int = 0
    ready: int = 0
    waiting: int = 0
    claimed: int = 0
    running: int = 0
    lapsed: int = 0
    done: int = 0
    dlq: int = 0
    cancelled: int = 0
    oldest_due: datetime | None = None

    @property
    def due(self) -> int:
        """How many jobs are due."""
        return self.ready + self.lapsed


class WorkflowCounts(Struct, frozen=True, kw_only=True):
    """How many jobs of a workflow are in which stored state, and since when there are any."""

    id: str
    created_at: datetime
    states: dict[State, int]


class DeadGroup(Struct, frozen=True, kw_only=True):
    """Dead jobs that died of the same: how many, the first and the last time, and the last one of them."""

    fingerprint: str
    task: str
    error: str | None
    count: int
    first_at: datetime
    last_at: datetime
    last_id: str


@runtime_checkable
class Inspect(Protocol):
    """Looking at jobs, and what people do with them by hand."""

    async def get(self, ids: Sequence[str]) -> list[JobRecord | None]:
        """The records of these ids."""
        ...

    async def find_key(self, key: str, now: datetime) -> str | None:
        """The id that a living idempotency key stands for (I3): not expired yet, or its owner has not ended (I2)."""
        ...

    async def query(self, where: Filter, now: datetime, limit: int, after: str | None = None) -> list[JobRecord]:
        """Matching records, the newest first, beginning behind the id `after`."""
        ...

    async def counts(self, now: datetime) -> list[QueueCounts]:
        """Every queue that has jobs or is paused, by name."""
        ...

    async def parents(self, ids: Sequence[str], most: int) -> list[list[Parent]]:
        """The dependencies of each job in the order given at enqueue, with their results (K3).

        If the results of one job's are more than `most` bytes in all, it gets none of them, but their sizes.
        """
        ...

    async def workflows(
        self, limit: int, after: str | None = None, ids: Sequence[str] | None = None
    ) -> list[WorkflowCounts]:
        """Workflows by their ids, the greatest first, beginning behind `after`; or those of `ids`, if they exist."""
        ...

    async def dead_groups(self, where: Filter, now: datetime, limit: int) -> list[DeadGroup]:
        """Dead jobs that match, by what they died of (Q1): the most frequent first."""
        ...

    async def cancel(self, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
        """Cancel jobs in line at once, and record the request for jobs under a lease (T3).

        Dependants hear of it once all of these are cancelled: none of them is released on the way.
        """
        ...

    async def dead_letter(self, deaths: Sequence[DeadLetter], now: datetime) -> list[DeadLettering]:
        """Dead-letter jobs in line at once, and record the request for jobs under a lease (Q4, T3).

        Dependants hear of it as of any failure, once all of these are dead.
        """
        ...

    async def delete(self, ids: Sequence[str]) -> list[Deletion]:
        """Remove terminal jobs, but none that a dependant needs which is not done."""
        ...

    async def free_workflow_key(self, workflow_id: str) -> bool:
        """Forget the key that stands for a workflow (I2); False if there is none."""
        ...

    async def replay(self, replays: Sequence[Replay], now: datetime) -> list[Replaying]:
        """Put dead or cancelled jobs back in line (Q2).

        Each keeps its own key, or takes the new one, unless another job or workflow holds it: then it has none, and the
        answer is "replayed_without_key".

        Once all of these are, each waits for what it lacks: for edges that were never satisfied, and again for parents
        whose failure it had collected and that run again (Q3).
        """
        ...

    async def reschedule(self, changes: Sequence[Reschedule], now: datetime) -> list[bool]:
        """Move ready jobs in time or rank; False for jobs that are not ready."""
        ...

    async def pause(self, queue: str, paused: bool) -> None:
        """Stop or resume handing out the jobs of a queue."""
        ...

    async def sweep(self, now: datetime, keep_until: datetime, limit: int) -> int:
        """End up to `limit` jobs that expired, or whose holder was asked to stop and let its lease lapse (T1, N1).

        They end cancelled, or dead if a dead letter was asked for.
        """
        ...

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget up to `limit` records past their `keep_until` (X8), unless a dependant needs them that is not done.

        Those of a workflow go together, once the last of them is past it and its key has run out if it ever does (I3).
        Until then their `keep_until` is moved to that time, or `PRUNE_AGAIN` from now while the workflow has not ended.
        """
        ...


@runtime_checkable
class WaitForWork(Protocol):
    """Hints that save polling. They may be late, early or missing: reserve alone is the truth."""

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        """Return when something may have been committed for these queues, or after `timeout` seconds."""
        ...

    async def wait_for_end(self, id: str, timeout: float) -> None:
        """Return when the job may have ended, or after `timeout` seconds."""
        ...

    async def next_due(self, queues: Sequence[str]) -> datetime | None:
        """When the next job of these queues is due or its lease runs out; never takes a write lock."""
        ...


@runtime_checkable
class Schedules(Protocol):
    """Recurring tasks: one compare-and-swap changes a schedule and enqueues its job (N3)."""

    async def schedules(self) -> list[Schedule]:
        """All schedules by name."""
        ...

    async def swap_schedules(self, swaps: Sequence[Swap], now: datetime) -> list[bool | JobExists]:
        """For each in turn: if the schedule is exactly as it was seen, change it and enqueue the job, in one step.

        False if it is not. A job that is refused leaves the schedule alone.
        """
        ...


class WorkerRecord(Struct, frozen=True, kw_only=True):
    """A worker as it last reported itself. `overruns` counts its runs that are past their timeout (F5)."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    slots: int
    busy: int
    started_at: datetime
    seen_at: datetime
    overruns: int = 0


@runtime_checkable
class Registry(Protocol):
    """Which workers are there. For people only: ownership is by token, never by worker."""

    async def beat(self, worker: WorkerRecord) -> None:
        """Store the latest report of a worker."""
        ...

    async def workers(self, seen_since: datetime) -> list[WorkerRecord]:
        """Workers that reported at or after that time, by id."""
        ...

    async def forget_worker(self, id: str) -> None:
        """Remove a worker that has stopped."""
        ...


class Tally(Struct, frozen=True):
    """How many runs of a task ended how, within one minute."""

    minute: datetime
    queue: str
    task: str
    outcome: str
    count: int
    seconds: float = 0.0


@runtime_checkable
class Counters(Protocol):
    """Totals per minute, bounded in time."""

    async def count(self, tallies: Sequence[Tally], forget_before: datetime) -> None:
        """Add to the totals, and forget minutes before `forget_before`."""
        ...

    async def tallies(self, since: datetime) -> list[Tally]:
        """The totals of the minutes at or after `since`, in order of time and names."""
        ...


@runtime_checkable
class ServerClock(Protocol):
    """Engines with a clock of their own: what clients and workers pass as `now` follows it (L8)."""

    async def server_now(self) -> datetime:
        """The engine's time."""
        ...


class Migration(Struct, frozen=True, kw_only=True):
    """How a store's schema is brought up to date: the names of the steps, and all of it as a script for the engine."""

    what: str
    version: int
    steps: tuple[str, ...]
    sql: str


class Transaction(Protocol):
    """A transaction that is open, and what can be done as a part of it.

    With `blocks`, it belongs to the calling thread and these coroutines never wait for an event loop: `at_once` runs
    them.
    """

    @property
    def handle(self) -> object:
        """What the transaction's owner works with, such as a connection."""
        ...

    @property
    def blocks(self) -> bool:
        """Whether the handle is used by blocking calls."""
        ...

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        """`Driver.enqueue`, if the transaction commits. A refused group leaves the transaction as it was."""
        ...

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        """`Driver.settle`, if the transaction commits; nobody else can touch these jobs until it ends."""
        ...


class OwnTransaction(Transaction, Protocol):
    """A transaction that the driver began."""

    async def commit(self) -> None:
        """Commit. After an error it may have happened or not."""
        ...


@runtime_checkable
class Within(Protocol):
    """Transactions that hold other writes beside the driver's own: they happen together or not at all (D13)."""

    def within(self, tx: object) -> Transaction:
        """The open transaction of a handle of the caller's own; `InvalidJob` if it is not of a kind that is known."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[OwnTransaction]:
        """A new transaction for the block, rolled back at its end unless it was committed."""
        ...

    def transaction_blocking(self) -> AbstractContextManager[OwnTransaction]:
        """The same with a handle for blocking calls in this thread."""
        ...


C = TypeVar("C")
R = TypeVar("R")
_offers: WeakKeyDictionary[Driver, dict[type, bool]] = WeakKeyDictionary()


def offered(driver: Driver, protocol: type[C]) -> C | None:
    """The driver seen through a small protocol, None if it does not have that one."""
    try:
        known = _offers.setdefault(driver, {})
    except TypeError:  # a driver that cannot be remembered
        return driver if isinstance(driver, protocol) else None
    if protocol not in known:  # asked before every wait, and looking a protocol through takes long
        known[protocol] = isinstance(driver, protocol)
    return cast(C, driver) if known[protocol] else None


def capability(driver: Driver, protocol: type[C]) -> C:
    """The driver seen through a small protocol, or `CapabilityMissing`: absent means loudly absent (D13)."""
    found = offered(driver, protocol)
    if found is None:
        raise CapabilityMissing(f"the {driver.name} driver has no {protocol.__name__}")
    return found


def at_once(coroutine: Coroutine[Any, Any, R]) -> R:
    """What a coroutine returns that never waits: those of a `Transaction` that blocks."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast(R, end.value)
    coroutine.close()
    raise RuntimeError("a blocking transaction waited for an event loop")
