"""Hints that something was published: one subscription per event loop, kept up by the callers that wait there.

They are hints: workers poll as well. A half-open connection looks like a quiet one, so the server is pinged, and the
connection replaced if it does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection
from random import Random
from typing import Any

from taskharbor.core.backoff import STORE_BACKOFF
from taskharbor.drivers.redis.failure import failure
from taskharbor.drivers.redis.keyspace import pattern
from taskharbor.drivers.redis.url import Address
from taskharbor.drivers.redis.wire import LoopLink, packed

logger = logging.getLogger("taskharbor.redis")
PING_EVERY, ANSWER_WITHIN = 5.0, 5.0
RNG = Random()


class Subscription:
    """Wakes the waiters of a channel, and all waiters after any time in which messages may have been missed."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._prefix = address.prefix.encode()
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._loop = asyncio.get_running_loop()
        self._subscribing = asyncio.Lock()
        self._link: LoopLink | None = None
        self._heard = 0.0
        self._retry_at = 0.0
        self._closed = False
        self.failures = 0

    async def wait(self, channel: str, timeout: float) -> None:
        """Return at the next message on a channel, or after `timeout` seconds."""
        woken = self._loop.create_future()
        self._waiting[channel].add(woken)
        try:
            async with asyncio.timeout(timeout):
                while not woken.done() and not self._closed:
                    await self._listen(woken)
        except TimeoutError:
            pass
        finally:
            self._waiting[channel].discard(woken)

    async def _listen(self, woken: asyncio.Future[None]) -> None:
        """Subscribe or ping if that is due; otherwise wait until woken, at most until the next ping."""
        try:
            link = self._link
            if link is None or link.retired:
                await self._subscribe(woken)
            elif self._loop.time() - self._heard < PING_EVERY:
                await asyncio.wait({woken, link.closed}, timeout=PING_EVERY, return_when=asyncio.FIRST_COMPLETED)
            else:
                await self._answered(link, "PING")
        except Exception as error:
            self._failed(error)

    async def _subscribe(self, woken: asyncio.Future[None]) -> None:
        async with self._subscribing:  # also in the pause: all waiters together try once after it
            if (left := self._retry_at - self._loop.time()) > 0:
                await asyncio.wait({woken}, timeout=left)
            if self._closed or (self._link is not None and not self._link.retired):
                return  # subscribed by another waiter, meanwhile
            link = await LoopLink.connect(self._address)
            if self._closed:
                link.abort()
                return
            link.pushed = self._received
            self._link = link
            # All channels of the namespace, so that a new one needs no new subscription.
            await self._answered(link, "PSUBSCRIBE", pattern(self._address.prefix))
            if self.failures:
                logger.info("store.available: %s: subscribed again", self._address.where)
            self.failures = 0
            self._wake_all()  # earlier messages were missed

    async def _answered(self, link: LoopLink, *words: str) -> None:
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                await link.request(packed(words))
        except BaseException:
            link.abort()
            raise
        self._heard = self._loop.time()

    def _received(self, reply: Any) -> None:
        self._heard = self._loop.time()
        _wake(self._waiting.get(reply[2].removeprefix(self._prefix).decode(errors="replace"), ()))

    def _failed(self, error: Exception) -> None:
        if self._closed:
            return
        if not self.failures:  # workers poll meanwhile, so logging it once is enough
            logger.warning("store.unavailable: not subscribed, trying again: %s", failure(error, self._address))
        self.failures += 1
        self._retry_at = self._loop.time() + STORE_BACKOFF.delay(self.failures, RNG)

    def close(self) -> list[LoopLink]:
        """End the subscription and wake all waiters; return its connection, if there is one."""
        self._closed = True
        self._wake_all()
        if self._link is None:
            return []
        self._link.abort()
        return [self._link]

    def _wake_all(self) -> None:
        for waiting in self._waiting.values():
            _wake(waiting)


def _wake(waiting: Collection[asyncio.Future[None]]) -> None:
    for woken in waiting:
        if not woken.done():
            woken.set_result(None)
