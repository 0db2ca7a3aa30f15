"""Passes the end of a job on to the jobs that wait for it (K2, K4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby

from msgspec.structs import replace

from taskharbor.core import evolve
from taskharbor.core.dependency import Effect, Policy, effect
from taskharbor.core.job import JobRecord
from taskharbor.core.states import CANCELLED, READY, WAITING
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import VerbStep


def look_below(draft: Draft, ids: Sequence[str]) -> VerbStep[None]:
    """Look at jobs that may end, at their dependants, and below those that a failure cancels.

    For all of them at once: most cascades end there.
    """
    yield from draft.look(ids, below=ids)
    edges = [edge for id in ids for edge in draft.below(id)]
    yield from draft.look(below=[edge.child for edge in edges if edge.policy == Policy.CANCEL])


def look_up_keys(draft: Draft, ids: Iterable[str]) -> VerbStep[None]:
    """Look up the keys of jobs that may end."""
    yield from draft.look_up(job.idempotency_key for id in ids if (job := draft.job(id)) is not None)


def put_end(draft: Draft, before: JobRecord, after: JobRecord) -> None:
    """Write a job that may have ended. A cancelled one without its key has given the key up (T3)."""
    if after.idempotency_key is not before.idempotency_key and after.state is CANCELLED:
        draft.free_key(before.idempotency_key, before.id)
    draft.put(after)


def apply_ends(draft: Draft, ended: Sequence[JobRecord], now: datetime) -> VerbStep[None]:
    """Carry the end of jobs on to their dependants, and from cancelled dependants, kept as long, to theirs.

    Each edge is satisfied at most once; the last one releases the dependant.
    """
    for keep_until, jobs in groupby(ended, key=lambda job: job.keep_until or now):
        level = [job.id for job in jobs]
        while level:
            yield from draft.look(below=level)
            level = list(dict.fromkeys(child for id in level for child in _affected(draft, id, now)))
            yield from look_up_keys(draft, level)
            for id in level:
                child = draft.existing(id)
                put_end(draft, child, evolve.withdrawn(child, now, keep_until))


def apply_stored_ends(draft: Draft, ids: Sequence[str], now: datetime) -> VerbStep[bool]:
    """Carry the end of jobs that are written already on to their dependants; return whether any is in line now."""
    yield from look_below(draft, ids)
    yield from apply_ends(draft, [draft.existing(id) for id in ids], now)
    return any(after is not None and after.state is READY for _, _, after in draft.jobs.changes())


def _affected(draft: Draft, id: str, now: datetime) -> list[str]:
    """Satisfy the edges below a job; return the dependants that are to be cancelled."""
    state = draft.existing(id).state
    lost: list[str] = []
    for edge in draft.below(id):
        child = draft.existing(edge.child)
        outcome = Effect.HOLD if edge.satisfied else effect(edge.policy, state)
        if outcome is Effect.SATISFY:
            draft.put_edge(replace(edge, satisfied=True))
            child = replace(child, unmet=child.unmet - 1)
            draft.put(evolve.released(child, now) if child.unmet == 0 and child.state is WAITING else child)
        elif outcome is Effect.CANCEL and child.state is WAITING:
            lost.append(child.id)
    return lost
