"""`python -m taskharbor.testing.simulation`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from limits import LIMIT
from servers.postgres import PostgresServer
from taskharbor.testing.simulation import SimulationFailed, explain, simulate
from taskharbor.testing.simulation.sweep import Regression

from .scenarios import notes

TESTS = Path(__file__).parent.parent


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it where the scenarios of these tests can be found."""
    return subprocess.run(
        [sys.executable, "-m", "taskharbor.testing.simulation", *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
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


def test_one_seed_is_reported_in_full() -> None:
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


def test_no_password_is_printed_or_kept(tmp_path: Path, postgres: PostgresServer) -> None:
    """X5: in the bar, with a failure, in its command, in the file that is kept; and how to try that again."""
    url = f"postgresql://postgres:hunter2@127.0.0.1:{postgres.port}/{postgres.new_database()}"
    asked = ("--seeds", "1", "--scenario", "sim.scenarios:careless", "--driver", url, "--keep", str(tmp_path))
    done = command(*asked)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"--driver {url.replace('hunter2', '***')}" in done.stdout
    [path] = tmp_path.iterdir()
    assert path.name == "careless-postgresql-0.json"
    again = command("--again", str(tmp_path))
    on = "sim.scenarios:careless seed 0 on"
    assert (again.returncode, again.stdout) == (
        1,
        f"{on} postgresql: not tried: name a server with --driver postgresql://…\n",
    )
    tried = command("--again", str(tmp_path), "--driver", url)
    assert (tried.returncode, tried.stdout) == (1, f"{on} {url.replace('hunter2', '***')}: fails again\n")
    shown = command("--seed", "0", "--scenario", "sim.scenarios:careless", "--driver", url)
    refused = command("--driver", url.replace("postgresql", "mysql"))
    wrong = command(url)
    assert (shown.returncode, refused.returncode, wrong.returncode) == (1, 2, 2)
    for each in (done, again, tried, shown, refused, wrong):
        assert "hunter2" not in each.stdout + each.stderr
    assert "hunter2" not in path.read_text(encoding="utf-8")


def test_a_result_has_no_password(postgres: PostgresServer) -> None:
    """X5: nor what it is made into; and a server may be named without a host."""
    place = f"host={postgres.folder}&port={postgres.port}&user=postgres&password=hunter2"
    result = simulate(notes, 1, driver=f"postgresql:///{postgres.new_database()}?{place}")
    assert "password=***" in result.replay
    for text in (repr(result), result.trace(), explain(result), str(SimulationFailed(result))):
        assert "hunter2" not in text


def test_a_scenario_in_which_nothing_runs_proves_nothing() -> None:
    """The sums say so."""
    done = command("--seeds", "1", "--scenario", "sim.scenarios:nothing")
    assert "no handler ever ran" in done.stdout
