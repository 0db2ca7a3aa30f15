"""The time: by the engine's clock if it has one, so that hosts with wrong clocks agree (L8), else by the host's.

The engine is asked once a minute; in between, the time advances with the monotonic clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from taskharbor.driver import ServerClock

Clock = Callable[[], datetime]
REMEASURE_AFTER = 60.0
# An answer may be wrong by half of its round trip, so after a slow one the engine is asked again.
LONGEST_TRIP, TRIES = 1.0, 3
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

    def stale(self) -> bool:
        """Whether it is time to ask again."""
        last = self._last
        return last is None or last.age() > REMEASURE_AFTER

    async def measure(self) -> None:
        """Ask the engine; its answer counts as given in the middle of the round trip."""
        monotonic = asyncio.get_running_loop().time  # the same everywhere, but virtual on a virtual loop
        measured: list[tuple[float, datetime, float]] = []
        while not measured or (measured[-1][0] > LONGEST_TRIP and len(measured) < TRIES):
            before = monotonic()
            answered = await self._engine.server_now()
            trip = monotonic() - before
            measured.append((trip, answered, before + trip / 2))
        _, time, at = min(measured)
        self._last = Measured(time, at, monotonic)

    def __call__(self) -> datetime:
        last = self._last
        if last is None:
            raise RuntimeError("the engine's clock was not measured yet")
        return last.time + timedelta(seconds=last.age())
