"""Hard limits for blocking calls, outside the client library: the socket of a silent server is shut down.

The waiting call then gets an error, in any thread and library. One thread watches all connections, because a timer for
every call would take longer than the call.
"""

from __future__ import annotations

import _thread
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from taskharbor.driver.locking import locked

if TYPE_CHECKING:
    import psycopg

    from taskharbor.drivers.postgres.psycopg_db import OwnPsycopgDb


# A socket without a descriptor of its own.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


def start_thread(function: Callable[[], object]) -> None:
    """Start a daemon thread. `Thread.start` waits for a condition, which breaks if Ctrl-C comes meanwhile."""
    _thread.start_new_thread(function, ())


class Watch:
    """Cuts connections whose answer is overdue. Its thread runs while answers are awaited."""

    def __init__(self) -> None:
        self._due: dict[Watched, float] = {}
        self._lock = threading.RLock()  # entered itself: Ctrl-C while a condition is entered would leave it locked
        self._changed = threading.Condition(self._lock)
        self._looking = False
        self._looks_at = 0.0

    def begin(self, line: Watched, within: float) -> None:
        """Start to wait for an answer."""
        locked(self._lock, lambda: self._begin(line, within))

    def _begin(self, line: Watched, within: float) -> None:
        due = self._due[line] = time.monotonic() + within
        if not self._looking:
            self._looks_at = due
            start_thread(self._look)
            self._looking = True  # last: an interrupt before this leaves a second thread at most
        elif due < self._looks_at:
            self._changed.notify()

    def end(self, line: Watched) -> None:
        """Stop waiting for an answer."""
        locked(self._lock, lambda: self._due.pop(line, None))

    def _look(self) -> None:
        with self._lock:
            while self._due:
                now = time.monotonic()
                for line in [line for line, due in self._due.items() if due <= now]:
                    del self._due[line]
                    line.cut()
                self._looks_at = min(self._due.values(), default=now)
                self._changed.wait(self._looks_at - now)
            self._looking = False


class Watched:
    """A connection, with a duplicate of its socket: the original may be closed and its number reused meanwhile."""

    def __init__(self, connection: psycopg.Connection[Any], watch: Watch) -> None:
        self.connection = connection
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self.db: OwnPsycopgDb | None = None  # if it is the driver's own, once it was used
        self._watch = watch
        self.is_cut = False
        self._used_at = 0.0
        self._selector = _Selector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    @contextmanager
    def answered(self, within: float) -> Generator[None]:
        """Limit the block to so many seconds, after which it raises `TimeoutError`."""
        self.begin(within)
        try:
            yield
        except Exception as error:
            if self.is_cut:
                raise TimeoutError(f"no answer within {within:g} s") from error
            raise
        finally:
            self.end()

    def begin(self, within: float) -> None:
        """Limit what follows to so many seconds, after which the connection is cut."""
        self._watch.begin(self, within)

    def end(self) -> None:
        """Note that the answer has come."""
        self._watch.end(self)
        self._used_at = time.monotonic()

    def is_quiet(self, burst: float = 0.0) -> bool:
        """Whether an idle session has received nothing: a message could only be its end.

        Not checked within `burst` seconds after its last use: in a burst of calls, the check would cost each of them a
        switch between threads.
        """
        if self.connection.closed:
            return False
        return time.monotonic() < self._used_at + burst or not self._selector.select(0)

    def cut(self) -> None:
        """Shut the connection down in both directions."""
        self.is_cut = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
        self._selector.close()
        self._socket.close()


def connected(connect: Callable[[], psycopg.Connection[Any]], within: float) -> psycopg.Connection[Any]:
    """Connect within so many seconds, or raise `TimeoutError`. A connection that comes too late is closed."""
    attempt = _Attempt(connect)
    start_thread(attempt.make)
    try:
        # A lock and nothing else: a future's condition may break if Ctrl-C comes while it is entered.
        if not attempt.done.acquire(timeout=within):
            raise TimeoutError(f"no answer within {within:g} s")
    except BaseException:
        attempt.is_given_up = True
        if attempt.connection is not None:
            attempt.connection.close()
        raise
    if attempt.error is not None:
        raise attempt.error
    assert attempt.connection is not None
    return attempt.connection


class _Attempt:
    """An attempt to connect, in a thread of its own."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self.connection: psycopg.Connection[Any] | None = None
        self.error: BaseException | None = None
        self.is_given_up = False
        self.done = threading.Lock()
        self.done.acquire()
        self._connect = connect

    def make(self) -> None:
        try:
            self.connection = self._connect()
            if self.is_given_up:
                self.connection.close()
        except BaseException as error:
            self.error = error
        self.done.release()
