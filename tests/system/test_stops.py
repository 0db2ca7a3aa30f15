"""Stops by signal, under load and as the first process of a container (X6)."""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from .crew import Crew, Member, until

LONG = 60.0
WAYS = ["hold", "hold_sync", "stubborn", "stubborn_sync"]
# What is PID 1 to a process has nothing to do with its store.
on_one_engine = pytest.mark.parametrize("engine", ["sqlite"])


def test_deploys_under_load_count_nothing(crew: Crew) -> None:
    """X6, F6, H6: workers are stopped gracefully and replaced, and no job loses an attempt or is run twice."""
    workers = [crew.worker(lease=LONG), crew.worker(lease=LONG)]
    everybody = list(workers)
    client = crew.client([("nap", {"seconds": 0.1}, {}), ("quick_sync", {"number": 1}, {})], rounds=None, pause=0.05)
    client.go()
    for _ in range(3):
        until(lambda: len(crew.began_by(workers[0])) >= 5, f"{workers[0].name} has some work")
        workers.append(crew.worker(lease=LONG))
        everybody.append(workers[-1])
        workers[0].signal(signal.SIGTERM)
        assert workers.pop(0).ends() == 0
    client.enough()
    crew.drained()
    jobs = crew.judge()
    assert {(job.state, job.attempts, job.crashes) for job in jobs} == {("done", 0, 0)}
    # What was claimed while the signal came is given back unrun, and has a second version.
    assert sum(len(crew.began_by(worker)) for worker in everybody) == len(jobs)


@pytest.mark.parametrize(
    ("engine", "task"),
    [
        *(("sqlite", way) for way in WAYS),
        ("postgres", "hold"),
        ("postgres", "stubborn_sync"),
        ("redis", "hold"),
        ("nats", "hold"),
    ],
)
def test_what_does_not_finish_in_time_is_given_back(crew: Crew, task: str) -> None:
    """X6: at the end of the grace time the rest is cancelled and released, long before its lease would run out."""
    old = crew.worker(lease=LONG, grace=0.5)
    stuck = crew.enqueue(task, {"gate": "gate"})
    soon = crew.enqueue("nap", {"seconds": 0.2})
    crew.runs(stuck)
    crew.runs(soon)
    old.signal(signal.SIGTERM)
    assert old.ends() == 0

    released = crew.job(stuck)
    assert (released.state, released.version, released.attempts, released.crashes) == ("ready", 1, 0, 0)
    assert crew.job(soon).state == "done"
    crew.open_gate("gate")
    crew.worker(lease=LONG)
    ended = crew.ended(stuck)
    assert (ended.state, ended.version, ended.attempts, ended.crashes) == ("done", 2, 0, 0)
    crew.judge()


def test_a_second_signal_stops_at_once(crew: Crew) -> None:
    """X6: with a grace time of a minute and a thread that cannot be stopped, two signals end the process."""
    worker = crew.worker(lease=LONG, grace=LONG)
    job = crew.enqueue("stubborn_sync", {"gate": "gate"})
    crew.runs(job)
    stop_twice(worker)
    assert worker.ends(LONG / 2) == 0
    released = crew.job(job)
    assert (released.state, released.attempts, released.crashes) == ("ready", 0, 0)
    crew.open_gate("gate")
    crew.worker(lease=LONG)
    crew.drained()
    crew.judge()


def stop_twice(worker: Member, first: int = signal.SIGTERM, second: int = signal.SIGINT) -> None:
    """One signal, and another when the first has taken effect."""
    worker.signal(first)
    worker.says("worker.draining")
    worker.signal(second)


def namespace() -> list[str]:
    """The command that makes what follows PID 1 of a new namespace; nothing where none can be had."""
    made = ["--fork", "--pid", "--mount-proc", "--kill-child"]
    for command in (["unshare", *made], ["unshare", "--user", "--map-root-user", *made]):
        try:
            tried = subprocess.run(
                [*command, sys.executable, "-c", "import os; print(os.getpid())"],
                capture_output=True,
                text=True,
                timeout=LONG,
                check=False,
            )
        except OSError:
            continue
        if tried.stdout == "1\n":
            return command
    return []


@pytest.fixture(name="first", scope="module")
def first_process() -> list[str]:
    """How to start a process as PID 1."""
    return namespace()


def as_first(crew: Crew, first: list[str], *, ready: bool = True, **options: float) -> Member:
    """A worker as PID 1; where that cannot be had, one that is held to the same."""
    worker = crew.worker(prefix=first, ready=ready, lease=LONG, **options)  # type: ignore[arg-type]
    if first:
        worker.become_inner()
    else:
        warnings.warn("no PID namespace can be had here: the worker is not PID 1", stacklevel=2)
    return worker


def catches(pid: int) -> set[int]:
    """The signals for which a process has a handler; the default action of others does not apply to PID 1."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            mask = int(line.split()[1], 16)
            return {number for number in range(1, 65) if mask >> (number - 1) & 1}
    return set()


@on_one_engine
@pytest.mark.filterwarnings("default:no PID namespace")
def test_a_first_process_stops_gracefully(crew: Crew, first: list[str]) -> None:
    """X6: the kernel gives PID 1 no default actions, so a worker there has handlers of its own, and obeys."""
    worker = as_first(crew, first)
    assert catches(worker.pid) >= {signal.SIGTERM, signal.SIGINT}
    job = crew.enqueue("nap", {"seconds": 0.3})
    crew.runs(job)
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0
    ended = crew.job(job)
    assert (ended.state, ended.version) == ("done", 1)
    crew.judge()


@on_one_engine
@pytest.mark.filterwarnings("default:no PID namespace")
def test_a_first_process_obeys_a_second_signal(crew: Crew, first: list[str]) -> None:
    """X6: as PID 1 too, the second signal does not wait for a thread that cannot be stopped."""
    worker = as_first(crew, first, grace=LONG)
    job = crew.enqueue("stubborn_sync", {"gate": "gate"})
    crew.runs(job)
    stop_twice(worker, signal.SIGTERM, signal.SIGTERM)
    assert worker.ends(LONG / 2) == 0
    assert (crew.job(job).state, crew.job(job).attempts) == ("ready", 0)
    crew.open_gate("gate")
    crew.worker()
    crew.drained()
    crew.judge()


@on_one_engine
@pytest.mark.filterwarnings("default:no PID namespace")
def test_a_first_process_can_be_stopped_while_it_starts(crew: Crew, first: list[str]) -> None:
    """X6: a signal that comes before the worker works is not lost."""
    crew.enqueue("quick", {"number": 1})
    worker = as_first(crew, first, ready=False)
    until(lambda: signal.SIGTERM in catches(worker.pid), "the worker has a handler")
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0
    crew.worker()
    crew.drained()
    crew.judge()
