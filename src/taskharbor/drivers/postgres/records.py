"""Schedules, workers and totals: the small tables beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from taskharbor.core.job import NewJob
from taskharbor.driver import Group, Schedule, Tally, WorkerRecord
from taskharbor.drivers.postgres.db import Db
from taskharbor.drivers.postgres.enqueue import enqueue_group
from taskharbor.errors import HarborError

_encode = msgspec.json.Encoder().encode
_worker = msgspec.json.Decoder(WorkerRecord).decode


async def put_schedule(db: Db, it: Schedule) -> None:
    """Create or redefine a schedule."""
    await db.rows("schedule_put", it.name, it.definition, it.slot, it.paused, it.last_job_id, it.last_slot)


async def schedules(db: Db) -> list[Schedule]:
    """All schedules by name."""
    return [
        Schedule(
            name=name, definition=definition, slot=slot, paused=paused, last_job_id=last_job_id, last_slot=last_slot
        )
        for name, definition, slot, paused, last_job_id, last_slot in await db.rows("schedules")
    ]


async def advance(
    db: Db, name: str, expected_slot: datetime | None, next_slot: datetime | None, job: NewJob | None, now: datetime
) -> bool | HarborError:
    """Move the slot on and enqueue its job, if nobody did before (N3). A refused job moves nothing."""
    if not await db.rows("schedule_due", name, expected_slot):
        return False
    id: str | None = None
    if job is not None:
        stored = await enqueue_group(db, Group(jobs=(job,)), now)
        if isinstance(stored, HarborError):
            return stored
        id = stored[0].id
    await db.rows("schedule_advance", name, next_slot, id, expected_slot)
    return True


async def pause_schedule(db: Db, name: str, paused: bool) -> bool:
    """Pause or resume; whether there is such a schedule."""
    return bool(await db.rows("schedule_pause", name, paused))


async def remove_schedule(db: Db, name: str) -> bool:
    """Remove; whether there was such a schedule."""
    return bool(await db.rows("schedule_remove", name))


async def beat(db: Db, worker: WorkerRecord) -> None:
    """Store the latest report of a worker."""
    await db.rows("worker_beat", worker.id, worker.seen_at, _encode(worker).decode())


async def workers(db: Db, seen_since: datetime) -> list[WorkerRecord]:
    """Workers that reported since then, by id."""
    return [_worker(row[0]) for row in await db.rows("workers", seen_since)]


async def forget_worker(db: Db, id: str) -> None:
    """Remove a worker."""
    await db.rows("worker_forget", id)


async def count(db: Db, tallies: Sequence[Tally], forget_before: datetime) -> None:
    """Add to the totals, and forget old minutes."""
    totals: dict[tuple[datetime, str, str, str], list[float]] = {}
    for it in tallies:
        total = totals.setdefault((it.minute, it.queue, it.task, it.outcome), [0, 0.0])
        total[0] += it.count
        total[1] += it.seconds
    if totals:
        keys = [list(column) for column in zip(*sorted(totals), strict=True)]
        sums = [totals[key] for key in sorted(totals)]
        await db.rows("tally_add", *keys, [int(it[0]) for it in sums], [float(it[1]) for it in sums])
    await db.rows("tally_forget", forget_before)


async def tallies(db: Db, since: datetime) -> list[Tally]:
    """The totals since a minute."""
    return [Tally(*row) for row in await db.rows("tallies", since)]
