"""Changes by others between two reads, or between a claim and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from servers.valkey import ValkeyServer
from taskharbor.core.decide import token_of
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Report
from taskharbor.core.transition import Ack
from taskharbor.drivers import from_url
from taskharbor.drivers.redis import reading
from taskharbor.drivers.redis.connection import Server
from taskharbor.testing.kit.jobs import T0, at, group, job

from . import indexes

NUMBERS = ("scheduled", "ready", "waiting", "claimed", "running", "lapsed", "done", "dlq", "cancelled")
LEASE = timedelta(seconds=5)
ROUNDS, JOBS = 100, 10


@pytest.fixture
def url(valkey: ValkeyServer) -> Generator[str]:
    namespace = valkey.new_namespace()
    yield valkey.url(namespace=namespace)
    indexes.check(valkey, namespace)
    valkey.drop_namespace(namespace)


def test_counts_are_those_of_one_moment(url: str) -> None:
    """Q1, T2: whatever others do meanwhile, no number is negative and no job counts twice or not at all."""

    async def act() -> None:
        writer: Any = await from_url(url)
        reader: Any = await from_url(url)
        is_over = False

        async def write() -> None:
            nonlocal is_over
            for number in range(ROUNDS):
                jobs = [job(f"{number}-{n}", workflow_id=None if number % 4 else "flow") for n in range(JOBS)]
                await writer.enqueue([group(*jobs)], T0)
                claimed = await writer.reserve(["q"], T0, LEASE, JOBS, "w")
                await writer.settle([Ack(id=it.id, token=token_of(it), keep_until=at(99)) for it in claimed], at(1))
            is_over = True

        async def read() -> None:
            while not is_over:
                for queue in await reader.counts(at(1)):
                    numbers = [getattr(queue, name) for name in NUMBERS]
                    assert min(numbers) >= 0
                    assert sum(numbers) % JOBS == 0
                for flow in await reader.workflows(10):
                    assert min(flow.states.values()) > 0

        await asyncio.gather(write(), read(), read(), read())
        await writer.close()
        await reader.close()

    asyncio.run(act())


def test_counts_by_a_clock_that_is_behind(url: str) -> None:
    """T2, L8: a job that lapsed by the clock of another is claimed by this one, and no ready job is missing for it."""

    async def act() -> None:
        driver: Any = await from_url(url)
        await driver.enqueue([group(job("a"))], T0)
        await driver.reserve(["q"], T0, LEASE, 1, "w")
        await driver.reserve(["q"], at(6), LEASE, 1, "w")  # its first crash
        await driver.reserve(["other"], at(12), LEASE, 1, "w")  # lapsed again, and in line
        (counts,) = await driver.counts(at(7))
        assert {name: number for name in NUMBERS if (number := getattr(counts, name))} == {"claimed": 1}
        (counts,) = await driver.counts(at(12))
        assert {name: number for name in NUMBERS if (number := getattr(counts, name))} == {"lapsed": 1}
        assert counts.oldest_due == at(11)
        await driver.close()

    asyncio.run(act())


def test_a_claim_by_id_and_a_pause_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: a queue that is paused before the claim is written gives no job, and the others do."""

    async def act() -> None:
        driver: Any = await from_url(url)
        other: Any = await from_url(url)
        await driver.enqueue([group(job("a"), job("b", queue="other"))], T0)
        read, reads = reading.paused, 0

        async def paused(server: Server) -> set[str]:
            nonlocal reads
            reads += 1
            found = await read(server)
            if reads == 1:
                await other.pause("q", True)
            return found

        monkeypatch.setattr(reading, "paused", paused)
        assert [it.id for it in await driver.reserve([], T0, LEASE, 2, "w", ids=["a", "b"])] == ["b"]
        assert reads == 2
        (left,) = await driver.get(["a"])
        assert (left.state, left.version) == ("ready", 0)
        await other.pause("q", False)
        assert [it.id for it in await driver.reserve([], T0, LEASE, 2, "w", ids=["a", "b"])] == ["a"]
        await driver.close()
        await other.close()

    asyncio.run(act())


def test_a_claim_by_id_that_was_lost_before_its_answer_is_not_answered(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2, D3: no claim gets the token of another one."""

    async def act() -> None:
        driver: Any = await from_url(url)
        other: Any = await from_url(url)
        await driver.enqueue([group(job("a"))], T0)
        read, reads = reading.get, 0

        async def get(server: Server, ids: Sequence[str]) -> list[JobRecord | None]:
            nonlocal reads
            reads += 1
            if reads == 2:  # the first finds what is due
                assert len(await other.reserve(["q"], at(6), LEASE, 1, "other")) == 1
            return await read(server, ids)

        monkeypatch.setattr(reading, "get", get)
        assert await driver.reserve([], T0, LEASE, 1, "w", ids=["a"]) == []
        assert reads == 2
        await driver.close()
        await other.close()

    asyncio.run(act())


def test_a_lease_that_is_renewed_before_its_refusal_is_explained(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D6, D8: by the same token and a clock that is behind; it is in order then, and no sign of a damaged store."""

    async def act() -> None:
        driver: Any = await from_url(url)
        await driver.enqueue([group(job("a"))], T0)
        (held,) = await driver.reserve(["q"], T0, LEASE, 1, "w")
        report = Report(id="a", token=token_of(held))
        read = reading.get

        async def get(server: Server, ids: Sequence[str]) -> list[JobRecord | None]:
            monkeypatch.undo()
            assert (await driver.extend_lease([report], at(1), LEASE))[0].expires_at == at(6)
            return await read(server, ids)

        monkeypatch.setattr(reading, "get", get)
        (extended,) = await driver.extend_lease([report], at(5), LEASE)
        assert extended.expires_at == at(10)
        await driver.close()

    asyncio.run(act())
