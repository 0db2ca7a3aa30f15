"""Acts on many jobs through `harbor.admin.jobs`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from taskharbor import Harbor, Retry, Unrecoverable, chain, chord, group
from taskharbor.admin import bulk
from taskharbor.errors import ConfigError, InvalidJob
from taskharbor.manager import TaskManager
from taskharbor.testing import Slow
from world import World, virtual


class Yard(World):
    """A world with a task that fails on request."""

    def __init__(self) -> None:
        super().__init__(retry=Retry.fixed(0))
        self.jobs = self.harbor.admin.jobs

        @self.harbor.task
        async def work(dies: bool = False) -> None:
            if dies:
                raise Unrecoverable("told to")
            await asyncio.sleep(100)

        self.work = work


def ids(jobs: list[Any]) -> list[str]:
    return [job.id for job in jobs]


@virtual
async def test_cancel_in_bites_with_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """C: a few hundred jobs to a call, each answered in its place."""
    monkeypatch.setattr(bulk, "BITE", 4)
    world = Yard()
    jobs = await world.harbor.aenqueue_many(world.work.step() for _ in range(10))
    told: list[int] = []
    answers = await world.jobs.acancel([*ids(jobs), "nobody"], progress=told.append)
    assert answers == ["cancelled"] * 10 + ["missing"]
    assert told == [4, 8, 11]
    assert [len(call["ids"]) for call in world.log.calls("cancel")] == [4, 4, 3]


@virtual
async def test_cancel_what_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """T3, C: what has not ended, page by page; running jobs are asked to stop; a dry run only looks."""
    monkeypatch.setattr("taskharbor.client.client.PAGE", 3)
    world = Yard()
    (dead,) = await world.harbor.aenqueue_many([world.work.step(True)])
    await world.drain()
    waiting = await world.harbor.aenqueue_many(world.work.using(queue="other").step() for _ in range(7))
    running = await world.work.aenqueue()
    async with world.worker("default"):
        await asyncio.sleep(1)
        seen = await world.jobs.acancel_all("task:*", dry_run=True)
        assert (set(seen.matched), seen.answers) == ({running.id, *ids(waiting)}, {})
        assert [await world.state(job) for job in waiting] == ["ready"] * 7
        done = await world.jobs.acancel_all("task:*")
        assert done.answers == {"requested": [running.id], "cancelled": ids(waiting)[::-1]}
    assert await world.state(dead) == "dlq"


@virtual
async def test_delete_and_replay_what_matches() -> None:
    """Q2, C: delete takes what has ended, replay what is dead or cancelled."""
    world = Yard()
    dead = await world.harbor.aenqueue_many(world.work.step(True) for _ in range(3))
    await world.drain()
    (gone,) = await world.harbor.aenqueue_many([world.work.using(delay=50).step(True)])
    await gone.acancel()
    assert (await world.jobs.areplay_all("state:cancelled")).answers == {"replayed": [gone.id]}
    assert (await world.jobs.areplay_all("*", limit=2)).matched == ids(dead)[:0:-1]
    await world.drain()
    done = await world.jobs.adelete_all("*")
    assert (sorted(done.answers["deleted"]), len(done.matched)) == (sorted(ids([*dead, gone])), 4)
    assert await world.jobs.alist() == []


@virtual
async def test_dependants_are_cancelled_before_what_they_wait_for() -> None:
    """C, K4: cancelling everything releases nothing on the way, also from one bite to the next."""
    world = Yard()

    @world.harbor.task
    async def tell(results: list[Any]) -> None:
        raise AssertionError("it must not run")

    await chord(group(world.work.step() for _ in range(3)), tell, on_failure="collect").aenqueue()
    await world.jobs.acancel_all("*")
    assert await world.drain() == 0
    assert {job.state.value for job in await world.jobs.alist()} == {"cancelled"}


@virtual
async def test_a_replay_begins_with_the_first_of_a_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """C, Q3: those behind wait for those before them, also when they are not in one bite."""
    monkeypatch.setattr(bulk, "BITE", 1)
    world = Yard()

    @world.harbor.task
    async def last(before: None) -> str:
        return "the end"

    run = await chain(world.work.step(True), last).aenqueue()
    await world.drain()
    await run.acancel()
    done = await world.jobs.areplay_all(f"workflow:{run.id}")
    assert [len(found) for found in done.answers.values()] == [2]
    assert [job.state.value for job in await world.jobs.alist()] == ["waiting", "ready"]


@virtual
async def test_tasks_of_a_manager_are_left_to_it() -> None:
    """M1, C: words take them only by the name of their queue, and a replay never does."""
    world = Yard()
    async with TaskManager(world.harbor) as tasks:
        id = await tasks.asubmit(b"x", max_attempts=1)
        assert (await world.jobs.acancel_all("*")).matched == []
        assert (await world.jobs.acancel_all("queue:*")).matched == []
        assert await world.jobs.apreview("cancel", [id, "nobody"]) == ["would", "missing"]
        await tasks.aclaim(id, "agent")
        await tasks.afail(id, "agent", "no")
        assert (await world.jobs.areplay_all("queue:taskharbor.tasks")).matched == []
        assert await world.jobs.areplay(id) == ["task"]
        assert await world.jobs.apreview("replay", id) == ["task"]
        assert (await world.jobs.adelete_all("*")).matched == []
        assert (await world.jobs.adelete_all("queue:taskharbor.tasks")).answers == {"deleted": [id]}


@virtual
async def test_what_no_longer_matches_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """C: the jobs of a dry run are looked at again, bite by bite, right before the act."""
    monkeypatch.setattr(bulk, "BITE", 2)
    world = Yard()
    dead = await world.harbor.aenqueue_many(world.work.step(True) for _ in range(5))
    await world.drain()
    seen = await world.jobs.adelete_all("state:dlq", dry_run=True)
    assert seen.matched == ids(dead)[::-1]
    await world.jobs.areplay(dead[1].id)
    await world.jobs.acancel(dead[1].id)  # it has ended, but is not dead
    await world.jobs.adelete(dead[3].id)
    again = await world.jobs.adelete_all("state:dlq", dry_run=True, among=seen.matched)
    assert again.matched == [dead[4].id, dead[2].id, dead[0].id]
    told: list[int] = []
    done = await world.jobs.adelete_all("state:dlq", among=[*seen.matched, dead[0].id], progress=told.append)
    assert (done.matched, told) == (seen.matched, [2, 4, 5])
    assert done.answers == {"deleted": again.matched, "missing": [dead[3].id], "changed": [dead[1].id]}
    assert await world.state(dead[1]) == "cancelled"


@virtual
async def test_a_job_that_changes_between_two_bites_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """C: also where no one was asked in between."""
    monkeypatch.setattr(bulk, "BITE", 1)
    world = Yard()
    first, last = await world.harbor.aenqueue_many(world.work.using(delay=15).step() for _ in range(2))
    other = World.over(world, Slow(world.log, 10, lambda verb: verb == "cancel"))
    done = await other.harbor.admin.jobs.acancel_all("state:scheduled")
    assert done.answers == {"cancelled": [last.id], "changed": [first.id]}
    assert await world.state(first) == "ready"


@virtual
async def test_wrong_words_and_limits() -> None:
    """X5: nothing is matched by mistake."""
    world = Yard()
    for act in (world.jobs.acancel_all, world.jobs.adelete_all, world.jobs.areplay_all):
        with pytest.raises(ConfigError, match="say which jobs to"):
            await act("")
        with pytest.raises(InvalidJob, match="limit must be from 1 to 1,000,000"):
            await act("*", limit=0)
        with pytest.raises(InvalidJob, match="limit must be from 1 to 1,000,000"):
            await act("*", limit=0, among=["one"])
    with pytest.raises(ConfigError, match="jobs that are done cannot be cancelled: leave state: out, or use scheduled"):
        await world.jobs.acancel_all("state:ready,done")
    with pytest.raises(ConfigError, match="jobs that are ready cannot be deleted"):
        await world.jobs.adelete_all("state:ready")
    with pytest.raises(ConfigError, match="cannot be replayed: leave state: out, or use dlq, cancelled"):
        await world.jobs.areplay_all("state:done")
    assert await world.jobs.apreview("delete", (await world.work.aenqueue()).id) == ["live"]


def test_a_misspelt_option_is_an_error() -> None:
    """X5: an act on matching jobs does nothing if an option is unknown, blocking or awaited."""
    harbor = Harbor("memory://")
    jobs, dlq = harbor.admin.jobs, harbor.admin.dlq

    @harbor.task(max_attempts=1)
    def fail() -> None:
        raise Unrecoverable("told to")

    fail.enqueue()
    asyncio.run(harbor.adrain())
    fail.enqueue()
    before = jobs.list()
    assert [job.state for job in before] == ["ready", "dlq"]
    blocking: list[Any] = [jobs.cancel_all, jobs.delete_all, jobs.replay_all, partial(jobs.dead_letter_all, reason="x")]
    awaited: list[Any] = [jobs.acancel_all, jobs.adelete_all, jobs.areplay_all]
    awaited += [partial(jobs.adead_letter_all, reason="x"), dlq.areplay_all, dlq.apurge]
    for act in (*blocking, dlq.replay_all, dlq.purge):
        with pytest.raises(TypeError, match="unexpected keyword argument 'dryrun'"):
            act("queue:default", dryrun=True)
    for act in awaited:
        with pytest.raises(TypeError, match="unexpected keyword argument 'dryrun'"):
            asyncio.run(act("queue:default", dryrun=True))
    assert jobs.list() == before
    harbor.close()


@virtual
async def test_dead_letter_what_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q4, C: what has not ended; a running job ends in the dead-letter queue unless it finishes first."""
    monkeypatch.setattr(bulk, "BITE", 2)
    world = Yard()
    waiting = await world.harbor.aenqueue_many(world.work.using(queue="other").step() for _ in range(3))
    running = await world.work.aenqueue()
    async with world.worker("default"):
        await asyncio.sleep(1)
        seen = await world.jobs.adead_letter_all("*", reason="wrong", dry_run=True)
        assert (len(seen.matched), seen.answers) == (4, {})
        done = await world.jobs.adead_letter_all("*", reason="wrong")
        assert done.answers == {"requested": [running.id], "dead": ids(waiting)[::-1]}
        await asyncio.sleep(30)
    for job in (*waiting, running):
        record = await world.record(job)
        assert (record.state, record.dlq_reason) == ("dlq", "wrong")
    assert (await world.jobs.adead_letter_all("*", reason="wrong")).matched == []
    with pytest.raises(ConfigError, match="cannot be dead-lettered"):
        await world.jobs.adead_letter_all("state:dlq", reason="wrong")
    with pytest.raises(InvalidJob, match="needs a reason"):
        await world.jobs.adead_letter_all("queue:none", reason="")
