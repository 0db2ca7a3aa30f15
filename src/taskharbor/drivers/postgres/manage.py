"""What people and upkeep do to jobs, inside a transaction: cancel, delete, replay, reschedule, pause, sweep, prune."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from taskharbor.core.evolve import Replay
from taskharbor.core.job import JobRecord
from taskharbor.core.keys import digest
from taskharbor.core.line import SINCE_EVER
from taskharbor.core.states import TERMINAL, State
from taskharbor.driver import PRUNE_AGAIN, Cancellation, Deletion, Replaying, Reschedule
from taskharbor.drivers.postgres.db import Db, Row
from taskharbor.drivers.postgres.dependants import LOOKS, nowhere, withdraw
from taskharbor.drivers.postgres.enqueue import living_keys
from taskharbor.drivers.postgres.inspection import get
from taskharbor.drivers.postgres.rows import STATES

UNFINISHED = ("ready", "waiting", "inflight")
# Keys cost little to forget, but a step stays bounded.
KEYS_PER_PRUNE = 10_000


async def cancel(db: Db, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
    """Withdraw jobs in line, and ask the holders of inflight ones to stop (T3)."""
    states = await _held_states(db, ids, "hold")
    asked = [id for id, state in states.items() if state is State.INFLIGHT]
    line = [id for id, state in states.items() if state in (State.READY, State.WAITING)]
    if asked:
        await db.rows("cancel_request", asked, now)
    if line:
        await withdraw(db, line, ("ready", "waiting"), now, keep_until)
    answers: dict[str, Cancellation] = {
        **dict.fromkeys(states, "finished"), **dict.fromkeys(asked, "requested"), **dict.fromkeys(line, "cancelled")
    }  # fmt: skip
    repeated: dict[str, Cancellation] = {**answers, **dict.fromkeys(line, "finished")}
    return [answers.pop(id, repeated.get(id, "missing")) for id in ids]


async def _held_states(db: Db, ids: Sequence[str], name: str) -> dict[str, State]:
    """The states of those that exist. Those that the statement of this name holds, the live or the ended ones, stay so
    until the transaction ends."""
    states: dict[str, State] = {}
    left = list(dict.fromkeys(ids))
    for _ in range(LOOKS):
        held = {id: STATES[state] for id, state in await db.rows(name, left)}
        states |= held
        found = {row[0]: row[1] for row in await db.rows("states", [id for id in left if id not in states])}
        others = {id: STATES[state] for id, state in found.items() if state is not None}
        states |= {id: state for id, state in others.items() if (state in TERMINAL) is (name == "hold")}
        left = [id for id in found if id not in states]  # moved at this moment
        if not left:
            return states
    raise nowhere(left[0])


async def delete(db: Db, ids: Sequence[str]) -> list[Deletion]:
    """Remove terminal jobs that nobody needs."""
    states = await _held_states(db, ids, "hold_ended")
    return [await _delete(db, id, states) for id in ids]


async def _delete(db: Db, id: str, states: dict[str, State]) -> Deletion:
    state = states.get(id)
    if state is None:
        return "missing"
    if state not in TERMINAL:
        return "live"
    if await db.rows("delete_needed", id):
        return "needed"
    await _forget(db, await db.rows("delete", [id]))
    del states[id]
    return "deleted"


async def _forget(db: Db, removed: Sequence[Row]) -> None:
    """Let go of what hung on removed jobs: their keys, their edges, and the key of a workflow that is gone."""
    ids = [row[0] for row in removed]
    workflows = {row[1] for row in removed if row[1] is not None}
    if ids:
        await db.rows("delete_edges", ids)
    if workflows and (keyed := {row[0] for row in await db.rows("key_hold_workflow", sorted(workflows))}):
        await db.rows("key_free_workflow", sorted(keyed))


async def free_workflow_key(db: Db, workflow_id: str) -> bool:
    """Forget the key that stands for a workflow (I2)."""
    return bool(await db.rows("key_free_owner", workflow_id))


async def replay(db: Db, replays: Sequence[Replay], now: datetime) -> list[Replaying]:
    """Put dead or cancelled jobs back in line (Q2), each behind those of its parents that run again too (Q3)."""
    ids = [it.id for it in replays]
    await db.rows("replay_parents", ids)
    states = await _held_states(db, ids, "hold_ended")
    jobs = {job.id: job for job in await get(db, ids) if job is not None}
    answers: list[Replaying] = [await _replay(db, it, jobs, states, now) for it in replays]
    again = [id for id, answer in zip(ids, answers, strict=True) if answer == "replayed"]
    reopened = Counter(row[0] for row in await db.rows("replay_reopen", again)) if again else None
    if reopened:
        await db.rows("replay_wait", list(reopened), list(reopened.values()))
    return answers


async def _replay(
    db: Db, replay: Replay, jobs: Mapping[str, JobRecord], states: dict[str, State], now: datetime
) -> Replaying:
    state = states.get(replay.id)
    if state is None:
        return "missing"
    if state not in (State.DLQ, State.CANCELLED):
        return "not_dead"
    job = jobs[replay.id]
    key, expires_at = await _key_after(db, replay, job, now)
    await db.rows("replay", job.id, replay.payload, key, expires_at, replay.run_at, replay.run_at or now)
    states[replay.id] = State.READY
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
    removed: list[Row] = []
    place: Row = (SINCE_EVER, 0)
    while len(removed) < limit:
        rows = await db.rows("prune", now, *place, limit - len(removed))
        if not rows:
            break
        kept = await _keep(db, {row[1] for row in rows if row[1] is not None}, now)
        going = await _going(db, [row for row in rows if row[1] not in kept], limit - len(removed))
        removed += await _remove(db, going, now)
        place = rows[-1][2:]
    await db.rows("key_prune", now, KEYS_PER_PRUNE)
    return len(removed)


async def _going(db: Db, rows: Sequence[Row], limit: int) -> dict[str, str | None]:
    """The ids of what is over, each with its workflow. Of a workflow all are, dependants before those they wait for."""
    going: dict[str, str | None] = {}
    workflows = list(dict.fromkeys(row[1] for row in rows if row[1] is not None))
    members: dict[str, list[str]] = {}
    for workflow, id in await db.rows("prune_members", workflows, limit) if workflows else ():
        members.setdefault(workflow, []).append(id)
    for id, workflow, *_ in rows:
        going |= {id: None} if workflow is None else dict.fromkeys(members.pop(workflow, ()), workflow)
    return dict(list(going.items())[:limit])


async def _remove(db: Db, going: dict[str, str | None], now: datetime) -> Sequence[Row]:
    """Forget these, unless somebody puts one of them or of their workflow back at this moment."""
    if not going:
        return []
    held = {row[0] for row in await db.rows("hold_ended", list(going))}
    moved = {workflow for id, workflow in going.items() if workflow is not None and id not in held}
    kept = moved | await _keep(db, {workflow for workflow in going.values() if workflow is not None}, now)
    removed = await db.rows("prune_delete", [id for id, workflow in going.items() if workflow not in kept], now)
    await _forget(db, removed)
    return removed


async def _keep(db: Db, workflows: Collection[str], now: datetime) -> set[str]:
    """Which of these workflows stay; their records are not looked at again before their new time has come."""
    if not workflows:
        return set()
    kept = await db.rows("prune_kept", sorted(workflows), now, now + PRUNE_AGAIN)
    if kept:
        await db.rows("prune_keep", [row[0] for row in kept], [row[1] for row in kept])
    return {row[0] for row in kept}
