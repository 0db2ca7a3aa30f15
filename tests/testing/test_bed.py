"""The test bed: another store behind an application's harbors, a clock to move, and workers that die on command."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from servers.postgres import PostgresServer
from taskharbor import Harbor, JobRecord, Retry, Unrecoverable, chain, current
from taskharbor.errors import BlockingCallInLoop, DriverClosed, InvalidJob, JobFailed
from taskharbor.manager import TaskManager
from taskharbor.testing import TestBed


class Shop:
    """An application: its own store must never be touched."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "own.db"
        self.harbor = Harbor(f"sqlite:///{self.file}")
        self.seen: list[Any] = []

        @self.harbor.task(name="charge", retry=Retry.fixed(60), max_attempts=3)
        def charge(order: int, day: date | None = None) -> int:
            self.seen.append(("charge", order, threading.current_thread() is threading.main_thread()))
            return order

        @self.harbor.task(name="flaky", retry=Retry.fixed(60), max_attempts=3)
        async def flaky(until: int) -> str:
            if current().attempt < until:
                raise ConnectionError(f"attempt {current().attempt}")
            return "at last"

        self.charge, self.flaky = charge, flaky


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    assert not shop.file.exists()


@pytest.fixture
def bed(shop: Shop) -> Iterator[TestBed]:
    with TestBed(harbors=[shop.harbor]) as bed:
        yield bed


# running


def test_a_blocking_test(shop: Shop, bed: TestBed) -> None:
    """P1: enqueue, drain, look; the harbor's own store stays away."""
    job = shop.charge.enqueue(7, day=date(2026, 1, 2))
    assert shop.seen == []
    (record,) = bed.enqueued(shop.charge)
    assert record.arguments == {"order": 7, "day": date(2026, 1, 2)}
    assert record.id == job.id
    assert bed.drain() == 1
    assert shop.seen == [("charge", 7, True)]
    assert job.result() == 7
    assert bed.drain() == 0
    assert bed.harbors == [shop.harbor]
    assert repr(bed) == "<TestBed memory://, 1 harbors>"


def test_an_async_test(shop: Shop, bed: TestBed) -> None:
    """P1: the same by the async twins, and the blocking ones are refused."""

    async def test() -> None:
        job = await shop.charge.aenqueue(7)
        assert [record.arguments for record in await bed.aenqueued(shop.charge)] == [{"order": 7}]
        assert await bed.adrain() == 1
        assert await job.aresult() == 7
        with pytest.raises(BlockingCallInLoop, match="adrain"):
            bed.drain()
        with pytest.raises(BlockingCallInLoop, match="aenqueued"):
            bed.enqueued()

    asyncio.run(test())
    assert shop.seen == [("charge", 7, False)]


def test_other_threads_and_loops_are_in_the_bed(shop: Shop, bed: TestBed) -> None:
    """P1: as a web test client runs the application."""

    def serve() -> None:
        asyncio.run(shop.charge.aenqueue(1))
        shop.charge.enqueue(2)

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert [record.arguments["order"] for record in bed.enqueued("charge")] == [1, 2]
    assert bed.drain() == 2


def test_jobs_stay_when_the_application_closes_its_harbor(shop: Shop, bed: TestBed) -> None:
    """P1: as one does whose lifespan ends with the test client."""
    with shop.harbor.open():
        shop.charge.enqueue(1)
    assert bed.drain() == 1


def test_a_failure_is_raised_by_default(shop: Shop, bed: TestBed) -> None:
    """P: what the handler raised, not what became of it."""
    shop.flaky.enqueue(until=9)
    shop.charge.enqueue(1)
    with pytest.raises(ConnectionError, match="attempt 1"):
        bed.drain()
    assert len(shop.seen) == 1
    bed.advance(60)
    assert bed.drain(raise_failures=False) == 1


def test_what_jobs_enqueue_runs_too(shop: Shop, bed: TestBed) -> None:
    """K1: and what waits for others."""
    run = chain(shop.charge.step(4), shop.charge).enqueue()
    assert bed.drain() == 2
    assert run.result() == 4
    first, second = bed.enqueued(shop.charge)
    assert (first.arguments, second.arguments) == ({"order": 4}, {})


