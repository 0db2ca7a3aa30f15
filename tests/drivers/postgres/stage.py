"""A stage for races on PostgreSQL: one stops half-way, with its transaction open, and the other has to come out right.

Nothing waits for time to pass. A step is known to have met a lock when the server says whom it waits for, and what has
to happen between two statements of a step is done there, by a `Db` that knows where to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import asyncpg
import pytest

from servers.postgres import PostgresServer
from taskharbor.core.job import JobRecord
from taskharbor.core.states import State
from taskharbor.core.transition import Ack, Fail, PutBack
from taskharbor.drivers import from_url
from taskharbor.drivers.postgres.db import Db, OwnDb, Row
from taskharbor.drivers.postgres.driver import PostgresDriver
from taskharbor.drivers.postgres.failure import Moved
from taskharbor.testing.kit.jobs import KEEP, T0, token_of

R = TypeVar("R")
SCHEMA = "races"
TABLES = ("job", "live", "ended", "keys", "edge", "paused", "schedule")
LEASE = timedelta(seconds=30)


class Stage:
    """A store, two connections beside it whose transactions a test holds open, and a view of which waits for which."""

    def __init__(self, driver: PostgresDriver, other: OwnDb, third: OwnDb, eye: OwnDb) -> None:
        self.driver, self.other, self.third = driver, other, third
        self._eye = eye.connection

    async def meets(self, step: asyncio.Future[Any], holder: OwnDb | None = None) -> None:
        """Return when a statement waits for the transaction of `holder`, or `step` is over without having met it."""
        pid = (holder or self.other).connection.get_server_pid()
        while not step.done():
            if await self._eye.fetchval(WAITS, pid):
                return

    async def claim(self, *ids: str) -> list[JobRecord]:
        """Claim these, in this order."""
        jobs = await self.driver.reserve(["q"], T0, LEASE, 99, "w", ids=ids)
        assert [it.id for it in jobs] == list(ids)
        return jobs

    async def state(self, id: str) -> State | None:
        [found] = await self.driver.get([id])
        return None if found is None else found.state

    async def keys(self) -> list[str]:
        """The keys that are stored, of any owner."""
        return [row[0] for row in await self._eye.fetch(f"SELECT key FROM {SCHEMA}.keys ORDER BY key")]

    async def take(self, id: str) -> bool:
        """Have `other` hold a live job, unless it is held already."""
        try:
            async with self.other.transaction():
                return await self.other.connection.fetchval(TAKE, id) is not None
        except asyncpg.LockNotAvailableError:
            return False


WAITS = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND $1 = ANY (pg_blocking_pids(pid)))
"""
TAKE = f"SELECT seq FROM {SCHEMA}.live JOIN {SCHEMA}.job USING (seq) WHERE id = $1 FOR UPDATE OF live NOWAIT"


class Between:
    """A connection on which something happens right after the first statement of a name; notes what was asked."""

    def __init__(self, db: Db, after: str | None = None, act: Callable[[], Awaitable[object]] | None = None) -> None:
        self._db, self._after, self._act = db, after, act
        self.asked: list[str] = []

    async def rows(self, name: str, *values: object) -> Sequence[Row]:
        found = await self._db.rows(name, *values)
        self.asked.append(name)
        if self._act is not None and name == self._after:
            act, self._act = self._act, None
            await act()
        return found

    def transaction(self) -> AbstractAsyncContextManager[object]:
        return self._db.transaction()


def new_store(server: PostgresServer) -> str:
    """The address of a new store, in a database of its own."""
    url = server.url(server.new_database(), namespace=SCHEMA)

    async def make() -> None:
        await (await from_url(f"{url}&migrate=true")).close()

    asyncio.run(make())
    return url


@pytest.fixture(scope="module")
def url(postgres: PostgresServer) -> str:
    """One store for all tests of a module: making one takes longer than a test."""
    return new_store(postgres)


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[OwnDb]:
    connection = await asyncpg.connect(url.partition("?")[0])
    try:
        yield OwnDb(connection, SCHEMA)
    finally:
        await connection.close()


Act = Callable[[Stage], Coroutine[Any, Any, None]]
Play = Callable[[Act], None]


def player(url: str) -> Play:
    """Plays scenes on a store, each on an empty one."""

    async def scene(act: Act) -> None:
        async with asyncio.timeout(60), connected(url) as other, connected(url) as third, connected(url) as eye:
            await eye.connection.execute(";".join(f"DELETE FROM {SCHEMA}.{table}" for table in TABLES))
            driver = await from_url(url)
            assert isinstance(driver, PostgresDriver)
            try:
                await act(Stage(driver, other, third, eye))
            finally:
                await driver.close()

    return lambda act: asyncio.run(scene(act))


@pytest.fixture
def play(url: str) -> Play:
    """Plays a scene on an empty store."""
    return player(url)


async def whole(db: OwnDb, step: Awaitable[R]) -> R:
    """A step in a transaction of its own, as the driver takes it."""
    async with db.transaction():
        return await step


async def repeated(db: OwnDb, step: Callable[[], Awaitable[R]]) -> R:
    """A step in a transaction of its own that begins again after a job moved, as the driver's does."""
    while True:
        with suppress(Moved):
            return await whole(db, step())


def ack(held: JobRecord, **options: Any) -> Ack:
    given: dict[str, Any] = {"id": held.id, "token": token_of(held), "keep_until": KEEP}
    return Ack(**given | options)


def fail(held: JobRecord) -> Fail:
    return Fail(id=held.id, token=token_of(held), keep_until=KEEP, reason="x")


def put_back(held: JobRecord) -> PutBack:
    return PutBack(id=held.id, token=token_of(held), keep_until=KEEP, run_at=T0)
