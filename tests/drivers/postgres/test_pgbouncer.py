"""`pgbouncer=true`: the driver keeps no state in a session, so that a pooler may give every transaction another one."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import replace

import asyncpg
import pytest

from servers.pooler import Pooler
from servers.postgres import PostgresServer
from taskharbor import Harbor
from taskharbor.driver import WaitForWork
from taskharbor.drivers import from_url
from taskharbor.testing.kit import BlockingKit, Harness, NewStore, OwnTransactionKit
from taskharbor.testing.kit.beside import HintCases, WorkerCases
from taskharbor.testing.kit.flows import FlowCases
from taskharbor.testing.kit.groups import GroupCases
from taskharbor.testing.kit.keys import KeyCases
from taskharbor.testing.kit.leases import LeaseCases
from taskharbor.testing.kit.looking import ReadingCases
from taskharbor.testing.kit.order import OrderCases
from taskharbor.testing.kit.parallel import ThreadCases
from taskharbor.testing.kit.records import RecordCases
from taskharbor.testing.kit.recurring import RecurringCases
from taskharbor.testing.kit.replay import ReplayCases
from taskharbor.testing.kit.reserve import ReserveCases
from taskharbor.testing.kit.results import ResultCases
from taskharbor.testing.kit.settle import SettleCases
from taskharbor.testing.kit.totals import TotalCases
from taskharbor.testing.kit.upkeep import UpkeepCases

from .test_kit import Schemas


@pytest.fixture(scope="module")
def pooler(postgres: PostgresServer) -> Generator[Pooler]:
    with Pooler(postgres.port) as pooler:
        yield pooler


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Generator[str]:
    name = postgres.new_database()
    yield name
    postgres.drop_database(name)


@pytest.fixture(scope="module")
def schemas(postgres: PostgresServer, database: str) -> Generator[Schemas]:
    with Schemas(postgres, database) as schemas:
        yield schemas


def by_way_of(pooler: Pooler, url: str) -> str:
    """The same store through the pooler."""
    before, at, after = url.partition("@127.0.0.1:")
    port, slash, rest = after.partition("/")
    assert at, port
    joint = "&" if "?" in rest else "?"
    return f"{before}{at}{pooler.port}{slash}{rest}{joint}pgbouncer=true"


class Pooled:
    """Opens stores through the pooler. Sessions change and forget everything (DISCARD ALL) between transactions."""

    @pytest.fixture
    def harness(self, new_store: NewStore) -> Harness:
        return new_store()

    @pytest.fixture
    def new_store(self, schemas: Schemas, pooler: Pooler) -> Generator[NewStore]:
        def new() -> Harness:
            harness = schemas.new()
            return replace(harness, url=by_way_of(pooler, harness.url or ""))

        yield new
        schemas.give_back()


class TestThroughAPooler(
    Pooled,
    KeyCases,
    ReplayCases,
    UpkeepCases,
    ReadingCases,
    WorkerCases,
    TotalCases,
    HintCases,
    ThreadCases,
    OwnTransactionKit,
):
    """Every verb, every kind of statement, all transactions."""

    # Alone in asking for the death of a running job, in reading and writing schedules, in storing many that wait.
    test_D8_a_put_back_that_landed_elsewhere = (  # noqa: N815
        SettleCases.test_D8_a_put_back_that_landed_elsewhere_is_repeated_as_a_put_back
    )
    test_N5_a_schedule_comes_back = RecurringCases.test_N5_a_schedule_is_read_back_as_stored  # noqa: N815
    test_K2_a_group_of_1000 = ResultCases.test_K2_a_group_of_1000_a_join_and_a_second_stage  # noqa: N815

    # Drivers do not listen behind a pooler: there is only the poll, and `test_it_does_not_listen_but_tells`.
    test_D13_a_waiter_is_woken_by_an_enqueue = None  # type: ignore[assignment]  # noqa: N815
    test_D13_a_waiter_is_woken_by_the_job_of_a_schedule = None  # type: ignore[assignment]  # noqa: N815
    test_D13_a_commit_wakes_waiters_for_work = None  # type: ignore[assignment]  # noqa: N815


class TestBlockingThroughAPooler(Pooled, BlockingKit):
    """Enqueues on the caller's thread."""

    test_D13_a_blocking_enqueue_wakes_a_waiting_worker = None  # type: ignore[assignment]  # noqa: N815


@pytest.mark.thorough
class TestMoreThroughAPooler(
    Pooled, RecordCases, GroupCases, ReserveCases, OrderCases, LeaseCases, SettleCases, FlowCases, RecurringCases
):
    """The rest, without what shows nothing new here: forbidden moves, closed drivers, processes, random histories."""


def test_the_pooler_is_as_bad_as_it_says(postgres: PostgresServer, database: str, pooler: Pooler) -> None:
    """The tests above rest on this: no transaction finds the session of the one before, or anything it left there."""

    async def act() -> None:
        url = by_way_of(pooler, postgres.url(database)).partition("?")[0]
        connection = await asyncpg.connect(url, statement_cache_size=0)
        try:
            await connection.execute("SET application_name = 'mine'; CREATE TEMP TABLE x (a int)")
            sessions: list[int] = []
            for _ in range(4):
                async with connection.transaction():
                    sessions.append(await connection.fetchval("SELECT pg_backend_pid()"))
                    assert await connection.fetchval("SELECT current_setting('application_name')") != "mine"
                    assert await connection.fetchval("SELECT to_regclass('x')") is None
                    assert sessions[-1] == await connection.fetchval("SELECT pg_backend_pid()")
            assert sessions[:2] == sessions[2:]
            assert len(set(sessions)) == 2
            with pytest.raises(asyncpg.InvalidSQLStatementNameError):  # prepared in one session, used in the other
                await connection.fetch("SELECT 1")
        finally:
            connection.terminate()

    asyncio.run(act())


def test_a_whole_harbor_works_through_it(postgres: PostgresServer, database: str, pooler: Pooler) -> None:
    """X, P: enqueue, run, result; the server's clock, too."""
    harbor = Harbor(by_way_of(pooler, postgres.url(database, namespace="whole", migrate="true")))

    @harbor.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    async def act() -> None:
        before = pooler.switches
        async with harbor.open(), harbor.worker():
            jobs = [await double.aenqueue(number) for number in range(10)]
            assert [await job.aresult(timeout=30) for job in jobs] == [2 * number for number in range(10)]
        assert pooler.switches - before > 20

    asyncio.run(act())


def test_it_does_not_listen_but_tells(postgres: PostgresServer, database: str, pooler: Pooler) -> None:
    """Behind a pooler there is only the poll; a commit through it wakes those who are connected directly."""

    async def act() -> None:
        direct = postgres.url(database, namespace="telling", migrate="true")
        driver, near = await from_url(direct), Harbor(by_way_of(pooler, direct))
        assert isinstance(driver, WaitForWork)
        async with near.open():
            through = await from_url(by_way_of(pooler, direct))
            assert isinstance(through, WaitForWork)
            await through.wait_for_work(["default"], 0.01)
            await through.close()
            asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND query LIKE 'LISTEN%%'"
            assert postgres.execute(asked, [database]) == [(0,)]
            async with asyncio.timeout(30):
                await driver.wait_for_work(["default"], 25)  # woken up when it has begun to listen
                waiting = asyncio.create_task(driver.wait_for_work(["default"], 25))
                await asyncio.sleep(0)
                await near.aenqueue_many([near.step("t", {})])
                await waiting
        await driver.close()

    asyncio.run(act())
