"""Middleware around every call, and lifespans around every worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taskharbor import JobContext, Retry, current
from taskharbor.errors import ConfigError
from world import World, time, virtual

CallNext = Callable[[], Awaitable[Any]]


@pytest.mark.parametrize("kind", ["async", "def"])
@virtual
async def test_middleware_wraps_in_the_order_of_its_registration(kind: str) -> None:
    """P: the first one registered is the outermost; results and the current job pass through."""
    world = World()
    log: list[str] = []

    @world.harbor.middleware
    async def outer(job: JobContext, call_next: CallNext) -> Any:
        log.append(f"outer in {job.task}")
        result = await call_next()
        log.append("outer out")
        return result + 1

    @world.harbor.middleware
    async def inner(job: JobContext, call_next: CallNext) -> Any:
        assert current() == job
        log.append("inner in")
        try:
            return await call_next() * 10
        finally:
            log.append("inner out")

    if kind == "async":

        @world.harbor.task(name="t")
        async def handler() -> int:
            log.append("handler")
            return 4

    else:

        @world.harbor.task(name="t")
        def handler() -> int:
            log.append("handler")
            return 4

    async with world.worker():
        assert await (await handler.aenqueue()).aresult() == 41
    assert log == ["outer in t", "inner in", "handler", "inner out", "outer out"]


@virtual
async def test_an_error_of_middleware_is_the_jobs_failure() -> None:
    """F11: and it may turn one error into another, or into a result."""
    world = World(max_attempts=2, retry=Retry.fixed(0))

    @world.harbor.middleware
    async def guard(job: JobContext, call_next: CallNext) -> Any:
        try:
            result = await call_next()
        except KeyError:
            return "saved"
        except ValueError as error:
            raise RuntimeError("worse") from error
        if result == "exit":
            raise SystemExit
        return result

    @world.harbor.task
    async def work(what: str) -> str:
        if what == "key":
            raise KeyError
        if what == "value":
            raise ValueError
        return what

    jobs = {what: await work.aenqueue(what) for what in ("key", "value", "exit", "fine")}
    async with world.worker():
        await asyncio.sleep(5)
    records = {what: await world.record(job) for what, job in jobs.items()}
    assert {what: record.state.value for what, record in records.items()} == {
        "key": "done",
        "value": "dlq",
        "exit": "dlq",
        "fine": "done",
    }
    assert records["key"].result == b'"saved"'
    assert records["value"].last_error == "RuntimeError: worse"
    assert "During handling" in records["value"].failures[0].traceback or "direct cause" in (
        records["value"].failures[0].traceback
    )


@virtual
async def test_middleware_that_does_not_call_on_skips_the_handler() -> None:
    world = World()

    @world.harbor.middleware
    async def skip(job: JobContext, call_next: CallNext) -> Any:
        return "skipped"

    @world.harbor.task
    async def work() -> str:
        raise AssertionError

    async with world.worker():
        assert await (await work.aenqueue()).aresult() == "skipped"


@virtual
async def test_a_timeout_covers_the_middleware_too() -> None:
    """F5."""
    world = World(max_attempts=1)

    @world.harbor.middleware
    async def slow(job: JobContext, call_next: CallNext) -> Any:
        await asyncio.sleep(100)
        return await call_next()

    @world.harbor.task(timeout=3)
    async def work() -> None: ...

    job = await work.aenqueue()
    async with world.worker():
        await asyncio.sleep(4)
    assert (await world.record(job)).last_error == "TimeoutError: timed out after 3 s"


def test_middleware_and_lifespans_must_be_async() -> None:
    """X5."""
    world = World()
    with pytest.raises(ConfigError, match="async function"):
        world.harbor.middleware(lambda job, call_next: call_next())
    with pytest.raises(ConfigError, match="async generator"):

        @world.harbor.lifespan
        async def wrong() -> None: ...


@virtual
async def test_lifespans_surround_the_jobs_of_a_worker() -> None:
    """P: entered in order before the first job, left in reverse after the last settle."""
    world = World()
    log: list[str] = []

    @world.harbor.lifespan
    async def pool() -> AsyncGenerator[None]:
        log.append("open pool")
        await asyncio.sleep(1)
        yield
        log.append("close pool")

    @world.harbor.lifespan
    @asynccontextmanager
    async def client() -> AsyncGenerator[None]:
        log.append("open client")
        yield
        log.append("close client")

    @world.harbor.task
    async def work() -> None:
        log.append("job")
        await asyncio.sleep(5)
        log.append("job ends")

    await work.aenqueue()
    async with world.worker():
        await asyncio.sleep(1)
    assert log == ["open pool", "open client", "job", "job ends", "close client", "close pool"]
    log.clear()
    await work.aenqueue()
    await world.drain()
    assert log == ["open pool", "open client", "job", "job ends", "close client", "close pool"]


@virtual
async def test_a_lifespan_that_fails_starts_no_worker() -> None:
    world = World()
    closed = False

    @world.harbor.lifespan
    async def first() -> AsyncGenerator[None]:
        nonlocal closed
        try:
            yield
        finally:
            closed = True

    @world.harbor.lifespan
    async def broken() -> AsyncGenerator[None]:
        raise ConnectionError("no pool")
        yield

    with pytest.raises(ConnectionError, match="no pool"):
        async with world.worker():
            raise AssertionError
    assert closed
    assert world.log.calls("reserve") == []
    assert time() == 0
