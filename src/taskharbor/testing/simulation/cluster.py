"""A simulated cluster: a scenario starts workers and clients on it, and faults happen to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from datetime import timedelta
from random import Random
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from taskharbor.client.client import closed_world
from taskharbor.client.clock import Clock
from taskharbor.driver import Driver, Inspect, capability
from taskharbor.errors import DriverError
from taskharbor.harbor import Harbor
from taskharbor.supervisor.dead_leases import DeadLeases, DeadWorker
from taskharbor.testing.clock import LoopClock, SkewedClock
from taskharbor.testing.history import Event, Noted
from taskharbor.testing.recorder import Recorder, take_stock
from taskharbor.testing.simulation.blocking import InTurns, InTurnsPortal
from taskharbor.testing.simulation.faults import Faults
from taskharbor.testing.simulation.network import ClientWire, EngineTime, Lines, LossyHints
from taskharbor.testing.simulation.processes import Process, current_process
from taskharbor.worker.context import JobContext
from taskharbor.worker.launcher import RunningWorker, on_begin

T = TypeVar("T")
HOUR = 3600.0
LOOK_EVERY = 5.0
SHORTEST_DOWNTIME = 0.5
_recorder: ContextVar[Recorder | None] = ContextVar("taskharbor_recorder", default=None)
_recorded: WeakSet[Harbor] = WeakSet()


class Cluster:
    """Processes around one store, from one seed. `rng` is for the scenario; `events` is the history so far."""

    def __init__(self, store: Driver, seed: str, faults: Faults) -> None:
        self.faults = faults
        self.rng = Random(f"{seed} scenario")
        self.events: list[Event] = []
        self.errors: list[Exception] = []
        self._seed = seed
        self._started = 0
        self._calm = False
        self._store = store
        self._loop = asyncio.get_running_loop()
        self.clock: Clock = LoopClock(self._loop)
        self._hosts = SkewedClock(self.clock, 0)
        self._engine = EngineTime(store, self.clock) if faults.clocks == "engine" else store
        hints = LossyHints(Random(f"{seed} hints"), faults.lost_hints)
        self._lines = Lines(Random(f"{seed} lines"), hints, faults)
        self._posts: list[_Post] = []
        self._trouble = [self._loop.create_task(each) for each in (self._outages(), self._jumps())]

    # for scenarios

    def workers(
        self, *generations: Harbor, count: int = 1, queues: Sequence[str] | None = None, **options: Any
    ) -> None:
        """Keep this many worker processes running. Several harbors are generations of the code: deploys go back and
        forth between them, and end with the last. Options are those of `harbor.worker`."""
        for _ in range(count):
            name = f"worker{len(self._posts) + 1}"
            options = {"concurrency": 4, "lease": 10.0, "grace": 5.0, **options, "queues": queues}
            post = _Post(self, name, generations, options, Random(f"{self._seed} {name}"))
            self._posts.append(post)

    def client(self, harbor: Harbor, main: Callable[[], Awaitable[Any]], name: str = "client") -> Process:
        """A process that runs this coroutine function, with the harbor connected to the simulated store.

        An uncaught error fails the run: a client must handle `DriverUnavailable`, as in production.
        """

        return self.start(name, harbor, main, DriverError)

    def start(self, name: str, harbor: Harbor, main: Callable[[], Awaitable[Any]], *fatal: type[Exception]) -> Process:
        """Start a process of any kind. An error that ends it fails the run; an unavailable store only if `fatal`."""
        self._started += 1
        process = Process(f"{name}#{self._started}")

        async def live() -> None:
            try:
                await self._live(process, harbor, main)
            except Exception as error:
                self.note(process, f"ended by {type(error).__name__}: {error}")
                if not isinstance(error, DriverError) or isinstance(error, fatal):
                    self.errors.append(error)

        process.start(live())
        return process

    def stream(self, name: str) -> Random:
        """Randomness of its own for a part of the scenario: drawing from it leaves what `rng` decides as it is."""
        return Random(f"{self._seed} {name}")

    def connection(self) -> Driver:
        """The driver as the running process sees it."""
        recorder = _recorder.get()
        if recorder is None:
            raise RuntimeError("connection() is for code that runs in a simulated process")
        return recorder

    async def undisturbed(self, act: Callable[[Driver], Awaitable[T]]) -> T:
        """Call the store directly, without faults and unrecorded."""
        return await act(self._store)

    def kill(self, process: Process) -> None:
        """kill -9."""
        if process.alive:
            self.note(process, "killed")
            process.kill()

    def note(self, process: Process, text: str) -> None:
        """Record what happens to a process."""
        self.events.append(Noted(process.name, self._at(), text))

    # internals

    async def _live(self, process: Process, harbor: Harbor, main: Callable[[], Awaitable[Any]]) -> None:
        sink = _ProcessSink(process, self.events)
        recorder = _ProcessRecorder(ClientWire(self._engine, self._lines), process.name, sink, self._at)
        _recorder.set(recorder)
        if harbor not in _recorded:
            harbor.middleware(_noted)
            _recorded.add(harbor)
        rng = Random(f"{self._seed} {process.name}")
        async with harbor.stand_in(recorder, clock=self._clock_of(rng), rng=rng, everywhere=False):
            closed_world.set(True)
            harbor.client.session.portal = InTurnsPortal()
            await main()

    def _at(self) -> int:
        return round(self._loop.time() * 1_000_000)

    def _clock_of(self, rng: Random) -> Clock | None:
        if self.faults.clocks == "engine":
            return None
        if self.faults.clocks == "skewed" and not self._calm:
            return SkewedClock(self.clock, rng.uniform(-HOUR, HOUR))
        return self._hosts

    async def _outages(self) -> None:
        rng = Random(f"{self._seed} outages")
        while self.faults.outages:
            await asyncio.sleep(rng.expovariate(1 / self.faults.outages))
            self._lines.down = True
            await asyncio.sleep(rng.uniform(0, self.faults.outage))
            self._lines.down = False

    async def _jumps(self) -> None:
        rng = Random(f"{self._seed} jumps")
        while self.faults.clocks == "jumping":
            await asyncio.sleep(rng.expovariate(1 / 40))
            self._hosts.offset = timedelta(seconds=rng.choice([0, 1, -1, 60, -60, HOUR, -HOUR]))

    async def calm_down(self) -> None:
        """End all faults: network, clocks and workers recover."""
        self._calm = True
        for trouble in self._trouble:
            trouble.cancel()
        if self.faults.clocks != "one":  # or jobs scheduled by a clock that was ahead would not be due for hours
            self._hosts.offset = timedelta(seconds=HOUR)
        self._lines.down = False
        self._lines.hints.lost = 0.0
        self._lines.faults = Faults()
        await asyncio.gather(*(post.settle_down() for post in self._posts))

    async def finish(self, limit: float) -> None:
        """Let the workers finish everything, then record the store's contents."""
        inspect = capability(self._store, Inspect)
        for _ in range(int(limit / LOOK_EVERY)):
            counts = await inspect.counts(self.clock())
            if not any(each.ready + each.scheduled + each.claimed + each.running + each.lapsed for each in counts):
                break
            await asyncio.sleep(LOOK_EVERY)
        await asyncio.gather(*(post.stop() for post in self._posts))
        await take_stock(self._store, self.clock(), self.events, self._at)


