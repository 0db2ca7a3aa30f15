"""Refusals of a cluster that name no later version of a page: the swap is tried again, and no job is left for good."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import timedelta

import pytest

from servers.nats import NatsServer
from taskharbor.drivers import from_url
from taskharbor.drivers.nats.driver import NatsDriver
from taskharbor.drivers.nats.store import Outdated, Streams, StreamWrite
from taskharbor.drivers.nats.wire import NatsMessage, NatsWire
from taskharbor.testing.kit.jobs import T0, ack, group, job

LEASE = timedelta(seconds=30)


@pytest.fixture
def url(nats: NatsServer) -> Generator[str]:
    name = nats.new_namespace()
    yield nats.url(namespace=name)
    nats.drop_namespace(name)


class BehindFollower:
    """Has the server refuse the next swaps as a leader does that has not applied what a follower shows already."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self._publish, self._answer = Streams.publish, Streams.answer
        monkeypatch.setattr(Streams, "publish", lambda streams, wire, write: self._sent(streams, wire, write))
        monkeypatch.setattr(Streams, "answer", lambda streams, reply: self._said(streams, reply))

    def _sent(self, streams: Streams, wire: NatsWire, write: StreamWrite) -> tuple[bytes, asyncio.Future[NatsMessage]]:
        if self.left and write.expected:
            self.left -= 1
            write = write._replace(expected=write.expected + 1_000_000)
        return self._publish(streams, wire, write)

    def _said(self, streams: Streams, reply: NatsMessage) -> int | Outdated | None:
        answer = self._answer(streams, reply)
        return Outdated() if isinstance(answer, Outdated) else answer


@pytest.mark.parametrize("times", [1, 2, 20])
def test_a_page_that_was_refused_without_a_later_version_is_claimed(
    url: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2, D11, X2: nobody writes the page afterwards, so that no version comes that it could be left for."""

    async def act() -> None:
        driver, other = await from_url(url), await from_url(url)
        assert await driver.reserve(["q"], T0, LEASE, 1, "w") == []
        await other.enqueue([group(job("a"))], T0)
        behind = BehindFollower(monkeypatch)
        behind.left = times
        claims = [await driver.reserve(["q"], T0, LEASE, 1, "w") for _ in range(times)]
        assert behind.left == 0
        claims.append(await driver.reserve(["q"], T0, LEASE, 1, "w"))
        assert [job.id for found in claims for job in found] == ["a"]
        await driver.close()
        await other.close()

    asyncio.run(act())


def test_an_outcome_that_was_refused_without_a_later_version_is_written(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D7, X2: and its page is tidied afterwards."""

    async def act() -> None:
        driver = await from_url(url)
        assert isinstance(driver, NatsDriver)
        await driver.enqueue([group(job("a"))], T0)
        (claimed,) = await driver.reserve(["q"], T0, LEASE, 1, "w")
        behind = BehindFollower(monkeypatch)
        behind.left = 2
        assert await driver.settle([ack(claimed)], T0) == ["ok"]
        assert behind.left == 0
        await driver.sweep(T0, T0, 10)
        assert driver._store.line.snapshot() == []
        await driver.close()

    asyncio.run(act())
