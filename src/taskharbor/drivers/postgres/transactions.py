"""Transactions that the driver begins for a handler, whose writes commit together with the job's Ack.

They have connections of their own: a handler may hold one for long, and the worker has to go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime

from taskharbor.core.lease import Verdict
from taskharbor.core.transition import Transition
from taskharbor.driver import Group, GroupResult
from taskharbor.drivers.postgres.db import Db, OwnDb
from taskharbor.drivers.postgres.deadline import Watched
from taskharbor.drivers.postgres.failure import away, failure
from taskharbor.drivers.postgres.login import Login
from taskharbor.drivers.postgres.pool import ANSWER_WITHIN, Pool
from taskharbor.drivers.postgres.psycopg_db import INSTALL, BlockingPsycopgDb, has_psycopg, is_idle
from taskharbor.drivers.postgres.psycopg_pool import PsycopgPool
from taskharbor.drivers.postgres.within import Location, enqueue_in, settle_in
from taskharbor.errors import DriverError, DriverUnavailable, HarborError, MissingExtra

PER_LOOP = 16
MOST_IDLE = 4
TIDY_WITHIN = 5.0
# What a handler may have left behind in the session.
RESET = (
    b"SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; RESET ALL; CLOSE ALL; UNLISTEN *; DISCARD TEMP; "
    b"DISCARD SEQUENCES; SELECT pg_advisory_unlock_all()"
)
ENDED = "the transaction was ended inside its block: leave COMMIT and ROLLBACK to the block"
# The states that `failure.AWAY` names by their errors.
AWAY_STATES = ("08", "53", "57", "25006")


async def location(db: Db, login: Login, channel: str) -> Location:
    """The location of the store by the names of its server; a pooler may use another name for the database."""
    ((database, _),) = await db.rows("location", login.schema)
    return Location(str(database), login.schema, channel)


class AwaitedTransaction:
    """A transaction on an asyncpg connection."""

    blocks = False

    def __init__(self, db: OwnDb, location: Location, login: Login, committed: Callable[[], object]) -> None:
        self.handle = db.connection
        self._committed = committed
        self.location = location
        self._db = db
        self._login = login
        self._transaction = db.connection.transaction()
        self._open = False

    async def begin(self) -> None:
        with self._guarded():
            await self._transaction.start()
        self._open = True

    async def db(self) -> Db:
        """The connection, if the transaction is still open."""
        if not self._open or not self.handle.is_in_transaction():
            raise DriverError(ENDED)
        return self._db

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        return await enqueue_in(self, groups, now)

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        with self._guarded():
            return await settle_in(self, transitions, now)

    async def commit(self) -> None:
        with self._guarded(asked=True):
            await self._transaction.commit()
        self._open = False
        self._committed()

    async def end(self) -> None:
        """Roll back unless it was committed."""
        if self._open:
            self._open = False
            await self._transaction.rollback()

    @contextmanager
    def _guarded(self, *, asked: bool = False) -> Generator[None]:
        """Limit the time of our own statements and translate their errors; those of a handler have no limit."""
        limit = asyncio.get_running_loop().call_later(ANSWER_WITHIN, self.handle.terminate)
        try:
            yield
        except Exception as error:
            if (ours := failure(error, self._login, asked=asked)) is error:
                raise
            raise ours from error
        finally:
            limit.cancel()


@asynccontextmanager
async def awaited(
    pool: Pool, location: Location, committed: Callable[[], object]
) -> AsyncGenerator[AwaitedTransaction]:
    """A transaction for a block. An error or a cancellation inside the block costs no connection."""
    begun, raised = False, None
    try:
        async with pool.connection() as db:
            tx = AwaitedTransaction(db, location, pool.login, committed)
            await tx.begin()
            begun = True
            try:
                yield tx
            except BaseException as error:
                raised = error
            async with asyncio.timeout(TIDY_WITHIN):  # the server stops what it is doing; nothing stays locked
                await tx.end()
                if not pool.login.pooled:
                    await db.connection.execute(RESET.decode())
    except Exception:
        if not begun:
            raise  # otherwise a failed cleanup has closed the connection
    if raised is not None:
        raise raised


class BlockingTransaction:
    """A transaction on a psycopg connection."""

    blocks = True

    def __init__(self, line: Watched, location: Location, login: Login, committed: Callable[[], object]) -> None:
        self.handle = line.connection
        self._committed = committed
        self.location = location
        self._line = line
        self._login = login
        self._transaction = self.handle.transaction()
        self._open = False

    def begin(self) -> None:
        with self._guarded(ANSWER_WITHIN):
            self._transaction.__enter__()
        self._open = True

    async def db(self) -> Db:
        """The connection, if the transaction is still open."""
        if is_idle(self.handle):
            raise DriverError(ENDED)
        return BlockingPsycopgDb(self.handle, self.location.sql)

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        return await enqueue_in(self, groups, now)

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        with self._guarded(ANSWER_WITHIN):
            return await settle_in(self, transitions, now)

    async def commit(self) -> None:
        self._open = False
        with self._guarded(ANSWER_WITHIN, asked=True):
            self._transaction.__exit__(None, None, None)
        self._committed()

    def end(self) -> None:
        """Roll back unless it was committed."""
        from psycopg import Rollback

        if self._open:
            self._open = False
            with suppress(HarborError), self._guarded(TIDY_WITHIN):  # after an error the connection is closed
                self._transaction.__exit__(Rollback, Rollback(), None)

    @contextmanager
    def _guarded(self, within: float, *, asked: bool = False) -> Generator[None]:
        """Limit the time and translate errors, as in `AwaitedTransaction`."""
        if self.handle.closed:  # for which psycopg's block raises nothing
            raise DriverUnavailable(f"{self._login.where}: the connection is closed, nothing was committed")
        with translated(self._login, asked=asked), self._line.answered(within):
            yield


class BlockingPool:
    """Lends connections of psycopg to handlers."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._pool = PsycopgPool(login.connect_blocking, MOST_IDLE)

    @contextmanager
    def transaction(self, location: Location, committed: Callable[[], object]) -> Generator[BlockingTransaction]:
        """A transaction for a block."""
        with self._line() as line:
            tx = BlockingTransaction(line, location, self._login, committed)
            tx.begin()
            try:
                yield tx
            finally:
                tx.end()

    @contextmanager
    def _line(self) -> Generator[Watched]:
        """A connection for a block; reused if it is certainly clean."""
        self._pool.check()
        if not has_psycopg():
            raise MissingExtra(
                f"a transaction in a `def` handler needs psycopg 3.2 or newer: {INSTALL}, or make the handler an "
                "`async def`"
            )
        with translated(self._login):
            line = self._pool.take()
        try:
            yield line
        finally:
            if not line.connection.closed and is_idle(line.connection) and self._is_reset(line):
                self._pool.keep(line)
            else:
                self._pool.drop(line)

    def _is_reset(self, line: Watched) -> bool:
        """Undo what the handler may have left behind; False if that fails."""
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        with suppress(Exception):
            if not self._login.pooled:
                with line.answered(TIDY_WITHIN):
                    line.connection.execute(RESET)
            line.connection.row_factory, line.connection.cursor_factory = tuple_row, Cursor
            return True
        return False

    def close(self) -> None:
        """Close all idle connections; the others are closed after use."""
        self._pool.close()


@contextmanager
def translated(login: Login, *, asked: bool = False) -> Generator[None]:
    """Translate errors of psycopg. `asked`: the server may have received the request."""
    import psycopg

    try:
        yield
    except HarborError:
        raise
    except TimeoutError as error:
        raise away(error, login, asked=asked) from error
    except psycopg.Error as error:
        is_away = isinstance(error, psycopg.OperationalError)
        if error.sqlstate is not None:
            is_away = error.sqlstate.startswith(AWAY_STATES)
        if is_away:
            raise away(error, login, asked=asked) from error
        raise DriverError(f"{login.where}: {type(error).__name__}: {error}") from error
