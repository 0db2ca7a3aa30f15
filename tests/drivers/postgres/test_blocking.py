"""Transactions for handlers: hard limits outside of the client libraries, errors in our words, connections that are as
new (X2, X3); those for `def` handlers above all."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count
from typing import Any

import psycopg
import pytest

from servers.postgres import PostgresServer
from taskharbor.core.job import JobRecord
from taskharbor.driver import Extended, Report
from taskharbor.drivers import from_url
from taskharbor.drivers.postgres import login, psycopg_pool, transactions
from taskharbor.drivers.postgres.deadline import connected
from taskharbor.errors import DriverError, DriverUnavailable
from taskharbor.testing import ProxyThread
from taskharbor.testing.kit.jobs import ack, job, token_of
from taskharbor.testing.kit.scene import Harness, Scene
from taskharbor.testing.kit.within import Lent, every_way, lent

PATIENCE = 60.0
SHORT = 0.05
numbers = count()


class World:
    """A driver by way of a proxy, one that goes straight, and a job under a lease."""

    def __init__(self, proxy: ProxyThread, far: Scene, near: Scene, held: JobRecord) -> None:
        self.proxy, self.far, self.near, self.held = proxy, far, near, held

    async def fill(self, tx: Lent) -> None:
        """Something to commit."""
        await tx.add(job("b"))
        assert await tx.settle(ack(self.held)) == ["ok"]

    async def is_done(self) -> None:
        """All of it was committed."""
        assert await self.near.states("a", "b") == ["done", "ready"]

    async def is_as_before(self) -> None:
        """Nothing of it was committed, and no transaction holds it."""
        assert await self.near.states("a", "b") == ["inflight", None]
        [answer] = await self.near.extend(Report("a", token_of(self.held)))
        assert isinstance(answer, Extended)


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """One for all tests here; each has a schema of its own."""
    return postgres.new_database()


NewWorld = AbstractAsyncContextManager[World]


@pytest.fixture
def world(postgres: PostgresServer, database: str) -> NewWorld:
    url = postgres.url(database, namespace=f"blocking_{next(numbers)}", migrate="true")

    @asynccontextmanager
    async def made() -> AsyncGenerator[World]:
        async with asyncio.timeout(PATIENCE):
            near = Scene(Harness(url=url), await from_url(url))
            with ProxyThread("127.0.0.1", postgres.port) as proxy:
                far = Scene(near.harness, await from_url(proxy.url(url)))
                yield World(proxy, far, near, await near.held())
                proxy.heal()
                await far.close()
            await near.close()

    return made()


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short timeouts from now on."""
    for name in ("ANSWER_WITHIN", "TIDY_WITHIN"):
        monkeypatch.setattr(transactions, name, SHORT)
    for module in (login, psycopg_pool):
        monkeypatch.setattr(module, "CONNECT_WITHIN", SHORT)


# silence


