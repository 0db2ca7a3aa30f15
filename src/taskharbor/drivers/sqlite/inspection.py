"""Looking at jobs: read-only, so nothing here takes the write lock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from apsw import Connection, SQLError

from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.reserved import in_line
from taskharbor.driver import Parent, QueueCounts
from taskharbor.drivers.shared.columns import STATES
from taskharbor.drivers.shared.queries import best_query
from taskharbor.drivers.sqlite.damage import UNDECODABLE, corrupt, damaged
from taskharbor.drivers.sqlite.enqueue import living_key
from taskharbor.drivers.sqlite.rows import Row, micros, micros_or_none, moment, moment_or_none, record
from taskharbor.drivers.sqlite.sql import load

GET, PARENTS = load("get"), load("parents")
QUERIES = {name: load(name) for name in ("query", "query_dead", "query_workflow")}
AFTER = load("query_after")
LINE, COUNTS, PAUSED = load("counts_line"), load("counts"), load("paused")
NEXT_DUE = load("next_due")

BEYOND_ALL = 2**63 - 1


def get_one(db: Connection, id: str) -> JobRecord | None:
    """The record of an id."""
    try:
        row = db.execute(GET, (id,)).get
        return None if row is None else record(row)
    except UNDECODABLE as error:
        raise damaged(id, error) from error


def get(db: Connection, ids: Sequence[str]) -> list[JobRecord | None]:
    """The records of these ids."""
    return [get_one(db, id) for id in ids]


def find_key(db: Connection, key: str, now: datetime) -> str | None:
    """The id that a living key stands for."""
    known = living_key(db, key, micros(now))
    return None if known is None else known[0]


def query(db: Connection, where: Filter, now: datetime, limit: int, after: str | None) -> list[JobRecord]:
    """Matching records, the newest first."""
    before = None if after is None else db.execute(AFTER, (after,)).get
    parameters = (
        micros(now),
        max(limit, 0),
        BEYOND_ALL if before is None else before,
        msgspec.json.encode(where.states).decode() if where.states else None,
        *conditions(where),
    )
    try:
        return [record(row) for row in db.execute(QUERIES[best_query(where)], parameters)]
    except (*UNDECODABLE, SQLError) as error:  # SQLite reads the JSON of tags itself
        raise corrupt(db, BEYOND_ALL if before is None else before - 1, error) from error


def conditions(where: Filter) -> Row:
    """What a filter says beside states, in the order of the statements."""
    return (
        glob(where.queue),
        glob(where.task),
        where.error,
        glob(where.reason),
        where.tag,
        where.workflow_id,
        micros_or_none(where.since),
        micros_or_none(where.until),
        where.fingerprint,
    )


def glob(pattern: str | None) -> str | None:
    """A pattern in which only `*` is special as SQLite's GLOB, where `?` and `[` are as well."""
    return None if pattern is None else pattern.replace("[", "[[]").replace("?", "[?]")


def counts(db: Connection, now: datetime) -> list[QueueCounts]:
    """How many jobs of each queue are in which shown state."""
    try:
        return _counts(db, now)
    except UNDECODABLE as error:
        raise corrupt(db, BEYOND_ALL, error) from error


def _counts(db: Connection, now: datetime) -> list[QueueCounts]:
    found: dict[str, dict[str, Any]] = {queue: {"paused": True} for (queue,) in db.execute(PAUSED)}
    for queue, lined, due, first in db.execute(LINE, (micros(now),)):
        fields = found.setdefault(queue, {})
        fields |= {"scheduled": lined - due, "ready": due, "oldest_due": moment(first) if due else None}
    for queue, shown, number, since in db.execute(COUNTS, (micros(now),)):
        fields = found.setdefault(queue, {})
        fields[shown] = fields.get(shown, 0) + number
        if since is not None:
            fields["oldest_due"] = min(fields.get("oldest_due") or moment(since), moment(since))
    return [QueueCounts(queue=queue, **found[queue]) for queue in sorted(found)]


def parents(db: Connection, ids: Sequence[str], most: int) -> list[list[Parent]]:
    """The dependencies of each job in order; no results of one that has more than `most` bytes of them."""
    return [
        [
            Parent(parent, policy, bool(satisfied), STATES[state], result, error, size)
            for parent, policy, satisfied, state, result, error, size in db.execute(PARENTS, (id, most))
        ]
        for id in ids
    ]


def next_due(db: Connection, queues: Sequence[str]) -> datetime | None:
    """When the next job of the queues is due, or its lease runs out. A time that no calendar has says nothing."""
    try:
        return moment_or_none(db.execute(NEXT_DUE, (msgspec.json.encode(in_line(queues)).decode(),)).get)
    except OverflowError:
        return None
