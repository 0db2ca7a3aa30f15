"""Schedules, workers and totals: the small tables beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from apsw import Connection

from taskharbor.core.schedule import Schedule, swap_verdict
from taskharbor.driver import Group, Swap, Tally, WorkerRecord
from taskharbor.drivers.shared.columns import struct_of
from taskharbor.drivers.sqlite.enqueue import enqueue_group
from taskharbor.drivers.sqlite.rows import SqliteRow, micros, micros_or_none, moment, moment_or_none
from taskharbor.drivers.sqlite.sql import load
from taskharbor.errors import JobExists

ALL, GET = load("schedules"), load("schedule_get")
PUT, REMOVE = load("schedule_put"), load("schedule_remove")
BEAT, WORKERS, FORGET = load("worker_beat"), load("workers"), load("worker_forget")
FORGET_MINUTES, TALLIES = load("tally_forget"), load("tallies")

_encode = msgspec.json.Encoder().encode
_worker = msgspec.json.Decoder(WorkerRecord).decode


def schedules(db: Connection) -> list[Schedule]:
    """All schedules by name."""
    return [_schedule(row) for row in db.execute(ALL)]


def _schedule(row: SqliteRow) -> Schedule:
    name, definition, slot, paused, last_job_id, last_slot = row
    times = moment_or_none(slot), moment_or_none(last_slot)
    return struct_of(Schedule, (name, definition, times[0], bool(paused), last_job_id, times[1]))


def swap_schedules(db: Connection, swaps: Sequence[Swap], now: datetime) -> list[bool | JobExists]:
    """Change each schedule that is still as it was seen, and enqueue its job (N3)."""
    return [_swap(db, swap, now) for swap in swaps]


def _swap(db: Connection, swap: Swap, now: datetime) -> bool | JobExists:
    found = db.execute(GET, (swap.name,)).fetchone()
    if (None if found is None else _schedule(found)) != swap.seen:  # as a whole: no field can be forgotten
        return False
    if swap.job is not None:
        verdict = swap_verdict(enqueue_group(db, Group(jobs=(swap.job,)), micros(now)))
        if verdict is not True:
            return verdict
    if (then := swap.then) is None:
        db.execute(REMOVE, (swap.name,))
    else:
        slots = micros_or_none(then.slot), micros_or_none(then.last_slot)
        db.execute(PUT, (then.name, then.definition, slots[0], then.paused, then.last_job_id, slots[1]))
    return True


def beat(db: Connection, worker: WorkerRecord) -> None:
    """Store the latest report of a worker."""
    db.execute(BEAT, (worker.id, micros(worker.seen_at), _encode(worker).decode()))


def workers(db: Connection, seen_since: datetime) -> list[WorkerRecord]:
    """Workers that reported since then, by id."""
    return [_worker(text) for (text,) in db.execute(WORKERS, (micros(seen_since),))]


def forget_worker(db: Connection, id: str) -> None:
    """Remove a worker."""
    db.execute(FORGET, (id,))


def tallies(db: Connection, since: datetime) -> list[Tally]:
    """The totals since a minute."""
    return [Tally(moment(minute), *rest) for minute, *rest in db.execute(TALLIES, (micros(since),))]


def forget_tallies(db: Connection, before: datetime) -> None:
    """Forget old minutes."""
    db.execute(FORGET_MINUTES, (micros(before),))
