"""Recurring tasks: one job per slot, and what becomes of ticks that are missed, overlap, or come from two codes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from rhythm import at, jobs_of, slot_of, slots_of, stored, ticking
from taskharbor import Harbor, Retry, current
from taskharbor.errors import ScheduleBusy
from taskharbor.testing import Outage, SkewedClock, Slow
from world import World, until

from .stage import only, scene


def code(world: World, seconds: float = 0.0, skew: float = 0.0, **options: Any) -> Harbor:
    """A generation of the code that declares `work` if times are given."""
    harbor = Harbor(driver=world.store, clock=SkewedClock(world.clock, skew), rng=world.harbor._session.rng)

    async def work() -> None:
        await asyncio.sleep(seconds)

    task = harbor.task(name="work")(work)
    if options:
        harbor.recurring(**options)(task)
    return harbor


def working(harbor: Harbor) -> Any:
    """A worker on this loop alone."""
    return harbor.worker(threads=False)


@scene
async def many_schedulers_make_one_job_per_slot() -> None:
    """N3: although all have read the schedule before one of them writes."""
    world = World(lambda inner: Slow(inner, 0.1, only("swap_schedules")))
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(working(code(world, every=5, overlap="allow")))
        await asyncio.sleep(32)
    assert slots_of(world) == [at(seconds) for seconds in range(5, 31, 5)]


@scene
async def a_handler_knows_its_slot() -> None:
    """N3: whenever it runs."""
    world, seen = World(), list[datetime | None]()

    @world.harbor.recurring(every=10, jitter=5)
    async def work() -> None:
        seen.append(current().slot)

    async with world.worker():
        await asyncio.sleep(36)
    assert seen == [at(10), at(20), at(30)]


@scene
async def a_tick_during_a_run_is_skipped() -> None:
    """N4: the default."""
    world = World()
    async with working(code(world, 25, every=10)):
        await asyncio.sleep(75)
    assert slots_of(world) == [at(10), at(40), at(70)]


async def missed(policy: str) -> list[datetime]:
    """The slots that have jobs after ten ticks were missed, the last by 70 seconds."""
    world = World()
    harbor = code(world, every=100, catch_up=policy, overlap="allow")
    async with ticking(harbor):
        await asyncio.sleep(5)
    await asyncio.sleep(1064)
    async with ticking(harbor):
        return slots_of(world)


@scene
async def missed_ticks_become_one_run() -> None:
    """N4: the default."""
    assert await missed("last") == [at(1000)]


@scene
async def what_is_too_late_is_skipped() -> None:
    """N4: where that is asked for."""
    assert await missed("skip") == []


@scene
async def all_missed_ticks_have_a_bound_and_an_order() -> None:
    """N4: the latest, from the oldest to the newest, one at a time."""
    world, seen, on = World(), list[datetime | None](), 0

    def declared() -> Harbor:
        harbor = Harbor(driver=world.store, clock=world.clock, rng=world.harbor._session.rng)

        @harbor.recurring(name="work", every=100, catch_up="all", max_catch_up=3)
        async def work() -> None:
            nonlocal on
            seen.append(None if on else current().slot)
            on += 1
            await asyncio.sleep(2)
            on -= 1

        return harbor

    async with ticking(declared()):
        await asyncio.sleep(5)
    await asyncio.sleep(1044)
    async with working(declared()):
        await asyncio.sleep(30)
    assert seen == [at(800), at(900), at(1000)]


@scene
async def a_rest_is_not_made_up_for() -> None:
    """N5: nothing ticks meanwhile, and nothing is caught up with afterwards."""
    world = World()
    harbor = code(world, every=10, catch_up="all", overlap="allow")
    async with working(harbor):
        await asyncio.sleep(12)
        await harbor.admin.recurring.apause("work")
        await asyncio.sleep(100)
        assert slots_of(world) == [at(10)]
        await harbor.admin.recurring.aresume("work")
        await asyncio.sleep(10)
    assert slots_of(world) == [at(10), at(120)]


@scene
async def a_pause_outlives_a_deploy() -> None:
    """N5: whatever the new code declares."""
    world = World()
    old = code(world, every=10)
    async with working(old):
        await asyncio.sleep(1)
        await old.admin.recurring.apause("work")
    async with working(code(world, every=5)):
        await asyncio.sleep(30)
    assert (await stored(world)).paused
    assert slots_of(world) == []


@scene
async def the_last_to_start_wins() -> None:
    """N5: and those that run already do not fight for theirs."""
    world = World()
    async with working(code(world, every=10)):
        await asyncio.sleep(12)
        async with working(code(world, every=15)):
            await asyncio.sleep(80)
    assert slots_of(world) == [at(seconds) for seconds in (10, 15, 30, 45, 60, 75, 90)]


@scene
async def a_deploy_by_a_slow_clock_repeats_no_slot() -> None:
    """N3, X4: what a fast clock has run is over, also for one that is an hour behind."""
    world = World()
    async with working(code(world, skew=3600, every=600, overlap="allow")):
        await asyncio.sleep(650)
    before = slots_of(world)
    assert before == [at(4200)]
    async with working(code(world, every=300, overlap="allow")):
        await asyncio.sleep(900)
    assert (await stored(world)).slot == at(4500)
    assert slots_of(world) == before


@scene
async def jitter_is_never_early_and_never_too_late() -> None:
    """N2, N1: between the slot and its length after it."""
    world = World()
    async with working(code(world, every=20, jitter=10)):
        await asyncio.sleep(415)
    jobs = jobs_of(world)
    assert slots_of(world) == [at(20 * number) for number in range(1, 21)]
    late = [(job.run_at - slot_of(job)).total_seconds() for job in jobs if job.run_at is not None]
    assert len(late) == 20
    assert min(late) >= 0
    assert max(late) <= 10
    assert max(late) - min(late) > 5


@scene
async def an_unknown_task_is_put_back() -> None:
    """N3: no job is made that no worker could run; workers that know the task go on."""
    world = World()
    await world.harbor.admin.recurring.acreate("work", "work", every=10)
    async with world.worker():
        await asyncio.sleep(35)
        assert slots_of(world) == []
        async with working(code(world)):
            await asyncio.sleep(10)
    assert slots_of(world) == [at(30), at(40)]


@scene
async def a_delay_counts_from_the_end() -> None:
    """N2: of the whole run, retries included."""
    world, failed = World(), 0

    @world.harbor.recurring(name="work", every=20, mode="fixed_delay", retry=Retry.fixed(10))
    async def work() -> None:
        nonlocal failed
        await asyncio.sleep(5)
        if current().attempt == 1:
            failed += 1
            raise ValueError("not yet")

    async with world.worker():
        await asyncio.sleep(200)
    jobs = [job for job in jobs_of(world) if job.completed_at]
    assert len(jobs) >= 4
    for before, job in pairwise(jobs):
        assert before.completed_at is not None
        assert slot_of(job) == before.completed_at + timedelta(seconds=20)


@scene
async def a_delay_goes_on_when_its_last_run_is_gone() -> None:
    """N2: an interval after that was noticed."""
    world = World()
    async with ticking(code(world, every=20, mode="fixed_delay")):
        await asyncio.sleep(25)
        (job,) = jobs_of(world)
        await world.memory.cancel([job.id], world.clock(), world.clock())
        await world.memory.delete([job.id])
        await asyncio.sleep(30)
        assert len(jobs_of(world)) == 1


@scene
async def a_run_by_hand_stands_beside_the_ticks() -> None:
    """N5: it moves no tick; it is refused while its last run goes on; each has a slot of its own."""
    world = World()
    harbor = code(world, 3, every=20)
    admin = harbor.admin.recurring
    async with working(harbor):
        await asyncio.sleep(10)
        await admin.arun("work")
        try:
            await admin.arun("work")
        except ScheduleBusy:
            pass
        else:
            raise AssertionError("two runs at once")
        await asyncio.sleep(20)
        assert slots_of(world) == [at(10), at(20)]
        await asyncio.sleep(9.99)
        await admin.achange("work", overlap="allow")
        await until(lambda: world.clock() >= at(40), 0.001)
        for _ in range(4):
            await admin.arun("work")
        await asyncio.sleep(5)
    assert len(set(slots_of(world))) == len(slots_of(world)) == 7


@scene
async def a_delay_follows_a_run_by_hand() -> None:
    """N5, N2: the next run comes an interval after its end, and not before."""
    world = World()
    harbor = code(world, 3, every=30, mode="fixed_delay")
    async with working(harbor):
        await asyncio.sleep(20)
        await harbor.admin.recurring.arun("work")
        await asyncio.sleep(31)
        assert slots_of(world) == [at(20)]
        await asyncio.sleep(5)
    assert len(jobs_of(world)) == 2


@scene
async def schedulers_come_back_after_an_outage() -> None:
    """X2: and what is declared while the store is away is declared later."""
    world = World(Outage)
    async with ticking(code(world, every=10, overlap="allow")):
        world.store.down = True
        await asyncio.sleep(60)
        async with ticking(code(world, every=5, overlap="allow")):
            world.store.down = False
            await asyncio.sleep(20)
    assert slots_of(world)[-2:] == [at(75), at(80)]
