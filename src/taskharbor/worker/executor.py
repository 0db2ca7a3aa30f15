"""The executor: runs one handler and returns its `Outcome`. Decides nothing, writes nothing.

Whatever a handler raises ends its own run only (F11). A `def` that needs nothing of the loop is run whole by a thread
(`run_here`), all others by a task of the loop (`run`). A thread cannot be cancelled: it sees `current().cancelled` and
is waited for, with its slot and lease kept, so that no second run starts beside it (F5).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from inspect import iscoroutine
from threading import get_ident
from types import CoroutineType
from typing import Any, Protocol

from taskharbor.client.client import Client
from taskharbor.client.registered_task import BUILT_IN, Registered
from taskharbor.core.codec import Arguments
from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import Failed, NotRegistered, Outcome, Succeeded
from taskharbor.core.text import kind_of, message_of
from taskharbor.core.wiring import filled, wiring_of
from taskharbor.worker import around, crew, outcomes
from taskharbor.worker.application import AppRegistry, CallNext, Middleware
from taskharbor.worker.around import Arounds
from taskharbor.worker.context import JobContext, enter
from taskharbor.worker.crew import Threads
from taskharbor.worker.drain_failures import FailedRuns
from taskharbor.worker.outcomes import StoreAway
from taskharbor.worker.running import NO_EFFECTS, JobRun
from taskharbor.worker.stacks import beyond
from taskharbor.worker.start_clock import StartClock
from taskharbor.workflows.parent_results import AWAY, ParentResults

DONE = Succeeded(None)  # the outcome of nearly every run
# Files whose frames say nothing about a handler's failure.
OURS = frozenset((__file__, around.__file__, crew.__file__, contextlib.__file__))
Conclude = Callable[[JobRun, Outcome], None]


class Processes(Protocol):
    """Runs jobs in processes of their own."""

    async def run(self, run: JobRun, task: Registered, payload: bytes, begin: Callable[[], None]) -> Outcome:
        """The outcome of a job; `begin` is called when it starts."""
        ...


class Executor:
    """Knows the tasks and how to call them. Without `threads`, `def` handlers run on the loop (virtual time).

    `processes` gives the pool for tasks with `process=True`; without it they run like any other. `failures`, if given,
    receives what failed runs raised.
    """

    def __init__(
        self,
        client: Client,
        app: AppRegistry,
        threads: Threads | None,
        processes: Callable[[], Processes] | None = None,
    ) -> None:
        self._tasks = client.tasks
        self._middleware = tuple(reversed(app.middleware))
        self._arounds = Arounds(app.arounds)
        self._is_bare = not (app.middleware or app.arounds)
        self._session = client.session
        self._now = client.session.now
        self._time = asyncio.get_running_loop().time
        self.start_clock = StartClock(self._now, self._time)
        self._threads = threads
        self._context = copy_context()
        self._processes = processes
        self.failures: FailedRuns | None = None
        self._parents = ParentResults(client.session)

    # on the loop

    async def run(self, run: JobRun, conclude: Conclude) -> None:
        """Run a claimed job to its end and conclude it with the outcome. It never ends without one."""
        job, timer = run.job, None
        task = self._tasks.get(job.type) or BUILT_IN.get(job.type)
        outcome: Outcome = NotRegistered()
        run.begun = True
        try:
            if run.stop_request is not None or run.lease.lost:  # asked to stop before its first step
                outcome = outcomes.stopped(run, task)
            elif task is not None and task.process and self._processes is not None:
                outcome = await self._in_process(self._processes(), run, task)
            elif task is not None:
                payload = job.payload if job.workflow_id is None else await self._filled(job, task)
                arguments = task.signature.decode(payload)
                enter(run)
                run.started_at = self.start_clock()
                if job.timeout is not None:
                    timer = _timer(run, self._time() + job.timeout)
                if task.is_async and self._is_bare:
                    value = await task.handler(*arguments[0], **arguments[1])
                else:
                    value = await self._wrapped(run, task, arguments)
                outcome = self._returned(run, task, value)
        except BaseException as error:  # decoding and encoding run the user's code as well
            outcome = self._raised(run, task, error)
        finally:
            run.ended = True
            if timer is not None:
                timer.cancel()
        conclude(run, outcome)

    async def finish(self, run: JobRun, rest: CoroutineType[Any, Any, Any], conclude: Conclude) -> None:
        """Run the coroutine that a `def` handler has returned in its thread, and conclude the run."""
        task, timer = self._tasks[run.job.type], None
        run.begun = True
        try:
            enter(run)
            _credit(run, self._time())
            timer = None if run.job.timeout is None else _timer(run, run.ends_by)
            outcome = self._returned(run, task, await self._rest(run, rest))
        except BaseException as error:
            outcome = self._raised(run, task, error)
        finally:
            run.ended = True
            if timer is not None:
                timer.cancel()
        conclude(run, outcome)

    async def _in_process(self, processes: Processes, run: JobRun, task: Registered) -> Outcome:
        job = run.job

        def begin() -> None:
            run.started_at, run.in_process = self._now(), True
            if job.timeout is not None:
                run.ends_by = self._time() + job.timeout  # the pool sees to it, even if this loop is blocked

        payload = job.payload if job.workflow_id is None else await self._filled(job, task)
        return await processes.run(run, task, payload, begin)

    async def _filled(self, job: JobRecord, task: Registered) -> bytes:
        """The payload of a workflow's step, with the results of its parents if it takes them (K3)."""
        if wiring_of(job.payload).takes is None:
            return job.payload
        try:
            parents = await self._parents.of(job.id)
        except AWAY as error:
            raise StoreAway from error
        return filled(job.payload, task.signature.first or "", parents)

    def _wrapped(self, run: JobRun, task: Registered, arguments: Arguments) -> Awaitable[Any]:
        """The call of the handler, inside the middleware."""

        async def handler() -> Any:
            return await self._call(run, task, arguments)

        call: CallNext = handler
        for wrap in self._middleware:
            call = wrapped(wrap, JobContext(run), call)
        return call()

    async def _call(self, run: JobRun, task: Registered, arguments: Arguments) -> Any:
        """Call the handler where it belongs: on this loop, or in a thread."""
        args, kwargs = arguments
        if task.is_async:
            return await self._arounds.wait(run, task.handler, *args, **kwargs)
        if self._threads is None:
            result = self._arounds.call(run, task.handler, *args, **kwargs)
        else:
            result = await self._in_thread(run, self._threads.submit(lambda: self._call_here(run, task, arguments)))
        return await self._rest(run, result) if iscoroutine(result) else result

    async def _rest(self, run: JobRun, rest: CoroutineType[Any, Any, Any]) -> Any:
        """Await the coroutine that a `def` handler has returned, unless the run was asked to end meanwhile."""
        if run.stop is not None:
            rest.close()
            raise asyncio.CancelledError
        return await self._arounds.wait(run, lambda: rest)

    async def _in_thread(self, run: JobRun, call: asyncio.Future[crew.ValueOrError]) -> Any:
        """Wait for a call in a thread: it cannot be stopped, it sees `run.stop`."""
        while not call.done():
            try:
                await asyncio.shield(call)
            except asyncio.CancelledError:
                if run.abandoned:
                    raise
        time = self._time()
        # Its timer may have fired while the result waited for the loop, and was ignored: the call had returned in time.
        # Then the rest of the run gets a new one.
        fired = run.returned_at < run.ends_by <= time
        _credit(run, time)
        if fired:
            _timer(run, run.ends_by)
        result, error = call.result()
        if error is not None:
            raise error
        return result

    # in a thread

    def fits_a_thread(self, job: JobRecord) -> bool:
        """Whether a thread can run the whole job: a `def` without middleware that takes no results of other jobs."""
        task = self._tasks.get(job.type)
        if task is None or task.is_async or self._middleware or (task.process and self._processes is not None):
            return False
        return job.workflow_id is None or wiring_of(job.payload).takes is None

    def run_here(self, run: JobRun) -> Outcome | CoroutineType[Any, Any, Any]:
        """Run a claimed job in this thread; return its outcome, or the coroutine that its handler has returned."""
        try:
            return self._context.copy().run(self._run_here, run)
        except BaseException as error:  # thrown into this thread by other code, when the handler has just returned
            run.ended = True
            return Failed(kind_of(error), message_of(error))

    def _run_here(self, run: JobRun) -> Outcome | CoroutineType[Any, Any, Any]:
        job, task = run.job, self._tasks[run.job.type]
        run.begun = True
        try:
            if run.stop_request is not None or run.lease.lost:
                outcome = outcomes.stopped(run, task)
            else:
                arguments = task.signature.decode(job.payload)
                enter(run)
                run.started_at = self.start_clock()
                if job.timeout is not None:
                    run.ends_by = self._time() + job.timeout
                value = self._call_here(run, task, arguments)
                if iscoroutine(value):
                    return value
                outcome = self._returned(run, task, value)
        except BaseException as error:
            outcome = self._raised(run, task, error)
        run.ended = True
        return outcome

    def _call_here(self, run: JobRun, task: Registered, arguments: Arguments) -> Any:
        args, kwargs = arguments
        run.thread = get_ident()
        try:
            if self._arounds:
                return self._arounds.call(run, task.handler, *args, **kwargs)
            return task.handler(*args, **kwargs)
        finally:
            run.thread = None
            if run.job.timeout is not None:
                run.returned_at = self._time()

    # in either

    def _returned(self, run: JobRun, task: Registered, value: Any) -> Outcome:
        if value is None and run.job.timeout is None and run.effects is NO_EFFECTS:
            return DONE
        run.ended = True  # encoding the value may run the user's code, which can enqueue nothing more
        return outcomes.returned(run, task, value, self._session.payload_limit, self._ended_at(run))

    def _raised(self, run: JobRun, task: Registered | None, error: BaseException) -> Outcome:
        outcome = outcomes.raised(error, beyond(error, OURS), run, task, self._ended_at(run))
        if self.failures is not None and isinstance(outcome, Failed):
            self.failures.raised(run, error)
        return outcome

    def _ended_at(self, run: JobRun) -> float:
        return min(run.returned_at, self._time())


def _timer(run: JobRun, ends_by: float) -> asyncio.TimerHandle:
    """Ask the run to end at its timeout. Its end is compared with `ends_by` as well: a blocked loop is late (F5)."""
    run.ends_by = ends_by
    return asyncio.get_running_loop().call_at(ends_by, run.host.request_stop, run, "timeout")


def _credit(run: JobRun, time: float) -> None:
    """Add the time that a thread's result waited for the loop to the timeout: other code blocked it, not this job."""
    run.ends_by += time - min(run.returned_at, time)
    run.returned_at = math.inf


def wrapped(wrap: Middleware, context: JobContext, call: CallNext) -> CallNext:
    """The call inside a middleware."""

    async def call_wrapped() -> Any:
        return await wrap(context, call)

    return call_wrapped
