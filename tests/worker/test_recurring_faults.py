"""Recurring tasks with many schedulers, wrong clocks, and a store that is away: one job per slot (N3, X2, X3, X4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from rhythm import at, jobs_of, scheduler, slots_of, stored, ticking
from taskharbor import Harbor
from taskharbor.driver import Driver
from taskharbor.testing import Flaky, LostReply, LostRequest, Outage, SkewedClock, Slow, Wrapper, sometimes
from taskharbor.worker.scheduler import BITE
from world import World, time, virtual

HOUR = 3600.0
SECOND = timedelta(seconds=1)


def member(world: World, number: int, driver: Driver | None = None, skew: float = 0.0, **options: Any) -> Harbor:
    """One of many processes: it declares `work` like all others, by its own clock and its own way to the store."""
    clock = SkewedClock(world.clock, skew)
    harbor = Harbor(driver=driver or world.store, clock=clock, rng=Random(number), store_timeout=5)

    @harbor.recurring(name="work", **options)
    async def work() -> None: ...

    return harbor


def seamless(slots: list[datetime], step: timedelta = SECOND) -> list[datetime]:
    """As many slots from the first on, with none missing and none twice."""
    return [slots[0] + number * step for number in range(len(slots))]


@virtual
async def test_eight_workers_make_one_job_per_slot() -> None:
    """N3, H10: of all who wake up for a tick one enqueues it; most of the others do not even try."""
    world = World()
    harbors = [member(world, number, every=1, catch_up="all", overlap="allow") for number in range(8)]
    async with AsyncExitStack() as stack:
        for harbor in harbors:
            await stack.enter_async_context(harbor.worker(threads=False))
        await asyncio.sleep(60.5)
    assert slots_of(world) == [at(seconds) for seconds in range(1, 61)]
    assert {job.state.value for job in jobs_of(world)} == {"done"}
    assert len(world.log.calls("swap_schedules")) < 60 * 5


@virtual
async def test_eight_workers_whose_clocks_are_an_hour_apart_make_one_job_per_slot() -> None:
    """N3, X4, H10: where the store has no clock a fast one ticks early, but no tick happens twice or is lost."""
    world = World()
    skews = [-HOUR, -HOUR / 2, -60, -1, 1, 60, HOUR / 2, HOUR]
    many: dict[str, Any] = {"every": 60, "catch_up": "all", "max_catch_up": 1000, "overlap": "allow"}
    harbors = [member(world, number, skew=skew, **many) for number, skew in enumerate(skews)]
    async with ticking(*harbors):
        await asyncio.sleep(1200)
    slots = slots_of(world)
    assert slots == seamless(slots, timedelta(minutes=1))
    assert slots[-1] == at(HOUR + 1200)


@virtual
async def test_clocks_that_jump_repeat_no_slot() -> None:
    """N3, X4: set back an hour, a clock waits until it is there again."""
    world, rng = World(), Random(3)
    harbors = [member(world, number, every=60, catch_up="all", overlap="allow") for number in range(3)]
    async with ticking(*harbors):
        for _ in range(20):
            for harbor in harbors:
                clock: Any = harbor._session._given_clock
                clock.offset = timedelta(seconds=rng.choice([0, 0, 60, -60, HOUR, -HOUR]))
            await asyncio.sleep(60)
    slots = slots_of(world)
    assert slots == seamless(slots, timedelta(minutes=1))


@pytest.mark.parametrize("verb", ["schedules", "swap_schedules", "get"])
@pytest.mark.parametrize("wrap", [LostRequest, LostReply])
@virtual
async def test_with_any_verb_losing_half_its_calls_every_slot_has_one_job(
    verb: str, wrap: type[LostRequest] | type[LostReply]
) -> None:
    """X3, N3: a swap whose reply was lost is not repeated; the schedule itself says whether it happened."""
    world = World()
    lines = [wrap(world.log, sometimes(Random(number), 0.5, only=[verb])) for number in range(3)]
    many: dict[str, Any] = {"every": 1, "catch_up": "all", "overlap": "allow"}
    async with ticking(*(member(world, number, line, **many) for number, line in enumerate(lines))):
        await asyncio.sleep(120)
    slots = slots_of(world)
    assert slots == seamless(slots)
    assert len(slots) > 110


@pytest.mark.parametrize("seed", range(4))
@virtual
async def test_a_flaky_and_slow_store_makes_one_job_per_slot(seed: int) -> None:
    """X2, X3, N3: whatever overtakes whatever on the way."""
    world, rng = World(seed=seed), Random(seed)

    def line() -> Driver:
        return Slow(Flaky(world.log, rng, 0.2), lambda: rng.expovariate(3))

    many: dict[str, Any] = {"every": 1, "catch_up": "all", "max_catch_up": 1000, "overlap": "allow"}
    async with ticking(*(member(world, number, line(), **many) for number in range(4))):
        await asyncio.sleep(300)
    slots = slots_of(world)
    assert slots == seamless(slots)
    assert len(slots) > 250


@virtual
async def test_an_outage_is_ridden_out_and_caught_up_with() -> None:
    """X2, N4: no scheduler ends because of it; afterwards every policy does what it says."""
    world = World(Outage)
    harbor = Harbor(driver=world.store, clock=world.clock, rng=Random(1))

    @harbor.recurring(name="last", every=300, catch_up="last", overlap="allow")
    @harbor.recurring(name="all", every=300, catch_up="all", overlap="allow")
    @harbor.recurring(name="skip", every=300, catch_up="skip", overlap="allow")
    async def work() -> None: ...

    async with ticking(harbor):
        await asyncio.sleep(310)
        world.store.down = True
        await asyncio.sleep(1300 - time())
        world.store.down = False
        await asyncio.sleep(3)
        assert slots_of(world, "last") == [at(300), at(1200)]
        assert slots_of(world, "all") == [at(300), at(600), at(900), at(1200)]
        assert slots_of(world, "skip") == [at(300)]
        await asyncio.sleep(200)
    assert {slots_of(world, name)[-1] for name in ("last", "all", "skip")} == {at(1500)}


@virtual
async def test_a_delay_is_not_doubled_by_lost_replies() -> None:
    """N2, N3, X3: a lost reply of the tick, or of the word that the run has ended, makes no second run."""
    world = World()
    lines = [Flaky(world.log, Random(number), 0.4) for number in range(3)]
    harbors = [member(world, number, line, every=5, mode="fixed_delay") for number, line in enumerate(lines)]
    async with AsyncExitStack() as stack:
        for harbor in harbors:
            await stack.enter_async_context(harbor.worker(threads=False, lease=10))
        await asyncio.sleep(600)
    jobs = jobs_of(world)
    assert len(jobs) > 40
    for before, job in pairwise(jobs):
        assert before.completed_at is not None
        assert job.headers["slot"] == (before.completed_at + timedelta(seconds=5)).isoformat()


@virtual
async def test_two_schedulers_at_the_same_moment_make_one_job() -> None:
    """N3: both have read the same schedule before either has written."""
    world = World(lambda inner: Slow(inner, 0.2))
    looks = [scheduler(member(world, number, every=10)) for number in range(8)]
    await looks[0].declare()
    await asyncio.sleep(20 - time())
    await asyncio.gather(*(look.look() for look in looks))
    assert len(world.log.calls("swap_schedules")) == 1 + 8
    assert slots_of(world) == [at(20)]
    assert (await stored(world)).slot == at(30)


@pytest.mark.parametrize("strike", ["before", "after"])
@virtual
async def test_a_tick_is_whole_or_not_at_all(strike: str) -> None:
    """N3: a scheduler that dies around its swap loses no slot and doubles none."""
    world = World()
    kind: Callable[..., Any] = LostRequest if strike == "before" else LostReply
    dying = scheduler(member(world, 1, kind(world.log, lambda verb: verb == "swap_schedules"), every=10))
    async with ticking(member(world, 2, every=10)):
        await asyncio.sleep(5)
    await asyncio.sleep(5)
    with pytest.raises(Exception, match="was lost"):
        await dying.look()
    assert len(jobs_of(world)) == (1 if strike == "after" else 0)
    async with ticking(member(world, 3, every=10)):
        await asyncio.sleep(1)
    assert slots_of(world) == [at(10)]


@virtual
async def test_many_that_are_due_at_once_come_in_bites() -> None:
    """N3, X2: a store too slow for all of them in one turn gets on nevertheless, turn by turn."""
    world = World(lambda inner: Slow(inner, 2.0))
    harbor = Harbor(driver=world.store, clock=world.clock, rng=Random(1), store_timeout=9)

    async def work() -> None: ...

    task = harbor.task(name="work")(work)
    for number in range(250):
        harbor.recurring(name=f"work{number:03}", every=1000)(task)
    async with ticking(harbor):
        await asyncio.sleep(1100)
    assert len(slots_of(world)) == 250
    assert all(len(call["swaps"]) <= BITE for call in world.log.calls("swap_schedules"))


@virtual
async def test_a_worker_that_may_not_declare_is_not_waited_for() -> None:
    """X2, N5: what waiting does not mend is raised at the beginning of the block."""
    world = World(Denied)

    @world.harbor.recurring(every=10)
    async def work() -> None: ...

    with pytest.raises(PermissionDenied):
        async with world.worker():
            raise AssertionError("the block must not begin")


class PermissionDenied(Exception):
    """No store that is away."""


class Denied(Wrapper):
    """A store whose user may not change schedules."""

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Any) -> Any:
        if verb == "swap_schedules":
            raise PermissionDenied("not yours")
        return await call()


@virtual
async def test_a_worker_that_stops_ticks_no_more() -> None:
    """X6, N4: what comes due in its grace period is for others, or for later."""
    world = World()

    @world.harbor.recurring(every=1, overlap="allow")
    async def work() -> None:
        await asyncio.sleep(20)

    async with world.worker(grace=25):
        await asyncio.sleep(2.5)
    assert slots_of(world) == [at(1), at(2)]


@pytest.mark.parametrize("seconds", [0.3, 0.8])
@virtual
async def test_what_waits_for_its_turn_begins_as_soon_as_the_one_before_has_ended(seconds: float) -> None:
    """N4: so that a backlog is worked off, also by runs nearly as long as the interval."""
    world = World()

    @world.harbor.recurring(every=1, catch_up="all")
    async def work() -> None:
        await asyncio.sleep(seconds)

    async with world.worker():
        await asyncio.sleep(2)
    await asyncio.sleep(5)
    async with world.worker():
        await asyncio.sleep(53)
    assert slots_of(world) == seamless(slots_of(world))
    assert slots_of(world)[-1] > at(58)
