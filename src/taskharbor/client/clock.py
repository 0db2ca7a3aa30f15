"""The time: by the engine's clock if it has one, so that hosts with wrong clocks agree (L8), else by the host's.

The engine is asked once a minute; in between, the time advances with the monotonic clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from taskharbor.driver import ServerClock

Clock = Callable[[], datetime]
REMEASURE_AFTER = 60.0
# An answer may be wrong by half of its round trip, and the first may have had to connect: of two, the quicker one
# counts, and after slow ones the engine is asked again.
LONGEST_TRIP, FEWEST, MOST = 1.0, 2, 3
host_clock: Clock = partial(datetime.now, UTC)


class Measured(NamedTuple):
    """A time of the engine's clock, and when that was on this host's monotonic clock."""

    time: datetime
    at: float
    monotonic: Callable[[], float]

    def age(self) -> float:
        return self.monotonic() - self.at


class EngineClock:
    """The time of an engine, as measured last. Threads read it while another measures: it changes in one step."""

    def __init__(self, engine: ServerClock) -> None:
        self._engine = engine
        self._last: Measured | None = None
        self._asking = False

    def stale(self) -> bool:
        """Whether it is time to ask again. A call that asks already may never end, as on a loop that is blocked."""
        last = self._last
        return last is None or last.age() > REMEASURE_AFTER * (1 + self._asking)

    async def measure(self) -> None:
        """Ask the engine; its answer counts as given in the middle of the round trip."""
        self._asking = True
        try:
            self._last = await self._measured(_monotonic(asyncio.get_running_loop()))
        finally:
            self._asking = False

    async def _measured(self, monotonic: Callable[[], float]) -> Measured:
        measured: list[tuple[float, datetime, float]] = []
        while len(measured) < FEWEST or (min(measured)[0] > LONGEST_TRIP and len(measured) < MOST):
            before = monotonic()
            answered = await self._engine.server_now()
            trip = monotonic() - before
            measured.append((trip, answered, before + trip / 2))
        _, answer, at = min(measured)
        return Measured(answer, at, monotonic)

    def __call__(self) -> datetime:
        last = self._last
        if last is None:
            raise RuntimeError("the engine's clock was not measured yet")
        return last.time + timedelta(seconds=last.age())


def _monotonic(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The loop's clock, which is virtual on a virtual loop.

    Not that of uvloop: it stands still while callbacks run, and counts whole milliseconds. A worker that is so far
    behind a client does not see its job at first.
    """
    return loop.time if isinstance(loop, asyncio.BaseEventLoop) else time.monotonic