def test_jobs_run_in_the_order_in_which_they_were_enqueued(shop: Shop, bed: TestBed) -> None:
    """D11: though the clock hardly moves."""
    for number in range(30):
        shop.charge.enqueue(number)
    bed.drain()
    assert [order for _, order, _ in shop.seen] == list(range(30))
    assert [record.arguments["order"] for record in bed.enqueued()] == list(range(30))


# time


def test_retries_come_with_the_time(shop: Shop, bed: TestBed) -> None:
    """F1: the clock stands until it is moved."""
    job = shop.flaky.enqueue(until=3)
    before = bed.now
    bed.drain(raise_failures=False)
    bed.advance(59)
    assert bed.drain() == 0
    bed.advance(timedelta(seconds=2))
    assert bed.drain(raise_failures=False) == 1
    assert bed.now - before >= timedelta(seconds=61)
    assert bed.run_for(60) == 1
    assert job.result() == "at last"


def test_what_is_due_by_the_hosts_clock_is_due(shop: Shop, bed: TestBed) -> None:
    """N1: `run_at=datetime.now()` is not in the future."""
    shop.charge.using(run_at=datetime.now(UTC)).enqueue(1)
    assert bed.drain() == 1


def test_time_does_not_go_back(bed: TestBed) -> None:
    """X4: nor does a test's."""
    with pytest.raises(InvalidJob, match="zero or more"):
        bed.advance(-1)


def test_recurring_tasks_come_with_the_time(shop: Shop, bed: TestBed) -> None:
    """N2: a schedule begins with the test, and `run_for` lives through every tick."""
    slots: list[datetime | None] = []

    @shop.harbor.recurring(every=timedelta(hours=1))
    def hourly() -> None:
        slots.append(current().slot)

    bed.start_at(datetime(2030, 1, 1, 12, 30, tzinfo=UTC))
    bed.advance(29 * 60)
    assert bed.drain(recurring=True) == 0
    bed.advance(60)
    assert bed.drain() == 0  # or its number would depend on the time of day
    assert bed.drain(recurring=True) == 1
    assert bed.run_for(timedelta(hours=3)) == 3
    bed.advance(timedelta(hours=5))
    assert bed.drain(recurring=True) == 1  # as after an outage: not every tick that was missed
    assert [slot.hour for slot in slots if slot is not None] == [13, 14, 15, 16, 21]


def test_a_test_begins_when_it_says(shop: Shop, bed: TestBed) -> None:
    """N2: a cron is for a time of day; the past will do as well."""
    slots: list[datetime | None] = []

    @shop.harbor.recurring(cron="0 3 * * *", tz="Europe/Berlin")
    def nightly() -> None:
        slots.append(current().slot)

    bed.start_at(datetime(2020, 3, 28, 12, tzinfo=UTC))
    assert bed.run_for(timedelta(days=2)) == 2
    assert slots == [datetime(2020, 3, 29, 1, tzinfo=UTC), datetime(2020, 3, 30, 1, tzinfo=UTC)]
    with pytest.raises(InvalidJob, match="time zone"):
        bed.start_at(datetime.fromisoformat("2020-03-28"))


def test_a_delay_counts_from_the_end_of_the_last_run(shop: Shop, bed: TestBed) -> None:
    """N2: `fixed_delay` knows its next tick when the last run has ended."""
    count = 0

    @shop.harbor.recurring(every=60, mode="fixed_delay")
    def again() -> None:
        nonlocal count
        count += 1

    assert bed.run_for(190) == count == 3


def test_run_for_ends_at_its_end(shop: Shop, bed: TestBed) -> None:
    """N1: what is due later stays."""
    begin = bed.now
    shop.charge.using(delay=10).enqueue(1)
    shop.charge.using(delay=30).enqueue(2)

    async def live() -> int:
        return await bed.arun_for(timedelta(seconds=20))

    assert asyncio.run(live()) == 1
    assert timedelta(seconds=20) <= bed.now - begin < timedelta(seconds=29)


# crashes


