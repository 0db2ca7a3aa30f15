"""A real PostgreSQL for mutants of its statements: one store on the server of the run, emptied before each catcher.

Catchers are the cases of the kit and the races of `tests/drivers/postgres`. A statement that no longer parses would
fail everywhere and prove nothing: the server is asked first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import asyncpg
import psycopg
import pytest

from drivers.postgres import stage, test_bookmarks, test_keys, test_races, test_statements
from drivers.postgres.test_kit import TABLES
from servers.postgres import PostgresServer
from taskharbor.drivers.postgres.db import OwnDb, Row

from .catching import COMPLAINTS
from .kit import CASES, Given, in_file, parameters
from .mutant import Mutant, StaleMutant

FIXTURES = {"play", "url", "monkeypatch"}


class Race(NamedTuple):
    """A test of the driver that needs nothing but a store."""

    name: str
    function: Callable[..., None]
    given: Given

    def play(self, url: str) -> None:
        """Raise what the test complains about."""
        with pytest.MonkeyPatch.context() as patch:
            fixtures = {"play": stage.player(url), "url": url, "monkeypatch": patch}
            wanted = inspect.signature(self.function).parameters
            self.function(**{name: it for name, it in fixtures.items() if name in wanted}, **self.given)


def _races(*modules: ModuleType) -> Iterator[Race]:
    for module in modules:
        for name, function in vars(module).items():
            if not name.startswith("test_"):
                continue
            for label, given in parameters(function):
                if inspect.signature(function).parameters.keys() - given.keys() <= FIXTURES:
                    yield Race(f"{name}[{label}]" if label else name, function, given)


RACES = {race.name: race for race in _races(test_races, test_keys, test_bookmarks, test_statements)}
CATCHERS = CASES.keys() | RACES.keys()


class Ground:
    """A store to play on."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server  # referred to, or it would end
        self._url = stage.new_store(server)
        self._connection: psycopg.Connection[Any] = psycopg.connect(self._url.partition("?")[0], autocommit=True)
        self._ran: dict[str, frozenset[str]] = {}

    def close(self) -> None:
        """Give up the connection."""
        self._connection.close()

    def ask(self, catcher: str) -> None:
        """Let a case or a race complain about the driver as it is now."""
        self._connection.execute(";".join(f"DELETE FROM {stage.SCHEMA}.{table}" for table in TABLES).encode())
        if catcher in RACES:
            RACES[catcher].play(self._url)
        else:
            in_file(CASES[catcher], self._url)

    def statements_of(self, catcher: str) -> frozenset[str]:
        """The statements that a catcher runs on the healthy driver, about which it does not complain."""
        if catcher not in self._ran:
            ran: set[str] = set()
            plain = OwnDb.rows

            async def rows(db: OwnDb, name: str, *values: object) -> Sequence[Row]:
                ran.add(name)
                return await plain(db, name, *values)

            with mock.patch.object(OwnDb, "rows", rows):
                self.ask(catcher)
            self._ran[catcher] = frozenset(ran)
        return self._ran[catcher]

    def complaint_about(self, mutant: Mutant, catcher: str) -> str | None:
        """The complaint of a catcher; None if it has not noticed the mutant."""
        with mutant.applied():
            self._check_parses(mutant)
            try:
                self.ask(catcher)
            except (*COMPLAINTS, asyncpg.PostgresError, asyncpg.InterfaceError) as complaint:
                return f"{type(complaint).__name__}: {complaint}".strip(": ")
        return None

    def _check_parses(self, mutant: Mutant) -> None:
        for table, name in mutant.places:
            assert isinstance(table, dict)
            try:
                self._connection.execute(f"PREPARE broken AS {table[name]}".encode())
            except psycopg.Error as error:
                raise StaleMutant(f"{mutant!r} no longer parses") from error
            self._connection.execute("DEALLOCATE broken")
