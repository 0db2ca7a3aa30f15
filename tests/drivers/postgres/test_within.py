"""`tx=` on PostgreSQL: the job exists exactly if the caller's transaction commits, whatever library it is a part of."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from servers.postgres import PostgresServer
from taskharbor import Harbor
from taskharbor.core.transition import Ack, Fail
from taskharbor.driver import Inspect, Within, at_once, capability
from taskharbor.drivers import from_url
from taskharbor.errors import InvalidJob, JobExists, MissingExtra
from taskharbor.testing.kit.jobs import KEEP, T0, child, group, job, token_of

from .hands import HANDS, Hand, NewHand, dialect, enqueue, enqueue_many

T = datetime(2026, 3, 1, tzinfo=UTC)


class Place:
    """A database with a harbor and a table of the application's."""

    def __init__(self, server: PostgresServer, database: str | None = None) -> None:
        self.server, self.database = server, database or server.new_database()
        server.execute("CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY)", database=self.database)
        self.harbor = Harbor(server.url(self.database, migrate="true"))

        @self.harbor.task
        async def send(number: int) -> int:
            return number * 2

        self.send = send

    async def make(self) -> None:
        """Make the schema."""
        async with self.harbor.open():
            pass

    def jobs(self) -> list[str]:
        return [row[0] for row in self._all("SELECT id FROM taskharbor.job ORDER BY seq")]

    def orders(self) -> list[int]:
        return [row[0] for row in self._all("SELECT id FROM orders ORDER BY id")]

    def _all(self, sql: str) -> list[tuple[Any, ...]]:
        return self.server.execute(sql, database=self.database)


@pytest.fixture(params=HANDS)
def kind(request: pytest.FixtureRequest) -> NewHand:
    return HANDS[request.param]


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """One for all: making one takes longer than a test."""
    place = Place(postgres)
    asyncio.run(place.make())
    return place.database


@pytest.fixture
def place(postgres: PostgresServer, database: str) -> Place:
    tables = ["orders", "taskharbor.job", "taskharbor.live", "taskharbor.keys"]
    postgres.execute(";".join(f"DELETE FROM {table}" for table in tables), database=database)
    return Place(postgres, database)


def scene(place: Place, kind: NewHand, act: Callable[[Hand], Coroutine[Any, Any, None]]) -> None:
    """Do something with a hand, in a loop of its own."""

    async def play() -> None:
        async with asyncio.timeout(60), place.harbor.open(), kind(place.server, place.database) as hand:
            await act(hand)

    asyncio.run(play())


def test_a_job_enqueued_in_a_transaction_is_there_once_it_commits(place: Place, kind: NewHand) -> None:
    """D13, D1: invisible before, whole after, and it runs."""

    async def act(hand: Hand) -> None:
        await hand.run("INSERT INTO orders VALUES (1)")
        job = await enqueue(hand, place.send, 21)
        assert (place.orders(), place.jobs()) == ([], [])
        await hand.commit()
        assert (place.orders(), place.jobs()) == ([1], [job.id])
        assert await place.harbor.adrain() == 1
        assert await job.aresult(timeout=5) == 42

    scene(place, kind, act)


def test_the_enqueue_may_be_all_that_is_in_the_transaction(place: Place, kind: NewHand) -> None:
    async def act(hand: Hand) -> None:
        job = await enqueue(hand, place.send, 1)
        assert place.jobs() == []
        await hand.commit()
        assert place.jobs() == [job.id]

    scene(place, kind, act)


def test_a_rollback_takes_the_job_with_it(place: Place, kind: NewHand) -> None:
    async def act(hand: Hand) -> None:
        await enqueue(hand, place.send, 1)
        await hand.run("INSERT INTO orders VALUES (1)")
        await hand.rollback()
        assert (place.orders(), place.jobs()) == ([], [])

    scene(place, kind, act)


def test_an_exception_takes_the_job_with_it(place: Place, kind: NewHand) -> None:
    async def act(hand: Hand) -> None:
        await enqueue(hand, place.send, 1)
        await hand.run("INSERT INTO orders VALUES (1)")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        scene(place, kind, act)
    assert (place.orders(), place.jobs()) == ([], [])


def test_a_savepoint_takes_its_jobs_with_it(place: Place, kind: NewHand) -> None:
    async def act(hand: Hand) -> None:
        kept = await enqueue(hand, place.send, 1)
        await hand.run("SAVEPOINT mine")
        await enqueue(hand, place.send, 2)
        await hand.run("INSERT INTO orders VALUES (2)")
        await hand.run("ROLLBACK TO SAVEPOINT mine")
        also = await enqueue(hand, place.send, 3)
        await hand.commit()
        assert (place.orders(), place.jobs()) == ([], [kept.id, also.id])

    scene(place, kind, act)


