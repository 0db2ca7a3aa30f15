"""The SQLite driver keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from taskharbor.driver import Driver
from taskharbor.testing.kit import BlockingKit, DriverKit, Hand, Harness, NewStore, WithinKit
from taskharbor.testing.kit.machine import bounded, run_lockstep


class Peek:
    """Reads the file through a connection of its own (by apsw: a second copy of SQLite would break the locks)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def state(self, driver: Driver, id: str) -> str | None:
        return next((str(state) for (state,) in self._rows("SELECT state FROM job WHERE id = ?", id)), None)

    def count(self, driver: Driver) -> int:
        return len(self._rows("SELECT id FROM job"))

    def _rows(self, sql: str, *values: str) -> list[tuple[Any, ...]]:
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return connection.execute(sql, values).fetchall()
        finally:
            connection.close()


class Transaction:
    """One on a connection of the application's."""

    def __init__(self, handle: apsw.Connection) -> None:
        self.handle = handle
        handle.execute("BEGIN IMMEDIATE")

    async def commit(self) -> None:
        self.handle.execute("COMMIT")

    async def rollback(self) -> None:
        self.handle.execute("ROLLBACK")


class Orders:
    """An application with a table in the file of the jobs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @asynccontextmanager
    async def begin(self) -> AsyncGenerator[Hand]:
        with closing(self._opened()) as connection:
            yield Transaction(connection)

    async def write(self, handle: object, text: str) -> None:
        assert isinstance(handle, apsw.Connection)
        handle.execute("INSERT INTO orders VALUES (?)", [text])

    def rows(self) -> list[str]:
        with closing(self._opened()) as connection:
            return [str(text) for (text,) in connection.execute("SELECT * FROM orders ORDER BY rowid")]

    def _opened(self) -> apsw.Connection:
        connection = apsw.Connection(str(self._path))
        connection.set_busy_timeout(20_000)
        connection.execute("CREATE TABLE IF NOT EXISTS orders (text TEXT)")
        return connection


class Stores:
    """Stores in files of one folder."""

    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        numbers = count()

        def new() -> Harness:
            path = tmp_path / f"{next(numbers)}.db"
            return Harness(url=f"sqlite:///{path}", probe=Peek(path), application=Orders(path))

        return new


class TestSqliteBlocking(Stores, BlockingKit):
    """Enqueues on the caller's thread."""


class TestSqlite(Stores, DriverKit, WithinKit):
    """Every case of the kit but those for transactions that a driver begins: SQLite has one writer at a time."""

    histories = 40

    @pytest.mark.thorough
    def test_T1_many_random_histories_agree_with_the_model(self, new_store: NewStore) -> None:  # noqa: N802
        """T1, D14: as in every run, with more histories."""
        run_lockstep(new_store, bounded(300))
