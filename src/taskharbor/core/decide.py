"""Decide what an outcome means: the one pure function behind every retry, dead letter and release.

`decide` maps (record, outcome, policy, now, rng) to the transition to write; `admit` says whether a claimed job may
run at all. Attempts count recorded failures, crashes count lapsed leases and dead processes since the last recorded
outcome.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, assert_never

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.core.evolve import DeadLetter
from taskharbor.core.fingerprint import fingerprint
from taskharbor.core.job import KEPT_FAILURES, LAST_MOMENT, Failure, JobRecord
from taskharbor.core.outcome import (
    CancelledByRequest,
    Crashed,
    Deferred,
    Failed,
    Interrupted,
    NotRegistered,
    Outcome,
    Snoozed,
    Succeeded,
)
from taskharbor.core.retry import Retry, Rng
from taskharbor.core.tally import CANCELLED, DEAD, DONE, RELEASED, RETRIED
from taskharbor.core.text import kind_of, message_of
from taskharbor.core.transition import Ack, Cancel, Fail, Increment, PutBack, Transition

UNKNOWN_TASK_RETRY = Retry(base=1, cap=60, jitter=False)  # 25 minutes in all
MAX_UNKNOWN_PUT_BACKS = 30
BY_HAND = "DeadLettered"  # the error kind of every job dead-lettered by hand
SUSPICIOUS_CRASHES = 2  # a single crash may be the host's fault


class Retention(Struct, frozen=True):
    """How long finished records are kept (X8)."""

    done: timedelta = timedelta(hours=24)
    dead: timedelta = timedelta(days=30)


def later(now: datetime, by: timedelta | float) -> datetime:
    """`now + by` (a number means seconds), clamped to the end of the calendar."""
    try:
        return min(now + (by if isinstance(by, timedelta) else timedelta(seconds=by)), LAST_MOMENT)
    except OverflowError:
        return LAST_MOMENT


def is_suspect(job: JobRecord) -> bool:
    """Whether the job must run alone, because it may be killing its workers (F6b)."""
    return job.crashes >= SUSPICIOUS_CRASHES and not _crashed_too_often(job)


def admit(job: JobRecord, retention: Retention, now: datetime) -> Fail | None:
    """The transition that ends a job that keeps killing its workers; None if it may run (F6)."""
    if not _crashed_too_often(job):
        return None
    number = "a worker" if job.crashes == 1 else f"{job.crashes} workers in a row"
    entry = _entry(job, Failed("CrashLoop", f"{number} died, or lost the lease, while running this job"), now)
    # The worker that notices is not the one that died.
    return _fail(job, replace(entry, worker=None), "crash_loop", retention, now)


def _crashed_too_often(job: JobRecord) -> bool:
    return job.max_crashes is not None and job.crashes >= job.max_crashes


def crashed(job: JobRecord, retention: Retention, now: datetime) -> PutBack:
    """The transition of a claimed job whose worker process has died: a crash is counted, as a reclaim would (L9, D5).

    After the first crash it has its old place in line, later it waits behind what is due by now (D11, F7). Whether it
    has crashed too often is for the next claim to see (`admit`): that worker has the application's dead hooks.
    """
    run_at = now if job.crashes else min(job.due_at, now)
    put_back = _put_back_unfinished(job, run_at, job.unknown_put_backs, retention, now)
    return replace(put_back, crashes=job.crashes + 1, increment=None)


def decide(job: JobRecord, outcome: Outcome, retry: Retry, retention: Retention, now: datetime, rng: Rng) -> Transition:
    """The transition that an outcome calls for."""
    match outcome:
        case Succeeded():
            return succeed(job, token_of(job), outcome, later(now, retention.done), job.started_at)
        case Failed():
            return _after_failure(job, outcome, retry, retention, now, rng)
        case Snoozed(delay):
            return _put_back(job, later(now, delay), retention, now)
        case Interrupted(started):
            if started and job.max_attempts == 1 and job.max_crashes == 1:
                return _after_interruption(job, retention, now)
            return _put_back_unfinished(job, job.due_at, job.unknown_put_backs, retention, now)
        case Deferred(delay):
            run_at = later(now, delay) if delay else job.due_at
            return _put_back_unfinished(job, run_at, job.unknown_put_backs, retention, now)
        case Crashed(message):
            return _after_crash(job, message, retry, retention, now, rng)
        case NotRegistered():
            return _after_unknown(job, retention, now)
        case CancelledByRequest():
            return Cancel(**_recorded(job, CANCELLED), keep_until=later(now, retention.done))
        case _:
            assert_never(outcome)


def succeed(
    job: JobRecord,
    token: str,
    outcome: Succeeded,
    keep_until: datetime,
    started_at: datetime | None,
    like: Increment | None = None,
) -> Ack:
    """The transition of a success; workers make thousands a second, so shared values are passed in.

    `like` is the increment of another success, which this one has too if it adds the same to the totals.
    """
    if like is None or like.due_at != job.due_at or like.task != job.type or like.queue != job.queue:
        like = Increment(job.queue, job.type, DONE, job.due_at)
    return Ack(
        id=job.id,
        token=token,
        keep_until=keep_until if job.key_expires_at is None else _keep(job, keep_until),
        started_at=started_at,
        attempts=job.attempts,
        last_error=job.last_error,
        failed_at=job.failed_at,
        failures=job.failures,
        result=outcome.result,
        new_jobs=outcome.new_jobs,
        increment=like,
    )


def dead_by_hand(to: Transition) -> Transition:
    """The transition of a run that was stopped to dead-letter its job: it counts as dead, unless the run failed."""
    if to.increment is None or to.increment.outcome != RELEASED:
        return to
    return replace(to, increment=replace(to.increment, outcome=DEAD))


def dead_letter(job: JobRecord, reason: str, retention: Retention, now: datetime) -> DeadLetter:
    """Dead-letter a job by hand, with a reason (Q4)."""
    return DeadLetter(
        id=job.id,
        reason=reason,
        fingerprint=fingerprint(job.type, BY_HAND, reason),
        keep_until=_keep(job, later(now, retention.dead)),
    )


def by_hand(job: JobRecord) -> str | None:
    """The reason of a dead letter by hand; None for other jobs. The fingerprint distinguishes it from a failure's."""
    if job.dlq_reason is None or job.fingerprint != fingerprint(job.type, BY_HAND, job.dlq_reason):
        return None
    return job.dlq_reason


