"""Times of runs, from the record of a job: overruns, the spread of attempts, and the last run (F2, F5, R1)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from taskharbor.core.decide import later
from taskharbor.core.job import Failure, JobRecord
from taskharbor.core.states import INFLIGHT


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
