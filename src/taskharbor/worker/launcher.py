"""The launcher: runs workers in this process: beside other code, in the foreground, or until nothing is due."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from taskharbor.client.blocks import Managed, alongside
from taskharbor.client.client import Client
from taskharbor.core.reserved import in_line
from taskharbor.driver import Inspect, Schedules, capability, offered
from taskharbor.worker.application import AppRegistry
from taskharbor.worker.drain_failures import FailedRun, as_exception
from taskharbor.worker.idle import until_open
from taskharbor.worker.signals import stop_signals
from taskharbor.worker.startup_log import warn_of_memory

if TYPE_CHECKING:
    from taskharbor.worker.worker import Worker
    from taskharbor.worker.worker_options import WorkerOptions

THREAD = "taskharbor-worker"
StopCall = Callable[[], None]
QueuesToServe = Sequence[str] | Mapping[str, int] | None
# For supervised processes. `on_begin` is called with each worker before it claims its first job; `on_stop` with
# what signals would call to stop it, and returns what they call instead; `on_wait` whenever the store is found away
# before that.
on_begin: ContextVar[Callable[[RunningWorker], object] | None] = ContextVar("taskharbor_on_begin", default=None)
on_stop: ContextVar[Callable[[StopCall], StopCall] | None] = ContextVar("taskharbor_on_stop", default=None)
on_wait: ContextVar[Callable[[], object] | None] = ContextVar("taskharbor_on_wait", default=None)


class RunningWorker(Struct, frozen=True, eq=False):
    """A worker that works until the end of its `harbor.worker()` block. Its properties may be read from any thread."""

    _worker: Worker

    def __repr__(self) -> str:
        return f"<RunningWorker {self.id}>"

    @property
    def id(self) -> str:
        """Its name in the store: host, process and a random part."""
        return self._worker.id

    @property
    def busy(self) -> int:
        """The number of running handlers."""
        return self._worker.busy

    @property
    def finished(self) -> int:
        """The number of settled runs."""
        return self._worker.finished


class Launcher:
    """Starts and stops workers. Without `queues`, a worker serves those that the code names."""

    def __init__(self, client: Client, application: AppRegistry) -> None:
        self._client = client
        self._application = application

    def worker(self, queues: QueuesToServe, **given: Any) -> Managed[RunningWorker]:
        """A worker that runs while a block does (`with` or `async with`)."""
        options = self._options(queues, **given)
        return Managed(
            "worker", lambda: self._working(options), lambda: alongside(lambda: self._working(options), THREAD)
        )

    @asynccontextmanager
    async def _working(self, options: WorkerOptions) -> AsyncGenerator[RunningWorker]:

        async with self._lived(waits=True) as worker_of:
            worker = worker_of(options)
            await worker.warm_up()
            _begin(worker)
            try:
                if self._application.recurring:
                    await worker.ready()
                yield RunningWorker(worker)
            finally:
                await worker.stop()

    async def run(self, queues: QueuesToServe, release_abandoned: bool, **given: Any) -> None:
        """Work until a signal, then stop gracefully (X6)."""
        options = self._options(queues, **given)
        async with self._lived(waits=True) as worker_of:
            worker = worker_of(options)
            if (await self._client.session.driver()).ephemeral:
                warn_of_memory()
            instead = on_stop.get()
            with stop_signals(worker.begin_stop if instead is None else instead(worker.begin_stop)):
                await worker.warm_up()
                _begin(worker)
                try:
                    await worker.wait()
                finally:
                    await worker.stop(hold_abandoned=release_abandoned)
        await worker.give_back_abandoned()

    async def drain(self, queues: Sequence[str] | None, raise_failures: bool, **given: Any) -> int:
        """Run everything that is due, and what that makes due; return the number of runs."""
        failures: list[FailedRun] = []
        total = await self._drained(failures if raise_failures else None, queues, **given)
        if failures:
            raise as_exception(failures)
        return total

    async def _drained(
        self, failures: list[FailedRun] | None, queues: Sequence[str] | None = None, **options: Any
    ) -> int:
        total = 0
        async with self._lived() as worker_of:
            while True:
                names = await self._all_queues() if queues is None else queues
                worker = worker_of(self._options(names, processes=False, **options))
                total += await worker.drain(failures)
                if queues is not None or set(await self._all_queues()) <= set(names):
                    return total

    async def drain_beside(self, failures: list[FailedRun] | None, queues: Sequence[str]) -> int:
        """Drain the queues that the code names, and these."""
        return await self._drained(failures, sorted({*self._application.queues(), *queues}))

    @asynccontextmanager
    async def _lived(self, *, waits: bool = False) -> AsyncGenerator[Callable[[WorkerOptions], Worker]]:
        from taskharbor.worker.worker import Worker  # a large import, which producers do not need

        async with AsyncExitStack() as stack:
            if self._client.session.attendance is not None:
                stack.enter_context(self._client.session.attendance.working())
            if waits:
                await until_open(self._client.session, on_wait.get() or (lambda: None))
            else:
                await self._client.session.driver()
            if waits and self._application.recurring:
                capability(await self._client.session.driver(), Schedules)
            await self._application.enter_lifespans(stack)
            yield partial(Worker, self._client, self._application)

    def _options(self, queues: QueuesToServe, **given: Any) -> WorkerOptions:
        from taskharbor.worker.worker_options import WorkerOptions

        return WorkerOptions(queues=self._application.queues() if queues is None else queues, **given)

    async def _all_queues(self) -> list[str]:
        jobs = offered(await self._client.session.driver(), Inspect)
        stored = [] if jobs is None else await jobs.counts(self._client.session.now())
        return sorted({*self._application.queues(), *in_line([counts.queue for counts in stored])})


def _begin(worker: Worker) -> None:
    if (report := on_begin.get()) is not None:
        report(RunningWorker(worker))
    worker.start()
