"""Blocking calls of simulated processes: plain functions in real threads, one step of one of them at a time.

A thread and the loop run in turns. The loop stands still while a thread runs; a thread that waits for the store hands
the wait to the loop, as a task of its process: virtual time passes, faults happen, and the thread of a killed process
never goes on. No two threads run at once, so the same seed still gives the same trace.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast

from taskharbor.client.portal import Portal
from taskharbor.driver import EnqueueBlocking, Group, GroupResult
from taskharbor.testing.faults import Wrapper
from taskharbor.testing.loop import Deadlock

T = TypeVar("T")
StoreWait = Callable[[], Awaitable[Any]]
RETURN_WITHIN = 60.0  # of real time: a store that is not simulated may be slow


class CallResult(NamedTuple):
    """How a function or a wait ended."""

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class _CallThread(threading.Thread):
    """A thread that runs a function in turns with the loop."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(name="taskharbor-simulated-call", daemon=True)
        self._function = function
        self._events: SimpleQueue[StoreWait | CallResult] = SimpleQueue()
        self._answers: SimpleQueue[CallResult] = SimpleQueue()
        self._cancelled: asyncio.CancelledError | None = None
        self.waits: asyncio.Task[Any] | None = None  # kept here: the loop has only a weak reference

    # in the thread

    def run(self) -> None:
        try:
            ended = CallResult(self._function())
        except BaseException as error:
            ended = CallResult(error=error)
        self._events.put(ended)

    def wait_for(self, wait: StoreWait) -> Any:
        """Let the loop run until the wait is over."""
        if self._cancelled is not None:
            raise self._cancelled
        self._events.put(wait)
        return self._answers.get().result()

    # on the loop

    def turn(self) -> StoreWait | CallResult:
        """Stand still until the thread waits or has ended."""
        try:
            return self._events.get(timeout=RETURN_WITHIN)
        except Empty:
            raise Deadlock(
                f"a blocking call of a simulated process has not returned for {RETURN_WITHIN:g} s of real time"
            ) from None

    async def attend(self, wait: StoreWait) -> Any:
        """Do what the thread waits for, again and again, until it ends."""
        event: StoreWait | CallResult = wait
        while not isinstance(event, CallResult):
            self._answers.put(await self._answer(event))
            event = self.turn()
        return event.result()

    async def _answer(self, wait: StoreWait) -> CallResult:
        try:
            return CallResult(await wait())
        except asyncio.CancelledError as error:  # the simulation ends: further waits of the thread raise it too
            self._cancelled = error
            return CallResult(error=error)
        except BaseException as error:
            return CallResult(error=error)


def in_turns(loop: asyncio.AbstractEventLoop, function: Callable[[], T]) -> asyncio.Future[T]:
    """Run the function in a thread. A caller that stops waiting does not stop it, as with any thread."""
    caller = _CallThread(function)
    caller.start()
    event = caller.turn()
    if not isinstance(event, CallResult):
        caller.waits = loop.create_task(caller.attend(event))
        return asyncio.shield(caller.waits)
    future: asyncio.Future[T] = loop.create_future()
    if event.error is not None:
        future.set_exception(event.error)
    else:
        future.set_result(event.value)
    return future


def wait_for(wait: Callable[[], Awaitable[T]]) -> T:
    """The result of a coroutine, for a thread of a simulated process."""
    thread = threading.current_thread()
    if not isinstance(thread, _CallThread):
        raise RuntimeError("a simulated process makes blocking calls by `await asyncio.to_thread(…)`")
    return cast("T", thread.wait_for(wait))


class InTurns(Wrapper):
    """A wrapper whose blocking enqueues wait on the simulation's loop."""

    def _run(self, perform: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return wait_for(perform)


class PassThrough(Wrapper):
    """A wrapper that has nothing to add to a blocking enqueue: the driver inside runs it in the calling thread."""

    def _enqueue_blocking(
        self, inner: EnqueueBlocking, groups: Sequence[Group], now: datetime, timeout: float
    ) -> list[GroupResult]:
        return inner.enqueue_blocking(groups, now, timeout)


class InTurnsPortal(Portal):
    """Blocking twins of a simulated process, on the simulation's loop."""

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return wait_for(function)
