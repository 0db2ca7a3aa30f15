"""Connections of psycopg, for any number of threads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from taskharbor.drivers.postgres.deadline import Watch, Watched, connected
from taskharbor.drivers.postgres.login import CONNECT_WITHIN
from taskharbor.drivers.shared.idle import IdleConnections
from taskharbor.errors import DriverClosed

if TYPE_CHECKING:
    import psycopg


class PsycopgPool:
    """Keeps up to `most_idle` connections that `connect` has made; `burst` as for `Watched.is_quiet`."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], most_idle: int, burst: float = 0.0) -> None:
        self._burst = burst
        self._connect = connect
        self._most_idle = most_idle
        self._inherited: list[object] = []
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._connections = IdleConnections[Watched](self._most_idle, self._burst)
        self._watch = Watch()
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise unless the pool can be used; after a fork, leave the connections to the parent."""
        if self._pid != os.getpid():
            self._inherited += [self._connections, self._watch]
            self._begin()
        if self._closed:
            raise DriverClosed("this postgres driver was closed")

    @property
    def idle(self) -> int:
        """The number of idle connections."""
        return self._connections.idle

    @property
    def open(self) -> int:
        """The number of open connections, in use or idle."""
        return self._connections.open

    def take(self, within: float = math.inf) -> Watched:
        """An idle connection that is still usable, or a new one."""
        self.check()
        line = self._connections.take()
        if line is None:
            line = Watched(connected(self._connect, min(within, CONNECT_WITHIN)), self._watch)
            self._connections.add(line)
        return line

    def keep(self, line: Watched) -> None:
        """Keep a clean connection for reuse, if there is room for it."""
        self._connections.keep(line)

    def drop(self, line: Watched) -> None:
        """Close a connection."""
        self._connections.drop(line)

    def close(self) -> None:
        """Close all idle connections; the others are closed after use."""
        self._closed = True
        if self._pid == os.getpid():
            self._connections.close()