def test_a_refused_job_leaves_the_transaction_as_it_was(place: Place, kind: NewHand) -> None:
    """D1: by a known id, alone and in a group."""

    async def act(hand: Hand) -> None:
        first = await place.send.using(id="taken").aenqueue(1)
        await hand.run("INSERT INTO orders VALUES (1)")
        with pytest.raises(JobExists):
            await enqueue(hand, place.send, 2, id="taken")
        bound = place.send.using(tx=hand.handle)
        steps = [bound.step(3), bound.using(id="taken").step(4)]
        with pytest.raises(JobExists):
            await enqueue_many(hand, place.harbor, steps)
        after = await enqueue(hand, place.send, 5)
        await hand.commit()
        assert (place.orders(), place.jobs()) == ([1], [first.id, after.id])

    scene(place, kind, act)


def test_keys_hold_inside_a_transaction(place: Place, kind: NewHand) -> None:
    """I1, I2: a key finds its first job, also in the same transaction, and is free after a rollback."""

    async def act(hand: Hand) -> None:
        first = await place.send.using(idempotency_key="a").aenqueue(1)
        same = await enqueue(hand, place.send, 1, idempotency_key="a")
        assert (same.id, same.created, same.same_payload) == (first.id, False, True)
        new = await enqueue(hand, place.send, 1, idempotency_key="b")
        again = await enqueue(hand, place.send, 2, idempotency_key="b")
        assert (again.id, again.created, again.same_payload) == (new.id, False, False)
        await hand.rollback()
        assert (await place.send.using(idempotency_key="b").aenqueue(3)).created

    scene(place, kind, act)


def test_every_option_arrives(place: Place, kind: NewHand) -> None:
    """The same record as from a plain enqueue."""

    async def act(hand: Hand) -> None:
        options: dict[str, Any] = {
            "queue": "q",
            "priority": -7,
            "run_at": datetime.now(UTC) + timedelta(hours=1),
            "expires": datetime.now(UTC) + timedelta(hours=2),
            "idempotency_ttl": None,
            "max_attempts": None,
            "timeout": 1.5,
            "tags": ["a", "b"],
            "headers": {"ä": "ö"},
        }
        plain = await place.send.using(**options, idempotency_key="1").aenqueue(1)
        within = await enqueue(hand, place.send, 1, **options, idempotency_key="2")
        await hand.commit()
        kept = [await plain.arecord(), await within.arecord()]
        odd = ("id", "created_at", "idempotency_key")
        first, second = ({f: getattr(it, f) for f in it.__struct_fields__ if f not in odd} for it in kept)
        assert first == second

    scene(place, kind, act)


def test_many_at_once(place: Place, kind: NewHand) -> None:
    """D1: also as many as go by COPY elsewhere."""

    async def act(hand: Hand) -> None:
        bound = place.send.using(tx=hand.handle)
        steps = [bound.step(number) for number in range(500)]
        jobs = await enqueue_many(hand, place.harbor, steps)
        assert place.jobs() == []
        await hand.commit()
        assert place.jobs() == [job.id for job in jobs]

    scene(place, kind, act)


@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "sqlalchemy AsyncSession over asyncpg"])
def test_it_works_on_an_older_server(postgres16: PostgresServer, name: str) -> None:
    database = Place(postgres16).database
    for proof in (test_a_job_enqueued_in_a_transaction_is_there_once_it_commits, test_keys_hold_inside_a_transaction):
        proof(Place(postgres16, database), HANDS[name])


# waking


@pytest.mark.parametrize("name", ["asyncpg", "psycopg"])
def test_a_commit_wakes_workers(place: Place, name: str) -> None:
    """D13: by a notification that is a part of the commit, and comes to none that is rolled back."""

    async def act(hand: Hand) -> None:
        heard: asyncio.Queue[str] = asyncio.Queue()
        listener = await asyncpg.connect(place.server.url(place.database))
        await listener.add_listener("taskharbor_work", lambda *said: heard.put_nowait(str(said[2])))
        await enqueue(hand, place.send, 1)
        await hand.run("SAVEPOINT mine")
        await listener.fetchval("SELECT 1")
        assert heard.empty()
        await hand.commit()
        assert await heard.get() == "taskharbor_work"
        await listener.close()

    scene(place, HANDS[name], act)


# blocking handles


