"""The demo's plot: load the cargo, watch the workers, kill one under its job, see the job finish elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from taskharbor.cli.demo.cargo import Cargo
from taskharbor.cli.demo.crew import DemoWorkers, LogLine, Ship
from taskharbor.core.durations import count
from taskharbor.core.job import JobRecord
from taskharbor.core.states import State

FRAME = 0.1
DEADLINE = 60.0
KILL_FROM, KILL_BY = 0.25, 0.6


class StoryEvent(NamedTuple):
    """An event to show; minor ones only if there is room."""

    at: float
    text: str
    style: str = ""
    minor: bool = False


class DemoFailed(Exception):
    """The demo cannot go on."""


class Story:
    """The events so far. `frame` is called for every screen update, `tell` for every event."""

    def __init__(self, url: str, frame: Callable[[Story], None], tell: Callable[[StoryEvent], None]) -> None:
        self.crew = DemoWorkers(url)
        self.cargo = Cargo()
        self.victim: Ship | None = None
        self.killed_at: datetime | None = None
        self.first_tick: datetime | None = None
        self.adrift: list[str] = []
        self.taken_over = False
        self.exit_codes: dict[str, int | None] = {}
        self._at_work = asyncio.Event()
        self._began = time.monotonic()
        self._frame = frame
        self._tell = tell

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def tell(self, text: str, style: str = "", *, minor: bool = False) -> None:
        """Add an event."""
        self._tell(StoryEvent(self.elapsed, text, style, minor))

    async def run(self) -> None:
        """Run from the first process to the last."""
        self.tell("starting three worker processes on one SQLite file")
        self.crew.start()
        loading = asyncio.create_task(self.cargo.load(self._at_work))
        try:
            while self.elapsed < DEADLINE:
                if loading.done():
                    loading.result()
                await self._step()
                ended = self.cargo.all_stored and self.cargo.ended == self.cargo.expected
                if ended and await self.cargo.silence():
                    break
                await asyncio.sleep(FRAME)
        finally:
            loading.cancel()
        await self._go_home()

    async def _step(self) -> None:
        for line in self.crew.new_lines():
            self._react(line)
        records = await self.cargo.look()
        for ship in self.crew.ships:
            ship.running = sum(_held_by(ship, record) for record in records)
            if (code := ship.exit_code()) is not None and ship.state in ("starting", "working"):
                raise DemoFailed(f"worker {ship.name} ended by itself with exit code {code}")
        if all(ship.state == "working" for ship in self.crew.ships):
            self._at_work.set()
        for voyage in self.cargo.voyage.seen:
            self._follow(voyage, records)
        self._frame(self)

    def _react(self, line: LogLine) -> None:
        ship, error = line.ship, line.text.partition(": ")[2]
        match line.event:
            case "worker.started":
                ship.state = "working" if ship.state == "starting" else ship.state
                self.tell(f"{ship.name} is at work, pid {ship.pid}, on {ship.queues.replace(',', ' and ')}")
            case "worker.stopped":
                self.tell(f"{ship.name} stops gracefully after {ship.finished} jobs")
            case "worker.failed" | "lease.lost" | "store.unavailable":
                is_minor = line.event != "worker.failed"
                self.tell(f"{ship.name}: {line.event}: {line.text}", "yellow", minor=is_minor)
            case "recurring.declared":
                self.first_tick = tick = datetime.fromisoformat(line.text.rpartition("next ")[2])
                self.tell(f"{ship.name} stores the schedule of the bell: it rings every second from {tick:%H:%M:%S} on")
            case "job.succeeded":
                ship.finished += 1
                if line.job in self.cargo.voyage.ids:
                    self.tell(f"{ship.name} finishes the voyage", "bold green")
            case "job.retrying":
                self.tell(f"{line.task} fails on {ship.name}, will be tried again: {error}", "yellow", minor=True)
            case "job.dead":
                self.tell(f"{line.task} goes to the dead-letter queue: {error}", "red")
            case _:
                pass

    def _follow(self, voyage: JobRecord, records: list[JobRecord]) -> None:
        """The long voyage: kill its worker half-way, then watch another take over."""
        ship = self.crew.by_worker(voyage.lease.worker) if voyage.lease else None
        if self.victim is None:
            progress = voyage.progress.fraction if voyage.progress else 0.0
            if ship is not None and (progress >= KILL_BY or (progress >= KILL_FROM and ship.running > 1)):
                self._kill(ship, records)
        elif not self.taken_over and ship is not None and ship is not self.victim:
            self.taken_over = True
            self.tell(f"{ship.name} takes the voyage over: lease version {voyage.version}", "bold green")

    def _kill(self, ship: Ship, records: list[JobRecord]) -> None:
        self.victim = ship
        self.killed_at = datetime.now(UTC)
        self.adrift = [record.id for record in records if _held_by(ship, record)]
        ship.kill()
        others = len(self.adrift) - 1
        beside = f" and {count(others, 'other job')}" if others else ""
        self.tell(f"kill -9 {ship.pid}: {ship.name} dies in the middle of the voyage{beside}", "bold red")

    async def _go_home(self) -> None:
        """Send SIGTERM to the remaining workers and collect their exit codes."""
        afloat = [ship for ship in self.crew.ships if ship is not self.victim]
        for ship in afloat:
            ship.ask_to_stop()
        while any(ship.exit_code() is None for ship in afloat) and self.elapsed < DEADLINE:
            await self._step()
            await asyncio.sleep(FRAME / 2)
        self.exit_codes = {ship.name: ship.exit_code() for ship in afloat}
        await self._step()


def _held_by(ship: Ship, record: JobRecord) -> bool:
    return record.state is State.INFLIGHT and record.lease is not None and f":{ship.pid}:" in record.lease.worker
