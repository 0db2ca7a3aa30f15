"""A test bed: another store behind the harbors of the application for one test, and a clock to move.

The pytest fixture `taskharbor` gives one; `with TestBed() as bed:` does the same for other test frameworks.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from types import TracebackType
from typing import Any, Self

from taskharbor import drivers
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.states import INFLIGHT, READY, Shown
from taskharbor.driver import Driver, Schedules, at_once, offered
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import InvalidJob
from taskharbor.harbor import Harbor
from taskharbor.runtime.blocks import run_here
from taskharbor.runtime.chance import own_chance
from taskharbor.runtime.client import Client
from taskharbor.runtime.context import JobContext, lose
from taskharbor.runtime.executor import CallNext
from taskharbor.runtime.failures import Failure, told
from taskharbor.runtime.handle import Job
from taskharbor.runtime.portal import Portal
from taskharbor.runtime.registered import BUILT_IN
from taskharbor.runtime.roll import Parts, following
from taskharbor.runtime.scheduler import Scheduler
from taskharbor.runtime.session import Session
from taskharbor.task import AsyncTask, Task
from taskharbor.testing.lending import run_beside

AnyTask = Task[..., Any] | AsyncTask[..., Any]
MEMORY = "memory://"
PAGE = 1000
LOOK = timedelta(microseconds=1)
ENDED = (Shown.DONE, Shown.DLQ, Shown.CANCELLED)
ALIVE = Filter(states=tuple(state for state in Shown if state not in ENDED))


class BedClock:
    """Begins at the time of the host and stands still, but for a microsecond at every look, which keeps jobs in line.

    `advance` moves it on; so does `catch_up`, to the host's time and whatever it was advanced by.
    """

    def __init__(self) -> None:
        self._looks = count(1)
        self._ahead = timedelta()
        self._base = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self._base + next(self._looks) * LOOK

    def advance(self, by: timedelta) -> None:
        """Move on."""
        self._base += by
        self._ahead += by

    def catch_up(self) -> None:
        """Move on to the host's time."""
        self._base = max(self._base, datetime.now(UTC) + self._ahead)

    @contextmanager
    def back_at(self, time: datetime) -> Generator[None]:
        """Show an earlier time inside the block."""
        base, self._base = self._base, time
        try:
            yield
        finally:
            self._base = base


class _KeptMemory(MemoryDriver):
    """A memory store for one test: an application that closes its harbor and opens it again finds its jobs."""

    async def close(self) -> None:
        """Nothing, until the bed ends it."""

    async def end(self) -> None:
        """What `close` is elsewhere."""
        await super().close()


class _Place:
    """A harbor in the bed, since a certain time."""

    def __init__(self, parts: Parts, harbor: Harbor, session: Session, since: datetime) -> None:
        self.parts = parts
        self.harbor = harbor
        self.session = session
        self.since = since
        self._scheduler: Scheduler | None = None
        self._declared: frozenset[str] = frozenset()

    def knows(self, job: JobRecord) -> bool:
        return job.type in self.parts.tasks or job.type in BUILT_IN

    async def jobs(self, where: Filter) -> AsyncGenerator[JobRecord]:
        """All jobs that match."""
        after: str | None = None
        while True:
            page = await self.harbor.admin.jobs.alist(where, limit=PAGE, after=after)
            for job in page:
                yield job
            if len(page) < PAGE:
                return
            after = page[-1].id

    async def has_due(self, now: datetime) -> bool:
        """Whether there is a job to run, or one that somebody died over."""
        async for job in self.jobs(ALIVE):
            if self.knows(job) and (moment := _moment(job)) is not None and moment <= now:
                return True
        return False

    async def schedules(self) -> Schedules | None:
        return offered(await self.session.driver(), Schedules) if self.parts.tasks else None

    async def tick(self, clock: BedClock) -> None:
        """Do what schedulers of workers do: write down what the code declares, and enqueue the ticks that are due."""
        if await self.schedules() is None:
            return
        declared = frozenset(self.parts.recurring)
        if self._scheduler is None or self._declared != declared:
            self._scheduler = Scheduler(self.parts.client, self.parts.tasks, list(self.parts.recurring.values()))
            self._declared = declared
            with clock.back_at(self.since):
                await self._scheduler.declare()
        await self._scheduler.look()

    async def moments(self) -> AsyncGenerator[datetime]:
        """When something is to be done, as far as that is known now."""
        async for job in self.jobs(ALIVE):
            if self.knows(job) and (moment := _moment(job)) is not None:
                yield moment
        store = await self.schedules()
        for schedule in [] if store is None else await store.schedules():
            if schedule.slot is not None and not schedule.paused:
                yield schedule.slot


