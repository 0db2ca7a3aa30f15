"""The line of one store: who is next, by heaps that are never searched.

An entry is a ticket for a place in line. A job holds at most one valid ticket, so moving a job is a new ticket; an old
one is dropped when it surfaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from heapq import heappop, heappush
from itertools import count

Ticket = tuple[datetime, int, int, str]


class Line:
    """Places of due and future jobs, per queue and priority, in the order of D11."""

    def __init__(self) -> None:
        self._heaps: dict[str, dict[int, list[Ticket]]] = {}
        self._tickets: dict[str, int] = {}
        self._numbers = count()

    def put(self, id: str, queue: str, priority: int, due: datetime, seq: int) -> None:
        """Give the job a place, instead of the one it had."""
        number = self._tickets[id] = next(self._numbers)
        heappush(self._heaps.setdefault(queue, {}).setdefault(priority, []), (due, seq, number, id))

    def drop(self, id: str) -> bool:
        """Take the job out of the line; False if it was not in it."""
        return self._tickets.pop(id, None) is not None

    def take(self, queue: str, now: datetime, limit: int, fits: Callable[[str], bool]) -> list[str]:
        """Take up to `limit` jobs that are due and fit, best first; those that do not fit keep their places."""
        taken: list[str] = []
        heaps = self._heaps.get(queue, {})
        for priority in sorted(heaps, reverse=True):
            kept: list[Ticket] = []
            for ticket in self._due(heaps[priority], now):
                if len(taken) == limit:
                    kept.append(ticket)
                    break
                if fits(ticket[3]):
                    taken.append(ticket[3])
                    del self._tickets[ticket[3]]
                else:
                    kept.append(ticket)
            for ticket in kept:
                heappush(heaps[priority], ticket)
            if not heaps[priority]:
                del heaps[priority]
            if len(taken) == limit:
                break
        return taken

    def _due(self, heap: list[Ticket], now: datetime) -> Iterator[Ticket]:
        while heap and heap[0][0] <= now:
            ticket = heappop(heap)
            if self._tickets.get(ticket[3]) == ticket[2]:
                yield ticket

    def next_due(self, queue: str) -> datetime | None:
        """When the first job of the queue is due."""
        first: datetime | None = None
        for heap in self._heaps.get(queue, {}).values():
            while heap and self._tickets.get(heap[0][3]) != heap[0][2]:
                heappop(heap)
            if heap and (first is None or heap[0][0] < first):
                first = heap[0][0]
        return first
