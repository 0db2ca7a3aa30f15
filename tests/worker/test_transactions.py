"""A handler's own transaction on PostgreSQL: its writes and the Ack of its job are one commit, fenced by the lease."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import asyncpg
import psycopg
import pytest

from servers.postgres import PostgresServer
from taskharbor import Harbor, Job, LeaseLost, Retry, Snooze, current
from taskharbor.core.job import JobRecord
from taskharbor.core.transition import Ack, PutBack
from taskharbor.driver import Driver
from taskharbor.drivers import from_url
from taskharbor.drivers.postgres import pool, transactions
from taskharbor.errors import (
    BlockingCallInLoop,
    CapabilityMissing,
    DriverUnavailable,
    InvalidJob,
    MissingExtra,
    NoCurrentJob,
    NotEncodable,
)
from taskharbor.testing import Proxy, Recording
from taskharbor.worker.transaction import to_its_end
from world import World, until, virtual

PATIENCE = 120
BOTH = pytest.mark.parametrize("kind", ["async", "def"])
Act = Callable[["Place"], Coroutine[Any, Any, None]]


class Place:
    """A harbor on a real server, with a table of the application's; `log` writes down what the store is asked."""

    def __init__(self, server: PostgresServer, database: str, driver: Driver, **settings: Any) -> None:
        self.server, self.database = server, database
        self.log = Recording(driver)
        self.driver = driver
        self.harbor = Harbor(driver=self.log, retry=Retry.fixed(0), **settings)

    def rows(self, sql: str = "SELECT id FROM effect ORDER BY id") -> list[Any]:
        """The committed rows."""
        return [row[0] for row in self.server.execute(sql, database=self.database)]

    async def record(self, job: Job[Any]) -> JobRecord:
        return await job.arecord()

    def task(self, kind: str, body: Callable[[Any], Any], **options: Any) -> Any:
        """A task `insert(n)`, async or not: in a transaction, a row, then `body(tx)`."""
        if kind == "async":

            @self.harbor.task(name="insert", **options)
            async def insert(number: int) -> None:
                async with current().transaction() as tx:
                    await tx.execute("INSERT INTO effect VALUES ($1)", number)
                    if asyncio.iscoroutine(result := body(tx)):
                        await result

        else:

            @self.harbor.task(name="insert", **options)
            def insert(number: int) -> None:
                with current().transaction() as tx:
                    tx.execute("INSERT INTO effect VALUES (%s)", [number])
                    body(tx)

        return insert


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """One for all: making one takes longer than a test."""
    name = postgres.new_database()
    postgres.execute("CREATE TABLE effect (id integer)", database=name)

    async def make() -> None:
        await (await from_url(postgres.url(name, migrate="true"))).close()

    asyncio.run(make())
    return name


@pytest.fixture
def scene(postgres: PostgresServer, database: str) -> Callable[..., None]:
    """Plays a scene in a place of its own."""
    tables = ["effect", "taskharbor.job", "taskharbor.live", "taskharbor.ended", "taskharbor.keys"]
    postgres.execute(";".join(f"DELETE FROM {table}" for table in tables), database=database)

    def play(act: Act, *, through: Proxy | None = None, **settings: Any) -> None:
        async def acted() -> None:
            async with asyncio.timeout(PATIENCE), through or nothing():
                url = postgres.url(database)
                driver = await from_url(through.url(url) if through else url)
                place = Place(postgres, database, driver, **settings)
                try:
                    await act(place)
                finally:
                    await place.harbor.aclose()
                    place.harbor.portal.close()

        asyncio.run(acted())

    return play


@asynccontextmanager
async def nothing() -> AsyncGenerator[None]:
    yield


# together or not at all


@BOTH
def test_writes_and_ack_are_one_commit(scene: Any, kind: str) -> None:
    """D13, D9: invisible until the block ends, done after it, and never settled a second time."""

    async def act(place: Place) -> None:
        seen: list[Any] = []

        def body(tx: Any) -> None:
            seen.append((place.rows(), type(tx)))
            current().set_result({"n": 7})

        job = await place.task(kind, body).aenqueue(7)
        assert await place.harbor.adrain() == 1
        assert seen == [([], asyncpg.Connection if kind == "async" else psycopg.Connection)]
        assert place.rows() == [7]
        assert await job.aresult() == {"n": 7}
        assert (await place.record(job)).state == "done"
        assert place.log.calls("settle") == []

    scene(act)


