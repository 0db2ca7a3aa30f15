"""Broken schedulers, and a core that moves schedules wrongly: recurring tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

from msgspec.structs import replace

from taskharbor.admin import recurring as operators
from taskharbor.admin.recurring import Recurring, StoredSchedule
from taskharbor.core import ticking
from taskharbor.core.backoff import Backoff
from taskharbor.core.job import JobRecord, NewJob
from taskharbor.core.recurrence import Definition, Recurrence, decode
from taskharbor.core.schedule import Schedule
from taskharbor.core.states import INFLIGHT
from taskharbor.core.ticking import Tick
from taskharbor.driver import Swap
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.worker import scheduler as schedulers
from taskharbor.worker.context import JobContext
from taskharbor.worker.scheduler import Scheduler

from .mutant import MutantRegistry

SCHEDULERS = MutantRegistry("worker")
mutant = SCHEDULERS.mutant
TICKING = MutantRegistry("core")
core = TICKING.mutant

ONE_JOB = "many_schedulers_make_one_job_per_slot"
DELAY = "a_delay_counts_from_the_end"
BY_HAND = "a_run_by_hand_stands_beside_the_ticks"


# schedulers


@mutant((Scheduler, "_steps"), by=ONE_JOB)
def ticks_twice(steps: Any, scheduler: Scheduler, seen: Schedule, definition: Definition, *rest: Any) -> list[Swap]:
    """Every tick is enqueued a second time."""
    swaps: list[Swap] = steps(scheduler, seen, definition, *rest)
    for swap in list(swaps):
        if swap.job is not None:
            swaps.append(replace(swap, seen=swap.then, job=replace(swap.job, id=f"{swap.job.id}-again")))
    return swaps


@mutant((Scheduler, "look"), by=ONE_JOB)
async def swaps_what_it_has_not_seen(look: Any, scheduler: Scheduler) -> float:
    """A scheduler compares with what is stored by now, not with what it decided on."""
    driver: Any = (await scheduler._session.driver()).inner.inner  # type: ignore[attr-defined]
    swap_schedules = MemoryDriver.swap_schedules

    async def careless(swaps: Sequence[Swap], now: datetime) -> Any:
        fresh = [replace(swap, seen=driver._schedules.get(swap.name)) for swap in swaps]
        return await swap_schedules(driver, fresh, now)

    with mock.patch.object(driver, "swap_schedules", careless):
        wait: float = await look(scheduler)
        return wait


@mutant((Scheduler, "look"), by="the_last_to_start_wins")
async def declares_again_and_again(look: Any, scheduler: Scheduler) -> float:
    """Old and new code fight for the definition as long as both run."""
    scheduler._left = set(scheduler._wanted)
    await scheduler.declare()
    wait: float = await look(scheduler)
    return wait


@mutant((schedulers, "declared"), by="the_last_to_start_wins")
def last_starter_loses(declared: Any, seen: Schedule | None, *rest: Any) -> Schedule:
    """A stored schedule is never redefined."""
    made: Schedule = declared(seen, *rest)
    return seen or made


@mutant((schedulers, "declared"), by="a_pause_outlives_a_deploy")
def redefinition_ends_the_pause(declared: Any, *rest: Any) -> Schedule:
    """A deploy lets a task run that an operator has paused."""
    made: Schedule = declared(*rest)
    return replace(made, paused=False)


@mutant((Scheduler, "look"), by="a_rest_is_not_made_up_for")
async def look_ignores_the_pause(look: Any, scheduler: Scheduler) -> float:
    """A paused task ticks on."""

    def mine(self: Scheduler, schedules: list[Schedule]) -> Any:
        return [(it, decode(it.definition)) for it in schedules]

    def ticks(seen: Schedule, *rest: Any) -> list[Tick]:
        return ticking.ticks(replace(seen, paused=False), *rest)

    with mock.patch.object(Scheduler, "_mine", mine), mock.patch.object(schedulers, "ticks", ticks):
        wait: float = await look(scheduler)
        return wait


@mutant((Scheduler, "_mine"), by="an_unknown_task_is_put_back")
def ticks_for_tasks_it_does_not_know(mine: Any, scheduler: Scheduler, schedules: list[Schedule]) -> Any:
    """Jobs pile up that no worker can run."""
    read = [(schedule, decode(schedule.definition)) for schedule in schedules if not schedule.paused]
    return [(schedule, it) for schedule, it in read if it is not None]


@mutant((schedulers, "needs_last"), by="a_tick_during_a_run_is_skipped")
def last_run_never_looked_at(needs_last: Any, *rest: Any) -> bool:
    """Runs overlap although they must not."""
    return False


@mutant((Scheduler, "_job"), by="jitter_is_never_early_and_never_too_late")
def jitter_goes_both_ways(job: Any, scheduler: Scheduler, name: str, it: Definition, slot: datetime, *rest: Any) -> Any:
    """Half of the runs are due before their slot."""
    made: NewJob = job(scheduler, name, it, slot, *rest)
    return replace(made, run_at=(made.run_at or slot) - timedelta(seconds=it.when.jitter / 2))


@mutant((Scheduler, "_job"), by="jitter_is_never_early_and_never_too_late")
def jitter_forgotten(job: Any, scheduler: Scheduler, name: str, it: Definition, slot: datetime, *rest: Any) -> Any:
    """All hosts do the same thing at the same moment."""
    return replace(job(scheduler, name, it, slot, *rest), run_at=slot)


@mutant((Scheduler, "_job"), by="a_handler_knows_its_slot")
def slot_is_the_time_of_the_run(job: Any, *rest: Any) -> NewJob:
    """With jitter the slot of a job is lost."""
    made: NewJob = job(*rest)
    assert made.run_at is not None
    return replace(made, headers={**made.headers, "slot": made.run_at.isoformat()})


@mutant((JobContext, "slot"), by="a_handler_knows_its_slot")
def slot_is_the_time_of_creation(slot: Any, context: JobContext) -> datetime | None:
    """The slot is the time at which the job was made."""
    return context.record.created_at if slot(context) else None


@mutant((Backoff, "delay"), by="schedulers_come_back_after_an_outage")
def outage_ends_the_scheduler(delay: Any, *rest: Any) -> float:
    """A scheduler that met an outage never looks again."""
    return 1e6


# operators


@mutant((operators, "resumed"), by="a_rest_is_not_made_up_for")
def resume_makes_up_for_the_rest(resumed: Any, seen: Schedule, *rest: Any) -> Schedule:
    """After a resume everything runs that was not to run."""
    return replace(seen, paused=False)


@mutant((operators, "is_live"), by=BY_HAND)
def run_by_hand_beside_another(is_live: Any, run: JobRecord | None) -> bool:
    """An operator starts a second run of what must not overlap."""
    return False


@mutant((Recurring, "_by_hand"), by=BY_HAND)
def run_by_hand_takes_the_tick(by_hand: Any, recurring: Recurring, found: StoredSchedule, now: datetime) -> Swap:
    """Running a task now skips its next tick."""
    swap: Swap = by_hand(recurring, found, now)
    assert swap.then is not None
    when = found.definition.when
    slot = when.after(found.seen.slot) if found.seen.slot and when.mode == "fixed_rate" else swap.then.slot
    return replace(swap, then=replace(swap.then, slot=slot))


@mutant((operators, "_free_slot"), by=BY_HAND)
def run_by_hand_in_the_slot_of_a_tick(free_slot: Any, seen: Schedule, when: Recurrence, now: datetime) -> datetime:
    """A run by hand looks like a tick."""
    return when.latest(now, now - when.interval)


@mutant((Recurring, "_by_hand"), by="a_delay_follows_a_run_by_hand")
def delay_does_not_follow_a_run_by_hand(
    by_hand: Any, recurring: Recurring, found: StoredSchedule, now: datetime
) -> Swap:
    """The next run comes as if the task had not been run by hand."""
    swap: Swap = by_hand(recurring, found, now)
    assert swap.then is not None
    return replace(swap, then=replace(swap.then, slot=found.seen.slot))


# the core


@core((schedulers, "ticks"), by="missed_ticks_become_one_run")
def every_missed_tick_runs(ticks: Any, seen: Schedule, when: Recurrence, *rest: Any) -> list[Tick]:
    """After a month of downtime a task runs for every tick of it."""
    return ticks(seen, replace(when, catch_up="all") if when.catch_up == "last" else when, *rest)  # type: ignore[no-any-return]


@core((schedulers, "ticks"), by="what_is_too_late_is_skipped")
def what_is_skipped_runs_late(ticks: Any, seen: Schedule, when: Recurrence, *rest: Any) -> list[Tick]:
    """A task that must be on time runs hours after its tick."""
    return ticks(seen, replace(when, catch_up="last") if when.catch_up == "skip" else when, *rest)  # type: ignore[no-any-return]


@core((schedulers, "ticks"), by="missed_ticks_become_one_run")
def missed_ticks_are_lost(ticks: Any, seen: Schedule, when: Recurrence, *rest: Any) -> list[Tick]:
    """Missed ticks are never made up for."""
    return ticks(seen, replace(when, catch_up="skip"), *rest)  # type: ignore[no-any-return]


@core((ticking, "_due"), by="all_missed_ticks_have_a_bound_and_an_order")
def bound_of_catch_up_ignored(due: Any, slot: datetime, when: Recurrence, now: datetime) -> list[datetime]:
    """A month of downtime floods the queue."""
    return list(ticking._slots(slot, when, now))


@core((ticking, "_due"), by="all_missed_ticks_have_a_bound_and_an_order")
def catch_up_keeps_the_oldest(due: Any, slot: datetime, when: Recurrence, now: datetime) -> list[datetime]:
    """Of too many missed ticks the latest are left out."""
    return list(ticking._slots(slot, when, now))[: when.max_catch_up]


@core((ticking, "_each"), by="all_missed_ticks_have_a_bound_and_an_order")
def missed_ticks_run_side_by_side(each: Any, slot: datetime, when: Recurrence, *rest: Any) -> list[Tick]:
    """Missed ticks run all at once."""
    return each(slot, replace(when, overlap="allow"), *rest)  # type: ignore[no-any-return]


@core((ticking, "_following"), by=DELAY)
def delay_counts_from_the_start(
    following: Any, seen: Schedule, when: Recurrence, last: JobRecord | None, now: datetime
) -> list[Tick]:
    """A long run leaves no pause before the next."""
    ended = last is not None and last.completed_at is not None
    return following(seen, when, replace(last, completed_at=seen.last_slot) if ended else last, now)  # type: ignore[no-any-return, type-var]


@core((ticking, "is_live"), by=DELAY)
def retry_ends_a_run(is_live: Any, run: JobRecord | None) -> bool:
    """A delay counts from the first failure, and the retry runs beside the next."""
    return run is not None and run.state == INFLIGHT


@core((ticking, "_following"), by="a_delay_goes_on_when_its_last_run_is_gone")
def lost_run_is_waited_for(following: Any, seen: Schedule, when: Recurrence, last: Any, now: datetime) -> list[Tick]:
    """Deleting the last run ends the whole recurring task."""
    return [] if last is None and seen.last_job_id is not None else following(seen, when, last, now)


@core((ticking, "first_slot"), by="a_deploy_by_a_slow_clock_repeats_no_slot")
def slots_begin_again_behind_a_slow_clock(first_slot: Any, when: Recurrence, last_slot: Any, *rest: Any) -> Any:
    """Slots that a fast clock has run are run again."""
    return first_slot(when, None, *rest)
