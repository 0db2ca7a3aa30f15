"""The scene of every case of the kit: an open driver, a fixed time, and short helpers for the verbs.

A case is an `async def test_…(self, s: Scene)`. `Cases` turns it into an ordinary test that opens the driver of the
`harness` fixture, runs the case on an event loop of its own and closes what was opened: no plugin is needed.

To add a case, write it in the `Cases` class of its subject: every driver that binds the class runs it. Its name is
`test_<clause>_…`, and its docstring begins with the same clause of docs/contract.md. Then run `python
scripts/contract.py`. A new class goes into the bases of `EphemeralKit` in `__init__.py`, or of `DriverKit` if it needs
several processes.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import pytest

from taskharbor import driver as seam
from taskharbor.core.evolve import DeadLetter, Replay
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord, NewJob
from taskharbor.core.states import Shown
from taskharbor.core.transition import Transition
from taskharbor.drivers import from_url
from taskharbor.testing.kit.jobs import ALL, KEEP, MUCH, SETTLES, T0, expiry_of, group, job

BLOCKED_FOR = 30.0
C = TypeVar("C")
T = TypeVar("T")


class Probe(Protocol):
    """Reads the store without the driver, so that writes are not proven by the driver's own reads."""

    def state(self, driver: seam.Driver, id: str) -> str | None:
        """The stored state of a job, None if there is no such job."""
        ...

    def count(self, driver: seam.Driver) -> int:
        """How many job records the store holds."""
        ...


class Hand(Protocol):
    """An open transaction of the application, with the handle that `Within.within` takes."""

    @property
    def handle(self) -> object:
        """The application's connection or session."""
        ...

    async def commit(self) -> None:
        """Commit."""
        ...

    async def rollback(self) -> None:
        """Roll back."""
        ...


class Application(Protocol):
    """An application with a table of its own in the same store, for the cases of `Within`."""

    def begin(self) -> AbstractAsyncContextManager[Hand]:
        """A transaction for the block, rolled back at its end unless committed."""
        ...

    async def write(self, handle: object, text: str) -> None:
        """Insert a row through a handle, its own or the driver's; must not wait for the loop if the handle blocks."""
        ...

    def rows(self) -> list[str]:
        """The rows that are committed, in order."""
        ...


@dataclass(frozen=True, kw_only=True)
class Harness:
    """Opens drivers for the kit. Give `open`, `url` or both; each test needs an empty store.

    `open` returns a new handle on the same store. With a `url` that `drivers.from_url` knows, other processes can open
    the store too, and the cases with several processes run. `due_resolution` is D11's declared coarseness of due times;
    `lacks` names the protocols that the driver does not have (D13); one with `Within` needs an `application`.
    """

    open: Callable[[], Awaitable[seam.Driver]] | None = None
    url: str | None = None
    probe: Probe | None = None
    due_resolution: timedelta = timedelta(0)
    lacks: tuple[type, ...] = ()
    application: Application | None = None

    async def opened(self) -> seam.Driver:
        """A new handle on the store."""
        if self.open is not None:
            return await self.open()
        assert self.url is not None, "a Harness needs `open` or `url`"
        return await from_url(self.url)

    async def left(self, driver: seam.Driver) -> None:
        """Give up a handle."""
        await driver.close()

    def run(self, case: Coroutine[Any, Any, None]) -> None:
        """Run a case on an event loop."""
        asyncio.run(case)


NewStore = Callable[[], Harness]


def named(answers: Iterable[Any]) -> list[Any]:
    """Answers with each refusal as the name of its class."""
    return [type(each).__name__ if isinstance(each, Exception) else each for each in answers]


class _Offer(Generic[C]):
    """The driver as one of its protocols; a case that needs one that the driver declares to lack is skipped."""

    def __init__(self, protocol: type[C]) -> None:
        self._protocol = protocol

    def __get__(self, scene: Scene, owner: type[Scene]) -> C:
        if self._protocol in scene.harness.lacks:
            pytest.skip(f"the {scene.driver.name} driver declares that it lacks {self._protocol.__name__}")
        return seam.capability(scene.driver, self._protocol)


