"""The limit of the memory driver: what Python takes to run a no-op job at all.

A new asyncio task per job, at most 100 at a time, with a context variable set and the payload decoded from JSON around
each call. No store, no lease, no outcome.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context

import msgspec

from benchmarks.clock import Sample, payload, rate

SLOTS = 100
_job: ContextVar[int] = ContextVar("job")


class _Arguments(msgspec.Struct):
    n: int


class _Envelope(msgspec.Struct):
    v: int
    args: _Arguments


async def _noop(n: int) -> None:
    pass


def bare(jobs: int) -> Sample:
    """Run so many."""
    return asyncio.run(_bare([payload(number) for number in range(jobs)]))


async def _bare(payloads: list[bytes]) -> Sample:
    decode = msgspec.json.Decoder(_Envelope).decode
    slots = asyncio.Semaphore(SLOTS)
    running: set[asyncio.Task[None]] = set()

    async def run(number: int, raw: bytes) -> None:
        try:
            _job.set(number)
            await _noop(decode(raw).args.n)
        finally:
            slots.release()

    begun = time.perf_counter()
    for number, raw in enumerate(payloads):
        await slots.acquire()
        task = asyncio.create_task(run(number, raw))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return rate(len(payloads), time.perf_counter() - begun)


def bare_threads(jobs: int) -> Sample:
    """The same for a `def` job: a task each, which hands the call to a thread and waits for it."""
    return asyncio.run(_bare_threads([payload(number) for number in range(jobs)]))


async def _bare_threads(payloads: list[bytes]) -> Sample:
    decode = msgspec.json.Decoder(_Envelope).decode
    loop = asyncio.get_running_loop()
    slots = asyncio.Semaphore(SLOTS)

    async def run(number: int, raw: bytes) -> None:
        try:
            _job.set(number)
            arguments = decode(raw).args
            await loop.run_in_executor(pool, copy_context().run, _plain, arguments.n)
        finally:
            slots.release()

    with ThreadPoolExecutor(SLOTS) as pool:
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number, raw in enumerate(payloads):
                await slots.acquire()
                group.create_task(run(number, raw))
        return rate(len(payloads), time.perf_counter() - begun)


def _plain(n: int) -> None:
    pass
