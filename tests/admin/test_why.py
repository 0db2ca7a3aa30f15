"""Why a job is where it is: each cause, as the stores tell it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from taskharbor import Job, Retry, Snooze, Unrecoverable, chain
from taskharbor.admin.why import Facts, Why, why
from taskharbor.driver import WorkerRecord
from taskharbor.manager import TaskManager
from world import World, virtual


class Place(World):
    """A world with a task that does what its arguments say."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)

        @self.harbor.task(name="work", queue="mail")
        async def work(what: str = "") -> None:
            match what:
                case "fail":
                    raise ValueError("no such user")
                case "die":
                    raise Unrecoverable("never")
                case "snooze":
                    raise Snooze(100)
                case "long":
                    await asyncio.sleep(1000)
                case "block":
                    try:
                        await asyncio.sleep(1000)
                    except asyncio.CancelledError:
                        await asyncio.sleep(1000)
                case _:
                    pass

        self.work = work

    async def why(self, job: Job[Any] | str) -> Why:
        """The answer for a job."""
        return await self.harbor.admin.jobs.awhy(job if isinstance(job, str) else job.id)


@virtual
async def test_due_jobs() -> None:
    """C: no worker, paused, in line, all slots busy."""
    world = Place()
    job = await world.work.aenqueue()
    assert await world.why(job) == Why(
        "queue_without_worker", "no worker listens to queue mail", "taskharbor worker MODULE:HARBOR"
    )
    async with world.worker("other"):
        await asyncio.sleep(1)
        found = await world.why(job)
        assert found.text == "no worker listens to queue mail (1 worker on other queues: other)"
        assert found.fix == "taskharbor worker MODULE:HARBOR -Q mail"
    await world.harbor.admin.queues.apause("mail")
    async with world.worker("mail", concurrency=1):
        await asyncio.sleep(1)
        assert await world.why(job) == Why("paused", "queue mail is paused", "taskharbor queues resume mail")
        later = await world.work.using(delay=60).aenqueue()
        assert (await world.why(later)).text.endswith("in 60 s, if queue mail is resumed by then")
        await world.work.aenqueue("long")
        await world.harbor.admin.queues.aresume("mail")
        assert await world.why(job) == Why("in_line", "it waits for its turn; 1 worker on queue mail")
        await asyncio.sleep(15)
        last = await world.work.aenqueue()
        assert await world.why(last) == Why(
            "busy", "every slot of the 1 worker on queue mail is busy", "start more workers"
        )


@virtual
async def test_jobs_for_later() -> None:
    """C: scheduled, next retry, put back by its handler, unknown task."""
    world = Place(retry=Retry.fixed(60), max_attempts=3)
    later, soon = await world.work.using(delay=7200).aenqueue(), await world.work.using(delay=600).aenqueue()
    assert (await world.why(later)).text.endswith(" UTC, in 2 h")
    assert ((await world.why(later)).fix, (await world.why(soon)).fix) == (f"taskharbor jobs run-now {later.id}", None)
    failed, snoozed = await world.work.aenqueue("fail"), await world.work.aenqueue("snooze")
    unknown = await world.harbor.aenqueue("mail.gone", {}, queue="mail")
    await world.drain()
    assert await world.why(failed) == Why(
        "retry",
        "failed 1 of 3 times; the next try is in 60 s: ValueError: no such user",
        f"taskharbor jobs run-now {failed.id}",
    )
    assert await world.why(snoozed) == Why("put_back", "put back without a failure; the next run is in 100 s")
    found = await world.why(unknown)
    assert found.code == "unknown_task"
    assert "mail.gone (put back 1 time, dead after 30); the next try is in 1 s" in found.text
    async with world.worker("other"):
        await asyncio.sleep(5)
        assert (await world.why(unknown)).code == "queue_without_worker"


@virtual
async def test_jobs_under_a_lease() -> None:
    """C, F5: who runs it for how long, past its timeout, asked to stop, and a lease that ran out."""
    world = Place()
    job, late = await world.work.aenqueue("long"), await world.work.using(timeout=20).aenqueue("block")
    async with world.worker("mail", lease=30) as worker:
        await asyncio.sleep(45)
        found = await world.why(job)
        assert found.code == "running"
        assert found.text.startswith(f"{worker.id} has been running it for 45 s; its lease lasts until ")
        await job.acancel()
        assert "for 45 s, and was asked to stop; " in (await world.why(job)).text
        assert await world.why(late) == Why(
            "overrun",
            f"past its timeout of 20 s for 25 s: {worker.id} still runs it",
            f"restart worker {worker.id}: a handler that ignores its cancellation ends with its process",
        )


@virtual
async def test_leases_that_ran_out() -> None:
    """C: next in line, unless something keeps it; a worker that has stopped reporting is named."""
    world = Place()
    job = await world.work.aenqueue()
    now = world.clock()
    await world.memory.reserve(["mail"], now, timedelta(seconds=30), 1, "web-1")
    found = await world.why(job)
    assert found.code == "claimed"
    assert found.text == (
        "web-1 is about to run it; that worker has not reported lately: if it is gone, the job is due again in 30 s"
    )
    await asyncio.sleep(50)
    assert (await world.why(job)).text == "the lease of web-1 ran out 20 s ago; no worker listens to queue mail"
    await world.harbor.admin.queues.apause("mail")
    async with world.worker("mail"):
        await asyncio.sleep(1)
        assert await world.why(job) == Why(
            "paused", "the lease of web-1 ran out 21 s ago; queue mail is paused", "taskharbor queues resume mail"
        )
        record = await world.record(job)
        facts = Facts(job=record, now=world.clock(), workers=await world.harbor.admin.workers.alist())
        assert why(facts) == Why(
            "lapsed", "the lease of web-1 ran out 21 s ago; it waits for its turn; 1 worker on queue mail"
        )
    await job.acancel()
    assert "it was asked to stop: a worker's upkeep cancels it" in (await world.why(job)).text
    other = await world.work.using(queue="other").aenqueue()
    await world.memory.reserve(["other"], world.clock(), timedelta(seconds=30), 1, "web-1")
    await world.harbor.admin.jobs.adead_letter(other.id, reason="wrong")
    assert "web-1 is about to run it, and is to be dead-lettered (wrong); " in (await world.why(other)).text
    await asyncio.sleep(31)
    assert "a worker's upkeep dead-letters it (wrong)" in (await world.why(other)).text


