"""Idempotency keys as programs meet them, on memory and SQLite; what a driver owes is in the kit's `keys.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from servers.nats import NatsServer
from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer
from taskharbor import Graph, Harbor, Retry, Run, Unrecoverable, current
from taskharbor.core.job import JobRecord
from taskharbor.driver import Maintain, capability
from taskharbor.testing import ManualClock

CALLERS = 40
TICK = timedelta(microseconds=1)


class Counter:
    """A harbor on given time, with a task that counts its runs."""

    def __init__(self, url: str, clock: ManualClock | None = None, **settings: Any) -> None:
        self.clock = clock or ManualClock()
        self.harbor = Harbor(url, clock=self.clock, rng=Random(1), retry=Retry.fixed(0), **settings)
        self.runs: list[int] = []

        @self.harbor.task(name="count")
        async def count(number: int, fails: int = 0) -> int:
            self.runs.append(number)
            if fails < 0:
                raise Unrecoverable("no more")
            if current().attempt <= fails:
                raise ValueError(number)
            return number

        @self.harbor.task(name="other")
        async def other(number: int) -> int:
            return number

        self.count, self.other = count, other

    def keyed(self, key: str = "k", **options: Any) -> Any:
        """The task under a key."""
        return self.count.using(idempotency_key=key, **options)

    async def find(self, key: str = "k") -> JobRecord | None:
        """The job of the key."""
        return await self.harbor.admin.jobs.afind(key)

    async def owner(self, key: str = "k") -> str | None:
        """Its id."""
        found = await self.find(key)
        return None if found is None else found.id

    async def all(self) -> list[str]:
        """The ids of all jobs."""
        return [job.id for job in await self.harbor.admin.jobs.alist(limit=1000)]

    async def drain(self) -> int:
        return await self.harbor.adrain()

    async def prune(self) -> None:
        """Prune, as workers do every ten seconds."""
        await capability(await self.harbor.adriver(), Maintain).prune(self.clock(), 1000)


Scene = Callable[..., Counter]


@pytest.fixture(params=["memory", "sqlite"])
def counter(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    """Makes a counter with these settings."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"

    def make(**settings: Any) -> Counter:
        return Counter(url, **settings)

    return make


