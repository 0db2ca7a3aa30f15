"""`current().transaction()` in a process of its own, on PostgreSQL: the child commits, the worker learns of it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from servers.postgres import PostgresServer
from taskharbor.errors import JobFailed

from . import slots

PATIENCE = 60.0
KINDS = pytest.mark.parametrize("kind", ["transact", "transact_later"])


class Place:
    """A worker on a database with a table of the application's."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.database = server.new_database()
        server.execute("CREATE TABLE effect (id integer)", database=self.database)
        self._number = 0

    def number(self) -> int:
        """A new one."""
        self._number += 1
        return self._number

    def rows(self, number: int) -> int:
        """How often the row was committed."""
        return len(self._server.execute(f"SELECT id FROM effect WHERE id = {number}", database=self.database))


@pytest.fixture(scope="module")
def place(postgres: PostgresServer) -> Generator[Place]:
    """One for all tests."""
    place = Place(postgres)
    url = postgres.url(place.database, migrate="true")
    with slots.bare.harbor.stand_in(url), slots.bare.harbor.worker(concurrency=2, lease=2.0):
        yield place


@KINDS
def test_the_writes_of_a_child_and_its_ack_are_one_commit(place: Place, kind: str) -> None:
    """D9, D13: the result is the one given inside; jobs enqueued inside come with it."""
    number = place.number()
    job = getattr(slots.bare, kind).enqueue(number, "commit")
    assert job.result(timeout=PATIENCE) == "run 1"
    assert place.rows(number) == 1
    if kind == "transact":
        assert slots.bare.harbor.job(f"after-{number}").result(timeout=PATIENCE) is not None


@KINDS
def test_a_failure_inside_rolls_back(place: Place, kind: str) -> None:
    """D9: nothing of the block happens, and the job fails as any other."""
    number = place.number()
    job = getattr(slots.bare, kind).enqueue(number, "raise")
    with pytest.raises(JobFailed, match="inside"):
        job.result(timeout=PATIENCE)
    assert place.rows(number) == 0


@KINDS
@pytest.mark.parametrize(("how", "versions"), [("before", 2), ("after", 1)])
def test_a_death_during_the_commit_is_resolved_by_the_store(place: Place, kind: str, how: str, versions: int) -> None:
    """X3, F6: committed means done, without a second run; not committed is a crash, and the next run commits."""
    number = place.number()
    job: Any = getattr(slots.bare, kind).enqueue(number, how)
    assert job.result(timeout=PATIENCE) == f"run {versions}"
    assert (place.rows(number), job.record().version) == (1, versions)


def test_a_timeout_after_the_commit_kills_and_changes_nothing(place: Place) -> None:
    """F5: the job is done by its transaction; what its handler still does is ended."""
    number = place.number()
    job = slots.bare.transact.using(timeout=4).enqueue(number, "hang")
    assert job.result(timeout=PATIENCE) == "run 1"
    (other,) = slots.bare.harbor.enqueue_many([slots.bare.describe.step("next")])
    assert other.result(timeout=PATIENCE)["word"] == "next"
    assert (place.rows(number), job.record().version, job.record().attempts) == (1, 1, 0)
