"""A user's transactions on PostgreSQL, of every kind that `tx=` takes, behind one face."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import asyncpg
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from servers.postgres import PostgresServer
from taskharbor import Harbor, Job, Step
from taskharbor.task import AsyncTask, Task


class Hand(Protocol):
    """A handle, with an open transaction or one that begins by itself."""

    handle: Any

    async def run(self, sql: str) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


class Asyncpg:
    def __init__(self, handle: Any, transaction: Any) -> None:
        self.handle, self._transaction = handle, transaction

    async def run(self, sql: str) -> None:
        await self.handle.execute(sql)

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


class Awaited:
    def __init__(self, handle: Any, statement: Callable[[str], Any]) -> None:
        self.handle, self._statement = handle, statement

    async def run(self, sql: str) -> None:
        await self.handle.execute(self._statement(sql))

    async def commit(self) -> None:
        await self.handle.commit()

    async def rollback(self) -> None:
        await self.handle.rollback()


class Blocking:
    def __init__(self, handle: Any, statement: Callable[[str], Any]) -> None:
        self.handle, self._statement = handle, statement

    async def run(self, sql: str) -> None:
        self.handle.execute(self._statement(sql))

    async def commit(self) -> None:
        self.handle.commit()

    async def rollback(self) -> None:
        self.handle.rollback()


NewHand = Callable[[PostgresServer, str], AbstractAsyncContextManager[Hand]]


def dialect(server: PostgresServer, database: str, name: str) -> str:
    return server.url(database).replace("postgresql://", f"postgresql+{name}://")


@asynccontextmanager
async def by_asyncpg(server: PostgresServer, database: str) -> AsyncGenerator[Hand]:
    connection = await asyncpg.connect(server.url(database))
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield Asyncpg(connection, transaction)
    finally:
        await connection.close()


@asynccontextmanager
async def by_asyncpg_pool(server: PostgresServer, database: str) -> AsyncGenerator[Hand]:
    async with asyncpg.create_pool(server.url(database), min_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Asyncpg(connection, transaction)


@asynccontextmanager
async def by_psycopg(server: PostgresServer, database: str) -> AsyncGenerator[Hand]:
    with psycopg.connect(server.url(database)) as connection:
        try:
            yield Blocking(connection, str.encode)
        finally:
            connection.rollback()


@asynccontextmanager
async def by_async_psycopg(server: PostgresServer, database: str) -> AsyncGenerator[Hand]:
    async with await psycopg.AsyncConnection.connect(server.url(database)) as connection:
        try:
            yield Awaited(connection, str.encode)
        finally:
            await connection.rollback()


def by_async_sqlalchemy(driver: str, kind: Any) -> NewHand:
    @asynccontextmanager
    async def new(server: PostgresServer, database: str) -> AsyncGenerator[Hand]:
        engine = create_async_engine(dialect(server, database, driver))
        try:
            async with AsyncSession(engine) if kind is AsyncSession else engine.connect() as handle:
                yield Awaited(handle, text)
        finally:
            await engine.dispose()

    return new


def by_sqlalchemy(kind: Any) -> NewHand:
    @asynccontextmanager
    async def new(server: PostgresServer, database: str) -> AsyncGenerator[Hand]:
        engine = create_engine(dialect(server, database, "psycopg"))
        try:
            with Session(engine) if kind is Session else engine.connect() as handle:
                yield Blocking(handle, text)
        finally:
            engine.dispose()

    return new


HANDS: dict[str, NewHand] = {
    "asyncpg": by_asyncpg,
    "asyncpg pool": by_asyncpg_pool,
    "psycopg": by_psycopg,
    "async psycopg": by_async_psycopg,
    "sqlalchemy Session": by_sqlalchemy(Session),
    "sqlalchemy Connection": by_sqlalchemy(object),
    "sqlalchemy AsyncSession over asyncpg": by_async_sqlalchemy("asyncpg", AsyncSession),
    "sqlalchemy AsyncConnection over asyncpg": by_async_sqlalchemy("asyncpg", AsyncConnection),
    "sqlalchemy AsyncSession over psycopg": by_async_sqlalchemy("psycopg", AsyncSession),
    "sqlalchemy AsyncConnection over psycopg": by_async_sqlalchemy("psycopg", AsyncConnection),
}


async def enqueue(hand: Hand, task: Task[..., Any] | AsyncTask[..., Any], *args: Any, **options: Any) -> Job[Any]:
    """Enqueue within the hand's transaction, by the way that fits it."""
    bound = task.using(tx=hand.handle, **options)
    return bound.enqueue(*args) if isinstance(hand, Blocking) else await bound.aenqueue(*args)


async def enqueue_many(hand: Hand, harbor: Harbor, steps: list[Step[Any]]) -> list[Job[Any]]:
    """The same for many."""
    return harbor.enqueue_many(steps) if isinstance(hand, Blocking) else await harbor.aenqueue_many(steps)
