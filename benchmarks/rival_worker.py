"""A rival's worker as a process of its own, for latency and idle CPU: `python -m benchmarks.rival_worker …`.

Says "ready", then prints for each job how long it was on its way. Settings as in the other comparisons; litequeue,
which has no worker, polls every millisecond.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import rivals
from benchmarks.app import arrived, ready

LITEQUEUE_POLL = 0.001


def sender(name: str, folder: Path, synchronous: str) -> Callable[[float], object]:
    """The function that enqueues a job that says when it was sent."""
    if name == "huey":
        task: Callable[[float], object] = rivals.Huey(folder, synchronous == "full", arrived).task
        return task
    if name == "litequeue":
        queue = rivals.litequeue(folder, synchronous)
        return lambda sent: queue.put(json.dumps(sent))
    queue = rivals.honker(folder).queue("bench")
    return lambda sent: queue.enqueue(sent)


def _huey(folder: Path, synchronous: str) -> None:
    it = rivals.Huey(folder, synchronous == "full", arrived)
    ready()
    it.consumer().run()


def _litequeue(folder: Path, synchronous: str) -> None:
    queue = rivals.litequeue(folder, synchronous)
    ready()
    while True:
        if (message := queue.pop()) is None:
            time.sleep(LITEQUEUE_POLL)
        else:
            arrived(json.loads(message.data))
            queue.done(message.message_id)


async def _honker(folder: Path) -> None:
    queue = rivals.honker(folder).queue("bench")
    ready()
    async for job in queue.claim("bench"):
        arrived(job.payload)
        job.ack()


def main(name: str, folder: Path, synchronous: str) -> None:
    """Work until asked to stop."""
    if name == "huey":
        _huey(folder, synchronous)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if name == "litequeue":
        _litequeue(folder, synchronous)
    elif name == "honker":
        asyncio.run(_honker(folder))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
