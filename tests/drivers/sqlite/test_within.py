"""`tx=` on SQLite: an apsw connection to the same file; the job exists exactly if its transaction commits."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from sqlalchemy import create_engine

from taskharbor import Harbor, Task
from taskharbor.core.transition import Ack
from taskharbor.driver import WaitForWork, Within, at_once, capability
from taskharbor.drivers import from_url
from taskharbor.errors import CapabilityMissing, InvalidJob, JobExists


class Place:
    """A file with a harbor, a table of the application's, and a connection of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.harbor = Harbor(f"sqlite:///{path}")

        @self.harbor.task
        def send(number: int) -> int:
            return number * 2

        self.send: Task[[int], int] = send
        self.send.using(id="first").enqueue(0)
        self.db = apsw.Connection(str(path))
        self.db.set_busy_timeout(20_000)
        self.db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")

    def jobs(self) -> list[str]:
        """The ids of the jobs as another connection sees them, but for the first."""
        with closing(apsw.Connection(str(self.path))) as other:
            return [row[0] for row in other.execute("SELECT id FROM job WHERE id <> 'first' ORDER BY seq")]

    def orders(self) -> int:
        with closing(apsw.Connection(str(self.path))) as other:
            return int(other.execute("SELECT count(*) FROM orders").get)


@pytest.fixture
def place(tmp_path: Path) -> Generator[Place]:
    place = Place(tmp_path / "jobs.db")
    yield place
    place.db.close()
    place.harbor.close()


def test_a_job_is_there_once_the_transaction_commits(place: Place) -> None:
    """D13, D1: invisible before, whole after, and it runs."""
    with place.db:
        place.db.execute("INSERT INTO orders VALUES (1)")
        job = place.send.using(tx=place.db).enqueue(21)
        assert (place.orders(), place.jobs()) == (0, [])
    assert (place.orders(), place.jobs()) == (1, [job.id])
    asyncio.run(place.harbor.adrain())
    assert job.result(timeout=5) == 42


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE"])
def test_a_rollback_takes_the_job_with_it(place: Place, begin: str) -> None:
    place.db.execute(begin)
    place.send.using(tx=place.db).enqueue(1)
    place.db.execute("ROLLBACK")
    assert place.jobs() == []


def test_an_exception_takes_the_job_with_it(place: Place) -> None:
    with suppress(ZeroDivisionError), place.db:
        place.harbor.enqueue_many([place.send.using(tx=place.db).step(1)])
        raise ZeroDivisionError
    assert place.jobs() == []


def test_a_savepoint_takes_its_jobs_with_it(place: Place) -> None:
    with place.db:
        kept = place.send.using(tx=place.db).enqueue(1)
        with suppress(ZeroDivisionError), place.db:
            place.send.using(tx=place.db).enqueue(2)
            raise ZeroDivisionError
    assert place.jobs() == [kept.id]


def test_a_refused_job_leaves_the_transaction_as_it_was(place: Place) -> None:
    """D1."""
    within = place.send.using(tx=place.db)
    with place.db:
        place.db.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(JobExists):
            place.harbor.enqueue_many([within.step(1), within.using(id="first").step(2)])
        after = within.enqueue(3)
    assert (place.orders(), place.jobs()) == (1, [after.id])


def test_keys_hold_inside_a_transaction(place: Place) -> None:
    """I1."""
    within = place.send.using(tx=place.db, idempotency_key="a")
    with place.db:
        first = within.enqueue(1)
        again = within.enqueue(1)
        assert (again.id, again.created) == (first.id, False)
    assert place.send.using(idempotency_key="a").enqueue(1).id == first.id


def test_what_the_caller_makes_of_rows_does_not_matter(place: Place) -> None:
    place.db.row_trace = lambda cursor, row: {"row": row}
    with place.db:
        place.send.using(tx=place.db, idempotency_key="a").enqueue(1)
        assert not place.send.using(tx=place.db, idempotency_key="a").enqueue(1).created
        rows: list[Any] = place.db.execute("SELECT 1").fetchall()
        assert rows == [{"row": (1,)}]


