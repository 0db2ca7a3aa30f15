"""A client in a process of its own, for the kit's cases with real parallelism: opens a URL, acts when told, reports.

`python -m taskharbor.testing.process URL ROLE ARGUMENTS` says `ready`, waits for a line, plays its role and prints what
it got as JSON lines.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from taskharbor.core.job import NewJob
from taskharbor.core.transition import Ack
from taskharbor.driver import Driver, Group
from taskharbor.drivers import from_url

EPOCH = datetime(2026, 3, 1, tzinfo=UTC)
KEEP = EPOCH + timedelta(days=1)


def _job(id: str, key: str | None = None) -> NewJob:
    return NewJob(id=id, type="t", queue="q", payload=b"{}", idempotency_key=key)


async def reserve(driver: Driver, asked: dict[str, Any]) -> list[Any]:
    """Claim in rounds, each `step` seconds later than the one before: (id, version, token, claimed, expires)."""
    got: list[Any] = []
    for number in range(asked["rounds"]):
        now = EPOCH + timedelta(seconds=number * asked["step"])
        for job in await driver.reserve(["q"], now, timedelta(seconds=asked["lease"]), asked["limit"], "w"):
            assert job.lease is not None
            claimed, expires = ((each - EPOCH).total_seconds() for each in (now, job.lease.expires_at))
            got.append([job.id, job.version, job.lease.token, claimed, expires])
    return got


async def submit(driver: Driver, asked: dict[str, Any]) -> list[Any]:
    """Enqueue jobs of the same keys, several at once: (key, id, created)."""

    async def one(key: str, id: str) -> list[Any]:
        [result] = await driver.enqueue([Group(jobs=(_job(id, key),))], EPOCH)
        assert isinstance(result, tuple)
        return [key, result[0].id, result[0].created]

    calls = [one(key, f"{asked['name']}-{key}-{n}") for key in asked["keys"] for n in range(asked["each"])]
    return list(await asyncio.gather(*calls))


async def finish(driver: Driver, asked: dict[str, Any]) -> list[Any]:
    """Claim and ack a few at a time, in so many rounds: the ids, in order."""
    done: list[Any] = []
    for _ in range(asked["rounds"]):
        held = await driver.reserve(["q"], EPOCH, timedelta(seconds=60), asked["limit"], "w")
        acks = [Ack(id=job.id, token=job.lease.token, keep_until=KEEP) for job in held if job.lease is not None]
        verdicts = await driver.settle(acks, EPOCH)
        done += [job.id for job, verdict in zip(held, verdicts, strict=True) if verdict == "ok"]
    return done


async def store_groups(driver: Driver, asked: dict[str, Any]) -> list[Any]:
    """Enqueue the same groups as everybody else: (number, whether this process stored it)."""
    got: list[Any] = []
    for number in range(asked["groups"]):
        jobs = tuple(_job(f"g{number}-{n}") for n in range(asked["size"]))
        [result] = await driver.enqueue([Group(jobs=jobs)], EPOCH)
        got.append([number, isinstance(result, tuple)])
    return got


ROLES: dict[str, Callable[[Driver, dict[str, Any]], Awaitable[list[Any]]]] = {
    "reserve": reserve,
    "submit": submit,
    "finish": finish,
    "groups": store_groups,
}


async def play(url: str, role: str, arguments: str) -> None:
    """Open, wait for the word, act, report."""
    driver = await from_url(url)
    try:
        print("ready", flush=True)  # noqa: T201
        await asyncio.to_thread(sys.stdin.readline)
        for line in await ROLES[role](driver, json.loads(arguments)):
            print(json.dumps(line))  # noqa: T201
    finally:
        await driver.close()


if __name__ == "__main__":
    asyncio.run(play(*sys.argv[1:]))
