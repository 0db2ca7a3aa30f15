"""The store of a manager: opened when it is first needed, shared or its own, and closed once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from random import Random
from typing import Any, TypeVar

from taskharbor.client.clock import Clock
from taskharbor.client.portal import refuse_on_a_loop
from taskharbor.client.session import Session
from taskharbor.driver import Driver
from taskharbor.driver.forking import after_fork
from taskharbor.driver.locking import locked
from taskharbor.errors import ConfigError, DriverClosed, StoreClosed
from taskharbor.harbor import Harbor
from taskharbor.manager.task_store import TaskStore

T = TypeVar("T")


class CallGate:
    """Counts the calls of a manager, from any number of threads and event loops.

    Closing a manager waits for the calls under way, and refuses later ones. Blocking twins run by `call`.
    """

    def __init__(self, harbor: Harbor) -> None:
        self._harbor = harbor
        self._lock = threading.RLock()  # a signal handler may submit while this thread holds it
        self._inside = 0
        self._emptied: Future[None] | None = None
        after_fork(self, CallGate._renew)

    def _renew(self) -> None:
        """Reset the lock that a parent thread may have held; the calls are the parent's."""
        self._lock, self._inside = threading.RLock(), 0

    @contextmanager
    def entered(self) -> Generator[None]:
        """Count a call; `StoreClosed` after `close`, also for a call that outlasts the store."""
        locked(self._lock, self._enter)
        try:
            yield
        except DriverClosed:
            self._check_open()
            raise
        finally:
            emptied = locked(self._lock, self._leave)
            if emptied is not None:
                emptied.set_result(None)

    def _enter(self) -> None:
        self._check_open()
        self._inside += 1

    def _leave(self) -> Future[None] | None:
        self._inside -= 1
        return None if self._inside else self._emptied

    def call(self, twin: str, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `Portal.call`, and counted."""
        with self.entered():
            return self._harbor.portal.call(twin, function)

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


class Lifecycle:
    """Opens and closes a manager's store. A driver or a harbor that was given stays open."""

    def __init__(self, store: str | Driver | Harbor | None, clock: Clock | None, rng: Random | None) -> None:
        self.harbor = _harbor(store, clock, rng)
        self.gate = CallGate(self.harbor)
        self._owns = store is None or isinstance(store, str)
        self._borrows = isinstance(store, Harbor)

    @property
    def session(self) -> Session:
        return self.harbor.client.session

    async def aclose(self) -> None:
        """Close the store, if this manager opened it, once the calls under way have their answers."""
        if (emptied := self.gate.close()) is None:
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.session.settings.store_timeout):  # no call takes longer
                    await asyncio.wrap_future(emptied)
        finally:
            if self._owns:
                await self.harbor.aclose()
            self._end_portal()

    def close(self) -> None:
        """The blocking twin of `aclose`."""
        refuse_on_a_loop("aclose")
        if (emptied := self.gate.close()) is None:
            return
        try:
            with suppress(TimeoutError):
                emptied.result(self.session.settings.store_timeout)
        finally:
            if self._owns:
                self.harbor.portal.run(self.harbor.aclose)
            self._end_portal()

    def _end_portal(self) -> None:
        if not self._borrows:
            self.harbor.portal.close()

    @asynccontextmanager
    async def store(self) -> AsyncGenerator[TaskStore]:
        """The store for one call, which the gate counts."""
        with self.gate.entered():
            async with self.harbor.client.store() as driver:
                yield TaskStore(driver, self.session)


def _harbor(store: str | Driver | Harbor | None, clock: Clock | None, rng: Random | None) -> Harbor:
    if isinstance(store, Harbor):
        if clock is not None or rng is not None:
            raise ConfigError("clock and rng are the harbor's own: give them to Harbor(…)")
        return store
    if store is None or isinstance(store, str):
        return Harbor(store, clock=clock, rng=rng)
    if isinstance(store, Driver) and not isinstance(store, type):
        return Harbor(driver=store, clock=clock, rng=rng)
    raise ConfigError(f"a TaskManager takes a URL, a Harbor or an open driver, not {store!r}")
