"""The schema in PostgreSQL: made once by one of many, refused if it does not fit, changed without blocking others."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from limits import LIMIT
from servers.postgres import PostgresServer, binaries
from taskharbor import Harbor
from taskharbor.driver import Migration, WaitForWork
from taskharbor.drivers import from_url, migrate
from taskharbor.drivers.postgres import schema, sql
from taskharbor.errors import ConfigError, DriverUnavailable, SchemaMismatch

NAMES = [
    "with space",
    'say "ahoy"',
    "it's",
    "Großer Käse",
    "UPPER",
    "select",
    "1st",
    "a.b",
    "a;drop table x",
    "back\\slash",
    "100%",
    "$1",
    "harbor",
    "⛵",
    "x" * 57,
    "ü" * 28 + "x",
]


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def url(postgres: PostgresServer, database: str) -> str:
    """A namespace that was never used."""
    return postgres.url(database, namespace=f"n{next(_numbers)}")


_numbers = count()


def namespace(url: str) -> str:
    return url.partition("namespace=")[2]


def make(url: str, **options: Any) -> Migration:
    done = asyncio.run(migrate(url, **options))
    assert done is not None
    return done


async def _opened(url: str) -> None:
    await (await from_url(url)).close()


def open_it(url: str) -> None:
    asyncio.run(_opened(url))


def shape(server: PostgresServer, database: str, schema: str) -> list[list[tuple[Any, ...]]]:
    """Everything the catalog says about a schema, without its name and without numbers of this one copy."""
    questions = [
        "SELECT relname, relkind, relpersistence, reloptions FROM pg_class WHERE relnamespace = %s::regnamespace",
        """
        SELECT c.relname, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
            a.attcollation::regcollation::text, pg_get_expr(d.adbin, d.adrelid)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE a.attnum > 0 AND c.relnamespace = %s::regnamespace
        """,
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = %s::regnamespace",
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = %s",
        "SELECT viewname, definition FROM pg_views WHERE schemaname = %s",
        "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = %s::regnamespace",
        """
        SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger
        WHERE tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = %s::regnamespace)
        """,
        f"SELECT number, works_with FROM \"{schema}\".version WHERE %s <> ''",
    ]
    answers = [server.execute(question, [schema], database=database) for question in questions]
    return [sorted(((*(_unnamed(value, schema) for value in row),) for row in rows), key=repr) for rows in answers]


def _unnamed(value: object, schema: str) -> object:
    return re.sub(rf"\b{schema}\.", "", value) if isinstance(value, str) else value


def by_psql(server: PostgresServer, database: str, text: str) -> None:
    """Run a script as an administrator would."""
    program = [str(binaries(18) / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", server.socket_url(database)]
    done = subprocess.run(program, input=text, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert (done.returncode, "ERROR" in done.stderr) == (0, False), done.stderr


class TestMigrating:
    def test_a_new_schema_is_made_and_the_second_time_there_is_nothing_to_do(self, url: str) -> None:
        """C: what was done is reported, step by step."""
        told: list[str] = []
        assert make(url, dry=True).steps == ("0001_jobs",)
        done = make(url, tell=told.append)
        assert (done.what, done.version, done.steps) == (f"schema {namespace(url)}", 1, ("0001_jobs",))
        assert told == ["0001_jobs"]
        for dry in (True, False):
            again = make(url, dry=dry)
            assert (again.version, again.steps, again.sql) == (1, (), "")
        open_it(url)

    def test_a_plan_changes_nothing(self, postgres: PostgresServer, database: str, url: str) -> None:
        make(url, dry=True)
        found = postgres.execute("SELECT to_regnamespace(%s)::text", [namespace(url)], database=database)
        assert found == [(None,)]

    def test_a_harbor_migrates_too(self, url: str) -> None:
        """P: for deployment scripts and tests; stores that see to it themselves say nothing."""
        harbor = Harbor(url)
        done = harbor.migrate()
        assert done is not None
        assert done.steps == ("0001_jobs",)
        harbor.close()
        memory = Harbor("memory://")
        assert memory.migrate() is None
        memory.close()

    def test_eight_at_once_make_it_once(self, postgres: PostgresServer, database: str, url: str) -> None:
        """Each with a connection of its own, as eight starting processes would."""
        with ThreadPoolExecutor(8) as threads:
            done = list(threads.map(make, [url] * 8))
        assert sorted(len(each.steps) for each in done) == [0] * 7 + [1]
        found = postgres.execute(f'SELECT number, works_with FROM "{namespace(url)}".version', database=database)
        assert found == [(1, 1)]

    def test_the_printed_sql_makes_exactly_the_same_schema(
        self, postgres: PostgresServer, database: str, url: str
    ) -> None:
        """C: one by migrate, the other by what `--sql` prints; the catalog shows no difference."""
        other = postgres.url(database, namespace="by_hand")
        text = make(other, dry=True).sql
        make(url)
        by_psql(postgres, database, text)
        made, by_hand = (shape(postgres, database, name) for name in (namespace(url), "by_hand"))
        assert len(made[0]) > 20
        assert made == by_hand
        assert make(other).steps == ()
        open_it(other)

    def test_an_own_schema_needs_no_right_to_make_one(self, postgres: PostgresServer, database: str) -> None:
        """Least privilege: an administrator makes the empty schema, its owner the tables."""
        postgres.execute("CREATE ROLE keeper LOGIN; CREATE SCHEMA kept AUTHORIZATION keeper", database=database)
        asked = postgres.url(database).replace("postgres@", "keeper@")
        assert make(f"{asked}?namespace=kept").steps == ("0001_jobs",)
        with pytest.raises(ConfigError, match=r"may not make or change schema 'other' .*migrate --sql"):
            make(f"{asked}?namespace=other")

    def test_foreign_tables_are_left_alone(self, postgres: PostgresServer, database: str, url: str) -> None:
        """X5: a schema that is in use for something else is refused, and nothing of ours is left in it."""
        name = namespace(url)
        postgres.execute(f"CREATE SCHEMA {name}; CREATE TABLE {name}.job (a int)", database=database)
        with pytest.raises(ConfigError, match=r"another program .*use another namespace"):
            make(url)
        found = postgres.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [name], database=database)
        assert found == [("job",)]
        postgres.execute(f"CREATE TABLE {name}.version (a int)", database=database)
        with pytest.raises(ConfigError, match="use another namespace"):
            make(url)

    def test_a_database_in_another_encoding_is_refused(self, postgres: PostgresServer) -> None:
        """X5: it could not store every text."""
        postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
        with pytest.raises(ConfigError, match=r"is in LATIN1: .*ENCODING 'UTF8'"):
            make(postgres.url("latin"))


class TestRefusing:
    def test_a_missing_schema(self, url: str) -> None:
        """X5: with the command to run."""
        with pytest.raises(SchemaMismatch, match="is missing: run `taskharbor migrate`"):
            open_it(url)

    def test_an_older_schema(self, postgres: PostgresServer, database: str, url: str) -> None:
        """X5: a program that knows one step more."""
        make(url)
        with more_steps(("0002_more", "SELECT 1;")), pytest.raises(SchemaMismatch, match="of version 1, older than"):
            open_it(url)

    def test_a_newer_schema(self, postgres: PostgresServer, database: str, url: str) -> None:
        """X5: after a step that breaks older programs, these refuse to work and to migrate."""
        make(url)
        postgres.execute(f"INSERT INTO {namespace(url)}.version VALUES (99, 99)", database=database)
        for act in (open_it, make):
            with pytest.raises(SchemaMismatch, match=r"newer TaskHarbor \(version 99, .*: upgrade taskharbor"):
                act(url)

    def test_a_newer_schema_that_only_adds_is_accepted(self, url: str) -> None:
        """A program that was not upgraded yet can be restarted after the migration."""
        with more_steps(("0002_more", "CREATE TABLE harbor.extra (a int);")):
            make(url)
        open_it(url)
        assert make(url).steps == ()

    def test_a_step_says_if_it_breaks_older_programs(self, url: str) -> None:
        with more_steps(
            ("0002_less.breaking", "ALTER TABLE harbor.worker DROP COLUMN record;"), ("0003_x", "SELECT 1;")
        ):
            assert make(url).steps == ("0001_jobs", "0002_less", "0003_x")
        with pytest.raises(SchemaMismatch, match="upgrade taskharbor"):
            open_it(url)


class TestChecks:
    @pytest.mark.parametrize("state", ["done", "cancelled"])
    def test_only_the_dead_have_died_of_something(
        self, postgres: PostgresServer, database: str, url: str, state: str
    ) -> None:
        """Q1, T1: a fingerprint beside any other end is an illegal state."""
        make(url)
        end = (
            f"INSERT INTO {namespace(url)}.ended (seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, "
            "completed_at, keep_until, state, queue, dlq_reason, fingerprint) "
            "VALUES (1, 1, 0, 0, 0, 0, '2030-01-01Z', '2030-01-01Z', '2030-01-01Z', %s, 'q', %s, 'f')"
        )
        with pytest.raises(psycopg.errors.CheckViolation):
            postgres.execute(end, [state, None], database=database)
        postgres.execute(end, ["dlq", "x"], database=database)

    @pytest.mark.parametrize("wrong", ["stop_requested_at = '2030-01-01Z'", "token = 't.'", "stop_reason = 'x'"])
    def test_a_job_in_line_is_not_held(self, postgres: PostgresServer, database: str, url: str, wrong: str) -> None:
        """R3, T1, T3: neither by a lease nor by a request to stop, whichever worker ran it last."""
        make(url)
        live = f"{namespace(url)}.live"
        new = f"INSERT INTO {live} (seq, priority, due_at, state, queue) VALUES (1, 0, '2030-01-01Z', 'ready', 'q')"
        postgres.execute(new, database=database)
        postgres.execute(f"UPDATE {live} SET worker = 'w', claimed_at = '2030-01-01Z'", database=database)
        with pytest.raises(psycopg.errors.CheckViolation):
            postgres.execute(f"UPDATE {live} SET {wrong}", database=database)


class TestSteps:
    """Migration steps that this version does not have."""

    def test_what_cannot_run_in_a_transaction_runs_alone(
        self, postgres: PostgresServer, database: str, url: str
    ) -> None:
        """Several statements, each on its own, while the lock is held; also by the SQL that psql runs."""
        # While one builds the index, the others wait for their turn, and the index must not wait for them.
        index = "DROP INDEX CONCURRENTLY IF EXISTS harbor.x;\nCREATE INDEX CONCURRENTLY x ON harbor.job (type);\n"
        with more_steps(("0002_index.alone", index), ("0003_more", "CREATE TABLE harbor.more (a int);")):
            with ThreadPoolExecutor(4) as threads:
                done = list(threads.map(make, [url] * 4))
            other = postgres.url(database, namespace="alone_by_hand")
            by_psql(postgres, database, make(other, dry=True).sql)
            assert make(other).steps == ()
        assert sum(len(each.steps) for each in done) == 3
        valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = %s::regclass"
        for name in (namespace(url), "alone_by_hand"):
            assert postgres.execute(valid, [f"{name}.x"], database=database) == [(True,)]
        assert shape(postgres, database, namespace(url)) == shape(postgres, database, "alone_by_hand")

    def test_a_step_that_fails_leaves_nothing(self, postgres: PostgresServer, database: str, url: str) -> None:
        """The steps before it stand; the next attempt goes on from there."""
        broken = "CREATE TABLE harbor.half (a int); SELECT 1 / 0;"
        with more_steps(("0002_broken", broken)), pytest.raises(Exception, match="division by zero"):
            make(url)
        found = postgres.execute("SELECT to_regclass(%s)::text", [f"{namespace(url)}.half"], database=database)
        assert found == [(None,)]
        assert make(url, dry=True).version == 1

    def test_a_step_gives_way_to_holders_of_its_tables(
        self, postgres: PostgresServer, database: str, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A long transaction holds a table: migrate lets others through again and again, and does it once it can."""
        make(url)
        monkeypatch.setattr(schema, "LOCKS_WITHIN", "20ms")
        monkeypatch.setattr(schema, "PAUSE", 0.01)
        with psycopg.connect(postgres.url(database)) as reader:
            reader.execute(f"SELECT * FROM {namespace(url)}.live".encode())
            told: list[str] = []

            def tell(text: str) -> None:
                told.append(text)
                if len(told) == 2:
                    # While it does not hold or want the lock, others get through.
                    with psycopg.connect(postgres.url(database)) as worker:
                        worker.execute(f"DELETE FROM {namespace(url)}.live".encode())
                    reader.rollback()

            with more_steps(("0002_add", "ALTER TABLE harbor.live ADD COLUMN extra int;")):
                assert make(url, tell=tell).steps == ("0002_add",)
        assert told[:2] == ["another transaction holds a lock on our tables: trying again"] * 2
        assert told[-1] == "0002_add"

    def test_a_step_that_never_gets_its_tables_says_so(
        self, postgres: PostgresServer, database: str, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make(url)
        for name, value in (("LOCKS_WITHIN", "5ms"), ("PAUSE", 0.0), ("TRIES", 3)):
            monkeypatch.setattr(schema, name, value)
        with psycopg.connect(postgres.url(database)) as reader:
            reader.execute(f"SELECT * FROM {namespace(url)}.live".encode())
            step = ("0002_add", "ALTER TABLE harbor.live ADD COLUMN extra int;")
            with more_steps(step), pytest.raises(DriverUnavailable, match="locked by long transactions"):
                make(url)

    def test_waiting_for_another_migrate_ends_too(
        self, postgres: PostgresServer, database: str, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(schema, "TURN_WITHIN", 0.1)
        with psycopg.connect(postgres.url(database)) as other:
            other.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"taskharbor {namespace(url)}"])
            with pytest.raises(DriverUnavailable, match="another `taskharbor migrate`"):
                make(url)

    def test_misnamed_steps_are_a_mistake_of_ours(self, url: str) -> None:
        for name in ("0003_gap", "0002_x.odd"):
            with more_steps((name, "SELECT 1;")), pytest.raises(AssertionError, match="step 2 is named"):
                make(url)


