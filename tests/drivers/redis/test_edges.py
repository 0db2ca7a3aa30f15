"""Names and times at the edge of what keys, members and scores can hold."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from servers.valkey import ValkeyServer
from taskharbor.core.decide import token_of
from taskharbor.core.group import Group
from taskharbor.core.lease import Report
from taskharbor.core.tally import minute_of
from taskharbor.core.transition import Ack, Increment
from taskharbor.drivers import from_url
from taskharbor.drivers.redis import enqueue
from taskharbor.errors import DriverUnavailable, StoreCorrupt
from taskharbor.testing.kit.jobs import T0, ack, at, child, group, job

from . import indexes

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FOREVER = datetime.max.replace(tzinfo=UTC)
LEASE = timedelta(seconds=5)


@pytest.fixture
def name(valkey: ValkeyServer) -> Generator[str]:
    namespace = valkey.new_namespace()
    yield namespace
    indexes.check(valkey, namespace)
    valkey.drop_namespace(namespace)


@pytest.fixture
def url(valkey: ValkeyServer, name: str) -> str:
    return valkey.url(namespace=name)


@pytest.mark.parametrize("called", ["", " ", "a b:c", "-", "{x}", "\u00fc\n\0", "0 1 2"])
def test_any_name_will_do(url: str, called: str) -> None:
    """D1, D2, I1, K1: for jobs, queues, keys and workflows."""

    async def act() -> None:
        driver: Any = await from_url(url)
        named = job(called, queue=called, workflow_id=called, idempotency_key=called)
        for created in (True, False):
            ((answer,),) = await driver.enqueue([group(named)], T0)
            assert (answer.id, answer.created) == (called, created)
        assert await driver.find_key(called, T0) == called
        (claimed,) = await driver.reserve([called], T0, LEASE, 1, called)
        report = Report(id=called, token=token_of(claimed), started_at=at(1))
        assert (await driver.extend_lease([report], at(1), LEASE))[0].expires_at == at(6)
        (counts,) = await driver.counts(at(1))
        assert (counts.queue, counts.running) == (called, 1)
        assert await driver.settle([Ack(id=called, token=token_of(claimed), keep_until=at(9))], at(2)) == ["ok"]
        assert [flow.id for flow in await driver.workflows(9)] == [called]
        assert await driver.prune(at(9), 9) == 1
        assert await driver.workflows(9) == []
        assert await driver.get([called]) == [None]
        await driver.close()

    asyncio.run(act())


def test_a_workflow_of_which_a_record_is_kept_forever_stays(url: str) -> None:
    """X8, K3: a time without end is kept to the microsecond, which a score is not."""

    async def act() -> None:
        driver: Any = await from_url(url)
        await driver.enqueue([group(job("a", workflow_id="w"), job("b", workflow_id="w"))], T0)
        claimed = await driver.reserve(["q"], T0, LEASE, 2, "w")
        ends = zip(claimed, (at(2), FOREVER), strict=True)
        await driver.settle([Ack(id=it.id, token=token_of(it), keep_until=until) for it, until in ends], at(1))
        assert await driver.prune(at(5), 9) == 0
        assert [it.keep_until for it in await driver.get(["a", "b"])] == [FOREVER, FOREVER]
        await driver.close()

    asyncio.run(act())


@pytest.mark.parametrize("damaged", ["total", "count"])
@pytest.mark.parametrize("workflow", [None, "w"])
def test_a_number_that_cannot_be_added_to_stops_no_outcome(
    valkey: ValkeyServer, name: str, workflow: str | None, damaged: str
) -> None:
    """D7, K2: an error there would leave the rest of the outcome unwritten."""

    async def act() -> None:
        driver: Any = await from_url(valkey.url(namespace=name))
        await driver.enqueue([group(job("a", workflow_id=workflow))], T0)
        (claimed,) = await driver.reserve(["q"], T0, LEASE, 1, "w")
        increment = Increment("q", "t", "done", T0)
        if damaged == "total":
            minute = (minute_of(T0) - EPOCH) // timedelta(microseconds=1)
            valkey.command("HSET", f"{{{name}}}:tally:{minute}", 'ran ["q","t","done"]', 2**63 - 1)
        else:
            valkey.command("HSET", f"{{{name}}}:counts", "done q", "much")
        ack = Ack(id="a", token=token_of(claimed), keep_until=at(9), started_at=T0, increment=increment)
        assert await driver.settle([ack], at(1)) == ["ok"]
        if damaged == "count":
            valkey.command("HSET", f"{{{name}}}:counts", "done q", 1)
        (total,) = await driver.tallies(T0 - timedelta(minutes=1))
        assert total.count == 1
        await driver.close()

    asyncio.run(act())


def test_text_that_cannot_be_stored_is_not_taken_for_the_host(url: str) -> None:
    """X5: the error names the text."""

    async def act() -> None:
        driver: Any = await from_url(url)
        with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
            await driver.find_key("\ud800", T0)
        await driver.close()

    asyncio.run(act())


@pytest.mark.parametrize("blocking", [False, True])
def test_an_error_of_one_group_is_not_that_of_the_others(
    valkey: ValkeyServer, name: str, url: str, blocking: bool
) -> None:
    """D1: strangers share a call. An exception would say that nothing was stored, and they would enqueue again."""

    async def act() -> None:
        driver: Any = await from_url(url)

        async def enqueued(*groups: Group) -> list[Any]:
            if blocking:
                return list(driver.enqueue_blocking(groups, T0, 9))
            return list(await driver.enqueue(groups, T0))

        await enqueued(group(job("owner", idempotency_key="k")))
        head = valkey.command("HGET", f"{{{name}}}:job", "owner")
        valkey.command("HSET", f"{{{name}}}:job", "owner", "no head")
        keyed = group(job("keyed", idempotency_key="k"))
        with pytest.raises(StoreCorrupt):
            await enqueued(keyed)
        ((before,), error, (after,)) = await enqueued(group(job("a")), keyed, group(job("b")))
        assert (before.created, type(error), after.created) == (True, StoreCorrupt, True)
        valkey.command("HSET", f"{{{name}}}:job", "owner", head)
        await driver.close()

    asyncio.run(act())


def test_a_server_that_is_away_in_the_middle_of_a_call(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D1, X2: what was stored before is answered, and the others are not tried."""
    asked: list[Group] = []

    async def away(calls: object, step: object, wanted: Group, now: datetime) -> object:
        asked.append(wanted)
        raise DriverUnavailable("away")

    async def act() -> None:
        driver: Any = await from_url(url)
        monkeypatch.setattr(enqueue, "run", away)
        keyed = group(job("b", idempotency_key="k"))
        (stored, *errors) = await driver.enqueue([group(job("a")), keyed, group(job("c")), keyed], T0)
        assert (stored[0].created, [type(error) for error in errors]) == (True, [DriverUnavailable] * 3)
        assert len({id(error) for error in errors}) == 3  # each is raised by another caller
        assert asked == [keyed]
        with pytest.raises(DriverUnavailable):
            await driver.enqueue([keyed, group(job("c"))], T0)
        assert await driver.get(["c"]) == [None]
        await driver.close()

    asyncio.run(act())


