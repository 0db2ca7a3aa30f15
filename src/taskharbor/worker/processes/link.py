"""The worker's end of the socket to a child: never blocks the loop, and works while something else blocks it."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import RLock

import msgspec

from taskharbor.worker.processes.messages import Down, Frames, Up, decode_up, frame

CHUNK = 1 << 18
MOST = 16  # chunks that `pump` receives in one call


class ChildLink:
    """Calls `take` with each message, and `cut` when the child has closed its end or sent what cannot be read.

    That happens on the loop. `send`, `push`, `pump` and `received` may be called from any thread, for a loop that is
    blocked; the lock is the slot's. `unsent` is what the socket has not taken yet.
    """

    def __init__(
        self, end: socket.socket, take: Callable[[Up], None], cut: Callable[[str | None], None], lock: RLock
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = end
        self._take = take
        self._cut = cut
        self._lock = lock
        self._frames = Frames()
        self._received: deque[Up] = deque()
        self._unreadable: str | None = None
        self.unsent = bytearray()
        self._closed = False
        self._loop.add_reader(end.fileno(), self._read)

    # in any thread

    def send(self, message: Down) -> None:
        """Send a message as soon as the socket takes it; to a dying child it is lost, which `cut` reports."""
        data = frame(message)
        with self._lock:
            if not self.unsent:
                data = data[self._sent(data) :]
                if data:
                    self._call(self._await_room)
            self.unsent += data

    def push(self) -> None:
        """Send what the socket takes now of what it has not taken yet."""
        with self._lock:
            if self.unsent and not self._closed:
                del self.unsent[: self._sent(self.unsent)]

    def pump(self) -> None:
        """Send and receive. The loop takes the messages later."""
        with self._lock:
            if self._closed:
                return
            self.push()
            for _ in range(MOST):
                if not self._receive():
                    break
            if self._received or self._unreadable:
                self._call(self._take_all)

    def received(self) -> list[Up]:
        """The messages that the loop has not taken yet."""
        with self._lock:
            return list(self._received)

    def _call(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)

    # with the lock

    def _sent(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return len(data)

    def _receive(self) -> bytes | None:
        """Receive what is there, up to a chunk: None if there is nothing, empty if the child has closed its end."""
        try:
            data = self._socket.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            data = b""
        self._frames.feed(data)
        try:
            self._received.extend(map(decode_up, self._frames))
        except msgspec.MsgspecError as error:  # a handler has written to the socket, or the package was replaced
            self._unreadable = f"it has sent something unreadable: {error}"
        return data

    # on the loop

    def _await_room(self) -> None:
        with self._lock:
            if self.unsent and not self._closed:
                self._loop.add_writer(self._socket.fileno(), self._write)

    def _write(self) -> None:
        with self._lock:
            self.push()
            if not self.unsent:
                self._loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        with self._lock:
            data = self._receive()
        self._take_all()
        if data == b"":
            self._loop.remove_reader(self._socket.fileno())
            self._cut(None)

    def _take_all(self) -> None:
        """Take the messages. Each is among the `received` ones until it is dealt with."""
        while self._received:
            try:
                self._take(self._received[0])
            finally:
                self._received.popleft()
        if self._unreadable is not None:
            self._cut(self._unreadable)

    def finish(self) -> None:
        """Close the sending side: the child leaves after its job."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Take the last messages of a dead child, and close."""
        with self._lock:
            while self._receive():
                pass
        self._take_all()
        with self._lock:
            self._closed = True
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