@pytest.mark.parametrize("by", ["task", "job", "name"])
def test_a_worker_that_dies_after_the_side_effect(by: str, shop: Shop, bed: TestBed) -> None:
    """G1: what was done stays done, its end was never stored, and the job runs again when the lease is over."""
    job = shop.charge.enqueue(7)
    bed.crash_after(shop.charge if by == "task" else job if by == "job" else "charge")
    assert bed.drain() == 0
    assert len(shop.seen) == 1
    assert job.state() in ("claimed", "running", "lapsed")
    assert bed.drain() == 0
    bed.advance(60)
    assert bed.drain() == 1
    assert len(shop.seen) == 2
    assert job.record().version == 2
    assert job.state() == "done"


def test_a_worker_that_dies_takes_along_what_its_job_would_have_enqueued(shop: Shop, bed: TestBed) -> None:
    """D9: nothing of it is stored without the Ack."""

    @shop.harbor.task(name="parent")
    async def parent() -> None:
        current().enqueue(shop.charge.step(1))

    parent.enqueue()
    bed.crash_after(parent)
    bed.drain()
    assert bed.enqueued(shop.charge) == []
    assert bed.run_for(60) == 2
    assert len(bed.enqueued(shop.charge)) == 1


def test_a_worker_crashes_as_often_as_requested(shop: Shop, bed: TestBed) -> None:
    """F6: until its crashes are used up."""
    job = shop.charge.enqueue(7)
    bed.crash_after(job, times=9)
    bed.run_for(timedelta(hours=1))
    assert len(shop.seen) == 5
    assert (job.state(), job.record().dlq_reason) == ("dlq", "crash_loop")


def test_a_handler_that_raises_and_a_worker_that_dies(shop: Shop, bed: TestBed) -> None:
    """F6: the failure is never stored, so it is not raised either."""
    job = shop.flaky.enqueue(until=9)
    bed.crash_after(shop.flaky)
    assert bed.drain() == 0
    assert job.record().attempts == 0


# which harbors


def test_all_harbors_of_the_process_are_in_a_bed_that_names_none(tmp_path: Path) -> None:
    """P: also those that are made inside; those with the same URL share a store."""
    url = f"sqlite:///{tmp_path}/own.db"
    seen: list[int] = []
    producer = Harbor(url)
    with TestBed() as bed:
        producer.enqueue("work", {"number": 1})
        assert bed.drain() == 0
        worker, other = Harbor(url), Harbor("memory://")
        third = Harbor("memory://")

        @worker.task(name="work")
        def work(number: int) -> None:
            seen.append(number)

        assert [record.arguments for record in bed.enqueued("work")] == [{"number": 1}]
        assert bed.drain() == 1
        other.enqueue("work", {"number": 2})
        assert bed.drain() == 0
        assert [len(each.admin.jobs.list()) for each in (producer, worker, other, third)] == [1, 1, 1, 0]
        assert {producer, worker, other, third} <= set(bed.harbors)
    assert seen == [1]
    assert list(tmp_path.iterdir()) == []


def test_a_task_managers_store_is_in_the_bed(tmp_path: Path) -> None:
    """M1: its tasks are claimed by id, and no drain takes them."""
    with TestBed() as bed, TaskManager(f"sqlite:///{tmp_path}/own.db") as tasks:
        task = tasks.submit(b"x")
        assert bed.drain() == 0
        assert tasks.claim(task, "agent").id == task
    assert list(tmp_path.iterdir()) == []


def test_a_bed_leaves_nothing_behind(shop: Shop) -> None:
    """P: neither its store nor its middleware; and it keeps no harbor alive."""
    with TestBed() as bed:
        shop.charge.enqueue(1)
        session = shop.harbor._session
    assert shop.harbor._session is not session
    assert shop.harbor._application.middleware == []
    with TestBed(harbors=[shop.harbor]):
        assert shop.harbor.admin.jobs.list() == []
    made = Harbor("memory://")
    known = id(made)
    del made, bed
    gc.collect()
    with TestBed() as bed:
        assert known not in map(id, bed.harbors)


