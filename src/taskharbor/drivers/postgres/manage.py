"""What people and upkeep do to jobs, inside a transaction: cancel, dead-letter, delete, replay, and so on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from taskharbor.core.evolve import DeadLetter, Replay, with_key
from taskharbor.core.job import LAST_MOMENT, JobRecord
from taskharbor.core.keys import digest
from taskharbor.core.line import SINCE_EVER
from taskharbor.core.states import State
from taskharbor.core.steps import forget
from taskharbor.core.steps.draft import Draft
from taskharbor.driver import PRUNE_AGAIN, Cancellation, DeadLettering, Deletion, Replaying, Reschedule
from taskharbor.drivers.postgres.db import Db, Row
from taskharbor.drivers.postgres.dependants import told, withdraw
from taskharbor.drivers.postgres.drafts import answered, held_states
from taskharbor.drivers.postgres.inspection import get
from taskharbor.drivers.postgres.rows import text_or_none
from taskharbor.drivers.shared.columns import STATES

UNFINISHED = ("ready", "waiting", "inflight")


async def cancel(db: Db, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
    """Withdraw jobs in line, and ask the holders of inflight ones to stop (T3)."""
    states = await held_states(db, ids, "hold")
    asked, line = _running_and_in_line(ids, states)
    if asked:
        await db.rows("cancel_request", asked, now)
    if line:
        await withdraw(db, line, ("ready", "waiting"), now, keep_until)
    answers: dict[str, Cancellation] = {
        **dict.fromkeys(states, "finished"), **dict.fromkeys(asked, "requested"), **dict.fromkeys(line, "cancelled")
    }  # fmt: skip
    repeated: dict[str, Cancellation] = {**answers, **dict.fromkeys(line, "finished")}
    return [answers.pop(id, repeated.get(id, "missing")) for id in ids]


def _running_and_in_line(ids: Sequence[str], states: Mapping[str, State]) -> tuple[list[str], list[str]]:
    """Which of these jobs somebody runs or ran, and which are in line; in their order."""
    once = [id for id in dict.fromkeys(ids) if id in states]
    in_line = [id for id in once if states[id] in (State.READY, State.WAITING)]
    return [id for id in once if states[id] is State.INFLIGHT], in_line


async def dead_letter(db: Db, deaths: Sequence[DeadLetter], now: datetime) -> list[DeadLettering]:
    """Dead-letter jobs in line, and ask the holders of inflight ones to stop (Q4)."""
    ids = [death.id for death in deaths]
    states = await held_states(db, ids, "hold")
    asked, line = _running_and_in_line(ids, states)
    first = {death.id: death for death in reversed(deaths)}
    if asked:
        await db.rows("dead_letter_request", *_columns([first[id] for id in asked]), now)
    if line:
        rows = await db.rows("dead_letter", *_columns([first[id] for id in line]), now, LAST_MOMENT)
        await told(db, line, [(id, STATES[state], until) for id, state, until in rows], now)
    answers: dict[str, DeadLettering] = {
        **dict.fromkeys(states, "finished"), **dict.fromkeys(asked, "requested"), **dict.fromkeys(line, "dead")
    }  # fmt: skip
    repeated: dict[str, DeadLettering] = {**answers, **dict.fromkeys(line, "finished")}
    return [answers.pop(id, repeated.get(id, "missing")) for id in ids]


def _columns(deaths: Sequence[DeadLetter]) -> tuple[list[object], ...]:
    return (
        [death.id for death in deaths],
        [text_or_none(death.reason) for death in deaths],
        [text_or_none(death.fingerprint) for death in deaths],
        [death.keep_until for death in deaths],
    )


async def delete(db: Db, ids: Sequence[str]) -> list[Deletion]:
    """Remove terminal jobs that no dependant needs (K3)."""
    draft = Draft()
    answers = await answered(db, draft, forget.delete(draft, ids))
    if gone := [id for id, _, after in draft.jobs.changes() if after is None]:
        await db.rows("delete", gone)
        await db.rows("delete_edges", gone)
    if freed := [key for key, _, after in draft.keys.changes() if after is None]:
        await db.rows("key_remove", freed)
    return answers


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
    states = await held_states(db, ids, "hold_ended")
    jobs = {job.id: job for job in await get(db, ids) if job is not None}
    own = [job.idempotency_key for job in jobs.values()]
    keys = [key for key in (*own, *(it.idempotency_key for it in replays)) if key is not None]
    if keys:
        await db.rows("key_hold", list(dict.fromkeys(keys)))
    rows: list[Row] = []
    answers: list[Replaying] = [await _replay(db, it, jobs, states, rows, now) for it in replays]
    if keys:
        await db.rows("key_leave", keys)
    if rows:
        await db.rows("replay", *map(list, zip(*rows, strict=True)))
    again = [id for id, answer in zip(ids, answers, strict=True) if answer.startswith("replayed")]
    reopened = Counter(row[0] for row in await db.rows("replay_reopen", again)) if again else None
    if reopened:
        await db.rows("replay_wait", list(reopened), list(reopened.values()))
    return answers


async def _replay(
    db: Db, replay: Replay, jobs: Mapping[str, JobRecord], states: dict[str, State], rows: list[Row], now: datetime
) -> Replaying:
    """Take the key of one job, and add its row to those to be written."""
    state = states.get(replay.id)
    if state is None:
        return "missing"
    if state not in (State.DLQ, State.CANCELLED):
        return "not_dead"
    job = jobs[replay.id]
    wanted = with_key(replay, job)
    if replay.idempotency_key is not None and job.idempotency_key is not None:
        await db.rows("key_free", [job.id], True)
    key, expires_at = wanted.idempotency_key, wanted.key_expires_at
    # A job of this call may hold the key: it is not live before its row is written.
    is_held = key is not None and any(row[2] == key for row in rows)
    has_key = key is None or (not is_held and await _take_key(db, key, expires_at, job, replay.payload, now))
    own = (key, expires_at) if has_key else (None, None)
    rows.append((job.id, replay.payload, *own, replay.run_at, replay.run_at or now))
    states[replay.id] = State.READY
    return "replayed" if has_key else "replayed_without_key"


async def _take_key(
    db: Db, key: str, expires_at: datetime | None, job: JobRecord, payload: bytes | None, now: datetime
) -> bool:
    """Let a replayed job have its key, which this step holds; False if another job or workflow has it."""
    content = digest([(job.type, job.payload if payload is None else payload)])
    values = [key], [job.id], [content], [expires_at]
    return bool(await db.rows("key_keep", key, job.id) or await db.rows("key_put", *values, now))


async def reschedule(db: Db, changes: Sequence[Reschedule]) -> list[bool]:
    """Move ready jobs in time or rank."""
    return [bool(await db.rows("reschedule", change.id, change.run_at, change.priority)) for change in changes]


async def pause(db: Db, queue: str, paused: bool) -> None:
    """Stop or resume handing out the jobs of a queue."""
    await db.rows("pause" if paused else "pause_end", queue)


async def sweep(db: Db, now: datetime, keep_until: datetime, limit: int) -> int:
    """End what expired and what was left behind after a request to stop (T1, N1)."""
    swept = 0
    for candidates in ("sweep_stopping", "sweep_expired"):
        # One that ends takes waiting dependants along, so there may be fewer to end than were found.
        while swept < limit:
            found = [row[0] for row in await db.rows(candidates, now, limit - swept)]
            gone = await withdraw(db, found, UNFINISHED, now, keep_until) if found else []
            if not gone:
                break
            swept += len(gone)
    return swept


async def prune(db: Db, now: datetime, limit: int) -> int:
    """Forget what was kept long enough, with its keys (X8, I2)."""
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
