"""Workers as they report themselves, and totals of what was run."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, runtime_checkable

from msgspec import Struct

from taskharbor.core.tally import Tally


class WorkerRecord(Struct, frozen=True, kw_only=True):
    """A worker as it last reported itself. `overruns` counts its runs that are past their timeout (F5).

    They hold every slot that the queues in `stuck` may take. One that is `stopping` waits for its runs and claims no
    more jobs (X6).
    """

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    slots: int
    busy: int
    started_at: datetime
    seen_at: datetime
    overruns: int = 0
    stuck: tuple[str, ...] = ()
    stopping: bool = False


@runtime_checkable
class Registry(Protocol):
    """The workers that are alive. For people only: ownership is by token, never by worker.

    Called by workers every ten seconds, by `harbor.admin` for `workers`, `stats`, `health` and `why`, by clients that
    wait for a result in vain, and by a supervisor, which removes a worker that died.
    """

    async def beat(self, worker: WorkerRecord) -> None:
        """Store the latest report of a worker."""
        ...

    async def workers(self, seen_since: datetime) -> list[WorkerRecord]:
        """Workers that reported at or after that time, by id."""
        ...

    async def forget_worker(self, id: str) -> None:
        """Remove a worker that has stopped."""
        ...


@runtime_checkable
class Counters(Protocol):
    """Totals of runs per minute, bounded in time. `settle` adds to them, in the step that writes the outcome (D9).

    Called by `harbor.admin.stats`, and by workers every ten seconds to forget old minutes. A driver without it ignores
    the increments that `settle` is given.
    """

    async def tallies(self, since: datetime) -> list[Tally]:
        """The totals of the minutes at or after `since`, in order of time and names."""
        ...

    async def forget_tallies(self, before: datetime) -> None:
        """Forget the minutes before that time."""
        ...
