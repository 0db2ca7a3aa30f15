"""The pool of a worker's processes: how they are replaced, and what happens when they cannot start."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.errors import ConfigError, JobFailed
from taskharbor.worker.processes import limits, pool, starting

from . import slots, tight
from .crew import until
from .test_processes import gone, noted

PATIENCE = 60.0


def pid_of(app: slots.App) -> int:
    """The process that runs the next job."""
    pid: int = app.describe.enqueue("x").result(timeout=PATIENCE)["pid"]
    return pid


def test_a_process_is_replaced_after_its_jobs() -> None:
    """Another runs the next job, and the old one ends."""
    with slots.short_lived.harbor.worker(concurrency=1):
        pids = [pid_of(slots.short_lived) for _ in range(5)]
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
        gone(*pids[:4])


def test_a_process_is_replaced_at_its_age_whether_it_works_or_not() -> None:
    """The oldest jobs of a process are its last ones; an idle one is replaced by another that is warm."""
    with slots.aging.harbor.worker(concurrency=1):
        first = pid_of(slots.aging)
        until(lambda: pid_of(slots.aging) != first, "another process works")
        gone(first)
        second = pid_of(slots.aging)
        gone(second)
        assert pid_of(slots.aging) not in (first, second)


def test_a_process_is_replaced_when_it_has_grown() -> None:
    """Resident memory is what counts; one that stays small is kept."""
    with slots.swelling.harbor.worker(concurrency=1):
        first = pid_of(slots.swelling)
        assert pid_of(slots.swelling) == first
        grown: int = slots.swelling.swell.enqueue(300).result(timeout=PATIENCE)
        until(lambda: pid_of(slots.swelling) != grown, "another process works")
        gone(grown)


def test_processes_that_are_idle_for_long_end_but_for_the_warm_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One per core is kept, with its imports done; the others come back when they are needed."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(pool, "IDLE_FOR", 0.1)

    def three_at_once(gate: str) -> int:
        files = [tmp_path / f"{gate}-{number}" for number in range(3)]
        jobs = [slots.bare.hold.enqueue(str(file), str(tmp_path / gate)) for file in files]
        pids = [pid for file in files for pid in noted(file)]
        assert len(set(pids)) == 3
        (tmp_path / gate).touch()
        assert [job.result(timeout=PATIENCE) for job in jobs] == ["through"] * 3
        until(lambda: sum(map(slots.is_alive, pids)) == 1, "two have ended")
        (kept,) = filter(slots.is_alive, pids)
        return kept

    with slots.bare.harbor.worker(concurrency=3):
        kept = three_at_once("first")
        assert pid_of(slots.bare) == kept
        three_at_once("second")


def test_a_store_inside_the_worker_cannot_be_reached_from_a_child() -> None:
    """X5: an enqueue there is refused with the way out, which works."""
    with slots.bare.harbor.worker(concurrency=1):
        with pytest.raises(
            JobFailed, match=r"cannot reach a store that lives inside the worker: enqueue by current\(\)"
        ):
            slots.bare.sender.using(max_attempts=1).enqueue(1).result(timeout=PATIENCE)
        job = slots.bare.parent.enqueue(1)
        job.result(timeout=PATIENCE)
        assert slots.bare.harbor.job(f"child-of-{job.id}").result(timeout=PATIENCE) == os.getpid()


def test_a_child_that_cannot_start_stops_the_worker_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """X5: with the reason, before any job is claimed."""
    monkeypatch.setenv(slots.BROKEN, str(os.getpid()))
    job = slots.surrounded.describe.enqueue("x")
    message = r"cannot start: ConnectionError: no pool today \(.*slots.py line \d+\)"
    with pytest.raises(ConfigError, match=message), slots.surrounded.harbor.worker(concurrency=1):
        pass
    assert (job.record().state, job.record().version) == ("ready", 0)


def test_jobs_wait_while_children_cannot_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F8: given back without an attempt, as it is not their fault; they run when a child starts again."""
    caplog.set_level(logging.WARNING)
    with slots.surrounded.harbor.worker(concurrency=1):
        pid = pid_of(slots.surrounded)
        monkeypatch.setenv(slots.BROKEN, str(os.getpid()))
        os.kill(pid, signal.SIGKILL)
        gone(pid)
        job = slots.surrounded.describe.enqueue("x")
        until(lambda: job.record().version > 0 and job.record().state == "ready", "it was given back")
        monkeypatch.delenv(slots.BROKEN)
        assert job.result(timeout=PATIENCE)["word"] == "x"
        assert (job.record().attempts, job.record().crashes) == (0, 0)
    events = {getattr(record, "event", None) for record in caplog.records}
    assert {"process.broken", "process.unavailable"} <= events


