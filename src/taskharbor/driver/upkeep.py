"""Upkeep: the small duties that workers do for the store beside their jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, runtime_checkable


@runtime_checkable
class Maintain(Protocol):
    """Ends what has expired and forgets what was kept long enough.

    Called by every worker: `sweep` each second, `prune` every ten; and by the TaskManager, which sweeps a task that an
    operator has stopped. Without it nothing is lost, but expired jobs stay in line unrun and finished records are kept
    for ever.
    """

    async def sweep(self, now: datetime, keep_until: datetime, limit: int) -> int:
        """End up to `limit` jobs that expired, or whose holder was asked to stop and let its lease lapse (T1, N1).

        They end cancelled, or dead if a dead letter was requested. Returns the number ended.
        """
        ...

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget up to `limit` records past their `keep_until` (X8), except those that an unfinished dependant needs.

        Those of a workflow go together, once the last of them is past it and its key has run out if it ever does (I3).
        Until then their `keep_until` is moved to that time, or `PRUNE_AGAIN` from now while the workflow has not ended.
        """
        ...
