"""The child's end of the socket. Any thread may send; the thread that needs the next message reads it."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable

from taskharbor.driver.forking import after_fork
from taskharbor.driver.locking import locked
from taskharbor.worker.processes.messages import Down, Frames, Perform, Up, decode_down, frame

CHUNK = 1 << 18
SMALL = 1 << 12  # what arrives during a job is small
TURN = 0.005  # how long a thread waits for another to read what it needs


class Channel:
    """Messages from and to the worker. `take` handles what arrives during a job; the next job waits for `receive`.

    It is not `own` in a copy of the process that a handler has forked, such as one of `multiprocessing`: the socket is
    that of the process that forked, and a copy would take its messages, or write into the middle of them.
    """

    def __init__(self, link: socket.socket, take: Callable[[Down], None]) -> None:
        self._link = link
        self._take = take
        self._frames = Frames()
        self._next_jobs: deque[Down] = deque()
        self._room = memoryview(bytearray(SMALL))  # allocated now: a job at its memory limit leaves no room
        self._unsent: deque[bytes] = deque()
        self._sending = threading.RLock()
        self._is_sending = False
        self._reading = threading.Lock()
        self.own = True
        after_fork(self, Channel._disown)

    def _disown(self) -> None:
        self.own = False

    def send(self, message: Up) -> None:
        """Send it whole; no-op in a copy. A child without a worker ends."""
        if not self.own:
            return
        self._unsent.append(frame(message))
        try:
            locked(self._sending, self._send_all)
        except OSError:
            os._exit(1)

    def _send_all(self) -> None:
        """Send what waits. A signal handler that has interrupted a send leaves its message to that send."""
        while self._unsent and not self._is_sending:
            self._is_sending = True
            try:
                while self._unsent:
                    self._link.sendall(self._unsent.popleft())
            finally:
                self._is_sending = False

    def receive(self) -> Down | None:
        """The next message; None when the worker has closed the channel."""
        with self._reading:
            return self._next()

    def look(self) -> None:
        """Take the messages that are there, unless another thread reads."""
        if self.own and self._reading.acquire(blocking=False):
            try:
                self._take_all()
            finally:
                self._reading.release()

    def until(self, event: threading.Event) -> None:
        """Take messages, or let another thread take them, until the event is set."""
        while not event.is_set():
            if self._reading.acquire(timeout=TURN):
                try:
                    if not event.is_set():
                        self._take_one()
                finally:
                    self._reading.release()

    def _take_one(self) -> None:
        message = self._next()
        if message is None:  # the worker is gone
            os._exit(1)
        self._take_or_defer(message)

    def _take_all(self) -> None:
        try:
            size = self._link.recv_into(self._room, SMALL, socket.MSG_DONTWAIT)
        except OSError:  # there is nothing, or no worker any more
            return
        self._frames.feed(self._room[:size])
        for body in self._frames:
            self._take_or_defer(decode_down(body))

    def _take_or_defer(self, message: Down) -> None:
        """Only the main thread starts a job, but another thread may read the message."""
        if isinstance(message, Perform):
            self._next_jobs.append(message)
        else:
            self._take(message)

    def _next(self) -> Down | None:
        while True:
            if self._next_jobs:
                return self._next_jobs.popleft()
            for body in self._frames:
                return decode_down(body)
            try:
                data = self._link.recv(CHUNK)
            except OSError:
                return None
            if not data:
                return None
            self._frames.feed(data)
