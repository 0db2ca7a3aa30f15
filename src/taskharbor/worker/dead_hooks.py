"""Dead hooks: the functions of `@harbor.on_dead`, called in the background for each job that was dead-lettered.

Best effort: a few at a time, each for a bounded time. Nothing that a hook does or raises affects the job or the worker.
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
from taskharbor.worker.crew import Crew, lent
from taskharbor.worker.job_log import log_job
from taskharbor.worker.running import JobRun

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
        self._threads = (lent.get() or Crew(AT_A_TIME)) if threads else None
        self._waiting: deque[tuple[Hook, JobRecord]] = deque()
        self._callers: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[BaseException | None]] = set()
        self._closed = False

    @property
    def idle(self) -> bool:
        return not self._callers

    def settled(self, batch: Sequence[tuple[JobRun, Transition]], now: datetime) -> None:
        """Call the hooks for the dead jobs among these accepted outcomes."""
        if self._hooks and not self._closed:
            for run, to in batch:
                if type(to) is Fail:
                    progress = run.effects.progress or run.job.progress
                    ran = replace(run.job, started_at=run.started_at, progress=progress)
                    self._call_hooks(run.host.client.seen(settled(ran, to, self._now())))

    def _call_hooks(self, job: JobRecord) -> None:
        for hook in self._hooks:
            if len(self._waiting) >= MOST_WAITING:
                _log_failure(hook, job, "was not called: too many dead jobs at a time")
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
                    call.cancel()  # not waited for: it may ignore the cancellation
                    _log_failure(hook, job, "was stopped" if self._closed else f"took longer than {LONGEST:g} s")
            if call.done() and not call.cancelled() and (error := call.result()) is not None:
                _log_failure(hook, job, "failed", error)

    async def _call(self, hook: Hook, job: JobRecord) -> BaseException | None:
        """Return what the hook raised: a SystemExit that leaves the task would end the loop."""
        try:
            if iscoroutinefunction(hook):
                await hook(job)
            else:
                await self._call_plain(hook, job)
        except BaseException as error:
            return error
        return None

    async def _call_plain(self, hook: Hook, job: JobRecord) -> None:
        waiting, error = True, None
        try:
            if self._threads is None:
                result = hook(job)
            else:
                result, error = await self._threads.submit(lambda: hook(job) if waiting else None)
        finally:
            waiting = False  # a call that no thread took in time is skipped
        if error is not None:
            raise error
        if isawaitable(result):
            await result

    async def finished(self) -> None:
        """Return when every hook was called."""
        while self._callers:
            await asyncio.wait(set(self._callers))

    async def close(self, patience: float) -> None:
        """Wait up to `patience` seconds for hooks to end, then stop them; those not yet called are skipped."""
        try:
            if self._callers:
                await asyncio.wait(set(self._callers), timeout=patience)
        finally:
            self._closed = True
            for hook, job in self._waiting:
                _log_failure(hook, job, "was not called: the worker has stopped")
            self._waiting.clear()
            for task in (*self._callers, *self._calls):
                task.cancel()
            if self._threads is not None:
                self._threads.close()
        if left := {*self._callers, *self._calls}:
            await asyncio.wait(left, timeout=LAST_WORDS)


def _keep(tasks: set[asyncio.Task[Any]], coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a task and keep it in the set until it ends."""
    task = asyncio.get_running_loop().create_task(coroutine, name="on_dead")
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def _log_failure(hook: Hook, job: JobRecord, what: str, error: BaseException | None = None) -> None:
    name = getattr(hook, "__qualname__", repr(hook))
    traceback = None if error is None else "".join(format_exception(error))
    log_job(logger, logging.ERROR, "hook.failed", job, f"{name} {what}", traceback=traceback, attempt=job.attempts)
