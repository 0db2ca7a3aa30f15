"""The terms of a claim, and why a lease is not renewed."""

from __future__ import annotations

from datetime import datetime, timedelta
from secrets import token_urlsafe
from typing import NamedTuple

from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Report, refusal
from taskharbor.errors import LeaseError, StoreCorrupt


class ClaimTerms(NamedTuple):
    """The terms that the claims of one call share; their tokens begin with `tokens`."""

    now: datetime
    expires_at: datetime
    worker: str
    tokens: str


def claim(now: datetime, lease_for: timedelta, worker: str) -> ClaimTerms:
    """Return the terms of a new claim."""
    return ClaimTerms(now, now + lease_for, worker, f"{token_urlsafe(12)}.")


def not_renewed(job: JobRecord | None, report: Report, now: datetime) -> LeaseError:
    """Return the error for a report that the fenced update did not touch."""
    refused = refusal(job, report.id, report.token, now)
    if refused is None:
        raise StoreCorrupt(f"the lease on job {report.id} is in order, but could not be renewed")
    return refused
