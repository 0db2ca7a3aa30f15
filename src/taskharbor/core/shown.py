"""A job as people see it at a given time: its state (T2), and the times of its runs (F2, F5, R1).

Derived from its record, never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from taskharbor.core.decide import later
from taskharbor.core.job import Failure, JobRecord
from taskharbor.core.states import INFLIGHT, Shown, State


def shown(job: JobRecord, now: datetime) -> Shown:
    """The state to show: `scheduled` while not due, `running` once the handler has started (T2), `lapsed` once the
    lease has run out, until the next claim."""
    if job.state is State.READY:
        return Shown.SCHEDULED if job.due_at > now else Shown.READY
    if job.state is State.INFLIGHT:
        if job.lease is not None and job.lease.expires_at <= now:
            return Shown.LAPSED
        return Shown.CLAIMED if job.started_at is None else Shown.RUNNING
    return Shown(job.state)


def due_since(job: JobRecord, now: datetime) -> datetime | None:
    """Since when the job waits for a worker: a ready one since its due time, a lapsed one since its lease ran out."""
    state = shown(job, now)
    if state is Shown.READY:
        return job.due_at
    return job.lease.expires_at if state is Shown.LAPSED and job.lease is not None else None


def overrun_since(job: JobRecord, now: datetime) -> datetime | None:
    """When the timeout of the running handler passed, or None if it has not.

    A job whose lease has run out is not an overrun: its worker is gone.
    """
    if job.state is not INFLIGHT or job.lease is None or job.lease.expires_at <= now:
        return None
    if job.started_at is None or job.timeout is None:
        return None
    due = later(job.started_at, job.timeout)
    return due if due < now else None


def spread_of(failures: Sequence[Failure]) -> timedelta | None:
    """The time from the start of the first kept attempt to the end of the last, or None for fewer than two.

    Attempts before a replay do not count: a replay starts again at attempt 1.
    """
    last: list[Failure] = []
    for failure in reversed(failures):
        if last and failure.attempt >= last[-1].attempt:
            break
        last.append(failure)
    if len(last) < 2:
        return None
    return last[0].failed_at - (last[-1].started_at or last[-1].failed_at)


def last_run(job: JobRecord) -> timedelta | None:
    """The time from the start to the settle of the last run; None while it runs, or if it never started or settled."""
    if job.started_at is None or job.settled_at is None or job.settled_at < job.started_at:
        return None
    return job.settled_at - job.started_at
