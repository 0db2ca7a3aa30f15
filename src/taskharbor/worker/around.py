"""Plain context managers around every handler (`@harbor.around`), in the thread or the task where it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from typing import Any, cast

from taskharbor.errors import ConfigError
from taskharbor.worker.context import JobContext
from taskharbor.worker.running import JobRun

Around = Callable[[JobContext], AbstractContextManager[Any] | Iterator[Any]]
Factory = Callable[[JobContext], object]
FIX = "@harbor.around takes a generator function (job) that yields once, or a function that returns a context manager"


def factory_of(function: Around) -> Factory:
    """The function that makes a context manager for a run; a generator function becomes one."""
    given: Any = function
    if not callable(given) or iscoroutinefunction(given) or isasyncgenfunction(given):
        raise ConfigError(f"{FIX}, not {given!r}; for code that awaits there is @harbor.middleware")
    if not _takes_one(given):
        raise ConfigError(f"{FIX}; {given!r} cannot be called with one argument, the job")
    return contextmanager(given) if isgeneratorfunction(given) else given


def _takes_one(function: Callable[..., object]) -> bool:
    try:
        signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # it has no signature: written in C
        pass
    return True


class Arounds:
    """Calls handlers inside the registered context managers, the first one outermost."""

    def __init__(self, factories: Sequence[Factory]) -> None:
        self._factories = tuple(factories)

    def __bool__(self) -> bool:
        return bool(self._factories)

    def call(self, run: JobRun, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function inside them. The result is None if a context manager has swallowed an exception."""
        with ExitStack() as stack:
            self._enter(stack, run)
            return function(*args, **kwargs)

    async def wait(self, run: JobRun, function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Like `call`, for an async function."""
        with ExitStack() as stack:
            self._enter(stack, run)
            return await function(*args, **kwargs)

    def _enter(self, stack: ExitStack, run: JobRun) -> None:
        for factory in self._factories:
            manager = factory(JobContext(run))
            if not isinstance(manager, AbstractContextManager):
                raise ConfigError(f"{FIX}; {factory!r} returned {manager!r}")
            stack.enter_context(cast("AbstractContextManager[Any]", manager))
