"""Outcomes that the store refuses: the log says what is stored, and hooks are not called for what did not happen."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from taskharbor import Retry, Unrecoverable, current
from taskharbor.core.decide import Retention, decide, succeed, token_of
from taskharbor.core.outcome import Interrupted, Succeeded
from world import World, virtual


def watched(world: World) -> list[str]:
    """The ids of jobs for whose death the hook was called."""
    deaths: list[str] = []

    @world.harbor.on_dead
    async def on_dead(job: Any) -> None:
        deaths.append(job.id)

    return deaths


def events(caplog: pytest.LogCaptureFixture, id: str) -> list[str]:
    """The events of a job in the log."""
    return [str(getattr(it, "event", "")) for it in caplog.records if getattr(it, "job_id", "") == id]


@pytest.mark.parametrize("retried", [False, True])
@virtual
async def test_a_failure_after_the_ack_is_refused_and_logged_as_what_it_is(
    caplog: pytest.LogCaptureFixture, retried: bool
) -> None:
    """D8, X3: the commit of a handler's transaction happened and its reply was lost, so the handler raises."""
    caplog.set_level("INFO", "taskharbor")
    world = World()
    deaths = watched(world)

    @world.harbor.task
    async def commits() -> None:
        record = current().record
        ack = succeed(record, token_of(record), Succeeded(b"1"), world.clock() + timedelta(days=1), world.clock())
        assert await world.memory.settle([ack], world.clock()) == ["ok"]
        raise ValueError("lost") if retried else Unrecoverable("lost")

    job = await commits.aenqueue()
    async with world.worker() as worker:
        await asyncio.sleep(5)
        assert worker.finished == 1
    record = await world.record(job)
    assert (record.state, record.result, record.attempts, record.failures) == ("done", b"1", 0, ())
    assert (events(caplog, job.id), deaths) == (["job.too_late"], [])
    assert "stored as done by this run before" in caplog.text
    (total,) = await world.memory.tallies(world.clock() - timedelta(hours=1))
    assert (total.outcome, total.count) == ("done", 1)


@virtual
async def test_a_failure_after_a_put_back_whose_job_another_worker_has(caplog: pytest.LogCaptureFixture) -> None:
    """D8: the token has settled the job before, by another kind, and another worker holds it: nothing changes."""
    world = World()
    deaths = watched(world)

    @world.harbor.task
    async def work() -> None:
        record, now = current().record, world.clock()
        back = decide(record, Interrupted(), Retry(), Retention(), now, world.harbor.client.session.rng)
        assert await world.memory.settle([back], now) == ["ok"]
        assert await world.memory.reserve(["default"], now, timedelta(minutes=1), 1, "another")
        raise Unrecoverable("no")

    job = await work.aenqueue()
    async with world.worker():
        await asyncio.sleep(0.5)
    record = await world.record(job)
    assert (record.state, record.worker, record.attempts) == ("inflight", "another", 0)
    assert "job.dead" not in events(caplog, job.id)
    assert deaths == []


@virtual
async def test_a_running_job_is_dead_lettered_by_hand(caplog: pytest.LogCaptureFixture) -> None:
    """Q4, T3: received with the heartbeat, released into the DLQ; no hook is called for the operator's own act."""
    world = World()
    deaths = watched(world)

    @world.harbor.task
    async def long() -> None:
        await asyncio.sleep(100)

    job, both = await long.aenqueue(), await long.aenqueue()
    async with world.worker():
        await asyncio.sleep(5)
        assert await world.harbor.admin.jobs.adead_letter([job.id, both.id], reason="wrong") == ["requested"] * 2
        await both.acancel()
        await asyncio.sleep(10)
    record = await world.record(job)
    assert (record.state, record.dlq_reason, record.attempts) == ("dlq", "wrong", 0)
    assert record.started_at is not None
    assert await world.state(both) == "cancelled"
    assert (events(caplog, job.id), deaths) == (["job.dead"], [])
    assert "by hand, after 10 s" in caplog.text


@virtual
async def test_a_success_wins_over_a_dead_letter_by_hand() -> None:
    """T3: also one that comes after the request was received."""
    world = World()

    @world.harbor.task
    async def long() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return "done after all"
        return "never"

    job = await long.aenqueue()
    async with world.worker():
        await asyncio.sleep(5)
        await world.harbor.admin.jobs.adead_letter(job.id, reason="wrong")
        assert await job.aresult() == "done after all"
