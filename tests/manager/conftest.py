"""A store on each engine, empty for every test."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from servers.postgres import PostgresServer
from taskharbor.driver import Driver
from taskharbor.drivers import from_url
from taskharbor.drivers.memory import MemoryDriver

from .stage import World

TABLES = ("job", "live", "ended", "keys", "edge", "paused", "schedule", "worker", "tally")


class Schema:
    """A schema that is emptied after each test: that is far quicker than making one."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.database = server.new_database()
        self.url = server.url(self.database, migrate="true")

    def clear(self) -> None:
        """Take everything out."""
        sql = ";".join(f"DELETE FROM taskharbor.{table}" for table in TABLES)
        self._server.execute(sql, database=self.database)


@pytest.fixture(scope="package")
def schema(postgres: PostgresServer) -> Generator[Schema]:
    """Of the newest server."""
    made = Schema(postgres)
    yield made
    postgres.drop_database(made.database)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def w(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[World]:
    """The world on each engine."""
    if request.param == "memory":
        memory = MemoryDriver()

        async def same() -> Driver:
            return memory

        yield World(same)
    elif request.param == "sqlite":
        yield World(lambda: from_url(f"sqlite:///{tmp_path}/tasks.db?synchronous=normal"))
    else:
        schema: Schema = request.getfixturevalue("schema")
        yield World(lambda: from_url(schema.url))
        schema.clear()