@every_way
def test_a_silent_server_does_not_hold_a_commit(world: NewWorld, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2, X3: the handler is let go, and the message does not claim that nothing happened."""

    async def main() -> None:
        async with world as w:
            async with lent(w.far, way) as tx:
                await w.fill(tx)
                w.proxy.stall("to_server")
                impatient(monkeypatch)
                with pytest.raises(DriverUnavailable, match="may still take effect"):
                    await tx.commit()
            w.proxy.reset()
            await w.is_as_before()

    asyncio.run(main())


@every_way
def test_a_silent_server_does_not_hold_a_settle(world: NewWorld, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: what was not committed has not happened, and the message does not say otherwise."""

    async def main() -> None:
        async with world as w:
            async with lent(w.far, way) as tx:
                w.proxy.stall()
                impatient(monkeypatch)
                with pytest.raises(DriverUnavailable) as caught:
                    await tx.settle(ack(w.held))
            assert "may still take effect" not in str(caught.value)
            w.proxy.reset()
            await w.is_as_before()

    asyncio.run(main())


def test_a_silent_server_does_not_hold_the_end_of_a_block(world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: a block raises its own error, and what was committed stays; the next block has a new connection."""

    async def main() -> None:
        async with world as w:
            with suppress(ZeroDivisionError):
                async with lent(w.far, "blocking") as tx:
                    await w.fill(tx)
                    w.proxy.stall()
                    impatient(monkeypatch)
                    raise ZeroDivisionError
            w.proxy.reset()
            w.proxy.resume()
            monkeypatch.undo()
            await w.is_as_before()
            async with lent(w.far, "blocking") as tx:
                await w.fill(tx)
                await tx.commit()
                w.proxy.stall()
                impatient(monkeypatch)
            await w.is_done()
            w.proxy.resume()
            monkeypatch.undo()
            accepted = w.proxy.accepted
            async with lent(w.far, "blocking") as tx:
                assert await tx.settle(ack(w.held)) == ["replayed"]
            assert w.proxy.accepted == accepted + 1

    asyncio.run(main())


@every_way
def test_a_silent_server_does_not_hold_the_beginning_of_a_block(
    world: NewWorld, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: neither on a line that was kept nor on one that is made."""

    async def main() -> None:
        async with world as w:
            async with lent(w.far, way):
                pass
            w.proxy.stall()
            impatient(monkeypatch)
            for _ in range(2):
                with pytest.raises(DriverUnavailable) as caught:
                    await lent(w.far, way).__aenter__()
                assert "may still take effect" not in str(caught.value)

    asyncio.run(main())


def test_a_connection_that_comes_too_late_is_closed() -> None:
    """X2: no caller waits for it, and nothing else would close it."""
    may_come, closed = threading.Event(), threading.Event()

    class Late:
        def close(self) -> None:
            closed.set()

    def connect() -> Any:
        may_come.wait(PATIENCE)
        return Late()

    with pytest.raises(TimeoutError):
        connected(connect, SHORT)
    may_come.set()
    assert closed.wait(PATIENCE)


def test_a_line_that_leads_nowhere_is_noticed_under_a_handlers_own_statements(world: NewWorld) -> None:
    """X2: by the system; they may take as long as they take."""

    async def main() -> None:
        async with world as w, lent(w.far, "blocking") as tx:
            assert isinstance(tx.tx.handle, psycopg.Connection)
            with socket.fromfd(tx.tx.handle.fileno(), socket.AF_INET, socket.SOCK_STREAM) as line:
                assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                if hasattr(socket, "TCP_KEEPIDLE"):
                    assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= PATIENCE

    asyncio.run(main())


# lines that break


@every_way
def test_a_reply_to_a_commit_that_is_lost_leaves_the_outcome_unknown(world: NewWorld, way: str) -> None:
    """X3, D8: the message says so, and the repeat finds out."""

    async def main() -> None:
        async with world as w:
            async with lent(w.far, way) as tx:
                await w.fill(tx)
                w.proxy.swallow_reply()
                with pytest.raises(DriverUnavailable, match="may still take effect"):
                    await tx.commit()
            assert await w.near.settle(ack(w.held)) == ["replayed"]
            await w.is_done()

    asyncio.run(main())


@every_way
def test_a_lost_reply_to_a_settle_is_not_an_unknown_outcome(world: NewWorld, way: str) -> None:
    """X3: nothing was committed."""

    async def main() -> None:
        async with world as w:
            async with lent(w.far, way) as tx:
                w.proxy.swallow_reply()
                with pytest.raises(DriverUnavailable) as caught:
                    await tx.settle(ack(w.held))
            assert "may still take effect" not in str(caught.value)
            await w.is_as_before()

    asyncio.run(main())


def test_connections_that_broke_while_idle_are_not_handed_out(world: NewWorld) -> None:
    """X2: a restart of the server costs no run its transaction."""

    async def main() -> None:
        async with world as w:
            async with lent(w.far, "blocking"), lent(w.far, "blocking"):
                pass
            w.proxy.reset()
            w.proxy.until(lambda: not w.proxy.links)
            async with lent(w.far, "blocking") as tx:
                await w.fill(tx)
                await tx.commit()
            await w.is_done()

    asyncio.run(main())


# handlers


def test_a_connection_with_a_transaction_that_was_left_open_is_not_handed_out(world: NewWorld) -> None:
    """D13: the next block would commit a savepoint, and nothing else."""

    async def main() -> None:
        async with world as w:
            async with lent(w.far, "blocking") as tx:
                assert isinstance(tx.tx.handle, psycopg.Connection)
                left = tx.tx.handle.transaction()
                left.__enter__()
            async with lent(w.far, "blocking") as tx:
                await w.fill(tx)
                await tx.commit()
            await w.is_done()

    asyncio.run(main())


def test_errors_of_the_server_are_distinguished(world: NewWorld) -> None:
    """X2: one that refuses is not one that is away."""

    async def main() -> None:
        async with world as w:
            async with lent(w.far, "blocking") as tx:
                assert isinstance(tx.tx.handle, psycopg.Connection)
                tx.tx.handle.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                tx.tx.handle.execute("SELECT 1")
                await w.near.extend(Report("a", token_of(w.held)))
                with pytest.raises(DriverError, match="could not serialize access") as caught:
                    await tx.settle(ack(w.held))
            assert type(caught.value) is DriverError
            async with lent(w.far, "blocking") as tx:
                assert isinstance(tx.tx.handle, psycopg.Connection)
                tx.tx.handle.execute("SET TRANSACTION READ ONLY")
                with pytest.raises(DriverUnavailable, match="read-only"):
                    await tx.settle(ack(w.held))

    asyncio.run(main())
