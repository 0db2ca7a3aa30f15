"""A worker as a process of its own: `python -m benchmarks.worker URL [uvloop]`. Says "ready", works until SIGTERM."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Coroutine
from importlib import import_module
from typing import Any

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


def run(coroutine: Coroutine[Any, Any, None], *, uvloop: bool) -> None:
    """As `taskharbor worker` does, with `--uvloop` or without."""
    with asyncio.Runner(loop_factory=import_module("uvloop").new_event_loop if uvloop else None) as runner:
        runner.run(coroutine)


if __name__ == "__main__":
    run(main(sys.argv[1]), uvloop="uvloop" in sys.argv)
