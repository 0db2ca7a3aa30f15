"""Changing jobs by hand: what operators, clients and the TaskManager ask for outside of a run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from taskharbor.core.evolve import Cancellation, DeadLetter, DeadLettering, Deletion, Replay, Replaying, Reschedule


@runtime_checkable
class Manage(Protocol):
    """Cancels, dead-letters, deletes, replays and moves jobs, and pauses queues.

    Called by `job.cancel()`, by `harbor.admin` and the command line, and by the TaskManager. Cancel, dead_letter and
    replay are one atomic step for all the jobs given, the others one for each: callers give a few hundred at a time.
    """

    async def cancel(self, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
        """Cancel ready and waiting jobs at once, and record the request for jobs under a lease (T3).

        Dependants are affected once all of these are cancelled: none of them is released on the way.
        """
        ...

    async def dead_letter(self, deaths: Sequence[DeadLetter], now: datetime) -> list[DeadLettering]:
        """Dead-letter ready and waiting jobs at once, and record the request for jobs under a lease (Q4, T3).

        Dependants are affected as by any failure, once all of these are dead.
        """
        ...

    async def delete(self, ids: Sequence[str]) -> list[Deletion]:
        """Remove terminal jobs, except those that an unfinished dependant needs."""
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
