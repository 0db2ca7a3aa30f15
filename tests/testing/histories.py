"""Histories to check: written by hand, line by line, or lived through on the memory driver in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace

from taskharbor.core.decide import Retention, admit, decide
from taskharbor.core.evolve import Replay
from taskharbor.core.job import Dependency, JobRecord, NewJob
from taskharbor.core.outcome import CancelledByRequest, Failed, Interrupted, Outcome, Snoozed, Succeeded
from taskharbor.core.retry import Retry
from taskharbor.core.schedule import Schedule
from taskharbor.driver import Group, Report, Reschedule, Swap
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import DriverUnavailable
from taskharbor.testing import Flaky, LoopClock, SkewedClock, Slow, run
from taskharbor.testing.history import (
    Answer,
    Asked,
    Began,
    Called,
    ClaimEntry,
    Ended,
    Event,
    Final,
    JobEntry,
    KeptEntry,
    Last,
    Made,
    Named,
    Raised,
    Renew,
    Returned,
    SettleEntry,
    Want,
    Word,
)
from taskharbor.testing.recorder import Recorder, take_stock

LEASE = 100


class Tale:
    """A history written by hand. Each line is one call, which takes one unit of time, unless it is begun and ended.

    Driver times are given as `now`; by default the same as the real time at which the call starts.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.time = 0
        self._numbers = 0
        self._versions: dict[str, int] = {}

    def tick(self) -> int:
        """The next moment."""
        self.time += 1
        return self.time

    def begin(self, verb: str, *items: Asked, now: int | None = None, who: str = "a") -> int:
        """Start a call; its number."""
        self._numbers += 1
        at = self.tick()
        self.events.append(Called(who, self._numbers, at, verb, at if now is None else now, items))
        return self._numbers

    def end(self, number: int, *answers: Answer, who: str = "a") -> None:
        """A call has returned."""
        self.events.append(Returned(who, number, self.tick(), answers))

    def call(self, verb: str, items: Sequence[Asked], *answers: Answer, now: int | None = None, who: str = "a") -> None:
        """A call, from beginning to end."""
        self.end(self.begin(verb, *items, now=now, who=who), *answers, who=who)

    def lose(self, verb: str, *items: Asked, now: int | None = None, who: str = "a", killed: bool = False) -> None:
        """A call with an unknown outcome."""
        number = self.begin(verb, *items, now=now, who=who)
        if not killed:
            self.events.append(Raised(who, number, self.tick(), "DriverUnavailable", True))

    def refuse(self, verb: str, *items: Asked) -> None:
        """A call that was refused as a whole."""
        self.events.append(Raised("a", self.begin(verb, *items), self.tick(), "InvalidJob", False))

    def enqueue(self, *jobs: JobEntry, now: int | None = None, who: str = "a") -> None:
        """Groups that were stored."""
        self.call("enqueue", jobs, *(Made(job.id, True) for job in jobs), now=now, who=who)

    def claim(
        self, id: str = "j", *, version: int | None = None, now: int | None = None, who: str = "a", **more: Any
    ) -> ClaimEntry:
        """A reserve that got one job, in the next version by default."""
        self._versions[id] = self._versions.get(id, 0) + 1 if version is None else version
        made = claim(id, self._versions[id], now=self.time + 1 if now is None else now, **more)
        self.call("reserve", [Want(("q",), LEASE, 1)], made, now=now, who=who)
        return made

    def settle(
        self, claim: ClaimEntry, to: str = "ack", word: str = "ok", now: int | None = None, **more: Any
    ) -> SettleEntry:
        """A settle under the token of a claim."""
        item = settle(claim, to, **more)
        self.call("settle", [item], Word(word), now=now)
        return item

    def extend(self, claim: ClaimEntry, until: int, now: int | None = None) -> None:
        """A lease renewed."""
        self.call("extend_lease", [Renew(claim.id, claim.token)], KeptEntry(until, False), now=now)

    def by_hand(self, verb: str, id: str, word: str, **more: Any) -> None:
        """A cancel, delete, replay or reschedule."""
        self.call(verb, [Named(id, **more)], Word(word))

    def run(self, claim: ClaimEntry, who: str = "a") -> None:
        """A handler, from beginning to end."""
        self.began(claim, who)
        self.ended(claim, who)

    def began(self, claim: ClaimEntry, who: str = "a") -> None:
        """A handler has begun."""
        self.events.append(Began(who, self.tick(), claim.id, claim.version))

    def ended(self, claim: ClaimEntry, who: str = "a") -> None:
        """A handler has ended."""
        self.events.append(Ended(who, self.tick(), claim.id, claim.version))

    def final(self, *jobs: Last) -> list[Event]:
        """Add the final inventory of the store; return the whole history."""
        self.events.append(Final(self.tick(), self.time, jobs))
        return self.events


