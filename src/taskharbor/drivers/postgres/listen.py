"""Notifications of commits: LISTEN on a connection and thread of its own, NOTIFY at most once per moment.

Both are hints: workers poll as well. A half-open connection looks like a quiet one, so the session is asked whether it
still listens, and replaced if it does not answer. NOTIFY costs every commit a lock that all commits share, so only the
first commit of a moment notifies; one notification for the others follows when the moment is over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from random import Random

from taskharbor.core.backoff import STORE_BACKOFF
from taskharbor.drivers.postgres.db import Connection
from taskharbor.drivers.postgres.failure import failure
from taskharbor.drivers.postgres.login import Login
from taskharbor.errors import DriverError, HarborError

logger = logging.getLogger("taskharbor.postgres")
ASK_EVERY, ANSWER_WITHIN, FAREWELL_WITHIN = 5.0, 5.0, 0.5
RNG = Random()
MOMENT, COURTESY = 0.01, 0.003


class Listener:
    """Calls `wake` after notifications, and after any time in which some may have been missed."""

    def __init__(self, login: Login, channel: str, wake: Callable[[], None]) -> None:
        self._login = login
        self._channel = channel
        self._wake = wake
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._failures = 0

    def start(self) -> None:
        """Start to listen; a no-op if it listens already."""
        if self._pid != os.getpid():  # a fork: the thread stayed with the parent
            self._begin()
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._serve, name="taskharbor listen", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop listening, and end the session and the thread."""
        self._closed = True
        if self._pid != os.getpid():
            return
        with self._lock:
            loop, task, thread = self._loop, self._task, self._thread
        if loop is not None and task is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _serve(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._listen())

    async def _listen(self) -> None:
        with self._lock:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self._closed:
                return
        while True:
            try:
                await self._session()
            except Exception as error:
                self._failed(error)
            await asyncio.sleep(STORE_BACKOFF.delay(self._failures, RNG))

    async def _session(self) -> None:
        """Listen until the session ends or stops answering."""
        connection = await self._login.connect()
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                await connection.add_listener(self._channel, self._notified)
            self._begun()
            while not gone.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(ASK_EVERY):
                        await gone.wait()
                        continue
                await self._ask(connection)
            raise ConnectionResetError("the session was ended")
        except asyncio.CancelledError:
            with suppress(Exception):
                await connection.close(timeout=FAREWELL_WITHIN)
            raise
        finally:
            connection.terminate()

    async def _ask(self, connection: Connection) -> None:
        """Raise unless the session answers and still listens."""
        async with asyncio.timeout(ANSWER_WITHIN):
            channels = await connection.fetchval("SELECT count(*) FROM pg_listening_channels()")
        if channels != 1:
            raise DriverError("the session no longer listens: behind a pooler, add pgbouncer=true to the URL")

    def _begun(self) -> None:
        if self._failures:
            logger.info("store.available: %s: listening again", self._login.where)
        self._failures = 0
        self._wake()  # earlier notifications were missed

    def _failed(self, error: Exception) -> None:
        if not self._failures:  # workers poll meanwhile, so logging it once is enough
            logger.warning("store.unavailable: not listening, trying again: %s", failure(error, self._login))
        self._failures += 1

    def _notified(self, *_: object) -> None:
        self._wake()


class Notifier:
    """Notifies of commits by `notify(channel)`: in the commit itself, or at the end of the moment that began with one.

    A deferred notification follows its commit, so that of the last commit of a burst is never too early. The next
    commit after a moment notifies for all before it; only if none follows within COURTESY, a task does so.
    """

    def __init__(self, notify: Callable[[str], Awaitable[object]]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._notified_at: dict[str, float] = {}
        self._deferred: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @contextmanager
    def about(self, channel: str) -> Generator[str | None]:
        """Around a commit: yield the channel that the commit has to notify, None if that follows later."""
        deferred = channel in self._deferred
        if self._is_quiet(channel):
            try:
                yield channel
            except BaseException:
                if deferred:  # for earlier commits
                    self.defer(channel)
                raise
            return
        try:
            yield None
        finally:  # also after an error, because it may have been committed
            self.defer(channel)

    def _is_quiet(self, channel: str) -> bool:
        """Whether the last notification is older than a moment; if so, note a new one."""
        time = asyncio.get_running_loop().time()
        with self._lock:
            if time < self._notified_at.get(channel, -MOMENT) + MOMENT:
                return False
            self._notified_at[channel] = time
            self._deferred.discard(channel)
            return True

    def defer(self, channel: str) -> None:
        """Notify of a commit that was just made, at the end of the moment."""
        with self._lock:
            self._deferred.add(channel)
            task = self._tasks.get(channel)
            if task is None or task.get_loop().is_closed():
                self._tasks[channel] = asyncio.get_running_loop().create_task(self._flush(channel))

    async def _flush(self, channel: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._is_deferred(channel):
                left = self._notified_at.get(channel, 0.0) + MOMENT + COURTESY - loop.time()
                await (asyncio.sleep(left) if left > 0 else self._send(channel))
        finally:
            with self._lock:
                self._retire(channel)

    def _is_deferred(self, channel: str) -> bool:
        with self._lock:  # in one step: a notification deferred from now on finds no flush under way
            if channel not in self._deferred:
                self._retire(channel)
            return channel in self._deferred

    def _retire(self, channel: str) -> None:
        if self._tasks.get(channel) is asyncio.current_task():
            del self._tasks[channel]

    async def _send(self, channel: str) -> None:
        with self._lock:
            self._deferred.discard(channel)
            self._notified_at[channel] = asyncio.get_running_loop().time()
        try:
            await self._notify(channel)
        except HarborError:
            pass  # workers poll as well
        except asyncio.CancelledError:
            self._deferred.add(channel)
            raise

    async def close(self) -> None:
        """Send deferred notifications, unless that takes too long."""
        here = asyncio.get_running_loop()
        tasks = [task for task in list(self._tasks.values()) if task.get_loop() is here]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_WITHIN):
                for channel in list(self._deferred):
                    await self._send(channel)
