"""Looking at jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.reserved import in_line
from taskharbor.core.states import Shown
from taskharbor.driver import Parent, QueueCounts
from taskharbor.drivers.postgres.db import Db, Row, value
from taskharbor.drivers.postgres.rows import record
from taskharbor.drivers.shared.columns import STATES
from taskharbor.drivers.shared.queries import best_query

BEYOND_ALL = 2**63 - 1


async def get(db: Db, ids: Sequence[str]) -> list[JobRecord | None]:
    """The records of these ids."""
    found = {row[1]: record(row) for row in await db.rows("get", list(ids))}
    return [found.get(id) for id in ids]


async def find_key(db: Db, key: str, now: datetime) -> str | None:
    """The id that a living key stands for."""
    found = await db.rows("key_living", [key], now)
    return found[0][1] if found else None


async def is_over(db: Db, id: str) -> bool:
    """Whether nothing more will become of a job."""
    return not await db.rows("is_live", id)


async def query(db: Db, where: Filter, now: datetime, limit: int, after: str | None) -> list[JobRecord]:
    """Matching records, the newest first."""
    before = None if after is None else await value(db, "query_after", after)
    name = best_query(where)
    rows = await db.rows(
        name,
        max(limit, 0),
        BEYOND_ALL if before is None else before,
        *conditions(where),
        *_more(name, where, now),
    )
    return [record(row) for row in rows]


def conditions(where: Filter) -> Row:
    """What a filter says beside states and workflows, in the order of the statements."""
    return (
        like(where.queue),
        like(where.task),
        where.error,
        like(where.reason),
        where.tag,
        where.since,
        where.until,
        where.fingerprint,
    )


def _more(name: str, where: Filter, now: datetime) -> Row:
    """The parameters of a query beside the conditions."""
    states = [state.value for state in where.states] or None
    more = {"query": (now, states), "query_dead": (), "query_workflow": (now, states, where.workflow_id)}
    return more[name]


def like(pattern: str | None) -> str | None:
    """A pattern in which only `*` is special as LIKE's, where `%`, `_` and the backslash are."""
    if pattern is None:
        return None
    return pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")


async def counts(db: Db, now: datetime) -> list[QueueCounts]:
    """How many jobs of each queue are in which shown state."""
    found: dict[str, dict[str, Any]] = {row[0]: {"paused": True} for row in await db.rows("paused")}
    for queue, shown, number, first in await db.rows("counts", now):
        fields = found.setdefault(queue, {})
        fields[shown] = number
        if shown in (Shown.READY, Shown.LAPSED):
            fields["oldest_due"] = min(fields.get("oldest_due", first), first)
    return [QueueCounts(queue=queue, **found[queue]) for queue in sorted(found)]


async def parents(db: Db, ids: Sequence[str], most: int) -> list[list[Parent]]:
    """The dependencies of each job in order; no results of one that has more than `most` bytes of them."""
    found: dict[str, list[Parent]] = {id: [] for id in ids}
    for child, parent, policy, satisfied, state, *rest in await db.rows("parents", list(found), most):
        found[child].append(Parent(parent, policy, satisfied, STATES[state], *rest))
    return [found[id] for id in ids]


async def next_due(db: Db, queues: Sequence[str]) -> datetime | None:
    """When the next job of the queues is due, or its lease runs out."""
    found: datetime | None = await value(db, "next_due", list(in_line(queues)))
    return found
