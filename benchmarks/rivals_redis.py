"""The rivals' side of each comparison on Redis, the same way for all of them; `contenders_redis.py` has their settings.

`python -m benchmarks.rivals_redis NAME URL` is a worker as a process of its own, for latency and idle CPU.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import NoReturn

from benchmarks.app import arrived, ready
from benchmarks.clock import LONGEST, Sample, arepeat, rate
from benchmarks.contenders import Act, Contender
from benchmarks.contenders_redis import CONTENDERS, Blocking
from benchmarks.raw_redis import used
from benchmarks.rivals_postgres import run


def _nothing(number: float) -> None:
    pass


def contender(rival: str, url: str, act: Act = _nothing) -> Contender:
    """A rival by the name of its package."""
    logging.disable(logging.WARNING)
    return CONTENDERS[rival](url, act)


def enqueue_single(url: str, rival: str, seconds: float) -> Sample:
    """One job after another."""
    it = contender(rival, url)

    async def main() -> Sample:
        await it.open()
        sample = await arepeat(seconds, it.enqueue)
        await it.close()
        return sample

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
        await it.close()
        return rate(jobs * times, seconds)

    sample: Sample = run(it, main())
    return sample


def memory(url: str, rival: str, jobs: int) -> Sample:
    """The growth of the server's memory for each job that waits."""
    before = used(url)
    enqueue_bulk(url, rival, jobs, 1)
    return {"bytes": (used(url) - before) / jobs, "jobs": jobs}


def drain(url: str, rival: str, jobs: int) -> NoReturn:
    """Its worker over jobs that are in line, from its start until the last handler has run or the time is up.

    Not all of them can be stopped from within: the process reports the sample and ends.
    """
    enqueue_bulk(url, rival, jobs, 1)
    numbers, ended = count(1), threading.Event()
    begun = 0.0

    def act(number: float) -> None:
        if next(numbers) == jobs:
            ended.set()

    def watch() -> None:
        ended.wait(LONGEST)
        seconds, done = time.perf_counter() - begun, next(numbers) - 1
        if done:
            sys.stdout.write(json.dumps(rate(done, seconds)))
        else:
            sys.stderr.write(f"the worker has run nothing within {LONGEST:g} s")
        sys.stdout.flush()
        os._exit(0 if done else 1)

    def begin() -> None:
        nonlocal begun
        begun = time.perf_counter()
        threading.Thread(target=watch, daemon=True).start()

    work(contender(rival, url, act), begin)
    raise RuntimeError("the worker ended")


def work(it: Contender, begin: Callable[[], None]) -> None:
    """Its worker in this process; `begin` is called when it is connected and about to start."""
    if isinstance(it, Blocking):
        it.connect()
        begin()
        it.work_here()
        return

    async def main() -> None:
        await it.open(new=False)
        begin()
        await it.work()

    run(it, main())


if __name__ == "__main__":
    work(contender(sys.argv[1], sys.argv[2], arrived), ready)
