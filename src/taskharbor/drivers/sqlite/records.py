"""Schedules, workers and totals: the small tables beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from apsw import Connection

from taskharbor.core.job import NewJob
from taskharbor.driver import Group, Schedule, Tally, WorkerRecord
from taskharbor.drivers.sqlite.enqueue import enqueue_group
from taskharbor.drivers.sqlite.rows import micros, micros_or_none, moment, moment_or_none
from taskharbor.drivers.sqlite.sql import load
from taskharbor.errors import HarborError

PUT, ALL, DUE = load("schedule_put"), load("schedules"), load("schedule_due")
ADVANCE, PAUSE, REMOVE = load("schedule_advance"), load("schedule_pause"), load("schedule_remove")
BEAT, WORKERS, FORGET = load("worker_beat"), load("workers"), load("worker_forget")
ADD, FORGET_MINUTES, TALLIES = load("tally_add"), load("tally_forget"), load("tallies")

_encode = msgspec.json.Encoder().encode
_worker = msgspec.json.Decoder(WorkerRecord).decode


def put_schedule(db: Connection, it: Schedule) -> None:
    """Create or redefine a schedule."""
    slots = micros_or_none(it.slot), micros_or_none(it.last_slot)
    db.execute(PUT, (it.name, it.definition, slots[0], it.paused, it.last_job_id, slots[1]))


def schedules(db: Connection) -> list[Schedule]:
    """All schedules by name."""
    return [
        Schedule(
            name=name,
            definition=definition,
            slot=moment_or_none(slot),
            paused=bool(paused),
            last_job_id=last_job_id,
            last_slot=moment_or_none(last_slot),
        )
        for name, definition, slot, paused, last_job_id, last_slot in db.execute(ALL)
    ]


def advance(
    db: Connection,
    name: str,
    expected_slot: datetime | None,
    next_slot: datetime | None,
    job: NewJob | None,
    now: datetime,
) -> bool | HarborError:
    """Move the slot on and enqueue its job, if nobody did before (N3). A refused job moves nothing."""
    slot = micros_or_none(expected_slot)
    if db.execute(DUE, (name, slot)).get is None:
        return False
    id: str | None = None
    if job is not None:
        stored = enqueue_group(db, Group(jobs=(job,)), micros(now))
        if isinstance(stored, HarborError):
            return stored
        id = stored[0].id
    db.execute(ADVANCE, (name, micros_or_none(next_slot), id, slot))
    return True


def pause_schedule(db: Connection, name: str, paused: bool) -> bool:
    """Pause or resume; whether there is such a schedule."""
    return db.execute(PAUSE, (name, paused)).get is not None


def remove_schedule(db: Connection, name: str) -> bool:
    """Remove; whether there was such a schedule."""
    return db.execute(REMOVE, (name,)).get is not None


def beat(db: Connection, worker: WorkerRecord) -> None:
    """Store the latest report of a worker."""
    db.execute(BEAT, (worker.id, micros(worker.seen_at), _encode(worker).decode()))


def workers(db: Connection, seen_since: datetime) -> list[WorkerRecord]:
    """Workers that reported since then, by id."""
    return [_worker(text) for (text,) in db.execute(WORKERS, (micros(seen_since),))]


def forget_worker(db: Connection, id: str) -> None:
    """Remove a worker."""
    db.execute(FORGET, (id,))


def count(db: Connection, tallies: Sequence[Tally], forget_before: datetime) -> None:
    """Add to the totals, and forget old minutes."""
    db.executemany(
        ADD, [(micros(it.minute), it.queue, it.task, it.outcome, it.count, float(it.seconds)) for it in tallies]
    )
    db.execute(FORGET_MINUTES, (micros(forget_before),))


def tallies(db: Connection, since: datetime) -> list[Tally]:
    """The totals since a minute."""
    return [Tally(moment(minute), *rest) for minute, *rest in db.execute(TALLIES, (micros(since),))]
