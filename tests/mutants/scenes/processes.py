"""Jobs in processes of their own. These scenes are played by real processes, in real time: see `REAL`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from system import slots
from taskharbor.errors import JobFailed
from taskharbor.worker.processes import link, turn

from .stage import SCENES

REAL: set[str] = set()
PATIENCE = 6.0
LEASE = 1.5


def real_scene(play: Callable[[Path], None]) -> Callable[[], None]:
    """Put a play of real processes on the programme; it gets a folder of its own."""

    def played() -> None:
        with TemporaryDirectory() as folder:
            play(Path(folder))

    SCENES[play.__name__] = played
    REAL.add(play.__name__)
    return played


@contextmanager
def working(app: slots.App, concurrency: int = 1, lease: float = LEASE) -> Generator[slots.App]:
    """A worker on a store of its own."""
    with app.harbor.stand_in("memory://"), app.harbor.worker(concurrency=concurrency, lease=lease, grace=0.0):
        yield app


@contextmanager
def blocked(app: slots.App, folder: Path) -> Generator[None]:
    """A handler blocks the loop of the worker."""
    app.block.enqueue(str(folder / "blocking"), str(folder / "goes on"))
    try:
        noted(folder / "blocking")
        yield
    finally:
        (folder / "goes on").touch()


def noted(file: Path) -> list[int]:
    """The processes of a handler that has begun."""
    wait_for(file.exists, "it runs")
    return [int(pid) for pid in file.read_text().split()]


def gone(pids: list[int]) -> None:
    """Wait for the end of these processes."""
    wait_for(lambda: not any(map(slots.is_alive, pids)), "a process lives on")


def failed(job: Any) -> Any:
    """The record of a job that must be dead-lettered soon."""
    try:
        job.result(timeout=PATIENCE)
    except JobFailed:
        return job.record()
    raise AssertionError("it has not failed")


def wait_for(found: Callable[[], object], what: str) -> None:
    """Wait for what another process does."""
    give_up = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < give_up, what
        time.sleep(0.01)


@real_scene
def a_hanging_process_is_killed_at_its_timeout(folder: Path) -> None:
    """F5: with all that it has started; the timeout counts as a failure."""
    with working(slots.bare) as app:
        record = failed(app.hang.using(timeout=1.5, max_attempts=1).enqueue(str(folder / "pids")))
        assert (record.dlq_reason, record.attempts, record.crashes) == ("max_attempts", 1, 0)
        gone(noted(folder / "pids"))


@real_scene
def a_cancelled_process_is_killed_without_a_heartbeat(folder: Path) -> None:
    """T3, F5: the next heartbeat would come in twenty minutes."""
    with working(slots.bare, lease=3600) as app:
        job = app.hang.enqueue(str(folder / "pids"))
        wait_for((folder / "pids").exists, "it runs")
        wait_for(lambda: job.record().progress is not None, "no news is left to report")
        job.cancel()
        wait_for(lambda: job.state() == "cancelled", "it runs on")
        gone(noted(folder / "pids"))


@real_scene
def a_process_that_dies_is_a_crash_of_its_job(folder: Path) -> None:
    """F6: counted at once and not as an attempt, up to the bound."""
    with working(slots.bare) as app:
        job = app.crash.using(max_crashes=2).enqueue("exit")
        wait_for(lambda: job.state() == "dlq" or job.record().version > 3, "it does not end")
        record = job.record()
        assert (record.dlq_reason, record.crashes, record.attempts, record.version) == ("crash_loop", 2, 0, 2)


@real_scene
def a_suspect_in_a_process_needs_no_empty_worker(folder: Path) -> None:
    """F6b: it crashes again and again beside a long job of another process."""
    with working(slots.bare, 2) as app:
        app.hold.enqueue(str(folder / "pid"), str(folder / "gate"))
        wait_for((folder / "pid").exists, "the neighbour runs")
        record = failed(app.crash.using(max_crashes=4).enqueue("exit"))
        assert (record.dlq_reason, record.crashes) == ("crash_loop", 4)


@real_scene
def a_result_after_the_timeout_of_a_process_is_discarded(folder: Path) -> None:
    """F5: a handler that ends when it is asked to has still timed out."""
    with working(slots.bare) as app, mock.patch.object(turn, "KILL_AFTER", PATIENCE):
        record = failed(app.yield_late.using(timeout=0.2, max_attempts=1).enqueue())
        assert record.last_error == "TimeoutError: timed out after 0.2 s"


@real_scene
def a_long_run_in_a_process_is_one_run(folder: Path) -> None:
    """L2, T2: it outlasts its first lease, and its progress is stored."""
    with working(slots.bare) as app:
        job = app.nap.enqueue(1.5 * LEASE)
        wait_for(lambda: job.record().progress is not None, "no progress is stored")
        assert job.result(timeout=PATIENCE) == "rested"
        assert job.record().version == 1


@real_scene
def a_process_is_replaced_after_its_jobs(folder: Path) -> None:
    """Two jobs per process, as its limits say."""
    with working(slots.short_lived) as app:
        pids = [app.describe.enqueue("x").result(timeout=PATIENCE)["pid"] for _ in range(3)]
        assert pids[0] == pids[1] != pids[2]


@real_scene
def a_process_is_killed_at_its_timeout_while_the_loop_is_blocked(folder: Path) -> None:
    """F5: an `async def` handler beside it has nothing to do with it."""
    with working(slots.bare, 2) as app:
        job = app.hang.using(timeout=3, max_attempts=1).enqueue(str(folder / "pids"))
        pids = noted(folder / "pids")
        with blocked(app, folder):
            gone(pids)
        record = failed(job)
        assert (record.dlq_reason, record.attempts, record.crashes) == ("max_attempts", 1, 0)


@real_scene
def a_cancelled_process_is_killed_while_the_loop_is_blocked(folder: Path) -> None:
    """T3, F5: the keeper needs no loop but its own."""
    with working(slots.bare, 2) as app:
        job = app.hang.enqueue(str(folder / "pids"))
        pids = noted(folder / "pids")
        with blocked(app, folder):
            job.cancel()
            gone(pids)
        wait_for(lambda: job.state() == "cancelled", "it is not cancelled")
        assert (job.record().attempts, job.record().crashes) == (0, 0)


@real_scene
def a_result_in_time_waits_for_a_blocked_loop(folder: Path) -> None:
    """F5: it is larger than what is received at once, so a part of it is on its way at the timeout."""
    with (
        working(slots.bare, 3) as app,
        mock.patch.object(turn, "KILL_AFTER", 1.0),
        mock.patch.object(link, "MOST", 1),
    ):
        options = {"timeout": 3, "max_attempts": 1}
        job = app.hold.using(**options).enqueue(str(folder / "held"), str(folder / "gate"), 70_000)
        (pid,) = noted(folder / "held")
        app.hang.using(**options).enqueue(str(folder / "pids"))
        pids = noted(folder / "pids")
        with blocked(app, folder):
            (folder / "gate").touch()
            gone(pids)
            assert slots.is_alive(pid), "it is killed after its job"
        assert len(job.result(timeout=PATIENCE)) == 490_000


@real_scene
def a_crash_waits_for_a_blocked_loop(folder: Path) -> None:
    """F6: the timeout passes before the loop learns of it, and is not the reason."""
    with working(slots.bare, 3) as app:
        options = {"timeout": 3, "max_attempts": 1}
        job = app.hold.using(**options, max_crashes=1).enqueue(str(folder / "held"), str(folder / "gate"))
        crashing = noted(folder / "held")
        app.hang.using(**options).enqueue(str(folder / "pids"))
        pids = noted(folder / "pids")
        with blocked(app, folder):
            os.kill(crashing[0], signal.SIGKILL)
            gone(pids)
        record = failed(job)
        assert (record.dlq_reason, record.attempts, record.crashes) == ("crash_loop", 0, 1)


@real_scene
def a_run_in_a_process_outlasts_its_lease_while_the_loop_is_blocked(folder: Path) -> None:
    """L3: its process gets the renewals."""
    with working(slots.bare, 2) as app:
        job = app.hold.enqueue(str(folder / "held"), str(folder / "gate"))
        (pid,) = noted(folder / "held")
        with blocked(app, folder):
            much_later = job.record().lease.expires_at + timedelta(seconds=LEASE + 1)
            wait_for(lambda: job.record().lease.expires_at > much_later, "it is not renewed")
            assert slots.is_alive(pid), "it has ended"
        (folder / "gate").touch()
        assert job.result(timeout=PATIENCE) == "through"
        assert (job.record().version, job.record().crashes) == (1, 0)


@real_scene
def the_next_job_of_a_process_has_its_own_timeout(folder: Path) -> None:
    """F5: that of the job before it passes, and nothing happens."""
    with working(slots.bare) as app:
        assert app.describe.using(timeout=1).enqueue("first").result(timeout=PATIENCE)["word"] == "first"
        job = app.nap.enqueue(1.5)
        assert job.result(timeout=PATIENCE) == "rested"
        assert (job.record().version, job.record().crashes) == (1, 0)
