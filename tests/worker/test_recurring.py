"""Recurring tasks with real workers: declared in code, kept through restarts, paused by operators (N2, N3, N5)."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

from rhythm import at, jobs_of, scheduler, slots_of, stored
from taskharbor import Harbor, current
from taskharbor.core.recurrence import Definition, decode
from taskharbor.core.schedule import Schedule
from taskharbor.driver import Swap
from taskharbor.errors import CapabilityMissing, HarborError
from taskharbor.testing import Outage, Slow, Wrapper
from world import World, time, until, virtual


def generation(world: World, **options: Any) -> World:
    """Another generation of the code on the same store: it declares `work` if times are given."""
    other = World.over(world, world.store)

    async def work() -> None: ...

    task = other.harbor.task(name="work")(work)
    if options:
        other.harbor.recurring(**options)(task)
    return other


@pytest.mark.parametrize("when", [{"every": 10}, {"every": timedelta(seconds=10)}, {"cron": "*/10 * * * * *"}])
@virtual
async def test_a_task_runs_again_and_again(when: dict[str, Any]) -> None:
    """N2, N3: at every tick from the worker's start on, within a tenth of a second, and the handler knows of which."""
    world = World()
    seen: list[tuple[float, datetime | None]] = []

    @world.harbor.recurring(**when)
    async def work() -> None:
        seen.append((time(), current().slot))

    async with world.worker():
        await asyncio.sleep(65)
    assert [slot for _, slot in seen] == [at(seconds) for seconds in range(10, 61, 10)]
    assert all(0 <= moment - 10 * number < 0.1 for number, (moment, _) in enumerate(seen, 1))


@virtual
async def test_other_jobs_have_no_slot() -> None:
    """N3: not even those that say so themselves."""
    world, seen = World(), list[datetime | None]()

    @world.harbor.task
    async def work() -> None:
        seen.append(current().slot)

    await work.aenqueue()
    for headers in ({"slot": "any"}, {"schedule": "any"}, {"schedule": "any", "slot": "any"}):
        await work.using(headers=headers).aenqueue()
    await world.drain()
    assert seen == [None] * 4


@virtual
async def test_a_job_of_a_tick_has_the_options_and_arguments_that_were_declared() -> None:
    """N2, R5: those of the task, unless the recurring task has its own."""
    world, seen = World(), list[tuple[int, str]]()

    @world.harbor.recurring(every=60, name="sixty", arguments={"number": 6}, priority=5, tags=["b"], max_crashes=9)
    @world.harbor.recurring(every=90, name="ninety", arguments={"number": 9, "word": "nine"})
    @world.harbor.task(queue="night", priority=1, timeout=50, max_attempts=3, max_crashes=2, tags=["a"])
    async def work(number: int, word: str = "none") -> None:
        seen.append((number, word))

    async with world.worker():
        await asyncio.sleep(95)
    assert seen == [(6, "none"), (9, "nine")]
    sixty, ninety = jobs_of(world)
    assert (sixty.queue, sixty.priority, sixty.timeout, sixty.tags) == ("night", 5, 50, ("b",))
    assert (ninety.queue, ninety.priority, ninety.timeout, ninety.tags) == ("night", 1, 50, ("a",))
    assert (sixty.max_attempts, sixty.max_crashes, ninety.max_attempts, ninety.max_crashes) == (3, 9, 3, 2)


@virtual
async def test_a_worker_works_on_the_queues_of_recurring_tasks() -> None:
    """N2: also if only the recurring task names it, and the task has another."""
    world, runs = World(), list[str]()

    @world.harbor.recurring(every=10, queue="night")
    @world.harbor.task
    async def work() -> None:
        runs.append(current().queue)

    async with world.worker():
        await asyncio.sleep(15)
    assert runs == ["night"]


@virtual
async def test_inside_the_block_of_a_worker_the_declarations_are_stored() -> None:
    """N5: so that an operator's call in it finds them, however slow the store is."""
    world = World()
    other = World.over(world, Slow(world.store, 2.0))

    @other.harbor.recurring(every=10, name="work")
    async def work() -> None: ...

    async with other.worker():
        assert [each.name for each in await other.harbor.admin.recurring.alist()] == ["work"]


@virtual
async def test_a_declaration_is_stored_when_a_worker_starts_and_survives_it() -> None:
    """N5: not before, and it goes on where it was."""
    world = World()

    @world.harbor.recurring(every=10, name="work")
    async def work() -> None: ...

    assert await world.memory.schedules() == []
    async with world.worker():
        await asyncio.sleep(25)
    before = await stored(world)
    assert (before.slot, before.last_slot) == (at(30), at(20))
    async with world.worker():
        await asyncio.sleep(2)
        assert await stored(world) == before
        await asyncio.sleep(5)
    assert slots_of(world) == [at(10), at(20), at(30)]


