"""The limits that the system enforces on a child process: it ends with its parent, and a run has a memory limit.

The memory of a run is limited by RLIMIT_DATA: all private memory that may be written, allocated or not yet touched.
Only Linux enforces it; a child tries it before its first job.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from taskharbor.worker.memory import data

LOOK_EVERY = 0.5
PROBE, ROOM = 64 << 20, 16 << 20
_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """End this process when its parent ends: by the kernel on Linux, elsewhere by a thread that polls."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=watch, args=(parent,), name="taskharbor-parent", daemon=True).start()
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def watch(parent: int) -> None:
    """Poll until this process has another parent, then exit."""
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY)
    os._exit(1)


def why_unlimited() -> str | None:
    """Why this system cannot limit the memory of a job; None if it can."""
    if sys.platform != "linux":
        return f"{sys.platform} does not enforce RLIMIT_DATA"
    with capped(data() + ROOM):
        try:
            mmap.mmap(-1, PROBE, flags=mmap.MAP_PRIVATE).close()
        except (OSError, MemoryError):
            return None
    return "this kernel does not enforce RLIMIT_DATA"


@contextmanager
def capped(memory: int | None) -> Generator[None]:
    """Limit the private memory of this process inside the block."""
    if memory is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