@pytest.mark.parametrize(
    ("harbor", "message"),
    [
        (tight.harbor, r"memory= of system.tight.work is 1 MiB, but a fresh process has .* MiB: raise it"),
        (slots.large.harbor, r"Recycle\(memory=…\) is 1 MiB, but a fresh process has .* MiB: raise it"),
    ],
)
def test_limits_that_no_process_can_keep_are_refused(harbor: Harbor, message: str) -> None:
    """X5: when the worker starts."""
    with pytest.raises(ConfigError, match=message), harbor.worker(concurrency=1):
        pass


def test_a_process_that_is_being_killed_gets_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """F6b: a kill takes effect a moment later, and would be a crash of that job."""
    with slots.bare.harbor.worker(concurrency=1) as worker:
        pid = pid_of(slots.bare)
        processes = worker._worker._processes
        assert processes is not None
        (slot,) = processes._slots
        with monkeypatch.context() as patch:
            patch.setattr(os, "killpg", lambda *_: None)
            slot.kill()
        job = slots.bare.describe.enqueue("x")
        until(lambda: job.record().version == 1, "it is claimed")
        slot.kill()
        assert job.result(timeout=PATIENCE)["pid"] != pid
        assert (job.record().version, job.record().crashes) == (1, 0)


def test_a_task_that_is_newer_than_the_processes_is_a_failure() -> None:
    """X5: they have not imported it; the message names the fix."""
    with slots.bare.harbor.worker(concurrency=1):
        late = slots.bare.harbor.task(name="late", process=True, max_attempts=1)(slots.digest)
        try:
            with pytest.raises(JobFailed, match="late is newer than the processes of this worker: restart the worker"):
                late.enqueue(1).result(timeout=PATIENCE)
        finally:
            del slots.bare.harbor._application.tasks["late"]


@pytest.mark.parametrize("how", ["cancel", "dead_letter"])
def test_a_cancelled_run_is_killed_before_the_next_heartbeat(how: str, tmp_path: Path) -> None:
    """T3, F5: which comes after twenty minutes here; that of a thread waits for it."""
    with slots.bare.harbor.worker(concurrency=2, lease=3600, grace=0):
        job = slots.bare.hang.enqueue(str(tmp_path / "pids"))
        thread = slots.bare.patient.enqueue(str(tmp_path / "thread"), str(tmp_path / "gate"))
        pids = [*noted(tmp_path / "pids"), *noted(tmp_path / "thread")]
        assert pids.pop() == os.getpid()
        until(lambda: job.record().progress and thread.record().started_at, "no news is left to report")
        for it in (thread, job):
            if how == "cancel":
                it.cancel()
            else:
                slots.bare.harbor.admin.jobs.dead_letter([it.id], reason="by hand")
        gone(*pids)
        until(lambda: job.record().state == ("cancelled" if how == "cancel" else "dlq"), "it has ended")
        assert (job.record().attempts, job.record().crashes) == (0, 0)
        assert thread.record().state == "inflight"
        (tmp_path / "gate").touch()
        assert thread.result(timeout=PATIENCE) == "not asked"


@pytest.mark.parametrize("how", ["stopped", "GIL held"])
def test_a_process_that_reads_no_messages_is_killed_at_its_timeout(how: str, tmp_path: Path) -> None:
    """F5, L2: by SIGSTOP past its lease, or in C: its worker renews the lease, and kills it; the next job runs."""
    with slots.bare.harbor.worker(concurrency=1, lease=1.0):
        task = slots.bare.hang if how == "stopped" else slots.bare.compute
        job = task.using(timeout=3, max_attempts=1).enqueue(str(tmp_path / "pids"))
        pids = noted(tmp_path / "pids")
        if how == "stopped":
            os.kill(pids[0], signal.SIGSTOP)
        with pytest.raises(JobFailed, match="timed out after 3 s"):
            job.result(timeout=PATIENCE)
        assert (job.record().version, job.record().crashes) == (1, 0)
        gone(*pids)
        assert pid_of(slots.bare) not in pids


