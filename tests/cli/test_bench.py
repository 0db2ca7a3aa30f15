"""`taskharbor bench`: what it answers and what it leaves behind. Never how fast."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import limits
from taskharbor.cli.bench import verdict
from taskharbor.cli.bench_run import Figures
from taskharbor.cli.bench_store import Ground

from .desk import PATIENCE, Desk, in_terminal, unpainted, until

TINY = ("--seconds", "0.2")


def process(desk: Desk, *words: str, **environment: str) -> subprocess.Popen[str]:
    """The command as a process."""
    inherited = {name: value for name, value in os.environ.items() if name != "TASKHARBOR_URL"}
    return subprocess.Popen(
        [sys.executable, "-m", "taskharbor", "bench", *words],
        cwd=desk.folder,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def run(desk: Desk, *words: str, **environment: str) -> tuple[int, str, str]:
    """Its exit code, stdout and stderr."""
    running = process(desk, *words, **environment)
    with limits.limited(running, "the end of a bench"):
        told, complained = running.communicate(timeout=PATIENCE)
    return running.returncode, told, complained


def measured(desk: Desk, *words: str, **environment: str) -> Any:
    """The JSON of a tiny run that goes well."""
    code, told, complained = run(desk, *words, *TINY, "--json", **environment)
    assert (code, complained) == (0, ""), complained
    return json.loads(told)


def left_behind(desk: Desk) -> set[str]:
    """The files in the folder beside the application."""
    return {entry.name for entry in desk.folder.iterdir()} - {"shop.py", "__pycache__"}


def test_it_measures_beside_the_store_and_leaves_no_trace(desk: Desk) -> None:
    """C: the user's jobs are not touched, and everything temporary is gone."""
    desk.enqueue("shop.welcome", "user_id=1")
    before = {name: (desk.folder / name).read_bytes() for name in left_behind(desk)}
    answer = measured(desk, desk.url)
    speeds = {"enqueue_per_second", "drain_per_second", "latency_ms", "fsync_ms", "commit_ms", "round_trip_ms"}
    assert set(answer) == {"engine", "synchronous", "seconds", "verdict", *speeds}
    assert (answer["engine"], answer["synchronous"]) == ("sqlite", "full")
    assert all(answer["enqueue_per_second"][name] > 0 for name in ("single", "concurrent", "bulk"))
    assert answer["drain_per_second"] > 0
    assert answer["fsync_ms"] > 0
    assert 0 < answer["latency_ms"]["p50"] <= answer["latency_ms"]["p99"]
    assert answer["latency_ms"]["two_processes"] is True
    assert len(answer["verdict"]) == 4
    assert {name: (desk.folder / name).read_bytes() for name in left_behind(desk)} == before


def test_a_store_that_does_not_exist_is_not_made(desk: Desk) -> None:
    """C: measuring makes no store."""
    measured(desk, "sqlite:///new.db?synchronous=normal")
    assert left_behind(desk) == set()


@pytest.mark.parametrize("how", ["variable", "project", "application", "option"])
def test_without_a_url_the_configured_store_is_meant(desk: Desk, how: str) -> None:
    """C, P: TASKHARBOR_URL, pyproject.toml, -A or --url."""
    if how == "variable":
        answer = measured(desk, TASKHARBOR_URL="memory://")
    elif how == "project":
        desk.pyproject(url="memory://")
        answer = measured(desk)
    elif how == "application":
        shop = desk.folder / "shop.py"
        shop.write_text(shop.read_text(encoding="utf-8").replace("sqlite:///jobs.db", "memory://"), encoding="utf-8")
        answer = measured(desk, "-A", "shop:harbor")
    else:
        answer = measured(desk, "--url", "memory://")
    assert (answer["engine"], answer["fsync_ms"], answer["latency_ms"]["two_processes"]) == ("memory", None, False)


def test_people_get_a_table_and_words(desk: Desk) -> None:
    """C: stages while it runs, numbers, and a verdict."""
    code, told, complained = run(desk, "memory://", *TINY)
    assert (code, complained) == (0, "")
    for text in ("measuring latency", "enqueue, one after another", "jobs/s", "What that means", "forgets everything"):
        assert text in told


def test_a_terminal_gets_a_bar(desk: Desk) -> None:
    """C: progress with the time left; then whole words within its columns."""
    code, text = in_terminal(desk.folder, 80, "bench", "memory://", "--seconds", "1")
    assert code == 0, text
    assert "measuring" in unpainted(text)
    assert "━" in text
    verdict = unpainted(text).partition("What that means")[2].splitlines()
    assert len(verdict) > 5
    assert max(map(len, verdict)) <= 80


@pytest.mark.parametrize(
    ("url", "code", "fix"),
    [
        ("nonsense", 2, "sqlite:///taskharbor.db"),
        ("sqlite://host/jobs.db", 2, "names a file"),
        ("sqlite:///", 2, "memory://"),
        ("sqlite:///nowhere/jobs.db", 2, "create it first"),
        ("sqlite:///jobs.db?synchronous=off", 2, "write full"),
        ("sqlite:///jobs.db?sails=3", 2, "no option"),
        ("oracle://host", 2, "sqlite:///jobs.db"),
        ("nats://127.0.0.1:1", 3, "127.0.0.1:1"),
        ("sqlite:///shop.py/jobs.db", 3, "name a file elsewhere"),
    ],
)
def test_errors_name_the_fix(desk: Desk, url: str, code: int, fix: str) -> None:
    """C, X5: one line, and nothing left behind."""
    assert fix in desk.bad(code, "bench", url, *TINY)
    assert left_behind(desk) == set()


