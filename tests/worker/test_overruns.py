"""Runs past their timeout (F5): reported when it happens, and a timeout however they end."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from itertools import combinations_with_replacement, pairwise
from random import Random
from typing import Any

import pytest

from taskharbor import Harbor, Retry, Snooze, Unrecoverable, current
from taskharbor.core.shown import overrun_since
from taskharbor.driver import WorkerRecord
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing import Wrapper
from taskharbor.worker.queue_weights import QueueWeights
from world import World, time, until, virtual


def block(seconds: float) -> None:
    """Let time pass without giving anything else a turn, as code that blocks the loop does."""
    loop: Any = asyncio.get_running_loop()
    loop._now += seconds


async def ignore(seconds: float) -> None:
    """Go on for so long, despite cancellation."""
    end = time() + seconds
    while time() < end:
        try:
            await asyncio.sleep(end - time())
        except asyncio.CancelledError:
            continue


ENDS = {"returns": None, "raises": ValueError("no"), "gives up": Unrecoverable("no"), "snoozes": Snooze(1)}


@pytest.mark.parametrize("how", ENDS)
@virtual
async def test_a_handler_that_blocked_past_its_timeout_timed_out(how: str) -> None:
    """F5: `def` and `async def`, whatever it returns or raises after that; the result is discarded."""
    world = World()

    def end() -> str:
        block(10)
        if (error := ENDS[how]) is not None:
            raise error
        return "late"

    @world.harbor.task(name="plain", timeout=5, max_attempts=1)
    def plain() -> str:
        return end()

    @world.harbor.task(name="async", timeout=5, max_attempts=1)
    async def coroutine() -> str:
        return end()

    jobs = [await plain.aenqueue(), await coroutine.aenqueue()]
    async with world.worker(concurrency=1) as worker:
        await until(lambda: worker.finished == 2)
    for job in jobs:
        record = await world.record(job)
        assert (record.state, record.attempts, record.result) == ("dlq", 1, None)
        assert record.last_error == "TimeoutError: timed out after 5 s"


@virtual
async def test_a_handler_that_blocked_for_less_than_its_timeout_succeeds() -> None:
    """F5: the clock decides, and nothing else."""
    world = World()

    @world.harbor.task(timeout=5)
    async def work() -> str:
        block(4.9)
        return "in time"

    assert await world.drain() == 0
    job = await work.aenqueue()
    await world.drain()
    assert await job.aresult() == "in time"


async def overrun_for_14_seconds(world: World, lease: float) -> None:
    """Run a job that goes on after its timeout, and stop the worker before it ends."""

    @world.harbor.task(timeout=5)
    async def stubborn() -> None:
        await ignore(20)

    await stubborn.aenqueue()
    async with world.worker(lease=lease):
        await asyncio.sleep(19)


@pytest.mark.parametrize("lease", [0.3, 1.0, 5.0])
@virtual
async def test_an_overrun_is_logged_under_short_leases_too(lease: float, caplog: pytest.LogCaptureFixture) -> None:
    """F5: also where every look of the keeper is a renewal."""
    await overrun_for_14_seconds(World(), lease)
    assert [getattr(it, "event", "") for it in caplog.records].count("job.overrun") == 1


@virtual
async def test_an_overrun_is_logged_once_and_shown_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    """F5: `job.overrun` in the log, the number in the worker's report, and the record shows since when."""
    world = World(retry=Retry.fixed(100))

    @world.harbor.task(timeout=5)
    async def stubborn() -> None:
        await ignore(30)

    @world.harbor.task(timeout=5, max_attempts=1)
    async def obedient() -> None:
        await asyncio.sleep(30)

    job = await stubborn.aenqueue()
    await obedient.aenqueue()
    async with world.worker():
        await asyncio.sleep(4)
        assert overrun_since(await world.record(job), world.clock()) is None
        await asyncio.sleep(2)
        (seen,) = await world.memory.workers(world.clock() - timedelta(minutes=1))
        assert seen.overruns == 1
        await asyncio.sleep(18)
        record = await world.record(job)
        assert record.started_at is not None
        assert overrun_since(record, world.clock()) == record.started_at + timedelta(seconds=5)
        (seen,) = await world.memory.workers(world.clock() - timedelta(minutes=1))
        assert (seen.busy, seen.overruns) == (1, 1)
        await asyncio.sleep(20)
        (seen,) = await world.memory.workers(world.clock() - timedelta(minutes=1))
        assert seen.overruns == 0
    told: list[Any] = [it for it in caplog.records if getattr(it, "event", "") == "job.overrun"]
    assert [(it.levelname, it.job_id) for it in told] == [("WARNING", job.id)]
    stack = told[0].exc_text.splitlines()
    assert (stack[0], stack[2].strip()) == ("Stack (most recent call last):", "await ignore(30)")
    assert "await asyncio.sleep(end - time())" in told[0].exc_text
    assert "executor.py" not in told[0].exc_text
    record = await world.record(job)
    assert (record.state, record.attempts, record.last_error) == ("ready", 1, "TimeoutError: timed out after 5 s")


