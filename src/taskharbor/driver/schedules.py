"""Schedules of recurring tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from taskharbor.core.schedule import Schedule, Swap
from taskharbor.errors import JobExists


@runtime_checkable
class Schedules(Protocol):
    """Recurring tasks: one compare-and-swap changes a schedule and enqueues its job (N3).

    Called by the scheduler of every worker and by `harbor.admin.recurring`. Without it a worker with recurring tasks
    refuses to start.
    """

    async def schedules(self) -> list[Schedule]:
        """All schedules by name."""
        ...

    async def swap_schedules(self, swaps: Sequence[Swap], now: datetime) -> list[bool | JobExists]:
        """For each in turn: if the schedule is exactly as it was seen, change it and enqueue the job, in one step.

        False if it is not. A job that is refused leaves the schedule alone.
        """
        ...