def test_what_goes_wrong_inside_does_not_end_the_transaction(place: Place) -> None:
    with place.db:
        place.db.execute("INSERT INTO orders VALUES (1)")
        place.db.execute("CREATE TEMP TRIGGER no BEFORE INSERT ON job BEGIN SELECT RAISE (ABORT, 'no'); END")
        with pytest.raises(apsw.ConstraintError):
            place.send.using(tx=place.db).enqueue(1)
        place.db.execute("DROP TRIGGER no")
        job = place.send.using(tx=place.db).enqueue(2)
    assert (place.orders(), place.jobs()) == (1, [job.id])


def test_a_commit_wakes_waiters_in_this_process(place: Place) -> None:
    """D13: the watch on the file notices every connection."""

    async def act() -> None:
        async with asyncio.timeout(60), place.harbor.open():
            driver = await from_url(f"sqlite:///{place.path}")
            waiting = asyncio.ensure_future(capability(driver, WaitForWork).wait_for_work(["default"], 3600))
            await asyncio.sleep(0)
            with place.db:
                place.send.using(tx=place.db).enqueue(1)
            await waiting
            await driver.close()

    asyncio.run(act())


def test_a_settle_goes_with_the_transaction_too(place: Place) -> None:
    """D13, D7."""

    async def act() -> None:
        driver = await from_url(f"sqlite:///{place.path}")
        now = datetime.now(UTC)
        (job,) = await driver.reserve(["default"], now, timedelta(seconds=30), 1, "w")
        assert job.lease is not None
        ack = Ack(id=job.id, token=job.lease.token, keep_until=now + timedelta(days=1))
        for ending, state in (("ROLLBACK", "inflight"), ("COMMIT", "done")):
            place.db.execute("BEGIN IMMEDIATE")
            assert at_once(capability(driver, Within).within(place.db).settle([ack], now)) == ["ok"]
            place.db.execute(ending)
            assert (await place.harbor.job(job.id).arecord()).state == state
        await driver.close()
        await place.harbor.aclose()

    asyncio.run(act())


# bad input


def refused(place: Place, handle: Any, match: str) -> None:
    with pytest.raises(InvalidJob, match=match):
        place.send.using(tx=handle).enqueue(1)
    assert place.jobs() == []


def test_handles_of_another_sqlite_are_refused_with_the_reason(place: Place) -> None:
    """X5."""
    engine = create_engine("sqlite://")
    with closing(sqlite3.connect(":memory:")) as standard, engine.connect() as through_sqlalchemy:
        for handle in (standard, through_sqlalchemy):
            refused(place, handle, "another copy of SQLite than ours: two of them on one file in one process lose data")
    engine.dispose()
    refused(
        place,
        object(),
        r"in the SQLite file '.+', so give an apsw.Connection to that file\. .*TASKHARBOR_URL",
    )


def test_a_handle_on_another_file_or_without_a_transaction_is_refused(place: Place, tmp_path: Path) -> None:
    refused(place, place.db, "no open transaction: enqueue inside `with connection:`")
    for name in (":memory:", str(tmp_path / "other.db")):
        with closing(apsw.Connection(name)) as other:
            refused(place, other, "the jobs are in")


def test_aenqueue_refuses_what_blocks(place: Place) -> None:
    async def act() -> None:
        with place.db, pytest.raises(InvalidJob, match="use enqueue, not aenqueue"):
            await place.send.using(tx=place.db).aenqueue(1)
        await place.harbor.aclose()

    asyncio.run(act())


def test_there_are_no_transactions_for_handlers(place: Place) -> None:
    """D13: absent means loudly absent."""

    async def act() -> None:
        driver = await from_url(f"sqlite:///{place.path}")
        within = capability(driver, Within)
        for ask in (within.transaction, within.transaction_blocking):
            with pytest.raises(CapabilityMissing, match="one writer at a time"):
                ask()
        await driver.close()

    asyncio.run(act())
