"""Recurring tasks for operators: `harbor.admin.recurring` (N5).

Every change swaps the whole schedule, and is tried again if another process changed it meanwhile: no change is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Protocol, Unpack

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.admin.base import AdminPart
from taskharbor.client.declaration import TickOptions, definition_of, recurrence
from taskharbor.client.handle import Job
from taskharbor.client.job_builder import JobBuilder
from taskharbor.client.portal import blocking
from taskharbor.core.job import JobRecord
from taskharbor.core.names import check_name
from taskharbor.core.recurrence import MICROSECOND, Definition, Recurrence, decode
from taskharbor.core.schedule import Schedule
from taskharbor.core.shown import shown
from taskharbor.core.states import TERMINAL
from taskharbor.core.ticking import declared, is_live, paused, resumed, ticks
from taskharbor.driver import Driver, Inspect, Schedules, Swap, capability
from taskharbor.errors import ConfigError, ScheduleBusy, ScheduleExists, ScheduleNotFound
from taskharbor.workflows.step import named_step

# Workers look every few seconds: if a run has been due for longer, no worker handles it.
OVERDUE = timedelta(seconds=30)


class HasName(Protocol):
    """A task, as a decorator returns it."""

    @property
    def name(self) -> str: ...


class RecurringTask(Struct, frozen=True, kw_only=True):
    """A recurring task at a glance. `next_run` is None while it is paused, or waits for its last run to end."""

    name: str
    task: str
    words: str
    when: Recurrence
    payload: bytes
    queue: str
    paused: bool
    in_code: bool
    next_run: datetime | None
    last_run: datetime | None
    last_job_id: str | None
    last_state: str | None

    def overdue(self, now: datetime, patience: timedelta = OVERDUE) -> timedelta | None:
        """How long its next run has been due, if no worker handles it; None if it is on time or waits for its turn."""
        one_by_one = self.when.catch_up == "all" and self.when.overlap == "skip"
        waits = one_by_one and self.last_state is not None and self.last_state not in TERMINAL
        if self.next_run is None or now - self.next_run < patience or waits:
            return None
        return now - self.next_run


class StoredSchedule(Struct, frozen=True):
    """A schedule as it was read, its definition, and its last run."""

    seen: Schedule
    definition: Definition
    last: JobRecord | None


class Recurring(AdminPart):
    """Recurring tasks, declared in code or made at run time."""

    async def alist(self) -> list[RecurringTask]:
        """All of them by name, except those that cannot be read here."""
        async with self._client.store() as driver:
            stored = await capability(driver, Schedules).schedules()
            return [self._at_a_glance(found) for found in await self._found(driver, stored)]

    async def aunreadable(self) -> dict[str, str]:
        """Those that cannot be read here, and why: of a newer version, or in a time zone that is unknown here."""
        async with self._client.store() as driver:
            stored = await capability(driver, Schedules).schedules()
        read = {schedule.name: decode(schedule.definition) for schedule in stored}
        return {name: str(why) for name, why in read.items() if isinstance(why, ConfigError)}

    async def aget(self, name: str) -> RecurringTask:
        """One of them, or `ScheduleNotFound`."""
        async with self._client.store() as driver:
            return self._at_a_glance(await self._find(driver, name))

    async def anext(self, name: str, count: int = 5) -> list[datetime]:
        """Its next ticks; with `fixed_delay`, at most one is known."""
        if count < 1:
            raise ConfigError(f"count must be a whole number from 1 up, not {count!r}")
        async with self._client.store() as driver:
            found = await self._find(driver, name)
        return list(islice(_slots(found, self._now()), count))

    async def acreate(
        self,
        name: str,
        task: str | HasName,
        *,
        arguments: Mapping[str, Any] | None = None,
        **when: Unpack[TickOptions],
    ) -> RecurringTask:
        """Make one: `create("nightly", "shop.report", cron="0 3 * * *")`. Its jobs have the options of the task.

        `ScheduleExists` if there is one of that name.
        """
        check_name("a recurring task's name", name)
        asked = recurrence(when)
        named = task if isinstance(task, str) else getattr(task, "name", None)
        if not isinstance(named, str):
            raise ConfigError(f"a recurring task runs a task, by its name or as @harbor.task returns it, not {task!r}")
        async with self._client.store() as driver:
            definition = self._definition(named, arguments or {}, asked)
            then = declared(None, name, definition, None, self._now())
            if not await self._swap(driver, Swap(name=name, seen=None, then=then)):
                raise ScheduleExists(f"there is a recurring task {name!r} already: change it, or use another name")
            return self._at_a_glance(StoredSchedule(then, definition, None))

    async def achange(
        self, name: str, *, arguments: Mapping[str, Any] | None = None, **when: Unpack[TickOptions]
    ) -> RecurringTask:
        """Change when it ticks, or the arguments of its jobs.

        The next worker that starts overwrites the change if its code declares the recurring task.
        """

        def change(found: StoredSchedule, now: datetime) -> Schedule:
            before = found.definition
            asked = recurrence(when, before.when)
            payload = before.payload if arguments is None else self._definition(before.task, arguments, asked).payload
            return declared(found.seen, name, replace(before, when=asked, payload=payload), found.last, now)

        return await self._changed(name, change)

    async def apause(self, name: str) -> RecurringTask:
        """Stop its ticks until it is resumed, also if code declares it. A run that is under way goes on."""
        return await self._changed(name, lambda found, now: paused(found.seen))

    async def aresume(self, name: str) -> RecurringTask:
        """Let it tick again from now on. Ticks missed meanwhile are skipped."""
        return await self._changed(name, lambda found, now: resumed(found.seen, found.definition.when, found.last, now))

    async def arun(self, name: str) -> Job[Any]:
        """Run it now, paused or not, in addition to its ticks. `ScheduleBusy` if its last run has to end first."""
        swap = await self._swapped(name, self._by_hand)
        assert swap.job is not None
        return Job(self._client, swap.job.id)

    async def adelete(self, name: str) -> None:
        """Delete it; its jobs stay. If code declares it, the next worker brings it back: pause it instead."""
        async with self._client.store() as driver:
            while True:
                seen = await self._seen(driver, name)
                if await self._swap(driver, Swap(name=name, seen=seen, then=None)):
                    return

    list = blocking(alist)
    unreadable = blocking(aunreadable)
    get = blocking(aget)
    next = blocking(anext)
    create = blocking(acreate)
    change = blocking(achange)
    pause = blocking(apause)
    resume = blocking(aresume)
    run = blocking(arun)
    delete = blocking(adelete)

    async def _changed(self, name: str, change: Callable[[StoredSchedule, datetime], Schedule]) -> RecurringTask:
        await self._swapped(name, lambda found, now: Swap(name=name, seen=found.seen, then=change(found, now)))
        return await self.aget(name)

    async def _swapped(self, name: str, swap_of: Callable[[StoredSchedule, datetime], Swap]) -> Swap:
        async with self._client.store() as driver:
            while True:
                swap = swap_of(await self._find(driver, name), self._now())
                if swap.then == swap.seen or await self._swap(driver, swap):
                    return swap

    def _by_hand(self, found: StoredSchedule, now: datetime) -> Swap:
        seen, definition = found.seen, found.definition
        if definition.when.overlap == "skip" and is_live(found.last):
            raise ScheduleBusy(
                f"the last run of {seen.name!r} has not ended: wait for job {seen.last_job_id}, or cancel it"
            )
        slot = _free_slot(seen, definition.when, now)
        job = JobBuilder(self._client.session, now).tick(seen.name, definition, slot, None)
        follows = definition.when.mode == "fixed_delay"  # then the next run follows this one
        then = replace(seen, slot=None if follows else seen.slot, last_job_id=job.id, last_slot=slot)
        return Swap(name=seen.name, seen=seen, then=then, job=job)

    async def _swap(self, driver: Driver, swap: Swap) -> bool:
        (answer,) = await capability(driver, Schedules).swap_schedules([swap], self._now())
        return answer is True

    async def _seen(self, driver: Driver, name: str) -> Schedule:
        stored = await capability(driver, Schedules).schedules()
        for schedule in stored:
            if schedule.name == name:
                return schedule
        there = ", ".join(schedule.name for schedule in stored) or "none"
        raise ScheduleNotFound(f"there is no recurring task {name!r}; there is {there}")

    async def _find(self, driver: Driver, name: str) -> StoredSchedule:
        seen = await self._seen(driver, name)
        if isinstance(why := decode(seen.definition), ConfigError):
            raise ConfigError(f"the recurring task {name!r} cannot be read here: {why}")
        return (await self._found(driver, [seen]))[0]

    async def _found(self, driver: Driver, stored: Sequence[Schedule]) -> Sequence[StoredSchedule]:
        ids = [schedule.last_job_id for schedule in stored if schedule.last_job_id is not None]
        lasts = await capability(driver, Inspect).get(ids) if ids else []
        runs = {job.id: job for job in lasts if job is not None}
        return [
            StoredSchedule(seen, definition, runs.get(seen.last_job_id or ""))
            for seen in stored
            if isinstance(definition := decode(seen.definition), Definition)
        ]

    def _definition(self, task: str, arguments: Mapping[str, Any], when: Recurrence) -> Definition:
        step = named_step(self._client, task, arguments, {})
        return definition_of(step, when, self._client.session, in_code=False)

    def _at_a_glance(self, found: StoredSchedule) -> RecurringTask:
        seen, it = found.seen, found.definition
        return RecurringTask(
            name=seen.name,
            task=it.task,
            words=it.when.words(),
            when=it.when,
            payload=it.payload,
            queue=it.queue,
            paused=seen.paused,
            in_code=it.in_code,
            next_run=None if seen.paused else _next_slot(found, self._now()),
            last_run=seen.last_slot,
            last_job_id=seen.last_job_id,
            last_state=None if found.last is None else shown(found.last, self._now()).value,
        )


def _next_slot(found: StoredSchedule, now: datetime) -> datetime | None:
    """The next slot, also if no worker has computed it yet since the last run has ended."""
    seen, when = found.seen, found.definition.when
    if seen.slot is None and (steps := ticks(seen, when, found.last, now)):
        return steps[0].slot
    return seen.slot


def _slots(found: StoredSchedule, now: datetime) -> Iterator[datetime]:
    when, follows = found.definition.when, found.definition.when.mode == "fixed_delay"
    slot = _next_slot(found, now)
    if found.seen.paused:
        slot = None if follows else when.after(now)
    while slot is not None:
        yield slot
        slot = None if follows else when.after(max(slot, now))


def _free_slot(seen: Schedule, when: Recurrence, now: datetime) -> datetime:
    """A slot for a run by hand that is not the slot of any tick or other run by hand."""
    slot = now if seen.last_slot is None else max(now, seen.last_slot + MICROSECOND)
    while slot == seen.slot or when.after(slot - MICROSECOND) == slot:
        slot += MICROSECOND
    return slot
