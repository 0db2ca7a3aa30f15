"""Statements on an async or a blocking psycopg 3 connection.

psycopg is not a dependency of the driver: a caller with such a connection has it installed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import asyncpg

from taskharbor.drivers.postgres.db import Row
from taskharbor.drivers.postgres.direct import LibpqConnection, Value

if TYPE_CHECKING:
    import psycopg


# To begin, to commit, to roll back. The default of the database may be another isolation.
WHOLE = b"BEGIN ISOLATION LEVEL READ COMMITTED", b"COMMIT", b"ROLLBACK"
INNER = b"SAVEPOINT taskharbor", b"RELEASE taskharbor", b"ROLLBACK TO taskharbor; RELEASE taskharbor"
# What most calls run: single values in, and rows of which only the number matters.
OFTEN = ("enqueue_one",)
INSTALL = 'pip install "taskharbor[psycopg]"'


def has_psycopg() -> bool:
    """Whether psycopg 3.2 or newer is installed."""
    try:
        return hasattr(import_module("psycopg"), "RawCursor")
    except ImportError:
        return False


class AsyncPsycopgDb:
    """An async connection."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], sql: Mapping[str, str]) -> None:
        self._connection = connection
        self._sql = sql

    async def rows(self, name: str, *values: object) -> Sequence[Row]:
        from psycopg import AsyncRawCursor
        from psycopg.rows import tuple_row

        async with AsyncRawCursor(self._connection, row_factory=tuple_row) as cursor:
            with _named_alike():
                await cursor.execute(self._sql[name].encode(), values)
            return await cursor.fetchall() if cursor.description else []

    def transaction(self) -> AbstractAsyncContextManager[object]:
        return self._connection.transaction()


class BlockingPsycopgDb:
    """A blocking connection of the caller: these coroutines never wait."""

    def __init__(self, connection: psycopg.Connection[Any], sql: Mapping[str, str]) -> None:
        self._connection = connection
        self._sql = sql

    async def rows(self, name: str, *values: object) -> Sequence[Row]:
        from psycopg import RawCursor
        from psycopg.rows import tuple_row

        with RawCursor(self._connection, row_factory=tuple_row) as cursor:
            with _named_alike():
                cursor.execute(self._sql[name].encode(), values)
            return cursor.fetchall() if cursor.description else []

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        with self._connection.transaction():
            yield


class OwnPsycopgDb(BlockingPsycopgDb):
    """A blocking connection of the driver, whose errors are those of asyncpg, so that verbs and callers know them."""

    def __init__(self, connection: psycopg.Connection[Any], sql: Mapping[str, str]) -> None:
        super().__init__(connection, sql)
        from psycopg import Error, RawCursor
        from psycopg.rows import tuple_row

        self._error = Error
        self._cursor = RawCursor(connection, row_factory=tuple_row)  # one for all statements
        self._texts = {name: text.encode() for name, text in sql.items()}
        self._direct = LibpqConnection(connection)
        is_direct = connection.prepare_threshold is not None and connection.info.encoding == "utf-8"
        self._often = OFTEN if is_direct else ()

    async def rows(self, name: str, *values: object) -> Sequence[Row]:
        if name in self._often:
            return [()] * self._direct.count(name, self._texts[name], cast("Sequence[Value]", values))
        cursor = self._cursor
        try:
            cursor.execute(self._texts[name], values)
            result = cursor.pgresult  # not the `description`, which is built for every call
            return cursor.fetchall() if result is not None and result.nfields else []
        except self._error as error:
            raise _as_asyncpg(error) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        """By our own statements: psycopg's block would log that it cannot roll back a connection that is to be closed,
        as it is after an interrupt, and its cursor would forget all prepared statements after a ROLLBACK."""
        begin, commit, undo = WHOLE if self.is_alone else INNER
        self._direct.execute(begin)
        try:
            yield
        except Exception:
            if not self._connection.closed:
                self._direct.execute(undo)
            raise
        self._direct.execute(commit)

    @property
    def is_alone(self) -> bool:
        """Whether a statement commits by itself: there is no enclosing transaction."""
        return is_idle(self._connection)


def is_idle(connection: psycopg.Connection[Any]) -> bool:
    """Whether no transaction is open, and that is certain."""
    from psycopg.pq import TransactionStatus

    return connection.info.transaction_status == TransactionStatus.IDLE


def _as_asyncpg(error: psycopg.Error) -> Exception:
    """The server's error as one of asyncpg, by its SQLSTATE; without one, the connection broke."""
    if error.sqlstate is None:
        return ConnectionError(str(error))
    return asyncpg.PostgresError.new({"C": error.sqlstate, "M": str(error)})


@contextmanager
def _named_alike() -> Generator[None]:
    """Raise the one error that verbs handle as the error of asyncpg that they expect."""
    from psycopg.errors import UniqueViolation

    try:
        yield
    except UniqueViolation as error:
        raise asyncpg.UniqueViolationError(str(error)) from error
