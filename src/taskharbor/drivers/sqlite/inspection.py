"""Reading jobs, counts, dead groups and workflows: nothing here takes the write lock."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec
from apsw import Connection, SQLError

from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.reserved import in_line
from taskharbor.core.states import Shown
from taskharbor.driver import DeadGroup, Parent, QueueCounts, WorkflowCounts
from taskharbor.drivers.shared.columns import STATES, struct_of
from taskharbor.drivers.shared.queries import BEYOND_ALL, best_query, conditions, workflow_counts
from taskharbor.drivers.sqlite.damage import UNDECODABLE, corrupt, damaged
from taskharbor.drivers.sqlite.enqueue import living_key
from taskharbor.drivers.sqlite.rows import SqliteRow, micros, moment, moment_or_none, record
from taskharbor.drivers.sqlite.sql import load

GET, PARENTS = load("get"), load("parents")
QUERIES = {name: load(name) for name in ("query", "query_dead", "query_held", "query_workflow")}
AFTER = load("query_after")
LINE, COUNTS, PAUSED = load("counts_line"), load("counts"), load("paused")
NEXT_DUE = load("next_due")
WORKFLOWS, DEAD_GROUPS = load("workflows"), load("dead_groups")


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
    """The id of the job or workflow that owns a key that is taken."""
    known = living_key(db, key, micros(now))
    return None if known is None else known[0]


def query(db: Connection, where: Filter, now: datetime, limit: int, after: str | None) -> list[JobRecord]:
    """Matching records, the newest first."""
    found = None if after is None else db.execute(AFTER, (after,)).get
    before = BEYOND_ALL if found is None else found
    states = msgspec.json.encode(where.states).decode() if where.states else None
    name, more = best_query(where, micros(now), states)
    with _naming_damage(db, before - 1):
        rows = db.execute(QUERIES[name], (max(limit, 0), before, *_conditions(where), *more))
        return [record(row) for row in rows]


@contextmanager
def _naming_damage(db: Connection, last: int = BEYOND_ALL) -> Generator[None]:
    """Raise an error that names the damaged job that a statement has met, among those up to a number."""
    try:
        yield
    except (*UNDECODABLE, SQLError) as error:  # SQLite reads the JSON of tags itself
        raise corrupt(db, last, error) from error


def _conditions(where: Filter) -> SqliteRow:
    return conditions(where, glob, micros)


def glob(pattern: str) -> str:
    """Escape a pattern in which only `*` is special for GLOB, where `?` and `[` are special too."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


def counts(db: Connection, now: datetime) -> list[QueueCounts]:
    """The number of jobs of each queue in each shown state."""
    with _naming_damage(db):
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
    """The dependencies of each job in order, without results if they exceed `most` bytes."""
    return [
        [
            Parent(parent, policy, bool(satisfied), STATES[state], result, error, size)
            for parent, policy, satisfied, state, result, error, size in db.execute(PARENTS, (id, most))
        ]
        for id in ids
    ]


def next_due(db: Connection, queues: Sequence[str]) -> datetime | None:
    """When the next job of the queues is due, or its lease runs out; None if that time is out of range."""
    try:
        return moment_or_none(db.execute(NEXT_DUE, (msgspec.json.encode(in_line(queues)).decode(),)).get)
    except OverflowError:
        return None


def workflows(db: Connection, limit: int, after: str | None, ids: Sequence[str] | None) -> list[WorkflowCounts]:
    """The number of jobs of each workflow in each state (K5)."""
    asked = None if ids is None else msgspec.json.encode(ids).decode()
    with _naming_damage(db):
        rows = db.execute(WORKFLOWS, (max(limit, 0), after, asked))
        return workflow_counts((id, state, number, moment(at)) for id, state, number, at in rows)[: max(limit, 0)]


def dead_groups(db: Connection, where: Filter, limit: int) -> list[DeadGroup]:
    """Dead jobs by cause (Q1)."""
    if where.states and Shown.DLQ not in where.states:
        return []
    with _naming_damage(db):
        rows = db.execute(DEAD_GROUPS, (max(limit, 0), where.workflow_id, *_conditions(where)))
        return [struct_of(DeadGroup, (*row[:4], *map(moment, row[4:6]), row[6])) for row in rows]
