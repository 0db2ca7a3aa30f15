"""A job from outside: its state, its result, its cancellation."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, Retry, Unrecoverable, chain, current, group
from taskharbor.client.client import WARN_AFTER
from taskharbor.errors import DriverUnavailable, InvalidJob, JobCancelled, JobFailed, JobNotFound
from taskharbor.testing import LostRequest, Outage
from worker.test_waiting import NoHints
from world import World, time, until, virtual


@dataclass
class Receipt:
    """A result with a type."""

    number: int
    at: datetime


@virtual
async def test_a_result_comes_back_in_its_type_the_moment_it_is_there() -> None:
    """P3."""
    world = World()

    @world.harbor.task
    async def pay() -> Receipt:
        await asyncio.sleep(40)
        return Receipt(7, datetime(2026, 1, 1, tzinfo=UTC))

    @world.harbor.task
    async def nothing() -> None: ...

    async with world.worker():
        job = await pay.aenqueue()
        assert await job.aresult() == Receipt(7, datetime(2026, 1, 1, tzinfo=UTC))
        assert time() == pytest.approx(40)
        assert await job.aresult(timeout=0) == Receipt(7, datetime(2026, 1, 1, tzinfo=UTC))
        empty: object = await world.harbor.job((await nothing.aenqueue()).id).aresult()
        assert empty is None
        assert await world.harbor.job(job.id).aresult() == {"number": 7, "at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("timeout", [None, 3600])
@virtual
async def test_waiting_for_a_result_does_not_poll_busily(timeout: float | None) -> None:
    """P: a look per hint, or every five seconds."""
    world = World()

    @world.harbor.task
    async def slow() -> str:
        await asyncio.sleep(1000)
        return "done"

    job = await slow.aenqueue()
    async with world.worker():
        before = len(world.log.calls("get"))
        assert await job.aresult(timeout) == "done"
    assert len(world.log.calls("get")) - before <= 1000 / 5 + 5


@virtual
async def test_without_hints_looking_for_a_result_backs_off() -> None:
    world = World(NoHints)

    @world.harbor.task
    async def slow() -> str:
        await asyncio.sleep(300)
        return "done"

    job = await slow.aenqueue()
    async with world.worker():
        assert await job.aresult() == "done"
    assert len(world.log.calls("get")) < 300 / 5 + 25


@virtual
async def test_hints_that_fail_do_not_fail_the_wait() -> None:
    """D13: hints may be missing."""
    world = World(lambda inner: LostRequest(inner, lambda verb: verb == "wait_for_end"))

    @world.harbor.task
    async def slow() -> str:
        await asyncio.sleep(20)
        return "done"

    job = await slow.aenqueue()
    async with world.worker():
        assert await job.aresult(timeout=60) == "done"


@virtual
async def test_a_wait_ends_at_its_timeout() -> None:
    """P: and the error names the state that is shown, not the one that is stored."""
    world = World()

    @world.harbor.task
    async def never() -> None: ...

    job = await never.aenqueue()
    for timeout in (0, 0.5, 12):
        asked = time()
        with pytest.raises(TimeoutError, match=f"is ready and has no result after {timeout:g} s"):
            await job.aresult(timeout)
        assert time() - asked == pytest.approx(timeout, abs=0.01)
    later = await never.using(delay=60).aenqueue()
    with pytest.raises(TimeoutError, match="is scheduled and has no result after 1 s"):
        await later.aresult(1)


@pytest.mark.parametrize("flow", [False, True])
@virtual
async def test_a_timeout_is_seconds_or_a_timedelta(flow: bool) -> None:
    """P, X5: as every length of time; one that has passed already does not wait, and other values are refused."""
    world = World()

    @world.harbor.task
    async def never() -> None: ...

    waiting = await never.step().aenqueue() if flow else await never.aenqueue()
    for timeout, waited in ((timedelta(seconds=2), 2), (-1, 0), (timedelta(seconds=-1), 0)):
        asked = time()
        with pytest.raises(TimeoutError, match="no worker listens"):
            await waiting.aresult(timeout)
        assert time() - asked == pytest.approx(waited, abs=0.01)
    wrong: list[Any] = ["10", True, float("nan"), [1]]
    for odd in wrong:
        with pytest.raises(InvalidJob, match="timeout must be seconds or a timedelta, not"):
            await waiting.aresult(odd)


@virtual
async def test_a_wait_outlasts_a_restart_of_the_store() -> None:
    """X2: a store that is back within `store_timeout` costs the caller nothing."""
    world = World(Outage, store_timeout=10)

    @world.harbor.task
    async def slow() -> str:
        await asyncio.sleep(1)
        return "done"

    async with world.worker():
        for timeout in (None, 60):
            job = await slow.aenqueue()
            waiting = asyncio.ensure_future(job.aresult(timeout))
            await asyncio.sleep(0.5)
            world.store.down = True
            await asyncio.sleep(5)
            world.store.down = False
            assert await waiting == "done"


@pytest.mark.parametrize(("timeout", "ends_after"), [(None, 10), (60, 10), (4, 4), (0, 0)])
@virtual
async def test_a_wait_for_a_store_that_stays_away_is_bounded(timeout: float | None, ends_after: float) -> None:
    """X2: by `store_timeout`, and by the caller's own timeout."""
    world = World(Outage, store_timeout=10)

    @world.harbor.task
    async def never() -> None: ...

    job = await never.aenqueue()
    world.store.down = True
    asked = time()
    with pytest.raises(DriverUnavailable, match="down"):
        await job.aresult(timeout)
    assert time() - asked == pytest.approx(ends_after, abs=0.1)


