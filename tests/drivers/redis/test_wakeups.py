"""Hints by publishing: they come, they come again after the server was away, and they are never needed."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator

import pytest

from servers.fixtures import NewValkey
from servers.valkey import ValkeyServer
from taskharbor.core.backoff import Backoff
from taskharbor.drivers.redis import wakeups
from taskharbor.drivers.redis.connection import Server
from taskharbor.drivers.redis.url import Address
from taskharbor.drivers.redis.wakeups import Subscription
from taskharbor.drivers.redis.wire import LoopLink

from .talk import opened

PATIENCE, FOR_EVER, MANY = 30.0, 3_600.0, 20_000
REAL_CONNECT = LoopLink.connect


@pytest.fixture(scope="module")
def valkey() -> Generator[ValkeyServer]:
    """A server whose clients can be counted, because no other test process uses it."""
    with ValkeyServer() as server:
        yield server


def subscribers(valkey: ValkeyServer) -> int:
    return str(valkey.command("CLIENT", "LIST")).count("cmd=psubscribe")


async def until(true: Callable[[], object]) -> None:
    for _ in range(MANY):
        if true():
            return
        await asyncio.sleep(0)
    raise TimeoutError(f"not so after {MANY} looks")


async def listening(server: Server) -> None:
    """Until the subscription has begun: that wakes everybody."""
    async with asyncio.timeout(PATIENCE):
        await server.wait("first", FOR_EVER)


async def woken(server: Server, channel: str, publish: Callable[[], object]) -> None:
    """Wait for a channel, and have something published once the wait has begun."""
    waiting = asyncio.ensure_future(server.wait(channel, FOR_EVER))
    await asyncio.sleep(0)
    publish()
    async with asyncio.timeout(PATIENCE):
        await waiting


def hints(server: Server) -> Subscription:
    return server._links[asyncio.get_running_loop()].hints


async def until_failed(server: Server) -> None:
    async with asyncio.timeout(PATIENCE):
        while not hints(server).failures:
            await asyncio.to_thread(lambda: None)


def test_a_message_wakes_its_channel_in_every_loop_and_no_other(valkey: ValkeyServer) -> None:
    name = valkey.new_namespace() + "*[a]"

    async def main() -> None:
        async with opened(valkey.url(namespace=name)) as server:
            await listening(server)
            other = asyncio.ensure_future(server.wait("other", FOR_EVER))
            began = threading.Event()

            async def elsewhere() -> None:
                waiting = asyncio.ensure_future(server.wait("work", FOR_EVER))
                await asyncio.sleep(0)
                began.set()
                await waiting

            thread = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
            await asyncio.to_thread(began.wait, PATIENCE)
            await woken(server, "work", lambda: valkey.command("PUBLISH", server.prefix + "work", "1"))
            await thread
            assert not other.done()
            valkey.command("PUBLISH", server.prefix + "other", "1")
            await other
            valkey.command("PUBLISH", server.prefix + "unknown", "1")
            await until(lambda: subscribers(valkey) == 1)
            await server.wait("work", 0.0)

    asyncio.run(main())
    asyncio.run(until(lambda: subscribers(valkey) == 0))


def test_the_hints_of_other_namespaces_are_theirs(valkey: ValkeyServer) -> None:
    async def main() -> None:
        names = [valkey.new_namespace() for _ in range(2)]
        async with opened(valkey.url(namespace=names[0])) as one, opened(valkey.url(namespace=names[1])) as two:
            await listening(one)
            await listening(two)
            waiting = asyncio.ensure_future(one.wait("work", FOR_EVER))
            await woken(two, "work", lambda: valkey.command("PUBLISH", two.prefix + "work", "1"))
            assert not waiting.done()
            await woken(one, "work", lambda: valkey.command("PUBLISH", one.prefix + "work", "1"))
            await waiting

    asyncio.run(main())


def test_hints_come_back_with_the_server(
    new_valkey: NewValkey, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: and waiting callers are woken, because messages may have been missed."""
    monkeypatch.setattr(wakeups, "STORE_BACKOFF", Backoff(base=0.0, cap=0.0))
    valkey = new_valkey()

    async def main() -> None:
        async with opened(valkey.url()) as server:
            await listening(server)
            waiting = asyncio.ensure_future(server.wait("work", FOR_EVER))
            await asyncio.sleep(0)
            valkey.kill()
            await until_failed(server)
            valkey.start()
            async with asyncio.timeout(PATIENCE):
                await waiting
            await woken(server, "work", lambda: valkey.command("PUBLISH", server.prefix + "work", "1"))

    with caplog.at_level(logging.INFO, "taskharbor.redis"):
        asyncio.run(main())
    said = [record.getMessage().split(":")[0] for record in caplog.records if record.name == "taskharbor.redis"]
    assert [event for event in said if event != "store.durability"] == ["store.unavailable", "store.available"]


