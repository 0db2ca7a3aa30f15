"""A store on each engine, empty for every test."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from drivers.redis import indexes
from servers.nats import NatsServer
from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer
from taskharbor.driver import Driver
from taskharbor.drivers import from_url
from taskharbor.drivers.memory import MemoryDriver

from .stage import World

TABLES = ("job", "live", "ended", "keys", "edge", "paused", "schedule", "worker", "tally")


class Schema:
    """A schema that is emptied after each test: that is far quicker than making one.

    Its drivers stay open from test to test, on one loop: a new connection prepares every statement again.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.database = server.new_database()
        self._url = server.url(self.database, migrate="true")
        self._runner = asyncio.Runner()
        self._free: list[Driver] = []

    def world(self) -> World:
        """A world on this store."""
        return World(self._open, self._leave, self._runner.run)

    async def _open(self) -> Driver:
        return self._free.pop() if self._free else await from_url(self._url)

    async def _leave(self, driver: Driver) -> None:
        self._free.append(driver)

    def close(self) -> None:
        """Close the drivers and drop the database."""
        for driver in self._free:
            self._runner.run(driver.close())
        self._runner.close()
        self._server.drop_database(self.database)

    def clear(self) -> None:
        """Take everything out."""
        sql = ";".join(f"DELETE FROM taskharbor.{table}" for table in TABLES)
        self._server.execute(sql, database=self.database)


@pytest.fixture(scope="package")
def schema(postgres: PostgresServer) -> Generator[Schema]:
    """Of the newest server."""
    made = Schema(postgres)
    yield made
    made.close()


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "nats"])
def w(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[World]:
    """The world on each engine."""
    if request.param == "memory":
        memory = MemoryDriver()

        async def same() -> Driver:
            return memory

        yield World(same)
    elif request.param == "sqlite":
        yield World(lambda: from_url(f"sqlite:///{tmp_path}/tasks.db?synchronous=normal"))
    elif request.param == "redis":
        valkey: ValkeyServer = request.getfixturevalue("valkey")
        namespace = valkey.new_namespace()
        yield World(lambda: from_url(valkey.url(namespace=namespace)))
        indexes.check(valkey, namespace)
        valkey.drop_namespace(namespace)
    elif request.param == "nats":
        nats: NatsServer = request.getfixturevalue("nats")
        namespace = nats.new_namespace()
        yield World(lambda: from_url(nats.url(namespace=namespace)))
        nats.drop_namespace(namespace)
    else:
        schema: Schema = request.getfixturevalue("schema")
        yield schema.world()
        schema.clear()
