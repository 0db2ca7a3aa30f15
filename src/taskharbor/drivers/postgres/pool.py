"""Connections, a few for each event loop, and PostgreSQL's errors in our words.

asyncpg binds a connection to its loop, and workers, keepers and blocking callers have loops of their own. A connection
whose state nobody knows (an error on the line, a call that was cut short) is thrown away, never used again (X3).
After a fork the connections are the parent's: a child lets them be, also when it ends, and makes its own (P1).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from weakref import WeakKeyDictionary, WeakSet

from taskharbor.drivers.postgres.db import Connection, OwnDb
from taskharbor.drivers.postgres.failure import failure, is_harmless
from taskharbor.drivers.postgres.login import Login
from taskharbor.errors import DriverClosed

PER_LOOP = 4
# Beyond the patience of every caller: what stays without an answer for so long loses its connection, whoever waits.
ANSWER_WITHIN = 60.0


class Lot:
    """The connections of one loop."""

    def __init__(self, slots: int) -> None:
        self.idle: list[Connection] = []
        self.slots = asyncio.Semaphore(slots)
        self.open: set[Connection] = set()

    def take(self) -> Connection | None:
        """One that is free, the most recently used first."""
        while self.idle:
            connection = self.idle.pop()
            if not connection.is_closed():
                return connection
            self.open.discard(connection)
        return None

    def drop(self, connection: Connection) -> None:
        """Throw one away."""
        self.open.discard(connection)
        connection.terminate()

    def clear(self) -> None:
        """Throw all away."""
        self.idle.clear()
        while self.open:
            self.open.pop().terminate()


class Pool:
    """Hands out connections. `login` says where and as whom."""

    def __init__(self, login: Login, per_loop: int = PER_LOOP) -> None:
        self.login = login
        self._per_loop = per_loop
        self._lots: WeakKeyDictionary[asyncio.AbstractEventLoop, Lot] = WeakKeyDictionary()
        self._tenants: dict[int, AsyncGenerator[None]] = {}
        self._lock = threading.Lock()
        self._closed = False
        _pools.add(self)

    def check(self) -> None:
        """Raise unless the pool can be used."""
        if self._closed:
            raise DriverClosed("this postgres driver was closed")

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[OwnDb]:
        """A connection for one step."""
        self.check()
        lot = await self._lot()
        async with lot.slots:
            try:
                connection = lot.take()
                if connection is None:
                    connection = await self._connect(lot)
            except Exception as error:
                raise failure(error, self.login) from error
            limit = asyncio.get_running_loop().call_later(ANSWER_WITHIN, connection.terminate)
            try:
                yield OwnDb(connection, self.login.schema)
            except BaseException as error:
                if is_harmless(error, connection):
                    lot.idle.append(connection)
                else:
                    lot.drop(connection)
                if isinstance(error, Exception):
                    raise failure(error, self.login, asked=True) from error
                raise
            finally:
                limit.cancel()
            if self._closed or connection.is_closed():
                lot.drop(connection)
            else:
                lot.idle.append(connection)

    async def _connect(self, lot: Lot) -> Connection:
        connection = await self.login.connect()
        lot.open.add(connection)
        return connection

    async def _lot(self) -> Lot:
        loop = asyncio.get_running_loop()
        with self._lock:
            lot = self._lots.get(loop)
            if lot is not None:
                return lot
            lot = self._lots[loop] = Lot(self._per_loop)
        tenant = self._tenants[id(loop)] = self._tenancy(loop, lot)
        await anext(tenant)
        return lot

    async def _tenancy(self, loop: asyncio.AbstractEventLoop, lot: Lot) -> AsyncGenerator[None]:
        """Ends when its loop shuts its generators down: the last moment at which connections can be closed there."""
        try:
            yield
        finally:
            lot.clear()
            self._tenants.pop(id(loop), None)

    def renew(self) -> None:
        """In a forked child: begin anew, and lose what was inherited. It must not even be collected as garbage, which
        would take the parent's sockets out of the parent's event loops."""
        _lose([connection for lot in self._lots.values() for connection in lot.open])
        _lose(list(self._tenants.values()))
        self._lots, self._tenants = WeakKeyDictionary(), {}
        self._lock = threading.Lock()

    async def close(self) -> None:
        """Let go of all connections, those of other loops included."""
        self._closed = True
        here = asyncio.get_running_loop()
        with self._lock:
            lots = list(self._lots.items())
        for loop, lot in lots:
            if loop is here:
                for connection in list(lot.idle):
                    with suppress(Exception):
                        await connection.close(timeout=1)
                lot.clear()
            elif not loop.is_closed():
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(lot.clear)
        if (tenant := self._tenants.get(id(here))) is not None:
            await tenant.aclose()


_pools: WeakSet[Pool] = WeakSet()


def _lose(things: list[object]) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(things))


def _in_child() -> None:
    for pool in list(_pools):
        pool.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
