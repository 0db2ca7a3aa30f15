"""Enqueue on the caller's thread, by psycopg where it is installed: the same verbs, on connections of their own.

A connection on which anything unexpected happened, Ctrl-C included, is closed: the server rolls back what it had not
committed. Notifications are coalesced as those of the awaited verbs are, by a thread instead of a task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, partial
from typing import Any, TypeVar

from taskharbor.driver import Group, GroupResult, at_once
from taskharbor.driver.locking import locked
from taskharbor.drivers.postgres import enqueue
from taskharbor.drivers.postgres.db import Db
from taskharbor.drivers.postgres.deadline import Watched, start_thread
from taskharbor.drivers.postgres.failure import away, failure, is_conflict
from taskharbor.drivers.postgres.listen import COURTESY, MOMENT
from taskharbor.drivers.postgres.login import Login
from taskharbor.drivers.postgres.psycopg_db import OwnPsycopgDb, has_psycopg, is_idle
from taskharbor.drivers.postgres.psycopg_pool import PsycopgPool
from taskharbor.drivers.postgres.sql import statements
from taskharbor.drivers.postgres.steps import TRIES
from taskharbor.errors import DriverUnavailable, HarborError

T = TypeVar("T")
# More threads at once share the connections of the awaited verbs.
MOST_OPEN = 10
NOTIFY_WITHIN = 0.5
BURST = 0.005
_installed = cache(has_psycopg)


class BlockingEnqueue:
    """Stores groups by blocking calls; `channel` is notified of them."""

    def __init__(self, login: Login, channel: str) -> None:
        self._login = login
        self._channel = channel
        self._pool = PsycopgPool(partial(login.connect_blocking, lent=False), MOST_OPEN, BURST)
        self._notifier = BlockingNotifier(self._notify)

    def renew(self) -> None:
        """In a forked child: start with a notifier of its own; the pool sees the fork itself."""
        self._notifier = BlockingNotifier(self._notify)

    def takes(self, groups: Sequence[Group]) -> bool:
        """Whether these are stored here: not without psycopg, not by COPY, and not with too many connections."""
        if not _installed() or sum([len(group.jobs) for group in groups]) >= enqueue.COPY_FROM:
            return False
        return self._pool.idle > 0 or self._pool.open < MOST_OPEN

    def enqueue(self, groups: Sequence[Group], now: datetime, timeout: float, *, news: bool) -> list[GroupResult]:
        """`Driver.enqueue`; `news`: workers are to be woken."""
        deadline = time.monotonic() + timeout
        channel = self._channel if news and self._notifier.is_due() else None
        try:
            results = self._stored(groups, now, channel, deadline)
        except BaseException:
            if news:  # it may have been committed, and earlier commits may still need a notification
                self._notifier.defer()
            raise
        if news and channel is None:
            self._notifier.defer()
        return results

    def _stored(
        self, groups: Sequence[Group], now: datetime, channel: str | None, deadline: float
    ) -> list[GroupResult]:
        whole = self._login.pooled or not enqueue.is_one_step(groups)
        step = partial(_whole if whole else enqueue.enqueue, groups=groups, now=now, channel=channel)
        for attempt in range(TRIES):
            try:
                return self._run(step, deadline - time.monotonic())
            except HarborError as error:
                if not is_conflict(error) or attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _run(self, step: Callable[[OwnPsycopgDb], Coroutine[Any, Any, T]], within: float) -> T:
        """Run a step on a connection for so many seconds. If its state is unknown afterwards, it is closed."""
        line = self._taken(within)
        try:
            line.begin(within)
            try:
                result = at_once(step(_db(line, self._login)))
            finally:
                line.end()
        except BaseException as error:
            ours = self._translated(error, line)
            if isinstance(ours, HarborError) and not line.connection.closed and is_idle(line.connection):
                self._pool.keep(line)
            else:
                self._pool.drop(line)
            if ours is error:
                raise
            raise ours from error
        self._pool.keep(line)
        return result

    def _taken(self, within: float) -> Watched:
        if within <= 0:
            raise DriverUnavailable(f"{self._login.where} does not answer in time")
        try:
            return self._pool.take(within)
        except HarborError:
            raise
        except Exception as error:  # psycopg's own, or a timeout
            raise away(error, self._login, asked=False) from error

    def _translated(self, error: BaseException, line: Watched) -> BaseException:
        """The error as the awaited verbs raise it; an interrupt as it is."""
        if line.is_cut and isinstance(error, Exception):
            return away(TimeoutError("no answer in time"), self._login, asked=True)
        return failure(error, self._login, asked=True) if isinstance(error, Exception) else error

    def _notify(self) -> None:
        with suppress(HarborError):
            self._run(lambda db: db.rows("notify", self._channel), NOTIFY_WITHIN)

    def close(self) -> None:
        """Send the notification that is due, and close the connections."""
        self._notifier.close()
        self._pool.close()


async def _whole(db: Db, groups: Sequence[Group], now: datetime, channel: str | None) -> list[GroupResult]:
    async with db.transaction():
        return await enqueue.enqueue(db, groups, now, channel)


def _db(line: Watched, login: Login) -> OwnPsycopgDb:
    """The statements on a connection; with its cursor, it lives as long as that."""
    if line.db is None:
        line.db = OwnPsycopgDb(line.connection, statements(login.schema))
    return line.db


class BlockingNotifier:
    """Notifies like `listen.Notifier`, for callers without an event loop."""

    def __init__(self, notify: Callable[[], object]) -> None:
        self._notify = notify
        self._lock = threading.RLock()
        self._notified_at = float("-inf")
        self._deferred = False
        self._flushing = False

    def is_due(self) -> bool:
        """Whether the next commit has to notify; if so, for all before it."""
        return locked(self._lock, self._is_due)

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now < self._notified_at + MOMENT:
            return False
        self._notified_at, self._deferred = now, False
        return True

    def defer(self) -> None:
        """Notify of a commit that was just made, at the end of the moment."""
        locked(self._lock, self._defer)

    def _defer(self) -> None:
        self._deferred = True
        if not self._flushing:
            with suppress(RuntimeError):  # no thread: the next call tries again, and idle workers poll
                start_thread(self._flush)
                self._flushing = True  # last: an interrupt before this leaves a second thread at most

    def _flush(self) -> None:
        while (left := self._left()) is not None:
            if left > 0:
                time.sleep(left)
            else:
                self._notify()

    def _left(self) -> float | None:
        """The seconds until a notification is due; zero, and noted as sent, if that is now; None if none is needed."""
        with self._lock:
            if not self._deferred:
                self._flushing = False
                return None
            now = time.monotonic()
            if (left := self._notified_at + MOMENT + COURTESY - now) > 0:
                return left
            self._notified_at, self._deferred = now, False
            return 0.0

    def close(self) -> None:
        """Send a deferred notification now."""
        if locked(self._lock, self._undefer):
            self._notify()

    def _undefer(self) -> bool:
        deferred, self._deferred = self._deferred, False
        return deferred
