"""Faults that reviewers provoked: each came with a program that broke the worker or hung its caller."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, Retry, Snooze
from taskharbor.client.portal import Portal
from taskharbor.config import URL_VARIABLE, store_url
from taskharbor.driver import Inspect, WaitForWork, WorkerRecord, capability, offered
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import ConfigError, WrongArguments
from taskharbor.testing import LoopClock
from taskharbor.worker.outcome_log import JobFilter
from world import World, virtual


@virtual
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("how", ["wait_for", "gather", "task group"])
async def test_an_exit_inside_a_task_of_the_handler_is_the_jobs_failure(error: type[BaseException], how: str) -> None:
    """F11: asyncio would let it end the loop."""
    world = World()

    async def leave() -> None:
        raise error(3)

    @world.harbor.task(max_attempts=1)
    async def work() -> None:
        if how == "wait_for":
            await asyncio.wait_for(leave(), 10)
        elif how == "gather":
            await asyncio.gather(leave(), asyncio.sleep(1))
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(leave())

    job = await work.aenqueue()
    assert await world.drain() == 1
    record = await world.record(job)
    assert (record.state, record.attempts) == ("dlq", 1)


class Later(Snooze):
    """A signal that forgets to say for how long."""

    def __init__(self) -> None:
        Exception.__init__(self, "some time")


@virtual
async def test_a_signal_without_a_delay_is_an_ordinary_failure() -> None:
    """F4, F10: and the job is not held for ever."""
    world = World()

    @world.harbor.task(max_attempts=2, retry=Retry(base=0))
    async def work() -> None:
        raise Later

    job = await work.aenqueue()
    await world.drain()
    record = await world.record(job)
    assert (record.state, record.attempts, record.dlq_reason) == ("dlq", 2, "max_attempts")


@virtual
async def test_a_log_filter_that_raises_stops_neither_settles_nor_renewals() -> None:
    """L2, X3: the application's logging is not the worker's business."""
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    def broken(record: logging.LogRecord) -> bool:
        raise KeyError("no such field")

    logger = logging.getLogger("taskharbor.worker")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        jobs = [await work.aenqueue() for _ in range(3)]
        async with world.worker():
            logger.addFilter(broken)
            await asyncio.sleep(60)
            logger.removeFilter(broken)
            await asyncio.sleep(60)
    finally:
        logger.removeFilter(broken)
        logger.setLevel(level)
    assert [await world.state(job) for job in jobs] == ["done"] * 3


@virtual
async def test_a_clock_that_jumps_does_not_make_a_worker_run_its_own_job_twice_at_once() -> None:
    """L4, X4: the first run ends before the second begins."""
    ahead = [timedelta(0)]
    base = LoopClock()
    world = World(clock=lambda: base() + ahead[0])
    running: list[int] = []
    most: list[int] = []

    @world.harbor.task
    async def work() -> None:
        running.append(1)
        most.append(len(running))
        try:
            await asyncio.sleep(20)
        finally:
            await asyncio.sleep(0.5)
            running.pop()

    job = await work.aenqueue()
    async with world.worker(concurrency=4):
        await asyncio.sleep(2)
        ahead[0] = timedelta(hours=1)
        await asyncio.sleep(60)
    assert max(most) == 1
    assert await world.state(job) == "done"


def test_a_call_that_ends_as_the_portal_closes_returns() -> None:
    """P1: its result was left in the closed loop, and the caller waited for ever."""
    portal = Portal()

    async def last() -> int:
        portal.close()
        await asyncio.sleep(0)
        return 42

    assert portal.call("last", last) == 42


def test_a_child_forked_while_a_thread_holds_a_lock_does_not_hang(tmp_path: Path) -> None:
    """P1: the lock's owner does not exist in the child."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import os, signal
