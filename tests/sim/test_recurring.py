"""Recurring tasks in the simulation: kills, outages, lost replies, wrong clocks, and not one slot twice (N3, H10)."""

from __future__ import annotations

from itertools import chain

import pytest

from taskharbor.testing.history import Called, SwapEntry
from taskharbor.testing.simulation import Faults, assert_holds, simulate
from taskharbor.testing.simulation.recurring_workload import KINDS
from taskharbor.testing.simulation.workload import everything

from . import clockwork

FOUL = {"kills": 20.0, "outages": 40.0, "lost_replies": 0.05, "lost_requests": 0.05, "pauses": 60.0, "deploys": 60.0}


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_no_slot_twice_and_none_missing(first: int) -> None:
    """N2, N3, N4, X1, X2, X3, X4, H10: with faults of every kind, then calm."""
    for seed in range(first, first + 4):
        assert_holds(clockwork.recurring, seed)


@pytest.mark.parametrize("clocks", ["one", "jumping", "engine", "skewed"])
def test_whichever_process_is_killed_and_whatever_clocks_say(clocks: str) -> None:
    """N3, X1, X4, H10: foul weather by every kind of clock."""
    assert_holds(clockwork.recurring, 1, faults=Faults(clocks=clocks, **FOUL))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(2))
def test_sqlite_keeps_it_too(seed: int) -> None:
    """N3, H10: the same on a real store."""
    assert_holds(clockwork.recurring, seed, driver="sqlite")


def test_recurring_tasks_of_every_kind_are_part_of_the_standard_scenario() -> None:
    """N2-N5: each of them ticks before long, and one that an operator has made."""
    ticked: set[str] = set()
    for seed in (0, 1, 2, 6, 8, 21, *range(100, 140)):  # the first will do, unless the workload has changed
        called = (event.items for event in simulate(everything, seed).events if isinstance(event, Called))
        swaps = [item for item in chain.from_iterable(called) if isinstance(item, SwapEntry)]
        ticked |= {swap.id for swap in swaps if swap.slot is not None and swap.job is not None}
        if ticked >= set(KINDS) and any(name.startswith("made") for name in ticked):
            return
    raise AssertionError(f"only these have ticked: {ticked}")
