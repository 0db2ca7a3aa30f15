"""The blocking face: `blocking` makes the twin of an async method, which runs on a loop in a background thread (P1)."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from taskharbor.driver.forking import after_fork
from taskharbor.driver.locking import locked
from taskharbor.errors import BlockingCallInLoop, DriverClosed

P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """A thread with an event loop, started when first needed and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may call while this thread holds it
        self._loop: asyncio.AbstractEventLoop | None = None
        after_fork(self, Portal._renew)

    def _renew(self) -> None:
        self._lock, self._loop = threading.RLock(), None

    def call(self, twin: str, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine to its end on the portal's loop; refused on a running loop, naming the async twin."""
        refuse_on_a_loop(twin)
        return self.run(function)

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine to its end on the portal's loop, even if the caller runs on a loop, which it blocks."""
        if sys.is_finalizing():  # a finalizer: no other thread runs any more, so it would wait for ever
            raise DriverClosed("the interpreter is shutting down: make this call earlier, or in an atexit handler")
        reply = Reply[T](function)
        # Under the lock, so that `close` finds every call that went to its loop.
        locked(self._lock, lambda: self._running_loop().call_soon_threadsafe(reply.begin))
        return reply.wait()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=(loop,), name="taskharbor-portal", daemon=True).start()
            self._loop = loop  # last: an interrupt before this leaves a loop that no call uses
        return loop

    def close(self) -> None:
        """Stop the thread and the calls that still wait in it; a later call starts a new one."""
        locked(self._lock, self._stop)

    def _stop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop = None


class Reply(Generic[T]):
    """The result of a call, for a thread that waits for it.

    Unlike a `concurrent.futures.Future`, whose condition breaks or stays locked if Ctrl-C comes at a bad moment, it
    waits for a lock and nothing else.
    """

    def __init__(self, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._function = function
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def begin(self) -> None:
        """Start the call, on the running loop."""
        try:
            task = asyncio.get_running_loop().create_task(self._function())
        except BaseException as error:  # such as wrong arguments
            self._error = error
            self._done.release()
        else:
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._error = DriverClosed("the harbor was closed during this call")
        elif (error := task.exception()) is not None:
            self._error = error
        else:
            self._results.append(task.result())
        self._done.release()

    def wait(self) -> T:
        """Wait for the end of the call; `DriverClosed` if its loop is stopped before."""
        self._done.acquire()
        if self._error is not None:
            raise self._error
        return self._results[0]


def refuse_on_a_loop(twin: str, words: str = "await") -> None:
    """`BlockingCallInLoop` on a running loop, naming the async twin."""
    if asyncio._get_running_loop() is not None:  # the public function raises where there is none, which takes longer
        raise BlockingCallInLoop(f"this call would block the running event loop: use `{words} ….{twin}(…)` here")


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        if pending := asyncio.all_tasks(loop):
            for task in pending:
                task.cancel()
            loop.run_until_complete(asyncio.wait(pending))
        loop.run_until_complete(asyncio.sleep(0))  # a call that ended in the last turn still has to return its result
    finally:
        wind_up(loop)


def wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop after its async generators: a driver may have connections in them."""
    try:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()


class RunsTwins(Protocol):
    """Runs blocking twins, as a portal does."""

    def call(self, twin: str, function: Callable[[], Coroutine[Any, Any, T]]) -> T: ...


class HasPortal(Protocol):
    """Has blocking twins."""

    @property
    def portal(self) -> RunsTwins: ...


S = TypeVar("S", bound=HasPortal)


def blocking(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[S, P], T]:
    """The blocking twin of an async method."""

    @wraps(method)
    def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.portal.call(method.__name__, lambda: method(self, *args, **kwargs))

    return twin
