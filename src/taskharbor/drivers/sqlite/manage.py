"""What people and upkeep do to jobs: cancel, delete, replay, reschedule, pause, sweep and prune."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from apsw import Connection

from taskharbor.core.evolve import Replay
from taskharbor.core.job import JobRecord
from taskharbor.core.keys import digest
from taskharbor.core.states import TERMINAL, State
from taskharbor.driver import Cancellation, Deletion, Replaying, Reschedule
from taskharbor.drivers.sqlite.dependants import withdraw
from taskharbor.drivers.sqlite.enqueue import living_key
from taskharbor.drivers.sqlite.inspection import get_one
from taskharbor.drivers.sqlite.rows import STATES, Row, micros, micros_or_none
from taskharbor.drivers.sqlite.sql import load

STATE, REQUEST_CANCEL = load("state"), load("cancel_request")
DELETE, NEEDED = load("delete"), load("delete_needed")
DELETE_EDGES = load("delete_edges")
OWNS_KEY, FREE_KEY, FREE_WORKFLOW_KEY = load("key_owner"), load("key_free"), load("key_free_workflow")
PUT_KEY, PRUNE_KEYS = load("key_put"), load("key_prune")
REPLAY, RESCHEDULE = load("replay"), load("reschedule")
PAUSE, UNPAUSE = load("pause"), load("pause_end")
STOPPING, EXPIRED, PRUNE = load("sweep_stopping"), load("sweep_expired"), load("prune")

# Keys cost little to forget, but a step that holds the write lock stays bounded.
KEYS_PER_PRUNE = 10_000


def cancel(db: Connection, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
    """Withdraw jobs in line, or ask the holders of inflight ones to stop (T3)."""
    return [_cancel(db, id, micros(now), micros(keep_until)) for id in ids]


def _cancel(db: Connection, id: str, now: int, keep_until: int) -> Cancellation:
    state: str | None = db.execute(STATE, (id,)).get
    if state is None:
        return "missing"
    if STATES[state] in TERMINAL:
        return "finished"
    if state == State.INFLIGHT:
        db.execute(REQUEST_CANCEL, (id, now))
        return "requested"
    withdraw(db, id, now, keep_until)
    return "cancelled"


def delete(db: Connection, ids: Sequence[str]) -> list[Deletion]:
    """Remove terminal jobs that nobody needs."""
    return [_delete(db, id) for id in ids]


def _delete(db: Connection, id: str) -> Deletion:
    state: str | None = db.execute(STATE, (id,)).get
    if state is None:
        return "missing"
    if STATES[state] not in TERMINAL:
        return "live"
    if db.execute(NEEDED, (id,)).get:
        return "needed"
    _forget(db, db.execute(DELETE, (id,)).fetchall())
    return "deleted"


def _forget(db: Connection, removed: Sequence[Row]) -> None:
    """Let go of what hung on removed jobs: their keys, their edges, and the key of a workflow that is gone."""
    db.executemany(FREE_KEY, [(key, id) for id, key, _ in removed if key is not None])
    db.execute(DELETE_EDGES, (msgspec.json.encode([id for id, _, _ in removed]).decode(),))
    workflows = {workflow for _, _, workflow in removed if workflow is not None}
    db.executemany(FREE_WORKFLOW_KEY, [(workflow,) for workflow in workflows])


def replay(db: Connection, replays: Sequence[Replay], now: datetime) -> list[Replaying]:
    """Put dead or cancelled jobs back in line (Q2)."""
    return [_replay(db, it, micros(now)) for it in replays]


def _replay(db: Connection, replay: Replay, now: int) -> Replaying:
    job = get_one(db, replay.id)
    if job is None:
        return "missing"
    if job.state not in (State.DLQ, State.CANCELLED):
        return "not_dead"
    key, expires_at = _key_after(db, replay, job, now)
    run_at = micros_or_none(replay.run_at)
    due_at = now if run_at is None else run_at
    db.execute(REPLAY, (job.id, replay.payload, key, micros_or_none(expires_at), run_at, due_at))
    return "replayed"


def _key_after(db: Connection, replay: Replay, job: JobRecord, now: int) -> tuple[str | None, datetime | None]:
    """The key of a replayed job: the new one if that is free, or its own while it lives."""
    key, own = replay.idempotency_key, job.idempotency_key
    if key is None:
        kept = own is not None and db.execute(OWNS_KEY, (own, job.id, now)).get is not None
        return (own, job.key_expires_at) if kept else (None, None)
    if own is not None:
        db.execute(FREE_KEY, (own, job.id))
    if living_key(db, key, now) is not None:
        return None, None
    payload = job.payload if replay.payload is None else replay.payload
    db.execute(PUT_KEY, (key, job.id, digest([(job.type, payload)]), micros_or_none(replay.key_expires_at)))
    return key, replay.key_expires_at


def reschedule(db: Connection, changes: Sequence[Reschedule]) -> list[bool]:
    """Move ready jobs in time or rank."""
    return [
        db.execute(RESCHEDULE, (change.id, micros_or_none(change.run_at), change.priority)).get is not None
        for change in changes
    ]


def pause(db: Connection, queue: str, paused: bool) -> None:
    """Stop or resume handing out the jobs of a queue."""
    db.execute(PAUSE if paused else UNPAUSE, (queue,))


def sweep(db: Connection, now: datetime, keep_until: datetime, limit: int) -> int:
    """Cancel what expired and what was left behind after a request to stop (T1, N1)."""
    at, until, swept = micros(now), micros(keep_until), 0
    for candidates in (STOPPING, EXPIRED):
        # One that ends takes waiting dependants along, so there may be fewer to cancel than were found.
        while swept < limit:
            found: list[Row] = db.execute(candidates, (at, limit - swept)).fetchall()
            if not found:
                break
            swept += sum(withdraw(db, id, at, until) for (id,) in found)
    return swept


def prune(db: Connection, now: datetime, limit: int) -> int:
    """Forget what was kept long enough (X8), and keys that ran out."""
    removed = db.execute(PRUNE, (micros(now), max(limit, 0))).fetchall()
    _forget(db, removed)
    db.execute(PRUNE_KEYS, (micros(now), KEYS_PER_PRUNE))
    return len(removed)
