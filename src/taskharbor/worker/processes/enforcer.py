"""The enforcer: a thread of the worker that ends runs in processes in time, also while the worker's loop is blocked.

An `async def` handler that blocks the loop would otherwise delay the timeouts of its neighbours, and keep the renewals
of their leases from them (F5, L3).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import suppress
from typing import Protocol

logger = logging.getLogger("taskharbor.worker")


class Enforced(Protocol):
    """A run that is to be ended in time."""

    def look(self) -> float:
        """Do what is due; return when to look again on the monotonic clock of the host, infinity for never."""
        ...


class Enforcer:
    """Looks at each run when something is due for it, and at least every `look_every` seconds. Sleeps without runs.

    Nothing that it calls may block. It is woken only for what is due before its next look, so short runs cost no
    change of threads.
    """

    def __init__(self, look_every: float) -> None:
        self._look_every = look_every
        self._enforced: set[Enforced] = set()
        self._woken = threading.Event()
        self._looks_at = math.inf
        self._closed = False
        threading.Thread(target=self._serve, name="taskharbor-enforcer", daemon=True).start()

    def add(self, enforced: Enforced, due: float) -> None:
        """Look at it from now on, first when it is due."""
        self._enforced.add(enforced)
        self.look_by(min(due, time.monotonic() + self._look_every))

    def discard(self, enforced: Enforced) -> None:
        """Look at it no longer."""
        self._enforced.discard(enforced)

    def look_by(self, moment: float) -> None:
        """Look at this time or before, from any thread."""
        if moment < self._looks_at:
            self._woken.set()

    def close(self) -> None:
        """Let the thread end."""
        self._closed = True
        self._woken.set()

    def _serve(self) -> None:
        while not self._closed:
            self._woken.clear()
            self._looks_at = math.inf  # before the look: what is added behind it wakes this thread
            looks_at = min(map(self._look, list(self._enforced)), default=math.inf)
            self._looks_at = looks_at
            self._woken.wait(None if math.isinf(looks_at) else max(looks_at - time.monotonic(), 0.0))

    def _look(self, enforced: Enforced) -> float:
        latest = time.monotonic() + self._look_every
        try:
            return min(enforced.look(), latest)
        except Exception:  # the others must not suffer from it
            with suppress(Exception):
                logger.exception("a process cannot be watched")
            return latest
