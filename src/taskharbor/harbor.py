"""The harbor: registers tasks, enqueues jobs, starts workers. The one object that an application makes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from inspect import currentframe, isasyncgenfunction, iscoroutinefunction
from random import Random
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from taskharbor import config, drivers
from taskharbor.admin.admin import Admin
from taskharbor.client.blocks import Managed, blocking_here
from taskharbor.client.client import Client
from taskharbor.client.clock import Clock
from taskharbor.client.enqueue import CallGroup, SingleCall, listed
from taskharbor.client.handle import Job
from taskharbor.client.naming import returns_its_result
from taskharbor.client.opening import opened, stand_in
from taskharbor.client.options import Duration, JobOptions
from taskharbor.client.other_names import HARBOR_ELSEWHERE, HARBOR_NAMES, hinting
from taskharbor.client.portal import Portal, blocking, refuse_on_a_loop
from taskharbor.client.registered_task import Registered
from taskharbor.client.session import Session
from taskharbor.client.settings import Settings, retry_policy, settings_of
from taskharbor.core.codec import PAYLOAD_LIMIT
from taskharbor.core.recycling import Recycle
from taskharbor.core.retry import Retry
from taskharbor.core.sizes import Size
from taskharbor.decorators import Manner, Recurrer, Registrar, Registration
from taskharbor.driver import Driver, Migration
from taskharbor.driver.forking import own_rng
from taskharbor.errors import ConfigError
from taskharbor.task import AsyncTask, Task
from taskharbor.worker.application import AppRegistry, HarborParts, Middleware, add_harbor
from taskharbor.worker.around import Around, factory_of
from taskharbor.worker.dead_hooks import Hook
from taskharbor.worker.launcher import Launcher, RunningWorker
from taskharbor.workflows.run import Run
from taskharbor.workflows.step import Step, named_step

if TYPE_CHECKING:
    from taskharbor.client.declaration import RecurringOptions

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Middleware)
A = TypeVar("A", bound=Around)
H = TypeVar("H", bound=Hook)
L = TypeVar("L", bound=Callable[[], Any])


class Harbor:
    """A durable job queue in the store that the URL names.

    The URL is the argument, else TASKHARBOR_URL, else `[tool.taskharbor] url`, else `sqlite:///taskharbor.db`.
    `recycle` says when processes of `process=True` tasks are replaced. `clock` and `rng` (a `Random`) are for tests.
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
        recycle: Recycle | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        driver: Driver | None = None,
    ) -> None:
        settings = settings_of(
            max_attempts=max_attempts,
            max_crashes=max_crashes,
            timeout=timeout,
            retry=retry,
            idempotency_ttl=idempotency_ttl,
            payload_limit=payload_limit,
            keep_done=keep_done,
            keep_dead=keep_dead,
            store_timeout=store_timeout,
            recycle=recycle,
        )
        self.url = config.store_url(url)
        if driver is None:
            drivers.parse(self.url)
        self._driver = driver
        self._application = AppRegistry(_caller())
        session = _session(lambda: self._driver or self.url, settings, clock, rng)
        self.client = Client(session, self._application.tasks)
        self._launcher = Launcher(self.client, self._application)
        self._registration = Registration(self.client, self._application)
        self.admin = Admin(self.client)
        add_harbor(self._parts)

    if not TYPE_CHECKING:
        __getattr__ = hinting(HARBOR_NAMES, lambda _: "harbor", HARBOR_ELSEWHERE)

    def __repr__(self) -> str:
        return f"<Harbor {drivers.redacted(self.url)}>"

    def _parts(self) -> HarborParts:
        return HarborParts(self, self.client, self._application, self._launcher.drain_beside)

    @property
    def _session(self) -> Session:
        return self.client.session

    @property
    def portal(self) -> Portal:
        return self._session.portal

    @property
    def tasks(self) -> Mapping[str, Registered]:
        """The registered tasks by name."""
        return self._application.tasks

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
        process: bool = False,
        memory: Size | None = None,
    ) -> Registrar: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | Callable[[int], float] | None = None,
        process: bool = False,
        memory: Size | None = None,
        **options: Any,
    ) -> Any:
        """Register a function as a task: `@harbor.task` or `@harbor.task(queue=…, retry=…)`.

        With `process=True` each job runs in a process of its own, which is killed at the timeout or when the job is
        cancelled; `memory`, such as "512 MiB", limits what it may allocate.
        """
        return self._registration.task(function, name, Manner(retry_policy(retry), process, memory), options)

    def recurring(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        retry: Retry | Callable[[int], float] | None = None,
        process: bool = False,
        memory: Size | None = None,
        **given: Unpack[RecurringOptions],
    ) -> Recurrer:
        """Run a function repeatedly: `cron="0 3 * * *"` in the time zone `tz`, or `every` so many seconds (N2).

        It becomes a task as by `@harbor.task`, unless it is one already. `name` is the name of the recurring task, if a
        task has several; `arguments` are those of its calls. Workers store the declaration when they start (N5).
        """
        if function is not None:
            raise ConfigError(
                'say when by name: @harbor.recurring(cron="0 3 * * *") or @harbor.recurring(every=timedelta(hours=1))'
            )
        return self._registration.recurring(name, arguments, Manner(retry_policy(retry), process, memory), given)

    def middleware(self, function: M) -> M:
        """Wrap every handler call: `async def timing(job, call_next): return await call_next()`.

        It runs on the event loop, so every `def` handler then costs two hops between threads; `around` costs none.
        """
        is_async: bool = iscoroutinefunction(function)
        if not is_async:
            raise ConfigError("@harbor.middleware takes an async function (job, call_next)")
        self._application.middleware.append(function)
        return function

    def around(self, function: A) -> A:
        """Run every handler, `def` or `async def`, inside this context manager, in the thread or task of the handler.

        `function` is a generator function of the job (`def connections(job): …; yield; …`), or any function that
        returns a context manager. Several nest, the first one outermost. They see what the handler raises, and may
        raise something else; if one swallows it, the job is done, without a result.
        """
        self._application.arounds.append(factory_of(function))
        return function

    def lifespan(self, function: L) -> L:
        """Enter this async context manager before a worker's first job and leave it after its last."""
        if iscoroutinefunction(function) or not callable(function):
            raise ConfigError("@harbor.lifespan takes an async generator function: set up, yield, tear down")
        self._application.lifespans.append(asynccontextmanager(function) if isasyncgenfunction(function) else function)
        return function

    def on_dead(self, function: H) -> H:
        """Call this function with the record of each job that a worker of this harbor dead-letters.

        Best effort, in the background, for at most 30 s. Exceptions are logged.
        """
        if not returns_its_result(function):
            raise ConfigError(f"@harbor.on_dead takes a def or an async def of the dead job's record, not {function!r}")
        self._application.on_dead.append(function)
        return function

    # enqueueing

    async def aenqueue_many(self, steps: Iterable[Step[R]]) -> list[Job[R]]:
        """Store many steps: all of them or none."""
        given = listed(steps)
        return await self.client.submit(CallGroup(self.client, *given)) if given else []

    def enqueue_many(self, steps: Iterable[Step[R]]) -> list[Job[R]]:
        """The blocking twin of `aenqueue_many`. With `tx=`, it uses that in the calling thread."""
        if given := listed(steps):
            return self.client.submit_blocking("aenqueue_many", CallGroup(self.client, *given))
        refuse_on_a_loop("aenqueue_many")
        return []

    async def aenqueue(
        self, task: str, arguments: Mapping[str, Any] | None = None, /, **options: Unpack[JobOptions]
    ) -> Job[Any]:
        """Store a job by the name of its task, for programs without its code; with the code, the arguments are checked.

        `arguments` are by the names of the parameters. The options are those of `task.using(…)`.
        """
        return await self.client.submit(SingleCall(self.client, self.step(task, arguments, **options)))

    def enqueue(
        self, task: str, arguments: Mapping[str, Any] | None = None, /, **options: Unpack[JobOptions]
    ) -> Job[Any]:
        """The blocking twin of `aenqueue`. With `tx=`, it uses that in the calling thread."""
        return self.client.submit_blocking("aenqueue", SingleCall(self.client, self.step(task, arguments, **options)))

    def step(
        self, task: str, arguments: Mapping[str, Any] | None = None, /, **options: Unpack[JobOptions]
    ) -> Step[Any]:
        """A call of a task by its name as a value, for `enqueue_many`, flows and `current().enqueue`."""
        return named_step(self.client, task, {} if arguments is None else arguments, options)

    def job(self, id: str) -> Job[Any]:
        """A handle on a job by its id."""
        return Job(self.client, id)

    def workflow(self, id: str) -> Run[Any]:
        """A handle on a workflow by its id."""
        return Run(self.client, id)

    def find(self, name: str) -> Registered:
        """The task of this name."""
        return self._registration.find(name)

    # working

    def worker(
        self,
        queues: Sequence[str] | Mapping[str, int] | None = None,
        *,
        concurrency: int = 16,
        lease: float = 30.0,
        grace: float = 25.0,
        threads: bool = True,
    ) -> Managed[RunningWorker]:
        """A worker beside your own code (`with` or `async with`): works inside the block, stops gracefully at its end.

        The block begins when the store is open and has the recurring tasks; while the store is away, it waits and logs
        that. With `async with` the worker uses the running event loop, with `with` a thread that has its own.
        """
        return self._launcher.worker(queues, concurrency=concurrency, lease=lease, grace=grace, threads=threads)

    async def arun_worker(
        self,
        queues: Sequence[str] | Mapping[str, int] | None = None,
        *,
        concurrency: int = 16,
        lease: float = 30.0,
        grace: float = 25.0,
        release_abandoned: bool = False,
    ) -> None:
        """Work until SIGTERM or SIGINT, then stop gracefully; a second signal stops at once (X6).

        `release_abandoned` also gives back the jobs of handlers that ignore their cancellation. Only for a process
        that then ends by `os._exit` (`asyncio.run` waits for them), or the job would run here and elsewhere.

        `run_worker` works on a loop of its own in the calling thread. Signals reach the main thread only: in other
        threads, use `with harbor.worker():`. After it, an async handler that ignores its cancellation does not run on;
        a `def` one does, in a thread that does not keep the process alive.
        """
        await self._launcher.run(queues, release_abandoned, concurrency=concurrency, lease=lease, grace=grace)

    run_worker = blocking_here(arun_worker)

    async def adrain(
        self,
        queues: Sequence[str] | None = None,
        *,
        concurrency: int = 16,
        lease: float = 30.0,
        threads: bool = True,
        raise_failures: bool = False,
    ) -> int:
        """Run everything that is due, and what that makes due, then return the number of runs. For tests.

        `raise_failures` raises the first exception of a handler after all runs; its notes name the job and the others.
        """
        return await self._launcher.drain(queues, raise_failures, concurrency=concurrency, lease=lease, threads=threads)

    drain = blocking_here(adrain)

    # opening and closing

    async def amigrate(self, *, dry: bool = False, tell: Callable[[str], object] = lambda _: None) -> Migration | None:
        """Bring the store's schema up to date and return what was done, or (`dry`) what there is to do.

        None for stores that need no call: SQLite migrates when a file is opened. `tell` is called with each step.
        """
        return None if self._driver is not None else await drivers.migrate(self.url, dry=dry, tell=tell)

    migrate = blocking(amigrate)

    async def adriver(self) -> Driver:
        """The open driver, for tools that work below tasks and jobs."""
        return await self._session.driver()

    driver = blocking(adriver)

    def open(self) -> Managed[Harbor]:
        """Connect now and close at the end, by `with` or `async with`; without it the first use connects."""
        return opened(self.client, self)

    def stand_in(
        self,
        store: Driver | str,
        *,
        clock: Clock | None = None,
        rng: Random | None = None,
        everywhere: bool = True,
    ) -> Managed[Harbor]:
        """Use another store until the end of the block (`with` or `async with`): for tests.

        `store` is a driver or a URL. The block applies to all tasks and threads of this process, or with
        `everywhere=False` to this task or thread and what it starts with its context.
        """
        if isinstance(store, str):
            drivers.parse(store)
        make = partial(_session, lambda: store, self._session.settings, clock, rng)
        return stand_in(self.client, make, self, everywhere=everywhere)

    async def aclose(self) -> None:
        """Close the store; the next use connects again."""
        await self._session.close()

    def close(self) -> None:
        """The blocking twin of `aclose`; it ends the thread of blocking calls as well."""
        self.portal.call("aclose", self.aclose)
        self.portal.close()


def _caller() -> str | None:
    """The module that makes a harbor."""
    frame = currentframe()
    made = None if frame is None or frame.f_back is None else frame.f_back.f_back
    return None if made is None else made.f_globals.get("__name__")


def _session(store: Callable[[], Driver | str], settings: Settings, clock: Clock | None, rng: Random | None) -> Session:
    async def connect() -> Driver:
        return await drivers.from_url(found) if isinstance(found := store(), str) else found

    def shown() -> str | None:
        return config.shown_url(found) if isinstance(found := store(), str) else None

    def url() -> str | None:
        return found if isinstance(found := store(), str) else None

    return Session(connect, settings, clock, rng or own_rng(), shown, url)
