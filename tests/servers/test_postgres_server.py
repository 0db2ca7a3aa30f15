"""The test servers themselves: they answer, keep their data, are shared by a run, and are gone after it."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

import limits
from taskharbor.testing import Proxy

from . import guarded
from .fixtures import NewPostgres
from .postgres import PostgresServer

TESTS = Path(__file__).parent.parent
PATIENCE = 60
INSIDE = """
import json, sys
from pathlib import Path
import pytest

HERE = Path(__file__).parent

def told(server):
    return {"guardian": server.guarded.pid, "postmaster": server.pid, "folder": str(server.folder), "port": server.port}
"""
TELLS_AND_WAITS = """
def test_it(postgres, new_postgres):
    print("told:" + json.dumps([told(postgres), told(new_postgres(16))]), file=sys.__stdout__, flush=True)
    sys.__stdin__.readline()
"""
# Either test waits for the other, so that each of two workers runs one. Opening a FIFO waits for its other end.
MEET = """
@pytest.mark.parametrize("name", ["one", "two"])
def test_it(postgres, name):
    (HERE / name).write_text(json.dumps(told(postgres)))
    with (HERE / "meeting").open("r" if name == "one" else "w"):
        pass
"""
STAY = """
    (HERE / "told").write_text("x")
    (HERE / "forever").read_text()
