"""The blocking face: a background thread with an event loop that runs the async code for callers without one (P1).

There is no second implementation: `blocking` turns an async method into its blocking twin.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from taskharbor.client.forking import after_fork
from taskharbor.errors import BlockingCallInLoop, DriverClosed

P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """A thread with an event loop, started when first needed and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        after_fork(self, Portal._renew)

    def _renew(self) -> None:
        self._lock, self._loop = threading.Lock(), None

    def call(self, twin: str, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine to its end on the portal's loop; refused on a running loop, naming the async twin."""
        refuse_on_a_loop(twin)
        return self.run(function)

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The same for a caller who may block whatever runs in its thread."""
        with self._lock:  # so that `close` finds every call that went to its loop
            future = asyncio.run_coroutine_threadsafe(function(), self._running_loop())
        try:
            return future.result()
        except CancelledError:
            raise DriverClosed("the harbor was closed during this call") from None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=(self._loop,), name="taskharbor-portal", daemon=True).start()
        return self._loop

    def close(self) -> None:
        """Stop the thread, and whatever still waits in it; a later call starts a new one."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


def refuse_on_a_loop(twin: str, words: str = "await") -> None:
    """`BlockingCallInLoop` on a running loop, naming the async twin."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BlockingCallInLoop(f"this call would block the running event loop: use `{words} ….{twin}(…)` here")


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        if pending := asyncio.all_tasks(loop):
            for task in pending:
                task.cancel()
            loop.run_until_complete(asyncio.wait(pending))
        loop.run_until_complete(
            asyncio.sleep(0)
        )  # a call that ended in the last turn still has to hand its result over
    finally:
        wind_up(loop)


def wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop; generators that end with it hear of it first: a driver may have connections there."""
    try:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(asyncio.sleep(0))  # in the next turn, they are gone
    finally:
        loop.close()


class Calls(Protocol):
    """What runs blocking twins, as a portal does."""

    def call(self, twin: str, function: Callable[[], Coroutine[Any, Any, T]]) -> T: ...


class HasPortal(Protocol):
    """Whatever offers blocking twins."""

    @property
    def portal(self) -> Calls: ...


S = TypeVar("S", bound=HasPortal)


def blocking(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], T]:
    """The blocking twin of an async method."""

    @wraps(method)
    def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.portal.call(method.__name__, lambda: method(self, *args, **kwargs))

    return twin
