"""Threads for `def` handlers: daemons, so that a handler that never returns does not keep the process alive."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

lent: contextvars.ContextVar[Threads | None] = contextvars.ContextVar("taskharbor_threads", default=None)
"""Threads that new workers use instead of their own: for tests."""
Call = tuple[Callable[[], Any], contextvars.Context, "asyncio.Future[Any]"]


class Threads:
    """At most `limit` threads, started when needed and kept until closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._started = 0
        self._busy = 0
        self._lock = threading.Lock()

    def submit(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run the function in a thread, within a copy of the caller's context."""
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            self._busy += 1
            self._calls.put((function, contextvars.copy_context(), future))
            if self._started < min(self._busy, self._limit):
                self._started += 1
                threading.Thread(target=self._work, name=f"taskharbor-job-{self._started}", daemon=True).start()
        return future

    def close(self) -> None:
        """Let every thread end after its current call."""
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            result, error = _outcome(call[0], call[1])
            with self._lock:
                self._busy -= 1
            with suppress(RuntimeError):  # the loop has ended: nothing waits for it
                call[2].get_loop().call_soon_threadsafe(_deliver, call[2], result, error)
            del call, result, error


def _outcome(function: Callable[[], Any], context: contextvars.Context) -> tuple[Any, BaseException | None]:
    try:
        return context.run(function), None
    except BaseException as raised:
        return None, raised


def _deliver(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if not future.done():
        future.set_result((result, error))
