"""Statements by libpq itself: every value arrives whole, errors are the server's, and no rollback costs a statement."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum, StrEnum
from typing import Any

import asyncpg
import psycopg
import pytest

from servers.postgres import PostgresServer
from taskharbor.driver import at_once
from taskharbor.drivers.postgres.direct import LibpqConnection
from taskharbor.drivers.postgres.psycopg_db import OwnPsycopgDb

PUT = b"INSERT INTO put VALUES ($1::text, $2::bytea, $3::integer, $4::timestamptz) RETURNING 1"


class Name(StrEnum):
    MAIL = "mail"


class Level(IntEnum):
    HIGH = 7


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@contextmanager
def connected(postgres: PostgresServer, database: str) -> Generator[psycopg.Connection[Any]]:
    """A connection with a table of its own."""
    with psycopg.connect(postgres.socket_url(database), autocommit=True) as connection:
        connection.execute("CREATE TEMP TABLE put (name text, raw bytea, number int, at timestamptz)")
        yield connection


@pytest.fixture
def connection(postgres: PostgresServer, database: str) -> Generator[psycopg.Connection[Any]]:
    with connected(postgres, database) as connection:
        yield connection


@pytest.mark.parametrize(
    "values",
    [
        ("ä\N{ANCHOR}'\\", bytes(range(256)), -(2**31), datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)),
        (Name.MAIL, b"", Level.HIGH, datetime(1999, 12, 31, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))),
        (None, None, None, None),
        ("x" * 3_000_000, b"\0" * 9_000_000, 0, datetime.max.replace(tzinfo=UTC)),
    ],
    ids=["plain", "subclasses", "nothing", "more than a socket holds"],
)
def test_values_arrive_as_they_are(connection: psycopg.Connection[Any], values: tuple[Any, ...]) -> None:
    """R2: of every kind that a new job has, also those of a subclass."""
    direct = LibpqConnection(connection)
    assert [direct.count("put", PUT, values), direct.count("put", PUT, values)] == [1, 1]
    stored = connection.execute("SELECT * FROM put", prepare=False).fetchall()
    assert stored == [values, values]


def test_rows_are_counted(connection: psycopg.Connection[Any]) -> None:
    """I1: none means that nothing was stored, because the key exists."""
    direct = LibpqConnection(connection)
    for number in range(3):
        assert direct.count("put", PUT, ("a", b"", number, None)) == 1
    larger = b"SELECT 1 FROM put WHERE number > $1::integer"
    assert [direct.count("larger", larger, (number,)) for number in range(3)] == [2, 1, 0]


def test_a_nul_is_refused_not_cut_off(connection: psycopg.Connection[Any]) -> None:
    """Bad input changes nothing, and the connection can be used again."""
    direct = LibpqConnection(connection)
    with pytest.raises(asyncpg.CharacterNotInRepertoireError):
        direct.count("put", PUT, ("a\0b", b"", 1, None))
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert connection.execute("SELECT count(*) FROM put").fetchone() == (0,)
    assert direct.count("put", PUT, ("ab", b"", 1, None)) == 1


def test_the_first_error_of_several_statements_is_raised(connection: psycopg.Connection[Any]) -> None:
    """Such as those that undo and release a savepoint."""
    direct = LibpqConnection(connection)
    with pytest.raises(asyncpg.NoActiveSQLTransactionError):
        direct.execute(b"SELECT 1; ROLLBACK TO nothing; SELECT 2")
    direct.execute(b"SELECT 1; SELECT 2")


def test_a_session_that_ends_is_a_lost_connection(postgres: PostgresServer, database: str) -> None:
    """X2: never an answer."""
    with psycopg.connect(postgres.socket_url(database), autocommit=True) as connection:
        direct = LibpqConnection(connection)
        with pytest.raises((asyncpg.AdminShutdownError, ConnectionError)):
            direct.execute(b"SELECT pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(ConnectionError):
            direct.execute(b"SELECT 1")
        assert connection.closed


def test_a_rollback_does_not_cost_the_prepared_statement(connection: psycopg.Connection[Any]) -> None:
    """P1: psycopg's cursors deallocate everything after a ROLLBACK that they see."""
    db = OwnPsycopgDb(connection, {"enqueue_one": PUT.decode(), "zero": "SELECT 1 / $1::integer"})

    async def twice() -> None:
        await db.rows("enqueue_one", "a", b"", 1, None)
        with pytest.raises(asyncpg.DivisionByZeroError):
            async with db.transaction():
                await db.rows("zero", 0)
        for _ in range(10):  # until its cursor prepares statements as well
            assert await db.rows("zero", 1) == [(1,)]
        await db.rows("enqueue_one", "a", b"", 1, None)

    at_once(twice())
    assert connection.execute("SELECT count(*) FROM put").fetchone() == (2,)


def test_the_wait_ends_when_the_connection_is_cut(connection: psycopg.Connection[Any]) -> None:
    """X2: by the watch of the deadline, in another thread."""
    duplicate = socket.socket(fileno=os.dup(connection.fileno()))
    cutting = threading.Timer(0.0, duplicate.shutdown, [socket.SHUT_RDWR])
    cutting.start()
    with pytest.raises(ConnectionError):
        LibpqConnection(connection).execute(b"SELECT pg_sleep(600)")
    cutting.join()
    duplicate.close()
