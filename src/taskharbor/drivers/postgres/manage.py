"""What people and upkeep do to jobs, inside a transaction: cancel, delete, replay, reschedule, pause, sweep, prune."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskharbor.core.evolve import Replay
from taskharbor.core.job import JobRecord
from taskharbor.core.keys import digest
from taskharbor.core.line import SINCE_EVER
from taskharbor.core.states import TERMINAL, State
from taskharbor.driver import Cancellation, Deletion, Replaying, Reschedule
from taskharbor.drivers.postgres.db import Db, Row
from taskharbor.drivers.postgres.dependants import LOOKS, hold, nowhere, withdraw
from taskharbor.drivers.postgres.enqueue import living_keys
from taskharbor.drivers.postgres.inspection import get
from taskharbor.drivers.postgres.rows import STATES

UNFINISHED = ("ready", "waiting", "inflight")
# Keys cost little to forget, but a step stays bounded.
KEYS_PER_PRUNE = 10_000


async def cancel(db: Db, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
    """Withdraw jobs in line, or ask the holders of inflight ones to stop (T3)."""
    await hold(db, set(ids))
    return [await _cancel(db, id, now, keep_until) for id in ids]


async def _cancel(db: Db, id: str, now: datetime, keep_until: datetime) -> Cancellation:
    state = await _held_state(db, id)
    if state is None:
        return "missing"
    if state in TERMINAL:
        return "finished"
    if state is State.INFLIGHT:
        await db.rows("cancel_request", id, now)
        return "requested"
    await withdraw(db, [id], ("ready", "waiting"), now, keep_until)
    return "cancelled"


async def _held_state(db: Db, id: str) -> State | None:
    """The state of a job, which stays so until the transaction ends."""
    for _ in range(LOOKS):
        if found := await db.rows("state_held", id):
            return STATES[found[0][1]]
        if not await db.rows("states", [id]):
            return None
    raise nowhere(id)


async def delete(db: Db, ids: Sequence[str]) -> list[Deletion]:
    """Remove terminal jobs that nobody needs."""
    return [await _delete(db, id) for id in ids]


async def _delete(db: Db, id: str) -> Deletion:
    state = await _held_state(db, id)
    if state is None:
        return "missing"
    if state not in TERMINAL:
        return "live"
    if await db.rows("delete_needed", id):
        return "needed"
    removed = await db.rows("delete", [id])
    await _forget(db, removed)
    return "deleted" if removed else "live"


async def _forget(db: Db, removed: Sequence[Row]) -> None:
    """Let go of what hung on removed jobs: their keys, their edges, and the key of a workflow that is gone."""
    ids = [row[0] for row in removed]
    workflows = {row[1] for row in removed if row[1] is not None}
    if ids:
        await db.rows("delete_edges", ids)
    if workflows and (keyed := {row[0] for row in await db.rows("key_hold_workflow", sorted(workflows))}):
        await db.rows("key_free_workflow", sorted(keyed))


async def replay(db: Db, replays: Sequence[Replay], now: datetime) -> list[Replaying]:
    """Put dead or cancelled jobs back in line (Q2)."""
    return [await _replay(db, it, now) for it in replays]


async def _replay(db: Db, replay: Replay, now: datetime) -> Replaying:
    state = await _held_state(db, replay.id)
    [job] = await get(db, [replay.id])
    if job is None or state is None:
        return "missing"
    if job.state not in (State.DLQ, State.CANCELLED):
        return "not_dead"
    key, expires_at = await _key_after(db, replay, job, now)
    await db.rows("replay", job.id, replay.payload, key, expires_at, replay.run_at, replay.run_at or now)
    return "replayed"


async def _key_after(db: Db, replay: Replay, job: JobRecord, now: datetime) -> tuple[str | None, datetime | None]:
    """The key of a replayed job: the new one if that is free, or its own while it lives."""
    key, own = replay.idempotency_key, job.idempotency_key
    if key is None:
        kept = own is not None and (await living_keys(db, [own], now)).get(own, ("",))[0] == job.id
        return (own, job.key_expires_at) if kept else (None, None)
    await db.rows("key_free", [job.id])
    payload = job.payload if replay.payload is None else replay.payload
    values = [key], [job.id], [digest([(job.type, payload)])], [replay.key_expires_at]
    return (key, replay.key_expires_at) if await db.rows("key_put", *values, now) else (None, None)


async def reschedule(db: Db, changes: Sequence[Reschedule]) -> list[bool]:
    """Move ready jobs in time or rank."""
    return [bool(await db.rows("reschedule", change.id, change.run_at, change.priority)) for change in changes]


async def pause(db: Db, queue: str, paused: bool) -> None:
    """Stop or resume handing out the jobs of a queue."""
    await db.rows("pause" if paused else "pause_end", queue)


async def sweep(db: Db, now: datetime, keep_until: datetime, limit: int) -> int:
    """Cancel what expired and what was left behind after a request to stop (T1, N1)."""
    swept = 0
    for candidates in ("sweep_stopping", "sweep_expired"):
        # One that ends takes waiting dependants along, so there may be fewer to cancel than were found.
        while swept < limit:
            found = [row[0] for row in await db.rows(candidates, now, limit - swept)]
            gone = await withdraw(db, found, UNFINISHED, now, keep_until) if found else []
            if not gone:
                break
            swept += len(gone)
    return swept


async def prune(db: Db, now: datetime, limit: int) -> int:
    """Forget what was kept long enough (X8), and keys that ran out."""
    found: list[str] = []
    place: Row = (SINCE_EVER, 0)
    while len(found) < limit:  # members of unfinished workflows are kept, and do not stand in the way of the others
        rows = await db.rows("prune", now, *place, limit)
        if not rows:
            break
        workflows = {row[1] for row in rows if row[1] is not None}
        kept = {row[0] for row in await db.rows("unfinished", sorted(workflows))} if workflows else set[str]()
        found += [row[0] for row in rows if row[1] not in kept]
        place = rows[-1][2:]
    removed: Sequence[Row] = await db.rows("delete", found[:limit]) if found else []
    await _forget(db, removed)
    await db.rows("key_prune", now, KEYS_PER_PRUNE)
    return len(removed)
