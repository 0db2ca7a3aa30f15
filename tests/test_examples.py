"""The examples run, as a reader would run them, and print what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from servers.postgres import PostgresServer

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def start(example: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """An example that was run to its end."""
    inherited = {name: value for name, value in os.environ.items() if name != "TASKHARBOR_URL"}
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / example)],
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run(example: str, folder: Path, **environment: str) -> str:
    """What an example prints."""
    done = start(example, folder, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_crawl_merges_what_it_found(tmp_path: Path) -> None:
    """K1, K3, K4: a group, and a last step that is told of the failures."""
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
