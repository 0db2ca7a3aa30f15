"""Stores for simulations. A real engine is called from a thread while virtual time stands still, so that every run on
it is as repeatable as one in memory."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from secrets import token_hex
from typing import Any

from taskharbor.core.urls import with_options
from taskharbor.driver import Driver, Erases, offered
from taskharbor.drivers import from_url, parse
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing.faults import VerbCall
from taskharbor.testing.simulation.blocking import PassThrough

ANSWER_WITHIN = 60.0
POSTGRES = ("postgresql", "postgres")
REDIS = ("redis", "rediss", "unix", "valkey")
NATS = ("nats", "tls")
SERVERS = (*POSTGRES, *REDIS, *NATS)


class Elsewhere(PassThrough):
    """A driver on the event loop of another thread; each call blocks until it returns."""

    def __init__(self, inner: Driver, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(inner)
        self._home = loop

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        return asyncio.run_coroutine_threadsafe(_awaited(call), self._home).result(ANSWER_WITHIN)


async def _awaited(call: VerbCall) -> Any:
    return await call()


def kind(driver: str) -> str:
    """A driver's engine: the part of a URL that may be shown."""
    return driver.partition("://")[0]


@contextmanager
def opened(driver: str, rng: Random) -> Generator[Driver]:
    """A new, empty store: `memory`, `sqlite`, or the URL of any engine; on a server, in a namespace of its own."""
    if driver == "memory":
        yield MemoryDriver(rng)
        return
    with tempfile.TemporaryDirectory(prefix="taskharbor-simulation-") as folder, _thread() as loop:
        url = _own(driver, Path(folder))
        inner = asyncio.run_coroutine_threadsafe(from_url(url), loop).result(ANSWER_WITHIN)
        try:
            yield Elsewhere(inner, loop)
        finally:
            asyncio.run_coroutine_threadsafe(_ended(inner, url), loop).result(ANSWER_WITHIN)


def _own(driver: str, folder: Path) -> str:
    """The URL of a private store."""
    if driver == "sqlite":  # it need not survive a power cut
        return f"sqlite:///{folder / 'jobs.db'}?synchronous=normal"
    if kind(driver) not in SERVERS:
        return driver
    own = {"namespace": f"simulation_{token_hex(8)}"}
    return with_options(driver, **own, **({"migrate": "true"} if kind(driver) in POSTGRES else {}))


async def _ended(driver: Driver, url: str) -> None:
    """Remove the schema, the keys or the streams from a server."""
    if (own := offered(driver, Erases)) is not None and kind(url) in SERVERS:
        await own.erase()
    await driver.close()
    parts, options = parse(url)
    if parts.scheme in POSTGRES:
        from taskharbor.drivers.postgres.login import login  # only here, where asyncpg is

        place = login(parts, options)
        connection = await place.connect()
        try:
            await connection.execute(f'DROP SCHEMA "{place.schema}" CASCADE')
        finally:
            await connection.close(timeout=ANSWER_WITHIN)


@contextmanager
def _thread() -> Generator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_serve, args=[loop], name="taskharbor-simulated-store", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
