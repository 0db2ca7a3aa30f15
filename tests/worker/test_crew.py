"""Runs that a thread of the crew does alone, in a whole worker. Real threads; nothing here sleeps or is timed.

The crew itself, timeouts and stops of such runs are scenes of `tests/mutants/scenes/crews.py`.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import ContextVar
from typing import Any
from unittest import mock

import pytest
from msgspec import Struct

from taskharbor import Harbor, JobContext, Unrecoverable, chain, current
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import JobCancelled, JobFailed
from taskharbor.worker import crew as crews
from taskharbor.worker.crew import Crew
from taskharbor.worker.executor import Executor
from taskharbor.worker.starter import Starter
from taskharbor.worker.timeouts import Timeouts
from world import time, virtual

PATIENCE = 30.0
pool: ContextVar[str] = ContextVar("pool", default="none")


def playing(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """An async test in real time."""

    def wrapped() -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE):
                await test()

        asyncio.run(bounded())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


def harbor_of(**settings: Any) -> Harbor:
    return Harbor(driver=MemoryDriver(), **settings)


read_in: list[int] = []


class Order(Struct):
    """Notes the thread that has read it."""

    number: int

    def __post_init__(self) -> None:
        read_in.append(threading.get_ident())


@playing
async def test_a_plain_run_is_a_thread_s_alone_and_others_are_not() -> None:
    """P: middleware and results of parents need the loop; both ways have the same outcome."""
    tasks: list[bool] = []

    def start(self: Executor, run: Any) -> Any:
        tasks.append(run.task is None)
        return run_here(self, run)

    run_here = Executor.run_here
    bare, wrapped = harbor_of(), harbor_of()

    @wrapped.middleware
    async def around(job: JobContext, call_next: Callable[[], Any]) -> Any:
        return await call_next()

    for harbor, alone in ((bare, 3), (wrapped, 0)):

        @harbor.task(name="one")
        def one() -> int:
            return 1

        @harbor.task(name="more")
        def more(number: int) -> int:
            return number + 1

        with mock.patch.object(Executor, "run_here", start):
            tasks.clear()
            jobs: list[Any] = [await one.aenqueue(), await more.aenqueue(4)]
            flow = await chain(one.step(), more).aenqueue()
            assert await harbor.adrain() == 4
        assert [await job.aresult() for job in jobs] == [1, 5]
        assert await flow.aresult() == 2
        assert tasks == [True] * alone


@playing
async def test_a_thread_sees_what_lifespans_have_put_into_the_workers_context() -> None:
    """P."""
    harbor = harbor_of()

    @harbor.lifespan
    async def resources() -> AsyncGenerator[None]:
        pool.set("open")
        yield

    @harbor.task
    def work() -> str:
        return pool.get()

    job = await work.aenqueue()
    await harbor.adrain()
    assert await job.aresult() == "open"


@playing
async def test_a_coroutine_that_a_def_returns_is_awaited_on_the_loop() -> None:
    """P, F5, F11: with its own current job, its result, its failure and what is left of its timeout."""
    harbor = harbor_of(max_attempts=1)
    home = threading.get_ident()

    async def rest(how: str) -> tuple[str, bool]:
        await asyncio.sleep(0)
        if how == "raises":
            raise SystemExit(3)
        if how == "hangs":
            await asyncio.Event().wait()
        return current().id, threading.get_ident() == home

    @harbor.task
    def work(how: str) -> Any:
        assert threading.get_ident() != home
        return rest(how)

    returns, raises = await work.aenqueue("returns"), await work.aenqueue("raises")
    hangs = await work.using(timeout=0.01).aenqueue("hangs")
    in_time = await work.using(timeout=PATIENCE).aenqueue("returns")
    assert await harbor.adrain() == 4
    assert await returns.aresult() == [returns.id, True]
    assert await in_time.aresult() == [in_time.id, True]
    assert (await raises.arecord()).last_error == "SystemExit: 3"
    assert (await hangs.arecord()).last_error == "TimeoutError: timed out after 0.01 s"


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_coroutine_whose_run_was_asked_to_end_meanwhile_is_not_begun(wrapped: bool) -> None:
    """T3: and leaves no warning behind."""
    harbor = harbor_of()
    loops: list[asyncio.AbstractEventLoop] = []
    began, asked = asyncio.Event(), threading.Event()
    begun: list[bool] = []

    @harbor.task
    def work() -> Any:
        loops[0].call_soon_threadsafe(began.set)
        while not current().cancelled:
            asked.wait(0.001)
        return rest()

    async def rest() -> None:
        begun.append(True)

    if wrapped:

        @harbor.middleware
        async def around(job: JobContext, call_next: Callable[[], Any]) -> Any:
            return await call_next()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        job = await work.aenqueue()
        async with harbor.worker(lease=1.5):
            await began.wait()
            await job.acancel()
            with pytest.raises(JobCancelled):
                await job.aresult(PATIENCE)

    asyncio.run(main())
    assert begun == []


@playing
async def test_a_coroutine_cancelled_before_its_first_step_is_closed() -> None:
    """T3: its task is not cancelled, which would leave it to the reaper; it looks for itself."""
    harbor = harbor_of()
    begun: list[bool] = []

    async def rest() -> None:
        begun.append(True)

    @harbor.task
    def work() -> Any:
        return rest()

    def begin_and_stop(self: Starter, run: Any, outcome: Any) -> None:
        run.host.end_run(run, "cancel")
        take_over(self, run, outcome)
        run.host.end_run(run, "cancel")

    take_over = Starter._ended_in_thread
    job = await work.aenqueue()
    with (
        mock.patch.object(Starter, "_ended_in_thread", begin_and_stop),
        mock.patch("taskharbor.worker.pipeline.REAP_EVERY", 1e6),
    ):
        assert await harbor.adrain() == 1
    assert (await job.astate(), begun) == ("cancelled", [])


@playing
async def test_an_abandoned_thread_may_end_as_it_likes() -> None:
    """X6: what it returns, a coroutine too, is dropped without a warning."""
    harbor = harbor_of()
    began, over, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    threads: list[threading.Thread] = []

    async def rest() -> None:
        raise AssertionError

    @harbor.task
    def work(coroutine: bool) -> Any:
        threads.append(threading.current_thread())
        loop.call_soon_threadsafe(began.set)
        over.wait(PATIENCE)
        return rest() if coroutine else "late"

    for coroutine in (False, True):
        began.clear()
        over.clear()
        job = await work.aenqueue(coroutine)
        with mock.patch("taskharbor.worker.shutdown.CANCEL_PATIENCE", 0.0):
            async with harbor.worker(grace=0) as worker:
                await began.wait()
        assert worker.busy == 0
        over.set()
        await asyncio.to_thread(threads[-1].join, PATIENCE)  # its worker is closed, so it ends with its call
        await asyncio.sleep(0)  # and the loop has its result
        assert (await job.arecord()).lease is not None


@playing
async def test_a_failure_in_a_thread_has_the_frames_of_its_handler_only() -> None:
    """F10: with what it raised from."""
    harbor = harbor_of(max_attempts=1)

    def deeper() -> None:
        raise KeyError("missing")

    @harbor.task
    def work() -> None:
        try:
            deeper()
        except KeyError as error:
            raise Unrecoverable("no use") from error

    job = await work.aenqueue()
    with pytest.raises(Unrecoverable, match="no use"):
        await harbor.adrain(raise_failures=True)
    (failure,) = (await job.arecord()).failures
    assert "in deeper" in failure.traceback
    assert "direct cause" in failure.traceback
    assert "taskharbor/worker" not in failure.traceback


@playing
async def test_arguments_and_results_are_read_and_written_in_the_thread() -> None:
    """P: what decoding and encoding cost, or raise, is the thread's."""
    harbor = harbor_of(max_attempts=1)

    @harbor.task
    def work(order: Order) -> tuple[int, object]:
        return threading.get_ident(), object() if order.number else None

    fine, unstorable = await work.aenqueue(Order(0)), await work.aenqueue(Order(1))
    read_in.clear()
    await harbor.adrain()
    assert (await unstorable.arecord()).dlq_reason == "result_not_encodable"
    thread, _ = await fine.aresult()
    assert thread in read_in
    assert threading.get_ident() not in read_in


