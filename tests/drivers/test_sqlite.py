"""The SQLite driver keeps the contract."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from taskharbor.driver import Driver
from taskharbor.testing.kit import DriverKit, Harness, NewStore


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


class TestSqlite(DriverKit):
    """Every case of the kit."""

    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        numbers = count()

        def new() -> Harness:
            path = tmp_path / f"{next(numbers)}.db"
            return Harness(url=f"sqlite:///{path}", probe=Peek(path))

        return new