def test_wrong_usage(desk: Desk) -> None:
    """C: exit 2."""
    assert "--seconds" in desk.bad(2, "bench", "--seconds", "0")
    desk.bad(2, "bench", "memory://", "extra")


@pytest.mark.parametrize("stage", ["enqueue, one after another", "latency"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_cleans_up(desk: Desk, stage: str, number: signal.Signals) -> None:
    """C: Ctrl-C or a kill in the midst of it: exit 1, no file and no process left."""
    seconds = "60" if stage.startswith("enqueue") else "4"
    running = process(desk, desk.url, "--seconds", seconds)
    assert running.stdout is not None
    with limits.limited(running, "a bench that stops"):
        for line in running.stdout:
            if f"measuring {stage}" in line:
                break
        (folder,) = left_behind(desk)
        assert folder.startswith(".taskharbor-bench-")
        if stage == "latency":
            until(lambda: bool(users_of(folder)))
        running.send_signal(number)
        _, complained = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert complained == "taskharbor: bench stopped; its throw-away store is removed\n"
    assert left_behind(desk) == set()
    until(lambda: not users_of(folder))


def users_of(folder: str) -> list[int]:
    """The processes that work in this folder."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and folder.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_the_second_process_ends_with_the_first(desk: Desk) -> None:
    """C: even after kill -9 no worker goes on; only the folder stays."""
    running = process(desk, desk.url, "--seconds", "8")
    assert running.stdout is not None
    with limits.limited(running, "a bench that measures latency"):
        for line in running.stdout:
            if "measuring latency" in line:
                break
        (folder,) = left_behind(desk)
        until(lambda: bool(users_of(folder)))
        running.kill()
        running.communicate(timeout=PATIENCE)
    until(lambda: not users_of(folder))


FIGURES = Figures(
    single=1000.0,
    concurrent=5000.0,
    bulk=50_000.0,
    drain=10_000.0,
    latency_p50=3.0,
    latency_p99=9.0,
    two_processes=True,
    fsync=0.8,
)
FULL = Ground("sqlite:///x.db", "sqlite", "full")
SERVER = Ground("postgresql://x/y", "postgresql", "on")
REDIS = Ground("redis://x", "redis")
POOLED = Ground("postgresql://x/y?pgbouncer=true", "postgresql", "on")


@pytest.mark.parametrize(
    ("ground", "changes", "said"),
    [
        (FULL, {}, "the disk is the limit"),
        (FULL, {}, "5.0 × as many at once, 50 × in bulk"),
        (FULL, {}, "10,000 jobs a second"),
        (FULL, {}, "survives a power cut"),
        (FULL, {"fsync": 0.1}, "the way to the store"),
        (FULL, {"fsync": 0.001}, "too good for a disk"),
        (FULL, {"latency_p50": 40.0}, "busy?"),
        (Ground("sqlite:///x.db", "sqlite", "normal"), {}, "a power cut may lose"),
        (Ground("memory://", "memory"), {"fsync": None}, "forgets everything"),
        (
            SERVER,
            {"fsync": None, "commit": 0.8},
            "the server's disk and the way there are the limit",
        ),
        (SERVER, {"fsync": None, "commit": 0.1}, "10% of it a commit: our statement is the rest"),
        (SERVER, {"fsync": None, "commit": 0.1, "latency_p50": 40.0}, "the server or the way there busy?"),
        (SERVER, {"fsync": None, "commit": 20.0, "latency_p50": 40.0}, "40.0 ms after the enqueue: good"),
        (POOLED, {"fsync": None, "commit": 0.1, "latency_p50": 4000.0}, "it polls"),
        (SERVER, {"fsync": None, "commit": 0.8}, "synchronous_commit=on: what was acknowledged survives"),
        (Ground("postgresql://x/y", "postgresql", "off"), {"commit": 0.1}, "a crash of the server loses"),
        (Ground("postgresql://x/y", "postgresql", "fsync=off"), {"commit": 0.1}, "fsync is off"),
        (
            REDIS,
            {"fsync": None, "round_trip": 0.8},
            "80% of it the way to the server: the way to the server is",
        ),
        (REDIS, {"fsync": None, "round_trip": 0.1}, "10% of it the way to the server: our script is the rest"),
        (REDIS, {"fsync": None, "round_trip": 0.1}, "appendfsync always: what was acknowledged survives"),
        (
            Ground("nats://x", "nats", may_lose=["a: loses b"]),
            {"fsync": None, "round_trip": 0.1},
            "storing its card and its page is the rest; 5.0 × as many at once",
        ),
        (Ground("redis://x", "redis", may_lose=["a: loses b"]), {"round_trip": 0.1}, "a: loses b."),
    ],
)
def test_the_verdict(ground: Ground, changes: dict[str, Any], said: str) -> None:
    """C: words for what limits, and what a power cut costs."""
    figures = Figures(**{**{name: getattr(FIGURES, name) for name in FIGURES.__struct_fields__}, **changes})
    assert said in " ".join(verdict(ground, figures))
