"""Hints that jobs have ended: messages that are not stored, which whoever settles sends."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from taskharbor.drivers.nats.store import Streams
from taskharbor.drivers.nats.wire import NatsWire
from taskharbor.drivers.wakeup import Wakeup


class EndHints:
    """Wakes those that wait for the end of a job, by one subscription on each connection."""

    def __init__(self, store: Streams) -> None:
        self._store = store
        self._wakeup = Wakeup()
        self._subscribed: WeakKeyDictionary[asyncio.AbstractEventLoop, NatsWire] = WeakKeyDictionary()

    async def wait(self, timeout: float) -> None:
        """Return when a job may have ended, at once if that could not have been heard, or after `timeout` seconds."""
        wire = await self._store.server.wire()
        loop = asyncio.get_running_loop()
        if self._subscribed.get(loop) is not wire:
            self._subscribed[loop] = wire
            wire.subscribe(f"{self._store.server.prefix}.w.ends", lambda _: self._wakeup.wake())
            return
        await self._wakeup.wait(timeout)
