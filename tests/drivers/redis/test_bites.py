"""How much one call does: a long script holds up every worker, a call per job every caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from servers.valkey import ValkeyServer
from taskharbor.core.evolve import Replay, Reschedule
from taskharbor.core.filter import Filter
from taskharbor.core.job import Dependency
from taskharbor.drivers import from_url
from taskharbor.drivers.redis.connection import Server
from taskharbor.testing.kit.jobs import ALL, T0, ack, at, child, fail, group, job

from . import indexes

JOBS = 1_200
AT_MOST = 500
CHAINS = 100


@pytest.fixture
def url(valkey: ValkeyServer) -> Generator[str]:
    namespace = valkey.new_namespace()
    yield valkey.url(namespace=namespace)
    indexes.check(valkey, namespace)
    valkey.drop_namespace(namespace)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Every request: the name of a script or command, and its words."""
    found: list[tuple[Any, ...]] = []
    run, command = Server.run, Server.command

    async def run_noted(self: Server, script: Any, *args: Any) -> Any:
        found.append((script.name, *args))
        return await run(self, script, *args)

    async def command_noted(self: Server, *words: Any) -> Any:
        found.append(words)
        return await command(self, *words)

    monkeypatch.setattr(Server, "run", run_noted)
    monkeypatch.setattr(Server, "command", command_noted)
    return found


@asynccontextmanager
async def filled(url: str) -> AsyncGenerator[Any]:
    """A driver with many jobs."""
    driver: Any = await from_url(url)
    await driver.enqueue([group(*(job(f"{number}") for number in range(JOBS)))], T0)
    yield driver
    await driver.close()


def test_reads_of_operators_are_bounded(url: str, asked: list[tuple[Any, ...]]) -> None:
    """Q2, D13: cancel, replay, delete and reschedule look at some jobs at a time, whatever they are given."""

    async def act() -> None:
        async with filled(url) as driver:
            ids = [f"{number}" for number in range(JOBS)]
            asked.clear()
            moved = await driver.reschedule([Reschedule(id=id, run_at=at(60)) for id in ids], T0)
            assert all(moved)
            assert set(await driver.cancel(ids, T0, at(9))) == {"cancelled"}
            assert set(await driver.replay([Replay(id=id) for id in ids], T0)) == {"replayed"}
            await driver.cancel(ids, T0, at(9))
            assert set(await driver.delete(ids)) == {"deleted"}

    asyncio.run(act())
    looks = [len(words) for words in asked if words[0] == "look"]
    assert len(looks) > 4 * JOBS // AT_MOST
    assert max(looks) <= 3 * AT_MOST + 10


def test_a_query_without_a_match_reads_page_by_page(url: str, asked: list[tuple[Any, ...]]) -> None:
    """D13: no call reads them all."""

    async def act() -> None:
        async with filled(url) as driver:
            asked.clear()
            assert await driver.query(Filter(task="nothing"), T0, 10) == []

    asyncio.run(act())
    assert max(len(words) for words in asked if words[0] == "look") < AT_MOST
    assert all("LIMIT" in words for words in asked if words[0] == "ZREVRANGEBYSCORE")


def test_keys_are_read_in_one_call(url: str, asked: list[tuple[Any, ...]]) -> None:
    """I1: a batch of keyed jobs costs no call per key, whether they are known or new."""

    async def act() -> None:
        driver: Any = await from_url(url)
        for again in ("", "again "):
            asked.clear()
            jobs = [job(f"{again}{number}", idempotency_key=f"key {number}") for number in range(200)]
            (answers,) = await driver.enqueue([group(*jobs)], T0)
            assert [it.created for it in answers] == [not again] * 200
            assert len(asked) < 10
        await driver.close()

    asyncio.run(act())


def test_a_large_workflow_is_cancelled_whole(url: str) -> None:
    """K4, T3: read in several bites, written in one: no dependant is released on the way."""

    async def act() -> None:
        driver: Any = await from_url(url)
        members = [job(f"{number}", workflow_id="w") for number in range(JOBS)]
        last = job("last", workflow_id="w", depends_on=tuple(Dependency(it.id, "collect") for it in members))
        await driver.enqueue([group(*members, last)], T0)
        ids = [it.id for it in (*members, last)]
        assert set(await driver.cancel(ids, T0, at(9))) == {"cancelled"}
        (flow,) = await driver.workflows(9)
        assert flow.states == {"cancelled": JOBS + 1}
        await driver.close()

    asyncio.run(act())


def test_a_prune_reads_no_record_that_a_dependant_needs(url: str, asked: list[tuple[Any, ...]]) -> None:
    """X8, K3: chains whose second step is dead keep the first for a month; each round of each worker passes them."""

    async def act() -> None:
        driver: Any = await from_url(url)
        chains = [
            group(
                job(f"p{number}", workflow_id=f"w{number}"),
                child(f"c{number}", f"p{number}", workflow_id=f"w{number}", queue="x"),
                workflow_id=f"w{number}",
            )
            for number in range(CHAINS)
        ]
        await driver.enqueue([*chains, group(job("plain"))], T0)
        await _ended(driver, "q", ack, keep_until=at(10))
        await _ended(driver, "x", fail, keep_until=at(50))
        asked.clear()
        assert await driver.prune(at(20), ALL) == 1
        assert "plain" in {word for words in asked if words[0] == "look" for word in words}
        assert sum(len(words) for words in asked if words[0] == "look") < 20
        assert await driver.prune(at(50), CHAINS) == CHAINS
        assert await driver.prune(at(50), ALL) == CHAINS
        assert await driver.query(Filter(), at(50), ALL) == []
        await driver.close()

    asyncio.run(act())


def test_a_prune_takes_what_is_behind_a_workflow_that_has_to_stay(url: str) -> None:
    """X8: of any number, in one call."""

    async def act() -> None:
        driver: Any = await from_url(url)
        members = [job(f"m{number}", workflow_id="w") for number in range(JOBS // 2)]
        await driver.enqueue([group(*members, job("open", workflow_id="w", queue="x"), workflow_id="w")], T0)
        await _ended(driver, "q", ack, keep_until=at(10))
        await driver.enqueue([group(*(job(f"{number}") for number in range(JOBS // 2)))], T0)
        await _ended(driver, "q", ack, keep_until=at(11))
        assert await driver.prune(at(20), ALL) == JOBS // 2
        assert await driver.prune(at(20), ALL) == 0
        await driver.close()

    asyncio.run(act())


async def _ended(driver: Any, queue: str, outcome: Callable[..., Any], **fields: Any) -> None:
    """Claim and end all jobs of a queue."""
    while held := await driver.reserve([queue], T0, timedelta(seconds=60), 500, "w"):
        assert set(await driver.settle([outcome(one, **fields) for one in held], T0)) == {"ok"}
