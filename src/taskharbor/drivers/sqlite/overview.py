"""Many jobs at a glance: workflows by their states, dead jobs by what they died of. Read-only, as `inspection`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from apsw import Connection, SQLError

from taskharbor.core.filter import Filter
from taskharbor.core.states import Shown
from taskharbor.driver import DeadGroup, WorkflowCounts
from taskharbor.drivers.shared.queries import workflow_counts
from taskharbor.drivers.sqlite.damage import UNDECODABLE, corrupt
from taskharbor.drivers.sqlite.inspection import BEYOND_ALL, conditions
from taskharbor.drivers.sqlite.rows import moment
from taskharbor.drivers.sqlite.sql import load

WORKFLOWS, DEAD_GROUPS = load("workflows"), load("dead_groups")


def workflows(db: Connection, limit: int, after: str | None, ids: Sequence[str] | None) -> list[WorkflowCounts]:
    """How many jobs of workflows are in which state (K5)."""
    asked = None if ids is None else msgspec.json.encode(ids).decode()
    try:
        rows = db.execute(WORKFLOWS, (max(limit, 0), after, asked))
        return workflow_counts((id, state, number, moment(at)) for id, state, number, at in rows)[: max(limit, 0)]
    except UNDECODABLE as error:
        raise corrupt(db, BEYOND_ALL, error) from error


def dead_groups(db: Connection, where: Filter, limit: int) -> list[DeadGroup]:
    """Dead jobs by what they died of (Q1)."""
    if where.states and Shown.DLQ not in where.states:
        return []
    try:
        return [_dead_group(*row) for row in db.execute(DEAD_GROUPS, (max(limit, 0), *conditions(where)))]
    except (*UNDECODABLE, SQLError) as error:  # SQLite reads the JSON of tags itself
        raise corrupt(db, BEYOND_ALL, error) from error


def _dead_group(
    fingerprint: str, task: str, error: str | None, count: int, first_at: int, last_at: int, last_id: str
) -> DeadGroup:
    return DeadGroup(
        fingerprint=fingerprint,
        task=task,
        error=error,
        count=count,
        first_at=moment(first_at),
        last_at=moment(last_at),
        last_id=last_id,
    )
