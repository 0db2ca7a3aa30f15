"""What a manager writes, and what it says to those it refuses: pure functions of the stored job (M1-M3).

The outcomes are the core's own. Only the counting differs: a claim is an attempt, and a task is never forgotten.
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
from taskharbor.manager.task import SAID, is_held, status_of, task_of

FOR_EVER = Retention(timedelta.max, timedelta.max)
NO_DELAY = Retry()
NO_CHANCE = Random(0)  # nothing is drawn: whoever fails may be claimed again at once


def completed(job: JobRecord, result: bytes | None) -> Ack:
    """The end of a claimed task that went well."""
    return succeed(job, token_of(job), Succeeded(result), LAST_MOMENT, job.started_at)


def failed(job: JobRecord, failure: Failed, now: datetime) -> Transition:
    """A claimed task that failed: pending again while attempts remain, else failed for good (M2).

    It keeps its place, for another host's clock may be behind this one's.
    """
    claims = replace(job, attempts=job.version - 1)
    to = decide(claims, replace(failure, delay=0.0), NO_DELAY, FOR_EVER, now, NO_CHANCE)
    to = replace(to, attempts=job.attempts + 1)
    return replace(to, run_at=job.due_at) if isinstance(to, PutBack) else to


def put_back(job: JobRecord, now: datetime) -> Transition:
    """A claimed task that somebody puts back."""
    return decide(job, Interrupted(), NO_DELAY, FOR_EVER, now, NO_CHANCE)


def spent(job: JobRecord, now: datetime) -> Fail:
    """The end of a task that was claimed once more than it may be."""
    to = failed(job, Failed(SAID, f"claimed {job.max_attempts} times, as often as it may be"), now)
    assert isinstance(to, Fail)
    return to


def used_up(job: JobRecord) -> MaxAttemptsReached:
    """What a task without attempts answers to whoever wants one more."""
    return MaxAttemptsReached(f"task {job.id} was claimed {job.max_attempts} times, as often as it may be")


def restless(id: str) -> TaskError:
    """What somebody hears who was always too late."""
    return TaskError(f"task {id} changes all the time: try again")


def is_holder(job: JobRecord, worker: str) -> bool:
    """Whether the last claim was made under this worker's name."""
    return job.lease is not None and job.lease.worker == worker


def failure_of(error: str | BaseException) -> Failed:
    """What an agent says went wrong."""
    if isinstance(error, str):
        return Failed(SAID, error)
    told = "".join(traceback.format_exception(error)) if error.__traceback__ is not None else ""
    return Failed(kind_of(error), message_of(error), told)


def has_recorded(job: JobRecord, version: int) -> bool:
    """Whether the failure of this very claim is stored."""
    return any(failure.attempt == version for failure in job.failures)


def ended(job: JobRecord, now: datetime) -> TaskError:
    """What an ended task answers to whoever wants to claim or change it."""
    task = task_of(job, now)
    if task.completed_at is None:
        return TaskFailed(f"task {job.id} has failed: {task.error}")
    at = task.completed_at.isoformat()
    if task.status == "completed":
        return TaskCompleted(f"task {job.id} was completed at {at}: read its result with get()")
    return TaskFailed(f"task {job.id} failed at {at}: {task.error}; retry() puts it back while attempts remain")


def taken(job: JobRecord, worker: str) -> TaskAlreadyClaimed:
    """What a claimed task answers to whoever else wants to claim it."""
    assert job.lease is not None
    by = f"{job.lease.worker!r}"
    if job.lease.worker == worker:
        by = "this worker id in another manager, or by a call whose answer was lost,"
    until = job.lease.expires_at.isoformat()
    return TaskAlreadyClaimed(f"task {job.id} is claimed by {by} until {until}: take another one, or wait")


def refusal(job: JobRecord, worker: str, now: datetime) -> TaskError:
    """Why somebody who does not hold the task cannot complete, fail or extend it."""
    if status_of(job, now) in ("completed", "failed"):
        return ended(job, now)
    if is_held(job, now) and job.lease is not None:
        if job.lease.worker == worker:
            return WrongWorker(f"task {job.id} is claimed by {worker!r} in another manager: only that one may do this")
        return WrongWorker(f"task {job.id} is claimed by {job.lease.worker!r}: only that worker may do this")
    if job.lease is not None:
        since = job.lease.expires_at.isoformat()
        return TaskNotClaimed(f"the claim on task {job.id} by {job.lease.worker!r} ran out at {since}: claim it again")
    return TaskNotClaimed(f"task {job.id} is pending: claim it first")
