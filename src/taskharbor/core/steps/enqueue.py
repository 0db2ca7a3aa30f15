"""Enqueue: a group is stored whole or not at all (D1), and a known key resolves to its owner (I1, I2)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskharbor.core import evolve
from taskharbor.core.dependency import is_met
from taskharbor.core.group import Enqueued, Group, GroupResult, fresh, refusal
from taskharbor.core.job import NewJob
from taskharbor.core.keys import KeyRecord, digest, group_digest
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import StoredEdge, VerbStep


def enqueue(draft: Draft, group: Group, now: datetime) -> VerbStep[GroupResult]:
    """Store one group, or return why it is refused."""
    yield from look_for(draft, group.jobs)
    yield from draft.look_up_living([group.key])
    if (known := draft.living_key(group.key, now)) is not None:
        same = known.digest == group_digest(group.jobs)
        return tuple(Enqueued(known.owner, False, same) for _ in group.jobs)
    refused = refusal(group.jobs, lambda job: _is_taken(draft, job, now))
    if refused is not None:
        return refused
    if group.key is not None and group.workflow_id is not None:
        key = KeyRecord(group.key, group.workflow_id, group_digest(group.jobs), group.key_expires_at)
        draft.keys.put(key.key, key)
    return store(draft, group.jobs, now)


def look_for(draft: Draft, jobs: Sequence[NewJob]) -> VerbStep[None]:
    """Look at everything that decides how these jobs are stored."""
    parents = (edge.parent for job in jobs for edge in job.depends_on)
    yield from draft.look([*(job.id for job in jobs), *parents])
    yield from draft.look_up_living(job.idempotency_key for job in jobs)


def _is_taken(draft: Draft, job: NewJob, now: datetime) -> bool:
    return draft.job(job.id) is not None and draft.living_key(job.idempotency_key, now) is None


def store_new(draft: Draft, jobs: Sequence[NewJob], now: datetime) -> None:
    """Store the new jobs of an outcome, except those whose id or key is known (D9)."""
    store(draft, fresh(jobs, lambda job: _is_known(draft, job, now)), now)


def _is_known(draft: Draft, job: NewJob, now: datetime) -> bool:
    return draft.job(job.id) is not None or draft.living_key(job.idempotency_key, now) is not None


def store(draft: Draft, jobs: Sequence[NewJob], now: datetime) -> tuple[Enqueued, ...]:
    """Store jobs whose ids are free; a job whose key is known resolves to the owner of the key."""
    together = {job.id for job in jobs}
    return tuple(_store(draft, job, together, now) for job in jobs)


def _store(draft: Draft, job: NewJob, together: set[str], now: datetime) -> Enqueued:
    if job.idempotency_key is not None:
        key = KeyRecord(job.idempotency_key, job.id, digest([(job.type, job.payload)]), job.key_expires_at)
        if (known := draft.living_key(key.key, now)) is not None:
            return Enqueued(known.owner, False, known.digest == key.digest)
        draft.keys.put(key.key, key)
    edges = [_edge(draft, job, position, together) for position in range(len(job.depends_on))]
    for edge in edges:
        draft.put_edge(edge)
    draft.put(evolve.enqueued(job, now, sum(not edge.satisfied for edge in edges)))
    return Enqueued(job.id, True)


def _edge(draft: Draft, job: NewJob, position: int, together: set[str]) -> StoredEdge:
    """An edge of a new job. A parent stored in the same step has not ended."""
    asked = job.depends_on[position]
    parent = None if asked.parent in together else draft.job(asked.parent)
    satisfied = is_met(asked.policy, None if parent is None else parent.state)
    return StoredEdge(job.id, position, asked.parent, asked.policy, satisfied)
