"""How restless the host is: CPU that other guests took, how fast threads and processes wake, how long fsync takes."""

from __future__ import annotations

import os
import queue
import threading
import time
from pathlib import Path

from benchmarks.clock import middle

SECONDS = 0.2
FSYNCS = 100


def cpu_ticks() -> tuple[int, int, int]:
    """Of all CPUs since boot: ticks in all, stolen by the host, and idle."""
    line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    ticks = [int(word) for word in line.split()[1:9]]
    return sum(ticks), ticks[7], ticks[3] + ticks[4]


class Shares:
    """The shares of the CPUs that were stolen and busy since this was made."""

    def __init__(self) -> None:
        self._begin = cpu_ticks()

    def so_far(self) -> dict[str, float]:
        """In per cent."""
        total, stolen, idle = (after - before for after, before in zip(cpu_ticks(), self._begin, strict=True))
        return {"steal": 100 * stolen / max(1, total), "busy": 100 * (1 - idle / max(1, total))}


def probe(folder: Path) -> dict[str, float]:
    """A short look at the host. Round trips per second between two threads and two processes; fsync in milliseconds."""
    return {"threads": _threads(), "processes": _processes(), "fsync_ms": _fsync(folder)}


def _threads() -> float:
    there: queue.SimpleQueue[bool] = queue.SimpleQueue()
    back: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def answer() -> None:
        while there.get():
            back.put(True)

    thread = threading.Thread(target=answer)
    thread.start()
    trips, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        there.put(True)
        back.get()
        trips += 1
    there.put(False)
    thread.join()
    return trips / SECONDS


def _processes() -> float:
    there, here = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(there[1])
        while os.read(there[0], 1):
            os.write(here[1], b".")
        os._exit(0)
    trips, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        os.write(there[1], b".")
        os.read(here[0], 1)
        trips += 1
    for descriptor in (*there, *here):
        os.close(descriptor)
    os.waitpid(child, 0)
    return trips / SECONDS


def _fsync(folder: Path) -> float:
    taken: list[float] = []
    descriptor = os.open(folder / "fsync", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(FSYNCS):
            os.write(descriptor, b"x" * 4096)
            begun = time.perf_counter()
            os.fsync(descriptor)
            taken.append((time.perf_counter() - begun) * 1000)
    finally:
        os.close(descriptor)
        (folder / "fsync").unlink()
    return middle(taken)
