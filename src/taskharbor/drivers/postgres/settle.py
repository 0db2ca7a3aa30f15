"""Settle: outcomes fenced by their token (D7, D8), with new jobs (D9) and the effect on dependants (K2) in one step.

Plain successes of jobs that nobody waits for are one statement. Everything else is a transaction: one statement for all
that end, one for all that go back in line, then what hangs on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskharbor.core.job import NewJob
from taskharbor.core.lease import Verdict, settle_verdict
from taskharbor.core.states import CANCELLED, DLQ, DONE, State
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition
from taskharbor.drivers.postgres.db import Db
from taskharbor.drivers.postgres.dependants import tell, with_dependants
from taskharbor.drivers.postgres.enqueue import living_keys, store
from taskharbor.drivers.postgres.inspection import get
from taskharbor.drivers.postgres.rows import json_or_none, split_token, text_or_none
from taskharbor.errors import StoreCorrupt

Given = tuple[int, str, Transition]


async def settle(db: Db, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
    """Write outcomes; what a statement did not touch is told why. The first of several for one job counts."""
    verdicts: dict[int, Verdict] = {}
    left = dict(enumerate(transitions))
    while left:
        step: dict[str, int] = {}
        for place, to in left.items():
            step.setdefault(to.id, place)
        chosen = [left.pop(place) for place in step.values()]
        done = await _settle_once(db, chosen, now)
        for place, to in zip(step.values(), chosen, strict=True):
            verdicts[place] = "ok" if to.id in done else await _refused(db, to, now)
    return [verdicts[place] for place in range(len(transitions))]


async def _settle_once(db: Db, transitions: Sequence[Transition], now: datetime) -> set[str]:
    """The ids of those that were written; each job appears once."""
    done: set[str] = set()
    if all(map(_is_plain, transitions)):
        done = await _finish(db, transitions, now)
        transitions = [to for to in transitions if to.id not in done]
        if not transitions or not await with_dependants(db, [to.id for to in transitions]):
            return done
    async with db.transaction():
        return done | await _settle_all(db, transitions, now)


def _is_plain(to: Transition) -> bool:
    """Whether this is a success of a job that never failed, and has nothing to bring along."""
    return (
        type(to) is Ack
        and to.result is None
        and not (to.attempts or to.crashes or to.unknown_put_backs or to.new_jobs or to.failures)
        and to.last_error is None
        and to.failed_at is None
    )


def _given(transitions: Sequence[Transition]) -> list[Given]:
    """The rows that the tokens name."""
    found: list[Given] = []
    for to in transitions:
        tokens, seq, id = split_token(to.token)
        if id == to.id:
            found.append((seq, tokens, to))
    return found


async def _finish(db: Db, acks: Sequence[Transition], now: datetime) -> set[str]:
    """Write plain successes that nobody waits for, by a statement for each time they are kept until."""
    by_time: dict[datetime, list[Given]] = {}
    for it in _given(acks):
        by_time.setdefault(it[2].keep_until, []).append(it)
    done: set[str] = set()
    for keep_until, given in by_time.items():
        ids = [it[2].id for it in given]
        rows = await db.rows("settle_done", [it[0] for it in given], [it[1] for it in given], now, keep_until, ids)
        ended = {row[0] for row in rows}
        done |= {to.id for seq, _, to in given if seq in ended}
    return done


async def _settle_all(db: Db, transitions: Sequence[Transition], now: datetime) -> set[str]:
    given = _given(transitions)
    came_to = await _put_back(db, [it for it in given if isinstance(it[2], PutBack)], now)
    ends = [it for it in given if it[2].id not in came_to]  # put-backs that were asked to cancel are among them
    came_to |= await _end(db, ends, now)
    written = [to for to in transitions if to.id in came_to]
    await _add(db, written, now)
    ended = {id: state for id, state in came_to.items() if state is not State.READY}
    needed: set[str] = await with_dependants(db, list(ended)) if ended else set()
    by_time: dict[datetime, dict[str, State]] = {}
    for to in written:
        if to.id in needed:
            by_time.setdefault(to.keep_until, {})[to.id] = ended[to.id]
    for keep_until, some in by_time.items():
        await tell(db, some, now, keep_until)
    return set(came_to)


async def _put_back(db: Db, given: Sequence[Given], now: datetime) -> dict[str, State]:
    if not given:
        return {}
    outcomes = [it[2] for it in given if isinstance(it[2], PutBack)]
    rows = await db.rows(
        "settle_put_back",
        [it[0] for it in given],
        [it[1] for it in given],
        [to.attempts for to in outcomes],
        [to.crashes for to in outcomes],
        [to.unknown_put_backs for to in outcomes],
        [text_or_none(to.last_error) for to in outcomes],
        [to.failed_at for to in outcomes],
        [json_or_none(to.failures) for to in outcomes],
        [to.run_at for to in outcomes],
        now,
    )
    back = {row[0] for row in rows}
    return {to.id: State.READY for seq, _, to in given if seq in back}


async def _end(db: Db, given: Sequence[Given], now: datetime) -> dict[str, State]:
    if not given:
        return {}
    outcomes = [it[2] for it in given]
    states = [_end_of(to) for to in outcomes]
    rows = await db.rows(
        "settle_ended",
        [it[0] for it in given],
        [it[1] for it in given],
        [state.value for state in states],
        [to.attempts for to in outcomes],
        [to.crashes for to in outcomes],
        [to.unknown_put_backs for to in outcomes],
        [text_or_none(to.last_error) for to in outcomes],
        [to.failed_at for to in outcomes],
        [json_or_none(to.failures) for to in outcomes],
        [to.keep_until for to in outcomes],
        [to.result if isinstance(to, Ack) else None for to in outcomes],
        [to.reason if isinstance(to, Fail) else None for to in outcomes],
        now,
    )
    ended = {row[0] for row in rows}
    came_to = {to.id: state for (seq, _, to), state in zip(given, states, strict=True) if seq in ended}
    cancelled = sorted(id for id, state in came_to.items() if state is CANCELLED)
    if cancelled:
        await db.rows("key_free", cancelled)
    return came_to


def _end_of(to: Transition) -> State:
    match to:
        case Ack():
            return DONE
        case Fail():
            return DLQ
        case Cancel() | PutBack():
            return CANCELLED


async def _add(db: Db, written: Sequence[Transition], now: datetime) -> None:
    """Enqueue with the settle; one whose key or id is known is skipped (D9)."""
    new = [job for to in written for job in to.new_jobs]
    if not new:
        return
    taken = {row[0] for row in await db.rows("states", [job.id for job in new])}
    known = set(await living_keys(db, [job.idempotency_key for job in new if job.idempotency_key], now))
    fresh: dict[str, NewJob] = {}
    for job in new:
        if job.id not in taken and job.idempotency_key not in known:
            fresh.setdefault(job.id, job)
            if job.idempotency_key is not None:
                known.add(job.idempotency_key)
    if fresh:
        await store(db, list(fresh.values()), now)


async def _refused(db: Db, to: Transition, now: datetime) -> Verdict:
    [job] = await get(db, [to.id])
    verdict = settle_verdict(job, to.id, to.token, now)
    if verdict == "ok":
        raise StoreCorrupt(f"the lease on job {to.id} is in order, but it could not be settled")
    return verdict
