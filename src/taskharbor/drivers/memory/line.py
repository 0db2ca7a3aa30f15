"""The order of jobs and of leases in one store, so that the next one is found without a search.

An entry is a ticket for a position in line. A job holds at most one valid ticket, so moving a job is a new ticket; an
old one is dropped when it surfaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import count

from taskharbor.core.job import JobRecord
from taskharbor.drivers.memory.ordered import Ordered

Ticket = tuple[datetime, int, int, str]
LeaseEntry = tuple[datetime, str, str]


class Line:
    """Positions of due and future jobs, per queue and priority, in the order of D11."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, Ordered[Ticket]]] = {}
        self._tickets: dict[str, int] = {}
        self._numbers = count()

    def put(self, id: str, queue: str, priority: int, due: datetime, seq: int) -> None:
        """Put the job in line, replacing its old position."""
        number = self._tickets[id] = next(self._numbers)
        rows = self._rows.setdefault(queue, {})
        row = rows.get(priority)
        if row is None:
            row = rows[priority] = Ordered()
        row.put((due, seq, number, id))

    def drop(self, id: str) -> bool:
        """Take the job out of the line; False if it was not in it."""
        return self._tickets.pop(id, None) is not None

    def take(self, queue: str, now: datetime, limit: int, fits: Callable[[str], bool]) -> list[str]:
        """Take up to `limit` due jobs that fit, best first; those that do not fit keep their positions."""
        taken: list[str] = []
        rows = self._rows.get(queue, {})
        for priority in sorted(rows, reverse=True):
            row = rows[priority]
            passed: list[Ticket] = []
            for ticket in self._due(row, now):
                if len(taken) == limit:
                    passed.append(ticket)
                    break
                id = ticket[3]
                if fits(id):
                    taken.append(id)
                    del self._tickets[id]
                else:
                    passed.append(ticket)
            for ticket in passed:
                row.put(ticket)
            if row.first() is None:
                del rows[priority]
            if len(taken) == limit:
                break
        return taken

    def _due(self, row: Ordered[Ticket], now: datetime) -> Iterator[Ticket]:
        while (ticket := row.first()) is not None and ticket[0] <= now:
            row.drop_first()
            if self._tickets.get(ticket[3]) == ticket[2]:
                yield ticket

    def next_due(self, queue: str) -> datetime | None:
        """When the first job of the queue is due."""
        first: datetime | None = None
        for row in self._rows.get(queue, {}).values():
            while (ticket := row.first()) is not None and self._tickets.get(ticket[3]) != ticket[2]:
                row.drop_first()
            if ticket is not None and (first is None or ticket[0] < first):
                first = ticket[0]
        return first


class Leases(Ordered[LeaseEntry]):
    """Expiry, job and token of leases; entries of leases that have ended are dropped when they surface."""

    def __init__(self, jobs: Mapping[str, JobRecord]) -> None:
        super().__init__()
        self._jobs = jobs

    def first(self) -> LeaseEntry | None:
        """The lease that runs out first."""
        while (entry := super().first()) is not None and not self._is_current(*entry):
            self.drop_first()
        return entry

    def _is_current(self, expires_at: datetime, id: str, token: str) -> bool:
        lease = self._jobs[id].lease if id in self._jobs else None
        return lease is not None and lease.token == token and lease.expires_at == expires_at


def is_free(job: JobRecord, now: datetime) -> bool:
    """Whether the job has no lease and nothing keeps it from running."""
    lease, expires_at = job.lease, job.expires_at
    return (
        (lease is None or lease.expires_at <= now)
        and job.stop_requested_at is None
        and (expires_at is None or expires_at > now)
    )


def is_held(job: JobRecord, now: datetime) -> bool:
    """Whether the job is under a lease."""
    return job.lease is not None and job.lease.expires_at > now


def is_unwanted(job: JobRecord, now: datetime) -> bool:
    """Whether the job expired or was requested to stop."""
    return job.stop_requested_at is not None or (job.expires_at is not None and job.expires_at <= now)