@playing
async def test_a_sleeping_thread_keeps_nothing_alive() -> None:
    """P: neither the last run nor its result."""

    class Large:
        pass

    crew, ended = Crew(1), asyncio.Event()
    given = Large()
    gone = weakref.ref(given)
    crew.add(lambda given: given, given, lambda *_: ended.set())
    del given
    crew.go()
    await ended.wait()
    while crew._looking or not crew._asleep:  # noqa: ASYNC110  until the thread sleeps and the loop rests
        await asyncio.sleep(0)
    gc.collect()
    assert gone() is None
    crew.close()


@playing
async def test_a_thread_that_dies_makes_room_for_another() -> None:
    """L6: of an exception that a library throws into threads, outside of a handler's call."""
    crew, called, gone = Crew(1), threading.Event(), threading.Event()

    def die(*_: object) -> None:
        raise TimeoutError

    def noted(_: object) -> None:
        gone.set()

    with mock.patch.object(crews, "_called", die), mock.patch.object(threading, "excepthook", noted):
        crew.submit(called.set)
        assert await asyncio.to_thread(gone.wait, PATIENCE)
    assert crew._started == 0
    assert await crew.submit(lambda: "next") == ("next", None)
    assert not called.is_set()
    crew.close()


@playing
async def test_a_thread_that_dies_when_it_is_woken_does_not_stop_the_crew() -> None:
    """L6: a library throws an exception into a thread that sleeps; it comes when the next call wakes it."""
    crew, gone = Crew(1), threading.Event()

    def noted(_: object) -> None:
        gone.set()

    ident, _ = await crew.submit(threading.get_ident)
    while crew._looking or not crew._asleep:  # noqa: ASYNC110  until the thread sleeps
        await asyncio.sleep(0)
    with mock.patch.object(threading, "excepthook", noted):
        # Not an OSError: `call_soon_threadsafe` swallows those, and the thread may not have left it yet.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(ArithmeticError))
        assert await crew.submit(lambda: "next") == ("next", None)
        assert await asyncio.to_thread(gone.wait, PATIENCE)
    crew.close()


