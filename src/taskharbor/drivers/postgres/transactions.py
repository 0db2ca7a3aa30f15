"""Transactions that the driver begins for a handler, whose writes commit together with the job's Ack.

Their connections are not those of the verbs: a handler may hold one for long, and the worker has to go on meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from taskharbor.core.lease import Verdict
from taskharbor.core.transition import Transition
from taskharbor.driver import Group, GroupResult
from taskharbor.drivers.postgres.db import Db, OwnDb
from taskharbor.drivers.postgres.failure import failure
from taskharbor.drivers.postgres.login import Login
from taskharbor.drivers.postgres.pool import Pool
from taskharbor.drivers.postgres.psycopg_db import BlockingPsycopgDb
from taskharbor.drivers.postgres.within import Home, enqueue_in, settle_in
from taskharbor.errors import DriverClosed, DriverError, DriverUnavailable, HarborError, MissingExtra

if TYPE_CHECKING:
    import psycopg

PER_LOOP = 16
KEPT = 4
TIDY_WITHIN = 5.0
# What a stranger may have left behind in the session.
RESET = b"SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL"


async def home(db: Db, login: Login, channel: str) -> Home:
    """Where the store is, as its server names it; a pooler may know the database by another name."""
    ((database, _),) = await db.rows("place", login.schema)
    return Home(str(database), login.schema, channel)


class Awaited:
    """A transaction on an asyncpg connection."""

    blocks = False

    def __init__(self, db: OwnDb, home: Home, login: Login, committed: Callable[[], object]) -> None:
        self.handle = db.connection
        self._committed = committed
        self.home = home
        self._db = db
        self._login = login
        self._transaction = db.connection.transaction()
        self._open = False

    async def begin(self) -> None:
        """Begin."""
        await self._transaction.start()
        self._open = True

    async def db(self) -> Db:
        """The connection, if the transaction is still open."""
        if not self._open or not self.handle.is_in_transaction():
            raise DriverError("the transaction was ended inside its block: leave COMMIT and ROLLBACK to the block")
        return self._db

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        return await enqueue_in(self, groups, now)

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        try:
            return await settle_in(self, transitions, now)
        except Exception as error:
            raise failure(error, self._login) from error

    async def commit(self) -> None:
        try:
            await self._transaction.commit()
        except Exception as error:
            raise failure(error, self._login) from error
        self._open = False
        self._committed()

    async def end(self) -> None:
        """Roll back unless it was committed."""
        if self._open:
            self._open = False
            await self._transaction.rollback()


@asynccontextmanager
async def awaited(pool: Pool, home: Home, committed: Callable[[], object]) -> AsyncGenerator[Awaited]:
    """A transaction for a block. What goes wrong inside of it, a cancellation too, costs no connection."""
    begun, raised = False, None
    try:
        async with pool.connection() as db:
            tx = Awaited(db, home, pool.login, committed)
            await tx.begin()
            begun = True
            try:
                yield tx
            except BaseException as error:
                raised = error
            async with asyncio.timeout(TIDY_WITHIN):  # the server is told to stop what it is at; nothing stays locked
                await tx.end()
                if not pool.login.pooled:
                    await db.connection.execute(RESET.decode())
    except Exception:
        if not begun:
            raise  # afterwards, what cannot be tidied up goes with its connection
    if raised is not None:
        raise raised


class Blocking:
    """A transaction on a psycopg connection."""

    blocks = True

    def __init__(
        self, connection: psycopg.Connection[Any], home: Home, login: Login, committed: Callable[[], object]
    ) -> None:
        self.handle = connection
        self._committed = committed
        self.home = home
        self._login = login
        self._transaction = connection.transaction()
        self._open = False

    def begin(self) -> None:
        """Begin. psycopg keeps anybody from ending it but us."""
        self._transaction.__enter__()
        self._open = True

    async def db(self) -> Db:
        """The connection."""
        return BlockingPsycopgDb(self.handle, self.home.sql)

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        return await enqueue_in(self, groups, now)

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        with in_our_words(self._login):
            return await settle_in(self, transitions, now)

    async def commit(self) -> None:
        self._open = False
        if self.handle.closed:  # which psycopg's block would leave in silence
            raise DriverUnavailable(f"{self._login.where}: the connection is closed, nothing was committed")
        with in_our_words(self._login):
            self._transaction.__exit__(None, None, None)
        self._committed()

    def end(self) -> None:
        """Roll back unless it was committed."""
        from psycopg import Rollback

        if self._open:
            self._open = False
            self._transaction.__exit__(Rollback, Rollback(), None)


class BlockingPool:
    """Connections of psycopg, for as many threads as come."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._idle: list[psycopg.Connection[Any]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._inherited: list[object] = []
        self._pid = os.getpid()

    @contextmanager
    def transaction(self, home: Home, committed: Callable[[], object]) -> Generator[Blocking]:
        """A transaction for a block."""
        with self._connection() as connection:
            tx = Blocking(connection, home, self._login, committed)
            tx.begin()
            try:
                yield tx
            finally:
                tx.end()

    @contextmanager
    def _connection(self) -> Generator[psycopg.Connection[Any]]:
        """A connection for a block; kept for the next one if it is certain to be as new."""
        connection = self._take()
        keeps = False
        try:
            yield connection
            keeps = not connection.broken
        except Exception:
            keeps = not connection.broken
            raise
        finally:
            if keeps:
                self._give_back(connection)
            else:
                connection.close()

    def _take(self) -> psycopg.Connection[Any]:
        if self._pid != os.getpid():  # a fork: these are the parent's
            self._inherited.append(self._idle)
            self._idle, self._lock, self._pid = [], threading.Lock(), os.getpid()
        with self._lock:
            if self._closed:
                raise DriverClosed("this postgres driver was closed")
            if self._idle:
                return self._idle.pop()
        try:
            with in_our_words(self._login):
                return self._login.connect_blocking()
        except ImportError:
            raise MissingExtra(
                'a transaction in a `def` handler needs psycopg 3: pip install "psycopg[binary]", or make the handler '
                "an `async def`"
            ) from None

    def _give_back(self, connection: psycopg.Connection[Any]) -> None:
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        with suppress(Exception):
            if not self._login.pooled:
                connection.execute(RESET)
            connection.row_factory, connection.cursor_factory = tuple_row, Cursor
            with self._lock:
                if not self._closed and len(self._idle) < KEPT:
                    self._idle.append(connection)
                    return
        connection.close()

    def close(self) -> None:
        """Let go of all that nobody uses; the others are closed after use."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


@contextmanager
def in_our_words(login: Login) -> Generator[None]:
    """psycopg's errors as ours."""
    import psycopg

    try:
        yield
    except HarborError:
        raise
    except psycopg.OperationalError as error:
        raise DriverUnavailable(f"{login.where} does not answer: is it running and reachable? ({error})") from error
    except psycopg.Error as error:
        raise DriverError(f"{login.where}: {type(error).__name__}: {error}") from error
