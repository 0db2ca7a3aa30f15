"""Processes that share one virtual event loop, and can be killed or stopped between any two of their steps.

Everything that a process schedules carries the process in its context. The loop holds back callbacks of dead and
stopped ones: `kill` is kill -9 (no cleanup runs), `pause` and `resume` are SIGSTOP and SIGCONT. Requests that a process
has sent go on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from taskharbor.testing.loop import VirtualLoop

_process: ContextVar[Process | None] = ContextVar("taskharbor_simulated_process", default=None)


class Process:
    """A simulated process. `main` is its one task; tasks made in it belong to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self._held_back: list[_Step] = []
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
        self.alive = False
        self.ended.set()

    def pause(self) -> None:
        """Hold back all its callbacks until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Continue, running everything that came due in the meantime, in order."""
        self.paused = False
        if self.alive:
            self.let_go()

    def let_go(self) -> None:
        """Run everything that was held back."""
        held_back, self._held_back = self._held_back, []
        for step in held_back:
            step.again()

    def holds(self, step: _Step) -> bool:
        """Whether a step of this process must not run now; if so, it is held back."""
        if self.alive and not self.paused:
            return False
        self._held_back.append(step)
        return True


class _Step:
    """A callback of a process, with the handle by which it can be cancelled."""

    __slots__ = ("args", "callback", "context", "handle", "loop", "process")

    def __init__(
        self,
        loop: ProcessLoop,
        process: Process,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        self.loop = loop
        self.process = process
        self.callback = callback
        self.args = args
        self.context = context or copy_context()
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        if self.handle is not None and self.handle.cancelled():
            return
        if self.loop.ending or not self.process.holds(self):
            self.handle = None  # it refers to this step: without the cycle, no garbage is left to collect
            self.callback(*self.args)

    def again(self) -> None:
        asyncio.SelectorEventLoop.call_soon(self.loop, self, context=self.context)


class ProcessLoop(VirtualLoop):
    """A virtual loop that knows the process of every step."""

    def __init__(self) -> None:
        super().__init__(blind=True)
        self.ending = False
        self._processes: list[Process] = []

    def end(self) -> None:
        """Let the tasks of dead processes run again, so that they can be cancelled and cleaned up."""
        self.ending = True
        for process in self._processes:
            process.let_go()

    def know(self, process: Process) -> None:
        """Remember a process until the end."""
        self._processes.append(process)

    def _step(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> _Step | None:
        process = _process.get() if context is None else context.get(_process)
        return None if process is None else _Step(self, process, callback, args, context)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        step = self._step(callback, args, context)
        if step is None:
            return super().call_soon(callback, *args, context=context)
        step.handle = super().call_soon(step, context=step.context)
        return step.handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        step = self._step(callback, args, context)
        if step is None:
            return super().call_at(when, callback, *args, context=context)
        handle = super().call_at(when, step, context=step.context)
        step.handle = handle
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        step = self._step(callback, args, context)
        if step is None:
            return super().call_soon_threadsafe(callback, *args, context=context)
        step.handle = super().call_soon_threadsafe(step, context=step.context)
        return step.handle


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
