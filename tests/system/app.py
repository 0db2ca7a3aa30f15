"""The application of the system tests: handlers of many kinds, and a harbor whose driver is watched by a recorder."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from taskharbor import Harbor, LeaseLost, Retry, Snooze, current
from taskharbor.driver import Driver
from taskharbor.drivers import from_url
from taskharbor.testing.faults import VerbCall, Wrapper
from taskharbor.testing.history import Event, Final, HistoryFile
from taskharbor.testing.recorder import Recorder
from taskharbor.worker.context import JobContext

VARIABLE = "SYSTEM_TEST"
TICK = 0.02


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a process, from its environment. `strike` stops it at a verb, such as ("settle", "before");
    `recurring` is when its code lets `tick` run; those that are `supervised` share settings, but not a name."""

    url: str
    folder: str
    who: str
    max_crashes: int | None = 5
    generation: int = 1
    strike: tuple[str, Literal["before", "after"]] | None = None
    recurring: dict[str, Any] | None = None
    supervised: bool = False

    @classmethod
    def given(cls) -> Settings:
        """Those of this process."""
        settings = msgspec.json.decode(os.environ[VARIABLE], type=cls)
        return replace(settings, who=f"{settings.who}.{os.getpid()}") if settings.supervised else settings


class Diary:
    """A history file of each process's own: a forked child goes on in another one, under another name."""

    def __init__(self, folder: Path, who: str) -> None:
        self._folder = folder
        self._who = self._owner = who
        self._pid = os.getpid()
        self._file = HistoryFile(folder / f"{who}.history")

    def append(self, event: Event, /) -> None:
        """Write it down."""
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self._owner = f"{self._who}-child-{self._pid}"
            self._file = HistoryFile(self._folder / f"{self._owner}.history")
        if self._owner != self._who and not isinstance(event, Final):
            event = replace(event, who=self._owner)
        self._file.append(event)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Freeze(Wrapper):
    """Stops the whole process once, by SIGSTOP: right before a verb reaches the store, or right after its commit."""

    def __init__(self, inner: Driver, verb: str, side: Literal["before", "after"]) -> None:
        super().__init__(inner)
        self._verb: str | None = verb
        self._side = side

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        if verb == self._verb and self._side == "before":
            self._stop()
        result = await call()
        if verb == self._verb and result:  # a reserve that finds nothing does not count
            self._stop()
        return result

    def _stop(self) -> None:
        self._verb = None
        os.kill(os.getpid(), signal.SIGSTOP)


