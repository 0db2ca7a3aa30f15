"""Logging: names that stay, fields on every record inside a job, and no handler but the silent one."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import Any

import pytest

from taskharbor import Retry, Unrecoverable, current
from taskharbor.runtime.observe import JobFilter

from .world import World, until, virtual


class Memo(logging.Handler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_the_library_configures_no_handler() -> None:
    """Only a NullHandler on `taskharbor`; the root logger is never touched."""
    program = (
        "import logging, taskharbor; from taskharbor import Harbor; h = Harbor('memory://'); "
        "root = logging.getLogger(); ours = logging.getLogger('taskharbor'); "
        "assert root.handlers == [] and root.level == logging.WARNING; "
        "assert [type(x).__name__ for x in ours.handlers] == ['NullHandler']; "
        "assert ours.level == logging.NOTSET and ours.propagate; "
        "names = [n for n in logging.root.manager.loggerDict if n.startswith('taskharbor.')]; "
        "assert all(not logging.getLogger(n).handlers for n in names)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@virtual
async def test_every_record_inside_a_job_carries_its_id_task_and_attempt() -> None:
    """By contextvars, for anybody's logger, in coroutines as in plain calls; `-` outside."""
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
