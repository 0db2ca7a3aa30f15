"""Recurring tasks over weeks of virtual time: what becomes of ticks that are missed, overlap or jitter (N2, N4)."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import Any

from rhythm import DAY, HOUR, MINUTE, WEEK, StandIn, at, jobs_of, over_weeks, slots_of, stored, ticking
from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import CancelledByRequest, Failed, Outcome, Succeeded
from world import World


def recurring(**options: Any) -> World:
    """A world whose code declares `work`."""
    world = World()

    @world.harbor.recurring(name="work", **options)
    async def work() -> None: ...

    return world


def grid(start: float, end: float, step: float) -> list[Any]:
    """The slots from one moment to another."""
    return [at(start + number * step) for number in range(round((end - start) / step) + 1)]


def taking(*seconds: float) -> Any:
    """Runs that take so long, in turn."""
    turn = iter(range(10**9))

    def fate(job: JobRecord) -> tuple[float, Outcome]:
        return seconds[next(turn) % len(seconds)], Succeeded(b"null")

    return fate


# missed ticks


@over_weeks
async def test_a_month_of_downtime_becomes_one_run() -> None:
    """N4: the default; the run is that of the last missed tick, and the next comes at its own time."""
    world = recurring(every=HOUR)
    work = StandIn(world)
    async with work.at_work():
        async with ticking(world.harbor):
            await asyncio.sleep(2 * HOUR)
        await asyncio.sleep(30 * DAY)
        async with ticking(world.harbor):
            await asyncio.sleep(2 * HOUR)
    assert slots_of(world) == [at(HOUR), at(2 * HOUR), *grid(30 * DAY + 2 * HOUR, 30 * DAY + 4 * HOUR, HOUR)]


@over_weeks
async def test_what_was_missed_is_skipped_where_that_is_asked_for() -> None:
    """N4: a tick that is noticed more than a minute late does not run; one within it does."""
    world = recurring(every=HOUR, catch_up="skip", overlap="allow")
    async with ticking(world.harbor):
        await asyncio.sleep(HOUR + 1)
    await asyncio.sleep(30 * DAY + 2 * MINUTE - 2)
    async with ticking(world.harbor):
        await asyncio.sleep(1)
        assert slots_of(world) == [at(HOUR)]
    await asyncio.sleep(HOUR - 90)
    async with ticking(world.harbor):
        await asyncio.sleep(1)
    assert slots_of(world) == [at(HOUR), at(30 * DAY + 2 * HOUR)]


@over_weeks
async def test_all_missed_ticks_run_up_to_the_bound_the_latest_of_them_in_order() -> None:
    """N4: one at a time where they must not overlap."""
    world = recurring(every=HOUR, catch_up="all", max_catch_up=50)
    work = StandIn(world, taking(20, 40))
    async with ticking(world.harbor):
        await asyncio.sleep(1)
    await asyncio.sleep(3 * WEEK - 1)
    async with work.at_work(), ticking(world.harbor):
        await asyncio.sleep(HOUR)
    assert work.slots == slots_of(world) == grid(3 * WEEK - 49 * HOUR, 3 * WEEK + HOUR, HOUR)[: len(work.slots)]
    assert len(work.slots) >= 50
    assert work.most == 1


@over_weeks
async def test_all_missed_ticks_run_side_by_side_where_they_may() -> None:
    """N4: at once, and each of them once."""
    world = recurring(every=HOUR, catch_up="all", max_catch_up=1000, overlap="allow")
    work = StandIn(world, taking(20))
    async with ticking(world.harbor, world.harbor):
        await asyncio.sleep(1)
    await asyncio.sleep(3 * WEEK)
    async with work.at_work(), ticking(world.harbor, world.harbor):
        await asyncio.sleep(MINUTE)
    assert slots_of(world) == grid(HOUR, 3 * WEEK, HOUR)
    assert work.most == 504


@over_weeks
async def test_weeks_of_rest_are_not_made_up_for() -> None:
    """N5: whatever the policy says; the first run after a resume is the next tick."""
    world = recurring(every=HOUR, catch_up="all", overlap="allow")
    admin = world.harbor.admin.recurring
    async with ticking(world.harbor):
        await asyncio.sleep(HOUR + 10)
    await admin.apause("work")
    async with ticking(world.harbor):
        await asyncio.sleep(3 * WEEK)
        assert slots_of(world) == [at(HOUR)]
    await admin.aresume("work")
    async with ticking(world.harbor):
        await asyncio.sleep(2 * HOUR)
    assert slots_of(world) == [at(HOUR), at(3 * WEEK + 2 * HOUR), at(3 * WEEK + 3 * HOUR)]


@over_weeks
async def test_pauses_over_weeks_leave_out_exactly_their_ticks() -> None:
    """N5: paused for a night, every night."""
    world = recurring(every=HOUR)
    admin, work = world.harbor.admin.recurring, StandIn(world)
    await asyncio.sleep(0.5 * HOUR)
    async with work.at_work():
        for _ in range(21):
            async with ticking(world.harbor):
                await asyncio.sleep(17 * HOUR - 1)
            await admin.apause("work")
            async with ticking(world.harbor):
                await asyncio.sleep(7 * HOUR - 1)
            await admin.aresume("work")
    assert work.slots == [at(day * DAY + hour * HOUR) for day in range(21) for hour in range(1, 18)]


# overlap


@over_weeks
async def test_ticks_during_a_run_are_skipped() -> None:
    """N4: the default. Of runs that take two and a half intervals every third tick is left, for weeks."""
    world = recurring(every=HOUR)
    work = StandIn(world, taking(2.5 * HOUR))
    async with work.at_work(), ticking(world.harbor, world.harbor):
        await asyncio.sleep(4 * WEEK)
    assert work.slots == grid(HOUR, 4 * WEEK - 2 * HOUR, 3 * HOUR)
    assert work.most == 1


@over_weeks
async def test_runs_overlap_where_they_may() -> None:
    """N4: every tick runs, two and a half at a time."""
    world = recurring(every=HOUR, overlap="allow")
    work = StandIn(world, taking(2.5 * HOUR))
    async with work.at_work(), ticking(world.harbor, world.harbor):
        await asyncio.sleep(4 * WEEK)
    assert work.slots == grid(HOUR, 4 * WEEK, HOUR)
    assert work.most == 3


@over_weeks
async def test_of_ticks_that_wait_for_their_turn_none_is_lost() -> None:
    """N4: catch_up="all" without overlap: a long run now and then, and the others follow one by one."""
    world = recurring(every=HOUR, catch_up="all")
    work = StandIn(world, taking(*[30.0] * 200, 2.5 * HOUR))
    async with work.at_work(), ticking(world.harbor):
        await asyncio.sleep(2 * WEEK)
    assert work.slots == grid(HOUR, HOUR * len(work.slots), HOUR)
    assert len(work.slots) >= 2 * 7 * 24 - 1
    assert work.most == 1


# jitter


@over_weeks
async def test_jitter_stays_within_its_bounds_and_every_slot_runs_once() -> None:
    """N2, N1: never early, never later than its length, spread over it, and slots stay what they are."""
    world = recurring(every=HOUR, jitter=10 * MINUTE)
    work = StandIn(world)
    async with work.at_work(), ticking(world.harbor, world.harbor, world.harbor):
        await asyncio.sleep(4 * WEEK)
    last = [job for job in jobs_of(world) if job.completed_at is None]
    assert work.slots == grid(HOUR, 4 * WEEK, HOUR)[: len(work.slots)]
    assert len(work.slots) + len(last) == 4 * 7 * 24
    late = [(began - slot).total_seconds() for slot, began in work.began]
    assert min(late) >= 0
    assert max(late) <= 10 * MINUTE + 0.1
    assert min(late) < 30
    assert max(late) > 9.5 * MINUTE
    assert 4.5 * MINUTE < sum(late) / len(late) < 5.5 * MINUTE


# one run after the other


@over_weeks
async def test_a_delay_counts_from_the_end_of_each_run() -> None:
    """N2: fixed_delay, exactly, for weeks, however long runs take and however many schedulers look."""
    world = recurring(every=6 * HOUR, mode="fixed_delay")
    rng = Random(5)
    work = StandIn(world, lambda job: (rng.uniform(0, 40), Succeeded(b"null")))
    async with work.at_work(), ticking(world.harbor, world.harbor):
        await asyncio.sleep(4 * WEEK)
    assert len(work.slots) > 100
    assert work.most == 1
    assert [slot - end for end, slot in zip(work.ended, work.slots[1:], strict=False)] == (
        [timedelta(hours=6)] * (len(work.slots) - 1)
    )
    assert all(timedelta(0) <= began - slot < timedelta(seconds=0.1) for slot, began in work.began)


@over_weeks
async def test_a_delay_counts_from_the_end_of_a_run_whatever_became_of_it() -> None:
    """N2, F1: retries belong to the run; dead letters and cancelled runs have ended as well."""
    world = recurring(every=6 * HOUR, mode="fixed_delay", max_attempts=3)
    rng, fates = Random(5), Counter[str]()
    kinds: dict[str, Outcome] = {
        "done": Succeeded(b"null"),
        "failed": Failed("ValueError", "no"),
        "dead": Failed("Unrecoverable", "never", final="unrecoverable"),
        "cancelled": CancelledByRequest(),
    }

    def fate(job: JobRecord) -> tuple[float, Outcome]:
        kind = rng.choices(list(kinds), [3, 3, 1, 1])[0]
        fates[kind] += 1
        return rng.uniform(0, 20), kinds[kind]

    work = StandIn(world, fate)
    async with work.at_work(), ticking(world.harbor, world.harbor):
        await asyncio.sleep(4 * WEEK)
    assert min(fates.values()) > 5
    jobs = jobs_of(world)
    assert {job.state.value for job in jobs[:-1]} == {"done", "dlq", "cancelled"}
    assert max(job.attempts for job in jobs) == 3
    assert len(jobs) > 90
    for one, other in pairwise(jobs):
        assert one.completed_at is not None
        assert other.headers["slot"] == (one.completed_at + timedelta(hours=6)).isoformat()


@over_weeks
async def test_a_delay_counts_from_now_when_the_last_run_is_gone() -> None:
    """N2: deleted, pruned: it is noticed within a second, and the next run comes an interval later."""
    world = recurring(every=6 * HOUR, mode="fixed_delay")
    gone: list[Any] = []
    async with ticking(world.harbor, world.harbor):
        for _ in range(100):
            slot = (await stored(world)).slot
            assert slot is not None
            await asyncio.sleep((slot - world.clock()).total_seconds() + 0.5)
            (job,) = jobs_of(world)
            assert await world.memory.cancel([job.id], world.clock(), at(10 * WEEK))
            assert await world.memory.delete([job.id]) == ["deleted"]
            gone.append(world.clock())
            await asyncio.sleep(1)
            slot = (await stored(world)).slot
            assert slot is not None
            assert timedelta(0) <= slot - gone[-1] - timedelta(hours=6) <= timedelta(seconds=1)
    assert gone[-1] - gone[0] > timedelta(days=21)


@over_weeks
async def test_the_end_of_a_run_is_noticed_within_a_second() -> None:
    """N2: the next slot is known then, however long the run has taken, and one scheduler writes it down."""
    world = recurring(every=6 * HOUR, mode="fixed_delay")
    work = StandIn(world, taking(0, 0.3, 5, 100))
    async with work.at_work(), ticking(world.harbor, world.harbor):
        await asyncio.sleep(4 * WEEK)
    swaps = [(swap, call["now"]) for call in world.log.calls("swap_schedules") for swap in call["swaps"]]
    noticed = {swap.then.slot: now for swap, now in swaps if swap.seen and swap.seen.slot is None}
    assert list(noticed) == [end + timedelta(hours=6) for end in work.ended]
    late = [(now - end).total_seconds() for now, end in zip(noticed.values(), work.ended, strict=True)]
    assert len(late) > 100
    assert max(late) < 1.0
