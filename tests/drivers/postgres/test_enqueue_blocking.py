"""Enqueues on the caller's thread, by psycopg: silent and restarted servers, deadlines, and without psycopg."""

from __future__ import annotations

import threading
from collections.abc import Generator
from itertools import count
from typing import Any

import psycopg
import pytest

from servers.postgres import PostgresServer
from taskharbor import Harbor
from taskharbor.drivers.postgres import blocking
from taskharbor.drivers.postgres.psycopg_pool import PsycopgPool
from taskharbor.errors import DriverUnavailable, SchemaMismatch
from taskharbor.testing import ProxyThread

numbers = count()
SHORT = 1.5


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def url(postgres: PostgresServer, database: str) -> str:
    return postgres.url(database, namespace=f"here_{next(numbers)}", migrate="true")


@pytest.fixture
def admin(postgres: PostgresServer, database: str) -> Generator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.socket_url(database), autocommit=True) as connection:
        yield connection


def app(url: str, **settings: Any) -> tuple[Harbor, Any]:
    harbor = Harbor(url, **settings)
    return harbor, harbor.task(name="noop")(_noop)


def _noop(n: int) -> None: ...


def sessions(harbor: Harbor) -> PsycopgPool:
    """The connections of blocking callers."""
    return harbor.driver()._blocking._pool  # type: ignore[attr-defined, no-any-return]


def test_callers_use_a_connection_of_their_own_thread(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: and keep it for the next call, of any thread."""
    monkeypatch.setattr(blocking, "MOMENT", 0.0)  # each commit notifies by itself: a notifier's thread takes one too
    harbor, noop = app(url)
    noop.enqueue(1)
    assert (sessions(harbor).open, sessions(harbor).idle) == (1, 1)
    threads = [threading.Thread(target=noop.enqueue, args=(1,)) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    assert sessions(harbor).open == 1
    assert len(harbor.admin.jobs.list()) == 4
    harbor.close()


def test_without_psycopg_callers_use_the_portal(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1, D13: an optional dependency."""
    monkeypatch.setattr(blocking, "_installed", lambda: False)
    harbor, noop = app(url)
    assert noop.enqueue(1).state() == "ready"
    assert sessions(harbor).open == 0
    harbor.close()


def test_many_jobs_and_many_threads_use_the_portal(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: a large group is copied, and the number of connections has a bound."""
    harbor, noop = app(url)
    jobs = harbor.enqueue_many([noop.step(n) for n in range(300)])
    assert sessions(harbor).open == 0
    monkeypatch.setattr(blocking, "MOST_OPEN", 0)
    jobs.append(noop.enqueue(1))
    assert sessions(harbor).open == 0
    assert len(harbor.admin.jobs.list(limit=1000)) == len(jobs)
    harbor.close()


def test_a_session_that_the_server_ended_is_replaced(
    url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2, X3: the next call works, and no call is repeated by itself."""
    monkeypatch.setattr(blocking, "BURST", 0.0)
    harbor, noop = app(url)
    noop.enqueue(1)
    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
    admin.execute(f"SELECT pg_terminate_backend(pid) {others}".encode())
    while admin.execute(f"SELECT pid {others}".encode()).fetchone() is not None:
        pass
    assert noop.enqueue(2).state() == "ready"
    harbor.close()


def test_a_silent_server_does_not_hold_a_caller(postgres: PostgresServer, url: str) -> None:
    """X2: `DriverUnavailable` at the deadline, which does not claim that nothing happened; then calls work again."""
    with ProxyThread("127.0.0.1", postgres.port) as proxy:
        harbor, noop = app(proxy.url(url), store_timeout=SHORT)
        noop.enqueue(1)
        proxy.stall("to_server")
        with pytest.raises(DriverUnavailable, match="may still take effect"):
            noop.enqueue(2)
        proxy.heal()
        proxy.reset()
        for _ in range(3):
            with_retry(noop)
        harbor.close()


def with_retry(noop: Any) -> None:
    """Enqueue; the first call after an outage may meet an old connection."""
    for _ in range(50):
        try:
            noop.enqueue(3)
        except DriverUnavailable:
            continue
        return
    raise AssertionError("it never worked again")


def test_errors_are_those_of_the_awaited_way(url: str, admin: psycopg.Connection[Any]) -> None:
    """X5: with the fix."""
    harbor, noop = app(url)
    noop.enqueue(1)
    name = harbor.driver()._login.schema  # type: ignore[attr-defined]
    admin.execute(f"DROP TABLE {name}.live CASCADE".encode())
    with pytest.raises(SchemaMismatch, match="taskharbor migrate"):
        noop.enqueue(2)
    harbor.close()


def test_a_lock_that_is_held_for_long_ends_at_the_deadline(url: str, admin: psycopg.Connection[Any]) -> None:
    """X2: the statement waits in the server, the caller does not wait for ever."""
    harbor, noop = app(url, store_timeout=SHORT)
    noop.enqueue(1)
    name = harbor.driver()._login.schema  # type: ignore[attr-defined]
    with admin.transaction():
        admin.execute(f"LOCK TABLE {name}.job".encode())
        with pytest.raises(DriverUnavailable, match="may still take effect"):
            noop.enqueue(2)
    harbor.close()


def test_a_burst_is_notified_of_once_per_moment() -> None:
    """D13: the first commit notifies, a thread does for those after it, and closing sends what is left."""
    sent: list[int] = []
    notifier = blocking.BlockingNotifier(lambda: sent.append(1))
    assert notifier.is_due()
    assert not notifier.is_due()
    for _ in range(100):
        notifier.defer()
    notifier.close()
    while notifier._flushing:
        pass
    assert len(sent) == 1


def test_a_stored_job_is_returned_although_no_thread_can_notify_of_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D13: such as near the memory limit of a process; the caller would store it again."""
    harbor, noop = app(url)
    noop.enqueue(1)

    def refused(function: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(blocking, "start_thread", refused)
    jobs = [noop.enqueue(number) for number in range(3)]
    assert [job.record().state for job in jobs] == ["ready"] * 3
    harbor.close()
