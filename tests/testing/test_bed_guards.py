"""Refusals of a test bed: waits that never end, crashes that never come, times that make no sense."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, chain
from taskharbor.core.filter import Filter
from taskharbor.driver import WorkerRecord
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import InvalidJob, NoWorker, UnknownTask
from taskharbor.testing import TestBed

harbor = Harbor("memory://")


@harbor.task(name="app.greet")
def greet(name: str) -> str:
    return f"hello {name}"


def bed(url: str = "memory://", patience: float = 0) -> TestBed:
    """A bed in which a wait that is in vain ends at once."""
    made = TestBed(url, [harbor])
    made._attendance.patience = patience
    return made


# waits


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/jobs.db"])
def test_a_wait_without_a_worker_is_refused(url: str, tmp_path: Path) -> None:
    """P1: a test that forgot to drain gets an error and does not hang; the same for a workflow."""
    with bed(url.format(tmp_path)) as jobs:
        job = greet.enqueue("Ann")
        with pytest.raises(NoWorker, match=r"job [\w-]+ has not ended.* call taskharbor\.drain\(\) first"):
            job.result()
        with pytest.raises(NoWorker, match=r"workflow [\w-]+ has not ended"):
            chain(greet.step("Bob"), greet).enqueue().result()
        with pytest.raises(TimeoutError, match=r"in a test, call taskharbor\.drain\(\) first$"):
            job.result(timeout=0)
        jobs.drain()
        assert job.result() == "hello Ann"


@pytest.mark.parametrize("wrong", [len, 5, [greet]])
def test_only_jobs_of_tasks_are_taken(wrong: Any) -> None:
    """X5: such as a function that was never decorated."""
    with bed() as jobs, pytest.raises(InvalidJob, match=r"enqueued takes a task, .* is @harbor\.task missing\?$"):
        jobs.enqueued(wrong)


def test_a_wait_beside_a_worker_is_a_wait() -> None:
    """P1: of a worker in the test, as beside a web application."""
    with bed(), harbor.worker():
        assert greet.enqueue("Ann").result() == "hello Ann"

    async def test() -> str:
        async with harbor.worker(threads=False):
            return await (await greet.aenqueue("Bob")).aresult()

    with bed():
        assert asyncio.run(test()) == "hello Bob"


def test_a_drain_in_another_thread_is_waited_for() -> None:
    """P1: if it comes soon."""
    with bed(patience=30) as jobs:
        job = greet.enqueue("Ann")
        thread = threading.Thread(target=jobs.drain)
        thread.start()
        assert job.result() == "hello Ann"
        thread.join()


@pytest.mark.parametrize(("there", "waits"), [(True, True), (False, False)])
def test_a_worker_of_another_process_counts(there: bool, waits: bool, tmp_path: Path) -> None:
    """P1: if the store is one that others can reach."""
    with bed(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        session = harbor._session

        async def test() -> bool:
            if there:
                worker: Any = await session.driver()
                await worker.beat(record())
            return await jobs._attendance.has_worker(session)

        assert session.portal.run(test) is waits


def record() -> Any:
    """A worker's report of itself."""
    now = datetime.now(UTC)
    return WorkerRecord(id="w", host="h", pid=1, queues=("default",), slots=1, busy=0, started_at=now, seen_at=now)


# crashes


def test_a_crash_of_an_unknown_task_is_refused() -> None:
    """X5: with a guess."""
    with bed() as jobs:
        with pytest.raises(UnknownTask, match=r"'app\.gret' \(did you mean 'app\.greet'\?\); there is app\.greet"):
            jobs.crash_after("app.gret")
        with pytest.raises(UnknownTask, match=r"'x'; there is"):
            jobs.disarm("x")
        with pytest.raises(InvalidJob, match=r"1 or more, not 0"):
            jobs.crash_after(greet, times=0)
        foreign = Harbor("memory://")
        with pytest.raises(UnknownTask, match="no harbor in this test"):
            jobs.crash_after(foreign.task(name="foreign")(print_nothing))


def print_nothing() -> None:
    """A task of a harbor that is not in the bed."""


def test_a_crash_that_never_comes_fails_its_test() -> None:
    """X5: a test of a crash that had none proves nothing."""
    with pytest.raises(AssertionError, match=r"crash_after\(app\.greet\) never fired.*disarm"), bed() as jobs:
        jobs.crash_after(greet)
    with pytest.raises(AssertionError, match=r"crash_after\(<Job [\w-]+>\) never fired"), bed() as jobs:
        jobs.crash_after(greet.enqueue("Ann"))


@pytest.mark.parametrize("what", [None, greet, "app.greet"])
def test_a_crash_can_be_taken_back(what: Any) -> None:
    """X5: of one task, or all of them."""
    with bed() as jobs:
        job = greet.enqueue("Ann")
        jobs.crash_after(greet, times=2)
        jobs.disarm(what)
        jobs.disarm(greet)
        assert jobs.drain() == 1
        assert job.result() == "hello Ann"


# time


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/jobs.db"])
def test_a_test_does_not_begin_twice(url: str, tmp_path: Path) -> None:
    """X4: with jobs there, time would go back behind them."""
    with bed(url.format(tmp_path)) as jobs:
        jobs.start_at(datetime(2030, 1, 1, tzinfo=UTC))
        jobs.start_at(datetime(2020, 1, 1, tzinfo=UTC))
        greet.enqueue("Ann")
        with pytest.raises(InvalidJob, match=r"there are jobs in it already: call it first, or move on by advance"):
            jobs.start_at(datetime(2019, 1, 1, tzinfo=UTC))
        assert jobs.now.year == 2020


@pytest.mark.parametrize(
    ("by", "says"),
    [
        ("5m", r"takes seconds or a timedelta, not '5m': write \w+\(300\)"),
        (True, "seconds or a timedelta"),
        (None, "seconds or a timedelta"),
        (float("inf"), "has an end, not inf"),
        (float("nan"), "has an end, not nan"),
        (-1, "zero or more seconds, not -1"),
    ],
)
def test_a_length_of_time_is_a_number_or_a_timedelta(by: Any, says: str) -> None:
    """X5: the error says what is wanted."""
    with bed() as jobs:
        with pytest.raises(InvalidJob, match=f"advance.*{says}"):
            jobs.advance(by)
        with pytest.raises(InvalidJob, match=f"run_for.*{says}"):
            jobs.run_for(by)


def test_a_long_life_costs_the_same_every_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """R: no step looks at the jobs that have ended, which are many after a day."""
    looks: Counter[str] = Counter()
    matches = Filter.matches

    def counted(self: Filter, *given: Any) -> bool:
        looks["records"] += 1
        return matches(self, *given)

    async def refused(self: MemoryDriver, now: datetime) -> Any:
        raise AssertionError("it counts all records")

    own = Harbor("memory://")

    @own.recurring(every=timedelta(minutes=1), name="tick")
    def tick() -> None:
        pass

    monkeypatch.setattr(Filter, "matches", counted)
    monkeypatch.setattr(MemoryDriver, "counts", refused)
    with TestBed(harbors=[own]) as jobs:
        jobs.start_at(datetime(2030, 1, 1, tzinfo=UTC))
        assert jobs.run_for(timedelta(hours=1)) == 60
        first = looks.pop("records")
        assert jobs.run_for(timedelta(hours=1)) == 60
        assert looks["records"] <= first
