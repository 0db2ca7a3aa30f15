"""Plain context managers around every handler. Their order, and where they run, is a scene of the mutants."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any

import pytest

from taskharbor import Harbor, JobContext, Retry, current
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import ConfigError
from world import World, virtual

CallNext = Callable[[], Awaitable[Any]]
tenant: ContextVar[str] = ContextVar("tenant", default="none")
WAYS = pytest.mark.parametrize("way", ["async", "def", "thread"])


class Way:
    """A harbor whose one task, `work`, calls a function as an `async def`, as a `def` on the loop or in a thread."""

    def __init__(self, way: str, function: Callable[[str], Any]) -> None:
        self.harbor = Harbor(driver=MemoryDriver(), max_attempts=2, retry=Retry.fixed(0))
        self._threads = way == "thread"

        async def awaited(what: str) -> Any:
            await asyncio.sleep(0)
            return function(what)

        def plain(what: str) -> Any:
            return function(what)

        self.work: Any = self.harbor.task(name="work")(awaited if way == "async" else plain)

    def run(self, *what: str) -> dict[str, Any]:
        """Run the task once or until it is dead for each; return the stored records."""

        async def main() -> dict[str, Any]:
            jobs = {each: await self.work.aenqueue(each) for each in what}
            await self.harbor.adrain(threads=self._threads)
            return {each: await job.arecord() for each, job in jobs.items()}

        return asyncio.run(main())


def fail(what: str) -> str:
    if what == "key":
        raise KeyError(what)
    if what == "value":
        raise ValueError(what)
    if what == "exit":
        raise SystemExit(what)
    return what


@WAYS
def test_an_around_sees_what_the_handler_raises_and_may_change_it(way: str) -> None:
    """F11: a swallowed error is a success without a result; its own error is the job's failure."""
    play = Way(way, fail)
    seen: list[str] = []

    @play.harbor.around
    def guard(job: JobContext) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise RuntimeError("worse") from error
        except SystemExit:
            seen.append(f"{job.task} exits in attempt {job.attempt}")
            raise

    @play.harbor.around
    def lenient(job: JobContext) -> AbstractContextManager[None]:
        return suppress(KeyError)

    records = play.run("key", "value", "exit", "fine")
    assert {what: record.state.value for what, record in records.items()} == {
        "key": "done",
        "value": "dlq",
        "exit": "dlq",
        "fine": "done",
    }
    assert (records["key"].result, records["fine"].result) == (None, b'"fine"')
    assert records["value"].last_error == "RuntimeError: worse"
    _, chained, trace = records["value"].failures[0].traceback.partition("direct cause")
    assert chained
    assert "taskharbor/worker" not in trace
    assert "contextlib" not in trace
    assert seen == ["work exits in attempt 1", "work exits in attempt 2"]


@WAYS
def test_an_around_that_fails_before_the_handler_fails_the_job(way: str) -> None:
    """F11: those outside of it are left, and may take the error for a success like any other."""
    calls: list[str] = []

    def note(what: str) -> None:
        calls.append(what)

    play = Way(way, note)

    @play.harbor.around
    def outer(job: JobContext) -> Iterator[None]:
        try:
            yield
        except LookupError:
            calls.append("swallowed")

    @play.harbor.around
    def broken(job: JobContext) -> Iterator[None]:
        what: str = job.record.payload.decode()
        if "lookup" in what:
            raise LookupError
        if "os" in what:
            raise OSError("no connection")
        yield

    records = play.run("lookup", "os", "fine")
    assert [record.state.value for record in records.values()] == ["done", "dlq", "done"]
    assert records["os"].last_error == "OSError: no connection"
    assert sorted(calls) == ["fine", "swallowed"]


@WAYS
def test_a_handler_sees_the_context_variables_of_its_around(way: str) -> None:
    """P: and the current job is there in both."""

    def seen(what: str) -> list[str]:
        return [tenant.get(), current().id]

    play = Way(way, seen)

    @play.harbor.around
    @contextmanager
    def of_tenant(job: JobContext) -> Iterator[None]:
        assert current() == job
        mark = tenant.set(f"of {job.id}")
        yield
        tenant.reset(mark)

    record = play.run("x")["x"]
    assert record.result.decode() == f'["of {record.id}","{record.id}"]'
    assert tenant.get() == "none"


def test_a_def_that_returns_a_coroutine_is_wrapped_in_both_places() -> None:
    """P: in its thread, and where the coroutine is awaited."""
    log: list[tuple[str, bool]] = []

    def note(what: str) -> None:
        log.append((what, threading.current_thread() is threading.main_thread()))

    async def rest() -> None:
        note("rest")

    def start(what: str) -> Any:
        note("call")
        return rest()

    play = Way("thread", start)

    @play.harbor.around
    def noted(job: JobContext) -> Iterator[None]:
        note("in")
        yield
        note("out")

    assert play.run("x")["x"].state.value == "done"
    assert log == [("in", False), ("call", False), ("out", False), ("in", True), ("rest", True), ("out", True)]


def test_arounds_are_inside_of_middleware() -> None:
    """P: and still in the thread of the handler."""
    log: list[str] = []
    play = Way("thread", log.append)

    @play.harbor.around
    def inside(job: JobContext) -> Iterator[None]:
        log.append(f"around, {threading.current_thread().name.rpartition('-')[0]}")
        yield

    @play.harbor.middleware
    async def outside(job: JobContext, call_next: CallNext) -> Any:
        log.append("middleware")
        return await call_next()

    play.run("handler")
    assert log == ["middleware", "around, taskharbor-job", "handler"]


@virtual
async def test_a_timeout_and_a_cancellation_go_through_an_around() -> None:
    """F5: it covers the time that the around takes, and the around can clean up."""
    world = World(max_attempts=1)
    ended: list[str] = []

    @world.harbor.around
    def noted(job: JobContext) -> Iterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            ended.append(job.id)
            raise

    @world.harbor.task(timeout=3)
    async def work() -> None:
        await asyncio.sleep(100)

    job = await work.aenqueue()
    async with world.worker():
        await asyncio.sleep(4)
    assert (await world.record(job)).last_error == "TimeoutError: timed out after 3 s"
    assert ended == [job.id]


def test_only_context_managers_are_taken() -> None:
    """X5: at the registration if that can be seen, else as the job's failure; both name the fix."""
    play = Way("thread", fail)
    around: Any = play.harbor.around

    async def awaits(job: JobContext) -> None: ...

    async def generates(job: JobContext) -> Any:
        yield

    for wrong in (awaits, generates, nullcontext(), "connections"):
        with pytest.raises(ConfigError, match=r"generator function .* @harbor\.middleware"):
            around(wrong)

    @contextmanager
    def takes_none() -> Iterator[None]:
        yield

    def takes_two(job: JobContext, more: object) -> AbstractContextManager[None]:
        return nullcontext()

    for misfit in (takes_none, takes_two):
        with pytest.raises(ConfigError, match=r"generator function .* cannot be called with one argument, the job"):
            around(misfit)
    assert play.harbor._application.arounds == []
    around(lambda job: None)
    assert "returned None" in play.run("x")["x"].last_error
    assert "@harbor.around takes a generator function" in play.run("x")["x"].last_error


def test_the_function_stays_what_it_was() -> None:
    """P: the decorator registers, and returns it."""
    harbor = Harbor("memory://")

    def noted(job: JobContext) -> Iterator[None]:
        yield

    assert harbor.around(noted) is noted
