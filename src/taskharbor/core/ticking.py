"""Transitions of a schedule: declare, tick, pause, resume (N3, N4, N5).

Every transition is a pure step from one whole record to the next, stored by compare-and-swap: so a slot makes one job
however many schedulers run, and no redefinition, pause or tick undoes another.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.core.decide import later
from taskharbor.core.job import JobRecord
from taskharbor.core.recurrence import MICROSECOND, Definition, Recurrence, decode, encode
from taskharbor.core.schedule import Schedule
from taskharbor.core.states import TERMINAL

# With catch_up="skip", a tick noticed later than this counts as missed.
ON_TIME = timedelta(seconds=60)


class Tick(Struct, frozen=True):
    """One step: the next slot, and the slot whose job is created now (None: no job)."""

    slot: datetime | None
    run: datetime | None


def declared(
    seen: Schedule | None, name: str, definition: Definition, last: JobRecord | None, now: datetime
) -> Schedule:
    """The schedule with a new definition: pause and history stay, and so does the slot unless the times changed."""
    stored = encode(definition)
    if seen is None:
        return Schedule(name=name, definition=stored, slot=first_slot(definition.when, None, None, now))
    before = decode(seen.definition)
    if isinstance(before, Definition) and before.when.times == definition.when.times:
        return replace(seen, definition=stored)
    return replace(seen, definition=stored, slot=first_slot(definition.when, seen.last_slot, last, now))


def paused(seen: Schedule) -> Schedule:
    """The schedule paused; its next slot stays visible."""
    return replace(seen, paused=True)


def resumed(seen: Schedule, when: Recurrence, last: JobRecord | None, now: datetime) -> Schedule:
    """The schedule resumed from now on: ticks missed during the pause are not caught up."""
    if not seen.paused:
        return seen
    return replace(seen, paused=False, slot=first_slot(when, seen.last_slot, last, now))


def ran(seen: Schedule, tick: Tick, job_id: str | None) -> Schedule:
    """The schedule after a step."""
    if tick.run is None:
        return replace(seen, slot=tick.slot)
    return replace(seen, slot=tick.slot, last_job_id=job_id, last_slot=tick.run)


def first_slot(when: Recurrence, last_slot: datetime | None, last: JobRecord | None, now: datetime) -> datetime | None:
    """The first slot of a new or changed schedule: after now and after its last run."""
    if when.mode == "fixed_delay":
        return None if is_live(last) else later(now, when.interval)
    return when.after(now if last_slot is None else max(now, last_slot))


def is_live(run: JobRecord | None) -> bool:
    """Whether the last run has not ended."""
    return run is not None and run.state not in TERMINAL


def needs_last(seen: Schedule, when: Recurrence, now: datetime) -> bool:
    """Whether `ticks` needs the state of the last run."""
    if seen.paused or seen.last_job_id is None:
        return False
    return seen.slot is None or (seen.slot <= now and when.overlap == "skip")


def ticks(seen: Schedule, when: Recurrence, last: JobRecord | None, now: datetime) -> list[Tick]:
    """The steps to take now, in order; usually none."""
    if seen.paused:
        return []
    if when.mode == "fixed_delay":
        return _following(seen, when, last, now)
    if seen.slot is None or seen.slot > now:
        return []
    busy = when.overlap == "skip" and is_live(last)
    if when.catch_up == "all":
        return _each(seen.slot, when, busy, now)
    newest = when.latest(now, seen.slot)
    missed = when.catch_up == "skip" and now - newest > ON_TIME
    return [Tick(when.after(now), None if busy or missed else newest)]


def _following(seen: Schedule, when: Recurrence, last: JobRecord | None, now: datetime) -> list[Tick]:
    """Fixed delay: no slot while a run is live; its end sets the next slot."""
    if is_live(last):
        return [Tick(None, None)] if seen.slot is not None and seen.slot <= now else []
    if seen.slot is None:
        ended = now if last is None or last.completed_at is None else last.completed_at
        return [Tick(later(ended, when.interval), None)]
    return [Tick(None, seen.slot)] if seen.slot <= now else []


def _each(slot: datetime, when: Recurrence, busy: bool, now: datetime) -> list[Tick]:
    """A run for each of the latest `max_catch_up` slots; if they must not overlap, one at a time."""
    due = _due(slot, when, now)
    if busy:
        return [Tick(due[0], None)] if due[0] != slot else []
    steps = [Tick(then, run) for run, then in zip(due, [*due[1:], when.after(now)], strict=True)]
    if due[0] != slot:
        steps.insert(0, Tick(due[0], None))
    return steps if when.overlap == "allow" else steps[: 1 if due[0] == slot else 2]


def _due(slot: datetime, when: Recurrence, now: datetime) -> list[datetime]:
    """The slots up to now, the latest `max_catch_up` of them."""
    found = list(islice(_slots(slot, when, now), when.max_catch_up + 1))
    if len(found) <= when.max_catch_up:
        return found
    newest = [when.latest(now, slot)]
    while len(newest) < when.max_catch_up:
        newest.append(when.latest(newest[-1] - MICROSECOND, slot))
    return newest[::-1]


def _slots(slot: datetime | None, when: Recurrence, now: datetime) -> Iterator[datetime]:
    while slot is not None and slot <= now:
        yield slot
        slot = when.after(slot)