@virtual
async def test_jobs_that_wait_for_others() -> None:
    """C, K4: how many, which, and the one that holds everything up."""
    world = Place()

    @world.harbor.task(queue="mail")
    async def last(before: None) -> None: ...

    flow = await chain(world.work.step("die"), last).aenqueue()
    second, first = await world.harbor.admin.jobs.alist()
    assert await world.why(second.id) == Why("waiting", f"it waits for 1 of 1 job: {first.id} (ready)")
    await world.drain()
    found = await world.why(second.id)
    assert found == Why(
        "held",
        f"it waits for 1 of 1 job, and {first.id} is dead (taskharbor.errors.Unrecoverable: never)",
        f"taskharbor workflows replay {flow.id}",
    )


@virtual
async def test_jobs_that_ended() -> None:
    """C: done, cancelled, expired, dead and of what, over what time."""
    world = Place(retry=Retry.fixed(60), max_attempts=2)
    done, failed, dead = [await world.work.aenqueue(what) for what in ("", "fail", "die")]
    gone, expired = await world.work.using(delay=50).aenqueue(), await world.work.using(queue="x", expires=5).aenqueue()
    await gone.acancel()
    async with world.worker("mail"):
        await asyncio.sleep(70)
    assert (await world.why(done)).text.startswith("finished 70 s ago")
    assert (await world.why(gone)).text == "cancelled 70 s ago"
    assert (await world.why(expired)).text.endswith(": it expired before it could run")
    found = await world.why(failed)
    assert found.text.endswith(": failed 2 of 2 times over 1 min: ValueError: no such user")
    assert found.fix == f"taskharbor jobs replay {failed.id}"
    assert (
        await world.why(dead)
    ).text == "dead-lettered 70 s ago (unrecoverable): taskharbor.errors.Unrecoverable: never"


@virtual
async def test_a_job_dead_lettered_by_hand() -> None:
    """C, Q4: the reason that was given is the cause; the error of an earlier life is not."""
    world = Place()
    fresh, failed = await world.work.aenqueue(), await world.work.aenqueue("die")
    async with world.worker("mail", concurrency=1):
        await asyncio.sleep(1)
    await world.harbor.admin.dlq.areplay(failed.id)
    late = await world.work.aenqueue()
    await world.harbor.admin.jobs.adead_letter([failed.id, late.id], reason="wrong order")
    assert (await world.why(fresh)).code == "done"
    assert (await world.why(late)).text == "dead-lettered by hand just now: wrong order"
    found = await world.why(failed)
    assert found.text == (
        "dead-lettered by hand just now: wrong order; its last error was taskharbor.errors.Unrecoverable: never"
    )
    assert found.fix == f"taskharbor jobs replay {failed.id}"


@virtual
async def test_a_managers_task_waits_for_an_agent() -> None:
    """C, M1: no worker comes for it, and none is missed."""
    world = Place()
    async with TaskManager(world.harbor) as tasks:
        id = await tasks.asubmit(b"x", max_attempts=1)
        assert (await world.why(id)).code == "task"
        await tasks.aclaim(id, "agent-7")
        assert (await world.why(id)).text.startswith("agent-7 is about to run it; its lease lasts until ")
        await tasks.afail(id, "agent-7", "no")
        assert (await world.why(id)).fix is None


@virtual
async def test_a_job_that_kills_its_workers_waits_for_an_empty_one() -> None:
    """C, F6b, N1: suspects, and jobs that expired before the sweep."""
    world = Place()
    job = await world.work.using(expires=500).aenqueue()
    for _ in range(3):
        await world.memory.reserve(["mail"], world.clock(), timedelta(seconds=30), 1, "web-1")
        await asyncio.sleep(40)
    record = await world.record(job)
    listener = WorkerRecord(
        id="w", host="h", pid=1, queues=("mail",), slots=4, busy=0, started_at=world.clock(), seen_at=world.clock()
    )
    found = why(Facts(job=record, now=world.clock(), workers=[listener]))
    assert found.code == "suspect"
    assert "2 crashes in a row" in found.text
    await asyncio.sleep(25)
    assert why(Facts(job=record, now=world.clock(), workers=[listener])) == Why(
        "silent",
        "the lease of web-1 ran out 35 s ago; the last worker on queue mail, w, was seen 25 s ago",
        "taskharbor worker MODULE:HARBOR",
    )
    other = replace(listener, queues=("other",), seen_at=world.clock())
    assert (
        why(Facts(job=record, now=world.clock(), workers=[listener, other])).fix
        == "taskharbor worker MODULE:HARBOR -Q mail"
    )
    await asyncio.sleep(400)
    assert why(Facts(job=record, now=world.clock(), workers=[listener])).code == "expired"


@virtual
async def test_a_command_to_paste_quotes_an_id() -> None:
    """C: ids of the application may have any characters; the shell must not take them apart."""
    world = Place()
    job = await world.work.using(id="my job; ls", delay=100_000).aenqueue()
    assert (await world.why(job)).fix == "taskharbor jobs run-now 'my job; ls'"
