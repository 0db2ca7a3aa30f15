"""`def` handlers in real threads. These scenes play in real time, but none of them sleeps or measures it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from unittest import mock

from taskharbor import Harbor, JobContext, current
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import JobFailed, NoCurrentJob
from taskharbor.worker import crew as crews
from taskharbor.worker.crew import Crew

from .stage import SCENES

PATIENCE = 30.0
AT_ONCE = 2.0  # a scene takes milliseconds; a mutant that lets it hang costs this much


class Shifted(asyncio.SelectorEventLoop):
    """Real time, and what is added to it."""

    shift = 0.0

    def time(self) -> float:
        return super().time() + self.shift


def threaded(play: Callable[[threading.Event], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Put a play with real threads on the programme. Its event is set when it is over, so that no thread hangs."""

    def scene() -> None:
        over = threading.Event()

        async def bounded() -> None:
            loop, task = asyncio.get_running_loop(), asyncio.create_task(play(over))

            def hangs() -> None:
                over.set()
                loop.call_soon_threadsafe(task.cancel)

            watchdog = threading.Timer(AT_ONCE, hangs)  # not by the loop, whose time may be shifted
            watchdog.start()
            try:
                await asyncio.wait({task})
            finally:
                watchdog.cancel()
                over.set()
            if task.cancelled():
                raise TimeoutError
            task.result()

        with asyncio.Runner(loop_factory=Shifted) as runner:
            runner.run(bounded())

    SCENES[play.__name__] = scene
    return scene


class Delivered:
    """Collects the results of a crew, and waits for them."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self._changed = asyncio.Event()

    def __call__(self, argument: Any, result: Any) -> None:
        self.results.append(result)
        self._changed.set()

    async def until(self, number: int) -> None:
        while len(self.results) < number:
            await self._changed.wait()
            self._changed.clear()


# the crew alone


@threaded
async def blocking_calls_get_a_thread_each(over: threading.Event) -> None:
    """L6: calls that wait for each other end, up to the limit; the same threads serve the next ones."""
    crew, delivered = Crew(4), Delivered()
    for number in range(1, 6):
        meeting = threading.Barrier(4)
        for _ in range(4):
            crew.add(lambda meeting: meeting.wait(AT_ONCE), meeting, delivered)
        crew.go()
        await delivered.until(4 * number)
    assert crew._started == 4
    crew.close()


@threaded
async def after_a_slow_call_threads_wake_each_other(over: threading.Event) -> None:
    """L6: also if the loop never comes to look."""
    with mock.patch.object(crews, "LOOK", PATIENCE), mock.patch.object(crews, "SHORT", -1.0):
        crew, delivered = Crew(4), Delivered()
        crew.add(lambda _: None, None, delivered)
        crew.go()
        await delivered.until(1)
        meeting = threading.Barrier(4)
        for _ in range(4):
            crew.add(lambda _: meeting.wait(AT_ONCE), None, delivered)
        crew.go()
        await delivered.until(5)
        crew.close()


@threaded
async def a_blocked_loop_holds_up_no_thread(over: threading.Event) -> None:
    """L3: the keeper's thread sees to calls that wait behind one that blocks; a call that has just come may wait."""
    with mock.patch.object(crews, "LOOK", PATIENCE), mock.patch.object(crews, "SHORT", PATIENCE):
        crew, delivered = Crew(2), Delivered()
        done = threading.Event()
        crew.add(lambda _: done.wait(AT_ONCE), None, delivered)
        crew.add(lambda _: done.set(), None, delivered)
        crew.go()
        while len(crew._calls) == 2:  # noqa: ASYNC110  until the first one is taken
            await asyncio.sleep(0)
        crew.unstick()
        assert (len(crew._calls), crew._started) == (1, 1)
        crew.unstick()
        await delivered.until(2)
        assert sorted(map(str, delivered.results)) == ["None", "True"]
        crew.close()


@threaded
async def short_calls_share_a_thread(over: threading.Event) -> None:
    """A batch of short calls is run by one thread, and its results come back."""
    with mock.patch.object(crews, "LOOK", PATIENCE), mock.patch.object(crews, "SHORT", PATIENCE):
        crew, delivered = Crew(4), Delivered()
        for number in range(1, 11):
            added = threading.Event()
            crew.add(lambda added: added.wait(AT_ONCE), added, lambda *_: None)
            for _ in range(50):
                crew.add(lambda _: threading.get_ident(), None, delivered)
            crew.go()
            added.set()
            await delivered.until(50 * number)
        assert len(set(delivered.results)) == crew._started == 1
        crew.close()


