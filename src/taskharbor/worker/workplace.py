"""The workers of a harbor in this process, its tasks, and what surrounds them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from taskharbor.client.blocks import Managed, alongside, run_here
from taskharbor.client.client import Client
from taskharbor.client.registered_task import Registered
from taskharbor.client.session import Session
from taskharbor.core.reserved import in_line
from taskharbor.driver import Inspect, Schedules, capability, offered
from taskharbor.errors import ConfigError
from taskharbor.worker.dead_hooks import Hook
from taskharbor.worker.drain_failures import Failure, as_exception
from taskharbor.worker.executor import Middleware
from taskharbor.worker.harbors import HarborParts, add_harbor
from taskharbor.worker.idle import until_open
from taskharbor.worker.signals import stop_signals
from taskharbor.worker.startup_log import warn_of_memory

if TYPE_CHECKING:
    from taskharbor.client.declaration import Declared
    from taskharbor.worker.running_worker import RunningWorker
    from taskharbor.worker.worker import Worker
    from taskharbor.worker.worker_options import WorkerOptions

THREAD = "taskharbor-worker"
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class Workplace:
    """What workers need, and the ways to run one."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tasks: dict[str, Registered] = {}
        client.tasks = self._tasks
        self._middleware: list[Middleware] = []
        self._lifespans: list[Lifespan] = []
        self._on_dead: list[Hook] = []
        self._recurring: dict[str, Declared] = {}
        add_harbor(self._parts)

    def _parts(self) -> HarborParts:
        return HarborParts(self, self._client, self._tasks, self._middleware, self._recurring, self._drained_beside)

    @property
    def _session(self) -> Session:
        return self._client.session

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

        The block begins when the store is there and knows the recurring tasks: one that is away is waited for, and the
        log says so. By `async with` it works on the running event loop, by `with` in a thread with a loop of its own.
        """
        options = self._options(queues, concurrency=concurrency, lease=lease, grace=grace, threads=threads)
        return Managed(
            "worker", lambda: self._working(options), lambda: alongside(lambda: self._working(options), THREAD)
        )

    @asynccontextmanager
    async def _working(self, options: WorkerOptions) -> AsyncGenerator[RunningWorker]:
        from taskharbor.worker.running_worker import RunningWorker

        async with self._lived(waits=True) as worker_of:
            worker = worker_of(options)
            worker.start()
            try:
                if self._recurring:
                    await worker.ready()
                yield RunningWorker(worker)
            finally:
                await worker.stop()

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

        `release_abandoned` gives back the jobs of handlers that ignore their cancellation too: only for a process that
        ends right after, by `os._exit` (`asyncio.run` waits for them), or the job would run here and elsewhere.
        """
        options = self._options(queues, concurrency=concurrency, lease=lease, grace=grace)
        async with self._lived(waits=True) as worker_of:
            worker = worker_of(options)
            if (await self._session.driver()).ephemeral:
                warn_of_memory()
            with stop_signals(worker.tell_to_stop):
                worker.start()
                try:
                    await worker.wait()
                finally:
                    await worker.stop(hold_abandoned=release_abandoned)
        await worker.release()

    def run_worker(
        self,
        queues: Sequence[str] | Mapping[str, int] | None = None,
        *,
        concurrency: int = 16,
        lease: float = 30.0,
        grace: float = 25.0,
        release_abandoned: bool = False,
    ) -> None:
        """The blocking twin of `arun_worker`, on a loop of its own in the calling thread.

        Signals reach the main thread only: elsewhere nothing stops it. There, use `with harbor.worker():`. An async
        handler that ignores its cancellation is not waited for and does not run on; a `def` one runs on in its thread,
        which does not keep the process alive.
        """
        given: dict[str, Any] = {"concurrency": concurrency, "lease": lease, "grace": grace}
        run_here("arun_worker", lambda: self.arun_worker(queues, release_abandoned=release_abandoned, **given))

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

        `raise_failures` raises what a handler raised, once all of it has run: the first one, and its notes name the
        job and the others.
        """
        failures: list[Failure] = []
        given: dict[str, Any] = {"concurrency": concurrency, "lease": lease, "threads": threads}
        total = await self._drained(failures if raise_failures else None, queues, **given)
        if failures:
            raise as_exception(failures)
        return total

    async def _drained(
        self, failures: list[Failure] | None, queues: Sequence[str] | None = None, **options: Any
    ) -> int:
        total = 0
        async with self._lived() as worker_of:
            while True:
                names = await self._all_queues() if queues is None else queues
                total += await worker_of(self._options(names, **options)).drain(failures)
                if queues is not None or set(await self._all_queues()) <= set(names):
                    return total

    async def _drained_beside(self, failures: list[Failure] | None, queues: Sequence[str]) -> int:
        """Drain the queues that the code names, and these."""
        return await self._drained(failures, sorted({*self._queues(), *queues}))

    def drain(
        self,
        queues: Sequence[str] | None = None,
        *,
        concurrency: int = 16,
        lease: float = 30.0,
        threads: bool = True,
        raise_failures: bool = False,
    ) -> int:
        """The blocking twin of `adrain`, on a loop of its own in the calling thread."""
        given: dict[str, Any] = {"concurrency": concurrency, "lease": lease, "threads": threads}
        return run_here("adrain", lambda: self.adrain(queues, raise_failures=raise_failures, **given))

    @asynccontextmanager
    async def _lived(self, *, waits: bool = False) -> AsyncGenerator[Callable[[WorkerOptions], Worker]]:
        from taskharbor.worker.worker import Worker  # with all that works: producers do without

        async with AsyncExitStack() as stack:
            if self._session.attendance is not None:
                stack.enter_context(self._session.attendance.working())
            await (until_open(self._session) if waits else self._session.driver())
            if waits and self._recurring:
                capability(await self._session.driver(), Schedules)
            for lifespan in self._lifespans:
                await stack.enter_async_context(_manager(lifespan))
            recurring = list(self._recurring.values())
            yield lambda options: Worker(self._client, self._tasks, self._middleware, options, self._on_dead, recurring)

    def _options(self, queues: Sequence[str] | Mapping[str, int] | None, **given: Any) -> WorkerOptions:
        from taskharbor.worker.worker_options import WorkerOptions

        return WorkerOptions(queues=self._queues() if queues is None else queues, **given)

    def _queues(self) -> list[str]:
        options = [task.options for task in self._tasks.values()]
        options += [recurring.options for recurring in self._recurring.values()]
        return sorted({"default", *(each.get("queue", "default") for each in options)})

    async def _all_queues(self) -> list[str]:
        jobs = offered(await self._session.driver(), Inspect)
        stored = [] if jobs is None else await jobs.counts(self._session.now())
        return sorted({*self._queues(), *in_line([counts.queue for counts in stored])})


def _manager(lifespan: Lifespan) -> AbstractAsyncContextManager[Any]:
    manager: object = lifespan()
    if not isinstance(manager, AbstractAsyncContextManager):
        raise ConfigError(
            f"@harbor.lifespan takes an async generator function: set up, yield, tear down; not {lifespan!r}"
        )
    return manager
