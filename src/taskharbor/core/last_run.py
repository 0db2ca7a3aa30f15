"""The duration of a job's last run, from its record (R1)."""

from __future__ import annotations

from datetime import timedelta

from taskharbor.core.job import JobRecord


def last_run(job: JobRecord) -> timedelta | None:
    """The time from the start to the settle of the last run; None while it runs, or if it never started or settled."""
    if job.started_at is None or job.settled_at is None or job.settled_at < job.started_at:
        return None
    return job.settled_at - job.started_at
