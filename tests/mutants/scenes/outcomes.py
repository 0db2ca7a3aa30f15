"""Outcomes: each is written once and means what the contract says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any

from taskharbor import Job, Retry, RetryAfter, Snooze, Unrecoverable, current
from taskharbor.core.job import NewJob
from taskharbor.core.transition import Ack
from taskharbor.driver import Group
from taskharbor.testing import LostReply, LostRequest, Wrapper, script
from world import World, time, until

from .stage import ENOUGH, Stage, ended, scene


@scene
async def a_lost_reply_of_a_settle_is_asked_for_again() -> None:
    """X3, D8: an unknown outcome becomes known; one run, counted once."""
    world = World(lambda inner: LostReply(inner, script("settle")))

    @world.harbor.task
    async def work() -> str:
        return "done"

    job = await work.aenqueue()
    async with world.worker() as worker:
        assert await job.aresult() == "done"
        await until(lambda: worker.finished)
        await asyncio.sleep(5)
        assert worker.finished == 1
        assert worker._keeper._held == {}
    assert (await world.record(job)).version == 1


@scene
async def a_lost_request_of_a_settle_changes_no_decision() -> None:
    """X3, F1: however often an outcome has to be sent, it is the same one."""
    world = World(lambda inner: LostRequest(inner, script(*["settle"] * 5)), retry=Retry.fixed(1))
    runs = 0

    @world.harbor.task(max_attempts=3)
    async def bad() -> None:
        nonlocal runs
        runs += 1
        raise ValueError

    job = await bad.aenqueue()
    async with world.worker():
        (dead,) = await ended(world, job)
    assert (runs, dead.attempts, len(dead.failures)) == (3, 3, 3)


class Picky(Wrapper):
    """Cannot take the outcome of one job."""

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Any]) -> Any:
        if verb == "settle" and any(isinstance(to, Ack) and to.result == b"13" for to in arguments["transitions"]):
            raise ValueError("odd")
        return await call()


@scene
async def one_outcome_that_cannot_be_stored_delays_no_other() -> None:
    """F7: its neighbours in the flush are settled."""
    world = World(Picky)

    @world.harbor.task
    async def work(number: int) -> int:
        return number

    jobs = await world.harbor.aenqueue_many(work.step(number) for number in range(11, 16))
    async with world.worker() as worker:
        await until(lambda: worker.finished == 4)
    assert [await world.state(job) for job in jobs] == ["done", "done", "inflight", "done", "done"]


@scene
async def a_failing_job_is_retried_and_dead_lettered() -> None:
    """F1, F3, F10: as often as allowed, with a history, each time after the delay of its own policy."""
    world = World(retry=Retry.fixed(500))
    starts: list[float] = []

    @world.harbor.task(max_attempts=3, retry=Retry.fixed(60))
    async def bad() -> None:
        starts.append(time())
        assert current().attempt == len(starts)
        raise Unrecoverable("enough") if len(starts) == ENOUGH else ValueError("no")

    job = await bad.aenqueue()
    async with world.worker():
        (dead,) = await ended(world, job, limit=300)
    assert [round(after - before, 3) for before, after in pairwise(starts)] == [60, 60]
    assert (dead.state, dead.dlq_reason, dead.attempts) == ("dlq", "max_attempts", 3)
    assert [failure.attempt for failure in dead.failures] == [1, 2, 3]
    assert dead.last_error == "ValueError: no"


@scene
async def unlimited_attempts_have_no_end() -> None:
    """F3: None."""
    world, runs = World(retry=Retry.fixed(1)), 0

    @world.harbor.task(max_attempts=None)
    async def bad() -> None:
        nonlocal runs
        runs += 1
        raise Unrecoverable("enough") if runs == ENOUGH else ValueError

    job = await bad.aenqueue()
    async with world.worker():
        await ended(world, job)
    assert runs == ENOUGH


@scene
async def delays_grow_to_their_cap() -> None:
    """F2: base times multiplier to the power of the failures before, never above the cap."""
    world = World()
    starts: list[float] = []

    @world.harbor.task(max_attempts=5, retry=Retry(base=10, multiplier=2, cap=35, jitter=False))
    async def bad() -> None:
        starts.append(time())
        raise ValueError

    job = await bad.aenqueue()
    async with world.worker():
        await ended(world, job)
    assert [round(after - before, 3) for before, after in pairwise(starts)] == [10, 20, 35, 35]


@scene
async def delays_are_drawn_from_the_whole_range() -> None:
    """F2: full jitter, from zero to the ceiling and never beyond."""
    world = World()
    delays: list[float] = []

    @world.harbor.task(max_attempts=None, retry=Retry(base=10, cap=10))
    async def bad() -> None:
        failed_at = current().record.failed_at
        if failed_at is not None:
            delays.append((world.clock() - failed_at).total_seconds())
        raise Unrecoverable("enough") if len(delays) == ENOUGH else ValueError

    job = await bad.aenqueue()
    async with world.worker():
        await ended(world, job)
    assert max(delays) <= 10.001
    assert min(delays) < 2 < 8 < max(delays)


@scene
async def signals_of_a_handler_take_effect() -> None:
    """F4: Snooze counts nothing, RetryAfter counts and chooses its delay, Unrecoverable ends it at once."""
    world = World(retry=Retry.fixed(1))
    runs: dict[str, list[float]] = {}

    def first(error: Exception, **options: Any) -> Any:
        async def handler() -> None:
            mine = runs.setdefault(type(error).__name__, [])
            mine.append(time())
            if len(mine) == 1:
                raise error

        return world.harbor.task(name=type(error).__name__, **options)(handler)

    tasks = [first(Snooze(10)), first(RetryAfter(20)), first(Unrecoverable("no"))]
    jobs = [await task.aenqueue() for task in tasks]
    async with world.worker():
        snoozed, later, dead = await ended(world, *jobs)
    assert {name: [round(each, 3) for each in mine] for name, mine in runs.items()} == {
        "Snooze": [0, 10],
        "RetryAfter": [0, 20],
        "Unrecoverable": [0],
    }
    assert (snoozed.attempts, later.attempts, dead.attempts) == (0, 1, 1)
    assert (dead.state, dead.dlq_reason) == ("dlq", "unrecoverable")


@scene
async def a_policy_says_what_is_worth_a_retry() -> None:
    """F4: retry_on and give_up_on."""
    world = World()
    runs = 0

    @world.harbor.task(retry=Retry(give_up_on=(KeyError,)))
    async def bad() -> None:
        nonlocal runs
        runs += 1
        raise KeyError

    job = await bad.aenqueue()
    async with world.worker():
        (dead,) = await ended(world, job)
    assert (runs, dead.dlq_reason) == (1, "gave_up")


@scene
async def a_timeout_ends_the_run_and_counts() -> None:
    """F5: a failure like others."""
    world = World(retry=Retry.fixed(1))
    ends: list[float] = []

    @world.harbor.task(timeout=5, max_attempts=2)
    async def slow() -> None:
        if len(ends) == ENOUGH:
            raise Unrecoverable
        try:
            await asyncio.sleep(100)
        finally:
            ends.append(round(time(), 3))

    job = await slow.aenqueue()
    async with world.worker():
        (dead,) = await ended(world, job)
    assert ends == [5, 11]
    assert (dead.state, dead.attempts) == ("dlq", 2)


@scene
async def a_handler_that_ignores_its_timeout_is_waited_for() -> None:
    """F5: slot and lease are kept until it really ends; what it returns then does not count."""
    world, stage = World(retry=Retry.fixed(1)), Stage()

    @world.harbor.task(timeout=1, max_attempts=2)
    async def stubborn() -> str:
        end = time() + 40
        stage.met += [current().id] if current().id in stage.on else []
        stage.on.append(current().id)
        while time() < end:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(end - time())
        stage.on.remove(current().id)
        return "too late"

    job = await stubborn.aenqueue()
    async with world.worker(concurrency=1), world.worker(concurrency=1):
        (dead,) = await ended(world, job)
        await asyncio.sleep(50)
    assert stage.met == []
    assert (dead.state, dead.version, dead.result) == ("dlq", 2, None)


@scene
async def an_overrun_is_reported_at_once() -> None:
    """F5: `health` counts it by the report of its worker."""
    world = World()

    @world.harbor.task(timeout=1)
    async def stubborn() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        await asyncio.sleep(3)

    async with world.worker():
        await stubborn.aenqueue()
        await asyncio.sleep(2)
        (seen,) = await world.memory.workers(world.clock() - timedelta(minutes=1))
        assert (seen.busy, seen.overruns) == (1, 1)
        await asyncio.sleep(3)


@scene
async def a_stray_cancellation_is_a_failure() -> None:
    """F11: it was not requested."""
    world, runs = World(retry=Retry.fixed(1)), 0

    @world.harbor.task(max_attempts=2)
    async def odd() -> None:
        nonlocal runs
        runs += 1
        raise Unrecoverable if runs == ENOUGH else asyncio.CancelledError

    job = await odd.aenqueue()
    async with world.worker():
        (dead,) = await ended(world, job)
    assert (runs, dead.attempts) == (2, 2)


@scene
async def a_payload_that_does_not_fit_is_dead_lettered_at_once() -> None:
    """F9: no retry storm."""
    world = World()

    @world.harbor.task(name="t")
    async def takes(number: int) -> None: ...

    odd = NewJob(id="j", type="t", queue="default", payload=b'{"v": 1, "args": {"number": "four"}}')
    await world.memory.enqueue([Group(jobs=(odd,))], world.clock())
    async with world.worker():
        await asyncio.sleep(30)
    dead = await world.record("j")
    assert (dead.state, dead.dlq_reason, dead.version) == ("dlq", "undecodable", 1)


@scene
async def a_job_that_kills_its_workers_is_dead_lettered() -> None:
    """F6: after max_crashes, and not before."""
    world = World(max_crashes=3)
    ran: list[str] = []

    @world.harbor.task
    async def deadly(name: str) -> None:
        ran.append(name)

    async def crash(job: Job[Any], times: int) -> None:
        for _ in range(times):
            await world.memory.reserve([], world.clock(), timedelta(seconds=5), 1, "victim", [job.id])
            await asyncio.sleep(6)

    worse, bad = await deadly.aenqueue("worse"), await deadly.aenqueue("bad")
    await crash(worse, 3)
    await crash(bad, 2)
    async with world.worker():
        dead, done = await ended(world, worse, bad)
    assert ran == ["bad"]
    assert (dead.dlq_reason, dead.crashes, dead.attempts) == ("crash_loop", 3, 0)
    assert done.state == "done"


@scene
async def a_deploy_between_two_crashes_ends_no_row() -> None:
    """F6: a release counts neither way."""
    world = World(max_crashes=2)

    @world.harbor.task
    async def deadly() -> None:
        await asyncio.sleep(1000)

    async def crash() -> None:
        await world.memory.reserve(["default"], world.clock(), timedelta(seconds=5), 1, "victim")
        await asyncio.sleep(6)

    job = await deadly.aenqueue()
    await crash()
    async with world.worker(grace=0):
        await asyncio.sleep(1)
    await crash()
    async with world.worker(grace=0):
        await asyncio.sleep(1)
    assert (await world.record(job)).dlq_reason == "crash_loop"


async def crashed_twice(world: World, *jobs: Job[Any]) -> None:
    """Two workers in a row died of these jobs."""
    ids = [job.id for job in jobs]
    for _ in range(2):
        assert await world.memory.reserve([], world.clock(), timedelta(seconds=5), len(ids), "victim", ids)
        await asyncio.sleep(6)


@scene
async def a_suspect_runs_alone() -> None:
    """F6b: from its second crash in a row on; its neighbours run before and after it, and all of them end."""
    world = World()
    on: list[str] = []
    seen: list[list[str]] = []

    @world.harbor.task
    async def work(name: str) -> None:
        on.append(name)
        seen.append(list(on))
        await asyncio.sleep(2)
        on.remove(name)

    suspect = await work.aenqueue("suspect")
    await crashed_twice(world, suspect)
    others = await world.harbor.aenqueue_many(work.step(f"other {number}") for number in range(8))
    async with world.worker(concurrency=4):
        await asyncio.sleep(0.5)
        late = await world.harbor.aenqueue_many(work.step(f"late {number}") for number in range(4))
        await ended(world, suspect, *others, *late, limit=100)
    assert [names for names in seen if "suspect" in names] == [["suspect"]]


@scene
async def slots_do_not_stay_empty_for_a_suspect() -> None:
    """F6b, F7: when what runs takes long, the suspect is put off and the others go on."""
    world = World()

    @world.harbor.task
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    suspect = await work.aenqueue(1)
    await crashed_twice(world, suspect)
    long = await work.aenqueue(200)
    async with world.worker(concurrency=2):
        await asyncio.sleep(1)
        quick = await world.harbor.aenqueue_many(work.step(1) for _ in range(5))
        await ended(world, *quick, limit=60)
        await ended(world, long, suspect, limit=300)


@scene
async def an_unknown_task_waits_for_a_deploy() -> None:
    """F8: put back with a growing delay, without an attempt."""
    world = World()
    await world.harbor.aenqueue_many([world.harbor.step("shop.later", {"number": 4})])
    (id,) = world.memory._store.jobs
    async with world.worker():
        await asyncio.sleep(20)
    record = await world.record(id)
    assert (record.state, record.attempts, record.unknown_put_backs) == ("ready", 0, 5)
    waits = [batch[0].run_at for batch in world.settled()]
    gaps = [round((after - before).total_seconds()) for before, after in pairwise(waits)]
    assert gaps == [2, 4, 8, 16]


@scene
async def a_task_that_stays_unknown_is_dead_lettered() -> None:
    """F8: after a bound of put-backs."""
    world = World()
    await world.harbor.aenqueue_many([world.harbor.step("shop.never", {})])
    (id,) = world.memory._store.jobs
    async with world.worker():
        await until(lambda: world.memory._store.jobs[id].completed_at, 1, 1790)
    dead = await world.record(id)
    assert (dead.dlq_reason, dead.attempts) == ("unknown_task", 0)


@scene
async def a_child_comes_with_its_parents_success() -> None:
    """D9: in the same step as the Ack, and only then."""
    world = World(retry=Retry.fixed(1))

    @world.harbor.task
    async def child() -> None: ...

    @world.harbor.task(max_attempts=2)
    async def parent(good: bool) -> None:
        current().enqueue(child.using(queue="later").step())
        if not good:
            raise ValueError

    jobs = await world.harbor.aenqueue_many([parent.step(True), parent.step(False)])
    async with world.worker("default"):
        await ended(world, *jobs)
    born = [record.headers["parent_id"] for record in world.memory._store.jobs.values() if record.queue == "later"]
    assert born == [jobs[0].id]
