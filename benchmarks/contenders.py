"""Others on PostgreSQL, each by its documented interface and with what its documentation or a trial showed to be best.

What they have in common, for all comparisons: a way to install their tables, to enqueue one job and many, and to work
until stopped. Each job calls `act` with the number it was enqueued with. A rival may drop the rows of finished jobs
where it offers to, which is in its favour: TaskHarbor keeps them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

Act = Callable[[float], None]
QUEUE = "bench"


class Contender:
    """A rival on the database at a URL."""

    package: str
    uvloop = False

    def __init__(self, url: str, act: Act) -> None:
        self.url = url
        self.act = act

    async def open(self, new: bool = True) -> None:
        """Connect; install the tables if the database is new."""
        raise NotImplementedError

    async def enqueue(self, number: float) -> object:
        """One job, durable when this returns."""
        raise NotImplementedError

    def prepared(self, numbers: Sequence[float]) -> Any:
        """The steps for `enqueue_many`, made before the clock starts."""
        return numbers

    async def enqueue_many(self, prepared: Any) -> None:
        """Many jobs, in the quickest way it has."""
        raise NotImplementedError

    async def work(self) -> None:
        """Its worker, until cancelled."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Write what the worker holds back of jobs that have ended, if it does such a thing."""

    async def close(self) -> None:
        """Disconnect, where the end of the process would complain."""


class PgQueuer(Contender):
    """One asyncpg connection, as its guide advises for workers, batches of 100, its autovacuum settings, uvloop.

    Its command runs on uvloop where that is installed. Finished jobs are deleted and a line goes to its log table; its
    tables are durable, as everybody's are here.
    """

    package = "pgqueuer"
    uvloop = True

    async def open(self, new: bool = True) -> None:
        import asyncpg
        from pgqueuer import PgQueuer as Application
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        driver = AsyncpgDriver(await asyncpg.connect(self.url))
        self.queries = Queries(driver)
        self.application = Application(driver, queries=self.queries)
        if new:
            await self.queries.install()
            await self.queries.optimize_autovacuum()

        @self.application.entrypoint("noop")
        async def noop(job: Any) -> None:
            self.act(float(job.payload))

    async def enqueue(self, number: float) -> object:
        return await self.queries.enqueue("noop", b"%f" % number)

    def prepared(self, numbers: Sequence[float]) -> Any:
        return ["noop"] * len(numbers), [b"%f" % number for number in numbers], [0] * len(numbers)

    async def enqueue_many(self, prepared: Any) -> None:
        await self.queries.enqueue(*prepared)

    async def work(self) -> None:
        await self.application.run(batch_size=100, dequeue_timeout=timedelta(seconds=30))


class Procrastinate(Contender):
    """psycopg, a pool of 10, 20 jobs at a time, rows of finished jobs deleted, LISTEN on."""

    package = "procrastinate"

    async def open(self, new: bool = True) -> None:
        import procrastinate

        connector = procrastinate.PsycopgConnector(conninfo=self.url, min_size=4, max_size=10)
        self.app = procrastinate.App(connector=connector)

        @self.app.task(name="noop", queue=QUEUE)
        async def noop(number: float) -> None:
            self.act(number)

        self.noop = noop
        await self.app.open_async()
        if new:
            await self.app.schema_manager.apply_schema_async()

    async def enqueue(self, number: float) -> object:
        return await self.noop.defer_async(number=number)

    def prepared(self, numbers: Sequence[float]) -> Any:
        return [{"number": number} for number in numbers]

    async def enqueue_many(self, prepared: Any) -> None:
        await self.noop.batch_defer_async(*prepared)

    async def work(self) -> None:
        await self.app.run_worker_async(concurrency=20, delete_jobs="always", install_signal_handlers=False)


class Saq(Contender):
    """psycopg, its own pool of 4 to 20, 20 jobs at a time, rows of finished jobs deleted.

    It has no bulk enqueue: many are enqueued from 20 tasks at once.
    """

    package = "saq"

    async def open(self, new: bool = True) -> None:
        from saq import Queue

        self.queue = Queue.from_url(self.url, name=QUEUE)
        await self.queue.connect()

    async def enqueue(self, number: float) -> object:
        return await self.queue.enqueue("noop", number=number, ttl=-1)

    async def enqueue_many(self, prepared: Any) -> None:
        waiting = iter(prepared)

        async def some() -> None:
            for number in waiting:
                await self.enqueue(number)

        await asyncio.gather(*(some() for _ in range(20)))

    async def work(self) -> None:
        from saq import Worker

        async def noop(context: object, *, number: float) -> None:
            self.act(number)

        await Worker(self.queue, functions=[("noop", noop)], concurrency=20).start()


