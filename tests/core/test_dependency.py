"""The effect of a parent's end on a waiting child."""

from __future__ import annotations

from itertools import product

import pytest

from taskharbor.core.dependency import Effect, Policy, effect
from taskharbor.core.job import Dependency
from taskharbor.core.states import TERMINAL, State

FAILED = (State.DLQ, State.CANCELLED)


@pytest.mark.parametrize("policy", Policy)
def test_a_done_parent_satisfies_every_policy(policy: Policy) -> None:
    """K2: the edge is satisfied by success."""
    assert effect(policy, State.DONE) is Effect.SATISFY


@pytest.mark.parametrize(("policy", "parent"), list(product(Policy, sorted(set(State) - TERMINAL))))
def test_an_unfinished_parent_is_waited_for(policy: Policy, parent: State) -> None:
    """K1: nothing happens to the child before the parent ends."""
    assert effect(policy, parent) is Effect.HOLD


@pytest.mark.parametrize(
    ("policy", "meaning"),
    [(Policy.HOLD, Effect.HOLD), (Policy.CANCEL, Effect.CANCEL), (Policy.COLLECT, Effect.SATISFY)],
)
@pytest.mark.parametrize("parent", FAILED)
def test_a_failed_parent_means_what_the_edge_says(policy: Policy, meaning: Effect, parent: State) -> None:
    """K4: hold waits for a replay, cancel ends the rest, collect runs with the failures; cancelled counts as failed."""
    assert effect(policy, parent) is meaning
    assert effect(str(policy), parent) is meaning


def test_the_default_policy_holds() -> None:
    """K4: dependants wait by default."""
    assert Dependency("parent").policy == Policy.HOLD