@virtual
async def test_the_last_to_start_wins_and_old_workers_follow() -> None:
    """N5: a changed definition takes effect once; old workers tick by the new one."""
    world = World()
    old, new = generation(world, every=10), generation(world, every=25)
    async with old.worker():
        await asyncio.sleep(21)
        async with new.worker():
            await asyncio.sleep(1)
            changed = await stored(world)
            assert changed.slot == at(25)
            await asyncio.sleep(58)
        await asyncio.sleep(50)
        assert (await stored(world)).definition == changed.definition
    assert slots_of(world) == [at(seconds) for seconds in (10, 20, 25, 50, 75, 100, 125)]
    written = [swap for call in world.log.calls("swap_schedules") for swap in call["swaps"] if swap.job is None]
    assert len({swap.then.definition for swap in written}) == len(written) == 2
    async with old.worker():
        await asyncio.sleep(1)
    first = decode((await stored(world)).definition)
    assert isinstance(first, Definition)
    assert first.when.every == 10_000_000


@virtual
async def test_workers_that_start_at_once_with_different_code_do_not_fight() -> None:
    """N5: each writes its declaration once, although others write theirs between its look and its word."""
    rng = Random(1)
    world = World(lambda inner: Slow(inner, lambda: rng.uniform(0, 0.1)))
    schedulers = [scheduler(generation(world, every=10 + number).harbor) for number in range(6)]
    await asyncio.gather(*(each.declare() for each in schedulers))
    returned = [it for it in world.log.log if it.verb == "swap_schedules" and it.phase == "returned"]
    written = [answer for it in returned for answer in it.value].count(True)
    assert 1 < written <= 6
    for each in schedulers:
        await each.declare()
    assert len(world.log.calls("swap_schedules")) == len(returned)


@virtual
async def test_the_same_times_declared_again_keep_the_slot() -> None:
    """N5: new arguments or options do not put the next run off."""
    world = World()
    old, new = (
        generation(world, every=60, mode="fixed_delay"),
        generation(world, every=60, mode="fixed_delay", tags=["x"]),
    )
    async with old.worker():
        await asyncio.sleep(30)
    async with new.worker():
        await asyncio.sleep(1)
        assert (await stored(world)).slot is not None
        await until(lambda: jobs_of(world))
    (job,) = jobs_of(world)
    assert job.tags == ("x",)
    assert 60 <= (job.created_at - at(0)).total_seconds() < 61


@virtual
async def test_a_pause_sticks_whatever_starts() -> None:
    """N5: restarts and new definitions keep it, and what was missed is not made up for."""
    world = World()
    old, new = generation(world, every=10, catch_up="all"), generation(world, every=20, catch_up="all")
    async with old.worker():
        await asyncio.sleep(11)
        paused = await old.harbor.admin.recurring.apause("work")
        assert (paused.paused, paused.next_run) == (True, None)
        await asyncio.sleep(100)
        async with new.worker():
            await asyncio.sleep(100)
            assert slots_of(world) == [at(10)]
            assert (await stored(world)).paused
            resumed = await new.harbor.admin.recurring.aresume("work")
            assert (resumed.paused, resumed.next_run) == (False, at(220))
            await asyncio.sleep(30)
    assert slots_of(world) == [at(10), at(220), at(240)]


@virtual
async def test_draining_does_not_tick() -> None:
    """N3: it runs what is there; nothing is declared, and nothing falls due."""
    world = World()

    @world.harbor.recurring(every=10, name="work")
    async def work() -> None: ...

    await work.aenqueue()
    assert await world.drain() == 1
    assert await world.memory.schedules() == []
    async with world.worker():
        await asyncio.sleep(1)
    await asyncio.sleep(60)
    assert await world.drain() == 0
    assert (await stored(world)).slot == at(10)


@virtual
async def test_an_unknown_task_waits_until_a_worker_knows_it() -> None:
    """N3, N4, F8: a worker ticks for the tasks it knows; the one who knows it makes one run of all that was missed."""
    world = World()
    await world.harbor.admin.recurring.acreate("work", "work", every=10, overlap="allow")
    stranger = World.over(world, world.store)
    async with stranger.worker():
        await asyncio.sleep(100)
        assert (await stored(world)).slot == at(10)
        assert jobs_of(world) == []
        async with generation(world).worker():
            await asyncio.sleep(15)
    assert slots_of(world) == [at(100), at(110)]


@virtual
async def test_a_definition_of_a_newer_version_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """N5: an old worker neither ticks it nor touches it, and says so once."""
    world = World()
    odd = Schedule(name="odd", definition=b'{"version":2,"task":"work","when":{"moon":"full"}}', slot=at(5))
    assert await world.memory.swap_schedules([Swap(name="odd", seen=None, then=odd)], at(0)) == [True]
    with caplog.at_level(logging.WARNING):
        async with generation(world, every=10).worker():
            await asyncio.sleep(60)
    assert await stored(world, "odd") == odd
    assert {job.headers["schedule"] for job in jobs_of(world)} == {"work"}
    assert sum("recurring.unreadable" in it and "odd" in it for it in caplog.messages) == 1
    assert [it.name for it in await world.harbor.admin.recurring.alist()] == ["work"]
    with pytest.raises(HarborError, match=r"newer version.*upgrade taskharbor"):
        await world.harbor.admin.recurring.apause("odd")


