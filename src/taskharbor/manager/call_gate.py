"""The call gate: counts the calls under way, so that closing a manager waits for them, and refuses later ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec import Struct

from taskharbor.client.forking import after_fork
from taskharbor.client.portal import Portal
from taskharbor.errors import DriverClosed, StoreClosed

T = TypeVar("T")


class CallGate:
    """Counts calls, from any number of threads and event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._emptied: Future[None] | None = None
        after_fork(self, CallGate._renew)

    def _renew(self) -> None:
        """Reset the lock that a parent thread may have held; the calls are the parent's."""
        self._lock, self._inside = threading.Lock(), 0

    @contextmanager
    def entered(self) -> Generator[None]:
        """Count a call; `StoreClosed` after `close`, also for a call that outlasts the store."""
        with self._lock:
            self._check_open()
            self._inside += 1
        try:
            yield
        except DriverClosed:
            self._check_open()
            raise
        finally:
            with self._lock:
                self._inside -= 1
                emptied = None if self._inside else self._emptied
            if emptied is not None:
                emptied.set_result(None)

    def _check_open(self) -> None:
        if self._emptied is not None:
            raise StoreClosed("this TaskManager was closed: make a new one")

    def close(self) -> Future[None] | None:
        """Refuse further calls; return a future that is done when the last call has ended. None if already closed."""
        with self._lock:
            if self._emptied is not None:
                return None
            emptied = self._emptied = Future[None]()
            emptied.set_running_or_notify_cancel()  # a caller that stops waiting does not cancel it
            if not self._inside:
                emptied.set_result(None)
            return emptied


class GatedPortal(Struct, frozen=True, eq=False):
    """A portal that counts its blocking calls."""

    _gate: CallGate
    _portal: Portal

    def call(self, twin: str, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `Portal.call`."""
        with self._gate.entered():
            return self._portal.call(twin, function)