def test_a_blocking_handle_is_used_in_the_callers_thread_without_any_loop(place: Place) -> None:
    """P1: also in a thread that is not the main one."""
    threads: set[str] = set()
    engine = create_engine(dialect(place.server, place.database, "psycopg"))

    class Noting(psycopg.Connection[Any]):
        def wait(self, *args: Any, **kwargs: Any) -> Any:
            threads.add(threading.current_thread().name)
            return super().wait(*args, **kwargs)

    def work() -> None:
        with Noting.connect(place.server.url(place.database)) as connection:
            place.send.using(tx=connection).enqueue(1)
        with Session(engine) as session, session.begin():
            place.send.using(tx=session).enqueue(2)

    thread = threading.Thread(target=work, name="mine")
    thread.start()
    thread.join(60)
    assert len(place.jobs()) == 2
    assert threads == {"mine"}
    engine.dispose()
    place.harbor.close()


def test_enqueue_with_a_blocking_handle_is_allowed_where_a_loop_runs(place: Place) -> None:
    """P1: using such a handle there blocks the loop anyway."""

    async def act(hand: Hand) -> None:
        place.send.using(tx=hand.handle).enqueue(1)
        await hand.commit()
        assert len(place.jobs()) == 1

    scene(place, HANDS["psycopg"], act)


@pytest.mark.parametrize("name", ["psycopg", "sqlalchemy Session", "sqlalchemy Connection"])
def test_aenqueue_refuses_a_handle_that_blocks(place: Place, name: str) -> None:
    async def act(hand: Hand) -> None:
        with pytest.raises(InvalidJob, match="use enqueue, not aenqueue"):
            await place.send.using(tx=hand.handle).aenqueue(1)
        await hand.commit()
        assert place.jobs() == []

    scene(place, HANDS[name], act)


@pytest.mark.parametrize("name", ["asyncpg", "async psycopg", "sqlalchemy AsyncSession over asyncpg"])
def test_enqueue_refuses_a_handle_that_is_awaited(place: Place, name: str) -> None:
    async def act(hand: Hand) -> None:
        with pytest.raises(InvalidJob, match=r"has to be awaited: use `await ….aenqueue"):
            place.send.using(tx=hand.handle).enqueue(1)

    scene(place, HANDS[name], act)


# bad input


async def refused(place: Place, handle: Any, match: str, *, blocking: bool = False) -> None:
    bound = place.send.using(tx=handle)
    with pytest.raises(InvalidJob, match=match):
        bound.enqueue(1) if blocking else await bound.aenqueue(1)


@asynccontextmanager
async def opened(place: Place) -> AsyncGenerator[str]:
    async with asyncio.timeout(60), place.harbor.open():
        yield place.server.url(place.database)
    assert place.jobs() == []


def test_a_handle_without_a_transaction_is_refused_with_the_fix(place: Place) -> None:
    async def act() -> None:
        async with opened(place) as url:
            connection = await asyncpg.connect(url)
            await refused(place, connection, r"no open transaction: enqueue inside `async with connection.transaction")
            await connection.close()
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as own:
                await refused(place, own, r"autocommit mode .* inside `async with connection.transaction")
                async with own.transaction(force_rollback=True):
                    await place.send.using(tx=own).aenqueue(1)
            with psycopg.connect(url, autocommit=True) as blocking:
                await refused(place, blocking, r"autocommit mode .* inside `with connection.transaction", blocking=True)
            for driver in ("asyncpg", "psycopg"):
                name = dialect(place.server, place.database, driver)
                engine = create_async_engine(name, isolation_level="AUTOCOMMIT")
                async with engine.connect() as auto:
                    await refused(place, auto, "no open transaction")
                await engine.dispose()

    asyncio.run(act())


def test_a_connection_that_was_closed_says_so(place: Place) -> None:
    async def act(hand: Hand) -> None:
        connection = await asyncpg.connect(place.server.url(place.database))
        await connection.close()
        await refused(place, connection, "that was closed")

    scene(place, HANDS["asyncpg"], act)


def test_pipelines_are_refused(place: Place) -> None:
    """X5: a statement in one has no answer yet."""

    async def act(hand: Hand) -> None:
        url = place.server.url(place.database)
        async with await psycopg.AsyncConnection.connect(url) as connection, connection.pipeline():
            await refused(place, connection, "outside of connection.pipeline()")

    scene(place, HANDS["asyncpg"], act)


