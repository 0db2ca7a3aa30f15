"""`current()`: what a handler knows about its own job, and what it can do with it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from taskharbor import JobContext, LeaseLost, Retry, Snooze, current
from taskharbor.errors import InvalidJob, NoCurrentJob
from taskharbor.testing import LostReply, script
from world import World, until, virtual


def test_outside_of_a_handler_there_is_no_current_job() -> None:
    with pytest.raises(NoCurrentJob, match="inside a running handler"):
        current()


@pytest.mark.parametrize("kind", ["async", "def"])
@virtual
async def test_a_handler_knows_its_job(kind: str) -> None:
    """L5, T2: id, task, attempt, the fencing number, headers and tags."""
    world = World(retry=Retry.fixed(1))
    seen: list[dict[str, Any]] = []

    def look() -> None:
        job = current()
        names = ("id", "task", "queue", "attempt", "max_attempts", "lease_version", "headers", "tags", "cancelled")
        seen.append({name: getattr(job, name) for name in names})
        if len(seen) == 1:
            raise ValueError

    if kind == "async":

        @world.harbor.task(name="look")
        async def handler() -> None:
            look()

    else:

        @world.harbor.task(name="look")
        def handler() -> None:
            look()

    job = await handler.using(queue="q", headers={"a": "b"}, tags=["x", "y"], max_attempts=9).aenqueue()
    async with world.worker("q"):
        await job.aresult()
    common = {
        "id": job.id,
        "task": "look",
        "queue": "q",
        "max_attempts": 9,
        "headers": {"a": "b"},
        "tags": ("x", "y"),
        "cancelled": False,
    }
    assert seen == [common | {"attempt": 1, "lease_version": 1}, common | {"attempt": 2, "lease_version": 2}]


@virtual
async def test_jobs_side_by_side_see_their_own_context() -> None:
    world = World()

    @world.harbor.task
    async def look(number: int) -> bool:
        before = current().id
        await asyncio.sleep(number % 3)
        inner = await asyncio.create_task(asyncio.sleep(0, current().id))
        return before == current().id == inner

    jobs = await world.harbor.aenqueue_many(look.step(number) for number in range(12))
    async with world.worker():
        assert all([await job.aresult() for job in jobs])
    with pytest.raises(NoCurrentJob):
        current()


@virtual
async def test_progress_and_the_start_travel_with_the_heartbeat() -> None:
    """T2, D6: no write per job; "claimed" becomes "running" within a second, and progress is shown as fast."""
    world = World()

    @world.harbor.task
    async def long() -> None:
        current().progress(0.25, "first quarter")
        await asyncio.sleep(15)
        current().progress(7)
        await asyncio.sleep(20)
        current().progress(float("nan"), "\ud800" * 10 + "x" * 1000)
        await asyncio.sleep(20)

    job = await long.aenqueue()
    async with world.worker():
        await asyncio.sleep(0.5)
        assert await job.astate() == "claimed"
        assert (await world.record(job)).progress is None
        await asyncio.sleep(0.5)
        assert await job.astate() == "running"
        record = await world.record(job)
        assert record.progress is not None
        assert (record.progress.fraction, record.progress.note) == (0.25, "first quarter")
        assert record.started_at is not None
        await asyncio.sleep(15)
        record = await world.record(job)
        assert record.progress is not None
        assert (record.progress.fraction, record.progress.note) == (1.0, "")
        await asyncio.sleep(20)
        record = await world.record(job)
        assert record.progress is not None
        assert record.progress.fraction == 0  # a store could not hold a NaN, nor a lone surrogate
        assert len(record.progress.note.encode()) <= 500
        await job.aresult()


@virtual
async def test_jobs_enqueued_with_the_current_one_are_stored_with_its_ack() -> None:
    """D9: they are invisible before, and there the moment it is done."""
    world = World()

    @world.harbor.task
    async def child(number: int) -> int:
        return number

    @world.harbor.task
    async def parent() -> str:
        step = current().enqueue(child.using(queue="later").step(5))
        await asyncio.sleep(10)
        assert await world.memory.get([step.id]) == [None]
        return step.id

    job = await parent.aenqueue()
    async with world.worker("default"):
        id = await job.aresult()
    assert await world.state(id) == "ready"
    (batch,) = world.settled()
    assert [new.id for new in batch[0].new_jobs] == [id]
    async with world.worker("later"):
        assert await world.harbor.job(id).aresult() == 5


@pytest.mark.parametrize("end", ["raises", "snoozes", "times out", "cannot be encoded"])
@virtual
async def test_jobs_enqueued_with_a_run_that_fails_are_dropped(end: str) -> None:
    """D9: exactly if this run succeeds; a retry enqueues them again, once."""
    world = World(retry=Retry.fixed(1))

    @world.harbor.task
    async def child() -> None: ...

    @world.harbor.task(timeout=5)
    async def parent() -> object:
        current().enqueue(child.using(queue="later").step())
        if current().lease_version > 1:
            return None
        if end == "raises":
            raise ValueError
        if end == "snoozes":
            raise Snooze(1)
        if end == "times out":
            await asyncio.sleep(100)
        return object()

    job = await parent.aenqueue()
    async with world.worker("default") as worker:
        await until(lambda: worker.finished == (1 if end == "cannot be encoded" else 2))
    stored = [record for record in world.memory._store.jobs.values() if record.id != job.id]
    assert len(stored) == (0 if end == "cannot be encoded" else 1)


@virtual
async def test_a_lost_reply_does_not_double_the_new_jobs() -> None:
    """D9, X3."""
    world = World(lambda inner: LostReply(inner, script("settle", "settle")))

    @world.harbor.task
    async def child() -> None: ...

    @world.harbor.task
    async def parent() -> None:
        for _ in range(3):
            current().enqueue(child.using(queue="later").step())

    job = await parent.aenqueue()
    async with world.worker("default"):
        await job.aresult()
        await asyncio.sleep(10)
    assert len(world.memory._store.jobs) == 4


@virtual
async def test_a_new_job_whose_key_is_known_is_skipped_and_refuses_nothing() -> None:
    """D9, I1."""
    world = World()

    @world.harbor.task
    async def child() -> None: ...

    @world.harbor.task
    async def parent() -> str:
        current().enqueue(child.using(queue="later", idempotency_key="k").step())
        return "done"

    await child.using(queue="later", idempotency_key="k").aenqueue()
    job = await parent.aenqueue()
    async with world.worker("default"):
        assert await job.aresult() == "done"
    assert len(world.memory._store.jobs) == 2


@virtual
async def test_nothing_can_be_enqueued_with_a_run_that_has_ended() -> None:
    """D9: a task that the handler left behind gets an error instead of losing its job."""
    world = World()
    caught: list[BaseException | None] = []

    @world.harbor.task
    async def child() -> None: ...

    async def straggler(context: JobContext) -> None:
        await asyncio.sleep(5)
        try:
            context.enqueue(child.step())
        except NoCurrentJob as error:
            caught.append(error)

    tasks: list[asyncio.Task[None]] = []

    @world.harbor.task
    async def parent() -> None:
        tasks.append(asyncio.create_task(straggler(current())))

    async with world.worker():
        await (await parent.aenqueue()).aresult()
        await asyncio.sleep(10)
    assert len(caught) == 1
    assert "has ended" in str(caught[0])


@virtual
async def test_only_steps_can_be_enqueued_with_a_job() -> None:
    """X5."""
    world = World(max_attempts=1)

    @world.harbor.task
    async def child() -> None: ...

    @world.harbor.task
    async def parent() -> str:
        with pytest.raises(InvalidJob, match="steps"):
            current().enqueue(child)  # type: ignore[call-overload]
        return "fine"

    async with world.worker():
        assert await (await parent.aenqueue()).aresult() == "fine"


@virtual
async def test_lineage_travels_in_headers() -> None:
    """R1: parent and root ids, the correlation id and the trace context; what the caller gives wins."""
    world = World()

    @world.harbor.task
    async def leaf() -> None: ...

    @world.harbor.task
    async def middle() -> None:
        current().enqueue(leaf.using(queue="later").step())

    @world.harbor.task
    async def root() -> None:
        await middle.aenqueue()
        await leaf.using(queue="later", headers={"correlation_id": "mine"}).aenqueue()

    job = await root.using(headers={"correlation_id": "c", "traceparent": "t", "private": "p"}).aenqueue()
    async with world.worker("default"):
        await asyncio.sleep(5)
    jobs = {record.id: record for record in world.memory._store.jobs.values()}
    (between,) = [record for record in jobs.values() if record.type == middle.name]
    assert between.headers == {"correlation_id": "c", "traceparent": "t", "parent_id": job.id, "root_id": job.id}
    by_parent = {record.headers["parent_id"]: record for record in jobs.values() if record.type == leaf.name}
    assert by_parent[between.id].headers["root_id"] == job.id
    assert by_parent[job.id].headers["correlation_id"] == "mine"


@virtual
async def test_check_raises_when_the_run_should_end() -> None:
    """L4, F5: the cooperative way, for `def` handlers."""
    world = World()
    raised: list[type[BaseException]] = []

    @world.harbor.task
    async def work() -> None:
        current().check()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            try:
                current().check()
            except (LeaseLost, InterruptedError) as error:
                raised.append(type(error))
                raise

    job = await work.aenqueue()
    async with world.worker():
        await asyncio.sleep(1)
        await job.acancel()
        await asyncio.sleep(15)
    other = await work.aenqueue()
    async with world.worker() as worker:
        await until(lambda: worker.busy)
        await world.memory.reserve(["default"], world.clock() + timedelta(hours=1), timedelta(hours=2), 1, "thief")
        await until(lambda: not worker.busy)
    assert raised == [InterruptedError, LeaseLost]
    assert await world.state(job) == "cancelled"
    assert (await world.record(other)).version == 2
