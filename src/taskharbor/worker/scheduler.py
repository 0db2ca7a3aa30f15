"""The scheduler: enqueues the jobs of recurring tasks. Every worker has one, and there is no leader (N3).

It asks the core which ticks are due, and swaps each schedule together with the job of its tick. Of several schedulers,
one succeeds. A worker ticks only for tasks that it has registered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from taskharbor.client.client import Client
from taskharbor.client.declaration import Declared, definition_of
from taskharbor.client.job_builder import Call, JobBuilder
from taskharbor.core.backoff import STORE_BACKOFF
from taskharbor.core.decide import later
from taskharbor.core.job import JobRecord, NewJob
from taskharbor.core.recurrence import Definition, Recurrence, decode
from taskharbor.core.schedule import Schedule
from taskharbor.core.text import described, stamp
from taskharbor.core.ticking import declared, is_live, needs_last, ran, ticks
from taskharbor.core.transition import Transition
from taskharbor.driver import Inspect, Schedules, Swap, capability, offered
from taskharbor.errors import ConfigError, DriverUnavailable, InvalidJob
from taskharbor.worker.application import AppRegistry
from taskharbor.worker.idle import set_within
from taskharbor.worker.running import JobRun

logger = logging.getLogger("taskharbor.scheduler")
# Changes by other processes are seen at the next look; the end of a run that a schedule waits for, within a second.
LOOK, LOOK_FOR_ENDS = 5.0, 0.7
# All workers wake up for a slot; those that come a little later see that it is taken and do not try.
SPREAD = 0.05
BITE = 100
_UNDECLARED = (
    "recurring.undeclared: %s goes on, but this code does not declare it. If no other code does, "
    "`taskharbor recurring rm %s` ends it"
)


class Scheduler:
    """Stores what the code declares, then ticks until it is cancelled."""

    def __init__(self, client: Client, app: AppRegistry) -> None:
        self._client = client
        self._session = client.session
        self._tasks = app.tasks
        self._wanted = {each.name: self._definition(each) for each in app.recurring.values()}
        self._left = set(self._wanted)
        self._unreadable: set[str] = set()
        self._busy: dict[str, str] = {}  # the runs that skipped ticks were logged for
        self._is_declared = False
        self._decided = asyncio.Event()
        self._refusal: Exception | None = None
        self._hurry = asyncio.Event()
        self._awaited: set[str | None] = set()

    async def run(self) -> None:
        """Store what the code declares, then look whenever something may be due."""
        failures = 0
        while True:
            try:
                async with asyncio.timeout(self._session.settings.store_timeout):
                    if not self._is_declared:
                        await self.declare()
                        self._is_declared = True
                        self._decided.set()
                    wait = await self.look()
                failures = 0
            except Exception as error:
                failures += 1
                if failures == 1:
                    logger.warning("scheduler.failed: trying again: %s", described(error))
                if not isinstance(error, DriverUnavailable | OSError | TimeoutError):
                    self._refusal = error
                    self._decided.set()
                wait = STORE_BACKOFF.delay(failures, self._session.rng)
            await set_within(self._hurry, wait + self._session.rng.random() * SPREAD)
            self._hurry.clear()

    async def ready(self) -> None:
        """Return when the declarations are stored. Errors that waiting cannot fix (missing rights) are raised."""
        await self._decided.wait()
        if not self._is_declared and self._refusal is not None:
            raise self._refusal

    # declarations of the code

    async def declare(self) -> None:
        """Store each declaration that is new or has changed (N5). Of several workers that do, one succeeds.

        A stored declaration is not looked at again: a later change wins.
        """
        store = offered(await self._session.driver(), Schedules)
        if store is None:
            return
        stored = await store.schedules()
        self._warn_of_undeclared(stored)
        while swaps := (await self._redefinitions(stored))[:BITE]:
            for swap, answer in zip(swaps, await store.swap_schedules(swaps, self._session.now()), strict=True):
                if answer is True:
                    self._left.discard(swap.name)
                    verb, slot = "declared" if swap.seen is None else "redefined", swap.then and swap.then.slot
                    then = stamp(slot) if slot else "after its last run"
                    logger.info("recurring.%s: %s, next %s", verb, swap.name, then)
            stored = await store.schedules()

    async def _redefinitions(self, stored: list[Schedule]) -> list[Swap]:
        known = {schedule.name: schedule for schedule in stored if schedule.name in self._left}
        now = self._session.now()
        lasts = await self._runs(schedule.last_job_id for schedule in known.values())
        swaps: list[Swap] = []
        for name in sorted(self._left):
            seen = known.get(name)
            last = None if seen is None else lasts.get(seen.last_job_id)
            then = declared(seen, name, self._wanted[name], last, now)
            if then != seen:
                swaps.append(Swap(name=name, seen=seen, then=then))
        self._left = {swap.name for swap in swaps}
        return swaps

    def _definition(self, each: Declared) -> Definition:
        try:
            payload = each.task.signature.encode((), each.arguments, self._session.payload_limit)
        except InvalidJob as error:
            raise ConfigError(
                f"the recurring task {each.name!r} cannot be called with its arguments=: {error}"
            ) from error
        call = Call(self._client, each.task, payload, each.options)
        return definition_of(call, each.when, self._session, in_code=True)

    def _warn_of_undeclared(self, stored: list[Schedule]) -> None:
        for name, it in ((each.name, decode(each.definition)) for each in stored if each.name not in self._wanted):
            if isinstance(it, Definition) and it.in_code and it.task in self._tasks:
                logger.warning(_UNDECLARED, name, name)

    # ticks that are due

    async def look(self) -> float:
        """Enqueue the ticks that are due; return the seconds until the next look."""
        store = offered(await self._session.driver(), Schedules)
        if store is None:
            return LOOK
        mine = self._mine(await store.schedules())
        now = self._session.now()
        lasts = await self._runs(seen.last_job_id for seen, it in mine if needs_last(seen, it.when, now))
        swaps: list[Swap] = []
        wait, self._awaited = LOOK, set()
        for seen, definition in mine:
            steps = self._steps(seen, definition, lasts.get(seen.last_job_id), now)
            then = steps[-1].then if steps else seen
            assert then is not None
            wait = min(wait, self._until(then, definition.when, now, waits=not steps))
            swaps += steps
            while len(swaps) >= BITE:
                await store.swap_schedules(swaps[:BITE], now)
                del swaps[:BITE]
            if steps:
                await asyncio.sleep(0)  # computing ticks takes time, and there may be many
        if swaps:
            await store.swap_schedules(swaps, now)
        return wait

    def _until(self, schedule: Schedule, when: Recurrence, now: datetime, *, waits: bool) -> float:
        """Seconds until the next look. A schedule that is due but may not tick waits for the end of its last run."""
        if (schedule.slot is None and when.mode == "fixed_delay") or (schedule.slot and schedule.slot <= now and waits):
            self._awaited.add(schedule.last_job_id)
            return LOOK_FOR_ENDS
        return LOOK if schedule.slot is None else max((schedule.slot - now).total_seconds(), 0.0)

    def settled(self, batch: Sequence[tuple[JobRun, Transition]], now: datetime) -> None:
        """Look at once if a schedule waits for the end of one of these jobs: its delay counts from now."""
        if self._awaited and not self._awaited.isdisjoint(run.job.id for run, _ in batch):
            self._hurry.set()

    def _mine(self, schedules: list[Schedule]) -> list[tuple[Schedule, Definition]]:
        found: list[tuple[Schedule, Definition]] = []
        for schedule in schedules:
            definition = decode(schedule.definition)
            if isinstance(definition, ConfigError):
                if schedule.name not in self._unreadable:
                    self._unreadable.add(schedule.name)
                    logger.warning("recurring.unreadable: this worker leaves %s alone: %s", schedule.name, definition)
            elif definition.task in self._tasks and not schedule.paused:
                found.append((schedule, definition))
        return found

    async def _runs(self, ids: Iterable[str | None]) -> dict[str | None, JobRecord]:
        asked = [id for id in ids if id is not None]
        if not asked:
            return {}
        found = await capability(await self._session.driver(), Inspect).get(asked)
        return {job.id: job for job in found if job is not None}

    def _steps(self, seen: Schedule, definition: Definition, last: JobRecord | None, now: datetime) -> list[Swap]:
        swaps: list[Swap] = []
        for tick in ticks(seen, definition.when, last, now):
            job = None if tick.run is None else self._job(seen.name, definition, tick.run, now)
            if job is None and last is not None and is_live(last) and self._busy.get(seen.name) != last.id:
                self._busy[seen.name] = last.id
                waiting = "recurring.skipped: %s waits for the end of its last run, job %s (%s)"
                logger.info(waiting, seen.name, last.id, last.state)
            then = ran(seen, tick, None if job is None else job.id)
            swaps.append(Swap(name=seen.name, seen=seen, then=then, job=job))
            seen = then
        return swaps

    def _job(self, name: str, definition: Definition, slot: datetime, now: datetime) -> NewJob:
        run_at = later(slot, timedelta(seconds=self._session.rng.random() * definition.when.jitter))
        return JobBuilder(self._session, now).tick(name, definition, slot, run_at)