from taskharbor import Harbor
harbor = Harbor("memory://")
@harbor.task
def work(): ...
locks = [harbor.portal._lock, harbor._session._lock]
for lock in locks:
    lock.acquire()
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    os._exit(0 if work.enqueue().state() == "ready" else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    )
    command = [sys.executable, "-Wignore::DeprecationWarning", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


@virtual
async def test_each_of_many_waiters_for_results_polls_seldom() -> None:
    """X2: a thousand waiters must not keep the store from the workers."""
    world = World()

    @world.harbor.task
    async def work() -> None:
        await asyncio.sleep(0.1)

    jobs = await world.harbor.aenqueue_many([work.step() for _ in range(500)])
    async with world.worker(concurrency=5):
        await asyncio.gather(*(job.aresult() for job in jobs))
    looks = len(world.log.calls("get"))
    assert looks < 500 * 500 / 4


def test_an_option_among_the_arguments_names_its_place() -> None:
    """P1: the most common mistake."""
    harbor = Harbor("memory://")

    @harbor.task(name="shop.work")
    def work(n: int, queue: str = "") -> None: ...

    @harbor.task(name="shop.open_ended")
    def open_ended(**more: str) -> None: ...

    calls: list[tuple[Any, dict[str, Any], str]] = [
        (work, {"n": 1, "delay": 3}, "'delay' is an option of the job, not of the function: write work.using(delay=3)"),
        (work, {"delay": 3}, "write work.using(delay=3)"),
        (work, {"n": "x", "tags": ["a"]}, "write work.using(tags=…)"),
        (work, {"n": 1, "id": "x" * 100}, "write work.using(id=…)"),
        (work, {"n": 1, "queue": 5}, "parameter queue wants str, got int"),
        (
            work,
            {"n": 1, "queue": "x", "priority": 3, "timeout": timedelta(1)},
            "options of the job, not of the function: write work.using(priority=3, timeout=datetime.timedelta(days=1))",
        ),
        (open_ended, {"delay": 3}, "**more wants str, got int; 'delay' is an option of the job"),
    ]
    for task, arguments, says in calls:
        with pytest.raises(WrongArguments, match=rf"^task {task.name}.*{re.escape(says)}"):
            task.enqueue(**arguments)
    with pytest.raises(WrongArguments, match=r"^task shop\.work: 'delay' is an option .*write work\.using\(delay=5\)$"):
        work.step(1).then(work, delay=5)  # type: ignore[call-overload]
    assert open_ended.step(delay="3").options == {}


@virtual
async def test_a_lifespan_that_is_not_a_context_manager_is_refused_with_the_fix() -> None:
    """X5."""
    world = World()

    @world.harbor.lifespan
    def plain() -> None: ...

    with pytest.raises(ConfigError, match="set up, yield, tear down"):
        await world.drain()


def test_a_relative_file_in_pyproject_is_meant_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P, X5: else every folder of a project would get a store of its own."""
    inner = tmp_path / "my project" / "src"
    inner.mkdir(parents=True)
    (tmp_path / "my project" / "pyproject.toml").write_text('[tool.taskharbor]\nurl = "sqlite:///jobs.db"\n')
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    monkeypatch.chdir(inner)
    harbor = Harbor()

    @harbor.task
    def work() -> None: ...

    work.enqueue()
    harbor.close()
    assert store_url(None).endswith("/my%20project/jobs.db")
    assert (tmp_path / "my project" / "jobs.db").exists()
    assert list(inner.iterdir()) == []


@virtual
async def test_killed_workers_are_forgotten_later() -> None:
    """D13: they cannot say farewell."""
    world = World()
    long_ago = world.clock() - timedelta(hours=2)
    dead = WorkerRecord(
        id="dead", host="h", pid=1, queues=("q",), slots=1, busy=0, started_at=long_ago, seen_at=long_ago
    )
    await world.memory.beat(dead)
    async with world.worker() as worker:
        await asyncio.sleep(15)
        known = await world.memory.workers(datetime.min.replace(tzinfo=UTC))
    assert [each.id for each in known] == [worker.id]


@virtual
async def test_lines_about_a_jobs_end_carry_its_id(caplog: pytest.LogCaptureFixture) -> None:
    """A worker's own lines are found by the job's id, like those of its handler."""
    caplog.handler.addFilter(JobFilter())
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    with caplog.at_level(logging.INFO, logger="taskharbor.worker"):
        job = await work.aenqueue()
        await world.drain()
    [line] = [record for record in caplog.records if "job.succeeded" in record.getMessage()]
    assert (line.__dict__["job_id"], line.__dict__["task"], line.__dict__["attempt"]) == (job.id, work.name, 1)


@virtual
async def test_a_task_cancelled_before_its_first_step_gives_its_job_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F11, G1: such a job is not held for ever. From Python 3.12 on, tasks take their first step at once."""
    monkeypatch.setattr("taskharbor.worker.starter.new_task", asyncio.Task)
    world = World()
    runs = 0

    @world.harbor.task
    async def work() -> None:
        nonlocal runs
        runs += 1

    job = await work.aenqueue()

    async def meddle() -> None:
        while not meddled:
            meddled.extend(task.cancel() for task in asyncio.all_tasks() if task.get_name() == job.id)
            await asyncio.sleep(0)

    meddled: list[bool] = []
    meddling = asyncio.create_task(meddle())
    async with world.worker(concurrency=1):
        await job.aresult(timeout=60)
    meddling.cancel()
    assert (meddled, runs) == ([True], 1)
    assert (await world.record(job)).attempts == 0


@virtual
async def test_an_error_while_successes_are_decided_loses_none_of_them() -> None:
    """X3: such as a clock that fails once; what had ended is settled in the next round."""
    world = World()
    broken = 0

    @world.harbor.task
    async def work() -> None: ...

    jobs = await world.harbor.aenqueue_many([work.step() for _ in range(3)])
    async with world.worker() as worker:
        now = worker._pipeline._decider._now

        def failing() -> datetime:
            nonlocal broken
            broken += 1
            if broken == 1:
                raise RuntimeError("the clock is broken")
            return now()

        worker._pipeline._decider._now = failing
        await asyncio.gather(*(job.aresult(timeout=60) for job in jobs))
    assert broken > 1
    assert {(await world.record(job)).version for job in jobs} == {1}


@pytest.mark.parametrize("kind", ["slots", "equal"])
def test_a_driver_of_any_make_can_be_used(kind: str) -> None:
    """D13: one that cannot be hashed or referred to weakly has its capabilities all the same."""

    class Slotted(MemoryDriver):
        __slots__ = ()

    class Equal(MemoryDriver):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    driver: Any = Slotted() if kind == "slots" else Equal()
    assert (offered(driver, Inspect), capability(driver, WaitForWork)) == (driver, driver)


def test_a_store_that_stands_in_does_so_for_threads_too(tmp_path: Path) -> None:
    """X5: a test never writes to the real store, wherever its code enqueues from."""
    harbor = Harbor(f"sqlite:///{tmp_path}/real.db")

    @harbor.task
    def work() -> None: ...

    async def main() -> int:
        async with harbor.stand_in("memory://"):
            thread = threading.Thread(target=work.enqueue)
            thread.start()
            await asyncio.to_thread(thread.join)
            await asyncio.get_running_loop().run_in_executor(None, work.enqueue)
            await work.aenqueue()
            return await harbor.adrain()

    assert asyncio.run(main()) == 3
    assert not (tmp_path / "real.db").exists()