def test_sqlalchemy_without_greenlet_gets_a_clear_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """X5: its asyncio part cannot be imported then; an engine is refused for what it is."""
    monkeypatch.setitem(sys.modules, "sqlalchemy.ext.asyncio", None)

    async def act(hand: Hand) -> None:
        await refused(place, create_engine("postgresql+psycopg://"), "is not a transaction that can be joined")

    scene(place, HANDS["asyncpg"], act)


def test_a_handle_to_another_database_is_refused(place: Place) -> None:
    async def act() -> None:
        async with opened(place):
            elsewhere = place.server.new_database()
            connection = await asyncpg.connect(place.server.url(elsewhere))
            async with connection.transaction():
                await refused(place, connection, f"leads to the database '{elsewhere}'.* no transaction spans both")
                assert await connection.fetchval("SELECT 1") == 1
            await connection.close()
            with psycopg.connect(place.server.url(elsewhere)) as blocking:
                await refused(place, blocking, "leads to the database", blocking=True)

    asyncio.run(act())


def test_a_handle_to_a_database_of_the_same_name_elsewhere_is_refused(place: Place, postgres16: PostgresServer) -> None:
    postgres16.execute(f"CREATE DATABASE {place.database}")

    async def act() -> None:
        async with opened(place):
            connection = await asyncpg.connect(postgres16.url(place.database))
            async with connection.transaction():
                await refused(place, connection, "has no schema 'taskharbor': use a connection to the server")
            await connection.close()

    asyncio.run(act())


def test_an_unknown_handle_is_refused_with_a_list_of_known_ones(place: Place) -> None:
    """X5: an unknown type, a pool, a cursor, an engine, another driver in SQLAlchemy, the face of an AsyncSession."""

    async def act() -> None:
        async with opened(place) as url:
            for wrong in (object(), "BEGIN", 1, place.harbor):
                await refused(place, wrong, "give an asyncpg connection, a psycopg 3 Connection")
            with pytest.raises(InvalidJob, match="not None"):
                place.send.using(tx=None)
            async with asyncpg.create_pool(url, min_size=1) as pool:
                await refused(place, pool, "a pool or a transaction is not its connection: give that")
            with psycopg.connect(url) as connection, connection.cursor() as cursor:
                await refused(place, cursor, r"tx=psycopg.Cursor is not a transaction .* a SQLAlchemy 2 Session")
            engine = create_async_engine(dialect(place.server, place.database, "asyncpg"))
            await refused(place, engine, "is not a transaction that can be joined")
            async with AsyncSession(engine) as session:
                with pytest.raises(InvalidJob, match="give the AsyncSession to aenqueue"):
                    await session.run_sync(lambda face: place.send.using(tx=face).enqueue(1))
            await engine.dispose()
            lite = create_engine("sqlite://")
            with lite.connect() as other:
                await refused(place, other, r"SQLAlchemy over sqlite3.Connection.* postgresql\+psycopg", blocking=True)
            lite.dispose()

    asyncio.run(act())


def test_steps_of_one_group_go_with_one_transaction(place: Place) -> None:
    async def act(hand: Hand) -> None:
        inside, outside = place.send.using(tx=hand.handle).step(1), place.send.step(2)
        for mixed in ([inside, outside], [outside, inside]):
            with pytest.raises(InvalidJob, match="the same tx="):
                await place.harbor.aenqueue_many(mixed)

    scene(place, HANDS["asyncpg"], act)
    assert place.jobs() == []


