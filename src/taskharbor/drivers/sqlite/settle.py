"""Settle: outcomes fenced by their token (D7, D8), with new jobs (D9) and the effect on dependants (K2) in one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import cast
from weakref import WeakKeyDictionary

import msgspec
from apsw import Connection, Cursor
from msgspec.structs import astuple

from taskharbor.core.job import NewJob
from taskharbor.core.lease import Verdict, settle_verdict
from taskharbor.core.states import State
from taskharbor.core.tally import tallies
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition
from taskharbor.drivers.shared.columns import json_or_none, split_token
from taskharbor.drivers.shared.outcomes import is_plain
from taskharbor.drivers.sqlite.dependants import Ended, came_to, dependants, tell, tell_done
from taskharbor.drivers.sqlite.enqueue import exists, known_by_key, store
from taskharbor.drivers.sqlite.inspection import get_one
from taskharbor.drivers.sqlite.rows import EPOCH, FOR_EVER, MICROSECOND, Row, micros, micros_or_none, span
from taskharbor.drivers.sqlite.sql import load
from taskharbor.errors import StoreCorrupt

ACK, FAIL = load("settle_ack"), load("settle_fail")
PUT_BACK, CANCEL = load("settle_put_back"), load("settle_cancel")
DONE, DONE_RANGE = load("settle_done"), load("settle_done_range")
ADD = load("tally_add")

# When each job was started, by its number: as text out of its token, or as the database has it.
Runs = dict[str, int | None]
Starts = dict[int, int | None]
ScalarFunction = Callable[..., int | None]

_json = msgspec.json.Encoder()
_starts_of: WeakKeyDictionary[Connection, Starts] = WeakKeyDictionary()


def settle(db: Connection, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
    """Write outcomes, each by one fenced statement; what a statement did not touch is told why."""
    at = micros(now)
    finished = _finish_plain(db, transitions, at)
    if len(finished) == len(transitions):
        tell_done(db, finished, at)
        _count(db, transitions, now)
        return ["ok"] * len(transitions)
    edges = dependants(db, (to.id for to in transitions))
    # One cursor for all: making one costs as much as the Python around a statement.
    cursor = db.cursor()
    verdicts: list[Verdict] = []
    written: list[Transition] = []
    ended: list[Ended] = []
    for to in transitions:
        end = _end(to, State.DONE) if to.id in finished else _write(cursor, to, at)
        if end is None:
            verdicts.append(_refused(db, to, now))
            continue
        written.append(to)
        if to.new_jobs:
            tell(db, ended, edges, at)  # what ended before them is nothing that new jobs would hear of
            ended = []
            _add(db, to.new_jobs, at)
            # A new job may depend on this one or on another of the batch.
            edges |= dependants(db, {edge.parent for new in to.new_jobs for edge in new.depends_on})
        if to.id in edges and end[1] is not State.READY:
            ended.append(end)
        verdicts.append("ok")
    tell(db, ended, edges, at)
    _count(db, written, now)
    return verdicts


def _count(db: Connection, settled: Sequence[Transition], now: datetime) -> None:
    """Add runs to the totals (D9)."""
    if sums := tallies(settled, now):
        minute = micros(sums[0].minute)
        db.executemany(ADD, [(minute, *astuple(tally)[1:]) for tally in sums])


def _finish_plain(db: Connection, transitions: Sequence[Transition], now: int) -> set[str]:
    """The ids of those that could be written together, before the others: successes that bring nothing along."""
    ids = {to.id for to in transitions}
    plain = [to for to in transitions if is_plain(to)]
    # New jobs may depend on one that has not ended yet, or have a key that is free only once its job has.
    bringing = [to for to in transitions if to.new_jobs] if len(plain) < len(transitions) else []
    if any(new.depends_on or new.idempotency_key is not None for to in bringing for new in to.new_jobs):
        return set()
    if not plain or len(ids) < len(transitions) or not _finish(db, plain, now):
        return set()
    return ids if len(plain) == len(transitions) else {to.id for to in plain}


def _finish(db: Connection, acks: Sequence[Transition], now: int) -> bool:
    """Write plain successes by a statement for each claim, all or none: False if any is refused or repeated."""
    claims: dict[tuple[str, datetime], Runs] = {}
    tokens, keep_until, runs = "", None, Runs()
    for to in acks:
        token, started_at = to.token, to.started_at
        if not tokens or to.keep_until is not keep_until or not token.startswith(tokens):
            tokens, keep_until = split_token(token)[0], to.keep_until
            runs = claims.setdefault((tokens, keep_until), {})
        seq, _, id = token[len(tokens) :].partition(" ")
        if id != to.id or seq in runs:
            return False
        runs[seq] = None if started_at is None else (started_at - EPOCH) // MICROSECOND
    db.execute("SAVEPOINT finish")
    complete = all(_finish_claim(db, runs, tokens, now, until) for (tokens, until), runs in claims.items())
    if not complete:
        db.execute("ROLLBACK TO finish")
    db.execute("RELEASE finish")
    return complete


def _finish_claim(db: Connection, runs: Runs, tokens: str, now: int, keep_until: datetime) -> bool:
    starts, until = _starts(db), micros(keep_until)
    try:
        starts.update(zip(map(int, runs), runs.values(), strict=True))
        numbers = _json.encode(list(starts)).decode()
        if numbers != f"[{','.join(runs)}]":  # such as 01
            return False
        if (found := span(starts)) is not None:
            cursor = db.execute(DONE_RANGE, (found[0], tokens, now, until, found[1]))
        else:
            cursor = db.execute(DONE, (numbers, tokens, now, until))
        return cursor.connection.changes() == len(runs)
    except ValueError:  # not a number: the token is not one of ours
        return False
    finally:
        starts.clear()


def _starts(db: Connection) -> Starts:
    """The starts that the function `run_started` of this connection knows: cheaper than a join with a list of them."""
    starts = _starts_of.get(db)
    if starts is None:
        starts = _starts_of[db] = {}
        db.create_scalar_function("run_started", cast("ScalarFunction", starts.get), 1)
    return starts


def _write(cursor: Cursor, to: Transition, now: int) -> Ended | None:
    """What the job came to, or None if the token may not settle it."""
    common = (
        to.id,
        to.token,
        now,
        to.attempts,
        to.crashes,
        to.unknown_put_backs,
        to.last_error,
        None if to.failed_at is None else micros(to.failed_at),
        json_or_none(to.failures),
        micros(to.keep_until),
        micros_or_none(to.started_at),
    )
    match to:
        case Ack():
            return _end(to, State.DONE) if _changed(cursor, ACK, (*common, to.result)) else None
        case Fail():
            return _end(to, State.DLQ) if _changed(cursor, FAIL, (*common, to.reason, to.fingerprint)) else None
        case PutBack():
            return _back_or_gone(cursor, to.id, PUT_BACK, (*common, FOR_EVER, micros(to.run_at)))
        case Cancel():
            return _back_or_gone(cursor, to.id, CANCEL, (*common, FOR_EVER))


def _end(to: Transition, state: State) -> Ended:
    return to.id, state


def _changed(cursor: Cursor, statement: str, parameters: Row) -> bool:
    return cursor.execute(statement, parameters).connection.changes() > 0


def _back_or_gone(cursor: Cursor, id: str, statement: str, parameters: Row) -> Ended | None:
    found: tuple[str, int, str | None] | None = cursor.execute(statement, parameters).get
    return None if found is None else came_to(cursor.connection, id, *found)


def _add(db: Connection, jobs: Sequence[NewJob], now: int) -> None:
    """Enqueue with the settle; one whose key or id is known is skipped (D9)."""
    fresh: dict[str, NewJob] = {}
    for new in jobs:
        if not exists(db, new.id) and known_by_key(db, new, now) is None:
            fresh.setdefault(new.id, new)
    store(db, list(fresh.values()), now)


def _refused(db: Connection, to: Transition, now: datetime) -> Verdict:
    verdict = settle_verdict(get_one(db, to.id), to, now)
    if verdict == "ok":
        raise StoreCorrupt(f"the lease on job {to.id} is in order, but it could not be settled")
    return verdict
