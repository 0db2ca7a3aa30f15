"""A test bed: another store behind the application's harbors for one test, and a clock that the test moves.

The pytest fixture `taskharbor` gives one; `with TestBed() as bed:` does the same for other test frameworks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from taskharbor import drivers
from taskharbor.client.blocks import run_here
from taskharbor.client.client import Client
from taskharbor.client.handle import Job
from taskharbor.client.liveness import Attendance
from taskharbor.client.portal import Portal
from taskharbor.client.session import Session
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.misfit import closest
from taskharbor.decorators import AnyTask
from taskharbor.driver import Driver, Inspect, at_once, capability
from taskharbor.driver.forking import own_rng
from taskharbor.errors import InvalidJob, UnknownTask
from taskharbor.harbor import Harbor
from taskharbor.task import AsyncTask, Task
from taskharbor.testing.crashes import Crashes
from taskharbor.testing.lending import run_beside
from taskharbor.testing.place import BedClock, KeptMemory, Place
from taskharbor.worker.application import CallNext, HarborParts, every_harbor
from taskharbor.worker.context import JobContext, lose
from taskharbor.worker.drain_failures import FailedRun, as_exception

MEMORY = "memory://"


class TestBed:
    """Puts a store behind every harbor of this process until the end of the block, or behind those that are given.

    With `memory://` each harbor has a store of its own, but harbors with the same URL share one, as they do in
    production. Any other URL is the store of all of them; it should be empty.
    """

    __test__ = False  # tells pytest that this is not a test, despite its name

    def __init__(self, url: str = MEMORY, harbors: Sequence[Harbor] | None = None) -> None:
        drivers.parse(url)
        self.url = url
        self._only = None if harbors is None else tuple(harbors)
        self._clock = BedClock()
        self._places: dict[Client, Place] = {}
        self._memories: dict[object, KeptMemory] = {}
        self._crashes = Crashes()
        self._attendance = Attendance(elsewhere=url != MEMORY)
        self._lock = threading.RLock()
        self._stack = ExitStack()

    def __repr__(self) -> str:
        return f"<TestBed {drivers.redacted(self.url)}, {len(self._places)} harbors>"

    # lifecycle

    def __enter__(self) -> Self:
        if self.url != MEMORY:
            portal = Portal()
            portal.run(lambda: drivers.migrate(self.url, dry=False, tell=lambda _: None))
            portal.close()
        self._stack.enter_context(every_harbor(self._adopt))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._lock:
            places, self._only = list(self._places.values()), ()
        for place in places:
            if place.session.is_open:
                place.session.portal.run(place.session.close)
            place.session.portal.close()
        for memory in self._memories.values():
            at_once(memory.end())
        self._stack.close()
        if kind is None:
            self._crashes.check()

    def _adopt(self, parts: HarborParts) -> None:
        harbor = parts.harbor
        if not isinstance(harbor, Harbor) or (self._only is not None and harbor not in self._only):
            return
        with self._lock:
            if parts.client not in self._places:
                settings = parts.client.session.settings
                session = Session(self._connecting(harbor, parts.client), settings, self._clock, own_rng())
                session.attendance = self._attendance
                self._places[parts.client] = Place(parts, harbor, session, self._clock())
                self._stack.enter_context(parts.client.stand_in(session))
                parts.app.middleware.insert(0, self._die)
                self._stack.callback(parts.app.middleware.remove, self._die)

    def _connecting(self, harbor: Harbor, client: Client) -> Callable[[], Coroutine[Any, Any, Driver]]:
        if self.url != MEMORY:
            return lambda: drivers.from_url(self.url)
        key: object = client if harbor.url.startswith(MEMORY) else harbor.url
        memory = self._memories.setdefault(key, KeptMemory())

        async def connect() -> Driver:
            return memory

        return connect

    @property
    def harbors(self) -> list[Harbor]:
        """The harbors in the bed."""
        return [place.harbor for place in self._in_order()]

    def _in_order(self) -> list[Place]:
        with self._lock:
            return list(self._places.values())

    # time

    @property
    def now(self) -> datetime:
        """The time by the clock of this test."""
        return self._clock()

    def start_at(self, time: datetime) -> None:
        """Begin the test at this time instead of now, for code that depends on the time of day.

        Refused as soon as there are jobs: their times would be in the future or long ago.
        """
        if time.tzinfo is None:
            raise InvalidJob(f"start_at needs a time with a time zone, such as {time.replace(tzinfo=UTC)!r}")
        if self._has_jobs():
            raise InvalidJob(
                "start_at moves the beginning of a test, but there are jobs in it already: call it first, "
                "or move on by advance(…)"
            )
        with self._lock:
            self._clock.advance(time - self._clock())
            for place in self._places.values():
                place.since = self._clock()

    def _has_jobs(self) -> bool:
        if self.url == MEMORY:
            now = self._clock()
            return any(at_once(memory.query(Filter(), now, 1)) for memory in list(self._memories.values()))
        place = next(iter(self._in_order()), None)
        return place is not None and place.session.portal.run(lambda: self._has_any(place.session))

    async def _has_any(self, session: Session) -> bool:
        return bool(await capability(await session.driver(), Inspect).query(Filter(), session.now(), 1))

    def advance(self, by: timedelta | float) -> datetime:
        """Move the clock on (by seconds or a timedelta) without running anything; return the new time.

        Jobs that became due run with the next `drain`, as with a worker that was down for that time.
        """
        self._clock.advance(_length("advance", by))
        return self.now

    # working

    async def adrain(self, *, raise_failures: bool = True, recurring: bool = False) -> int:
        """Run everything that is due in all harbors, and what that makes due; return the number of runs.

        Schedules tick only with `recurring=True`, or the number would depend on the time of day. An exception of a
        handler is raised after everything has run.
        """
        self._clock.catch_up()
        return await self._reporting(raise_failures, lambda failures: self._drain(failures, ticks=recurring))

    def drain(self, *, raise_failures: bool = True, recurring: bool = False) -> int:
        """The blocking twin of `adrain`; `def` handlers run in the calling thread, one at a time."""
        return run_beside("adrain", lambda: self.adrain(raise_failures=raise_failures, recurring=recurring))

    async def arun_for(self, by: timedelta | float, *, raise_failures: bool = True) -> int:
        """Let this much time pass as for a running worker: everything runs and ticks when it is due."""
        length = _length("run_for", by)
        self._clock.catch_up()
        end = self._clock() + length

        async def live(failures: list[FailedRun]) -> int:
            total = await self._drain(failures, ticks=True)
            while (moment := await self._next_moment()) is not None and moment <= end:
                self._clock.advance(moment - self._clock())
                total += await self._drain(failures, ticks=True)
            self._clock.advance(max(timedelta(), end - self._clock()))
            return total

        return await self._reporting(raise_failures, live)

    def run_for(self, by: timedelta | float, *, raise_failures: bool = True) -> int:
        """The blocking twin of `arun_for`; `def` handlers run in the calling thread, one at a time."""
        return run_beside("arun_for", lambda: self.arun_for(by, raise_failures=raise_failures))

    async def _reporting(
        self, raise_failures: bool, work: Callable[[list[FailedRun]], Coroutine[Any, Any, int]]
    ) -> int:
        failures: list[FailedRun] = []
        total = await work(failures)
        if failures and raise_failures:
            raise as_exception(failures)
        return total

    async def _drain(self, failures: list[FailedRun], *, ticks: bool) -> int:
        total, ran = 0, -1
        while ran:
            ran = 0
            for place in self._in_order():
                if ticks:
                    await place.tick(self._clock)
                ran += await place.drain(failures, self._clock)
            total += ran
        return total

    async def _next_moment(self) -> datetime | None:
        now = self._clock()
        moments = [moment for place in self._in_order() async for moment in place.moments() if moment > now]
        return min(moments, default=None)

    def crash_after(self, what: AnyTask | Job[Any] | str, times: int = 1) -> None:
        """Crash the worker right after the next run of this task or job: its effects stay, its end is not stored.

        The lease runs out by itself: after `advance(60)` the next `drain` runs the job again. A task may be given by
        its name. A crash that never happens fails the test at its end, unless `disarm` takes it back.
        """
        key = self._key(what)
        self._crashes.arm(key, repr(what) if isinstance(what, str | Job) else key, times)

    def disarm(self, what: AnyTask | Job[Any] | str | None = None) -> None:
        """Take back the crashes requested by `crash_after`, for this task or job, or all."""
        self._crashes.disarm(None if what is None else self._key(what))

    def _key(self, what: AnyTask | Job[Any] | str) -> str:
        if isinstance(what, Job):
            return what.id
        name = what if isinstance(what, str) else what.name
        known = {name for place in self._in_order() for name in place.parts.app.tasks}
        if name not in known:
            guess = f" (did you mean {close!r}?)" if (close := closest(name, known)) else ""
            raise UnknownTask(
                f"no harbor in this test has a task named {name!r}{guess}; "
                f"there is {', '.join(sorted(known)) or 'none'}. For a job, give its handle: harbor.job(id)"
            )
        return name

    async def _die(self, job: JobContext, call_next: CallNext) -> Any:
        try:
            return await call_next()
        finally:
            if self._crashes.take(job.id, job.task):
                lose()

    # inspection

    async def aenqueued(self, task: AnyTask | str | None = None) -> list[JobRecord]:
        """The jobs that were enqueued for this task (or its name, or all), ended ones included, oldest first.

        `record.arguments` has their arguments by name, decoded.
        """
        name = task if task is None or isinstance(task, str) else getattr(task, "name", None)
        if task is not None and not isinstance(name, str):
            raise InvalidJob(
                f"enqueued takes a task, its name, or nothing for all, not {task!r}: is @harbor.task missing?"
            )
        found: dict[str, JobRecord] = {}
        for place in self._in_order():
            if isinstance(task, Task | AsyncTask) and place.parts.app.tasks.get(task.name) is not task.registered:
                continue
            async for job in place.jobs(Filter()):
                if name in (None, job.type) and (job.id not in found or place.knows(job)):
                    found[job.id] = job
        return sorted(found.values(), key=lambda job: (job.created_at, job.id))

    def enqueued(self, task: AnyTask | str | None = None) -> list[JobRecord]:
        """The blocking twin of `aenqueued`."""
        return run_here("aenqueued", lambda: self.aenqueued(task))


def _length(method: str, by: timedelta | float) -> timedelta:
    if isinstance(by, bool) or not isinstance(by, timedelta | int | float):
        raise InvalidJob(
            f"{method} takes seconds or a timedelta, not {by!r}: write {method}(300), or {method}(timedelta(minutes=5))"
        )
    try:
        length = by if isinstance(by, timedelta) else timedelta(seconds=by)
    except (OverflowError, ValueError):
        raise InvalidJob(f"{method} takes a length of time that has an end, not {by!r}") from None
    if length < timedelta():
        raise InvalidJob(f"time only moves forward: {method} takes zero or more seconds, not {by!r}")
    return length
