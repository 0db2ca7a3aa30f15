"""Reading jobs, counts, dead groups and workflows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.reserved import in_line
from taskharbor.core.states import Shown
from taskharbor.driver import DeadGroup, Parent, QueueCounts, WorkflowCounts
from taskharbor.drivers.postgres.db import Db, Row, value
from taskharbor.drivers.postgres.rows import record
from taskharbor.drivers.shared.columns import STATES, struct_of
from taskharbor.drivers.shared.queries import BEYOND_ALL, best_query, conditions, workflow_counts


async def get(db: Db, ids: Sequence[str]) -> list[JobRecord | None]:
    """The records of these ids."""
    found = {row[1]: record(row) for row in await db.rows("get", list(ids))}
    return [found.get(id) for id in ids]


async def find_key(db: Db, key: str, now: datetime) -> str | None:
    """The id of the job or workflow that owns a key that is taken."""
    found = await db.rows("key_living", [key], now)
    return found[0][1] if found else None


async def is_over(db: Db, id: str) -> bool:
    """Whether a job has ended or does not exist."""
    return not await db.rows("is_live", id)


async def query(db: Db, where: Filter, now: datetime, limit: int, after: str | None) -> list[JobRecord]:
    """Matching records, the newest first."""
    before = None if after is None else await value(db, "query_after", after)
    name, more = best_query(where, now, [state.value for state in where.states] or None)
    first = max(limit, 0), BEYOND_ALL if before is None else before
    return [record(row) for row in await db.rows(name, *first, *_conditions(where), *more)]


def _conditions(where: Filter) -> Row:
    return conditions(where, like, lambda time: time)


def like(pattern: str) -> str:
    """Convert a pattern in which only `*` is special to LIKE, where `%`, `_` and the backslash are special."""
    return pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")


async def counts(db: Db, now: datetime) -> list[QueueCounts]:
    """The number of jobs of each queue in each shown state."""
    found: dict[str, dict[str, Any]] = {row[0]: {"paused": True} for row in await db.rows("paused")}
    for queue, shown, number, first in await db.rows("counts", now):
        fields = found.setdefault(queue, {})
        fields[shown] = number
        if shown in (Shown.READY, Shown.LAPSED):
            fields["oldest_due"] = min(fields.get("oldest_due", first), first)
    return [QueueCounts(queue=queue, **found[queue]) for queue in sorted(found)]


async def parents(db: Db, ids: Sequence[str], most: int) -> list[list[Parent]]:
    """The dependencies of each job in order, without results if they exceed `most` bytes."""
    found: dict[str, list[Parent]] = {id: [] for id in ids}
    for child, parent, policy, satisfied, state, *rest in await db.rows("parents", list(found), most):
        found[child].append(Parent(parent, policy, satisfied, STATES[state], *rest))
    return [found[id] for id in ids]


async def next_due(db: Db, queues: Sequence[str]) -> datetime | None:
    """When the next job of the queues is due, or its lease runs out."""
    found: datetime | None = await value(db, "next_due", list(in_line(queues)))
    return found


async def workflows(db: Db, limit: int, after: str | None, ids: Sequence[str] | None) -> list[WorkflowCounts]:
    """The number of jobs of each workflow in each state (K5)."""
    rows = await db.rows("workflows", max(limit, 0), after, None if ids is None else list(ids))
    return workflow_counts((id, state, number, at) for id, state, number, at in rows)[: max(limit, 0)]


async def dead_groups(db: Db, where: Filter, limit: int) -> list[DeadGroup]:
    """Dead jobs by cause (Q1)."""
    if where.states and Shown.DLQ not in where.states:
        return []
    rows = await db.rows("dead_groups", max(limit, 0), where.workflow_id, *_conditions(where))
    return [struct_of(DeadGroup, row) for row in rows]
