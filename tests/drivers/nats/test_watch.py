"""The watch of the line: it begins again whatever breaks it, callers wait for it, and its consumers do not pile up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from servers.nats import NatsServer
from taskharbor.drivers import from_url
from taskharbor.drivers.nats import watch
from taskharbor.drivers.nats.connection import NatsMessage
from taskharbor.drivers.nats.driver import NatsDriver
from taskharbor.drivers.nats.wire import NatsWire
from taskharbor.testing.kit.jobs import T0, group, job

ROUNDS = 20
MANY = 10_000


@pytest.fixture
def name(nats: NatsServer) -> Generator[str]:
    name = nats.new_namespace()
    yield name
    nats.drop_namespace(name)


@asynccontextmanager
async def opened(nats: NatsServer, name: str) -> AsyncGenerator[NatsDriver]:
    driver = await from_url(nats.url(namespace=name))
    assert isinstance(driver, NatsDriver)
    try:
        yield driver
    finally:
        await driver.close()


def consumers(nats: NatsServer, name: str) -> int:
    """How many watches the server keeps."""
    number: int = nats.api(f"STREAM.INFO.{name}-LINE")["state"]["consumer_count"]
    return number


async def until(true: Callable[[], object]) -> None:
    """Until something is so."""
    for _ in range(MANY):
        if true():
            return
        await asyncio.sleep(0)
    raise TimeoutError(f"not so after {MANY} looks")


class Requests:
    """Requests to JetStream, counted; those that are held go when it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, held: str) -> None:
        self.sent: list[str] = []
        self._held, self._released = held, asyncio.Event()
        self._request = NatsWire.request
        monkeypatch.setattr(NatsWire, "request", lambda *args: self._asked(*args))

    def release(self) -> None:
        self._released.set()

    def number(self, part: str) -> int:
        return sum(part in subject for subject in self.sent)

    def _asked(self, wire: NatsWire, subject: str, *args: Any) -> asyncio.Future[NatsMessage]:
        self.sent.append(subject)
        if self._held in subject and not self._released.is_set():
            return asyncio.ensure_future(self._later(wire, subject, *args))
        return self._request(wire, subject, *args)

    async def _later(self, wire: NatsWire, subject: str, *args: Any) -> NatsMessage:
        await self._released.wait()
        return await self._request(wire, subject, *args)


def test_callers_wait_while_it_begins_again(nats: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: they neither ask for a consumer that is not there yet, nor break the watch because it is not."""

    async def act() -> None:
        async with opened(nats, name) as driver:
            await driver.enqueue([group(job())], T0)
            assert await driver.next_due(["q"]) == T0
            requests = Requests(monkeypatch, "CONSUMER.CREATE")
            driver._watch._break("a test")
            await until(lambda: requests.number("CONSUMER.CREATE"))
            asked = asyncio.ensure_future(driver.next_due(["q"]))
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
                nats.api("INFO")  # time for an answer to come
            assert not asked.done()
            requests.release()
            assert await asked == T0
            assert requests.number("CONSUMER.CREATE") == 1

    asyncio.run(act())


def test_its_consumers_do_not_pile_up(nats: NatsServer, name: str) -> None:
    """One for each driver that claims or lists, whatever happened to its connection; none for one that is closed."""

    async def act() -> None:
        async with opened(nats, name) as one, opened(nats, name) as other:
            assert consumers(nats, name) == 0
            for driver in (one, other):
                await driver.counts(T0)
            for number in range(6):
                if number % 2:
                    (await one._server.wire()).abort()
                else:
                    one._watch._break("a test")
                if number % 3:
                    await one.next_due(["q"])
            await one.enqueue([group(job())], T0)
            assert [it.ready for it in await one.counts(T0)] == [1]
            await until(lambda: consumers(nats, name) == 2)
        await until(lambda: not consumers(nats, name))

    asyncio.run(act())


def test_a_stream_that_was_removed_and_made_again_is_read_from_its_beginning(nats: NatsServer, name: str) -> None:
    """X9, D2: though it is longer by now than the old one was."""

    async def act() -> None:
        async with opened(nats, name) as one:
            await one.enqueue([group(job("old"))], T0)
            assert [it.ready for it in await one.counts(T0)] == [1]
            await one.erase()
            async with opened(nats, name) as other:
                for id in "abc":
                    await other.enqueue([group(job(id))], T0)
            assert [it.ready for it in await one.counts(T0)] == [3]
            assert [it.id for it in await one.reserve(["q"], T0, timedelta(seconds=30), 9, "w")] == ["a", "b", "c"]

    asyncio.run(act())


def test_a_watch_that_could_not_begin_again_for_long_reads_everything(
    nats: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: what counts is when it was up to date the last time, not when it tried: removals are forgotten meanwhile."""

    async def act() -> None:
        async with opened(nats, name) as driver:
            await driver.enqueue([group(job())], T0)
            await driver.counts(T0)
            driver._watch._current -= watch.RESUMES_WITHIN
            cleared = driver._store.line.pages["gone"] = next(iter(driver._store.line.pages.values()))
            requests = Requests(monkeypatch, "CONSUMER.CREATE")
            requests.release()
            driver._watch._break("a test")
            await until(lambda: requests.number("CONSUMER.CREATE"))
            assert [it.ready for it in await driver.counts(T0)] == [1]
            assert cleared not in driver._store.line.pages.values()

    asyncio.run(act())
