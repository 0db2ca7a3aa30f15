"""Logging: names that stay, fields on every record inside a job, and no handler of our own."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from limits import LIMIT
from taskharbor import Retry, Unrecoverable, current
from taskharbor.core.shown import last_run
from taskharbor.testing import LoopClock
from taskharbor.worker.outcome_log import MOST_UNKNOWN, JobFilter, OutcomeLog
from world import World, until, virtual


class Memo(logging.Handler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_the_library_configures_no_handler() -> None:
    """Not even a NullHandler: it would hide warnings. The root logger is never touched."""
    program = (
        "import logging, taskharbor; from taskharbor import Harbor; h = Harbor('memory://'); "
        "root = logging.getLogger(); ours = logging.getLogger('taskharbor'); "
        "assert root.handlers == [] and root.level == logging.WARNING; "
        "assert ours.handlers == []; "
        "assert ours.level == logging.NOTSET and ours.propagate; "
        "names = [n for n in logging.root.manager.loggerDict if n.startswith('taskharbor.')]; "
        "assert all(not logging.getLogger(n).handlers for n in names)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, "")


@virtual
async def test_every_record_inside_a_job_carries_its_id_task_and_attempt() -> None:
    """By contextvars, for any logger, in coroutines as in plain calls; `-` outside."""
    world = World(retry=Retry.fixed(0))
    memo = Memo()
    memo.addFilter(JobFilter())
    log = logging.getLogger("app.mail")
    log.addHandler(memo)
    log.setLevel(logging.INFO)

    async def helper() -> None:
        log.info("in a child task")

    @world.harbor.task(name="t")
    async def work(number: int) -> None:
        log.info("%s", current().id)
        await asyncio.sleep(number)
        await asyncio.create_task(helper())
        if current().attempt == 1:
            raise ValueError

    try:
        jobs = await world.harbor.aenqueue_many(work.step(number) for number in range(3))
        async with world.worker() as worker:
            await until(lambda: worker.finished == 6)
        log.info("outside")
    finally:
        log.removeHandler(memo)
    *inside, outside = memo.records
    assert len(inside) == 12
    assert {(record.job_id, record.task) for record in inside} == {(job.id, "t") for job in jobs}
    assert sorted(record.attempt for record in inside) == [1] * 6 + [2] * 6
    assert all(record.job_id == record.getMessage() for record in inside if "child" not in record.getMessage())
    assert (outside.job_id, outside.task, outside.attempt) == ("-", "-", "-")


@virtual
async def test_a_worker_says_how_many_runs_there_were(caplog: pytest.LogCaptureFixture) -> None:
    """UX: one run, two runs."""
    world = World()
    caplog.set_level(logging.INFO, "taskharbor")

    @world.harbor.task
    async def work() -> None: ...

    for number in range(3):
        await world.harbor.aenqueue_many(work.step() for _ in range(number))
        async with world.worker():
            await asyncio.sleep(1)
    ends = [record.getMessage() for record in caplog.records if "worker.stopped" in record.getMessage()]
    assert [end.rpartition(" after ")[2] for end in ends] == ["0 runs", "1 run", "2 runs"]


@virtual
async def test_what_becomes_of_jobs_is_logged_under_stable_names(caplog: pytest.LogCaptureFixture) -> None:
    """UX: job.succeeded, job.retrying, job.dead, job.released, job.cancelled."""
    world = World(retry=Retry.fixed(0))
    caplog.set_level(logging.INFO, "taskharbor")

    @world.harbor.task(max_attempts=2)
    async def work(how: str) -> None:
        if how == "dies":
            raise Unrecoverable("secret")
        if how == "retries" and current().attempt == 1:
            raise ValueError
        if how in ("is cancelled", "is released"):
            await asyncio.sleep(1000)

    jobs = {how: await work.aenqueue(how) for how in ("succeeds", "dies", "retries", "is cancelled", "is released")}
    async with world.worker(grace=0):
        await asyncio.sleep(1)
        await jobs["is cancelled"].acancel()
        await asyncio.sleep(12)
    events = {
        how: [
            (record.levelname, getattr(record, "event", None))
            for record in caplog.records
            if jobs[how].id in record.getMessage()
        ]
        for how in jobs
    }
    assert events == {
        "succeeds": [("INFO", "job.succeeded")],
        "dies": [("ERROR", "job.dead")],
        "retries": [("WARNING", "job.retrying"), ("INFO", "job.succeeded")],
        "is cancelled": [("INFO", "job.cancelled")],
        "is released": [("INFO", "job.released")],
    }


EMBEDDED = """
import asyncio
from taskharbor import Harbor
harbor = Harbor("memory://", max_attempts=1)

@harbor.task
def bad() -> None:
    raise ValueError("the reason")

async def main() -> None:
    job = await bad.aenqueue()
    async with harbor.worker():
        while await job.astate() != "dlq":
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


def test_warnings_and_errors_of_an_embedded_worker_reach_stderr() -> None:
    """An application that configured no logging sees what fails, with the traceback, and nothing else."""
    done = subprocess.run([sys.executable, "-c", EMBEDDED], capture_output=True, text=True, check=False, timeout=LIMIT)
    first, *traceback = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (0, "")
    assert first.startswith("job.dead: job ")
    assert "(__main__.bad): max_attempts after " in first
    assert first.endswith("ValueError: the reason")
    assert traceback[0] == "Traceback (most recent call last):"
    assert traceback[-1] == "ValueError: the reason"


