"""A drain beside 200,000 jobs that are not due yet, or that have ended: they must not slow it."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from pathlib import Path

from benchmarks import ours
from benchmarks.app import Port, url_of
from benchmarks.clock import Sample, rate

DAY = 24 * 3600
MANY_SLOTS = 1000


def make(folder: Path, kind: str, jobs: int, engine: str = "normal") -> Sample:
    """A store with so many `future` or `finished` jobs, made once and copied for each round."""
    place = folder / kind
    place.mkdir(exist_ok=True)
    begun = time.perf_counter()
    asyncio.run(_make(url_of(engine, place), kind, jobs))
    return rate(jobs, time.perf_counter() - begun)


async def _make(url: str, kind: str, jobs: int) -> None:
    port = Port(url)
    async with port.harbor.open():
        if kind == "future":
            await ours.fill(port, jobs, delay=DAY)
        else:
            await ours.fill(port, jobs)
            await port.harbor.adrain(concurrency=MANY_SLOTS)


def drain(folder: Path, engine: str, jobs: int, kind: str) -> Sample:
    """As `ours.drain`, in a copy of the store that `make` has left in the folder above."""
    copy = folder / "jobs.db"
    shutil.copy(folder.parent / kind / "jobs.db", copy)
    with copy.open("rb+") as file:
        os.fsync(file.fileno())
    return ours.drain(folder, engine, jobs)
