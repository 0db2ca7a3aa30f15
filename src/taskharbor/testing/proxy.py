"""A TCP proxy that injects faults between a client and a real server.

It forwards bytes as they come, and on demand stalls, delays, refuses, resets, or cuts a connection at an exact byte.
The controls of a `Proxy` apply to all its connections, open and future. `links` are the open ones, each with the
same controls (`proxy_link`), and `on_next` sets those of future ones. Controls act at once and never wait.
`proxy_thread.ProxyThread` is a proxy on a thread of its own, for tests that block or that watch other processes.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from taskharbor.testing.proxy_link import ChangeSignal, Controls, Link

LOCALHOST = "127.0.0.1"
PATIENCE = 30.0


class Proxy(Controls):
    """Listens on a free port of this machine while `async with` is open, and connects clients with the server there.

    Without a port, the host is the path of a Unix socket. `accepted` counts the connections so far.
    """

    host = LOCALHOST

    def __init__(self, host: str, port: int | None = None) -> None:
        super().__init__(ChangeSignal())
        self._server = (host, port)
        self._addresses: list[tuple[socket.AddressFamily, Any]] = []
        self._place: socket.socket | None = None
        self._door: socket.socket | None = None
        self._links: list[Link] = []
        self._rules: list[tuple[Callable[[Link], object], int | None]] = []
        self.accepted = 0
        self.port = 0

    async def __aenter__(self) -> Self:
        self._addresses = await self._resolve()
        # Bound but never listening: it reserves the port, so that clients are refused while the proxy does not accept.
        self._place = _bound(0)
        self.port = self._place.getsockname()[1]
        self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        self.reset()
        if self._links:
            await asyncio.wait([link.task for link in self._links])
        if self._place is not None:
            self._place.close()

    @property
    def links(self) -> list[Link]:
        """The connections that are open now, oldest first."""
        return list(self._links)

    def url(self, url: str) -> str:
        """The same URL through this proxy: host and port replaced, even if they are given as options."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        options = parse_qsl(parts.query, keep_blank_values=True)
        kept = [(name, value) for name, value in options if name not in ("host", "hostaddr", "port")]
        query = parts.query if kept == options else urlencode(kept, safe="/", quote_via=quote)
        return parts._replace(netloc=f"{user}{at}{self.host}:{self.port}", query=query).geturl()

    def refuse(self) -> None:
        """Refuse new connections; open ones stay."""
        if self._door is not None:
            asyncio.get_running_loop().remove_reader(self._door)
            self._door.close()
            self._door = None

    def accept(self) -> None:
        """Accept new connections again, on the same port."""
        if self._door is None:
            self._door = _bound(self.port)
            self._door.listen(128)
            asyncio.get_running_loop().add_reader(self._door, self._welcome, self._door)

    def reset(self) -> None:
        """Reset all connections, on both sides."""
        for link in self._links:
            link.reset()

    def on_next(self, rule: Callable[[Link], object], times: int | None = 1) -> None:
        """Apply the rule to the next connection at its start, to this many of them, or (None) to every one.

        `proxy.on_next(lambda link: link.cut_after(100, "to_client"))`
        """
        self._rules.append((rule, times))

    def heal(self) -> None:
        """Take back all controls, also those of single and of future connections, and accept again."""
        self._rules.clear()
        for link in self._links:
            link.heal()
        super().heal()
        self.accept()

    async def until(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Wait until the condition holds; checked after every byte, connection and cut."""
        async with asyncio.timeout(timeout):
            while not condition():
                await self._signal.wait()

    def _open(self) -> list[Link]:
        return self._links

    def _welcome(self, door: socket.socket) -> None:
        while True:
            try:
                client, _ = door.accept()
            except OSError:
                return  # the client is gone
            self._let_in(client)

    def _let_in(self, client: socket.socket) -> None:
        link = Link(self.accepted, client, self._dial, self)
        self.accepted += 1
        self._links.append(link)
        link.task.add_done_callback(lambda _: self._gone(link))
        rules, self._rules = self._rules, []
        for rule, times in rules:
            if times is None or times > 1:
                self._rules.append((rule, times and times - 1))
            rule(link)
        self._signal.notify()

    def _gone(self, link: Link) -> None:
        self._links.remove(link)
        self._signal.notify()

    async def _resolve(self) -> list[tuple[socket.AddressFamily, Any]]:
        host, port = self._server
        if port is None:
            return [(socket.AF_UNIX, host)]
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in found]

    async def _dial(self) -> socket.socket:
        """Connect to the server, at the first address that answers."""
        *others, last = self._addresses
        for family, address in others:
            with suppress(OSError):
                return await _connected(family, address)
        return await _connected(*last)


async def _connected(family: socket.AddressFamily, address: Any) -> socket.socket:
    connection = socket.socket(family)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


def _bound(port: int) -> socket.socket:
    """A socket bound to this port, which two may share as long as only one listens."""
    found = socket.socket()
    try:
        found.setblocking(False)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform != "linux" and hasattr(socket, "SO_REUSEPORT"):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind((LOCALHOST, port))
    except BaseException:
        found.close()
        raise
    return found