@threaded
async def a_result_does_not_wait_for_the_next_call(over: threading.Event) -> None:
    """L2: the loop has it while the same thread is in a call that does not end."""
    crew, delivered = Crew(1), Delivered()
    crew.add(lambda _: "short", None, delivered)
    crew.add(lambda _: over.wait(PATIENCE), None, delivered)
    crew.go()
    await delivered.until(1)
    assert delivered.results == ["short"]
    crew.close()


@threaded
async def a_call_that_comes_while_the_thread_falls_asleep_is_taken(over: threading.Event) -> None:
    """L6: the loop has looked for a sleeping thread just before there was one."""
    crew, delivered = Crew(1), Delivered()

    class Beds(list[Any]):
        def append(self, bed: Any) -> None:
            if not crew._closed and len(delivered.results) < 2:
                crew.add(lambda _: "second", None, delivered)
                crew._wake_one()
            super().append(bed)

    with mock.patch.object(crews, "LOOK", PATIENCE):
        crew._asleep = Beds()
        crew.add(lambda _: "first", None, delivered)
        crew.go()
        await delivered.until(2)
        crew.close()


@threaded
async def a_result_that_cannot_be_delivered_costs_no_other(over: threading.Event) -> None:
    """F11: an error of one delivery is reported, and the others are made."""
    crew, delivered = Crew(1), Delivered()
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))

    def fail(argument: None, result: object) -> None:
        raise LookupError("no")

    together = threading.Event()
    crew.add(lambda _: together.wait(PATIENCE), None, delivered)
    for deliver in (fail, delivered, fail, delivered):
        crew.add(lambda _: True, None, deliver)
    crew.go()
    together.set()
    await delivered.until(3)
    crew.close()
    assert [type(error) for error in complaints] == [LookupError] * 2


@threaded
async def a_closed_crew_ends_its_threads_after_their_calls(over: threading.Event) -> None:
    """X6: those that sleep and the one that is busy, whose result is delivered."""
    crew, delivered = Crew(3), Delivered()
    meeting, began = threading.Barrier(3), asyncio.Event()
    loop = asyncio.get_running_loop()

    def meet(_: None) -> threading.Thread:
        meeting.wait(AT_ONCE)
        return threading.current_thread()

    def last(_: None) -> str:
        loop.call_soon_threadsafe(began.set)
        return str(over.wait(PATIENCE))

    for _ in range(3):
        crew.add(meet, None, delivered)
    crew.go()
    await delivered.until(3)
    threads = list(delivered.results)
    while crew._looking:  # noqa: ASYNC110  until nothing but a call of the thread can deliver the last result
        await asyncio.sleep(0)
    with mock.patch.object(crews, "LOOK", PATIENCE):
        crew.add(last, None, delivered)
        crew.go()
    await began.wait()
    crew.close()
    over.set()
    await delivered.until(4)
    for thread in threads:
        await asyncio.to_thread(thread.join, AT_ONCE / 3)
    assert [thread.is_alive() for thread in threads] == [False] * 3


# a whole worker


def _harbor(**settings: Any) -> Harbor:
    return Harbor(driver=MemoryDriver(), **settings)


_mark: ContextVar[str] = ContextVar("mark", default="")


@threaded
async def every_run_in_a_thread_has_its_own_context(over: threading.Event) -> None:
    """P: a copy of the worker's; what one handler sets, the next one in the same thread does not see."""
    harbor = _harbor()
    seen: list[tuple[str, str]] = []

    @harbor.task
    def work() -> None:
        seen.append((_mark.get(), current().id))
        _mark.set("of a handler")

    _mark.set("of the worker")
    jobs = await harbor.aenqueue_many(work.step() for _ in range(3))
    assert await harbor.adrain(concurrency=1) == 3
    assert seen == [("of the worker", job.id) for job in jobs]


