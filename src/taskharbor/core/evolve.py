"""Changes of a record: each legal move as a pure function from record to record.

The memory driver and the steps (`core.steps`) apply these functions; the conformance kit holds the SQL of hot paths to
them. Nothing here checks a lease: `core.lease` does.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, assert_never

from msgspec import Struct
from msgspec.structs import asdict, replace

from taskharbor.core.job import LAST_MOMENT, JobRecord, Lease, NewJob, Progress
from taskharbor.core.states import CANCELLED, DLQ, DONE, INFLIGHT, READY, WAITING, Move, State, check
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition, settle_kind

# A store's answers to requests about a job outside of a run (T3, Q2, Q4, K3).
Cancellation = Literal["cancelled", "requested", "finished", "missing"]
DeadLettering = Literal["dead", "requested", "finished", "missing"]
Deletion = Literal["deleted", "missing", "live", "needed"]
Replaying = Literal["replayed", "replayed_without_key", "missing", "not_dead"]

_RESERVE, _RECLAIM, _ACK = Move.RESERVE, Move.RECLAIM, Move.ACK  # bound once, as the states are: used for every job


class Replay(Struct, frozen=True, kw_only=True):
    """A dead or cancelled job to be run again (Q2). `None` keeps the payload, and the key unless it has been taken."""

    id: str
    payload: bytes | None = None
    idempotency_key: str | None = None
    key_expires_at: datetime | None = None
    run_at: datetime | None = None


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A job to be dead-lettered by hand (Q4): the reason, the fingerprint and how long to keep it."""

    id: str
    reason: str
    fingerprint: str
    keep_until: datetime


class Reschedule(Struct, frozen=True, kw_only=True):
    """A ready job's new time or priority; None leaves it unchanged."""

    id: str
    run_at: datetime | None = None
    priority: int | None = None


def enqueued(job: NewJob, now: datetime, unmet: int) -> JobRecord:
    """The record of a job as it enters the store."""
    state = WAITING if unmet else READY
    check(Move.ENQUEUE, None, state)
    asked = asdict(job)
    del asked["depends_on"]  # the store keeps the edges apart
    return JobRecord(**asked, state=state, created_at=now, due_at=job.run_at or now, unmet=unmet)


def claimed(job: JobRecord, token: str, now: datetime, expires_at: datetime, worker: str) -> JobRecord:
    """A ready job claimed, or a lapsed one taken over: the latter counts a crash and forgets its schedule (D5)."""
    reclaim = job.state is INFLIGHT
    check(_RECLAIM if reclaim else _RESERVE, job.state, INFLIGHT)
    version = job.version + 1
    return replace(
        job,
        state=INFLIGHT,
        version=version,
        lease=Lease(token, version, expires_at, worker, now),
        worker=worker,
        claimed_at=now,
        started_at=None,
        progress=None,
        crashes=job.crashes + reclaim,
        run_at=None if reclaim else job.run_at,
    )


def extended(job: JobRecord, expires_at: datetime, started_at: datetime | None, progress: Progress | None) -> JobRecord:
    """A lease renewed; it never gets shorter, and a heartbeat keeps the values that it does not carry (D6)."""
    assert job.lease is not None
    return replace(
        job,
        lease=replace(job.lease, expires_at=max(job.lease.expires_at, expires_at)),
        started_at=started_at or job.started_at,
        progress=progress or job.progress,
    )


def settled(job: JobRecord, to: Transition, now: datetime) -> JobRecord:
    """The record after an accepted settle."""
    match to:
        case Ack():
            check(_ACK, job.state, DONE)
            done = _noted(job, to, now, DONE, now, to.keep_until)
            return done if to.result is None else replace(done, result=to.result)
        case Fail():
            check(Move.FAIL, job.state, DLQ)
            dead = _noted(job, to, now, DLQ, now, to.keep_until)
            return replace(dead, dlq_reason=to.reason, fingerprint=to.fingerprint)
        case PutBack() if job.stop_requested_at is None:
            check(Move.PUT_BACK, job.state, READY)
            back = _noted(job, to, now, READY)
            return replace(back, run_at=to.run_at, due_at=to.run_at, progress=None)
        case PutBack():
            return _stopped(_noted(job, to, now, job.state), Move.PUT_BACK, now, to.keep_until)
        case Cancel():
            check(Move.CANCEL, job.state, CANCELLED)
            return _cancelled(_noted(job, to, now, job.state), now, to.keep_until)
        case _:
            assert_never(to)


def _noted(
    job: JobRecord,
    to: Transition,
    now: datetime,
    state: State,
    completed_at: datetime | None = None,
    keep_until: datetime | None = None,
) -> JobRecord:
    """The record with what every settle writes."""
    return replace(
        job,
        state=state,
        lease=None,
        settled_token=to.token,
        settled_kind=settle_kind(to),
        settled_at=now,
        started_at=to.started_at,
        attempts=to.attempts,
        crashes=to.crashes,
        unknown_put_backs=to.unknown_put_backs,
        last_error=to.last_error,
        failed_at=to.failed_at,
        failures=to.failures,
        completed_at=completed_at,
        keep_until=keep_until,
    )


