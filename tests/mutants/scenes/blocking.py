"""Blocking callers, in real threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest

from drivers.sqlite.turning import LONG, Noop, Stage, request
from sim.blocking_callers import judged
from taskharbor import Harbor
from taskharbor.client import clock as clocks
from taskharbor.driver import Driver, Group, GroupResult
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.postgres.blocking import BlockingNotifier
from taskharbor.drivers.sqlite import enqueue, files
from taskharbor.drivers.sqlite.batch import RequestResult
from taskharbor.errors import BlockingCallInLoop, DriverUnavailable, StoreGone
from taskharbor.testing import LostRequest, Wrapper

from .stage import SCENES


def blocking_scene(play: Callable[[], None]) -> Callable[[], None]:
    """Put a play without an event loop on the programme."""
    SCENES[play.__name__] = play
    return play


@blocking_scene
def each_caller_in_line_gets_its_own_answer() -> None:
    """P1: from the thread inside, which runs all that wait."""
    stage, answers = Stage(), dict[str, RequestResult]()
    first, end = stage.busy()

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
    assert max(len(names) for _, names in stage.runs) > 1


@blocking_scene
def the_main_thread_serves_no_other_caller() -> None:
    """P1: a signal may interrupt it."""
    stage = Stage()
    stage.turns._line.append(request("of another"))
    assert stage.turns.take(request("mine")) == ("mine", None)
    assert stage.runs == [(threading.main_thread().ident, ["mine"])]


@blocking_scene
def the_request_of_a_caller_that_is_gone_is_not_run() -> None:
    """P1: a job is not stored long after Ctrl-C."""
    stage, gone = Stage(), request("gone")
    gone.left = True
    stage.turns._line.append(gone)
    thread = threading.Thread(target=stage.turns.take, args=(request("a"),))
    thread.start()
    thread.join(LONG)
    assert [names for _, names in stage.runs] == [["a"]]


@blocking_scene
def a_signal_handler_never_joins_a_transaction() -> None:
    """P1, D1: of the call that it interrupts."""
    work = enqueue.enqueue
    with TemporaryDirectory() as folder:
        noop = Noop(Path(folder) / "jobs.db")

        def interrupted(db: Any, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
            with pytest.raises(DriverUnavailable):
                noop.task.enqueue(2)
            return work(db, groups, now)

        try:
            with mock.patch.object(enqueue, "enqueue", interrupted):
                noop.harbor.enqueue_many([noop.task.step(n) for n in range(3)])
        finally:
            noop.harbor.close()


@blocking_scene
def a_blocking_write_to_a_file_that_is_gone_is_an_error() -> None:
    """X9."""
    with TemporaryDirectory() as folder:
        noop = Noop(Path(folder) / "jobs.db")
        (Path(folder) / "jobs.db").rename(Path(folder) / "elsewhere.db")
        try:
            with mock.patch.object(files, "A_MOMENT", 0.0), pytest.raises(StoreGone):
                noop.task.enqueue(1)
        finally:
            noop.harbor.close()


class Clocked(Wrapper):
    """A driver whose engine has a clock, and which counts how often it is asked."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.asked = 0
        self.threads: list[int] = []

    async def server_now(self) -> datetime:
        self.asked += 1
        return datetime.now(UTC)

    def _enqueue_blocking(self, *given: Any) -> list[GroupResult]:
        self.threads.append(threading.get_ident())
        return super()._enqueue_blocking(*given)


def in_a_thread(act: Callable[[], object]) -> int | None:
    """Run beside the main thread; the number of the thread."""
    thread = threading.Thread(target=act)
    thread.start()
    thread.join(LONG)
    return thread.ident


def app(driver: Driver) -> tuple[Harbor, Any]:
    harbor = Harbor(driver=driver)
    return harbor, harbor.task(name="noop")(_noop)


def _noop() -> None: ...


@blocking_scene
def a_blocking_caller_asks_for_the_engines_time_again() -> None:
    """L8: no caller uses a stale clock for ever."""
    engine = Clocked(MemoryDriver())
    harbor, noop = app(engine)
    with mock.patch.object(clocks, "REMEASURE_AFTER", -1.0):
        in_a_thread(noop.enqueue)
        asked = engine.asked
        in_a_thread(noop.enqueue)
    assert engine.asked > asked
    harbor.close()


@blocking_scene
def a_blocking_caller_is_served_in_its_own_thread() -> None:
    """P1: where the driver can."""
    engine = Clocked(MemoryDriver())
    harbor, noop = app(engine)
    assert [in_a_thread(noop.enqueue) for _ in range(2)] == engine.threads
    harbor.close()


@blocking_scene
def a_blocking_enqueue_on_a_loop_is_refused() -> None:
    """P1: naming the async twin."""
    harbor, noop = app(MemoryDriver())

    async def block() -> None:
        with pytest.raises(BlockingCallInLoop, match="aenqueue"):
            noop.enqueue()

    asyncio.run(block())
    harbor.close()


@blocking_scene
def a_fault_wrapper_strikes_blocking_enqueues() -> None:
    """D14: and wrappers see them as `enqueue`."""
    harbor, noop = app(LostRequest(MemoryDriver(), lambda verb: verb == "enqueue"))
    raised: list[type[Exception]] = []

    def attempt() -> None:
        try:
            noop.enqueue()
        except DriverUnavailable as error:
            raised.append(type(error))

    in_a_thread(attempt)
    assert raised == [DriverUnavailable]
    harbor.close()


@blocking_scene
def simulated_blocking_callers_are_judged() -> None:
    """P1, D1, G2: by the checker, and by what callers know."""
    for seed in range(3):
        judged(seed)


@blocking_scene
def the_last_commit_of_a_burst_is_notified_of() -> None:
    """D13: at the end of its moment, or when the driver is closed."""
    sent: list[int] = []
    notifier = BlockingNotifier(lambda: sent.append(1))
    assert notifier.is_due()
    assert not notifier.is_due()
    notifier.defer()
    notifier.close()
    while notifier._flushing:
        pass
    assert sent == [1]
