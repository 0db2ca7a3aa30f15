"""Claims that go on where the last one stood: fast whatever lies behind, and nothing is overlooked for long (D11)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import asyncpg
import pytest

from servers.postgres import PostgresServer
from taskharbor.core.job import JobRecord, NewJob
from taskharbor.core.transition import Ack, PutBack
from taskharbor.driver import Group
from taskharbor.drivers import from_url
from taskharbor.drivers.postgres import pool
from taskharbor.drivers.postgres.bookmarks import BUSY, LOOK_EVERY, Bookmarks, Mark
from taskharbor.drivers.postgres.driver import PostgresDriver
from taskharbor.drivers.postgres.sql import statements

T0 = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=30)
BOUND = 0.5  # D11

_numbers = count()


class Loop(asyncio.SelectorEventLoop):
    """Its time can be moved on."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await story()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())


def pass_time(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    loop.ahead += seconds


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def url(postgres: PostgresServer, database: str) -> str:
    return postgres.url(database, namespace=f"mark_{next(_numbers)}", migrate="true")


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[PostgresDriver]:
    driver = await from_url(url)
    assert isinstance(driver, PostgresDriver)
    try:
        yield driver
    finally:
        await driver.close()


async def put(driver: PostgresDriver, *ids: str, queue: str = "q", **options: Any) -> None:
    jobs = tuple(NewJob(id=id, type="t", queue=queue, payload=b"", **options) for id in ids)
    await driver.enqueue([Group(jobs=jobs)], T0)


async def claim(driver: PostgresDriver, limit: int, *queues: str) -> list[JobRecord]:
    return await driver.reserve(queues or ["q"], T0, LEASE, limit, "w")


def ids(jobs: list[JobRecord]) -> list[str]:
    return [job.id for job in jobs]


def line(first: int, number: int) -> list[str]:
    return [f"{each:05}" for each in range(first, first + number)]


# What gets in where a bookmark would pass it over; each returns the ids that come first from then on.


async def a_higher_priority(driver: PostgresDriver, claimed: list[JobRecord]) -> list[str]:
    await put(driver, "urgent", priority=5)
    return ["urgent"]


async def a_late_commit(driver: PostgresDriver, claimed: list[JobRecord]) -> list[str]:
    await put(driver, "late", run_at=T0 - timedelta(hours=1))
    return ["late"]


async def a_put_back(driver: PostgresDriver, claimed: list[JobRecord]) -> list[str]:
    job = claimed[7]
    assert job.lease is not None
    back = PutBack(id=job.id, token=job.lease.token, run_at=T0 - timedelta(hours=1), keep_until=T0)
    assert await driver.settle([back], T0) == ["ok"]
    return [job.id]


async def a_lapsed_lease(driver: PostgresDriver, claimed: list[JobRecord]) -> list[str]:
    await put(driver, "lapsed", queue="other", run_at=T0 - timedelta(hours=1))
    assert ids(await driver.reserve([], T0 - LEASE, LEASE, 1, "dead", ids=["lapsed"])) == ["lapsed"]
    return ["lapsed"]


GETS_IN = [a_higher_priority, a_late_commit, a_put_back, a_lapsed_lease]


@pytest.mark.parametrize("gets_in", GETS_IN)
def test_what_gets_in_behind_a_bookmark_is_seen_in_time(
    url: str, gets_in: Callable[[PostgresDriver, list[JobRecord]], Awaitable[list[str]]]
) -> None:
    """D11: within 500 ms."""

    async def story() -> None:
        async with opened(url) as driver:
            await put(driver, *line(0, 1000))
            claimed = await claim(driver, BUSY, "q", "other")
            assert ids(await claim(driver, BUSY, "q", "other")) == line(BUSY, BUSY)
            first = await gets_in(driver, claimed)
            before = ids(await claim(driver, 100, "q", "other"))
            assert before == line(2 * BUSY, 100), "this one went on: the test is about those"
            pass_time(BOUND)
            assert first[0] in ids(await claim(driver, 100, "q", "other"))

    run(story)


@pytest.mark.parametrize("gets_in", GETS_IN)
def test_a_claim_that_finds_too_little_is_followed_by_a_look_at_everything(
    url: str, gets_in: Callable[[PostgresDriver, list[JobRecord]], Awaitable[list[str]]]
) -> None:
    """D11: at once, in the same call if nothing was found."""

    async def story() -> None:
        async with opened(url) as driver:
            await put(driver, *line(0, 2 * BUSY + 1))
            claimed = await claim(driver, BUSY, "q", "other")
            await claim(driver, BUSY, "q", "other")
            first = await gets_in(driver, claimed)
            assert ids(await claim(driver, 2, "q", "other")) == line(2 * BUSY, 1)
            assert first[0] in ids(await claim(driver, 2, "q", "other"))
            assert not set(ids(await claim(driver, 2, "q", "other"))) & {*first}

    run(story)


def test_a_bookmark_that_ends_while_a_claim_is_on_its_way(url: str) -> None:
    """D12: another thread finds too few, or the time is up, before the connection is there."""

    async def story() -> None:
        async with opened(url) as driver:
            await put(driver, *line(0, 1000))
            await claim(driver, BUSY)
            lot = await driver._pool.loop_pool()
            for _ in range(pool.PER_LOOP):
                await lot.workers.acquire()
            waiting = asyncio.ensure_future(claim(driver, 10))
            await asyncio.sleep(0)
            driver._bookmarks.note(["q"], [], 1)
            for _ in range(pool.PER_LOOP):
                lot.workers.release()
            assert ids(await waiting) == line(BUSY, 10)

    run(story)


def test_few_jobs_are_always_claimed_in_their_exact_order(url: str) -> None:
    """D11: bookmarks are used only where the order stays exact."""

    async def story() -> None:
        async with opened(url) as driver:
            await put(driver, *line(0, 50))
            for each in range(20):
                await put(driver, f"urgent {each}", priority=5)
                assert ids(await claim(driver, 2)) == [f"urgent {each}", f"{each:05}"]

    run(story)


def test_queues_share_a_claim_that_goes_on(url: str) -> None:
    """D11: each takes its part, and a paused one takes none."""

    async def story() -> None:
        async with opened(url) as driver:
            await put(driver, *[f"a{each:04}" for each in range(400)], queue="a")
            await put(driver, *[f"b{each:04}" for each in range(400)], queue="b")
            for turn in range(3):
                found = ids(await claim(driver, 100, "a", "b"))
                assert sorted(found) == [f"{name}{50 * turn + each:04}" for name in "ab" for each in range(50)]
            await driver.pause("b", True)
            assert {id[0] for id in ids(await claim(driver, 100, "a", "b"))} == {"a"}

    run(story)


def test_a_claim_that_goes_on_reads_little_whatever_lies_behind(url: str) -> None:
    """Does not rot: an old snapshot keeps the entries of all that was done; a whole look walks over them."""
    schema = url.partition("namespace=")[2].partition("&")[0]

    async def story() -> None:
        async with opened(url) as driver:
            await put(driver, *line(0, 6000))
            old: Any = await asyncpg.connect(url.partition("?")[0])
            async with old.transaction(isolation="repeatable_read"):
                await old.fetchval("SELECT count(*) FROM pg_class")
                jobs: list[JobRecord] = []
                for _ in range(50):
                    jobs = await claim(driver, 100)
                    acks = [Ack(id=job.id, token=job.lease.token, keep_until=T0) for job in jobs if job.lease]
                    assert await driver.settle(acks, T0) == ["ok"] * 100
                last = jobs[-1]
                assert last.lease is not None
                seq = int(last.lease.token.split()[0].rpartition(".")[2])
                to = T0, T0 + LEASE, "w", "t."
                on = await pages(url, schema, "reserve_on", *to, ["q"], [0], [last.due_at], [seq], [10])
                whole = await pages(url, schema, "reserve", *to, 10, ["q"], [10])
            await old.close()
        assert on < 200
        assert whole > on + 100

    run(story)


async def pages(url: str, schema: str, name: str, *values: Any) -> int:
    """How many a statement reads; it is rolled back."""
    connection: Any = await asyncpg.connect(url.partition("?")[0], server_settings={"enable_seqscan": "off"})
    transaction = connection.transaction()
    await transaction.start()
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statements(schema)[name]}", *values)
    await transaction.rollback()
    await connection.close()
    plan = json.loads(text)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


