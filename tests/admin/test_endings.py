"""Whole ids for the endings that lists show."""

from __future__ import annotations

import pytest

from taskharbor import chain
from taskharbor.admin import endings
from taskharbor.errors import ConfigError
from world import World, virtual


@virtual
async def test_an_ending_identifies_one_job() -> None:
    """C: the ending of an id is found page by page; an id that exists is always taken as it is."""
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    jobs = await world.harbor.aenqueue_many(work.step() for _ in range(20))
    await work.using(id="daily-report-2026-01-01").aenqueue()
    await work.using(id="feedbeef").aenqueue()
    await work.using(id="x-feedbeef").aenqueue()
    admin = world.harbor.admin
    assert await admin.jobs.aresolve([job.id[-8:] for job in jobs]) == [job.id for job in jobs]
    assert await admin.jobs.aresolve(["…" + jobs[0].id[-8:], jobs[1].id, "feedbeef"]) == [
        jobs[0].id,
        jobs[1].id,
        "feedbeef",
    ]
    for text in ("nobody", "17", jobs[0].id[-7:], "report-2026-01-01", "2026-01-01", "-feedbeef"):
        assert await admin.jobs.aresolve(text) == [text]


@virtual
async def test_an_ending_of_several_jobs_is_refused_with_their_ids() -> None:
    """C, X5: nothing is done to the wrong job."""
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    for number in range(7):
        await work.using(id=f"0198c5d2-0000-7000-8000-000{number}deadbeef").aenqueue()
    several = r"'deadbeef' is the ending of 7 job ids: 0198c5d2-0000-7000-8000-0006deadbeef, .* …: write more of it"
    with pytest.raises(ConfigError, match=several):
        await world.harbor.admin.jobs.aresolve("deadbeef")


@virtual
async def test_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """C: on a large store only the newest jobs are searched; what is not found stays as it is, beside the others."""
    monkeypatch.setattr(endings, "SEARCHED", 10)
    monkeypatch.setattr("taskharbor.client.client.PAGE", 5)
    world = World()

    @world.harbor.task
    async def work() -> None: ...

    jobs = await world.harbor.aenqueue_many(work.step() for _ in range(50))
    resolve = world.harbor.admin.jobs.aresolve
    assert await resolve(jobs[-1].id[-8:]) == [jobs[-1].id]
    assert sum(call["limit"] for call in world.log.calls("query")) == 10
    early = jobs[0].id[-8:]
    assert await resolve([early, jobs[-1].id[-8:], jobs[0].id]) == [early, jobs[-1].id, jobs[0].id]
    before = len(world.log.calls("query"))
    gone = "0198c5d2-0000-7000-8000-0000deadbeef"
    assert await resolve([gone, "nobody", jobs[0].id]) == [gone, "nobody", jobs[0].id]
    assert len(world.log.calls("query")) == before  # a whole UUID is not searched for
    assert await world.harbor.admin.jobs.acancel([gone, jobs[0].id]) == ["missing", "cancelled"]


@virtual
async def test_workflows_by_the_endings_of_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """C: the same for workflows."""
    monkeypatch.setattr("taskharbor.admin.workflows.PAGE", 2)
    world = World()

    @world.harbor.task
    async def work(before: None = None) -> None: ...

    runs = [await chain(work.step(), work).aenqueue() for _ in range(5)]
    resolve = world.harbor.admin.workflows.aresolve
    assert [await resolve(run.id[-8:]) for run in runs] == [run.id for run in runs]
    assert await resolve(runs[0].id) == runs[0].id
    assert await resolve("nobody") == "nobody"
