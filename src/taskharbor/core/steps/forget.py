"""Delete and prune: when records may go, and which keys go with them (K3, X8, I2, I3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from taskharbor.core.evolve import Deletion
from taskharbor.core.job import JobRecord
from taskharbor.core.states import DONE, TERMINAL
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import KeptUntil, Members, VerbStep

# How soon prune looks again at what it keeps because a workflow has not ended.
PRUNE_AGAIN = timedelta(hours=1)


def delete(draft: Draft, ids: Sequence[str]) -> VerbStep[list[Deletion]]:
    """Remove ended jobs, except those that a dependant needs."""
    yield from draft.look(ids, below=ids)
    gone: list[JobRecord] = []
    answers: list[Deletion] = [_delete(draft, id, gone) for id in ids]
    yield from _free_keys(draft, gone)
    return answers


def _delete(draft: Draft, id: str, gone: list[JobRecord]) -> Deletion:
    job = draft.job(id)
    if job is None:
        return "missing"
    if job.state not in TERMINAL:
        return "live"
    if is_needed(draft, id):
        return "needed"
    draft.remove(job)
    gone.append(job)
    return "deleted"


def is_needed(draft: Draft, id: str) -> bool:
    """Whether a dependant is not done: a dead one may be replayed and reads the results again (K3)."""
    return any(not edge.satisfied or draft.existing(edge.child).state is not DONE for edge in draft.below(id))


def prune(draft: Draft, ids: Sequence[str], now: datetime, limit: int) -> VerbStep[int]:
    """Forget up to `limit` of these that are past their `keep_until` and not needed; return how many.

    The records of a workflow go together. While it has to stay, all of them are kept as long.
    """
    yield from draft.look(ids, below=ids)
    over = [job for id in ids if (job := draft.job(id)) is not None and _is_over(job, now) and not is_needed(draft, id)]
    workflows = dict.fromkeys(job.workflow_id for job in over if job.workflow_id is not None)
    if workflows:
        yield KeptUntil(list(workflows))
    going: dict[str, JobRecord] = {}
    for job in over:
        if len(going) == limit:
            break
        if job.workflow_id is None:
            going[job.id] = job
        elif job.workflow_id in workflows:
            del workflows[job.workflow_id]
            going |= yield from _members(draft, job.workflow_id, now, limit - len(going))
    for job in going.values():
        draft.remove(job)
    yield from _free_keys(draft, list(going.values()))
    return len(going)


def _is_over(job: JobRecord, now: datetime) -> bool:
    return job.keep_until is not None and job.keep_until <= now


def _members(draft: Draft, workflow: str, now: datetime, most: int) -> VerbStep[dict[str, JobRecord]]:
    """The records of a workflow that may go, dependants before the jobs they wait for; none if it has to stay."""
    if _stays(draft, workflow, now):
        return {}
    yield Members(workflow, most)
    yield KeptUntil([workflow])  # again: a driver that locks did not hold them before
    yield from draft.look_up_owned([workflow])  # keys after jobs, the order in which such a driver locks them
    if _stays(draft, workflow, now):
        return {}
    return {id: draft.existing(id) for id in draft.members[workflow]}


def _stays(draft: Draft, workflow: str, now: datetime) -> bool:
    """Whether a workflow has to stay; then all of it is kept as long."""
    last = draft.kept[workflow]
    ends = [key.expires_at for key in draft.owned([workflow]) if key.expires_at is not None]
    until = now + PRUNE_AGAIN if last is None else max([last, *ends])
    if until > now:
        draft.keep[workflow] = until
    return until > now


def _free_keys(draft: Draft, gone: Sequence[JobRecord]) -> VerbStep[None]:
    """Free the keys of removed jobs, and those of workflows that have no record left."""
    yield from draft.look_up(job.idempotency_key for job in gone)
    for job in gone:
        draft.free_key(job.idempotency_key, job.id)
    workflows = Counter(job.workflow_id for job in gone if job.workflow_id is not None)
    yield from draft.look_up_owned(workflows)
    for key in draft.owned(workflows):
        yield Members(key.owner, workflows[key.owner] + 1)
        if all(draft.job(id) is None for id in draft.members[key.owner]):
            draft.free_key(key.key, key.owner)


def free_workflow_key(draft: Draft, workflow: str) -> VerbStep[bool]:
    """Forget the key of a workflow (I2); False if it has none."""
    yield from draft.look_up_owned([workflow])
    keys = draft.owned([workflow])
    for key in keys:
        draft.free_key(key.key, workflow)
    return bool(keys)
