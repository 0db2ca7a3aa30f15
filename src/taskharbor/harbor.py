"""The harbor: where tasks are registered and jobs come in. The one object that an application makes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from inspect import isasyncgenfunction, iscoroutinefunction
from random import Random
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from taskharbor import config, drivers
from taskharbor.admin.admin import Admin
from taskharbor.client.blocks import Managed
from taskharbor.client.client import Client
from taskharbor.client.clock import Clock
from taskharbor.client.enqueue import Calls, enqueue_one, enqueue_one_blocking, listed
from taskharbor.client.handle import Job
from taskharbor.client.naming import check_function, name_of, returns_its_result
from taskharbor.client.options import (
    TASK_OPTIONS,
    Duration,
    JobOptions,
    checked,
    checked_settings,
    seconds,
    unknown_option,
)
from taskharbor.client.other_names import HARBOR_NAMES, hinting
from taskharbor.client.portal import Portal, blocking, refuse_on_a_loop
from taskharbor.client.registered_task import Registered
from taskharbor.client.rng import own_rng
from taskharbor.client.session import Session, Settings
from taskharbor.core.codec import PAYLOAD_LIMIT
from taskharbor.core.decide import Retention
from taskharbor.core.misfit import closest
from taskharbor.core.names import check_name
from taskharbor.core.retry import Retry
from taskharbor.decorators import Recurrer, Registrar
from taskharbor.driver import Driver, Migration
from taskharbor.errors import ConfigError, DuplicateTask, UnknownTask
from taskharbor.task import AsyncTask, Task
from taskharbor.worker.dead_hooks import Hook
from taskharbor.worker.executor import Middleware
from taskharbor.worker.workplace import Workplace
from taskharbor.workflows.run import Run
from taskharbor.workflows.step import Step, named_step

if TYPE_CHECKING:
    from taskharbor.client.declaration import RecurringOptions

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Middleware)
H = TypeVar("H", bound=Hook)
L = TypeVar("L", bound=Callable[[], Any])


class Harbor(Workplace):
    """A durable job queue in the store that the URL names.

    The URL is the argument, else TASKHARBOR_URL, else `[tool.taskharbor] url`, else `sqlite:///taskharbor.db`.
    `clock` and `chance` are for tests that run on given time and from a seed.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        max_attempts: int | None = 4,
        max_crashes: int | None = 5,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        idempotency_ttl: Duration | None = 24 * 3600,
        payload_limit: int = PAYLOAD_LIMIT,
        keep_done: Duration = 24 * 3600,
        keep_dead: Duration = 30 * 24 * 3600,
        store_timeout: float = 30.0,
        clock: Clock | None = None,
        chance: Random | None = None,
        driver: Driver | None = None,
    ) -> None:
        checked_settings(
            {
                "max_attempts": max_attempts,
                "max_crashes": max_crashes,
                "timeout": timeout,
                "idempotency_ttl": idempotency_ttl,
                "payload_limit": payload_limit,
                "keep_done": keep_done,
                "keep_dead": keep_dead,
                "store_timeout": store_timeout,
            }
        )
        self.url = config.store_url(url)
        if driver is None:
            drivers.parse(self.url)
        settings = Settings(
            max_attempts=max_attempts,
            max_crashes=max_crashes,
            timeout=None if timeout is None else seconds(timeout),
            retry=_policy(retry) or Retry(),
            idempotency_ttl=None if idempotency_ttl is None else seconds(idempotency_ttl),
            payload_limit=payload_limit,
            retention=Retention(_length(keep_done), _length(keep_dead)),
            store_timeout=store_timeout,
        )
        self._driver = driver
        super().__init__(Client(Session(self._connect, settings, clock, chance or own_rng(), self._shown)))
        self.admin = Admin(self._client, self._tasks)

    if not TYPE_CHECKING:
        __getattr__ = hinting(HARBOR_NAMES, lambda _: "harbor")

    def __repr__(self) -> str:
        return f"<Harbor {drivers.redacted(self.url)}>"

    async def _connect(self) -> Driver:
        return self._driver or await drivers.from_url(self.url)

    def _shown(self) -> str | None:
        return config.shown_url(self.url) if self._driver is None else None

    @property
    def portal(self) -> Portal:
        """Where blocking twins run."""
        return self._session.portal

    @property
    def client(self) -> Client:
        """The way to the store, for what stands beside tasks and jobs, such as a TaskManager."""
        return self._client

    @property
    def tasks(self) -> Mapping[str, Registered]:
        """The registered tasks by name."""
        return self._tasks

    # registering

    @overload
    def task(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]  the first fits
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int | None = ...,
        max_crashes: int | None = ...,
        timeout: Duration | None = ...,
        retry: Retry | Callable[[int], float] | None = None,
        tags: Sequence[str] = (),
    ) -> Registrar: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | Callable[[int], float] | None = None,
        **options: Any,
    ) -> Any:
        """Register a function as a task: `@harbor.task` or `@harbor.task(queue=…, retry=…)`."""
        for unknown in sorted(options.keys() - TASK_OPTIONS):
            said = unknown_option(unknown, ("name", "retry", *sorted(TASK_OPTIONS)))
            raise ConfigError(f"@harbor.task: {said} (others belong to one job: task.using(…))")
        registrar = Registrar(self.register, name, _policy(retry), checked(options))
        return registrar if function is None else registrar(function)

    def register(
        self, function: Callable[..., Any], name: str | None, retry: Retry | None, options: JobOptions
    ) -> Task[..., Any] | AsyncTask[..., Any]:
        """Register a function under its name (P4)."""
        check_function("@harbor.task", function)
        name = check_name("a task's name", name_of(function) if name is None else name)
        if name in self._tasks:
            is_task = isinstance(function, Task | AsyncTask)
            fix = "put @harbor.task below the other decorator" if is_task else "give one of them another name="
            raise DuplicateTask(f"a task named {name!r} exists already: {fix}")
        registered = Registered(name, function, retry or self._session.settings.retry, options)
        self._tasks[name] = registered
        if iscoroutinefunction(function):
            return AsyncTask[..., Any](registered, self._client, options)
        return Task[..., Any](registered, self._client, options)

    def recurring(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        retry: Retry | Callable[[int], float] | None = None,
        **given: Unpack[RecurringOptions],
    ) -> Recurrer:
        """Run a function again and again: `cron="0 3 * * *"` in the time zone `tz`, or `every` so often (N2).

        It becomes a task as by `@harbor.task`, unless it is one already. `name` is that of the recurring task alone,
        for a task that has several; `arguments` are what it is called with.
        Workers write this down when they start, the last one to start wins, and every worker sees to it (N5).
        """
        from taskharbor.client.declaration import recurrence  # most harbors have no cron to read

        if function is not None:
            raise ConfigError(
                'say when by name: @harbor.recurring(cron="0 3 * * *") or @harbor.recurring(every=timedelta(hours=1))'
            )
        options = checked({name: value for name, value in given.items() if name in TASK_OPTIONS})
        when = recurrence({name: value for name, value in given.items() if name not in TASK_OPTIONS})
        if arguments is not None and not isinstance(arguments, Mapping):
            raise ConfigError(f"arguments must be a dict by the names of parameters, not {arguments!r}")
        given_to_it = dict(arguments or {})
        return Recurrer(self._recurring, self._tasks, self.register, name, _policy(retry), options, given_to_it, when)

    def middleware(self, function: M) -> M:
        """Wrap every handler call: `async def timing(job, call_next): return await call_next()`."""
        is_async: bool = iscoroutinefunction(function)
        if not is_async:
            raise ConfigError("@harbor.middleware takes an async function (job, call_next)")
        self._middleware.append(function)
        return function

    def lifespan(self, function: L) -> L:
        """Enter this async context manager before a worker's first job and leave it after its last."""
        if iscoroutinefunction(function) or not callable(function):
            raise ConfigError("@harbor.lifespan takes an async generator function: set up, yield, tear down")
        self._lifespans.append(asynccontextmanager(function) if isasyncgenfunction(function) else function)
        return function

    def on_dead(self, function: H) -> H:
        """Call this function with the record of each job that a worker of this harbor dead-letters.

        Best effort, in the background, for at most 30 s. Whatever it raises is logged and changes nothing.
        """
        if not returns_its_result(function):
            raise ConfigError(f"@harbor.on_dead takes a def or an async def of the dead job's record, not {function!r}")
        self._on_dead.append(function)
        return function

    # enqueueing

    async def aenqueue_many(self, steps: Iterable[Step[R]]) -> list[Job[R]]:
        """Store many steps at once: all of them or none."""
        given = listed(steps)
        return await self._client.submit(Calls(self._client, given)) if given else []

    def enqueue_many(self, steps: Iterable[Step[R]]) -> list[Job[R]]:
        """The blocking twin of `aenqueue_many`. With `tx=`, it uses that in the calling thread."""
        if given := listed(steps):
            return self._client.submit_blocking("aenqueue_many", Calls(self._client, given))
        refuse_on_a_loop("aenqueue_many")
        return []

    async def aenqueue(
        self, task: str, arguments: Mapping[str, Any] | None = None, /, **options: Unpack[JobOptions]
    ) -> Job[Any]:
        """Store a job by the name of its task, for programs that do not have its code; with the code, it is checked.

        `arguments` are by the names of the parameters. The options are those of `task.using(…)`.
        """
        return await enqueue_one(self._client, self.step(task, arguments, **options))

    def enqueue(
        self, task: str, arguments: Mapping[str, Any] | None = None, /, **options: Unpack[JobOptions]
    ) -> Job[Any]:
        """The blocking twin of `aenqueue`. With `tx=`, it uses that in the calling thread."""
        return enqueue_one_blocking(self._client, self.step(task, arguments, **options))

    def step(
        self, task: str, arguments: Mapping[str, Any] | None = None, /, **options: Unpack[JobOptions]
    ) -> Step[Any]:
        """A call of a task by its name as a value, for `enqueue_many`, flows and `current().enqueue`."""
        return named_step(self._client, self._tasks, task, {} if arguments is None else arguments, options)

    def job(self, id: str) -> Job[Any]:
        """A handle on a job by its id."""
        return Job(self._client, id)

    def workflow(self, id: str) -> Run[Any]:
        """A handle on a workflow by its id."""
        return Run(self._client, id)

    def find(self, name: str) -> Registered:
        """The task of this name."""
        if name not in self._tasks:
            guess = f" (did you mean {close!r}?)" if (close := closest(name, self._tasks)) else ""
            raise UnknownTask(
                f"no task named {name!r} is registered{guess}; there is {', '.join(sorted(self._tasks)) or 'none'}"
            )
        return self._tasks[name]

    # life

    async def amigrate(self, *, dry: bool = False, tell: Callable[[str], object] = lambda _: None) -> Migration | None:
        """Bring the store's schema up to date and say what was done, or (`dry`) what there is to do.

        None for stores that see to it themselves: SQLite does so whenever a file is opened. `tell` hears of every step.
        """
        return None if self._driver is not None else await drivers.migrate(self.url, dry=dry, tell=tell)

    migrate = blocking(amigrate)

    async def adriver(self) -> Driver:
        """The open store itself, for tools that look below tasks and jobs."""
        return await self._session.driver()

    driver = blocking(adriver)

    def open(self) -> Managed[Harbor]:
        """Connect now and close at the end, by `with` or `async with`; without it the first use connects."""
        return Managed("open", self._open_awaited, self._open_blocking)

    @asynccontextmanager
    async def _open_awaited(self) -> AsyncGenerator[Harbor]:
        await self.adriver()
        try:
            yield self
        finally:
            await self.aclose()

    @contextmanager
    def _open_blocking(self) -> Generator[Harbor]:
        self.driver()
        try:
            yield self
        finally:
            self.close()

    def stand_in(
        self,
        store: Driver | str,
        *,
        clock: Clock | None = None,
        chance: Random | None = None,
        everywhere: bool = True,
    ) -> Managed[Harbor]:
        """Use another store until the end of the block (`with` or `async with`): for tests.

        The harbor's own store is not touched. `store` is a driver or a URL. It stands in for all tasks and threads of
        this process, or with `everywhere=False` for this task or thread and what it starts with its context.
        """
        if isinstance(store, str):
            drivers.parse(store)
        shown = config.shown_url(store) if isinstance(store, str) else None

        def session() -> Session:
            connect = _connecting(store)
            return Session(connect, self._session.settings, clock, chance or own_rng(), lambda: shown)

        return Managed(
            "stand_in",
            lambda: self._stand_in_awaited(session(), everywhere),
            lambda: self._stand_in_blocking(session(), everywhere),
        )

    @asynccontextmanager
    async def _stand_in_awaited(self, session: Session, everywhere: bool) -> AsyncGenerator[Harbor]:
        with self._client.stand_in(session) if everywhere else self._client.stand_in_here(session):
            try:
                yield self
            finally:
                await session.close()
                session.portal.close()

    @contextmanager
    def _stand_in_blocking(self, session: Session, everywhere: bool) -> Generator[Harbor]:
        with self._client.stand_in(session) if everywhere else self._client.stand_in_here(session):
            try:
                yield self
            finally:
                session.portal.run(session.close)
                session.portal.close()

    async def aclose(self) -> None:
        """Let go of the store; the next use connects again."""
        await self._session.close()

    def close(self) -> None:
        """The blocking twin of `aclose`; it lets go of the thread behind blocking calls as well."""
        self.portal.call("aclose", self.aclose)
        self.portal.close()


def _connecting(store: Driver | str) -> Callable[[], Coroutine[Any, Any, Driver]]:
    return (lambda: drivers.from_url(store)) if isinstance(store, str) else (lambda: _opened(store))


async def _opened(driver: Driver) -> Driver:
    return driver


def _policy(given: Retry | Callable[[int], float] | None) -> Retry | None:
    if given is None or isinstance(given, Retry):
        return given
    if not callable(given):
        count = " (for the number of runs, set max_attempts=)" if isinstance(given, int) else ""
        raise ConfigError(f"retry must be a Retry(…) or a function from failures to seconds, not {given!r}{count}")
    return Retry(custom=given)


def _length(value: Duration) -> timedelta:
    return timedelta(seconds=min(seconds(value), timedelta.max.total_seconds() - 1))
