"""The time report adds up what all test processes measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from limits import LIMIT
from time_report import OPERATIONS, TimeReport

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 25


def phase(nodeid: str, when: str, wall: float, cpu: float, *fixtures: tuple[str, float, float]) -> SimpleNamespace:
    spent: dict[str, Any] = {"spent": (wall, cpu), "fixtures": list(fixtures), "user_properties": [(OPERATIONS, 2000)]}
    return SimpleNamespace(nodeid=nodeid, when=when, **spent)


def test_files_come_in_order_of_their_wall_time() -> None:
    """Setup, call and teardown of all tests of a file are added; a fixture is counted each time it is made."""
    report = TimeReport()
    report.pytest_runtest_logreport(phase("tests/a.py::one", "setup", 2, 0.5, ("server (session)", 1.5, 0.25)))
    report.pytest_runtest_logreport(phase("tests/a.py::one", "call", 1, 1))
    report.pytest_runtest_logreport(phase("tests/b.py::two", "call", 9, 4))
    report.pytest_runtest_logreport(SimpleNamespace(nodeid="tests/b.py::died", when="???"))
    totals, files = "\n".join(report.lines()).split("slowest files, and their tests:\n")
    assert "4,000 driver operations" in totals
    assert [line.split() for line in files.splitlines()] == [
        ["9.0", "4.0", "5.0", "b.py", "1"],
        ["3.0", "1.5", "1.5", "a.py", "1"],
        ["slowest", "tests:"],
        ["9.0", "4.0", "5.0", "b.py::two"],
        ["3.0", "1.5", "1.5", "a.py::one"],
        ["slowest", "fixtures,", "and", "how", "often", "they", "were", "made:"],
        ["1.5", "0.2", "1.2", "server", "(session)", "1"],
    ]


def test_a_parallel_run_is_reported_as_a_whole() -> None:
    options = ["-q", "-p", "no:cacheprovider", "-n", "2", "--time-report"]
    command = [sys.executable, "-m", "pytest", *options, "tests/core/test_job.py", "tests/core/test_names.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=LIMIT)
    report = done.stdout.partition("where the time went")[2].splitlines()
    assert len(report) <= MOST_LINES
    assert {"core/test_job.py", "core/test_names.py"} <= {word for line in report for word in line.split()}
