"""Jobs in processes of their own, on a worker beside the test: what crosses, what is killed, what is refused."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Job, Run, chain
from taskharbor.core.job import JobRecord
from taskharbor.errors import JobCancelled, JobFailed
from taskharbor.worker.processes import turn

from . import slots
from .crew import until

PATIENCE = 60.0


@contextmanager
def working(app: slots.App, folder: Path) -> Generator[slots.App]:
    """A worker beside the test."""
    store = f"sqlite:///{folder}/jobs.db?synchronous=normal"
    with app.harbor.stand_in(store), app.harbor.worker(concurrency=3, lease=3.0):
        yield app


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Generator[slots.App]:
    """An application whose handlers run in the main threads of processes, with a worker for all tests."""
    with working(slots.bare, tmp_path_factory.mktemp("bare")) as app:
        yield app


@pytest.fixture(scope="module")
def surrounded(tmp_path_factory: pytest.TempPathFactory) -> Generator[slots.App]:
    """The same with a lifespan and middleware: handlers run beside an event loop."""
    with working(slots.surrounded, tmp_path_factory.mktemp("surrounded")) as app:
        yield app


@pytest.fixture(params=["bare", "surrounded"])
def app(request: pytest.FixtureRequest) -> slots.App:
    """Both, one after the other."""
    found: slots.App = request.getfixturevalue(request.param)
    return found


def noted(file: Path) -> list[int]:
    """A handler's notes: the processes of its run."""
    text = until(lambda: file.read_text() if file.exists() else "", f"{file.name} is there")
    return [int(word) for word in text.split()]


def gone(*pids: int) -> None:
    """Wait until these processes have ended."""
    until(lambda: not any(map(slots.is_alive, pids)), f"{pids} are gone")


def dead(job: Job[Any]) -> JobRecord:
    """The record of a job that must end in the dead-letter queue."""
    with pytest.raises(JobFailed):
        job.result(timeout=PATIENCE)
    return job.record()


def test_a_handler_sees_its_job_as_in_a_thread(app: slots.App, caplog: pytest.LogCaptureFixture) -> None:
    """P1, L5: identity, attempt, fence, headers, arguments; middleware, around, lifespan surround it; logs arrive."""
    caplog.set_level(logging.WARNING)
    job = app.describe.using(headers={"trace": "7"}).enqueue("hello")
    seen = job.result(timeout=PATIENCE)
    assert seen["pid"] != os.getpid()
    assert (seen["word"], seen["module"], seen["id"]) == ("hello", "system.slots", job.id)
    assert (seen["attempt"], seen["version"], seen["cancelled"]) == (1, 1, False)
    assert (seen["headers"]["trace"], seen["arguments"]) == ("7", {"word": "hello"})
    assert seen["inside"]
    assert (seen["wrapped"], seen["lives"]) == ((True, [1, 1]) if app is slots.surrounded else (False, [0, 0]))
    (record,) = [record for record in caplog.records if record.name == "shop"]
    assert record.getMessage() == f"hello from {seen['pid']}"
    assert (record.job_id, record.process, record.funcName) == (job.id, seen["pid"], "describe")  # type: ignore[attr-defined]


def test_a_process_serves_one_job_after_another(surrounded: slots.App) -> None:
    """Lifespans are entered once per process, whatever kind of handler runs there."""
    answers = [
        task.enqueue("again").result(timeout=PATIENCE) for task in (surrounded.describe, surrounded.describe_later) * 3
    ]
    assert len({answer["pid"] for answer in answers}) < len(answers)
    assert {tuple(answer["lives"]) for answer in answers} == {(1, 1)}
    assert all(answer["inside"] for answer in answers)


def test_large_arguments_and_results_cross(bare: slots.App) -> None:
    """R4: up to the limit, which is more than a socket takes at once."""
    word = "x" * 500_000
    assert bare.describe_later.enqueue(word).result(timeout=PATIENCE)["word"] == word


def test_a_step_in_a_process_gets_the_result_before_it(bare: slots.App) -> None:
    """K3: the worker reads the results of parents, the process gets them as arguments."""
    run: Run[int] = chain(bare.plain.step(1), bare.double).enqueue()
    assert run.result(timeout=PATIENCE) == 2 * os.getpid()


