"""Claims among many lapsed leases, and from indexes that are not in order."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import timedelta
from typing import Any

import pytest

from servers.valkey import ValkeyServer
from taskharbor.core.transition import PutBack
from taskharbor.drivers import from_url
from taskharbor.drivers.redis.connection import Server
from taskharbor.errors import StoreCorrupt
from taskharbor.testing.kit.jobs import T0, at, group, job, token_of

from . import indexes

LEASE = timedelta(seconds=5)
AT_ONCE = 1000  # leases that one script puts in line
PASSED = 5000  # jobs that one script passes


@pytest.fixture
def name(valkey: ValkeyServer) -> Generator[str]:
    namespace = valkey.new_namespace()
    yield namespace
    indexes.check(valkey, namespace)
    valkey.drop_namespace(namespace)


@pytest.mark.parametrize("number", [AT_ONCE - 1, AT_ONCE, 2 * AT_ONCE + 1])
def test_of_any_number_of_lapsed_jobs_the_first_in_line_is_claimed(
    valkey: ValkeyServer, name: str, number: int
) -> None:
    """D11, D5: not only of those that one script puts in line."""

    async def act() -> None:
        driver: Any = await from_url(valkey.url(namespace=name))
        last = number - 1
        await driver.enqueue([group(*(job(f"{n:04}", priority=int(n == last)) for n in range(number)))], T0)
        assert len(await driver.reserve(["q"], T0, LEASE, number, "w")) == number
        (claimed,) = await driver.reserve(["q"], at(5), LEASE, 1, "w")
        assert (claimed.id, claimed.version) == (f"{last:04}", 2)
        others = await driver.reserve(["q"], at(5), LEASE, number, "w")
        assert [each.id for each in others] == [f"{n:04}" for n in range(last)]
        await driver.close()

    asyncio.run(act())


@pytest.mark.parametrize("queues", [["q"], ["q", "r"]])
def test_many_jobs_that_cannot_be_claimed_do_not_block_the_server(
    valkey: ValkeyServer, name: str, monkeypatch: pytest.MonkeyPatch, queues: list[str]
) -> None:
    """D3, D11, F7: the script passes some thousands of them at a time, and the due jobs behind are found."""
    asked: list[object] = []
    calls: list[int] = []

    async def act() -> None:
        driver: Any = await from_url(valkey.url(namespace=name))
        for priority in (0, 1):
            expiring = (job(f"{priority} {n}", priority=priority, expires_at=at(1)) for n in range(PASSED + 1))
            await driver.enqueue([group(*expiring)], T0)
        await driver.enqueue([group(*(job(each, queue=queues[-1]) for each in "abc"))], at(1))
        run = Server.run

        def counted(server: Server, *words: Any) -> Any:
            asked.append(words[0])
            return run(server, *words)

        monkeypatch.setattr(Server, "run", counted)
        claimed: list[str] = []
        while jobs := await driver.reserve(queues, at(2), LEASE, 2, "w"):
            claimed += [each.id for each in jobs]
            calls.append(len(claimed))
        assert claimed == ["a", "b", "c"]
        await driver.close()

    asyncio.run(act())
    assert len(asked) > 2 * len(calls)


@pytest.mark.parametrize("head", [None, "damaged"])
def test_an_entry_without_a_job_stops_no_other(valkey: ValkeyServer, name: str, head: str | None) -> None:
    """F7, X5: an error in the midst of the script would take the jobs before it out of line, for ever."""

    async def act() -> None:
        driver: Any = await from_url(valkey.url(namespace=name))
        prefix = f"{{{name}}}:"
        await driver.enqueue([group(job("a", queue="a")), group(job("b", queue="b")), group(job("c", queue="b"))], T0)
        if head is not None:
            valkey.command("HSET", f"{prefix}job", "ghost", head)
        valkey.command("ZADD", f"{prefix}line:0:b", 0, f"{0:016}ghost")
        valkey.command("ZADD", f"{prefix}leases", 0, "ghost")
        claimed = [each.id for each in await driver.reserve(["a", "b"], T0, LEASE, 4, "w")]
        assert claimed == ["a", "b", "c"]
        valkey.command("HDEL", f"{prefix}job", "ghost")
        valkey.command("ZREM", f"{prefix}line:0:b", f"{0:016}ghost")
        valkey.command("ZREM", f"{prefix}ranks:b", "0")
        await driver.close()

    asyncio.run(act())


@pytest.mark.parametrize("part", ["card", "claim", "end", "rest", "progress", "started", "no card"])
def test_a_job_that_cannot_be_read_ends_as_a_dead_letter(
    valkey: ValkeyServer, name: str, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    """X5, F7: undecodable; the others of the same claim are answered, and it can be shown and deleted."""

    async def act() -> None:
        driver: Any = await from_url(valkey.url(namespace=name))
        prefix = f"{{{name}}}:"
        await driver.enqueue([group(*(job(each) for each in "abc"))], T0)
        held = {each.id: each for each in await driver.reserve(["q"], T0, LEASE, 9, "w")}
        back = [PutBack(id=id, token=token_of(it), keep_until=T0, run_at=at(2)) for id, it in held.items()]
        assert await driver.settle(back, at(1)) == ["ok"] * 3
        if part == "no card":
            valkey.command("HDEL", f"{prefix}card", "b")
        else:
            valkey.command("HSET", f"{prefix}{part}", "b", b"\xc1")
        assert [each.id if each else None for each in await driver.get(["a", "b", "c"])] == ["a", "b", "c"]
        claimed = [each.id for each in await driver.reserve(["q"], at(3), LEASE, 9, "w")]
        if part in ("claim", "started", "progress"):  # a claim writes these
            assert claimed == ["a", "b", "c"]
        else:
            assert claimed == ["a", "c"]
            (dead,) = await driver.get(["b"])
            assert (dead.state, dead.dlq_reason, dead.lease) == ("dlq", "undecodable", None)
            assert "the stored job is damaged" in dead.last_error
            assert await driver.delete(["b"]) == ["deleted"]
            assert [text.split(" is ")[0] for text in caplog.messages if "corrupt" in text] == [
                "store.corrupt: job 'b'"
            ]
        await driver.close()

    asyncio.run(act())


def test_a_head_that_cannot_be_read_is_an_error_with_a_fix(valkey: ValkeyServer, name: str) -> None:
    """X5: and no claim meets it."""

    async def act() -> None:
        driver: Any = await from_url(valkey.url(namespace=name))
        prefix = f"{{{name}}}:"
        await driver.enqueue([group(job("a"), job("b"))], T0)
        valkey.command("HSET", f"{prefix}job", "a", "nonsense")
        assert [each.id for each in await driver.reserve(["q"], T0, LEASE, 9, "w")] == ["b"]
        with pytest.raises(StoreCorrupt, match=r"job a is damaged .* delete its entry"):
            await driver.get(["a"])
        valkey.drop_namespace(name)
        await driver.close()

    asyncio.run(act())