class Scene:
    """An open driver and the helpers that cases use; `now` stands still until a case moves it."""

    manage = _Offer(seam.Manage)
    upkeep = _Offer(seam.Maintain)
    flows = _Offer(seam.WorkflowStore)
    schedules = _Offer(seam.Schedules)
    registry = _Offer(seam.Registry)
    counters = _Offer(seam.Counters)
    waits = _Offer(seam.WaitForWork)
    within = _Offer(seam.Within)
    blocking = _Offer(seam.EnqueueBlocking)

    def __init__(self, harness: Harness, driver: seam.Driver, *, blocks: bool = False) -> None:
        self.harness = harness
        self.blocks = blocks
        self.driver = driver
        self.look = seam.capability(driver, seam.Inspect)  # the kit reads jobs through it
        self.now = T0
        self._opened: list[seam.Driver] = [driver]

    def tick(self, seconds: float) -> None:
        """Move the time on."""
        self.now += timedelta(seconds=seconds)

    @property
    def application(self) -> Application:
        """The application that shares the store."""
        assert self.harness.application is not None, "the cases of seam.Within need a Harness with an `application`"
        return self.harness.application

    async def another(self) -> Scene:
        """A second handle on the same store; an ephemeral driver returns itself."""
        if self.driver.ephemeral:
            return self
        second = Scene(self.harness, await self.harness.opened(), blocks=self.blocks)
        second.now = self.now
        self._opened.append(second.driver)
        return second

    async def close(self) -> None:
        """Close every handle."""
        for driver in self._opened:
            await self.harness.left(driver)

    async def enqueue(self, *groups: seam.Group) -> list[Any]:
        """Enqueue groups; each result is a tuple of `Enqueued`, or the name of a refusal."""
        if self.blocks and await asyncio.to_thread(self.blocking.enqueues_blocking, groups):
            return named(await asyncio.to_thread(self.blocking.enqueue_blocking, groups, self.now, BLOCKED_FOR))
        return named(await self.driver.enqueue(groups, self.now))

    async def add(self, *jobs: NewJob, **options: Any) -> tuple[seam.Enqueued, ...]:
        """Enqueue jobs as one group, which must be stored."""
        [result] = await self.enqueue(group(*jobs, **options))
        assert isinstance(result, tuple), result
        return cast("tuple[seam.Enqueued, ...]", result)

    async def reserve(
        self,
        limit: int = 1,
        queues: Sequence[str] = ("q",),
        lease: float = 30,
        worker: str = "w",
        ids: Sequence[str] | None = None,
    ) -> list[JobRecord]:
        """Claim jobs."""
        return await self.driver.reserve(queues, self.now, timedelta(seconds=lease), limit, worker, ids)

    async def claim(self, id: str, lease: float = 30, worker: str = "w") -> JobRecord:
        """Claim this job."""
        [claimed] = await self.reserve(ids=[id], lease=lease, worker=worker)
        assert claimed.id == id
        return claimed

    async def held(self, id: str = "a", lease: float = 30, **options: Any) -> JobRecord:
        """A new job under a lease."""
        await self.add(job(id, **options))
        return await self.claim(id, lease)

    async def order(self, limit: int = ALL, queues: Sequence[str] = ("q",)) -> list[str]:
        """Claim jobs and return their ids, in order."""
        return [job.id for job in await self.reserve(limit, queues)]

    async def extend(self, *reports: seam.Report, lease: float = 30) -> list[Any]:
        """Send heartbeats; each answer is `Extended`, or the name of a refusal."""
        return named(await self.driver.extend_lease(reports, self.now, timedelta(seconds=lease)))

    async def settle(self, *transitions: Transition) -> list[str]:
        """Settle; each verdict is ok, replayed, or the name of a refusal."""
        return named(await self.driver.settle(transitions, self.now))

    async def end(self, *transitions: Transition) -> None:
        """Settle; all must succeed."""
        assert await self.settle(*transitions) == ["ok"] * len(transitions)

    async def stop(self, held: JobRecord, how: str) -> None:
        """End a job that was asked to stop: by a settle of its holder, or by upkeep once it is `left behind`."""
        if how == "left behind":
            self.now = expiry_of(held)
            assert await self.sweep() == 1
        else:
            await self.end(SETTLES[how](held))

    async def replay(self, id: str, **options: Any) -> str:
        """Replay one job."""
        [answer] = await self.manage.replay([Replay(id=id, **options)], self.now)
        return answer

    async def withdraw(self, *ids: str) -> list[Any]:
        """Cancel by hand."""
        return list(await self.manage.cancel(ids, self.now, KEEP))

    async def dead_letter(self, *ids: str, reason: str = "by hand", keep_until: datetime = KEEP) -> list[Any]:
        """Dead-letter by hand."""
        deaths = [DeadLetter(id=id, reason=reason, fingerprint="f0", keep_until=keep_until) for id in ids]
        return list(await self.manage.dead_letter(deaths, self.now))

    async def request(self, stop: str, **options: Any) -> str:
        """Cancel or dead-letter job `a` by hand; the options are those of a dead letter."""
        [answer] = await (self.withdraw("a") if stop == "cancel" else self.dead_letter("a", **options))
        return str(answer)

    async def sweep(self, limit: int = ALL) -> int:
        """End expired jobs (sweep)."""
        return await self.upkeep.sweep(self.now, KEEP, limit)

    async def prune(self, limit: int = ALL) -> int:
        """Delete jobs past their retention (prune)."""
        return await self.upkeep.prune(self.now, limit)

    async def get(self, id: str = "a") -> JobRecord:
        """The record of a job that must exist; a probe must see it in the same state."""
        found = await self.find(id)
        assert found is not None, f"{id} is not in the store"
        return found

    async def find(self, id: str) -> JobRecord | None:
        """The record of a job, if it exists; a probe must agree."""
        [found] = await self.look.get([id])
        if self.harness.probe is not None:
            seen = self.harness.probe.state(self.driver, id)
            assert seen == (None if found is None else found.state), f"the probe sees {id} as {seen}"
        return found

    async def expect(self, id: str = "a", /, **fields: Any) -> None:
        """The record of this job must have these values."""
        record = await self.get(id)
        assert {name: getattr(record, name) for name in fields} == fields

    async def states(self, *ids: str) -> list[str | None]:
        """The stored states of these jobs."""
        found = [await self.find(id) for id in ids]
        return [None if job is None else str(job.state) for job in found]

    async def shown(self) -> dict[Shown, list[str]]:
        """The ids of all jobs by the state that readers see."""
        found = {state: await self.look.query(Filter(states=(state,)), self.now, ALL) for state in Shown}
        return {state: sorted(job.id for job in jobs) for state, jobs in found.items() if jobs}

    async def all(self) -> list[JobRecord]:
        """Every record, newest first; a probe must count as many."""
        found = await self.look.query(Filter(), self.now, ALL)
        if self.harness.probe is not None:
            assert self.harness.probe.count(self.driver) == len(found)
        return found

    async def everything(self) -> tuple[list[JobRecord], list[list[seam.Parent]]]:
        """Every record with its edges."""
        records = await self.all()
        if seam.WorkflowStore in self.harness.lacks:
            return records, []
        return records, await self.flows.parents([record.id for record in records], MUCH)

    async def parents(self, id: str, most: int = MUCH) -> list[seam.Parent]:
        """The dependencies of one job."""
        (found,) = await self.flows.parents([id], most)
        return found

    @asynccontextmanager
    async def nothing_changes(self) -> AsyncGenerator[None]:
        """Every record and edge of the store must be equal before and after."""
        before = await self.everything()
        yield
        assert await self.everything() == before

    async def without_effect(self, call: Awaitable[T]) -> T:
        """Make a call, which must change no record and no edge of the store; return its answer."""
        async with self.nothing_changes():
            return await call


class Cases:
    """Base of every group of cases: makes ordinary tests of `async def test_…(self, s: Scene)`.

    With `blocks`, scenes enqueue by the blocking verb.
    """

    blocks: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, _blocking(test))


def _blocking(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def blocking(self: Cases, harness: Harness, **given: Any) -> None:
        async def play() -> None:
            scene = Scene(harness, await harness.opened(), blocks=self.blocks)
            try:
                await test(self, scene, **given)
            finally:
                await scene.close()

        harness.run(play())

    taken = inspect.signature(test).parameters.values()
    shown = [each.replace(name="harness") if each.name == "s" else each for each in taken]
    blocking.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return blocking
