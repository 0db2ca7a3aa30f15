"""Reading jobs and queues: nothing here changes the store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from msgspec import Struct

from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord


class QueueCounts(Struct, frozen=True, kw_only=True):
    """The number of jobs of one queue per shown state, and since when the oldest due one has waited.

    Due jobs are the ready and the lapsed ones, also in a paused queue.
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
        """The number of due jobs."""
        return self.ready + self.lapsed


class DeadGroup(Struct, frozen=True, kw_only=True):
    """Dead jobs that share a cause: their number, the first and the last time, and the latest job."""

    fingerprint: str
    task: str
    error: str | None
    count: int
    first_at: datetime
    last_at: datetime
    last_id: str


@runtime_checkable
class Inspect(Protocol):
    """Reads jobs.

    Called by clients for states and results, by `harbor.admin` and the command line for lists, by the TaskManager, by a
    worker that has to know what is stored after an unclear answer, by its scheduler for last runs, and by a supervisor
    for the jobs of a worker that died. Without it a worker still runs jobs, but no result, state or list can be read.
    """

    async def get(self, ids: Sequence[str]) -> list[JobRecord | None]:
        """The records of these ids."""
        ...

    async def find_key(self, key: str, now: datetime) -> str | None:
        """The id that a living idempotency key belongs to (I3): not expired yet, or its owner has not ended (I2)."""
        ...

    async def query(self, where: Filter, now: datetime, limit: int, after: str | None = None) -> list[JobRecord]:
        """Matching records, the newest first, starting after the id `after`."""
        ...

    async def counts(self, now: datetime) -> list[QueueCounts]:
        """Every queue that has jobs or is paused, by name."""
        ...

    async def dead_groups(self, where: Filter, now: datetime, limit: int) -> list[DeadGroup]:
        """Matching dead jobs by cause (Q1), the most frequent first."""
        ...
