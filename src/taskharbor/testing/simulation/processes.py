"""Processes that share one virtual event loop, and can be killed or stopped between any two of their steps.

Everything that a process schedules carries the process in its context. The loop holds back callbacks of dead and
stopped ones: `kill` is kill -9 (no cleanup runs), `pause` and `resume` are SIGSTOP and SIGCONT. Requests that a process
has sent go on without it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from taskharbor.testing.loop import VirtualLoop
from taskharbor.testing.simulation.blocking import in_turns

T = TypeVar("T")
DAY = 86400.0
FEW = 50
_process: ContextVar[Process | None] = ContextVar("taskharbor_simulated_process", default=None)


class Process:
    """A simulated process. `main` is its one task; tasks made in it belong to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = self.running = True
        self._held_back: list[_ProcessStep] = []
        self.main: asyncio.Task[Any] | None = None
        self.ended = asyncio.Event()

    def start(self, main: Coroutine[Any, Any, None]) -> None:
        """Start the process."""
        context = copy_context()
        context.run(_process.set, self)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop), "simulated processes live on a ProcessLoop"
        loop.know(self)
        self.main = loop.create_task(main, name=self.name, context=context)
        self.main.add_done_callback(self._has_ended, context=_outside(context))

    def _has_ended(self, main: asyncio.Task[Any]) -> None:
        self.kill()

    def kill(self) -> None:
        """Run nothing of it any more, not even cleanup."""
        self.alive = self.running = False
        self.ended.set()

    def pause(self) -> None:
        """Hold back all its callbacks until `resume`."""
        self.running = False

    def resume(self) -> None:
        """Continue, running everything that came due in the meantime, in order."""
        self.running = self.alive
        if self.alive:
            self.let_go()

    def let_go(self) -> None:
        """Run everything that was held back."""
        held_back, self._held_back = self._held_back, []
        for step in held_back:
            step.again()

    def hold_back(self, step: _ProcessStep) -> None:
        """Keep a step that came due while the process does not run."""
        self._held_back.append(step)


class _ProcessStep(asyncio.TimerHandle):
    """A callback, to run soon or at a time, that knows its process. No step comes before another of the same time.

    It does not call the initializer of its base class, which asks the loop twice whether it is in debug mode.
    """

    __slots__ = ("process", "timed")

    def __init__(
        self,
        loop: ProcessLoop,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        when: float | None = None,
    ) -> None:
        self._loop = loop
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._when = when
        self._cancelled = False
        self._source_traceback = self._repr = None
        self.process = self._context.get(_process)
        self.timed = when is not None  # among the timers

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __lt__(self, other: object) -> bool:
        return False

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback, self._args = None, ()
            if self.timed:
                self._loop.cancelled_timers += 1

    def run(self) -> None:
        """Call it, unless it was cancelled or its process holds it back."""
        process = self.process
        if self._callback is None:
            return
        if process is not None and not process.running and not self._loop.ending:
            process.hold_back(self)
            return
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            context = {"message": f"Exception in {self._callback}", "exception": error, "handle": self}
            self._loop.call_exception_handler(context)

    def again(self) -> None:
        """Run it with the next steps."""
        self._loop.steps.append(self)


class ProcessLoop(VirtualLoop):
    """A virtual loop that knows the process of every step.

    It has asyncio's cycle without what a simulation does not need, because a third of its time is spent there. The
    order of steps stays the same, even of timers that are due at the same time: recorded seeds depend on it.
    """

    _clock_resolution: float
    _selector: selectors.BaseSelector
    _stopping: bool
    _write_to_self: Callable[[], None]

    def __init__(self) -> None:
        super().__init__(blind=True)
        self.ending = False
        self.steps: deque[_ProcessStep] = deque()
        self.cancelled_timers = 0
        self._timers: list[tuple[float, _ProcessStep]] = []
        self._processes: list[Process] = []

    def end(self) -> None:
        """Let the tasks of dead processes run again, so that they can be cancelled and cleaned up."""
        self.ending = True
        for process in self._processes:
            process.let_go()

    def know(self, process: Process) -> None:
        """Remember a process until the end."""
        self._processes.append(process)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        step = _ProcessStep(self, callback, args, context)
        self.steps.append(step)
        return step

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        step = self.call_soon(callback, *args, context=context)
        if self._threads:  # else the loop never sleeps
            self._write_to_self()
        return step

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        when = self._now + delay
        step = _ProcessStep(self, callback, args, context, when)
        heappush(self._timers, (when, step))
        return step

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        step = _ProcessStep(self, callback, args, context, when)
        heappush(self._timers, (when, step))
        return step

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """In a thread that runs in turns with the loop, whatever the executor."""
        return in_turns(self, partial(func, *args))

    def _run_once(self) -> None:
        steps, timers = self.steps, self._timers
        if self.cancelled_timers > FEW or (timers and timers[0][1].cancelled()):
            self._drop_cancelled()
        if not steps and not self._stopping:
            self._selector.select(min(max(0.0, timers[0][0] - self._now), DAY) if timers else None)
        due = self._now + self._clock_resolution
        while timers and timers[0][0] < due:
            step = heappop(timers)[1]
            step.timed = False
            steps.append(step)
        for _ in range(len(steps)):
            steps.popleft().run()

    def _drop_cancelled(self) -> None:
        """Drop cancelled timers: the first ones, or all if they are more than half."""
        timers = self._timers
        if len(timers) > 2 * FEW and self.cancelled_timers / len(timers) > 0.5:
            timers[:] = [(when, step) for when, step in timers if not step.cancelled()]
            heapify(timers)
            self.cancelled_timers = 0
        while timers and timers[0][1].cancelled():
            heappop(timers)
            self.cancelled_timers -= 1


def _outside(context: Context) -> Context:
    """The same context, belonging to no process."""
    outside = context.copy()
    outside.run(_process.set, None)
    return outside


def outside() -> Context:
    """A context that belongs to no process, for the network and the store."""
    return _outside(copy_context())


def current_process() -> Process | None:
    """The process that is running, if any."""
    return _process.get()