@BOTH
def test_what_is_enqueued_with_the_job_is_in_the_same_commit(scene: Any, kind: str) -> None:
    """D9: before the block or in it, by current().enqueue or by tx=."""

    async def act(place: Place) -> None:
        numbers: list[int] = []

        @place.harbor.task
        async def after(number: int) -> None:
            numbers.append(number)

        def body(tx: Any) -> Any:
            current().enqueue(after.step(2))
            within = after.using(tx=tx)
            return within.aenqueue(3) if kind == "async" else within.enqueue(3)

        if kind == "async":

            @place.harbor.task
            async def insert() -> None:
                current().enqueue(after.step(1))
                async with current().transaction() as tx:
                    await body(tx)
        else:

            @place.harbor.task
            def insert() -> None:
                current().enqueue(after.step(1))
                with current().transaction() as tx:
                    body(tx)

        await insert.aenqueue()
        assert await place.harbor.adrain() == 4
        assert sorted(numbers) == [1, 2, 3]

    scene(act)


@BOTH
def test_a_block_that_raises_rolls_back_and_the_run_fails_as_usual(scene: Any, kind: str) -> None:
    """F1: the next run finds nothing of the last one."""

    async def act(place: Place) -> None:
        def body(tx: Any) -> None:
            if current().attempt < 3:
                raise ZeroDivisionError(current().attempt)

        job = await place.task(kind, body).aenqueue(1)
        assert await place.harbor.adrain() == 3
        assert place.rows() == [1]
        record = await place.record(job)
        assert (record.state, record.attempts, record.last_error) == ("done", 2, "ZeroDivisionError: 2")

    scene(act)


def test_what_was_to_go_with_a_block_that_failed_does_not_go(scene: Any) -> None:
    """D9: a handler that catches the error may do something else instead, in a block or without."""

    async def act(place: Place) -> None:
        numbers: list[int] = []

        @place.harbor.task
        async def after(number: int) -> None:
            numbers.append(number)

        @place.harbor.task
        async def insert(again: bool) -> str:
            current().enqueue(after.step(1))
            with suppress(ZeroDivisionError):
                async with current().transaction() as tx:
                    await tx.execute("INSERT INTO effect VALUES (1)")
                    current().enqueue(after.step(2))
                    current().set_result("lost")
                    raise ZeroDivisionError
            if again:
                async with current().transaction() as tx:
                    await tx.execute("INSERT INTO effect VALUES (2)")
            return "returned"

        jobs = [await insert.aenqueue(again) for again in (False, True)]
        await place.harbor.adrain()
        assert (place.rows(), numbers) == ([2], [1, 1])
        assert [await job.aresult() for job in jobs] == ["returned", None]

    scene(act)


def test_a_snooze_in_a_block_rolls_back(scene: Any) -> None:
    async def act(place: Place) -> None:
        def body(tx: Any) -> None:
            if current().lease_version == 1:
                raise Snooze(0)

        job = await place.task("async", body).aenqueue(1)
        assert await place.harbor.adrain() == 2
        assert (place.rows(), (await place.record(job)).attempts) == ([1], 0)

    scene(act)


@BOTH
def test_a_timeout_in_a_block_rolls_back(scene: Any, kind: str) -> None:
    """F5: a thread sees it at the end of the block."""

    async def act(place: Place) -> None:
        def body(tx: Any) -> Any:
            if current().attempt == 1:
                return tx.execute("SELECT pg_sleep(3600)") if kind == "async" else wait_for_stop()
            return None

        job = await place.task(kind, body, timeout=0.5).aenqueue(1)
        assert await place.harbor.adrain() == 2
        assert place.rows() == [1]
        assert (await place.record(job)).last_error == "TimeoutError: timed out after 0.5 s"

    scene(act)


def wait_for_stop() -> None:
    stopped = current()
    while not stopped.cancelled:
        pass


def test_a_cancel_in_a_block_rolls_back(scene: Any) -> None:
    """T3: the request reaches the handler as a cancellation."""

    async def act(place: Place) -> None:
        begun = asyncio.Event()

        def body(tx: Any) -> Any:
            begun.set()
            return asyncio.sleep(3600)

        job = await place.task("async", body).aenqueue(1)
        async with place.harbor.worker(lease=1.5):
            await begun.wait()
            assert await job.acancel()
            await place.harbor.client.finished(job.id, PATIENCE)
        assert (place.rows(), await job.astate()) == ([], "cancelled")

    scene(act)


