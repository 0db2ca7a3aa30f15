"""An open harbor: the driver, opened once for all threads and loops, with its clock and the harbor's settings."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from random import Random

from msgspec.structs import replace

from taskharbor.client.batching import Batcher
from taskharbor.client.clock import Clock, EngineClock, host_clock
from taskharbor.client.importing import check_may_open
from taskharbor.client.liveness import Attendance
from taskharbor.client.portal import Portal
from taskharbor.client.settings import Settings
from taskharbor.driver import Driver, EnqueueBlocking, ServerClock, offered
from taskharbor.driver.forking import after_fork
from taskharbor.errors import CapabilityMissing, DriverUnavailable


class Session:
    """Opens the driver on first use; `now` is the time to pass to it."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Driver]],
        settings: Settings,
        clock: Clock | None,
        rng: Random,
        shown: Callable[[], str | None] = lambda: None,
        url: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.rng = rng
        self.portal = Portal()
        self.attendance: Attendance | None = None
        self.batcher = Batcher(self.driver, self.now, settings.store_timeout)
        self._connect = connect
        self._shown = shown
        self._url = url
        self._closed_clock: Clock = host_clock
        self._given_clock = clock
        self._clock: Clock = clock or host_clock
        self._engine_clock: EngineClock | None = None
        self._lock = threading.Lock()
        self._opening: Future[Driver] | None = None
        self._driver: Driver | None = None
        self.blocking: EnqueueBlocking | None = None  # the open driver, for calls on the caller's thread
        after_fork(self, Session._renew)

    def _renew(self) -> None:
        """Reset locks that a parent thread may have held."""
        self._lock = threading.Lock()
        if self._driver is None:
            self._opening = None

    def now(self) -> datetime:
        return self._clock()

    @property
    def shown_url(self) -> str | None:
        """The URL without secrets, with the whole path of a file; None for a driver that was given."""
        return self._shown()

    @property
    def store(self) -> str:
        """The store for logs: its URL without secrets, or the name of the driver."""
        if (shown := self.shown_url) is not None:
            return shown
        return "a store" if self._driver is None else f"a {self._driver.name} driver"

    @property
    def url(self) -> str | None:
        """The URL by which another process reaches the store; None if the store lives in this one."""
        return None if self._driver is not None and self._driver.ephemeral else self._url()

    def serve_child(self, clock: Clock, payload_limit: int, refusal: str | None) -> None:
        """Serve a process that runs a worker's jobs: by the worker's clock and limit until the store is open.

        With a `refusal` it cannot be opened here: that says why.
        """
        self._closed_clock, self._clock = clock, self._given_clock or clock
        self.settings = replace(self.settings, payload_limit=payload_limit)
        if refusal is not None:
            self._connect = partial(_refused, refusal)

    @property
    def is_open(self) -> bool:
        return self._driver is not None

    @property
    def is_ready(self) -> bool:
        """Whether the driver is open and its clock was measured lately: nothing has to be awaited first."""
        clock = self._engine_clock
        return self._driver is not None and (clock is None or not clock.stale())

    @property
    def payload_limit(self) -> int:
        """The largest payload or result: the harbor's limit, never above the engine's own (R4)."""
        limit, driver = self.settings.payload_limit, self._driver
        if driver is None or (engines := driver.max_payload) is None or engines > limit:
            return limit
        return engines

    async def driver(self) -> Driver:
        driver = self._driver or await self._open()
        if self._engine_clock is not None and self._engine_clock.stale():
            await self._engine_clock.measure()
        return driver

    async def _open(self) -> Driver:
        with self._lock:
            opening, mine = self._opening, self._opening is None
            if opening is None:
                opening = self._opening = Future()
                opening.set_running_or_notify_cancel()  # a caller that stops waiting does not cancel it for the others
        if not mine:
            return await asyncio.wrap_future(opening)
        try:
            check_may_open()
            async with asyncio.timeout(self.settings.store_timeout):
                driver = await self._connect()
                if self._given_clock is None and isinstance(driver, ServerClock):
                    self._engine_clock = EngineClock(driver)
                    await self._engine_clock.measure()
                    self._clock = self._engine_clock
        except BaseException as error:
            self._opening = None
            failure = error if isinstance(error, Exception) else DriverUnavailable("opening the store was interrupted")
            if isinstance(error, TimeoutError):
                failure = DriverUnavailable(f"the store did not open within {self.settings.store_timeout:g} s")
            opening.set_exception(failure)
            opening.exception()
            if isinstance(error, Exception):
                raise failure from error
            raise
        self._driver, self.blocking = driver, offered(driver, EnqueueBlocking)
        opening.set_result(driver)
        return driver

    async def close(self) -> None:
        """Close the driver; the next use opens it again."""
        with self._lock:
            driver, self._driver, self.blocking, self._opening = self._driver, None, None, None
            self._engine_clock, self._clock = None, self._given_clock or self._closed_clock
        if driver is not None:
            await driver.close()


async def _refused(reason: str) -> Driver:
    raise CapabilityMissing(reason)
