"""The crew: threads that take calls one after another, and return their results to the event loop in batches.

A thread that is awake goes on while there are calls, so short ones share a thread and a hop back to the loop. Another
thread is woken if the last call took long, or if the loop's own look finds calls left: blocking ones soon have a thread
each. The loop is called when nothing is left to do and otherwise looks by itself, so no result waits for the next call.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from time import perf_counter
from typing import Any, Protocol, TypeVar

logger = logging.getLogger("taskharbor.worker")
LOOK = 0.001  # seconds between the loop's own looks for waiting calls and undelivered results
STREAK = 0.0005  # seconds of short calls after which a thread delivers results although more calls wait
SHORT = 0.0002  # seconds: a call that takes longer may block, and the next one should not wait for it
NO_THREAD = 0.5  # seconds until the next try, when the system has refused a thread

A = TypeVar("A")
R = TypeVar("R")
ValueOrError = tuple[Any, BaseException | None]


class Threads(Protocol):
    """Runs functions in threads."""

    def submit(self, function: Callable[[], Any]) -> asyncio.Future[ValueOrError]:
        """Run a function in a thread, in a copy of the caller's context; the result is its value and what it raised."""
        ...

    def close(self) -> None:
        """Let the threads end."""
        ...


lent: ContextVar[Threads | None] = ContextVar("taskharbor_threads", default=None)
"""Threads that new workers use instead of a crew: for tests."""


class Crew:
    """At most `limit` threads of one event loop, started when needed and kept until closed.

    They are daemons, so that a handler that never returns does not keep the process alive. Deques and flags are shared
    without a lock. What keeps that safe is the order: a side first writes what the other one reads (a call, a result,
    that it goes to sleep, that it will look), and then reads.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._calls: deque[tuple[Callable[[Any], Any], Any, Callable[[Any, Any], None]]] = deque()
        self._results: deque[tuple[Callable[[Any, Any], None], Any, Any]] = deque()
        self._asleep: list[threading.Lock] = []
        self._starting = threading.Lock()
        self._started: int = 0
        self._waking = False  # a thread was woken and has taken no call yet
        self._called = False  # the loop will look at once
        self._looking = False  # the loop will look within `LOOK`
        self._slow = False  # the last call took long
        self._closed = False
        self._head: object = None  # the first waiting call at the last `unstick`

    # on the loop

    def add(self, function: Callable[[A], R], argument: A, deliver: Callable[[A, R], None]) -> None:
        """Call a function in a thread, and then `deliver` on the loop with its result. The function must not raise.

        The call may wait for `go`, so that those of a batch start together.
        """
        self._calls.append((function, argument, deliver))

    def go(self) -> None:
        """Start the calls that were added."""
        if self._calls:
            self._look_soon()
            if not self._waking:
                self._wake_one()

    def submit(self, function: Callable[[], Any]) -> asyncio.Future[ValueOrError]:
        """Run one function; see `Threads`."""
        future: asyncio.Future[ValueOrError] = self._loop.create_future()
        context = copy_context()
        self.add(lambda _: _called(function, context), future, _resolve)
        self.go()
        return future

    def close(self) -> None:
        """Let every thread end after the calls that were added."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._asleep.pop().release()

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._loop.call_later(LOOK, self._look, context=self._context)

    def _look(self) -> None:
        self._looking = False  # first: a thread that adds a result behind this look calls the loop
        if self._waking:
            self._look_soon()
        elif self._calls and (self._asleep or self._started < self._limit):
            self._slow = True  # the thread that should have taken them is delayed
            if self._wake_one():
                self._look_soon()
            else:
                self._loop.call_later(NO_THREAD, self._look, context=self._context)
        if self._results:
            self._collect()

    def _collect(self) -> None:
        self._called = False
        if self._results:
            self._look_soon()
        try:
            while self._results:
                deliver, argument, result = self._results.popleft()
                deliver(argument, result)
        finally:
            if self._results:  # one could not be delivered: go on with the others
                self._call_loop()

    # in any thread

    def unstick(self) -> None:
        """Wake a thread if the first call has waited since the last `unstick`, because the loop itself is blocked."""
        head = None
        with suppress(IndexError):
            head = self._calls[0]
        if head is not None and head is self._head and not self._waking:
            self._slow = True
            self._wake_one()
        self._head = head

    def _wake_one(self) -> bool:
        """Wake or start a thread; False if none sleeps and none can be started."""
        self._waking = True
        try:
            self._asleep.pop().release()
        except IndexError:
            return self._start_one()
        return True

    def _start_one(self) -> bool:
        with self._starting:
            number = self._started + 1
            if number > self._limit:
                self._waking = False
                return True  # all are awake, and take the waiting calls
            self._started = number
            try:
                threading.Thread(target=self._work, name=f"taskharbor-job-{number}", daemon=True).start()
            except RuntimeError as error:
                self._started, self._waking = number - 1, False
                logger.warning(
                    "worker.threads: a `def` handler waits: the system refused a thread beside %d: %s",
                    number - 1,
                    error,
                )
                return False
        return True

    def _work(self) -> None:
        bed = threading.Lock()
        bed.acquire()
        try:
            self._serve(bed)
        finally:  # closed, or other code has raised an exception in this thread
            with suppress(ValueError):  # it may have been about to sleep: nothing must wake it now
                self._asleep.remove(bed)
            with self._starting:
                self._started -= 1
            self._waking = False  # it may have been woken, and have taken no call

    def _serve(self, bed: threading.Lock) -> None:
        while not self._closed or self._calls:
            self._waking = False
            self._take_all()
            self._asleep.append(bed)  # before the loop is called, which may have more calls at once
            if self._results and not self._called:
                self._call_loop()
            if self._calls or self._closed:  # added before this thread was seen asleep
                with suppress(ValueError):  # woken meanwhile
                    self._asleep.remove(bed)
                    continue
            bed.acquire()

    def _take_all(self) -> None:
        calls, results, since = self._calls, self._results, perf_counter()
        while True:
            try:
                function, argument, deliver = calls.popleft()
            except IndexError:
                return
            if calls and self._slow and not self._waking:
                self._wake_one()
            begun = perf_counter()
            results.append((deliver, argument, function(argument)))
            ended = perf_counter()
            self._slow = ended - begun > SHORT
            del function, argument, deliver  # a sleeping thread must not keep objects alive
            if calls and not self._called and not (self._looking and ended - since < STREAK):
                self._call_loop()
                since = ended

    def _call_loop(self) -> None:
        self._called = True
        with suppress(RuntimeError):  # the loop has ended: nothing waits for the results
            self._loop.call_soon_threadsafe(self._collect, context=self._context)


def _called(function: Callable[[], Any], context: Context) -> ValueOrError:
    try:
        return context.run(function), None
    except BaseException as raised:
        return None, raised


def _resolve(future: asyncio.Future[ValueOrError], result: ValueOrError) -> None:
    if not future.done():
        future.set_result(result)
