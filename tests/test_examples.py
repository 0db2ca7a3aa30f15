"""The examples run, as a reader would run them, and print what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from logged import unexpected
from servers.postgres import PostgresServer
from taskharbor.manager import TaskManager

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def start(example: str, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """An example that was run to its end."""
    inherited = {name: value for name, value in os.environ.items() if name != "TASKHARBOR_URL"}
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / example), *arguments],
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run(example: str, folder: Path, *arguments: str, **environment: str) -> str:
    """The output of an example."""
    done = start(example, folder, *arguments, **environment)
    assert (done.returncode, unexpected(done.stderr)) == (0, "")
    return done.stdout


def test_a_crawl_merges_what_it_found(tmp_path: Path) -> None:
    """K1, K3, K4: a group, and a last step that receives the failures."""
    assert run("crawl.py", tmp_path) == (
        "{'/harbour': 1, '/tides': 1, '/': 1, '/cranes': 1, '/moon': 1, 'unreadable': 1}\n"
    )


def test_an_order_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """K4, Q1, Q3: a chain with a failing step, replayed."""
    assert run("orders.py", tmp_path) == (
        "the order is held\n"
        "  1 x orders.pick: taskharbor.errors.Unrecoverable: only 0 of anchor left\n"
        "after 1 replay it is done: 2 x anchor: 84.00 EUR\n"
    )


def test_a_report_for_every_night(tmp_path: Path) -> None:
    """N2, N5: two schedules of one task and a delay, by a worker that writes them down; a second start finds them."""
    for _ in range(2):
        monthly, nightly, poll, *changes, by_hand, paused, looked = run("nightly_report.py", tmp_path).splitlines()
        assert re.fullmatch(
            r"monthly: At 06:30 on the first day of every month, Europe/Berlin time, "
            r"next \d{4}-\d\d-01 06:30:00\+0[12]00",
            monthly,
        )
        assert nightly.startswith("nightly_report.nightly: At 03:00 every day, Europe/Berlin time, next ")
        assert poll.startswith("nightly_report.poll: 1 second after each run")
        assert {change.partition(": ")[2] for change in changes} == {
            "the clocks change, 03:00 in Berlin moves from 01:00 to 02:00 UTC",
            "the clocks change, 03:00 in Berlin moves from 02:00 to 01:00 UTC",
        }
        found = re.fullmatch(r"run by hand: sales from (\S+) to (\S+)", by_hand)
        assert found
        assert found[1] == found[2]
        assert paused == "monthly is paused: True, next None"
        assert looked == "the poller has looked again"


def test_a_driver_in_one_file_keeps_its_jobs(tmp_path: Path) -> None:
    """G2, D14: a worker runs a job on it, and another handle on the store finds the job."""
    for _ in range(2):
        assert run("toy_driver.py", tmp_path) == "the result is 42\nthe log says done\n"


def test_effects_happen_once(tmp_path: Path, postgres: PostgresServer) -> None:
    """D9, D13, G3: what a dead run wrote is gone, what a job's end was committed with is there once; every time."""
    database = postgres.new_database()
    for booked in (2000, 4000, 6000):
        printed = run("effects.py", tmp_path, TASKHARBOR_URL=postgres.url(database))
        assert printed == "2 deposits were tried again\n"
        assert postgres.execute("SELECT cents FROM account", database=database) == [(booked,)]


def test_effects_without_a_server_say_how_to_name_one(tmp_path: Path) -> None:
    """X5: one line, and no file is made."""
    done = start("effects.py", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "set TASKHARBOR_URL=postgresql://" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_agents_lose_nothing_when_one_is_killed(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """M1, M4, X1: every task is completed once, the one of the dead agent by another; one that is started
    again goes on with its own, or gets the error that it is too late."""
    server: PostgresServer | None = request.getfixturevalue("postgres") if engine == "postgres" else None
    printed = run("agents.py", tmp_path, *([] if server is None else [server.url(server.new_database())])).splitlines()
    (killed,) = [line for line in printed if line.startswith("Bob was killed with task ")]
    completed = dict(re.findall(r"has completed (task \d+), attempt (\d+)", "\n".join(printed)))
    assert len(completed) == 12
    in_hand = " ".join(killed.split()[4:6])
    just_done = f"Bob has completed {in_hand}," in "\n".join(printed)  # it finished before it was killed
    assert just_done or int(completed[in_hand]) > 1
    again = [line for line in printed if line.startswith(("Cleo goes on with task ", "Cleo cannot go on: Task"))]
    assert len(again) <= 1  # it may have been killed before it could write
    assert printed[-2].startswith("12 of 12 tasks completed: ")
    assert just_done or int(printed[-1].removeprefix("claimed again after a death: ")) >= 1
    assert list(tmp_path.iterdir()) == []


def test_agents_touch_no_tasks_but_their_own(tmp_path: Path) -> None:
    """M1: in a store that was there before, as it is left."""
    url = f"sqlite:///{tmp_path}/tasks.db"
    with TaskManager(url) as tasks:
        tasks.submit(b"somebody's", idempotency_key="task 1")
        before = tasks.list()
        assert "12 of 12 tasks completed" in run("agents.py", tmp_path, url)
        assert tasks.list() == before
