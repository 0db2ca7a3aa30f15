"""A task for agents, derived from the stored job."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.core.decide import token_of
from taskharbor.core.job import JobRecord, Progress
from taskharbor.core.reserved import KEY_PREFIX
from taskharbor.core.states import CANCELLED, DLQ, DONE, INFLIGHT, Shown

REPORTED_FAILURE = "Failed"
"""The kind of a failure that an agent reported as text, not as an exception."""
HIDDEN = "***"


class TaskStatus(StrEnum):
    """The status of a task. One whose claim has expired is pending: any worker may claim it."""

    PENDING = "pending"
    CLAIMED = "claimed"
    COMPLETED = "completed"
    FAILED = "failed"


class Task(Struct, frozen=True, kw_only=True):
    """A task as it was at one moment. `attempts` counts claims; `max_attempts=0` means any number of them.

    `claimed_by` and `claimed_at` are those of the last claim, and stay when it is over; `took` is how long it lasted if
    a complete, fail or retry ended it. `claim_expires_at`, `progress` and the requests of an operator are there only
    while the task is claimed.
    """

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
    claim_token: str | None = None
    """Set by `claim` alone. Any process that passes it as `token=` goes on with this claim, so treat it as a secret."""
    completed_at: datetime | None = None
    took: timedelta | None = None
    result: bytes | None = None
    error: str | None = None
    progress: Progress | None = None
    cancel_requested: bool = False
    """Whether an operator wants the claimed task to end: by a cancel or a dead letter. Only completing it overrules
    that; a fail, or the end of the lease, ends it as failed."""
    dead_letter_reason: str | None = None
    """Why, if the operator asked for a dead letter."""

    def __repr__(self) -> str:
        return f"Task({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The fields as they may be logged: a token is not shown."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return list((fields if self.claim_token is None else {**fields, "claim_token": HIDDEN}).items())


# The states of the jobs to look through for tasks of a status: whether a claim has lapsed depends on the clock.
STATES: dict[TaskStatus, tuple[Shown, ...]] = {
    TaskStatus.PENDING: (Shown.SCHEDULED, Shown.READY, Shown.LAPSED, Shown.CLAIMED, Shown.RUNNING),
    TaskStatus.CLAIMED: (Shown.CLAIMED, Shown.RUNNING),
    TaskStatus.COMPLETED: (Shown.DONE,),
    TaskStatus.FAILED: (Shown.DLQ, Shown.CANCELLED, Shown.LAPSED, Shown.CLAIMED, Shown.RUNNING),
}


def status_of(job: JobRecord, now: datetime) -> TaskStatus:
    if job.state is DONE:
        return TaskStatus.COMPLETED
    if job.state in (DLQ, CANCELLED) or is_stopping(job, now):
        return TaskStatus.FAILED
    return TaskStatus.CLAIMED if is_held(job, now) else TaskStatus.PENDING


def is_held(job: JobRecord, now: datetime) -> bool:
    """Whether a claim on it is valid."""
    return job.state is INFLIGHT and job.lease is not None and job.lease.expires_at > now


def is_stopping(job: JobRecord, now: datetime) -> bool:
    """Whether an operator asked a claimed task to end and its lease has expired: the next sweep ends it."""
    return job.state is INFLIGHT and job.stop_requested_at is not None and not is_held(job, now)


def is_spent(job: JobRecord) -> bool:
    """Whether the task was claimed as often as it may be (M2)."""
    return job.max_attempts is not None and job.version >= job.max_attempts


def task_of(job: JobRecord, now: datetime) -> Task:
    """The task that a job is, without the token of its claim."""
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
        claimed_at=job.claimed_at,
        claimed_by=job.worker,
        claim_expires_at=lease.expires_at if lease else None,
        completed_at=job.completed_at,
        took=_took(job),
        result=job.result,
        error=_error(job, status, now),
        progress=job.progress if lease else None,
        cancel_requested=lease is not None and job.stop_requested_at is not None,
        dead_letter_reason=job.stop_reason if lease else None,
    )


def claimed_task(job: JobRecord, now: datetime) -> Task:
    """The same with the token, for the caller that claimed it."""
    return replace(task_of(job, now), claim_token=token_of(job))


def _took(job: JobRecord) -> timedelta | None:
    if job.state is INFLIGHT or job.started_at is None or job.settled_at is None:
        return None
    return max(job.settled_at - job.started_at, timedelta(0))  # two hosts, two clocks


def _error(job: JobRecord, status: TaskStatus, now: datetime) -> str | None:
    """Why the task failed, or its last error; None if it is completed."""
    if status is TaskStatus.COMPLETED:
        return None
    last = job.failures[-1] if job.failures else None
    error = last.message if last is not None and last.kind == REPORTED_FAILURE else job.last_error
    ended = _ended_by_hand(job, now)
    return error if ended is None else ended if error is None else f"{ended}; before that: {error}"


def _ended_by_hand(job: JobRecord, now: datetime) -> str | None:
    """How an operator ended the task; None if no operator did."""
    if is_stopping(job, now):
        reason = job.stop_reason
    elif job.state is DLQ and job.settled_kind != "fail":  # a task that failed by a claim is never put back
        reason = job.dlq_reason
    elif job.state is CANCELLED:
        reason = None
    else:
        return None
    return "cancelled by an operator" if reason is None else f"dead-lettered: {reason}"
