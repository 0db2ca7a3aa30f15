"""Leases of inflight jobs: the one classifier of refusals, shared by every driver (D8)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct

from taskharbor.core.job import JobRecord, Progress
from taskharbor.core.states import INFLIGHT
from taskharbor.core.text import stamp
from taskharbor.core.transition import Transition, settle_kind
from taskharbor.errors import InvalidLeaseDuration, JobNotInflight, LeaseError, LeaseExpired, LeaseMismatch

Verdict = Literal["ok", "replayed"] | LeaseError


class Report(Struct, frozen=True):
    """A heartbeat for one lease, with the run's news."""

    id: str
    token: str
    started_at: datetime | None = None
    progress: Progress | None = None


class Extended(Struct, frozen=True):
    """A renewed lease, and whether a stop was requested: a cancel or a dead letter (T3)."""

    expires_at: datetime
    cancel_requested: bool
    dead_letter_requested: bool = False


def refusal(job: JobRecord | None, job_id: str, token: str, now: datetime) -> LeaseError | None:
    """The reason why `token` may not act on the job at `now`, or None. Precedence: not inflight, expired, mismatch."""
    if job is None or job.state is not INFLIGHT or job.lease is None:
        return JobNotInflight(f"job {job_id} is {'unknown' if job is None else job.state}, no worker holds it")
    if job.lease.expires_at <= now:
        return LeaseExpired(f"the lease on job {job_id} ran out at {stamp(job.lease.expires_at)}")
    if job.lease.token != token:
        return LeaseMismatch(f"job {job_id} is held under another lease (version {job.lease.version})")
    return None


def settle_verdict(job: JobRecord | None, to: Transition, now: datetime) -> Verdict:
    """The answer to a settle at `now`: a repeat of the last settle, of the same kind, is `replayed` before any refusal.

    Another kind under the same token is refused: a caller must not take a stored Ack for its Fail.
    """
    if job is not None and job.settled_token == to.token and job.settled_kind == settle_kind(to):
        return "replayed"
    return refusal(job, to.id, to.token, now) or "ok"


def check_duration(lease_for: timedelta) -> None:
    """Reject leases of zero or negative length (D4)."""
    if lease_for <= timedelta(0):
        raise InvalidLeaseDuration(f"a lease must last longer than zero, not {lease_for.total_seconds():g} s")
