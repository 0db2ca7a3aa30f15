"""Rows and records: times are whole microseconds in the file, unused columns are NULL.

A claim converts thousands of rows a second, so a job without rare options has a short path.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any

from msgspec.structs import replace

from taskharbor.core.job import LAST_MOMENT, JobRecord, Lease, NewJob
from taskharbor.core.states import State
from taskharbor.drivers.shared import columns
from taskharbor.drivers.shared.columns import DECODERS, RECORD, STATES, ColumnReader, json_or_none

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
INFLIGHT = State.INFLIGHT

# A row as `apsw` hands it over.
SqliteRow = tuple[Any, ...]


def micros(time: datetime) -> int:
    """A time as stored."""
    return (time - EPOCH) // MICROSECOND


# Until when a `kept` record stays.
FOR_EVER = micros(LAST_MOMENT)


def micros_or_none(time: datetime | None) -> int | None:
    """A time as stored, if there is one."""
    return None if time is None else (time - EPOCH) // MICROSECOND


@lru_cache(maxsize=4096)
def moment(stored: int) -> datetime:
    """A stored time. Jobs of one batch share most of their times."""
    return EPOCH + timedelta(0, 0, stored)


def moment_or_none(stored: int | None) -> datetime | None:
    """A stored time, if there is one."""
    return None if stored is None else moment(stored)


def span(numbers: Collection[int]) -> tuple[int, int] | None:
    """The first and the last of different numbers without a gap; None if they have one."""
    first, last = min(numbers), max(numbers)
    return (first, last) if last - first + 1 == len(numbers) else None


def new_row(job: NewJob, now: int, unmet: int = 0) -> SqliteRow:
    """The parameters of the statement enqueue."""
    run_at = None if job.run_at is None else micros(job.run_at)
    return (
        job.id,
        job.type,
        job.queue,
        job.payload,
        job.priority,
        job.max_attempts,
        job.max_crashes,
        now,
        now if run_at is None else run_at,
        run_at,
        None if job.expires_at is None else micros(job.expires_at),
        job.timeout,
        job.idempotency_key,
        None if job.key_expires_at is None else micros(job.key_expires_at),
        json_or_none(dict(job.headers)) if job.headers else None,
        json_or_none(job.tags) if job.tags else None,
        job.workflow_id,
        unmet,
        job.kept,
    )


_READERS: dict[str, ColumnReader] = {
    **dict.fromkeys(RECORD),
    **DECODERS,
    **{name: moment for name in RECORD if name.endswith(("_at", "_until"))},
    "state": STATES.__getitem__,
    "kept": bool,
}
record = partial(columns.record, list(_READERS.items()))


def claimed_plain(row: SqliteRow, now: datetime, expires_at: datetime, worker: str, tokens: str) -> JobRecord:
    """The record of a claimed row of the statement reserve, for a job without rare options that never ran."""
    seq, id, type, queue, payload, priority, max_attempts, max_crashes, created_at, due_at, run_at, workflow_id, _ = row
    created = moment(created_at)
    # With one more argument, Python takes twice as long for the call.
    job = JobRecord(
        id=id,
        type=type,
        queue=queue,
        payload=payload,
        priority=priority,
        max_attempts=max_attempts,
        max_crashes=max_crashes,
        state=INFLIGHT,
        created_at=created,
        due_at=created if due_at == created_at else moment(due_at),
        version=1,
        lease=Lease(f"{tokens}{seq} {id}", 1, expires_at, worker, now),
        worker=worker,
        claimed_at=now,
        workflow_id=workflow_id,
    )
    return job if run_at is None else replace(job, run_at=moment(run_at))
