"""Hearing and telling of commits: LISTEN on a connection and in a thread of its own, NOTIFY once per moment at most.

Both are hints and nothing more: behind them there is the poll. A half-open line looks like a quiet one, so the session
is asked whether it still listens, and replaced if it does not say so. Telling costs every committer a lock that all of
them share, so only the first commit of a moment tells; for those behind it somebody tells when the moment is over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress

from taskharbor.drivers.postgres.db import Connection
from taskharbor.drivers.postgres.failure import failure
from taskharbor.drivers.postgres.login import Login
from taskharbor.errors import DriverError, HarborError

logger = logging.getLogger("taskharbor.postgres")
ASK_EVERY, ANSWER_WITHIN, FAREWELL_WITHIN = 5.0, 5.0, 0.5
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
MOMENT, COURTESY = 0.01, 0.003


class Listener:
    """Calls `ring` after notifications, and after any time in which some may have been missed."""

    def __init__(self, login: Login, channel: str, ring: Callable[[], None]) -> None:
        self._login = login
        self._channel = channel
        self._ring = ring
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
        """Listen from now on; nothing if it does so already."""
        if self._pid != os.getpid():  # a fork: the thread stayed with the parent
            self._begin()
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._serve, name="taskharbor listen", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop to listen; the session and the thread are gone afterwards."""
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
            await asyncio.sleep(min(SHORTEST_PAUSE * 2 ** min(self._failures, 10), LONGEST_PAUSE))

    async def _session(self) -> None:
        """Listen until the session ends or falls silent."""
        connection = await self._login.connect()
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                await connection.add_listener(self._channel, self._heard)
            self._begun()
            while not gone.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(ASK_EVERY):
                        await gone.wait()
                        continue
                await self._ask(connection)
            raise ConnectionResetError("the session was ended")
        except asyncio.CancelledError:
            await self._leave(connection)
            raise
        finally:
            connection.terminate()

    async def _ask(self, connection: Connection) -> None:
        """Whether the session is there, and listens still."""
        async with asyncio.timeout(ANSWER_WITHIN):
            heard = await connection.fetchval("SELECT count(*) FROM pg_listening_channels()")
        if heard != 1:
            raise DriverError("the session forgot to LISTEN: behind a pooler, add pgbouncer=true to the URL")

    async def _leave(self, connection: Connection) -> None:
        with suppress(Exception):
            await connection.close(timeout=FAREWELL_WITHIN)

    def _begun(self) -> None:
        if self._failures:
            logger.info("store.available: %s: listening again", self._login.where)
        self._failures = 0
        self._ring()  # what was told before this was not heard

    def _failed(self, error: Exception) -> None:
        if not self._failures:  # the poll goes on; one line will do
            logger.warning("store.unavailable: not listening, trying again: %s", failure(error, self._login))
        self._failures += 1

    def _heard(self, *told: object) -> None:
        self._ring()


class Notifier:
    """Tells of commits by `notify(channel)`: with the commit itself, or at the end of the moment that began with one.

    What is told later is told after its commit, so the last commit of a burst is never told too early. The next commit
    after a moment tells for all before it; only if none comes within a short while, somebody has to do it on its own.
    """

    def __init__(self, notify: Callable[[str], Awaitable[object]]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._told: dict[str, float] = {}
        self._deferred: set[str] = set()
        self._payers: dict[str, asyncio.Task[None]] = {}

    @contextmanager
    def about(self, channel: str) -> Generator[str | None]:
        """Around a commit: the channel if the commit is to tell it, None if somebody does so afterwards."""
        deferred = channel in self._deferred
        if self._is_quiet(channel):
            try:
                yield channel
            except BaseException:
                if deferred:  # by those before it
                    self.defer(channel)
                raise
            return
        try:
            yield None
        finally:  # also after an error, because it may have been committed
            self.defer(channel)

    def _is_quiet(self, channel: str) -> bool:
        """Whether nobody told it just now; from now on somebody did."""
        time = asyncio.get_running_loop().time()
        with self._lock:
            if time < self._told.get(channel, -MOMENT) + MOMENT:
                return False
            self._told[channel] = time
            self._deferred.discard(channel)
            return True

    def defer(self, channel: str) -> None:
        """See to it that a commit is told that was just made."""
        with self._lock:
            self._deferred.add(channel)
            payer = self._payers.get(channel)
            if payer is None or payer.get_loop().is_closed():
                self._payers[channel] = asyncio.get_running_loop().create_task(self._pay(channel))

    async def _pay(self, channel: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._is_owed(channel):
                left = self._told.get(channel, 0.0) + MOMENT + COURTESY - loop.time()
                await (asyncio.sleep(left) if left > 0 else self._tell(channel))
        finally:
            with self._lock:
                self._retire(channel)

    def _is_owed(self, channel: str) -> bool:
        with self._lock:  # in one step: a notification deferred from now on finds no flush under way
            if channel not in self._deferred:
                self._retire(channel)
            return channel in self._deferred

    def _retire(self, channel: str) -> None:
        if self._payers.get(channel) is asyncio.current_task():
            del self._payers[channel]

    async def _tell(self, channel: str) -> None:
        with self._lock:
            self._deferred.discard(channel)
            self._told[channel] = asyncio.get_running_loop().time()
        try:
            await self._notify(channel)
        except HarborError:
            pass  # a hint that is missed costs a poll
        except asyncio.CancelledError:
            self._deferred.add(channel)
            raise

    async def close(self) -> None:
        """Tell what is deferred, if that can be done at once."""
        here = asyncio.get_running_loop()
        payers = [task for task in list(self._payers.values()) if task.get_loop() is here]
        for task in payers:
            task.cancel()
        await asyncio.gather(*payers, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_WITHIN):
                for channel in list(self._deferred):
                    await self._tell(channel)
