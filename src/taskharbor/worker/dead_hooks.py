"""Telling the application of dead jobs: the functions of `@harbor.on_dead`, called beside the worker's own work.

Best effort. A job is dead before anybody hears of it, and nothing that a hook does, raises or leaves undone changes
that or holds the worker up: hooks run in the background, some at a time, each for a bounded time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from inspect import isawaitable, iscoroutinefunction
from traceback import format_exception
from typing import Any

from msgspec.structs import replace

from taskharbor.core.evolve import settled
from taskharbor.core.job import JobRecord
from taskharbor.core.transition import Fail, Transition
from taskharbor.worker.events import tell
from taskharbor.worker.keeper import Held
from taskharbor.worker.threads import Threads, lent

logger = logging.getLogger("taskharbor.worker")
LONGEST = 30.0
AT_A_TIME = 16
MOST_WAITING = 1000
LAST_WORDS = 1.0

Hook = Callable[[JobRecord], Any]


class DeadHooks:
    """Calls the hooks for each dead job. Without `threads`, `def` hooks run on the loop (virtual time)."""

    def __init__(self, hooks: Sequence[Hook], now: Callable[[], datetime], threads: bool) -> None:
        self._hooks = hooks
        self._now = now
        self._threads = (lent.get() or Threads(AT_A_TIME)) if threads else None
        self._waiting: deque[tuple[Hook, JobRecord]] = deque()
        self._callers: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[BaseException | None]] = set()
        self._closed = False

    @property
    def idle(self) -> bool:
        """Whether nobody is left to be told."""
        return not self._callers

    def settled(self, entries: Sequence[tuple[Held, Transition]]) -> None:
        """Have the hooks called for those of the accepted outcomes that are deaths."""
        if self._hooks and not self._closed:
            for held, to in entries:
                if type(to) is Fail:
                    self._tell(self._buried(held, to))

    def _buried(self, held: Held, to: Fail) -> JobRecord:
        """The record as it is stored now."""
        job = held.job
        ran = replace(job, started_at=held.started_at, progress=held.progress or job.progress)
        return held.client.seen(settled(ran, to, self._now()))

    def _tell(self, job: JobRecord) -> None:
        for hook in self._hooks:
            if len(self._waiting) >= MOST_WAITING:
                _complain(hook, job, "was not called: too many dead jobs at a time")
                continue
            self._waiting.append((hook, job))
            if len(self._callers) < AT_A_TIME:
                _keep(self._callers, self._call_all())

    async def _call_all(self) -> None:
        while self._waiting:
            hook, job = self._waiting.popleft()
            call = _keep(self._calls, self._call(hook, job))
            try:
                await asyncio.wait({call}, timeout=LONGEST)
            finally:
                if not call.done():
                    call.cancel()  # it may not obey: nobody waits for that
                    _complain(hook, job, "was stopped" if self._closed else f"took longer than {LONGEST:g} s")
            if call.done() and not call.cancelled() and (error := call.result()) is not None:
                _complain(hook, job, "failed", error)

    async def _call(self, hook: Hook, job: JobRecord) -> BaseException | None:
        """What the hook raised: nothing may leave it, or the loop would end with it."""
        try:
            if iscoroutinefunction(hook):
                await hook(job)
            else:
                await self._call_plain(hook, job)
        except BaseException as error:
            return error
        return None

    async def _call_plain(self, hook: Hook, job: JobRecord) -> None:
        if self._threads is None:
            result = hook(job)
        else:
            result = await self._call_in_thread(self._threads, hook, job)
        if isawaitable(result):
            await result

    async def _call_in_thread(self, threads: Threads, hook: Hook, job: JobRecord) -> Any:
        waiting = True
        future = threads.submit(lambda: hook(job) if waiting else None)
        try:
            result, error = await future
        finally:
            waiting = False  # a call that has found no thread in its time is not made later
        if error is not None:
            raise error
        return result

    async def told(self) -> None:
        """Return when every hook was called."""
        while self._callers:
            await asyncio.wait(set(self._callers))

    async def close(self, patience: float) -> None:
        """Let hooks end for a while, then stop them; those that were not called never will be."""
        try:
            if self._callers:
                await asyncio.wait(set(self._callers), timeout=patience)
        finally:
            self._closed = True
            for hook, job in self._waiting:
                _complain(hook, job, "was not called: the worker has stopped")
            self._waiting.clear()
            for task in (*self._callers, *self._calls):
                task.cancel()
            if self._threads is not None:
                self._threads.close()
        if left := {*self._callers, *self._calls}:
            await asyncio.wait(left, timeout=LAST_WORDS)


def _keep(tasks: set[asyncio.Task[Any]], coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a task that is among these until it ends."""
    task = asyncio.get_running_loop().create_task(coroutine, name="on_dead")
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def _complain(hook: Hook, job: JobRecord, what: str, error: BaseException | None = None) -> None:
    name = getattr(hook, "__qualname__", repr(hook))
    traceback = None if error is None else "".join(format_exception(error))
    tell(logger, logging.ERROR, "hook.failed", job, f"{name} {what}", traceback=traceback, attempt=job.attempts)
