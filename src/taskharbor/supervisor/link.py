"""A worker's end of the socket to its supervisor.

A thread of its own sends beats, so that a blocked event loop does not stop them but a held GIL does. When the other end
closes, the supervisor has died: the worker then stops gracefully, as nothing would restart it or give up its leases.
Signals stop a supervised worker gracefully, however many arrive; only its supervisor can make a stop urgent.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from taskharbor.supervisor.messages import (
    LONGEST_PERIOD,
    Beat,
    WaitsForStore,
    WorkerEnded,
    WorkerMessage,
    WorkerReady,
    encoded,
    period,
)
from taskharbor.worker.memory import resident

VARIABLE = "TASKHARBOR_SUPERVISOR"  # the number of the socket's file


class RunCounter(Protocol):
    """A running worker, which counts its finished runs; read from any thread."""

    @property
    def finished(self) -> int: ...


class SupervisorLink:
    """Sends messages, and watches for the end of the supervisor."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.setblocking(False)
        self._lock = threading.Lock()
        self._unsent = b""
        self._worker: RunCounter | None = None
        self._period = LONGEST_PERIOD
        self._hurry: Callable[[], object] = lambda: None
        threading.Thread(target=self._watch, name="taskharbor-supervised", daemon=True).start()

    @classmethod
    def inherited(cls) -> SupervisorLink | None:
        """The link of a process that a supervisor has started. Its own children do not inherit it."""
        number = os.environ.pop(VARIABLE, None)
        if number is None or not number.isdecimal():
            return None
        try:
            end = socket.socket(fileno=int(number))
        except OSError:
            return None
        end.set_inheritable(False)
        return cls(end)

    def report(self, worker: RunCounter, ready: WorkerReady) -> None:
        """Report a worker that is about to begin; from now on beats are sent."""
        self._period = period(ready.lease)
        self._send(ready)
        self._worker = worker

    def once(self, stop: Callable[[], None]) -> Callable[[], None]:
        """Wrap `stop` for signal handlers: only the first call has an effect, because a second `stop` is urgent.

        A terminal or a service manager may send a signal to a whole group; the supervisor passes it on once more.
        """
        loop = asyncio.get_running_loop()
        stopping = False

        def stop_once() -> None:
            nonlocal stopping
            if not stopping:
                stopping = True
                stop()

        def hurry() -> None:
            stop_once()
            stop()

        self._hurry = lambda: loop.call_soon_threadsafe(hurry)
        return stop_once

    def wait(self) -> None:
        """Report that the worker waits for its store."""
        self._send(WaitsForStore())

    def end(self, code: int) -> None:
        """Report that the worker ends by itself."""
        self._send(WorkerEnded(code))

    def _watch(self) -> None:
        with self._socket, selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while not (selector.select(self._period) and self._has_ended()):
                if self._worker is not None:
                    self._send(Beat(finished=self._worker.finished, memory=resident()))
        os.kill(os.getpid(), signal.SIGTERM)

    def _has_ended(self) -> bool:
        """Read what has arrived; return whether the supervisor has closed its end."""
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return False
        except OSError:
            return True
        if data:
            with suppress(RuntimeError):  # the loop of the worker has ended
                self._hurry()
        return not data

    def _send(self, message: WorkerMessage) -> None:
        """Send it; drop a beat while the supervisor does not read, because it is stopped."""
        with self._lock, suppress(OSError):  # a supervisor that has ended is noticed by `_watch`
            if not self._unsent or not isinstance(message, Beat):
                self._unsent += encoded(message)
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
