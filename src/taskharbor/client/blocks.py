"""Context managers for both `with` and `async with`, and blocking calls that run on their own loop (P1).

Workers do not use the portal's loop: a handler that blocks must not hold up the enqueues of this process.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar
from weakref import WeakSet

from msgspec import Struct

from taskharbor.client.portal import refuse_on_a_loop
from taskharbor.errors import DriverClosed

CLOSE_PATIENCE = 1.0  # for tasks that still run on a loop of ours when its work is done
abandoned: WeakSet[asyncio.Task[Any]] = (
    WeakSet()
)  # runs that a worker has abandoned: closing a loop does not wait for them either
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
Y = TypeVar("Y", covariant=True)
ExitArguments = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
NOTHING: ExitArguments = (None, None, None)


class Managed(Struct, Generic[Y], frozen=True, eq=False):
    """A context manager for `with` and `async with`; a `with` on a running event loop is refused."""

    _name: str
    _make_awaited: Callable[[], AbstractAsyncContextManager[Y]]
    _make_blocking: Callable[[], AbstractContextManager[Y]]
    _awaited: list[AbstractAsyncContextManager[Y]] = []
    _blocking: list[AbstractContextManager[Y]] = []

    def __repr__(self) -> str:
        return f"<{self._name}(…): use it by `with` or `async with`>"

    async def __aenter__(self) -> Y:
        manager = self._make_awaited()
        value = await manager.__aenter__()
        self._awaited.append(manager)
        return value

    async def __aexit__(self, *raised: Any) -> bool | None:
        return await self._awaited.pop().__aexit__(*raised)

    def __enter__(self) -> Y:
        refuse_on_a_loop(self._name, "async with")
        manager = self._make_blocking()
        value = manager.__enter__()
        self._blocking.append(manager)
        return value

    def __exit__(self, *raised: Any) -> bool | None:
        return self._blocking.pop().__exit__(*raised)


def run_here(twin: str, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine to its end on a new loop in the calling thread; refused on a running loop.

    In the main thread, Ctrl-C cancels it and is raised when it has ended. Tasks that ignore their cancellation never
    run again: the loop is left as it is.
    """
    refuse_on_a_loop(twin)
    runner = _runner()
    try:
        return runner.run(function())
    finally:
        _close(runner)


def blocking_here(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[S, P], T]:
    """The blocking twin of an async method, on a loop of its own in the calling thread."""

    @wraps(method)
    def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_here(method.__name__, lambda: method(self, *args, **kwargs))

    return twin


def _close(runner: asyncio.Runner) -> None:
    """Close the loop as `Runner.close` does, but wait for its tasks within a bound only."""
    loop = runner.get_loop()
    ours = [task for task in asyncio.all_tasks(loop) if task not in abandoned]
    for task in ours:
        task.cancel()
    if ours:
        loop.run_until_complete(asyncio.wait(ours, timeout=CLOSE_PATIENCE))
    loop.run_until_complete(asyncio.sleep(0))
    if left := asyncio.all_tasks(loop):
        # A daemon thread keeps the tasks from being collected, which would run their `finally` blocks at any time.
        park = threading.Event().wait
        threading.Thread(target=lambda *_: park(), args=(runner, left), name="taskharbor-left", daemon=True).start()
    else:
        runner.close()


def _runner() -> asyncio.Runner:
    # With a factory, a runner leaves the thread's current loop alone: it may belong to other code.
    return asyncio.Runner(loop_factory=asyncio.new_event_loop)


class _Alongside(Generic[T]):
    """An async context manager that runs in one task of its own thread."""

    def __init__(self, manager: AbstractAsyncContextManager[T], name: str) -> None:
        self._manager = manager
        self._entered: Future[T] = Future()
        self._left: Future[bool | None] = Future()
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._raised: ExitArguments = NOTHING
        self._interrupted = False
        self._leaving: asyncio.Event | None = None
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name=name, daemon=True)

    def enter(self) -> T:
        self._thread.start()
        return self._entered.result()

    def leave(self, raised: ExitArguments) -> bool | None:
        if os.getpid() != self._process:
            return None  # a forked child has no such thread
        if not self._entered.done():
            self._interrupt()  # Ctrl-C while it waits for the store
            return None
        if self._entered.exception() is not None:
            self._thread.join(CLOSE_PATIENCE)  # it failed to begin and is ending
            return None
        self._raised = raised
        try:
            self._on_loop(self._leaving.set if self._leaving is not None else None)
            wait([self._left])
            self._thread.join(CLOSE_PATIENCE)  # longer only if a run that was abandoned goes on there
        except BaseException:
            self._interrupt()
            raise
        return self._left.result()

    def _interrupt(self) -> None:
        self._interrupted = True  # first: a task that is created later checks it
        self._on_loop(self._task.cancel if self._task is not None else None)

    def _on_loop(self, what: Callable[[], object] | None) -> None:
        if what is not None and self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(what)

    def _run(self) -> None:
        runner = _runner()
        try:
            self._left.set_result(runner.run(self._live()))
        except BaseException as error:
            self._fail(error)
        finally:
            runner.close()  # the block may end before: this waits for runs that were abandoned

    def _fail(self, error: BaseException) -> None:
        failure = error
        if not isinstance(error, Exception):  # such as a handler's SystemExit
            failure = DriverClosed(f"the worker's thread was ended: {type(error).__name__}")
        with suppress(InvalidStateError):
            self._entered.set_exception(failure)
        self._left.set_exception(failure)

    async def _live(self) -> bool | None:
        self._loop, self._task, self._leaving = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
        if self._interrupted:
            return None
        value = await self._manager.__aenter__()
        try:
            self._entered.set_result(value)
            await self._leaving.wait()
        except BaseException:  # interrupted at the moment when it had begun
            await self._manager.__aexit__(*sys.exc_info())
            raise
        return await self._manager.__aexit__(*self._raised)


@contextmanager
def alongside(make: Callable[[], AbstractAsyncContextManager[T]], name: str) -> Generator[T]:
    """Run an async context manager in a thread beside a block of blocking code."""
    block = _Alongside(make(), name)
    try:
        yield block.enter()
    except BaseException as error:
        if not block.leave((type(error), error, error.__traceback__)):
            raise
    else:
        block.leave(NOTHING)