@virtual
async def test_a_timeout_says_why_the_job_is_put_off(caplog: pytest.LogCaptureFixture) -> None:
    """P: no worker knows the task, which is warned about, too; or the job failed and waits for a retry."""
    world = World()

    @world.harbor.task(max_attempts=3, retry=Retry.fixed(600))
    async def broken() -> None:
        raise ValueError("still broken")

    async with world.worker():
        failed, unknown = await broken.aenqueue(), await world.harbor.aenqueue("shop.unknown", {})
        with pytest.raises(TimeoutError, match=r"failed 1 of 3 times; the next try is in \d+ min: ValueError: still"):
            await failed.aresult(8)
        with pytest.raises(TimeoutError, match=r": no worker that claimed it knows the task shop.unknown \(put back"):
            await unknown.aresult(8)
    told = [message for message in caplog.messages if "result.waiting" in message]
    assert [message.partition(" has no result yet: ")[2].partition(" (")[0] for message in told] == [
        "no worker that claimed it knows the task shop.unknown"
    ]


@virtual
async def test_a_wait_in_vain_says_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    """P: after some seconds, once per queue and minute, for a job and for a flow; a timeout's error has it, too."""
    world = World()

    @world.harbor.task(queue="mail")
    async def send(number: int = 0) -> int:
        return number

    job, later = await send.aenqueue(), await send.using(delay=3600).aenqueue()
    run = await chain(send.step(1), send).aenqueue()
    with pytest.raises(TimeoutError, match=r"after 50 s: no worker listens to queue mail$"):
        await job.aresult(50)
    with pytest.raises(TimeoutError, match=r"is scheduled and has no result after 5 s$"):
        await later.aresult(5)
    told = [f"result.waiting: job {job.id} ({send.name}) has no result yet: no worker listens to queue mail"]
    assert caplog.messages == told
    await asyncio.sleep(60)
    with pytest.raises(TimeoutError):
        await run.aresult(30)
    assert [it.split(": ")[-1] for it in caplog.messages[1:]] == ["no worker is running"]
    async with world.worker("mail"):
        assert await run.aresult() == 1
    assert not caplog.messages[2:]


