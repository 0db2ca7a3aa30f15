"""The memory driver's async face over the key-value store. It takes no lock: threads are clients that interleave."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from secrets import token_hex
from typing import Any

from taskharbor.core.schedule import Schedule, Swap
from taskharbor.core.tally import Tally
from taskharbor.core.transition import Transition
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.wakeup import Wakeup
from taskharbor.errors import DriverClosed, JobExists

from .bucket import Bucket
from .store import KvStore


class KvDriver(MemoryDriver):
    """Every verb about jobs, schedules and totals is a step over a bucket; the rest is the memory driver's."""

    name = "kv"

    def __init__(self, bucket: Bucket) -> None:
        super().__init__()
        own, numbers = token_hex(8), count(1)
        self.kv = KvStore(bucket, lambda: f"{own}-{next(numbers)}")

    @contextmanager
    def _step(self, *wakeups: Wakeup) -> Generator[Any]:
        if self._closed:
            raise DriverClosed("this key-value driver was closed")
        yield self.kv
        for wakeup in wakeups:
            wakeup.wake()

    def _count(self, settled: Sequence[Transition], now: datetime) -> None:
        """No-op: the step has counted them."""

    async def tallies(self, since: datetime) -> list[Tally]:
        with self._step() as store:
            found: list[Tally] = store.tallies(since)
        return found

    async def forget_tallies(self, before: datetime) -> None:
        with self._step() as store:
            store.forget_tallies(before)

    async def pause(self, queue: str, paused: bool) -> None:
        with self._step() as store:
            store.pause(queue, paused)
        self._work.wake()

    async def schedules(self) -> list[Schedule]:
        with self._step() as store:
            found: list[Schedule] = store.schedules()
        return found

    async def swap_schedules(self, swaps: Sequence[Swap], now: datetime) -> list[bool | JobExists]:
        with self._step() as store:
            answers: list[bool | JobExists] = store.swap_schedules(swaps, now)
        self._work.wake()
        return answers