@playing
async def test_a_thread_that_dies_before_it_sleeps_is_not_woken() -> None:
    """L6: the exception comes when it is seen asleep and is not yet: the next call is given to another thread."""
    crew, gone = Crew(1), threading.Event()

    class Bed(list[Any]):
        def append(self, bed: Any) -> None:
            super().append(bed)
            raise TimeoutError

    def noted(_: object) -> None:
        gone.set()

    crew._asleep = Bed()
    with mock.patch.object(threading, "excepthook", noted):
        first = crew.submit(lambda: "first")
        assert await asyncio.to_thread(gone.wait, PATIENCE)
    assert (crew._asleep, crew._started) == ([], 0)
    crew._asleep = []
    assert await first == ("first", None)
    assert await crew.submit(lambda: "next") == ("next", None)
    crew.close()


@playing
async def test_an_exception_thrown_into_a_thread_loses_no_run() -> None:
    """F11: it comes when the handler has returned, from a library that ends threads by force."""
    harbor = harbor_of(max_attempts=1)

    @harbor.task
    def work() -> None: ...

    def late(self: Executor, run: Any) -> Any:
        run_here(self, run)
        raise TimeoutError("too late")

    run_here = Executor._run_here
    job = await work.aenqueue()
    with mock.patch.object(Executor, "_run_here", late):
        assert await harbor.adrain() == 1
    assert (await job.arecord()).last_error == "TimeoutError: too late"