@pytest.mark.parametrize("flow", [False, True])
def test_a_wait_in_vain_names_the_store(tmp_path: Path, flow: bool) -> None:
    """P: a worker in another folder serves another file; the whole path shows that."""
    harbor = Harbor(f"sqlite:///{tmp_path}/jobs.db")

    @harbor.task
    def send() -> None: ...

    waiting = send.step().enqueue() if flow else send.enqueue()
    said = f"no worker listens to queue default; the store is sqlite:///{tmp_path}/jobs.db"
    with pytest.raises(TimeoutError, match=f"{re.escape(said)}$"):
        waiting.result(timeout=0)
    harbor.close()


@virtual
async def test_a_wait_in_vain_names_the_queues_that_workers_listen_to() -> None:
    """C: so that a misspelt queue shows, on whichever side it is."""
    world = World()

    @world.harbor.task(queue="mail")
    async def send() -> None: ...

    job = await send.aenqueue()
    async with world.worker("mial", "default"):
        with pytest.raises(TimeoutError, match=r"queue mail \(1 worker on other queues: default, mial\)$"):
            await job.aresult(1)
    async with world.worker(*(f"q{number}" for number in range(6))):
        with pytest.raises(TimeoutError, match=r"other queues: q0, q1, q2, q3, q4, …\)$"):
            await job.aresult(1)


@virtual
async def test_a_wait_in_vain_for_a_flow_says_what_is_missing_as_soon(caplog: pytest.LogCaptureFixture) -> None:
    """P, K: after the same seconds as for a job; the workers are read for the warning and the timeout's error only."""
    world = World()

    @world.harbor.task(queue="mail")
    async def send() -> None: ...

    run = await group(send.step(), send.step()).aenqueue()
    with pytest.raises(TimeoutError, match=r"is running and has no result yet: no worker listens to queue mail$"):
        await run.aresult(2)
    assert not caplog.messages
    assert len(world.log.calls("workers")) == 1
    asked = time()
    waiting = asyncio.ensure_future(run.aresult())
    await asyncio.sleep(WARN_AFTER + 0.01)
    assert [it.split(": ")[-1] for it in caplog.messages] == ["no worker listens to queue mail"]
    await asyncio.sleep(30)
    assert len(world.log.calls("workers")) == 2
    assert len(caplog.messages) == 1
    async with world.worker("mail"):
        await waiting
    assert time() - asked < 40


@virtual
async def test_a_run_outlasts_its_lease_and_its_result_goes_with_its_retention() -> None:
    """G4, X8: without a timeout nothing bounds a run; a result is promised for as long as its record is kept."""
    world = World(keep_done=100)

    @world.harbor.task
    async def slow() -> str:
        await asyncio.sleep(1500)
        return "done"

    async with world.worker():
        job = await slow.aenqueue()
        assert await job.aresult() == "done"
        assert (await world.record(job)).version == 1
        await asyncio.sleep(95)
        assert await job.aresult() == "done"
        await asyncio.sleep(25)
        with pytest.raises(JobNotFound, match=r"its retention has run out, or its tx= has not committed"):
            await job.aresult()


@virtual
async def test_what_has_no_result_says_why() -> None:
    """P: JobFailed, JobCancelled, JobNotFound."""
    world = World()

    @world.harbor.task
    async def bad() -> None:
        raise Unrecoverable("the card is stolen")

    job = await bad.aenqueue()
    late = await bad.using(delay=60).aenqueue()
    await late.acancel()
    async with world.worker():
        with pytest.raises(JobFailed, match=r"unrecoverable.*the card is stolen"):
            await job.aresult()
    with pytest.raises(JobCancelled, match=late.id):
        await late.aresult()
    with pytest.raises(JobNotFound, match="no job nowhere"):
        await world.harbor.job("nowhere").aresult()
    with pytest.raises(JobNotFound):
        await world.harbor.job("nowhere").astate()
    assert not await world.harbor.job("nowhere").acancel()


