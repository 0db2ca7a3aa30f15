"""Enqueue: groups all or none (D1), keys that resolve to their first job (I1), edges to parents (K).

Jobs on their own are stored by one statement for all of them, large groups and their edges by COPY; other groups take
several statements in a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from enum import Enum
from itertools import groupby

import asyncpg

from taskharbor.core.dependency import is_met
from taskharbor.core.group import Enqueued, Group, GroupResult, exists, fresh, is_closed, refusal
from taskharbor.core.job import NewJob
from taskharbor.core.keys import group_digest
from taskharbor.drivers.postgres.db import Db, OwnDb, value
from taskharbor.drivers.postgres.failure import CROSSED
from taskharbor.drivers.postgres.psycopg_db import OwnPsycopgDb
from taskharbor.drivers.postgres.rows import NEW_COLUMNS, RARE, new_row
from taskharbor.drivers.shared.columns import STATES
from taskharbor.drivers.shared.groups import StoredKey, all_created, all_known, digest_of, known
from taskharbor.errors import DriverError, JobExists, UnknownDependency

COPY_FROM = 300
EDGE_COLUMNS = ("child", "position", "parent", "policy", "satisfied")
UNUSED = (None,) * RARE
TRIES = 5


async def enqueue(db: Db, groups: Sequence[Group], now: datetime, channel: str | None) -> list[GroupResult]:
    """Store each group all or none; `channel` is notified."""
    if len(groups) == 1 and _kind(groups[0]) is GroupKind.PLAIN:
        return [await _one(db, groups[0].jobs[0], now, channel)]
    results: dict[int, GroupResult] = {}
    for kind, run in groupby(enumerate(groups), key=lambda place_and_group: _kind(place_and_group[1])):
        if kind is GroupKind.GROUP:
            for index, group in run:
                results[index] = await _group_alone(db, group, now, channel)
        else:
            jobs = {index: group.jobs[0] for index, group in run}
            results |= await (_plain if kind is GroupKind.PLAIN else _keyed)(db, jobs, now, channel)
    return [results[index] for index in range(len(groups))]


class GroupKind(Enum):
    """The kind of a group, by which it is stored: a job on its own, one with a key, or anything else."""

    PLAIN = 1
    KEYED = 2
    GROUP = 3


def _kind(group: Group) -> GroupKind:
    if group.key is not None or len(group.jobs) != 1 or group.jobs[0].depends_on:
        return GroupKind.GROUP
    return GroupKind.PLAIN if group.jobs[0].idempotency_key is None else GroupKind.KEYED


def is_one_step(groups: Sequence[Group]) -> bool:
    """Whether nothing is stored before the last statement: only then can all be repeated after a conflict."""
    if len(groups) == 1:
        return True
    kinds = {_kind(group) for group in groups}
    return len(kinds) == 1 and GroupKind.GROUP not in kinds


async def _one(db: Db, job: NewJob, now: datetime, channel: str | None) -> GroupResult:
    row = new_row(job)
    if row.count(None) < RARE:
        return (await _plain(db, {0: job}, now, channel))[0]
    new = await db.rows("enqueue_one", *row[:-RARE], now, channel)
    return (Enqueued(job.id, True),) if new else exists(job.id)


async def _plain(db: Db, jobs: dict[int, NewJob], now: datetime, channel: str | None) -> dict[int, GroupResult]:
    results: dict[int, GroupResult] = {}
    stored = {row[0] for row in await db.rows("enqueue", *_columns(jobs.values()), now, channel)}
    for index, job in jobs.items():
        results[index] = (Enqueued(job.id, True),) if job.id in stored else exists(job.id)
        stored.discard(job.id)  # the same id twice is stored once
    return results


async def _keyed(db: Db, jobs: dict[int, NewJob], now: datetime, channel: str | None) -> dict[int, GroupResult]:
    """Store jobs by their keys; one whose key is taken resolves to the owner of the key."""
    results: dict[int, GroupResult] = {}
    for _ in range(TRIES):
        first: dict[str, int] = {}
        ids: set[str] = set()
        for index, job in jobs.items():
            if index not in results and job.idempotency_key not in first and job.id not in ids:
                first[job.idempotency_key or ""] = index
                ids.add(job.id)
        stored = await _store_keyed(db, [jobs[index] for index in first.values()], now, channel)
        for index in first.values():
            if jobs[index].id in stored:
                results[index] = (Enqueued(jobs[index].id, True),)
        left = {index: job for index, job in jobs.items() if index not in results}
        if left:
            results |= await _known(db, left, now)
        if len(results) == len(jobs):
            return results
    raise DriverError("idempotency keys change hands faster than they can be read")


async def _store_keyed(db: Db, jobs: Sequence[NewJob], now: datetime, channel: str | None) -> set[str]:
    """Store jobs and return their ids; none after a conflict. Jobs of an earlier round are stored for good, so the
    caller repeats the round, not the whole call."""
    is_alone = isinstance(db, OwnDb | OwnPsycopgDb) and db.is_alone
    try:
        async with nullcontext() if is_alone else db.transaction():
            digests = [digest_of(job) for job in jobs]
            return {row[0] for row in await db.rows("enqueue_keyed", *_columns(jobs), now, channel, digests)}
    except asyncpg.UniqueViolationError:  # another process stored one of the ids just now
        return set()
    except CROSSED:
        if not is_alone:
            raise
        return set()


async def _known(db: Db, jobs: dict[int, NewJob], now: datetime) -> dict[int, GroupResult]:
    """The owners of taken keys, or JobExists; a job whose key was freed meanwhile is left out, to be tried again."""
    owners = await living_keys(db, [job.idempotency_key or "" for job in jobs.values()], now)
    taken = {row[0] for row in await db.rows("states", [job.id for job in jobs.values()])}
    results: dict[int, GroupResult] = {}
    for index, job in jobs.items():
        if (found := owners.get(job.idempotency_key or "")) is not None:
            results[index] = (known(job, found),)
        elif job.id in taken:
            results[index] = exists(job.id)
    return results


async def _group_alone(db: Db, group: Group, now: datetime, channel: str | None) -> GroupResult:
    try:
        async with db.transaction():
            result = await enqueue_group(db, group, now, looks=False)
            if channel is not None and not isinstance(result, Exception):
                await db.rows("notify", channel)
            return result
    except asyncpg.UniqueViolationError:  # another process stored one of the ids just now
        return await _refusal(db, group, now) or JobExists("an id of the group exists")


async def enqueue_group(db: Db, group: Group, now: datetime, *, looks: bool = True) -> GroupResult:
    """Store one group inside a transaction, or return why it is refused; a refusal stores nothing.

    Without `looks`, an id that is taken raises an error of PostgreSQL, which ends the transaction.
    """
    if group.key is not None and (found := await _take_group_key(db, group, now)) is not None:
        return all_known(group.jobs, *found)
    if not looks and is_closed(group.jobs):
        if len({job.id for job in group.jobs}) < len(group.jobs):
            return await _refusal(db, group, now) or JobExists("a group names the same id twice")
        await _insert(db, group.jobs, now, await _connect(db, group.jobs))
        return all_created(group.jobs)
    refused = await _refusal(db, group, now)
    return refused if refused is not None else await store(db, group.jobs, now)


async def _take_group_key(db: Db, group: Group, now: datetime) -> StoredKey | None:
    """The owner and digest of the key of a group, or None once the group has taken it."""
    key = group.key or ""
    values = [key], [group.workflow_id], [group_digest(group.jobs)], [group.key_expires_at]
    for _ in range(TRIES):
        if (found := (await living_keys(db, [key], now)).get(key)) is not None:
            return found
        if group.workflow_id is None or await _refusal(db, group, now) is not None:
            return None
        if await db.rows("key_take", *values, now):
            return None
    raise DriverError("idempotency keys change hands faster than they can be read")


async def _refusal(db: Db, group: Group, now: datetime) -> JobExists | UnknownDependency | None:
    taken = {row[0] for row in await db.rows("states", [job.id for job in group.jobs])}
    owners = await living_keys(db, [job.idempotency_key for job in group.jobs if job.idempotency_key], now)
    return refusal(group.jobs, lambda job: job.id in taken and job.idempotency_key not in owners)


async def store(db: Db, jobs: Sequence[NewJob], now: datetime) -> tuple[Enqueued, ...]:
    """Store jobs whose ids are free; one whose key is taken resolves to the owner of the key."""
    results: dict[str, Enqueued] = {}
    taken, owners = await _take_keys(db, jobs, now)
    new: list[NewJob] = []
    for job in jobs:
        key = job.idempotency_key or ""
        if key not in owners or (key in taken and owners[key][0] == job.id):
            new.append(job)
            results[job.id] = Enqueued(job.id, True)
        else:
            results[job.id] = known(job, owners[key])
    if new:
        await _insert(db, new, now, await _connect(db, new))
    return tuple(results[job.id] for job in jobs)


async def add(db: Db, jobs: Sequence[NewJob], now: datetime) -> None:
    """Store jobs inside a transaction, without those whose key or id is taken (D9), even if it was just now."""
    if all(job.idempotency_key is None and not job.depends_on for job in jobs):
        if asked := fresh(jobs, lambda _: False):  # the statement leaves known ids out
            await db.rows("enqueue", *_columns(asked), now, None)
        return
    for _ in range(TRIES):
        with suppress(asyncpg.UniqueViolationError):  # another process stored one of the ids just now
            async with db.transaction():
                await store(db, await _fresh(db, jobs, now), now)
                return
    raise DriverError("ids are taken faster than they can be read")


async def _fresh(db: Db, jobs: Sequence[NewJob], now: datetime) -> list[NewJob]:
    """The jobs whose ids and keys are free."""
    taken = {row[0] for row in await db.rows("states", [job.id for job in jobs])}
    owners = await living_keys(db, [job.idempotency_key for job in jobs if job.idempotency_key], now)
    return fresh(jobs, lambda job: job.id in taken or job.idempotency_key in owners)


async def _take_keys(db: Db, jobs: Sequence[NewJob], now: datetime) -> tuple[set[str], dict[str, StoredKey]]:
    """Take the free keys of these jobs; return those taken, and the owner and digest of each key."""
    first: dict[str, NewJob] = {}
    for job in jobs:
        if job.idempotency_key is not None:
            first.setdefault(job.idempotency_key, job)
    if not first:
        return set(), {}
    taken: set[str] = set()
    for _ in range(TRIES):
        asked = [job for key, job in first.items() if key not in taken]
        values = [job.id for job in asked], [digest_of(job) for job in asked], [job.key_expires_at for job in asked]
        taken |= {row[0] for row in await db.rows("key_take", [job.idempotency_key for job in asked], *values, now)}
        owners = await living_keys(db, [key for key in first if key not in taken], now)
        owners |= {key: (first[key].id, digest_of(first[key])) for key in taken}
        if len(owners) == len(first):
            return taken, owners
    raise DriverError("idempotency keys change hands faster than they can be read")


async def _connect(db: Db, jobs: Sequence[NewJob]) -> list[int]:
    """Store the edges of jobs and return how many of each are unmet. A parent stored in the same step has not ended."""
    ids = {job.id for job in jobs}
    outside = {edge.parent for job in jobs for edge in job.depends_on} - ids
    if outside:  # locked from here on, so that their ends see the new edges; twice, in case one was just put back
        for name in ("enqueue_awaited", "hold_ended", "enqueue_awaited"):
            await db.rows(name, list(outside))
    states = {row[0]: STATES[row[1]] for row in await db.rows("states", list(outside))} if outside else {}
    edges: list[tuple[str, int, str, str, bool]] = []
    unmet: list[int] = []
    for job in jobs:
        own = [
            (job.id, index, edge.parent, edge.policy, is_met(edge.policy, states.get(edge.parent)))
            for index, edge in enumerate(job.depends_on)
        ]
        unmet.append(sum(not edge[-1] for edge in own))
        edges += own
    if len(edges) >= COPY_FROM and isinstance(db, OwnDb):
        await db.copy("edge", EDGE_COLUMNS, edges)
    elif edges:
        await db.rows("enqueue_edges", *map(list, zip(*edges, strict=True)))
    return unmet


async def _insert(db: Db, jobs: Sequence[NewJob], now: datetime, unmet: list[int]) -> None:
    if len(jobs) >= COPY_FROM and isinstance(db, OwnDb):
        await _copy(db, jobs, now, unmet)
    else:
        await db.rows("enqueue_group", *_columns(jobs), now, unmet, any(unmet))


async def _copy(db: OwnDb, jobs: Sequence[NewJob], now: datetime, unmet: list[int]) -> None:
    before: int = await value(db, "enqueue_number")
    rows = list(map(new_row, jobs))
    used = slice(None, -RARE if all(row[-RARE:] == UNUSED for row in rows) else None)
    # Rows are built while the server reads the ones before them.
    await db.copy("job", ("created_at", *NEW_COLUMNS[used]), ((now, *row[used]) for row in rows))
    waiting = {job.id: number for job, number in zip(jobs, unmet, strict=True) if number}
    await db.rows("enqueue_line", before, jobs[0].id, bool(waiting))
    if waiting:
        await db.rows("enqueue_waiting", list(waiting), list(waiting.values()))


def _columns(jobs: Iterable[NewJob]) -> list[list[object]]:
    """The values of NEW_COLUMNS; an empty list for a column that no job uses."""
    columns = zip(*map(new_row, jobs), strict=True)
    return [[] if column[0] is None and column.count(None) == len(column) else list(column) for column in columns]


async def living_keys(db: Db, keys: Sequence[str], now: datetime) -> dict[str, StoredKey]:
    """The owners and digests of the keys that are taken (I2)."""
    if not keys:
        return {}
    return {row[0]: (row[1], row[2]) for row in await db.rows("key_living", list(keys), now)}