def play(scene: Coroutine[Any, Any, None]) -> None:
    """Run it, within bounds."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scene

    asyncio.run(bounded())


@pytest.mark.parametrize(
    ("settings", "options", "life"),
    [
        ({}, {}, timedelta(hours=24)),
        ({"idempotency_ttl": 60}, {}, timedelta(seconds=60)),
        ({"idempotency_ttl": None}, {}, None),
        ({}, {"idempotency_ttl": 90.5}, timedelta(seconds=90.5)),
        ({"idempotency_ttl": 60}, {"idempotency_ttl": timedelta(days=400)}, timedelta(days=400)),
        ({"idempotency_ttl": 60}, {"idempotency_ttl": None}, None),
    ],
    ids=["default", "harbor's", "harbor's none", "job's", "job's before harbor's", "job's none"],
)
def test_how_long_a_key_lives(counter: Scene, settings: Any, options: Any, life: timedelta | None) -> None:
    """I2: the job's own time, else the harbor's, else a day; None is as long as the record."""

    async def scene() -> None:
        world = counter(**settings)
        async with world.harbor.open():
            first = await world.keyed(**options).aenqueue(1)
            await world.drain()
            world.clock.advance((life or timedelta(days=3650)) - TICK)
            again = await world.keyed(**options).aenqueue(1)
            assert (again.id, again.created) == (first.id, False)
            world.clock.advance(TICK)
            later = await world.keyed(**options).aenqueue(1)
            assert later.created is (life is not None)

    play(scene())


def test_a_job_that_is_delayed_for_longer_than_its_ttl_is_not_enqueued_twice(counter: Scene) -> None:
    """I2: with a delay of two days and the default ttl, the second enqueue after 25 hours finds the first."""

    async def scene() -> None:
        world = counter()
        async with world.harbor.open():
            first = await world.keyed(delay=timedelta(hours=48)).aenqueue(1)
            world.clock.advance(timedelta(hours=25))
            again = await world.keyed().aenqueue(1)
            assert (again.id, again.created) == (first.id, False)
            world.clock.advance(timedelta(hours=23))
            await world.drain()
            assert len(await world.all()) == 1
            assert (await world.keyed().aenqueue(1)).created

    play(scene())


@pytest.mark.parametrize("end", ["done", "dlq"])
def test_a_key_and_its_answer_outlive_the_end_and_the_retention(counter: Scene, end: str) -> None:
    """I2, I3, X8: success or death, and a retention of zero; then record and key go together."""

    async def scene() -> None:
        world = counter(keep_done=0, keep_dead=0)
        async with world.harbor.open():
            once = world.keyed(idempotency_ttl=100)
            job = await once.aenqueue(7, -1 if end == "dlq" else 0)
            plain = await world.count.aenqueue(8)
            await world.drain()
            await world.prune()
            assert plain.id not in await world.all()
            found = await world.find()
            assert found is not None
            assert (found.id, found.state) == (job.id, end)
            assert not (await once.aenqueue(7)).created
            world.clock.advance(100)
            assert await world.find() is None
            await world.prune()
            assert job.id not in await world.all()
            assert (await once.aenqueue(7)).created

    play(scene())


def test_a_key_without_end_goes_with_its_record(counter: Scene) -> None:
    """I2, I3, X8: it does not delay the pruning."""

    async def scene() -> None:
        world = counter(keep_done=10)
        async with world.harbor.open():
            once = world.keyed(idempotency_ttl=None)
            job = await once.aenqueue(1)
            await world.drain()
            world.clock.advance(9)
            await world.prune()
            assert await world.owner() == job.id
            world.clock.advance(1)
            await world.prune()
            assert await world.owner() is None
            assert (await once.aenqueue(1)).created

    play(scene())


def test_the_result_is_found_by_the_key(counter: Scene) -> None:
    """I3: by look-up and by enqueueing again, before the end and after."""

    async def scene() -> None:
        world = counter()
        async with world.harbor.open():
            await world.keyed().aenqueue(42)
            early = await world.keyed().aenqueue(42)
            found = await world.find()
            assert found is not None
            assert (found.state, found.result) == ("ready", None)
            await world.drain()
            found = await world.find()
            assert found is not None
            assert (found.state, found.result) == ("done", b"42")
            assert await world.harbor.job(found.id).aresult(timeout=0) == 42
            late = await world.keyed().aenqueue(42)
            assert [await job.aresult(timeout=0) for job in (early, late)] == [42, 42]
            assert world.runs == [42]
            assert await world.find("nobody's") is None

    play(scene())


def test_another_payload_under_the_same_key_is_flagged(counter: Scene) -> None:
    """I3: other arguments or another task; options do not count. Also among many, and after the end."""

    async def scene() -> None:
        world = counter()
        async with world.harbor.open():
            first = await world.keyed().aenqueue(1)
            assert (first.created, first.same_payload) == (True, True)
            for _ in range(2):
                same = await world.keyed(priority=9, delay=5, tags=["x"], idempotency_ttl=5).aenqueue(1)
                other = await world.keyed().aenqueue(2)
                task = await world.other.using(idempotency_key="k").aenqueue(1)
                assert {job.id for job in (same, other, task)} == {first.id}
                assert [job.same_payload for job in (same, other, task)] == [True, False, False]
                await world.drain()
            many = [world.keyed("new").step(number) for number in (1, 1, 2)]
            jobs = await world.harbor.aenqueue_many(many)
            assert [(job.created, job.same_payload) for job in jobs] == [(True, True), (False, True), (False, False)]
            assert (await first.arecord()).key_expires_at == (await first.arecord()).created_at + timedelta(hours=24)

    play(scene())


@pytest.mark.parametrize("engine", ["memory", "sqlite", "postgres", "redis", "nats"])
def test_another_graph_under_the_same_key_is_flagged(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """I3, K4: of the same steps; edges and failure policies are part of the request."""
    url = "memory://" if engine == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    if engine == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.new_database(), migrate="true")
    if engine == "redis":
        valkey: ValkeyServer = request.getfixturevalue("valkey")
        url = valkey.url(namespace=valkey.new_namespace())
    if engine == "nats":
        nats: NatsServer = request.getfixturevalue("nats")
        url = nats.url(namespace=nats.new_namespace())

    async def scene() -> None:
        world = Counter(url)

        def graph(*after: int, on_failure: Any = None) -> Graph:
            made = Graph()
            nodes = [made.add(world.count.step(number)) for number in (1, 2)]
            nodes.append(made.add(world.count.step(3), after=[nodes[place] for place in after], on_failure=on_failure))
            made.add(world.other.step(4), after=nodes)
            return made

        async def enqueued(flow: Graph) -> Run[Any]:
            return await flow.using(idempotency_key="k").aenqueue()

        async with world.harbor.open():
            first = await enqueued(graph(0))
            others = [graph(), graph(1), graph(0, 1), graph(1, 0)]
            others += [graph(0, on_failure=policy) for policy in ("cancel", "collect")]
            runs = [await enqueued(flow) for flow in (graph(0), *others)]
            assert {run.id for run in runs} == {first.id}
            assert [run.same_payload for run in runs] == [True, *(False for _ in others)]
            assert not (await world.keyed().aenqueue(1)).same_payload

    play(scene())


@pytest.mark.parametrize("state", ["done", "dlq"])
def test_at_the_moment_of_expiry_many_callers_make_one_new_job(counter: Scene, state: str) -> None:
    """I1, I2: a moment before it is the old job for all, at the moment one new job for all, again and again."""

    async def scene() -> None:
        world = counter(idempotency_ttl=60)
        async with world.harbor.open():
            owner = (await world.keyed().aenqueue(0, -1 if state == "dlq" else 0)).id
            for round in range(1, 4):
                await world.drain()
                world.clock.advance(timedelta(seconds=60) - TICK)
                before = await asyncio.gather(*(world.keyed().aenqueue(round) for _ in range(CALLERS)))
                assert {(job.id, job.created) for job in before} == {(owner, False)}
                world.clock.advance(TICK)
                calls = [world.keyed().aenqueue(round) for _ in range(CALLERS)]
                bulk = [world.harbor.aenqueue_many([world.keyed().step(round)] * 3) for _ in range(5)]
                singles, groups = await asyncio.gather(asyncio.gather(*calls), asyncio.gather(*bulk))
                jobs = [*singles, *(job for group in groups for job in group)]
                assert sum(job.created for job in jobs) == 1
                [owner] = {job.id for job in jobs}
                assert await world.owner() == owner
                assert len(await world.all()) == round + 1

    play(scene())


def test_two_processes_at_the_moment_of_expiry_make_one_new_job(tmp_path: Path) -> None:
    """I1, I2: two harbors on one file, one of them a moment behind: the key has one owner at a time."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"

    async def scene() -> None:
        behind, ahead = Counter(url), Counter(url)
        async with behind.harbor.open(), ahead.harbor.open():
            for number in range(10):
                once = [world.keyed(f"k{number}", idempotency_ttl=60) for world in (behind, ahead)]
                old = await once[0].aenqueue(number)
                await behind.drain()
                behind.clock.advance(timedelta(seconds=60) - TICK)
                ahead.clock.advance(timedelta(seconds=60))
                jobs = await asyncio.gather(*(once[place % 2].aenqueue(number) for place in range(CALLERS)))
                assert sum(job.created for job in jobs) == 1
                [new] = {job.id for job in jobs if job.created}
                assert {job.id for job in jobs} <= {old.id, new}
                assert {job.id for job in jobs[1::2]} == {new}
                assert await ahead.owner(f"k{number}") == new
                behind.clock.advance(TICK)

    play(scene())