@virtual
async def test_a_job_that_waits_in_line_is_cancelled_at_once() -> None:
    """T3, I2: ready or scheduled, and its key is free again."""
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    for options in ({}, {"delay": 60}):
        job = await work.using(idempotency_key="k", **options).aenqueue()  # type: ignore[arg-type]
        assert job.created
        assert await job.acancel()
        assert await job.astate() == "cancelled"
        assert not await job.acancel()
    assert (await work.using(idempotency_key="k").aenqueue()).created
    assert await world.drain() == 1


@virtual
async def test_a_running_job_receives_its_cancellation_with_the_heartbeat() -> None:
    """T3: the request is recorded at once, the handler is cancelled within a third of the lease."""
    world = World()
    ends: list[float] = []

    @world.harbor.task
    async def long() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ends.append(time())

    job = await long.using(idempotency_key="k").aenqueue()
    async with world.worker() as worker:
        await asyncio.sleep(12)
        assert await job.acancel()
        assert (await world.record(job)).stop_requested_at is not None
        with pytest.raises(JobCancelled):
            await job.aresult()
        assert worker.busy == 0
    record = await world.record(job)
    assert ends == [pytest.approx(20, abs=0.1)]
    assert (record.state, record.attempts, record.idempotency_key) == ("cancelled", 0, None)


@virtual
async def test_a_later_ack_wins_over_a_cancellation() -> None:
    """T3: a handler that finishes all the same is done."""
    world = World()

    @world.harbor.task
    async def quick() -> str:
        await asyncio.sleep(5)
        return "done before it heard"

    @world.harbor.task
    async def stubborn() -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            assert current().cancelled
        return "done in spite of it"

    jobs = [await quick.aenqueue(), await stubborn.aenqueue()]
    async with world.worker():
        await asyncio.sleep(1)
        assert [await job.acancel() for job in jobs] == [True, True]
        results = [await job.aresult() for job in jobs]
    assert results == ["done before it heard", "done in spite of it"]


@virtual
async def test_a_failure_after_a_cancellation_lands_in_cancelled() -> None:
    """T3: a put-back of a job with a cancel request is its end."""
    world = World()

    @world.harbor.task
    async def bad() -> None:
        await asyncio.sleep(5)
        raise ValueError

    job = await bad.aenqueue()
    async with world.worker():
        await asyncio.sleep(1)
        await job.acancel()
        with pytest.raises(JobCancelled):
            await job.aresult()
    assert (await world.record(job)).version == 1


@virtual
async def test_a_cancelled_job_of_a_dead_worker_is_swept() -> None:
    """T1, T3."""
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    job = await work.aenqueue()
    await world.memory.reserve(["default"], world.clock(), timedelta(seconds=30), 1, "dead")
    await job.acancel()
    async with world.worker() as worker:
        await until(lambda: world.memory._store.jobs[job.id].completed_at)
        assert 30 <= time() <= 32
        assert worker.finished == 0
    assert await world.state(job) == "cancelled"


@virtual
async def test_a_known_key_gives_the_existing_job() -> None:
    """I1, I3: `created` and `same_payload` say what happened."""
    world = World()

    @world.harbor.task
    async def work(number: int) -> int:
        return number

    once = work.using(idempotency_key="k", idempotency_ttl=100)
    first, again, other = await once.aenqueue(1), await once.aenqueue(1), await once.aenqueue(2)
    assert (first.created, again.created, other.created) == (True, False, False)
    assert (again.same_payload, other.same_payload) == (True, False)
    assert first.id == again.id == other.id
    async with world.worker():
        assert await other.aresult() == 1
        found = await world.harbor.admin.jobs.afind("k")
        assert found is not None
        assert found.id == first.id
        await asyncio.sleep(101)
        assert (await once.aenqueue(3)).created
