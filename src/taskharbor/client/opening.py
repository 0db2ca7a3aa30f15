"""Blocks in which a store is open: the harbor's own, or for tests another one in its place."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import TypeVar

from taskharbor.client.blocks import Managed
from taskharbor.client.client import Client
from taskharbor.client.session import Session

T = TypeVar("T")
Enter = Callable[[Session], AbstractContextManager[object]]


def opened(client: Client, value: T) -> Managed[T]:
    """Connect at the beginning of the block and close at its end."""
    return _block("open", lambda: client.session, nullcontext, value, own=False)


def stand_in(client: Client, make: Callable[[], Session], value: T, *, everywhere: bool) -> Managed[T]:
    """Use another session inside the block: everywhere in this process, or in this context alone."""
    enter = client.stand_in if everywhere else client.stand_in_here
    return _block("stand_in", make, enter, value, own=True)


def _block(name: str, make: Callable[[], Session], enter: Enter, value: T, *, own: bool) -> Managed[T]:
    @asynccontextmanager
    async def awaited() -> AsyncGenerator[T]:
        session = make()
        with enter(session):
            if not own:
                await session.driver()
            try:
                yield value
            finally:
                await session.close()
                if own:
                    session.portal.close()

    @contextmanager
    def blocking() -> Generator[T]:
        session = make()
        with enter(session):
            if not own:
                session.portal.run(session.driver)
            try:
                yield value
            finally:
                session.portal.run(session.close)
                session.portal.close()

    return Managed(name, awaited, blocking)
