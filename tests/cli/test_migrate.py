"""`taskharbor migrate`, and what the other commands say before it has run."""

from __future__ import annotations

import subprocess
import sys
from itertools import count

import pytest

from servers.postgres import PostgresServer

from .desk import Desk

_numbers = count()


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def url(postgres: PostgresServer, database: str) -> str:
    return postgres.url(database, namespace=f"cli_{next(_numbers)}")


def name_of(url: str) -> str:
    return url.partition("namespace=")[2]


def test_it_says_what_it_does(desk: Desk, url: str) -> None:
    """C: --plan changes nothing, migrate does it, and then there is nothing left to do."""
    what = f"schema {name_of(url)}"
    assert desk.good("migrate", "--plan", url) == f"{what}: 1 step to do: 0001_jobs\n"
    assert desk.good("migrate", url) == f"  0001_jobs\n{what}: 1 step\n"
    for words in (["migrate"], ["migrate", "--plan"]):
        assert desk.good(*words, url) == f"{what} is up to date (version 1)\n"
    assert desk.good("migrate", "--sql", url) == f"-- {what} is up to date (version 1)\n"


def test_the_sql_is_complete(desk: Desk, postgres: PostgresServer, database: str, url: str) -> None:
    """C: running what it prints is all there is to do."""
    text = desk.good("migrate", "--sql", "--url", url)
    assert f'CREATE SCHEMA "{name_of(url)}";' in text
    assert "SET LOCAL lock_timeout" in text
    desk.bad(3, "jobs", "ls", "--url", url)
    postgres.execute(text, database=database)
    assert desk.json("jobs", "ls", "--url", url) == []


def test_the_store_is_named_as_for_other_commands(
    desk: Desk, url: str, postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C: by the application, --url, the environment or pyproject.toml."""
    (desk.folder / "mill.py").write_text(f"from taskharbor import Harbor\nharbor = Harbor({url!r})\n", encoding="utf-8")
    assert "1 step to do" in desk.good("migrate", "--plan", "mill:harbor")
    assert "1 step to do" in desk.good("migrate", "--plan", "-A", "mill:harbor")
    assert "1 step to do" in desk.good("migrate", "--plan", "--url", url)
    desk.pyproject(url=url)
    assert "1 step to do" in desk.good("migrate", "--plan")
    other = postgres.url(database, namespace="by_environment")
    monkeypatch.setenv("TASKHARBOR_URL", other)
    assert "schema by_environment" in desk.good("migrate", "--plan")


def test_stores_that_need_none_say_so(desk: Desk) -> None:
    """C: kindly, and without making a file."""
    for url in ("sqlite:///new.db", "memory://"):
        assert "needs no migration" in desk.good("migrate", url)
    assert desk.good("migrate", "--sql", "memory://").startswith("-- memory:// needs no migration")
    assert not list(desk.folder.glob("new.db*"))


def test_commands_refuse_a_missing_schema(desk: Desk, url: str) -> None:
    """C, X5: a look, an enqueue and a worker: exit 3 and the command to run."""
    for words in (
        ["jobs", "ls"],
        ["stats"],
        ["health"],
        ["enqueue", "t"],
        ["enqueue", "-A", "shop:harbor", "shop.hang"],
    ):
        complaint = desk.bad(3, *words, "--url", url)
        assert f"schema '{name_of(url)}' is missing: run `taskharbor migrate`" in complaint
    with desk.process("worker", "shop:harbor", "--url", url) as worker:
        worker.says("run `taskharbor migrate`")
        assert worker.exit_code() == 3


def test_commands_refuse_a_newer_schema(desk: Desk, url: str, postgres: PostgresServer, database: str) -> None:
    """C, X5: an old program on a schema that has left it behind."""
    desk.good("migrate", url)
    postgres.execute(f"INSERT INTO {name_of(url)}.version VALUES (7, 7)", database=database)
    for words in (["jobs", "ls"], ["enqueue", "t"], ["migrate"]):
        assert "upgrade taskharbor" in desk.bad(3, *words, "--url", url)


def test_a_url_can_ask_for_it(desk: Desk, url: str) -> None:
    """`migrate=true`: for development and tests."""
    desk.good("enqueue", "t", "--url", f"{url}&migrate=true")
    assert len(desk.json("jobs", "ls", "--url", url)) == 1
    assert "write true or false" in desk.bad(2, "jobs", "ls", "--url", f"{url}&migrate=yes")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--plan", "--sql", "memory://"], 2, "choose one"),
        (["nowhere:harbor"], 2, "no module 'nowhere'"),
        (["mysql://host/jobs"], 2, "no driver for mysql://"),
        (["postgresql://me:secret@127.0.0.1:1/db"], 3, "does not answer"),
    ],
)
def test_what_cannot_be(desk: Desk, words: list[str], code: int, said: str) -> None:
    """C: exit codes as everywhere."""
    complaint = desk.bad(code, "migrate", *words)
    assert said in complaint
    assert "secret" not in complaint


def test_eight_processes_at_once(desk: Desk, url: str) -> None:
    """One makes it, the others find it made; all are content."""
    program = [sys.executable, "-m", "taskharbor", "migrate", url]
    processes = [subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(8)]
    ends = [(*process.communicate(timeout=60), process.returncode) for process in processes]
    assert [(error, code) for _, error, code in ends] == [("", 0)] * 8
    assert sorted(text.count("1 step") for text, _, _ in ends) == [0] * 7 + [1]
