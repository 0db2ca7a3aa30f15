"""Wake-up hints inside one process: coroutines of any event loop wait, any thread wakes them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from taskharbor.driver.locking import locked


class Wakeup:
    """`wake` wakes all current waiters; without waiters it does nothing."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may wake while this thread holds it
        self._waiting: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """Wake all waiters."""
        if not self._waiting:
            return
        for future in locked(self._lock, self._take):
            loop = future.get_loop()
            if loop is _running_loop():
                _wake(future)
            else:
                with suppress(RuntimeError):  # its loop has closed: no waiter is left there
                    loop.call_soon_threadsafe(_wake, future)

    async def wait(self, timeout: float) -> bool:
        """Return at the next `wake` or after `timeout` seconds; whether it was woken."""
        future = asyncio.get_running_loop().create_future()
        locked(self._lock, lambda: self._waiting.add(future))
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return False
        finally:
            locked(self._lock, lambda: self._waiting.discard(future))
        return True

    def _take(self) -> set[asyncio.Future[None]]:
        woken, self._waiting = self._waiting, set()
        return woken

    @property
    def awaited(self) -> bool:
        """Whether there are waiters."""
        return bool(self._waiting)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
