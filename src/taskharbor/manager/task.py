"""A task as agents see it, derived from the job that is stored."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from taskharbor.core.job import JobRecord, Progress
from taskharbor.core.reserved import KEY_PREFIX
from taskharbor.core.states import CANCELLED, DLQ, DONE, INFLIGHT, Shown

SAID = "Failed"
"""The kind of a failure that an agent put into words, without an exception."""


class TaskStatus(StrEnum):
    """Where a task stands. A claim whose lease has run out is pending: anybody may claim it."""

    PENDING = "pending"
    CLAIMED = "claimed"
    COMPLETED = "completed"
    FAILED = "failed"


class Task(Struct, frozen=True, kw_only=True):
    """A task as it was at one moment. `attempts` counts claims; `max_attempts=0` means any number of them."""

    id: str
    idempotency_key: str | None
    payload: bytes
    status: TaskStatus
    attempts: int
    max_attempts: int
    created_at: datetime
    claimed_at: datetime | None = None
    claimed_by: str | None = None
    claim_expires_at: datetime | None = None
    completed_at: datetime | None = None
    result: bytes | None = None
    error: str | None = None
    progress: Progress | None = None
    cancel_requested: bool = False
    """Whether an operator has cancelled the task while it is claimed: then only completing it still counts."""


# The jobs among which tasks of a status are found: whether a claim has lapsed is up to the clock.
STATES: dict[TaskStatus, tuple[Shown, ...]] = {
    TaskStatus.PENDING: (Shown.SCHEDULED, Shown.READY, Shown.LAPSED, Shown.CLAIMED, Shown.RUNNING),
    TaskStatus.CLAIMED: (Shown.CLAIMED, Shown.RUNNING),
    TaskStatus.COMPLETED: (Shown.DONE,),
    TaskStatus.FAILED: (Shown.DLQ, Shown.CANCELLED, Shown.LAPSED, Shown.CLAIMED, Shown.RUNNING),
}


def status_of(job: JobRecord, now: datetime) -> TaskStatus:
    """The status of the task that a job is."""
    if job.state is DONE:
        return TaskStatus.COMPLETED
    if job.state in (DLQ, CANCELLED) or is_stopping(job, now):
        return TaskStatus.FAILED
    return TaskStatus.CLAIMED if is_held(job, now) else TaskStatus.PENDING


def is_held(job: JobRecord, now: datetime) -> bool:
    """Whether somebody's claim is valid."""
    return job.state is INFLIGHT and job.lease is not None and job.lease.expires_at > now


def is_stopping(job: JobRecord, now: datetime) -> bool:
    """Whether an operator cancelled a claimed task whose holder let it lapse: upkeep will call it cancelled."""
    return job.state is INFLIGHT and job.stop_requested_at is not None and not is_held(job, now)


def is_spent(job: JobRecord) -> bool:
    """Whether the task was claimed as often as it may be (M2)."""
    return job.max_attempts is not None and job.version >= job.max_attempts


def task_of(job: JobRecord, now: datetime) -> Task:
    """The task that a job is."""
    status = status_of(job, now)
    lease = job.lease if status is TaskStatus.CLAIMED else None
    return Task(
        id=job.id,
        idempotency_key=None if job.idempotency_key is None else job.idempotency_key.removeprefix(KEY_PREFIX),
        payload=job.payload,
        status=status,
        attempts=job.version if job.max_attempts is None else min(job.version, job.max_attempts),
        max_attempts=job.max_attempts or 0,
        created_at=job.created_at,
        claimed_at=lease.claimed_at if lease else None,
        claimed_by=lease.worker if lease else None,
        claim_expires_at=lease.expires_at if lease else None,
        completed_at=job.completed_at,
        result=job.result,
        error=_error(job, status, now),
        progress=job.progress if lease else None,
        cancel_requested=lease is not None and job.stop_requested_at is not None,
    )


def _error(job: JobRecord, status: TaskStatus, now: datetime) -> str | None:
    """What went wrong the last time; nothing of it matters once the task is completed."""
    if status is TaskStatus.COMPLETED:
        return None
    last = job.failures[-1] if job.failures else None
    said = last.message if last is not None and last.kind == SAID else job.last_error
    if job.state is CANCELLED or is_stopping(job, now):
        return "cancelled by an operator" if said is None else f"cancelled by an operator; before that: {said}"
    return said
