"""Many jobs at a glance: workflows by their states, dead jobs by what they died of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from taskharbor.core.filter import Filter
from taskharbor.core.states import Shown, State
from taskharbor.driver import DeadGroup, WorkflowCounts
from taskharbor.drivers.postgres.db import Db, Row
from taskharbor.drivers.postgres.inspection import conditions
from taskharbor.drivers.postgres.rows import STATES


async def workflows(db: Db, limit: int, after: str | None, ids: Sequence[str] | None) -> list[WorkflowCounts]:
    """How many jobs of workflows are in which state (K5)."""
    rows = await db.rows("workflows", max(limit, 0), after, None if ids is None else list(ids))
    return _by_workflow(rows)[: max(limit, 0)]


def _by_workflow(rows: Iterable[Row]) -> list[WorkflowCounts]:
    states: dict[str, dict[State, int]] = {}
    first: dict[str, datetime] = {}
    for id, state, number, created_at in rows:
        states.setdefault(id, {})[STATES[state]] = number
        first[id] = min(first.get(id, created_at), created_at)
    return [WorkflowCounts(id=id, created_at=first[id], states=states[id]) for id in states]


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
