"""Settle: outcomes fenced by their token (D7, D8), with new jobs (D9) and the effect on dependants (K2) in one step.

Plain successes of jobs that nobody waits for are one statement. Everything else is a transaction: one statement for all
that end, one for all that go back in line, then what hangs on them. Where one batch was waited for the next one mostly
is too, so it is not tried by one statement first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import TypeVar

from msgspec.structs import astuple

from taskharbor.core.job import LAST_MOMENT
from taskharbor.core.lease import Verdict, settle_verdict
from taskharbor.core.states import CANCELLED, DLQ, DONE, State
from taskharbor.core.tally import Key, key_of, minute_of, tallies
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition, settle_kind
from taskharbor.drivers.postgres.db import Db
from taskharbor.drivers.postgres.dependants import LOOKS, Came, dependants, free_keys, hold, tell
from taskharbor.drivers.postgres.enqueue import add
from taskharbor.drivers.postgres.inspection import get
from taskharbor.drivers.postgres.rows import split_token, text_or_none
from taskharbor.drivers.shared.columns import STATES, json_or_none
from taskharbor.drivers.shared.outcomes import is_plain
from taskharbor.errors import StoreCorrupt

Given = tuple[int, str, Transition]
V = TypeVar("V")
MICROSECOND = timedelta(microseconds=1)


class SettleHint:
    """Whether somebody waited for the last plain successes."""

    waited_for = False


async def settle(
    db: Db,
    transitions: Sequence[Transition],
    now: datetime,
    stir: Callable[[], object] = lambda: None,
    hint: SettleHint | None = None,
) -> list[Verdict]:
    """Write outcomes; what a statement did not touch is told why. The first of several for one job counts. `stir` is
    called if there may be work now that was not in line before."""
    verdicts: dict[int, Verdict] = {}
    left = dict(enumerate(transitions))
    while left:
        step: dict[str, int] = {}
        for place, to in left.items():
            step.setdefault(to.id, place)
        chosen = [left.pop(place) for place in step.values()]
        found = await _settle_or_refuse(db, chosen, now, stir, hint or SettleHint())
        verdicts |= {place: found[id] for id, place in step.items()}
    return [verdicts[place] for place in range(len(transitions))]


async def _settle_or_refuse(
    db: Db, transitions: Sequence[Transition], now: datetime, stir: Callable[[], object], hint: SettleHint
) -> dict[str, Verdict]:
    """What became of each; of a job there is one. A lease that is in order by the time it is looked at was renewed just
    now, by a heartbeat that overtook us: then it can be settled."""
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
    """The ids of those that were written; each job appears once."""
    done: set[str] = set()
    plain = all(map(is_plain, transitions))
    if plain and not hint.waited_for:
        done = set(await _finish(db, transitions, now, whole=False))
        transitions = [to for to in transitions if to.id not in done]
        if not transitions:
            return done
    async with db.transaction():
        came_to = await (_finish(db, transitions, now, whole=True) if plain else _move(db, transitions, now))
        written = [to for to in transitions if to.id in came_to]
        waited_for = await _carry_on(db, written, came_to, now, stir)
        if not plain:  # those are counted by the statement that ends them
            await _count(db, written, now)
    if plain:
        hint.waited_for = waited_for
    return done | set(came_to)


def _given(transitions: Sequence[Transition]) -> list[Given]:
    """The rows that the tokens name, in the order in which everybody takes them: one that went another way and a
    heartbeat would wait for each other."""
    found: list[Given] = []
    for to in transitions:
        tokens, seq, id = split_token(to.token)
        if id == to.id:
            found.append((seq, tokens, to))
    return sorted(found, key=itemgetter(0))


async def _finish(db: Db, acks: Sequence[Transition], now: datetime, *, whole: bool) -> dict[str, Came]:
    """Write plain successes by one statement; without `whole`, only those of jobs that nobody can wait for."""
    given = _given(acks)
    if not given:
        return {}
    seqs, tokens, outcomes = zip(*given, strict=True)
    kept = [to.keep_until for to in outcomes]
    ran = [None if (began := to.started_at) is None else (now - began) // MICROSECOND for to in outcomes]
    rows = await db.rows(
        "settle_done", list(seqs), _short(tokens), _short(kept), ran, now, whole, *_increments(outcomes, now)
    )
    ended = {row[0] for row in rows}
    return {to.id: (DONE, to.keep_until) for seq, _, to in given if seq in ended}


def _short(values: Sequence[V]) -> list[V]:
    """One value if all are the same."""
    return [values[0]] if values.count(values[0]) == len(values) else list(values)


def _increments(acks: Sequence[Transition], now: datetime) -> tuple[object, ...]:
    """What these add to the totals, as `settle_done` takes it: which total each one, and what those are."""
    totals: dict[Key | None, int] = {None: 0}
    which = [totals.setdefault(key_of(to), len(totals)) for to in acks]
    names = [key for key in totals if key is not None]
    return _short(which), minute_of(now), *([key[at] for key in names] for at in range(3))


async def _count(db: Db, settled: Sequence[Transition], now: datetime) -> None:
    """Add runs to the totals (D9)."""
    if sums := tallies(settled, now):
        minutes, *columns = map(list, zip(*map(astuple, sums), strict=True))
        await db.rows("tally_add", minutes[0], *columns)


async def _move(db: Db, transitions: Sequence[Transition], now: datetime) -> dict[str, Came]:
    """Write outcomes of any kind; what each job came to."""
    given = _given(transitions)
    back = [it for it in given if isinstance(it[2], PutBack)]
    if back:  # by another statement than those that end
        await hold(db, [it[2].id for it in given])
    came_to = await _put_back(db, back, now)
    ends = [it for it in given if it[2].id not in came_to]  # put-backs that were asked to stop are among them
    return came_to | await _end(db, ends, now)


async def _carry_on(
    db: Db, written: Sequence[Transition], came_to: dict[str, Came], now: datetime, stir: Callable[[], object]
) -> bool:
    """Store the new jobs of outcomes that were written, and tell dependants; whether there were any."""
    await add(db, [job for to in written for job in to.new_jobs], now)
    edges = await dependants(db, [id for id, (state, _) in came_to.items() if state is not State.READY])
    needed = {edge[0] for edge in edges}
    told = [(to.id, *came_to[to.id]) for to in written if to.id in needed]
    released = await tell(db, told, edges, now)
    if released or any(to.new_jobs or (isinstance(to, PutBack) and to.run_at <= now) for to in written):
        stir()
    return bool(edges)


async def _put_back(db: Db, given: Sequence[Given], now: datetime) -> dict[str, Came]:
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
        [to.started_at for to in outcomes],
        [to.run_at for to in outcomes],
        now,
    )
    back = {row[0] for row in rows}
    return {to.id: (State.READY, to.keep_until) for seq, _, to in given if seq in back}


async def _end(db: Db, given: Sequence[Given], now: datetime) -> dict[str, Came]:
    if not given:
        return {}
    outcomes = [it[2] for it in given]
    rows = await db.rows(
        "settle_ended",
        [it[0] for it in given],
        [it[1] for it in given],
        [_end_of(to).value for to in outcomes],
        [to.attempts for to in outcomes],
        [to.crashes for to in outcomes],
        [to.unknown_put_backs for to in outcomes],
        [text_or_none(to.last_error) for to in outcomes],
        [to.failed_at for to in outcomes],
        [json_or_none(to.failures) for to in outcomes],
        [to.started_at for to in outcomes],
        [to.keep_until for to in outcomes],
        [to.result if isinstance(to, Ack) else None for to in outcomes],
        [to.reason if isinstance(to, Fail) else None for to in outcomes],
        [to.fingerprint if isinstance(to, Fail) else None for to in outcomes],
        [None if isinstance(to, Ack) else settle_kind(to) for to in outcomes],
        now,
        LAST_MOMENT,
    )
    ended = {row[0]: (STATES[row[1]], row[2]) for row in rows}
    came_to = {to.id: ended[seq] for seq, _, to in given if seq in ended}
    await free_keys(db, [id for id, (state, _) in came_to.items() if state is CANCELLED])
    return came_to


def _end_of(to: Transition) -> State:
    """What a job ends as, unless a stop request wants it otherwise."""
    match to:
        case Ack():
            return DONE
        case Fail():
            return DLQ
        case Cancel() | PutBack():
            return CANCELLED
