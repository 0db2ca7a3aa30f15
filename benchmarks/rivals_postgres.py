"""The rivals' side of each comparison on PostgreSQL, the same way for all of them; `contenders.py` has their settings.

`python -m benchmarks.rivals_postgres NAME URL` is a worker as a process of its own, for latency and idle CPU.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from itertools import count
from typing import Any

from benchmarks.app import arrived, ready
from benchmarks.clock import LONGEST, Sample, arepeat, rate
from benchmarks.contenders import CONTENDERS, Act, Contender

ENDS_WITHIN = 5.0


def _nothing(number: float) -> None:
    pass


def contender(rival: str, url: str, act: Act = _nothing) -> Contender:
    """A rival by the name of its package."""
    logging.disable(logging.WARNING)
    return CONTENDERS[rival](url, act)


def run(it: Contender, main: Coroutine[Any, Any, Any]) -> Any:
    """On the event loop that its own command would use."""
    if it.uvloop:
        with suppress(ImportError):
            import uvloop

            return uvloop.run(main)
    return asyncio.run(main)


def enqueue_single(url: str, rival: str, seconds: float) -> Sample:
    """One job after another."""
    it = contender(rival, url)

    async def main() -> Sample:
        await it.open()
        return await arepeat(seconds, it.enqueue)

    sample: Sample = run(it, main())
    return sample


def enqueue_bulk(url: str, rival: str, jobs: int, times: int = 3) -> Sample:
    """Many jobs in one call, a few times."""
    it = contender(rival, url)

    async def main() -> Sample:
        await it.open()
        seconds = 0.0
        for _ in range(times):
            prepared = it.prepared([float(number) for number in range(jobs)])
            begun = time.perf_counter()
            await it.enqueue_many(prepared)
            seconds += time.perf_counter() - begun
        return rate(jobs * times, seconds)

    sample: Sample = run(it, main())
    return sample


def drain(url: str, rival: str, jobs: int) -> Sample:
    """Its worker over jobs that are in line, from its start until the last handler has run or the time is up."""
    numbers = count(1)
    ended = asyncio.Event()
    loop: asyncio.AbstractEventLoop

    def act(number: float) -> None:
        if next(numbers) == jobs:
            loop.call_soon_threadsafe(ended.set)

    it = contender(rival, url, act)

    async def main() -> Sample:
        nonlocal loop
        loop = asyncio.get_running_loop()
        await it.open()
        await it.enqueue_many(it.prepared([float(number) for number in range(jobs)]))
        begun = time.perf_counter()
        working = asyncio.create_task(it.work())
        waiting = asyncio.create_task(ended.wait())
        await asyncio.wait({working, waiting}, timeout=LONGEST, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        done = next(numbers) - 1
        await it.flush()
        sample = rate(done, time.perf_counter() - begun)
        if not done:
            raise RuntimeError(f"the worker has run nothing within {LONGEST:g} s")
        working.cancel()
        await asyncio.wait({working, waiting}, timeout=ENDS_WITHIN, return_when=asyncio.FIRST_COMPLETED)
        return sample

    sample: Sample = run(it, main())
    return sample


def main(rival: str, url: str) -> None:
    """Work until asked to stop."""
    it = contender(rival, url, arrived)

    async def work() -> None:
        await it.open(new=False)
        ready()
        await it.work()

    run(it, work())


if __name__ == "__main__":
    main(*sys.argv[1:])