def job(id: str = "j", group: int = 0, **more: Any) -> JobEntry:
    """A job to be stored."""
    more.setdefault("max_attempts", 3)
    more.setdefault("max_crashes", 2)
    return JobEntry(id, group, more.pop("queue", "q"), more.pop("priority", 0), **more)


def claim(id: str, version: int, *, now: int = 0, lease: int = LEASE, **more: Any) -> ClaimEntry:
    """A job as it was handed out."""
    token = more.pop("token", f"{id}/{version}")
    due, attempts, crashes = more.pop("due_at", 0), more.pop("attempts", 0), more.pop("crashes", 0)
    return ClaimEntry(id, token, version, now + lease, "q", more.pop("priority", 0), due, attempts, crashes, **more)


def settle(claim: ClaimEntry, to: str = "ack", **more: Any) -> SettleEntry:
    """A transition for a claimed job: failures add an attempt, nothing else does."""
    failed = more.pop("failed", to == "fail")
    attempts = more.pop("attempts", claim.attempts + failed)
    if to == "put_back":
        more.setdefault("run_at", 0)
    return SettleEntry(
        claim.id, claim.token, to, attempts, more.pop("crashes", 0), 0, more.pop("failures", attempts), **more
    )


def last(id: str = "j", state: str = "done", version: int = 1, **more: Any) -> Last:
    """A job as it is in the end, settled under its last token if it ended."""
    ended = state in ("done", "dlq")
    more.setdefault("settled_token", f"{id}/{version}" if ended else None)
    attempts = more.pop("attempts", int(state == "dlq"))
    counts = (attempts, more.pop("crashes", 0), more.pop("failures", attempts), more.pop("unmet", 0))
    return Last(id, state, version, *counts, more.pop("replays", 0), **more)


def apart(events: Sequence[Event]) -> list[Event]:
    """The same history as its processes would have written it, each into a file of its own."""
    return sorted(events, key=lambda event: "" if isinstance(event, Final) else event.who)


# Lived through


class Wanderers:
    """Clients and workers that do all sorts of things to one memory store, with clocks and connections that fail.

    Calm ones only enqueue and work. `mutate` breaks the store first.
    """

    def __init__(
        self,
        seed: int,
        *,
        faults: float = 0.1,
        people: int = 3,
        deeds: int = 25,
        calm: bool = False,
        mutate: Callable[[Any], None] | None = None,
    ) -> None:
        self.rng = Random(seed)
        self.memory = MemoryDriver(Random(seed))
        if mutate is not None:
            mutate(self.memory._store)
        self.calm = calm
        self.events: list[Event] = []
        self.clock = LoopClock()
        self.faults = faults
        self.people = people
        self.deeds = deeds
        self.names = 0

    def live(self) -> list[Event]:
        """The history of it all."""
        run(self._live())
        return self.events

    def at(self) -> int:
        """Virtual time in microseconds."""
        return int(asyncio.get_running_loop().time() * 1_000_000)

    async def _live(self) -> None:
        schedule = Schedule(name="s", definition=b"", slot=self.clock())
        await self.memory.swap_schedules([Swap(name="s", seen=None, then=schedule)], self.clock())
        async with asyncio.TaskGroup() as group:
            for number in range(self.people):
                group.create_task(Wanderer(self, f"w{number}").live())
        await take_stock(self.memory, self.clock(), self.events, self.at)

    def name(self) -> str:
        """A new id."""
        self.names += 1
        return f"j{self.names}"


