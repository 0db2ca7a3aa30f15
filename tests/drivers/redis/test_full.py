"""A server whose memory is full: it takes no new jobs, and all others go on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from servers.fixtures import NewValkey
from taskharbor.core.decide import token_of
from taskharbor.core.lease import Report
from taskharbor.core.transition import Ack, PutBack
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