def _after_failure(
    job: JobRecord, failed: Failed, retry: Retry, retention: Retention, now: datetime, rng: Rng
) -> PutBack | Fail:
    attempts = job.attempts + 1
    entry = _entry(job, failed, now, attempt=attempts)
    if failed.final is not None:
        return _fail(job, entry, failed.final, retention, now)
    if job.max_attempts is not None and attempts >= job.max_attempts:
        return _fail(job, entry, "max_attempts", retention, now)
    try:
        delay = retry.delay(attempts, rng) if failed.delay is None else failed.delay
    except BaseException as broken:
        return _after_broken_policy(job, entry, broken, retention, now)
    return _put_back(_noted(job, entry), later(now, delay), retention, now, RETRIED)


def _after_broken_policy(
    job: JobRecord, entry: Failure, broken: BaseException, retention: Retention, now: datetime
) -> Fail:
    """Dead-letter a job whose custom policy raised: it is user code and must not crash the worker."""
    reason = Failed(kind_of(broken), f"the retry policy failed: {message_of(broken)}")
    job = replace(job, failures=_kept(job, entry))
    return _fail(job, _entry(job, reason, now, attempt=entry.attempt), "broken_retry_policy", retention, now)


def _after_crash(
    job: JobRecord, message: str, retry: Retry, retention: Retention, now: datetime, rng: Rng
) -> PutBack | Fail:
    """Count a crash at once. The pause before the next run is the policy's, by the number of crashes in a row."""
    job = replace(job, crashes=job.crashes + 1)
    entry = _entry(job, Failed("Crashed", message), now)
    if _crashed_too_often(job):
        return _fail(job, entry, "crash_loop", retention, now)
    try:
        delay = retry.delay(job.crashes, rng)
    except BaseException as broken:
        return _after_broken_policy(job, entry, broken, retention, now)
    return replace(_put_back(_noted(job, entry), later(now, delay), retention, now, RETRIED), crashes=job.crashes)


