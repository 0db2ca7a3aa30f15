"""Others on the same engine, each by its documented interface and with its worker where it has one.

huey runs its consumer, with one thread and a short delay; `fsync` picks its durability (its consumer acknowledges
before it runs the job). litequeue has no worker: pop and done in a loop. honker has a bare batch loop and an iterator
that claims one by one; it cannot be set to FULL.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import platform
import sys
import threading
import time
from collections.abc import Callable
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.clock import LONGEST, Sample, rate, repeat
from benchmarks.model import NATS, POSTGRES, REDIS, SQLITE

PACKAGES = {
    SQLITE: ("huey", "litequeue", "honker"),
    POSTGRES: ("pgqueuer", "procrastinate", "saq", "dbos", "chancy", "awa"),
    REDIS: ("celery", "rq", "dramatiq", "huey", "arq", "saq", "taskiq_redis", "streaq"),
    NATS: (),
}
# A folder of the environment for those that do not allow the redis-py of the others: it goes before the rest for them.
OLDER = Path(sys.prefix, "older")
DISTRIBUTIONS = {"awa": "awa-pg"}
HONKER_GLIBC = [2, 38]
BATCH = 100


def missing(engine: str) -> dict[str, str]:
    """The rivals on an engine that cannot be used here, and why."""
    found: dict[str, str] = {}
    for name in PACKAGES[engine]:
        if (OLDER / name).is_dir():
            continue
        try:
            importlib.import_module(name)
        except ImportError as error:
            found[name] = f"cannot be imported ({error})" if _installed(name) else _why_not(name)
    return found


def _why_not(name: str) -> str:
    libc, version = platform.libc_ver()
    if name == "honker" and libc == "glibc" and [int(part) for part in version.split(".")] < HONKER_GLIBC:
        return f"its wheels on PyPI need glibc {'.'.join(map(str, HONKER_GLIBC))}, this machine has {version}"
    return "it could not be installed"


def _installed(name: str) -> bool:
    try:
        metadata.version(DISTRIBUTIONS.get(name, name))
    except metadata.PackageNotFoundError:
        return False
    return True


# huey


class Huey:
    """huey on a file, with one task; `act` is what it does."""

    def __init__(self, folder: Path, durable: bool, act: Callable[[Any], None]) -> None:
        from huey import SqliteHuey

        logging.disable(logging.WARNING)
        self.huey = SqliteHuey("bench", filename=str(folder / "huey.db"), fsync=durable, results=False)

        self.task: Any = self.huey.task(name="bench")(act)

    def consumer(self) -> Any:
        """Its worker."""
        return self.huey.create_consumer(workers=1, periodic=False, initial_delay=0.01, max_delay=0.05)


def huey_enqueue(folder: Path, synchronous: str, seconds: float) -> Sample:
    """One task after another."""
    return repeat(seconds, Huey(folder, synchronous == "full", _nothing).task)


def huey_enqueue_normal(folder: Path, seconds: float) -> Sample:
    """One task after another, with NORMAL, which huey has no setting for: its own are FULL and OFF."""
    it = Huey(folder, False, _nothing)
    it.huey.storage.conn.execute("PRAGMA synchronous = NORMAL")
    return repeat(seconds, it.task)


def _nothing(value: Any) -> None:
    pass


def huey_drain(folder: Path, synchronous: str, jobs: int) -> Sample:
    """Its consumer, one thread."""
    ended = threading.Event()
    numbers = count(1)

    def act(value: Any) -> None:
        if next(numbers) == jobs:
            ended.set()

    filling = Huey(folder, False, act)  # what waits in line may be put there quickly
    for number in range(jobs):
        filling.task(number)
    filling.huey.storage.close()
    it = Huey(folder, synchronous == "full", act)
    consumer = it.consumer()
    begun = time.perf_counter()
    consumer.start()
    ended.wait(LONGEST)
    seconds, done = time.perf_counter() - begun, next(numbers) - 1
    consumer.stop(graceful=True)
    return rate(done, seconds)


# litequeue


def litequeue(folder: Path, synchronous: str) -> Any:
    """A queue on a file; its own setting is NORMAL."""
    from litequeue import LiteQueue

    queue = LiteQueue(str(folder / "litequeue.db"))
    queue.conn.execute("PRAGMA synchronous = FULL" if synchronous == "full" else "PRAGMA synchronous = NORMAL")
    return queue


def litequeue_enqueue(folder: Path, synchronous: str, seconds: float) -> Sample:
    """One message after another."""
    queue = litequeue(folder, synchronous)
    return repeat(seconds, lambda number: queue.put(f'{{"n": {number}}}'))


def litequeue_drain(folder: Path, synchronous: str, jobs: int) -> Sample:
    """Pop one, mark it done."""
    queue = litequeue(folder, synchronous)
    with queue.transaction():
        for number in range(jobs):
            queue.put(f'{{"n": {number}}}')
    done, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + LONGEST and (message := queue.pop()) is not None:
        queue.done(message.message_id)
        done += 1
    return rate(done, time.perf_counter() - begun)


# honker


def honker(folder: Path) -> Any:
    """A database; its setting is NORMAL and cannot be changed."""
    module = importlib.import_module("honker")
    return module.open(str(folder / "honker.db"))


def _honker_filled(folder: Path, jobs: int) -> Any:
    db = honker(folder)
    queue = db.queue("bench")
    with db.transaction() as tx:
        for number in range(jobs):
            queue.enqueue({"n": number}, tx=tx)
    return queue


def honker_enqueue(folder: Path, seconds: float) -> Sample:
    """One job after another."""
    queue = honker(folder).queue("bench")
    return repeat(seconds, lambda number: queue.enqueue({"n": number}))


def honker_batch(folder: Path, jobs: int) -> Sample:
    """Its bare batch loop: no handler is called, nothing is dispatched."""
    queue = _honker_filled(folder, jobs)
    done, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + LONGEST and (claimed := queue.claim_batch("bench", BATCH)):
        done += queue.ack_batch([job.id for job in claimed], "bench")
    return rate(done, time.perf_counter() - begun)


def honker_claim(folder: Path, jobs: int) -> Sample:
    """Its async iterator, which is what its worker runs on: claims one by one."""

    async def main() -> Sample:
        queue = _honker_filled(folder, jobs)
        done, begun = 0, time.perf_counter()
        async for job in queue.claim("bench"):
            job.ack()
            done += 1
            if done == jobs or time.perf_counter() > begun + LONGEST:
                break
        return rate(done, time.perf_counter() - begun)

    return asyncio.run(main())
