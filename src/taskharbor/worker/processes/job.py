"""Jobs inside a child: one at a time, with `current()`, middleware, arounds and encoding as in a worker's thread."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, suppress
from contextvars import Context, copy_context
from types import CoroutineType
from typing import Any

from msgspec.structs import replace

from taskharbor.client.client import Client
from taskharbor.client.registered_task import Registered
from taskharbor.core.decide import token_of
from taskharbor.core.outcome import Failed, Snoozed, Succeeded
from taskharbor.core.sizes import shown_size
from taskharbor.worker import around, executor, outcomes
from taskharbor.worker.application import AppRegistry
from taskharbor.worker.around import Arounds
from taskharbor.worker.context import JobContext, enter
from taskharbor.worker.memory import data, resident
from taskharbor.worker.processes import child_loop
from taskharbor.worker.processes.channel import Channel
from taskharbor.worker.processes.child_loop import ChildLoop
from taskharbor.worker.processes.host import ChildHost, ChildRun
from taskharbor.worker.processes.limits import capped
from taskharbor.worker.processes.messages import Perform, RunEnded
from taskharbor.worker.processes.watchdog import Watchdog
from taskharbor.worker.running import NO_EFFECTS, HeldLease, Stop
from taskharbor.worker.stacks import beyond

MEASURE_EVERY = 1.0  # seconds between two looks at the own memory
# Files whose frames say nothing about a handler's failure.
OURS = frozenset(
    (__file__, around.__file__, contextlib.__file__, child_loop.__file__, executor.__file__, threading.__file__)
)
HandlerOutcome = Succeeded | Failed | Snoozed


class ChildJobs:
    """Runs the jobs of a child: `def` handlers here, others on its loop."""

    def __init__(self, client: Client, app: AppRegistry, channel: Channel, make_loop: Callable[[], ChildLoop]) -> None:
        self._client = client
        self._tasks = app.tasks
        self._middleware = tuple(reversed(app.middleware))
        self._arounds = Arounds(app.arounds)
        self._channel = channel
        self._make_home = make_loop
        self._child_loop: ChildLoop | None = None
        self.host = ChildHost(client, channel)
        self.watchdog = Watchdog(channel.look)
        self._base = copy_context()
        self._pid = os.getpid()
        self._run: ChildRun | None = None
        self._task: asyncio.Task[None] | None = None
        self._measured = -math.inf
        self._room = _room(task.memory for task in app.tasks.values() if task.process)
        if app.lifespans or app.middleware:
            self._base = self.child_loop.base

    @property
    def child_loop(self) -> ChildLoop:
        """The loop, started when first needed."""
        if self._child_loop is None:
            self._child_loop = self._make_home()
        return self._child_loop

    def perform(self, message: Perform) -> None:
        """Run a job. Returns at once if it runs on the loop."""
        job = message.job
        task = self._tasks[job.type]
        run = ChildRun(job, HeldLease(token_of(job), math.inf), self.host, NO_EFFECTS, look=self._channel.look)
        run.begun, run.started_at = True, message.now
        self._run = run
        self.watchdog.until = message.until
        context = self._base.copy()
        if task.is_async or self._middleware:
            self.child_loop.start(lambda: self._start(run, task, message, context))
        else:
            context.run(self._call, run, task, message)

    def _start(self, run: ChildRun, task: Registered, message: Perform, context: Context) -> None:
        self._task = self.child_loop.loop.create_task(self._await(run, task, message), context=context)

    def renew(self, until: float) -> None:
        """Note that the lease was renewed."""
        if self._run is not None:
            self.watchdog.until = until

    def grant(self) -> None:
        """Let the transaction settle; from now on the lease is not renewed, and the store decides."""
        self.watchdog.until = math.inf
        self.host.granted.set()

    def stop(self, reason: Stop) -> None:
        """Ask the current run to end; on the loop it is cancelled."""
        run = self._run
        if run is None:
            return
        run.stop_request = reason
        if self._child_loop is not None:
            self._child_loop.start(lambda: self._cancel(run))

    def _cancel(self, run: ChildRun) -> None:
        if self._run is run and self._task is not None:
            self._task.cancel()

    def _call(self, run: ChildRun, task: Registered, message: Perform) -> None:
        with _Timed(run, task, message) as timed:
            args, kwargs = task.signature.decode(message.payload or run.job.payload)
            enter(run)
            value = self._arounds.call(run, task.handler, *args, **kwargs)
            if inspect.iscoroutine(value):
                value = self.child_loop.result(_within(copy_context(), self._rest(run, value)))
            timed.result = self._returned(run, task, value)
        self._end(run, timed)

    async def _await(self, run: ChildRun, task: Registered, message: Perform) -> None:
        with _Timed(run, task, message) as timed:
            args, kwargs = task.signature.decode(message.payload or run.job.payload)
            enter(run)

            def in_thread() -> Any:
                try:
                    return self._arounds.call(run, task.handler, *args, **kwargs)
                finally:
                    self._end_copies(run)

            async def handler() -> Any:
                if task.is_async:
                    return await self._arounds.wait(run, task.handler, *args, **kwargs)
                # In a thread: it may make blocking calls.
                value = await _in_thread(in_thread)
                return await self._rest(run, value) if inspect.iscoroutine(value) else value

            call: Callable[[], Awaitable[Any]] = handler
            for wrap in self._middleware:
                call = executor.wrapped(wrap, JobContext(run), call)
            timed.result = self._returned(run, task, await call())
        self._end(run, timed)

    async def _rest(self, run: ChildRun, value: CoroutineType[Any, Any, Any]) -> Any:
        """Await the coroutine that a `def` handler has returned."""
        return await self._arounds.wait(run, lambda: value)

    def _returned(self, run: ChildRun, task: Registered, value: Any) -> HandlerOutcome:
        run.ended = True  # encoding the value may run the user's code, which can enqueue nothing more
        return outcomes.success(run, task, value, self._client.session.payload_limit)

    def _end(self, run: ChildRun, timed: _Timed) -> None:
        self._end_copies(run)
        size = -1
        if timed.ended_at - self._measured > MEASURE_EVERY:
            self._measured, size = timed.ended_at, resident()
        spent = timed.spent or (self._room is not None and data() > self._room)
        self._run = self._task = None
        self.watchdog.until = math.inf
        self._channel.send(timed.message(run.lease.lost, size, spent))

    def _end_copies(self, run: ChildRun) -> None:
        """End this process if a handler has forked it: the job belongs to the process that forked."""
        if os.getpid() != self._pid:
            sys.stderr.write(f"a process forked by {run.job.type} has left its handler: end it there, by os._exit()\n")
            sys.stderr.flush()
            os._exit(1)

    def leave(self) -> None:
        """Leave the lifespans."""
        if self._child_loop is not None:
            self._child_loop.leave()


class _Timed(AbstractContextManager["_Timed"]):
    """A run from its first to its last step, under its memory limit: its result, whatever it raises (F11)."""

    def __init__(self, run: ChildRun, task: Registered, message: Perform) -> None:
        self._run = run
        self._retry_task = task
        self._memory = message.memory
        self._cap = capped(message.memory)
        self._begun = self.ended_at = time.monotonic()
        self.spent = False
        self.asked = False
        self.result: HandlerOutcome = Failed("RuntimeError", "the run has no result")

    def __enter__(self) -> _Timed:
        self._cap.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, frames: Any) -> bool:
        self._cap.__exit__(None, None, None)
        self._run.ended = True
        self.asked = self._run.stop_request is not None
        if error is not None:
            self.result = self._failure(error)
        self.ended_at = time.monotonic()
        return True

    def _failure(self, error: BaseException) -> HandlerOutcome:
        result = outcomes.failure(error, beyond(error, OURS), self._retry_task)
        if isinstance(error, MemoryError) and self._memory is not None and isinstance(result, Failed):
            self.spent = True  # data of the run may still be in memory
            limit = f"over the memory limit of {shown_size(self._memory)}"
            result = replace(result, message=f"{limit}: {result.message}" if result.message else limit)
        return result

    def message(self, lost: bool, size: int, spent: bool) -> RunEnded:
        """The message about its end."""
        result = self.result
        return RunEnded(
            seconds=self.ended_at - self._begun,
            succeeded=result if isinstance(result, Succeeded) else None,
            failed=result if isinstance(result, Failed) else None,
            snoozed=result if isinstance(result, Snoozed) else None,
            lost=lost,
            asked=self.asked,
            resident=size,
            spent=spent,
        )


def _room(limits: Iterable[int | None]) -> int | None:
    """The most memory that a run may leave in use: a fresh process plus a quarter of the rest of the smallest limit."""
    least = min((limit for limit in limits if limit is not None), default=None)
    return None if least is None else (fresh := data()) + (least - fresh) // 4


async def _in_thread(function: Callable[[], Any]) -> Any:
    """Call it in a thread, which cannot be cancelled: it is waited for, or killed with the process."""

    def call() -> tuple[Any, BaseException | None]:
        try:
            return function(), None
        except BaseException as error:  # some, such as StopIteration, do not pass a future
            return None, error

    future = asyncio.ensure_future(asyncio.to_thread(call))
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(future)
    value, error = future.result()
    if error is not None:
        raise error
    return value


async def _within(context: Context, work: Any) -> Any:
    """Await in the context of the calling thread."""
    return await asyncio.get_running_loop().create_task(work, context=context)
