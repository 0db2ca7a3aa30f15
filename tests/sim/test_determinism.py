"""The same seed gives the same trace, byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from limits import LIMIT
from taskharbor.testing.simulation import Faults, simulate
from taskharbor.testing.simulation.workload import everything


def traced(seed: int, driver: str, hash_seed: str) -> str:
    """The trace as another process prints it."""
    command = [sys.executable, "-m", "taskharbor.testing.simulation", "--seed", str(seed), "--driver", driver]
    told = subprocess.run(
        command,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT,
    )
    return told.stdout


@pytest.mark.parametrize(("seed", "driver"), [(3, "memory"), (4, "memory"), (5, "sqlite")])
def test_another_process_sees_the_same_trace(seed: int, driver: str) -> None:
    """One seed, one history, whatever the process and its hash seed."""
    first, second = traced(seed, driver, "1"), traced(seed, driver, "2")
    assert first == second
    assert simulate(everything, seed, driver=driver).trace() in first


def test_a_run_leaves_nothing_behind_for_the_next() -> None:
    """Two runs in one process are the same, with another one between."""
    before = simulate(everything, 7).trace()
    simulate(everything, 8)
    assert simulate(everything, 7).trace() == before


def test_seeds_and_faults_make_a_difference() -> None:
    """Another seed, or other faults, is another history."""
    assert simulate(everything, 1, faults=Faults()).trace() != simulate(everything, 2, faults=Faults()).trace()
    assert simulate(everything, 1, faults=Faults()).trace() != simulate(everything, 1, faults=Faults(kills=20)).trace()
