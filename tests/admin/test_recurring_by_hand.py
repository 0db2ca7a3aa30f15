"""Recurring tasks by hand: run now, change, make, delete, list (N5)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from rhythm import at, jobs_of, slots_of, stored, ticking
from taskharbor import current
from taskharbor.admin.recurring import Recurring
from taskharbor.core.recurrence import Definition, Recurrence, decode, encode
from taskharbor.core.schedule import Schedule
from taskharbor.driver import Swap
from taskharbor.errors import ConfigError, InvalidJob, ScheduleBusy, ScheduleExists, ScheduleNotFound
from taskharbor.testing import LostReply, script
from world import World, until, virtual


def recurring(**options: Any) -> tuple[World, Recurring]:
    """A world whose code declares `work`, which takes three seconds."""
    world = World()

    @world.harbor.recurring(name="work", **options)
    async def work() -> None:
        await asyncio.sleep(3)

    return world, world.harbor.admin.recurring


@virtual
async def test_a_run_by_hand_comes_at_once_and_beside_the_ticks() -> None:
    """N5: the schedule stays where it was; the run knows when it was asked for."""
    world, admin = recurring(every=60)
    async with world.worker():
        await asyncio.sleep(10)
        job = await admin.arun("work")
        await job.aresult(timeout=5)
        shown = await admin.aget("work")
        assert (shown.next_run, shown.last_run, shown.last_job_id) == (at(60), at(10), job.id)
        assert shown.last_state == "done"
        await asyncio.sleep(60)
    assert slots_of(world) == [at(10), at(60)]


@virtual
async def test_a_run_by_hand_is_refused_while_the_last_one_goes_on() -> None:
    """N4, N5: `ScheduleBusy`, which names the job; nothing is enqueued. Its own ticks wait for it as well."""
    world, admin = recurring(every=60)
    async with world.worker():
        await asyncio.sleep(58)
        job = await admin.arun("work")
        with pytest.raises(ScheduleBusy, match=job.id):
            await admin.arun("work")
        await asyncio.sleep(30)
        await (await admin.arun("work")).aresult(timeout=5)
    assert slots_of(world) == [at(58), at(88)]


@virtual
async def test_runs_by_hand_may_overlap_where_ticks_may_and_each_has_a_slot_of_its_own() -> None:
    """N3, N5: even if they are asked for at one and the same moment, which is that of a tick."""
    world, admin = recurring(every=60, overlap="allow")
    async with world.worker():
        await asyncio.sleep(60)
        for _ in range(4):
            await admin.arun("work")
        await asyncio.sleep(5)
    assert len(set(slots_of(world))) == len(slots_of(world)) == 5
    assert slots_of(world).count(at(60)) == 1
    assert {job.state.value for job in jobs_of(world)} == {"done"}


@virtual
async def test_a_delay_follows_a_run_by_hand() -> None:
    """N2, N5: the next run comes an interval after its end; there is no second one beside it."""
    world, admin = recurring(every=60, mode="fixed_delay")
    async with world.worker():
        await asyncio.sleep(30)
        job = await admin.arun("work")
        assert (await admin.aget("work")).next_run is None
        assert await admin.anext("work") == []
        await job.aresult(timeout=5)
        ended = (await world.record(job)).completed_at
        assert ended is not None
        await asyncio.sleep(10)
        assert (await admin.aget("work")).next_run == ended + timedelta(seconds=60)
        assert await admin.anext("work") == [ended + timedelta(seconds=60)]
        await asyncio.sleep(60)
    assert slots_of(world) == [at(30), ended + timedelta(seconds=60)]


@virtual
async def test_what_is_paused_can_be_run_by_hand_and_stays_paused() -> None:
    """N5: a pause is about ticks. A delay goes on from the resume then."""
    for mode in ("fixed_rate", "fixed_delay"):
        world, admin = recurring(every=60, mode=mode)
        async with world.worker():
            await asyncio.sleep(1)
            await admin.apause("work")
            await (await admin.arun("work")).aresult(timeout=5)
            await asyncio.sleep(200)
            assert len(jobs_of(world)) == 1
            assert (await stored(world)).paused
            await admin.aresume("work")
            await asyncio.sleep(62)
        assert len(jobs_of(world)) == 2


@virtual
async def test_a_run_by_hand_whose_reply_is_lost_happens_once() -> None:
    """X3, N5: a second request gets the error that it runs."""
    world = World(lambda inner: LostReply(inner, script("swap_schedules", "swap_schedules")))

    @world.harbor.task(name="work")
    async def work() -> None:
        await asyncio.sleep(3)

    admin = world.harbor.admin.recurring
    with pytest.raises(Exception, match="reply was lost"):
        await admin.acreate("work", "work", every=60)
    with pytest.raises(Exception, match="reply was lost"):
        await admin.arun("work")
    with pytest.raises(ScheduleBusy):
        await admin.arun("work")
    assert len(jobs_of(world)) == 1


@virtual
async def test_one_is_made_at_run_time_and_ticks_like_any_other() -> None:
    """N5: noticed within seconds by workers that run already."""
    world, seen = World(), list[int]()

    @world.harbor.task(name="work", queue="side", max_attempts=2)
    async def work(number: int = 1) -> None:
        seen.append(number)
        assert current().slot is not None

    admin = world.harbor.admin.recurring
    async with world.worker():
        await asyncio.sleep(2)
        made = await admin.acreate("made", "work", every=10, arguments={"number": 7})
        await admin.acreate("bare", work, cron="*/20 * * * * *")
        assert (made.name, made.task, made.queue, made.in_code, made.next_run) == (
            "made",
            "work",
            "side",
            False,
            at(10),
        )
        assert (made.words, made.last_run, made.last_job_id, made.last_state) == ("Every 10 seconds", None, None, None)
        with pytest.raises(ScheduleExists, match="'made'"):
            await admin.acreate("made", "work", every=99)
        await asyncio.sleep(20)
    assert (seen.count(7), seen.count(1)) == (2, 1)
    assert {(job.queue, job.max_attempts) for job in jobs_of(world)} == {("side", 2)}
    assert [it.name for it in await admin.alist()] == ["bare", "made"]


@virtual
async def test_a_change_takes_effect_from_now_on() -> None:
    """N5: what was not given stays; what the code declares counts again when the next worker starts."""
    world, admin = recurring(every=10, catch_up="all", jitter=1)
    async with world.worker():
        await asyncio.sleep(12)
        changed = await admin.achange("work", every=30)
        assert (changed.when.interval, changed.when.catch_up, changed.when.jitter) == (timedelta(seconds=30), "all", 1)
        assert (changed.next_run, changed.in_code) == (at(30), True)
        await asyncio.sleep(50)
        assert slots_of(world) == [at(10), at(30), at(60)]
        cron = await admin.achange("work", cron="*/15 * * * * *", tz="Europe/Berlin")
        assert (cron.when.every, cron.when.tz, cron.next_run) == (None, "Europe/Berlin", at(75))
        await asyncio.sleep(15)
    async with world.worker():
        await asyncio.sleep(1)
        assert (await admin.aget("work")).when.interval == timedelta(seconds=10)


@virtual
async def test_a_change_of_arguments_keeps_the_times() -> None:
    """N5: and only later jobs have them."""
    world, seen = World(), list[int]()

    @world.harbor.task(name="work")
    async def work(number: int = 1) -> None:
        seen.append(number)

    admin = world.harbor.admin.recurring
    await admin.acreate("work", "work", every=60, mode="fixed_delay")
    async with world.worker():
        await asyncio.sleep(30)
        assert (await admin.achange("work", arguments={"number": 2})).next_run == at(60)
        await asyncio.sleep(35)
    assert seen == [2]


@virtual
async def test_a_deleted_one_is_gone_and_its_jobs_stay() -> None:
    """N5: code that declares it brings it back with the next worker."""
    world, admin = recurring(every=10)
    async with world.worker():
        await asyncio.sleep(12)
        await admin.adelete("work")
        await asyncio.sleep(30)
        assert await admin.alist() == []
        assert slots_of(world) == [at(10)]
    async with world.worker():
        await asyncio.sleep(10)
    assert slots_of(world) == [at(10), at(50)]


@pytest.mark.parametrize("verb", ["aget", "anext", "achange", "apause", "aresume", "arun", "adelete"])
@virtual
async def test_what_is_not_there_is_not_found(verb: str) -> None:
    """X5: the error names those that are."""
    world, admin = recurring(every=10)
    async with ticking(world.harbor):
        with pytest.raises(ScheduleNotFound, match=r"'wrok'; there is work"):
            await getattr(admin, verb)("wrok")


@virtual
async def test_the_next_ticks_are_listed() -> None:
    """N5: as many as asked for; of a paused one, those that it would have."""
    world, admin = recurring(cron="0 3 * * *", tz="Europe/Berlin")
    async with ticking(world.harbor):
        days = [at(2 * 3600 + day * 86_400) for day in range(4)]
        assert await admin.anext("work", 4) == days
        await admin.apause("work")
        assert await admin.anext("work", 4) == days
        assert [(it.words, it.next_run) for it in await admin.alist()] == [
            ("At 03:00 every day, Europe/Berlin time", None)
        ]


@virtual
async def test_pausing_and_resuming_twice_is_the_same_as_once() -> None:
    """N5: a resume of what is not paused does not put its next run off."""
    world, admin = recurring(every=60, mode="fixed_delay")
    async with world.worker():
        await asyncio.sleep(30)
        before = await stored(world)
        await admin.aresume("work")
        assert await stored(world) == before
        await admin.apause("work")
        await admin.apause("work")
        await admin.aresume("work")
        assert (await stored(world)).slot == at(90)


@virtual
async def test_operators_and_ticks_do_not_undo_each_other() -> None:
    """N3, N5: many changes at once, each of which takes effect, while it ticks ten times a second."""
    world, admin = recurring(every=0.1, overlap="allow")
    async with world.worker(concurrency=64):
        await asyncio.sleep(1)

        async def changes(number: int) -> None:
            for _ in range(5):
                await admin.achange("work", max_catch_up=number)
                await asyncio.sleep(0.03)
                await admin.arun("work")

        await asyncio.gather(*(changes(number) for number in range(1, 7)), admin.apause("work"))
        await until(lambda: all(job.completed_at for job in jobs_of(world)))
        assert (await stored(world)).paused
    slots = slots_of(world)
    assert len(slots) == len(set(slots))
    assert len([slot for slot in slots if slot.microsecond % 100_000]) >= 30


@virtual
async def test_other_arguments_leave_the_options_as_they_are() -> None:
    """N5: those of the recurring task's own as well, which the task does not know."""
    world = World()

    @world.harbor.recurring(name="work", every=60, queue="night", priority=7, timeout=9, max_attempts=1, tags=["x"])
    async def work(number: int = 1) -> None: ...

    async with ticking(world.harbor):
        before = decode((await stored(world)).definition)
        await world.harbor.admin.recurring.achange("work", arguments={"number": 2})
        after = decode((await stored(world)).definition)
    assert isinstance(before, Definition)
    assert isinstance(after, Definition)
    assert after.payload != before.payload
    assert replace(after, payload=before.payload) == before
    with pytest.raises(InvalidJob):
        await world.harbor.admin.recurring.achange("work", arguments={"nobody": 2})


