"""The server: scripts and commands on a few connections for each event loop, and on the threads of callers.

A connection whose state is unknown (a network error, a cancelled call) takes no new request (X3). A forked child
refuses, and never touches the connections, which belong to the parent (P1).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import SplitResult
from weakref import WeakKeyDictionary

from taskharbor.driver.forking import after_fork
from taskharbor.drivers.redis import checks
from taskharbor.drivers.redis.blocking import BlockingLinks
from taskharbor.drivers.redis.failure import ReplyError, failure, is_replica
from taskharbor.drivers.redis.scripts import Script
from taskharbor.drivers.redis.url import Address, address
from taskharbor.drivers.redis.wakeups import Subscription
from taskharbor.drivers.redis.wire import CLOSE_WITHIN, Arg, LoopLink, packed
from taskharbor.errors import DriverClosed, DriverForked

__all__ = ["Arg", "Server"]

PER_LOOP = 2


class LoopLinks:
    """The connections of one loop: one for each request under way, up to `PER_LOOP`, which then share the others."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._open: set[LoopLink] = set()
        self._attempt: asyncio.Task[LoopLink] | None = None
        self.hints = Subscription(address)

    def free(self, enough: int = PER_LOOP) -> LoopLink | None:
        """The connection with the least to do; None if all are at work, and there are not `enough`."""
        best, usable = None, 0
        for link in self._open:
            if link.retired:
                continue
            if not link.load:
                return link
            usable += 1
            if best is None or link.load < best.load:
                best = link
        return best if usable >= enough else None

    async def another(self) -> LoopLink:
        """A new connection. If the server does not let us have one, one that is at work."""
        try:
            return await self._connected()
        except Exception as error:
            if isinstance(error, TimeoutError) or (link := self.free(1)) is None:
                raise
            return link

    async def _connected(self) -> LoopLink:
        """A new connection; callers that come meanwhile share the attempt."""
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._connect())
            self._attempt.add_done_callback(self._attempted)
        attempt = self._attempt
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if attempt.cancelled() and here is not None and not here.cancelling():
                raise ConnectionAbortedError("the driver was closed") from None
            raise

    async def _connect(self) -> LoopLink:
        link = await LoopLink.connect(self._address)
        self._open.add(link)
        link.closed.add_done_callback(lambda _: self._open.discard(link))
        return link

    def _attempted(self, attempt: asyncio.Task[LoopLink]) -> None:
        self._attempt = None
        if not attempt.cancelled():
            attempt.exception()  # callers may have left

    def retire(self) -> None:
        """Answer what is under way, and connect again for new requests."""
        for link in list(self._open):
            link.retire()

    def clear(self) -> list[LoopLink]:
        """Close all."""
        if self._attempt is not None:
            self._attempt.cancel()
        links = list(self._open)
        for link in links:
            link.abort()
        return links + self.hints.close()


class Server:
    """A Redis or Valkey, open. Its methods may be called from any number of loops and threads."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.prefix = address.prefix
        self.closed = False
        self.max_bulk = checks.MAX_BULK
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._links: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLinks] = WeakKeyDictionary()
        self._tenants: dict[int, AsyncGenerator[None]] = {}
        self._blocking = BlockingLinks(address)
        after_fork(self, Server.abandon)

    @classmethod
    async def open(cls, url: SplitResult, options: dict[str, str]) -> Server:
        """Connect, and check that the server keeps jobs; takes the options that it knows out of the dict."""
        server = cls(address(url, options))
        try:
            server.max_bulk = (await checks.check(server.command, server.address)).max_bulk
        except BaseException:
            await server.close()
            raise
        return server

    def check(self) -> None:
        """Raise unless the server can be used."""
        if self.closed:
            raise DriverClosed("this redis driver was closed")
        if self._pid != os.getpid():
            raise DriverForked(
                "this redis driver was opened before the process was forked: use the harbor only after the fork, or "
                "call harbor.close() before it"
            )

    async def run(self, script: Script, *args: Arg) -> Any:
        """Run a script. KEYS[1] is the prefix of all keys, for a cluster to find its node."""
        try:
            return await self._request("EVALSHA", script.sha, 1, self.prefix, *args)
        except ReplyError:  # not known there: a restart, a failover, SCRIPT FLUSH
            return await self._request("EVAL", script.text, 1, self.prefix, *args)

    async def command(self, *words: Arg) -> Any:
        """Run a single command."""
        return await self._request(*words)

    async def _request(self, *words: Arg) -> Any:
        """The reply; `ReplyError` only for a script that the server does not know."""
        self.check()
        links = self._links.get(asyncio.get_running_loop()) or await self._new_links()
        link = None
        try:
            link = links.free() or await links.another()
            return await link.request(packed(words))
        except Exception as error:
            if isinstance(error, ReplyError) and str(error).startswith("NOSCRIPT") and words[0] == "EVALSHA":
                raise
            if link is None:
                self.check()  # closed meanwhile
            if is_replica(error):
                links.retire()
            if (ours := failure(error, self.address, asked=link is not None)) is not error:
                raise ours from error
            raise

    async def now(self) -> datetime:
        """The clock of the server (L8)."""
        seconds, microseconds = await self.command("TIME")
        return datetime.fromtimestamp(int(seconds), UTC).replace(microsecond=int(microseconds))

    def run_blocking(self, script: Script, *args: Arg, timeout: float) -> Any:
        """`run` on the thread of the caller, for at most `timeout` seconds."""
        self.check()
        return self._blocking.run(script, self.prefix, args, timeout)

    def has_blocking(self) -> bool:
        """Whether a connection is free for `run_blocking` now."""
        return not self.closed and self._pid == os.getpid() and self._blocking.has_free()

    async def wait(self, channel: str, timeout: float) -> None:
        """Return when something was published on this channel, or may have been, or after `timeout` seconds."""
        self.check()
        links = self._links.get(asyncio.get_running_loop()) or await self._new_links()
        await links.hints.wait(channel, timeout)

    async def close(self) -> None:
        """Close all connections, including those of other loops and of threads."""
        self.closed = True
        if self._pid != os.getpid():
            return
        self._blocking.close()
        here = asyncio.get_running_loop()
        with self._lock:
            found = list(self._links.items())
        for loop, links in found:
            if loop is not here and not loop.is_closed():
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(links.clear)
        if closing := [link.closed for loop, links in found if loop is here for link in links.clear()]:
            await asyncio.wait(closing, timeout=CLOSE_WITHIN)
        if (tenant := self._tenants.get(id(here))) is not None:
            await tenant.aclose()

    async def _new_links(self) -> LoopLinks:
        loop = asyncio.get_running_loop()
        with self._lock:
            links = self._links.get(loop)
            if links is not None:
                return links
            links = self._links[loop] = LoopLinks(self.address)
        tenant = self._tenants[id(loop)] = self._tenancy(loop, links)
        await anext(tenant)
        return links

    async def _tenancy(self, loop: asyncio.AbstractEventLoop, links: LoopLinks) -> AsyncGenerator[None]:
        """Ends when its loop shuts down its generators: the last moment at which connections can be closed there."""
        try:
            yield
        finally:
            closing = [link.closed for link in links.clear()]
            self._tenants.pop(id(loop), None)
            with self._lock:
                self._links.pop(loop, None)  # it refers to its loop, which no weak reference would ever let go
            if closing:
                await asyncio.wait(closing, timeout=CLOSE_WITHIN)

    def abandon(self) -> None:
        """In a forked child: leak what was inherited. Even its garbage collection would take sockets out of the
        parent's event loops."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object([list(self._links.items()), self._tenants, self._blocking]))