def test_a_psycopg_that_is_too_old_is_named_with_its_fix(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """X5."""

    async def act() -> None:
        async with opened(place) as url:
            with psycopg.connect(url) as connection, monkeypatch.context() as older:
                older.delattr(psycopg, "RawCursor")
                with pytest.raises(MissingExtra, match=r'3.2 or newer is needed: pip install "taskharbor\[psycopg\]"'):
                    place.send.using(tx=connection).enqueue(1)

    asyncio.run(act())


# the callers' own errors


def test_an_aborted_transaction_says_so_in_its_own_words(place: Place) -> None:
    async def act(hand: Hand) -> None:
        with pytest.raises(asyncpg.UndefinedTableError):
            await hand.run("SELECT * FROM nowhere")
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await enqueue(hand, place.send, 1)

    scene(place, HANDS["asyncpg"], act)


def test_what_goes_wrong_inside_does_not_end_the_transaction(postgres: PostgresServer) -> None:
    """A trigger of the operator, as an example of what a server can refuse."""
    place = Place(postgres)
    asyncio.run(place.make())
    for sql in (
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$",
        "CREATE TRIGGER no BEFORE INSERT ON taskharbor.job EXECUTE FUNCTION no()",
    ):
        place.server.execute(sql, database=place.database)

    async def act(hand: Hand) -> None:
        await hand.run("INSERT INTO orders VALUES (1)")
        with pytest.raises((asyncpg.RaiseError, psycopg.errors.RaiseException)):
            await enqueue(hand, place.send, 13)
        await hand.commit()
        assert place.orders() == [1]

    for name in ("asyncpg", "psycopg"):
        place.server.execute("DELETE FROM orders", database=place.database)
        scene(place, HANDS[name], act)


@pytest.mark.parametrize("name", ["asyncpg", "async psycopg", "sqlalchemy AsyncSession over asyncpg"])
def test_an_enqueue_that_is_cut_short_leaves_the_transaction_as_it_was(place: Place, name: str) -> None:
    """X3: the caller's writes are committed by its own commit, even if a call of ours timed out in between."""
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    async def act(hand: Hand) -> None:
        other = await asyncpg.connect(place.server.url(place.database))
        async with other.transaction():
            await other.execute("INSERT INTO taskharbor.keys (key, owner, digest) VALUES ('k', 'x', '')")
            await hand.run("INSERT INTO orders VALUES (1)")
            waiting = asyncio.ensure_future(enqueue(hand, place.send.using(idempotency_key="k"), 1))
            watch = await asyncpg.connect(place.server.url(place.database))
            while not await watch.fetchval(blocked):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await watch.close()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await hand.run("INSERT INTO orders VALUES (2)")
            await hand.commit()
        await other.close()
        assert (place.orders(), place.jobs()) == ([1, 2], [])

    scene(place, HANDS[name], act)


# settling


def test_a_settle_goes_with_the_transaction_too(place: Place) -> None:
    """D13, D7: fenced as ever, by an awaited handle and a blocking one."""

    async def act() -> None:
        driver = await from_url(place.server.url(place.database, migrate="true"))
        ids = [(await place.send.aenqueue(number)).id for number in range(3)]
        jobs = await driver.reserve(["default"], T + timedelta(days=999), timedelta(seconds=30), 3, "w")
        acks = [Ack(id=it.id, token=it.lease.token, keep_until=T + timedelta(days=9999)) for it in jobs if it.lease]
        now = T + timedelta(days=999)
        within = capability(driver, Within)
        connection = await asyncpg.connect(place.server.url(place.database))
        for ending in ("rollback", "commit"):
            transaction = connection.transaction()
            await transaction.start()
            assert await within.within(connection).settle(acks[:1], now) == ["ok"]
            await getattr(transaction, ending)()
        with psycopg.connect(place.server.url(place.database)) as blocking:
            assert at_once(within.within(blocking).settle(acks, now)) == ["replayed", "ok", "ok"]
            blocking.rollback()
            late = now + timedelta(hours=1)
            verdicts = at_once(within.within(blocking).settle(acks, late))
            assert [str(type(it).__name__) for it in verdicts] == ["str", "LeaseExpired", "LeaseExpired"]
        states = [await place.harbor.job(id).astate() for id in ids]
        assert states == ["done", "claimed", "claimed"]
        await connection.close()
        await driver.close()
        await place.harbor.aclose()

    asyncio.run(act())


def test_a_failure_settled_in_a_transaction_reaches_its_dependants(place: Place) -> None:
    """K4, D7: by a handle of another library too, which takes parameters in its own way."""

    async def act() -> None:
        driver = await from_url(place.server.url(place.database, migrate="true"))
        new = group(job("p"), child("c", "p", policy="cancel", idempotency_key="k"), child("d", "c", policy="collect"))
        await driver.enqueue([new], T0)
        jobs = await driver.reserve([], T0, timedelta(seconds=30), 1, "w", ids=["p"])
        fails = [Fail(id=it.id, token=token_of(it), keep_until=KEEP, reason="x") for it in jobs]
        with psycopg.connect(place.server.url(place.database)) as blocking:
            assert at_once(capability(driver, Within).within(blocking).settle(fails, T0)) == ["ok"]
        found = [
            it and (it.state.value, it.idempotency_key) for it in await capability(driver, Inspect).get(["p", "c", "d"])
        ]
        assert found == [("dlq", None), ("cancelled", None), ("ready", None)]
        await driver.close()

    asyncio.run(act())


def test_an_engine_of_another_kind_below_a_session_is_named(place: Place) -> None:
    engine = create_engine("sqlite://")
    with Session(engine) as session:
        session.execute(text("SELECT 1"))
        with pytest.raises(InvalidJob, match="SQLAlchemy over sqlite3"):
            place.send.using(tx=session).enqueue(1)
    engine.dispose()
    place.harbor.close()