class Watched(Harbor):
    """A harbor with all tasks of the generation, whose driver and handlers are recorded; opened at the first use."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.url, max_crashes=settings.max_crashes, retry=Retry(base=0.05, cap=0.2))
        self._given = settings
        self._session._connect = self._recorded
        self._diary = Diary(Path(settings.folder), settings.who)
        self._witness: Recorder | None = None
        self.middleware(self._noted)
        handlers = Handlers(Path(settings.folder), self)
        self.by_name: dict[str, Any] = {
            handler.__name__: self.task(name=handler.__name__)(handler) for handler in handlers.of(settings.generation)
        }
        if settings.recurring is not None:
            self.recurring(name="tick", **settings.recurring)(handlers.tick)

    async def _recorded(self) -> Driver:
        driver = await from_url(self._given.url)
        if self._given.strike is not None:
            driver = Freeze(driver, *self._given.strike)
        self._witness = Recorder(driver, self._given.who, self._diary)
        return self._witness

    async def _noted(self, job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        assert self._witness is not None
        return await self._witness.handler(job, call_next)

    async def reach(self) -> None:
        """Open the store now."""
        await self._session.driver()


async def opened(settings: Settings) -> Watched:
    """A harbor whose store is open."""
    harbor = Watched(settings)
    await harbor.reach()
    return harbor


class Handlers:
    """The handlers of jobs. Some wait for a gate: a file that the test makes when it has seen enough."""

    def __init__(self, folder: Path, harbor: Harbor) -> None:
        self._folder = folder
        self._harbor = harbor
        self._kept: list[bytes] = []

    def of(self, generation: int) -> list[Callable[..., Any]]:
        """The handlers that the code of this generation has."""
        old: list[Callable[..., Any]] = [
            self.quick,
            self.quick_sync,
            self.nap,
            self.flaky,
            self.snoozer,
            self.mother,
            self.hold,
            self.hold_sync,
            self.stubborn,
            self.stubborn_sync,
            self.block,
            self.leave,
            self.grip,
            self.orphan,
            self.crash,
            self.bulky,
            self.swell,
            self.amble,
            self.total,
        ]
        return old if generation == 1 else [*old, self.novel]

    async def quick(self, number: int) -> int:
        """Done at once."""
        return number

    def quick_sync(self, number: int) -> int:
        """Done at once, in a thread."""
        return number

    async def nap(self, seconds: float) -> None:
        """A slow task."""
        await asyncio.sleep(seconds)

    async def amble(self, number: int) -> int:
        """A slow task that returns its number."""
        await asyncio.sleep(0.1)
        return number

    async def total(self, parts: list[int]) -> int:
        """The sum of what others gave."""
        await asyncio.sleep(0.1)
        return sum(parts)

    async def flaky(self, failures: int) -> str:
        """Fails so many times first."""
        if current().attempt <= failures:
            raise ValueError("not yet")
        return "at last"

    async def snoozer(self) -> str:
        """Puts itself back the first time."""
        if current().lease_version == 1:
            raise Snooze(0.05)
        return "rested"

    async def mother(self, children: int) -> None:
        """Enqueues others in the same step as its own end."""
        for number in range(children):
            current().enqueue(self._harbor.step("quick", {"number": number}))

    async def hold(self, gate: str) -> None:
        """Waits for the gate, and notes a cancellation."""
        try:
            await self._opening(gate)
        except asyncio.CancelledError:
            self._note("cancelled")
            raise
        self._note("through")

    def hold_sync(self, gate: str) -> None:
        """Waits for the gate in a thread, and asks whether it should go on."""
        try:
            while not self._is_open(gate):
                current().check()
                time.sleep(TICK)
        except LeaseLost:
            self._note("LeaseLost")
            raise
        self._note("through")

    async def stubborn(self, gate: str) -> None:
        """Waits for the gate, and does not let itself be cancelled."""
        while not self._is_open(gate):
            try:
                await asyncio.sleep(TICK)
            except asyncio.CancelledError:
                self._note("swallowed")
        self._note("through")

    def stubborn_sync(self, gate: str) -> None:
        """Waits for the gate in a thread, without ever asking."""
        while not self._is_open(gate):
            time.sleep(TICK)
        self._note("through")

    async def block(self, seconds: float) -> None:
        """Blocks the event loop."""
        time.sleep(seconds)  # noqa: ASYNC251

    async def leave(self, gate: str) -> None:
        """Waits for the gate, then ends the process without a word."""
        await self._opening(gate)
        os._exit(1)

    def grip(self, seconds: int) -> None:
        """Holds the GIL, so that no other thread of the process runs."""
        ctypes.PyDLL(None).sleep(seconds)

    def orphan(self, gate: str) -> None:
        """Leaves a process behind that waits for the gate."""
        wait = f"while [ ! -e '{self._folder / gate}' ]; do sleep 0.05; done"
        subprocess.run(["sh", "-c", f"({wait}) >/dev/null 2>&1 &"], check=True, timeout=60)

    def crash(self) -> None:
        """A segmentation fault."""
        ctypes.string_at(0)

    def bulky(self, cargo: str) -> int:
        """Has a large payload."""
        return len(cargo)

    def swell(self, mib: int) -> None:
        """Makes its worker larger, for good."""
        self._kept.append(b"x" * (mib << 20))

    async def tick(self) -> None:
        """A recurring task, if the process gets times."""

    async def novel(self, number: int) -> int:
        """A task that only the code of the next generation knows."""
        return -number

    async def _opening(self, gate: str) -> None:
        while not self._is_open(gate):  # noqa: ASYNC110
            await asyncio.sleep(TICK)

    def _is_open(self, gate: str) -> bool:
        return (self._folder / gate).exists()

    def _note(self, word: str) -> None:
        line = json.dumps([current().id, current().lease_version, word]) + "\n"
        file = os.open(self._folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
