"""The PostgreSQL driver keeps the contract, on the oldest and the newest server there is a wheel of."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, Self

import asyncpg
import psycopg
import pytest

from servers.postgres import PostgresServer
from taskharbor.driver import Driver, Inspect, capability
from taskharbor.errors import HarborError
from taskharbor.testing.kit import BlockingKit, DriverKit, Harness, NewStore, OwnTransactionKit, WithinKit

from .hands import HANDS, Hand


class Database:
    """A database with a connection that stays open: to make one takes longer than most statements do."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server, self.name = server, name
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None

    def execute(self, sql: str, values: Sequence[str] = ()) -> list[tuple[object, ...]]:
        """Run a statement, outside of any transaction; its rows."""
        if self._connection is None:
            self._connection = psycopg.connect(self.server.socket_url(self.name), autocommit=True)
        cursor = self._connection.execute(sql.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class Peek:
    """Reads the schema through a connection of its own."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database, self._schema = database, schema

    def state(self, driver: Driver, id: str) -> str | None:
        rows = self._rows("SELECT state FROM {}.record WHERE id = %s", id)
        return next((str(row[0]) for row in rows), None)

    def count(self, driver: Driver) -> int:
        return int(str(self._rows("SELECT count(*) FROM {}.job")[0][0]))

    def _rows(self, sql: str, *values: str) -> list[tuple[object, ...]]:
        return self._database.execute(sql.format(self._schema), values)


class Orders:
    """An application with a table in the same database, which all its stores share; `kind` is its library."""

    def __init__(self, database: Database, store: str, kind: str = "asyncpg") -> None:
        self._database, self._store, self._kind = database, store, kind

    def by(self, kind: str) -> Orders:
        """The same, written with another library."""
        return Orders(self._database, self._store, kind)

    def begin(self) -> AbstractAsyncContextManager[Hand]:
        return HANDS[self._kind](self._database.server, self._database.name)

    async def write(self, handle: object, text: str) -> None:
        if isinstance(handle, asyncpg.Connection):
            await handle.execute("INSERT INTO orders VALUES ($1, $2)", self._store, text)
        else:
            assert isinstance(handle, psycopg.Connection)
            handle.execute("INSERT INTO orders VALUES (%s, %s)", [self._store, text])

    def rows(self) -> list[str]:
        sql = "SELECT text FROM orders WHERE store = %s ORDER BY number"
        return [str(text) for (text,) in self._database.execute(sql, [self._store])]


class Kept:
    """Drivers that stay open from case to case, on one loop: a new connection prepares every statement again."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self._free: dict[str | None, list[Driver]] = defaultdict(list)

    async def open(self, harness: Harness) -> Driver | None:
        """A driver that was kept, if there is one for this store and loop."""
        free = self._free[harness.url]
        return free.pop() if free and asyncio.get_running_loop() is self.runner.get_loop() else None

    async def keep(self, harness: Harness, driver: Driver) -> None:
        """Keep a driver that still works."""
        try:
            await capability(driver, Inspect).get(["none"])
        except HarborError:
            await driver.close()
        else:
            self._free[harness.url].append(driver)

    def close(self) -> None:
        for driver in chain(*self._free.values()):
            self.runner.run(driver.close())
        self.runner.close()


@dataclass(frozen=True, kw_only=True)
class KeepingHarness(Harness):
    """Opens the drivers that earlier cases left."""

    kept: Kept

    async def opened(self) -> Driver:
        return await self.kept.open(self) or await super().opened()

    async def left(self, driver: Driver) -> None:
        await self.kept.keep(self, driver)

    def run(self, case: Coroutine[Any, Any, None]) -> None:
        self.kept.runner.run(case)


class Schemas:
    """Schemas that are used again: emptying one is far quicker than making one."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self._database = Database(server, database)
        self._free: list[str] = []
        self._used: list[str] = []
        self._numbers = count()
        self._kept = Kept()
        self._database.execute("CREATE TABLE orders (store text, text text, number serial)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()
        self._database.close()

    def new(self) -> Harness:
        """An empty store."""
        if len(self._used) > AT_ONCE:  # a machine opens one store after another
            self._clear([self._used.pop(0)])
        schema = self._free.pop() if self._free else f"kit_{next(self._numbers)}"
        self._used.append(schema)
        database = self._database
        url = database.server.url(database.name, namespace=schema, migrate="true")
        probe, application = Peek(database, schema), Orders(database, schema)
        return KeepingHarness(url=url, probe=probe, application=application, kept=self._kept)

    def give_back(self) -> None:
        """The test is over."""
        self._clear(self._used)
        self._used = []

    def _clear(self, schemas: list[str]) -> None:
        for schema in schemas:
            sql = ";".join(f"DELETE FROM {schema}.{table}" for table in TABLES)
            sql += f"; DELETE FROM orders WHERE store = '{schema}'"
            with suppress(Exception):  # a test need not have opened it
                self._database.execute(sql)
                self._free.append(schema)


AT_ONCE = 4
TABLES = ("job", "live", "ended", "keys", "edge", "paused", "schedule", "worker", "tally")


@pytest.fixture(scope="module")
def schemas(postgres: PostgresServer) -> Generator[Schemas]:
    """Stores on the newest server."""
    name = postgres.new_database()
    with Schemas(postgres, name) as schemas:
        yield schemas
    postgres.drop_database(name)


@pytest.fixture(scope="module")
def schemas16(postgres16: PostgresServer) -> Generator[Schemas]:
    """Stores on the older server."""
    name = postgres16.new_database()
    with Schemas(postgres16, name) as schemas:
        yield schemas
    postgres16.drop_database(name)


class TestPostgres18(DriverKit, OwnTransactionKit):
    """Every case of the kit. A step of a history is some thirty round trips, so they are fewer than elsewhere."""

    histories = 20

    @pytest.fixture
    def new_store(self, schemas: Schemas) -> Generator[NewStore]:
        yield schemas.new
        schemas.give_back()


class TestPostgresBlocking(BlockingKit):
    """Enqueues on the caller's thread, by psycopg."""

    @pytest.fixture
    def new_store(self, schemas: Schemas) -> Generator[NewStore]:
        yield schemas.new
        schemas.give_back()


@pytest.mark.thorough
class TestPostgres16(DriverKit, OwnTransactionKit):
    """Every case of the kit, on the older server. `test_roles.py` has most of them in every run, with fewer rights."""

    histories = 10

    @pytest.fixture
    def new_store(self, schemas16: Schemas) -> Generator[NewStore]:
        yield schemas16.new
        schemas16.give_back()


class TestBlockingApplication(WithinKit):
    """The same cases in a transaction of psycopg's, which blocks. `test_within.py` has all other handles."""

    @pytest.fixture
    def harness(self, schemas: Schemas) -> Generator[Harness]:
        harness = schemas.new()
        assert isinstance(harness.application, Orders)
        yield replace(harness, application=harness.application.by("psycopg"))
        schemas.give_back()