def test_a_run_without_a_lease_is_killed_at_once(tmp_path: Path) -> None:
    """L4: and nothing is written; the job runs again when its lease has expired."""
    with slots.bare.harbor.worker(concurrency=1, lease=2.0) as worker:
        job = slots.bare.hold.enqueue(str(tmp_path / "pid"), str(tmp_path / "gate"))
        (pid,) = noted(tmp_path / "pid")
        pipeline = worker._worker._pipeline
        pipeline.keeper._lose(pipeline.running[job.id], "on purpose")
        gone(pid)
        assert (job.record().state, job.record().crashes) == ("inflight", 0)
        (tmp_path / "gate").touch()
        assert job.result(timeout=PATIENCE) == "through"
        assert (job.record().version, job.record().attempts) == (2, 0)


def test_exits_are_noticed_without_the_help_of_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """F6: elsewhere by looking, several times a second."""
    monkeypatch.delattr(os, "pidfd_open")
    with slots.bare.harbor.worker(concurrency=1):
        with pytest.raises(JobFailed, match="exit code 7"):
            slots.bare.crash.using(max_crashes=1).enqueue("exit").result(timeout=PATIENCE)
        pid = pid_of(slots.bare)
    assert not slots.is_alive(pid)


def test_a_drain_runs_in_place() -> None:
    """A test's drain starts no process: patches and debuggers work."""
    job = slots.bare.describe.enqueue("x")
    assert slots.bare.harbor.drain() == 1
    assert job.result(timeout=0)["pid"] == os.getpid()


def test_systems_without_process_groups_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """X5: Windows."""
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(ConfigError, match="process=True works on Linux and macOS"):
        starting.check_system()
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ConfigError, match=r"sys\.executable"):
        starting.check_system()


def test_a_system_that_does_not_limit_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """X5: found out by trying; this one does."""
    assert limits.why_unlimited() is None
    monkeypatch.setattr(limits, "PROBE", 4096)
    assert limits.why_unlimited() == "this kernel does not enforce RLIMIT_DATA"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert limits.why_unlimited() == "darwin does not enforce RLIMIT_DATA"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"process": "yes"}, "process must be True or False"),
        ({"memory": "1 GiB"}, "memory= limits a process: it needs process=True"),
        ({"process": True, "memory": "lots"}, 'memory must be text such as "512 MiB"'),
        ({"process": True, "memory": 0}, "memory must be text"),
    ],
)
@pytest.mark.parametrize("decorator", ["task", "recurring"])
def test_wrong_options_are_refused(decorator: str, options: dict[str, Any], message: str) -> None:
    """X5: at the decoration."""
    harbor = Harbor("memory://")
    every = {"every": 60} if decorator == "recurring" else {}
    with pytest.raises(ConfigError, match=message):
        getattr(harbor, decorator)(**every, **options)


def test_a_function_that_cannot_be_imported_is_refused() -> None:
    """X5: a closure, with the fix."""
    harbor = Harbor("memory://")

    def inner() -> None: ...

    with pytest.raises(ConfigError, match="inner is defined inside a function: move it to the top level of a module"):
        harbor.task(process=True)(inner)
    with pytest.raises(ConfigError, match="recycle must be a Recycle"):
        Harbor("memory://", recycle=100)  # type: ignore[arg-type]
    task = harbor.task(inner)
    with pytest.raises(ConfigError, match="process= belongs to the task"):
        harbor.recurring(every=60, process=True)(task)
    assert "process" not in harbor.tasks


def test_a_recurring_task_may_have_a_process() -> None:
    """N2: the option reaches the task."""
    harbor = Harbor("memory://")
    harbor.recurring(every=60, arguments={"rounds": 1}, process=True, memory="1 GiB")(slots.digest)
    (task,) = harbor.tasks.values()
    assert (task.process, task.memory) == (True, 1 << 30)
