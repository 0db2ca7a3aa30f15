"""Answers of a node that is behind, or that does not answer at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from servers.nats import NatsServer
from taskharbor.drivers import from_url
from taskharbor.drivers.nats import ahead, reserve, store
from taskharbor.drivers.nats.ahead import CardsAhead
from taskharbor.drivers.nats.driver import NatsDriver
from taskharbor.drivers.nats.store import NOTHING, StoredValue, Streams
from taskharbor.drivers.nats.wire import NatsWire
from taskharbor.errors import DriverUnavailable
from taskharbor.testing.kit.jobs import T0, at, group, job

LEASE = timedelta(seconds=5)


@pytest.fixture
def name(nats: NatsServer) -> Generator[str]:
    name = nats.new_namespace()
    yield name
    nats.drop_namespace(name)


class Unanswered:
    """Writes of which the first is stored, and its answer lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ticket, self._is_first = NatsWire.ticket, True
        monkeypatch.setattr(NatsWire, "ticket", lambda wire, subject: self._given(wire, subject))

    def _given(self, wire: NatsWire, subject: str) -> Any:
        reply, future = self._ticket(wire, subject)
        is_first, self._is_first = self._is_first, False
        return (reply + b".nowhere" if is_first else reply), future


@asynccontextmanager
async def opened(nats: NatsServer, name: str) -> AsyncGenerator[NatsDriver]:
    driver = await from_url(nats.url(namespace=name))
    assert isinstance(driver, NatsDriver)
    try:
        yield driver
    finally:
        await driver.close()


def test_a_card_that_a_node_does_not_have_yet_is_not_replaced(
    nats: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2, F9: only a card that is surely missing is; the claim lapses, and the job runs with its payload."""

    async def nothing(_: object, subjects: Iterable[str]) -> dict[str, StoredValue]:
        return dict.fromkeys(subjects, NOTHING)

    async def act() -> None:
        async with opened(nats, name) as driver:
            await driver.enqueue([group(job(payload=b"[7]"))], T0)
            with monkeypatch.context() as patch:
                patch.setattr(Streams, "read", nothing)
                patch.setattr(CardsAhead, "take", nothing)
                patch.setattr(CardsAhead, "missing", lambda *_: [])
                with pytest.raises(DriverUnavailable, match="a node without the latest changes has answered"):
                    await driver.reserve(["q"], T0, LEASE, 1, "w")
            [claimed] = await driver.reserve(["q"], at(6), LEASE, 1, "w")
            assert (claimed.payload, claimed.version, claimed.state) == (b"[7]", 2, "inflight")

    asyncio.run(act())


def test_a_read_that_is_lost_is_sent_again(nats: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: a node that dies takes requests along. What was claimed with such a read is not lost."""
    for module in (ahead, store):
        monkeypatch.setattr(module, "LOST_AFTER", 0.02)
    lost: list[str] = []

    def ticket(wire: NatsWire, subject: str) -> Any:
        reply, future = tickets(wire, subject)
        if not lost:
            lost.append(subject)
            return reply + b".nowhere", future
        return reply, future

    tickets = NatsWire.tickets_many

    async def act() -> None:
        async with opened(nats, name) as driver:
            await driver.enqueue([group(job("a")), group(job("b"))], T0)
            monkeypatch.setattr(NatsWire, "tickets_many", ticket)
            claimed = await driver.reserve(["q"], T0, LEASE, 2, "w")
            assert [it.id for it in claimed] == ["a", "b"]
            assert lost.pop().endswith("JOBS")
            assert await driver.schedules() == []
            assert lost.pop().endswith("LINE")

    asyncio.run(act())


def test_a_claim_whose_answer_is_lost_is_not_waited_for_long(
    nats: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: the worker tries again, and what may have been claimed lapses (D5)."""
    monkeypatch.setattr(reserve, "CLAIMED_WITHIN", 0.02)

    async def act() -> None:
        async with opened(nats, name) as driver:
            await driver.enqueue([group(job("a"))], T0)
            await driver.counts(T0)
            with monkeypatch.context() as patch:
                Unanswered(patch)
                with pytest.raises(DriverUnavailable, match="may still take effect"):
                    await driver.reserve(["q"], T0, LEASE, 1, "w")
            monkeypatch.undo()
            assert await driver.reserve(["q"], T0, LEASE, 1, "w") == []
            [claimed] = await driver.reserve(["q"], at(6), LEASE, 1, "w")
            assert (claimed.version, claimed.crashes) == (2, 1)

    asyncio.run(act())
