"""The five verbs, without which no worker works: enqueue, reserve, extend_lease, settle, close.

If you want a sixth one here, write a decision record first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from taskharbor.core.group import Group, GroupResult
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Extended, Report, Verdict
from taskharbor.core.transition import Transition
from taskharbor.errors import LeaseError


@runtime_checkable
class Driver(Protocol):
    """A store. `ephemeral` ones forget everything when the process ends; `max_payload` is the engine's own limit.

    Clients call `enqueue`; workers and the TaskManager call `reserve`, `extend_lease` and `settle`; a supervisor calls
    `settle` for a worker that died; the harbor calls `close`.
    """

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
        """Write outcomes, each fenced by its token (D7, D8), with new jobs and effects on dependants (D9, K2).

        A driver with `Counters` adds the increments of what it accepts to the totals in the same step
        (`core.tally.tallies` sums them up); what is refused or repeated counts nothing.
        """
        ...

    async def close(self) -> None:
        """Release the store; any later verb is `DriverClosed` (D10)."""
        ...