class Process:
    """The history of one process: once it is killed it sees and writes nothing more."""

    def __init__(self, world: Wanderers, who: str) -> None:
        self.events = world.events
        self.killed = False
        slow = Slow(world.memory, lambda: world.rng.choice([0, 0, 0.1, 0.7]))
        self.store: Any = Recorder(Flaky(slow, world.rng, world.faults), who, self, world.at)

    def append(self, event: Event, /) -> None:
        """Take one more event."""
        if not self.killed:
            self.events.append(event)


class Wanderer:
    """One of them."""

    def __init__(self, world: Wanderers, who: str) -> None:
        self.world = world
        self.rng = world.rng
        self.who = who
        self.process = Process(world, who)
        self.now = SkewedClock(world.clock, self.rng.choice([0, 0, 0, 2, -3, 3600]))
        self.deeds: list[Callable[[], Any]] = [
            *(self.enqueue,) * 3,
            *(self.work,) * 6,
            self.swap,
        ]
        if not world.calm:
            self.deeds += [self.cancel, self.delete, self.replay, self.reschedule, self.upkeep, self.jump]

    @property
    def store(self) -> Any:
        """The store as the process of today sees it."""
        return self.process.store

    async def live(self) -> None:
        """Do one thing after the other, some at the same time."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.world.deeds):
                await asyncio.sleep(self.rng.choice([0, 0.2, 1.0]))
                deed = group.create_task(self.try_to(self.rng.choice(self.deeds)))
                if self.rng.random() < 0.7:
                    await deed

    async def try_to(self, deed: Callable[[], Any]) -> None:
        """Do it, or fail to."""
        try:
            await deed()
        except DriverUnavailable:
            return

    async def jump(self) -> None:
        """The clock is set."""
        self.now.offset = timedelta(seconds=self.rng.choice([0, 0, -5, 5, 60]))

    def new_job(self, **more: Any) -> NewJob:
        """A job with options by rng."""
        later = self.now() + timedelta(seconds=self.rng.choice([-2, 1, 5]))
        if self.rng.random() < 0.2:
            more["expires_at"] = later
        if self.rng.random() < 0.3:
            more["run_at"] = later
        more.setdefault("id", self.world.name())
        return NewJob(
            type="t",
            queue=self.rng.choice("qr"),
            payload=b"",
            max_attempts=3,
            max_crashes=self.rng.choice([1, 3]),
            **more,
        )

    def keyed_job(self) -> NewJob:
        """A job with a key that others use too."""
        until = self.rng.choice([None, self.now() + timedelta(seconds=3)])
        return self.new_job(idempotency_key=self.rng.choice(["k", "l"]), key_expires_at=until)

    def group(self) -> Group:
        """One job, or several, which may wait for each other."""
        if self.rng.random() < 0.3:
            return Group(jobs=(self.keyed_job(),))
        jobs = [self.new_job() for _ in range(self.rng.choice([1, 1, 2, 3]))]
        for place in range(1, len(jobs)):
            if self.rng.random() < 0.6:
                policy = self.rng.choice(["hold", "cancel", "collect"])
                jobs[place] = replace(jobs[place], depends_on=(Dependency(jobs[place - 1].id, policy),))
        return Group(jobs=tuple(jobs))

    async def enqueue(self) -> None:
        """Enqueue some groups, and again if the outcome is unknown."""
        groups = [self.group() for _ in range(self.rng.choice([1, 1, 2]))]
        for _ in range(3):
            try:
                await self.store.enqueue(groups, self.now())
            except DriverUnavailable:
                continue
            return

    async def work(self) -> None:
        """Reserve some jobs and see to each at the same time."""
        lease = timedelta(seconds=self.rng.choice([1, 4]))
        process = self.process
        jobs = await process.store.reserve(["q", "r"], self.now(), lease, 3, self.who)
        await asyncio.gather(*(self.see_to(job, lease, process) for job in jobs))

    async def see_to(self, job: JobRecord, lease: timedelta, process: Process) -> None:
        """Run a job, unless the worker dies; renew its lease sometimes; settle it, sometimes too late."""
        if process.killed or self.rng.random() < 0.1:
            return
        refused = admit(job, Retention(), self.now())
        if refused is None:
            process.append(Began(self.who, self.world.at(), job.id, job.version))
            await self.handle(job, lease, process)
            process.append(Ended(self.who, self.world.at(), job.id, job.version))
        to = refused or decide(job, self.outcome(), Retry(base=0.5), Retention(), self.now(), self.rng)
        for _ in range(self.rng.choice([1, 3])):
            if process.killed:
                return
            try:
                await process.store.settle([to], self.now())
            except DriverUnavailable:
                continue
            if self.rng.random() < 0.8:
                return

    async def handle(self, job: JobRecord, lease: timedelta, process: Process) -> None:
        """Run a handler for some time; it may kill its process."""
        assert job.lease is not None
        for _ in range(self.rng.choice([0, 1, 4])):
            await asyncio.sleep(0.6)
            if self.rng.random() < 0.5 and not process.killed:
                report = Report(job.id, job.lease.token)
                await self.try_to(partial(process.store.extend_lease, [report], self.now(), lease))
        if self.rng.random() < 0.05 and not process.killed and not self.world.calm:
            process.killed = True
            self.process = Process(self.world, self.who)

    def outcome(self) -> Outcome:
        """How a run ends."""
        new = (self.new_job(), self.keyed_job()) if self.rng.random() < 0.3 else ()
        outcomes: list[Outcome] = [Succeeded(None, new), Succeeded(None), Failed("E", "m"), Failed("E", "m", final="x")]
        return self.rng.choice([*outcomes, Snoozed(0.5), Interrupted(), CancelledByRequest()])

    def some_ids(self) -> list[str]:
        """Ids that were given out, mostly."""
        return [f"j{self.rng.randint(1, self.world.names + 1)}" for _ in range(self.rng.choice([1, 3]))]

    def keep(self) -> Any:
        """Until when to keep what is cancelled."""
        return self.now() + timedelta(seconds=self.rng.choice([0, 5]))

    async def cancel(self) -> None:
        """Cancel some."""
        await self.store.cancel(self.some_ids(), self.now(), self.keep())

    async def delete(self) -> None:
        """Delete some."""
        await self.store.delete(self.some_ids())

    async def replay(self) -> None:
        """Replay some, or all that are dead."""
        dead = [job.id for job in self.world.memory._store.jobs.values() if job.state in ("dlq", "cancelled")]
        key = self.rng.choice([None, None, "k", "m"])
        run_at = self.rng.choice([None, self.now() + timedelta(seconds=2)])
        replays = [Replay(id=id, idempotency_key=key, run_at=run_at) for id in [*self.some_ids(), *dead[:2]]]
        await self.store.replay(replays, self.now())

    async def reschedule(self) -> None:
        """Move some."""
        time = self.rng.choice([None, self.now() + timedelta(seconds=self.rng.choice([-1, 2]))])
        changes = [Reschedule(id=id, run_at=time, priority=self.rng.choice([None, 1])) for id in self.some_ids()]
        await self.store.reschedule(changes, self.now())

    async def upkeep(self) -> None:
        """Sweep and prune."""
        await self.store.sweep(self.now(), self.keep(), 5)
        await self.store.prune(self.now(), 3)

    async def swap(self) -> None:
        """Move the schedule on, by what was read before; or run it beside its slots, pause or redefine it."""
        (seen,) = await self.world.memory.schedules()
        job = self.new_job()
        later = (seen.slot or self.now()) + timedelta(seconds=1)
        tick = replace(seen, slot=later, last_job_id=job.id, last_slot=seen.slot)
        then = self.rng.choice([*(tick,) * 4, seen, replace(seen, paused=not seen.paused)])
        swaps = [Swap(name="s", seen=seen, then=then, job=job if then.paused is seen.paused else None)]
        if self.rng.random() < 0.2:  # built on the one before
            swaps.append(Swap(name="s", seen=then, then=replace(then, definition=b"new"), job=self.new_job()))
        await self.store.swap_schedules(swaps, self.now())
