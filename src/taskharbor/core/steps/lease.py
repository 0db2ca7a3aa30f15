"""Claims and heartbeats (D2, D3, D5, D6). A driver finds the candidates in line; these steps decide on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from taskharbor.core import evolve
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Extended, Report, refusal
from taskharbor.core.states import INFLIGHT, READY
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import VerbStep
from taskharbor.errors import LeaseError


def claim(
    draft: Draft, ids: Sequence[str], now: datetime, lease_for: timedelta, worker: str, new_token: Callable[[], str]
) -> VerbStep[list[JobRecord]]:
    """Claim those of the jobs that are due and free, in this order."""
    yield from draft.look(ids)
    jobs = [draft.job(id) for id in dict.fromkeys(ids)]
    free = [job for job in jobs if job is not None and is_claimable(job, now)]
    return [draft.put(evolve.claimed(job, new_token(), now, now + lease_for, worker)) for job in free]


def extend(
    draft: Draft, reports: Sequence[Report], now: datetime, lease_for: timedelta
) -> VerbStep[list[Extended | LeaseError]]:
    """Renew leases; a refused report changes nothing."""
    yield from draft.look(report.id for report in reports)
    return [_extend(draft, report, now, now + lease_for) for report in reports]


def _extend(draft: Draft, report: Report, now: datetime, expires_at: datetime) -> Extended | LeaseError:
    job = draft.job(report.id)
    if (refused := refusal(job, report.id, report.token, now)) is not None:
        return refused
    job = draft.put(evolve.extended(draft.existing(report.id), expires_at, report.started_at, report.progress))
    asked, dies = job.stop_requested_at is not None, job.stop_reason is not None
    return Extended(held_until(job, now), asked and not dies, asked and dies)


def is_claimable(job: JobRecord, now: datetime) -> bool:
    """Whether the job is due, unheld and still wanted."""
    is_due = job.state is INFLIGHT or (job.state is READY and job.due_at <= now)
    return is_due and held_until(job, now) <= now and not is_unwanted(job, now)


def is_unwanted(job: JobRecord, now: datetime) -> bool:
    """Whether the job expired or was asked to stop, so that it is not started any more (T1, T3)."""
    return job.stop_requested_at is not None or (job.expires_at is not None and job.expires_at <= now)


def held_until(job: JobRecord, now: datetime) -> datetime:
    """When the job's lease expires; `now` if there is none."""
    return now if job.lease is None else job.lease.expires_at
