"""Background coroutines: in a task of this loop, or in a thread with its own loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from taskharbor.client.portal import wind_up

logger = logging.getLogger("taskharbor.worker")
AFTER_BREAKDOWN = 0.2

Main = Callable[[], Coroutine[Any, Any, None]]


async def persistently(main: Main, name: str) -> None:
    """Restart it after an unexpected error: a worker needs its keeper and its settler."""
    while True:
        try:
            return await main()
        except Exception:
            with suppress(Exception):  # the error may come from logging
                logger.exception("%s failed and starts again", name)
            await asyncio.sleep(AFTER_BREAKDOWN)


class InTask:
    """Hosted by a task of the running loop."""

    def __init__(self, main: Main, name: str) -> None:
        self._task = asyncio.get_running_loop().create_task(persistently(main, name), name=name)

    async def stop(self) -> None:
        """Cancel it and wait for its end."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


class InThread:
    """Hosted by a daemon thread with an event loop of its own, so that a blocked loop elsewhere does not stop it."""

    def __init__(self, main: Main, name: str) -> None:
        self._main = main
        self._name = name
        self._home = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._until_stopped())
        finally:
            wind_up(self._loop)
            if not self._home.is_closed():
                self._home.call_soon_threadsafe(self._ended.set)

    async def _until_stopped(self) -> None:
        main = asyncio.create_task(persistently(self._main, self._name))
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({main, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (main, stopped):
            task.cancel()
        await asyncio.gather(main, stopped, return_exceptions=True)

    async def stop(self) -> None:
        """Cancel it and wait for its end."""
        with suppress(RuntimeError):  # its loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        await self._ended.wait()