def test_a_workflow_may_have_the_id_of_a_job(url: str) -> None:
    """I2, K1: the key of the one is not taken for that of the other."""

    async def act() -> None:
        driver: Any = await from_url(url)
        whole = Group(jobs=(job("x", workflow_id="x", idempotency_key="job"),), key="flow", workflow_id="x")
        await driver.enqueue([whole], T0)
        assert [await driver.find_key(key, T0) for key in ("job", "flow")] == ["x", "x"]
        assert await driver.free_workflow_key("x")
        assert await driver.find_key("flow", T0) is None
        await driver.enqueue([group(job("y", workflow_id="z")), group(job("z", idempotency_key="other"))], T0)
        assert await driver.cancel(["y"], T0, at(9)) == ["cancelled"]
        ((again,),) = await driver.enqueue([group(job("w", idempotency_key="other"))], T0)
        assert (again.id, again.created) == ("z", False)
        await driver.close()

    asyncio.run(act())


def test_a_queue_that_is_over_leaves_nothing(valkey: ValkeyServer, url: str, name: str) -> None:
    """X8: or names of queues, which may be as many as customers, would fill the memory."""

    async def act() -> None:
        driver: Any = await from_url(url)
        for number in range(3):
            last = child("c", "p", queue=f"b{number}", workflow_id="w")
            await driver.enqueue([group(job("a", queue=f"a{number}")), group(job("p", workflow_id="w"), last)], T0)
            held = await driver.reserve([f"a{number}", "q"], T0, timedelta(seconds=9), 9, "w")
            assert await driver.settle([ack(one, keep_until=T0) for one in held], T0) == ["ok", "ok"]
            assert await driver.cancel(["c"], T0, T0) == ["cancelled"]
            assert await driver.prune(T0, 9) == 3
        await driver.close()

    asyncio.run(act())
    left = {key.decode().partition(":")[2] for key in valkey.keys(name)}
    assert left == {"taskharbor", "seq"}


def test_a_lapsed_job_that_is_renewed_leaves_no_name_of_its_line(url: str) -> None:
    """D6: by a clock that has gone back; the fixture compares all indexes."""

    async def act() -> None:
        driver: Any = await from_url(url)
        await driver.enqueue([group(job("a"))], T0)
        (held,) = await driver.reserve(["q"], T0, LEASE, 1, "w")
        assert await driver.reserve(["elsewhere"], at(5), LEASE, 1, "w") == []
        report = Report(id="a", token=token_of(held))
        assert (await driver.extend_lease([report], at(4), LEASE))[0].expires_at == at(9)
        await driver.close()

    asyncio.run(act())