class TestBed:
    """Puts a store behind every harbor of this process until the end of the block, or behind those that are given.

    With `memory://` each harbor has a store of its own, but harbors with the same URL share one, as they do in
    production. Any other URL is the store of all of them; it should be empty.
    """

    __test__ = False  # for pytest: no test, in spite of its name

    def __init__(self, url: str = MEMORY, harbors: Sequence[Harbor] | None = None) -> None:
        drivers.parse(url)
        self.url = url
        self._only = None if harbors is None else tuple(harbors)
        self._clock = BedClock()
        self._places: dict[Client, _Place] = {}
        self._memories: dict[object, _KeptMemory] = {}
        self._crashes: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._stack = ExitStack()

    def __repr__(self) -> str:
        return f"<TestBed {drivers.redacted(self.url)}, {len(self._places)} harbors>"

    # life

    def __enter__(self) -> Self:
        if self.url != MEMORY:
            portal = Portal()
            portal.run(lambda: drivers.migrate(self.url, dry=False, tell=lambda _: None))
            portal.close()
        self._stack.enter_context(following(self._adopt))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            places, self._only = list(self._places.values()), ()
        for place in places:
            if place.session.is_open:
                place.session.portal.run(place.session.close)
            place.session.portal.close()
        for memory in self._memories.values():
            at_once(memory.end())
        self._stack.close()

    def _adopt(self, parts: Parts) -> None:
        harbor = parts.harbor
        if not isinstance(harbor, Harbor) or (self._only is not None and harbor not in self._only):
            return
        with self._lock:
            if parts.client not in self._places:
                settings = parts.client.session.settings
                session = Session(self._connecting(harbor, parts.client), settings, self._clock, own_chance())
                self._places[parts.client] = _Place(parts, harbor, session, self._clock())
                self._stack.enter_context(parts.client.stand_in(session))
                parts.middleware.insert(0, self._die)
                self._stack.callback(parts.middleware.remove, self._die)

    def _connecting(self, harbor: Harbor, client: Client) -> Callable[[], Coroutine[Any, Any, Driver]]:
        if self.url != MEMORY:
            return lambda: drivers.from_url(self.url)
        key: object = client if harbor.url.startswith(MEMORY) else harbor.url
        memory = self._memories.setdefault(key, _KeptMemory())

        async def connect() -> Driver:
            return memory

        return connect

    @property
    def harbors(self) -> list[Harbor]:
        """The harbors in the bed."""
        return [place.harbor for place in self._in_order()]

    def _in_order(self) -> list[_Place]:
        with self._lock:
            return list(self._places.values())

    # time

    @property
    def now(self) -> datetime:
        """The time by the clock of this test."""
        return self._clock()

    def start_at(self, time: datetime) -> None:
        """Begin the test at this time instead of now: for what depends on the time of day. Before any job is there."""
        if time.tzinfo is None:
            raise InvalidJob(f"start_at needs a time with a time zone, such as {time.replace(tzinfo=UTC)!r}")
        with self._lock:
            self._clock.advance(time - self._clock())
            for place in self._places.values():
                place.since = self._clock()

    def advance(self, by: timedelta | float) -> datetime:
        """Let that much time pass (seconds, or a timedelta) and nothing happen; the new time.

        What became due meanwhile runs with the next `drain`, as with a worker that was away for so long.
        """
        length = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if length < timedelta():
            raise InvalidJob(f"time goes on: advance takes zero or more seconds, not {by!r}")
        self._clock.advance(length)
        return self.now

    # working

    async def adrain(self, *, raise_failures: bool = True) -> int:
        """Run everything that is due in all harbors, and what that makes due; the number of runs.

        That includes the ticks of recurring tasks. What a handler raised is raised once all of it has run.
        """
        self._clock.catch_up()
        return await self._reporting(raise_failures, self._drain)

    def drain(self, *, raise_failures: bool = True) -> int:
        """The blocking twin of `adrain`; `def` handlers run in the calling thread, one at a time."""
        return run_beside("adrain", lambda: self.adrain(raise_failures=raise_failures))

    async def arun_for(self, by: timedelta | float, *, raise_failures: bool = True) -> int:
        """Let that much time pass as a worker would live through it: everything runs when it is due."""
        self._clock.catch_up()
        end = self._clock() + (by if isinstance(by, timedelta) else timedelta(seconds=by))

        async def live(failures: list[Failure]) -> int:
            total = await self._drain(failures)
            while (moment := await self._next_moment()) is not None and moment <= end:
                self._clock.advance(moment - self._clock())
                total += await self._drain(failures)
            self._clock.advance(max(timedelta(), end - self._clock()))
            return total

        return await self._reporting(raise_failures, live)

    def run_for(self, by: timedelta | float, *, raise_failures: bool = True) -> int:
        """The blocking twin of `arun_for`; `def` handlers run in the calling thread, one at a time."""
        return run_beside("arun_for", lambda: self.arun_for(by, raise_failures=raise_failures))

    async def _reporting(self, raise_failures: bool, work: Callable[[list[Failure]], Coroutine[Any, Any, int]]) -> int:
        failures: list[Failure] = []
        total = await work(failures)
        if failures and raise_failures:
            raise told(failures)
        return total

    async def _drain(self, failures: list[Failure]) -> int:
        total, ran = 0, -1
        while ran:
            ran = 0
            for place in self._in_order():
                await place.tick(self._clock)
                if await place.has_due(self._clock()):
                    ran += await place.parts.drain(failures)
            total += ran
        return total

    async def _next_moment(self) -> datetime | None:
        now = self._clock()
        moments = [moment for place in self._in_order() async for moment in place.moments() if moment > now]
        return min(moments, default=None)

    def crash_after(self, what: AnyTask | Job[Any] | str, times: int = 1) -> None:
        """Let the worker die right after the next run of this task or job: what it did stays, its end is not stored.

        The lease runs out by itself: `advance(60)`, and the next `drain` runs the job again. A task may be given by its
        name.
        """
        with self._lock:
            self._crashes[_key(what)] += times

    async def _die(self, job: JobContext, call_next: CallNext) -> Any:
        try:
            return await call_next()
        finally:
            if self._is_doomed(job):
                lose()

    def _is_doomed(self, job: JobContext) -> bool:
        with self._lock:
            for key in (job.id, job.task):
                if self._crashes[key] > 0:
                    self._crashes[key] -= 1
                    return True
        return False

    # looking

    async def aenqueued(self, task: AnyTask | str | None = None) -> list[JobRecord]:
        """The jobs that were enqueued for this task (or its name, or all), also those that have ended; the first first.

        `record.arguments` are what they were enqueued with, by name and decoded.
        """
        name = task if task is None or isinstance(task, str) else task.name
        found: dict[str, JobRecord] = {}
        for place in self._in_order():
            if isinstance(task, Task | AsyncTask) and place.parts.tasks.get(task.name) is not task.registered:
                continue
            async for job in place.jobs(Filter()):
                if name in (None, job.type) and (job.id not in found or place.knows(job)):
                    found[job.id] = job
        return sorted(found.values(), key=lambda job: (job.created_at, job.id))

    def enqueued(self, task: AnyTask | str | None = None) -> list[JobRecord]:
        """The blocking twin of `aenqueued`."""
        return run_here("aenqueued", lambda: self.aenqueued(task))


def _moment(job: JobRecord) -> datetime | None:
    """When a worker can take the job."""
    if job.state is READY:
        return job.due_at
    return job.lease.expires_at if job.state is INFLIGHT and job.lease is not None else None


def _key(what: AnyTask | Job[Any] | str) -> str:
    if isinstance(what, str):
        return what
    return what.id if isinstance(what, Job) else what.name