# fenced


async def steal(place: Place, job_id: str) -> JobRecord:
    """Claim a running job for another worker, by whose clock its lease has run out."""
    now = place.harbor.client.session.now() + timedelta(hours=1)
    (stolen,) = await place.driver.reserve([], now, timedelta(hours=1), 1, "thief", [job_id])
    return stolen


@pytest.mark.parametrize("settled", [False, True])
@BOTH
def test_a_lost_lease_rolls_everything_back(scene: Any, kind: str, settled: bool) -> None:
    """L4, L5: the handler gets LeaseLost, and nothing is written for this run, even if it swallows that."""

    async def act(place: Place) -> None:
        heard: list[str] = []

        async def take_over(id: str) -> None:
            stolen = await steal(place, id)
            assert stolen.lease is not None
            if settled:
                at = stolen.lease.claimed_at
                ack = Ack(id=id, token=stolen.lease.token, keep_until=at + timedelta(days=1), result=b"1")
                assert await place.driver.settle([ack], at) == ["ok"]

        @place.harbor.task(name="async")
        async def awaited() -> None:
            try:
                async with current().transaction() as tx:
                    await tx.execute("INSERT INTO effect VALUES (1)")
                    current().enqueue(awaited.step())
                    await take_over(current().id)
            except LeaseLost as lost:
                heard.append(str(lost))

        @place.harbor.task(name="def")
        def blocking() -> None:
            try:
                with current().transaction() as tx:
                    tx.execute("INSERT INTO effect VALUES (1)")
                    place.harbor.portal.run(partial(take_over, current().id))
            except LeaseLost as lost:
                heard.append(str(lost))

        job = await place.harbor.aenqueue_many([(awaited if kind == "async" else blocking).step()])
        async with place.harbor.worker() as worker:
            await until(lambda: heard and not worker.busy, 0.01)
        why = "no worker holds it" if settled else "under another lease"
        assert len(heard) == 1
        assert why in heard[0]
        assert "the transaction was rolled back" in heard[0]
        record = await place.record(job[0])
        assert (place.rows(), place.log.calls("settle")) == ([], [])
        assert record.state == ("done" if settled else "inflight")
        assert len(place.rows("SELECT id FROM taskharbor.job")) == 1

    scene(act)


def test_a_lease_that_is_known_to_be_lost_needs_no_question(scene: Any) -> None:
    """L4: a `def` handler finds out at the end of its block."""

    async def act(place: Place) -> None:
        heard: list[type] = []

        @place.harbor.task
        def insert() -> None:
            try:
                with current().transaction() as tx:
                    tx.execute("INSERT INTO effect VALUES (1)")
                    place.harbor.portal.run(partial(steal, place, current().id))
                    wait_for_stop()
            except LeaseLost as lost:
                heard.append(type(lost))

        await insert.aenqueue()
        async with place.harbor.worker(lease=0.6) as worker:
            await until(lambda: heard and not worker.busy, 0.01)
        assert (place.rows(), place.log.calls("settle")) == ([], [])

    scene(act)


# after the block


