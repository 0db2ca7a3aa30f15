"""The demo's jobs, by kind, with their options."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from taskharbor import Job, Run, chord, group
from taskharbor.admin.recurring import RecurringTask
from taskharbor.cli.demo import tasks
from taskharbor.core.job import JobRecord
from taskharbor.core.states import TERMINAL, State

WAVES, WAVE_EVERY = 12, 0.25
QUICK_PER_WAVE, SLOW_PER_WAVE = 20, 2
FLAKY, SCHEDULED = 24, 12
STANDARD, URGENT = 24, 8
DELAY = 5.0
LEGS = 12
CRATES = 30


class Kind:
    """Jobs of one kind, as enqueued and as last seen in the store."""

    def __init__(self, title: str, expected: int) -> None:
        self.title = title
        self.expected = expected
        self.ids: list[str] = []
        self.seen: list[JobRecord] = []

    @property
    def ended(self) -> int:
        """The number of jobs that are done or dead."""
        return sum(job.state in TERMINAL for job in self.seen)

    @property
    def running(self) -> int:
        """The number of jobs held by a worker."""
        return sum(job.state is State.INFLIGHT for job in self.seen)

    @property
    def failures(self) -> int:
        """The number of recorded failures."""
        return sum(len(job.failures) for job in self.seen)

    def add(self, jobs: Sequence[Job[object]]) -> None:
        """Record stored jobs."""
        self.ids += [job.id for job in jobs]


class Cargo:
    """All jobs of the demo."""

    def __init__(self) -> None:
        self.quick = Kind("quick", WAVES * QUICK_PER_WAVE)
        self.slow = Kind("slow, in threads", WAVES * SLOW_PER_WAVE)
        self.flaky = Kind("flaky, retried", FLAKY)
        self.poison = Kind("poison", 1)
        self.scheduled = Kind("scheduled", SCHEDULED)
        self.express = Kind("prioritised", STANDARD + URGENT)
        self.keyed = Kind("one key, twice", 1)
        self.voyage = Kind("long voyage", 1)
        self.chord = Kind("a chord", CRATES + 1)
        self.bell = Kind("every second", 0)  # one per ring
        self.kinds = [value for value in vars(self).values() if isinstance(value, Kind)]
        self.urgent: set[str] = set()
        self.failures_asked: dict[str, int] = {}
        self.pair: list[Job[str]] = []
        self.run: Run[int] | None = None
        self.rung: RecurringTask | None = None
        self.all_stored = False

    async def load(self, at_work: asyncio.Event) -> None:
        """Enqueue some jobs at once, the long voyage and waves of others once the workers run."""
        many = tasks.harbor.aenqueue_many
        self.scheduled.add(
            await many(tasks.remind.using(delay=DELAY).step(f"guest {number}") for number in range(SCHEDULED))
        )
        await self._load_express()
        await self._load_flaky()
        self.poison.add([await tasks.parse.aenqueue("this is not JSON")])
        once = tasks.charge.using(idempotency_key="invoice:2030-0001")
        self.pair = [await once.aenqueue("2030-0001", 4200), await once.aenqueue("2030-0001", 4200)]
        self.keyed.add([job for job in self.pair if job.created])
        await at_work.wait()
        self.voyage.add([await tasks.sail.aenqueue("Ithaca", LEGS)])
        await self._load_chord()
        for wave in range(WAVES):
            self.quick.add(await many(tasks.greet.step(f"guest {wave}-{n}") for n in range(QUICK_PER_WAVE)))
            self.slow.add(await many(tasks.render.step(page) for page in range(SLOW_PER_WAVE)))
            await asyncio.sleep(WAVE_EVERY)
        self.all_stored = True

    async def _load_express(self) -> None:
        """Enqueue in one commit, the urgent ones last: they must overtake."""
        standard = [tasks.deliver.step(f"standard {number}") for number in range(STANDARD)]
        urgent = [tasks.deliver.using(priority=10).step(f"urgent {number}") for number in range(URGENT)]
        jobs = await tasks.harbor.aenqueue_many([*standard, *urgent])
        self.express.add(jobs)
        self.urgent = {job.id for job in jobs[STANDARD:]}

    async def _load_flaky(self) -> None:
        failures = [1 + number % 3 for number in range(FLAKY)]
        steps = [tasks.fetch.step(f"https://port-{number}.example", count) for number, count in enumerate(failures)]
        jobs = await tasks.harbor.aenqueue_many(steps)
        self.flaky.add(jobs)
        self.failures_asked = dict(zip((job.id for job in jobs), failures, strict=True))

    async def _load_chord(self) -> None:
        self.run = await chord(group(tasks.weigh.step(crate) for crate in range(CRATES)), tasks.total).aenqueue()
        self.chord.ids += [node.id for node in await tasks.harbor.admin.workflows.agraph(self.run.id)]

    async def silence(self) -> bool:
        """Whether the bell has stopped. It is paused once all other jobs have ended."""
        if self.rung is not None:
            return True
        self.rung = await tasks.harbor.admin.recurring.apause(tasks.bell.name)
        return False

    async def look(self) -> list[JobRecord]:
        """Read every job from the store again."""
        records = await tasks.harbor.admin.jobs.alist(limit=2 * self.expected)
        by_id = {record.id: record for record in records}
        self.bell.ids = sorted(record.id for record in records if record.headers.get("schedule") == tasks.bell.name)
        self.bell.expected = len(self.bell.ids)
        for kind in self.kinds:
            kind.seen = [by_id[id] for id in kind.ids if id in by_id]
        return records

    @property
    def expected(self) -> int:
        """The number of jobs expected in total."""
        return sum(kind.expected for kind in self.kinds)

    @property
    def ended(self) -> int:
        """The number of jobs that are done or dead."""
        return sum(kind.ended for kind in self.kinds)
