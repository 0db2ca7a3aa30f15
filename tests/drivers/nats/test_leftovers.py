"""What a crash leaves behind is seen by nobody, and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from datetime import timedelta
from typing import Any

import pytest

from servers.nats import NatsServer
from taskharbor.core.decide import token_of
from taskharbor.core.transition import Ack
from taskharbor.drivers import from_url
from taskharbor.drivers.nats.store import Streams
from taskharbor.testing.kit.jobs import T0, at, group, job

LATER = timedelta(minutes=11)
LEASE = timedelta(seconds=30)
LARGE = b"x" * 5000
Act = Callable[[Any], Awaitable[None]]


@pytest.fixture
def play(nats: NatsServer) -> Generator[Callable[[Act], None]]:
    """Runs a test with a driver on an empty store."""
    namespace = nats.new_namespace()

    async def act(test: Act) -> None:
        driver: Any = await from_url(nats.url(namespace=namespace))
        try:
            await test(driver)
        finally:
            await driver.close()

    yield lambda test: asyncio.run(act(test))
    nats.drop_namespace(namespace)


class KilledError(Exception):
    """The process ends here."""


async def die_before_the_pages(verb: str, call: Callable[[], Awaitable[object]]) -> None:
    """Let a call write until it comes to its pages."""
    real: Any = getattr(Streams, verb)

    async def write(self: Streams, writes: Any) -> Any:
        if writes[0].subject.startswith(self.subjects.line):
            raise KilledError
        return await real(self, writes)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Streams, verb, write)
        with pytest.raises(KilledError):
            await call()


async def names(driver: Any) -> set[str]:
    """The cards, keys, cargo and edges in JOBS."""
    prefix = f"{driver._server.prefix}."
    found = [subject for kind in "jkox" for subject in await driver._store.matching(f"{prefix}{kind}.>")]
    return {subject.removeprefix(prefix) for subject in found}


def test_an_enqueue_that_dies_half_way_is_not_seen_and_goes(play: Callable[[Act], None]) -> None:
    """D1, X1: cards and keys without a page; they do not stand in the way of the same ids and keys."""

    async def act(driver: Any) -> None:
        jobs = group(job("a", idempotency_key="k"), job("b"))
        await die_before_the_pages("commit", lambda: driver.enqueue([jobs], T0))
        assert await names(driver) == {"j.a", "j.b", "k.k"}
        assert await driver.get(["a", "b"]) == [None, None]
        assert await driver.find_key("k", T0) is None
        now = await driver.server_now()
        await driver.prune(now, 100)
        assert await names(driver) == {"j.a", "j.b", "k.k"}, "so young that its page may be on its way"
        await driver.prune(now + LATER, 100)
        assert await names(driver) == set()
        (answer,) = await driver.enqueue([jobs], T0)
        assert [each.created for each in answer] == [True, True]

    play(act)


def test_an_enqueue_can_be_repeated_after_it_died(play: Callable[[Act], None]) -> None:
    """D1, I1, R2: what it left is taken over, and its page can never come."""

    async def act(driver: Any) -> None:
        jobs = group(job("a", idempotency_key="k"), job("b"))
        await die_before_the_pages("commit", lambda: driver.enqueue([jobs], T0))
        (answer,) = await driver.enqueue([jobs], T0)
        assert [each.created for each in answer] == [True, True]
        assert await driver.find_key("k", T0) == "a"

    play(act)


def test_what_is_in_use_stays(play: Callable[[Act], None]) -> None:
    """I1, K3: cards, keys and large results of jobs that exist."""

    async def act(driver: Any) -> None:
        await driver.enqueue([group(job("a", idempotency_key="k"), job("b"))], T0)
        (held,) = await driver.reserve(["q"], T0, LEASE, 1, "w", ["a"])
        ack = Ack(id="a", token=token_of(held), keep_until=at(10**9), result=LARGE)
        assert await driver.settle([ack], T0) == ["ok"]
        before = await names(driver)
        await driver.prune(await driver.server_now() + LATER, 100)
        assert await names(driver) == before
        assert {name.split(".")[0] for name in before} == {"j", "k", "o"}
        assert (await driver.get(["a"]))[0].result == LARGE

    play(act)


def test_the_result_of_a_settle_that_died_goes(play: Callable[[Act], None]) -> None:
    """D9, X1: a large result is stored first; without the page it is nobody's."""

    async def act(driver: Any) -> None:
        await driver.enqueue([group(job("a", idempotency_key="k"))], T0)
        (held,) = await driver.reserve(["q"], T0, LEASE, 1, "w", ["a"])
        ack = Ack(id="a", token=token_of(held), keep_until=at(10**9), result=LARGE)
        await die_before_the_pages("swap", lambda: driver.settle([ack], T0))
        assert {name.split(".")[0] for name in await names(driver)} == {"j", "k", "o"}
        await driver.prune(await driver.server_now() + LATER, 100)
        assert await names(driver) == {"j.a", "k.k"}
        assert await driver.settle([ack], T0) == ["ok"]
        assert (await driver.get(["a"]))[0].result == LARGE

    play(act)
