"""Idle connections, for any number of threads.

Kept without a lock, by single steps of a deque: a signal handler or a finalizer may take one at any moment.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet


class Reusable(Protocol):
    """A connection that one thread uses at a time."""

    def is_quiet(self, burst: float) -> bool:
        """Whether it is still usable; not checked within `burst` seconds after its last use."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


C = TypeVar("C", bound=Reusable)


class IdleConnections(Generic[C]):
    """Keeps up to `most_idle` connections, and counts the open ones; `burst` as for `Reusable.is_quiet`."""

    def __init__(self, most_idle: int, burst: float = 0.0) -> None:
        self._most_idle = most_idle
        self._burst = burst
        self._idle: deque[C] = deque()
        self._open: WeakSet[C] = WeakSet()
        self._closed = False

    @property
    def idle(self) -> int:
        """The number of idle connections."""
        return len(self._idle)

    @property
    def open(self) -> int:
        """The number of open connections, in use or idle."""
        return len(self._open)

    def take(self) -> C | None:
        """An idle connection that is still usable, None if there is none."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_quiet(self._burst):
                return connection
            self.drop(connection)

    def add(self, connection: C) -> None:
        """Count a new connection."""
        self._open.add(connection)

    def keep(self, connection: C) -> None:
        """Keep a clean connection for reuse, if there is room for it."""
        if self._closed or len(self._idle) >= self._most_idle:
            self.drop(connection)
        else:
            self._idle.append(connection)
            if self._closed:  # just now
                self._drop_idle()

    def drop(self, connection: C) -> None:
        """Close a connection."""
        self._open.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close all idle connections; the others are closed after use."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        while True:
            try:
                self.drop(self._idle.pop())
            except IndexError:
                return
