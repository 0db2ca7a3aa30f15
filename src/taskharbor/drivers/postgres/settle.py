"""Settle: outcomes fenced by their token (D7, D8), with new jobs (D9) and the effect on dependants (K2) in one step.

Plain successes of jobs without dependants are one statement. Everything else is a transaction: one statement for all
that end, one for all that go back in line, then new jobs and dependants. If a batch had dependants, the next one mostly
has some too, so the single statement is not tried first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import TypeVar

from msgspec.structs import astuple

from taskharbor.core.job import LAST_MOMENT, NewJob
from taskharbor.core.lease import Verdict, settle_verdict
from taskharbor.core.states import CANCELLED, DLQ, DONE, State
from taskharbor.core.tally import TotalKey, key_of, minute_of, tallies
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition, settle_kind
from taskharbor.drivers.postgres.db import Db
from taskharbor.drivers.postgres.dependants import apply_ends, dependants, hold
from taskharbor.drivers.postgres.drafts import LOOKS
from taskharbor.drivers.postgres.enqueue import add
from taskharbor.drivers.postgres.inspection import get
from taskharbor.drivers.postgres.rows import split_token, text_or_none
from taskharbor.drivers.shared.columns import STATES, json_or_none
from taskharbor.drivers.shared.outcomes import is_plain
from taskharbor.errors import StoreCorrupt

TokenRow = tuple[int, str, Transition]
V = TypeVar("V")
MICROSECOND = timedelta(microseconds=1)


class SettleHint:
    """Whether the last plain successes had dependants."""

    waited_for = False


async def settle(
    db: Db,
    transitions: Sequence[Transition],
    now: datetime,
    stir: Callable[[], object] = lambda: None,
    hint: SettleHint | None = None,
) -> list[Verdict]:
    """Write outcomes and return the verdicts. The first of several outcomes for one job counts.

    `stir` is called if jobs may be in line that were not before.
    """
    verdicts: dict[int, Verdict] = {}
    left = dict(enumerate(transitions))
    while left:
        turn: dict[str, int] = {}
        for index, to in left.items():
            turn.setdefault(to.id, index)
        chosen = [left.pop(index) for index in turn.values()]
        found = await _settle_or_refuse(db, chosen, now, stir, hint or SettleHint())
        verdicts |= {index: found[id] for id, index in turn.items()}
    return [verdicts[index] for index in range(len(transitions))]


async def _settle_or_refuse(
    db: Db, transitions: Sequence[Transition], now: datetime, stir: Callable[[], object], hint: SettleHint
) -> dict[str, Verdict]:
    """Return the verdict on each job, which appears once.

    A refused lease that is in order when it is read was renewed by a heartbeat meanwhile: try again.
    """
    verdicts: dict[str, Verdict] = {}
    left = transitions
    for _ in range(LOOKS):
        done = await _settle_once(db, left, now, stir, hint)
        verdicts.update((id, "ok") for id in done)
        left = [to for to in left if to.id not in done]
        jobs = await get(db, [to.id for to in left]) if left else []
        verdicts.update((to.id, settle_verdict(job, to, now)) for to, job in zip(left, jobs, strict=True))
        left = [to for to in left if verdicts[to.id] == "ok"]
        if not left:
            return verdicts
    raise StoreCorrupt(f"the lease on job {left[0].id} is in order, but it could not be settled")


async def _settle_once(
    db: Db, transitions: Sequence[Transition], now: datetime, stir: Callable[[], object], hint: SettleHint
) -> set[str]:
    """Return the ids of the jobs that were written."""
    done: set[str] = set()
    plain = all(map(is_plain, transitions))
    if plain and not hint.waited_for:
        done = set(await _finish(db, transitions, now, awaited_too=False))
        transitions = [to for to in transitions if to.id not in done]
        if not transitions:
            return done
    async with db.transaction():
        states = await (_finish(db, transitions, now, awaited_too=True) if plain else _move(db, transitions, now))
        written = [to for to in transitions if to.id in states]
        waited_for = await _carry_on(db, written, states, now, stir)
        if not plain:  # settle_done counts by itself
            await _count(db, written, now)
    if plain:
        hint.waited_for = waited_for
    return done | set(states)


def _given(transitions: Sequence[Transition]) -> list[TokenRow]:
    """The rows that the tokens name, in the order in which heartbeats lock them."""
    found: list[TokenRow] = []
    for to in transitions:
        tokens, seq, id = split_token(to.token)
        if id == to.id:
            found.append((seq, tokens, to))
    return sorted(found, key=itemgetter(0))


async def _finish(db: Db, acks: Sequence[Transition], now: datetime, *, awaited_too: bool) -> dict[str, State]:
    """Write plain successes by one statement; without `awaited_too`, only those of jobs without dependants."""
    given = _given(acks)
    if not given:
        return {}
    seqs, tokens, outcomes = zip(*given, strict=True)
    kept = [to.keep_until for to in outcomes]
    ran = [None if (began := to.started_at) is None else (now - began) // MICROSECOND for to in outcomes]
    rows = await db.rows(
        "settle_done", list(seqs), _short(tokens), _short(kept), ran, now, awaited_too, *_increments(outcomes, now)
    )
    ended = {row[0] for row in rows}
    return {to.id: DONE for seq, _, to in given if seq in ended}


def _short(values: Sequence[V]) -> list[V]:
    """One value if all are the same."""
    return [values[0]] if values.count(values[0]) == len(values) else list(values)


def _increments(acks: Sequence[Transition], now: datetime) -> tuple[object, ...]:
    """The increments of the totals as `settle_done` takes them: the total of each success, then the totals."""
    totals: dict[TotalKey | None, int] = {None: 0}
    which = [totals.setdefault(key_of(to), len(totals)) for to in acks]
    names = [key for key in totals if key is not None]
    return _short(which), minute_of(now), *([key[at] for key in names] for at in range(3))


async def _count(db: Db, settled: Sequence[Transition], now: datetime) -> None:
    """Add runs to the totals (D9)."""
    if sums := tallies(settled, now):
        minutes, *columns = map(list, zip(*map(astuple, sums), strict=True))
        await db.rows("tally_add", minutes[0], *columns)


async def _move(db: Db, transitions: Sequence[Transition], now: datetime) -> dict[str, State]:
    """Write outcomes of any kind; return the new states of the jobs."""
    given = _given(transitions)
    back = [it for it in given if isinstance(it[2], PutBack)]
    if back:  # by another statement than those that end
        await hold(db, [it[2].id for it in given])
    states = await _put_back(db, back, now)
    ends = [it for it in given if it[2].id not in states]  # put-backs that were asked to stop are among them
    return states | await _end(db, ends, now)


async def _carry_on(
    db: Db, written: Sequence[Transition], states: dict[str, State], now: datetime, stir: Callable[[], object]
) -> bool:
    """Store the new jobs of written outcomes and apply the ends to dependants; return whether there are any."""
    for jobs in _new_jobs(written):
        await add(db, jobs, now)
    edges = await dependants(db, [id for id, state in states.items() if state is not State.READY])
    released = await apply_ends(db, {to.id: states[to.id] for to in written}, edges, now)
    if released or any(to.new_jobs or (isinstance(to, PutBack) and to.run_at <= now) for to in written):
        stir()
    return bool(edges)


def _new_jobs(written: Sequence[Transition]) -> list[Sequence[NewJob]]:
    """The new jobs of all outcomes together, or of each alone if an id appears twice: the first may be skipped (D9)."""
    together = [job for to in written for job in to.new_jobs]
    return [together] if len({job.id for job in together}) == len(together) else [to.new_jobs for to in written]


async def _put_back(db: Db, given: Sequence[TokenRow], now: datetime) -> dict[str, State]:
    if not given:
        return {}
    outcomes = [it[2] for it in given if isinstance(it[2], PutBack)]
    rows = await db.rows(
        "settle_put_back",
        [it[0] for it in given],
        [it[1] for it in given],
        *_history(outcomes),
        [to.run_at for to in outcomes],
        now,
    )
    back = {row[0] for row in rows}
    return {to.id: State.READY for seq, _, to in given if seq in back}


async def _end(db: Db, given: Sequence[TokenRow], now: datetime) -> dict[str, State]:
    if not given:
        return {}
    outcomes = [it[2] for it in given]
    rows = await db.rows(
        "settle_ended",
        [it[0] for it in given],
        [it[1] for it in given],
        [_end_of(to).value for to in outcomes],
        *_history(outcomes),
        [to.keep_until for to in outcomes],
        [to.result if isinstance(to, Ack) else None for to in outcomes],
        [to.reason if isinstance(to, Fail) else None for to in outcomes],
        [to.fingerprint if isinstance(to, Fail) else None for to in outcomes],
        [None if isinstance(to, Ack) else settle_kind(to) for to in outcomes],
        now,
        LAST_MOMENT,
    )
    ended = {row[0]: STATES[row[1]] for row in rows}
    states = {to.id: ended[seq] for seq, _, to in given if seq in ended}
    if cancelled := sorted(id for id, state in states.items() if state is CANCELLED):
        await db.rows("key_free", cancelled)
    return states


def _history(outcomes: Sequence[Transition]) -> tuple[list[object], ...]:
    """The columns about this run and earlier ones that settle_put_back and settle_ended write."""
    return (
        [to.attempts for to in outcomes],
        [to.crashes for to in outcomes],
        [to.unknown_put_backs for to in outcomes],
        [text_or_none(to.last_error) for to in outcomes],
        [to.failed_at for to in outcomes],
        [json_or_none(to.failures) for to in outcomes],
        [to.started_at for to in outcomes],
    )


def _end_of(to: Transition) -> State:
    """The state that an outcome ends a job in, unless a stop request says otherwise."""
    match to:
        case Ack():
            return DONE
        case Fail():
            return DLQ
        case Cancel() | PutBack():
            return CANCELLED
