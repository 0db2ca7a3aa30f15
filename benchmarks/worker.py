"""A worker as a process of its own: `python -m benchmarks.worker URL`. Says "ready", then works until SIGTERM."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator

from benchmarks.app import Port, ready
from benchmarks.ours import SLOTS


async def main(url: str) -> None:
    """Work until asked to stop."""
    port = Port(url)

    @port.harbor.lifespan
    async def begin() -> AsyncGenerator[None]:
        ready()
        yield

    await port.harbor.arun_worker(concurrency=SLOTS)
    await port.harbor.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
