"""Replay: dead and cancelled jobs back in line (Q2), with their keys (I2) and behind parents that run again (Q3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from msgspec.structs import replace

from taskharbor.core import evolve
from taskharbor.core.evolve import Replay, Replaying
from taskharbor.core.job import JobRecord
from taskharbor.core.keys import KeyRecord, digest
from taskharbor.core.states import CANCELLED, DLQ, TERMINAL
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import Payloads, VerbStep


def replay(draft: Draft, replays: Sequence[Replay], now: datetime) -> VerbStep[list[Replaying]]:
    """Put dead or cancelled jobs back in line; the others are refused."""
    ids = [it.id for it in replays]
    yield from draft.look(ids, above=ids)
    dead = [it for it in replays if _is_dead(draft.job(it.id))]
    jobs = {it.id: draft.existing(it.id) for it in dead}
    yield from draft.look_up_living(
        [*(it.idempotency_key for it in dead), *(job.idempotency_key for job in jobs.values())]
    )
    keyed = [it.id for it in dead if it.payload is None and (it.idempotency_key or jobs[it.id].idempotency_key)]
    if keyed:
        yield Payloads(keyed)
    for id in jobs:
        _reopen(draft, id, jobs.keys())
    return [_replay(draft, it, now) for it in replays]


def _is_dead(job: JobRecord | None) -> bool:
    return job is not None and job.state in (DLQ, CANCELLED)


def _reopen(draft: Draft, id: str, again: Collection[str]) -> None:
    """Let a job wait once more for parents whose failure it collected and that run again."""
    for edge in draft.above(id):
        if edge.satisfied and (edge.parent in again or draft.existing(edge.parent).state not in TERMINAL):
            draft.put_edge(replace(edge, satisfied=False))
            job = draft.existing(id)
            draft.put(replace(job, unmet=job.unmet + 1))


def _replay(draft: Draft, replay: Replay, now: datetime) -> Replaying:
    job = draft.job(replay.id)
    if job is None:
        return "missing"
    if not _is_dead(job):
        return "not_dead"
    if replay.idempotency_key is not None:
        draft.free_key(job.idempotency_key, job.id)
    wanted = evolve.with_key(replay, job)
    kept = _take_key(draft, wanted, job, now)
    draft.put(evolve.replayed(job, wanted if kept else replace(wanted, idempotency_key=None, key_expires_at=None), now))
    return "replayed" if kept else "replayed_without_key"


def _take_key(draft: Draft, replay: Replay, job: JobRecord, now: datetime) -> bool:
    """Let a replayed job have its key; False if another job or workflow holds it."""
    key = replay.idempotency_key
    if key is None or draft.owns_key(key, job.id):
        return True
    if draft.living_key(key, now) is not None:
        return False
    payload = draft.payloads[job.id] if replay.payload is None else replay.payload
    draft.keys.put(key, KeyRecord(key, job.id, digest([(job.type, payload)]), replay.key_expires_at))
    return True
