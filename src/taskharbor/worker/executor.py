"""The executor: runs one handler and returns its `Outcome`. Decides nothing, writes nothing.

Whatever a handler raises ends its own run only (F11). A thread cannot be cancelled: it sees `current().cancelled` and
is waited for, with its slot and lease kept, so that no second run starts beside it (F5).
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from threading import get_ident
from typing import Any, Protocol

from taskharbor.client.client import Client
from taskharbor.client.registered_task import BUILT_IN, Registered
from taskharbor.core.codec import Arguments
from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import Failed, NotRegistered, Outcome, Succeeded
from taskharbor.core.wiring import filled, wiring_of
from taskharbor.worker import outcomes, threads
from taskharbor.worker.context import JobContext, enter
from taskharbor.worker.drain_failures import FailedRuns
from taskharbor.worker.outcomes import StoreAway
from taskharbor.worker.running import NO_EFFECTS, JobRun
from taskharbor.worker.stacks import beyond
from taskharbor.worker.threads import Threads
from taskharbor.workflows.parent_results import AWAY, ParentResults

DONE = Succeeded(None)  # the outcome of nearly every run
OURS = frozenset((__file__, threads.__file__))  # whose frames say nothing about a handler's failure
CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[JobContext, CallNext], Awaitable[Any]]


class Processes(Protocol):
    """Runs jobs in processes of their own."""

    async def run(self, run: JobRun, task: Registered, payload: bytes, begin: Callable[[], None]) -> Outcome:
        """The outcome of a job; `begin` is called when it starts."""
        ...


class Executor:
    """Knows the tasks and how to call them. Without a `pool`, `def` handlers run on the loop (virtual time).

    Without `processes`, tasks with `process=True` run like any other. `failures`, if given, receives what failed runs
    raised.
    """

    def __init__(
        self,
        client: Client,
        middleware: Sequence[Middleware],
        pool: Threads | None,
        processes: Processes | None = None,
    ) -> None:
        self._tasks = client.tasks
        self._middleware = tuple(reversed(middleware))
        self._session = client.session
        self._now = client.session.now
        self._threads = pool
        self._processes = processes
        self.failures: FailedRuns | None = None
        self._parents = ParentResults(client.session)

    async def run(self, run: JobRun, conclude: Callable[[JobRun, Outcome], None]) -> None:
        """Run a claimed job to its end and conclude it with the outcome. It never ends without one."""
        job, timer = run.job, None
        task = self._tasks.get(job.type) or BUILT_IN.get(job.type)
        outcome: Outcome = NotRegistered()
        run.begun = True
        try:
            if run.stop_request is not None or run.lease.lost:  # asked to end before its first step
                outcome = outcomes.stopped(run, task)
            elif task is not None and task.process and self._processes is not None:
                outcome = await self._in_process(self._processes, run, task)
            elif task is not None:
                payload = job.payload if job.workflow_id is None else await self._filled(job, task)
                arguments = task.signature.decode(payload)
                enter(run)
                run.started_at = self._now()
                if job.timeout is not None:
                    timer = _timer(run, job.timeout)
                if task.is_async and not self._middleware:
                    value = await task.handler(*arguments[0], **arguments[1])
                else:
                    value = await self._call(task, arguments, run)
                if value is None and timer is None and run.effects is NO_EFFECTS:
                    outcome = DONE
                else:
                    run.ended = True  # encoding the value may run the user's code, which can enqueue nothing more
                    outcome = outcomes.returned(run, task, value, self._session.payload_limit)
        except BaseException as error:  # decoding and encoding run the user's code as well
            outcome = outcomes.raised(error, beyond(error, OURS), run, task)
            if self.failures is not None and isinstance(outcome, Failed):
                self.failures.raised(run, error)
        finally:
            run.ended = True
            if timer is not None:
                timer.cancel()
        conclude(run, outcome)

    async def _in_process(self, processes: Processes, run: JobRun, task: Registered) -> Outcome:
        job, timers = run.job, list[asyncio.TimerHandle]()

        def begin() -> None:
            run.started_at = self._now()
            if job.timeout is not None:
                timers.append(_timer(run, job.timeout))

        payload = job.payload if job.workflow_id is None else await self._filled(job, task)
        try:
            return await processes.run(run, task, payload, begin)
        finally:
            for timer in timers:
                timer.cancel()

    async def _filled(self, job: JobRecord, task: Registered) -> bytes:
        """The payload of a workflow's step, with the results of its parents if it takes them (K3)."""
        if wiring_of(job.payload).takes is None:
            return job.payload
        try:
            parents = await self._parents.of(job.id)
        except AWAY as error:
            raise StoreAway from error
        return filled(job.payload, task.signature.first or "", parents)

    def _call(self, task: Registered, arguments: Arguments, run: JobRun) -> Awaitable[Any]:
        args, kwargs = arguments

        async def handler() -> Any:
            return await (task.handler(*args, **kwargs) if task.is_async else self._call_plain(task, args, kwargs, run))

        call: CallNext = handler
        for wrap in self._middleware:
            call = wrapped(wrap, JobContext(run), call)
        return call()

    async def _call_plain(self, task: Registered, args: tuple[Any, ...], kwargs: dict[str, Any], run: JobRun) -> Any:
        if self._threads is None:
            result = task.handler(*args, **kwargs)
            return await result if inspect.iscoroutine(result) else result
        loop = asyncio.get_running_loop()

        def call() -> Any:
            run.thread = get_ident()
            try:
                return task.handler(*args, **kwargs)
            finally:
                run.thread = None
                run.returned_at = loop.time()

        future = self._threads.submit(call)
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                if run.abandoned:
                    raise
                continue  # a thread cannot be stopped: it sees `run.stop`, and is waited for
        _credit(run, loop)
        result, error = future.result()
        if error is not None:
            raise error
        return await result if inspect.iscoroutine(result) else result


def _timer(run: JobRun, timeout: float) -> asyncio.TimerHandle:
    """Ask the run to end at its timeout. The clock has the last word: a blocked loop calls no timer in time (F5)."""
    loop = asyncio.get_running_loop()
    run.ends_by = loop.time() + timeout
    return loop.call_at(run.ends_by, run.host.request_stop, run, "timeout")


def _credit(run: JobRun, loop: asyncio.AbstractEventLoop) -> None:
    """Add the time that a thread's result waited for the loop to the timeout: other code blocked it, not this job."""
    time, returned, ends_by = loop.time(), run.returned_at, run.ends_by
    run.ends_by += time - min(returned, time)
    run.returned_at = math.inf
    if returned < ends_by <= time:  # the timer fired in between, without effect: what follows has the rest
        loop.call_at(run.ends_by, run.host.request_stop, run, "timeout")


def wrapped(wrap: Middleware, context: JobContext, call: CallNext) -> CallNext:
    """The call inside a middleware."""

    async def call_wrapped() -> Any:
        return await wrap(context, call)

    return call_wrapped
