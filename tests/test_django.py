"""Django as docs/django.md says, with real Django on a real PostgreSQL, in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from multiprocessing import get_start_method
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import limits
from pages import ROOT, blocks, read_to_the_end, run_python, unpack
from servers.fixtures import NewPostgres
from servers.postgres import PostgresServer

FORGETFUL = """
from django.test import TestCase
from orders.tasks import confirm


class ForgetfulTest(TestCase):
    def test_without_a_store(self) -> None:
        assert confirm.using(idempotency_key="forgotten").enqueue(1).created
"""
# What pytest-django does.
DATABASES = """
import django
import pytest
from django.test.runner import DiscoverRunner

django.setup()


@pytest.fixture(scope="session", autouse=True)
def databases():
    runner = DiscoverRunner(interactive=False)
    created = runner.setup_databases()
    yield
    runner.teardown_databases(created)
"""
BOTH = """
import django

django.setup()

from billing.tasks import invoice, print_invoice
from orders.services import place
from shop.jobs import harbor

order = place(11)
billed = invoice.enqueue(order.id).result(timeout=60)
print(harbor.job(harbor.admin.jobs.find(f"confirm:{order.id}").id).result(timeout=60), billed)
print(print_invoice.enqueue(order.id).result(timeout=60))
harbor.close()
"""
MANAGED = """
import django

django.setup()

from django.utils.module_loading import autodiscover_modules

from shop.jobs import harbor

autodiscover_modules("tasks")
harbor.run_worker()
"""
LOOK = "import django; django.setup(); from shop.jobs import harbor; print(harbor.admin.jobs.find('forgotten'))"
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
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    with limits.limited(child, "a check that survives a restart of the server", 2 * limits.LIMIT):
        assert child.stdout.readline() == "restart the server\n", child.stderr.read()
        server.restart()
        told, complaints = child.communicate("restarted\n", timeout=limits.LIMIT)
    assert told == "holds\n", complaints


def test_every_check_is_run() -> None:
    """A check that is not run proves nothing."""
    written = re.findall(r"^def ([a-z]\w+)\(\) -> None:", CHECKS.read_text(encoding="utf-8"), re.MULTILINE)
    assert {*NAMES, "survives_a_restart", "main"} == set(written)


def migrated(folder: Path, server: PostgresServer) -> dict[str, str]:
    """The project of the page with both migrations, as the page runs them; the options of the URL say where it is."""
    place = environment(server)
    place["TASKHARBOR_URL"] = f"postgresql:///{place['PGDATABASE']}?host={place['PGHOST']}&port={place['PGPORT']}"
    place["TASKHARBOR_URL"] += f"&user={place['PGUSER']}&sslmode=disable"
    unpack("django", folder)
    for command in (("taskharbor", "migrate"), ("django", "migrate", "--run-syncdb")):
        done = run_python(folder, "-m", *command, **place)
        assert done.returncode == 0, done.stderr
    return place


def test_the_tests_of_the_page_leave_the_real_store_alone(tmp_path: Path, postgres: PostgresServer) -> None:
    """P: by Django's runner, in one process and in several, and by pytest; also a test without a store of its own."""
    place = migrated(tmp_path, postgres)
    (tmp_path / "orders" / "test_forgetful.py").write_text(FORGETFUL, encoding="utf-8")
    (tmp_path / "databases.py").write_text(DATABASES, encoding="utf-8")
    ways: list[tuple[str, ...]] = [()]
    if get_start_method() != "forkserver":  # Python's default from 3.14 on, which this Django does not know
        ways.append(("--parallel", "2"))
    for options in ways:
        tested = run_python(tmp_path, "-m", "django", "test", *options, **place)
        assert "Ran 3 tests" in tested.stderr, tested.stderr
        assert tested.returncode == 0, tested.stderr
    files = ["orders/tests.py", "orders/test_forgetful.py"]
    tested = run_python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "databases", *files, **place)
    assert "3 passed" in tested.stdout, tested.stdout
    assert run_python(tmp_path, "-c", LOOK, **place).stdout == "None\n"


def test_a_worker_without_the_worker_module_says_why_it_ends(tmp_path: Path) -> None:
    """C: models are imported before Django has its settings, or its apps."""
    unpack("django", tmp_path)
    for settings, error in (("", "ImproperlyConfigured"), ("shop.settings", "AppRegistryNotReady")):
        given = {"DJANGO_SETTINGS_MODULE": settings, "PGDATABASE": "none", "TASKHARBOR_URL": "memory://"}
        done = run_python(tmp_path, "-m", "taskharbor", "worker", "orders.tasks:harbor", **given)
        assert done.returncode != 0
        assert re.search(rf"{error}: .*; name a module that calls django\.setup\(\) before", done.stderr)


def test_a_management_command_with_tasks_in_processes_says_what_to_do(tmp_path: Path, postgres: PostgresServer) -> None:
    """X5: its processes do not begin with `django.setup()`; the message names the command that does."""
    place = migrated(tmp_path, postgres)
    done = run_python(tmp_path, "-c", MANAGED, **place)
    assert done.returncode != 0
    assert re.search(
        r"cannot start: importing \S+: .*AppRegistryNotReady.*taskharbor worker MODULE:harbor$", done.stderr
    )


def test_every_block_of_the_page_runs(tmp_path: Path, postgres: PostgresServer) -> None:
    """D13, P4: the program, then a worker by the page's command, with the tasks of both apps, one in a process."""
    place = migrated(tmp_path, postgres)
    assert read_to_the_end("django", tmp_path, **place) == ("read to the end\n", "")
    (work,) = [line for block in blocks("django", "console") for line in block.splitlines() if " worker " in line]
    worker = subprocess.Popen(
        [sys.executable, "-m", *work.removeprefix("$ ").split()], cwd=tmp_path, env={**os.environ, **place}
    )
    try:
        (tmp_path / "both.py").write_text(BOTH, encoding="utf-8")
        done = run_python(tmp_path, "both.py", **place)
        assert done.stdout == "True invoice for order 11\nprinted invoice 11\n", done.stderr
    finally:
        worker.terminate()
        assert worker.wait(timeout=60) == 0
