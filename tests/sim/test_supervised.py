"""Simulations with a supervisor, which gives up the leases of workers that died, under every fault (L9)."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from taskharbor.testing.history import Called, SettleEntry
from taskharbor.testing.simulation import Faults, assert_holds
from taskharbor.testing.simulation.faults import drawn
from taskharbor.testing.simulation.workload import everything

from . import scenarios

SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_holds_while_leases_of_the_dead_are_given_up(seed: int) -> None:
    """L9, H1-H12: with lost requests and replies, outages, pauses and clocks that are wrong."""
    weather = drawn(Random(f"{seed} faults"))
    result = assert_holds(everything, seed, faults=replace(weather, supervised=True, kills=weather.kills or 20.0))
    assert any(event.who.startswith("supervisor") for event in result.events if isinstance(event, Called))


def test_jobs_of_the_dead_do_not_wait_for_their_lease() -> None:
    """L9: with leases of an hour, everything is done within minutes, and each crash is counted."""
    faults = Faults(kills=4, downtime=0.1, supervised=True)
    result = assert_holds(scenarios.long_leases, 1, faults=faults, limit=600)
    given_up = [
        item
        for event in result.events
        if isinstance(event, Called) and event.who.startswith("supervisor")
        for item in event.items
        if isinstance(item, SettleEntry)
    ]
    assert given_up
    assert {(item.to, item.attempts, item.crashes > 0) for item in given_up} == {("put_back", 0, True)}
