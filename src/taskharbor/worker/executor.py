"""Running one handler and saying what happened: claimed record in, `Outcome` out. Decides nothing, writes nothing.

Whatever a handler raises ends its own run only (F11). A run that should end is cancelled; a thread cannot be, so it is
told (`current().cancelled`) and waited for, with its slot and lease kept, so that no second run starts beside it (F5).
"""

from __future__ import annotations

import asyncio
import inspect
import math
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from taskharbor.client.client import Client
from taskharbor.client.registered_task import BUILT_IN, Registered
from taskharbor.core.codec import Arguments, Undecodable, checked_size, encode_value
from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import (
    CancelledByRequest,
    Deferred,
    Failed,
    Interrupted,
    NotRegistered,
    Outcome,
    Succeeded,
    from_error,
    timed_out,
)
from taskharbor.core.retry import Retry
from taskharbor.core.text import kind_of, message_of
from taskharbor.core.wiring import TooMuch, filled, wiring_of
from taskharbor.errors import NotEncodable, PayloadTooLarge
from taskharbor.worker import threads
from taskharbor.worker.context import JobContext, enter
from taskharbor.worker.drain_failures import Failures
from taskharbor.worker.running import NO_EFFECTS, JobRun, Stop
from taskharbor.worker.threads import Threads
from taskharbor.workflows.parent_results import AWAY, ParentResults

DONE = Succeeded(None)  # what nearly every run comes to
AGAIN_IN = 1.0
OURS = frozenset((__file__, threads.__file__))  # whose frames say nothing about a handler's failure
CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[JobContext, CallNext], Awaitable[Any]]


class _NotNow(Exception):
    """The store was away when a run was to begin: no fault of the job's."""


class Executor:
    """Knows the tasks and how to call them. Without a `pool`, `def` handlers run on the loop (virtual time).

    `failures`, if given, receives what failed runs raised.
    """

    def __init__(
        self,
        tasks: Mapping[str, Registered],
        middleware: Sequence[Middleware],
        client: Client,
        pool: Threads | None,
    ) -> None:
        self._tasks = tasks
        self._middleware = tuple(reversed(middleware))
        self._session = client.session
        self._now = client.session.now
        self._threads = pool
        self.failures: Failures | None = None
        self._parents = ParentResults(client.session.driver, client.session.settings.store_timeout)

    async def run(self, run: JobRun, conclude: Callable[[JobRun, Outcome], None]) -> None:
        """A claimed job's own task: run it to its end, and tell what that was. Nothing leaves it without an outcome."""
        job, timer = run.job, None
        task = self._tasks.get(job.type) or BUILT_IN.get(job.type)
        outcome: Outcome = NotRegistered()
        run.begun = True
        try:
            if (stop := run.stop) is not None:  # asked to end before its first step
                outcome = _after_stop(stop, job, task)
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
                if value is None and timer is None and run.effects is NO_EFFECTS and run.stop is None:
                    outcome = DONE
                else:
                    outcome = self._returned(run, task, value)
        except BaseException as error:  # decoding and encoding run the user's code as well
            outcome = _raised(error, run, task)
            if self.failures is not None and isinstance(outcome, Failed):
                self.failures.raised(run, error)
        finally:
            run.ended = True
            if timer is not None:
                timer.cancel()
        conclude(run, outcome)

    async def _filled(self, job: JobRecord, task: Registered) -> bytes:
        """The payload of a step of a workflow, with what its parents came to, if it takes that (K3)."""
        if wiring_of(job.payload).takes is None:
            return job.payload
        try:
            parents = await self._parents.of(job.id)
        except AWAY as error:
            raise _NotNow from error
        return filled(job.payload, task.signature.first or "", parents)

    def _returned(self, run: JobRun, task: Registered, value: Any) -> Outcome:
        if run.stop == "timeout" or run.ends_by <= asyncio.get_running_loop().time():
            return _after_stop("timeout", run.job, task)
        run.ended = True
        return self._success(task, value, run)

    def _call(self, task: Registered, arguments: Arguments, run: JobRun) -> Awaitable[Any]:
        args, kwargs = arguments

        async def handler() -> Any:
            return await (task.handler(*args, **kwargs) if task.is_async else self._call_plain(task, args, kwargs, run))

        call: CallNext = handler
        for wrap in self._middleware:
            call = _wrapped(wrap, JobContext(run), call)
        return call()

    async def _call_plain(self, task: Registered, args: tuple[Any, ...], kwargs: dict[str, Any], run: JobRun) -> Any:
        if self._threads is None:
            result = task.handler(*args, **kwargs)
            return await result if inspect.iscoroutine(result) else result
        loop = asyncio.get_running_loop()

        def call() -> Any:
            try:
                return task.handler(*args, **kwargs)
            finally:
                run.returned_at = loop.time()

        future = self._threads.submit(call)
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                if run.abandoned:
                    raise
                continue  # a thread cannot be stopped: `run.stop` tells it, and its end is waited for
        _credit(run, loop)
        result, error = future.result()
        if error is not None:
            raise error
        return await result if inspect.iscoroutine(result) else result

    def _success(self, task: Registered, value: Any, run: JobRun) -> Outcome:
        try:
            result = None if value is None else encode_value(value)
            if result is not None:
                checked_size(result, self._session.payload_limit, f"the result of {task.name}")
        except PayloadTooLarge as error:
            return Failed("PayloadTooLarge", str(error), final="result_too_large")
        except NotEncodable as error:
            return Failed("NotEncodable", f"the result: {error}", final="result_not_encodable")
        return Succeeded(result, run.effects.new_jobs)


