"""Enqueue: groups all or none (D1), keys that resolve to their first job (I1), edges to parents (K).

Every function runs inside a write transaction, and a refusal leaves nothing behind, so none costs a rollback.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from apsw import SQLITE_CONSTRAINT_UNIQUE, Connection, ConstraintError

from taskharbor.core.dependency import is_met
from taskharbor.core.group import Enqueued, Group, GroupResult, exists, is_closed, refusal
from taskharbor.core.job import NewJob
from taskharbor.core.keys import group_digest
from taskharbor.drivers.shared.columns import STATES
from taskharbor.drivers.shared.groups import StoredKey, all_created, all_known, digest_of, known
from taskharbor.drivers.sqlite.rows import SqliteRow, micros, micros_or_none, new_row
from taskharbor.drivers.sqlite.sql import load
from taskharbor.errors import JobExists, UnknownDependency

INSERT_ONE, INSERT, LAST, UNDO = load("enqueue_one"), load("enqueue"), load("enqueue_last"), load("enqueue_undo")
ADD_EDGE = load("enqueue_edges")
STATE = load("states")
LIVING_KEY, PUT_KEY = load("key_living"), load("key_put")


def enqueue(db: Connection, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
    """Store each group all or none."""
    at = micros(now)
    if len(groups) > 1 and all(group.key is None and _is_plain(group.jobs) for group in groups):
        rows = [new_row(job, at) for group in groups for job in group.jobs]
        if _insert(db, rows):
            return [all_created(group.jobs) for group in groups]
    return [enqueue_group(db, group, at) for group in groups]


def plain(groups: Sequence[Group]) -> NewJob | None:
    """The only job of the groups, if one statement stores it."""
    if len(groups) != 1 or len(jobs := groups[0].jobs) != 1 or groups[0].key is not None:
        return None
    job = jobs[0]
    return job if job.idempotency_key is None and not job.depends_on else None


def enqueue_one(db: Connection, job: NewJob, now: int) -> list[GroupResult]:
    """Store a plain job, in a transaction or by itself. A conflict is an error of SQLite: a signal handler may store
    jobs on the same connection just before or after, so that the number of changes says nothing."""
    try:
        db.execute(INSERT_ONE, new_row(job, now))
    except ConstraintError as error:
        if getattr(error, "extendedresult", None) != SQLITE_CONSTRAINT_UNIQUE:  # the table refuses something else
            raise
        return [exists(job.id)]
    return [(Enqueued(job.id, True),)]


def enqueue_group(db: Connection, group: Group, now: int) -> GroupResult:
    """Store one group, or return why it is refused."""
    if group.key is None and len(group.jobs) == 1 and not group.jobs[0].depends_on:
        (job,) = group.jobs
        return enqueue_one(db, job, now)[0] if job.idempotency_key is None else _enqueue_keyed(db, job, now)
    if group.key is not None and (found := living_key(db, group.key, now)) is not None:
        return all_known(group.jobs, *found)
    if is_closed(group.jobs):
        if not _insert(db, [new_row(job, now, len(job.depends_on)) for job in group.jobs]):
            return _refusal(db, group, now) or JobExists("a group names the same id twice")
        db.executemany(ADD_EDGE, _new_edges(group.jobs))
        stored = all_created(group.jobs)
    else:
        if (refused := _refusal(db, group, now)) is not None:
            return refused
        stored = store(db, group.jobs, now)
    if group.key is not None and group.workflow_id is not None:
        expires_at = micros_or_none(group.key_expires_at)
        db.execute(PUT_KEY, (group.key, group.workflow_id, group_digest(group.jobs), expires_at))
    return stored


def _enqueue_keyed(db: Connection, job: NewJob, now: int) -> GroupResult:
    """Store a job by its key, with fewer statements than a group takes."""
    if (found := known_by_key(db, job, now)) is not None:
        return (known(job, found),)
    (result,) = enqueue_one(db, job, now)
    if isinstance(result, tuple):
        db.execute(PUT_KEY, (job.idempotency_key, job.id, digest_of(job), micros_or_none(job.key_expires_at)))
    return result


def _is_plain(jobs: Sequence[NewJob]) -> bool:
    return all(job.idempotency_key is None and not job.depends_on for job in jobs)


def _new_edges(jobs: Sequence[NewJob]) -> list[SqliteRow]:
    return [
        (job.id, place, edge.parent, edge.policy, False) for job in jobs for place, edge in enumerate(job.depends_on)
    ]


def _insert(db: Connection, rows: list[SqliteRow]) -> bool:
    """Insert all or none, without a read for each id: a taken one shows in the number of changes."""
    if len(rows) == 1:
        before = db.total_changes()
        db.execute(INSERT, rows[0])
        return db.total_changes() > before
    last = db.execute(LAST).get
    before = db.total_changes()
    db.executemany(INSERT, rows)
    if db.total_changes() - before == len(rows):
        return True
    db.execute(UNDO, (last,))
    return False


def _refusal(db: Connection, group: Group, now: int) -> JobExists | UnknownDependency | None:
    return refusal(group.jobs, lambda job: is_stored(db, job.id) and known_by_key(db, job, now) is None)


def store(db: Connection, jobs: Sequence[NewJob], now: int) -> tuple[Enqueued, ...]:
    """Store jobs whose ids are free; one whose key is taken resolves to the owner of the key."""
    ids = {job.id for job in jobs}
    taken: dict[str, StoredKey] = {}
    rows: list[SqliteRow] = []
    results: list[Enqueued] = []
    for job in jobs:
        key = job.idempotency_key
        if key is not None and (found := taken.get(key) or living_key(db, key, now)) is not None:
            results.append(known(job, found))
            continue
        if key is not None:
            taken[key] = job.id, digest_of(job)
            db.execute(PUT_KEY, (key, *taken[key], micros_or_none(job.key_expires_at)))
        rows.append(new_row(job, now, _connect(db, job, ids)))
        results.append(Enqueued(job.id, True))
    db.executemany(INSERT, rows)
    return tuple(results)


def _connect(db: Connection, job: NewJob, ids: set[str]) -> int:
    """Store the edges of a job and return how many are unmet. A parent stored in the same step has not ended."""
    unmet = 0
    for position, edge in enumerate(job.depends_on):
        state = None if edge.parent in ids else db.execute(STATE, (edge.parent,)).get
        met = is_met(edge.policy, None if state is None else STATES[state])
        db.execute(ADD_EDGE, (job.id, position, edge.parent, edge.policy, met))
        unmet += not met
    return unmet


def is_stored(db: Connection, id: str) -> bool:
    """Whether there is a job of this id."""
    return db.execute(STATE, (id,)).get is not None


def known_by_key(db: Connection, job: NewJob, now: int) -> StoredKey | None:
    """The owner and digest of a job's key, if it is taken."""
    return None if job.idempotency_key is None else living_key(db, job.idempotency_key, now)


def living_key(db: Connection, key: str, now: int) -> StoredKey | None:
    """The owner and digest of a key that is taken (I2)."""
    found: StoredKey | None = db.execute(LIVING_KEY, (key, now)).get
    return found
