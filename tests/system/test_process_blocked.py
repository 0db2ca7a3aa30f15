"""Jobs in processes beside an `async def` handler that blocks the loop of their worker: no kill waits for it.

What a test sees while the loop is blocked has happened without it: the handler goes on when the test opens its gate.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Job
from taskharbor.errors import JobCancelled, JobFailed
from taskharbor.worker.launcher import RunningWorker
from taskharbor.worker.processes import link, turn

from . import slots
from .crew import until
from .test_processes import gone, noted

PATIENCE = 60.0
SLOTS = 4
LONG = 70_000  # times seven characters: more than is received at once


@contextmanager
def working(folder: Path, lease: float = 60.0) -> Generator[RunningWorker]:
    """A worker beside the test, with warm processes."""
    store = f"sqlite:///{folder}/jobs.db?synchronous=normal"
    with slots.bare.harbor.stand_in(store), slots.bare.harbor.worker(concurrency=SLOTS, lease=lease) as worker:
        yield worker


@contextmanager
def blocked(folder: Path) -> Generator[None]:
    """The loop of the worker is blocked inside of it."""
    job = slots.bare.block.enqueue(str(folder / "blocking"), str(folder / "goes on"))
    try:
        assert noted(folder / "blocking") == [os.getpid()]
        yield
    finally:
        (folder / "goes on").touch()
    assert job.result(timeout=PATIENCE) == "through"


def held(folder: Path, **options: Any) -> tuple[Job[str], int]:
    """A job that waits for its gate in a process, and that process."""
    job = slots.bare.hold.using(**options).enqueue(str(folder / "held"), str(folder / "gate"))
    (pid,) = noted(folder / "held")
    return job, pid


def served(folder: Path) -> set[int]:
    """The processes of as many jobs at once as the worker has slots: all of its processes. Each job runs once."""
    files = [folder / f"served-{number}" for number in range(SLOTS)]
    jobs = [slots.bare.hold.enqueue(str(file), str(folder / "served")) for file in files]
    pids = {pid for file in files for pid in noted(file)}
    (folder / "served").touch()
    assert [job.result(timeout=PATIENCE) for job in jobs] == ["through"] * SLOTS
    assert {(job.record().version, job.record().crashes) for job in jobs} == {(1, 0)}
    return pids


@pytest.mark.parametrize("how", ["timeout", "cancel", "dead_letter"])
def test_a_blocked_loop_does_not_delay_a_kill(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """F5, T3: with all that it has started; its neighbour is not hit, and the loop learns why it ended."""
    with working(tmp_path):
        neighbour, beside = held(tmp_path)
        options: dict[str, Any] = {"timeout": 3, "max_attempts": 1} if how == "timeout" else {}
        job = slots.bare.hang.using(**options).enqueue(str(tmp_path / "pids"))
        pids = noted(tmp_path / "pids")
        with blocked(tmp_path):
            if how == "cancel":
                job.cancel()
            elif how == "dead_letter":
                slots.bare.harbor.admin.jobs.dead_letter([job.id], reason="by hand")
            gone(*pids)
            assert job.record().state == "inflight"
            assert slots.is_alive(beside)
        with pytest.raises(JobCancelled if how == "cancel" else JobFailed):
            job.result(timeout=PATIENCE)
        record = job.record()
        assert (record.attempts, record.crashes, record.version) == (1 if how == "timeout" else 0, 0, 1)
        if how != "cancel":
            assert record.dlq_reason == ("max_attempts" if how == "timeout" else "by hand")
        if how == "timeout":
            assert record.last_error == "TimeoutError: timed out after 3 s"
        (tmp_path / "gate").touch()
        assert neighbour.result(timeout=PATIENCE) == "through"
        assert (neighbour.record().version, neighbour.record().crashes) == (1, 0)
        assert beside in served(tmp_path)
    assert "job.overrun" not in {getattr(record, "event", None) for record in caplog.records}


def test_a_blocked_loop_does_not_delay_the_kill_of_a_run_without_a_lease(tmp_path: Path) -> None:
    """L4: and nothing is written. The run holds the GIL of its process, which cannot end it by itself then."""
    with working(tmp_path, lease=3.0) as worker:
        job = slots.bare.compute.enqueue(str(tmp_path / "pid"))
        (pid,) = noted(tmp_path / "pid")
        pipeline = worker._worker._pipeline
        with blocked(tmp_path):
            pipeline.keeper._lose(pipeline.running[job.id], "on purpose")
            gone(pid)
            assert (job.record().state, job.record().version) == ("inflight", 1)
        until(lambda: job.record().version == 2, "it runs again")
        job.cancel()
        with pytest.raises(JobCancelled):
            job.result(timeout=PATIENCE)
        assert (job.record().attempts, job.record().crashes) == (0, 0)


@pytest.mark.parametrize("times", [1, LONG])
def test_a_result_in_time_is_a_success_however_late_the_loop_takes_it(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5: its process is not killed, and goes on with the next job. The long one is on its way at the timeout."""
    monkeypatch.setattr(turn, "KILL_AFTER", 2.0)
    monkeypatch.setattr(link, "MOST", 1)
    with working(tmp_path):
        options: dict[str, Any] = {"timeout": 4, "max_attempts": 1}
        job = slots.bare.hold.using(**options).enqueue(str(tmp_path / "held"), str(tmp_path / "gate"), times)
        (pid,) = noted(tmp_path / "held")
        later = slots.bare.hang.using(**options).enqueue(str(tmp_path / "pids"))
        pids = noted(tmp_path / "pids")
        with blocked(tmp_path):
            (tmp_path / "gate").touch()
            gone(*pids)  # so the other's timeout has passed as well
            assert slots.is_alive(pid)
        assert job.result(timeout=PATIENCE) == "through" * times
        with pytest.raises(JobFailed, match="timed out after 4 s"):
            later.result(timeout=PATIENCE)
        assert (job.record().version, job.record().attempts, job.record().crashes) == (1, 0, 0)
        assert pid in served(tmp_path)


