"""Turns inside SQLite: who runs whose requests, and that no caller waits for a thread that is gone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import apsw
import pytest

from taskharbor.driver import Group, GroupResult
from taskharbor.drivers.sqlite import enqueue
from taskharbor.drivers.sqlite import files as looks
from taskharbor.drivers.sqlite.batch import RequestResult
from taskharbor.drivers.sqlite.turns import Blocked
from taskharbor.errors import DriverClosed, DriverUnavailable, StoreGone
from taskharbor.testing.kit.jobs import group, job

from .turning import LONG, Noop, Stage, request

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def every_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write looks at the files, however short ago the last one did."""
    monkeypatch.setattr(looks, "A_MOMENT", 0.0)


def test_a_thread_alone_runs_its_own_request() -> None:
    """P1: no hop to another thread."""
    stage = Stage()
    alone = request("a")
    assert stage.turns.take(alone) == ("a", None)
    assert stage.runs == [(threading.get_ident(), ["a"])]
    assert alone.woken is None  # what only a caller in line needs


def test_waking_a_caller_that_does_not_wait_does_nothing() -> None:
    """P1: such as one that is in line, but waits for the lock."""
    request("a").wake()


def test_the_thread_inside_runs_all_that_wait() -> None:
    """P1: one run, and so one commit, for all that came meanwhile; each gets its own answer."""
    stage = Stage()
    first, end = stage.busy()
    answers: dict[str, RequestResult] = {}

    def take(name: str) -> None:
        answers[name] = stage.turns.take(request(name))

    others = [threading.Thread(target=take, args=(name,)) for name in "abc"]
    for thread in others:
        thread.start()
    stage.waiting(3)
    end.set()
    for thread in (first, *others):
        thread.join(LONG)
    assert answers == {name: (name, None) for name in "abc"}
    assert sorted(len(names) for _, names in stage.runs) in ([1, 3], [1, 1, 2])  # one may have entered just before


def test_the_batch_thread_takes_the_line_along() -> None:
    """P1: callers that block and callers that await share a commit."""
    stage = Stage()
    first, end = stage.busy()
    answers: list[RequestResult] = []
    other = threading.Thread(target=lambda: answers.append(stage.turns.take(request("blocked"))))
    other.start()
    stage.waiting(1)
    batch = threading.Thread(target=lambda: answers.extend(stage.turns.serve([request("awaited")])))
    batch.start()
    end.set()
    for thread in (first, other, batch):
        thread.join(LONG)
    assert sorted(answers) == [("awaited", None), ("blocked", None)]


def test_the_main_thread_runs_nothing_for_others() -> None:
    """P1: a signal may interrupt it, and the others would wait for their answers."""
    stage = Stage()
    left = request("left behind")
    stage.turns._line.append(left)
    assert stage.turns.take(request("mine")) == ("mine", None)
    assert stage.runs == [(threading.main_thread().ident, ["mine"])]
    assert left in stage.turns._line


def test_a_request_whose_caller_is_gone_is_not_run() -> None:
    """P1, X5: after Ctrl-C a job is not stored an hour later by another thread."""
    stage = Stage()
    gone = request("gone")
    gone.left = True
    stage.turns._line.append(gone)
    threads = [threading.Thread(target=stage.turns.take, args=(request("a"),))]
    for thread in threads:
        thread.start()
        thread.join(LONG)
    assert [names for _, names in stage.runs] == [["a"]]
    assert not stage.turns._line


def test_a_turn_that_does_not_come_in_time_is_refused() -> None:
    """X2: `DriverUnavailable`, and nothing of it is run later."""
    stage = Stage()
    first, end = stage.busy()
    with pytest.raises(DriverUnavailable, match="nothing was stored"):
        stage.turns.take(request("late", seconds=0.05))
    end.set()
    first.join(LONG)
    assert stage.turns.take(request("next")) == ("next", None)
    assert [names for _, names in stage.runs] == [["first"], ["next"]]


def test_a_turn_that_does_not_come_is_refused_also_while_the_caller_handles_an_error() -> None:
    """X2: `DriverUnavailable`, not the error that the caller was about to enqueue a job for."""
    stage = Stage()
    first, end = stage.busy()
    try:
        raise ValueError("of the caller")
    except ValueError:
        with pytest.raises(DriverUnavailable, match="nothing was stored"):
            stage.turns.take(request("late", seconds=0.05))
    end.set()
    first.join(LONG)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of the first thread
def test_the_requests_of_an_interrupted_thread_are_not_waited_for() -> None:
    """P1, X3: its followers get an error: the outcome is unknown."""
    stage, raised = Stage(), threading.Event()

    def interrupt() -> None:
        raised.set()
        raise KeyboardInterrupt

    first, end = stage.busy()
    outcomes: list[object] = []

    def take(name: str) -> None:
        try:
            outcomes.append(stage.turns.take(request(name)))
        except BaseException as error:
            outcomes.append(type(error))

    others = [threading.Thread(target=take, args=(name,)) for name in "ab"]
    for thread in others:
        thread.start()
    stage.waiting(2)
    stage.meanwhile = interrupt
    end.set()
    raised.wait(LONG)
    for thread in (first, *others):
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in (first, *others))
    assert not stage.turns.is_inside
    stage.meanwhile = lambda: None
    assert stage.turns.take(request("next")) == ("next", None)