@virtual
async def test_a_delay_whose_run_has_ended_has_a_next_run_before_any_worker_looks() -> None:
    """N5: so that it is overdue if none ever does."""
    world, admin = recurring(every=60, mode="fixed_delay")
    async with ticking(world.harbor):
        job = await admin.arun("work")
    await world.drain()
    ended = (await world.record(job)).completed_at
    assert ended is not None
    found = await admin.aget("work")
    assert (await stored(world)).slot is None
    assert found.next_run == ended + timedelta(seconds=60)
    assert await admin.anext("work") == [found.next_run]
    assert found.overdue(ended + timedelta(seconds=61)) is None
    assert found.overdue(ended + timedelta(seconds=160)) == timedelta(seconds=100)


@virtual
async def test_what_cannot_be_read_here_is_named() -> None:
    """N5, X5: with the reason, wherever it is asked about."""
    world, admin = recurring(every=60)
    away = Definition(
        task="work",
        when=Recurrence(cron="@daily", tz="Mars"),
        payload=b"{}",
        queue="default",
        max_attempts=1,
        max_crashes=1,
    )
    odd = Schedule(name="odd", definition=encode(away), slot=at(5))
    await world.memory.swap_schedules([Swap(name="odd", seen=None, then=odd)], at(0))
    assert await admin.alist() == []
    assert await admin.aunreadable() == {"odd": "time zone 'Mars' is unknown: use a name such as Europe/Berlin"}
    with pytest.raises(ConfigError, match="'odd' cannot be read here: time zone 'Mars'"):
        await admin.aget("odd")
    await admin.adelete("odd")
    assert await admin.aunreadable() == {}


@virtual
async def test_how_many_times_are_asked_for_is_checked() -> None:
    """X5."""
    _, admin = recurring(every=60)
    with pytest.raises(ConfigError, match="count"):
        await admin.anext("work", 0)


@pytest.mark.parametrize("task", [5, None, len])
@virtual
async def test_only_tasks_can_be_made_recurring(task: Any) -> None:
    """X5: a plain function has no name that workers know."""
    world, admin = recurring(every=60)
    with pytest.raises(ConfigError, match=r"as @harbor\.task returns it"):
        await admin.acreate("made", task, every=60)
    assert await world.memory.schedules() == []
