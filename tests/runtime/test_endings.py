"""Whole ids for the endings that lists show."""

from __future__ import annotations

import pytest

from taskharbor import chain
from taskharbor.errors import ConfigError, JobNotFound
from taskharbor.runtime import endings, part

from .world import World, virtual


@virtual
async def test_an_ending_stands_for_one_job() -> None:
    """C: the ending of an id is found page by page; an id that exists is always taken as it is."""
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    jobs = await world.harbor.aenqueue_many(work.step() for _ in range(20))
    await work.using(id="order-17").aenqueue()
    await work.using(id="r-17").aenqueue()
    admin = world.harbor.admin
    assert await admin.jobs.aresolve([job.id[-8:] for job in jobs]) == [job.id for job in jobs]
    assert await admin.jobs.aresolve(["…" + jobs[0].id[-8:], jobs[1].id, "r-17", "der-17"]) == [
        jobs[0].id,
        jobs[1].id,
        "r-17",
        "order-17",
    ]
    assert await admin.jobs.aresolve(["nobody", "17"]) == ["nobody", "17"]


@virtual
async def test_an_ending_of_several_jobs_is_refused_with_their_ids() -> None:
    """C, X5: nothing is done to the wrong job."""
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    for number in range(7):
        await work.using(id=f"{number}-order").aenqueue()
    with pytest.raises(ConfigError, match=r"'order' is the ending of 7 job ids: 6-order, .* …: write more of it"):
        await world.harbor.admin.jobs.aresolve("order")


@virtual
async def test_the_search_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """C: on a large store only the newest jobs are searched."""
    monkeypatch.setattr(endings, "SEARCHED", 10)
    monkeypatch.setattr(part, "PAGE", 5)
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    jobs = await world.harbor.aenqueue_many(work.step() for _ in range(50))
    resolve = world.harbor.admin.jobs.aresolve
    assert await resolve(jobs[-1].id[-8:]) == [jobs[-1].id]
    assert sum(call["limit"] for call in world.log.calls("query")) == 10
    with pytest.raises(JobNotFound, match=r"among the newest 10: write the whole id"):
        await resolve(jobs[0].id[-8:])
    with pytest.raises(ConfigError, match=r"too short an ending for more than 10 jobs: write 8 characters"):
        await resolve(jobs[-1].id[-5:])
    assert await resolve(jobs[0].id) == [jobs[0].id]


@virtual
async def test_workflows_by_the_endings_of_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """C: the same for workflows."""
    monkeypatch.setattr("taskharbor.runtime.workflows.PAGE", 2)
    world = World()

    @world.harbor.task
    async def work(before: None = None) -> None: ...

    runs = [await chain(work.step(), work).aenqueue() for _ in range(5)]
    resolve = world.harbor.admin.workflows.aresolve
    assert [await resolve(run.id[-8:]) for run in runs] == [run.id for run in runs]
    assert await resolve(runs[0].id) == runs[0].id
    assert await resolve("nobody") == "nobody"