def test_what_outlives_its_bed_finds_its_store_closed(shop: Shop) -> None:
    """P: a worker that was left running does not go on in the next test."""
    with TestBed(harbors=[shop.harbor]):
        driver = shop.harbor.driver()
    with pytest.raises(DriverClosed):
        asyncio.run(driver.settle([], datetime.now(UTC)))


def test_only_harbors_with_something_to_do_are_begun(shop: Shop) -> None:
    """P: the lifespan of another harbor may need what this test does not have."""
    other = Harbor("memory://")

    @other.lifespan
    async def broken() -> Any:
        raise AssertionError("not needed here")
        yield

    with TestBed() as bed:
        shop.charge.enqueue(1)
        assert bed.drain() == 1


def test_a_lifespan_that_fails_is_raised(shop: Shop, bed: TestBed) -> None:
    """P: once, and no handler has run."""

    @shop.harbor.lifespan
    async def broken() -> Any:
        raise LookupError("no pool")
        yield

    shop.charge.enqueue(1)
    with pytest.raises(LookupError, match="no pool"):
        bed.drain()
    assert shop.seen == []


def test_a_store_of_choice(shop: Shop, tmp_path: Path) -> None:
    """P: any URL, with the same clock."""
    with TestBed(f"sqlite:///{tmp_path}/bed.db", [shop.harbor]) as bed:
        job = shop.flaky.enqueue(until=2)
        bed.crash_after(job)
        bed.drain()
        assert bed.run_for(200, raise_failures=False) == 2
        assert job.result() == "at last"
        assert [record.arguments for record in bed.enqueued()] == [{"until": 2}]
    assert (tmp_path / "bed.db").exists()


def test_a_server_of_choice(shop: Shop, postgres: PostgresServer) -> None:
    """P: its schema is made when it is missing, and its clock is the test's."""
    with TestBed(postgres.url(postgres.new_database()), [shop.harbor]) as bed:
        job = shop.charge.using(delay=3600).enqueue(7)
        bed.crash_after(job)
        assert bed.drain() == 0
        assert bed.run_for(timedelta(hours=2)) == 1
        assert len(shop.seen) == 2
        assert [(record.state, record.arguments) for record in bed.enqueued(shop.charge)] == [("done", {"order": 7})]


def test_a_store_inside_the_block_goes_first(shop: Shop, bed: TestBed) -> None:
    """P: `stand_in` is for its block."""
    with shop.harbor.stand_in("memory://"):
        shop.charge.enqueue(1)
    assert bed.enqueued() == []


# the thread of the test


def test_handlers_see_what_belongs_to_the_thread_of_the_test(shop: Shop, bed: TestBed) -> None:
    """P: such as a database connection and its open transaction; so do hooks, and no loop runs there."""
    local = threading.local()
    local.connection = "mine"
    seen: list[str] = []

    @shop.harbor.task(name="query")
    def query() -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        seen.append(local.connection)
        shop.charge.enqueue(2)
        raise Unrecoverable("enough")

    @shop.harbor.on_dead
    def tell(record: JobRecord) -> None:
        seen.append(f"{local.connection} {record.arguments}")

    query.enqueue()
    with pytest.raises(Unrecoverable, match="enough"):
        bed.drain()
    assert seen == ["mine", "mine {}"]
    assert shop.seen == [("charge", 2, True)]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_ctrl_c_ends_a_drain(kind: str, shop: Shop, bed: TestBed) -> None:
    """P1: also in the middle of a handler, and while others wait for their turn."""

    @shop.harbor.task(name="long")
    def long() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(60)

    @shop.harbor.task(name="along")
    async def along() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

    for _ in range(3):
        (long if kind == "def" else along).enqueue()
    with pytest.raises(KeyboardInterrupt):
        bed.drain()
    assert all(record.state != "done" for record in bed.enqueued())


def test_an_exit_that_a_handler_asks_for_ends_no_test(shop: Shop, bed: TestBed) -> None:
    """F11: it is that job's failure."""

    @shop.harbor.task(name="leave")
    def leave() -> None:
        raise SystemExit(3)

    leave.enqueue()
    with pytest.raises(JobFailed, match="SystemExit"):
        bed.drain()
    with suppress(JobFailed):
        bed.drain()