@virtual
async def test_a_schedule_that_is_no_longer_declared_goes_on_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """N5: other code may declare it, so nothing is removed."""
    world = World()
    async with generation(world, every=10).worker():
        await asyncio.sleep(1)
    with caplog.at_level(logging.WARNING):
        async with generation(world).worker():
            await asyncio.sleep(15)
    assert slots_of(world) == [at(10)]
    assert any("recurring.undeclared: work goes on" in it and "recurring rm" in it for it in caplog.messages)


@virtual
async def test_one_made_at_run_time_is_not_called_undeclared(caplog: pytest.LogCaptureFixture) -> None:
    """N5: no code has ever declared it."""
    world = generation(World())
    await world.harbor.admin.recurring.acreate("made", "work", every=10)
    with caplog.at_level(logging.WARNING):
        async with world.worker():
            await asyncio.sleep(15)
    assert not any("undeclared" in it for it in caplog.messages)
    assert slots_of(world) == [at(10)]


@virtual
async def test_a_worker_whose_declaration_cannot_be_encoded_does_not_start() -> None:
    """X5: types are known when a worker starts; then it fails loudly, and nothing is stored."""
    world = World()

    @world.harbor.recurring(every=10, arguments={"number": "seven"})
    async def work(number: int) -> None: ...

    with pytest.raises(HarborError, match="number"):
        async with world.worker():
            await asyncio.sleep(1)
    assert await world.memory.schedules() == []


class Plain(Wrapper):
    """A driver without schedules."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        del self.schedules, self.swap_schedules

    def __getattr__(self, name: str) -> Any:
        if name in ("schedules", "swap_schedules"):
            raise AttributeError(name)
        return super().__getattr__(name)


@virtual
async def test_a_driver_without_schedules_is_refused_where_they_are_needed() -> None:
    """D13: loudly, when a worker starts; who declares none does not notice."""
    world = World(Plain)

    @world.harbor.task(name="work")
    async def work() -> int:
        return 5

    async with world.worker():
        assert await (await work.aenqueue()).aresult() == 5
        await asyncio.sleep(20)
    world.harbor.recurring(every=10)(work)
    with pytest.raises(CapabilityMissing, match="Schedules"):
        async with world.worker():
            await asyncio.sleep(1)
    with pytest.raises(CapabilityMissing, match="Schedules"):
        await world.harbor.admin.recurring.alist()
    await work.aenqueue()
    assert await world.drain() == 1


@virtual
async def test_a_worker_that_starts_while_its_store_is_away_declares_later() -> None:
    """X2, N5: nothing is lost of what the code says."""
    world = World(Outage)
    other = generation(world, every=10)
    async with other.worker():
        world.store.down = True
        await asyncio.sleep(0)
        await asyncio.sleep(60)
        world.store.down = False
        await asyncio.sleep(25)
    assert slots_of(world)[-1] == at(80)


@virtual
async def test_the_blocking_twins_exist() -> None:
    """P1: every way of an operator has both."""
    recurring: Any = World().harbor.admin.recurring
    for name in ("list", "get", "next", "create", "change", "pause", "resume", "run", "delete"):
        assert callable(getattr(recurring, name))
        assert callable(getattr(recurring, f"a{name}"))


def test_without_a_worker_nothing_is_written(tmp_path: Any) -> None:
    """N5: a producer that imports the code stores no schedule, and its blocking calls see none."""
    harbor = Harbor(f"sqlite:///{tmp_path}/jobs.db")

    @harbor.recurring(every=10)
    def work() -> None: ...

    work.enqueue()
    assert harbor.admin.recurring.list() == []
    harbor.close()


def test_recurring_leaves_a_task_that_can_be_called_and_enqueued() -> None:
    """P1: it is a task like any other."""
    harbor = Harbor("memory://")

    @harbor.recurring(every=10, arguments={"number": 2})
    def twice(number: int) -> int:
        return 2 * number

    assert twice(4) == 8
    assert list(harbor.tasks) == list(harbor._application.recurring)


@virtual
async def test_a_definition_does_not_depend_on_the_declaring_process() -> None:
    """N5: equal code stores equal bytes, or deploys would redefine it for nothing."""
    definitions: set[bytes] = set()
    for seed in range(2):
        world = World(seed=seed)
        async with generation(world, cron="0 3 * * *", tz="Europe/Berlin", jitter=5).worker():
            await asyncio.sleep(10)
        definitions.add((await stored(world)).definition)
    assert len(definitions) == 1