class _ProcessRecorder(InTurns, Recorder):
    """Records the calls of a process, its blocking enqueues too."""


class _ProcessSink:
    """Records the history of a process; a dead one records nothing."""

    def __init__(self, process: Process, events: list[Event]) -> None:
        self._process = process
        self._events = events

    def append(self, event: Event, /) -> None:
        if self._process.alive:
            self._events.append(event)


class _Post:
    """A place for one worker process, which is replaced when it dies."""

    def __init__(
        self, cluster: Cluster, name: str, generations: Sequence[Harbor], options: dict[str, Any], rng: Random
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._generations = generations
        self._options = options
        self._rng = rng
        self._generation = rng.choice(generations)
        self._stopping = asyncio.Event()
        self._worker: str | None = None
        self._launch()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each) for each in self._misfortunes()]

    def _launch(self) -> None:
        self._stopping = stopping = asyncio.Event()
        harbor = self._generation

        self._worker = None

        async def main() -> None:
            on_begin.set(self._began)
            async with harbor.worker(threads=False, **self._options):
                await stopping.wait()

        self.process = self._cluster.start(self._name, harbor, main)

    def _began(self, worker: RunningWorker) -> None:
        self._worker = worker.id

    def _misfortunes(self) -> list[Coroutine[Any, Any, None]]:
        faults = self._cluster.faults
        kinds = [(faults.kills, self._kill), (faults.pauses, self._pause), (faults.deploys, self._deploy)]
        return [self._watch(), *(self._now_and_then(mean, act) for mean, act in kinds if mean)]

    async def _now_and_then(self, mean: float, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / mean))
            await act()

    async def _watch(self) -> None:
        """Replace a process that ended for any reason."""
        while True:
            await self.process.ended.wait()
            if self._cluster.faults.supervised:
                self._put_back()
            await asyncio.sleep(SHORTEST_DOWNTIME + self._rng.uniform(0, self._cluster.faults.downtime))
            self._launch()

    def _put_back(self) -> None:
        """Do as a supervisor after the death of a worker that was not asked to stop, or did not end by itself."""
        harbor, worker = self._generation, self._worker
        main = self.process.main
        if worker is None or (self._stopping.is_set() and main is not None and main.done()):
            return
        dead = DeadWorker(worker=worker, lease=self._options["lease"])

        async def put_back() -> None:
            await DeadLeases(harbor.client.session, dead).put_back()

        self._cluster.start("supervisor", harbor, put_back)

    async def _kill(self) -> None:
        self._cluster.kill(self.process)

    async def _pause(self) -> None:
        process = self.process
        self._cluster.note(process, "stopped")
        process.pause()
        pause, lease = self._rng.uniform(0, self._cluster.faults.pause), self._options["lease"]
        if self._cluster.faults.supervised and pause > 1.1 * lease:
            await asyncio.sleep(1.1 * lease)
            return self._cluster.kill(process)
        await asyncio.sleep(pause)
        self._cluster.note(process, "goes on")
        return process.resume()

    async def _deploy(self) -> None:
        self._generation = self._rng.choice(self._generations)
        self._cluster.note(
            self.process, f"asked to stop for generation {self._generations.index(self._generation) + 1}"
        )
        self._stopping.set()

    async def settle_down(self) -> None:
        """Recover from any fault, with the latest code."""
        for task in self._tasks:
            task.cancel()
        self.process.resume()
        self._generation = self._generations[-1]
        await self._end()
        self._launch()
        self._tasks = [asyncio.get_running_loop().create_task(self._watch())]

    async def stop(self) -> None:
        """Stop gracefully, for good."""
        for task in self._tasks:
            task.cancel()
        await self._end()

    async def _end(self) -> None:
        self._stopping.set()
        await self.process.ended.wait()


async def _noted(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
    recorder = _recorder.get()
    return await (call_next() if recorder is None else recorder.handler(job, call_next))


async def crash() -> NoReturn:
    """Kill the simulated process that runs the calling handler."""
    process = current_process()
    if process is None:
        raise RuntimeError("crash() kills simulated processes only: there is none here")
    process.kill()
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a dead process went on")
