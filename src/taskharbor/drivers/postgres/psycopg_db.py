"""Statements on an async or a blocking psycopg 3 connection.

psycopg is not a dependency of the driver: a caller with such a connection has it installed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import asyncpg

from taskharbor.drivers.postgres.db import Row

if TYPE_CHECKING:
    import psycopg


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
    """A blocking connection: these coroutines never wait."""

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


@contextmanager
def _named_alike() -> Generator[None]:
    """Raise the one error that verbs handle as the error of asyncpg that they expect."""
    from psycopg.errors import UniqueViolation

    try:
        yield
    except UniqueViolation as error:
        raise asyncpg.UniqueViolationError(str(error)) from error