def test_a_crash_before_the_timeout_is_a_crash(tmp_path: Path) -> None:
    """F6: also if the loop learns of it after the timeout."""
    with working(tmp_path):
        job, pid = held(tmp_path, timeout=4, max_crashes=1)
        later = slots.bare.hang.using(timeout=4, max_attempts=1).enqueue(str(tmp_path / "pids"))
        pids = noted(tmp_path / "pids")
        with blocked(tmp_path):
            os.kill(pid, signal.SIGKILL)
            gone(*pids)
        with pytest.raises(JobFailed, match=r"crash_loop.*killed by SIGKILL"):
            job.result(timeout=PATIENCE)
        assert (job.record().attempts, job.record().crashes) == (0, 1)
        with pytest.raises(JobFailed, match="timed out after 4 s"):
            later.result(timeout=PATIENCE)


def test_a_loop_that_is_blocked_for_longer_than_the_lease_ends_no_process(tmp_path: Path) -> None:
    """L3: the renewals of the lease reach the process, which would end itself without them."""
    with working(tmp_path, lease=1.0):
        job, pid = held(tmp_path)
        with blocked(tmp_path):
            lease = job.record().lease
            assert lease is not None
            much_later = lease.expires_at + timedelta(seconds=2)

            def is_renewed() -> bool:
                lease = job.record().lease
                return lease is not None and lease.expires_at > much_later

            until(is_renewed, "the lease is renewed")
            assert slots.is_alive(pid)
        (tmp_path / "gate").touch()
        assert job.result(timeout=PATIENCE) == "through"
        assert (job.record().version, job.record().crashes) == (1, 0)


def test_a_job_larger_than_a_socket_begins_although_the_loop_is_blocked(tmp_path: Path) -> None:
    """F5: its timeout counts from when it was handed over."""
    with working(tmp_path):
        (tmp_path / "gate").touch()
        large = slots.bare.hold.step(str(tmp_path / "held"), str(tmp_path / "gate"), 1, "x" * 400_000)
        block = slots.bare.block.step(str(tmp_path / "blocking"), str(tmp_path / "goes on"))
        try:
            jobs = slots.bare.harbor.enqueue_many([large, block])
            noted(tmp_path / "blocking")
            noted(tmp_path / "held")
        finally:
            (tmp_path / "goes on").touch()
        assert [job.result(timeout=PATIENCE) for job in jobs] == ["through", "through"]
