"""The file of the SQLite driver: what a URL names, whose file it is, how it is kept, what a broken one says (X5)."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from limits import LIMIT
from taskharbor.core.job import Dependency, JobRecord, NewJob
from taskharbor.core.states import State
from taskharbor.core.transition import Ack
from taskharbor.driver import Group
from taskharbor.drivers import from_url
from taskharbor.drivers.shared.columns import RECORD
from taskharbor.drivers.sqlite import SqliteDriver, sql
from taskharbor.drivers.sqlite.connection import open_store
from taskharbor.drivers.sqlite.paths import unusable
from taskharbor.drivers.sqlite.reserve import LAPSED, LINE_UP, NEXT_PRIORITY, PICK, SEQS
from taskharbor.drivers.sqlite.schema import APPLICATION_ID, check_identity
from taskharbor.errors import ConfigError, DriverError, DriverUnavailable, HarborError, SchemaMismatch, StoreCorrupt

T = datetime(2026, 3, 1, tzinfo=UTC)


def job(id: str, payload: bytes = b"{}", priority: int = 0) -> NewJob:
    return NewJob(id=id, type="t", queue="q", payload=payload, priority=priority)


def raw(path: Path) -> apsw.Connection:
    return apsw.Connection(str(path))


def opened(url: str, act: Callable[[SqliteDriver], Any] | None = None) -> Any:
    """Open a URL, do something, close."""

    async def scene() -> Any:
        driver = await from_url(url)
        assert isinstance(driver, SqliteDriver)
        try:
            return None if act is None else await act(driver)
        finally:
            await driver.close()

    return asyncio.run(scene())


def make(path: Path, *jobs: NewJob) -> None:
    opened(f"sqlite:///{path}", lambda driver: driver.enqueue([Group(jobs=jobs)], T))


def ids_in(path: Path) -> list[str]:
    db = raw(path)
    try:
        return [str(id) for (id,) in db.execute("SELECT id FROM job ORDER BY seq")]
    finally:
        db.close()


class TestUrl:
    """X5, P: what a sqlite URL may say."""

    def test_a_relative_path_is_in_the_working_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        opened("sqlite:///jobs.db")
        assert (tmp_path / "jobs.db").is_file()

    def test_an_absolute_path_has_four_slashes_and_percent_signs_are_decoded(self, tmp_path: Path) -> None:
        opened(f"sqlite:///{tmp_path}/my%20j%C3%B6bs%23%3f.db")
        assert (tmp_path / "my jöbs#?.db").is_file()

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("sqlite://jobs.db", "sqlite:///jobs.db"),
            ("sqlite://", "memory://"),
            ("sqlite:///", "memory://"),
            ("sqlite:///:memory:", "memory://"),
            ("sqlite:///a%00b", "zero character"),
            ("sqlite:///jobs.db?namespace=shop", "use another file"),
            ("sqlite:///jobs.db?synchronous=off", "full .* or normal"),
            ("sqlite:///jobs.db?mode=ro", "no option 'mode'"),
            ("sqlite:///missing/jobs.db", "no folder"),
            ("sqlite:///..", "cannot use .* as a store: it is a folder; name a file in it, such as .*/taskharbor.db"),
            (
                "sqlite:///var/jobs.db",
                r"no folder .*/var; make it first, or write sqlite:////var/jobs\.db with four sl",
            ),
            ("sqlite:////proc/jobs.db", "cannot use /proc/jobs.db as a store: no files can be made in /proc; choose"),
            ("sqlite:////dev/null", "cannot use /dev/null as a store: it is not an ordinary file; choose another name"),
            ("sqlite:////dev/null/jobs.db", "cannot use /dev/null/jobs.db as a store: Not a directory; choose another"),
            ("sqlite:///note/jobs.db", "note is a file, not a folder; choose another folder"),
            ("sqlite:///link", "link as a store: it is a link to something that is not there; name the file itself"),
            ("sqlite:///circle", "circle as a store: it is a link"),
            ("sqlite:///circle/jobs.db", "its links lead in a circle"),
            (f"sqlite:///{'x' * 300}", "cannot use .*x… as a store: the name is too long; choose a shorter one"),
        ],
    )
    def test_what_cannot_be_used_says_what_to_write(
        self, url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "note").touch()
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
        (tmp_path / "circle").symlink_to(tmp_path / "circle")
        with pytest.raises(ConfigError, match=says):
            opened(url)

    @pytest.mark.parametrize(
        ("number", "kind", "says"),
        [
            (
                errno.EACCES,
                ConfigError,
                "this user may not write there; change the permissions of {folder}, or choose",
            ),
            (errno.EROFS, ConfigError, "the file system is read-only; choose another folder"),
            (errno.ENOSPC, DriverUnavailable, "the disk is full; make room"),
            (errno.EMFILE, DriverUnavailable, "this process has too many open files; close some, or raise the limit"),
            (errno.EIO, ConfigError, "Input/output error; choose another folder"),
        ],
    )
    def test_a_refusal_of_the_system_is_an_error_with_the_fix(
        self, number: int, kind: type[Exception], says: str, tmp_path: Path
    ) -> None:
        """X5: whatever user the tests run as."""
        error = unusable(tmp_path / "jobs.db", OSError(number, os.strerror(number)))
        assert type(error) is kind
        assert str(error).startswith(f"cannot use {tmp_path}/jobs.db as a store: {says.format(folder=tmp_path)}")

    @pytest.mark.parametrize(("option", "level"), [("", 2), ("?synchronous=full", 2), ("?synchronous=normal", 1)])
    def test_commits_are_durable_unless_asked_otherwise(self, option: str, level: int, tmp_path: Path) -> None:
        """G2: synchronous=FULL in WAL mode; NORMAL is the documented faster choice."""
        found = opened(
            f"sqlite:///{tmp_path}/jobs.db{option}",
            lambda driver: driver._read(lambda db: (db.pragma("synchronous"), db.pragma("journal_mode"))),
        )
        assert found == (level, "wal")


class TestFile:
    """Whose file it is, and which version."""

    @pytest.fixture
    def open_folder(self) -> Iterator[Path]:
        """A folder that other users can reach, unlike those of pytest."""
        with tempfile.TemporaryDirectory() as name:
            Path(name).chmod(0o755)
            yield Path(name)

    def test_only_the_owner_may_read_it(self, tmp_path: Path) -> None:
        path = tmp_path / "jobs.db"

        async def modes(driver: SqliteDriver) -> set[int]:
            await driver.enqueue([Group(jobs=(job("a"),))], T)
            return {os.stat(f"{path}{part}").st_mode & 0o777 for part in ("", "-wal", "-shm")}  # noqa: PTH116

        before = os.umask(0)
        try:
            assert opened(f"sqlite:///{path}", modes) == {0o600}
        finally:
            os.umask(before)
        assert path.stat().st_mode & 0o777 == 0o600

    def test_it_is_marked_as_ours(self, tmp_path: Path) -> None:
        make(tmp_path / "jobs.db")
        db = raw(tmp_path / "jobs.db")
        assert (db.pragma("application_id"), db.pragma("user_version")) == (APPLICATION_ID, len(sql.migrations()))
        db.close()

    def test_an_empty_file_becomes_a_store(self, tmp_path: Path) -> None:
        (tmp_path / "jobs.db").touch()
        make(tmp_path / "jobs.db", job("a"))
        assert ids_in(tmp_path / "jobs.db") == ["a"]

    def test_a_file_that_is_not_a_database_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("dear diary " * 100)
        with pytest.raises(StoreCorrupt, match="another file"):
            opened(f"sqlite:///{path}")
        assert path.read_text() == "dear diary " * 100

    def test_the_database_of_something_else_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "shop.db"
        db = raw(path)
        db.execute("CREATE TABLE customer (name)")
        db.close()
        before = path.read_bytes()
        with pytest.raises(StoreCorrupt, match="another program: use another file"):
            opened(f"sqlite:///{path}")
        assert path.read_bytes() == before

    def test_a_newer_schema_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "jobs.db"
        make(path)
        db = raw(path)
        db.pragma("user_version", 99)
        db.close()
        before = path.read_bytes()
        with pytest.raises(SchemaMismatch, match=r"schema 99.*upgrade taskharbor"):
            opened(f"sqlite:///{path}")
        assert path.read_bytes() == before

    def test_an_older_schema_is_brought_up_to_date(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "jobs.db"
        make(path, job("a"))
        scripts = [*sql.migrations(), "CREATE TABLE later (x)"]
        monkeypatch.setattr(sql, "migrations", lambda: scripts)
        make(path, job("b"))
        db = raw(path)
        assert db.pragma("user_version") == len(scripts)
        assert db.execute("SELECT count(*) FROM later").get == 0
        db.close()
        assert ids_in(path) == ["a", "b"]

    def test_a_broken_migration_leaves_the_old_schema(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "jobs.db"
        make(path, job("a"))
        with monkeypatch.context() as patch:
            scripts = [*sql.migrations(), "CREATE TABLE later (x); CREATE NONSENSE"]
            patch.setattr(sql, "migrations", lambda: scripts)
            with pytest.raises(DriverError, match="NONSENSE"):
                opened(f"sqlite:///{path}")
        db = raw(path)
        assert db.pragma("user_version") == len(sql.migrations())
        assert db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'later'").get == 0
        db.close()
        make(path, job("b"))

    def test_damage_is_named(self, tmp_path: Path) -> None:
        """X5: StoreCorrupt, from opening or from the first verb that meets the damage."""
        path = tmp_path / "jobs.db"
        make(path, *(job(f"{n:04}") for n in range(500)))
        content = bytearray(path.read_bytes())
        content[4096:] = b"\xff" * (len(content) - 4096)
        path.write_bytes(content)
        with pytest.raises(StoreCorrupt, match="restore a backup"):
            opened(f"sqlite:///{path}", lambda driver: driver.get(["0001"]))

    def test_a_read_only_file_is_refused(self, open_folder: Path) -> None:
        """X5. Root may write anything, so the script changes its user first."""
        folder = open_folder
        make(folder / "jobs.db")
        script = f"""
