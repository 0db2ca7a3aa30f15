"""Schedules, workers and totals: the small tables beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec.structs import astuple

from taskharbor.core.job import NewJob
from taskharbor.core.schedule import Schedule, swap_verdict
from taskharbor.driver import Group, Swap, Tally, WorkerRecord
from taskharbor.drivers.postgres.db import Db
from taskharbor.drivers.postgres.enqueue import enqueue
from taskharbor.drivers.shared.columns import struct_of
from taskharbor.errors import JobExists

_encode = msgspec.json.Encoder().encode
_worker = msgspec.json.Decoder(WorkerRecord).decode


async def schedules(db: Db) -> list[Schedule]:
    """All schedules by name."""
    return [struct_of(Schedule, row) for row in await db.rows("schedules")]


async def swap_schedules(db: Db, swaps: Sequence[Swap], now: datetime) -> list[bool | JobExists]:
    """Change each schedule that is still as it was seen, and enqueue its job (N3).

    The schedules are locked, so they are read once, compared here as a whole, and written once.
    """
    names = sorted({swap.name for swap in swaps})
    await db.rows("schedule_hold", names)
    stored: dict[str, Schedule | None] = dict.fromkeys(names)
    stored |= {row[0]: struct_of(Schedule, row) for row in await db.rows("schedule_get", names)}
    changed: dict[str, Schedule | None] = {}
    verdicts: list[bool | JobExists] = []
    for swap in swaps:
        verdict = stored[swap.name] == swap.seen and await _enqueued(db, swap.job, now)
        if verdict is True:
            stored[swap.name] = changed[swap.name] = swap.then
        verdicts.append(verdict)
    await _write(db, changed)
    return verdicts


async def _enqueued(db: Db, job: NewJob | None, now: datetime) -> bool | JobExists:
    if job is None:
        return True
    [stored] = await enqueue(db, [Group(jobs=(job,))], now, None)
    return swap_verdict(stored)


async def _write(db: Db, changed: dict[str, Schedule | None]) -> None:
    if put := [astuple(it) for it in changed.values() if it is not None]:
        await db.rows("schedule_put", *map(list, zip(*put, strict=True)))
    if gone := [name for name, it in changed.items() if it is None]:
        await db.rows("schedule_remove", gone)


async def beat(db: Db, worker: WorkerRecord) -> None:
    """Store the latest report of a worker."""
    await db.rows("worker_beat", worker.id, worker.seen_at, _encode(worker).decode())


async def workers(db: Db, seen_since: datetime) -> list[WorkerRecord]:
    """Workers that reported since then, by id."""
    return [_worker(row[0]) for row in await db.rows("workers", seen_since)]


async def forget_worker(db: Db, id: str) -> None:
    """Remove a worker."""
    await db.rows("worker_forget", id)


async def tallies(db: Db, since: datetime) -> list[Tally]:
    """The totals since a minute."""
    return [Tally(*row) for row in await db.rows("tallies", since)]


async def forget_tallies(db: Db, before: datetime) -> None:
    """Forget old minutes."""
    await db.rows("tally_forget", before)