def asked_to_cancel(job: JobRecord, now: datetime) -> JobRecord:
    """A cancel requested while the job runs; it overrides an earlier request to dead-letter (T3)."""
    if job.stop_requested_at is not None and job.stop_reason is None:
        return job
    return replace(job, stop_requested_at=now, stop_reason=None, stop_fingerprint=None, stop_keep_until=None)


def asked_to_die(job: JobRecord, death: DeadLetter, now: datetime) -> JobRecord:
    """A dead letter requested while the job runs; an earlier stop request of either kind stays (T3, Q4)."""
    if job.stop_requested_at is not None:
        return job
    asked = {"stop_reason": death.reason, "stop_fingerprint": death.fingerprint, "stop_keep_until": death.keep_until}
    return replace(job, stop_requested_at=now, **asked)


def withdrawn(job: JobRecord, now: datetime, keep_until: datetime) -> JobRecord:
    """A ready or waiting job, cancelled (T1)."""
    check(Move.WITHDRAW, job.state, CANCELLED)
    return _cancelled(job, now, keep_until)


def dead_lettered(job: JobRecord, death: DeadLetter, now: datetime) -> JobRecord:
    """A ready or waiting job, dead-lettered by hand (Q4)."""
    check(Move.DEAD_LETTER, job.state, DLQ)
    return _dead(job, death.reason, death.fingerprint, now, death.keep_until)


def lapsed(job: JobRecord, now: datetime, keep_until: datetime) -> JobRecord:
    """A job under a lapsed lease that expired or has a stop request (T1)."""
    return _stopped(replace(job, lease=None), Move.LAPSE, now, keep_until)


def _stopped(job: JobRecord, move: Move, now: datetime, keep_until: datetime) -> JobRecord:
    """A job ended as its stop request says."""
    if job.stop_reason is None:
        check(move, job.state, CANCELLED)
        return _cancelled(job, now, keep_until)
    check(move, job.state, DLQ)
    return _dead(job, job.stop_reason, job.stop_fingerprint, now, job.stop_keep_until or keep_until)


def _dead(job: JobRecord, reason: str, fingerprint: str | None, now: datetime, keep_until: datetime) -> JobRecord:
    until = LAST_MOMENT if job.kept else keep_until
    return replace(job, state=DLQ, dlq_reason=reason, fingerprint=fingerprint, completed_at=now, keep_until=until)


def _cancelled(job: JobRecord, now: datetime, keep_until: datetime) -> JobRecord:
    ended = replace(job, state=CANCELLED, completed_at=now, keep_until=LAST_MOMENT if job.kept else keep_until)
    if job.kept or (job.idempotency_key is None and job.key_expires_at is None):
        return ended
    return replace(ended, idempotency_key=None, key_expires_at=None)


def released(job: JobRecord, now: datetime) -> JobRecord:
    """A waiting job whose last dependency was satisfied: due at its run_at, or now."""
    check(Move.RELEASE, job.state, READY)
    return replace(job, state=READY, due_at=max(now, job.run_at or now))


def replayed(job: JobRecord, replay: Replay, now: datetime) -> JobRecord:
    """A dead or cancelled job back in line: counters restart at zero, version and history continue (Q2)."""
    state = WAITING if job.unmet else READY
    check(Move.REPLAY, job.state, state)
    return replace(
        job,
        state=state,
        payload=job.payload if replay.payload is None else replay.payload,
        idempotency_key=replay.idempotency_key,
        key_expires_at=replay.key_expires_at,
        run_at=replay.run_at,
        due_at=replay.run_at or now,
        expires_at=None,
        attempts=0,
        crashes=0,
        unknown_put_backs=0,
        progress=None,
        stop_requested_at=None,
        stop_reason=None,
        stop_fingerprint=None,
        stop_keep_until=None,
        completed_at=None,
        result=None,
        dlq_reason=None,
        fingerprint=None,
        keep_until=None,
        original_id=job.original_id or job.id,
        replays=job.replays + 1,
    )


def with_key(replay: Replay, job: JobRecord) -> Replay:
    """A replay with the key it asks for: the new one, or the job's own (Q2)."""
    if replay.idempotency_key is not None:
        return replay
    return replace(replay, idempotency_key=job.idempotency_key, key_expires_at=job.key_expires_at)


def rescheduled(job: JobRecord, run_at: datetime | None, priority: int | None) -> JobRecord:
    """A ready job with a new time or priority."""
    check(Move.RESCHEDULE, job.state, READY)
    moved = job if run_at is None else replace(job, run_at=run_at, due_at=run_at)
    return moved if priority is None else replace(moved, priority=priority)
