"""When runs start: shared by short jobs of a batch, never before the claim, exact to a millisecond (T2, R1)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from taskharbor.worker.start_clock import EXACT_TO, StartClock

START = datetime(2026, 3, 1, tzinfo=UTC)


def ticking(step: float) -> tuple[Callable[[], datetime], Callable[[], float]]:
    """A clock and a monotonic time that move on by `step` seconds with each reading of the latter."""
    readings = -1

    def time() -> float:
        nonlocal readings
        readings += 1
        return readings * step

    return lambda: START + timedelta(seconds=readings * step), time


def test_starts_within_a_millisecond_share_one_reading() -> None:
    clock = StartClock(*ticking(EXACT_TO / 4))
    starts = [clock() for _ in range(8)]
    assert len(set(map(id, starts))) == 2
    assert starts[:4] == [START] * 4
    assert starts[4:] == [START + timedelta(seconds=EXACT_TO)] * 4


def test_a_start_is_never_late_nor_more_than_a_millisecond_early() -> None:
    now, time = ticking(EXACT_TO / 4)
    clock = StartClock(now, time)
    for _ in range(50):
        start = clock()
        assert timedelta(0) <= now() - start <= timedelta(seconds=EXACT_TO)


def test_no_job_starts_before_its_claim() -> None:
    """R1: jobs that were claimed after the last reading get a new one."""
    now, time = ticking(EXACT_TO / 10)
    clock = StartClock(now, time)
    clock()
    claimed_at = now()
    clock.forget()
    assert clock() >= claimed_at
