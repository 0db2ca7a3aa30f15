"""Agents that claim tasks by id, in a world where everything goes wrong."""

from __future__ import annotations

import pytest

from taskharbor.testing.history import ClaimEntry, Final, Noted, Returned
from taskharbor.testing.simulation import Faults, Result, assert_holds

from . import scenarios


def finals(result: Result) -> list[str]:
    """How the tasks have ended."""
    [final] = [event for event in result.events if isinstance(event, Final)]
    return [job.state for job in final.jobs]


# A claim by a host that is an hour ahead outlives it by two, for one that is an hour behind.
PATIENCE = 4 * 3600.0


@pytest.mark.parametrize("seed", range(25))
def test_every_task_ends_and_nothing_is_lost(seed: int) -> None:
    """M1, M2, M4, X1, X2, X3: kills, lost requests and replies, outages and wrong clocks, as the seed has them."""
    states = finals(assert_holds(scenarios.agents, seed, limit=PATIENCE))
    assert len(states) == scenarios.TASKS
    assert set(states) <= {"done", "dlq"}


@pytest.mark.parametrize("seed", range(2))
def test_the_same_on_a_file(seed: int) -> None:
    """M1, M4, X1: on SQLite."""
    states = finals(assert_holds(scenarios.agents, seed, driver="sqlite", limit=PATIENCE))
    assert set(states) <= {"done", "dlq"}


def test_the_agents_do_die_in_the_middle() -> None:
    """M4, X1: or the runs above would show nothing: some tasks are claimed again because their holder was killed."""
    result = assert_holds(scenarios.agents, 1, faults=Faults(kills=10))
    assert sum(isinstance(event, Noted) and event.text == "killed" for event in result.events) >= 8
    versions = [
        item.version
        for event in result.events
        if isinstance(event, Returned)
        for item in event.answers
        if isinstance(item, ClaimEntry)
    ]
    assert max(versions) > 1
