"""Real threads and real time: `def` handlers, a blocked loop, blocking calls. Nothing here sleeps or is timed."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from taskharbor import Harbor, JobContext, current
from taskharbor.client.portal import Portal
from taskharbor.client.session import Session
from taskharbor.client.settings import Settings
from taskharbor.driver import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import BlockingCallInLoop, DriverClosed, DriverUnavailable, JobCancelled, JobFailed
from taskharbor.testing import Wrapper
from taskharbor.worker.crew import Crew

PATIENCE = 30.0


class Beats(Wrapper):
    """Rings after so many renewals."""

    def __init__(self, inner: Driver, enough: int) -> None:
        super().__init__(inner)
        self.left = enough
        self.rung = threading.Event()

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Any]) -> Any:
        result = await call()
        if verb == "extend_lease":
            self.left -= 1
            if self.left <= 0:
                self.rung.set()
        return result


def test_def_handlers_run_in_threads_side_by_side() -> None:
    """P: four handlers that wait for each other can only end together."""
    harbor = Harbor(driver=MemoryDriver())
    meeting = threading.Barrier(4, timeout=PATIENCE)
    names: set[str] = set()

    @harbor.task
    def meet() -> str:
        meeting.wait()
        names.add(threading.current_thread().name)
        return current().id

    async def main() -> None:
        jobs = await harbor.aenqueue_many(meet.step() for _ in range(4))
        async with harbor.worker(concurrency=4):
            assert [await job.aresult(PATIENCE) for job in jobs] == [job.id for job in jobs]

    asyncio.run(main())
    assert len(names) == 4
    assert threading.current_thread().name not in names


def test_a_pool_has_a_thread_for_every_call_up_to_its_limit() -> None:
    """L6: a call never waits behind another while the pool could grow, and threads are used again."""

    async def main() -> int:
        pool = Crew(3)
        for _ in range(200):
            meeting = threading.Barrier(3, timeout=PATIENCE)
            answers = await asyncio.gather(*(pool.submit(meeting.wait) for _ in range(3)))
            assert [error for _, error in answers] == [None] * 3
        pool.close()
        return pool._started

    assert asyncio.run(main()) == 3


def test_a_handler_that_blocks_the_loop_keeps_its_lease() -> None:
    """L3: it blocks until its lease was renewed four times, that is for longer than a lease: one execution."""
    driver = Beats(MemoryDriver(), 4)
    harbor = Harbor(driver=driver)
    runs = 0

    @harbor.task
    async def blocks() -> int:
        nonlocal runs
        runs += 1
        assert driver.rung.wait(PATIENCE)
        return current().lease_version

    async def main() -> int:
        job = await blocks.aenqueue()
        async with harbor.worker(lease=1.5):
            return await job.aresult(PATIENCE)

    assert asyncio.run(main()) == 1
    assert runs == 1


def test_a_thread_sees_its_cancellation_and_ends_as_it_likes() -> None:
    """T3, F5: a thread cannot be stopped; `current().cancelled` is set, and its slot is kept until it ends."""
    harbor = Harbor(driver=MemoryDriver())
    started = threading.Event()

    @harbor.task
    def polite() -> None:
        started.set()
        while True:
            current().check()
            time.sleep(0.001)

    async def main() -> None:
        job = await polite.aenqueue()
        async with harbor.worker(lease=1.5, concurrency=1):
            await asyncio.to_thread(started.wait, PATIENCE)
            await job.acancel()
            with pytest.raises(JobCancelled):
                await job.aresult(PATIENCE)

    asyncio.run(main())


def test_a_thread_that_outlives_its_timeout_is_waited_for_and_settled_as_a_timeout() -> None:
    """F5: no second run beside it."""
    driver = Beats(MemoryDriver(), 2)
    harbor = Harbor(driver=driver, max_attempts=1)

    @harbor.task(timeout=0.01)
    def slow() -> str:
        while not current().cancelled:
            time.sleep(0.001)
        assert driver.rung.wait(PATIENCE)
        return "too late"

    async def main() -> None:
        job = await slow.aenqueue()
        async with harbor.worker(lease=1.5):
            with pytest.raises(JobFailed, match="TimeoutError"):
                await job.aresult(PATIENCE)
        record = await job.arecord()
        assert record.version == 1
        assert record.failures[0].kind == "TimeoutError"

    asyncio.run(main())


pause = time.sleep  # also where it blocks the loop: that is what is tried


class Shifted(asyncio.SelectorEventLoop):
    """Real time, and what is added to it."""

    shift = 0.0

    def time(self) -> float:
        return super().time() + self.shift


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("in_time", [True, False])
def test_a_thread_that_ended_in_time_has_not_timed_out_when_the_loop_sees_it_late(in_time: bool, wrapped: bool) -> None:
    """F5: the end of the thread counts. Another handler blocks the loop from before that until after the timeout."""
    harbor = Harbor(driver=MemoryDriver(), max_attempts=1)
    began, blocked = threading.Event(), threading.Event()
    workers: list[Any] = []

    if wrapped:

        @harbor.middleware
        async def around(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
            result = await call_next()
            await asyncio.sleep(0)
            return result

    @harbor.task(timeout=50)
    def quick() -> str:
        began.set()
        assert blocked.wait(PATIENCE)
        return "in time"

    @harbor.task
    async def rude(id: str) -> None:
        loop: Any = asyncio.get_running_loop()
        held = workers[0]._worker._pipeline.running[id]
        loop.shift += 0 if in_time else 60
        blocked.set()
        while math.isinf(held.returned_at):
            pause(0.001)
        loop.shift += 100

    async def main() -> None:
        async with harbor.worker(concurrency=2, lease=1000) as worker:
            workers.append(worker)
            job = await quick.aenqueue()
            await asyncio.to_thread(began.wait, PATIENCE)
            await (await rude.aenqueue(job.id)).aresult(1000)
            if in_time:
                assert await job.aresult(1000) == "in time"
            else:
                with pytest.raises(JobFailed, match="TimeoutError"):
                    await job.aresult(1000)

    with asyncio.Runner(loop_factory=Shifted) as runner:
        runner.run(main())


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, StopIteration])
def test_whatever_a_thread_raises_is_its_jobs_failure(error: type[BaseException]) -> None:
    """F11."""
    harbor = Harbor(driver=MemoryDriver(), max_attempts=1)

    @harbor.task
    def rude() -> None:
        raise error

    @harbor.task
    def good() -> str:
        return "fine"

    async def main() -> None:
        bad = await rude.aenqueue()
        async with harbor.worker(concurrency=1):
            assert await (await good.aenqueue()).aresult(PATIENCE) == "fine"
            assert await bad.astate() == "dlq"

    asyncio.run(main())


def test_def_handlers_can_block_and_enqueue_and_know_their_lineage() -> None:
    """P1, D9: blocking twins inside a `def` handler."""
    harbor = Harbor(driver=MemoryDriver())

    @harbor.task
    def child(number: int) -> int:
        return number

    @harbor.task
    def parent() -> list[int]:
        with_me = current().enqueue(child.step(1))
        at_once = child.enqueue(2)
        current().progress(0.5)
        assert at_once.record().headers["parent_id"] == current().id
        return [at_once.result(PATIENCE), with_me.created]

    async def main() -> list[int]:
        job = await parent.aenqueue()
        async with harbor.worker():
            return await job.aresult(PATIENCE)

    assert asyncio.run(main()) == [2, True]
    harbor.close()


def test_blocking_twins_do_what_the_async_ones_do() -> None:
    """P1."""
    harbor = Harbor(driver=MemoryDriver())

    @harbor.task
    def add(a: int, b: int = 1) -> int:
        return a + b

    job = add.enqueue(1, b=2)
    several = harbor.enqueue_many([add.step(1), add.step(2)])
    assert job.state() == "ready"
    assert asyncio.run(harbor.adrain()) == 3
    assert job.state() == "done"
    assert job.result(timeout=1) == 3
    assert [one.result() for one in several] == [2, 3]
    late = add.using(delay=60).enqueue(1)
    assert late.cancel()
    assert not late.cancel()
    assert harbor.admin.jobs.get(job.id).result == b"3"
    assert [counts.queue for counts in harbor.admin.queues.list()] == ["default"]
    harbor.close()
    with pytest.raises(DriverClosed):
        add.enqueue(1)


def test_a_blocking_call_on_a_running_loop_names_its_twin() -> None:
    """P1: and leaves no coroutine that is never awaited."""
    harbor = Harbor("memory://")

    @harbor.task
    def work() -> None: ...

    job = harbor.job("x")
    calls: list[tuple[Callable[[], object], str]] = [
        (work.enqueue, "aenqueue"),
        (lambda: harbor.enqueue_many([work.step()]), "aenqueue_many"),
        (job.state, "astate"),
        (job.result, "aresult"),
        (job.cancel, "acancel"),
        (job.record, "arecord"),
        (harbor.close, "aclose"),
        (harbor.admin.jobs.list, "alist"),
        (harbor.admin.stats, "astats"),
    ]

    async def main() -> None:
        for call, twin in calls:
            with pytest.raises(BlockingCallInLoop, match=rf"`await ….{twin}\(…\)`"):
                call()

    asyncio.run(main())
    assert harbor.admin.jobs.list() == []
    harbor.close()


def test_one_harbor_serves_many_threads_and_loops_at_once() -> None:
    """P1: every job once, from any thread or loop."""
    harbor = Harbor(driver=MemoryDriver())
    seen: list[int] = []

    @harbor.task
    async def work(number: int) -> int:
        seen.append(number)
        return number

    def plain(thread: int) -> list[str]:
        return [work.enqueue(thread * 100 + number).id for number in range(20)]

    def looped(thread: int) -> list[str]:
        async def main() -> list[str]:
            jobs = await asyncio.gather(*(work.aenqueue(thread * 100 + number) for number in range(20)))
            assert [await job.aresult(PATIENCE) for job in jobs] == [thread * 100 + number for number in range(20)]
            return [job.id for job in jobs]

        return asyncio.run(main())

    async def serve() -> list[str]:
        async with harbor.worker(concurrency=5), harbor.worker(concurrency=5):
            with ThreadPoolExecutor(8) as pool:
                futures = [pool.submit(plain if thread % 2 else looped, thread) for thread in range(8)]
                ids = [id for future in futures for id in await asyncio.wrap_future(future)]
            for id in ids:
                await harbor.job(id).aresult(PATIENCE)
            return ids

    ids = asyncio.run(serve())
    assert len(set(ids)) == 160
    assert sorted(seen) == sorted(thread * 100 + number for thread in range(8) for number in range(20))
    harbor.close()


def test_a_raced_opening_opens_once() -> None:
    """P1: the first use connects for all callers."""
    opened: list[MemoryDriver] = []
    gate = threading.Barrier(16, timeout=PATIENCE)

    async def connect() -> Driver:
        opened.append(MemoryDriver())
        await asyncio.sleep(0.01)
        return opened[-1]

    harbor = Harbor("memory://")
    harbor._session._connect = connect

    @harbor.task
    def work() -> None: ...

    def first_use(number: int) -> str:
        gate.wait()
        if number % 2:
            return work.enqueue().id

        async def main() -> str:
            return (await work.aenqueue()).id

        return asyncio.run(main())

    with ThreadPoolExecutor(16) as pool:
        ids = set(pool.map(first_use, range(16)))
    assert len(ids) == 16
    assert len(opened) == 1
    harbor.close()


def test_a_caller_that_stops_waiting_does_not_stop_the_opening() -> None:
    """P1: a cancelled waiter cancels itself only."""
    gate = asyncio.Event()

    async def connect() -> Driver:
        await gate.wait()
        return MemoryDriver()

    async def main() -> None:
        harbor = Harbor("memory://")
        session: Session = harbor._session
        session._connect = connect
        first = asyncio.create_task(session.driver())
        await asyncio.sleep(0)
        impatient, patient = asyncio.create_task(session.driver()), asyncio.create_task(session.driver())
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        gate.set()
        assert await first is await patient
        with pytest.raises(asyncio.CancelledError):
            await impatient

    asyncio.run(main())


def test_an_opening_that_fails_is_tried_again_by_the_next() -> None:
    """X2: an error for all who waited, and a fresh try afterwards."""
    tries = 0

    async def connect() -> Driver:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0)
        if tries == 1:
            raise DriverUnavailable("not yet")
        return MemoryDriver()

    async def main() -> None:
        harbor = Harbor("memory://")
        harbor._session._connect = connect
        session = harbor._session
        answers = await asyncio.gather(*(session.driver() for _ in range(3)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [DriverUnavailable] * 3
        assert isinstance(await session.driver(), MemoryDriver)
        assert tries == 2

    asyncio.run(main())


def test_an_opening_that_hangs_ends_within_a_bound() -> None:
    """X2."""

    async def connect() -> Driver:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> None:
        session = Session(connect, Settings(store_timeout=0.01), None, Random(1))
        with pytest.raises(DriverUnavailable, match="did not open"):
            await session.driver()

    asyncio.run(main())


def test_closing_ends_the_calls_that_still_wait() -> None:
    """P1: a thread in `job.result()` gets an error from the close instead of waiting for ever."""
    harbor = Harbor(driver=MemoryDriver())
    waiting = threading.Event()

    @harbor.task
    def never() -> None: ...

    job = never.enqueue()

    def wait() -> BaseException | None:
        waiting.set()
        try:
            job.result()
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(wait)
        assert waiting.wait(PATIENCE)
        harbor.close()
        assert isinstance(future.result(PATIENCE), DriverClosed)


def test_closing_a_portal_ends_the_calls_that_still_wait() -> None:
    """P1: whatever they wait for."""
    portal = Portal()
    waiting = threading.Event()

    async def forever() -> None:
        waiting.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(portal.call, "a", forever)
        assert waiting.wait(PATIENCE)
        portal.close()
        assert isinstance(future.exception(PATIENCE), DriverClosed)


def test_a_portal_closed_again_and_again_under_load_loses_no_call() -> None:
    """P1: every call ends, with its result or with `DriverClosed`; none hangs."""
    portal = Portal()

    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    def calls(_: int) -> set[str]:
        outcomes = set()
        for _ in range(300):
            try:
                outcomes.add(str(portal.call("a", answer)))
            except DriverClosed:
                outcomes.add("closed")
        return outcomes

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(calls, number) for number in range(4)]
        for _ in range(100):
            portal.close()
        outcomes = set().union(*(future.result(PATIENCE) for future in futures))
    assert outcomes <= {"42", "closed"}
    assert "42" in outcomes
    portal.close()


def test_a_harbor_opens_again_after_a_close() -> None:
    """P: `memory://` begins with nothing."""
    harbor = Harbor("memory://")

    @harbor.task
    def work() -> None: ...

    async def main() -> None:
        async with harbor.open() as same:
            assert same is harbor
            job = await work.aenqueue()
            assert await job.astate() == "ready"
        assert await harbor.admin.jobs.alist() == []
        await harbor.aclose()

    asyncio.run(main())
    work.enqueue()
    harbor.close()
    harbor.close()