class Dbos(Contender):
    """Async workflows without steps, as many at a time as it likes, polled every 10 ms instead of every second.

    Enqueued by its client, on the caller's thread; many in one transaction, which is the nearest that it has to a bulk.
    """

    package = "dbos"

    async def open(self, new: bool = True) -> None:
        from dbos import DBOSClient, run_dbos_database_migrations

        if new:
            run_dbos_database_migrations(system_database_url=self.url)
        self.client = DBOSClient(system_database_url=self.url, application_name=QUEUE)
        if new:
            self.client.register_queue(QUEUE, polling_interval_sec=0.01)
        self.options: Any = {"queue_name": QUEUE, "workflow_name": "noop"}

    async def enqueue(self, number: float) -> object:
        return self.client.enqueue(self.options, number)

    async def enqueue_many(self, prepared: Any) -> None:
        import sqlalchemy

        address = self.url.replace("postgresql://", "postgresql+psycopg://")
        with sqlalchemy.create_engine(address).begin() as connection:
            for number in prepared:
                self.client.enqueue_in_transaction(connection, self.options, number)

    async def work(self) -> None:
        from dbos import DBOS

        DBOS(config={"name": QUEUE, "system_database_url": self.url, "log_level": "CRITICAL"})

        @DBOS.workflow(name="noop")
        async def noop(number: float) -> None:
            self.act(number)

        await asyncio.to_thread(DBOS.launch)
        try:
            await asyncio.Event().wait()
        finally:
            DBOS.destroy()


class Chancy(Contender):
    """psycopg, AsyncExecutor, 200 at a time, eager polling beside NOTIFY, uvloop, no metrics and workflow plugins.

    Rows are kept. The worker notes outcomes once a second, up to 1,000 a statement; what it holds back at the end is
    written within the time.
    """

    package = "chancy"
    uvloop = True

    async def open(self, new: bool = True) -> None:
        from chancy import Chancy as Application
        from chancy import Job, Queue
        from chancy.plugins.leadership import Leadership
        from chancy.plugins.pruner import Pruner
        from chancy.plugins.recovery import Recovery

        Chancy.called = self.act
        plugins = [Leadership(), Pruner(), Recovery()]
        quiet = logging.getLogger("quiet")
        self.chancy = Application(self.url, plugins=plugins, no_default_plugins=True, log=quiet)
        await self.chancy.pool.open()
        if new:
            await self.chancy.migrate()
            executor = Application.Executor.Async
            await self.chancy.declare(Queue(QUEUE, concurrency=200, executor=executor, eager_polling=True))
            await self.chancy.declare(Queue("default", tags=set()))  # without workers, or it starts processes for it
        self.job = Job.from_func(chancy_noop, queue=QUEUE)

    called: Act

    async def enqueue(self, number: float) -> object:
        return await self.chancy.push(self.job.with_kwargs(number=number))

    def prepared(self, numbers: Sequence[float]) -> Any:
        return [self.job.with_kwargs(number=number) for number in numbers]

    async def enqueue_many(self, prepared: Any) -> None:
        async for _ in self.chancy.push_many(prepared, batch_size=len(prepared)):
            pass

    async def work(self) -> None:
        from chancy import Worker

        async with Worker(self.chancy, register_signal_handlers=False, shutdown_timeout=2) as self.worker:
            await self.worker.wait_for_shutdown()

    async def flush(self) -> None:
        await self.worker.flush()


async def chancy_noop(*, number: float) -> None:
    """Chancy finds its jobs by their names in modules."""
    Chancy.called(number)


@dataclass
class AwaJob:
    """awa finds its handlers by the class of a job's arguments."""

    number: float


class Awa(Contender):
    """A Rust engine that calls Python handlers: 500 at a time (faster than 200), its defaults, COPY for many.

    Rows are kept for its retention of a day.
    """

    package = "awa"

    async def open(self, new: bool = True) -> None:
        from awa import AsyncClient

        if new:  # the first worker makes its newer storage the one in use, on which COPY depends
            await self._connect(AsyncClient)
            await self.client.migrate()
            await self._start()
            await self.client.shutdown()
            await self.client.close()
        await self._connect(AsyncClient)

    async def _connect(self, client: Any) -> None:
        self.client = client(self.url, max_connections=10)

        @self.client.task(AwaJob, queue=QUEUE)
        async def noop(job: Any) -> None:
            self.act(job.args.number)

    async def _start(self) -> None:
        await self.client.start([{"name": QUEUE, "max_workers": 500}], poll_interval_ms=10)

    async def enqueue(self, number: float) -> object:
        return await self.client.insert(AwaJob(number), queue=QUEUE)

    def prepared(self, numbers: Sequence[float]) -> Any:
        return [AwaJob(number) for number in numbers]

    async def enqueue_many(self, prepared: Any) -> None:
        await self.client.enqueue_many_copy(prepared, queue=QUEUE)

    async def work(self) -> None:
        await self._start()
        try:
            await asyncio.Event().wait()
        finally:
            await self.client.shutdown()


CONTENDERS: dict[str, type[Contender]] = {it.package: it for it in (PgQueuer, Procrastinate, Saq, Dbos, Chancy, Awa)}
