"""How the sides of a comparison take their time, so that all of them do it alike."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

Sample = dict[str, float]
ROUND = 50
LONGEST = 4.0  # seconds after which a drain is cut short, so that a slow host does not make it endless


def payload(number: int) -> bytes:
    """The payload of a job of one whole number, as stored."""
    return b'{"v":1,"args":{"n":%d}}' % number


def rate(jobs: int, seconds: float) -> Sample:
    """A sample of a speed."""
    return {"rate": jobs / seconds, "jobs": jobs, "seconds": seconds}


def repeat(seconds: float, act: Callable[[int], object]) -> Sample:
    """Call with 0, 1, 2 … until the time is up."""
    done, begun = 0, time.perf_counter()
    while (passed := time.perf_counter() - begun) < seconds:
        for number in range(done, done + ROUND):
            act(number)
        done += ROUND
    return rate(done, passed)


async def arepeat(seconds: float, act: Callable[[int], Awaitable[object]]) -> Sample:
    """Like `repeat`, for a coroutine function."""
    done, begun = 0, time.perf_counter()
    while (passed := time.perf_counter() - begun) < seconds:
        for number in range(done, done + ROUND):
            await act(number)
        done += ROUND
    return rate(done, passed)


def middle(values: list[float], share: float = 0.5) -> float:
    """A quantile, by default the median."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
