"""Waiting for work: hints of the driver wake an idle worker, and it polls as well. And waiting for a store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count
from typing import Any

from taskharbor.client.client import discard
from taskharbor.client.session import Session
from taskharbor.core.backoff import STORE_BACKOFF, jitter
from taskharbor.core.text import described
from taskharbor.driver import WaitForWork, offered
from taskharbor.errors import DriverUnavailable

logger = logging.getLogger("taskharbor.worker")
SHORTEST_POLL, LONGEST_POLL = 0.2, 5.0


async def until_open(session: Session, waiting: Callable[[], object]) -> None:
    """Open the store; wait while it is away, and call `waiting` before each wait.

    Errors that waiting cannot fix are raised, such as a wrong password.
    """
    for failures in count(1):
        try:
            await session.driver()
            return
        except (DriverUnavailable, OSError) as error:
            logger.warning("store.unavailable: cannot open the store, trying again: %s", error)
        waiting()
        await asyncio.sleep(STORE_BACKOFF.delay(failures, session.rng))


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most so many seconds; return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class Idle:
    """Waits for work, for the next due time, or for the poll timer, whichever comes first; `stopping` ends it."""

    def __init__(self, session: Session, stopping: asyncio.Event) -> None:
        self._session = session
        self._stopping = stopping
        self._rounds = -1
        self._in_vain = 0  # looks in a row that saw a due job, which the last try had not found
        self._failures = 0  # of the look for work, in a row

    async def until_work(self, *, found: bool, queues: Sequence[str], freed: asyncio.Event | None = None) -> None:
        """Return when reserving from these is worth a try, or a slot is `freed`. `found`: the last try found jobs."""
        self._rounds = 0 if found else min(self._rounds + 1, 10)
        if found:
            self._in_vain = 0
        poll = min(SHORTEST_POLL * 2**self._rounds, LONGEST_POLL) * jitter(self._session.rng)
        await self._first_of(self._work(poll, queues), freed)
        if freed is not None and freed.is_set():
            self._rounds = -1  # the next wait starts with the shortest poll

    async def back_off(self, failures: int) -> None:
        """Wait before the next call to a store that is away."""
        await self._first_of(asyncio.sleep(STORE_BACKOFF.delay(failures, self._session.rng)))

    async def _work(self, poll: float, queues: Sequence[str]) -> None:
        try:
            hints = offered(await self._session.driver(), WaitForWork)
            if hints is not None:
                await self._hint(hints, poll, queues)
                self._failures = 0
                return
        except Exception as error:  # without hints there is still the poll
            logger.warning("store.unavailable: no wake-up hints: %s", described(error))
            # After one failure a whole poll would be too late (X2); hints that fail again and again leave the poll.
            poll = min(poll, SHORTEST_POLL * 2**self._failures * jitter(self._session.rng))
            self._failures = min(self._failures + 1, 10)
        await asyncio.sleep(poll)

    async def _hint(self, driver: WaitForWork, poll: float, queues: Sequence[str]) -> None:
        hint = asyncio.ensure_future(driver.wait_for_work(queues, poll))
        try:
            await asyncio.sleep(0)  # the hint listens before the look, so that no commit falls between the two
            async with asyncio.timeout(self._session.settings.store_timeout):  # a half-dead connection never answers
                due = await driver.next_due(queues)
            await asyncio.wait({hint}, timeout=min(self._until(due, poll), poll))
            if hint.done():
                hint.result()
        finally:
            discard(hint)

    def _until(self, due: datetime | None, poll: float) -> float:
        """Seconds until the next try to reserve is worthwhile.

        A job that is due already is tried at once: it was stored since the last try, or by a host whose clock is ahead
        of this one's. After a few tries in vain other workers are faster, and this loop must not spin.
        """
        left = poll if due is None else (due - self._session.now()).total_seconds()
        self._in_vain = 0 if left > 0 else min(self._in_vain + 1, 10)
        if self._in_vain < 3:
            return max(left, 0.0)
        return min(0.005 * 2.0**self._in_vain, SHORTEST_POLL)

    async def _first_of(self, waiting: Coroutine[Any, Any, None], freed: asyncio.Event | None = None) -> None:
        waiters = [asyncio.ensure_future(self._stopping.wait()), asyncio.ensure_future(waiting)]
        if freed is not None:
            waiters.append(asyncio.ensure_future(freed.wait()))
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                discard(waiter)