@virtual
async def test_failures_are_logged_with_traceback_duration_and_spread(caplog: pytest.LogCaptureFixture) -> None:
    """F2, F10: what a person needs at the first look."""
    world = World(retry=Retry.fixed(40))

    @world.harbor.task(max_attempts=3)
    async def bad() -> None:
        await asyncio.sleep(3)
        raise ValueError("no")

    await bad.aenqueue()
    async with world.worker():
        await until(lambda: "job.dead" in caplog.text)
    records: list[Any] = list(caplog.records)
    assert [record.getMessage().partition("): ")[2] for record in records] == [
        "after 3 s, again in 40 s: ValueError: no",
        "after 3 s, 2 failures within 46 s, again in 40 s: ValueError: no",
        "max_attempts after 3 s, 3 failures within 1 min 29 s: ValueError: no",
    ]
    assert [(record.duration, record.spread) for record in records] == [(3, None), (3, 46), (3, 89)]
    for record in records:
        assert record.exc_text.startswith("Traceback (most recent call last):\n  File")
        assert record.exc_text.endswith('raise ValueError("no")\nValueError: no')
        assert "src/taskharbor" not in record.exc_text


@virtual
async def test_the_log_and_the_record_agree_on_how_long_a_run_took(caplog: pytest.LogCaptureFixture) -> None:
    """R1, F10: from the start to the time of the settle, however long the store takes to commit it."""
    caplog.set_level("INFO", "taskharbor")
    world = World(max_attempts=1)
    settle = world.memory.settle

    async def slowly(*given: Any) -> Any:
        verdicts = await settle(*given)
        await asyncio.sleep(5)
        return verdicts

    setattr(world.memory, "settle", slowly)  # noqa: B010

    @world.harbor.task
    async def work(fails: bool) -> None:
        await asyncio.sleep(3)
        if fails:
            raise ValueError

    jobs = [await work.aenqueue(False), await work.aenqueue(True)]
    async with world.worker():
        await asyncio.sleep(20)
    for job in jobs:
        (duration,) = (getattr(it, "duration", None) for it in caplog.records if getattr(it, "job_id", "") == job.id)
        took = last_run(await world.record(job))
        assert took is not None
        assert duration == took.total_seconds() == 3


@virtual
async def test_attempts_that_took_seconds_get_a_hint_at_patience(caplog: pytest.LogCaptureFixture) -> None:
    """F2: an outage lasts longer than the default policy. Where no further attempt can help, there is no hint."""
    world = World(retry=Retry.fixed(2), max_attempts=2)

    @world.harbor.task
    async def bad(final: bool) -> None:
        raise Unrecoverable("no") if final and current().attempt == 2 else ValueError("no")

    for final in (False, True):
        await bad.aenqueue(final)
        caplog.clear()
        await world.drain()
        await asyncio.sleep(2)
        await world.drain()
        assert "2 failures within 2 s" in caplog.text
        assert ("Retry.patient() with max_attempts=20 lasts hours" in caplog.text) is not final


@virtual
async def test_a_timeout_gets_no_hint_at_patience(caplog: pytest.LogCaptureFixture) -> None:
    """F2, F5: a slow task is not helped by longer pauses between its attempts."""
    world = World(retry=Retry.fixed(2), max_attempts=2)

    @world.harbor.task(timeout=1)
    async def slow() -> None:
        await asyncio.sleep(100)

    await slow.aenqueue()
    async with world.worker():
        await until(lambda: "job.dead" in caplog.text)
    assert "2 failures within 4 s: TimeoutError: timed out after 1 s" in caplog.text
    assert "Retry.patient()" not in caplog.text


@virtual
async def test_a_retry_is_logged_with_the_frames_of_the_application(caplog: pytest.LogCaptureFixture) -> None:
    """F2: frames of libraries stay in the store, and in the log of a dead letter."""
    world = World(retry=Retry.fixed(2), max_attempts=2)

    @world.harbor.task(name="work")
    async def work() -> None:
        try:
            json.loads("{")
        except ValueError:
            json.loads("[")

    job = await work.aenqueue()
    async with world.worker():
        await until(lambda: "job.dead" in caplog.text)
    again, dead = [str(record.exc_text) for record in caplog.records]
    assert again.count("Traceback") == 1
    assert "in work" in again
    assert "json/decoder.py" not in again
    assert " frames of libraries left out]" in again
    assert again.splitlines()[-1].startswith("json.decoder.JSONDecodeError: Expecting value")
    assert "json/decoder.py" in dead
    (record,) = await world.harbor.admin.jobs.alist("state:dlq")
    assert (record.id, "json/decoder.py" in record.failures[0].traceback) == (job.id, True)


@virtual
async def test_an_unknown_task_is_a_warning_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """F8: per task, with the number of put-backs since the last warning."""
    world = World()
    await world.harbor.aenqueue_many(world.harbor.step(name, {}) for name in ("here.a", "here.a", "here.b"))
    async with world.worker():
        await asyncio.sleep(130)
    records: list[Any] = [record for record in caplog.records if getattr(record, "event", "") == "task.unknown"]
    told = [(record.unknown_task, record.count, record.levelname) for record in records]
    assert told[:2] == [("here.a", 1, "WARNING"), ("here.b", 1, "WARNING")]
    # 0, 1, 3, 7, 15, 31 and 63 s, twice: the first after a minute has the number of all since the first
    assert sorted(told[2:4]) == [("here.a", 12, "WARNING"), ("here.b", 6, "WARNING")]
    assert len(told) == 6
    assert "'here.a' (12 times since the last warning), which this worker does not know" in caplog.text
    assert "--include" in caplog.text


@virtual
async def test_the_memory_of_unknown_tasks_is_bounded() -> None:
    """F8: names come from the store, and nothing bounds how many there are."""
    observer = OutcomeLog()
    now = LoopClock()()
    for number in range(MOST_UNKNOWN + 5):
        observer._warn_unknown(f"task-{number}", now)
    assert len(observer._unknown) <= MOST_UNKNOWN