import asyncio, os
from taskharbor.drivers import from_url
import taskharbor.drivers.sqlite
os.chdir({str(folder)!r})
os.chmod("jobs.db", 0o444)
os.chmod(".", 0o555)
if os.geteuid() == 0:
    os.setuid(65534)
try:
    asyncio.run(from_url("sqlite:///jobs.db"))
except Exception as error:
    print(type(error).__name__, error)
"""
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=LIMIT)
        folder.chmod(0o755)
        assert re.match("ConfigError .*read-only.*writable", said.stdout), said
        assert "Traceback" not in said.stderr

    def test_a_full_disk_fails_the_caller_that_fills_it(self, tmp_path: Path) -> None:
        """X2, X5: `DriverUnavailable` that says so, nothing half-written, and small requests go on."""

        async def act(driver: SqliteDriver) -> None:
            await driver._read(lambda db: db.pragma("max_page_count", 60))
            big = Group(jobs=tuple(job(f"big{n}", b"x" * 100_000) for n in range(5)))
            small = Group(jobs=(job("small"),))
            results = await asyncio.gather(driver.enqueue([big], T), driver.enqueue([small], T), return_exceptions=True)
            assert isinstance(results[0], DriverUnavailable)
            assert "full" in str(results[0])
            assert not isinstance(results[1], BaseException)
            found = await driver.get(["small", "big0"])
            assert [it is not None for it in found] == [True, False]

        opened(f"sqlite:///{tmp_path}/jobs.db", act)

    def test_a_lock_held_too_long_is_named_and_readers_go_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """X2: bounded, and never just "database is locked"."""
        monkeypatch.setattr("taskharbor.drivers.sqlite.connection.PATIENCE", 0.02)
        path = tmp_path / "jobs.db"
        make(path, job("a"))

        async def act(driver: SqliteDriver) -> None:
            other = raw(path)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(DriverUnavailable, match="another process"):
                await driver.enqueue([Group(jobs=(job("b"),))], T)
            assert await driver.next_due(["q"]) == T
            assert await driver.reserve(["empty"], T, timedelta(seconds=9), 9, "w") == []
            other.execute("ROLLBACK")
            other.close()
            await driver.enqueue([Group(jobs=(job("b"),))], T)

        opened(f"sqlite:///{path}", act)
        assert ids_in(path) == ["a", "b"]


class TestSql:
    """The text of the statements, and the plans they get."""

    def test_records_are_read_in_one_order_of_columns(self) -> None:
        columns = re.match("SELECT (.*) FROM", sql.load("get"))
        assert columns is not None
        assert [part.split()[-1] for part in columns[1].split(", ")] == list(RECORD)
        for name in ("query", "query_dead", "query_held", "query_workflow", "reserve_row"):
            assert sql.load(name).startswith(f"SELECT {columns[1]}"), name

    @pytest.mark.parametrize(
        ("statement", "parameters", "plan"),
        [
            (PICK, (1, "q", 0, 9), "job_line (queue=? AND priority=? AND place<?)"),
            (SEQS, (1, "q", 0, 9), "job_line (queue=? AND priority=? AND place<?)"),
            (NEXT_PRIORITY, ("q", 9), "COVERING INDEX job_line (queue=? AND priority<?)"),
            (LINE_UP, (1, 0), "job_lease (lease_expires_at<?)"),
            (LAPSED, (1,), "job_lease (lease_expires_at<?)"),
            (sql.load("prune"), (1, 0, 0, 9), "job_ended (keep_until>? AND keep_until<?)"),
            (sql.load("sweep_expired"), (1, 9), "job_expiring (expires_at>? AND expires_at<?)"),
            (sql.load("sweep_stopping"), (1, 9), "job_lease (lease_expires_at<?)"),
            (sql.load("dead_groups"), (9, *[None] * 10), "job_aside (state=?)"),
            (sql.load("workflows"), (9, None, None), "COVERING INDEX job_workflow (workflow_id<?)"),
            (sql.load("workflows"), (9, None, None), "SEARCH job USING INDEX job_workflow (workflow_id=?)"),
            (sql.load("parents"), ("a", 9), "edge USING PRIMARY KEY (child=?)"),
            (sql.load("dependants"), ("[]",), "edge_open (parent=?)"),
            (sql.load("dependants_satisfy_all"), ("[]",), "edge_open (parent=?)"),
        ],
    )
    def test_reserve_and_upkeep_seek_in_their_index(
        self, statement: str, parameters: tuple[Any, ...], plan: str, tmp_path: Path
    ) -> None:
        """D11, X8: future and finished jobs are not even looked at."""

        async def explain(driver: SqliteDriver) -> list[str]:
            return await driver._read(
                lambda db: [str(row[3]) for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            )

        steps = opened(f"sqlite:///{tmp_path}/jobs.db", explain)
        assert any(plan in step for step in steps), steps
        assert not any(step.startswith("SCAN job") for step in steps), steps

    def test_a_dependant_is_written_once_for_a_batch(self, tmp_path: Path) -> None:
        """K2: a chord's finalizer is not a row that every member writes to."""
        written: list[str] = []

        def note(_: apsw.Cursor, text: str, __: object) -> bool:
            written.append(text)
            return True

        async def act(driver: SqliteDriver) -> JobRecord | None:
            members = [job(f"{number}") for number in range(20)]
            edges = tuple(Dependency(it.id) for it in members)
            await driver.enqueue([Group(jobs=(*members, replace(job("c"), depends_on=edges)))], T)
            held = await driver.reserve(["q"], T, timedelta(seconds=9), 99, "w")
            acks = [Ack(id=it.id, token=it.lease.token, keep_until=T) for it in held if it.lease is not None]
            await driver._read(lambda db: setattr(db, "exec_trace", note))
            assert await driver.settle(acks, T) == ["ok"] * 20
            await driver._read(lambda db: setattr(db, "exec_trace", None))
            return (await driver.get(["c"]))[0]

        child = opened(f"sqlite:///{tmp_path}/jobs.db", act)
        assert (child.state, child.unmet) == (State.READY, 0)
        for name in ("settle_done_range", "dependants_satisfy_all", "dependants_release"):
            assert written.count(sql.load(name)) == 1, name

    @pytest.mark.parametrize(
        "change",
        [
            "state = 'lost'",
            "state = 'inflight'",
            "state = 'inflight', lined = 0, version = 1, token = 't', lease_expires_at = 1, worker = 'w'",
            "token = 't'",
            "lined = 0",
            "lined = 2",
            "unmet = 1",
            "state = 'waiting', lined = 0",
            "state = 'done', lined = 0",
            "state = 'done', lined = 0, completed_at = 1",
            "state = 'dlq', lined = 0, completed_at = 1, keep_until = 1",
            "state = 'cancelled', lined = 0, completed_at = 1, keep_until = 1, result = x'00'",
            "state = 'done', lined = 0, completed_at = 1, keep_until = 1, fingerprint = 'f'",
            "state = 'cancelled', lined = 0, completed_at = 1, keep_until = 1, fingerprint = 'f'",
            "keep_until = 1",
            "fingerprint = 'f'",
            "result = x'00'",
            "priority = 101",
            "attempts = -1",
            "crashes = -1",
            "due_at = 'soon'",
        ],
    )
    def test_illegal_states_cannot_be_stored(self, change: str, tmp_path: Path) -> None:
        """T1, below the driver: the table itself refuses."""
        make(tmp_path / "jobs.db", job("a"))
        db = raw(tmp_path / "jobs.db")
        with pytest.raises(apsw.ConstraintError):
            db.execute(f"UPDATE job SET {change}")
        db.close()

    def test_a_record_the_table_refuses_fails_alone(self, tmp_path: Path) -> None:
        """X5: the client checks priorities; a caller that bypasses it gets an error and does no harm."""

        async def act(driver: SqliteDriver) -> None:
            wrong = driver.enqueue([Group(jobs=(job("wrong", priority=1000),))], T)
            right = driver.enqueue([Group(jobs=(job("right"),))], T)
            results = await asyncio.gather(wrong, right, return_exceptions=True)
            assert isinstance(results[0], HarborError)
            assert [it is not None for it in await driver.get(["wrong", "right"])] == [False, True]

        opened(f"sqlite:///{tmp_path}/jobs.db", act)


@pytest.mark.parametrize("statement", range(5))
def test_a_file_that_is_just_being_made_is_not_taken_for_something_elses(tmp_path: Path, statement: int) -> None:
    """X5: another process makes the store between any two looks at it."""
    path = tmp_path / "jobs.db"
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    seen: list[str] = []

    def meanwhile(_: apsw.Cursor, sql: str, __: object) -> bool:
        seen.append(sql)
        if len(seen) == statement + 1:
            open_store(path, "normal")[0].close()
        return True

    db.exec_trace = meanwhile
    check_identity(db, path)
    db.exec_trace = None
    db.close()
    assert len(seen) > 3
