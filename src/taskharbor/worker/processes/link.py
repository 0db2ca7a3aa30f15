"""The worker's end of the socket to a child: never blocks the loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import msgspec

from taskharbor.worker.processes.messages import Down, Frames, Up, decode_up, frame

CHUNK = 1 << 18


class ChildLink:
    """Calls `take` with each message, and `cut` when the child has closed its end or sent what cannot be read."""

    def __init__(self, end: socket.socket, take: Callable[[Up], None], cut: Callable[[str | None], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = end
        self._take = take
        self._cut = cut
        self._frames = Frames()
        self._unsent = bytearray()
        self._loop.add_reader(end.fileno(), self._read)

    def send(self, message: Down) -> None:
        """Send a message as soon as the socket takes it; to a dying child it is lost, which `cut` reports."""
        data = frame(message)
        if not self._unsent:
            data = data[self._sent(data) :]
            if data:
                self._loop.add_writer(self._socket.fileno(), self._write)
        self._unsent += data

    def _write(self) -> None:
        del self._unsent[: self._sent(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def _sent(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return len(data)

    def _read(self) -> None:
        try:
            data = self._socket.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._frames.feed(data)
            self._take_all()
        else:
            self._loop.remove_reader(self._socket.fileno())
            self._cut(None)

    def _take_all(self) -> None:
        try:
            for body in self._frames:
                self._take(decode_up(body))
        except msgspec.MsgspecError as error:  # a handler has written to the socket, or the package was replaced
            self._cut(f"it has sent something unreadable: {error}")

    def finish(self) -> None:
        """Close the sending side: the child leaves after its job."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Take the last messages of a dead child, and close."""
        with suppress(OSError):
            while data := self._socket.recv(CHUNK):
                self._frames.feed(data)
        self._take_all()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
