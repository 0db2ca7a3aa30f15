"""Measures that take two processes: latency, idle CPU, and the memory of a worker. Linux only: it reads /proc."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.app import Port, url_of
from benchmarks.clock import Sample, middle, rate
from benchmarks.ours import fill
from benchmarks.rival_worker import sender
from benchmarks.worker import run

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024
SETTLE_DOWN = 1.0
STALLED_AFTER = 40.0


@contextmanager
def running(module: str, *words: str) -> Generator[subprocess.Popen[str]]:
    """A worker process that is ready to work."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the worker process did not start")
        time.sleep(SETTLE_DOWN)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        finally:
            process.kill()
            process.stdin.close()
            process.stdout.close()


def cpu_seconds(pid: int) -> float:
    """How long all threads of a process have run, exactly (the ticks of /proc/PID/stat are too coarse)."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def resident(pid: int) -> float:
    """MiB in memory right now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / MIB


# latency: from the call that enqueues to the handler's first line in an idle worker, p50 and p99 in milliseconds


def latency(folder: Path, engine: str, jobs: int, uvloop: bool = False) -> Sample:
    """`aenqueue` here, `run_worker` there."""
    url = url_of(engine, folder)

    async def send() -> None:
        port = Port(url)
        async with port.harbor.open():
            for _ in range(jobs):
                await asyncio.sleep(pause())
                await port.stamp.aenqueue(time.monotonic())

    with running("worker", url, *(["uvloop"] if uvloop else [])) as process:
        run(send(), uvloop=uvloop)
        return taken(process, jobs)


def rival_latency(folder: Path, rival: str, synchronous: str, jobs: int) -> Sample:
    """The same for a rival."""
    send = sender(rival, folder, synchronous)
    with running("rival_worker", rival, str(folder), synchronous) as process:
        for _ in range(jobs):
            time.sleep(pause())
            send(time.monotonic())
        return taken(process, jobs)


def pause() -> float:
    """Seconds between two jobs."""
    return random.uniform(0.02, 0.08)


def taken(process: subprocess.Popen[str], jobs: int) -> Sample:
    """The p50 and p99 that the worker has printed, in milliseconds."""
    assert process.stdout is not None
    taken = [float(process.stdout.readline()) * 1000 for _ in range(jobs)]
    return {"p50": middle(taken), "p99": middle(taken, 0.99), "worst": max(taken), "jobs": jobs}


# idle: per cent of one core that a worker without work takes


def idle(folder: Path, engine: str, seconds: float) -> Sample:
    """`run_worker`."""
    with running("worker", url_of(engine, folder)) as process:
        return _idle(process.pid, seconds)


def rival_idle(folder: Path, rival: str, synchronous: str, seconds: float) -> Sample:
    """The same for a rival."""
    with running("rival_worker", rival, str(folder), synchronous) as process:
        return _idle(process.pid, seconds)


def _idle(pid: int, seconds: float) -> Sample:
    before = cpu_seconds(pid)
    time.sleep(seconds)
    return {"percent": 100 * (cpu_seconds(pid) - before) / seconds, "seconds": seconds, "mib": resident(pid)}


# memory


def memory(folder: Path, engine: str, jobs: int) -> Sample:
    """`run_worker` over a long drain: its memory at the highest, and what the second half added to the first."""
    url = url_of(engine, folder)
    asyncio.run(_fill(url, jobs))
    seen: list[float] = []
    ended = threading.Event()
    with running("worker", url) as process:
        begun = time.perf_counter() - SETTLE_DOWN
        watch = threading.Thread(target=_watch, args=(process.pid, seen, ended))
        watch.start()
        try:
            asyncio.run(_until_empty(url))
        finally:
            seconds = time.perf_counter() - begun
            ended.set()
            watch.join()
    half = len(seen) // 2
    return {"mib": max(seen), "growth": max(seen[half:]) - max(seen[:half]), **rate(jobs, seconds)}


def _watch(pid: int, seen: list[float], ended: threading.Event) -> None:
    while not ended.wait(0.1):
        seen.append(resident(pid))


async def _fill(url: str, jobs: int) -> None:
    port = Port(url)
    async with port.harbor.open():
        await fill(port, jobs)


async def _until_empty(url: str) -> None:
    port = Port(url)
    async with port.harbor.open():
        before, moved = -1, time.perf_counter()
        while True:
            queues = await port.harbor.admin.queues.alist()
            left = sum(queue.ready + queue.claimed + queue.running + queue.lapsed for queue in queues)
            if not left:
                return
            if left != before:
                before, moved = left, time.perf_counter()
            elif time.perf_counter() - moved > STALLED_AFTER:
                raise RuntimeError(f"the worker got stuck with {left} jobs left: {queues}")
            await asyncio.sleep(0.5)


def importing(module: str) -> Sample:
    """Milliseconds that an import takes in a fresh interpreter, without the interpreter's own start."""
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {"ms": float(done.stdout) * 1000}
