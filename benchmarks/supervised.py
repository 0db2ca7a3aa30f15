"""CPU-bound jobs under `taskharbor worker --processes N`, and the same work in bare processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from benchmarks.app import url_of
from benchmarks.clock import Sample, rate
from taskharbor import Harbor

ROUNDS = 300_000  # of a loop: some ten milliseconds
START = 30.0
LOOK_EVERY = 0.02
harbor = Harbor(os.environ.get("TASKHARBOR_URL", "memory://"))


def burn(rounds: int) -> int:
    """Keep a core busy."""
    total = 0
    for number in range(rounds):
        total += number * number % 7
    return total


@harbor.task(name="cpu")
def cpu(n: int) -> None:
    """A handler that computes."""
    burn(ROUNDS)


def drain(folder: Path, engine: str, processes: int, jobs: int) -> Sample:
    """From the commit of all jobs to the end of the last, by workers that were idle before."""
    url = url_of(engine, folder)
    return asyncio.run(_drained(url, processes, jobs))


async def _drained(url: str, processes: int, jobs: int) -> Sample:
    port = Harbor(url)
    async with port.open():
        with _supervisor(url, processes):
            until = time.perf_counter() + START
            while len(await port.admin.workers.alist()) < processes:
                if time.perf_counter() > until:
                    raise RuntimeError("the workers did not start")
                await asyncio.sleep(LOOK_EVERY)
            await port.aenqueue_many([port.step("cpu", {"n": number}) for number in range(jobs)])
            begun = time.perf_counter()
            while any(each.ready + each.claimed + each.running for each in await port.admin.queues.alist()):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_EVERY)
            return rate(jobs, time.perf_counter() - begun)


@contextmanager
def _supervisor(url: str, processes: int) -> Generator[None]:
    command = [sys.executable, "-m", "taskharbor", "worker", "benchmarks.supervised:harbor", "-c", "4"]
    started = subprocess.Popen(
        [*command, "--processes", str(processes), "--log-level", "error"],
        env={**os.environ, "TASKHARBOR_URL": url},
        stdin=subprocess.DEVNULL,
        cwd=Path(__file__).resolve().parent.parent,
    )
    try:
        yield
    finally:
        started.terminate()
        started.wait(60)


def bare(processes: int, jobs: int) -> Sample:
    """The same work without a queue, divided among processes that are warm."""
    with get_context("spawn").Pool(processes) as pool:
        pool.map(burn, [1] * processes, 1)
        begun = time.perf_counter()
        pool.map(burn, [ROUNDS] * jobs, 1)
        return rate(jobs, time.perf_counter() - begun)