@threaded
async def a_thread_that_returns_after_its_timeout_timed_out(over: threading.Event) -> None:
    """F5: whatever it returns; one that returns in time has not."""
    harbor = _harbor(max_attempts=1)
    loop: Any = asyncio.get_running_loop()

    @harbor.task(timeout=50)
    def work(takes: float) -> str:
        loop.shift += takes
        return "done"

    late, early = await work.aenqueue(60), await work.aenqueue(40)
    await harbor.adrain(concurrency=1, lease=1000)
    assert (await late.arecord()).last_error == "TimeoutError: timed out after 50 s"
    assert await early.aresult() == "done"


@threaded
async def a_thread_is_asked_to_end_at_its_timeout(over: threading.Event) -> None:
    """F5: by `current().cancelled`, and it keeps its slot until it ends."""
    harbor = _harbor(max_attempts=1)
    busy: list[int] = []
    workers: list[Any] = []

    @harbor.task(timeout=0.01)
    def work() -> None:
        while not (current().cancelled or over.wait(0.001)):
            pass
        busy.append(workers[0].busy)

    async with harbor.worker(concurrency=1) as worker:
        workers.append(worker)
        job = await work.aenqueue()
        with suppress(JobFailed):
            await job.aresult()
    assert busy == [1]
    assert (await job.arecord()).last_error == "TimeoutError: timed out after 0.01 s"


@threaded
async def a_run_that_no_thread_has_taken_is_given_back_unrun(over: threading.Event) -> None:
    """X6: and a thread that comes to take it after all does not call the handler."""
    harbor = _harbor()
    runs: list[str] = []

    @harbor.task
    def work() -> None:
        runs.append(current().id)

    job = await work.aenqueue()
    with mock.patch.object(Crew, "go"), mock.patch("taskharbor.worker.shutdown.CANCEL_PATIENCE", 0.0):
        async with harbor.worker(concurrency=1, grace=0) as worker:
            while not worker.busy:  # noqa: ASYNC110  nothing shows when it has claimed
                await asyncio.sleep(0)
            crew: Any = worker._worker._crew
    record = await job.arecord()
    assert (record.state.value, record.attempts, record.crashes) == ("ready", 0, 0)
    crew._closed = False
    taken = crew.submit(lambda: None)  # runs behind the one that was left
    await taken
    crew.close()
    assert runs == []


@threaded
async def an_abandoned_thread_can_ask_for_nothing_more(over: threading.Event) -> None:
    """X6, D9: its worker has stopped; what it still enqueues with its success would be lost."""
    harbor = _harbor()
    began, refused = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @harbor.task
    def work() -> None:
        loop.call_soon_threadsafe(began.set)
        over.wait(PATIENCE)
        try:
            current().enqueue(work.step())
        except NoCurrentJob:
            loop.call_soon_threadsafe(refused.set)

    job = await work.aenqueue()
    with mock.patch("taskharbor.worker.shutdown.CANCEL_PATIENCE", 0.0):
        async with harbor.worker(concurrency=1, grace=0):
            await began.wait()
    before = await job.arecord()
    assert before.state.value == "inflight"
    over.set()
    await refused.wait()
    assert await job.arecord() == before


# around


@threaded
async def arounds_wrap_each_handler_where_it_runs(over: threading.Event) -> None:
    """P: the first one registered is the outermost, in the handler's own thread or task, whatever the handler does."""
    harbor = _harbor(max_attempts=1)
    log: list[tuple[str, int]] = []

    def note(what: str) -> None:
        log.append((what, threading.get_ident()))

    @harbor.around
    def outer(job: JobContext) -> Iterator[None]:
        note("outer in")
        try:
            yield
        finally:
            note("outer out")

    @harbor.around
    def inner(job: JobContext) -> Iterator[None]:
        note("inner in")
        try:
            yield
        finally:
            note("inner out")

    @harbor.task
    def plain(fails: bool) -> None:
        note("handler")
        if fails:
            raise ValueError

    @harbor.task
    async def awaited(fails: bool) -> None:
        await asyncio.sleep(0)
        note("handler")
        if fails:
            raise ValueError

    for task in (plain, awaited):
        for fails in (False, True):
            log.clear()
            await task.aenqueue(fails)
            assert await harbor.adrain() == 1
            assert [what for what, _ in log] == ["outer in", "inner in", "handler", "inner out", "outer out"]
            (thread,) = {thread for _, thread in log}
            assert (thread == threading.get_ident()) is (task is awaited)