def test_new_jobs_travel_with_the_ack(app: slots.App) -> None:
    """D9: stored exactly if the run succeeds; a job that the handler enqueues by itself is stored at once."""
    good, bad = app.parent.enqueue(1), app.parent.enqueue(2, fail=True)
    good.result(timeout=PATIENCE)
    assert dead(bad).dlq_reason == "unrecoverable"
    child = app.harbor.job(f"child-of-{good.id}")
    assert child.result(timeout=PATIENCE) == os.getpid()
    assert child.record().headers["parent_id"] == good.id
    assert app.harbor.client.portal.run(lambda: app.harbor.client.record(f"child-of-{bad.id}")) is None
    sent = app.sender.enqueue(3).result(timeout=PATIENCE)
    assert app.harbor.job(sent).result(timeout=PATIENCE) == os.getpid()


@pytest.mark.parametrize("how", ["timeout", "cancel", "dead_letter"])
def test_a_stop_kills_the_process_and_what_it_has_started(app: slots.App, how: str, tmp_path: Path) -> None:
    """F5, T3, Q4: a handler that never returns is ended by force, and its neighbour is not touched."""
    neighbour = app.hold.enqueue(str(tmp_path / "neighbour"), str(tmp_path / "gate"))
    (beside,) = noted(tmp_path / "neighbour")
    options: dict[str, Any] = {"timeout": 2, "max_attempts": 1} if how == "timeout" else {}
    job = app.hang.using(**options).enqueue(str(tmp_path / "pid"))
    pids = noted(tmp_path / "pid")
    if how == "cancel":
        job.cancel()
    elif how == "dead_letter":
        app.harbor.admin.jobs.dead_letter([job.id], reason="by hand")
    if how == "cancel":
        with pytest.raises(JobCancelled):
            job.result(timeout=PATIENCE)
        assert job.record().attempts == 0
    else:
        record = dead(job)
        assert record.dlq_reason == ("max_attempts" if how == "timeout" else "by hand")
        if how == "timeout":
            assert record.last_error == "TimeoutError: timed out after 2 s"
    gone(*pids)
    assert slots.is_alive(beside)
    (tmp_path / "gate").touch()
    assert neighbour.result(timeout=PATIENCE) == "through"
    assert neighbour.record().version == 1


