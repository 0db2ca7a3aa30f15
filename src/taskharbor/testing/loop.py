"""An event loop with virtual time: where another loop would sleep, this one advances its clock.

An hour of timers runs in milliseconds, in the same order every time. When everything is blocked and no timer is set,
`Deadlock` is raised instead of hanging. While a thread works for the loop, time stands still, unless the loop was made
with `threads_hold_time=False`: then timers go on.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE = 30.0


class Deadlock(RuntimeError):
    """Every task waits, and nothing can wake one."""


class _Selector(selectors.DefaultSelector):
    """A selector that calls `idle` instead of sleeping."""

    idle: Callable[[float | None], float]
    blind = False  # nothing external is awaited: no system call needed at every turn

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = [] if self.blind else super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        wait = self.idle(timeout)
        if self.blind and not wait:
            return ready
        ready = super().select(wait)
        if wait and not ready:
            raise Deadlock(f"a thread at work for the loop has not come back for {wait:g} s of real time")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`loop.time()` starts at zero and moves only when every task waits for a timer.

    A `blind` one watches neither sockets nor threads.
    """

    def __init__(self, *, threads_hold_time: bool = True, blind: bool = False) -> None:
        selector = _Selector()
        selector.blind = blind
        super().__init__(selector)
        self._now = 0.0
        self._threads = 0
        self._threads_hold_time = threads_hold_time
        selector.idle = self._idle

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def _idle(self, timeout: float | None) -> float:
        """Advance to the next timer; only threads are waited for in real time."""
        if self._threads and (self._threads_hold_time or timeout is None):
            return PATIENCE
        if timeout is None:
            raise Deadlock("nothing can happen any more: no timer is set, and these tasks wait:\n" + _waiting(self))
        self._now += timeout
        return 0

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """As in the base class; the loop counts a thread as busy until the future is done."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._thread_is_back)
        return future

    def _thread_is_back(self, _: asyncio.Future[Any]) -> None:
        self._threads -= 1

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """As in the base class; threads are waited for in real time, whatever the timeout."""
        self._threads += 1
        self._threads_hold_time = True
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            self._threads -= 1


def run(main: Coroutine[Any, Any, T], *, threads_hold_time: bool = True) -> T:
    """`asyncio.run` in virtual time."""
    make = partial(VirtualLoop, threads_hold_time=threads_hold_time)
    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(main)


def _waiting(loop: asyncio.AbstractEventLoop) -> str:
    lines = [f"  {task.get_name()}: {_place(task)}" for task in asyncio.all_tasks(loop)]
    return "\n".join(sorted(lines)) or "  (none)"


def _place(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    name = getattr(task.get_coro(), "__qualname__", "?")
    return f"{name} at {frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else name
