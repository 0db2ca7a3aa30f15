"""`taskharbor bench` on PostgreSQL: in a schema of its own, of which nothing is left."""

from __future__ import annotations

import signal
from secrets import token_hex

import pytest

import limits
from servers.fixtures import NewPostgres
from servers.postgres import PostgresServer
from taskharbor.cli.bench_server import PREFIX
from taskharbor.testing import ProxyThread

from .desk import PATIENCE, Desk
from .test_bench import TINY, measured, process, run

STOPPED = "taskharbor: bench stopped; its throw-away store is removed\n"


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


def schemas(server: PostgresServer, database: str) -> list[str]:
    """The schemas that a bench has there."""
    names = "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)"
    return [name for (name,) in server.execute(names, [PREFIX], database=database)]


def test_it_measures_beside_the_jobs_and_leaves_no_trace(desk: Desk, postgres: PostgresServer, database: str) -> None:
    """C: the user's jobs are not touched, and the schema is gone."""
    url = postgres.url(database)
    desk.good("migrate", url)
    desk.good("enqueue", "t", "--url", url)
    everything = "SELECT * FROM taskharbor.record"
    before = postgres.execute(everything, database=database)
    answer = measured(desk, url)
    assert (answer["engine"], answer["synchronous"], answer["fsync_ms"]) == ("postgresql", "fsync=off", None)
    assert all(answer["enqueue_per_second"][name] > 0 for name in ("single", "concurrent", "bulk"))
    assert answer["drain_per_second"] > 0
    assert answer["commit_ms"] > 0
    assert 0 < answer["latency_ms"]["p50"] <= answer["latency_ms"]["p99"]
    assert answer["latency_ms"]["two_processes"] is True
    assert "fsync is off" in answer["verdict"][3]
    assert postgres.execute(everything, database=database) == before
    assert schemas(postgres, database) == []


def test_a_schema_that_does_not_exist_is_not_made(desk: Desk, postgres: PostgresServer, database: str) -> None:
    """C: measuring makes no store, whatever the options say; also by a socket."""
    place = f"host={postgres.folder}&port={postgres.port}&user=postgres"
    assert measured(desk, f"postgres:///{database}?{place}&namespace=shop&migrate=true")["engine"] == "postgresql"
    found = postgres.execute("SELECT 1 FROM pg_namespace WHERE nspname IN ('shop', 'taskharbor')", database=database)
    assert found == []


def test_people_get_a_table_and_words(desk: Desk, postgres: PostgresServer, database: str) -> None:
    """C: the same as elsewhere, with what the server itself takes."""
    code, told, complained = run(desk, postgres.url(database), *TINY)
    assert (code, complained) == (0, "")
    for text in ("measuring latency", "commit of one row", "What that means", "fsync is off"):
        assert text in told


def test_a_user_without_the_right_to_create_a_schema(desk: Desk, postgres: PostgresServer, database: str) -> None:
    """X5: who may, and how."""
    role = f"bench_{token_hex(4)}"
    postgres.execute(f"CREATE ROLE {role} LOGIN")
    url = postgres.url(database).replace("postgres@", f"{role}@")
    complaint = desk.bad(2, "bench", url, *TINY)
    assert f"this user may not create one (permission denied for database {database})" in complaint
    assert "GRANT CREATE ON DATABASE" in complaint
    postgres.execute(f"GRANT CREATE ON DATABASE {database} TO {role}")
    assert measured(desk, url)["engine"] == "postgresql"
    assert schemas(postgres, database) == []


@pytest.mark.parametrize(
    ("rest", "code", "fix"),
    [
        ("127.0.0.1:1/db", 3, "does not answer: is it running"),
        ("127.0.0.1:{port}/nowhere", 2, "there is no such database"),
        ("127.0.0.1:{port}/postgres?sails=3", 2, "no option 'sails'"),
    ],
)
def test_errors_name_the_fix(desk: Desk, postgres: PostgresServer, rest: str, code: int, fix: str) -> None:
    """C, X5: one line, without the password."""
    complaint = desk.bad(code, "bench", f"postgresql://postgres:hunter2@{rest.format(port=postgres.port)}", *TINY)
    assert fix in complaint
    assert "hunter2" not in complaint


@pytest.mark.parametrize("stage", ["enqueue, one after another", "latency"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_cleans_up(
    desk: Desk, postgres: PostgresServer, database: str, stage: str, number: signal.Signals
) -> None:
    """C: Ctrl-C or a kill in the midst of it: exit 1, and no schema left."""
    running = process(desk, postgres.url(database), "--seconds", "60" if stage.startswith("enqueue") else "4")
    assert running.stdout is not None
    with limits.limited(running, "a bench that stops"):
        for line in running.stdout:
            if f"measuring {stage}" in line:
                break
        assert len(schemas(postgres, database)) == 1
        running.send_signal(number)
        _, complained = running.communicate(timeout=PATIENCE)
    assert (running.returncode, complained) == (1, STOPPED)
    assert schemas(postgres, database) == []


def test_a_stop_while_the_schema_is_made(desk: Desk, postgres: PostgresServer, database: str) -> None:
    """C: it is made to its end and dropped again."""
    with ProxyThread("127.0.0.1", postgres.port) as proxy:
        proxy.stall("to_client")
        running = process(desk, proxy.url(postgres.url(database)), *TINY)
        with limits.limited(running, "a bench that stops"):
            proxy.until(lambda: proxy.received["to_server"] > 0)
            running.send_signal(signal.SIGINT)
            proxy.resume()
            _, complained = running.communicate(timeout=PATIENCE)
    assert (running.returncode, complained) == (1, STOPPED)
    assert schemas(postgres, database) == []


def test_a_server_that_goes_away(desk: Desk, new_postgres: NewPostgres) -> None:
    """C, X5: exit 3, and how to remove what could not be removed."""
    server = new_postgres()
    running = process(desk, server.url(), "--seconds", "60")
    assert running.stdout is not None
    with limits.limited(running, "a bench that stops"):
        for line in running.stdout:
            if "measuring enqueue, one after another" in line:
                break
        (left,) = schemas(server, "postgres")
        server.stop()
        _, complained = running.communicate(timeout=PATIENCE)
    assert running.returncode == 3
    assert complained.startswith("taskharbor: bench could not remove its schema (")
    assert f"DROP SCHEMA {left} CASCADE" in complained
    server.start()
    server.execute(f"DROP SCHEMA {left} CASCADE")