@pytest.mark.parametrize(("task", "last"), [("obedient", "ended"), ("tidy", "tidied")])
def test_a_handler_may_end_by_itself_first(
    app: slots.App, task: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5: it has a moment between the request and the kill; its process goes on with the next job."""
    monkeypatch.setattr(turn, "KILL_AFTER", PATIENCE)
    file = tmp_path / "note"
    job = getattr(app, task).using(timeout=1, max_attempts=1).enqueue(str(file))
    (pid,) = noted(file)
    assert dead(job).last_error == "TimeoutError: timed out after 1 s"
    until(lambda: file.read_text() == last, f"it has {last}")
    assert slots.is_alive(pid)


@pytest.mark.parametrize(
    ("how", "cause"),
    [("exit", "exit code 7"), ("kill", "killed by SIGKILL (out of memory, or by hand)"), ("segv", "killed by SIGSEGV")],
)
def test_a_crash_is_its_own_jobs(
    bare: slots.App, how: str, cause: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """F6, F6b: counted at once, retried, and a crash loop at max_crashes; a neighbour runs through, no slot is kept."""
    neighbour = bare.hold.enqueue(str(tmp_path / "neighbour"), str(tmp_path / "gate"))
    noted(tmp_path / "neighbour")
    record = dead(bare.crash.enqueue(how))
    assert (record.dlq_reason, record.crashes, record.attempts, record.version) == ("crash_loop", 3, 0, 3)
    assert [failure.kind for failure in record.failures] == ["Crashed"] * 3
    assert record.last_error is not None
    assert cause in record.last_error
    (tmp_path / "gate").touch()
    assert neighbour.result(timeout=PATIENCE) == "through"
    assert (neighbour.record().version, neighbour.record().crashes) == (1, 0)


@pytest.mark.parametrize(
    ("how", "reason", "error"),
    [
        ("exit", "max_attempts", "SystemExit: 3"),
        ("large", "result_too_large", "PayloadTooLarge"),
        ("encode", "result_not_encodable", "NotEncodable: the result"),
        ("raise", "max_attempts", "ValueError: raise"),
    ],
)
def test_a_failure_is_that_of_a_thread(app: slots.App, how: str, reason: str, error: str) -> None:
    """F9, F11, R4: the reason, the error, and a traceback that begins in the handler."""
    record = dead(app.fail.enqueue(how))
    assert record.dlq_reason == reason
    assert record.last_error is not None
    assert record.last_error.startswith(error)
    if how in ("exit", "raise"):
        assert "slots.py" in record.failures[-1].traceback.splitlines()[1]


def test_signals_of_a_handler_work(bare: slots.App) -> None:
    """F4: a snooze puts the job back without an attempt."""
    job = bare.fail.enqueue("later")
    assert job.result(timeout=PATIENCE) == "later"
    assert (job.record().version, job.record().attempts) == (2, 0)


def test_a_signal_handler_may_log_while_its_job_logs(bare: slots.App) -> None:
    """F11: it interrupts the sending of a record, and waits for nothing."""
    assert bare.interrupted.enqueue(1500).result(timeout=PATIENCE) >= 1500


def test_arguments_that_do_not_fit_are_dead_lettered(bare: slots.App) -> None:
    """F9: as in a thread."""
    step = bare.digest.step(1)
    step.payload = b'{"v":1,"args":{"rounds":"many"}}'
    (wrong,) = bare.harbor.enqueue_many([step])
    assert dead(wrong).dlq_reason == "undecodable"


def test_a_memory_limit_is_a_failure_that_says_so(bare: slots.App) -> None:
    """F5: inside the limit nothing happens; beyond it the run fails, and its process is replaced."""
    size, pid = bare.allocate.enqueue(32).result(timeout=PATIENCE)
    assert size == 32 << 20
    record = dead(bare.allocate.enqueue(512))
    assert record.last_error == "MemoryError: over the memory limit of 256 MiB"
    assert "allocate" in record.failures[-1].traceback
    assert bare.allocate.enqueue(32).result(timeout=PATIENCE)[0] == 32 << 20
    assert pid != os.getpid()


def test_a_run_at_its_memory_limit_is_watched_and_may_report_progress(bare: slots.App) -> None:
    """L4: there is no memory for a buffer or a thread, which is not the handler's failure."""
    assert "taskharbor-watchdog" in bare.brimful.enqueue().result(timeout=PATIENCE)


def test_progress_needs_no_room_for_a_timer(bare: slots.App) -> None:
    """L4: Python 3.13 may run out of memory while it makes one."""
    assert bare.cramped.enqueue().result(timeout=PATIENCE) == 0.5


def test_a_copy_that_a_handler_has_forked_does_not_speak_for_it(app: slots.App) -> None:
    """F11: nor does it take the next job; it ends where it leaves the handler."""
    code, pid = app.fork.enqueue().result(timeout=PATIENCE)
    assert code == 1
    assert pid != os.getpid()


def test_a_copy_that_a_handler_has_forked_can_be_terminated(app: slots.App) -> None:
    """F11, X6: the process of a job leaves SIGTERM to its worker, but pools of multiprocessing end by it."""
    assert app.terminate.enqueue().result(timeout=PATIENCE) == -signal.SIGTERM


def test_copies_that_a_handler_has_forked_leave_the_messages_of_the_job_alone(
    app: slots.App, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """F11, L5: they do not write into the middle of them, or take them; what they log goes to stderr."""
    job = app.chorus.enqueue(50, str(tmp_path / "stderr"))
    assert job.result(timeout=PATIENCE) == "in time"
    assert [len(record.message) for record in caplog.records if record.name == "shop"] == [100_000] * 50
    progress = job.record().progress
    assert progress is None or progress.fraction == 0.25
    assert (tmp_path / "stderr").read_text() == "WARNING shop: from a copy\n" * 150


def test_progress_arrives_coalesced_and_the_last_always(bare: slots.App, tmp_path: Path) -> None:
    """T2: a thousand reports are a few messages; the store has the latest within seconds."""
    job = bare.steps.enqueue(str(tmp_path / "note"), str(tmp_path / "gate"))
    noted(tmp_path / "note")

    def latest() -> bool:
        progress = job.record().progress
        return progress is not None and (progress.fraction, progress.note) == (0.75, "last")

    until(latest, "the last progress is stored")
    (tmp_path / "gate").touch()
    job.result(timeout=PATIENCE)


def test_a_stop_of_the_whole_service_is_the_workers(bare: slots.App, tmp_path: Path) -> None:
    """X6: a SIGTERM that reaches the child as well (systemd, Ctrl-C) does not end its job."""
    job = bare.hold.enqueue(str(tmp_path / "pid"), str(tmp_path / "gate"))
    (pid,) = noted(tmp_path / "pid")
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGINT)
    (tmp_path / "gate").touch()
    assert job.result(timeout=PATIENCE) == "through"
    assert job.record().crashes == 0