def test_a_silent_subscription_is_replaced(new_valkey: NewValkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-open connection looks like a quiet one."""
    monkeypatch.setattr(wakeups, "PING_EVERY", 0.02)
    monkeypatch.setattr(wakeups, "ANSWER_WITHIN", 0.02)
    monkeypatch.setattr(wakeups, "STORE_BACKOFF", Backoff(base=0.0, cap=0.0))
    valkey = new_valkey()

    async def main() -> None:
        async with opened(valkey.url()) as server:
            await listening(server)
            valkey.freeze()
            waiting = asyncio.ensure_future(server.wait("work", FOR_EVER))
            await until_failed(server)
            valkey.thaw()
            async with asyncio.timeout(PATIENCE):
                await waiting

    asyncio.run(main())


def test_a_quiet_subscription_is_kept(valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "PING_EVERY", 0.001)

    async def main() -> None:
        async with opened(valkey.url(namespace=valkey.new_namespace())) as server:
            await listening(server)
            link = hints(server)._link
            waiting = asyncio.ensure_future(server.wait("other", FOR_EVER))
            await until(lambda: "cmd=ping" in valkey.command("CLIENT", "LIST").decode())
            await woken(server, "work", lambda: valkey.command("PUBLISH", server.prefix + "work", "1"))
            assert hints(server)._link is link
            assert not waiting.done()

    asyncio.run(main())


def test_closing_while_it_connects_leaves_no_connection(valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    connecting, go_on = asyncio.Event(), asyncio.Event()
    made: list[LoopLink] = []

    async def connect(address: Address) -> LoopLink:
        connecting.set()
        await go_on.wait()
        made.append(await REAL_CONNECT(address))
        return made[0]

    async def main() -> None:
        async with opened(valkey.url(namespace=valkey.new_namespace())) as server:
            monkeypatch.setattr(LoopLink, "connect", connect)
            waiting = asyncio.ensure_future(server.wait("work", FOR_EVER))
            await connecting.wait()
        go_on.set()
        async with asyncio.timeout(PATIENCE):
            await waiting
            await made[0].closed

    asyncio.run(main())


def test_all_waiters_together_try_once_and_then_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: a thousand calls that wait for results do not make a thousand connections to a server that starts."""
    monkeypatch.setattr(wakeups, "STORE_BACKOFF", Backoff(base=FOR_EVER, cap=FOR_EVER))
    tries: list[Address] = []

    async def connect(address: Address) -> LoopLink:
        tries.append(address)
        raise ConnectionRefusedError

    async def main() -> None:
        monkeypatch.setattr(LoopLink, "connect", connect)
        subscription = Subscription(Address())
        waiting = [asyncio.ensure_future(subscription.wait("ends", FOR_EVER)) for _ in range(20)]
        for leaves in waiting[:10]:
            for _ in range(10):
                await asyncio.sleep(0)
            leaves.cancel()
        subscription.close()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*waiting[10:])

    asyncio.run(main())
    assert len(tries) == 1


def test_a_user_who_may_not_subscribe_gets_a_warning(new_valkey: NewValkey, caplog: pytest.LogCaptureFixture) -> None:
    """X5: the rest works, with polling."""
    valkey = new_valkey()
    valkey.command("ACL", "SETUSER", "jobs", "on", ">secret", "~*", "resetchannels", "+@all")

    async def main() -> None:
        async with opened(valkey.url().replace("://", "://jobs:secret@")) as server:
            waiting = asyncio.ensure_future(server.wait("work", FOR_EVER))
            async with asyncio.timeout(PATIENCE):
                await until_failed(server)
            waiting.cancel()

    with caplog.at_level(logging.WARNING, "taskharbor.redis"):
        asyncio.run(main())
    (said,) = (text for text in caplog.messages if text.startswith("store.unavailable"))
    assert "the user jobs may not do this: change its ACL" in said


def test_closing_wakes_all_who_wait(valkey: ValkeyServer) -> None:
    async def main() -> None:
        async with opened(valkey.url(namespace=valkey.new_namespace())) as server:
            await listening(server)
            waiting = asyncio.ensure_future(server.wait("work", FOR_EVER))
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            await waiting

    asyncio.run(main())
