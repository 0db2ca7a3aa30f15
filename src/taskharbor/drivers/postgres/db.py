"""What a statement runs on: a connection of our own, or one that the caller has a transaction on.

The verbs are written against `Db`, so that they work the same in both.
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
        """What happens inside happens whole or not at all; inside of a transaction, a savepoint."""
        ...


class OwnDb:
    """A connection of the driver's own."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self.connection = connection
        self._schema = schema
        self._sql: Mapping[str, str] = statements(schema)

    async def rows(self, name: str, *values: object) -> Sequence[Row]:
        return cast("list[Row]", await self.connection.fetch(self._sql[name], *values))

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        """A call that is cut short rolls nothing back: its connection is thrown away, and a silent server would keep it
        waiting for ever."""
        transaction = self.connection.transaction(
            isolation=None
            if self.connection.is_in_transaction()
            else "read_committed"  # whatever the database's own is
        )
        await transaction.start()
        try:
            yield
        except Exception:
            if not self.connection.is_closed():
                await transaction.rollback()
            raise
        await transaction.commit()

    async def copy(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Write many rows of a table at once."""
        await self.connection.copy_records_to_table(table, schema_name=self._schema, columns=columns, records=rows)


class JoinedDb(OwnDb):
    """A connection of the caller's. It lives on, so what is cut short is undone; if that fails the connection ends, for
    a server answers the commit of a transaction that went wrong as if all were well, and writes nothing."""

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
