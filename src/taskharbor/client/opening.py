"""Blocks in which a store is open: the harbor's own, or for tests another one in its place."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from taskharbor.client.blocks import Managed
from taskharbor.client.client import Client
from taskharbor.client.session import Session

T = TypeVar("T")


def opened(client: Client, value: T) -> Managed[T]:
    """Connect at the beginning of the block and close at its end."""

    @asynccontextmanager
    async def awaited() -> AsyncGenerator[T]:
        await client.session.driver()
        try:
            yield value
        finally:
            await client.session.close()

    @contextmanager
    def blocking() -> Generator[T]:
        client.portal.run(client.session.driver)
        try:
            yield value
        finally:
            _close(client.session)

    return Managed("open", awaited, blocking)


def stand_in(client: Client, make: Callable[[], Session], value: T, *, everywhere: bool) -> Managed[T]:
    """Use another session inside the block: everywhere in this process, or in this context alone."""
    enter = client.stand_in if everywhere else client.stand_in_here

    @asynccontextmanager
    async def awaited() -> AsyncGenerator[T]:
        session = make()
        with enter(session):
            try:
                yield value
            finally:
                await session.close()
                session.portal.close()

    @contextmanager
    def blocking() -> Generator[T]:
        session = make()
        with enter(session):
            try:
                yield value
            finally:
                _close(session)

    return Managed("stand_in", awaited, blocking)


def _close(session: Session) -> None:
    session.portal.run(session.close)
    session.portal.close()
