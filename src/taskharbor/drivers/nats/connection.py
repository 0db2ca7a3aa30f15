"""The server: one connection for each event loop, and requests to JetStream.

A connection that was lost is made again by the next caller, to any node of the cluster. A forked child refuses, and
never touches the connections, which belong to the parent (P1).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import datetime
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult
from weakref import WeakKeyDictionary

import msgspec

from taskharbor.driver import StoreSetting
from taskharbor.driver.forking import after_fork
from taskharbor.drivers.nats import login, streams
from taskharbor.drivers.nats.failure import answered, away, failure
from taskharbor.drivers.nats.url import HostPort, NatsAddress, address, named, parsed
from taskharbor.drivers.nats.wire import ANSWER_WITHIN, CLOSE_WITHIN, NatsMessage, NatsWire, status
from taskharbor.errors import ConfigError, DriverClosed, DriverForked, HarborError

__all__ = ["JetStream", "NatsMessage", "NatsWire"]

API = "$JS.API."
CONNECT_WITHIN = 4.0
CONNECT_ALL_WITHIN = 10.0
LEAST_PAYLOAD = 512 * 1024
AGAIN_AFTER = 1.5  # a request to JetStream that was not answered
PAUSE = 0.1  # after an attempt that failed, before the next one, plus as much at random


class LoopWire:
    """The connection of one loop, made when it is needed."""

    def __init__(self, address: NatsAddress) -> None:
        self._address = address
        self._login = login.login(address)
        self._hosts: list[HostPort] = random.sample(address.hosts, len(address.hosts))
        self._wires: set[NatsWire] = set()
        self._current: NatsWire | None = None
        self._attempt: asyncio.Task[NatsWire] | None = None
        self._failed = False
        self._name = address.hosts[0][0]  # of the certificate that the last server has shown

    def open(self) -> NatsWire | None:
        """The connection, if there is one. If another would be better, it is made meanwhile."""
        wire = self._current
        if wire is None or not wire.is_open:
            return None
        if (wire.leaving or (wire.suspect and len(self._hosts) > 1)) and self._attempt is None:
            self._start()
        return wire

    async def connected(self) -> NatsWire:
        """A new connection; callers that come meanwhile share the attempt."""
        attempt = self._attempt or self._start()
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if attempt.cancelled() and here is not None and not here.cancelling():
                raise ConnectionAbortedError("the driver was closed") from None
            raise

    def _start(self) -> asyncio.Task[NatsWire]:
        attempt = self._attempt = asyncio.create_task(self._connect())
        attempt.add_done_callback(self._attempted)
        return attempt

    def _attempted(self, attempt: asyncio.Task[NatsWire]) -> None:
        self._attempt = None
        if not attempt.cancelled():
            attempt.exception()  # callers may have left

    async def _connect(self) -> NatsWire:
        """Try the hosts, the one that was tried longest ago first."""
        if self._failed:
            await asyncio.sleep(PAUSE * (1 + random.random()))
        error: Exception = TimeoutError("no answer in time")
        self._failed = True
        until = asyncio.get_running_loop().time() + CONNECT_ALL_WITHIN
        for _ in range(len(self._hosts)):
            if asyncio.get_running_loop().time() > until:
                break
            host = self._hosts.pop(0)
            self._hosts.append(host)
            try:
                wire = await self._reach(host)
            except (OSError, HarborError) as found:
                wrong = isinstance(failure(found, self._address.where), ConfigError)  # a login, a certificate
                if wrong and host in self._address.hosts:
                    raise
                error = found
            else:
                if self._same(wire):
                    wire.abort()
                    continue
                self._failed = False
                self._adopt(wire)
                return wire
        if self._current is not None:
            self._current.suspect = False  # there is no better one
        raise error

    def _same(self, wire: NatsWire) -> bool:
        """Whether the connection that is to be replaced goes to the same server."""
        current = self._current
        return current is not None and current.is_open and current.info.get("server_id") == wire.info.get("server_id")

    async def _reach(self, host: HostPort) -> NatsWire:
        within = CONNECT_WITHIN if len(self._hosts) == 1 else CONNECT_WITHIN / 2
        # Servers name others by address, and certificates name hosts.
        name = host[0] if host in self._address.hosts or not _is_ip(host[0]) else self._name
        where, tls = f"NATS at {named(host)}", self._address.tls
        wire = await NatsWire.connect(*host, where=where, login=self._login, tls=tls, tls_name=name, within=within)
        self._name = name
        return wire

    def _adopt(self, wire: NatsWire) -> None:
        if self._current is not None:
            self._current.retire()
        self._current = wire
        self._wires.add(wire)
        wire.closed.add_done_callback(lambda _: self._wires.discard(wire))
        wire.moved = lambda: self._learn(wire)
        self._learn(wire)

    def _learn(self, wire: NatsWire) -> None:
        """Keep the nodes that the server names, beside those of the URL. Its own turn comes last."""
        told: list[HostPort] = []
        for text in wire.info.get("connect_urls") or ():
            with suppress(ConfigError):
                told.append(parsed(text))
        kept = [host for host in self._hosts if host in self._address.hosts or host in told]
        self._hosts = kept[:-1] + [host for host in told if host not in kept] + kept[-1:]

    def clear(self) -> list[NatsWire]:
        """Close all."""
        if self._attempt is not None:
            self._attempt.cancel()
        wires = list(self._wires)
        for wire in wires:
            wire.abort()
        return wires


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class JetStream:
    """A NATS server or cluster, open. Its methods may be called from any number of loops."""

    def __init__(self, address: NatsAddress) -> None:
        self.address = address
        self.where = address.where
        self.prefix = address.prefix
        self.jobs = f"{address.prefix}-JOBS"
        self.line = f"{address.prefix}-LINE"
        self.replicas = 1
        self.max_payload = 0
        self.closed = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._wires: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWire] = WeakKeyDictionary()
        self._tenants: dict[int, AsyncGenerator[None]] = {}
        after_fork(self, JetStream.abandon)

    @classmethod
    async def open(cls, url: SplitResult, options: dict[str, str]) -> JetStream:
        """Connect, check the server, and make the streams that are missing. Takes its options out of the dict."""
        server = cls(address(url, options))
        try:
            wire = await server.wire()
            server.max_payload = wire.max_payload
            if server.max_payload < LEAST_PAYLOAD:
                raise ConfigError(
                    f"{server.where} takes messages of {server.max_payload} bytes, and a page of jobs may need "
                    f"{LEAST_PAYLOAD}: raise max_payload in its configuration (1MB unless set)"
                )
            server.replicas = await streams.prepare(server.api, wire.info, server.address)
        except BaseException:
            await server.close()
            raise
        return server

    def check(self) -> None:
        """Raise unless the server can be used."""
        if self.closed:
            raise DriverClosed("this nats driver was closed")
        if self._pid != os.getpid():
            raise DriverForked(
                "this nats driver was opened before the process was forked: use the harbor only after the fork, or "
                "call harbor.close() before it"
            )

    async def wire(self) -> NatsWire:
        """The connection of the running loop, made again if it was lost."""
        self.check()
        links = self._wires.get(asyncio.get_running_loop()) or await self._new_wires()
        if (wire := links.open()) is not None:
            return wire
        try:
            return await links.connected()
        except Exception as error:
            self.check()  # closed meanwhile
            if (ours := failure(error, self.where)) is not error:
                raise ours from error
            raise

    async def api(self, subject: str, body: object | None = None, timeout: float = ANSWER_WITHIN) -> dict[str, Any]:
        """The answer of JetStream to a request; `ApiError` if it is one.

        A cluster without a leader drops requests without a word, so they are sent again, which does no harm.
        """
        data = b"" if body is None else msgspec.json.encode(body)
        until = asyncio.get_running_loop().time() + timeout
        while (message := await self._asked(subject, data, until)) is None:
            if asyncio.get_running_loop().time() >= until:
                raise away(TimeoutError(f"no answer within {timeout:g} s"), self.where, asked=True)
        if status(message.headers) or not message.body:
            raise answered(self.where, {"code": status(message.headers), "description": "no node answers for it"})
        found: dict[str, Any] = msgspec.json.decode(message.body)
        if (error := found.get("error")) is not None:
            raise answered(self.where, error)
        return found

    async def _asked(self, subject: str, data: bytes, until: float) -> NatsMessage | None:
        """The reply to a request; None if there is none for a while."""
        wire = await self.wire()
        try:
            async with asyncio.timeout_at(min(until, asyncio.get_running_loop().time() + AGAIN_AFTER)):
                return await wire.request(API + subject, data)
        except TimeoutError:
            return None

    async def now(self) -> datetime:
        """The clock of the leader of the stream LINE at some time between request and reply (L8)."""
        found = await self.api(f"STREAM.INFO.{self.line}")
        return msgspec.convert(found["ts"], datetime)

    async def durability(self) -> list[StoreSetting]:
        """The settings that decide what may be lost, as they are now."""
        wire = await self.wire()
        return await streams.durability(self.api, wire.info, self.address)

    async def close(self) -> None:
        """Close all connections, including those of other loops."""
        self.closed = True
        if self._pid != os.getpid():
            return
        here = asyncio.get_running_loop()
        with self._lock:
            found = list(self._wires.items())
        for loop, wires in found:
            if loop is not here and not loop.is_closed():
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(wires.clear)
        if closing := [wire.closed for loop, wires in found if loop is here for wire in wires.clear()]:
            await asyncio.wait(closing, timeout=CLOSE_WITHIN)
        if (tenant := self._tenants.get(id(here))) is not None:
            await tenant.aclose()

    async def _new_wires(self) -> LoopWire:
        loop = asyncio.get_running_loop()
        with self._lock:
            wires = self._wires.get(loop)
            if wires is not None:
                return wires
            wires = self._wires[loop] = LoopWire(self.address)
        tenant = self._tenants[id(loop)] = self._tenancy(loop, wires)
        await anext(tenant)
        return wires

    async def _tenancy(self, loop: asyncio.AbstractEventLoop, wires: LoopWire) -> AsyncGenerator[None]:
        """Ends when its loop shuts down its generators: the last moment at which connections can be closed there."""
        try:
            yield
        finally:
            closing = [wire.closed for wire in wires.clear()]
            self._tenants.pop(id(loop), None)
            with self._lock:
                self._wires.pop(loop, None)  # it refers to its loop, which no weak reference would ever let go
            if closing:
                await asyncio.wait(closing, timeout=CLOSE_WITHIN)

    def abandon(self) -> None:
        """In a forked child: leak what was inherited. Even its garbage collection would take sockets out of the
        parent's event loops."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object([list(self._wires.items()), self._tenants]))