@BOTH
def test_an_exception_after_the_block_changes_nothing(scene: Any, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The job is done; what comes too late is logged."""

    async def act(place: Place) -> None:
        @place.harbor.task(name="async")
        async def awaited() -> None:
            async with current().transaction() as tx:
                await tx.execute("INSERT INTO effect VALUES (1)")
            raise ZeroDivisionError("too late")

        @place.harbor.task(name="def")
        def blocking() -> None:
            with current().transaction() as tx:
                tx.execute("INSERT INTO effect VALUES (1)")
            raise ZeroDivisionError("too late")

        job = await (awaited if kind == "async" else blocking).aenqueue()
        assert await place.harbor.adrain() == 1
        record = await place.record(job)
        assert (record.state, record.attempts, place.rows()) == ("done", 0, [1])
        assert place.log.calls("settle") == []

    with caplog.at_level(logging.WARNING):
        scene(act)
    (said,) = [it.getMessage() for it in caplog.records if it.name == "taskharbor.worker"]
    assert "is done by its transaction; after that its handler failed: ZeroDivisionError: too late" in said


@pytest.mark.parametrize(("given", "returned", "warns"), [(None, None, 0), (5, 5, 0), (None, 5, 1), (5, 6, 1)])
def test_a_result_is_given_inside(
    scene: Any, caplog: pytest.LogCaptureFixture, given: int | None, returned: int | None, warns: int
) -> None:
    """A value returned afterwards is not stored, and a warning says so."""

    async def act(place: Place) -> None:
        @place.harbor.task
        async def insert() -> int | None:
            async with current().transaction():
                current().set_result(given)
            return returned

        job = await insert.aenqueue()
        await place.harbor.adrain()
        assert await job.aresult() == given

    with caplog.at_level(logging.WARNING):
        scene(act)
    said = [it.getMessage() for it in caplog.records if "current().set_result(…)" in it.getMessage()]
    assert len(said) == warns


def test_after_the_block_nothing_more_goes_with_the_job(scene: Any) -> None:
    async def act(place: Place) -> None:
        refused: list[str] = []

        @place.harbor.task
        async def insert() -> None:
            with pytest.raises(NoCurrentJob, match="inside `current"):
                current().set_result(1)
            async with current().transaction() as tx:
                await tx.execute("INSERT INTO effect VALUES (1)")
                with pytest.raises(RuntimeError, match="does not nest"):
                    async with current().transaction():
                        pass
                with pytest.raises(NotEncodable):
                    current().set_result(object())
                with pytest.raises(InvalidJob, match="leave tx= out"):
                    current().enqueue(insert.using(tx=tx).step())
            for late in (lambda: current().enqueue(insert.step()), lambda: current().transaction()):
                with pytest.raises(NoCurrentJob, match="is done, by its transaction"):
                    late()
            refused.append("all")

        job = await insert.aenqueue()
        await place.harbor.adrain()
        assert (refused, place.rows(), await job.astate()) == (["all"], [1], "done")

    scene(act)


def test_a_cancelled_handler_stays_done_if_its_block_was_committed(scene: Any) -> None:
    """X6: the worker stops while the handler is past its block."""

    async def act(place: Place) -> None:
        passed = asyncio.Event()

        @place.harbor.task
        async def insert() -> None:
            async with current().transaction() as tx:
                await tx.execute("INSERT INTO effect VALUES (1)")
            passed.set()
            await asyncio.sleep(3600)

        job = await insert.aenqueue()
        async with place.harbor.worker(grace=0):
            await passed.wait()
        assert (place.rows(), await job.astate(), place.log.calls("settle")) == ([1], "done", [])

    scene(act)


def test_it_counts_as_a_run(scene: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Logged and counted as any other."""

    async def act(place: Place) -> None:
        await place.task("async", lambda tx: None).aenqueue(1)
        async with place.harbor.worker() as worker:
            await until(lambda: worker.finished, 0.01)

    with caplog.at_level(logging.INFO):
        scene(act)
    assert [it.getMessage() for it in caplog.records if "job.succeeded" in it.getMessage()]


# bad handling of the connection


@BOTH
def test_a_transaction_that_was_ended_inside_its_block_settles_nothing(scene: Any, kind: str) -> None:
    async def act(place: Place) -> None:
        def body(tx: Any) -> Any:
            return tx.execute("ROLLBACK") if current().attempt == 1 else None

        job = await place.task(kind, body).aenqueue(1)
        await place.harbor.adrain()
        assert place.rows() == [1]
        assert "leave COMMIT and ROLLBACK to the block" in str((await place.record(job)).last_error)

    scene(act)


@BOTH
def test_the_next_block_finds_the_session_as_new(scene: Any, kind: str) -> None:
    """Whatever a handler has set, locked or listened to."""

    async def act(place: Place) -> None:
        seen: list[Any] = []

        place.server.execute(f"CREATE ROLE other_{kind} IN ROLE pg_read_all_data, pg_write_all_data")
        changes = f"""SET search_path TO pg_catalog; SELECT pg_advisory_lock(1);
            CREATE TEMPORARY TABLE mine (id integer); SET ROLE other_{kind}"""
        looks = """SELECT current_setting('search_path'), current_setting('enable_seqscan'), current_user,
            (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"""

        async def awaited(tx: Any) -> None:
            seen.append(tuple(await tx.fetchrow(looks)))
            await tx.execute(changes)

        def blocking(tx: Any) -> None:
            seen.append(tx.execute(looks).fetchone())
            tx.execute(changes)
            tx.row_factory = psycopg.rows.dict_row

        task = place.task(kind, awaited if kind == "async" else blocking)
        for number in range(2):
            await task.aenqueue(number)
        await place.harbor.adrain(concurrency=1)
        assert seen == [('"$user", public', "on", "postgres", 0)] * 2

    scene(act)


@BOTH
def test_a_block_may_take_longer_than_any_answer(scene: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: the limits are for what we ask the server, not for what the handler does with it."""
    for module in (pool, transactions):
        monkeypatch.setattr(module, "ANSWER_WITHIN", 0.2)

    async def act(place: Place) -> None:
        def body(tx: Any) -> Any:
            return tx.execute("SELECT pg_sleep(0.5)")

        job = await place.task(kind, body).aenqueue(1)
        await place.harbor.adrain()
        assert (await place.record(job)).attempts == 0
        assert place.rows() == [1]

    scene(act)


@BOTH
def test_blocks_do_not_nest_however_few_connections_are_left(
    scene: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inner one is refused before it waits for a connection that only the outer one could free."""
    monkeypatch.setattr(transactions, "PER_LOOP", 1)

    async def act(place: Place) -> None:
        async def awaited(tx: Any) -> None:
            async with current().transaction():
                pass

        def blocking(tx: Any) -> None:
            with current().transaction():
                pass

        job = await place.task(kind, awaited if kind == "async" else blocking, max_attempts=1).aenqueue(1)
        await place.harbor.adrain()
        assert "does not nest" in str((await place.record(job)).last_error)

    scene(act)


@BOTH
def test_a_connection_that_dies_in_the_block_fails_the_run(scene: Any, kind: str) -> None:
    """X3: rolled back, retried on a new connection."""

    async def act(place: Place) -> None:
        kill = "SELECT pg_terminate_backend(pg_backend_pid())"

        def body(tx: Any) -> Any:
            if current().attempt > 1:
                return None
            return tx.execute(kill)

        job = await place.task(kind, body).aenqueue(1)
        assert await place.harbor.adrain() == 2
        assert (place.rows(), (await place.record(job)).attempts) == ([1], 1)

    scene(act)


# commits with unknown outcomes


@BOTH
def test_a_commit_whose_reply_is_lost_is_found_out_about(
    scene: Any, kind: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X3: the store says that it happened, so the handler goes on as if nothing was."""
    proxy = Proxy("127.0.0.1", postgres.port)
    home: list[asyncio.AbstractEventLoop] = []
    cuts: list[Any] = []
    owner = transactions.AwaitedTransaction if kind == "async" else transactions.BlockingTransaction
    commit = owner.commit

    async def cut_off(tx: Any) -> None:
        if kind == "async":
            cuts.append(proxy.swallow_reply())
        else:
            cuts.append(asyncio.run_coroutine_threadsafe(swallow(proxy), home[0]).result())
        await commit(tx)

    monkeypatch.setattr(owner, "commit", cut_off)

    async def act(place: Place) -> None:
        home.append(asyncio.get_running_loop())
        job = await place.task(kind, lambda tx: current().set_result(9)).aenqueue(1)
        assert await place.harbor.adrain() == 1
        assert [cut.done for cut in cuts] == [True]
        record = await place.record(job)
        assert (place.rows(), record.state, record.attempts) == ([1], "done", 0)
        assert await job.aresult() == 9
        assert place.log.calls("settle") == []

    scene(act, through=proxy)


async def swallow(proxy: Proxy) -> Any:
    return proxy.swallow_reply()


@BOTH
def test_a_commit_that_never_arrived_is_found_out_about(scene: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """X3: the store says that it did not happen, so the run fails and is retried."""
    owner = transactions.AwaitedTransaction if kind == "async" else transactions.BlockingTransaction
    commit, failed = owner.commit, list[int]()

    async def cut_off(tx: Any) -> None:
        if not failed:
            failed.append(1)
            if kind == "async":
                tx.handle.terminate()
            else:
                tx.handle.close()
        await commit(tx)

    monkeypatch.setattr(owner, "commit", cut_off)

    async def act(place: Place) -> None:
        job = await place.task(kind, lambda tx: None).aenqueue(1)
        assert await place.harbor.adrain() == 2
        record = await place.record(job)
        assert (place.rows(), record.state, record.attempts) == ([1], "done", 1)

    scene(act)


def test_when_the_store_stays_silent_the_run_fails_and_its_settle_clears_it_up(
    scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X3, D8: the commit happened, the question gets no answer; the failure is then refused as a repeat."""
    commit = transactions.AwaitedTransaction.commit

    async def act(place: Place) -> None:
        async def lose(tx: Any) -> None:
            await commit(tx)
            monkeypatch.setattr(place.driver, "extend_lease", away)
            raise DriverUnavailable("lost")

        async def away(*args: Any) -> Any:
            raise DriverUnavailable("still away")

        monkeypatch.setattr(transactions.AwaitedTransaction, "commit", lose)
        job = await place.task("async", lambda tx: None).aenqueue(1)
        await place.harbor.adrain()
        record = await place.record(job)
        assert (place.rows(), record.state, record.attempts) == ([1], "done", 0)

    scene(act)


def test_what_must_not_be_cut_off_is_not() -> None:
    """A cancellation in the middle takes effect afterwards."""

    async def act() -> None:
        going, ended = asyncio.Event(), list[str]()

        async def work() -> str:
            await going.wait()
            ended.append("whole")
            return "result"

        assert await to_its_end(asyncio.sleep(0, "result")) == "result"
        task = asyncio.ensure_future(to_its_end(work()))
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        going.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["whole"]

    asyncio.run(act())


# who can


@virtual
async def test_engines_without_transactions_say_so() -> None:
    """D13: absent means loudly absent."""
    world = World(retry=Retry.fixed(0), max_attempts=1)

    @world.harbor.task
    async def insert() -> None:
        async with current().transaction():
            pass

    job = await insert.aenqueue()
    await world.drain()
    assert "works on PostgreSQL only, not with the memory driver" in str((await world.record(job)).last_error)
    refusal = "the memory driver cannot enqueue inside your own transaction: .* after the commit; a test of tx= needs"
    with pytest.raises(CapabilityMissing, match=refusal):
        await insert.using(tx=object()).aenqueue()


def test_an_async_handler_gets_an_error_that_says_await(scene: Any) -> None:
    async def act(place: Place) -> None:
        @place.harbor.task
        async def insert() -> None:
            with pytest.raises(BlockingCallInLoop, match="use `async with"), current().transaction():
                pass

        job = await insert.aenqueue()
        await place.harbor.adrain()
        assert await job.astate() == "done"

    scene(act)


@pytest.mark.parametrize("missing", [True, False], ids=["missing", "old"])
def test_a_def_handler_needs_psycopg(scene: Any, monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
    """X5: the error names the command."""
    if missing:
        monkeypatch.setitem(sys.modules, "psycopg", None)
    else:
        monkeypatch.delattr(psycopg, "RawCursor")

    async def act(place: Place) -> None:
        @place.harbor.task(max_attempts=1)
        def insert() -> None:
            with pytest.raises(MissingExtra, match=r'pip install "taskharbor\[psycopg\]"'), current().transaction():
                pass

        job = await insert.aenqueue()
        await place.harbor.adrain()
        assert await job.astate() == "done"

    scene(act)


# killed


KILLED = """
import asyncio, os, signal, sys
from taskharbor import Harbor, current
from taskharbor.drivers.postgres import pool, transactions

harbor, moment = Harbor(sys.argv[1]), sys.argv[2]
commit = transactions.AwaitedTransaction.commit

async def around_the_commit(tx):
    if moment == "before the commit":
        die()
    await commit(tx)
    if moment == "after the commit":
        die()

def die():
    if current().lease_version == 1:
        os.kill(os.getpid(), signal.SIGKILL)

transactions.AwaitedTransaction.commit = around_the_commit

@harbor.task(name="insert")
async def insert(number: int) -> None:
    async with current().transaction() as tx:
        await tx.execute("INSERT INTO effect VALUES ($1)", number)
        if moment == "in the block":
            die()

async def main():
    async with harbor.worker(lease=0.5):
        await harbor.job("it").aresult(timeout=30)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["in the block", "before the commit", "after the commit"])
def test_a_killed_worker_leaves_all_or_nothing(scene: Any, tmp_path: Path, moment: str) -> None:
    """G1, L1: the next run finds a whole effect or none, and there is one in the end."""
    program = tmp_path / "app.py"
    program.write_text(KILLED, encoding="utf-8")

    async def act(place: Place) -> None:
        await place.harbor.aenqueue_many([place.harbor.step("insert", {"number": 1}, id="it")])
        ends: list[int] = []
        while not ends or ends[-1] != 0:
            argv = [sys.executable, str(program), place.server.url(place.database), moment]
            worker = await asyncio.create_subprocess_exec(*argv)
            ends.append(await worker.wait())
            assert ends[0] == -signal.SIGKILL
            assert place.rows() == ([1] if "after" in moment or len(ends) > 1 else [])
        assert len(ends) == 2
        assert (await place.record(place.harbor.job("it"))).version == (1 if "after" in moment else 2)

    scene(act)


# all of it at once


# asyncpg cancels a statement by a task, which never runs if its connection is thrown away as the loop ends.
@pytest.mark.filterwarnings("ignore:coroutine 'Connection._cancel' was never awaited:RuntimeWarning")
def test_effects_happen_exactly_once_whatever_goes_wrong(scene: Any) -> None:
    """G1: 200 jobs, two workers, failures before, in, at the end of and after the blocks, and stolen leases."""

    async def act(place: Place) -> None:
        tasks = troubled(place, Random(4))
        jobs = await place.harbor.aenqueue_many([tasks[number % 3].step(number) for number in range(200)])
        async with place.harbor.worker(concurrency=8), place.harbor.worker(concurrency=8):
            for job in jobs:
                await job.aresult(timeout=PATIENCE)
        assert place.rows() == list(range(200))
        assert place.rows("SELECT count(*) FROM taskharbor.ended WHERE state = 'done'") == [200]

    scene(act)


def troubled(place: Place, rng: Random) -> tuple[Any, Any, Any]:
    """Two async tasks and a blocking one that insert a row, and fail in every way every now and then."""

    def may_fail(often: float) -> None:
        if rng.random() < often:
            raise ZeroDivisionError

    async def trouble(tx: Any) -> None:
        may_fail(0.1)
        roll = rng.random()
        if roll < 0.05:
            await tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        elif roll < 0.1:
            with suppress(asyncpg.PostgresError):
                await tx.execute("SELECT * FROM nowhere")
        elif roll < 0.15:
            await steal_for_a_moment(place, current().id)

    @place.harbor.task(max_attempts=None, name="async")
    async def awaited(number: int) -> None:
        may_fail(0.05)
        async with current().transaction() as tx:
            await tx.execute("INSERT INTO effect VALUES ($1)", number)
            await trouble(tx)
        may_fail(0.1)

    @place.harbor.task(max_attempts=None, name="def")
    def blocking(number: int) -> None:
        with current().transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (%s)", [number])
            may_fail(0.1)
            if rng.random() < 0.05:
                tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        may_fail(0.1)

    return awaited, awaited, blocking


async def steal_for_a_moment(place: Place, id: str) -> None:
    """Another worker claims the job, and gives it back at once."""
    stolen = await steal(place, id)
    assert stolen.lease is not None
    at = stolen.lease.claimed_at
    now = place.harbor.client.session.now()
    back = PutBack(id=id, token=stolen.lease.token, keep_until=at, run_at=now)
    assert await place.driver.settle([back], at) == ["ok"]


@BOTH
def test_what_the_store_refuses_in_a_block_is_an_error_of_ours(scene: Any, kind: str) -> None:
    """An aborted transaction cannot be settled: the run fails with the reason."""

    async def act(place: Place) -> None:
        async def awaited(tx: Any) -> None:
            with suppress(asyncpg.PostgresError):
                await tx.execute("SELECT * FROM nowhere")

        def blocking(tx: Any) -> None:
            with suppress(psycopg.Error):
                tx.execute("SELECT * FROM nowhere")

        job = await place.task(kind, awaited if kind == "async" else blocking, max_attempts=1).aenqueue(1)
        await place.harbor.adrain()
        record = await place.record(job)
        assert (record.state, place.rows()) == ("dlq", [])
        assert str(record.last_error).startswith("taskharbor.errors.DriverError")
        assert "current transaction is aborted" in str(record.last_error)

    scene(act)
