"""Running one handler and saying what happened: claimed record in, `Outcome` out. Decides nothing, writes nothing.

Whatever a handler raises ends its own run only (F11). A run that should end is cancelled; a thread cannot be, so it is
told (`current().cancelled`) and waited for, with its slot and lease kept, so that no second run starts beside it (F5).
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from taskharbor.core.codec import Arguments, Undecodable, checked_size, encode_value
from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import (
    CancelledByRequest,
    Failed,
    Interrupted,
    NotRegistered,
    Outcome,
    Succeeded,
    from_error,
    timed_out,
)
from taskharbor.errors import NotEncodable, PayloadTooLarge
from taskharbor.runtime.client import Client
from taskharbor.runtime.context import JobContext, enter
from taskharbor.runtime.keeper import Held, Stop
from taskharbor.runtime.registered import Registered
from taskharbor.runtime.threads import Threads

CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[JobContext, CallNext], Awaitable[Any]]


class Executor:
    """Knows the tasks and how to call them. Without `threads`, `def` handlers run on the loop (virtual time)."""

    def __init__(
        self,
        tasks: Mapping[str, Registered],
        middleware: Sequence[Middleware],
        client: Client,
        threads: Threads | None,
    ) -> None:
        self._tasks = tasks
        self._middleware = tuple(reversed(middleware))
        self._client = client
        self._session = client.session
        self._threads = threads

    async def run(self, held: Held) -> Outcome:
        """Run a claimed job to its end."""
        job = held.job
        task = self._tasks.get(job.type)
        if task is None:
            return NotRegistered()
        context, timer = JobContext(job, held, self._client), None
        try:
            arguments = task.signature.decode(job.payload)
            enter(context)
            held.started_at = self._session.now()
            if job.timeout is not None:
                timer = asyncio.get_running_loop().call_later(job.timeout, held.notify, held, "timeout")
            value = await self._call(task, arguments, context, held)
            if held.stop == "timeout":
                return _after_stop("timeout", job, task)
            context.ended = True
            return self._success(task, value, context)
        except Undecodable as error:
            return Failed("Undecodable", str(error), final="undecodable")
        except BaseException as error:  # decoding and encoding run the user's code as well
            if held.stop is not None:
                return _after_stop(held.stop, job, task)
            return from_error(error, task.retry, traceback.format_exc())
        finally:
            context.ended = True
            if timer is not None:
                timer.cancel()

    def _call(self, task: Registered, arguments: Arguments, context: JobContext, held: Held) -> Awaitable[Any]:
        args, kwargs = arguments
        if not self._middleware:
            return task.handler(*args, **kwargs) if task.is_async else self._call_plain(task, args, kwargs, held)

        async def handler() -> Any:
            return await (
                task.handler(*args, **kwargs) if task.is_async else self._call_plain(task, args, kwargs, held)
            )

        call: CallNext = handler
        for wrap in self._middleware:
            call = _wrapped(wrap, context, call)
        return call()

    async def _call_plain(self, task: Registered, args: tuple[Any, ...], kwargs: dict[str, Any], held: Held) -> Any:
        if self._threads is None:
            result = task.handler(*args, **kwargs)
            return await result if inspect.iscoroutine(result) else result
        future = self._threads.submit(lambda: task.handler(*args, **kwargs))
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                if held.abandoned:
                    raise
                continue  # a thread cannot be stopped: `held.stop` tells it, and its end is waited for
        result, error = future.result()
        if error is not None:
            raise error
        return await result if inspect.iscoroutine(result) else result

    def _success(self, task: Registered, value: Any, context: JobContext) -> Outcome:
        try:
            result = None if value is None else encode_value(value)
            if result is not None:
                checked_size(result, self._session.payload_limit, f"the result of {task.name}")
        except PayloadTooLarge as error:
            return Failed("PayloadTooLarge", str(error), final="result_too_large")
        except NotEncodable as error:
            return Failed("NotEncodable", f"the result: {error}", final="result_not_encodable")
        return Succeeded(result, tuple(context.new_jobs))


def _wrapped(wrap: Middleware, context: JobContext, call: CallNext) -> CallNext:
    async def wrapped() -> Any:
        return await wrap(context, call)

    return wrapped


def _after_stop(stop: Stop, job: JobRecord, task: Registered) -> Outcome:
    if stop == "timeout":
        return timed_out(job.timeout or 0, task.retry)
    return CancelledByRequest() if stop == "cancel" else Interrupted()
