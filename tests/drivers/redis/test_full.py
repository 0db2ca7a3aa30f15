"""A server whose memory is full: it takes no new jobs, and all others go on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from servers.fixtures import NewValkey
from taskharbor.core.decide import token_of
from taskharbor.core.evolve import DeadLetter, Reschedule
from taskharbor.core.lease import Report
from taskharbor.core.transition import Ack, PutBack
from taskharbor.driver import WorkerRecord
from taskharbor.drivers import from_url
from taskharbor.errors import DriverUnavailable
from taskharbor.testing.kit.jobs import T0, at, group, job

from . import indexes

LEASE = timedelta(seconds=5)


def test_jobs_go_on_and_new_ones_are_refused(new_valkey: NewValkey) -> None:
    """X5, G1, L2: without heartbeats and outcomes jobs would run again, and without pruning nothing makes room."""
    valkey = new_valkey()

    async def act() -> None:
        driver: Any = await from_url(valkey.url(namespace="full"))
        await driver.enqueue([group(*(job(each) for each in "abcdefg"))], T0)
        await driver.enqueue([group(job("w", workflow_id="w"))], T0)
        a, b, c, *_ = await driver.reserve(["q"], T0, LEASE, 5, "w")
        assert await driver.settle([Ack(id="a", token=token_of(a), keep_until=at(1))], T0) == ["ok"]
        valkey.command("CONFIG", "SET", "maxmemory", "1")

        for refused in (job("x"), job("x", idempotency_key="x"), job("x", workflow_id="x")):
            with pytest.raises(DriverUnavailable, match="out of memory, and nothing was stored"):
                await driver.enqueue([group(refused)], at(1))
        (extended,) = await driver.extend_lease([Report(id="b", token=token_of(b), started_at=T0)], at(1), LEASE)
        assert extended.expires_at == at(6)
        outcomes = [
            Ack(id="b", token=token_of(b), keep_until=at(9)),
            PutBack(id="c", token=token_of(c), run_at=at(50), attempts=1, keep_until=at(9)),
        ]
        assert await driver.settle(outcomes, at(2)) == ["ok", "ok"]
        (flow,) = await driver.reserve(["q"], at(2), LEASE, 3, "w", ids=["w"])
        assert await driver.settle([Ack(id="w", token=token_of(flow), keep_until=at(9))], at(2)) == ["ok"]
        lapsed = await driver.reserve(["q"], at(6), LEASE, 9, "w")
        assert [each.id for each in lapsed] == ["d", "e", "f", "g"]
        assert [each.crashes for each in lapsed] == [1, 1, 0, 0]
        assert await driver.prune(at(9), 9) == 3
        assert [each.state.value for each in await driver.get(["c", "d", "e"])] == ["ready", "inflight", "inflight"]
        await driver.cancel(["c"], at(9), at(10))
        assert await driver.delete(["c"]) == ["deleted"]
        indexes.check(valkey, "full")

        valkey.command("CONFIG", "SET", "maxmemory", "0")
        await driver.enqueue([group(job("x"))], at(10))
        await driver.close()

    asyncio.run(act())


def test_an_operator_is_obeyed(new_valkey: NewValkey) -> None:
    """X5, T3, Q4: requests to stop, pauses, new times and reports of workers get through."""
    valkey = new_valkey()

    async def act() -> None:
        driver: Any = await from_url(valkey.url(namespace="full"))
        await driver.enqueue([group(*(job(each) for each in "abc"))], T0)
        await driver.reserve(["q"], T0, LEASE, 2, "w")
        valkey.command("CONFIG", "SET", "maxmemory", "1")
        assert await driver.cancel(["a"], T0, at(9)) == ["requested"]
        assert await driver.dead_letter([DeadLetter(id="b", reason="r", fingerprint="f", keep_until=at(9))], T0) == [
            "requested"
        ]
        assert await driver.reschedule([Reschedule(id="c", run_at=at(60), priority=7)], T0) == [True]
        await driver.pause("q", True)
        assert [each.paused for each in await driver.counts(T0)] == [True]
        await driver.beat(
            WorkerRecord(id="w", host="h", pid=1, queues=("q",), slots=1, busy=0, started_at=T0, seen_at=T0)
        )
        assert [each.id for each in await driver.workers(T0)] == ["w"]
        assert (await driver.get(["c"]))[0].priority == 7
        indexes.check(valkey, "full")
        await driver.close()

    asyncio.run(act())


def test_an_outcome_with_new_jobs_holds_up_no_other(new_valkey: NewValkey) -> None:
    """D7, D9, X5: it is refused as a whole, and those of the same batch are written."""
    valkey = new_valkey()

    async def act() -> None:
        driver: Any = await from_url(valkey.url(namespace="full"))
        await driver.enqueue([group(job("a")), group(job("w", workflow_id="w"))], T0)
        a, w = await driver.reserve(["q"], T0, LEASE, 2, "w")
        valkey.command("CONFIG", "SET", "maxmemory", "1")
        outcomes = [
            Ack(id="a", token=token_of(a), keep_until=at(9), new_jobs=(job("new"),)),
            Ack(id="w", token=token_of(w), keep_until=at(9)),
        ]
        with pytest.raises(DriverUnavailable, match="out of memory, and nothing was stored"):
            await driver.settle(outcomes, at(1))
        found = await driver.get(["a", "w", "new"])
        assert [each and each.state.value for each in found] == ["inflight", "done", None]
        valkey.command("CONFIG", "SET", "maxmemory", "0")
        assert await driver.settle(outcomes, at(2)) == ["ok", "replayed"]
        indexes.check(valkey, "full")
        await driver.close()

    asyncio.run(act())
