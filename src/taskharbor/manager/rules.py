"""The transitions that a manager writes, and its errors: pure functions of the stored job (M1-M3).

Unlike for jobs, a claim counts as an attempt and as the start of the work, and a task is never pruned.
"""

from __future__ import annotations

import traceback
from datetime import datetime, timedelta
from random import Random

from msgspec.structs import replace

from taskharbor.core.decide import Retention, decide, succeed, token_of
from taskharbor.core.job import LAST_MOMENT, JobRecord
from taskharbor.core.outcome import Failed, Interrupted, Succeeded
from taskharbor.core.retry import Retry
from taskharbor.core.states import CANCELLED, DLQ, DONE
from taskharbor.core.text import kind_of, message_of
from taskharbor.core.transition import Ack, Fail, PutBack, Transition
from taskharbor.errors import (
    MaxAttemptsReached,
    TaskAlreadyClaimed,
    TaskCompleted,
    TaskError,
    TaskFailed,
    TaskNotClaimed,
    WrongWorker,
)
from taskharbor.manager.checks import Caller
from taskharbor.manager.task import REPORTED_FAILURE, TaskStatus, is_held, status_of, task_of

FOR_EVER = Retention(timedelta.max, timedelta.max)
# Neither is asked: a failed task may be claimed again at once, so its delay is given.
UNUSED_RETRY = Retry()
UNUSED_RNG = Random(0)


def completed(job: JobRecord, result: bytes | None) -> Ack:
    return succeed(job, token_of(job), Succeeded(result), LAST_MOMENT, job.claimed_at)


def failed(job: JobRecord, failure: Failed, now: datetime) -> Transition:
    """The failure of a claimed task: pending again while attempts remain, else failed for good (M2).

    It keeps its due time: the clock of another host may be behind this one.
    """
    claims = replace(job, attempts=job.version - 1, started_at=job.claimed_at)
    to = decide(claims, replace(failure, delay=0.0), UNUSED_RETRY, FOR_EVER, now, UNUSED_RNG)
    to = replace(to, attempts=job.attempts + 1)
    return replace(to, run_at=job.due_at) if isinstance(to, PutBack) else to


def put_back(job: JobRecord, now: datetime) -> Transition:
    return decide(replace(job, started_at=job.claimed_at), Interrupted(), UNUSED_RETRY, FOR_EVER, now, UNUSED_RNG)


def spent(job: JobRecord, now: datetime) -> Fail:
    """The end of a task that was claimed once more than it may be."""
    to = failed(job, Failed(REPORTED_FAILURE, f"claimed {job.max_attempts} times, as often as it may be"), now)
    assert isinstance(to, Fail)
    return to


def used_up(job: JobRecord) -> MaxAttemptsReached:
    return MaxAttemptsReached(f"task {job.id} was claimed {job.max_attempts} times, as often as it may be")


def contention(id: str) -> TaskError:
    """The error after several tries that all came too late."""
    return TaskError(f"task {id} is under contention: try again")


def is_claim(job: JobRecord, who: Caller) -> bool:
    """Whether the caller passed the token of the task's latest claim, and its worker id; it may have expired."""
    return job.lease is not None and (job.lease.token, job.lease.worker) == (who.token, who.worker)


def failure_of(error: str | BaseException) -> Failed:
    if isinstance(error, str):
        return Failed(REPORTED_FAILURE, error)
    frames = "".join(traceback.format_exception(error)) if error.__traceback__ is not None else ""
    return Failed(kind_of(error), message_of(error), frames)


def is_completed_by(job: JobRecord, who: Caller, held: JobRecord | None, result: bytes | None) -> bool:
    """Whether the caller's complete repeats the one that is stored (M3): under its token, or, without a token, by the
    same worker id with the same result."""
    if job.state is not DONE or job.worker != who.worker:
        return False
    return _has_settled(job, who, held) or (who.token is None and job.result == result)


def is_failed_by(job: JobRecord, who: Caller, held: JobRecord | None, failure: Failed) -> bool:
    """Whether the caller's fail repeats the failure that was stored last (M3): under its token, also if the task is
    pending or claimed again; or, without a token, by the same worker id with the same error, if the task has failed."""
    last = job.failures[-1] if job.failures else None
    if last is None or last.worker != who.worker:
        return False
    if _has_settled(job, who, held):
        return job.settled_kind != "ack" and last.failed_at == job.settled_at  # else a retry has put it back
    same = job.worker == who.worker and (last.kind, last.message) == (failure.kind, failure.message)
    return job.state in (DLQ, CANCELLED) and who.token is None and same


def _has_settled(job: JobRecord, who: Caller, held: JobRecord | None) -> bool:
    """Whether the caller's claim, by its token or held by the manager, made the last settle."""
    token = who.token if who.token is not None else None if held is None else token_of(held)
    return token is not None and token == job.settled_token


def ended(job: JobRecord, now: datetime) -> TaskError:
    """The error for a claim or change of an ended task."""
    task = task_of(job, now)
    if task.completed_at is None:
        return TaskFailed(f"task {job.id} has failed: {task.error}")
    at = task.completed_at.isoformat()
    if task.status is TaskStatus.COMPLETED:
        return TaskCompleted(f"task {job.id} was completed at {at}: read its result with get()")
    return TaskFailed(f"task {job.id} failed at {at}: {task.error}; retry() puts it back while attempts remain")


def taken(job: JobRecord, who: Caller) -> TaskAlreadyClaimed:
    """The error for a claim of a task that another worker holds."""
    assert job.lease is not None
    by = f"{job.lease.worker!r}"
    if job.lease.worker == who.worker and who.token is not None:
        by += " under another token"
    elif job.lease.worker == who.worker:
        by = (
            "this worker id in another manager (pass token= to go on with that claim), or by a call that got no answer,"
        )
    until = job.lease.expires_at.isoformat()
    return TaskAlreadyClaimed(f"task {job.id} is claimed by {by} until {until}: take another one, or wait")


def refusal(job: JobRecord, who: Caller, now: datetime) -> TaskError:
    """Why a caller that does not hold the task cannot complete, fail or extend it."""
    if status_of(job, now) in (TaskStatus.COMPLETED, TaskStatus.FAILED):
        return ended(job, now)
    if job.lease is None:
        again = "" if who.token is None else "; the claim of this token is over: leave the token out"
        return TaskNotClaimed(f"task {job.id} is pending: claim it first{again}")
    by = repr(job.lease.worker)
    if not is_held(job, now):
        since = job.lease.expires_at.isoformat()
        again = "" if who.token is None else " without a token"
        return TaskNotClaimed(f"the claim on task {job.id} by {by} ran out at {since}: claim it again{again}")
    if job.lease.worker != who.worker:
        return WrongWorker(f"task {job.id} is claimed by {by}: only that worker may do this")
    if who.token is not None:
        return WrongWorker(f"task {job.id} is claimed by {by} under another token: that of an earlier claim is void")
    return WrongWorker(f"task {job.id} is claimed by {by} in another manager: pass the token= of that claim to do this")