"""


@pytest.fixture(params=[16, 18])
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """The shared servers, one after the other."""
    name = {16: "postgres16", 18: "postgres"}[request.param]
    found: PostgresServer = request.getfixturevalue(name)
    return found


@contextmanager
def awaited(*pids: int) -> Generator[None]:
    """At the end of the block, waits until these processes, which run at its beginning, have ended."""
    handles = [os.pidfd_open(pid) for pid in pids]
    try:
        yield
        for handle, pid in zip(handles, pids, strict=True):
            assert select.select([handle], [], [], PATIENCE)[0], f"process {pid} is still there"
    finally:
        for handle in handles:
            os.close(handle)


def pytest_command(folder: Path, program: str, *options: str) -> dict[str, Any]:
    """The arguments for `subprocess` to run pytest on a program that uses the fixtures."""
    (folder / "test_inside.py").write_text(INSIDE + program, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    plugins = ["-p", "servers.fixtures", "-p", "no:cacheprovider", "-s", f"--basetemp={folder / 'temp'}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
    return {
        "args": [sys.executable, "-m", "pytest", "-q", *plugins, *options, "test_inside.py"],
        "cwd": folder,
        "env": environment | {"PYTHONPATH": str(TESTS)},
    }


def test_it_answers_by_tcp_and_by_socket(server: PostgresServer) -> None:
    for url in (server.url(application_name="a b"), server.socket_url(application_name="a b")):
        with psycopg.connect(url) as connection:
            [(said, name)] = connection.execute("select version(), current_setting('application_name')")
        assert said.startswith(f"PostgreSQL {server.version}.")
        assert name == "a b"


def test_asyncpg_reads_the_same_addresses(server: PostgresServer) -> None:
    async def ask(url: str) -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval("select current_database()")
        finally:
            await connection.close()

    name = server.new_database()
    assert [asyncio.run(ask(url)) for url in (server.url(name), server.socket_url(name))] == [name, name]
    server.drop_database(name)


def test_through_a_proxy_a_commit_may_be_done_and_unheard_of(server: PostgresServer) -> None:
    name = server.new_database()
    server.execute("create table kept (n int)", database=name)

    async def insert(proxy: Proxy) -> None:
        connection = await asyncpg.connect(proxy.url(server.url(name)))
        proxy.swallow_reply()
        with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
            await connection.execute("insert into kept values (1)")

    async def main() -> None:
        async with Proxy("127.0.0.1", server.port) as proxy:
            await insert(proxy)
        async with Proxy(f"{server.folder}/.s.PGSQL.{server.port}") as proxy:
            await insert(proxy)

    asyncio.run(main())
    assert server.execute("select count(*) from kept", database=name) == [(2,)]
    server.drop_database(name)


def test_databases_are_new_and_apart(server: PostgresServer) -> None:
    names = [server.new_database() for _ in range(2)]
    for name in names:
        server.execute("create table only_here (n int)", database=name)
        server.execute("insert into only_here values (%s)", [7], database=name)
    assert [server.execute("select n from only_here", database=name) for name in names] == [[(7,)], [(7,)]]
    for name in names:
        server.drop_database(name)
    assert server.execute("select 1 from pg_database where datname = any(%s)", [names]) == []


def test_its_settings_are_those_of_a_real_server_in_a_hurry(server: PostgresServer) -> None:
    rows = server.execute("select name, setting from pg_settings")
    shown = dict(rows)
    wanted = {"synchronous_commit": "on", "fsync": "off", "max_connections": "200", "jit": "off", "autovacuum": "on"}
    assert {name: shown[name] for name in wanted} == wanted
    assert (shown["server_encoding"], int(shown["server_version_num"]) // 10_000) == ("UTF8", server.version)


def test_a_server_in_use_is_not_stopped(postgres: PostgresServer) -> None:
    for act in (postgres.stop, postgres.restart, postgres.kill, postgres.start):
        with pytest.raises(RuntimeError, match="new_postgres"):
            act()
    assert postgres.execute("select 1") == [(1,)]


@pytest.mark.parametrize("version", [16, 18])
def test_stopping_and_killing_keeps_what_was_committed(new_postgres: NewPostgres, version: int) -> None:
    server = new_postgres(version, durable=True, settings={"work_mem": "5MB"})
    assert server.execute("select current_setting('fsync'), current_setting('work_mem')") == [("on", "5MB")]
    server.execute("create table kept (n int)")
    before = server.url(), server.pid
    server.execute("insert into kept values (0)")
    server.restart("fast")
    server.execute("insert into kept values (1)")
    server.restart("immediate")
    server.execute("insert into kept values (2)")
    server.restart("smart")
    with psycopg.connect(server.url(), autocommit=True) as open_connection:
        open_connection.execute("insert into kept values (3)")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            open_connection.execute("select 1")
    with pytest.raises(psycopg.OperationalError):
        server.execute("select 1")
    server.start()
    assert server.execute("select n from kept order by n") == [(0,), (1,), (2,), (3,)]
    assert server.url() == before[0]
    assert server.pid != before[1]
    with pytest.raises(RuntimeError, match="runs already"):
        server.start()


@pytest.mark.parametrize("end", [PostgresServer.stop, PostgresServer.kill, PostgresServer.close])
def test_closing_leaves_no_process_and_no_folder(end: Callable[[PostgresServer], None]) -> None:
    with PostgresServer() as server:
        folder = server.folder
        with awaited(server.pid, server.guarded.pid):
            end(server)
            server.close()
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="not started"):
        server.stop()


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ended while starting.*no_such_setting"):
        PostgresServer(settings={"no_such_setting": "1"}).__enter__()
    with pytest.raises(ValueError, match="16, 18"):
        PostgresServer(9)


def test_a_server_whose_guardian_is_killed_ends_too() -> None:
    with PostgresServer() as server:
        folder = server.folder
        with awaited(server.pid):
            os.kill(server.guarded.pid, signal.SIGKILL)
        with pytest.raises(OSError, match=r"gone|reset|Broken"):
            server.guarded.ask("hello")
    shutil.rmtree(folder)


def test_unreachable_programs_are_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "closed" / "postgres"
    with pytest.raises(RuntimeError, match="pip install"):
        guarded.check_reachable(program)
    program.parent.mkdir()
    program.touch(0o755)
    program.parent.chmod(0o700)
    monkeypatch.setattr(guarded, "unprivileged", lambda: "nobody")
    with pytest.raises(RuntimeError, match="chmod o\\+rx"):
        guarded.check_reachable(program)
    monkeypatch.setattr(guarded, "unprivileged", lambda: None)
    guarded.check_reachable(program)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_pytest_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        **pytest_command(tmp_path, TELLS_AND_WAITS), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with limits.limited(process, "servers that are gone after pytest"):
        said = next(line for line in process.stdout if "told:" in line)
        servers = json.loads(said.split("told:")[1])
        assert len({server["port"] for server in servers}) == 2
        with awaited(*(server[who] for server in servers for who in ("postmaster", "guardian"))):
            process.send_signal(number)
        assert [Path(server["folder"]).exists() for server in servers] == [False, False]
        process.communicate(timeout=PATIENCE)


def test_the_workers_of_a_run_share_one_server_and_the_last_one_ends_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meeting")
    command = pytest_command(tmp_path, MEET, "-n2")
    done = subprocess.run(**command, capture_output=True, text=True, check=False, timeout=4 * PATIENCE)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    one, two = (json.loads((tmp_path / name).read_text(encoding="utf-8")) for name in ("one", "two"))
    assert one == two
    assert not Path(one["folder"]).exists()
    assert not Path(f"/proc/{one['postmaster']}").exists()


def test_nothing_is_left_when_a_parallel_run_is_killed_as_a_whole(tmp_path: Path) -> None:
    for name in ("meeting", "told", "forever"):
        os.mkfifo(tmp_path / name)
    command = pytest_command(tmp_path, MEET + STAY, "-n2")
    process = subprocess.Popen(**command, stdout=subprocess.DEVNULL, start_new_session=True)
    gone = limits.limited(process, "a server that is gone after a parallel run")
    with gone, (tmp_path / "told").open("r+b", buffering=0) as told:
        assert select.select([told], [], [], PATIENCE)[0], "the tests inside did not come together"
        server = json.loads((tmp_path / "one").read_text(encoding="utf-8"))
        with awaited(server["postmaster"], server["guardian"]):
            os.killpg(process.pid, signal.SIGKILL)
        assert not Path(server["folder"]).exists()