def test_an_overrun_that_blocks_the_loop_is_reported() -> None:
    """F5: by the keeper, because the loop that reports the worker otherwise stands still."""
    reported, release = threading.Event(), threading.Event()

    class Store(MemoryDriver):
        async def beat(self, worker: WorkerRecord) -> None:
            if worker.overruns:
                reported.set()

    harbor = Harbor(driver=Store())

    @harbor.task(timeout=0.05)
    async def blocks() -> None:
        release.wait(30)

    with harbor.worker():
        blocks.enqueue()
        seen = reported.wait(30)
        release.set()
    assert seen


class NeverReported(Wrapper):
    """A store that does not answer the report of a worker with an overrun, and confirms claims late."""

    late = 0.0

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Any]) -> Any:
        if verb == "beat" and arguments["worker"].overruns:
            await asyncio.Event().wait()
        result = await call()
        if verb == "reserve" and result:
            await asyncio.sleep(self.late)
        return result


@pytest.mark.parametrize("lease", [0.1, 0.3, 0.5, 1.0, 2.0, 30.0])
@virtual
async def test_a_report_without_an_answer_costs_no_lease(lease: float, caplog: pytest.LogCaptureFixture) -> None:
    """F5, L2: the report of an overrun gives way to the next renewal."""
    world = World(NeverReported)
    await overrun_for_14_seconds(world, lease)
    renewals = [call["now"] for call in world.log.calls("extend_lease")]
    assert max(later - earlier for earlier, later in pairwise(renewals)) <= timedelta(seconds=lease / 3 + 0.01)
    assert "lease.lost" not in [getattr(it, "event", "") for it in caplog.records]


@virtual
async def test_a_report_gives_way_to_a_lease_with_little_time_left() -> None:
    """F5, L2: its lease has 0.2 s left when it arrives, and is renewed at once."""
    world = World(NeverReported, store_timeout=100)
    versions: list[int] = []

    @world.harbor.task(timeout=31)
    async def stubborn() -> None:
        await ignore(60)

    @world.harbor.task
    async def hurried() -> None:
        versions.append(current().lease_version)
        await asyncio.sleep(5)

    await stubborn.aenqueue()
    async with world.worker(lease=30):
        await asyncio.sleep(1.75)
        world.store.late = 29.8
        job = await hurried.aenqueue()
        await until(lambda: bool(versions), 0.01, 40)
        world.store.late = 0.0
        await job.aresult()
    assert versions == [1]


@virtual
async def test_a_worker_reports_queues_that_overruns_have_stuck() -> None:
    """F5, D13: a queue may not take the slot that is kept for another one."""
    world = World()

    @world.harbor.task(queue="a", timeout=5)
    async def stubborn() -> None:
        await ignore(30)

    await world.harbor.aenqueue_many(stubborn.step() for _ in range(3))
    async with world.worker("a", "b", concurrency=3):
        await asyncio.sleep(20)
        (seen,) = await world.memory.workers(world.clock() - timedelta(minutes=1))
        assert (seen.overruns, seen.stuck) == (2, ("a",))
    async with world.worker("a", "b", concurrency=1):
        await asyncio.sleep(20)
        (seen,) = await world.memory.workers(world.clock() - timedelta(minutes=1))
        assert (seen.overruns, seen.stuck) == (1, ("a", "b"))


@pytest.mark.parametrize("slots", range(1, 6))
def test_queues_can_be_stuck_together(slots: int) -> None:
    """F5, D13: a queue is stuck if a worker whose only runs are these overruns never claims from it."""
    assert QueueWeights(list("ABC"), 4, Random(1)).stuck(["A", "B", "B"]) == ("A", "B")
    for number in range(1, 5):
        queues = QueueWeights(list("ABCD"[:number]), slots, Random(1))
        for count in range(slots + 1):
            for overruns in combinations_with_replacement(queues.names, count):
                claim = queues.claim(slots - count, overruns)
                claimed = set(claim.queues) if claim.limit else set()
                assert set(queues.stuck(overruns)) == set(queues.names) - claimed, (queues.names, overruns)


@virtual
async def test_a_stop_while_a_run_is_past_its_timeout_counts_the_timeout() -> None:
    """F5, X6: the run goes on in this process, so its retry comes when its lease would have run out."""
    world = World(retry=Retry.fixed(0))

    @world.harbor.task(timeout=5)
    async def stubborn() -> None:
        await ignore(200)

    job = await stubborn.aenqueue()
    async with world.worker(grace=1, lease=30):
        await asyncio.sleep(9)
    record = await world.record(job)
    assert (record.state, record.attempts, record.crashes) == ("ready", 1, 0)
    assert record.last_error == "TimeoutError: timed out after 5 s"
    assert timedelta(seconds=20) < record.due_at - world.clock() <= timedelta(seconds=30)
    await asyncio.sleep(200)
    assert (await world.record(job)) == record  # what the abandoned run comes to changes nothing


