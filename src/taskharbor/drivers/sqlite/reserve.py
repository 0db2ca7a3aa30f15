"""Reserve and extend: claims in the order of D11, and heartbeats (D6).

The line is one index. Reserve walks the priorities of a queue downwards and reads of each only what is due, so future
and finished jobs cost nothing. Jobs whose leases lapsed are put in line first, which changes nothing that is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from apsw import Connection

from taskharbor.core.evolve import claimed
from taskharbor.core.job import JobRecord
from taskharbor.core.line import SINCE_EVER, shares
from taskharbor.core.reserved import in_line
from taskharbor.driver import Extended, Report
from taskharbor.drivers.shared.claims import ClaimTerms, not_renewed
from taskharbor.drivers.shared.columns import json_or_none, token_of
from taskharbor.drivers.sqlite.damage import UNDECODABLE, dead_letter
from taskharbor.drivers.sqlite.inspection import get_one
from taskharbor.drivers.sqlite.rows import SqliteRow, claimed_plain, micros, micros_or_none, moment, record, span
from taskharbor.drivers.sqlite.sql import load
from taskharbor.errors import LeaseError

PICK, PICK_ID = load("reserve"), load("reserve_by_id")
CLAIM, CLAIM_RANGE = load("claim"), load("claim_range")
SEQS, ROW = load("reserve_seqs"), load("reserve_row")
LINE_UP, LAPSED = load("reserve_line_up"), load("reserve_lapsed")
NEXT_PRIORITY, PEEK = load("reserve_priority"), load("reserve_peek")
PAUSED = load("paused")
EXTEND = load("extend_lease")

_json = msgspec.json.Encoder()
ABOVE_ALL = 101
FRONT = micros(SINCE_EVER)
# A step that holds the write lock stays bounded, even if every job is damaged.
MOST_DAMAGED = 1000


def reserve(
    db: Connection, to: ClaimTerms, queues: Sequence[str], limit: int, ids: Sequence[str] | None, damaged: list[int]
) -> list[JobRecord]:
    """Claim due jobs of the queues, best first, or exactly `ids`. `damaged` gets the numbers of damaged ones."""
    at = micros(to.now)
    if ids is None:
        db.execute(LINE_UP, (at, FRONT))
        queues = open_queues(db, queues)
    try:
        if ids is None:
            rows = _pick_from(db, queues, at, limit)
            jobs = [_claimed_whole(db, row[0], to) if row[-1] else claimed_plain(row, *to) for row in rows]
        else:
            rows = _pick_ids(db, ids, at, limit)
            jobs = [_claimed_whole(db, seq, to) for (seq,) in rows]
    except UNDECODABLE:
        return _one_by_one(db, to, queues, limit, ids, damaged)
    if rows:
        _claim(db, [row[0] for row in rows], to)
    return jobs


def _claim(db: Connection, numbers: list[int], to: ClaimTerms) -> None:
    terms = to.tokens, micros(to.expires_at), to.worker, micros(to.now)
    if (found := span(numbers)) is not None:
        db.execute(CLAIM_RANGE, (found[0], *terms, found[1]))
    else:
        db.execute(CLAIM, (_json.encode(numbers).decode(), *terms))


def _claimed_whole(db: Connection, seq: int, to: ClaimTerms) -> JobRecord:
    job = record(db.execute(ROW, (seq,)).get)
    return claimed(job, token_of(to.tokens, seq, job.id), to.now, to.expires_at, to.worker)


def _one_by_one(
    db: Connection, to: ClaimTerms, queues: Sequence[str], limit: int, ids: Sequence[str] | None, damaged: list[int]
) -> list[JobRecord]:
    """Claim each job on its own, and others in place of the damaged ones."""
    at, jobs, seen = micros(to.now), list[JobRecord](), -1
    damaged.clear()  # by an attempt that was rolled back
    while seen < len(damaged) < MOST_DAMAGED and len(jobs) < limit:  # another round only if it found damaged ones
        seen, left = len(damaged), limit - len(jobs)
        for (seq,) in _pick_from(db, queues, at, left, SEQS) if ids is None else _pick_ids(db, ids, at, left):
            try:
                job = _claimed_whole(db, seq, to)
            except UNDECODABLE as error:
                dead_letter(db, seq, at, error)
                damaged.append(seq)
            else:
                _claim(db, [seq], to)
                jobs.append(job)
    return jobs


def peek(db: Connection, queues: Sequence[str], now: datetime, limit: int) -> list[JobRecord] | None:
    """An empty list if no job can be claimed, None if reserve has to look: an idle worker takes no write lock."""
    at = micros(now)
    if limit <= 0:
        return []
    if db.execute(LAPSED, (at,)).get is not None:
        return None
    for queue in open_queues(db, queues):
        priority = db.execute(NEXT_PRIORITY, (queue, ABOVE_ALL)).get
        while priority is not None:
            if db.execute(PEEK, (at, queue, priority)).get is not None:
                return None
            priority = db.execute(NEXT_PRIORITY, (queue, priority)).get
    return []


def open_queues(db: Connection, queues: Sequence[str]) -> list[str]:
    """The queues that jobs are handed out from, without paused ones."""
    paused = {queue for (queue,) in db.execute(PAUSED)}
    return [queue for queue in in_line(queues) if queue not in paused]


def _pick_from(db: Connection, queues: Sequence[str], now: int, limit: int, pick: str = PICK) -> list[SqliteRow]:
    """The share of each queue, then more from full queues up to the limit."""
    rows: list[SqliteRow] = []
    full: list[tuple[str, int]] = []
    for queue, share in shares(queues, limit).items():
        found = _pick(db, queue, now, share, pick)
        rows += found
        if len(found) == share:
            full.append((queue, share))
    for queue, share in full:
        if len(rows) < limit:
            rows += _pick(db, queue, now, share + limit - len(rows), pick)[share:]
    return rows


def _pick(db: Connection, queue: str, now: int, limit: int, pick: str) -> list[SqliteRow]:
    rows: list[SqliteRow] = []
    priority = ABOVE_ALL
    while len(rows) < limit:
        priority = db.execute(NEXT_PRIORITY, (queue, priority)).get
        if priority is None:
            break
        rows += db.execute(pick, (now, queue, priority, limit - len(rows))).fetchall()
    return rows


def _pick_ids(db: Connection, ids: Sequence[str], now: int, limit: int) -> list[SqliteRow]:
    rows: list[SqliteRow] = []
    for id in dict.fromkeys(ids):
        if len(rows) >= limit:
            break
        rows += db.execute(PICK_ID, (now, id)).fetchall()
    return rows


def extend(
    db: Connection, reports: Sequence[Report], now: datetime, lease_for: timedelta
) -> list[Extended | LeaseError]:
    """Renew leases; a report that the fenced update did not touch gets the reason."""
    at, until = micros(now), micros(now + lease_for)
    return [_extend(db, report, now, at, until) for report in reports]


def _extend(db: Connection, report: Report, now: datetime, at: int, until: int) -> Extended | LeaseError:
    news = micros_or_none(report.started_at), json_or_none(report.progress)
    found: tuple[int, int, int] | None = db.execute(EXTEND, (report.id, report.token, at, until, *news)).get
    if found is None:
        return not_renewed(get_one(db, report.id), report, now)
    return Extended(moment(found[0]), bool(found[1]), bool(found[2]))
