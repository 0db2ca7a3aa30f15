"""Chooses the statement that answers a query, with its parameters, and adds up rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from taskharbor.core.filter import Filter
from taskharbor.core.states import Shown, State
from taskharbor.driver import WorkflowCounts
from taskharbor.drivers.shared.columns import STATES

# Greater than the number of any row.
BEYOND_ALL = 2**63 - 1
HELD = {Shown.CLAIMED, Shown.RUNNING}


def best_query(where: Filter, now: object, states: object) -> tuple[str, tuple[Any, ...]]:
    """Return the name of the statement that reads the fewest rows, and its parameters after the conditions."""
    if where.workflow_id is not None:
        return "query_workflow", (now, states, where.workflow_id)
    died = where.reason is not None or where.fingerprint is not None  # only dead jobs have either
    if set(where.states) == {Shown.DLQ} or (not where.states and died):
        return "query_dead", ()
    if where.states and HELD.issuperset(where.states):
        return "query_held", (now, states)
    return "query", (now, states)


def conditions(where: Filter, pattern: Callable[[str], str], time: Callable[[datetime], object]) -> tuple[Any, ...]:
    """Return what a filter wants beside states and workflow, in the order of the statements."""
    texts = (where.queue, where.task, where.reason, where.worker)
    queue, task, reason, worker = (None if it is None else pattern(it) for it in texts)
    since, until = (None if it is None else time(it) for it in (where.since, where.until))
    return queue, task, where.error, reason, where.tag, since, until, where.fingerprint, worker


def workflow_counts(rows: Iterable[tuple[str, str, int, datetime]]) -> list[WorkflowCounts]:
    """Return the counts of workflows from rows of id, state, number of jobs and time of the first."""
    states: dict[str, dict[State, int]] = {}
    first: dict[str, datetime] = {}
    for id, state, number, created_at in rows:
        states.setdefault(id, {})[STATES[state]] = number
        first[id] = min(first.get(id, created_at), created_at)
    return [WorkflowCounts(id=id, created_at=first[id], states=states[id]) for id in states]
