"""Reads of more than a server sends in one reply bring everything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from servers.fixtures import NewNats
from taskharbor.core.filter import Filter
from taskharbor.drivers import from_url
from taskharbor.drivers.nats import store
from taskharbor.testing.kit.jobs import T0, group, job

LEASE = timedelta(seconds=30)
LARGE = b"x" * 100_000
IDS = [f"job-{number:02}" for number in range(30)]
Act = Callable[[Any], Awaitable[None]]


@pytest.fixture
def play(new_nats: NewNats, monkeypatch: pytest.MonkeyPatch) -> Callable[[Act], None]:
    """Runs a test with a driver on a server that cuts long replies early, in which there are 3 MB of jobs."""
    monkeypatch.setattr(store, "READ_BYTES", 500_000, raising=False)
    server = new_nats(config="max_pending: 1MB")

    async def act(test: Act) -> None:
        driver: Any = await from_url(server.url())
        try:
            await driver.enqueue([group(*(job(id, payload=LARGE) for id in IDS))], T0)
            await test(driver)
        finally:
            await driver.close()

    return lambda test: asyncio.run(act(test))


def test_all_jobs_are_found(play: Callable[[Act], None]) -> None:
    """D13: none is missing because the others are large."""

    async def act(driver: Any) -> None:
        assert [it and it.id for it in await driver.get(IDS)] == IDS
        assert len(await driver.query(Filter(), T0, 99)) == len(IDS)

    play(act)


def test_no_job_is_taken_for_damaged(play: Callable[[Act], None]) -> None:
    """D2: a card that was not in the first reply is read, not replaced by a blank one."""

    async def act(driver: Any) -> None:
        held = await driver.reserve(["q"], T0, LEASE, 99, "w")
        assert [it.id for it in held] == IDS
        assert {it.payload for it in held} == {LARGE}

    play(act)


def test_all_values_that_match_are_found(play: Callable[[Act], None]) -> None:
    """D13: of lists by pattern."""

    async def act(driver: Any) -> None:
        prefix = f"{driver._server.prefix}.j."
        assert set(await driver._store.matching(f"{prefix}*")) == {f"{prefix}{id}" for id in IDS}

    play(act)
