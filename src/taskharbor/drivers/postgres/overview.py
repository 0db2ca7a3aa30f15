"""Many jobs at a glance: workflows by their states, dead jobs by what they died of."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.core.filter import Filter
from taskharbor.core.states import Shown
from taskharbor.driver import DeadGroup, WorkflowCounts
from taskharbor.drivers.postgres.db import Db
from taskharbor.drivers.postgres.inspection import conditions
from taskharbor.drivers.shared.queries import workflow_counts


async def workflows(db: Db, limit: int, after: str | None, ids: Sequence[str] | None) -> list[WorkflowCounts]:
    """How many jobs of workflows are in which state (K5)."""
    rows = await db.rows("workflows", max(limit, 0), after, None if ids is None else list(ids))
    return workflow_counts((id, state, number, at) for id, state, number, at in rows)[: max(limit, 0)]


async def dead_groups(db: Db, where: Filter, limit: int) -> list[DeadGroup]:
    """Dead jobs by what they died of (Q1)."""
    if where.states and Shown.DLQ not in where.states:
        return []
    rows = await db.rows("dead_groups", max(limit, 0), *conditions(where), where.workflow_id)
    return [
        DeadGroup(
            fingerprint=fingerprint,
            task=task,
            error=error,
            count=count,
            first_at=first_at,
            last_at=last_at,
            last_id=last_id,
        )
        for fingerprint, task, error, count, first_at, last_at, last_id in rows
    ]
