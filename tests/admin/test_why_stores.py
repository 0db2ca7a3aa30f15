"""Why a job is where it is: every cause on every engine, from what the store says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from servers.nats import NatsServer
from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer
from taskharbor import Harbor, Job, Retry, Snooze, Unrecoverable, chain
from taskharbor.driver import Registry, Report, WorkerRecord, capability
from taskharbor.errors import LeaseError
from taskharbor.manager import TaskManager

NO_TIME = timedelta(microseconds=1)
HOUR = timedelta(hours=1)
CODES: dict[str, Callable[[Yard], Coroutine[Any, Any, str]]] = {}


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "nats"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store on each engine."""
    known = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}.get(request.param)
    if known is not None:
        return known
    if request.param == "redis":
        valkey: ValkeyServer = request.getfixturevalue("valkey")
        return valkey.url(namespace=valkey.new_namespace())
    if request.param == "nats":
        nats: NatsServer = request.getfixturevalue("nats")
        return nats.url(namespace=nats.new_namespace())
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.new_database(), migrate="true")


class Yard:
    """A queue, and a task on it that does what its arguments say."""

    def __init__(self, harbor: Harbor, queue: str) -> None:
        self.harbor = harbor
        self.queue = queue

        @harbor.task(name=f"work.{queue}", queue=queue)
        async def work(what: str = "") -> None:
            match what:
                case "fail":
                    raise ValueError("no")
                case "die":
                    raise Unrecoverable("never")
                case "snooze":
                    raise Snooze(3600)
                case _:
                    pass

        self.work = work

    async def ran(self, what: str = "") -> str:
        """A job after its first run."""
        job = await self.work.aenqueue(what)
        await self.harbor.adrain([self.queue])
        return job.id

    async def claim(self, lease_for: timedelta) -> str:
        """Claim a job; its token."""
        driver = await self.harbor.adriver()
        (job,) = await driver.reserve([self.queue], self.harbor.admin.now(), lease_for, 1, "web-1")
        assert job.lease is not None
        return job.lease.token

    async def listen(self, *, busy: int = 0, age: float = 0) -> None:
        """A worker on the queue that reported so many seconds ago."""
        now = self.harbor.admin.now()
        seen = now - timedelta(seconds=age)
        worker = WorkerRecord(
            id="w", host="h", pid=1, queues=(self.queue,), slots=1, busy=busy, started_at=seen, seen_at=seen
        )
        await capability(await self.harbor.adriver(), Registry).beat(worker)


def case(scene: Callable[[Yard], Coroutine[Any, Any, str]]) -> None:
    """A scene that is named like the code it leads to, and gives the id of the job."""
    CODES[scene.__name__] = scene


@case
async def queue_without_worker(yard: Yard) -> str:
    return (await yard.work.aenqueue()).id


@case
async def silent(yard: Yard) -> str:
    await yard.listen(age=30)
    return (await yard.work.aenqueue()).id


@case
async def busy(yard: Yard) -> str:
    await yard.listen(busy=1)
    return (await yard.work.aenqueue()).id


@case
async def in_line(yard: Yard) -> str:
    await yard.listen()
    return (await yard.work.aenqueue()).id


@case
async def paused(yard: Yard) -> str:
    await yard.harbor.admin.queues.apause(yard.queue)
    return (await yard.work.aenqueue()).id


@case
async def expired(yard: Yard) -> str:
    return (await yard.work.using(expires=0.000001).aenqueue()).id


@case
async def scheduled(yard: Yard) -> str:
    return (await yard.work.using(delay=3600).aenqueue()).id


@case
async def retry(yard: Yard) -> str:
    return await yard.ran("fail")


@case
async def put_back(yard: Yard) -> str:
    return await yard.ran("snooze")


@case
async def unknown_task(yard: Yard) -> str:
    job: Job[Any] = await yard.harbor.aenqueue("gone", {}, queue=yard.queue)
    await yard.harbor.adrain([yard.queue])
    return job.id


@case
async def claimed(yard: Yard) -> str:
    job = await yard.work.aenqueue()
    await yard.claim(HOUR)
    return job.id


async def started(yard: Yard, ago: float) -> str:
    """A job with a timeout of a minute that a worker began to run so many seconds ago."""
    job = await yard.work.using(timeout=60).aenqueue()
    token, driver, now = await yard.claim(HOUR), await yard.harbor.adriver(), yard.harbor.admin.now()
    (answer,) = await driver.extend_lease([Report(job.id, token, now - timedelta(seconds=ago))], now, HOUR)
    assert not isinstance(answer, LeaseError)
    return job.id


@case
async def running(yard: Yard) -> str:
    return await started(yard, 5)


@case
async def overrun(yard: Yard) -> str:
    return await started(yard, 65)


@case
async def lapsed(yard: Yard) -> str:
    await yard.listen()
    job = await yard.work.aenqueue()
    await yard.claim(NO_TIME)
    return job.id


@case
async def suspect(yard: Yard) -> str:
    await yard.listen()
    job = await yard.work.aenqueue()
    for _ in range(3):
        await yard.claim(NO_TIME)
    return job.id


@case
async def waiting(yard: Yard) -> str:
    await chain(yard.work.step(), yard.work.step()).aenqueue()
    return (await yard.harbor.admin.jobs.alist())[0].id


@case
async def held(yard: Yard) -> str:
    await chain(yard.work.step("die"), yard.work.step()).aenqueue()
    await yard.harbor.adrain([yard.queue])
    return (await yard.harbor.admin.jobs.alist())[0].id


@case
async def task(yard: Yard) -> str:
    async with TaskManager(yard.harbor) as tasks:
        return await tasks.asubmit(b"x")


@case
async def done(yard: Yard) -> str:
    return await yard.ran()


@case
async def dead(yard: Yard) -> str:
    return await yard.ran("die")


@case
async def cancelled(yard: Yard) -> str:
    job = await yard.work.aenqueue()
    await job.acancel()
    return job.id


def test_every_store_reports_every_cause(url: str) -> None:
    """C: `jobs show` and `harbor.admin.jobs.why`; each cause in a queue of its own."""

    async def tell() -> dict[str, str]:
        found: dict[str, str] = {}
        async with Harbor(url, retry=Retry.fixed(3600), max_attempts=2).open() as harbor:
            for code, scene in CODES.items():
                id = await scene(Yard(harbor, code))
                found[code] = (await harbor.admin.jobs.awhy(id)).code
        return found

    assert asyncio.run(tell()) == {code: code for code in CODES}
