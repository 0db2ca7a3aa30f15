"""A stage for races on NATS: drivers on one store, each of which can be held up at any of its reads and writes.

Nothing waits for time to pass: what has to happen between two operations of a verb is done there, by a hook.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from servers.nats import NatsServer
from taskharbor.core.job import JobRecord
from taskharbor.drivers import parse
from taskharbor.drivers.nats.connection import JetStream, NatsMessage
from taskharbor.drivers.nats.store import StreamWrite
from taskharbor.testing.kit.jobs import T0

from . import consistency
from .tidied import HandDriver

LEASE = timedelta(seconds=30)
WITHIN = 60
Act = Callable[..., Coroutine[Any, Any, None]]
Play = Callable[[Act], None]
Hook = Callable[[], Awaitable[object]]


class Tap:
    """What a watch is given, which can be kept back or lost."""

    def __init__(self, driver: HandDriver) -> None:
        self._watch = driver._watch
        self._take = self._watch._take
        self._watch._take = self.take  # type: ignore[method-assign]
        self.is_open = True
        self.loses = False
        self.shuts_after: bytes | None = None
        self.lost, self.has_shut, self.has_kept = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.kept: list[NatsMessage] = []

    def take(self, message: NatsMessage) -> None:
        if not self.is_open:
            self.kept.append(message)
            self.has_kept.set()
        elif self.loses and message.subject.startswith(self._watch.store.subjects.line.encode()):
            self.loses = False
            self.lost.set()
        else:
            self._take(message)
            if self.shuts_after is not None and self.shuts_after in message.subject:
                self.shut()

    def shut(self) -> None:
        """Keep messages back."""
        self.is_open = False
        self.has_shut.set()

    def open(self) -> None:
        """Deliver what was kept back."""
        self.is_open = True
        kept, self.kept = self.kept, []
        for message in kept:
            self._take(message)


class Step:
    """Where a driver is held up: before or after its first read or write of a subject."""

    def __init__(self, driver: HandDriver) -> None:
        self._store: Any = driver._store
        self._hooks: dict[str, tuple[str, Hook]] = {}
        for name, kind in (("swap", "write"), ("commit", "write"), ("_read", "read"), ("matching", "read")):
            setattr(self._store, name, self._wrapped(kind, getattr(self._store, name)))

    def at(self, when: str, part: str, hook: Hook) -> None:
        """Call this `before write`, `after read` … of a subject that has this part."""
        self._hooks[when] = part, hook

    def _wrapped(self, kind: str, plain: Any) -> Any:
        async def wrapped(what: Any) -> Any:
            subjects = _subjects(what)
            await self._reached(f"before {kind}", subjects)
            found = await plain(what)
            await self._reached(f"after {kind}", subjects)
            return found

        return wrapped

    async def _reached(self, when: str, subjects: Sequence[str]) -> None:
        part, hook = self._hooks.get(when, ("", None))
        if hook is not None and any(part in subject for subject in subjects):
            del self._hooks[when]
            await hook()


def _subjects(what: object) -> list[str]:
    if isinstance(what, str):
        return [what]
    assert isinstance(what, Sequence)
    return [each.subject if isinstance(each, StreamWrite) else str(each) for each in what]


class Stage:
    """A store, and drivers on it. What is left over is an error, unless `leaves` says that something may be."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._drivers: list[HandDriver] = []
        self.leaves = False

    async def driver(self) -> HandDriver:
        """Another driver."""
        driver = HandDriver(await JetStream.open(*parse(self._url)))
        self._drivers.append(driver)
        return driver

    async def drivers(self, number: int) -> list[HandDriver]:
        """Some drivers."""
        return [await self.driver() for _ in range(number)]

    async def close(self) -> None:
        for driver in self._drivers:
            await driver.close()


@asynccontextmanager
async def _opened(url: str) -> AsyncGenerator[Stage]:
    stage = Stage(url)
    try:
        yield stage
    finally:
        await stage.close()


def player(server: NatsServer, namespace: str) -> Play:
    """Plays scenes in a namespace, after which all that is stored must fit together."""

    def play(act: Act) -> None:
        async def scene() -> bool:
            async with asyncio.timeout(WITHIN), _opened(server.url(namespace=namespace)) as stage:
                await act(stage)
                return stage.leaves

        consistency.check(server, namespace, leaves=asyncio.run(scene()))

    return play


async def claim(driver: Any, limit: int = 99, now: Any = T0, worker: str = "w") -> list[JobRecord]:
    """Claim what is due in `q`."""
    found: list[JobRecord] = await driver.reserve(["q"], now, LEASE, limit, worker)
    return found
