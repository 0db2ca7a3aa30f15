"""Cards are read before they are needed, and stored in the way that is fastest: what a claim returns is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from datetime import timedelta
from typing import Any

import pytest

from servers.nats import NatsServer
from taskharbor.core.job import JobRecord
from taskharbor.drivers import from_url
from taskharbor.drivers.nats import ahead
from taskharbor.drivers.nats.store import Streams
from taskharbor.errors import JobExists
from taskharbor.testing.kit.jobs import T0, group, job

LEASE = timedelta(seconds=30)
SLOW, FAST = 0.001, 0.000_001
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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The ids of the cards of each direct get that goes with a claim."""
    found: list[list[str]] = []
    real = Streams.ask

    def ask(self: Streams, wire: Any, stream: str, request: Any) -> Any:
        found.append([subject.rpartition(".")[2] for subject in request["multi_last"]])
        return real(self, wire, stream, request)

    monkeypatch.setattr(Streams, "ask", ask)
    return found


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """How cards were stored, and how many: in a batch, or each by itself."""
    found: list[tuple[str, int]] = []
    real: dict[str, Any] = {"commit": Streams.commit, "swap": Streams.swap}

    def recorder(verb: str) -> Any:
        async def record(self: Streams, writes: Any) -> Any:
            if not writes[0].subject.startswith(self.subjects.line):
                found.append((verb, len(writes)))
            return await real[verb](self, writes)

        return record

    for verb in real:
        monkeypatch.setattr(Streams, verb, recorder(verb))
    return found


async def claim(driver: Any, limit: int) -> list[JobRecord]:
    """Claim from the queue of the tests."""
    held: list[JobRecord] = await driver.reserve(["q"], T0, LEASE, limit, "w")
    return held


def test_each_card_is_asked_for_once(play: Callable[[Act], None], asked: list[list[str]]) -> None:
    """D2, D11: a claim asks for the cards of the next one, in pages of several jobs and in pages of one."""

    async def act(driver: Any) -> None:
        await driver.enqueue([group(*(job(f"a{number}", payload=b"%d" % number) for number in range(9)))], T0)
        for number in range(9, 12):
            await driver.enqueue([group(job(f"a{number}", payload=b"%d" % number))], T0)
        held = [each for _ in range(4) for each in await claim(driver, 3)]
        assert [(each.id, each.payload) for each in held] == [(f"a{n}", b"%d" % n) for n in range(12)]
        assert asked == [["a0", "a1", "a2"], *([f"a{n}", f"a{n + 1}", f"a{n + 2}"] for n in (3, 6, 9))]

    play(act)


def test_a_card_that_came_too_early_is_read_again(play: Callable[[Act], None]) -> None:
    """R2: a job was deleted after its card was read, and another one has its id."""

    async def act(driver: Any) -> None:
        for id in ("a", "b"):
            await driver.enqueue([group(job(id, payload=b"old"))], T0)
        assert [each.id for each in await claim(driver, 1)] == ["a"]
        await driver.cancel(["b"], T0, T0)
        assert await driver.delete(["b"]) == ["deleted"]
        await driver.enqueue([group(job("b", payload=b"new"))], T0)
        assert [(each.id, each.payload) for each in await claim(driver, 1)] == [("b", b"new")]

    play(act)


def test_a_lost_connection_takes_cards_with_it(play: Callable[[Act], None]) -> None:
    """X1: they are read when they are needed."""

    async def act(driver: Any) -> None:
        await driver.enqueue([group(*(job(f"a{number}") for number in range(4)))], T0)
        assert len(await claim(driver, 2)) == 2
        (await driver._server.wire()).abort()
        assert [each.id for each in await claim(driver, 2)] == ["a2", "a3"]

    play(act)


def test_claims_of_another_loop_share_nothing(play: Callable[[Act], None], asked: list[list[str]]) -> None:
    """P1: replies belong to the loop that has asked for them."""

    async def act(driver: Any) -> None:
        await driver.enqueue([group(*(job(f"a{number}") for number in range(6)))], T0)
        assert len(await claim(driver, 2)) == 2
        held = await asyncio.to_thread(lambda: asyncio.run(claim(driver, 2)))
        assert [each.id for each in held] == ["a2", "a3"]
        assert [each.id for each in await claim(driver, 2)] == ["a4", "a5"]
        assert asked == [["a0", "a1"], ["a2", "a3"], ["a2", "a3"], ["a4", "a5"]]

    play(act)