def _timer(run: JobRun, timeout: float) -> asyncio.TimerHandle:
    """Tell the run to end at its timeout. The clock decides in the end: a blocked loop calls nobody in time (F5)."""
    loop = asyncio.get_running_loop()
    run.ends_by = loop.time() + timeout
    return loop.call_at(run.ends_by, run.host.request_stop, run, "timeout")


def _credit(run: JobRun, loop: asyncio.AbstractEventLoop) -> None:
    """Add the time that a thread's result waited for the loop to the timeout: other code blocked it, not this job."""
    time, returned, ends_by = loop.time(), run.returned_at, run.ends_by
    run.ends_by += time - min(returned, time)
    run.returned_at = math.inf
    if returned < ends_by <= time:  # the timer went off in between, to no effect: what follows has the rest
        loop.call_at(run.ends_by, run.host.request_stop, run, "timeout")


def _wrapped(wrap: Middleware, context: JobContext, call: CallNext) -> CallNext:
    async def wrapped() -> Any:
        return await wrap(context, call)

    return wrapped


def _raised(error: BaseException, run: JobRun, task: Registered | None) -> Outcome:
    if isinstance(error, Undecodable):
        return Failed("Undecodable", str(error), final="undecodable")
    if isinstance(error, TooMuch):
        return Failed("ResultsTooLarge", str(error), final="results_too_large")
    if run.stop not in ("lost", "cancel", "dead_letter") and run.ends_by <= asyncio.get_running_loop().time():
        return _after_stop("timeout", run.job, task)
    if run.stop is not None:
        return _after_stop(run.stop, run.job, task)
    if isinstance(error, _NotNow):
        return Deferred(AGAIN_IN)
    try:
        return from_error(error, task.retry if task else Retry(), _traceback_of(error))
    except BaseException as broken:  # an exception that cannot even be described
        return Failed(kind_of(broken), message_of(broken))


def _traceback_of(error: BaseException) -> str:
    """The traceback from the handler's own frames on; the whole one if there are none."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in OURS:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def _after_stop(stop: Stop, job: JobRecord, task: Registered | None) -> Outcome:
    if stop == "timeout" and task is not None:
        return timed_out(job.timeout or 0, task.retry)
    # One dead-lettered by hand is put back: the store knows the reason, and that a cancel goes before it (T3).
    return CancelledByRequest() if stop == "cancel" else Interrupted(started=stop == "shutdown")
