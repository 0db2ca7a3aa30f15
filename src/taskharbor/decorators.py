"""What `@harbor.task(…)` and `@harbor.recurring(…)` return: they decorate a `def` or an `async def`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast, overload

from taskharbor.client.naming import check_function, name_of
from taskharbor.client.options import JobOptions, checked
from taskharbor.core.names import check_name
from taskharbor.core.retry import Retry
from taskharbor.errors import ConfigError, ScheduleExists
from taskharbor.task import AsyncTask, Task

if TYPE_CHECKING:
    from taskharbor.client.declaration import Declared
    from taskharbor.client.registered_task import Registered
    from taskharbor.core.recurrence import Recurrence

P = ParamSpec("P")
R = TypeVar("R")
AnyTask = Task[..., Any] | AsyncTask[..., Any]


class Register(Protocol):
    """How a harbor takes a function in."""

    def __call__(
        self, function: Callable[..., Any], name: str | None, retry: Retry | None, options: JobOptions, /
    ) -> AnyTask: ...


class Registrar:
    """Makes a task of a function."""

    def __init__(self, register: Register, name: str | None, retry: Retry | None, options: JobOptions) -> None:
        self._register = register
        self._name = name
        self._retry = retry
        self._options = options

    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]  the first fits
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Any:
        """Register the function."""
        return self._register(function, self._name, self._retry, self._options)


class Recurrer:
    """Makes a recurring task of a function that needs no arguments but those given, or of a task."""

    def __init__(
        self,
        declared: dict[str, Declared],
        tasks: Mapping[str, Registered],
        register: Register,
        name: str | None,
        retry: Retry | None,
        options: JobOptions,
        arguments: Mapping[str, Any],
        when: Recurrence,
    ) -> None:
        self._declared = declared
        self._tasks = tasks
        self._register = register
        self._name = name
        self._retry = retry
        self._options = options
        self._arguments = arguments
        self._when = when

    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]  the first fits
        self, function: AsyncTask[P, R]
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Task[P, R]) -> Task[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]  the first fits
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Any:
        """Declare it."""
        from taskharbor.client.declaration import Declared, check_call

        task = _known(function)
        if task is not None:
            self._check_known(task)
        else:
            check_function("@harbor.recurring", function)
        check_call(function if task is None else task.registered.handler, self._arguments)
        name = self._name if self._name is not None else (name_of(function) if task is None else task.name)
        self._check_name(name)
        task = task or self._register(function, None, self._retry, self._options)
        options = checked({**task.options, **self._options})
        self._declared[name] = Declared(name, task.registered, options, self._arguments, self._when)
        return task

    def _check_known(self, task: AnyTask) -> None:
        from taskharbor.client.declaration import check_options

        if self._retry is not None:
            raise ConfigError("retry= belongs to the task: say it in its @harbor.task")
        if self._tasks.get(task.name) is not task.registered:
            raise ConfigError(f"{task.name} is a task of another harbor: declare it recurring there")
        check_options(task.options)

    def _check_name(self, name: str) -> None:
        check_name("a recurring task's name", name)
        if name in self._declared:
            raise ScheduleExists(f"a recurring task named {name!r} is declared already: give one of them another name=")


def _known(function: Callable[..., Any]) -> AnyTask | None:
    return cast(AnyTask, function) if isinstance(function, Task | AsyncTask) else None
