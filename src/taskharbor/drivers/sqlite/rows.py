"""Rows and records: times are whole microseconds in the file, rare fields are NULL when they say nothing.

A claim converts thousands of rows a second, so a row whose rare columns are all as new takes a short way.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from taskharbor.core.job import LAST_MOMENT, JobRecord, Lease, NewJob
from taskharbor.core.states import State
from taskharbor.drivers.shared.columns import DECODERS, STATES, json_or_none

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
INFLIGHT = State.INFLIGHT

# A row as `apsw` hands it over. Its columns are those of the part record, in that order.
Row = tuple[Any, ...]

COMMON = 16
WIDTH = 47
AS_NEW: Row = (*(None,) * 7, 0, 0, 0, *(None,) * 10, 0, None, 0, None, None, 0, *(None,) * 5)

_headers, _tags = DECODERS["headers"], DECODERS["tags"]
_failures, _progress = DECODERS["failures"], DECODERS["progress"]


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
    """A stored time. The jobs of one batch share most of theirs."""
    return EPOCH + timedelta(0, 0, stored)


def moment_or_none(stored: int | None) -> datetime | None:
    """A stored time, if there is one."""
    return None if stored is None else moment(stored)


def span(numbers: Collection[int]) -> tuple[int, int] | None:
    """The first and the last of different numbers without a gap; None if they have one."""
    first, last = min(numbers), max(numbers)
    return (first, last) if last - first + 1 == len(numbers) else None


def new_row(job: NewJob, now: int, unmet: int = 0) -> Row:
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


def record(row: Row) -> JobRecord:
    """The record of a row."""
    version, token, worker, claimed_at = row[10], row[11], row[13], moment_or_none(row[14])
    return JobRecord(
        id=row[0],
        type=row[1],
        queue=row[2],
        payload=row[3],
        priority=row[4],
        max_attempts=row[5],
        max_crashes=row[6],
        state=STATES[row[7]],
        created_at=moment(row[8]),
        due_at=moment(row[9]),
        version=version,
        lease=None
        if token is None or claimed_at is None
        else Lease(token, version, moment(row[12]), worker, claimed_at),
        worker=worker,
        claimed_at=claimed_at,
        run_at=moment_or_none(row[15]),
        **({} if row[COMMON:WIDTH] == AS_NEW else _rare(row)),
    )


def claimed_plain(row: Row, tokens: str, now: datetime, expires_at: datetime, worker: str) -> JobRecord:
    """The record of a row of reserve once claimed, if the job is as it was enqueued, without rare options."""
    seq, id, type, queue, payload, priority, max_attempts, max_crashes, created_at, due_at, run_at, workflow_id, _ = row
    created = moment(created_at)
    # With one argument more, Python takes twice as long for a call.
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


def _rare(row: Row) -> dict[str, Any]:
    return {
        "expires_at": moment_or_none(row[16]),
        "timeout": row[17],
        "idempotency_key": row[18],
        "key_expires_at": moment_or_none(row[19]),
        "headers": _headers(row[20]) if row[20] else {},
        "tags": _tags(row[21]) if row[21] else (),
        "workflow_id": row[22],
        "attempts": row[23],
        "crashes": row[24],
        "unknown_put_backs": row[25],
        "last_error": row[26],
        "failed_at": moment_or_none(row[27]),
        "failures": _failures(row[28]) if row[28] else (),
        "started_at": moment_or_none(row[29]),
        "progress": _progress(row[30]) if row[30] else None,
        "stop_requested_at": moment_or_none(row[31]),
        "completed_at": moment_or_none(row[32]),
        "result": row[33],
        "dlq_reason": row[34],
        "fingerprint": row[35],
        "unmet": row[36],
        "original_id": row[37],
        "replays": row[38],
        "settled_token": row[39],
        "keep_until": moment_or_none(row[40]),
        "kept": bool(row[41]),
        "stop_reason": row[42],
        "stop_fingerprint": row[43],
        "stop_keep_until": moment_or_none(row[44]),
        "settled_kind": row[45],
        "settled_at": moment_or_none(row[46]),
    }