@virtual
async def test_a_process_that_ends_hands_an_overrun_back_as_a_timeout() -> None:
    """F5, X6: today's deploy counts; what is within its timeout goes back as if nothing had happened."""
    world = World(retry=Retry.fixed(3))

    @world.harbor.task(max_attempts=2)
    async def stubborn() -> None:
        await ignore(500)

    late, early = await stubborn.using(timeout=5).aenqueue(), await stubborn.using(timeout=50).aenqueue()
    async with world.harbor._launcher._lived() as worker_of:
        worker = worker_of(world.harbor._launcher._options(None, threads=False, grace=1))
        worker.start()
        await asyncio.sleep(9)
        worker.begin_stop()
        worker.begin_stop()
        await worker.stop(hold_abandoned=True)
        await worker.give_back_abandoned()
    record = await world.record(late)
    assert (record.state, record.attempts, record.last_error) == ("ready", 1, "TimeoutError: timed out after 5 s")
    assert record.due_at - world.clock() == timedelta(seconds=3)
    record = await world.record(early)
    assert (record.state, record.attempts, record.last_error) == ("ready", 0, None)
    assert record.due_at - world.clock() == timedelta(seconds=1)
    await asyncio.sleep(500)


@virtual
async def test_a_cancelled_run_past_its_timeout_is_cancelled_when_it_obeys() -> None:
    """F5, T3: it needs no retry; if it returns after all, that is a timeout, which ends cancelled as well."""
    world = World()

    @world.harbor.task(timeout=20)
    async def obeys() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            block(30)

    @world.harbor.task(timeout=20)
    async def returns() -> str:
        await ignore(50)
        return "late"

    jobs: list[Any] = [await obeys.aenqueue(), await returns.aenqueue()]
    async with world.worker():
        await asyncio.sleep(1)
        for job in jobs:
            await job.acancel()
        await asyncio.sleep(90)
    assert [await world.state(job) for job in jobs] == ["cancelled", "cancelled"]


def eager(body: Coroutine[Any, Any, None], *, loop: asyncio.AbstractEventLoop, name: str) -> asyncio.Task[None]:
    """A task as from Python 3.12 on: it takes its first step, here its only one, before it is known."""
    with suppress(StopIteration):
        body.send(None)
    return loop.create_task(asyncio.sleep(0), name=name)


@pytest.mark.parametrize("blocks", ["thread", "loop", "loop, in its first step"])
def test_the_log_shows_where_an_overrun_hangs(
    blocks: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5: the stack of its thread, a `def` handler's or the blocked loop's; bounded."""
    if blocks == "loop, in its first step":
        monkeypatch.setattr("taskharbor.worker.starter.EAGER", True)
        monkeypatch.setattr("taskharbor.worker.starter.new_task", eager)
    harbor = Harbor("memory://")
    logged = threading.Event()

    def notice(record: logging.LogRecord) -> bool:
        if getattr(record, "event", "") == "job.overrun":
            logged.set()
        return True

    def deeper(levels: int) -> None:
        if levels:
            deeper(levels - 1)
        else:
            assert logged.wait(30)

    @harbor.task(name="thread", timeout=0.01)
    def in_thread() -> None:
        deeper(200)

    @harbor.task(name="loop", timeout=0.01)
    async def on_loop() -> None:
        deeper(200)

    job = (in_thread if blocks == "thread" else on_loop).enqueue()
    caplog.handler.addFilter(notice)
    try:
        with harbor.worker():
            assert logged.wait(30)
    finally:
        caplog.handler.removeFilter(notice)
    harbor.close()
    (told,) = [it for it in caplog.records if getattr(it, "event", "") == "job.overrun"]
    stack = told.exc_text or ""
    assert "in deeper" in stack
    assert "assert logged.wait(30)" in stack
    assert len(stack) <= 4096
    assert job.id in told.getMessage()


@virtual
async def test_a_thread_that_has_ended_is_not_an_overrun(caplog: pytest.LogCaptureFixture) -> None:
    """F5: a loop that is blocked has not taken its result yet, and the log does not say that it still runs."""
    world = World()

    @world.harbor.task(timeout=5)
    async def ends() -> None:
        run = current()._run
        run.returned_at = time() + 4
        await ignore(20)
        run.returned_at = math.inf  # as when the loop takes the result

    job = await ends.aenqueue()
    async with world.worker() as worker:
        await until(lambda: worker.finished == 1)
    assert (await world.record(job)).last_error == "TimeoutError: timed out after 5 s"
    assert "job.overrun" not in caplog.text
