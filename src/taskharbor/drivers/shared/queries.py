"""Which statement answers a query, and what its rows add up to."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from taskharbor.core.filter import Filter
from taskharbor.core.states import Shown, State
from taskharbor.driver import WorkflowCounts
from taskharbor.drivers.shared.columns import STATES


def best_query(where: Filter) -> Literal["query", "query_dead", "query_workflow"]:
    """Return the name of the statement that reads the fewest rows."""
    if where.workflow_id is not None:
        return "query_workflow"
    died = where.reason is not None or where.fingerprint is not None  # only dead jobs have either
    return "query_dead" if set(where.states) == {Shown.DLQ} or (not where.states and died) else "query"


def workflow_counts(rows: Iterable[tuple[str, str, int, datetime]]) -> list[WorkflowCounts]:
    """Return the counts of workflows from rows of id, state, number of jobs and time of the first."""
    states: dict[str, dict[State, int]] = {}
    first: dict[str, datetime] = {}
    for id, state, number, created_at in rows:
        states.setdefault(id, {})[STATES[state]] = number
        first[id] = min(first.get(id, created_at), created_at)
    return [WorkflowCounts(id=id, created_at=first[id], states=states[id]) for id in states]
