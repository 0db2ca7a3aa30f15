"""A sorted queue for entries that mostly arrive in order."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound="tuple[datetime, *tuple[Any, ...]]")


class Ordered(Generic[T]):
    """A queue of tuples that begin with a time. Entries in order are appended; a heap holds the others."""

    __slots__ = ("_heap", "_tail")

    def __init__(self) -> None:
        self._tail: deque[T] = deque()
        self._heap: list[T] = []

    def put(self, entry: T) -> None:
        """Add an entry in order."""
        if not self._tail or entry > self._tail[-1]:
            self._tail.append(entry)
        else:
            heappush(self._heap, entry)

    def first(self) -> T | None:
        """The first entry."""
        if not self._heap:
            return self._tail[0] if self._tail else None
        return min(self._heap[0], self._tail[0]) if self._tail else self._heap[0]

    def drop_first(self) -> None:
        """Remove the first entry."""
        if self._heap and (not self._tail or self._heap[0] < self._tail[0]):
            heappop(self._heap)
        else:
            self._tail.popleft()
