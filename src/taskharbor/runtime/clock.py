"""What time it is: the host's clock, or the engine's where it has one (L8).

An engine's clock is asked now and then and carried on the monotonic clock in between, so that hosts whose clocks are
off by an hour still agree on leases and delays.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

from taskharbor.driver import ServerClock

Clock = Callable[[], datetime]
REMEASURE_AFTER = 60.0
# The answer is off by up to half of its trip, so a slow one is asked for again: leases are compared by it.
LONGEST_TRIP, TRIES = 1.0, 3


host_clock: Clock = partial(datetime.now, UTC)
"""The host's time."""


class EngineClock:
    """The time of an engine, as measured last."""

    def __init__(self, engine: ServerClock) -> None:
        self._engine = engine
        self._at: datetime | None = None
        self._measured = 0.0
        self._monotonic: Callable[[], float] = time.monotonic

    def stale(self) -> bool:
        """Whether it is time to ask again."""
        return self._at is None or self._monotonic() - self._measured > REMEASURE_AFTER

    async def measure(self) -> None:
        """Ask the engine; its answer is taken to stem from the middle of the round trip."""
        monotonic = asyncio.get_running_loop().time  # the same everywhere, but virtual on a virtual loop
        measured: list[tuple[float, datetime, float]] = []
        while not measured or (measured[-1][0] > LONGEST_TRIP and len(measured) < TRIES):
            before = monotonic()
            answered = await self._engine.server_now()
            trip = monotonic() - before
            measured.append((trip, answered, before + trip / 2))
        _, self._at, self._measured = min(measured)
        self._monotonic = monotonic

    def __call__(self) -> datetime:
        """The engine's time by now."""
        if self._at is None:
            raise RuntimeError("the engine's clock was not measured yet")
        return self._at + timedelta(seconds=self._monotonic() - self._measured)