def test_cancelling_frees_the_key(counter: Scene) -> None:
    """I2, T3: at once if the job waits; if it runs, when it has really ended."""

    async def scene() -> None:
        world = counter()
        started = asyncio.Event()

        @world.harbor.task
        async def long() -> None:
            started.set()
            await asyncio.sleep(600)

        async with world.harbor.open():
            waiting = await world.keyed(delay=60).aenqueue(1)
            assert await waiting.acancel()
            assert await world.owner() is None
            new = await world.keyed().aenqueue(1)
            assert (new.created, new.id != waiting.id) == (True, True)
            once = long.using(idempotency_key="long")
            running = await once.aenqueue()
            async with world.harbor.worker(lease=1.5, grace=0):
                await started.wait()
                assert await running.acancel()
                assert not (await once.aenqueue()).created
                while await running.astate() != "cancelled":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert (await once.aenqueue()).created

    play(scene())


@pytest.mark.parametrize("end", ["done", "dlq"])
def test_deleting_frees_the_key(counter: Scene, end: str) -> None:
    """I2: and a purge of dead letters is a deletion."""

    async def scene() -> None:
        world = counter()
        async with world.harbor.open():
            job = await world.keyed().aenqueue(1, -1 if end == "dlq" else 0)
            assert await world.harbor.admin.jobs.adelete([job.id]) == ["live"]
            assert await world.owner() == job.id
            await world.drain()
            if end == "dlq":
                assert (await world.harbor.admin.dlq.apurge()).deleted == [job.id]
            else:
                assert await world.harbor.admin.jobs.adelete([job.id]) == ["deleted"]
            assert await world.owner() is None
            assert (await world.keyed().aenqueue(1)).created

    play(scene())


