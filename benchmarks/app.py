"""The application that is measured: jobs that do nothing, so that all the time is the queue's own."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from taskharbor import Harbor


def arrived(sent: float) -> None:
    """Print how long a job was on its way, in seconds. The monotonic clock is the same for all processes of Linux."""
    sys.stdout.write(f"{time.monotonic() - sent:.6f}\n")
    sys.stdout.flush()


def ready() -> None:
    """Say that this process can take work. It ends with the one that started it, whatever becomes of that."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the other end of stdin is closed
    os._exit(0)


class Port:
    """A harbor with a few tasks."""

    def __init__(self, url: str) -> None:
        self.harbor = Harbor(url)

        @self.harbor.task(name="noop")
        async def noop(n: int) -> None:
            pass

        @self.harbor.task(name="plain")
        def plain(n: int) -> None:
            pass

        @self.harbor.task(name="blocking")
        def blocking(seconds: float) -> float:
            begun = time.perf_counter()
            if seconds:
                time.sleep(seconds)
            return time.perf_counter() if not seconds else begun

        @self.harbor.task(name="stamp")
        async def stamp(sent: float) -> None:
            arrived(sent)

        @self.harbor.task(name="gather")
        async def gather(results: list[None]) -> int:
            return len(results)

        self.noop, self.plain, self.blocking, self.stamp, self.gather = noop, plain, blocking, stamp, gather


def url_of(engine: str, folder: Path) -> str:
    """The store of an engine: `memory`, SQLite with the synchronous setting `full` or `normal`, a URL of a server."""
    if engine.startswith("postgresql://"):
        return f"{engine}?namespace=bench&migrate=true"
    if engine.startswith("redis://"):
        return f"{engine}?namespace=bench"
    if engine.startswith("nats://"):
        return f"{engine}{'&' if '?' in engine else '?'}namespace=bench"
    return "memory://" if engine == "memory" else f"sqlite:///{folder / 'jobs.db'}?synchronous={engine}"
