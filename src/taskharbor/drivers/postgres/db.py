"""Connections that run statements: one of the driver, or one on which the caller has a transaction.

The verbs are written against `Db`, so that they work the same on both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

import asyncpg

from taskharbor.drivers.postgres.sql import statements

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

UNDONE_WITHIN = 5.0
# A row, by position.
Row = Sequence[Any]


class Db(Protocol):
    """Runs statements by their names, in an enclosing transaction if there is one."""

    async def rows(self, name: str, *values: object) -> Sequence[Row]:
        """Run the statement of that name and return its rows."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """Run the block all or none; inside a transaction, in a savepoint."""
        ...


class OwnDb:
    """A connection of the driver."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self.connection = connection
        self._schema = schema
        self._sql: Mapping[str, str] = statements(schema)

    async def rows(self, name: str, *values: object) -> Sequence[Row]:
        return cast("list[Row]", await self.connection.fetch(self._sql[name], *values))

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        """After a cancellation nothing is rolled back, which could wait for ever: the connection is closed."""
        is_inner = self.connection.is_in_transaction()
        # The default of the database may be another isolation.
        transaction = self.connection.transaction(isolation=None if is_inner else "read_committed")
        await transaction.start()
        try:
            yield
        except Exception:
            if not self.connection.is_closed():
                await transaction.rollback()
            raise
        await transaction.commit()

    @property
    def is_alone(self) -> bool:
        """Whether a statement commits by itself: there is no enclosing transaction."""
        return not self.connection.is_in_transaction()

    async def copy(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Write many rows of a table at once."""
        await self.connection.copy_records_to_table(table, schema_name=self._schema, columns=columns, records=rows)


class JoinedDb(OwnDb):
    """A connection of the caller. It stays open, so a cancelled block is rolled back. If that fails, the connection is
    closed: the server would answer the commit of a failed transaction without an error, and write nothing."""

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            yield
        except BaseException:
            try:
                async with asyncio.timeout(UNDONE_WITHIN):
                    await asyncio.shield(transaction.rollback())
            except BaseException:
                self.connection.terminate()
            raise
        await transaction.commit()


async def value(db: Db, name: str, *values: object) -> Any:
    """The first column of the first row, None if there is none."""
    found = await db.rows(name, *values)
    return found[0][0] if found else None
