"""Turns inside SQLite: one thread at a time, which commits for all that wait in line.

A thread that finds no other inside enters by itself, without a hop to another thread. While one is inside, others put
their requests in line; the next to enter takes the whole line into one commit. Only the main thread runs just its own
request: signals interrupt it, and that must not cost others their answers. The turn is a lock and nothing else, so a
thread that is interrupted anywhere leaves nothing behind that others would wait for longer than RECHECK_EVERY.

Interrupts (Ctrl-C, a signal handler that raises) come after calls and at the start of functions. So a lock is acquired
inside the `try` whose `finally` releases it, and that release is the first call of its `finally`.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import get_ident
from time import monotonic

from taskharbor.drivers.sqlite.batch import Request, RequestResult
from taskharbor.errors import DriverUnavailable

# While commits are this quick, the thread inside goes on with the line: waking another one would take longer.
QUICK = 0.0005
# The longest wait in line before a look: the thread that should have woken this one may have been interrupted.
RECHECK_EVERY = 0.02
NO_TURN = "other threads of this process used the file for too long: nothing was stored"
LOST = "the commit for several threads was interrupted; the operation may have taken effect"
MAIN = threading.main_thread().ident

RunBatch = Callable[[Sequence[Request], float], Sequence[RequestResult]]


class Blocked(Request, eq=False, kw_only=True, gc=False):
    """A request whose caller blocks until it has its answer, or `deadline` (monotonic) is over."""

    deadline: float
    answer: RequestResult | None = None
    in_line: bool = False
    woken: threading.Lock | None = None  # of a caller that waits in line: acquired by it, released to wake it
    left: bool = False

    @property
    def abandoned(self) -> bool:
        return self.left

    def wake(self) -> None:
        """Wake the caller, if it waits in line."""
        woken = self.woken
        if woken is not None and woken.locked():
            with suppress(RuntimeError):  # another thread woke it at this moment
                woken.release()


class Turns:
    """`run(requests, deadline)` has an answer for each request; it is called by one thread at a time."""

    def __init__(self, run: RunBatch) -> None:
        self.lock = threading.RLock()
        self._run = run
        self._line: deque[Blocked] = deque()
        self._inside: int | None = None
        self._busy = 0  # a hint: the thread that is inside, or about to enter

    @property
    def is_inside(self) -> bool:
        """Whether this very thread is inside, so that its caller is a signal handler or a finalizer."""
        return self._inside == get_ident()

    def take(self, request: Blocked) -> RequestResult:
        """Run a request in this thread, which is not inside, or have the thread inside run it."""
        me = get_ident()
        try:
            busy = self._busy
            if busy and busy != me:
                request.woken = woken = threading.Lock()
                woken.acquire()  # before others see the request: they wake only a caller that holds it
                self._put_in_line(request)
                woken.acquire(timeout=max(0.0, min(RECHECK_EVERY, request.deadline - monotonic())))
            if request.answer is None:
                self._busy = me  # from here on others wait in line, not for the lock
                self._enter(request)
        finally:
            request.left = True  # first, so that the request of an interrupted caller is not run later
        if request.answer is None:  # the thread that had taken it from the line was interrupted
            raise DriverUnavailable(LOST)
        return request.answer

    def serve(self, requests: Sequence[Request]) -> Sequence[RequestResult]:
        """Run requests together with those in line, in a thread that signals do not interrupt."""
        with self.lock:
            try:
                self._inside = self._busy = get_ident()
                waiting = self._taken()
                answers = self._run([*requests, *waiting], math.inf)
                _give(waiting, answers[len(requests) :])
            finally:
                self._inside, self._busy = None, 0
        self._wake_next()
        return answers[: len(requests)]

    def _enter(self, request: Blocked) -> None:
        held = late = False
        try:
            try:
                held = self.lock.acquire(False)
                if not held:
                    self._put_in_line(request)
                    left = max(0.0, request.deadline - monotonic())
                    held = self.lock.acquire(timeout=min(left, threading.TIMEOUT_MAX))
                    late = not held
                if held:
                    self._lead(request)
            finally:
                self.lock.release()
        except RuntimeError as error:
            if held:
                raise
            # It was never acquired: the time is over, or the wait was interrupted. Only then is the context the
            # interrupt; else it is an exception that the caller may be handling.
            raise DriverUnavailable(NO_TURN) if late else error.__context__ or error from None
        if self._line:
            self._wake_next()

    def _put_in_line(self, request: Blocked) -> None:
        if not request.in_line:
            request.in_line = True
            self._line.append(request)

    def _lead(self, own: Blocked) -> None:
        try:
            self._inside = self._busy = get_ident()
            if own.in_line and (own.answer is not None or own not in self._line):
                return  # it has its answer, or the thread that had taken it was interrupted
            if not self._serves_others():
                if own.in_line:
                    self._line.remove(own)
                own.answer = self._run([own], own.deadline)[0]
                return
            begun = monotonic()
            taken = self._taken() if self._line else []
            self._run_all(taken if own.in_line else [*taken, own], own.deadline)
            if self._line and (ended := monotonic()) - begun < QUICK:
                while self._line and monotonic() - ended < QUICK:
                    self._run_all(self._taken(), own.deadline)
        finally:
            self._inside, self._busy = None, 0

    def _serves_others(self) -> bool:
        """Whether the thread inside runs the line: not the main thread, which signals interrupt."""
        return self._inside != MAIN

    def _taken(self) -> list[Blocked]:
        """Take the line. Only the thread inside removes from it."""
        taken = [self._line.popleft() for _ in range(len(self._line))]
        return [request for request in taken if not request.left]

    def _run_all(self, requests: Sequence[Blocked], deadline: float) -> None:
        _give(requests, self._run(requests, deadline))

    def _wake_next(self) -> None:
        for request in list(self._line)[:1]:
            request.wake()


def _give(requests: Sequence[Blocked], answers: Sequence[RequestResult]) -> None:
    for request, answer in zip(requests, answers, strict=True):
        request.answer = answer
        request.wake()
