"""Wake-ups: received across drivers, sent once per moment, and received again after the listening session was lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from queue import SimpleQueue
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from servers.postgres import PostgresServer
from taskharbor import Harbor
from taskharbor.core.backoff import Backoff
from taskharbor.core.job import Dependency, NewJob
from taskharbor.core.transition import Ack, PutBack, Transition
from taskharbor.driver import Group
from taskharbor.drivers import from_url
from taskharbor.drivers.postgres import listen
from taskharbor.drivers.postgres.driver import PostgresDriver
from taskharbor.drivers.postgres.listen import COURTESY, MOMENT, Notifier
from taskharbor.errors import DriverUnavailable
from taskharbor.testing import ProxyThread, run

T = datetime(2026, 3, 1, tzinfo=UTC)
LONG, PATIENCE = 25.0, 60.0
_numbers = count()


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def url(postgres: PostgresServer, database: str) -> str:
    return postgres.url(database, namespace=f"ear_{next(_numbers)}", migrate="true")


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[PostgresDriver]:
    driver = await from_url(url)
    assert isinstance(driver, PostgresDriver)
    try:
        yield driver
    finally:
        await driver.close()


async def enqueue(driver: PostgresDriver, id: str = "a") -> None:
    await driver.enqueue([Group(jobs=(NewJob(id=id, type="t", queue="q", payload=b""),))], T)


async def listening(driver: PostgresDriver) -> None:
    """Return when the driver listens: its waiters are woken once then, because they may have missed something."""
    await driver.wait_for_work(["q"], LONG)


async def waiter(driver: PostgresDriver) -> asyncio.Task[None]:
    waiting = asyncio.create_task(driver.wait_for_work(["q"], 10 * PATIENCE))
    await asyncio.sleep(0)
    return waiting


def act(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await story

    asyncio.run(bounded())


def sessions(server: PostgresServer, database: str) -> list[int]:
    """The sessions that listen."""
    asked = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND query ~ 'LISTEN|pg_listening'"
    return [row[0] for row in server.execute(asked, [database])]


class TestHearing:
    def test_an_enqueue_elsewhere_wakes(self, url: str) -> None:
        """D13: a waiter that would wait for minutes is woken by another driver's commit."""

        async def story() -> None:
            async with opened(url) as here, opened(url) as there:
                await listening(here)
                waiting = await waiter(here)
                await enqueue(there)
                await waiting

        act(story())

    @pytest.mark.parametrize("what", ["a put-back", "a child", "a new job"])
    def test_an_outcome_elsewhere_that_makes_work_wakes(self, url: str, what: str) -> None:
        """D13, K2, D9: jobs that a settle puts in line are announced like enqueued ones."""

        async def story() -> None:
            async with opened(url) as here, opened(url) as there:
                first, second = (NewJob(id=id, type="t", queue="q", payload=b"") for id in ("first", "second"))
                if what == "a child":
                    second = replace(second, depends_on=(Dependency("first", "hold"),))
                    await there.enqueue([Group(jobs=(first, second))], T)
                else:
                    await there.enqueue([Group(jobs=(first,))], T)
                [job] = await there.reserve(["q"], T, timedelta(seconds=30), 1, "w")
                assert job.lease is not None
                await listening(here)
                await there._notifier.close()  # notifications so far are about the enqueue
                waiting = await waiter(here)
                done: Transition = Ack(id="first", token=job.lease.token, keep_until=T)
                if what == "a put-back":
                    done = PutBack(id="first", token=job.lease.token, keep_until=T, run_at=T)
                elif what == "a new job":
                    done = replace(done, new_jobs=(second,))
                assert await there.settle([done], T) == ["ok"]
                await waiting

        act(story())

    def test_other_namespaces_do_not_wake(self, postgres: PostgresServer, database: str, url: str) -> None:
        """P: several harbors in one database."""

        async def story() -> None:
            other = postgres.url(database, namespace=f"ear_{next(_numbers)}", migrate="true")
            async with opened(url) as here, opened(other) as elsewhere, opened(url) as there:
                await listening(here)
                heard: SimpleQueue[None] = SimpleQueue()
                assert here._listener is not None
                here._listener._wake = lambda: heard.put(None)
                await enqueue(elsewhere)
                await enqueue(there)
                await asyncio.to_thread(heard.get, timeout=PATIENCE)
                assert heard.empty()

        act(story())

    def test_a_session_that_is_ended_is_replaced(self, postgres: PostgresServer, database: str, url: str) -> None:
        """X2: pg_terminate_backend of the listening session, again and again."""

        async def story() -> None:
            async with opened(url) as here, opened(url) as there:
                await listening(here)
                for number in range(3):
                    waiting = await waiter(here)
                    [pid] = await asyncio.to_thread(sessions, postgres, database)
                    await asyncio.to_thread(postgres.execute, "SELECT pg_terminate_backend(%s)", [pid])
                    await waiting  # woken up by the new session, which may have missed something
                    waiting = await waiter(here)
                    await enqueue(there, str(number))
                    await waiting

        act(story())

    def test_a_half_open_session_is_noticed(
        self, postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """X2: nothing comes through any more, without an error; the session is asked, is silent, and is replaced."""
        monkeypatch.setattr(listen, "ASK_EVERY", 0.05)
        monkeypatch.setattr(listen, "ANSWER_WITHIN", 0.5)

        async def story() -> None:
            async with opened(url) as there:
                with ProxyThread("127.0.0.1", postgres.port) as proxy:
                    async with opened(proxy.url(url)) as here:
                        await listening(here)
                        waiting = await waiter(here)
                        proxy.call(lambda proxy: proxy.links[-1].stall())
                        await waiting  # by a new session through the proxy
                        waiting = await waiter(here)
                        await enqueue(there)
                        await waiting

        act(story())

    def test_a_session_that_forgot_is_noticed(
        self, postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Alive, but it does not listen any more, as behind a pooler that is not configured."""
        monkeypatch.setattr(listen, "ASK_EVERY", 0.05)
        forgot = threading.Event()
        ask = listen.Listener._ask

        async def forget_once(self: listen.Listener, connection: Any) -> None:
            if not forgot.is_set():
                forgot.set()
                await connection.execute("UNLISTEN *")
            await ask(self, connection)

        monkeypatch.setattr(listen.Listener, "_ask", forget_once)

        async def story() -> None:
            async with opened(url) as here, opened(url) as there:
                await listening(here)
                waiting = await waiter(here)
                await waiting
                assert forgot.is_set()
                waiting = await waiter(here)
                await enqueue(there)
                await waiting

        act(story())
        assert "pgbouncer=true" in caplog.text

    def test_an_outage_is_one_line_in_the_log(
        self, postgres: PostgresServer, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """X2: it goes on trying, and listens again once the server is back."""
        monkeypatch.setattr(listen, "STORE_BACKOFF", Backoff(base=0.01, cap=0.02))
        failed, note = threading.Semaphore(0), listen.Listener._failed

        def fifth_failure(self: listen.Listener, error: Exception) -> None:
            note(self, error)
            if self._failures == 5:
                failed.release()

        monkeypatch.setattr(listen.Listener, "_failed", fifth_failure)

        async def story() -> None:
            with ProxyThread("127.0.0.1", postgres.port) as proxy:
                async with opened(proxy.url(url)) as here, opened(url) as there:
                    await listening(here)
                    proxy.refuse()
                    proxy.reset()
                    await asyncio.to_thread(failed.acquire, timeout=PATIENCE)
                    waiting = await waiter(here)
                    proxy.accept()
                    await waiting
                    waiting = await waiter(here)
                    await enqueue(there)
                    await waiting

        with caplog.at_level("INFO", logger="taskharbor.postgres"):
            act(story())
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
        assert "listening again" in caplog.text

    def test_without_waiters_nothing_listens(self, postgres: PostgresServer, database: str, url: str) -> None:
        """A producer has no thread and no session for it."""

        async def story() -> None:
            before = threading.active_count()
            async with opened(url) as driver:
                await enqueue(driver)
                assert threading.active_count() == before

        act(story())

    def test_closing_leaves_nothing(self, postgres: PostgresServer) -> None:
        """No thread and no session, also if it is closed while it connects."""
        database = postgres.new_database()
        url = postgres.url(database, migrate="true")

        async def story() -> None:
            async with opened(url) as here:
                await listening(here)
            async with opened(url) as here:
                await here.wait_for_work(["q"], 0)

        act(story())
        assert [thread for thread in threading.enumerate() if thread.name == "taskharbor listen"] == []
        gone(postgres, database)


def gone(server: PostgresServer, database: str) -> None:
    """Sessions end a moment after their connection: wait for that, as long as it takes."""
    wait = (
        "DO $$ BEGIN WHILE EXISTS (SELECT FROM pg_stat_activity WHERE datname = '{}') LOOP "
        "PERFORM pg_sleep(0.01), pg_stat_clear_snapshot(); END LOOP; END $$"
    )
    server.execute(f"SET statement_timeout = '30s'; {wait.format(database)}")


class TestTelling:
    def test_concurrent_enqueues_share_their_notifications(self, postgres: PostgresServer, url: str) -> None:
        """FACTS: one notification per job halves the speed; a thousand at once share theirs, the last included."""

        async def story() -> None:
            harbor = Harbor(url)
            async with harbor.open():
                ear, heard = await _ear(url)
                jobs = await asyncio.gather(*(harbor.aenqueue_many([harbor.step("t", {})]) for _ in range(1000)))
                assert len(jobs) == 1000
            seen = 0
            while seen < 1000:  # all are committed; the last notification comes after the last commit
                await heard.get()
                seen = await ear.fetchval(
                    f"SELECT count(*) FROM {url.partition('namespace=')[2].partition('&')[0]}.job"
                )
            await ear.close()
            assert heard.qsize() < 100

        act(story())

    def test_the_last_of_a_burst_is_announced(self, url: str) -> None:
        """No lost trailing wake-up: a look after every notification has seen everything in the end."""

        async def story() -> None:
            table = url.partition("namespace=")[2].partition("&")[0]
            async with opened(url) as driver:
                ear, heard = await _ear(url)
                for burst in range(10):
                    await asyncio.gather(*(enqueue(driver, f"{burst}.{number}") for number in range(8)))
                    seen = 0
                    while seen < 8 * (burst + 1):
                        await heard.get()
                        seen = await ear.fetchval(f"SELECT count(*) FROM {table}.job")
                await ear.close()

        act(story())

    def test_closing_flushes_deferred_notifications(self, url: str) -> None:
        """A program that enqueues and ends at once."""

        async def story() -> None:
            table = url.partition("namespace=")[2].partition("&")[0]
            async with opened(url) as driver:
                ear, heard = await _ear(url)
                for number in range(5):
                    await enqueue(driver, str(number))
            seen = 0
            while seen < 5:
                await heard.get()
                seen = await ear.fetchval(f"SELECT count(*) FROM {table}.job")
            await ear.close()

        act(story())


async def _ear(url: str) -> tuple[Any, asyncio.Queue[str]]:
    """A connection that listens for work, and what it has received."""
    schema = url.partition("namespace=")[2].partition("&")[0]
    connection = await asyncpg.connect(url.partition("?")[0])
    heard: asyncio.Queue[str] = asyncio.Queue()
    await connection.add_listener(f"{schema}_work", lambda *said: heard.put_nowait(str(said[2])))
    return connection, heard


class TestNotifier:
    """The rule itself, in virtual time."""

    def told(self, story: Callable[[Notifier, list[float]], Coroutine[Any, Any, None]]) -> list[float]:
        """When notifications went out by themselves, those with a commit as negative numbers."""
        times: list[float] = []

        async def notify(channel: str) -> None:
            times.append(asyncio.get_running_loop().time())

        async def play() -> None:
            start = asyncio.get_running_loop().time()
            await story(Notifier(notify), times)
            times[:] = [round(time - start, 6) for time in times]

        run(play())
        return times

    def test_a_commit_in_a_quiet_moment_notifies_at_once(self) -> None:
        async def story(notifier: Notifier, _: list[float]) -> None:
            for _number in range(3):
                with notifier.about("c") as tell:
                    assert tell == "c"
                await asyncio.sleep(MOMENT)

        assert self.told(story) == []

    def test_later_commits_are_announced_together_at_the_end_of_the_moment(self) -> None:
        async def story(notifier: Notifier, _: list[float]) -> None:
            for number in range(5):
                with notifier.about("c") as tell:
                    assert (tell is None) == (number > 0)
                await asyncio.sleep(MOMENT / 10)
            with notifier.about("other") as tell:
                assert tell == "other"
            await asyncio.sleep(1)

        assert self.told(story) == pytest.approx([MOMENT + COURTESY])

    def test_a_slow_commit_is_announced_after_it(self) -> None:
        """It began in the moment of another and ended long after: the last word comes behind its commit."""

        async def story(notifier: Notifier, _: list[float]) -> None:
            with notifier.about("c"):
                pass
            with notifier.about("c") as tell:
                assert tell is None
                await asyncio.sleep(5 * MOMENT)
            await asyncio.sleep(1)

        assert self.told(story) == [5 * MOMENT]

    def test_an_error_may_have_been_a_commit(self) -> None:
        """X3: it is announced too."""

        async def story(notifier: Notifier, _: list[float]) -> None:
            with notifier.about("c"):
                pass
            with pytest.raises(DriverUnavailable), notifier.about("c"):
                raise DriverUnavailable("the reply was lost")
            await asyncio.sleep(1)

        assert self.told(story) == pytest.approx([MOMENT + COURTESY])

    def test_commits_before_a_failed_one_are_announced(self) -> None:
        """It should have announced them."""

        async def story(notifier: Notifier, _: list[float]) -> None:
            for _number in range(2):
                with notifier.about("c"):
                    pass
            await asyncio.sleep(MOMENT)
            with pytest.raises(DriverUnavailable), notifier.about("c"):
                raise DriverUnavailable("nothing was stored")
            await asyncio.sleep(1)

        assert self.told(story) == pytest.approx([2 * MOMENT + COURTESY])

    def test_a_steady_stream_notifies_once_per_moment_and_after_the_last(self) -> None:
        """The first commit after each moment says it for all before it."""
        told: list[float] = []

        async def story(notifier: Notifier, _: list[float]) -> None:
            for _number in range(50):
                with notifier.about("c") as tell:
                    await asyncio.sleep(MOMENT / 10)
                if tell is not None:
                    told.append(asyncio.get_running_loop().time())
            await asyncio.sleep(1)

        assert len(self.told(story)) == 1
        assert 4 <= len(told) <= 5
        assert all(later - earlier >= 0.9 * MOMENT for earlier, later in pairwise(told))

    def test_closing_notifies_at_once(self) -> None:
        async def story(notifier: Notifier, _: list[float]) -> None:
            for _number in range(2):
                with notifier.about("c"):
                    pass
            await notifier.close()
            await asyncio.sleep(1)

        assert self.told(story) == [0.0]
