"""Clocks for tests. A clock is any callable that returns an aware UTC datetime."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from taskharbor.client.clock import Clock

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: datetime = EPOCH) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, by: timedelta | float) -> datetime:
        """Move by a timedelta or seconds, also backwards; return the new time."""
        self.now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self.now


class LoopClock:
    """The time of an event loop as a date: with `VirtualLoop`, the wall clock of the virtual world.

    Without a loop given, the clock belongs to the loop that it is first read on; afterwards any thread may read it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, epoch: datetime = EPOCH) -> None:
        self._loop = loop
        self._epoch = epoch

    def __call__(self) -> datetime:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._epoch + timedelta(seconds=self._loop.time())


class SkewedClock:
    """Another clock, off by `offset`, which may be changed at any time."""

    def __init__(self, clock: Clock, offset: timedelta | float) -> None:
        self._clock = clock
        self.offset = offset if isinstance(offset, timedelta) else timedelta(seconds=offset)

    def __call__(self) -> datetime:
        return self._clock() + self.offset
