"""Clients in separate processes, for the kit's cases with real parallelism: open a URL, act together, report.

`python -m taskharbor.testing.process URL ROLE ARGUMENTS…` forks one client per ARGUMENTS, so that all of them cost one
start of the interpreter. It prints `ready` when all have opened the store. Each client then waits for one byte of
stdin and plays its role; its result is printed as a line of JSON, in the order of the ARGUMENTS.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO

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
    """Claim and ack a few at a time, in this many rounds: the ids, in order."""
    done: list[Any] = []
    for _ in range(asked["rounds"]):
        held = await driver.reserve(["q"], EPOCH, timedelta(seconds=60), asked["limit"], "w")
        acks = [Ack(id=job.id, token=job.lease.token, keep_until=KEEP) for job in held if job.lease is not None]
        verdicts = await driver.settle(acks, EPOCH)
        done += [job.id for job, verdict in zip(held, verdicts, strict=True) if verdict == "ok"]
    return done


async def store_groups(driver: Driver, asked: dict[str, Any]) -> list[Any]:
    """Enqueue the same groups as all other clients: (number, whether this process stored it)."""
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


async def play(url: str, role: str, asked: dict[str, Any], report: TextIO) -> None:
    """Open, wait for the start, act, report."""
    driver = await from_url(url)
    try:
        print("ready", file=report, flush=True)
        await asyncio.to_thread(os.read, sys.stdin.fileno(), 1)
        json.dump(await ROLES[role](driver, asked), report)
    finally:
        await driver.close()


def fork(url: str, role: str, arguments: str) -> tuple[int, TextIO]:
    """Start one client; return its process id and the pipe on which it reports.

    It opens the store by itself: a connection does not survive a fork.
    """
    reading, writing = os.pipe()
    if pid := os.fork():
        os.close(writing)
        return pid, os.fdopen(reading)
    with os.fdopen(writing, "w") as report:
        asyncio.run(play(url, role, json.loads(arguments), report))
    os._exit(0)


def main(url: str, role: str, *arguments: str) -> None:
    """Let all clients act together, and print the result of each."""
    clients = [fork(url, role, each) for each in arguments]
    if any(report.readline() != "ready\n" for _, report in clients):
        sys.exit("a client could not open the store")
    print("ready", flush=True)  # noqa: T201
    for _, report in clients:
        print(report.read())  # noqa: T201
    sys.exit(int(any(os.waitpid(pid, 0)[1] for pid, _ in clients)))


if __name__ == "__main__":
    main(*sys.argv[1:])