def test_a_replayed_job_keeps_its_key_while_that_lives(counter: Scene) -> None:
    """I2, Q2: an enqueue during its second life finds it."""

    async def scene() -> None:
        world = counter()
        async with world.harbor.open():
            job = await world.keyed(idempotency_ttl=60).aenqueue(1, -1)
            await world.drain()
            assert await world.harbor.admin.dlq.areplay(job.id, arguments={"number": 2}) == "replayed"
            again = await world.keyed().aenqueue(1, -1)
            assert (again.id, again.created, again.same_payload) == (job.id, False, True)  # what was asked for first
            await world.drain()
            assert await again.aresult(timeout=0) == 2

    play(scene())


@pytest.mark.parametrize("asked", [None, "k", "free"])
def test_a_replay_does_not_take_a_key_from_its_new_owner(counter: Scene, asked: str | None) -> None:
    """I2, Q2: its own that has run out, or one that is asked for: if taken, the replay goes without."""

    async def scene() -> None:
        world = counter()
        async with world.harbor.open():
            old = await world.keyed(idempotency_ttl=60).aenqueue(1, -1)
            await world.drain()
            world.clock.advance(60)
            new = await world.keyed().aenqueue(2)
            assert new.created
            replay = await world.harbor.admin.dlq.areplay(old.id, arguments={"number": 1}, idempotency_key=asked)
            assert replay == ("replayed" if asked == "free" else "replayed_without_key")
            assert (await old.arecord()).idempotency_key == ("free" if asked == "free" else None)
            assert await world.owner() == new.id
            assert await world.owner("free") == (old.id if asked == "free" else None)
            await world.drain()
            assert [await job.aresult(timeout=0) for job in (old, new)] == [1, 2]

    play(scene())


def test_a_key_stops_a_second_job_but_no_second_run(counter: Scene) -> None:
    """I4: retries are runs; a lost worker's job runs again."""

    async def scene() -> None:
        world = counter()
        async with world.harbor.open():
            jobs = [await world.keyed().aenqueue(1, 2) for _ in range(3)]
            driver = await world.harbor.adriver()
            assert await driver.reserve(["default"], world.clock(), timedelta(seconds=30), 1, "lost")
            world.clock.advance(30)
            await world.drain()
            assert world.runs == [1, 1, 1]
            assert {await job.aresult(timeout=0) for job in jobs} == {1}
            record = await jobs[0].arecord()
            assert (record.version, record.attempts) == (4, 2)

    play(scene())
