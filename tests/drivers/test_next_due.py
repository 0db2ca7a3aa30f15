"""The next due time, which idle workers wait for, on the engines that look it up by SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from servers.nats import NatsServer
from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer
from taskharbor.drivers import from_url
from taskharbor.testing.kit.jobs import T0, at, group, job


@pytest.fixture(params=["sqlite", "postgres", "redis", "nats"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
    elif request.param in ("redis", "nats"):
        shared: ValkeyServer | NatsServer = request.getfixturevalue("valkey" if request.param == "redis" else "nats")
        namespace = shared.new_namespace()
        yield shared.url(namespace=namespace)
        shared.drop_namespace(namespace)
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        name = server.new_database()
        yield server.url(name, migrate="true")
        server.drop_database(name)


def test_leases_of_others_wake_no_worker(url: str) -> None:
    """D13, D3: one that runs out in a queue that is not asked about, or is paused, gives an idle worker nothing to do;
    one that has run out already would have it ask without end."""

    async def act() -> None:
        driver: Any = await from_url(url)
        await driver.enqueue([group(job("a", queue="mine")), group(job("b", queue="other"))], T0)
        for queue, seconds in (("mine", 30), ("other", 10)):
            await driver.reserve([queue], T0, timedelta(seconds=seconds), 1, "w")
        assert await driver.next_due(["mine"]) == at(30)
        assert await driver.next_due(["mine", "other"]) == at(10)
        assert await driver.next_due(["third"]) is None
        await driver.pause("other", True)
        assert await driver.next_due(["mine", "other"]) == at(30)
        assert await driver.next_due(["other"]) is None
        await driver.pause("other", False)
        assert await driver.next_due(["other"]) == at(10)
        await driver.close()

    asyncio.run(act())


def test_a_lapsed_job_that_must_stop_wakes_no_worker(url: str) -> None:
    """D13, T3: upkeep ends it, and no worker is to ask for it until then."""

    async def act() -> None:
        driver: Any = await from_url(url)
        await driver.enqueue([group(job("a"))], T0)
        await driver.reserve(["q"], T0, timedelta(seconds=5), 1, "w")
        assert await driver.reserve(["other"], at(5), timedelta(seconds=5), 1, "w") == []
        assert await driver.next_due(["q"]) is not None
        assert await driver.cancel(["a"], at(5), at(99)) == ["requested"]
        assert await driver.next_due(["q"]) is None
        assert await driver.reserve(["q"], at(5), timedelta(seconds=5), 1, "w") == []
        await driver.close()

    asyncio.run(act())
