"""Whether anybody works, for waits in tests that would otherwise never end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Protocol

from taskharbor.client.liveness import ALIVE
from taskharbor.driver import Driver, Registry, offered
from taskharbor.errors import NobodyWorks


class Store(Protocol):
    """An open store and its time, as a session has them."""

    async def driver(self) -> Driver: ...
    def now(self) -> datetime: ...


class Attendance:
    """The workers of this process on one test's stores; `elsewhere` says that other processes can reach the store.

    A wait that finds none of them for `patience` seconds is refused.
    """

    def __init__(self, *, elsewhere: bool, patience: float = 1.0) -> None:
        self.elsewhere = elsewhere
        self.patience = patience
        self._working = 0
        self._lock = threading.Lock()

    @contextmanager
    def working(self) -> Generator[None]:
        """Somebody works inside the block."""
        with self._lock:
            self._working += 1
        try:
            yield
        finally:
            with self._lock:
                self._working -= 1

    async def is_anybody_there(self, store: Store) -> bool:
        """Whether a worker runs here, or reports from another process."""
        if self._working or not self.elsewhere:
            return self._working > 0
        registry = offered(await store.driver(), Registry)
        return registry is not None and bool(await registry.workers(store.now() - ALIVE))


class Watch:
    """One wait without a timeout."""

    def __init__(self, attendance: Attendance, store: Store) -> None:
        self._attendance = attendance
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._last_seen = self._loop.time()

    @property
    def longest(self) -> float:
        """How long to wait between two looks."""
        return max(self._attendance.patience, 0.01)

    async def look(self, what: str) -> None:
        """`NobodyWorks` if nobody has for some time."""
        now = self._loop.time()
        if await self._attendance.is_anybody_there(self._store):
            self._last_seen = now
        elif now - self._last_seen >= self._attendance.patience:
            raise NobodyWorks(
                f"{what} has not ended, and nothing runs jobs in this test: call taskharbor.drain() first "
                "(for a later time, taskharbor.run_for()), or start a worker, with harbor.worker():"
            )
