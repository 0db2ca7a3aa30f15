"""Clocks move only when they are moved."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from taskharbor.testing import LoopClock, ManualClock, SkewedClock, run


def test_a_manual_clock_moves_by_seconds_and_timedeltas_in_both_directions() -> None:
    start = datetime(2026, 5, 1, tzinfo=UTC)
    clock = ManualClock(start)
    assert clock() == clock() == start
    assert clock.advance(1.5) == start + timedelta(seconds=1.5)
    clock.advance(timedelta(hours=-1))
    assert clock() == start + timedelta(seconds=1.5, hours=-1)


def test_a_loop_clock_follows_virtual_time_and_can_be_read_from_threads() -> None:
    async def main() -> list[datetime]:
        clock = LoopClock()
        first = clock()
        await asyncio.sleep(60)
        return [first, clock(), await asyncio.to_thread(clock)]

    first, second, third = run(main())
    assert first.tzinfo is UTC
    assert second == third == first + timedelta(minutes=1)


def test_a_skewed_clock_is_wrong_by_its_offset() -> None:
    true = ManualClock()
    skewed = SkewedClock(true, timedelta(hours=1))
    assert skewed() - true() == timedelta(hours=1)
    true.advance(5)
    skewed.offset = timedelta(seconds=-3)
    assert true() - skewed() == timedelta(seconds=3)