def test_large_cards_are_not_asked_for_ahead(
    play: Callable[[Act], None], asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4: what does not fit is read when it is needed."""
    monkeypatch.setattr(ahead, "ROOM", 4000)

    async def act(driver: Any) -> None:
        await driver.enqueue([group(*(job(f"a{number}", payload=b"x" * 5000) for number in range(6)))], T0)
        for _ in range(3):
            assert len(await claim(driver, 2)) == 2
        assert asked == [["a0", "a1"], ["a2", "a3"], ["a4", "a5"]]

    play(act)


def test_cards_that_others_claimed_are_forgotten(play: Callable[[Act], None]) -> None:
    """D12: what was asked for in vain does not pile up."""

    async def act(driver: Any) -> None:
        ((host, port),) = driver._server.address.hosts
        other: Any = await from_url(f"nats://{host}:{port}/?namespace={driver._server.prefix}")
        try:
            for number in range(20):
                await driver.enqueue([group(*(job(f"{number}-{n}") for n in range(4)))], T0)
                assert len(await claim(driver, 2)) == 2
                assert len(await claim(other, 2)) == 2
                await driver._watch.barrier()
            assert len(driver.reserving._ahead._asked) <= 4
        finally:
            await other.close()

    play(act)


def test_few_cards_go_by_themselves(play: Callable[[Act], None], writes: list[tuple[str, int]]) -> None:
    """D1: the server takes long for a batch of few messages, and less for many."""

    async def act(driver: Any) -> None:
        driver._store._message_takes = FAST
        await driver.enqueue([group(*(job(f"a{number}") for number in range(5)))], T0)
        driver._store._message_takes = SLOW
        await driver.enqueue([group(*(job(f"b{number}") for number in range(5)))], T0)
        assert writes == [("swap", 5), ("commit", 5)]

    play(act)


def test_how_long_a_message_takes_is_measured_again(play: Callable[[Act], None], writes: list[tuple[str, int]]) -> None:
    """D1: after a while of batches cards go by themselves once more, and show whether that is still slow."""

    async def act(driver: Any) -> None:
        driver._store._message_takes = SLOW
        for number in range(200):
            await driver.enqueue([group(*(job(f"{number}-{n}") for n in range(20)))], T0)
            if writes[-1] == ("swap", 20):
                break
        assert set(writes[:-1]) == {("commit", 20)}
        assert writes[-1] == ("swap", 20)

    play(act)


def test_cards_that_were_stored_beside_a_refused_one_are_taken_over(play: Callable[[Act], None]) -> None:
    """D1, R2: of groups that were sent together, those with a known id are refused, and the others are stored."""

    async def act(driver: Any) -> None:
        driver._store._message_takes = FAST
        await driver.enqueue([group(job("b", payload=b"old"))], T0)
        groups = [group(job(id, payload=b"new")) for id in ("a", "b", "c")]
        answers = await driver.enqueue(groups, T0)
        assert [isinstance(answer, JobExists) for answer in answers] == [False, True, False]
        found = await driver.get(["a", "b", "c"])
        assert [each.payload for each in found] == [b"new", b"old", b"new"]

    play(act)


def test_concurrent_callers_share_a_batch(play: Callable[[Act], None], writes: list[tuple[str, int]]) -> None:
    """D1: where batches are used, and each keeps its own answer if one of them is refused."""

    async def act(driver: Any) -> None:
        driver._store._message_takes = SLOW
        calls = [group(*(job(f"{call}-{number}") for number in range(5))) for call in "abc"]
        answers = await asyncio.gather(*(driver.enqueue([each], T0) for each in calls))
        assert [len(answer[0]) for answer in answers] == [5, 5, 5]
        assert writes == [("commit", 15)]
        calls = [group(*(job(f"{call}-{number}") for number in range(5))) for call in "dae"]
        answers = await asyncio.gather(*(driver.enqueue([each], T0) for each in calls))
        assert [isinstance(answer[0], JobExists) for answer in answers] == [False, True, False]
        assert None not in await driver.get([f"{call}-{number}" for call in "de" for number in range(5)])

    play(act)


def test_a_caller_that_leaves_takes_no_other_along(play: Callable[[Act], None]) -> None:
    """D1: the batch of several callers goes on."""

    async def act(driver: Any) -> None:
        driver._store._message_takes = SLOW
        calls = [group(*(job(f"{call}-{number}") for number in range(5))) for call in "ab"]
        first, second = (asyncio.create_task(driver.enqueue([each], T0)) for each in calls)
        await asyncio.sleep(0)
        first.cancel()
        assert len((await second)[0]) == 5
        assert await driver.get(["a-0"]) == [None]

    play(act)
