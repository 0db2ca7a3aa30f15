"""`python -m taskharbor.testing.simulation`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from taskharbor.testing.simulation.sweep import Regression

TESTS = Path(__file__).parent.parent


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it where the scenarios of these tests can be found."""
    return subprocess.run(
        [sys.executable, "-m", "taskharbor.testing.simulation", *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_sweep_says_what_it_did() -> None:
    """A bar while it runs, the sums at the end."""
    done = command("--seeds", "2:5", "--scenario", "sim.scenarios:notes", "--processes", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3/3" in done.stdout
    assert "3 seeds" in done.stdout
    assert "all promises held" in done.stdout


def test_a_failing_seed_is_shown_and_kept(tmp_path: Path) -> None:
    """Its trace, its command, and a regression file."""
    done = command("--seeds", "1", "--scenario", "sim.scenarios:forgetful", "--keep", str(tmp_path / "kept"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "H1" in done.stdout
    assert "replay: python -m taskharbor.testing.simulation --scenario sim.scenarios:forgetful --seed 0" in done.stdout
    [path] = (tmp_path / "kept").iterdir()
    kept = msgspec.json.decode(path.read_bytes(), type=Regression)
    assert (kept.scenario, kept.seed, kept.driver) == ("sim.scenarios:forgetful", 0, "memory")
    assert "H1" in kept.violated


def test_one_seed_is_told_in_full() -> None:
    """Every event, then the verdict."""
    done = command("--seed", "1", "--scenario", "sim.scenarios:notes")
    assert done.returncode == 0, done.stderr
    assert "client#" in done.stdout
    assert "is done, v1" in done.stdout
    assert "fine" in done.stdout


def test_wrong_usage_says_what_is_right() -> None:
    """Exit code 2, and the form of a scenario's name."""
    for arguments in (
        ["--scenario", "nowhere:at_all"],
        ["--scenario", "sim.scenarios:missing"],
        ["--scenario", "sim.scenarios:harbor"],
        ["--driver", "mysql://x"],
        ["--seeds", "0"],
    ):
        done = command(*arguments)
        assert done.returncode == 2, arguments
        assert "package.module:function" in done.stderr or "names no seed" in done.stderr


def test_what_was_kept_is_tried_again(tmp_path: Path) -> None:
    """A regression file names everything that it takes to run it."""
    command("--seeds", "1", "--scenario", "sim.scenarios:forgetful", "--keep", str(tmp_path))
    done = command("--again", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "sim.scenarios:forgetful seed 0 on memory: fails again\n")


def test_a_scenario_in_which_nothing_runs_is_no_proof() -> None:
    """The sums say so."""
    done = command("--seeds", "1", "--scenario", "sim.scenarios:nothing")
    assert "no handler ever ran" in done.stdout