def _after_interruption(job: JobRecord, retention: Retention, now: datetime) -> Fail:
    """Dead-letter a job that may run at most once (F6) and whose worker stopped during that run."""
    failed = Failed("Interrupted", "the worker stopped during the only run this job is allowed")
    entry = _entry(job, failed, now, attempt=job.attempts + 1)
    return _fail(job, entry, "interrupted", retention, now)


def _after_unknown(job: JobRecord, retention: Retention, now: datetime) -> PutBack | Fail:
    unknown = job.unknown_put_backs + 1
    if unknown > MAX_UNKNOWN_PUT_BACKS:
        message = f"no worker knew the task {job.type!r} in {MAX_UNKNOWN_PUT_BACKS} tries"
        entry = _entry(job, Failed("UnknownTask", message), now)
        return _fail(job, entry, "unknown_task", retention, now)
    run_at = later(now, UNKNOWN_TASK_RETRY.ceiling(unknown))
    return _put_back_unfinished(job, run_at, unknown, retention, now)


def _put_back_unfinished(
    job: JobRecord, run_at: datetime, unknown: int, retention: Retention, now: datetime
) -> PutBack:
    """Put back a job that has not run to an end: its crashes still count."""
    return replace(_put_back(job, run_at, retention, now), crashes=job.crashes, unknown_put_backs=unknown)


def _put_back(
    job: JobRecord, run_at: datetime, retention: Retention, now: datetime, outcome: str = RELEASED
) -> PutBack:
    return PutBack(**_recorded(job, outcome), keep_until=later(now, retention.done), run_at=run_at)


def _fail(job: JobRecord, entry: Failure, reason: str, retention: Retention, now: datetime) -> Fail:
    return Fail(
        **_recorded(_noted(job, entry), DEAD),
        keep_until=_keep(job, later(now, retention.dead)),
        crashes=job.crashes,
        unknown_put_backs=job.unknown_put_backs,
        reason=reason,
        fingerprint=fingerprint(job.type, entry.kind, entry.message),
    )


def _recorded(job: JobRecord, outcome: str) -> dict[str, Any]:
    """The fields of a transition that are as the job's record has them, and what the outcome adds to the totals."""
    return {
        "id": job.id,
        "token": token_of(job),
        "started_at": job.started_at,
        "attempts": job.attempts,
        "last_error": job.last_error,
        "failed_at": job.failed_at,
        "failures": job.failures,
        "increment": Increment(job.queue, job.type, outcome, job.due_at),
    }


def _noted(job: JobRecord, entry: Failure) -> JobRecord:
    """The job with a failure on its record."""
    error = f"{entry.kind}: {entry.message}" if entry.message else entry.kind
    return replace(job, attempts=entry.attempt, last_error=error, failed_at=entry.failed_at, failures=_kept(job, entry))


def _entry(job: JobRecord, failed: Failed, now: datetime, attempt: int | None = None) -> Failure:
    """An entry of the history; only a failed run counts as an attempt."""
    return Failure(
        attempt=job.attempts if attempt is None else attempt,
        kind=failed.kind,
        message=failed.message,
        traceback=failed.traceback,
        failed_at=now,
        started_at=job.started_at,
        worker=job.lease.worker if job.lease else None,
    )


def _kept(job: JobRecord, entry: Failure) -> tuple[Failure, ...]:
    return (*job.failures, entry)[-KEPT_FAILURES:]


def _keep(job: JobRecord, until: datetime) -> datetime:
    """A record outlives its idempotency key, so that a look-up by key finds it (I3)."""
    return until if job.key_expires_at is None else max(until, job.key_expires_at)


def token_of(job: JobRecord) -> str:
    """The lease token of a claimed job."""
    if job.lease is None:
        raise ValueError(f"job {job.id} is not claimed; only a claimed job can be settled")
    return job.lease.token
