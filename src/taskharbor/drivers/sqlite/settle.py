"""Settle: outcomes fenced by their token (D7, D8), with new jobs (D9) and the effect on dependants (K2) in one step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from apsw import Connection, Cursor
from msgspec.structs import astuple

from taskharbor.core.group import fresh
from taskharbor.core.job import NewJob
from taskharbor.core.lease import Verdict, settle_verdict
from taskharbor.core.states import State
from taskharbor.core.tally import tallies
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition
from taskharbor.drivers.shared.columns import STATES, json_or_none, split_token
from taskharbor.drivers.shared.outcomes import is_plain
from taskharbor.drivers.sqlite.dependants import EndedJob, apply_ends, apply_successes, dependants, free_key
from taskharbor.drivers.sqlite.enqueue import is_stored, known_by_key, store
from taskharbor.drivers.sqlite.inspection import get_one
from taskharbor.drivers.sqlite.rows import FOR_EVER, SqliteRow, micros, micros_or_none, span
from taskharbor.drivers.sqlite.sql import load
from taskharbor.errors import StoreCorrupt

ACK, FAIL = load("settle_ack"), load("settle_fail")
PUT_BACK, CANCEL = load("settle_put_back"), load("settle_cancel")
DONE, DONE_RANGE = load("settle_done"), load("settle_done_range")
ADD = load("tally_add")

_json = msgspec.json.Encoder()


def settle(db: Connection, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
    """Write outcomes, each by one fenced statement; one that a statement did not touch gets the reason."""
    at = micros(now)
    finished = _finish_plain(db, transitions, at)
    if len(finished) == len(transitions):
        apply_successes(db, finished, at)
        _count(db, transitions, now)
        return ["ok"] * len(transitions)
    edges = dependants(db, (to.id for to in transitions))
    # One cursor for all: making one costs as much as the Python around a statement.
    cursor = db.cursor()
    verdicts: list[Verdict] = []
    written: list[Transition] = []
    ended: list[EndedJob] = []
    for to in transitions:
        end = (to.id, State.DONE) if to.id in finished else _write(cursor, to, at)
        if end is None:
            verdicts.append(_refused(db, to, now))
            continue
        written.append(to)
        if to.new_jobs:
            apply_ends(db, ended, edges, at)  # an earlier end does not affect new jobs
            ended = []
            _add(db, to.new_jobs, at)
            # A new job may depend on this one or on another of the batch.
            edges |= dependants(db, {edge.parent for new in to.new_jobs for edge in new.depends_on})
        if to.id in edges and end[1] is not State.READY:
            ended.append(end)
        verdicts.append("ok")
    apply_ends(db, ended, edges, at)
    _count(db, written, now)
    return verdicts


def _count(db: Connection, settled: Sequence[Transition], now: datetime) -> None:
    """Add runs to the totals (D9)."""
    if sums := tallies(settled, now):
        minute = micros(sums[0].minute)
        db.executemany(ADD, [(minute, *astuple(tally)[1:]) for tally in sums])


def _finish_plain(db: Connection, transitions: Sequence[Transition], now: int) -> set[str]:
    """Write successes without result or new jobs together, before the others; return their ids."""
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
    """Write plain successes, all or none: False if any is refused or repeated.

    Those of one claim that started at one time share a statement. Workers read the time of starts once a millisecond.
    """
    alike: dict[tuple[str, datetime, datetime | None], list[Transition]] = {}
    prefix, keep_until, started_at, some = "", None, None, list[Transition]()
    for to in acks:
        if to.keep_until is not keep_until or to.started_at is not started_at or not to.token.startswith(prefix):
            prefix, keep_until, started_at = split_token(to.token)[0], to.keep_until, to.started_at
            some = alike.setdefault((prefix, keep_until, started_at), [])
        some.append(to)
    db.execute("SAVEPOINT finish")
    complete = all(_finish_alike(db, some, now, *values) for values, some in alike.items())
    if not complete:
        db.execute("ROLLBACK TO finish")
    db.execute("RELEASE finish")
    return complete


def _finish_alike(
    db: Connection, acks: Sequence[Transition], now: int, prefix: str, keep_until: datetime, started_at: datetime | None
) -> bool:
    numbers = _numbers(acks, prefix)
    if numbers is None:
        return False
    terms = prefix, now, micros(keep_until), micros_or_none(started_at)
    try:
        if (found := span(numbers)) is not None:
            db.execute(DONE_RANGE, (found[0], *terms, found[1]))
        else:
            db.execute(DONE, (_json.encode(numbers).decode(), *terms))
        return db.changes() == len(acks)
    except OverflowError:  # too large for the number of a row
        return False


def _numbers(acks: Sequence[Transition], prefix: str) -> Sequence[int] | None:
    """The numbers of jobs out of their tokens, mostly one after another; None if a token is not one of ours."""
    tokens = [to.token for to in acks]
    try:
        first = int(split_token(tokens[0])[1])
        row = range(first, first + len(acks))
        if tokens == _tokens(acks, prefix, row):
            return row
        numbers = [int(split_token(token)[1]) for token in tokens]
    except ValueError:
        return None
    return numbers if tokens == _tokens(acks, prefix, numbers) else None


def _tokens(acks: Sequence[Transition], prefix: str, numbers: Sequence[int]) -> list[str]:
    return [f"{prefix}{number} {to.id}" for number, to in zip(numbers, acks, strict=True)]


def _write(cursor: Cursor, to: Transition, now: int) -> EndedJob | None:
    """Write an outcome; return the state of the job, or None if the token may not settle it."""
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
            return (to.id, State.DONE) if _written(cursor, ACK, (*common, to.result)) else None
        case Fail():
            return (to.id, State.DLQ) if _written(cursor, FAIL, (*common, to.reason, to.fingerprint)) else None
        case PutBack():
            return _stopped_or_back(cursor, to.id, PUT_BACK, (*common, FOR_EVER, micros(to.run_at)))
        case Cancel():
            return _stopped_or_back(cursor, to.id, CANCEL, (*common, FOR_EVER))


def _written(cursor: Cursor, statement: str, parameters: SqliteRow) -> bool:
    return cursor.execute(statement, parameters).connection.changes() > 0


def _stopped_or_back(cursor: Cursor, id: str, statement: str, parameters: SqliteRow) -> EndedJob | None:
    found: tuple[str, str | None] | None = cursor.execute(statement, parameters).get
    if found is None:
        return None
    state, freed = found
    if freed is not None:
        free_key(cursor.connection, id, freed)
    return id, STATES[state]


def _add(db: Connection, jobs: Sequence[NewJob], now: int) -> None:
    """Enqueue with the settle; a job whose key or id is taken is skipped (D9)."""
    store(db, fresh(jobs, lambda job: is_stored(db, job.id) or known_by_key(db, job, now) is not None), now)


def _refused(db: Connection, to: Transition, now: datetime) -> Verdict:
    verdict = settle_verdict(get_one(db, to.id), to, now)
    if verdict == "ok":
        raise StoreCorrupt(f"the lease on job {to.id} is in order, but it could not be settled")
    return verdict
