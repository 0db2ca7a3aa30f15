"""One side of a connection through the `Proxy`: a socket without buffers, which can be closed at any moment.

Sent bytes are in the kernel, and unread bytes still are, so that none are in between when a connection is cut.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

CHUNK = 65_536
PATIENCE = 5.0
POLL = 0.001
BYTES_NOT_SENT = 0x894B  # SIOCOUTQNSD, which Python does not name


class Wire:
    """A socket on the running loop. Closing it does not wake a waiting task: that task must be cancelled."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
        if self._is_tcp:
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def closed(self) -> bool:
        """Whether it was closed here."""
        return self._socket.fileno() < 0

    async def receive(self) -> bytes:
        """Read what has arrived; empty at the end of the stream."""
        while True:
            try:
                return self._socket.recv(CHUNK)
            except BlockingIOError:
                await self._ready(self._loop.add_reader, self._loop.remove_reader)

    def send(self, data: memoryview) -> int:
        """Send as much as fits; return the number of bytes."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    async def room(self) -> None:
        """Wait until more can be sent."""
        await self._ready(self._loop.add_writer, self._loop.remove_writer)

    async def _ready(self, watch: Callable[..., object], forget: Callable[..., object]) -> None:
        waiter = self._loop.create_future()
        watch(self._socket, _wake, waiter)
        try:
            await waiter
        finally:
            if not self.closed:
                forget(self._socket)

    async def departed(self) -> None:
        """Wait until the kernel has sent everything, because a reset discards what is still queued."""
        if sys.platform == "linux" and self._is_tcp:
            from fcntl import ioctl

            for _ in range(int(PATIENCE / POLL)):
                if self.closed or not any(ioctl(self._socket, BYTES_NOT_SENT, bytes(4))):
                    return
                await asyncio.sleep(POLL)

    def end(self) -> None:
        """Close the sending direction; the other stays open."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self, *, reset: bool) -> None:
        """Close it at once: with a FIN after what was sent, or with a reset."""
        if self.closed:
            return
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        if reset:
            with suppress(OSError):
                # A linger time of zero sends a reset instead of a FIN.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
