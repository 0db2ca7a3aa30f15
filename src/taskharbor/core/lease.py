"""Who may touch an inflight job: the one classifier of refusals that every driver shares (D8)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from taskharbor.core.job import JobRecord
from taskharbor.core.states import INFLIGHT
from taskharbor.errors import InvalidLeaseDuration, JobNotInflight, LeaseError, LeaseExpired, LeaseMismatch

Verdict = Literal["ok", "replayed"] | LeaseError


def refusal(job: JobRecord | None, job_id: str, token: str, now: datetime) -> LeaseError | None:
    """Why `token` may not act on the job at `now`, or None. Precedence: not inflight, expired, mismatch."""
    if job is None or job.state is not INFLIGHT or job.lease is None:
        return JobNotInflight(f"job {job_id} is {'unknown' if job is None else job.state}, nobody holds it")
    if job.lease.expires_at <= now:
        return LeaseExpired(f"the lease on job {job_id} ran out at {job.lease.expires_at.isoformat()}")
    if job.lease.token != token:
        return LeaseMismatch(f"job {job_id} is held under another lease (version {job.lease.version})")
    return None


def settle_verdict(job: JobRecord | None, job_id: str, token: str, now: datetime) -> Verdict:
    """What a settle by `token` at `now` gets: a repeat of the last settle is `replayed` before any refusal."""
    if job is not None and job.settled_token == token:
        return "replayed"
    return refusal(job, job_id, token, now) or "ok"


def check_duration(lease_for: timedelta) -> None:
    """Refuse leases that would be over before they begin (D4)."""
    if lease_for <= timedelta(0):
        raise InvalidLeaseDuration(f"a lease must last longer than zero, not {lease_for.total_seconds():g} s")
