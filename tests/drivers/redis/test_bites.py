"""How much one call does: a long script holds up every worker, a call per job every caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from servers.valkey import ValkeyServer
from taskharbor.core.evolve import Replay, Reschedule
from taskharbor.core.filter import Filter
from taskharbor.core.job import Dependency
from taskharbor.drivers import from_url
from taskharbor.drivers.redis.connection import Server
from taskharbor.testing.kit.jobs import T0, at, group, job

from . import indexes

JOBS = 1_200
AT_MOST = 500


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
