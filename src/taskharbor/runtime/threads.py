"""Threads for `def` handlers: daemons, so that a handler which never returns cannot keep the process from ending."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

Call = tuple[Callable[[], Any], contextvars.Context, "asyncio.Future[Any]"]


class Threads:
    """At most `limit` threads, started when needed and kept until closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._started = 0
        self._waiting = 0
        self._lock = threading.Lock()

    def submit(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run the function in a thread, within a copy of the caller's context."""
        future = asyncio.get_running_loop().create_future()
        self._calls.put((function, contextvars.copy_context(), future))
        with self._lock:
            if self._waiting < self._calls.qsize() and self._started < self._limit:
                self._started += 1
                threading.Thread(target=self._work, name=f"taskharbor-job-{self._started}", daemon=True).start()
        return future

    def close(self) -> None:
        """Let every thread end after what it is doing."""
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._waiting += 1
            call = self._calls.get()
            with self._lock:
                self._waiting -= 1
            if call is None:
                return
            _run(*call)
            del call


def _run(function: Callable[[], Any], context: contextvars.Context, future: asyncio.Future[Any]) -> None:
    result: Any = None
    error: BaseException | None = None
    try:
        result = context.run(function)
    except BaseException as raised:
        error = raised
    loop = future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(_deliver, future, result, error)


def _deliver(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if not future.done():
        future.set_result((result, error))
