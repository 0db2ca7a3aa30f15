"""Notices in tests that no worker runs, so that a wait for a result fails instead of lasting for ever."""

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


class OpenStore(Protocol):
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
        """A worker runs inside the block."""
        with self._lock:
            self._working += 1
        try:
            yield
        finally:
            with self._lock:
                self._working -= 1

    async def has_worker(self, store: OpenStore) -> bool:
        """Whether a worker runs here, or reports from another process."""
        if self._working or not self.elsewhere:
            return self._working > 0
        registry = offered(await store.driver(), Registry)
        return registry is not None and bool(await registry.workers(store.now() - ALIVE))


class WorkerWatch:
    """Checks during a wait without a timeout that a worker runs."""

    def __init__(self, attendance: Attendance, store: OpenStore) -> None:
        self._attendance = attendance
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._last_seen = self._loop.time()

    @property
    def longest(self) -> float:
        """The longest wait between two looks."""
        return max(self._attendance.patience, 0.01)

    async def look(self, what: str) -> None:
        """`NobodyWorks` if there was no worker for some time."""
        now = self._loop.time()
        if await self._attendance.has_worker(self._store):
            self._last_seen = now
        elif now - self._last_seen >= self._attendance.patience:
            raise NobodyWorks(
                f"{what} has not ended, and nothing runs jobs in this test: call taskharbor.drain() first "
                "(for a later time, taskharbor.run_for()), or start a worker, with harbor.worker():"
            )
