"""A few connections for each event loop; errors of PostgreSQL are translated here.

asyncpg binds a connection to its loop, and workers, keepers and blocking callers have loops of their own. A connection
whose state is unknown (a network error, a cancelled call) is closed and never used again (X3). After a fork the
connections belong to the parent: a child never touches them, even when it ends, and makes its own (P1).
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from types import TracebackType
from weakref import WeakKeyDictionary

from taskharbor.drivers.postgres.db import Connection, OwnDb
from taskharbor.drivers.postgres.failure import failure, is_harmless
from taskharbor.drivers.postgres.login import Login
from taskharbor.errors import DriverClosed

PER_LOOP = 4
# Longer than any caller waits: a connection without an answer for so long is closed. Connections lent to handlers are
# exempt.
ANSWER_WITHIN = 60.0


class LoopPool:
    """The connections of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: int) -> None:
        self.idle: list[OwnDb] = []
        # Separate slots: calls of a handler never block its worker.
        self.callers, self.workers = asyncio.Semaphore(slots), asyncio.Semaphore(slots)
        self.open: set[Connection] = set()
        self._loop = loop
        self._asked: dict[OwnDb, float] = {}
        self._watch: asyncio.TimerHandle | None = None

    def take(self) -> OwnDb | None:
        """Return a free connection, the most recently used first."""
        while self.idle:
            db = self.idle.pop()
            if not db.connection.is_closed():
                return db
            self.open.discard(db.connection)
        return None

    def drop(self, connection: Connection) -> None:
        """Close one."""
        self.open.discard(connection)
        connection.terminate()

    def clear(self) -> None:
        """Close all."""
        self.idle.clear()
        if self._watch is not None:
            self._watch.cancel()
        while self.open:
            self.open.pop().terminate()

    def asks(self, db: OwnDb) -> None:
        """Start to wait for an answer. One timer serves all connections: a timer for each call would cost more."""
        self._asked[db] = self._loop.time()
        if self._watch is None:
            self._watch = self._loop.call_later(ANSWER_WITHIN, self._look)

    def answered(self, db: OwnDb) -> None:
        """Stop waiting for an answer."""
        self._asked.pop(db, None)

    def _look(self) -> None:
        self._watch = None
        for db, since in list(self._asked.items()):
            if since + ANSWER_WITHIN <= self._loop.time():
                self.answered(db)
                db.connection.terminate()
        if self._asked:
            self._watch = self._loop.call_at(min(self._asked.values()) + ANSWER_WITHIN, self._look)


class Pool:
    """Hands out connections."""

    def __init__(self, login: Login, per_loop: int = PER_LOOP, *, lends: bool = False) -> None:
        self.login = login
        self.lends = lends
        self._per_loop = per_loop
        self._loop_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPool] = WeakKeyDictionary()
        self._tenants: dict[int, AsyncGenerator[None]] = {}
        self._lock = threading.Lock()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the pool was closed."""
        return self._closed

    def check(self) -> None:
        """Raise unless the pool can be used."""
        if self._closed:
            raise DriverClosed("this postgres driver was closed")

    def connection(self, *, works: bool = False) -> Checkout:
        """A connection for one step, by `async with`. Workers (`works`) and callers have separate slots."""
        return Checkout(self, works)

    async def connect(self, loop_pool: LoopPool) -> OwnDb:
        """Open a new connection."""
        connection = await self.login.connect(lent=self.lends)
        loop_pool.open.add(connection)
        return OwnDb(connection, self.login.schema)

    async def loop_pool(self) -> LoopPool:
        """The connections of the running loop."""
        loop = asyncio.get_running_loop()
        loop_pool = self._loop_pools.get(loop)
        return loop_pool if loop_pool is not None else await self._new_loop_pool(loop)

    async def _new_loop_pool(self, loop: asyncio.AbstractEventLoop) -> LoopPool:
        with self._lock:
            loop_pool = self._loop_pools.get(loop)
            if loop_pool is not None:
                return loop_pool
            loop_pool = self._loop_pools[loop] = LoopPool(loop, self._per_loop)
        tenant = self._tenants[id(loop)] = self._tenancy(loop, loop_pool)
        await anext(tenant)
        return loop_pool

    async def _tenancy(self, loop: asyncio.AbstractEventLoop, loop_pool: LoopPool) -> AsyncGenerator[None]:
        """Ends when its loop shuts down its generators: the last moment at which connections can be closed there."""
        try:
            yield
        finally:
            loop_pool.clear()
            self._tenants.pop(id(loop), None)
            with self._lock:
                self._loop_pools.pop(loop, None)  # it refers to its loop, which no weak reference would ever let go

    def renew(self) -> None:
        """In a forked child: start empty, and leak what was inherited. Even its garbage collection would take sockets
        out of the parent's event loops."""
        _leak([connection for loop_pool in self._loop_pools.values() for connection in loop_pool.open])
        _leak(list(self._tenants.values()))
        self._loop_pools, self._tenants = WeakKeyDictionary(), {}
        self._lock = threading.Lock()

    async def close(self) -> None:
        """Close all connections, including those of other loops."""
        self._closed = True
        here = asyncio.get_running_loop()
        with self._lock:
            pools = list(self._loop_pools.items())
        for loop, loop_pool in pools:
            if loop is here:
                for db in list(loop_pool.idle):
                    with suppress(Exception):
                        await db.connection.close(timeout=1)
                loop_pool.clear()
            elif not loop.is_closed():
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(loop_pool.clear)
        if (tenant := self._tenants.get(id(here))) is not None:
            await tenant.aclose()


class Checkout:
    """A connection while a step uses it; afterwards it is free again, or closed. A class, because a generator would
    slow down every call."""

    __slots__ = ("_db", "_loop_pool", "_pool", "_slot", "_works")

    def __init__(self, pool: Pool, works: bool) -> None:
        self._pool = pool
        self._works = works

    async def __aenter__(self) -> OwnDb:
        pool = self._pool
        pool.check()
        loop_pool = self._loop_pool = await pool.loop_pool()
        slot = self._slot = loop_pool.workers if self._works else loop_pool.callers
        await slot.acquire()
        try:
            db = self._db = loop_pool.take() or await pool.connect(loop_pool)
        except BaseException as error:
            slot.release()
            if isinstance(error, Exception) and (ours := failure(error, pool.login)) is not error:
                raise ours from error
            raise
        if not pool.lends:
            loop_pool.asks(db)
        return db

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pool, loop_pool, db = self._pool, self._loop_pool, self._db
        loop_pool.answered(db)
        self._slot.release()
        if pool.is_closed or db.connection.is_closed() or not (error is None or is_harmless(error, db.connection)):
            loop_pool.drop(db.connection)
        else:
            loop_pool.idle.append(db)
        if isinstance(error, Exception) and (ours := failure(error, pool.login, asked=True)) is not error:
            raise ours from error


def _leak(things: list[object]) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(things))
