"""The event loop of a child, in a thread of its own: lifespans live there, and `async def` handlers run there.

Handlers of `def` tasks run in the main thread, where no loop runs: they may make blocking calls, and no call changes
threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from contextvars import Context, copy_context
from typing import Any, TypeVar

from taskharbor.worker.application import AppRegistry
from taskharbor.worker.handler_exits import contain_exits

T = TypeVar("T")


class ChildLoop:
    """A loop that runs until `leave`. `base` is the context of every job: what the lifespans have set is in it."""

    def __init__(self, app: AppRegistry) -> None:
        self._app = app
        self.loop = asyncio.new_event_loop()
        self._leaving = asyncio.Event()
        self.base: Context = copy_context()
        contain_exits(self.loop)
        self._thread = threading.Thread(target=self.loop.run_forever, name="taskharbor-loop", daemon=True)
        self._thread.start()
        entered: asyncio.Future[None] = self.result(self._future())
        self._living = asyncio.run_coroutine_threadsafe(self._live(entered), self.loop)
        self.result(_value(entered))

    async def _future(self) -> asyncio.Future[None]:
        return self.loop.create_future()

    async def _live(self, entered: asyncio.Future[None]) -> None:
        """Enter and leave the lifespans in one task: a task group in one of them requires that."""
        try:
            async with AsyncExitStack() as stack:
                await self._app.enter_lifespans(stack)
                self.base = copy_context()
                entered.set_result(None)
                await self._leaving.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    def result(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop to its end, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def start(self, function: Callable[[], object], context: Context | None = None) -> None:
        """Call a function on the loop."""
        self.loop.call_soon_threadsafe(function, context=context)

    def leave(self) -> None:
        """Leave the lifespans."""
        self.loop.call_soon_threadsafe(self._leaving.set)
        self._living.result()


async def _value(future: asyncio.Future[T]) -> T:
    return await future