@playing
async def test_an_idle_crew_has_no_timer_and_no_thread_that_is_awake() -> None:
    """P: idle CPU; and nothing is started before the first call."""
    crew = Crew(8)
    crew.go()
    assert (crew._started, crew._looking) == (0, False)
    await crew.submit(lambda: None)
    while crew._looking:  # noqa: ASYNC110  the last look is on its way
        await asyncio.sleep(0)
    assert len(crew._asleep) == crew._started == 1
    crew.close()


def test_a_call_waits_while_the_system_gives_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    """L6: it is logged, and tried again; a call is never lost."""
    refusals = 2
    start = threading.Thread.start

    def refusing(thread: threading.Thread) -> None:
        nonlocal refusals
        if thread.name.startswith("taskharbor-job-") and refusals:
            refusals -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    async def main() -> Any:
        crew = Crew(2)
        answer = await crew.submit(lambda: "run")
        crew.close()
        return answer

    with mock.patch.object(threading.Thread, "start", refusing), mock.patch.object(crews, "NO_THREAD", 0.001):
        assert asyncio.run(main()) == ("run", None)
    assert caplog.text.count("refused a thread beside 0: can't start new thread") == 2


@playing
async def test_def_jobs_are_taken_while_the_loop_is_blocked() -> None:
    """L3: an `async def` that blocks the loop holds up no `def` job that is claimed; the keeper's thread sees to it."""
    harbor = harbor_of()
    done = threading.Event()

    @harbor.task
    def waits() -> bool:
        return done.wait(PATIENCE)

    @harbor.task
    def ends() -> None:
        done.set()

    @harbor.task
    async def blocks() -> bool:
        return done.wait(PATIENCE)

    jobs = await harbor.aenqueue_many([waits.step(), ends.step(), blocks.step()])
    await harbor.adrain(concurrency=3)
    assert [await job.aresult() for job in jobs] == [True, None, True]


class Job(Struct, frozen=True):
    timeout: float


class Run(Struct, eq=False):
    job: Any
    ends_by: float = float("inf")


@virtual
async def test_one_timer_serves_the_timeouts_of_all_threads() -> None:
    """F5: each run is asked when its own time has passed since a thread took it, and not if it has ended."""
    asked: list[tuple[Any, float]] = []
    timeouts = Timeouts(lambda run, stop: asked.append((run, time())))
    waits, ends, late, long = (Run(Job(timeout)) for timeout in (10, 10, 5, 50))
    runs: list[Any] = [waits, ends, late, long]
    for run in runs:
        timeouts.add(run, run.job.timeout)
        run.ends_by = time() + run.job.timeout
    waits.ends_by, late.ends_by = float("inf"), 7.5
    await asyncio.sleep(8)
    assert asked == [(late, 7.5)]
    timeouts.discard(runs[1])
    waits.ends_by = time() + 10
    await asyncio.sleep(30)
    assert asked == [(late, 7.5), (waits, 18.0)]
    timeouts.discard(runs[3])
    assert timeouts._timer is None
    await asyncio.sleep(100)
    assert len(asked) == 2
    timeouts.add(runs[3], 50)
    long.ends_by = time() + 50
    await asyncio.sleep(51)
    assert len(asked) == 3


@playing
async def test_a_job_that_fails_in_a_thread_names_its_error_to_the_waiting() -> None:
    """F10."""
    harbor = harbor_of(max_attempts=1)

    @harbor.task
    def work() -> None:
        raise ValueError("no")

    async with harbor.worker():
        with pytest.raises(JobFailed, match="ValueError: no"):
            await (await work.aenqueue()).aresult()
