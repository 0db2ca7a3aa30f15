"""What people and upkeep do to jobs: cancel, delete, replay, reschedule, pause, sweep and prune."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import msgspec
from apsw import Connection

from taskharbor.core.evolve import DeadLetter, Replay, with_key
from taskharbor.core.job import JobRecord
from taskharbor.core.keys import digest
from taskharbor.core.states import TERMINAL, State
from taskharbor.driver import PRUNE_AGAIN, Cancellation, DeadLettering, Deletion, Replaying, Reschedule
from taskharbor.drivers.shared.columns import STATES
from taskharbor.drivers.sqlite.dependants import Ended, dependants, tell, withdraw
from taskharbor.drivers.sqlite.enqueue import living_key
from taskharbor.drivers.sqlite.inspection import BEYOND_ALL, get_one
from taskharbor.drivers.sqlite.rows import FOR_EVER, Row, micros, micros_or_none
from taskharbor.drivers.sqlite.sql import load

STATE, REQUEST_CANCEL = load("states"), load("cancel_request")
DEAD_LETTER, REQUEST_DEAD_LETTER = load("dead_letter"), load("dead_letter_request")
DELETE, NEEDED = load("delete"), load("delete_needed")
DELETE_EDGES = load("delete_edges")
OWNS_KEY, FREE_KEY, FREE_WORKFLOW_KEY = load("key_keep"), load("key_free"), load("key_free_workflow")
PUT_KEY, FREE_OWNER = load("key_put"), load("key_free_owner")
REPLAY, REOPEN, WAIT = load("replay"), load("replay_reopen"), load("replay_wait")
RESCHEDULE = load("reschedule")
PAUSE, UNPAUSE = load("pause"), load("pause_end")
STOPPING, EXPIRED = load("sweep_stopping"), load("sweep_expired")
PRUNE, PRUNE_DELETE = load("prune"), load("prune_delete")
PRUNE_KEPT, PRUNE_KEEP, PRUNE_MEMBERS = load("prune_kept"), load("prune_keep"), load("prune_members")


def cancel(db: Connection, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
    """Withdraw jobs in line, and ask the holders of inflight ones to stop (T3)."""
    answers: dict[str, Cancellation] = {id: _asked(db, id, micros(now)) for id in ids}
    line = [id for id, answer in answers.items() if answer == "cancelled"]
    withdraw(db, line, micros(now), micros(keep_until))
    repeated: dict[str, Cancellation] = {**answers, **dict.fromkeys(line, "finished")}
    return [answers.pop(id, repeated[id]) for id in ids]


def _asked(db: Connection, id: str, now: int) -> Cancellation:
    """What a cancel comes to, of which the request to a holder is written here."""
    state: str | None = db.execute(STATE, (id,)).get
    if state is None:
        return "missing"
    if STATES[state] in TERMINAL:
        return "finished"
    if state == State.INFLIGHT:
        db.execute(REQUEST_CANCEL, (id, now))
        return "requested"
    return "cancelled"


def dead_letter(db: Connection, deaths: Sequence[DeadLetter], now: datetime) -> list[DeadLettering]:
    """Dead-letter jobs in line, and ask the holders of inflight ones to stop (Q4)."""
    ended: list[Ended] = []
    answers: list[DeadLettering] = [_dead_letter(db, death, micros(now), ended) for death in deaths]
    tell(db, ended, dependants(db, [id for id, _, _ in ended]), micros(now))
    return answers


def _dead_letter(db: Connection, death: DeadLetter, now: int, ended: list[Ended]) -> DeadLettering:
    state: str | None = db.execute(STATE, (death.id,)).get
    if state is None:
        return "missing"
    if STATES[state] in TERMINAL:
        return "finished"
    asked = death.id, now, death.reason, death.fingerprint, micros(death.keep_until)
    if state == State.INFLIGHT:
        db.execute(REQUEST_DEAD_LETTER, asked)
        return "requested"
    ended.append((death.id, State.DLQ, db.execute(DEAD_LETTER, (*asked, FOR_EVER)).get))
    return "dead"


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


def free_workflow_key(db: Connection, workflow_id: str) -> bool:
    """Forget the key that stands for a workflow (I2)."""
    return db.execute(FREE_OWNER, (workflow_id,)).connection.changes() > 0


def replay(db: Connection, replays: Sequence[Replay], now: datetime) -> list[Replaying]:
    """Put dead or cancelled jobs back in line (Q2), each behind those of its parents that run again too (Q3)."""
    answers: list[Replaying] = [_replay(db, it, micros(now)) for it in replays]
    again = [it.id for it, answer in zip(replays, answers, strict=True) if answer.startswith("replayed")]
    reopened = Counter(child for (child,) in db.execute(REOPEN, (msgspec.json.encode(again).decode(),)))
    db.executemany(WAIT, list(reopened.items()))
    return answers


def _replay(db: Connection, replay: Replay, now: int) -> Replaying:
    job = get_one(db, replay.id)
    if job is None:
        return "missing"
    if job.state not in (State.DLQ, State.CANCELLED):
        return "not_dead"
    if replay.idempotency_key is not None:
        _free_key(db, job)
    wanted = with_key(replay, job)
    kept = _take_key(db, wanted, job, now)
    key = (wanted.idempotency_key, micros_or_none(wanted.key_expires_at)) if kept else (None, None)
    run_at = micros_or_none(replay.run_at)
    due_at = now if run_at is None else run_at
    db.execute(REPLAY, (job.id, replay.payload, *key, run_at, due_at))
    return "replayed" if kept else "replayed_without_key"


def _free_key(db: Connection, job: JobRecord) -> None:
    if job.idempotency_key is not None:
        db.execute(FREE_KEY, (job.idempotency_key, job.id))


def _take_key(db: Connection, replay: Replay, job: JobRecord, now: int) -> bool:
    """Let a replayed job have its key; False if another job or workflow holds it."""
    key = replay.idempotency_key
    if key is None or db.execute(OWNS_KEY, (key, job.id)).get is not None:
        return True
    if living_key(db, key, now) is not None:
        return False
    payload = job.payload if replay.payload is None else replay.payload
    db.execute(PUT_KEY, (key, job.id, digest([(job.type, payload)]), micros_or_none(replay.key_expires_at)))
    return True


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
    """End what expired and what was left behind after a request to stop (T1, N1)."""
    at, until, swept = micros(now), micros(keep_until), 0
    for candidates in (STOPPING, EXPIRED):
        # One that ends takes waiting dependants along, so there may be fewer to end than were found.
        while swept < limit:
            found: list[Row] = db.execute(candidates, (at, limit - swept)).fetchall()
            if not found:
                break
            swept += withdraw(db, [id for (id,) in found], at, until)
    return swept


def prune(db: Connection, now: datetime, limit: int) -> int:
    """Forget what was kept long enough, with its keys (X8)."""
    removed: list[Row] = []
    place: Row = (-BEYOND_ALL, 0)
    while len(removed) < limit:
        rows: list[Row] = db.execute(PRUNE, (micros(now), *place, limit - len(removed))).fetchall()
        if not rows:
            break
        going = _going(db, rows, now, limit - len(removed))
        gone: list[Row] = db.execute(PRUNE_DELETE, (msgspec.json.encode(going).decode(),)).fetchall()
        _forget(db, gone)
        removed += gone
        place = (rows[-1][2], rows[-1][0])
    return len(removed)


def _going(db: Connection, rows: Sequence[Row], now: datetime, limit: int) -> list[int]:
    """The numbers of what is over. Of a workflow all are, dependants before those they wait for."""
    going: list[int] = []
    seen: set[str | None] = {None}
    for seq, workflow, _ in rows:
        if workflow is None:
            going.append(seq)
        elif workflow not in seen and len(going) < limit and not _is_kept(db, workflow, now):
            going += [number for (number,) in db.execute(PRUNE_MEMBERS, (workflow, limit))]
        seen.add(workflow)
    return going[:limit]


def _is_kept(db: Connection, workflow: str, now: datetime) -> bool:
    """Whether a workflow has to stay; then all of it stays as long."""
    until: int = db.execute(PRUNE_KEPT, (workflow, micros(now + PRUNE_AGAIN))).get
    if until <= micros(now):
        return False
    db.execute(PRUNE_KEEP, (workflow, until))
    return True
