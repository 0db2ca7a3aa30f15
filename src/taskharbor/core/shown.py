"""The state of a job as people see it at a given time: derived from its record, never written (T2)."""

from __future__ import annotations

from datetime import datetime

from taskharbor.core.job import JobRecord
from taskharbor.core.states import Shown, State


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
    match shown(job, now):
        case Shown.READY:
            return job.due_at
        case Shown.LAPSED:
            return None if job.lease is None else job.lease.expires_at
        case _:
            return None
