"""Checks with real Django, on the project of docs/django.md: run as a program, with a check's name.

Django has one configuration per process, so every check has a process of its own. The folder of the project is the
working directory, and PGHOST, PGDATABASE … and TASKHARBOR_URL name the server.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import django
import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import close_old_connections, connection, transaction

from taskharbor.errors import InvalidJob, JobExists, JobFailed


class Project:
    """The page's project, set up on an empty database."""

    def __init__(self, **database: Any) -> None:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109  where Python itself would have looked
        os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
        settings.DATABASES["default"].update(database)
        django.setup()
        call_command("migrate", run_syncdb=True, verbosity=0)
        tasks = import_module("orders.tasks")
        self.harbor, self.confirm = tasks.harbor, tasks.confirm
        self.orders = import_module("orders.models").Order.objects
        self.harbor.migrate()

    def enqueue(self, number: int) -> Any:
        """Store an order and its job, in the transaction that is open."""
        order = self.orders.create(number=number)
        return self.confirm.using(tx=connection.connection).enqueue(order.id)

    def numbers(self) -> list[int]:
        """The orders there are."""
        return sorted(self.orders.values_list("number", flat=True))


def commits() -> None:
    """The job is there if the transaction commits, also if it was its first statement, or in a savepoint."""
    project = Project()
    with transaction.atomic():
        first = project.confirm.using(tx=connection.connection).enqueue(1000)
        assert project.harbor.drain() == 0  # not committed: no worker sees it
        project.orders.create(id=1000, number=1)
        with transaction.atomic():
            project.enqueue(2)
    assert project.harbor.drain() == 2
    assert first.result() is True
    assert project.orders.filter(confirmed=True).count() == 2


def rolls_back() -> None:
    """Neither an exception, nor set_rollback, nor a savepoint that is rolled back leaves a job or a key."""
    project = Project()
    with suppress(RuntimeError), transaction.atomic():
        project.enqueue(1)
        raise RuntimeError("out of stock")
    with transaction.atomic():
        project.enqueue(2)
        transaction.set_rollback(True)
    keyed = project.confirm.using(idempotency_key="confirm:4")
    with transaction.atomic():
        save = transaction.savepoint()
        assert keyed.using(tx=connection.connection).enqueue(4).created
        project.enqueue(3)
        transaction.savepoint_rollback(save)
        project.enqueue(4)
    assert project.numbers() == [4]
    assert project.harbor.drain() == 1
    assert keyed.enqueue(4).created


def refused_jobs_leave_the_transaction() -> None:
    """A refused enqueue costs the transaction nothing."""
    project = Project()
    taken = project.confirm.enqueue(99)
    with transaction.atomic():
        project.orders.create(number=1)
        with pytest.raises(JobExists):
            project.confirm.using(tx=connection.connection, id=taken.id).enqueue(1)
        project.enqueue(2)
    assert project.numbers() == [1, 2]
    assert project.harbor.drain() == 2


def says_what_to_give() -> None:
    """Without a transaction, before the first query, or with Django's own connection: the error names the fix."""
    project = Project()
    for handle, hint in (
        (
            connection.connection,
            "has no open transaction: enqueue inside `with connection.transaction():`, with Django",
        ),
        (connection, "connection.connection inside transaction.atomic()"),
        (None, "not None"),
    ):
        with pytest.raises(InvalidJob, match=re.escape(hint)):
            project.confirm.using(tx=handle).enqueue(1)
    assert project.harbor.drain() == 0
    connection.close()
    with transaction.atomic():  # connects by itself
        project.enqueue(1)
    assert project.harbor.drain() == 1


def _terminate_all() -> None:
    """End every session of this application with the database, as a restart does."""
    me = os.environ["PGDATABASE"]
    with psycopg.connect(f"dbname={me}", autocommit=True) as other:
        other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and pid <> pg_backend_pid() "
            "and application_name = 'django'",
            [me],
        )


def survives_terminated_sessions() -> None:
    """Sessions that ended meanwhile are replaced: persistent ones by Django's health check."""
    project = Project(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True, OPTIONS={"application_name": "django"})
    first = project.orders.create(number=1)
    with project.harbor.worker(concurrency=1):
        assert project.confirm.enqueue(first.id).result(timeout=30) is True
        _terminate_all()
        close_old_connections()
        second = project.orders.create(number=2)
        assert project.confirm.enqueue(second.id).result(timeout=30) is True


def fails_without_fresh_connections() -> None:
    """The proof that `fresh_connections` is what helps: without it, every job after the cut fails."""
    project = Project(CONN_MAX_AGE=None, OPTIONS={"application_name": "django"})
    project.harbor._application.arounds.clear()
    confirm = project.confirm.using(max_attempts=1)
    first = project.orders.create(number=1)
    with project.harbor.worker(concurrency=1):
        assert confirm.enqueue(first.id).result(timeout=30) is True
        _terminate_all()
        for _ in range(3):
            with pytest.raises(JobFailed, match="OperationalError"):
                confirm.enqueue(first.id).result(timeout=30)


def survives_a_cut_inside_atomic() -> None:
    """The session ends before the enqueue: its error, no order, no job, and the next transaction is fine."""
    project = Project(OPTIONS={"application_name": "django"})

    def cut() -> None:
        with transaction.atomic():
            order = project.orders.create(number=1)
            _terminate_all()
            project.confirm.using(tx=connection.connection).enqueue(order.id)

    with pytest.raises(psycopg.OperationalError):
        cut()
    with transaction.atomic():
        project.enqueue(2)
    assert project.numbers() == [2]
    assert project.harbor.drain() == 1


def survives_a_restart() -> None:
    """The server is restarted under the worker and the application; both go on."""
    project = Project(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True)
    first = project.orders.create(number=1)
    with project.harbor.worker(concurrency=1):
        assert project.confirm.enqueue(first.id).result(timeout=30) is True
        print("restart the server", flush=True)
        assert sys.stdin.readline() == "restarted\n"
        close_old_connections()  # as Django does when a request begins
        with transaction.atomic():
            job = project.enqueue(2)
        assert job.result(timeout=60) is True


def binds_on_the_server() -> None:
    """Django's option `server_side_binding` uses another cursor."""
    project = Project(OPTIONS={"server_side_binding": True})
    with transaction.atomic():
        project.enqueue(1)
    assert project.harbor.drain() == 1


def main() -> None:
    """Run the check that was asked for."""
    globals()[sys.argv[1]]()
    connection.close()
    print("holds")


if __name__ == "__main__":
    main()