@contextmanager
def more_steps(*steps: tuple[str, str]) -> Generator[None]:
    """A program that knows more steps than this one."""
    texts = sorted([*sql._texts(), *steps])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, "_texts", lambda: texts)
        yield


class TestNamespaces:
    @pytest.mark.parametrize("name", NAMES)
    def test_any_printable_name_will_do(self, postgres: PostgresServer, database: str, name: str) -> None:
        """X5: quoted everywhere, also in COPY, in channels and in the printed SQL."""
        url = postgres.url(database, namespace=name)
        assert f"taskharbor {name}".replace("'", "''") in make(url, dry=True).sql
        make(url)
        asyncio.run(_used(url))
        found = postgres.execute(f"SELECT count(*) FROM {sql.quoted(name)}.job", database=database)
        assert found == [(401,)]

    @pytest.mark.parametrize(
        "name", ["", "x" * 58, "ü" * 29, "a\nb", "a\0b", "pg_x", "pg_catalog", "public", "information_schema"]
    )
    def test_names_that_cannot_be(self, postgres: PostgresServer, database: str, name: str) -> None:
        """X5: refused before connecting."""
        with pytest.raises(ConfigError, match="cannot be a namespace"):
            make(f"postgresql://nowhere.invalid/db?namespace={quote(name)}")

    def test_namespaces_are_apart(self, postgres: PostgresServer, database: str) -> None:
        """P: several harbors in one server."""
        east, west = (postgres.url(database, namespace=name, migrate="true") for name in ("east", "west"))

        async def act() -> None:
            one, two = Harbor(east), Harbor(west)
            async with one.open(), two.open():
                await one.aenqueue_many([one.step("t", {})])
                assert [len(await harbor.admin.jobs.alist()) for harbor in (one, two)] == [1, 0]

        asyncio.run(act())


async def _used(url: str) -> None:
    harbor = Harbor(url)
    async with harbor.open():
        await harbor.aenqueue_many([harbor.step("t", {})])
        await harbor.aenqueue_many([harbor.step("t", {}) for _ in range(400)])  # by COPY
    driver = await from_url(url)
    assert isinstance(driver, WaitForWork)
    await driver.wait_for_work(["default"], 0.01)
    await driver.close()
