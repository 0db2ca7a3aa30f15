"""Django as docs/django.md says, with real Django on a real PostgreSQL, in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pages import ROOT, blocks, read_to_the_end, run_python, unpack
from servers.fixtures import NewPostgres
from servers.postgres import PostgresServer

CHECKS = ROOT / "tests" / "django_checks.py"
NAMES = [
    "commits",
    "rolls_back",
    "refused_jobs_leave_the_transaction",
    "says_what_to_give",
    "survives_terminated_sessions",
    "fails_without_fresh_connections",
    "survives_a_cut_inside_atomic",
    "binds_on_the_server",
]


def environment(server: PostgresServer) -> dict[str, str]:
    """Where Django and TaskHarbor find a new database of this server."""
    url = urlsplit(server.url(database := server.new_database()))
    return {
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "PGHOST": str(url.hostname),
        "PGPORT": str(url.port),
        "PGUSER": str(url.username),
        "PGDATABASE": database,
        "TASKHARBOR_URL": url.geturl(),
    }


@pytest.mark.parametrize("check", NAMES)
def test_jobs_and_models_share_transactions(check: str, tmp_path: Path, postgres: PostgresServer) -> None:
    """D13, I1, X2: `tx=connection.connection` inside atomic(), savepoints, refusals, sessions that end."""
    unpack("django", tmp_path)
    done = run_python(tmp_path, str(CHECKS), check, **environment(postgres))
    assert done.stdout == "holds\n", done.stderr


def test_a_restart_of_the_server_is_survived(tmp_path: Path, new_postgres: NewPostgres) -> None:
    """X2: the worker, Django in its handlers, and the application beside it go on."""
    server = new_postgres(18)
    unpack("django", tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-W", "error", str(CHECKS), "survives_a_restart"],
        cwd=tmp_path,
        env={**os.environ, **environment(server)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            assert child.stdout.readline() == "restart the server\n", child.stderr.read()
            server.restart()
            told, complaints = child.communicate("restarted\n", timeout=120)
        finally:
            child.kill()
    assert told == "holds\n", complaints


def test_every_check_is_run() -> None:
    """A check that is not run proves nothing."""
    written = re.findall(r"^def ([a-z]\w+)\(\) -> None:", CHECKS.read_text(encoding="utf-8"), re.MULTILINE)
    assert {*NAMES, "survives_a_restart", "main"} == set(written)


def test_every_block_of_the_page_runs(tmp_path: Path, postgres: PostgresServer) -> None:
    """D13: the program, then the tests by Django's own runner, then a worker by the page's command."""
    place = environment(postgres)
    unpack("django", tmp_path)
    for command in (("taskharbor", "migrate"), ("django", "migrate", "--run-syncdb")):
        done = run_python(tmp_path, "-m", *command, **place)
        assert done.returncode == 0, done.stderr
    assert read_to_the_end("django", tmp_path, **place) == ("read to the end\n", "")
    tested = run_python(tmp_path, "-m", "django", "test", **place)
    assert "Ran 1 test" in tested.stderr, tested.stderr
    assert tested.returncode == 0, tested.stderr

    (work,) = [line for block in blocks("django", "console") for line in block.splitlines() if " worker " in line]
    worker = subprocess.Popen(
        [sys.executable, "-m", *work.removeprefix("$ ").split()], cwd=tmp_path, env={**os.environ, **place}
    )
    try:
        order = "import django; django.setup(); from orders.services import place; print(place(11).id)"
        placed = run_python(tmp_path, "-c", order, **place)
        assert placed.returncode == 0, placed.stderr
        key = f"confirm:{placed.stdout.strip()}"
        look = (
            "import django; django.setup(); from orders.tasks import harbor; "
            f"print(harbor.job(harbor.admin.jobs.find({key!r}).id).result(timeout=60)); harbor.close()"
        )
        assert run_python(tmp_path, "-c", look, **place).stdout == "True\n"
    finally:
        worker.terminate()
        assert worker.wait(timeout=60) == 0
