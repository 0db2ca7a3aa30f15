"""How a step reaches the server: by awaited calls, or by blocking ones on the thread of the caller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, Protocol

from taskharbor.drivers.redis.connection import Arg, Server
from taskharbor.drivers.redis.failure import away
from taskharbor.drivers.redis.scripts import Script, load

CALL = load("call")


class RedisCalls(Protocol):
    """Runs scripts and commands."""

    prefix: str

    async def run(self, script: Script, *args: Arg) -> Any:
        """The reply to a script."""
        ...

    async def command(self, *words: Arg) -> Any:
        """The reply to a command."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait before the next attempt, so that other callers can finish."""
        ...


class AwaitedCalls:
    """Runs them by awaited calls."""

    def __init__(self, server: Server) -> None:
        self.prefix = server.prefix
        self._server = server

    async def run(self, script: Script, *args: Arg) -> Any:
        return await self._server.run(script, *args)

    async def command(self, *words: Arg) -> Any:
        return await self._server.command(*words)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class BoundedCalls:
    """Awaited calls of an act that takes as long as the store is large: each of them has `within` seconds."""

    def __init__(self, server: Server, within: float) -> None:
        self.prefix = server.prefix
        self._server = server
        self._within = within

    async def run(self, script: Script, *args: Arg) -> Any:
        return await self._answer(self._server.run(script, *args))

    async def command(self, *words: Arg) -> Any:
        return await self._answer(self._server.command(*words))

    async def _answer(self, call: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._within):
                return await call
        except TimeoutError as error:
            late = TimeoutError(f"no answer within {self._within:g} s")
            raise away(late, self._server.address, asked=True) from error

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class BlockingCalls:
    """Runs them by blocking calls: its coroutines never wait, `at_once` runs them."""

    def __init__(self, server: Server, timeout: float) -> None:
        self.prefix = server.prefix
        self._server = server
        self._deadline = time.monotonic() + timeout

    async def run(self, script: Script, *args: Arg) -> Any:
        left = max(0.0, self._deadline - time.monotonic())
        return self._server.run_blocking(script, *args, timeout=left)

    async def command(self, *words: Arg) -> Any:
        return await self.run(CALL, *words)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  there is no event loop
