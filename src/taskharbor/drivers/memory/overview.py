"""Summaries of many records: workflows by state, dead jobs by cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.states import DLQ
from taskharbor.driver import DeadGroup, WorkflowCounts


def workflows(
    jobs: Iterable[JobRecord], limit: int, after: str | None, ids: Sequence[str] | None
) -> list[WorkflowCounts]:
    """Count the jobs of workflows by state (K5)."""
    members: dict[str, list[JobRecord]] = {}
    for job in jobs:
        if job.workflow_id is not None and (ids is None or job.workflow_id in ids):
            members.setdefault(job.workflow_id, []).append(job)
    found = sorted((id for id in members if after is None or id < after), reverse=True)
    return [
        WorkflowCounts(
            id=id,
            created_at=min(job.created_at for job in members[id]),
            states=dict(Counter(job.state for job in members[id])),
        )
        for id in found[:limit]
    ]


def dead_groups(jobs: Iterable[JobRecord], where: Filter, now: datetime, limit: int) -> list[DeadGroup]:
    """Group dead jobs by cause (Q1)."""
    groups: dict[str, list[JobRecord]] = {}
    for job in jobs:
        if job.state is DLQ and where.matches(job, now):
            groups.setdefault(job.fingerprint or "", []).append(job)
    found = [_group(fingerprint, members) for fingerprint, members in groups.items()]
    return sorted(found, key=lambda group: (-group.count, group.fingerprint))[:limit]


def _group(fingerprint: str, jobs: list[JobRecord]) -> DeadGroup:
    last = max(jobs, key=lambda job: (_died(job), job.id))
    return DeadGroup(
        fingerprint=fingerprint,
        task=last.type,
        error=last.last_error,
        count=len(jobs),
        first_at=min(map(_died, jobs)),
        last_at=_died(last),
        last_id=last.id,
    )


def _died(job: JobRecord) -> datetime:
    return job.completed_at or job.created_at
