"""The standard scenario: every kind of handler, clients that do everything, two generations of code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any

from taskharbor import Harbor, Retry, RetryAfter, Snooze, Unrecoverable, current
from taskharbor.client.handle import Job
from taskharbor.errors import DriverError, JobCancelled, JobFailed, JobNotFound
from taskharbor.testing.simulation.cluster import Cluster, crash
from taskharbor.testing.simulation.flows import RandomFlows
from taskharbor.testing.simulation.recurring_workload import KINDS, Operator, declare, silence, slots
from taskharbor.workflows.step import Step

QUEUES = ("default", "mail")
SPAN = 60.0
BLOCKING = 0.3  # of the seeds


async def everything(cluster: Cluster) -> None:
    """Some workers of two generations, some clients; faults as long as the clients run."""
    rng = cluster.rng
    keep = 60.0 if rng.random() < 0.15 else 24 * 3600.0
    kinds = rng.sample(list(KINDS), rng.choice([0, 1, 1, 2]))
    old, new = SimulatedApp(cluster, keep, kinds), SimulatedApp(cluster, keep, kinds, latest=True)
    cluster.workers(
        old.harbor,
        new.harbor,
        count=rng.randint(1, 4),
        queues=QUEUES,
        concurrency=rng.choice([1, 2, 4, 8]),
        lease=rng.choice([3.0, 10.0, 30.0]),
        grace=rng.choice([0.0, 2.0, 10.0]),
    )
    visits = [Visit(cluster, new, kinds, rng.randint(6, 13)) for _ in range(rng.randint(1, 4))]
    _let_some_block(visits, cluster.stream("blocking clients"))
    processes = [cluster.client(new.harbor, visit.act, f"client{n}") for n, visit in enumerate(visits, 1)]
    if rng.random() < 0.3:
        await asyncio.sleep(rng.uniform(0, SPAN))
        cluster.kill(processes[0])
    await asyncio.sleep(SPAN * 1.2)
    for process in processes:
        await process.ended.wait()
    await cluster.undisturbed(_resume)
    await cluster.undisturbed(silence)
    await cluster.undisturbed(lambda driver: slots(driver, cluster.clock()))


def _let_some_block(visits: Sequence[Visit], rng: Random) -> None:
    """In some seeds, the first client and some of the others use the blocking face."""
    if rng.random() < BLOCKING:
        for number, visit in enumerate(visits):
            visit.blocks = number == 0 or rng.random() < 0.5


async def _resume(driver: Any) -> None:
    for queue in QUEUES:
        await driver.pause(queue, False)


class SimulatedApp:
    """A harbor with handlers of every behaviour. `latest` has a task that the older code does not."""

    def __init__(self, cluster: Cluster, keep: float, kinds: Sequence[str], *, latest: bool = False) -> None:
        self.harbor = Harbor("memory://", keep_done=keep, keep_dead=keep, store_timeout=20)
        self.rng = cluster.rng
        self.flows = RandomFlows(self.harbor, cluster, cluster.rng)
        self.steps: list[Callable[[], Step[Any]]] = []
        self.poison: list[Callable[[], Step[Any]]] = []
        self._calm()
        self._failing()
        self._slow()
        self._deadly()
        self.fresh = self._fresh() if latest else None
        for kind in kinds:
            declare(self.harbor, cluster, kind, latest=latest)

    def _calm(self) -> None:
        @self.harbor.task(name="quick")
        async def quick(number: int = 0) -> int:
            return number

        @self.harbor.task(name="parent", max_attempts=3)
        async def parent(children: int) -> None:
            for number in range(children):
                current().enqueue(quick.step(number))
            await asyncio.sleep(self.rng.uniform(0, 2))
            if self.rng.random() < 0.3:
                raise RuntimeError("its children must not be born")

        @self.harbor.task(name="snoozing")
        async def snoozing() -> None:
            if current().lease_version % 3:
                raise Snooze(2)

        self.quick = quick
        self.steps += [quick.step, lambda: quick.step(7), lambda: parent.step(self.rng.randint(1, 3)), snoozing.step]

    def _failing(self) -> None:
        @self.harbor.task(name="failing", max_attempts=3, retry=Retry(base=2, cap=5))
        async def failing(times: int) -> None:
            await asyncio.sleep(self.rng.uniform(0, 0.5))
            if current().attempt <= times:
                raise ValueError("not yet")

        @self.harbor.task(name="hopeless")
        async def hopeless(kind: int) -> None:
            raise (Unrecoverable("never"), SystemExit(1), RetryAfter(1), KeyboardInterrupt())[kind]

        self.steps += [lambda: failing.step(self.rng.randint(1, 4)), lambda: hopeless.step(self.rng.randrange(4))]

    def _slow(self) -> None:
        @self.harbor.task(name="slow")
        async def slow(seconds: float) -> None:
            await asyncio.sleep(seconds / 2)
            current().progress(0.5, "half-way")
            await asyncio.sleep(seconds / 2)

        @self.harbor.task(name="overdue", timeout=2, max_attempts=2)
        async def overdue() -> None:
            await asyncio.sleep(self.rng.uniform(0, 10))

        @self.harbor.task(name="stubborn", timeout=2, max_attempts=2)
        async def stubborn(seconds: float) -> None:
            end = asyncio.get_running_loop().time() + seconds
            while (left := end - asyncio.get_running_loop().time()) > 0:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(left)

        self.steps += [
            lambda: slow.step(self.rng.choice([0.2, 4, 12, 40])),
            overdue.step,
            lambda: stubborn.step(self.rng.choice([3, 15, 45])),
        ]

    def _deadly(self) -> None:
        @self.harbor.task(name="unlucky")
        async def unlucky(risk: float) -> None:
            await asyncio.sleep(self.rng.uniform(0, 1))
            if self.rng.random() < risk:
                await crash()

        self.poison += [lambda: unlucky.step(1.0), lambda: unlucky.step(0.4)]

    def _fresh(self) -> Callable[[], Step[None]]:
        @self.harbor.task(name="fresh")
        async def fresh() -> None:
            """Only the latest code knows this one."""

        self.steps.append(fresh.step)
        return fresh.step


class Visit:
    """One client process: enqueues in every way, cancels, replays, reschedules, pauses, and tries again on errors.

    One that `blocks` enqueues by blocking calls, and waits for results so.
    """

    def __init__(self, cluster: Cluster, app: SimulatedApp, kinds: Sequence[str], actions: int) -> None:
        self._cluster = cluster
        self._rng = cluster.rng
        self._app = app
        self._actions = actions
        self._jobs: list[Job[Any]] = []
        self._runs: list[str] = []
        self.blocks = False
        deletes = cluster.faults.clocks == "one"
        self._operator = Operator(app.harbor, cluster.rng, kinds, deletes=deletes) if kinds else None

    async def act(self) -> None:
        """Perform all its actions, spread over the span."""
        kinds: list[Callable[[], Awaitable[None]]] = [self._one, self._many, self._keyed, self._flow, self._tamper]
        weights = [5, 3, 4, 3, 3]
        if self._operator is not None:
            kinds, weights = [*kinds, self._operator.act], [*weights, 3]
        for _ in range(self._actions):
            await asyncio.sleep(self._rng.expovariate(self._actions / SPAN))
            act = self._rng.choices(kinds, weights)[0]
            for _ in range(3):
                try:
                    await act()
                    break
                except (DriverError, TimeoutError):
                    await asyncio.sleep(self._rng.uniform(0, 2))

    def _step(self) -> Step[Any]:
        rng = self._rng
        if rng.random() < 0.06:
            return rng.choice(self._app.poison)()
        return rng.choice(self._app.steps)()

    def _with(self, step: Step[Any], **options: Any) -> Step[Any]:
        return Step(step.client, step.task, step.payload, {**step.options, **options})  # type: ignore[typeddict-item]

    async def _one(self) -> None:
        rng, options = self._rng, dict[str, Any]()
        if rng.random() < 0.3:
            options["delay"] = rng.uniform(0, 40)
        if rng.random() < 0.3:
            options["priority"] = rng.choice([-5, 1, 5])
        if rng.random() < 0.1:
            options["expires"] = rng.uniform(0, 60)
        if rng.random() < 0.5:
            options["queue"] = "mail"
        await self._enqueue([self._with(self._step(), **options)])

    async def _enqueue(self, steps: list[Step[Any]]) -> None:
        harbor = self._app.harbor
        if self.blocks:
            self._jobs += await asyncio.to_thread(harbor.enqueue_many, steps)
        else:
            self._jobs += await harbor.aenqueue_many(steps)

    async def _many(self) -> None:
        await self._enqueue([self._step() for _ in range(self._rng.randint(2, 6))])

    async def _keyed(self) -> None:
        rng = self._rng
        key, ttl = f"key{rng.randint(1, 6)}", rng.choice([5, 40, 3600, None])
        quick, number = self._app.quick.using(idempotency_key=key, idempotency_ttl=ttl), rng.randint(1, 2)
        if self.blocks:
            self._jobs.append(await asyncio.to_thread(quick.enqueue, number))
        else:
            await self._enqueue([quick.step(number)])

    async def _flow(self) -> None:
        """Enqueue a workflow; it may have a key, be started by a handler, or be waited for."""
        rng, flows = self._rng, self._app.flows
        if rng.random() < 0.2:
            await self._enqueue([flows.starter.step()])
            return
        flow, expected = flows.drawn()
        ready = flow.using()
        if rng.random() < 0.3:
            key, ttl = f"flow{rng.randint(1, 3)}", rng.choice([5, 40, 3600, None])
            ready = flow.using(idempotency_key=key, idempotency_ttl=ttl)
        run = await (asyncio.to_thread(ready.enqueue) if self.blocks else ready.aenqueue())
        self._runs.append(run.id)
        if run.created and rng.random() < 0.3:
            with suppress(TimeoutError, JobFailed, JobCancelled, JobNotFound):
                patience = rng.uniform(1, 8)
                came = asyncio.to_thread(run.result, patience) if self.blocks else run.aresult(patience)
                flows.check(await came, expected)

    async def _tamper(self) -> None:
        rng, admin = self._rng, self._app.harbor.admin
        deed = rng.random()
        if deed < 0.2 and self._jobs:
            await admin.jobs.acancel([rng.choice(self._jobs).id])
        elif deed < 0.3 and self._jobs:
            await admin.jobs.adead_letter([rng.choice(self._jobs).id], reason="by hand")
        elif deed < 0.45 and self._runs:
            await admin.workflows.acancel(rng.choice(self._runs))
        elif deed < 0.6 and self._runs:
            await admin.workflows.areplay(rng.choice(self._runs))
        elif deed < 0.75:
            await admin.dlq.areplay_all(limit=3)
        elif deed < 0.85 and self._jobs:
            await admin.jobs.areschedule(
                rng.choice(self._jobs).id, run_at=admin.now() + timedelta(seconds=rng.uniform(0, 20))
            )
        elif deed < 0.92 and self._jobs:
            await admin.jobs.adelete([rng.choice(self._jobs).id])
        else:
            queue = rng.choice(QUEUES)
            await admin.queues.apause(queue)
            await asyncio.sleep(rng.uniform(0, 10))
            await admin.queues.aresume(queue)