class TestBookmarks:
    """The rule itself."""

    def rows(self, number: int, queue: str = "q", *, plain: bool = True) -> list[Any]:
        rest = None if plain else (2,)
        return [
            (place, 100 + place, str(place), "t", queue, b"", 3, 1, 1, T0, T0 + timedelta(place), None, rest)
            for place in range(number)
        ]

    def test_they_are_set_by_full_claims_in_a_row_and_hold_for_some_time(self) -> None:
        """D11."""

        async def story() -> None:
            marks = Bookmarks()
            now = asyncio.get_running_loop().time
            marks.note(["q"], self.rows(BUSY - 1), BUSY - 1, now())
            assert marks.going_on(["q"]) == {}
            marks.note(["q"], self.rows(5), 5, now())
            mark = Mark(3, T0 + timedelta(4), 104)
            assert marks.going_on(["q"]) == {"q": mark}
            assert marks.going_on(["q", "unknown"]) == {}
            marks.note(["q"], self.rows(7), 7)
            assert marks.going_on(["q"]) == {"q": Mark(3, T0 + timedelta(6), 106)}
            pass_time(LOOK_EVERY)
            assert marks.going_on(["q"]) == {}

        run(story)

    def test_too_few_end_them(self) -> None:
        async def story() -> None:
            marks = Bookmarks()
            marks.note(["q"], self.rows(BUSY), BUSY, asyncio.get_running_loop().time())
            assert marks.going_on(["q"])
            marks.note(["q"], self.rows(4), 5)
            assert marks.going_on(["q"]) == {}

        run(story)

    def test_a_job_that_ran_before_is_not_a_mark(self) -> None:
        """A lapsed one may have stood anywhere."""

        async def story() -> None:
            marks = Bookmarks()
            rows = self.rows(BUSY - 1) + self.rows(1, plain=False)
            marks.note(["q"], rows, BUSY, asyncio.get_running_loop().time())
            assert marks.going_on(["q"])["q"].seq == 100 + BUSY - 2

        run(story)

    def test_they_are_looked_past_often_enough(self) -> None:
        """D11: with some time for the claim itself."""
        assert LOOK_EVERY <= BOUND - 0.1