def test_a_lost_wake_up_is_late_and_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: a thread that was interrupted before it woke the next one."""
    stage = Stage()
    first, end = stage.busy()
    monkeypatch.setattr(Blocked, "wake", lambda self: None)
    answers: list[RequestResult] = []
    other = threading.Thread(target=lambda: answers.append(stage.turns.take(request("a"))))
    other.start()
    stage.waiting(1)
    end.set()
    for thread in (first, other):
        thread.join(LONG)
    assert answers == [("a", None)]


def test_a_stale_hint_holds_no_caller_for_long() -> None:
    """P1: a thread that was interrupted between the hint and the lock."""
    stage = Stage()
    stage.turns._busy = 1
    assert stage.turns.take(request("a")) == ("a", None)
    assert stage.turns._busy == 0


def test_a_caller_that_meets_a_closed_door_waits_in_line() -> None:
    """P1: no thread had announced that it was about to enter (one that forks); the next to enter may serve it."""
    stage, answers = Stage(), list[RequestResult]()
    caller = threading.Thread(target=lambda: answers.append(stage.turns.take(request("a"))))
    with stage.turns.lock:
        caller.start()
        stage.waiting(1)
        stage.turns.serve([request("awaited")])
    caller.join(LONG)
    assert answers == [("a", None)]
    assert [names for _, names in stage.runs] == [["awaited", "a"]]


# on a file


@pytest.mark.usefixtures("every_write")
def test_a_caller_inside_its_own_statement_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: as by a signal handler between the insert and its answer; no transaction is open there."""
    noop = Noop(tmp_path / "jobs.db")
    files, looked = noop.thread._files, list[str]()

    def wrong() -> None:
        if not looked:
            looked.append("")
            looked[0] = noop.task.enqueue(2).id

    monkeypatch.setattr(files, "wrong", wrong)
    outer = noop.task.enqueue(1)
    assert len({outer.id, looked[0]}) == 2
    assert len(noop.harbor.admin.jobs.list()) == 3
    noop.harbor.close()


def test_a_caller_inside_its_own_transaction_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1, D1: its job would be committed with that of the caller below it, or rolled back."""
    noop, refused, work = Noop(tmp_path / "jobs.db"), list[str](), enqueue.enqueue

    def interrupted(db: apsw.Connection, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        with pytest.raises(DriverUnavailable, match="Set a flag") as caught:
            noop.task.enqueue(2)
        refused.append(str(caught.value))
        return work(db, groups, now)

    monkeypatch.setattr(enqueue, "enqueue", interrupted)
    jobs = noop.harbor.enqueue_many([noop.task.step(n) for n in range(3)])
    assert (len(jobs), len(refused)) == (3, 1)
    assert len(noop.harbor.admin.jobs.list()) == 4
    noop.harbor.close()


def test_a_lock_of_another_process_ends_at_the_deadline(tmp_path: Path) -> None:
    """X2: not after the twenty seconds that a batch may wait."""
    noop = Noop(tmp_path / "jobs.db", store_timeout=0.2)
    other = apsw.Connection(str(tmp_path / "jobs.db"))
    other.execute("BEGIN IMMEDIATE")
    begun = monotonic()
    with pytest.raises(DriverUnavailable, match="locked"):
        noop.task.enqueue(1)
    assert monotonic() - begun < 10
    other.execute("ROLLBACK")
    noop.task.enqueue(2)
    assert len(noop.harbor.admin.jobs.list()) == 2
    other.close()
    noop.harbor.close()


def test_a_line_of_callers_that_are_gone_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1, X9: there is nothing to look after."""
    noop = Noop(tmp_path / "jobs.db")
    monkeypatch.setattr(noop.thread, "_wrote", lambda *given: pytest.fail("nothing was written"))
    assert noop.thread._turns._run([], monotonic() + LONG) == []
    monkeypatch.undo()
    noop.harbor.close()


@pytest.mark.usefixtures("every_write")
def test_a_file_that_is_gone_confirms_nothing(tmp_path: Path) -> None:
    """X9: the write that no other process would see is an error, at once."""
    noop = Noop(tmp_path / "jobs.db")
    (tmp_path / "jobs.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(StoreGone):
        noop.task.enqueue(1)
    with pytest.raises(StoreGone):
        noop.task.enqueue(2)
    noop.harbor.close()


@pytest.mark.usefixtures("every_write")
def test_a_log_that_is_gone_confirms_nothing_either(tmp_path: Path) -> None:
    """X9: also if the folder had not changed for long before."""
    noop = Noop(tmp_path / "jobs.db")
    files = noop.thread._files
    files._look((0, 0, 0))
    files._still = files._stamp()
    noop.task.enqueue(1)
    (tmp_path / "jobs.db-wal").unlink()
    with pytest.raises(StoreGone):
        noop.task.enqueue(2)
    noop.harbor.close()


def test_a_closed_store_refuses_those_in_line(tmp_path: Path) -> None:
    """D10: a caller that waited for its turn while the store was closed."""
    noop = Noop(tmp_path / "jobs.db")
    driver, thread = noop.harbor.driver(), noop.thread
    noop.harbor.close()
    thread._closed = False  # it was open when the caller looked
    with pytest.raises(DriverClosed):
        driver.enqueue_blocking([group(job())], NOW, LONG)  # type: ignore[attr-defined]


def test_a_caller_that_two_threads_wake_at_once_is_woken_once() -> None:
    """P1: by the thread that gives it its answer, and by one that leaves at that moment."""

    class Held:
        """A lock that another thread releases between the look and the release."""

        def locked(self) -> bool:
            return True

        def release(self) -> None:
            raise RuntimeError("release unlocked lock")

    caller = request("a")
    caller.woken = Held()  # type: ignore[assignment]
    caller.wake()
