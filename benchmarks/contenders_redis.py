"""Others on Redis, each by its documented interface and with what its documentation or a trial showed to be best.

Two kinds of worker: coroutines, and what blocks its thread and expects to be the main one. A rival keeps no results
where it offers that, which is in its favour: TaskHarbor keeps finished jobs.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.contenders import QUEUE, Act, Contender

SLOTS = 100


async def crowd(enqueue: Callable[[float], Any], numbers: Sequence[float], tasks: int = 20) -> None:
    """Enqueue from some tasks at once, for those that have no bulk."""
    waiting = iter(numbers)

    async def some() -> None:
        for number in waiting:
            await enqueue(number)

    await asyncio.gather(*(some() for _ in range(tasks)))


class Blocking(Contender):
    """A rival without coroutines: its worker wants the main thread."""

    async def open(self, new: bool = True) -> None:
        """Connect."""
        self.connect()

    def connect(self) -> None:
        """The same for the worker."""
        raise NotImplementedError

    async def enqueue_many(self, prepared: Any) -> None:
        for number in prepared:
            await self.enqueue(number)

    def work_here(self) -> None:
        """Its worker, until the process ends."""
        raise NotImplementedError


class Celery(Blocking):
    """The solo pool, which is one process and faster than its threads; 64 jobs fetched ahead, no results.

    Jobs are acknowledged before they run, its default: a crash loses what was fetched. No gossip, mingle, heartbeat.
    """

    package = "celery"
    called: Act

    def connect(self) -> None:
        from celery import Celery as Application

        Celery.called = self.act  # a worker may run the task of another application in the process by the same name
        self.app = Application(QUEUE, broker=self.url)
        self.app.conf.update(
            task_default_queue=QUEUE,
            task_ignore_result=True,
            worker_prefetch_multiplier=64,
            worker_hijack_root_logger=False,
            worker_redirect_stdouts=False,
        )

        @self.app.task(name="noop")
        def noop(number: float) -> None:
            Celery.called(number)

        self.noop = noop

    async def enqueue(self, number: float) -> object:
        return self.noop.delay(number)

    def work_here(self) -> None:
        without = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True}
        self.app.Worker(pool="solo", concurrency=1, quiet=True, loglevel="CRITICAL", **without).start()


class Rq(Blocking):
    """SimpleWorker, which does not fork for each job as its other worker does; no results."""

    package = "rq"
    called: Act

    def connect(self) -> None:
        from redis import Redis
        from rq import Queue

        Rq.called = self.act
        self.connection = Redis.from_url(self.url)
        self.queue = Queue(QUEUE, connection=self.connection)

    async def enqueue(self, number: float) -> object:
        return self.queue.enqueue(rq_noop, number, result_ttl=0)

    def prepared(self, numbers: Sequence[float]) -> Any:
        return [self.queue.prepare_data(rq_noop, (number,), result_ttl=0) for number in numbers]

    async def enqueue_many(self, prepared: Any) -> None:
        self.queue.enqueue_many(prepared)

    def work_here(self) -> None:
        from rq import SimpleWorker

        SimpleWorker([self.queue], connection=self.connection).work(logging_level="CRITICAL")


def rq_noop(number: float) -> None:
    """RQ finds its jobs by their names in modules."""
    Rq.called(number)


class Dramatiq(Blocking):
    """One process, two threads, 500 messages fetched ahead: over three times as fast as its eight threads and 16."""

    package = "dramatiq"

    def connect(self) -> None:
        os.environ["dramatiq_queue_prefetch"] = "500"  # noqa: SIM112  its name
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker

        self.broker = RedisBroker(url=self.url)

        @dramatiq.actor(broker=self.broker, queue_name=QUEUE, actor_name="noop")
        def noop(number: float) -> None:
            self.act(number)

        self.noop = noop

    async def enqueue(self, number: float) -> object:
        return self.noop.send(number)

    def work_here(self) -> None:
        from dramatiq import Worker

        Worker(self.broker, worker_threads=2).start()
        threading.Event().wait()


class Huey(Blocking):
    """A thread that pops and blocks, no results and no periodic tasks. A job that was popped is lost in a crash."""

    package = "huey"

    def connect(self) -> None:
        from huey import RedisHuey

        self.huey = RedisHuey(QUEUE, url=self.url, results=False)

        def noop(number: float) -> None:
            self.act(number)

        self.noop: Any = self.huey.task(name="noop")(noop)

    async def enqueue(self, number: float) -> object:
        return self.noop(number)

    def work_here(self) -> None:
        self.huey.create_consumer(workers=1, periodic=False).run()


class Arq(Contender):
    """100 jobs at a time, no results, uvloop; the queue is looked at every 10 ms instead of twice a second."""

    package = "arq"
    uvloop = True

    async def open(self, new: bool = True) -> None:
        from arq import create_pool
        from arq.connections import RedisSettings

        self.pool = await create_pool(RedisSettings.from_dsn(self.url), default_queue_name=QUEUE)

    async def enqueue(self, number: float) -> object:
        return await self.pool.enqueue_job("noop", number)

    async def enqueue_many(self, prepared: Any) -> None:
        await crowd(self.enqueue, prepared)

    async def work(self) -> None:
        from arq import Worker, func

        async def noop(context: object, number: float) -> None:
            self.act(number)

        functions = [func(noop, name="noop", keep_result=0)]
        settings = {"queue_name": QUEUE, "max_jobs": SLOTS, "keep_result": 0, "poll_delay": 0.01}
        await Worker(functions, redis_pool=self.pool, handle_signals=False, **settings).async_run()


class Saq(Contender):
    """20 jobs at a time (faster than 100), no results, uvloop. No bulk enqueue: many come from 20 tasks at once."""

    package = "saq"
    uvloop = True

    async def open(self, new: bool = True) -> None:
        from saq import Queue

        self.queue = Queue.from_url(self.url, name=QUEUE)
        await self.queue.connect()

    async def enqueue(self, number: float) -> object:
        return await self.queue.enqueue("noop", number=number, ttl=-1)

    async def enqueue_many(self, prepared: Any) -> None:
        await crowd(self.enqueue, prepared)

    async def work(self) -> None:
        from saq import Worker

        async def noop(context: object, *, number: float) -> None:
            self.act(number)

        await Worker(self.queue, functions=[("noop", noop)], concurrency=20).start()


class Taskiq(Contender):
    """Streams, read 100 at a time and acknowledged, 100 jobs at a time, uvloop, which its command uses."""

    package = "taskiq_redis"
    uvloop = True

    async def open(self, new: bool = True) -> None:
        from taskiq_redis import RedisStreamBroker

        self.broker = RedisStreamBroker(self.url, queue_name=QUEUE, consumer_id="0", xread_count=SLOTS)

        @self.broker.task(task_name="noop")
        async def noop(number: float) -> None:
            self.act(number)

        self.noop: Any = noop
        await self.broker.startup()

    async def enqueue(self, number: float) -> object:
        return await self.noop.kiq(number)

    async def enqueue_many(self, prepared: Any) -> None:
        await crowd(self.enqueue, prepared)

    async def work(self) -> None:
        from taskiq.api import run_receiver_task

        await run_receiver_task(self.broker, max_async_tasks=SLOTS)


class Streaq(Contender):
    """100 jobs at a time, as many fetched ahead, its default, no results, uvloop."""

    package = "streaq"
    uvloop = True

    async def open(self, new: bool = True) -> None:
        from streaq import Worker

        self.worker: Any = Worker(redis_url=self.url, queue_name=QUEUE, concurrency=SLOTS, handle_signals=False)

        @self.worker.task(name="noop", ttl=0)
        async def noop(number: float) -> None:
            self.act(number)

        self.noop: Any = noop
        if new:
            self.opened = AsyncExitStack()
            await self.opened.enter_async_context(self.worker)

    async def enqueue(self, number: float) -> object:
        return await self.noop.enqueue(number)

    def prepared(self, numbers: Sequence[float]) -> Any:
        return [self.noop.enqueue(number) for number in numbers]

    async def enqueue_many(self, prepared: Any) -> None:
        await self.worker.enqueue_many(prepared)

    async def close(self) -> None:
        await self.opened.aclose()

    async def work(self) -> None:
        await self.worker.run_async()


CONTENDERS: dict[str, type[Contender]] = {
    it.package: it for it in (Celery, Rq, Dramatiq, Huey, Arq, Saq, Taskiq, Streaq)
}
