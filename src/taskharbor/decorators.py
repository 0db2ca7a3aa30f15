"""Registration of tasks and recurring tasks: `@harbor.task(…)` and `@harbor.recurring(…)`. Internal: see `Harbor`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from msgspec import Struct

from taskharbor.client.client import Client
from taskharbor.client.naming import check_function, check_importable, name_of
from taskharbor.client.options import TASK_ONLY, TASK_OPTIONS, JobOptions, checked, unknown_option
from taskharbor.client.registered_task import Registered
from taskharbor.core.misfit import closest
from taskharbor.core.names import check_name
from taskharbor.core.retry import Retry
from taskharbor.core.sizes import Size, size
from taskharbor.errors import ConfigError, DuplicateTask, ScheduleExists, UnknownTask
from taskharbor.task import AsyncTask, Task
from taskharbor.worker.application import AppRegistry

if TYPE_CHECKING:
    from taskharbor.core.recurrence import Recurrence

P = ParamSpec("P")
R = TypeVar("R")
AnyTask = Task[..., Any] | AsyncTask[..., Any]


class Manner(Struct, frozen=True):
    """How the jobs of a task are run and retried: the options of `TASK_ONLY`."""

    retry: Retry | None = None
    process: bool = False
    memory: Size | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.process, bool):
            raise ConfigError(f"process must be True or False, not {self.process!r}")
        if self.memory is not None and not self.process:
            raise ConfigError("memory= limits a process: it needs process=True")
        _ = self.limit

    @property
    def limit(self) -> int | None:
        """The memory limit in bytes."""
        return None if self.memory is None else size("memory", self.memory)

    @property
    def given(self) -> str | None:
        """The name of an option that is not at its default."""
        return next((name for name in TASK_ONLY if getattr(self, name)), None)


class Registration:
    """Registers functions with an application: tasks, and recurring tasks."""

    def __init__(self, client: Client, application: AppRegistry) -> None:
        self._client = client
        self.application = application

    def task(
        self,
        function: Callable[..., Any] | None,
        name: str | None,
        manner: Manner,
        options: Mapping[str, Any],
    ) -> Any:
        """The task of a function, or the decorator that makes one."""
        for unknown in sorted(options.keys() - TASK_OPTIONS):
            message = unknown_option(unknown, ("name", *TASK_ONLY, *sorted(TASK_OPTIONS)))
            raise ConfigError(f"@harbor.task: {message} (others belong to one job: task.using(…))")
        registrar = Registrar(self, name, manner, checked(options))
        return registrar if function is None else registrar(function)

    def register(self, function: Callable[..., Any], name: str | None, manner: Manner, options: JobOptions) -> AnyTask:
        """Register a function under its name (P4)."""
        check_function("@harbor.task", function)
        if manner.process:
            check_importable(function)
        tasks = self.application.tasks
        name = check_name("a task's name", name_of(function) if name is None else name)
        if name in tasks:
            is_task = isinstance(function, Task | AsyncTask)
            fix = "put @harbor.task below the other decorator" if is_task else "give one of them another name="
            raise DuplicateTask(f"a task named {name!r} exists already: {fix}")
        retry = manner.retry or self._client.session.settings.retry
        registered = Registered(name, function, retry, options, process=manner.process, memory=manner.limit)
        tasks[name] = registered
        kind = AsyncTask[..., Any] if iscoroutinefunction(function) else Task[..., Any]
        return kind(registered, self._client, options)

    def recurring(
        self,
        name: str | None,
        arguments: Mapping[str, Any] | None,
        manner: Manner,
        given: Mapping[str, Any],
    ) -> Recurrer:
        """The decorator that declares a recurring task."""
        from taskharbor.client.declaration import recurrence  # most harbors have no cron to read

        options = checked({name: value for name, value in given.items() if name in TASK_OPTIONS})
        when = recurrence({name: value for name, value in given.items() if name not in TASK_OPTIONS})
        if arguments is not None and not isinstance(arguments, Mapping):
            raise ConfigError(f"arguments must be a dict by the names of parameters, not {arguments!r}")
        return Recurrer(self, name, manner, options, dict(arguments or {}), when)

    def find(self, name: str) -> Registered:
        """The task of this name."""
        tasks = self.application.tasks
        if name not in tasks:
            without_module = (known for known in tasks if known.rpartition(".")[2] == name)
            close = next(without_module, None) or closest(name, tasks)
            guess = f" (did you mean {close!r}?)" if close else ""
            raise UnknownTask(
                f"no task named {name!r} is registered{guess}; there is {', '.join(sorted(tasks)) or 'none'}"
            )
        return tasks[name]


class Registrar(Struct, frozen=True, eq=False):
    """The decorator that registers a function as a task."""

    _registration: Registration
    _name: str | None
    _manner: Manner
    _options: JobOptions

    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]  the first fits
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Any:
        return self._registered(function)

    def _registered(self, function: Callable[..., Any]) -> AnyTask:
        return self._registration.register(function, self._name, self._manner, self._options)


class Recurrer(Registrar, frozen=True, eq=False):
    """The decorator that makes a function or a task recurring; it must need no arguments beyond those given."""

    _arguments: Mapping[str, Any]
    _when: Recurrence

    def _registered(self, function: Callable[..., Any]) -> AnyTask:
        from taskharbor.client.declaration import Declared, check_call

        task = _known(function)
        if task is not None:
            self._check_known(task)
        else:
            check_function("@harbor.recurring", function)
        check_call(function if task is None else task.registered.handler, self._arguments)
        name = self._name if self._name is not None else (name_of(function) if task is None else task.name)
        check_name("a recurring task's name", name)
        declared = self._registration.application.recurring
        if name in declared:
            raise ScheduleExists(f"a recurring task named {name!r} is declared already: give one of them another name=")
        task = task or self._registration.register(function, None, self._manner, self._options)
        options = checked({**task.options, **self._options})
        declared[name] = Declared(name, task.registered, options, self._arguments, self._when)
        return task

    def _check_known(self, task: AnyTask) -> None:
        from taskharbor.client.declaration import check_options

        if (option := self._manner.given) is not None:
            raise ConfigError(f"{option}= belongs to the task: set it in its @harbor.task")
        if self._registration.application.tasks.get(task.name) is not task.registered:
            raise ConfigError(f"{task.name} is a task of another harbor: declare it recurring there")
        check_options(task.options)


def _known(function: Callable[..., Any]) -> AnyTask | None:
    return cast(AnyTask, function) if isinstance(function, Task | AsyncTask) else None
